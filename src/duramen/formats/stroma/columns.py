"""Stroma: what a consumer group has acknowledged and holds in flight, as the bytes of two files; all big-endian.

::

    groups/{topic}-{partition}_{group}.snap
      0  KSNAP\\0\\0\\0, version, flags, header_len (76)
     16  created_ts_ms      u64
     24  tp_hash            u64  FNV-1a of "topic-partition", 0 = unset
     32  group_hash         u64  FNV-1a of the group's name, 0 = unset
     40  reserved           32 bytes
     72  header_crc32c      u32
     76  acked_until        u64  everything below is acknowledged
     84  inflight_count     u32
     88  reserved0          u32
     92  inflight_count ×   offset u64, deadline_ts_ms u64, epoch u32, reserved u32
      …  min_deadline_hint  u64  0 = nothing in flight
      …  payload_crc32c     u32  CRC-32C from acked_until through min_deadline_hint

    groups/{topic}-{partition}_{group}.delta
      0  KDELTA\\0\\0, version, flags, header_len (60)
     16  created_ts_ms      u64
     24  reserved           32 bytes
     56  header_crc32c      u32
     60  events, each:
           0  magic       u16  0x4B45 ("KE")
           2  version     u16  1
           4  event_type  u16  1 MarkInflight, 2 Ack, 3 ClearInflight, 4 BumpAckedUntil, 5 Reset
           6  flags       u16  0
           8  len         u32
          12  payload
           …  crc32c      u32  CRC-32C from version through payload

Both files begin with the header of `header`. Decoding gives columns; encoding takes runs of offsets: five hundred
records that are delivered together are one `Marked` here and five hundred MarkInflight events in the file. A checksum
is linear, so that the checksums of many events are one constant and one table lookup per byte that differs.

Only bytes and plain values: `duramen.consumers` knows what the events mean. Decoding a truncated delta returns the
events before the cut. An event of an unknown version, type or flag raises, because skipping it would change the state.
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
from duramen.formats.stroma.header import CRC, VERSION, FileHeader, Header, all_zero, crc_stored, with_crc
from duramen.formats.struct import Buffer, Struct
from duramen.kernel import NOT_FOUND, Int64s, Stop
from duramen.record import MAX_OFFSET

GROUP_BYTES = 32 << 20
"""Largest snapshot or delta that is read. Ours start a new delta after 2 MiB."""
MAX_TIME_MS = 2**63 - 1
"""Later deadlines are read as this one: never."""

SNAP_HEADER = FileHeader(b"KSNAP\0\0\0", created_ts_ms="Q", tp_hash="Q", group_hash="Q", reserved="32s")
SNAP_STATE = Struct(">", acked_until="Q", inflight_count="I", reserved0="I")
INFLIGHT = Struct(">", offset="Q", deadline_ts_ms="Q", epoch="I", reserved="I")
SNAP_END = Struct(">", min_deadline_hint="Q", payload_crc32c="I")

DELTA_HEADER = FileHeader(b"KDELTA\0\0", created_ts_ms="Q", reserved="32s")
EVENT = Struct(">", magic="H", version="H", event_type="H", flags="H", len="I")
EVENT_MAGIC = 0x4B45
MARK, ACK, CLEAR, BUMP, RESET = range(1, 6)


class EventType(NamedTuple):
    """One type of event: its name in the format's document, and its payload."""

    name: str
    payload: Struct


EVENT_TYPES: dict[int, EventType] = {
    MARK: EventType("MarkInflight", Struct(">", offset="Q", deadline_ts_ms="Q", epoch="I")),
    ACK: EventType("Ack", Struct(">", offset="Q")),
    CLEAR: EventType("ClearInflight", Struct(">", offset="Q")),
    BUMP: EventType("BumpAckedUntil", Struct(">", acked_until="Q")),
    RESET: EventType("Reset", Struct(">")),
}
LONGEST_EVENT = EVENT.size + max(kind.payload.size for kind in EVENT_TYPES.values()) + CRC.size
PROGRAM_SNAPSHOT_MAGIC = b"SSNAP\0\0\0"

