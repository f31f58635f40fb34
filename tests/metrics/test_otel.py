"""The declared metrics through the real OpenTelemetry."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import duramen
from duramen.errors import UsageError
from duramen.metrics import METRICS, MetricKind
from duramen.metrics.otel import register


def test_every_metric_is_an_instrument(tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.sdk.metrics")
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    register(provider.get_meter("duramen"))
    with duramen.open(tmp_path / "log", "a", format="durable-log") as log:
        log.append_batch([b"a", b"b"])
        log.append(b"c")
        data = reader.get_metrics_data()
    provider.shutdown()
    found = {
        metric.name: metric
        for group in data.resource_metrics
        for scope in group.scope_metrics
        for metric in scope.metrics
    }
    mine = {
        name: point.value
        for name, metric in found.items()
        for point in metric.data.data_points
        if point.attributes.get("log") == str(tmp_path / "log")
    }
    assert mine["duramen_append_records_total"] == 3
    assert mine["duramen_appends_total"] == 2
    assert (mine["duramen_batch_records_count"], mine["duramen_batch_records_sum"]) == (2, 3)
    assert mine["duramen_poisoned"] == 0
    assert found["duramen_append_bytes_total"].unit == "bytes"
    known = {name for name, metric in METRICS.items() if metric.kind != MetricKind.HISTOGRAM}
    known |= {
        name + end
        for name, metric in METRICS.items()
        if metric.kind == MetricKind.HISTOGRAM
        for end in ("_count", "_sum")
    }
    assert set(found) <= known


def test_without_it_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.metrics", None)
    with pytest.raises(UsageError, match="pip install opentelemetry-api"):
        register(object())
