"""Transactions: all rows and the ledger entry, or none; in one log and in several; under errors, too."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import duramen
from duramen.disk import PosixDisk
from duramen.disk.posix import PosixFile
from duramen.errors import CorruptionError, LockedError, PoisonedError, StorageError, UnsupportedFieldError, UsageError
from duramen.log.recover import RecoveryCase
from duramen.log.write.appender import SYNC_STEP_BYTES
from duramen.log.write.hidden_rows import new_attempt
from duramen.log.write.transaction import TransactionPart, commit_batch
from duramen.log.write.writable_log import WritableLog
from duramen.sidecar import tx_ledger
from duramen.sidecar.tx_ledger import JOBS_LEDGER, BatchKey
from duramen.sidecar.tx_marker import read_tx_marker
from duramen.testing import Fault, FaultyDisk
from duramen.testing.simulated_disk import SimulatedDisk
from tests.torture.mortal import KilledError, MortalDisk

OPTIONS: dict[str, dict[str, Any]] = {
    "keratin": {"segment_max_bytes": 2500},
    "durable-log": {"segment_max_bytes": 2500},
    "rustlog": {"segment_max_bytes": 2500},
    "osiris": {"segment_max_bytes": 2500},
    "fixed-slot": {"record_size": 40},
}
FORMATS = pytest.mark.parametrize("format", OPTIONS)


def values(start: int, stop: int) -> list[bytes]:
    return [b"%040d" % number for number in range(start, stop)]


def part(rows: list[bytes], path: str = "", *, replaces: bool = False, **options: Any) -> TransactionPart:
    return TransactionPart(path, lambda: [rows[: len(rows) // 2], rows[len(rows) // 2 :]], options, replaces)


def found(path: Path | str, disk: Any = None) -> list[bytes]:
    with duramen.Log(str(path), disk=disk) as log:
        return [record.value for record in log]


# --- one log


@FORMATS
def test_append_once(tmp_path: Path, format: str) -> None:
    path = tmp_path / "log"
    with duramen.open(path, "a", format=format, **OPTIONS[format]) as log, duramen.open(path) as reader:
        log.append_batch(values(0, 10))
        assert log.append_once([values(10, 90), values(90, 200)], writer="q", batch=0) == (10, 190)
        assert log.append_once([values(10, 90), values(90, 200)], writer="q", batch=0) is None
        assert log.append_once([values(200, 210)], writer="other", batch=0) == (200, 10)
        assert log.append_once([values(210, 220)], writer="q", batch=7) == (210, 10)
        assert log.append_once([values(0, 1)], writer="q", batch=6) is None
        assert log.append_once([], writer="q", batch=8) == (220, 0)
        log.append(values(220, 221)[0])
        assert (log.next_offset, log.durable_offset) == (221, 221)
        reader.refresh()
        assert [record.value for record in reader] == values(0, 221)
    assert found(path) == values(0, 221)
    assert duramen.verify(path).ok
    with duramen.open(path, "a") as log:
        assert log.append_once([values(0, 1)], writer="q", batch=8) is None


@FORMATS
def test_no_reader_sees_a_part(tmp_path: Path, format: str) -> None:
    """A reader looks in the middle of the transaction; so does the log that is being written."""
    path = tmp_path / "log"
    seen = []

    def batches(log: WritableLog, reader: duramen.Log) -> Any:
        for start in range(10, 210, 50):
            yield values(start, start + 50)
            reader.refresh()
            seen.append((reader.next_offset, log.next_offset, len(list(duramen.open(path)))))

    with duramen.open(path, "a", format=format, **OPTIONS[format]) as log, duramen.open(path) as reader:
        log.append_batch(values(0, 10))
        parts = [TransactionPart("", lambda: batches(log, reader))]
        # the same steps as commit_batch, on a log that is open already
        from duramen.log.write.transaction import _Appending

        work = _Appending(log, BatchKey("q", 0, "a"), ".duramen/ledger/x.json")
        tx_ledger.prepare_ledger(PosixDisk(), str(path))
        work.store(parts[0].batches())
        assert set(seen) == {(10, 10, 10)}
        work.finish()
        reader.refresh()
        assert reader.next_offset == log.next_offset == 210


def test_other_threads_wait(tmp_path: Path) -> None:
    with duramen.open(tmp_path / "log", "a") as log:
        threads = [
            threading.Thread(target=lambda n=n: log.append_once([[b"t%d" % n] * 50] * 4, writer=f"w{n}", batch=0))  # type: ignore[misc]
            for n in range(4)
        ] + [threading.Thread(target=lambda: [log.append(b"x") for _ in range(50)])]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        rows = [record.value for record in log]
    assert len(rows) == 850
    for number in range(4):
        places = [place for place, row in enumerate(rows) if row == b"t%d" % number]
        assert places == list(range(places[0], places[0] + 200))  # together, and nothing between


@FORMATS
def test_replacing(tmp_path: Path, format: str) -> None:
    path = str(tmp_path / "log")
    options = {"format": format, **OPTIONS[format]}
    commit_batch(path, BatchKey("q", 0, "a"), [part(values(0, 300), **options)])
    commit_batch(path, BatchKey(JOBS_LEDGER, None, "b"), [part(values(7, 50), replaces=True, **options)])
    assert found(path) == values(7, 50)
    assert duramen.verify(path).ok
    # what the ledger knew, it still knows
    assert commit_batch(path, BatchKey("q", 0, "c"), [part(values(0, 300), **options)]).is_duplicate
    commit_batch(path, BatchKey("q", 1, "d"), [part(values(50, 60), **options)])
    assert found(path) == values(7, 60)


@pytest.mark.parametrize("format", ["keratin", "fixed-slot"])
def test_a_reader_of_a_log_that_is_replaced_by_one_of_the_same_size(tmp_path: Path, format: str) -> None:
    """It went on in the old files that it had mapped, and in the new ones where it had not."""
    options = {"format": format, **({"record_size": 4} if format == "fixed-slot" else {"segment_max_bytes": 150})}

    def put(*values: bytes) -> None:
        part = TransactionPart("", lambda: [[value] for value in values], options, replaces=True)
        commit_batch(str(tmp_path / "log"), BatchKey(JOBS_LEDGER, None, new_attempt()), [part])

    put(b"old1", b"old2", b"old3", b"old4", b"old5")
    reader, idle = duramen.open(tmp_path / "log"), duramen.open(tmp_path / "log")
    scanned, followed = reader.scan(), reader.scan(follow=True)
    assert next(scanned).value == b"old1"
    assert [next(followed).value for _ in range(5)][4] == b"old5"
    put(b"new1", b"new2", b"new3", b"new4", b"new5")
    with pytest.raises(StorageError, match="another log has replaced this one"):
        next(followed)
    with pytest.raises(StorageError, match="another log has replaced this one"):
        list(idle.scan())
    for log in (reader, idle):
        log.refresh()
        assert [record.value for record in log.scan()] == [b"new1", b"new2", b"new3", b"new4", b"new5"]


def test_replacing_a_damaged_log_by_another_format(tmp_path: Path) -> None:
    path = tmp_path / "log"
    commit_batch(str(path), BatchKey("q", 0, "a"), [part(values(0, 100), format="rustlog", segment_max_bytes=1000)])
    segment = sorted(path.glob("*.log"))[1]
    segment.write_bytes(segment.read_bytes()[:100])
    with pytest.raises(CorruptionError):
        duramen.open(path, "a")
    commit_batch(str(path), BatchKey(JOBS_LEDGER, None, "b"), [part(values(0, 5), replaces=True, format="osiris")])
    assert found(path) == values(0, 5)
    assert not list(path.glob("*.log"))


# --- several logs


def test_several_logs_share_one_entry(tmp_path: Path) -> None:
    root = str(tmp_path)
    parts = [part(values(0, 10), "a", format="keratin"), part(values(10, 30), "b/c", format="osiris")]
    done = commit_batch(root, BatchKey("q", 0, "x"), parts)
    assert done.entry.rows == 30
    assert done.entry.offsets == {"a": (0, 10), "b/c": (0, 20)}
    assert commit_batch(root, BatchKey("q", 0, "y"), parts).is_duplicate
    assert found(tmp_path / "a") == values(0, 10)
    assert found(tmp_path / "b/c") == values(10, 30)
    assert not (tmp_path / ".duramen/transaction.json").exists()


def test_a_batch_that_is_sent_again_to_other_logs(tmp_path: Path) -> None:
    """The first try died after it had prepared ``a``; the second is about ``b`` alone. Its entry must not bring the
    rows in ``a`` to life."""
    disk = SimulatedDisk()
    crashed = []
    disk.on_operation = lambda _number, operation: crashed.append((operation, disk.clone()))
    parts = [part(values(0, 10), "a", format="keratin"), part(values(0, 10), "b", format="keratin")]
    commit_batch("/root", BatchKey("q", 0, "x"), parts, disk=disk)
    middle = next(clone for operation, clone in crashed if "/root/.duramen/ledger/" in operation)
    assert read_tx_marker(middle, "/root/a") is not None
    commit_batch("/root", BatchKey("q", 0, "y"), [part(values(5, 9), "b", format="keratin")], disk=middle)
    commit_batch("/root", BatchKey("q", 1, "z"), [part(values(9, 11), "b", format="keratin")], disk=middle)
    assert found("/root/a", middle) == []
    assert found("/root/b", middle) == values(5, 11)


def test_one_part_that_fails_takes_back_all(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    commit_batch(str(tmp_path), BatchKey("q", 0, "a"), [part(values(0, 3), "a", format="rustlog")])
    keyed = pa.table({"value": [b"v"], "key": [b"k"]})
    parts = [part(values(3, 6), "a"), TransactionPart("b", lambda: [keyed], {"format": "rustlog"})]
    with pytest.raises(UnsupportedFieldError):
        commit_batch(str(tmp_path), BatchKey("q", 1, "b"), parts)
    assert found(tmp_path / "a") == values(0, 3)
    assert not (tmp_path / "a/.duramen/pending.json").exists()
    commit_batch(str(tmp_path), BatchKey("q", 1, "c"), [part(values(3, 6), "a")])
    assert found(tmp_path / "a") == values(0, 6)


# --- errors


@FORMATS
def test_every_call_fails_once(format: str) -> None:
    """Whatever fails, a later try leaves exactly one copy, and nobody sees a part in between."""
    options = {"format": format, **OPTIONS[format]}
    calls = 0
    number = 0
    while number <= calls:
        under = SimulatedDisk()
        commit_batch("/log", BatchKey("q", 0, "a"), [part(values(0, 4), **options)], disk=under)
        disk = FaultyDisk(under, [Fault(call=number, error=5)] if number else [])
        again = [part(values(4, 80), **options)]
        try:
            commit_batch("/log", BatchKey("q", 1, "b"), again, disk=disk)
        except (StorageError, PoisonedError, CorruptionError):
            assert number
        calls = calls or disk.calls
        assert found("/log", under) in (values(0, 4), values(0, 80)), number
        commit_batch("/log", BatchKey("q", 1, "c"), again, disk=under)
        assert found("/log", under) == values(0, 80), number
        number += 1 if number < 10 else 3
    assert calls > 30


@FORMATS
def test_a_process_is_killed_at_any_call(format: str) -> None:
    """All rows or none; the next writer finishes what was committed, and a repetition stores nothing twice."""
    options = {"format": format, **OPTIONS[format]}
    outcomes = []
    for lives in count(1):
        under = SimulatedDisk()
        commit_batch("/log", BatchKey("q", 0, "a"), [part(values(0, 4), **options)], disk=under)
        disk = MortalDisk(under)
        disk.die_after(lives)
        rows = [part(values(4, 24), **options)]
        try:
            commit_batch("/log", BatchKey("q", 1, "b"), rows, disk=disk)
            break
        except KilledError:
            WritableLog("/log", disk=under).close()
        seen = found("/log", under)
        outcomes.append(len(seen))
        assert seen in (values(0, 4), values(0, 24)), lives
        commit_batch("/log", BatchKey("q", 1, "c"), rows, disk=under)
        assert found("/log", under) == values(0, 24), lives
    assert outcomes == sorted(outcomes), "committed once, it stays committed"
    assert {4, 24} == {*outcomes}


def test_an_open_log_is_poisoned_by_a_failed_transaction(tmp_path: Path) -> None:
    times = [pa.array([time], pa.timestamp("us", "UTC")) for time in (2_000_000_000_000_000, 5)]
    data = [pa.table({"value": [b"v"], "timestamp": time}) for time in times]
    with duramen.open(tmp_path / "log", "a", format="rustlog") as log:
        log.append(b"first")
        with pytest.raises(UsageError, match="goes back"):
            log.append_once(data, writer="q", batch=0)
        with pytest.raises(PoisonedError):
            log.append(b"later")
        assert [record.value for record in log] == [b"first"]
    assert found(tmp_path / "log") == [b"first"]
    with duramen.open(tmp_path / "log", "a") as log:
        assert log.recovery[0].case == RecoveryCase.UNCOMMITTED
        assert "batch 0 of q" in str(log.recovery[0])
        log.append(b"second")
    assert found(tmp_path / "log") == [b"first", b"second"]


def test_what_cannot_be_carried_is_refused_before_anything(tmp_path: Path) -> None:
    with duramen.open(tmp_path / "log", "a", format="rustlog") as log:
        with pytest.raises(UnsupportedFieldError):
            log.append_once([[b"v"], pa.table({"value": [b"v"], "key": [b"k"]})], writer="q", batch=0)
        log.append(b"fine")
    assert found(tmp_path / "log") == [b"fine"]


@pytest.mark.parametrize(
    "key",
    [
        BatchKey("", 0, "a"),
        BatchKey("q", -1, "a"),
        BatchKey("q", None, "a"),
        BatchKey(JOBS_LEDGER, 3, "a"),
        BatchKey("x" * 2000, 0, "a"),
    ],
)
def test_keys_that_make_no_sense(tmp_path: Path, key: BatchKey) -> None:
    with pytest.raises(UsageError):
        commit_batch(str(tmp_path / "log"), key, [part(values(0, 1))])


def test_a_log_that_another_holds(tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    with duramen.open(path, "a"), pytest.raises(LockedError, match=r"within \d+ s"):
        commit_batch(path, BatchKey("q", 0, "a"), [part(values(0, 1))], lock_timeout_s=0.05)
    assert not commit_batch(path, BatchKey("q", 0, "a"), [part(values(0, 1))]).is_duplicate


# --- the ledger


def test_no_writer_leaves_the_directory(tmp_path: Path) -> None:
    path = tmp_path / "log"
    names = ["../../up", "/etc/passwd", "a/b", "\0", ".", "ü", "x" * 1000, "\udcff"]
    for name in names:
        assert not commit_batch(str(path), BatchKey(name, 0, "a"), [part(values(0, 1))]).is_duplicate
        assert commit_batch(str(path), BatchKey(name, 0, "b"), [part(values(0, 1))]).is_duplicate
    files = list((path / ".duramen/ledger").iterdir())
    assert len(files) == len(names)
    assert all(len(file.name) == 37 for file in files)


def test_jobs_do_not_make_the_ledger_grow(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for number in range(5):
        commit_batch(str(path), BatchKey(JOBS_LEDGER, None, f"job {number}"), [part(values(number, number + 1))])
    assert len(list((path / ".duramen/ledger").iterdir())) == 1
    assert found(path) == values(0, 5)


def _unfinished(path: str) -> SimulatedDisk:
    """A disk with a transaction that is prepared and not committed."""
    disk = SimulatedDisk()
    commit_batch(path, BatchKey("q", 0, "a"), [part(values(0, 4))], disk=disk)
    clones = []
    disk.on_operation = lambda _number, operation: clones.append((operation, disk.clone()))
    commit_batch(path, BatchKey("q", 1, "b"), [part(values(4, 8))], disk=disk)
    return next(clone for operation, clone in clones if "ledger" in operation)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"duramen": 9}', b"\xff"])
def test_a_ledger_that_cannot_be_read_decides_nothing(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "log"
    commit_batch(str(path), BatchKey("q", 0, "a"), [part(values(0, 4))])
    Path(tx_ledger.ledger_path(str(path), "q")).write_bytes(content)
    with pytest.raises(CorruptionError, match="ledger"):
        commit_batch(str(path), BatchKey("q", 0, "b"), [part(values(0, 4))])
    assert found(path) == values(0, 4)


def test_a_missing_ledger_decides_nothing() -> None:
    disk = _unfinished("/log")
    for name in [name for name in disk.tree() if "/ledger/" in name and not name.endswith("/")]:
        disk.remove(name)
    disk.remove_directory("/log/.duramen/ledger")
    for attempt in (lambda: WritableLog("/log", disk=disk), lambda: duramen.Log("/log", disk=disk)):
        with pytest.raises(CorruptionError, match="is missing"):
            attempt()
    disk.remove("/log/.duramen/pending.json")
    assert found("/log", disk) == values(0, 8)


def test_an_unfinished_transaction_is_not_seen_and_taken_back() -> None:
    disk = _unfinished("/log")
    assert found("/log", disk) == values(0, 4)
    with WritableLog("/log", disk=disk) as log:
        assert log.recovery[0].case == RecoveryCase.UNCOMMITTED
        assert log.next_offset == 4
    assert read_tx_marker(disk, "/log") is None
    assert found("/log", disk) == values(0, 4)


@pytest.mark.parametrize("content", [b"", b"{}", b'{"duramen": 7}', b"nonsense"])
def test_a_marker_that_cannot_be_read(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "log"
    commit_batch(str(path), BatchKey("q", 0, "a"), [part(values(0, 4))])
    (path / ".duramen/pending.json").write_bytes(content)
    for mode in ("r", "a"):
        with pytest.raises(CorruptionError, match="marker"):
            duramen.open(path, mode)  # type: ignore[call-overload]
    (path / ".duramen/pending.json").unlink()
    assert found(path) == values(0, 4)


def test_the_entry_says_what_and_when(tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    entry = commit_batch(path, BatchKey("q", 5, "a"), [part(values(0, 4))]).entry
    assert (entry.batch, entry.rows, entry.offsets) == (5, 4, {"": (0, 4)})
    assert tx_ledger.last_batch(PosixDisk(), path, "q") == entry
    tree = json.loads(Path(tx_ledger.ledger_path(path, "q")).read_text())
    assert tree["writer"] == "q"


def test_logs_of_a_transaction_are_written_at_the_same_time(tmp_path: Path) -> None:
    """Each waits for the others inside its rows: one after the other, the first would wait for ever."""
    logs = ["a", "b"]
    together = threading.Barrier(len(logs), timeout=30)

    def rows(name: str) -> Iterator[list[bytes]]:
        together.wait()
        yield [name.encode()] * 3

    if (os.cpu_count() or 1) < len(logs):
        pytest.skip("one processor writes one log after the other")
    parts = [TransactionPart(name, partial(rows, name), {"format": "keratin"}) for name in logs]
    entry = commit_batch(str(tmp_path), BatchKey("q", 0, "a"), parts).entry
    assert entry.offsets == {"a": (0, 3), "b": (0, 3)}
    for name in logs:
        with duramen.open(tmp_path / name) as log:
            assert [record.value for record in log] == [name.encode()] * 3


def test_the_device_writes_while_a_transaction_appends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[tuple[int, int]] = []
    monkeypatch.setattr(PosixFile, "begin_sync", lambda _, position, size_bytes: begun.append((position, size_bytes)))
    value = bytes(1 << 20)
    rows = pa.RecordBatch.from_pydict({"value": [value] * 20})
    part = TransactionPart("", lambda: [rows], {"format": "durable-log"})
    commit_batch(str(tmp_path / "log"), BatchKey("query q", 0, new_attempt()), [part])
    written = 0
    for position, size_bytes in begun:
        assert position <= written, "no byte is left out"
        assert size_bytes >= SYNC_STEP_BYTES
        written = position + size_bytes
    assert written > 2 * SYNC_STEP_BYTES
    with duramen.open(tmp_path / "log") as log:
        assert [record.value for record in log] == [value] * 20
