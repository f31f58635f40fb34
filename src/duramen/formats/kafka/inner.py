"""Where the records of a segment go on after damage.

A compressed message of format 1 whose codec could not shorten its blocks holds whole messages as they are. After damage
to its header they look like records of the log, but their offsets count from the first of them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from duramen.formats.kafka.message_set import MESSAGE
from duramen.formats.segment import ScanPosition, Segment
from duramen.kernel import CODEC, BatchColumns, Stop

_LEAST_BYTES = 26
"""No message is shorter."""
_LEAST_SIZE = _LEAST_BYTES - MESSAGE[0].at("crc")
_MOST_INSIDE = 1 << 20
"""A greater offset is taken for one of the log."""


class _Run(NamedTuple):
    """Adjacent messages that are not compressed, with consecutive offsets."""

    end: int
    first: int
    last: int

    def may_lead_to(self, offset: int, position: int) -> bool:
        """Whether the bytes up to ``position`` have room for the messages in between."""
        missing = offset - self.last - 1
        return 0 <= missing * _LEAST_BYTES <= position - self.end


class DamagedStretch:
    """The bytes from ``cursor`` on, where an entry begins that is not valid. ``last`` is the offset before it."""

    def __init__(self, segment: Segment, cursor: ScanPosition, last: int) -> None:
        self._segment, self._cursor, self._last = segment, cursor, last
        self._inner: _Run | None = None
        """The last run that lies inside of another message."""

    def end(self) -> int:
        """Where the next record of the log starts; negative as `Segment.resync`."""
        found = self._segment.resync(self._cursor)
        while found >= 0:
            first = self._first_at(found)
            if first is None or not self._is_inside(first, found):
                return found
            self._inner = self._run_at(found, first)
            found = self._following(self._inner)
        return found

    def _is_inside(self, first: int, position: int) -> bool:
        """Whether the message there, with that offset, lies inside of another one."""
        if first <= self._last:
            return True
        if self._inner is not None and self._inner.may_lead_to(first, position):
            return True
        if first > _MOST_INSIDE or (self._inner is None and not self._may_count(first, position)):
            return False
        return not self._leads_on(self._run_at(position, first))

    def _may_count(self, first: int, position: int) -> bool:
        """Whether the offset may count from the first message of a compressed one, because the damage is more than
        messages that are not compressed and end where this one starts."""
        damaged = self._cursor.position
        if first * _LEAST_BYTES > position - damaged:
            return False
        while damaged < position:
            head = MESSAGE[0].unpack(self._segment.buf, damaged)
            size = int(head["size"])
            if int(head["magic"]) not in (0, 1) or int(head["attributes"]) & CODEC or size < _LEAST_SIZE:
                return True
            damaged += MESSAGE[0].at("crc") + size
        return damaged != position

    def _leads_on(self, run: _Run) -> bool:
        """Whether the offsets go on up to a batch or a compressed message, or up to the end of the file."""
        while True:
            following = self._following(run)
            if following < 0:
                return run.end == len(self._segment.buf)
            rows = self._segment.scan(ScanPosition(following, -1), max_records=1)
            if not run.may_lead_to(int(rows.columns.first_offsets[0]), following):
                return False
            first = self._first_at(following)
            if first is None:
                return True
            run = self._run_at(following, first)

    def _following(self, run: _Run) -> int:
        """Where a valid entry follows the run."""
        if len(self._segment.scan(ScanPosition(run.end, -1), max_records=1).columns):
            return run.end
        return self._segment.resync(ScanPosition(run.end, self._cursor.previous_offset))

    def _first_at(self, position: int) -> int | None:
        """The offset of the message there; None where a batch or a compressed message is."""
        columns = self._segment.scan(ScanPosition(position, -1), max_records=1).columns
        assert isinstance(columns, BatchColumns)
        return int(columns.base_offset[0]) if len(columns) and _is_plain(columns)[0] else None

    def _run_at(self, position: int, first: int) -> _Run:
        """The run that starts there."""
        cursor, following = ScanPosition(position, first - 1), first
        while True:
            rows = self._segment.scan(cursor)
            columns = rows.columns
            assert isinstance(columns, BatchColumns)
            fits = _is_plain(columns) & (columns.base_offset == following + np.arange(len(columns)))
            count = len(columns) if fits.all() else int(fits.argmin())
            following += count
            if count < len(columns):
                return _Run(int(columns.position[count]), first, following - 1)
            if not count or rows.stop != Stop.LIMIT:
                return _Run(rows.end.position, first, following - 1)
            cursor = rows.cursor


def _is_plain(columns: BatchColumns) -> npt.NDArray[np.bool_]:
    """Which of them are messages of the older formats that wrap no others."""
    return (columns.magic < 2) & (columns.attributes & CODEC == 0)
