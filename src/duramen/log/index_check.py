"""An index held against the records of its segment as they go by: every entry must name a record, at its position, in
order; and every record that should have an entry must have one.

Works on whole steps of a scan. An index of every record is compared as it lies, one of some records by arithmetic; only
where offsets are missing, or entries wrong, each is looked up. Says nothing of the records themselves.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from duramen.formats import Format
from duramen.formats.base import Role, Rows, Segment, Severity
from duramen.formats.index import Index, Places
from duramen.kernel.layout import Columns
from duramen.log.ending import End, Ending
from duramen.log.report import counted

REINDEX = "nothing is lost: `duramen reindex` makes it anew from the records"


class Findings(Protocol):
    """Who is told."""

    def find(
        self,
        code: str,
        severity: Severity,
        path: str,
        message: str,
        action: str,
        *,
        position: int | None = None,
        first_offset: int | None = None,
        last_offset: int | None = None,
    ) -> None: ...


class IndexChecker:
    """Holds an index against the records as they go by: every entry must name a record's offset and position."""

    MOST = 3
    """Wrong entries that are listed one by one; the rest are counted."""

    def __init__(self, path: str, role: Role, index: Index, until: int | None = None) -> None:
        self.path = path
        self.role = role
        self.index = index
        self._row = 0
        self._wrong: list[int] = []
        self._astray: set[int] = set()
        """Those of the wrong ones that name a record, but not behind that of the entry before."""
        self._differs: list[tuple[int, str, int, int]] = []
        self._lacks: list[tuple[int, int]] = []
        """Records without an entry, though later ones have one: the entry behind, and the record's offset."""
        self._until = until
        """Where the records end that are looked at: a writer goes on behind, and so does its index."""
        self._damaged: list[tuple[int, int]] = [] if until is None else [(until, 2**62)]
        self._end_offset = -1
        self._reached = -1
        """Where the last entry pointed that was right: the next one must lie behind it."""
        self._seen = 0
        self._before = -1
        self._places: list[Places] = []

    def beginning_at(self, offset: int) -> IndexChecker:
        """A new one that leaves out the entries before ``offset``: another one has them."""
        checker = IndexChecker(self.path, self.role, self.index, self._until)
        if offset > 0:
            checker._row = bisect_left(self.index.offsets, offset)  # numpy's own search would copy the column
        return checker

    @property
    def is_right(self) -> bool:
        """Whether every entry that went by was right, and none was missing."""
        return not self._wrong and not self._differs and not self._lacks

    def is_right_up_to(self, offset: int) -> bool:
        """Whether every entry up to ``offset`` went by and was right."""
        return self.is_right and self._row == bisect_right(self.index.offsets, offset)

    @property
    def walked(self) -> Walked:
        """Which of the records that went by have an entry, for whoever has only some of them."""
        return Walked(self._seen, self._before, self._places)

    def add(self, rows: Rows) -> None:
        count = len(rows.columns)
        if not count:
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

    def _is_straight(self, offsets: npt.NDArray[np.uint64], columns: Columns) -> bool:
        """Whether every row has its entry, one behind another, as almost always."""
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
            entries, is_done = self._up_to(end, self._row + len(offsets) + 1)  # as many as can fit, if all is well
            self._compare(entries, offsets, rows)
            self._row += len(entries)
            if is_done:
                break
        if self.index.dense and began < known:
            self._check_all_there(offsets, began)

    def _check_all_there(self, offsets: npt.NDArray[np.uint64], began: int) -> None:
        """Rows without an entry that lie before one that has one: the end of an index may lag behind."""
        entries = self.index.offsets[began : self._row].astype(np.uint64)
        lacking = ~np.isin(offsets, entries)
        if self._row == len(self.index):
            lacking &= offsets < entries.max(initial=0)
        for offset in offsets[lacking][: 1 + self.MOST].tolist():
            self._lacks.append((began + int(np.searchsorted(entries, offset)), offset))

    def _up_to(self, end: int, stop: int) -> tuple[npt.NDArray[np.uint64], bool]:
        """The entries from the next one to the first that lies behind the offset ``end``, but not those from ``stop``
        on; and whether there was one behind it."""
        stop = min(stop, len(self.index))
        guess = bisect_right(self.index.offsets, end, self._row, stop)
        entries = self.index.offsets[self._row : guess].astype(np.uint64, copy=False)
        if not len(entries) or entries.max() <= end:
            return entries, guess < stop
        ahead = entries > np.uint64(end)  # out of order
        return entries[: int(ahead.argmax())], True

    def _compare(self, entries: npt.NDArray[np.uint64], offsets: npt.NDArray[np.uint64], step: Rows) -> None:
        """Offset and position name a record, behind that of the entry before, or the entry is wrong. If they do, and
        the entry repeats other fields of that record, a difference there means that one of the two is damaged."""
        if not len(entries):
            return
        columns, here = step.columns, slice(self._row, self._row + len(entries))
        if self.index.positions is None:
            rows, named = _rows_of(entries, offsets)
        else:
            starts, wanted = columns.position.view(np.uint64), self.index.positions[here].astype(np.uint64)
            rows, named = _rows_of(entries, offsets)
            if self.index.dense:  # two chunks may have the same offset, but not the same place
                rows = np.minimum(np.searchsorted(starts, wanted), len(starts) - 1)
                named = offsets[rows] == entries
            named &= starts[rows] == wanted
        places = columns.position[rows]
        highest = np.maximum.accumulate(np.where(named, places, -1))
        behind = places > np.append(self._reached, np.maximum(highest[:-1], self._reached))
        self._reached = max(self._reached, int(highest[-1]))
        if not behind.all():
            self._astray |= {self._row + int(row) for row in np.flatnonzero(named & ~behind)}
            named &= behind
        if not named.all():
            self._wrong += [self._row + int(row) for row in np.flatnonzero(~named)]
        for name, stored in self.index.repeats.items():
            held = getattr(columns, name)[rows]
            differs = named & (held != stored[here].astype(held.dtype))
            if differs.any():
                for row in np.flatnonzero(differs).tolist():
                    self._differs.append((self._row + row, name, int(held[row]), int(stored[here][row])))
        if not self.index.dense:
            self._keep_places(np.arange(len(offsets)) if isinstance(rows, slice) else rows, step)

    def _keep_places(self, rows: npt.NDArray[np.intp], step: Rows) -> None:
        starts, last = step.columns.position, len(step.columns) - 1
        ends = np.where(rows < last, starts[np.minimum(rows + 1, last)], step.end.position)
        befores = np.where(rows > 0, starts[rows - 1], self._before)
        self._places.append(Places(self._seen + rows, starts[rows], ends, befores))

    def forgive(self, end: End) -> None:
        """Entries that point into a damaged range are not to blame for it."""
        if end.ending != Ending.CLEAN:
            self._damaged.append((end.position, 2**62 if end.goes_on_at is None else end.goes_on_at))

    def _is_to_blame(self, row: int) -> bool:
        if self.index.positions is None:
            return not self._damaged
        position = int(self.index.positions[row])
        return not any(start <= position < stop for start, stop in self._damaged)

    def _position(self, row: int) -> int:
        return self.index.start + row * self.index.entry_bytes

    def finish(self, findings: Findings) -> None:
        beyond = sum(self._is_to_blame(row) for row in range(self._row, min(len(self.index), self._row + 1000)))
        self._wrong = [row for row in self._wrong if self._is_to_blame(row)]
        for row in self._wrong[: self.MOST]:
            findings.find(
                "wrong-index-entry", Severity.WARNING, self.path,
                f"entry {row} (offset {int(self.index.offsets[row])}) "
                + ("is out of order" if row in self._astray else "names no record at that position"),
                REINDEX, position=self._position(row),
            )  # fmt: skip
        wins = self.index.records_win
        code, severity = ("wrong-index-entry", Severity.WARNING) if wins else ("index-disagrees", Severity.DAMAGE)
        action = (
            REINDEX if wins else "compare with a copy; if the record is right, `duramen reindex` makes the index anew"
        )
        verdict = "" if wins else ": one of the two is damaged"
        for row, name, held, stored in self._differs[: self.MOST]:
            findings.find(
                code, severity, self.path, f"entry {row} says {name} {stored}, the record says {held}{verdict}", action,
                position=self._position(row), first_offset=int(self.index.offsets[row]),
            )  # fmt: skip
        if len(self._differs) > self.MOST:
            message = counted(
                len(self._differs) - self.MOST, "more entry differs from its record",
                "more entries differ from their records",
            )  # fmt: skip
            findings.find(code, severity, self.path, message, action)
        if len(self._wrong) > self.MOST:
            findings.find(
                "wrong-index-entry", Severity.WARNING, self.path,
                counted(len(self._wrong) - self.MOST, "more entry is wrong", "more entries are wrong"), REINDEX,
            )  # fmt: skip
        if beyond:
            findings.find(
                "index-past-end", Severity.WARNING, self.path,
                "its last entries lie behind the last record, or are out of order", REINDEX,
                position=self._position(self._row),
            )  # fmt: skip
        if self._lacks and not self._wrong and not beyond:
            found_gap(findings, self.path, self.index, *self._lacks[0])
        if self.index.rest_bytes:
            findings.find(
                "torn-index-entry", Severity.NOTE, self.path,
                f"{counted(self.index.rest_bytes, 'byte')} behind the last whole entry", REINDEX,
            )  # fmt: skip


