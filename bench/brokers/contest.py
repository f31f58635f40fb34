"""Publish and consume, measured alike for Duramen and for brokers: who takes part, the turns, the tables.

A contestant is a context manager: what it does before it yields (a fresh log, stream or topic; a connection) and after
is not measured, only the call that it yields. Every call counts what it did and raises if that is not everything.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple

import duramen
from bench import logs
from bench.measure import Samples
from bench.report import Table

VALUE_BYTES = 1024
BATCH = 1000
WINDOW = 20 * BATCH
"""How many messages may wait for their confirmation where a client does not wait for each batch."""
FORMATS = ("keratin", "osiris")
BASE = "duramen keratin"
IN_PROCESS = (
    "Not the same thing: Duramen is a library in the process that calls it, a broker is a process behind a socket, "
    "with a client and a protocol\nbetween, that serves many. The ratio says what that costs here, not which is better "
    "made."
)

Contestant = Callable[[], AbstractContextManager[Callable[[], None]]]


class Entry(NamedTuple):
    """A line of a table, before it is measured."""

    name: str
    client: str
    durable: str
    """What has happened to a message when its publisher knows of it."""
    level: str
    """The durability of Duramen that promises the same."""
    contestant: Contestant


class Result(NamedTuple):
    """A line of a table."""

    name: str
    client: str
    durable: str
    level: str
    per_second: float
    best_per_second: float
    ratio: float
    """The time taken ÷ the time of `BASE` at the same level: above 1, Duramen is faster."""
    best_ratio: float


RESULTS: dict[str, list[Result]] = {}
"""Of this run, by the title of the table: what the picture shows."""


def size(quick: bool) -> tuple[int, int]:
    """Messages, and rounds."""
    return (10_000, 1) if quick else (100_000, 7)


def batches(count: int) -> list[list[bytes]]:
    """Messages to publish. One batch of values over and over: nothing here compresses or deduplicates."""
    return [logs.values(BATCH, VALUE_BYTES)] * (count // BATCH)


def check(count: int, found: int) -> None:
    if count != found:
        raise RuntimeError(f"{found:,} of {count:,} messages")


def measure(title: str, entries: Sequence[Entry], count: int, rounds: int) -> list[Result]:
    """Let all take turns, in another order each round, and keep the medians and the best. A round before them is not
    counted: a JVM compiles what it runs often, and Python imports what it needs."""
    samples = _turns({number: entry.contestant for number, entry in enumerate(entries)}, rounds, title)
    base: dict[str, Samples] = {}
    for entry, taken in zip(entries, samples.values(), strict=True):
        if entry.name == BASE:
            base.setdefault(entry.level, taken)
    results = [
        Result(
            entry.name, entry.client, entry.durable, entry.level, count / taken.median, count / taken.best,
            taken.median / base[entry.level].median, taken.best / base[entry.level].best,
        )
        for entry, taken in zip(entries, samples.values(), strict=True)
    ]  # fmt: skip
    RESULTS[title] = results
    return results


def _turns(contestants: Mapping[int, Contestant], rounds: int, title: str) -> dict[int, Samples]:
    order = list(contestants)
    shuffle = random.Random(1).shuffle
    samples = {name: Samples() for name in contestants}
    for turn in range(rounds + 1):
        shuffle(order)
        for place, name in enumerate(order):
            _progress(f"{title}: {turn * len(order) + place + 1} of {(rounds + 1) * len(order)}")
            with contestants[name]() as work:
                os.sync()  # nobody pays for what others left to be written
                start = time.perf_counter()
                work()
                if turn:
                    samples[name].append(time.perf_counter() - start)
    _progress("")
    return samples


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()


def table(title: str, results: Sequence[Result], note: str) -> Table:
    """With a column about durability where that is a question."""
    is_durable = any(result.durable for result in results)
    columns = [
        "",
        "client",
        *["durable"] * is_durable,
        "messages/s",
        "MB/s",
        "best MB/s",
        f"{BASE} is faster by",
        "by best",
    ]
    rows = (
        [
            result.name, result.client, *[result.durable] * is_durable, f"{result.per_second:,.0f}",
            f"{megabytes(result.per_second):,.1f}", f"{megabytes(result.best_per_second):,.1f}",
            f"{result.ratio:.2f} ×", f"{result.best_ratio:.2f} ×",
        ]
        for result in results
    )  # fmt: skip
    return Table(title, columns, iter(rows), note)


def megabytes(per_second: float) -> float:
    return per_second * VALUE_BYTES / 1e6


def not_run(title: str, peer: str, why: object) -> Table:
    """A table that says why there is none."""
    return Table(title, ["", ""], iter([[peer, f"not run: {why}"]]))


def duramen_publishers(scratch: Path, count: int, levels: Sequence[str]) -> list[Entry]:
    means = {"write": "write: page cache", "fsync": "fsync: fdatasync per batch"}
    return [
        Entry(f"duramen {name}", "append_batch", means[level], level, _appending(scratch, name, count, level))
        for level in levels
        for name in FORMATS
    ]


def _appending(scratch: Path, name: str, count: int, level: str) -> Contestant:
    @contextmanager
    def contestant() -> Iterator[Callable[[], None]]:
        path = scratch / f"publish-{name}"
        with duramen.open(path, "a", format=name, durability=level) as log:
            todo = batches(count)

            def work() -> None:
                for batch in todo:
                    log.append_batch(batch)

            yield work
            check(count, log.next_offset)
        shutil.rmtree(path)

    return contestant


def duramen_consumers(scratch: Path, count: int) -> list[Entry]:
    """Record by record, which is what the clients of brokers do; and in Arrow batches."""
    entries = []
    for name in FORMATS:
        path = scratch / f"consume-{name}"
        shutil.rmtree(path, ignore_errors=True)
        with duramen.open(path, "a", format=name) as log:
            for batch in batches(count):
                log.append_batch(batch)
        entries.append(Entry(f"duramen {name}", "scan", "", "", _scanning(path, count)))
        entries.append(Entry(f"duramen {name}", "batches (Arrow)", "", "", _batching(path, count)))
    return entries


def _scanning(path: Path, count: int) -> Contestant:
    @contextmanager
    def contestant() -> Iterator[Callable[[], None]]:
        with duramen.open(path) as log:
            yield lambda: check(count * VALUE_BYTES, sum(len(record.value) for record in log.scan()))

    return contestant


def _batching(path: Path, count: int) -> Contestant:
    @contextmanager
    def contestant() -> Iterator[Callable[[], None]]:
        with duramen.open(path) as log:
            yield lambda: check(count, sum(batch.num_rows for batch in log.batches()))

    return contestant
