"""The seam: everything that the rest of the program may do with files, on one page.

Behind it stand the real disk (`posix`), a simulated one that can crash between any two operations (`simulated`), and
one that fails the n-th call (`faulty`). Every operation names its path and raises `StorageError` where the operating
system refuses. What is promised after a crash:

- bytes written are kept only up to the last ``File.sync``; of later writes any part may survive, in any order;
- a name that was created, replaced or removed is so for good only after ``sync_directory`` of its directory;
- ``replace`` is atomic: afterwards the name holds the old file or the new one, whole as far as it was synced.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

from duramen.errors import StorageError

Buffer = bytes | bytearray | memoryview


class Kind(StrEnum):
    FILE = "file"
    DIRECTORY = "directory"
    MISSING = "missing"
    OTHER = "other"


class Mapped(Protocol):
    """A file's bytes as they were when it was mapped. They stay valid while ``data`` is referenced."""

    data: memoryview

    def let_go(self, start: int, stop: int) -> None:
        """A hint that the bytes from ``start`` to ``stop`` were read and are not needed for now: they need not stay in
        this process's memory. Whoever reads them again gets them again."""

    def close(self) -> None: ...


class File(Protocol):
    """A file opened for writing."""

    path: str

    def write(self, position: int, data: Buffer) -> int:
        """Write at ``position``; answers how many bytes were taken, which may be fewer than given."""

    def sync(self) -> None:
        """Return when everything written is on the disk. After an error nothing is known about any of it."""

    def begin_sync(self, position: int, size_bytes: int) -> None:
        """Start to bring these bytes to the disk, and return at once. A hint, which never fails: `sync` alone says
        whether they arrived, and has less to wait for."""

    def truncate(self, size_bytes: int) -> None:
        """Cut the file, or extend it with zeros."""

    def reserve(self, size_bytes: int) -> None:
        """Set room aside for a file of that size, whose size does not change. A hint, which never fails: without it
        a write finds its own room, and costs more. `truncate` gives back what is not needed."""

    def size(self) -> int: ...

    def close(self) -> None: ...


class Lock(Protocol):
    """A lock that ends with the process, however it ends."""

    def release(self) -> None: ...


class Gate(Protocol):
    """A lock that is held for moments, again and again, and that remembers whose moment was the last."""

    def take(self, note: bytes) -> bool:
        """Take the lock and leave ``note`` in its file; answers whether the last one who took it left the same note, so
        that nobody else held it since. `LockedError`, which carries the holder's note, where it is held."""

    def release(self) -> None:
        """Let go of the lock, not of the note; nothing happens if it is not held."""

    def close(self) -> None: ...


class Page(Protocol):
    """A few bytes of a file that several processes share: a store is seen by all at once, and is not synced."""

    def load(self) -> bytes: ...

    def store(self, data: bytes) -> None: ...

    def wait(self, seen: bytes, timeout_s: float) -> None:
        """Sleep until the page differs from ``seen``, or until the time is over."""

    def close(self) -> None: ...


class Disk(Protocol):
    # --- looking

    def kind(self, path: str) -> Kind:
        """What lies at a path; nothing, also where what should be a directory of it is a file."""

    def list(self, path: str, within: Sequence[str] = ()) -> list[tuple[str, int]]:
        """The regular files of a directory, and of those of its subdirectories that ``within`` names: relative
        path with ``/``, size in bytes, in the order of the names."""

    def directories(self, path: str) -> Sequence[str]:
        """The names of the directories in a directory, in order; what a symbolic link points to does not count."""

    def size(self, path: str) -> int:
        """The size of a file in bytes."""

    def space(self, path: str) -> tuple[int, int]:
        """How many bytes the file system of a path has, and how many of them are free."""

    def map(self, path: str) -> Mapped:
        """The bytes of a file, mapped into memory where it has any."""

    # --- changing

    def make_directory(self, path: str, *, parents: bool = True) -> None:
        """Make a directory, its parents too; nothing happens if it is there. Without ``parents``, an error where the
        one above it is missing: for what lies in something that another process may remove meanwhile."""

    def create(self, path: str) -> File:
        """A new, empty file; an error if the name is taken."""

    def open(self, path: str) -> File:
        """An existing file, for writing."""

    def replace(self, source: str, target: str) -> None:
        """Give ``source`` the name ``target``, over whatever has that name."""

    def remove(self, path: str) -> None:
        """Take a file's name away."""

    def remove_directory(self, path: str) -> None:
        """Take an empty directory's name away."""

    def sync_directory(self, path: str) -> None:
        """Return when the names of a directory are on the disk."""

    # --- sharing

    def lock(self, path: str, note: bytes) -> Lock:
        """Lock the file at ``path`` (made if need be) and write ``note`` into it. `LockedError`, which carries the
        holder's note, where another process or another `Lock` of this one holds it."""

    def gate(self, path: str) -> Gate:
        """A lock on the file at ``path`` (made if need be) that keeps its file open between two moments."""

    def is_locked(self, path: str) -> bool:
        """Whether somebody holds the lock of the file at ``path`` at this moment."""

    def page(self, path: str, size_bytes: int, *, writable: bool) -> Page:
        """Share a page of ``size_bytes`` in the file at ``path``; a writer makes it, zero-filled, if need be."""


def map_if_there(disk: Disk, path: str) -> memoryview | None:
    """The bytes of a file that others may remove at any moment; None where it is gone."""
    if disk.kind(path) != Kind.FILE:
        return None
    try:
        return disk.map(path).data
    except StorageError as error:
        if error.errno == errno.ENOENT:
            return None
        raise


def write_all(file: File, position: int, data: Buffer) -> None:
    """Write every byte, however many calls it takes."""
    view = memoryview(data).cast("B")
    while view:
        taken = file.write(position, view)
        if taken <= 0:
            raise StorageError("the disk takes no more bytes", path=file.path, position=position)
        position += taken
        view = view[taken:]
