"""Retention and compaction while others are at work: readers that follow, transactions, jobs that begin, full disks."""

from __future__ import annotations

import contextlib
import errno
import threading
from pathlib import Path

import pytest

import duramen
from duramen.errors import DuramenError, LockedError, OffsetError, StorageError, UsageError
from duramen.formats import Severity
from duramen.log.maintain.compact import Compaction, Compactor
from duramen.log.maintain.retention import Retention
from duramen.log.maintain.scheduler import plan_retention
from duramen.log.read.log import Log
from duramen.log.verify.verify import verify_log
from duramen.log.write.batch import batch_of
from duramen.log.write.transaction import TransactionPart, _Appending, commit_batch
from duramen.log.write.writable_log import WritableLog
from duramen.metrics import snapshot
from duramen.sidecar import file_swap
from duramen.sidecar.file_swap import FileSwap, read_file_swap
from duramen.sidecar.holds import put_hold
from duramen.sidecar.json_file import replace_file
from duramen.sidecar.layout import DIRECTORY, FILE_SWAP_NAME
from duramen.sidecar.published import read_writer_metrics
from duramen.sidecar.tx_ledger import BatchKey
from duramen.testing import CrashPattern, SimulatedDisk
from duramen.testing.faulty_disk import CHANGING, Fault, FaultyDisk, parse_faults
from tests.sampling import every

KEYED = Compaction(key="delimiter:=")


def filled(path: Path, segments: int = 4, **options: object) -> duramen.consumers.log.ConsumableWritableLog:
    log = duramen.open(str(path), "a", **{"format": "durable-log", **options})
    for number in range(segments):
        log.append_batch([b"a=%d" % number, b"%d=x" % number])
        log.seal()
    return log


@pytest.mark.parametrize("format", ["durable-log", "keratin", "rustlog"])
@pytest.mark.parametrize("later", [1, 7, 40])
def test_a_follower_in_a_segment_that_is_swapped_misses_nothing(tmp_path: Path, format: str, later: int) -> None:
    """The position that it remembers does not exist in the new segment."""
    with duramen.open(str(tmp_path / "log"), "a", format=format) as log:
        log.append_batch([b"%d=early" % (number % 2) for number in range(20)])
        with duramen.open(log.path) as reader:
            follow = reader.batches(follow=True)
            seen = next(follow).column("offset").to_pylist()
            assert seen == list(range(20))
            resumed: list[int] = []
            blocked = threading.Thread(target=lambda: resumed.extend(next(follow).column("offset").to_pylist()))
            blocked.start()  # it has to have remembered its place before anything else happens
            while reader._page is None:
                pass
            with reader._guard:  # nothing is looked at before the swap is done
                log.append_batch([b"%d=late" % (number % 5) for number in range(later)])
                log.seal()
                log.compact(KEYED)
            blocked.join(20)
            kept = [record.offset for record in log.scan(from_offset=20)]
            assert kept == resumed


@pytest.mark.parametrize("format", ["durable-log", "keratin"])
def test_a_transaction_that_is_not_committed_replaces_nothing(tmp_path: Path, format: str) -> None:
    """Its segments may be sealed and still be rolled back: compaction must not treat them as newer records."""
    with filled(tmp_path / "log", 2, format=format, segment_max_bytes=400) as log:
        known = [files.base for files in log.committed_directory().segments]
        found: list[list[int | None]] = []

        (tmp_path / "log/.duramen/ledger").mkdir()

        def transaction() -> None:
            work = _Appending(log, BatchKey("w", 1, "x"), f".duramen/ledger/{'0' * 32}.json")
            work.store([batch_of(log.codec, [b"a=%d" % number * 20 for number in range(30)])])
            found.append([files.base for files in log.committed_directory().segments])
            work.abandon(StorageError("taken back", path=log.path))

        log.exclusively(transaction)
    assert known == found[0] == [0, 2, 4]
    with duramen.open(log.path, "a") as again:
        again.compact(KEYED)
        assert [record.value for record in again.scan()] == [b"0=x", b"a=1", b"1=x"]


