"""Ingest and replay: every row of the source is in the log, once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import duramen
from duramen.spark import jobs
from duramen.spark.jobs import Into


def values(path: Path) -> list[bytes]:
    with duramen.open(path) as log:
        return [record.value for record in log]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    lines = "".join(f"{n},oak {n},2024-01-01T00:{n // 60:02d}:{n % 60:02d}Z\n" for n in range(200))
    (tmp_path / "table.csv").write_text("id,wood,at\n" + lines)
    return tmp_path / "table.csv"


def test_text(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("".join(f"line {n}\n" for n in range(100)))
    done = jobs.ingest(spark, "text", str(tmp_path / "lines"), Into(str(tmp_path / "log"), "durable-log"))
    assert done.rows == 100
    assert values(tmp_path / "log") == [b"line %d" % n for n in range(100)]


def test_a_table_becomes_json_and_expressions_become_columns(spark: SparkSession, table: Path, tmp_path: Path) -> None:
    into = Into(str(tmp_path / "log"), "keratin")
    jobs.ingest(
        spark, "csv", str(table), into, options={"header": "true"}, schema="id bigint, wood string, at timestamp",
        expressions={"key": "cast(id as string)", "timestamp": "at"},
    )  # fmt: skip
    with duramen.open(tmp_path / "log") as log:
        record = log.read(7)
        assert (record.key, log.next_offset) == (b"7", 200)
    assert json.loads(record.value)["wood"] == "oak 7"
    assert record.timestamp is not None
    assert record.timestamp.isoformat() == "2024-01-01T00:00:07+00:00"


def test_a_stream_stores_each_file_once(spark: SparkSession, tmp_path: Path) -> None:
    source, into = tmp_path / "in", Into(str(tmp_path / "log"), "rustlog")
    source.mkdir()
    kwargs: dict[str, Any] = {"checkpoint": str(tmp_path / "checkpoint"), "columns": ["value"]}
    (source / "a").write_text("one\ntwo\n")
    assert jobs.ingest(spark, "text", str(source), into, **kwargs).rows == 2
    assert jobs.ingest(spark, "text", str(source), into, **kwargs).rows == 0
    (source / "b").write_text("three\n")
    assert jobs.ingest(spark, "text", str(source), into, **kwargs).rows == 1
    assert values(tmp_path / "log") == [b"one", b"two", b"three"]


@pytest.fixture
def events(tmp_path: Path) -> Path:
    with duramen.open(tmp_path / "events", "a", format="keratin", segment_max_bytes=4000) as log:
        for n in range(300):
            log.append(
                b"value %d" % n, key=b"%d" % (n % 7), headers=[("n", b"%d" % n)],
                timestamp=1_700_000_000_000 + n * 1000, durability="write",
            )  # fmt: skip
    return tmp_path / "events"


def records(path: Path) -> list[tuple[Any, ...]]:
    with duramen.open(path) as log:
        return [record[1:] for record in log]


def test_replay_of_offsets_keeps_everything_but_the_offsets(spark: SparkSession, events: Path, tmp_path: Path) -> None:
    done = jobs.replay(spark, str(events), Into(str(tmp_path / "again")), startingOffsets=100, endingOffsets=250)
    assert done.rows == 150
    assert records(tmp_path / "again") == records(events)[100:250]


def test_replay_of_times_into_a_topic(spark: SparkSession, events: Path, tmp_path: Path) -> None:
    into = Into(str(tmp_path / "store"), "keratin", topic="orders", options={"numPartitions": 2})
    done = jobs.replay(
        spark, str(events), into, startingTimestamp="2023-11-14T22:14:20Z", endingTimestamp="2023-11-14T22:15:20Z"
    )
    assert done.rows == 60
    found = spark.read.format("duramen").option("subscribe", "orders").load(str(tmp_path / "store"))
    assert {bytes(row.value) for row in found.collect()} == {b"value %d" % n for n in range(60, 120)}


def test_dry_runs(spark: SparkSession, events: Path, table: Path, tmp_path: Path) -> None:
    planned = jobs.replay(spark, str(events), Into(str(tmp_path / "again")), startingOffsets=-10, dry_run=True)
    assert planned.rows == 10
    planned = jobs.ingest(spark, "csv", str(table), Into(str(tmp_path / "again")), dry_run=True)
    assert planned.columns == ("value",)
    assert not (tmp_path / "again").exists()


def test_rows_in_an_order(spark: SparkSession, table: Path, tmp_path: Path) -> None:
    kwargs: dict[str, Any] = {"options": {"header": "true"}, "expressions": {"value": "wood"}}
    into = Into(str(tmp_path / "log"), "keratin")
    jobs.ingest(spark, "csv", str(table), into, order_by="length(id) DESC, id DESC", **kwargs)
    assert values(tmp_path / "log") == [b"oak %d" % n for n in range(199, -1, -1)]
    with pytest.raises(duramen.UsageError, match="a stream cannot be sorted"):
        jobs.ingest(spark, "csv", str(table), into, order_by="id", checkpoint=str(tmp_path / "checkpoint"), **kwargs)


def test_kafka_without_its_package(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(duramen.DuramenError, match="packages=org\\.apache\\.spark:spark-sql-kafka"):
        jobs.ingest(spark, "kafka", None, Into(str(tmp_path / "log")), options={"subscribe": "orders"})


def test_errors_are_one_line(spark: SparkSession, events: Path, table: Path, tmp_path: Path) -> None:
    into = Into(str(tmp_path / "log"), "durable-log")
    with pytest.raises(duramen.UsageError, match="itself"):
        jobs.replay(spark, str(events), Into(str(events)))
    with pytest.raises(duramen.UsageError, match="no column 'wood'"):
        jobs.ingest(spark, "csv", str(table), into, expressions={"wood": "x"})
    with pytest.raises(duramen.DuramenError, match="nonsense") as caught:
        jobs.ingest(spark, "nonsense", str(table), into)
    assert "\n" not in str(caught.value)
    with pytest.raises(duramen.DuramenError, match="cannot store the field 'key'") as caught:
        jobs.replay(spark, str(events), into)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "log").exists()
