"""Kafka's records, encoded into batches; all big-endian. `kernel/records.h` has the bytes."""

from __future__ import annotations

from duramen.kernel.layout import CONTROL, NULL_LENGTH, BatchColumns, HeaderColumns, RecordColumns
from duramen.kernel.reference.columns import Buffer, same_length
from duramen.kernel.reference.crc import crc32c

_HEADER_BYTES = 61


class _DoesNotFitError(Exception):
    """A number does not fit into its field, or bytes do not fit into what remains."""


def _varint(number: int) -> bytes:
    """A zigzag number."""
    raw, out = (number << 1 ^ number >> 63) % 2**64, bytearray()
    while raw >= 0x80:
        out.append(raw % 0x80 | 0x80)
        raw >>= 7
    return bytes([*out, raw])


def _field(buf: memoryview, position: int, length: int, *, allows_null: bool) -> bytes:
    """Bytes with their length before them; -1 stands for null."""
    if length == NULL_LENGTH and allows_null:
        return _varint(-1)
    if length >= 2**31 or not 0 <= position <= len(buf) or length > len(buf) - position:
        raise _DoesNotFitError
    return _varint(length) + bytes(buf[position : position + length])


class _RecordSource:
    """The records to encode, in order, with their headers."""

    def __init__(self, records: RecordColumns, headers: HeaderColumns, fields: tuple[Buffer, ...]) -> None:
        self._records, self._headers = records, headers
        self._keys, self._values, self._header_keys, self._header_values = (memoryview(f).cast("B") for f in fields)
        self._row = self._header = 0

    @property
    def left(self) -> int:
        return len(self._records) - self._row

    def _next_headers(self, count: int) -> bytes:
        if count >= 2**31 or count > len(self._headers) - self._header:
            raise _DoesNotFitError
        out, found = [_varint(count)], self._headers
        for row in range(self._header, self._header + count):
            key = (int(found.key_position[row]), int(found.key_length[row]))
            value = (int(found.value_position[row]), int(found.value_length[row]))
            out.append(_field(self._header_keys, *key, allows_null=False))
            out.append(_field(self._header_values, *value, allows_null=True))
        self._header += count
        return b"".join(out)

    def next(self, base_offset: int, base_timestamp: int) -> tuple[int, bytes]:
        """The delta of the next record's offset, and its bytes."""
        records, row = self._records, self._row
        delta = int(records.offset[row]) - base_offset
        time_delta = (int(records.timestamp[row]) - base_timestamp + 2**63) % 2**64 - 2**63
        key = (int(records.key_position[row]), int(records.key_length[row]))
        value = (int(records.value_position[row]), int(records.value_length[row]))
        body = b"\0" + _varint(time_delta) + _varint(delta)
        body += _field(self._keys, *key, allows_null=True) + _field(self._values, *value, allows_null=True)
        body += self._next_headers(int(records.headers[row]))
        self._row += 1
        if len(body) >= 2**31:
            raise _DoesNotFitError
        return delta, _varint(len(body)) + body


def _signed(number: int, width: int) -> bytes:
    try:
        return int(number).to_bytes(width, "big", signed=True)
    except OverflowError:
        raise _DoesNotFitError from None


def _records(source: _RecordSource, batches: BatchColumns, row: int) -> list[bytes]:
    """The records of a batch."""
    base, last, count = int(batches.base_offset[row]), int(batches.last_offset[row]), int(batches.records[row])
    if count > source.left:
        raise _DoesNotFitError
    parts, before = [], -1
    for _ in range(count):
        delta, record = source.next(base, int(batches.base_timestamp[row]))
        if not before < delta <= last - base:
            raise _DoesNotFitError
        parts.append(record)
        before = delta
    return parts


