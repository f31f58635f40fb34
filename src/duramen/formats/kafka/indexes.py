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

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from duramen.formats.index import COPIED_INDEX_BYTES, Index, bounded, table, times_us
from duramen.formats.segment import Problem, Role, Severity
from duramen.formats.struct import Buffer, Struct

OFFSET_ENTRY = Struct(">", relative_offset="I", position="I")
TIME_ENTRY = Struct(">", timestamp="q", relative_offset="I")
ENTRIES = {Role.INDEX: OFFSET_ENTRY, Role.TIME_INDEX: TIME_ENTRY}
_DTYPES = {
    Role.INDEX: np.dtype([("relative_offset", ">u4"), ("position", ">u4")]),
    Role.TIME_INDEX: np.dtype([("timestamp", ">i8"), ("relative_offset", ">u4")]),
}


def written_entries(role: Role, buf: Buffer) -> tuple[npt.NDArray[np.void], int]:
    """The entries before the preallocated zeros, and how many bytes of a torn one follow the last."""
    rows, rest = table(buf, 0, _DTYPES[role])
    written = np.flatnonzero(rows.view(np.uint8).reshape(len(rows), ENTRIES[role].size).any(axis=1))
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


def check_entries(role: Role, buf: Buffer) -> Iterator[Problem]:
    """Whether the entries are whole and in order."""
    rows, rest = written_entries(role, buf)
    entry_bytes = ENTRIES[role].size
    if rest:
        yield Problem("bad-index", Severity.WARNING, "the last entry is cut short", len(memoryview(buf)) - rest)
    offsets = rows["relative_offset"].astype(np.int64)
    other = rows["position" if role == Role.INDEX else "timestamp"].astype(np.int64)
    wrong = np.flatnonzero((offsets[1:] <= offsets[:-1]) | (other[1:] <= other[:-1]))
    if len(wrong):
        at = (int(wrong[0]) + 1) * entry_bytes
        yield Problem("bad-index", Severity.WARNING, "the entries are not in order", at)
