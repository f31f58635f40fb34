"""Appending at `write`: batches against os.write of the same bytes, and what one append costs a thread."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa

import duramen
from bench import logs
from bench.measure import Samples, take_turns
from bench.peers import RELAXED
from bench.report import Table, at_least, at_most, us
from duramen import kernel
from duramen.formats import ScanPosition, Values
from duramen.log.segments import active_segment

COUNT = 1000
BATCH_VALUE_BYTES = 1024
SINGLE_VALUE_BYTES = 256
SINGLE_FORMATS = (*logs.FORMATS, "kafka")
SINGLE_BAR, CHUNK_BAR = 5, 8
BATCH_BAR, FLOOR_BAR = 0.8, 0.9
BATCHES_PER_FILE = 16
DIGEST_BAR = 3


def batches(scratch: Path, quick: bool) -> Iterator[Table]:
    yield Table(
        "append_batch of 1000 × 1 KiB at `write`, against os.write of the same bytes (µs)",
        [
            "format", "os.write median", "best",
            "list of bytes median", "best", "× os.write", "bar",
            "Arrow array median", "best", "× os.write", "bar",
            "codec and write alone, median", "list × them", "bar",
        ],
        _batches(scratch, 2 if quick else 12),
        "Every round begins with fresh files; ratios are of medians. Alone: the codec encodes, one call writes.",
    )  # fmt: skip


def _batches(scratch: Path, rounds: int) -> Iterator[list[str]]:
    values = logs.values(COUNT, BATCH_VALUE_BYTES)
    inputs = {"list": values, "arrow": pa.array(values, pa.binary())}
    for name in logs.FORMATS:
        samples = {work: Samples() for work in ("raw", "bare", *inputs)}
        for _ in range(rounds):
            root = scratch / "batches"
            root.mkdir()
            with ExitStack() as stack:
                contestants: dict[str, Callable[[], object]] = {}
                for kind, data in inputs.items():
                    log = stack.enter_context(open_log(root / kind, name, BATCH_VALUE_BYTES))
                    contestants[kind] = lambda log=log, data=data: log.append_batch(data)
                contestants["raw"] = raw_writer(stack, root / "raw", batch_bytes(root / "list", contestants["list"]))
                contestants["bare"] = codec_writer(stack, root / "bare", name, values)
                for work, more in take_turns(contestants, BATCHES_PER_FILE).items():
                    samples[work] += more[1:]
            shutil.rmtree(root)
        raw = samples["raw"]
        row = [name, us(raw.median), us(raw.best)]
        for kind in inputs:
            ratio = raw.median / samples[kind].median
            verdict = at_least(ratio, BATCH_BAR, f"{name}: append_batch at `write`, {kind} of 1000 × 1 KiB ÷ os.write")
            row += [us(samples[kind].median), us(samples[kind].best), f"{ratio:.2f}", verdict]
        share = samples["bare"].median / samples["list"].median
        what = f"{name}: append_batch at `write`, list of 1000 × 1 KiB ÷ codec and write alone"
        yield [*row, us(samples["bare"].median), f"{share:.2f}", at_least(share, FLOOR_BAR, what)]


def singles(scratch: Path, quick: bool) -> Iterator[Table]:
    yield Table(
        "One append of 256 B at `write`, one thread (µs)",
        ["format", "median", "p99", "os.write median", "p99", "× os.write", "bar"],
        _singles(scratch, 3_000 if quick else 30_000),
    )
    yield Table(
        "The same append elsewhere, without a sync (µs)",
        ["store", "appends", "median", "p99", "duramen (keratin) median", "duramen is faster by", "setting"],
        _relaxed(scratch, 500 if quick else 5_000),
    )


def _singles(scratch: Path, count: int) -> Iterator[list[str]]:
    (value,) = logs.values(1, SINGLE_VALUE_BYTES)
    fields: dict[str, Any] = {"key": b"a key", "headers": [("name", b"value")], "timestamp": 4_102_444_800_000}
    for name in SINGLE_FORMATS:
        limits = logs.codec(name, SINGLE_VALUE_BYTES).capabilities
        plain = ("", CHUNK_BAR if limits.chunks else SINGLE_BAR, {})
        full = (" with key, header and time", CHUNK_BAR, fields)
        for what, bar, more in (plain, full) if limits.headers else (plain,):
            root = scratch / "singles"
            root.mkdir()
            with ExitStack() as stack:
                log = stack.enter_context(open_log(root / "log", name, SINGLE_VALUE_BYTES))
                append = lambda log=log, more=more: log.append(value, **more)  # noqa: E731
                write = raw_writer(stack, root / "raw", batch_bytes(root / "log", append))
                samples = take_turns({"append": append, "raw": write}, count)
            appended, written = samples["append"], samples["raw"]
            ratio = appended.median / written.median
            verdict = at_most(ratio, bar, "×", f"{name}: one append of 256 B at `write`{what} ÷ os.write")
            times = [us(seconds) for one in (appended, written) for seconds in (one.median, one.percentile(99))]
            yield [f"{name}{what}", *times, f"{ratio:.1f}", verdict]
            shutil.rmtree(root)


def _relaxed(scratch: Path, count: int) -> Iterator[list[str]]:
    (value,) = logs.values(1, SINGLE_VALUE_BYTES)
    for name, kind in RELAXED.items():
        if find_spec(kind.module) is None:
            yield [name, "", "not run", "", "", "", "not installed"]
            continue
        root = scratch / "relaxed"
        root.mkdir()
        with ExitStack() as stack:
            log = stack.enter_context(open_log(root / "log", "keratin", SINGLE_VALUE_BYTES))
            commit = kind.open(stack, root / "peer")
            work = {"ours": lambda log=log: log.append(value), "peer": lambda commit=commit: commit([value])}
            samples = take_turns(work, count)
        shutil.rmtree(root)
        ours, theirs = samples["ours"].median, samples["peer"].median
        times = [us(theirs), us(samples["peer"].percentile(99)), us(ours)]
        yield [name, str(count), *times, f"{theirs / ours:.1f} ×", kind.durability]


def digest(scratch: Path, quick: bool) -> Iterator[Table]:
    yield Table(
        "The digest of the active segment: its share of an append (%, of the time of all rounds)",
        ["format"]
        + [
            title
            for what in ("one of 256 B, `write`", "1000 × 1 KiB, `write`", "1000 × 256 B, `fsync`")
            for title in (what, "floor", "bar")
        ],
        _digest(scratch, 200 if quick else 2_000),
        "Formats whose own checksums cover every byte have no digest. Floor: the bare kernel over the same bytes, "
        "in the processor's cache.",
    )


class _Timed:
    """The kernel as `ActiveSegment` calls it, with a clock at the digest."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def crc32c(self, data: memoryview, crc: int = 0) -> int:
        start = time.perf_counter()
        found = kernel.crc32c(data, crc)
        self.seconds += time.perf_counter() - start
        return found


