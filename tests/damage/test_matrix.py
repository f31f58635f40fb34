"""Every kind of damage to every format: the promises hold in each case, and matrix.md says what happens.

One kind of fourteen is done in every place, the others in one; a thorough run does all of them everywhere.
"""

from __future__ import annotations

import pytest

from tests.damage.logs import FORMATS
from tests.damage.matrix import Row, is_whole, rows
from tests.damage.page import HEAD, PAGE, section, sections
from tests.sampling import every

STEP = every(14)


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_every_damage_of_a_format(name: str) -> None:
    found: list[Row] = [*rows(name, False, every=STEP), *rows(name, True, every=STEP)]
    broken = [f"{row}: {problem}" for row in found for problem in row.problems]
    assert not broken, "\n".join(broken[:20])
    noticed = [row for row in found if row.exit_code]
    assert len(noticed) > len(found) // 5, "the matrix must do damage"
    published = sections(PAGE.read_text(encoding="utf-8"))[name]
    assert whole_kinds(published) == whole_kinds(section(name, found)), "run `python -m tests.damage`"


def whole_kinds(text: str) -> list[str]:
    """The lines of a section, without those of a kind of damage that is sampled."""
    parts = [(line, line.split(" | ", 1)[0].removeprefix("| ")) for line in text.rstrip().splitlines()]
    return [line for line, kind in parts if not line.startswith("| ") or kind == "damage" or is_whole(kind, STEP)]


def test_the_page_begins_as_it_should() -> None:
    assert PAGE.read_text(encoding="utf-8").startswith(HEAD)
