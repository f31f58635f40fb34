"""Every code block of the README and of docs/ is run, and what it shows is compared with what it prints.

``python`` blocks with ``>>>`` are doctests, others are executed; ``console`` blocks run each ``$`` line in a shell and
compare the output that follows, where ``...`` stands for anything. The blocks of one page share a scratch directory
and, for Python, their names. A block after an HTML comment ``<!-- not run: why -->`` is skipped, and one after
``<!-- this block runs on Spark -->`` is left to tests/spark.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests import warm

ROOT = Path(__file__).parent.parent
ON_SPARK = "<!-- runs on Spark -->"
"""In a page whose blocks use the name ``spark``: tests/spark runs it, in its one session."""
ALL_PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [page for page in ALL_PAGES if ON_SPARK not in page.read_text(encoding="utf-8")]
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
RUN_BY_HAND = ("make test", "make demo", "make bench", "make fuzz", "make sanitize")

BLOCK_ON_SPARK = "this block runs on Spark"
"""The same for one block of a page; the others do not wait for Spark."""

_BLOCK = re.compile(
    rf"(?:<!-- (not run: [^>]+|{BLOCK_ON_SPARK}) -->\n+)?^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE
)


class Block(NamedTuple):
    language: str
    code: str
    line: int


def blocks(page: Path, remark: str | None = None) -> list[Block]:
    """The blocks that have this remark above them."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(match[2], match[3], text.count("\n", 0, match.start(3)) + 1)
        for match in _BLOCK.finditer(text)
        if match[1] == remark
    ]


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    monkeypatch.chdir(tmp_path)
    programs = tmp_path / ".bin"
    programs.mkdir()
    (programs / "duramen").write_text(f'#!/bin/sh\nexec {shlex.join(warm.duramen())} "$@"\n')
    (programs / "duramen").chmod(0o755)
    path = (str(programs), str(Path(sys.executable).parent), os.environ["PATH"])
    monkeypatch.setenv("PATH", os.pathsep.join(path))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    return tmp_path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_blocks(page: Path, scratch: Path) -> None:
    run_page(page, {"__name__": "__main__"})


def run_page(page: Path, names: dict[str, object], remark: str | None = None) -> None:
    for block in blocks(page, remark):
        where = f"{page.relative_to(ROOT)}:{block.line}"
        if block.language == "python":
            run_python(block, names, where)
        elif block.language == "console":
            run_console(block, where)


def run_python(block: Block, names: dict[str, object], where: str) -> None:
    if ">>>" not in block.code:
        exec(compile(block.code, where, "exec"), names)
        return
    test = doctest.DocTestParser().get_doctest(block.code, names, where, where, block.line)
    report = io.StringIO()
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    with contextlib.redirect_stdout(io.StringIO()):
        runner.run(test, out=report.write, clear_globs=False)
    assert runner.failures == 0, report.getvalue()
    names.update(test.globs)


def run_console(block: Block, where: str) -> None:
    commands: list[tuple[str, list[str]]] = []
    for line in block.code.splitlines():
        if line.startswith("$ "):
            commands.append((line[2:], []))
        else:
            assert commands, f"{where}: output before the first command"
            commands[-1][1].append(line)
    for command, expected in commands:
        if command.startswith(RUN_BY_HAND):
            continue
        done = subprocess.run(command, shell=True, text=True, capture_output=True, timeout=120)
        printed = done.stdout + done.stderr
        wanted = "\n".join(expected).strip()
        if wanted:
            same = doctest.OutputChecker().check_output(wanted + "\n", printed.strip() + "\n", FLAGS)
            assert same, f"{where}: $ {command}\n--- printed\n{printed}\n--- expected\n{wanted}"
        else:
            assert done.returncode == 0, f"{where}: $ {command}\n{printed}"


def test_the_reference_names_options_as_they_are_typed() -> None:
    """It named them after the parameters of the functions: ``--start`` for ``--from``, ``--kind`` for ``--as``."""
    page = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    assert "- `--from, -o FROM`:" in page
    assert "- `--as KIND`:" in page
    assert "--start" not in page
    assert "--kind" not in page


def test_a_wrong_block_is_noticed(scratch: Path) -> None:
    """The harness itself: a block whose output differs must fail."""
    with pytest.raises(AssertionError):
        run_console(Block("console", "$ echo one\ntwo\n", 1), "here")
    with pytest.raises(AssertionError):
        run_python(Block("python", ">>> 1 + 1\n3\n", 1), {}, "here")
