"""Codes of findings: each is documented; a segment without its records is one finding."""

from __future__ import annotations

import ast
import re
import shutil
from pathlib import Path

import pytest

import duramen
from tests.log.conftest import options, value

ROOT = Path(__file__).parents[3]
CODE = re.compile(r"[a-z]+(-[a-z]+)+")
OTHER = {
    "durable-log", "fixed-slot", "user-defined", "topic-partition", "utf-8", "leader-epoch-checkpoint",
}  # fmt: skip
"""Strings of the same form that are not codes."""


def codes() -> set[str]:
    found = set()
    places = ("log/verify", "log/segments", "formats")
    for path in (path for place in places for path in (ROOT / "src/duramen" / place).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            for argument in node.args[:1] if isinstance(node, ast.Call) else [node]:
                if isinstance(argument, ast.Constant) and CODE.fullmatch(str(argument.value)):
                    found.add(str(argument.value))
    return found - OTHER


def test_every_code_has_a_section() -> None:
    page = (ROOT / "docs/findings.md").read_text()
    documented = set(re.findall(r'<a id="([a-z-]+)"></a>`\1`', page))
    assert codes() - documented == set()
    assert documented - codes() == set()


@pytest.mark.parametrize("name", ["durable-log", "keratin", "rustlog", "osiris"])
@pytest.mark.parametrize("keeps", ["nothing", "header"])
def test_an_emptied_segment_is_one_finding(tmp_path: Path, name: str, keeps: str) -> None:
    root = tmp_path / "log"
    with duramen.open(root, "a", format=name, **options(name)) as log:
        for first in (0, 10, 20):
            log.append_batch([value(first + n) for n in range(10)])
            if first < 20:
                log.seal()
        path, start = root / log.codec.segment_path(10), log.codec.open_segment(b"", 10).start.position
    path.write_bytes(path.read_bytes()[: start if keeps == "header" else 0])
    (found,) = duramen.verify(root).findings
    assert (found.code, found.severity, found.path) == ("emptied-segment", "damage", str(path))
    assert (found.first_offset, found.last_offset) == (10, 19)
    assert "held offsets 10 to 19" in found.message
    assert "restore the file" in found.action


def test_an_emptied_segment_of_which_only_the_manifest_knows(tmp_path: Path) -> None:
    with duramen.open(tmp_path / "log", "a", format="keratin") as log:
        log.append_batch([value(n) for n in range(10)])
        log.seal()
        log.append(value(10))
    shutil.rmtree(tmp_path / "log" / ".duramen")
    for path in (tmp_path / "log" / "segments").glob(f"{10:020}.*"):
        path.write_bytes(b"")
    (found,) = [one for one in duramen.verify(tmp_path / "log").findings if one.severity == "damage"]
    assert (found.code, found.first_offset) == ("emptied-segment", 10)
    assert "held offsets 10 to 10" in found.message or "held offsets from 10 on" in found.message


def test_an_emptied_active_segment(tmp_path: Path) -> None:
    with duramen.open(tmp_path / "log", "a", format="keratin") as log:
        log.append_batch([value(n) for n in range(10)])
    (tmp_path / "log" / "segments" / f"{0:020}.log").write_bytes(b"")
    (found,) = duramen.verify(tmp_path / "log").findings
    assert (found.code, found.first_offset, found.last_offset) == ("emptied-segment", 0, 9)
