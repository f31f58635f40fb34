"""Waiting for a lock that several processes share. The disk's own lock refuses at once; state that is held for
moments is worth waiting for."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from duramen.disk import Disk
from duramen.disk.base import Lock
from duramen.errors import LockedError

PATIENCE_S = 30.0
_PAUSE_S = 0.001


def take(disk: Disk, path: str, patience_s: float = PATIENCE_S) -> Lock:
    """The lock of the file at ``path``. `LockedError`, which names the holder, once the patience is over."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return disk.lock(path, f"pid {os.getpid()}\n".encode())
        except LockedError as error:
            if time.monotonic() < deadline:
                time.sleep(_PAUSE_S)
                continue
            holder = error.note.decode("ascii", "replace").strip() or "another process"
            raise LockedError(
                f"held for more than {patience_s:g} s by {holder}",
                note=error.note,
                path=path,
                hint="is that process stopped? The lock ends with it",
            ) from None


@contextmanager
def held(disk: Disk, path: str, patience_s: float = PATIENCE_S) -> Iterator[None]:
    lock = take(disk, path, patience_s)
    try:
        yield
    finally:
        lock.release()
