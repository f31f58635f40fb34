"""Logs to measure on, written with the codecs into a scratch directory; and the values that are appended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from duramen.formats import Format, ScanPosition, SegmentSummary, SupportsManifest, make
from duramen.record import TIMESTAMP

FORMATS = ("durable-log", "keratin", "rustlog", "osiris", "fixed-slot")
CREATED_MS = 1_700_000_000_000
STEP_BYTES = 8 << 20


def options(name: str, payload_bytes: int) -> dict[str, Any]:
    """What `duramen.open` and `codec` need to know beyond the format's name."""
    return {"record_size": payload_bytes} if name == "fixed-slot" else {}


def codec(name: str, payload_bytes: int) -> Format:
    return make(name, **options(name, payload_bytes))


def batch(fmt: Format, first_offset: int, count: int, payload_bytes: int) -> pa.RecordBatch:
    """Records of random bytes, with times where the format has them."""
    noise = np.random.default_rng(first_offset).bytes(count * payload_bytes)
    bounds = pa.py_buffer(np.arange(count + 1, dtype=np.int32) * payload_bytes)
    columns = {
        "offset": pa.array(np.arange(first_offset, first_offset + count)),
        "value": pa.Array.from_buffers(pa.binary(), count, [None, bounds, pa.py_buffer(noise)]),
    }
    if fmt.capabilities.timestamps:
        when_us = np.full(count, CREATED_MS * 1000 + first_offset)
        columns["timestamp"] = pa.array(when_us).view(pa.int64()).view(TIMESTAMP.type)
    return pa.RecordBatch.from_pydict(columns)


def values(count: int, payload_bytes: int) -> list[bytes]:
    """Random bytes, the same in every run."""
    noise = np.random.default_rng(1).bytes(count * payload_bytes)
    return [noise[at : at + payload_bytes] for at in range(0, len(noise), payload_bytes)]


def write(root: Path, name: str, payload_bytes: int, segment_bytes: int, segments: int = 1) -> Format:
    """A log of ``segments`` segments with about ``segment_bytes`` of values each."""
    fmt = codec(name, payload_bytes)
    step = max(1, min(STEP_BYTES, segment_bytes) // payload_bytes)
    offset, summaries = 0, []
    for _ in range(segments):
        base, written = offset, 0
        header = fmt.segment_header(base, CREATED_MS)
        cursor = ScanPosition(len(header), base - 1)
        builder = fmt.index_builder(base, CREATED_MS)
        path = root / fmt.segment_path(base)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.write(header)
            while written < segment_bytes:
                encoded = fmt.encode(batch(fmt, offset, step, payload_bytes), cursor)
                file.write(encoded.data)
                builder.add(encoded.rows)
                cursor = encoded.rows.cursor
                offset += step
                written += step * payload_bytes
        index_bytes = 0
        for role, content in builder.build().items():
            (root / fmt.path_of(role, base)).write_bytes(content)
            index_bytes = index_bytes or len(content)
        summaries.append(SegmentSummary(base, offset - 1, cursor.position, index_bytes))
    described = fmt.log_files(summaries, CREATED_MS) if isinstance(fmt, SupportsManifest) else {}
    for relative, content in described.items():
        (root / relative).write_bytes(content)
    return fmt
