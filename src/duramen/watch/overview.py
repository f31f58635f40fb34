"""The overview: one row per log or topic with its size, rate, lag and health; and the consumers of a log or topic.

A topic is the set of logs named ``ROOT#topic/partition``. The list of rows never waits for a log: a row whose logs were
not observed yet has no numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from itertools import groupby
from typing import Any, NamedTuple

from duramen.consumers import ConsumerLag, group_members
from duramen.watch.discovery import WatchedPath
from duramen.watch.history import LastCheck, history_key
from duramen.watch.observer import Observation
from duramen.watch.watcher import Check, Watch

ROWS = 50
LOGS = 500
"""Logs observed for one page of rows; of a topic with more partitions, some are not counted."""
PARTITIONS = 64
CONSUMERS = 200
CHARTED = 20
MEMBERS = 100
POINTS = 200
LOW_SPACE = 0.1
Series = list[tuple[float, int]]


class Health(StrEnum):
    """Worst first."""

    UNREADABLE = "unreadable"
    DAMAGED = "damaged"
    WARNING = "warning"
    GOOD = "good"
    UNKNOWN = "unknown"


_ORDER = {health: number for number, health in enumerate(Health)}


class LogState(NamedTuple):
    """What is known about one log."""

    health: Health
    reasons: list[str]
    seen: Observation | None
    rate: float
    verified_at: int | None
    checking: float | None


def title_of(name: str) -> str:
    """The row that a log belongs to.

    >>> title_of("/data/shop#orders/3"), title_of("/data/orders")
    ('/data/shop#orders', '/data/orders')
    """
    root, hash_sign, rest = name.rpartition("#")
    return f"{root}#{rest.rpartition('/')[0]}" if hash_sign and "/" in rest else name


def rows(watch: Watch, query: str, skip: int) -> dict[str, Any]:
    """Some rows, those with known problems first, and how many rows have problems."""
    places = [place for place in watch.places.all() if query.lower() in place.name.lower()]
    topics = [(title, list(logs)) for title, logs in groupby(places, key=lambda place: title_of(place.name))]
    wrong = {title for title, logs in topics if any(place.name in watch.noticed for place in logs)}
    topics.sort(key=lambda topic: topic[0] not in wrong)
    page = topics[skip : skip + ROWS]
    most = max(LOGS // max(len(page), 1), 1)
    return {
        "total": len(topics),
        "per_page": ROWS,
        "troubled": len(wrong),
        "history_problem": watch.history.problem,
        "rows": [_row(watch, title, logs, most) for title, logs in page],
    }


def _row(watch: Watch, title: str, logs: Sequence[WatchedPath], most: int) -> dict[str, Any]:
    states = [state_of(watch, place) for place in logs[:most]]
    seen = [state.seen for state in states if state.seen is not None]
    good = [each for each in seen if each.problem is None]
    verified = [state.verified_at for state in states]
    checking = [state.checking for state in states if state.checking is not None]
    return {
        "name": title,
        "logs": [place.name for place in logs[:most]],
        "partitions": len(logs),
        "is_topic": title != logs[0].name,
        "is_loading": len(seen) < len(states),
        "health": min((state.health for state in states), key=_ORDER.__getitem__),
        "reasons": [
            f"partition {place.name.rpartition('/')[2]}: {reason}" if len(logs) > 1 else reason
            for place, state in zip(logs, states, strict=False)
            for reason in state.reasons
        ][:20],
        "formats": sorted({each.format for each in good}),
        "records": sum(each.next_offset - each.first_offset for each in good) if good else None,
        "size_bytes": sum(each.size_bytes for each in good) if good else None,
        "segments": sum(each.segments for each in good) if good else None,
        "rate": sum(state.rate for state in states) if good else None,
        "lag": max((one.lag or 0 for each in good for one in each.standings), default=None),
        "is_written": any(each.is_written for each in good),
        "verified_at": None if None in verified else min(at for at in verified if at is not None),
        "checking": min(checking) if checking else None,
    }


def state_of(watch: Watch, place: WatchedPath) -> LogState:
    """The health of a log: what its last observation, its last check and the requests since then met."""
    seen, rate = watch.glance(place)
    check = watch.check(place.name, start=False)
    last = _latest(watch.last_check(place), seen)
    reasons = {
        Health.UNREADABLE: [] if seen is None or seen.problem is None else [seen.problem],
        Health.DAMAGED: _damage(watch, place, check, last),
        Health.WARNING: [] if seen is None else _warnings(seen),
    }
    health = next((kind for kind, found in reasons.items() if found), Health.UNKNOWN if seen is None else Health.GOOD)
    if health in (Health.UNREADABLE, Health.DAMAGED):
        watch.noticed.setdefault(place.name, reasons[health][0])
    elif seen is not None:
        watch.noticed.pop(place.name, None)
    part = None
    if check is not None and check.running:
        part = check.done_bytes / check.total_bytes if check.total_bytes else 0.0
    return LogState(
        health,
        [reason for found in reasons.values() for reason in found],
        seen,
        rate,
        None if last is None else last.at,
        part,
    )


def _latest(own: LastCheck | None, seen: Observation | None) -> LastCheck | None:
    """The later one of the last check by a server and the one that `duramen verify` published in the sidecar."""
    if seen is None or seen.verified is None or seen.verified.problem:
        return own
    published = LastCheck(seen.verified.at_us // 1_000_000, seen.verified.findings.get("damage", 0))
    return published if own is None or published.at > own.at else own


def _damage(watch: Watch, place: WatchedPath, check: Check | None, last: LastCheck | None) -> list[str]:
    if check is not None and check.problem is not None:
        return [check.problem]
    if last is not None and last.damaged:
        return [f"the last check found {last.damaged:,} damaged place{'s' * (last.damaged > 1)}"]
    return [watch.damage[place.name]] if place.name in watch.damage else []


def _warnings(seen: Observation) -> list[str]:
    found = [f"{one.kind} {one.name}: {one.problem}" for one in seen.standings if one.problem is not None]
    if seen.verified is not None and seen.verified.problem:
        found.append(f"the last check did not finish: {seen.verified.problem}")
    if seen.free_ratio is not None and seen.free_ratio < LOW_SPACE:
        found.append(f"{100 * seen.free_ratio:.1f} % of the disk is free")
    if seen.is_written and seen.published is not None and seen.published.counters.get("poisoned"):
        found.append("a sync failed: the writer acknowledges nothing more")
    return found


# --- consumers


def consumers(watch: Watch, log: str) -> dict[str, Any]:
    """The groups and cursors of a log or of its topic, with the lag per partition and its history."""
    title = title_of(watch.places.get(log).name)
    places = [place for place in watch.places.all() if title_of(place.name) == title][:PARTITIONS]
    histories = {place: watch.observer(place.name).seen() for place in places}
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for place, history in histories.items():
        members = {} if history[-1].problem else group_members(watch.observer(place.name).log())
        for one in history[-1].standings:
            entry = found.setdefault((one.kind, one.name), {"kind": one.kind, "name": one.name, "parts": []})
            held = members.get(one.name, []) if one.kind == "group" else []
            part = {"log": place.name, **_part(one), "members": [member._asdict() for member in held[:MEMBERS]]}
            entry["parts"].append(part)
    shown = sorted(found.items(), key=lambda item: (item[1]["kind"] != "group", item[1]["name"]))[:CONSUMERS]
    days = {place: watch.history.read(place.path).points for place in places}
    for (kind, name), entry in shown[:CHARTED]:
        key = history_key(kind, name)
        entry["recent"] = total([_recent(history, kind, name) for history in histories.values()])
        entry["day"] = total([[(p.at, p.lags[key]) for p in points if key in p.lags] for points in days.values()])
    return {
        "consumers": [entry for _, entry in shown],
        "count": len(found),
        "has_history": watch.history.directory is not None and watch.history.problem is None,
    }


def _part(one: ConsumerLag) -> dict[str, Any]:
    return {key: value for key, value in one._asdict().items() if key not in ("kind", "name", "paths")}


def _recent(history: Iterable[Observation], kind: str, name: str) -> Series:
    return [
        (seen.at, one.lag)
        for seen in history
        for one in seen.standings
        if one.lag is not None and (one.kind, one.name) == (kind, name)
    ]


def total(series: Sequence[Series]) -> Series:
    """The sum of several series over time, thinned out to `POINTS`; each holds its last value until the next.

    >>> total([[(1, 10), (3, 20)], [(2, 5)]])
    [(2, 15), (3, 25)]
    """
    series = [each for each in series if each]
    last: dict[int, int] = {}
    summed: dict[float, int] = {}
    for at, number, lag in sorted((at, number, lag) for number, each in enumerate(series) for at, lag in each):
        last[number] = lag
        if len(last) == len(series):
            summed[at] = sum(last.values())
    points = list(summed.items())
    step = -(-len(points) // POINTS) or 1
    return points[::-step][::-1]
