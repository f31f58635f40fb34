"""Locks of the real disk: flock on a file, on a directory, and a gate that one process after another passes.

A lock ends with its process, also when that is killed, or when its owner dropped it without releasing it. Forked
children close the descriptors that they inherit, or a lock would outlive the process that took it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
import time
import warnings
import weakref

from duramen.disk.os_errors import fenced, locked, refused
from duramen.disk.paths import Paths, Reach, RootedPaths, open_regular, write_whole
from duramen.disk.vfs import Gate, Lock

_NOTE_LIMIT_BYTES = 4096
_NOTE_PATIENCE_S = 0.05  # for a holder that has the lock and has not written its note yet
_PROBE_PATIENCE_S = 0.05
_POLL_S = 0.005

# Locks of this process. A forked child inherits their descriptors, and with them the locks: it closes them at once,
# because otherwise a lock would outlive the process that took it.
_locks: weakref.WeakSet[PosixLock | PosixDirectoryLock | PosixGate] = weakref.WeakSet()


class PosixLock(Lock):
    """flock on a file that is never removed: if it were, two processes could lock two files of that name."""

    is_exclusive = True
    _descriptor: int | None = None  # of the class: an interrupt may end `__init__` before its first line

    def __init__(self, path: str, paths: Paths, note: bytes) -> None:
        self._path = path
        self._paths = paths
        self._at = os.fsencode(paths.at(path))
        self._mutex = threading.Lock()
        try:
            descriptor = self._take()
            # The note first and the cut afterwards: a reader in between sees a note, not an empty file.
            write_whole(descriptor, note, 0)
            os.ftruncate(descriptor, len(note))
            self.file = os.fstat(descriptor)
            self._number, self._device = self.file.st_ino, self.file.st_dev
            _locks.add(self)
        except BaseException:  # an interrupt, too, leaves no lock
            self.abandon()
            raise

    def _take(self) -> int:
        """Lock the file that has the name, and return its descriptor, which this object has before it is locked."""
        patience = time.monotonic() + _PROBE_PATIENCE_S
        while True:
            self.abandon()
            with self._paths.reach(self._path) as place:
                self._descriptor = descriptor = open_regular(self._path, place, os.O_RDWR | os.O_CREAT)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= patience:
                    raise locked(self._path, _note_of_holder(descriptor), is_own=_is_own(descriptor)) from None
                time.sleep(_POLL_S)  # it may be a reader that checks for a writer, which takes an instant
                continue
            held = os.fstat(descriptor)
            with contextlib.suppress(FileNotFoundError), self._paths.reach(self._path) as place:
                if os.path.samestat(held, place.stat()):
                    return descriptor
            # The file was removed in between, so this lock protects nothing. Try the file that has the name now.

    def is_in_place(self) -> bool:
        try:
            found = os.stat(self._at)
        except OSError:
            return False
        return found.st_ino == self._number and found.st_dev == self._device

    @property
    def place(self) -> tuple[bytes, int, int]:
        """What `is_in_place` compares: the absolute path, and the device and number of the locked file."""
        return self._at, self._device, self._number

    def check(self) -> None:
        check_root(self._paths)
        try:
            with self._paths.reach(self._path) as place:
                found = place.stat()
        except OSError as error:
            if error.errno not in _NOT_THERE:
                raise refused(error, self._path) from error
            raise fenced("this was deleted, or its directory was", self._path) from None
        if (found.st_ino, found.st_dev) != (self._number, self._device):
            raise fenced("another file has the name of the one that this writer locked", self._path)

    def release(self) -> None:
        with self._mutex:
            descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        try:
            os.ftruncate(descriptor, 0)
            # Closing alone would leave the lock with a child that was just forked.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        except OSError as error:
            raise refused(error, self._path) from error
        finally:
            os.close(descriptor)

    @property
    def is_held(self) -> bool:
        return self._descriptor is not None

    def abandon(self) -> None:
        """Close the descriptor. The lock ends, unless another process holds the same descriptor."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def __del__(self) -> None:
        if self._descriptor is not None:
            self.abandon()
            warnings.warn(
                f"{self._path}: this lock was dropped and not released; close what holds it, or use `with`",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )


_NOT_THERE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}
_HIDDEN = {*_NOT_THERE, errno.EACCES}
_NO_DIRECTORY_LOCK = {errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}


