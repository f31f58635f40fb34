"""Check one large segment in parallel: cut it into ranges along its index, check each, join the reports.

A range lies between two positions that the index names. The joined report counts only if every range is *straight*: it
ended exactly where the next one begins, without a finding in its records or its part of the indexes. Otherwise an index
may be wrong about a position, and the whole segment is checked again in one pass. The report is the same either way;
damage costs a second pass.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

from duramen.disk import Disk, Mapped
from duramen.errors import DuramenError
from duramen.formats import Format, Index, Role, Rows, ScanPosition, Segment
from duramen.kernel import Columns, Stop
from duramen.log.segments import Digest, Directory, EndKind, RunningDigest, SegmentFiles, classify_rows, index_bytes
from duramen.log.verify.index_check import IndexChecker, Walked
from duramen.log.verify.report import Finding, SegmentReport
from duramen.log.verify.segment_check import Checked, Progress
from duramen.log.verify.sidecar_check import SidecarEvidence
from duramen.log.verify.verifier import Verifier

TO_THE_END = -1
STEP_BYTES = 32 << 20
STEP_RECORDS = 64 << 10
"""Longer than the default step of a scan: between two steps a thread needs the interpreter's lock."""
HELD_BYTES = 32 << 20
"""How much of a file stays mapped after it was scanned: unmapping interrupts the other processors."""


@dataclass(frozen=True)
class SegmentRange:
    """A range of a segment, from the start of one record to that of another; the last one has no fixed end."""

    start: ScanPosition
    stop: int
    is_first: bool

    @property
    def is_last(self) -> bool:
        return self.stop == TO_THE_END


@dataclass
class RangeReport:
    """The check of one range. ``is_straight``: see the module; the last range may have findings about its end.
    ``digest`` covers its bytes, if the sidecar has a digest of the segment."""

    report: SegmentReport
    end: ScanPosition
    is_straight: bool
    first_time: int | None = None
    last_time: int | None = None
    findings: list[Finding] = field(default_factory=list)
    digest: Digest | None = None
    walked: dict[Role, Walked] = field(default_factory=dict)


