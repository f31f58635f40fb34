"""How an error of ours reaches the person at the driver: as its one line, and not as a traceback of workers.

Everything that Spark calls here runs in a Python process of Spark's, which sends its exception on as text and ends.
PySpark leaves the traceback out of that text where ``SPARK_HIDE_TRACEBACK`` is set when it is made, which is right for
an error that says by itself what, where and what to do. Any other exception keeps its traceback: it is a bug.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

from duramen.errors import DuramenError
from duramen.spark.gc_freeze import in_worker

HIDE = "SPARK_HIDE_TRACEBACK"

P = ParamSpec("P")
T = TypeVar("T")


@contextmanager
def plainly() -> Iterator[None]:
    """Have a `DuramenError` of this block arrive without its traceback. The process ends with it, so nothing else of
    the process is affected; outside of Spark's processes nothing is changed."""
    try:
        yield
    except DuramenError as error:
        if in_worker():
            os.environ[HIDE] = "1"
        raise error from None


def plain(function: Callable[P, T]) -> Callable[P, T]:
    @wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        with plainly():
            return function(*args, **kwargs)

    return wrapped


def plain_rows(rows: Iterator[T]) -> Iterator[T]:
    """`plainly`, for what a task yields."""
    with plainly():
        yield from rows
