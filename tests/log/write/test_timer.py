"""What a writer does on time: it syncs what was acknowledged at ``interval``, and seals a segment that is too old."""

from __future__ import annotations

import gc
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest

import duramen
from duramen.log.write import timer
from duramen.testing import FaultyDisk, SimulatedDisk
from tests.log.conftest import value
from tests.log.writing import SEGMENTED, Open, codes, content, values

HOUR_MS = 3_600_000


class Hand:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.ns = 1_700_000_000_000_000_000

    def __call__(self) -> int:
        return self.ns

    def pass_ms(self, ms: float) -> None:
        self.ns += int(ms * 1_000_000)


def on_simulated(hand: Hand, rule: str | None = None, **more: Any) -> duramen.WritableLog:
    disk = SimulatedDisk()
    return duramen.open("/log", "a", disk=disk if rule is None else FaultyDisk(disk, rule), clock=hand, **more)


def test_a_sync_follows_within_the_interval(create: Open, format_name: str) -> None:
    hand = Hand()
    with create(format_name, durability="interval", clock=hand, sync_interval_ms=500) as log:
        for number in range(3):
            log.append(value(number))
        assert (log.next_offset, log.durable_offset) == (3, 0)
        hand.pass_ms(499)
        log.run_due()
        assert log.durable_offset == 0
        hand.pass_ms(1)
        log.run_due()
        assert (log.next_offset, log.durable_offset) == (3, 3)
        log.append(value(3))
        hand.pass_ms(499)
        log.run_due()
        assert log.durable_offset == 3, "the interval starts with the first record after a sync"


@pytest.mark.parametrize("limit", [{"sync_interval_records": 4}, {"sync_interval_bytes": 4 * len(value(0))}], ids=str)
def test_the_append_that_completes_the_interval_syncs(limit: dict[str, int]) -> None:
    with on_simulated(Hand(), durability="interval", **limit) as log:
        durable = []
        for number in range(9):
            log.append(value(number))
            durable.append(log.durable_offset)
        assert durable == [0, 0, 0, 4, 4, 4, 4, 8, 8]
        log.append_batch(values(9, 7))
        assert log.durable_offset == 16


def test_only_records_of_interval_are_owed_a_sync() -> None:
    hand = Hand()
    with on_simulated(hand, durability="write", sync_interval_records=2) as log:
        log.append_batch(values(0, 5))
        hand.pass_ms(HOUR_MS)
        log.run_due()
        assert log.durable_offset == 0
        log.append(value(5), durability="interval")
        log.append(value(6))
        assert log.durable_offset == 0
        log.append(value(7), durability="interval")
        assert log.durable_offset == 8, "the sync covers all"
        log.append(value(8), durability="interval")
        log.sync()
        log.append(value(9), durability="interval")
        assert log.durable_offset == 9, "a sync on request starts the interval again"


def test_the_timer_syncs_in_its_own_thread(create: Open) -> None:
    with create("keratin", durability="interval", sync_interval_ms=1) as log:
        for number in range(20):
            log.append(value(number))
            seen = None
            while log.durable_offset <= number:
                seen = log.wait(10, seen)


