"""The requests of the page: each a function from the query to a tree for JSON, with a bounded result.

A log is named as `discovery` lists it; a name is never used as a path. An invalid query raises `UsageError`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from duramen import metrics
from duramen.errors import UsageError
from duramen.record import MAX_OFFSET
from duramen.watch import browser
from duramen.watch.observer import as_json
from duramen.watch.watcher import Watch

LOGS_PER_PAGE = 50
MAX_CELLS = 600

Query = dict[str, str]


def exposition(watch: Watch, names: Sequence[str]) -> str:
    """The text for Prometheus: of the logs that are named, else of all; and of this process."""
    wanted = names or [place.name for place in watch.places.all()]
    own = [sample for sample in metrics.snapshot() if "log" not in dict(sample.labels)]
    return metrics.exposition([*watch.samples(wanted), *own])


def _logs(watch: Watch, query: Query) -> dict[str, Any]:
    total, places = watch.places.page(query.get("q", ""), _number(query, "skip", 0), LOGS_PER_PAGE)
    return {"total": total, "per_page": LOGS_PER_PAGE, "logs": [place.name for place in places]}


def _log(watch: Watch, query: Query) -> dict[str, Any]:
    observer = watch.observer(query.get("log", ""))
    history = observer.seen()
    return {
        "name": observer.place.name,
        "now": as_json(history[-1]),
        "rates": observer.rates()._asdict(),
        "history": [[seen.at, seen.next_offset, seen.size_bytes] for seen in history if seen.problem is None],
        "lag_history": [[seen.at, max((one.lag or 0 for one in seen.standings), default=0)] for seen in history],
    }


def _segments(watch: Watch, query: Query) -> dict[str, Any]:
    observer = watch.observer(query.get("log", ""))
    log = observer.log()
    segments = log.segments
    if "skip" not in query:
        cells = browser.segment_cells(log, MAX_CELLS, observer.first_times)
        return {"total": len(segments), "cells": cells}
    skip, count = _number(query, "skip", 0), min(_number(query, "count", 100), MAX_CELLS)
    bases = [segment.base_offset for segment in segments] + [log.next_offset]
    rows = [
        {**segment._asdict(), "next_offset": bases[skip + number + 1]}
        for number, segment in enumerate(segments[skip : skip + count])
    ]
    return {"total": len(segments), "segments": rows}


def _records(watch: Watch, query: Query) -> dict[str, Any]:
    log = watch.observer(query.get("log", "")).log()
    if query.get("q"):
        return browser.search(log, query["q"], query.get("at", ""), _number(query, "count", 50))
    return browser.page(log, query.get("at", ""), _number(query, "count", 50))


def _record(watch: Watch, query: Query) -> dict[str, Any]:
    return browser.one(watch.observer(query.get("log", "")).log(), _number(query, "offset", 0))


def _check(watch: Watch, query: Query) -> dict[str, Any]:
    check = watch.check(query.get("log", ""), start="start" in query)
    return {"check": None if check is None else check.as_json()}


ACTIONS: dict[str, Callable[[Watch, Query], dict[str, Any]]] = {
    "/api/logs": _logs,
    "/api/log": _log,
    "/api/segments": _segments,
    "/api/records": _records,
    "/api/record": _record,
    "/api/check": _check,
}


def _number(query: Query, name: str, default: int) -> int:
    text = query.get(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 19) or int(text) > MAX_OFFSET:
        raise UsageError(f"{name} must be a number from 0 to {MAX_OFFSET} (got {text!r})")
    return int(text)
