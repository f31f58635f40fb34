"""Counting along headers: the number of rows that a read returns, for every format, range and kind of gap."""

from __future__ import annotations

import posixpath
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import duramen
from duramen.errors import CorruptionError, UsageError
from duramen.log.maintain.compact import Compaction
from duramen.log.write.hidden_rows import HiddenRows
from duramen.sidecar import BatchKey, ledger_path, prepare_ledger
from duramen.spark import count
from tests.spark.source_logs import FORMATS, START_MS, read_here, splits_of, write_log


def counted(path: Path, **options: Any) -> int:
    """The sum of the summaries, without Spark."""
    return sum(read_here(path, summary="true", **options).column("records").to_pylist())


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    "options",
    [{}, {"startingOffsets": 31}, {"startingOffsets": -7}, {"startingOffsets": 60, "endingOffsets": 171},
     {"maxBytesPerPartition": 1000}],
)  # fmt: skip
def test_a_count_is_the_number_of_rows_of_a_read(tmp_path: Path, name: str, options: dict[str, Any]) -> None:
    path = write_log(tmp_path / "log", name, 300)
    assert counted(path, **options) == read_here(path, **options).num_rows > 0


def test_a_summary_names_place_and_offsets_of_each_split(tmp_path: Path) -> None:
    path = write_log(tmp_path / "orders", "keratin", 300)
    rows = read_here(path, summary="true", maxBytesPerPartition=4000).to_pylist()
    assert len(rows) == len(splits_of(path, maxBytesPerPartition=4000)) > 2
    assert {(row["topic"], row["partition"]) for row in rows} == {("orders", 0)}
    assert [row["first_offset"] for row in rows] == [0, *(row["last_offset"] + 1 for row in rows[:-1])]
    assert [row["last_offset"] - row["first_offset"] + 1 for row in rows] == [row["records"] for row in rows]


def test_times_and_gaps_of_compaction_count_as_in_a_read(tmp_path: Path) -> None:
    path = write_log(tmp_path / "log", "keratin", 300)
    options = {"startingTimestamp": START_MS + 20_000, "endingTimestamp": START_MS + 150_500}
    assert counted(path, **options) == read_here(path, **options).num_rows == 131
    with duramen.open(path, "a") as log:
        log.compact(Compaction())
        log.append(b"after the gap")
    assert counted(path) == read_here(path).num_rows < 300


def test_rows_of_an_open_transaction_do_not_count(tmp_path: Path) -> None:
    path = write_log(tmp_path / "log", "keratin", 30)
    with duramen.open(path, "a") as log:
        prepare_ledger(log.disk, log.path)
        key = BatchKey("writer", 0, "attempt")
        work = HiddenRows(log, key, posixpath.relpath(ledger_path(log.path, key.writer), log.path))
        work.store([[b"hidden"] * 5])
        assert counted(path) == 30
        log.tail.poison(RuntimeError("the test ends here"))


def test_damage_fails_or_is_skipped_as_in_a_read(tmp_path: Path) -> None:
    path = write_log(tmp_path / "log", "keratin", 300)
    segment = sorted((path / "segments").glob("*.log"))[1]
    data = bytearray(segment.read_bytes())
    data[100:400] = bytes(300)
    segment.write_bytes(data)
    with pytest.raises(CorruptionError):
        counted(path)
    assert counted(path, onDamage="skip") == read_here(path, onDamage="skip", columns="offset").num_rows < 300


@pytest.mark.parametrize("options", [{"columns": "offset"}, {"onDamage": "report"}])
def test_options_that_a_summary_cannot_have(tmp_path: Path, options: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="summary"):
        read_here(tmp_path, summary="true", **options)


def test_count_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    path = write_log(tmp_path / "log", "keratin", 300)
    assert count(spark, str(path)) == 300
    assert count(spark, str(path), startingOffsets=-10, minPartitions=3) == 10
    rows = spark.read.format("duramen").option("summary", "true").load(str(path))
    assert rows.selectExpr("sum(records)").first()[0] == 300  # type: ignore[index]
