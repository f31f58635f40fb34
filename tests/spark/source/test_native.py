"""Splits that the JVM reads itself, through the kernel: Python's rows and errors, and what is left to Python."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import duramen
from duramen.log.read.log import Log
from duramen.record import HEADERS
from duramen.spark import jar
from tests.conftest import DATA
from tests.spark.source.test_engine import load, outcome, rows
from tests.spark.source.test_piece_reader import CODECS, FORMATS, has_library
from tests.spark.source_logs import (
    START_MS,
    START_US,
    batch_of,
    build_log,
    with_offsets,
    write_log,
)

BROKERS = sorted(path.parent for path in (DATA / "kafka").glob("*/*/truth.read_committed.jsonl"))
BROKERS += [DATA / "osiris" / name for name in ("subbatch", "tracked", "crash")]
pytestmark = pytest.mark.skipif(jar() is None or not has_library(), reason="built without a JDK")

COLUMNS = "value,offset,timestamp,key,topic,partition,segment,position,timestampType"
HEADED = f"{COLUMNS},headers"


def metrics_of(frame: DataFrame) -> dict[str, int]:
    """Batches read in the JVM and by Python, and splits handed over, of the action that ran on this DataFrame."""
    todo, found = [frame._jdf.queryExecution().executedPlan()], {}
    while todo:
        plan = todo.pop()
        todo += [plan.children().apply(number) for number in range(plan.children().size())]
        for name in ("duramenNativeBatches", "duramenPythonBatches", "duramenHandedOver"):
            if plan.metrics().contains(name):
                found[name.removeprefix("duramen")] = plan.metrics().apply(name).value()
    return found


def is_native(frame: DataFrame) -> bool:
    found = metrics_of(frame)
    return found["NativeBatches"] > 0 and not found["PythonBatches"] and not found["HandedOver"]


def same(spark: SparkSession, log: Path, *selected: str, where: str = "true", **options: Any) -> DataFrame:
    """The DataFrame of the JVM, whose rows are those of Python."""
    frames = []
    for engine in ("python", "jvm"):
        frame = load(spark, log, engine, **options).where(where)
        frames.append(frame.selectExpr(*selected) if selected else frame)
    python, jvm = (frame.toArrow() for frame in frames)
    assert jvm.equals(python)
    return frames[1]


@pytest.mark.parametrize("name", FORMATS)
def test_rows(spark: SparkSession, tmp_path: Path, name: str) -> None:
    log = tmp_path / "log"
    options = {"record_size": 40} if name == "fixed-slot" else {"segment_max_bytes": 4096}
    with duramen.open(log, "a", format=name, **options) as writer:
        writer.append_batch(batch_of(name, 0, 500))
    whole = same(spark, log, columns=HEADED, maxBytesPerPartition=3000)
    assert is_native(whole)
    for where in ("offset BETWEEN 77 AND 178", "offset = 499"):
        assert is_native(same(spark, log, where=where, maxBytesPerPartition=3000))
        assert is_native(same(spark, log, "count(*)", "min(offset)", "max(offset)", where=where))
    for where in (f"timestamp >= timestamp_millis({START_MS + 60_000})", "offset < 99"):
        same(spark, log, where=where)
        same(spark, log, "count(*)", where=where)


def test_a_record_of_every_shape(spark: SparkSession, tmp_path: Path) -> None:
    values = [b"", b"x", None, b"", None, b"v" * 3_000_000, b"y" * 700, None, b"w" * 2_500_000, b"z"]
    keys = [b"k", None, b"gone", b"", None, b"big", b"K" * 300_000, b"", None, b"q"]
    columns = {
        "offset": pa.array([0, 1, 5, 6, 7, 2**40, 2**40 + 1, 2**50, 2**62, 2**62 + 5]),
        "value": pa.array(values, pa.binary()), "key": pa.array(keys, pa.binary()),
        "timestamp": pa.array([START_US] * 9 + [None], pa.timestamp("us", "UTC")),
    }  # fmt: skip
    log = tmp_path / "log"
    with duramen.open(log, "a", format="keratin") as writer:
        writer.append_batch(pa.RecordBatch.from_pydict(columns))
    assert is_native(same(spark, log, columns=HEADED))
    for name in ("key", "value", "headers", "offset"):
        assert is_native(same(spark, log, name, columns=HEADED))
    with duramen.open(log, "a") as writer:
        writer.append(b"last", headers=[("h", b"1")])
        writer.append(None, headers=[("h", None)], key=b"a")
    for selected in (["*"], ["key"], ["value"], ["offset", "timestamp"]):
        assert is_native(same(spark, log, *selected, columns=HEADED))


def test_kafka_nulls_and_kinds_of_time(spark: SparkSession, tmp_path: Path) -> None:
    log = tmp_path / "log"
    columns = {
        "value": pa.array([b"", None, b"x"] * 200, pa.binary()), "key": pa.array([None, b"k", b""] * 200, pa.binary()),
        "timestamp": pa.array([START_US, None, START_US + 5000] * 200, pa.timestamp("us", "UTC")),
    }  # fmt: skip
    with duramen.open(log, "a", format="kafka") as writer:
        writer.append_batch(pa.RecordBatch.from_pydict(columns))
        writer.append(b"headed", headers=[("h", b"1")])
    assert is_native(same(spark, log, columns=COLUMNS))
    assert is_native(same(spark, log, columns=HEADED))


@pytest.mark.parametrize("name", ["keratin", "kafka"])
def test_headers_of_every_shape(spark: SparkSession, tmp_path: Path, name: str) -> None:
    log, many = tmp_path / "log", [(f"name {number}", b"%d" % number) for number in range(100_000)]
    lists: list[list[tuple[str, bytes | None]]] = [
        [], [("", b"")], [("", None)], [("", b"bare")], [("a", None), ("a", b"1")], [("k" * 300_000, None)],
        [("\u00e9" * 300, b"x" * 300_000)] * 3, many,
    ]  # fmt: skip
    rows = [lists[number % 5] for number in range(3000)] + lists + lists[:3]
    headers = [[{"key": key, "value": value} for key, value in one] or None for one in rows]
    columns = {
        "value": pa.array([b"v", None] * (len(rows) // 2) + [b""] * (len(rows) % 2), pa.binary()),
        "headers": pa.array(headers, HEADERS.type),
    }
    with duramen.open(log, "a", format=name) as writer:
        writer.append_batch(pa.RecordBatch.from_pydict(columns))
    assert is_native(same(spark, log, columns=HEADED))
    for selected in ("headers", "headers.key", "size(headers)", "explode_outer(headers) AS one"):
        assert is_native(same(spark, log, selected, columns="offset,headers"))
    assert is_native(same(spark, log, "headers[0].value", where="offset > 2990", columns="offset,headers"))


def test_names_of_headers_that_are_not_text(spark: SparkSession, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with duramen.open(log, "a", format="kafka") as writer:
        writer.append(b"x", headers=[("\u00e9", b"1"), ("b", None)])
    path = Path(Log(str(log)).segments[0].path)
    path.write_bytes(path.read_bytes().replace("\u00e9".encode(), b"\xffa"))
    frame = same(spark, log, columns=HEADED, verify="false")
    assert metrics_of(frame)["HandedOver"] == 1
    assert frame.select("headers.key").first() == (["\ufffda", "b"],)
    assert is_native(same(spark, log, "offset", columns=HEADED, verify="false"))


@pytest.mark.parametrize("codec", [*CODECS, "gzip"])
def test_compressed_batches(spark: SparkSession, tmp_path: Path, codec: str) -> None:
    log = tmp_path / "log"
    with duramen.open(log, "a", format="kafka", compression=codec) as writer:
        for number in range(30):
            writer.append_batch(batch_of("kafka", number * 400, 400))
        writer.append(b"v" * 5_000_000, headers=[("h", b"x" * 300_000)])
    frames = [same(spark, log, columns=HEADED, maxBytesPerPartition=3000), same(spark, log, "key", "offset")]
    frames += [same(spark, log, where="offset BETWEEN 777 AND 7780"), same(spark, log, "count(*)", "max(offset)")]
    for frame in frames:
        if codec == "gzip":
            assert not metrics_of(frame)["NativeBatches"]
        else:
            assert is_native(frame)


def test_batches_of_several_codecs(spark: SparkSession, tmp_path: Path) -> None:
    log = tmp_path / "log"
    for number, codec in enumerate(["none", "lz4", "zstd", "none", "snappy", "none"]):
        with duramen.open(log, "a", format="kafka", compression=codec) as writer:
            for first in range(number * 3000, number * 3000 + 3000, 100):
                writer.append_batch(batch_of("kafka", first, 100))
    assert is_native(same(spark, log, columns=HEADED))
    assert is_native(same(spark, log, "offset", "timestamp", where="offset > 8000"))
    with duramen.open(log, "a", format="kafka", compression="gzip") as writer:
        writer.append_batch(batch_of("kafka", 18000, 100))
    assert metrics_of(same(spark, log, columns=HEADED))["HandedOver"] == 1


@pytest.mark.parametrize("path", BROKERS, ids=lambda path: path.name)
def test_what_brokers_wrote(spark: SparkSession, path: Path) -> None:
    same(spark, path, columns=COLUMNS)
    if "kafka" in path.parts:
        same(spark, path, columns=COLUMNS, isolation="read_committed")


@pytest.mark.parametrize("name", FORMATS)
def test_python_goes_on_where_an_end_is_in_doubt(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """Files alone, whose last one ends in zeros, or in the middle of a record."""
    log = build_log(tmp_path / "log", name, [batch_of(name, 0, 60_000)])
    path = Path(Log(str(log), **({"record_size": 40} if name == "fixed-slot" else {})).segments[-1].path)
    whole = path.read_bytes()
    options = {"record_size": 40} if name == "fixed-slot" else {}
    selected = ("offset", "value")
    for content in (whole + bytes(5000), whole[:-3], whole + whole[:10]):
        path.write_bytes(content)
        found = metrics_of(same(spark, log, *selected, **options))
        assert found["NativeBatches"]
        assert found["HandedOver"] == 1
    same(spark, log, "count(*)", **options)


@pytest.mark.parametrize("name", FORMATS)
def test_damage_has_pythons_words(spark: SparkSession, tmp_path: Path, name: str) -> None:
    log, chance = write_log(tmp_path / "log", name, 200, step=5), random.Random(name)
    paths = [Path(info.path) for info in Log(str(log)).segments]
    wrong = 0
    for _ in range(2):
        path = chance.choice(paths)
        content = path.read_bytes()
        at = chance.randrange(len(content))
        path.write_bytes(content[:at] + bytes([content[at] ^ 1 << chance.randrange(8)]) + content[at + 1 :])
        for selected in (["offset", "value"], ["count(*)"]):
            texts = [
                outcome(lambda e=e, s=selected: rows(load(spark, log, e).selectExpr(*s))) for e in ("python", "jvm")
            ]
            assert texts[0] == texts[1]
            wrong += isinstance(texts[0], list) and "duramen.errors" in str(texts[0])
        path.write_bytes(content)
    assert wrong


def test_a_file_that_changes_after_the_plan(spark: SparkSession, tmp_path: Path) -> None:
    for change in ("cut", "removed", "replaced", "grown"):
        log = write_log(tmp_path / change, "keratin", 300)
        frames = {engine: load(spark, log, engine).select("offset", "value") for engine in ("python", "jvm")}
        assert [len(rows(frame)) for frame in frames.values()] == [300, 300]
        path = Path(Log(str(log)).segments[2].path)
        if change == "cut":
            path.write_bytes(path.read_bytes()[:-50])
        elif change == "removed":
            path.unlink()
        elif change == "grown":
            path.write_bytes(path.read_bytes() + bytes(100))
        else:
            shutil.rmtree(log)
            write_log(log, "keratin", 300)
        texts = {engine: outcome(lambda f=frame: rows(f)) for engine, frame in frames.items()}
        assert texts["jvm"] == texts["python"], change


def test_what_python_reads(spark: SparkSession, tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", "keratin", 100)
    for options in ({"onDamage": "skip"}, {"summary": "true"}, {"decode": "utf8"}):
        frame = same(spark, log, **options)
        assert not metrics_of(frame)["NativeBatches"], options
    frame = load(spark, log, "arrow").select("offset")
    assert len(rows(frame)) == 100
    assert not metrics_of(frame)["NativeBatches"]
    long = tmp_path / "long"
    with duramen.open(long, "a", format="durable-log") as writer:
        writer.append_batch([b"v" * 20_000] * 300)
    assert not metrics_of(same(spark, long, columns="offset"))["NativeBatches"], "it jumps over the values"
    assert is_native(same(spark, long))
    native = load(spark, log).select("offset")
    native.collect()
    assert "native=" in native._jdf.queryExecution().toString()


def test_a_stream_is_read_natively(spark: SparkSession, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with duramen.open(log, "a", format="durable-log") as writer:
        writer.append_batch([b"%d" % number for number in range(1000)])
    stream = spark.readStream.format("duramen").options(engine="jvm", maxOffsetsPerTrigger=300).load(str(log))
    found: list[Any] = []
    query = stream.writeStream.foreachBatch(lambda batch, _: found.extend(rows(batch.select("offset", "value"))))
    query = query.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    assert query.awaitTermination(60)
    assert found == [{"offset": number, "value": b"%d" % number} for number in range(1000)]


def test_offsets_that_belong_to_the_next_segment(spark: SparkSession, tmp_path: Path) -> None:
    batches = [with_offsets(batch_of("durable-log", 0, 20), range(first, first + 20)) for first in (0, 10)]
    log = tmp_path / "log"
    for number, batch in enumerate(batches):
        built = build_log(tmp_path / str(number), "durable-log", [batch])
        log.mkdir(exist_ok=True)
        for path in built.iterdir():
            path.rename(log / path.name)
    texts = [outcome(lambda e=e: rows(load(spark, log, e))) for e in ("python", "jvm")]
    assert texts[0] == texts[1]
    assert "lies in the next segment" in str(texts[0])
