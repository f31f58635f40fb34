"""The evidence that recovery decides by: what the files of a locked log say.

Each piece of evidence is read when a row of the table first asks for it, and only once. Evidence changes no file.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from duramen import kernel
from duramen.disk import Disk
from duramen.errors import CorruptionError, DuramenError, IncompleteHeaderError
from duramen.formats import Format, IndexBuilder, Role, Rows, ScanPosition, Segment
from duramen.kernel import Stop
from duramen.log.segments import (
    CleanClose,
    Contradiction,
    EndKind,
    LogFile,
    SegmentEnd,
    SegmentFiles,
    against_mark,
    classify_rows,
    find_contradiction,
    has_not_begun,
    is_unfinished,
    lacks_active,
    list_log,
    offset_after,
    read_clean_close,
    refuse_foreign_sidecar,
    settings_of,
)
from duramen.log.verify import refuse_damage
from duramen.record import MAX_OFFSET
from duramen.sidecar import FileSwap, Sealed, SealedSum, Sidecar, TxMarker, Watermark

_NOT_FOR_APPENDING = (
    Role.GROUP_SNAPSHOT, Role.GROUP_DELTA, Role.CHECKPOINT, Role.LOCK, Role.PRODUCER_SNAPSHOT, Role.METADATA,
)  # fmt: skip
"""Files that opening does not touch."""


class Evidence:
    """What is known of a log before recovery acts. ``swap`` and ``tx`` are what opening has finished already."""

    def __init__(
        self,
        disk: Disk,
        root: str,
        fmt: Format,
        sidecar: Sidecar,
        *,
        swap: FileSwap | None = None,
        tx: TxMarker | None = None,
        cut_damage: bool = False,
    ) -> None:
        self.disk = disk
        self.root = root
        self.sidecar = sidecar
        self.swap = swap
        self.tx = tx
        self.cut_damage = cut_damage
        self._given = fmt
        self.directory = list_log(disk, root, fmt)
        refuse_foreign_sidecar(disk, root, fmt, self.directory)
        self.segments = self.directory.segments
        self.watermark = sidecar.watermark()
        self.indexes: list[IndexFile] = []
        """The indexes of the active segment, once it is known which records are kept."""

    def full(self, path: str) -> str:
        return self.directory.full(path)

    def open(self, files: SegmentFiles) -> Segment:
        return self._open_in(self.fmt, files)

    def _open_in(self, fmt: Format, files: SegmentFiles) -> Segment:
        path = self.full(files.segment.path)
        try:
            return fmt.open_segment(self.disk.map(path).data, files.base)
        except CorruptionError as error:
            error.path = error.path or path
            raise

    # --- the whole log

    @property
    def temporary_files(self) -> list[LogFile]:
        return [file for file in self.directory.others if file.name.role == Role.LEFTOVER]

    @property
    def early_indexes(self) -> list[LogFile]:
        """Indexes without their segment, after the last segment."""
        last = self.base if self.segments else -1
        return [file for file in self.directory.orphans if (file.name.base or 0) > last]

    @cached_property
    def agreed(self) -> Sealed | None:
        """The last sealed segment, if the sum on its line of the sealed list matches the names and sizes of all
        segments up to it. The other lines need not be read then."""
        if self._last_line is None:
            return None
        entry, total = self._last_line
        present = self.segments[: total.count]
        if not present or present[-1].base != entry.base:
            return None
        return entry if self._listed_sum[:3] == total[:3] else None

    @cached_property
    def _last_line(self) -> tuple[Sealed, SealedSum] | None:
        return self.sidecar.last_sealed()

    @cached_property
    def _listed_sum(self) -> SealedSum:
        """The sum of the segments in the directory, as many as the sealed list has."""
        present = [] if self._last_line is None else self.segments[: self._last_line[1].count]
        bases, sizes = [files.base or 0 for files in present], [files.segment.size_bytes for files in present]
        return SealedSum().plus(bases, sizes, [_index_sizes(files) for files in present])

    @cached_property
    def wrong_sealed_indexes(self) -> list[SegmentFiles]:
        """The sealed segments without indexes, or whose indexes have other sizes than when they were sealed. Reads the
        list only if its last line disagrees with the directory."""
        if not self._given.capabilities.index:
            return []
        before = self.segments if self.last_sealed is not None else self.segments[:-1]
        entries: dict[int, Sealed] = {}
        if self.agreed is not None and self._last_line is not None:
            total = self._last_line[1]
            if total.indexes is not None and total.indexes != self._listed_sum.indexes:
                entries = self.sidecar.sealed()
        return [files for files in before if _has_wrong_index(files, entries.get(files.base or 0))]

    @cached_property
    def sealed(self) -> dict[int, Sealed]:
        return self.sidecar.sealed() if self.agreed is None else {self.agreed.base: self.agreed}

    @cached_property
    def continued(self) -> SegmentFiles | None:
        """The last segment, if it is sealed and another program has appended to it: the sealed bytes are unchanged, and
        more follow."""
        entry = None if self.agreed is not None or not self.segments else self.sealed.get(self.base)
        if entry is None or self.last.segment.size_bytes <= entry.size_bytes:
            return None
        data = self.disk.map(self.full(self.last.segment.path)).data
        return self.last if kernel.crc32c(data[: entry.size_bytes]) == entry.crc32c else None

    @cached_property
    def last_sealed(self) -> Sealed | None:
        """What the sealed list says of the last segment; None where that is the active one."""
        return None if not self.segments or self.continued is not None else self.sealed.get(self.base)

    @cached_property
    def damage(self) -> DuramenError | None:
        """Why nothing may be appended: the first damage found. With ``cut_damage``, only damage that cannot be cut."""
        found = self._sealed_damage()
        if found is not None:
            return found
        if self.segments and self.last_sealed is None:
            path = self.full(self.last.segment.path)
            if self.segment is None and self.mark is not None and self.mark.durable_offset > self.base:
                return CorruptionError("the header of a segment with durable records is missing", path=path, position=0)
            if self.segment is not None and not self.cut_damage and self.is_damaged:
                return self.end.error(path)
            if self.segment is not None and not self.cut_damage and self.contradiction is not None:
                return self.contradiction.error(path)
        if not self.cut_damage:
            try:
                refuse_damage(self.disk, self.root, self.fmt, self.directory)
            except DuramenError as error:
                return error
        return None

    def _sealed_damage(self) -> CorruptionError | None:
        """Names and sizes against the sealed list and the watermark. Segments missing at the start were removed on
        purpose."""
        present = {files.base: files for files in self.segments}
        oldest = min((base for base in present if base is not None), default=None)
        for base, entry in {} if self.agreed is not None else self.sealed.items():
            found = present.get(base)
            if found is None:
                if oldest is None or base > oldest:
                    return self._missing("a sealed segment is missing", self._given.segment_path(base), base)
            elif found.segment.size_bytes != entry.size_bytes and found is not self.continued:
                message = f"a sealed segment has {found.segment.size_bytes} bytes instead of {entry.size_bytes}"
                return self._missing(message, found.segment.path, base)
        mark = self.watermark
        newest = self.base if self.segments else -1
        if mark is not None and mark.base > newest and lacks_active(self.disk, self.root, self._given, mark):
            return self._missing("the active segment is missing", self._given.segment_path(mark.base), None)
        return None

    def _missing(self, message: str, path: str, offset: int | None) -> CorruptionError:
        hint = "restore it from a copy; `duramen repair` shows what can be done without"
        return CorruptionError(message, path=self.full(path), offset=offset, hint=hint)

    # --- a log that is as it was closed

    @cached_property
    def clean_close(self) -> CleanClose | None:
        """What the last writer left when it closed the log, if no file that appending relies on has changed since, and
        the records from the last index entry on end where the watermark says."""
        mark = self.watermark
        if mark is None or mark.is_open or self.swap is not None or self.tx is not None or not self.segments:
            return None
        if self.base != mark.base or not self.is_agreed_before:
            return None
        closing = read_clean_close(self.disk, self.root)
        others = [file for file in self.directory.others if file.name.role not in _NOT_FOR_APPENDING]
        paths = [self.last.segment.path, *(file.path for file in (*self.last.derived.values(), *others))]
        if closing is None or closing.mark != mark or not closing.is_present(self.disk, self.root, paths):
            return None
        segment = self.last_segment
        is_same = closing.settings == settings_of(self._given.continuing(segment))
        return closing if is_same and self._ends_at(mark, segment) else None

    def _ends_at(self, mark: Watermark, segment: Segment) -> bool:
        """Whether the records from the last index entry on are whole and end at the watermark."""
        cursor = self._near_end(self.last, segment)
        if cursor == segment.start and not self._given.capabilities.index and mark.next_offset > segment.base_offset:
            slots = mark.next_offset - segment.base_offset
            slot_bytes = (mark.position - segment.start.position) // slots
            cursor = segment.cursor_at(mark.next_offset - 1, mark.position - slot_bytes) or cursor
        rows = segment.last_step(cursor)
        return rows.stop == Stop.END and rows.cursor == ScanPosition(mark.position, mark.next_offset - 1)

    @property
    def is_agreed_before(self) -> bool:
        """Whether every segment before the last one is sealed and as the sealed list says."""
        before = None if self.before is None else self.before.base
        return before == (None if self.agreed is None else self.agreed.base)

    # --- the last segment

    @cached_property
    def last(self) -> SegmentFiles:
        return self.segments[-1]

    @cached_property
    def base(self) -> int:
        return self.last.base or 0

    @property
    def before(self) -> SegmentFiles | None:
        return self.segments[-2] if len(self.segments) > 1 else None

    @cached_property
    def last_segment(self) -> Segment:
        return self.open(self.last)

    @cached_property
    def previous(self) -> Segment | None:
        return None if self.before is None else self._open_in(self._given, self.before)

    @cached_property
    def mark(self) -> Watermark | None:
        """The watermark, if it is that of the last segment."""
        return self.watermark if self.watermark is not None and self.watermark.base == self.base else None

    @property
    def durable_position(self) -> int:
        return 0 if self.mark is None else self.mark.durable_position

    @cached_property
    def data(self) -> memoryview:
        return self.disk.map(self.full(self.last.segment.path)).data

    @cached_property
    def fmt(self) -> Format:
        """The format, in the dialect of the segment before the last one where another program wrote the log: that
        segment cannot be torn."""
        if self.watermark is None and self.last_sealed is None and self.previous is not None:
            return self._given.continuing(self.previous)
        return self._given

    @cached_property
    def segment(self) -> Segment | None:
        """The last segment; None if it lacks its header, or a part of what it starts with."""
        if has_not_begun(self.fmt, self.data, self.base, self.previous, self.watermark):
            return None
        try:
            segment = self.fmt.open_segment(self.data, self.base)
        except IncompleteHeaderError:
            return None
        except CorruptionError as error:
            error.path = error.path or self.full(self.last.segment.path)
            raise
        return None if not segment.start.position and self.fmt.segment_header(self.base, 0) else segment

    # --- where its records end

    @cached_property
    def tail(self) -> TailScan:
        """The records of the last segment, as far as the watermark's digest proves them."""
        segment = self.segment
        assert segment is not None
        began = time.perf_counter()
        fmt = self.fmt.continuing(segment)
        tail = TailScan(segment, fmt)
        proven_bytes = self._proven_bytes(segment, tail.end)
        if proven_bytes < len(self.data):
            tail = TailScan(self.fmt.open_segment(self.data[:proven_bytes], self.base), fmt)
        tail.seconds = time.perf_counter() - began
        return tail

    @cached_property
    def end(self) -> SegmentEnd:
        """Where the records end; damage, if that is before the durable watermark."""
        return against_mark(self.tail.end, self.base, self.mark)

    @property
    def is_unsynced(self) -> bool:
        return is_unfinished(self.end, self.tail.segment, self.mark)

    @property
    def is_damaged(self) -> bool:
        return self.end.ending in (EndKind.DAMAGE, EndKind.UNKNOWN_VERSION) and not self.is_unsynced

    @cached_property
    def contradiction(self) -> Contradiction | None:
        """What the durable watermark says that the records contradict."""
        return find_contradiction(self.tail.segment, self.mark)

    @property
    def is_torn(self) -> bool:
        return self.end.ending == EndKind.TORN or (self.zeros_follow and self.ends_in_doubt)

    @property
    def is_unproven(self) -> bool:
        return self._is_shortened and not self.zeros_follow

    @cached_property
    def zeros_follow(self) -> bool:
        """Whether only zeros follow the last record."""
        if self._is_shortened:
            return kernel.is_zero(self.data, len(self.tail.segment.buf), len(self.data))
        return self.end.ending == EndKind.CLEAN and self.end.stop == Stop.ZEROS

    @property
    def _is_shortened(self) -> bool:
        """Whether bytes follow that the watermark's digest does not prove, after a clean end of those that it does."""
        return len(self.tail.segment.buf) < len(self.data) and self.end.ending == EndKind.CLEAN

    @property
    def ends_in_doubt(self) -> bool:
        """Whether the last record may be the first half of another one: its header crosses a sector, and it was never
        durable."""
        return self.tail.in_doubt and self.tail.end.position > self.durable_position

    def _proven_bytes(self, segment: Segment, end: SegmentEnd) -> int:
        """How many bytes of a log that was not closed are proven. A power loss may keep the watermark and lose bytes
        that were acknowledged at ``write``: then the digest differs, and only the durable bytes are proven, unless the
        records' own checksums show the first place that was lost."""
        size, mark = len(segment.buf), self.mark
        if mark is None or not mark.is_open or not (mark.has_digest or not segment.record_checksum):
            return size
        if mark.position <= size and kernel.crc32c(segment.buf[: mark.position]) == mark.crc32c:
            return size if segment.record_checksum else mark.position
        if mark.durable_position > size or find_contradiction(segment, mark) is not None:
            return size  # damage: `end` and `contradiction` say where
        is_torn = segment.record_checksum and end.position < mark.position
        return size if is_torn else mark.durable_position

    def overruled_tail(self) -> TailScan:
        """The records to keep although the watermark contradicts them: those before the record that lies across the
        durable watermark, or all if a record ends there."""
        tail, mark = self.tail, self.mark
        assert mark is not None
        kept = tail.segment
        if offset_after(kept, mark.durable_position) is None:
            below = TailScan(self.fmt.open_segment(kept.buf[: mark.durable_position], self.base), tail.fmt)
            kept = self.fmt.open_segment(kept.buf[: below.end.position], self.base)
        return TailScan(kept, tail.fmt)

    # --- its indexes

    def compare_indexes(self, wanted: Mapping[Role, bytes], ending: Mapping[Role, bytes]) -> None:
        """Compare the index files with those that the records give; ``ending`` are the entries that follow in a
        segment that does not grow."""
        for role, content in wanted.items():
            name = self.fmt.path_of(role, self.base)
            data = self.disk.map(self.full(name)).data if role in self.last.derived else None
            self.indexes.append(IndexFile(role, name, content, data, ending.get(role, b"")))

    @property
    def has_wrong_index(self) -> bool:
        return not all(index.is_right for index in self.indexes)

    # --- times

    def last_us(self, segments: Sequence[SegmentFiles]) -> int:
        """The latest time in these segments, which later records may not go back before; 0 without that rule."""
        limits = self._given.capabilities
        if limits.timestamps is None or not limits.ordered_timestamps:
            return 0
        for files in reversed(segments):
            try:
                segment = self.open(files)
            except CorruptionError:
                return 0  # `verify` reports it: recovery does not check sealed segments
            last = None
            rows = segment.scan(self._near_end(files, segment), verify=False)
            while rows.count:
                last = rows
                rows = segment.scan(rows.cursor, verify=False)
            if last is not None:
                return max(0, int(last.columns.timestamp[-1])) * limits.time_unit_us  # type: ignore[attr-defined]
        return 0

    def _near_end(self, files: SegmentFiles, segment: Segment) -> ScanPosition:
        """The last position that the index names; the start of the segment without one."""
        found = files.derived.get(Role.INDEX)
        if found is not None:
            index = self._given.open_index(Role.INDEX, self.disk.map(self.full(found.path)).data, segment.base_offset)
            entry = None if index is None else index.floor(MAX_OFFSET)
            cursor = None if entry is None else segment.cursor_at(*entry)
            if cursor is not None:
                return cursor
        return segment.start


