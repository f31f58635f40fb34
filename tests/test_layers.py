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


def test_the_kernel_is_imported_through_its_front_door() -> None:
    """The import contracts do not see compiled modules; this does."""
    found = [
        where(path, line, name)
        for path in sources()
        if PACKAGE / "kernel" not in path.parents
        for line, name in imports(path)
        if re.match(r"duramen\.kernel\.(_\w+|reference|layout)\b", name)
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
            case ast.Attribute(value=ast.Name(id="pa"), attr="OSFile" | "memory_map" as member):
                yield node.lineno, f"pa.{member}"
            case ast.Attribute(value=ast.Name(id="os"), attr=member) if member not in ENVIRONMENT:
                yield node.lineno, f"os.{member}"


SPARK_FILES = {
    "spark/local_session.py": {
        "import shutil": "looks for the program `java`",
        "import tempfile": "what the JVM writes to stderr while it starts",
        "os.access": "looks for the program `java`",
        "os.X_OK": "looks for the program `java`",
        "os.dup": "the process's own stderr",
        "os.dup2": "the process's own stderr",
        "os.close": "the process's own stderr",
        "os.path": "looks for the program `java`",
        "os.pread": "what the JVM writes to stderr",
    },
    "spark/engine_jar.py": {"import pathlib.Path": "looks for the jar of this installation"},
    "spark/planner.py": {
        "os.read": "the process's own pipes",
        "os.write": "the process's own pipes",
        "os.dup": "the process's own pipes",
        "os.dup2": "the process's own pipes",
        "open()": "the process's own pipes",
    },
}
"""What Spark code may do with files past `duramen.disk`, and what for: never to a log, a staged file or an export.
(`deltalake` and `pyiceberg` write the metadata of their tables themselves.)"""
PROCESS = {"cpu_count", "getpid", "kill", "urandom"}  # of os, and none of them a file


def test_spark_reaches_files_through_the_disk() -> None:
    """So that the sink's commit runs on a simulated disk. An exception that is declared and not needed fails, too."""
    found = {
        (str(path.relative_to(PACKAGE)), what): line
        for path in sources("spark")
        for line, what in file_access(path)
        if what.removeprefix("os.") not in PROCESS
    }
    declared = {(path, what) for path, whats in SPARK_FILES.items() for what in whats}
    undeclared = [(path, what, line) for (path, what), line in found.items() if (path, what) not in declared]
    assert not [where(PACKAGE / path, line, what) for path, what, line in undeclared]
    assert not declared - found.keys()


@pytest.mark.parametrize("layer", ["formats", "kernel"])
def test_bytes_layers_touch_no_files(layer: str) -> None:
    paths = sources(layer)
    assert paths
    assert not [where(path, line, what) for path in paths for line, what in file_access(path)]


KERNEL_FILES = {"_append.pyx"}
"""The record writer: its twin goes through the disk."""


def test_cython_touches_no_files() -> None:
    """But for the declared exception, which fails where it is not needed."""
    modules = "|".join([*sorted(FILE_MODULES), "libc.stdio", "posix"])
    forbidden = re.compile(rf"^\s*(?:from|c?import)\s+(?:{modules})\b|(?<![\w.])open\(")
    found = [
        (path.name, where(path, number, line.strip()))
        for suffix in (".pyx", ".pxd")
        for path in sources("kernel", suffix=suffix)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if forbidden.search(line)
    ]
    assert not [line for name, line in found if name not in KERNEL_FILES]
    assert {name for name, _ in found} == KERNEL_FILES
