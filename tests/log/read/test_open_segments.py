"""How many segments a log keeps open, counted in the process: descriptors and mappings."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

import pytest

import duramen
from duramen.log.read.log import MAX_OPEN_SEGMENTS
from tests.log.conftest import value
from tests.log.writing import values

SEGMENTS = 12
FILES = 3
"""A segment of Keratin has two indexes."""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="counts in /proc")


def descriptors(root: Path) -> int:
    links = []
    for number in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{number}"))
        except FileNotFoundError:
            continue
    return sum(link.startswith(f"{root}/segments/") for link in links)


def mappings(root: Path) -> int:
    return Path("/proc/self/maps").read_text().count(f"{root}/segments/")


def fill(root: Path, segments: int = SEGMENTS, **options: int) -> Path:
    with duramen.open(root, "a", format="keratin", **options) as log:
        for number in range(segments):
            log.append(value(number), durability="write")
            log.seal()
    return root


def visit(log: duramen.Log, root: Path, most: int, segments: int = SEGMENTS) -> None:
    """Read everywhere, in order and out of order, and count."""
    assert [record.value for record in log] == values(0, segments)
    for offset in (7, 11, 3, 0, segments - 1, 6):
        assert log.read(offset).value == value(offset)
    gc.collect()
    assert log.open_segments <= most
    own = FILES if isinstance(log, duramen.WritableLog) else 0
    assert descriptors(root) <= FILES * most + own
    assert mappings(root) <= FILES * most + own


@pytest.mark.parametrize("mode", ["r", "a"])
@pytest.mark.parametrize("most", [1, 5])
def test_the_bound_of_the_manifest_is_kept(tmp_path: Path, mode: str, most: int) -> None:
    root = fill(tmp_path / "log", max_open_segments=most)
    with duramen.open(root, mode) as log:  # type: ignore[call-overload]
        visit(log, root, most)


def test_without_an_option(tmp_path: Path) -> None:
    root = fill(tmp_path / "log", MAX_OPEN_SEGMENTS + 6)
    with duramen.open(root) as log:
        visit(log, root, MAX_OPEN_SEGMENTS, MAX_OPEN_SEGMENTS + 6)


def test_a_manifest_without_the_sidecar_counts_as_well(tmp_path: Path) -> None:
    root = fill(tmp_path / "log", max_open_segments=4)
    (root / ".duramen").rename(tmp_path / "sidecar")
    with duramen.open(root) as log:
        visit(log, root, 4)


def test_a_dropped_reader_closes_its_segments_at_once(tmp_path: Path) -> None:
    root = fill(tmp_path / "log")
    gc.disable()
    try:
        log = duramen.open(root)
        for offset in range(10):
            log.read(offset)
        assert descriptors(root) >= 10
        del log
        assert descriptors(root) == 0
    finally:
        gc.enable()
