"""The jar with the engine for Spark's JVM. It is built where a JDK and pyspark are found; without it, Python reads."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

NAME = "duramen-spark.jar"


def jar() -> str | None:
    """The path of the jar, for ``spark.jars``; None where this installation has none."""
    found = Path(__file__).with_name(NAME)
    if not found.is_file():
        try:
            found = Path(str(distribution("duramen").locate_file(f"duramen/spark/{NAME}")))
        except PackageNotFoundError:
            return None
    return str(found) if found.is_file() else None
