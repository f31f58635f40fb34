"""Bad input, places that refuse, a second writer: a clear error each, and the log is as it was."""

from __future__ import annotations

import errno
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import duramen
from duramen.disk import PosixDisk
from duramen.formats import make
from duramen.record import HEADERS
from duramen.testing import Fault, FaultyDisk
from tests.log.conftest import options, value
from tests.log.writing import ORDERED, START_MS, Open, codes, content, snapshot, values

# --- bad input: a clear error, and the log is as it was


def twice(name: str) -> pa.Table:
    """A table in which a column is there twice."""
    return pa.Table.from_arrays([pa.array([value(9)])] * 3, names=["value", "key", name])


def wrong(name: str) -> dict[str, tuple[str, Callable[[duramen.WritableLog], Any]]]:
    """For one format: what to call, and what the error says."""
    capabilities = make(name, **options(name)).capabilities
    v = value(9)
    cases: dict[str, tuple[str, Callable[[duramen.WritableLog], Any]]] = {
        "invalid text": ("value: ", lambda log: log.append("\udc80")),
        "number": ("bytes, text or None, not int", lambda log: log.append(5)),
        "batch of bytes": ("not bytes", lambda log: log.append_batch(b"abc")),
        "batch of text": ("not str", lambda log: log.append_batch("abc")),
        "batch of nothing": ("not NoneType", lambda log: log.append_batch(None)),
        "batch as a dict": ("not dict", lambda log: log.append_batch({"value": [v]})),
        "numbers": ("value: ", lambda log: log.append_batch([1, 2])),
        "two value columns": ("the column 'value' is given twice", lambda log: log.append_batch(twice("value"))),
        "two keys": ("the column 'key' is given twice", lambda log: log.append_batch(twice("key"))),
        "no value column": ("the column 'value' is missing", lambda log: log.append_batch(pa.table({"key": [v]}))),
        "unknown column": ("'colour'", lambda log: log.append_batch(pa.table({"value": [v], "colour": ["red"]}))),
        "value of another type": ("'value'", lambda log: log.append_batch(pa.table({"value": [1.5]}))),
        "quorum": ("'quorum' is reserved", lambda log: log.append(v, durability="quorum")),
        "quorum for nothing": ("'quorum' is reserved", lambda log: log.append_batch([], durability="quorum")),
        "unknown durability": ("got 'maybe'", lambda log: log.append(v, durability="maybe")),
    }
    if not capabilities.null_values:
        cases["none"] = (f"{name} cannot store a null value", lambda log: log.append(None))
        cases["a null in a list"] = ("null", lambda log: log.append_batch([v, None]))
        cases["a null in an array"] = ("null", lambda log: log.append_batch(pa.array([v, None])))
    if not capabilities.key:
        cases["key"] = (f"{name} cannot store the field 'key'", lambda log: log.append(v, key=b"k"))
        table = pa.table({"value": [v, v], "key": [None, b"k"]})
        cases["keys"] = (f"{name} cannot store the field 'key'", lambda log: log.append_batch(table))
    else:
        cases["key of another type"] = ("key: ", lambda log: log.append(v, key=5))
    if not capabilities.headers:
        cases["headers"] = (
            f"{name} cannot store the field 'headers'",
            lambda log: log.append(v, headers=[("h", v)]),
        )
    else:
        cases["headers as a dict"] = ("headers", lambda log: log.append(v, headers={"h": b"v"}))
        cases["headers as text"] = ("headers", lambda log: log.append(v, headers=["ab"]))
        cases["a header without a value"] = ("headers", lambda log: log.append(v, headers=[("a",)]))
        cases["a header without a name"] = ("headers", lambda log: log.append(v, headers=[(None, b"v")]))
        cases["headers as a number"] = ("headers", lambda log: log.append(v, headers=5))
        cases["a header that is not Unicode"] = ("headers", lambda log: log.append(v, headers=[("\ud800", v)]))
        none = pa.table({"value": [v], "headers": pa.array([[None]], HEADERS.type)})
        cases["a header that is null"] = ("headers.*null", lambda log: log.append_batch(none))
        names = pa.array([b"\xff"]).view(pa.string())
        raw = pa.ListArray.from_arrays([0, 1], pa.StructArray.from_arrays([names, pa.array([v])], ["key", "value"]))
        foreign = pa.table({"value": [v], "headers": raw})
        cases["a header whose name is no text"] = ("headers.*UTF8", lambda log: log.append_batch(foreign))
        cases["a header of numbers"] = ("headers", lambda log: log.append(v, headers=[("a", 5)]))
    when = START_MS + 10_000_000
    if not capabilities.timestamps:
        cases["time"] = (f"{name} cannot store the field 'timestamp'", lambda log: log.append(v, timestamp=when))
    else:
        cases["no time"] = ("not a time", lambda log: log.append(v, timestamp="yesterday"))
        cases["a fraction as time"] = ("not a time", lambda log: log.append(v, timestamp=1.5))
        cases["a list as time"] = ("not a time", lambda log: log.append(v, timestamp=[1]))
        cases["a time out of range"] = ("out of range", lambda log: log.append(v, timestamp=2**62))
        cases["numbers as times"] = (
            "'timestamp'", lambda log: log.append_batch(pa.table({"value": [v], "timestamp": [when]})),
        )  # fmt: skip
    if capabilities.ordered_timestamps:
        cases["a time that goes back"] = ("goes back", lambda log: log.append(v, timestamp=START_MS - 1))
        back = pa.table({"value": [v, v], "timestamp": pa.array([when, when - 1], pa.timestamp("ms"))})
        cases["times that go back"] = ("goes back", lambda log: log.append_batch(back))
        old = pa.table({"value": [v, v], "timestamp": pa.array([None, START_MS + 99], pa.timestamp("ms"))})
        cases["why a time goes back"] = ("from 20.* to 20", lambda log: log.append_batch(old))
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
        ({"durability": "never"}, "got 'never'"),
        ({"on_damage": "ignore"}, "on_damage must be 'raise' or 'truncate'"),
        ({"max_batch_bytes": 0}, "max_batch_bytes must be at least 1"),
        ({"max_batch_records": -1}, "max_batch_records must be at least 1"),
        ({"queue_bytes": 0}, "queue_bytes must be at least 1"),
        ({"linger_ms": -1}, "linger_ms must be 0 to"),
    ],
)
def test_unknown_options_make_no_log(root: Path, format_name: str, more: dict[str, Any], message: str) -> None:
    with pytest.raises(duramen.UsageError, match=message):
        duramen.open(root, "a", format=format_name, **options(format_name), **more)
    assert not root.exists()


