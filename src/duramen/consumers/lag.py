"""Lag of every group and cursor of a log, and the records that each still needs. Takes no lock and writes nothing.

An unreadable state file needs every record: retention must not remove records that its consumer may not have read.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from duramen.consumers.cursors import cursors
from duramen.consumers.files import GroupFiles, group_files
from duramen.consumers.groups import Loaded, Member, load, members_in
from duramen.errors import CorruptionError
from duramen.log import Log
from duramen.sidecar import Need


class ConsumerLag(NamedTuple):
    """State of a group or a cursor. For a cursor, ``offset`` is the stored position, and nothing is in flight."""

    kind: str
    name: str
    offset: int | None
    """First offset not acknowledged, or the cursor's position; None if the file is unreadable."""
    next_offset: int
    lag: int | None
    """Offsets not acknowledged, or not before the cursor. Gaps in the log count."""
    in_flight: int = 0
    expired: int = 0
    acked_ahead: int = 0
    next_deadline_ms: int | None = None
    paths: tuple[str, ...] = ()
    problem: str | None = None


def consumer_lags(log: Log, now_ms: int | None = None) -> list[ConsumerLag]:
    """Every group, then every cursor, each sorted by name."""
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    next_offset, first_offset = log.next_offset, log.first_offset
    found = [_group(log, place, first_offset, next_offset, now_ms) for place in group_files(log)]
    for cursor in cursors(log):
        if cursor.offset is None and cursor.problem is None:
            continue  # it only stores a time
        lag = None if cursor.offset is None else max(next_offset - max(cursor.offset, first_offset), 0)
        found.append(
            ConsumerLag(
                "cursor", cursor.name, cursor.offset, next_offset, lag, paths=(cursor.path,), problem=cursor.problem
            )
        )
    return found


def group_members(log: Log, now_ms: int | None = None) -> dict[str, list[Member]]:
    """The consumers that hold records, by group. Takes no lock: a fetch in progress may be missing."""
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    found = {}
    for place in group_files(log):
        loaded = _loaded(log, place)
        if not isinstance(loaded, str):
            found[place.name.group] = members_in(log.disk, place, loaded.machine, now_ms)
    return found


def _group(log: Log, place: GroupFiles, first_offset: int, next_offset: int, now_ms: int) -> ConsumerLag:
    paths = (place.snap, place.delta)
    loaded = _loaded(log, place)
    if isinstance(loaded, str):
        return ConsumerLag("group", place.name.group, None, next_offset, None, paths=paths, problem=loaded)
    machine = loaded.machine
    offset = max(machine.acked_until, first_offset)
    lag = max(next_offset - offset - machine.acked_below(next_offset), 0)
    problem = str(loaded.damage[0]) if loaded.damage else ("; ".join(loaded.warnings) or None)
    if machine.top() > next_offset:
        problem = f"the state refers to offset {machine.top() - 1}, which the log does not contain"
    return ConsumerLag(
        "group", place.name.group, None if loaded.damage else offset, next_offset, None if loaded.damage else lag,
        machine.in_flight, machine.expired(now_ms), len(machine.acked), machine.next_deadline_ms(), paths, problem,
    )  # fmt: skip


def _loaded(log: Log, place: GroupFiles) -> Loaded | str:
    try:
        return load(log.disk, place)
    except CorruptionError as error:  # an unknown version
        return str(error)


def needed_from(log: Log) -> list[Need]:
    """The first offset that every group and every cursor still needs.

    >>> import tempfile, duramen
    >>> with duramen.open(tempfile.mkdtemp() + "/events", "a") as log:
    ...     _ = log.append_batch([b"a", b"b", b"c"])
    ...     log.cursor("report").store(2)
    ...     _ = log.group("billing").fetch(1)
    ...     needed_from(log)
    [Need(kind='group', name='billing', offset=0), Need(kind='cursor', name='report', offset=2)]
    """
    return [Need(one.kind, one.name, one.offset or 0) for one in consumer_lags(log)]
