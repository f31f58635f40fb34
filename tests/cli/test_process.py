"""What only a process shows: every verb on every format, pipes, signals, outputs that are closed or full."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from duramen.cli.demo.samples import DemoSample, orders, segment_paths
from duramen.formats import ScanPosition, make
from tests.cli.running import FORMATS, Logs, Run, segments

DURAMEN = [sys.executable, "-m", "duramen"]


@pytest.mark.parametrize("format", FORMATS)
def test_every_verb_on_every_format(cli: Run, logs: Logs, pristine: dict[str, DemoSample], format: str) -> None:
    sample, options = pristine[format], logs.options(format)
    info = cli("info", sample.path, *options)
    assert (info.code, info.err) == (0, "")
    assert "clean" in info.text
    cat = cli("cat", sample.path, "-o", "120", "-c", "3", "--output", "jsonl", *options)
    assert [record["offset"] for record in cat.json_lines] == [120, 121, 122]
    verify = cli("verify", sample.path, *options)
    assert (verify.code, verify.err) == (0, "")
    assert ": ok" in verify.text
    dump = cli("dump", segment_paths(sample)[0], "--to", "300", *options)
    assert (dump.code, dump.err) == (0, "")
    assert f"segment of {format}" in dump.text


def test_entry_points(cli: Run) -> None:
    version = cli("--version", module="duramen")
    assert version.code == 0
    assert version.text.startswith("duramen ")
    script = Path(sys.executable).with_name("duramen")
    if script.exists():
        assert subprocess.check_output([script, "--version"]) == version.out


def test_help_waits_for_nothing() -> None:
    """Neither Rich nor pandas is imported before a verb needs it."""
    code = "import sys; from duramen.cli.main import main; main(['--help']); print({'rich', 'pandas'} & {*sys.modules})"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).endswith("set()\n")


@pytest.fixture
def long_segment(tmp_path: Path) -> Path:
    """More than a pipe holds."""
    codec, path = make("durable-log"), tmp_path / "long.log"
    path.write_bytes(codec.encode(orders(codec, 0, 5000), ScanPosition(0, -1)).data)
    return path


@pytest.mark.parametrize("form", ["text", "jsonl", "raw", "arrow"])
def test_a_client_may_disconnect(long_segment: Path, form: str) -> None:
    command = [*DURAMEN, "cat", str(long_segment), "--output", form]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        assert (process.stderr.read(), process.wait(20)) == (b"", 0)


def test_output_that_cannot_be_written(long_segment: Path) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run([*DURAMEN, "cat", long_segment], stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 3
    assert done.stderr == b"duramen: standard output: No space left on device\n"
    closed = ["sh", "-c", '"$@" >&-', "sh", *DURAMEN, "info", str(long_segment)]
    assert subprocess.run(closed, capture_output=True, check=False).stderr == b""


def test_following_until_interrupted(logs: Logs) -> None:
    log = logs.copy("durable-log")
    codec, last = make("durable-log"), segments(log)[-1]
    command = [*DURAMEN, "cat", str(log), "-o", "end", "--follow"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        found = b""
        for offset in range(300, 400):
            batch = orders(codec, offset, 1)
            with last.open("ab") as file:
                file.write(codec.encode(batch, ScanPosition(last.stat().st_size, offset - 1)).data)
            if select.select([process.stdout], [], [], 0.25)[0]:
                found = os.read(process.stdout.fileno(), 1 << 16)
                break
        process.send_signal(signal.SIGINT)
        assert b'{"order":3' in found
        assert (process.stderr.read(), process.wait(20)) == (b"", 130)


@pytest.mark.parametrize("verb", ["info", "cat", "dump", "verify"])
def test_neither_file_nor_directory(cli: Run, tmp_path: Path, verb: str) -> None:
    fifo, listening = tmp_path / "fifo", tmp_path / "socket"
    if verb in ("info", "cat"):
        os.mkfifo(fifo)
        assert cli(verb, fifo).fails(3, str(fifo), "neither a directory nor a regular file")
        return
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(listening))
        assert cli(verb, listening).fails(3, str(listening), "neither a directory nor a regular file")
