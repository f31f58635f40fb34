"""The tables and the columns that the kernel and its Python twin share.

Declarations only: how a frame is laid out, which columns a scan fills, why a scan stopped. No loop is here and
no format either; a format module fills in a table, the kernel walks it.
"""

from __future__ import annotations

import struct
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, fields
from enum import IntEnum
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, Self, cast

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
UInt32s = npt.NDArray[np.uint32]


MAPPED_BYTES = 64 << 20
"""Pages of smaller files stay in memory."""


def is_mapping(buf: object) -> bool:
    """Whether ``buf`` is a large file mapped for reading, whose pages can be dropped and are worth dropping."""
    owner: Any = buf.obj if isinstance(buf, memoryview) else buf
    is_mapped = any(kind.__module__ == "mmap" for kind in type(owner).__mro__)  # by name: nothing here can map a file
    return is_mapped and len(owner) >= MAPPED_BYTES and memoryview(owner).readonly


class Stop(IntEnum):
    """Why a scan stopped. Everything from ``SHORT_HEADER`` on means that the bytes at the position are not a record."""

    END = 0
    LIMIT = 1
    ZEROS = 2
    SHORT_HEADER = 3
    SHORT_BODY = 4
    BAD_MAGIC = 5
    BAD_VERSION = 6
    BAD_FIELD = 7
    BAD_LENGTH = 8
    BAD_RANGE = 9
    BAD_ORDER = 10
    BAD_CHECKSUM = 11
    BAD_ENTRIES = 12

    @property
    def clean(self) -> bool:
        return self in (Stop.END, Stop.ZEROS)

    @property
    def meaning(self) -> str:
        return _MEANINGS[self]


_MEANINGS = {
    Stop.END: "end of the data",
    Stop.LIMIT: "the limit of this scan is reached",
    Stop.ZEROS: "only zero bytes follow",
    Stop.SHORT_HEADER: "fewer bytes left than a header has",
    Stop.SHORT_BODY: "the length field claims more bytes than are left",
    Stop.BAD_MAGIC: "bad magic number",
    Stop.BAD_VERSION: "unknown version",
    Stop.BAD_FIELD: "a reserved field is not zero",
    Stop.BAD_LENGTH: "the length field exceeds the format's maximum",
    Stop.BAD_RANGE: "the offset does not fit into 63 bits",
    Stop.BAD_ORDER: "the offset repeats or goes backwards",
    Stop.BAD_CHECKSUM: "checksum mismatch",
    Stop.BAD_ENTRIES: "the entries do not add up to what the header says",
}


class Checksum(IntEnum):
    NONE = 0
    CRC32 = 1
    CRC32C = 2


class ScanEnd(NamedTuple):
    """How a scan ended: rows filled, the first byte not consumed, why, and the last offset seen."""

    count: int  # type: ignore[assignment]
    position: int
    stop: int
    last_offset: int


class FrameHit(NamedTuple):
    """Result of a seek: ``stop`` is ``LIMIT`` for a valid frame at or above the target, else why the seek ended."""

    stop: int
    position: int
    offset: int
    timestamp: int
    value_position: int
    value_length: int
    headers_length: int
    flags: int
    next: int


class EntryHit(NamedTuple):
    """Result of a seek in chunks: ``LIMIT`` and an offset for the entry that holds the target, ``LIMIT`` and -1 if no
    user record has that offset, else why the seek ended. ``position`` is the chunk's."""

    stop: int
    position: int
    offset: int
    timestamp: int
    value_position: int
    value_length: int
    sub_batch: int
    records: int
    uncompressed_length: int


NOT_FOUND = -1
GAVE_UP = -2
"""Results of the find functions: no valid record follows, or searching on would cost too much."""


class Const(NamedTuple):
    """A header field with a constant value; ``stop`` is the result of a scan if it differs."""

    position: int
    width: int
    value: int
    stop: Stop


MAX_CONSTS = 4


