"""SipHash and the table of newest offsets: known answers, and compiled against plain Python."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duramen import kernel
from fuzz.agreement import both

KEY0 = int.from_bytes(bytes(range(8)), "little")
KEY1 = int.from_bytes(bytes(range(8, 16)), "little")


def siphash(rows: list[bytes], key0: int = KEY0, key1: int = KEY1) -> np.ndarray:
    offsets = np.cumsum([0, *map(len, rows)], dtype=np.int32)

    def make():  # type: ignore[no-untyped-def]
        hashes = np.zeros((len(rows), 2), np.uint64)
        made.append(hashes)
        return (b"".join(rows), offsets, key0, key1, hashes), {}, [hashes]

    made: list[np.ndarray] = []
    both("siphash", make)
    return made[0]


def test_known_values() -> None:
    # The first and the sixteenth vector of the reference implementation: key 00..0f, input 00..n.
    answers = {0: "a3817f04ba25a8e66df67214c7550293", 15: "5493e99933b0a8117e08ec0f97cfc3d9"}
    for size, answer in answers.items():
        assert siphash([bytes(range(size))]).tobytes().hex() == answer


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=8), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_twins_agree_on_every_row(rows: list[bytes], key0: int, key1: int) -> None:
    hashes = siphash(rows, key0, key1)
    assert len(set(map(bytes, rows))) == len({hashed.tobytes() for hashed in hashes})


@pytest.mark.parametrize("offsets", [[0, 4], [-1, 1], [2, 1], [0, 2**31 - 1]])
def test_rows_outside_of_the_buffer_are_refused(offsets: list[int]) -> None:
    with pytest.raises(ValueError, match="row 0"):
        kernel.siphash(b"abc", np.array(offsets, np.int32), 0, 0, np.zeros((1, 2), np.uint64))


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 7), st.integers(-(2**63), 2**63 - 2)), max_size=30),
    st.sampled_from([1, 2, 8, 16]),
    st.integers(0, 15),
)
def test_twins_keep_the_same_offsets(rows: list[tuple[int, int, int]], slots: int, most: int) -> None:
    hashes = np.array([row[:2] for row in rows], np.uint64).reshape(-1, 2)
    offsets = np.array([row[2] for row in rows], np.int64)

    def make():  # type: ignore[no-untyped-def]
        table = np.zeros((slots, 3), np.uint64)
        return (table, 0, most, hashes, offsets), {}, [table]

    both("keep_newest", make)


def test_the_newest_offset_of_every_hash_stays() -> None:
    rng = np.random.default_rng(7)
    hashes = rng.integers(0, 50, (1000, 2)).astype(np.uint64)
    offsets = rng.permutation(1000).astype(np.int64)
    table = np.zeros((4096, 3), np.uint64)
    done, used = kernel.keep_newest(table, 0, 3000, hashes, offsets)
    newest: dict[tuple[int, int], int] = {}
    for (first, second), offset in zip(hashes.tolist(), offsets.tolist(), strict=True):
        newest[first, second] = max(offset, newest.get((first, second), -1))
    assert (done, used) == (1000, len(newest))
    assert {(int(a), int(b)): int(mark) - 1 for a, b, mark in table if mark} == newest


def test_a_full_table_says_how_far_it_came() -> None:
    table = np.zeros((8, 3), np.uint64)
    hashes = np.arange(20, dtype=np.uint64).repeat(2).reshape(-1, 2)
    assert kernel.keep_newest(table, 0, 5, hashes, np.arange(20)) == (5, 5)
