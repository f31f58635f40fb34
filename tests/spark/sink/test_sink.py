"""``df.write.format("duramen")``: every format, every column, append and overwrite, topics, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import duramen
from duramen.errors import UsageError
from duramen.spark.sink.options import parse_write_options
from duramen.spark.sink.router import plan_target
from duramen.store.partitioner import partition_of

OPTIONS: dict[str, dict[str, Any]] = {
    "keratin": {},
    "durable-log": {},
    "rustlog": {},
    "osiris": {"chunk_version": 1},
    "fixed-slot": {"record_size": 24},
    "kafka": {"compression": "zstd"},
}


def values(path: Path | str) -> list[bytes]:
    with duramen.open(path) as log:
        assert log.verify().ok
        return [record.value for record in log]


def rows(spark: SparkSession, count: int, start: int = 0, tasks: int = 3) -> DataFrame:
    numbers = spark.range(start, start + count, 1, tasks)
    return numbers.selectExpr("cast(lpad(cast(id as string), 24, '0') as binary) as value")


def expected(count: int, start: int = 0) -> list[bytes]:
    return [b"%024d" % number for number in range(start, start + count)]


def no_staging(path: Path) -> bool:
    return not (path / ".duramen" / "staging").exists()


def save(df: DataFrame, path: Path, mode: str = "append", **options: Any) -> None:
    df.write.format("duramen").mode(mode).options(**options).save(str(path))


@pytest.mark.parametrize("format", OPTIONS)
def test_append_and_overwrite(spark: SparkSession, tmp_path: Path, format: str) -> None:
    path = tmp_path / "log"
    save(rows(spark, 1000), path, logFormat=format, **OPTIONS[format])
    assert values(path) == expected(1000)
    with duramen.open(path) as log:
        assert log.format == format
    save(rows(spark, 500, 1000), path)  # the format is known by now
    assert values(path) == expected(1500)
    save(rows(spark, 70, 5), path, "overwrite", logFormat=format, **OPTIONS[format])
    assert values(path) == expected(70, 5)
    with duramen.open(path) as log:
        assert (log.first_offset, log.next_offset) == (0, 70)
    save(rows(spark, 10, 75), path)
    assert values(path) == expected(80, 5)
    assert no_staging(path)


def test_overwrite_may_change_the_format(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "log"
    save(rows(spark, 300), path, logFormat="osiris")
    save(rows(spark, 20), path, "overwrite", logFormat="keratin")
    assert values(path) == expected(20)
    assert duramen.detect(path).format == "keratin"
    assert not list(path.glob("*.segment"))


def test_segments_roll_within_a_batch(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "log"
    save(rows(spark, 2000), path, logFormat="keratin", segment_max_bytes=20_000)
    assert values(path) == expected(2000)
    with duramen.open(path) as log:
        assert len(log.segments) > 3


@pytest.mark.parametrize("format", ["keratin", "osiris"])
def test_all_columns_come_back(spark: SparkSession, tmp_path: Path, format: str) -> None:
    path = tmp_path / "log"
    df = spark.sql(
        "select string(id) as key, binary(concat('v', id)) as value,"
        " if(id = 1, null, array(named_struct('key', 'h', 'value', binary(string(id))))) as headers,"
        " timestamp_millis(1700000000000 + id) as timestamp from range(0, 4, 1, 2)"
    )
    keyed = df if format == "keratin" else df.drop("key", "headers")
    save(keyed, path, logFormat=format)
    with duramen.open(path) as log:
        found = list(log)
    assert [record.value for record in found] == [b"v0", b"v1", b"v2", b"v3"]
    if format == "keratin":
        assert [record.key for record in found] == [b"0", b"1", b"2", b"3"]
        assert [record.headers for record in found] == [[("h", b"0")], None, [("h", b"2")], [("h", b"3")]]
        assert found[3].timestamp == datetime.fromtimestamp(1700000000.003, UTC)


def test_a_read_can_be_written(spark: SparkSession, tmp_path: Path) -> None:
    save(rows(spark, 100), tmp_path / "one")
    again = spark.read.format("duramen").load(str(tmp_path / "one"))
    save(again, tmp_path / "two", logFormat="osiris")
    assert values(tmp_path / "two") == expected(100)


def test_no_rows_make_an_empty_log(spark: SparkSession, tmp_path: Path) -> None:
    save(rows(spark, 0), tmp_path / "log", logFormat="rustlog")
    assert values(tmp_path / "log") == []
    assert duramen.detect(tmp_path / "log").format == "rustlog"


def test_a_job_that_is_sent_again_is_recognised(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "log"
    for version, count in ((0, 10), (0, 10), (1, 5), (1, 5), (0, 10)):
        save(rows(spark, count), path, txnAppId="nightly/../x", txnVersion=version)
    assert values(path) == expected(10) + expected(5)
    assert no_staging(path)


# --- topics


def test_topics_by_option_and_key(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.range(0, 200, 1, 3).selectExpr("string(id) as key", "binary(string(id)) as value")
    save(df, tmp_path, topic="orders", numPartitions=4)
    found = {}
    for number in range(4):
        with duramen.open(tmp_path / f"topics/orders/partitions/{number}") as log:
            found[number] = [record.value for record in log]
            assert all(partition_of(record.key or b"", 4) == number for record in log)
    assert sorted(int(value) for part in found.values() for value in part) == list(range(200))
    assert all(part == sorted(part, key=int) for part in found.values())
    assert no_staging(tmp_path)


def test_topics_and_partitions_by_column(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.range(0, 90, 1, 2).selectExpr(
        "concat('t', id % 3) as topic", "int(id % 2) as partition", "binary(string(id)) as value"
    )
    save(df, tmp_path, numPartitions=2)
    for topic in range(3):
        for number in range(2):
            wanted = [b"%d" % i for i in range(90) if i % 3 == topic and i % 2 == number]
            assert values(tmp_path / f"topics/t{topic}/partitions/{number}") == wanted
    save(df.where("topic = 't1' and partition = 0"), tmp_path, "overwrite", numPartitions=2)
    assert values(tmp_path / "topics/t1/partitions/1") == []
    assert len(values(tmp_path / "topics/t1/partitions/0")) == 15
    assert len(values(tmp_path / "topics/t2/partitions/0")) == 15


def test_keyless_rows_are_spread(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.range(0, 400, 1, 2).selectExpr("binary(repeat('x', 1000)) as value")
    save(df, tmp_path, topic="t", numPartitions=3)
    counts = [len(values(tmp_path / f"topics/t/partitions/{number}")) for number in range(3)]
    assert sum(counts) == 400
    assert min(counts) > 50


# --- what is refused


def refused(action: Callable[[], None]) -> str:
    with pytest.raises(PySparkException) as caught:
        action()
    return str(caught.value)


@pytest.mark.parametrize(
    ("query", "options", "words"),
    [
        ("binary('a') as value, 1 as extra", {}, ["column 'extra'", "headers"]),
        ("1 as value", {}, ["column 'value' is int", "binary or string"]),
        ("binary('a') as key", {}, ["column 'value' is missing"]),
        ("binary('a') as value, 1 as partition", {}, ["needs a topic"]),
        ("binary('a') as value", {"logformat": "pulsar"}, ["logFormat='pulsar'", "keratin"]),
        ("binary('a') as value", {"lockTimeout": "1"}, ["locktimeout", "lockTimeoutMs"]),
        ("binary('a') as value", {"logFormat": "fixed-slot"}, ["record_size"]),
        ("binary('a') as value", {"topic": "../up"}, ["invalid topic name: '../up'"]),
        ("binary('a') as value", {"txnAppId": "x"}, ["txnVersion"]),
    ],
)  # fmt: skip
def test_refused_on_the_driver(
    spark: SparkSession, tmp_path: Path, query: str, options: dict[str, str], words: list[str]
) -> None:
    text = refused(lambda: save(spark.sql(f"select {query}"), tmp_path / "log", **options))
    assert all(word in text for word in words), text
    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize(
    ("format", "query", "words"),
    [
        ("fixed-slot", "binary(repeat('a', 24)) as value, 'k' as key", "fixed-slot cannot store the field 'key'"),
        ("osiris", "binary('a') as value, array(named_struct('key', 'h', 'value', binary('v'))) as headers", "headers"),
        ("fixed-slot", "binary(repeat('a', 25)) as value", "has 25 bytes"),
        ("rustlog", "binary(null) as value", "rustlog cannot store a null value"),
        (
            "keratin",
            "binary('a') as value, array(named_struct('key', string(null), 'value', binary('v'))) as headers",
            "a row has a header that is null or has no key",
        ),
    ],
)  # fmt: skip
def test_what_the_format_cannot_carry(spark: SparkSession, tmp_path: Path, format: str, query: str, words: str) -> None:
    path = tmp_path / "log"
    save(rows(spark, 3), path, logFormat=format, **OPTIONS[format])
    text = refused(lambda: save(spark.sql(f"select {query}"), path))
    assert words in text
    assert values(path) == expected(3)
    assert no_staging(path)


def test_times_that_go_back_store_nothing(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "log"
    df = spark.sql(
        "select binary(string(id)) as value, timestamp_millis(1700000000000 - 5 * id) as timestamp from range(9)"
    )
    save(df.where("id = 0"), path, logFormat="rustlog")
    text = refused(lambda: save(df.coalesce(1), path))
    assert "goes back" in text
    assert "lateTimestamps=clamp" in text
    assert values(path) == [b"0"]
    assert no_staging(path)
    save(df.where("id = 0"), path)
    assert values(path) == [b"0", b"0"]


def test_times_that_go_back_leave_nothing_where_nothing_was(spark: SparkSession, tmp_path: Path) -> None:
    query = "select binary(string(id)) as value, timestamp_millis(1700000000000 - 5 * id) as timestamp from range(9)"
    df, path = spark.sql(query).coalesce(1), tmp_path / "log"
    for mode in ("append", "overwrite"):
        for more in ({}, {"topic": "orders", "numPartitions": "1"}):
            text = refused(lambda mode=mode, more=more: save(df, path, mode, logFormat="rustlog", **more))
            assert "goes back" in text
            assert "lateTimestamps=clamp" in text
            assert not path.exists(), (mode, more)
    given = tmp_path / "given"
    df.write.parquet(str(given))
    stream = spark.readStream.schema(df.schema).parquet(str(given)).writeStream.format("duramen")
    stream = stream.option("logFormat", "rustlog").option("checkpointLocation", str(tmp_path / "checkpoint"))
    text = refused(lambda: stream.trigger(availableNow=True).start(str(path)).awaitTermination())
    assert "goes back" in text
    assert not path.exists()


def test_late_times_can_be_clamped(spark: SparkSession, tmp_path: Path) -> None:
    """Behind what the log holds as well as within a batch; a format that takes such times keeps them."""
    query = (
        "binary(string(id)) as value, timestamp_millis(1700000000000 + (id * 7) % 10) as timestamp from range({}, {})"
    )
    for mode in ("append", "overwrite"):
        for format, clamped in (("keratin", True), ("rustlog", True), ("osiris", False)):
            path = tmp_path / mode / format
            save(spark.sql(f"select {query.format(0, 1)}"), path, logFormat=format)
            df = spark.sql(f"select {query.format(1, 30)}").coalesce(1)
            save(df, path, mode, lateTimestamps="clamp", logFormat=format)
            with duramen.open(path) as log:
                found = [int(record.timestamp.timestamp() * 1000) % 100 for record in log if record.timestamp]
                assert log.verify().ok
            given = [(number * 7) % 10 for number in range(mode == "overwrite", 30)]
            assert found == ([max(given[: n + 1]) for n in range(len(given))] if clamped else given), (mode, format)
    assert "lateTimestamps" in refused(lambda: save(rows(spark, 1), tmp_path / "log", lateTimestamps="later"))


def test_late_times_stop_a_query_until_the_option_is_set(spark: SparkSession, tmp_path: Path) -> None:
    """The error names the option, which can be set for one topic of several; the batch is stored once."""
    spark.sql(
        "select topic, binary(string(id)) as value, timestamp_millis(1700000000000 - 5 * id) as timestamp"
        " from range(3) join (select explode(array('audit', 'orders')) as topic)"
    ).coalesce(1).write.parquet(str(tmp_path / "given"))
    given = spark.readStream.schema("topic STRING, value BINARY, timestamp TIMESTAMP").parquet(str(tmp_path / "given"))

    def run(**options: str) -> None:
        writer = given.writeStream.format("duramen").option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.options(**options).trigger(availableNow=True).start(str(tmp_path / "store")).awaitTermination()

    for options in ({}, {"lateTimestamps": '{"orders": "clamp"}'}):
        text = refused(lambda options=options: run(**options))
        assert "topics/audit/partitions/0: a timestamp goes back" in text
        assert 'lateTimestamps=clamp, for one topic lateTimestamps={"TOPIC": "clamp"}; until then the query' in text
        assert not (tmp_path / "store").exists()
    run(lateTimestamps='{"orders": "clamp", "audit": "clamp"}')
    for topic in ("audit", "orders"):
        assert sorted(values(tmp_path / f"store/topics/{topic}/partitions/0")) == [b"0", b"1", b"2"]
    for wrong in ('{"orders": "later"}', "{", "[]"):
        with pytest.raises(UsageError, match=r"is not valid \(it is fail, clamp, or JSON"):
            parse_write_options({"path": "/log", "lateTimestamps": wrong})
    with pytest.raises(UsageError, match="names topics, and one log is written"):
        plan_target(
            parse_write_options({"path": "/log", "lateTimestamps": '{"a": "clamp"}'}), ["value"], overwrite=False
        )


def test_the_mode_has_to_be_said(spark: SparkSession, tmp_path: Path) -> None:
    text = refused(lambda: rows(spark, 1).write.format("duramen").save(str(tmp_path / "log")))
    assert "append" in text.lower()


def test_a_log_that_another_holds(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "log"
    with duramen.open(path, "a") as log:
        log.append(b"mine")
        text = refused(lambda: save(rows(spark, 3), path, lockTimeoutMs=300))
        assert "pid " in text
        assert "open for writing elsewhere" in text
    assert values(path) == [b"mine"]
    assert no_staging(path)


def test_null_values_go_there_and_back(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "log"
    columns = "binary(cast(id as string)) as key", "if(id % 2 = 0, binary('v'), null) as value"
    save(spark.range(4).coalesce(1).selectExpr(*columns), path, logFormat="keratin")
    assert values(path) == [b"v", None, b"v", None]
    read = spark.read.format("duramen").load(str(path))
    assert [row.value for row in read.sort("offset").collect()] == [bytearray(b"v"), None, bytearray(b"v"), None]
    assert read.where("value is null").count() == 2
    stream = spark.readStream.format("duramen").load(str(path)).writeStream.format("duramen")
    stream = stream.options(checkpointLocation=str(tmp_path / "checkpoint"), topic="copy", numPartitions=2)
    stream.trigger(availableNow=True).start(str(tmp_path / "store")).awaitTermination()
    copied = spark.read.format("duramen").option("subscribe", "copy").load(str(tmp_path / "store"))
    assert sorted((bytes(row.key), row.value and bytes(row.value)) for row in copied.collect()) == [
        (b"0", b"v"), (b"1", None), (b"2", b"v"), (b"3", None),
    ]  # fmt: skip


def test_encoded_values(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    frame = spark.sql(
        "SELECT named_struct('id', id, 'tags', array('a')) AS value, cast(id AS string) AS key FROM range(5)"
    )
    frame.write.format("duramen").mode("append").option("encode", "json").save(path)
    with duramen.open(path) as log:
        found = sorted((record.key, record.value) for record in log.scan(decode="json"))
    assert found == [(b"%d" % number, {"id": number, "tags": ["a"]}) for number in range(5)]
    with pytest.raises(PySparkException, match="cast it first"):
        frame.write.format("duramen").mode("append").save(path)
    raw = spark.sql("SELECT named_struct('raw', X'FF') AS value")
    with pytest.raises(PySparkException, match="row 0 cannot be encoded"):
        raw.write.format("duramen").mode("append").option("encode", "json").save(path)
    with pytest.raises(PySparkException, match="encode must be"):
        frame.write.format("duramen").mode("append").option("encode", "jsn").save(path)
    with duramen.open(path) as log:
        assert log.next_offset == 5
