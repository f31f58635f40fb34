"""Spark: the log as a data source (``format("duramen")``), a sink, and the jobs of the pipeline.

The only part that imports pyspark, and only what is used of it. The source: `options` reads its options, `places` finds
the logs, `planning` and `splits` divide them among tasks, `reading` is what a task does, `schema` names the columns,
`stream` follows, `scanning` takes the faster way, `failing` keeps errors short, and `source` is what Spark meets.
"""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["lag", "scan"]

_FROM = {"scan": "duramen.spark.scanning", "lag": "duramen.spark.stream"}


def __getattr__(name: str) -> Any:
    if name in _FROM:
        return getattr(importlib.import_module(_FROM[name]), name)
    raise AttributeError(f"module 'duramen.spark' has no attribute {name!r}")
