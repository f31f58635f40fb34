"""Values decoded by the source, beside the same read without: processor time of this process, JVM and workers."""

from __future__ import annotations

import shutil
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import duramen
from bench.decoding import messages
from bench.spark.cpu import take_turns

BAR = 1.3
STEP_BYTES = 8 << 20
Figures = list[tuple[str, float, float | None]]


def measure(spark: SparkSession, scratch: Path, body_bytes: int, total_bytes: int, rounds: int) -> Figures:
    """Messages with properties, all columns into Spark's ``noop`` sink."""
    path = scratch / f"messages-{body_bytes}"
    values = messages(body_bytes, STEP_BYTES, properties=True)
    with duramen.open(path, "a", format="keratin", durability="write") as log:
        for _ in range(total_bytes // STEP_BYTES):
            log.append_batch(values)
    contestants = {
        "bytes": lambda: _all(_read(spark, path)),
        "all fields": lambda: _all(_read(spark, path, decode="amqp")),
        "body alone": lambda: _all(_read(spark, path, decode="amqp", valueSchema="body")),
    }
    for run in contestants.values():
        run()  # the JVM compiles what it runs often
    turns = take_turns(contestants, rounds)
    shutil.rmtree(path)
    figures: Figures = []
    for fields in ("all fields", "body alone"):
        name = f"decode=amqp ÷ without, {body_bytes} B, {fields}"
        cpu = turns[fields].cpu.median / turns["bytes"].cpu.median
        figures.append((f"{name}, CPU", cpu, BAR if body_bytes >= 1024 else None))
        figures.append((f"{name}, wall", turns[fields].wall.median / turns["bytes"].wall.median, None))
    return figures


def _read(spark: SparkSession, path: Path, **options: str) -> DataFrame:
    return spark.read.format("duramen").options(**options).load(str(path))


def _all(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()
