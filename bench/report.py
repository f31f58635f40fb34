"""What a subject hands over to be shown: tables of text, and verdicts on bars."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple


class Table(NamedTuple):
    title: str
    columns: list[str]
    rows: Iterator[list[str]]
    note: str = ""


Subject = Callable[[Path, bool], Iterator[Table]]
"""Takes a scratch directory, and whether a look is enough."""


class Bar(NamedTuple):
    """Something that was asked for, and what came of it."""

    what: str
    value: str
    verdict: str


BARS: list[Bar] = []
"""Of this run, in the order of measuring."""


def at_least(value: float, bar: float, what: str = "") -> str:
    return _judged(value >= bar, f"≥ {bar:g}", value, what)


def at_most(value: float, bar: float, unit: str = "", what: str = "") -> str:
    return _judged(value <= bar, f"≤ {bar:g} {unit}".rstrip(), value, what)


def _judged(is_met: bool, bar: str, value: float, what: str) -> str:
    verdict = f"{bar} {'met' if is_met else 'MISSED'}"
    if what:
        BARS.append(Bar(what, f"{value:.2f}", verdict))
    return verdict


def bars() -> Table:
    """Every bar that was named, as one table."""
    return Table("Bars of this run", ["what", "value", "bar"], iter([list(bar) for bar in BARS]))


def us(seconds: float) -> str:
    return f"{seconds * 1e6:,.1f}" if seconds < 1e-3 else f"{seconds * 1e6:,.0f}"


def ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.2f}"


def machine(scratch: Path) -> str:
    """Where the numbers come from, in a line."""
    return (
        f"{platform.system()} {platform.release()}, {platform.machine()}, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}; scratch files on {_file_system(scratch)}"
    )


def _file_system(path: Path) -> str:
    best, kind = "", "an unknown file system"
    try:
        lines = Path("/proc/mounts").read_text(encoding="utf-8").splitlines()
    except OSError:
        return kind
    target = str(path.resolve())
    for line in lines:
        _, point, name, *_ = line.split()
        inside = target == point or target.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, name
    return kind
