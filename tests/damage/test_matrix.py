"""Every kind of damage to every format: the promises hold in each case, and docs/damage.md says what happens."""

from __future__ import annotations

import pytest

from tests.damage.logs import FORMATS
from tests.damage.matrix import Row, rows
from tests.damage.page import HEAD, PAGE, section, sections


@pytest.mark.parametrize("name", FORMATS)
def test_every_damage_of_a_format(name: str) -> None:
    found: list[Row] = [*rows(name, False), *rows(name, True)]
    broken = [f"{row}: {problem}" for row in found for problem in row.problems]
    assert not broken, "\n".join(broken[:20])
    noticed = [row for row in found if row.exit_code]
    assert len(noticed) > len(found) // 5, "the matrix must do damage"
    published = sections(PAGE.read_text(encoding="utf-8"))[name]
    assert published.rstrip() == section(name, found).rstrip(), "run `python -m tests.damage`"


def test_the_page_begins_as_it_should() -> None:
    assert PAGE.read_text(encoding="utf-8").startswith(HEAD)
