"""Make a consistent copy of a log, even while a writer appends to it, optionally up to an offset or a time.

The copy holds what the writer had acknowledged when the copy began. Segments are copied byte by byte and every record
is checked; the last one ends after a whole record. Derived files are rebuilt. The copy is verified as a whole before it
gets its name, and can be opened for append. Damage in the source stops the copy: repair the log first.

The state of consumers and writers (cursors, groups, the ledger) is read before the records, so that it is never ahead
of them. A copy that ends at an earlier offset leaves it out.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from duramen.arguments import check_int
from duramen.disk import Disk
from duramen.errors import CorruptionError, UsageError
from duramen.formats import Encoded, Format, Role, Rows, ScanPosition, Segment, Severity
from duramen.kernel import ScanEnd, Stop
from duramen.log.segments import BuiltSegment, LogBuilder, SegmentBuilder, refuse_taken
from duramen.log.transfer.source import SOURCE_HINT, Source, SourcePart
from duramen.log.verify import Report, counted, verify_log
from duramen.record import MAX_OFFSET, checked_us
from duramen.sidecar import (
    COMPACTION_PATH,
    LOSSES_PATH,
    CompactionState,
    encode_known_losses,
    known_loss_of,
    read_compaction_state,
)

Progress = Callable[[int], None]


class Until(NamedTuple):
    """The first record that is not copied: by offset, by time, or none."""

    offset: int | None = None
    time_us: int | None = None

    def cut(self, segment: Segment, rows: Rows) -> int | None:
        """Return the offset at which the copy ends, if it lies in these rows."""
        end = MAX_OFFSET + 1 if self.offset is None else self.offset
        if self.time_us is not None and rows.count:
            batch = segment.decode(rows, ("offset", "timestamp"))
            times = batch.column("timestamp").view(pa.int64()).fill_null(-(2**63)).to_numpy(zero_copy_only=False)
            late = np.flatnonzero(times >= self.time_us)
            if len(late):
                end = min(end, batch.column("offset")[int(late[0])].as_py())
        return end if end <= rows.end.last_offset else None


@dataclass
class Copied:
    """What a copy holds."""

    path: str
    format: str
    records: int
    size_bytes: int
    segments: int
    first_offset: int
    next_offset: int
    state: list[str]
    """The files of consumers and writers that were copied."""
    left_behind: int
    """How many of them were not, because the copy ends at an earlier offset."""
    torn_bytes: int
    """Bytes after the last whole record of the source; they were not acknowledged."""
    is_update: bool = False
    """Whether an existing copy was updated: records, bytes and segments are then the new ones."""
    replaced: int = 0
    """Segments that compaction had rewritten at the source."""
    removed: int = 0
    """Segments that compaction had emptied at the source."""


class Copy:
    """One copy: the constructor opens the source, `run` copies it."""

    def __init__(
        self,
        src: str,
        dst: str,
        *,
        until_offset: int | None = None,
        until_time: Any = None,
        format: str | None = None,
        disk: Disk | None = None,
        options: dict[str, Any] | None = None,
        nested: bool = False,
    ) -> None:
        refuse_inside(src, dst)
        self.path = dst
        self.source = Source(src, format=format, disk=disk, options=options)
        refuse_taken(self.source.disk, dst, nested=nested)
        self._until = self._bound(until_offset, until_time)

    def _bound(self, offset: int | None, when: Any) -> Until:
        fmt = self.source.fmt
        if offset is not None and when is not None:
            raise UsageError("give until_offset or until_time, not both")
        if offset is not None:
            check_int("until_offset", offset)
        if when is None:
            return Until(offset)
        if fmt.capabilities.timestamps is None:
            raise UsageError(f"{fmt.name} records have no time", path=self.source.path)
        return Until(None, checked_us(when))

    def run(self, progress: Progress | None = None, check_progress: Progress | None = None) -> Copied:
        """Copy. The destination is complete when this returns, and missing if it raises."""
        source, state = self.source, [*self.source.format_state, *self.source.state]
        with LogBuilder(self.path, source.written_as, disk=source.disk, created_ms=source.created_ms) as builder:
            builder.described_by = source.files(Role.MANIFEST)
            is_cut = copy_parts(builder, source, self._until, progress or _ignore)
            if not is_cut:
                copy_state(builder, source)
            copy_losses(builder, source)
            builder.finish()
            check(builder, sum(built.records for built in builder.segments), check_progress)
            builder.publish()
        built = builder.segments
        return Copied(
            builder.path, source.fmt.name, sum(segment.records for segment in built),
            sum(segment.size_bytes for segment in built), len(built), built[0].base, built[-1].next_offset,
            [] if is_cut else sorted(state), len(state) if is_cut else 0, source.torn_bytes,
        )  # fmt: skip


def copy_parts(builder: LogBuilder, source: Source, until: Until, progress: Progress) -> bool:
    """Copy the segments as they are. Returns whether the copy ends before the source does."""
    source.check_presence()
    previous: BuiltSegment | None = None
    for part in source.parts:
        if until.offset is not None and part.base is not None and part.base >= until.offset and previous is not None:
            return True
        built, is_cut = copy_part(_begin(builder, source, part), source, part, until, progress)
        if is_cut and not built.records and previous is not None:
            _discard(builder, built)  # the cut lies at the seam
            return True
        if previous is not None and is_lost(source, previous.next_offset, built.base):
            raise CorruptionError(
                f"{counted(built.base - previous.next_offset, 'offset')} missing before this segment",
                path=part.path, offset=previous.next_offset, hint="a segment is lost: `duramen repair` repairs the log",
            )  # fmt: skip
        sealed_ms = source.sealed_ms(built.base)
        builder.add(built if sealed_ms is None else replace(built, sealed=replace(built.sealed, sealed_ms=sealed_ms)))
        if is_cut:
            return True
        previous = built
    return False


def is_lost(source: Source, expected: int, base: int) -> bool:
    """Whether a segment between two others is lost, and no repair has listed it as a known loss."""
    if not source.fmt.capabilities.lost_segments_show or base == expected:
        return False
    return known_loss_of(source.losses, expected, base - 1) is None


def _discard(builder: LogBuilder, built: BuiltSegment) -> None:
    for path in built.paths:
        builder.disk.remove(posixpath.join(builder.root, path))


def _begin(builder: LogBuilder, source: Source, part: SourcePart) -> SegmentBuilder:
    source.check_digest(part)
    segment = opened(source, part)
    begun = beginning(builder.fmt, segment)
    return builder.segment(segment.base_offset, created_ms=segment.created_ms, begun=begun)


def opened(source: Source, part: SourcePart) -> Segment:
    segment = source.open(part)
    assert segment is not None, "only a conversion skips damage"
    return segment


def copy_part(
    target: SegmentBuilder, source: Source, part: SourcePart, until: Until, progress: Progress,
    start: ScanPosition | None = None,
) -> tuple[BuiltSegment, bool]:  # fmt: skip
    """Copy one segment, from ``start`` on. Returns it, and whether the copy ends in it."""
    segment = opened(source, part)
    is_cut = False
    try:
        for _, rows in source.steps(part, start=start):
            end = until.cut(segment, rows)
            if end is not None:
                _put_head(target, source, part, segment, rows, end)
                is_cut = True
                break
            position = target.cursor.position  # include bytes that belong to no row
            target.put(Encoded(segment.buf[position : rows.end.position], rows))
            progress(rows.end.position - position)
        return target.finish(), is_cut
    finally:
        target.close()


def beginning(fmt: Format, segment: Segment) -> Encoded | None:
    """Return the file header as it is; None if the segment has none."""
    start = segment.start.position
    if not start:
        return None
    end = ScanEnd(0, start, int(Stop.END), segment.start.previous_offset)
    return Encoded(segment.buf[:start], Rows(fmt.no_columns(), 0, end))


def _put_head(target: SegmentBuilder, source: Source, part: SourcePart, segment: Segment, rows: Rows, end: int) -> None:
    """Append the rows before offset ``end``; the first records of a chunk that contains it become a chunk."""
    columns = rows.columns
    whole = int(np.searchsorted(columns.last_offsets, end))
    if whole:
        start, stop = target.cursor.position, int(columns.position[whole])
        last = int(columns.last_offsets[whole - 1])
        head = Rows(columns.head(whole), 0, ScanEnd(whole, stop, int(Stop.END), last))
        head.count = segment.decode(head, ("offset",)).num_rows
        target.put(Encoded(segment.buf[start:stop], head))
    if int(columns.first_offsets[whole]) >= end:
        return
    extras = [field.name for field in source.fmt.capabilities.extras]
    names = [name for name in ("offset", "timestamp", "value", *extras) if name in source.fmt.capabilities.columns]
    for batch in source.decode(part, segment, rows, names):
        offsets = batch.column("offset").to_numpy()
        first = int(np.searchsorted(offsets, int(columns.first_offsets[whole])))
        stop = int(np.searchsorted(offsets, end))
        target.add(batch.slice(first, stop - first))


def copy_state(builder: LogBuilder, source: Source) -> None:
    """Copy the state of consumers and writers, and how far the log is compacted."""
    for path, content in checked_state(source).items():
        builder.put_file(path, content)


def checked_state(source: Source) -> dict[str, bytes]:
    """The state of consumers and writers, and how far the log is compacted, by path. Raises if it is damaged."""
    for path, content in source.format_state.items():
        name = source.fmt.classify(path)
        problems = [] if name is None else source.fmt.check_file(name.role, content, name)
        for problem in problems:
            if problem.severity == Severity.DAMAGE:
                full = posixpath.join(source.path, path)
                raise CorruptionError(problem.message, path=full, position=problem.position, hint=SOURCE_HINT)
    compacted = read_compaction_state(source.disk, source.path)
    files = {COMPACTION_PATH: compacted.encode()} if compacted != CompactionState() else {}
    return {**source.format_state, **source.state, **files}


def copy_losses(builder: LogBuilder, source: Source) -> None:
    if source.losses:
        builder.put_file(LOSSES_PATH, encode_known_losses(source.losses))


def check(builder: LogBuilder, records: int, progress: Progress | None = None) -> Report:
    """Verify the log that was built. Raises if it is not sound or has another number of records; it is then not
    published."""
    report = verify_log(builder.root, disk=builder.disk, progress=progress)
    if not report.ok:
        first = next(finding for finding in report.findings if finding.severity == "damage")
        raise CorruptionError(
            f"the new log is not sound: {first.message}", path=first.path, position=first.position,
            hint="nothing was published; the disk or this program is faulty",
        )  # fmt: skip
    if report.records != records:
        raise CorruptionError(f"{records} records were written, but {report.records} were found", path=builder.path)
    return report


def refuse_inside(src: str, dst: str) -> None:
    """Raise if the new log would be inside the old one."""
    old, new = posixpath.normpath(src), posixpath.normpath(dst)
    if new == old or new.startswith(old + "/"):
        raise UsageError("the new log cannot be inside the old one", path=dst)


def _ignore(_bytes: int) -> None:
    pass
