"""Where an act of the demo plays: it shows a command, runs it, shows what it printed, and says what that means.

A command line goes through the parser and the verbs of the real program; Python is executed line by line, as an
interactive session would. Nothing is printed that did not come out of a run. What an act claims it has to `show`, with
the condition that makes it true: a claim that does not hold ends the act.
"""

from __future__ import annotations

import ast
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from duramen.cli.output import Cell, Output
from duramen.errors import DuramenError

TITLE_WIDTH = 80
WAIT_S = 60.0
"""How long a process of the demo may take to get going, on a machine that has other things to do."""
_MEANING = {0: "fine", 1: "damage found", 2: "refused", 3: "cannot read or write"}


class FailedError(Exception):
    """Something did not go as the act says."""


class SkippedError(Exception):
    """What the act needs is not there; the text says how to get it."""


class Stage:
    """The terminal, and the names that the Python of an act knows."""

    def __init__(self, out: Output) -> None:
        self.out = out
        self.names: dict[str, Any] = {}
        self.shown: list[str] = []

    def begin(self, number: int, count: int, title: str) -> None:
        text = f"━━ {number}/{count}  {title} "
        self.out.blank()
        self.out.blank()
        self.out.line(Cell(text.ljust(min(self.out.width, TITLE_WIDTH), "━"), "heading"))
        self.shown = []
        self.names = {"__name__": "demo"}

    def say(self, text: str) -> None:
        """A sentence before what comes next."""
        self.out.blank()
        self.out.paragraph(text)
        self.out.flush()

    def show(self, claim: str, holds: bool) -> None:
        """What the act has shown, if it has."""
        if not holds:
            raise FailedError(f"this should hold and does not: {claim}")
        self.out.blank()
        self.out.paragraph(f"✔ {claim}", hanging="  ", style="good")
        self.out.flush()
        self.shown.append(claim)

    def prompt(self, *words: str) -> None:
        """A command line, with line ends that a shell passes over where the terminal is narrow."""
        lines = [f"$ {words[0]}"]
        for part in _with_values(words[1:]):
            if len(lines[-1]) + len(part) + 3 > self.out.width:
                lines[-1] += " \\"
                lines.append(f"    {part}")
            else:
                lines[-1] += f" {part}"
        self.out.blank()
        for line in lines:
            self.out.line(Cell(line, "prompt"))
        self.out.flush()

    # --- the command line

    def duramen(self, *words: str, code: int = 0) -> None:
        """Run a verb of this program; ``code`` is the exit code that it has to answer."""
        self.prompt(*map(shlex.quote, ("duramen", *words)))
        answered = self._run(words)
        self.out.flush()
        if answered != code:
            raise FailedError(f"`{shlex.join(['duramen', *words])}` answered {answered}, not {code}")
        if code:
            self.out.line(Cell(f"(exit code {code}: {_MEANING[code]})", "label"))

    def _run(self, words: Sequence[str]) -> int:
        from duramen.cli.main import app  # which imports this

        try:
            job = app(list(words), prog_name="duramen", standalone_mode=False)
            return int(job() if callable(job) else job or 0)
        except DuramenError as error:
            self.out.paragraph(f"duramen: {error}", hanging="  ")
            return error.exit_code

    def shell(self, command_line: str) -> None:
        """Run something that is not ours."""
        self.prompt(command_line)
        done = subprocess.run(command_line, shell=True, text=True, capture_output=True, check=False)
        self.out.write(done.stdout + done.stderr)
        if done.returncode:
            raise FailedError(f"`{command_line}` answered {done.returncode}, not 0")

    # --- Python

    def python(self, code: str) -> None:
        """Run statements one by one, as the interactive interpreter shows them."""
        lines = code.strip().splitlines()
        self.out.blank()
        for statement in ast.parse(code.strip()).body:
            for number in range(statement.lineno, (statement.end_lineno or statement.lineno) + 1):
                mark = ">>> " if number == statement.lineno else "... "
                self.out.line(Cell(mark, "prompt"), lines[number - 1])
            self.out.flush()
            self._execute(statement)
        self.out.flush()

    def _execute(self, statement: ast.stmt) -> None:
        if not isinstance(statement, ast.Expr):
            exec(compile(ast.Module([statement], []), "<demo>", "exec"), self.names)
            return
        value = eval(compile(ast.Expression(statement.value), "<demo>", "eval"), self.names)
        if value is not None:
            self.out.line(repr(value))

    # --- processes

    def script(self, path: str, text: str) -> None:
        """Write a small program, and show it."""
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        self.prompt(f"cat {path}")
        for line in text.splitlines():
            self.out.line(line)

    def start(self, script: str, *words: str, into: str) -> subprocess.Popen[bytes]:
        """Start a script in the background, its output in a file."""
        self.out.line(Cell(f"$ python {shlex.join([script, *words])} > {into} &", "prompt"))
        self.out.flush()
        with open(into, "wb") as file:
            return subprocess.Popen([sys.executable, script, *words], stdout=file)

    def kill(self, processes: Sequence[subprocess.Popen[bytes]], when: Callable[[], bool]) -> None:
        """SIGKILL, as soon as ``when`` says so."""
        try:
            self._wait(processes, when)
            self.out.line(Cell(f"$ kill -9 {' '.join(str(process.pid) for process in processes)}", "prompt"))
            self.out.flush()
        finally:
            for process in processes:
                process.send_signal(signal.SIGKILL)
                process.wait()

    def _wait(self, processes: Sequence[subprocess.Popen[bytes]], when: Callable[[], bool]) -> None:
        end = time.monotonic() + WAIT_S
        while not when():
            for process in processes:
                if process.poll() is not None:
                    raise FailedError(f"{process.args!r} ended by itself, with {process.returncode}")
            if time.monotonic() > end:
                raise FailedError(f"nothing to be seen of {processes[0].args!r} after {WAIT_S:.0f} s")
            time.sleep(0.01)


def _with_values(words: Sequence[str]) -> list[str]:
    """Words, with the value of an option beside it.

    >>> _with_values(["log", "--format", "keratin", "--json", "--dry-run"])
    ['log', '--format keratin', '--json', '--dry-run']
    """
    parts: list[str] = []
    for word in words:
        if parts and parts[-1].startswith("--") and " " not in parts[-1] and not word.startswith("-"):
            parts[-1] += f" {word}"
        else:
            parts.append(word)
    return parts


def files(directory: str) -> dict[str, bytes]:
    """Every file below a directory but the sidecar's, with its bytes."""
    found = {}
    for folder, folders, names in os.walk(directory):
        folders[:] = [name for name in folders if name != ".duramen"]
        for name in names:
            path = os.path.join(folder, name)
            with open(path, "rb") as file:
                found[os.path.relpath(path, directory)] = file.read()
    return found