@dataclass(frozen=True)
class FrameLayout:
    """A format of the family "fixed header, user headers, payload, trailer" as a table of positions.

    Positions are relative to the first byte of the frame; -1 means that the format has no such field.
    Widths: offset and timestamp 8 bytes, lengths, checksum and flags 4 bytes.
    """

    header_bytes: int
    big_endian: bool
    offset_at: int
    length_at: int
    consts: tuple[Const, ...] = ()
    trailer_bytes: int = 0
    headers_length_at: int = -1
    timestamp_at: int = -1
    flags_at: int = -1
    checksum: Checksum = Checksum.NONE
    checksum_at: int = -1
    """In the header; -1 with a checksum means the last four bytes of the frame."""
    covered_from: int = 0
    """First byte that the checksum covers; the last is the payload's last."""
    max_payload_bytes: int = 2**32 - 1
    packed: bytes = field(init=False, repr=False, compare=False)
    """The table as the array of int64 that the C kernel reads."""

    def __post_init__(self) -> None:
        if len(self.consts) > MAX_CONSTS:
            raise ValueError(f"at most {MAX_CONSTS} constant fields")
        if any(const.stop < Stop.SHORT_HEADER for const in self.consts):
            raise ValueError("a constant field that differs must stop a scan")
        places = [(self.offset_at, 8), (self.length_at, 4), (self.timestamp_at, 8), (self.headers_length_at, 4)]
        places += [(self.flags_at, 4), (self.checksum_at, 4), *((c.position, c.width) for c in self.consts)]
        if any(at >= 0 and at + width > self.header_bytes for at, width in places) or self.covered_from < 0:
            raise ValueError("a field lies outside of the header")
        if self.covered_from > self.header_bytes or (self.checksum and self.checksum_at < 0 and self.trailer_bytes < 4):
            raise ValueError("the checksum has no place, or covers nothing")
        numbers = [
            self.header_bytes, int(self.big_endian), self.offset_at, self.length_at, self.trailer_bytes,
            self.headers_length_at, self.timestamp_at, self.flags_at, int(self.checksum), self.checksum_at,
            self.covered_from, self.max_payload_bytes, len(self.consts),
        ]  # fmt: skip
        for const in self.consts:
            numbers += [const.position, const.width, const.value, int(const.stop)]
        numbers += [0] * (4 * (MAX_CONSTS - len(self.consts)))
        object.__setattr__(self, "packed", struct.pack(f"={len(numbers)}q", *numbers))


@cache
def _dtypes(kind: Hashable) -> dict[str, Any]:
    """The columns of a set by name; cached, because a scan creates a set every few microseconds."""
    return {field.name: field.metadata["dtype"] for field in fields(kind)}  # type: ignore[arg-type]


@dataclass
class Columns:
    """Base of the column sets: arrays of one length, the most rows that a scan can fill.

    Every set has ``position``: where the row's bytes start in the file.
    """

    if TYPE_CHECKING:

        @property
        def position(self) -> Int64s: ...

    @classmethod
    def empty(cls, capacity: int) -> Self:
        return cls(**{name: np.empty(capacity, dtype) for name, dtype in _dtypes(cast(Any, cls)).items()})

    def head(self, count: int) -> Self:
        """The first ``count`` rows, without a copy."""
        return self.slice(0, count)

    def slice(self, start: int, stop: int) -> Self:
        return type(self)(**{name: getattr(self, name)[start:stop] for name in _dtypes(cast(Any, type(self)))})

    def take(self, rows: npt.NDArray[np.int64] | npt.NDArray[np.bool_]) -> Self:
        """A copy of those rows."""
        return type(self)(**{name: getattr(self, name)[rows] for name in _dtypes(cast(Any, type(self)))})

    @classmethod
    def concat(cls, parts: Sequence[Self]) -> Self:
        return cls(**{f.name: np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(cls)})

    @property
    def first_offsets(self) -> Int64s:
        """The first logical offset of each row."""
        offsets: Int64s = getattr(self, "offset")  # noqa: B009
        return offsets

    @property
    def last_offsets(self) -> Int64s:
        """The last logical offset of each row."""
        return self.first_offsets

    @property
    def user_records(self) -> Int64s:
        """How many user records each row holds."""
        return np.ones(len(self), np.int64)

    @property
    def fillers(self) -> npt.NDArray[np.bool_]:
        """Which rows are fillers: they hold nothing and occupy the offsets of missing records."""
        return np.zeros(len(self), np.bool_)

    def __len__(self) -> int:
        return len(self.position)


