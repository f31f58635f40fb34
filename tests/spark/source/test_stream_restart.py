"""Every option of a stream over a restart, unchanged and changed: each row once, or a refusal in words."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import duramen
from duramen.errors import DuramenError
from duramen.spark.sink import options as write_options
from duramen.spark.source import options as read_options
from tests.spark.source_logs import START_MS, batch_of, write_log
from tests.spark.stream_query import Query

Options = Mapping[str, Any]


def grow(path: Path, count: int = 20) -> None:
    with duramen.open(path, "a") as log:
        log.append_batch(batch_of(log.format, log.next_offset, count), durability="write")


BY_TIME = '{"log": {"0": %d}}'


def one_log(root: Path) -> list[Path]:
    return [write_log(root / "log", "keratin", 100)]


def fixed_slots(root: Path) -> list[Path]:
    return [write_log(root / "log", "fixed-slot", 100)]


def partition(root: Path) -> list[Path]:
    return [write_log(root / "log", "kafka", 100)]


def store(root: Path) -> list[Path]:
    paths = [root / "topics" / topic / "partitions" / number for topic in "ab" for number in "01"]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_log(path, "keratin", 40)
    return paths


@dataclass(frozen=True)
class Case:
    """An option with a first value and later ones. ``reads`` says which logs (by number) the first run reads, and
    ``refuses`` what a run says that does not go on; ``first`` is where the first run begins."""

    option: str
    given: Options
    changed: Options = field(default_factory=dict)
    refuses: str | None = None
    make: Callable[[Path], list[Path]] = one_log
    reads: tuple[int, ...] = (0,)
    then_reads: tuple[int, ...] | None = None
    first: int = 0


JSON = {"decode": "json", "valueSchema": "a INT", "onMalformed": "null"}
CASES = [
    Case("logFormat", {}, {"logFormat": "keratin"}),
    Case("logFormat", {"logFormat": "keratin"}, {"logFormat": "rustlog"}, "the log is keratin, not rustlog"),
    Case("record_size", {"record_size": 40}, {}, make=fixed_slots),
    Case("record_size", {"record_size": 40}, {"record_size": 20}, "record_size is 40 in this log", make=fixed_slots),
    Case("subscribe", {"subscribe": "a"}, {"subscribe": "a,b"}, make=store, reads=(0, 1), then_reads=(0, 1, 2, 3)),
    Case("subscribe", {"subscribe": "a,b"}, {"subscribe": "b"}, "data loss: partition a/0, which was read up to offset "
         "60, is not there any more.*subscribe", make=store, reads=(0, 1, 2, 3)),
    Case("subscribePattern", {"subscribePattern": "a"}, {"subscribePattern": "a|b"}, make=store, reads=(0, 1),
         then_reads=(0, 1, 2, 3)),
    Case("subscribePattern", {"subscribePattern": "a|b"}, {"subscribePattern": "a"}, "data loss: partition b/0",
         make=store, reads=(0, 1, 2, 3)),
    Case("partitions", {"subscribe": "a", "partitions": "1"}, {"subscribe": "a"}, make=store, reads=(1,),
         then_reads=(0, 1)),
    Case("partitions", {"subscribe": "a"}, {"subscribe": "a", "partitions": "1"}, "data loss: partition a/0",
         make=store, reads=(0, 1)),
    Case("startingOffsets", {"startingOffsets": "90"}, {"startingOffsets": "latest"}, first=90),
    Case("startingOffsets", {"startingOffsets": "-5"}, {"startingOffsets": "earliest"}, first=95),
    Case("startingOffsets", {"startingOffsets": '{"log": {"0": -2}}'}, {"startingOffsets": '{"log": {"0": -1}}'}),
    Case("startingOffsets", {}, {"startingOffsets": '{"other": {"0": 3}}'}),
    Case("startingTimestamp", {"startingTimestamp": START_MS + 90_000}, {}, first=90),
    Case("startingTimestamp", {}, {"startingTimestamp": START_MS + 900_000}),
    Case("startingTimestamp", {"startingTimestamp": START_MS + 95_000}, {"startingTimestamp": START_MS}, first=95),
    Case("endingOffsets", {}, {"endingOffsets": "50"}, "option endingOffsets makes no sense for a stream"),
    Case("endingTimestamp", {}, {"endingTimestamp": START_MS}, "option endingTimestamp makes no sense for a stream"),
    Case("maxOffsetsPerTrigger", {"maxOffsetsPerTrigger": 30}, {"maxOffsetsPerTrigger": 7}),
    Case("maxBytesPerTrigger", {"maxBytesPerTrigger": 3000}, {"maxBytesPerTrigger": "1k"}),
    Case("minPartitions", {"minPartitions": 4}, {"minPartitions": 1}),
    Case("maxBytesPerPartition", {"maxBytesPerPartition": 700}, {"maxBytesPerPartition": "64m"}),
    Case("columns", {"columns": "offset,value"}, {"columns": "offset"}),
    Case("failOnDataLoss", {"failOnDataLoss": "true"}, {"failOnDataLoss": "false"}),
    Case("onDamage", {"onDamage": "fail"}, {"onDamage": "skip"}),
    Case("onDamage", {"onDamage": "skip"}, {"onDamage": "fail"}),
    Case("verify", {"verify": "false"}, {"verify": "true"}),
    Case("cursor", {"cursor": "one"}, {"cursor": "another"}),
    Case("cursor", {"cursor": "one"}, {}),
    Case("assign", {"assign": '{"a": [1]}'}, {"assign": '{"a": [0, 1], "b": [0]}'}, make=store, reads=(1,),
         then_reads=(0, 1, 2)),
    Case("assign", {"assign": '{"a": [0, 1]}'}, {"assign": '{"a": [1]}'}, "data loss: partition a/0.*assign",
         make=store, reads=(0, 1)),
    Case("assign", {"subscribe": "a"}, {"assign": '{"a": [0, 1]}'}, make=store, reads=(0, 1)),
    Case("startingOffsetsByTimestamp", {"startingOffsetsByTimestamp": BY_TIME % (START_MS + 90_000)},
         {"startingOffsetsByTimestamp": BY_TIME % START_MS}, first=90),
    Case("startingOffsetsByTimestamp", {"startingOffsetsByTimestamp": BY_TIME % START_MS}, {}),
    Case("startingOffsetsByTimestamp", {}, {"startingOffsetsByTimestamp": BY_TIME % (START_MS + 9_000_000)}),
    Case("startingOffsetsByTimestampStrategy",
         {"startingOffsetsByTimestamp": BY_TIME % START_MS, "startingOffsetsByTimestampStrategy": "latest"},
         {"startingOffsetsByTimestamp": BY_TIME % (START_MS + 9_000_000)}),
    Case("startingOffsetsByTimestampStrategy",
         {"startingTimestamp": START_MS + 9_000_000, "startingOffsetsByTimestampStrategy": "latest"}, {}, first=100),
    Case("endingOffsetsByTimestamp", {}, {"endingOffsetsByTimestamp": BY_TIME % START_MS},
         "option endingOffsetsByTimestamp makes no sense for a stream"),
    Case("minOffsetsPerTrigger", {"minOffsetsPerTrigger": 30}, {"minOffsetsPerTrigger": 500}),
    Case("minOffsetsPerTrigger", {"minOffsetsPerTrigger": 30}, {}),
    Case("minOffsetsPerTrigger", {"maxOffsetsPerTrigger": 30},
         {"minOffsetsPerTrigger": 31, "maxOffsetsPerTrigger": 30}, "minOffsetsPerTrigger=31 is more than"),
    Case("maxTriggerDelay", {"minOffsetsPerTrigger": 30, "maxTriggerDelay": "1h"},
         {"minOffsetsPerTrigger": 30, "maxTriggerDelay": "1ms"}),
    Case("maxTriggerDelay", {}, {"maxTriggerDelay": "1h"}, "option maxTriggerDelay is given alone"),
    Case("maxRecordsPerPartition", {"maxRecordsPerPartition": 7}, {"maxRecordsPerPartition": 1000}),
    Case("summary", {}, {"summary": "true"}, "option summary=true makes no sense for a stream"),
    Case("schema", {"schema": "duramen"}, {"schema": "kafka"}),
    Case("includeHeaders", {"includeHeaders": "true"}, {"includeHeaders": "false"}),
    Case("includeHeaders", {}, {"includeHeaders": "true"}),
    Case("isolation", {"isolation": "read_committed"}, {"isolation": "read_uncommitted"}, make=partition),
    Case("isolation", {"isolation": "read_uncommitted"}, {"isolation": "settled"}, make=partition),
    Case("decode", {"decode": "utf8"}, {}),
    Case("decode", {}, {"decode": "utf8"}),
    Case("decodeKey", {"decodeKey": "utf8"}, {}),
    Case("valueSchema", JSON, {**JSON, "valueSchema": "a INT, b STRING"}),
    Case("valueSchema", {}, {"valueSchema": "a INT"}, "option valueSchema is given alone"),
    Case("keySchema", {"decodeKey": "json", "keySchema": "a INT", "onMalformed": "null"}, {}),
    Case("onMalformed", {**JSON, "onMalformed": "raw"}, JSON),
    Case("onMalformed", JSON, {**JSON, "onMalformed": "fail"}, "malformed"),
    Case("engine", {"engine": "python"}, {"engine": "auto"}),
    Case("engine", {}, {"engine": "jvm"}, "the JVM's engine is not on the class path"),
    Case("registry", {}, {"registry": "schemas"}, "option registry is given alone"),
]  # fmt: skip


def test_the_table_has_every_option() -> None:
    assert {case.option for case in CASES} | {"path", "paths"} == {*read_options.NAMES, "record_size"}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.option}-{CASES.index(case)}")
def test_an_option_unchanged_and_changed(tmp_path: Path, case: Case) -> None:
    logs = case.make(tmp_path / "data")
    path = logs[0] if len(logs) == 1 else tmp_path / "data"
    query = Query()

    def run(options: Options, read: tuple[int, ...]) -> None:
        query.run(path, **options)
        wanted = [offset for number in read for offset in range(case.first, duramen.open(logs[number]).next_offset)]
        assert sorted(query.offsets()) == sorted(wanted)

    run(case.given, case.reads)
    for log in logs:
        grow(log)
    run(case.given, case.reads)
    for log in logs:
        grow(log)
    if case.refuses is None:
        run(case.changed, case.then_reads or case.reads)
    else:
        with pytest.raises(DuramenError, match=case.refuses):
            query.run(path, **case.changed)
    for log in logs:
        grow(log)
    run(*((case.given, case.reads) if case.refuses else (case.changed, case.then_reads or case.reads)))


def test_another_path(tmp_path: Path) -> None:
    """A log that was moved is the same log where its directory keeps its name; elsewhere it is refused."""
    path = write_log(tmp_path / "here" / "log", "keratin", 100)
    query = Query()
    query.run(path)
    grow(path)
    there = tmp_path / "there" / "log"
    shutil.copytree(path, there)
    assert query.run(there) == 20
    renamed = shutil.copytree(there, tmp_path / "renamed")
    with pytest.raises(DuramenError, match="data loss: partition log/0, which was read up to offset 120"):
        query.run(renamed)
    other = write_log(tmp_path / "other" / "log", "keratin", 500)
    with pytest.raises(DuramenError, match="data loss: another log is in the place of the one that the checkpoint is"):
        query.run(other)
    assert query.offsets() == list(range(120))


def test_several_paths_and_wildcards(tmp_path: Path) -> None:
    """Paths may be added, written as a wildcard or as a list; a path that is left out counts as lost."""
    a, b = (write_log(tmp_path / name, "keratin", 40) for name in "ab")
    both = json.dumps([str(a), str(b)])
    query = Query()
    assert query.run(None, paths=json.dumps([str(a)])) == 40
    for path, options in ((a, {}), (None, {"paths": both}), (tmp_path / "*", {}), (None, {"paths": both})):
        for log in (a, b):
            grow(log)
        query.run(path, **options)
    with pytest.raises(DuramenError, match="data loss: partition a/0, which was read up to offset 120"):
        query.run(b)
    assert sorted(query.offsets()) == sorted([*range(120)] * 2)


def test_a_partition_that_is_left_out_for_a_while(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its position stays in the checkpoint: when it is read again, no row comes twice and none is missing."""
    logs = store(tmp_path)
    query = Query()
    query.run(tmp_path, subscribe="a,b")
    for log in logs:
        grow(log)
    assert query.run(tmp_path, subscribe="b", failOnDataLoss="false") == 40
    told = capsys.readouterr().err
    assert "data loss: partition a/0, which was read up to offset 40, is not there any more" in told
    assert "remembers its position" in told
    assert query.run(tmp_path, subscribe="a,b") == 40
    assert sorted(query.offsets()) == sorted([*range(60)] * 4)


