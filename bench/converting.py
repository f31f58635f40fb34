"""Converting: every pair of formats as a matrix, in MB/s of values on one core, and the memory that it takes.

A conversion goes over the source twice, writes, syncs and checks what it wrote: all of that is in the time. The bar is
held against the processor's time, because it is about one core and not about the disk; the other matrix is what a
clock on the wall shows, disk included."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bench import logs
from bench.measure import one_core, resident_anonymous_bytes
from bench.report import Table, at_least, at_most
from duramen.log.transfer.convert import Conversion
from duramen.log.transfer.loss_survey import FIELDS

PAYLOAD_BYTES = 1024
BAR_MB_S = 300
MEMORY_BAR_MIB = 256


class Run(NamedTuple):
    wall_s: float
    processor_s: float
    memory_bytes: int


def converting(scratch: Path, quick: bool) -> Iterator[Table]:
    size, rounds = 32 << 20 if quick else 256 << 20, 3
    runs = {source: _row(scratch, source, size, rounds) for source in logs.FORMATS}
    columns = ["from \\ to", *logs.FORMATS]
    slowest = min(size / run.processor_s / 1e6 for row in runs.values() for run in row.values())
    most = max(run.memory_bytes for row in runs.values() for run in row.values()) / 2**20
    verdict = f"slowest {slowest:,.0f} MB/s, {at_least(slowest, BAR_MB_S)}"
    yield Table(
        f"Convert, {PAYLOAD_BYTES} B values, {size >> 20} MiB: MB/s on one core", columns,
        _matrix(runs, lambda run: f"{size / run.processor_s / 1e6:,.0f}"), verdict,
    )  # fmt: skip
    yield Table("The same by the clock on the wall, disk included", columns,
                _matrix(runs, lambda run: f"{size / run.wall_s / 1e6:,.0f}"))  # fmt: skip
    yield Table("Memory that it adds, MiB", columns, _matrix(runs, lambda run: f"{run.memory_bytes / 2**20:,.0f}"),
                f"most {most:,.0f} MiB, {at_most(most, MEMORY_BAR_MIB, 'MiB')}")  # fmt: skip


def _matrix(runs: dict[str, dict[str, Run]], cell: object) -> Iterator[list[str]]:
    for source, row in runs.items():
        yield [source, *(cell(row[target]) for target in logs.FORMATS)]  # type: ignore[operator]


def _row(scratch: Path, source: str, size_bytes: int, rounds: int) -> dict[str, Run]:
    root = scratch / f"convert-{source}"
    logs.write(root, source, PAYLOAD_BYTES, size_bytes // 4 if source != "fixed-slot" else size_bytes,
               4 if source != "fixed-slot" else 1)  # fmt: skip
    row = {}
    for target in logs.FORMATS:
        runs = [_convert(root, scratch / "converted", source, target) for _ in range(rounds)]
        wall_s, processor_s, memory_bytes = zip(*runs, strict=True)
        row[target] = Run(min(wall_s), min(processor_s), max(memory_bytes))
    shutil.rmtree(root)
    return row


def _convert(root: Path, new: Path, source: str, target: str) -> Run:
    before = most = resident_anonymous_bytes()

    def watch(_bytes: int) -> None:
        nonlocal most
        most = max(most, resident_anonymous_bytes())

    with one_core():
        wall, processor = time.perf_counter(), time.process_time()
        conversion = Conversion(
            str(root), str(new), target, allow_loss=tuple(FIELDS), format=source,
            source_options=logs.options(source, PAYLOAD_BYTES), **logs.options(target, PAYLOAD_BYTES),
        )  # fmt: skip
        conversion.run(watch, watch)
        run = Run(time.perf_counter() - wall, time.process_time() - processor, most - before)
    shutil.rmtree(new)
    return run
