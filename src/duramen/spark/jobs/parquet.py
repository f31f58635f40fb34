"""Parquet files from a task: written by pyarrow, next to the bytes they come from, not by the JVM.

Rows are divided by the date or hour of their time (UTC), a file for each. Memory stays flat: what waits to be written
is bounded over all files, and so is the number of files that are open at once. A file is synced before it is reported.
"""

from __future__ import annotations

import posixpath
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from duramen.disk import PosixDisk
from duramen.spark.jobs.scanning import Portion
from duramen.spark.jobs.task_runner import attempt
from duramen.spark.output import DiskOutput
from duramen.values import Decoding

ROW_GROUP_BYTES = 32 << 20
WAITING_BYTES = 128 << 20
OPEN_FILES = 32
UNITS_US = {"date": 86_400_000_000, "hour": 3_600_000_000}
NO_TIME = -(2**63)
HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True)
class ParquetWriting:
    """What a task has to know to write its files."""

    portion: Portion
    directory: str
    partition_by: str | None
    compression: str
    decoding: Decoding | None = None


@dataclass(frozen=True)
class ParquetWritten:
    """A file that is on the disk. ``values``: those of the partition columns, as text; None for rows without time."""

    path: str
    rows: int
    size_bytes: int
    first_offset: int
    last_offset: int
    values: tuple[tuple[str, str | None], ...]


def partition_values(partition_by: str | None, unit: int) -> tuple[tuple[str, str | None], ...]:
    """The partition columns of the rows of one date or hour, which is counted from the epoch.

    >>> partition_values("hour", 19676 * 24 + 7)
    (('date', '2023-11-15'), ('hour', '7'))
    """
    if partition_by is None:
        return ()
    if unit == NO_TIME:
        return (("date", None),) if partition_by == "date" else (("date", None), ("hour", None))
    when = datetime.fromtimestamp(unit * UNITS_US[partition_by] / 1e6, UTC)
    date = (("date", when.date().isoformat()),)
    return date if partition_by == "date" else (*date, ("hour", str(when.hour)))


def write_portion(work: ParquetWriting) -> list[ParquetWritten]:
    """In an executor: read the rows of one portion and write them."""
    writer = _Writer(work)
    try:
        for part in work.portion.single_logs():
            with part.named():
                for batch in part.batches():
                    writer.add(batch)
        return writer.finish()
    finally:
        writer.abandon()


