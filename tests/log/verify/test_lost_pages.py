"""Files that are shortened, or cannot be read, while `verify` reads their mapping. Each check runs in a process of its
own: what fails here ends the process."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import duramen
from duramen.formats import FORMATS

TAIL_BYTES = 1 << 20

CUT_WHILE_MAPPED = """
import os, sys
import duramen
from duramen.disk import PosixDisk
from duramen.log import verify_log

root, path, *numbers = sys.argv[1:]
size_bytes, times, tail_bytes = map(int, numbers)

class Cutting(PosixDisk):
    '''The file gets a tail that is cut as soon as it is mapped, the first times.'''
    times_left = times
    def list(self, *names):
        if Cutting.times_left:
            with open(path, "ab") as file:
                file.write(b"x" * tail_bytes)
        return super().list(*names)
    def map(self, name):
        mapped = super().map(name)
        if name == path and Cutting.times_left and len(mapped.data) > size_bytes:
            Cutting.times_left -= 1
            os.truncate(path, size_bytes)
        return mapped

try:
    report = verify_log(root, disk=Cutting())
except duramen.StorageError as error:
    print("error", error)
else:
    print(Cutting.times_left, report.records, *[finding.kind for finding in report.findings])
"""


def python(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False
    )


def active_file(root: Path, name: str) -> tuple[Path, int]:
    """A log of three records, whose active segment has a torn tail; its path, and its size without the tail."""
    with duramen.open(root, "a", format=name, **({"record_size": 64} if name == "fixed-slot" else {})) as log:
        log.append_batch([b"a" * 64, b"b" * 64, b"c" * 64])
    path = max(root.rglob(f"*{Path(log.segments[-1].path).name}"))
    return path, path.stat().st_size


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_a_tail_that_another_process_cuts(tmp_path: Path, name: str) -> None:
    path, size_bytes = active_file(tmp_path / "log", name)
    ran = python(CUT_WHILE_MAPPED, tmp_path / "log", path, size_bytes, 3, TAIL_BYTES)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split()[:2] == ["0", "3"]
    assert "torn" not in ran.stdout, "the tail was cut: what the first pass saw of it does not count"


def test_a_file_that_is_cut_again_and_again(tmp_path: Path) -> None:
    path, size_bytes = active_file(tmp_path / "log", "durable-log")
    ran = python(CUT_WHILE_MAPPED, tmp_path / "log", path, size_bytes, 1 << 30, TAIL_BYTES)
    assert ran.returncode == 0, ran.stderr
    assert "was shortened during each of 10 checks" in ran.stdout
    assert str(path) in ran.stdout


UNREADABLE = """
import errno, os, sys
import duramen
from duramen.disk import PosixDisk, refusal
from duramen.log import verify_log

path, size_bytes = sys.argv[1], int(sys.argv[2])

class Failing(PosixDisk):
    def map(self, name):
        mapped = super().map(name)
        if name == path:
            os.truncate(path, 0)  # the page cannot be read ...
        return mapped
    def read(self, name, size_bytes=2**63 - 1, position=0):
        if name == path:
            raise refusal(errno.EIO, name)  # ... and this is why
        return super().read(name, size_bytes, position)

try:
    verify_log(os.path.dirname(path), disk=Failing())
except duramen.StorageError as error:
    print(error.errno == errno.EIO, error)
"""


def test_a_page_that_the_device_cannot_read(tmp_path: Path) -> None:
    path, size_bytes = active_file(tmp_path / "log", "durable-log")
    ran = python(UNREADABLE, path, size_bytes)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("True")
    assert str(path) in ran.stdout


HANDLER_OF_OTHERS = """
import mmap, os, signal, sys
import duramen
if "faulthandler" in sys.argv:
    import faulthandler
    faulthandler.enable()
duramen.verify(sys.argv[1])  # installs the handler
if "kill" in sys.argv:
    os.kill(os.getpid(), signal.SIGBUS)
with open(sys.argv[1] + "/own", "wb+") as file:
    file.write(bytes(1 << 16))
    file.flush()
    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    os.truncate(file.name, 0)
    print(mapped[1 << 15])
"""


@pytest.mark.parametrize("how", ["plain", "faulthandler", "kill"])
def test_what_is_not_ours_ends_the_process_as_before(tmp_path: Path, how: str) -> None:
    active_file(tmp_path / "log", "durable-log")
    ran = python(HANDLER_OF_OTHERS, tmp_path / "log", how)
    assert ran.returncode == -signal.SIGBUS
    assert ("Fatal Python error" in ran.stderr) == (how == "faulthandler")
