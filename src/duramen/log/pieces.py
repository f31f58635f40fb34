"""One large segment checked by many: cut along its index, each piece by itself, and put together again.

A piece is checked as `verify` checks a segment, but only between two places that the index names. The answers make the
segment's report only when every piece is *straight*: it ended exactly where the next one began, found nothing, and so
did its part of every index. Otherwise the pieces say nothing (a place that the index names may be a lie), and the
segment has to be checked in one go. So the report is the same either way; damage only costs the time of a second look.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from duramen.disk import Disk
from duramen.errors import DuramenError
from duramen.formats import Format
from duramen.formats.base import SCAN_BYTES, Cursor, Role, Segment
from duramen.kernel.layout import Stop
from duramen.log.directory import Directory, SegmentFiles
from duramen.log.ending import judge_rows
from duramen.log.report import Finding, SegmentReport
from duramen.log.verify import Checked, IndexChecker, Verifier

TO_THE_END = -1


@dataclass(frozen=True)
class Piece:
    """A stretch of a segment from a record's first byte to another's; `TO_THE_END` for the last one."""

    start: Cursor
    stop: int
    is_first: bool

    @property
    def is_last(self) -> bool:
        return self.stop == TO_THE_END


@dataclass
class PieceReport:
    """What one piece holds. ``is_straight``: see above; the last piece may have findings."""

    report: SegmentReport
    end: Cursor
    is_straight: bool
    first_time: int | None = None
    last_time: int | None = None
    findings: list[Finding] = field(default_factory=list)


def cut(disk: Disk, directory: Directory, files: SegmentFiles, fmt: Format, piece_bytes: int) -> list[Piece]:
    """The pieces of a segment, of about ``piece_bytes`` each; none where it is small or cannot be read."""
    if files.segment.size_bytes < 2 * piece_bytes:
        return []
    try:
        segment = fmt.open_segment(disk.map(directory.full(files.segment.path)).data, files.base)
    except DuramenError:
        return []
    cuts = [segment.start]
    for target in range(piece_bytes, files.segment.size_bytes - piece_bytes // 2, piece_bytes):
        found = _place_near(disk, directory, files, fmt, segment, target)
        if found is not None and found.position > cuts[-1].position:
            cuts.append(found)
    stops = [*(cursor.position for cursor in cuts[1:]), TO_THE_END]
    return [Piece(start, stop, number == 0) for number, (start, stop) in enumerate(zip(cuts, stops, strict=True))]


def _place_near(
    disk: Disk, directory: Directory, files: SegmentFiles, fmt: Format, segment: Segment, target: int
) -> Cursor | None:
    """A record's start near a byte: where the index says, or by arithmetic where all records are equally long."""
    file = files.derived.get(Role.INDEX)
    if file is not None:
        index = fmt.open_index(Role.INDEX, disk.map(directory.full(file.path)).data, segment.base_offset)
        if index is None or index.positions is None or not len(index):
            return None
        row = min(int(np.searchsorted(index.positions, target)), len(index) - 1)
        return segment.cursor_at(int(index.offsets[row]), int(index.positions[row]))
    if fmt.capabilities.explicit_offsets:
        return None
    stride = segment.scan(segment.start, max_records=1).end.position - segment.start.position
    if stride <= 0:
        return None
    number = (target - segment.start.position) // stride
    return segment.cursor_at(segment.base_offset + number, segment.start.position + number * stride)


