"""Check an index against the records of its segment while they are scanned.

Every entry must name a record at its position, in order, and every record that should have an entry must have one. The
comparison works on whole steps of a scan: a dense index is compared as an array, a sparse one by arithmetic. It looks
up single entries only where offsets are missing or entries wrong. The records themselves are not judged here.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from duramen.formats import Format, Index, Places, Role, Rows, ScanPosition, Segment, Severity
from duramen.kernel import Columns, Stop
from duramen.log.segments import EndKind, SegmentEnd
from duramen.log.verify.report import Finding, counted

_STEP_ENTRIES = 65_536
RowNumbers = slice | npt.NDArray[np.intp]
NEVER = 2**62
"""A position that no segment reaches."""
REINDEX = "nothing is lost: `duramen reindex` rebuilds it from the records"


class IndexChecker:
    """Compares an index with the records of its segment, one step of a scan (`add`) after another."""

    MOST = 3
    """Wrong entries that are reported one by one; the rest are counted."""
    MOST_KEPT = 100_000
    """Wrong entries that are kept until the damage of the records is known: it may explain them."""

    def __init__(
        self,
        path: str,
        role: Role,
        index: Index,
        start: ScanPosition,
        until: int | None = None,
        ahead_from: int = NEVER,
        *,
        is_witness: bool = False,
        begins_at: int | None = None,
    ) -> None:
        """``start`` is the position of the first record, ``begins_at`` where that is in a segment with a header. From
        the byte ``ahead_from`` on, entries may name records that were never durable. ``is_witness``: the sidecar knows
        nothing of the segment: only the index can tell that other records took the place of its own."""
        self.path = path
        self._start, self._end, self._ahead_from = start, start, ahead_from
        self._is_witness = is_witness
        self._begins_at = start.position if begins_at is None else begins_at
        self._ends_in_damage = False
        self.role = role
        self.index = index
        self._row = self._more_wrong = 0
        self._end_offset = -1
        self._wrong: list[int] = []
        self._out_of_order: set[int] = set()
        """Wrong entries that name a record, but not one after that of the entry before."""
        self._differs: list[tuple[int, str, int, int]] = []
        self._lacks: list[tuple[int, int]] = []
        """Records without an entry although a later one has an entry: the row of that entry, the record's offset."""
        self._until = until
        """The end of the records that are checked: a writer may append more, to its index as well."""
        self._damaged: list[tuple[int, int]] = [] if until is None else [(until, 2**62)]
        self._reached = -1
        """The position that the last right entry names: the next one must be greater."""
        self._seen = 0
        self._before = -1
        self._places: list[Places] = []
        self._earlier = np.empty(0, np.int64), np.empty(0, np.int64)
        """Positions and first offsets of the batches after the last right entry's, if entries name last offsets."""

    def beginning_at(self, offset: int) -> IndexChecker:
        """Return a new checker that ignores the entries before ``offset``."""
        checker = IndexChecker(
            self.path, self.role, self.index, self._start, self._until, self._ahead_from,
            is_witness=self._is_witness, begins_at=self._begins_at,
        )  # fmt: skip
        if offset > 0:
            checker._row = bisect_left(self.index.offsets, offset)  # numpy's own search would copy the column
        return checker

    @property
    def is_right(self) -> bool:
        """Whether every entry so far was right, and none was missing."""
        return not self._wrong and not self._differs and not self._lacks

    def is_right_up_to(self, offset: int) -> bool:
        """Whether every entry up to ``offset`` was compared and right."""
        return self.is_right and self._row == bisect_right(self.index.offsets, offset)

    @property
    def walked(self) -> Walked:
        """Which of the records seen so far have an entry."""
        return Walked(self._seen, self._before, self._places)

    def add(self, rows: Rows) -> None:
        count = len(rows.columns)
        if not count:
            return
        self._end = rows.cursor
        if self.index.names_last:
            self._add_by_last(rows)
            return
        offsets = rows.columns.first_offsets.view(np.uint64)
        self._end_offset = int(offsets[-1])
        if self.index.dense and self._is_straight(offsets, rows.columns):
            self._row += count
            self._reached = int(rows.columns.position[-1])
        else:
            self._look_up(offsets, rows)
        self._seen += count
        self._before = int(rows.columns.position[-1])

    def _add_by_last(self, rows: Rows) -> None:
        """`add` for an index whose entries name the last offset of a batch. A broker may write batches together, with
        one entry: the position of the first, and the last offset of the last."""
        columns, lasts = rows.columns, rows.columns.last_offsets.view(np.uint64)
        self._end_offset = int(lasts[-1])
        starts, firsts = (
            np.concatenate((earlier, now))[-self.MOST_KEPT * 10 :]
            for earlier, now in zip(self._earlier, (columns.position, columns.first_offsets), strict=True)
        )
        while self._row < len(self.index):
            entries, is_done = self._up_to(self._end_offset, self._row + _STEP_ENTRIES)
            here = slice(self._row, self._row + len(entries))
            if len(entries) and self.index.positions is None:
                at = np.searchsorted(lasts, entries)
                self._judge(columns.first_offsets[at].view(np.uint64) <= entries)
                self._find_differences(np.ones(len(entries), np.bool_), at, columns, here)
            elif len(entries):
                wanted = self.index.positions[here].astype(np.int64)  # type: ignore[index]
                at = np.minimum(np.searchsorted(starts, wanted), len(starts) - 1)
                named = (starts[at] == wanted) & (firsts[at].view(np.uint64) <= entries)
                named &= np.diff(wanted, prepend=self._reached) > 0
                self._judge(named)
                self._reached = max(self._reached, int(np.where(named, wanted, -1).max()))
            self._row = here.stop
            if is_done:
                break
        after = starts > self._reached
        self._earlier = starts[after], firsts[after]
        self._seen += len(columns)
        self._before = int(columns.position[-1])

    def _judge(self, named: npt.NDArray[np.bool_]) -> None:
        """Remember the entries from the next one on that name nothing."""
        wrong = np.flatnonzero(~named)
        room = max(self.MOST_KEPT - len(self._wrong), 0)
        self._more_wrong += max(len(wrong) - room, 0)
        self._wrong += [self._row + int(row) for row in wrong[:room]]

    def _is_straight(self, offsets: npt.NDArray[np.uint64], columns: Columns) -> bool:
        """Whether every row has its entry, in sequence, as almost always."""
        here = slice(self._row, self._row + len(offsets))
        if here.stop > len(self.index) or not np.array_equal(self.index.offsets[here], offsets):
            return False
        assert self.index.positions is not None
        if not np.array_equal(self.index.positions[here], columns.position.view(np.uint64)):
            return False
        return all(
            np.array_equal(stored[here].astype(held.dtype, copy=False), held)
            for name, stored in self.index.repeats.items()
            if (held := getattr(columns, name)) is not None
        )

    def _look_up(self, offsets: npt.NDArray[np.uint64], rows: Rows) -> None:
        end, known, began = int(offsets[-1]), len(self.index), self._row
        while self._row < known:
            # As many as can match a sound index; in large steps otherwise, as a foreign index may hold millions.
            entries, is_done = self._up_to(end, self._row + max(len(offsets) + 1, _STEP_ENTRIES))
            self._compare(entries, offsets, rows)
            self._row += len(entries)
            if is_done:
                break
        if self.index.dense and began < known:
            self._check_complete(offsets, began)

    def _check_complete(self, offsets: npt.NDArray[np.uint64], began: int) -> None:
        """Find rows without an entry before one that has an entry: the end of an index may lag."""
        entries = self.index.offsets[began : self._row].astype(np.uint64)
        lacking = ~np.isin(offsets, entries)
        if self._row == len(self.index):
            lacking &= offsets < entries.max(initial=0)
        for offset in offsets[lacking][: 1 + self.MOST].tolist():
            self._lacks.append((began + int(np.searchsorted(entries, offset)), offset))

    def _up_to(self, end: int, stop: int) -> tuple[npt.NDArray[np.uint64], bool]:
        """Return the entries from the next one on, up to the first whose offset is greater than ``end``, but none from
        row ``stop`` on; and whether such an entry was found."""
        stop = min(stop, len(self.index))
        guess = bisect_right(self.index.offsets, end, self._row, stop)
        entries = self.index.offsets[self._row : guess].astype(np.uint64, copy=False)
        if not len(entries) or entries.max() <= end:
            return entries, guess < stop
        ahead = entries > np.uint64(end)  # out of order
        return entries[: int(ahead.argmax())], True

    def _compare(self, entries: npt.NDArray[np.uint64], offsets: npt.NDArray[np.uint64], step: Rows) -> None:
        """Check that offset and position of each entry name a record, after that of the entry before. If the entry
        repeats other fields of the record, a difference means that one of the two is damaged."""
        if not len(entries):
            return
        columns, here = step.columns, slice(self._row, self._row + len(entries))
        if self.index.positions is None:
            rows, named = _rows_of(entries, offsets)
        else:
            starts, wanted = columns.position.view(np.uint64), self.index.positions[here].astype(np.uint64)
            rows, named = _rows_of(entries, offsets)
            if self.index.dense:  # two chunks may have the same offset, but not the same position
                rows = np.minimum(np.searchsorted(starts, wanted), len(starts) - 1)
                named = offsets[rows] == entries
            named &= starts[rows] == wanted
        places = columns.position[rows]
        highest = np.maximum.accumulate(np.where(named, places, -1))
        ascending = places > np.append(self._reached, np.maximum(highest[:-1], self._reached))
        self._reached = max(self._reached, int(highest[-1]))
        if not ascending.all():
            room = max(self.MOST_KEPT - len(self._out_of_order), 0)
            self._out_of_order |= {self._row + int(row) for row in np.flatnonzero(named & ~ascending)[:room]}
            named &= ascending
        if not named.all():
            self._judge(named)
        self._find_differences(named, rows, columns, here)
        if not self.index.dense and not self._wrong:  # otherwise the index is rebuilt anyway
            self._keep_places(np.arange(len(offsets)) if isinstance(rows, slice) else rows, step)

    def _find_differences(self, named: npt.NDArray[np.bool_], rows: RowNumbers, columns: Columns, here: slice) -> None:
        """Compare what the entries repeat of their records."""
        for name, stored in self.index.repeats.items():
            held = getattr(columns, name)[rows]
            differs = named & (held != stored[here].astype(held.dtype))
            if differs.any():
                for row in np.flatnonzero(differs).tolist():
                    self._differs.append((self._row + row, name, int(held[row]), int(stored[here][row])))

    def _keep_places(self, rows: npt.NDArray[np.intp], step: Rows) -> None:
        starts, last = step.columns.position, len(step.columns) - 1
        ends = np.where(rows < last, starts[np.minimum(rows + 1, last)], step.end.position)
        befores = np.where(rows > 0, starts[rows - 1], self._before)
        self._places.append(Places(self._seen + rows, starts[rows], ends, befores))

    def forgive(self, end: SegmentEnd) -> None:
        """Excuse entries that point into a damaged range."""
        is_replaced = self._is_witness and self.index.dense and end.stop == Stop.BAD_ORDER and end.goes_on_at is None
        self._ends_in_damage = end.ending in (EndKind.DAMAGE, EndKind.UNKNOWN_VERSION) and not is_replaced
        if end.ending != EndKind.CLEAN:
            self._damaged.append((end.position, 2**62 if end.goes_on_at is None else end.goes_on_at))

    def _is_wrong(self, row: int) -> bool:
        if self.index.positions is None:
            return not self._damaged
        position = int(self.index.positions[row])
        return not any(start <= position < stop for start, stop in self._damaged)

    def _is_ahead(self, row: int) -> bool:
        """Whether the entry names a record that was not durable: it may be older than the record at that place."""
        return self.index.positions is not None and int(self.index.positions[row]) >= self._ahead_from

    def _position(self, row: int) -> int:
        return self.index.start + row * self.index.entry_bytes

    def _lost(self) -> tuple[int, int] | None:
        """Return the range of offsets that an intact index names after the last record: those records existed. Entries
        that do not continue the records prove nothing."""
        row, following = self._row, self._end.previous_offset + 1
        if row >= len(self.index) or self._until is not None or self._wrong or self._ends_in_damage:
            return None
        if not (self.index.in_order(row) and self._continues(int(self.index.offsets[row]), following)):
            return None
        return following, int(self.index.offsets[-1])

    def _continues(self, offset: int, following: int) -> bool:
        """Whether the next entry, which has ``offset``, may name a record after the last one."""
        if self.index.positions is None:  # Keratin's time index has the entries of its offset index
            return self.index.names_last and self._ahead_from == NEVER and offset >= following
        position, end = int(self.index.positions[self._row]), self._end.position or self._begins_at
        if position >= self._ahead_from:
            return False
        return (position, offset) == (end, following) if self.index.dense else position >= end and offset >= following

    def _replaced(self) -> int | None:
        """Return the first entry from which on an intact index names other records than the segment holds. The index is
        intact if it is in order from the first byte on; few wrong entries in it are its own damage."""
        index, positions = self.index, self.index.positions
        if not self._is_witness or not index.dense or positions is None or self._until is not None:
            return None
        differs = [] if index.records_win else sorted({row for row, *_ in self._differs})
        if not self._wrong and not differs:
            return None
        first = min([*self._wrong[:1], *differs[:1]])
        wrong = len(self._wrong) + self._more_wrong + len(differs) + len(index) - self._row
        if wrong < 2 or 2 * wrong <= len(index) - first or int(positions[0]) != self._start.position:
            return None
        if int(index.offsets[0]) != self._start.previous_offset + 1 or (positions[1:] <= positions[:-1]).any():
            return None
        if (index.offsets[1:] <= index.offsets[:-1]).any() or (not differs and (np.diff(index.offsets) != 1).any()):
            return None
        return first

    def finish(self) -> Iterator[Finding]:
        """Yield what was found; all records were added."""
        yield from self.lost_records()
        yield from self._replaced_records()
        beyond = sum(self._is_wrong(row) for row in range(self._row, min(len(self.index), self._row + 1000)))
        self._wrong = [row for row in self._wrong if self._is_wrong(row)]
        for row in self._wrong[: self.MOST]:
            what = "is out of order" if row in self._out_of_order else "names no record at that position"
            message = f"entry {row} (offset {int(self.index.offsets[row])}) {what}"
            yield self._warning("wrong-index-entry", message, self._position(row))
        yield from self._differences()
        more = len(self._wrong) + self._more_wrong - self.MOST
        if more > 0:
            yield self._warning("wrong-index-entry", counted(more, "more entry is wrong", "more entries are wrong"))
        if beyond:
            message = "its last entries are after the last record, or out of order"
            yield self._warning("index-past-end", message, self._position(self._row))
        if self._lacks and not self._wrong and not beyond:
            yield index_gap(self.path, self.index, *self._lacks[0])
        yield from self._unread()

    def _warning(self, code: str, message: str, position: int | None = None) -> Finding:
        return Finding(code, Severity.WARNING, self.path, message, REINDEX, position)

    def lost_records(self) -> Iterator[Finding]:
        """Yield the finding of records that the index proves to have existed; their entries are not wrong."""
        lost = self._lost()
        if lost is None:
            return
        count = counted(len(self.index) - self._row, "record or chunk", "records or chunks")
        message = f"the index names {count} after the end of the segment: they existed, and are missing"
        action = "restore the segment from a copy; `duramen repair` continues without them"
        yield Finding("records-lost", Severity.DAMAGE, self.path, message, action, self._position(self._row), *lost)
        self._row = len(self.index)

    def _replaced_records(self) -> Iterator[Finding]:
        """Yield the finding that other records took the place of those that the index names."""
        row = self._replaced()
        if row is None:
            return
        lost = int(self.index.offsets[row]), int(self.index.offsets[-1])
        count = counted(lost[1] - lost[0] + 1, "record")
        message = f"the index names {count} that the segment does not hold: other records took their place"
        action = "restore the segment from a copy; if its records are right, `duramen reindex` rebuilds the index"
        yield Finding("records-replaced", Severity.DAMAGE, self.path, message, action, self._position(row), *lost)
        self._wrong, self._more_wrong, self._row, self._differs = [], 0, len(self.index), []

    def _differences(self) -> Iterator[Finding]:
        """Yield findings of entries that repeat a field of their record with another value."""
        code, severity, action, verdict = "wrong-index-entry", Severity.WARNING, REINDEX, ""
        if not self.index.records_win:
            code, severity, verdict = "index-disagrees", Severity.DAMAGE, ": one of the two is damaged"
            action = "compare with a copy; if the record is right, `duramen reindex` rebuilds the index"
        differs = [one for one in self._differs if not self._is_ahead(one[0])]
        for row, name, held, stored in differs[: self.MOST]:
            message = f"entry {row} says {name} {stored}, the record says {held}{verdict}"
            place = self._position(row), int(self.index.offsets[row])
            yield Finding(code, severity, self.path, message, action, *place)
        more = len(differs) - self.MOST
        if more > 0:
            message = counted(more, "more entry differs from its record", "more entries differ from their records")
            yield Finding(code, severity, self.path, message, action)

    def _unread(self) -> Iterator[Finding]:
        """Yield notes about bytes of the index that are not entries, or too many to read."""
        if self.index.unread_bytes:
            follow = counted(self.index.unread_bytes, "byte follows", "bytes follow")
            message = f"only the first {self._position(len(self.index))} bytes of an index are read; {follow}"
            action = "nothing: a reader scans the records instead"
            yield Finding("index-not-checked", Severity.NOTE, self.path, message, action)
        if self.index.rest_bytes and self._until is None:  # a writer may be about to write the rest
            message = f"{counted(self.index.rest_bytes, 'byte')} after the last whole entry"
            yield Finding("torn-index-entry", Severity.NOTE, self.path, message, REINDEX)


