"""Stroma's files one Python object at a time: the oracle of the column codec, of which it uses only the layouts."""

from __future__ import annotations

import struct
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import NamedTuple

from duramen import kernel
from duramen.errors import CorruptionError, UnknownVersionError, UsageError
from duramen.formats.stroma import (
    CRC,
    DELTA_HEADER,
    EVENT,
    EVENT_MAGIC,
    INFLIGHT,
    SNAP_END,
    SNAP_HEADER,
    SNAP_STATE,
    VERSION,
    all_zero,
    check_size,
    delta_header,
    find_event,
    is_program_snapshot,
    with_crc,
)
from duramen.formats.struct import Buffer, Struct
from duramen.kernel.layout import NOT_FOUND, Stop

_COVERED_FROM = EVENT.at("version")


class Inflight(NamedTuple):
    """A record that was delivered and not acknowledged yet. ``epoch`` counts the deliveries."""

    offset: int
    deadline_ts_ms: int
    epoch: int


@dataclass(frozen=True)
class StromaSnapshot:
    """The state of a group at one moment.

    >>> state = StromaSnapshot(acked_until=1, inflight=(Inflight(2, 1_700_000_030_000, 1),))
    >>> StromaSnapshot.decode(state.encode()) == state
    True
    """

    acked_until: int
    """Exclusive: every offset below is acknowledged."""
    inflight: tuple[Inflight, ...] = ()
    created_ts_ms: int = 0
    tp_hash: int = 0
    group_hash: int = 0
    flags: int = 0

    @property
    def min_deadline_ms(self) -> int:
        """The earliest deadline, 0 when nothing is in flight."""
        return min((row.deadline_ts_ms for row in self.inflight), default=0)

    def encode(self) -> bytes:
        rows = sorted(self.inflight)
        if any(row.offset == following.offset for row, following in pairwise(rows)):
            raise UsageError("an offset is in flight twice")
        try:
            header = SNAP_HEADER.pack(
                flags=self.flags, created_ts_ms=self.created_ts_ms, tp_hash=self.tp_hash, group_hash=self.group_hash
            )
            payload = b"".join(
                [
                    SNAP_STATE.pack(acked_until=self.acked_until, inflight_count=len(rows)),
                    *(INFLIGHT.pack(**row._asdict()) for row in rows),
                    SNAP_END.pack(min_deadline_hint=self.min_deadline_ms)[: -CRC.size],
                ]
            )
        except struct.error as error:
            raise UsageError(f"the snapshot holds a number that does not fit: {error}") from error
        return header + with_crc(payload)

    @classmethod
    def decode(cls, buf: Buffer) -> StromaSnapshot:
        """The snapshot in ``buf``; raises `CorruptionError` with the position of the problem."""
        view = memoryview(buf)
        check_size(view)
        if is_program_snapshot(view):
            raise UnknownVersionError(
                "a snapshot of the Stroma program (SSNAP), which cannot be the state of a group", position=0
            )
        header = SNAP_HEADER.parse(view)
        count, end = _snapshot_end(view, header.length)
        crc_at = end - CRC.size
        if _crc(view, crc_at) != kernel.crc32c(view[header.length : crc_at]):
            raise CorruptionError("checksum mismatch in the snapshot", position=crc_at)
        if not kernel.is_zero(view, end, len(view)):
            raise CorruptionError(f"{len(view) - end} bytes follow the snapshot's end", position=end)
        rows_at = header.length + SNAP_STATE.size
        rows = (INFLIGHT.unpack(view, rows_at + row * INFLIGHT.size) for row in range(count))
        own = ("created_ts_ms", "tp_hash", "group_hash", "flags")
        return cls(
            int(SNAP_STATE.unpack(view, header.length)["acked_until"]),
            tuple(Inflight(int(r["offset"]), int(r["deadline_ts_ms"]), int(r["epoch"])) for r in rows),
            **{name: int(header.values[name]) for name in own},
        )


def _snapshot_end(view: memoryview, start: int) -> tuple[int, int]:
    """How many records are in flight and where the snapshot ends, checked against the bytes that are there."""
    rest = len(view) - start - SNAP_STATE.size - SNAP_END.size
    if rest < 0:
        raise CorruptionError("the snapshot is cut short", position=len(view))
    count = int(SNAP_STATE.unpack(view, start)["inflight_count"])
    if count * INFLIGHT.size > rest:
        raise CorruptionError(
            f"the snapshot claims {count} records in flight, more than its bytes",
            position=start + SNAP_STATE.at("inflight_count"),
        )
    return count, start + SNAP_STATE.size + count * INFLIGHT.size + SNAP_END.size


@dataclass(frozen=True)
class MarkInflight:
    offset: int
    deadline_ts_ms: int
    epoch: int


@dataclass(frozen=True)
class Ack:
    offset: int


@dataclass(frozen=True)
class ClearInflight:
    offset: int


