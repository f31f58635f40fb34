"""Stroma: what a consumer group has acknowledged and holds in flight, as the bytes of two files; all big-endian.

::

    every Keratin file but the manifest starts with
      0  magic          8 bytes
      8  version        u16  1
     10  flags          u16  kept as it is
     12  header_len     u32  the whole header; a longer one than we know is accepted
     16  …              the file's own fields
     -4  header_crc32c  u32  CRC-32C of all header bytes before it

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
      …  min_deadline_hint  u64  0 = nothing is in flight
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

Only bytes and plain values: what the events mean is the groups' business. A delta that is cut off gives the events
up to there; an event of an unknown version, type or flag raises, because to skip it would change the state. The
program that these files come from writes other ones (SSNAP snapshots, and STROMA events in an ordinary Keratin
log): they are recognised and shown, not read.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, NamedTuple

from duramen import kernel
from duramen.errors import CorruptionError, IncompleteHeaderError, UnknownVersionError, UsageError
from duramen.formats.base import Problem, Severity
from duramen.formats.structs import Block, Buffer, Field, Struct
from duramen.kernel.layout import NOT_FOUND, Stop

VERSION = 1
EVENT_MAGIC = 0x4B45

START = Struct(">", magic="8s", version="H", flags="H", header_len="I")
CRC = Struct(">", crc32c="I")


# --- the header that Keratin files share


class Header(NamedTuple):
    """A file header that was found sound: its fields, and where the data behind it starts."""

    values: dict[str, Any]
    length: int


class FileHeader:
    """The header of one kind of file: magic, version, flags, length, fields of its own, checksum."""

    def __init__(self, magic: bytes, /, **own: str) -> None:
        self.magic = magic
        self.struct = Struct(">", magic="8s", version="H", flags="H", header_len="I", **own, header_crc32c="I")
        self.size = self.struct.size

    def pack(self, **values: int) -> bytes:
        header = self.struct.pack(magic=self.magic, version=VERSION, header_len=self.size, **values)
        return with_crc(header[: -CRC.size])

    def parse(self, buf: Buffer) -> Header:
        """The header at the start of ``buf``; raises `CorruptionError` with the position of what is wrong.

        A file too short for a header, whose bytes are how one begins, raises `IncompleteHeaderError`.
        """
        view = memoryview(buf)
        length = self._check_start(view)
        if len(view) < self.size:
            raise IncompleteHeaderError(f"the file header is torn: {len(view)} bytes of {length}", position=0)
        if length > len(view):
            raise CorruptionError(
                f"the file header claims {length} bytes, the file has {len(view)}", position=START.at("header_len")
            )
        crc_at = length - CRC.size
        if crc_stored(view, crc_at) != kernel.crc32c(view[:crc_at]):
            raise CorruptionError("checksum mismatch in the file header", position=crc_at)
        return Header(self.struct.unpack(view), length)

    def _check_start(self, view: memoryview) -> int:
        """Judge magic, version and length, as far as they are there; answers the length that the header claims."""
        sound = START.pack(magic=self.magic, version=VERSION, header_len=self.size)
        start = bytes(view[: START.size])
        magic, version, _, length = START.unpack(start + sound[len(start) :]).values()
        if magic != self.magic:
            raise CorruptionError(f"bad magic number {magic!r} instead of {self.magic!r}", position=0)
        if version != VERSION:
            raise UnknownVersionError(f"unknown version {version!r} of the file", position=START.at("version"))
        assert isinstance(length, int)
        if length < self.size:
            raise CorruptionError(
                f"the file header claims {length} bytes and has {self.size}", position=START.at("header_len")
            )
        return length

    def claimed_length(self, buf: Buffer) -> int:
        """The length that a header says it has, sound or not, where the file is that long; else the usual one."""
        view = memoryview(buf)
        length = int.from_bytes(view[START.at("header_len") : START.size], "big")
        return length if self.size <= length <= len(view) else self.size

    def dump(self, buf: Buffer, problem: str | None = None) -> Block:
        """The header field by field, with the bytes of a longer one that we do not know."""
        view = memoryview(buf)
        listed = list(self.struct.fields(view, 0))
        length = self.claimed_length(view)
        if length > self.size:
            rest_at, crc_at = self.size - CRC.size, length - CRC.size
            listed[-1:] = [
                Field("extension", rest_at, crc_at - rest_at, bytes(view[rest_at : min(rest_at + 64, crc_at)])),
                Field("header_crc32c", crc_at, CRC.size, crc_stored(view, crc_at)),
            ]
        return Block("hdr", 0, listed, problem)


def crc_stored(view: memoryview, position: int) -> int:
    return int.from_bytes(view[position : position + CRC.size], "big")


def with_crc(covered: bytes) -> bytes:
    return covered + CRC.pack(crc32c=kernel.crc32c(covered))


def all_zero(buf: Buffer) -> bool:
    """Whether a file is empty or holds zeros only: a clean end, before even its header was written."""
    return kernel.is_zero(buf, 0, len(memoryview(buf)))


# --- names and hashes


class GroupName(NamedTuple):
    """Whose state a file holds.

    >>> GroupName("orders", 0, "billing").stem
    'orders-0_billing'
    >>> GroupName.parse("a%5Fb-12_x-1")
    GroupName(topic='a_b', partition=12, group='x-1')
    """

    topic: str
    partition: int
    group: str

    @property
    def stem(self) -> str:
        """The file name without its suffix: names percent-encoded outside of ``[A-Za-z0-9.-]``."""
        if self.partition < 0:
            raise UsageError(f"partition {self.partition} is negative")
        return f"{_percent(self.topic)}-{self.partition}_{_percent(self.group)}"

    @classmethod
    def parse(cls, stem: str) -> GroupName | None:
        """The names in a stem; None for one that no group has."""
        match = _STEM.fullmatch(stem)
        if match is None:
            return None
        try:
            topic, group = (_unpercent(match[number]) for number in (1, 3))
        except UnicodeDecodeError:
            return None
        name = cls(topic, int(match[2]), group)
        return name if name.stem == stem else None

    @property
    def tp_hash(self) -> int:
        return fnv1a(f"{self.topic}-{self.partition}".encode())

    @property
    def group_hash(self) -> int:
        return fnv1a(self.group.encode())


_TEXT = r"((?:[A-Za-z0-9.-]|%[0-9A-F]{2})+)"
_STEM = re.compile(rf"{_TEXT}-(0|[1-9][0-9]{{0,18}})_{_TEXT}")
_UNSAFE = re.compile(rb"[^A-Za-z0-9.-]")
_ESCAPED = re.compile(rb"%([0-9A-F]{2})")


def _percent(text: str) -> str:
    if not text:
        raise UsageError("a topic or group without a name has no file")
    try:
        raw = text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"the name {text!r} is not Unicode text") from error
    return _UNSAFE.sub(lambda found: b"%%%02X" % found[0][0], raw).decode("ascii")


def _unpercent(text: str) -> str:
    return _ESCAPED.sub(lambda found: bytes.fromhex(found[1].decode()), text.encode()).decode()


def fnv1a(data: bytes) -> int:
    """The 64-bit FNV-1a hash.

    >>> hex(fnv1a(b"billing"))
    '0x4005570295afd25c'
    """
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


# --- snapshots

SNAP_HEADER = FileHeader(b"KSNAP\0\0\0", created_ts_ms="Q", tp_hash="Q", group_hash="Q", reserved="32s")
SNAP_STATE = Struct(">", acked_until="Q", inflight_count="I", reserved0="I")
INFLIGHT = Struct(">", offset="Q", deadline_ts_ms="Q", epoch="I", reserved="I")
SNAP_END = Struct(">", min_deadline_hint="Q", payload_crc32c="I")


class Inflight(NamedTuple):
    """A record that was delivered and not acknowledged yet. ``epoch`` counts the deliveries."""

    offset: int
    deadline_ts_ms: int
    epoch: int


@dataclass(frozen=True)
class Snapshot:
    """The state of a group at one moment.

    >>> state = Snapshot(acked_until=1, inflight=(Inflight(2, 1_700_000_030_000, 1),))
    >>> Snapshot.decode(state.encode()) == state
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
    def decode(cls, buf: Buffer) -> Snapshot:
        """The snapshot in ``buf``; raises `CorruptionError` with the position of what is wrong."""
        view = memoryview(buf)
        if is_program_snapshot(view):
            raise UnknownVersionError(
                "a snapshot of the Stroma program (SSNAP), which is shown but not read", position=0
            )
        header = SNAP_HEADER.parse(view)
        count, end = _snapshot_end(view, header.length)
        crc_at = end - CRC.size
        if crc_stored(view, crc_at) != kernel.crc32c(view[header.length : crc_at]):
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

    def check_name(self, name: GroupName) -> Iterator[Problem]:
        """A hash that is set and is not the name's: a warning, never a reason to reject the file."""
        for field, expected in (("tp_hash", name.tp_hash), ("group_hash", name.group_hash)):
            stored = getattr(self, field)
            if stored not in (0, expected):
                yield Problem(
                    "group-name", Severity.WARNING, f"{field} {stored:016x} is not that of the file's name",
                    SNAP_HEADER.struct.at(field),
                )  # fmt: skip


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


