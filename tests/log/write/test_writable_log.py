"""`duramen.open(path, "a")` over all five formats, on the real disk: appending, reading one's own writes, threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import duramen
from duramen.disk import PosixDisk
from duramen.disk.posix import PosixFile
from duramen.disk.record_writer import DiskRecordWriter
from duramen.record import HEADERS, TIMESTAMP
from duramen.testing import FaultyDisk, SimulatedDisk
from tests.log.conftest import FORMATS, RECORD_SIZE, value
from tests.log.writing import ORDERED, SEGMENTED, START_MS, TIMED, Open, codes, content, values

# --- what can be appended


def test_offsets_are_assigned_in_order(create: Open, root: Path, format_name: str) -> None:
    with create(format_name) as log:
        assert isinstance(log, duramen.WritableLog)
        assert [log.append(value(0)), log.append(value(1))] == [0, 1]
        assert log.append_batch(values(2, 3)) == (2, 3)
        assert log.append_batch(values(5, 1), durability="write") == duramen.Appended(base_offset=5, count=1)
        assert log.append(value(6), durability="write") == 6
        assert (log.first_offset, log.next_offset) == (0, 7)
    assert content(root) == values(0, 7)
    assert codes(root) == []


def test_the_device_starts_before_the_sync(create: Open, format_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that what remains to be done for a commit is done while the device works."""
    calls: list[str] = []

    def noted(name: str) -> Callable[..., Any]:
        call = getattr(PosixFile, name)

        def note(file: PosixFile, *arguments: Any) -> Any:
            if file.path == path:
                calls.append(name)
            return call(file, *arguments)

        return note

    monkeypatch.setattr(PosixDisk, "record_writer", lambda _disk, *given: DiskRecordWriter(*given))
    with create(format_name) as log:
        log.append(value(0))
        path = log.segments[-1].path
        for name in ("write", "begin_sync", "sync"):
            monkeypatch.setattr(PosixFile, name, noted(name))
        log.append_batch([value(1)])  # not by the record writer
        log.append_batch([value(2)], durability="write")
        monkeypatch.undo()
    assert calls == ["write", "begin_sync", "sync", "write"]


BATCHES: dict[str, Callable[[list[bytes]], Any]] = {
    "list": list,
    "tuple": tuple,
    "generator": lambda some: (one for one in some),
    "bytearrays": lambda some: [bytearray(one) for one in some],
    "memoryviews": lambda some: [memoryview(one) for one in some],
    "binary": lambda some: pa.array(some, pa.binary()),
    "string": lambda some: pa.array([one.decode() for one in some], pa.string()),
    "large binary": lambda some: pa.array(some, pa.large_binary()),
    "fixed-size binary": lambda some: pa.array(some, pa.binary(RECORD_SIZE)),
    "dictionary": lambda some: pa.array(some, pa.binary()).dictionary_encode(),
    "a slice": lambda some: pa.array([b"before", *some, b"behind"], pa.binary())[1:-1],
    "chunked": lambda some: pa.chunked_array([some[:2], some[2:2], some[2:]], pa.binary()),
    "record batch": lambda some: pa.record_batch({"value": pa.array(some, pa.binary())}),
    "slice of a record batch": lambda some: pa.record_batch({"value": pa.array([b"-", *some], pa.binary())})[1:],
    "table": lambda some: pa.table({"value": pa.chunked_array([some[:1], some[1:]], pa.binary())}),
    "offsets are not taken": lambda some: pa.table({"offset": [7] * len(some), "value": pa.array(some, pa.binary())}),
    "null columns": lambda some: pa.table(
        {"key": pa.nulls(len(some), pa.binary()), "value": pa.array(some, pa.binary()), "headers": pa.nulls(len(some))}
    ),
}


