"""The engine in the JVM beside the Python source: the same rows, errors and streams; what it pushes down is exact."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark import InheritableThread
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import duramen
from duramen.log.read.log import Log
from duramen.spark import jar
from tests.conftest import DATA
from tests.spark.agree import check, outcome, rows
from tests.spark.source_logs import FORMATS, START_MS, batch_of, build_log, with_offsets, write_log

pytestmark = pytest.mark.skipif(jar() is None, reason="built without a JDK")

ENGINES = ("python", "jvm")


def load(spark: SparkSession, path: Path | str, engine: str = "jvm", **options: Any) -> DataFrame:
    return spark.read.format("duramen").options(**options, engine=engine).load(str(path))


def both(spark: SparkSession, path: Path | str, query: Callable[[DataFrame], Any], **options: Any) -> Any:
    """The outcome of a query, which is the same in both engines."""
    python, jvm = (outcome(lambda name=name: query(load(spark, path, name, **options))) for name in ENGINES)
    assert jvm == python
    return jvm


@pytest.mark.parametrize("name", FORMATS)
def test_rows_of_every_format(spark: SparkSession, tmp_path: Path, name: str) -> None:
    log = write_log(tmp_path / "log", name, 200)
    columns = "value,offset,headers,timestamp,key,topic,partition,segment,position,timestampType"
    assert len(both(spark, log, rows, columns=columns, maxBytesPerPartition=4000)) == 200
    assert both(spark, log, lambda frame: frame.select("key").where("offset > 150").count()) == 49
    assert both(spark, log, lambda frame: rows(frame.select("headers.key")), columns="offset,headers")
    assert both(spark, log, lambda frame: frame.selectExpr("count(*)", "min(offset)", "max(offset)").collect()) == [
        (200, 0, 199)
    ]


@pytest.mark.parametrize("name", [*FORMATS, "kafka"])
def test_aggregates_without_a_read(spark: SparkSession, tmp_path: Path, name: str) -> None:
    log = write_log(tmp_path / "log", name, 200)
    aggregates = "count(*)", "min(offset)", "max(offset)"
    for where, found in (
        ("true", (200, 0, 199)),
        ("offset > 61 AND offset < 150", (88, 62, 149)),
        ("offset > 199", (0, None, None)),
    ):
        query = both(
            spark, log, lambda frame, where=where: frame.where(where).selectExpr(*aggregates).collect(), verify="false"
        )
        assert query == [found]
    with duramen.open(log, "a") as writer:
        writer.append_batch(batch_of(name, 200, 10))
        assert both(spark, log, lambda frame: frame.count(), verify="false") == 210


@pytest.mark.parametrize("stream", ["subbatch", "tracked", "crash"])
def test_rows_of_a_real_broker(spark: SparkSession, stream: str) -> None:
    both(spark, DATA / "osiris" / stream, rows, columns="offset,timestamp,value,position", minPartitions=2)


@pytest.mark.parametrize("name", FORMATS)
def test_damage_gives_the_same_rows_and_errors(spark: SparkSession, tmp_path: Path, name: str) -> None:
    log = write_log(tmp_path / "log", name, 200, step=5)
    for number, text in ((77, b"value 77."), (150, b"value 150.")):
        for info in Log(str(log)).segments:
            content = bytearray(Path(info.path).read_bytes())
            if (at := content.find(text)) >= 0:
                content[at + number % 3] ^= 1
                Path(info.path).write_bytes(bytes(content))
    for policy in ("fail", "skip", "report"):
        found = both(spark, log, lambda frame: rows(frame.orderBy("offset", "key")), onDamage=policy)
        assert found
        both(spark, log, lambda frame: frame.count(), onDamage=policy)
        both(spark, log, lambda frame: rows(frame.select("offset")), onDamage=policy)
        both(spark, log, lambda frame: rows(frame.selectExpr("max(offset)")), onDamage=policy)


OPTIONS: list[dict[str, Any]] = [
    {"startingOffsets": "-3"},
    {"startingOffsets": 10, "endingOffsets": 20, "columns": "offset"},
    {"startingTimestamp": START_MS + 50_000, "endingTimestamp": START_MS + 60_000},
    {"schema": "kafka", "includeHeaders": "true"},
    {"summary": "true"},
    {"maxRecordsPerPartition": 7},
    {"decode": "utf8"},
    {"decode": "json"},
    {"decode": "json", "onMalformed": "raw"},
    {"verify": "false"},
    {"columns": "offset,foo"},
    {"onDamage": "maybe"},
    {"engines": "python"},
    {"startingOffsets": '{"other": {"0": 1}}'},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_options(spark: SparkSession, tmp_path: Path, options: dict[str, Any]) -> None:
    log = write_log(tmp_path / "log", "keratin", 100)
    assert both(spark, log, rows, **options)
    both(spark, log, lambda frame: frame.count(), **options)


def test_engine_option(spark: SparkSession, tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", "keratin", 10)
    assert "engine=jvm" in plan_of(load(spark, log))
    assert "engine=jvm" in plan_of(load(spark, log, "arrow"))
    assert "engine=jvm" not in plan_of(load(spark, log, "python"))
    with pytest.raises(PySparkException, match="option engine='java' is not valid"):
        load(spark, log, "java")


def plan_of(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().toString())


ADVERSARIAL: dict[str, Callable[[SparkSession, DataFrame], Any]] = {
    "filter, then all": lambda _, df: (df.where("offset < 10").count(), df.count()),
    "union of two filters": lambda _, df: rows(df.where("offset < 3").union(df.where("offset >= 97"))),
    "union with itself": lambda _, df: df.union(df).count(),
    "self-join": lambda _, df: (
        df.where("offset < 9").alias("a").join(df.alias("b"), F.expr("a.offset = b.offset + 5")).count()
    ),
    "planned, another run, then run": lambda _, df: planned_then(df),
    "cached": lambda _, df: cached(df),
    "view": lambda spark, df: view(spark, df),
    "subqueries": lambda spark, df: subqueries(spark, df),
    "limit": lambda _, df: df.orderBy("offset").limit(3).count(),
    "first": lambda _, df: df.where("offset = 42").select("value").first(),
    "not, or, in, null-safe": lambda _, df: (
        df.where("NOT offset < 95").count(),
        df.where("offset < 2 OR offset > 98").count(),
        df.where("offset IN (3, 50, 1000)").count(),
        df.where("offset <=> 5").count(),
        df.where("timestamp IS NULL").count(),
        df.where("5 > offset").count(),
        df.where("offset = -1").count(),
        df.where("offset > 9223372036854775806").count(),
        df.where("offset <= 9223372036854775807 AND offset >= -9223372036854775808").count(),
        df.where("topic = 'nothing'").count(),
        df.where("partition = 0 AND topic = 'log'").count(),
        df.where("partition IN (1, 2)").count(),
    ),
    "aggregates of a filter": lambda _, df: df.where("offset > 50").selectExpr("count(*)", "max(offset)").collect(),
    "aggregates": lambda _, df: df.selectExpr("count(*)", "count(key)", "count(1)", "min(timestamp)").collect(),
    "group": lambda _, df: sorted(df.groupBy("key").count().collect(), key=str),
    "distinct": lambda _, df: df.selectExpr("count(DISTINCT offset)").collect(),
    "no rows": lambda _, df: df.where("offset < 0").selectExpr("count(*)", "min(offset)").collect(),
}


def planned_then(df: DataFrame) -> Any:
    first = df.where("offset < 10")
    plan_of(first)
    return df.where("offset > 80").count(), rows(first), df.count()


def cached(df: DataFrame) -> Any:
    few = df.where("offset < 10").cache()
    try:
        return few.count(), df.count(), few.where("offset > 5").count()
    finally:
        few.unpersist()


def view(spark: SparkSession, df: DataFrame) -> Any:
    df.createOrReplaceTempView("engine_view")
    text = "SELECT count(*) FROM engine_view WHERE offset {}"
    return [spark.sql(text.format(part)).collect() for part in ("< 7", "IS NOT NULL", "> 90")]


def subqueries(spark: SparkSession, df: DataFrame) -> Any:
    df.createOrReplaceTempView("engine_view")
    return spark.sql(
        "SELECT (SELECT max(offset) FROM engine_view WHERE offset < 5), (SELECT max(offset) FROM engine_view), "
        "(SELECT count(*) FROM engine_view WHERE offset < 5)"
    ).collect()


@pytest.mark.parametrize("adaptive", ["true", "false"])
def test_pushed_filters_do_not_stay(spark: SparkSession, tmp_path: Path, adaptive: str) -> None:
    log = write_log(tmp_path / "log", "keratin", 100)
    columns = "offset,timestamp,key,value,topic,partition"
    before = str(spark.conf.get("spark.sql.adaptive.enabled"))
    spark.conf.set("spark.sql.adaptive.enabled", adaptive)
    try:
        for name, query in ADVERSARIAL.items():
            expected = query(spark, load(spark, log, "python", columns=columns))
            assert query(spark, load(spark, log, columns=columns)) == expected, name
    finally:
        spark.conf.set("spark.sql.adaptive.enabled", before)


def test_random_reads_agree(spark: SparkSession) -> None:
    """A few of the cases of ``python -m tests.spark.agree``."""
    assert not list(check(spark, 0, range(40), Counter()))


def test_times_that_go_back_are_found(spark: SparkSession, tmp_path: Path) -> None:
    batches = [batch_of("keratin", first, 50) for first in (100, 0, 50)]
    log = build_log(
        tmp_path / "log", "keratin", [with_offsets(b, range(n * 50, n * 50 + 50)) for n, b in enumerate(batches)]
    )
    for text in (
        f"timestamp >= timestamp_millis({START_MS + 120_000})",
        f"timestamp < timestamp_millis({START_MS + 9000})",
    ):
        assert both(spark, log, lambda frame, text=text: rows(frame.where(text)))


def test_a_dataframe_stays_what_its_first_action_saw(spark: SparkSession, tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", "keratin", 100)
    frame = load(spark, log)
    assert frame.where("offset < 5").count() == 5
    with duramen.open(log, "a") as writer:
        writer.append_batch(batch_of("keratin", 100, 50))
    assert frame.count() == 100
    assert frame.selectExpr("max(offset)").first() == (99,)
    assert load(spark, log).count() == 150
    last = load(spark, log, startingOffsets="-10")
    assert last.count() == 10
    with duramen.open(log, "a") as writer:
        writer.append_batch(batch_of("keratin", 150, 50))
    assert rows(last.selectExpr("min(offset) AS low", "max(offset) AS high")) == [{"low": 140, "high": 149}]


def test_what_went_since_the_first_action_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", "keratin", 300)
    frames = {engine: load(spark, log, engine) for engine in ENGINES}
    assert [frame.count() for frame in frames.values()] == [300, 300]
    Path(Log(str(log)).segments[1].path).unlink()
    texts = [str(outcome(frame.count)) for frame in frames.values()]
    assert all("data loss: offsets" in text for text in texts), texts


@pytest.mark.parametrize("first", ENGINES)
def test_a_checkpoint_serves_both_engines(spark: SparkSession, tmp_path: Path, first: str) -> None:
    log, found = write_log(tmp_path / "log", "keratin", 100), []

    def run(engine: str, **options: Any) -> list[int]:
        stream = spark.readStream.format("duramen").options(**options, engine=engine).load(str(log))
        query = stream.writeStream.foreachBatch(lambda batch, _: found.extend(rows(batch.select("offset"))))
        query = query.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        assert query.awaitTermination(60)
        return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]

    assert run(first, maxOffsetsPerTrigger=30) == [30, 30, 30, 10]
    with duramen.open(log, "a") as writer:
        writer.append_batch(batch_of("keratin", 100, 40))
    assert run(next(name for name in ENGINES if name != first)) == [40]
    assert [row["offset"] for row in found] == list(range(140))


def test_a_stream_reports_its_lag_as_metrics(spark: SparkSession, tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", "keratin", 100)
    stream = spark.readStream.format("duramen").options(maxOffsetsPerTrigger=60, engine="jvm").load(str(log))
    writer = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(60)
    metrics = query.recentProgress[0].sources[0].metrics
    assert metrics["maxOffsetsBehindLatest"] == "40"


def test_wrong_options_of_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", "keratin", 10)
    stream = spark.readStream.format("duramen").options(endingOffsets="3", engine="jvm").load(str(log))
    query = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    with pytest.raises(StreamingQueryException, match="option endingOffsets makes no sense for a stream"):
        query.awaitTermination(60)


def test_a_table_of_the_catalogue_keeps_its_options(spark: SparkSession, tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", "keratin", 100)
    other = write_log(tmp_path / "other", "keratin", 30)
    spark.sql(f"CREATE TABLE engine_table USING duramen OPTIONS (path '{log}', engine 'jvm', columns 'offset,key')")
    try:
        assert spark.sql("SELECT max(offset) FROM engine_table").collect() == [(99,)]
        both_paths = "SELECT (SELECT count(*) FROM engine_table), (SELECT count(*) FROM engine_table WITH (path='{}'))"
        assert spark.sql(both_paths.format(other)).collect() == [(100, 30)]
    finally:
        spark.sql("DROP TABLE engine_table")


@pytest.mark.parametrize("engine", ENGINES)
def test_a_table_of_a_path_that_looks_like_an_address(spark: SparkSession, tmp_path: Path, engine: str) -> None:
    """Its path reaches the catalogue as a URI."""
    odd = write_log(tmp_path / "a%41b", "keratin", 100)
    write_log(tmp_path / "aAb", "keratin", 5)
    spark.sql(f"CREATE TABLE odd_table USING duramen OPTIONS (path '{odd}', engine '{engine}')")
    try:
        assert spark.sql("SELECT count(*) FROM odd_table").collect() == [(100,)]
    finally:
        spark.sql("DROP TABLE odd_table")


@pytest.mark.parametrize("engine", ENGINES)
def test_two_sets_of_options_in_one_query(spark: SparkSession, tmp_path: Path, engine: str) -> None:
    log, other = write_log(tmp_path / "log", "keratin", 100), write_log(tmp_path / "other", "keratin", 30)
    spark.sql(f"CREATE TABLE two_logs USING duramen OPTIONS (path '{log}', engine '{engine}')")
    try:
        counts = f"SELECT count(*) AS n FROM two_logs UNION ALL SELECT count(*) FROM two_logs WITH (path='{other}')"
        assert [row.n for row in spark.sql(counts).collect()] == [100, 30]
        ends = "SELECT count(*) AS n FROM two_logs WITH ({0}) UNION ALL SELECT count(*) FROM two_logs WITH ({1})"
        found = spark.sql(ends.format("startingOffsets='90'", "endingOffsets='5'")).collect()
        assert [row.n for row in found] == [10, 5]
        with pytest.raises(PySparkException, match="option engine='fast' is not valid"):
            spark.sql(f"INSERT INTO two_logs WITH (path='{other}', engine='fast') SELECT * FROM two_logs")
    finally:
        spark.sql("DROP TABLE two_logs")


def test_a_condition_on_times_finds_malformed_values(spark: SparkSession, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with duramen.open(log, "a", format="keratin") as writer:
        for number in range(50):
            value = b"no JSON" if number == 10 else b'{"a": 1}'
            writer.append(value, timestamp=START_MS + number * 1000)
    after = f"timestamp >= timestamp_millis({START_MS + 20_000})"
    given = {"decode": "json", "valueSchema": "a INT"}
    assert "offset 10" in str(both(spark, log, lambda frame: frame.where(after).count(), **given))
    assert both(spark, log, lambda frame: frame.where(after).count(), **given, onMalformed="null") == 30


def test_a_condition_on_times_finds_damage_in_sub_batches(spark: SparkSession, tmp_path: Path) -> None:
    log = Path(shutil.copytree(DATA / "osiris" / "subbatch", tmp_path / "log"))
    segment = Path(Log(str(log)).segments[0].path)
    whole = segment.read_bytes()
    before = "timestamp < timestamp_millis(1)"
    chance = random.Random(1)
    damaged = 0
    for _ in range(8):
        content = bytearray(whole)
        content[chance.randrange(200, len(whole))] ^= 1 << chance.randrange(8)
        segment.write_bytes(content)
        found = both(spark, log, lambda frame: frame.where(before).count(), verify="false")
        damaged += found != 0
        both(spark, log, lambda frame: frame.where(f"NOT {before}").select("offset").count(), verify="false")
    assert damaged


def test_a_cancelled_task_ends_its_reader(spark: SparkSession, tmp_path: Path) -> None:
    """The thread of the task waits for Python, and Python here for ever."""
    with duramen.open(tmp_path / "log", "a", format="keratin", durability="write") as writer:
        for _ in range(40):
            writer.append_batch([b"v" * 1000] * 1000)
    for number in range(120):
        shutil.copytree(tmp_path / "log", tmp_path / f"log{number}", copy_function=os.link)
    options = {"maxBytesPerPartition": "200g", "columns": "timestamp,value", "verify": "true"}
    frame = load(spark, tmp_path / "log*", "arrow", **options)
    context, handles = spark.sparkContext, spark._jvm.java.lang.ProcessHandle
    context.setLocalProperty("spark.job.interruptOnCancel", "true")
    ended: list[Any] = []

    def count() -> None:
        try:
            ended.append(frame.where("timestamp < timestamp_millis(1)").count())
        except Exception as error:  # noqa: BLE001 - of the JVM, too
            ended.append(error)

    query = InheritableThread(target=count)
    query.start()

    while not _is_reading(spark):
        assert not ended, ended
    stopped = {one.pid() for one in handles.current().children().toArray() if _is_planner(one.pid())}
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        context.cancelAllJobs()
        query.join()
        assert "SPARK_JOB_CANCELLED" in str(ended[0])
        until = time.monotonic() + 40  # an idle one ends after a minute
        while stopped <= {one.pid() for one in handles.current().children().toArray()}:
            assert time.monotonic() < until, "the process that was to read goes on"
    finally:
        for pid in stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    assert load(spark, tmp_path / "log0").count() == 40_000


def _is_reading(spark: SparkSession) -> bool:
    """Whether a task waits for Python."""
    threads = spark._jvm.java.lang.Thread.getAllStackTraces().entrySet().toArray()
    stacks = [one.getValue() for one in threads if "Executor task" in one.getKey().getName()]
    return any("duramen.spark.PythonReader" in call.toString() for stack in stacks for call in stack)


def _is_planner(pid: int) -> bool:
    return b"duramen.spark.planner" in Path(f"/proc/{pid}/cmdline").read_bytes()
