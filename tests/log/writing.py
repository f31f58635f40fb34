"""What the tests of writers share: values that say their offset, what a log holds, and what verify finds in it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import duramen
from duramen.formats import make
from tests.log.conftest import FORMATS, START_US, value

SEGMENTED = tuple(name for name in FORMATS if make(name).capabilities.segments)
TIMED = tuple(name for name in FORMATS if make(name).capabilities.timestamps)
ORDERED = tuple(name for name in FORMATS if make(name).capabilities.ordered_timestamps)
START_MS = START_US // 1000

Open = Callable[..., duramen.WritableLog]


def values(first: int, count: int) -> list[bytes]:
    return [value(offset) for offset in range(first, first + count)]


def content(root: Path, **more: Any) -> list[bytes]:
    """Every value, read anew; offsets have no gap."""
    with duramen.open(root, **more) as log:
        records = list(log.scan())
    assert [record.offset for record in records] == list(range(records[0].offset if records else 0, len(records)))
    return [record.value for record in records]


def snapshot(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def codes(root: Path) -> list[str]:
    """What verify finds."""
    report = duramen.verify(root)
    assert report.ok, report.findings
    return [finding.code for finding in report.findings]


def sizes(root: Path, name: str) -> list[int]:
    suffix = ".segment" if name == "osiris" else ".log"
    return [path.stat().st_size for path in sorted(root.rglob(f"*{suffix}")) if path.parent.name != "quarantine"]
