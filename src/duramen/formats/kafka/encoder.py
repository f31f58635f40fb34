"""Records as Kafka batches: columns of an Arrow batch into bytes.

A batch ends at ``max_bytes`` of records, and where the leader epoch, the type of the times, ``chunk_id`` or the
producer changes, or its sequences do not continue.
Offsets may have gaps within a batch, as Kafka's cleaner leaves them. Compression replaces the records of an encoded
batch.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from duramen import kernel
from duramen.errors import CorruptionError, UsageError
from duramen.formats.arrow import allocate, binary_buffers, numbers_of, offsets_to, timestamps_to
from duramen.formats.format import EncodedRecords
from duramen.formats.kafka.batch import APPEND_TIME, HEADER
from duramen.formats.kafka.codec import KafkaCompression, fold
from duramen.formats.segment import Encoded, Rows, ScanPosition
from duramen.kernel import CODEC, NULL_LENGTH, BatchColumns, HeaderColumns, Int64s, RecordColumns, ScanEnd, Stop
from duramen.record import HEADERS

BATCH_MAX_BYTES = 64 << 10
"""Keeps a read of one record, which checks its whole batch, within microseconds."""
BATCH_MAX_RECORDS = 8192
_MOST_RECORD_BYTES = 31
"""Of a record besides key, value and headers: a length, attributes, deltas, three lengths of fields."""
_MOST_HEADER_BYTES = 10
_MOST_DELTA = 2**31 - 1
_COVERED_FROM = HEADER.at("attributes")


PRODUCER_ID, SEQUENCE = "producer_id", "sequence"
"""Columns of a batch whose records have producers: -1 for a record without one. The sequence holds the producer's epoch
above the `SEQUENCE_BITS` of Kafka's."""
SEQUENCE_BITS = 31
_KAFKA_SEQUENCE = 2**SEQUENCE_BITS - 1
_PRODUCER = struct.Struct(">qhi")


class BatchPolicy(NamedTuple):
    """How records become batches."""

    leader_epoch: int = 0
    compression: KafkaCompression = KafkaCompression.NONE
    max_bytes: int = BATCH_MAX_BYTES


class EncodedFields(NamedTuple):
    """What the kernel encodes: columns, and the buffers that they point into."""

    records: RecordColumns
    headers: HeaderColumns
    buffers: tuple[Any, Any, Any, Any]

    @property
    def sizes(self) -> Int64s:
        """The bytes of each record, at most."""
        records, headers = self.records, self.headers
        sizes = _lengths(records.key_length) + _lengths(records.value_length) + _MOST_RECORD_BYTES
        if len(headers):
            pairs = _lengths(headers.key_length) + _lengths(headers.value_length) + _MOST_HEADER_BYTES
            counts = records.headers.astype(np.int64)
            sizes += np.diff(np.append(0, np.cumsum(pairs))[np.append(0, np.cumsum(counts))])
        return sizes


def encode_records(batch: pa.RecordBatch, cursor: ScanPosition, policy: BatchPolicy, default_us: int) -> Encoded:
    """The records of ``batch`` for appending at ``cursor``."""
    count = batch.num_rows
    if not count:
        end = ScanEnd(0, cursor.position, int(Stop.END), cursor.previous_offset)
        return Encoded(memoryview(b""), Rows(BatchColumns.empty(0), 0, end))
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    fields = _fields(batch, columns, cursor, default_us)
    epochs = _epochs(columns.get("leader_epoch"), count, policy.leader_epoch)
    attributes = _attributes(columns.get("timestamp_type"), count)
    forced = _breaks(fields.records.timestamp, epochs, attributes, columns.get("chunk_id"))
    if PRODUCER_ID in columns:
        forced = np.union1d(forced, _sequence_breaks(columns))
    sizes = fields.sizes
    total = int(sizes.sum())
    starts = _split(fields.records.offset, sizes, forced, total, policy.max_bytes)
    rows = _batches(fields.records, starts, epochs, attributes | np.uint32(policy.compression))
    if PRODUCER_ID in columns:
        _set_producers(rows, columns, starts)
    data = encode_batches(rows, fields, total, cursor.position)
    end = ScanEnd(len(rows), cursor.position + len(data), int(Stop.END), int(fields.records.offset[-1]))
    return Encoded(data, Rows(rows, count, end))


