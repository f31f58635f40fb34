"""Duramen and a real RabbitMQ, on the same files: ``python -m tests.interop.rabbitmq [--keep DIR]``.

Installs Debian's RabbitMQ if it is missing and the stream client `rstream` into a scratch directory, starts a broker of
its own there, and hands stream directories to and fro: Duramen appends while the broker is stopped, the broker serves
and appends while it runs. Every record is compared, with its offset, its bytes and its time. Exits with 1 on a
mismatch. See README.md.

A scenario is a generator. It begins with the broker running; at every ``yield`` the broker is stopped if it runs, and
started if not. All scenarios go through these phases together, so that the broker starts three times in all.

``--limits`` runs others: they show what one must not do with a directory of a broker. Nothing is checked there.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

import duramen
from duramen.formats.osiris.bloom_filter import bloom_filter
from duramen.formats.osiris.chunk import Chunk, ChunkType, parse_chunk
from duramen.formats.osiris.segment import FILE_HEADER
from tests.interop import broker as broker_module
from tests.interop import client as client_module
from tests.interop.broker import Broker
from tests.interop.client import Client, Message
from tests.interop.java import DEPENDENCIES, JavaClient

SMALL_SEGMENT_BYTES = 32 << 10
INDEX_ENTRY_BYTES = 29
CODECS = ("gzip", "snappy", "lz4", "zstd")
RSTREAM_CODECS = ("gzip", "lz4", "zstd")

Scenario = Iterator[None]


def amqp(payload: bytes) -> bytes:
    """A message of AMQP 1.0 with nothing but one data section: described type 0x75, binary of 8 or 32 bits length."""
    if len(payload) < 256:
        return b"\x00\x53\x75\xa0" + bytes([len(payload)]) + payload
    return b"\x00\x53\x75\xb0" + len(payload).to_bytes(4, "big") + payload


def payload_of(message: bytes) -> bytes:
    return message[5:] if message[3] == 0xA0 else message[8:]


# --- what was checked


class Row(NamedTuple):
    scenario: str
    what: str
    count: int
    problem: str


@dataclass
class Checks:
    """Everything that was compared, in order."""

    rows: list[Row] = field(default_factory=list)

    def add(self, scenario: str, what: str, count: int, problem: str = "") -> None:
        self.rows.append(Row(scenario, what, count, problem))
        print(f"{scenario:<12} {what:<78} {count:>7}  {problem or 'ok'}", flush=True)

    def same(self, scenario: str, what: str, got: Any, expected: Any) -> None:
        self.add(scenario, what, 1, "" if got == expected else f"is {got!r}, should be {expected!r}")

    @property
    def failed(self) -> list[Row]:
        return [row for row in self.rows if row.problem]


class Expected(NamedTuple):
    """A record that must be there."""

    raw: bytes
    offset: int | None = None
    """None where the broker has appended it: tracking uses up offsets whenever the broker likes. The first consumer
    tells, and from then on it must stay so."""
    timestamp_ms: int | None = None
    """None where it was not set by the caller."""


@dataclass
class Stream:
    """One stream: its name, its directory, and what must be in it."""

    name: str
    bench: Bench
    expected: list[Expected] = field(default_factory=list)

    @property
    def directory(self) -> Path:
        return self.bench.broker.stream_directory(self.name)

    def check(self, what: str, got: Any, expected: Any) -> None:
        self.bench.checks.same(self.name, what, got, expected)

    def count(self, what: str, count: int, least: int = 1) -> None:
        self.bench.checks.add(self.name, what, count, "" if count >= least else f"should be {least} at least")

    # --- the broker's side

    def declare(self, **arguments: object) -> None:
        self.bench.client.declare(self.name, **arguments)

    def consume(self, what: str, expected: list[Expected] | None = None, **where: Any) -> None:
        """Consume with rstream and compare everything."""
        self.bench.client.wait_for(self.name)
        whole = expected is None
        expected = self.expected if expected is None else expected
        got = self.bench.client.consume(self.name, len(expected), **where)
        problem = _differences(got, expected)
        self.bench.checks.add(self.name, what, len(got), problem)
        if whole and not problem:
            self.expected = [e._replace(offset=m.offset) for e, m in zip(expected, got, strict=True)]

    def consume_with_java(self, what: str) -> None:
        if self.bench.java is not None:
            self.bench.client.wait_for(self.name)
            got = self.bench.java.consume(self.name, len(self.expected))
            self.bench.checks.add(self.name, what, len(got), _differences(got, self.expected))

    def publish(self, count: int, **naming: Any) -> None:
        """Publish through the broker."""
        self.bench.client.wait_for(self.name)
        raws = self.bench.messages(count)
        confirmed = self.bench.client.publish(self.name, raws, **naming)
        problem = "" if confirmed == count else f"should be {count}"
        self.bench.checks.add(self.name, "published through the broker, confirmed", confirmed, problem)
        self.expected += [Expected(raw) for raw in raws]

    # --- Duramen's side

    def append(self, log: duramen.WritableLog, *sizes: int, step_ms: int = 0) -> None:
        """Append single records (for a 1) and batches. ``step_ms`` sets their times: so much between two calls."""
        for size in sizes:
            self.append_these(log, self.bench.messages(size), step_ms)

    def append_these(self, log: duramen.WritableLog, raws: list[bytes], step_ms: int = 0) -> None:
        at_ms = self._next_ms(step_ms) if step_ms else None
        if len(raws) == 1:
            base = log.append(raws[0], timestamp=None if at_ms is None else at_ms)
        else:
            base = log.append_batch(raws if at_ms is None else _with_time(raws, at_ms)).base_offset
        self.expected += [Expected(raw, base + number, at_ms) for number, raw in enumerate(raws)]

    def _next_ms(self, step_ms: int) -> int:
        if not self.expected or self.expected[-1].timestamp_ms is None:
            return int(time.time() * 1000) - 86_400_000
        return self.expected[-1].timestamp_ms + step_ms

    def read(self, what: str) -> None:
        """Read with Duramen, check every byte, and compare everything."""
        with duramen.open(self.directory) as log:
            got = [Message(r.offset, _ms(r.timestamp), r.value, payload_of(r.value)) for r in log.scan()]
            problem = _differences(got, self.expected)
            for message in got[:: max(len(got) // 50, 1)]:
                if log.read(message.offset).value != message.raw:
                    problem = problem or f"read({message.offset}) answers another record than scan()"
        self.bench.checks.add(self.name, what, len(got), problem)
        report = duramen.verify(self.directory)
        # The broker may continue a segment that Duramen sealed, and remove the oldest ones.
        found = [f for f in report.findings if f.code not in ("sealed-continued", "oldest-missing")]
        findings = "; ".join(f"{f.code} {f.path}: {f.message}" for f in found)
        self.bench.checks.add(self.name, "verified by Duramen without a finding", report.records, findings)


def _ms(timestamp: Any) -> int:
    return round(timestamp.timestamp() * 1000)


def _with_time(raws: list[bytes], at_ms: int) -> pa.RecordBatch:
    times = pa.array([at_ms * 1000] * len(raws), pa.int64()).view(duramen.SCHEMA.field("timestamp").type)
    return pa.RecordBatch.from_arrays([pa.array(raws, pa.binary()), times], names=["value", "timestamp"])


def _differences(got: list[Message], expected: list[Expected]) -> str:
    """What is wrong first, or nothing."""
    previous = -1
    for number, (one, other) in enumerate(zip(got, expected, strict=False)):
        if one.offset <= previous or (other.offset is not None and one.offset != other.offset):
            return f"record {number} has offset {one.offset} behind {previous}, should have {other.offset}"
        if (one.raw and one.raw != other.raw) or one.body != payload_of(other.raw):
            return f"the record at {one.offset} has other bytes: {one.raw[:40]!r}, not {other.raw[:40]!r}"
        if other.timestamp_ms is not None and one.timestamp_ms != other.timestamp_ms:
            return f"the record at {one.offset} has the time {one.timestamp_ms}, should have {other.timestamp_ms}"
        previous = one.offset
    return "" if len(got) == len(expected) else f"{len(got)} records, should be {len(expected)}"


@dataclass
class Bench:
    """What every scenario works with."""

    root: Path
    broker: Broker
    client: Client
    checks: Checks
    dice: random.Random
    java: JavaClient | None
    version: tuple[int, ...]
    notes: list[str] = field(default_factory=list)

    def stream(self, name: str) -> Stream:
        return Stream(name, self)

    def messages(self, count: int) -> list[bytes]:
        """Payloads of all sorts of sizes: empty, at the edge of AMQP's two lengths, mostly some hundred bytes."""
        edges = (0, 1, 254, 255, 256, 257, 4096)
        sizes = [
            self.dice.choice(edges) if self.dice.random() < 0.1 else self.dice.randrange(400) for _ in range(count)
        ]
        return [amqp(self.dice.randbytes(size)) for size in sizes]

    def note(self, text: str) -> None:
        self.notes.append(text)


