"""Decoded values and keys through the data source: the same as the in-process reader gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import duramen
from duramen.spark import jar, parse_options, scan
from tests.values import amqp_messages as amqp
from tests.values.test_confluent import Produced

MESSAGES = [
    amqp.section(0x73, amqp.list_of([amqp.text(f"id-{number}")]))
    + amqp.section(0x74, amqp.map_of([(amqp.text("n"), b"\x50" + bytes([number])), (amqp.text("s"), amqp.text("x"))]))
    + amqp.data(b"body %d" % number)
    for number in range(40)
]


@pytest.fixture
def path(tmp_path: Path) -> str:
    with duramen.open(tmp_path / "log", "a", format="kafka", segment_max_bytes=2048) as log:
        for number, value in enumerate(MESSAGES):
            log.append(value, key=b"k%d" % number)
        log.append(b"junk", key=b"\xff")
        log.append(None, key=b"gone")
    return str(tmp_path / "log")


def load(spark: SparkSession, path: str, **options: str) -> Any:
    return spark.read.format("duramen").options(**options).load(path)


def test_rows_are_those_of_the_reader(spark: SparkSession, path: str) -> None:
    frame = load(spark, path, decode="amqp", decodeKey="utf8", onMalformed="raw")
    assert frame.columns == ["offset", "timestamp", "key", "value", "_malformed", "_malformed_key"]
    rows = frame.orderBy("offset").collect()
    with duramen.open(path) as log:
        table = log.table(decode="amqp", decode_key="utf8", on_malformed="raw")
    for row, offset, value in zip(rows, table["offset"].to_pylist(), table["value"].to_pylist(), strict=True):
        assert row.offset == offset
        found = None if row.value is None else row.value.asDict(recursive=True)
        if value is not None:
            for name in ("application_properties", "annotations", "delivery_annotations", "footer"):
                value[name] = None if value[name] is None else dict(value[name])
        assert found == value
    assert rows[40]._malformed.asDict() == {"reason": "byte 0: not a section of a message", "bytes": bytearray(b"junk")}
    assert rows[40]._malformed_key.bytes == b"\xff"
    assert rows[41].value is None
    assert rows[41]._malformed is None


def test_fields_in_sql(spark: SparkSession, path: str) -> None:
    frame = load(spark, path, decode="amqp", onMalformed="null", columns="value")
    found = frame.selectExpr(
        "decode(value.body.data, 'utf-8') AS body", "value.message_id.text AS id",
        "cast(value.application_properties['n'].text AS int) AS n",
    ).where("n > 37").orderBy("n").collect()  # fmt: skip
    assert [tuple(row) for row in found] == [("body 38", "id-38", 38), ("body 39", "id-39", 39)]


@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
def test_map_in_arrow_gives_the_same(spark: SparkSession, path: str) -> None:
    frame = scan(spark, path, decode="amqp", onMalformed="null")
    assert frame.schema == load(spark, path, decode="amqp", onMalformed="null").schema
    assert frame.where("value.body.data IS NOT NULL").count() == 40


def test_a_malformed_value_fails_the_query_with_its_offset(spark: SparkSession, path: str) -> None:
    with pytest.raises(PySparkException, match="offset 40: the value is not amqp"):
        load(spark, path, decode="amqp", onDamage="skip").collect()


FIELDS: list[tuple[dict[str, str], list[str]]] = [
    ({"decode": "amqp", "onMalformed": "null"}, ["offset", "value.body.data", "value.message_id.text AS id"]),
    ({"decode": "amqp", "onMalformed": "null"}, ["value.application_properties['n'] AS n", "value IS NULL AS bad"]),
    ({"decode": "amqp", "onMalformed": "raw"}, ["_malformed.reason", "value.header.ttl"]),
    ({"decode": "amqp", "onMalformed": "raw", "decodeKey": "utf8"}, ["_malformed", "key"]),
    ({"decode": "amqp", "onMalformed": "null"}, ["offset", "key"]),
    ({"decode": "amqp", "onMalformed": "null"}, ["value.body", "value.subject", "value"]),
    ({"decode": "amqp", "onMalformed": "fail"}, ["offset"]),
    ({"decode": "amqp", "onMalformed": "fail"}, ["count(*)"]),
    ({"decode": "amqp", "onMalformed": "null"}, ["count(*)", "count(value)", "count(value.body.data)"]),
    ({"decode": "json", "onMalformed": "null", "valueSchema": "a int, b int"}, ["offset", "value.b"]),
]


@pytest.mark.skipif(jar() is None, reason="built without a JDK")
@pytest.mark.parametrize(("options", "columns"), FIELDS, ids=str)
def test_fields_that_spark_does_not_need(
    spark: SparkSession, path: str, options: dict[str, str], columns: list[str]
) -> None:
    def shown(engine: str) -> Any:
        frame = load(spark, path, engine=engine, **options).selectExpr(*columns)
        try:
            return sorted(map(str, frame.toArrow().to_pylist()))
        except PySparkException as error:
            return str(error)[str(error).index("offset 40") :].splitlines()[0]

    assert shown("jvm") == shown("python")


@pytest.mark.skipif(jar() is None, reason="built without a JDK")
def test_a_stream_of_some_fields(spark: SparkSession, path: str) -> None:
    for engine in ("python", "jvm"):
        frame = spark.readStream.format("duramen").options(decode="amqp", onMalformed="null", engine=engine).load(path)
        fields = frame.select("offset", "value.body.data", "value.application_properties.s.text")
        query = fields.writeStream.format("memory").queryName(f"few_{engine}").trigger(availableNow=True).start()
        query.awaitTermination()
    first, other = (spark.sql(f"SELECT * FROM few_{engine} ORDER BY offset").collect() for engine in ("python", "jvm"))
    assert len(first) == 42
    assert first == other


def test_json_by_schema_and_by_its_first_values(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    with duramen.open(path, "a", segment_max_bytes=4096) as log:
        for number in range(500):
            log.append(b'{"n": %d, "tags": ["a"], "at": "2024-01-01T00:00:00Z"}' % number)
    given = load(spark, path, decode="json", valueSchema="n bigint, at timestamp, m map<string,bigint>")
    assert given.schema["value"].dataType.simpleString() == "struct<n:bigint,at:timestamp,m:map<string,bigint>>"
    assert given.selectExpr("sum(value.n)").first()[0] == sum(range(500))
    found = load(spark, path, decode="json", startingOffsets="-3")
    assert found.schema["value"].dataType.simpleString() == "struct<n:bigint,tags:array<string>,at:string>"
    assert [row.value.n for row in found.orderBy("offset").collect()] == [497, 498, 499]
    with duramen.open(path, "a") as log:
        log.append(b'{"m": 1}')
    assert load(spark, path, decode="json").where("value.m = 1").count() == 1
    with duramen.open(path, "a") as log:
        log.append_batch([b"{}"] * 600)
        log.append(b'{"late": 1}')
    with pytest.raises(PySparkException, match="'late'"):
        load(spark, path, decode="json").collect()


def test_first_values_after_tombstones_and_in_other_partitions(spark: SparkSession, tmp_path: Path) -> None:
    with duramen.Store(tmp_path / "store") as store:
        topic = store.create("orders", partitions=3, format="kafka")
        topic.append_batch(
            [(b"k", None)] * 1500 + [(b"k", b'{"n": 1}')] * 2 + [(b"k", b"?")],
            partition=1,
        )  # fmt: skip
    options = {"decode": "json", "onMalformed": "raw", "subscribe": "orders"}
    frame = load(spark, str(tmp_path / "store"), **options)
    assert frame.schema["value"].dataType.simpleString() == "struct<n:bigint>"
    assert frame.selectExpr("count(value.n)", "count(_malformed)", "count(*)").first()[:] == (2, 1, 1503)
    with pytest.raises(PySparkException, match=r"orders/partitions/1/.*offset 1502: the value is not json"):
        load(spark, str(tmp_path / "store"), **{**options, "onMalformed": "fail"}).collect()


def test_a_stream(spark: SparkSession, path: str, tmp_path: Path) -> None:
    frame = spark.readStream.format("duramen").options(decode="amqp", onMalformed="raw").load(path)
    query = frame.writeStream.format("memory").queryName("decoded").trigger(availableNow=True).start()
    query.awaitTermination()
    assert spark.sql("SELECT count(value.body.data), count(_malformed) FROM decoded").first()[:] == (40, 1)
    with duramen.open(tmp_path / "empty", "a"):
        pass
    stream = spark.readStream.format("duramen").option("decode", "json").load(str(tmp_path / "empty"))
    query = stream.writeStream.format("noop").trigger(availableNow=True).start()
    with pytest.raises(PySparkException, match="valueSchema"):
        query.awaitTermination()


def test_an_empty_log(spark: SparkSession, tmp_path: Path) -> None:
    with duramen.open(tmp_path / "empty", "a"):
        pass
    assert load(spark, str(tmp_path / "empty"), decode="amqp").count() == 0
    assert load(spark, str(tmp_path / "empty"), decode="json").count() == 0


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"decode": "amqq"}, "option decode='amqq' is not valid"), ({"decoed": "amqp"}, "did you mean"),
        ({"onMalformed": "raw"}, "option onMalformed is given alone"),
        ({"decode": "amqp", "onMalformed": "skip"}, "option onMalformed='skip'"),
        ({"valueSchema": "n int"}, "option valueSchema is given alone"),
        ({"decode": "amqp", "valueSchema": "n int"}, "a list of their fields"),
        ({"decode": "amqp", "columns": "offset,key"}, "not among the columns"),
        ({"decode": "amqp", "summary": "true"}, "summary and decode"),
        ({"decode": "json", "valueSchema": "n wat"}, "'wat' is not known"),
    ],
)  # fmt: skip
def test_wrong_options(options: dict[str, str], why: str) -> None:
    with pytest.raises(duramen.UsageError, match=why):
        parse_options({"path": "/log", **options}, streaming=False)


@pytest.mark.parametrize("kind", ["avro", "json", "protobuf"])
def test_confluents_serializers(kind: str, spark: SparkSession, tmp_path: Path) -> None:
    produced = Produced(kind)
    path, registry = produced.log(tmp_path / "log"), produced.directory(tmp_path / "schemas")
    frame = load(spark, path, decode="confluent", registry=registry)
    assert [row.value.id for row in frame.orderBy("offset").collect()] == [1, 2, 3]
