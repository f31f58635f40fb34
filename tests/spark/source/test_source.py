"""The data source on a real session: row for row what the in-process reader reads, found by name, errors in a line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import duramen
from duramen.errors import DuramenError
from duramen.log.read.log import Log
from duramen.spark import scan
from tests.conftest import DATA
from tests.spark.conftest import HAS_JAR
from tests.spark.source_logs import (
    FORMATS,
    RECORD_SIZE,
    START_MS,
    assert_same,
    batch_of,
    expected,
    read_here,
    write_log,
)

NEUTRAL = ("offset", "timestamp", "key", "value")
ALL = (*NEUTRAL, "headers")
OSIRIS = ("plain", "subbatch", "dedup", "tracked", "retention", "golden_1_3_1", "crash", "crash_recovered")
ON_SPARK = ("subbatch", "tracked", "crash")


def load(spark: SparkSession, path: Path | str, **options: Any) -> DataFrame:
    return spark.read.format("duramen").options(**options).load(str(path))


@pytest.mark.parametrize("name", FORMATS)
def test_rows_are_those_of_the_reader(spark: SparkSession, tmp_path: Path, name: str) -> None:
    log = write_log(tmp_path / name, name, 500)
    frame = load(spark, log, maxBytesPerPartition=16_384)
    assert frame.columns == list(NEUTRAL)
    assert frame.rdd.getNumPartitions() > 1
    assert_same(frame.toArrow(), expected(log, NEUTRAL))
    assert_same(load(spark, log, columns=",".join(ALL)).toArrow(), expected(log, ALL))


@pytest.mark.parametrize("stream", OSIRIS)
def test_logs_of_a_real_broker(stream: str) -> None:
    log = DATA / "osiris" / stream
    columns = ("offset", "timestamp", "value")
    found = read_here(log, columns=",".join(columns), maxBytesPerPartition="20k")
    assert_same(found, expected(log, columns))


def test_logs_of_a_real_broker_on_spark(spark: SparkSession) -> None:
    for stream in ON_SPARK:
        log = DATA / "osiris" / stream
        frame = load(spark, log, columns="offset,timestamp,value", minPartitions=2)
        assert_same(frame.toArrow(), expected(log, ["offset", "timestamp", "value"]))


def test_sql(spark: SparkSession, tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", "keratin", 100)
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW events USING duramen OPTIONS (path '{log}', startingOffsets '90')")
    assert spark.sql("SELECT count(*), min(offset) FROM events").collect() == [(10, 90)]
    spark.sql(f"CREATE TABLE events_table USING duramen OPTIONS (path '{log}', columns 'offset,key')")
    try:
        if HAS_JAR:
            assert spark.sql("SELECT max(offset) FROM events_table").collect() == [(99,)]
            return
        # Spark 4.3 hands no option of a table over to Python when it is read: all that can be done is to say so
        with pytest.raises(PySparkException, match="or CREATE TEMPORARY VIEW … USING duramen OPTIONS"):
            spark.sql("SELECT max(offset) FROM events_table").collect()
    finally:
        spark.sql("DROP TABLE events_table")


def test_a_filter_does_not_stay(spark: SparkSession, tmp_path: Path) -> None:
    """What pushed-down filters get wrong in Spark 4.3: the same DataFrame filtered, then not."""
    frame = load(spark, write_log(tmp_path / "log", "rustlog", 100))
    assert frame.where("offset < 10").count() == 10
    assert frame.count() == 100
    assert frame.where("offset < 10").union(frame.where("offset >= 95")).count() == 15


def test_a_dataframe_is_a_snapshot(spark: SparkSession, tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", "keratin", 10)
    frame = load(spark, log)
    assert frame.count() == 10
    with duramen.open(log, "a") as writer:
        writer.append_batch(batch_of("keratin", 10, 5))
    assert frame.count() == 10
    assert load(spark, log).count() == 15


def test_schema_chooses_columns(spark: SparkSession, tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", "keratin", 20)
    reader = spark.read.format("duramen")
    frame = reader.schema("value BINARY, offset BIGINT").load(str(log))
    assert_same(frame.toArrow(), expected(log, ["value", "offset"]))
    assert reader.schema("partition INT, topic STRING, position BIGINT").load(str(log)).first()[:2] == (0, "log")
    with pytest.raises(PySparkException, match=r"column 'value'.*it is binary"):
        reader.schema("value STRING").load(str(log)).count()
    with pytest.raises(PySparkException, match=r"column 'valu'.*allowed: offset, timestamp"):
        reader.schema("valu BINARY").load(str(log)).count()


def test_fixed_slot_of_another_program_needs_its_size(spark: SparkSession, tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", "fixed-slot", 10)
    (log / ".duramen" / "log.json").unlink()
    frame = load(spark, log, logFormat="fixed-slot", record_size=RECORD_SIZE)
    assert frame.count() == 10
    with pytest.raises(PySparkException, match=f"record_size={RECORD_SIZE}"):
        load(spark, log, logFormat="fixed-slot").count()


def test_an_empty_log_and_an_empty_range(spark: SparkSession, tmp_path: Path) -> None:
    duramen.open(tmp_path / "empty", "a", format="keratin").close()
    assert load(spark, tmp_path / "empty").count() == 0
    log = write_log(tmp_path / "log", "keratin", 10)
    assert load(spark, log, startingOffsets="latest").count() == 0
    assert load(spark, log, startingOffsets=7, endingOffsets=7).collect() == []
    assert load(spark, log, startingOffsets=1000).count() == 0


# --- ranges


@pytest.mark.parametrize(
    ("options", "offsets"),
    [
        ({"startingOffsets": "earliest", "endingOffsets": "latest"}, range(200)),
        ({"startingOffsets": "150"}, range(150, 200)),
        ({"startingOffsets": "-3"}, range(197, 200)),
        ({"startingOffsets": "-1000"}, range(200)),
        ({"endingOffsets": "-190"}, range(10)),
        ({"startingOffsets": "20", "endingOffsets": "40"}, range(20, 40)),
        ({"startingOffsets": '{"log": {"0": 190}}'}, range(190, 200)),
        ({"startingOffsets": '{"log": {"0": "-2"}}', "endingOffsets": '{"log": {"0": 199}}'}, range(199)),
        ({"startingTimestamp": str(START_MS + 195_000)}, range(195, 200)),
        ({"startingTimestamp": "2023-11-14T22:13:30Z", "endingTimestamp": "2023-11-14T22:13:33Z"}, [10, 11, 12]),
    ],
)
def test_ranges(spark: SparkSession, range_log: Path, options: dict[str, str], offsets: Any) -> None:
    frame = load(spark, range_log, columns="offset", **options)
    assert [row.offset for row in frame.collect()] == list(offsets)


@pytest.fixture(scope="module")
def range_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_log(tmp_path_factory.mktemp("ranges") / "log", "keratin", 200)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("store")
    for topic, partitions in (("orders", 3), ("orders.eu", 1), ("clicks", 2)):
        for number in range(partitions):
            path = root / "topics" / topic / "partitions" / str(number)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_log(path, "rustlog", 10 * (number + 1))
    return root


def test_topics_of_a_store(spark: SparkSession, store: Path) -> None:
    def counts(**options: str) -> dict[tuple[str, int], int]:
        frame = load(spark, store, columns="topic,partition", **options)
        return {(r.topic, r.partition): r["count"] for r in frame.groupBy("topic", "partition").count().collect()}

    assert counts(subscribe="orders") == {("orders", 0): 10, ("orders", 1): 20, ("orders", 2): 30}
    assert counts(subscribe="clicks, orders.eu").keys() == {("clicks", 0), ("clicks", 1), ("orders.eu", 0)}
    assert counts(subscribePattern="orders.*").keys() >= {("orders", 2), ("orders.eu", 0)}
    assert counts(subscribePattern="nothing") == {}
    assert counts(subscribe="orders", partitions="0,2-5") == {("orders", 0): 10, ("orders", 2): 30}
    ranges = '{"orders": {"0": 8, "1": -2, "2": -1}}'
    assert counts(subscribe="orders", startingOffsets=ranges) == {("orders", 0): 2, ("orders", 1): 20}
    one = load(spark, store / "topics/orders/partitions/1", columns="topic,partition").first()
    assert one == ("orders", 1)


# --- errors


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "/no/such/log"}, "/no/such/log: no such file or directory (check option path)"),
        ({"startingOffset": "3"}, "option startingoffset is not known (did you mean startingOffsets"),
        (
            {"startingOffsets": "soon"},
            "option startingOffsets='soon' is not valid (allowed: earliest, latest, an offset",
        ),
        ({"startingOffsets": '{"other": {"0": 1}}'}, "option startingOffsets names other/0, which is not read"),
        ({"startingOffsets": "{broken"}, "option startingOffsets='{broken' is not valid (allowed: JSON such as"),
        ({"endingTimestamp": "tomorrow"}, "option endingTimestamp='tomorrow' is not valid (allowed: ISO 8601"),
        ({"onDamage": "panic"}, "option onDamage='panic' is not valid (allowed: fail, skip, report)"),
        ({"failOnDataLoss": "1"}, "option failOnDataLoss='1' is not valid (allowed: true, false)"),
        ({"logFormat": "pulsar"}, "option logFormat='pulsar' is not valid (allowed: durable-log, keratin"),
        ({"logFormat": "osiris"}, "the log is keratin, not osiris"),
        ({"columns": "offset,vlue"}, "option columns: column 'vlue' is not known (allowed: offset, timestamp"),
        ({"minPartitions": "0"}, "option minPartitions='0' is not valid (allowed: a number from 1)"),
        ({"maxBytesPerPartition": "much"}, "option maxBytesPerPartition='much' is not valid"),
        ({"subscribe": "orders"}, "the topic 'orders' does not exist"),
        ({"subscribePattern": "("}, "option subscribePattern='(' is not valid (allowed: a regular expression"),
        ({"record_size": "5"}, "keratin has no option record_size"),
    ],
)
def test_a_wrong_option_says_which_and_what_is_allowed(range_log: Path, options: dict[str, str], message: str) -> None:
    with pytest.raises(DuramenError) as caught:
        read_here(**{"path": range_log, **options})
    assert message in str(caught.value)


def test_an_error_on_spark_is_one_clear_line(spark: SparkSession, range_log: Path) -> None:
    for reader in (spark.read, spark.readStream):  # at once, and not with the first action
        with pytest.raises(PySparkException) as caught:
            reader.format("duramen").load("/no/such/log")
        assert_plain(caught.value, "/no/such/log: no such file or directory (check option path)")
    with pytest.raises(PySparkException) as caught:
        load(spark, range_log, onDamag="skip")
    assert_plain(caught.value, "option ondamag is not known (did you mean onDamage?)")


def assert_plain(error: PySparkException, message: str) -> None:
    """The message is in the first line, once, without a Python traceback."""
    text = str(error)
    first = text.strip().splitlines()[0]
    assert message in first, text
    assert text.count(message) == 1, text
    assert "Traceback" not in text
    assert len(text.strip().splitlines()) < 6, text


def test_a_damaged_segment_names_file_and_place(spark: SparkSession, tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", "keratin", 300)
    segment = Path(Log(str(log)).segments[1].path)
    content = bytearray(segment.read_bytes())
    at = content.index(b"value 30.")
    content[at] ^= 1
    segment.write_bytes(bytes(content))
    with pytest.raises(PySparkException) as caught:
        load(spark, log).count()
    text = str(caught.value)
    assert f"{segment}: byte " in text
    assert "offset 30: " in text
    assert "Traceback" not in text
    assert text.count(str(segment)) <= 2, text


def test_a_segment_that_vanished_names_the_file(spark: SparkSession, tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", "keratin", 300)
    frame = load(spark, log)
    assert frame.count() == 300
    segment = Path(Log(str(log)).segments[1].path)
    segment.unlink()
    with pytest.raises(
        PySparkException, match=rf"{segment}: offset \d+: data loss: offsets \d+ to \d+ \(\d+ in all\): the"
    ):
        frame.count()


# --- scan


@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
def test_scan_is_the_same(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = write_log(tmp_path / "log", "osiris", 300)
    columns = ["offset", "timestamp", "value"]
    frame = scan(spark, str(log), minPartitions=3, startingOffsets=5, columns=columns)
    wanted = expected(log, columns, from_offset=5)
    assert_same(frame.toArrow(), wanted)
    assert "MapInArrow" in plan_of(frame)
    assert scan(spark, str(log), startingOffsets="latest").count() == 0
    with pytest.raises(duramen.UsageError, match="startingOffset"):
        scan(spark, str(log), startingOffset=5)
    without_pandas(monkeypatch)
    frame = scan(spark, str(log), startingOffsets=5, columns=columns, verify=True)
    assert "MapInArrow" not in plan_of(frame)
    assert_same(frame.toArrow(), wanted)


def plan_of(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().toString())


def without_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    find: Callable[..., Any] = importlib.util.find_spec

    def found(name: str, *rest: Any) -> Any:
        return None if name == "pandas" else find(name, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", found)


def test_work_on_the_rows(spark: SparkSession, tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", "keratin", 100)
    frame = load(spark, log).withColumn("text", F.col("value").cast("string"))
    assert frame.where("text LIKE 'value 4_.%'").count() == 11
    assert frame.groupBy("key").count().count() == 4
