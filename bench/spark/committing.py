"""The commit of a batch: what the driver does with the files that tasks have staged, in this process.

No Spark: one thread stages the rows as tasks do. What is measured is `publish`, from locking the log to removing the
staged files. The floor checks the same staged files by their checksum, copies their bytes into one file and syncs it.
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

BAR = 0.9
TASKS, BATCH_BYTES, COPY_BYTES = 4, 2 << 20, 1 << 20


class _Staged:
    """A batch that waits for its commit."""

    def __init__(self, path: Path, batch: pa.RecordBatch, batches: int) -> None:
        shutil.rmtree(path, ignore_errors=True)
        self.options = parse_write_options({"path": str(path), "logformat": "keratin"})
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
    waiting: list[_Staged] = []

    def stage() -> None:
        waiting[:] = [_Staged(scratch / "commit", batch, total_bytes // BATCH_BYTES)]

    work = {"commit": lambda: waiting[0].commit(), "copy": lambda: waiting[0].copy()}
    turns = take_turns(work, rounds, before=stage)
    shutil.rmtree(scratch / "commit")
    cpu, wall = (_ratio(turns, kind) for kind in Cost._fields)
    name = f"commit, {row_bytes} B"
    return [
        (f"{name}, × checksum, copy and sync, wall", wall, BAR),
        (f"{name}, × checksum, copy and sync, CPU", cpu, None),
        (f"{name}, MB/s", total_bytes / turns["commit"].wall.median / 1e6, None),
    ]


def _ratio(turns: dict[str, Cost], kind: str) -> float:
    floor, ours = (getattr(turns[name], kind).median for name in ("copy", "commit"))
    return float(floor / ours)
