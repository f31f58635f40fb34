"""Which offsets stay, against a dict; with tables so small that most keys are spilled."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from duramen.errors import StorageError
from duramen.log.maintain.survivors import Keyed, Survivors, find_survivors
from tests.sampling import examples

ROWS = st.lists(st.one_of(st.none(), st.binary(max_size=3), st.integers(0, 400).map(b"%d".__mod__)), max_size=600)


def newest(keys: list[bytes | None], first: int, keep_keyless: bool) -> set[int]:
    last = {key: first + row for row, key in enumerate(keys)}
    last.pop(None, None)
    keyless = {first + row for row, key in enumerate(keys) if key is None}
    return set(last.values()) | (keyless if keep_keyless else set())


def batches(keys: list[bytes | None], first: int, size: int) -> list[Keyed]:
    return [
        Keyed(np.arange(first + start, first + start + len(part), dtype=np.int64), pa.array(part, pa.binary()))
        for start in range(0, len(keys), size)
        if (part := keys[start : start + size])
    ]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(60))
@given(ROWS, st.integers(0, 2**40), st.integers(1, 100), st.sampled_from([64, 1024, 1 << 20]), st.booleans())
def test_the_newest_of_every_key_stays(
    tmp_path: Path, keys: list[bytes | None], first: int, size: int, memory: int, keep_keyless: bool
) -> None:
    survivors = Survivors(first, first + len(keys), str(tmp_path), 1 << 20)
    found = find_survivors(batches(keys, first, size), survivors, str(tmp_path), memory, keep_keyless=keep_keyless)
    offsets = np.arange(first, first + len(keys), dtype=np.int64)
    stays = newest(keys, first, keep_keyless)
    assert set(offsets[survivors.has(offsets)].tolist()) == stays
    assert found == (len(set(keys) - {None}), sum(key is None for key in keys))


@given(st.sets(st.integers(0, 300)), st.integers(0, 300), st.integers(0, 300), st.sets(st.integers(0, 300)))
def test_counting_and_removing(kept: set[int], first: int, last: int, gone: set[int]) -> None:
    survivors = Survivors(1000, 1300, "", 1 << 20)
    survivors.add(np.array(sorted(kept), np.int64) + 1000)
    survivors.remove(np.array(sorted(gone), np.int64) + 1000)
    first, last = min(first, last), max(first, last)
    assert survivors.count(first + 1000, last + 1000) == len({n for n in kept - gone if first <= n <= last})


def test_a_range_larger_than_memory_lies_in_a_file(tmp_path: Path) -> None:
    survivors = Survivors(0, 1 << 20, str(tmp_path), 4096)
    survivors.add(np.array([0, 77_777, 1 << 20], np.int64))
    assert survivors.count(0, 1 << 20) == 3
    assert (tmp_path / "survivors").stat().st_size == (1 << 17) + 1


def test_a_million_keys_in_a_table_for_a_few_thousand(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    keys = rng.integers(0, 100_000, 400_000)
    parts = []
    for start in range(0, len(keys), 50_000):
        part = keys[start : start + 50_000]
        parts.append(Keyed(np.arange(start, start + len(part)), pa.array(part).cast(pa.string()).cast(pa.binary())))
    survivors = Survivors(0, len(keys) - 1, str(tmp_path), 1 << 20)
    found, _ = find_survivors(parts, survivors, str(tmp_path), 256 << 10)
    last = np.full(100_000, -1)
    last[keys] = np.arange(len(keys))
    expected = np.sort(last[last >= 0])
    offsets = np.arange(len(keys))
    assert found == len(expected)
    assert offsets[survivors.has(offsets)].tolist() == expected.tolist()


@pytest.mark.parametrize("memory", [1, 64])
def test_a_tiny_table_still_ends(tmp_path: Path, memory: int) -> None:
    keys = [b"%d" % (n % 97) for n in range(500)]
    survivors = Survivors(0, 499, str(tmp_path), 1 << 20)
    assert find_survivors(batches(list(keys), 0, 50), survivors, str(tmp_path), memory)[0] == 97


def test_offsets_that_are_too_far_apart_are_reported(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="too far apart"):
        Survivors(0, 2**62, str(tmp_path), 4096)