# --- evidence in files


def chunks(directory: Path) -> Iterator[Chunk]:
    """The chunks of all segments, parsed one by one."""
    for path in sorted(directory.glob("*.segment")):
        data = path.read_bytes()
        position = FILE_HEADER.size
        while position < len(data):
            chunk, position = parse_chunk(data, position)
            yield chunk


def snapshots(directory: Path) -> int:
    return sum(chunk.chunk_type == ChunkType.TRACKING_SNAPSHOT for chunk in chunks(directory))


def epochs(directory: Path) -> list[int]:
    """The epochs, each time that they change."""
    return [epoch for epoch, _ in itertools.groupby(chunk.epoch for chunk in chunks(directory))]


def segments(directory: Path) -> list[int]:
    return sorted(int(path.stem) for path in directory.glob("*.segment"))


def clear(directory: Path) -> None:
    """Take away what the broker has written: one empty segment and its index."""
    for path in directory.iterdir():
        path.unlink()


# --- scenarios

SMALL: dict[str, Any] = {"segment_max_bytes": SMALL_SEGMENT_BYTES}
DIALECT: dict[str, Any] = {"dialect": "program"}
RABBITMQ: dict[str, Any] = {"format": "osiris", **DIALECT}


def placed(bench: Bench) -> Scenario:
    """A log that Duramen made elsewhere: its segments and indexes are copied into the stream's directory."""
    stream = bench.stream("placed")
    stream.declare()
    yield
    elsewhere = bench.root / "elsewhere"
    with duramen.open(elsewhere, "a", **RABBITMQ, **SMALL) as log:
        stream.append(log, 1, 1, 50, 1, 700, 300, 1, 2500, 1)
    clear(stream.directory)
    for path in elsewhere.glob("0*"):
        shutil.copy(path, stream.directory)
    stream.count("segments of a log that Duramen made elsewhere, copied", len(segments(stream.directory)), 3)
    yield
    stream.consume("consumed from the first record on")
    stream.consume_with_java("consumed with the Java client")
    stream.publish(200)
    stream.consume("consumed, with what the broker appended")
    yield
    stream.read("read by Duramen, with what the broker appended")
    yield
    stream.consume("consumed after another restart")


