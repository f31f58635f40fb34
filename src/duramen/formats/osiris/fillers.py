"""Fillers: Osiris chunks that take up the offsets of records that are missing, and store nothing.

RabbitMQ's readers expect every chunk to start at the offset after the last one, and fail where it does not. A filler is
a tracking delta of one empty entry. It keeps the ids of the chunks without a gap: its number of records is the number
of missing offsets. RabbitMQ reads tracking deltas without looking into that number, and sends them to no consumer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

import numpy as np

from duramen.errors import LimitError
from duramen.formats.osiris.chunk import HEADER, Chunk, ChunkType, encode_chunk
from duramen.formats.osiris.segment import chunks_of
from duramen.formats.segment import Encoded, Rows
from duramen.kernel import ChunkColumns, Int64s

MAX_SPAN = 2**32 - 1
"""The most offsets that the number of records in one chunk can take up."""
MAX_GAP = 4096 * MAX_SPAN
"""The most missing offsets that are filled: no log has as many records, but a flipped bit of an offset claims more."""


def filler_chunks(first: int, until: int, *, timestamp: int, epoch: int, version: int) -> Iterator[bytes]:
    """Chunks that take up the offsets from ``first`` up to, not including, ``until``. Raises `LimitError` for a gap of
    more than `MAX_GAP` offsets."""
    if until - first > MAX_GAP:
        raise LimitError(
            f"{until - first} offsets are missing before offset {until}, and Osiris needs chunks in their place, which "
            f"duramen writes for at most {MAX_GAP}",
            offset=until,
            hint="the offset of that record is probably damaged; a format that stores gaps takes the log as it is",
        )
    while first < until:
        span = min(until - first, MAX_SPAN)
        yield encode_chunk(
            Chunk(first, timestamp, epoch, chunk_type=ChunkType.TRACKING_DELTA, version=version, span=span)
        )
        first += span


def with_fillers(encoded: Encoded, previous_offset: int, version: int) -> Encoded:
    """The chunks with fillers before those whose id leaves out offsets. A filler has the time and the epoch of the
    chunk after it."""
    chunks = chunks_of(encoded.rows)
    expected = np.concatenate(([previous_offset], chunks.last_offsets[:-1])) + 1
    gaps = np.flatnonzero(chunks.chunk_id > expected)
    return _spliced(encoded, gaps, expected, version) if len(gaps) else encoded


def _spliced(encoded: Encoded, gaps: Int64s, expected: Int64s, version: int) -> Encoded:
    chunks, base = chunks_of(encoded.rows), int(chunks_of(encoded.rows).position[0])
    parts: list[bytes | memoryview] = []
    columns: list[ChunkColumns] = []
    start, added = 0, 0
    for row in [*gaps.tolist(), len(chunks)]:
        end = int(chunks.position[row]) if row < len(chunks) else encoded.rows.end.position
        begin = int(chunks.position[start]) if start < len(chunks) else end
        parts.append(encoded.data[begin - base : end - base])
        columns.append(_moved(chunks.slice(start, row), added))
        start = row
        if row == len(chunks):
            break
        first, until = int(expected[row]), int(chunks.chunk_id[row])
        timestamp, epoch = int(chunks.timestamp[row]), int(chunks.epoch[row])
        for data in filler_chunks(first, until, timestamp=timestamp, epoch=epoch, version=version):
            span = min(until - first, MAX_SPAN)
            columns.append(_filler_row(first, span, timestamp, epoch, end + added, len(data)))
            parts.append(data)
            first, added = first + span, added + len(data)
    last = encoded.rows.end
    rows = ChunkColumns.concat(columns)
    end_of_scan = last._replace(count=len(rows), position=last.position + added)
    return Encoded(memoryview(b"".join(parts)), Rows(rows, encoded.rows.count, end_of_scan))


def _moved(chunks: ChunkColumns, by: int) -> ChunkColumns:
    values = {f.name: getattr(chunks, f.name) for f in fields(chunks)}
    return ChunkColumns(**{**values, "position": chunks.position + by, "data_position": chunks.data_position + by})


def _filler_row(first: int, span: int, timestamp: int, epoch: int, position: int, size: int) -> ChunkColumns:
    row = ChunkColumns.empty(1)
    for f in fields(row):
        getattr(row, f.name)[0] = 0
    row.chunk_id[0], row.timestamp[0], row.epoch[0], row.records[0] = first, timestamp, epoch, span
    row.position[0], row.data_position[0] = position, position + HEADER.size
    row.data_length[0], row.entries[0], row.chunk_type[0] = size - HEADER.size, 1, ChunkType.TRACKING_DELTA
    return row
