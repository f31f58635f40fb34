"""Kafka partitions through the Spark source."""

from __future__ import annotations

import shutil
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

import duramen
from tests.formats.kafka_logs import DATA, ISOLATIONS, as_consumed, truth

TYPES = {0: "CreateTime", 1: "LogAppendTime"}
TXN = DATA / "clean/txngzip-0"


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_rows_are_what_the_consumer_returned(spark: SparkSession, isolation: str) -> None:
    frame = spark.read.format("duramen").option("isolation", isolation).load(str(TXN))
    rows = frame.select("offset", "key", "value").orderBy("offset").collect()
    known = truth(TXN, isolation)
    assert [row.offset for row in rows] == [row["offset"] for row in known]
    assert [None if row.value is None else len(row.value) for row in rows] == [
        None if row["value"] is None else row["value"]["len"] for row in known
    ]
    assert frame.count() == len(known)


def _seen(row: Row) -> dict[str, Any]:
    """A row with Kafka's columns, in the form of the truth."""
    ms = None if row.timestamp is None else round(row.timestamp.replace(tzinfo=UTC).timestamp() * 1000)
    found = as_consumed(
        {
            "offset": row.offset, "timestamp_ms": ms, "timestamp_type": TYPES.get(row.timestampType),
            "leader_epoch": None, "key": row.key and bytes(row.key), "value": row.value and bytes(row.value),
            "headers": row.headers,
        }
    )  # fmt: skip
    return {name: found[name] for name in found if name != "leader_epoch"}


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_broker_gives_kafkas_columns(spark: SparkSession, tmp_path: Path, isolation: str) -> None:
    """All partitions of a broker in one read, as Spark's own Kafka source would return them."""
    root = tmp_path / "kafka"
    shutil.copytree(DATA / "clean/checkpoints", root)
    known: dict[str, list[dict[str, Any]]] = {}
    for path in DATA.glob("clean/*-0"):
        if path.name != "times-0":  # its times lie beyond what Spark's microseconds can express
            shutil.copytree(path, root / path.name)
            known[path.name.removesuffix("-0")] = truth(path, isolation)
    options = {"subscribePattern": ".*", "schema": "kafka", "includeHeaders": "true", "isolation": isolation}
    frame = spark.read.format("duramen").options(**options).load(str(root))
    assert frame.columns == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]
    found: dict[str, list[dict[str, Any]]] = {topic: [] for topic in known}
    for row in frame.orderBy("topic", "offset").collect():
        assert row.partition == 0
        found[row.topic].append(_seen(row))
    for topic, rows in known.items():
        for row in rows:
            del row["leader_epoch"]
        assert found[topic] == rows, topic


def test_committed_rows_end_before_an_open_transaction(spark: SparkSession, tmp_path: Path) -> None:
    """Also in a log that Duramen went on with: what its sidecar knows of the rest is no contradiction."""
    log = shutil.copytree(DATA / "clean/txnopen-0", tmp_path / "txnopen-0")
    with duramen.open(log, "a") as writer:
        writer.append(b"last")
    frame = spark.read.format("duramen").option("isolation", "read_committed").load(str(log))
    known = [row["offset"] for row in truth(DATA / "clean/txnopen-0", "read_committed")]
    assert [row.offset for row in frame.select("offset").orderBy("offset").collect()] == known


def test_isolation_has_no_meaning_without_transactions(spark: SparkSession, tmp_path: Path) -> None:
    with duramen.open(tmp_path / "log", "a") as log:
        log.append(b"value")
    frame = spark.read.format("duramen").option("isolation", "read_committed").load(str(tmp_path / "log"))
    assert frame.count() == 1
    with pytest.raises(Exception, match="isolation"):
        spark.read.format("duramen").option("isolation", "dirty").load(str(tmp_path / "log")).count()
    with pytest.raises(Exception, match="isolation says it"):
        spark.read.format("duramen").option("kafka.isolation.level", "read_committed").load(str(tmp_path / "log"))
