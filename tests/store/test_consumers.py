"""Groups over all partitions of a topic: a partition that is damaged, gone or made anew costs nothing in the others."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self, cast

import pytest

import duramen
from duramen import CorruptionError, LockedError, Store, UnknownTopicError
from duramen.disk import Disk
from duramen.disk.vfs import Kind
from duramen.errors import StorageError
from duramen.store import layout
from duramen.testing.simulated_disk import SimulatedDisk


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


@pytest.mark.parametrize("in_use", [False, True], ids=["idle", "in use"])
def test_a_recreated_topic_is_consumed_from_its_start(store: Store, *, in_use: bool) -> None:
    """Its consumer must not hand out what the old one held, and acknowledge the new records with that."""
    topic = store.create("t")
    topic.append_batch([b"old"] * 10)
    store.close()
    with Store(store.root) as consuming, Store(store.root) as other:
        group = consuming.topic("t").group("g")
        held = group.fetch(4)
        group.ack_many(held[:2])
        with ExitStack() as using:
            if in_use:
                using.enter_context(consuming.topic("t").log(0))
            other.delete("t")
            other.create("t").append_batch([b"new"] * 10)
            assert [(each.offset, each.value) for each in group.fetch(4)] == [(n, b"new") for n in range(4)]
        group.ack_many(group.fetch(20))
        assert group.status()[0].acked_until == 0
        assert group.in_flight == 4


@pytest.mark.parametrize("knows_the_group", [False, True])
def test_a_recreated_log_is_not_taken_for_the_old_one(tmp_path: Path, *, knows_the_group: bool) -> None:
    root = tmp_path / "log"
    with duramen.open(root, "a") as log:
        log.append_batch([b"old"] * 10)
    with duramen.open(root) as reading:
        group = reading.group("g")
        group.ack_many(group.fetch(3))
        shutil.rmtree(root)
        with pytest.raises(StorageError, match="the log was deleted"):
            group.fetch(1)
        assert not root.exists(), "nothing of it comes back"
        with duramen.open(root, "a") as log:
            log.append_batch([b"new"] * 10)
            if knows_the_group:
                log.group("g").ack(log.group("g").fetch(1)[0])
        for use in (lambda: group.fetch(1), group.status, lambda: group.ack(0, 1)):
            with pytest.raises(StorageError, match="recreated after it was opened"):
                use()
    with duramen.open(root) as log:
        assert log.group("g").fetch(1)[0].offset == int(knows_the_group)


def test_a_deleted_sidecar_of_another_programs_log_does_not_stop_its_consumers(tmp_path: Path) -> None:
    root = tmp_path / "log"
    with duramen.open(root, "a", format="durable-log") as log:
        log.append_batch([b"a"] * 10)
    shutil.rmtree(root / ".duramen")
    with duramen.open(root) as log:
        group = log.group("g")
        group.ack_many(group.fetch(3))
        shutil.rmtree(root / ".duramen")
        assert [each.offset for each in group.fetch(2)] == [0, 1], "the state is gone: everything again"
        assert group.ack(0, 1)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="counts descriptors in /proc")
def test_consuming_many_partitions_needs_few_descriptors(store: Store) -> None:
    topic = store.create("t", 30)
    topic.append_batch([b"v"] * 60, routing_key=[b"%d" % n for n in range(60)])
    store.close()

    def opened() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = opened()
    with Store(store.root, max_open_segments=4) as consuming:
        group = consuming.topic("t").group("g")
        for _ in range(2):
            group.ack_many(group.fetch(1000))
            assert group.lag == 0
            assert opened() - before < 25


class Meddled:
    """A disk on which somebody else acts once, before the n-th call."""

    def __init__(self, disk: Disk, at: int, act: Callable[[], None]) -> None:
        self.disk, self.left, self.act = disk, at, act

    def within(self, root: str) -> Self:
        return self

    rooted = within

    def __getattr__(self, name: str) -> Any:
        self.left -= 1
        if self.left == 0:
            self.act()
        return getattr(self.disk, name)


@pytest.mark.parametrize("use", ["append", "fetch"])
def test_using_a_deleted_topic_does_not_recreate_it(use: str) -> None:
    """Wherever the deletion hits them: there would be a topic of one partition, without settings."""
    made = SimulatedDisk()
    with Store("/data", disk=made) as store:
        store.create("t", 2)
    for at in range(1, 1000):
        disk = made.clone()

        def delete(disk: Disk = disk) -> None:
            with Store("/data", disk=disk) as other, suppress(LockedError):
                other.delete("t")

        meddled = Meddled(disk, at, delete)
        with Store("/data", disk=cast(Disk, meddled)) as store, suppress(UnknownTopicError, StorageError):
            topic = store.topic("t")
            if use == "append":
                topic.append(b"x", partition=1)
            else:
                topic.group("g").fetch()
        settings = disk.kind(layout.settings_path("/data", "t"))
        assert (disk.kind(layout.topic_path("/data", "t")), settings) in (
            (Kind.MISSING, Kind.MISSING), (Kind.DIRECTORY, Kind.FILE),
        ), at  # fmt: skip
        if meddled.left > 0:
            break
    assert 20 < at < 999


@pytest.mark.parametrize("start", ["end", 1])
def test_partitions_that_are_added_begin_with_their_first_record(store: Store, start: str | int) -> None:
    """Whatever a new group was told: what was appended before the consumers looked would be skipped."""
    topic = store.create("t", 2)
    topic.append_batch([b"old"] * 3, partition=0)
    topic.append_batch([b"old"] * 3, partition=1)
    group = topic.group("g", start=start)
    expected = 0 if start == "end" else 2
    assert len(group.fetch(1)) == min(expected, 1), "and it has started in both"
    topic.append(b"new", partition=1)
    topic = store.add_partitions("t", 3)
    topic.append(b"added", partition=2)
    group._topic.refresh()
    values = [each.value for each in group.fetch(100)]
    assert sorted(values) == sorted([b"old"] * (2 * expected - min(expected, 1)) + [b"new", b"added"])
    with Store(store.root) as elsewhere:
        store.close()
        elsewhere.add_partitions("t", 4).append(b"more", partition=3)
        others = elsewhere.topic("t").group("g", start=start)
        assert [each.value for each in others.fetch(100)] == [b"more"]
