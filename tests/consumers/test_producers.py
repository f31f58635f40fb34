"""Producers: what is repeated is confirmed and not stored, over threads, crashes, failures and other programs."""

from __future__ import annotations

import errno
import json
import random
import shutil
import struct
import threading
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import duramen
from duramen import CorruptionError, PoisonedError, StorageError, UsageError
from duramen.consumers.log import ConsumableWritableLog
from duramen.consumers.producers import Confirmed
from duramen.errors import DuramenError, UnknownVersionError
from duramen.formats import Role, make
from duramen.formats.osiris.chunk import ChunkType, parse_chunk
from duramen.formats.osiris.tracking import TrackingBlock, TrackingKind
from duramen.kernel import crc32c
from duramen.log import GroupBatch, Request, SequenceClaim, batch_of
from duramen.log.write import producer_state
from duramen.testing.crash import CrashPattern
from duramen.testing.faulty_disk import Fault, FaultyDisk
from duramen.testing.simulated_disk import SimulatedDisk
from tests.consumers.logs import FORMATS, options, value
from tests.sampling import every, examples
from tests.torture.producers import ProducerExplorer

FAILURES = 6
"""How many calls of each kind fail; a run with 1000 takes minutes."""
OSIRIS = Path(__file__).parent.parent / "data" / "osiris"


@pytest.fixture(params=FORMATS)
def format_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def open_log(root: Path | str, format_name: str = "keratin", **more: Any) -> ConsumableWritableLog:
    log = duramen.open(root, "a", format=format_name, **options(format_name), **more)
    assert isinstance(log, ConsumableWritableLog)
    return log


def values(log: Any) -> list[bytes]:
    return [record.value for record in log.scan()]


# --- what a producer does


def test_a_repeat_is_confirmed_and_not_stored(tmp_path: Path, format_name: str) -> None:
    with open_log(tmp_path / "log", format_name) as log:
        producer = log.producer("till 4")
        assert producer.last_sequence is None
        assert producer.append(value(1), sequence=7) == Confirmed(7, 0, 1, 0)
        again = producer.append(value(1), sequence=7)
        assert again == Confirmed(7, None, 0, 1)
        assert again.is_duplicate
        assert producer.append(value(2), sequence=3).is_duplicate, "what is below the last one is there, too"
        assert producer.append(value(3), sequence=100).base_offset == 1, "gaps are fine"
        log.append(value(4))
    with open_log(tmp_path / "log", format_name) as log:
        producer = log.producer("till 4")
        assert producer.last_sequence == 100
        assert producer.append(value(3), sequence=100).is_duplicate
        assert producer.append(value(5)) == Confirmed(101, 3, 1, 0), "without a sequence it gets the next one"
        assert log.producer("till 5").append(value(6), sequence=1).stored == 1, "another one is another one"
        assert values(log) == [value(n) for n in (1, 3, 4, 5, 6)]
    assert duramen.verify(tmp_path / "log").findings == []


def test_batches_are_stored_as_far_as_they_are_new(tmp_path: Path, format_name: str) -> None:
    with open_log(tmp_path / "log", format_name) as log:
        producer = log.producer("p")
        assert producer.append_batch([value(n) for n in range(5)], sequence=10) == Confirmed(14, 0, 5, 0)
        assert producer.append_batch([value(n) for n in range(5)], sequence=10).is_duplicate
        arrow = pa.table({"value": [value(n) for n in range(3, 8)]})
        assert producer.append_batch(arrow, sequence=13) == Confirmed(17, 5, 3, 2)
        assert producer.append_batch([value(8)]) == Confirmed(18, 8, 1, 0)
        assert values(log) == [value(n) for n in range(9)]


def test_the_first_sequence_of_its_own_is_1(tmp_path: Path) -> None:
    with open_log(tmp_path / "log") as log:
        assert log.producer("p").append(b"a").sequence == 1
        assert log.producer("p").append(b"b").sequence == 2
        assert log.producer("zero").append(b"c", sequence=0).stored == 1
        assert log.producer("zero").append(b"c", sequence=0).is_duplicate
        assert log.producer("zero").append(b"d").sequence == 1


