"""Locks that several processes share and hold briefly. The disk's own lock fails at once; these functions wait."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from duramen.disk import Disk, Lock
from duramen.errors import LockedError

PATIENCE_S = 30.0
_PAUSE_S = 0.0002
_LONGEST_PAUSE_S = 0.002

T = TypeVar("T")


class SharedLock:
    """A lock that a process takes often and briefly. `enter` reports whether this object was its last holder. Not
    thread-safe."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._gate = disk.gate(path)
        self._path = path
        self._own = secrets.token_hex(8)

    def enter(self) -> bool:
        """Wait for the lock. Return whether no other holder had it since the last `leave`. `LockedError` on timeout."""
        note = f"pid {os.getpid()} {self._own}\n".encode()  # a forked child is another holder
        return _patiently(lambda: self._gate.take(note), self._path, PATIENCE_S)

    def leave(self) -> None:
        self._gate.release()

    def close(self) -> None:
        self._gate.close()


def take_lock(disk: Disk, path: str, patience_s: float = PATIENCE_S) -> Lock:
    """Wait for the lock file at ``path``. `LockedError`, which names the holder, on timeout."""
    note = f"pid {os.getpid()}\n".encode()
    return _patiently(lambda: disk.lock(path, note), path, patience_s)


def _patiently(attempt: Callable[[], T], path: str, patience_s: float) -> T:
    began, pause_s = time.monotonic(), _PAUSE_S
    while True:
        try:
            return attempt()
        except LockedError as error:
            if time.monotonic() - began < patience_s:
                time.sleep(pause_s)
                pause_s = min(pause_s * 1.5, _LONGEST_PAUSE_S)
                continue
            holder = " ".join(error.note.decode("ascii", "replace").split()[:2]) or "another process"
            raise LockedError(
                f"the lock has been held for more than {patience_s:g} s by {holder}",
                note=error.note,
                path=path,
                hint="check whether that process is suspended; the lock is released when it ends",
            ) from None


@contextmanager
def hold_lock(disk: Disk, path: str, patience_s: float = PATIENCE_S) -> Iterator[None]:
    lock = take_lock(disk, path, patience_s)
    try:
        yield
    finally:
        lock.release()
