"""Links, FIFOs, sockets and devices in the directory of a log, and directories in the place of its files.

Duramen never follows or opens them (`Disk.within`), so the log seems to lack the file. `verify` reports each by name,
and a writer refuses to start: it would rebuild the seemingly missing file, or treat the log as shorter than it is.
Looks at names only.
"""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from duramen.disk import Disk
from duramen.errors import StorageError
from duramen.formats import Format
from duramen.log.segments.listing import SUBDIRECTORIES
from duramen.sidecar import DIRECTORY, FILES, Shape

HINT = "remove it, or put the file itself in its place: nothing is followed out of a log's directory"


class SpecialFile(NamedTuple):
    """An entry that is not a regular file. ``is_own``: the log uses a file of that name."""

    path: str
    what: str
    is_own: bool

    def refusal(self) -> StorageError:
        error = StorageError(f"this is {self.what}, and a log consists of regular files", path=self.path, hint=HINT)
        error.errno = errno.ELOOP
        return error


def special_files(disk: Disk, root: str, fmt: Format | None = None) -> Iterator[SpecialFile]:
    """The entries of the log at ``root`` that are not regular files. Without a format, only the sidecar's are own."""
    folders = _directories(disk, root)
    for folder in ("", *(name for name in SUBDIRECTORIES if name in folders)):
        full = posixpath.join(root, folder) if folder else root
        for name, what in _not_files(disk, full):
            path = posixpath.join(folder, name)
            is_own = path in (DIRECTORY, *SUBDIRECTORIES) or (fmt is not None and fmt.classify(path) is not None)
            yield SpecialFile(posixpath.join(root, path), what, is_own)
        if fmt is not None:
            for name in _directories(disk, full) if folder else folders:
                path = posixpath.join(folder, name)
                if fmt.classify(path) is not None:
                    yield SpecialFile(posixpath.join(root, path), "a directory", True)
    if DIRECTORY in folders:
        yield from _of_sidecar(disk, posixpath.join(root, DIRECTORY))


def _not_files(disk: Disk, path: str) -> Sequence[tuple[str, str]]:
    try:
        return disk.specials(path)
    except StorageError as error:
        return _nothing(error)


def _directories(disk: Disk, path: str) -> Sequence[str]:
    try:
        return disk.directories(path)
    except StorageError as error:
        return _nothing(error)


def _nothing(error: StorageError) -> Sequence[Any]:
    """The entries of a directory that does not exist, or was removed in between."""
    if error.errno not in (errno.ENOENT, errno.ENOTDIR):
        raise error
    return ()


def _of_sidecar(disk: Disk, sidecar: str) -> Iterator[SpecialFile]:
    for name, what in _not_files(disk, sidecar):
        yield SpecialFile(posixpath.join(sidecar, name), what, True)
    folders = _directories(disk, sidecar)
    for name in folders:
        if any(entry.name == name and entry.shape == Shape.FILE for entry in FILES):
            yield SpecialFile(posixpath.join(sidecar, name), "a directory", True)
    for entry in FILES:
        full = posixpath.join(sidecar, entry.name)
        if entry.shape != Shape.FILE and entry.name in folders:
            for below, what in _not_files(disk, full):
                yield SpecialFile(posixpath.join(full, below), what, True)
            if entry.shape == Shape.FOLDER:
                for below in _directories(disk, full):
                    yield SpecialFile(posixpath.join(full, below), "a directory", True)


def refuse_special_files(disk: Disk, root: str, fmt: Format | None = None) -> None:
    """Raise `StorageError` for the first file of the log that is not a regular one."""
    for found in special_files(disk, root, fmt):
        if found.is_own:
            raise found.refusal()