def dump_snapshot(buf: Buffer) -> Iterator[Block]:
    """Every structure of a ``.snap`` file."""
    view = memoryview(buf)
    if is_program_snapshot(view):
        yield from _dump_program_snapshot(view)
        return
    try:
        start = SNAP_HEADER.parse(view).length
    except CorruptionError as error:
        yield SNAP_HEADER.dump(view, error.message)
        return
    yield SNAP_HEADER.dump(view)
    try:
        count, end = _snapshot_end(view, start)
    except CorruptionError as error:
        yield Block("payload", start, list(SNAP_STATE.fields(view, start)), error.message)
        return
    yield Block("payload", start, list(SNAP_STATE.fields(view, start)))
    position = start + SNAP_STATE.size
    for row in range(count):
        yield Block(f"inflight{row}", position, list(INFLIGHT.fields(view, position)))
        position += INFLIGHT.size
    problem = None
    try:
        Snapshot.decode(view)
    except CorruptionError as error:
        problem = error.message
    yield Block("end", position, list(SNAP_END.fields(view, position)), problem)
    if end < len(view):
        yield _rest(view, end)


def _rest(view: memoryview, position: int) -> Block:
    rest = len(view) - position
    return Block("rest", position, [Field("bytes", position, rest, bytes(view[position : position + 64]))])