def check_root(paths: Paths) -> None:
    """Raise `FencedError` if the root was deleted or another directory has its name. A process without the privileges
    to look at that name continues."""
    if not isinstance(paths, RootedPaths) or paths.pinned is None:
        return
    try:
        with paths.pinned as descriptor:
            held = os.fstat(descriptor)
        if not held.st_nlink:
            raise fenced("the log's directory was deleted", paths.root)
        named = os.stat(paths.root_at)
    except OSError as error:
        if error.errno not in _HIDDEN:
            raise refused(error, paths.root) from error
        return  # moved: the opened directory still exists somewhere
    if not os.path.samestat(held, named):
        raise fenced("another directory has taken the place of the log's", paths.root)


class PosixDirectoryLock(Lock):
    """flock on a directory: it ends with the process, not when a file in the directory is deleted.

    The lock owns the descriptor from the first line of the constructor on and closes it where the constructor fails.
    """

    _descriptor: int | None = None

    def __init__(self, path: str, paths: Paths, descriptor: int) -> None:
        self._descriptor = descriptor
        self._path = path
        self._paths = paths
        self._mutex = threading.Lock()
        try:
            self.file = os.fstat(descriptor)
            self.is_exclusive = _lock_exclusively(path, descriptor)
            _locks.add(self)
        except BaseException:
            self.abandon()
            raise

    def is_in_place(self) -> bool:
        try:
            return os.path.samestat(self.file, os.stat(self._paths.at(self._path)))
        except OSError:
            return False

    def check(self) -> None:
        check_root(self._paths)

    def release(self) -> None:
        with self._mutex:
            descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        try:
            if self.is_exclusive:
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # a child that was just forked would keep it
        except OSError as error:
            raise refused(error, self._path) from error
        finally:
            os.close(descriptor)

    @property
    def is_held(self) -> bool:
        return self._descriptor is not None

    def abandon(self) -> None:
        """See `PosixLock.abandon`."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def __del__(self) -> None:
        self.abandon()


def _lock_exclusively(path: str, descriptor: int) -> bool:
    """Lock; False where the file system cannot lock a directory: NFS requires a writable descriptor."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise locked(path, b"", is_own=_is_own(descriptor)) from None
    except OSError as error:
        if error.errno not in _NO_DIRECTORY_LOCK:
            raise
        return False
    return True


class PosixGate(Gate):
    """flock on a descriptor that stays open, for one thread at a time. A forked child opens a new descriptor: the
    inherited one is its parent's lock."""

    _descriptor: int | None = None

    def __init__(self, path: str, reach: Reach) -> None:
        self._path = path
        self._reach = reach
        self._held = False
        _locks.add(self)

    def take(self, note: bytes) -> bool:
        try:
            descriptor = self._locked()
            self._held = True
            if os.pread(descriptor, _NOTE_LIMIT_BYTES, 0) == note:
                return True
            write_whole(descriptor, note, 0)
            os.ftruncate(descriptor, len(note))
        except OSError as error:
            self.release()
            raise refused(error, self._path) from error
        return False

    def _locked(self) -> int:
        """The locked descriptor: of the file that has the name now, if the old one was removed."""
        while True:
            if self._descriptor is None:
                with self._reach() as place:
                    self._descriptor = open_regular(self._path, place, os.O_RDWR | os.O_CREAT)
                self._file = os.fstat(self._descriptor)
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise locked(self._path, os.pread(self._descriptor, _NOTE_LIMIT_BYTES, 0)) from None
            with contextlib.suppress(FileNotFoundError), self._reach() as place:
                if os.path.samestat(self._file, place.stat()):
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
        """Close the descriptor. The lock ends, unless another process holds the same descriptor."""
        descriptor, self._descriptor, self._held = self._descriptor, None, False
        if descriptor is not None:
            os.close(descriptor)

    def __del__(self) -> None:
        self.abandon()


def _note_of_holder(descriptor: int) -> bytes:
    deadline = time.monotonic() + _NOTE_PATIENCE_S
    while not (note := os.pread(descriptor, _NOTE_LIMIT_BYTES, 0)) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return note


def _is_own(descriptor: int) -> bool:
    """Whether this process holds the lock of that file. The process id in a note does not tell: it may be that of a
    process in another container."""
    held = [lock for lock in list(_locks) if not isinstance(lock, PosixGate) and lock.is_held]
    return any(os.path.samestat(lock.file, os.fstat(descriptor)) for lock in held)


def _abandon_locks() -> None:
    for lock in list(_locks):
        lock.abandon()


os.register_at_fork(after_in_child=_abandon_locks)
