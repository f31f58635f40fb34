"""Reading a log ahead of its consumers: one decoded batch, from which deliveries are cut without reading again."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from duramen.log.reader import Log
from duramen.log.writer import WritableLog

Int64s = npt.NDArray[np.int64]


class ReadAhead:
    """The rows of a log from an offset on. One thread at a time."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._batch: pa.RecordBatch | None = None
        self._offsets: Int64s = np.empty(0, np.int64)
        self._from = 0

    def at(self, offset: int) -> tuple[pa.RecordBatch, Int64s] | None:
        """Rows from the first record at or behind ``offset`` on, with their offsets; None at the end of the log.
        Raises where the log is damaged there."""
        if self._batch is None or not self._from <= offset <= int(self._offsets[-1]):
            batch = self._read(offset)
            if batch is None:
                return None
            self._batch, self._offsets, self._from = batch, batch.column("offset").to_numpy(), offset
        row = int(np.searchsorted(self._offsets, offset))
        return self._batch.slice(row), self._offsets[row:]

    def _read(self, offset: int) -> pa.RecordBatch | None:
        batch = next(self._log.batches(offset), None)
        if batch is None and not isinstance(self._log, WritableLog):
            self._log.refresh()
            batch = next(self._log.batches(offset), None)
        return batch

    def between(self, start: int, end: int) -> list[tuple[pa.RecordBatch, Int64s]]:
        """The rows from ``start`` to before ``end``, as far as there are any."""
        if self._batch is not None and self._from <= start and end - 1 <= int(self._offsets[-1]):
            low, high = (int(row) for row in np.searchsorted(self._offsets, (start, end)))
            return [(self._batch.slice(low, high - low), self._offsets[low:high])] if low < high else []
        batches = list(self._log.batches(start, end))
        return [(batch, batch.column("offset").to_numpy()) for batch in batches]