# --- deltas

DELTA_HEADER = FileHeader(b"KDELTA\0\0", created_ts_ms="Q", reserved="32s")
EVENT = Struct(">", magic="H", version="H", event_type="H", flags="H", len="I")
_COVERED_FROM = EVENT.at("version")


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
        """The delta in ``buf``. Raises for a bad header, and for an event that nobody here understands."""
        view = memoryview(buf)
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


def delta_header(created_ts_ms: int, flags: int = 0) -> bytes:
    """The bytes that a new delta starts with."""
    return DELTA_HEADER.pack(created_ts_ms=created_ts_ms, flags=flags)


class _Step(NamedTuple):
    stop: Stop
    event: Event | None = None
    next: int = 0


def _next_event(view: memoryview, position: int) -> _Step:
    """The event at ``position``, or why there is none. Raises for one that is whole but not known."""
    rest = len(view) - position
    if rest == 0:
        return _Step(Stop.END)
    if kernel.is_zero(view, position, len(view)):
        return _Step(Stop.ZEROS)
    if rest < EVENT.size:
        return _Step(Stop.SHORT_HEADER)
    magic, version, number, flags, length = EVENT.unpack(view, position).values()
    if magic != EVENT_MAGIC:
        return _Step(Stop.BAD_MAGIC)
    if version != VERSION:
        if kernel.is_zero(view, position + _COVERED_FROM, len(view)):
            return _Step(Stop.SHORT_HEADER)  # the file grew, but only the magic number arrived
        raise UnknownVersionError(f"unknown version {version!r} of an event", position=position)
    assert isinstance(number, int)
    assert isinstance(length, int)
    following = position + EVENT.size + length + CRC.size
    if following > len(view):
        return _Step(Stop.SHORT_BODY)
    if crc_stored(view, following - CRC.size) != kernel.crc32c(view[position + _COVERED_FROM : following - CRC.size]):
        return _Step(Stop.BAD_CHECKSUM)
    if number not in _EVENTS:
        raise UnknownVersionError(f"unknown event type {number}", position=position)
    if flags:
        raise UnknownVersionError(f"unknown flags {flags!r} of an event", position=position)
    kind, payload = _EVENTS[number]
    if length != payload.size:
        raise CorruptionError(f"{kind.__name__} has {length} bytes, not {payload.size}", position=position)
    return _Step(Stop.END, kind(*map(int, payload.unpack(view, position + EVENT.size).values())), following)


