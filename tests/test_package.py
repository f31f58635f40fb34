"""The package as a stranger gets it: the sdist, the wheel that is built from it, and an environment of its own.

The wheel is built as pip builds it, but without optimization, which is quicker; in all else it is what `make dist`
makes. The environment is empty but for the wheel. What it depends on is lent to it from this one by a path, so that
nothing is fetched; the project's sources are not on that path.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

import duramen

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
COMPILED = (".pyx", ".pxd", ".c", ".h")
MADE = (".pyc", ".so")

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("package")]


def run(command: Sequence[str | Path], cwd: Path) -> str:
    """What the command prints, without anything of this environment that could help it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = list(map(str, command))
    done = subprocess.run(command, cwd=cwd, env=environment, text=True, capture_output=True, timeout=350)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def pip(*arguments: str | Path, cwd: Path) -> None:
    run([sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", *arguments], cwd)


def sources(root: Path) -> set[str]:
    """The files of the package, with those that are compiled."""
    files = (path for path in (root / "src").rglob("*") if path.is_file() and path.suffix not in MADE)
    return {path.relative_to(root).as_posix() for path in files}


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("sdist")
    code = "import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])"
    run([sys.executable, "-c", code, target], ROOT)
    [path] = target.glob("*.tar.gz")
    return path


@pytest.fixture(scope="module")
def wheel(sdist: Path) -> Path:
    with tarfile.open(sdist) as archive:
        archive.extractall(sdist.parent, filter="data")
    unpacked = sdist.parent / sdist.name.removesuffix(".tar.gz")
    quick = "--config-settings=cmake.build-type=Debug"
    pip("wheel", "--no-index", "--no-deps", "--no-build-isolation", quick, "-w", sdist.parent, unpacked, cwd=unpacked)
    [path] = sdist.parent.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ``bin`` of an environment with nothing in it but the wheel and what is lent to it."""
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, symlinks=True)
    lent = home / "lent"
    lent.mkdir()
    for entry in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if "duramen" not in entry.name and entry.suffix != ".pth":  # the project itself is here by such a file
            (lent / entry.name).symlink_to(entry)
    [packages] = home.glob("lib/python*/site-packages")
    (packages / "lent.pth").write_text(f"{lent}\n")
    pip("--python", home / "bin/python", "install", "--no-index", "--no-deps", wheel, cwd=home)
    return home / "bin"


def test_the_version_is_said_in_one_way() -> None:
    assert PROJECT["version"] == duramen.__version__
    assert f"## {duramen.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_licence_is_the_one_that_is_claimed() -> None:
    assert PROJECT["license"] == "Apache-2.0"
    assert "Apache License" in (ROOT / "LICENSE").read_text(encoding="utf-8")[:200]


def test_what_is_in_the_sdist(sdist: Path) -> None:
    """Everything that a build needs, and nothing that a build makes."""
    assert sdist.name == f"duramen-{duramen.__version__}.tar.gz"
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = {"pyproject.toml", "CMakeLists.txt", "LICENSE", "README.md", "CHANGELOG.md", "mkdocs.yml", "Makefile"}
    assert (needed | sources(ROOT)) - names == set()
    known = (
        "src",
        "docs",
        "tests",
        "fuzz",
        "bench",
        "java",
        "examples",
        "PKG-INFO",
        "RELIABILITY.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
    )
    assert {name.partition("/")[0] for name in names} - needed - set(known) == set()
    assert [name for name in names if name.endswith(MADE) or name.startswith("bench/scratch/")] == []


def test_what_is_in_the_wheel(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        [metadata] = [archive.read(name).decode() for name in names if name.endswith("METADATA")]
    wanted = {name.removeprefix("src/") for name in sources(ROOT) if not name.endswith(COMPILED)}
    assert wanted - names == set()
    assert {"duramen/py.typed", "pyspark_duramen/__init__.py", "duramen/kernel/_crc.pyi"} <= names
    assert any(name.startswith("duramen/watch/page/") for name in names)
    modules = {path.stem for path in (ROOT / "src/duramen/kernel").glob("_*.pyx")}
    assert modules == {Path(name).name.partition(".")[0] for name in names if name.endswith(".so")}
    assert [name for name in names if name.endswith(COMPILED)] == []
    assert {name.partition("/")[0] for name in names} == {
        "duramen", "pyspark_duramen", f"duramen-{duramen.__version__}.dist-info",
    }  # fmt: skip
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert f"Version: {duramen.__version__}\n" in metadata
    assert "Requires-Dist: pyarrow" in metadata


def test_the_wheel_works_in_an_empty_environment(installed: Path, tmp_path: Path) -> None:
    assert run([installed / "duramen", "--version"], tmp_path) == f"duramen {duramen.__version__}\n"
    (tmp_path / "lines").write_text("oak\nash\n")
    run([installed / "duramen", "append", "log", "lines"], tmp_path)
    assert run([installed / "duramen", "cat", "log"], tmp_path) == "oak\nash\n"
    where = "import duramen.kernel._crc as it, pyspark_duramen; print(it.__file__); print(pyspark_duramen.__file__)"
    places = run([installed / "python", "-c", where], tmp_path).splitlines()
    assert [place for place in places if not Path(place).is_relative_to(installed.parent)] == []


def test_spark_finds_the_source_by_its_name(installed: Path, tmp_path: Path) -> None:
    """As Spark looks for it, without a session: in every module called ``pyspark_*`` on the path."""
    code = (
        "import importlib, pkgutil; from pyspark.sql.datasource import DataSource\n"
        "names = [one.name for one in pkgutil.iter_modules() if one.name.startswith('pyspark_')]\n"
        "kinds = [importlib.import_module(name).DefaultSource for name in names]\n"
        "print(names, [kind.name() for kind in kinds if issubclass(kind, DataSource)])"
    )
    assert run([installed / "python", "-c", code], tmp_path) == "['pyspark_duramen'] ['duramen']\n"


def test_a_bare_environment_is_bare(wheel: Path, tmp_path: Path) -> None:
    """Without what is lent the wheel must not work, or the tests above would show nothing."""
    venv.create(tmp_path / "bare", symlinks=True)
    pip("--python", tmp_path / "bare/bin/python", "install", "--no-index", "--no-deps", wheel, cwd=tmp_path)
    done = subprocess.run([tmp_path / "bare/bin/duramen", "--version"], text=True, capture_output=True, timeout=60)
    assert done.returncode != 0
    assert "No module named" in done.stderr
