"""Logs of a real RabbitMQ, small ones made of chunks, and the questions that tests ask of both."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from duramen.errors import DuramenError
from duramen.formats import Block, FileName, Role, Rows, ScanPosition
from duramen.formats.osiris.chunk import (
    Chunk,
    Compression,
    SimpleEntry,
    SubBatch,
    delta_chunk,
    encode_chunk,
    parse_chunk,
    snapshot_chunk,
)
from duramen.formats.osiris.osiris import LOG_HEADER, Osiris
from duramen.formats.osiris.segment import OsirisSegment
from duramen.formats.osiris.tracking import Tracking, TrackingBlock, delta_blocks
from duramen.kernel.layout import ChunkColumns, Stop
from duramen.record import COLUMNS, EPOCH, SCHEMA, Record

F = Osiris()
DATA = Path(__file__).parents[1] / "data" / "osiris"
STREAMS = sorted(path.name for path in DATA.iterdir())
READ_BACK = [name for name in STREAMS if (DATA / name / "truth.jsonl").exists()]
SEGMENTS = sorted(str(path.relative_to(DATA)) for path in DATA.glob("*/*.segment"))
GOLDEN = DATA / "golden_1_3_1"
CRASH = DATA / "crash" / "00000000000000082802.segment"
CRASH_AT = 32331
COMPRESSED = [Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD]
TS = 1_700_000_000_000


def opened(name: str) -> OsirisSegment:
    path = DATA / name
    return F.open_segment(path.read_bytes(), int(path.stem))


def segment_of(*chunks: Chunk, base: int | None = None, fmt: Osiris = F) -> OsirisSegment:
    data = LOG_HEADER + b"".join(map(encode_chunk, chunks))
    return fmt.open_segment(data, chunks[0].chunk_id if base is None else base)


def records_of(segment: OsirisSegment, **limits: Any) -> list[dict[str, Any]]:
    """Every record, by way of Arrow; the scan must come to the clean end of the file."""
    found: list[dict[str, Any]] = []
    cursor = segment.start
    while True:
        rows = segment.scan(cursor, **limits)
        batch = segment.decode(rows, COLUMNS)
        assert batch.schema == SCHEMA
        assert batch.num_rows == rows.count
        batch.validate(full=True)
        found += batch.to_pylist()
        cursor = rows.cursor
        if rows.stop != Stop.LIMIT:
            assert rows.stop.clean
            return found


def offsets_of(segment: OsirisSegment) -> list[int]:
    return [record["offset"] for record in records_of(segment)]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def of_truth(record: dict[str, Any]) -> dict[str, Any]:
    ms = (record["timestamp"] - EPOCH) // timedelta(milliseconds=1)
    digest = hashlib.sha256(record["value"]).hexdigest()
    return {"offset": record["offset"], "len": len(record["value"]), "sha256": digest, "ts": ms}


def batch_of(values: Sequence[bytes], offsets: Sequence[int] | None = None, ms: Sequence[int] | None = None) -> Any:
    columns: dict[str, Any] = {"value": pa.array(values, pa.binary())}
    if offsets is not None:
        columns["offset"] = pa.array(offsets, pa.int64())
    if ms is not None:
        columns["timestamp"] = pa.array([n * 1000 for n in ms], pa.int64()).view(SCHEMA.field("timestamp").type)
    return pa.record_batch(columns)


def written(batch: Any, **options: Any) -> tuple[OsirisSegment, Rows]:
    fmt = Osiris(**options)
    encoded = fmt.encode(batch, ScanPosition(len(LOG_HEADER), -1))
    return fmt.open_segment(LOG_HEADER + bytes(encoded.data), 0), encoded.rows


def value_at(segment: OsirisSegment, offset: int) -> bytes:
    """The value of one record, read by itself."""
    record = segment.read(segment.start, offset)
    assert isinstance(record, Record)
    return record.value


def assert_same(left: ChunkColumns, right: ChunkColumns) -> None:
    assert {k: v.tolist() for k, v in vars(left).items()} == {k: v.tolist() for k, v in vars(right).items()}


def shown(block: Block) -> dict[str, Any]:
    return {field.name: field.value for field in block.fields}


def golden_chunks() -> tuple[list[Chunk], list[Chunk]]:
    """What its README tells, put into chunks. RabbitMQ's writer was handed all tracking as bytes: the order of blocks
    in trailer and delta, and the chunk id 2 in the snapshot, are the README's and not what a state would give."""

    def user(chunk_id: int, ms: int, *entries: bytes | SubBatch, trailer: tuple[TrackingBlock, ...] = ()) -> Chunk:
        made = tuple(SimpleEntry(e) if isinstance(e, bytes) else e for e in entries)
        return Chunk(chunk_id, ms, 7, entries=made, trailer=trailer, version=0)

    first = [
        user(0, TS, b"aaa", b"bb", b"c"),
        user(3, TS + 1, b"", trailer=delta_blocks(sequences={b"pid": 42})),
        user(4, TS + 2, b"before-batch", SubBatch.of([b"xyz", b"uv"]),
             trailer=delta_blocks(offsets={b"c1": 3}) + delta_blocks(sequences={b"pid": 43})),
        delta_chunk(delta_blocks(offsets={b"c1": 4}) + delta_blocks(timestamps={b"t1": TS}), chunk_id=7,
                    timestamp=TS + 3, epoch=7, version=0),
        user(8, TS + 4, b"z" * 1300),
    ]  # fmt: skip
    state = Tracking({b"c1": 4}, {b"pid": (2, 43)}, {b"t1": TS})
    second = [
        snapshot_chunk(state, chunk_id=9, timestamp=TS + 5, epoch=7, version=0),
        user(10, -5, b"end"),
    ]
    return first, second


def only_our_errors(data: bytes) -> None:
    """Everything that reads, on bytes of any kind: only errors of ours may come out."""

    def attempts() -> Iterator[Any]:
        segment = F.open_segment(data, 0)
        cursor = segment.start
        yield segment.tracking
        yield lambda: segment.read(segment.start, 1)
        yield lambda: segment.cursor_at(3, len(data) // 2)
        while True:
            rows = segment.scan(cursor, verify=False)
            yield lambda rows=rows: segment.decode(rows, (*COLUMNS, "chunk_id"))
            yield lambda rows=rows: list(segment.check(rows))
            yield lambda rows=rows: F.index_builder(0, 0).add(rows)
            cursor = rows.cursor
            if rows.stop != Stop.LIMIT:
                break
        yield lambda: segment.resync(cursor)
        yield lambda: segment.read(cursor, 5)

    for attempt in (
        lambda: list(F.dump(Role.SEGMENT, data, 0)),
        lambda: list(F.dump(Role.INDEX, data, 0)),
        lambda: F.open_index(Role.INDEX, data, 0),
        lambda: list(F.check_file(Role.INDEX, data, FileName(Role.INDEX, 0))),
        lambda: F.describe({F.path_of(Role.SEGMENT, 0): data}),
        lambda: parse_chunk(data, 8),
        lambda: any(swallow(one) for one in attempts()),
    ):
        swallow(attempt)


def swallow(attempt: Any) -> bool:
    try:
        attempt()
    except DuramenError:
        pass
    return False