def cut_ranges(
    disk: Disk, directory: Directory, files: SegmentFiles, fmt: Format, piece_bytes: int
) -> list[SegmentRange]:
    """Cut a segment into ranges of about ``piece_bytes``; none if it is small or cannot be read."""
    if files.segment.size_bytes < 2 * piece_bytes:
        return []
    try:
        segment = fmt.open_segment(disk.map(directory.full(files.segment.path)).data, files.base)
        index = _index(disk, directory, files, fmt, segment)
    except DuramenError:
        return []
    stride = 0
    if Role.INDEX not in files.derived and not fmt.capabilities.explicit_offsets:
        stride = segment.scan(segment.start, max_records=1).end.position - segment.start.position
    cuts = [segment.start]
    for target in range(piece_bytes, files.segment.size_bytes - piece_bytes // 2, piece_bytes):
        found = _place_near(segment, index, stride, target)
        if found is not None and found.position > cuts[-1].position:
            cuts.append(found)
    stops = [*(cursor.position for cursor in cuts[1:]), TO_THE_END]
    return [
        SegmentRange(start, stop, number == 0) for number, (start, stop) in enumerate(zip(cuts, stops, strict=True))
    ]


def _index(disk: Disk, directory: Directory, files: SegmentFiles, fmt: Format, segment: Segment) -> Index | None:
    """Open the index of a segment, if it stores positions."""
    file = files.derived.get(Role.INDEX)
    if file is None:
        return None
    index = fmt.open_index(Role.INDEX, index_bytes(disk, fmt, directory.full(file.path)), segment.base_offset)
    return None if index is None or index.positions is None or not len(index) else index


def _place_near(segment: Segment, index: Index | None, stride: int, target: int) -> ScanPosition | None:
    """Return the start of a record near a byte: from the index, or by arithmetic if all records have one length."""
    if index is not None:
        assert index.positions is not None
        row = min(bisect_left(index.positions, target), len(index) - 1)
        return segment.cursor_at(int(index.offsets[row]), int(index.positions[row]))
    if stride <= 0:
        return None
    number = (target - segment.start.position) // stride
    return segment.cursor_at(segment.base_offset + number, segment.start.position + number * stride)


class _OpenSegment(NamedTuple):
    """A segment and its derived files, opened once for all of its ranges."""

    mapped: Mapped
    segment: Segment
    indexes: list[IndexChecker]
    is_sound: bool
    """Whether the derived files have no finding on their own."""


class _SegmentCache:
    """The segments that were opened last. Ranges of one segment are checked at about the same time, so that a few are
    enough. A thread keeps the segment that it works on, even after the cache drops it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[str, _OpenSegment] = OrderedDict()
        self._mutex = threading.Lock()

    def get(self, verifier: RangeVerifier, files: SegmentFiles) -> _OpenSegment:
        with self._mutex:
            opened = self._kept.pop(files.segment.path, None) or verifier._open(files)
            self._kept[files.segment.path] = opened
            oldest = self._kept.popitem(last=False) if len(self._kept) > self._most else None
        del oldest  # outside the mutex: unmapping a large file takes time
        return opened


class RangeVerifier(Verifier):
    """Checks ranges of a log's segments in ``at_once`` threads."""

    def __init__(
        self,
        disk: Disk,
        path: str,
        fmt: Format,
        progress: Progress,
        directory: Directory,
        evidence: SidecarEvidence | None = None,
        *,
        at_once: int = 1,
    ) -> None:
        super().__init__(disk, path, fmt, progress, directory, evidence)
        self._cache = _SegmentCache(at_once)
        self._rooms = threading.local()
        """Columns that a thread reuses for every step."""

    def _open(self, files: SegmentFiles) -> _OpenSegment:
        derived = self._map_derived(files)
        mapped = self._disk.map(self._directory.full(files.segment.path))
        segment = self._fmt.open_segment(files.settled(mapped.data), files.base)
        part = self._part()
        return _OpenSegment(mapped, segment, part._open_indexes(files, derived, segment), not part.report.findings)

    def check_alone(self, files: SegmentFiles, *, is_last: bool) -> Checked | None:
        """Check a segment as a single range, which is faster than `check`; None if the range is not straight."""
        try:
            start = self._cache.get(self, files).segment.start
        except DuramenError:
            return None
        piece = self.check_range(files, SegmentRange(start, TO_THE_END, True), is_last=is_last)
        return self.join(files, [piece], is_last=is_last)

    def check_range(self, files: SegmentFiles, piece: SegmentRange, *, is_last: bool) -> RangeReport:
        part = self._part()
        opened = self._cache.get(self, files)
        segment = opened.segment
        path = self._directory.full(files.segment.path)
        report = SegmentReport(path, segment.base_offset, files.segment.size_bytes, dialect=segment.dialect)
        if Role.INDEX in files.derived:
            report.index_bytes = files.derived[Role.INDEX].size_bytes
        if piece.is_first:
            report.valid_bytes = piece.start.position
            self._progress(piece.start.position)
        else:  # only the first range is compared with the name
            report.first_offset = piece.start.previous_offset + 1
        found = RangeReport(report, piece.start, False)
        if not opened.is_sound:
            return found
        first_offset = 0 if piece.is_first else piece.start.previous_offset + 1
        indexes = [checker.beginning_at(first_offset) for checker in opened.indexes]
        begin = 0 if piece.is_first else piece.start.position
        stop = None if piece.is_last else piece.stop
        running = self._evidence.running(segment.base_offset, segment.buf, begin, stop)
        part._walk(found, opened, piece, indexes, running, is_last=is_last)
        if not all(checker.is_right for checker in indexes):
            found.is_straight = False  # an entry out of order may be right in a check of the whole segment
        elif piece.is_last:
            for checker in indexes:
                part.report.findings += checker.finish()
        elif any(not checker.is_right_up_to(found.end.previous_offset) for checker in indexes):
            found.is_straight = False
        found.findings = part.report.findings
        found.walked = {checker.role: checker.walked for checker in indexes}
        found.is_straight = found.is_straight and (piece.is_last or not found.findings)
        if running is not None and found.is_straight:
            found.digest = running.finish()
        return found

    def _walk(
        self, found: RangeReport, opened: _OpenSegment, piece: SegmentRange, indexes: list[IndexChecker],
        running: RunningDigest | None, *, is_last: bool,
    ) -> None:  # fmt: skip
        """Scan the records of a range into ``found``, up to its end or the first finding."""
        cursor, segment = piece.start, opened.segment
        stop = len(segment.buf) if piece.is_last else piece.stop
        previous: int | None = None
        mapped_from = cursor.position
        while piece.is_last or cursor.position < stop:
            rows = self._step(segment, cursor, stop, running)
            self._add_times(found, rows)
            self._rows(found.report, segment, rows, cursor, previous, indexes, running)
            previous = rows.end.last_offset if len(rows.columns) else previous
            cursor = found.end = rows.cursor
            if cursor.position - mapped_from >= HELD_BYTES or cursor.position >= stop:
                opened.mapped.release(mapped_from, cursor.position)
                mapped_from = cursor.position
            if self.report.findings:
                return  # their text may depend on the steps, which differ in `check`
            if rows.stop == Stop.LIMIT:
                continue
            if piece.is_last:
                self._finish_last(found, segment, rows, indexes, is_last=is_last)
            else:
                found.is_straight = rows.stop == Stop.END and cursor.position == stop
            return
        found.is_straight = cursor.position == stop

    def _step(self, segment: Segment, cursor: ScanPosition, stop: int, running: RunningDigest | None) -> Rows:
        left_bytes = max(stop - cursor.position, 1)
        step_bytes = STEP_BYTES if left_bytes > STEP_BYTES * 3 // 2 else left_bytes
        digests = None if running is None else running.along(cursor.position, stop)
        room = self._room(segment)
        rows = segment.scan(cursor, max_records=STEP_RECORDS, max_bytes=step_bytes, room=room, digests=digests)
        if running is not None and digests is not None:
            running.passed(rows.end.position)
        return rows

    def _add_times(self, found: RangeReport, rows: Rows) -> None:
        times = getattr(rows.columns, "timestamp", None)
        if times is not None and len(times):
            found.first_time = int(times[0]) if found.first_time is None else found.first_time
            self._check_times(found.report, rows, found.last_time)
            found.last_time = int(times[-1])

    def _finish_last(
        self, found: RangeReport, segment: Segment, rows: Rows, indexes: list[IndexChecker], *, is_last: bool
    ) -> None:
        """Check how the segment ends."""
        end = classify_rows(segment, rows, is_last=is_last)
        self._ending(found.report, segment, end, indexes)
        # Without checksums the verdict may rest on the record before, which may be in the range before.
        found.is_straight = end.goes_on_at is None and (end.ending == EndKind.CLEAN or segment.record_checksum)
        if found.is_straight:
            self._progress(len(segment.buf) - rows.cursor.position)

    def _room(self, segment: Segment) -> Columns | None:
        if not hasattr(self._rooms, "room"):
            self._rooms.room = segment.room(STEP_RECORDS)
        room: Columns | None = self._rooms.room
        return room

    def join(self, files: SegmentFiles, pieces: Sequence[RangeReport], *, is_last: bool) -> Checked | None:
        """Return the segment's report; None if the ranges do not fit together and the segment needs one pass."""
        if not all(piece.is_straight for piece in pieces):
            return None
        for before, after in pairwise(pieces):
            if before.report.last_offset is None or after.report.first_offset != before.report.last_offset + 1:
                return None
            if self._goes_back(before.last_time, after.first_time):
                return None
        lasts = [piece.report.last_offset for piece in pieces if piece.report.last_offset is not None]
        report = replace(
            pieces[0].report,
            records=sum(piece.report.records for piece in pieces),
            last_offset=lasts[-1] if lasts else None,  # the last range may hold only a bad record
            valid_bytes=sum(piece.report.valid_bytes for piece in pieces),
            ending=pieces[-1].report.ending,
        )
        part = self._part()
        part.report.findings += [finding for piece in pieces for finding in piece.findings]
        # Only for its end and length: the digests of the ranges cover its bytes.
        data = files.settled(self._disk.map(self._directory.full(files.segment.path)).data)
        segment = self._fmt.open_segment(data, files.base)
        walked = {role: [piece.walked[role] for piece in pieces] for role in pieces[0].walked}
        part._lacking_entries(files, report, segment, walked, is_last=is_last)
        part._missing_index(files, report)
        part.report.findings += self._evidence.of_sealed(report, data, _joined(pieces), is_growing=files.is_growing)
        part.report.findings += self._evidence.of_watermark(report, segment, digest=_joined(pieces))
        return Checked(report, part.report.findings)

    def _goes_back(self, before: int | None, after: int | None) -> bool:
        if not self._fmt.capabilities.ordered_timestamps or before is None or after is None:
            return False
        return after < before


def _joined(pieces: Sequence[RangeReport]) -> Digest | None:
    """Combine the digests of all ranges; None if one has none."""
    whole = pieces[0].digest
    for piece in pieces[1:]:
        whole = None if whole is None or piece.digest is None else whole.then(piece.digest)
    return whole
