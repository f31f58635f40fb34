"""Trailers: the tracking that goes with chunks of records, put behind chunks that are encoded already.

RabbitMQ writes with each chunk the last sequence of every named producer that has records in it. No checksum covers a
trailer, nor the length of it in the header, so adding one changes nothing else of the chunk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from duramen.formats.base import Encoded, Rows, SequenceRun
from duramen.formats.osiris_chunk import HEADER
from duramen.formats.osiris_segment import chunks_of
from duramen.formats.osiris_tracking import TrackingBlock, delta_blocks, encode_blocks

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
    """The chunks with trailers behind those that the numbers name; everything behind moves by as much."""
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
