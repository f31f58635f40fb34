"""Directories below a log whose names are on the disk before anything in them counts."""

from __future__ import annotations

import posixpath
import weakref

from duramen.disk.base import Kind
from duramen.errors import StorageError, UsageError
from duramen.log.reader import Log
from duramen.log.sidecar import DIRECTORY

# A directory that is there may have been made by a process that was killed before it synced the name: so every log
# object syncs what it uses, once.
_synced: weakref.WeakKeyDictionary[Log, set[str]] = weakref.WeakKeyDictionary()


def sidecar_of(log: Log) -> str:
    """The sidecar of a log, whether it is there or not."""
    if not log.is_directory:
        raise UsageError("a single segment file has no cursors and no groups", path=log.path, hint="open its directory")
    return posixpath.join(log.path, DIRECTORY)


def ensure_directory(log: Log, path: str) -> None:
    """Make a directory below the log's, if need be, with those above it; its name is on the disk afterwards."""
    synced = _synced.setdefault(log, set())
    disk = log.disk
    if path in synced and disk.kind(path) == Kind.DIRECTORY:
        return
    above = posixpath.dirname(path)
    if above != log.path:
        ensure_directory(log, above)
    elif disk.kind(above) != Kind.DIRECTORY:  # it must not come back as a directory without records
        raise StorageError("the log was deleted", path=above)
    disk.make_directory(path, parents=False)
    disk.sync_directory(above)
    synced.add(path)
