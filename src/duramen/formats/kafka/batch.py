"""The header of a record batch, its attributes, and the records of batches as columns. Pure bytes.

::

    record, after the header of its batch; numbers are zigzag varints
      length         varint, of what follows
      attributes     i8, unused
      time_delta     varint, from the batch's base_timestamp
      offset_delta   varint, from the batch's base_offset
      key_length     varint, -1 for null; key
      value_length   varint, -1 for null; value
      headers        varint, how many; then for each: key_length, key, value_length (-1 for null), value

    control record: a record of a control batch
      key            version i16, type i16 (0 abort, 1 commit)
      value          version i16, coordinator_epoch i32
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import cramjam
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from duramen import kernel
from duramen.errors import CorruptionError
from duramen.formats.arrow import MAX_BATCH_BYTES, allocate, binary_array
from duramen.formats.kafka import message_set
from duramen.formats.kafka.codec import UNFOLD, KafkaCompression, check_bound, with_checksum
from duramen.formats.segment import ScanPosition
from duramen.formats.struct import Struct
from duramen.kernel import (
    CODEC,
    CONTROL,
    BatchColumns,
    BodyFault,
    Int64s,
    RecordColumns,
    RecordRanges,
    ScanEnd,
    UInt32s,
)

HEADER = Struct(
    ">", base_offset="q", length="i", leader_epoch="i", magic="b", crc="I", attributes="H", last_delta="i",
    base_timestamp="q", max_timestamp="q", producer_id="q", producer_epoch="h", base_sequence="i", records="i",
)  # fmt: skip
CONTROL_KEY = Struct(">", version="h", type="h")
CONTROL_VALUE = Struct(">", version="h", coordinator_epoch="i")
ABORT, COMMIT = 0, 1
APPEND_TIME, TRANSACTIONAL, DELETE_HORIZON = 8, 16, 64
RECORD_COST_BYTES = 80
"""What a record costs in columns, besides its key and value: an empty one is seven bytes."""
_LEAST_RECORD_BYTES = 7


@dataclass
class UnfoldedRecords:
    """The records of some batches. Those of compressed batches lie in ``plain``, the others in the file."""

    columns: RecordColumns
    in_plain: npt.NDArray[np.bool_]
    plain: Any
    values: pa.BinaryArray | None = None
    """The values without their nulls, where they were copied on the way."""


class Bodies(NamedTuple):
    """The compressed bodies among some batches: their rows, where they lie, and what they unfold to at most."""

    rows: Int64s
    position: Int64s
    length: UInt32s
    codec: UInt32s
    bound: Int64s


def bodies_of(buf: memoryview, batches: BatchColumns) -> Bodies:
    """The bodies of compressed batches, and of messages that wrap others. A bound may be a `BodyFault`."""
    codecs = batches.attributes & np.uint32(CODEC)
    rows = np.flatnonzero(codecs)
    position, length, codecs = batches.data_position[rows], batches.data_length[rows], codecs[rows]
    for number in np.flatnonzero(batches.magic[rows] < 2).tolist():
        start = int(position[number])
        position[number], length[number] = message_set.value_at(buf, start, start + int(length[number]))
    bound = np.empty(len(rows), np.int64)
    kernel.bound_bodies(buf, position, length, codecs, bound)
    return Bodies(rows, position, length, codecs, bound)


def _check_bodies(batches: BatchColumns, bodies: Bodies, max_bytes: int) -> None:
    """Raise for the first body that cannot be unfolded, or may unfold to more than ``max_bytes``."""
    stated = np.where(batches.magic[bodies.rows] == 2, batches.records[bodies.rows].astype(np.int64), 0)
    is_bad = (bodies.bound < stated * _LEAST_RECORD_BYTES) | (bodies.bound < 0) | (bodies.bound > max_bytes)
    for number in np.flatnonzero(is_bad)[:1].tolist():
        row, bound, codec = int(bodies.rows[number]), int(bodies.bound[number]), int(bodies.codec[number])
        place: dict[str, Any] = {"position": int(batches.position[row]), "offset": int(batches.last_offset[row])}
        if bound == BodyFault.UNKNOWN_CODEC:
            raise CorruptionError(f"the batch has an unknown compression: {codec}", **place)
        if bound < 0:
            name = KafkaCompression(codec).name.lower()
            raise CorruptionError(f"the {name} data is damaged: {BodyFault(bound).meaning}", **place)
        check_bound(bound, max_bytes, **place)
        message = f"the batch states {stated[number]} records, and unfolds to {bound} bytes at most"
        raise CorruptionError(message, **place)


def unfold(
    buf: memoryview, batches: BatchColumns, max_bytes: int, *, walk_headers: bool = True, take_values: bool = False
) -> UnfoldedRecords:
    """All records of the batches, in order. ``take_values`` announces that their values will be gathered."""
    counts = batches.records.astype(np.int64)
    for row in np.flatnonzero(counts * RECORD_COST_BYTES > max_bytes)[:1].tolist():
        place = {"position": int(batches.position[row]), "offset": int(batches.base_offset[row])}
        check_bound(int(counts[row]) * RECORD_COST_BYTES, max_bytes, **place)
    # Before anything is allocated: no count that a file merely states may size an allocation.
    bodies = bodies_of(buf, batches)
    _check_bodies(batches, bodies, max_bytes)
    columns = RecordColumns.empty(int(counts.sum()))
    ranges = _ranges(batches, counts)
    plain = _unfold_bodies(buf, batches, bodies, ranges)
    is_batch = batches.magic == 2
    values = _scan(buf, plain, ranges, is_batch, columns, batches, walk_headers, take_values)
    for row in np.flatnonzero(~is_batch).tolist():
        _messages(plain if ranges.in_plain[row] else buf, batches, row, ranges, columns)
    _set_append_times(columns, batches, counts)
    return UnfoldedRecords(columns, np.repeat(ranges.in_plain != 0, counts), plain, values)


def take(
    buf: memoryview, cursor: ScanPosition, batches: BatchColumns, max_records: int, max_bytes: int, verify: bool
) -> tuple[ScanEnd, UnfoldedRecords | None]:
    """Scan batches, and read their records while the bytes are in the processor's cache. None where `unfold` has to:
    some batch is compressed, of an older format, damaged, or too large."""
    most_bytes = min(max_bytes, max(len(buf) - cursor.position, 0))
    columns = RecordColumns.empty(max_records)
    offsets, data = np.empty(len(columns) + 1, np.int32), allocate(most_bytes)
    end, count = kernel.take_batches(
        buf, cursor.position, len(buf), batches, columns, offsets, data, cursor.previous_offset, max_bytes, verify,
        max_records,
    )  # fmt: skip
    if count < 0:
        return end, None
    columns, batches = columns.head(count), batches.head(end.count)
    _set_append_times(columns, batches, batches.user_records)
    values = binary_array(offsets[: count + 1], data[: int(offsets[count])])
    return end, UnfoldedRecords(columns, np.zeros(count, np.bool_), b"", values)


def _set_append_times(columns: RecordColumns, batches: BatchColumns, counts: Int64s) -> None:
    is_appended = batches.attributes & APPEND_TIME != 0
    if is_appended.any():
        is_appended &= batches.magic > 0
        np.copyto(columns.timestamp, np.repeat(batches.max_timestamp, counts), where=np.repeat(is_appended, counts))


def _ranges(batches: BatchColumns, counts: npt.NDArray[np.int64]) -> RecordRanges:
    return RecordRanges(
        position=batches.data_position.copy(), length=batches.data_length.astype(np.int64), records=counts,
        row=np.cumsum(counts) - counts, base_offset=batches.base_offset, last_offset=batches.last_offset,
        base_timestamp=batches.base_timestamp, in_plain=np.zeros(len(batches), np.uint32),
    )  # fmt: skip


def _unfold_bodies(buf: memoryview, batches: BatchColumns, bodies: Bodies, ranges: RecordRanges) -> memoryview:
    """The bodies one after another; ``ranges`` then says where each lies. Memory that is not written is not used."""
    rows = bodies.rows
    plain = allocate(int(bodies.bound.sum()))
    starts, at = np.zeros(len(rows) + 1, np.int64), 0
    has_other_checksum = ((bodies.codec == KafkaCompression.LZ4) & (batches.magic[rows] == 0)).tolist()
    where = zip(*(column.tolist() for column in bodies[1:]), strict=True)
    for number, (start, length, codec, bound) in enumerate(where):
        body: Any = buf[start : start + length]
        if has_other_checksum[number]:
            body = with_checksum(body)
        try:
            at += UNFOLD[codec](body, plain[at : at + bound])
        except cramjam.DecompressionError as error:
            name, row = KafkaCompression(codec).name.lower(), rows[number]
            message = f"the {name} data cannot be unfolded: {error}"
            place: dict[str, Any] = {"position": int(batches.position[row]), "offset": int(batches.last_offset[row])}
            raise CorruptionError(message, **place) from error
        starts[number + 1] = at
    ranges.position[rows], ranges.length[rows] = starts[:-1], np.diff(starts)
    ranges.in_plain[rows] = 1
    return plain[:at]


def _scan(
    buf: memoryview, plain: memoryview, ranges: RecordRanges, mask: npt.NDArray[np.bool_], columns: RecordColumns,
    batches: BatchColumns, walk_headers: bool, take_values: bool,
) -> pa.BinaryArray | None:  # fmt: skip
    """Fill in the records of those ranges. The values, if they are wanted and all of them are here."""
    is_whole = bool(mask.all())
    wanted = ranges if is_whole else RecordRanges(**{name: getattr(ranges, name)[mask] for name in vars(ranges)})
    most_bytes = int(ranges.length.sum())
    offsets = values = None
    if take_values and is_whole and most_bytes <= MAX_BATCH_BYTES:
        offsets, values = np.empty(len(columns) + 1, np.int32), allocate(most_bytes)
    found = kernel.scan_records(buf, plain, wanted, columns, walk_headers, offsets, values)
    if found < 0:
        row = int(np.flatnonzero(mask)[-1 - found])
        raise CorruptionError(
            f"the batch does not hold the {int(batches.records[row])} records that it states",
            position=int(batches.position[row]), offset=int(batches.base_offset[row]),
        )  # fmt: skip
    return None if offsets is None or values is None else binary_array(offsets, values[: int(offsets[-1])])


def wrapped_messages(buf: memoryview, batches: BatchColumns, row: int, max_bytes: int) -> list[message_set.Message]:
    """The messages that the compressed message of that row wraps."""
    one = batches.slice(row, row + 1)
    bodies, ranges = bodies_of(buf, one), _ranges(one, np.ones(1, np.int64))
    _check_bodies(one, bodies, max_bytes)
    plain = _unfold_bodies(buf, one, bodies, ranges)
    position, offset = int(one.position[0]), int(one.last_offset[0])
    return message_set.wrapped(plain, 0, len(plain), int(one.magic[0]), offset, position=position)


def _messages(source: Any, batches: BatchColumns, row: int, ranges: RecordRanges, columns: RecordColumns) -> None:
    """Fill in the messages of one row: one, or those that are wrapped in it."""
    first = int(ranges.row[row])
    if int(batches.attributes[row]) & CODEC:
        start = int(ranges.position[row])
        found = message_set.wrapped(
            memoryview(source), start, start + int(ranges.length[row]), int(batches.magic[row]),
            int(batches.last_offset[row]), position=int(batches.position[row]),
        )  # fmt: skip
    else:
        found = [message_set.message_at(memoryview(source), int(batches.position[row]))]
    if len(found) != int(batches.records[row]):
        raise CorruptionError("the bytes changed between scan and decode", position=int(batches.position[row]))
    for number, message in enumerate(found, first):
        columns.offset[number], columns.timestamp[number] = message.offset, message.timestamp
        columns.position[number] = message.position
        columns.key_position[number], columns.key_length[number] = message.key
        columns.value_position[number], columns.value_length[number] = message.value
        columns.headers_position[number], columns.headers[number] = 0, 0


def is_control(batches: BatchColumns) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = (batches.attributes & CONTROL != 0) & (batches.magic == 2)
    return found
