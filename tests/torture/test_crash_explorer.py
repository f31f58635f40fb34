"""Crashes after every operation, in every way, for all formats: at least 20,000 distinct disks."""

from pathlib import Path

import pytest

from duramen.testing.explorer import Case, Explorer
from duramen.testing.torture import load, main
from duramen.testing.workloads import SETUPS, WORKLOADS

DATA = Path(__file__).parent.parent / "data"
FLOORS = {
    "keratin": 3200,
    "durable-log": 3200,
    "rustlog": 2600,
    "rustlog-12": 2200,
    "osiris": 2600,
    "osiris-v0": 1800,
    "osiris-gzip": 1200,
    "osiris-tracked": 600,
    "fixed-slot": 1800,
    "fixed-slot-508": 1400,
}
"""How many distinct crashed disks each explores at least."""


def test_enough_states_are_asked_for() -> None:
    assert sum(FLOORS.values()) >= 20_000
    assert FLOORS.keys() == SETUPS.keys()


@pytest.mark.slow
@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.parametrize("setup", SETUPS)
def test_every_crash_is_survived(setup: str, half: int) -> None:
    explorer = Explorer(files=load(DATA), inner_every=250, again_every=3, killed_every=6)
    for number, workload in enumerate(WORKLOADS):
        if number % 2 == half:
            explorer.explore(Case(setup, workload, seed=1))
    assert len(explorer.states) >= FLOORS[setup] / 2


def test_a_case_runs_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--case", "keratin:batches:3:30:12"]) == 0
    assert "all promises hold" in capsys.readouterr().out
