"""Gather and is_zero: the compiled functions against their Python twins, and against Arrow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kernel.twins import INT64, Refused, both, guarded


def gather(buf: Any, positions: list[int], lengths: list[int], room: int | None = None) -> Any:
    """The Arrow offsets and the data that both halves fill in, or their refusal."""

    def make() -> Any:
        offsets = np.zeros(len(positions) + 1, np.int32)
        data = np.zeros(min(sum(lengths), 1 << 20) if room is None else room, np.uint8)
        args = (buf, np.array(positions, np.int64), np.array(lengths, np.uint32), offsets, data)
        return args, {}, (offsets, data)

    answer = both("gather", make)
    if isinstance(answer, Refused):
        return answer
    total, (offsets, data) = answer
    return np.frombuffer(offsets, np.int32).tolist(), data[:total]


def is_zero(buf: Any, position: int, end: int) -> bool | Refused:
    answer = both("is_zero", lambda: ((buf, position, end), {}, ()))
    return answer if isinstance(answer, Refused) else answer[0]


@given(st.binary(max_size=200), st.data())
def test_gathered_rows_are_the_bytes_at_their_positions(raw: bytes, data: st.DataObject) -> None:
    ranges = st.tuples(st.integers(0, len(raw)), st.integers(0, len(raw))).map(sorted)
    rows = data.draw(st.lists(ranges, max_size=8))
    expected = [raw[start:stop] for start, stop in rows]
    offsets, values = gather(guarded(raw), [start for start, _ in rows], [stop - start for start, stop in rows])
    buffers = [None, pa.py_buffer(np.array(offsets, np.int32)), pa.py_buffer(values)]
    assert pa.Array.from_buffers(pa.binary(), len(rows), buffers).to_pylist() == expected


@given(st.binary(max_size=20), st.data())
def test_arbitrary_rows(raw: bytes, data: st.DataObject) -> None:
    position = st.one_of(st.integers(-2, 25), INT64)
    length = st.one_of(st.integers(0, 25), st.integers(0, 2**32 - 1))
    rows = data.draw(st.lists(st.tuples(position, length), max_size=4))
    room = data.draw(st.integers(0, 60))
    answer = gather(guarded(raw), [p for p, _ in rows], [n for _, n in rows], room)
    inside = all(p >= 0 and p + n <= len(raw) for p, n in rows) and sum(n for _, n in rows) <= room
    assert isinstance(answer, Refused) != inside


@pytest.mark.parametrize(
    ("position", "length"), [(-1, 1), (-1, 0), (0, 6), (5, 1), (6, 0), (2**63 - 1, 1), (-(2**63), 5), (1, 2**32 - 1)]
)
def test_the_row_that_lies_outside_is_named(position: int, length: int) -> None:
    assert gather(b"abcde", [0, position], [1, length], 100) == Refused("row 1 lies outside of the buffer")


def test_too_little_room() -> None:
    assert gather(b"abcde", [0, 1], [3, 3], 5) == Refused("row 1 lies outside of the buffer")
    assert gather(b"abcde", [0, 1], [3, 3], 6) == ([0, 3, 6], b"abcbcd")


def test_nothing_to_gather() -> None:
    assert gather(b"", [], []) == ([0], b"")
    assert gather(b"", [0, 0], [0, 0]) == ([0, 0, 0], b"")


def test_columns_of_different_lengths() -> None:
    def refused(positions: int, lengths: int, offsets: int) -> bool:
        def make() -> Any:
            args = (b"abc", np.zeros(positions, np.int64), np.zeros(lengths, np.uint32), np.zeros(offsets, np.int32))
            return (*args, np.zeros(0, np.uint8)), {}, ()

        return isinstance(both("gather", make), Refused)

    assert not refused(2, 2, 3)
    assert refused(2, 1, 3)
    assert refused(2, 3, 3)
    assert refused(2, 2, 2)
    assert refused(0, 0, 0)


def test_a_read_only_target_is_refused() -> None:
    def make() -> Any:
        return (b"abc", np.zeros(1, np.int64), np.ones(1, np.uint32), np.zeros(2, np.int32), bytes(1)), {}, ()

    assert isinstance(both("gather", make), Refused)


@given(st.integers(0, 80), st.integers(0, 80), st.integers(0, 80), st.integers(1, 255))
def test_one_byte_that_is_not_zero(size: int, at: int, position: int, byte: int) -> None:
    raw = bytearray(size)
    if at < size:
        raw[at] = byte
    for end in range(max(position - 1, 0), size + 2):
        answer = is_zero(guarded(bytes(raw)), position, end)
        if not 0 <= position <= end <= size:
            assert isinstance(answer, Refused)
        else:
            assert answer == (not position <= at < end)


@pytest.mark.parametrize("size", [0, 1, 31, 32, 33, 4096, 100_000])
def test_zeros_of_every_alignment(size: int) -> None:
    raw = bytes(size)
    for position in range(min(size, 40) + 1):
        assert is_zero(raw, position, size) is True


@given(INT64, INT64)
def test_ranges_outside_are_refused(position: int, end: int) -> None:
    assert isinstance(is_zero(bytes(3), position, end), Refused) == (not 0 <= position <= end <= 3)
