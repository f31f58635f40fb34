"""How far Spark is, on a terminal: tasks, bytes, rate, time left. Nothing where nobody looks.

Asks Spark's status tracker from a thread of its own a few times a second; it never touches the job. Bytes are the
job's own total, spread evenly over the tasks of its largest stage: an estimate, and good enough for a bar.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POLL_S = 0.2


class Standing(NamedTuple):
    """Tasks that are done, and all that are known."""

    done: int
    tasks: int


class Watcher:
    """Follows the stages that Spark runs, one bar for all of them."""

    def __init__(self, tracker: Any) -> None:
        self._tracker = tracker
        self._stages: dict[int, Standing] = {}

    def look(self) -> Standing:
        for job in self._tracker.getActiveJobsIds():
            found = self._tracker.getJobInfo(job)
            for stage in found.stageIds if found is not None else ():
                info = self._tracker.getStageInfo(stage)
                if info is not None and info.numTasks:
                    self._stages[stage] = Standing(info.numCompletedTasks, info.numTasks)
        active = set(self._tracker.getActiveStageIds())
        for stage, standing in self._stages.items():
            if stage not in active and standing.done:  # it ended between two looks
                self._stages[stage] = Standing(standing.tasks, standing.tasks)
        return Standing(sum(s.done for s in self._stages.values()), sum(s.tasks for s in self._stages.values()))


def is_watched() -> bool:
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


@contextmanager
def progress(spark: SparkSession, label: str, total_bytes: int = 0) -> Iterator[None]:
    """A bar on standard error while the block runs."""
    if not is_watched():
        yield
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    console = Console(stderr=True, no_color=bool(os.environ.get("NO_COLOR")), markup=False, highlight=False)
    sized = (DownloadColumn(binary_units=True), TransferSpeedColumn()) if total_bytes else ()
    columns = (
        TextColumn("{task.description}", markup=False), BarColumn(), TextColumn("{task.fields[tasks]}", markup=False),
        *sized, TimeRemainingColumn(),
    )  # fmt: skip
    over = threading.Event()
    with Progress(*columns, console=console, transient=True) as bars:
        bar = bars.add_task(label, total=None, tasks="")
        watcher = Watcher(spark.sparkContext.statusTracker())

        def follow() -> None:
            while not over.wait(POLL_S):
                done, tasks = watcher.look()
                if tasks:
                    total = total_bytes or tasks
                    bars.update(bar, total=total, completed=total * done / tasks, tasks=f"{done}/{tasks} tasks")

        thread = threading.Thread(target=follow, name="duramen-progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
