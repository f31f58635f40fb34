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


HANDLER_REPLACED = """
import faulthandler, os, sys
from duramen.disk import LostPages, PosixDisk

path = sys.argv[1]

def survive():
    with open(path, "wb") as file:
        file.write(b"x" * (1 << 16))
    lost = LostPages()
    mapped = PosixDisk().surviving(lost).map(path)
    os.truncate(path, 0)
    assert not any(bytes(mapped.data)) and lost.found() == [(path, 0)]

for step in sys.argv[2:]:
    {"survive": survive, "enable": faulthandler.enable, "disable": faulthandler.disable}[step]()
sys.stderr.write("survived")
sys.stderr.flush()
with open(path, "wb+") as file:
    file.write(bytes(1 << 16))
    file.flush()
    import mmap
    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    os.truncate(path, 0)
    mapped[1 << 15]
"""


@pytest.mark.parametrize(
    "steps",
    [
        "survive enable survive",
        "enable survive disable survive",
        "enable survive disable enable survive",  # the second task of a worker of Spark
        "enable survive disable survive enable survive disable survive",
    ],
)
def test_a_handler_that_was_replaced_or_removed(tmp_path: Path, steps: str) -> None:
    """And what is not ours ends the process, after faulthandler has reported it once, where it is enabled."""
    is_reported = steps.split()[-2] == "enable"
    ran = python(HANDLER_REPLACED, tmp_path / "file", *steps.split())
    assert ran.returncode == -signal.SIGBUS
    assert ran.stderr.startswith("survived")
    assert ran.stderr.count("Fatal Python error") == is_reported


BESIDE_OTHERS = """
import os, sys, threading, time
from duramen import kernel
from duramen.disk import LostPages, PosixDisk

root, end = sys.argv[1], time.monotonic() + 1

def loses_pages(number):
    path = f"{root}/{number}"
    while time.monotonic() < end:
        with open(path, "wb") as file:
            file.truncate(1 << 20)
        lost = LostPages()
        mapped = PosixDisk().surviving(lost).map(path)
        os.truncate(path, 1 << 16)
        kernel.crc32c(mapped.data)
        assert lost.found() == [(path, 1 << 16)], lost.found()

def maps_and_drops(number):
    path = f"{root}/other {number}"
    with open(path, "wb") as file:
        file.write(b"x" * 8000)
    while time.monotonic() < end:
        lost = LostPages()
        mapped = [PosixDisk().surviving(lost).map(path) for _ in range(50)]
        assert all(bytes(one.data) == b"x" * 8000 for one in mapped)
        del mapped
        assert not lost.found()

threads = [threading.Thread(target=target, args=(n,)) for n in range(2) for target in (loses_pages, maps_and_drops)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_threads_that_map_and_drop_files_beside_lost_pages(tmp_path: Path) -> None:
    ran = python(BESIDE_OTHERS, tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert not ran.stderr
