"""`duramen.open(path, "a")` over all five formats, on the real disk."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import duramen
from duramen.disk import PosixDisk
from duramen.formats import make
from duramen.model import HEADERS, TIMESTAMP
from duramen.testing import FaultyDisk
from tests.log.conftest import FORMATS, RECORD_SIZE, START_US, options, value

SEGMENTED = tuple(name for name in FORMATS if make(name).capabilities.segments)
TIMED = tuple(name for name in FORMATS if make(name).capabilities.timestamps)
ORDERED = tuple(name for name in FORMATS if make(name).capabilities.ordered_timestamps)
START_MS = START_US // 1000

Open = Callable[..., duramen.WritableLog]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def create(root: Path) -> Iterator[Open]:
    """Open a log for append; whatever a test leaves open is closed."""
    opened: list[duramen.WritableLog] = []

    def open_log(name: str, **more: Any) -> duramen.WritableLog:
        log = duramen.open(root, "a", format=name, **options(name), **more)
        opened.append(log)
        return log

    yield open_log
    for log in opened:
        log.close()


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


# --- segments


def sizes(root: Path, name: str) -> list[int]:
    suffix = ".segment" if name == "osiris" else ".log"
    return [path.stat().st_size for path in sorted(root.rglob(f"*{suffix}")) if path.parent.name != "quarantine"]


@pytest.mark.parametrize("name", SEGMENTED)
def test_roll_by_size(create: Open, root: Path, name: str) -> None:
    with create(name, segment_max_bytes=1000) as log:
        for number in range(50):
            log.append(value(number), durability="write")
        log.append_batch(values(50, 50))
        if name == "osiris":
            log.append(value(100))  # a segment of Osiris is left when it is full, with the next chunk
        assert len(log.segments) > 3
        assert [segment.sealed for segment in log.segments] == [True] * (len(log.segments) - 1) + [False]
        assert log.segments[0].base_offset == 0
    if name != "osiris":
        assert max(sizes(root, name)) <= 1000
        assert min(sizes(root, name)[:-1]) > 900
    assert content(root) == values(0, 101 if name == "osiris" else 100)
    assert codes(root) == []


@pytest.mark.parametrize("name", SEGMENTED)
def test_a_record_larger_than_a_segment_has_one_of_its_own(create: Open, root: Path, name: str) -> None:
    large = b"L" * 5000
    some = [value(0), large, value(2), value(3), large, large, value(6)]
    with create(name, segment_max_bytes=1000) as log:
        for one in some:
            log.append(one, durability="write")
        log.append_batch(some)
        bases = [segment.base_offset for segment in log.segments]
    assert content(root) == some + some
    assert codes(root) == []
    if name != "osiris":
        assert {1, 2, 4, 5, 6, 8, 9, 11, 12, 13} <= set(bases)


@pytest.mark.parametrize("name", SEGMENTED)
def test_roll_by_age(create: Open, root: Path, name: str) -> None:
    with create(name, segment_max_age_ms=60) as log:
        log.append(value(0))
        log.append(value(1))
        assert len(log.segments) == 1
        time.sleep(0.08)
        assert len(log.segments) == 1, "only an append rolls"
        log.append(value(2))
        log.append(value(3))
        assert [segment.base_offset for segment in log.segments][:2] == [0, 2]
    assert content(root) == values(0, 4)
    assert codes(root) == []


@pytest.mark.parametrize("name", SEGMENTED)
def test_seal(create: Open, root: Path, name: str) -> None:
    with create(name) as log:
        log.seal()
        assert len(log.segments) == 1, "an empty segment is not sealed"
        log.append_batch(values(0, 3), durability="write")
        log.seal()
        assert log.durable_offset == 3
        log.seal()
        assert [segment.base_offset for segment in log.segments] == [0, 3]
        log.append(value(3))
    assert content(root) == values(0, 4)
    assert codes(root) == []
    with create(name) as log:
        log.seal()
    with create(name) as log:
        assert log.append(value(4)) == 4
        assert [segment.base_offset for segment in log.segments] == [0, 3, 4]
    assert content(root) == values(0, 5)
    assert codes(root) == []


def test_a_log_with_one_file_cannot_be_sealed(create: Open, root: Path) -> None:
    log = create("fixed-slot")
    log.append(value(0))
    before = snapshot(root)
    with pytest.raises(duramen.UsageError, match="one file only"):
        log.seal()
    assert snapshot(root) == before


# --- closing and opening again


def test_reopening_goes_on(create: Open, root: Path, format_name: str) -> None:
    more = {"segment_max_bytes": 700} if format_name in SEGMENTED else {}
    with create(format_name, **more) as log:
        log.append_batch(values(0, 30))
    for start in range(30, 60, 10):
        with duramen.open(root, "a") as log:
            assert log.format == format_name
            assert log.codec.options.items() >= {**options(format_name), **more}.items(), "as the sidecar remembers"
            assert log.next_offset == log.durable_offset == start
            assert log.append_batch(values(start, 10)) == (start, 10)
            assert log.read(0).value == value(0)
    assert content(root) == values(0, 60)
    assert codes(root) == []
    if more and format_name != "osiris":
        assert max(sizes(root, format_name)) <= 700


def test_options_may_change_where_the_bytes_do_not_depend_on_them(create: Open, root: Path) -> None:
    create("keratin", segment_max_bytes=1000).close()
    with duramen.open(root, "a", segment_max_bytes=2000) as log:
        log.append_batch(values(0, 100))
    assert 1000 < max(sizes(root, "keratin")) <= 2000
    config = json.loads((root / ".duramen/log.json").read_text())
    assert config["options"]["segment_max_bytes"] == 2000


@pytest.mark.parametrize(
    ("name", "first", "then", "message"),
    [
        ("fixed-slot", {}, {"record_size": RECORD_SIZE + 1}, "record_size is 16 in this log and cannot become 17"),
        ("osiris", {"chunk_version": 0}, {"chunk_version": 1}, "chunk_version is 0 in this log"),
        ("rustlog", {"header_bytes": 12}, {"header_bytes": 20}, "header_bytes is 12 in this log"),
        ("keratin", {}, {"format": "osiris"}, "the log is keratin, not osiris"),
    ],
)
def test_what_the_bytes_depend_on_cannot_change(
    create: Open, root: Path, name: str, first: dict[str, Any], then: dict[str, Any], message: str
) -> None:
    with create(name, **first) as log:
        log.append(value(0))
    before = snapshot(root)
    with pytest.raises(duramen.UsageError, match=message):
        duramen.open(root, "a", **then)
    assert snapshot(root) == before


@pytest.mark.parametrize("name", FORMATS)
def test_another_format_s_files_are_not_appended_to(create: Open, root: Path, name: str) -> None:
    with create(name) as log:
        log.append(value(0))
    shutil.rmtree(root / ".duramen")
    before = snapshot(root)
    other = "keratin" if name != "keratin" else "rustlog"
    with pytest.raises(duramen.DuramenError, match=name):
        duramen.open(root, "a", format=other)
    assert snapshot(root) == before


def test_closing_twice_and_using_a_closed_log(create: Open, root: Path, format_name: str) -> None:
    log = create(format_name)
    log.append(value(0))
    log.close()
    log.close()
    before = snapshot(root)
    for act in (
        lambda: log.append(value(1)),
        lambda: log.append_batch(values(1, 2)),
        lambda: log.append_batch([]),
        log.sync,
        log.seal,
        lambda: log.read(0),
        lambda: list(log.scan()),
    ):
        with pytest.raises(duramen.UsageError, match=r"closed|one file only"):
            act()
    assert snapshot(root) == before


def test_the_end_of_a_block_closes_the_log_even_after_an_error(root: Path) -> None:
    def fail() -> None:
        with duramen.open(root, "a") as log:
            log.append(b"before", durability="write")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with duramen.open(root, "a") as log:
        assert log.read(0).value == b"before"


def test_closing_while_others_append(create: Open, root: Path, format_name: str) -> None:
    """Every append is answered and stored, or refused and not stored: nothing happens behind the end."""
    for _ in range(5):
        log = create(format_name)
        first = log.next_offset
        stored: list[int] = []
        refused: list[duramen.DuramenError] = []
        threads = [threading.Thread(target=append_until_refused, args=(log, stored, refused)) for _ in range(8)]
        for thread in threads:
            thread.start()
        time.sleep(0.01)
        log.close()
        for thread in threads:
            thread.join(30)
        assert {type(error) for error in refused} == {duramen.UsageError}, refused
        assert sorted(stored) == list(range(first, first + len(stored)))
        assert len(content(root)) == first + len(stored)
        assert codes(root) == []


def append_until_refused(log: duramen.WritableLog, stored: list[int], refused: list[duramen.DuramenError]) -> None:
    while True:
        try:
            stored.append(log.append(value(0), durability="write"))
        except duramen.DuramenError as error:
            refused.append(error)
            return


def test_an_empty_log(create: Open, root: Path, format_name: str) -> None:
    with create(format_name) as log:
        assert (log.first_offset, log.next_offset, log.durable_offset) == (0, 0, 0)
        assert list(log.scan()) == []
    assert content(root) == []
    with duramen.open(root, "a") as log:
        assert log.append(value(0)) == 0
    assert content(root) == values(0, 1)
    assert codes(root) == []


# --- the sidecar can be lost


def filled(create: Open, name: str) -> None:
    with create(name, segment_max_bytes=800) if name in SEGMENTED else create(name) as log:
        log.append_batch(values(0, 40))
        log.append_batch(values(40, 5))


def test_a_lost_sidecar_loses_no_record(create: Open, root: Path, format_name: str) -> None:
    filled(create, format_name)
    shutil.rmtree(root / ".duramen")
    assert content(root, **options(format_name)) == values(0, 45)
    with duramen.open(root, "a", **options(format_name)) as log:
        assert log.append(value(45)) == 45
    assert content(root) == values(0, 46)
    assert codes(root) == []


@pytest.mark.parametrize("file", ["log.json", "lock", "watermark", "sealed.jsonl"])
def test_a_broken_sidecar_loses_no_record(create: Open, root: Path, format_name: str, file: str) -> None:
    filled(create, format_name)
    path = root / ".duramen" / file
    if not path.exists():
        pytest.skip("this format has no such file")
    good = snapshot(root)
    for broken in (None, b"", good[f".duramen/{file}"][:-9]):
        for name, raw in good.items():
            (root / name).write_bytes(raw)
        path.unlink() if broken is None else path.write_bytes(broken)
        if file == "log.json" and broken is not None:
            with pytest.raises(duramen.CorruptionError, match="delete it"):
                duramen.open(root, "a", **options(format_name))
            path.unlink()
        with duramen.open(root, "a", **options(format_name)) as log:
            assert log.append(value(45)) == 45
        assert content(root) == values(0, 46)
        assert codes(root) == []


def test_a_sidecar_from_a_backup_loses_no_record(create: Open, root: Path, tmp_path: Path, format_name: str) -> None:
    """The records are newer than the sidecar: it is behind, not right."""
    with create(format_name, segment_max_bytes=700) if format_name in SEGMENTED else create(format_name) as log:
        log.append_batch(values(0, 10))
    shutil.copytree(root / ".duramen", tmp_path / "old")
    with duramen.open(root, "a") as log:
        for number in range(10, 45, 5):
            log.append_batch(values(number, 5))
    shutil.rmtree(root / ".duramen")
    shutil.copytree(tmp_path / "old", root / ".duramen")
    assert content(root) == values(0, 45)
    with duramen.open(root, "a") as log:
        assert log.append(value(45)) == 45
    assert content(root) == values(0, 46)
    assert codes(root) == []


def test_indexes_and_manifest_can_be_deleted(create: Open, root: Path, format_name: str) -> None:
    filled(create, format_name)
    for path in list(root.rglob("*")):
        if path.suffix in (".idx", ".tidx", ".index", ".bin"):
            path.unlink()
    with duramen.open(root, "a") as log:
        assert log.append(value(45)) == 45
        assert log.read(3).value == value(3)
    assert content(root) == values(0, 46)
    assert duramen.verify(root).ok


# --- logs of other programs


def test_osiris_goes_on_in_the_dialect_found(root: Path, osiris: Path) -> None:
    for name in ("plain", "dedup", "tracked", "retention", "subbatch", "golden_1_3_1", "crash"):
        root.mkdir()
        for path in (osiris / name).iterdir():
            if path.suffix in (".segment", ".index"):
                shutil.copy(path, root)
        with duramen.open(root) as log:
            before = list(log.scan())
            old = log.codec.describe({p.name: p.read_bytes() for p in root.iterdir() if p.is_file()})
        sealed = snapshot(root)
        with duramen.open(root, "a", segment_max_bytes=2000) as log:
            assert log.codec.options["chunk_version"] == 0
            assert log.codec.options["epoch"] == old["epoch"]
            given = [log.append(b"%d" % number) for number in range(10)]
            assert given[0] in (before[-1].offset + 1, before[-1].offset + 2), "a snapshot of the tracking takes one"
            log.append_batch([b"b" * 50] * 50)
            log.seal()
            log.append(b"last")
            assert len(log.segments) >= 2
            last = max(p.name for p in root.iterdir() if p.suffix == ".segment")
            new = log.codec.describe({p.name: p.read_bytes() for p in root.iterdir() if p.is_file()})
        assert new["epoch"] == old["epoch"], name
        first = before[0]
        assert first.timestamp is not None
        held = old["tracking"]
        held["offsets"] = {key: offset for key, offset in held["offsets"].items() if offset >= first.offset}
        first_ms = int(first.timestamp.timestamp() * 1000)
        held["timestamps"] = {key: ms for key, ms in held["timestamps"].items() if ms >= first_ms}
        assert new["tracking"] == held, "the snapshot at the start of a segment holds all that is not before the log"
        with duramen.open(root) as log:
            records = list(log.scan())
        assert records[: len(before)] == before
        appended = [record.value for record in records[len(before) :]]
        assert appended == [*(b"%d" % n for n in range(10)), *[b"b" * 50] * 50, b"last"]
        assert [record.offset for record in records[len(before) :]][:10] == given
        data = (root / last).read_bytes()
        assert data[8] == 0x50, "chunk version 0"
        for path, raw in sealed.items():
            assert (root / path).read_bytes().startswith(raw) or name == "crash", f"{name}: {path} was changed"
        assert codes(root) == []
        shutil.rmtree(root)


@pytest.mark.parametrize("which", ["three", "records250"])
@pytest.mark.parametrize(("dialect", "header_bytes"), [("impl", 12), ("spec", 20)])
def test_rustlog_goes_on_in_the_dialect_found(
    root: Path, golden: Path, which: str, dialect: str, header_bytes: int
) -> None:
    shutil.copytree(golden / "rustlog" / dialect / which, root)
    before = content(root)
    with duramen.open(root, "a") as log:
        assert log.codec.options["header_bytes"] == header_bytes
        size = sum(sizes(root, "rustlog"))
        assert log.append(b"n" * 10) == len(before)
        assert sum(sizes(root, "rustlog")) == size + header_bytes + 10
        log.seal()
        log.append_batch([b"m"] * 3)
        if header_bytes == 12:
            assert log.read(len(before)).timestamp is None
            with pytest.raises(duramen.UnsupportedFieldError, match="timestamp"):
                log.append(b"x", timestamp=START_MS)
        else:
            assert log.read(len(before)).timestamp is not None
    assert content(root) == [*before, b"n" * 10, *[b"m"] * 3]
    assert codes(root) == []


@pytest.mark.parametrize(
    ("which", "manifest"),
    [("three", None), ("three_hdr", "spec_fresh"), ("empty", "impl_v1"), ("three", "impl_v2"), ("three", "impl_v3")],
)
def test_keratin_goes_on(root: Path, golden: Path, which: str, manifest: str | None) -> None:
    (root / "segments").mkdir(parents=True)
    for path in (golden / "keratin/segments" / which).iterdir():
        if path.suffix in (".log", ".idx", ".tidx"):
            shutil.copy(path, root / "segments")
    if manifest:
        shutil.copy(golden / "keratin/manifest" / manifest / "manifest.bin", root)
    with duramen.open(root) as log:
        before = list(log.scan())
    with duramen.open(root, "a") as log:
        first = log.append(b"new", key=b"k", headers=[("h", b"v")])
        log.seal()
        log.append(b"newer")
    with duramen.open(root) as log:
        records = list(log.scan())
    assert records[: len(before)] == before
    assert [record.offset for record in records[len(before) :]] == [first, first + 1]
    assert (records[-2].key, records[-2].headers, records[-1].value) == (b"k", [("h", b"v")], b"newer")
    assert codes(root) == []


@pytest.mark.parametrize("which", ["three", "three_base7", "empty"])
def test_durable_log_goes_on(root: Path, golden: Path, which: str) -> None:
    shutil.copytree(golden / "durable-log" / which, root)
    with duramen.open(root) as log:
        before = list(log.scan())
    with duramen.open(root, "a") as log:
        first = log.append(b"new")
        assert first == (before[-1].offset + 1 if before else 0)
        log.seal()
        log.append(b"newer")
    with duramen.open(root) as log:
        records = list(log.scan())
    assert records[: len(before)] == before
    assert [record.value for record in records[len(before) :]] == [b"new", b"newer"]
    assert codes(root) == []


def test_fixed_slot_goes_on(root: Path, golden: Path) -> None:
    shutil.copytree(golden / "slot/rs16/three", root)
    with pytest.raises(duramen.UsageError, match="record_size=16"):
        duramen.open(root, "a")
    with duramen.open(root, "a", record_size=16) as log:
        assert log.append(value(3)) == 3
    assert content(root)[3:] == values(3, 1)
    assert codes(root) == []


# --- bad input: a clear error, and the log is as it was


def wrong(name: str) -> dict[str, tuple[str, Callable[[duramen.WritableLog], Any]]]:
    """For one format: what to call, and what the error says."""
    capabilities = make(name, **options(name)).capabilities
    v = value(9)
    cases: dict[str, tuple[str, Callable[[duramen.WritableLog], Any]]] = {
        "text": ("bytes, not str", lambda log: log.append("text")),
        "none": ("bytes, not NoneType", lambda log: log.append(None)),
        "number": ("bytes, not int", lambda log: log.append(5)),
        "batch of bytes": ("not bytes", lambda log: log.append_batch(b"abc")),
        "batch of text": ("not str", lambda log: log.append_batch("abc")),
        "batch of nothing": ("not NoneType", lambda log: log.append_batch(None)),
        "batch as a dict": ("not dict", lambda log: log.append_batch({"value": [v]})),
        "numbers": ("value: ", lambda log: log.append_batch([1, 2])),
        "a null in a list": ("null", lambda log: log.append_batch([v, None])),
        "a null in an array": ("null", lambda log: log.append_batch(pa.array([v, None]))),
        "no value column": ("no column 'value'", lambda log: log.append_batch(pa.table({"key": [v]}))),
        "unknown column": ("'colour'", lambda log: log.append_batch(pa.table({"value": [v], "colour": ["red"]}))),
        "value of another type": ("'value'", lambda log: log.append_batch(pa.table({"value": [1.5]}))),
        "quorum": ("'quorum' is reserved", lambda log: log.append(v, durability="quorum")),
        "quorum for nothing": ("'quorum' is reserved", lambda log: log.append_batch([], durability="quorum")),
        "unknown durability": ("'maybe' is not known", lambda log: log.append(v, durability="maybe")),
    }
    if not capabilities.key:
        cases["key"] = (f"{name} has no place for the field 'key'", lambda log: log.append(v, key=b"k"))
        table = pa.table({"value": [v, v], "key": [None, b"k"]})
        cases["keys"] = (f"{name} has no place for the field 'key'", lambda log: log.append_batch(table))
    else:
        cases["key of another type"] = ("key: ", lambda log: log.append(v, key=5))
    if not capabilities.headers:
        cases["headers"] = (
            f"{name} has no place for the field 'headers'",
            lambda log: log.append(v, headers=[("h", v)]),
        )
    else:
        cases["headers as a dict"] = ("headers", lambda log: log.append(v, headers={"h": b"v"}))
        cases["headers as text"] = ("headers", lambda log: log.append(v, headers=["ab"]))
        cases["a header without a value"] = ("headers", lambda log: log.append(v, headers=[("a",)]))
        cases["a header without a name"] = ("headers", lambda log: log.append(v, headers=[(None, b"v")]))
        cases["a header of numbers"] = ("headers", lambda log: log.append(v, headers=[("a", 5)]))
    when = START_MS + 10_000_000
    if not capabilities.timestamps:
        cases["time"] = (f"{name} has no place for the field 'timestamp'", lambda log: log.append(v, timestamp=when))
    else:
        cases["no time"] = ("is no time", lambda log: log.append(v, timestamp="yesterday"))
        cases["a fraction as time"] = ("is no time", lambda log: log.append(v, timestamp=1.5))
        cases["a list as time"] = ("is no time", lambda log: log.append(v, timestamp=[1]))
        cases["a time out of range"] = ("out of range", lambda log: log.append(v, timestamp=2**62))
        cases["numbers as times"] = (
            "'timestamp'", lambda log: log.append_batch(pa.table({"value": [v], "timestamp": [when]})),
        )  # fmt: skip
    if capabilities.ordered_timestamps:
        cases["a time that goes back"] = ("goes back", lambda log: log.append(v, timestamp=START_MS - 1))
        back = pa.table({"value": [v, v], "timestamp": pa.array([when, when - 1], pa.timestamp("ms"))})
        cases["times that go back"] = ("goes back", lambda log: log.append_batch(back))
        old = pa.table({"value": [v, v], "timestamp": pa.array([None, START_MS + 99], pa.timestamp("ms"))})
        cases["a time behind the present"] = ("goes back", lambda log: log.append_batch(old))
    if name == "fixed-slot":
        cases["too short"] = ("exactly record_size=16", lambda log: log.append(v[:-1]))
        cases["too long"] = ("exactly record_size=16", lambda log: log.append(v + b"."))
        cases["one too short"] = ("value 1 has 3 bytes", lambda log: log.append_batch([v, b"abc"]))
    if name == "rustlog":
        cases["too large"] = ("10485761 bytes", lambda log: log.append(bytes((10 << 20) + 1)))
        cases["one too large"] = ("10485761 bytes", lambda log: log.append_batch([v, bytes((10 << 20) + 1)]))
    return cases


def test_bad_input(create: Open, root: Path, format_name: str) -> None:
    log = create(format_name)
    if log.codec.capabilities.timestamps is None:
        log.append(value(0))
    else:
        log.append(value(0), timestamp=START_MS)
    before = snapshot(root)
    for case, (message, act) in wrong(format_name).items():
        with pytest.raises(duramen.UsageError, match=message):
            pytest.fail(f"{case} was accepted: {act(log)}")
        assert snapshot(root) == before, case
    assert log.append(value(1)) == 1, "the log is as good as before"
    log.close()
    assert content(root) == values(0, 2)
    assert codes(root) == []


@pytest.mark.parametrize("name", ORDERED)
def test_one_caller_s_mistake_is_not_another_s(root: Path, name: str) -> None:
    """Among appends that share a group, only the one whose time goes back is refused."""
    disk = FaultyDisk(PosixDisk(), "sync#3+ *.log: delay 0.05")
    with duramen.open(root, "a", format=name, disk=disk) as log:
        log.append(b"first", timestamp=START_MS)
        errors: dict[int, Exception] = {}

        def work(number: int) -> None:
            try:
                log.append(b"%d" % number, timestamp=START_MS - 1 if number % 3 == 0 else None)
            except duramen.UsageError as error:
                errors[number] = error

        threads = [threading.Thread(target=work, args=(n,)) for n in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert sorted(errors) == [0, 3, 6, 9]
        assert sorted(record.value for record in log.scan(1)) == sorted(b"%d" % n for n in range(12) if n % 3)


@pytest.mark.parametrize("name", ORDERED)
def test_times_are_in_order_within_a_group(root: Path, name: str) -> None:
    """One thread gives times of the past, another none: whoever shares a group, no time in the file goes back."""
    disk = FaultyDisk(PosixDisk(), "sync *.log: delay 0.003")
    with duramen.open(root, "a", format=name, disk=disk) as log:
        log.append(b"first", timestamp=START_MS)

        def work(number: int) -> None:
            for _ in range(10):
                try:
                    log.append(b"x", timestamp=START_MS + 1 if number % 2 else None)
                except duramen.UsageError:
                    return

        threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    with duramen.open(root) as log:
        times = [record.timestamp for record in log.scan() if record.timestamp is not None]
    assert times == sorted(times)
    assert codes(root) == []


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"colour": "red"}, "has no option colour"),
        ({"durability": "quorum"}, "'quorum' is reserved"),
        ({"durability": "never"}, "'never' is not known"),
        ({"on_damage": "ignore"}, "on_damage='ignore'"),
        ({"max_batch_bytes": 0}, "max_batch_bytes=0"),
        ({"max_batch_records": -1}, "max_batch_records=-1"),
        ({"queue_bytes": 0}, "queue_bytes=0"),
        ({"linger_ms": -1}, "linger_ms=-1"),
    ],
)
def test_unknown_options_make_no_log(root: Path, format_name: str, more: dict[str, Any], message: str) -> None:
    with pytest.raises(duramen.UsageError, match=message):
        duramen.open(root, "a", format=format_name, **options(format_name), **more)
    assert not root.exists()


@pytest.mark.parametrize(
    ("name", "more", "message"),
    [
        ("keratin", {"segment_max_bytes": 0}, "segment_max_bytes=0"),
        ("durable-log", {"segment_max_bytes": "many"}, "segment_max_bytes='many'"),
        ("osiris", {"compression": "rot13"}, "rot13"),
        ("osiris", {"chunk_version": 2}, "chunk_version=2"),
        ("rustlog", {"header_bytes": 16}, "header_bytes=16"),
        ("fixed-slot", {}, "needs its record_size"),
        ("fixed-slot", {"record_size": 0}, "record_size=0"),
        ("fixed-slot", {"record_size": 8, "segment_max_bytes": 100}, "has no option segment_max_bytes"),
        ("kafka", {}, "kafka"),
    ],
)
def test_wrong_options_make_no_log(root: Path, name: str, more: dict[str, Any], message: str) -> None:
    with pytest.raises(duramen.UsageError, match=message):
        duramen.open(root, "a", format=name, **more)
    assert not root.exists()


def test_a_mode_that_is_not_known(root: Path) -> None:
    with pytest.raises(duramen.UsageError, match="mode 'w' is not known"):
        duramen.open(root, "w")  # type: ignore[call-overload]
    assert not root.exists()


def test_a_file_instead_of_a_directory(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"something")
    with pytest.raises(duramen.DuramenError, match="single file cannot be opened for append"):
        duramen.open(path, "a")
    with pytest.raises(duramen.StorageError, match="file"):
        duramen.open(path / "below", "a")
    assert path.read_bytes() == b"something"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_directory_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear reader")
    with pytest.raises(duramen.DetectionError):
        duramen.open(tmp_path, "a")
    assert [p.name for p in tmp_path.iterdir()] == ["letter.txt"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_directory(create: Open, root: Path, format_name: str) -> None:
    create(format_name).close()
    before = snapshot(root)
    for path in (root / ".duramen", root):
        path.chmod(0o555)
    (root / ".duramen/lock").chmod(0o444)
    try:
        with pytest.raises(duramen.StorageError, match="permission denied"):
            duramen.open(root, "a")
    finally:
        for path in (root, root / ".duramen"):
            path.chmod(0o755)
    assert snapshot(root) == before


def test_a_directory_that_refuses_writing(create: Open, root: Path, format_name: str) -> None:
    """What a read-only file system answers, for those who run the tests as root."""
    with create(format_name) as log:
        log.append(value(0))
    before = snapshot(root)
    disk = FaultyDisk(PosixDisk(), "lock: EROFS; create: EROFS; open: EROFS; page: EROFS")
    with pytest.raises(duramen.StorageError, match="read-only file system") as caught:
        duramen.open(root, "a", disk=disk)
    assert caught.value.path is not None
    assert snapshot(root) == before
    assert content(root) == values(0, 1)


def test_an_index_that_cannot_be_written(root: Path) -> None:
    """The record is in the segment by then: whoever was told that it failed must not find that others were told of
    it."""
    disk = FaultyDisk(PosixDisk(), "write#2+ *.idx: ENOSPC")
    with duramen.open(root, "a", format="durable-log", disk=disk) as log:
        log.append(b"small")
        log.append_batch([b"large" * 1_000_000], durability="write")
        with pytest.raises(duramen.StorageError, match=r"\.idx.*no space left"):
            log.append_batch([b"large" * 1_000_000], durability="write")
        with pytest.raises(duramen.PoisonedError):
            log.append(b"next")
        assert log.next_offset == 2
        with duramen.open(root) as reader:
            assert reader.next_offset == 2
    with duramen.open(root, "a") as log:
        assert log.append(b"next") in (2, 3), "it was neither acknowledged nor refused"
        assert [len(record.value) for record in log.scan(0, 2)] == [5, 5_000_000]
    assert codes(root) == []


# --- one writer


def test_a_second_writer_in_the_same_process(create: Open, root: Path, format_name: str) -> None:
    with create(format_name) as log:
        log.append(value(0))
        before = snapshot(root)
        with pytest.raises(duramen.LockedError, match=rf"pid {os.getpid()}\b"):
            duramen.open(root, "a")
        assert snapshot(root) == before
        assert log.append(value(1)) == 1
    with duramen.open(root, "a") as log:
        assert log.append(value(2)) == 2
    assert content(root) == values(0, 3)


HOLDER = """
import sys, time, duramen
log = duramen.open(sys.argv[1], "a", format=sys.argv[2], **eval(sys.argv[3]))
log.append(b"held".ljust(16, b"."), durability="write")
print("ready", flush=True)
time.sleep(100)
"""


def test_a_second_writer_in_another_process(root: Path, format_name: str) -> None:
    command = [sys.executable, "-c", HOLDER, str(root), format_name, repr(options(format_name))]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"ready\n"
            before = snapshot(root)
            with pytest.raises(duramen.LockedError, match=rf"pid {holder.pid}\b") as caught:
                duramen.open(root, "a")
            assert caught.value.path == str(root)
            assert snapshot(root) == before
            assert content(root) == [b"held".ljust(16, b".")], "reading needs no lock"
        finally:
            os.kill(holder.pid, signal.SIGKILL)
    with duramen.open(root, "a") as log:
        assert log.read(0).value == b"held".ljust(16, b"."), "acknowledged by a process that was killed"
        assert log.append(value(1)) == 1
    assert codes(root) == []


def _open_once(arguments: tuple[str, str, int]) -> str:
    path, name, number = arguments
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            with duramen.open(path, "a", format=name) as log:
                log.append(b"%d" % number)
            return "appended"
        except duramen.LockedError:
            time.sleep(0.001)
        except duramen.UsageError as error:
            return str(error)
    return "never"


def test_processes_that_make_the_same_log_at_once(root: Path) -> None:
    """One of them decides what it is; the others go on with that, or are told."""
    work = [(str(root), "keratin" if n % 2 else "osiris", n) for n in range(8)]
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        answers = pool.map(_open_once, work, chunksize=1)
    appended = [n for n, answer in enumerate(answers) if answer == "appended"]
    assert len({n % 2 for n in appended}) == 1, answers
    assert len(appended) == 4
    assert all("the log is" in answers[n] for n in range(8) if n not in appended), answers
    assert sorted(content(root)) == sorted(b"%d" % n for n in appended)
    assert codes(root) == []
