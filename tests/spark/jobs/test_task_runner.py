"""Tasks whose Python process is killed, and what Spark refuses: one line."""

from __future__ import annotations

import io
import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession
from pyspark.sql import functions as fn

from duramen.errors import DuramenError
from duramen.spark import local_session
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


def test_spark_prints_no_error_that_it_raises(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark logs some of them as JSON of many kilobytes."""
    monkeypatch.setattr(logging.root, "handlers", [])
    told = io.StringIO()
    handler = logging.StreamHandler(told)
    loggers = [PySparkLogger.getLogger(name) for name in local_session.NOISY_LOGGERS]

    def fail() -> None:
        for query in (lambda: spark.sql("SELECT nosuch"), lambda: spark.range(1).select(fn.col("nosuch"))):
            with pytest.raises(AnalysisException):
                query()

    for logger in loggers:
        logger.addHandler(handler)
    try:
        with local_session._quiet_logging(verbose=False):
            fail()
        assert told.getvalue() == ""
        fail()
        assert "nosuch" in told.getvalue()
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
