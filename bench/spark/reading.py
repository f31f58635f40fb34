"""How fast a log becomes rows: beside a source that has its rows in memory, and beside Parquet.

All contestants take turns in one session and end in Spark's ``noop`` sink, which asks for every column of every row.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession

from bench import logs
from bench.measure import Samples, take_turns
from bench.spark import synthetic
from duramen.log.reader import Log
from duramen.spark import scan

FORMAT = "keratin"
TASK_BYTES = 32 << 20
ROUNDS = 5
SYNTHETIC_BAR, COLUMNS_BAR = 0.9, 5.0


class Row(NamedTuple):
    """One line of the table. ``ratio`` compares with the contestant that ``against`` names; 0 where there is no bar."""

    payload_bytes: int
    name: str
    rows_per_s: float
    gb_per_s: float
    ratio: float = 0.0
    against: str = ""
    bar: float = 0.0


def measure(spark: SparkSession, scratch: Path, log_bytes: int = 512 << 20, rounds: int = ROUNDS) -> list[Row]:
    """The table for 100 B and 1 KiB values. ``scratch`` needs room for four times ``log_bytes``."""
    synthetic.register(spark)
    return [row for payload in (100, 1024) for row in _measure(spark, scratch, payload, log_bytes, rounds)]


def _measure(spark: SparkSession, scratch: Path, payload_bytes: int, log_bytes: int, rounds: int) -> list[Row]:
    path = scratch / f"{FORMAT}-{payload_bytes}"
    if not path.exists():
        logs.write(path, FORMAT, payload_bytes, log_bytes // 4, 4)
    with Log(str(path)) as log:
        count = log.next_offset
    parquet = scratch / f"parquet-{payload_bytes}"
    if not parquet.exists():
        _read(spark, path).write.parquet(str(parquet))
    tasks = max(2, count * payload_bytes // TASK_BYTES)
    memory = {"rows": str(count), "bytes": str(payload_bytes), "tasks": str(tasks)}
    contestants: dict[str, Callable[[], object]] = {
        "in memory": lambda: _all(spark.read.format("synthetic").options(**memory).load()),
        "duramen": lambda: _all(_read(spark, path)),
        "duramen, no checksums": lambda: _all(_read(spark, path, verify="false")),
        "offset, timestamp": lambda: _all(_read(spark, path, columns="offset,timestamp")),
        "offset": lambda: _all(_read(spark, path, columns="offset")),
        "scan (mapInArrow)": lambda: _all(scan(spark, str(path), maxBytesPerPartition=TASK_BYTES)),
        "scan, offset, timestamp": lambda: _all(scan(spark, str(path), columns="offset,timestamp")),
        "spark.read.parquet": lambda: _all(spark.read.parquet(str(parquet))),
    }
    for run in contestants.values():
        run()  # the JVM compiles what it runs often
    times = take_turns(contestants, rounds)
    return [_row(name, samples, times, count, payload_bytes) for name, samples in times.items()]


def _row(name: str, samples: Samples, times: dict[str, Samples], count: int, payload_bytes: int) -> Row:
    against, bar = {
        "duramen": ("in memory", SYNTHETIC_BAR),
        "offset, timestamp": ("duramen", COLUMNS_BAR),
        "scan (mapInArrow)": ("duramen", 0.0),
        "spark.read.parquet": ("duramen", 0.0),
    }.get(name, ("", 0.0))
    ratio = times[against].median / samples.median if against else 0.0
    speed = count / samples.median
    return Row(payload_bytes, name, speed, speed * payload_bytes / 1e9, ratio, against, bar)


def _read(spark: SparkSession, path: Path, **options: str) -> DataFrame:
    return spark.read.format("duramen").options(maxBytesPerPartition=TASK_BYTES, **options).load(str(path))


def _all(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()
