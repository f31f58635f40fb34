"""Counters: plain numbers, cheap enough for every commit, without locks or lookups.

A `LogCounters` belongs to one writer, which changes it from one thread at a time. A concurrent `snapshot` may see a
commit group counted in part. `process` holds the counters of the process; changing them takes a lock and is rare.
"""

from __future__ import annotations

import mmap
import os
import resource
import sys
import threading
import weakref
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from duramen.metrics.declared import Sample

T = TypeVar("T")

SECONDS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
APPEND_SECONDS = (0.00001, 0.00003, *SECONDS)
RECORDS = tuple(4.0**power for power in range(9))
BYTES = tuple(1024 * 4.0**power for power in range(11))
MOST_NOTED = 4096
"""Commit groups that a writer notes before it counts them."""


class Histogram:
    """Counts of values per bucket, as Prometheus defines them.

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

    def observe_all(self, values: Sequence[float]) -> None:
        """`observe` each, at a fraction of the cost."""
        import numpy as np

        places = np.searchsorted(self.bounds, values)
        counts = np.bincount(places, minlength=len(self.counts)).tolist()
        self.counts = [before + count for before, count in zip(self.counts, counts, strict=True)]
        self.sum += sum(values)

    def add(self, other: Histogram) -> None:
        """Add the counts of another histogram, if it has the same bounds."""
        if other.bounds == self.bounds:
            self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
            self.sum += other.sum

    def copy(self) -> Histogram:
        """A copy of the present counts."""
        copy = Histogram(self.bounds)
        copy.counts, copy.sum = list(self.counts), self.sum
        return copy

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
        """The bucket bound below which that fraction of the values lies; None without values."""
        total = self.count
        if not total:
            return None
        for bound, reached in zip((*self.bounds, float("inf")), self.cumulative(), strict=True):
            if reached >= part * total:
                return bound
        return float("inf")


def _take(noted: list[T]) -> list[T]:
    """Empty the list, to which other threads append."""
    taken = noted[:]
    del noted[: len(taken)]
    return taken


class LogCounters:
    """Counters of one writer since it was opened."""

    def __init__(self, log: str) -> None:
        """Included in every `snapshot` until it is garbage-collected or unlisted."""
        self.log = log
        self.errors = 0
        self.rolls = 0
        self.poisoned = 0
        self.retention_segments = 0
        self.retention_bytes = 0
        self.compaction_records = 0
        self.recoveries = self.recovery_cuts = self.index_rebuilds = 0
        """Of this log, for `published`; `process` counts them, too."""
        self.noted_seconds: list[float] = []
        """The duration of each acknowledged append, with its wait in the queue, until it is counted."""
        self.noted_bytes: list[int] = []
        """The size of each commit group, likewise. A record writer extends all these lists."""
        self.noted_records: list[int] = []
        """Without those of commit groups of one record."""
        self.noted_syncs: list[float] = []
        """The duration of each sync of the active segment."""
        self._sync_seconds = Histogram(SECONDS)
        self._append_seconds = Histogram(APPEND_SECONDS)
        self._batch_records = Histogram(RECORDS)
        self._batch_bytes = Histogram(BYTES)
        self._counting = threading.Lock()
        self._faults = _faults()
        with _guard:
            _logs.add(self)

    def unlist(self) -> None:
        """Exclude the counters of a closed writer from snapshots."""
        with _guard:
            _logs.discard(self)

    def committed(self, records: int, size_bytes: int) -> None:
        """Note an acknowledged commit group, which is cheaper than counting it."""
        noted = self.noted_bytes
        noted.append(size_bytes)
        if records > 1:
            self.noted_records.append(records)
        if len(noted) >= MOST_NOTED:
            self._count()

    def _count(self) -> None:
        """Count what was noted; the writer may note more at the same time."""
        if not (self.noted_seconds or self.noted_bytes or self.noted_syncs):
            return
        with self._counting:
            seconds, sizes = _take(self.noted_seconds), _take(self.noted_bytes)
            records, syncs = _take(self.noted_records), _take(self.noted_syncs)
            self._append_seconds.observe_all(seconds)
            self._batch_bytes.observe_all(sizes)
            self._batch_records.observe_all(records)
            self._sync_seconds.observe_all(syncs)
            alone = len(sizes) - len(records)
            self._batch_records.counts[0] += alone
            self._batch_records.sum += alone

    @property
    def append_seconds(self) -> Histogram:
        self._count()
        return self._append_seconds

    @property
    def sync_seconds(self) -> Histogram:
        self._count()
        return self._sync_seconds

    @property
    def batch_records(self) -> Histogram:
        self._count()
        return self._batch_records

    @property
    def batch_bytes(self) -> Histogram:
        self._count()
        return self._batch_bytes

    @property
    def appends(self) -> int:
        return self.append_seconds.count

    @property
    def records(self) -> int:
        return int(self.batch_records.sum)

    @property
    def bytes(self) -> int:
        return int(self.batch_bytes.sum)

    def values(self) -> dict[str, Any]:
        """The counters by the names that `log_samples` accepts."""
        values = {name: getattr(self, name) for name in LOG_METRICS}
        return {name: value.copy() if isinstance(value, Histogram) else value for name, value in values.items()}

    def published(self) -> dict[str, Any]:
        """What other processes should know: `values`, and `PROCESS_METRICS` since this writer was opened."""
        faults = (now - before for now, before in zip(_faults(), self._faults, strict=True))
        found = (self.recoveries, self.recovery_cuts, self.index_rebuilds, *faults, process.mapped_bytes)
        return self.values() | dict(zip(PROCESS_METRICS, found, strict=True))

    def samples(self) -> Iterator[Sample]:
        return log_samples(self.log, self.values())


LOG_METRICS = {
    "appends": "duramen_appends_total",
    "records": "duramen_append_records_total",
    "bytes": "duramen_append_bytes_total",
    "append_seconds": "duramen_append_seconds",
    "errors": "duramen_append_errors_total",
    "batch_records": "duramen_batch_records",
    "batch_bytes": "duramen_batch_bytes",
    "sync_seconds": "duramen_sync_seconds",
    "rolls": "duramen_rolls_total",
    "poisoned": "duramen_poisoned",
    "retention_segments": "duramen_retention_removed_segments_total",
    "retention_bytes": "duramen_retention_removed_bytes_total",
    "compaction_records": "duramen_compaction_removed_records_total",
}
"""Counter of a writer → metric."""

PROCESS_METRICS = {
    "recoveries": "duramen_recoveries_total",
    "recovery_cuts": "duramen_recovery_cuts_total",
    "index_rebuilds": "duramen_index_rebuilds_total",
    "page_faults": "duramen_page_faults_total",
    "minor_page_faults": "duramen_minor_page_faults_total",
    "mapped_bytes": "duramen_mapped_bytes",
}
"""Counter of the process → metric. A writer publishes them with the label of its log."""


def log_samples(log: str, values: Mapping[str, Any]) -> Iterator[Sample]:
    """Samples of a writer's counters, which have the names of `LOG_METRICS` and `PROCESS_METRICS`."""
    for name, value in values.items():
        yield Sample(LOG_METRICS.get(name) or PROCESS_METRICS[name], value, (("log", log),))


