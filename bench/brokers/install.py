"""What the peers need, fetched on demand into ``build/brokers``: Python packages with pip, jars with Maven.

Nothing goes into the project's environment. Whatever cannot be had raises `NotRun` with the reason; every command has a
time limit. A directory appears under its name only when it is complete, so an interrupted run leaves nothing half done.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path

HOME = Path(__file__).parents[2] / "build" / "brokers"
CENTRAL = "https://repo1.maven.org/maven2"
TIMEOUT_S = 600
_VERSION = re.compile(r"<version>(\d+(?:\.\d+)*)</version>")
"""Releases only: neither previews nor candidates."""
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


class NotRun(Exception):  # noqa: N818
    """A peer that cannot be measured here, and why."""


def run(command: Sequence[str], what: str, timeout_s: float = TIMEOUT_S, cwd: Path | None = None) -> str:
    """Run a command to its end, and answer what it printed."""
    try:
        done = subprocess.run(
            command, cwd=cwd, text=True, timeout=timeout_s, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
    except FileNotFoundError:
        raise NotRun(f"{command[0]} is missing") from None
    except subprocess.TimeoutExpired:
        raise NotRun(f"{what} took longer than {timeout_s:g} s") from None
    if done.returncode:
        raise NotRun(f"{what} failed: {_reason(done.stdout)}")
    return done.stdout


def _reason(output: str) -> str:
    """The first line that speaks of an error, or else the last."""
    lines = [line.strip() for line in _ESCAPES.sub("", output).splitlines() if line.strip()]
    telling = [line for line in lines if "error" in line.lower() or line.startswith("E:")]
    return (telling or lines[-1:] or ["it said nothing"])[0][:200]


def _once(name: str, make: Callable[[Path], None]) -> Path:
    """``HOME/name``, made by ``make`` if it is not there yet."""
    target = HOME / name
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=".new-", dir=target.parent))
        try:
            make(work)
            os.rename(work, target)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return target


def package(name: str) -> str:
    """Make a Python package importable; answers its version."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target"]
    tag = f"{sys.implementation.cache_tag}-{name}"
    path = _once(f"python/{tag}", lambda work: void(run([*command, str(work), name], f"pip install {name}")))
    if str(path) not in sys.path:
        sys.path.append(str(path))
        importlib.invalidate_caches()
    return importlib.metadata.version(name)


def void(_: object) -> None:
    """For a call whose answer nobody wants."""


def java() -> str:
    found = shutil.which("java")
    if found is None:
        raise NotRun("java is missing")
    return found


def jars(name: str, coordinates: Sequence[str], exclusion: str = "") -> Path:
    """A directory with jars (``group:artifact:version``) and what they need at run time, except ``exclusion``
    (``group:artifact``), which Maven then does not even look for."""

    def make(work: Path) -> None:
        if shutil.which("mvn") is None:
            raise NotRun("mvn is missing")
        pom = work / "pom.xml"
        pom.write_text(_pom(coordinates, exclusion), encoding="utf-8")
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={work}", "-DincludeScope=runtime"]
        run(["mvn", "--quiet", "--batch-mode", "-f", str(pom), *goal], f"mvn for {name}")

    key = hashlib.sha256(_pom(coordinates, exclusion).encode()).hexdigest()[:12]
    return _once(f"jars/{name}-{key}", make)


def _pom(coordinates: Sequence[str], exclusion: str) -> str:
    without = ""
    if exclusion:
        group, artifact = exclusion.split(":")
        without = (
            f"<exclusions><exclusion><groupId>{group}</groupId><artifactId>{artifact}</artifactId></exclusion>"
            "</exclusions>"
        )
    wanted = "".join(
        "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>".format(*one.split(":"))
        + f"{without}</dependency>"
        for one in coordinates
    )
    return (
        "<project><modelVersion>4.0.0</modelVersion><groupId>bench</groupId><artifactId>bench</artifactId>"
        f"<version>1</version><packaging>pom</packaging><dependencies>{wanted}</dependencies></project>"
    )


def newest(group: str, artifact: str, at_most: str) -> str:
    """The newest release on Maven Central that is no newer than ``at_most``, of the same major version."""
    url = f"{CENTRAL}/{group.replace('.', '/')}/{artifact}/maven-metadata.xml"
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            text = answer.read().decode("utf-8", "replace")
    except OSError as error:
        raise NotRun(f"Maven Central does not answer for {artifact}: {error}") from None
    limit = numbers(at_most)
    fitting = [found for found in _VERSION.findall(text) if numbers(found)[:1] == limit[:1] and numbers(found) <= limit]
    if not fitting:
        raise NotRun(f"Maven Central has no {artifact} for {at_most}")
    return max(fitting, key=numbers)


def numbers(version: str) -> tuple[int, ...]:
    """The numbers that a version begins with.

    >>> numbers("4.3.0.dev1")
    (4, 3, 0)
    """
    return tuple(int(part) for part in re.match(r"(\d+(?:\.\d+)*)", version + " ")[1].split("."))  # type: ignore[index]