def _index_sizes(files: SegmentFiles) -> list[int]:
    return [files.derived[role].size_bytes for role in sorted(files.derived)]


def _has_wrong_index(files: SegmentFiles, entry: Sealed | None) -> bool:
    if entry is None or entry.indexes is None:
        return not files.derived
    return [index.size_bytes for index in entry.indexes] != _index_sizes(files)


class IndexFile(NamedTuple):
    """An index of the active segment: the bytes that the records give, and those of its file, if it exists."""

    role: Role
    name: str
    wanted: bytes
    data: memoryview | None
    ending: bytes = b""

    @property
    def is_right(self) -> bool:
        """Whether the file exists and is right as far as it goes."""
        if self.data is None:
            return False
        return self.is_complete or self.wanted.startswith(bytes(self.data[: len(self.wanted) + 1]))

    @property
    def is_complete(self) -> bool:
        """Whether it is that of a segment that does not grow."""
        whole = self.wanted + self.ending
        return bool(self.ending) and self.data is not None and len(self.data) == len(whole) and self.data == whole


class TailScan:
    """A walk over the records of the active segment: where they end, their index, and what appending needs to know."""

    def __init__(self, segment: Segment, fmt: Format) -> None:
        self.segment = segment
        self.fmt = fmt
        self.seconds = 0.0
        """How long the walk took."""
        self.index: IndexBuilder = fmt.index_builder(segment.base_offset, segment.created_ms)
        self.rows = 0
        self.records = 0
        self.first_us: int | None = None
        self.last_us: int | None = None
        self._us = fmt.capabilities.time_unit_us
        self._last: Rows | None = None
        for rows in segment.steps():
            if len(rows.columns):
                self._count_last()
                self._last = rows
        self.end = classify_rows(segment, rows, is_last=True)
        self.in_doubt = self._last is not None and segment.ends_in_doubt(self._last)

    def finish(self, *, without_last: bool) -> ScanPosition:
        """Where appending goes on, with or without the last row."""
        last = self._last
        if last is None or not without_last:
            self._count_last()
            return ScanPosition(self.end.position, self.end.previous_offset)
        kept = len(last.columns) - 1
        cursor = ScanPosition(int(last.columns.position[kept]), int(last.columns.first_offsets[kept]) - 1)
        records = int(last.columns.user_records[:kept].sum())
        self._last = Rows(last.columns.head(kept), records, last.end)
        self._count_last()
        return cursor

    def _count_last(self) -> None:
        """Count the rows of the last scan, and index them."""
        rows, self._last = self._last, None
        if rows is None:
            return
        self.index.add(rows)
        self.rows += len(rows.columns)
        self.records += rows.count
        times = getattr(rows.columns, "timestamp", None)
        if self._us and times is not None and len(times):
            self.first_us = int(times[0]) * self._us if self.first_us is None else self.first_us
            self.last_us = max(int(times.max()) * self._us, self.last_us or 0)
