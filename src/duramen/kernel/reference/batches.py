"""Kafka's record batches, and the messages of its older formats; all big-endian."""

from __future__ import annotations

from dataclasses import fields

from duramen.kernel.layout import (
    CODEC,
    CONTROL,
    GAVE_UP,
    NOT_FOUND,
    NULL_LENGTH,
    BatchColumns,
    HeaderColumns,
    Int64s,
    RecordColumns,
    RecordRanges,
    ScanEnd,
    Stop,
    UInt32s,
)
from duramen.kernel.reference.columns import Buffer, Int32s, ValueCopy, bytes_of, is_zero, same_length
from duramen.kernel.reference.crc import check_digests, crc32, crc32c, extend_digests

_PREFIX_BYTES = 12
_MAGIC_AT = 16
_LEAST_RECORD_BYTES = 7
_LEAST_LENGTHS = {0: 14, 1: 22, 2: 49}
_MOST_GAP = 2**32


class _ParsedBatch:
    """The batch or message at ``position``, all of whose bytes exist."""

    def __init__(self, view: memoryview, position: int, magic: int, size: int) -> None:
        def number(at: int, width: int) -> int:
            return int.from_bytes(view[position + at : position + at + width], "big", signed=True)

        self.magic, self.position, self.next = magic, position, position + size
        self.base_offset = number(0, 8)
        if magic < 2:
            self.base_timestamp = self.max_timestamp = number(18, 8) if magic == 1 else -1
            self.last_offset = self.base_offset
            self.producer_id = self.producer_epoch = self.base_sequence = self.leader_epoch = -1
            self.data_position = position + (26 if magic == 1 else 18)
            self.records, self.attributes = 1, view[position + 17]
            self.crc, self.covered_from = number(12, 4) % 2**32, position + 16
        else:
            self.last_offset = self.base_offset + number(23, 4)
            self.base_timestamp, self.max_timestamp = number(27, 8), number(35, 8)
            self.producer_id, self.producer_epoch, self.base_sequence = number(43, 8), number(51, 2), number(53, 4)
            self.leader_epoch = number(12, 4)
            self.data_position = position + 61
            self.records, self.attributes = number(57, 4) % 2**32, number(21, 2) % 2**16
            self.crc, self.covered_from = number(17, 4) % 2**32, position + 21
        self.data_length = self.next - self.data_position
        self.visible = 0 if magic == 2 and self.attributes & CONTROL else self.records


def _unknown_magic(view: memoryview, position: int, end: int, previous_offset: int) -> Stop:
    """A version that is not known counts as one only where the rest continues the log: no checksum covers it."""
    length = int.from_bytes(view[position + 8 : position + 12], "big", signed=True)
    offset = int.from_bytes(view[position : position + 8], "big")
    continues = offset == previous_offset + 1 and 0 < length <= end - position - _PREFIX_BYTES
    return Stop.BAD_VERSION if continues and view[position + _MAGIC_AT] < 16 else Stop.BAD_MAGIC


def _parse_batch(view: memoryview, position: int, end: int, previous_offset: int) -> tuple[Stop, _ParsedBatch | None]:
    if end - position <= _MAGIC_AT:
        return Stop.SHORT_HEADER, None
    magic = view[position + _MAGIC_AT]
    if magic > 2:
        return _unknown_magic(view, position, end, previous_offset), None
    length = int.from_bytes(view[position + 8 : position + 12], "big", signed=True)
    if length < _LEAST_LENGTHS[magic]:
        return Stop.BAD_LENGTH, None
    if length > end - position - _PREFIX_BYTES:
        return Stop.SHORT_BODY, None
    batch = _ParsedBatch(view, position, magic, _PREFIX_BYTES + length)
    if batch.base_offset < 0 or not batch.base_offset <= batch.last_offset < 2**63:
        return Stop.BAD_RANGE, None
    if batch.base_offset <= previous_offset:
        return Stop.BAD_ORDER, None
    return Stop.END, batch


def _batch_is_whole(view: memoryview, batch: _ParsedBatch) -> bool:
    covered = view[batch.covered_from : batch.next]
    return (crc32 if batch.magic < 2 else crc32c)(covered) == batch.crc


