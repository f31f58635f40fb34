"""The sidecar of a log that this process writes: the lock, and everything that only its holder may change."""

from __future__ import annotations

import functools

from duramen.disk import Disk, File, RecordWriter
from duramen.kernel import AppendNotes, Columns, RecordShape
from duramen.sidecar.layout import SEALED_NAME, Config, sidecar_path, write_config
from duramen.sidecar.lock import WriterLock
from duramen.sidecar.quarantine import quarantine
from duramen.sidecar.sealed_list import Sealed, SealedList
from duramen.sidecar.watermark import Watermark, WatermarkFile


class Sidecar:
    """The sidecar of the log at ``root``. Call `lock` before any method that writes, and `release` at the end."""

    def __init__(self, disk: Disk, root: str) -> None:
        self._disk = disk
        self.root = root
        self._lock = WriterLock(disk, root)
        self._watermark = WatermarkFile(disk, root)
        self._sealed = SealedList(disk, root)
        self.lock = self._lock.acquire
        self.is_in_place = self._lock.is_in_place
        self.watermark = self._watermark.newest
        self.mark = self._watermark.mark
        self.offer = self._watermark.offer
        self.accept = self._watermark.accept
        self.begin_proof = self._watermark.begin_proof
        self.sync_proof = self._watermark.sync_proof
        self.sealed = self._sealed.entries
        self.last_sealed = self._sealed.last
        self.miss_sealed = self._sealed.miss_line
        self.add_sealed = self._sealed.add
        self.replace_sealed = self._sealed.replace
        self.forget_sealed = self._sealed.close

    @property
    def is_exclusive(self) -> bool:
        """See `WriterLock.is_exclusive`."""
        return self._lock.is_exclusive

    def check(self, *, closely: bool = False) -> None:
        """Raise `FencedError` if this process is not the log's writer any more: see `WriterLock.check`."""
        self._lock.check(closely=closely)
        if closely:
            self._watermark.check()

    def record_writer(
        self, file: File, index: File | None, shape: RecordShape, rows: Columns, notes: AppendNotes
    ) -> RecordWriter | None:
        """A record writer for the active segment, if the disk has one: see `Disk.record_writer`."""
        page, lock = self._watermark.shared()[0], self._lock.file_lock
        check = functools.partial(self.check, closely=True)
        return self._disk.record_writer(file, index, page, lock, shape, rows, notes, check)

    def slot(self, watermark: Watermark) -> tuple[int, bytes]:
        """See `WatermarkPage.slot`."""
        return self._watermark.shared()[1].slot(watermark)

    def adopt(self, watermark: Watermark, number: int) -> None:
        """See `WatermarkPage.adopt`."""
        self._watermark.shared()[1].adopt(watermark, number)

    def release(self) -> None:
        self._watermark.close()
        self._sealed.close()
        self._lock.release()

    def write_config(self, config: Config) -> None:
        write_config(self._disk, self.root, config)

    def settle_sealed(self, newest: int | None) -> None:
        """Make the list of a log that was not closed durable. ``newest`` is the base of the newest sealed segment: if
        that has its line, a crash tore the last line, whose segment is not sealed. It is moved to the quarantine."""
        entries = self._sealed.entries()
        if self._sealed.damaged and self._sealed.is_torn and (newest is None or newest in entries):
            self._sealed.replace(self.sealed_to_replace().values())
        else:
            self._sealed.sync()

    def sealed_to_replace(self) -> dict[int, Sealed]:
        """The entries of the sealed list, for a list that takes its place. A damaged list is copied aside first."""
        entries = self._sealed.entries()
        if self._sealed.damaged:
            self.quarantine(SEALED_NAME, self._disk.map(sidecar_path(self.root, SEALED_NAME)).data)
        return entries

    def quarantine(self, name: str, content: memoryview | bytes) -> str:
        """Store a copy of bytes that are about to be removed, durably, and return its path."""
        return quarantine(self._disk, self.root, name, content)

    def quarantine_witness(self, name: str) -> None:
        """Store a copy of the watermark, which contradicts what recovery is about to do to ``name``."""
        self.quarantine(f"watermark-{name}", self._watermark.content())
