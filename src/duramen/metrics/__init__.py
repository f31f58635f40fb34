"""What Duramen measures about itself: one declared list, plain counters, and ways to show them.

`declared` is the list: name, kind, unit, meaning. `counting` holds what a writer counts as it goes. `rules` are alerts.
`exposition` is Prometheus' text; `otel` hands the same to OpenTelemetry where it is installed. Knows no log and no
file: who has something to count does so, and who wants to look takes a `snapshot`.
"""

from __future__ import annotations

from duramen.metrics.counting import Histogram, LogCounters, ProcessCounters, process, snapshot
from duramen.metrics.declared import METRICS, Kind, Metric, Sample
from duramen.metrics.exposition import exposition
from duramen.metrics.rules import RULES, Rule

__all__ = [
    "METRICS",
    "RULES",
    "Histogram",
    "Kind",
    "LogCounters",
    "Metric",
    "ProcessCounters",
    "Rule",
    "Sample",
    "exposition",
    "process",
    "snapshot",
]
