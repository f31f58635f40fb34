"""How things are printed: terminals, pipes, colours, units."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from pathlib import Path

import pyarrow as pa
import pytest

from duramen.cli.demo.samples import DemoSample
from duramen.formats import make
from tests import warm

_STYLE = re.compile(r"\x1b\[[0-9;]*m")


def on_terminal(columns: int, *arguments: str, **environment: str) -> str:
    """What a person sees on a terminal of that width."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    clean = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "FORCE_COLOR")}
    with subprocess.Popen(
        [*warm.duramen(), *arguments],
        stdin=follower, stdout=follower, stderr=follower, env=clean | {"TERM": "xterm-256color"} | environment,
    ) as process:  # fmt: skip
        os.close(follower)
        seen = b""
        try:
            while part := os.read(leader, 1 << 16):
                seen += part
        except OSError:  # Linux ends a terminal that nobody holds any more like this
            pass
        process.wait(20)
    os.close(leader)
    return seen.decode().replace("\r\n", "\n")


def widest(text: str) -> int:
    return max(len(line) for line in _STYLE.sub("", text).splitlines())


@pytest.mark.parametrize("columns", [80, 120])
def test_nothing_is_wider_than_the_terminal(
    pristine: dict[str, DemoSample], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.chdir(Path(pristine["keratin"].path).parent)
    info = on_terminal(columns, "info", "keratin")
    assert "\x1b[" in info
    assert widest(info) <= columns
    dump = on_terminal(columns, "dump", "keratin/segments/00000000000000000000.log", "--to", "500")
    assert widest(dump) <= columns
    verify = on_terminal(columns, "verify", "keratin", "rustlog", NO_COLOR="1")
    assert "\x1b[" not in verify
    assert widest(verify) <= columns


def test_a_terminal_is_not_steered_by_a_payload(tmp_path: Path) -> None:
    batch = pa.record_batch({"offset": pa.array([0]), "value": pa.array([b"\x1b[2Jgone\x07\tx"], pa.binary())})
    for path, data in make("durable-log").build([batch]):
        (tmp_path / path).write_bytes(data)
    assert on_terminal(80, "cat", str(tmp_path)) == "\\x1b[2Jgone\\x07\tx\n"
