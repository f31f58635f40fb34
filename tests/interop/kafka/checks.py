"""Tells each check as it ends. Used by every program here."""

from __future__ import annotations

import time
from collections.abc import Iterator

from bench.brokers import install

Checks = Iterator[tuple[str, str]]
"""What was checked, and what is wrong with it: nothing if it is empty."""


def tell(checks: Checks) -> int:
    """The exit code of the program: 1 if a check failed, or what it needs cannot be installed."""
    failed, began_s = False, time.monotonic()
    try:
        for what, problem in checks:
            line = f"{what}: {problem}" if problem else what
            print(f"  {'wrong' if problem else 'ok   '} {time.monotonic() - began_s:4.0f} s  {line}", flush=True)
            failed = failed or bool(problem)
    except install.NotRun as why:
        print(f"not run: {why}")
        return 1
    return int(failed)