def in_place(bench: Bench) -> Scenario:
    """Duramen writes in the stream's own directory: the sidecar `.duramen` stays there, and both append in turn."""
    stream = bench.stream("in-place")
    stream.declare()
    yield
    clear(stream.directory)
    with duramen.open(stream.directory, "a", **RABBITMQ, **SMALL) as log:
        stream.append(log, 1, 30, 1, 400, 1, 900, 1, 1, step_ms=1000)
        stream.append_these(log, [amqp(bench.dice.randbytes(300_000))], step_ms=1000)
        stream.append(log, 5000, 1, 20, step_ms=1000)
    stream.check("the sidecar is there", (stream.directory / ".duramen").is_dir(), True)
    stream.count("segments", len(segments(stream.directory)), 3)
    yield
    stream.consume("consumed from the first record on, beside the sidecar")
    stream.consume_with_java("consumed with the Java client")
    bases = segments(stream.directory)
    for offset in sorted({bases[1], bases[1] - 1, bases[-1], 5000, bench.dice.randrange(6000)}):
        wanted = [e for e in stream.expected if (e.offset or 0) >= offset]
        stream.consume(f"consumed from offset {offset} on", wanted, offset=offset)
    times = sorted({e.timestamp_ms or 0 for e in stream.expected})
    for at in (times[0], times[4], times[4] + 1, times[-1]):
        wanted = [e for e in stream.expected if (e.timestamp_ms or 0) >= at]
        stream.consume(f"consumed from a time on, {at - times[0]} ms behind the first", wanted, timestamp_ms=at)
    stream.consume("consumed from the last chunk on", stream.expected[-20:], last=True)
    stream.publish(300)
    stream.consume("consumed, with what the broker appended")
    stream.read("read by Duramen while the broker runs")
    yield
    stream.read("read by Duramen, with what the broker appended")
    with duramen.open(stream.directory, "a") as log:
        stream.check("opened for append: what recovery had to do", [str(s.case) for s in log.recovery], ["clean"])
        stream.append(log, 1, 600, 1)
    yield
    stream.consume("consumed: Duramen, broker, Duramen")
    stream.publish(10)
    stream.consume("consumed, with what the broker appended")
    yield
    stream.read("read by Duramen at the end")
    bench.note(f"in-place: epochs {epochs(stream.directory)}")


