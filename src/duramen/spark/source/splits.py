"""Dividing logs into work for tasks: by bytes, along the index, without reading a payload.

A `Piece` is a range of bytes of one segment file that begins and ends where a record does; a `Split` is the pieces of
one task. A large segment gives many pieces, and many small segments go into one split. Every record that was
acknowledged when the split was planned lies in exactly one piece: the plan is the snapshot.
"""

from __future__ import annotations

import posixpath
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from duramen.disk import ArrowDisk, Disk, Kind, Look
from duramen.errors import CorruptionError, DuramenError, IncompleteHeaderError
from duramen.formats import Format, Index, Role, ScanPosition, Segment
from duramen.log import Log, SegmentInfo, SidecarEvidence, index_bytes
from duramen.record import MAX_OFFSET
from duramen.sidecar import Sealed, Watermark
from duramen.spark.source.discovery import LogSource
from duramen.spark.source.identity import made_at
from duramen.spark.source.options import MAX_PARTITION_BYTES, MIN_PARTITION_BYTES

OPEN_COST_BYTES = 64 << 10
"""What opening a file costs, as if it were so many bytes more: thousands of small segments make a few tasks, and not
one task of thousands of files."""
DEFAULT_TASKS = 16
"""How many tasks a log is divided into if they can be of a sensible size: enough for a few machines."""
NO_PAYLOAD_SHARE = 8
"""How much more of a log a task takes that jumps over payloads: otherwise starting it costs more than its work."""

HEADER_BYTES = 4096
"""What is fetched of a remote file to see whether a record begins there."""


AGGREGATES = ("count", "min", "max")
"""Names of what `OffsetAggregates` holds, in its order."""


class Range(NamedTuple):
    """The offsets that are wanted of one log; ``to_offset`` is exclusive."""

    from_offset: int = 0
    to_offset: int = MAX_OFFSET


class OffsetAggregates(NamedTuple):
    """Of some records: how many, the smallest and the largest offset."""

    records: int = 0
    first: int | None = None
    last: int | None = None

    def plus(self, records: int, first: int, last: int) -> OffsetAggregates:
        """With more records, of which there is at least one."""
        return OffsetAggregates(
            self.records + records,
            first if self.first is None else min(self.first, first),
            last if self.last is None else max(self.last, last),
        )

    def plus_batch(self, batch: pa.RecordBatch) -> OffsetAggregates:
        if not batch.num_rows:
            return self
        ends = pc.min_max(batch.column("offset")).as_py()
        return self.plus(batch.num_rows, ends["min"], ends["max"])

    def batch(self, names: Sequence[str], schema: pa.Schema) -> pa.RecordBatch:
        """One row, with a column for each of these names of `AGGREGATES`."""
        values = dict(zip(AGGREGATES, self, strict=True))
        return pa.RecordBatch.from_arrays([pa.array([values[name]], pa.int64()) for name in names], schema=schema)


@dataclass(frozen=True)
class LogSpec:
    """What an executor must know of a log, so that it need not look at the directory."""

    place: LogSource
    format: str
    options: dict[str, Any]
    root: str
    made: str | None = None
    """Which log it was when the read was planned, as far as its sidecar says."""


@dataclass(frozen=True)
class Piece:
    """Bytes ``start.position`` to ``end_position`` of a segment file, of which the records from ``from_offset`` to
    before ``to_offset`` are wanted."""

    log: int
    path: str
    base: int | None
    visible_bytes: int
    is_last: bool
    start: ScanPosition | None
    """None: where the first record lies."""
    end_position: int
    from_offset: int
    to_offset: int
    next_base: int | None = None
    """Where the following segment begins; None for the last one."""
    sealed: Sealed | None = None
    """What the whole file was when it was sealed, for the piece that reaches its end: it compares the digest."""
    mark: Watermark | None = None
    """What was durable of the active segment, for the piece that reaches its end, where no writer is at work."""

    @property
    def size_bytes(self) -> int:
        return self.end_position - (0 if self.start is None else self.start.position)


