"""Rename a file without replacing another, which `os.rename` cannot guarantee.

Linux has a system call for it. On other systems, and on file systems that refuse the flag, the file gets its new name
as a second link, which fails if the name exists, and then loses the old one; a crash in between leaves both names. A
file system that supports neither raises: a check followed by a rename could replace a file that appeared in between.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable
from functools import cache

_NOREPLACE = 1
_AT_FDCWD = -100
_NOT_SUPPORTED = frozenset({errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP})


def rename_new(
    source: str, target: str, source_directory: int | None = None, target_directory: int | None = None
) -> None:
    """Rename the file ``source`` to ``target``; raises `FileExistsError` if that name exists. Each path is relative to
    its directory descriptor, if given."""
    call = _system_call()
    if call is None:
        _link_and_remove(source, target, source_directory, target_directory)
        return
    before = _AT_FDCWD if source_directory is None else source_directory
    after = _AT_FDCWD if target_directory is None else target_directory
    if call(before, os.fsencode(source), after, os.fsencode(target), _NOREPLACE) == 0:
        return
    number = ctypes.get_errno()
    if number in _NOT_SUPPORTED:
        _link_and_remove(source, target, source_directory, target_directory)
        return
    raise OSError(number, os.strerror(number), target)


def _link_and_remove(
    source: str, target: str, source_directory: int | None = None, target_directory: int | None = None
) -> None:
    os.link(source, target, src_dir_fd=source_directory, dst_dir_fd=target_directory, follow_symlinks=False)
    os.unlink(source, dir_fd=source_directory)


@cache
def _system_call() -> Callable[..., int] | None:
    """``renameat2`` of the C library; None if missing."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        return None
    call.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
    call.restype = ctypes.c_int
    result: Callable[..., int] = call
    return result
