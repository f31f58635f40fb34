"""The data source ``duramen``: what Spark calls, and nothing else. Found by its name through ``pyspark_duramen``.

Decides who reads and who writes; planning is in `splits`, reading in `reading`, streams in `stream`, the sink in
`sink`. Filters are not pushed down: with Spark 4.3 a pushed filter would stay with the DataFrame, and the next query
on it would answer wrongly. Ranges and columns are options instead.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping

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
from duramen.spark.failing import plain, plain_rows
from duramen.spark.options import ReadOptions, parse
from duramen.spark.places import disk_of
from duramen.spark.planning import plan_read
from duramen.spark.reading import Wanted, read_split
from duramen.spark.schema import schema_of, wanted_of
from duramen.spark.splits import Split
from duramen.spark.worker import settle


class SplitPartition(InputPartition):
    """A split on its way to an executor."""

    def __init__(self, split: Split) -> None:
        super().__init__(split)


class DuramenSource(DataSource):
    """``spark.read.format("duramen")`` and its three sisters."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        return "duramen"

    @plain
    def schema(self) -> StructType:
        settle()
        return schema_of(parse(self.options, streaming=False))

    @plain
    def reader(self, schema: StructType) -> DataSourceReader:
        options = parse(self.options, streaming=False)
        return DuramenReader(options, wanted_of(schema, options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from duramen.spark.stream import DuramenStreamReader, RefusingStreamReader

        try:
            options = parse(self.options, streaming=True)
            return DuramenStreamReader(options, wanted_of(schema, options))
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


class DuramenReader(DataSourceReader):
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