@dataclass(frozen=True)
class Split:
    logs: tuple[LogSpec, ...]
    pieces: tuple[Piece, ...]
    counted: OffsetAggregates = OffsetAggregates()
    """Of records that are not in the pieces: nothing but their aggregates is needed, and the driver knows those."""

    @property
    def size_bytes(self) -> int:
        return sum(piece.size_bytes for piece in self.pieces)


class Planned(NamedTuple):
    """One log, what is wanted of it, and what its sidecar said before its files were listed."""

    place: LogSource
    log: Log
    bounds: Range
    evidence: SidecarEvidence | None = None
    grown: frozenset[int] = frozenset()
    """Bases of segments that are read as they were before: the sidecar speaks of what they are now."""

    def witnesses(self, info: SegmentInfo) -> tuple[Sealed | None, Watermark | None]:
        """What the sidecar has to say about one segment."""
        if self.evidence is None or info.base_offset in self.grown:
            return None, None
        known, mark = self.evidence.sealed.get(info.base_offset), self.evidence.watermark
        is_active = mark is not None and mark.base == info.base_offset and not self.evidence.is_being_written
        return known, mark if is_active and not info.sealed else None


def spec_of(log: Log, place: LogSource) -> LogSpec:
    return LogSpec(place, log.codec.name, dict(log.codec.options), log.path, made_at(log.disk, log.path))


