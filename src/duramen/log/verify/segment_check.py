"""Check one segment of a log with its derived files: every record, every entry of its indexes.

Segments are checked independently of each other: in order, in threads, or on another machine. `verify` checks how they
follow one another, and the files of the whole log. Reads only; after a damaged place the check continues at the next
valid record.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, Self

import numpy as np

from duramen.disk import Disk
from duramen.errors import CorruptionError, IncompleteHeaderError, UnknownVersionError, UsageError
from duramen.formats import Format, Index, Problem, Role, Rows, ScanPosition, Segment, Severity, rows_after
from duramen.kernel import Stop
from duramen.log.segments import (
    Directory,
    EndKind,
    RunningDigest,
    SegmentEnd,
    SegmentFiles,
    classify_rows,
    index_bytes,
    is_unfinished,
    last_has_not_begun,
    list_log,
)
from duramen.log.verify.index_check import REINDEX, IndexChecker, Walked, gaps, index_gap, short_indexes
from duramen.log.verify.report import Finding, Report, SegmentReport, counted
from duramen.log.verify.sidecar_check import SidecarEvidence

Progress = Callable[[int], None]
"""Called with the number of bytes checked since the last call."""

SALVAGE = "`duramen repair` shows what can be kept and what is lost"
_NOTHING = "nothing: the next open for writing removes it"


class Checked(NamedTuple):
    """The result of the check of one segment and its derived files."""

    report: SegmentReport
    findings: list[Finding]


class SegmentVerifier:
    """Checks the segments of one log, each with its own findings."""

    def __init__(
        self,
        disk: Disk,
        path: str,
        fmt: Format,
        progress: Progress,
        directory: Directory | None = None,
        evidence: SidecarEvidence | None = None,
    ) -> None:
        self._disk = disk
        self._fmt = fmt
        self._progress = progress
        self._evidence = evidence if evidence is not None else SidecarEvidence(disk, path, fmt)
        self._directory: Directory = directory if directory is not None else list_log(disk, path, fmt)
        self._derived = fmt.index_builder(0, 0).headers().keys()
        self.report = Report(path, fmt.name, fmt.capabilities.checksum)

    @property
    def format(self) -> Format:
        return self._fmt

    def check(self, files: SegmentFiles, *, is_last: bool) -> Checked:
        """Check one segment. Does not change this object, so that several threads may call it."""
        part = self._part()
        report = part._segment(files, is_last=is_last)
        return Checked(report, part.report.findings)

    def _part(self) -> Self:
        """Return a copy with its own findings."""
        part = copy.copy(self)
        part.report = Report(self.report.path, self.report.format, self.report.checksum)
        return part

    def counted_by(self, progress: Progress) -> Self:
        """Return a copy that reports its progress to another callback."""
        part = self._part()
        part._progress = progress
        return part

    # --- segments

    def _segment(self, files: SegmentFiles, *, is_last: bool) -> SegmentReport:
        path = self._directory.full(files.segment.path)
        report = SegmentReport(path, files.base or 0, files.segment.size_bytes)
        if Role.INDEX in files.derived:
            report.index_bytes = files.derived[Role.INDEX].size_bytes
        derived = self._map_derived(files)
        data = files.settled(self._disk.map(path).data)
        try:
            segment = self._fmt.open_segment(data, files.base)
        except UsageError as error:
            error.path = error.path or path
            raise
        except CorruptionError as error:
            is_torn = (is_last and not self._evidence.was_durable(report.base_offset)) and (
                isinstance(error, IncompleteHeaderError)
                or last_has_not_begun(self._disk, self._directory, self._fmt, data, self._evidence.watermark)
            )
            self._bad_header(report, error, is_torn=is_torn)
            self._lost_with_header(files, derived, report, data)
            self._progress(report.size_bytes)
            return report
        report.base_offset, report.dialect = segment.base_offset, segment.dialect
        indexes = self._open_indexes(files, derived, segment)
        running = self._evidence.running(report.base_offset, data)
        self._records(report, segment, indexes, running, is_last=is_last)
        for checker in indexes:
            self.report.findings += checker.finish()
        self._lacking_entries(files, report, segment, {c.role: [c.walked] for c in indexes}, is_last=is_last)
        self._missing_index(files, report)
        digest = None if running is None else running.finish()
        self.report.findings += self._evidence.of_sealed(report, data, digest, is_growing=files.is_growing)
        index = next((checker.index for checker in indexes if checker.role == Role.INDEX), None)
        self.report.findings += self._evidence.of_watermark(report, segment, index, digest)
        return report

    def _bad_header(self, report: SegmentReport, error: CorruptionError, *, is_torn: bool) -> None:
        report.ending = EndKind.TORN if is_torn else EndKind.DAMAGE
        if is_torn:
            self.find("torn-header", Severity.NOTE, report.path, error.message, _NOTHING, position=0)
            return
        code = "unknown-version" if isinstance(error, UnknownVersionError) else "bad-file-header"
        action = "use the program that wrote it" if code == "unknown-version" else SALVAGE
        self.find(code, Severity.DAMAGE, report.path, error.message, action, position=error.position)

    def _lost_with_header(
        self, files: SegmentFiles, derived: Mapping[Role, memoryview], report: SegmentReport, data: memoryview
    ) -> None:
        """Report the records that only the index of a segment names, if not even the first follows its bad header."""
        header, start = self._fmt.segment_header(report.base_offset, 0), ScanPosition(0, report.base_offset - 1)
        segment = copy.copy(self._fmt.open_segment(header, report.base_offset))
        segment.buf = data
        if len(data) > len(header) and segment.scan(segment.start, max_records=1).count:
            return
        for checker in self._checkers(files, derived, report.base_offset, start):
            self.report.findings += checker.lost_records()

    def _records(
        self, report: SegmentReport, segment: Segment, indexes: list[IndexChecker], running: RunningDigest | None,
        *, is_last: bool,
    ) -> None:  # fmt: skip
        cursor = segment.start
        report.valid_bytes = cursor.position
        self._progress(cursor.position)
        last_time: int | None = None
        previous: int | None = None
        """The offset before the next row; None at the beginning and after damage."""
        while True:
            digests = None if running is None else running.along(cursor.position, len(segment.buf))
            rows = segment.scan(cursor, digests=digests)
            if running is not None and digests is not None:
                running.passed(rows.end.position)
            last_time = self._check_times(report, rows, last_time)
            self._rows(report, segment, rows, cursor, previous, indexes, running)
            previous = rows.end.last_offset if len(rows.columns) else previous
            cursor = rows.cursor
            if rows.stop == Stop.LIMIT:
                continue
            end = classify_rows(segment, rows, is_last=is_last)
            if is_last and self._is_unfinished(end, segment):
                end = end._replace(ending=EndKind.TORN, goes_on_at=None)
            self._ending(report, segment, end, indexes)
            if end.goes_on_at is None:
                self._progress(len(segment.buf) - cursor.position)
                return
            self._progress(end.goes_on_at - cursor.position)
            cursor = ScanPosition(end.goes_on_at, cursor.previous_offset)
            last_time = previous = None

    def _is_unfinished(self, end: SegmentEnd, segment: Segment) -> bool:
        """Whether the end is an unfinished write of a writer that no longer runs."""
        return is_unfinished(end, segment, self._evidence.watermark) and not self._evidence.is_being_written

    def _rows(
        self, report: SegmentReport, segment: Segment, rows: Rows, cursor: ScanPosition, previous: int | None,
        indexes: list[IndexChecker], running: RunningDigest | None,
    ) -> None:  # fmt: skip
        """Process one step of a scan, which began at ``cursor``."""
        if running is not None:
            running.take(rows.end.position)
        self._progress(rows.end.position - cursor.position)
        report.valid_bytes += rows.end.position - cursor.position
        self._check_gaps(report, rows, previous)
        self._count(report, segment, rows)
        for problem in segment.check(rows):
            self._problem(report.path, problem)
        for checker in indexes:
            checker.add(rows)

    def _ending(self, report: SegmentReport, segment: Segment, end: SegmentEnd, indexes: list[IndexChecker]) -> None:
        report.ending = end.ending
        self._end(report, segment, end)
        for checker in indexes:
            checker.forgive(end)

    def _count(self, report: SegmentReport, segment: Segment, rows: Rows) -> None:
        report.records += rows.count
        if len(rows.columns):
            if report.first_offset is None:
                report.first_offset = int(rows.columns.first_offsets[0])
                if int(rows.columns.position[0]) == segment.start.position:  # after damage it proves nothing
                    self._check_name(report, segment)
            report.last_offset = rows.end.last_offset

    def _check_name(self, report: SegmentReport, segment: Segment) -> None:
        if report.first_offset == segment.base_offset:
            return
        late = report.first_offset is not None and report.first_offset > segment.base_offset
        able = self._fmt.capabilities
        legal = late and (able.compaction or able.compacted_elsewhere)
        self.find(
            "wrong-name", self._gap_severity if legal else Severity.DAMAGE, report.path,
            f"the first record has offset {report.first_offset}, the name says {segment.base_offset}",
            "fine after compaction; otherwise the first records are lost" if legal else
            "the file was renamed, or its first records are lost",
            position=segment.start.position, first_offset=segment.base_offset,
            last_offset=report.first_offset - 1 if late and report.first_offset is not None else None,
        )  # fmt: skip

    @property
    def _gap_severity(self) -> Severity:
        """How bad a missing offset is: no more than a note where the format's own program leaves gaps."""
        return Severity.NOTE if self._fmt.capabilities.compacted_elsewhere else Severity.WARNING

    def _check_gaps(self, report: SegmentReport, rows: Rows, previous: int | None) -> None:
        columns = rows.columns
        if len(columns) and columns.last_offsets is columns.first_offsets:  # a row is a record
            first = int(columns.first_offsets[0]) if previous is None else previous + 1
            if rows.end.last_offset - first + 1 == len(columns):
                return  # offsets ascend, and no offset of the range is missing
        for position, first, last in rows.gaps(previous):
            self.find(
                "offset-gap", self._gap_severity, report.path,
                counted(last - first + 1, "offset is missing", "offsets are missing"),
                "fine after compaction; otherwise records are lost",
                position=position, first_offset=first, last_offset=last,
            )  # fmt: skip

    def _check_times(self, report: SegmentReport, rows: Rows, last: int | None) -> int | None:
        """Report times that go backwards where the format forbids it: the first of each step."""
        times = getattr(rows.columns, "timestamp", None)
        if times is None or not len(times) or not self._fmt.capabilities.ordered_timestamps:
            return last
        first = int(times[0]) if last is None else last
        if times[0] < first or (times[1:] < times[:-1]).any():
            before = np.concatenate([[first], times[:-1]])
            backwards = np.flatnonzero(times < before)
            row = int(backwards[0])
            self.find(
                "time-goes-backwards", Severity.WARNING, report.path,
                f"the timestamp {int(times[row])} is lower than {int(before[row])}, that of the record before"
                + (f", and {len(backwards) - 1} more" if len(backwards) > 1 else ""),
                "look-ups by time may miss records here",
                position=int(rows.columns.position[row]), first_offset=int(rows.columns.first_offsets[row]),
            )  # fmt: skip
        return int(times[-1])

    def _end(self, report: SegmentReport, segment: Segment, end: SegmentEnd) -> None:
        first = end.previous_offset + 1
        if end.ending == EndKind.CLEAN:
            rest = report.size_bytes - end.position
            if rest > 0:
                self.find(
                    "zero-tail", Severity.NOTE, report.path,
                    counted(rest, "zero byte follows the last record", "zero bytes follow the last record"),
                    "nothing: this is preallocated space", position=end.position,
                )  # fmt: skip
        elif end.ending == EndKind.TORN:
            rest = len(segment.buf) - end.position
            self.find(
                "torn-tail", Severity.NOTE, report.path,
                f"{end.why}: the last write did not finish ({counted(rest, 'byte')})", _NOTHING,
                position=end.position, first_offset=first,
            )  # fmt: skip
        elif end.ending == EndKind.UNKNOWN_VERSION:
            self.find(
                "unknown-version", Severity.DAMAGE, report.path, end.why,
                "a newer program wrote it, or the byte is damaged: nothing after it is read",
                position=end.position, first_offset=first,
            )  # fmt: skip
        else:
            last = None
            if end.goes_on_at is not None:
                following = segment.scan(ScanPosition(end.goes_on_at, end.previous_offset), max_records=1)
                last = int(following.columns.first_offsets[0]) - 1 if len(following.columns) else None
            code, why = "damaged-records", end.why
            if end.stop == Stop.BAD_ORDER:
                code, why = "repeated-offset", f"{end.why}: {_out_of_order(segment, end)}"
            self.find(
                code, Severity.DAMAGE, report.path, why, SALVAGE,
                position=end.position, first_offset=first, last_offset=last,
            )  # fmt: skip

    # --- derived files

    def _map_derived(self, files: SegmentFiles) -> dict[Role, memoryview]:
        """Map the derived files of a segment. Call this before mapping the segment: a writer appends records before
        their index entries."""
        paths = {role: self._directory.full(file.path) for role, file in files.derived.items()}
        return {role: index_bytes(self._disk, self._fmt, path) for role, path in paths.items()}

    def _open_indexes(
        self, files: SegmentFiles, derived: Mapping[Role, memoryview], segment: Segment
    ) -> list[IndexChecker]:
        for role, file in files.derived.items():
            if not files.is_growing:  # the last entry of a growing index may be half written
                for problem in self._fmt.check_file(role, derived[role], file.name):
                    self._problem(self._directory.full(file.path), problem)
        return list(self._checkers(files, derived, segment.base_offset, segment.start))

    def _checkers(
        self, files: SegmentFiles, derived: Mapping[Role, memoryview], base: int, start: ScanPosition
    ) -> Iterator[IndexChecker]:
        """Yield a checker for each index of the segment that begins at ``base``."""
        for role, file in files.derived.items():
            index = self._fmt.open_index(role, derived[role], base)
            if index is not None:
                yield IndexChecker(
                    self._directory.full(file.path), role, index, start,
                    files.segment.size_bytes if files.is_growing else None, self._evidence.ahead_from(base),
                    is_witness=not self._evidence.knows(base), begins_at=len(self._fmt.segment_header(base, 0)),
                )  # fmt: skip

    def _lacking_entries(
        self, files: SegmentFiles, report: SegmentReport, segment: Segment, walked: Mapping[Role, Sequence[Walked]],
        *, is_last: bool,
    ) -> None:  # fmt: skip
        """Report an index that lacks entries, although those that it has are right."""
        is_read_by_index = is_last and self._fmt.capabilities.index_at_once
        if report.ending != EndKind.CLEAN and not (is_read_by_index and report.ending == EndKind.TORN):
            return
        paths = {role: self._directory.full(file.path) for role, file in files.derived.items()}
        if any(one.path in paths.values() and one.severity != Severity.NOTE for one in self.report.findings):
            return  # it has to be rebuilt anyway
        opened = {role: self._fmt.open_index(role, index_bytes(self._disk, self._fmt, path), segment.base_offset)
                  for role, path in paths.items()}  # fmt: skip
        if any(index is not None and index.unread_bytes for index in opened.values()):
            return  # the rest is unknown
        indexes = {role: index for role, index in opened.items() if index is not None}
        is_damaged = any(one.path == report.path and one.severity == Severity.DAMAGE for one in self.report.findings)
        found = [] if is_damaged else list(gaps(self._evidence.described, segment, indexes, walked))
        for role, row in found:
            self.report.findings.append(index_gap(paths[role], indexes[role], row))
        if is_read_by_index and not found and not self._evidence.is_being_written:
            self._discarded(report, segment, paths, indexes)
        elif not found and (not is_last or self._evidence.is_closed(report)):
            self._short_index(report, segment, paths, indexes)

    def _discarded(
        self, report: SegmentReport, segment: Segment, paths: Mapping[Role, str], indexes: Mapping[Role, Index]
    ) -> None:
        """Report a short index of the last segment where the format's own program trusts the index: at its next start
        it removes the records without an entry."""
        for role in {*(paths.keys() - indexes.keys()), *short_indexes(self._evidence.described, segment, indexes)}:
            index = indexes.get(role)
            rows = None if index is None else rows_after(index, segment)
            lacking = [] if rows is None else rows.columns.first_offsets[min(len(index or ()), 1) :].tolist()
            first = lacking[0] if lacking else report.first_offset
            self.find(
                "short-index", Severity.WARNING, paths[role],
                f"it lacks the last chunks: {self._fmt.program} trusts the index, and would discard the records from "
                f"offset {first} on at its next start",
                f"{REINDEX}; do so before {self._fmt.program} starts",
                position=0 if index is None else index.start + len(index) * index.entry_bytes,
                first_offset=first, last_offset=report.last_offset,
            )  # fmt: skip

    def _short_index(
        self, report: SegmentReport, segment: Segment, paths: Mapping[Role, str], indexes: Mapping[Role, Index]
    ) -> None:
        """Report an index that lacks entries at its end, in a log that was closed and is not being written."""
        for role in paths.keys() - indexes.keys():
            self.find("short-index", Severity.WARNING, paths[role], "it is empty", REINDEX, position=0)
        for role in short_indexes(self._evidence.described, segment, indexes):
            offsets = indexes[role].offsets
            ends = f"ends with offset {int(offsets[-1])}" if len(offsets) else "has no entry"
            self.find(
                "short-index", Severity.WARNING, paths[role], f"it {ends}, and entries for later records are missing",
                REINDEX, position=indexes[role].start + len(offsets) * indexes[role].entry_bytes,
                first_offset=int(offsets[-1]) + 1 if len(offsets) else report.first_offset,
                last_offset=report.last_offset,
            )  # fmt: skip

    def _missing_index(self, files: SegmentFiles, report: SegmentReport) -> None:
        """Report a missing index. A time index only speeds up look-ups by time; other programs may not write it."""
        if not self._fmt.capabilities.index or files.base is None or self.report.path == report.path:
            return  # a single file was given
        if files.is_changing or self._evidence.is_active(report):
            return  # it is created with the first entries, or when the log is next opened for writing
        if Role.INDEX not in files.derived:
            action = REINDEX
            if self._fmt.capabilities.index_at_once:
                action = f"{REINDEX}; {self._fmt.program} trusts the index: do so before it starts"
            self.find("missing-index", Severity.WARNING, report.path, "the segment has no index", action)
        elif self._derived - files.derived.keys():
            self.find("missing-index", Severity.NOTE, report.path, "the segment has no time index", REINDEX)

    # --- findings

    def _problem(self, path: str, problem: Problem) -> None:
        self.find(
            problem.code, problem.severity, path, problem.message, problem.action or _default_action(problem),
            position=problem.position, first_offset=problem.offset, last_offset=problem.offset,
        )  # fmt: skip

    def find(self, code: str, severity: Severity, path: str, message: str, action: str, **place: int | None) -> None:
        self.report.findings.append(Finding(code, severity, path, message, action, **place))


