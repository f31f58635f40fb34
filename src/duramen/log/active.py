"""The active segment: the one file that records are appended to, and the derived files that grow with it.

Writes and syncs; decides nothing. The index is written behind the records and never synced before the segment is
sealed: it is made anew from the records if a crash leaves it short.
"""

from __future__ import annotations

import contextlib
import posixpath
from dataclasses import dataclass, field
from typing import NamedTuple

from duramen import kernel
from duramen.disk import Disk
from duramen.disk.base import File, Kind, write_all
from duramen.errors import StorageError
from duramen.formats import Format
from duramen.formats.base import Cursor, Encoded, IndexBuilder, Role, SegmentSummary
from duramen.log.sidecar import Sealed

RESERVE_FROM_BYTES = 1 << 20
RESERVE_BYTES = 8 << 20
FILL_BYTES = 1 << 20
FILL_AFTER_COMMITS = 8
"""A log that gets a few records and is closed again never needs zeros."""
INDEX_FLUSH_BYTES = 4 << 20
"""How far the index may lag behind the records: a reader walks as much in well under a millisecond."""
_ZEROS = memoryview(bytes(FILL_BYTES))


class Filling(NamedTuple):
    """How zeros are written ahead of the records: so many at once, up to that byte of the segment, and only after some
    commits."""

    step_bytes: int
    until: int
    after_commits: int = 0


@dataclass
class _DerivedFile:
    file: File
    size_bytes: int