# --- on Spark


class Restarted:
    """A query on Spark, one checkpoint, run again and again."""

    def __init__(self, spark: SparkSession, checkpoint: Path) -> None:
        self._spark, self._checkpoint = spark, checkpoint
        self.offsets: list[int] = []

    def run(self, path: Path, **options: Any) -> int:
        before = len(self.offsets)

        def keep(batch: DataFrame, number: int) -> None:
            self.offsets += [row.offset for row in batch.select("offset").collect()]

        frame = self._spark.readStream.format("duramen").options(**options).load(str(path))
        writer = frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(self._checkpoint))
        query = writer.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(60)
        finally:
            query.stop()
        return len(self.offsets) - before


def test_options_of_a_log_over_restarts_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    """All options that one log has, given at once, then others, then none, in one query after another."""
    path = write_log(tmp_path / "log", "keratin", 100)
    options = {
        "logFormat": "keratin", "startingOffsets": "10", "startingTimestamp": START_MS + 20_000,
        "maxOffsetsPerTrigger": 50, "maxBytesPerTrigger": "1m", "minPartitions": 2, "maxBytesPerPartition": "64m",
        "columns": "offset,value", "failOnDataLoss": "true", "onDamage": "fail", "verify": "true", "cursor": "one",
        "minOffsetsPerTrigger": 40, "maxTriggerDelay": "1h", "maxRecordsPerPartition": 15,
        "startingOffsetsByTimestampStrategy": "error",
    }  # fmt: skip
    changed: list[dict[str, Any]] = [
        {
            "startingOffsets": "latest",
            "startingTimestamp": START_MS + 900_000,
            "columns": "offset",
            "cursor": "another",
        },
        {"minOffsetsPerTrigger": 5, "maxOffsetsPerTrigger": 7, "maxRecordsPerPartition": 3},
        {"onDamage": "skip", "failOnDataLoss": "false", "verify": "false", "includeHeaders": "false"},
    ]
    query = Restarted(spark, tmp_path / "checkpoint")
    assert query.run(path, **options) == 80
    grow(path)
    assert query.run(path, **options) == 20
    for more in changed:
        grow(path, 10)
        options |= more
        assert query.run(path, **options) == 10, more
    grow(path, 10)
    assert query.run(path) == 10
    grow(path, 10)
    assert query.run(path, minOffsetsPerTrigger=500) == 10, "availableNow leaves nothing"
    assert query.offsets == list(range(20, 170))


