"""The real disk: what only real processes, descriptors and files can show. What it shares is in `test_contract`."""

from __future__ import annotations

import errno
import fcntl
import gc
import mmap
import os
import platform
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from duramen.disk import Lock, PosixDisk, futex, posix, posix_locks
from duramen.disk.paths import Descriptor, Paths
from duramen.disk.vfs import Kind, write_all
from duramen.errors import LockedError, StorageError

needs_futex = pytest.mark.skipif(futex._futex() is None, reason="no futex here")


class Child:
    """Another Python process that runs ``script`` with ``path``, line by line on its standard output."""

    def __init__(self, script: str, path: Path) -> None:
        prelude = "import os, sys, time\nfrom duramen.disk import PosixDisk\npath = sys.argv[1]\ndisk = PosixDisk()\n"
        command = [sys.executable, "-u", "-c", prelude + script, str(path)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()


@pytest.fixture
def children() -> Iterator[list[Child]]:
    started: list[Child] = []
    yield started
    for child in started:
        child.kill()


# --- files


def test_a_new_file_has_mode_644_and_is_not_inherited(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        file = PosixDisk().create(str(tmp_path / "a"))
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o644
    assert isinstance(file, posix.PosixFile)
    with file._descriptor as descriptor:
        assert fcntl.fcntl(descriptor, fcntl.F_GETFD) & fcntl.FD_CLOEXEC


def test_a_descriptor_in_use_is_not_closed(tmp_path: Path) -> None:
    """Its number would go to the next file that is opened, and the bytes of the first one there."""
    file = posix.PosixFile("a", lambda: Paths().reach(str(tmp_path / "a")), os.O_CREAT)
    with file._descriptor as descriptor:
        file.close()
        other = os.open(tmp_path / "b", os.O_CREAT | os.O_WRONLY)
        assert other != descriptor
        os.pwrite(descriptor, b"mine", 0)
        os.close(other)
    assert (tmp_path / "a").read_bytes() == b"mine"
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_dropped_files_leave_no_descriptors(tmp_path: Path) -> None:
    disk = PosixDisk()
    gc.collect()  # what other tests left
    before = len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0
    for index in range(20):
        disk.create(str(tmp_path / f"a{index}"))
        with pytest.warns(ResourceWarning):
            disk.lock(str(tmp_path / f"l{index}"), b"")
        disk.page(str(tmp_path / f"p{index}"), 4, writable=True)
        with pytest.raises(StorageError):
            disk.open(str(tmp_path))
        with pytest.raises(StorageError):
            disk.page(str(tmp_path / f"a{index}"), 4, writable=False)
    if sys.platform == "linux":
        assert len(os.listdir("/proc/self/fd")) == before


def test_a_file_that_is_emptied_before_it_is_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its size was taken before."""
    path = tmp_path / "file"
    path.write_bytes(b"a note")
    map_descriptor = mmap.mmap

    def map_emptied(descriptor: int, size: int, access: int) -> mmap.mmap:
        path.write_bytes(b"")
        return map_descriptor(descriptor, size, access=access)

    monkeypatch.setattr(posix.mmap, "mmap", map_emptied)
    assert PosixDisk().map(str(path)).data == b""


def test_a_pipe_is_refused_and_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    disk, path = PosixDisk(), str(tmp_path / "pipe")
    assert disk.kind(path) == Kind.OTHER
    for act in (disk.map, disk.open, lambda path: disk.lock(path, b""), lambda path: disk.page(path, 4, writable=True)):
        with pytest.raises(StorageError) as caught:
            act(path)
        assert caught.value.path == path


def test_a_full_disk_is_reported() -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full")
    file = posix.PosixFile.__new__(posix.PosixFile)
    file.path = "/dev/full"
    file._descriptor = Descriptor(os.open("/dev/full", os.O_WRONLY))
    with pytest.raises(StorageError, match="free some space") as caught:
        write_all(file, 0, b"x")
    assert (caught.value.errno, caught.value.path) == (errno.ENOSPC, "/dev/full")


@pytest.mark.unprivileged
def test_a_read_only_directory_is_reported(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StorageError, match="permissions") as caught:
        PosixDisk().create(str(tmp_path / "a"))
    assert caught.value.errno == errno.EACCES


@pytest.mark.parametrize("number", [errno.EROFS, errno.EDQUOT, errno.ENOSPC, errno.EACCES, errno.EIO])
def test_refusals_keep_their_number_and_say_what_to_do(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    path = str(tmp_path / "a")
    file = PosixDisk().create(path)
    monkeypatch.setattr(posix, "_sync_data", refuse)
    monkeypatch.setattr(os, "pwrite", refuse)
    for act in (file.sync, lambda: file.write(0, b"x")):
        with pytest.raises(StorageError) as caught:
            act()
        assert (caught.value.errno, caught.value.path) == (number, path)
        assert caught.value.hint


def test_sync_on_macos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """F_FULLFSYNC where the system has it; fsync on a file system that does not know it; its errors are errors."""
    answers: list[int] = []
    calls: list[str] = []

    def full_sync(descriptor: int, command: int) -> int:
        calls.append("full")
        if answers[0]:
            raise OSError(answers[0], "refused")
        return 0

    monkeypatch.setattr(posix, "_FULL_SYNC", 51)
    monkeypatch.setattr(fcntl, "fcntl", full_sync)
    monkeypatch.setattr(posix, "_sync_data", lambda descriptor: calls.append("plain"))
    file = PosixDisk().create(str(tmp_path / "a"))
    answers[:] = [0]
    file.sync()
    answers[:] = [errno.ENOTSUP]
    file.sync()
    assert calls == ["full", "full", "plain"]
    answers[:] = [errno.EIO]
    with pytest.raises(StorageError):
        file.sync()
    assert calls == ["full", "full", "plain", "full"]


def test_a_write_that_takes_nothing_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = PosixDisk().create(str(tmp_path / "a"))
    monkeypatch.setattr(os, "pwrite", lambda *_: 0)
    with pytest.raises(StorageError) as caught:
        write_all(file, 0, b"x")
    assert caught.value.errno == errno.ENOSPC


# --- locks

HOLD = """
lock = disk.lock(path, b"pid %d" % os.getpid())
print(os.getpid())
time.sleep(60)
"""


@pytest.mark.parametrize("call", ["path.samestat", "ftruncate"])
def test_an_interrupt_leaves_no_lock(tmp_path: Path, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "lock")

    def interrupt(*_arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(f"os.{call}", interrupt)
        with pytest.raises(KeyboardInterrupt):
            PosixDisk().lock(path, b"first")
    PosixDisk().lock(path, b"second").release()


def test_a_lock_names_its_holder_and_ends_with_it(tmp_path: Path, children: list[Child]) -> None:
    path = tmp_path / "lock"
    children.append(child := Child(HOLD, path))
    pid = child.line()
    inode = path.stat().st_ino
    with pytest.raises(LockedError, match=f"pid {pid}") as caught:
        PosixDisk().lock(str(path), b"me")
    assert caught.value.note == f"pid {pid}".encode()
    child.process.send_signal(signal.SIGKILL)
    child.process.wait()
    lock = PosixDisk().lock(str(path), b"me")
    assert path.read_bytes() == b"me"
    lock.release()
    assert path.stat().st_ino == inode


def test_a_forked_child_has_a_gate_of_its_own(tmp_path: Path, children: list[Child]) -> None:
    script = """
gate = disk.gate(path)
gate.take(b"parent")
child = os.fork()
if not child:
    gate.release()      # not its lock: nothing happens
    try:
        gate.take(b"child")
    except Exception as error:
        os.write(1, type(error).__name__.encode() + b"\\n")
    os._exit(0)
os.waitpid(child, 0)
os.write(1, b"alone\\n")
time.sleep(60)
"""
    path = tmp_path / "gate"
    children.append(child := Child(script, path))
    assert [child.line(), child.line()] == ["LockedError", "alone"]
    with pytest.raises(LockedError, match="parent"):
        PosixDisk().gate(str(path)).take(b"me")
    child.process.send_signal(signal.SIGKILL)
    child.process.wait()
    gate = PosixDisk().gate(str(path))
    assert not gate.take(b"me")
    gate.close()


def test_a_forked_child_does_not_keep_the_lock(tmp_path: Path, children: list[Child]) -> None:
    script = """
lock = disk.lock(path, b"parent")
child = os.fork()
if not child:
    lock.release()      # not its lock: nothing happens
    os.write(1, b"forked\\n")
    time.sleep(60)
os.write(1, b"%d\\n" % child)
time.sleep(60)
"""
    path = tmp_path / "lock"
    children.append(child := Child(script, path))
    lines = {child.line(), child.line()}
    orphan = int((lines - {"forked"}).pop())
    try:
        with pytest.raises(LockedError, match="parent"):
            PosixDisk().lock(str(path), b"me")
        child.process.send_signal(signal.SIGKILL)
        child.process.wait()
        os.kill(orphan, 0)
        PosixDisk().lock(str(path), b"me").release()
    finally:
        os.kill(orphan, signal.SIGKILL)


def test_a_lock_file_that_was_removed_holds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody removes the file between opening and locking it: the lock is taken on the file that is there then."""
    path = tmp_path / "lock"
    flock = fcntl.flock
    removed: list[Path] = []

    def remove_first(descriptor: int, operation: int) -> None:
        if not removed:
            path.unlink()
            removed.append(path)
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", remove_first)
    lock = PosixDisk().lock(str(path), b"me")
    assert path.read_bytes() == b"me"
    with pytest.raises(LockedError, match="me"):
        PosixDisk().lock(str(path), b"")
    lock.release()


def test_one_of_many_threads_gets_the_lock(tmp_path: Path) -> None:
    taken: list[Lock] = []
    refused: list[LockedError] = []

    def take(index: int) -> None:
        try:
            taken.append(PosixDisk().lock(str(tmp_path / "lock"), b"thread %d" % index))
        except LockedError as error:
            refused.append(error)

    threads = [threading.Thread(target=take, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(taken), len(refused)) == (1, 7)
    assert all(error.note.startswith(b"thread ") for error in refused)
    taken[0].release()


# --- pages

FOLLOW = """
from duramen.disk import posix_page
posix_page._SLEEP_S = 3600  # nothing but a store wakes it
page = disk.page(path, 8, writable=False)
seen = page.load()
for _ in range(3):
    print("ready")
    spent = time.process_time()
    page.wait(seen, 3600)
    seen = page.load()
    print(seen.hex(), time.process_time() - spent)
"""


@needs_futex
def test_a_store_wakes_another_process_soon_and_without_spinning(tmp_path: Path, children: list[Child]) -> None:
    path = tmp_path / "page"
    page = PosixDisk().page(str(path), 8, writable=True)
    children.append(child := Child(FOLLOW, path))
    spent_s = []
    for number in range(3):
        assert child.line() == "ready"
        time.sleep(0.1)
        data = bytes([number + 1]) * 8
        page.store(data)
        seen, spent = child.line().split()
        assert seen == data.hex()
        spent_s.append(float(spent))
    assert statistics.median(spent_s) < 0.05, "it does not spin"


def test_without_a_futex_pages_are_polled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(futex, "open_word", lambda descriptor: None)
    page = PosixDisk().page(str(tmp_path / "page"), 4, writable=True)
    reader = PosixDisk().page(str(tmp_path / "page"), 4, writable=False)
    timer = threading.Timer(0.1, page.store, [b"abcd"])
    timer.start()
    spent = time.process_time()
    reader.wait(bytes(4), 3600)
    assert time.process_time() - spent < 0.09
    assert reader.load() == b"abcd"
    timer.join()


@pytest.mark.parametrize("machine", ["riscv", "armv7l", ""])
def test_unknown_processors_have_no_futex(machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert futex._futex.__wrapped__() is None


@needs_futex
def test_a_sandbox_that_forbids_the_futex(tmp_path: Path) -> None:
    """The call answers ENOSYS or EPERM: the page polls."""
    path = tmp_path / "page"
    page = posix.PosixPage("page", lambda: Paths().reach(str(path)), 4, writable=True)
    with open(path, "rb") as file:
        page._word = futex.Word(file.fileno(), lambda *_: -1)
    timer = threading.Timer(0.05, page.store, [b"abcd"])
    timer.start()
    page.wait(bytes(4), 3600)
    assert page.load() == b"abcd"
    timer.join()


@needs_futex
def test_a_cut_page_is_an_error_and_no_signal(tmp_path: Path) -> None:
    path = tmp_path / "page"
    page = PosixDisk().page(str(path), 4, writable=True)
    os.truncate(path, 0)
    with pytest.raises(StorageError, match="cut") as caught:
        page.wait(bytes(4), 1)
    assert caught.value.path == str(path)


@needs_futex
def test_signals_are_handled_while_waiting(tmp_path: Path) -> None:
    page = PosixDisk().page(str(tmp_path / "page"), 4, writable=True)
    rung: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: rung.append(number))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
        began = time.monotonic()
        page.wait(bytes(4), 0.2)
        assert time.monotonic() - began >= 0.2
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(rung) >= 3


def test_pages_are_seen_whole(tmp_path: Path, children: list[Child]) -> None:
    """Another process stores as fast as it can; no load mixes two stores."""
    script = """
page = disk.page(path, 64, writable=True)
print("ready")
for number in range(20000):
    page.store(bytes([number % 251]) * 64)
print("done")
"""
    path = tmp_path / "page"
    children.append(child := Child(script, path))
    assert child.line() == "ready"
    page = PosixDisk().page(str(path), 64, writable=False)
    loads = [page.load() for _ in range(20000)]
    assert child.line() == "done"
    assert all(load == load[:1] * 64 for load in loads)
    assert len(set(loads)) > 1


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what is resident")
def test_released_bytes_are_not_resident(tmp_path: Path) -> None:
    def resident_bytes() -> int:
        return int(Path("/proc/self/statm").read_text().split()[2]) * mmap.PAGESIZE  # pages that files share

    path = tmp_path / "large"
    path.write_bytes(bytes(32 << 20))
    mapped = PosixDisk().map(str(path))
    before = resident_bytes()
    assert not any(mapped.data[:: mmap.PAGESIZE])
    assert resident_bytes() - before > 24 << 20
    mapped.release(0, len(mapped.data))
    assert resident_bytes() - before < 8 << 20


def test_a_names_stamp_changes_with_every_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory, clock = tmp_path / "names", tmp_path / "clock"
    directory.mkdir()
    clock.write_bytes(b"")
    disk, later_ns = PosixDisk(), time.time_ns() + 10 * posix.COARSE_TICK_NS
    (directory / "a").write_bytes(b"")
    assert disk.names_stamp(str(directory)) is None, "another change may get the same time"
    monkeypatch.setattr(posix.time, "time_ns", lambda: later_ns)
    monkeypatch.setattr(posix, "_keeps_change_times", lambda descriptor: True)
    changes: list[Callable[[], object]] = [
        lambda: (directory / "b").write_bytes(b""),
        lambda: (directory / "b").rename(directory / "a"),
        lambda: (directory / "a").rename(directory / "c"),
        lambda: (directory / "c").unlink(),
        lambda: (directory / "below").mkdir(),
    ]
    for change in changes:
        before, changed_ns = disk.names_stamp(str(directory)), directory.stat().st_ctime_ns
        while clock.stat().st_ctime_ns <= changed_ns:  # until the file system's clock has advanced
            clock.write_bytes(b"")
        change()
        assert disk.names_stamp(str(directory)) not in (None, before)
    assert disk.names_stamp(str(directory / "missing")) == ()
    monkeypatch.setattr(posix, "_keeps_change_times", lambda descriptor: False)
    assert disk.names_stamp(str(directory)) is None


def test_an_interrupt_while_a_directory_is_locked_closes_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller and the dropped lock both closed the descriptor, and by then another file may have had its number."""

    class Interrupted:
        def add(self, lock: object) -> None:
            raise KeyboardInterrupt

    disk = PosixDisk()
    before = set(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(posix_locks, "_locks", Interrupted())
        with pytest.raises(KeyboardInterrupt):
            disk.lock_directory(str(tmp_path))
    assert set(os.listdir("/proc/self/fd")) <= before
    gc.collect()  # a second close would be an unraisable exception, which is an error here
    disk.lock_directory(str(tmp_path)).release()
