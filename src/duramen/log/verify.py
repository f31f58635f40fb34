"""Checking every byte of a log: checksums, order, index agreement, names against contents, the format's own files.

Here is what can be seen only from above: how segments follow each other, the files that belong to none of them, what
the sidecar says, and what became of the log meanwhile. One segment by itself is `segment_check`'s. Reads only. Memory
stays flat whatever the size of the log.
"""

from __future__ import annotations

import errno
import posixpath
import re
import shlex
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from duramen.disk import Disk, PosixDisk
from duramen.disk.base import Kind, map_if_there
from duramen.errors import CorruptionError, StorageError
from duramen.formats import Format, make
from duramen.formats.base import Role, Severity
from duramen.log import change
from duramen.log.compaction.state import read_state
from duramen.log.directory import (
    Directory,
    LogFile,
    SegmentFiles,
    format_at,
    list_log,
    refuse_foreign_sidecar,
    told_by_files,
)
from duramen.log.ending import Ending
from duramen.log.evidence import Evidence
from duramen.log.index_check import REINDEX
from duramen.log.journal import refuse_unfinished
from duramen.log.losses import KnownLoss, covered, read_losses
from duramen.log.overtaken import OvertakenError, until_it_holds
from duramen.log.report import Finding, Report, SegmentReport, counted
from duramen.log.segment_check import SALVAGE, Checked, Progress, SegmentVerifier
from duramen.log.sidecar import DIRECTORY, is_no_directory, read_watermark
from duramen.metrics import process as process_counters

__all__ = [
    "Checked", "Progress", "Verifier", "check_log", "format_for", "list_settled", "missing", "verify", "verify_segment",
]  # fmt: skip

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
    directory = _list(disk, path, fmt)
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
        directory = _list(disk, path, fmt)
    return directory


def _list(disk: Disk, path: str, fmt: Format) -> Directory:
    """The files as a change that was decided, and may be half done, leaves them."""
    replaced, removed = change.unsettled(disk, path)
    return list_log(disk, path, fmt).without(removed).changing(replaced)


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
        return make(name or told_by_files(disk, path).format, **options), problem


def missing(error: StorageError) -> StorageError:
    """The error, if it says that a file is gone; otherwise it is raised."""
    if error.errno != errno.ENOENT:
        raise error
    return error


class Verifier(SegmentVerifier):
    """One pass over one log. Segments are checked independently of each other: in order, in threads, or elsewhere."""

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

    def conclude(self, checked: Sequence[Checked | StorageError]) -> Report:
        """The report of the whole log from those of all its segments, in order, and what can be seen only from above:
        how they follow each other, and the files that belong to none of them."""
        previous: SegmentReport | None = None
        for report, findings in self._still_there(self._as_compacted(checked)):
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

    def _as_compacted(self, checked: Sequence[Checked | StorageError]) -> Sequence[Checked | StorageError]:
        """Compaction may put other files in the place of segments while they are looked at. Where it did, and something
        was found: the log as it is now, with what was checked of all segments that are still the same."""
        for _ in range(_PATIENCE):
            if all(_is_sound(one) for one in checked):
                break
            evidence = Evidence(self._disk, self.report.path, self._fmt)
            if not self._evidence.is_outdated_by(evidence):
                break
            known = {
                self._identity(files): one
                for files, one in zip(self._directory.segments, checked, strict=True)
                if _is_sound(one)
            }
            self._evidence, self._directory = evidence, list_settled(self._disk, self.report.path, self._fmt)
            again, last = self.counted_by(lambda _bytes: None), len(self._directory.segments) - 1
            checked = [
                known.get(self._identity(files)) or again.check_or_miss(files, is_last=number == last)
                for number, files in enumerate(self._directory.segments)
            ]
        return checked

    def _identity(self, files: SegmentFiles) -> tuple[object, ...]:
        """What tells a segment from another one in its place."""
        return files.segment, files.is_growing, self._evidence.sealed.get(-1 if files.base is None else files.base)

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

    def _check_seam(self, before: SegmentReport, after: SegmentReport) -> None:
        expected = before.base_offset if before.last_offset is None else before.last_offset + 1
        if after.base_offset == expected or before.ending == Ending.DAMAGE:
            return
        if after.base_offset < expected:
            self.find(
                "overlapping-segments", Severity.DAMAGE, after.path,
                f"starts at offset {after.base_offset}, but the segment before it goes up to {expected - 1}",
                SALVAGE, first_offset=after.base_offset, last_offset=expected - 1,
            )  # fmt: skip
            return
        lost = self._fmt.capabilities.lost_segments_show
        self.find(
            "missing-segment", Severity.DAMAGE if lost else Severity.WARNING, after.path,
            f"{counted(after.base_offset - expected, 'offset')} missing before this segment",
            "a segment is lost" if lost else "a segment is lost, or compaction emptied the end of the one before",
            first_offset=expected, last_offset=after.base_offset - 1,
        )  # fmt: skip

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


def _is_sound(checked: Checked | StorageError) -> bool:
    return not isinstance(checked, StorageError) and all(one.severity == Severity.NOTE for one in checked.findings)


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
