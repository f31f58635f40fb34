"""Read-ahead for a group: one decoded batch that serves many deliveries, and the next batch, which one consumer reads
while the others continue."""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from duramen.consumers.groups.state_machine import runs_of
from duramen.errors import OffsetError
from duramen.log import Log, WritableLog

Int64s = npt.NDArray[np.int64]


class ReadAhead:
    """The rows of a log from an offset on. Not thread-safe, except for `read_on`."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._batch: pa.RecordBatch | None = None
        self._offsets: Int64s = np.empty(0, np.int64)
        self._from = 0
        self._range = 0, -1
        """The first and the last offset of the batch."""
        self._has_no_gap = False
        self._following: tuple[int, pa.RecordBatch] | None = None
        """The next batch, and the offset at which it was requested."""
        self._reading = threading.Lock()

    def at(self, offset: int) -> tuple[pa.RecordBatch, Int64s] | None:
        """Rows from the first record at or after ``offset``, with their offsets; None at the end of the log. Raises
        `CorruptionError` if the log is damaged there."""
        if self._batch is None or not self._from <= offset <= int(self._offsets[-1]):
            batch = self._taken_over(offset) or self._read(offset)
            if batch is None:
                return None
            self._batch, self._offsets, self._from = batch, batch.column("offset").to_numpy(), offset
            self._range = int(self._offsets[0]), int(self._offsets[-1])
            self._has_no_gap = self._range[1] - self._range[0] == len(self._offsets) - 1
        row = int(np.searchsorted(self._offsets, offset))
        return self._batch.slice(row), self._offsets[row:]

    def cut(self, start: int, end: int, most: int) -> tuple[pa.RecordBatch, list[tuple[int, int]]] | None:
        """Up to ``most`` adjacent rows from ``start`` to before ``end``, and the runs of their offsets. No run if the
        log has no record there; None if the log ends before."""
        first, last = self._range
        if not (self._has_no_gap and first <= start <= last):
            found = self.at(start)
            if found is None:
                return None
            batch, offsets = found
            count = min(int(np.searchsorted(offsets, end)), most)
            return batch.slice(0, count), runs_of(offsets[:count])
        assert self._batch is not None
        count = min(min(end, last + 1) - start, most)
        return self._batch.slice(start - first, count), [(start, start + count)]

    def _taken_over(self, offset: int) -> pa.RecordBatch | None:
        following, self._following = self._following, None
        return following[1] if following is not None and following[0] == offset else None

    def read_on(self, offset: int) -> None:
        """Read the next batch if consumers have passed half of this one. Any thread may call this; one reads."""
        first, last = self._range
        if self._following is not None or not first <= offset <= last or 2 * offset < first + last:
            return
        if self._reading.acquire(blocking=False):
            try:
                following = next(self._log.batches(last + 1), None)
                if following is not None and self._range == (first, last):
                    self._following = last + 1, following
            except Exception:  # noqa: BLE001
                pass  # deliver the records in hand; the fetch that needs the next batch raises
            finally:
                self._reading.release()

    def _read(self, offset: int) -> pa.RecordBatch | None:
        is_overtaken = False
        try:
            batch = next(self._log.batches(offset), None)
        except OffsetError:  # retention removed the segment: continue with the rest
            batch, is_overtaken = None, True
        if not isinstance(self._log, WritableLog) and batch is None:
            self._log.refresh()
            is_overtaken = True
        if is_overtaken:  # None would mean that the log ends here for good
            batch = next(self._log.batches(offset), None)
        return batch

    def between(self, start: int, end: int) -> list[tuple[pa.RecordBatch, Int64s]]:
        """The existing rows from ``start`` to before ``end``."""
        if self._batch is not None and self._from <= start and end - 1 <= int(self._offsets[-1]):
            low, high = (int(row) for row in np.searchsorted(self._offsets, (start, end)))
            return [(self._batch.slice(low, high - low), self._offsets[low:high])] if low < high else []
        batches = list(self._log.batches(start, end))
        return [(batch, batch.column("offset").to_numpy()) for batch in batches]
