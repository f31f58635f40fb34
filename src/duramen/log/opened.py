"""One segment of a log that is being read: mapped, with its indexes, as of the moment it was mapped."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from duramen.disk import Disk, Mapped
from duramen.errors import DuramenError, IncompleteHeaderError, StorageError
from duramen.formats.base import Cursor, Role, Segment
from duramen.formats.index import Index
from duramen.log.directory import SegmentFiles

if TYPE_CHECKING:
    from duramen.log.reader import Log


class OpenSegment:
    """A mapped segment with its index, as of the moment it was mapped."""

    def __init__(self, log: Log, files: SegmentFiles, is_last: bool) -> None:
        self.path = log._directory.full(files.segment.path)
        self.is_last = is_last
        self.visible_bytes = files.segment.size_bytes
        self._mapped: list[Mapped] = []
        data = self._map(log.disk, self.path)[: self.visible_bytes]
        self.torn_header: IncompleteHeaderError | None = None
        try:
            self.segment: Segment = self._open_segment(log, data, files.base)
        except DuramenError as error:
            error.path = error.path or self.path
            raise
        self.indexes: dict[Role, Index] = {}
        for role, file in files.derived.items():
            try:
                data = self._map(log.disk, log._directory.full(file.path))
            except StorageError as error:
                if error.errno != errno.ENOENT:
                    raise
                continue  # it goes before its segment does
            index = log.codec.open_index(role, data, self.segment.base_offset)
            if index is not None:
                self.indexes[role] = index

    def _open_segment(self, log: Log, data: memoryview, base: int | None) -> Segment:
        try:
            return log.codec.open_segment(data, base)
        except IncompleteHeaderError as error:
            if not self.is_last:
                raise
            self.torn_header = error
            return log.codec.open_segment(b"", base)

    def _map(self, disk: Disk, path: str) -> memoryview:
        mapped = disk.map(path)
        self._mapped.append(mapped)
        return mapped.data

    def close(self) -> None:
        for mapped in self._mapped:
            mapped.close()

    def hint(self, offset: int) -> Cursor | None:
        """The nearest place at or before ``offset`` that the index names. It may be wrong."""
        index = self.indexes.get(Role.INDEX)
        entry = None if index is None else index.floor(offset)
        if entry is None or not self.segment.start.position <= entry[1] < len(self.segment.buf):
            return None
        return Cursor(entry[1], entry[0] - 1)

    def cursor_before(self, offset: int) -> Cursor:
        """The nearest place at or before ``offset`` that the index knows and that holds what the index says."""
        hint = self.hint(offset)
        if hint is None:
            return self.segment.start
        return self.segment.cursor_at(hint.previous_offset + 1, hint.position) or self.segment.start

    def last_cursor(self) -> Cursor:
        return self.cursor_before(2**63 - 1)
