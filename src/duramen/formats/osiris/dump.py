"""An Osiris segment field by field, for `dump`: every chunk, every entry, every tracking block, one at a time."""

from __future__ import annotations

from collections.abc import Iterator

from duramen import kernel
from duramen.errors import CorruptionError
from duramen.formats.dump import first_shown, title, unreadable, zeros
from duramen.formats.extensions import StoredChunk
from duramen.formats.index import Index, position_near
from duramen.formats.osiris.chunk import HEADER, SIMPLE, SUB_BATCH, ChunkType, Compression
from duramen.formats.osiris.segment import OsirisSegment, chunks_of, tracking_range
from duramen.formats.osiris.tracking import TrackingBlock, iter_blocks
from duramen.formats.segment import Rows, ScanPosition
from duramen.formats.struct import Block, Field
from duramen.kernel import ChunkColumns, EntryColumns, Stop
from duramen.record import from_us

_TYPES = {kind.value: kind.name.lower().replace("_", " ") for kind in ChunkType}
_COMPRESSIONS = {kind.value: kind.name.lower().replace("_", "-") for kind in Compression}


def dump_chunks(segment: OsirisSegment, begin: int = 0, index: Index | None = None) -> Iterator[Block]:
    """Every chunk of a segment from the byte ``begin`` on. Damage is a block with a problem; the dump continues with
    the next valid chunk."""
    near = position_near(segment, begin, index)
    cursor, number = (segment.start, 0) if near is None else (near, None)
    while True:
        rows = segment.scan(cursor)
        chunks = chunks_of(rows)
        first = first_shown(rows, begin)
        for row, chunk in enumerate(stored_chunks(segment, rows, first=first), first):
            name = title("chunk", number, row, chunk.position)
            yield from _dump_chunk(segment.buf, chunk, chunks.slice(row, row + 1), name)
        number = None if number is None else number + len(chunks)
        cursor = rows.cursor
        if rows.stop == Stop.LIMIT:
            continue
        if rows.stop == Stop.END:
            return
        if rows.stop == Stop.ZEROS:
            yield zeros(len(segment.buf), cursor.position)
            return
        shown = title("chunk", number, 0, cursor.position)
        number = None if number is None else number + 1
        if rows.stop == Stop.BAD_ORDER and len(
            (one := segment.scan(ScanPosition(cursor.position, -1), max_records=1)).columns
        ):
            chunk = next(stored_chunks(segment, one))
            head, *rest = _dump_chunk(segment.buf, chunk, chunks_of(one).head(1), shown)
            yield head._replace(problem=rows.stop.meaning)
            yield from rest
            cursor = one.cursor
            continue
        found = segment.resync(cursor)
        readable = segment.buf[: found if found >= 0 else len(segment.buf)]
        yield unreadable(
            shown, readable, cursor.position, list(_header_fields(readable, cursor.position)), rows.stop.meaning
        )
        if found < 0:
            return
        cursor = ScanPosition(found, cursor.previous_offset)


def _header_fields(buf: memoryview, position: int) -> Iterator[Field]:
    for found in HEADER.fields(buf, position):
        if found.name == "magic_version":
            yield Field("magic", position, 1, buf[position] >> 4, "the high four bits")
            yield Field("version", position, 1, buf[position] & 15, "the low four bits")
        elif found.name == "chunk_type":
            yield found._replace(note=_TYPES.get(buf[position + HEADER.at("chunk_type")], "unknown"))
        else:
            yield found


def stored_chunks(segment: OsirisSegment, rows: Rows, path: str = "", first: int = 0) -> Iterator[StoredChunk]:
    """The chunks of a scan from the row ``first`` on, with the fields of their headers."""
    buf, chunks = segment.buf, chunks_of(rows)
    users = chunks.user_records
    for row in range(first, len(chunks)):
        position, data_position = int(chunks.position[row]), int(chunks.data_position[row])
        end = data_position + int(chunks.data_length[row]) + int(chunks.trailer_length[row])
        fields = list(_header_fields(buf, position))
        if data_position > position + HEADER.size:
            start = position + HEADER.size
            fields.append(Field("filter", start, data_position - start, bytes(buf[start:data_position])))
        yield StoredChunk(
            path, position, int(chunks.chunk_id[row]), int(chunks.last_offsets[row]), int(users[row]),
            _TYPES[int(chunks.chunk_type[row])], from_us(int(chunks.timestamp[row]) * 1000), tuple(fields),
            bytes(buf[position:end]),
        )  # fmt: skip


def _dump_chunk(buf: memoryview, chunk: StoredChunk, columns: ChunkColumns, title: str) -> Iterator[Block]:
    """The header, every entry and every tracking block of one chunk, each a block of its own."""
    yield Block(title, chunk.position, list(chunk.fields))
    if columns.chunk_type[0] == ChunkType.USER:
        entries = EntryColumns.empty(int(columns.entries[0]))
        kernel.scan_entries(buf, columns, entries)
        for row in range(len(entries)):
            yield _dump_entry(buf, entries, row, f"{title}.entry{row}")
    else:
        data_position = int(columns.data_position[0])
        yield Block(f"{title}.entry0", data_position, list(SIMPLE.fields(buf, data_position)))
    start, end, is_snapshot = tracking_range(columns, 0)
    try:
        for row, (at, block) in enumerate(iter_blocks(buf[start:end], snapshot=is_snapshot, position=start)):
            yield Block(f"{title}.tracking{row}", at, list(_tracking_fields(at, block)))
    except CorruptionError as error:
        at = start if error.position is None else error.position
        yield Block(f"{title}.tracking", at, [Field("bytes", at, end - at, bytes(buf[at:end]))], error.message)


def _tracking_fields(at: int, block: TrackingBlock) -> Iterator[Field]:
    yield Field("tracking_type", at, 1, int(block.kind), block.kind.name.lower())
    yield Field("id_size", at + 1, 1, len(block.id))
    yield Field("id", at + 2, len(block.id), block.id)
    after = at + 2 + len(block.id)
    if block.chunk_id is not None:
        yield Field("chunk_id", after, 8, block.chunk_id)
        after += 8
    yield Field(block.kind.name.lower(), after, 8, block.value)


def _dump_entry(buf: memoryview, entries: EntryColumns, row: int, title: str) -> Block:
    start, length = int(entries.value_position[row]), int(entries.value_length[row])
    sub_batch = int(entries.sub_batch[row])
    head = SUB_BATCH if sub_batch else SIMPLE
    notes = {}
    if sub_batch:
        notes["type"] = f"sub-batch, {_COMPRESSIONS.get(sub_batch >> 4 & 7, 'unknown')}"
    found = list(head.fields(buf, int(entries.position[row]), notes))
    found.append(Field("body", start, length, bytes(buf[start : start + length])))
    return Block(title, int(entries.position[row]), found)
