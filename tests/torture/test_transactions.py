"""Crashes in the middle of transactions, for all formats, in one log and in two at once."""

from __future__ import annotations

import contextlib
from unittest import mock

import pytest

from duramen.sidecar.tx_marker import tx_marker_path
from duramen.testing import BrokenPromiseError, CrashPattern
from tests.sampling import every
from tests.torture.__main__ import main
from tests.torture.transactions import Scene, explore

FORMATS = ("keratin", "durable-log", "rustlog", "osiris", "fixed-slot", "kafka")


@pytest.mark.slow
@pytest.mark.parametrize("setup", FORMATS)
def test_all_or_nothing(setup: str) -> None:
    assert explore(Scene(setup, 1), crashes=2, inner_every=120, every=every(17)) > 15


@pytest.mark.slow
@pytest.mark.parametrize("setup", ["keratin", "fixed-slot"])
def test_all_logs_or_none(setup: str) -> None:
    assert explore(Scene(setup, 2, logs=2), crashes=1, inner_every=150, every=every(43)) > 8


@pytest.mark.slow
@pytest.mark.parametrize(
    ("names", "instead"),
    [
        (["duramen.log.segments.snapshot.reader_view"], lambda *_: None),
        (["duramen.log.recover.open.resolve_tx", "duramen.log.write.transaction.resolve_tx"], lambda *_: None),
        (
            ["duramen.log.recover.tx_resolve.remove_tx_marker", "duramen.log.write.hidden_rows.remove_tx_marker"],
            lambda disk, root: disk.remove(tx_marker_path(root)),
        ),
        (["duramen.log.recover.tx_resolve._roll_back"], lambda *_: None),
        (["duramen.sidecar.tx_marker.TxMarker.is_committed"], lambda *_: False),
        (["duramen.sidecar.tx_ledger.LedgerEntry.repeats"], lambda *_: False),
    ],
)
def test_a_broken_protocol_is_noticed(names: list[str], instead: object) -> None:
    """Without any one of these steps a promise breaks."""
    with contextlib.ExitStack() as stack:
        for name in names:
            stack.enter_context(mock.patch(name, instead))
        with pytest.raises(BrokenPromiseError):
            explore(Scene("fixed-slot", 1), crashes=3)


def test_readers_find_all_files_of_a_replacement_after_a_power_loss() -> None:
    """The names of indexes in the new log have to be durable before the commit."""
    scene = Scene("keratin", 11, logs=2)
    moments = [moment for moment in scene.run() if moment.sent.replaces and not moment.is_answered]
    moved = [moment for moment in moments if moment.operation.startswith("replace /data/topics/t/0/.duramen/next")]
    assert moved
    for number, moment in enumerate(moved):
        for names in ("lost", "each", "coin"):
            crashed = moment.disk.crash(CrashPattern("kept", names, seed=number))
            scene.check_reader(crashed, moment, moment.operation)


def test_readers_do_not_hold_new_segments_against_the_old_list() -> None:
    """While a replacement moves its files, segment 0 is new and the list of sealed segments is still the old one."""
    assert Scene("rustlog", 51, logs=2).run()


def test_a_case_runs_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--case", "transactions:fixed-slot:3:1:40"]) == 0
    assert "all promises hold" in capsys.readouterr().out