class ProcessCounters:
    """Counters of the process."""

    def __init__(self) -> None:
        self.recoveries = 0
        self.recovery_seconds = Histogram(SECONDS)
        self.recovery_cuts = 0
        self.index_rebuilds = 0
        self.index_rebuild_seconds = Histogram(SECONDS)
        self.corrupt_findings = 0
        self._mappings: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()

    def mapped(self, mapping: mmap.mmap) -> None:
        """Count a mapped file until nothing refers to it."""
        self._mappings.add(mapping)  # no lock: a finalizer may map a file in the middle of this

    @property
    def mapped_bytes(self) -> int:
        while True:
            try:
                return sum(len(mapping) for mapping in self._mappings)
            except RuntimeError:
                continue  # another thread mapped a file during the iteration

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
            ("duramen_recovery_seconds", self.recovery_seconds.copy()),
            ("duramen_recovery_cuts_total", self.recovery_cuts),
            ("duramen_index_rebuilds_total", self.index_rebuilds),
            ("duramen_index_rebuild_seconds", self.index_rebuild_seconds.copy()),
            ("duramen_corrupt_findings_total", self.corrupt_findings),
            ("duramen_page_faults_total", usage.ru_majflt),
            ("duramen_minor_page_faults_total", usage.ru_minflt),
            ("duramen_mapped_bytes", self.mapped_bytes),
            ("duramen_open_handles", _open_handles()),
            ("duramen_resident_bytes", _resident_bytes(usage.ru_maxrss)),
        ):
            if value is not None:
                yield Sample(name, value)


_guard = threading.Lock()
_logs: weakref.WeakSet[LogCounters] = weakref.WeakSet()
process = ProcessCounters()


def snapshot() -> list[Sample]:
    """All samples of this process: logs open for append, sorted by path, then the process itself."""
    with _guard:
        logs = sorted(_logs, key=lambda counters: counters.log)
    return [*(sample for counters in logs for sample in counters.samples()), *process.samples()]


def _faults() -> tuple[int, int]:
    """Page faults of this process that read from disk, and the others."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_majflt, usage.ru_minflt


def _open_handles() -> int | None:
    for directory in ("/proc/self/fd", "/dev/fd"):
        try:
            return len(os.listdir(directory))
        except OSError:
            continue
    return None


def _resident_bytes(largest: int) -> int:
    """Resident memory now, or its maximum if the system does not report the present value."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return largest if sys.platform == "darwin" else largest * 1024
