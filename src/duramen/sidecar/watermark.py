"""The watermark: how far the records of the active segment are acknowledged, and how far they are durable.

The writer stores it in a page of shared memory (``.duramen/watermark``), where readers see it at once. The page has
three slots: the current watermark, and the last two that were synced.
"""

from __future__ import annotations

import errno
import struct
from typing import NamedTuple

from duramen import kernel
from duramen.disk import Disk, File, Kind, Page, fenced, map_if_exists, open_private
from duramen.errors import StorageError
from duramen.sidecar.layout import WATERMARK_NAME, sidecar_path


class Watermark(NamedTuple):
    """How far the active segment is acknowledged and durable.

    ``next_offset`` is the offset after the last acknowledged record, ``position`` the byte after it; the durable pair
    is the same for synced records. The two digests are the CRC-32C of the segment up to those positions.
    ``unsynced_bytes`` bounds what a crash may leave after the durable position. ``is_open`` is true until a writer
    closes the log. ``has_digest`` is false in watermarks of earlier versions, which took digests only of records
    without a checksum. ``is_previous_sealed``: the sealed list has a line for the segment before this one.
    ``is_proof``: the records up to ``position`` may be neither durable nor acknowledged; the digest tells.
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
    has_digest: bool = False
    is_previous_sealed: bool = False
    is_proof: bool = False

    @property
    def durable(self) -> Watermark:
        """The part that is durable."""
        return self._replace(
            position=self.durable_position, next_offset=self.durable_offset, crc32c=self.durable_crc32c, is_proof=False
        )

    @property
    def fields(self) -> tuple[int, ...]:
        """What other files store of a watermark that is no proof. An earlier version refuses one field more."""
        return self[:-1]

    def encode(self, number: int) -> bytes:
        flags = self.is_open + 2 * self.has_digest + 4 * self.is_previous_sealed + 8 * self.is_proof
        body = _WATERMARK.pack(_MAGIC, number, *self[:8], flags)
        return body + kernel.crc32c(body).to_bytes(4, "little")

    @classmethod
    def decode(cls, raw: bytes) -> tuple[int, Watermark] | None:
        """The watermark and its number; None if the bytes are torn, zero or foreign."""
        body, crc = raw[: _WATERMARK.size], raw[_WATERMARK.size : _WATERMARK.size + 4]
        if len(crc) < 4 or not body.startswith(_MAGIC) or int.from_bytes(crc, "little") != kernel.crc32c(body):
            return None
        _, number, *numbers, flags = _WATERMARK.unpack(body)
        return number, cls._make([*numbers, *(bool(flags & one) for one in (1, 2, 4, 8))])


_MAGIC = b"DURAMARK"
_WATERMARK = struct.Struct("<8s7qIII")
_SLOT_BYTES = _WATERMARK.size + 4
PAGE_BYTES = 3 * _SLOT_BYTES


class WatermarkPage:
    """The content of the page: the current watermark, and the last two that were synced.

    Every commit overwrites the first slot without a sync, so a crash can tear it. The other two are written in turn,
    and each is synced before the next write, so one of them is always whole. The highest number is the newest.
    `shown` is the newest that a reader may see while the writer lives.
    """

    def __init__(self, raw: bytes) -> None:
        self._slots = [raw[start : start + _SLOT_BYTES] for start in range(0, PAGE_BYTES, _SLOT_BYTES)]
        decoded = [Watermark.decode(slot) for slot in self._slots]
        self._numbers = [-1 if found is None else found[0] for found in decoded]
        newest = max((found for found in decoded if found is not None), default=None)
        shown = max((found for found in decoded if found is not None and not found[1].is_proof), default=None)
        self._number = -1 if newest is None else newest[0]
        self.newest: Watermark | None = None if newest is None else newest[1]
        self.shown: Watermark | None = self.newest and self.newest.durable if shown is None else shown[1]

    @property
    def is_settled(self) -> bool:
        """Whether the last safe slot was synced: a writer puts the first slot only after that."""
        return self._numbers[0] == self._number

    def put(self, watermark: Watermark) -> bytes:
        """The page with a new watermark, which a crash may tear."""
        return self._put(0, watermark)

    def offer(self, watermark: Watermark) -> bytes:
        """The same for another to store. Until `accept` says that it is stored, the page stays as it was."""
        self._offered = watermark, watermark.encode(self._number + 1)
        return b"".join((self._offered[1], *self._slots[1:]))

    def accept(self) -> None:
        self._number += 1
        self.newest, self._slots[0] = self._offered
        self._numbers[0] = self._number

    def put_safely(self, watermark: Watermark) -> bytes:
        """The page with a new watermark in a slot whose loss is harmless. The caller syncs it before the next put."""
        return self._put(1 if self._numbers[1] < self._numbers[2] else 2, watermark)

    def slot(self, watermark: Watermark) -> tuple[int, bytes]:
        """The last number, and a watermark encoded with it: what a record writer starts from."""
        return self._number, watermark.encode(self._number)

    def adopt(self, watermark: Watermark, number: int) -> None:
        """Continue after a record writer, whose last store this was."""
        self._number = number - 1
        self._put(0, watermark)

    def _put(self, slot: int, watermark: Watermark) -> bytes:
        self._number += 1
        self.newest = watermark
        self._slots[slot], self._numbers[slot] = watermark.encode(self._number), self._number
        return b"".join(self._slots)


def read_watermark(disk: Disk, root: str) -> Watermark | None:
    """The newest watermark of the log at ``root``; None if there is none."""
    page = _read_page(disk, root)
    return None if page is None else page.newest


def read_watermarks(disk: Disk, root: str) -> tuple[Watermark | None, Watermark | None]:
    """The newest watermark, and the newest that a reader may see while the writer lives."""
    page = _read_page(disk, root)
    return (None, None) if page is None else (page.newest, page.shown)


def is_garbage_watermark(disk: Disk, root: str) -> bool:
    """Whether the file holds no watermark, although no crash leaves it so: its last slots are synced, or zero."""
    path = sidecar_path(root, WATERMARK_NAME)
    data = map_if_exists(disk, path)
    page = _read_page(disk, root) if data else None
    if not data or (page is not None and page.newest is not None):
        return False
    return any(bytes(data[_SLOT_BYTES:PAGE_BYTES])) or 0 < len(data) < _SLOT_BYTES


def _read_page(disk: Disk, root: str) -> WatermarkPage | None:
    """The page as far as it exists; None where no writer has stored anything."""
    path = sidecar_path(root, WATERMARK_NAME)
    if disk.kind(path) != Kind.FILE:
        return None
    for slots in (3, 2, 1):  # a writer accepts what is left of a page that was cut; so does a reader
        try:
            page = disk.page(path, slots * _SLOT_BYTES, writable=False)
            try:
                return WatermarkPage(page.load().ljust(PAGE_BYTES, b"\0"))
            finally:
                page.close()
        except StorageError as error:
            if error.errno != errno.ENODATA:
                raise
    return None


class WatermarkFile:
    """The watermark of a log that this process writes."""

    def __init__(self, disk: Disk, root: str) -> None:
        self._disk, self._root = disk, root
        self._path = sidecar_path(root, WATERMARK_NAME)
        self._page: Page | None = None
        self._file: File | None = None
        self._marks: WatermarkPage | None = None

    def newest(self) -> Watermark | None:
        """The newest watermark. Creates nothing: a log that recovery refuses stays as it was."""
        if self._marks is None:
            self._marks = _read_page(self._disk, self._root)
        return None if self._marks is None else self._marks.newest

    def mark(self, watermark: Watermark, *, durable: bool = False) -> None:
        """Publish a watermark to readers; ``durable``: and sync it."""
        page, marks = self._mapped()
        if durable:
            page.store(marks.put_safely(watermark))
            self._opened().sync()
        page.store(marks.put(watermark))

    def offer(self, watermark: Watermark) -> bytes:
        """The content of the page with a new watermark. The caller stores it, and calls `accept`."""
        return self._mapped()[1].offer(watermark)

    def accept(self) -> None:
        self._mapped()[1].accept()

    def begin_proof(self, watermark: Watermark) -> None:
        """Store the proof of records that are being synced, and have the device write it. `sync_proof` follows."""
        page, marks = self._mapped()
        page.store(marks.put_safely(watermark))
        self._opened().begin_sync(0, PAGE_BYTES)

    def sync_proof(self) -> None:
        self._opened().sync()

    def shared(self) -> tuple[Page, WatermarkPage]:
        """The page that this process writes, and its content, for a record writer."""
        return self._mapped()

    def content(self) -> bytes:
        """The bytes of the page."""
        return self._mapped()[0].load()

    def check(self) -> None:
        """Raise `FencedError` if the next writer would find another watermark than the one that this writer stores."""
        if self._page is None:
            return
        try:
            is_same = self._disk.stamp(self._path)[2] == self._inode
        except StorageError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                raise
            is_same = False
        if not is_same:
            raise fenced("the watermark was deleted or replaced", self._path)

    def close(self) -> None:
        if self._page is not None:
            self._page.close()
            self._page = None
        if self._file is not None:
            self._file.close()
            self._file = None

    def _opened(self) -> File:
        if self._file is None:
            self._file = self._disk.open(self._path)
        return self._file

    def _mapped(self) -> tuple[Page, WatermarkPage]:
        if self._page is None:
            fresh = self._disk.kind(self._path) == Kind.MISSING
            if not fresh:
                open_private(self._disk, self._path).close()
            self._page = self._disk.page(self._path, PAGE_BYTES, writable=True)
            if fresh:
                self._disk.sync_directory(sidecar_path(self._root))
            self._inode = self._disk.stamp(self._path)[2]
            self._marks = self._marks or WatermarkPage(self._page.load())
            if not self._marks.is_settled:
                self._opened().sync()  # what a killed process left must not be torn together with what is stored next
        assert self._marks is not None
        return self._page, self._marks
