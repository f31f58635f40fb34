"""The kernel in plain Python: the executable spec of every kernel function, and the oracle of the tests.

Slow on purpose: one loop, no cleverness, nothing shared with the C code but the tables of `layout`. Stateless, no
I/O, no policy. `DURAMEN_PUREPYTHON=1` selects it. Every function checks a length against what remains before it
reads. The compiled functions have the same names, arguments, results and refusals.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import fields

import numpy as np

from duramen.kernel.layout import (
    BAD_TRACKING,
    GAVE_UP,
    NOT_FOUND,
    Checksum,
    ChunkColumns,
    Columns,
    EntryColumns,
    EntryHit,
    FrameColumns,
    FrameHit,
    FrameLayout,
    Int64s,
    ScanEnd,
    Stop,
    UInt32s,
)

Buffer = bytes | bytearray | memoryview
Int32s = np.ndarray[tuple[int], np.dtype[np.int32]]
UInt8s = np.ndarray[tuple[int], np.dtype[np.uint8]]
UInt64Pairs = np.ndarray[tuple[int, int], np.dtype[np.uint64]]


# --- checksums


def _crc_table(polynomial: int) -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (polynomial if byte & 1 else 0)
        table.append(byte)
    return table


_CRC32_TABLE = _crc_table(0xEDB88320)
_CRC32C_TABLE = _crc_table(0x82F63B78)


def _crc(table: list[int], data: Buffer, value: int) -> int:
    if not 0 <= value <= 0xFFFFFFFF:
        raise ValueError("value must fit into 32 bits")
    crc = value ^ 0xFFFFFFFF
    for byte in memoryview(data).cast("B"):
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def crc32(data: Buffer, value: int = 0) -> int:
    """CRC-32 (IEEE) of ``data``, continuing from ``value``."""
    return _crc(_CRC32_TABLE, data, value)


def crc32c(data: Buffer, value: int = 0) -> int:
    """CRC-32C (Castagnoli) of ``data``, continuing from ``value``."""
    return _crc(_CRC32C_TABLE, data, value)


def digest(data: Buffer, crc32c: int = 0, crc32: int = 0) -> tuple[int, int]:
    """CRC-32C and CRC-32 of the same bytes, each continuing from its value."""
    return _crc(_CRC32C_TABLE, data, crc32c), _crc(_CRC32_TABLE, data, crc32)


def _check_digests(digests: UInt32s | None) -> None:
    if digests is not None and len(digests) != 2:
        raise ValueError("digests must be two numbers: CRC-32C and CRC-32")


def _take_in(digests: UInt32s | None, passed: memoryview) -> None:
    """What a scan has passed goes into the digests that the caller holds."""
    if digests is not None:
        digests[:] = digest(passed, int(digests[0]), int(digests[1]))


# --- any bytes


def _bytes_of(buf: Buffer, position: int, end: int) -> memoryview:
    view = memoryview(buf).cast("B")
    if not 0 <= position <= end <= len(view):
        raise ValueError("range lies outside of the buffer")
    return view


def is_zero(buf: Buffer, position: int, end: int) -> bool:
    """Whether nothing but zero bytes lies in ``[position, end)``."""
    return not any(_bytes_of(buf, position, end)[position:end])


def gather(buf: Buffer, positions: Int64s, lengths: UInt32s, offsets: Int32s, data: Buffer) -> int:
    """Copy every row's bytes side by side into ``data`` and fill Arrow's ``offsets``; answers the bytes copied."""
    if len(lengths) != len(positions) or len(offsets) != len(positions) + 1:
        raise ValueError("positions, lengths and offsets differ in length")
    source, target = memoryview(buf).cast("B"), memoryview(data).cast("B")
    at = 0
    offsets[0] = 0
    for row, (start, length) in enumerate(zip(positions.tolist(), lengths.tolist(), strict=True)):
        if start < 0 or start + length > len(source) or at + length > min(len(target), 2**31 - 1):
            raise ValueError(f"row {row} lies outside of the buffer")
        target[at : at + length] = source[start : start + length]
        at += length
        offsets[row + 1] = at
    return at


# --- frames: fixed header, user headers, payload, trailer


class _Frame:
    __slots__ = ("flags", "headers_length", "next", "offset", "position", "timestamp", "value_length", "value_position")

    def __init__(self, view: memoryview, position: int, layout: FrameLayout) -> None:
        def number(at: int, width: int) -> int:
            if at < 0:
                return 0
            raw = view[position + at : position + at + width]
            return int.from_bytes(raw, "big" if layout.big_endian else "little")

        timestamp = number(layout.timestamp_at, 8)
        self.offset = number(layout.offset_at, 8)
        self.timestamp = timestamp - 2**64 if timestamp >= 2**63 else timestamp
        self.flags = number(layout.flags_at, 4)
        self.value_length = number(layout.length_at, 4)
        self.headers_length = number(layout.headers_length_at, 4)
        self.position = position
        self.value_position = position + layout.header_bytes + self.headers_length
        self.next = self.value_position + self.value_length + layout.trailer_bytes


def _parse_frame(
    view: memoryview, position: int, end: int, layout: FrameLayout, previous_offset: int
) -> tuple[Stop, _Frame | None]:
    if end - position < layout.header_bytes:
        return Stop.SHORT_HEADER, None
    order = "big" if layout.big_endian else "little"
    for const in layout.consts:
        raw = view[position + const.position : position + const.position + const.width]
        if int.from_bytes(raw, order) != const.value:  # type: ignore[arg-type]
            return const.stop, None
    frame = _Frame(view, position, layout)
    if frame.value_length > layout.max_payload_bytes:
        return Stop.BAD_LENGTH, None
    if frame.offset >= 2**63:
        return Stop.BAD_RANGE, None
    if frame.next > end:
        return Stop.SHORT_BODY, None
    if frame.offset <= previous_offset:
        return Stop.BAD_ORDER, None
    return Stop.END, frame


def _frame_is_whole(view: memoryview, layout: FrameLayout, frame: _Frame) -> bool:
    if layout.checksum == Checksum.NONE:
        return True
    at = frame.next - 4 if layout.checksum_at < 0 else frame.position + layout.checksum_at
    stored = int.from_bytes(view[at : at + 4], "big" if layout.big_endian else "little")
    covered = view[frame.position + layout.covered_from : frame.value_position + frame.value_length]
    return stored == (crc32c if layout.checksum == Checksum.CRC32C else crc32)(covered)


def scan_frames(
    buf: Buffer,
    position: int,
    end: int,
    layout: FrameLayout,
    columns: FrameColumns,
    previous_offset: int = -1,
    max_bytes: int = 2**62,
    verify: bool = True,
    digests: UInt32s | None = None,
    value_offsets: Int32s | None = None,
    values: Buffer | None = None,
) -> ScanEnd:
    """Fill ``columns`` with the frames from ``position`` on, until they are full, until the next frame would make
    it more than ``max_bytes`` (the first is always taken), or until something is no frame. ``digests``, a CRC-32C and a
    CRC-32, go on with the bytes of these frames.

    With ``values`` the values are copied there on the way, as `gather` would, with their ``value_offsets``; one that
    does not fit is a limit, too, even if it is the first."""
    _check_digests(digests)
    view = _bytes_of(buf, position, end)
    capacity = len(columns)
    if capacity == 0:
        raise ValueError("the columns have no room")
    if (value_offsets is None) != (values is None):
        raise ValueError("values and their offsets go together")
    start, count, stop, copied = position, 0, Stop.END, 0
    target = None if values is None else memoryview(values).cast("B")
    room = 0 if target is None else min(len(target), 2**31 - 1)
    if value_offsets is not None:
        if len(value_offsets) != capacity + 1:
            raise ValueError("the columns and the offsets of values differ in length")
        value_offsets[0] = 0
    while position < end:
        if count == capacity:
            stop = Stop.LIMIT
            break
        if is_zero(view, position, end):
            stop = Stop.ZEROS
            break
        stop, frame = _parse_frame(view, position, end, layout, previous_offset)
        if frame is None:
            break
        if count > 0 and frame.next - start > max_bytes:
            stop = Stop.LIMIT
            break
        if target is not None and frame.value_length > room - copied:
            stop = Stop.LIMIT
            break
        if verify and not _frame_is_whole(view, layout, frame):
            stop = Stop.BAD_CHECKSUM
            break
        if target is not None and value_offsets is not None:
            value = view[frame.value_position : frame.value_position + frame.value_length]
            target[copied : copied + frame.value_length] = value
            copied += frame.value_length
            value_offsets[count + 1] = copied
        columns.offset[count] = frame.offset
        columns.timestamp[count] = frame.timestamp
        columns.position[count] = frame.position
        columns.value_position[count] = frame.value_position
        columns.value_length[count] = frame.value_length
        columns.headers_length[count] = frame.headers_length
        columns.flags[count] = frame.flags
        count += 1
        previous_offset = frame.offset
        position = frame.next
    _take_in(digests, view[start:position])
    return ScanEnd(count, position, int(stop), previous_offset)


def seek_frame(
    buf: Buffer, position: int, end: int, layout: FrameLayout, target: int, previous_offset: int = -1
) -> FrameHit:
    """Walk headers, without checksums, to the first frame at or above the offset ``target``, and check that one."""
    view = _bytes_of(buf, position, end)
    while position < end:
        if is_zero(view, position, end):
            return FrameHit(int(Stop.ZEROS), position, -1, 0, 0, 0, 0, 0, 0)
        stop, frame = _parse_frame(view, position, end, layout, previous_offset)
        if frame is None:
            return FrameHit(int(stop), position, -1, 0, 0, 0, 0, 0, 0)
        if frame.offset >= target:
            if not _frame_is_whole(view, layout, frame):
                return FrameHit(int(Stop.BAD_CHECKSUM), position, -1, 0, 0, 0, 0, 0, 0)
            return FrameHit(
                int(Stop.LIMIT), position, frame.offset, frame.timestamp, frame.value_position,
                frame.value_length, frame.headers_length, frame.flags, frame.next,
            )  # fmt: skip
        previous_offset = frame.offset
        position = frame.next
    return FrameHit(int(Stop.END), position, -1, 0, 0, 0, 0, 0, 0)


def _has_successor(view: memoryview, end: int, layout: FrameLayout, frame: _Frame) -> bool:
    if frame.next == end or is_zero(view, frame.next, end):
        return True
    _, following = _parse_frame(view, frame.next, end, layout, frame.offset)
    return following is not None and following.offset == frame.offset + 1


def find_frame(buf: Buffer, position: int, end: int, layout: FrameLayout, previous_offset: int = -1) -> int:
    """The first position from ``position`` on where a whole, valid frame with an offset above ``previous_offset``
    starts, or ``NOT_FOUND``. Without a checksum the offset must be one that the skipped bytes leave room for, and
    its successor must fit. ``GAVE_UP`` once checking costs more than 16 times the bytes."""
    view = _bytes_of(buf, position, end)
    budget = 16 * (end - position) + (1 << 20)
    for at in range(position, end - layout.header_bytes + 1):
        _, frame = _parse_frame(view, at, end, layout, previous_offset)
        if frame is None:
            continue
        if layout.checksum == Checksum.NONE:
            if is_zero(view, at, at + layout.header_bytes):
                continue  # zeros read as the empty record 0: they prove nothing
            if frame.offset - previous_offset - 1 > (at - position) // layout.header_bytes + 1:
                continue
            budget -= layout.header_bytes
            if frame.next < end and view[frame.next] == 0:
                budget -= end - frame.next
            if _has_successor(view, end, layout, frame):
                return at
        else:
            budget -= frame.next - at
            if _frame_is_whole(view, layout, frame):
                return at
        if budget < 0:
            return GAVE_UP
    return NOT_FOUND


Values = Buffer | Sequence[bytes]
"""A buffer with Arrow's offsets into it, or, where there are none, a tuple or list of bytes."""


