"""Which tests `make check` runs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests import changed
from tests.changed import changed_files, main, select

EXAMPLES = "tests/test_docstrings.py::test_examples"


@pytest.mark.parametrize(
    ("path", "tests"),
    [
        ("src/duramen/log/read/log.py", ["tests/log/read", f"{EXAMPLES}[duramen.log.read.log]"]),
        ("src/duramen/log/read/__init__.py", ["tests/log/read", f"{EXAMPLES}[duramen.log.read]"]),
        ("src/duramen/kernel/_crc.pyx", ["tests/kernel"]),
        ("src/duramen/watch/page/page.js", ["tests/watch"]),
        ("src/duramen/aio.py", ["tests/test_aio.py", f"{EXAMPLES}[duramen.aio]"]),
        ("src/pyspark_duramen/__init__.py", ["tests/spark"]),
        ("tests/log/read/test_log.py", ["tests/log/read/test_log.py"]),
        ("tests/log/writing.py", ["tests/log"]),
        ("tests/changed.py", ["tests/test_changed.py"]),
        ("tests/data/golden/vectors.json", ["tests/formats"]),
        ("docs/convert.md", ["tests/test_docs.py::test_code_blocks[docs/convert.md]", "tests/test_links.py"]),
        ("CHANGELOG.md", ["tests/test_links.py"]),
        ("pyproject.toml", ["tests/test_layers.py"]),
        ("src/duramen/removed_module.py", []),
        ("LICENSE", []),
    ],
)  # fmt: skip
def test_a_changed_file_selects_its_tests(path: str, tests: list[str]) -> None:
    assert select({path}) == tests


def test_a_directory_is_run_once() -> None:
    assert select({"tests/log/writing.py", "tests/log/read/test_log.py"}) == ["tests/log"]


def test_every_package_has_tests() -> None:
    packages = {path.parent for path in (changed.ROOT / "src/duramen").rglob("*.py")}
    selected = {package: select({str(package.relative_to(changed.ROOT) / "new.py")}) for package in packages}
    assert [package for package, tests in selected.items() if not tests] == [changed.ROOT / "src/duramen"]


def test_commits_and_the_working_tree_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True)

    def commit(name: str) -> None:
        (tmp_path / name).write_text("one\n")
        git("add", name)
        git("commit", "-m", name)

    monkeypatch.setattr(changed, "ROOT", tmp_path)
    git("init", "-b", "main")
    commit("before")
    git("switch", "-c", "work")
    commit("committed")
    git("switch", "main")
    commit("elsewhere")
    git("switch", "work")
    (tmp_path / "before").write_text("two\n")
    (tmp_path / "new").write_text("")
    assert changed_files("main") == {"before", "committed", "new"}
    assert changed_files("unknown") == {"before", "new"}, "without the branch: since the last commit"


def test_a_change_without_tests_is_fine(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(changed, "changed_files", lambda since: {"LICENSE"})
    assert main([]) == 0
    assert capsys.readouterr().out == "nothing that has tests changed since main\n"
