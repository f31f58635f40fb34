"""What processes publish about a log, for processes that watch it: the counters of its writers in
``.duramen/metrics.json``, and the result of its last check in ``.duramen/verified.json``. Readers that decode values
keep in ``.duramen/schemas`` what a registry gave them.

The writer replaces its counters about once a second while it appends, without a sync: a crash may lose them. They go on
from those of the writer before it. A reader ignores a file that it cannot parse, because the writer may be half-way
through.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from duramen.disk import Disk, Kind, open_private, write_all
from duramen.errors import DuramenError, StorageError
from duramen.metrics import (
    LOG_METRICS,
    METRICS,
    PROCESS_METRICS,
    Histogram,
    LogCounters,
    MetricKind,
    Sample,
    log_samples,
)
from duramen.sidecar.json_file import SMALL_BYTES, JsonFile
from duramen.sidecar.layout import METRICS_NAME, SCHEMAS_NAME, VERIFIED_NAME, sidecar_path

SIZE_BYTES = 8192
"""The file always has this size: a file that shrinks while a process has it mapped would kill that process."""
SEVERITIES = ("damage", "warning", "note")
_METRICS = JsonFile("the writer's counters", limit_bytes=SMALL_BYTES, is_versioned=False, sort_keys=False)
_VERIFIED = JsonFile("the result of the last check", limit_bytes=SMALL_BYTES)
_SCHEMA = JsonFile("the schema", separator=b" ")


def _named(*kinds: MetricKind) -> tuple[str, ...]:
    return tuple(name for name, metric in (LOG_METRICS | PROCESS_METRICS).items() if METRICS[metric].kind in kinds)


COUNTERS = _named(MetricKind.COUNTER, MetricKind.GAUGE)
GAUGES = _named(MetricKind.GAUGE)
HISTOGRAMS = _named(MetricKind.HISTOGRAM)


@dataclass(frozen=True)
class WriterMetrics:
    """The counters of a log's writers at one moment. ``began_us`` is when the last of them opened it."""

    at_us: int
    began_us: int
    counters: dict[str, int]
    histograms: dict[str, tuple[list[float], list[int], float]] = field(default_factory=dict)

    @classmethod
    def of(
        cls, counters: LogCounters, began_us: int, at_us: int, earlier: WriterMetrics | None = None
    ) -> WriterMetrics:
        """The counters of a writer, added to those that ``earlier`` writers left."""
        values = counters.published()
        histograms = {name: values[name] for name in HISTOGRAMS}
        numbers = {name: values[name] for name in COUNTERS}
        if earlier is not None:
            for name, histogram in histograms.items():
                histogram.add(earlier.histogram(name))
            numbers |= {name: numbers[name] + earlier.counters[name] for name in COUNTERS if name not in GAUGES}
        return cls(
            at_us, began_us, numbers, {name: (list(h.bounds), h.counts, h.sum) for name, h in histograms.items()}
        )

    def encode(self) -> bytes:
        return _METRICS.encode(vars(self))

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

    def syncs_since(self, earlier: WriterMetrics) -> Histogram:
        """The syncs between two moments."""
        now, then = self.histogram("sync_seconds"), earlier.histogram("sync_seconds")
        if now.bounds == then.bounds:
            now.counts = [max(after - before, 0) for after, before in zip(now.counts, then.counts, strict=True)]
            now.sum -= then.sum
        return now

    def samples(self, log: str) -> Iterator[Sample]:
        """The samples that the writer itself would report."""
        yield from log_samples(log, {**self.counters, **{name: self.histogram(name) for name in self.histograms}})


def write_writer_metrics(disk: Disk, root: str, published: WriterMetrics) -> None:
    """Publish counters. Never fails an append: a disk that refuses this will soon refuse the records."""
    path = sidecar_path(root, METRICS_NAME)
    try:
        file = open_private(disk, path) if disk.kind(path) == Kind.FILE else disk.create(path)
        try:
            write_all(file, 0, published.encode().ljust(SIZE_BYTES))
        finally:
            file.close()
    except StorageError:
        pass


