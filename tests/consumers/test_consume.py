"""The loop of a consumer: leases kept alive, records acknowledged and returned, graceful stops."""

from __future__ import annotations

import gc
import math
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import duramen
from duramen.errors import UsageError
from tests.consumers.logs import make_log, value

WORKER = Path(__file__).parents[2] / "examples" / "worker.py"


def wait_for(condition: Callable[[], Any]) -> None:
    """Wait for an event of another thread or process; a minute means that it never comes."""
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until, "it never happened"
        time.sleep(0.005)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[duramen.WritableLog]:
    with duramen.open(make_log(tmp_path / "log", "keratin", 4), "a") as log:
        yield log


def test_a_record_is_acknowledged_when_the_next_one_is_asked_for(log: duramen.WritableLog) -> None:
    group = log.group("g")
    with group.consume(timeout_s=0) as loop:
        for delivery in loop:
            assert group.acked_until == delivery.offset, "acknowledged only after its body"
            assert group.in_flight == 1
    assert group.lag == 0
    assert list(group.consume(timeout_s=0)) == []


def test_an_exception_returns_the_record_with_its_reason(log: duramen.WritableLog, tmp_path: Path) -> None:
    group = log.group("g", max_attempts=1, dead_letter=tmp_path / "dead")

    def fails() -> None:
        with group.consume() as loop:
            for delivery in loop:
                if delivery.offset == 1:
                    raise ValueError("no such customer")

    with pytest.raises(ValueError, match="no such customer"):
        fails()
    assert (group.acked_until, group.in_flight) == (2, 0)
    with duramen.open(tmp_path / "dead") as dead:
        assert dict(dead.read(0).headers or [])["duramen-dead-letter-reason"] == b"ValueError: no such customer"


def test_run_goes_on_after_a_failure(log: duramen.WritableLog) -> None:
    group, seen = log.group("g"), []

    def handle(delivery: duramen.Delivery) -> None:
        seen.append((delivery.offset, delivery.epoch))
        if delivery.offset == 1 and delivery.epoch == 1:
            raise OSError("busy")

    assert group.consume(timeout_s=0, retry_delay=0).run(handle) == 4
    assert seen == [(0, 1), (1, 1), (1, 2), (2, 1), (3, 1)]
    assert group.lag == 0


@pytest.mark.parametrize("with_block", [True, False])
def test_break_returns_the_record(log: duramen.WritableLog, with_block: bool) -> None:
    """It may come before the work: only asking for the next record says that this one is done."""
    group = log.group("g")
    if with_block:
        with group.consume(retry_delay=0) as loop:
            for _ in loop:
                break
    else:
        for _ in group.consume(retry_delay=0):
            break
        gc.collect()
        wait_for(lambda: group.status().expired)
    assert [(delivery.offset, delivery.epoch) for delivery in group.fetch(1)] == [(0, 2)]


def test_a_plain_for_returns_the_record_of_an_exception(log: duramen.WritableLog) -> None:
    group = log.group("g")

    def fails() -> None:
        for _ in group.consume():
            raise ValueError

    with pytest.raises(ValueError):
        fails()
    gc.collect()
    wait_for(lambda: group.status().expired)


def test_the_lease_is_extended_while_the_body_runs(log: duramen.WritableLog) -> None:
    group, first = log.group("g"), []
    for delivery in group.consume(lease=0.3, timeout_s=0):
        if not first:
            first.append(delivery.deadline_ms)
            wait_for(lambda: (group.status().next_deadline_ms or 0) > first[0] + 300)
            assert [other.offset for other in group.fetch(9)] == [1, 2, 3], "the first one is still held"
        assert delivery.epoch == 1
    assert group.status()[1:5] == (1, 4, 3, 3)


def test_a_hung_body_does_not_hold_its_record_forever(log: duramen.WritableLog) -> None:
    group = log.group("g")
    with group.consume(lease=0.2, max_lease_s=0, timeout_s=0) as loop:
        held = next(loop)
        taken: list[Any] = []
        wait_for(lambda: taken.extend(group.fetch(1)) or [one for one in taken if one.offset == held.offset])
        assert next(loop, None) is None, "the ack is refused, and the loop goes on"
    assert group.acked_until == 0


def test_stop_ends_the_loop_after_the_current_record(log: duramen.WritableLog) -> None:
    group, seen = log.group("g"), []
    with group.consume() as loop:
        for delivery in loop:
            seen.append(delivery.offset)
            if delivery.offset == 1:
                loop.stop()
    assert (seen, group.acked_until, group.in_flight) == ([0, 1], 2, 0)


