"""Values decoded by the source, beside the same read without: processor time of this process, JVM and workers.

The floor of each read yields the same batches from mapped Arrow files, through the same API: what Spark itself takes
for these columns. A bar that the floor misses, too, is met by a read that reaches 0.9 of it.
"""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import duramen
from bench.decoding import messages
from bench.spark import memory
from bench.spark.cpu import Cost, take_turns

BAR = 1.3
FLOOR_BAR = 1 / 0.9
STEP_BYTES = 8 << 20
READS: dict[str, dict[str, str]] = {
    "bytes": {},
    "all fields": {"decode": "amqp"},
    "body alone": {"decode": "amqp", "valueSchema": "body"},
    "body, id, properties": {"decode": "amqp", "valueSchema": "body,message_id,application_properties"},
}
Figures = list[tuple[str, float, float | None]]


def measure(spark: SparkSession, scratch: Path, body_bytes: int, total_bytes: int, rounds: int) -> Figures:
    """Messages with properties, all columns into Spark's ``noop`` sink."""
    memory.register(spark)
    path = scratch / f"messages-{body_bytes}"
    values = messages(body_bytes, STEP_BYTES, properties=True)
    with duramen.open(path, "a", format="keratin", durability="write") as log:
        for _ in range(total_bytes // STEP_BYTES):
            log.append_batch(values)
    contestants = {}
    for name, options in READS.items():
        kept = scratch / f"kept-{len(contestants)}"
        memory.keep(path, kept, **options)
        contestants[name] = partial(_all, spark, "duramen", path, engine="python", **options)
        contestants[_floor(name)] = partial(_all, spark, "rows-in-memory", kept, mapped="true", **options)
    for run in contestants.values():
        run()  # the JVM compiles what it runs often
    turns = take_turns(contestants, rounds)
    for directory in (path, *scratch.glob("kept-*")):
        shutil.rmtree(directory)
    return [figure for name in READS for figure in _figures(turns, name, body_bytes)]


def _floor(name: str) -> str:
    return f"mapped {name}"


def _figures(turns: dict[str, Cost], name: str, body_bytes: int) -> Figures:
    cpu = {one: cost.cpu.median for one, cost in turns.items()}
    wall = {one: cost.wall.median for one, cost in turns.items()}
    floor = _floor(name)
    over_floor = cpu[floor] / cpu[_floor("bytes")]
    has_bar = body_bytes >= 1024 and name != "bytes"
    is_possible = over_floor <= BAR
    figures: Figures = []
    if name != "bytes":
        figures = [
            (
                f"{name} ÷ bytes, {body_bytes} B, CPU",
                cpu[name] / cpu["bytes"],
                BAR if has_bar and is_possible else None,
            ),
            (f"{name} ÷ bytes, {body_bytes} B, wall", wall[name] / wall["bytes"], None),
            (f"{name} ÷ bytes, {body_bytes} B, mapped, CPU", over_floor, None),
        ]
    bar = FLOOR_BAR if has_bar and not is_possible else None
    figures.append((f"{name} ÷ mapped, {body_bytes} B, CPU", cpu[name] / cpu[floor], bar))
    figures.append((f"{name} ÷ mapped, {body_bytes} B, wall", wall[name] / wall[floor], None))
    return figures


def _all(spark: SparkSession, source: str, path: Path, **options: str) -> None:
    frame: DataFrame = spark.read.format(source).options(**options).load(str(path))
    frame.write.format("noop").mode("overwrite").save()
