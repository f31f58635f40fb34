"""A progress line on the terminal while Spark works: step, tasks, bytes, rate, time left. Nothing without a terminal.

A thread draws it a few times a second and removes it at the end.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from duramen.cli.output import number, rate, safe, size
from duramen.spark import Standing, Watcher, watched

if TYPE_CHECKING:
    from duramen.spark import SparkSession

POLL_S = 0.2
ROOM = 5
"""Columns kept free at the right: the terminal echoes ctrl-C there, and a wrapped line could not be removed."""


def is_watched() -> bool:
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def fitting(label: str, width: int) -> str:
    """A label shortened to leave room for the rest of its line; keeps the end of a path.

    >>> fitting("verify logs/orders", 40), fitting("verify /srv/data/1/logs/orders", 20)
    ('verify logs/orders', 'verify …/logs/orders')
    """
    verb, _, rest = safe(label).partition(" ")
    room = max(8, width - len(verb) - 1)
    return f"{verb} {rest if len(rest) <= room else '…' + rest[1 - room :]}".rstrip()


@contextmanager
def starting(label: str, master: str) -> Iterator[None]:
    """Show a note while the JVM starts, which takes seconds."""
    if not is_watched():
        yield
        return
    columns = shutil.get_terminal_size().columns - ROOM
    note = f"{fitting(label, columns // 3)}: starting Spark ({safe(master)}) …"[:columns]
    print(note, end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        print("\r" + " " * (len(note) + ROOM - 1), end="\r", file=sys.stderr, flush=True)


class ProgressClock:
    """Describes the progress. Rate and time left count from the first finished task of the stage, because workers
    start before that."""

    def __init__(self) -> None:
        self._stage: tuple[int, int] | None = None
        self._began: tuple[float, int] | None = None

    def told(self, standing: Standing, now: float) -> str:
        if standing.tally is not None:
            batches = number(standing.tally.batches, "batch", "batches")
            return f"{number(standing.tally.rows, 'row')} in {batches}"
        if standing.stage is None or not standing.tasks:
            return ""
        if standing.stage != self._stage:
            self._stage, self._began = standing.stage, None
        if self._began is None and standing.done:
            self._began = (now, standing.done)
        if standing.is_over:
            return "finishing"
        parts = [f"{standing.done:,}/{number(standing.tasks, 'task')}"]
        if standing.is_waiting:
            return f"{parts[0]}, waiting for an executor"
        if standing.total_bytes:
            parts.append(_part(standing.total_bytes * standing.done // standing.tasks, standing.total_bytes))
        if self._began is not None and standing.done > self._began[1] and standing.done < standing.tasks:
            per_second = (standing.done - self._began[1]) / max(now - self._began[0], 1e-9)
            parts.append(rate(int(standing.total_bytes * per_second / standing.tasks), 1))
            parts.append(f"{_left((standing.tasks - standing.done) / per_second)} left")
        return "  ".join(part for part in parts if part)


def _part(done_bytes: int, total_bytes: int) -> str:
    """
    >>> _part(0, 4 << 30), _part(1 << 30, 4 << 30)
    ('0.0/4.0 GiB', '1.0/4.0 GiB')
    """
    total, unit = size(total_bytes).split()
    return f"{done_bytes * float(total) / total_bytes:.1f}/{total} {unit}"


def _left(seconds: float) -> str:
    """
    >>> _left(0.1), _left(75.2), _left(7205)
    ('0:01', '1:15', '2:00:05')
    """
    whole = max(1, round(seconds))
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"


def _described(label: str, step: str, columns: int) -> str:
    """The label and the step, if both fit."""
    room = columns // 3 - 2
    if not step:
        return fitting(label, room)
    whole = f"{safe(label)}: {step}"
    return whole if len(whole) <= room else f"{label.partition(' ')[0]}: {step}"


@contextmanager
def progress(spark: SparkSession, label: str, total_bytes: int = 0) -> Iterator[None]:
    """Show progress on standard error while the block runs."""
    if not is_watched():
        yield
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    console = Console(
        stderr=True, no_color=bool(os.environ.get("NO_COLOR")), markup=False, highlight=False,
        width=max(20, shutil.get_terminal_size().columns - ROOM),
    )  # fmt: skip
    columns = (
        TextColumn("{task.description}", markup=False), BarColumn(bar_width=None),
        TextColumn("{task.fields[told]}", markup=False),
    )  # fmt: skip
    over = threading.Event()
    watcher, clock = Watcher(spark, total_bytes), ProgressClock()
    with Progress(*columns, console=console, transient=True, expand=True) as bars, watched(watcher):
        bar = bars.add_task(_described(label, "", console.width), total=None, told="")

        def follow() -> None:
            while not over.wait(POLL_S):
                now = watcher.look()
                bars.update(
                    bar, description=_described(label, now.step, console.width), total=now.tasks or None,
                    completed=now.done, told=clock.told(now, time.monotonic()),
                )  # fmt: skip

        thread = threading.Thread(target=follow, name="duramen-progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