def test_a_batch_of_any_kind(create: Open, root: Path, format_name: str) -> None:
    with create(format_name) as log:
        for number, (kind, make_batch) in enumerate(BATCHES.items()):
            assert log.append_batch(make_batch(values(5 * number, 5))) == (5 * number, 5), kind
            assert log.append_batch(make_batch([])) == (5 * number + 5, 0), kind
    assert content(root) == values(0, 5 * len(BATCHES))
    assert codes(root) == []


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "fixed-slot"])
def test_values_of_every_length(create: Open, root: Path, name: str) -> None:
    some = [b"", b"x", b"", b"y" * 100_000, bytes(range(256)), b""]
    with create(name) as log:
        for one in some:
            log.append(one)
        log.append_batch(some)
        log.append(memoryview(b"part of it")[:4])
    assert content(root) == [*some, *some, b"part"]
    assert codes(root) == []


def test_a_table_with_everything(create: Open, root: Path) -> None:
    headers = [None, [("a", b"1"), ("", None)], [], [("ü", b"")]]
    table = pa.table(
        {
            "headers": pa.array(
                [None if row is None else [{"key": k, "value": v} for k, v in row] for row in headers], HEADERS.type
            ),
            "value": pa.array(values(0, 4), pa.large_binary()),
            "key": pa.array([b"k", None, b"", b"\xff"], pa.binary()),
            "timestamp": pa.array([START_MS, START_MS, None, START_MS + 5], pa.timestamp("ms")),
        }
    )
    with create("keratin") as log:
        log.append(b"plain", timestamp=START_MS)
        assert log.append_batch(table.slice(0, 2)) == (1, 2)
        assert log.append_batch(table.slice(3)) == (3, 1)
        log.append(b"last", key=b"k", headers=[("h", b"v"), ("n", None)], timestamp=datetime(2030, 1, 1, tzinfo=UTC))
        records = list(log.scan())
    assert [record.key for record in records] == [None, b"k", None, b"\xff", b"k"]
    assert [record.headers for record in records][1:] == [
        None, [("a", b"1"), ("", None)], [("ü", b"")], [("h", b"v"), ("n", None)],
    ]  # fmt: skip
    when = [int(record.timestamp.timestamp() * 1000) for record in records if record.timestamp is not None]
    assert when == [START_MS, START_MS, START_MS, START_MS + 5, 1_893_456_000_000]
    with duramen.open(root) as again:
        assert list(again.scan()) == records


@pytest.mark.parametrize("name", TIMED)
def test_records_without_a_time_get_the_present(create: Open, name: str) -> None:
    before = time.time() - 0.001
    with create(name) as log:
        log.append(value(0))
        log.append_batch(values(1, 2))
        log.append_batch(
            pa.table({"value": values(3, 3), "timestamp": pa.array([None] * 3, TIMESTAMP.type)}), durability="write"
        )
        found = [record.timestamp.timestamp() for record in log.scan() if record.timestamp is not None]
    assert len(found) == 6
    assert before <= found[0] <= found[-1] <= time.time()
    assert found == sorted(found)


@pytest.mark.parametrize("name", TIMED)
@pytest.mark.parametrize("when", [START_MS, "2023-11-14T22:13:20Z", datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)])
def test_a_time_is_given_in_many_ways(create: Open, name: str, when: Any) -> None:
    with create(name) as log:
        log.append(value(0), timestamp=when)
        assert log.read(0).timestamp == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)


@pytest.mark.parametrize("name", ORDERED)
def test_a_time_in_the_future_is_not_undercut_by_the_clock(create: Open, root: Path, name: str) -> None:
    with create(name) as log:
        log.append(value(0), timestamp="2040-01-01")
        log.append(value(1))
        log.append_batch(values(2, 2))
        assert {record.timestamp for record in log.scan()} == {datetime(2040, 1, 1, tzinfo=UTC)}
    with create(name) as log:
        log.append(value(4))
        assert log.read(4).timestamp == datetime(2040, 1, 1, tzinfo=UTC)
    assert codes(root) == []


# --- reading one's own writes


def test_what_was_appended_is_read_at_once(create: Open, format_name: str) -> None:
    with create(format_name, segment_max_bytes=600) if format_name in SEGMENTED else create(format_name) as log:
        for number in range(50):
            durability = "write" if number % 3 else "fsync"
            assert log.append(value(number), durability=durability) == number
            assert log.read(number).value == value(number)
            assert log.next_offset == number + 1
            with pytest.raises(duramen.OffsetError):
                log.read(number + 1)
        assert log.read(0).value == value(0)
        assert [record.value for record in log.scan(10, 40)] == values(10, 30)
        assert pa.table(log).num_rows == 50


