"""One flipped bit against every verb: a seeded slice of `python -m tests.damage.flips`."""

from __future__ import annotations

from itertools import islice

import pytest

from tests.damage.flips import Flip, cases, run, state
from tests.damage.logs import FORMATS
from tests.sampling import examples

CASES = examples(150)
"""For each format."""


@pytest.mark.parametrize("name", FORMATS)
def test_a_flipped_bit_breaks_no_promise(name: str) -> None:
    every = cases(20, [name])
    chosen = list(islice((case for case in every if case.state.sidecar), CASES))
    foreign = islice((case for case in every if not case.state.sidecar), CASES // 4)
    outcomes = [run(*case) for case in [*chosen, *foreign]]
    broken = [f"{outcome}: {outcome.detail}: {outcome.broken}" for outcome in outcomes if outcome.broken]
    assert not broken, "\n".join(broken[:20])
    assert sum(outcome.result in ("refused", "raised later") for outcome in outcomes) > len(chosen) // 3, (
        "flips do damage"
    )


def test_a_last_record_that_shrank_is_damage_for_verify_and_open() -> None:
    """Its offset is the one before the watermark's, but it ends before the watermark's position."""
    held = state("rustlog", killed=True, sidecar=True)
    last = held.places[-1]
    shrunk = Flip(last.path, last.start + 3, 1, "last", "length", "active")
    outcome = run(held, shrunk, "open")
    assert (outcome.result, outcome.problems) == ("refused", [])