def test_stop_wakes_a_loop_that_waits(log: duramen.WritableLog) -> None:
    group = log.group("g", start="end")
    loop = group.consume()
    thread = threading.Thread(target=loop.run, args=(print,))
    thread.start()
    loop.stop()
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_loop_and_the_next_one_acts_as_before(log: duramen.WritableLog, number: int) -> None:
    caught: list[int] = []
    before = signal.signal(number, lambda got, _frame: caught.append(got))
    try:
        with log.group("g").consume() as loop:
            for _ in loop:
                signal.raise_signal(number)
                assert loop.is_stopping
                signal.raise_signal(number)
        assert (log.group("g").acked_until, caught) == (1, [number])
        for _ in log.group("g").consume():
            break
        signal.raise_signal(number)
        assert caught == [number] * 2, "an abandoned loop swallows no signal"
    finally:
        signal.signal(number, before)


def test_an_ignored_signal_stays_ignored(log: duramen.WritableLog) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with log.group("g").consume(timeout_s=0) as loop:
            for _ in loop:
                signal.raise_signal(signal.SIGINT)
        assert log.group("g").lag == 0
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(("name", "value"), [("timeout_s", "1s"), ("max_lease_s", "1h"), ("max_lease_s", math.nan)])
def test_a_wrong_time_is_refused_before_a_record_is_fetched(log: duramen.WritableLog, name: str, value: Any) -> None:
    options: Any = {name: value}
    with pytest.raises(UsageError, match=f"{name} must be a number of seconds"):
        log.group("g").consume(**options)


def test_wrong_usage_of_consume(log: duramen.WritableLog) -> None:
    group, errors = log.group("g"), []

    def elsewhere() -> None:
        try:
            group.consume(signals=True)
        except UsageError as error:
            errors.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert "main thread only" in str(errors[0])
    with pytest.raises(UsageError, match="must be longer than 0"):
        group.consume(lease=0)
    with pytest.raises(UsageError, match="consume\\(\\) has no option 'leese'"):
        group.consume(leese=3)  # type: ignore[call-arg]


def test_a_topic_is_consumed(tmp_path: Path) -> None:
    with duramen.Store(tmp_path / "store") as store:
        topic = store.create("orders", partitions=2)
        topic.append_batch([value(n) for n in range(6)], routing_key=[b"%d" % n for n in range(6)])
        seen: list[bytes] = []
        assert topic.group("g").consume(timeout_s=0).run(lambda delivery: seen.append(delivery.value)) == 6
        assert sorted(seen) == sorted(value(n) for n in range(6))
        assert topic.group("g").lag == 0


# --- the worker of the documentation


class Worker:
    """The worker of examples/, whose command says what it works on and waits until it may finish."""

    def __init__(self, root: Path, lease_s: float) -> None:
        self.notes, self.go = root / "notes", root / "go"
        script = 'cat >> "$0"; echo >> "$0"; while [ ! -e "$1" ]; do sleep 0.01; done'
        command = ["sh", "-c", script, str(self.notes), str(self.go)]
        arguments = [str(root / "log"), "billing", "--lease", str(lease_s), "--", *command]
        self.process = subprocess.Popen([sys.executable, str(WORKER), *arguments], stderr=subprocess.PIPE, text=True)

    def seen(self) -> list[bytes]:
        return self.notes.read_bytes().splitlines() if self.notes.exists() else []


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Callable[[float], Worker]]:
    make_log(tmp_path / "log", "keratin", 3)
    workers: list[Worker] = []

    def start(lease_s: float) -> Worker:
        workers.append(Worker(tmp_path, lease_s))
        return workers[-1]

    yield start
    (tmp_path / "go").touch()
    for each in workers:
        each.process.kill()
        each.process.communicate()


@pytest.mark.slow
def test_the_worker_finishes_its_record_on_sigterm(worker: Callable[[float], Worker], tmp_path: Path) -> None:
    one = worker(30.0)
    wait_for(one.seen)
    one.process.send_signal(signal.SIGTERM)
    one.go.touch()
    _, said = one.process.communicate(timeout=60)
    assert one.process.returncode == 0, said
    assert "stopped after 1 records" in said
    assert one.seen() == [value(0)]
    with duramen.open(tmp_path / "log") as log:
        assert log.group("billing").status()[1:5] == (1, 3, 2, 0)


@pytest.mark.slow
def test_the_record_of_a_killed_worker_goes_to_another_one(worker: Callable[[float], Worker], tmp_path: Path) -> None:
    one = worker(1.0)
    wait_for(one.seen)
    one.process.kill()
    one.process.wait()
    one.go.touch()
    two = worker(1.0)
    wait_for(lambda: len(two.seen()) == 4)
    with duramen.open(tmp_path / "log") as log:
        group = log.group("billing")
        wait_for(lambda: group.lag == 0)
    two.process.send_signal(signal.SIGTERM)
    assert two.process.wait(60) == 0
    assert sorted(two.seen()) == [value(0), value(0), value(1), value(2)], "one twice, none lost"
