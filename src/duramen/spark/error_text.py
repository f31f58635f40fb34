"""How an error of ours reaches the person at the driver: as its one line, and not as a traceback of workers.

Everything that Spark calls here runs in a Python process of Spark's, which sends its exception on as text and ends.
PySpark leaves the traceback out of that text where ``SPARK_HIDE_TRACEBACK`` is set when it is made, which is right for
an error that says by itself what, where and what to do. Any other exception keeps its traceback: it is a bug. Readers
and writers are `Traveller`s: a worker without duramen has one line to say, too. A worker that was killed says nothing:
`killed_worker` recognises what the JVM says then.
"""

from __future__ import annotations

import operator
import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from duramen.errors import DuramenError
from duramen.spark.gc_freeze import in_worker

HIDE = "SPARK_HIDE_TRACEBACK"

NOT_INSTALLED = (
    "duramen is not installed for the Python of this worker: install the driver's version of it on every machine, "
    "or set PYSPARK_PYTHON to a Python that has it. The worker runs "
)
KILLED = "a Python worker was killed while it ran a task, most likely because its machine ran out of memory"
KILLED_HINT = (
    "run fewer tasks at once (fewer cores: local[1], spark.executor.cores), or give workers more memory "
    "(spark.executor.memoryOverhead in a cluster)"
)
_DIED = ("Python worker exited unexpectedly", "Python worker process terminated")
_FIND = f"""(
    __import__("duramen.spark.error_text", fromlist=["revive"]).revive
    if __import__("importlib.util").util.find_spec("pyspark_duramen")
    else (
        __import__("os").environ.__setitem__("{HIDE}", "1"),
        (_ for _ in ()).throw(ModuleNotFoundError({NOT_INSTALLED!r} + __import__("sys").executable)),
    )
)"""
"""Evaluated where a reader or writer arrives: a Python without duramen can run nothing else of ours."""

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


def told_by(error: Exception) -> str:
    """What Spark says, of an error that it raised."""
    thrown = getattr(error, "java_exception", None)  # py4j's error about what no class of pyspark stands for
    return str(error) or type(error).__name__ if thrown is None else str(thrown.getMessage())


def killed_worker(told: str) -> DuramenError | None:
    """The error for what Spark says, if that is the death of a Python process: SIGKILL leaves it no last word."""
    return DuramenError(KILLED, hint=KILLED_HINT) if any(words in told for words in _DIED) else None


class Traveller:
    """What Spark pickles on the driver and unpickles in its workers. One without duramen says what to do, where it
    would only say that a module is missing."""

    def __reduce__(self) -> tuple[Any, ...]:
        return operator.call, (_Finder(), pickle.dumps((type(self), self.__dict__)))


class _Finder:
    """Becomes the function `revive` on arrival."""

    def __reduce__(self) -> tuple[Any, ...]:
        return eval, (_FIND,)


def revive(pickled: bytes) -> Any:
    kind, state = pickle.loads(pickled)
    made = kind.__new__(kind)
    made.__dict__.update(state)
    return made
