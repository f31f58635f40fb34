"""The pipeline. A batch that is run again, because the driver was killed at any point, changes nothing.

Three things make it so: the source reads the same rows for a batch again; Delta stores the number of the batch with the
rows (an application transaction); the log's sink does the same (``txnAppId`` and ``txnVersion``).
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

import duramen.spark

APP = "orders/revenue"
WATERMARK, WINDOW = "1 minute", "1 minute"
SCHEMA = "order BIGINT, product BIGINT, quantity BIGINT, cents BIGINT, placed_ms BIGINT, note STRING, corrupt STRING"
NEEDED = ("order", "product", "quantity", "cents", "placed_ms")
CONF = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.memory": "2g",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}

STARTED = "started"
"""A file that says that the first query runs."""
POINTS = ("before delta", "after delta", "after topic")
Stop = Callable[[str, int], None]
"""Called at each of `POINTS` with the number of the batch; may never return."""


def read(spark: SparkSession, path: Path, **options: Any) -> DataFrame:
    """The records of one log, parsed. ``is_valid`` says whether the record is an order."""
    stream = spark.readStream.format("duramen").options(columns="topic,offset,value", **options).load(str(path))
    parsed = stream.selectExpr(
        "topic",
        "offset",
        "value",
        f"from_json(cast(value AS string), '{SCHEMA}', map('columnNameOfCorruptRecord', 'corrupt')) AS o",
    )
    whole = " AND ".join(f"o.`{name}` IS NOT NULL" for name in NEEDED)
    return parsed.withColumn("is_valid", _sql(f"coalesce(o.corrupt IS NULL AND {whole}, false)"))


def _sql(text: str) -> Any:
    from pyspark.sql.functions import expr

    return expr(text)


def revenue(spark: SparkSession, directory: Path, formats: list[str], **options: Any) -> DataFrame:
    """Orders by minute and category. Each log has a watermark of its own, so no log runs away from another."""
    orders = []
    for name in formats:
        valid = read(spark, directory / "logs" / name, **options).where("is_valid").select("o.*")
        orders.append(
            valid.withColumn("placed", _sql("timestamp_millis(placed_ms)")).withWatermark("placed", WATERMARK)
        )
    united = reduce(DataFrame.unionByName, orders)
    products = spark.read.parquet(str(directory / "products.parquet"))
    grouped = united.join(products, "product").groupBy(_sql(f"window(placed, '{WINDOW}')"), "category")
    sums = grouped.agg(
        _sql("count(*) AS orders"), _sql("sum(quantity) AS pieces"), _sql("sum(quantity * cents) AS cents")
    )
    return sums.selectExpr("unix_millis(window.start) AS minute_ms", "category", "orders", "pieces", "cents")


def store(directory: Path, frame: DataFrame, batch: int, stop: Stop) -> None:
    """Write a batch to the Delta table and to the topic, each once."""
    frame.persist()
    try:
        stop("before delta", batch)
        table = directory / "delta"
        known = deltalake.DeltaTable(table).transaction_version(APP) if (table / "_delta_log").exists() else None
        if known is None or known < batch:
            once = deltalake.CommitProperties(app_transactions=[deltalake.Transaction(APP, batch)])
            deltalake.write_deltalake(table, frame.toArrow(), mode="append", commit_properties=once)
        stop("after delta", batch)
        rows = frame.selectExpr("category AS key", "to_json(struct(*)) AS value")
        writer = rows.write.format("duramen").mode("append").options(topic="revenue", numPartitions=2)
        writer.options(txnAppId=APP, txnVersion=batch).save(str(directory / "store"))
        stop("after topic", batch)
    finally:
        frame.unpersist()


def start_revenue(
    spark: SparkSession, directory: Path, formats: list[str], stop: Stop, **options: Any
) -> StreamingQuery:
    """Start the query that sums up: it reads what exists, and ends."""
    sums = revenue(spark, directory, formats, **options)
    each = sums.writeStream.queryName("revenue").foreachBatch(lambda frame, batch: store(directory, frame, batch, stop))
    each = each.option("checkpointLocation", str(directory / "checkpoints" / "revenue"))
    return each.trigger(availableNow=True).start()


def start_rejects(spark: SparkSession, directory: Path, formats: list[str], **options: Any) -> StreamingQuery:
    """Start the query that copies corrupt records to a topic, with their place as the key. The sink needs no help."""
    records = reduce(DataFrame.unionByName, [read(spark, directory / "logs" / name, **options) for name in formats])
    rejects = records.where("NOT is_valid").selectExpr("concat(topic, '/', offset) AS key", "value")
    sink = rejects.writeStream.queryName("rejects").format("duramen").option("topic", "rejects")
    sink = sink.option("checkpointLocation", str(directory / "checkpoints" / "rejects"))
    return sink.trigger(availableNow=True).start(str(directory / "store"))


def die_at(point: str, batch: int) -> Stop:
    """SIGKILL for all processes of this group, when the batch reaches the point. For the runner."""

    def stop(here: str, number: int) -> None:
        if here == point and number >= batch:
            os.killpg(0, signal.SIGKILL)

    return stop


def main(directory: Path, point: str = "", batch: int = 0) -> None:
    settings = json.loads((directory / "job.json").read_text())
    stop: Stop = die_at(point, batch) if point else lambda here, number: None
    with duramen.spark.session("local[2]", CONF) as spark:
        query = start_revenue(spark, directory, settings["formats"], stop, **settings["options"])
        (directory / STARTED).touch()
        query.awaitTermination()
        start_rejects(spark, directory, settings["formats"], **settings["options"]).awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute(), *sys.argv[2:3], *(int(text) for text in sys.argv[3:4]))