@dataclass
class ActiveSegment:
    """A segment that is open for append. ``cursor`` is where the next record goes."""

    disk: Disk
    root: str
    fmt: Format
    base: int
    file: File
    cursor: Cursor
    index: IndexBuilder
    rows: int = 0
    records: int = 0
    crc32c: int = 0
    """Of everything in the file, for a format whose records do not prove themselves."""
    first_us: int | None = None
    """The time of its first record, or of the first append where the format has no times."""
    start_position: int = 0
    ends_in_doubt: bool = False
    """Whether the last record could not be told from one that a crash tore, but for the watermark."""
    filling: Filling | None = None
    _filled_bytes: int = 0
    _commits: int = 0
    _reserved_bytes: int = 0
    _index_pending_bytes: int = 0
    _derived: dict[Role, _DerivedFile] = field(default_factory=dict)

    @property
    def path(self) -> str:
        return self.file.path

    @property
    def is_empty(self) -> bool:
        return self.cursor.position <= self.start_position

    @classmethod
    def create(cls, disk: Disk, root: str, fmt: Format, begun: Encoded, base: int, created_ms: int) -> ActiveSegment:
        """A new segment with what it begins with; on the disk, name and all, when this returns."""
        path = posixpath.join(root, fmt.segment_path(base))
        directory = posixpath.dirname(path)
        if disk.kind(directory) == Kind.MISSING:
            disk.make_directory(directory)
            disk.sync_directory(root)
        file = disk.create(path)
        segment = cls(disk, root, fmt, base, file, Cursor(0, base - 1), fmt.index_builder(base, created_ms))
        segment.begin(begun)
        disk.sync_directory(directory)
        return segment

    def begin(self, begun: Encoded) -> None:
        """Write what the segment begins with, and have it on the disk."""
        self.write(begun)
        self.start_position = self.cursor.position
        self.sync()

    def write(self, encoded: Encoded, *, is_synced_next: bool = False) -> None:
        """Append; the bytes are with the operating system when this returns, and on their way to the disk where a sync
        follows: the device works on them while the rest of the commit is prepared."""
        position, size_bytes = self.cursor.position, len(encoded.data)
        self._reserve(position + size_bytes)
        write_all(self.file, position, encoded.data)
        if is_synced_next:
            self.file.begin_sync(position, size_bytes)
            self._fill(position + size_bytes, size_bytes)
        if not self.fmt.capabilities.record_checksum:
            self.crc32c = kernel.crc32c(encoded.data, self.crc32c)
        self.cursor = encoded.rows.cursor
        self.rows += len(encoded.rows.columns)
        self.records += encoded.rows.count
        self.index.add(encoded.rows)
        self.ends_in_doubt = self._in_doubt(encoded)
        self._index_pending_bytes += size_bytes
        if self._index_pending_bytes >= INDEX_FLUSH_BYTES or self.fmt.capabilities.index_at_once:
            self.flush_index()

    def _reserve(self, end: int) -> None:
        """Large files find their room in large steps: it makes each write cheaper."""
        if RESERVE_FROM_BYTES < end > self._reserved_bytes:
            self._reserved_bytes = end + RESERVE_BYTES
            self.file.reserve(self._reserved_bytes)

    def _fill(self, end: int, size_bytes: int) -> None:
        """Zeros behind what was written, for the commits that follow: where neither the size nor the blocks of the file
        change, a sync has nothing but the bytes to bring to the disk. Large commits do without: half of what they
        write would be zeros that the next one overwrites."""
        if self.filling is None:
            return
        step_bytes, until, after_commits = self.filling
        self._commits += 1
        stop = min(end + step_bytes, until)
        if end <= self._filled_bytes or stop <= end or 3 * size_bytes > step_bytes or self._commits < after_commits:
            return
        self._filled_bytes = stop
        try:
            for position in range(end, stop, FILL_BYTES):
                write_all(self.file, position, _ZEROS[: stop - position])
        except StorageError:  # a full disk, above all: the room is for records
            self.filling = None
            with contextlib.suppress(StorageError):
                self.file.truncate(end)

    def release(self) -> None:
        """Give back the room that was not needed."""
        if self._reserved_bytes or self._filled_bytes:
            self.cut_back()

    def _in_doubt(self, encoded: Encoded) -> bool:
        """See `Segment.ends_in_doubt`, which an empty value alone can do."""
        lengths = getattr(encoded.rows.columns, "value_length", None)
        if lengths is None or not len(lengths) or lengths[-1]:
            return False
        return self.fmt.open_segment(self.disk.map(self.path).data, self.base).ends_in_doubt(encoded.rows)

    def cut_back(self) -> None:
        """Take away what a failed write may have left behind the cursor."""
        self._reserved_bytes = self._filled_bytes = 0
        self.file.truncate(self.cursor.position)

    def sync(self) -> None:
        self.file.sync()

    # --- derived files

    def flush_index(self) -> None:
        """Write the entries that are due. An index that cannot be written is left for recovery to make anew."""
        self._index_pending_bytes = 0
        for role, raw in self.index.build().items():
            if raw or role not in self._derived:
                derived = self._derived_file(role)
                write_all(derived.file, derived.size_bytes, raw)
                derived.size_bytes += len(raw)

    def adopt_index(self, role: Role, file: File, size_bytes: int, missing: bytes) -> None:
        """Go on with an index file that recovery found right as far as it goes."""
        write_all(file, size_bytes, missing)
        self._derived[role] = _DerivedFile(file, size_bytes + len(missing))

    def _derived_file(self, role: Role) -> _DerivedFile:
        found = self._derived.get(role)
        if found is None:
            path = posixpath.join(self.root, self.fmt.path_of(role, self.base))
            file = self.disk.open(path) if self.disk.kind(path) == Kind.FILE else self.disk.create(path)
            file.truncate(0)
            found = self._derived[role] = _DerivedFile(file, 0)
        return found

    # --- the end

    def seal(self) -> Sealed:
        """Bring the segment and its derived files to the disk for good, and say what it is now."""
        self.flush_index()
        self.release()
        self.sync()
        for derived in self._derived.values():
            derived.file.sync()
        self.disk.sync_directory(posixpath.dirname(self.path))
        data = self.disk.map(self.path).data
        return Sealed(
            self.base, self.cursor.previous_offset, self.cursor.position, kernel.crc32(data), kernel.crc32c(data)
        )

    def summary(self) -> SegmentSummary:
        index = self._derived.get(Role.INDEX)
        return SegmentSummary(
            self.base, self.cursor.previous_offset, self.cursor.position, 0 if index is None else index.size_bytes
        )

    def close(self) -> None:
        for derived in self._derived.values():
            derived.file.close()
        self.file.close()
