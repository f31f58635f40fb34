"""Processor time of a job: that of this process, the JVM and every Python worker, from /proc.

On a machine that has other work, the wall says how long a job waited; this says what it took.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from bench.measure import Samples

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class Cost(NamedTuple):
    """Samples of one contestant."""

    cpu: Samples
    wall: Samples


def take_turns(
    contestants: Mapping[str, Callable[[], object]], rounds: int, before: Callable[[str], object] | None = None
) -> dict[str, Cost]:
    """What all contestants cost, in shuffled order every round. ``before`` gets the name of the one whose turn it is,
    and is not counted."""
    order = list(contestants)
    shuffle = random.Random(1).shuffle
    costs = {name: Cost(Samples(), Samples()) for name in contestants}
    for _ in range(rounds):
        for name in order:
            if before is not None:
                before(name)
            cpu, wall = tree_seconds(), time.perf_counter()
            contestants[name]()
            costs[name].cpu.append(tree_seconds() - cpu)
            costs[name].wall.append(time.perf_counter() - wall)
        shuffle(order)
    return costs


def tree_seconds(root: int | None = None) -> float:
    """Processor time so far of a process and of all its descendants, with those that ended."""
    times: dict[int, tuple[int, int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            times[int(name)] = int(fields[1]), sum(int(field) for field in fields[11:15])
    root = root or os.getpid()
    return sum(ticks for pid, (_, ticks) in times.items() if _descends(pid, root, times)) * _TICK_S


def _descends(pid: int, root: int, times: Mapping[int, tuple[int, int]]) -> bool:
    while pid in times:
        if pid == root:
            return True
        pid = times[pid][0]
    return False
