"""The requests of the page: each a function from the query to a tree for JSON, with a bounded result.

A log is named as `discovery` lists it; a name is never used as a path. An invalid query raises `UsageError`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from duramen import metrics
from duramen.errors import CorruptionError, StorageError, UsageError
from duramen.record import MAX_OFFSET
from duramen.watch import browser, overview
from duramen.watch.observer import Observation, as_json
from duramen.watch.watcher import Watch

MAX_CELLS = 600
MAX_TAILS = 32
TAIL_WAIT_S = 20.0
_TAILS = threading.BoundedSemaphore(MAX_TAILS)

Query = dict[str, str]


def exposition(watch: Watch, names: Sequence[str]) -> str:
    """The text for Prometheus: of the logs that are named, else of all; and of this process."""
    wanted = names or [place.name for place in watch.places.all()]
    own = [sample for sample in metrics.snapshot() if "log" not in dict(sample.labels)]
    return metrics.exposition([*watch.samples(wanted), *own])


def _logs(watch: Watch, query: Query) -> dict[str, Any]:
    return overview.rows(watch, query.get("q", ""), _number(query, "skip", 0))


def _log(watch: Watch, query: Query) -> dict[str, Any]:
    observer = watch.observer(query.get("log", ""))
    history = observer.seen()
    state = overview.state_of(watch, observer.place)
    title = overview.title_of(observer.place.name)
    tree: dict[str, Any] = {
        "name": observer.place.name,
        "title": title,
        "partitions": [
            place.name for place in watch.places.all() if overview.title_of(place.name) == title
        ][: overview.PARTITIONS],
        "now": as_json(history[-1]),
        "rates": observer.rates()._asdict(),
        "health": state.health,
        "reasons": state.reasons,
        "verified_at": state.verified_at,
    }  # fmt: skip
    if "history" in query:
        good = [seen for seen in history if seen.problem is None]
        tree["history"] = [[seen.at, seen.next_offset, seen.size_bytes, _lag(seen)] for seen in good]
        points = watch.history.read(observer.place.path).points
        tree["day"] = [[at, end, size, max(lags.values(), default=0)] for at, end, size, lags in points]
    return tree


def _lag(seen: Observation) -> int:
    return max((one.lag or 0 for one in seen.standings), default=0)


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
    with _noticing(watch, query):
        found = browser.records(watch.observer(query.get("log", "")).log(), query, _number(query, "count", 50))
    if found["problem"] is not None:
        watch.damage[query["log"]] = found["problem"]
    return found


def _tail(watch: Watch, query: Query) -> dict[str, Any]:
    """Wait for records from ``after`` on; without it, return the latest at once."""
    if not _TAILS.acquire(blocking=False):
        raise StorageError(f"{MAX_TAILS} live views are open", hint="close one of them")
    try:
        log = watch.observer(query.get("log", "")).log()
        after = _number(query, "after", 0)
        until = time.monotonic() + TAIL_WAIT_S if after else 0.0
        seen: object = None
        while log.next_offset <= after and time.monotonic() < until and not watch.stopping.is_set():
            seen = log.wait(1.0, seen)
        return browser.tail(log, query, after, _number(query, "count", 50))
    finally:
        _TAILS.release()


def _record(watch: Watch, query: Query) -> dict[str, Any]:
    with _noticing(watch, query):
        return browser.one(
            watch.observer(query.get("log", "")).log(), _number(query, "offset", 0), query.get("decode", "auto")
        )


def value(watch: Watch, query: Query) -> bytes:
    """The value of one record, for a download."""
    with _noticing(watch, query):
        return browser.value_of(watch.observer(query.get("log", "")).log(), _number(query, "offset", 0))


@contextmanager
def _noticing(watch: Watch, query: Query) -> Iterator[None]:
    """Remember damage that a reader meets, so that the overview shows it."""
    try:
        yield
    except CorruptionError as error:
        watch.damage[query["log"]] = str(error)
        raise


def _consumers(watch: Watch, query: Query) -> dict[str, Any]:
    return overview.consumers(watch, query.get("log", ""))


def _check(watch: Watch, query: Query) -> dict[str, Any]:
    check = watch.check(query.get("log", ""), start="start" in query)
    return {"check": None if check is None else check.as_json()}


ACTIONS: dict[str, Callable[[Watch, Query], dict[str, Any]]] = {
    "/api/logs": _logs,
    "/api/log": _log,
    "/api/segments": _segments,
    "/api/records": _records,
    "/api/record": _record,
    "/api/tail": _tail,
    "/api/consumers": _consumers,
    "/api/check": _check,
}


def _number(query: Query, name: str, default: int) -> int:
    text = query.get(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 19) or int(text) > MAX_OFFSET:
        raise UsageError(f"{name} must be a number from 0 to {MAX_OFFSET} (got {text!r})")
    return int(text)
