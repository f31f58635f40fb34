"""A negative offset counts records from the end, as ``duramen cat -o -5`` does."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pyarrow as pa
import pytest

import duramen
import duramen.aio


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A compacted log of ten records in several segments: only some offsets are left."""
    path = tmp_path / "log"
    with duramen.open(path, "a", segment_max_bytes=200) as log:
        for number in range(40):
            log.append(b"%d" % number, key=b"%d" % (number % 10 if number < 30 else number), durability="write")
        log.seal()
        log.compact()
        assert log.next_offset == 40
    return path


@pytest.mark.parametrize("mode", ["r", "a"])
def test_the_last_records(path: Path, mode: str) -> None:
    with duramen.open(path, mode) as log:  # type: ignore[call-overload]
        held = [record.offset for record in log]
        assert len(held) < 40
        for count in (1, 3, 10, len(held) - 1, len(held), len(held) + 1, 1000, 2**62):
            assert [record.offset for record in log.scan(from_offset=-count)] == held[-count:]
            assert [record.offset for record in log.scan(to_offset=-count)] == held[:-count]
            assert pa.Table.from_batches(log.batches(-count))["offset"].to_pylist() == held[-count:]
        assert [record.offset for record in log.scan(-5, -2)] == held[-5:-2]
        assert [record.offset for record in log.scan(-5, max_records=2)] == held[-5:-3]


def test_in_asyncio_and_in_a_topic(path: Path, tmp_path: Path) -> None:
    async def last() -> list[int]:
        async with duramen.aio.open(path) as log:
            return [record.offset async for record in log.scan(-2)]

    assert asyncio.run(last()) == [38, 39]
    with duramen.Store(tmp_path / "store") as store:
        topic = store.create("t", partitions=2)
        for partition in (0, 1):
            topic.append_batch([b"a", b"b", b"c"], partition=partition)
        last_two = [(record.partition, record.offset) for record in topic.scan(from_offset=-2)]
        assert last_two == [(0, 1), (0, 2), (1, 1), (1, 2)]


def test_an_empty_log(tmp_path: Path) -> None:
    with duramen.open(tmp_path / "log", "a") as log:
        assert list(log.scan(from_offset=-5)) == []