@pytest.mark.parametrize(
    ("name", "more", "message"),
    [
        ("keratin", {"segment_max_bytes": 0}, "segment_max_bytes must be at least 1"),
        ("durable-log", {"segment_max_bytes": "many"}, "segment_max_bytes must be of type int"),
        ("osiris", {"compression": "rot13"}, "rot13"),
        ("osiris", {"chunk_version": 2}, "chunk_version must be 0 to 1"),
        ("rustlog", {"header_bytes": 16}, "header_bytes must be 12 or 20"),
        ("fixed-slot", {}, "needs its record_size"),
        ("fixed-slot", {"record_size": 0}, "record_size must be 1 to"),
        ("fixed-slot", {"record_size": 8, "segment_max_bytes": 100}, "has no option segment_max_bytes"),
        ("kafka", {"compression": "brotli"}, "compression must be one of none, gzip, snappy, lz4, zstd"),
        ("kafka", {"topic_id": "orders"}, "topic_id must be the 22 characters of a Kafka UUID"),
    ],
)
def test_wrong_options_make_no_log(root: Path, name: str, more: dict[str, Any], message: str) -> None:
    with pytest.raises(duramen.UsageError, match=message):
        duramen.open(root, "a", format=name, **more)
    assert not root.exists()


def test_a_mode_that_is_not_known(root: Path) -> None:
    with pytest.raises(duramen.UsageError, match="mode must be 'r' or 'a'"):
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


@pytest.mark.unprivileged
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


@pytest.mark.parametrize(("fault", "text"), [("ENOSPC", "no space left"), ("EIO", "input/output error")])
def test_an_index_that_cannot_be_written(root: Path, fault: str, text: str, caplog: pytest.LogCaptureFixture) -> None:
    """The record is in the segment by then: its append is acknowledged, and the index waits. The log says so once."""
    disk = FaultyDisk(PosixDisk(), f"write#2+ *.idx: {fault}")
    log = duramen.open(root, "a", format="durable-log", disk=disk)
    log.append(b"small")
    for _ in range(2):
        log.append_batch([b"large" * 1_000_000], durability="write")
    assert log.append(b"next") == 3
    (said,) = [record for record in caplog.records if "index" in record.getMessage()]
    assert said.levelname == "WARNING"
    assert text in said.getMessage()
    with pytest.raises(duramen.StorageError, match=rf"\.idx.*{text}"):
        log.close()
    with duramen.open(root, "a") as again:
        assert again.append(b"last") == 4
        assert [len(record.value or b"") for record in again.scan()] == [5, 5_000_000, 5_000_000, 4, 4]
    assert codes(root) == []


def test_a_failed_write_leaves_nothing_after_the_records(root: Path, format_name: str) -> None:
    """Other programs read the file without the watermark: a part of a refused batch must not follow the records."""
    disk = FaultyDisk(PosixDisk())
    with duramen.open(root, "a", format=format_name, **options(format_name), disk=disk) as log:
        log.append(value(0))
        segment = Path(log.segments[-1].path)
        held = segment.read_bytes()
        disk.faults = (
            Fault("write", path=str(segment), call=1, short=True),
            Fault("write", path=str(segment), call=2, error=errno.ENOSPC),
        )
        disk._matched = [0, 0]
        with pytest.raises(duramen.StorageError, match="no space left"):
            log.append_batch(values(1, 40), durability="write")
        assert len(disk.fired) == 2
        assert segment.read_bytes() == held
        assert log.append(value(1)) == 1
    assert content(root) == values(0, 2)
    shutil.rmtree(root / ".duramen")
    assert content(root, **options(format_name)) == values(0, 2)


# --- one writer


def test_a_second_writer_in_the_same_process(create: Open, root: Path, format_name: str) -> None:
    with create(format_name) as log:
        log.append(value(0))
        before = snapshot(root)
        with pytest.raises(duramen.LockedError, match="already open for writing in this process"):
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