def found_gap(findings: Findings, path: str, index: Index, row: int, first_offset: int | None = None) -> None:
    """Say that entries are missing before that one."""
    before = "before the first one" if not row else f"behind that of offset {int(index.offsets[row - 1])}"
    if first_offset is None:
        first_offset = int(index.offsets[row - 1]) + 1 if row else None
    findings.find(
        "index-gap", Severity.WARNING, path, f"an entry is missing, or more, {before}", REINDEX,
        position=index.start + row * index.entry_bytes, first_offset=first_offset,
        last_offset=int(index.offsets[row]) - 1 if row < len(index) and first_offset is not None else None,
    )  # fmt: skip


class Walked(NamedTuple):
    """How many records went by, where the last one of them starts, and the places of those that an index names."""

    records: int
    last_start: int
    places: Sequence[Places]


def all_places(parts: Sequence[Walked]) -> Places | None:
    """The places of all entries of an index, from the walks over all pieces of a segment, in order."""
    seen, before, found = 0, -1, []
    for part in parts:
        for places in part.places:
            befores = np.where(places.befores < 0, before, places.befores)
            found.append(places._replace(numbers=places.numbers + seen, befores=befores))
        seen, before = seen + part.records, part.last_start
    return Places.joined(found) if found else None


def short_indexes(fmt: Format, segment: Segment, indexes: Mapping[Role, Index]) -> Iterator[Role]:
    """Which of the indexes lack entries at their end, where each is right as far as it goes. One by time has the
    entries of the other one, if it has any at all."""
    index, times = indexes.get(Role.INDEX), indexes.get(Role.TIME_INDEX)
    if index is None:
        return
    if fmt.ends_early(index, segment):
        yield Role.INDEX
    if times is not None and len(times) < len(index) and np.array_equal(times.offsets, index.offsets[: len(times)]):
        yield Role.TIME_INDEX


