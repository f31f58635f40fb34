"""The lag of a query: what the source reports with its latest offset, and what the listener makes of it."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from duramen.log import Log
from duramen.spark import LagListener
from duramen.spark.source.source import DuramenSource
from tests.spark.source_logs import FORMATS, write_log

INDEXED_BYTES = 4096
"""Between two entries of an index, at most."""


def reader_of(path: Path, **options: str) -> Any:
    source = DuramenSource({"path": str(path), **options})
    return source.streamReader(source.schema())


@pytest.mark.parametrize("name", FORMATS)
def test_lag_in_records_bytes_and_time(tmp_path: Path, name: str) -> None:
    path = write_log(tmp_path / "log", name, 300, step=10)
    reader = reader_of(path)
    start = reader.initialOffset()
    assert "/lag" not in reader.reportLatestOffset(), "no batch was planned yet"
    with Log(str(path)) as log:
        size_bytes = sum(info.size_bytes for info in log.segments)
        has_times = log.codec.capabilities.timestamps is not None
    for rows in (120, 250):
        at = reader.latestOffset(start, ReadMaxRows(rows))
        lag = reader.reportLatestOffset()["/lag"]
        assert at["log"]["0"] == rows
        assert lag["records"] == 300 - rows
        assert size_bytes * (300 - rows) / 300 - 500 <= lag["bytes"] <= size_bytes * (300 - rows) / 300 + INDEXED_BYTES
        seconds, minutes = (rows + 20) % 60, 13 + (rows + 20) // 60
        assert lag["oldest"] == (f"2023-11-14T22:{minutes:02d}:{seconds:02d}.000Z" if has_times else None)
        assert lag["partitions"] == {"log/0": {key: lag[key] for key in ("records", "bytes", "oldest")}}
    reader.latestOffset(start, ReadAllAvailable())
    done = {"records": 0, "bytes": 0, "oldest": None}
    assert reader.reportLatestOffset() == {"log": {"0": 300}, "/lag": {**done, "partitions": {"log/0": done}}}


def test_lag_of_several_partitions(tmp_path: Path) -> None:
    for number, count in ((0, 50), (1, 30)):
        write_log(tmp_path / f"topics/a/partitions/{number}", "keratin", count)
    reader = reader_of(tmp_path, subscribe="a")
    start = reader.initialOffset()
    start["a"] = {"0": 40, "1": 30}
    start.pop("/logs")
    reader.latestOffset(start, ReadMaxRows(4))
    lag = reader.reportLatestOffset()["/lag"]
    assert [part["records"] for part in lag["partitions"].values()] == [6, 0]
    assert lag["records"] == 6
    assert lag["oldest"] == lag["partitions"]["a/0"]["oldest"] == "2023-11-14T22:14:04.000Z"


def families(text: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    return {
        family.name: [(sample.labels, sample.value) for sample in family.samples]
        for family in text_string_to_metric_families(text)
    }


def test_the_listener_serves_what_queries_report(spark: SparkSession) -> None:
    listener = LagListener.start(spark, 0)
    try:
        one = {"records": 3, "bytes": 70, "oldest": "2023-11-14T22:13:20.500Z"}
        latest = {"log": {"0": 9}, "/lag": {**one, "partitions": {"log/0": one}}}
        other = {"latestOffset": {"kafka": {"0": 1}}}
        sources = [{"latestOffset": json.dumps(latest)}, other, {"latestOffset": None}]
        listener.keep({"id": "7f", "name": 'copy "x"', "sources": sources})
        listener.keep({"id": "80", "name": None, "sources": [other]})
        with urllib.request.urlopen(f"http://127.0.0.1:{listener.port}/metrics") as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            found = families(answer.read().decode())
        labels = {"query": 'copy "x"', "log": "log/0"}
        assert found == {
            "duramen_spark_lag_records": [(labels, 3)],
            "duramen_spark_lag_bytes": [(labels, 70)],
            "duramen_spark_oldest_timestamp_seconds": [(labels, 1_700_000_000.5)],
        }
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(f"http://127.0.0.1:{listener.port}/")
    finally:
        spark.streams.removeListener(listener)
        listener.close()
    assert listener.port is None


@pytest.mark.slow
def test_spark_tells_the_listener(spark: SparkSession, tmp_path: Path) -> None:
    path = write_log(tmp_path / "log", "keratin", 100)
    listener = LagListener()
    seen: list[str] = []
    keep = listener.keep
    listener.keep = lambda progress: (keep(progress), seen.append(listener.text()))  # type: ignore[method-assign, assignment, func-returns-value]
    spark.streams.addListener(listener)
    try:
        stream = spark.readStream.format("duramen").option("maxOffsetsPerTrigger", 60).load(str(path))
        writer = stream.writeStream.queryName("lagging").option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.format("noop").trigger(availableNow=True).start().awaitTermination()
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()  # type: ignore[union-attr]
    finally:
        spark.streams.removeListener(listener)
    lags = [families(text)["duramen_spark_lag_records"] for text in seen]
    assert [value for [(labels, value)] in lags if labels == {"query": "lagging", "log": "log/0"}][:2] == [40, 0]
    assert listener.text() == "", "the query has ended"
