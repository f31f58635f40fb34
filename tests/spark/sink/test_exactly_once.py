"""Exactly once: the commit of a streaming query is stopped everywhere, and every row is there once. See `kill` for the
long version, in which every stop is a SIGKILL."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import duramen
from duramen.sidecar import tx_ledger
from tests.spark.exactly_once import (
    StoppedSource,
    check,
    check_no_half_batch,
    finish,
    forget_last_commit,
    next_batch,
    rows,
    start,
    write_input,
)
from tests.warm import spark_python

STEP = 5
"""How many changes of the disk lie between two stops here; `kill` leaves none out."""


@pytest.fixture
def query_spark(spark: SparkSession) -> SparkSession:
    spark.dataSource.register(StoppedSource)
    return spark


def test_stopped_at_steps_of_the_commit(query_spark: SparkSession, tmp_path: Path) -> None:
    """One batch after another is stopped at a later step, until a commit has no step left."""
    source, log, checkpoint = tmp_path / "in", tmp_path / "log", tmp_path / "checkpoint"
    write_input(source, 1)
    assert finish(start(rows(query_spark, source), log, checkpoint))
    files, step, stops = 1, 1, 0
    while True:
        write_input(source, 1, files)
        files += 1
        stop = {"stopAt": step, "atBatch": next_batch(checkpoint), "how": "broken"}
        ended = finish(start(rows(query_spark, source), log, checkpoint, stop))
        check_no_half_batch(log)
        if ended:
            break
        stops += 1
        step += STEP
        assert finish(start(rows(query_spark, source), log, checkpoint))
    assert stops >= 5
    write_input(source, 1, files)  # the last stop may have kept a commit from removing the staged files: the next does
    assert finish(start(rows(query_spark, source), log, checkpoint))
    check(log, files + 1)


def test_killed_and_taken_over(query_spark: SparkSession, tmp_path: Path) -> None:
    """SIGKILL for a commit, which its driver starts again, and then for a driver with its commit; another driver goes
    on from the checkpoint."""
    source, log, checkpoint = tmp_path / "in", tmp_path / "log", tmp_path / "checkpoint"
    write_input(source, 2)
    stop = {"stopAt": 25, "atBatch": 0, "how": "commit"}
    assert not finish(start(rows(query_spark, source), log, checkpoint, stop))
    check_no_half_batch(log)
    command = [sys.executable, "-m", "tests.spark.kill", "--driver", str(tmp_path), "--stop-at", "26"]
    env = {**os.environ, "PYSPARK_PYTHON": spark_python(tmp_path)}
    done = subprocess.run(command, start_new_session=True, capture_output=True, timeout=300, env=env)
    assert done.returncode == -9, done.stderr[-3000:]
    check_no_half_batch(log)
    assert done.stdout.split() == [b"driver", b"26"]
    assert finish(start(rows(query_spark, source), log, checkpoint))
    check(log, 2)


def test_a_forgotten_commit_is_replayed_and_recognised(query_spark: SparkSession, tmp_path: Path) -> None:
    source, log, checkpoint = tmp_path / "in", tmp_path / "log", tmp_path / "checkpoint"
    write_input(source, 2)
    assert finish(start(rows(query_spark, source), log, checkpoint))
    forget_last_commit(checkpoint)
    assert finish(start(rows(query_spark, source), log, checkpoint))
    check(log, 2)
    write_input(source, 1, 2)
    assert finish(start(rows(query_spark, source), log, checkpoint))
    check(log, 3)
    entries = list((log / ".duramen/ledger").iterdir())
    assert len(entries) == 1
    entry = tx_ledger.read_ledger(duramen.disk.PosixDisk(), str(entries[0]))
    assert entry is not None
    assert (entry.batch, entry.rows) == (2, 300)


def test_two_queries_on_one_log(query_spark: SparkSession, tmp_path: Path) -> None:
    source, log = tmp_path / "in", tmp_path / "log"
    write_input(source, 3)
    queries = [start(rows(query_spark, source), log, tmp_path / name) for name in ("one", "two")]
    assert all(finish(query) for query in queries)
    check(log, 3, copies=2)


def test_what_other_attempts_left_is_swept(query_spark: SparkSession, tmp_path: Path) -> None:
    """A losing attempt's file lies beside the winner's, and an older batch's never went away."""
    source, log, checkpoint = tmp_path / "in", tmp_path / "log", tmp_path / "checkpoint"
    write_input(source, 1)
    stop = {"stopAt": 3, "atBatch": 0, "how": "broken"}
    assert not finish(start(rows(query_spark, source), log, checkpoint, stop))
    staging = log / ".duramen/staging"
    for directory in ("x", "x/0"):
        (staging / directory).mkdir(parents=True, exist_ok=True)
    (staging / "x/0/00000-9.arrow").write_bytes(b"half a fi")
    os.utime(staging / "x/0/00000-9.arrow", (0, 0))
    os.utime(staging / "x/0", (0, 0))
    os.utime(staging / "x", (0, 0))
    assert finish(start(rows(query_spark, source), log, checkpoint))
    check(log, 1)


def test_a_topic_of_a_store(query_spark: SparkSession, tmp_path: Path) -> None:
    """Stopped between the partitions: none of them shows the batch, then all do."""
    source, root, checkpoint = tmp_path / "in", tmp_path / "store", tmp_path / "checkpoint"
    write_input(source, 1)
    topic: dict[str, object] = {"topic": "t", "numPartitions": 2}

    def keyed() -> object:
        return rows(query_spark, source).selectExpr("value as key", "value")

    for step in (12, 40, 80, 10_000):
        stop = {**topic, "stopAt": step, "atBatch": 0, "how": "broken"}
        ended = finish(start(keyed(), root, checkpoint, stop))  # type: ignore[arg-type]
        counts = []
        for number in range(2):
            path = root / f"topics/t/partitions/{number}"
            counts.append(0 if not (path / ".duramen/log.json").exists() else len(list(duramen.open(path))))
        assert sum(counts) in (0, 300), (step, counts)
        if ended:
            break
    assert ended
    assert sum(counts) == 300
    assert min(counts) > 0
    assert not (root / ".duramen/staging").exists()
    assert not (root / ".duramen/transaction.json").exists()
