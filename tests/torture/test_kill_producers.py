"""A slice of ``python -m tests.torture.kill_producers``: every variant is killed once."""

import subprocess
import sys
from pathlib import Path

import pytest

import duramen
from tests.torture import kill_producers
from tests.torture.kill import Violation


@pytest.mark.slow
def test_a_killed_producer_loses_nothing_and_stores_nothing_twice(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.torture.kill_producers", "--kills", "7", "--directory", str(tmp_path)]
    run = subprocess.run(
        command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=100, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "none twice, none lost" in run.stdout


@pytest.mark.parametrize(
    ("sent", "confirmed", "message"),
    [
        (3, 3, None),
        (5, 2, None),
        (3, 4, "the log holds 3, confirmed 4"),
        (2, 2, "the log holds 3, confirmed 2, sent 2"),
    ],
)
def test_the_judge(tmp_path: Path, sent: int, confirmed: int, message: str | None) -> None:
    with duramen.open(tmp_path / "log", "a", format="rustlog") as log:
        log.producer("producer 0").append_batch([kill_producers.value_of(0, n) for n in (1, 2, 3)], sequence=1)
    model = kill_producers.Model("rustlog", str(tmp_path / "log"), {0: sent}, {0: confirmed})
    if message is None:
        assert kill_producers.look(model) == 3
        return
    with pytest.raises(Violation, match=message):
        kill_producers.look(model)


def test_the_judge_sees_what_is_there_twice(tmp_path: Path) -> None:
    with duramen.open(tmp_path / "log", "a", format="rustlog") as log:
        log.append_batch([kill_producers.value_of(0, n) for n in (1, 2, 2)])
    model = kill_producers.Model("rustlog", str(tmp_path / "log"), {0: 3}, {})
    with pytest.raises(Violation, match="2 follows 2"):
        kill_producers.look(model)
