"""A data source that yields rows from memory and does nothing else: how fast a Python source can be at all."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

BATCH_BYTES = 4 << 20
SCHEMA = "offset BIGINT, timestamp TIMESTAMP, key BINARY, value BINARY"
ARROW = pa.schema(
    [("offset", pa.int64()), ("timestamp", pa.timestamp("us", "UTC")), ("key", pa.binary()), ("value", pa.binary())]
)


class Synthetic(DataSource):
    """Options: ``rows``, ``bytes`` of a value, ``tasks``."""

    @classmethod
    def name(cls) -> str:
        return "synthetic"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: object) -> DataSourceReader:
        return SyntheticReader(int(self.options["rows"]), int(self.options["bytes"]), int(self.options["tasks"]))


class SyntheticReader(DataSourceReader):
    def __init__(self, rows: int, payload_bytes: int, tasks: int) -> None:
        self._rows, self._payload_bytes, self._tasks = rows, payload_bytes, tasks

    def partitions(self) -> list[InputPartition]:
        bounds = np.linspace(0, self._rows, self._tasks + 1).astype(int).tolist()
        return [InputPartition(pair) for pair in pairwise(bounds)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        first, end = partition.value
        step = max(1, BATCH_BYTES // self._payload_bytes)
        noise = np.random.default_rng(1).bytes(step * self._payload_bytes)
        bounds = pa.py_buffer(np.arange(step + 1, dtype=np.int32) * self._payload_bytes)
        values = pa.Array.from_buffers(pa.binary(), step, [None, bounds, pa.py_buffer(noise)])
        times = pa.array(np.arange(step)).view(ARROW.field("timestamp").type)
        keys = pa.nulls(step, pa.binary())
        for start in range(first, end, step):
            offsets = pa.array(np.arange(start, start + step))
            batch = pa.RecordBatch.from_arrays([offsets, times, keys, values], schema=ARROW)
            yield batch.slice(0, min(step, end - start))


def register(spark: SparkSession) -> None:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers need not find this module
    spark.dataSource.register(Synthetic)
