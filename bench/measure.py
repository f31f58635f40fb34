"""Timing that can be trusted on a busy machine: contestants take turns, so that a slow phase hits all of them, and a
table shows the median and the best of each."""

from __future__ import annotations

import os
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager


@contextmanager
def one_core() -> Iterator[None]:
    """Keep this process on one core, so that "one core" in a table means that."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class Samples(list[float]):
    """Seconds that one piece of work took, time after time."""

    @property
    def median(self) -> float:
        return statistics.median(self)

    @property
    def best(self) -> float:
        return min(self)

    @property
    def middle(self) -> float:
        """The mean without the fastest and the slowest tenth: steadier than a median where times are of two kinds."""
        tenth = len(self) // 10
        return statistics.fmean(sorted(self)[tenth : len(self) - tenth])

    def percentile(self, percent: float) -> float:
        return sorted(self)[min(len(self) - 1, int(len(self) * percent / 100))]


def best_seconds(contestants: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The best time of each contestant."""
    return {name: samples.best for name, samples in take_turns(contestants, rounds).items()}


def take_turns(
    contestants: Mapping[str, Callable[[], object]], rounds: int, before: Callable[[], object] | None = None
) -> dict[str, Samples]:
    """The times of all contestants. Their order is shuffled every round: on a disk, who comes first pays for others.
    ``before`` runs before each of them, and is not counted."""
    order = list(contestants)
    shuffle = random.Random(1).shuffle
    samples = {name: Samples() for name in contestants}
    for _ in range(rounds):
        for name in order:
            run = contestants[name]
            if before is not None:
                before()
            start = time.perf_counter()
            run()
            samples[name].append(time.perf_counter() - start)
        shuffle(order)
    return samples


class Crowd:
    """What several threads did that called the same function over and over for a while."""

    def __init__(self, run: Callable[[], object], threads: int, seconds: float) -> None:
        self.samples = Samples()
        self._run = run
        self._start = threading.Barrier(threads + 1)
        workers = [threading.Thread(target=self._work) for _ in range(threads)]
        for worker in workers:
            worker.start()
        self._until = time.perf_counter() + seconds
        began = time.perf_counter()
        self._start.wait()
        for worker in workers:
            worker.join()
        self.seconds = time.perf_counter() - began

    @property
    def per_second(self) -> float:
        return len(self.samples) / self.seconds

    def _work(self) -> None:
        mine = Samples()
        self._start.wait()
        now = time.perf_counter()
        while now < self._until:
            start = now
            self._run()
            now = time.perf_counter()
            mine.append(now - start)
        self.samples += mine


def resident_anonymous_bytes() -> int:
    """Resident memory of this process without mapped file pages."""
    return _status_bytes("RssAnon")


def peak_resident_bytes() -> int:
    """The most that this program ever had in memory, mapped file pages included. Not ``ru_maxrss``: a child inherits
    that from the process that started it, through exec."""
    return _status_bytes("VmHWM")


def _status_bytes(name: str) -> int:
    with open("/proc/self/status", encoding="ascii") as status:
        for line in status:
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    raise RuntimeError(f"this system does not tell {name}")