def test_the_timer_outlives_a_process_without_threads(create: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = threading.Semaphore(0)
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "duramen due":
            refused.release()
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with create("keratin", durability="interval", sync_interval_ms=1) as log:
        for number in range(2):
            log.append(value(number))
            assert refused.acquire(timeout=120)
            seen = None
            while log.durable_offset <= number:
                seen = log.wait(10, seen)


def test_a_failed_sync_of_the_timer_poisons_the_writer() -> None:
    hand = Hand()
    log = on_simulated(hand, "sync#2 *.log: EIO", durability="interval", timer=False)
    log.append(value(0))
    hand.pass_ms(1000)
    log.run_due()
    assert log.is_poisoned
    assert log.durable_offset == 0
    with pytest.raises(duramen.PoisonedError, match=r"an earlier write or sync failed: .*input/output error"):
        log.append(value(1))
    log.close()


def test_a_log_that_was_closed_is_left_alone(create: Open, root: Path) -> None:
    hand = Hand()
    log = create("keratin", durability="interval", clock=hand, timer=False)
    log.append(value(0))
    log.close()
    hand.pass_ms(HOUR_MS)
    log.run_due()
    assert content(root) == values(0, 1)


def test_the_timer_does_not_keep_a_log_alive() -> None:
    log = on_simulated(Hand(), durability="interval", sync_interval_ms=HOUR_MS)
    log.append(value(0))
    gone = weakref.ref(log)
    del log
    gc.collect()
    assert gone() is None


def test_one_thread_waits_for_all_logs() -> None:
    logs = [on_simulated(Hand(), durability="interval", sync_interval_ms=HOUR_MS) for _ in range(20)]
    for log in logs:
        log.append(value(0))
    assert sum(thread.name == "duramen timer" for thread in threading.enumerate()) == 1
    for log in logs:
        log.close()


@pytest.mark.parametrize("name", ["ms", "records", "bytes"])
@pytest.mark.parametrize("wrong", [0, -1, "1s"])
def test_a_wrong_interval_is_refused(root: Path, name: str, wrong: object) -> None:
    with pytest.raises(duramen.UsageError, match=rf"sync_interval_{name} must be .* \(got {wrong!r}\)"):
        duramen.open(root, "a", **{f"sync_interval_{name}": wrong})
    assert not root.exists()


# --- age


@pytest.mark.parametrize("name", SEGMENTED)
def test_an_idle_segment_is_sealed_when_it_is_too_old(create: Open, root: Path, name: str) -> None:
    hand = Hand()
    with create(name, segment_max_age_ms=60_000, clock=hand, timer=False) as log:
        log.run_due()
        log.append(value(0))
        hand.pass_ms(59_999)
        log.run_due()
        assert len(log.segments) == 1
        hand.pass_ms(1)
        log.run_due()
        assert [segment.sealed for segment in log.segments] == [True, False]
        hand.pass_ms(HOUR_MS)
        log.run_due()
        assert len(log.segments) == 2, "an empty segment has no age"
        log.append(value(1))
    assert content(root) == values(0, 2)
    assert codes(root) == []


def test_rustlog_is_sealed_after_an_hour_without_an_option(create: Open) -> None:
    hand = Hand()
    with create("rustlog", clock=hand, timer=False) as log:
        log.append(value(0))
        hand.pass_ms(HOUR_MS)
        log.run_due()
        assert len(log.segments) == 2


def test_the_timer_seals_without_an_append(create: Open) -> None:
    with create("keratin", segment_max_age_ms=1) as log:
        log.append(value(0))
        seen = None
        while len(log.segments) == 1:
            seen = log.wait(10, seen)


def test_a_segment_that_is_too_old_at_open_is_sealed_a_little_later(
    create: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand = Hand()
    with create("rustlog", clock=hand) as log:
        log.append(value(0))
    hand.pass_ms(2 * HOUR_MS)
    waits: list[float] = []
    monkeypatch.setattr(timer.Alarm, "set", lambda _self, seconds: waits.append(seconds))
    with create("rustlog", clock=hand) as log:
        assert waits == [60.0], "a program that opens a log for a moment does not seal it"
        log.run_due()
        assert len(log.segments) == 2


def test_a_transaction_is_not_sealed_in_its_middle(root: Path) -> None:
    """Its rows do not go through the queue, so the timer must stay away from them."""
    from duramen.log import TransactionPart, commit_batch
    from duramen.sidecar import BatchKey

    def rows() -> Any:
        for number in range(50):
            yield values(number, 1)

    part = TransactionPart("", rows, options={"format": "keratin", "segment_max_age_ms": 1})
    commit_batch(str(root), BatchKey("w", 0, "a"), [part])
    assert content(root) == values(0, 50)