def continued(bench: Bench) -> Scenario:
    """The broker's own log, with named publishers and stored offsets, goes on in Duramen and then in the broker."""
    stream, client = bench.stream("continued"), bench.client
    stream.declare(stream_max_segment_size_bytes=SMALL_SEGMENT_BYTES)
    stream.publish(300, name="writer", ids=range(1, 301))
    stream.publish(100, name="other", ids=range(1000, 2000, 10))
    client.store_offset("continued", "reader", 123)
    client.store_offset("continued", "late", 399)
    stream.consume("consumed before Duramen comes in")
    yield
    stream.read("read by Duramen")
    stream.count("segments that the broker wrote", len(segments(stream.directory)), 2)
    before = snapshots(stream.directory)
    with duramen.open(stream.directory, "a", **SMALL) as log:
        stream.check("opened for append: what recovery had to do", [str(s.case) for s in log.recovery], ["clean"])
        stream.append(log, 1, 1, 250, 1, 1500, 1, 800, 1)
    stream.count("segments now", len(segments(stream.directory)), 5)
    stream.count("tracking snapshots that Duramen wrote", snapshots(stream.directory) - before, 2)
    yield
    stream.consume("consumed: the broker's records and Duramen's")
    stream.consume_with_java("consumed with the Java client")
    stream.check("last sequence of the publisher 'writer'", client.publisher_sequence("continued", "writer"), 300)
    stream.check("last sequence of the publisher 'other'", client.publisher_sequence("continued", "other"), 1990)
    stream.check("stored offset of 'reader'", client.stored_offset("continued", "reader"), 123)
    stream.check("stored offset of 'late'", client.stored_offset("continued", "late"), 399)
    stream.check("stored offset of somebody unknown", client.stored_offset("continued", "nobody"), None)
    again = bench.messages(50)
    confirmed = client.publish("continued", again, name="writer", ids=range(281, 331))
    stream.check("ids 281 to 330 published under 'writer': confirmed", confirmed, 50)
    stream.expected += [Expected(raw) for raw in again[20:]]
    stream.consume("consumed: 20 duplicates are not there, 30 new ones are")
    before = len(segments(stream.directory))
    for _ in range(6):
        stream.publish(100)
    client.store_offset("continued", "reader", 1000)
    stream.consume("consumed, with what the broker appended")
    stream.count("segments that the broker rolled behind Duramen's", len(segments(stream.directory)) - before)
    yield
    stream.read("read by Duramen")
    with duramen.open(stream.directory, "a") as log:
        stream.check("opened for append: what recovery had to do", [str(s.case) for s in log.recovery], ["clean"])
        stream.append(log, 1, 2000, 1)
    yield
    stream.consume("consumed: broker, Duramen, broker, Duramen")
    stream.check("last sequence of the publisher 'writer'", client.publisher_sequence("continued", "writer"), 330)
    stream.check("stored offset of 'reader'", client.stored_offset("continued", "reader"), 1000)
    stream.check("stored offset of 'late'", client.stored_offset("continued", "late"), 399)
    bench.note(f"continued: epochs {epochs(stream.directory)}")


def compressed(bench: Bench, codec: str) -> Scenario:
    """Sub-batches, written by Duramen and read by clients; then the other way round."""
    stream = bench.stream(codec)
    stream.declare()
    yield
    clear(stream.directory)
    with duramen.open(stream.directory, "a", **RABBITMQ, **SMALL, compression=codec, sub_batch_records=100) as log:
        for size in (1, 99, 100, 101, 1000, 1, 3000):
            stream.append_these(log, [amqp(payload_of(raw)[:50] * 8) for raw in bench.messages(size)])
    yield
    if codec in RSTREAM_CODECS:
        stream.consume("sub-batches of Duramen, consumed with rstream")
    stream.consume_with_java("sub-batches of Duramen, consumed with the Java client")
    if codec == "gzip":
        raws = bench.messages(120)
        bench.client.publish_sub_batch(codec, raws)
        stream.expected += [Expected(raw) for raw in raws]
    if bench.java is not None:
        raws = bench.messages(500)
        confirmed = bench.java.publish(codec, [payload_of(raw) for raw in raws], codec, 60)
        stream.check("published in sub-batches with the Java client, confirmed", confirmed, 500)
        stream.expected += [Expected(raw) for raw in raws]
    yield
    stream.read("read by Duramen, with what the clients published")


def killed(bench: Bench) -> Scenario:
    """A writer is killed with SIGKILL; Duramen recovers the log, and the broker serves every acknowledged record."""
    stream = bench.stream("killed")
    stream.declare()
    yield
    clear(stream.directory)
    for _ in range(3):
        acknowledged = _append_and_kill(stream.directory)
        with duramen.open(stream.directory, "a") as log:
            got = [Expected(r.value, r.offset) for r in log.scan()]
        lost = [line for line in acknowledged if line not in {(e.offset, e.raw) for e in got}]
        stream.expected = got
        problem = f"lost: {lost[:3]}" if lost else ""
        bench.checks.add("killed", "acknowledged by a killed writer, there after recovery", len(acknowledged), problem)
    yield
    stream.consume("consumed after recovery by Duramen")
    stream.publish(10)
    stream.consume("consumed, with what the broker appended")
    yield
    stream.read("read by Duramen")


