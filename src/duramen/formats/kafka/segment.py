"""A segment of a Kafka partition: scanned by batch, decoded by record.

A row is a batch, or a message of the older formats. The kernel scans and checks batches without looking into them.
What a compressed message of an older format wraps has to be unfolded to know its first offset; batches say it in their
headers. Control batches, aborted transactions, and records before the log's start occupy offsets and give no records.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from duramen import kernel
from duramen.errors import CorruptionError, DuramenError, LimitError
from duramen.formats.arrow import (
    REUSED_UP_TO_BYTES,
    allocate,
    binary_of,
    gather_two,
    number_array,
    timestamps_from,
    with_nulls,
)
from duramen.formats.kafka.batch import (
    APPEND_TIME,
    HEADER,
    RECORD_COST_BYTES,
    TRANSACTIONAL,
    UnfoldedRecords,
    bodies_of,
    take,
    unfold,
    wrapped_messages,
)
from duramen.formats.kafka.headers import headers_array
from duramen.formats.kafka.inner import DamagedStretch
from duramen.formats.kafka.message_set import MESSAGE, message_at
from duramen.formats.segment import (
    SCAN_BYTES,
    SCAN_RECORDS,
    Encoded,
    Problem,
    Rows,
    ScanPosition,
    ScanShape,
    Segment,
    Severity,
)
from duramen.kernel import (
    CODEC,
    NOT_FOUND,
    NULL_LENGTH,
    BatchColumns,
    Columns,
    Int64s,
    RecordKind,
    ScanEnd,
    Stop,
    UInt32s,
)
from duramen.record import SCHEMA, Record, from_us

TIMESTAMP_MS = pa.field("timestamp_ms", pa.int64())
TIMESTAMP_TYPE = pa.field("timestamp_type", pa.string())
LEADER_EPOCH = pa.field("leader_epoch", pa.int32())
CHUNK_ID = pa.field("chunk_id", pa.int64(), nullable=False)
EXTRAS = (TIMESTAMP_MS, TIMESTAMP_TYPE, LEADER_EPOCH, CHUNK_ID)
"""Kafka's own columns: the time as stored, which may lie beyond what microseconds can express; what the time is; the
epoch of the leader that wrote the record, each null where the message format has none; and the base offset of the
record's batch."""

_LENGTH_AT, _MAGIC_AT, _RECORDS_AT = (HEADER.at(name) for name in ("length", "magic", "records"))
_CODEC_AT = HEADER.at("attributes") + 1
_LEAST_BYTES = 26
_LEAST_BATCHES, _SCAN_BATCHES = 16, 4096
_UNFOLDED_BYTES = REUSED_UP_TO_BYTES
"""What the compressed batches of one scan step may unfold to, as far as their framing says; one batch may exceed it."""
_LIKELY_RATIO = 4
"""Framing may allow much more than a batch holds: by so much, at most, compressed bytes count as ``max_bytes``."""
_TYPES = binary_of([b"CreateTime", b"LogAppendTime"]).view(pa.string())  # a cast would import pyarrow.compute


class AbortedRange(NamedTuple):
    """The batches of one producer from ``first_offset`` up to its marker at ``last_offset``."""

    producer_id: int
    first_offset: int
    last_offset: int


class KafkaView(NamedTuple):
    """What readers see of a log: nothing before ``start_offset``, and no aborted transaction."""

    start_offset: int = 0
    aborted: tuple[AbortedRange, ...] = ()
    max_uncompressed_bytes: int = 0


@dataclass
class KafkaRows(Rows):
    """Rows whose records the scan read on the way."""

    records: UnfoldedRecords | None = None


