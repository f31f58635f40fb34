"""The list of all metrics. `Sample` rejects any other name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any


class MetricKind(StrEnum):
    COUNTER = "counter"
    """Never decreases during the life of a process."""
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True)
class Metric:
    """Declaration of a metric. ``labels`` distinguish its samples; one ``of_process`` also has a sample without labels,
    for the process itself."""

    name: str
    kind: MetricKind
    unit: str
    meaning: str
    labels: tuple[str, ...] = ("log",)
    of_process: bool = False


_C, _G, _H = MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.HISTOGRAM

_QUERY = ("query", "log")

METRICS: Mapping[str, Metric] = MappingProxyType(
    {
        metric.name: metric
        for metric in (
            # --- what a writer does
            Metric("duramen_appends_total", _C, "calls", "Acknowledged appends."),
            Metric("duramen_append_records_total", _C, "records", "Acknowledged records."),
            Metric("duramen_append_bytes_total", _C, "bytes", "Bytes of acknowledged records in segments."),
            Metric("duramen_append_seconds", _H, "seconds", "Duration of an append, with its wait in the queue."),
            Metric("duramen_append_errors_total", _C, "calls", "Failed commit groups."),
            Metric("duramen_batch_records", _H, "records", "Records per commit group."),
            Metric("duramen_batch_bytes", _H, "bytes", "Bytes per commit group."),
            Metric("duramen_sync_seconds", _H, "seconds", "Duration of a sync of the active segment."),
            Metric("duramen_rolls_total", _C, "segments", "Segments sealed because a new one started."),
            Metric("duramen_poisoned", _G, "1 or 0", "1 after a failed sync: the writer acknowledges nothing."),
            # --- opening
            Metric("duramen_recoveries_total", _C, "runs", "Logs opened for append.", of_process=True),
            Metric("duramen_recovery_seconds", _H, "seconds", "Duration of opening a log for append.", ()),
            Metric("duramen_recovery_cuts_total", _C, "cuts", "Cuts made by recovery.", of_process=True),
            Metric("duramen_index_rebuilds_total", _C, "files", "Rebuilt indexes.", of_process=True),
            Metric("duramen_index_rebuild_seconds", _H, "seconds", "Duration of rebuilding an index.", ()),
            # --- files
            Metric("duramen_readable", _G, "1 or 0", "1 if the log can be opened for reading."),
            Metric("duramen_segments", _G, "segments", "Segments of the log."),
            Metric("duramen_log_bytes", _G, "bytes", "Size of the log: segments and indexes."),
            Metric("duramen_segment_bytes", _H, "bytes", "Sizes of the segments."),
            Metric("duramen_first_offset", _G, "offset", "First offset of the log."),
            Metric("duramen_next_offset", _G, "offset", "Offset after the last acknowledged record."),
            Metric("duramen_durable_offset", _G, "offset", "Offset after the last durable record."),
            Metric("duramen_unsynced_records", _G, "records", "Acknowledged records that are not durable yet."),
            Metric("duramen_disk_free_ratio", _G, "ratio", "Free part of the log's file system."),
            # --- readers
            Metric("duramen_cursor_lag_records", _G, "records", "Records after a cursor.", ("log", "cursor")),
            Metric(
                "duramen_group_lag_records", _G, "records", "Records a group has not acknowledged.", ("log", "group")
            ),
            Metric("duramen_group_in_flight", _G, "records", "Records leased by a group.", ("log", "group")),
            # --- queries of Spark, by duramen.spark.LagListener
            Metric("duramen_spark_lag_records", _G, "records", "Records that a query has not read.", _QUERY),
            Metric("duramen_spark_lag_bytes", _G, "bytes", "Bytes that a query has not read.", _QUERY),
            Metric(
                "duramen_spark_oldest_timestamp_seconds", _G, "Unix time", "Time of the oldest record not read.", _QUERY
            ),
            # --- life
            Metric("duramen_retention_removed_segments_total", _C, "segments", "Segments removed by retention."),
            Metric("duramen_retention_removed_bytes_total", _C, "bytes", "Bytes removed by retention."),
            Metric("duramen_compaction_removed_records_total", _C, "records", "Records removed by compaction."),
            Metric("duramen_corrupt_findings_total", _C, "findings", "Damage found by checks of this process.", ()),
            Metric("duramen_verify_ok", _G, "1 or 0", "1 if the last check found no damage."),
            Metric("duramen_verify_timestamp_seconds", _G, "Unix time", "End of the last check."),
            Metric("duramen_verify_seconds", _G, "seconds", "Duration of the last check."),
            Metric("duramen_verify_records", _G, "records", "Valid records that the last check read."),
            Metric(
                "duramen_verify_findings", _G, "findings", "What the last check found, by severity.",
                ("log", "severity"),
            ),
            # --- the process; with a label: the process that writes the log
            Metric("duramen_open_handles", _G, "handles", "Open file descriptors of the process.", ()),
            Metric("duramen_page_faults_total", _C, "faults", "Page faults that read from disk.", of_process=True),
            Metric(
                "duramen_minor_page_faults_total", _C, "faults", "Page faults served by the page cache.",
                of_process=True,
            ),
            Metric("duramen_mapped_bytes", _G, "bytes", "Bytes of files mapped into memory.", of_process=True),
            Metric("duramen_resident_bytes", _G, "bytes", "Resident memory of the process.", ()),
        )
    }
)  # fmt: skip


@dataclass(frozen=True)
class Sample:
    """One measured value; a `Histogram` for histograms."""

    name: str
    value: Any
    labels: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        metric = METRICS.get(self.name)
        if metric is None:
            raise ValueError(f"{self.name} is not a declared metric")
        names = tuple(label for label, _ in self.labels)
        if names != metric.labels and not (metric.of_process and not names):
            raise ValueError(f"{self.name} has the labels {metric.labels}, not {self.labels}")