def find_event(buf: Buffer, position: int) -> int:
    """The first position from ``position`` on where a whole event of a known type starts, or ``NOT_FOUND``."""
    raw = bytes(buf)
    view = memoryview(raw)
    start = EVENT.pack(magic=EVENT_MAGIC, version=VERSION)[: EVENT.at("event_type")]
    while (position := raw.find(start, position)) >= 0:
        known = _EVENTS.get(int.from_bytes(raw[position + 4 : position + 6], "big"))
        if known is not None and int.from_bytes(raw[position + 8 : position + EVENT.size], "big") == known[1].size:
            crc_at = position + EVENT.size + known[1].size
            if crc_at + CRC.size <= len(raw) and crc_stored(view, crc_at) == kernel.crc32c(
                view[position + _COVERED_FROM : crc_at]
            ):
                return position
        position += 1
    return NOT_FOUND


def dump_delta(buf: Buffer) -> Iterator[Block]:
    """Every event of a ``.delta`` file, then the place where they end."""
    view = memoryview(buf)
    if all_zero(view):
        if view:
            yield Block("zeros", 0, [Field("zeros", 0, len(view), f"{len(view)} zero bytes", "a clean end")])
        return
    try:
        position = DELTA_HEADER.parse(view).length
    except CorruptionError as error:
        yield DELTA_HEADER.dump(view, error.message)
        return
    yield DELTA_HEADER.dump(view)
    while True:
        try:
            step = _next_event(view, position)
        except CorruptionError as error:
            yield Block("event", position, list(EVENT.fields(view, position)), error.message)
            return
        if step.event is None:
            break
        yield Block(type(step.event).__name__, position, list(_event_fields(view, position, step.next)))
        position = step.next
    rest = len(view) - position
    if step.stop == Stop.ZEROS:
        yield Block("zeros", position, [Field("zeros", position, rest, f"{rest} zero bytes", "a clean end")])
    elif rest:
        listed = list(EVENT.fields(view, position)) or list(_rest(view, position).fields)
        yield Block("event", position, listed, step.stop.meaning)


def _event_fields(view: memoryview, position: int, following: int) -> Iterator[Field]:
    yield from EVENT.fields(view, position)
    number = int(EVENT.unpack(view, position)["event_type"])
    yield from _EVENTS[number][1].fields(view, position + EVENT.size)
    yield from CRC.fields(view, following - CRC.size)


# --- what is wrong with a group's files


