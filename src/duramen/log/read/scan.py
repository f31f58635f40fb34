"""One scan of a log between bounds: segment by segment, to the end or following new records.

Segments may vanish during the scan. The scan passes over a segment that compaction emptied; if retention removed one,
it raises an error that says where to continue.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from duramen.arguments import check_int
from duramen.disk import Disk
from duramen.errors import CorruptionError, OffsetError, StorageError, UsageError
from duramen.formats import (
    Format,
    Rows,
    ScanPosition,
    StoredChunk,
    SupportsChunks,
    binary_buffers,
    bool_array,
    numbers_of,
)
from duramen.log.read.mapped_segment import MappedSegment
from duramen.log.read.presence import Presence
from duramen.log.segments import EndKind, SegmentEnd, Snapshot, is_within
from duramen.record import MAX_OFFSET, checked_us
from duramen.sidecar import read_compaction_state

Time = datetime | str | int
T = TypeVar("T")
Take: TypeAlias = Callable[[MappedSegment, Rows], Iterator[T]]
"""Turns the rows of a scan step into what the scan yields."""


class ScannedLog(Protocol):
    """What a scan needs of a log. `Log` describes the methods."""

    disk: Disk
    path: str

    @property
    def codec(self) -> Format: ...
    @property
    def snapshot(self) -> Snapshot: ...
    @property
    def generation(self) -> int: ...
    @property
    def first_offset(self) -> int: ...
    @property
    def next_offset(self) -> int: ...
    def offset_at(self, timestamp: Time) -> int: ...
    def wait(self, *, seen: object = None) -> object: ...
    def base_of(self, offset: int) -> int | None: ...
    def segment_of(self, base: int) -> MappedSegment: ...
    def check_witness(self, opened: MappedSegment) -> None: ...
    def verdict(self, opened: MappedSegment, rows: Rows) -> SegmentEnd: ...
    def refresh_after(self, error: StorageError) -> None: ...
    def replaced(self) -> StorageError: ...


class Scan:
    """A scan of a log between bounds. It ends, or follows new records, and survives changes of the directory."""

    def __init__(
        self,
        log: ScannedLog,
        from_offset: int | None = None,
        to_offset: int | None = None,
        from_time: Time | None = None,
        to_time: Time | None = None,
        max_records: int | None = None,
        max_bytes: int | None = None,
    ) -> None:
        self._log = log
        self._generation = log.generation
        if (from_time is not None or to_time is not None) and log.codec.capabilities.timestamps is None:
            raise UsageError(f"{log.codec.name} records have no time", path=log.path)
        self._from_us = None if from_time is None else checked_us(from_time)
        self._to_us = None if to_time is None else checked_us(to_time)
        from_offset, to_offset = _from_start(log, from_offset), _from_start(log, to_offset)
        self._next = from_offset or 0
        if self._from_us is not None and from_time is not None:
            self._next = max(self._next, log.offset_at(from_time))
        self._to_offset = MAX_OFFSET + 1 if to_offset is None else min(to_offset, MAX_OFFSET + 1)
        self._records_left = 2**63 - 1 if max_records is None else check_int("max_records", max_records)
        self._bytes_left = 2**63 - 1 if max_bytes is None else check_int("max_bytes", max_bytes)
        self._from_the_beginning = from_offset is None
        """No offset was requested and nothing was returned yet, so the scan may start wherever the log does."""
        self._has_passed = False
        """The scan has reached the end of the log once."""
        self._resume: tuple[int, ScanPosition] | None = None
        """Base of the segment and the position where the last pass ended, so that following does not walk it again."""

    def run(self, names: Sequence[str], follow: bool, verify: bool) -> Iterator[pa.RecordBatch]:
        """Yield batches up to the end of the log, or without end if ``follow``."""
        return self._until_end(self.passes(names, verify), follow)

    def chunks(self, follow: bool, verify: bool) -> Iterator[StoredChunk]:
        """Yield the chunks that hold the requested offsets, those without records included."""
        return self._until_end(self._passes(self._chunks_of, verify), follow)

    def _until_end(self, passes: Iterator[T | None], follow: bool) -> Iterator[T]:
        seen: object = None
        for item in passes:
            if item is not None:
                yield item
            elif follow:
                seen = self._log.wait(seen=seen)
            else:
                return

    def passes(self, names: Sequence[str], verify: bool) -> Iterator[pa.RecordBatch | None]:
        """Yield batches, and None whenever the end of the log is reached. Stops at the bounds."""
        wanted = list(names)
        needed = list(wanted)
        for extra in ("offset", "timestamp", "value"):
            if extra not in needed and self._needs(extra):
                needed.append(extra)
        return self._passes(partial(self._batches_of, needed, wanted), verify)

    def _passes(self, take: Take[T], verify: bool) -> Iterator[T | None]:
        """Yield what ``take`` makes of each scan step, and None whenever the end of the log is reached."""
        while not self._done():
            for item in self._pass(take, verify):
                self._from_the_beginning = False
                yield item
                if self._done():
                    return
            self._has_passed = True
            if not self._done():
                yield None

    def _batches_of(
        self, needed: list[str], wanted: list[str], opened: MappedSegment, rows: Rows
    ) -> Iterator[pa.RecordBatch]:
        if rows.count and rows.end.last_offset >= self._next:
            batch = self._cut(opened.segment.decode(rows, needed))
            if batch.num_rows:
                yield batch if needed == wanted else batch.select(wanted)

    def _chunks_of(self, opened: MappedSegment, rows: Rows) -> Iterator[StoredChunk]:
        assert isinstance(self._log.codec, SupportsChunks)
        for chunk in self._log.codec.chunks(opened.segment, rows, opened.path):
            if self._next <= max(chunk.first_offset, chunk.last_offset) and chunk.first_offset < self._to_offset:
                yield chunk

    def _needs(self, column: str) -> bool:
        if column == "timestamp":
            return self._from_us is not None or self._to_us is not None
        return column == "offset" or self._bytes_left < 2**63 - 1

    def _done(self) -> bool:
        return self._next >= self._to_offset or self._records_left <= 0 or self._bytes_left <= 0

    def _pass(self, take: Take[T], verify: bool) -> Iterator[T]:
        """Yield everything from the next offset to the current end of the log."""
        log = self._log
        bases = log.snapshot.bases
        if log.generation != self._generation:
            raise log.replaced()
        presence = Presence(log.disk, log.path, log.snapshot)
        if self._has_passed and bases and bases[0] > self._next:
            self._check_gap(None)
        base = log.base_of(self._next) if bases else None
        first = 0 if base is None else bisect_left(bases, base)
        for number in range(first, len(bases)):
            if number > first:
                presence.check_gap(bases[number - 1], bases[number], self._next, self._to_offset, self._ended_at)
                self._next = max(self._next, bases[number])
            if self._done():
                return
            try:
                opened = log.segment_of(bases[number])
            except StorageError as error:
                self._check_not_removed(error)
                yield from self._pass(take, verify)
                return
            if verify:
                log.check_witness(opened)
            yield from self._steps(take, opened, self._start(opened, number == first), verify)
            if self._done():
                return
        presence.check_end(self._next, self._to_offset, self._ended_at)

    @property
    def _ended_at(self) -> int:
        """The byte after the records of the last segment that was walked to its end."""
        return 0 if self._resume is None else self._resume[1].position

    def _steps(self, take: Take[T], opened: MappedSegment, cursor: ScanPosition, verify: bool) -> Iterator[T]:
        """Yield everything of one segment from ``cursor`` on."""
        rows = None
        for rows in opened.segment.steps(cursor, verify=verify):
            yield from take(opened, rows)
            if len(rows.columns):
                self._next = max(self._next, rows.end.last_offset + 1)
            if self._done():
                return
        assert rows is not None
        self._resume = (opened.segment.base_offset, rows.cursor)
        verdict = self._log.verdict(opened, rows)
        if verdict.ending in (EndKind.DAMAGE, EndKind.UNKNOWN_VERSION):
            raise verdict.error(opened.path)

    def _check_not_removed(self, error: StorageError) -> None:
        """A segment was removed before the scan reached it. That is fine if compaction emptied it; if retention removed
        it, the reader must know that records are missing."""
        self._log.refresh_after(error)
        self._check_gap(error)

    def _check_gap(self, error: StorageError | None) -> None:
        log = self._log
        first = log.snapshot.bases[0] if log.snapshot.bases else 0
        if self._from_the_beginning:
            self._next = max(self._next, first)
            return
        state = read_compaction_state(log.disk, log.path)
        if (state.retained_until if state.begun_until >= first else first) > self._next:
            raise OffsetError(
                f"this record was removed before it was read; the log begins at {first} now",
                path=log.path,
                offset=self._next,
                hint=f"continue at offset {first}, and store a cursor to keep records that are still needed",
            ) from error

    def _start(self, opened: MappedSegment, is_first: bool) -> ScanPosition:
        if self._resume is not None and self._resume[0] == opened.segment.base_offset and opened.is_last:
            cursor = self._resume[1]
            if cursor.position == len(opened.segment.buf):
                return cursor
            # Compaction may have replaced the segment since the last pass.
            if opened.segment.cursor_at(cursor.previous_offset + 1, cursor.position) is not None:
                return cursor
        return opened.cursor_before(self._next) if is_first else opened.segment.start

    def _cut(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of a batch that are within the bounds."""
        offsets = numbers_of(batch.column("offset"))
        low = int(np.searchsorted(offsets, self._next))
        high = int(np.searchsorted(offsets, self._to_offset - 1, side="right"))
        batch = batch.slice(low, high - low)
        if self._from_us is not None or self._to_us is not None:
            batch = batch.filter(bool_array(is_within(batch, self._from_us, self._to_us)))
        batch = batch.slice(0, min(batch.num_rows, self._records_left))
        if self._bytes_left < 2**63 - 1 and batch.num_rows:
            sizes = np.cumsum(np.diff(binary_buffers(batch.column("value"))[1]), dtype=np.int64)
            fitting = int(np.searchsorted(sizes, self._bytes_left, side="right"))
            batch = batch.slice(0, max(fitting, 1))
            self._bytes_left -= int(sizes[batch.num_rows - 1])
            if fitting < len(sizes):
                self._bytes_left = 0
        self._records_left -= batch.num_rows
        return batch


