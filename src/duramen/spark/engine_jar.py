"""The jar with the engine for Spark's JVM. It is built where a JDK and pyspark are found; without it, Python reads."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

NAME = "duramen-spark.jar"
JARS = "spark.jars"
_DEFAULTS = "spark-defaults.conf"


def jar() -> str | None:
    """The path of the jar, for ``spark.jars``; None where this installation has none."""
    found = Path(__file__).with_name(NAME)
    if not found.is_file():
        try:
            found = Path(str(distribution("duramen").locate_file(f"duramen/spark/{NAME}")))
        except PackageNotFoundError:
            return None
    return str(found) if found.is_file() else None


def jar_settings(options: Mapping[str, str]) -> dict[str, str]:
    """The setting of a new session that adds the jar to those in ``options``, its other settings. Empty where the jar
    is missing, and where a setting would come too late, or would replace jars that are named elsewhere."""
    found, named = jar(), options.get(JARS, "")
    if found is None or found in named.split(",") or _is_running() or _is_remote(options):
        return {}
    if not named and _is_named_elsewhere():
        return {}
    return {JARS: ",".join(filter(None, (named, found)))}


def _is_running() -> bool:
    """Whether the JVM runs already: Spark takes jars when it starts, and `spark-submit` starts it before Python."""
    from pyspark import SparkContext

    return SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ


def _is_remote(options: Mapping[str, str]) -> bool:
    """Whether the session is one of Spark Connect, whose JVM is the server's."""
    master = options.get("spark.remote") or options.get("spark.master", "")
    return "spark.remote" in options or master.startswith("sc://") or "SPARK_REMOTE" in os.environ


def _is_named_elsewhere() -> bool:
    from pyspark.find_spark_home import _find_spark_home

    if any(word in os.environ.get("PYSPARK_SUBMIT_ARGS", "") for word in ("--jars", f"{JARS}=")):
        return True
    home = Path(os.environ.get("SPARK_CONF_DIR") or Path(_find_spark_home()) / "conf")
    try:
        lines = (home / _DEFAULTS).read_text(errors="replace").replace("=", " ").splitlines()
    except OSError:
        return False
    return any(line.split()[:1] == [JARS] for line in lines)
