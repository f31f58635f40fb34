"""Ranges of a buffer, and columns of values: bounds checks, `gather`, `is_zero`, `measure_values`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import fields

import numpy as np

from duramen.kernel.layout import Columns, Int64s, UInt32s

Buffer = bytes | bytearray | memoryview
Int32s = np.ndarray[tuple[int], np.dtype[np.int32]]
UInt8s = np.ndarray[tuple[int], np.dtype[np.uint8]]
UInt64Pairs = np.ndarray[tuple[int, int], np.dtype[np.uint64]]
Values = Buffer | Sequence[bytes]
"""A buffer with Arrow's offsets into it, or a tuple or list of bytes without offsets."""


def bytes_of(buf: Buffer, position: int, end: int) -> memoryview:
    view = memoryview(buf).cast("B")
    if not 0 <= position <= end <= len(view):
        raise ValueError("range lies outside of the buffer")
    return view


def is_zero(buf: Buffer, position: int, end: int) -> bool:
    """Whether ``[position, end)`` holds only zero bytes."""
    return not any(bytes_of(buf, position, end)[position:end])


def gather(buf: Buffer, positions: Int64s, lengths: UInt32s, offsets: Int32s, data: Buffer) -> int:
    """Copy every row's bytes into ``data``, one after another, and fill Arrow's ``offsets``; returns the bytes
    copied."""
    if len(lengths) != len(positions) or len(offsets) != len(positions) + 1:
        raise ValueError("positions, lengths and offsets differ in length")
    source, target = memoryview(buf).cast("B"), memoryview(data).cast("B")
    at = 0
    offsets[0] = 0
    for row, (start, length) in enumerate(zip(positions.tolist(), lengths.tolist(), strict=True)):
        if start < 0 or start + length > len(source) or at + length > min(len(target), 2**31 - 1):
            raise ValueError(f"row {row} lies outside of the buffer")
        target[at : at + length] = source[start : start + length]
        at += length
        offsets[row + 1] = at
    return at


class ValueCopy:
    """Values that a scan copies side by side, as `gather` would."""

    def __init__(self, capacity: int, offsets: Int32s, data: Buffer) -> None:
        if len(offsets) != capacity + 1:
            raise ValueError("the columns and the offsets of values differ in length")
        self._offsets, self._data = offsets, memoryview(data).cast("B")
        self._copied = 0
        offsets[0] = 0

    @classmethod
    def into(cls, capacity: int, offsets: Int32s | None, data: Buffer | None) -> ValueCopy | None:
        if (offsets is None) != (data is None):
            raise ValueError("values and their offsets go together")
        return None if offsets is None or data is None else cls(capacity, offsets, data)

    @property
    def room(self) -> int:
        return min(len(self._data), 2**31 - 1) - self._copied

    def add(self, row: int, value: memoryview) -> None:
        self._data[self._copied : self._copied + len(value)] = value
        self._copied += len(value)
        self._offsets[row + 1] = self._copied


def values_of(values: Values, offsets: Int32s | None) -> Iterator[bytes | None]:
    """The values; None for one with invalid offsets."""
    if offsets is None:
        measure_values(values)
        yield from values  # type: ignore[misc]
        return
    if len(offsets) == 0:
        raise ValueError("the columns differ in length")
    view = memoryview(values).cast("B")  # type: ignore[arg-type]
    for start, stop in itertools.pairwise(offsets.tolist()):
        yield bytes(view[start:stop]) if 0 <= start <= stop <= len(view) else None


def measure_values(values: Values, value_offsets: Int32s | None = None) -> tuple[int, int, int]:
    """The bytes of all values, of the shortest and of the longest. Raises for anything but bytes and for invalid
    offsets."""
    if value_offsets is None:
        for value in values:
            if type(value) is not bytes:
                raise TypeError(f"a value is bytes, not {type(value).__name__}")
        lengths = [len(value) for value in values]  # type: ignore[arg-type]
    else:
        lengths = []
        for row, found in enumerate(values_of(values, value_offsets)):
            if found is None:
                raise ValueError(f"row {row} does not fit")
            lengths.append(len(found))
    return sum(lengths), min(lengths, default=0), max(lengths, default=0)


def same_length(columns: Columns) -> int:
    lengths = {len(getattr(columns, f.name)) for f in fields(columns)}
    if len(lengths) != 1:
        raise ValueError("the columns differ in length")
    return lengths.pop()
