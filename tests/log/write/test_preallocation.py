"""Zeros ahead of the records: they come and go without a trace, and nobody takes them for records."""

from __future__ import annotations

import contextlib
import errno
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import duramen
from duramen.errors import UsageError
from duramen.log.segments.active_segment import FILL_AFTER_COMMITS, FILL_BYTES
from duramen.testing import Fault, FaultyDisk, SimulatedDisk
from tests.sampling import examples

FORMATS = ("durable-log", "keratin", "rustlog", "osiris", "fixed-slot")
FILLED = ("durable-log", "keratin", "osiris")
"""Whose own programs cut zeros at the end."""
VALUE = b"v" * 100
WRITER = """
import sys, duramen
log = duramen.open(sys.argv[1], "a", preallocate_bytes=50_000, **eval(sys.argv[2]))
for number in range(10 ** 9):
    log.append_batch([b"%05d" % number + b"v" * 95] * (1 + number % 7))
    if number == 20:
        print("ready", flush=True)
    if number % 50 == 49 and log.codec.capabilities.segments:
        log.seal()
"""


def options_of(name: str) -> dict[str, Any]:
    return {"format": name, **({"record_size": len(VALUE)} if name == "fixed-slot" else {})}


def opened(root: Path, name: str, **more: Any) -> duramen.WritableLog:
    return duramen.open(root, "a", clock=lambda: 1_700_000_000_000_000_000, **options_of(name), **more)


def size_of(log: duramen.Log) -> int:
    """Of the file, not of the records."""
    return Path(log.segments[-1].path).stat().st_size


@pytest.mark.parametrize("name", FORMATS)
def test_files_are_the_same_with_and_without(tmp_path: Path, name: str) -> None:
    files = []
    for ahead_bytes in (0, 5000):
        root = tmp_path / str(ahead_bytes)
        with opened(root, name, preallocate_bytes=ahead_bytes) as log:
            for number in range(60):
                log.append(VALUE)
                if number == 30 and log.codec.capabilities.segments:
                    assert size_of(log) - log.segments[-1].size_bytes in (range(1, 5001) if ahead_bytes else [0])
                    log.seal()
            log.append_batch([VALUE] * 200)
        found = [path for path in sorted(root.rglob("*")) if path.is_file() and ".duramen" not in path.parts]
        files.append({str(path.relative_to(root)): path.read_bytes() for path in found})
        assert not duramen.verify(root).findings
    assert files[0] == files[1]


@pytest.mark.parametrize("name", FORMATS)
def test_by_default_after_some_commits_and_where_the_formats_program_copes(tmp_path: Path, name: str) -> None:
    with opened(tmp_path / "log", name) as log:
        for _ in range(FILL_AFTER_COMMITS - 1):
            log.append(VALUE)
        assert size_of(log) == log.segments[-1].size_bytes
        log.append(VALUE)
        held = log.segments[-1].size_bytes
        assert size_of(log) == held + (FILL_BYTES if name in FILLED else 0)
        log.append(VALUE)
        assert size_of(log) == (held + FILL_BYTES if name in FILLED else log.segments[-1].size_bytes)
    assert size_of(log) == log.segments[-1].size_bytes


def test_writes_that_are_not_synced_and_large_ones_get_none(tmp_path: Path) -> None:
    with opened(tmp_path / "log", "keratin", preallocate_bytes=3000) as log:
        log.append(VALUE, durability="write")
        log.append_batch([VALUE] * 20)
        assert size_of(log) == log.segments[-1].size_bytes
        log.append(VALUE)
        assert size_of(log) == log.segments[-1].size_bytes + 3000


def test_not_beyond_the_largest_segment(tmp_path: Path) -> None:
    with opened(tmp_path / "log", "keratin", preallocate_bytes=5000, segment_max_bytes=2000) as log:
        log.append(VALUE)
        assert size_of(log) == 2000
        for _ in range(50):
            log.append(VALUE)
            assert size_of(log) <= 2000
    assert all(Path(segment.path).stat().st_size == segment.size_bytes for segment in log.segments)


@pytest.mark.parametrize("ahead_bytes", [-1, 2**31])
def test_an_amount_that_makes_no_sense_is_refused(tmp_path: Path, ahead_bytes: int) -> None:
    with pytest.raises(UsageError, match="preallocate_bytes"):
        opened(tmp_path / "log", "keratin", preallocate_bytes=ahead_bytes)
    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize("name", FORMATS)
def test_a_full_disk_takes_the_zeros_not_the_records(name: str) -> None:
    disk = FaultyDisk(SimulatedDisk())
    options = {**options_of(name), "disk": disk, "preallocate_bytes": 5000}
    log = duramen.WritableLog("/log", **options)
    path = log.tail.active.path
    disk.faults = (Fault("write", path=path, call=2, short=True), Fault("write", path=path, call=3, error=errno.ENOSPC))
    disk._matched = [0, 0]
    assert [log.append(VALUE) for _ in range(5)] == list(range(5))
    assert len(disk.fired) == 2
    assert disk.size(path) == log.segments[-1].size_bytes
    assert [record.value for record in log.scan()] == [VALUE] * 5
    log.close()


@pytest.mark.parametrize("name", FORMATS)
def test_a_killed_writer_leaves_zeros_and_nothing_else(tmp_path: Path, name: str) -> None:
    root = tmp_path / "log"
    with _writing(root, name):
        pass
    report = duramen.verify(root)
    assert report.ok
    told = {finding.code for finding in report.findings}
    # It died in the middle of an append: before the index entry of an Osiris chunk, for instance.
    assert told <= {"zero-tail", "missing-index", "short-index", "torn-tail", "unacknowledged"}
    held = [record.value for record in duramen.open(root)]
    assert len(held) >= 81
    with duramen.open(root, "a") as log:
        assert [record.value for record in log] == held
        assert size_of(log) == log.segments[-1].size_bytes
        assert log.append(VALUE) == len(held)
    assert not duramen.verify(root).findings


@pytest.mark.parametrize("name", FORMATS)
def test_readers_and_verify_beside_a_writer(tmp_path: Path, name: str) -> None:
    """While records take the place of zeros, and what is left of them is cut."""
    root = tmp_path / "log"
    with _writing(root, name):
        followed: list[duramen.Record] = []
        follower = threading.Thread(target=lambda: followed.extend(_follow(root, 400)), daemon=True)
        follower.start()
        before = 0
        for _ in range(examples(30)):
            report = duramen.verify(root)
            assert report.ok, report.findings
            assert {finding.code for finding in report.findings} <= {"missing-index", "leftover"}
            assert report.records >= before
            before = report.records
            records = list(duramen.open(root))
            assert [record.offset for record in records] == list(range(len(records)))
            assert all(len(record.value) == 100 for record in records)
            assert len(records) >= before
        follower.join(60)
    assert [record.offset for record in followed] == list(range(400))
    assert all(record.value[5:] == b"v" * 95 for record in followed)


@contextlib.contextmanager
def _writing(root: Path, name: str) -> Iterator[None]:
    """A writer in another process, which is killed in the end."""
    with subprocess.Popen([sys.executable, "-c", WRITER, str(root), repr(options_of(name))], stdout=-1) as writer:
        try:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"ready\n"
            yield
        finally:
            writer.kill()


def _follow(root: Path, count: int) -> list[duramen.Record]:
    scan = duramen.open(root).scan(follow=True)
    return [next(scan) for _ in range(count)]
