"""The sink against `append_batch` in this process: the same rows, on the same disk, taking turns.

The rows lie in Spark's memory, so that no source is measured. In-process, batches of 1000 rows are appended at
``fsync``, from Arrow batches that are there already. The sink's time is that of the whole job: tasks, staged files,
one transaction, all of it synced at the end. A sink that drops its rows shows what of that is Spark's: the way of the
rows out of the JVM.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

import duramen
from bench.measure import take_turns
from bench.spark import synthetic

BAR = 0.5
TOTAL_BYTES = 400 << 20
BATCH_ROWS = 1000
ROUNDS = 3
BATCH_CONF, BATCH_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch", "2m"
"""As docs/exactly-once.md recommends: Spark's default of 10,000 rows makes batches that no cache holds."""


def measure(
    spark: SparkSession, scratch: Path, row_bytes: int, total_bytes: int = TOTAL_BYTES, rounds: int = ROUNDS
) -> list[tuple[str, float, float | None]]:
    """Name, value and bar (None: shown for comparison) of each figure. Ratios above 1 mean faster than in-process."""
    rows = total_bytes // row_bytes
    df = _in_memory(spark, rows, row_bytes)
    value = bytes(range(256)) * (row_bytes // 256 + 1)
    batch = pa.RecordBatch.from_arrays([pa.array([value[:row_bytes]] * BATCH_ROWS, pa.binary())], names=["value"])
    synthetic.register(spark)
    before = spark.conf.get(BATCH_CONF, None)
    spark.conf.set(BATCH_CONF, BATCH_BYTES)
    try:
        _afresh(scratch / "sink", lambda path: _sink(df.limit(1000), path))  # Spark's processes have to start once
        _drop(df)
        times = take_turns(
            {
                "sink": lambda: _afresh(scratch / "sink", lambda path: _sink(df, path)),
                "dropped": lambda: _drop(df),
                "append_batch": lambda: _afresh(scratch / "append", lambda path: _append(batch, rows, path)),
            },
            rounds,
        )
    finally:
        spark.conf.unset(BATCH_CONF) if before is None else spark.conf.set(BATCH_CONF, before)
        df.unpersist()
    sink, append, dropped = (times[name].median for name in ("sink", "append_batch", "dropped"))
    return [
        (f"sink, {row_bytes} B, × append_batch (fsync)", append / sink, BAR),
        (f"a sink that drops its rows, {row_bytes} B, × append_batch (fsync)", append / dropped, None),
        (f"sink, {row_bytes} B, MB/s", total_bytes / sink / 1e6, None),
        (f"append_batch, {row_bytes} B, MB/s", total_bytes / append / 1e6, None),
    ]


def _in_memory(spark: SparkSession, rows: int, row_bytes: int) -> DataFrame:
    # Constant values: a dictionary in Spark's cache, so that making them costs next to nothing.
    df = spark.range(0, rows, 1, 4).selectExpr(f"binary(repeat('x', {row_bytes})) as value")
    df = df.persist(StorageLevel.MEMORY_ONLY)
    df.count()
    return df


def _sink(df: DataFrame, path: Path) -> None:
    df.write.format("duramen").mode("append").option("logFormat", "keratin").save(str(path))


def _drop(df: DataFrame) -> None:
    df.write.format("synthetic").mode("append").save()


def _write_bytes(df: DataFrame, path: Path) -> None:
    df.write.format("synthetic").mode("append").option("path", str(path)).save()


def _append(batch: pa.RecordBatch, rows: int, path: Path) -> None:
    with duramen.open(path, "a", format="keratin") as log:
        for _ in range(rows // batch.num_rows):
            log.append_batch(batch)


def _afresh(path: Path, work: Callable[[Path], None]) -> None:
    shutil.rmtree(path, ignore_errors=True)
    work(path)
