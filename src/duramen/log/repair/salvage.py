"""Find the records in the bytes of a damaged segment.

`walk` scans a segment from its first byte to its last. After something that is not a record, it continues at the next
valid record, whatever its offset. The result are *runs*: adjacent records with consecutive offsets. `order` decides
where they belong.

A record is corrected, instead of given up, if that can be proven: flipping a single bit of its header makes the
checksum fit, and the record then fills the damaged place exactly. Payloads are never guessed. Reads only.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from duramen.formats import Rows, ScanPosition, Segment
from duramen.kernel import Stop, is_zero

MEND_BYTES = 64 << 20
"""The longest record whose header bits are tried."""


class Patch(NamedTuple):
    """Bytes that replace those at a position."""

    position: int
    data: bytes


@dataclass(frozen=True)
class SalvagedRun:
    """Adjacent whole records with consecutive offsets."""

    start: int
    end: int
    first: int
    last: int
    records: int
    rows: int
    """Number of records, or of chunks."""
    patches: tuple[Patch, ...] = ()
    notes: tuple[str, ...] = ()
    """What the patches correct, one line per record."""

    @property
    def span(self) -> int:
        return self.last - self.first + 1


class Bad(NamedTuple):
    """Bytes that are not a record, or a record that does not belong there."""

    start: int
    end: int
    why: str


class Hole(NamedTuple):
    first: int
    last: int


@dataclass
class Salvaged:
    """What can be kept of a segment: ``runs`` in the order of their offsets, and everything else with its reason."""

    runs: list[SalvagedRun] = field(default_factory=list)
    bad: list[Bad] = field(default_factory=list)
    holes: list[Hole] = field(default_factory=list)
    end: int = 0
    """The end of the records and damaged ranges; only zeros follow."""
    ended_badly: bool = False
    """No record follows the last bad place."""
    version_at: int | None = None
    """The position of an unknown version that is not proven to be damage."""

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
    """Find every record with an offset of at least ``low``, in file order."""
    return _SalvageWalk(segment, low).run()


class _SalvageWalk:
    def __init__(self, segment: Segment, low: int) -> None:
        self._segment = segment
        self._low = low
        self._proves = segment.record_checksum
        self.found = Salvaged()

    def run(self) -> Salvaged:
        segment, found = self._segment, self.found
        cursor = ScanPosition(segment.start.position, self._low - 1)
        before: ScanPosition | None = None
        """Where the last row before ``cursor`` starts."""
        while True:
            rows = segment.scan(cursor)
            jump = self._take(rows, before)
            if jump is not None:
                cursor, before = jump, None
                continue
            if len(rows.columns):
                last = len(rows.columns) - 1
                before = ScanPosition(int(rows.columns.position[last]), int(rows.columns.first_offsets[last]) - 1)
            cursor = rows.cursor
            if rows.stop == Stop.LIMIT:
                continue
            if rows.stop in (Stop.END, Stop.ZEROS):
                found.end = cursor.position
                return found
            if before is not None and len(rows.columns) and segment.ends_in_doubt(rows):
                self._forget_from(before.position)
                cursor, before = ScanPosition(before.position, cursor.previous_offset), None
            following = self._pass(rows.stop, cursor, before)
            if following is None:
                return found
            cursor, before = following, None

    # --- rows

    def _take(self, rows: Rows, before: ScanPosition | None) -> ScanPosition | None:
        """Add the rows to the runs. Returns where to continue instead, if one of them is not a record."""
        columns = rows.columns
        swallowing = next(self._segment.swallowed(rows), None)
        count = len(columns) if swallowing is None else swallowing[0]
        firsts, lasts = columns.first_offsets, columns.last_offsets
        ends = np.append(columns.position[1:], rows.end.position)
        breaks = np.flatnonzero(firsts[1:count] != lasts[: max(count - 1, 0)] + 1) + 1
        starts = [0, *breaks.tolist()] if count else []
        for begin, stop in pairwise([*starts, count]):
            run = SalvagedRun(
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
        start, stated = int(columns.position[row]), ScanPosition(int(ends[row]), int(lasts[row]))
        self._bad_or_mended(start, following, "its length includes the record after it", int(firsts[row]))
        if self._continues_at(stated):
            self.found.bad.append(Bad(following, stated.position, "removed earlier: later records have these offsets"))
            return stated
        return ScanPosition(following, int(lasts[row]) if self.found.runs else self._low - 1)

    def _continues_at(self, cursor: ScanPosition) -> bool:
        """Whether the next record in order follows. Then the bytes that the record includes were cut off once, and
        others were appended since: readers see those."""
        rows = self._segment.scan(cursor, max_records=1)
        return len(rows.columns) > 0 and int(rows.columns.first_offsets[0]) == cursor.previous_offset + 1

    def _add(self, run: SalvagedRun) -> None:
        runs = self.found.runs
        if runs and runs[-1].end == run.start and runs[-1].last + 1 == run.first and not run.patches:
            held = runs[-1]
            runs[-1] = replace(
                held, end=run.end, last=run.last, records=held.records + run.records, rows=held.rows + run.rows
            )
        else:
            runs.append(run)

    def _doubt(
        self, run: SalvagedRun, rows: Rows, begin: int, stop: int, at_end: bool, before: ScanPosition | None
    ) -> ScanPosition | None:
        """Without checksums, a single record with a gap before its offset may be an artefact of a wrong length. Compare
        with what follows the record before it. Returns where the true record starts."""
        runs = self.found.runs
        expected = runs[-1].last + 1 if runs else self._low
        zeros = is_zero(self._segment.buf, run.start, min(run.start + self._segment.header_bytes, run.end))
        if self._proves or (run.first == expected and not zeros) or stop - begin > 1:
            return None
        if at_end and rows.stop == Stop.LIMIT:
            more = self._segment.scan(ScanPosition(run.end, run.last), max_records=1)
            if len(more.columns) and int(more.columns.first_offsets[0]) == run.last + 1:
                return None
        if begin:
            before = ScanPosition(int(rows.columns.position[begin - 1]), int(rows.columns.first_offsets[begin - 1]) - 1)
        if before is None:
            start, previous = run.start - 1, expected - 1
        else:
            start, previous = before.position, expected - 1
        found = self._segment.resync(ScanPosition(start, previous))
        if found == run.start or (found < 0 and not zeros):
            return None
        if found < 0:
            found = len(self._segment.buf)
        if before is not None and found < run.start:
            self._forget_from(before.position)
            self._bad_or_mended(before.position, found, "its length is wrong: another record starts inside it", None)
        else:
            self._bad_or_mended(run.start, found, f"its offset {run.first} does not fit here", None)
        return ScanPosition(found, self._previous())

    def _forget_from(self, position: int) -> None:
        """Remove the last record, which starts there, from the runs."""
        runs = self.found.runs
        if runs and runs[-1].start < position:
            held = runs[-1]
            runs[-1] = replace(held, end=position, last=held.last - 1, records=held.records - 1, rows=held.rows - 1)
        elif runs:
            runs.pop()

    def _previous(self) -> int:
        return self.found.runs[-1].last if self.found.runs else self._low - 1

    def _settled(self) -> int:
        """The last offset so far, without that of a single record that may be wrong."""
        runs = self.found.runs
        if len(runs) > 1:
            return min(run.last for run in runs[-2:])
        return self._previous() if runs and (runs[0].rows > 1 or runs[0].first == self._low) else self._low - 1

    # --- bytes that are not a record

    def _pass(self, stop: Stop, cursor: ScanPosition, before: ScanPosition | None) -> ScanPosition | None:
        """Return where to continue after something that is not the next record; None if nothing follows."""
        segment, position = self._segment, cursor.position
        if stop == Stop.BAD_ORDER:
            again = ScanPosition(position, self._low - 1)
            peek = segment.scan(again, max_records=2)
            offsets = peek.columns.first_offsets
            pair = len(offsets) > 1 and int(offsets[1]) == int(peek.columns.last_offsets[0]) + 1
            if len(offsets) and (self._proves or pair):
                return again
        low = self._low - 1 if self._proves else self._previous()
        found = segment.resync_outside(ScanPosition(position, low), self._settled())
        if not self._proves and before is not None:
            # The length of the last record may be wrong, and include others, or some bytes too many.
            inside = segment.resync(ScanPosition(before.position, low))
            if 0 <= inside < (position if found < 0 else found):
                self._forget_from(before.position)
                position, found = before.position, inside
        end = found if found >= 0 else len(segment.buf)
        if before is not None and found >= 0 and self._mend_before(before, position, end):
            return ScanPosition(end, low)
        self._bad_or_mended(position, end, stop.meaning, None, unknown=stop == Stop.BAD_VERSION)
        if found >= 0:
            return ScanPosition(found, low)
        self.found.end = end
        self.found.ended_badly = not (self.found.runs and self.found.runs[-1].end == end)
        return None

    def _mend_before(self, before: ScanPosition, position: int, end: int) -> bool:
        """Whether the bytes up to ``end`` belong to the record before them, whose length has a flipped bit."""
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
        """Return the offset of the record that starts there; a large number if none does."""
        if position >= len(self._segment.buf):
            return 2**63 - 1
        rows = self._segment.scan(ScanPosition(position, self._low - 1), max_records=1)
        return int(rows.columns.first_offsets[0]) if len(rows.columns) else 2**63 - 1

    # --- corrections

    def _mended(self, start: int, end: int, low: int, high: int) -> SalvagedRun | None:
        """Return the record that fills these bytes, if flipping one bit of its header makes it valid."""
        if not 0 < end - start <= MEND_BYTES or low > high:
            return None
        raw = bytearray(self._segment.buf[start:end])
        trial = copy.copy(self._segment)
        trial.buf = memoryview(raw)
        for place in _header_places(self._segment, len(raw)):
            for bit in range(8):
                raw[place] ^= 1 << bit
                rows = trial.scan(ScanPosition(0, low - 1), max_records=1)
                if _is_whole(trial, rows, len(raw)):
                    first, last = int(rows.columns.first_offsets[0]), int(rows.columns.last_offsets[0])
                    if (low <= first and last <= high) if self._proves else first == last == low == high:
                        patch = Patch(start + place, bytes(raw[place : place + 1]))
                        note = f"offset {first}: a flipped bit of its header is corrected (byte {start + place})"
                        return SalvagedRun(start, end, first, last, rows.count, 1, (patch,), (note,))
                raw[place] ^= 1 << bit
        return None


def _header_places(segment: Segment, length: int) -> Iterator[int]:
    """Yield the positions of a record's header, and of the checksum after it if it has one."""
    yield from range(min(segment.header_bytes, length))
    yield from range(max(length - segment.trailer_bytes, segment.header_bytes), length)


def _is_whole(segment: Segment, rows: Rows, length: int) -> bool:
    return len(rows.columns) == 1 and rows.end.position == length and not any(True for _ in segment.check(rows))


def records_of(rows: Rows, begin: int, stop: int) -> int:
    """Return the number of user records in some of the rows."""
    if begin == 0 and stop == len(rows.columns):
        return rows.count
    return int(rows.columns.user_records[begin:stop].sum())
