"""The counters of a log's writer, ``.duramen/metrics.json``, for processes that watch the log.

The writer replaces the content about once a second while it appends, without a sync: the file is worthless after a
crash. A reader ignores a file that it cannot parse, because the writer may be half-way through.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from duramen.disk import Disk, Kind, write_all
from duramen.errors import StorageError
from duramen.metrics import Histogram, LogCounters, Sample, log_samples
from duramen.sidecar.json_file import SMALL_BYTES, JsonFile
from duramen.sidecar.layout import METRICS_NAME, sidecar_path

SIZE_BYTES = 8192
"""The file always has this size: a file that shrinks while a process has it mapped would kill that process."""
COUNTERS = (
    "appends", "records", "bytes", "errors", "rolls", "poisoned",
    "retention_segments", "retention_bytes", "compaction_records",
)  # fmt: skip
HISTOGRAMS = ("batch_records", "batch_bytes", "sync_seconds")
_METRICS = JsonFile("the writer's counters", limit_bytes=SMALL_BYTES, is_versioned=False, sort_keys=False)


@dataclass(frozen=True)
class WriterMetrics:
    """A writer's counters at one moment. ``began_us`` identifies the writer."""

    at_us: int
    began_us: int
    counters: dict[str, int]
    histograms: dict[str, tuple[list[float], list[int], float]] = field(default_factory=dict)

    @classmethod
    def of(cls, counters: LogCounters, began_us: int, at_us: int) -> WriterMetrics:
        numbers = {name: getattr(counters, name) for name in COUNTERS}
        histograms = {}
        for name in HISTOGRAMS:
            histogram: Histogram = getattr(counters, name)
            histograms[name] = (list(histogram.bounds), list(histogram.counts), histogram.sum)
        return cls(at_us, began_us, numbers, histograms)

    def encode(self) -> bytes:
        return _METRICS.encode(asdict(self))

    @classmethod
    def parse(cls, tree: dict[str, Any]) -> WriterMetrics:
        counters = {name: int(tree["counters"][name]) for name in COUNTERS}
        histograms = {}
        for name in HISTOGRAMS:
            bounds, counts, total = tree["histograms"][name]
            if len(counts) != len(bounds) + 1:
                raise ValueError(f"{len(counts)} counts for {len(bounds)} bounds")
            histograms[name] = ([float(bound) for bound in bounds], [int(n) for n in counts], float(total))
        return cls(int(tree["at_us"]), int(tree["began_us"]), counters, histograms)

    def histogram(self, name: str) -> Histogram:
        bounds, counts, total = self.histograms[name]
        histogram = Histogram(bounds)
        histogram.counts, histogram.sum = list(counts), total
        return histogram

    def syncs_since(self, earlier: WriterMetrics) -> Histogram | None:
        """The syncs between two moments of one writer."""
        if earlier.began_us != self.began_us:
            return self.histogram("sync_seconds")
        now, then = self.histogram("sync_seconds"), earlier.histogram("sync_seconds")
        now.counts = [max(after - before, 0) for after, before in zip(now.counts, then.counts, strict=True)]
        now.sum -= then.sum
        return now

    def samples(self, log: str) -> Iterator[Sample]:
        """The samples that the writer itself would report."""
        histograms = {name: self.histogram(name) for name in self.histograms}
        yield from log_samples(log, {**self.counters, **histograms})


def write_writer_metrics(disk: Disk, root: str, published: WriterMetrics) -> None:
    """Publish counters. Never fails an append: a disk that refuses this will soon refuse the records."""
    path = sidecar_path(root, METRICS_NAME)
    try:
        file = disk.open(path) if disk.kind(path) == Kind.FILE else disk.create(path)
        try:
            write_all(file, 0, published.encode().ljust(SIZE_BYTES))
        finally:
            file.close()
    except StorageError:
        pass


def read_writer_metrics(disk: Disk, root: str) -> WriterMetrics | None:
    """The last counters of the log's writer; None if they are missing or cannot be read."""
    try:
        return _METRICS.read_if_sound(disk, sidecar_path(root, METRICS_NAME), WriterMetrics.parse)
    except StorageError:
        return None