def test_the_durable_offset_follows_the_syncs(create: Open, format_name: str) -> None:
    with create(format_name) as log:
        log.append(value(0))
        assert log.durable_offset == 1
        log.append_batch(values(1, 4), durability="write")
        assert (log.durable_offset, log.next_offset) == (1, 5)
        log.sync()
        assert log.durable_offset == 5
        log.append(value(5), durability="write")
        log.append(value(6))
        assert log.durable_offset == 7


def test_the_durability_of_the_log_is_the_default_of_its_appends(create: Open) -> None:
    with create("keratin", durability="write") as log:
        log.append(b"0")
        assert log.durable_offset == 0
        log.append(b"1", durability="fsync")
        assert log.durable_offset == 2


def test_a_scan_goes_on_while_records_are_appended(create: Open, format_name: str) -> None:
    with create(format_name, segment_max_bytes=600) if format_name in SEGMENTED else create(format_name) as log:
        log.append_batch(values(0, 30))
        scan = log.scan()
        head = [next(scan).value for _ in range(5)]
        for number in range(30, 60):
            log.append(value(number), durability="write")
        rest = [record.value for record in scan]
        assert head + rest == values(0, len(head) + len(rest))
        assert len(head + rest) >= 30
        assert len(list(log.scan())) == 60


