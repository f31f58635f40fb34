"""All groups and cursors of a log at a glance, and what they still need. Takes no lock and writes nothing.

A file that cannot be read needs everything: retention must not remove what its owner may not have seen.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from duramen.errors import CorruptionError
from duramen.groups.cursors import cursors
from duramen.groups.journal import Loaded, load
from duramen.groups.places import Place, places
from duramen.log.holds import Need
from duramen.log.reader import Log


class Standing(NamedTuple):
    """How a group or a cursor stands. For a cursor, ``offset`` is what was stored, and nothing is in flight."""

    kind: str
    name: str
    offset: int | None
    """The first offset that is not acknowledged, or the cursor's; None where the file cannot be read."""
    next_offset: int
    lag: int | None
    """Offsets that are not acknowledged, or not before the cursor. Gaps of the log count."""
    in_flight: int = 0
    expired: int = 0
    acked_ahead: int = 0
    next_deadline_ms: int | None = None
    paths: tuple[str, ...] = ()
    problem: str | None = None


def standings(log: Log, now_ms: int | None = None) -> list[Standing]:
    """Every group, then every cursor, each in the order of their names."""
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    next_offset, first_offset = log.next_offset, log.first_offset
    found = [_group(log, place, first_offset, next_offset, now_ms) for place in places(log)]
    for cursor in cursors(log):
        lag = None if cursor.offset is None else max(next_offset - max(cursor.offset, first_offset), 0)
        found.append(
            Standing(
                "cursor", cursor.name, cursor.offset, next_offset, lag, paths=(cursor.path,), problem=cursor.problem
            )
        )
    return found


def _group(log: Log, place: Place, first_offset: int, next_offset: int, now_ms: int) -> Standing:
    paths = (place.snap, place.delta)
    loaded = _loaded(log, place)
    if isinstance(loaded, str):
        return Standing("group", place.name.group, None, next_offset, None, paths=paths, problem=loaded)
    machine = loaded.machine
    offset = max(machine.acked_until, first_offset)
    lag = max(next_offset - offset - machine.acked_below(next_offset), 0)
    problem = str(loaded.damage[0]) if loaded.damage else ("; ".join(loaded.warnings) or None)
    if machine.top() > next_offset:
        problem = f"knows of offset {machine.top() - 1}, which the log does not hold"
    return Standing(
        "group", place.name.group, None if loaded.damage else offset, next_offset, None if loaded.damage else lag,
        machine.in_flight, machine.expired(now_ms), len(machine.acked), machine.next_deadline_ms(), paths, problem,
    )  # fmt: skip


def _loaded(log: Log, place: Place) -> Loaded | str:
    try:
        return load(log.disk, place)
    except CorruptionError as error:  # a version that nobody here knows
        return str(error)


def needed_from(log: Log) -> list[Need]:
    """What every group and every cursor still needs: kind, name, and the first offset that must stay.

    >>> import tempfile, duramen
    >>> with duramen.open(tempfile.mkdtemp() + "/events", "a") as log:
    ...     _ = log.append_batch([b"a", b"b", b"c"])
    ...     log.cursor("report").store(2)
    ...     _ = log.group("billing").fetch(1)
    ...     needed_from(log)
    [Need(kind='group', name='billing', offset=0), Need(kind='cursor', name='report', offset=2)]
    """
    return [Need(one.kind, one.name, one.offset or 0) for one in standings(log)]
