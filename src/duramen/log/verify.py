"""Checking every byte of a log: checksums, order, index agreement, names against contents, the format's own files.

Reads only. Never stops at the first thing it finds: behind a damaged place it goes on at the next valid record. Memory
stays flat whatever the size of the log.
"""

from __future__ import annotations

import copy
import errno
import posixpath
import re
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Self

import numpy as np

from duramen.disk import Disk, PosixDisk
from duramen.disk.base import Kind, map_if_there
from duramen.errors import CorruptionError, IncompleteHeaderError, StorageError, UnknownVersionError, UsageError
from duramen.formats import Format, make
from duramen.formats.base import Cursor, Problem, Role, Rows, Segment, Severity
from duramen.formats.detect import detect_directory
from duramen.formats.index import Index
from duramen.kernel.layout import Stop
from duramen.log.compaction.state import read_state
from duramen.log.directory import (
    Directory,
    Listing,
    LogFile,
    SegmentFiles,
    format_at,
    list_log,
    refuse_foreign_sidecar,
)
from duramen.log.ending import End, Ending, judge_rows
from duramen.log.evidence import Evidence
from duramen.log.index_check import REINDEX, IndexChecker, Walked, found_gap, gaps, short_indexes
from duramen.log.journal import refuse_unfinished
from duramen.log.losses import KnownLoss, covered, read_losses
from duramen.log.overtaken import OvertakenError, until_it_holds
from duramen.log.report import Finding, Report, SegmentReport, counted
from duramen.log.running import Running
from duramen.log.sidecar import DIRECTORY, is_no_directory, read_watermark
from duramen.metrics import process as process_counters

Progress = Callable[[int], None]
"""Called with the bytes that were checked since the last call."""

_SALVAGE = "`duramen repair` shows what can be kept and what is lost"
_NOTHING = "nothing: it is cut when the log is next opened for writing"
_COMMAND = re.compile(r"`duramen (repair|reindex|verify)((?: --\w+)*)`")
_GAPS = frozenset({"missing-segment", "offset-gap", "wrong-name", "manifest-ahead"})
"""Findings that say that offsets are missing."""

_PATIENCE, _PATIENCE_S = 20, 0.02

THREADS_FROM_BYTES = 8 << 20
"""Less than this is checked before threads have begun."""


