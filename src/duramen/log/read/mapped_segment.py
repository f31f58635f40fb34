"""One mapped segment of a log that is being read, with its indexes."""

from __future__ import annotations

import errno
from bisect import bisect_left
from collections.abc import Callable
from copy import copy
from weakref import WeakMethod

from duramen.disk import Disk, Mapped
from duramen.errors import DuramenError, IncompleteHeaderError, StorageError
from duramen.formats import Format, Index, Role, ScanPosition, Segment
from duramen.log.segments import Snapshot, index_entries

IsSealedIndex = WeakMethod[Callable[[int, Role, memoryview], bool]]
"""Whether the bytes of an index, by base and role, are those that its segment was sealed with. Weak: a log that is
dropped goes at once, with its mappings."""


class Ordered:
    """How far the indexes of a log are known to be in order, so that only new entries of a growing index are read."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, tuple[int, int | None]]] = {}

    def check(self, name: str, index: Index) -> bool:
        count, last = self._known.get(name, (0, (-1, None)))
        if count > len(index) or (count and index.entry(count - 1) != last):
            count = 0  # the index was replaced
        if not len(index) or not index.in_order(max(count - 1, 0)):
            self._known.pop(name, None)
            return not len(index)
        self._known[name] = len(index), index.entry(len(index) - 1)
        return True


class MappedSegment:
    """A segment and its indexes, mapped under one snapshot and judged by that snapshot's watermark."""

    def __init__(
        self, disk: Disk, snapshot: Snapshot, number: int, ordered: Ordered, is_sealed_index: IsSealedIndex
    ) -> None:
        files = snapshot.directory.segments[number]
        self.base = snapshot.bases[number]
        self.path = snapshot.path_of(files)
        self.is_last = number == len(snapshot.bases) - 1
        self.mark = snapshot.witness
        self.visible_bytes = files.segment.size_bytes
        self._mapped: list[Mapped] = []
        data = self._map(disk, self.path)[: self.visible_bytes]
        self.torn_header: IncompleteHeaderError | None = None
        try:
            self.segment: Segment = self._open_segment(snapshot.fmt, data, files.base)
        except DuramenError as error:
            error.path = error.path or self.path
            raise
        self.indexes: dict[Role, Index] = {}
        self._index_data: dict[Role, memoryview] = {}
        self._is_sealed_index = is_sealed_index
        self._ordered = ordered
        self._followed: dict[Role, Index | None] = {}
        for role, file in files.derived.items():
            self._map_index(disk, snapshot, role, snapshot.directory.full(file.path))

    def _map_index(self, disk: Disk, snapshot: Snapshot, role: Role, path: str) -> None:
        try:
            data = index_entries(disk, path) if snapshot.fmt.capabilities.cuts_indexes else self._map(disk, path)
        except StorageError as error:
            if error.errno != errno.ENOENT:
                raise
            return  # retention removes it before its segment
        index = snapshot.fmt.open_index(role, data, self.segment.base_offset)
        if index is not None:
            self.indexes[role] = index
            self._index_data[role] = data

    def _open_segment(self, fmt: Format, data: memoryview, base: int | None) -> Segment:
        try:
            return fmt.open_segment(data, base)
        except IncompleteHeaderError as error:
            if not self.is_last:
                raise
            self.torn_header = error
            return fmt.open_segment(b"", base)

    def under(self, snapshot: Snapshot) -> MappedSegment | None:
        """The same mapping under a later snapshot; None if that one shows more or less of the segment. Threads that use
        this object keep judging by its own snapshot."""
        number = bisect_left(snapshot.bases, self.base)
        if number == len(snapshot.bases) or snapshot.bases[number] != self.base:
            return None
        size_bytes = snapshot.directory.segments[number].segment.size_bytes
        if size_bytes != self.visible_bytes or self.is_last != (number == len(snapshot.bases) - 1):
            return None
        if not self.is_last or self.mark == snapshot.witness:
            return self
        later = copy(self)
        later.mark = snapshot.witness
        return later

    def _map(self, disk: Disk, path: str) -> memoryview:
        mapped = disk.map(path)
        self._mapped.append(mapped)
        return mapped.data

    def close(self) -> None:
        for mapped in self._mapped:
            mapped.close()

    def followed(self, role: Role) -> Index | None:
        """The index of that role; None if there is none, its entries are not in order, or the segment was sealed with
        another one."""
        if role not in self._followed:
            index = self.indexes.get(role)
            is_ordered = index is not None and self._ordered.check(f"{self.path} {role}", index)
            if is_ordered and not self.is_last:
                is_sealed_index = self._is_sealed_index()
                is_ordered = is_sealed_index is None or is_sealed_index(self.base, role, self._index_data[role])
            self._followed[role] = index if is_ordered else None
        return self._followed[role]

    def hint(self, offset: int) -> ScanPosition | None:
        """The nearest place at or before ``offset`` in the index. The index may be wrong."""
        index = self.followed(Role.INDEX)
        entry = None if index is None else index.floor(offset)
        if entry is None or not self.segment.start.position <= entry[1] < len(self.segment.buf):
            return None
        return ScanPosition(entry[1], entry[0] - 1)

    def cursor_before(self, offset: int) -> ScanPosition:
        """The nearest place at or before ``offset`` in the index, if the record there matches; otherwise the start."""
        hint = self.hint(offset)
        if hint is None:
            return self.segment.start
        return self.segment.cursor_at(hint.previous_offset + 1, hint.position) or self.segment.start

    def last_cursor(self) -> ScanPosition:
        return self.cursor_before(2**63 - 1)
