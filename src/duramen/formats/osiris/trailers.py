"""Trailers: tracking that belongs to chunks of records, appended to chunks that are already encoded.

RabbitMQ writes with each chunk the last sequence of every named producer that has records in it. No checksum covers a
trailer or its length in the header, so that adding one changes nothing else of the chunk.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from duramen.formats.extensions import SequenceRun
from duramen.formats.osiris.chunk import HEADER
from duramen.formats.osiris.segment import OsirisSegment, chunks_of, tracking_range
from duramen.formats.osiris.tracking import TrackingBlock, delta_blocks, encode_blocks
from duramen.formats.segment import Encoded, Rows

_LENGTH_AT = HEADER.at("trailer_length")


def last_sequences(encoded: Encoded, runs: Sequence[SequenceRun]) -> dict[int, tuple[TrackingBlock, ...]]:
    """For every chunk with records of named producers: the last sequence of each, as the blocks of its trailer."""
    stops = np.cumsum(chunks_of(encoded.rows).records.astype(np.int64))
    found: dict[int, dict[bytes, int]] = {}
    for start, stop, name, sequence in runs:
        first, last = np.searchsorted(stops, (start, stop - 1), side="right").tolist()
        for chunk in range(first, last + 1):
            end = min(stop, int(stops[chunk]))
            found.setdefault(chunk, {})[name] = sequence + end - start - 1
    return {chunk: delta_blocks(sequences=sequences) for chunk, sequences in found.items()}


def with_trailers(encoded: Encoded, trailers: Mapping[int, tuple[TrackingBlock, ...]]) -> Encoded:
    """The chunks with these trailers, by chunk number; positions after a trailer move accordingly."""
    if not trailers:
        return encoded
    chunks, end = chunks_of(encoded.rows), encoded.rows.end
    base = int(chunks.position[0])
    bounds = [*(chunks.position - base).tolist(), len(encoded.data)]
    parts: list[bytes | memoryview] = []
    added = np.zeros(len(chunks) + 1, np.int64)
    for number in range(len(chunks)):
        whole = encoded.data[bounds[number] : bounds[number + 1]]
        blocks = trailers.get(number, ())
        raw = encode_blocks(blocks)
        parts += [whole[:_LENGTH_AT], len(raw).to_bytes(4, "big"), whole[_LENGTH_AT + 4 :], raw]
        chunks.trailer_length[number], chunks.tracking[number] = len(raw), len(blocks)
        added[number + 1] = added[number] + len(raw)
    chunks.position[:] += added[:-1]
    chunks.data_position[:] += added[:-1]
    moved = end._replace(position=end.position + int(added[-1]))
    return Encoded(memoryview(b"".join(parts)), Rows(chunks, encoded.rows.count, moved))


def mended(segment: OsirisSegment, runs: Sequence[SequenceRun]) -> Iterator[tuple[int, bytes]]:
    """Patches for trailers that differ from the announced sequences. ``runs`` are of offsets here: those of announced
    records, whose trailers a power loss may have torn. A trailer keeps its length."""
    for rows in segment.steps():
        chunks = chunks_of(rows)
        for row in np.flatnonzero(chunks.trailer_length).tolist():
            first, stop = int(chunks.chunk_id[row]), int(chunks.last_offsets[row]) + 1
            inside = [run for run in runs if run.start < stop and run.stop > first]
            lasts = {run.name: run.sequence + min(run.stop, stop) - run.start - 1 for run in inside}
            wanted = encode_blocks(delta_blocks(sequences=lasts))
            start, end, _ = tracking_range(chunks, row)
            if len(wanted) == end - start and bytes(segment.buf[start:end]) != wanted:
                yield start, wanted
