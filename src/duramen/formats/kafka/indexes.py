"""Kafka's two indexes, and what is built of them.

::

    {base:020}.index               entries of 8 bytes
      0  relative_offset  u32  last offset of the batch, minus base
      4  position         u32  where the batch starts

    {base:020}.timeindex           entries of 12 bytes
      0  timestamp        i64  the greatest so far, milliseconds
      8  relative_offset  u32  an offset of the batch that holds it, minus base

A broker preallocates both with zeros, and cuts them when it closes the segment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from duramen import kernel
from duramen.formats.index import COPIED_INDEX_BYTES, Index, IndexBuilder, Picked, bounded, table, times_us
from duramen.formats.segment import Problem, Role, Rows, Severity
from duramen.formats.struct import Buffer, Struct
from duramen.kernel import BatchColumns, Int64s

OFFSET_ENTRY = Struct(">", relative_offset="I", position="I")
TIME_ENTRY = Struct(">", timestamp="q", relative_offset="I")
INDEX_STRIDE_BYTES = 4096
"""Kafka's ``index.interval.bytes``."""
INDEX_MAX_BYTES = 10 << 20
"""Kafka's ``segment.index.bytes``: a broker fails to start on a larger index."""
_LEAST_BATCH_BYTES = 68
_ZEROS_STEP_BYTES = 4096
MAX_RELATIVE_OFFSET = 2**31 - 1
ENTRIES = {Role.INDEX: OFFSET_ENTRY, Role.TIME_INDEX: TIME_ENTRY}
_DTYPES = {
    Role.INDEX: np.dtype([("relative_offset", ">u4"), ("position", ">u4")]),
    Role.TIME_INDEX: np.dtype([("timestamp", ">i8"), ("relative_offset", ">u4")]),
}