def column(dtype: type[np.generic]) -> Any:
    return field(metadata={"dtype": dtype})


@dataclass
class FrameColumns(Columns):
    """One row per record of a frame format. ``timestamp`` is the stored number, bit for bit."""

    offset: Int64s = column(np.int64)
    timestamp: Int64s = column(np.int64)
    position: Int64s = column(np.int64)
    value_position: Int64s = column(np.int64)
    value_length: UInt32s = column(np.uint32)
    headers_length: UInt32s = column(np.uint32)
    flags: UInt32s = column(np.uint32)


BAD_TRACKING = 2**32 - 1
"""In `ChunkColumns.tracking`: the bytes are not a list of tracking blocks."""


@dataclass
class ChunkColumns(Columns):
    """One row per Osiris chunk. ``data_position`` is after the header and the Bloom filter."""

    chunk_id: Int64s = column(np.int64)
    timestamp: Int64s = column(np.int64)
    epoch: Int64s = column(np.int64)
    position: Int64s = column(np.int64)
    data_position: Int64s = column(np.int64)
    inflated_bytes: Int64s = column(np.int64)
    """Size of its compressed sub-batches after decompression, as they state it."""
    data_length: UInt32s = column(np.uint32)
    trailer_length: UInt32s = column(np.uint32)
    records: UInt32s = column(np.uint32)
    entries: UInt32s = column(np.uint32)
    chunk_type: UInt32s = column(np.uint32)
    sub_batches: UInt32s = column(np.uint32)
    tracking: UInt32s = column(np.uint32)
    """Tracking blocks in the trailer, or in the entry of a tracking chunk; or `BAD_TRACKING`."""

    @property
    def first_offsets(self) -> Int64s:
        return self.chunk_id

    @property
    def last_offsets(self) -> Int64s:
        return self.chunk_id + (self.records.astype(np.int64) - 1)

    @property
    def user_records(self) -> Int64s:
        return np.where(self.chunk_type == 0, self.records, 0).astype(np.int64)

    @property
    def fillers(self) -> npt.NDArray[np.bool_]:
        """Tracking deltas without tracking."""
        return (self.chunk_type == 1) & (self.tracking == 0)


@dataclass
class EntryColumns(Columns):
    """One row per entry of Osiris chunks; a sub-batch is one row, its body unopened."""

    offset: Int64s = column(np.int64)
    timestamp: Int64s = column(np.int64)
    position: Int64s = column(np.int64)
    value_position: Int64s = column(np.int64)
    value_length: UInt32s = column(np.uint32)
    sub_batch: UInt32s = column(np.uint32)
    """0 for a simple entry, else the first header byte of the sub-batch (0x80 | compression << 4)."""
    records: UInt32s = column(np.uint32)
    uncompressed_length: UInt32s = column(np.uint32)


NULL_LENGTH = 2**32 - 1
"""In the length columns of `RecordColumns` and `HeaderColumns`: null instead of bytes."""
CODEC, CONTROL = 7, 32
"""In `BatchColumns.attributes`: the bits of the compression, and that of a control batch."""


class BodyFault(IntEnum):
    """In place of how much a compressed body unfolds to: what its framing lacks."""

    UNKNOWN_CODEC = -1
    CUT_SHORT = -2
    NO_FRAME = -3
    BAD_BLOCK = -4

    @property
    def meaning(self) -> str:
        return _BODY_FAULTS[self]


_BODY_FAULTS = {
    BodyFault.UNKNOWN_CODEC: "its compression is not known",
    BodyFault.CUT_SHORT: "it is cut short",
    BodyFault.NO_FRAME: "it does not start with a frame",
    BodyFault.BAD_BLOCK: "a block has a size that is not allowed",
}


class AmqpFault(IntEnum):
    """Why a value is not a message of AMQP 1.0."""

    SOUND = 0
    CUT_SHORT = 2
    BAD_CODE = 3
    BAD_SIZE = 4
    TOO_DEEP = 5
    BAD_TEXT = 6
    BAD_VALUE = 7
    BAD_SECTION = 8
    BAD_ORDER = 9
    BAD_FIELD = 10

    @property
    def meaning(self) -> str:
        return _AMQP_FAULTS[self]