def read_writer_metrics(disk: Disk, root: str) -> WriterMetrics | None:
    """The last counters of the log's writers; None if they are missing or cannot be read."""
    try:
        return _METRICS.read_if_sound(disk, sidecar_path(root, METRICS_NAME), WriterMetrics.parse)
    except StorageError:
        return None


@dataclass(frozen=True)
class Verification:
    """The result of a check. ``findings`` counts them by severity; ``problem`` says why the check did not finish."""

    at_us: int
    seconds: float
    records: int = 0
    size_bytes: int = 0
    findings: dict[str, int] = field(default_factory=dict)
    problem: str = ""

    @property
    def is_ok(self) -> bool:
        return not self.problem and not self.findings.get("damage")

    @classmethod
    def parse(cls, tree: dict[str, Any]) -> Verification:
        findings = {severity: int(tree["findings"].get(severity, 0)) for severity in SEVERITIES}
        numbers = int(tree["records"]), int(tree["size_bytes"])
        return cls(int(tree["at_us"]), float(tree["seconds"]), *numbers, findings, str(tree["problem"]))

    def samples(self, log: str) -> Iterator[Sample]:
        labels = (("log", log),)
        yield Sample("duramen_verify_ok", int(self.is_ok), labels)
        yield Sample("duramen_verify_timestamp_seconds", self.at_us / 1e6, labels)
        yield Sample("duramen_verify_seconds", self.seconds, labels)
        yield Sample("duramen_verify_records", self.records, labels)
        for severity in SEVERITIES:
            yield Sample("duramen_verify_findings", self.findings.get(severity, 0), (*labels, ("severity", severity)))


def write_verification(disk: Disk, root: str, found: Verification) -> None:
    """Publish the result of a check where the log has a sidecar that this process may write to. Elsewhere a check
    leaves no trace."""
    with contextlib.suppress(DuramenError):
        if disk.kind(sidecar_path(root)) == Kind.DIRECTORY:
            _VERIFIED.replace(disk, sidecar_path(root, VERIFIED_NAME), asdict(found))


def read_verification(disk: Disk, root: str) -> Verification | None:
    """The result of the last check that was published; None if it is missing or cannot be read."""
    try:
        return _VERIFIED.read_if_sound(disk, sidecar_path(root, VERIFIED_NAME), Verification.parse)
    except StorageError:
        return None


class StoredSchema(NamedTuple):
    """A schema of values as a registry gave it, with the texts of those that it refers to."""

    kind: str
    text: str
    imported: tuple[str, ...] = ()

    @classmethod
    def parse(cls, tree: dict[str, Any]) -> StoredSchema:
        return cls(str(tree["kind"]), str(tree["text"]), tuple(map(str, tree["imported"])))


def _schema_path(root: str, registry: str, number: int) -> str:
    """A file for each schema of each registry, whose address may hold a password."""
    return sidecar_path(root, f"{SCHEMAS_NAME}/{hashlib.sha256(registry.encode()).hexdigest()[:16]}-{number}.json")


def write_schema(disk: Disk, root: str, registry: str, number: int, schema: StoredSchema) -> None:
    """Keep a schema where the log has a sidecar that this process may write to."""
    with contextlib.suppress(DuramenError):
        within = disk.within(root)
        if within.kind(sidecar_path(root)) == Kind.DIRECTORY:
            if within.kind(sidecar_path(root, SCHEMAS_NAME)) == Kind.MISSING:
                within.make_directory(sidecar_path(root, SCHEMAS_NAME))
            _SCHEMA.replace(within, _schema_path(root, registry, number), schema._asdict())


def read_schema(disk: Disk, root: str, registry: str, number: int) -> StoredSchema | None:
    """A schema that was kept; None if it is missing or cannot be read."""
    with contextlib.suppress(StorageError):
        return _SCHEMA.read_if_sound(disk.within(root), _schema_path(root, registry, number), StoredSchema.parse)
    return None