def gaps(
    fmt: Format, segment: Segment, indexes: Mapping[Role, Index], walked: Mapping[Role, Sequence[Walked]]
) -> Iterator[tuple[Role, int]]:
    """Which of the indexes lack an entry before another one, and before which. Where every record has one, that shows
    as they go by."""
    index, times = indexes.get(Role.INDEX), indexes.get(Role.TIME_INDEX)
    if index is None:
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
    """The first entry of an index before which one is missing that the other index of the same records has. Where it
    lacks most of them, whoever made it had another rule."""
    until = int(index.offsets[-1]) if len(index) else -1
    expected = other.offsets[: bisect_right(other.offsets, until)]
    if len(expected) <= len(index) or 2 * len(index) < len(expected) or not np.isin(index.offsets, expected).all():
        return None
    return int(np.argmax(index.offsets != expected[: len(index)]))


def _rows_of(
    entries: npt.NDArray[np.uint64], offsets: npt.NDArray[np.uint64]
) -> tuple[slice | npt.NDArray[np.intp], npt.NDArray[np.bool_]]:
    """Which row has the offset of each entry, and whether it has it. ``offsets`` only grow, none of the entries lies
    behind them."""
    if np.array_equal(entries, offsets):
        return slice(None), np.ones(len(entries), np.bool_)
    first = offsets[0]
    if int(offsets[-1]) - int(first) + 1 == len(offsets) and entries.min() >= first:  # none is left out
        return (entries - first).astype(np.intp), np.ones(len(entries), np.bool_)
    rows = np.minimum(np.searchsorted(offsets, entries), len(offsets) - 1)
    return rows, offsets[rows] == entries
