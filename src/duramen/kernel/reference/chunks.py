"""Chunks: header, Bloom filter, length-prefixed entries, tracking; all big-endian."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from duramen.kernel.layout import (
    BAD_TRACKING,
    GAVE_UP,
    NOT_FOUND,
    ChunkColumns,
    EntryColumns,
    EntryHit,
    Int64s,
    ScanEnd,
    Stop,
    UInt32s,
)
from duramen.kernel.reference.columns import Buffer, Int32s, UInt8s, Values, bytes_of, is_zero, same_length, values_of
from duramen.kernel.reference.crc import check_digests, crc32, extend_digests

_CHUNK_HEADER_BYTES = 48
_SIMPLE_HEADER_BYTES = 4
_SUB_BATCH_HEADER_BYTES = 11
_USER, _DELTA, _SNAPSHOT = 0, 1, 2
_SEQUENCE, _OFFSET, _TIMESTAMP = 0, 1, 2


def _signed(number: int) -> int:
    number %= 2**64
    return number - 2**64 if number >= 2**63 else number


class _ParsedChunk:
    """The header at ``position``, of which all 48 bytes exist. `_walk_chunk` adds what the entries contain."""

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


def _parse_chunk(view: memoryview, position: int, end: int, previous_offset: int) -> tuple[Stop, _ParsedChunk | None]:
    if end - position < _CHUNK_HEADER_BYTES:
        return Stop.SHORT_HEADER, None
    chunk = _ParsedChunk(view, position)
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


class _ParsedEntry:
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


def _is_filler(chunk: _ParsedChunk) -> bool:
    """Whether the chunk is a tracking delta with one empty entry: it stores nothing, and occupies the offsets of
    missing records so that the chunk ids of the log have no gap."""
    is_empty_delta = chunk.chunk_type == _DELTA and chunk.data_length == _SIMPLE_HEADER_BYTES
    return is_empty_delta and chunk.entries == 1 and chunk.records > 0


def _walk_chunk(view: memoryview, chunk: _ParsedChunk) -> bool:
    """Whether the entries fill the data section exactly and add up to the header's counts. A chunk without an entry is
    invalid: no writer makes one. A chunk without a record is valid: a sub-batch may be empty."""
    at, records, sub_batches, inflated_bytes, entry = chunk.data_position, 0, 0, 0, None
    for _ in range(chunk.entries):
        entry = _ParsedEntry(view, at, chunk.data_end)
        if entry.next < 0:
            return False
        records += entry.records
        sub_batches += entry.sub_batch != 0
        if entry.sub_batch & 0x70:
            inflated_bytes += entry.uncompressed_length
        at = entry.next
    if entry is None or at != chunk.data_end or (records != chunk.records and not _is_filler(chunk)):
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


def _chunk_is_whole(view: memoryview, chunk: _ParsedChunk) -> bool:
    return crc32(view[chunk.data_position : chunk.data_end]) == chunk.crc


def _next(view: memoryview, position: int, end: int, previous_offset: int) -> tuple[Stop, _ParsedChunk | None]:
    """The chunk at ``position``, or why there is none; ``ZEROS`` if only zeros follow."""
    if is_zero(view, position, end):
        return Stop.ZEROS, None
    return _parse_chunk(view, position, end, previous_offset)


def _check_chunk(
    view: memoryview, chunk: _ParsedChunk, verify: bool, bytes_left: int | None, has_room: bool
) -> tuple[Stop, int]:
    """Why the chunk ends a scan (``END`` where it does not), and its size in the file plus decompressed."""
    if not has_room:
        return Stop.LIMIT, 0
    adds_up = _walk_chunk(view, chunk)
    size = chunk.next - chunk.position + chunk.inflated_bytes
    if bytes_left is not None and size > bytes_left:
        return Stop.LIMIT, size
    if verify and not _chunk_is_whole(view, chunk):
        return Stop.BAD_CHECKSUM, size
    return Stop.END if adds_up else Stop.BAD_ENTRIES, size


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
    """Fill ``columns`` with the chunks from ``position`` on. Stops when the columns are full, before the chunk that
    would exceed ``max_bytes`` (in the file plus decompressed) or ``max_records`` user records (the first is always
    taken), or at bytes that are not a valid chunk. Walks the entries even without ``verify``. ``digests`` as in
    `scan_frames`."""
    check_digests(digests)
    view, capacity = bytes_of(buf, position, end), same_length(columns)
    if capacity == 0:
        raise ValueError("the columns have no room")
    bytes_left, records_left = max(max_bytes, 0), max(max_records, 0)
    start, count, stop = position, 0, Stop.END
    while position < end:
        stop, chunk = (Stop.LIMIT, None) if count == capacity else _next(view, position, end, previous_offset)
        if chunk is None:
            break
        user_records = chunk.records if chunk.chunk_type == _USER else 0
        has_room = count == 0 or (chunk.next - position <= bytes_left and user_records <= records_left)
        stop, size = _check_chunk(view, chunk, verify, bytes_left if count else None, has_room)
        if stop != Stop.END:
            break
        for field in fields(columns):
            getattr(columns, field.name)[count] = getattr(chunk, field.name)
        count += 1
        bytes_left -= size
        records_left -= user_records
        previous_offset = chunk.last_offset
        position = chunk.next
    extend_digests(digests, view[start:position])
    return ScanEnd(count, position, int(stop), previous_offset)


def seek_chunk(buf: Buffer, position: int, end: int, target: int, previous_offset: int = -1) -> EntryHit:
    """Skip chunks by their headers to the one that holds the offset ``target``, check it, and find the entry. If no
    chunk holds it, at least the entries of the chunk before must add up."""

    def miss(stop: Stop, at: int) -> EntryHit:
        return EntryHit(int(stop), at, -1, 0, 0, 0, 0, 0, 0)

    view = bytes_of(buf, position, end)
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


def _find_entry(view: memoryview, chunk: _ParsedChunk, target: int) -> EntryHit | None:
    if chunk.chunk_type != _USER:
        return None
    at, offset = chunk.data_position, chunk.chunk_id
    while True:
        entry = _ParsedEntry(view, at, chunk.data_end)
        if target < offset + entry.records:
            return EntryHit(
                int(Stop.LIMIT), chunk.position, offset, chunk.timestamp, entry.value_position, entry.value_length,
                entry.sub_batch, entry.records, entry.uncompressed_length,
            )  # fmt: skip
        offset += entry.records
        at = entry.next


def find_chunk(buf: Buffer, position: int, end: int, previous_offset: int = -1) -> int:
    """The first position from ``position`` on where a complete, valid chunk with an id above ``previous_offset``
    starts, or ``NOT_FOUND``. The chunk must hold a record, and must not skip more offsets than the skipped bytes could
    hold (65,535 per sub-batch of 11 bytes) plus 2**32 for a gap that a conversion left. Returns ``GAVE_UP`` once
    checking costs more than 16 times the bytes."""
    view = bytes_of(buf, position, end)
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
    """Fill ``columns`` with the entries of the user chunks among ``chunks``; returns their number."""
    view = memoryview(buf).cast("B")
    count, capacity = 0, same_length(columns)
    for row in range(same_length(chunks)):
        if chunks.chunk_type[row] != _USER:
            continue
        outside = ValueError(f"the entries of chunk {row} lie outside")
        at, entries = int(chunks.data_position[row]), int(chunks.entries[row])
        data_end = at + int(chunks.data_length[row])
        if not 0 <= at <= data_end <= len(view) or entries > capacity - count:
            raise outside
        offset = int(chunks.chunk_id[row])
        for _ in range(entries):
            entry = _ParsedEntry(view, at, data_end)
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
    """Locate the records of a decompressed sub-batch. Returns the number of rows if exactly that many fill the range,
    otherwise -1 - (the number of complete ones before the first that does not fit)."""
    view = bytes_of(buf, position, end)
    if len(lengths) != len(positions):
        raise ValueError("the columns differ in length")
    for row in range(len(positions)):
        entry = _ParsedEntry(view, position, end)
        if entry.next < 0 or entry.sub_batch:
            return -1 - row
        positions[row] = entry.value_position
        lengths[row] = entry.value_length
        position = entry.next
    return len(positions) if position == end else -1 - len(positions)


def encode_entries(
    out: Buffer, values: Buffer, value_offsets: Int32s, positions: Int64s, base_position: int = 0
) -> int:
    """Write every row with its length before it, and its start into ``positions``; returns the bytes written."""
    if len(value_offsets) != len(positions) + 1:
        raise ValueError("the columns differ in length")
    target = memoryview(out).cast("B")
    at = 0
    for row, value in enumerate(values_of(values, value_offsets)):
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
    """Where chunks of these entries start: at the first row, after every break (``breaks`` has one flag between every
    two rows), and wherever one more entry would exceed ``max_records`` or, in a chunk that is not empty, ``max_bytes``.
    Returns how many of ``starts`` it filled."""
    if not 1 <= max_bytes <= 2**62 or max_records < 1:
        raise ValueError("max_bytes must be 1 to 2**62, max_records at least 1")
    rows = list(values_of(values, value_offsets))
    if len(starts) != len(rows) or (breaks is not None and len(breaks) != max(len(rows) - 1, 0)):
        raise ValueError("the columns differ in length")
    count = records = size = 0
    for row, value in enumerate(rows):
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
    """Write user chunks of simple entries with ``records``, ``chunk_id``, ``timestamp`` and ``epoch`` of each row;
    fills the other columns. Returns the bytes written."""
    count = same_length(columns)
    if version not in (0, 1):
        raise ValueError("version must be 0 or 1")
    target = memoryview(out).cast("B")
    rows = list(values_of(values, value_offsets))
    at = row = 0
    for number in range(count):
        records = int(columns.records[number])
        held = rows[row : row + records]
        chunk = _encode_chunk(version, columns, number, held) if len(held) == records else None
        if chunk is None or at + len(chunk) > len(target):
            raise ValueError(f"chunk {number} does not fit")
        target[at : at + len(chunk)] = chunk
        columns.position[number] = base_position + at
        columns.data_position[number] = base_position + at + _CHUNK_HEADER_BYTES
        columns.data_length[number] = len(chunk) - _CHUNK_HEADER_BYTES
        columns.entries[number] = records
        for name in ("inflated_bytes", "trailer_length", "chunk_type", "sub_batches", "tracking"):
            getattr(columns, name)[number] = 0
        at += len(chunk)
        row += records
    if row != len(rows):
        raise ValueError(f"chunk {count} does not fit")
    return at


def _encode_chunk(version: int, columns: ChunkColumns, number: int, rows: Sequence[bytes | None]) -> bytes | None:
    """One user chunk; None where it cannot hold these values."""
    data = b"".join(len(v).to_bytes(_SIMPLE_HEADER_BYTES, "big") + v for v in rows if v is not None)
    if not 0 < len(rows) <= 65535 or None in rows or len(data) >= 2**32:
        return None
    header = bytes((0x50 | version, _USER)) + len(rows).to_bytes(2, "big") + len(rows).to_bytes(4, "big")
    for column in (columns.timestamp, columns.epoch, columns.chunk_id):
        header += (int(column[number]) % 2**64).to_bytes(8, "big")
    return header + crc32(data).to_bytes(4, "big") + len(data).to_bytes(4, "big") + bytes(8) + data
