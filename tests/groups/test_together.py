"""Calls that arrive together are served together: that must give what one after the other gives."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duramen.disk.simulated import SimulatedDisk
from duramen.groups.deliveries import joined_claims
from duramen.groups.group import Group, Wish
from duramen.groups.log import ConsumableWritableLog
from duramen.groups.machine import Claim, Decision
from duramen.log.commit import Request
from tests.groups.logs import value

Answer = list[tuple[int, int, int]]

RECORDS = 60


class Pair:
    """Two groups with the same history: one serves its calls together, the other one by one."""

    def __init__(self, with_gaps: bool) -> None:
        self.now_ms = 1000
        log = ConsumableWritableLog("/log", disk=SimulatedDisk(), format="osiris" if with_gaps else "keratin")
        for first in range(0, RECORDS, 15):
            log.append_batch([value(offset) for offset in range(first, first + 15)])
            if with_gaps:
                log.cursor("takes an offset").store(first)
            log.seal()
        self.together, self.single = (log.group(name, clock=lambda: self.now_ms) for name in ("together", "single"))

    def fetch(self, wishes: list[Wish]) -> None:
        requests = [Request(wish, 0, 0) for wish in wishes]
        self.together._take_turn(requests)
        answers = [_answer(request.answer()) for request in requests]
        assert answers == [_answer(self.single._turn(wish)) for wish in wishes]
        self.check()

    def ack(self, claims: list[list[Claim]]) -> None:
        requests = [Request(each, 0, 0) for each in claims]
        self.together._ack_together(requests)
        for request in requests:  # they are in the order in which they were served
            assert _of(request.answer()) == _of(self.single._turn(partial(self.single._ack, request.work)))
        self.check()

    def check(self) -> None:
        assert _standing(self.together) == _standing(self.single)


def _answer(answer: tuple[Any, int | None]) -> Answer:
    batch, _ = answer
    rows = [(delivery.offset, delivery.epoch, delivery.deadline_ms) for delivery in batch]
    assert batch.offsets.tolist() == [offset for offset, _, _ in rows]
    assert [offset for claim in batch.claims for offset in range(claim.start, claim.end)] == batch.offsets.tolist()
    return rows


def _of(decision: Decision) -> tuple[int, Any]:
    return decision.offsets, decision.refused


def _standing(group: Group) -> Any:
    machine = group._journal.machine
    return group.status()._replace(name=""), list(machine.leases), list(machine.acked)


WISHES = st.lists(st.builds(Wish, st.integers(1, 20), st.sampled_from([5, 5, 5, 9])), min_size=1, max_size=5)
CLAIM = st.builds(
    lambda start, count, epoch: Claim(start, start + count, epoch),
    st.integers(0, RECORDS), st.integers(1, 12), st.sampled_from([1, 1, 1, 2, None]),
)  # fmt: skip
CLAIMS = st.lists(st.lists(CLAIM, max_size=3), min_size=1, max_size=5)


@settings(max_examples=150, deadline=None)
@given(with_gaps=st.booleans(), steps=st.lists(st.one_of(WISHES, CLAIMS, st.integers(1, 6)), max_size=8))
def test_together_is_the_same_as_one_by_one(with_gaps: bool, steps: list[Any]) -> None:
    pair = Pair(with_gaps)
    for step in steps:
        if isinstance(step, int):
            pair.now_ms += step
        elif isinstance(step[0], Wish):
            pair.fetch(step)
        else:
            pair.ack(step)


def test_a_crowd_shares_one_run_and_the_last_ones_get_the_rest() -> None:
    pair = Pair(with_gaps=False)
    pair.fetch([Wish(4, 5), Wish(4, 5), Wish(10, 5), Wish(40, 5), Wish(40, 5)])
    assert [tuple(span) for span in pair.together._journal.machine.leases] == [(0, RECORDS, (1005, 1))]
    pair.ack([[Claim(8, 18, 1)], [Claim(0, 4, 1)], [Claim(4, 8, 1)]])
    assert pair.together.acked_until == 18


def test_what_one_of_a_crowd_does_not_hold_is_his_alone() -> None:
    pair = Pair(with_gaps=False)
    pair.fetch([Wish(5, 5), Wish(5, 5)])
    requests = [Request([Claim(0, 5, 1)], 0, 0), Request([Claim(5, 10, 2)], 0, 0), Request([Claim(0, 5, 1)], 0, 0)]
    pair.together._ack_together(requests)
    results = {tuple(request.work): request.result for request in requests}
    assert results[(Claim(5, 10, 2),)].refused[0].why.startswith("no delivery 2")
    assert sorted(request.result.offsets for request in requests) == [0, 0, 5]


@pytest.mark.parametrize(
    "claims", [[Claim(0, 4, 1), Claim(3, 5, 1)], [Claim(4, 6, 1), Claim(0, 4, 1)], [Claim(0, 1, 1), Claim(0, 1, 1)]]
)
def test_claims_that_overlap_or_are_not_in_order_are_not_joined(claims: list[Claim]) -> None:
    assert joined_claims(claims) is None
