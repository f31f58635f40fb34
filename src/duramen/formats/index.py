"""Index files: reading one (`Index`: offset → position, sometimes time → offset) and making one (`IndexBuilder`).

An index is a hint. It may be missing, short, long, stale or wrong. A reader that follows an entry checks what it finds
there, and ignores an index whose entries are out of order (`Index.in_order`), because a binary search in it may land
after the record. Entries are not copied: a look-up reads only those that the binary search touches.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from duramen.formats.segment import Role, Rows, ScanPosition, Segment
from duramen.formats.struct import Block, Buffer, Field, Struct

Column = npt.NDArray[Any]

Picked = tuple[npt.NDArray[Any], ...]
"""What entries are made of, as columns in the order of `IndexBuilder.entries`; empty for no row."""

INDEX_BYTES = 64 << 20
"""How much of an index is read, where its entries are used in place. A scan covers the rest."""
COPIED_INDEX_BYTES = 32 << 20
"""The same for an index whose entries have to be converted."""
LATE_STEPS, LATE_ROWS = 16, 16_384
"""How much an `IndexBuilder` collects before it copies."""
NEAR_BYTES = 1 << 20
"""A distance that is cheaper to walk than to search."""


@dataclass(frozen=True)
class Index:
    """The complete entries of one index file, in file order, as far as they can be read."""

    offsets: Column
    """Logical offsets (already with the base added), unsigned as stored."""
    positions: Column | None
    """Byte positions in the segment; a time index has none."""
    timestamps_us: Column | None = None
    repeats: Mapping[str, Column] = field(default_factory=dict)
    """Other columns that the entries repeat from the records, by the name of the scan's column."""
    start: int = 0
    """Where the first entry lies in the index file."""
    entry_bytes: int = 16
    rest_bytes: int = 0
    """Bytes after the last complete entry: a torn entry."""
    records_win: bool = False
    """The record's checksum covers the repeated columns: where they differ, the index is wrong."""
    unread_bytes: int = 0
    """Bytes beyond the limit, which were not read."""
    names_last: bool = False
    """An entry has the last offset of the batch at its position, or of a later one that was written with it; a time
    index has any offset of the batch."""
    dense: bool = False
    """Whether every record (or chunk) up to the last entry has an entry."""

    def __len__(self) -> int:
        return len(self.offsets)

    def in_order(self, row: int = 0) -> bool:
        """Whether offsets and positions increase with every entry from ``row`` on."""
        growing = (self.offsets, self.positions)
        return all((column[row + 1 :] > column[row:-1]).all() for column in growing if column is not None)

    def times_in_order(self) -> bool:
        """Whether times never decrease."""
        times = self.timestamps_us
        return times is None or bool((times[1:] >= times[:-1]).all())

    def entry(self, row: int) -> tuple[int, int | None]:
        return int(self.offsets[row]), None if self.positions is None else int(self.positions[row])

    def floor(self, offset: int) -> tuple[int, int] | None:
        """The last entry at or below ``offset`` as ``(offset, position)``, if the entries are in order."""
        if self.positions is None:
            return None
        row = bisect_right(self.offsets, offset) - 1
        return None if row < 0 else (int(self.offsets[row]), int(self.positions[row]))

    def floor_time(self, timestamp_us: int) -> int | None:
        """The offset of the last entry that is older than ``timestamp_us``."""
        if self.timestamps_us is None:
            return None
        row = bisect_right(self.timestamps_us, timestamp_us - 1) - 1
        return None if row < 0 else int(self.offsets[row])


