"""Cursors: a position in a log, kept under a name.

::

    .duramen/cursors/
      lock             held while a cursor is replaced
      {name}.cursor    one line: name, offset, time, checksum

A cursor is one number, and what it means is its owner's choice. Where Duramen has to choose (lag, retention), it is the
next offset to read; who stores the last one that was read has a lag of one too many, and loses nothing.

Osiris keeps such positions in the log itself. There a log that is open for append stores a cursor as RabbitMQ does:
in a tracking chunk, which takes one offset, and which RabbitMQ's consumers find. A log open for reading cannot do
that, perhaps because RabbitMQ or another process writes it: its cursors are files, too. Such a file remembers what the
log said when it was stored; once the log says something else, the log is the newer one. Tracking cannot be taken out of
a log: `delete` leaves a file that says that it is gone.

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
from duramen.groups.directories import ensure_directory, sidecar_of
from duramen.groups.lines import decode_line, encode_line
from duramen.groups.locking import held
from duramen.log.names import check_name, decode_name, encode_name
from duramen.log.reader import Log
from duramen.log.sidecar import replace_file
from duramen.log.tracking import store_offsets, stored_offsets
from duramen.log.writer import WritableLog
from duramen.model import MAX_OFFSET

SUBDIRECTORY = "cursors"
SUFFIX = ".cursor"


class CursorState(NamedTuple):
    """A cursor as it was found. ``problem`` says why there is no offset."""

    name: str
    offset: int | None
    stored_ms: int | None
    """None where the log itself holds it."""
    path: str
    """The file, or the log where that holds it."""
    problem: str | None = None


class _Line(NamedTuple):
    """What a cursor's file says."""

    offset: int | None
    """None: deleted."""
    stored_ms: int
    tracked: int | None
    """What the log itself said at that time."""


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
        self._disk = log.disk
        self._directory = _directory(log)
        self.path = posixpath.join(self._directory, encode_name(name) + SUFFIX)

    def load(self) -> int | None:
        """The offset that was stored last; None where none was."""
        line = _read(self._disk, self.path, self.name)
        tracked = self._tracked()
        return line.offset if line is not None and _is_newer(line, tracked) else tracked

    def store(self, offset: int) -> None:
        """Keep an offset; it is on the disk when this returns."""
        offset = index(offset)
        if not 0 <= offset <= MAX_OFFSET:
            raise UsageError(f"a cursor holds an offset from 0 to {MAX_OFFSET}, not {offset!r}", path=self.path)
        if isinstance(self._log, WritableLog) and self._log.codec.capabilities.tracking:
            store_offsets(self._log, {self.name.encode(): offset})
            self._remove()
        else:
            self._write(offset)

    def delete(self) -> bool:
        """Forget the cursor; False where there was none."""
        if self._tracked() is None:
            return self._remove()
        there = self.load() is not None
        if there:
            self._write(None)
        return there

    def _write(self, offset: int | None) -> None:
        tree = {"name": self.name, "offset": offset, "stored_ms": time.time_ns() // 1_000_000}
        tracked = self._tracked()
        line = encode_line(tree if tracked is None else {**tree, "tracked": tracked})
        ensure_directory(self._log, self._directory)
        with held(self._disk, self._lock_path):
            replace_file(self._disk, self.path, line)

    def _remove(self) -> bool:
        if self._disk.kind(self.path) == Kind.MISSING:
            return False
        with held(self._disk, self._lock_path):
            if self._disk.kind(self.path) == Kind.MISSING:
                return False
            self._disk.remove(self.path)
            self._disk.sync_directory(self._directory)
        return True

    def _tracked(self) -> int | None:
        return stored_offsets(self._log).get(self.name.encode())

    @property
    def _lock_path(self) -> str:
        return posixpath.join(self._directory, "lock")

    def __repr__(self) -> str:
        return f"<duramen.Cursor {self.name!r} of {self._log.path!r}>"


def cursors(log: Log) -> list[CursorState]:
    """Every cursor of a log, in the order of the names; one that cannot be read with what is wrong with it."""
    directory = _directory(log)
    tracked = {_text(name): offset for name, offset in stored_offsets(log).items()}
    found = {name: CursorState(name, offset, None, log.path) for name, offset in tracked.items()}
    listed = log.disk.list(directory) if log.disk.kind(directory) == Kind.DIRECTORY else []
    for file, _ in listed:
        name = decode_name(file.removesuffix(SUFFIX)) if file.endswith(SUFFIX) else None
        if name is None:
            continue
        path = posixpath.join(directory, file)
        try:
            line = _read(log.disk, path, name)
        except CorruptionError as error:
            found[name] = CursorState(name, None, None, path, error.message)
            continue
        if line is None or not _is_newer(line, tracked.get(name)):
            continue
        found.pop(name, None)
        if line.offset is not None:
            found[name] = CursorState(name, line.offset, line.stored_ms, path)
    return [found[name] for name in sorted(found)]


def _is_newer(line: _Line, tracked: int | None) -> bool:
    """Whether a file says more than the log, which may also have forgotten: positions before its first record."""
    return tracked is None or line.tracked == tracked


def _text(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")


def _read(disk: Disk, path: str, name: str) -> _Line | None:
    if disk.kind(path) == Kind.MISSING:
        return None
    hint = "delete it, then store the position again"
    try:
        tree = decode_line(disk.map(path).data)
        offset, tracked = tree["offset"], tree.get("tracked")
        line = _Line(
            None if offset is None else int(offset), int(tree["stored_ms"]), None if tracked is None else int(tracked)
        )
    except StorageError:
        if disk.kind(path) == Kind.MISSING:  # deleted a moment ago
            return None
        raise
    except CorruptionError as error:
        error.path, error.hint = path, hint
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptionError(f"the cursor cannot be read: {error!r}", path=path, hint=hint) from error
    if tree["name"] != name:
        raise CorruptionError(f"the file holds the cursor {tree['name']!r}", path=path, hint=hint)
    return line


def _directory(log: Log) -> str:
    return posixpath.join(sidecar_of(log), SUBDIRECTORY)
