"""One large segment checked by many: cut along its index, each piece by itself, and put together again.

A piece is checked as `verify` checks a segment, but only between two places that the index names. The answers make the
segment's report only when every piece is *straight*: it ended exactly where the next one began, found nothing, and so
did its part of every index. Otherwise the pieces say nothing (a place that the index names may be a lie), and the
segment has to be checked in one go. So the report is the same either way; damage only costs the time of a second look.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

from duramen.disk import Disk
from duramen.disk.base import Mapped
from duramen.errors import DuramenError
from duramen.formats import Format
from duramen.formats.base import Cursor, Role, Segment
from duramen.formats.index import Index
from duramen.kernel.layout import Columns, Stop
from duramen.log.directory import Directory, SegmentFiles
from duramen.log.ending import Ending, judge_rows
from duramen.log.evidence import Evidence
from duramen.log.index_check import IndexChecker, Walked
from duramen.log.report import Finding, SegmentReport
from duramen.log.running import Digest, Running
from duramen.log.verify import Checked, Progress, Verifier

TO_THE_END = -1
STEP_BYTES = 32 << 20
STEP_RECORDS = 64 << 10
"""The step of a scan here: longer than elsewhere, because between two of them Python has something to do."""
HELD_BYTES = 32 << 20
"""How much of a file stays mapped behind a scan. To let go of memory interrupts the other processors, too."""


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
    """What one piece holds. ``is_straight``: see above; the last piece may have findings about its end. ``digest`` is
    that of its bytes, where the sidecar has one of the segment."""

    report: SegmentReport
    end: Cursor
    is_straight: bool
    first_time: int | None = None
    last_time: int | None = None
    findings: list[Finding] = field(default_factory=list)
    digest: Digest | None = None
    walked: dict[Role, Walked] = field(default_factory=dict)


def cut(disk: Disk, directory: Directory, files: SegmentFiles, fmt: Format, piece_bytes: int) -> list[Piece]:
    """The pieces of a segment, of about ``piece_bytes`` each; none where it is small or cannot be read."""
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
    return [Piece(start, stop, number == 0) for number, (start, stop) in enumerate(zip(cuts, stops, strict=True))]


def _index(disk: Disk, directory: Directory, files: SegmentFiles, fmt: Format, segment: Segment) -> Index | None:
    """The index of a segment, if it names places."""
    file = files.derived.get(Role.INDEX)
    if file is None:
        return None
    index = fmt.open_index(Role.INDEX, disk.map(directory.full(file.path)).data, segment.base_offset)
    return None if index is None or index.positions is None or not len(index) else index


def _place_near(segment: Segment, index: Index | None, stride: int, target: int) -> Cursor | None:
    """A record's start near a byte: where the index says, or by arithmetic where all records are equally long."""
    if index is not None:
        assert index.positions is not None
        row = min(bisect_left(index.positions, target), len(index) - 1)
        return segment.cursor_at(int(index.offsets[row]), int(index.positions[row]))
    if stride <= 0:
        return None
    number = (target - segment.start.position) // stride
    return segment.cursor_at(segment.base_offset + number, segment.start.position + number * stride)


class _Opened(NamedTuple):
    """A segment and its derived files, opened once for all of its pieces."""

    mapped: Mapped
    segment: Segment
    indexes: list[IndexChecker]
    is_sound: bool
    """Whether the derived files are in order as far as can be seen without the records."""