def _out_of_order(segment: Segment, end: SegmentEnd) -> str:
    """Describe the whole records from the place where offsets go back to where they continue in order."""
    until = len(segment.buf) if end.goes_on_at is None else end.goes_on_at
    cursor, count, lowest, highest = ScanPosition(end.position, -1), 0, 2**63, -1
    while cursor.position < until:
        rows = segment.scan(cursor, max_bytes=max(until - cursor.position, 1))
        if rows.count and rows.end.position > cursor.position:
            count += rows.count
            lowest = min(lowest, int(rows.columns.first_offsets[0]))
            highest = max(highest, rows.end.last_offset)
        elif rows.stop == Stop.BAD_ORDER or rows.end.position <= cursor.position:
            break
        if rows.stop not in (Stop.LIMIT, Stop.BAD_ORDER):
            break
        cursor = ScanPosition(rows.end.position, rows.end.last_offset if rows.stop == Stop.LIMIT else -1)
    if not count:
        return "no whole record follows"
    return f"{counted(count, 'whole record')} there, with offsets from {lowest} to {highest}"


def _default_action(problem: Problem) -> str:
    if "index" in problem.code:
        return REINDEX
    return SALVAGE if problem.severity == Severity.DAMAGE else "nothing is lost: the next write rebuilds it"
