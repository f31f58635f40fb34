"""What compaction leaves of a format whose rows are records: those that survive, byte for byte, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from duramen.formats import (
    Cleaner,
    Encoded,
    Examined,
    Format,
    Rows,
    ScanPosition,
    Segment,
    SupportsCleaner,
    Survives,
)
from duramen.kernel import FrameColumns


def cleaner_for(fmt: Format, segments: Iterable[Segment], now_us: int, delay_ms: int) -> Cleaner:
    """The rules by which a log with these segments is compacted."""
    if isinstance(fmt, SupportsCleaner):
        return fmt.cleaner(segments, now_us, delay_ms)
    return RecordCleaner(fmt, now_us, delay_ms)


class RecordCleaner(Cleaner):
    columns = ("timestamp",)
    keeps_state = False

    def __init__(self, fmt: Format, now_us: int, delay_ms: int) -> None:
        self.fmt = fmt
        self._horizon_us = now_us - delay_ms * 1000 if delay_ms else None

    def begin(self, first_base: int, last_base: int) -> None:
        pass

    def examine(self, rows: Rows, batch: pa.RecordBatch) -> Examined:
        frames = rows.columns
        assert isinstance(frames, FrameColumns)
        expired = frames.value_length == 0
        if self._horizon_us is not None and expired.any():
            times = batch.column("timestamp").view("int64").fill_null(2**63 - 1).to_numpy()
            expired &= times <= self._horizon_us
        return Examined(expired)

    def changes(self, segment: Segment, rows: Rows, survives: Survives) -> bool:
        return not survives(rows.columns.first_offsets).all()

    def select(self, segment: Segment, rows: Rows, survives: Survives, cursor: ScanPosition) -> Encoded:
        return segment.select(rows, survives(rows.columns.first_offsets), cursor)

    def state_of(self, base: int) -> dict[str, bytes]:
        return {}
