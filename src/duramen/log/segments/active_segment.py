"""The active segment: the file that the writer appends records to, and the derived files that grow with it.

Writes and syncs; decides nothing. The index is written after the records and not synced before the segment is sealed:
recovery rebuilds it from the records if a crash leaves it short.
"""

from __future__ import annotations

import contextlib
import logging
import posixpath
from dataclasses import dataclass, field
from typing import NamedTuple

from duramen import kernel
from duramen.disk import Disk, File, Kind, open_private, write_all
from duramen.errors import CorruptionError, StorageError, printable
from duramen.formats import Encoded, Format, IndexBuilder, Role, Rows, ScanPosition, SegmentSummary
from duramen.record import MAX_OFFSET
from duramen.sidecar import Sealed, SealedIndex

logger = logging.getLogger(__package__)

RESERVE_FROM_BYTES = 1 << 20
RESERVE_BYTES = 8 << 20
FILL_BYTES = 1 << 20
FILL_AFTER_COMMITS = 8
"""A log that is closed after a few commits never needs zeros."""
INDEX_FLUSH_BYTES = 4 << 20
"""Most record bytes that the index may not cover yet: a reader walks them in well under a millisecond."""
_ZEROS = memoryview(bytes(FILL_BYTES))


class Filling(NamedTuple):
    """How the writer writes zeros ahead of the records: bytes per step, last byte of the segment, and the number of
    commits before the first step."""

    step_bytes: int
    until: int
    after_commits: int = 0


def sealed_indexes(disk: Disk, root: str, fmt: Format, base: int) -> tuple[SealedIndex, ...]:
    """The indexes of a segment as they are, for the sealed list."""
    paths = {
        role: posixpath.join(root, fmt.path_of(role, base)) for role in sorted(fmt.index_builder(base, 0).headers())
    }
    held = [(role, disk.map(path).data) for role, path in paths.items() if disk.kind(path) == Kind.FILE]
    return tuple(SealedIndex(role.value, len(data), kernel.crc32c(data)) for role, data in held)


@dataclass
class _DerivedFile:
    file: File
    size_bytes: int


