"""The sidecar ``.duramen/``: what no format can say about itself.

::

    .duramen/
      log.json       format and options, so that reopening needs none
      lock           held by the one writer; names its process
      watermark      shared with readers: how far records are acknowledged, and how far they are on the disk
      sealed.jsonl   one line per sealed segment: offsets, size, digest
      pending.json   while a transaction is under way: see `pending`
      change.json    while retention or compaction changes files: see `change`
      ledger/        which batches of which writer are in the log: see `ledger`
      quarantine/    copies of bytes that recovery or repair took away

Derived like everything but the records: a lost or stale sidecar loses no data, only the extra evidence. Nothing here
judges a log; `recovery` does.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import posixpath
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from duramen import kernel
from duramen.disk import Disk
from duramen.disk.base import File, Kind, Lock, Page, write_all
from duramen.errors import CorruptionError, LockedError, StorageError

DIRECTORY = ".duramen"
SEALED_PATH = posixpath.join(DIRECTORY, "sealed.jsonl")
VERSION = 1


class Watermark(NamedTuple):
    """How far the active segment is good.

    ``next_offset`` is behind the last acknowledged record and ``position`` the byte behind it; the durable pair says
    the same of what was synced. The two checksums are of the segment from its start to those positions, for a format
    whose records have none. ``unsynced_bytes`` bounds what may lie behind the durable position after a crash.
    ``is_open`` until a writer closes the log.
    """

    base: int
    position: int
    next_offset: int
    durable_position: int
    durable_offset: int
    unsynced_bytes: int
    crc32c: int = 0
    durable_crc32c: int = 0
    is_open: bool = True

    def encode(self, number: int) -> bytes:
        body = _WATERMARK.pack(_MAGIC, number, *self[:8], int(self.is_open))
        return body + kernel.crc32c(body).to_bytes(4, "little")

    @classmethod
    def decode(cls, raw: bytes) -> tuple[int, Watermark] | None:
        """With its number; None where the bytes are torn, zero or foreign."""
        body, crc = raw[: _WATERMARK.size], raw[_WATERMARK.size : _WATERMARK.size + 4]
        if len(crc) < 4 or not body.startswith(_MAGIC) or int.from_bytes(crc, "little") != kernel.crc32c(body):
            return None
        _, number, *numbers, is_open = _WATERMARK.unpack(body)
        return number, cls._make([*numbers, bool(is_open)])


_MAGIC = b"DURAMARK"
_WATERMARK = struct.Struct("<8s7qIII")
_SLOT_BYTES = _WATERMARK.size + 4
PAGE_BYTES = 3 * _SLOT_BYTES


class WatermarkPage:
    """The three slots of the shared page: the watermark as it is now, and the last two that were synced.

    The first slot is overwritten with every commit and not synced, so a crash can tear it. The other two are written in
    turn, and only when they are synced, so one of them is always whole. The highest number is the newest.
    """

    def __init__(self, raw: bytes) -> None:
        self._slots = [raw[start : start + _SLOT_BYTES] for start in range(0, PAGE_BYTES, _SLOT_BYTES)]
        decoded = [Watermark.decode(slot) for slot in self._slots]
        self._numbers = [-1 if found is None else found[0] for found in decoded]
        newest = max((found for found in decoded if found is not None), default=None)
        self._number = -1 if newest is None else newest[0]
        self.newest: Watermark | None = None if newest is None else newest[1]

    def put(self, watermark: Watermark) -> bytes:
        """The page with a new watermark, which a crash may tear."""
        return self._put(0, watermark)

    def put_safely(self, watermark: Watermark) -> bytes:
        """The page with a new watermark in a slot whose loss does no harm. To be synced before any other is put."""
        return self._put(1 if self._numbers[1] < self._numbers[2] else 2, watermark)

    def _put(self, slot: int, watermark: Watermark) -> bytes:
        self._number += 1
        self.newest = watermark
        self._slots[slot], self._numbers[slot] = watermark.encode(self._number), self._number
        return b"".join(self._slots)


@dataclass(frozen=True)
class Sealed:
    """A segment that will not change any more. The digest is both CRCs of the whole file: 64 bits that cost little
    enough to be kept while writing."""

    base: int
    last_offset: int
    size_bytes: int
    crc32: int
    crc32c: int


class SealedSum(NamedTuple):
    """What all sealed segments come to: how many they are, and both CRCs of their bases and sizes, one behind another.
    Each line of the list says it of those up to itself, so that opening a log need not read the others."""

    count: int = 0  # type: ignore[assignment]
    crc32: int = 0
    crc32c: int = 0

    def plus(self, bases: Sequence[int], sizes: Sequence[int]) -> SealedSum:
        raw = np.array([bases, sizes], "<i8").T.tobytes()
        return SealedSum(self.count + len(bases), kernel.crc32(raw, self.crc32), kernel.crc32c(raw, self.crc32c))


@dataclass(frozen=True)
class Config:
    format: str
    options: Mapping[str, Any]
    created_ms: int


def read_config(disk: Disk, root: str) -> Config | None:
    """What the sidecar says about the log at ``root``; None without one."""
    path = posixpath.join(root, DIRECTORY, "log.json")
    if disk.kind(path) != Kind.FILE:
        return None
    raw = bytes(disk.map(path).data)
    try:
        tree = json.loads(raw)
        if tree["duramen"] != VERSION:
            raise CorruptionError(f"unknown version {tree['duramen']!r} of the sidecar", path=path)
        return Config(str(tree["format"]), dict(tree["options"]), int(tree["created_ms"]))
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptionError(
            f"the sidecar cannot be read: {_in_words(error)}",
            path=path,
            hint="delete it: the log's records are whole without it, and it is made anew",
        ) from error


def _in_words(error: Exception) -> str:
    return f"it lacks {error}" if isinstance(error, KeyError) else str(error)


def read_watermark(disk: Disk, root: str) -> Watermark | None:
    path = posixpath.join(root, DIRECTORY, "watermark")
    if disk.kind(path) != Kind.FILE:
        return None
    for slots in (3, 2, 1):  # of a page that was cut, a writer would take what is left, too
        try:
            page = disk.page(path, slots * _SLOT_BYTES, writable=False)
            try:
                return WatermarkPage(page.load().ljust(PAGE_BYTES, b"\0")).newest
            finally:
                page.close()
        except StorageError as error:
            if error.errno != errno.ENODATA:
                raise
    return None  # its writer was stopped before it stored anything


def is_no_directory(disk: Disk, root: str) -> bool:
    """Whether something else than a directory lies where the sidecar would be."""
    return disk.kind(posixpath.join(root, DIRECTORY)) in (Kind.FILE, Kind.OTHER)


def refuse_no_directory(disk: Disk, root: str) -> None:
    """Raise where no sidecar can be made."""
    if is_no_directory(disk, root):
        path = posixpath.join(root, DIRECTORY)
        raise StorageError("the sidecar is no directory", path=path, hint="move it away: no record is in it")


def replace_file(disk: Disk, path: str, content: bytes, *, temporary: str | None = None) -> None:
    """Put ``content`` at ``path`` so that a crash leaves the old file or the new one, whole."""
    temporary = temporary or path + ".new"
    if disk.kind(temporary) != Kind.MISSING:
        disk.remove(temporary)
    file = disk.create(temporary)
    try:
        write_all(file, 0, content)
        file.sync()
    finally:
        file.close()
    disk.replace(temporary, path)
    disk.sync_directory(posixpath.dirname(path))
    if posixpath.dirname(temporary) != posixpath.dirname(path):
        disk.sync_directory(posixpath.dirname(temporary))


_LINE_BYTES = 1024
"""More than a line of the list of sealed segments can have."""


def _line_of(entry: Sealed, total: SealedSum) -> bytes:
    body = json.dumps({**asdict(entry), "sum": total}).encode()
    return body + b" %08x\n" % kernel.crc32c(body)


def _parse_line(line: bytes) -> tuple[Sealed, SealedSum | None] | None:
    """A line of the list; None for one that is torn. Lines of earlier versions have no sum."""
    body, _, crc = line.rstrip(b"\n").rpartition(b" ")
    if not line.endswith(b"\n") or crc != b"%08x" % kernel.crc32c(body):
        return None
    tree = json.loads(body)
    total = tree.pop("sum", None)
    return Sealed(**tree), None if total is None else SealedSum(*total)


def sealed_lines(entries: Iterable[Sealed]) -> bytes:
    """The list of sealed segments as it lies in its file."""
    total, lines = SealedSum(), []
    for entry in entries:
        total = total.plus([entry.base], [entry.size_bytes])
        lines.append(_line_of(entry, total))
    return b"".join(lines)


class Sidecar:
    """The sidecar of a log that is open for writing: locked, and made if it was not there."""

    def __init__(self, disk: Disk, root: str) -> None:
        self._disk = disk
        self.root = root
        self._path = posixpath.join(root, DIRECTORY)
        self._lock: Lock | None = None
        self._page: Page | None = None
        self._page_file: File | None = None
        self._sealed_file: File | None = None
        self._sealed_bytes = 0
        self._sealed_sum = SealedSum()

    # --- the lock

    def lock(self, *, make: bool = True) -> None:
        """Become the log's one writer. The lock ends with the process, so a crashed holder's is simply free. Without
        ``make``, `StorageError` where there is no sidecar: nothing is made."""
        refuse_no_directory(self._disk, self.root)
        if make:
            fresh = self._disk.kind(self._path) == Kind.MISSING
            self._disk.make_directory(self._path)
            if fresh:
                self._disk.sync_directory(self.root)
        path = self._file("lock")
        try:
            self._lock = self._disk.lock(path, f"pid {os.getpid()}\n".encode())
        except LockedError as error:
            holder = error.note.decode("ascii", "replace").strip() or "another process"
            raise LockedError(
                f"the log is open for writing elsewhere ({holder})",
                note=error.note,
                path=self.root,
                hint="close it there, or open it here for reading",
            ) from None

    def release(self) -> None:
        if self._page is not None:
            self._page.close()
            self._page = None
        if self._page_file is not None:
            self._page_file.close()
            self._page_file = None
        if self._sealed_file is not None:
            self._sealed_file.close()
            self._sealed_file = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    # --- format and options

    def write_config(self, config: Config) -> None:
        tree = {"duramen": VERSION, **asdict(replace(config, options=dict(config.options)))}
        content = json.dumps(tree, indent=2, sort_keys=True).encode() + b"\n"
        replace_file(self._disk, self._file("log.json"), content)

    # --- the watermark

    def watermark(self) -> Watermark | None:
        self._shared()
        return self._marks.newest

    def mark(self, watermark: Watermark, *, durable: bool = False) -> None:
        """Show readers the new watermark; ``durable``: and have it on the disk when this returns."""
        page = self._shared()
        if durable and self._page_file is None:
            # What a killed process left in the page must not be torn together with what is stored now.
            self._page_file = self._disk.open(self._file("watermark"))
            self._page_file.sync()
        if durable:
            assert self._page_file is not None
            page.store(self._marks.put_safely(watermark))
            self._page_file.sync()
        page.store(self._marks.put(watermark))

    def _shared(self) -> Page:
        if self._page is None:
            fresh = self._disk.kind(self._file("watermark")) == Kind.MISSING
            self._page = self._disk.page(self._file("watermark"), PAGE_BYTES, writable=True)
            if fresh:
                self._disk.sync_directory(self._path)
            self._marks = WatermarkPage(self._page.load())
        return self._page

    # --- sealed segments

    def sealed(self) -> dict[int, Sealed]:
        return {entry.base: entry for entry in self._read_sealed()}

    def last_sealed(self) -> tuple[Sealed, SealedSum] | None:
        """The last sealed segment and what all of them come to, without a look at the other lines. None where the
        last line is torn, says nothing of the others, or is not there."""
        path = self._file("sealed.jsonl")
        if self._disk.kind(path) != Kind.FILE:
            return None
        data = self._disk.map(path).data
        found = _parse_line(bytes(data[-_LINE_BYTES:]).splitlines(keepends=True)[-1]) if len(data) else None
        if found is None or found[1] is None:
            return None
        self._sealed_bytes, self._sealed_sum = len(data), found[1]
        return found[0], found[1]

    def _read_sealed(self) -> Iterator[Sealed]:
        """The whole lines, up to a torn one."""
        path = self._file("sealed.jsonl")
        if self._disk.kind(path) != Kind.FILE:
            return
        self._sealed_bytes, self._sealed_sum = 0, SealedSum()
        for line in bytes(self._disk.map(path).data).splitlines(keepends=True):
            found = _parse_line(line)
            if found is None:
                return
            entry = found[0]
            self._sealed_bytes += len(line)
            self._sealed_sum = self._sealed_sum.plus([entry.base], [entry.size_bytes])
            yield entry

    def add_sealed(self, entry: Sealed) -> None:
        """Remember a sealed segment, on the disk when this returns."""
        if self._sealed_file is None:
            path = self._file("sealed.jsonl")
            fresh = self._disk.kind(path) != Kind.FILE
            if not fresh and self.last_sealed() is None:
                self.sealed()
            self._sealed_file = self._disk.create(path) if fresh else self._disk.open(path)
            self._sealed_file.truncate(self._sealed_bytes)
            if fresh:
                self._disk.sync_directory(self._path)
        self._sealed_sum = self._sealed_sum.plus([entry.base], [entry.size_bytes])
        line = _line_of(entry, self._sealed_sum)
        write_all(self._sealed_file, self._sealed_bytes, line)
        self._sealed_file.sync()
        self._sealed_bytes += len(line)

    def settle_sealed(self) -> None:
        """Have the list on the disk as it can be seen."""
        path = self._file("sealed.jsonl")
        if self._disk.kind(path) == Kind.FILE:
            file = self._disk.open(path)
            try:
                file.sync()
            finally:
                file.close()

    def replace_sealed(self, entries: Iterable[Sealed]) -> None:
        """Remember these sealed segments and no others: some were taken back."""
        assert self._sealed_file is None
        replace_file(self._disk, self._file("sealed.jsonl"), sealed_lines(entries))

    def forget_sealed(self) -> None:
        """Let go of the list: it is about to be replaced."""
        if self._sealed_file is not None:
            self._sealed_file.close()
            self._sealed_file = None

    # --- quarantine

    def quarantine(self, name: str, content: memoryview | bytes) -> str:
        """Keep a copy of bytes that are about to be taken away; on the disk when this returns. Answers its path."""
        directory = self._file("quarantine")
        if self._disk.kind(directory) == Kind.MISSING:
            self._disk.make_directory(directory)
            self._disk.sync_directory(self._path)
        path = posixpath.join(directory, name.replace("/", "_"))
        number = 0
        while self._disk.kind(path) != Kind.MISSING:
            if bytes(self._disk.map(path).data) == bytes(content):
                # A copy that a crashed recovery made may not have reached the disk, not even if it was synced in vain.
                self._fill(self._disk.open(path), content)
                return path
            number += 1
            path = posixpath.join(directory, f"{name.replace('/', '_')}.{number}")
        try:
            self._fill(self._disk.create(path), content)
        except StorageError:
            with contextlib.suppress(StorageError):
                self._disk.remove(path)  # who tries again and again on a full disk must not leave a file each time
            raise
        return path

    def _fill(self, file: File, content: memoryview | bytes) -> None:
        try:
            write_all(file, 0, content)
            file.sync()
        finally:
            file.close()
        self._disk.sync_directory(posixpath.dirname(file.path))

    def _file(self, name: str) -> str:
        return posixpath.join(self._path, name)