@dataclass(frozen=True)
class BumpAckedUntil:
    acked_until: int


@dataclass(frozen=True)
class Reset:
    pass


Event = MarkInflight | Ack | ClearInflight | BumpAckedUntil | Reset

_EVENTS: dict[int, tuple[type[Event], Struct]] = {
    1: (MarkInflight, Struct(">", offset="Q", deadline_ts_ms="Q", epoch="I")),
    2: (Ack, Struct(">", offset="Q")),
    3: (ClearInflight, Struct(">", offset="Q")),
    4: (BumpAckedUntil, Struct(">", acked_until="Q")),
    5: (Reset, Struct(">")),
}
_TYPES: dict[type[Event], int] = {kind: number for number, (kind, _) in _EVENTS.items()}


def encode_event(event: Event) -> bytes:
    """One event as it is appended to a delta.

    >>> encode_event(Reset()).hex()
    '4b4500010005000000000000da00cf3a'
    """
    number = _TYPES[type(event)]
    payload_struct = _EVENTS[number][1]
    try:
        payload = payload_struct.pack(**{field.name: getattr(event, field.name) for field in fields(event)})
    except struct.error as error:
        raise UsageError(f"{event} holds a number that does not fit: {error}") from error
    header = EVENT.pack(magic=EVENT_MAGIC, version=VERSION, event_type=number, len=len(payload))
    return header[:_COVERED_FROM] + with_crc(header[_COVERED_FROM:] + payload)


@dataclass(frozen=True)
class Delta:
    """The events of a delta file, as far as they are whole.

    >>> Delta.decode(Delta([Ack(3)], created_ts_ms=1).encode()).events
    [Ack(offset=3)]
    """

    events: list[Event]
    created_ts_ms: int = 0
    flags: int = 0
    end: int = 0
    """The first byte that is no event's: where the next event goes. 0: not even the header was written."""
    stop: Stop = Stop.END
    """Why the events end there."""
    resumes_at: int = NOT_FOUND
    """Where a whole event follows the bad place. That makes it damage; without one it is a torn tail."""

    def encode(self) -> bytes:
        return b"".join([delta_header(self.created_ts_ms, self.flags), *map(encode_event, self.events)])

    @classmethod
    def decode(cls, buf: Buffer) -> Delta:
        """The delta in ``buf``. Raises for a bad header and for an unknown event."""
        view = memoryview(buf)
        check_size(view)
        if all_zero(view):
            return cls([], stop=Stop.ZEROS if view else Stop.END)
        header = DELTA_HEADER.parse(view)
        events: list[Event] = []
        position = header.length
        while (step := _next_event(view, position)).event is not None:
            events.append(step.event)
            position = step.next
        resumes_at = NOT_FOUND if step.stop.clean else find_event(view, position + 1)
        own = {name: int(header.values[name]) for name in ("created_ts_ms", "flags")}
        return cls(events, **own, end=position, stop=step.stop, resumes_at=resumes_at)


class _StromaStep(NamedTuple):
    stop: Stop
    event: Event | None = None
    next: int = 0


def _next_event(view: memoryview, position: int) -> _StromaStep:
    """The event at ``position``, or why there is none. Raises for one that is whole but not known."""
    rest = len(view) - position
    if rest == 0:
        return _StromaStep(Stop.END)
    if kernel.is_zero(view, position, len(view)):
        return _StromaStep(Stop.ZEROS)
    if rest < EVENT.size:
        return _StromaStep(Stop.SHORT_HEADER)
    magic, version, number, flags, length = EVENT.unpack(view, position).values()
    if magic != EVENT_MAGIC:
        return _StromaStep(Stop.BAD_MAGIC)
    if version != VERSION:
        if kernel.is_zero(view, position + _COVERED_FROM, len(view)):
            return _StromaStep(Stop.SHORT_HEADER)  # the file grew, but only the magic number arrived
        raise UnknownVersionError(f"unknown version {version!r} of an event", position=position)
    assert isinstance(number, int)
    assert isinstance(length, int)
    following = position + EVENT.size + length + CRC.size
    if following > len(view):
        return _StromaStep(Stop.SHORT_BODY)
    if _crc(view, following - CRC.size) != kernel.crc32c(view[position + _COVERED_FROM : following - CRC.size]):
        return _StromaStep(Stop.BAD_CHECKSUM)
    if number not in _EVENTS:
        raise UnknownVersionError(f"unknown event type {number}", position=position)
    if flags:
        raise UnknownVersionError(f"unknown flags {flags!r} of an event", position=position)
    kind, payload = _EVENTS[number]
    if length != payload.size:
        raise CorruptionError(f"{kind.__name__} has {length} bytes, not {payload.size}", position=position)
    return _StromaStep(Stop.END, kind(*map(int, payload.unpack(view, position + EVENT.size).values())), following)


def _crc(view: memoryview, position: int) -> int:
    return int.from_bytes(view[position : position + CRC.size], "big")
