"""Where the fuzzer starts: the golden files, and small pieces of the Osiris logs that a real RabbitMQ wrote."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from duramen.errors import CorruptionError
from duramen.formats.osiris.chunk import SUB_BATCH, Chunk, ChunkType, SubBatch, parse_chunk
from duramen.formats.osiris.osiris import LOG_HEADER
from duramen.formats.osiris.tracking import encode_blocks
from duramen.kernel import BatchColumns, scan_batches

DATA = Path(__file__).parents[1] / "tests" / "data"
GOLDEN = DATA / "golden"
MOST_BYTES = 4096


def golden(*patterns: str) -> list[bytes]:
    """The golden files that match, negative ones included, and nothing at all; large ones by their first bytes."""
    found = [path.read_bytes()[:MOST_BYTES] for pattern in patterns for path in sorted(GOLDEN.glob(pattern))]
    assert found, patterns
    return [b"", *dict.fromkeys(data for data in found if data)]


@cache
def kafka_segments() -> tuple[bytes, ...]:
    """Files of one or two small batches, one for every message format, compression and kind that the logs hold."""
    seen, files = set(), [b""]
    for path in sorted((DATA / "kafka").glob("*/*/*.log")):
        data = path.read_bytes()
        columns = BatchColumns.empty(64)
        end = scan_batches(data, 0, len(data), columns, -1)
        ends = [*columns.position[1 : end.count].tolist(), end.position]
        for row in range(end.count):
            what = int(columns.magic[row]), int(columns.attributes[row]), int(columns.records[row]) > 1
            start = int(columns.position[row])
            if what not in seen and ends[row] - start < MOST_BYTES:
                seen.add(what)
                files.append(data[start : ends[min(row + 1, end.count - 1)]][: 2 * MOST_BYTES])
    return tuple(files)


def kafka_state() -> tuple[bytes, ...]:
    """The small files of a partition."""
    names = ("*.snapshot", "*.txnindex", "*.index", "*.timeindex", "leader-epoch-checkpoint", "partition.metadata")
    found = {path.read_bytes()[:400] for name in names for path in (DATA / "kafka/clean").glob(f"txn-0/{name}")}
    return tuple(sorted(found))


def osiris_segments() -> tuple[bytes, ...]:
    """Files of one to three small chunks, one for every kind of chunk and compression that the logs hold."""
    seen, files = set(), [b"", LOG_HEADER]
    for path in sorted((DATA / "osiris").glob("*/*.segment")):
        data = path.read_bytes()
        for chunk, position, following in _chunks_of(data):
            kinds = {entry.compression if isinstance(entry, SubBatch) else "simple" for entry in chunk.entries}
            what = (chunk.chunk_type, frozenset(kinds), bool(chunk.trailer), len(chunk.entries) > 1)
            if what not in seen and following - position < MOST_BYTES // 3:
                seen.add(what)
                files.append(LOG_HEADER + data[position:following])
                files.append(LOG_HEADER + data[position : following + 1000])
    return tuple(files)


def _chunks_of(data: bytes) -> Iterator[tuple[Chunk, int, int]]:
    """The whole chunks of a segment, and where each starts and ends."""
    position = len(LOG_HEADER)
    while position < len(data):
        try:
            chunk, following = parse_chunk(data, position)
        except CorruptionError:
            return
        yield chunk, position, following
        position = following


def _chunks() -> Iterator[Chunk]:
    return (chunk for data in osiris_segments() for chunk, _, _ in _chunks_of(data))


def osiris_indexes() -> list[bytes]:
    return [b"", *(path.read_bytes()[:1000] for path in sorted((DATA / "osiris").glob("*/*.index"))[::5])]


def tracking() -> list[bytes]:
    """Trailers, deltas and snapshots; the first byte says which."""
    found = [b"\0"]
    for chunk in _chunks():
        if chunk.trailer:
            found.append(b"\0" + encode_blocks(chunk.trailer))
        if chunk.blocks:
            snapshot = chunk.chunk_type == ChunkType.TRACKING_SNAPSHOT
            found.append(bytes([snapshot]) + encode_blocks(chunk.blocks, snapshot=snapshot))
    return list(dict.fromkeys(found))


def sub_batches() -> list[bytes]:
    """Headers and bodies of sub-batches, without the chunk around them."""
    found = [SUB_BATCH.pack(type=0x80, num_records=1, uncompressed_length=5, length=0) + b"\0\0\0\1x"]
    for chunk in _chunks():
        found += [entry.encode() for entry in chunk.entries if isinstance(entry, SubBatch)]
    return list(dict.fromkeys(data[:MOST_BYTES] for data in found))


def user_headers() -> list[bytes]:
    block = b"\xc1DH\x01"
    one = block + b"\0\0\0\1k" + b"\0\0\0\1h\0\0\0\1v"
    return [b"", b"k=v", block, one, block + b"\xff\xff\xff\xff" + one[9:], one + b"\0\0\0\0\xff\xff\xff\xff"]


def kernel() -> list[bytes]:
    """Arguments of each kind, before golden bytes and before noise."""
    bodies = [*golden("*/three*/*.log", "*/*/three*/*.log"), *osiris_segments()[2:6], random.Random(0).randbytes(200)]
    heads = [bytes([call, layout, 0]) for call in range(7) for layout in (0, 1, 2, 3, 9)]
    found = [head + body for head in heads for body in bodies[:4]]
    found += [bytes([call, 0, 0]) + body[8:] for call in range(1, 4) for body in bodies[4:]]
    return found
