"""The lock that makes a process the one writer of a log.

It consists of two locks. One is on the log's directory, and survives when the sidecar is deleted or replaced. The other
is on the file ``.duramen/lock``, which names the process; readers and earlier versions look at this one. Both end with
the process, so a crashed writer never blocks the next one.

A Kafka broker locks ``.lock`` in the directory of all its partitions. While it does, none of them gets
a writer.
"""

from __future__ import annotations

import gc
import os
import posixpath

from duramen.disk import Disk, Kind, Lock, is_address
from duramen.errors import LockedError
from duramen.sidecar.layout import LOCK_NAME, refuse_no_directory, sidecar_path

_NOTE_BYTES = 4096
_BROKER_LOCK, _BROKER_PROPERTIES = ".lock", "meta.properties"
"""Files of a Kafka broker, in the directory above a partition."""


def has_writer(disk: Disk, root: str) -> bool:
    """Whether a process has the log at ``root`` open for writing."""
    return disk.is_locked(sidecar_path(root, LOCK_NAME))


class WriterLock:
    """The writer's lock of the log at ``root``."""

    def __init__(self, disk: Disk, root: str) -> None:
        self._disk, self._root = disk, root
        self._path = sidecar_path(root, LOCK_NAME)
        self._lock: Lock | None = None
        self._directory_lock: Lock | None = None

    def acquire(self, *, make: bool = True) -> None:
        """Become the writer. Creates the log's directory and its sidecar if ``make``; otherwise raises `StorageError`
        if the sidecar is missing. Raises `LockedError` if another process is the writer, or a log that this process
        still uses; a log that it dropped without closing it is collected first."""
        refuse_no_directory(self._disk, self._root)
        self._refuse_broker()
        if make and self._disk.kind(self._root) == Kind.MISSING:
            self._disk.make_directory(self._root)
        try:
            self._take(make=make)
        except LockedError as error:
            if not error.is_own:
                raise self._held_elsewhere(error.note) from None
            gc.collect()
            self._take_from_own(make=make)

    def _refuse_broker(self) -> None:
        if is_address(self._root):  # nothing is written there
            return
        above = posixpath.normpath(posixpath.join(self._root, ".."))
        is_broker = self._disk.kind(posixpath.join(above, _BROKER_PROPERTIES)) == Kind.FILE
        if is_broker and self._disk.is_locked(posixpath.join(above, _BROKER_LOCK)):
            raise LockedError(
                "a Kafka broker is running on this partition", is_foreign=True, path=self._root,
                hint="stop the broker, or copy the partition and open the copy; reading beside it is fine",
            )  # fmt: skip

    def _take_from_own(self, *, make: bool) -> None:
        try:
            self._take(make=make)
        except LockedError:
            raise LockedError(
                "the log is already open for writing in this process", is_own=True, path=self._root,
                hint="use that log: threads may share it; or close it first",
            ) from None  # fmt: skip

    def _take(self, *, make: bool) -> None:
        try:
            self._directory_lock = self._disk.lock_directory(self._root)
            if make:
                self._make()
            self._lock = self._disk.lock(self._path, f"pid {os.getpid()}\n".encode())
        except BaseException:
            self.release()
            raise

    def _make(self) -> None:
        sidecar = sidecar_path(self._root)
        fresh = self._disk.kind(sidecar) == Kind.MISSING
        self._disk.make_directory(sidecar)
        if fresh:
            self._disk.sync_directory(self._root)

    def _held_elsewhere(self, note: bytes) -> LockedError:
        hint = "close it there, or open it here for reading"
        if not note and self._disk.kind(self._path) == Kind.FILE and self._disk.is_locked(self._path):
            note = bytes(self._disk.read(self._path, _NOTE_BYTES))  # not mapped: the holder empties it at the end
        if not note:
            hint += "; where no such process is known, it lost its `.duramen/`: `fuser` on the directory names it"
        holder = note.decode("ascii", "replace").strip() or "another process"
        return LockedError(f"the log is open for writing elsewhere ({holder})", note=note, path=self._root, hint=hint)

    @property
    def is_exclusive(self) -> bool:
        """Whether no other writer can start even if the sidecar is deleted: the file system locks directories."""
        return self._directory_lock is not None and self._directory_lock.is_exclusive

    def is_in_place(self) -> bool:
        """Whether nothing of this was deleted or replaced, as far as one look tells: cheap enough for every commit."""
        return self._lock is None or self._lock.is_in_place()

    @property
    def file_lock(self) -> Lock:
        """The lock on ``.duramen/lock``, which is held."""
        assert self._lock is not None
        return self._lock

    def check(self, *, closely: bool = False) -> None:
        """Raise `FencedError` if the log's directory or sidecar was deleted or replaced since it was
        locked. ``closely`` also notices a directory whose files are hard links to the same ones."""
        if self._lock is not None and (closely or not self.is_in_place()):
            self._lock.check()

    def release(self) -> None:
        try:
            if self._lock is not None:
                self._lock.release()
        finally:
            self._lock = None
            if self._directory_lock is not None:
                self._directory_lock.release()
                self._directory_lock = None
