"""The real disk: a thin layer over the calls of the operating system, with nothing kept between two of them.

It retries no failed sync, follows no policy and syncs nothing by itself. What it does add: a descriptor is never used
by one thread after another closed it, a lock is let go by forked children, every refusal names its file, and a relative
path means the same all the time: a program that changes its directory keeps its logs.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import stat
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from duramen.disk import futex
from duramen.disk.base import Buffer, Disk, File, Gate, Kind, Lock, Mapped, Page
from duramen.disk.refused import locked, refusal, refused
from duramen.errors import StorageError

_MODE = 0o644
_NOTE_LIMIT_BYTES = 4096
_NOTE_PATIENCE_S = 0.05  # for a holder that has the lock and has not written its note yet
_PROBE_PATIENCE_S = 0.05
_POLL_S = 0.005
_SLEEP_S = 0.5  # the longest sleep at once: how late a waiter may notice that another thread closed its page
_WHOLE_LOADS = 8
_DONT_NEED: int | None = getattr(mmap, "MADV_DONTNEED", None)

_sync_data = getattr(os, "fdatasync", os.fsync)
_FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)
_NO_FULL_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.ENOTTY}


def _flush_device(descriptor: int) -> bool:
    """macOS: fsync leaves the bytes in the device's own cache; this call does not. False where there is none."""
    if _FULL_SYNC is None:
        return False
    try:
        fcntl.fcntl(descriptor, _FULL_SYNC)
    except OSError as error:
        if error.errno in _NO_FULL_SYNC:
            return False
        raise
    return True


def _open(path: str, flags: int, mode: int = _MODE) -> int:
    """A descriptor of a regular file. O_NONBLOCK: opening a pipe must not wait for its other end."""
    descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK, mode)
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISREG(kind):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EISDIR if stat.S_ISDIR(kind) else errno.EINVAL, "Not a regular file")


def _write_whole(descriptor: int, data: Buffer, position: int) -> None:
    """Write a few bytes; taking only some of them is what a full disk does."""
    if os.pwrite(descriptor, data, position) != len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class _Descriptor:
    """A descriptor that threads share. It is closed once, and never while a call is under way: its number could
    belong to another file by then, and the bytes would go there.

    Without a lock, because every call passes here twice: a user is listed before it looks whether the descriptor is
    closed, and whoever closes it says so before it looks for users. Adding to a list and taking from it are atomic."""

    __slots__ = ("_closed", "_number", "_open", "_users")

    def __init__(self, number: int) -> None:
        self._number = number
        self._open = [number]  # whoever takes it out closes it
        self._users: list[None] = []
        self._closed = False

    def __enter__(self) -> int:
        self._users.append(None)
        if self._closed:
            self._leave()
            raise OSError(errno.EBADF, "The file is closed")
        return self._number

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()

    def _leave(self) -> None:
        self._users.pop()
        if self._closed:
            self.close()

    def close(self) -> None:
        self._closed = True
        if not self._users:
            try:
                number = self._open.pop()
            except IndexError:
                return
            os.close(number)

    def __del__(self) -> None:
        self.close()


class MappedFile:
    """A read-only mapping. Bytes that another process cuts off while they are mapped cannot be read any more: the
    operating system ends a process that touches them. Duramen itself never shortens a file that may be mapped."""

    def __init__(self, path: str, at: str) -> None:
        try:
            descriptor = _open(at, os.O_RDONLY)
            try:
                filled = os.fstat(descriptor).st_size > 0
                self._map = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) if filled else None
            finally:
                os.close(descriptor)
        except OSError as error:
            raise refused(error, path) from error
        self.data = memoryview(self._map) if self._map is not None else memoryview(b"")

    def let_go(self, start: int, stop: int) -> None:
        stop = min(stop, len(self.data))
        begin, end = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, stop // mmap.PAGESIZE * mmap.PAGESIZE
        if self._map is not None and begin < end and _DONT_NEED is not None:
            with contextlib.suppress(OSError):  # it is a hint
                self._map.madvise(_DONT_NEED, begin, end - begin)

    def close(self) -> None:
        """Let go of the mapping; it ends when nothing refers to its bytes any more."""
        self.data = memoryview(b"")
        self._map = None


FALLOC_FL_KEEP_SIZE = 1
SYNC_FILE_RANGE_WRITE = 2


def _find(name: str, *types: Any) -> Callable[..., int] | None:
    """A call of Linux that Python does not offer, or not with its flags; None elsewhere."""
    function = getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
    if function is not None:
        function.argtypes = types
    return function