def _slices(values: Values, offsets: Int32s | None) -> Iterator[bytes | None]:
    """The values; None for one whose offsets make no sense."""
    if offsets is None:
        measure_values(values)
        yield from values  # type: ignore[misc]
        return
    if len(offsets) == 0:
        raise ValueError("the columns differ in length")
    view = memoryview(values).cast("B")  # type: ignore[arg-type]
    for start, stop in itertools.pairwise(offsets.tolist()):
        yield bytes(view[start:stop]) if 0 <= start <= stop <= len(view) else None


def encode_frames(
    out: Buffer,
    layout: FrameLayout,
    columns: FrameColumns,
    values: Values,
    value_offsets: Int32s | None = None,
    *,
    base_position: int = 0,
    headers: Buffer | None = None,
    headers_offsets: Int32s | None = None,
) -> int:
    """Write one frame per value: ``offset``, ``timestamp`` and ``flags`` of each row of ``columns`` go into it, the
    other columns are filled in as a scan would. Answers the bytes written."""
    count = _same_length(columns)
    if (headers is None) != (headers_offsets is None):
        raise ValueError("headers and headers_offsets go together")
    if not 0 <= base_position <= 2**62:
        raise ValueError("base_position must be 0 to 2**62")
    blobs = [b""] * count if headers is None else list(_slices(headers, headers_offsets))
    rows = list(_slices(values, value_offsets))
    if len(rows) != count or len(blobs) != count:
        raise ValueError("the columns differ in length")
    order = "big" if layout.big_endian else "little"
    target = memoryview(out).cast("B")
    at = 0
    for row, (value, blob) in enumerate(zip(rows, blobs, strict=True)):
        if value is None or blob is None or len(value) > layout.max_payload_bytes:
            raise ValueError(f"row {row} does not fit")
        if blob and layout.headers_length_at < 0:
            raise ValueError(f"row {row} does not fit")
        frame = bytearray(layout.header_bytes) + blob + value + bytes(layout.trailer_bytes)
        if at + len(frame) > len(target):
            raise ValueError(f"row {row} does not fit")

        def put(position: int, width: int, number: int, frame: bytearray = frame) -> None:
            if position >= 0:
                frame[position : position + width] = (number % 2 ** (8 * width)).to_bytes(width, order)

        for const in layout.consts:
            put(const.position, const.width, const.value)
        put(layout.offset_at, 8, int(columns.offset[row]))
        put(layout.length_at, 4, len(value))
        put(layout.headers_length_at, 4, len(blob))
        put(layout.timestamp_at, 8, int(columns.timestamp[row]))
        put(layout.flags_at, 4, int(columns.flags[row]))
        if layout.checksum != Checksum.NONE:
            covered = memoryview(frame)[layout.covered_from : layout.header_bytes + len(blob) + len(value)]
            crc = (crc32c if layout.checksum == Checksum.CRC32C else crc32)(covered)
            covered.release()
            put(len(frame) - 4 if layout.checksum_at < 0 else layout.checksum_at, 4, crc)
        target[at : at + len(frame)] = frame
        columns.position[row] = base_position + at
        columns.value_position[row] = base_position + at + layout.header_bytes + len(blob)
        columns.value_length[row] = len(value)
        columns.headers_length[row] = len(blob)
        at += len(frame)
    return at


