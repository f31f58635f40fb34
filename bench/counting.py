"""What counting costs an append: a log as it is, and the same log with counters that do nothing and are not published.

Single appends at `write`, where an append is cheapest and counting weighs most. The two take turns in short runs, and
the medians are compared, of the processor's time, which a busy machine disturbs least; the second without counters
shows how much of the difference is noise."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duramen
from bench import logs
from bench.measure import Samples, one_core
from bench.report import Table, at_most, us
from duramen.metrics import LogCounters

BAR_PERCENT = 3.0
VALUE_BYTES = 256
RUN = 100


class NoCounters(LogCounters):
    """Counts nothing."""

    def committed(self, records: int, size_bytes: int) -> None:
        """Nothing."""


def counting(scratch: Path, quick: bool) -> Iterator[Table]:
    yield Table(
        f"append of {VALUE_BYTES} B at `write`, with and without counters (µs of the processor)",
        ["format", "without", "with", "overhead", "bar", "without, again", "noise"],
        _rows(scratch, 60 if quick else 1000),
        "Medians of short runs that take turns.",
    )


def _rows(scratch: Path, rounds: int) -> Iterator[list[str]]:
    for name in ("durable-log", "keratin"):
        options = logs.options(name, VALUE_BYTES)
        root = scratch / f"counting-{name}"
        with duramen.open(root, "a", format=name, durability="write", **options) as log, one_core():
            samples = _take_turns(_contestants(log, bytes(VALUE_BYTES)), rounds)
        plain, counted, again = (samples[kind].median for kind in ("without", "with", "again"))
        percent = 100 * (counted / ((plain + again) / 2) - 1)
        yield [
            name, us(plain / RUN), us(counted / RUN), f"{percent:+.1f} %",
            at_most(percent, BAR_PERCENT, "%", f"counting, {name}, %"), us(again / RUN),
            f"{100 * abs(again / plain - 1):.1f} %",
        ]  # fmt: skip


def _take_turns(contestants: dict[str, Callable[[], None]], rounds: int) -> dict[str, Samples]:
    samples = {name: Samples() for name in contestants}
    order = list(contestants)
    for _ in range(rounds):
        random.shuffle(order)
        for name in order:
            began = time.process_time()
            contestants[name]()
            samples[name].append(time.process_time() - began)
    return samples


def _contestants(log: Any, value: bytes) -> dict[str, Callable[[], None]]:
    """Runs of appends to one log, with its own counters or with those that do nothing."""
    counters, publish, observe = log.counters, log._publish, log._commit._observe
    nothing = NoCounters(log.path)
    nothing.unlist()

    def run() -> None:
        for _ in range(RUN):
            log.append(value)

    def counted() -> None:
        log.counters, log._publish, log._commit._observe = counters, publish, observe
        run()

    def plain() -> None:
        log.counters, log._publish, log._commit._observe = nothing, lambda now_us: None, None
        run()

    return {"without": plain, "with": counted, "again": plain}
