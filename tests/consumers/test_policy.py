"""The policy of a group, who holds its records, and its dead letters delivered again."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import duramen
from duramen.consumers import Group, GroupOptions
from duramen.errors import CorruptionError, UsageError
from tests.consumers.logs import FORMATS, make_log, value
from tests.consumers.test_group import Clock, got


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_log(tmp_path / "log", "keratin", 6)


# --- the policy


def test_the_policy_is_stored_with_the_group(root: Path, tmp_path: Path) -> None:
    dead = tmp_path / "dead"
    with duramen.open(root) as log:
        group = log.group("g", lease=5, max_attempts=2, dead_letter=dead)
        assert group.policy == duramen.GroupPolicy(5000, 2, "../dead")
        group.fetch(1)
    with duramen.open(root) as log:
        assert log.group("g").policy == (5000, 2, "../dead")
        assert log.group("g").status().in_flight == 1, "inspection needs no dead letters"
        with pytest.raises(UsageError, match=r"moves records to '../dead' after 2 deliveries"):
            log.group("g").fetch(1)
    with duramen.open(root) as log:
        (delivery,) = log.group("g", dead_letter=dead).fetch(1)
        log.group("g").nack(delivery)
        (again,) = log.group("g").fetch(1)
        log.group("g").nack(again, reason="too often")
        assert log.group("g").acked_until <= 1
    with duramen.open(dead) as letters:
        assert letters.next_offset == 1


@pytest.mark.parametrize("options", [{"lease": 6}, {"max_attempts": 3}, {"dead_letter": "elsewhere"}])
def test_a_handle_that_contradicts_the_policy_is_refused(root: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    stated = {"lease": 5, "max_attempts": 2, "dead_letter": tmp_path / "dead"}
    with duramen.open(root) as log:
        log.group("g", **stated).fetch(1)
    with duramen.open(root) as log:
        with pytest.raises(UsageError, match="or pass update_policy=True"):
            log.group("g", **options)
        changed = log.group("g", **{**stated, **options}, update_policy=True)
        changed.fetch(1)
        policy = changed.policy
    with duramen.open(root) as log:
        assert log.group("g").policy == policy
        assert log.group("g").delete()
        assert log.group("other", lease=9).policy.lease_ms == 9000
    with duramen.open(root) as log:
        assert log.group("g").policy == duramen.GroupPolicy(), "a deleted group has no policy"


def test_of_two_new_handles_the_first_one_decides(root: Path) -> None:
    with duramen.open(root) as log, duramen.open(root) as other:
        first, second = log.group("g", lease=5), other.group("g", lease=6)
        first.fetch(1)
        with pytest.raises(UsageError, match="lease_ms=5000"):
            second.fetch(1)


def test_a_damaged_policy_raises(root: Path) -> None:
    with duramen.open(root) as log:
        log.group("g", lease=5).fetch(1)
    [path] = (root / ".duramen" / "groups").glob("*.json")
    path.write_bytes(path.read_bytes().replace(b"5000", b"9000"))
    damaged = path.read_bytes()
    with duramen.open(root) as log, pytest.raises(CorruptionError, match="the policy of a group cannot be read"):
        log.group("g")
    with duramen.open(root) as log:
        log.group("g", on_damage="redeliver").compact()
    with duramen.open(root) as log:
        assert log.group("g").policy == duramen.GroupPolicy()
    kept = [one for one in (root / ".duramen" / "quarantine").rglob("*") if one.is_file()]
    assert damaged in [one.read_bytes() for one in kept]


def test_unknown_options_are_refused(root: Path) -> None:
    names = set(inspect.signature(Group.__init__).parameters) - {"self", "log", "name", "consumer"}
    assert names == set(GroupOptions.__annotations__)
    with duramen.open(root) as log, pytest.raises(UsageError, match="a group has no option 'leese'"):
        log.group("g", leese=3)  # type: ignore[call-arg]
    with duramen.Store(root.parent / "store") as store, pytest.raises(UsageError, match="a group has no option"):
        store.create("orders").group("g", leese=3)  # type: ignore[call-arg]


# --- members


@pytest.fixture
def two(root: Path) -> Iterator[tuple[duramen.Log, duramen.Log]]:
    with duramen.open(root) as log, duramen.open(root) as other:
        yield log, other


def test_members(two: tuple[duramen.Log, duramen.Log]) -> None:
    clock = Clock()
    log, other = two
    first = log.group("g", consumer="worker 1", clock=clock)
    began = clock.now_ms
    held = first.fetch(2, lease=10)
    clock.now_ms += 1000
    log.group("g", consumer="worker 1").fetch(1, lease=60)
    other.group("g", consumer="worker/2", clock=clock).fetch(1, lease=60)
    expected = [("worker 1", 3, began), ("worker/2", 1, began + 1000)]
    assert log.group("g").members() == other.group("g").members() == expected
    first.ack(held[0])
    clock.now_ms += 10_000
    assert log.group("g").members() == [("worker 1", 1, began + 1000), ("worker/2", 1, began + 1000)]
    log.group("g").compact()
    assert len(other.group("g").members()) == 2
    assert [(one.name, one.lag, one.in_flight) for one in log.groups()] == [("g", 5, 3)]


def test_a_consumer_without_a_name_is_its_process(two: tuple[duramen.Log, duramen.Log]) -> None:
    log, other = two
    log.group("g").fetch(2)
    [member] = other.group("g").members()
    assert member.consumer is not None
    assert member.in_flight == 2


def test_members_without_their_journal(root: Path, two: tuple[duramen.Log, duramen.Log]) -> None:
    log, other = two
    log.group("g", consumer="a").fetch(1)
    [journal] = (root / ".duramen" / "groups").glob("*.members")
    journal.write_bytes(b"noise\n" + journal.read_bytes()[:-3] + b"\n")
    log.group("g", consumer="b").fetch(1)
    assert [member[:2] for member in other.group("g").members()] == [("b", 1), (None, 1)]
    journal.unlink()
    assert [member[:2] for member in other.group("g").members()] == [(None, 2)]


def test_stuck_records(root: Path) -> None:
    clock = Clock()
    with duramen.open(root) as log:
        group = log.group("g", consumer="w", clock=clock)
        group.fetch(1, lease=3600)
        for _ in range(3):
            group.nack(group.fetch(1))
        clock.now_ms += 60_000
        assert group.stuck() == [(1, 2, 3, clock.now_ms - 60_000, "w", clock.now_ms - 60_000)]
        assert [run[:2] for run in group.stuck(attempts=9, held=60)] == [(0, 1), (1, 2)]
        assert group.stuck(attempts=9, held=61) == []


def test_the_members_of_a_topic(tmp_path: Path) -> None:
    with duramen.Store(tmp_path / "store") as store:
        topic = store.create("orders", partitions=2)
        topic.append_batch([value(n) for n in range(6)], routing_key=[b"%d" % n for n in range(6)])
        group = topic.group("g", consumer="w")
        group.fetch(6)
        assert sum(member.in_flight for members in group.members().values() for member in members) == 6
        assert {run.consumer for runs in group.stuck(held=0).values() for run in runs} == {"w"}


# --- replay


@pytest.mark.parametrize("format_name", [name for name in FORMATS if name != "fixed-slot"])
def test_dead_letters_are_delivered_again(root: Path, tmp_path: Path, format_name: str) -> None:
    dead = make_log(tmp_path / "dead", format_name, 0)
    with duramen.open(root) as log:
        group, other = log.group("g", max_attempts=1, dead_letter=dead), log.group("other")
        other.ack_many(other.fetch(6))
        held = group.fetch(6)
        group.nack([held[1], held[3], held[4]], reason="no such customer")
        group.ack_many([held[0], held[2]])
        assert group.status()[1:5] == (5, 6, 1, 1)
        assert group.replay() == (3, 0)
        assert group.status()[1:5] == (1, 6, 4, 1)
        assert got(group.fetch(9)) == [(1, 1), (3, 1), (4, 1)], "to this group only, as if for the first time"
        assert other.lag == 0
        assert group.replay() == (0, 0), "each dead letter once"
        group.ack_many([1, 3, 4])
        assert group.replay(from_offset=1) == (2, 0)
        assert group.ack(held[5])
    with duramen.open(root) as log:
        assert got(log.group("g", dead_letter=dead).fetch(9)) == [(3, 1), (4, 1)]
        with pytest.raises(UsageError, match="replay needs the log of the dead letters"):
            log.group("other").replay()


def test_a_replay_names_missing_records(tmp_path: Path) -> None:
    dead = tmp_path / "dead"
    with duramen.open(tmp_path / "log", "a", segment_max_bytes=300) as log:
        log.append_batch([value(n) for n in range(20)])
        group = log.group("g", max_attempts=1, dead_letter=dead)
        group.nack(group.fetch(20))
        log.seal()
        log.retain(duramen.Retention(max_bytes=1))
        gone = log.first_offset
        assert 0 < gone < 21
        assert group.replay() == (20 - min(gone, 20), min(gone, 20))


def test_a_log_changes_the_policy_of_a_group_it_has_open(root: Path) -> None:
    with duramen.open(root) as log:
        before = log.group("g", lease=5)
        before.fetch(1)
        with pytest.raises(UsageError, match="update_policy=True"):
            log.group("g", lease=7)
        after = log.group("g", lease=7, update_policy=True)
        after.fetch(1)
        assert log.group("g").policy.lease_ms == 7000
        with pytest.raises(UsageError, match="closed"):
            before.fetch(1)
        with pytest.raises(UsageError, match="consumer"):
            log.group("h", consumer=5)  # type: ignore[arg-type]
        assert log.group("h", lease=3).policy.lease_ms == 3000
