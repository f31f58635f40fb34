"""Duramen beside Parquet and beside what Spark's Python API allows, by processor time and by the wall.

The same rows, in one session, taking turns. Values differ from row to row: Parquet would store a constant once.
Each figure is the processor time of this process, the JVM and the Python workers together, as a multiple of the
contestant's it is compared with:

- *read*: every column into Spark's ``noop`` sink; the floor yields the same batches from mapped Arrow files.
- *count*: `duramen.spark.count` against ``spark.read.parquet(…).count()``.
- *sink*: ``df.write`` of rows in Spark's memory; the floors are a sink that drops them, and one that only writes their
  bytes (tasks into files, the commit into one file that is synced).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

from bench import logs
from bench.spark import memory, sink, synthetic
from bench.spark.cpu import Cost, take_turns
from duramen.spark import count

READ_BAR, COUNT_BAR = 1.2, 1.5
SINK_BARS = {100: 0.8, 1024: 1.2}
WRITTEN_BARS = {100: 1 / 0.9}
"""Where Parquet is out of reach, what a sink costs that only writes the bytes."""
CODEC = "spark.sql.parquet.compression.codec"
Figures = list[tuple[str, float, float | None]]


def measure(spark: SparkSession, scratch: Path, row_bytes: int, total_bytes: int, rounds: int) -> Figures:
    """Name, value and bar of each figure; a bar is an upper bound."""
    memory.register(spark)
    synthetic.register(spark)
    before = {name: spark.conf.get(name, None) for name in (CODEC, sink.BATCH_CONF)}
    spark.conf.set(CODEC, "uncompressed")
    spark.conf.set(sink.BATCH_CONF, sink.BATCH_BYTES)
    try:
        return [
            *_reading(spark, scratch, row_bytes, total_bytes, rounds),
            *_writing(spark, scratch, row_bytes, total_bytes, rounds),
        ]
    finally:
        for name, value in before.items():
            spark.conf.unset(name) if value is None else spark.conf.set(name, value)


def _reading(spark: SparkSession, scratch: Path, row_bytes: int, total_bytes: int, rounds: int) -> Figures:
    log, parquet, mapped = (scratch / f"{name}-{row_bytes}" for name in ("log", "parquet", "mapped"))
    logs.write(log, "keratin", row_bytes, total_bytes // 4, 4)
    spark.read.format("duramen").load(str(log)).write.parquet(str(parquet))
    memory.keep(log, mapped)
    floor = spark.read.format("rows-in-memory").option("mapped", "true")
    turns = _turns(
        {
            "read": lambda few: _all(few(spark.read.format("duramen").load(str(log)))),
            "mapped": lambda few: _all(few(floor.load(str(mapped)))),
            "parquet": lambda few: _all(few(spark.read.parquet(str(parquet)))),
            "count": lambda few: count(spark, str(log)),
            "count parquet": lambda few: spark.read.parquet(str(parquet)).count(),
        },
        rounds,
    )
    for path in (log, parquet, mapped):
        shutil.rmtree(path)
    return [
        *_figures(turns, "read", "mapped", row_bytes, total_bytes, READ_BAR),
        *_figures(turns, "read", "parquet", row_bytes, total_bytes),
        *_figures(turns, "count", "count parquet", row_bytes, total_bytes, COUNT_BAR),
    ]


def _writing(spark: SparkSession, scratch: Path, row_bytes: int, total_bytes: int, rounds: int) -> Figures:
    df = spark.range(0, total_bytes // row_bytes, 1, 4)
    df = df.selectExpr(f"binary(lpad(hex(xxhash64(id)), {row_bytes}, hex(xxhash64(id + 1)))) as value")
    df = df.persist(StorageLevel.MEMORY_ONLY)
    df.count()
    target, parquet, written = scratch / "sink", scratch / "sink-parquet", scratch / "written"
    turns = _turns(
        {
            "sink": lambda few: sink._afresh(target, lambda path: sink._sink(few(df), path)),
            "dropped": lambda few: sink._drop(few(df)),
            "written": lambda few: sink._afresh(written, lambda path: sink._write_bytes(few(df), path)),
            "parquet": lambda few: few(df).write.mode("overwrite").parquet(str(parquet)),
        },
        rounds,
    )
    df.unpersist()
    for path in (target, parquet, written):
        shutil.rmtree(path)
    return [
        *_figures(turns, "sink", "parquet", row_bytes, total_bytes, SINK_BARS.get(row_bytes)),
        *_figures(turns, "sink", "written", row_bytes, total_bytes, WRITTEN_BARS.get(row_bytes)),
        *_figures(turns, "sink", "dropped", row_bytes, total_bytes),
    ]


Few = Callable[[DataFrame], DataFrame]
"""The rows of a frame that a contestant handles."""


def _turns(contestants: dict[str, Callable[[Few], object]], rounds: int) -> dict[str, Cost]:
    """Each contestant runs with a few rows right before its turn: Spark ends Python processes that are idle for a
    minute, and starting them again costs more than the work."""
    for run in contestants.values():
        run(_all_rows)  # the JVM compiles what it runs often
    work = {name: partial(run, _all_rows) for name, run in contestants.items()}
    return take_turns(work, rounds, before=lambda name: contestants[name](lambda frame: frame.limit(1000)))


def _all_rows(frame: DataFrame) -> DataFrame:
    return frame


def _figures(
    turns: dict[str, Cost], ours: str, other: str, row_bytes: int, total_bytes: int, bar: float | None = None
) -> Figures:
    cpu, wall = (getattr(turns[ours], kind).median / getattr(turns[other], kind).median for kind in Cost._fields)
    name = f"{ours} ÷ {other}, {row_bytes} B"
    cost = turns[ours].cpu.median / total_bytes * 1e9
    return [(f"{name}, CPU", cpu, bar), (f"{name}, wall", wall, None), (f"{ours}, {row_bytes} B, CPU s/GB", cost, None)]


def _all(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()
