"""Cursors: positions in a log, stored by name.

::

    .duramen/cursors/
      lock             held while a cursor is replaced
      {name}.cursor    one line: name, offset, time, checksum

A cursor is one number, and its owner decides what it means. Lag and retention treat it as the next offset to read. An
owner that stores the last offset read instead shows a lag that is too high by one, and loses nothing.

Osiris logs store such positions themselves. A log opened for append stores a cursor as RabbitMQ does, in a tracking
chunk, which uses one offset and which RabbitMQ's consumers find. A log opened for reading cannot write chunks, so its
cursors are files, too. Such a file records the position that the log held at that time; if the log now holds another
one, the log is newer and wins. A tracking chunk cannot be removed, so `delete` writes a file that marks the cursor as
deleted.

An Osiris log that is open for append can also store a time under the name of a cursor (tracking type 2). It has no file
and is independent of the offset.

Storing does not need the writer's lock, because cursors belong to readers, in any process. The file is replaced
atomically and synced: a crash leaves the old position or the new one. The last store wins, also with a lower offset. A
damaged file raises an error; it never counts as a position or as a missing cursor.
"""

from __future__ import annotations

import posixpath
import time
from datetime import datetime
from typing import NamedTuple

from duramen.arguments import check_int
from duramen.consumers.files import ensure_directory, sidecar_of
from duramen.consumers.shared_lock import hold_lock
from duramen.disk import Disk, Kind
from duramen.errors import CorruptionError, StorageError, UnsupportedFieldError, UsageError
from duramen.formats import ConsumerPositions
from duramen.log import Log, WritableLog, store_positions, stored_positions
from duramen.names import check_name, decode_name, encode_name
from duramen.record import checked_us, from_us
from duramen.sidecar import CURSORS_NAME, decode_line, encode_line, replace_file

SUBDIRECTORY = CURSORS_NAME
SUFFIX = ".cursor"


class CursorState(NamedTuple):
    """One cursor of a log. ``problem`` explains a missing offset."""

    name: str
    offset: int | None
    stored_ms: int | None
    """None if the log itself stores the position."""
    path: str
    """The cursor's file, or the log if the log itself stores the position."""
    problem: str | None = None
    timestamp_ms: int | None = None
    """The time that the log itself stores under this name; then the offset may be None without a problem."""


class _Line(NamedTuple):
    """Content of a cursor's file."""

    offset: int | None
    """None: deleted."""
    stored_ms: int
    tracked: int | None
    """The position in the log itself at that time."""


class Cursor:
    """A named position, created by ``log.cursor(name)``. The first `store` writes the first file.

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
        """Return the offset stored last, or None."""
        line = _read(self._disk, self.path, self.name)
        tracked = self._tracked()
        return line.offset if line is not None and _is_newer(line, tracked) else tracked

    def store(self, offset: int) -> None:
        """Store an offset durably."""
        offset = check_int("the offset of a cursor", offset)
        if isinstance(self._log, WritableLog) and self._log.codec.capabilities.tracking:
            store_positions(self._log, ConsumerPositions({self.name.encode(): offset}))
            self._remove()
        else:
            self._write(offset)

    def load_timestamp(self) -> datetime | None:
        """Return the time stored last in the log itself, or None."""
        ms = stored_positions(self._log).timestamps_ms.get(self.name.encode())
        return None if ms is None else from_us(ms * 1000)

    def store_timestamp(self, when: datetime | int | str) -> None:
        """Store a time in the log itself, durably, to the millisecond: a datetime, ISO 8601 text or epoch
        milliseconds. Only for an Osiris log that is open for append. As in RabbitMQ, a new segment forgets a time
        before the log's first record."""
        if not self._log.codec.capabilities.tracking:
            raise UnsupportedFieldError(
                f"{self._log.codec.name} cannot store the time of a cursor", path=self._log.path,
                hint="osiris can; here, store an offset: log.offset_at(time)",
            )  # fmt: skip
        if not isinstance(self._log, WritableLog):
            raise UsageError(
                "a time is stored in the log itself, which is open for reading", path=self._log.path,
                hint='open it with mode "a"',
            )  # fmt: skip
        store_positions(self._log, ConsumerPositions(timestamps_ms={self.name.encode(): checked_us(when) // 1000}))

    def delete(self) -> bool:
        """Delete the cursor; a stored time stays. Return False if it does not exist."""
        if self._tracked() is None:
            return self._remove()
        exists = self.load() is not None
        if exists:
            self._write(None)
        return exists

    def _write(self, offset: int | None) -> None:
        tree = {"name": self.name, "offset": offset, "stored_ms": time.time_ns() // 1_000_000}
        tracked = self._tracked()
        line = encode_line(tree if tracked is None else {**tree, "tracked": tracked})
        disk = self._log.state_disk
        self._log.check_place()
        ensure_directory(self._log, self._directory)
        with hold_lock(disk, self._lock_path):
            replace_file(disk, self.path, line)
        self._log.check_place()

    def _remove(self) -> bool:
        if self._disk.kind(self.path) == Kind.MISSING:
            return False
        disk = self._log.state_disk
        self._log.check_place()
        with hold_lock(disk, self._lock_path):
            if disk.kind(self.path) == Kind.MISSING:
                return False
            disk.remove(self.path)
            disk.sync_directory(self._directory)
        return True

    def _tracked(self) -> int | None:
        return stored_positions(self._log).offsets.get(self.name.encode())

    @property
    def _lock_path(self) -> str:
        return posixpath.join(self._directory, "lock")

    def __repr__(self) -> str:
        return f"<duramen.Cursor {self.name!r} of {self._log.path!r}>"


def cursors(log: Log) -> list[CursorState]:
    """Every cursor of a log, sorted by name. An unreadable cursor has a ``problem``."""
    directory = _directory(log)
    positions = stored_positions(log)
    tracked = {_text(name): offset for name, offset in positions.offsets.items()}
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
    for raw, timestamp_ms in positions.timestamps_ms.items():
        one = found.get(_text(raw), CursorState(_text(raw), None, None, log.path))
        found[one.name] = one._replace(timestamp_ms=timestamp_ms)
    return [found[name] for name in sorted(found)]


def _is_newer(line: _Line, tracked: int | None) -> bool:
    """Whether a file is newer than the log's own position. The log forgets positions before its first record."""
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
