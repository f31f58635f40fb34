"""How much of an exhaustive sweep a test goes through.

A sweep takes a step of `every(n)`: one case of n, or every case where ``THOROUGH=1`` is set (``make test THOROUGH=1``).
Which cases are taken depends on nothing but the test, so that two runs take the same ones. The commands that go through
all of them, seed after seed, are `make torture`, `make flips`, `make files` and `make fuzz`.
"""

from __future__ import annotations

import os

import pytest

THOROUGH = os.environ.get("THOROUGH", "") not in ("", "0")
thorough_only = pytest.mark.skipif(not THOROUGH, reason="starts many processes: runs with THOROUGH=1")


def every(count: int) -> int:
    """The step of a sweep: ``count``, or 1 in a thorough run."""
    return 1 if THOROUGH else count


def examples(count: int) -> int:
    """How many examples Hypothesis tries: a third of ``count``, or ten times as many in a thorough run."""
    return count * 10 if THOROUGH else -(-count // 3)
