"""Crashes in the middle of transactions, for all formats, in one log and in two at once."""

from __future__ import annotations

from unittest import mock

import pytest

from duramen.log import ledger, pending
from duramen.testing import BrokenPromiseError
from duramen.testing.torture import main
from duramen.testing.transactions import Scene, explore

FORMATS = ("keratin", "durable-log", "rustlog", "osiris", "fixed-slot")


@pytest.mark.slow
@pytest.mark.parametrize("setup", FORMATS)
def test_all_or_nothing(setup: str) -> None:
    assert explore(Scene(setup, 1), crashes=2, inner_every=120, every=4) > 60


@pytest.mark.slow
@pytest.mark.parametrize("setup", ["keratin", "fixed-slot"])
def test_all_logs_or_none(setup: str) -> None:
    assert explore(Scene(setup, 2, logs=2), crashes=1, inner_every=150, every=12) > 30


@pytest.mark.parametrize(
    ("what", "name", "instead"),
    [
        (pending, "visible", lambda *_: None),
        (pending, "settle", lambda *_: None),
        (pending, "remove", lambda disk, root: disk.remove(pending.path_of(root))),
        (pending, "_roll_back", lambda *_: None),
        (pending.Pending, "is_committed", lambda *_: False),
        (ledger.Entry, "repeats", lambda *_: False),
    ],
)
def test_a_broken_protocol_is_noticed(what: object, name: str, instead: object) -> None:
    """Without any one of these steps a promise breaks."""
    with mock.patch.object(what, name, instead), pytest.raises(BrokenPromiseError):
        explore(Scene("fixed-slot", 1), crashes=3)


def test_a_case_runs_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--case", "transactions:fixed-slot:3:1"]) == 0
    assert "all promises hold" in capsys.readouterr().out
