"""Finds records by time in one segment. Walks record headers; checks no checksum and reads no payload."""

from __future__ import annotations

import pyarrow as pa

from duramen import compute as pc
from duramen.formats import ScanPosition, Segment


def us_of(batch: pa.RecordBatch) -> pa.Array:
    return batch.column("timestamp").view(pa.int64())


def first_at(segment: Segment, cursor: ScanPosition, wanted_us: int) -> int | None:
    """The first offset from ``cursor`` on whose record is of that time or later; None if there is none."""
    for rows in segment.steps(cursor, verify=False):
        batch = segment.decode(rows, ("offset", "timestamp"))
        row = pc.index(pc.greater_equal(us_of(batch), wanted_us), True).as_py()
        if row >= 0:
            return int(batch.column(0)[row].as_py())
    return None