def test_a_log_is_replaced_while_an_old_change_was_not_finished() -> None:
    """The old log's list of removals must never be carried out on the new log, whose files have the same names."""
    disk = SimulatedDisk()
    log = WritableLog("/log", disk=disk, format="durable-log")
    for number in range(3):
        log.append_batch([b"%d" % number])
        log.seal()
    gone = [path for files in log.committed_directory().segments[:1] for path in (
        *(file.path for file in files.derived.values()), files.segment.path)]  # fmt: skip
    log.close()
    replace_file(disk, f"/log/{DIRECTORY}/{FILE_SWAP_NAME}", FileSwap("retention", removals=tuple(gone)).encode())
    moments: list[SimulatedDisk] = []
    disk.on_operation = lambda _number, _operation: moments.append(disk.clone())
    part = TransactionPart("", lambda: [[b"new 0", b"new 1"]], {"format": "durable-log"}, replaces=True)
    commit_batch("/log", BatchKey("w", 1, "x"), [part], disk=disk)
    disk.on_operation = None
    allowed = [[b"1", b"2"], [b"new 0", b"new 1"]]
    for moment in [*moments, disk]:
        with Log("/log", disk=moment) as reader:
            assert [record.value for record in reader.scan()] in allowed
        with WritableLog("/log", disk=moment) as opened:
            assert [record.value for record in opened.scan()] in allowed
    assert [record.value for record in Log("/log", disk=disk).scan()] == allowed[1]


@pytest.mark.parametrize("fault", ["create *change.json*: ENOSPC", "write *change.json.new: ENOSPC"])
def test_a_full_disk_keeps_retention_from_deciding_and_does_no_harm(tmp_path: Path, fault: str) -> None:
    disk = FaultyDisk(duramen.disk.PosixDisk(), "")
    with filled(tmp_path / "log", disk=disk) as log:
        disk.faults = tuple(parse_faults(fault))
        disk._matched = [0]
        with pytest.raises(StorageError, match="space"):
            log.retain(Retention(before_offset=4))
        with pytest.raises(StorageError, match="space"):
            log.compact(KEYED)
        assert read_file_swap(disk, log.path) is None
        disk.faults = ()
        assert log.append(b"goes on") == 8
        assert log.first_offset == 0
        log.retain(Retention(before_offset=4))
        assert log.first_offset == 4
        log.seal()
        log.compact(KEYED)
    assert duramen.verify(log.path).ok


def test_a_change_that_fails_halfway_poisons_the_writer_and_is_finished_by_the_next(tmp_path: Path) -> None:
    disk = FaultyDisk(duramen.disk.PosixDisk(), "remove *.log: EIO")
    log = filled(tmp_path / "log", disk=disk)
    with pytest.raises(StorageError):
        log.retain(Retention(before_offset=4))
    with pytest.raises(duramen.errors.PoisonedError):
        log.append(b"no")
    log.close()
    with duramen.open(log.path, "a") as again:
        assert again.first_offset == 4
        assert again.recovery[0].case == "unfinished change"


def test_an_append_is_served_while_retention_waits(tmp_path: Path) -> None:
    with filled(tmp_path / "log") as log:
        with log._maintaining:  # as if a long compaction were under way
            waiting = threading.Thread(target=lambda: log.retain(Retention(before_offset=6)))
            waiting.start()
            waiting.join(0.1)
            log.cursor("new").store(3)
        waiting.join(20)
        assert log.first_offset == 2


@pytest.mark.parametrize("comes", ["job", "cursor"])
def test_an_append_is_served_while_compaction_reads(tmp_path: Path, comes: str) -> None:
    with filled(tmp_path / "log") as log:

        def read(_bytes: int) -> None:
            if comes == "job":
                put_hold(log.disk, log.path, "late", 4, 2**62)
            else:
                log.cursor("late").store(4)

        report = log.compact(KEYED, progress=read)
        assert [need.name for need in report.held_by] == ["late"]
        assert [record.offset for record in log.scan()] == [1, 3, 4, 5, 6, 7]
        assert (report.records_before, report.records_after) == (8, 6)
        assert log.disk.kind(f"{log.path}/{DIRECTORY}/compacting") != "directory"