class KafkaSegment(Segment):
    version_at = _MAGIC_AT
    header_bytes = 61

    def __init__(self, buf: memoryview, base_offset: int, view: KafkaView) -> None:
        self.buf = buf
        self.base_offset = base_offset
        self.start = ScanPosition(0, base_offset - 1)
        self.first_visible = view.start_offset
        self._view = view
        magic = buf[_MAGIC_AT] if len(buf) > _MAGIC_AT and not kernel.is_zero(buf, 0, _MAGIC_AT + 1) else None
        self.dialect = "no batch yet" if magic is None else f"message format v{magic}"

    def scan_shape(self, cursor: ScanPosition) -> ScanShape | None:
        at = cursor.position + _CODEC_AT
        if self._view.aborted or self._view.max_uncompressed_bytes < _UNFOLDED_BYTES or at >= len(self.buf):
            return None
        if self.buf[cursor.position + _MAGIC_AT] < 2:
            return None
        return ScanShape(RecordKind.BATCH, time_unit_us=1000, codec=self.buf[at] & CODEC)

    # --- scanning

    def scan(
        self,
        cursor: ScanPosition,
        *,
        max_records: int = SCAN_RECORDS,
        max_bytes: int = SCAN_BYTES,
        verify: bool = True,
        room: Columns | None = None,
        digests: UInt32s | None = None,
        take_values: bool = False,
    ) -> Rows:
        """The next batches, whole ones: a batch with more than ``max_records`` records still comes in one step."""
        batches, records_room = self._likely(cursor.position, max_records, max_bytes)
        columns = BatchColumns.empty(batches)
        if take_values and digests is None and self._can_take(cursor):
            end, records = take(self.buf, cursor, columns, records_room, max_bytes, verify)
            if records is not None:
                return KafkaRows(columns.head(end.count), len(records.columns), end, records=records)
        else:
            sums = None if digests is None else digests.copy()
            end = kernel.scan_batches(
                self.buf, cursor.position, len(self.buf), columns, cursor.previous_offset, max_bytes, verify,
                max_records, sums,
            )  # fmt: skip
        rows = self._step(columns.head(end.count), end, cursor, max_bytes)
        if digests is not None and sums is not None:
            if rows.end.position < end.position:  # a step that ends before the scan did
                data = self.buf[cursor.position : rows.end.position]
                sums[:] = kernel.digest(data, int(digests[0]), int(digests[1]))
            digests[:] = sums
        return rows

    def _likely(self, position: int, max_records: int, max_bytes: int) -> tuple[int, int]:
        """For how many batches and records a step has room: twice as many as there are if all are like the first. Where
        more come, the step ends when the room is full."""
        left = min(max(len(self.buf) - position, 0), max_bytes)
        batches = records = left // _LEAST_BYTES + 1
        if left >= HEADER.size and self.buf[position + _MAGIC_AT] == 2:
            header = self.buf[position : position + HEADER.size]
            length, count = (int.from_bytes(header[at : at + 4], "big") for at in (_LENGTH_AT, _RECORDS_AT))
            batches = 2 * (left // max(length, HEADER.size) + _LEAST_BATCHES)
            records = max(count, 1) * batches
        return max(1, min(max_records, batches, _SCAN_BATCHES)), max(1, min(max_records, records))

    def _step(self, columns: BatchColumns, end: ScanEnd, cursor: ScanPosition, max_bytes: int) -> Rows:
        """What one step takes of the batches that a scan found."""
        fitting, refused = self._fitting(columns, cursor.previous_offset, max_bytes)
        if fitting < len(columns) or refused is not None:
            last = int(columns.last_offset[fitting - 1]) if fitting else cursor.previous_offset
            stop = Stop.LIMIT if refused is None else refused
            end = ScanEnd(fitting, int(columns.position[fitting]), int(stop), last)
            columns = columns.head(fitting)
        return Rows(columns, int(self._visible(columns).sum(dtype=np.int64)), end)

    def _can_take(self, cursor: ScanPosition) -> bool:
        """Whether readers see everything from here on, and the first batch is not compressed."""
        if self._view.aborted or self._view.start_offset > cursor.previous_offset + 1:
            return False
        return not self._is_compressed(cursor)

    def _is_compressed(self, cursor: ScanPosition) -> bool:
        """Of the first batch; also where it is cut short."""
        at = cursor.position + _CODEC_AT
        return at >= len(self.buf) or bool(self.buf[at] & CODEC)

    def _fitting(self, batches: BatchColumns, previous_offset: int, max_bytes: int) -> tuple[int, Stop | None]:
        """How many of the batches one step takes, and why the next one is not valid, if that is the reason. Completes
        what wrapping messages do not state: how many messages they hold, and their first offset."""
        bodies = bodies_of(self.buf, batches)
        if not len(bodies.rows):
            return len(batches), None
        bounds = np.maximum(bodies.bound, 0)  # decode raises for those that are damaged
        costs = bounds + batches.records[bodies.rows].astype(np.int64) * RECORD_COST_BYTES
        likely = np.minimum(bounds, bodies.length.astype(np.int64) * _LIKELY_RATIO)
        is_over = (np.cumsum(costs) > _UNFOLDED_BYTES) | (np.cumsum(likely) > max_bytes)
        is_over |= bounds > self._view.max_uncompressed_bytes
        first = np.flatnonzero(is_over)[:1]
        fitting = max(int(bodies.rows[first[0]]), 1) if len(first) else len(batches)
        for row in bodies.rows[batches.magic[bodies.rows] < 2].tolist():
            if row >= fitting:
                break
            before = int(batches.last_offset[row - 1]) if row else previous_offset
            refused = self._open_wrapper(batches, row, before)
            if refused is not None:
                return row, refused
        return fitting, None

    def _open_wrapper(self, batches: BatchColumns, row: int, previous_offset: int) -> Stop | None:
        try:
            found = wrapped_messages(self.buf, batches, row, self._view.max_uncompressed_bytes)
        except LimitError:
            return None  # decode raises it
        except CorruptionError:
            return Stop.BAD_ENTRIES
        batches.base_offset[row] = found[0].offset
        batches.records[row] = batches.visible[row] = len(found)
        return Stop.BAD_ORDER if found[0].offset <= previous_offset else None

    def _visible(self, batches: BatchColumns) -> UInt32s:
        """Set and return how many records of each batch readers see."""
        visible = batches.visible
        start, aborted = self._view.start_offset, self._view.aborted
        if not len(batches):
            return visible
        if start > int(batches.base_offset[0]):
            visible[batches.last_offset < start] = 0
            for row in np.flatnonzero((batches.base_offset < start) & (visible > 0)).tolist():
                visible[row] = self._count_from(batches.slice(row, row + 1), start)
        if aborted:
            visible[self._is_aborted(batches)] = 0
        return visible

    def _count_from(self, batch: BatchColumns, start: int) -> int:
        try:
            records = unfold(self.buf, batch, self._view.max_uncompressed_bytes)
        except DuramenError:
            return int(batch.records[0])  # decode raises it
        return int((records.columns.offset >= start).sum())

    def _is_aborted(self, batches: BatchColumns) -> npt.NDArray[np.bool_]:
        hidden = np.zeros(len(batches), np.bool_)
        first, last = int(batches.base_offset[0]), int(batches.last_offset[-1])
        in_transaction = (batches.attributes & TRANSACTIONAL != 0) & (batches.magic == 2)
        for aborted in self._view.aborted:
            if aborted.first_offset <= last and aborted.last_offset >= first:
                in_range = (batches.base_offset >= aborted.first_offset) & (batches.base_offset <= aborted.last_offset)
                hidden |= in_transaction & in_range & (batches.producer_id == aborted.producer_id)
        return hidden

    # --- decoding

    def decode(self, rows: Rows, columns: Sequence[str]) -> pa.RecordBatch:
        batches = batches_of(rows)
        batches = rows_where(batches, batches.visible > 0)
        records = rows.records if isinstance(rows, KafkaRows) else None
        if records is None:
            records = unfold(
                self.buf, batches, self._view.max_uncompressed_bytes, walk_headers="headers" in columns,
                take_values="value" in columns,
            )  # fmt: skip
        arrays = [self._array(name, batches, records) for name in columns]
        found = pa.RecordBatch.from_arrays(arrays, schema=_schema(tuple(columns)))
        offsets = records.columns.offset
        if len(offsets) and offsets[0] < self._view.start_offset:
            found = found.slice(int(np.searchsorted(offsets, self._view.start_offset)))
        return found

    def _array(self, name: str, batches: BatchColumns, records: UnfoldedRecords) -> pa.Array:
        columns, counts = records.columns, batches.records
        if name == "offset":
            return number_array(columns.offset)
        if name == "timestamp":
            return timestamps_from(columns.timestamp, "ms")
        if name == "headers":
            return headers_array(self.buf, records)
        if name == "timestamp_ms":
            return number_array(columns.timestamp, mask=columns.timestamp < 0)
        if name == "timestamp_type":
            kinds = np.repeat((batches.attributes & APPEND_TIME != 0).astype(np.int32), counts)
            return _TYPES.take(number_array(kinds, mask=np.repeat(batches.magic == 0, counts)))
        if name == "leader_epoch":
            epochs = np.repeat(batches.leader_epoch, counts).astype(np.int32)
            return number_array(epochs, mask=epochs < 0)
        if name == "chunk_id":
            return number_array(np.repeat(batches.base_offset, counts))
        if name == "key":
            return nullable(self.buf, records, columns.key_position, columns.key_length)
        if records.values is not None:
            return with_nulls(records.values, columns.value_length == NULL_LENGTH)
        return nullable(self.buf, records, columns.value_position, columns.value_length)

    def unfolded(self, batches: BatchColumns) -> UnfoldedRecords:
        """All records of the batches, whether readers see them or not."""
        return unfold(self.buf, batches, self._view.max_uncompressed_bytes)

    def check(self, rows: Rows) -> Iterator[Problem]:
        """Batches whose checksum is right and whose records cannot be read."""
        batches = batches_of(rows)
        try:
            unfold(self.buf, batches, self._view.max_uncompressed_bytes)
            return
        except DuramenError:
            pass  # find out which
        for row in range(len(batches)):
            try:
                unfold(self.buf, batches.slice(row, row + 1), self._view.max_uncompressed_bytes)
            except CorruptionError as error:
                offset = int(batches.base_offset[row])
                yield Problem("bad-records", Severity.DAMAGE, error.message, int(batches.position[row]), offset)
            except LimitError as error:
                offset = int(batches.base_offset[row])
                yield Problem(
                    "too-large", Severity.WARNING, f"{error.message}: its records were not checked",
                    int(batches.position[row]), offset, "set a greater max_uncompressed_bytes",
                )  # fmt: skip

    def read(self, cursor: ScanPosition, offset: int) -> Record | Stop:
        cursor = ScanPosition(cursor.position, -1)  # an index entry names the last offset of its batch
        for rows in self.steps(cursor, verify=False):
            batches = batches_of(rows)
            row = int(np.searchsorted(batches.last_offset, offset))
            if row == len(batches):
                continue
            found = self.scan(ScanPosition(int(batches.position[row]), -1), max_records=1)
            if not len(found.columns):
                return found.stop
            return self._pick(found, offset)
        return rows.stop

    def _pick(self, rows: Rows, offset: int) -> Record | Stop:
        """The record with that offset from the first batch of ``rows``."""
        one = Rows(batches_of(rows).head(1), rows.count, rows.end)
        batch = self.decode(one, SCHEMA.names)
        number = int(np.searchsorted(batch.column("offset").to_numpy(), offset))
        if number == batch.num_rows or batch.column("offset")[number].as_py() != offset:
            return Stop.LIMIT
        found = batch.slice(number, 1)
        headers = found.column("headers")[0].as_py()
        us = found.column("timestamp").view(pa.int64())[0].as_py()
        return Record(
            offset, from_us(us), found.column("key")[0].as_py(), found.column("value")[0].as_py(),
            None if headers is None else [(header["key"], header["value"]) for header in headers],
        )  # fmt: skip

    # --- positions

    def cursor_at(self, offset: int, position: int) -> ScanPosition | None:
        """An index entry names the last offset of the batch at its position, or of a later one that came with it."""
        if not 0 <= position < len(self.buf) or offset < 0:
            return None
        rows = self.scan(ScanPosition(position, -1), max_records=1)
        if not len(rows.columns) or int(rows.columns.first_offsets[0]) > offset:
            return None
        return ScanPosition(position, int(rows.columns.first_offsets[0]) - 1)

    def last_batch(self) -> BatchColumns | None:
        """The last batch or message that its header shows as whole; None where there is none."""
        found = None
        for rows in self.steps(verify=False):
            batches = batches_of(rows)
            found = batches.slice(len(batches) - 1, len(batches)) if len(batches) else found
        return found

    def resync(self, cursor: ScanPosition) -> int:
        found = cursor.position
        after = self._after_message(found)
        while after is not None and after < len(self.buf):
            if len(self.scan(ScanPosition(after, cursor.previous_offset), max_records=1).columns):
                return after
            after = self._after_message(after)
        if after is not None:
            return NOT_FOUND
        while True:
            start = min(found + 1, len(self.buf))
            found = kernel.find_batch(self.buf, start, len(self.buf), cursor.previous_offset)
            # The kernel does not look into a compressed message, which may hold none, or such with other offsets.
            if found < 0 or len(self.scan(ScanPosition(found, cursor.previous_offset), max_records=1).columns):
                return found

    def _after_message(self, position: int) -> int | None:
        """Where a message of the older formats ends, if one seems to be here. What it wraps may lie in it as it is,
        with right checksums, and with offsets that count from its first one."""
        if len(self.buf) - position < _LEAST_BYTES or self.buf[position + _MAGIC_AT] > 1:
            return None
        head = MESSAGE[0].unpack(self.buf, position)
        end = position + int(head["size"]) + MESSAGE[0].at("crc")
        if int(head["attributes"]) & CODEC:
            return end if position < end <= len(self.buf) else None
        try:
            return message_at(self.buf, position).end
        except CorruptionError:
            return None

    def resync_outside(self, cursor: ScanPosition, last: int) -> int:
        return DamagedStretch(self, cursor, last).end()

    def at_offset(self, position: int, offset: int) -> tuple[int, bytes] | None:
        columns = batches_of(self.scan(ScanPosition(position, -1), max_records=1, verify=False))
        if len(columns) and columns.magic[0] < 2 and columns.attributes[0] & CODEC:
            if columns.magic[0] == 0 and columns.base_offset[0] != offset:
                return None  # the messages inside have their own
            offset += int(columns.last_offset[0] - columns.base_offset[0])  # that of the last message inside
        return position, offset.to_bytes(8, "big")

    def select(self, rows: Rows, kept: npt.NDArray[np.bool_], cursor: ScanPosition) -> Encoded:
        """The kept batches, with all of their records."""
        batches = batches_of(rows)
        moved = batches.take(kept)
        sizes = np.diff(batches.position, append=rows.end.position)[kept]
        starts, total = moved.position, int(sizes.sum())
        data = allocate(total, cursor.position)
        kernel.gather(self.buf, starts, sizes.astype(np.uint32), np.empty(len(starts) + 1, np.int32), data)
        moved.position = cursor.position + np.cumsum(sizes) - sizes
        moved.data_position += moved.position - starts
        last = int(moved.last_offset[-1]) if len(moved) else cursor.previous_offset
        end = ScanEnd(len(moved), cursor.position + total, int(Stop.END), last)
        return Encoded(data, Rows(moved, int(moved.visible.sum(dtype=np.int64)), end))


def starts_with_batch(buf: memoryview) -> bool:
    """Whether the bytes start with a whole batch or message whose checksum is right."""
    return bool(kernel.scan_batches(buf, 0, len(buf), BatchColumns.empty(1)).count)


def batches_of(rows: Rows) -> BatchColumns:
    assert isinstance(rows.columns, BatchColumns)
    return rows.columns


def nullable(buf: memoryview, records: UnfoldedRecords, positions: Int64s, lengths: UInt32s) -> pa.BinaryArray:
    """Keys or values: bytes of the file or of what was unfolded, or null."""
    is_null = lengths == NULL_LENGTH
    if is_null.any():
        lengths = np.where(is_null, np.uint32(0), lengths)
    return with_nulls(gather_two(buf, records.plain, positions, lengths, records.in_plain), is_null)


def rows_where(batches: BatchColumns, mask: npt.NDArray[np.bool_]) -> BatchColumns:
    return batches if mask.all() else batches.take(mask)


@cache
def _schema(columns: tuple[str, ...]) -> pa.Schema:
    extras = {field.name: field for field in EXTRAS}
    return pa.schema([extras[name] if name in extras else SCHEMA.field(name) for name in columns])
