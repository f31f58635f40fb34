"""A slice of ``python -m tests.torture.kill_consumers``, and its judge."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import duramen
from tests.torture.hunting import run_hunt
from tests.torture.kill import Violation
from tests.torture.kill_consumers import (
    ACKED,
    BURIED,
    CONFIRMED,
    EXTENDED,
    GIVEN,
    GOT,
    SENT,
    STORED,
    TRIED,
    Model,
    Told,
    look,
    value_of,
)  # fmt: skip


@pytest.mark.slow
def test_killed_consumers_lose_no_ack_and_share_no_lease(tmp_path: Path) -> None:
    printed = run_hunt("kill_consumers", tmp_path, "--kills", "8", "--seconds", "3")
    assert "no message lost or twice, no ack lost, no lease with two holders" in printed


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ([Told(GOT, 0, 1, 100, 200), Told(GOT, 0, 2, 200, 300)], None),
        ([Told(GOT, 0, 1, 100, 200), Told(GOT, 0, 2, 199, 300)], "somebody held it until 200"),
        ([Told(GOT, 0, 1, 100, 200), Told(GIVEN, 0, 1), Told(GOT, 0, 2, 150, 300)], None),
        (
            [Told(GOT, 0, 1, 100, 200), Told(GIVEN, 0, 1), Told(EXTENDED, 0, 1, 150, 400), Told(GOT, 0, 2, 350, 500)],
            "somebody held it until 400",
        ),
        ([Told(GOT, 0, 1, 100, 200), Told(GOT, 0, 1, 300, 400)], "went out twice"),
        (
            [Told(GOT, 0, 1, 100, 200), Told(TRIED, 0, 1), Told(ACKED, 0, 1, 150), Told(GOT, 0, 2, 151, 300)],
            "after its ack was answered",
        ),
    ],
)
def test_the_judge_of_leases(told: list[Told], message: str | None) -> None:
    model = Model("keratin", "")
    if message is None:
        _take(model, told)
        return
    with pytest.raises(Violation, match=message):
        _take(model, told)


def _take(model: Model, told: list[Told]) -> None:
    for one in told:
        model._take_one("consumer 0", one)
    model.check_leases()


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ([], None),
        ([Told(CONFIRMED, 5)], "4 messages, 5 confirmed"),
        ([Told(GOT, 2, 1), Told(TRIED, 2, 1), Told(ACKED, 2, 1)], "the ack of offset 2 was answered and is gone"),
        ([Told(BURIED, 1, 3)], "offset 1 was given up on and is no dead letter"),
        ([Told(STORED, 8)], "the cursor consumer 0 says 7"),
    ],
)
def test_the_judge_of_logs(tmp_path: Path, told: list[Told], message: str | None) -> None:
    """Of four messages the first two are delivered, and the first is acknowledged."""
    model = _small(tmp_path, lambda group: group.ack(group.fetch(2)[0]))
    _take(model, [Told(GOT, 0, 1), Told(TRIED, 0, 1), Told(ACKED, 0, 1), Told(STORED, 7), *told])
    if message is None:
        assert look(model, at_the_end=False) == (4, 0)
        return
    with pytest.raises(Violation, match=message):
        look(model, at_the_end=False)


def test_the_judge_sees_what_disappeared(tmp_path: Path) -> None:
    model = _small(tmp_path, lambda group: group.reset(3))
    with pytest.raises(Violation, match="nobody tried to"):
        look(model, at_the_end=False)


def _small(tmp_path: Path, work: Callable[[duramen.Group], object]) -> Model:
    with duramen.open(tmp_path / "log", "a", format="rustlog") as log:
        log.append_batch([value_of(number) for number in (1, 2, 3, 4)])
        work(log.group("g"))
        log.cursor("consumer 0").store(7)
    model = Model("rustlog", str(tmp_path / "log"))
    _take(model, [Told(SENT, 9), Told(CONFIRMED, 4)])
    return model
