"""Crashes after the operations of every workload, in every way, for all formats.

A thorough run goes through at least 20,000 distinct disks; otherwise one operation of 71 is crashed. `make torture`
goes on with other seeds.
"""

from pathlib import Path

import pytest

from duramen.testing.explorer import Case, Explorer
from duramen.testing.workloads import SETUPS, WORKLOADS
from tests.sampling import every
from tests.torture.__main__ import load, main

DATA = Path(__file__).parent.parent / "data"
FEW = ("singles", "aligned", "rolls", "crashes", "mixed")
"""The workloads of formats that differ from another one in an option only."""
STEP = every(71)
CLOSER = {"keratin:intervals:1": every(23), "durable-log:intervals:1": every(11)}
"""The steps of cases in which few operations tell a broken promise."""
FLOORS = {
    "keratin": (390, tuple(WORKLOADS)),
    "keratin-program": (300, ("rolls", "mixed")),
    "durable-log": (260, tuple(WORKLOADS)),
    "rustlog": (220, tuple(WORKLOADS)),
    "osiris": (285, tuple(WORKLOADS)),
    "fixed-slot": (185, tuple(WORKLOADS)),
    "rustlog-12": (215, FEW),
    "osiris-v0": (240, FEW),
    "osiris-gzip": (420, FEW),
    "osiris-tracked": (415, FEW),
    "fixed-slot-508": (170, FEW),
    "kafka": (250, tuple(WORKLOADS)),
    "kafka-zstd": (250, FEW),
}
"""How many distinct crashed disks each workload of a format leads to at least, and which workloads it goes through."""
CASES = [Case(setup, workload, 1) for setup, (_, workloads) in FLOORS.items() for workload in workloads]


def test_enough_states_are_asked_for() -> None:
    assert sum(FLOORS[case.setup][0] for case in CASES) >= 20_000
    assert FLOORS.keys() == SETUPS.keys()


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_crash_is_survived(case: Case) -> None:
    """No state is counted twice: what happens before a log is open for the first time is looked at in one workload."""
    step = CLOSER.get(str(case), STEP)
    explorer = Explorer(
        files=load(DATA),
        random_patterns=4,
        inner_every=400,
        again_every=8,
        killed_every=10 if step == 1 else 3,
        every=step,
        skip_opening=case.workload not in ("singles", "rolls"),
    )
    explorer.explore(case)
    count = len(explorer.states)
    assert count >= (FLOORS[case.setup][0] if step == 1 else 1)


def test_a_case_runs_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--case", "keratin:batches:3:30:12"]) == 0
    assert "all promises hold" in capsys.readouterr().out