@dataclass
class ActiveSegment:
    """A segment that is open for append. The next record goes to ``cursor``."""

    disk: Disk
    root: str
    fmt: Format
    base: int
    file: File
    cursor: ScanPosition
    index: IndexBuilder
    rows: int = 0
    records: int = 0
    crc32c: int = 0
    """Digest of all bytes that were written, for a format whose checksums do not cover every byte. Each write extends
    it; it is never computed from the file, so a byte that changed on the disk is noticed."""
    first_us: int | None = None
    """The time of its first record, or of the first append where the format has no times."""
    start_position: int = 0
    ends_in_doubt: bool = False
    """Whether only the watermark tells the last record from one that a crash tore."""
    filling: Filling | None = None
    _filled_bytes: int = 0
    _commits: int = 0
    _reserved_bytes: int = 0
    _index_pending_bytes: int = 0
    _is_index_late: bool = False
    _derived: dict[Role, _DerivedFile] = field(default_factory=dict)
    _due_entries: dict[Role, bytes] = field(default_factory=dict)

    @property
    def path(self) -> str:
        return self.file.path

    @property
    def is_empty(self) -> bool:
        return self.cursor.position <= self.start_position

    @classmethod
    def create(cls, disk: Disk, root: str, fmt: Format, begun: Encoded, base: int, created_ms: int) -> ActiveSegment:
        """Create a segment with its header, durably."""
        path = posixpath.join(root, fmt.segment_path(base))
        directory = posixpath.dirname(path)
        if disk.kind(directory) == Kind.MISSING:
            disk.make_directory(directory)
            disk.sync_directory(root)
        file = disk.create(path)
        segment = cls(disk, root, fmt, base, file, ScanPosition(0, base - 1), fmt.index_builder(base, created_ms))
        segment.begin(begun)
        disk.sync_directory(directory)
        return segment

    def begin(self, begun: Encoded) -> None:
        """Write and sync the header of the segment."""
        self.write(begun)
        self.start_position = self.cursor.position
        self.sync()

    def write(self, encoded: Encoded, *, is_synced_next: bool = False) -> None:
        """Append bytes to the file. ``is_synced_next`` starts writing them to the device at once, while the rest of the
        commit is prepared."""
        position, size_bytes = self.cursor.position, len(encoded.data)
        self._reserve(position + size_bytes)
        write_all(self.file, position, encoded.data)
        if is_synced_next:
            self.file.begin_sync(position, size_bytes)
            self._fill(position + size_bytes, size_bytes)
        if not self.fmt.capabilities.covers_all:
            self.crc32c = kernel.crc32c(encoded.data, self.crc32c)
        self._count(encoded.rows)
        self.ends_in_doubt = self._in_doubt(encoded)
        if self._index_pending_bytes >= INDEX_FLUSH_BYTES or self.fmt.capabilities.index_at_once:
            self._try_flush_index()

    def take_over(self, rows: Rows, crc32c: int, index_bytes: int) -> None:
        """Count records, none of them empty, that a record writer wrote after the cursor, and the first bytes of their
        index entries."""
        self.crc32c, self.ends_in_doubt = crc32c, False
        self._count(rows)
        if self.fmt.capabilities.index_at_once:
            self._collect_entries()
            self._derived[Role.INDEX].size_bytes += index_bytes
            self._due_entries[Role.INDEX] = self._due_entries[Role.INDEX][index_bytes:]
            self._try_flush_index()

    def _count(self, rows: Rows) -> None:
        self._index_pending_bytes += rows.end.position - self.cursor.position
        self.cursor = rows.cursor
        self.rows += len(rows.columns)
        self.records += rows.count
        self.index.add(rows)

    @property
    def open_index(self) -> tuple[File, int] | None:
        """The index and its size, where every row gets its entry at once; None if an entry waits."""
        derived = self._derived.get(Role.INDEX)
        if derived is None or self._is_index_late or self._due_entries.get(Role.INDEX):
            return None
        return derived.file, derived.size_bytes

    @property
    def plain_until(self) -> int:
        """The position up to which appends only write records: they neither reserve space nor write the index."""
        covered = self.cursor.position - self._index_pending_bytes
        return min(max(RESERVE_FROM_BYTES, self._reserved_bytes), covered + INDEX_FLUSH_BYTES - 1)

    @property
    def filled_until(self) -> int:
        """The position up to which an append that is synced writes no zeros ahead of it."""
        if self.filling is None:
            return MAX_OFFSET
        return self._filled_bytes

    def _reserve(self, end: int) -> None:
        """Allocate the blocks of a large file in large steps, which makes each write cheaper."""
        if RESERVE_FROM_BYTES < end > self._reserved_bytes:
            self._reserved_bytes = end + RESERVE_BYTES
            self.file.reserve(self._reserved_bytes)

    def _fill(self, end: int, size_bytes: int) -> None:
        """Write zeros after the records, for the commits that follow: if neither the size nor the blocks of the file
        change, a sync writes only the data. Large commits skip this: half of their writes would be zeros that the
        next one overwrites."""
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
        except StorageError:  # usually a full disk: leave the space to the records
            self.filling = None
            with contextlib.suppress(StorageError):
                self.file.truncate(end)

    def release(self) -> bool:
        """Free the space that was reserved or filled in advance. Returns whether there was any."""
        is_cut = bool(self._reserved_bytes or self._filled_bytes)
        if is_cut:
            self.cut_back()
        return is_cut

    def _in_doubt(self, encoded: Encoded) -> bool:
        """See `Segment.ends_in_doubt`; only a record with an empty value can."""
        lengths = getattr(encoded.rows.columns, "value_length", None)
        if lengths is None or not len(lengths) or lengths[-1]:
            return False
        return self.fmt.open_segment(self.disk.map(self.path).data, self.base).ends_in_doubt(encoded.rows)

    def cut_back(self) -> None:
        """Cut what a failed write may have left after the cursor."""
        self._reserved_bytes = self._filled_bytes = 0
        self.file.truncate(self.cursor.position)

    def sync(self) -> None:
        self.file.sync()

    # --- derived files

    def _try_flush_index(self) -> None:
        """Flush the index. A failure is logged, once until it succeeds: the records are written, the entries wait."""
        try:
            self.flush_index()
        except StorageError as error:
            if not self._is_index_late:
                extra = {"path": self.root, "file": error.path, "error": type(error).__name__, "errno": error.errno}
                logger.warning(
                    "the index of %s cannot be written, and waits: %s; a close or seal that cannot write it fails",
                    printable(self.path), printable(error), extra=extra,
                )  # fmt: skip
            self._is_index_late = True
        else:
            self._is_index_late = False

    def flush_index(self) -> None:
        """Write the index entries that are due. If that fails, they stay due; after a crash, recovery rebuilds the
        index."""
        self._collect_entries()
        for role, raw in self._due_entries.items():
            if raw or role not in self._derived:
                derived = self._derived_file(role)
                write_all(derived.file, derived.size_bytes, raw)
                derived.size_bytes += len(raw)
                self._due_entries[role] = b""

    def _collect_entries(self) -> None:
        self._index_pending_bytes = 0
        for role, raw in self.index.build().items():
            self._due_entries[role] = self._due_entries.get(role, b"") + raw

    def complete_index(self) -> None:
        """Write all entries, those that end the files included: the segment does not grow, or not soon."""
        self.flush_index()
        for role, raw in self.index.ending().items():
            self._due_entries[role] = self._due_entries.get(role, b"") + raw
        self.flush_index()

    def adopt_index(self, role: Role, file: File, size_bytes: int, missing: bytes) -> None:
        """Continue an index file whose entries recovery has checked."""
        write_all(file, size_bytes, missing)
        self._derived[role] = _DerivedFile(file, size_bytes + len(missing))

    def _derived_file(self, role: Role) -> _DerivedFile:
        found = self._derived.get(role)
        if found is None:
            path = posixpath.join(self.root, self.fmt.path_of(role, self.base))
            file = open_private(self.disk, path) if self.disk.kind(path) == Kind.FILE else self.disk.create(path)
            file.truncate(0)
            found = self._derived[role] = _DerivedFile(file, 0)
        return found

    @property
    def names(self) -> list[str]:
        """The segment and its derived files, relative to the log's directory."""
        return [self.fmt.segment_path(self.base), *(self.fmt.path_of(role, self.base) for role in self._derived)]

    # --- the end

    def seal(self, now_ms: int) -> Sealed:
        """Sync the segment and its derived files, and return its entry for the sealed list. Raises `CorruptionError` if
        the file does not hold what was written."""
        self.complete_index()
        self.release()
        self.sync()
        for derived in self._derived.values():
            derived.file.sync()
        self.disk.sync_directory(posixpath.dirname(self.path))
        data = self.disk.map(self.path).data
        (crc32c, crc32), position = kernel.digest(data), self.cursor.position
        has_digest = not self.fmt.capabilities.covers_all
        if len(data) != position or (has_digest and crc32c != self.crc32c):
            digests = f" and digest {crc32c:08x}, not {self.crc32c:08x}" if has_digest else ""
            raise CorruptionError(
                f"the segment does not hold what was written to it: {len(data)} bytes of {position}{digests}",
                path=self.path, offset=self.base, hint="`duramen verify` shows the whole picture",
            )  # fmt: skip
        return Sealed(
            self.base, self.cursor.previous_offset, self.cursor.position, crc32, crc32c, now_ms,
            sealed_indexes(self.disk, self.root, self.fmt, self.base), self.records,
        )  # fmt: skip

    def summary(self) -> SegmentSummary:
        index = self._derived.get(Role.INDEX)
        return SegmentSummary(
            self.base, self.cursor.previous_offset, self.cursor.position, 0 if index is None else index.size_bytes
        )

    def close(self) -> None:
        for derived in self._derived.values():
            derived.file.close()
        self.file.close()
