"""`duramen pipeline` on a terminal: 80 columns, on which a stream is followed and stopped with ctrl-C."""

from __future__ import annotations

import errno
import fcntl
import os
import pty
import re
import signal
import struct
import sys
import termios
import time
from pathlib import Path

import pytest

import duramen
from tests.warm import spark_python

COLUMNS = 80
_STEERING = re.compile(r"\x1b\[(\??[\d;]*)([A-Za-z])|\r|\n|[^\x1b\r\n]+")


class Screen:
    """As much of a terminal as a bar needs: carriage returns, line feeds, lines that are removed, the cursor going up.
    ``broken`` has what was too wide, which a real one would have broken in two."""

    def __init__(self) -> None:
        self.lines, self.broken = [""], list[str]()
        self._row = self._column = 0

    def feed(self, text: str) -> None:
        for found in _STEERING.finditer(text):
            if found[0] == "\r":
                self._column = 0
            elif found[0] == "\n":
                self._row += 1
                self.lines += [""] * (self._row + 1 - len(self.lines))
            elif found[2] == "A":
                self._row -= int(found[1] or 1)
            elif found[2] == "K":
                self.lines[self._row] = ""
            elif found[2] is None:
                line = self.lines[self._row].ljust(self._column)
                self._column += len(found[0])
                self.lines[self._row] = line[: self._column - len(found[0])] + found[0] + line[self._column :]
                if len(self.lines[self._row]) > COLUMNS:
                    self.broken.append(self.lines[self._row])

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.lines).strip()


def start(*arguments: str, **environment: str) -> tuple[int, int]:
    """The command on a terminal of its own: its process, and the terminal's other end."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update({"TERM": "xterm-256color", "PYTHONWARNINGS": "error", **environment})
        for name in ("COLUMNS", "NO_COLOR"):
            os.environ.pop(name, None)
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
        os.execv(sys.executable, [sys.executable, "-m", "duramen.cli.main", *arguments])
    return pid, terminal


def read(terminal: int) -> str:
    try:
        return os.read(terminal, 1 << 16).decode()
    except OSError as error:
        if error.errno != errno.EIO:  # which says that the other side is closed
            raise
        return ""


@pytest.mark.spark
def test_a_stream_is_followed_and_stopped(tmp_path: Path) -> None:
    source = tmp_path / "a directory whose name is longer than what a line of the terminal has room for" / "in"
    source.mkdir(parents=True)
    (source / "one").write_text("a\nb\nc\n")
    log = source.parent / "log"
    pid, terminal = start(
        "pipeline", "ingest", str(log), str(source), "--from", "text", "--checkpoint", str(tmp_path / "checkpoint"),
        "--every", "200 milliseconds", "--master", "local[1]", PYSPARK_PYTHON=spark_python(tmp_path),
    )  # fmt: skip
    screen, said, is_stopped = Screen(), "", False
    try:
        until = time.monotonic() + 120
        while piece := read(terminal):
            assert time.monotonic() < until, screen.text
            said += piece
            screen.feed(piece)
            if not is_stopped and "3 rows in 1 batch" in screen.text:
                os.write(terminal, b"\x03")
                is_stopped = True
    finally:
        if not is_stopped:
            os.kill(pid, signal.SIGKILL)
        os.close(terminal)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert (is_stopped, code) == (True, 0), said
    assert ": starting Spark (local[1]) …" in said
    assert "WARN" not in said
    assert not screen.broken[:-1], "one line is: the answer, which names the whole path"
    assert screen.text == f"{log}: 3 rows written\n  batches  1"
    with duramen.open(log) as stored:
        assert [record.value for record in stored] == [b"a", b"b", b"c"]