def encode_batches(rows: BatchColumns, fields: EncodedFields, most_bytes: int, position: int) -> memoryview:
    """The batches with their records, compressed as their attributes say, for appending at ``position``. Fills in the
    columns that depend on the bytes. ``most_bytes`` bounds the records before compression."""
    out = allocate(most_bytes + len(rows) * HEADER.size, position)
    try:
        written = kernel.encode_batches(out, rows, fields.records, fields.headers, *fields.buffers, position)
    except ValueError as error:
        raise UsageError(f"kafka cannot store these records: {error}") from error
    data = out[:written]
    return memoryview(_compressed(data, rows, position)) if (rows.attributes & CODEC).any() else data


def encode_fields(key: bytes | None, headers: Sequence[tuple[str, bytes | None]]) -> bytes:
    """Key and headers of one record, as they stand before and after its value."""
    parts = [_field(key), _length(len(headers))]
    for name, value in headers:
        parts += _field(name.encode()), _field(value)
    return b"".join(parts)


def _field(content: bytes | None) -> bytes:
    return b"\1" if content is None else _length(len(content)) + content


def _length(number: int) -> bytes:
    """A zigzag varint."""
    raw, out = number << 1, b""
    while raw >= 0x80:
        out += bytes((raw & 0x7F | 0x80,))
        raw >>= 7
    return out + bytes((raw,))


_BASE_OFFSET_AT, _EPOCH_AT, _CRC_AT, _TIMES_AT, _PRODUCER_AT = (
    HEADER.at(name) for name in ("base_offset", "leader_epoch", "crc", "base_timestamp", "producer_id")
)


