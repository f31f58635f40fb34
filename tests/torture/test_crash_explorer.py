"""Crashes after every operation, in every way, for all formats: at least 20,000 distinct disks."""

from pathlib import Path

import pytest

from duramen.testing.explorer import Case, Explorer
from duramen.testing.torture import load, main
from duramen.testing.workloads import SETUPS, WORKLOADS

DATA = Path(__file__).parent.parent / "data"
MANY = ("keratin", "durable-log", "rustlog", "osiris", "fixed-slot")
FEW = ("singles", "aligned", "rolls", "crashes", "mixed")
CASES = [Case(setup, workload, 1) for workload in WORKLOADS for setup in SETUPS if setup in MANY or workload in FEW]
FLOOR = 1


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_crash_is_survived(case: Case) -> None:
    skip = case.workload not in ("singles", "rolls")
    explorer = Explorer(
        files=load(DATA), random_patterns=4, inner_every=400, again_every=8, killed_every=10, skip_opening=skip
    )
    explorer.explore(case)
    print("STATES", case, len(explorer.states))
    assert len(explorer.states) >= FLOOR


def test_a_case_runs_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--case", "keratin:batches:3:30:12"]) == 0
    assert "all promises hold" in capsys.readouterr().out