def test_topics_over_restarts_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    logs = store(tmp_path / "store")
    query = Restarted(spark, tmp_path / "checkpoint")
    assert query.run(tmp_path / "store", subscribe="a", partitions="1") == 40
    assert query.run(tmp_path / "store", subscribe="a") == 40
    assert query.run(tmp_path / "store", subscribePattern="a|b") == 80
    for log in logs:
        grow(log)
    with pytest.raises(PySparkException, match="data loss: partition a/0, which was read up to offset 40"):
        query.run(tmp_path / "store", subscribe="b")
    assert query.run(tmp_path / "store", subscribe="a,b") == 80
    assert sorted(query.offsets) == sorted([*range(60)] * 4)


class Sink:
    """A query on Spark from a log into a log or store, one checkpoint, run again and again."""

    def __init__(self, spark: SparkSession, source: Path, checkpoint: Path) -> None:
        self._spark, self._source, self._checkpoint = spark, source, checkpoint
        self.tried: set[str] = set()

    def run(self, to: Path, **options: Any) -> None:
        self.tried |= options.keys()
        frame = self._spark.readStream.format("duramen").load(str(self._source)).select("value", "timestamp")
        writer = frame.writeStream.format("duramen").options(**options)
        query = writer.option("checkpointLocation", str(self._checkpoint)).trigger(availableNow=True).start(str(to))
        try:
            assert query.awaitTermination(60)
        finally:
            query.stop()


