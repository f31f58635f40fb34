"""Groups as people use them: leases, acks, returns, dead letters, resets, in every format."""

from __future__ import annotations

import json
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import duramen
from duramen.consumers.groups.deliveries import Delivery, claims_of
from duramen.consumers.groups.group import Group
from duramen.consumers.lag import consumer_lags, needed_from
from duramen.consumers.log import ConsumableLog
from duramen.disk import PosixDisk
from duramen.errors import CorruptionError, LeaseError, OffsetError, StorageError, UsageError
from duramen.testing.faulty_disk import FaultyDisk
from tests.consumers.logs import FORMATS, make_log, value

KEPT = {".lock", ".members"}
"""Suffixes of files beside the state of a group."""


class Clock:
    """Milliseconds that pass when told to."""

    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


def got(deliveries: list[Delivery]) -> list[tuple[int, int]]:
    return [(delivery.offset, delivery.epoch) for delivery in deliveries]


@pytest.mark.parametrize("format_name", FORMATS)
def test_the_life_of_records(tmp_path: Path, format_name: str, clock: Clock) -> None:
    root = make_log(tmp_path / "log", format_name, 10)
    with duramen.open(root, "a") as log:
        group = log.group("billing", clock=clock)
        assert log.group("billing") is group
        first = group.fetch(3, lease=10)
        assert got(first) == [(0, 1), (1, 1), (2, 1)]
        assert [delivery.value for delivery in first] == [value(0), value(1), value(2)]
        assert {delivery.deadline_ms for delivery in first} == {clock.now_ms + 10_000}
        assert got(group.fetch(2, lease=10)) == [(3, 1), (4, 1)]
        assert group.ack(first[1])
        assert group.acked_until == 0
        assert group.ack(first[0])
        assert group.acked_until == 2
        assert not group.ack(first[0]), "acknowledged before"
        assert group.nack(first[2]) == 1
        assert got(group.fetch(2, lease=5)) == [(2, 2), (5, 1)]
        clock.now_ms += 5_000
        assert got(group.fetch(1, lease=20)) == [(2, 3)]
        clock.now_ms += 5_000
        assert got(group.fetch(10, lease=20)) == [(5, 2), (3, 2), (4, 2), (6, 1), (7, 1), (8, 1), (9, 1)]
        assert group.fetch(1) == []
        status = group.status()
        assert (status.acked_until, status.next_offset, status.lag, status.in_flight) == (2, 10, 8, 8)
    with duramen.open(root) as log:
        again = log.group("billing", clock=clock)
        assert again.status()._replace(warnings=()) == status
        assert again.ack_many([5, 3, 4, 6, 7, 8, 9], [2, 2, 2, 1, 1, 1, 1]) == 7
        assert (again.status().acked_until, again.status().acked_ahead, again.lag) == (2, 7, 1)
        assert again.ack(2, 3)
        assert (again.acked_until, again.lag, again.in_flight) == (10, 0, 0)


@pytest.mark.parametrize("format_name", FORMATS)
def test_where_the_files_lie(tmp_path: Path, format_name: str) -> None:
    root = make_log(tmp_path / "orders", format_name, 2)
    with duramen.open(root) as log:
        log.group("b/../il\tling".replace("\t", " ")).fetch(1)
        assert duramen.verify(root).ok
    stem = "orders-0_b%2F..%2Fil%20ling"
    directory = root / "groups" if format_name == "keratin" else root / ".duramen" / "groups"
    assert {path.name for path in directory.iterdir() if path.suffix not in KEPT} == {f"{stem}.snap", f"{stem}.delta"}
    assert [path.name for path in (root / ".duramen" / "groups").glob("*.lock")] == [f"{stem}.lock"]


def test_a_store_directory_names_topic_and_partition(tmp_path: Path) -> None:
    root = make_log(tmp_path / "topics" / "orders" / "partitions" / "3", "keratin", 1)
    with duramen.open(root) as log:
        log.group("billing").fetch(1)
    assert (root / "groups" / "orders-3_billing.snap").exists()


def test_state_goes_with_a_directory_that_is_renamed(tmp_path: Path) -> None:
    root = make_log(tmp_path / "before", "keratin", 3)
    with duramen.open(root) as log:
        log.group("g").ack(log.group("g").fetch(1)[0])
    root.rename(tmp_path / "after")
    with duramen.open(tmp_path / "after") as log:
        assert log.group("g").acked_until == 1
        assert not (tmp_path / "after" / "groups" / "after-0_g.snap").exists()
        # State for two topics, neither of which is this directory's: whose is it?
        for suffix in ("snap", "delta"):
            path = tmp_path / "after" / "groups" / f"before-0_g.{suffix}"
            path.with_name(f"other-0_g.{suffix}").write_bytes(path.read_bytes())
    with duramen.open(tmp_path / "after") as log, pytest.raises(UsageError, match="several topics"):
        log.group("g")


