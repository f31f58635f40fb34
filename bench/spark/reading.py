"""How fast a log becomes rows: beside a source that has its rows in memory, and beside Parquet.

All contestants take turns in one session and end in Spark's ``noop`` sink, which asks for every column of every row.
Logs are large enough that the start of a job is a small part of what is measured, and cut into tasks as they are
without options; the source in memory has as many. What that source gains with two columns instead of four is the
most that ``columns`` can gain: beyond it nothing but the JVM's work is left.
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
LOG_BYTES = {100: 1 << 30, 1024: 2 << 30}
ROUNDS = 5
NARROW = "offset,timestamp"
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


def measure(spark: SparkSession, scratch: Path, part: int = 1, rounds: int = ROUNDS) -> list[Row]:
    """The table for 100 B and 1 KiB values, on logs of a ``part``-th of their size. ``scratch`` needs 7 GB of room."""
    synthetic.register(spark)
    return [
        row for payload, size in LOG_BYTES.items() for row in _measure(spark, scratch, payload, size // part, rounds)
    ]


def _measure(spark: SparkSession, scratch: Path, payload_bytes: int, log_bytes: int, rounds: int) -> list[Row]:
    path = scratch / f"{FORMAT}-{payload_bytes}"
    if not path.exists():
        logs.write(path, FORMAT, payload_bytes, log_bytes // 4, 4)
    with Log(str(path)) as log:
        count = log.next_offset
    parquet = scratch / f"parquet-{payload_bytes}"
    if not parquet.exists():
        _read(spark, path).write.parquet(str(parquet))
    memory = {"rows": str(count), "bytes": str(payload_bytes)}

    def in_memory(tasks: int, **options: str) -> DataFrame:
        return spark.read.format("synthetic").options(tasks=str(tasks), **memory, **options).load()

    tasks = _read(spark, path).rdd.getNumPartitions()
    few = _read(spark, path, columns=NARROW).rdd.getNumPartitions()
    contestants: dict[str, Callable[[], object]] = {
        "in memory": lambda: _all(in_memory(tasks)),
        "in memory, offset, timestamp": lambda: _all(in_memory(few, columns=NARROW)),
        "duramen": lambda: _all(_read(spark, path)),
        "duramen, no checksums": lambda: _all(_read(spark, path, verify="false")),
        "offset, timestamp": lambda: _all(_read(spark, path, columns=NARROW)),
        "scan (mapInArrow)": lambda: _all(scan(spark, str(path))),
        "scan, offset, timestamp": lambda: _all(scan(spark, str(path), columns=NARROW)),
        "spark.read.parquet": lambda: _all(spark.read.parquet(str(parquet))),
    }
    for run in contestants.values():
        run()  # the JVM compiles what it runs often
    times = take_turns(contestants, rounds)
    return [_row(name, samples, times, count, payload_bytes) for name, samples in times.items()]


def _row(name: str, samples: Samples, times: dict[str, Samples], count: int, payload_bytes: int) -> Row:
    against, bar = {
        "duramen": ("in memory", SYNTHETIC_BAR),
        "in memory, offset, timestamp": ("in memory", 0.0),
        "offset, timestamp": ("duramen", COLUMNS_BAR),
        "scan, offset, timestamp": ("scan (mapInArrow)", 0.0),
        "scan (mapInArrow)": ("duramen", 0.0),
        "spark.read.parquet": ("duramen", 0.0),
    }.get(name, ("", 0.0))
    ratio = times[against].median / samples.median if against else 0.0
    speed = count / samples.median
    return Row(payload_bytes, name, speed, speed * payload_bytes / 1e9, ratio, against, bar)


def _read(spark: SparkSession, path: Path, **options: str) -> DataFrame:
    return spark.read.format("duramen").options(**options).load(str(path))


def _all(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()