def _pass_field(view: memoryview, at: int, end: int) -> int:
    """Where the field with a length of four bytes at ``at`` ends; -1 where it does not fit."""
    if at < 0 or end - at < 4:
        return -1
    length = int.from_bytes(view[at : at + 4], "big", signed=True)
    return at + 4 + max(length, 0) if -1 <= length <= end - at - 4 else -1


def _adds_up(view: memoryview, batch: _ParsedBatch) -> bool:
    """Whether the numbers of the header fit to each other, and the fields of a message fill it exactly."""
    if batch.magic < 2:
        return _pass_field(view, _pass_field(view, batch.data_position, batch.next), batch.next) == batch.next
    if batch.records > batch.last_offset - batch.base_offset + 1:
        return False
    if batch.attributes & CODEC:
        return True
    if batch.records == 0:
        return batch.data_length == 0
    return batch.records <= batch.data_length // _LEAST_RECORD_BYTES


def _judge_batch(view: memoryview, batch: _ParsedBatch, verify: bool) -> Stop:
    if verify and not _batch_is_whole(view, batch):
        return Stop.BAD_CHECKSUM
    return Stop.END if _adds_up(view, batch) else Stop.BAD_ENTRIES


def scan_batches(
    buf: Buffer,
    position: int,
    end: int,
    columns: BatchColumns,
    previous_offset: int = -1,
    max_bytes: int = 2**62,
    verify: bool = True,
    max_records: int = 2**62,
    digests: UInt32s | None = None,
) -> ScanEnd:
    """Fill ``columns`` with the batches from ``position`` on. Stops when the columns are full, before the batch that
    would exceed ``max_bytes`` or ``max_records`` visible records (the first is always taken), or at bytes that are not
    a valid batch. Records are not looked at. ``digests`` as in `scan_frames`."""
    check_digests(digests)
    found = _scan(bytes_of(buf, position, end), position, end, columns, previous_offset, max_bytes, verify, max_records)
    extend_digests(digests, memoryview(buf).cast("B")[position : found.position])
    return found


def take_batches(
    buf: Buffer,
    position: int,
    end: int,
    columns: BatchColumns,
    records: RecordColumns,
    value_offsets: Int32s,
    values: Buffer,
    previous_offset: int = -1,
    max_bytes: int = 2**62,
    verify: bool = True,
    max_records: int = 2**62,
) -> tuple[ScanEnd, int]:
    """Like `scan_batches`, and fills ``records`` with the visible records on the way; values are copied as by
    `scan_records`. Stops before a batch that may not fit, unless it is the first. Also returns how many records that
    are; -1 where they are not all there, because a batch is compressed, is a message, or does not hold the records that
    it states, or because the first does not fit."""
    taken = _TakenRecords(records, ValueCopy(same_length(records), value_offsets, values))
    view = bytes_of(buf, position, end)
    found = _scan(view, position, end, columns, previous_offset, max_bytes, verify, max_records, taken)
    return found, taken.count


def _scan(
    view: memoryview, position: int, end: int, columns: BatchColumns, previous_offset: int, max_bytes: int,
    verify: bool, max_records: int, taken: _TakenRecords | None = None,
) -> ScanEnd:  # fmt: skip
    capacity = same_length(columns)
    if capacity == 0:
        raise ValueError("the columns have no room")
    bytes_left, records_left = max(max_bytes, 0), max(max_records, 0)
    count, stop = 0, Stop.END
    while position < end:
        if count == capacity or is_zero(view, position, end):
            stop = Stop.LIMIT if count == capacity else Stop.ZEROS
            break
        stop, batch = _parse_batch(view, position, end, previous_offset)
        if batch is None:
            break
        has_room = not count or (
            batch.next - position <= bytes_left
            and batch.visible <= records_left
            and (taken is None or taken.has_room(batch))
        )
        stop = _judge_batch(view, batch, verify) if has_room else Stop.LIMIT
        if stop != Stop.END:
            break
        if taken is not None:
            taken.add(view, batch)
        for field in fields(columns):
            getattr(columns, field.name)[count] = getattr(batch, field.name)
        count += 1
        bytes_left -= batch.next - position
        records_left -= batch.visible
        previous_offset = batch.last_offset
        position = batch.next
    return ScanEnd(count, position, int(stop), previous_offset)


