"""Parquet by `export` against ``df.write.parquet`` of the same rows: the same columns, codec and session.

The JVM's contestant reads its rows with ``spark.read.format("duramen")`` and, so that no reading is measured, once more
from Spark's cache. Logs are large enough that the start of a job, a tenth of a second for either, is a small part; how
much it is worth is seen beside it, on a part of that. `export` syncs its files before it commits them, the JVM syncs
nothing. How fast Parquet can be written here at all is shown by as many processes as cores, which have the rows in
memory and write them with pyarrow, with and without syncing.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from pyspark import StorageLevel
from pyspark.sql import SparkSession

from bench import logs
from bench.measure import take_turns
from bench.spark import bare
from duramen.spark import jobs
from duramen.spark.jobs.export import COLUMNS

BAR = 5.0
FORMAT = "keratin"
Figures = list[tuple[str, float, float | None]]


def measure(spark: SparkSession, scratch: Path, payload_bytes: int, total_bytes: int, rounds: int = 3) -> Figures:
    """For a log of so many bytes of values, and one of half of them."""
    small = _measure(spark, scratch, payload_bytes, total_bytes // 2, rounds)
    return [*_measure(spark, scratch, payload_bytes, total_bytes, rounds), (*small[0][:2], None)]


def _measure(spark: SparkSession, scratch: Path, payload_bytes: int, total_bytes: int, rounds: int) -> Figures:
    path = scratch / f"export-{payload_bytes}-{total_bytes}"
    if not path.exists():
        logs.write(path, FORMAT, payload_bytes, total_bytes // 4, 4)
    frame = spark.read.format("duramen").load(str(path))
    cached = spark.read.format("duramen").load(str(path)).persist(StorageLevel.MEMORY_ONLY)
    cached.count()
    ours, theirs, memory, floor = (scratch / name for name in ("ours", "theirs", "memory", "floor"))

    def clean() -> None:
        """Nobody pays for removing what was there, nor for what another left for the disk to do."""
        for left in (ours, theirs, memory, floor):
            shutil.rmtree(left, ignore_errors=True)
        os.sync()

    def export() -> None:
        jobs.export(spark, str(path), str(ours))

    cores = spark.sparkContext.defaultParallelism
    try:
        export()
        with bare.processes(cores) as workers:
            shares = bare.load(workers, path, COLUMNS)
            times = take_turns(
                {
                    "ours": export,
                    "theirs": lambda: frame.write.parquet(str(theirs)),
                    "memory": lambda: cached.write.parquet(str(memory)),
                    "bare": lambda: bare.write(workers, shares, floor, sync=True),
                    "unsynced": lambda: bare.write(workers, shares, floor, sync=False),
                },
                rounds,
                clean,
            )
    finally:
        cached.unpersist(blocking=True)
        clean()
        shutil.rmtree(path, ignore_errors=True)
    mine, jvm, from_memory = times["ours"].median, times["theirs"].median, times["memory"].median
    label = f"export, {payload_bytes} B, {total_bytes >> 20} MiB"
    return [
        (f"{label}, × df.write.parquet", jvm / mine, BAR),
        (f"{label}, × df.write.parquet from Spark's cache", from_memory / mine, None),
        (f"{label}, bare pyarrow from memory, × df.write.parquet", jvm / times["bare"].median, None),
        (f"{label}, the same without syncing, × df.write.parquet", jvm / times["unsynced"].median, None),
        (f"{label}, MB/s", total_bytes / mine / 1e6, None),
        (f"df.write.parquet, {payload_bytes} B, {total_bytes >> 20} MiB, MB/s", total_bytes / jvm / 1e6, None),
    ]
