"""Updating a copy: only what is new, refused for anything that is not a copy, whole after a crash at any point."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

import duramen
from duramen.errors import CorruptionError, DuramenError, UsageError
from duramen.log.maintain.compact import Compaction
from duramen.log.maintain.retention import Retention
from duramen.log.read.log import Log
from duramen.log.transfer.update import Update, copy
from duramen.log.verify.verify import verify_log
from duramen.log.write.writable_log import WritableLog
from duramen.testing.crash import CrashPattern
from duramen.testing.faulty_disk import FaultyDisk
from duramen.testing.simulated_disk import SimulatedDisk
from tests.cli.running import flip
from tests.log.conftest import FORMATS, options, value
from tests.log.transfer.test_copy import own_files
from tests.sampling import every


def append(path: Any, name: str, first: int, count: int, *, seal: bool = False, disk: Any = None) -> None:
    chosen = {} if disk is None else {"disk": disk}
    with WritableLog(str(path), format=name, **options(name), **chosen) as log:
        log.append_batch([value(first + n) for n in range(count)])
        if seal and name != "fixed-slot":
            log.seal()


def same(source: Path, target: Path) -> bool:
    report = duramen.verify(target)
    assert (report.ok, report.findings) == (True, [])
    return own_files(source) == own_files(target)


@pytest.mark.parametrize("name", FORMATS)
def test_only_what_is_new_is_copied(tmp_path: Path, name: str) -> None:
    log, target = tmp_path / "log", tmp_path / "copy"
    append(log, name, 0, 10, seal=True)
    append(log, name, 10, 5)
    assert not duramen.copy(log, target, update=True).is_update
    first = target / duramen.open(log).codec.segment_path(0)
    before = first.stat()
    append(log, name, 15, 5)  # the active segment grows
    done = duramen.copy(log, target, update=True)
    assert (done.records, done.segments, done.next_offset, done.is_update) == (5, 0, 20, True)
    assert same(log, target)
    append(log, name, 20, 5, seal=True)  # it grows, is sealed, and others follow
    append(log, name, 25, 5, seal=True)
    append(log, name, 30, 5)
    done = duramen.copy(log, target, update=True)
    assert (done.records, done.next_offset) == (15, 35)
    assert same(log, target)
    done = duramen.copy(log, target, update=True)
    assert (done.records, done.segments, done.size_bytes) == (0, 0, 0)
    if name != "fixed-slot":
        assert (first.stat().st_mtime_ns, first.stat().st_ino) == (before.st_mtime_ns, before.st_ino)
    with duramen.open(target, "a") as opened:  # a copy can become the log
        assert opened.append(value(35)) == 35


def test_a_real_brokers_stream(osiris: Path, tmp_path: Path) -> None:
    duramen.copy(osiris / "tracked", tmp_path / "copy", update=True)
    assert duramen.copy(osiris / "tracked", tmp_path / "copy", update=True).records == 0
    assert duramen.verify(tmp_path / "copy").records == duramen.verify(osiris / "tracked").records


def test_state_of_consumers_follows(tmp_path: Path) -> None:
    log, target = tmp_path / "log", tmp_path / "copy"
    append(log, "keratin", 0, 5)
    with duramen.open(log, "a") as opened:
        opened.cursor("old").store(1)
        opened.cursor("reader").store(2)
    duramen.copy(log, target)
    append(log, "keratin", 5, 5)
    with duramen.open(log, "a") as opened:
        opened.cursor("reader").store(7)
    next((log / ".duramen" / "cursors").glob("old*")).unlink()
    done = duramen.copy(log, target, update=True)
    assert done.next_offset == 10
    assert len(done.state) == 2
    with duramen.open(target) as copied:
        assert copied.cursor("reader").load() == 7
        assert copied.cursor("old").load() is None


def compacted(path: Any, disk: Any = None) -> None:
    chosen = {} if disk is None else {"disk": disk}
    with WritableLog(str(path), format="keratin", **chosen) as log:
        log.compact(Compaction())


def keyed(path: Any, count: int, *, seal: bool = True, disk: Any = None) -> None:
    chosen = {} if disk is None else {"disk": disk}
    with WritableLog(str(path), format="keratin", **chosen) as log:
        for number in range(count):
            log.append(b"value %d" % number, key=b"key %d" % (number % 3))
        if seal:
            log.seal()


def records(path: Any, disk: Any = None) -> list[tuple[int, bytes]]:
    chosen = {} if disk is None else {"disk": disk}
    with Log(str(path), **chosen) as log:
        return [(record.offset, record.value) for record in log.scan()]


@pytest.mark.parametrize("sealed_before", [True, False])
def test_compaction_at_the_source(tmp_path: Path, sealed_before: bool) -> None:
    log, target = tmp_path / "log", tmp_path / "copy"
    keyed(log, 8)
    keyed(log, 5, seal=sealed_before)
    duramen.copy(log, target)
    keyed(log, 6)
    keyed(log, 2, seal=False)
    compacted(log)
    done = duramen.copy(log, target, update=True)
    assert done.replaced + done.removed >= 1
    assert records(target) == records(log)
    assert same(log, target)
    keyed(log, 4)
    compacted(log)
    duramen.copy(log, target, update=True)
    assert records(target) == records(log)
    assert same(log, target)


def test_retention_at_the_source_keeps_the_copy(tmp_path: Path) -> None:
    log, target = tmp_path / "log", tmp_path / "copy"
    for first in (0, 10, 20):
        append(log, "keratin", first, 10, seal=True)
    duramen.copy(log, target)
    with WritableLog(str(log)) as opened:
        opened.retain(Retention(before_offset=20))
    append(log, "keratin", 30, 10)
    duramen.copy(log, target, update=True)
    assert [offset for offset, _ in records(target)] == list(range(40))
    assert duramen.verify(target).ok
    with WritableLog(str(log)) as opened:
        opened.seal()
        opened.append(b"later")
        opened.retain(Retention(before_offset=40))
    duramen.copy(log, target, update=True)
    assert len(records(target)) == 41
    with WritableLog(str(log)) as opened:
        opened.append(b"lost to the copy")
        opened.seal()
        opened.retain(Retention(before_offset=42))
    with pytest.raises(UsageError, match="retention removed the records between"):
        duramen.copy(log, target, update=True)


def test_what_is_refused(tmp_path: Path) -> None:
    log, target = tmp_path / "log", tmp_path / "copy"
    append(log, "keratin", 0, 10, seal=True)
    append(log, "keratin", 10, 5)
    duramen.copy(log, target)
    with pytest.raises(UsageError, match="an update copies everything"):
        duramen.copy(log, target, update=True, until_offset=3)
    append(tmp_path / "other", "keratin", 0, 5)
    with pytest.raises(UsageError, match="offsets 0 to 9 differ"):
        duramen.copy(tmp_path / "other", target, update=True)
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match=r"no \.duramen"):
        duramen.copy(log, tmp_path / "folder", update=True)
    ahead = tmp_path / "ahead"
    duramen.copy(log, ahead)
    append(ahead, "keratin", 15, 1)
    with pytest.raises(UsageError, match="offsets 10 to 15 differ"):
        duramen.copy(log, ahead, update=True)
    append(log, "keratin", 15, 3)
    with pytest.raises(UsageError, match="offsets 10 to 15 differ"):  # another record 15
        duramen.copy(log, ahead, update=True)
    with pytest.raises(duramen.DuramenError, match="already open for writing"), WritableLog(str(target)):
        duramen.copy(log, target, update=True)


@pytest.mark.parametrize(("number", "how"), [(0, "cut"), (0, "missing"), (1, "flip")])
def test_a_damaged_copy_is_refused(tmp_path: Path, number: int, how: str) -> None:
    log, target = tmp_path / "log", tmp_path / "copy"
    append(log, "keratin", 0, 10, seal=True)
    append(log, "keratin", 10, 5)
    duramen.copy(log, target)
    append(log, "keratin", 15, 5)
    segment = sorted((target / "segments").glob("*.log"))[number]
    if how == "flip":
        flip(segment, 100)
    elif how == "cut":
        segment.write_bytes(segment.read_bytes()[:-1])
    else:
        segment.unlink()
    before = own_files(target)
    with pytest.raises(CorruptionError, match="the copy is damaged"):
        duramen.copy(log, target, update=True)
    assert own_files(target) == before


def test_damage_at_the_source_stops_it(tmp_path: Path) -> None:
    log, target = tmp_path / "log", tmp_path / "copy"
    append(log, "keratin", 0, 10)
    duramen.copy(log, target)
    append(log, "keratin", 10, 10, seal=True)
    append(log, "keratin", 20, 10, seal=True)
    flip(sorted((log / "segments").glob("*.log"))[1], 200)
    with pytest.raises(CorruptionError):
        duramen.copy(log, target, update=True)
    report = duramen.verify(target)
    assert report.ok
    assert report.records == 20  # what was sound before the damage


def scene(name: str, kind: str) -> tuple[SimulatedDisk, list[tuple[int, bytes]]]:
    """A log and an older copy of it; and the records that the copy must hold in the end."""
    disk = SimulatedDisk()
    if kind == "compaction":
        keyed("/log", 8, disk=disk)
        keyed("/log", 4, disk=disk, seal=False)
        copy("/log", "/copy", disk=disk)
        keyed("/log", 6, disk=disk)
        keyed("/log", 3, disk=disk, seal=False)
        compacted("/log", disk=disk)
    else:
        append("/log", name, 0, 4, seal=True, disk=disk)
        append("/log", name, 4, 3, disk=disk)
        copy("/log", "/copy", disk=disk)
        append("/log", name, 7, 3, seal=True, disk=disk)
        append("/log", name, 10, 4, seal=True, disk=disk)
        append("/log", name, 14, 2, disk=disk)
        with WritableLog("/log", disk=disk) as log:
            log.append(value(16))
    return disk, records("/log", disk)


@pytest.mark.parametrize(("name", "kind"), [*((name, "growth") for name in FORMATS), ("keratin", "compaction")])
def test_a_crash_at_any_point_leaves_a_copy_that_continues(name: str, kind: str) -> None:
    disk, wanted = scene(name, kind)
    before = records("/copy", disk)
    crashed: list[SimulatedDisk] = []
    patterns = [CrashPattern("lost", "lost"), CrashPattern("kept", "kept"), CrashPattern("torn", "each", seed=3)]
    disk.on_operation = lambda number, what: crashed.append(disk.crash(patterns[number % 3]))
    copy("/log", "/copy", disk=disk, update=True)
    assert records("/copy", disk) == wanted
    assert len(crashed) > 10
    for number, after in list(enumerate(crashed))[:: every(2)]:
        report = verify_log("/copy", disk=after)
        assert report.ok, (number, report.findings)
        if kind == "growth":
            seen = records("/copy", after)
            assert seen == wanted[: len(seen)]
            assert len(seen) >= len(before)
        if number % every(6) == 0:  # it is a log that can be opened, which finishes a file swap
            opened = after.clone()
            WritableLog("/copy", disk=opened).close()
            seen = records("/copy", opened)
            if kind == "growth":
                assert seen == wanted[: len(seen)]
            else:  # superseded records may still exist
                assert seen == before or set(seen) >= set(wanted)
        copy("/log", "/copy", disk=after, update=True)
        assert records("/copy", after) == wanted
        assert verify_log("/copy", disk=after).ok


@pytest.mark.parametrize("kind", ["growth", "compaction"])
def test_a_fault_at_any_call_leaves_a_copy_that_continues(kind: str) -> None:
    disk, wanted = scene("keratin", kind)
    total = FaultyDisk(disk.clone())
    copy("/log", "/copy", disk=total, update=True)
    for call in range(1, total.calls + 1, every(9)):
        inner = disk.clone()
        with contextlib.suppress(DuramenError):
            copy("/log", "/copy", disk=FaultyDisk(inner, f"#{call}: ENOSPC"), update=True)
        copy("/log", "/copy", disk=inner, update=True)
        assert records("/copy", inner) == wanted
        assert verify_log("/copy", disk=inner).ok


def test_a_plan_changes_nothing(tmp_path: Path) -> None:
    log, target = tmp_path / "log", tmp_path / "copy"
    append(log, "keratin", 0, 10)
    duramen.copy(log, target)
    append(log, "keratin", 10, 10, seal=True)
    append(log, "keratin", 20, 10)
    before = own_files(target)
    planned = Update(str(log), str(target)).plan()
    assert own_files(target) == before
    assert duramen.copy(log, target, update=True).size_bytes == planned


def test_a_damaged_source_is_not_blamed_on_the_copy(tmp_path: Path) -> None:
    log, target = tmp_path / "log", tmp_path / "copy"
    append(log, "keratin", 0, 10)
    duramen.copy(log, target)
    flip(next((log / "segments").glob("*.log")), 200)
    with pytest.raises(UsageError, match="if it is damaged, this copy may hold what it lost"):
        duramen.copy(log, target, update=True)
    assert duramen.verify(target).ok
