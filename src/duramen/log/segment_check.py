"""Checking one segment of a log, with the files that are derived from it: every record, every entry of its indexes.

Segments are checked independently of each other, so this can be done in order, in threads, or elsewhere. How they
follow one another, and the files of the whole log, are `verify`'s. Reads only, and never stops at the first thing it
finds: behind a damaged place it goes on at the next valid record.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Self

import numpy as np

from duramen.disk import Disk
from duramen.errors import CorruptionError, IncompleteHeaderError, UnknownVersionError, UsageError
from duramen.formats import Format
from duramen.formats.base import Cursor, Problem, Role, Rows, Segment, Severity
from duramen.formats.index import Index
from duramen.kernel.layout import Stop
from duramen.log.beginning import last_has_not_begun
from duramen.log.directory import Directory, SegmentFiles, list_log
from duramen.log.ending import End, Ending, is_unfinished, judge_rows
from duramen.log.evidence import Evidence
from duramen.log.index_check import REINDEX, IndexChecker, Walked, found_gap, gaps, short_indexes
from duramen.log.report import Finding, Report, SegmentReport, counted
from duramen.log.running import Running

Progress = Callable[[int], None]
"""Called with the bytes that were checked since the last call."""

SALVAGE = "`duramen repair` shows what can be kept and what is lost"
_NOTHING = "nothing: it is cut when the log is next opened for writing"


class Checked(NamedTuple):
    """What a check of one segment, and of its derived files, found."""

    report: SegmentReport
    findings: list[Finding]


class SegmentVerifier:
    """Checks segments of one log; each gets findings of its own."""

    def __init__(
        self,
        disk: Disk,
        path: str,
        fmt: Format,
        progress: Progress,
        directory: Directory | None = None,
        evidence: Evidence | None = None,
    ) -> None:
        self._disk = disk
        self._fmt = fmt
        self._progress = progress
        self._evidence = evidence if evidence is not None else Evidence(disk, path, fmt)
        self._directory: Directory = directory if directory is not None else list_log(disk, path, fmt)
        self._derived = fmt.index_builder(0, 0).headers().keys()
        self.report = Report(path, fmt.name, fmt.capabilities.checksum)

    @property
    def format(self) -> Format:
        return self._fmt

    def check(self, files: SegmentFiles, *, is_last: bool) -> Checked:
        """Check one segment; changes nothing of this object, so several may run at once."""
        part = self._part()
        report = part._segment(files, is_last=is_last)
        return Checked(report, part.report.findings)

    def _part(self) -> Self:
        """The same with findings of its own."""
        part = copy.copy(self)
        part.report = Report(self.report.path, self.report.format, self.report.checksum)
        return part

    def counted_by(self, progress: Progress) -> Self:
        """The same with another one to count the bytes."""
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
            is_torn = is_last and (
                isinstance(error, IncompleteHeaderError)
                or last_has_not_begun(self._disk, self._directory, self._fmt, data, self._evidence.watermark)
            )
            self._bad_header(report, error, is_torn=is_torn)
            self._progress(report.size_bytes)
            return report
        report.base_offset, report.dialect = segment.base_offset, segment.dialect
        indexes = self._open_indexes(files, derived, segment)
        running = self._evidence.running(report.base_offset, data)
        self._records(report, segment, indexes, running, is_last=is_last)
        for checker in indexes:
            checker.finish(self)
        self._lacking_entries(files, report, segment, {c.role: [c.walked] for c in indexes}, is_last=is_last)
        self._missing_index(files, report)
        digest = None if running is None else running.finish()
        self.report.findings += self._evidence.of_sealed(report, data, digest, is_growing=files.is_growing)
        self.report.findings += self._evidence.of_watermark(report)
        return report

    def _bad_header(self, report: SegmentReport, error: CorruptionError, *, is_torn: bool) -> None:
        report.ending = Ending.TORN if is_torn else Ending.DAMAGE
        if is_torn:
            self.find("torn-header", Severity.NOTE, report.path, error.message, _NOTHING, position=0)
            return
        code = "unknown-version" if isinstance(error, UnknownVersionError) else "bad-file-header"
        action = "use the program that wrote it" if code == "unknown-version" else SALVAGE
        self.find(code, Severity.DAMAGE, report.path, error.message, action, position=error.position)

    def _records(
        self, report: SegmentReport, segment: Segment, indexes: list[IndexChecker], running: Running | None,
        *, is_last: bool,
    ) -> None:  # fmt: skip
        cursor = segment.start
        report.valid_bytes = cursor.position
        self._progress(cursor.position)
        last_time: int | None = None
        previous: int | None = None
        """The offset before the next row; None where the row starts anew, at the beginning and behind damage."""
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
            end = judge_rows(segment, rows, is_last=is_last)
            if is_last and self._is_unfinished(end, segment):
                end = end._replace(ending=Ending.TORN, goes_on_at=None)
            self._ending(report, segment, end, indexes)
            if end.goes_on_at is None:
                self._progress(len(segment.buf) - cursor.position)
                return
            self._progress(end.goes_on_at - cursor.position)
            cursor = Cursor(end.goes_on_at, cursor.previous_offset)
            last_time = previous = None

    def _is_unfinished(self, end: End, segment: Segment) -> bool:
        """Whether it is only what a writer left that is gone."""
        return is_unfinished(end, segment, self._evidence.watermark) and not self._evidence.is_being_written

    def _rows(
        self, report: SegmentReport, segment: Segment, rows: Rows, cursor: Cursor, previous: int | None,
        indexes: list[IndexChecker], running: Running | None,
    ) -> None:  # fmt: skip
        """What one step of a scan, which began at ``cursor``, found."""
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

    def _ending(self, report: SegmentReport, segment: Segment, end: End, indexes: list[IndexChecker]) -> None:
        report.ending = end.ending
        self._end(report, segment, end)
        for checker in indexes:
            checker.forgive(end)

    def _count(self, report: SegmentReport, segment: Segment, rows: Rows) -> None:
        report.records += rows.count
        if len(rows.columns):
            if report.first_offset is None:
                report.first_offset = int(rows.columns.first_offsets[0])
                if int(rows.columns.position[0]) == segment.start.position:  # behind damage it says nothing
                    self._check_name(report, segment)
            report.last_offset = rows.end.last_offset

    def _check_name(self, report: SegmentReport, segment: Segment) -> None:
        if report.first_offset == segment.base_offset:
            return
        late = report.first_offset is not None and report.first_offset > segment.base_offset
        legal = late and self._fmt.capabilities.compaction
        self.find(
            "wrong-name", Severity.WARNING if legal else Severity.DAMAGE, report.path,
            f"the first record has offset {report.first_offset}, the name says {segment.base_offset}",
            "fine after compaction; otherwise the first records are lost" if legal else
            "the file was renamed, or its first records are lost",
            position=segment.start.position, first_offset=segment.base_offset,
            last_offset=report.first_offset - 1 if late and report.first_offset is not None else None,
        )  # fmt: skip

    def _check_gaps(self, report: SegmentReport, rows: Rows, previous: int | None) -> None:
        columns = rows.columns
        if len(columns) and columns.last_offsets is columns.first_offsets:  # a row is a record
            first = int(columns.first_offsets[0]) if previous is None else previous + 1
            if rows.end.last_offset - first + 1 == len(columns):
                return  # offsets only grow, and here are as many as there can be
        for position, first, last in rows.gaps(previous):
            self.find(
                "offset-gap", Severity.WARNING, report.path,
                counted(last - first + 1, "offset is missing", "offsets are missing"),
                "fine after compaction; otherwise records are lost",
                position=position, first_offset=first, last_offset=last,
            )  # fmt: skip

    def _check_times(self, report: SegmentReport, rows: Rows, last: int | None) -> int | None:
        """Times that go backwards, where the format forbids it: the first of each step is reported."""
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
                f"the timestamp {int(times[row])} is before {int(before[row])}, which precedes it"
                + (f", and {len(backwards) - 1} more" if len(backwards) > 1 else ""),
                "look-ups by time may miss records here",
                position=int(rows.columns.position[row]), first_offset=int(rows.columns.first_offsets[row]),
            )  # fmt: skip
        return int(times[-1])

    def _end(self, report: SegmentReport, segment: Segment, end: End) -> None:
        first = end.previous_offset + 1
        if end.ending == Ending.CLEAN:
            rest = report.size_bytes - end.position
            if rest > 0:
                self.find(
                    "zero-tail", Severity.NOTE, report.path,
                    counted(rest, "zero byte follows the last record", "zero bytes follow the last record"),
                    "nothing: this is preallocated space", position=end.position,
                )  # fmt: skip
        elif end.ending == Ending.TORN:
            rest = len(segment.buf) - end.position
            self.find(
                "torn-tail", Severity.NOTE, report.path,
                f"{end.why}: the last write did not finish ({counted(rest, 'byte')})", _NOTHING,
                position=end.position, first_offset=first,
            )  # fmt: skip
        elif end.ending == Ending.UNKNOWN_VERSION:
            self.find(
                "unknown-version", Severity.DAMAGE, report.path, end.why,
                "a newer program wrote it, or the byte is damaged: nothing behind it is read",
                position=end.position, first_offset=first,
            )  # fmt: skip
        else:
            last = None
            if end.goes_on_at is not None:
                following = segment.scan(Cursor(end.goes_on_at, end.previous_offset), max_records=1)
                last = int(following.columns.first_offsets[0]) - 1 if len(following.columns) else None
            code = "repeated-offset" if end.stop == Stop.BAD_ORDER else "damaged-records"
            self.find(
                code, Severity.DAMAGE, report.path, end.why, SALVAGE,
                position=end.position, first_offset=first, last_offset=last,
            )  # fmt: skip

    # --- derived files

    def _map_derived(self, files: SegmentFiles) -> dict[Role, memoryview]:
        """The derived files of a segment; to be mapped before it, as a writer puts records there before their entries
        here."""
        return {role: self._disk.map(self._directory.full(file.path)).data for role, file in files.derived.items()}

    def _open_indexes(
        self, files: SegmentFiles, derived: Mapping[Role, memoryview], segment: Segment
    ) -> list[IndexChecker]:
        checkers = []
        for role, file in files.derived.items():
            path, data = self._directory.full(file.path), derived[role]
            for problem in self._fmt.check_file(role, data, file.name):
                self._problem(path, problem)
            index = self._fmt.open_index(role, data, segment.base_offset)
            if index is not None:
                checkers.append(IndexChecker(path, role, index, files.segment.size_bytes if files.is_growing else None))
        return checkers

    def _lacking_entries(
        self, files: SegmentFiles, report: SegmentReport, segment: Segment, walked: Mapping[Role, Sequence[Walked]],
        *, is_last: bool,
    ) -> None:  # fmt: skip
        """An index that lacks entries, though those that it has are right."""
        if report.ending != Ending.CLEAN:
            return
        paths = {role: self._directory.full(file.path) for role, file in files.derived.items()}
        if any(one.path in paths.values() and one.severity != Severity.NOTE for one in self.report.findings):
            return  # it has to be made anew anyway
        opened = {role: self._fmt.open_index(role, self._disk.map(path).data, segment.base_offset)
                  for role, path in paths.items()}  # fmt: skip
        indexes = {role: index for role, index in opened.items() if index is not None}
        is_damaged = any(one.path == report.path and one.severity == Severity.DAMAGE for one in self.report.findings)
        found = [] if is_damaged else list(gaps(self._evidence.described, segment, indexes, walked))
        for role, row in found:
            found_gap(self, paths[role], indexes[role], row)
        if not found and (not is_last or self._evidence.is_closed(report)):
            self._short_index(report, segment, paths, indexes)

    def _short_index(
        self, report: SegmentReport, segment: Segment, paths: Mapping[Role, str], indexes: Mapping[Role, Index]
    ) -> None:
        """An index that lacks entries at its end. That of a log that is being written, or was not closed, may."""
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
        """The index has to be there; one by time helps only with look-ups by time, and other programs may leave it."""
        if not self._fmt.capabilities.index or files.base is None or self.report.path == report.path:
            return  # also where a single file was asked for
        if files.is_changing or self._evidence.is_active(report):
            return  # it comes with the first entries, or when the log is next opened for writing
        if Role.INDEX not in files.derived:
            self.find("missing-index", Severity.WARNING, report.path, "the segment has no index", REINDEX)
        elif self._derived - files.derived.keys():
            self.find("missing-index", Severity.NOTE, report.path, "the segment has no time index", REINDEX)

    # --- findings

    def _problem(self, path: str, problem: Problem) -> None:
        self.find(
            problem.code, problem.severity, path, problem.message, problem.action or _default_action(problem),
            position=problem.position, first_offset=problem.offset, last_offset=problem.offset,
        )  # fmt: skip

    def find(
        self,
        code: str,
        severity: Severity,
        path: str,
        message: str,
        action: str,
        *,
        position: int | None = None,
        first_offset: int | None = None,
        last_offset: int | None = None,
    ) -> None:
        self.report.findings.append(Finding(code, severity, path, message, action, position, first_offset, last_offset))


def _default_action(problem: Problem) -> str:
    if "index" in problem.code:
        return REINDEX
    return SALVAGE if problem.severity == Severity.DAMAGE else "nothing is lost: it is made anew on the next write"
