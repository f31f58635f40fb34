"""The commit of a batch: what the driver does with the files that tasks have staged, in this process.

No Spark: one thread stages the rows as tasks do. What is measured is `publish`, from locking the log to removing the
staged files. The floor checks the same staged files by their checksum, copies their bytes into one file and syncs it.
*Growth* is how many bytes of values a commit that is longer by a second stores more.
"""

from __future__ import annotations

import posixpath
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa

from bench.spark.cpu import Cost, take_turns
from duramen.disk import PosixDisk, write_all
from duramen.sidecar import JOBS_LEDGER, BatchKey
from duramen.spark.sink.options import parse_write_options
from duramen.spark.sink.router import Router, plan_target
from duramen.spark.sink.sink import StoredBatch, publish
from duramen.spark.sink.staging import Staging

BAR, GROWTH_BAR = 0.9, 1000.0
FORMATS = {"keratin": {}, "kafka, zstd": {"compression": "zstd"}}
TASKS, BATCH_BYTES, COPY_BYTES = 4, 2 << 20, 1 << 20
PART = 4
"""The growth is measured from a batch that is smaller by this factor."""


class _Staged:
    """A batch that waits for its commit."""

    def __init__(self, path: Path, batch: pa.RecordBatch, batches: int, format: str) -> None:
        shutil.rmtree(path, ignore_errors=True)
        named = {"path": str(path), "logformat": format.partition(",")[0], **FORMATS[format]}
        self.options = parse_write_options(named)
        self.target = plan_target(self.options, ["value"], overwrite=False)
        self.staging = Staging(str(path), "bench")
        self.messages = []
        for task in range(TASKS):
            router = Router(self.target, self.staging, task, f"{task:05d}-0")
            for _ in range(batches // TASKS):
                router.write(batch)
            self.messages.append(StoredBatch("bench", task, router.close()))

    def commit(self) -> None:
        publish(self.options, self.target, self.staging, BatchKey(JOBS_LEDGER, None, "bench"), self.messages)

    def copy(self) -> None:
        disk = PosixDisk()
        file = disk.create(posixpath.join(self.target.path, "copy"))
        position = 0
        for message in self.messages:
            for staged in message.files:
                data = self.staging.map(staged)  # checks it
                for start in range(0, len(data), COPY_BYTES):
                    write_all(file, position + start, data[start : start + COPY_BYTES])
                position += len(data)
        file.sync()
        file.close()


def measure(scratch: Path, row_bytes: int, total_bytes: int, rounds: int) -> list[tuple[str, float, float | None]]:
    """Name, value and bar of each figure; a bar is a lower bound."""
    rows = BATCH_BYTES // row_bytes
    ends = np.arange(0, (rows + 1) * row_bytes, row_bytes, np.int32)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(np.random.default_rng(1).bytes(rows * row_bytes))]
    batch = pa.RecordBatch.from_arrays([pa.BinaryArray.from_buffers(pa.binary(), rows, buffers)], names=["value"])
    return [figure for format in FORMATS for figure in _measure(scratch, format, batch, row_bytes, total_bytes, rounds)]


def _measure(
    scratch: Path, format: str, batch: pa.RecordBatch, row_bytes: int, total_bytes: int, rounds: int
) -> list[tuple[str, float, float | None]]:
    waiting: dict[str, _Staged] = {}
    batches = total_bytes // BATCH_BYTES

    def stage(_turn: str) -> None:
        for name, count in (("whole", batches), ("part", batches // PART)):
            waiting[name] = _Staged(scratch / f"commit-{name}", batch, count, format)

    work = {
        "commit": lambda: waiting["whole"].commit(),
        "part": lambda: waiting["part"].commit(),
        "copy": lambda: waiting["whole"].copy(),
    }
    turns = take_turns(work, rounds, before=stage)
    for name in waiting:
        shutil.rmtree(scratch / f"commit-{name}")
    cpu, wall = (_ratio(turns, kind) for kind in Cost._fields)
    more = total_bytes - total_bytes // PART
    more_cpu_s, more_s = (
        max(getattr(turns["commit"], kind).median - getattr(turns["part"], kind).median, 1e-9) for kind in Cost._fields
    )
    name = f"commit, {format}, {row_bytes} B"
    return [
        (f"{name}, growth, MB/s", more / more_s / 1e6, GROWTH_BAR),
        (f"{name}, growth, MB per CPU second", more / more_cpu_s / 1e6, None),
        (f"{name}, × checksum, copy and sync, wall", wall, BAR if format == "keratin" else None),
        (f"{name}, × checksum, copy and sync, CPU", cpu, None),
        (f"{name}, MB/s", total_bytes / turns["commit"].wall.median / 1e6, None),
    ]


def _ratio(turns: dict[str, Cost], kind: str) -> float:
    floor, ours = (getattr(turns[name], kind).median for name in ("copy", "commit"))
    return float(floor / ours)
