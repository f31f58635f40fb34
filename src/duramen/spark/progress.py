"""How far Spark is, as numbers; how they are shown is the command line's business.

A job has steps, and says where one begins (`step`); Spark runs stages of tasks. `Watcher.look` asks Spark's status
tracker, and never touches the job. Bytes are the step's own total, spread evenly over the tasks of its first stage,
which is the one that reads the log: an estimate. Later stages of a step, after a shuffle, count tasks only.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pyspark import SparkStageInfo
    from pyspark.sql import SparkSession


@dataclass
class Tally:
    """Rows and batches of a streaming query. Spark itself remembers its last hundred reports only."""

    _rows: dict[int, int] = field(default_factory=dict)

    def add(self, reports: Iterable[Mapping[str, Any]]) -> None:
        for report in reports:
            batch = int(report["batchId"])
            self._rows[batch] = max(self._rows.get(batch, 0), int(report["numInputRows"]))

    @property
    def rows(self) -> int:
        return sum(self._rows.values())

    @property
    def batches(self) -> int:
        """Those that had rows."""
        return sum(rows > 0 for rows in self._rows.values())


class Standing(NamedTuple):
    """Where a job is. ``stage`` changes with every stage and every step, and is None before the first."""

    step: str
    stage: tuple[int, int] | None
    done: int
    tasks: int
    total_bytes: int
    tally: Tally | None
    is_over: bool
    """The stage's tasks are done, and no other stage has begun: the driver is at work."""
    is_waiting: bool = False
    """No task of the stage runs or has run: a cluster has no executor for it."""


class Watcher:
    """Follows the stages that Spark runs. One thread may look while the job's thread begins a step."""

    def __init__(self, spark: SparkSession, total_bytes: int = 0) -> None:
        self._mutex = threading.Lock()
        self._tracker = spark.sparkContext.statusTracker()
        self._steps = 0
        self._tally: Tally | None = None
        self._latest = -1
        self._stage: int | None = None
        self.step("", total_bytes)

    def step(self, name: str, total_bytes: int = 0) -> None:
        with self._mutex:
            self._steps += 1
            self._name, self._total_bytes = name, total_bytes
            self._first: int | None = None
            if self._stage is not None:
                self._latest = self._stage + 1  # Spark may list a stage for a moment after its job has ended
            self._stage = None
            self._done = self._tasks = 0
            self._is_waiting = False

    def follow(self, tally: Tally) -> None:
        self._tally = tally

    def look(self) -> Standing:
        while True:
            steps = self._steps
            active = max((stage for stage in self._tracker.getActiveStageIds() if stage >= self._latest), default=None)
            info = None if active is None else self._tracker.getStageInfo(active)
            with self._mutex:
                if steps == self._steps:  # otherwise Spark spoke of a stage of the step before
                    return self._standing(active, info)

    def _standing(self, active: int | None, info: SparkStageInfo | None) -> Standing:
        if active is not None and info is not None and info.numTasks:
            self._stage = self._latest = active
            self._first = self._stage if self._first is None else self._first
            self._done, self._tasks = info.numCompletedTasks, info.numTasks
            self._is_waiting = not (info.numActiveTasks or info.numCompletedTasks or info.numFailedTasks)
        elif self._done:
            self._done = self._tasks  # it ended between two looks
        is_over = info is None and self._done > 0
        is_reading = self._stage is not None and self._stage == self._first
        stage = None if self._stage is None else (self._steps, self._stage)
        total_bytes = self._total_bytes if is_reading else 0
        return Standing(
            self._name, stage, self._done, self._tasks, total_bytes, self._tally, is_over, self._is_waiting
        )  # fmt: skip


_watchers: list[Watcher] = []


@contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """Have the jobs of this block tell the watcher about their steps."""
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)


def step(name: str, total_bytes: int = 0) -> None:
    """A job begins another step, which reads so many bytes."""
    for watcher in _watchers:
        watcher.step(name, total_bytes)


def follow(tally: Tally) -> None:
    """A job is a stream, and this is how it counts."""
    for watcher in _watchers:
        watcher.follow(tally)
