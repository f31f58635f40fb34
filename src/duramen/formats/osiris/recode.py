"""Osiris chunks for another place: rewritten with other options (another version, another compression), or copied.

Rewritten is a chunk that holds tracking: its records go through `Osiris.encode` like all others, the tracking is
copied. Unreadable tracking raises.
"""

from __future__ import annotations

import struct
from dataclasses import replace

from duramen import kernel
from duramen.errors import CorruptionError
from duramen.formats.arrow import allocate
from duramen.formats.format import EncodedRecords, Format
from duramen.formats.osiris.chunk import HEADER, ChunkType, encode_chunk, parse_chunk
from duramen.formats.osiris.segment import CHUNK_ID, OsirisSegment, chunks_of
from duramen.formats.osiris.tracking import encode_blocks
from duramen.formats.segment import Encoded, Rows, ScanPosition
from duramen.kernel import ChunkColumns, ScanEnd, Stop


def recode_chunk(fmt: Format, segment: OsirisSegment, rows: Rows, cursor: ScanPosition, version: int) -> Encoded:
    """The one chunk of ``rows`` as ``fmt`` writes it at ``cursor``. The trailer follows the last of its records."""
    chunk, _ = parse_chunk(segment.buf, int(chunks_of(rows).position[0]))
    if chunk.chunk_type != ChunkType.USER:
        return scanned_at(bytearray(encode_chunk(replace(chunk, version=version))), cursor)
    batch = segment.decode(rows, ("offset", "timestamp", "value", CHUNK_ID.name))
    encoded = fmt.encode(batch, cursor)
    data, trailer = bytearray(encoded.data), encode_blocks(chunk.trailer)
    at = int(encoded.rows.columns.position[-1]) - cursor.position + HEADER.at("trailer_length")
    data[at : at + HEADER.width("trailer_length")] = len(trailer).to_bytes(HEADER.width("trailer_length"), "big")
    return scanned_at(data + trailer, cursor)


def move_chunks(records: EncodedRecords, cursor: ScanPosition, epoch: int, default_us: int) -> Encoded:
    """Encoded chunks for appending at ``cursor``. No checksum covers their headers."""
    size, chunks = records.nbytes, ChunkColumns.empty(records.chunks)
    out = allocate(size, cursor.position)
    out[:] = records.data
    found = kernel.scan_chunks(out, 0, size, chunks, verify=False)
    if (found.count, found.position, found.last_offset) != (records.chunks, size, records.num_rows - 1):
        raise CorruptionError("encoded chunks do not hold the records that they should")
    chunks.chunk_id += cursor.previous_offset + 1
    chunks.epoch[:] = epoch
    if not records.has_times:
        chunks.timestamp[:] = default_us // 1000
    heads = zip(*(column.tolist() for column in (chunks.position, chunks.timestamp, chunks.chunk_id)), strict=True)
    for at, timestamp, chunk_id in heads:
        struct.pack_into(">qQQ", out, at + HEADER.at("timestamp"), timestamp, epoch, chunk_id)
    chunks.position += cursor.position
    chunks.data_position += cursor.position
    end = ScanEnd(len(chunks), cursor.position + size, int(Stop.END), cursor.previous_offset + records.num_rows)
    return Encoded(out, Rows(chunks, records.num_rows, end))


def scanned_at(data: bytes | bytearray, cursor: ScanPosition) -> Encoded:
    """The bytes with the rows of a scan, as if they were at ``cursor``."""
    segment = OsirisSegment(memoryview(data), cursor.previous_offset + 1, 0, 0)
    rows = segment.scan(ScanPosition(0, cursor.previous_offset), max_bytes=len(data) + 1)
    chunks = chunks_of(rows)
    chunks.position += cursor.position
    chunks.data_position += cursor.position
    end = ScanEnd(rows.end.count, cursor.position + len(data), int(Stop.END), rows.end.last_offset)
    return Encoded(memoryview(data), Rows(chunks, rows.count, end))