def find_batch(buf: Buffer, position: int, end: int, previous_offset: int = -1) -> int:
    """The first position from ``position`` on where a valid batch or message with a greater offset starts, or
    ``NOT_FOUND``, or ``GAVE_UP`` where searching would cost too much."""
    view = bytes_of(buf, position, end)
    budget = 16 * (end - position) + (1 << 20)
    for at in range(position, end - _MAGIC_AT):
        if view[at] != 0 or view[at + _MAGIC_AT] > 2:
            continue
        _, batch = _parse_batch(view, at, end, previous_offset)
        if batch is None or not _adds_up(view, batch) or batch.base_offset - previous_offset - 1 > _MOST_GAP:
            continue
        budget -= batch.next - at
        if _batch_is_whole(view, batch):
            return at
        if budget < 0:
            return GAVE_UP
    return NOT_FOUND


class _BadRecordError(Exception):
    """The bytes are not a record."""


class _Reader:
    """Reads the variable-length numbers of records between two positions."""

    def __init__(self, view: memoryview, at: int, end: int) -> None:
        self.view, self.at, self.end = view, at, end

    def varint(self, bits: int = 32) -> int:
        """A zigzag number of at most ``bits`` bits; what exceeds them is dropped, as Kafka does."""
        value = 0
        for shift in range(0, bits, 7):
            if self.at >= self.end:
                raise _BadRecordError
            byte = self.view[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            if not byte & 0x80:
                value %= 2**bits
                return value >> 1 ^ -(value & 1)
        raise _BadRecordError

    def field(self, least: int) -> tuple[int, int]:
        """The position and length of bytes with their length before them; -1 stands for null, where it is allowed."""
        length = self.varint()
        if not least <= length <= self.end - self.at:
            raise _BadRecordError
        position = self.at
        self.at += max(length, 0)
        return position, NULL_LENGTH if length < 0 else length

    def header(self) -> tuple[int, int, int, int]:
        return *self.field(0), *self.field(-1)


def _read_record(
    reader: _Reader, least_delta: int, last_delta: int, walk_headers: bool
) -> tuple[int, int, dict[str, int]]:
    """The deltas of offset and time of the record at ``reader``, and its columns."""
    row = {"position": reader.at}
    length = reader.varint()
    if not 1 <= length <= reader.end - reader.at:
        raise _BadRecordError
    record = _Reader(reader.view, reader.at + 1, reader.at + length)  # after the attributes
    time_delta, offset_delta = record.varint(64), record.varint()
    if not least_delta <= offset_delta <= last_delta:
        raise _BadRecordError
    row["key_position"], row["key_length"] = record.field(-1)
    row["value_position"], row["value_length"] = record.field(-1)
    row["headers"] = record.varint()
    if not 0 <= row["headers"] <= (record.end - record.at) // 2:
        raise _BadRecordError
    row["headers_position"] = record.at
    for _ in range(row["headers"] if walk_headers else 0):
        record.header()
    if record.at != record.end and (walk_headers or not row["headers"]):
        raise _BadRecordError
    reader.at = record.end
    return offset_delta, time_delta, row


def _read_records(
    reader: _Reader, rows: range, columns: RecordColumns, base_offset: int, last_offset: int, base_timestamp: int,
    walk_headers: bool, copy: ValueCopy | None,
) -> None:  # fmt: skip
    """Fill those rows with the records, which fill the bytes of ``reader``."""
    delta = -1
    for row in rows:
        delta, time_delta, found = _read_record(reader, delta + 1, last_offset - base_offset, walk_headers)
        found |= {"offset": base_offset + delta, "timestamp": _wrapped(base_timestamp + time_delta)}
        for name, value in found.items():
            getattr(columns, name)[row] = value
        if copy is not None:
            stop = found["value_position"] + (0 if found["value_length"] == NULL_LENGTH else found["value_length"])
            if stop - found["value_position"] > copy.room:
                raise _BadRecordError
            copy.add(row, reader.view[found["value_position"] : stop])
    if reader.at != reader.end:
        raise _BadRecordError


class _TakenRecords:
    """The records of the batches that a scan passes."""

    def __init__(self, columns: RecordColumns, copy: ValueCopy) -> None:
        self._columns, self._copy = columns, copy
        self.count = 0

    def has_room(self, batch: _ParsedBatch) -> bool:
        """Whether the records of a batch fit into what is left, as far as its header says."""
        if self.count < 0 or not batch.visible:
            return True
        return batch.records <= len(self._columns) - self.count and batch.data_length <= self._copy.room

    def add(self, view: memoryview, batch: _ParsedBatch) -> None:
        if self.count < 0 or not batch.visible:
            return
        rows, fits = range(self.count, self.count + batch.records), self.has_room(batch)
        self.count = -1
        if batch.magic < 2 or batch.attributes & CODEC or not fits:
            return
        reader, offsets = _Reader(view, batch.data_position, batch.next), (batch.base_offset, batch.last_offset)
        try:
            _read_records(reader, rows, self._columns, *offsets, batch.base_timestamp, True, self._copy)
        except _BadRecordError:
            return
        self.count = rows.stop


def _read_range(
    view: memoryview, ranges: RecordRanges, number: int, columns: RecordColumns, walk_headers: bool,
    copy: ValueCopy | None,
) -> int:  # fmt: skip
    """Fill in the records of one range; returns how many."""
    position, length, records, row, base, last, base_timestamp = (
        int(getattr(ranges, field.name)[number]) for field in fields(ranges)[:7]
    )
    capacity = len(columns)
    if not 0 <= position <= len(view) or not 0 <= length <= len(view) - position:
        raise _BadRecordError
    if not 0 <= row <= capacity or not 0 <= records <= capacity - row or not 0 <= base <= last:
        raise _BadRecordError
    reader = _Reader(view, position, position + length)
    _read_records(reader, range(row, row + records), columns, base, last, base_timestamp, walk_headers, copy)
    return records


def scan_records(
    buf: Buffer,
    plain: Buffer,
    ranges: RecordRanges,
    columns: RecordColumns,
    walk_headers: bool = True,
    value_offsets: Int32s | None = None,
    values: Buffer | None = None,
) -> int:
    """Fill ``columns`` with the records of every range, from its ``row`` on; a range lies in ``buf`` or in ``plain``.
    Returns how many, or -1 - the number of the first range that its records do not fill exactly, or that does not fit.
    Without ``walk_headers``, headers are counted and not looked at.

    With ``values`` it also copies the values there, as `gather` would, and fills ``value_offsets``; a null takes no
    bytes. The ranges must then follow each other without a gap in their rows."""
    sources = [memoryview(source).cast("B") for source in (buf, plain)]
    count, capacity = same_length(ranges), same_length(columns)
    copy = ValueCopy.into(capacity, value_offsets, values)
    total = 0
    for number in range(count):
        if copy is not None and ranges.row[number] != total:
            return -1 - number
        try:
            view = sources[int(ranges.in_plain[number] != 0)]
            total += _read_range(view, ranges, number, columns, walk_headers, copy)
        except _BadRecordError:
            return -1 - number
    return total


def _wrapped(number: int) -> int:
    return (number + 2**63) % 2**64 - 2**63


def scan_headers(buf: Buffer, positions: Int64s, counts: UInt32s, columns: HeaderColumns) -> int:
    """Fill ``columns`` with the headers of records, one after another. Returns how many, or -1 - the first row that
    does not fit."""
    if len(positions) != len(counts):
        raise ValueError("the columns differ in length")
    view, capacity = memoryview(buf).cast("B"), same_length(columns)
    found = 0
    for row, (position, count) in enumerate(zip(positions.tolist(), counts.tolist(), strict=True)):
        if not 0 <= position <= len(view) or count > capacity - found:
            return -1 - row
        reader = _Reader(view, position, len(view))
        for _ in range(count):
            try:
                header = reader.header()
            except _BadRecordError:
                return -1 - row
            columns.key_position[found], columns.key_length[found] = header[:2]
            columns.value_position[found], columns.value_length[found] = header[2:]
            found += 1
    return found
