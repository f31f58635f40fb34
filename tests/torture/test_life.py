"""Crashes in the middle of retention and compaction."""

from __future__ import annotations

import pytest

from duramen.testing import life
from duramen.testing.life import Life


@pytest.mark.slow
@pytest.mark.parametrize(("setup", "every"), [("keratin", 11), ("durable-log", 7), ("rustlog", 5), ("osiris", 3)])
def test_every_crash_leaves_a_decided_state(setup: str, every: int) -> None:
    """Of some moments; `make torture` goes through the others."""
    assert life.explore(Life(setup, 1), every=every, random_patterns=2) >= 15


def test_a_case_can_be_run_again() -> None:
    assert str(Life.parse("life:keratin:7")) == "life:keratin:7"
