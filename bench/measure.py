"""Timing that can be trusted on a busy machine: rounds that alternate between the contestants, the best of each."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping


def pin_to_one_core() -> None:
    """Keep this process on one core, so that "one core" in a table means that."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def best_seconds(contestants: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The best time of each contestant. They take turns, so that a slow phase of the machine hits all of them."""
    best = dict.fromkeys(contestants, float("inf"))
    for _ in range(rounds):
        for name, run in contestants.items():
            start = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def resident_anonymous_bytes() -> int:
    """Resident memory of this process without mapped file pages."""
    with open("/proc/self/status", encoding="ascii") as status:
        for line in status:
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    raise RuntimeError("this system does not tell RssAnon")
