"""A reader of a log that lacks a segment, or a part of one, raises where the records should be."""

from __future__ import annotations

import posixpath

import pytest

from duramen.errors import CorruptionError
from duramen.log.read.log import Log
from duramen.log.repair import repair_log
from duramen.log.verify.verify import verify_log
from duramen.testing.run import disk_of
from duramen.testing.simulated_disk import SimulatedDisk
from tests.damage.logs import FORMATS, ROOT, Base, base_log, read

SEGMENTED = [name for name in FORMATS if name != "fixed-slot"]
WHICH = ("middle", "last", "all")


def damaged(base: Base, which: str, size_bytes: int | None) -> SimulatedDisk:
    """The log with one segment, or all of them, deleted, or cut to a size."""
    chosen = {"middle": base.segments[1:2], "last": base.segments[-1:], "all": base.segments}[which]
    files = dict(base.files)
    for path in chosen:
        content = files.pop(path)
        if size_bytes is not None:
            files[path] = content[:size_bytes]
    return disk_of({posixpath.join(ROOT, path): content for path, content in files.items()})


@pytest.mark.parametrize("which", WHICH)
@pytest.mark.parametrize("name", SEGMENTED)
def test_segments_that_are_deleted(name: str, which: str) -> None:
    base = base_log(name, True)
    disk = damaged(base, which, None)
    assert not verify_log(ROOT, format=name, disk=disk).ok
    with pytest.raises(CorruptionError, match="missing"):
        read(disk, name)


def test_the_file_of_a_log_without_segments_is_deleted() -> None:
    disk = damaged(base_log("fixed-slot", True), "all", None)
    with pytest.raises(CorruptionError, match="the active segment is missing"):
        read(disk, "fixed-slot")


@pytest.mark.parametrize("records", [0, 1, 2])
@pytest.mark.parametrize("name", ["keratin", "osiris", "kafka"])
def test_a_sealed_segment_that_ends_with_an_earlier_record(name: str, records: int) -> None:
    """Their checksums cover every byte, so no digest is compared."""
    base = base_log(name, True)
    places = [place for place in base.places if place.path == base.segments[1]]
    disk = damaged(base, "middle", 0 if not records else places[records - 1].end)
    assert not verify_log(ROOT, format=name, disk=disk).ok
    with pytest.raises(CorruptionError):
        read(disk, name)


@pytest.mark.parametrize("name", ["keratin", "osiris", "kafka"])
@pytest.mark.parametrize("more", [0, 100])
def test_a_sealed_segment_whose_last_record_is_zeros(name: str, more: int) -> None:
    """As an older copy of a writer that was killed: zeros follow its records. It may be longer than what was sealed."""
    base = base_log(name, True)
    path = base.segments[1]
    start = [place.start for place in base.places if place.path == path][-1]
    content = base.files[path][:start].ljust(len(base.files[path]) + more, b"\0")
    disk = disk_of({posixpath.join(ROOT, p): c for p, c in (base.files | {path: content}).items()})
    assert not verify_log(ROOT, format=name, disk=disk).ok
    with pytest.raises(CorruptionError):
        read(disk, name)


def test_records_outside_the_gap_are_read() -> None:
    base = base_log("durable-log", True)
    disk = damaged(base, "middle", None)
    with Log(ROOT, disk=disk) as log:
        gap = range(*(int(posixpath.splitext(path)[0][-20:]) for path in base.segments[1:]))
        assert [record.offset for record in log.scan(to_offset=gap.start)] == list(range(gap.start))
        following = [offset for offset in base.records if offset >= gap.stop]
        assert [record.offset for record in log.scan(gap.stop)] == following
        with pytest.raises(CorruptionError) as caught:
            list(log.scan(gap.start + 1))
    assert caught.value.offset == gap.start + 1


@pytest.mark.parametrize("which", WHICH)
@pytest.mark.parametrize("name", SEGMENTED)
def test_after_a_repair_the_rest_is_read(name: str, which: str) -> None:
    base = base_log(name, True)
    disk = damaged(base, which, None)
    plan = repair_log(ROOT, plan_only=False, format=name, disk=disk)
    assert len(read(disk, name)) == plan.kept_records
