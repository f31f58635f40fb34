"""A slice of ``make kill``: every variant is killed twice, and once more."""

import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from tests.torture import kill
from tests.torture.hunting import run_hunt

KILLS = 15


@pytest.mark.slow
def test_a_killed_writer_loses_nothing(tmp_path: Path) -> None:
    assert "fixed-slot" in run_hunt("kill", tmp_path, "--kills", str(KILLS), "--seconds", "20")


def test_a_violation_is_reported_with_its_seed(tmp_path: Path) -> None:
    """The judge itself is judged: one that never finds anything would prove nothing."""
    script = (
        "import sys\n"
        "from tests.torture import kill\n"
        "look = kill.look\n"
        "def forgetful(model, reopen):\n"
        "    model.acknowledged.append(kill.Acknowledged(kill.Name(1, 0, 0), 1, 10**9, 0))\n"
        "    return look(model, reopen)\n"
        "kill.look = forgetful\n"
        f"sys.exit(kill.main(['--kills', '2', '--seed', '7', '--directory', {str(tmp_path)!r}]))\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", script],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert run.returncode == 1, run.stdout + run.stderr
    assert "violation" in run.stdout
    assert "--seed 7" in run.stdout
    assert list(tmp_path.iterdir()), "the log is kept for a look"


def record(writer: int, thread: int, counter: int) -> bytes:
    return kill.value_of(kill.Name(writer, thread, counter), slots=False)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ([record(1, 0, 0), record(1, 1, 0), record(1, 0, 1)], None),
        ([record(1, 0, 0), record(1, 1, 0)], None),
        ([record(1, 0, 0)], "the log ends at 1"),
        ([record(1, 1, 0), record(1, 0, 0)], "was acknowledged at"),
        ([record(1, 0, 0), record(1, 1, 0), record(1, 1, 0)], "expected its record 1"),
        ([record(1, 0, 1), record(1, 1, 0)], "expected its record 0"),
        ([record(1, 0, 0), record(1, 1, 0), record(2, 0, 0)], "never handed in"),
        ([record(1, 0, 0), record(1, 1, 0)[:-1] + b"?"], "nobody appended"),
        ([record(1, 0, 0), b""], "nobody appended"),
    ],
)
def test_the_judge(found: list[bytes], message: str | None) -> None:
    """Two records are acknowledged, a third one was handed in."""
    model = kill.Model("keratin", "")
    for number in (0, 1):
        model.take(1, kill.Message(kill.INTENT, thread=number, counter=0, count=2 - number))
        digest = zlib.crc32(record(1, number, 0))
        model.take(1, kill.Message(kill.ACKNOWLEDGED, number, 0, 1, base_offset=number, digest=digest))
    held = list(enumerate(found))
    if message is None:
        kill._check_acknowledged(model, held, kill._check_records(model, held))
        return
    with pytest.raises(kill.Violation, match=message):
        kill._check_acknowledged(model, held, kill._check_records(model, held))