_fallocate = _find("fallocate", ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
_sync_range = _find("sync_file_range", ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)


class PosixFile(File):
    """``path`` is what it is called, ``at`` where it lies; so are those of the classes below."""

    def __init__(self, path: str, at: str, flags: int) -> None:
        self.path = path
        try:
            self._descriptor = _Descriptor(_open(at, os.O_WRONLY | flags))
        except OSError as error:
            raise refused(error, path) from error

    def write(self, position: int, data: Buffer) -> int:
        try:
            with self._descriptor as descriptor:
                taken = os.pwrite(descriptor, data, position)
        except OSError as error:
            raise refused(error, self.path) from error
        if not taken and memoryview(data).nbytes:
            raise refusal(errno.ENOSPC, self.path)
        return taken

    def sync(self) -> None:
        try:
            with self._descriptor as descriptor:
                if not _flush_device(descriptor):
                    _sync_data(descriptor)
        except OSError as error:
            raise refused(error, self.path) from error

    def begin_sync(self, position: int, size_bytes: int) -> None:
        if _sync_range is not None:
            with contextlib.suppress(OSError), self._descriptor as descriptor:
                _sync_range(descriptor, position, size_bytes, SYNC_FILE_RANGE_WRITE)

    def truncate(self, size_bytes: int) -> None:
        try:
            with self._descriptor as descriptor:
                os.ftruncate(descriptor, size_bytes)
        except OSError as error:
            raise refused(error, self.path) from error

    def reserve(self, size_bytes: int) -> None:
        if _fallocate is not None:
            with contextlib.suppress(OSError), self._descriptor as descriptor:
                _fallocate(descriptor, FALLOC_FL_KEEP_SIZE, 0, size_bytes)

    def size(self) -> int:
        try:
            with self._descriptor as descriptor:
                return os.fstat(descriptor).st_size
        except OSError as error:
            raise refused(error, self.path) from error

    def close(self) -> None:
        try:
            self._descriptor.close()
        except OSError as error:
            raise refused(error, self.path) from error


# Locks of this process. A child that is forked inherits their descriptors, and with them the locks: it lets go of
# them at once, or a lock would outlive the process that took it.
_locks: weakref.WeakSet[PosixLock | PosixGate] = weakref.WeakSet()


class PosixLock(Lock):
    """flock on a file that is never removed: a name that comes and goes could be locked twice."""

    def __init__(self, path: str, at: str, note: bytes) -> None:
        self._path = path
        self._mutex = threading.Lock()
        self._descriptor: int | None = None
        descriptor = _take(path, at)
        try:
            # The note first and the cut afterwards: whoever looks in between sees a note, not an empty file.
            _write_whole(descriptor, note, 0)
            os.ftruncate(descriptor, len(note))
        except OSError:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        _locks.add(self)

    def release(self) -> None:
        with self._mutex:
            descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        try:
            os.ftruncate(descriptor, 0)
            # Closing alone would leave the lock with a child that was forked a moment ago.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        except OSError as error:
            raise refused(error, self._path) from error
        finally:
            os.close(descriptor)

    def abandon(self) -> None:
        """Close the descriptor: the lock ends, unless it is inherited and another process holds it, too."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def __del__(self) -> None:
        self.abandon()


class PosixGate(Gate):
    """flock on a descriptor that stays open. One thread at a time. A forked child gets a descriptor of its own: what it
    inherits is its parent's lock."""

    def __init__(self, path: str, at: str) -> None:
        self._path = path
        self._at = at
        self._descriptor: int | None = None
        self._held = False
        _locks.add(self)

    def take(self, note: bytes) -> bool:
        try:
            descriptor = self._locked()
            self._held = True
            if os.pread(descriptor, _NOTE_LIMIT_BYTES, 0) == note:
                return True
            _write_whole(descriptor, note, 0)
            os.ftruncate(descriptor, len(note))
        except OSError as error:
            self.release()
            raise refused(error, self._path) from error
        return False

    def _locked(self) -> int:
        """The descriptor, locked. Where the file was removed meanwhile, the one that is there now."""
        while True:
            if self._descriptor is None:
                self._descriptor = _open(self._at, os.O_RDWR | os.O_CREAT)
                self._file = os.fstat(self._descriptor)
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise locked(self._path, os.pread(self._descriptor, _NOTE_LIMIT_BYTES, 0)) from None
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(self._file, os.stat(self._at)):
                    return self._descriptor
            self.abandon()

    def release(self) -> None:
        if self._held and self._descriptor is not None:
            self._held = False
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            except OSError as error:
                raise refused(error, self._path) from error

    def close(self) -> None:
        self.abandon()

    def abandon(self) -> None:
        """Close the descriptor: the lock ends, unless it is inherited and another process holds it, too."""
        descriptor, self._descriptor, self._held = self._descriptor, None, False
        if descriptor is not None:
            os.close(descriptor)

    def __del__(self) -> None:
        self.abandon()


def _take(path: str, at: str) -> int:
    """A descriptor that holds the lock of the file that ``at`` names."""
    patience = time.monotonic() + _PROBE_PATIENCE_S
    while True:
        descriptor = _open(at, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = os.fstat(descriptor)
            try:
                named = os.stat(at)
            except FileNotFoundError:
                named = None
            if named is not None and os.path.samestat(held, named):
                return descriptor
            # Somebody removed the file meanwhile: this lock would hold nothing. Try the file that is there now.
        except BlockingIOError:
            if time.monotonic() < patience:
                # It may be a reader that asks whether there is a writer: that takes an instant.
                os.close(descriptor)
                time.sleep(_POLL_S)
                continue
            note = _note_of_holder(descriptor)
            os.close(descriptor)
            raise locked(path, note) from None
        except OSError:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _note_of_holder(descriptor: int) -> bytes:
    deadline = time.monotonic() + _NOTE_PATIENCE_S
    while not (note := os.pread(descriptor, _NOTE_LIMIT_BYTES, 0)) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return note


def _abandon_locks() -> None:
    for lock in list(_locks):
        lock.abandon()


os.register_at_fork(after_in_child=_abandon_locks)


class PosixPage(Page):
    """A page behind a counter: the first four bytes of the file count the stores, the page follows them.

    Both are read and written by pread and pwrite, which the page cache keeps coherent between processes: a store
    into a mapping would end the process with SIGBUS where the disk is full or the file was cut. The counter is
    written after the page, so that whoever read the old page sleeps on the old counter and cannot miss the new one.
    One page at a time may be writable: whoever opens one holds the log's lock.
    """

    def __init__(self, path: str, at: str, size_bytes: int, *, writable: bool) -> None:
        self._path = path
        self._size_bytes = size_bytes
        self._mutex = threading.Lock()
        self._closed = False
        try:
            number = _open(at, os.O_RDWR | os.O_CREAT if writable else os.O_RDONLY)
            self._descriptor = _Descriptor(number)
            missing = futex.WORD_BYTES + size_bytes - os.fstat(number).st_size
            if missing > 0:
                if not writable:
                    raise OSError(errno.ENODATA, "The page is not there yet")
                _write_whole(number, bytes(missing), os.fstat(number).st_size)
            self._stores = self._counter(number)
            self._word = futex.open_word(number)
        except OSError as error:
            raise refused(error, path) from error

    def load(self) -> bytes:
        """The page. Two reads that agree are one that no store interrupted; after a few that do not, the last one."""
        try:
            with self._descriptor as descriptor:
                page = os.pread(descriptor, self._size_bytes, futex.WORD_BYTES)
                for _ in range(_WHOLE_LOADS):
                    before, page = page, os.pread(descriptor, self._size_bytes, futex.WORD_BYTES)
                    if page == before:
                        break
        except OSError as error:
            raise refused(error, self._path) from error
        if len(page) < self._size_bytes:
            raise refused(OSError(errno.ENODATA, "The page was cut"), self._path)
        return page

    def store(self, data: bytes) -> None:
        if len(data) != self._size_bytes:
            raise ValueError(f"a page of {self._size_bytes} bytes cannot hold {len(data)}")
        try:
            with self._mutex, self._descriptor as descriptor:
                self._stores = (self._stores + 1) % 2**32
                _write_whole(descriptor, data, futex.WORD_BYTES)
                _write_whole(descriptor, self._stores.to_bytes(futex.WORD_BYTES, sys.byteorder), 0)
        except OSError as error:
            raise refused(error, self._path) from error
        if self._word is not None:
            self._word.wake()

    def wait(self, seen: bytes, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not self._closed:
            try:
                with self._descriptor as descriptor:
                    counter = self._counter(descriptor)
                if self.load() != seen:
                    return
            except OSError as error:
                if self._closed:
                    return
                raise refused(error, self._path) from error
            left = deadline - time.monotonic()
            if left <= 0:
                return
            if self._word is None or not self._word.wait(counter, min(left, _SLEEP_S)):
                time.sleep(min(left, _POLL_S))

    def close(self) -> None:
        self._closed = True
        if self._word is not None:
            self._word.wake()
        try:
            self._descriptor.close()
        except OSError as error:
            raise refused(error, self._path) from error

    @staticmethod
    def _counter(descriptor: int) -> int:
        return int.from_bytes(os.pread(descriptor, futex.WORD_BYTES, 0), sys.byteorder)


class PosixDisk(Disk):
    """A relative path is relative to the directory in which the process was when the disk was made. Errors name it as
    it was given."""

    def __init__(self) -> None:
        try:
            self._here = os.getcwd()
        except FileNotFoundError:  # it was removed: only absolute paths lead anywhere
            self._here = ""

    def _at(self, path: str) -> str:
        if "\0" in path:
            raise StorageError("a path cannot hold a null character", path=path)
        return f"{self._here}/{path}" if path and self._here and not path.startswith("/") else path

    def kind(self, path: str) -> Kind:
        try:
            mode = os.stat(self._at(path)).st_mode
        except FileNotFoundError:
            return Kind.OTHER if os.path.islink(self._at(path)) else Kind.MISSING  # a link to nothing is something
        except NotADirectoryError:
            return Kind.MISSING
        except OSError as error:
            raise refused(error, path) from error
        if stat.S_ISDIR(mode):
            return Kind.DIRECTORY
        return Kind.FILE if stat.S_ISREG(mode) else Kind.OTHER

    def list(self, path: str, within: Sequence[str] = ()) -> list[tuple[str, int]]:
        found: list[tuple[str, int]] = []
        try:
            with os.scandir(self._at(path)) as entries:
                for entry in sorted(entries, key=lambda e: e.name):
                    try:
                        if entry.is_dir():
                            if entry.name in within:
                                below = self.list(f"{path}/{entry.name}")
                                found += [(f"{entry.name}/{name}", size) for name, size in below]
                        elif entry.is_file():
                            found.append((entry.name, entry.stat().st_size))
                    except OSError as error:
                        if error.errno != errno.ENOENT:  # removed since the directory was read
                            raise
        except OSError as error:
            raise refused(error, path) from error
        return found

    def directories(self, path: str) -> Sequence[str]:
        try:
            with os.scandir(self._at(path)) as entries:
                return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
        except OSError as error:
            raise refused(error, path) from error

    def size(self, path: str) -> int:
        try:
            return os.stat(self._at(path)).st_size
        except OSError as error:
            raise refused(error, path) from error

    def space(self, path: str) -> tuple[int, int]:
        try:
            found = os.statvfs(self._at(path))
        except OSError as error:
            raise refused(error, path) from error
        return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize

    def map(self, path: str) -> Mapped:
        return MappedFile(path, self._at(path))

    def make_directory(self, path: str, *, parents: bool = True) -> None:
        try:
            if parents:
                os.makedirs(self._at(path), exist_ok=True)
            else:
                os.mkdir(self._at(path))
        except OSError as error:
            if isinstance(error, FileExistsError) and os.path.isdir(self._at(path)):
                return
            raise refused(error, path) from error

    def create(self, path: str) -> File:
        return PosixFile(path, self._at(path), os.O_CREAT | os.O_EXCL)

    def open(self, path: str) -> File:
        return PosixFile(path, self._at(path), 0)

    def replace(self, source: str, target: str) -> None:
        try:
            os.replace(self._at(source), self._at(target))
        except OSError as error:
            missing = isinstance(error, FileNotFoundError) and not os.path.lexists(self._at(source))
            raise refused(error, source if missing else target) from error

    def remove(self, path: str) -> None:
        try:
            os.unlink(self._at(path))
        except OSError as error:
            raise refused(error, path) from error

    def remove_directory(self, path: str) -> None:
        try:
            os.rmdir(self._at(path))
        except OSError as error:
            raise refused(error, path) from error

    def sync_directory(self, path: str) -> None:
        try:
            descriptor = os.open(self._at(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                if not _flush_device(descriptor):
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise refused(error, path) from error

    def lock(self, path: str, note: bytes) -> Lock:
        try:
            return PosixLock(path, self._at(path), note)
        except OSError as error:
            raise refused(error, path) from error

    def gate(self, path: str) -> Gate:
        return PosixGate(path, self._at(path))

    def is_locked(self, path: str) -> bool:
        try:
            descriptor = _open(self._at(path), os.O_RDONLY)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise refused(error, path) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError as error:
            raise refused(error, path) from error
        finally:
            os.close(descriptor)
        return False

    def page(self, path: str, size_bytes: int, *, writable: bool) -> Page:
        return PosixPage(path, self._at(path), size_bytes, writable=writable)
