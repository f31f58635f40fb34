"""What the dumps of all segments share: titles, zeros, and bytes that are not records."""

from __future__ import annotations

import numpy as np

from duramen.formats.segment import Rows
from duramen.formats.struct import Block, Field

SHOWN_BYTES = 64
"""How many bytes a dump shows of what is not a record."""


def first_shown(rows: Rows, begin: int) -> int:
    """The first row that does not end before the byte ``begin``."""
    if rows.end.position <= begin:
        return len(rows.columns)
    return max(int(np.searchsorted(rows.columns.position, begin, side="right")) - 1, 0)


def title(kind: str, number: int | None, row: int, position: int) -> str:
    """The title of a record: its number, or its position where the number is unknown.

    >>> title("rec", 7, 2, 400), title("rec", None, 2, 400)
    ('rec9', 'rec@400')
    """
    return f"{kind}@{position}" if number is None else f"{kind}{number + row}"


def zeros(size_bytes: int, position: int) -> Block:
    """The unwritten rest of a file."""
    rest = size_bytes - position
    return Block("zeros", position, [Field("zeros", position, rest, f"{rest} zero bytes", "a clean end")])


def unreadable(title: str, buf: memoryview, position: int, fields: list[Field], problem: str) -> Block:
    """Bytes that are not a record, up to the end of ``buf``: the fields of the header, then the rest."""
    covered = fields[-1].position + fields[-1].length if fields else position
    if covered < len(buf):
        shown = bytes(buf[covered : covered + SHOWN_BYTES])
        fields = [*fields, Field("bytes", covered, len(buf) - covered, shown)]
    return Block(title, position, fields, problem)