def test_keys_headers_and_times_come_along(tmp_path: Path) -> None:
    with open_log(tmp_path / "log") as log:
        log.producer("p").append(b"v", sequence=1, key=b"k", headers=[("h", b"1")], timestamp="2030-01-01")
        record = log.read(0)
        assert (record.key, record.headers) == (b"k", [("h", b"1")])
        with pytest.raises(UsageError, match="goes back"):
            log.producer("p").append(b"v", sequence=2, timestamp="2020-01-01")
        assert log.producer("p").last_sequence == 1
        assert log.producer("p").append(b"v", sequence=2).stored == 1, "what was refused is not there"


@pytest.mark.parametrize("name", ["", "x" * 256, "é" * 128, "\ud800", None, b"p", 3])
def test_names_have_1_to_255_bytes(tmp_path: Path, name: Any) -> None:
    with open_log(tmp_path / "log") as log:
        with pytest.raises(UsageError, match="the name of a producer"):
            log.producer(name)
        for good in ("x" * 255, "../../etc/passwd", "a\0b\n", "béta"):
            log.producer(good).append(b"v", sequence=1)
        assert {state.name for state in log.producers()} == {"x" * 255, "../../etc/passwd", "a\0b\n", "béta"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log"]


@pytest.mark.parametrize("sequence", [-1, 2**64, 2**70])
def test_sequences_are_64_bits(tmp_path: Path, sequence: int) -> None:
    with open_log(tmp_path / "log") as log:
        producer = log.producer("p")
        with pytest.raises(UsageError, match="sequence"):
            producer.append(b"v", sequence=sequence)
        with pytest.raises(UsageError, match="whole number"):
            producer.append(b"v", sequence="1")  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="at least one record"):
            producer.append_batch([], sequence=1)
        assert producer.append(b"v", sequence=2**64 - 1).stored == 1
        with pytest.raises(UsageError, match="64 bits"):
            producer.append(b"v")
        assert values(log) == [b"v"]


def test_a_reader_sees_the_producers(tmp_path: Path, format_name: str) -> None:
    with open_log(tmp_path / "log", format_name) as log:
        log.producer("b").append_batch([value(n) for n in range(3)], sequence=5)
        log.producer("a").append(value(3), sequence=1)
        live = duramen.open(tmp_path / "log").producers()  # type: ignore[attr-defined]
        assert [(state.name, state.sequence) for state in live] == [("a", 1), ("b", 7)]
    with duramen.open(tmp_path / "log") as reader:
        assert [(state.name, state.sequence) for state in reader.producers()] == [("a", 1), ("b", 7)]
        assert not hasattr(reader, "producer")