_AMQP_FAULTS = {
    AmqpFault.SOUND: "sound",
    AmqpFault.CUT_SHORT: "the value ends within a field",
    AmqpFault.BAD_CODE: "unknown type code",
    AmqpFault.BAD_SIZE: "a size or count does not fit the content",
    AmqpFault.TOO_DEEP: "nested more than 32 levels deep",
    AmqpFault.BAD_TEXT: "a string is not UTF-8, or a symbol not ASCII",
    AmqpFault.BAD_VALUE: "a boolean or a character is out of range",
    AmqpFault.BAD_SECTION: "not a section of a message",
    AmqpFault.BAD_ORDER: "a section that must not follow the one before",
    AmqpFault.BAD_FIELD: "a field has a type or a time that is not allowed there",
}


class AmqpField(IntEnum):
    """The rows of spans that `scan_amqp` fills: fields of the header, of the properties, and sections."""

    DURABLE = 0
    PRIORITY = 1
    TTL = 2
    FIRST_ACQUIRER = 3
    DELIVERY_COUNT = 4
    DELIVERY_ANNOTATIONS = 5
    ANNOTATIONS = 6
    MESSAGE_ID = 7
    USER_ID = 8
    TO = 9
    SUBJECT = 10
    REPLY_TO = 11
    CORRELATION_ID = 12
    CONTENT_TYPE = 13
    CONTENT_ENCODING = 14
    ABSOLUTE_EXPIRY_TIME = 15
    CREATION_TIME = 16
    GROUP_ID = 17
    GROUP_SEQUENCE = 18
    REPLY_TO_GROUP_ID = 19
    APPLICATION_PROPERTIES = 20
    DATA = 21
    SEQUENCE = 22
    VALUE = 23
    FOOTER = 24


AMQP_DESCRIBED = 1
"""In `AmqpSpans.code`: a described value, whose own code is that of an absent one."""


@dataclass
class AmqpSpans(Columns):
    """Values of AMQP's type system. ``position``: where the content begins; of a number of up to 8 bytes the number
    itself; of a list, map, array or described value its constructor. Where ``code`` is 0, the value is absent, and the
    other columns hold anything."""

    code: npt.NDArray[np.uint8] = column(np.uint8)
    position: Int64s = column(np.int64)
    length: UInt32s = column(np.uint32)
    count: UInt32s = column(np.uint32)
    """Items of a list, map or array; sections of a body of data or of sequences."""


@dataclass
class BatchColumns(Columns):
    """One row per Kafka batch, or per message of the older formats. ``data_position`` is after the header."""

    base_offset: Int64s = column(np.int64)
    last_offset: Int64s = column(np.int64)
    base_timestamp: Int64s = column(np.int64)
    max_timestamp: Int64s = column(np.int64)
    producer_id: Int64s = column(np.int64)
    producer_epoch: Int64s = column(np.int64)
    base_sequence: Int64s = column(np.int64)
    leader_epoch: Int64s = column(np.int64)
    position: Int64s = column(np.int64)
    data_position: Int64s = column(np.int64)
    data_length: UInt32s = column(np.uint32)
    records: UInt32s = column(np.uint32)
    visible: UInt32s = column(np.uint32)
    """How many of its records readers see; none of a control batch."""
    attributes: UInt32s = column(np.uint32)
    magic: UInt32s = column(np.uint32)

    @property
    def timestamp(self) -> Int64s:
        return self.max_timestamp

    @property
    def first_offsets(self) -> Int64s:
        return self.base_offset

    @property
    def last_offsets(self) -> Int64s:
        return self.last_offset

    @property
    def user_records(self) -> Int64s:
        return self.visible.astype(np.int64)


@dataclass
class RecordRanges(Columns):
    """Where the records of batches lie, not compressed, and in which row of `RecordColumns` the first of each goes."""

    position: Int64s = column(np.int64)
    length: Int64s = column(np.int64)
    records: Int64s = column(np.int64)
    row: Int64s = column(np.int64)
    base_offset: Int64s = column(np.int64)
    last_offset: Int64s = column(np.int64)
    base_timestamp: Int64s = column(np.int64)
    in_plain: UInt32s = column(np.uint32)
    """Not 0 where they lie in what compressed batches unfolded to, instead of the file."""


