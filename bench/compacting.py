"""Compacting: 10 million records with 1 million keys, and a log in which every key is there once.

Each run is a process of its own on one core, so that its peak of resident memory (mapped pages of files included) is
its own. The bar is held against the processor's time, because it is about one core and not about the disk; the clock
on the wall is beside it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import duramen
from bench.measure import one_core, peak_resident_bytes
from bench.report import Table, at_least, at_most
from duramen.log.maintain.compact import Compaction

BAR_MB_S = 150
MEMORY_BAR_MIB = 512
VALUE_BYTES = 100
KEY_BYTES = 8
STEP = 100_000
FORMATS = {"durable-log": f"prefix:{KEY_BYTES}", "rustlog": f"prefix:{KEY_BYTES}", "keratin": "key"}


def compacting(scratch: Path, quick: bool) -> Iterator[Table]:
    records, keys = (400_000, 40_000) if quick else (10_000_000, 1_000_000)
    yield Table(
        f"Compact {records:,} records of {VALUE_BYTES} B with {keys:,} keys, one core",
        ["format", "MB", "MB/s", "bar", "MB/s by the wall", "peak resident MiB", "bar", "records left"],
        _rows(scratch, records, keys),
        "MB/s of the log before, by the processor's time; both passes, syncs and the new segments included.",
    )
    yield Table(
        f"The same with {records:,} keys: nothing to remove",
        ["format", "MB/s", "MB/s by the wall", "peak resident MiB", "bar", "says"],
        _distinct(scratch, records),
    )


def _rows(scratch: Path, records: int, keys: int) -> Iterator[list[str]]:
    for name, key in FORMATS.items():
        run = _measured(scratch, name, key, records, keys)
        report = run["report"]
        if report["records_before"] < records or report["keys"] > keys:
            raise RuntimeError(f"not what was to be measured: {report}")
        rate = run["bytes"] / run["processor_s"] / 1e6
        peak = run["peak_bytes"] / 2**20
        yield [
            name, f"{run['bytes'] / 1e6:,.0f}", f"{rate:,.0f}", at_least(rate, BAR_MB_S, f"compact {name}, MB/s"),
            f"{run['bytes'] / run['wall_s'] / 1e6:,.0f}", f"{peak:,.0f}",
            at_most(peak, MEMORY_BAR_MIB, "MiB", f"compact {name}, memory"), f"{report['records_after']:,}",
        ]  # fmt: skip


def _distinct(scratch: Path, records: int) -> Iterator[list[str]]:
    for name, key in FORMATS.items():
        run = _measured(scratch, name, key, records, records)
        peak = run["peak_bytes"] / 2**20
        yield [
            name, f"{run['bytes'] / run['processor_s'] / 1e6:,.0f}", f"{run['bytes'] / run['wall_s'] / 1e6:,.0f}",
            f"{peak:,.0f}", at_most(peak, MEMORY_BAR_MIB, "MiB"), run["report"]["note"],
        ]  # fmt: skip


def _measured(scratch: Path, name: str, key: str, records: int, keys: int) -> dict[str, Any]:
    root = scratch / "compact"
    write(root, name, records, keys)
    command = [sys.executable, "-m", "bench.compacting", str(root), key]
    done = subprocess.run(command, check=True, capture_output=True)
    shutil.rmtree(root)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def write(root: Path, name: str, records: int, keys: int) -> None:
    """Values that begin with their key; where the format has keys, it is there, too. Half of the keys are written once,
    anywhere, so that every segment keeps some records and has to be written anew; the others again and again."""
    chance = np.random.default_rng(1)
    with duramen.open(root, "a", format=name, durability="write", segment_max_bytes=128 << 20) as log:
        for start in range(0, records, STEP):
            part = _keys(chance, records, keys, range(start, min(start + STEP, records)))
            count = len(part)
            raw = chance.integers(0, 256, (count, VALUE_BYTES), np.uint8)
            raw[:, :KEY_BYTES] = part.view(np.uint8).reshape(count, KEY_BYTES)
            columns = {"value": _column(raw)}
            if name == "keratin":
                columns["key"] = _column(np.ascontiguousarray(raw[:, :KEY_BYTES]))
            log.append_batch(pa.record_batch(columns))
        log.seal()


def _keys(chance: np.random.Generator, records: int, keys: int, part: range) -> np.ndarray[Any, np.dtype[np.uint64]]:
    if keys == records:
        return np.array(part, np.uint64)
    cold = range(part.start * keys // (2 * records), part.stop * keys // (2 * records))
    hot = chance.integers(keys // 2, keys, len(part) - len(cold))
    return chance.permutation(np.concatenate([np.array(cold), hot])).astype(np.uint64)


def _column(rows: np.ndarray[Any, np.dtype[np.uint8]]) -> pa.Array:
    bounds = np.arange(len(rows) + 1, dtype=np.int32) * rows.shape[1]
    return pa.Array.from_buffers(pa.binary(), len(rows), [None, pa.py_buffer(bounds), pa.py_buffer(rows.tobytes())])


def measure(root: str, key: str) -> None:
    """In a process of its own."""
    pa.set_cpu_count(1)
    with duramen.open(root, "a") as log, one_core():
        size = sum(segment.size_bytes for segment in log.segments)
        wall, processor = time.perf_counter(), time.process_time()
        report = log.compact(Compaction(key=key))
        wall, processor = time.perf_counter() - wall, time.process_time() - processor
    peak = peak_resident_bytes()
    shown = {name: getattr(report, name) for name in ("records_before", "records_after", "keys", "note")}
    print(json.dumps({"bytes": size, "wall_s": wall, "processor_s": processor, "peak_bytes": peak, "report": shown}))


if __name__ == "__main__":
    measure(*sys.argv[1:])
