"""Digests that are taken bit by bit, and put together, are those of the whole."""

from __future__ import annotations

from itertools import pairwise
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duramen import kernel
from duramen.log.running import Digest, Running


@given(st.binary(max_size=300), st.lists(st.integers(0, 400), max_size=6), st.booleans())
def test_bit_by_bit(data: bytes, positions: list[int], both: bool) -> None:
    running = Running(data, both=both)
    for position in positions:
        running.take(position)
    assert running.finish() == Digest(len(data), kernel.crc32c(data), crc32(data) if both else None)


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=5))
def test_pieces_put_together(data: bytes, cuts: list[int]) -> None:
    bounds = sorted([0, *(min(cut, len(data)) for cut in cuts), len(data)])
    parts = [Running(data, start, stop).finish() for start, stop in pairwise(bounds)]
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.then(part)
    assert whole == Digest(len(data), kernel.crc32c(data), crc32(data))


@pytest.mark.parametrize("size_bytes", [(1 << 16) - 1, 1 << 16, (1 << 16) + 1, 3_000_001])
def test_long_pieces(size_bytes: int) -> None:
    data = b"before" + bytes(range(251)) * (size_bytes // 251 + 1)
    data = data[: 6 + size_bytes]
    whole = Running(data, 0, 6).finish().then(Running(data, 6).finish())
    assert whole == Digest(len(data), kernel.crc32c(data), crc32(data))


def test_a_stretch_outside_of_the_data_is_empty() -> None:
    assert Running(b"abc", 5, 9).finish() == Digest(0, 0, 0)
    assert Running(b"abc", 2, 1).finish() == Digest(0, 0, 0)
