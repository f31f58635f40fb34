"""`read` with a condition, against the plain filter; SQL: temporary views, tables, inserts, and the trap."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import duramen
from duramen.errors import UsageError
from duramen.record import TIMESTAMP
from duramen.spark import read, register
from duramen.spark.query import options_of
from duramen.spark.where_clause import bounds_of
from tests.spark.conftest import HAS_JAR
from tests.spark.source_logs import batch_of, read_here, write_log

CONDITIONS: dict[str, int | None] = {
    "offset >= 180": 20, "offset > 180": 19, "offset < 20": 20, "offset <= 20": 21, "offset = 7": 1, "offset == 7": 1,
    "offset <=> 7": 1, "180 <= offset": 20, "7 = offset": 1, "20 > `offset`": 20,
    "(offset >= 10) AND ((offset) < 20)": 190, "((offset >= 10) AND (20 > offset))": 10,
    "offset >= 10 and offset < 20": 10, "OFFSET BETWEEN 10 AND 19": 10, "offset BETWEEN 19 AND 10": 0,
    "offset BETWEEN 10 AND 19 AND offset <> 12": 10, "offset IN (30, 12, 31)": 20, "offset IN (30)": 1,
    "offset = 5 AND offset = 7": 0, "offset > -5": 200, "offset < -5": 0, "offset >= - 3 AND offset < 4": 4,
    "offset > 10.5": 190, "offset < 10.5": 11, "offset <= 10.0": 11, "offset > .5": 200, "offset >= 195L": 5,
    "offset >= 9223372036854775807": 0, "offset < 99999999999999999999": 200, "offset > 99999999999999999999": 0,
    "offset >= 100 AND value LIKE '%and offset > 150%'": 100, "offset < 50 AND key IS NOT NULL": 50,
    "offset >= 10 AND (offset < 20 OR key IS NULL)": 190, "offset >= 1.9e2": None, "offset >= 190D": None,
    "offset >= '190'": None, "offset + 0 >= 190": None, "offset % 2 = 0": None, "NOT offset < 190": None,
    "offset >= 190 OR offset < 3": None, "offset < 3 AND true OR offset > 190": None, "offset <> 3": None,
    "offset NOT BETWEEN 5 AND 190": None, "offset NOT IN (1, 2)": None, "offset >= abs(-190)": None,
    "CASE WHEN true THEN offset > 3 AND offset < 9 AND true END": None, "offset >= 190 = false": None,
    "exists(array(offset), x -> x > 5 AND offset < 9)": None, "offset >= 3 -- AND offset < 9": None,
    "value <> r'\\' OR key = ' AND offset > 190 AND x = '": None,
    "offset IN (1, NULL)": None, "offset IN (1, offset)": None, "offset > NULL": None, "offset IS NULL": None,
    "timestamp >= '2023-11-14T22:16:30Z'": 10, "timestamp > '2023-11-14T22:16:30Z'": 9,
    "timestamp < '2023-11-14 22:13:30'": 10, "timestamp <= TIMESTAMP '2023-11-14 22:13:30'": 11,
    "timestamp = timestamp'2023-11-14 22:13:30'": 1, "TIMESTAMP '2023-11-14 22:16:30' <= timestamp": 10,
    "timestamp BETWEEN '2023-11-14 22:13:30' AND '2023-11-14 22:13:39.999999'": 10,
    "timestamp >= TIMESTAMP_NTZ '2023-11-14 22:16:30'": 10, "timestamp >= '2023-11-14 23:16:30+01:00'": 10,
    "timestamp >= timestamp_millis(1700000190000)": 10, "timestamp < timestamp_seconds(-5)": 0,
    "timestamp >= to_timestamp('2023-11-14 22:16:30')": 10, "timestamp < DATE '2023-11-14'": 0,
    "timestamp >= CAST('2023-11-14 22:16:30' AS TIMESTAMP) AND offset < 195": 5, "timestamp > '2023'": 200,
    "timestamp < '1969-12-31T23:59:59Z'": 0, "timestamp > '0001-01-01'": 200, "timestamp < '+99999-01-01'": 200,
    "timestamp >= '2023-11-14 22:16:30' AND timestamp < '2023-11-14 22:16:35' AND offset > 191": 3,
    "timestamp > current_timestamp() - INTERVAL 1 DAY": None, "timestamp < 'now'": None, "timestamp <= now()": None,
    "timestamp >= '2023-11-14 22:16:30' OR offset = 1": None, "NOT timestamp > '2023-11-14 22:16:30'": None,
    "date(timestamp) = '2023-11-14' AND hour(timestamp) = 22": None, "timestamp IS NULL": None,
}  # fmt: skip
"""Conditions, and how many of 200 records the options that they become still read. None: all, it stays a filter."""


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("where")
    found = {name: write_log(root / name, name, 200) for name in ("keratin", "rustlog", "osiris", "durable-log")}
    with duramen.open(root / "old", "a", format="osiris") as log:  # before 1970, and back and forth
        for offset in range(200):
            us = pa.array([(offset * 37 % 200 - 100) * 1_000_000], pa.int64()).view(TIMESTAMP.type)
            log.append_batch(pa.RecordBatch.from_pydict({"value": pa.array([b"x"]), "timestamp": us}))
    return found | {"old": root / "old"}


@pytest.fixture(scope="module")
def kept(spark: SparkSession, logs: dict[str, Path]) -> dict[str, dict[str, set[int]]]:
    """What the plain filter keeps of each log, by condition. One query evaluates all of them."""
    frame = spark.read.format("duramen").option("columns", "topic,offset,timestamp,key,value")
    rows = (
        frame.load([str(log) for log in logs.values()])
        .selectExpr("topic", "offset", *(f"({one}\n)" for one in CONDITIONS))
        .collect()
    )
    return {
        name: {one: {row[1] for row in rows if row[0] == name and row[2 + n]} for n, one in enumerate(CONDITIONS)}
        for name in logs
    }


def test_conditions_become_ranges_that_hold_every_row(
    spark: SparkSession, logs: dict[str, Path], kept: dict[str, dict[str, set[int]]]
) -> None:
    for condition, count in CONDITIONS.items():
        options = options_of(spark, condition, {})
        if count is None:
            assert options == {}, condition
            continue
        for name, log in logs.items():
            table = read_here(log, columns="offset", **options)
            read_offsets = set(table.column("offset").to_pylist())
            assert kept[name][condition] <= read_offsets, f"{name}: {condition}: {options}"
            if name in ("keratin", "rustlog"):
                assert len(read_offsets) == count, f"{name}: {condition}: {options}"


def test_times_depend_on_the_session(spark: SparkSession, logs: dict[str, Path]) -> None:
    condition = "timestamp >= '2023-11-14 23:16:30'"
    assert read(spark, str(logs["keratin"]), where=condition).count() == 0
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        assert read(spark, str(logs["keratin"]), where=condition).count() == 10
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone or "UTC")


SOME = (
    "offset >= 10 AND offset < 20 AND key IS NOT NULL",
    "timestamp >= '2023-11-14 22:16:30' AND offset % 2 = 0",
    "offset >= 190 OR offset < 3",
    "timestamp < timestamp_seconds(-5)",
)


@pytest.mark.parametrize("condition", SOME)
def test_read_is_the_plain_filter(spark: SparkSession, logs: dict[str, Path], condition: str) -> None:
    """Also over logs whose records have no time."""
    paths = [str(logs[name]) for name in ("keratin", "durable-log", "old")]
    options = {"columns": ["topic", "offset", "timestamp", "key", "value"]}
    found = read(spark, paths, where=condition, **options)
    plain = spark.read.format("duramen").option("columns", "topic,offset,timestamp,key,value").load(paths)
    assert found.schema == plain.schema
    assert sorted(map(str, found.collect())) == sorted(map(str, plain.where(condition).collect()))


def test_read_with_options_of_the_caller(spark: SparkSession, logs: dict[str, Path]) -> None:
    log = str(logs["keratin"])
    assert read(spark, log).count() == 200
    assert read(spark, log, where="offset >= 10", startingOffsets="-5").count() == 5
    assert read(spark, log, where="offset < 10", endingOffsets=5, startingTimestamp="2023-11-14T22:13:22Z").count() == 3
    with pytest.raises(UsageError, match="where is a int"):
        read(spark, log, where=5)  # type: ignore[arg-type]
    with pytest.raises(PySparkException, match="UNRESOLVED_COLUMN"):
        read(spark, log, where="offst > 5").count()
    with pytest.raises(PySparkException, match="CAST_INVALID_INPUT"):
        read(spark, log, where="timestamp > '2023-99-99'").count()


def test_a_name_that_is_a_keyword_says_nothing() -> None:
    assert bounds_of("end = 1 AND CASE WHEN a THEN b ELSE c AND offset > 5 AND d END") == bounds_of("true")
    assert bounds_of("x.offset > 5 AND offset.x > 5 AND f(offset) > 5 AND -offset > 5") == bounds_of("true")
    assert bounds_of("offset BETWEEN 1 AND 5 = false") == bounds_of("true")


# --- SQL


@pytest.fixture
def table(spark: SparkSession) -> Iterator[str]:
    spark.sql("CREATE TABLE d (offset BIGINT, timestamp TIMESTAMP, key BINARY, value BINARY) USING duramen")
    yield "d"
    spark.sql("DROP TABLE d")


def test_a_table_takes_its_options_from_the_query(spark: SparkSession, tmp_path: Path, table: str) -> None:
    log = write_log(tmp_path / "log", "keratin", 100)
    counting = f"SELECT count(*) FROM {table} WITH (path='{log}'"
    assert spark.sql(f"{counting})").first() == (100,)
    with duramen.open(log, "a") as writer:
        writer.append_batch(batch_of("keratin", 100, 5))
    assert spark.sql(f"{counting})").first() == (105,), "every query looks again"
    assert spark.sql(f"{counting}, startingOffsets='-3')").first() == (3,)
    with pytest.raises(PySparkException, match=r"option path is missing.*FROM table WITH \(path="):
        spark.sql(f"SELECT * FROM {table}").collect()


def test_one_table_with_two_sets_of_options_is_the_trap(spark: SparkSession, tmp_path: Path, table: str) -> None:
    """Without the jar, Spark 4.3 keeps the first options for the whole query. If this fails without the jar, the
    warning in the docs can go."""
    a, b = write_log(tmp_path / "a", "keratin", 10), write_log(tmp_path / "b", "keratin", 20)
    both = "SELECT count(*) AS n FROM {0} WITH (path='{2}') UNION ALL SELECT count(*) FROM {1} WITH (path='{3}')"
    assert [row.n for row in spark.sql(both.format(table, table, a, b)).collect()] == [10, 20 if HAS_JAR else 10]
    register(spark, "a", str(a))
    register(spark, "b", str(b))
    names = spark.sql("SELECT count(*) AS n FROM a UNION ALL SELECT count(*) FROM b").collect()
    assert [row.n for row in names] == [10, 20]


def test_insert(spark: SparkSession, tmp_path: Path, table: str) -> None:
    log = tmp_path / "new"
    row = "SELECT 0L, TIMESTAMP '2026-01-31 12:00:00', CAST('k' AS BINARY), CAST('v' AS BINARY)"
    spark.sql(f"INSERT INTO {table} WITH (path='{log}', logFormat='keratin') {row}")
    register(spark, "events", str(log))
    spark.sql(f"INSERT INTO events {row}")
    with duramen.open(log) as opened:
        assert [(record.key, record.value) for record in opened.scan()] == [(b"k", b"v")] * 2


def test_register(spark: SparkSession, tmp_path: Path) -> None:
    log = write_log(tmp_path / "it's a log", "keratin", 30)
    register(spark, "some events", str(log), columns=["offset", "value"], startingOffsets=-5)
    found = spark.sql("SELECT * FROM `some events` ORDER BY offset")
    assert (found.columns, found.count()) == (["offset", "value"], 5)
    register(spark, "some events", [str(log), str(write_log(tmp_path / "b", "keratin", 7))])
    assert spark.table("`some events`").count() == 37
    with pytest.raises(PySparkException, match="no such file or directory"):
        register(spark, "none", "/no/such/log")
