"""Tests of what a user may not do, where root runs the tests.

A test marked `unprivileged` runs as it is for an ordinary user. For root, who may read and write everywhere, its body
runs in a forked child under another user id, and the test's outcome is the child's.
"""

from __future__ import annotations

import functools
import importlib
import os
import pkgutil
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

import duramen

USER = 65534
"""nobody"""


def run_unprivileged(body: Callable[[], object], directory: Path, shared: Path) -> None:
    """Run the body under another user id, which owns what is in ``directory`` and may read what is in ``shared``."""
    _import_all()
    _give_away(directory, shared)
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # this process has threads; the child uses none of them
        child = os.fork()
    if child == 0:
        os.close(reading)
        _run_child(body, writing)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as report:
        text = report.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status:
        pytest.fail(f"as user {USER}, exit status {status}:\n{text}", pytrace=False)


def _run_child(body: Callable[[], object], report: int) -> None:
    status = 1
    try:
        os.setgroups([])
        os.setresgid(USER, USER, USER)
        os.setresuid(USER, USER, USER)
        body()
        status = 0
    except BaseException:  # noqa: BLE001
        os.write(report, traceback.format_exc().encode("utf-8", "replace")[-60_000:])
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


@functools.cache
def _import_all() -> None:
    """Import what the body may import later: the interpreter itself may lie where only root may read."""
    names = [
        name for _, name, _ in pkgutil.walk_packages(duramen.__path__, "duramen.") if not name.endswith("__main__")
    ]
    names = [name for name in names if ".spark" not in name]
    for name in (*names, "rich.console", "rich.table", "rich.progress", "unittest.mock"):
        importlib.import_module(name)


def _give_away(directory: Path, shared: Path) -> None:
    for path in (directory, *directory.rglob("*")):
        os.chown(path, USER, USER, follow_symlinks=False)
    for path in filter(Path.exists, (shared, *shared.iterdir(), *shared.parents)):  # links may dangle
        mode = path.stat().st_mode
        if path.is_dir() and mode & 0o055 != 0o055 and path.stat().st_uid == os.geteuid() and path != Path.home():
            path.chmod(mode | 0o055)
