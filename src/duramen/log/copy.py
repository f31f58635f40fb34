"""A consistent copy of a log, also of one that is being written, and of a log as it was at an earlier offset or time.

What is copied is what the writer had acknowledged when the copy began. Segments are taken over byte by byte, each
record checked on the way; the last one is cut at a record's end. Derived files are made anew. The copy is a log of its
own: checked as a whole before it gets its name, and open for append. Damage stops it: `repair` first.

What consumers and writers have stored beside the records (cursors, groups, the ledger) is read before the records are,
so that it is never ahead of them, and goes along as it was at that moment. A copy that ends earlier leaves it behind.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from duramen.disk import Disk
from duramen.errors import CorruptionError, UsageError
from duramen.formats import Format
from duramen.formats.base import Encoded, Rows, Segment, Severity
from duramen.kernel.layout import ScanEnd, Stop
from duramen.log import losses
from duramen.log.build import BuiltSegment, LogBuilder, SegmentBuilder, refuse_taken
from duramen.log.losses import covered
from duramen.log.report import Report, counted
from duramen.log.source import HINT, Part, Source
from duramen.log.verify import verify
from duramen.model import MAX_OFFSET, to_us

Progress = Callable[[int], None]


class Until(NamedTuple):
    """The first record that is left out: by offset, by time, or none."""

    offset: int | None = None
    time_us: int | None = None

    @property
    def is_set(self) -> bool:
        return self.offset is not None or self.time_us is not None

    def cut(self, segment: Segment, rows: Rows) -> int | None:
        """The offset at which the copy ends, if it lies in these rows."""
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
    """The files of consumers and writers that went along."""
    left_behind: int
    """How many of them did not, because the copy ends earlier."""
    torn_bytes: int
    """Behind the last whole record of the source: they were not acknowledged."""


class Copy:
    """One copy: the source is opened when it is made, `run` carries it out."""

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
    ) -> None:
        refuse_inside(src, dst)
        self.path = dst
        self.source = Source(src, format=format, disk=disk, options=options)
        refuse_taken(self.source.disk, dst)
        self._until = self._bound(until_offset, until_time)

    def _bound(self, offset: int | None, when: Any) -> Until:
        fmt = self.source.fmt
        if offset is not None and when is not None:
            raise UsageError("until an offset, or until a time: not both")
        if offset is not None and offset < 0:
            raise UsageError(f"{offset} is no offset")
        if when is None:
            return Until(offset)
        if fmt.capabilities.timestamps is None:
            raise UsageError(f"{fmt.name} records have no time", path=self.source.path)
        try:
            return Until(None, to_us(when))
        except ValueError as error:
            raise UsageError(f"{when!r} is no time: {error}", hint="ISO 8601, or milliseconds since 1970") from error

    def run(self, progress: Progress | None = None, check_progress: Progress | None = None) -> Copied:
        """Copy; everything is at the path when this returns, and nothing if it raises."""
        source, state = self.source, [*self.source.format_state, *self.source.state]
        with LogBuilder(self.path, source.written_as, disk=source.disk, created_ms=source.created_ms) as builder:
            is_cut = copy_parts(builder, source, self._until, progress or _nobody)
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


def copy(
    src: str,
    dst: str,
    *,
    until_offset: int | None = None,
    until_time: Any = None,
    format: str | None = None,
    disk: Disk | None = None,
    **options: Any,
) -> Copied:
    """Copy the log at ``src`` to the new path ``dst``, up to and without ``until_offset``, or the first record whose
    time is ``until_time`` or later."""
    return Copy(
        src, dst, until_offset=until_offset, until_time=until_time, format=format, disk=disk, options=options
    ).run()


def copy_parts(builder: LogBuilder, source: Source, until: Until, progress: Progress) -> bool:
    """Take over the segments as they are, up to where the copy ends; answers whether that is before their end."""
    source.check_presence()
    previous: BuiltSegment | None = None
    for part in source.parts:
        if until.offset is not None and part.base is not None and part.base >= until.offset and previous is not None:
            return True
        built, is_cut = _copy_part(builder, source, part, until, progress)
        if is_cut and not built.records and previous is not None:
            _discard(builder, built)  # the cut lies at the seam
            return True
        if previous is not None and _is_lost(source, previous.next_offset, built.base):
            raise CorruptionError(
                f"{counted(built.base - previous.next_offset, 'offset')} missing before this segment",
                path=part.path, offset=previous.next_offset, hint="a segment is lost: `duramen repair` mends the log",
            )  # fmt: skip
        builder.add(built)
        if is_cut:
            return True
        previous = built
    return False


def _is_lost(source: Source, expected: int, base: int) -> bool:
    """Whether a segment must have been there between two others, and no repair has said that it is gone."""
    if not source.fmt.capabilities.lost_segments_show or base == expected:
        return False
    return covered(source.losses, expected, base - 1) is None


def _discard(builder: LogBuilder, built: BuiltSegment) -> None:
    for path in built.paths:
        builder.disk.remove(posixpath.join(builder.root, path))


def _copy_part(
    builder: LogBuilder, source: Source, part: Part, until: Until, progress: Progress
) -> tuple[BuiltSegment, bool]:
    """One segment; and whether the copy ends in it."""
    source.check_digest(part)
    segment = source.open(part)
    assert segment is not None, "a source that skips is not copied"
    fmt = builder.fmt
    target = builder.segment(segment.base_offset, created_ms=segment.created_ms, begun=_beginning(fmt, segment))
    is_cut = False
    try:
        for _, rows in source.steps(part):
            end = until.cut(segment, rows)
            if end is not None:
                _put_head(target, source, part, segment, rows, end)
                is_cut = True
                break
            position = target.cursor.position  # what no row holds goes along, too
            target.put(Encoded(segment.buf[position : rows.end.position], rows))
            progress(rows.end.position - position)
        return target.finish(), is_cut
    finally:
        target.close()


def _beginning(fmt: Format, segment: Segment) -> Encoded | None:
    """The file header as it is; None where the segment was never begun."""
    start = segment.start.position
    if not start:
        return None
    end = ScanEnd(0, start, int(Stop.END), segment.start.previous_offset)
    return Encoded(segment.buf[:start], Rows(fmt.no_columns(), 0, end))


def _put_head(target: SegmentBuilder, source: Source, part: Part, segment: Segment, rows: Rows, end: int) -> None:
    """The rows before offset ``end``; of a chunk that it lies in, the records before it as a chunk of their own."""
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
    """Take along what consumers and writers stored beside the records. What is damaged there stops it, too."""
    for path, content in source.format_state.items():
        name = source.fmt.classify(path)
        problems = [] if name is None else source.fmt.check_file(name.role, content, name)
        for problem in problems:
            if problem.severity == Severity.DAMAGE:
                full = posixpath.join(source.path, path)
                raise CorruptionError(problem.message, path=full, position=problem.position, hint=HINT)
    for path, content in {**source.format_state, **source.state}.items():
        builder.put_file(path, content)


def copy_losses(builder: LogBuilder, source: Source) -> None:
    """The gaps that are known are known of the copy, too."""
    if source.losses:
        builder.put_file(losses.NAME, losses.encode_losses(source.losses))


def check(builder: LogBuilder, records: int, progress: Progress | None = None) -> Report:
    """The log that was built must be sound, and hold as many records as went into it; else it is not published."""
    report = verify(builder.root, disk=builder.disk, progress=progress)
    if not report.ok:
        first = next(finding for finding in report.findings if finding.severity == "damage")
        raise CorruptionError(
            f"what was written is not sound: {first.message}", path=first.path, position=first.position,
            hint="nothing was published; the disk, or this program, is at fault",
        )  # fmt: skip
    if report.records != records:
        raise CorruptionError(f"{records} records were written, and {report.records} are there", path=builder.path)
    return report


def refuse_inside(src: str, dst: str) -> None:
    """Raise where the new log would lie in the old one."""
    old, new = posixpath.normpath(src), posixpath.normpath(dst)
    if new == old or new.startswith(old + "/"):
        raise UsageError("the new log cannot lie in the old one", path=dst)


def _nobody(_bytes: int) -> None:
    pass
