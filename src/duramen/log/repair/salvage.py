"""Which bytes of a damaged segment are records.

A segment is walked from its first byte to its last. Where it stops at something that is no record, the walk goes on at
the next one that is, whatever its offset. What was found are *runs*: records without a gap between their offsets. Where
they belong is found out next, in `order`.

A record is put right, instead of given up, where that can be proven: a single flipped bit of its header that makes the
checksum fit and the record fill the damaged place exactly. Payloads are never guessed. Reads only.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from duramen.formats.base import Cursor, Rows, Segment
from duramen.kernel import is_zero
from duramen.kernel.layout import Stop

MEND_BYTES = 64 << 20
"""The longest record of which every bit of the header is tried."""


class Patch(NamedTuple):
    """Bytes to write over what is there."""

    position: int
    data: bytes


@dataclass(frozen=True)
class Run:
    """Whole records that follow each other in the file, without a gap between their offsets."""

    start: int
    end: int
    first: int
    last: int
    records: int
    rows: int
    """Records, or chunks of them."""
    patches: tuple[Patch, ...] = ()
    notes: tuple[str, ...] = ()
    """What the patches put right, a line for each record."""

    @property
    def span(self) -> int:
        return self.last - self.first + 1


class Bad(NamedTuple):
    """Bytes that are no record, or one that does not belong where it is."""

    start: int
    end: int
    why: str


class Hole(NamedTuple):
    """Offsets that are lost."""

    first: int
    last: int


@dataclass
class Salvaged:
    """What can be kept of a segment: ``runs`` in the order of their offsets, and everything else with its reason."""

    runs: list[Run] = field(default_factory=list)
    bad: list[Bad] = field(default_factory=list)
    holes: list[Hole] = field(default_factory=list)
    end: int = 0
    """Where the records and what is wrong with them end; only zeros follow."""
    ended_badly: bool = False
    """No record follows the last bad place."""
    version_at: int | None = None
    """Where a version is unknown, and nothing proves that it is merely damaged."""

    @property
    def mended(self) -> list[str]:
        return [note for run in self.runs for note in run.notes]

    @property
    def records(self) -> int:
        return sum(run.records for run in self.runs)

    @property
    def first(self) -> int | None:
        return self.runs[0].first if self.runs else None

    @property
    def last(self) -> int | None:
        return self.runs[-1].last if self.runs else None


def walk(segment: Segment, low: int) -> Salvaged:
    """Everything in the segment that is a record with an offset of ``low`` or more, in the order of the file."""
    return _Walk(segment, low).run()


class _Walk:
    def __init__(self, segment: Segment, low: int) -> None:
        self._segment = segment
        self._low = low
        self._proves = segment.record_checksum
        self.found = Salvaged()

    def run(self) -> Salvaged:
        segment, found = self._segment, self.found
        cursor = Cursor(segment.start.position, self._low - 1)
        before: Cursor | None = None
        """Where the last row before ``cursor`` starts."""
        while True:
            rows = segment.scan(cursor)
            jump = self._take(rows, before)
            if jump is not None:
                cursor, before = jump, None
                continue
            if len(rows.columns):
                last = len(rows.columns) - 1
                before = Cursor(int(rows.columns.position[last]), int(rows.columns.first_offsets[last]) - 1)
            cursor = rows.cursor
            if rows.stop == Stop.LIMIT:
                continue
            if rows.stop in (Stop.END, Stop.ZEROS):
                found.end = cursor.position
                return found
            if before is not None and len(rows.columns) and segment.ends_in_doubt(rows):
                self._forget_from(before.position)
                cursor, before = Cursor(before.position, cursor.previous_offset), None
            following = self._pass(rows.stop, cursor, before)
            if following is None:
                return found
            cursor, before = following, None

    # --- rows

    def _take(self, rows: Rows, before: Cursor | None) -> Cursor | None:
        """Add the rows to the runs; answers where to go on instead, if one of them turns out to be none."""
        columns = rows.columns
        swallowing = next(self._segment.swallowed(rows), None)
        count = len(columns) if swallowing is None else swallowing[0]
        firsts, lasts = columns.first_offsets, columns.last_offsets
        ends = np.append(columns.position[1:], rows.end.position)
        breaks = np.flatnonzero(firsts[1:count] != lasts[: max(count - 1, 0)] + 1) + 1
        starts = [0, *breaks.tolist()] if count else []
        for begin, stop in pairwise([*starts, count]):
            run = Run(
                int(columns.position[begin]), int(ends[stop - 1]), int(firsts[begin]), int(lasts[stop - 1]),
                records_of(rows, begin, stop), stop - begin,
            )  # fmt: skip
            at_end = stop == count and swallowing is None
            jump = self._doubt(run, rows, begin, stop, at_end, before)
            if jump is not None:
                return jump
            self._add(run)
        if swallowing is None:
            return None
        row, following = swallowing
        start = int(columns.position[row])
        self._bad_or_mended(start, following, "its length takes in the record behind it", int(firsts[row]))
        return Cursor(following, int(lasts[row]) if self.found.runs else self._low - 1)

    def _add(self, run: Run) -> None:
        runs = self.found.runs
        if runs and runs[-1].end == run.start and runs[-1].last + 1 == run.first and not run.patches:
            held = runs[-1]
            runs[-1] = replace(
                held, end=run.end, last=run.last, records=held.records + run.records, rows=held.rows + run.rows
            )
        else:
            runs.append(run)

    def _doubt(self, run: Run, rows: Rows, begin: int, stop: int, at_end: bool, before: Cursor | None) -> Cursor | None:
        """Without a checksum, a record alone that leaves out offsets may be what a wrong length made of other bytes:
        whether it is shows in what follows the record before it. Answers where the true record starts."""
        runs = self.found.runs
        expected = runs[-1].last + 1 if runs else self._low
        zeros = is_zero(self._segment.buf, run.start, run.start + self._segment.header_bytes)
        if self._proves or (run.first == expected and not zeros) or stop - begin > 1:
            return None
        if at_end and rows.stop == Stop.LIMIT:
            more = self._segment.scan(Cursor(run.end, run.last), max_records=1)
            if len(more.columns) and int(more.columns.first_offsets[0]) == run.last + 1:
                return None
        if begin:
            before = Cursor(int(rows.columns.position[begin - 1]), int(rows.columns.first_offsets[begin - 1]) - 1)
        if before is None:
            start, previous = run.start - 1, expected - 1
        else:
            start, previous = before.position, expected - 1
        found = self._segment.resync(Cursor(start, previous))
        if found == run.start or (found < 0 and not zeros):
            return None
        if found < 0:
            found = len(self._segment.buf)
        if before is not None and found < run.start:
            self._forget_from(before.position)
            self._bad_or_mended(before.position, found, "its length is wrong: another record starts inside of it", None)
        else:
            self._bad_or_mended(run.start, found, f"its offset {run.first} does not fit here", None)
        return Cursor(found, self._previous())

    def _forget_from(self, position: int) -> None:
        """Take back the last record, which starts there."""
        runs = self.found.runs
        if runs and runs[-1].start < position:
            held = runs[-1]
            runs[-1] = replace(held, end=position, last=held.last - 1, records=held.records - 1, rows=held.rows - 1)
        elif runs:
            runs.pop()

    def _previous(self) -> int:
        return self.found.runs[-1].last if self.found.runs else self._low - 1

    # --- what is no record

    def _pass(self, stop: Stop, cursor: Cursor, before: Cursor | None) -> Cursor | None:
        """Get past something that is no record, or not the next one. None where nothing follows."""
        segment, position = self._segment, cursor.position
        if stop == Stop.BAD_ORDER:
            anew = Cursor(position, self._low - 1)
            peek = segment.scan(anew, max_records=2)
            offsets = peek.columns.first_offsets
            pair = len(offsets) > 1 and int(offsets[1]) == int(peek.columns.last_offsets[0]) + 1
            if len(offsets) and (self._proves or pair):
                return anew
        low = self._low - 1 if self._proves else self._previous()
        found = segment.resync(Cursor(position, low))
        if not self._proves and before is not None:
            # The length of the last record may be wrong, so that it takes in others, or some bytes too many.
            inside = segment.resync(Cursor(before.position, low))
            if 0 <= inside < (position if found < 0 else found):
                self._forget_from(before.position)
                position, found = before.position, inside
        end = found if found >= 0 else len(segment.buf)
        if before is not None and found >= 0 and self._mend_before(before, position, end):
            return Cursor(end, low)
        self._bad_or_mended(position, end, stop.meaning, None, unknown=stop == Stop.BAD_VERSION)
        if found >= 0:
            return Cursor(found, low)
        self.found.end = end
        self.found.ended_badly = not (self.found.runs and self.found.runs[-1].end == end)
        return None

    def _mend_before(self, before: Cursor, position: int, end: int) -> bool:
        """Whether the bytes up to ``end`` belong to the record before them, whose length is one bit off."""
        if not self._proves:
            return False
        mended = self._mended(before.position, end, before.previous_offset + 1, 2**63 - 2)
        if mended is None or mended.first != before.previous_offset + 1:
            return False
        runs = self.found.runs
        if not runs or runs[-1].end != position:
            return False
        start = runs[-1]
        patches, notes = (*start.patches, *mended.patches), (*start.notes, *mended.notes)
        runs[-1] = replace(start, end=end, last=mended.last, patches=patches, notes=notes)
        return True

    def _bad_or_mended(self, start: int, end: int, why: str, expected: int | None, *, unknown: bool = False) -> None:
        low = self._previous() + 1 if expected is None else expected
        high = self._next_offset(end) - 1 if expected is None else expected
        run = self._mended(start, end, low, high if self._proves or high < 2**62 else low)
        if run is not None:
            self.found.runs.append(run)
            return
        self.found.bad.append(Bad(start, end, why))
        if unknown and end == len(self._segment.buf):
            self.found.version_at = start

    def _next_offset(self, position: int) -> int:
        """The offset of the record that starts there; a large number where none does."""
        if position >= len(self._segment.buf):
            return 2**63 - 1
        rows = self._segment.scan(Cursor(position, self._low - 1), max_records=1)
        return int(rows.columns.first_offsets[0]) if len(rows.columns) else 2**63 - 1

    # --- putting right

    def _mended(self, start: int, end: int, low: int, high: int) -> Run | None:
        """The one record that fills these bytes, if a single flipped bit of its header keeps it from being one."""
        if not 0 < end - start <= MEND_BYTES or low > high:
            return None
        raw = bytearray(self._segment.buf[start:end])
        trial = copy.copy(self._segment)
        trial.buf = memoryview(raw)
        for place in _header_places(self._segment, len(raw)):
            for bit in range(8):
                raw[place] ^= 1 << bit
                rows = trial.scan(Cursor(0, low - 1), max_records=1)
                if _is_whole(trial, rows, len(raw)):
                    first, last = int(rows.columns.first_offsets[0]), int(rows.columns.last_offsets[0])
                    if (low <= first and last <= high) if self._proves else first == last == low == high:
                        patch = Patch(start + place, bytes(raw[place : place + 1]))
                        note = f"offset {first}: a flipped bit of its header is put right (byte {start + place})"
                        return Run(start, end, first, last, rows.count, 1, (patch,), (note,))
                raw[place] ^= 1 << bit
        return None


def _header_places(segment: Segment, length: int) -> Iterator[int]:
    """The bytes of a record that are not payload: its header, and the checksum behind it where there is one."""
    yield from range(min(segment.header_bytes, length))
    yield from range(max(length - segment.trailer_bytes, segment.header_bytes), length)


def _is_whole(segment: Segment, rows: Rows, length: int) -> bool:
    return len(rows.columns) == 1 and rows.end.position == length and not any(True for _ in segment.check(rows))


def records_of(rows: Rows, begin: int, stop: int) -> int:
    """How many user records some of the rows hold."""
    if begin == 0 and stop == len(rows.columns):
        return rows.count
    counts = getattr(rows.columns, "records", None)
    if counts is None:
        return stop - begin
    user = rows.columns.chunk_type[begin:stop] == 0  # type: ignore[attr-defined]
    return int(counts[begin:stop][user].sum(dtype=np.int64))