def plan_splits(
    logs: Sequence[Planned],
    disk: Disk,
    *,
    max_bytes: int | None = None,
    min_splits: int = 1,
    payload: bool = True,
    most_bytes: int = MAX_PARTITION_BYTES,
    max_records: int | None = None,
    without: Collection[str] = (),
) -> list[Split]:
    """The splits of all logs together. ``payload``: whether payloads are read, and not jumped over. ``most_bytes``:
    the most that a split gets where ``max_bytes`` is not given. ``max_records``: offsets of a split at most, as far as
    chunks can be divided. ``without``: paths of segments to leave out."""
    wanted = [[one for one in wanted_segments(log.log, log.bounds) if one[0].path not in without] for log in logs]
    total = sum(segment.size_bytes for segments in wanted for segment, _ in segments)
    is_walk = not payload and not isinstance(disk, ArrowDisk)  # from afar, all bytes of a piece are fetched
    share = NO_PAYLOAD_SHARE if is_walk else 1
    target = max_bytes or min(most_bytes * share, max(MIN_PARTITION_BYTES * share, total // DEFAULT_TASKS))
    cost = min(OPEN_COST_BYTES, target // 16)
    if min_splits > 1:
        target, cost = min(target, max(1, total // min_splits)), 0
    pieces = [
        piece
        for number, one in enumerate(logs)
        for segment, next_base in wanted[number]
        for piece in _cut(one, disk, segment, next_base, number, target)
    ]
    specs = tuple(spec_of(one.log, one.place) for one in logs)
    if max_records is not None:
        parts = [part for piece in pieces for part in _cut_records(logs[piece.log].log, disk, piece, max_records)]
        return [_split(specs, group) for group in _pack(parts, target, cost, max_records)]
    return [_split(specs, group) for group in _pack(((piece, 0) for piece in pieces), target, cost, 0)]


def _split(specs: tuple[LogSpec, ...], pieces: list[Piece]) -> Split:
    """A split with those logs alone that its pieces are of."""
    used = sorted({piece.log for piece in pieces})
    new = {old: number for number, old in enumerate(used)}
    if used != list(range(len(used))):
        pieces = [replace(piece, log=new[piece.log]) for piece in pieces]
    return Split(tuple(specs[old] for old in used), tuple(pieces))


def _pack(pieces: Iterable[tuple[Piece, int]], target: int, cost: int, max_records: int) -> Iterator[list[Piece]]:
    """Neighbours share a task until it is full: they are read in order, and one directory at a time. Each comes with
    its number of records, which counts beside its bytes."""
    group: list[Piece] = []
    size = records = 0
    for piece, count in pieces:
        added = piece.size_bytes + cost
        if group and (size + added > target + cost or records + count > max_records):
            yield group
            group, size, records = [], 0, 0
        group.append(piece)
        size += added
        records += count
    if group:
        yield group


def _cut_records(log: Log, disk: Disk, piece: Piece, max_records: int) -> Iterator[tuple[Piece, int]]:
    """A piece in parts of so many offsets, each with its number of offsets. Bytes of two parts never overlap."""
    info = next(info for info in log.segments if info.path == piece.path)
    end = min(piece.to_offset, log.next_offset if piece.next_base is None else piece.next_base)
    at = info.base_offset if piece.start is None else piece.start.previous_offset + 1
    at = max(at, piece.from_offset)
    if end - at <= max_records:
        yield piece, max(end - at, 0)
        return
    look = Look(disk, info.path)
    try:
        segment = open_segment(log, info, look)
    except CorruptionError:
        segment = None  # the task that reads it does what ``onDamage`` says
    marks = None if segment is None else _Marks(log.codec, segment, _index(log, disk, info), look)
    rest = piece
    while marks is not None and end - at > max_records:
        begin = (rest.start or marks.start).position
        cut = marks.row_of(at + max_records, begin)
        if cut is None or not begin < cut.position < piece.end_position:
            break
        following = cut.previous_offset + 1
        yield replace(rest, end_position=cut.position, sealed=None, mark=None), following - at
        rest, at = replace(rest, start=cut), following
    yield rest, max(end - at, 0)


def wanted_segments(log: Log, bounds: Range) -> list[tuple[SegmentInfo, int | None]]:
    """The segments that can hold a record of the range, by their bases; each with the base of the one that follows."""
    segments = log.segments
    if bounds.from_offset >= bounds.to_offset or not segments:
        return []
    bases = [segment.base_offset for segment in segments]
    first = max(bisect_right(bases, bounds.from_offset) - 1, 0)
    end = max(bisect_left(bases, bounds.to_offset), 1)
    return list(zip(segments[first:end], (*bases[first + 1 :], None), strict=False))


def bytes_within(log: Log, disk: Disk, bounds: Range) -> int:
    """The bytes of the records of a range, as near as the indexes of its first and last segment tell."""
    wanted = wanted_segments(log, bounds)
    ends = {number: wanted[number] for number in (0, len(wanted) - 1) if wanted}
    one = Planned(LogSource("", 0, log.path), log, bounds)
    cut = [piece for info, following in ends.values() for piece in _cut(one, disk, info, following, 0, 1 << 62)]
    return sum(piece.size_bytes for piece in cut) + sum(info.size_bytes for info, _ in wanted[1:-1])


def _cut(
    one: Planned, disk: Disk, info: SegmentInfo, next_base: int | None, number: int, target: int
) -> Iterator[Piece]:
    log, bounds = one.log, one.bounds
    whole = Piece(number, info.path, _base(log, info), info.size_bytes, not info.sealed, None, info.size_bytes,
                  bounds.from_offset, bounds.to_offset, next_base, *one.witnesses(info))  # fmt: skip
    inside = info.base_offset < bounds.from_offset or bounds.to_offset < MAX_OFFSET
    if info.size_bytes <= target and not (inside and info.size_bytes > MIN_PARTITION_BYTES // 8):
        yield whole
        return
    look = Look(disk, info.path)
    try:
        segment = open_segment(log, info, look)
    except CorruptionError:
        segment = None  # the task that reads it does what ``onDamage`` says
    if segment is None:
        yield whole
        return
    marks = _Marks(log.codec, segment, _index(log, disk, info), look)
    start = marks.before_offset(bounds.from_offset)
    end_position = marks.position_of(bounds.to_offset)
    while True:
        begin = (start or segment.start).position
        cut = marks.near_position(begin + target, begin) if end_position - begin > target * 1.25 else None
        if cut is None or not begin < cut.position < end_position:
            yield _part(whole, start, end_position)
            return
        yield _part(whole, start, cut.position)
        start = cut


def _part(whole: Piece, start: ScanPosition | None, end_position: int) -> Piece:
    """A part of a segment. The one that reaches the end compares the file with what the sidecar says."""
    if end_position == whole.visible_bytes:
        return replace(whole, start=start)
    return replace(whole, start=start, end_position=end_position, sealed=None, mark=None)


def open_segment(log: Log, info: SegmentInfo, look: Look) -> Segment | None:
    """The segment as far as it is visible; None for the last one whose writer was stopped inside its header."""
    try:
        return log.codec.open_segment(look.data[: info.size_bytes], _base(log, info))
    except IncompleteHeaderError:
        if info.sealed:
            raise
        return None
    except DuramenError as error:
        error.path = error.path or info.path
        raise


def first_us(log: Log, disk: Disk, info: SegmentInfo) -> int | None:
    """The time of a segment's first record, if it has one."""
    segment = open_segment(log, info, Look(disk, info.path))
    if segment is None:
        return None
    for rows in segment.steps(max_records=1, verify=False):
        if rows.count:
            found = segment.decode(rows, ("offset", "timestamp")).column(1).view(pa.int64())
            return None if not len(found) else found[0].as_py()
    return None


def offset_behind(log: Log, disk: Disk, wanted: Range, budget_bytes: int) -> int:
    """How far one gets from the beginning of a range with so many bytes; always one record further."""
    for info, _ in wanted_segments(log, wanted):
        look = Look(disk, info.path)
        segment = open_segment(log, info, look)
        if segment is None:
            break
        cursor = _Marks(log.codec, segment, _index(log, disk, info), look).before_offset(wanted.from_offset)
        cursor = cursor or segment.start
        look.fetch(cursor.position, info.size_bytes)
        for rows in segment.steps(cursor, max_records=1 << 16, max_bytes=1 << 30, verify=False):
            lasts = rows.columns.last_offsets
            skipped = int(np.searchsorted(lasts, wanted.from_offset))
            ends = np.append(rows.columns.position[1:], rows.end.position)[skipped:]
            used = ends - (int(rows.columns.position[skipped]) if len(ends) else 0)
            fitting = int(np.searchsorted(used, budget_bytes, side="right"))
            if fitting < len(used):
                following = int(lasts[skipped + max(fitting, 1) - 1]) + 1
                return min(max(following, wanted.from_offset + 1), wanted.to_offset)
            budget_bytes = max(budget_bytes - (int(used[-1]) if len(used) else 0), 0)
    return wanted.to_offset


def bytes_from(log: Log, disk: Disk, offset: int) -> int:
    """Bytes of segments from the record with that offset on, to the nearest entry of the index. In a log that is not
    local the segment of the offset counts whole."""
    segments = log.segments
    first = max(bisect_right(segments, offset, key=lambda info: info.base_offset) - 1, 0)
    size_bytes = sum(info.size_bytes for info in segments[first:])
    if not segments or isinstance(disk, ArrowDisk):
        return size_bytes
    look = Look(disk, segments[first].path)
    segment = open_segment(log, segments[first], look)
    if segment is None:
        return size_bytes
    start = _Marks(log.codec, segment, _index(log, disk, segments[first]), look).before_offset(offset)
    return size_bytes - (segment.start if start is None else start).position


def first_offset(log: Log) -> int:
    """The base of the oldest segment, as its name says it: no file is opened."""
    bases = log.snapshot.bases
    return bases[0] if bases else 0


def _base(log: Log, info: SegmentInfo) -> int | None:
    """What the file's name says about its first offset."""
    if info.path != log.path:
        return info.base_offset  # a directory lists no segment whose name does not say it
    name = log.codec.classify(posixpath.basename(info.path))
    return None if name is None else name.base


def _index(log: Log, disk: Disk, info: SegmentInfo) -> Index | None:
    if info.path == log.path or not log.codec.capabilities.index:
        return None
    path = posixpath.join(log.path, log.codec.path_of(Role.INDEX, info.base_offset))
    if disk.kind(path) != Kind.FILE:
        return None
    index = log.codec.open_index(Role.INDEX, index_bytes(disk, log.codec, path), info.base_offset)
    is_usable = index is not None and index.positions is not None and len(index) and index.in_order()
    return index if is_usable else None


class _Marks:
    """Places in a segment where a record is known to begin: from its index, by arithmetic, or by a walk along the
    headers. Each is checked against the bytes before it is used, so a wrong index costs parallelism, not records.

    Looked up with `bisect`: numpy would compare unsigned offsets as floats, which are not exact, and read all of them.
    """

    def __init__(self, codec: Format, segment: Segment, index: Index | None, look: Look) -> None:
        self._segment = segment
        self._look = look
        self._index = index
        self._walked: tuple[Any, Any] | None = None
        self._stride = 0
        if index is None and not codec.capabilities.index:
            rows = segment.scan(segment.start, max_records=1, verify=False)
            self._stride = rows.end.position - segment.start.position if rows.count == 1 else 0

    def before_offset(self, offset: int) -> ScanPosition | None:
        """The nearest mark at or before an offset."""
        if offset <= self._segment.base_offset:
            return None
        if self._stride:
            return self._by_stride(offset - self._segment.base_offset)
        offsets, positions = self._table()
        row = bisect_right(offsets, offset) - 1
        if row < 0 or int(offsets[row]) > offset:  # an index that is not in order
            return None
        return self._checked(offsets, positions, row)

    def position_of(self, offset: int) -> int:
        """A position that every record before ``offset`` precedes, as near as the index tells."""
        size = len(self._segment.buf)
        if offset >= MAX_OFFSET:
            return size
        if self._stride:
            cursor = self._by_stride(offset - self._segment.base_offset)
            return size if cursor is None else cursor.position
        offsets, positions = self._table()
        row = bisect_left(offsets, offset)
        for mark in (row, row + 1):  # an index of Kafka names the last offset of a batch, which may begin before
            cursor = self._checked(offsets, positions, mark)
            if cursor is not None and cursor.previous_offset + 1 >= offset:
                return cursor.position
        return size

    @property
    def start(self) -> ScanPosition:
        return self._segment.start

    def row_of(self, offset: int, behind: int) -> ScanPosition | None:
        """The record or chunk that holds ``offset``, or the next one, after a position. In a remote file the next mark
        of the index: a walk would fetch what lies between."""
        if self._look.is_remote and not self._stride:
            offsets, positions = self._table()
            return self._checked(offsets, positions, bisect_left(offsets, offset))
        start = self.before_offset(offset) or self._segment.start
        for rows in self._segment.steps(start, max_records=1 << 12, verify=False):
            row = max(
                int(np.searchsorted(rows.columns.last_offsets, offset)),
                int(np.searchsorted(rows.columns.position, behind, side="right")),
            )
            if row < len(rows.columns):
                first, position = int(rows.columns.first_offsets[row]), int(rows.columns.position[row])
                return self._segment.cursor_at(first, position)
        return None

    def near_position(self, position: int, begin: int) -> ScanPosition | None:
        """The mark nearest to a position, after ``begin``."""
        if self._stride:
            return self._by_stride(-(-(position - self._segment.start.position) // self._stride))
        offsets, positions = self._table()
        row = bisect_left(positions, position)
        if 0 < row < len(positions):
            before, after = int(positions[row - 1]), int(positions[row])
            if before > begin and position - before < after - position:
                row -= 1
        return self._checked(offsets, positions, row)

    def _by_stride(self, row: int) -> ScanPosition | None:
        start = self._segment.start
        position = start.position + row * self._stride
        if row < 0 or position >= len(self._segment.buf):
            return None
        self._look.fetch(position, position + HEADER_BYTES)
        return self._segment.cursor_at(self._segment.base_offset + row, position)

    def _checked(self, offsets: Any, positions: Any, row: int) -> ScanPosition | None:
        if not 0 <= row < len(offsets) or int(offsets[row]) >= 2**63:
            return None
        position = int(positions[row])
        self._look.fetch(position, position + HEADER_BYTES)
        return self._segment.cursor_at(int(offsets[row]), position)

    def _table(self) -> tuple[Any, Any]:
        if self._index is not None:
            return self._index.offsets, self._index.positions
        if self._walked is None:
            self._walked = self._walk()
        return self._walked

    def _walk(self) -> tuple[Any, Any]:
        """Every so many records, one mark: no checksum is computed and no payload looked at."""
        offsets, positions = [], []
        steps = self._segment.steps(max_bytes=1 << 20, max_records=1 << 16, verify=False)
        for rows in () if self._look.is_remote else steps:  # there, it would fetch the whole file
            if len(rows.columns):
                offsets.append(int(rows.columns.first_offsets[0]))
                positions.append(int(rows.columns.position[0]))
        return np.array(offsets, np.int64), np.array(positions, np.int64)
