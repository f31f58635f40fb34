"""Commands in processes that start in milliseconds instead of seconds.

`duramen()` returns a command that runs ``duramen`` with the arguments that follow it, `spark_worker()` one that runs
``python -m`` for Spark. The work is done by a child of a *warm* process, which has imported the program once and forks
for every command. The child runs the real program with the caller's arguments, directory, environment and standard
streams, and the command ends with the child's exit status.

Tests of how a process starts and of how it ends on a signal use ``python -m`` instead.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import io
import json
import os
import runpy
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
CLIENT = Path(__file__).with_name("warm_client.py")
STREAMS = 3


PROGRAMS = {
    "duramen": ["duramen.cli.main", "pyarrow.compute"],
    "spark_worker": [
        "pandas",
        "pyspark.sql.worker.create_data_source",
        "pyspark.worker",
        "duramen.spark.sink",
        "duramen.spark.source.stream",
    ],
}
"""What a warm process imports for each of its programs."""


def duramen() -> tuple[str, ...]:
    """The words of a command line before the arguments of ``duramen``."""
    return _command("duramen")


def spark_worker() -> tuple[str, ...]:
    """The words of a command line before ``-m``, a module of pyspark and its arguments."""
    return _command("spark_worker")


def spark_python(directory: Path) -> str:
    """A Python whose ``-m pyspark…`` starts in milliseconds, for a JVM alone: everything else starts the ordinary one.

    Spark starts a process for each kind of worker, for each streaming query and after each error, and each imports
    pyspark, pyarrow and duramen: 2 s, where most tests take 0.3 s."""
    python = directory / "python"
    plain, warm = shlex.quote(sys.executable), shlex.join(spark_worker())
    python.write_text(f'#!/bin/sh\n[ "$1" = -m ] && exec {warm} "$@"\nexec {plain} "$@"\n')
    python.chmod(0o755)
    return str(python)


@functools.cache
def _command(program: str) -> tuple[str, ...]:
    """The words of a command line before its arguments. The warm process lives as long as this one."""
    directory = tempfile.TemporaryDirectory(prefix="warm-")
    address = os.path.join(directory.name, "socket")
    command = [sys.executable, "-m", "tests.warm", program, address]
    server = subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, close_fds=True
    )
    assert server.stdin is not None
    assert server.stdout is not None
    if server.stdout.readline() != b"ready\n":
        raise RuntimeError(f"{command} did not start")
    atexit.register(directory.cleanup)
    atexit.register(server.wait)
    atexit.register(server.stdout.close)
    atexit.register(server.stdin.close)
    return (sys.executable, "-IS", str(CLIENT), address)


def serve(program: str, address: str) -> None:
    """Fork for every connection until standard input ends."""
    for name in PROGRAMS[program]:
        importlib.import_module(name)
    if program == "duramen":
        verbs = importlib.import_module("duramen.cli.verbs")
        for name in verbs.VERBS:
            verbs.load(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.freeze()
    with socket.socket(socket.AF_UNIX) as listening, selectors.DefaultSelector() as selector:
        listening.bind(address)
        listening.listen(16)
        os.write(1, b"ready\n")
        selector.register(listening, selectors.EVENT_READ)
        selector.register(0, selectors.EVENT_READ)
        while True:
            ready = {key.fd for key, _ in selector.select()}
            if 0 in ready:
                return
            connection, _ = listening.accept()
            with connection:
                if os.fork() == 0:
                    listening.close()
                    _keep(connection, _run_duramen if program == "duramen" else _run_module)


def _keep(connection: socket.socket, run: Callable[[list[str]], int]) -> None:
    """Run one command in a child, and send its wait status. A client that goes away takes the child with it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with contextlib.suppress(OSError):
        head, streams, _, _ = socket.recv_fds(connection, 8, STREAMS)
        given = json.loads(_receive(connection, int.from_bytes(head, "big")))
        child = os.fork()
        if child == 0:
            connection.close()
            _work(run, given, streams)
        for stream in streams:
            os.close(stream)
        watched = os.pidfd_open(child)
        with selectors.DefaultSelector() as selector:
            selector.register(watched, selectors.EVENT_READ)
            selector.register(connection, selectors.EVENT_READ)
            if watched not in {key.fd for key, _ in selector.select()}:
                os.kill(child, signal.SIGKILL)
        connection.sendall(os.waitpid(child, 0)[1].to_bytes(4, "big"))
    os._exit(0)


def _receive(connection: socket.socket, count: int) -> bytes:
    with connection.makefile("rb") as stream:
        return stream.read(count)


def _run_duramen(arguments: list[str]) -> int:
    from duramen.cli.main import main

    sys.argv = ["duramen", *arguments]
    return main()


def _run_module(arguments: list[str]) -> int:
    _, module, *sys.argv[1:] = arguments
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    return 0


def _work(run: Callable[[list[str]], int], given: dict[str, Any], streams: list[int]) -> None:
    """Become the command: its streams, its directory, its environment; then the program."""
    status = 1
    try:
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        os.chdir(str(given["directory"]))
        os.environ.clear()
        os.environ.update(given["environment"])
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.stdin = io.TextIOWrapper(open(0, "rb", closefd=False), encoding="utf-8")  # noqa: SIM115
        sys.stdout = sys.__stdout__ = _writer(1, "strict")  # type: ignore[misc]
        sys.stderr = sys.__stderr__ = _writer(2, "backslashreplace")  # type: ignore[misc]
        try:
            status = run(given["arguments"])
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else 0
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


def _writer(number: int, errors: str) -> io.TextIOWrapper:
    is_terminal = os.isatty(number)
    return io.TextIOWrapper(
        open(number, "wb", closefd=False), encoding="utf-8", errors=errors, line_buffering=is_terminal or number == 2
    )


if __name__ == "__main__":
    serve(*sys.argv[1:])
