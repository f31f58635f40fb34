"""Stroma's events by the thousand: the bytes of `stroma`, from and to columns and runs of offsets.

The files are the same, bit for bit; `stroma` declares their layout. A run stands for one event per offset: five
hundred records that are delivered together are one `Marked` here and five hundred MarkInflight in the file. A
checksum is linear, so the checksums of many events are one constant and one table per byte that differs.

Only bytes and plain values: what the events mean is the groups' business.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from duramen import kernel
from duramen.errors import CorruptionError, UnknownVersionError, UsageError
from duramen.formats.stroma import (
    _EVENTS,
    _TYPES,
    CRC,
    DELTA_HEADER,
    EVENT,
    EVENT_MAGIC,
    INFLIGHT,
    SNAP_END,
    SNAP_HEADER,
    SNAP_STATE,
    VERSION,
    Ack,
    BumpAckedUntil,
    ClearInflight,
    MarkInflight,
    Reset,
    _next_event,
    _snapshot_end,
    all_zero,
    crc_stored,
    find_event,
    is_program_snapshot,
    with_crc,
)
from duramen.formats.structs import Buffer
from duramen.kernel.layout import NOT_FOUND, Int64s, Stop
from duramen.model import MAX_OFFSET

MAX_TIME_MS = 2**63 - 1
"""Later deadlines are read as this one: never."""
_COVERED_FROM = EVENT.at("version")
_SIZES = [EVENT.size + _EVENTS[number][1].size + CRC.size if number in _EVENTS else 0 for number in range(256)]
_TYPE_BYTE = EVENT.at("event_type") + 1

MARK, ACK, CLEAR, BUMP, RESET = (_TYPES[k] for k in (MarkInflight, Ack, ClearInflight, BumpAckedUntil, Reset))


# --- runs


class Marked(NamedTuple):
    """Delivered: one MarkInflight for every offset from ``start`` to before ``end``."""

    start: int
    end: int
    deadline_ms: int
    epoch: int


class Acked(NamedTuple):
    start: int
    end: int


class Cleared(NamedTuple):
    start: int
    end: int


class Bumped(NamedTuple):
    acked_until: int


class WasReset(NamedTuple):
    pass


Run = Marked | Acked | Cleared | Bumped | WasReset


def encode_runs(runs: Iterable[Run]) -> bytes | memoryview:
    """The events of the runs, one after the other.

    >>> encode_runs([WasReset()]).hex()
    '4b4500010005000000000000da00cf3a'
    """
    encoded = [_encode_run(run) for run in runs]
    return encoded[0] if len(encoded) == 1 else b"".join(encoded)


def _encode_run(run: Run) -> bytes | memoryview:
    if isinstance(run, Marked):
        return _encode(MARK, run.start, run.end, _LEASE.pack(run.deadline_ms, run.epoch))
    if isinstance(run, Acked):
        return _encode(ACK, run.start, run.end)
    if isinstance(run, Cleared):
        return _encode(CLEAR, run.start, run.end)
    if isinstance(run, Bumped):
        return _encode(BUMP, run.acked_until, run.acked_until + 1)
    return _head(RESET) + CRC.pack(crc32c=_tables(RESET)[0])


_LEASE = struct.Struct(">QI")


def _encode(number: int, start: int, end: int, rest: bytes = b"") -> memoryview:
    """One event of a type for every offset: eight bytes of offset, then ``rest``, the same in all."""
    out = np.empty((end - start) * _SIZES[number], np.uint8)
    kernel.encode_run(_head(number), _COVERED_FROM, start, end - start, rest, out)
    return out.data


@cache
def _head(number: int) -> bytes:
    return EVENT.pack(magic=EVENT_MAGIC, version=VERSION, event_type=number, len=_EVENTS[number][1].size)


@cache
def _tables(number: int) -> tuple[int, npt.NDArray[np.uint32]]:
    """The checksum of an event whose payload is zero, and for every byte of the payload what each value changes."""
    head = _head(number)[_COVERED_FROM:]
    size = _EVENTS[number][1].size
    zero = kernel.crc32c(head + bytes(size))
    tables = np.zeros((size, 256), np.uint32)
    for place in range(size):
        for bit in range(8):
            payload = bytearray(size)
            payload[place] = 1 << bit
            changed = kernel.crc32c(head + bytes(payload)) ^ zero
            values = np.arange(256)
            tables[place][(values >> bit & 1).astype(bool)] ^= np.uint32(changed)
    return zero, tables


# --- deltas as columns


class Events(NamedTuple):
    """The whole events of a delta as columns, in order; fields that a type does not have are zero."""

    kind: npt.NDArray[np.uint8]
    offset: Int64s
    """Of a BumpAckedUntil: the acked_until."""
    deadline_ms: Int64s
    epoch: Int64s
    end: int
    """The first byte that is no event's."""
    stop: Stop
    resumes_at: int
    """Where a whole event follows the bad place, which makes it damage; `NOT_FOUND` for a torn tail."""

    @property
    def is_torn(self) -> bool:
        return not self.stop.clean and self.resumes_at == NOT_FOUND

    @property
    def is_damaged(self) -> bool:
        return self.resumes_at != NOT_FOUND