def pick_strides(
    value_positions: Int64s,
    value_lengths: UInt32s,
    trailer_bytes: int,
    stride_bytes: int,
    counted_from: int,
    picked: Int64s,
) -> tuple[int, int]:
    """Pick every row that ends ``stride_bytes`` or more behind the end of the one picked before it, at first behind
    ``counted_from``. Answers how many were put into ``picked``, and where the last of them ends."""
    if not len(value_positions) == len(value_lengths) == len(picked):
        raise ValueError("the columns differ in length")
    found = 0
    ends = value_positions + value_lengths.astype(np.int64) + trailer_bytes
    for row, end in enumerate(ends.tolist()):
        if end - counted_from >= stride_bytes:
            picked[found] = row
            found += 1
            counted_from = end
    return found, counted_from


def measure_values(values: Values, value_offsets: Int32s | None = None) -> tuple[int, int, int]:
    """The bytes of all values, of the shortest and of the longest; refuses anything but bytes, and offsets that make
    no sense."""
    if value_offsets is None:
        for value in values:
            if type(value) is not bytes:
                raise TypeError(f"a value is bytes, not {type(value).__name__}")
        lengths = [len(value) for value in values]  # type: ignore[arg-type]
    else:
        lengths = []
        for row, found in enumerate(_slices(values, value_offsets)):
            if found is None:
                raise ValueError(f"row {row} does not fit")
            lengths.append(len(found))
    return sum(lengths), min(lengths, default=0), max(lengths, default=0)


