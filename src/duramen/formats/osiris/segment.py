"""A segment of Osiris chunks: scanned by chunk, decoded by record.

Sub-batches are opened here, and only when their records are asked for: bounded by what they state, and that by
``max_uncompressed_bytes``. Records without sub-batches never become Python objects on the way to Arrow. Tracking
chunks use up offsets and give no records.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import pyarrow as pa

from duramen import kernel
from duramen.errors import CorruptionError
from duramen.formats.arrow import allocate, gather, gather_two, number_array, places_of, timestamps_from
from duramen.formats.osiris.chunk import (
    HEADER,
    MAGIC,
    SIMPLE,
    ChunkType,
    Compression,
    check_claim,
    find_records,
    inflate_into,
)
from duramen.formats.osiris.tracking import Tracking, parse_blocks
from duramen.formats.segment import SCAN_BYTES, SCAN_RECORDS, Problem, Rows, ScanPosition, ScanShape, Segment, Severity
from duramen.formats.struct import Struct
from duramen.kernel import BAD_TRACKING, ChunkColumns, Columns, EntryColumns, EntryHit, RecordKind, Stop, UInt32s
from duramen.record import SCHEMA, Record, from_us

FILE_HEADER = Struct(">", magic="4s", version="I")
CHUNK_ID = pa.field("chunk_id", pa.int64(), nullable=False)

_LEAST_CHUNK_BYTES = HEADER.size + SIMPLE.size
_SCAN_CHUNKS = 4096
RECORD_COST_BYTES = 40
"""What a record of a sub-batch costs in columns, besides its value: an empty one is four bytes in the file."""


class OsirisSegment(Segment):
    has_value_places = True

    def __init__(self, buf: memoryview, base_offset: int, start: int, max_uncompressed_bytes: int) -> None:
        self.buf = buf
        self.base_offset = base_offset
        self.start = ScanPosition(start, base_offset - 1)
        self.chunk_version = buf[start] & 15 if start < len(buf) and buf[start] >> 4 == MAGIC else None
        self.dialect = "no chunk yet" if self.chunk_version is None else f"chunk version {self.chunk_version}"
        self.header_bytes = HEADER.size
        self._max_uncompressed_bytes = max_uncompressed_bytes

    def scan_shape(self, cursor: ScanPosition) -> ScanShape | None:
        filter_at = cursor.position + HEADER.at("filter_size")
        data_at = cursor.position + HEADER.size + (self.buf[filter_at] if filter_at < len(self.buf) else 0)
        if data_at < len(self.buf) and self.buf[data_at] & 0x80:  # a sub-batch
            return None
        return ScanShape(RecordKind.CHUNK, time_unit_us=1000, has_signed_times=True)

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
        """The next chunks, whole ones: a chunk with more than ``max_records`` records still comes in one step."""
        if isinstance(room, ChunkColumns):
            columns = room
        else:
            left = max(len(self.buf) - cursor.position, 0)
            most = min(left, max_bytes) // _LEAST_CHUNK_BYTES + 1
            columns = ChunkColumns.empty(max(1, min(max_records, most, _SCAN_CHUNKS)))
        end = kernel.scan_chunks(
            self.buf, cursor.position, len(self.buf), columns, cursor.previous_offset, max_bytes, verify, max_records,
            digests,
        )  # fmt: skip
        columns = columns.head(end.count)
        count = int(columns.records[columns.chunk_type == ChunkType.USER].sum(dtype=np.int64))
        return Rows(columns, count, end)

    def room(self, records: int = SCAN_RECORDS) -> Columns:
        return ChunkColumns.empty(max(1, min(records, _SCAN_CHUNKS)))

    def decode(self, rows: Rows, columns: Sequence[str]) -> pa.RecordBatch:
        chunks = _user_chunks(chunks_of(rows))
        self._check_claims(chunks)
        records = chunks.records.astype(np.int64)
        total = int(records.sum())
        arrays: list[pa.Array] = []
        for name in columns:
            if name == "offset":
                before = np.cumsum(records) - records
                arrays.append(number_array(np.arange(total) + np.repeat(chunks.chunk_id - before, records)))
            elif name == "timestamp":
                arrays.append(timestamps_from(np.repeat(chunks.timestamp, records), "ms", signed=True))
            elif name == "value":
                arrays.append(self._values(chunks, total))
            elif name == "chunk_id":
                arrays.append(number_array(np.repeat(chunks.chunk_id, records)))
            else:
                arrays.append(pa.nulls(total, SCHEMA.field(name).type))
        return pa.RecordBatch.from_arrays(arrays, schema=_schema(columns))

    def _check_claims(self, chunks: ChunkColumns) -> None:
        """No count and no length that a file merely states may size an allocation."""
        room = (chunks.data_length + chunks.inflated_bytes) // SIMPLE.size
        for row in np.flatnonzero(chunks.records > room)[:1].tolist():
            stated, offset = int(chunks.records[row]), int(chunks.chunk_id[row])
            message = f"the chunk states {stated} records, and its bytes can hold {int(room[row])} at most"
            raise CorruptionError(message, position=int(chunks.position[row]), offset=offset)
        claimed = chunks.inflated_bytes.astype(np.int64)
        claimed += np.where(chunks.sub_batches > 0, chunks.records.astype(np.int64) * RECORD_COST_BYTES, 0)
        for row in np.flatnonzero(claimed > self._max_uncompressed_bytes)[:1].tolist():
            position, offset = int(chunks.position[row]), int(chunks.chunk_id[row])
            stated = int(claimed[row])
            check_claim(stated, self._max_uncompressed_bytes, position=position, offset=offset)

    def value_places(self, rows: Rows) -> pa.StructArray | None:
        chunks = _user_chunks(chunks_of(rows))
        if chunks.sub_batches.any():
            return None
        self._check_claims(chunks)
        entries = self._entries(chunks)
        return places_of(entries.value_position, entries.value_length)

    def _entries(self, chunks: ChunkColumns) -> EntryColumns:
        entries = EntryColumns.empty(int(chunks.entries.sum(dtype=np.int64)))
        try:
            kernel.scan_entries(self.buf, chunks, entries)
        except ValueError as error:
            raise CorruptionError(f"the bytes changed between scan and decode: {error}") from error
        return entries

    def _values(self, chunks: ChunkColumns, total: int) -> pa.BinaryArray:
        entries = self._entries(chunks)
        if not chunks.sub_batches.any():
            return gather(self.buf, entries.value_position, entries.value_length)
        return self._unfolded(entries, total)

    def _unfolded(self, entries: EntryColumns, total: int) -> pa.BinaryArray:
        """The values where sub-batches are among the entries: some lie in the file, some in what was inflated."""
        counts = entries.records.astype(np.int64)
        firsts = np.cumsum(counts) - counts
        positions, lengths = np.empty(total, np.int64), np.empty(total, np.uint32)
        simple = entries.sub_batch == 0
        positions[firsts[simple]] = entries.value_position[simple]
        lengths[firsts[simple]] = entries.value_length[simple]
        compressed = (entries.sub_batch & 0x70) != 0
        plain = allocate(int(entries.uncompressed_length[compressed].sum(dtype=np.int64)))
        in_plain = np.repeat(compressed, counts)
        at = 0
        for row in np.flatnonzero(~simple).tolist():
            first, count, offset = int(firsts[row]), int(counts[row]), int(entries.offset[row])
            start, length = int(entries.value_position[row]), int(entries.value_length[row])
            source: Any = self.buf
            begin, end = start, start + length
            if compressed[row]:
                source, begin, end = plain, at, at + int(entries.uncompressed_length[row])
                body = self.buf[start : start + length]
                compression = int(entries.sub_batch[row]) >> 4 & 7
                inflate_into(body, compression, plain[begin:end], position=start, offset=offset)
                at = end
            place = slice(first, first + count)
            find_records(source, begin, end, positions[place], lengths[place], position=start, offset=offset)
        return gather_two(self.buf, plain, positions, lengths, in_plain)

    def check(self, rows: Rows) -> Iterator[Problem]:
        """Tracking that cannot be read: no checksum covers a trailer, nor the length of it."""
        chunks = chunks_of(rows)
        for row in np.flatnonzero(chunks.tracking == BAD_TRACKING).tolist():
            swallowed = self._chunk_in_trailer(chunks, row)
            if swallowed >= 0:
                yield Problem(
                    "swallowed-chunk",
                    Severity.DAMAGE,
                    f"the trailer length is wrong: it takes in the chunk at byte {swallowed}",
                    int(chunks.position[row]),
                    int(chunks.last_offsets[row]) + 1,
                )
                continue
            yield Problem(
                "bad-tracking",
                Severity.WARNING,
                "the tracking of this chunk cannot be read; its records are whole",
                int(chunks.position[row]),
                int(chunks.chunk_id[row]),
                "what consumers and producers stored with this chunk is lost",
            )

    def swallowed(self, rows: Rows) -> Iterator[tuple[int, int]]:
        chunks = chunks_of(rows)
        for row in np.flatnonzero(chunks.tracking == BAD_TRACKING).tolist():
            start = int(chunks.data_position[row]) + int(chunks.data_length[row])
            found = kernel.find_chunk(self.buf, start, len(self.buf), int(chunks.last_offsets[row]))
            if 0 <= found < start + int(chunks.trailer_length[row]):
                yield row, found

    def at_offset(self, position: int, offset: int) -> tuple[int, bytes] | None:
        return position + HEADER.at("chunk_id"), offset.to_bytes(8, "big")

    def _chunk_in_trailer(self, chunks: ChunkColumns, row: int) -> int:
        start = int(chunks.data_position[row]) + int(chunks.data_length[row])
        end = start + int(chunks.trailer_length[row])
        return kernel.find_chunk(self.buf, start, end, int(chunks.last_offsets[row]))

    def read(self, cursor: ScanPosition, offset: int) -> Record | Stop:
        hit = kernel.seek_chunk(self.buf, cursor.position, len(self.buf), offset, cursor.previous_offset)
        if hit.stop != Stop.LIMIT or hit.offset < 0:
            return Stop(hit.stop)
        value = self.buf[hit.value_position : hit.value_position + hit.value_length]
        if hit.sub_batch:
            value = self._from_sub_batch(value, hit, offset)
        return Record(offset, from_us(hit.timestamp * 1000), None, bytes(value), None)

    def _from_sub_batch(self, body: memoryview, hit: EntryHit, offset: int) -> memoryview:
        """The one record, out of the one sub-batch that holds it."""
        place = {"position": hit.value_position, "offset": hit.offset}
        compression = hit.sub_batch >> 4 & 7
        if compression != Compression.NONE:
            check_claim(hit.uncompressed_length, self._max_uncompressed_bytes, **place)
            plain = allocate(hit.uncompressed_length)
            inflate_into(body, compression, plain, **place)
            body = plain
        positions, lengths = np.empty(hit.records, np.int64), np.empty(hit.records, np.uint32)
        find_records(body, 0, len(body), positions, lengths, **place)
        row = offset - hit.offset
        return body[int(positions[row]) : int(positions[row]) + int(lengths[row])]

    def cursor_at(self, offset: int, position: int) -> ScanPosition | None:
        if not self.start.position <= position <= len(self.buf) - HEADER.size or offset < 0:
            return None
        at = position + HEADER.at("chunk_id")
        if self.buf[position] >> 4 != MAGIC or int.from_bytes(self.buf[at : at + 8], "big") != offset:
            return None
        return ScanPosition(position, offset - 1)

    def resync(self, cursor: ScanPosition) -> int:
        start = min(cursor.position + 1, len(self.buf))
        return kernel.find_chunk(self.buf, start, len(self.buf), cursor.previous_offset)

    def tracking(self) -> Tracking:
        """The tracking state that the chunks of this segment add up to, as far as they are whole."""
        state = Tracking()
        for rows in self.steps():
            chunks = chunks_of(rows)
            wanted = (chunks.tracking > 0) | (chunks.chunk_type == ChunkType.TRACKING_SNAPSHOT)
            for row in np.flatnonzero(wanted & (chunks.tracking != BAD_TRACKING)).tolist():
                start, end, is_snapshot = tracking_range(chunks, row)
                blocks = parse_blocks(self.buf[start:end], snapshot=is_snapshot, position=start)
                if is_snapshot:
                    state.replace(blocks)
                else:
                    state.update(int(chunks.chunk_id[row]), blocks)
        return state

    def last_epoch(self) -> int:
        """The highest epoch of its chunks, 0 if there is none."""
        return max(int(chunks_of(rows).epoch.view(np.uint64).max(initial=0)) for rows in self.steps(verify=False))


def _schema(columns: Sequence[str]) -> pa.Schema:
    return pa.schema([CHUNK_ID if name == CHUNK_ID.name else SCHEMA.field(name) for name in columns])


def chunks_of(rows: Rows) -> ChunkColumns:
    assert isinstance(rows.columns, ChunkColumns)
    return rows.columns


def _user_chunks(columns: ChunkColumns) -> ChunkColumns:
    mask = columns.chunk_type == ChunkType.USER
    if mask.all():
        return columns
    return ChunkColumns(**{f.name: getattr(columns, f.name)[mask] for f in fields(columns)})


def tracking_range(chunks: ChunkColumns, row: int) -> tuple[int, int, bool]:
    """Where the tracking blocks of a chunk lie, and whether they are a snapshot's."""
    data_position = int(chunks.data_position[row])
    data_end = data_position + int(chunks.data_length[row])
    if chunks.chunk_type[row] == ChunkType.USER:
        return data_end, data_end + int(chunks.trailer_length[row]), False
    return data_position + SIMPLE.size, data_end, bool(chunks.chunk_type[row] == ChunkType.TRACKING_SNAPSHOT)
