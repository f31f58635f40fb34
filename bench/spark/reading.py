"""How fast a log becomes rows: beside sources that have rows in memory, and beside Parquet.

All contestants take turns in one session and end in Spark's ``noop`` sink, which asks for every column of every row.
Logs are large enough that the start of a job is a small part of what is measured, and cut into tasks as they are
without options; the sources in memory have as many tasks, and batches of the same size. There are two of them:

- *same rows in memory* has every row of the log in memory, as Arrow batches (`memory`). The bar is about this one.
- *one block in memory* yields one and the same batch over and over, with new offsets (`synthetic`). It never leaves the
  processor's cache, as the rows of no log can, so this is stricter than the bar; it is shown beside it.

What a source in memory gains with two columns instead of four is the most that ``columns`` can gain: beyond it nothing
but the JVM's work is left.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession

from bench import logs
from bench.measure import Samples, take_turns
from bench.spark import memory, synthetic
from duramen.log.read.log import Log
from duramen.spark import scan

FORMAT = "keratin"
LOG_BYTES = {100: 1 << 30, 1024: 2 << 30}
ROUNDS = 5
NARROW = "offset,timestamp"
SYNTHETIC_BAR, COLUMNS_BAR = 0.9, 5.0


SAME, BLOCK, OURS = "same rows in memory", "one block in memory", "duramen"
AGAINST: dict[str, list[tuple[str, float | None]]] = {
    OURS: [(SAME, SYNTHETIC_BAR), (BLOCK, None)],
    f"{SAME}, offset, timestamp": [(SAME, None)],
    f"{BLOCK}, offset, timestamp": [(BLOCK, None)],
    "offset, timestamp": [(OURS, COLUMNS_BAR)],
    "scan, offset, timestamp": [("scan (mapInArrow)", None), (OURS, None)],
    "scan (mapInArrow)": [(OURS, None)],
    "spark.read.parquet": [(OURS, None)],
}
"""Whom a contestant is compared with, and the bar, if there is one."""


class Ratio(NamedTuple):
    against: str
    value: float
    bar: float | None


class Row(NamedTuple):
    """One contestant."""

    payload_bytes: int
    name: str
    rows_per_s: float
    ratios: list[Ratio]


def measure(spark: SparkSession, scratch: Path, part: int = 1, rounds: int = ROUNDS) -> list[Row]:
    """The table for 100 B and 1 KiB values, on logs of a ``part``-th of their size. ``scratch`` needs 7 GB of room, and
    memory 3 GB."""
    synthetic.register(spark)
    memory.register(spark)
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
    size = {"rows": str(count), "bytes": str(payload_bytes)}

    def block(tasks: int, **options: str) -> DataFrame:
        return spark.read.format("synthetic").options(tasks=str(tasks), **size, **options).load()

    def same(directory: Path, **options: str) -> DataFrame:
        return spark.read.format("rows-in-memory").options(**options).load(str(directory))

    with memory.room(scratch, log_bytes) as shared:
        wide, narrow = shared / "wide", shared / "narrow"
        memory.keep(path, wide)
        memory.keep(path, narrow, columns=NARROW)
        tasks, few = len(list(wide.iterdir())), len(list(narrow.iterdir()))
        sources: dict[str, Callable[[], object]] = {
            SAME: lambda: _all(same(wide)),
            f"{SAME}, offset, timestamp": lambda: _all(same(narrow, columns=NARROW)),
            BLOCK: lambda: _all(block(tasks)),
            f"{BLOCK}, offset, timestamp": lambda: _all(block(few, columns=NARROW)),
        }
        times = _take_turns(spark, path, parquet, sources, rounds)
    return [_row(name, samples, times, count, payload_bytes) for name, samples in times.items()]


def _take_turns(
    spark: SparkSession, path: Path, parquet: Path, sources: dict[str, Callable[[], object]], rounds: int
) -> dict[str, Samples]:
    contestants: dict[str, Callable[[], object]] = {
        **sources,
        OURS: lambda: _all(_read(spark, path)),
        "duramen, no checksums": lambda: _all(_read(spark, path, verify="false")),
        "offset, timestamp": lambda: _all(_read(spark, path, columns=NARROW)),
        "scan (mapInArrow)": lambda: _all(scan(spark, str(path))),
        "scan, offset, timestamp": lambda: _all(scan(spark, str(path), columns=NARROW)),
        "spark.read.parquet": lambda: _all(spark.read.parquet(str(parquet))),
    }
    for run in contestants.values():
        run()  # the JVM compiles what it runs often
    return take_turns(contestants, rounds)


def _row(name: str, samples: Samples, times: dict[str, Samples], count: int, payload_bytes: int) -> Row:
    ratios = [
        Ratio(against, times[against].median / samples.median, bar)
        for against, bar in AGAINST.get(name, [])
        if against in times
    ]
    return Row(payload_bytes, name, count / samples.median, ratios)


def _read(spark: SparkSession, path: Path, **options: str) -> DataFrame:
    return spark.read.format("duramen").options(**options).load(str(path))


def _all(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()
