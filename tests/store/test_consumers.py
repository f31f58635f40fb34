"""Groups over all partitions of a topic: a partition that is damaged, gone or made anew costs nothing in the others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from duramen import CorruptionError, Store
from duramen.store import layout


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "data") as store:
        yield store


def test_a_damaged_partition_does_not_cost_what_the_others_handed_out(store: Store) -> None:
    topic = store.create("t", 2)
    for number in range(2):
        topic.append_batch([b"%d" % number] * 10, partition=number)
    store.close()
    segment = next(Path(layout.partition_path(store.root, "t", 1)).glob("segments/*.log"))
    raw = bytearray(segment.read_bytes())
    raw[70] ^= 1
    segment.write_bytes(raw)
    dead = str(Path(store.root) / "dead")
    with Store(store.root) as reading:
        group = reading.topic("t").group("g", lease=0, max_attempts=2, dead_letter=dead)
        seen, errors = 0, 0
        for _ in range(4):
            try:
                seen += len(group.fetch(100))
            except CorruptionError:
                errors += 1
    assert (seen, errors) == (20, 2), "each of the ten twice, none of them only to be held by nobody"
    assert not Path(dead).exists()