def _from_start(log: ScannedLog, offset: int | None) -> int | None:
    """An offset; a negative one counts records from the end."""
    if offset is None:
        return None
    offset = check_int("an offset", offset, least=-MAX_OFFSET - 1, most=MAX_OFFSET + 1)
    return offset if offset >= 0 else _start_of_last(log, -offset)


def _start_of_last(log: ScannedLog, count: int) -> int:
    """The offset of the first of the last ``count`` records. Offsets may have gaps (compaction, tracking), so this
    counts records in a window at the end, which doubles until it contains enough."""
    end, first = log.next_offset, log.first_offset
    span = count
    while True:
        start = max(end - span, first)
        try:
            found = sum(len(offsets) for offsets in _offsets(log, start, end))
        except CorruptionError:
            return start  # damage in the window: return the records before it, then raise the error
        if found >= count or start == first:
            break
        span *= 2
    skip = found - count
    for offsets in _offsets(log, start, end):
        if skip < len(offsets):
            return int(offsets[max(skip, 0)])
        skip -= len(offsets)
    return end


def _offsets(log: ScannedLog, start: int, end: int) -> Iterator[npt.NDArray[np.int64]]:
    for batch in Scan(log, start, end).run(("offset",), follow=False, verify=False):
        yield numbers_of(batch.column(0))
