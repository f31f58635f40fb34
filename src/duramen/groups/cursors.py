"""Cursors: a position in a log, kept under a name.

::

    .duramen/cursors/
      lock             held while a cursor is replaced
      {name}.cursor    one line: name, offset, time, checksum

A cursor is one number, and what it means is its owner's choice. Where Duramen has to choose (lag, retention), it is the
next offset to read; who stores the last one that was read has a lag of one too many, and loses nothing.

Storing needs no writer's lock: a cursor belongs to a reader, also in another process. The file is replaced as a whole
and synced, so a crash leaves the old position or the new one. The last one to store wins, also with a lower offset: to
go back is what a cursor is for. A damaged file raises; it is never taken for a position, nor for none.
"""

from __future__ import annotations

import posixpath
import time
from operator import index
from typing import NamedTuple

from duramen.disk import Disk
from duramen.disk.base import Kind
from duramen.errors import CorruptionError, StorageError, UsageError
from duramen.groups.lines import decode_line, encode_line
from duramen.groups.locking import held
from duramen.log.names import check_name, decode_name, encode_name
from duramen.log.reader import Log
from duramen.log.sidecar import DIRECTORY, replace_file
from duramen.model import MAX_OFFSET

SUBDIRECTORY = "cursors"
SUFFIX = ".cursor"


class CursorState(NamedTuple):
    """A cursor as it was found. ``problem`` says why there is no offset."""

    name: str
    offset: int | None
    stored_ms: int | None
    path: str
    problem: str | None = None


class Cursor:
    """A named position. Made by ``log.cursor(name)``; nothing is written before the first `store`.

    >>> import tempfile, duramen
    >>> with duramen.open(tempfile.mkdtemp() + "/events", "a") as log:
    ...     cursor = log.cursor("report")
    ...     print(cursor.load())
    ...     cursor.store(log.append(b"hello") + 1)
    ...     print(cursor.load())
    None
    1
    """

    def __init__(self, log: Log, name: str) -> None:
        self.name = check_name("cursor", name)
        self._log = log
        self._disk = log._disk
        self._directory = _directory(log)
        self.path = posixpath.join(self._directory, encode_name(name) + SUFFIX)

    def load(self) -> int | None:
        """The offset that was stored last; None where none was."""
        state = _read(self._disk, self.path, self.name)
        return None if state is None else state.offset

    def store(self, offset: int) -> None:
        """Keep an offset; it is on the disk when this returns."""
        offset = index(offset)
        if not 0 <= offset <= MAX_OFFSET:
            raise UsageError(f"a cursor holds an offset from 0 to {MAX_OFFSET}, not {offset!r}", path=self.path)
        line = encode_line({"name": self.name, "offset": offset, "stored_ms": time.time_ns() // 1_000_000})
        self._make_directory()
        with held(self._disk, self._lock_path):
            replace_file(self._disk, self.path, line)

    def delete(self) -> bool:
        """Forget the cursor; False where there was none."""
        if self._disk.kind(self.path) == Kind.MISSING:
            return False
        with held(self._disk, self._lock_path):
            if self._disk.kind(self.path) == Kind.MISSING:
                return False
            self._disk.remove(self.path)
            self._disk.sync_directory(self._directory)
        return True

    @property
    def _lock_path(self) -> str:
        return posixpath.join(self._directory, "lock")

    def _make_directory(self) -> None:
        make_sidecar_directory(self._disk, self._log.path, SUBDIRECTORY)

    def __repr__(self) -> str:
        return f"<duramen.Cursor {self.name!r} of {self._log.path!r}>"


def cursors(log: Log) -> list[CursorState]:
    """Every cursor of a log, in the order of the names; one that cannot be read with what is wrong with it."""
    directory = _directory(log)
    if log._disk.kind(directory) != Kind.DIRECTORY:
        return []
    found = []
    for file, _ in log._disk.list(directory):
        name = decode_name(file.removesuffix(SUFFIX)) if file.endswith(SUFFIX) else None
        if name is None:
            continue
        path = posixpath.join(directory, file)
        try:
            state = _read(log._disk, path, name)
        except CorruptionError as error:
            state = CursorState(name, None, None, path, error.message)
        if state is not None:
            found.append(state)
    return sorted(found)


def _read(disk: Disk, path: str, name: str) -> CursorState | None:
    if disk.kind(path) == Kind.MISSING:
        return None
    hint = "delete it, then store the position again"
    try:
        tree = decode_line(disk.map(path).data)
        state = CursorState(str(tree["name"]), int(tree["offset"]), int(tree["stored_ms"]), path)
    except StorageError:
        if disk.kind(path) == Kind.MISSING:  # deleted a moment ago
            return None
        raise
    except CorruptionError as error:
        error.path, error.hint = path, hint
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptionError(f"the cursor cannot be read: {error!r}", path=path, hint=hint) from error
    if state.name != name:
        raise CorruptionError(f"the file holds the cursor {state.name!r}", path=path, hint=hint)
    return state


def _directory(log: Log) -> str:
    return posixpath.join(sidecar_of(log), SUBDIRECTORY)


def sidecar_of(log: Log) -> str:
    """The sidecar of a log, whether it is there or not."""
    if not log._is_directory:
        raise UsageError("a single segment file has no cursors and no groups", path=log.path, hint="open its directory")
    return posixpath.join(log.path, DIRECTORY)


def make_sidecar_directory(disk: Disk, root: str, name: str) -> str:
    """Make a directory of the sidecar, with the sidecar if need be; both names are on the disk when this returns."""
    sidecar = posixpath.join(root, DIRECTORY)
    path = posixpath.join(sidecar, name)
    if disk.kind(path) != Kind.DIRECTORY:
        disk.make_directory(path)
        disk.sync_directory(root)
        disk.sync_directory(sidecar)
    return path
