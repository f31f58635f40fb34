"""What a writer measured about itself, left in the sidecar for whoever watches: ``.duramen/metrics.json``.

Written about once a second while there are appends, without a sync: it is worth nothing after a crash. Readers take
what they can read; a file that is half written is no measurement.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field

from duramen.disk import Disk
from duramen.disk.base import Kind, write_all
from duramen.errors import StorageError
from duramen.log.sidecar import DIRECTORY
from duramen.metrics import Histogram, LogCounters, Sample
from duramen.metrics.counting import log_samples

NAME = "metrics.json"
SIZE_BYTES = 8192
"""The file always has this size: one that shrank while somebody has it mapped would end that process."""
COUNTERS = (
    "appends", "records", "bytes", "errors", "rolls", "poisoned",
    "retention_segments", "retention_bytes", "compaction_records",
)  # fmt: skip
HISTOGRAMS = ("batch_records", "batch_bytes", "sync_seconds")


@dataclass(frozen=True)
class Published:
    """A writer's counters at one moment. ``began_us`` tells one writer from the next."""

    at_us: int
    began_us: int
    counters: dict[str, int]
    histograms: dict[str, tuple[list[float], list[int], float]] = field(default_factory=dict)

    @classmethod
    def of(cls, counters: LogCounters, began_us: int, at_us: int) -> Published:
        numbers = {name: getattr(counters, name) for name in COUNTERS}
        histograms = {}
        for name in HISTOGRAMS:
            histogram: Histogram = getattr(counters, name)
            histograms[name] = (list(histogram.bounds), list(histogram.counts), histogram.sum)
        return cls(at_us, began_us, numbers, histograms)

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def decode(cls, raw: bytes) -> Published | None:
        """None where the bytes are not a whole measurement."""
        try:
            tree = json.loads(raw)
            counters = {name: int(tree["counters"][name]) for name in COUNTERS}
            histograms = {}
            for name in HISTOGRAMS:
                bounds, counts, total = tree["histograms"][name]
                if len(counts) != len(bounds) + 1:
                    return None
                histograms[name] = ([float(bound) for bound in bounds], [int(n) for n in counts], float(total))
            return cls(int(tree["at_us"]), int(tree["began_us"]), counters, histograms)
        except (ValueError, KeyError, TypeError):
            return None

    def histogram(self, name: str) -> Histogram:
        bounds, counts, total = self.histograms[name]
        histogram = Histogram(bounds)
        histogram.counts, histogram.sum = list(counts), total
        return histogram

    def syncs_since(self, earlier: Published) -> Histogram | None:
        """The syncs between two moments of one writer."""
        if earlier.began_us != self.began_us:
            return self.histogram("sync_seconds")
        now, then = self.histogram("sync_seconds"), earlier.histogram("sync_seconds")
        now.counts = [max(after - before, 0) for after, before in zip(now.counts, then.counts, strict=True)]
        now.sum -= then.sum
        return now

    def samples(self, log: str) -> Iterator[Sample]:
        """As if the writer were asked itself."""
        histograms = {name: self.histogram(name) for name in self.histograms}
        yield from log_samples(log, {**self.counters, **histograms})


def publish(disk: Disk, root: str, published: Published) -> None:
    """Leave a measurement. Never fails an append: a disk that refuses this will refuse the records soon enough."""
    path = posixpath.join(root, DIRECTORY, NAME)
    try:
        file = disk.open(path) if disk.kind(path) == Kind.FILE else disk.create(path)
        try:
            write_all(file, 0, published.encode().ljust(SIZE_BYTES))
        finally:
            file.close()
    except StorageError:
        pass


def read_published(disk: Disk, root: str) -> Published | None:
    """The last measurement of the log's writer, if one can be read."""
    path = posixpath.join(root, DIRECTORY, NAME)
    if disk.kind(path) != Kind.FILE:
        return None
    try:
        return Published.decode(bytes(disk.map(path).data))
    except StorageError:
        return None
