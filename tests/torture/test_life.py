"""Crashes in the middle of retention and compaction."""

from __future__ import annotations

import pytest

from tests.sampling import every
from tests.torture import life
from tests.torture.life import Life

STEPS = [("keratin", 97), ("durable-log", 61), ("rustlog", 47), ("osiris", 17), ("kafka", 97)]


@pytest.mark.slow
@pytest.mark.parametrize(("setup", "step"), STEPS)
def test_every_crash_leaves_a_decided_state(setup: str, step: int) -> None:
    """Of some moments; `make torture` goes through the others."""
    assert life.explore(Life(setup, 1), every=every(step), random_patterns=2) >= 4


def test_a_case_can_be_run_again() -> None:
    assert str(Life.parse("life:keratin:7")) == "life:keratin:7"