@pytest.mark.slow
@pytest.mark.parametrize(("format", "late"), [("durable-log", False), ("durable-log", True), ("keratin", True)])
def test_every_change_of_a_compaction_fails_once(format: str, late: bool) -> None:
    """Behind its decision a failure took away the new segments, which the next writer needs to finish: the log did not
    open any more."""
    made = SimulatedDisk()
    with WritableLog("/log", disk=made, format=format) as log:
        for number in range(2):
            log.append_batch([b"a=%d" % number, b"%d=" % number])
            log.seal()
    counted = FaultyDisk(made.clone(), keep_history=True)
    log = WritableLog("/log", disk=counted)
    opened = len(counted.history)
    log.compact(KEYED)
    calls = range(opened + 1, len(counted.history) + 1)
    changing = [call for call in calls if counted.history[call - 1].split()[0] in CHANGING]
    for call in changing[:: every(3)]:
        disk = made.clone()
        log = WritableLog("/log", disk=FaultyDisk(disk, [Fault(None, call=call, error=errno.EIO, late=late)]))
        with contextlib.suppress(StorageError):
            log.compact(KEYED)
        with contextlib.suppress(DuramenError):
            log.close()
        for left in (disk.clone(), disk.crash(CrashPattern("lost", "lost"))):
            with WritableLog("/log", disk=left) as log:
                assert {b"a=1", b"0=", b"1="} <= {record.value for record in log.scan()}
            assert [found for found in verify_log("/log", disk=left).findings if found.severity != Severity.NOTE] == []


def test_a_close_ends_a_compaction_and_waits_for_it(tmp_path: Path) -> None:
    """The lock was released while the compaction went on, and its cleanup removed the files of the next one."""
    log = filled(tmp_path / "log")
    is_reading, go_on = threading.Event(), threading.Event()
    ended: list[DuramenError] = []

    def read(_bytes: int) -> None:
        is_reading.set()
        go_on.wait(20)

    def compact() -> None:
        with pytest.raises(UsageError, match="closed while this call ran") as caught:
            log.compact(KEYED, progress=read)
        ended.append(caught.value)

    compacting, closing = threading.Thread(target=compact), threading.Thread(target=log.close)
    compacting.start()
    is_reading.wait(20)
    closing.start()
    closing.join(0.1)
    with pytest.raises(LockedError):
        duramen.open(tmp_path / "log", "a")
    go_on.set()
    compacting.join(20)
    closing.join(20)
    assert ended
    with duramen.open(tmp_path / "log", "a") as log:
        log.compact(KEYED)
    assert duramen.verify(tmp_path / "log").ok


def test_the_progress_callback_may_close_the_log(tmp_path: Path) -> None:
    log = filled(tmp_path / "log")
    with pytest.raises(UsageError, match="closed"):
        log.compact(KEYED, progress=lambda _bytes: log.close())
    assert duramen.verify(tmp_path / "log").ok


def test_a_change_whose_files_are_missing_is_not_committed(tmp_path: Path) -> None:
    """It was taken for done already, and the list of the sealed segments did not fit the files any more."""
    with filled(tmp_path / "log") as log:
        wanted = FileSwap("compaction", ((f"{DIRECTORY}/compacting/gone", "gone"),))
        with pytest.raises(StorageError, match="is missing") as caught:
            file_swap.prepare_file_swap(log.disk, log.path, wanted)
        assert caught.value.path is not None
        assert caught.value.path.endswith("compacting/gone")
        log.append(b"k=v")
    assert file_swap.read_file_swap(log.disk, log.path) is None


