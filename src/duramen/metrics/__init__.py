"""Metrics of duramen: a declared list, counters, and exports.

- `METRICS` declares every metric: name, kind, unit, meaning. An undeclared one cannot be sampled.
- `LogCounters` holds the numbers of one writer, `process` those of the process. The engine increments them.
- `snapshot` reads all of them as `Sample` objects.

`exposition` prints samples as Prometheus text, `otel` exports them to OpenTelemetry, `RULES` are alert rules. The
package knows neither logs nor files, and starts no thread or server.
"""

from __future__ import annotations

from duramen.metrics.counting import (
    BYTES,
    LOG_METRICS,
    PROCESS_METRICS,
    Histogram,
    LogCounters,
    ProcessCounters,
    log_samples,
    process,
    snapshot,
)
from duramen.metrics.declared import METRICS, Metric, MetricKind, Sample
from duramen.metrics.exposition import CONTENT_TYPE, exposition
from duramen.metrics.rules import RULES, Rule, prometheus_rules