def test_readers_and_appenders_in_one_process(create: Open, format_name: str) -> None:
    """Threads read what other threads append, in one log object, over many segments."""
    log = create(format_name, segment_max_bytes=800) if format_name in SEGMENTED else create(format_name)
    stop = threading.Event()
    failures: list[BaseException] = []

    def guarded(run: Callable[[], None]) -> threading.Thread:
        def attempt() -> None:
            try:
                run()
            except BaseException as error:  # noqa: BLE001
                failures.append(error)
                stop.set()

        thread = threading.Thread(target=attempt, daemon=True)
        thread.start()
        return thread

    def append() -> None:
        for number in range(100):
            if stop.is_set():
                return
            assert log.append(value(number), durability="write") == number

    def scan() -> None:
        while not stop.is_set():
            seen = log.next_offset
            found = [record.value for record in log.scan()]
            assert found == values(0, len(found))
            assert len(found) >= seen

    def read() -> None:
        while not stop.is_set():
            last = log.next_offset - 1
            for offset in {0, last // 2, last} if last >= 0 else ():
                assert log.read(offset).value == value(offset)

    writer = guarded(append)
    readers = [guarded(run) for run in (scan, read, read)]
    writer.join(60)
    stop.set()
    for thread in readers:
        thread.join(60)
    assert not failures, failures
    assert len(list(log.scan())) == 100


def test_following_in_the_writer_s_own_process(create: Open) -> None:
    with create("keratin", segment_max_bytes=500) as log:
        found: list[int] = []

        def follow() -> None:
            found.extend(record.offset for record in log.scan(follow=True, max_records=40))

        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        for number in range(40):
            log.append(value(number), durability="write")
            time.sleep(0.001)
        thread.join(10)
        assert found == list(range(40))


# --- many threads


@pytest.mark.parametrize("linger_ms", [0, 1])
def test_sixteen_threads(create: Open, root: Path, format_name: str, linger_ms: float) -> None:
    each = 10
    log = create(format_name, linger_ms=linger_ms)
    given: list[list[int]] = [[] for _ in range(16)]

    def work(thread: int) -> None:
        for number in range(each):
            given[thread].append(log.append(b"%3d %3d" % (thread, number) + bytes(RECORD_SIZE - 7)))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(offset for offsets in given for offset in offsets) == list(range(16 * each))
    for thread, offsets in enumerate(given):
        assert offsets == sorted(offsets)
        for number, offset in enumerate(offsets):
            assert log.read(offset).value.startswith(b"%3d %3d" % (thread, number))
    log.close()
    assert len(content(root)) == 16 * each
    assert codes(root) == []


def test_threads_share_syncs(root: Path) -> None:
    disk = FaultyDisk(PosixDisk(), "sync *.log: delay 0.01", keep_history=True)
    with duramen.open(root, "a", disk=disk) as log:
        threads = [threading.Thread(target=lambda: [log.append(b"x") for _ in range(10)]) for _ in range(16)]
        before = sum(call.startswith("sync ") for call in disk.history)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        syncs = sum(call.startswith("sync ") for call in disk.history) - before
        assert log.next_offset == 160
    assert syncs <= 50, "the slower the sync, the larger the groups"


def test_a_slow_disk_and_a_full_queue(root: Path) -> None:
    """An append that times out has stored nothing; those that were queued are all there."""
    disk = FaultyDisk(PosixDisk(), "sync#3+ *.log: delay 0.15")
    with duramen.open(root, "a", disk=disk, queue_bytes=100, max_batch_records=1) as log:
        refused: list[bytes] = []
        stored: dict[int, bytes] = {}

        def work(name: bytes) -> None:
            try:
                stored[log.append(name * 60, timeout_s=0.05)] = name
            except duramen.QueueTimeoutError:
                refused.append(name)

        threads = [threading.Thread(target=work, args=(b"%c" % (65 + n),)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert refused, "nobody had to wait"
        assert stored, "nobody got through"
        assert sorted([*refused, *stored.values()]) == [b"%c" % (65 + n) for n in range(8)]
        assert log.append(b"afterwards", timeout_s=5) == len(stored)
    assert content(root) == [*(stored[offset] * 60 for offset in sorted(stored)), b"afterwards"]


# --- a full disk


@pytest.mark.parametrize("how", ["write#{n} {file}: ENOSPC", "write#{n} {file}: short ENOSPC"])
def test_after_a_full_disk_a_smaller_append_is_stored(format_name: str, how: str) -> None:
    file = "*.segment" if format_name == "osiris" else "*.log"
    disk = SimulatedDisk()
    rule = how.format(n=4 if format_name in ("keratin", "osiris") else 3, file=file)  # these begin with a header
    size = {"record_size": 600} if format_name == "fixed-slot" else {}
    log = duramen.open("/log", "a", format=format_name, disk=FaultyDisk(disk, rule), **size)
    large, small = b"L" * 600, b"s" * (600 if size else 5)
    assert [log.append(large), log.append(large)] == [0, 1]
    with pytest.raises(
        duramen.StorageError, match=r"no space left .* \(the disk is full: free some space, then try again\)"
    ):
        log.append_batch([large])
    assert not log.is_poisoned
    assert log.append(small) == 2
    log.close()
    with duramen.open("/log", disk=disk) as log:
        assert [record.value for record in log] == [large, large, small]
    assert duramen.verify("/log", disk=disk).ok


@pytest.mark.parametrize("name", ["keratin", "osiris", "durable-log"])
def test_an_index_waits_for_room(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duramen.log.segments.active_segment.INDEX_FLUSH_BYTES", 100)
    disk = SimulatedDisk()
    index = "*.index" if name == "osiris" else "*.idx"
    log = duramen.open(
        "/log", "a", format=name, disk=FaultyDisk(disk, f"write#2 {index}: ENOSPC; write#3 {index}: short ENOSPC")
    )
    for number in range(6):
        assert log.append(b"v" * 200) == number
    assert not log.is_poisoned
    log.close()
    report = duramen.verify("/log", disk=disk)
    assert report.ok, report.findings
    assert not report.findings


def test_closing_on_a_full_disk_says_so_and_loses_nothing() -> None:
    disk = SimulatedDisk()
    log = duramen.open("/log", "a", format="durable-log", disk=FaultyDisk(disk, "write *.idx: ENOSPC"))
    log.append(b"kept")
    with pytest.raises(duramen.StorageError, match="no space left"):
        log.close()
    with duramen.open("/log", "a", disk=disk) as log:
        assert log.read(0).value == b"kept"
    assert duramen.verify("/log", disk=disk).findings == []
