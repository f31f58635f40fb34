"""Everything that the rest of the program may do with files, on one page.

Implementations: the real disk (`posix`), object stores (`object_store`, read-only), and in `duramen.testing` a disk
that can crash between any two operations and one that fails the n-th call. Every operation takes a path and raises
`StorageError` when the operating system refuses. Promises after a crash:

- Bytes are safe up to the last ``File.sync``; of later writes any part may survive, in any order.
- A created, replaced or removed name is safe only after ``sync_directory`` of its directory.
- ``replace`` is atomic: the name holds the old file or the new one, complete as far as it was synced.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from typing import Any, Protocol, Self

import numpy as np

from duramen.disk.lost_pages import LostPages
from duramen.errors import StorageError
from duramen.kernel import AppendLimits, AppendNotes, AppendOutcome, AppendSeen, AppendState, Columns, RecordShape

Buffer = bytes | bytearray | memoryview
PIECE_BYTES = 8 << 20
_AROUND_BYTES = 2 << 20
_DONT_NEED: int | None = getattr(mmap, "MADV_DONTNEED", None)


class Kind(StrEnum):
    """What lies at a path."""

    FILE = "file"
    DIRECTORY = "directory"
    MISSING = "missing"
    OTHER = "other"


class Mapped(Protocol):
    """A file's bytes as they were when it was mapped. They stay valid while ``data`` is referenced."""

    data: memoryview

    def release(self, start: int, stop: int) -> None:
        """Hint that the bytes from ``start`` to ``stop`` need not stay in this process's memory. They can still be
        read."""

    def close(self) -> None: ...


class File(Protocol):
    """A file opened for writing."""

    path: str

    def write(self, position: int, data: Buffer) -> int:
        """Write at ``position``; returns how many bytes were written, possibly fewer than given."""

    def sync(self) -> None:
        """Return once everything written is on the disk. After an error, any of it may be missing."""

    def begin_sync(self, position: int, size_bytes: int) -> None:
        """Start writing these bytes to the disk and return at once. A hint that never fails: only `sync` tells whether
        they arrived, and it then has less to wait for."""

    def truncate(self, size_bytes: int) -> None:
        """Cut the file, or extend it with zeros."""

    def reserve(self, size_bytes: int) -> None:
        """Allocate space for a file of that size without changing its size. A hint that never fails: it makes later
        writes cheaper. `truncate` frees unused space."""

    def size(self) -> int: ...

    def is_linked(self) -> bool:
        """Whether the file has a name. What is written to a file that was deleted is lost. Cheap enough for every
        append."""

    def is_in_place(self) -> bool:
        """Whether its path still leads to it. Cheap enough for every sync."""

    def close(self) -> None: ...


class Lock(Protocol):
    """A lock that ends with the process, however it ends."""

    is_exclusive: bool
    """Whether it excludes other writers: some file systems cannot lock a directory."""

    def is_in_place(self) -> bool:
        """Whether the path still leads to the locked file. Cheap enough for every commit; if false, `check` finds out
        why."""

    def check(self) -> None:
        """Raise `FencedError` if the locked file was deleted or replaced, or if another directory has the name of the
        one that `Disk.rooted` opened. A directory that was only moved remains usable."""

    def release(self) -> None: ...


class Gate(Protocol):
    """A lock that is held for moments, again and again, and that remembers its last holder."""

    def take(self, note: bytes) -> bool:
        """Take the lock and store ``note`` in its file. Returns whether the previous holder stored the same note, so
        that no other process held the lock since. Raises `LockedError` with the holder's note if it is held."""

    def release(self) -> None:
        """Release the lock, if held; the note stays."""

    def close(self) -> None: ...


class Page(Protocol):
    """A few bytes of a file that several processes share: all of them see a store at once. Not synced."""

    def load(self) -> bytes: ...

    def store(self, data: bytes) -> None:
        """Replace the first bytes of the page: all of it, or fewer."""

    def wait(self, seen: bytes, timeout_s: float) -> None:
        """Sleep until the page differs from ``seen``, or until the timeout."""

    def close(self) -> None: ...


