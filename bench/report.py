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


def at_least(value: float, bar: float) -> str:
    return f"≥ {bar:g} {'met' if value >= bar else 'MISSED'}"


def at_most(value: float, bar: float, unit: str) -> str:
    return f"≤ {bar:g} {unit} {'met' if value <= bar else 'MISSED'}"


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
