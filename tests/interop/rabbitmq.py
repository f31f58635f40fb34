"""Duramen and a real RabbitMQ, on the same files: ``python -m tests.interop.rabbitmq [--keep DIR]``.

Installs Debian's RabbitMQ if it is missing and the stream client `rstream` into a scratch directory, starts a broker of
its own there, and hands stream directories to and fro: Duramen appends while the broker is stopped, the broker serves
and appends while it runs. Every record is compared, with its offset, its bytes and its time. Exits with 1 on a
mismatch. See README.md.

A scenario is a generator. It begins with the broker running; at every ``yield`` the broker is stopped if it runs, and
started if not. All scenarios go through these phases together, so that the broker starts three times in all.
"""

from __future__ import annotations

import argparse
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import duramen
from duramen.formats.osiris_chunk import ChunkType, parse_chunk
from duramen.formats.osiris_segment import FILE_HEADER
from tests.interop import broker as broker_module
from tests.interop import client as client_module
from tests.interop import java
from tests.interop.broker import Broker
from tests.interop.client import Client, Message

SMALL_SEGMENT_BYTES = 32 << 10
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
    offset: int
    raw: bytes
    timestamp_ms: int | None = None
    """None where the broker has set it."""


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

    # --- the broker's side

    def declare(self, **arguments: object) -> None:
        self.bench.client.declare(self.name, **arguments)

    def consume(self, what: str, expected: list[Expected] | None = None, **where: Any) -> None:
        """Consume with rstream and compare everything."""
        self.bench.client.wait_for(self.name)
        expected = self.expected if expected is None else expected
        got = self.bench.client.consume(self.name, len(expected), **where)
        self.bench.checks.add(self.name, what, len(got), _differences(got, expected))

    def publish(self, first_offset: int, count: int, **naming: Any) -> None:
        """Publish through the broker; the records are expected from ``first_offset`` on."""
        self.bench.client.wait_for(self.name)
        raws = self.bench.messages(count)
        confirmed = self.bench.client.publish(self.name, raws, **naming)
        self.bench.checks.add(
            self.name, "published through the broker, confirmed", confirmed, "" if confirmed == count else "not all"
        )
        self.expected += [Expected(first_offset + number, raw) for number, raw in enumerate(raws)]

    # --- Duramen's side

    def append(self, log: duramen.WritableLog, *sizes: int, step_ms: int = 0) -> None:
        """Append single records (for a 1) and batches. ``step_ms`` sets the times: so much between one and the next."""
        for size in sizes:
            raws = self.bench.messages(size)
            at_ms = None
            if step_ms:
                before = next((e.timestamp_ms for e in reversed(self.expected) if e.timestamp_ms is not None), None)
                at_ms = before + step_ms if before is not None else int(time.time() * 1000) - 86_400_000
            if size == 1:
                base = log.append(raws[0], timestamp=None if at_ms is None else at_ms * 1000)
            else:
                data: Any = raws
                if at_ms is not None:
                    data = _with_times(raws, at_ms)
                base, count = log.append_batch(data)
                assert count == size
            self.expected += [Expected(base + number, raw, at_ms) for number, raw in enumerate(raws)]

    def read(self, what: str) -> None:
        """Read with Duramen, check every byte, and compare everything."""
        with duramen.open(self.directory) as log:
            got = [Message(r.offset, _ms(r.timestamp), r.value, payload_of(r.value)) for r in log.scan()]
            by_offset = all(log.read(e.offset).value == e.raw for e in self.expected[:: max(len(self.expected) // 50, 1)])
        problem = _differences(got, self.expected) or ("" if by_offset else "read() answers another record")
        self.bench.checks.add(self.name, what, len(got), problem)
        report = duramen.verify(self.directory)
        findings = "; ".join(f"{f.code} {f.path}: {f.message}" for f in report.findings)
        self.bench.checks.add(self.name, "duramen.verify finds nothing, records", report.records, findings)


def _ms(timestamp: Any) -> int:
    return round(timestamp.timestamp() * 1000)


def _with_times(raws: list[bytes], at_ms: int) -> Any:
    import pyarrow as pa

    times = pa.array([at_ms * 1000] * len(raws), pa.int64()).view(duramen.SCHEMA.field("timestamp").type)
    return pa.RecordBatch.from_arrays([pa.array(raws, pa.binary()), times], names=["value", "timestamp"])


def _differences(got: list[Message], expected: list[Expected]) -> str:
    for number, (one, other) in enumerate(zip(got, expected, strict=False)):
        if one.offset != other.offset:
            return f"record {number} has offset {one.offset}, should have {other.offset}"
        if one.raw != other.raw:
            return f"the record at {one.offset} has other bytes: {one.raw[:40]!r}, not {other.raw[:40]!r}"
        if one.body != payload_of(other.raw):
            return f"the record at {one.offset} is decoded to other bytes"
        if other.timestamp_ms is not None and one.timestamp_ms != other.timestamp_ms:
            return f"the record at {one.offset} has the time {one.timestamp_ms}, should have {other.timestamp_ms}"
    return "" if len(got) == len(expected) else f"{len(got)} records, should be {len(expected)}"


@dataclass
class Bench:
    """What every scenario works with."""

    root: Path
    broker: Broker
    client: Client
    checks: Checks
    dice: random.Random
    java: java.JavaClient | None
    notes: list[str] = field(default_factory=list)

    def stream(self, name: str) -> Stream:
        return Stream(name, self)

    def messages(self, count: int) -> list[bytes]:
        """Payloads of all sorts of sizes: empty, at the edge of AMQP's two lengths, mostly some hundred bytes."""
        edges = (0, 1, 254, 255, 256, 257, 4096)
        sizes = [self.dice.choice(edges) if self.dice.random() < 0.1 else self.dice.randrange(400) for _ in range(count)]
        return [amqp(self.dice.randbytes(size)) for size in sizes]

    def note(self, text: str) -> None:
        self.notes.append(text)


# --- evidence in files


def chunk_types(directory: Path) -> dict[str, int]:
    """How many chunks of each type the segments hold."""
    counts = dict.fromkeys((kind.name for kind in ChunkType), 0)
    for path in sorted(directory.glob("*.segment")):
        data = path.read_bytes()
        position = FILE_HEADER.size
        while position < len(data):
            chunk, position = parse_chunk(data, position)
            counts[chunk.chunk_type.name] += 1
    return counts


def segment_count(directory: Path) -> int:
    return len(list(directory.glob("*.segment")))


def replace_segments(directory: Path) -> None:
    """Take away what the broker has written: one empty segment and its index."""
    for path in directory.iterdir():
        path.unlink()


# --- scenarios


def placed(bench: Bench) -> Scenario:
    """A log that Duramen made elsewhere: its segments and indexes are copied into the stream's directory."""
    stream = bench.stream("placed")
    stream.declare()
    yield
    elsewhere = bench.root / "elsewhere"
    options = {"chunk_version": 0, "segment_max_bytes": SMALL_SEGMENT_BYTES}
    with duramen.open(elsewhere, "a", format="osiris", **options) as log:
        stream.append(log, 1, 1, 50, 1, 700, 300, 1, 2500, 1)
    replace_segments(stream.directory)
    for path in elsewhere.glob("0*"):
        shutil.copy(path, stream.directory)
    before = segment_count(stream.directory)
    bench.checks.add("placed", "segments of a log that Duramen made elsewhere, copied", before)
    yield
    stream.consume("consumed from the first record on")
    stream.publish(stream.expected[-1].offset + 1, 200)
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
    replace_segments(stream.directory)
    options = {"chunk_version": 0, "segment_max_bytes": SMALL_SEGMENT_BYTES}
    with duramen.open(stream.directory, "a", format="osiris", **options) as log:
        stream.append(log, 1, 30, 1, 400, 1, 900, 1, 1, step_ms=1000)
        big = amqp(bench.dice.randbytes(300_000))
        stream.expected.append(Expected(log.append(big, timestamp=(at := _last_ms(stream) + 1000) * 1000), big, at))
        stream.append(log, 5000, 1, 20, step_ms=1000)
    stream.check("the sidecar is there", (stream.directory / ".duramen").is_dir(), True)
    bench.checks.add("in-place", "segments", segment_count(stream.directory))
    yield
    stream.consume("consumed from the first record on, beside the sidecar")
    offsets = _interesting_offsets(stream, bench)
    for offset in offsets:
        wanted = [e for e in stream.expected if e.offset >= offset]
        stream.consume(f"consumed from offset {offset} on", wanted, offset=offset)
    times = sorted({e.timestamp_ms for e in stream.expected if e.timestamp_ms is not None})
    for at in (times[0], times[len(times) // 2], times[len(times) // 2] + 1, times[-1]):
        wanted = [e for e in stream.expected if e.timestamp_ms is not None and e.timestamp_ms >= at]
        stream.consume(f"consumed from a time on ({at - times[0]} ms behind the first)", wanted, timestamp_ms=at)
    stream.consume("consumed from the last chunk on", stream.expected[-20:], last=True)
    stream.publish(stream.expected[-1].offset + 1, 300)
    yield
    stream.read("read by Duramen, with what the broker appended")
    with duramen.open(stream.directory, "a") as log:
        stream.check("recovery finds nothing to mend", [str(s.case) for s in log.recovery], ["clean"])
        stream.append(log, 1, 600, 1)
    yield
    stream.consume("consumed: Duramen, broker, Duramen")
    stream.publish(stream.expected[-1].offset + 1, 10)
    stream.consume("consumed, with what the broker appended")
    yield
    stream.read("read by Duramen at the end")


def _last_ms(stream: Stream) -> int:
    last = stream.expected[-1].timestamp_ms
    assert last is not None
    return last


def _interesting_offsets(stream: Stream, bench: Bench) -> list[int]:
    """The first and the last of some segments, and some in the middle of chunks."""
    bases = sorted(int(path.stem) for path in stream.directory.glob("*.segment"))
    found = {bases[1], bases[1] - 1, bases[-1], stream.expected[-1].offset}
    return sorted(found | {bench.dice.choice(stream.expected).offset for _ in range(3)})


def continued(bench: Bench) -> Scenario:
    """The broker's own log, with a named publisher and stored offsets, goes on in Duramen and then in the broker."""
    stream = bench.stream("continued")
    stream.declare(stream_max_segment_size_bytes=SMALL_SEGMENT_BYTES)
    stream.publish(0, 300, name="writer", ids=range(1, 301))
    stream.publish(300, 100, name="other", ids=range(1000, 2000, 10))
    bench.client.store_offset("continued", "reader", 123)
    bench.client.store_offset("continued", "late", 399)
    time.sleep(1)
    yield
    after = _user_records_end(stream)
    stream.check("chunk version of the broker's log", _first_chunk_byte(stream.directory), 0x50)
    bench.checks.add("continued", "segments that the broker wrote", segment_count(stream.directory))
    snapshots = chunk_types(stream.directory)[ChunkType.TRACKING_SNAPSHOT.name]
    with duramen.open(stream.directory, "a", segment_max_bytes=SMALL_SEGMENT_BYTES) as log:
        stream.check("recovery finds nothing to mend", [str(s.case) for s in log.recovery], ["clean"])
        stream.check("the next offset", log.next_offset, after)
        stream.append(log, 1, 1, 250, 1, 1500, 1, 800, 1)
    added = chunk_types(stream.directory)[ChunkType.TRACKING_SNAPSHOT.name] - snapshots
    bench.checks.add("continued", "tracking snapshots that Duramen wrote", added, "" if added else "none")
    yield
    stream.consume("consumed: the broker's records and Duramen's")
    stream.check("last sequence of the publisher 'writer'", bench.client.publisher_sequence("continued", "writer"), 300)
    stream.check("last sequence of the publisher 'other'", bench.client.publisher_sequence("continued", "other"), 1990)
    stream.check("stored offset of 'reader'", bench.client.stored_offset("continued", "reader"), 123)
    stream.check("stored offset of 'late'", bench.client.stored_offset("continued", "late"), 399)
    stream.check("stored offset of somebody unknown", bench.client.stored_offset("continued", "nobody"), None)
    again = bench.messages(50)
    confirmed = bench.client.publish("continued", again, name="writer", ids=range(281, 331))
    stream.check("published again under 'writer' with ids 281 to 330: confirmed", confirmed, 50)
    first = _next_user_offset(bench, stream, count=30)
    stream.expected += [Expected(first + number, raw) for number, raw in enumerate(again[20:])]
    stream.consume("consumed: the 20 duplicates are not there, the 30 new ones are")
    for _ in range(12):
        stream.publish(_next_offset_by_last(bench, stream), 100)
    bench.client.store_offset("continued", "reader", 1000)
    time.sleep(1)
    yield
    _renumber(stream)
    stream.read("read by Duramen, over the segments that the broker rolled")
    with duramen.open(stream.directory, "a") as log:
        stream.append(log, 1, 2000, 1)
    yield
    stream.consume("consumed: broker, Duramen, broker, Duramen")
    stream.check("last sequence of the publisher 'writer'", bench.client.publisher_sequence("continued", "writer"), 330)
    stream.check("stored offset of 'reader'", bench.client.stored_offset("continued", "reader"), 1000)
    stream.check("stored offset of 'late'", bench.client.stored_offset("continued", "late"), 399)