# --- refusals


def test_leases_that_are_not_held(tmp_path: Path, clock: Clock) -> None:
    root = make_log(tmp_path / "log", "keratin", 5)
    with duramen.open(root, "a") as log:
        group = log.group("g", clock=clock)
        (old,) = group.fetch(1, lease=1)
        with pytest.raises(LeaseError, match="not in flight") as caught:
            group.ack(3, 1)
        assert caught.value.refused == ((3, 4, "it is not in flight"),)
        with pytest.raises(LeaseError, match="not in flight"):
            group.ack(99)
        with pytest.raises(LeaseError, match="delivery 7 does not exist"):
            group.ack(0, 7)
        clock.now_ms += 1_500
        (new,) = group.fetch(1, lease=1)
        assert got([new]) == [(0, 2)]
        for call in (group.ack, group.nack, group.extend):
            with pytest.raises(LeaseError, match=r"delivery 1 is old: the record was delivered again \(delivery 2\)"):
                call(old)
        group.ack(new)
        assert not group.ack(old), "it is done, whoever did it"
        assert group.status()[:4] == ("g", 1, 5, 4)


def test_of_many_the_good_ones_count(tmp_path: Path, clock: Clock) -> None:
    root = make_log(tmp_path / "log", "keratin", 6)
    with duramen.open(root, "a") as log:
        group = log.group("g", clock=clock)
        held = group.fetch(2, lease=1) + group.fetch(2, lease=100)
        clock.now_ms += 2_000
        assert got(group.fetch(2)) == [(0, 2), (1, 2)]
        with pytest.raises(LeaseError, match="1 more of them refused, 2 acknowledged") as caught:
            group.ack_many(held)
        assert [part[:2] for part in caught.value.refused] == [(0, 2)]
        assert got(group.fetch(10)) == [(4, 1), (5, 1)]


def test_a_late_ack_counts_until_the_record_is_delivered_again(tmp_path: Path, clock: Clock) -> None:
    root = make_log(tmp_path / "log", "keratin", 3)
    with duramen.open(root, "a") as log:
        group = log.group("g", clock=clock)
        acked, extended, returned = group.fetch(3, lease=1)
        clock.now_ms += 5_000
        assert group.ack(acked)
        assert group.extend(extended, 1) == clock.now_ms + 1_000
        assert group.nack(returned, delay=1) == 1
        assert group.fetch(3) == [], "both are held again"
        clock.now_ms += 1_000
        assert got(group.fetch(3)) == [(1, 2), (2, 2)]


@pytest.mark.parametrize("start", ["newest", "", b"end", None, 1.5, True])
def test_a_wrong_start_is_refused_at_once(tmp_path: Path, start: Any) -> None:
    said = "start must be an offset or one of 'beginning', 'earliest', 'end'"
    with duramen.open(make_log(tmp_path / "log", "keratin", 3)) as log, pytest.raises(UsageError, match=said):
        log.group("g", start=start)


@pytest.mark.parametrize(("start", "first"), [("earliest", 0), ("latest", 3), ("beginning", 0), ("end", 3), (2, 2)])
def test_where_a_new_group_starts(tmp_path: Path, start: str | int, first: int) -> None:
    with duramen.open(make_log(tmp_path / "log", "keratin", 3)) as log:
        group = log.group("g", start=start)
        assert group.begin()
        assert group.acked_until == first
        assert group.reset(start) == first


def test_an_extended_lease_keeps_its_delivery(tmp_path: Path, clock: Clock) -> None:
    root = make_log(tmp_path / "log", "keratin", 1)
    with duramen.open(root, "a") as log:
        group = log.group("g", clock=clock)
        (held,) = group.fetch(1, lease=timedelta(seconds=1))
        assert group.extend(held, 10) == clock.now_ms + 10_000
        clock.now_ms += 9_999
        assert group.fetch(1) == []
        assert group.ack(held)


def test_what_another_one_is_done_with_is_not_extended(tmp_path: Path, clock: Clock) -> None:
    with duramen.open(make_log(tmp_path / "log", "keratin", 10)) as log:
        group = log.group("g", clock=clock)
        late = group.fetch(5, lease=1)
        clock.now_ms += 1001
        group.ack_many(group.fetch(2))
        group.ack_many(group.fetch(2)[1:])
        with pytest.raises(LeaseError, match="acknowledged already") as refused:
            group.extend(late[0])
        assert refused.value.offset == 0
        with pytest.raises(LeaseError) as refused:
            group.extend(late)
        assert [part[:2] for part in refused.value.refused] == [(2, 3)], "what is done is left out"
        with pytest.raises(LeaseError, match="acknowledged already"):
            group.extend(late[3])
        own = group.fetch(3)
        group.ack(own[1])
        assert group.extend(own, 60) == clock.now_ms + 60_000, "who works through a batch goes on with the rest of it"
        assert group.extend([], 60) == clock.now_ms + 60_000