class DeltaStart(NamedTuple):
    created_ts_ms: int
    flags: int
    length: int


def delta_start(view: memoryview) -> DeltaStart | None:
    """The header of a delta; None where not even that was written. Raises `CorruptionError` for a bad one."""
    if all_zero(view[: DELTA_HEADER.size]):
        return None
    header = DELTA_HEADER.parse(view)
    return DeltaStart(int(header.values["created_ts_ms"]), int(header.values["flags"]), header.length)


def decode_events(view: memoryview, position: int) -> Events:
    """The events from ``position`` on, as far as they are whole. Raises for one that nobody here understands."""
    data = np.frombuffer(view[position:], np.uint8)
    starts = _chain(data)
    kinds = data[starts + _TYPE_BYTE] if len(starts) else np.empty(0, np.uint8)
    columns = {name: np.zeros(len(starts), np.uint64) for name in ("offset", "deadline_ms", "epoch")}
    good = np.ones(len(starts), bool)
    for number in np.unique(kinds).tolist():
        rows = np.flatnonzero(kinds == number)
        raw = _gather(data, starts[rows], _SIZES[number])
        good[rows] = _are_whole(number, raw)
        if number != RESET:
            columns["offset"][rows] = _number(raw, EVENT.size, 8)
        if number == MARK:
            columns["deadline_ms"][rows] = _number(raw, EVENT.size + 8, 8)
            columns["epoch"][rows] = _number(raw, EVENT.size + 16, 4)
    count = len(starts) if good.all() else int(np.argmin(good))
    end = position + (int(starts[count - 1]) + _SIZES[int(kinds[count - 1])] if count else 0)
    step = _next_event(view, end)
    resumes_at = NOT_FOUND if step.stop.clean else find_event(view, end + 1)
    offset, deadline_ms, epoch = (column[:count] for column in columns.values())
    if count and int(offset.max()) > MAX_OFFSET:
        row = int(np.argmax(offset > MAX_OFFSET))
        raise CorruptionError("an event's offset does not fit into 63 bits", position=position + int(starts[row]))
    deadline_ms = np.minimum(deadline_ms, MAX_TIME_MS)
    return Events(
        kinds[:count], offset.astype(np.int64), deadline_ms.astype(np.int64), epoch.astype(np.int64),
        end, step.stop, resumes_at,
    )  # fmt: skip


_STREAK = 16
"""So many events of one type in a row, and the following ones are looked at together."""


