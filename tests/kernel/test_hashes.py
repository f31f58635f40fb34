"""Murmur2: the compiled function against its Python twin, and against what Kafka's own tests expect."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kernel.twins import Refused, arrow, both, guarded

KAFKA = {
    b"": 275646681,
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}
"""Signed, as Java has it; from the tests of Kafka's clients."""


def murmur2(data: Any, offsets: Any, rows: int) -> Any:
    def make() -> Any:
        hashes = np.zeros(rows, np.uint32)
        return (data, offsets, hashes), {}, (hashes,)

    answer = both("murmur2", make)
    return answer if isinstance(answer, Refused) else np.frombuffer(answer[1][0], np.uint32)


@pytest.mark.parametrize("key", KAFKA)
def test_hashes_are_kafkas(key: bytes) -> None:
    assert murmur2(guarded(key), np.array([0, len(key)], np.int32), 1).view(np.int32).tolist() == [KAFKA[key]]


@given(st.lists(st.binary(max_size=20), max_size=8))
def test_a_row_has_the_hash_that_it_has_alone(keys: list[bytes]) -> None:
    data, offsets = arrow(keys)
    hashes = murmur2(guarded(data), offsets, len(keys))
    assert hashes.tolist() == [murmur2(key, np.array([0, len(key)], np.int32), 1)[0] for key in keys]


@given(st.binary(max_size=12), st.lists(st.integers(-(2**31), 2**31 - 1) | st.integers(-1, 13), min_size=1, max_size=5))
def test_rows_outside_are_refused(data: bytes, bounds: list[int]) -> None:
    pairs = list(itertools.pairwise(bounds))
    outside = next((n for n, (start, stop) in enumerate(pairs) if not 0 <= start <= stop <= len(data)), None)
    answer = murmur2(guarded(data), np.array(bounds, np.int32), len(pairs))
    if outside is None:
        assert len(answer) == len(pairs)
    else:
        assert answer == Refused(f"row {outside} lies outside of the buffer")


def test_columns_of_different_lengths() -> None:
    assert isinstance(murmur2(b"abc", np.zeros(3, np.int32), 3), Refused)
    assert isinstance(murmur2(b"abc", np.zeros(0, np.int32), 0), Refused)
    assert murmur2(b"", np.zeros(1, np.int32), 0).tolist() == []