_COVERED_FROM = EVENT.at("version")
_SIZES = [EVENT.size + EVENT_TYPES[n].payload.size + CRC.size if n in EVENT_TYPES else 0 for n in range(256)]
_TYPE_BYTE = EVENT.at("event_type") + 1
_FIND_BYTES = 1 << 20


def check_size(view: memoryview) -> None:
    """Raise for a file that is larger than any file of a group."""
    if len(view) > GROUP_BYTES:
        raise CorruptionError(f"a group's file has at most {GROUP_BYTES} bytes, not {len(view)}", position=GROUP_BYTES)


def is_program_snapshot(buf: Buffer) -> bool:
    """Whether a file is a snapshot as the Stroma program writes it (SSNAP)."""
    return bytes(memoryview(buf)[:8]) == PROGRAM_SNAPSHOT_MAGIC


# --- runs


class Marked(NamedTuple):
    """Delivered: one MarkInflight for every offset from ``start`` to before ``end``."""

    start: int
    end: int
    deadline_ms: int
    epoch: int


class Acked(NamedTuple):
    """One Ack for every offset from ``start`` to before ``end``."""

    start: int
    end: int


class Cleared(NamedTuple):
    """One ClearInflight for every offset from ``start`` to before ``end``."""

    start: int
    end: int


class Bumped(NamedTuple):
    """One BumpAckedUntil."""

    acked_until: int


class WasReset(NamedTuple):
    """One Reset."""


Run = Marked | Acked | Cleared | Bumped | WasReset


