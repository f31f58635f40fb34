"""Readers that look at a log between any two operations of its live writer: each sees the acknowledged records, whole
and in order, and calls nothing damaged."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import duramen
from duramen.disk import PosixDisk
from duramen.log import Compaction, Retention
from duramen.log.segments import snapshot
from duramen.log.write.writable_log import WritableLog
from duramen.testing import FaultyDisk
from tests.sampling import every
from tests.spark.source_logs import FORMATS, RECORD_SIZE, read_here

BATCH = 10
CHANGES = ("create", "write", "truncate", "store", "replace", "rename_new", "remove", "sync")
VALUES = [b"k%d=" % (n % 3) + bytes(RECORD_SIZE - 3) for n in range(BATCH)]


class OverlookedDisk(FaultyDisk):
    """Calls ``look`` before every operation of the writer that changes something."""

    def __init__(self, look: Callable[[str], None]) -> None:
        super().__init__(PosixDisk())
        self.look = look
        self.is_looking = False

    @contextmanager
    def looking(self) -> Iterator[None]:
        self.is_looking = True
        yield
        self.is_looking = False

    def _strike(self, operation: str, *paths: str) -> Any:
        if self.is_looking and operation in CHANGES:
            self.is_looking = False
            self.look(f"{operation} {' '.join(paths)}")
            self.is_looking = True
        return super()._strike(operation, *paths)


def _scanned(path: Path) -> list[int]:
    return [record.offset for record in duramen.open(path).scan()]


def _in_spark(path: Path) -> list[int]:
    return list(read_here(path, columns="offset,value").column("offset").to_pylist())


def _verified(path: Path) -> list[int]:
    report = duramen.verify(path)
    assert report.ok, report.findings
    return _scanned(path)


def _converted(path: Path) -> list[int]:
    target = path.parent / "converted"
    shutil.rmtree(target, ignore_errors=True)
    duramen.convert(path, target, to="durable-log", allow_loss=("timestamp", "checkpoint"))
    return _scanned(target)


def _append(log: WritableLog) -> None:
    log.append_batch(VALUES)


def _append_once(log: WritableLog) -> None:
    log.append_once([VALUES[:5], VALUES[5:]], writer="w", batch=log.next_offset)


def _retain(log: WritableLog) -> None:
    log.retain(Retention(before_offset=log.next_offset - 8))


def _compact(log: WritableLog) -> None:
    log.compact(Compaction(key="delimiter:="))


ACTIONS = {
    "append": (_append, FORMATS),
    "append_once": (_append_once, FORMATS),
    "retain": (_retain, FORMATS[:-1]),
    "compact": (_compact, FORMATS[:-2]),
}
READERS = {"scan": _scanned, "spark": _in_spark, "verify": _verified, "convert": _converted}
CASES = [
    (action, name, reader)
    for action, (_, names) in ACTIONS.items()
    for name in names
    for reader in READERS
    if reader != "convert" or action.startswith("append")
][:: every(7)]


@pytest.mark.parametrize(("action", "name", "reader"), CASES)
def test_every_moment(action: str, name: str, reader: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log"
    before: list[int] = []
    looks = 0

    def look(operation: str) -> None:
        nonlocal looks
        looks += 1
        found = READERS[reader](path)
        assert found == sorted(set(found)), operation
        if action.startswith("append"):
            assert found in (before, list(range(len(before) + BATCH))), operation
        else:
            assert set(found) <= set(before), operation
            assert found[-1] == before[-1], operation

    monkeypatch.setattr(snapshot, "PAUSE_S", 0)  # verify waits for the writer, which waits for verify
    options = {"record_size": RECORD_SIZE} if name == "fixed-slot" else {"segment_max_bytes": 400}
    disk = OverlookedDisk(look)
    with duramen.open(path, "a", format=name, disk=disk, **options) as log:
        for _ in range(3):
            log.append_batch(VALUES)
        before = _scanned(path)
        count = len(log.segments)
        with disk.looking():
            ACTIONS[action][0](log)
        assert name == "fixed-slot" or len(log.segments) != count or action == "compact"
    assert looks > 1
