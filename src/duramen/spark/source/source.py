"""The data source ``duramen``: what Spark calls, and nothing else. Found by its name through ``pyspark_duramen``.

Creates readers and writers; planning is in `splits`, reading in `task`, streams in `stream`, the sink in `sink`.

Filters are not pushed down: with Spark 4.3 a pushed filter would stay with the DataFrame, and the next query on it
would return wrong rows. Ranges and columns are options instead.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from duramen.errors import DuramenError
from duramen.spark.error_text import Traveller, plain, plain_rows
from duramen.spark.gc_freeze import settle
from duramen.spark.source.discovery import disk_of, find_places
from duramen.spark.source.options import ReadOptions, parse_options
from duramen.spark.source.plan import plan_read
from duramen.spark.source.sampling import bind
from duramen.spark.source.schema import schema_of, wanted_of
from duramen.spark.source.splits import Split
from duramen.spark.source.task import Wanted, read_split


class SplitPartition(InputPartition):
    def __init__(self, split: Split) -> None:
        super().__init__(split)


class DuramenSource(Traveller, DataSource):
    """``spark.read.format("duramen")`` and its three sisters."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        settle()  # in the processes that plan a read, plan a write, and commit

    @classmethod
    def name(cls) -> str:
        return "duramen"

    @plain
    def schema(self) -> StructType:
        options = parse_options(self.options, streaming=False)
        find_places(options, *disk_of(options.path))  # a path that is missing fails here, and not at the first action
        return schema_of(bind(options))

    @plain
    def reader(self, schema: StructType) -> DataSourceReader:
        options = bind(parse_options(self.options, streaming=False))
        return DuramenReader(options, wanted_of(schema, options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from duramen.spark.source.stream import DuramenStreamReader, RefusingStreamReader

        try:
            options = bind(parse_options(self.options, streaming=True), streaming=True)
            # The time decides where a new query begins. A filter on rows would drop records of later batches.
            return DuramenStreamReader(options, wanted_of(schema, replace(options, starting_us=None)))
        except DuramenError as error:
            return RefusingStreamReader(error)

    @plain
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from duramen.spark.sink import make_writer

        return make_writer(self.options, schema, overwrite)

    @plain
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from duramen.spark.sink import make_stream_writer

        return make_stream_writer(self.options, schema, overwrite)


class DuramenReader(Traveller, DataSourceReader):
    """A batch read: a snapshot of what was acknowledged when it was planned."""

    def __init__(self, options: ReadOptions, wanted: Wanted) -> None:
        self._options = options
        self._wanted = wanted

    @plain
    def partitions(self) -> list[SplitPartition]:
        settle()
        return [SplitPartition(split) for split in plan_read(self._options, payload=self._wanted.payload)]

    @plain
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition.value, Split):
            return iter(())  # Spark's way of planning nothing
        return plain_rows(read_split(partition.value, self._wanted, disk_of(self._options.path)[0]))
