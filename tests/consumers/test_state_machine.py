"""The state of a group against a model that keeps one entry per offset, and the same state by every way there is."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from duramen.consumers.groups.interval_map import IntervalMap
from duramen.consumers.groups.state_machine import LeaseClaim, StateMachine, runs_of
from duramen.errors import CorruptionError
from duramen.formats import stroma
from duramen.formats.stroma.columns import (
    Acked,
    Bumped,
    Cleared,
    Marked,
    Run,
    WasReset,
    decode_events,
    decode_snapshot,
    encode_runs,
    encode_snapshot,
)
from tests.formats.stroma import plain
from tests.sampling import examples

OFFSETS = st.integers(0, 40)
LENGTHS = st.integers(1, 8)


# --- spans


@given(st.lists(st.tuples(st.booleans(), OFFSETS, st.integers(0, 9), st.integers(1, 3))))
def test_spans_are_a_map(steps: list[tuple[bool, int, int, int]]) -> None:
    spans: IntervalMap[int] = IntervalMap()
    model: dict[int, int] = {}
    for put, start, length, value in steps:
        for offset in range(start, start + length):
            if put:
                model[offset] = value
            else:
                model.pop(offset, None)
        if put:
            spans.put(start, start + length, value)
        else:
            spans.cut(start, start + length)
        assert {o: s.value for s in spans for o in range(s.start, s.end)} == model
        assert len(spans) == len(model)
        runs = list(spans)
        for before, after in pairwise(runs):
            assert before.end < after.start or (before.end == after.start and before.value != after.value)
        for offset in range(52):
            at = spans.at(offset)
            assert (at is not None and at.value) == model.get(offset, False)
            following = [run.start for run in runs if run.start > offset]
            assert spans.next_start(offset) == (min(following) if following else None)
        assert {o: s.value for s in spans.within(5, 30) for o in range(s.start, s.end)} == {
            o: v for o, v in model.items() if 5 <= o < 30
        }


# --- one entry per offset


class Model:
    """The rules of the format, as plainly as they can be written."""

    def __init__(self) -> None:
        self.acked: set[int] = set()
        self.until = 0
        self.leases: dict[int, tuple[int, int]] = {}

    def apply(self, event: plain.Event) -> None:
        if isinstance(event, plain.MarkInflight):
            held = self.leases.get(event.offset)
            if not self.is_acked(event.offset) and (held is None or held[1] <= event.epoch):
                self.leases[event.offset] = (event.deadline_ts_ms, event.epoch)
        elif isinstance(event, plain.Ack):
            self.acked.add(event.offset)
            self.leases.pop(event.offset, None)
        elif isinstance(event, plain.ClearInflight):
            self.leases.pop(event.offset, None)
        elif isinstance(event, plain.BumpAckedUntil):
            self.until = max(self.until, event.acked_until)
            self.leases = {o: lease for o, lease in self.leases.items() if o >= self.until}
        else:
            self.__init__()  # type: ignore[misc]
        while self.until in self.acked:
            self.until += 1

    def is_acked(self, offset: int) -> bool:
        return offset < self.until or offset in self.acked

    def agrees(self, machine: StateMachine) -> None:
        assert machine.acked_until == self.until
        ahead = {o for o in self.acked if o > self.until}
        assert {o for s in machine.acked for o in range(s.start, s.end)} == ahead
        assert {o: tuple(s.value) for s in machine.leases for o in range(s.start, s.end)} == self.leases


def run_strategy() -> st.SearchStrategy[Run]:
    spans = st.tuples(OFFSETS, LENGTHS).map(lambda pair: (pair[0], pair[0] + pair[1]))
    return st.one_of(
        st.builds(lambda s, d, e: Marked(*s, d, e), spans, st.integers(0, 5), st.integers(1, 3)),
        st.builds(lambda s: Acked(*s), spans),
        st.builds(lambda s: Cleared(*s), spans),
        st.builds(Bumped, OFFSETS),
        st.just(WasReset()),
    )


def events_of(run: Run) -> list[plain.Event]:
    if isinstance(run, Marked):
        return [plain.MarkInflight(o, run.deadline_ms, run.epoch) for o in range(run.start, run.end)]
    if isinstance(run, Acked):
        return [plain.Ack(o) for o in range(run.start, run.end)]
    if isinstance(run, Cleared):
        return [plain.ClearInflight(o) for o in range(run.start, run.end)]
    return [plain.BumpAckedUntil(run.acked_until)] if isinstance(run, Bumped) else [plain.Reset()]


@settings(max_examples=examples(300))
@given(st.lists(run_strategy(), max_size=20), st.integers(0, 20))
def test_every_way_to_a_state_is_the_same(runs: list[Run], cut: int) -> None:
    """Run by run, event by event, replayed in bulk, over a snapshot, and twice."""
    model, machine = Model(), StateMachine()
    for run in runs:
        for event in events_of(run):
            model.apply(event)
        machine.apply([run])
        model.agrees(machine)
    raw = encode_runs(runs)
    assert raw == b"".join(plain.encode_event(event) for run in runs for event in events_of(run))
    events = decode_events(memoryview(raw), 0)
    assert events.end == len(raw)
    replayed = StateMachine()
    replayed.replay(events)
    model.agrees(replayed)
    # In two parts, as a process that looks again and again does.
    halves = StateMachine()
    halves.replay(decode_events(memoryview(encode_runs(runs[:cut])), 0))
    halves.replay(decode_events(memoryview(encode_runs(runs[cut:])), 0))
    model.agrees(halves)
    # A crash between snapshot and new delta: the old delta is replayed over the new snapshot, and changes nothing.
    written = StateMachine()
    written.load(decode_snapshot(encode_snapshot(*machine.snapshot(), created_ts_ms=1)))
    written.replay(events)
    model.agrees(written)
    # And with the new delta, which holds what the snapshot has no place for.
    rewritten = StateMachine()
    rewritten.load(decode_snapshot(encode_snapshot(*machine.snapshot(), created_ts_ms=1)))
    rewritten.replay(decode_events(memoryview(encode_runs(machine.leftover())), 0))
    model.agrees(rewritten)


@given(st.lists(run_strategy(), max_size=12), OFFSETS)
def test_rewinding_forgets_what_is_after_the_end(runs: list[Run], end: int) -> None:
    model, machine = Model(), StateMachine()
    for run in runs:
        for event in events_of(run):
            model.apply(event)
    machine.apply(runs)
    machine.apply(machine.rewind(end))
    assert machine.top() <= end
    assert machine.acked_until == min(model.until, end)
    for offset in range(machine.acked_until, end):
        assert (machine.acked.at(offset) is not None) == model.is_acked(offset)
        lease = machine.leases.at(offset)
        assert (None if lease is None else tuple(lease.value)) == model.leases.get(offset)


# --- what may happen to a group

RECORDS = 30


class GroupModel(RuleBasedStateMachine):
    """Consumers that fetch, acknowledge, return, extend, come too late and lie, on a clock that runs. Some offsets
    have no record. The model knows for every record how often it went out, who holds it and whether it is done."""

    def __init__(self) -> None:
        super().__init__()
        self.machine = StateMachine()
        self.now = 1000
        self.missing = {3, 4, 11, 29}
        self.epoch: dict[int, int] = {}
        self.deadline: dict[int, int] = {}
        self.done: set[int] = set()
        self.handed: list[tuple[int, int]] = []
        """Everything that ever went out: offset and epoch."""

    def expect_delivery(self, offset: int, epoch: int) -> None:
        assert offset not in self.done, "delivered after its ack"
        assert offset not in self.missing
        assert self.deadline.get(offset, 0) <= self.now, "two holders at once"
        assert epoch == self.epoch.get(offset, 0) + 1
        self.handed.append((offset, epoch))

    @rule(most=st.integers(1, 7), lease=st.integers(1, 20))
    def fetch(self, most: int, lease: int) -> None:
        taken = self.machine.take_expired(most, self.now, self.now + lease)
        for run in taken:
            for offset in range(run.start, run.end):
                self.expect_delivery(offset, run.epoch)
                self.epoch[offset], self.deadline[offset] = run.epoch, self.now + lease
        self.machine.apply(taken)
        count = sum(run.end - run.start for run in taken)
        assert count <= most
        while count < most:
            start, end = self.machine.fresh()
            there = [o for o in range(start, min(end, RECORDS)) if o not in self.missing][: most - count]
            if not there:
                if start >= RECORDS or end > RECORDS:
                    break
                self.machine.skip(start, end)
                continue
            for before, offset in zip([start - 1, *there], there, strict=False):
                self.machine.skip(before + 1, offset)
            for offset in there:
                self.expect_delivery(offset, 1)
                self.epoch[offset], self.deadline[offset] = 1, self.now + lease
            self.machine.apply(self.machine.deliver(runs_of(np.array(there)), self.now + lease))
            count += len(there)
        waiting = [o for o, d in self.deadline.items() if o not in self.done and d <= self.now]
        assert count == most or not waiting, "something is due and was not delivered"

    @precondition(lambda self: self.handed)
    @rule(data=st.data(), what=st.sampled_from(["ack", "nack", "extend"]))
    def settle(self, data: st.DataObject, what: str) -> None:
        offset, epoch = data.draw(st.sampled_from(self.handed))
        claim = [LeaseClaim(offset, offset + 1, epoch)]
        if what == "ack":
            decision = self.machine.ack(claim)
            until = 0
        else:
            until = self.now + (data.draw(st.integers(0, 9)) if what == "nack" else 15)
            decision = self.machine.lease(claim, until)
        holds = epoch == self.epoch[offset] and self.deadline[offset] != 0
        assert bool(decision.refused) == (not holds and offset not in self.done)
        assert decision.offsets == int(holds and offset not in self.done)
        self.machine.apply(decision.runs)
        if decision.offsets and what == "ack":
            self.done.add(offset)
        elif decision.offsets:
            self.deadline[offset] = until

    @rule(offset=st.integers(0, RECORDS + 5))
    def settle_what_is_not_held(self, offset: int) -> None:
        if offset not in self.epoch and offset not in self.missing:
            decision = self.machine.ack([LeaseClaim(offset, offset + 1, 1)])
            assert decision.refused[0].why == "it is not in flight"
            assert not decision.runs

    @rule(step=st.integers(1, 30))
    def time_passes(self, step: int) -> None:
        self.now += step

    @rule(twice=st.booleans())
    def reopen(self, twice: bool) -> None:
        """Another process reads the files: it knows all but what is absent. Perhaps it finds a new snapshot and the
        old delta, so that everything in flight is marked twice."""
        again = StateMachine()
        again.load(decode_snapshot(encode_snapshot(*self.machine.snapshot(), created_ts_ms=1)))
        again.replay(decode_events(memoryview(encode_runs(self.machine.leftover())), 0))
        if twice:
            again.replay(decode_events(memoryview(encode_runs(self.machine.snapshot()[1])), 0))
        self.machine = again

    @rule(offset=st.integers(0, RECORDS))
    def reset(self, offset: int) -> None:
        self.machine.apply(self.machine.reset(offset))
        for other in range(RECORDS):
            if other in self.missing:
                continue
            held = other not in self.done and other in self.deadline
            self.done.discard(other)
            if other < offset:
                self.done.add(other)
                self.epoch.setdefault(other, 0)
                self.deadline.setdefault(other, 0)
            elif held:
                self.deadline[other] = 0
            else:
                self.epoch.pop(other, None)
                self.deadline.pop(other, None)
        self.handed = [(o, e) for o, e in self.handed if o in self.epoch]

    @invariant()
    def the_state_is_what_the_model_says(self) -> None:
        until = self.machine.acked_until
        for offset in range(RECORDS):
            if offset in self.missing:
                continue
            done = offset < until or self.machine.acked.at(offset) is not None
            assert done == (offset in self.done)
            lease = self.machine.leases.at(offset)
            if lease is not None:
                assert tuple(lease.value) == (self.deadline[offset], self.epoch[offset])
        alive = [d for o, d in self.deadline.items() if o not in self.done and o in self.epoch]
        assert self.machine.next_deadline_ms() == (min(alive) if alive else None)
        assert self.machine.in_flight == len(alive)
        assert self.machine.expired(self.now) == len([d for d in alive if d <= self.now])


GroupModel.TestCase.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)
TestGroupModel = GroupModel.TestCase


# --- bounds


def test_the_state_is_as_large_as_what_is_in_flight() -> None:
    """A million records in order, five hundred at a time, with eight holders: a handful of runs, whatever passed."""
    machine = StateMachine()
    held: list[LeaseClaim] = []
    for start in range(0, 1_000_000, 500):
        machine.apply(machine.deliver([(start, start + 500)], deadline_ms=start + 10**6))
        held.append(LeaseClaim(start, start + 500, 1))
        if len(held) == 8:
            machine.apply(machine.ack([held.pop(3)]).runs)
            machine.apply(machine.ack([held.pop(0)]).runs)
        assert machine.leases.runs + machine.acked.runs <= 20
        assert len(machine._due) <= 2000


def test_single_deliveries_leave_no_state() -> None:
    machine = StateMachine()
    for offset in range(20_000):
        machine.apply(machine.deliver([(offset, offset + 1)], deadline_ms=10**9))
        machine.apply(machine.ack([LeaseClaim(offset, offset + 1, 1)]).runs)
    assert machine.leases.runs == machine.acked.runs == 0
    assert len(machine._due) <= 2000
    assert machine.next_deadline_ms() is None


def test_an_ack_at_the_end_of_the_acknowledged_is_one_event() -> None:
    machine = StateMachine()
    machine.apply(machine.deliver([(0, 500), (500, 1000)], deadline_ms=9))
    assert machine.ack([LeaseClaim(500, 1000, 1)]).runs == [Acked(500, 1000)]
    assert machine.ack([LeaseClaim(0, 500, 1)]).runs == [Bumped(500)]


def test_the_epoch_stops_where_its_field_ends() -> None:
    machine = StateMachine()
    machine.apply([Marked(0, 1, 5, 2**32 - 1)])
    (again,) = machine.take_expired(1, 10, 20)
    assert again.epoch == 2**32 - 1
    encode_runs([again])


# --- bytes


@pytest.mark.parametrize("start", [0, 250, 65_530, 2**32 - 5, 2**56 - 5, 2**63 - 12])
def test_runs_over_every_carry_are_the_events_bit_for_bit(start: int) -> None:
    runs = [Marked(start, start + 11, 2**63 - 1, 2**32 - 1), Acked(start, start + 11), Cleared(start, start + 1)]
    expected = [event for run in runs for event in events_of(run)]
    assert encode_runs(runs) == b"".join(map(plain.encode_event, expected))


def _refusal(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except CorruptionError as error:
        return error


@settings(max_examples=examples(60))
@given(st.lists(run_strategy(), min_size=1, max_size=6), st.data())
def test_a_changed_delta_gives_what_the_plain_reader_gives(runs: list[Run], data: st.DataObject) -> None:
    """Bits flipped, bytes cut off or zeroed: the columns end where `plain.Delta` ends, for the same reason."""
    raw = bytearray(stroma.delta_header(1) + encode_runs(runs))
    position = data.draw(st.integers(60, len(raw) - 1))
    kind = data.draw(st.sampled_from(["flip", "cut", "zero"]))
    if kind == "flip":
        raw[position] ^= 1 << data.draw(st.integers(0, 7))
    elif kind == "cut":
        del raw[position:]
    else:
        raw[position:] = bytes(len(raw) - position)
    wanted = _refusal(lambda: plain.Delta.decode(bytes(raw)))
    events = _refusal(lambda: decode_events(memoryview(raw), 60))
    if isinstance(wanted, CorruptionError):
        assert isinstance(events, CorruptionError)
        assert (type(wanted), wanted.position) == (type(events), events.position)
        return
    assert (events.end, events.stop, events.resumes_at) == (wanted.end, wanted.stop, wanted.resumes_at)
    assert len(events.kind) == len(wanted.events)