@dataclass
class RecordColumns(Columns):
    """One row per record of Kafka batches."""

    offset: Int64s = column(np.int64)
    timestamp: Int64s = column(np.int64)
    position: Int64s = column(np.int64)
    key_position: Int64s = column(np.int64)
    value_position: Int64s = column(np.int64)
    headers_position: Int64s = column(np.int64)
    key_length: UInt32s = column(np.uint32)
    value_length: UInt32s = column(np.uint32)
    headers: UInt32s = column(np.uint32)
    """How many headers it has."""


@dataclass
class HeaderColumns(Columns):
    """One row per header of Kafka records."""

    key_position: Int64s = column(np.int64)
    value_position: Int64s = column(np.int64)
    key_length: UInt32s = column(np.uint32)
    value_length: UInt32s = column(np.uint32)

    def __len__(self) -> int:
        return len(self.key_position)


# --- one append at a time

APPENDED_BYTES = 64 << 10
"""The largest record, encoded, that a record writer takes."""
APPENDED_ROWS = 1024
"""How many records it writes before the log takes them over."""
NOT_DONE = -1
"""The result of an append that only the ordinary path can make."""


class RecordKind(IntEnum):
    """What a record writer makes of each record. `Columns` of the kind take its row."""

    FRAME = 0
    SLOT = 1
    CHUNK = 2
    BATCH = 3


class RecordShape(NamedTuple):
    """How a record writer encodes: frames of ``layout``, slots for records of ``slot_bytes``, or chunks or batches of
    one record each, with an epoch. ``time_unit_us`` is the unit of stored times, 0 without times."""

    kind: RecordKind
    layout: FrameLayout | None = None
    slot_bytes: int = 0
    chunk_version: int = 0
    epoch: int = 0
    time_unit_us: int = 0
    is_ordered: bool = False
    has_digest: bool = True


class AppendState(NamedTuple):
    """Where a record writer goes on: after the last record, its time, the number of the last watermark, the digest
    of the segment, the end of the index, if every record gets an entry at once, and what is durable of the segment."""

    position: int
    next_offset: int
    last_us: int
    number: int
    crc32c: int
    index_position: int = 0
    durable_position: int = 0
    durable_offset: int = 0
    durable_crc32c: int = 0


class AppendLimits(NamedTuple):
    """What a record writer may not pass: the end of a record, the next offset, the time (which it may not reach), the
    records and bytes that may wait for the sync of ``interval``, and the end of a record that is synced at once."""

    position: int
    next_offset: int
    us: int
    timed_records: int
    timed_bytes: int
    synced_position: int = 0


class AppendNotes(NamedTuple):
    """Where a record writer notes the duration of each append, and the bytes, the records if more than one, and the
    seconds of the sync, of each group."""

    seconds: list[float]
    sizes: list[int]
    records: list[int]
    syncs: list[float]


class AppendSeen(NamedTuple):
    """What readers see of the appends of a record writer: the ``mark`` that it was armed with, and what is different
    in the watermark that it stored last."""

    mark: Any
    position: int
    next_offset: int
    crc32c: int
    durable_position: int
    durable_offset: int
    durable_crc32c: int


class AppendOutcome(NamedTuple):
    """What a record writer wrote, and where it stands. ``is_torn``: a part of one more record may follow.
    ``unmarked_bytes`` is the size of the last ``unmarked_records`` if storing their watermark failed, else 0;
    ``index_bytes`` those of the entries that it wrote. ``sync_errno``: a sync failed, and more may follow."""

    rows: int
    position: int
    next_offset: int
    last_us: int
    number: int
    crc32c: int
    timed_records: int
    timed_bytes: int
    is_torn: bool
    unmarked_bytes: int
    index_bytes: int = 0
    unmarked_records: int = 0
    sync_errno: int = 0
    durable_position: int = 0
    durable_offset: int = 0
    durable_crc32c: int = 0
