"""Spark: logs as a data source and a sink (``format("duramen")``), and the jobs of the pipeline.

- `source` reads: discovery of logs, splits along their indexes, one task per split, batch and streaming.
- `sink` writes: tasks stage files, the driver commits them in one transaction per batch, exactly once.
- `jobs` verify, convert, compact, export, replay and profile whole stores with Spark.
- `query` reads a log with a condition, and registers a view of one.
- `local_session` builds a `SparkSession` with the settings that the source needs; `progress` watches a running job.
- `planner` is Python's part of a read that the engine in the JVM executes; `engine_jar` finds that engine.
- `lag_listener` exports the lag of streaming queries to Prometheus.

The only package that imports pyspark. Its names are imported on first use, so that ``import duramen.spark`` works
where pyspark is missing. It refuses to do in a task what a single process has to decide: only the commit on the driver
opens a log for append.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from duramen.spark.engine_jar import jar
    from duramen.spark.lag_listener import LagListener
    from duramen.spark.local_session import SparkSession, check_installed, configure, find_java, pairs, session
    from duramen.spark.progress import Standing, Watcher, watched
    from duramen.spark.query import read, register
    from duramen.spark.source import DuramenSource, count, lag, parse_options, scan

__all__ = [
    "DuramenSource",
    "LagListener",
    "SparkSession",
    "Standing",
    "Watcher",
    "check_installed",
    "configure",
    "count",
    "find_java",
    "jar",
    "lag",
    "pairs",
    "parse_options",
    "read",
    "register",
    "scan",
    "session",
    "watched",
]

_MODULES = {
    "DuramenSource": "source",
    "LagListener": "lag_listener",
    "Standing": "progress",
    "Watcher": "progress",
    "check_installed": "local_session",
    "configure": "local_session",
    "count": "source",
    "find_java": "local_session",
    "jar": "engine_jar",
    "lag": "source",
    "pairs": "local_session",
    "parse_options": "source",
    "read": "query",
    "register": "query",
    "scan": "source",
    "session": "local_session",
    "watched": "progress",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(f"duramen.spark.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'duramen.spark' has no attribute {name!r}")
