"""Groups, dead letters and cursors over crashes: a slice of ``make torture``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from duramen.consumers.cursors import Cursor
from duramen.consumers.groups.dead_letters import DeadLetters
from duramen.consumers.groups.group import Group
from duramen.consumers.groups.state_machine import StateMachine
from duramen.consumers.groups.store import GroupStore
from duramen.testing import BrokenPromiseError
from tests.sampling import every
from tests.torture.__main__ import main
from tests.torture.consumers import Case, ConsumerExplorer


@pytest.mark.parametrize("setup", ["keratin", "durable-log", "rustlog", "osiris", "osiris-v0", "fixed-slot"])
def test_consumers_survive_every_crash(setup: str) -> None:
    """Of some moments; ``make torture`` goes through the others."""
    explorer = ConsumerExplorer(every=every(400), kills_every=30, inner_every=150)
    explorer.explore(Case(setup, 2))
    assert len(explorer.states) > 4


def test_a_case_runs_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert str(Case.parse("groups:fixed-slot:2:60:2")) == "groups:fixed-slot:2:60:2"
    assert main(["--case", "groups:fixed-slot:2:60:2"]) == 0
    assert "all promises hold" in capsys.readouterr().out


def _nothing(*_arguments: Any, **_options: Any) -> None:
    pass


def _no_deadlines(self: StateMachine, most: int, _now_ms: int, deadline_ms: int) -> Any:
    return _take_expired(self, most, 10**15, deadline_ms)


def _at_write(self: Group, handed: Any, epochs: Any = None, **_options: Any) -> int:
    return _ack_many(self, handed, epochs, durability="write")


def _later(self: Cursor, offset: int) -> None:
    _store(self, offset + 1)


_take_expired, _ack_many, _store = StateMachine.take_expired, Group.ack_many, Cursor.store


@pytest.mark.parametrize(
    ("owner", "name", "instead", "kills_every", "message"),
    [
        (GroupStore, "_sync_name", _nothing, 1, "another power loss"),
        (StateMachine, "take_expired", _no_deadlines, 20, "it is held"),
        (Group, "ack_many", _at_write, 20, "acks were answered|another power loss"),
        (DeadLetters, "move", _nothing, 20, "no dead letter|nobody tried"),
        (Cursor, "store", _later, 20, "cursor"),
    ],
)
def test_the_judge(owner: type, name: str, instead: Callable[..., Any], kills_every: int, message: str) -> None:
    """The judge is judged: without a rule it must find that something is wrong."""
    explorer = ConsumerExplorer(every=100, kills_every=kills_every, inner_every=10**9)
    with mock.patch.object(owner, name, instead), pytest.raises(BrokenPromiseError, match=message):
        _explore_some(explorer)


def _explore_some(explorer: ConsumerExplorer) -> None:
    for seed in range(8):
        explorer.explore(Case("fixed-slot", seed))