# --- fixed slots: a big-endian CRC-32C, then the payload

_SLOT_CRC_BYTES = 4


def _check_slots(buf: Buffer, position: int, end: int, record_bytes: int) -> memoryview:
    view = _bytes_of(buf, position, end)
    if not 1 <= record_bytes <= 2**31 - 1:
        raise ValueError("record_bytes must be 1 to 2147483647")
    if position % (record_bytes + _SLOT_CRC_BYTES):
        raise ValueError("position is not the start of a slot")
    return view


def _slot_is_valid(view: memoryview, position: int, record_bytes: int) -> bool:
    stored = int.from_bytes(view[position : position + _SLOT_CRC_BYTES], "big")
    start = position + _SLOT_CRC_BYTES
    return stored == crc32c(view[start : start + record_bytes])


def scan_slots(
    buf: Buffer,
    position: int,
    end: int,
    record_bytes: int,
    max_slots: int,
    verify: bool = True,
    digests: UInt32s | None = None,
) -> ScanEnd:
    """Count the valid slots from ``position``, a slot boundary, on. ``digests`` as in `scan_frames`."""
    _check_digests(digests)
    view = _check_slots(buf, position, end, record_bytes)
    start = position
    slot_bytes = record_bytes + _SLOT_CRC_BYTES
    count, stop = 0, Stop.END
    while position < end:
        if count == max_slots:
            stop = Stop.LIMIT
            break
        if end - position < slot_bytes:
            stop = Stop.ZEROS if is_zero(view, position, end) else Stop.SHORT_BODY
            break
        if verify and not _slot_is_valid(view, position, record_bytes):
            stop = Stop.ZEROS if is_zero(view, position, end) else Stop.BAD_CHECKSUM
            break
        count += 1
        position += slot_bytes
    _take_in(digests, view[start:position])
    return ScanEnd(count, position, int(stop), position // slot_bytes - 1)


def find_slot(buf: Buffer, position: int, end: int, record_bytes: int) -> int:
    """The first slot boundary from ``position`` on that holds a valid slot, or ``NOT_FOUND``."""
    view = _check_slots(buf, position, end, record_bytes)
    slot_bytes = record_bytes + _SLOT_CRC_BYTES
    for at in range(position, end - slot_bytes + 1, slot_bytes):
        if _slot_is_valid(view, at, record_bytes):
            return at
    return NOT_FOUND


def infer_slot(buf: Buffer, max_record_bytes: int) -> int:
    """The smallest record size for which slot 0 is valid, and slot 1 too where it is whole; 0 if there is none."""
    view = memoryview(buf).cast("B")
    if len(view) < _SLOT_CRC_BYTES + 1:
        return 0
    stored = int.from_bytes(view[:_SLOT_CRC_BYTES], "big")
    crc = 0
    for size in range(1, min(max_record_bytes, len(view) - _SLOT_CRC_BYTES, 2**31 - 1) + 1):
        crc = crc32c(view[_SLOT_CRC_BYTES + size - 1 : _SLOT_CRC_BYTES + size], crc)
        if crc != stored:
            continue
        second = size + _SLOT_CRC_BYTES
        if len(view) - second < second or _slot_is_valid(view, second, size):
            return size
    return 0


def encode_slots(out: Buffer, record_bytes: int, values: Values, value_offsets: Int32s | None = None) -> int:
    """Write one slot for every value, which has ``record_bytes``; answers the bytes written."""
    if not 1 <= record_bytes <= 2**31 - 1:
        raise ValueError("record_bytes must be 1 to 2147483647")
    target = memoryview(out).cast("B")
    at = 0
    for row, value in enumerate(_slices(values, value_offsets)):
        slot_bytes = record_bytes + _SLOT_CRC_BYTES
        if value is None or len(value) != record_bytes or at + slot_bytes > len(target):
            raise ValueError(f"row {row} does not fit")
        target[at : at + slot_bytes] = crc32c(value).to_bytes(_SLOT_CRC_BYTES, "big") + value
        at += slot_bytes
    return at


# --- chunks: header, Bloom filter, length-prefixed entries, tracking; all big-endian

_CHUNK_HEADER_BYTES = 48
_SIMPLE_HEADER_BYTES = 4
_SUB_BATCH_HEADER_BYTES = 11
_USER, _DELTA, _SNAPSHOT = 0, 1, 2
_SEQUENCE, _OFFSET, _TIMESTAMP = 0, 1, 2


def _same_length(columns: Columns) -> int:
    lengths = {len(getattr(columns, f.name)) for f in fields(columns)}
    if len(lengths) != 1:
        raise ValueError("the columns differ in length")
    return lengths.pop()


def _signed(number: int) -> int:
    """64 bits as a signed number."""
    number %= 2**64
    return number - 2**64 if number >= 2**63 else number


class _Chunk:
    """What the header at ``position`` says; 48 bytes are there. `_walk_chunk` adds what the entries say."""

    def __init__(self, view: memoryview, position: int) -> None:
        def number(at: int, width: int) -> int:
            return int.from_bytes(view[position + at : position + at + width], "big")

        self.magic, self.version = number(0, 1) >> 4, number(0, 1) & 15
        self.chunk_type = number(1, 1)
        self.entries = number(2, 2)
        self.records = number(4, 4)
        self.timestamp = _signed(number(8, 8))
        self.epoch = _signed(number(16, 8))
        self.chunk_id = number(24, 8)
        self.crc = number(32, 4)
        self.data_length = number(36, 4)
        self.trailer_length = number(40, 4)
        self.position = position
        self.data_position = position + _CHUNK_HEADER_BYTES + number(44, 1)
        self.data_end = self.data_position + self.data_length
        self.next = self.data_end + self.trailer_length
        self.last_offset = self.chunk_id + self.records - 1
        self.inflated_bytes = 0
        self.sub_batches = 0
        self.tracking = 0


def _parse_chunk(view: memoryview, position: int, end: int, previous_offset: int) -> tuple[Stop, _Chunk | None]:
    if end - position < _CHUNK_HEADER_BYTES:
        return Stop.SHORT_HEADER, None
    chunk = _Chunk(view, position)
    if chunk.magic != 5:
        return Stop.BAD_MAGIC, None
    if chunk.version > 1:
        return Stop.BAD_VERSION, None
    if chunk.chunk_type > _SNAPSHOT:
        return Stop.BAD_FIELD, None
    if max(chunk.chunk_id, chunk.last_offset) >= 2**63:
        return Stop.BAD_RANGE, None
    if chunk.next > end:
        return Stop.SHORT_BODY, None
    if chunk.chunk_id <= previous_offset:
        return Stop.BAD_ORDER, None
    return Stop.END, chunk


class _Entry:
    """The entry at ``at``; ``next`` is -1 where it does not lie before ``end``."""

    def __init__(self, view: memoryview, at: int, end: int) -> None:
        self.next = -1
        self.sub_batch, self.records, self.uncompressed_length, self.value_length = 0, 1, 0, 0
        if end - at < _SIMPLE_HEADER_BYTES:
            return
        if view[at] & 0x80:
            if end - at < _SUB_BATCH_HEADER_BYTES:
                return
            self.sub_batch = view[at]
            self.records = int.from_bytes(view[at + 1 : at + 3], "big")
            self.uncompressed_length = int.from_bytes(view[at + 3 : at + 7], "big")
            self.value_length = int.from_bytes(view[at + 7 : at + 11], "big")
            self.value_position = at + _SUB_BATCH_HEADER_BYTES
        else:
            self.value_length = int.from_bytes(view[at : at + 4], "big")
            self.value_position = at + _SIMPLE_HEADER_BYTES
        if self.value_position + self.value_length <= end:
            self.next = self.value_position + self.value_length


def _count_tracking(view: memoryview, at: int, end: int, snapshot: bool) -> int:
    count = 0
    while at < end:
        if end - at < 2:
            return BAD_TRACKING
        kind, id_bytes = view[at], view[at + 1]
        size = 2 + id_bytes + (16 if snapshot and kind == _SEQUENCE else 8)
        if kind > _TIMESTAMP or id_bytes == 0 or end - at < size:
            return BAD_TRACKING
        at += size
        count += 1
    return count


def _walk_chunk(view: memoryview, chunk: _Chunk) -> bool:
    """Whether the entries fill the data section exactly and add up to what the header says. A chunk without an entry
    is refused: nobody writes one. One without a record is not: a sub-batch may be empty."""
    at, records, sub_batches, inflated_bytes, entry = chunk.data_position, 0, 0, 0, None
    for _ in range(chunk.entries):
        entry = _Entry(view, at, chunk.data_end)
        if entry.next < 0:
            return False
        records += entry.records
        sub_batches += entry.sub_batch != 0
        if entry.sub_batch & 0x70:
            inflated_bytes += entry.uncompressed_length
        at = entry.next
    if entry is None or at != chunk.data_end or records != chunk.records:
        return False
    if chunk.chunk_type == _USER:
        chunk.tracking = _count_tracking(view, chunk.data_end, chunk.next, False)
    elif chunk.entries != 1 or sub_batches or chunk.trailer_length:
        return False
    else:
        snapshot = chunk.chunk_type == _SNAPSHOT
        chunk.tracking = _count_tracking(view, entry.value_position, chunk.data_end, snapshot)
    chunk.sub_batches = sub_batches
    chunk.inflated_bytes = inflated_bytes
    return True


def _chunk_is_whole(view: memoryview, chunk: _Chunk) -> bool:
    return crc32(view[chunk.data_position : chunk.data_end]) == chunk.crc


def scan_chunks(
    buf: Buffer,
    position: int,
    end: int,
    columns: ChunkColumns,
    previous_offset: int = -1,
    max_bytes: int = 2**62,
    verify: bool = True,
    max_records: int = 2**62,
    digests: UInt32s | None = None,
) -> ScanEnd:
    """Fill ``columns`` with the chunks from ``position`` on, until they are full, until the next chunk would make it
    more than ``max_bytes`` (in the file, and unfolded from sub-batches) or ``max_records`` user records (the first is
    always taken), or until something is no chunk. The entries are walked even without ``verify``. ``digests`` as in
    `scan_frames`."""
    _check_digests(digests)
    view = _bytes_of(buf, position, end)
    start = position
    capacity = _same_length(columns)
    if capacity == 0:
        raise ValueError("the columns have no room")
    bytes_left, records_left = max(max_bytes, 0), max(max_records, 0)
    count, stop = 0, Stop.END
    while position < end:
        if count == capacity:
            stop = Stop.LIMIT
            break
        if is_zero(view, position, end):
            stop = Stop.ZEROS
            break
        stop, chunk = _parse_chunk(view, position, end, previous_offset)
        if chunk is None:
            break
        user_records = chunk.records if chunk.chunk_type == _USER else 0
        if count > 0 and (chunk.next - position > bytes_left or user_records > records_left):
            stop = Stop.LIMIT
            break
        adds_up = _walk_chunk(view, chunk)
        size = chunk.next - position + chunk.inflated_bytes
        if count > 0 and size > bytes_left:
            stop = Stop.LIMIT
            break
        if verify and not _chunk_is_whole(view, chunk):
            stop = Stop.BAD_CHECKSUM
            break
        if not adds_up:
            stop = Stop.BAD_ENTRIES
            break
        for field in fields(columns):
            getattr(columns, field.name)[count] = getattr(chunk, field.name)
        count += 1
        bytes_left -= size
        records_left -= user_records
        previous_offset = chunk.last_offset
        position = chunk.next
    _take_in(digests, view[start:position])
    return ScanEnd(count, position, int(stop), previous_offset)


def seek_chunk(buf: Buffer, position: int, end: int, target: int, previous_offset: int = -1) -> EntryHit:
    """Pass over chunks by their headers to the one that holds the offset ``target``, check that one, and find the
    entry. Where no chunk holds it, the one before the place must at least add up."""

    def miss(stop: Stop, at: int) -> EntryHit:
        return EntryHit(int(stop), at, -1, 0, 0, 0, 0, 0, 0)

    view = _bytes_of(buf, position, end)
    passed, stop = None, Stop.END
    while position < end:
        if is_zero(view, position, end):
            stop = Stop.ZEROS
            break
        stop, chunk = _parse_chunk(view, position, end, previous_offset)
        if chunk is None:
            return miss(stop, position)
        if chunk.chunk_id > target:
            stop = Stop.LIMIT
            break
        if target <= chunk.last_offset:
            if not _chunk_is_whole(view, chunk):
                return miss(Stop.BAD_CHECKSUM, position)
            if not _walk_chunk(view, chunk):
                return miss(Stop.BAD_ENTRIES, position)
            return _find_entry(view, chunk, target) or miss(Stop.LIMIT, position)
        previous_offset = chunk.last_offset
        position = chunk.next
        passed = chunk
    if passed is not None and not _walk_chunk(view, passed):
        return miss(Stop.BAD_ENTRIES, passed.position)
    return miss(stop, position)


def _find_entry(view: memoryview, chunk: _Chunk, target: int) -> EntryHit | None:
    if chunk.chunk_type != _USER:
        return None
    at, offset = chunk.data_position, chunk.chunk_id
    while True:
        entry = _Entry(view, at, chunk.data_end)
        if target < offset + entry.records:
            return EntryHit(
                int(Stop.LIMIT), chunk.position, offset, chunk.timestamp, entry.value_position, entry.value_length,
                entry.sub_batch, entry.records, entry.uncompressed_length,
            )  # fmt: skip
        offset += entry.records
        at = entry.next


def find_chunk(buf: Buffer, position: int, end: int, previous_offset: int = -1) -> int:
    """The first position from ``position`` on where a whole, valid chunk with an id above ``previous_offset`` starts,
    or ``NOT_FOUND``. It must hold a record, and its id must not be absurdly far: no more offsets may be missing than
    the bytes passed over could hold (65,535 in a sub-batch of 11 bytes), and 2**32 for a gap that a conversion left.
    ``GAVE_UP`` once checking costs more than 16 times the bytes."""
    view = _bytes_of(buf, position, end)
    budget = 16 * (end - position) + (1 << 20)
    for at in range(position, end - _CHUNK_HEADER_BYTES + 1):
        _, chunk = _parse_chunk(view, at, end, previous_offset)
        if chunk is None or chunk.data_length == 0 or chunk.records == 0:
            continue
        most = ((at - position) // _SUB_BATCH_HEADER_BYTES + 1) * 65535 + 2**32
        if chunk.chunk_id - previous_offset - 1 > most:
            continue
        budget -= chunk.next - at
        if _walk_chunk(view, chunk) and _chunk_is_whole(view, chunk):
            return at
        if budget < 0:
            return GAVE_UP
    return NOT_FOUND


def scan_entries(buf: Buffer, chunks: ChunkColumns, columns: EntryColumns) -> int:
    """Fill ``columns`` with the entries of the user chunks among ``chunks``; answers how many there are."""
    view = memoryview(buf).cast("B")
    count, capacity = 0, _same_length(columns)
    for row in range(_same_length(chunks)):
        if chunks.chunk_type[row] != _USER:
            continue
        outside = ValueError(f"the entries of chunk {row} lie outside")
        at, entries = int(chunks.data_position[row]), int(chunks.entries[row])
        data_end = at + int(chunks.data_length[row])
        if not 0 <= at <= data_end <= len(view) or entries > capacity - count:
            raise outside
        offset = int(chunks.chunk_id[row])
        for _ in range(entries):
            entry = _Entry(view, at, data_end)
            if entry.next < 0:
                raise outside
            columns.offset[count] = _signed(offset)
            columns.timestamp[count] = chunks.timestamp[row]
            columns.position[count] = at
            columns.value_position[count] = entry.value_position
            columns.value_length[count] = entry.value_length
            columns.sub_batch[count] = entry.sub_batch
            columns.records[count] = entry.records
            columns.uncompressed_length[count] = entry.uncompressed_length
            count += 1
            offset += entry.records
            at = entry.next
        if at != data_end:
            raise outside
    return count


def scan_prefixed(buf: Buffer, position: int, end: int, positions: Int64s, lengths: UInt32s) -> int:
    """Where the records of an unfolded sub-batch lie. Answers how many rows there are if exactly that many fill the
    range, else -1 - the number of whole ones before the misfit."""
    view = _bytes_of(buf, position, end)
    if len(lengths) != len(positions):
        raise ValueError("the columns differ in length")
    for row in range(len(positions)):
        entry = _Entry(view, position, end)
        if entry.next < 0 or entry.sub_batch:
            return -1 - row
        positions[row] = entry.value_position
        lengths[row] = entry.value_length
        position = entry.next
    return len(positions) if position == end else -1 - len(positions)


def encode_entries(
    out: Buffer, values: Buffer, value_offsets: Int32s, positions: Int64s, base_position: int = 0
) -> int:
    """Write every row with its length before it, and where each starts into ``positions``; answers the bytes."""
    if len(value_offsets) != len(positions) + 1:
        raise ValueError("the columns differ in length")
    target = memoryview(out).cast("B")
    at = 0
    for row, value in enumerate(_slices(values, value_offsets)):
        if value is None or at + _SIMPLE_HEADER_BYTES + len(value) > len(target):
            raise ValueError(f"row {row} does not fit")
        entry = len(value).to_bytes(_SIMPLE_HEADER_BYTES, "big") + value
        target[at : at + len(entry)] = entry
        positions[row] = base_position + at
        at += len(entry)
    return at


def split_chunks(
    starts: Int64s,
    max_bytes: int,
    max_records: int,
    values: Values,
    value_offsets: Int32s | None = None,
    breaks: UInt8s | None = None,
) -> int:
    """Where chunks of these entries start: at the first row, behind every break (``breaks`` has one flag between each
    two rows), and wherever one more entry would be more than ``max_records`` or take a chunk that has one already over
    ``max_bytes``. Answers how many of ``starts`` were filled in."""
    if not 1 <= max_bytes <= 2**62 or max_records < 1:
        raise ValueError("max_bytes must be 1 to 2**62, max_records 1 or more")
    slices = list(_slices(values, value_offsets))
    if len(starts) != len(slices) or (breaks is not None and len(breaks) != max(len(slices) - 1, 0)):
        raise ValueError("the columns differ in length")
    count = records = size = 0
    for row, value in enumerate(slices):
        if value is None:
            raise ValueError(f"row {row} does not fit")
        length = _SIMPLE_HEADER_BYTES + len(value)
        is_break = row > 0 and breaks is not None and bool(breaks[row - 1])
        if row == 0 or is_break or records >= max_records or size + length > max_bytes:
            starts[count] = row
            count += 1
            records = size = 0
        records += 1
        size += length
    return count


def encode_chunks(
    out: Buffer,
    version: int,
    columns: ChunkColumns,
    values: Values,
    value_offsets: Int32s | None = None,
    base_position: int = 0,
) -> int:
    """Write user chunks of simple entries: ``records``, ``chunk_id``, ``timestamp`` and ``epoch`` of each row say
    what goes into it, the other columns are filled in. Answers the bytes written."""
    count = _same_length(columns)
    if version not in (0, 1):
        raise ValueError("version must be 0 or 1")
    target = memoryview(out).cast("B")
    slices = list(_slices(values, value_offsets))
    at = row = 0
    for number in range(count):
        records = int(columns.records[number])
        rows = slices[row : row + records]
        data = b"".join(len(v).to_bytes(_SIMPLE_HEADER_BYTES, "big") + v for v in rows if v is not None)
        fits = 0 < records <= 65535 and len(rows) == records and None not in rows and len(data) < 2**32
        if not fits or at + _CHUNK_HEADER_BYTES + len(data) > len(target):
            raise ValueError(f"chunk {number} does not fit")
        header = bytes((0x50 | version, _USER)) + records.to_bytes(2, "big") + records.to_bytes(4, "big")
        for column in (columns.timestamp, columns.epoch, columns.chunk_id):
            header += (int(column[number]) % 2**64).to_bytes(8, "big")
        header += crc32(data).to_bytes(4, "big") + len(data).to_bytes(4, "big") + bytes(8)
        target[at : at + len(header) + len(data)] = header + data
        columns.position[number] = base_position + at
        columns.data_position[number] = base_position + at + _CHUNK_HEADER_BYTES
        columns.data_length[number] = len(data)
        columns.entries[number] = records
        for name in ("inflated_bytes", "trailer_length", "chunk_type", "sub_batches", "tracking"):
            getattr(columns, name)[number] = 0
        at += len(header) + len(data)
        row += records
    if row != len(slices):
        raise ValueError(f"chunk {count} does not fit")
    return at


# --- hashes


def murmur2(data: Buffer, offsets: Int32s, hashes: UInt32s) -> int:
    """Fill in the Murmur2 hash of every row, by which Kafka's producers choose a partition; answers how many."""
    if len(offsets) != len(hashes) + 1:
        raise ValueError("offsets and hashes differ in length")
    for row, value in enumerate(_slices(data, offsets)):
        if value is None:
            raise ValueError(f"row {row} lies outside of the buffer")
        hashes[row] = _murmur2(value)
    return len(hashes)


def _murmur2(data: bytes) -> int:
    multiplier, bits = 0x5BD1E995, 0xFFFFFFFF
    hashed = 0x9747B28C ^ len(data) & bits
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * multiplier & bits
        word = (word ^ word >> 24) * multiplier & bits
        hashed = hashed * multiplier & bits ^ word
    if data[whole:]:
        hashed = (hashed ^ int.from_bytes(data[whole:], "little")) * multiplier & bits
    hashed = (hashed ^ hashed >> 13) * multiplier & bits
    return hashed ^ hashed >> 15


def siphash(data: Buffer, offsets: Int32s, key0: int, key1: int, hashes: UInt64Pairs) -> int:
    """Fill in the SipHash-2-4 of every row, 128 bits as two words; answers how many. Who does not know the keys cannot
    find two rows with one hash."""
    if len(offsets) != len(hashes) + 1 or hashes.shape[1] != 2:
        raise ValueError("offsets and hashes differ in length")
    for row, value in enumerate(_slices(data, offsets)):
        if value is None:
            raise ValueError(f"row {row} lies outside of the buffer")
        hashes[row] = _siphash(value, key0, key1)
    return len(hashes)


def _siphash(data: bytes, key0: int, key1: int) -> tuple[int, int]:
    bits = 2**64 - 1
    v = [
        0x736F6D6570736575 ^ key0,
        0x646F72616E646F6D ^ key1 ^ 0xEE,
        0x6C7967656E657261 ^ key0,
        0x7465646279746573 ^ key1,
    ]

    def rotate(word: int, by: int) -> int:
        return (word << by | word >> (64 - by)) & bits

    def rounds(count: int) -> None:
        for _ in range(count):
            v[0] = v[0] + v[1] & bits
            v[1] = rotate(v[1], 13) ^ v[0]
            v[0] = rotate(v[0], 32)
            v[2] = v[2] + v[3] & bits
            v[3] = rotate(v[3], 16) ^ v[2]
            v[0] = v[0] + v[3] & bits
            v[3] = rotate(v[3], 21) ^ v[0]
            v[2] = v[2] + v[1] & bits
            v[1] = rotate(v[1], 17) ^ v[2]
            v[2] = rotate(v[2], 32)

    whole = len(data) & ~7
    words = [int.from_bytes(data[at : at + 8], "little") for at in range(0, whole, 8)]
    words.append(int.from_bytes(data[whole:], "little") | (len(data) & 0xFF) << 56)
    for word in words:
        v[3] ^= word
        rounds(2)
        v[0] ^= word
    v[2] ^= 0xEE
    rounds(4)
    first = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    rounds(4)
    return first, v[0] ^ v[1] ^ v[2] ^ v[3]


def keep_newest(table: UInt64Pairs, used: int, most: int, hashes: UInt64Pairs, offsets: Int64s) -> tuple[int, int]:
    """Put rows into a table of the newest offset of every hash. An entry has three words: the hash, and the offset + 1
    (0: free); it lies in the slot that the second word names, or behind it. Answers how many rows are in, fewer than
    given where ``most`` entries are used, and how many entries are used."""
    slots = len(table)
    if table.shape[1] != 3 or slots < 1 or slots & (slots - 1):
        raise ValueError("a table has a power of two of slots, three words each")
    if not 0 <= used <= most < slots:
        raise ValueError("at least one slot stays free")
    if len(hashes) != len(offsets) or (len(offsets) and hashes.shape[1] != 2):
        raise ValueError("hashes and offsets differ in length")
    for row, offset in enumerate(offsets.tolist()):
        first, second = (int(word) for word in hashes[row])
        slot = second % slots
        while table[slot, 2] and (int(table[slot, 0]), int(table[slot, 1])) != (first, second):
            slot = (slot + 1) % slots
        mark = (offset + 1) % 2**64
        if not table[slot, 2]:
            if used >= most:
                return row, used
            table[slot] = first, second, mark
            used += 1
        elif mark > int(table[slot, 2]):
            table[slot, 2] = mark
    return len(offsets), used


# --- events


def encode_run(head: Buffer, covered_from: int, start: int, count: int, rest: Buffer, out: UInt8s) -> int:
    """Write ``count`` events that differ in one number behind one another; answers how many bytes that are. An event is
    the head, the number (u64, big-endian, from ``start`` on), what follows it, and the CRC-32C (u32, big-endian) of all
    that from ``covered_from`` on. ``out`` has exactly their size."""
    head, rest = bytes(head), bytes(rest)
    size_bytes = len(head) + 8 + len(rest) + 4
    if not 0 <= covered_from <= len(head):
        raise ValueError("the checksum begins outside of the head")
    if count < 0 or (count and start + count > 2**64):
        raise ValueError("the numbers do not fit into 64 bits")
    if len(out) != count * size_bytes:
        raise ValueError("the buffer does not have the size of the events")
    for row in range(count):
        event = head + (start + row).to_bytes(8, "big") + rest
        event += crc32c(event[covered_from:]).to_bytes(4, "big")
        out[row * size_bytes : (row + 1) * size_bytes] = np.frombuffer(event, np.uint8)
    return count * size_bytes
