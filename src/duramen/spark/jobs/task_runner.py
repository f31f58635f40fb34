"""Runs a job's functions on the executors and returns their results to the driver.

A task is any value that can be pickled; the work is a function of a module, which executors import by name. Tasks
return summaries, never records. If pandas is installed, tasks run through ``mapInArrow``, which Spark Connect supports,
too; otherwise through an RDD.

An error that Duramen raises on purpose is returned like a result: the driver raises that one exception, without the
tracebacks of the layers between. Only an error of the operating system is worth another attempt, on another machine; it
fails the attempt, except for the last one.
"""

from __future__ import annotations

import importlib.util
import pickle
import re
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import pyarrow as pa

from duramen import errors
from duramen.errors import DuramenError, StorageError
from duramen.spark.error_text import killed_worker, told_by
from duramen.spark.gc_freeze import settle

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")
Work = Callable[[T], R]

_RESULT = pa.schema([("task", pa.int64()), ("result", pa.binary())])
_DDL = "task bigint, result binary"
CANCEL_S = 5.0
"""How long to wait for cancelled tasks: Spark kills their workers after two seconds."""


class _Failed(NamedTuple):
    error: DuramenError


class TaskAttempt(NamedTuple):
    """Which attempt at a task this is. ``name`` differs for every attempt, so it may be part of a staged file's."""

    name: str
    number: int


def attempt() -> TaskAttempt:
    """The attempt of the running task; the first one outside Spark."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return (
        TaskAttempt("0", 0) if context is None else TaskAttempt(str(context.taskAttemptId()), context.attemptNumber())
    )


def distribute(spark: SparkSession, work: Work[T, R], tasks: Sequence[T]) -> list[R]:
    """Run ``work`` on every task, each in its own Spark task, and return the results in order."""
    if not tasks:
        return []
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    attempts = _attempts(spark)
    try:
        with cancelling(spark):
            pickled = _collect(spark, _Runner(work, list(tasks), attempts))
    except (PySparkException, Py4JError) as error:
        told = told_by(error)
        raise killed_worker(told) or DuramenError(f"Spark could not run the tasks: {_first_line(told)}") from error
    results: list[R] = []
    for number in range(len(tasks)):
        result = pickle.loads(pickled[number])
        if isinstance(result, _Failed):
            raise result.error
        results.append(result)
    return results


class _Runner:
    """The work and its tasks, pickled to the executors."""

    def __init__(self, work: Work[Any, Any], tasks: list[Any], attempts: int) -> None:
        self.work, self.tasks, self.attempts = work, tasks, attempts

    def one(self, number: int) -> bytes:
        settle()
        try:
            result: Any = self.work(self.tasks[number])
        except StorageError as error:
            if attempt().number + 1 < self.attempts:
                raise
            result = _Failed(error)
        except DuramenError as error:
            result = _Failed(error)
        return pickle.dumps(result)

    def in_arrow(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield pa.RecordBatch.from_pylist([{"task": number, "result": self.one(number)}], _RESULT)

    def in_rdd(self, number: int) -> tuple[int, bytes]:
        return number, self.one(number)


def _collect(spark: SparkSession, runner: _Runner) -> dict[int, bytes]:
    count = len(runner.tasks)
    if has_pandas():
        with no_pandas_warning():
            rows = spark.range(0, count, 1, count).mapInArrow(runner.in_arrow, _DDL).collect()
        return {row.task: bytes(row.result) for row in rows}
    return dict(spark.sparkContext.parallelize(range(count), count).map(runner.in_rdd).collect())


def has_pandas() -> bool:
    """Whether ``mapInArrow`` can be used: pyspark asks for pandas there, although no frame of it is ever made."""
    return importlib.util.find_spec("pandas") is not None


@contextmanager
def no_pandas_warning() -> Iterator[None]:
    """Hide pyspark's warning about pandas 3: no pandas frame is created here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
        yield


@contextmanager
def cancelling(spark: SparkSession) -> Iterator[None]:
    """Cancel Spark's jobs before a Ctrl-C leaves this block: the caller's cleanup must neither wait for tasks nor race
    them. pyspark's own handler calls the JVM from within another call, which fails."""
    try:
        yield
    except KeyboardInterrupt:
        with suppress(Exception):  # Spark Connect has no context, and a JVM that has ended has no jobs
            context = spark.sparkContext
            context.cancelAllJobs()
            tracker, until = context.statusTracker(), time.monotonic() + CANCEL_S
            while tracker.getActiveStageIds() and time.monotonic() < until:
                time.sleep(0.05)
        raise


@contextmanager
def plain_errors() -> Iterator[None]:
    """Raise what Spark raises as one of our own errors: the one that a task or the sink raised, if it was ours."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise plain_error(error) from error


def plain_error(error: Exception) -> DuramenError:
    """What Spark says, as one line; with the class of the error that was raised on the other side, if it was ours."""
    told = told_by(error)
    lines = [line.strip() for line in told.splitlines() if line.strip()]
    for line in lines:
        found = _OURS.search(line)
        kind = getattr(errors, found[1], None) if found else None
        if found and isinstance(kind, type) and issubclass(kind, DuramenError):
            return kind(found[2])
    first = lines[0] if lines else type(error).__name__
    return killed_worker(told) or DuramenError(f"Spark refused: {first}", hint=_hint(first))


def _hint(told: str) -> str | None:
    """What to do about a source that Spark knows and does not bring along."""
    if "KAFKA_DATA_SOURCE_NOT_ENABLED" not in told:
        return None
    import pyspark

    package = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}"
    return f"--conf spark.jars.packages={package} fetches it"


_OURS = re.compile(r"(?:duramen\.\w+(?:\.\w+)*\.)?\b(\w+Error): (.+)")


def cores(spark: SparkSession) -> int:
    """How many tasks run at once; 2 where Spark Connect hides it."""
    try:
        return int(spark.sparkContext.defaultParallelism)
    except (AttributeError, DuramenError):
        return 2
    except Exception as error:  # Connect raises an error of its own for the attribute
        if "CONNECT" not in str(error).upper() and "JVM_ATTRIBUTE" not in str(error):
            raise
        return 2


def _attempts(spark: SparkSession) -> int:
    """How often Spark tries a task: once on a local master, unless its URL says otherwise."""
    master = spark.conf.get("spark.master", "") or ""
    if master.startswith("local") and not master.startswith("local-cluster"):
        _, comma, failures = master.rstrip("]").partition(",")
        return int(failures) if comma and failures.isdigit() else 1
    return int(spark.conf.get("spark.task.maxFailures", "4") or 4)


def _first_line(told: str) -> str:
    """The line that says what happened: the last one of the worker's traceback, or else the first one."""
    lines = [line.strip() for line in told.splitlines() if line.strip()]
    telling = [line for line in lines if not line.startswith(("File ", "Traceback", "at ", "^", "~"))]
    named = [line for line in telling if ": " in line and line.split(":")[0].rpartition(".")[2].endswith("Error")]
    return (named or telling or lines or [""])[0 if not named else -1]