def test_info_shows_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from duramen.cli.main import main

    with open_log(tmp_path / "log") as log:
        log.producer("till 4").append_batch([b"a", b"b"], sequence=1000)
    assert main(["info", str(tmp_path / "log")]) == 0
    assert "till 4  last sequence 1,001" in capsys.readouterr().out
    assert main(["info", str(tmp_path / "log"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["producers"] == {"till 4": 1001}


def test_many_threads_retry_and_nothing_is_stored_twice(tmp_path: Path, format_name: str) -> None:
    """Each message is sent by several threads, over and over, in the order of its sequence."""
    log = open_log(tmp_path / "log", format_name, linger_ms=0.5)
    names, count = ["p", "q", "r"], 30

    def send(seed: int) -> None:
        dice = random.Random(seed)
        producer = log.producer(names[seed % 3])
        sequence = 1
        while sequence <= count:
            size = dice.randint(1, 4)
            batch = [f"{producer.name}{n:04}".encode().ljust(16, b".") for n in range(sequence, sequence + size)]
            producer.append_batch(batch, sequence=sequence, durability=dice.choice(["write", "fsync"]))
            sequence += dice.randint(1, size)

    threads = [threading.Thread(target=send, args=(seed,)) for seed in range(9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = Counter(values(log))
    assert set(found.values()) == {1}
    for name in names:
        own = [v for v in values(log) if v.startswith(name.encode())]
        assert own == sorted(own)
        assert len(own) >= count
    log.close()


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["send", "auto", "plain", "reopen", "kill", "lose", "seal"]),
        st.sampled_from("pq"), st.integers(1, 12), st.integers(1, 4),
    ),
    max_size=14,
)  # fmt: skip


@given(OPERATIONS, st.sampled_from(FORMATS))
@settings(max_examples=examples(60), deadline=None)
def test_any_order_of_things_against_a_model(operations: list[tuple[str, str, int, int]], format_name: str) -> None:
    disk, stored, last = SimulatedDisk(), [], dict[str, int]()
    more = {} if format_name == "fixed-slot" else {"segment_max_bytes": 300}
    log = ConsumableWritableLog("/log", format=format_name, disk=disk, **options(format_name), **more)
    with mock.patch.object(producer_state, "ROOM_BYTES", 200):
        for kind, name, sequence, count in operations:
            if kind in ("send", "auto"):
                first = sequence if kind == "send" else last.get(name, 0) + 1
                batch = [f"{name}{n}".encode().ljust(16, b".") for n in range(first, first + count)]
                done = log.producer(name).append_batch(batch, sequence=first if kind == "send" else None)
                new = batch[max(last.get(name, -1) - first + 1, 0) :]
                assert (done.stored, done.duplicates) == (len(new), count - len(new))
                stored += new
                last[name] = max(last.get(name, -1), first + count - 1)
            elif kind == "plain":
                stored.append(value(0))
                log.append(value(0))
            elif kind == "seal" and log.codec.capabilities.segments:
                log.seal()
            elif kind in ("reopen", "kill", "lose"):
                if kind == "reopen":
                    log.close()
                disk = disk.crash(CrashPattern("lost", "lost")) if kind == "lose" else disk.clone()
                log = ConsumableWritableLog("/log", disk=disk)
            for known in "pq":
                assert log.producer(known).last_sequence == last.get(known)
        assert values(log) == stored


# --- the file


def path_of(root: Path) -> Path:
    return root / ".duramen" / "producers"


def test_the_file_byte_by_byte(tmp_path: Path) -> None:
    with open_log(tmp_path / "log") as log:
        log.append(b"first")
        log.producer("p").append_batch([b"ab", b"c"], sequence=9)
        raw = path_of(tmp_path / "log").read_bytes()
    head = b"DURAPROD" + struct.pack("<III", 1, 0, 0)
    announced = struct.pack("<BBHIQQII", 2, 1, 0, 2, 9, 1, crc32c(b"abc"), crc32c(b"ab")) + b"p"
    expected = head + struct.pack("<I", crc32c(head)) + announced + struct.pack("<I", crc32c(announced))
    assert raw[: len(expected)] == expected
    assert not raw[len(expected) :].strip(b"\0")
    assert len(raw) >= producer_state.ROOM_BYTES
    with open_log(tmp_path / "log"):
        raw = path_of(tmp_path / "log").read_bytes()
    known = struct.pack("<BBHIQQII", 1, 1, 0, 2, 10, 2, 0, 0) + b"p"
    known += struct.pack("<I", crc32c(known))
    head = b"DURAPROD" + struct.pack("<III", 1, len(known), crc32c(known))
    assert raw.rstrip(b"\0") == (head + struct.pack("<I", crc32c(head)) + known).rstrip(b"\0")


def test_the_file_stays_small(tmp_path: Path) -> None:
    with mock.patch.object(producer_state, "ROOM_BYTES", 500), open_log(tmp_path / "log") as log:
        for n in range(100):
            log.producer(f"p{n % 3}").append(b"v", sequence=n + 1, durability="write")
            assert path_of(tmp_path / "log").stat().st_size < 800
        log.producer("x" * 255).append_batch([b"v"] * 3, sequence=1)
        assert {state.name: state.sequence for state in log.producers()} == {
            "p0": 100,
            "p1": 98,
            "p2": 99,
            "x" * 255: 3,
        }


def test_the_oldest_producers_are_forgotten(tmp_path: Path) -> None:
    patched = mock.patch.multiple(producer_state, MAX_PRODUCERS=10, ROOM_BYTES=300)
    with patched, open_log(tmp_path / "log") as log:
        for n in range(40):
            log.producer(f"p{n:02}").append(b"v", sequence=1)
        names = [state.name for state in log.producers()]
        assert 10 <= len(names) < 20
        assert names[-1] == "p39"
        assert log.producer("p00").append(b"v", sequence=1).stored == 1


@pytest.mark.parametrize("at", [0, 7, 9, 12, 16, 20, 24, 30, 50, 58])
def test_a_damaged_file_keeps_only_producers_out(tmp_path: Path, at: int) -> None:
    with open_log(tmp_path / "log") as log:
        log.producer("p").append(b"a", sequence=1)
    open_log(tmp_path / "log").close()
    raw = bytearray(path_of(tmp_path / "log").read_bytes())
    raw[at] ^= 0x10
    path_of(tmp_path / "log").write_bytes(raw)
    with open_log(tmp_path / "log") as log:
        log.append(b"b")
        with pytest.raises(CorruptionError, match="damaged") as caught:
            log.producer("p")
        assert caught.value.path == str(path_of(tmp_path / "log"))
        log.append(b"c")
    with duramen.open(tmp_path / "log") as reader, pytest.raises(CorruptionError):
        reader.producers()
    path_of(tmp_path / "log").unlink()
    with open_log(tmp_path / "log") as log:
        assert log.producer("p").last_sequence is None


@pytest.mark.parametrize("late", [0, 1])
def test_a_repeat_of_a_refused_append_in_its_group_is_refused(tmp_path: Path, late: int) -> None:
    """Its first record would be confirmed as a duplicate, although no append stored it."""
    with open_log(tmp_path / "log") as log:
        log.append(b"plain", timestamp=2_000_000_000_000)
        log.producer("p").append(b"one", sequence=1)
        group = []
        for first, values, ms in ((late + 1, 1, 1), (1, 3, 2_000_000_000_001), (2, 1, 2_000_000_000_001)):
            times = pa.array([ms * 1000] * values, pa.timestamp("us", "UTC"))
            batch = batch_of(log.codec, pa.table({"value": [b"v"] * values, "timestamp": times}))
            claim = SequenceClaim(b"p", first)
            group.append(Request(GroupBatch(batch, "write", claim), batch.nbytes, batch.num_rows))
        log.commit_group(group)
        is_refused = [request.error is not None for request in group]
        if late:  # the first one has a time that goes back
            assert is_refused == [True, True, True]
            assert log.producer("p").last_sequence == 1
        else:
            assert is_refused == [False, False, False], "the first one is a repeat of what is stored"
            assert log.producer("p").last_sequence == 3
        assert log.producer("p").append_batch([b"v"] * 3, sequence=1).sequence == 3
        assert log.next_offset == 4


@pytest.mark.parametrize("format_name", ["keratin", "osiris", "kafka"])
@pytest.mark.parametrize("at", [24, 30, 50, 58, 100])
def test_a_damaged_announcement_of_stored_records_is_refused(tmp_path: Path, format_name: str, at: int) -> None:
    """Taken for the end of the file, it would hide all announcements after it, and repeats would be stored twice."""
    with open_log(tmp_path / "log", format_name) as log:
        for sequence in range(1, 5):
            log.producer("p").append(b"a", sequence=sequence)
    raw = bytearray(path_of(tmp_path / "log").read_bytes())
    raw[at] ^= 0x10
    path_of(tmp_path / "log").write_bytes(raw)
    with duramen.open(tmp_path / "log") as reader, pytest.raises(CorruptionError, match="is damaged"):
        reader.producers()
    for _ in range(2):
        with open_log(tmp_path / "log", format_name) as log:
            log.append(b"b")
            with pytest.raises(CorruptionError, match="announcement before that of the records from offset") as caught:
                log.producer("p")
            assert caught.value.path == str(path_of(tmp_path / "log"))


def test_an_unknown_version_raises(tmp_path: Path) -> None:
    with open_log(tmp_path / "log") as log:
        log.producer("p").append(b"a", sequence=1)
    raw = path_of(tmp_path / "log").read_bytes()
    head = raw[:8] + struct.pack("<I", 2) + raw[12:20]
    path_of(tmp_path / "log").write_bytes(head + struct.pack("<I", crc32c(head)) + raw[24:])
    with open_log(tmp_path / "log") as log, pytest.raises(UnknownVersionError, match="version 2"):
        log.producer("p")


@given(st.binary(max_size=120), st.booleans())
@settings(max_examples=examples(100))
def test_any_bytes_as_the_file(raw: bytes, with_head: bool) -> None:
    head = b"DURAPROD" + struct.pack("<III", 1, 0, 0)
    content = head + struct.pack("<I", crc32c(head)) + raw if with_head else raw
    try:
        parsed = producer_state._parse(content, "file")
    except CorruptionError:
        assert not with_head
    else:
        assert parsed.known == {}


# --- what was announced in vain


def test_another_program_took_the_announced_offset(tmp_path: Path) -> None:
    """The record was announced, the writer died, and RustLog's own program appended another one in its place."""
    disk = SimulatedDisk()
    log = ConsumableWritableLog("/log", format="rustlog", disk=disk)
    log.producer("p").append(b"mine-1", sequence=1)
    log.producer("p").append(b"mine-2", sequence=2)
    tree = disk.tree()
    segment = tree["/log/00000000000000000000.log"]
    for theirs, last in ((b"other2", 1), (b"mine-2", 2)):
        changed = disk.clone()
        file = changed.open("/log/00000000000000000000.log")
        file.truncate(0)
        file.write(0, segment[:-6] + theirs)
        for name in ("watermark", "log.json"):
            changed.remove(f"/log/.duramen/{name}")
        with ConsumableWritableLog("/log", disk=changed) as again:
            assert again.producer("p").last_sequence == last
            assert again.producer("p").append(b"mine-2", sequence=2).stored == 2 - last


def test_records_that_a_repair_cut_count_no_more(tmp_path: Path) -> None:
    with open_log(tmp_path / "log", "durable-log") as log:
        log.producer("p").append_batch([b"%d" % n for n in range(10)], sequence=1)
    open_log(tmp_path / "log", "durable-log").close()
    segment = tmp_path / "log" / "segment_00000000000000000000.log"
    size = segment.stat().st_size
    with segment.open("r+b") as file:
        file.truncate(size // 2)
    with pytest.raises(CorruptionError):
        open_log(tmp_path / "log", "durable-log")
    with open_log(tmp_path / "log", "durable-log", on_damage="truncate") as log:
        held = log.next_offset
        assert 0 < held < 10
        assert log.producer("p").last_sequence == held
        log.producer("p").append_batch([b"%d" % n for n in range(10)], sequence=1)
        assert values(log) == [b"%d" % n for n in range(10)]


@pytest.mark.parametrize("format_name", ["keratin", "osiris", "kafka"])
@pytest.mark.parametrize("is_late", [False, True])
def test_a_repair_that_cut_records_hides_no_gap(tmp_path: Path, format_name: str, is_late: bool) -> None:
    """A sequence below the last one less the records that were cut may never have been in the log."""
    path = tmp_path / "log"
    with open_log(path, format_name) as log:
        for n in range(1, 11):
            log.producer("p").append(b"record %02d" % n, sequence=n * 10)
        if is_late:  # these have no gap
            log.producer("p").append_batch([b"record %02d" % n for n in range(11, 15)], sequence=200)
    open_log(path, format_name).close()
    segment = next(file for file in path.rglob("*0.*") if b"record 05" in file.read_bytes())
    with segment.open("r+b") as file:
        file.truncate(segment.read_bytes().index(b"record %02d" % (13 if is_late and format_name == "keratin" else 5)))
    with open_log(path, format_name, on_damage="truncate") as log:
        held = log.next_offset
        for n in range(held + 1, 11):
            assert log.producer("p").append(b"record %02d" % n, sequence=n * 10).stored == 1
        assert log.producer("p").append_batch([b"record %02d" % n for n in range(11, 15)], sequence=200).sequence == 203
        assert values(log) == [b"record %02d" % n for n in range(1, 15)]


# --- failures


@pytest.mark.parametrize("operation", ["write", "sync", "truncate", "replace", "create", "open", "sync_directory"])
@pytest.mark.parametrize("format_name", ["keratin", "rustlog", "osiris", "kafka"])
def test_one_call_fails_and_the_producer_sends_again(format_name: str, operation: str) -> None:
    """Whatever call fails (some of them here): sending everything again, over a reopen if need be, stores everything
    once."""
    more = {} if format_name == "fixed-slot" else {"segment_max_bytes": 120}
    messages = [b"%04d" % n for n in range(7)]
    messages = [message.ljust(16, b".") for message in messages]

    def attempt(disk: FaultyDisk) -> None:
        log = ConsumableWritableLog("/log", format=format_name, disk=disk, **options(format_name), **more)
        try:
            producer = log.producer("p")
            for sequence, message in enumerate(messages, 1):
                for _ in range(3):  # a stubborn program
                    try:
                        producer.append(message, sequence=sequence)
                        break
                    except PoisonedError:
                        raise
                    except StorageError:
                        log.append(b"plain".ljust(16, b".")) if not log.is_poisoned else None
        finally:
            try:
                log.close()
            except DuramenError:
                pass

    with mock.patch.object(producer_state, "ROOM_BYTES", 150):
        calm = FaultyDisk(SimulatedDisk(), keep_history=True)
        attempt(calm)
        calls = sum(line.split()[0] == operation for line in calm.history)
        for number, call in enumerate(range(1, calls + 1, max(calls // FAILURES, 1))):
            for error in ((errno.EIO, errno.ENOSPC)[number % 2],):
                under = SimulatedDisk()
                try:
                    attempt(FaultyDisk(under, [Fault(operation, call=call, error=error)], sync_failure="lost"))
                except (StorageError, PoisonedError):
                    pass
                for left in (under.clone(), under.crash(CrashPattern("lost", "lost"))):
                    attempt(FaultyDisk(left))
                    with ConsumableWritableLog("/log", disk=left) as log:
                        found = [v for v in values(log) if not v.startswith(b"plain")]
                    assert found == messages, (operation, call, error)


def test_a_full_disk_takes_the_announcement_back(format_name: str) -> None:
    disk = FaultyDisk(SimulatedDisk(), ())
    log = ConsumableWritableLog("/log", format=format_name, disk=disk, **options(format_name))
    producer = log.producer("p")
    producer.append(value(1), sequence=1)
    segment = log.segments[-1].path
    disk.faults = (Fault("write", path=segment, count=None, error=errno.ENOSPC),)
    disk._matched = [0]
    with pytest.raises(StorageError, match="space"):
        producer.append(value(2), sequence=2)
    assert producer.last_sequence == 1
    disk.faults = ()
    log.append(value(2))  # the very bytes, at the very offset, by somebody else
    again = ConsumableWritableLog("/log", disk=disk.inner.crash(CrashPattern("lost", "lost")))  # type: ignore[attr-defined]
    assert again.producer("p").last_sequence == 1
    assert again.producer("p").append(value(2), sequence=2).stored == 1


# --- Osiris


def chunks_of(root: Path) -> list[Any]:
    found = []
    for path in sorted(root.glob("*.segment")):
        raw, at = path.read_bytes(), 8
        while at < len(raw):
            chunk, at = parse_chunk(raw, at)
            found.append(chunk)
    return found


def test_an_osiris_chunk_carries_the_last_sequences(tmp_path: Path) -> None:
    with open_log(tmp_path / "log", "osiris", chunk_max_records=3) as log:
        log.producer("a").append_batch([b"%d" % n for n in range(5)], sequence=10)
        log.append(b"plain")
    chunks = chunks_of(tmp_path / "log")
    assert [chunk.num_records for chunk in chunks] == [3, 2, 1]
    assert [chunk.trailer for chunk in chunks] == [
        (TrackingBlock(TrackingKind.SEQUENCE, b"a", 12),), (TrackingBlock(TrackingKind.SEQUENCE, b"a", 14),), (),
    ]  # fmt: skip


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_producers_of_one_group_share_a_trailer_in_rabbitmqs_order(tmp_path: Path, compression: str) -> None:
    from duramen.log.write.batch import GroupBatch, SequenceClaim, batch_of
    from duramen.log.write.group_commit import Request

    with open_log(tmp_path / "log", "osiris", compression=compression) as log:
        log.sequences()
        group = []
        for name, count in ((b"a", 2), (None, 1), (b"c", 1), (b"b", 3), (b"a", 1)):
            batch = batch_of(log.codec, [b"v"] * count)
            claim = None if name is None else SequenceClaim(name, None)
            group.append(Request(GroupBatch(batch, "fsync", claim), batch.nbytes, count))
        log.commit_group(group)
        assert values(log) == [b"v"] * 8
    (chunk,) = chunks_of(tmp_path / "log")
    assert [(block.id, block.value) for block in chunk.trailer] == [(b"c", 1), (b"b", 3), (b"a", 3)]


def test_rabbitmqs_own_producers_are_known(tmp_path: Path) -> None:
    shutil.copytree(OSIRIS / "dedup", tmp_path / "log", ignore=shutil.ignore_patterns("*.json*"))
    truth = json.loads((OSIRIS / "dedup" / "tracking_truth.json").read_text())["sequences"]
    before = len(list(duramen.open(tmp_path / "log")))
    with duramen.open(tmp_path / "log") as reader:
        assert {p.name: p.sequence for p in reader.producers()} == {k: v["sequence"] for k, v in truth.items()}
    with open_log(tmp_path / "log", "osiris", segment_max_bytes=3000) as log:
        for name, state in truth.items():
            assert log.producer(name).append(b"again", sequence=state["sequence"]).is_duplicate
        assert log.producer("alpha").append(b"new", sequence=181).stored == 1
        for _ in range(60):
            log.append(b"x" * 100)
        assert log.producer("alpha").append(b"new", sequence=181).is_duplicate
    assert len(list(duramen.open(tmp_path / "log"))) == before + 61
    path_of(tmp_path / "log").unlink()
    with open_log(tmp_path / "log", "osiris") as log:
        assert log.producer("alpha").last_sequence == 181, "the log itself says so, over the snapshots"
        assert log.producer("béta").last_sequence == truth["béta"]["sequence"]


def test_a_snapshot_holds_what_is_written_and_nothing_more(tmp_path: Path) -> None:
    """A roll comes right before an append: RabbitMQ's snapshot counts the sequence of that one already."""
    with open_log(tmp_path / "log", "osiris", segment_max_bytes=400) as log:
        for n in range(1, 30):
            log.producer("b").append(b"x" * 60, sequence=n)
            log.producer("a").append(b"y", sequence=n)
    chunks = chunks_of(tmp_path / "log")
    snapshots = [n for n, chunk in enumerate(chunks) if chunk.chunk_type == ChunkType.TRACKING_SNAPSHOT]
    assert len(snapshots) > 3
    for number in snapshots:
        lasts: dict[bytes, tuple[int, int]] = {}
        for chunk in chunks[:number]:
            for block in chunk.trailer:
                lasts[block.id] = (chunk.chunk_id, block.value)
        blocks = [(b.kind, b.id, b.chunk_id, b.value) for b in chunks[number].blocks]
        assert blocks == [(TrackingKind.SEQUENCE, name, *lasts[name]) for name in sorted(lasts, reverse=True)]


def test_a_snapshot_keeps_the_255_youngest_producers(tmp_path: Path) -> None:
    with open_log(tmp_path / "log", "osiris") as log:
        for n in range(300):
            log.producer(f"p{n:03}").append(b"v", sequence=1, durability="write")
        log.seal()
        log.append(b"v")
        assert log.producer("p000").append(b"v", sequence=1).is_duplicate, "the sidecar remembers more"
    last = max((tmp_path / "log").glob("*.segment"))
    codec = make("osiris")
    segment = codec.open_segment(last.read_bytes(), codec.classify(last.name).base)  # type: ignore[union-attr]
    known = codec.sequences([segment], lambda _: None)  # type: ignore[attr-defined]
    assert sorted(known) == [b"p%03d" % n for n in range(45, 300)]
    assert codec.path_of(Role.SEGMENT, 300) == last.name


@pytest.mark.parametrize("lost_bytes", [1, 2, 7, 8, 9, 12, 17, 19])
def test_a_torn_trailer_is_rewritten(lost_bytes: int) -> None:
    """No checksum covers a trailer: with its last bytes lost it names another producer, or another sequence."""
    disk, clones = SimulatedDisk(), list[SimulatedDisk]()
    log = ConsumableWritableLog("/log", format="osiris", disk=disk)
    log.producer("till four").append(b"one", sequence=0x101)
    disk.on_operation = lambda _, operation: clones.append(disk.clone()) if "write /log/0" in operation else None
    log.producer("till four").append(b"two", sequence=0x205)
    crashed = clones[0]
    path = log.segments[-1].path
    whole = bytes(crashed.map(path).data)
    crashed.open(path).write(len(whole) - lost_bytes, bytes(lost_bytes))
    with ConsumableWritableLog("/log", disk=crashed) as again:
        assert [(p.name, p.sequence) for p in again.producers()] == [("till four", 0x205)]
        assert again.producer("till four").append(b"two", sequence=0x205).is_duplicate
    assert bytes(crashed.map(path).data) == whole


# --- crashes


@pytest.mark.slow
@pytest.mark.parametrize(
    "setup",
    [
        "keratin",
        "durable-log",
        "rustlog",
        "osiris",
        "osiris-gzip",
        "fixed-slot",
        "kafka",
        "kafka-zstd",
    ],
)
def test_a_retrying_producer_survives_every_crash(setup: str) -> None:
    explorer = ProducerExplorer(every=every(500), inner_every=20)
    explorer.explore(setup, seed=3)
    assert len(explorer.states) > 2


@pytest.mark.slow
def test_the_explorer_finds_an_announcement_that_is_not_settled() -> None:
    """The judge is judged: without the rule that announcements are settled before others get their offsets, it must
    find a plain record that is taken for a message."""
    patched = mock.patch.object(producer_state.ProducerTable, "_replace", _only_when_full)
    with patched, pytest.raises(AssertionError, match="looks alike"):
        ProducerExplorer(every=10).explore("keratin", 0)


_real_replace = producer_state.ProducerTable._replace


def _only_when_full(self: Any, known: Any, room_bytes: int = 0) -> None:
    if room_bytes:
        _real_replace(self, known, room_bytes)
