"""A worker's collector between tasks: what is imported is out of its sight, what a task leaves behind is not."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import BinaryType, StructField, StructType

from duramen.spark import DuramenSource, gc_freeze
from duramen.spark.gc_freeze import settle
from duramen.spark.jobs.task_runner import distribute


def test_nothing_is_frozen_outside_of_a_task() -> None:
    before = gc.get_freeze_count()
    settle()
    assert gc.get_freeze_count() == before


def _look(_: int) -> tuple[int, int]:
    """In a task, which `distribute` has settled: objects out of sight, and those the collector still looks at."""
    return gc.get_freeze_count(), len(gc.get_objects())


def test_in_a_task_the_collector_looks_at_little(spark: SparkSession) -> None:
    distribute(spark, _look, [0, 1])  # modules that are imported late are seen by the next task
    for frozen, watched in distribute(spark, _look, [0, 1]):
        assert frozen > 10 * watched


def test_processes_that_plan_and_commit_freeze_what_they_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark collects in them after each call, as it does after a task: once per micro-batch and process."""
    frozen: list[int] = []
    monkeypatch.setenv("PYTHON_WORKER_FACTORY_SECRET", "x")
    monkeypatch.setattr(gc_freeze.gc, "freeze", lambda: frozen.append(gc_freeze._seen_modules))
    monkeypatch.setattr(gc_freeze, "_seen_modules", 0)
    source = DuramenSource({"path": str(tmp_path / "log")})
    writer = source.streamWriter(StructType([StructField("value", BinaryType())]), False)
    assert len(frozen) == 1
    monkeypatch.setattr(gc_freeze, "_seen_modules", 0)  # as if more had been imported since
    writer.commit([], 0)
    assert len(frozen) == 2
