"""Segments that roll by size, by age and on request."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import duramen
from duramen.log.write.appender import Appender
from duramen.testing import SimulatedDisk
from tests.log.conftest import value
from tests.log.writing import SEGMENTED, Open, codes, content, sizes, snapshot, values


@pytest.mark.parametrize("name", SEGMENTED)
def test_roll_by_size(create: Open, root: Path, name: str) -> None:
    with create(name, segment_max_bytes=1000) as log:
        for number in range(50):
            log.append(value(number), durability="write")
        log.append_batch(values(50, 50))
        if name == "osiris":
            log.append(value(100))  # a segment of Osiris is left when it is full, with the next chunk
        assert len(log.segments) > 3
        assert [segment.sealed for segment in log.segments] == [True] * (len(log.segments) - 1) + [False]
        assert log.segments[0].base_offset == 0
    if name != "osiris":
        assert max(sizes(root, name)) <= 1000
        least = 400 if name == "kafka" else 900  # a segment of Kafka is left before a batch that does not fit
        assert min(sizes(root, name)[:-1]) > least
    assert content(root) == values(0, 101 if name == "osiris" else 100)
    assert codes(root) == []


@pytest.mark.parametrize("name", SEGMENTED)
def test_a_record_larger_than_a_segment_has_one_of_its_own(create: Open, root: Path, name: str) -> None:
    large = b"L" * 5000
    some = [value(0), large, value(2), value(3), large, large, value(6)]
    with create(name, segment_max_bytes=1000) as log:
        for one in some:
            log.append(one, durability="write")
        log.append_batch(some)
        bases = [segment.base_offset for segment in log.segments]
    assert content(root) == some + some
    assert codes(root) == []
    if name != "osiris":
        assert {1, 2, 4, 5, 6, 8, 9, 11, 12, 13} <= set(bases)


@pytest.mark.parametrize("name", SEGMENTED)
def test_roll_by_age(create: Open, root: Path, name: str) -> None:
    now_ns = [time.time_ns()]
    with create(name, segment_max_age_ms=60, clock=lambda: now_ns[0], timer=False) as log:
        log.append(value(0))
        log.append(value(1))
        assert len(log.segments) == 1
        now_ns[0] += 60_000_000
        log.append(value(2))
        log.append(value(3))
        assert [segment.base_offset for segment in log.segments] == [0, 2]
    assert content(root) == values(0, 4)
    assert codes(root) == []


@pytest.mark.parametrize("name", SEGMENTED)
def test_seal(create: Open, root: Path, name: str) -> None:
    with create(name) as log:
        log.seal()
        assert len(log.segments) == 1, "an empty segment is not sealed"
        log.append_batch(values(0, 3), durability="write")
        log.seal()
        assert log.durable_offset == 3
        log.seal()
        assert [segment.base_offset for segment in log.segments] == [0, 3]
        log.append(value(3))
    assert content(root) == values(0, 4)
    assert codes(root) == []
    with create(name) as log:
        log.seal()
    with create(name) as log:
        assert log.append(value(4)) == 4
        assert [segment.base_offset for segment in log.segments] == [0, 3, 4]
    assert content(root) == values(0, 5)
    assert codes(root) == []


def test_a_log_with_one_file_cannot_be_sealed(create: Open, root: Path) -> None:
    log = create("fixed-slot")
    log.append(value(0))
    before = snapshot(root)
    with pytest.raises(duramen.UsageError, match="one file only"):
        log.seal()
    assert snapshot(root) == before


@pytest.mark.parametrize("kind", ["bytes", "array", "batch"])
@pytest.mark.parametrize("name", ["durable-log", "keratin", "rustlog"])
def test_a_batch_over_many_segments_is_encoded_about_once(
    monkeypatch: pytest.MonkeyPatch, name: str, kind: str
) -> None:
    """And lies in the same segments as if its records had come one by one."""
    rows = [b"%d" % n * (n * 7919 % 50) or b"." for n in range(600)]
    data: Any = rows if kind == "bytes" else pa.array([b"", *rows]).slice(1)
    data = pa.record_batch({"value": data, "offset": range(600)}) if kind == "batch" else data
    encoded: list[int] = []

    def counted(self: Any, batch: Any, default_us: int) -> Any:
        encoded.append(batch.num_rows)
        return encode(self, batch, default_us)

    encode = Appender._encode
    monkeypatch.setattr(Appender, "_encode", counted)
    with duramen.open("batch", "a", disk=SimulatedDisk(), format=name, segment_max_bytes=3000) as log:
        assert log.append_batch(data, durability="write") == (0, 600)
        segments = [(segment.base_offset, segment.size_bytes) for segment in log.segments]
        assert [record.value for record in log] == rows
    assert len(segments) > 12
    assert sum(encoded) < 4 * 600
    with duramen.open("single", "a", disk=SimulatedDisk(), format=name, segment_max_bytes=3000) as log:
        for row in rows:
            log.append(row, durability="write")
        assert [(segment.base_offset, segment.size_bytes) for segment in log.segments] == segments