class RecordWriter(Protocol):
    """Appends single records to an open segment, each with the watermark that acknowledges it, as long as none passes
    the limits that it was armed with. One thread at a time arms, appends and disarms; the other methods are for any.
    Before it is armed, it is disarmed."""

    is_shared: bool
    """Whether any number of threads may call `append_durably` at once: they share syncs."""

    can_publish: bool
    """Whether `publish` does anything."""

    def arm(self, state: AppendState, limits: AppendLimits, slot: bytes, mark: Any) -> None:
        """Allow appends after ``state``. ``slot`` is an encoded watermark, of which only the number, the position, the
        next offset, the digest and the checksum will change; ``mark`` is the same for `seen`."""

    def append(self, value: bytes, headers: bytes | None, us: int, now_us: int, began_s: float, is_timed: bool) -> int:
        """Append a record and return its offset. ``us`` is its time, ``now_us`` the present time; both may be -1.

        `NOT_DONE` if the record was not appended: it passes a limit, or writing it failed. ``-2 - offset`` if storing
        the watermark failed: the record is written, and the caller must store the watermark."""

    def append_durably(self, value: bytes, headers: bytes | None, us: int, now_us: int, began_s: float) -> int:
        """`append`, and sync before the watermark is stored. ``-2 - offset`` also if a file is not in its place after
        that."""

    @property
    def is_armed(self) -> bool: ...

    @property
    def is_idle(self) -> bool:
        """Whether it is not armed, and nothing is left to take over."""

    def publish(self, content: bytes, syncs: int) -> int:
        """Publish what an ordinary append wrote, while this is disarmed: sync the segment if ``syncs``, and what the
        page held before if that is 2; look whether all is in its place; store the page. Returns 0, or the error number
        of a failed sync, subtracted from `NOT_DONE` if it was the page's. `NOT_DONE`: the page is not stored; the
        ordinary calls tell why."""

    def seen(self) -> AppendSeen | None:
        """The watermark that it stored last; None if it stored none since it was armed."""

    def stop(self) -> None:
        """Refuse appends, and return when none is in progress."""

    def disarm(self) -> AppendOutcome:
        """End the appends, and return what was written."""

    def retire(self) -> None:
        """End the appends for good, and release the files. May be called at any time."""


class Disk(Protocol):
    """A file system. See the top of this module for its promises after a crash."""

    # --- one directory; as they are here, for a disk without symbolic links

    def within(self, root: str) -> Self:
        """The same disk with a rule for everything below the directory ``root``: it follows no symbolic link there and
        opens only regular files, so that nothing leads out of it. A link, a FIFO, a device or a socket is `Kind.OTHER`,
        and opening it raises `StorageError`. ``root`` itself may be a link; it need not exist yet."""
        return self

    def rooted(self, root: str) -> Self:
        """Like `within`, with the directory opened now: if it is moved, operations follow it, and nothing is created in
        another directory that takes its name."""
        return self

    def check_root(self) -> None:
        """Raise `FencedError` if the directory that `rooted` opened was deleted, or another one has its name."""
        return

    def unroot(self) -> None:
        """Close the directory that `rooted` opened; later operations use its path."""
        return

    def surviving(self, lost: LostPages) -> Self:
        """The same disk for a check: where a mapped file is shortened, or cannot be read, its bytes read as zeros, and
        ``lost`` says so. Without this, the operating system ends the process."""
        return self

    # --- looking

    def kind(self, path: str) -> Kind:
        """What lies at a path; `Kind.MISSING` also where a component of the path is a file."""

    def list(self, path: str, within: Sequence[str] = ()) -> list[tuple[str, int]]:
        """The regular files of a directory and of the subdirectories named in ``within``: relative path and size in
        bytes, sorted by name. `specials` lists the rest."""

    def directories(self, path: str) -> Sequence[str]:
        """The subdirectories of a directory, sorted by name; symbolic links to directories do not count."""

    def specials(self, path: str) -> Sequence[tuple[str, str]]:
        """What is neither a regular file nor a directory: its name and a description such as ``"a symbolic link"``,
        sorted by name."""

    def size(self, path: str) -> int:
        """The size of a file in bytes."""

    def links(self, path: str) -> int:
        """How many names (hard links) the file has: writing in place changes it under all of them."""

    def stamp(self, path: str, *, renew: bool = False) -> tuple[int, int, int]:
        """The size, modification time and inode number of a file: a different stamp means that it was changed or
        replaced. ``renew`` first sets the time, so that even a change within the same tick of the file system's clock
        is visible."""

    def names_stamp(self, path: str) -> tuple[int, ...] | None:
        """Evidence of the names in a directory: if it is the same before a listing and later, no name was created,
        removed or replaced in between. Empty if ``path`` is not a directory: the directory above tells. None if
        nothing proves it: the file system is not known to keep such evidence, or the last change is so recent that
        another one could follow in the same tick of its clock."""
        return None

    def space(self, path: str) -> tuple[int, int]:
        """The size of the file system of a path and its free space, in bytes."""

    def map(self, path: str) -> Mapped:
        """The bytes of a file, mapped into memory."""

    def read(self, path: str, size_bytes: int = 2**63 - 1, position: int = 0) -> memoryview:
        """The bytes of a file from ``position``, copied: they stay valid if another program shortens it."""
        return self.map(path).data[position:][:size_bytes]

    # --- changing

    def make_directory(self, path: str, *, parents: bool = True) -> None:
        """Make a directory and its parents, if missing. Without ``parents``, raises if its parent is missing: for a
        directory that another process may remove at the same time."""

    def create(self, path: str) -> File:
        """Create an empty file; raises if the name exists."""

    def open(self, path: str) -> File:
        """Open an existing file for writing."""

    def replace(self, source: str, target: str) -> None:
        """Rename ``source`` to ``target``, replacing a file of that name."""

    def rename_new(self, source: str, target: str) -> None:
        """Rename the file ``source`` to ``target``; raises (EEXIST) if that name exists. After a crash the file may
        have both names, never none."""

    def remove(self, path: str) -> None:
        """Remove a file."""

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""

    def sync_directory(self, path: str) -> None:
        """Return once the names of a directory are on the disk."""

    # --- sharing

    def lock(self, path: str, note: bytes) -> Lock:
        """Lock the file at ``path``, created if missing, and write ``note`` into it. Raises `LockedError` with the
        holder's note if another process, or another `Lock` of this one, holds it."""

    def lock_directory(self, path: str) -> Lock:
        """Lock the directory at ``path`` itself, which deleting its files does not undo. Raises `LockedError`, without
        a note, if it is locked. If the file system cannot lock directories, the lock is not exclusive."""

    def gate(self, path: str) -> Gate:
        """A gate on the file at ``path``, created if missing; the file stays open while the gate is not held."""

    def is_locked(self, path: str) -> bool:
        """Whether a process holds a lock of the file at ``path`` at this moment: that of `lock`, or on the real disk
        also one of another program (flock; fcntl, as in Java)."""

    def page(self, path: str, size_bytes: int, *, writable: bool) -> Page:
        """Share a page of ``size_bytes`` in the file at ``path``; a writer creates it, zero-filled, if missing."""

    def record_writer(
        self,
        file: File,
        index: File | None,
        page: Page,
        lock: Lock,
        shape: RecordShape,
        rows: Columns,
        notes: AppendNotes,
        check: Callable[[], None],
    ) -> RecordWriter | None:
        """A record writer for a segment, its watermark page and its lock; None if the disk has none, and every append
        takes the ordinary path. ``index`` is that of chunks, if each gets its entry at once. ``rows`` take what an
        encoder fills in. ``check`` raises an error if the page, the lock or the log's directory was replaced: it comes
        after every sync, where the disk does not see that itself."""
        return None