class _Shelf:
    """The segments that were opened last. Pieces of the same one are checked one after another or side by side, so a
    few are enough; whoever still works with one that is not kept any more has it to the end."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[str, _Opened] = OrderedDict()
        self._mutex = threading.Lock()

    def get(self, verifier: PieceVerifier, files: SegmentFiles) -> _Opened:
        with self._mutex:
            opened = self._kept.pop(files.segment.path, None) or verifier._open(files)
            self._kept[files.segment.path] = opened
            oldest = self._kept.popitem(last=False) if len(self._kept) > self._most else None
        del oldest  # here, because to unmap a large file takes time, and others wait for the mutex
        return opened


class PieceVerifier(Verifier):
    """Checks pieces of a log's segments; ``at_once`` is how many threads do so."""

    def __init__(
        self,
        disk: Disk,
        path: str,
        fmt: Format,
        progress: Progress,
        directory: Directory,
        evidence: Evidence | None = None,
        *,
        at_once: int = 1,
    ) -> None:
        super().__init__(disk, path, fmt, progress, directory, evidence)
        self._shelf = _Shelf(at_once)
        self._rooms = threading.local()
        """Columns that a thread fills again and again: new ones would be new memory every time."""

    def _open(self, files: SegmentFiles) -> _Opened:
        derived = self._map_derived(files)
        mapped = self._disk.map(self._directory.full(files.segment.path))
        segment = self._fmt.open_segment(files.settled(mapped.data), files.base)
        part = self._part()
        return _Opened(mapped, segment, part._open_indexes(files, derived, segment), not part.report.findings)

    def check_alone(self, files: SegmentFiles, *, is_last: bool) -> Checked | None:
        """Check a segment as a single piece, which is faster than `check`; None where that does not tell enough."""
        try:
            start = self._shelf.get(self, files).segment.start
        except DuramenError:
            return None
        piece = self.check_piece(files, Piece(start, TO_THE_END, True), is_last=is_last)
        return self.join(files, [piece], is_last=is_last)

    def check_piece(self, files: SegmentFiles, piece: Piece, *, is_last: bool) -> PieceReport:
        part = self._part()
        opened = self._shelf.get(self, files)
        segment = opened.segment
        path = self._directory.full(files.segment.path)
        report = SegmentReport(path, segment.base_offset, files.segment.size_bytes, dialect=segment.dialect)
        if Role.INDEX in files.derived:
            report.index_bytes = files.derived[Role.INDEX].size_bytes
        if piece.is_first:
            report.valid_bytes = piece.start.position
            self._progress(piece.start.position)
        else:  # the name is the first piece's business
            report.first_offset = piece.start.previous_offset + 1
        answer = PieceReport(report, piece.start, False)
        if not opened.is_sound:
            return answer
        first_offset = 0 if piece.is_first else piece.start.previous_offset + 1
        indexes = [checker.beginning_at(first_offset) for checker in opened.indexes]
        begin = 0 if piece.is_first else piece.start.position
        stop = None if piece.is_last else piece.stop
        running = self._evidence.running(segment.base_offset, segment.buf, begin, stop)
        part._walk(answer, opened, piece, indexes, running, is_last=is_last)
        if not all(checker.is_right for checker in indexes):
            answer.is_straight = False  # an entry may be right where more of the records go by, if it is out of order
        elif piece.is_last:
            for checker in indexes:
                checker.finish(part)
        elif any(not checker.is_right_up_to(answer.end.previous_offset) for checker in indexes):
            answer.is_straight = False
        answer.findings = part.report.findings
        answer.walked = {checker.role: checker.walked for checker in indexes}
        answer.is_straight = answer.is_straight and (piece.is_last or not answer.findings)
        if running is not None and answer.is_straight:
            answer.digest = running.finish()
        return answer

    def _walk(
        self, answer: PieceReport, opened: _Opened, piece: Piece, indexes: list[IndexChecker],
        running: Running | None, *, is_last: bool,
    ) -> None:  # fmt: skip
        report, cursor, segment = answer.report, piece.start, opened.segment
        previous: int | None = None
        stop = len(segment.buf) if piece.is_last else piece.stop
        room = self._room(segment)
        held = cursor.position
        while piece.is_last or cursor.position < stop:
            left_bytes = max(stop - cursor.position, 1)
            step_bytes = STEP_BYTES if left_bytes > STEP_BYTES * 3 // 2 else left_bytes
            digests = None if running is None else running.along(cursor.position, stop)
            rows = segment.scan(cursor, max_records=STEP_RECORDS, max_bytes=step_bytes, room=room, digests=digests)
            if running is not None and digests is not None:
                running.passed(rows.end.position)
            times = getattr(rows.columns, "timestamp", None)
            if times is not None and len(times):
                answer.first_time = int(times[0]) if answer.first_time is None else answer.first_time
                self._check_times(report, rows, answer.last_time)
                answer.last_time = int(times[-1])
            self._rows(report, segment, rows, cursor, previous, indexes, running)
            previous = rows.end.last_offset if len(rows.columns) else previous
            cursor = answer.end = rows.cursor
            if cursor.position - held >= HELD_BYTES or cursor.position >= stop:
                opened.mapped.let_go(held, cursor.position)  # here, where many do it at once
                held = cursor.position
            if self.report.findings:
                return  # what is said about it may depend on the steps, which `check` makes otherwise
            if rows.stop == Stop.LIMIT:
                continue
            if not piece.is_last:
                answer.is_straight = rows.stop == Stop.END and cursor.position == stop
                return
            end = judge_rows(segment, rows, is_last=is_last)
            self._ending(report, segment, end, indexes)
            # Without checksums the verdict may rest on the record before, which may be in the piece before.
            answer.is_straight = end.goes_on_at is None and (end.ending == Ending.CLEAN or segment.record_checksum)
            if answer.is_straight:
                self._progress(stop - cursor.position)
            return
        answer.is_straight = cursor.position == stop

    def _room(self, segment: Segment) -> Columns | None:
        if not hasattr(self._rooms, "room"):
            self._rooms.room = segment.room(STEP_RECORDS)
        room: Columns | None = self._rooms.room
        return room

    def join(self, files: SegmentFiles, pieces: Sequence[PieceReport], *, is_last: bool) -> Checked | None:
        """The segment's report; None where the pieces do not fit together, so that it has to be checked in one go."""
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
            last_offset=lasts[-1] if lasts else None,  # the last piece may hold nothing but a bad record
            valid_bytes=sum(piece.report.valid_bytes for piece in pieces),
            ending=pieces[-1].report.ending,
        )
        part = self._part()
        part.report.findings += [finding for piece in pieces for finding in piece.findings]
        # Opened for its end and its length: its bytes are in the pieces' digests.
        data = files.settled(self._disk.map(self._directory.full(files.segment.path)).data)
        segment = self._fmt.open_segment(data, files.base)
        walked = {role: [piece.walked[role] for piece in pieces] for role in pieces[0].walked}
        part._lacking_entries(files, report, segment, walked, is_last=is_last)
        part._missing_index(files, report)
        part.report.findings += self._evidence.of_sealed(report, data, _joined(pieces), is_growing=files.is_growing)
        part.report.findings += self._evidence.of_watermark(report)
        return Checked(report, part.report.findings)

    def _goes_back(self, before: int | None, after: int | None) -> bool:
        if not self._fmt.capabilities.ordered_timestamps or before is None or after is None:
            return False
        return after < before


def _joined(pieces: Sequence[PieceReport]) -> Digest | None:
    """The digest of all pieces together; None where one has none."""
    whole = pieces[0].digest
    for piece in pieces[1:]:
        whole = None if whole is None or piece.digest is None else whole.then(piece.digest)
    return whole