def test_a_delay_holds_a_returned_record_back(tmp_path: Path, clock: Clock) -> None:
    root = make_log(tmp_path / "log", "keratin", 2)
    with duramen.open(root, "a") as log:
        group = log.group("g", clock=clock)
        group.nack(group.fetch(1)[0], delay=3)
        assert got(group.fetch(5)) == [(1, 1)]
        clock.now_ms += 3_000
        assert got(group.fetch(5)) == [(0, 2)]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda group: group.fetch(0), r"max must be at least 1 \(got 0\)"),
        (lambda group: group.fetch(1, lease=-1), r"lease must be 0 to \d+ seconds \(got -1\)"),
        (lambda group: group.fetch(1, lease=float("nan")), r"lease must be .*\(got nan\)"),
        (lambda group: group.nack(0, delay=-1), r"delay must be .*\(got -1\)"),
        (lambda group: group.ack_many(["a"]), "expected deliveries or offsets"),
        (lambda group: group.ack_many([1.5]), "expected deliveries or offsets"),
        (lambda group: group.ack(None), "expected deliveries or offsets"),
        (lambda group: group.ack(-1), r"at least 0 \(got -1\)"),
        (lambda group: group.ack(2**63), "expected deliveries or offsets"),
        (lambda group: group.ack_many([0, 2**63]), "expected deliveries or offsets"),
        (lambda group: group.ack_many(np.array([2**63], np.uint64)), "expected deliveries or offsets"),
        (lambda group: group.ack_many([1, 2], [1]), "got 1 for 2 offsets"),
        (lambda group: group.ack(0, durability="quorum"), r"durability must be .*\(got 'quorum'\)"),
        (lambda group: group.reset(), "exactly one of an offset and a time"),
        (lambda group: group.reset(1, time=3), "exactly one of an offset and a time"),
        (lambda group: group.reset("middle"), "must be an offset or one of 'beginning'"),
        (lambda group: group.reset(1.5), "must be an offset or one of 'beginning'"),
    ],
)
def test_wrong_usage(tmp_path: Path, call: Any, message: str) -> None:
    with duramen.open(make_log(tmp_path / "log", "keratin", 3)) as log, pytest.raises(UsageError, match=message):
        call(log.group("g"))


@pytest.mark.parametrize(
    "options",
    [
        {"max_attempts": 3}, {"dead_letter": "x"}, {"max_attempts": 0, "dead_letter": "x"}, {"window": 0},
        {"on_damage": "ignore"}, {"durability": "no"}, {"create": False}, {"max_attempts": 1, "dead_letter": 7},
    ],
)  # fmt: skip
def test_wrong_options(tmp_path: Path, options: dict[str, Any]) -> None:
    with duramen.open(make_log(tmp_path / "log", "keratin", 3)) as log, pytest.raises(UsageError):
        log.group("g", **options)


@pytest.mark.parametrize("name", ["", ".", "..", "a\0b", "a\nb", "x" * 201])
def test_hostile_names(tmp_path: Path, name: str) -> None:
    with duramen.open(make_log(tmp_path / "log", "keratin", 3)) as log, pytest.raises(UsageError):
        log.group(name)


def test_the_longest_name_in_the_longest_directory(tmp_path: Path) -> None:
    with duramen.open(make_log(tmp_path / ("d" * 200), "keratin", 3)) as log:
        assert len(log.group("x" * 200).fetch(5)) == 3


def test_a_closed_log_closes_its_groups(tmp_path: Path) -> None:
    with duramen.open(make_log(tmp_path / "log", "keratin", 3)) as log:
        group = log.group("g")
        with pytest.raises(UsageError, match="already open with other options"):
            log.group("g", window=5)
    with pytest.raises(UsageError, match="closed"):
        group.fetch(1)


# --- many at once


def test_batches_are_columns(tmp_path: Path) -> None:
    root = make_log(tmp_path / "log", "keratin", 1000)
    with duramen.open(root, "a") as log:
        group = log.group("g")
        batch = group.fetch_batch(600, lease=50)
        assert isinstance(batch.records, pa.RecordBatch)
        assert batch.records.schema.names == ["offset", "timestamp", "key", "value", "headers"]
        assert batch.offsets.tolist() == list(range(600))
        assert set(batch.epochs.tolist()) == {1}
        assert next(iter(batch)).value == value(0)
        assert group.ack_many(batch) == 600
        assert group.ack_many(np.array([], np.int64)) == 0
        rest = group.fetch_batch(1000)
        group.nack(rest.offsets[::2], 1)
        assert group.ack_many(pa.array(rest.offsets[1::2]), 1) == 200
        assert group.status()[1:] == (600, 1000, 200, 200, 200, 200, group.status().next_deadline_ms, ())
        mixed = group.fetch_batch(150)
        assert set(mixed.epochs.tolist()) == {2}
        assert len(group.fetch_batch(5000)) == 50
        assert len(group.fetch_batch(5000)) == 0


