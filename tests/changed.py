"""Run the fast tests of what changed: ``python -m tests.changed [--since main] [pytest arguments]``.

A file counts as changed if it differs from the commit where this branch left `main`, committed or not. Each changed
file names the tests that know most about it:

- a module of `src/duramen/a/b/`: the tests in `tests/a/b/`, or in the closest parent that exists, and its own
  docstring examples;
- a test: itself; a helper or a fixture of a test directory: that directory;
- a page of the documentation: its code blocks and its links;
- `pyproject.toml`: the layer tests.

Tests marked `slow` or `spark` are left to `make test`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from tests.test_docs import PAGES
from tests.test_docstrings import MODULES

ROOT = Path(__file__).parents[1]
FAST = "not slow and not spark"
NOTHING_COLLECTED = 5
"""Exit status of pytest when every test was deselected."""


def git(*arguments: str) -> list[str]:
    """The lines that a git command prints; none where it fails."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, text=True, capture_output=True, check=False)
    return done.stdout.splitlines() if done.returncode == 0 else []


def changed_files(since: str) -> set[str]:
    """Paths below the root that were added, changed or removed since this branch left `since`."""
    base = next((found[0] for name in (since, f"origin/{since}") if (found := git("merge-base", "HEAD", name))), "HEAD")
    return {*git("diff", "--name-only", base), *git("ls-files", "--others", "--exclude-standard")}


def tests_of(path: str) -> Iterator[str]:
    """The pytest arguments that test a changed file."""
    file = PurePosixPath(path)
    match file.parts:
        case ("src", "duramen", *_):
            yield from _tests_of_module(file.relative_to("src/duramen"))
        case ("src", *_):
            yield "tests/spark"
        case ("tests", "data", *_):
            yield "tests/formats"
        case ("tests", *_) if file.name.startswith("test_"):
            yield path
        case ("tests", _, _, *_) if file.suffix == ".py":
            yield str(file.parent)
        case ("tests", name):
            yield f"tests/test_{name}"
        case ("docs", *_, _) | (_,) if file.suffix == ".md":
            yield "tests/test_links.py"
            yield f"tests/test_docs.py::test_code_blocks[{path}]"
        case ("fuzz", *_):
            yield "tests/test_fuzz.py"
        case ("pyproject.toml",):
            yield "tests/test_layers.py"


def _tests_of_module(module: PurePosixPath) -> Iterator[str]:
    """The tests of a module that is named by its path below `src/duramen`."""
    if module.parent == PurePosixPath():
        yield f"tests/test_{module.name}"
    else:
        yield next(str("tests" / parent) for parent in module.parents if (ROOT / "tests" / parent).is_dir())
    if module.suffix == ".py" and not module.name.startswith("_"):
        yield f"tests/test_docstrings.py::test_examples[{'.'.join(('duramen', *module.with_suffix('').parts))}]"
    if module.name == "__init__.py":
        yield f"tests/test_docstrings.py::test_examples[{'.'.join(('duramen', *module.parent.parts))}]"


def select(files: set[str]) -> list[str]:
    """The pytest arguments for changed files: each exists, none lies within another."""
    found = {argument for path in files for argument in tests_of(path) if _exists(argument)}
    inner = {argument for argument in found if not found.isdisjoint(map(str, PurePosixPath(argument).parents))}
    return sorted(found - inner)


def _exists(argument: str) -> bool:
    path, _, node = argument.partition("::")
    if node.startswith("test_code_blocks"):
        return any(node == f"test_code_blocks[{page.relative_to(ROOT)}]" for page in PAGES)
    if node.startswith("test_examples"):
        return any(node == f"test_examples[{name}]" for name in MODULES)
    return (ROOT / path).exists()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.changed", description=__doc__.splitlines()[0])
    parser.add_argument("--since", default="main", help="the branch to compare with")
    parser.add_argument("--list", action="store_true", help="print the tests, run none")
    given, rest = parser.parse_known_args(arguments)
    selected = select(changed_files(given.since))
    if given.list or not selected:
        print("\n".join(selected) or f"nothing that has tests changed since {given.since}")
        return 0
    print("fast tests of what changed:", *(name for name in selected if "::" not in name), flush=True)
    command = [sys.executable, "-m", "pytest", "-q", "-m", FAST, *rest, *selected]
    status = subprocess.run(command, cwd=ROOT, check=False).returncode
    return 0 if status == NOTHING_COLLECTED else status


if __name__ == "__main__":
    sys.exit(main())
