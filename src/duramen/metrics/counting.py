"""What is counted as it happens. Plain numbers behind names, cheap enough for every commit: no lock, no lookup.

A `LogCounters` belongs to one writer, which changes it in one thread at a time; whoever takes a `snapshot` meanwhile
may see one group counted in part. `process` holds what belongs to no single log; adding to it takes a lock, and is
rare.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
import weakref
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from duramen.metrics.declared import Sample

SECONDS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
RECORDS = tuple(4.0**power for power in range(9))
BYTES = tuple(1024 * 4.0**power for power in range(11))


class Histogram:
    """How often a value was at most each bound, as Prometheus counts it.

    >>> histogram = Histogram((1, 10))
    >>> for value in (0.5, 7, 99):
    ...     histogram.observe(value)
    >>> histogram.cumulative(), histogram.sum
    ([1, 2, 3], 106.5)
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        return sum(self.counts)

    def cumulative(self) -> list[int]:
        total, out = 0, []
        for count in self.counts:
            total += count
            out.append(total)
        return out

    def quantile(self, part: float) -> float | None:
        """The bound below which that part of the values lies; None without values."""
        total = self.count
        if not total:
            return None
        for bound, reached in zip((*self.bounds, float("inf")), self.cumulative(), strict=True):
            if reached >= part * total:
                return bound
        return float("inf")


class LogCounters:
    """What one writer has done since it was opened."""

    def __init__(self, log: str, *, listed: bool = True) -> None:
        """``listed``: part of every `snapshot` as long as it lives."""
        self.log = log
        self.appends = 0
        self.records = 0
        self.bytes = 0
        self.errors = 0
        self.rolls = 0
        self.poisoned = 0
        self.retention_segments = 0
        self.retention_bytes = 0
        self.compaction_records = 0
        self.batch_records = Histogram(RECORDS)
        self.batch_bytes = Histogram(BYTES)
        self.sync_seconds = Histogram(SECONDS)
        if listed:
            with _guard:
                _logs.add(self)

    def unlist(self) -> None:
        """Its writer is closed: another one may be opened for the same log."""
        with _guard:
            _logs.discard(self)

    def committed(self, appends: int, records: int, size_bytes: int) -> None:
        """One group was acknowledged."""
        self.appends += appends
        self.records += records
        self.bytes += size_bytes
        self.batch_records.observe(records)
        self.batch_bytes.observe(size_bytes)

    def samples(self) -> Iterator[Sample]:
        labels = (("log", self.log),)
        for name, value in (
            ("duramen_appends_total", self.appends),
            ("duramen_append_records_total", self.records),
            ("duramen_append_bytes_total", self.bytes),
            ("duramen_append_errors_total", self.errors),
            ("duramen_batch_records", self.batch_records),
            ("duramen_batch_bytes", self.batch_bytes),
            ("duramen_sync_seconds", self.sync_seconds),
            ("duramen_rolls_total", self.rolls),
            ("duramen_poisoned", self.poisoned),
            ("duramen_retention_removed_segments_total", self.retention_segments),
            ("duramen_retention_removed_bytes_total", self.retention_bytes),
            ("duramen_compaction_removed_records_total", self.compaction_records),
        ):
            yield Sample(name, value, labels)


class ProcessCounters:
    """What belongs to no single log."""

    def __init__(self) -> None:
        self.recoveries = 0
        self.recovery_seconds = Histogram(SECONDS)
        self.recovery_cuts = 0
        self.index_rebuilds = 0
        self.index_rebuild_seconds = Histogram(SECONDS)
        self.corrupt_findings = 0

    def recovered(self, seconds: float, cuts: int) -> None:
        with _guard:
            self.recoveries += 1
            self.recovery_seconds.observe(seconds)
            self.recovery_cuts += cuts

    def rebuilt_index(self, seconds: float) -> None:
        with _guard:
            self.index_rebuilds += 1
            self.index_rebuild_seconds.observe(seconds)

    def found_damage(self, findings: int) -> None:
        with _guard:
            self.corrupt_findings += findings

    def samples(self) -> Iterator[Sample]:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        for name, value in (
            ("duramen_recoveries_total", self.recoveries),
            ("duramen_recovery_seconds", self.recovery_seconds),
            ("duramen_recovery_cuts_total", self.recovery_cuts),
            ("duramen_index_rebuilds_total", self.index_rebuilds),
            ("duramen_index_rebuild_seconds", self.index_rebuild_seconds),
            ("duramen_corrupt_findings_total", self.corrupt_findings),
            ("duramen_page_faults_total", usage.ru_majflt),
            ("duramen_minor_page_faults_total", usage.ru_minflt),
            ("duramen_open_handles", _open_handles()),
            ("duramen_resident_bytes", _resident_bytes(usage.ru_maxrss)),
        ):
            if value is not None:
                yield Sample(name, value)


_guard = threading.Lock()
_logs: weakref.WeakSet[LogCounters] = weakref.WeakSet()
process = ProcessCounters()


def snapshot() -> list[Sample]:
    """Everything that this process has counted, logs that are open for writing first, in the order of their paths."""
    with _guard:
        logs = sorted(_logs, key=lambda counters: counters.log)
    return [*(sample for counters in logs for sample in counters.samples()), *process.samples()]


def _open_handles() -> int | None:
    for directory in ("/proc/self/fd", "/dev/fd"):
        try:
            return len(os.listdir(directory))
        except OSError:
            continue
    return None


def _resident_bytes(largest: int) -> int:
    """What is resident now, where the system says so; else the most that ever was."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return largest if sys.platform == "darwin" else largest * 1024
