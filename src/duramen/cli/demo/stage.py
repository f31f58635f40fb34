"""The stage of the demo: shows a command, runs it, and prints its output.

A command line goes through the parser and the verbs of the real program; Python runs line by line, as in an interactive
session. An act makes a claim with `show` and the condition that proves it; a false claim ends the act. `perform` plays
an act of ``tour.txt``, whose lines start with a mark:

=======  =============================================================
$        a command line; ``(exit code 1)`` at its end is the expected exit code
&        a Python program to start in the background
``>>>``  a line of Python, ``...`` its continuation
=        a program with this name follows, up to a line with ``=`` alone
!        a line of Python that is not shown
✔        a claim, and ``?`` on the next line the expression that proves it
=======  =============================================================

Any other line is a paragraph; in paragraphs and claims, ``{name}`` stands for a value of the act.
"""

from __future__ import annotations

import ast
import re
import shlex
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from duramen.cli.output import Cell, Output
from duramen.errors import DuramenError

TITLE_WIDTH = 80
WAIT_S = 60.0
"""Longest wait for a process of the demo to start, on a busy machine."""
_MEANING = {0: "success", 1: "damage found", 2: "refused", 3: "cannot read or write"}

Program = Callable[..., Any]
"""The program's parser: takes the words of a command line, returns a job."""


class FailedError(Exception):
    """A claim of an act is false."""


class SkippedError(Exception):
    """A requirement of the act is missing; the text says how to install it."""


class Stage:
    """The terminal, the program, and the namespace of an act's Python code."""

    def __init__(self, out: Output, program: Program) -> None:
        self.out = out
        self._program = program
        self.names: dict[str, Any] = {}
        self.shown: list[str] = []
        self.resources = ExitStack()
        """What is closed at the end of an act."""
        self._processes: list[subprocess.Popen[bytes]] = []

    def begin(self, number: int, count: int, title: str) -> None:
        text = f"━━ {number}/{count}  {title} "
        self.out.blank()
        self.out.blank()
        self.out.line(Cell(text.ljust(min(self.out.width, TITLE_WIDTH), "━"), "heading"))
        self.shown = []
        self.names = {"__name__": "demo"}

    def say(self, text: str) -> None:
        self.out.blank()
        self.out.paragraph(text)
        self.out.flush()

    def show(self, claim: str, holds: bool) -> None:
        """Print a claim, after checking that it holds."""
        if not holds:
            raise FailedError(f"the claim is false: {claim}")
        self.out.blank()
        self.out.paragraph(f"✔ {claim}", hanging="  ", style="good")
        self.out.flush()
        self.shown.append(claim)

    def prompt(self, *words: str) -> None:
        """Print a command line, with line continuations on a narrow terminal."""
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

    def command(self, line: str) -> None:
        """Run a command line of this program, or of another one."""
        if not line.startswith("duramen "):
            self.shell(line)
            return
        found = re.fullmatch(r"duramen (.*?)(?: \(exit code (\d)\))?", line)
        assert found is not None
        self.duramen(*shlex.split(found[1]), code=int(found[2] or 0))

    def duramen(self, *words: str, code: int = 0) -> None:
        """Run a verb of this program; ``code`` is the expected exit code."""
        self.prompt(*map(shlex.quote, ("duramen", *words)))
        returned = self._run(words)
        self.out.flush()
        if returned != code:
            raise FailedError(f"`{shlex.join(['duramen', *words])}` returned {returned} (expected {code})")
        if code:
            self.out.line(Cell(f"(exit code {code}: {_MEANING[code]})", "label"))

    def _run(self, words: Sequence[str]) -> int:
        try:
            job = self._program(list(words), prog_name="duramen", standalone_mode=False)
            return int(job() if callable(job) else job or 0)
        except DuramenError as error:
            self.out.paragraph(f"duramen: {error}", hanging="  ")
            return error.exit_code

    def shell(self, command_line: str) -> None:
        """Run a command of another program."""
        self.prompt(command_line)
        done = subprocess.run(command_line, shell=True, text=True, capture_output=True, check=False)
        self.out.write(done.stdout + done.stderr)
        if done.returncode:
            raise FailedError(f"`{command_line}` returned {done.returncode} (expected 0)")

    # --- Python

    def python(self, code: str) -> None:
        """Run statements one by one and print them as the interactive interpreter does."""
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
        """Write a small program and print it."""
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        self.prompt(f"cat {path}")
        for line in text.splitlines():
            self.out.line(line)

    def start(self, line: str) -> subprocess.Popen[bytes]:
        """Start ``python SCRIPT …`` in the background."""
        if not self._processes:
            self.out.blank()
        self.out.line(Cell(f"$ {line} &", "prompt"))
        self.out.flush()
        process = subprocess.Popen(f"exec {shlex.quote(sys.executable)} {line.removeprefix('python ')}", shell=True)
        self._processes.append(process)
        return process

    def kill(self, when: Callable[[], bool]) -> None:
        """Kill the processes with SIGKILL as soon as ``when`` returns true."""
        processes, self._processes = self._processes, []
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
                    raise FailedError(f"{process.args!r} ended early with exit code {process.returncode}")
            if time.monotonic() > end:
                raise FailedError(f"{processes[0].args!r} did nothing for {WAIT_S:.0f} s")
            time.sleep(0.01)


def perform(script: str, stage: Stage) -> None:
    """Play the lines of an act; the module says what they mean."""
    rest = deque(script.splitlines())
    while rest:
        line = rest.popleft()
        mark, _, text = line.partition(" ")
        if mark == "$":
            stage.command(text)
        elif mark == "&":
            stage.start(text)
        elif mark == "!":
            exec(text, stage.names)
        elif mark == "=":
            end = rest.index("=")
            stage.script(text, "".join(rest.popleft() + "\n" for _ in range(end)))
            rest.popleft()
        elif mark == ">>>":
            code = [text]
            while rest and rest[0].startswith((">>> ", "... ")):
                code.append(rest.popleft()[4:])
            stage.python("\n".join(code))
        elif mark == "✔":
            stage.show(text.format_map(stage.names), eval(rest.popleft().removeprefix("? "), stage.names))
        elif line:
            stage.say(line.format_map(stage.names))


def _with_values(words: Sequence[str]) -> list[str]:
    """Join each option with its value.

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
