"""Export to OpenTelemetry: observable instruments that read a snapshot on collection.

Needs the optional ``opentelemetry-api``. A histogram becomes two counters, its count and its sum, because OpenTelemetry
has no observable histogram.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from duramen.errors import UsageError
from duramen.metrics.counting import Histogram, snapshot
from duramen.metrics.declared import METRICS, MetricKind, Sample


def register(meter: Any, read: Callable[[], Iterable[Sample]] = snapshot) -> None:
    """Create an instrument for every metric with ``meter``, the result of ``opentelemetry.metrics.get_meter``."""
    try:
        from opentelemetry.metrics import Observation
    except ImportError as error:
        raise UsageError("opentelemetry-api is not installed", hint="pip install opentelemetry-api") from error

    def observe(name: str, value_of: Callable[[Any], float]) -> Callable[[Any], list[Any]]:
        def callback(options: Any) -> list[Any]:
            found = (sample for sample in read() if sample.name == name)
            return [Observation(value_of(sample.value), dict(sample.labels)) for sample in found]

        return callback

    for name, metric in METRICS.items():
        if metric.kind == MetricKind.HISTOGRAM:
            for suffix, value_of in (("_count", _count), ("_sum", _sum)):
                callbacks = [observe(name, value_of)]
                meter.create_observable_counter(name + suffix, callbacks, metric.unit, metric.meaning)
        elif metric.kind == MetricKind.COUNTER:
            meter.create_observable_counter(name, [observe(name, float)], metric.unit, metric.meaning)
        else:
            meter.create_observable_gauge(name, [observe(name, float)], metric.unit, metric.meaning)


def _count(histogram: Histogram) -> float:
    return histogram.count


def _sum(histogram: Histogram) -> float:
    return histogram.sum