def test_claims() -> None:
    assert claims_of([]) == []
    assert claims_of(7, 2) == [(7, 8, 2)]
    assert claims_of([9, 4, 5]) == [(4, 6, None), (9, 10, None)]
    assert claims_of([4, 5, 6], [1, 1, 2]) == [(4, 6, 1), (6, 7, 2)]


def test_threads_share_a_group(tmp_path: Path) -> None:
    """Every record goes to exactly one of eight threads, and everything is acknowledged in the end."""
    root = make_log(tmp_path / "log", "keratin", 20_000)
    with duramen.open(root, "a") as log:
        group = log.group("g", compact_bytes=20_000)
        taken: list[int] = []

        def consume() -> None:
            while len(batch := group.fetch_batch(97, lease=60)):
                taken.extend(batch.offsets.tolist())
                group.ack_many(batch)

        threads = [threading.Thread(target=consume) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(taken) == list(range(20_000))
        assert group.status()[1:4] == (20_000, 20_000, 0)
        # A thread that waited long for its turn had left much in flight; this one leaves nothing.
        log.append_batch([value(n) for n in range(20_000, 24_000)])
        consume()
    sizes = [path.stat().st_size for path in (root / "groups").iterdir()]
    assert sum(sizes) < 40_000, "as large as what is in flight, not as what passed"


def test_two_holders_of_the_lock_see_each_other(tmp_path: Path) -> None:
    """Who held the lock last does not read the files again; everybody else does."""
    root = make_log(tmp_path / "log", "keratin", 40)
    with duramen.open(root, "a") as log, duramen.open(root) as other:
        ours, theirs = log.group("g"), other.group("g")
        taken = []
        for _ in range(4):
            for group in (ours, ours, theirs, theirs, theirs):
                held = group.fetch(2)
                taken += [delivery.offset for delivery in held]
                group.ack_many(held)
        assert taken == list(range(40))
        assert ours.status() == theirs.status()


def test_state_that_is_deleted_under_a_group_is_delivered_again(tmp_path: Path) -> None:
    root = make_log(tmp_path / "log", "keratin", 10)
    with duramen.open(root, "a") as log:
        group = log.group("g")
        group.ack_many(group.fetch(4))
        for path in (root / "groups").iterdir():
            path.unlink()
        held = group.fetch(4)
        assert [(delivery.offset, delivery.epoch) for delivery in held] == [(offset, 1) for offset in range(4)]


def test_records_are_read_ahead_up_to_the_end_and_over_segments(tmp_path: Path) -> None:
    with duramen.open(tmp_path / "log", "a", format="durable-log", segment_max_bytes=20_000) as log:
        log.append_batch([b"%05d" % number + bytes(60) for number in range(3000)])
        group = log.group("g")
        taken = []
        while len(batch := group.fetch_batch(70)):
            taken += [int(value[:5]) for value in batch.records.column("value").to_pylist()]
            group.ack_many(batch, durability="write")
        assert taken == list(range(3000))
        log.append(b"03000")
        assert [delivery.value for delivery in group.fetch(70)] == [b"03000"]


# --- waiting


def test_a_fetch_waits_for_records(tmp_path: Path) -> None:
    root = make_log(tmp_path / "log", "keratin", 0)
    with duramen.open(root, "a") as writer, duramen.open(root) as reader:
        timer = threading.Timer(0.2, lambda: writer.append(b"late"))
        timer.start()
        for log in (reader, writer):
            assert [d.value for d in log.group(f"g-{log is reader}").fetch(5, timeout_s=3600)] == [b"late"]
        timer.join()
        started = time.monotonic()
        assert reader.group("g-True").fetch(1, timeout_s=0.3) == []
        assert time.monotonic() - started > 0.25


def test_a_fetch_waits_for_leases_that_end(tmp_path: Path) -> None:
    root = make_log(tmp_path / "log", "keratin", 1)
    with duramen.open(root) as log:
        group = log.group("g")
        group.fetch(1, lease=0.3)
        assert got(group.fetch(1, timeout_s=10)) == [(0, 2)]


# --- steering


def test_reset(tmp_path: Path, clock: Clock) -> None:
    with duramen.open(tmp_path / "log", "a") as log:
        for number in range(10):
            log.append(b"%d" % number, timestamp=1_600_000_000_000 + number * 1000)
        group = log.group("g", clock=clock)
        held = group.fetch(10, lease=10)
        group.ack_many(held[:6])
        assert group.reset(4) == 4
        assert group.status()[1:5] == (4, 10, 6, 4)
        with pytest.raises(LeaseError, match="a reset of the group ended the lease"):
            group.ack(held[8])
        assert sorted(got(group.fetch(10))) == [(4, 1), (5, 1), (6, 2), (7, 2), (8, 2), (9, 2)]
        with pytest.raises(LeaseError, match="delivered again"):
            group.ack(held[8])
        assert group.reset(time=1_600_000_007_500) == 8
        assert group.acked_until == 8
        assert group.reset("end") == 10
        assert group.lag == 0
        assert group.reset("beginning") == 0
        assert group.lag == 10
        with pytest.raises(OffsetError, match="does not contain"):
            group.reset(11)


def test_after_a_reset_no_consumer_is_taken_for_the_next_holder(tmp_path: Path, clock: Clock) -> None:
    """Also one whose lease had ended before, and who comes back late."""
    with duramen.open(make_log(tmp_path / "log", "keratin", 4)) as log:
        group = log.group("g", clock=clock)
        late = group.fetch(2, lease=1)
        clock.now_ms += 2000
        group.reset("beginning")
        assert got(group.fetch(2)) == [(0, 2), (1, 2)]
        with pytest.raises(LeaseError, match="is old"):
            group.ack_many(late)
        assert group.acked_until == 0


@pytest.mark.parametrize("give_back", ["ack", "nack", "extend"])
def test_a_claim_that_does_not_hold_makes_no_group(tmp_path: Path, give_back: str) -> None:
    """Nor does it bring one back that was deleted: that would begin elsewhere than it was told to."""
    root = make_log(tmp_path / "log", "keratin", 10)
    with duramen.open(root, "a") as log, duramen.open(root) as other:
        group = log.group("g", start="end")
        with pytest.raises(LeaseError, match="not in flight"):
            getattr(group, give_back)([3], epochs=1) if give_back != "ack" else group.ack(3, 1)
        assert not consumer_lags(log)
        log.append(b"more")
        assert group.fetch(1) == []
        log.append(value(11))
        (late,) = group.fetch(1)
        assert other.group("g").delete()
        with pytest.raises(LeaseError, match="not in flight"):
            getattr(group, give_back)(late)
        assert not consumer_lags(log)
        assert group.fetch(1) == [], "it starts at the end again"


def test_a_new_group_starts_at_the_given_start(tmp_path: Path) -> None:
    root = make_log(tmp_path / "log", "keratin", 5)
    with duramen.open(root) as log:
        assert log.group("late", start="end").status()[1:4] == (5, 5, 0)
        assert log.group("late").fetch(1) == []
        assert got(log.group("middle", start=3).fetch(1)) == [(3, 1)]
    with duramen.open(root) as log:
        assert log.group("late", start="beginning").lag == 0, "it is there already"


def test_a_window_bounds_what_is_ahead(tmp_path: Path, clock: Clock) -> None:
    with duramen.open(make_log(tmp_path / "log", "keratin", 50)) as log:
        group = log.group("g", window=10, clock=clock)
        stuck, *others = group.fetch(100)
        assert len(others) == 9
        group.ack_many(others)
        assert group.fetch(1) == []
        group.ack(stuck)
        assert len(group.fetch(100)) == 10


def test_delete(tmp_path: Path) -> None:
    root = make_log(tmp_path / "log", "keratin", 5)
    with duramen.open(root) as log:
        group = log.group("g")
        group.ack_many(group.fetch(5))
        assert group.delete()
        assert not group.delete()
        assert list((root / "groups").iterdir()) == []
        assert len(group.fetch(5)) == 5


def test_what_is_still_needed(tmp_path: Path) -> None:
    root = make_log(tmp_path / "log", "osiris", 5)
    with duramen.open(root) as log:
        log.cursor("c").store(4)
        for name, acked in (("a", 2), ("b", 5)):
            log.group(name).ack_many(log.group(name).fetch(acked))
        assert needed_from(log) == [("group", "a", 2), ("group", "b", 5), ("cursor", "c", 4)]
        (root / ".duramen" / "groups" / "log-0_a.snap").write_bytes(b"KSNAP\0\0\0 and nothing good")
        Path(log.cursor("c").path).write_bytes(b"")
        assert needed_from(log) == [("group", "a", 0), ("group", "b", 5), ("cursor", "c", 0)]
        problems = {standing.name: standing.problem for standing in consumer_lags(log)}
        assert problems["b"] is None
        assert problems["a"]
        assert problems["c"]


@pytest.mark.parametrize("mode", ["a", "r"])
def test_retention_at_the_very_moment_of_a_look_does_not_end_the_log(
    tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with duramen.open(make_log(tmp_path / "log", "keratin", 10), mode) as log:
        group = log.group("g")
        group.ack_many(group.fetch(3))
        group = Group(log, "g")  # which has read nothing ahead
        batches, calls = log.batches, []

        def overtaken(*args: Any, **named: Any) -> Any:
            calls.append(args)
            if len(calls) == 1:
                raise OffsetError("removed before its turn")
            return batches(*args, **named)

        monkeypatch.setattr(log, "batches", overtaken)
        assert group.status().lag == 7
        assert [delivery.offset for delivery in group.fetch(10)] == list(range(3, 10))


def test_records_that_retention_removed_are_done_with(tmp_path: Path, clock: Clock) -> None:
    root = make_log(tmp_path / "log", "durable-log", 0)
    with duramen.open(root, "a", segment_max_bytes=200) as log:
        for number in range(20):
            log.append(value(number))
        segments = [Path(info.path) for info in log.segments]
        group = log.group("g", clock=clock)
        group.fetch(4, lease=1)
    kept = int(segments[2].stem.rpartition("_")[2])
    for path in segments[:2]:
        path.unlink()
        path.with_suffix(".idx").unlink()
    (root / ".duramen" / "sealed.jsonl").unlink()
    clock.now_ms += 2000
    with duramen.open(root) as log:
        group = log.group("g", clock=clock)
        assert log.first_offset == kept
        assert group.status()[1:4] == (kept, 20, 20 - kept)
        assert [delivery.offset for delivery in group.fetch(100)] == list(range(kept, 20))


# --- dead letters


@pytest.mark.parametrize("by_path", [False, True])
@pytest.mark.parametrize("format_name", ["keratin", "osiris", "rustlog"])
def test_dead_letters(tmp_path: Path, clock: Clock, format_name: str, by_path: bool) -> None:
    target = make_log(tmp_path / "dead", format_name, 0)
    with duramen.open(tmp_path / "log", "a") as log, duramen.open(target, "r" if by_path else "a") as dead:
        log.append(b"poison", key=b"k", headers=[("own", b"1")], timestamp=1_600_000_000_000)
        log.append_batch([b"good", b"lost"])
        letters: Any = target if by_path else dead
        group = log.group("g", max_attempts=2, dead_letter=letters, clock=clock)
        for _ in range(2):
            first, *others = group.fetch(1)
            assert not others
            group.nack(first, reason="cannot be parsed")
        assert got(group.fetch(5, lease=1)) == [(1, 1), (2, 1)]
        clock.now_ms += 1000
        good, _ = group.fetch(5, lease=1)
        group.ack(good)
        clock.now_ms += 1000
        assert group.fetch(5) == []
        assert group.lag == 0
        dead.refresh()
        first, second = dead.scan()
        if not dead.codec.capabilities.headers:
            tree = json.loads(first.value)
            assert (tree["reason"], tree["offset"], tree["attempts"]) == ("cannot be parsed", 0, 2)
            assert (tree["value_base64"], tree["key_base64"]) == ("cG9pc29u", "aw==")
            assert tree["headers"] == [{"key": "own", "value_base64": "MQ=="}]
            assert json.loads(second.value)["reason"] == "not acknowledged in 2 deliveries"
            return
        headers = dict(first.headers or [])
        assert first.value == b"poison"
        assert headers["own"] == b"1"
        assert headers["duramen-dead-letter-reason"] == b"cannot be parsed"
        assert headers["duramen-dead-letter-group"] == b"g"
        assert headers["duramen-dead-letter-source"] == str(tmp_path / "log").encode()
        assert headers["duramen-dead-letter-offset"] == b"0"
        assert headers["duramen-dead-letter-attempts"] == b"2"
        assert headers["duramen-dead-letter-timestamp"] == b"2020-09-13T12:26:40+00:00"
        assert first.key == b"k" if dead.codec.capabilities.key else headers["duramen-dead-letter-key"] == b"k"
        assert second.value == b"lost"
        assert dict(second.headers or [])["duramen-dead-letter-reason"] == b"not acknowledged in 2 deliveries"


def test_a_fixed_slot_log_holds_no_dead_letters(tmp_path: Path) -> None:
    target = make_log(tmp_path / "dead", "fixed-slot", 0)
    with (
        duramen.open(make_log(tmp_path / "log", "keratin", 1)) as log,
        duramen.open(target, "a") as dead,
        pytest.raises(UsageError, match="cannot store dead letters"),
    ):
        log.group("g", max_attempts=1, dead_letter=dead)


def test_a_log_does_not_take_its_own_dead_letters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The group would get each of them again, and give it up again, for ever."""
    monkeypatch.chdir(tmp_path)
    with duramen.open("log", "a") as log:
        for target in (log, "log", tmp_path / "log", f"{tmp_path}/./log/"):
            with pytest.raises(UsageError, match="its own dead letters"):
                log.group("g", max_attempts=1, dead_letter=target)
        log.group("g", max_attempts=1, dead_letter="log 2")


# --- damage


def test_damage_in_the_log_comes_after_what_is_before_it(tmp_path: Path) -> None:
    root = make_log(tmp_path / "log", "keratin", 20)
    segment = next((root / "segments").glob("*.log"))
    raw = bytearray(segment.read_bytes())
    raw[len(raw) // 2] ^= 1
    segment.write_bytes(raw)
    with duramen.open(root) as log:
        group = log.group("g")
        before = group.fetch(100)
        assert 0 < len(before) < 20
        with pytest.raises(CorruptionError):
            group.fetch(100)
        assert group.ack_many(before) == len(before)


def _damaged_group(root: Path, name: str, change: Any) -> bytes:
    path = next((root / "groups").glob(f"*.{name}"))
    raw = bytearray(path.read_bytes())
    change(raw)
    path.write_bytes(raw)
    return bytes(raw)


def _consumed(tmp_path: Path, clock: Clock) -> Path:
    """Acked 0 to 3 and 6; 4 and 5 in flight; a snapshot in the middle of it."""
    root = make_log(tmp_path / "log", "keratin", 10)
    with duramen.open(root) as log:
        group = log.group("g", clock=clock)
        held = group.fetch(7, lease=1000)
        group.ack_many(held[:2])
        group.compact()
        group.ack_many(held[2:4])
        group.ack(held[6])
    return root


def _flip(raw: bytearray, position: int) -> None:
    raw[position] ^= 0x10


def test_a_torn_delta_is_abandoned(tmp_path: Path, clock: Clock) -> None:
    """What a killed process wrote half is copied aside; nothing else is lost."""
    root = _consumed(tmp_path, clock)
    torn = _damaged_group(root, "delta", lambda raw: raw.extend(b"\x4b\x45\x00\x01\x00\x02\x00\x00"))
    with duramen.open(root) as log:
        group = log.group("g", clock=clock)
        assert group.status()[1:6] == (4, 10, 5, 2, 0)
        group.ack(4, 1)
        assert group.acked_until == 5
    kept = list((root / ".duramen" / "quarantine").iterdir())
    assert [path.read_bytes() for path in kept] == [torn[-8:]]
    with duramen.open(root) as log:
        assert log.group("g", clock=clock).acked_until == 5


def test_a_full_disk_is_not_filled_with_copies_that_failed(tmp_path: Path, clock: Clock) -> None:
    root = _consumed(tmp_path, clock)
    _damaged_group(root, "delta", lambda raw: raw.extend(b"\x4b\x45\x00\x01\x00\x02\x00\x00"))
    disk = FaultyDisk(PosixDisk(), "write#1-5 *quarantine*: ENOSPC")
    with ConsumableLog(str(root), disk=disk) as log:
        group = log.group("g", clock=clock)
        for _ in range(5):
            with pytest.raises(StorageError, match="no space left"):
                group.ack(4, 1)
        assert group.ack(4, 1)
    assert len(list((root / ".duramen" / "quarantine").iterdir())) == 1


def test_a_bad_place_in_the_delta_costs_what_was_there(tmp_path: Path, clock: Clock) -> None:
    """A finding, not a refusal: a power loss may leave that. The events behind it count."""
    root = _consumed(tmp_path, clock)
    raw = _damaged_group(root, "delta", lambda raw: _flip(raw, 60 + 14))
    with duramen.open(root) as log:
        problem = consumer_lags(log)[0].problem
        assert problem
        assert "byte 60: checksum mismatch; intact events continue at byte 84" in problem
        assert next((root / "groups").glob("*.delta")).read_bytes() == raw, "looking changes nothing"
        assert not duramen.verify(root).ok
        group = log.group("g", clock=clock)
        status = group.status()
        assert status.warnings == (problem,)
        assert (status.acked_until, status.acked_ahead) == (2, 1), "6 is known, 2 and 3 are delivered again"
        clock.now_ms += 2_000_000
        assert sorted(d.offset for d in group.fetch(100)) == [2, 3, 4, 5, 7, 8, 9]
    assert [p.read_bytes() for p in (root / ".duramen" / "quarantine").iterdir()] == [raw[60:]]
    assert duramen.verify(root).ok
    with duramen.open(root) as log:
        assert log.group("g", clock=clock).status().acked_until == 2
        assert consumer_lags(log)[0].problem is None


def test_a_damaged_snapshot_is_refused_and_delivers_again(tmp_path: Path, clock: Clock) -> None:
    root = _consumed(tmp_path, clock)
    for position in (0, 9, 20, 60, 77, 90, 110, -1):
        raw = _damaged_group(root, "snap", lambda raw, at=position: _flip(raw, at))
        with duramen.open(root) as log, pytest.raises(CorruptionError) as caught:
            log.group("g", clock=clock).fetch(1)
        assert caught.value.path
        assert caught.value.path.endswith(".snap")
        assert _damaged_group(root, "snap", lambda raw, at=position: _flip(raw, at)) != raw
    _damaged_group(root, "snap", lambda raw: _flip(raw, 90))
    with duramen.open(root) as log:
        group = log.group("g", clock=clock, on_damage="redeliver")
        status = group.status()
        assert status.acked_until == 4, "the delta says so: a bump is a fact"
        assert [d.offset for d in group.fetch(100)] == [4, 5, 7, 8, 9]


@pytest.mark.parametrize("name", ["snap", "delta"])
def test_unknown_versions_are_never_skipped(tmp_path: Path, clock: Clock, name: str) -> None:
    root = _consumed(tmp_path, clock)
    _damaged_group(root, name, lambda raw: raw.__setitem__(9, 2))
    with duramen.open(root) as log:
        with pytest.raises(duramen.UnknownVersionError):
            log.group("g", on_damage="redeliver").fetch(1)
        assert needed_from(log)[0].offset == 0


@pytest.mark.parametrize("lost", [("snap",), ("delta",), ("snap", "delta")])
def test_lost_files_deliver_again(tmp_path: Path, clock: Clock, lost: tuple[str, ...]) -> None:
    root = _consumed(tmp_path, clock)
    for name in lost:
        next((root / "groups").glob(f"*.{name}")).unlink()
    clock.now_ms += 2_000_000
    with duramen.open(root) as log:
        offsets = sorted(d.offset for d in log.group("g", clock=clock).fetch(100))
    assert {4, 5, 7, 8, 9} <= set(offsets)
    assert offsets == {
        ("snap",): [4, 5, 7, 8, 9], ("delta",): list(range(2, 10)), ("snap", "delta"): list(range(10)),
    }[lost]  # fmt: skip


def test_a_group_that_knows_more_than_the_log_is_rewound(tmp_path: Path) -> None:
    """A power loss took records that were written and not synced; other records get their offsets."""
    root = make_log(tmp_path / "log", "durable-log", 5)
    segment = next(root.glob("*.log"))
    short = segment.read_bytes()
    with duramen.open(root, "a") as log:
        log.append_batch([value(5), value(6)])
        group = log.group("g")
        group.ack_many(group.fetch(7))
        log.group("ahead").ack(log.group("ahead").fetch(7)[6])
    segment.write_bytes(short)
    next(root.glob("*.idx")).unlink()  # which was not synced either, and would tell of the records
    for name in ("watermark", "sealed.jsonl"):
        (root / ".duramen" / name).unlink(missing_ok=True)
    with ConsumableLog(str(root)) as log:
        assert [s.problem is not None for s in consumer_lags(log)] == [True, True]
    with duramen.open(root, "a") as log:
        assert log.next_offset == 5
        assert log.group("g").acked_until == 5
        assert log.append(b"new") == 5
        assert [d.value for d in log.group("g").fetch(9)] == [b"new"]
        assert [s.problem for s in consumer_lags(log)] == [None, None]


def test_a_closed_group_has_no_file_open(tmp_path: Path) -> None:
    root = make_log(tmp_path / "log", "keratin", 4)

    def opened() -> list[str]:
        links = Path("/proc/self/fd").iterdir()
        return [target for link in links if link.is_symlink() and str(root) in (target := str(link.readlink()))]

    for _ in range(2):
        log = duramen.open(root)
        group = log.group("g")
        group.ack_many(group.fetch(1))
        log.close()
        assert opened() == [], "without waiting for the garbage collector"


def test_the_repr_names_group_and_log(tmp_path: Path) -> None:
    with duramen.open(make_log(tmp_path / "log", "keratin", 0)) as log:
        assert repr(Group(log, "g")).startswith("<duramen.Group 'g' of ")


@pytest.mark.parametrize(
    ("limits", "rewritten"),
    [
        ({}, False),
        ({"compact_bytes": 3_000}, True),
        ({"compact_in_flight": 10}, True),
        ({"compact_bytes": 8_000}, False),
    ],
)
def test_the_limits_of_a_delta_are_options(tmp_path: Path, limits: dict[str, int], rewritten: bool) -> None:
    """Each record in flight is an event of 36 bytes, and every lease that is extended is another one."""
    with duramen.Store(tmp_path / "store") as store:
        topic = store.create("t", partitions=1, format="keratin")
        topic.append_batch([b"value"] * 20)
        group = topic.group("g", **limits)
        taken = list(group.fetch(20))
        for _ in range(6):
            group.extend(taken, lease=60)
    (delta,) = (tmp_path / "store").rglob("groups/*.delta")
    assert (delta.stat().st_size < 36 * 20 * 4) == rewritten


@pytest.mark.parametrize("limit", [{"compact_bytes": 0}, {"compact_bytes": 2**30}, {"compact_in_flight": "many"}])
def test_limits_of_a_delta_that_are_refused(tmp_path: Path, limit: dict[str, object]) -> None:
    with (
        duramen.open(tmp_path / "log", "a") as log,
        pytest.raises(UsageError, match=f"{next(iter(limit))} must be 1 to"),
    ):
        log.group("g", **limit)
