"""The recovery table is what the code executes, and what the page shows."""

from __future__ import annotations

from pathlib import Path

import pytest

import duramen
from duramen.log.recover import TABLE, RecoveryCase, markdown_table, table
from duramen.log.recover.table import Row

PAGE = Path(__file__).parents[3] / "docs" / "recovery.md"


def test_the_page_shows_the_table() -> None:
    assert f"\n\n{markdown_table()}\n\n" in PAGE.read_text(encoding="utf-8")


def test_every_case_has_a_row() -> None:
    assert {row.case for row in TABLE} == set(RecoveryCase)


def test_damage_comes_before_every_row_that_changes_files() -> None:
    cases = [row.case for row in TABLE]
    earlier = set(cases[: cases.index(RecoveryCase.DAMAGE)])
    assert earlier == {RecoveryCase.CHANGE, RecoveryCase.UNCOMMITTED, RecoveryCase.COMMITTED, RecoveryCase.CLEAN}


def test_the_rows_are_walked_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recovery asks the rows in order, up to the one that decides, then those that follow it."""
    path = str(tmp_path / "log")
    with duramen.open(path, "a", format="durable-log") as log:
        log.append(b"one")
    segment = tmp_path / "log" / "segment_00000000000000000000.log"
    segment.write_bytes(segment.read_bytes() + b"GOLD\x01")
    asked: list[RecoveryCase] = []

    def watched(row: Row) -> Row:
        return row._replace(holds=lambda e: asked.append(row.case) or row.holds(e))  # type: ignore[func-returns-value]

    monkeypatch.setattr(table, "TABLE", tuple(watched(row) for row in TABLE))
    with duramen.open(path, "a") as log:
        assert [step.case for step in log.recovery] == [RecoveryCase.TORN]
    cases = [row.case for row in TABLE]
    assert asked == [*cases[: cases.index(RecoveryCase.TORN) + 1], RecoveryCase.INDEX, RecoveryCase.INDEX]
