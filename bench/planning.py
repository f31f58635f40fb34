"""For capacity planning: reads from a cold cache, what the index costs a writer, and what many segments cost."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import duramen
from bench import logs
from bench.appending import open_log
from bench.measure import Samples, resident_anonymous_bytes, take_turns
from bench.report import Table, us

READS, QUICK_READS = 16, 4
VALUE_BYTES = 256
BATCH = 4000
DROP_CACHES = Path("/proc/sys/vm/drop_caches")


def forget(root: Path) -> str:
    """Drop the files below ``root`` from the page cache, or the whole cache where this process may. Says how."""
    for path in (path for path in root.rglob("*") if path.is_file()):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
    try:
        DROP_CACHES.write_text("1")
    except OSError:
        return "posix_fadvise"
    return "drop_caches"


def cold(scratch: Path, quick: bool) -> Iterator[Table]:
    yield Table(
        "Reads with the log in the page cache (warm) and after dropping it (cold)",
        ["format", "one record warm µs", "cold µs", "×", "scan warm MB/s", "cold MB/s", "×", "cache dropped by"],
        _cold(scratch, (16 if quick else 256) << 20, QUICK_READS if quick else READS),
        "Median of a few records at random offsets, 1 KiB each. Every read opens the log first.",
    )  # fmt: skip


def _cold(scratch: Path, size_bytes: int, count: int) -> Iterator[list[str]]:
    for name in logs.FORMATS:
        root = scratch / "cold"
        logs.write(root, name, 1024, size_bytes)
        options = logs.options(name, 1024)
        chosen = random.Random(1).sample(range(size_bytes // 1024), count)
        warm, cold = _times(root, name, options, chosen, drops=False), _times(root, name, options, chosen)
        scans = [size_bytes / 1e6 / times.scan_s for times in (warm, cold)]
        yield [
            name, us(warm.reads.median), us(cold.reads.median), f"{cold.reads.median / warm.reads.median:.1f}",
            f"{scans[0]:.0f}", f"{scans[1]:.0f}", f"{scans[1] / scans[0]:.2f}", cold.dropped_by,
        ]  # fmt: skip
        shutil.rmtree(root)


class Times(NamedTuple):
    reads: Samples
    scan_s: float
    dropped_by: str


def _times(root: Path, name: str, options: dict[str, Any], chosen: list[int], *, drops: bool = True) -> Times:
    """Seconds of single reads and of a scan, each with a log that is opened for it."""
    reads, dropped_by = Samples(), ""
    for offset in (*chosen, None):
        if drops:
            dropped_by = forget(root)
        start = time.perf_counter()
        with duramen.open(root, format=name, **options) as log:
            if offset is not None:
                log.read(offset)
            else:
                _scan(log)
        seconds = time.perf_counter() - start
        if offset is not None:
            reads.append(seconds)
    return Times(reads, seconds, dropped_by)


def _scan(log: duramen.Log) -> None:
    for _ in log.batches():
        pass


def index(scratch: Path, quick: bool) -> Iterator[Table]:
    yield Table(
        f"append_batch of {BATCH} × {VALUE_BYTES} B at `write`, with and without writing an index",
        ["format", "with M rec/s", "without M rec/s", "× without", "index bytes per MB of records"],
        _index(scratch, 5 if quick else 40),
        "Ratios are of medians. Without: the same writer, whose index takes no entries.",
    )


def _index(scratch: Path, rounds: int) -> Iterator[list[str]]:
    values = logs.values(BATCH, VALUE_BYTES)
    for name in logs.FORMATS:
        root = scratch / "index"
        root.mkdir()
        with open_log(root / "with", name, VALUE_BYTES) as on, open_log(root / "without", name, VALUE_BYTES) as off:
            _stop_index(off)
            samples = take_turns({"with": lambda: on.append_batch(values), "without": lambda: off.append_batch(values)},
                                 rounds)  # fmt: skip
        files = [path for path in (root / "with").rglob("*") if path.is_file() and ".duramen" not in path.parts]
        data = sum(path.stat().st_size for path in files if path.suffix in (".log", ".segment", ".dat", ".bin", ""))
        rest = sum(path.stat().st_size for path in files if "idx" in path.suffix or "index" in path.suffix)
        speeds = {kind: BATCH / 1e6 / samples[kind].median for kind in samples}
        ratio = speeds["with"] / speeds["without"]
        yield [name, f"{speeds['with']:.2f}", f"{speeds['without']:.2f}", f"{ratio:.2f}", f"{rest * 1e6 / data:,.0f}"]
        shutil.rmtree(root)


def _stop_index(log: duramen.WritableLog) -> None:
    active = log.tail.active
    active.index.add = lambda _rows: None  # type: ignore[method-assign]
    active.flush_index = lambda: None  # type: ignore[method-assign]


def segments(scratch: Path, quick: bool) -> Iterator[Table]:
    yield Table(
        "What many segments cost a reader that has read from each of them",
        ["format", "segments", "memory KiB", "descriptors", "sealed.jsonl B per segment", "open for append ms"],
        _segments(scratch, 100 if quick else 300),
        "Memory is anonymous memory; the page cache holds the records.",
    )


def _segments(scratch: Path, count: int) -> Iterator[list[str]]:
    for name in (name for name in logs.FORMATS if name != "fixed-slot"):
        root = scratch / "segments"
        with open_log(root, name, 1000, segment_max_bytes=1 << 16) as writer:
            for _ in range(count):
                writer.append_batch([bytes(1000)] * 66)
        before, held = resident_anonymous_bytes(), len(os.listdir("/proc/self/fd"))
        with duramen.open(root, format=name) as log:
            found = log.segments
            for segment in found:
                log.read(segment.base_offset)
            memory = resident_anonymous_bytes() - before
            descriptors = len(os.listdir("/proc/self/fd")) - held
        start = time.perf_counter()
        open_log(root, name, 1000).close()
        opened_s = time.perf_counter() - start
        listed = (root / ".duramen" / "sealed.jsonl").stat().st_size / (len(found) - 1)
        yield [name, str(len(found)), f"{memory >> 10:,}", str(descriptors), f"{listed:.0f}", f"{opened_s * 1000:.1f}"]
        shutil.rmtree(root)