def verify(
    path: str,
    *,
    format: str | None = None,
    disk: Disk | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Report:
    """Check the log at ``path``, a directory or a single segment file."""
    disk = disk if disk is not None else PosixDisk()
    fmt, problem = format_for(disk, path, format, options)
    return check_log(disk, path, fmt, progress, [] if problem is None else [problem])


def check_log(
    disk: Disk, path: str, fmt: Format, progress: Progress | None = None, findings: Sequence[Finding] = ()
) -> Report:
    """Check a log whose format is known. ``findings`` are those that were made on the way."""
    return until_it_holds(lambda: _check_listed(disk, path, fmt, progress, findings))


def _check_listed(disk: Disk, path: str, fmt: Format, progress: Progress | None, findings: Sequence[Finding]) -> Report:
    evidence = Evidence(disk, path, fmt)  # first: what it knows of is then there, though a writer goes on
    directory = list_settled(disk, path, fmt)
    try:
        refuse_foreign_sidecar(disk, path, fmt, directory)
    except CorruptionError as error:  # whatever it says is of another log
        finding = Finding("bad-sidecar", Severity.DAMAGE, error.path or path, error.message, error.hint or "")
        return Report(path, fmt.name, fmt.capabilities.checksum, findings=[*findings, finding])
    if sum(files.segment.size_bytes for files in directory.segments) >= THREADS_FROM_BYTES:
        from duramen.log.parallel import check_in_threads  # which is made of what is here

        return check_in_threads(disk, path, fmt, directory, progress, findings, evidence)
    verifier = Verifier(disk, path, fmt, progress or (lambda _bytes: None), directory, evidence)
    verifier.report.findings += findings
    return verifier.run()


def list_settled(disk: Disk, path: str, fmt: Format) -> Directory:
    """The files of a log; the last segment only up to what is acknowledged while a writer goes on with it: what lies
    behind changes while it is read, or is gone a moment later."""
    directory = list_log(disk, path, fmt)
    for _ in range(_PATIENCE):
        mark = read_watermark(disk, path) if disk.kind(path) == Kind.DIRECTORY else None
        if mark is None or not mark.is_open or not directory.segments:
            return directory
        if not disk.is_locked(posixpath.join(path, DIRECTORY, "lock")):
            return directory
        *others, last = directory.segments
        if last.base == mark.base:
            last = replace(last, segment=replace(last.segment, size_bytes=mark.position), is_growing=True)
            return replace(directory, segments=[*others, last])
        time.sleep(_PATIENCE_S)  # it is about to begin a new segment, or has done so since they were listed
        directory = list_log(disk, path, fmt)
    return directory


def verify_segment(
    disk: Disk, path: str, fmt: Format, files: SegmentFiles, *, is_last: bool, directory: Directory | None = None
) -> Checked:
    """Check one segment of the log at ``path`` by itself, with its derived files: what a thread or a process elsewhere
    does. The answers of all, in order, make the report: `Verifier.conclude`."""
    return Verifier(disk, path, fmt, lambda _bytes: None, directory).check(files, is_last=is_last)


def format_for(disk: Disk, path: str, name: str | None, options: dict[str, Any]) -> tuple[Format, Finding | None]:
    """The format of a log; told from its files where the sidecar cannot be read, and then with a finding."""
    try:
        return format_at(disk, path, name, options), None
    except CorruptionError as error:
        if error.path is None or posixpath.basename(error.path) != "log.json":
            raise
        action = "`duramen repair` makes it anew; no record is lost"
        problem = Finding("bad-sidecar", Severity.DAMAGE, error.path, error.message, action)
        return make(name or detect_directory(path, Listing(disk, path)).format, **options), problem


def missing(error: StorageError) -> StorageError:
    """The error, if it says that a file is gone; otherwise it is raised."""
    if error.errno != errno.ENOENT:
        raise error
    return error


class Checked(NamedTuple):
    """What a check of one segment, and of its derived files, found."""

    report: SegmentReport
    findings: list[Finding]


class Verifier:
    """One pass over one log. Segments are checked independently of each other: in order, in threads, or elsewhere."""

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

    def run(self) -> Report:
        last = len(self._directory.segments) - 1
        return self.conclude(
            [self.check_or_miss(files, is_last=number == last) for number, files in enumerate(self._directory.segments)]
        )

    def check_or_miss(self, files: SegmentFiles, *, is_last: bool) -> Checked | StorageError:
        """`check`; the error where a file is gone, which retention may have removed."""
        try:
            return self.check(files, is_last=is_last)
        except StorageError as error:
            return missing(error)

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

    def conclude(self, checked: Sequence[Checked | StorageError]) -> Report:
        """The report of the whole log from those of all its segments, in order, and what can be seen only from above:
        how they follow each other, and the files that belong to none of them."""
        previous: SegmentReport | None = None
        for report, findings in self._still_there(checked):
            self.report.segments.append(report)
            self.report.findings += findings
            if previous is not None:
                self._check_seam(previous, report)
            previous = report
        if not checked:
            self.find("no-segments", Severity.DAMAGE, self.report.path, "there is no segment", "check the path")
        for orphan in self._directory.orphans:
            self.find(
                "orphaned-index", Severity.WARNING, self._directory.full(orphan.path),
                f"{orphan.name.role} without its segment",
                "the segment was removed or lost: if retention did it, delete this file; else look for the segment",
            )  # fmt: skip
        for file in self._directory.others:
            self._other(file)
        self._check_against_log()
        self.report.findings += self._evidence.of_log(self.report.segments)
        self._check_sidecar()
        self._check_places()
        self._explain()
        process_counters.found_damage(sum(one.severity == Severity.DAMAGE for one in self.report.findings))
        return self.report

    def _still_there(self, checked: Sequence[Checked | StorageError]) -> Iterator[Checked]:
        """Without the segments that were removed from the log's beginning meanwhile: what is read from now on, the
        manifest above all, does not know them any more. Any other file that is gone is an error."""
        removed = 0
        if self._disk.kind(self.report.path) == Kind.DIRECTORY:
            listed, removed = self._list_again()
            for _ in range(_PATIENCE):  # an index may go a moment before its segment
                if not any(isinstance(one, StorageError) for one in checked[removed:]):
                    break
                time.sleep(_PATIENCE_S)
                listed, removed = self._list_again()
            paths = {orphan.path for orphan in listed.orphans}
            self._directory = replace(
                self._directory, others=listed.others, orphans=[o for o in self._directory.orphans if o.path in paths]
            )
        if removed:
            first, following = (self._directory.segments[n].base for n in (0, removed))
            self.find(
                "segments-removed", Severity.NOTE, self.report.path,
                counted(removed, "segment was removed", "segments were removed") + " meanwhile, and left out",
                "nothing: retention removes from the beginning", first_offset=first,
                last_offset=None if following is None else following - 1,
            )  # fmt: skip
        for one in checked[removed:]:
            if isinstance(one, StorageError):
                raise one
            yield one

    def _list_again(self) -> tuple[Directory, int]:
        """What is there now, and how many of the segments that were there at first are gone from the beginning."""
        listed = list_log(self._disk, self.report.path, self._fmt)
        there = {files.segment.path for files in listed.segments}
        segments = self._directory.segments
        removed = next(
            (n for n, one in enumerate(segments) if one.segment.path in there), len(segments) if there else 0
        )
        if segments and removed == len(segments):
            raise OvertakenError(
                "every segment that was to be checked has been removed meanwhile", count=removed,
                path=self.report.path, offset=segments[0].base, hint="verify a copy, which `duramen copy` makes",
            )  # fmt: skip
        return listed, removed

    def _check_sidecar(self) -> None:
        """What has no place in it, and a repair that was stopped half-way, which leaves a log in between."""
        if is_no_directory(self._disk, self.report.path):
            action = "move it away: no record is in it, and it is made anew on the next write"
            path = posixpath.join(self.report.path, DIRECTORY)
            self.find("bad-sidecar", Severity.DAMAGE, path, "the sidecar is no directory", action)
        try:
            refuse_unfinished(self._disk, self.report.path)
        except CorruptionError as error:
            self.find("unfinished-repair", Severity.DAMAGE, self.report.path, error.message, error.hint or "")

    def _check_places(self) -> None:
        """Segments in whose place something else lies than a file: a link to what is not mounted, above all."""
        there = {segment.base_offset for segment in self.report.segments}
        bases = {orphan.name.base for orphan in self._directory.orphans} | self._evidence.known_bases
        for base in sorted(base for base in bases if base is not None and base not in there):
            path = self._directory.full(self._fmt.segment_path(base))
            if self._disk.kind(path) in (Kind.DIRECTORY, Kind.OTHER):
                self.find(
                    "not-a-file", Severity.DAMAGE, path,
                    "in the place of the segment lies a directory, a link to nothing, or something else than a file",
                    "mount what it points to, or put the segment back: nothing of it can be read", first_offset=base,
                )  # fmt: skip

    def _explain(self) -> None:
        """Name the log in the commands, take what a repair gave up for known, and pass over gaps of our compaction."""
        losses = read_losses(self._disk, self.report.path)
        is_file = self._disk.kind(self.report.path) == Kind.FILE
        compacted = 0 if is_file else read_state(self._disk, self.report.path).begun_until
        root = shlex.quote(self._directory.root or "." if is_file else self.report.path)
        explained = []
        for finding in self.report.findings:
            # Not those that the sidecar's own list of segments tells of: compaction keeps that one right.
            is_warning = finding.code in _GAPS and finding.severity == Severity.WARNING
            is_gap = is_warning or finding.code == "manifest-ahead"
            if is_gap and finding.last_offset is not None and finding.last_offset < compacted:
                continue
            finding = _known(finding, losses) if losses else finding
            action = _COMMAND.sub(lambda found: f"`duramen {found[1]}{found[2]} {root}`", finding.action)
            explained.append(finding if action == finding.action else replace(finding, action=action))
        self.report.findings = explained

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
            self._bad_header(report, error, is_last=is_last)
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

    def _bad_header(self, report: SegmentReport, error: CorruptionError, *, is_last: bool) -> None:
        torn = is_last and isinstance(error, IncompleteHeaderError)
        report.ending = Ending.TORN if torn else Ending.DAMAGE
        if torn:
            self.find("torn-header", Severity.NOTE, report.path, error.message, _NOTHING, position=0)
            return
        code = "unknown-version" if isinstance(error, UnknownVersionError) else "bad-file-header"
        action = "use the program that wrote it" if code == "unknown-version" else _SALVAGE
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
            self._ending(report, segment, end, indexes)
            if end.goes_on_at is None:
                self._progress(len(segment.buf) - cursor.position)
                return
            self._progress(end.goes_on_at - cursor.position)
            cursor = Cursor(end.goes_on_at, cursor.previous_offset)
            last_time = previous = None

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
                code, Severity.DAMAGE, report.path, end.why, _SALVAGE,
                position=end.position, first_offset=first, last_offset=last,
            )  # fmt: skip

    def _check_seam(self, before: SegmentReport, after: SegmentReport) -> None:
        expected = before.base_offset if before.last_offset is None else before.last_offset + 1
        if after.base_offset == expected or before.ending == Ending.DAMAGE:
            return
        if after.base_offset < expected:
            self.find(
                "overlapping-segments", Severity.DAMAGE, after.path,
                f"starts at offset {after.base_offset}, but the segment before it goes up to {expected - 1}",
                _SALVAGE, first_offset=after.base_offset, last_offset=expected - 1,
            )  # fmt: skip
            return
        lost = self._fmt.capabilities.lost_segments_show
        self.find(
            "missing-segment", Severity.DAMAGE if lost else Severity.WARNING, after.path,
            f"{counted(after.base_offset - expected, 'offset')} missing before this segment",
            "a segment is lost" if lost else "a segment is lost, or compaction emptied the end of the one before",
            first_offset=expected, last_offset=after.base_offset - 1,
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
        if self._evidence.is_active(report):
            return  # it comes with the first entries, or when the log is next opened for writing
        if Role.INDEX not in files.derived:
            self.find("missing-index", Severity.WARNING, report.path, "the segment has no index", REINDEX)
        elif self._derived - files.derived.keys():
            self.find("missing-index", Severity.NOTE, report.path, "the segment has no time index", REINDEX)

    def _other(self, file: LogFile) -> None:
        path = self._directory.full(file.path)
        if file.name.role == Role.LEFTOVER:
            if not self._evidence.is_being_written:  # otherwise it is work that goes on
                message, action = "left over from work that did not finish", "it can be deleted"
                self.find("leftover", Severity.NOTE, path, message, action)
            return
        if file.name.role == Role.LOCK:
            return
        data = map_if_there(self._disk, path)
        if data is None:
            return  # a group's old state, which goes when it has a new one
        for problem in self._fmt.check_file(file.name.role, data, file.name):
            self._problem(path, problem)

    def _check_against_log(self) -> None:
        described = [file for file in self._directory.others if file.name.role in (Role.MANIFEST, Role.CHECKPOINT)]
        mapped = {file.path: map_if_there(self._disk, self._directory.full(file.path)) for file in described}
        files = {path: data for path, data in mapped.items() if data is not None}
        files |= self._evidence.log_files  # as they were before the segments were listed
        if self._disk.kind(self.report.path) == Kind.DIRECTORY:
            for name in self._fmt.log_files([], 0).keys() - files.keys():
                message, path = "the file that describes the log is missing", self._directory.full(name)
                self.find("missing-manifest", Severity.WARNING, path, message, REINDEX)
        for name, problem in self._fmt.check_log(files, [s.summary for s in self.report.segments]):
            self._problem(self._directory.full(name), problem)

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


def _known(finding: Finding, losses: Sequence[KnownLoss]) -> Finding:
    """A gap that a repair has shown, and somebody has accepted, is no news."""
    if finding.code not in _GAPS or finding.first_offset is None or finding.last_offset is None:
        return finding
    loss = covered(losses, finding.first_offset, finding.last_offset)
    if loss is None:
        return finding
    return replace(
        finding, code="known-loss", severity=Severity.NOTE, message=f"{finding.message}: {loss.why}",
        action=f"nothing: a repair gave them up; what it took away is in {loss.repair}",
    )  # fmt: skip


def _default_action(problem: Problem) -> str:
    if "index" in problem.code:
        return REINDEX
    return _SALVAGE if problem.severity == Severity.DAMAGE else "nothing is lost: it is made anew on the next write"
