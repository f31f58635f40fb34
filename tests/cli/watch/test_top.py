"""`duramen top` on a terminal: columns that do not fit are left out, and q ends it."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

import duramen


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_a_narrow_terminal_cuts_no_number_and_q_quits(tmp_path: Path, width: int) -> None:
    with duramen.open(tmp_path / "orders", "a", format="keratin") as log:
        log.append_batch([b"value"] * 12_345)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    command = [sys.executable, "-m", "duramen", "top", str(tmp_path / "orders"), "--every", "60"]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": str(width), "NO_COLOR": "1"}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, env=environment) as process:
        os.close(theirs)
        shown = b""
        while b"orders" not in shown:
            shown += os.read(ours, 4096)
        os.write(ours, b"q")
        while True:
            try:
                more = os.read(ours, 4096)
            except OSError:  # the other end is closed
                break
            if not more:
                break
            shown += more
        assert process.wait() == 0
    os.close(ours)
    text = shown.decode()
    assert "(q quits)" in text
    table = text[text.index("records/s") :]
    assert "…" not in table.replace("…", "", 1)  # the name alone may be shortened
    assert ("12,345" in table) == (width >= 120)
    assert "orders" in table
