"""What the operating system refused, as an error that says where and what to do next. All disks raise these."""

from __future__ import annotations

import errno
import os

from duramen.errors import LockedError, StorageError

_HINTS = {
    errno.ENOENT: "check the path",
    errno.EACCES: "check its permissions, or run as another user",
    errno.EPERM: "check its permissions, or run as another user",
    errno.ENOSPC: "the disk is full: free some space, then open the log again",
    errno.EDQUOT: "the quota is used up: free some space or raise it, then open the log again",
    errno.EROFS: "the file system is read-only: mount it for writing, or write elsewhere",
    errno.EIO: "the device failed: the kernel's log says more",
    errno.EMFILE: "too many open files in this process: raise the limit (`ulimit -n`)",
}


def refused(error: OSError, path: str) -> StorageError:
    """The error of the operating system, with its number, as one of ours.

    >>> str(refused(OSError(errno.ENOSPC, "No space left on device"), "0.log"))
    '0.log: no space left on device (the disk is full: free some space, then open the log again)'
    """
    if isinstance(error, StorageError):
        return error
    reason = error.strerror or str(error)
    number = error.errno
    hint = None if number is None else _HINTS.get(number)
    wrapped = StorageError(reason[:1].lower() + reason[1:], path=path, hint=hint)
    wrapped.errno = number
    return wrapped


def refusal(number: int, path: str) -> StorageError:
    """The error that the operating system would give with this number."""
    return refused(OSError(number, os.strerror(number)), path)


def locked(path: str, note: bytes) -> LockedError:
    """The error for a lock that is taken.

    >>> str(locked("lock", b"pid 7 on host"))
    'lock: held by another writer: pid 7 on host'
    """
    text = note.decode("utf-8", "backslashreplace").strip()
    error = LockedError(f"held by another writer: {text}" if text else "held by another writer", path=path, note=note)
    error.errno = errno.EWOULDBLOCK
    return error
