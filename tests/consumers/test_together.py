"""Calls that arrive together are served together: that must give what one after the other gives."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duramen.consumers.groups.deliveries import joined_claims
from duramen.consumers.groups.group import FetchRequest, Group
from duramen.consumers.groups.state_machine import Decision, LeaseClaim
from duramen.consumers.log import ConsumableWritableLog
from duramen.log.write.group_commit import Request
from duramen.testing.simulated_disk import SimulatedDisk
from tests.consumers.logs import value
from tests.sampling import examples

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

    def fetch(self, wishes: list[FetchRequest]) -> None:
        requests = [Request(wish, 0, 0) for wish in wishes]
        self.together._take_turn(requests)
        answers = [_answer(request.outcome()) for request in requests]
        assert answers == [_answer(self.single._turn(wish)) for wish in wishes]
        self.check()

    def ack(self, claims: list[list[LeaseClaim]]) -> None:
        requests = [Request(each, 0, 0) for each in claims]
        self.together._ack_together(requests)
        for request in requests:  # they are in the order in which they were served
            assert _of(request.outcome()) == _of(self.single._turn(partial(self.single._ack, request.work)))
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
    machine = group._store.machine
    return group.status()._replace(name=""), list(machine.leases), list(machine.acked)


WISHES = st.lists(st.builds(FetchRequest, st.integers(1, 20), st.sampled_from([5, 5, 5, 9])), min_size=1, max_size=5)
CLAIM = st.builds(
    lambda start, count, epoch: LeaseClaim(start, start + count, epoch),
    st.integers(0, RECORDS), st.integers(1, 12), st.sampled_from([1, 1, 1, 2, None]),
)  # fmt: skip
CLAIMS = st.lists(st.lists(CLAIM, max_size=3), min_size=1, max_size=5)


@pytest.mark.slow
@settings(max_examples=examples(150), deadline=None)
@given(with_gaps=st.booleans(), steps=st.lists(st.one_of(WISHES, CLAIMS, st.integers(1, 6)), max_size=8))
def test_together_is_the_same_as_one_by_one(with_gaps: bool, steps: list[Any]) -> None:
    pair = Pair(with_gaps)
    for step in steps:
        if isinstance(step, int):
            pair.now_ms += step
        elif isinstance(step[0], FetchRequest):
            pair.fetch(step)
        else:
            pair.ack(step)


def test_a_crowd_shares_one_run_and_the_last_ones_get_the_rest() -> None:
    pair = Pair(with_gaps=False)
    pair.fetch([FetchRequest(most, 5, "") for most in (4, 4, 10, 40, 40)])
    assert [tuple(span) for span in pair.together._store.machine.leases] == [(0, RECORDS, (1005, 1))]
    pair.ack([[LeaseClaim(8, 18, 1)], [LeaseClaim(0, 4, 1)], [LeaseClaim(4, 8, 1)]])
    assert pair.together.acked_until == 18


def test_what_one_of_a_crowd_does_not_hold_is_his_alone() -> None:
    pair = Pair(with_gaps=False)
    pair.fetch([FetchRequest(5, 5, ""), FetchRequest(5, 5, "")])
    requests = [
        Request([LeaseClaim(0, 5, 1)], 0, 0),
        Request([LeaseClaim(5, 10, 2)], 0, 0),
        Request([LeaseClaim(0, 5, 1)], 0, 0),
    ]
    pair.together._ack_together(requests)
    results = {tuple(request.work): request.result for request in requests}
    assert results[(LeaseClaim(5, 10, 2),)].refused[0].why.startswith("delivery 2 does not exist")
    assert sorted(request.result.offsets for request in requests) == [0, 0, 5]


@pytest.mark.parametrize(
    "claims",
    [
        [LeaseClaim(0, 4, 1), LeaseClaim(3, 5, 1)],
        [LeaseClaim(4, 6, 1), LeaseClaim(0, 4, 1)],
        [LeaseClaim(0, 1, 1), LeaseClaim(0, 1, 1)],
    ],
)
def test_claims_that_overlap_or_are_not_in_order_are_not_joined(claims: list[LeaseClaim]) -> None:
    assert joined_claims(claims) is None
