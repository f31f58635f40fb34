"""What is said while Spark works: stages and steps as Spark's own tracker tells them, and a stream's counts."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from pyspark import SparkStageInfo
from pyspark.sql import SparkSession

from duramen.cli.pipeline.progress import ProgressClock
from duramen.spark.jobs.task_runner import distribute
from duramen.spark.progress import Standing, Tally, Watcher, follow, step, watched


def nap(number: int) -> int:
    time.sleep(0.3)
    return number


def test_tasks_of_a_step_are_counted_from_its_beginning(spark: SparkSession) -> None:
    distribute(spark, nap, [0])  # before anybody watches
    watcher = Watcher(spark, total_bytes=800)
    assert watcher.look().stage is None
    seen: list[Standing] = []
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.05):
            seen.append(watcher.look())

    with watched(watcher), ThreadPoolExecutor(1) as pool:
        looking = pool.submit(look)
        try:
            distribute(spark, nap, list(range(8)))
            step("again", 50)
            begun = watcher.look()
            distribute(spark, nap, list(range(4)))
        finally:
            over.set()
        looking.result()
    assert begun.done == 0, "the tasks of the step before do not count"
    first = [one for one in seen if not one.step and one.tasks]
    second = [one for one in seen if one.step == "again" and one.tasks]
    assert {one.tasks for one in first} == {8}
    assert {one.total_bytes for one in first} == {800}
    assert any(0 < one.done < 8 for one in first)
    assert {one.tasks for one in second} == {4}
    assert {one.total_bytes for one in second} == {50}
    assert not {one.stage for one in first} & {one.stage for one in second}
    done = [one.done for one in first]
    assert done == sorted(done), "a bar never goes back"


class Tracker:
    """Says that a stage runs, after the job has begun another step."""

    def __init__(self, watcher: Watcher) -> None:
        self.watcher, self.asked = watcher, 0

    def getActiveStageIds(self) -> list[int]:  # noqa: N802
        return [3] if self.asked == 0 else []

    def getStageInfo(self, stage: int) -> SparkStageInfo:  # noqa: N802
        self.asked += 1
        self.watcher.step("again", 50)
        return SparkStageInfo(stage, 0, "", 8, 0, 8, 0)


def test_a_stage_of_the_step_before_is_not_counted(spark: SparkSession) -> None:
    """Spark's answer came back after the job's thread had begun the next step, and counted for that one."""
    watcher = Watcher(spark)
    watcher._tracker = Tracker(watcher)
    seen = watcher.look()
    assert (seen.step, seen.stage, seen.done, seen.tasks) == ("again", None, 0, 0)


def standing(done: int, tasks: int = 8, total_bytes: int = 8 << 30, *, is_over: bool = False) -> Standing:
    return Standing("", (1, 1), done, tasks, total_bytes, None, is_over)


def test_rate_and_time_left_count_from_the_first_task_that_was_done() -> None:
    clock = ProgressClock()
    assert clock.told(Standing("", None, 0, 0, 5, None, False), 0) == ""
    assert clock.told(standing(0), 10) == "0/8 tasks  0.0/8.0 GiB"
    assert clock.told(standing(1), 20) == "1/8 tasks  1.0/8.0 GiB"
    assert clock.told(standing(3), 22) == "3/8 tasks  3.0/8.0 GiB  1.07 GB/s  0:05 left"
    assert clock.told(standing(8), 27) == "8/8 tasks  8.0/8.0 GiB"
    assert clock.told(standing(8, is_over=True), 28) == "finishing"
    assert ProgressClock().told(standing(1, 1, 0), 1) == "1/1 task"
    assert ProgressClock().told(standing(0)._replace(is_waiting=True), 1) == "0/8 tasks, waiting for an executor"


def test_a_stream_counts_more_batches_than_spark_remembers() -> None:
    tally = Tally()
    for batch in range(250):
        tally.add([{"batchId": batch, "numInputRows": 0}])
        tally.add({"batchId": number, "numInputRows": 2} for number in range(max(0, batch - 99), batch + 1))
    assert (tally.rows, tally.batches) == (500, 250)
    told = ProgressClock().told(Standing("", None, 0, 0, 0, tally, False), 0)
    assert told == "500 rows in 250 batches"
    follow(tally)  # nobody watches, and nothing happens


def test_steps_without_a_watcher(spark: SparkSession) -> None:
    watcher = Watcher(spark)
    with pytest.raises(ValueError, match="mine"), watched(watcher):
        raise ValueError("mine")
    step("later")
    assert watcher.look().step == ""


class LaggingTracker:
    """Spark's tracker hears of everything a moment later than the driver."""

    def __init__(self) -> None:
        self.active: list[int] = []

    def getActiveStageIds(self) -> list[int]:  # noqa: N802  # noqa: N802
        return self.active

    def getStageInfo(self, stage: int) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(numTasks=8, numCompletedTasks=8, numActiveTasks=0, numFailedTasks=0, stage=stage)


def test_a_stage_that_spark_still_lists_is_not_the_next_steps() -> None:
    tracker = LaggingTracker()
    spark = SimpleNamespace(sparkContext=SimpleNamespace(statusTracker=lambda: tracker))
    watcher = Watcher(spark)  # type: ignore[arg-type]
    tracker.active = [3]
    assert watcher.look().stage == (1, 3)
    watcher.step("again")
    assert watcher.look().stage is None
    tracker.active = [3, 4]
    assert watcher.look().stage == (2, 4)