class PieceVerifier(Verifier):
    """Checks pieces of a log's segments."""

    def check_piece(self, files: SegmentFiles, piece: Piece, *, is_last: bool) -> PieceReport:
        part = self._part()
        path = self._directory.full(files.segment.path)
        segment = self._fmt.open_segment(self._disk.map(path).data, files.base)
        report = SegmentReport(path, segment.base_offset, files.segment.size_bytes, dialect=segment.dialect)
        if Role.INDEX in files.derived:
            report.index_bytes = files.derived[Role.INDEX].size_bytes
        if piece.is_first:
            report.valid_bytes = piece.start.position
        else:  # the name is the first piece's business
            report.first_offset = piece.start.previous_offset + 1
        answer = PieceReport(report, piece.start, False)
        indexes = part._open_indexes(files, segment)
        if part.report.findings:
            return answer
        for checker in indexes:
            checker.begin_at(piece.start.previous_offset + 1)
        part._walk(answer, segment, piece, indexes, is_last=is_last)
        if piece.is_last:
            for checker in indexes:
                checker.finish(part)
        elif any(not checker.is_right_up_to(answer.end.previous_offset) for checker in indexes):
            answer.is_straight = False
        answer.findings = part.report.findings
        answer.is_straight = answer.is_straight and (piece.is_last or not answer.findings)
        return answer

    def _walk(
        self, answer: PieceReport, segment: Segment, piece: Piece, indexes: list[IndexChecker], *, is_last: bool
    ) -> None:
        report, cursor = answer.report, piece.start
        previous: int | None = None
        stop = len(segment.buf) if piece.is_last else piece.stop
        while piece.is_last or cursor.position < stop:
            rows = segment.scan(cursor, max_bytes=min(SCAN_BYTES, max(stop - cursor.position, 1)))
            report.valid_bytes += rows.end.position - cursor.position
            times = getattr(rows.columns, "timestamp", None)
            if times is not None and len(times):
                answer.first_time = int(times[0]) if answer.first_time is None else answer.first_time
                self._check_times(report, rows, answer.last_time)
                answer.last_time = int(times[-1])
            self._check_gaps(report, rows, previous)
            previous = rows.end.last_offset if len(rows.columns) else previous
            self._count(report, segment, rows)
            for problem in segment.check(rows):
                self._problem(report.path, problem)
            for checker in indexes:
                checker.add(rows, segment)
            cursor = answer.end = rows.cursor
            if rows.stop == Stop.LIMIT:
                continue
            if not piece.is_last:
                answer.is_straight = rows.stop == Stop.END and cursor.position == stop
                return
            end = judge_rows(segment, rows, is_last=is_last)
            report.ending = end.ending
            self._end(report, segment, end)
            for checker in indexes:
                checker.forgive(end)
            answer.is_straight = end.goes_on_at is None
            return
        answer.is_straight = cursor.position == stop

    def digest(self, files: SegmentFiles) -> list[Finding]:
        """What the sidecar's digest says against the bytes of a sealed segment."""
        path = self._directory.full(files.segment.path)
        report = SegmentReport(path, files.base or 0, files.segment.size_bytes)
        return list(self._evidence.of_sealed(report, self._disk.map(path).data))

    def needs_digest(self, files: SegmentFiles) -> bool:
        return files.base is not None and self._evidence.is_sealed(files.base)

    def join(self, files: SegmentFiles, pieces: Sequence[PieceReport], digest: Sequence[Finding]) -> Checked | None:
        """The segment's report; None where the pieces do not fit together, so that it has to be checked in one go."""
        if not all(piece.is_straight for piece in pieces):
            return None
        for before, after in pairwise(pieces):
            if before.report.last_offset is None or after.report.first_offset != before.report.last_offset + 1:
                return None
            if self._goes_back(before.last_time, after.first_time):
                return None
        first, last = pieces[0].report, pieces[-1].report
        report = replace(
            first,
            records=sum(piece.report.records for piece in pieces),
            last_offset=last.last_offset if last.last_offset is not None else first.last_offset,
            valid_bytes=sum(piece.report.valid_bytes for piece in pieces),
            ending=last.ending,
        )
        part = self._part()
        part.report.findings += [finding for piece in pieces for finding in piece.findings]
        part._missing_index(files, report)
        part.report.findings += digest
        part.report.findings += self._evidence.of_watermark(report)
        return Checked(report, part.report.findings)

    def _goes_back(self, before: int | None, after: int | None) -> bool:
        if not self._fmt.capabilities.ordered_timestamps or before is None or after is None:
            return False
        return after < before