def move_batches(records: EncodedRecords, cursor: ScanPosition, leader_epoch: int, default_us: int) -> Encoded:
    """Encoded batches for appending at ``cursor``. Their checksum covers times, but neither offset nor epoch."""
    size, rows = records.nbytes, BatchColumns.empty(records.chunks)
    out = allocate(size, cursor.position)
    out[:] = records.data
    found = kernel.scan_batches(out, 0, size, rows, verify=False)
    if (found.count, found.position, found.last_offset) != (records.chunks, size, records.num_rows - 1):
        raise CorruptionError("encoded batches do not hold the records that they should")
    rows.base_offset += cursor.previous_offset + 1
    rows.last_offset += cursor.previous_offset + 1
    rows.leader_epoch[:] = leader_epoch
    for at, offset in zip(rows.position.tolist(), rows.base_offset.tolist(), strict=True):
        struct.pack_into(">q", out, at + _BASE_OFFSET_AT, offset)
        struct.pack_into(">i", out, at + _EPOCH_AT, leader_epoch)
    if not records.has_times:
        rows.base_timestamp[:] = rows.max_timestamp[:] = default_us // 1000
        ends = (rows.data_position + rows.data_length).tolist()
        for at, end in zip(rows.position.tolist(), ends, strict=True):
            struct.pack_into(">qq", out, at + _TIMES_AT, default_us // 1000, default_us // 1000)
            struct.pack_into(">I", out, at + _CRC_AT, kernel.crc32c(out[at + _COVERED_FROM : end]))
    rows.visible[:] = rows.records
    rows.position += cursor.position
    rows.data_position += cursor.position
    end = ScanEnd(len(rows), cursor.position + size, int(Stop.END), cursor.previous_offset + records.num_rows)
    return Encoded(out, Rows(rows, records.num_rows, end))


def _fields(
    batch: pa.RecordBatch, columns: dict[str, pa.Array], cursor: ScanPosition, default_us: int
) -> EncodedFields:
    records = RecordColumns.empty(batch.num_rows)
    records.offset[:] = offsets_to(batch, cursor.previous_offset + 1)
    records.timestamp[:] = _times(batch, columns, default_us)
    keys = _put(columns.get("key"), records.key_position, records.key_length)
    values = _put(columns["value"], records.value_position, records.value_length)
    headers, pairs = _headers(columns.get("headers"), records.headers)
    return EncodedFields(records, headers, (keys, values, *pairs))


def _times(batch: pa.RecordBatch, columns: dict[str, pa.Array], default_us: int) -> Int64s:
    """Milliseconds. ``timestamp_ms``, the time as Kafka stores it, wins where it is not null."""
    times = timestamps_to(batch, "ms", default_us)
    stored = columns.get("timestamp_ms")
    if stored is None or stored.null_count == len(stored):
        return times
    is_null = stored.is_null().to_numpy(zero_copy_only=False)
    return np.where(is_null, times, stored.fill_null(0).to_numpy(zero_copy_only=False))


def _put(array: pa.Array | None, positions: Int64s, lengths: npt.NDArray[np.uint32]) -> Any:
    """Point the columns at the values of the array, and return the buffer that holds them."""
    if array is None or array.null_count == len(array):
        positions[:], lengths[:] = 0, NULL_LENGTH
        return b""
    data, offsets = binary_buffers(array)
    positions[:], lengths[:] = offsets[:-1], np.diff(offsets)
    if array.null_count:
        lengths[array.is_null().to_numpy(zero_copy_only=False)] = NULL_LENGTH
    return data


def _headers(array: pa.Array | None, counts: npt.NDArray[np.uint32]) -> tuple[HeaderColumns, tuple[Any, Any]]:
    if array is None or array.null_count == len(array):
        counts[:] = 0
        return HeaderColumns.empty(0), (b"", b"")
    lists = array if array.type == HEADERS.type else array.cast(HEADERS.type)
    counts[:] = lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    pairs = lists.flatten()  # without those of null rows
    columns = HeaderColumns.empty(len(pairs))
    names, values = pairs.flatten() if len(pairs) else (pa.array([], pa.string()), pa.array([], pa.binary()))
    if names.null_count:
        raise UsageError("the key of a header is null", hint="kafka needs a text there, which may be empty")
    keys = _put(names, columns.key_position, columns.key_length)
    return columns, (keys, _put(values, columns.value_position, columns.value_length))


def _epochs(array: pa.Array | None, count: int, default: int) -> Int64s:
    """The leader epoch of each record; a stored one is kept."""
    if array is None or array.null_count == len(array):
        return np.full(count, default, np.int64)
    return array.fill_null(default).to_numpy(zero_copy_only=False).astype(np.int64)


def _attributes(array: pa.Array | None, count: int) -> npt.NDArray[np.uint32]:
    if array is None or array.null_count == len(array):
        return np.zeros(count, np.uint32)
    is_appended = np.array([one == "LogAppendTime" for one in array.to_pylist()])
    return np.where(is_appended, np.uint32(APPEND_TIME), np.uint32(0))


def _breaks(times: Int64s, epochs: Int64s, attributes: npt.NDArray[np.uint32], chunk_ids: pa.Array | None) -> Int64s:
    """The records before which a batch must end, and the number of records."""
    if len(times) == 1:
        return np.ones(1, np.int64)
    breaks = (np.diff(epochs) != 0) | (attributes[1:] != attributes[:-1])
    breaks |= (attributes[1:] & APPEND_TIME != 0) & (np.diff(times) != 0)  # one time for the whole batch
    if chunk_ids is not None:
        breaks |= np.diff(chunk_ids.fill_null(-1).to_numpy(zero_copy_only=False)) != 0
    return np.append(np.flatnonzero(breaks) + 1, len(times))


def _sequence_breaks(columns: dict[str, pa.Array]) -> Int64s:
    """The records before which a batch ends for the sake of producers."""
    ids, sequences = numbers_of(columns[PRODUCER_ID]), numbers_of(columns[SEQUENCE])
    breaks = ids[1:] != ids[:-1]
    breaks |= (ids[1:] >= 0) & ((np.diff(sequences) != 1) | (sequences[1:] & _KAFKA_SEQUENCE == 0))
    found: Int64s = np.flatnonzero(breaks) + 1
    return found


def _set_producers(rows: BatchColumns, columns: dict[str, pa.Array], starts: Int64s) -> None:
    ids, sequences = numbers_of(columns[PRODUCER_ID])[starts], numbers_of(columns[SEQUENCE])[starts]
    rows.producer_id[:] = ids
    rows.producer_epoch[:] = np.where(ids < 0, -1, sequences >> SEQUENCE_BITS)
    rows.base_sequence[:] = np.where(ids < 0, -1, sequences & _KAFKA_SEQUENCE)


def put_producer(encoded: Encoded, producer_id: int, sequence: int) -> None:
    """Give encoded batches without a producer one; ``sequence`` is that of their first record."""
    rows, data = encoded.rows.columns, encoded.data
    assert isinstance(rows, BatchColumns)
    bases, starts = rows.base_offset.tolist(), rows.position.tolist()
    ends = [*starts[1:], starts[0] + len(data)]
    for row, (base, at, end) in enumerate(zip(bases, starts, ends, strict=True)):
        epoch, first = divmod(sequence + base - bases[0], 2**SEQUENCE_BITS)
        rows.producer_id[row], rows.producer_epoch[row], rows.base_sequence[row] = producer_id, epoch, first
        at, end = at - starts[0], end - starts[0]
        _PRODUCER.pack_into(data, at + _PRODUCER_AT, producer_id, epoch, first)
        struct.pack_into(">I", data, at + _CRC_AT, kernel.crc32c(data[at + _COVERED_FROM : end]))


def _split(offsets: Int64s, sizes: Int64s, forced: Int64s, total: int, max_bytes: int) -> Int64s:
    """The first record of each batch."""
    count = len(offsets)
    is_one = len(forced) == 1 and total <= max_bytes and count <= BATCH_MAX_RECORDS
    if count == 1 or (is_one and int(offsets[-1]) - int(offsets[0]) <= _MOST_DELTA):
        return np.zeros(1, np.int64)
    ends = np.cumsum(sizes)
    starts, start = [], 0
    while start < count:
        starts.append(start)
        before = int(ends[start - 1]) if start else 0
        stop = min(int(np.searchsorted(ends, before + max_bytes, side="right")), start + BATCH_MAX_RECORDS)
        stop = min(stop, int(np.searchsorted(offsets, int(offsets[start]) + _MOST_DELTA, side="right")))
        stop = min(stop, int(forced[np.searchsorted(forced, start, side="right")]))
        start = max(stop, start + 1)
    return np.array(starts, np.int64)


def _batches(
    records: RecordColumns, starts: Int64s, epochs: Int64s, attributes: npt.NDArray[np.uint32]
) -> BatchColumns:
    rows = BatchColumns.empty(len(starts))
    stops = np.append(starts[1:], len(records))
    rows.base_offset[:], rows.last_offset[:] = records.offset[starts], records.offset[stops - 1]
    rows.base_timestamp[:] = records.timestamp[starts]
    rows.max_timestamp[:] = np.maximum.reduceat(records.timestamp, starts)
    rows.producer_id[:] = rows.producer_epoch[:] = rows.base_sequence[:] = -1
    rows.leader_epoch[:], rows.attributes[:] = epochs[starts], attributes[starts]
    rows.records[:] = stops - starts
    return rows


def _compressed(data: memoryview, rows: BatchColumns, position: int) -> bytearray:
    """The encoded batches with their records compressed; fills in the columns that depend on the size."""
    out, first = bytearray(), int(rows.position[0])
    for row in range(len(rows)):
        begin = int(rows.position[row]) - first
        compression = KafkaCompression(int(rows.attributes[row]) & CODEC)
        body = fold(data[begin + HEADER.size : begin + HEADER.size + int(rows.data_length[row])], compression)
        head = HEADER.unpack(data, begin) | {
            "attributes": int(rows.attributes[row]), "length": HEADER.size - HEADER.at("leader_epoch") + len(body)
        }  # fmt: skip
        head["crc"] = kernel.crc32c(body, kernel.crc32c(HEADER.pack(**head)[_COVERED_FROM:]))
        rows.position[row], rows.data_length[row] = position + len(out), len(body)
        rows.data_position[row] = position + len(out) + HEADER.size
        out += HEADER.pack(**head) + body
    return out


def _lengths(column: npt.NDArray[np.uint32]) -> Int64s:
    return np.where(column == NULL_LENGTH, 0, column.astype(np.int64))
