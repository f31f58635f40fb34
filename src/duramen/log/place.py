"""Where a log is to be appended to: the format of the one that is there, or a directory for a new one.

Writes no file: what a log consists of is made by its writer, under its lock.
"""

from __future__ import annotations

import posixpath
from typing import Any

from duramen.disk import Disk
from duramen.disk.base import Kind
from duramen.errors import DetectionError, UsageError
from duramen.formats import Format, make
from duramen.log.directory import detect, format_at
from duramen.log.sidecar import read_config

DEFAULT_FORMAT = "keratin"


def prepare(disk: Disk, path: str, format: str | None, options: dict[str, Any], *, create: bool = True) -> Format:
    """The format of the log at ``path``; its directory is made if it is not there, with ``create``."""
    kind = disk.kind(path)
    if kind == Kind.FILE:
        raise UsageError("a single file cannot be opened for append", path=path, hint="open its directory")
    if kind == Kind.DIRECTORY:
        if read_config(disk, path) is not None:
            return format_at(disk, path, format, options)
        if disk.list(path, ("segments", "groups")):
            if format is not None:
                _check_agreement(disk, path, format)
            return format_at(disk, path, format, options)
    fmt = make(format or DEFAULT_FORMAT, **options)
    fmt.check_creation()
    if create:
        make_directory(disk, path)
    return fmt


def make_directory(disk: Disk, path: str) -> None:
    """Make a directory whose name is on the disk. Step by step from above, so that a process that is killed in between
    leaves one directory at most whose name is not; that is why the one that is there already is synced, too."""
    parent = posixpath.dirname(posixpath.normpath(path)) or "."
    if disk.kind(path) == Kind.MISSING:
        if parent not in (".", "/"):
            make_directory(disk, parent)
        disk.make_directory(path)
    disk.sync_directory(parent)


def _check_agreement(disk: Disk, path: str, format: str) -> None:
    """Raise where the files are those of another format than the caller says: two would be mixed in one directory."""
    try:
        found = detect(disk, path)
    except DetectionError:
        return
    if found.format != format:
        raise UsageError(f"the log is {found.format}, not {format}: {found.why}", path=path)