class Places(NamedTuple):
    """The records that entries point to: the record's number in the segment, where it starts and ends, and where the
    one before it starts (-1 where that is unknown)."""

    numbers: Column
    starts: Column
    ends: Column
    befores: Column

    @classmethod
    def joined(cls, parts: Sequence[Places]) -> Places:
        return cls(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


class IndexBuilder(ABC):
    """Builds the derived files of one segment from the rows that scans or encoders return.

    Rows are collected a few steps at a time, and entries are encoded when `build` asks for them, so that many small
    steps cost little more than one large one.
    """

    def __init__(self) -> None:
        self._new: dict[Role, bytes] = self.headers()
        self._steps: list[Rows] = []
        self._step_rows = 0
        self._picked: list[Picked] = []

    @abstractmethod
    def headers(self) -> dict[Role, bytes]:
        """The bytes that each file begins with."""

    @abstractmethod
    def pick(self, rows: Rows) -> Picked:
        """What the entries of the next rows need, copied into new arrays."""

    @abstractmethod
    def entries(self, picked: Picked) -> dict[Role, bytes]:
        """The encoded entries."""

    @property
    def progress(self) -> tuple[int, ...]:
        """After `build`: the numbers that `resume` needs to continue from here."""
        return ()

    def ending(self) -> Mapping[Role, bytes]:
        """After `build`: the entries that follow in the files of a segment that will not grow."""
        return {}

    def build_complete(self) -> dict[Role, bytes]:
        """`build` for a segment that will not grow."""
        built, ending = self.build(), self.ending()
        return {role: content + ending.get(role, b"") for role, content in built.items()}

    def resume(self, progress: Sequence[int]) -> None:
        """Continue after another builder, whose files exist."""
        self._new = dict.fromkeys(self._new, b"")

    def add(self, rows: Rows) -> None:
        self._steps.append(rows)
        self._step_rows += rows.count
        if len(self._steps) >= LATE_STEPS or self._step_rows >= LATE_ROWS:
            self._pick_late()

    def _pick_late(self) -> None:
        steps, self._steps, self._step_rows = self._steps, [], 0
        self._picked += filter(None, map(self.pick, steps))

    def build(self) -> dict[Role, bytes]:
        """The bytes of each file that earlier calls have not returned yet."""
        self._pick_late()
        built, self._new = self._new, dict.fromkeys(self._new, b"")
        if self._picked:
            parts, self._picked = self._picked, []
            columns = parts[0] if len(parts) == 1 else tuple(map(_joined, zip(*parts, strict=True)))
            entries = self.entries(columns)
            built = {role: header + entries[role] for role, header in built.items()}
        return built


def _joined(parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Concatenate, keeping the dtype: numpy would otherwise convert the fields of a structure to native byte order."""
    return np.concatenate(parts, dtype=parts[0].dtype)


class NoIndex(IndexBuilder):
    """For a format that computes where a record lies."""

    def headers(self) -> dict[Role, bytes]:
        return {}

    def pick(self, rows: Rows) -> Picked:
        return ()

    def entries(self, picked: Picked) -> dict[Role, bytes]:
        return {}


def position_near(segment: Segment, position: int, index: Index | None) -> ScanPosition | None:
    """Where a record starts at or before ``position``, from the index or proven by a checksum; None where walking from
    the beginning is best."""
    if position - segment.start.position < NEAR_BYTES:
        return None
    if index is not None and index.positions is not None:
        row = int(np.searchsorted(index.positions, position, side="right")) - 1
        if row >= 0:
            cursor = segment.cursor_at(int(index.offsets[row]), int(index.positions[row]))
            if cursor is not None and cursor.position <= position:
                return cursor
    back = NEAR_BYTES // 16
    while segment.record_checksum and position - back > segment.start.position:
        found = segment.resync(ScanPosition(position - back, -1))
        if 0 <= found <= position:
            return ScanPosition(found, -1)
        back *= 8
    return None


def rows_after(index: Index, segment: Segment) -> Rows | None:
    """One scan step from the index's last entry on, or from the first record where the index is empty; None where that
    entry is wrong."""
    cursor: ScanPosition | None = segment.start
    if len(index):
        assert index.positions is not None
        cursor = segment.cursor_at(int(index.offsets[-1]), int(index.positions[-1]))
    return None if cursor is None else segment.scan(cursor, verify=False)


def lacks_a_row(index: Index, segment: Segment) -> bool:
    """`Format.ends_early` for formats in which every row has an entry."""
    rows = rows_after(index, segment)
    return rows is not None and len(rows.columns) > min(len(index), 1)


def bounded(buf: Buffer, limit_bytes: int) -> tuple[memoryview, int]:
    """The first ``limit_bytes`` of an index file, and how many bytes follow."""
    view = memoryview(buf)
    return view[:limit_bytes], max(len(view) - limit_bytes, 0)


def times_us(times_ms: Column) -> npt.NDArray[np.int64]:
    """Milliseconds as microseconds, clipped to 64 bits."""
    most_ms = (2**63 - 1) // 1000
    times = times_ms.astype(np.int64)
    np.clip(times, -most_ms, most_ms, out=times)
    times *= 1000
    return times


def table(buf: Buffer, start: int, dtype: npt.DTypeLike) -> tuple[npt.NDArray[Any], int]:
    """The complete entries from ``start`` on as a structured array over the buffer, and how many bytes remain."""
    view = memoryview(buf)
    size = np.dtype(dtype).itemsize
    count = max(len(view) - start, 0) // size
    rows = np.frombuffer(view[start : start + count * size], dtype=dtype)
    return rows, max(len(view) - start, 0) - count * size


def dump_index(buf: Buffer, start: int, entry: Struct, begin: int = 0) -> Iterator[Block]:
    """Every entry of an index file from the byte ``begin`` on, and the torn one at its end."""
    view = memoryview(buf)
    number = max((min(begin, len(view)) - start) // entry.size, 0)
    position = start + number * entry.size
    while position + entry.size <= len(view):
        yield Block(f"entry{number}", position, list(entry.fields(view, position)))
        number, position = number + 1, position + entry.size
    if position < len(view):
        rest = Field("bytes", position, len(view) - position, bytes(view[position:]))
        yield Block(f"entry{number}", position, [rest], "the entry is cut short")
