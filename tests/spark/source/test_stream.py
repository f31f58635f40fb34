"""The log as a stream, on a real session: every row once over growth, restarts, gaps, losses and other writers."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

import duramen
from duramen.log.read.log import Log
from duramen.spark import lag
from duramen.spark.source.options import parse_options
from duramen.spark.source.splits import Range
from duramen.spark.source.stream import Tail
from tests.spark.source_logs import FORMATS, START_MS, batch_of, build_log, expected, with_offsets, write_log

Rows = list[list[tuple[Any, ...]]]


class Stream:
    """A query over one log, with one checkpoint, that keeps what each micro-batch brought."""

    def __init__(self, spark: SparkSession, path: Path, checkpoint: Path) -> None:
        self._spark = spark
        self._path = path
        self.checkpoint = checkpoint
        self.batches: dict[int, list[tuple[Any, ...]]] = {}
        self.query: StreamingQuery

    def start(self, *, trigger: dict[str, Any] | None = None, **options: Any) -> StreamingQuery:
        frame = self._spark.readStream.format("duramen").options(**options).load(str(self._path))

        def keep(batch: DataFrame, number: int) -> None:
            self.batches[number] = [tuple(row) for row in batch.collect()]

        writer = frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(self.checkpoint))
        self.query = writer.trigger(**(trigger or {"availableNow": True})).start()
        return self.query

    def run(self, **options: Any) -> list[int]:
        """Everything there is now; answers how many rows each batch of this run had."""
        before = set(self.batches)
        query = self.start(**options)
        try:
            assert query.awaitTermination(60)
        finally:
            query.stop()
        return [len(self.batches[number]) for number in sorted(self.batches) if number not in before]

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        return [row for number in sorted(self.batches) for row in self.batches[number]]

    @property
    def offsets(self) -> list[int]:
        return [row[0] for row in self.rows]


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> Callable[[Path], Stream]:
    return lambda path: Stream(spark, path, tmp_path / "checkpoint")


def grow(path: Path, name: str, count: int) -> None:
    with duramen.open(path, "a") as log:
        log.append_batch(batch_of(name, log.next_offset, count))


@pytest.mark.parametrize("name", FORMATS)
def test_every_row_once_over_growth_and_restart(stream: Callable[[Path], Stream], tmp_path: Path, name: str) -> None:
    path = write_log(tmp_path / name, name, 200)
    query = stream(path)
    assert query.run(maxOffsetsPerTrigger=150) == [150, 50]
    grow(path, name, 90)
    assert query.run() == [90]
    wanted = expected(path, ["offset", "timestamp", "key", "value"]).to_pylist()
    assert query.rows == [(row["offset"], _naive(row["timestamp"]), row["key"], row["value"]) for row in wanted]


def _naive(when: Any) -> Any:
    """As Spark hands timestamps to Python: local time, without a zone."""
    return None if when is None else when.astimezone().replace(tzinfo=None)


def test_bytes_of_a_trigger(stream: Callable[[Path], Stream], tmp_path: Path) -> None:
    path = write_log(tmp_path / "log", "durable-log", 300)
    query = stream(path)
    sizes = query.run(maxBytesPerTrigger=8000, columns="offset")
    assert query.offsets == list(range(300))
    assert len(sizes) > 2
    assert max(sizes) <= 8000 // (24 + 40)


def test_a_replayed_batch_has_the_same_rows(stream: Callable[[Path], Stream], tmp_path: Path) -> None:
    """The driver dies before a batch is committed: the next run gets that batch again, though the log has grown."""
    path = write_log(tmp_path / "log", "keratin", 100)
    query = stream(path)
    query.run(maxOffsetsPerTrigger=60)
    first = dict(query.batches)
    (query.checkpoint / "commits" / "1").unlink()
    grow(path, "keratin", 50)
    query.run(maxOffsetsPerTrigger=60)
    assert query.batches[1] == first[1]
    assert query.offsets == list(range(150))


def test_where_a_query_begins(tmp_path: Path) -> None:
    path = write_log(tmp_path / "log", "keratin", 100)

    def first(**options: str) -> int:
        tail = Tail(parse_options({"path": str(path), **options}, streaming=True))
        return tail.first()["log", 0]

    assert first() == 0
    assert first(startingOffsets="latest") == 100
    assert first(startingOffsets="-5") == 95
    assert first(startingOffsets="17") == 17
    assert first(startingOffsets="1000") == 100
    assert first(startingOffsets='{"log": {"0": 4}}') == 4
    assert first(startingTimestamp=str(START_MS + 98_000)) == 98
    remaining = remove_first(path, 2)
    assert first() == first(startingOffsets="3") == remaining


def test_a_log_that_another_process_writes(stream: Callable[[Path], Stream], tmp_path: Path) -> None:
    """A writer of its own process appends and rolls while the query runs; a batch is seen whole or not at all."""
    path = tmp_path / "log"
    duramen.open(path, "a", format="keratin", segment_max_bytes=4096).close()
    query = stream(path)
    query.start(trigger={"processingTime": "200 milliseconds"}, columns="offset,value", cursor="spark")
    script = (
        "import duramen, sys, time\n"
        "with duramen.open(sys.argv[1], 'a', segment_max_bytes=4096) as log:\n"
        "    for n in range(60):\n"
        "        log.append_batch([b'%d.%d' % (n, i) for i in range(10)])\n"
        "        time.sleep(0.05)\n"
    )
    try:
        subprocess.run([sys.executable, "-c", script, str(path)], check=True, timeout=60)
        wait_for(lambda: len(query.rows) >= 600, query.query)
        wait_for(lambda: lag(query.query.lastProgress) == {"log/0": 0}, query.query)
        wait_for(lambda: duramen.open(path).cursor("spark").load() == 600, query.query)  # with the next trigger
    finally:
        query.query.stop()
    assert len(Log(str(path)).segments) > 3
    assert query.rows == [(n * 10 + i, b"%d.%d" % (n, i)) for n in range(60) for i in range(10)]
    assert all(len(rows) % 10 == 0 for rows in query.batches.values())


def wait_for(happened: Callable[[], bool], query: StreamingQuery, seconds: float = 40) -> None:
    until = time.monotonic() + seconds
    while not happened():
        assert query.exception() is None
        assert time.monotonic() < until, query.lastProgress
        time.sleep(0.1)


# --- losses and gaps


def remove_first(path: Path, count: int) -> int:
    """What retention does; answers the first offset that is left."""
    segments = Log(str(path)).segments
    for info in segments[:count]:
        Path(info.path).unlink()
    return segments[count].base_offset


def test_retention_that_overtakes_the_reader(stream: Callable[[Path], Stream], tmp_path: Path) -> None:
    path = write_log(tmp_path / "log", "durable-log", 100)
    query = stream(path)
    query.run(columns="offset")
    grow(path, "durable-log", 200)
    first = remove_first(path, 6)
    assert first > 100
    with pytest.raises(StreamingQueryException) as caught:
        query.run(columns="offset")
    text = str(caught.value)
    lost = f"offsets 100 to {first - 1} ({first - 100} in all) were removed before they were read"
    assert f"{path}: offset 100: data loss: {lost}: the log begins at offset {first} now" in text
    assert "failOnDataLoss=false" in text
    assert "Traceback" not in text
    assert query.run(columns="offset", failOnDataLoss="false") == [300 - first]
    assert query.offsets == [*range(100), *range(first, 300)]


def test_retention_before_the_reader_is_not_loss(tmp_path: Path) -> None:
    path = write_log(tmp_path / "log", "durable-log", 100)
    tail = Tail(parse_options({"path": str(path)}, streaming=True))
    assert remove_first(path, 2) < 100
    grow(path, "durable-log", 10)
    assert tail.ranges({("log", 0): 100}, tail.latest()) == {("log", 0): Range(100, 110)}


def test_a_log_that_became_shorter(tmp_path: Path) -> None:
    path = write_log(tmp_path / "log", "keratin", 100)
    strict, lenient = (
        Tail(parse_options({"path": str(path), "failOnDataLoss": text}, streaming=True)) for text in ("true", "false")
    )
    shutil.rmtree(path)
    write_log(path, "keratin", 20)
    with pytest.raises(duramen.OffsetError, match="data loss: the log ends at offset 20, before offset 100, which was"):
        strict.ranges({("log", 0): 100}, strict.latest())
    assert lenient.ranges({("log", 0): 100}, lenient.latest()) == {("log", 0): Range(20, 20)}


def test_a_gap_of_compaction_is_no_loss(stream: Callable[[Path], Stream], tmp_path: Path) -> None:
    """Nor does it make empty batches: a gap of a million offsets is passed in one."""
    offsets = [0, 1, 2, 1_000_000, 1_000_001, 1_000_002, 1_000_003]
    path = build_log(tmp_path / "log", "keratin", [with_offsets(batch_of("keratin", 0, 7), offsets)])
    query = stream(path)
    sizes = query.run(columns="offset", maxOffsetsPerTrigger=3)
    assert query.offsets == offsets
    assert len(sizes) <= 4


# --- topics


def test_topics_and_partitions_that_appear(stream: Callable[[Path], Stream], tmp_path: Path) -> None:
    root = tmp_path / "store"

    def partition(topic: str, number: int) -> Path:
        path = root / "topics" / topic / "partitions" / str(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    write_log(partition("a", 0), "rustlog", 30)
    write_log(partition("a", 1), "rustlog", 10)
    query = stream(root)
    options = {"subscribePattern": "a|b", "columns": "offset,topic,partition"}
    assert query.run(maxOffsetsPerTrigger=20, **options) == [20, 20]
    assert {row[1:] for row in query.batches[0]} == {("a", 0), ("a", 1)}
    write_log(partition("a", 10), "rustlog", 5)
    write_log(partition("b", 0), "rustlog", 5)
    assert query.run(**options) == [10]
    written = max(query.checkpoint.glob("offsets/[0-9]*")).read_text().splitlines()[-1]
    assert written.startswith('{"a": {"0": 30, "1": 10, "10": 5}, "b": {"0": 5}, "/logs": {"a": {"0": "rustlog/')
    assert sorted(query.rows) == sorted(
        (offset, topic, number)
        for topic, number, count in (("a", 0, 30), ("a", 1, 10), ("a", 10, 5), ("b", 0, 5))
        for offset in range(count)
    )


# --- what people see


def test_cursor_and_progress(stream: Callable[[Path], Stream], tmp_path: Path) -> None:
    path = write_log(tmp_path / "log", "keratin", 100)
    query = stream(path)
    query.run(maxOffsetsPerTrigger=40, cursor="reports", columns="offset")
    assert lag(query.query.lastProgress) == {"log/0": 0}
    assert lag(query.query.recentProgress[0]) == {"log/0": 60}
    source = json.loads(query.query.lastProgress.json)["sources"][0]
    latest = source["latestOffset"]
    latest = json.loads(latest) if isinstance(latest, str) else latest
    done = {"records": 0, "bytes": 0, "oldest": None}
    assert latest == {"log": {"0": 100}, "/lag": {**done, "partitions": {"log/0": done}}}
    assert duramen.open(path).cursor("reports").load() == 100


def test_a_cursor_that_cannot_be_kept_stops_nothing(stream: Callable[[Path], Stream], tmp_path: Path) -> None:
    path = build_log(tmp_path / "log", "keratin", [batch_of("keratin", 0, 50)])
    (path / ".duramen").mkdir()
    (path / ".duramen" / "cursors").write_text("a file where a directory should be")
    query = stream(path)
    assert query.run(maxOffsetsPerTrigger=20, cursor="x", columns="offset") == [20, 20, 10]


def test_options_that_make_no_sense(stream: Callable[[Path], Stream], spark: SparkSession, tmp_path: Path) -> None:
    path = write_log(tmp_path / "log", "keratin", 10)
    query = stream(path)
    with pytest.raises((PySparkException, StreamingQueryException)) as caught:
        query.run(endingOffsets="5")
    assert "option endingOffsets makes no sense for a stream" in str(caught.value)
    assert "Traceback" not in str(caught.value)


def test_damage_in_a_stream(stream: Callable[[Path], Stream], tmp_path: Path) -> None:
    path = write_log(tmp_path / "log", "keratin", 100)
    for info in Log(str(path)).segments:
        file = Path(info.path)
        file.write_bytes(file.read_bytes().replace(b"value 33.", b"value 34."))
    query = stream(path)
    with pytest.raises(StreamingQueryException, match="offset 33: "):
        query.run(columns="offset,value")
    query.batches.clear()
    assert query.run(columns="offset,value", onDamage="skip") == [99]
    assert query.offsets == [offset for offset in range(100) if offset != 33]
