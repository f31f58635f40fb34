"""A source that yields rows from memory, and sinks that drop or only write them: how fast Python can be at all here."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceWriter,
    InputPartition,
    WriterCommitMessage,
)

from duramen.disk import PosixDisk, write_all
from duramen.kernel import crc32c
from duramen.spark.gc_freeze import settle
from duramen.spark.output import DiskOutput

BATCH_BYTES = 2 << 20
COPY_BYTES = 1 << 20
NARROW_ROWS = 1 << 16
"""Rows of a batch without values."""
KINDS = {"offset": "BIGINT", "timestamp": "TIMESTAMP", "key": "BINARY", "value": "BINARY"}
ARROW = pa.schema(
    [("offset", pa.int64()), ("timestamp", pa.timestamp("us", "UTC")), ("key", pa.binary()), ("value", pa.binary())]
)


class Synthetic(DataSource):
    """Options: ``rows``, ``bytes`` of a value, ``tasks``, ``columns`` (all four)."""

    @classmethod
    def name(cls) -> str:
        return "synthetic"

    def schema(self) -> str:
        return ", ".join(f"{name} {KINDS[name]}" for name in self._names())

    def _names(self) -> list[str]:
        return self.options.get("columns", ",".join(KINDS)).split(",")

    def reader(self, schema: object) -> DataSourceReader:
        numbers = (int(self.options[name]) for name in ("rows", "bytes", "tasks"))
        return SyntheticReader(*numbers, self._names())

    def writer(self, schema: object, overwrite: bool) -> DataSourceWriter:
        path = self.options.get("path")
        return DroppingWriter() if path is None else WritingWriter(path)


class SyntheticReader(DataSourceReader):
    def __init__(self, rows: int, payload_bytes: int, tasks: int, names: list[str]) -> None:
        self._rows, self._payload_bytes, self._tasks, self._names = rows, payload_bytes, tasks, names

    def partitions(self) -> list[InputPartition]:
        bounds = np.linspace(0, self._rows, self._tasks + 1).astype(int).tolist()
        return [InputPartition(pair) for pair in pairwise(bounds)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        settle()
        first, end = partition.value
        has_value = "value" in self._names
        step = max(1, BATCH_BYTES // self._payload_bytes) if has_value else NARROW_ROWS
        arrays = {"timestamp": pa.array(np.arange(step)).view(ARROW.field("timestamp").type)}
        if has_value:
            noise = bytes(range(256)) * (step * self._payload_bytes // 256 + 1)
            bounds = pa.py_buffer(np.arange(step + 1, dtype=np.int32) * self._payload_bytes)
            arrays["value"] = pa.Array.from_buffers(pa.binary(), step, [None, bounds, pa.py_buffer(noise)])
            arrays["key"] = pa.nulls(step, pa.binary())
        schema = pa.schema([ARROW.field(name) for name in self._names])
        for start in range(first, end, step):
            arrays["offset"] = pa.array(np.arange(start, start + step))
            batch = pa.RecordBatch.from_arrays([arrays[name] for name in self._names], schema=schema)
            yield batch.slice(0, min(step, end - start))


class DroppingWriter(DataSourceArrowWriter):
    """Takes the batches and keeps none."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        settle()
        for _ in iterator:
            pass
        return WriterCommitMessage()


class WrittenBytes(WriterCommitMessage):
    def __init__(self, path: str, size_bytes: int, checksum: int) -> None:
        self.path, self.size_bytes, self.checksum = path, size_bytes, checksum


class WritingWriter(DataSourceArrowWriter):
    """The least that a sink must do whose rows end up in one file, all or none: tasks write files with a checksum, the
    commit checks them, copies them into one file and syncs that. No format, no index, no ledger."""

    def __init__(self, path: str) -> None:
        self._path = path

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        settle()
        context = TaskContext.get()
        assert context is not None
        disk = PosixDisk()
        disk.make_directory(self._path)
        output = DiskOutput(disk, f"{self._path}/{context.partitionId()}")
        for batch in iterator:
            with pa.ipc.new_stream(output, batch.schema) as stream:
                stream.write_batch(batch)
        output.close()
        return WrittenBytes(f"{self._path}/{context.partitionId()}", output.size_bytes, output.crc32c)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        settle()
        disk = PosixDisk()
        file = disk.create(f"{self._path}/all")
        position = 0
        for message in messages:
            assert isinstance(message, WrittenBytes)
            data = disk.map(message.path).data
            assert (len(data), crc32c(data)) == (message.size_bytes, message.checksum)
            for start in range(0, len(data), COPY_BYTES):
                write_all(file, position + start, data[start : start + COPY_BYTES])
            position += len(data)
            disk.remove(message.path)
        file.sync()
        file.close()


def register(spark: SparkSession) -> None:
    spark.dataSource.register(Synthetic)