def test_options_of_the_sink_over_restarts_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    source, to = write_log(tmp_path / "source", "keratin", 50), tmp_path / "to"
    query = Sink(spark, source, tmp_path / "checkpoint")

    def stored(*paths: Path) -> list[int]:
        values = [record.value or b"" for path in paths for record in duramen.open(path).scan()]
        return sorted(int(value.split()[1].rstrip(b".")) for value in values)

    options = {"logFormat": "rustlog", "segment_max_bytes": 2048, "lockTimeoutMs": 9000, "lateTimestamps": "fail"}
    query.run(to, **options)
    grow(source)
    query.run(to, **options)
    assert stored(to) == list(range(70))
    grow(source)
    query.run(to, lockTimeoutMs=100, lateTimestamps="clamp")
    assert stored(to) == list(range(90))
    grow(source)
    refused: dict[str, dict[str, Any]] = {
        "is rustlog, not keratin": {"logFormat": "keratin"},
        "option txnAppId makes no sense for a stream": {"txnAppId": "x", "txnVersion": 1},
        "option valueSchema is given alone": {"valueSchema": "a INT"},
        "json values are structs": {"encode": "json"},
    }
    for told, wrong in refused.items():
        with pytest.raises(PySparkException, match=told):
            query.run(to, **wrong)
    query.run(to)
    assert stored(to) == list(range(110))
    grow(source)
    store = tmp_path / "store"
    query.run(store, topic="a", numPartitions=2)
    grow(source)
    query.run(store, topic="a", numPartitions=3)
    grow(source)
    query.run(store, topic="b")
    partitions = [store / "topics" / "a" / "partitions" / number for number in "01"]
    assert stored(*partitions) == list(range(110, 150)), "how many partitions a topic has is decided once"
    assert stored(store / "topics" / "b" / "partitions" / "0") == list(range(150, 170))
    assert stored(to) == list(range(110))
    assert query.tried | {"path"} >= set(write_options.NAMES)
