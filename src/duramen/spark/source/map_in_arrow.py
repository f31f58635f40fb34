"""A log as a DataFrame by ``mapInArrow``: the same splits and rows as the data source, and faster.

Spark converts what a data source yields into rows once more than what a function over Arrow batches yields. The price:
it needs pandas installed (Spark asks for it, nothing here uses it), is not found by SQL, and has no streams. The plan
is made when `scan` is called, so that is when the snapshot is taken and when a wrong option raises.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from duramen.spark.error_text import plainly
from duramen.spark.source.discovery import disk_of
from duramen.spark.source.options import option_text, parse_options
from duramen.spark.source.plan import plan_read
from duramen.spark.source.sampling import bind
from duramen.spark.source.schema import schema_of, wanted_of
from duramen.spark.source.splits import Split
from duramen.spark.source.task import Wanted, read_split

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def scan(spark: SparkSession, path: str, **options: Any) -> DataFrame:
    """The log at ``path`` as a DataFrame. ``options`` are those of the data source, by the same names; a list is taken
    where they want names with commas.

    Goes through ``mapInArrow`` where pandas is installed, and the data source otherwise: the rows are the same.
    """
    texts = {name: option_text(value) for name, value in options.items() if value is not None}
    if importlib.util.find_spec("pandas") is None:
        return spark.read.format("duramen").options(**texts).load(path)
    parsed = bind(parse_options({**texts, "path": path}, streaming=False))
    schema = schema_of(parsed)
    wanted = wanted_of(schema, parsed)
    splits = plan_read(parsed, payload=wanted.payload)
    if not splits:
        return spark.createDataFrame([], schema)
    numbers = spark.range(0, len(splits), 1, len(splits))
    return numbers.mapInArrow(partial(_read, splits, wanted, parsed.path), schema)


def count(spark: SparkSession, path: str, **options: Any) -> int:
    """The number of records that a read with these options returns, without a row for each: a task counts its records
    along their headers. ``options`` are those of the data source, except ``columns`` and ``summary``.

    Exact: gaps, damage, time ranges and open transactions count as in a read. As there, payloads are not compared with
    their checksums unless ``verify=true``."""
    texts = {name: option_text(value) for name, value in options.items() if value is not None}
    rows = spark.read.format("duramen").options(**texts, summary="true").load(path).select("records").collect()
    return sum(row.records for row in rows)


def _read(
    splits: Sequence[Split], wanted: Wanted, path: str, numbers: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """What a task does with the numbers of its splits."""
    with plainly():
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from read_split(splits[number], wanted, disk_of(path)[0])