def encode_runs(runs: Iterable[Run]) -> bytes | memoryview:
    """The events of the runs, one after another.

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
    return EVENT.pack(magic=EVENT_MAGIC, version=VERSION, event_type=number, len=EVENT_TYPES[number].payload.size)


@cache
def _tables(number: int) -> tuple[int, npt.NDArray[np.uint32]]:
    """The checksum of an event whose payload is zero, and what each value of each payload byte changes in it."""
    head = _head(number)[_COVERED_FROM:]
    size = EVENT_TYPES[number].payload.size
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
    """The complete events of a delta as columns, in order; fields that a type does not have are zero."""

    kind: npt.NDArray[np.uint8]
    offset: Int64s
    """Of a BumpAckedUntil: the acked_until."""
    deadline_ms: Int64s
    epoch: Int64s
    end: int
    """The first byte after the events: where the next event goes."""
    stop: Stop
    resumes_at: int
    """Where a complete event follows the bad bytes, which makes them damage; `NOT_FOUND` for a torn tail."""

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
    """The header of a delta; None if it was never written. Raises `CorruptionError` for a bad one."""
    check_size(view)
    if all_zero(view[: DELTA_HEADER.size]):
        return None
    header = DELTA_HEADER.parse(view)
    return DeltaStart(int(header.values["created_ts_ms"]), int(header.values["flags"]), header.length)


def delta_header(created_ts_ms: int, flags: int = 0) -> bytes:
    return DELTA_HEADER.pack(created_ts_ms=created_ts_ms, flags=flags)


def decode_events(view: memoryview, position: int) -> Events:
    """The complete events from ``position`` on. Raises for an unknown event."""
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
    stop = next_event(view, end).stop
    offset, deadline_ms, epoch = (column[:count] for column in columns.values())
    if count and int(offset.max()) > MAX_OFFSET:
        row = int(np.argmax(offset > MAX_OFFSET))
        raise CorruptionError("an event's offset does not fit into 63 bits", position=position + int(starts[row]))
    deadline_ms = np.minimum(deadline_ms, MAX_TIME_MS)
    return Events(
        kinds[:count], offset.astype(np.int64), deadline_ms.astype(np.int64), epoch.astype(np.int64),
        end, stop, resumes_at(view, end, stop),
    )  # fmt: skip


_STREAK = 16
"""After this many events of one type, the following ones are handled together."""


def _chain(data: npt.NDArray[np.uint8]) -> Int64s:
    """Where events start, if each has the length of its type."""
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
    """The events at ``starts``, one row each. Adjacent ones are copied together."""
    breaks = np.flatnonzero(np.diff(starts) != size) + 1
    if len(breaks) > len(starts) // 8:
        return data[starts[:, None] + np.arange(size)]
    bounds = [0, *breaks.tolist(), len(starts)]
    runs = (data[int(starts[low]) : int(starts[low]) + (high - low) * size] for low, high in pairwise(bounds))
    return np.concatenate(list(runs)).reshape(-1, size)


def _are_whole(number: int, raw: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
    """Which rows are valid events of that type."""
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


# --- one event at a time


class EventStep(NamedTuple):
    """The event at a position: its type and where the next one starts; or why there is none (``number`` 0)."""

    stop: Stop
    number: int = 0
    next: int = 0


def next_event(view: memoryview, position: int) -> EventStep:
    """The event at ``position``. Raises for one that is complete but unknown."""
    rest = len(view) - position
    if rest == 0:
        return EventStep(Stop.END)
    if kernel.is_zero(view, position, len(view)):
        return EventStep(Stop.ZEROS)
    if rest < EVENT.size:
        return EventStep(Stop.SHORT_HEADER)
    magic, version, number, flags, length = (int(value) for value in EVENT.unpack(view, position).values())
    if magic != EVENT_MAGIC:
        return EventStep(Stop.BAD_MAGIC)
    if version != VERSION:
        if kernel.is_zero(view, position + _COVERED_FROM, len(view)):
            return EventStep(Stop.SHORT_HEADER)  # the file grew, but only the magic number arrived
        raise UnknownVersionError(f"unknown version {version!r} of an event", position=position)
    following = position + EVENT.size + length + CRC.size
    if following > len(view):
        return EventStep(Stop.SHORT_BODY)
    if crc_stored(view, following - CRC.size) != kernel.crc32c(view[position + _COVERED_FROM : following - CRC.size]):
        return EventStep(Stop.BAD_CHECKSUM)
    if number not in EVENT_TYPES:
        raise UnknownVersionError(f"unknown event type {number}", position=position)
    if flags:
        raise UnknownVersionError(f"unknown flags {flags!r} of an event", position=position)
    kind = EVENT_TYPES[number]
    if length != kind.payload.size:
        raise CorruptionError(f"{kind.name} has {length} bytes, not {kind.payload.size}", position=position)
    return EventStep(Stop.END, number, following)


class EventsEnd(NamedTuple):
    """How many events follow a position, where they end, why, and where complete ones continue (`NOT_FOUND`)."""

    events: int
    end: int
    stop: Stop
    resumes_at: int


def events_end(view: memoryview, position: int) -> EventsEnd:
    """Walk the events from ``position`` on."""
    events = 0
    while (step := next_event(view, position)).number:
        events, position = events + 1, step.next
    return EventsEnd(events, position, step.stop, resumes_at(view, position, step.stop))


def resumes_at(view: memoryview, position: int, stop: Stop) -> int:
    """Where a complete event follows the bytes at ``position`` that are not one, or ``NOT_FOUND``."""
    return NOT_FOUND if stop.clean else find_event(view, position + 1)


def find_event(buf: Buffer, position: int) -> int:
    """The first position from ``position`` on where a complete event of a known type starts, or ``NOT_FOUND``."""
    view = memoryview(buf)
    start = EVENT.pack(magic=EVENT_MAGIC, version=VERSION)[: EVENT.at("event_type")]
    for begin in range(max(position, 0), len(view), _FIND_BYTES):
        raw, at = bytes(view[begin : begin + _FIND_BYTES + len(start) - 1]), -1
        while (at := raw.find(start, at + 1)) >= 0:
            if _is_event(view, begin + at):
                return begin + at
    return NOT_FOUND


def _is_event(view: memoryview, position: int) -> bool:
    known = EVENT_TYPES.get(int.from_bytes(view[position + 4 : position + 6], "big"))
    if known is None or int.from_bytes(view[position + 8 : position + EVENT.size], "big") != known.payload.size:
        return False
    crc_at = position + EVENT.size + known.payload.size
    if crc_at + CRC.size > len(view):
        return False
    return crc_stored(view, crc_at) == kernel.crc32c(view[position + _COVERED_FROM : crc_at])


# --- snapshots as columns

_INFLIGHT = np.dtype([("offset", ">u8"), ("deadline_ts_ms", ">u8"), ("epoch", ">u4"), ("reserved", ">u4")])
assert _INFLIGHT.itemsize == INFLIGHT.size


class SnapshotColumns(NamedTuple):
    """The state of a group at one moment; records in flight as columns, ascending by offset."""

    acked_until: int
    """Exclusive: every offset below is acknowledged."""
    offset: Int64s
    deadline_ms: Int64s
    epoch: Int64s
    created_ts_ms: int
    tp_hash: int
    group_hash: int
    flags: int


class SnapshotBytes(NamedTuple):
    """The parts of a valid snapshot file, as they are stored."""

    header: Header
    acked_until: int
    rows: npt.NDArray[Any]
    end: int


def open_snapshot(buf: Buffer) -> SnapshotBytes:
    """Check a snapshot file. Raises `CorruptionError` with the position of the problem."""
    view = memoryview(buf)
    check_size(view)
    if is_program_snapshot(view):
        raise UnknownVersionError(
            "a snapshot of the Stroma program (SSNAP), which cannot be the state of a group", position=0
        )
    header = SNAP_HEADER.parse(view)
    count, end = snapshot_end(view, header.length)
    crc_at = end - CRC.size
    if crc_stored(view, crc_at) != kernel.crc32c(view[header.length : crc_at]):
        raise CorruptionError("checksum mismatch in the snapshot", position=crc_at)
    if not kernel.is_zero(view, end, len(view)):
        raise CorruptionError(f"{len(view) - end} bytes follow the snapshot's end", position=end)
    acked_until = int(SNAP_STATE.unpack(view, header.length)["acked_until"])
    rows = np.frombuffer(view[header.length + SNAP_STATE.size :], _INFLIGHT, count)
    return SnapshotBytes(header, acked_until, rows, end)


def snapshot_end(view: memoryview, start: int) -> tuple[int, int]:
    """The number of records in flight and the end of the snapshot, checked against the size of the file."""
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


def decode_snapshot(buf: Buffer) -> SnapshotColumns:
    """The snapshot in ``buf``, as columns. Raises for numbers that no group can have, too."""
    header, acked_until, rows, _ = open_snapshot(buf)
    offsets, count = rows["offset"].astype(np.uint64), len(rows)
    if acked_until > MAX_OFFSET + 1 or (count and int(offsets.max()) > MAX_OFFSET):
        raise CorruptionError("an offset of the snapshot does not fit into 63 bits", position=header.length)
    order = np.argsort(offsets, kind="stable")
    offset = offsets[order].astype(np.int64)
    if count > 1 and not (np.diff(offset) > 0).all():
        raise CorruptionError("an offset is in flight twice", position=header.length + SNAP_STATE.size)
    deadlines = np.minimum(rows["deadline_ts_ms"].astype(np.uint64), MAX_TIME_MS).astype(np.int64)
    own = {name: int(header.values[name]) for name in ("created_ts_ms", "tp_hash", "group_hash", "flags")}
    return SnapshotColumns(acked_until, offset, deadlines[order], rows["epoch"].astype(np.int64)[order], **own)


def encode_snapshot(
    acked_until: int, inflight: Sequence[Marked], *, created_ts_ms: int, tp_hash: int = 0, group_hash: int = 0
) -> bytes:
    """The bytes of a snapshot; the runs in flight are ascending and disjoint."""
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
