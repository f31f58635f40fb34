"""Observes a log from time to time: its size, its growth, the lag of its consumers.

An observation uses names, sizes and the watermark, and reads no record. The writer's own measurements (latencies, batch
sizes) come from a file in the sidecar, which the writer updates about once a second. For an unreadable log, the
observation contains the problem.
"""

from __future__ import annotations

import json
import posixpath
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from duramen.consumers import ConsumableLog, ConsumerLag, consumer_lags
from duramen.disk import Disk, Kind
from duramen.errors import DuramenError
from duramen.metrics import BYTES, Histogram, Sample, log_samples
from duramen.sidecar import (
    DIRECTORY,
    LOCK_NAME,
    Verification,
    WriterMetrics,
    read_verification,
    read_writer_metrics,
)
from duramen.watch.discovery import WatchedPath

KEPT = 600
"""Observations kept: ten minutes at one per second."""


@dataclass
class Observation:
    """A log at one moment."""

    at: float
    format: str = ""
    first_offset: int = 0
    next_offset: int = 0
    durable_offset: int = 0
    segments: int = 0
    size_bytes: int = 0
    free_ratio: float | None = None
    is_written: bool = False
    standings: list[ConsumerLag] = field(default_factory=list)
    published: WriterMetrics | None = None
    verified: Verification | None = None
    problem: str | None = None


class Rates(NamedTuple):
    """Rates per second between two observations."""

    records: float
    size_bytes: float
    syncs: float
    sync_p50_s: float | None
    sync_p99_s: float | None


class Observer:
    """Observes one log repeatedly. Safe to use from several threads."""

    def __init__(self, disk: Disk, place: WatchedPath, kept: int = KEPT) -> None:
        self.place = place
        self._disk = disk.within(place.path)
        self._guard = threading.RLock()
        self._log: ConsumableLog | None = None
        self.history: deque[Observation] = deque(maxlen=kept)
        self.sizes: list[int] = []
        self.first_times: dict[int, str | None] = {}
        """Cache of the first record's time per segment base; see `browser.segment_cells`."""

    def log(self) -> ConsumableLog:
        """The log, opened for reading and refreshed."""
        with self._guard:
            if self._log is None:
                self._log = ConsumableLog(self.place.path, disk=self._disk)
            else:
                self._log.refresh()
            return self._log

    def observe(self) -> Observation:
        """Observe the log, and add the observation to the history."""
        with self._guard:
            seen = Observation(time.time(), verified=read_verification(self._disk, self.place.path))
            try:
                self._look(seen)
            except DuramenError as error:
                seen.problem = str(error)
                self.close()
            self.history.append(seen)
            return seen

    def seen(self) -> list[Observation]:
        """The history, latest last; at least one observation."""
        with self._guard:
            if not self.history:
                self.observe()
            return list(self.history)

    def _look(self, seen: Observation) -> None:
        log = self.log()
        seen.format = log.format
        segments = log.segments
        self.sizes = [segment.size_bytes for segment in segments]
        seen.segments = len(segments)
        seen.size_bytes = sum(self.sizes)
        seen.first_offset, seen.next_offset = log.first_offset, log.next_offset
        seen.durable_offset = log.durable_offset
        seen.standings = consumer_lags(log)
        lock = posixpath.join(self.place.path, DIRECTORY, LOCK_NAME)
        seen.is_written = log.disk.kind(lock) == Kind.FILE and log.disk.is_locked(lock)
        seen.published = read_writer_metrics(log.disk, self.place.path)
        try:
            total, free = self._disk.space(self.place.path)
            seen.free_ratio = free / total if total else None
        except DuramenError:
            seen.free_ratio = None

    def rates(self, since_s: float = 5.0) -> Rates:
        """Growth of the log over the last seconds."""
        history = self.seen()
        return rates_of([seen for seen in history if seen.at >= history[-1].at - since_s])

    def samples(self) -> Iterator[Sample]:
        """The latest observation as samples for Prometheus."""
        with self._guard:
            seen = self.seen()[-1]
            labels = (("log", self.place.name),)
            yield Sample("duramen_readable", int(seen.problem is None), labels)
            if seen.verified is not None:
                yield from seen.verified.samples(self.place.name)
            if seen.problem is not None:
                return
            sizes = Histogram(BYTES)
            for size in self.sizes:
                sizes.observe(size)
            for name, value in (
                ("duramen_segments", seen.segments),
                ("duramen_log_bytes", seen.size_bytes),
                ("duramen_segment_bytes", sizes),
                ("duramen_first_offset", seen.first_offset),
                ("duramen_next_offset", seen.next_offset),
                ("duramen_durable_offset", seen.durable_offset),
                ("duramen_unsynced_records", max(seen.next_offset - seen.durable_offset, 0)),
                ("duramen_disk_free_ratio", seen.free_ratio),
            ):
                if value is not None:
                    yield Sample(name, value, labels)
            for standing in seen.standings:
                yield from _standing_samples(standing, self.place.name)
            if seen.published is not None:
                samples = seen.published.samples(self.place.name)
                yield from (one for one in samples if seen.is_written or one.name != "duramen_mapped_bytes")
            else:  # Prometheus would not see an increase from nothing to 1
                yield from log_samples(self.place.name, dict.fromkeys(("recovery_cuts", "index_rebuilds"), 0))

    def close(self) -> None:
        with self._guard:
            if self._log is not None:
                self._log.close()
                self._log = None


def rates_of(seen: list[Observation]) -> Rates:
    """Rates from the first to the last of some observations.

    >>> rates_of([Observation(1.0, next_offset=10), Observation(3.0, next_offset=30)]).records
    10.0
    """
    good = [each for each in seen if each.problem is None]
    if len(good) < 2 or good[-1].at <= good[0].at:
        return Rates(0.0, 0.0, 0.0, None, None)
    first, last = good[0], good[-1]
    seconds = last.at - first.at
    records = max(last.next_offset - first.next_offset, 0) / seconds
    size = max(last.size_bytes - first.size_bytes, 0) / seconds
    between = None
    published = [each.published for each in good if each.published is not None]
    if len(published) > 1:
        between = published[-1].syncs_since(published[0])
    if between is None or not between.count:
        return Rates(records, size, 0.0, None, None)
    return Rates(records, size, between.count / seconds, between.quantile(0.5), between.quantile(0.99))


def _standing_samples(standing: ConsumerLag, log: str) -> Iterator[Sample]:
    if standing.lag is None:
        return
    if standing.kind == "cursor":
        yield Sample("duramen_cursor_lag_records", standing.lag, (("log", log), ("cursor", standing.name)))
    else:
        labels = (("log", log), ("group", standing.name))
        yield Sample("duramen_group_lag_records", standing.lag, labels)
        yield Sample("duramen_group_in_flight", standing.in_flight, labels)


def as_json(seen: Observation) -> dict[str, Any]:
    """An observation as JSON."""
    separate = ("standings", "published", "verified")
    tree: dict[str, Any] = {key: value for key, value in vars(seen).items() if key not in separate}
    tree["standings"] = [standing._asdict() for standing in seen.standings]
    tree["published"] = None if seen.published is None else json.loads(seen.published.encode())
    tree["verified"] = None if seen.verified is None else {**asdict(seen.verified), "is_ok": seen.verified.is_ok}
    return tree
