"""An index file as columns that are read where they lie: offset → position, and sometimes time → offset.

An index is a hint. It may be missing, short, long, stale or wrong; whoever follows an entry checks what it finds
there. Entries are not copied: a look-up reads the few that a binary search touches.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from duramen.formats.structs import Block, Buffer, Field, Struct

Column = npt.NDArray[Any]


@dataclass(frozen=True)
class Index:
    """The whole entries of one index file, in file order, as far as they can be read."""

    offsets: Column
    """Logical offsets (already with the base added), unsigned as stored."""
    positions: Column | None
    """Byte positions in the segment; a time index has none."""
    timestamps_us: Column | None = None
    repeats: Mapping[str, Column] = field(default_factory=dict)
    """What else the entries repeat from the records, by the name of the scan's column."""
    start: int = 0
    """Where the first entry lies in the index file."""
    entry_bytes: int = 16
    rest_bytes: int = 0
    """Bytes behind the last whole entry: a torn entry."""
    records_win: bool = False
    """The record's own checksum covers what is repeated: where they differ, the index is wrong."""
    dense: bool = False
    """Whether every record, or every chunk, has an entry, from the first one to the last that has one."""

    def __len__(self) -> int:
        return len(self.offsets)

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
    """The records that entries name: which record of the segment each is, where it starts and ends, and where the one
    before it starts (-1 where that is not known)."""

    numbers: Column
    starts: Column
    ends: Column
    befores: Column

    @classmethod
    def joined(cls, parts: Sequence[Places]) -> Places:
        return cls(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def table(buf: Buffer, start: int, dtype: npt.DTypeLike) -> tuple[npt.NDArray[Any], int]:
    """The whole entries behind ``start`` as a structured array over the buffer, and the bytes left over."""
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