class _Writer:
    def __init__(self, work: ParquetWriting) -> None:
        self._work = work
        self._disk = PosixDisk()
        self._schema = file_schema(work.portion.wanted.schema, work.decoding)
        self._open: OrderedDict[int, _ParquetFile] = OrderedDict()
        self._waiting_bytes = 0
        self._count = 0
        self._written: list[ParquetWritten] = []
        self._prefix = f"part-{work.portion.number:05d}-{attempt().name}"

    def add(self, batch: pa.RecordBatch) -> None:
        for unit, rows in divide(batch, self._work.partition_by):
            offsets = rows.column("offset")
            first, last = offsets[0].as_py(), offsets[-1].as_py()
            file = self._file(unit)
            file.add(self._shaped(rows), first, last)
            self._waiting_bytes += rows.nbytes
            if file.waiting_bytes >= ROW_GROUP_BYTES:
                self._waiting_bytes -= file.flush()
            elif self._waiting_bytes >= WAITING_BYTES:
                for other in self._open.values():
                    self._waiting_bytes -= other.flush()

    def _shaped(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        decoding = self._work.decoding
        return rows if decoding is None else decoding.decode(rows).cast(self._schema)

    def _file(self, unit: int) -> _ParquetFile:
        found = self._open.get(unit)
        if found is None:
            if len(self._open) >= OPEN_FILES:
                self._close(next(iter(self._open)))
            values = partition_values(self._work.partition_by, unit)
            folders = [f"{name}={HIVE_NULL if value is None else value}" for name, value in values]
            folder = posixpath.join(self._work.directory, *folders)
            self._disk.make_directory(folder)
            path = posixpath.join(folder, f"{self._prefix}-{self._count:04d}.parquet")
            self._count += 1
            found = self._open[unit] = _ParquetFile(
                DiskOutput(self._disk, path), path, self._schema, self._work.compression, values
            )
        self._open.move_to_end(unit)
        return found

    def _close(self, unit: int) -> None:
        file = self._open.pop(unit)
        self._waiting_bytes -= file.flush()
        self._written.append(file.close())

    def finish(self) -> list[ParquetWritten]:
        for unit in list(self._open):
            self._close(unit)
        for folder in {posixpath.dirname(file.path) for file in self._written}:
            self._disk.sync_directory(folder)
        return self._written

    def abandon(self) -> None:
        """Close what an error left open. No commit lists these files, and the next run removes them."""
        for file in self._open.values():
            file.abandon()


class _ParquetFile:
    def __init__(self, output: DiskOutput, path: str, schema: pa.Schema, compression: str, values: Any) -> None:
        self.path = path
        self._output = output
        self._values = values
        plain = {"offset", "timestamp", "value"}
        simple = [field.name for field in schema if not pa.types.is_nested(field.type) and field.name != "value"]
        self._writer = pq.ParquetWriter(
            output, schema, compression=compression,
            use_dictionary=[field.name for field in schema if field.name not in plain],
            write_statistics=simple,
        )  # fmt: skip
        self._schema = schema
        self._batches: list[pa.RecordBatch] = []
        self.waiting_bytes = 0
        self._rows = 0
        self._first: int | None = None
        self._last = -1

    def add(self, rows: pa.RecordBatch, first: int, last: int) -> None:
        self._first = first if self._first is None else min(self._first, first)
        self._last = max(self._last, last)
        self._rows += rows.num_rows
        self._batches.append(rows)
        self.waiting_bytes += rows.nbytes

    def flush(self) -> int:
        """Write the waiting rows; returns their bytes."""
        written = self.waiting_bytes
        if self._batches:
            table = pa.Table.from_batches(self._batches).cast(self._schema)
            self._writer.write_table(table, row_group_size=table.num_rows)
            self._output.begin_sync()  # the disk stores this row group while the next one is decoded
        self._batches, self.waiting_bytes = [], 0
        return written

    def close(self) -> ParquetWritten:
        self._writer.close()
        try:
            self._output.sync()
        finally:
            self._output.close()
        assert self._first is not None
        return ParquetWritten(self.path, self._rows, self._output.size_bytes, self._first, self._last, self._values)

    def abandon(self) -> None:
        self._batches = []
        self._writer.close()
        self._output.close()


def file_schema(schema: pa.Schema, decoding: Decoding | None) -> pa.Schema:
    """The columns of the files, all nullable: other readers do not care for what must be there."""
    shown = schema if decoding is None else decoding.schema(schema)
    return pa.schema([_nullable(field) for field in shown])


def _nullable(field: pa.Field) -> pa.Field:
    kind = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([_nullable(inner) for inner in kind])
    elif pa.types.is_list(kind):
        kind = pa.list_(_nullable(kind.value_field).with_name("element"))
    return pa.field(field.name, kind)


def divide(batch: pa.RecordBatch, partition_by: str | None) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows by the date or hour of their time; rows of one keep their order."""
    if not batch.num_rows:
        return
    if partition_by is None:
        yield 0, batch
        return
    times = batch.column("timestamp").view(pa.int64())
    units = times.fill_null(0).to_numpy() // UNITS_US[partition_by]
    if times.null_count:
        units = np.where(times.is_null().to_numpy(zero_copy_only=False), NO_TIME, units)
    if units[0] == units[-1] and (units == units[0]).all():
        yield int(units[0]), batch
        return
    if (units[1:] < units[:-1]).any():
        order = np.argsort(units, kind="stable")
        batch, units = batch.take(pa.array(order)), units[order]
    starts = [0, *(np.flatnonzero(units[1:] != units[:-1]) + 1).tolist(), len(units)]
    for start, stop in pairwise(starts):
        yield int(units[start]), batch.slice(start, stop - start)