@contextlib.contextmanager
def rooted(disk: Disk, root: str) -> Iterator[Disk]:
    """`Disk.rooted` for the duration of the context."""
    inside = disk.rooted(root)
    try:
        yield inside
    finally:
        inside.unroot()


def map_if_exists(disk: Disk, path: str) -> memoryview | None:
    """The bytes of a file that other processes may remove at any moment; None if it is missing."""
    if disk.kind(path) != Kind.FILE:
        return None
    try:
        return disk.map(path).data
    except StorageError as error:
        if error.errno == errno.ENOENT:
            return None
        raise


def pieces(data: Buffer, piece_bytes: int = PIECE_BYTES) -> Iterator[memoryview]:
    """The bytes of ``data`` piece by piece. Of a mapped file, the pages of a piece leave this process's memory when the
    next piece is requested, so that a large file needs little memory."""
    view = memoryview(data).cast("B")
    for start in range(0, len(view), piece_bytes):
        piece = view[start : start + piece_bytes]
        yield piece
        if len(view) > PIECE_BYTES:
            _drop_pages(piece)


def _drop_pages(piece: memoryview) -> None:
    mapping = piece.obj
    if not isinstance(mapping, mmap.mmap) or not piece.readonly or _DONT_NEED is None:
        return
    whole = memoryview(mapping)
    at = np.frombuffer(piece, np.uint8).ctypes.data - np.frombuffer(whole, np.uint8).ctypes.data
    # One access may load 2 MiB around it, and with them pages that were dropped before.
    first = max(at - _AROUND_BYTES, 0) // mmap.PAGESIZE * mmap.PAGESIZE
    end = (at + len(piece)) // mmap.PAGESIZE * mmap.PAGESIZE
    if first < end:
        with contextlib.suppress(OSError):  # it is a hint
            mapping.madvise(_DONT_NEED, first, end - first)


def write_all(file: File, position: int, data: Buffer) -> None:
    """Write every byte, however many calls it takes."""
    whole = memoryview(data).cast("B")
    for view in pieces(whole) if len(whole) > PIECE_BYTES else (whole,):
        while view:
            taken = file.write(position, view)
            if taken <= 0:
                raise StorageError("the disk accepts no more bytes", path=file.path, position=position)
            position += taken
            view = view[taken:]
