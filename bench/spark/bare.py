"""What this machine can do at most: as many processes as cores, which do the bare work and nothing else.

They are started once and have what they need in memory, or in the page cache, before the clock runs. No Spark, no
planning, no rows on their way: what is missing to *cores × one core* here is the machine's, not the program's.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import duramen
from bench import logs
from bench.verifying import scan_segments
from duramen.spark.jobs.parquet import ROW_GROUP_BYTES

Share = tuple[int, int]
"""A range of offsets."""
_tables: dict[Share, pa.Table] = {}


@contextmanager
def processes(count: int) -> Iterator[list[ProcessPoolExecutor]]:
    started = [ProcessPoolExecutor(1, get_context("spawn")) for _ in range(count)]
    try:
        for future in [one.submit(os.getpid) for one in started]:
            future.result()
        yield started
    finally:
        for one in started:
            one.shutdown()


def _all(futures: Sequence[Future[Any]]) -> None:
    for future in futures:
        future.result()


def scan(workers: Sequence[ProcessPoolExecutor], format: str, files: Sequence[tuple[str, int]]) -> None:
    """The kernel's scan of segments, given by path and base offset; every process has its share of them."""
    step = len(workers)
    _all([one.submit(_scan, format, list(files[number::step])) for number, one in enumerate(workers)])


def _scan(format: str, files: list[tuple[str, int]]) -> None:
    scan_segments(logs.codec(format, 0), files)


def load(workers: Sequence[ProcessPoolExecutor], path: Path, columns: Sequence[str]) -> list[Share]:
    """Have each process read its share of a log's records into memory."""
    with duramen.open(path) as log:
        first, end = log.first_offset or 0, log.next_offset
    step = -(-(end - first) // len(workers))
    shares = [(start, min(start + step, end)) for start in range(first, end, step)]
    _all([one.submit(_load, str(path), share, list(columns)) for one, share in zip(workers, shares, strict=True)])
    return shares


def _load(path: str, share: Share, columns: list[str]) -> None:
    with duramen.open(path) as log:
        batches = list(log.batches(from_offset=share[0], to_offset=share[1]))
    _tables.clear()
    _tables[share] = pa.Table.from_batches(batches).select(columns)


def write(workers: Sequence[ProcessPoolExecutor], shares: Sequence[Share], directory: Path, *, sync: bool) -> None:
    """Parquet from memory, with the settings of `export`; with ``sync`` every file is on the disk in the end."""
    directory.mkdir()
    _all([one.submit(_write, share, str(directory), sync) for one, share in zip(workers, shares, strict=True)])


def _write(share: Share, directory: str, sync: bool) -> None:
    table = _tables[share]
    path = os.path.join(directory, f"{share[0]}.parquet")
    rows = max(1, table.num_rows * ROW_GROUP_BYTES // max(table.nbytes, 1))
    plain = {"offset", "timestamp", "value"}
    names = table.schema.names
    with pq.ParquetWriter(
        path, table.schema, compression="snappy", use_dictionary=[name for name in names if name not in plain],
        write_statistics=[name for name in names if name not in ("value", "headers")],
    ) as file:  # fmt: skip
        file.write_table(table, row_group_size=rows)
    if sync:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
