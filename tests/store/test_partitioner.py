"""The partitioner against Kafka's numbers and against a record-by-record model."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duramen.errors import UsageError
from duramen.kernel import reference
from duramen.store.partitioner import STICKY_BYTES, Sticky, assign, key_partitions, partition_of

HASHES = {
    b"": 275646681,
    b"21": -973932308,
    b"34": -2026295078,
    b"234": -406844982,
    b"abc": 479470107,
    b"1234": -1614185708,
    b"kafka": -798503068,
    b"foobar": -790332482,
    b"giberish123456789": -1890243828,
    b"string-f-24-chars-length": 124730809,
    b"string-fo-25-chars-length": 1269511650,
    b"string-foo-26-chars-length": 119165628,
    b"string-last-27-chars-length": 1089971754,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
}
OF_THOUSAND = {b"": 681, b"a": 524, b"ab": 434, b"abc": 107, b"123456789": 566, b"\x00 ": 742}
OF_TWELVE = {
    "1039-36302-36840-2-9f138052": 4,
    "1388-20023-36900-2-c9985f66": 0,
    "1175-03505-36600-2-126dd9ca": 1,
    "1011-98208-36480-2-9eef750a": 8,
    "1182-07205-22440-2-0ad4507d": 9,
    "1010-98110-23700-2-295bfb4c": 10,
    "599999": 3,
}

KEYS = st.lists(st.none() | st.binary(max_size=24), max_size=40)


def model(key: bytes, partitions: int) -> int:
    hashes = np.zeros(1, np.uint32)
    reference.murmur2(key, np.array([0, len(key)], np.int32), hashes)
    return (int(hashes[0]) & 0x7FFFFFFF) % partitions


def test_keys_land_where_kafka_puts_them() -> None:
    """Utils.toPositive(hash) % partitions, of hashes and partitions that the tests of Kafka's clients list."""
    for partitions in (1, 2, 3, 7, 12, 100):
        for key, hashed in HASHES.items():
            assert partition_of(key, partitions) == (hashed & 0x7FFFFFFF) % partitions
    for key, partition in OF_THOUSAND.items():
        assert partition_of(key, 1000) == partition
    for text, partition in OF_TWELVE.items():
        assert partition_of(text.encode(), 12) == partition


@given(KEYS, st.integers(1, 20), st.sampled_from([pa.binary(), pa.large_binary()]))
def test_a_column_is_its_keys_one_by_one(keys: list[bytes | None], partitions: int, kind: pa.DataType) -> None:
    found = key_partitions(pa.array(keys, kind), partitions)
    assert found.tolist() == [-1 if key is None else model(key, partitions) for key in keys]


@given(KEYS.filter(len), st.data())
def test_slices_chunks_and_text(keys: list[bytes | None], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(keys)))
    array = pa.array(keys, pa.binary())
    whole = key_partitions(array, 5).tolist()
    assert key_partitions(array.slice(start), 5).tolist() == whole[start:]
    assert key_partitions(pa.chunked_array([array[:start], array[start:]]), 5).tolist() == whole
    text = pa.array(["ä", None, ""])
    assert key_partitions(text, 9).tolist() == [model("ä".encode(), 9), -1, model(b"", 9)]


def test_a_topic_has_partitions() -> None:
    with pytest.raises(UsageError, match="at least 1"):
        partition_of(b"k", 0)


@given(st.lists(st.integers(0, 3 * STICKY_BYTES), max_size=30), st.integers(1, 5), st.integers(0, 9))
def test_a_batch_spreads_as_its_records_one_by_one(sizes: list[int], partitions: int, first: int) -> None:
    at_once, one_by_one = Sticky(first), Sticky(first)
    found = at_once.spread(np.array(sizes, np.int64), partitions).tolist()
    assert found == [one_by_one.next(size, partitions) for size in sizes]


def test_keyless_records_stay_together_and_reach_all() -> None:
    sticky = Sticky(0)
    found = sticky.spread(np.full(1600, 100, np.int64), 4)
    runs = np.flatnonzero(np.diff(found)) + 1
    assert set(found.tolist()) == {0, 1, 2, 3}
    assert np.diff(runs).min() >= STICKY_BYTES // 100
    assert np.bincount(found).min() > 200


@pytest.mark.parametrize("size_bytes", [0, 1, 100, STICKY_BYTES, 2 * STICKY_BYTES, 12 * STICKY_BYTES])
@pytest.mark.parametrize("partitions", [2, 3, 4])
def test_keyless_records_of_one_size_reach_all_partitions(size_bytes: int, partitions: int) -> None:
    found = Sticky(0).spread(np.full(8 * STICKY_BYTES, size_bytes, np.int64), partitions)
    assert np.bincount(found, minlength=partitions).min() * partitions > 0.7 * len(found)


def test_keyed_and_keyless_rows_of_one_batch() -> None:
    keys = pa.array([b"21", None, b"abc", None])
    values = pa.array([b"a" * STICKY_BYTES, b"b" * STICKY_BYTES, b"", b"c"])
    assert assign(keys, values, 10, Sticky(4)).tolist() == [0, 4, 7, 5]
    assert assign(None, values, 10, Sticky(4)).tolist() == [4, 5, 6, 6]
