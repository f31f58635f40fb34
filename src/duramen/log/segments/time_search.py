"""Finds records by time in one segment. Walks record headers; checks no checksum and reads no payload."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from duramen.formats import ScanPosition, Segment, null_mask, numbers_of


def us_of(batch: pa.RecordBatch) -> pa.Array:
    return batch.column("timestamp").view(pa.int64())


def is_within(batch: pa.RecordBatch, from_us: int | None, to_us: int | None) -> npt.NDArray[np.bool_]:
    """Which records are of ``from_us`` or later and before ``to_us``. None without a time is."""
    column = us_of(batch)
    found, times = ~null_mask(column), numbers_of(column)
    if from_us is not None:
        found &= times >= from_us
    if to_us is not None:
        found &= times < to_us
    return found


def first_at(segment: Segment, cursor: ScanPosition, wanted_us: int) -> int | None:
    """The first offset from ``cursor`` on whose record is of that time or later; None if there is none."""
    for rows in segment.steps(cursor, verify=False):
        batch = segment.decode(rows, ("offset", "timestamp"))
        found = np.flatnonzero(is_within(batch, wanted_us, None))
        if len(found):
            return int(numbers_of(batch.column(0))[found[0]])
    return None
