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

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from duramen import kernel
from duramen.errors import CorruptionError
from duramen.formats.kafka import message_set
from duramen.formats.kafka.codec import check_bound, unfold_into, unfolded_bound
from duramen.formats.struct import Struct
from duramen.kernel import CODEC, CONTROL, BatchColumns, RecordColumns, RecordRanges

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


def bound_of(buf: memoryview, batches: BatchColumns, row: int, max_bytes: int) -> int:
    """How many bytes a compressed batch unfolds to at most; raises where that is more than ``max_bytes``."""
    position, offset = int(batches.position[row]), int(batches.last_offset[row])
    body = body_of(buf, batches, row)
    bound = unfolded_bound(body, int(batches.attributes[row]) & CODEC, position=position, offset=offset)
    check_bound(bound, max_bytes, position=position, offset=offset)
    stated = int(batches.records[row])
    if batches.magic[row] == 2 and stated * _LEAST_RECORD_BYTES > bound:
        message = f"the batch states {stated} records, and unfolds to {bound} bytes at most"
        raise CorruptionError(message, position=position, offset=offset)
    return bound


def body_of(buf: memoryview, batches: BatchColumns, row: int) -> memoryview:
    """The compressed bytes of a batch, or of the message that wraps others."""
    start = int(batches.data_position[row])
    stop = start + int(batches.data_length[row])
    return buf[start:stop] if batches.magic[row] == 2 else message_set.value_of(buf, start, stop)


def unfold(buf: memoryview, batches: BatchColumns, max_bytes: int) -> UnfoldedRecords:
    """All records of the batches, in order."""
    counts = batches.records.astype(np.int64)
    for row in np.flatnonzero(counts * RECORD_COST_BYTES > max_bytes)[:1].tolist():
        place = {"position": int(batches.position[row]), "offset": int(batches.base_offset[row])}
        check_bound(int(counts[row]) * RECORD_COST_BYTES, max_bytes, **place)
    compressed = (batches.attributes & CODEC) != 0
    # Before anything is allocated: no count that a file merely states may size an allocation.
    bounds = {row: bound_of(buf, batches, row, max_bytes) for row in np.flatnonzero(compressed).tolist()}
    columns = RecordColumns.empty(int(counts.sum()))
    ranges = _ranges(batches, counts)
    plain = _unfold_bodies(buf, batches, bounds, ranges)
    is_batch = batches.magic == 2
    for source, mask in ((buf, is_batch & ~compressed), (plain, is_batch & compressed)):
        if mask.any():
            _scan(source, ranges, mask, columns, batches)
    for row in np.flatnonzero(~is_batch).tolist():
        _messages(plain if compressed[row] else buf, batches, row, ranges, columns)
    times = np.repeat(batches.max_timestamp, counts)
    is_appended = np.repeat((batches.attributes & APPEND_TIME != 0) & (batches.magic > 0), counts)
    np.copyto(columns.timestamp, times, where=is_appended)
    return UnfoldedRecords(columns, np.repeat(compressed, counts), plain)


def _ranges(batches: BatchColumns, counts: npt.NDArray[np.int64]) -> RecordRanges:
    return RecordRanges(
        position=batches.data_position.copy(), length=batches.data_length.astype(np.int64), records=counts,
        row=np.cumsum(counts) - counts, base_offset=batches.base_offset, last_offset=batches.last_offset,
        base_timestamp=batches.base_timestamp,
    )  # fmt: skip


def _unfold_bodies(
    buf: memoryview, batches: BatchColumns, bounds: Mapping[int, int], ranges: RecordRanges
) -> npt.NDArray[np.uint8]:
    """The bodies one after another; ``ranges`` then says where each lies. Memory that is not written is not used."""
    plain = np.empty(sum(bounds.values()), np.uint8)
    at = 0
    for row in bounds:
        position, offset = int(batches.position[row]), int(batches.last_offset[row])
        codec, magic = int(batches.attributes[row]) & CODEC, int(batches.magic[row])
        body, out = body_of(buf, batches, row), memoryview(plain)[at:]  # type: ignore[arg-type]
        length = unfold_into(body, codec, out, magic, position=position, offset=offset)
        ranges.position[row], ranges.length[row] = at, length
        at += length
    return plain[:at]


def _scan(source: Any, ranges: RecordRanges, mask: Any, columns: RecordColumns, batches: BatchColumns) -> None:
    wanted = ranges if mask.all() else RecordRanges(**{name: getattr(ranges, name)[mask] for name in vars(ranges)})
    found = kernel.scan_records(source, wanted, columns)
    if found < 0:
        row = int(np.flatnonzero(mask)[-1 - found])
        raise CorruptionError(
            f"the batch does not hold the {int(batches.records[row])} records that it states",
            position=int(batches.position[row]), offset=int(batches.base_offset[row]),
        )  # fmt: skip


def wrapped_messages(buf: memoryview, batches: BatchColumns, row: int, max_bytes: int) -> list[message_set.Message]:
    """The messages that the compressed message of that row wraps."""
    position, offset = int(batches.position[row]), int(batches.last_offset[row])
    plain = np.empty(bound_of(buf, batches, row, max_bytes), np.uint8)
    body, magic = body_of(buf, batches, row), int(batches.magic[row])
    codec = int(batches.attributes[row]) & CODEC
    out = memoryview(plain)  # type: ignore[arg-type]
    length = unfold_into(body, codec, out, magic, position=position, offset=offset)
    return message_set.wrapped(out, 0, length, magic, offset, position=position)


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
