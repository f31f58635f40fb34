"""Crashes after every operation, in every way, for all formats: at least 20,000 distinct disks."""

from pathlib import Path

import pytest

from duramen.testing.explorer import Case, Explorer
from duramen.testing.torture import load, main
from duramen.testing.workloads import SETUPS, WORKLOADS

DATA = Path(__file__).parent.parent / "data"
FEW = ("aligned", "rolls", "crashes", "mixed")
FLOORS = {
    "keratin": (3000, tuple(WORKLOADS)),
    "durable-log": (3000, tuple(WORKLOADS)),
    "rustlog": (3000, tuple(WORKLOADS)),
    "osiris": (3000, tuple(WORKLOADS)),
    "fixed-slot": (2000, tuple(WORKLOADS)),
    "rustlog-12": (1500, FEW),
    "osiris-v0": (1500, FEW),
    "osiris-gzip": (1000, FEW),
    "osiris-tracked": (1000, FEW),
    "fixed-slot-508": (1000, FEW),
}
"""How many distinct crashed disks each explores at least, and in which workloads."""


def test_enough_states_are_asked_for() -> None:
    assert sum(floor for floor, _ in FLOORS.values()) >= 20_000
    assert FLOORS.keys() == SETUPS.keys()


@pytest.mark.slow
@pytest.mark.parametrize("setup", FLOORS)
def test_every_crash_is_survived(setup: str) -> None:
    floor, workloads = FLOORS[setup]
    explorer = Explorer(files=load(DATA), inner_every=250, again_every=6, killed_every=8)
    for workload in workloads:
        explorer.explore(Case(setup, workload, seed=1))
    assert len(explorer.states) >= floor


def test_a_case_runs_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--case", "keratin:batches:3:30:12"]) == 0
    assert "all promises hold" in capsys.readouterr().out