def check_snapshot(buf: Buffer) -> Iterator[Problem]:
    if is_program_snapshot(buf):
        yield Problem("foreign-snapshot", Severity.NOTE, "a snapshot of the Stroma program (SSNAP): shown, not read", 0)
        return
    try:
        Snapshot.decode(buf)
    except CorruptionError as error:
        yield Problem("bad-snapshot", Severity.DAMAGE, error.message, error.position)


def check_delta(buf: Buffer) -> Iterator[Problem]:
    try:
        delta = Delta.decode(buf)
    except CorruptionError as error:
        yield Problem("bad-delta", Severity.DAMAGE, error.message, error.position)
        return
    if delta.resumes_at != NOT_FOUND:
        message = f"{delta.stop.meaning}, and whole events follow at byte {delta.resumes_at}"
        yield Problem("bad-delta", Severity.DAMAGE, message, delta.end)
    elif not delta.stop.clean:
        yield Problem("torn-delta", Severity.WARNING, f"{delta.stop.meaning}: the last event is torn", delta.end)


# --- the files of the program itself

PROGRAM_EVENT_MAGIC = b"STROMA\0\0"
PROGRAM_SNAPSHOT_MAGIC = b"SSNAP\0\0\0"

_PROGRAM_HEADER = Struct(">", magic="8s", version="H", reserved="H", last_applied_event_offset="Q", blob_len="I")
_PROGRAM_WINDOW = Struct(">", settled_until="Q", ack_window_base="Q", window_len="I")
_PROGRAM_LISTS = (
    ("inflight", Struct(">", offset="Q", deadline="Q")),
    ("enqueued", Struct(">", offset="Q", retries="I")),
)


def is_program_snapshot(buf: Buffer) -> bool:
    """Whether a file is a snapshot as the Stroma program writes it."""
    return bytes(memoryview(buf)[:8]) == PROGRAM_SNAPSHOT_MAGIC


def is_program_event(payload: Buffer) -> bool:
    """Whether a record of a Keratin log is a state event of the Stroma program."""
    return bytes(memoryview(payload)[:8]) == PROGRAM_EVENT_MAGIC


def _dump_program_snapshot(view: memoryview) -> Iterator[Block]:
    """The fields of an SSNAP file, as far as they lie within the blob."""
    yield Block("hdr", 0, list(_PROGRAM_HEADER.fields(view, 0)))
    if len(view) < _PROGRAM_HEADER.size:
        return
    start = _PROGRAM_HEADER.size
    end = start + int(_PROGRAM_HEADER.unpack(view)["blob_len"])
    if end + CRC.size > len(view):
        yield Block("blob", start, list(_rest(view, start).fields), "the snapshot is cut short")
        return
    yield from _dump_program_blob(view[:end], start)
    covered = view[_PROGRAM_HEADER.at("version") : end]
    sound = crc_stored(view, end) == kernel.crc32c(covered)
    yield Block("end", end, list(CRC.fields(view, end)), None if sound else Stop.BAD_CHECKSUM.meaning)


def _dump_program_blob(view: memoryview, position: int) -> Iterator[Block]:
    window = list(_PROGRAM_WINDOW.fields(view, position))
    if len(window) < len(_PROGRAM_WINDOW.names):
        yield Block("blob", position, window, "the blob is cut short")
        return
    position += _PROGRAM_WINDOW.size
    bits = view[position : position + int(window[-1].value)]
    yield Block("blob", window[0].position, [*window, Field("ack_window", position, len(bits), bytes(bits))])
    position += len(bits)
    for name, row in _PROGRAM_LISTS:
        size = Struct(">", **{f"{name}_len": "I"})
        listed = list(size.fields(view, position))
        if not listed:
            yield Block("blob", min(position, len(view)), [], "the blob is cut short")
            return
        yield Block("blob", position, listed)
        position += size.size
        for number in range(int(listed[0].value)):
            if position + row.size > len(view):
                yield Block(f"blob.{name}{number}", position, [], "the list is longer than the blob")
                return
            yield Block(f"blob.{name}{number}", position, list(row.fields(view, position)))
            position += row.size
