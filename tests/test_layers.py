"""The layers of the design, enforced: what may import what, and who may touch files."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "duramen"

FILE_MODULES = {"io", "mmap", "os", "pathlib", "shutil", "tempfile"}
ENVIRONMENT = {"environ", "getenv"}  # all that a layer without files may ask of os


def sources(*parts: str, suffix: str = ".py") -> list[Path]:
    return sorted(PACKAGE.joinpath(*parts).rglob(f"*{suffix}"))


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and full name of everything that a file imports: `from a import b` gives `a.b`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def where(path: Path, line: int, what: str) -> str:
    return f"{path.relative_to(ROOT)}:{line}: {what}"


def test_import_contracts() -> None:
    lint = Path(sys.executable).with_name("lint-imports")
    if not lint.exists():
        pytest.skip("import-linter is not installed")
    # No cache: tests that run side by side would write it at the same time.
    command = [lint, "--no-cache", "--no-logo"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_only_spark_imports_pyspark() -> None:
    found = [
        where(path, line, name)
        for path in sources()
        if PACKAGE / "spark" not in path.parents
        for line, name in imports(path)
        if name.split(".")[0] in {"pyspark", "py4j"}
    ]
    assert not found


def test_only_formats_and_log_import_the_kernel() -> None:
    """The contract of the same name does not see compiled modules; this does."""
    allowed = {PACKAGE / layer for layer in ("kernel", "formats", "log")}
    found = [
        where(path, line, name)
        for path in sources()
        if not allowed.intersection(path.parents)
        for line, name in imports(path)
        if name == "duramen.kernel" or name.startswith("duramen.kernel.")
    ]
    assert not found


def file_access(path: Path) -> Iterator[tuple[int, str]]:
    """Calls of `open`, imports of modules that reach files, and uses of `os` beyond the environment."""
    for line, name in imports(path):
        module, _, member = name.partition(".")
        if module in FILE_MODULES and not (module == "os" and member in {"", *ENVIRONMENT}):
            yield line, f"import {name}"
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Call(func=ast.Name(id="open")):
                yield node.lineno, "open()"
            case ast.Attribute(value=ast.Name(id="os"), attr=member) if member not in ENVIRONMENT:
                yield node.lineno, f"os.{member}"


@pytest.mark.parametrize("layer", ["formats", "kernel"])
def test_bytes_layers_touch_no_files(layer: str) -> None:
    paths = sources(layer)
    assert paths
    assert not [where(path, line, what) for path in paths for line, what in file_access(path)]


def test_cython_touches_no_files() -> None:
    modules = "|".join([*sorted(FILE_MODULES), "libc.stdio", "posix"])
    forbidden = re.compile(rf"^\s*(?:from|c?import)\s+(?:{modules})\b|(?<![\w.])open\(")
    found = [
        where(path, number, line.strip())
        for suffix in (".pyx", ".pxd")
        for path in sources("kernel", suffix=suffix)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if forbidden.search(line)
    ]
    assert not found
