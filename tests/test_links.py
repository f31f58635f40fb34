"""The pages hold together: links lead somewhere, named tests exist, all pages are in the site, no reference is stale.

Links to other hosts are not fetched. The site is built as `make docs` does it, where a warning is an error.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import duramen
from docs import generate
from duramen.testing import patterns
from fuzz.targets import TARGETS
from tests.test_fuzz import MUTATIONS

ROOT = Path(__file__).parent.parent
BESIDE = [ROOT / name for name in ("README.md", "RELIABILITY.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")]
PAGES = [*BESIDE, *sorted((ROOT / "docs").rglob("*.md")), ROOT / "tests/interop/README.md"]

_CODE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
_INLINE_CODE = re.compile(r"`[^`\n]*`")
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_TEST_FILE = re.compile(r"`(?:tests/)?([\w/]+\.py)(?:::(\w+))?`")


def prose(page: Path) -> str:
    return _CODE.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """What can be linked to in a page, as both mkdocs and code hosts name it."""
    headings = _HEADING.findall(prose(page))
    return {re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


def broken_links(page: Path) -> list[str]:
    broken = []
    for target in _LINK.findall(_INLINE_CODE.sub("", prose(page))):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = page if not path else (page.parent / path).resolve()
        wrong_anchor = anchor and there.suffix == ".md" and there.is_file() and anchor not in anchors(there)
        if not there.exists() or wrong_anchor or not there.is_relative_to(ROOT):
            broken.append(target)
    return broken


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert broken_links(page) == []


def test_a_broken_link_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("# One `two`\n[a](nowhere.md) [b](#one-two) [c](#three) `[d](x)` [e](https://example.org)\n")
    assert broken_links(page) == ["nowhere.md", "#three"]


@pytest.mark.parametrize(
    "name", ["RELIABILITY.md", "docs/crash-safety.md", "docs/assumptions.md", "docs/threat-model.md"]
)
def test_the_tests_that_are_named_exist(name: str) -> None:
    named = [match for match in _TEST_FILE.findall((ROOT / name).read_text(encoding="utf-8")) if "test" in match[0]]
    assert named or name == "docs/assumptions.md"
    for path, function in named:
        file = ROOT / path if (ROOT / path).is_file() else ROOT / "tests" / path
        assert file.is_file(), path
        assert f"def {function}" in file.read_text(encoding="utf-8"), f"{path}::{function}"


def test_every_regression_is_in_the_track_record() -> None:
    record = (ROOT / "RELIABILITY.md").read_text(encoding="utf-8")
    for path in ("torture/test_regressions.py", "log/test_regressions.py"):
        found = re.findall(r"^def (test_\w+)", (ROOT / "tests" / path).read_text(encoding="utf-8"), re.MULTILINE)
        assert [name for name in found if name not in record] == [], path


def test_the_counts_in_the_record_are_those_of_the_tests() -> None:
    record = (ROOT / "RELIABILITY.md").read_text(encoding="utf-8")
    matrix = (ROOT / "tests/damage/matrix.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+) \| (\d+) \|", matrix, re.MULTILINE)
    cases, flips = sum(int(count) for _, count in rows), sum(int(count) for what, count in rows if "flip" in what)
    assert f" all {cases:,}, of which {flips:,} flipped bits |" in record
    assert f"| fuzz targets, each on its seeds and {MUTATIONS} mutations | {len(TARGETS)} |" in record
    assert f"{len(patterns())} standard patterns" in record


def test_every_page_is_in_the_site() -> None:
    listed = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    names = [str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")]
    missing = [name for name in names if not re.search(rf"[ :]{re.escape(name)}$", listed, re.MULTILINE)]
    assert missing == [], "a line for each in `nav` of mkdocs.yml"


def test_the_reference_is_current() -> None:
    assert [path.name for path in generate.stale()] == [], "`python -m docs.generate` regenerates them"


def test_the_pages_stay_short() -> None:
    """At the limit, cut what another page says; words are counted as `wc -w` does, code blocks left out."""
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 200
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    words = {str(page.relative_to(ROOT)): len(prose(page).split()) for page in pages}
    assert sum(words.values()) <= 38_000, sorted(words.items(), key=lambda item: -item[1])[:10]


def test_every_public_name_is_in_the_reference() -> None:
    page = (ROOT / "docs/reference/api.md").read_text(encoding="utf-8")
    assert [name for name in duramen.__all__ if not re.search(rf"\b{name}\b", page)] == []


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, text=True, capture_output=True, timeout=300)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    index = (tmp_path / "site/index.html").read_text(encoding="utf-8")
    assert "heartwood" in index
    assert "fonts.googleapis" not in index, "nothing is fetched from elsewhere"