def _put_batch(out: memoryview, batches: BatchColumns, row: int, records: list[bytes], position: int) -> int:
    """Write the batch at the start of ``out``, and fill in the columns that depend on the bytes."""
    base, last, count = int(batches.base_offset[row]), int(batches.last_offset[row]), int(batches.records[row])
    least = (batches.leader_epoch[row], batches.producer_epoch[row], batches.base_sequence[row])
    if base < 0 or last < base or min(map(int, least)) < -1 or batches.attributes[row] >= 2**16:
        raise _DoesNotFitError
    fixed = int(batches.attributes[row]).to_bytes(2, "big") + _signed(last - base, 4)
    fixed += _signed(batches.base_timestamp[row], 8) + _signed(batches.max_timestamp[row], 8)
    fixed += _signed(batches.producer_id[row], 8) + _signed(batches.producer_epoch[row], 2)
    fixed += _signed(batches.base_sequence[row], 4) + _signed(count, 4)
    covered = fixed + b"".join(records)
    prefix = _signed(base, 8) + _signed(len(covered) + 9, 4) + _signed(batches.leader_epoch[row], 4) + b"\2"
    data = prefix + crc32c(covered).to_bytes(4, "big") + covered
    if len(data) > len(out) or len(data) >= 2**31:
        raise _DoesNotFitError
    out[: len(data)] = data
    batches.position[row], batches.data_position[row] = position, position + _HEADER_BYTES
    batches.data_length[row] = len(data) - _HEADER_BYTES
    batches.visible[row] = 0 if int(batches.attributes[row]) & CONTROL else count
    batches.magic[row] = 2
    return len(data)


def _key_field_bytes(fields: memoryview) -> int:
    """The bytes of the encoded key, after which its headers follow."""
    raw = at = 0
    while True:
        if at >= min(len(fields), 5):
            raise _DoesNotFitError
        raw |= (fields[at] & 0x7F) << 7 * at
        at += 1
        if fields[at - 1] < 0x80:
            break
    length = 0 if raw == 1 else raw >> 1
    if (raw & 1 and raw != 1) or length > len(fields) - at:
        raise _DoesNotFitError
    return at + length


def encode_record(out: Buffer, batch: BatchColumns, value: Buffer, fields: Buffer, base_position: int = 0) -> int:
    """Write one batch with one record: ``batch`` has one row and is treated as by `encode_batches`, which also gets
    ``records``. ``fields`` holds the encoded key and after it the encoded headers with their count; or nothing for
    neither. Returns the bytes written. Raises `ValueError` where something does not fit."""
    if same_length(batch) != 1:
        raise ValueError("one record makes one batch")
    given, content = memoryview(fields).cast("B") or memoryview(b"\1\0"), memoryview(value).cast("B")
    batch.records[0] = 1
    try:
        at = _key_field_bytes(given)
        body = b"\0\0\0" + bytes(given[:at]) + _field(content, 0, len(content), allows_null=False) + bytes(given[at:])
        if len(body) >= 2**31:
            raise _DoesNotFitError
        return _put_batch(memoryview(out).cast("B"), batch, 0, [_varint(len(body)) + body], base_position)
    except _DoesNotFitError:
        raise ValueError("the record does not fit") from None


def encode_batches(
    out: Buffer,
    batches: BatchColumns,
    records: RecordColumns,
    headers: HeaderColumns,
    keys: Buffer,
    values: Buffer,
    header_keys: Buffer,
    header_values: Buffer,
    base_position: int = 0,
) -> int:
    """Write batches into ``out``, one after another, each with as many of the records as it states; positions of
    ``records`` and ``headers`` lie in the four buffers. Fills in the columns of ``batches`` that depend on the bytes;
    ``base_position`` is the position of ``out`` in its file. Returns the bytes written. Raises `ValueError` for a batch
    that does not fit."""
    count = same_length(batches)
    same_length(records), same_length(headers)
    source = _RecordSource(records, headers, (keys, values, header_keys, header_values))
    target, at = memoryview(out).cast("B"), 0
    for row in range(count):
        try:
            at += _put_batch(target[at:], batches, row, _records(source, batches, row), base_position + at)
        except _DoesNotFitError:
            raise ValueError(f"batch {row} does not fit") from None
    return at
