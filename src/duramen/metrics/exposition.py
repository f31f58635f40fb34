"""Samples in Prometheus' text format, version 0.0.4."""

from __future__ import annotations

from collections.abc import Iterable

from duramen.metrics.counting import Histogram
from duramen.metrics.declared import METRICS, Sample

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def exposition(samples: Iterable[Sample]) -> str:
    """One block per metric, in the order of `METRICS`.

    >>> print(exposition([Sample("duramen_segments", 3, (("log", "a\\\\nb"),))]), end="")
    # HELP duramen_segments Segments of the log. (segments)
    # TYPE duramen_segments gauge
    duramen_segments{log="a\\\\nb"} 3
    """
    found: dict[str, list[Sample]] = {}
    for sample in samples:
        found.setdefault(sample.name, []).append(sample)
    lines = []
    for name, metric in METRICS.items():
        if name not in found:
            continue
        lines.append(f"# HELP {name} {_help(metric.meaning)} ({metric.unit})")
        lines.append(f"# TYPE {name} {metric.kind}")
        for sample in found[name]:
            lines += _lines(sample)
    return "".join(f"{line}\n" for line in lines)


def _lines(sample: Sample) -> list[str]:
    if not isinstance(sample.value, Histogram):
        return [f"{sample.name}{_labels(sample.labels)} {_number(sample.value)}"]
    histogram = sample.value
    lines = []
    for bound, count in zip((*histogram.bounds, float("inf")), histogram.cumulative(), strict=True):
        lines.append(f"{sample.name}_bucket{_labels((*sample.labels, ('le', _number(bound))))} {count}")
    lines.append(f"{sample.name}_sum{_labels(sample.labels)} {_number(histogram.sum)}")
    lines.append(f"{sample.name}_count{_labels(sample.labels)} {histogram.count}")
    return lines


def _labels(labels: tuple[tuple[str, str], ...]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _number(value: float) -> str:
    if value == float("inf"):
        return "+Inf"
    return str(int(value)) if float(value).is_integer() and abs(value) < 2**63 else repr(float(value))
