"""Crashes in the middle of retention and compaction."""

from __future__ import annotations

import pytest

from duramen.testing.life import Life

COMPACTED = ("keratin", "durable-log", "rustlog")


@pytest.mark.slow
@pytest.mark.parametrize("setup", COMPACTED)
def test_every_crash_leaves_a_decided_state(setup: str) -> None:
    life = Life(setup, 1)
    for number, moment in enumerate(life.run()):
        life.check(moment, random_patterns=2 if number % 3 else 6)
    assert len(life.states) >= 250
