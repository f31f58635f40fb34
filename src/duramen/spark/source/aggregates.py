"""Count, first and last offset of some records, added up over batches and ranges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

AGGREGATES = ("count", "min", "max")


class OffsetAggregates(NamedTuple):
    """Of some records: how many, the smallest and the largest offset."""

    records: int = 0
    first: int | None = None
    last: int | None = None

    def plus(self, records: int, first: int, last: int) -> OffsetAggregates:
        """With more records, of which there is at least one."""
        return OffsetAggregates(
            self.records + records,
            first if self.first is None else min(self.first, first),
            last if self.last is None else max(self.last, last),
        )

    def plus_batch(self, batch: pa.RecordBatch) -> OffsetAggregates:
        if not batch.num_rows:
            return self
        ends = pc.min_max(batch.column("offset")).as_py()
        return self.plus(batch.num_rows, ends["min"], ends["max"])

    def batch(self, names: Sequence[str], schema: pa.Schema) -> pa.RecordBatch:
        """One row, with a column for each name of `AGGREGATES`."""
        values = dict(zip(AGGREGATES, self, strict=True))
        return pa.RecordBatch.from_arrays([pa.array([values[name]], pa.int64()) for name in names], schema=schema)
