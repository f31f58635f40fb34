"""The limits of group commit, one at a time with the others as they are by default: what each costs and brings."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from bench import logs
from bench.appending import open_log
from bench.measure import Crowd, Samples
from bench.report import Table, ms
from duramen.log.write.group_commit import GroupLimits

THREADS = 32
BATCH_RECORDS = 250
VALUE_BYTES = 1024
MIB = 1 << 20


def limits(scratch: Path, quick: bool) -> Iterator[Table]:
    seconds, rounds = (0.5, 1) if quick else (1.0, 6)
    default = GroupLimits()
    plans: dict[str, tuple[Any, list[Any]]] = {
        "max_batch_bytes": (default.max_bytes, [MIB // 4, MIB, 4 * MIB, 16 * MIB]),
        "max_batch_records": (default.max_records, [250, 1000, 4000, 65_536]),
        "queue_bytes": (default.queue_bytes, [MIB // 4, MIB, 4 * MIB, 16 * MIB, 64 * MIB]),
        "linger_ms": (default.linger_ms, [0.0, 0.2, 1.0, 5.0]),
    }
    for name, (usual, values) in plans.items():
        yield Table(
            f"Group commit, {name}: {THREADS} threads append batches of {BATCH_RECORDS} × 1 KiB at `fsync`",
            [name, "MiB/s", "p50 ms", "p99 ms"],
            _sweep(scratch, name, usual, values, seconds, rounds),
        )


def _sweep(scratch: Path, name: str, usual: Any, values: list[Any], seconds: float, rounds: int) -> Iterator[list[str]]:
    data = pa.array(logs.values(BATCH_RECORDS, VALUE_BYTES), pa.binary())
    rates = {value: Samples() for value in values}
    taken = {value: Samples() for value in values}
    for _ in range(rounds):
        for value in values:
            root = scratch / "limits"
            with open_log(root, "keratin", VALUE_BYTES, "fsync", **{name: value}) as log:
                crowd = Crowd(lambda log=log: log.append_batch(data), THREADS, seconds)
            rates[value].append(crowd.per_second * BATCH_RECORDS * VALUE_BYTES / MIB)
            taken[value] += crowd.samples
            shutil.rmtree(root)
    for value in values:
        mark = " (default)" if value == usual else ""
        yield [
            f"{value:,}{mark}", f"{rates[value].median:.1f}", ms(taken[value].median), ms(taken[value].percentile(99)),
        ]  # fmt: skip
