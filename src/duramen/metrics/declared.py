"""The list of everything that is measured. A metric that is not here does not exist: `Sample` refuses it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any


class Kind(StrEnum):
    COUNTER = "counter"
    """Only grows while a process lives."""
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True)
class Metric:
    """``unit`` is a word for people; the name ends in it as Prometheus wants it. ``labels`` tell samples apart."""

    name: str
    kind: Kind
    unit: str
    meaning: str
    labels: tuple[str, ...] = ("log",)


_C, _G, _H = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM

METRICS: Mapping[str, Metric] = MappingProxyType(
    {
        metric.name: metric
        for metric in (
            # --- what a writer does
            Metric("duramen_appends_total", _C, "calls", "Appends that were acknowledged."),
            Metric("duramen_append_records_total", _C, "records", "Records that were acknowledged."),
            Metric("duramen_append_bytes_total", _C, "bytes", "Bytes of segments that acknowledged records took."),
            Metric("duramen_append_errors_total", _C, "calls", "Commit groups that failed."),
            Metric("duramen_batch_records", _H, "records", "Records per commit group."),
            Metric("duramen_batch_bytes", _H, "bytes", "Bytes per commit group."),
            Metric("duramen_sync_seconds", _H, "seconds", "How long a sync of the active segment took."),
            Metric("duramen_rolls_total", _C, "segments", "Segments that were sealed because a new one was begun."),
            Metric("duramen_poisoned", _G, "1 or 0", "1 after a failed sync: the writer answers nothing any more."),
            # --- opening
            Metric("duramen_recoveries_total", _C, "runs", "Times that a log was opened for append.", ()),
            Metric("duramen_recovery_seconds", _H, "seconds", "How long opening a log for append took.", ()),
            Metric("duramen_recovery_cuts_total", _C, "cuts", "Times that recovery cut something off a log.", ()),
            Metric("duramen_index_rebuilds_total", _C, "files", "Indexes that had to be made anew.", ()),
            Metric("duramen_index_rebuild_seconds", _H, "seconds", "How long making an index anew took.", ()),
            # --- what lies on the disk
            Metric("duramen_readable", _G, "1 or 0", "1 where the log can be opened for reading."),
            Metric("duramen_segments", _G, "segments", "Segments of the log."),
            Metric("duramen_log_bytes", _G, "bytes", "Size of the log: segments and indexes."),
            Metric("duramen_segment_bytes", _H, "bytes", "Sizes of the segments."),
            Metric("duramen_first_offset", _G, "offset", "The first offset of the log."),
            Metric("duramen_next_offset", _G, "offset", "The offset behind the last acknowledged record."),
            Metric("duramen_durable_offset", _G, "offset", "The offset behind the last record on the disk."),
            Metric("duramen_unsynced_records", _G, "records", "Acknowledged records that are not on the disk yet."),
            Metric("duramen_disk_free_ratio", _G, "ratio", "Free part of the file system that the log lies on."),
            # --- readers
            Metric("duramen_cursor_lag_records", _G, "records", "Records behind a cursor.", ("log", "cursor")),
            Metric("duramen_group_lag_records", _G, "records", "Records that a group has not acked.", ("log", "group")),
            Metric(
                "duramen_group_in_flight", _G, "records", "Records that a group has out on lease.", ("log", "group")
            ),
            # --- life
            Metric("duramen_retention_removed_segments_total", _C, "segments", "Segments that retention removed."),
            Metric("duramen_retention_removed_bytes_total", _C, "bytes", "Bytes that retention removed."),
            Metric("duramen_compaction_removed_records_total", _C, "records", "Records that compaction removed."),
            Metric("duramen_corrupt_findings_total", _C, "findings", "Damage that a check of this process found.", ()),
            # --- the process
            Metric("duramen_open_handles", _G, "handles", "File descriptors that the process has open.", ()),
            Metric("duramen_page_faults_total", _C, "faults", "Page faults that read from the disk.", ()),
            Metric("duramen_minor_page_faults_total", _C, "faults", "Page faults that the page cache served.", ()),
            Metric("duramen_resident_bytes", _G, "bytes", "Memory of the process that is resident.", ()),
        )
    }
)


@dataclass(frozen=True)
class Sample:
    """One measured value. A histogram's value is a `Histogram`."""

    name: str
    value: Any
    labels: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        metric = METRICS.get(self.name)
        if metric is None:
            raise ValueError(f"{self.name} is not a declared metric")
        if tuple(label for label, _ in self.labels) != metric.labels:
            raise ValueError(f"{self.name} has the labels {metric.labels}, not {self.labels}")
