"""A power loss may leave a watermark that is older than the records. It still proves that the segment it names exists:
the name was durable first."""

from __future__ import annotations

import posixpath

import pytest

from duramen.disk.vfs import Kind
from duramen.errors import CorruptionError
from duramen.formats import Role
from duramen.log.read.log import Log
from duramen.log.repair import repair_log
from duramen.log.repair.planner import NOT_COUNTED
from duramen.log.transfer.convert import convert
from duramen.log.verify.verify import verify_log
from duramen.log.write.writable_log import WritableLog
from duramen.sidecar import read_watermark
from duramen.testing import CrashPattern, SimulatedDisk
from duramen.testing.run import clocked
from tests.damage.logs import OPTIONS, ROOT, tree, value

SYNCED_ONLY = CrashPattern("lost", "lost")
FIRST, COUNT = 5, 9
LAGS = ("durable-log", "keratin", "osiris", "kafka")
"""Formats whose watermark is not synced with every record, and for which no other file names the records."""


def written(name: str) -> WritableLog:
    """An open log of two segments on a simulated disk."""
    log = WritableLog(ROOT, format=name, disk=SimulatedDisk(), **OPTIONS[name])
    for number in range(COUNT):
        if number == FIRST:
            log.seal()
        log.append(value(number))
    return log


def after_power_loss(name: str) -> tuple[SimulatedDisk, str]:
    """The disk after a power loss that kept what was synced, without the active segment; and that segment's path."""
    with clocked():
        log = written(name)
    assert isinstance(log.disk, SimulatedDisk)
    disk = log.disk.crash(SYNCED_ONLY)
    mark = read_watermark(disk, ROOT)
    assert mark is not None
    assert mark.is_open
    assert mark.base == mark.durable_offset == mark.next_offset == FIRST
    with clocked():
        assert verify_log(ROOT, format=name, disk=disk).ok
    path = posixpath.join(ROOT, log.codec.segment_path(FIRST))
    disk.remove(path)
    return disk, path


@pytest.mark.parametrize("name", LAGS)
def test_every_verb_notices_that_the_active_segment_is_missing(name: str) -> None:
    """It was green, or warned of an index without its segment, and the next append assigned the offsets again."""
    disk, path = after_power_loss(name)
    before = tree(disk)
    (found,) = (one for one in verify_log(ROOT, format=name, disk=disk).findings if one.code == "missing-segment")
    assert (found.path, found.severity, found.first_offset, found.last_offset) == (path, "damage", FIRST, None)
    with pytest.raises(CorruptionError, match="the active segment is missing"):
        WritableLog(ROOT, format=name, disk=disk, **OPTIONS[name])
    with pytest.raises(CorruptionError, match="the active segment is missing"):
        list(Log(ROOT, disk=disk).scan())
    with pytest.raises(CorruptionError, match="the active segment is missing"):
        convert(ROOT, "/new", "rustlog", disk=disk, allow_loss=("key", "headers", "timestamp"))
    assert tree(disk) == before


@pytest.mark.parametrize("name", LAGS)
def test_a_repair_says_that_nothing_counts_the_records(name: str) -> None:
    disk, _ = after_power_loss(name)
    with clocked():
        plan = repair_log(ROOT, plan_only=False, format=name, disk=disk, **OPTIONS[name])
        assert NOT_COUNTED in plan.notes
        assert verify_log(ROOT, format=name, disk=disk).ok


def test_an_index_that_reached_the_disk_says_how_many_there_were() -> None:
    with clocked():
        log = written("osiris")
    assert isinstance(log.disk, SimulatedDisk)
    disk = log.disk.crash(CrashPattern("kept", "kept", files="newest"))
    disk.remove(posixpath.join(ROOT, log.codec.segment_path(FIRST)))
    with clocked():
        plan = repair_log(ROOT, plan_only=False, format="osiris", disk=disk, **OPTIONS["osiris"])
        assert [(loss.first, loss.last) for loss in plan.losses] == [(FIRST, COUNT - 1)]
        with WritableLog(ROOT, disk=disk) as log:
            assert log.append(value(1)) == COUNT


@pytest.mark.parametrize("name", ["durable-log", "keratin", "rustlog", "osiris", "kafka"])
def test_offsets_that_were_acknowledged_and_not_synced_are_lost(name: str) -> None:
    """The writer was killed, and the segment is deleted."""
    with clocked():
        log = WritableLog(ROOT, format=name, disk=SimulatedDisk(), durability="write", **OPTIONS[name])
        for number in range(COUNT):
            if number == FIRST:
                log.seal()
            log.append(value(number))
    assert isinstance(log.disk, SimulatedDisk)
    disk = log.disk.crash(CrashPattern("kept", "kept"))
    for path in tree(disk):
        file = log.codec.classify(path)
        if file is not None and file.base == FIRST and file.role in (Role.SEGMENT, Role.INDEX, Role.TIME_INDEX):
            disk.remove(posixpath.join(ROOT, path))
    with clocked():
        plan = repair_log(ROOT, plan_only=False, format=name, disk=disk, **OPTIONS[name])
        assert [(loss.first, loss.last) for loss in plan.losses] == [(FIRST, COUNT - 1)]
        with WritableLog(ROOT, disk=disk) as again:
            assert again.append(value(1)) == COUNT


def test_rabbitmq_deletes_an_empty_segment_of_a_log_that_was_not_closed() -> None:
    with clocked():
        log = WritableLog(ROOT, format="osiris", disk=SimulatedDisk(), **OPTIONS["osiris"])
        log.append_batch([value(1), value(2)])
        log.seal()
    assert isinstance(log.disk, SimulatedDisk)
    disk = log.disk.crash(SYNCED_ONLY)
    for role in (Role.SEGMENT, Role.INDEX):
        path = posixpath.join(ROOT, log.codec.path_of(role, 2))
        if disk.kind(path) == Kind.FILE:
            disk.remove(path)
    with clocked():
        assert verify_log(ROOT, format="osiris", disk=disk).ok
        with WritableLog(ROOT, disk=disk) as log:
            assert log.append(value(3)) == 2


@pytest.mark.parametrize("name", ["durable-log", "keratin", "rustlog", "kafka"])
def test_an_empty_segment_of_a_closed_log_held_nothing(name: str) -> None:
    with clocked():
        log = WritableLog(ROOT, format=name, disk=SimulatedDisk(), **OPTIONS[name])
        log.append(value(1))
        log.seal()
        log.close()
    assert isinstance(log.disk, SimulatedDisk)
    log.disk.remove(posixpath.join(ROOT, log.codec.segment_path(1)))
    with clocked():
        assert verify_log(ROOT, format=name, disk=log.disk).ok
        with WritableLog(ROOT, disk=log.disk) as again:
            assert again.append(value(2)) == 1