def _append_and_kill(directory: Path) -> list[tuple[int, bytes]]:
    """What a writer had told us when it was killed in the middle of its work."""
    code = """if True:
        import sys, duramen
        from tests.interop.rabbitmq import RABBITMQ, SMALL, amqp
        log = duramen.open(sys.argv[1], "a", **RABBITMQ, **SMALL)
        while True:
            raw = amqp(b"record %d " % log.next_offset * 20)
            print(log.append(raw), raw.hex(), flush=True)
    """
    writer = subprocess.Popen([sys.executable, "-c", code, str(directory)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    lines = [writer.stdout.readline()]
    timer = threading.Timer(0.5, writer.send_signal, (signal.SIGKILL,))
    timer.start()
    lines += writer.stdout.readlines()
    writer.wait()
    whole = [line.split() for line in lines if line.endswith("\n")]
    return [(int(offset), bytes.fromhex(raw)) for offset, raw in whole]


def sealed(bench: Bench) -> Scenario:
    """Duramen seals its last segment: what follows is an empty one, which the broker deletes to go on in the one
    before it."""
    stream = bench.stream("sealed")
    stream.declare()
    yield
    clear(stream.directory)
    with duramen.open(stream.directory, "a", **RABBITMQ) as log:
        stream.append(log, 100)
        log.seal()
        stream.append(log, 100)
        log.seal()
    stream.check("segments, the last one empty", len(segments(stream.directory)), 3)
    yield
    stream.consume("consumed")
    stream.publish(50)
    stream.consume("consumed, with what the broker appended")
    yield
    stream.check("segments that the broker left", len(segments(stream.directory)), 2)
    stream.read("read by Duramen")
    try:
        with duramen.open(stream.directory, "a") as log:
            stream.append(log, 100)
        stream.check("opened for append", "", "")
    except duramen.DuramenError as error:
        stream.check("opened for append", str(error), "")
    yield
    stream.consume("consumed")


def shortened(bench: Bench) -> Scenario:
    """The broker's retention takes away segments that Duramen wrote."""
    stream = bench.stream("shortened")
    stream.declare(max_length_bytes=4 * SMALL_SEGMENT_BYTES, stream_max_segment_size_bytes=SMALL_SEGMENT_BYTES)
    yield
    clear(stream.directory)
    with duramen.open(stream.directory, "a", **RABBITMQ, **SMALL) as log:
        stream.append(log, *[200] * 10)
    before = segments(stream.directory)
    yield
    stream.publish(200)
    stream.publish(200)
    time.sleep(1)
    left = segments(stream.directory)
    stream.count("segments that the broker removed", len(set(before) - set(left)))
    stream.expected = [e for e in stream.expected if e.offset is None or e.offset >= left[0]]
    stream.consume("consumed from what is now the first record on")
    yield
    stream.read("read by Duramen")
    with duramen.open(stream.directory, "a") as log:
        stream.check("the first offset", log.first_offset, left[0])
        stream.append(log, 1, 300)
    yield
    stream.consume("consumed")


def deleted(bench: Bench) -> Scenario:
    """The sidecar is taken away while the broker runs, and a client deletes the stream."""
    stream = bench.stream("deleted")
    stream.declare()
    yield
    clear(stream.directory)
    with duramen.open(stream.directory, "a", **RABBITMQ, **SMALL) as log:
        stream.append(log, *[200] * 10)
    directory = stream.directory
    yield
    stream.consume("consumed")
    shutil.rmtree(directory / ".duramen")
    stream.publish(10)
    bench.client.delete("deleted")
    until = time.monotonic() + 10
    while directory.exists() and time.monotonic() < until:
        time.sleep(0.1)
    stream.check("the sidecar removed, the stream deleted: the directory is there", directory.exists(), False)


def repaired(bench: Bench) -> Scenario:
    """Chunks in the middle are damaged, the first ones and the last ones of segments, and a whole segment is lost.
    Duramen repairs the log; the broker serves every record that is left, and goes on after the last offset."""
    stream = bench.stream("repaired")
    stream.declare()
    yield
    clear(stream.directory)
    with duramen.open(stream.directory, "a", **RABBITMQ, **SMALL) as log:
        stream.append(log, *[7] * 300, step_ms=10)
    lost = _damage(stream)
    stream.count("records in chunks that were damaged, and in a lost segment", len(lost))
    done = duramen.repair(stream.directory, plan_only=False)
    stream.check("repaired; offsets that are lost", sum(loss.count for loss in done.losses), len(lost))
    stream.expected = [e for e in stream.expected if e.offset not in lost]
    stream.read("read by Duramen after the repair")
    with duramen.open(stream.directory) as reader:
        following = reader.next_offset
    yield
    stream.consume("consumed after the repair, past every gap")
    stream.consume_with_java("consumed with the Java client")
    for offset in sorted(lost)[:: max(len(lost) // 7, 1)]:
        wanted = [e for e in stream.expected if (e.offset or 0) >= offset]
        stream.consume(f"consumed from the lost offset {offset} on", wanted, offset=offset)
    stream.publish(200)
    stream.consume("consumed, with what the broker appended")
    first = stream.expected[-200].offset
    stream.check("the broker went on at the offset that Duramen would have used", first, following)
    yield
    stream.read("read by Duramen, with what the broker appended")
    with duramen.open(stream.directory, "a") as log:
        stream.append(log, 1, 50)
    yield
    stream.consume("consumed: Duramen, repair, broker, Duramen")


def _damage(stream: Stream) -> set[int]:
    """Flip bits of a chunk in every other segment, take one segment away; the offsets that this costs."""
    paths = sorted(stream.directory.glob("*.segment"))
    lost: set[int] = set()
    for number, path in enumerate(paths[:-1]):
        data = bytearray(path.read_bytes())
        places, position = [], FILE_HEADER.size
        while position < len(data):
            chunk, following = parse_chunk(data, position)
            places.append((position, following, chunk))
            position = following
        hit = {0: places[:1], 1: places[len(places) // 2 :][:2], 2: places[-1:]}.get(number % 4, [])
        if number == 5:
            hit = places
        for _, end, chunk in hit:
            lost |= set(range(chunk.chunk_id, chunk.chunk_id + chunk.num_records))
            data[end - 1] ^= 0x10
        if number == 5:
            path.unlink()
        else:
            path.write_bytes(data)
    return lost


def compacted(bench: Bench) -> Scenario:
    """A Keratin log is compacted, so that most offsets are missing, and converted for RabbitMQ."""
    stream = bench.stream("compacted")
    stream.declare()
    yield
    source = bench.root / "compacted-keratin"
    with duramen.open(source, "a", format="keratin", segment_max_bytes=SMALL_SEGMENT_BYTES) as log:
        for number in range(2000):
            key = b"rare %d" % number if number % 97 == 0 else b"k%d" % (number % 11)
            raw = amqp(b"record %d " % number * 5)
            stream.expected.append(Expected(raw, log.append(raw, key=key)))
        log.seal()
        log.compact()
        kept = {record.offset for record in log.scan()}
    stream.expected = [e for e in stream.expected if e.offset in kept]
    stream.count("of 2000 records compaction kept", len(kept), 30)
    directory = stream.directory
    shutil.rmtree(directory)
    duramen.convert(source, directory, "osiris", allow_loss=["key"], **DIALECT)
    stream.read("read by Duramen after the conversion")
    yield
    stream.consume("consumed after the conversion, past every gap")
    stream.consume_with_java("consumed with the Java client")
    for offset in (1, 500, 1500):
        wanted = [e for e in stream.expected if (e.offset or 0) >= offset]
        stream.consume(f"consumed from offset {offset} on", wanted, offset=offset)
    stream.publish(200)
    stream.consume("consumed, with what the broker appended")
    stream.check("the broker went on at offset 2000", stream.expected[-200].offset, 2000)
    yield
    stream.read("read by Duramen, with what the broker appended")
    yield
    stream.consume("consumed after another restart")


REGIONS, FILTER_BYTES = 40, 32


def region_of(message: bytes) -> bytes | None:
    """The filter value of a message: what its payload has before the first slash, if it has one."""
    value, slash, _ = payload_of(message).partition(b"/")
    return value if slash else None


def filtered(bench: Bench) -> Scenario:
    """Chunks have Bloom filters, of Duramen and of the broker: consumers with a filter get every chunk with their
    value, and few others; a chunk without a filter only if they ask for it."""
    if bench.version < (3, 13):
        bench.note("filtered: not run, RabbitMQ has filters since 3.13")
        return
    stream = bench.stream("filtered")
    stream.declare(stream_filter_size_bytes=FILTER_BYTES)
    yield
    clear(stream.directory)
    filters: dict[str, Any] = {"filter_by": region_of, "filter_bytes": FILTER_BYTES}
    with duramen.open(stream.directory, "a", **RABBITMQ, **SMALL, **filters) as log:
        _append_regions(stream, log, 200)
    yield
    stream.consume("consumed without a filter")
    _consume_filtered(stream)
    confirmed, before = 0, len(stream.expected)
    for number in range(40):
        raws = _regions(bench, 3) if number % 10 else [amqp(b"published without a value")]
        confirmed += bench.client.publish("filtered", raws, filter_by=region_of)
        stream.expected += [Expected(raw) for raw in raws]
    stream.check("published with filter values, confirmed", confirmed, len(stream.expected) - before)
    stream.consume("consumed, with what the broker appended")
    _consume_filtered(stream)
    yield
    stream.read("read by Duramen, with what the broker appended")
    _check_filters(stream)
    with duramen.open(stream.directory, "a", filter_by=region_of) as log:
        _append_regions(stream, log, 100)
    yield
    stream.consume("consumed: Duramen, broker, Duramen")
    _consume_filtered(stream)


def _regions(bench: Bench, count: int) -> list[bytes]:
    return [amqp(b"region-%d/%d" % (bench.dice.randrange(REGIONS), bench.dice.randrange(1000))) for _ in range(count)]


def _append_regions(stream: Stream, log: duramen.WritableLog, count: int) -> None:
    """Chunks of one or two records; each tenth has no filter value, and hence no filter."""
    for number in range(count):
        raws = [amqp(b"without a value")] if number % 10 == 0 else _regions(stream.bench, 1 + number % 2)
        stream.append_these(log, raws)


def _takers(bench: Bench, region: str) -> Iterator[tuple[str, bool, Callable[[int], list[Message]]]]:
    """Consumers with a filter, and whether they ask for what has none."""
    take = functools.partial(bench.client.consume, "filtered", filters=[region])
    yield f"{region}, rstream", False, take
    yield f"{region} and what has no filter, rstream", True, functools.partial(take, unfiltered=True)
    if bench.java is not None:
        java = bench.java
        yield f"{region}, Java", False, lambda least: java.consume("filtered", least, region)


def _consume_filtered(stream: Stream) -> None:
    whole = {e.offset for e in stream.expected}
    bare = {e.offset for e in stream.expected if region_of(e.raw) is None}
    for region in ("region-0", "region-17", "nowhere"):
        own = {e.offset for e in stream.expected if region_of(e.raw) == region.encode()}
        for name, unfiltered, take in _takers(stream.bench, region):
            wanted = own | bare if unfiltered else own
            got = {message.offset for message in take(len(wanted))}
            problem = ""
            if not wanted <= got <= whole:
                problem = f"misses {sorted(wanted - got)[:5]}, has {sorted(got - whole)[:5]} that are unknown"
            elif got & bare and not unfiltered:
                problem = f"has {len(got & bare)} records of chunks without a filter"
            elif len(got - wanted) * 4 > len(whole):
                problem = f"has {len(got - wanted)} others of {len(whole)}"
            stream.bench.checks.add("filtered", f"{name}: received, {len(wanted)} wanted", len(got), problem)


def _check_filters(stream: Stream) -> None:
    """The filters that the broker wrote are those that Duramen writes for the same values."""
    raws = {e.offset: e.raw for e in stream.expected}
    compared, problem = 0, ""
    for chunk in chunks(stream.directory):
        offsets = range(chunk.chunk_id, chunk.chunk_id + chunk.num_records)
        if chunk.chunk_type == ChunkType.USER and chunk.chunk_id in raws:
            values = [region_of(raws[offset]) for offset in offsets]
            wanted = bloom_filter(values, FILTER_BYTES)
            compared += 1
            if chunk.filter != wanted:
                problem = problem or f"chunk {chunk.chunk_id}: {chunk.filter.hex()}, Duramen writes {wanted.hex()}"
    stream.bench.checks.add("filtered", "filters of all chunks, as Duramen writes them", compared, problem)


def unindexed(bench: Bench) -> Scenario:
    """An index lacks the last chunks. `verify` says which records the broker would discard: without `reindex` it
    discards these, with it none."""
    cut, kept = bench.stream("unindexed"), bench.stream("reindexed")
    for stream in (cut, kept):
        stream.declare()
    yield
    for stream in (cut, kept):
        clear(stream.directory)
        with duramen.open(stream.directory, "a", **RABBITMQ) as log:
            stream.append(log, *[7] * 20)
        index = stream.directory / f"{0:020}.index"
        index.write_bytes(index.read_bytes()[: -6 * INDEX_ENTRY_BYTES])
        (finding,) = duramen.verify(stream.directory).findings
        what = (finding.code, finding.first_offset, finding.last_offset)
        stream.check("what verify says of the index", what, ("short-index", 14 * 7, 20 * 7 - 1))
        stream.check("it names the command", f"duramen reindex {stream.directory}" in finding.action, True)
    command = [sys.executable, "-m", "duramen", "reindex", str(kept.directory)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    cut.expected = cut.expected[: 14 * 7]
    yield
    kept.consume("consumed after reindex")
    cut.consume("consumed without: the broker has discarded what verify had said")


# --- what does not go


def deleted_with_sidecar(bench: Bench) -> Scenario:
    """A client deletes a stream while the sidecar is in its directory."""
    stream = bench.stream("sidecar")
    stream.declare()
    yield
    clear(stream.directory)
    with duramen.open(stream.directory, "a", **RABBITMQ, **SMALL) as log:
        stream.append(log, *[200] * 10)
    directory = stream.directory
    before = len(_sizes(directory))
    yield
    stream.consume("consumed")
    bench.client.delete(stream.name)
    time.sleep(3)
    bench.note(f"sidecar: of {before} files the broker left {list(_sizes(directory))} and .duramen")
    again = bench.stream("sidecar")
    again.declare()
    again.publish(10)
    again.consume("declared again and consumed")


def other_version(bench: Bench) -> Scenario:
    """A log in chunk version 1, the document's and therefore Duramen's default. No broker writes or reads it."""
    stream = bench.stream("version-1")
    stream.declare()
    yield
    clear(stream.directory)
    with duramen.open(stream.directory, "a", format="osiris", **SMALL) as log:
        stream.append(log, *[200] * 4)
    before = _sizes(stream.directory)
    yield
    _note_service(stream, 800)
    yield
    bench.note(f"version-1: {before} before the broker came, {_sizes(stream.directory)} after")


def high_epoch(bench: Bench) -> Scenario:
    """A log whose epoch is above the one that the broker is at."""
    stream = bench.stream("epoch-50")
    stream.declare()
    yield
    clear(stream.directory)
    with duramen.open(stream.directory, "a", **RABBITMQ, epoch=50) as log:
        stream.append(log, 1, 100)
    yield
    _note_service(stream, 101)


def unrecovered(bench: Bench) -> Scenario:
    """A writer is killed, and the broker starts without Duramen having recovered the log."""
    stream = bench.stream("unrecovered")
    stream.declare()
    yield
    clear(stream.directory)
    acknowledged = _append_and_kill(stream.directory)
    before = _sizes(stream.directory)
    yield
    _note_service(stream, len(acknowledged))
    bench.client.publish("unrecovered", bench.messages(5))
    yield
    bench.note(f"unrecovered: {before} before the broker came, {_sizes(stream.directory)} after")
    with duramen.open(stream.directory) as log:
        bench.note(f"unrecovered: Duramen reads {sum(1 for _ in log.scan())}")
    try:
        with duramen.open(stream.directory, "a") as log:
            bench.note(f"unrecovered: opened for append at {log.next_offset}: {log.recovery}")
    except duramen.DuramenError as error:
        bench.note(f"unrecovered: not opened for append: {error}")


def _sizes(directory: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in sorted(directory.glob("0*"))}


def _note_service(stream: Stream, expected: int) -> None:
    try:
        stream.bench.client.wait_for(stream.name, timeout_s=20)
        got = len(stream.bench.client.consume(stream.name, expected))
        stream.bench.note(f"{stream.name}: of {expected} records the broker serves {got}")
    except TimeoutError:
        stream.bench.note(f"{stream.name}: the stream has no leader after 20 s")


SCENARIOS: tuple[Callable[[Bench], Scenario], ...] = (
    placed,
    in_place,
    continued,
    *(functools.partial(compressed, codec=codec) for codec in CODECS),
    killed,
    sealed,
    shortened,
    deleted,
    repaired,
    compacted,
    filtered,
    unindexed,
)
LIMITS: tuple[Callable[[Bench], Scenario], ...] = (deleted_with_sidecar, other_version, high_epoch, unrecovered)

# --- the whole


def run(bench: Bench, scenarios: Sequence[Callable[[Bench], Scenario]]) -> None:
    going = [scenario(bench) for scenario in scenarios]
    while going:
        if bench.broker.is_running:
            note_log(bench)
            bench.broker.stop()
        else:
            bench.broker.start()
        print(f"--- the broker {'runs' if bench.broker.is_running else 'is stopped'}", flush=True)
        going = [scenario for scenario in going if _advance(bench, scenario)]
    if bench.broker.is_running:
        note_log(bench)


def _advance(bench: Bench, scenario: Scenario) -> bool:
    """One phase of a scenario; False if it was the last. What goes wrong ends this scenario and no other."""
    try:
        next(scenario)
    except StopIteration:
        return False
    except (duramen.DuramenError, OSError, RuntimeError, TimeoutError, ValueError, subprocess.SubprocessError) as error:
        traceback.print_exc()
        bench.checks.add(getattr(scenario, "__name__", ""), "the whole scenario", 0, f"{type(error).__name__}: {error}")
        return False
    return True


NOTEWORTHY = re.compile(r"\[(?:warning|critical)\]|exception|truncat|corrupt", re.IGNORECASE)
USUAL = re.compile(r"Socket #Port<[0-9.]+> closed|Message store")


def note_log(bench: Bench) -> None:
    """Keep what the broker has to say about anything that is not as it should be, the same only once."""
    seen: dict[str, list[str]] = {}
    for line in bench.broker.log_since_start().splitlines():
        if NOTEWORTHY.search(line) and not USUAL.search(line):
            text = re.sub(r"<[0-9.]+> ", "", line[33:])
            seen.setdefault(re.sub("[0-9]+", "#", text), []).append(text)
    for lines in seen.values():
        bench.note(f"the broker's log, {len(lines)} ×: {lines[0]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="work in DIR, which must be empty, and keep it")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32), help="of the records' contents")
    parser.add_argument("--limits", action="store_true", help="show what does not go")
    parser.add_argument("--only", metavar="NAME", help="run the scenarios whose name contains NAME")
    parser.add_argument("--no-java", action="store_true", help="do without the Java client")
    parser.add_argument("--system", type=Path, metavar="DIR", help="take the RabbitMQ of another release, in DIR")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the broker is stopped
    with ExitStack() as stack:
        root = arguments.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="duramen-rabbitmq-")))
        root = root.resolve()
        if root.exists() and any(root.iterdir()):
            parser.error(f"{root} is not empty")
        broker_module.install_package(arguments.system)
        versions = broker_module.package_versions(arguments.system) | client_module.install(root / "site-packages")
        broker = stack.enter_context(Broker(root / "broker", arguments.system))
        with_java = None if arguments.no_java else JavaClient.install(root / "java", broker.stream_port)
        versions |= DEPENDENCIES if with_java is not None else {}
        print(", ".join(f"{name} {version}" for name, version in versions.items()))
        print(f"Duramen {duramen.__version__}, seed {arguments.seed}, in {root}", flush=True)
        client, dice = Client(broker.stream_port), random.Random(arguments.seed)
        version = tuple(int(number) for number in versions["RabbitMQ"].split(".")[:2])
        bench = Bench(root, broker, client, Checks(), dice, with_java, version)
        chosen = LIMITS if arguments.limits else SCENARIOS
        run(bench, [one for one in chosen if (arguments.only or "") in getattr(one, "__name__", "compressed")])
    print("--- noted")
    for note in bench.notes:
        print(note)
    rows, failed = bench.checks.rows, bench.checks.failed
    print(f"--- {len(rows)} checks, {sum(row.count for row in rows)} things compared, {len(failed)} failed")
    for row in failed:
        print(f"FAILED {row.scenario}: {row.what}: {row.problem}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
