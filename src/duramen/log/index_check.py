"""An index held against the records of its segment as they go by: every entry must name a record, at its position.

Works on whole steps of a scan. An index of every record is compared as it lies, one of some records by arithmetic; only
where offsets are missing, or entries wrong, each is looked up. Says nothing of the records themselves.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt

from duramen.formats import Format
from duramen.formats.base import Role, Rows, Segment, Severity
from duramen.formats.index import Index
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

    def __init__(self, path: str, role: Role, index: Index) -> None:
        self.path = path
        self.role = role
        self._index = index
        self._row = 0
        self._wrong: list[int] = []
        self._differs: list[tuple[int, str, int, int]] = []
        self._damaged: list[tuple[int, int]] = []
        self._end_offset = -1

    def beginning_at(self, offset: int) -> IndexChecker:
        """A new one that leaves out the entries before ``offset``: another one has them."""
        checker = IndexChecker(self.path, self.role, self._index)
        if offset > 0:
            checker._row = bisect_left(self._index.offsets, offset)  # numpy's own search would copy the column
        return checker

    @property
    def is_right(self) -> bool:
        """Whether every entry that went by was right."""
        return not self._wrong and not self._differs

    def is_right_up_to(self, offset: int) -> bool:
        """Whether every entry up to ``offset`` went by and was right."""
        return self.is_right and self._row == bisect_right(self._index.offsets, offset)

    def add(self, rows: Rows) -> None:
        if not len(rows.columns):
            return
        offsets = rows.columns.first_offsets.view(np.uint64)
        end, known = int(offsets[-1]), len(self._index)
        self._end_offset = end
        while self._row < known:
            entries, is_done = self._up_to(end, self._row + len(offsets) + 1)  # as many as can fit, if all is well
            self._compare(entries, offsets, rows.columns)
            self._row += len(entries)
            if is_done:
                return

    def _up_to(self, end: int, stop: int) -> tuple[npt.NDArray[np.uint64], bool]:
        """The entries from the next one to the first that lies behind the offset ``end``, but not those from ``stop``
        on; and whether there was one behind it."""
        stop = min(stop, len(self._index))
        guess = bisect_right(self._index.offsets, end, self._row, stop)
        entries = self._index.offsets[self._row : guess].astype(np.uint64, copy=False)
        if not len(entries) or entries.max() <= end:
            return entries, guess < stop
        ahead = entries > np.uint64(end)  # out of order
        return entries[: int(ahead.argmax())], True

    def _compare(self, entries: npt.NDArray[np.uint64], offsets: npt.NDArray[np.uint64], columns: Columns) -> None:
        """Offset and position name a record, or the entry is wrong. If they do, and the entry repeats other fields
        of that record, a difference there means that one of the two is damaged."""
        if not len(entries):
            return
        here = slice(self._row, self._row + len(entries))
        rows, named = _rows_of(entries, offsets)
        if self._index.positions is not None:
            named &= columns.position[rows].view(np.uint64) == self._index.positions[here].astype(np.uint64)
        if not named.all():
            self._wrong += [self._row + int(row) for row in np.flatnonzero(~named)]
        for name, stored in self._index.repeats.items():
            held = getattr(columns, name)[rows]
            differs = named & (held != stored[here].astype(held.dtype))
            if differs.any():
                for row in np.flatnonzero(differs).tolist():
                    self._differs.append((self._row + row, name, int(held[row]), int(stored[here][row])))

    def forgive(self, end: End) -> None:
        """Entries that point into a damaged range are not to blame for it."""
        if end.ending != Ending.CLEAN:
            self._damaged.append((end.position, 2**62 if end.goes_on_at is None else end.goes_on_at))

    def _is_to_blame(self, row: int) -> bool:
        if self._index.positions is None:
            return not self._damaged
        position = int(self._index.positions[row])
        return not any(start <= position < stop for start, stop in self._damaged)

    def _position(self, row: int) -> int:
        return self._index.start + row * self._index.entry_bytes

    def finish(self, findings: Findings) -> None:
        beyond = sum(self._is_to_blame(row) for row in range(self._row, min(len(self._index), self._row + 1000)))
        self._wrong = [row for row in self._wrong if self._is_to_blame(row)]
        for row in self._wrong[: self.MOST]:
            findings.find(
                "wrong-index-entry", Severity.WARNING, self.path,
                f"entry {row} (offset {int(self._index.offsets[row])}) names no record at that position", REINDEX,
                position=self._position(row),
            )  # fmt: skip
        wins = self._index.records_win
        code, severity = ("wrong-index-entry", Severity.WARNING) if wins else ("index-disagrees", Severity.DAMAGE)
        action = (
            REINDEX if wins else "compare with a copy; if the record is right, `duramen reindex` makes the index anew"
        )
        verdict = "" if wins else ": one of the two is damaged"
        for row, name, held, stored in self._differs[: self.MOST]:
            findings.find(
                code, severity, self.path, f"entry {row} says {name} {stored}, the record says {held}{verdict}", action,
                position=self._position(row), first_offset=int(self._index.offsets[row]),
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
                counted(len(self._wrong) - self.MOST, "more entry names no record", "more entries name no record"),
                REINDEX,
            )  # fmt: skip
        if beyond:
            findings.find(
                "index-past-end", Severity.WARNING, self.path,
                "its last entries lie behind the last record, or are out of order", REINDEX,
                position=self._position(self._row),
            )  # fmt: skip
        if self._index.rest_bytes:
            findings.find(
                "torn-index-entry", Severity.NOTE, self.path,
                f"{counted(self._index.rest_bytes, 'byte')} behind the last whole entry", REINDEX,
            )  # fmt: skip


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
