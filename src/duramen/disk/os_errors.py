"""Errors of the operating system as ours, with the path and advice. All disks raise these."""

from __future__ import annotations

import errno
import os
import stat

from duramen.errors import FencedError, LockedError, StorageError

_HINTS = {
    errno.ENOENT: "check the path",
    errno.EACCES: "check its permissions, or run as another user",
    errno.EPERM: "check its permissions, or run as another user",
    errno.ENOSPC: "the disk is full: free some space, then try again",
    errno.EDQUOT: "the quota is used up: free some space or raise it, then try again",
    errno.EROFS: "the file system is read-only: mount it for writing, or write elsewhere",
    errno.EIO: "the device failed: the kernel's log says more",
    errno.EMFILE: "too many open files in this process: raise the limit (`ulimit -n`)",
}


def refused(error: OSError, path: str) -> StorageError:
    """An error of the operating system as a `StorageError` with the same number.

    >>> str(refused(OSError(errno.ENOSPC, "No space left on device"), "0.log"))
    '0.log: no space left on device (the disk is full: free some space, then try again)'
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
    return refused(OSError(number, os.strerror(number)), path)


def locked(path: str, note: bytes, *, is_own: bool = False) -> LockedError:
    """The error for a lock that another writer holds.

    >>> str(locked("lock", b"pid 7 on host"))
    'lock: held by another writer: pid 7 on host'
    """
    text = note.decode("utf-8", "backslashreplace").strip()
    message = f"held by another writer: {text}" if text else "held by another writer"
    error = LockedError(message, path=path, note=note, is_own=is_own)
    error.errno = errno.EWOULDBLOCK
    return error


def fenced(what: str, path: str) -> FencedError:
    """The error for a writer whose path no longer leads to its files.

    >>> fenced("it was deleted", "events/.duramen/lock").message
    'the writer is fenced off: it was deleted'
    """
    return FencedError(
        f"the writer is fenced off: {what}",
        path=path,
        hint="close the log, see what happened to its directory, and open it again: that runs recovery",
    )


_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a directory",
}


def kind_name(mode: int) -> str:
    """A description of a file that is not regular.

    >>> kind_name(stat.S_IFIFO | 0o644)
    'a FIFO'
    """
    return _KINDS.get(stat.S_IFMT(mode), "not a regular file")


def not_regular(mode: int, path: str) -> StorageError:
    """The error for a file in a log's directory that is not opened because it is not regular.

    >>> str(not_regular(stat.S_IFLNK, "events/.duramen"))
    "events/.duramen: this is a symbolic link, and only regular files in the log's directory are opened (remove...)"
    """
    if stat.S_ISDIR(mode):
        return refusal(errno.EISDIR, path)
    error = StorageError(
        f"this is {kind_name(mode)}, and only regular files in the log's directory are opened",
        path=path,
        hint="remove it, or put a regular file in its place",
    )
    error.errno = errno.ELOOP if stat.S_ISLNK(mode) else errno.EINVAL
    return error