def index_gap(path: str, index: Index, row: int, first_offset: int | None = None) -> Finding:
    """Return the finding that entries are missing before entry ``row``."""
    before = "before the first one" if not row else f"after that of offset {int(index.offsets[row - 1])}"
    if first_offset is None:
        first_offset = int(index.offsets[row - 1]) + 1 if row else None
    return Finding(
        "index-gap", Severity.WARNING, path, f"one or more entries are missing {before}", REINDEX,
        index.start + row * index.entry_bytes, first_offset,
        int(index.offsets[row]) - 1 if row < len(index) and first_offset is not None else None,
    )  # fmt: skip


class Walked(NamedTuple):
    """Number of records that were scanned, the start of the last one, and the places of those that an index names."""

    records: int
    last_start: int
    places: Sequence[Places]


def all_places(parts: Sequence[Walked]) -> Places | None:
    """Join the places of all entries of an index, from the scans of all ranges of a segment, in order."""
    seen, before, found = 0, -1, []
    for part in parts:
        for places in part.places:
            befores = np.where(places.befores < 0, before, places.befores)
            found.append(places._replace(numbers=places.numbers + seen, befores=befores))
        seen, before = seen + part.records, part.last_start
    return Places.joined(found) if found else None


def short_indexes(fmt: Format, segment: Segment, indexes: Mapping[Role, Index]) -> Iterator[Role]:
    """Yield the indexes that lack entries at their end; the entries that exist are right. A time index has the same
    entries as the offset index."""
    index, times = indexes.get(Role.INDEX), indexes.get(Role.TIME_INDEX)
    if index is None:
        return
    if fmt.ends_early(index, segment):
        yield Role.INDEX
    if times is None or times.names_last:
        return
    if len(times) < len(index) and np.array_equal(times.offsets, index.offsets[: len(times)]):
        yield Role.TIME_INDEX