def _chain(data: npt.NDArray[np.uint8]) -> Int64s:
    """Where events start, if each is as long as its type says."""
    raw = data.tobytes()
    parts: list[Int64s] = []
    singles: list[int] = []
    position, end, last, streak = 0, len(data), -1, 0
    while position + EVENT.size < end:
        number = raw[position + _TYPE_BYTE]
        size = _SIZES[number]
        if not size or position + size > end:
            break
        singles.append(position)
        position += size
        streak = streak + 1 if number == last else 0
        last = number
        if streak >= _STREAK:
            types = data[position + _TYPE_BYTE : end : size][: (end - position) // size]
            others = np.flatnonzero(types != number)
            count = int(others[0]) if len(others) else len(types)
            parts += [np.array(singles, np.int64), np.arange(position, position + count * size, size)]
            singles, streak = [], 0
            position += count * size
    return np.concatenate([*parts, np.array(singles, np.int64)])


def _gather(data: npt.NDArray[np.uint8], starts: Int64s, size: int) -> npt.NDArray[np.uint8]:
    """The events at ``starts``, one row each. Those that follow one another are copied together."""
    breaks = np.flatnonzero(np.diff(starts) != size) + 1
    if len(breaks) > len(starts) // 8:
        return data[starts[:, None] + np.arange(size)]
    bounds = [0, *breaks.tolist(), len(starts)]
    runs = (data[int(starts[low]) : int(starts[low]) + (high - low) * size] for low, high in pairwise(bounds))
    return np.concatenate(list(runs)).reshape(-1, size)


def _are_whole(number: int, raw: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
    """Which of the rows, each as long as an event of that type, are one."""
    payload_end = raw.shape[1] - CRC.size
    constant, tables = _tables(number)
    crcs = np.full(len(raw), constant, np.uint32)
    for place in range(payload_end - EVENT.size):
        crcs ^= tables[place].take(raw[:, EVENT.size + place])
    heads = (raw[:, : EVENT.size] == np.frombuffer(_head(number), np.uint8)).all(axis=1)
    whole: npt.NDArray[np.bool_] = heads & (crcs == _number(raw, payload_end, 4))
    return whole


def _number(raw: npt.NDArray[np.uint8], at: int, width: int) -> npt.NDArray[Any]:
    return np.ascontiguousarray(raw[:, at : at + width]).view(f">u{width}")[:, 0]


# --- snapshots as columns

_INFLIGHT = np.dtype([("offset", ">u8"), ("deadline_ts_ms", ">u8"), ("epoch", ">u4"), ("reserved", ">u4")])
assert _INFLIGHT.itemsize == INFLIGHT.size


class SnapshotColumns(NamedTuple):
    """`stroma.Snapshot` with its records in flight as columns, ascending by offset."""

    acked_until: int
    offset: Int64s
    deadline_ms: Int64s
    epoch: Int64s
    created_ts_ms: int
    tp_hash: int
    group_hash: int
    flags: int


def decode_snapshot(buf: Buffer) -> SnapshotColumns:
    """The snapshot in ``buf``, checked as `stroma.Snapshot.decode` does."""
    view = memoryview(buf)
    if is_program_snapshot(view):
        raise UnknownVersionError("a snapshot of the Stroma program (SSNAP), which is shown but not read", position=0)
    header = SNAP_HEADER.parse(view)
    count, end = _snapshot_end(view, header.length)
    crc_at = end - CRC.size
    if crc_stored(view, crc_at) != kernel.crc32c(view[header.length : crc_at]):
        raise CorruptionError("checksum mismatch in the snapshot", position=crc_at)
    if not kernel.is_zero(view, end, len(view)):
        raise CorruptionError(f"{len(view) - end} bytes follow the snapshot's end", position=end)
    rows_at = header.length + SNAP_STATE.size
    rows = np.frombuffer(view[rows_at:], _INFLIGHT, count)
    acked_until = int(SNAP_STATE.unpack(view, header.length)["acked_until"])
    offsets = rows["offset"].astype(np.uint64)
    if acked_until > MAX_OFFSET + 1 or (count and int(offsets.max()) > MAX_OFFSET):
        raise CorruptionError("an offset of the snapshot does not fit into 63 bits", position=header.length)
    order = np.argsort(offsets, kind="stable")
    offset = offsets[order].astype(np.int64)
    if count > 1 and not (np.diff(offset) > 0).all():
        raise CorruptionError("an offset is in flight twice", position=rows_at)
    deadlines = np.minimum(rows["deadline_ts_ms"].astype(np.uint64), MAX_TIME_MS).astype(np.int64)
    own = {name: int(header.values[name]) for name in ("created_ts_ms", "tp_hash", "group_hash", "flags")}
    return SnapshotColumns(acked_until, offset, deadlines[order], rows["epoch"].astype(np.int64)[order], **own)


def encode_snapshot(
    acked_until: int, inflight: Sequence[Marked], *, created_ts_ms: int, tp_hash: int = 0, group_hash: int = 0
) -> bytes:
    """The bytes of a snapshot; the runs in flight are ascending and do not overlap."""
    count = sum(run.end - run.start for run in inflight)
    if any(before.end > after.start for before, after in pairwise(inflight)):
        raise UsageError("an offset is in flight twice, or the runs are not in order")
    rows = np.zeros(count, _INFLIGHT)
    at = 0
    for run in inflight:
        part = rows[at : at + run.end - run.start]
        part["offset"] = np.arange(run.start, run.end, dtype=np.uint64)
        part["deadline_ts_ms"], part["epoch"] = run.deadline_ms, run.epoch
        at += len(part)
    first_deadline_ms = min((run.deadline_ms for run in inflight), default=0)
    payload = b"".join(
        [
            SNAP_STATE.pack(acked_until=acked_until, inflight_count=count),
            rows.tobytes(),
            SNAP_END.pack(min_deadline_hint=first_deadline_ms)[: -CRC.size],
        ]
    )
    header = SNAP_HEADER.pack(created_ts_ms=created_ts_ms, tp_hash=tp_hash, group_hash=group_hash)
    return header + with_crc(payload)