def _seconds_of_digest(record: bytes) -> float:
    """What the digest of one record takes in the kernel: a call with the record less a call without a byte."""
    work = {"digest": lambda: kernel.crc32c(record), "call": lambda: kernel.crc32c(b"")}
    samples = take_turns({what: lambda run=run: [run() for _ in range(100)] for what, run in work.items()}, 100)
    return (samples["digest"].median - samples["call"].median) / 100


def _digest(scratch: Path, rounds: int) -> Iterator[list[str]]:
    (one,) = logs.values(1, SINGLE_VALUE_BYTES)
    large, small = logs.values(COUNT, BATCH_VALUE_BYTES), logs.values(COUNT, SINGLE_VALUE_BYTES)
    for name in logs.FORMATS:
        if logs.codec(name, SINGLE_VALUE_BYTES).capabilities.covers_all:
            continue
        row = [name]
        few = rounds // 10
        for durability, data, times in (("write", one, rounds), ("write", large, few), ("fsync", small, few)):
            clock = _Timed()
            value_bytes = BATCH_VALUE_BYTES if data is large else SINGLE_VALUE_BYTES
            more = {} if name == "fixed-slot" else {"segment_max_bytes": 1 << 30}
            with open_log(scratch / "digest", name, value_bytes, durability, **more) as log:
                append = log.append if isinstance(data, bytes) else log.append_batch
                append(data)
                with mock.patch.object(active_segment, "kernel", clock):
                    start = time.perf_counter()
                    for _ in range(times):
                        append(data)
                    seconds = time.perf_counter() - start
                floor = times * _seconds_of_digest(batch_bytes(scratch / "digest", partial(append, data)))
                if data is one:  # the record writer takes the digest in C, where no clock of Python reaches
                    clock.seconds += floor
            share = 100 * clock.seconds / seconds
            what = f"{name}: the digest's share of an append of {'1' if data is one else COUNT} at `{durability}`, %"
            row += [f"{share:.1f}", f"{100 * floor / seconds:.1f}", at_most(share, DIGEST_BAR, "%", what)]
            shutil.rmtree(scratch / "digest")
        yield row


def open_log(root: Path, name: str, value_bytes: int, durability: str = "write", **more: Any) -> duramen.WritableLog:
    return duramen.open(root, "a", format=name, durability=durability, **logs.options(name, value_bytes), **more)


def batch_bytes(root: Path, append: Callable[[], object]) -> bytes:
    """What one append adds to the records of the active segment of the log at ``root``."""
    with duramen.open(root) as log:
        before = log.segments[-1].size_bytes
        append()
        log.refresh()
        after = log.segments[-1]
    return Path(after.path).read_bytes()[before : after.size_bytes]


def codec_writer(stack: ExitStack, path: Path, name: str, values: list[bytes]) -> Callable[[], None]:
    """Encodes the values after one another with the codec and the digest that the format needs, and writes them."""
    fmt = logs.codec(name, len(values[0]))
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    stack.callback(os.close, descriptor)
    cursor, crc32c = ScanPosition(0, -1), 0

    def write() -> None:
        nonlocal cursor, crc32c
        encoded = fmt.encode_values(Values(values), cursor, logs.CREATED_MS * 1000)
        os.pwrite(descriptor, encoded.data, cursor.position)
        if not fmt.capabilities.covers_all:
            crc32c = kernel.crc32c(encoded.data, crc32c)
        cursor = encoded.rows.cursor

    return write


def raw_writer(stack: ExitStack, path: Path, data: bytes, *, sync: bool = False) -> Callable[[], None]:
    """Appends ``data`` to a fresh file each time it is called; with ``sync``, until it is on the disk."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    stack.callback(os.close, descriptor)

    def write() -> None:
        if os.write(descriptor, data) != len(data):
            raise OSError("a short write")
        if sync:
            os.fdatasync(descriptor)

    return write
