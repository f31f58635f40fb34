"""Tasks whose Python process is killed: one line that says what to do."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from duramen.errors import DuramenError
from duramen.spark.error_text import KILLED, KILLED_HINT
from duramen.spark.jobs.task_runner import distribute, plain_errors
from duramen.spark.local_session import add_note
from tests.spark.source_logs import write_log


def die(task: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def run_tasks(spark: SparkSession, path: Path) -> None:
    distribute(spark, die, [0, 1])


def read(spark: SparkSession, path: Path) -> None:
    with plain_errors():
        spark.read.format("duramen").load(str(path)).rdd.foreach(die)


def divide(task: object) -> None:
    raise ZeroDivisionError("by a task")


@pytest.mark.parametrize(("work", "words"), [(die, KILLED_HINT), (divide, "by a task")])
def test_an_error_outlives_the_jvm(spark: SparkSession, work: Callable[[object], None], words: str) -> None:
    with pytest.raises(Exception) as caught:
        spark.range(1).rdd.foreach(work)
    add_note(caught.value)
    (note,) = caught.value.__notes__
    assert words in note


@pytest.mark.parametrize("work", [run_tasks, read])
def test_a_killed_worker(spark: SparkSession, tmp_path: Path, work: Callable[[SparkSession, Path], None]) -> None:
    with pytest.raises(DuramenError) as caught:
        work(spark, write_log(tmp_path / "log", "keratin", 10))
    assert str(caught.value) == f"{KILLED} ({KILLED_HINT})"
    assert spark.range(3).count() == 3