def test_a_reader_that_looked_before_the_removal_gets_an_error(tmp_path: Path) -> None:
    with filled(tmp_path / "log") as log, duramen.open(log.path) as reader:
        log.retain(Retention(before_offset=4))
        with pytest.raises(OffsetError) as raised:
            reader.read(1)
        assert "holds 4 to 7" in str(raised.value)
        assert reader.read(5).value == b"2=x"
    with filled(tmp_path / "other") as log, duramen.open(log.path) as reader:
        log.retain(Retention(before_offset=4))
        assert reader.first_offset == 4
    with filled(tmp_path / "third") as log, duramen.open(log.path) as reader:
        log.retain(Retention(before_offset=4))
        with pytest.raises(OffsetError):
            reader.locate(1)


def test_a_plan_without_the_writer_leaves_no_trace(tmp_path: Path) -> None:
    log = filled(tmp_path / "log")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "log").rglob("*")}
    with duramen.open(log.path) as reader:  # while the writer is at work
        reader_plan = plan_retention(reader, Retention(before_offset=4))
        report = Compactor(reader, KEYED, 10**15).run()
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "log").rglob("*")} == before
    assert reader_plan == log.retain(Retention(before_offset=4), dry_run=True)
    assert report == log.compact(KEYED, dry_run=True)
    log.close()


def test_a_poisoned_writer_is_visible_to_watchers(tmp_path: Path) -> None:
    disk = FaultyDisk(duramen.disk.PosixDisk(), "sync#8+ *.log: EIO")
    log = duramen.open(str(tmp_path / "log"), "a", format="durable-log", disk=disk)
    with pytest.raises(StorageError):
        [log.append(b"x") for _ in range(20)]
    published = read_writer_metrics(disk, log.path)
    assert published is not None
    assert published.counters["poisoned"] == 1
    found = {sample.name: sample.value for sample in snapshot() if ("log", log.path) in sample.labels}
    assert found["duramen_poisoned"] == 1
    log.close()


def test_a_closed_writer_is_not_counted_beside_the_next(tmp_path: Path) -> None:
    first = filled(tmp_path / "log")
    first.close()
    with duramen.open(first.path, "a"):
        found = [sample for sample in snapshot() if sample.name == "duramen_appends_total"]
        assert len([sample for sample in found if ("log", first.path) in sample.labels]) == 1


@pytest.mark.parametrize("what", ["retention", "compaction"])
def test_a_scan_of_the_writer_itself_skips_nothing(tmp_path: Path, what: str) -> None:
    """The directory is looked at again in the middle of the scan: the next segment is another number by then."""
    with filled(tmp_path / "log", 8) as log:
        scan = log.scan()
        seen = [next(scan).offset, next(scan).offset]
        if what == "retention":
            log.retain(Retention(before_offset=4))
            assert log.first_offset == 4
            with pytest.raises(OffsetError, match="begins at 4"):
                next(scan)
        else:
            for _ in range(2):
                log.append_batch([b"%d=y" % number for number in range(3)])
                log.seal()
            log.compact(KEYED)  # the first three segments are emptied
            assert log.segments[0].base_offset == 6
            seen += [record.offset for record in scan]
            kept = [record.offset for record in log.scan()]
            assert seen == [0, 1, *kept]


def test_readers_in_threads_while_segments_go(tmp_path: Path) -> None:
    """One log object, several threads: what one finds out about the directory must not lead another astray."""
    with filled(tmp_path / "log", 60) as log:
        wrong: list[object] = []
        done = threading.Event()

        def read() -> None:
            while not done.is_set():
                try:
                    offset = log.first_offset + 30
                    if log.read(offset).offset != offset:
                        wrong.append(offset)
                    offsets = [record.offset for record in log.scan(from_offset=offset)]
                    if offsets != list(range(offset, 120)):
                        wrong.append(offsets)
                    assert len(log.segments) > 1
                except OffsetError:
                    continue
                except Exception as error:  # noqa: BLE001
                    wrong.append(error)

        threads = [threading.Thread(target=read) for _ in range(3)]
        for thread in threads:
            thread.start()
        for until in range(0, 80, 4):
            log.retain(Retention(before_offset=until))
        done.set()
        for thread in threads:
            thread.join()
        assert wrong == []
