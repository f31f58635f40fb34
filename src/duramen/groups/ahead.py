"""Reading a log ahead of its consumers: a decoded batch, from which deliveries are cut without reading again, and the
one behind it, which one consumer reads while the others go on."""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from duramen.errors import OffsetError
from duramen.groups.machine import runs_of
from duramen.log.reader import Log
from duramen.log.writer import WritableLog

Int64s = npt.NDArray[np.int64]


class ReadAhead:
    """The rows of a log from an offset on. One thread at a time, except for `read_on`."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._batch: pa.RecordBatch | None = None
        self._offsets: Int64s = np.empty(0, np.int64)
        self._from = 0
        self._range = 0, -1
        """The first and the last offset of the batch."""
        self._has_no_gap = False
        self._following: tuple[int, pa.RecordBatch] | None = None
        """What lies behind the batch, and the offset that it was asked for with."""
        self._reading = threading.Lock()

    def at(self, offset: int) -> tuple[pa.RecordBatch, Int64s] | None:
        """Rows from the first record at or behind ``offset`` on, with their offsets; None at the end of the log.
        Raises where the log is damaged there."""
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
        """Up to ``most`` rows from ``start`` to before ``end``, as many as lie together, and the runs of their offsets;
        no run where the log has no record there, None where it ends before."""
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
        """Read what lies behind the batch, once it is consumed up to ``offset`` and that is more than half of it. Any
        thread may ask; one of them does it."""
        first, last = self._range
        if self._following is not None or not first <= offset <= last or 2 * offset < first + last:
            return
        if self._reading.acquire(blocking=False):
            try:
                following = next(self._log.batches(last + 1), None)
                if following is not None and self._range == (first, last):
                    self._following = last + 1, following
            except Exception:  # noqa: BLE001
                pass  # the records in hand go out; whoever needs the following ones is told
            finally:
                self._reading.release()

    def _read(self, offset: int) -> pa.RecordBatch | None:
        is_overtaken = False
        try:
            batch = next(self._log.batches(offset), None)
        except OffsetError:  # retention removed the segment a moment ago: on with what is left
            batch, is_overtaken = None, True
        if not isinstance(self._log, WritableLog) and batch is None:
            self._log.refresh()
            is_overtaken = True
        if is_overtaken:  # None says that the log ends here, and then nothing is ever looked for here again
            batch = next(self._log.batches(offset), None)
        return batch

    def between(self, start: int, end: int) -> list[tuple[pa.RecordBatch, Int64s]]:
        """The rows from ``start`` to before ``end``, as far as there are any."""
        if self._batch is not None and self._from <= start and end - 1 <= int(self._offsets[-1]):
            low, high = (int(row) for row in np.searchsorted(self._offsets, (start, end)))
            return [(self._batch.slice(low, high - low), self._offsets[low:high])] if low < high else []
        batches = list(self._log.batches(start, end))
        return [(batch, batch.column("offset").to_numpy()) for batch in batches]
