"""A small sample log of five formats, for the demo, the documentation and the tests.

The records are orders of a timber yard, the same in every format, with every field that the format can store. The bytes
are always the same.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from duramen.formats import (
    Acked,
    Bumped,
    Checkpoint,
    Format,
    GroupName,
    Marked,
    Role,
    ScanPosition,
    TrackingBlock,
    TrackingKind,
    delta_chunk,
    delta_header,
    encode_chunk,
    encode_runs,
    encode_snapshot,
    make,
)
from duramen.record import SCHEMA

SAMPLED = ("durable-log", "keratin", "rustlog", "osiris", "fixed-slot")
"""The formats of the samples; Kafka's partitions have a guide of their own."""
SEGMENT_RECORDS = (120, 100, 80)
"""Records per segment; a format without segments has one file."""
RECORD_SIZE = 96
START_MS = 1_700_000_000_000

WOOD = ("oak", "ash", "larch", "beech", "walnut")


@dataclass(frozen=True)
class DemoSample:
    """A log on the disk. ``options`` are what opening it needs."""

    format: str
    path: str
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def codec(self) -> Format:
        return make(self.format, **self.options)


def write_samples(directory: str) -> list[DemoSample]:
    """Write a log of each of `SAMPLED` into its own directory below ``directory``."""
    return [
        _write(directory, "durable-log", _files("durable-log")),
        _write(directory, "keratin", _keratin()),
        _write(directory, "rustlog", _rustlog()),
        _write(directory, "osiris", _osiris()),
        _write(directory, "fixed-slot", _fixed_slot(), record_size=RECORD_SIZE),
    ]


def orders(codec: Format, first: int, count: int) -> pa.RecordBatch:
    """The orders ``first`` to ``first + count - 1``, with what the format has a place for."""
    return pa.RecordBatch.from_pylist([_order(codec, offset) for offset in range(first, first + count)], SCHEMA)


def _order(codec: Format, offset: int) -> dict[str, Any]:
    able = codec.capabilities
    wood = WOOD[offset * 7 % len(WOOD)]
    order = {"order": offset, "wood": wood, "boards": offset % 9 + 1, "note": "für Sofia" if offset % 50 == 1 else ""}
    value = json.dumps(order, ensure_ascii=False, separators=(",", ":")).encode()
    if "record_size" in codec.option_names:
        value = value.ljust(codec.options["record_size"])
    return {
        "offset": offset,
        "timestamp": (START_MS + offset // 10 * 1000) * 1000 if able.timestamps else None,
        "key": f"customer-{offset % 17}".encode() if able.key else None,
        "value": value,
        "headers": [{"key": "source", "value": b"web" if offset % 3 else b"till"}] if able.headers else None,
    }


def _segments(codec: Format) -> Iterator[pa.RecordBatch]:
    first = 0
    for count in SEGMENT_RECORDS:
        yield orders(codec, first, count)
        first += count


def _files(name: str, **options: Any) -> dict[str, bytes]:
    codec = make(name, **options)
    return dict(codec.build(_segments(codec), START_MS))


def _keratin() -> dict[str, bytes]:
    """With the state of a consumer group: a snapshot, and what happened since."""
    group = GroupName("orders", 0, "billing")
    deadline_ms = START_MS + 60_000
    inflight = [Marked(offset, offset + 1, deadline_ms, 1) for offset in (120, 122)]
    hashes = {"tp_hash": group.tp_hash, "group_hash": group.group_hash}
    events = encode_runs([Marked(123, 124, deadline_ms, 1), Acked(120, 121), Bumped(121)])
    return _files("keratin", index_stride_bytes=4096) | {
        f"groups/{group.stem}.snap": encode_snapshot(120, inflight, created_ts_ms=START_MS, **hashes),
        f"groups/{group.stem}.delta": delta_header(START_MS) + bytes(events),
    }


def _rustlog() -> dict[str, bytes]:
    checkpoint = Checkpoint(99, 604_800_000, "Idle", START_MS // 1000, 0)
    return _files("rustlog") | {".cleaner_checkpoint": checkpoint.encode()}


def _fixed_slot() -> dict[str, bytes]:
    codec = make("fixed-slot", record_size=RECORD_SIZE)
    return dict(codec.build([orders(codec, 0, sum(SEGMENT_RECORDS))], START_MS))


def _osiris() -> dict[str, bytes]:
    """The first segment compressed; in the last one a chunk of tracking, which uses up an offset."""
    compressing, plain = make("osiris", compression="zstd", sub_batch_records=5), make("osiris")
    first, second, third = _segments(plain)
    files = dict(compressing.build([first])) | dict(plain.build([second]))
    base, half = third.column("offset")[0].as_py(), third.num_rows // 2
    data = plain.segment_header(base, START_MS)
    data += bytes(plain.encode(third.slice(0, half), ScanPosition(len(data), base - 1)).data)
    blocks = (TrackingBlock(TrackingKind.SEQUENCE, b"shop-1", 219), TrackingBlock(TrackingKind.OFFSET, b"billing", 120))
    delta = delta_chunk(blocks, chunk_id=base + half, timestamp=START_MS + 26_000, epoch=1)
    data += encode_chunk(delta)
    rest = orders(plain, base + half + 1, third.num_rows - half - 1)
    data += bytes(plain.encode(rest, ScanPosition(len(data), base + half)).data)
    segment = plain.open_segment(data, base)
    builder = plain.index_builder(base, START_MS)
    builder.add(segment.scan(segment.start))
    files[plain.segment_path(base)] = data
    return files | {plain.path_of(role, base): content for role, content in builder.build().items()}


def _write(directory: str, name: str, files: Mapping[str, bytes], **options: Any) -> DemoSample:
    root = os.path.join(directory, name)
    for path, data in files.items():
        full = os.path.join(root, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "wb") as file:
            file.write(data)
    return DemoSample(name, root, options)


def segment_paths(sample: DemoSample) -> list[str]:
    """The segments of a sample, oldest first."""
    names = []
    for folder, _, found in os.walk(sample.path):
        names += [os.path.relpath(os.path.join(folder, name), sample.path) for name in found]
    codec = sample.codec
    known = [(name, codec.classify(name)) for name in sorted(names)]
    return [os.path.join(sample.path, name) for name, kind in known if kind and kind.role == Role.SEGMENT]