def covered_bytes(index_max_bytes: int, stride_bytes: int) -> int:
    """The size up to which both indexes of a segment stay below their limit, however small its batches are. The time
    index gets an entry when the segment ends, and must have room for another then."""
    return max(index_max_bytes // TIME_ENTRY.size - 2, 1) * max(stride_bytes + 1, _LEAST_BATCH_BYTES)


def _end_of_written(view: memoryview) -> int:
    """A position after which all bytes are zeros, and before which few are."""
    stop = len(view)
    while stop and kernel.is_zero(view, max(stop - _ZEROS_STEP_BYTES, 0), stop):
        stop = max(stop - _ZEROS_STEP_BYTES, 0)
    return stop


def written_entries(role: Role, buf: Buffer) -> tuple[npt.NDArray[np.void], int]:
    """The entries before the preallocated zeros, and how many bytes of a torn one follow the last."""
    rows, rest = table(buf, 0, _DTYPES[role])
    rows_before = rows[: -(-_end_of_written(memoryview(buf)) // ENTRIES[role].size)]
    written = np.flatnonzero(rows_before.view(np.uint8).reshape(len(rows_before), ENTRIES[role].size).any(axis=1))
    last = int(written[-1]) + 1 if len(written) else 0
    is_blank = not bytes(memoryview(buf)[len(memoryview(buf)) - rest :]).strip(b"\0")
    return rows[:last], 0 if last < len(rows) or is_blank else rest


def open_index(role: Role, buf: Buffer, base: int) -> Index:
    view, unread = bounded(memoryview(buf), COPIED_INDEX_BYTES)
    rows, rest = written_entries(role, view)
    offsets = rows["relative_offset"].astype(np.uint64) + np.uint64(base)
    entry_bytes = ENTRIES[role].size
    if role == Role.INDEX:
        return Index(
            offsets, rows["position"].astype(np.uint64), entry_bytes=entry_bytes, rest_bytes=rest,
            unread_bytes=unread, names_last=True,
        )  # fmt: skip
    return Index(
        offsets, None, timestamps_us=times_us(rows["timestamp"]), entry_bytes=entry_bytes, rest_bytes=rest,
        unread_bytes=unread, names_last=True, repeats={"max_timestamp": rows["timestamp"].astype(np.int64)},
        records_win=True,
    )  # fmt: skip


class KafkaIndexes(IndexBuilder):
    """Both indexes of a segment, by the rule of a broker.

    A batch gets an entry if it starts more than ``stride_bytes`` after the last indexed one (at first, after the start
    of the segment). The time index then gets the greatest time so far, unless its last entry has it; a segment that is
    complete ends with such an entry.
    """

    def __init__(self, base: int, stride_bytes: int) -> None:
        self._base, self._stride_bytes = base, stride_bytes
        self._indexed_position = 0
        self._greatest = (-1, base)
        """The greatest time so far, and the last offset of the first batch that has it."""
        self._last_time = -1
        super().__init__()

    def headers(self) -> dict[Role, bytes]:
        return dict.fromkeys(ENTRIES, b"")

    @property
    def progress(self) -> tuple[int, ...]:
        return (self._indexed_position, *self._greatest, self._last_time)

    def resume(self, progress: Sequence[int]) -> None:
        super().resume(progress)
        self._indexed_position, time, offset, self._last_time = progress
        self._greatest = (time, offset)

    def pick(self, rows: Rows) -> Picked:
        batches = rows.columns
        assert isinstance(batches, BatchColumns)
        if not len(batches):
            return ()
        chosen = np.empty(len(batches), np.int64)
        none = np.zeros(len(batches), np.uint32)
        count, self._indexed_position = kernel.pick_strides(
            batches.position, none, 0, self._stride_bytes + 1, self._indexed_position, chosen
        )
        times, offsets = self._so_far(batches)
        chosen = chosen[:count]
        return self._offset_entries(batches, chosen), self._time_entries(times[chosen], offsets[chosen])

    def _so_far(self, batches: BatchColumns) -> tuple[Int64s, Int64s]:
        """The greatest time up to each batch, and the last offset of the first batch that has it."""
        times = np.maximum.accumulate(np.append(self._greatest[0], batches.max_timestamp))
        grew = np.append(0, np.where(times[1:] > times[:-1], np.arange(1, len(times)), 0))
        offsets = np.append(self._greatest[1], batches.last_offset)[np.maximum.accumulate(grew)]
        self._greatest = (int(times[-1]), int(offsets[-1]))
        return times[1:], offsets[1:]

    def _offset_entries(self, batches: BatchColumns, chosen: Int64s) -> npt.NDArray[np.void]:
        relative, positions = batches.last_offset[chosen] - self._base, batches.position[chosen]
        fits = (relative >= 0) & (relative <= MAX_RELATIVE_OFFSET) & (positions <= MAX_RELATIVE_OFFSET)
        return _table(Role.INDEX, relative_offset=relative[fits], position=positions[fits])

    def _time_entries(self, times: Int64s, offsets: Int64s) -> npt.NDArray[np.void]:
        relative = offsets - self._base
        fits = (np.diff(times, prepend=self._last_time) > 0) & (relative >= 0) & (relative <= MAX_RELATIVE_OFFSET)
        if fits.any():
            self._last_time = int(times[fits][-1])
        return _table(Role.TIME_INDEX, timestamp=times[fits], relative_offset=relative[fits])

    def ending(self) -> Mapping[Role, bytes]:
        time, offset = self._greatest
        if time <= self._last_time or not 0 <= offset - self._base <= MAX_RELATIVE_OFFSET:
            return {}
        return {Role.TIME_INDEX: TIME_ENTRY.pack(timestamp=time, relative_offset=offset - self._base)}

    def entries(self, picked: Picked) -> dict[Role, bytes]:
        return {role: part.tobytes() for role, part in zip(ENTRIES, picked, strict=True)}


def _table(role: Role, **columns: Int64s) -> npt.NDArray[np.void]:
    table = np.empty(len(next(iter(columns.values()), ())), _DTYPES[role])
    for name, column in columns.items():
        table[name] = column
    return table


def check_entries(role: Role, buf: Buffer) -> Iterator[Problem]:
    """Whether the entries that a reader uses are whole and in order."""
    view, unread = bounded(memoryview(buf), COPIED_INDEX_BYTES)
    rows, rest = written_entries(role, view)
    entry_bytes = ENTRIES[role].size
    if rest and not unread:
        yield Problem("bad-index", Severity.WARNING, "the last entry is cut short", len(view) - rest)
    offsets = rows["relative_offset"].astype(np.int64)
    other = rows["position" if role == Role.INDEX else "timestamp"].astype(np.int64)
    wrong = np.flatnonzero((offsets[1:] <= offsets[:-1]) | (other[1:] <= other[:-1]))
    if len(wrong):
        at = (int(wrong[0]) + 1) * entry_bytes
        yield Problem("bad-index", Severity.WARNING, "the entries are not in order", at)