def gaps(
    fmt: Format, segment: Segment, indexes: Mapping[Role, Index], walked: Mapping[Role, Sequence[Walked]]
) -> Iterator[tuple[Role, int]]:
    """Yield the sparse indexes that lack an entry before another one, with the row of that one. For a dense index,
    `IndexChecker` finds the gap itself."""
    index, times = indexes.get(Role.INDEX), indexes.get(Role.TIME_INDEX)
    if index is None or index.names_last:
        return
    places = all_places(walked.get(Role.INDEX, ()))
    row = None if places is None else fmt.skips_entries(places, segment.start.position)
    if row is not None:
        yield Role.INDEX, row
    elif times is not None and (row := _gap_beside(times, index)) is not None:
        yield Role.TIME_INDEX, row
    elif times is not None and (row := _gap_beside(index, times)) is not None:
        yield Role.INDEX, row


def _gap_beside(index: Index, other: Index) -> int | None:
    """Return the first row before which an entry is missing that the other index of the same records has. If most are
    missing, the writer of the index had another rule, and nothing is missing."""
    until = int(index.offsets[-1]) if len(index) else -1
    expected = other.offsets[: bisect_right(other.offsets, until)]
    if len(expected) <= len(index) or 2 * len(index) < len(expected) or not np.isin(index.offsets, expected).all():
        return None
    return int(np.argmax(index.offsets != expected[: len(index)]))


def _rows_of(
    entries: npt.NDArray[np.uint64], offsets: npt.NDArray[np.uint64]
) -> tuple[slice | npt.NDArray[np.intp], npt.NDArray[np.bool_]]:
    """Return the row of each entry's offset, and whether the row really has it. ``offsets`` ascend, and no entry is
    greater than the last of them."""
    if np.array_equal(entries, offsets):
        return slice(None), np.ones(len(entries), np.bool_)
    first = offsets[0]
    if int(offsets[-1]) - int(first) + 1 == len(offsets) and entries.min() >= first:  # none is left out
        return (entries - first).astype(np.intp), np.ones(len(entries), np.bool_)
    rows = np.minimum(np.searchsorted(offsets, entries), len(offsets) - 1)
    return rows, offsets[rows] == entries
