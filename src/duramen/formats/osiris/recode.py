"""Rewrite an Osiris chunk that holds tracking with other options: another version, another compression.

The records go through `Osiris.encode` like all others; the tracking is copied. Unreadable tracking raises.
"""

from __future__ import annotations

from dataclasses import replace

from duramen.formats.format import Format
from duramen.formats.osiris.chunk import HEADER, ChunkType, encode_chunk, parse_chunk
from duramen.formats.osiris.segment import CHUNK_ID, OsirisSegment, chunks_of
from duramen.formats.osiris.tracking import encode_blocks
from duramen.formats.segment import Encoded, Rows, ScanPosition
from duramen.kernel import ScanEnd, Stop


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


def scanned_at(data: bytes | bytearray, cursor: ScanPosition) -> Encoded:
    """The bytes with the rows of a scan, as if they were at ``cursor``."""
    segment = OsirisSegment(memoryview(data), cursor.previous_offset + 1, 0, 0)
    rows = segment.scan(ScanPosition(0, cursor.previous_offset), max_bytes=len(data) + 1)
    chunks = chunks_of(rows)
    chunks.position += cursor.position
    chunks.data_position += cursor.position
    end = ScanEnd(rows.end.count, cursor.position + len(data), int(Stop.END), rows.end.last_offset)
    return Encoded(memoryview(data), Rows(chunks, rows.count, end))
