"""Test data and Hypothesis profiles, for every test.

Profiles: "default" and, with THOROUGH=1, "thorough"; `--hypothesis-profile=NAME` overrides.
Files of the fixtures are shared and must not be written to: copy them to `tmp_path` first.
"""

import json
import os
import shutil
import signal
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.sampling import THOROUGH
from tests.unprivileged import run_unprivileged

DATA = Path(__file__).parent / "data"

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as the parent of a background job leaves it
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A short-lived JVM spends most of its time on compiling code that it will not run again.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

settings.register_profile("default", deadline=None, max_examples=40)
settings.register_profile("thorough", settings.get_profile("default"), max_examples=1000)
settings.load_profile("thorough" if THOROUGH else "default")


MEMORY = Path("/dev/shm")
MEMORY_BYTES = 4 << 30
"""How much of it has to be free."""


def pytest_configure(config: pytest.Config) -> None:
    """Keep temporary files in memory, where a sync costs nothing: on a disk they take most of the time of many tests.
    A thorough run, ``TMPDIR`` and ``--basetemp`` choose a disk. pytest would close its own directory to other users,
    whom tests for root need."""
    if config.option.basetemp or hasattr(config, "workerinput"):
        return
    root = tempfile.gettempdir()
    if not THOROUGH and "TMPDIR" not in os.environ and os.access(MEMORY, os.W_OK | os.X_OK):
        root = str(MEMORY) if shutil.disk_usage(MEMORY).free >= MEMORY_BYTES else root
    if os.geteuid() == 0 or root == str(MEMORY):
        config.option.basetemp = os.path.join(root, f"pytest-duramen-{os.getpid()}")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    directory = Path(session.config.option.basetemp or "")
    if exitstatus == 0 and directory.name == f"pytest-duramen-{os.getpid()}":
        shutil.rmtree(directory, ignore_errors=True)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test marked `unprivileged` under another user id if this process is root."""
    if os.geteuid() != 0 or pyfuncitem.get_closest_marker("unprivileged") is None:
        return None
    names = pyfuncitem._fixtureinfo.argnames
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    factory = pyfuncitem._request.getfixturevalue("tmp_path_factory")
    directory = pyfuncitem._request.getfixturevalue("tmp_path")
    run_unprivileged(lambda: pyfuncitem.obj(**arguments), directory, factory.getbasetemp())
    return True


@pytest.fixture(scope="session")
def golden() -> Path:
    """Directory of the golden byte vectors of all formats but Osiris."""
    return DATA / "golden"


@pytest.fixture(scope="session")
def vectors(golden: Path) -> dict[str, Any]:
    """What `vectors.json` says about the golden files: size, digest, fields, expectations."""
    parsed: dict[str, Any] = json.loads((golden / "vectors.json").read_text(encoding="utf-8"))
    return parsed


@pytest.fixture(scope="session")
def osiris() -> Path:
    """Directory of the Osiris logs, one directory per scenario, with their truth files."""
    return DATA / "osiris"
