"""Check every byte of a log: checksums, order, indexes, names, the format's own files, the sidecar.

`segment_check` checks one segment. This module adds what only shows from above: how segments follow each other, files
that belong to no segment, the sidecar, and changes during the check. Reads only; memory does not depend on the size of
the log.
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

from duramen.disk import Disk, Kind, map_if_exists
from duramen.errors import CorruptionError, StorageError
from duramen.formats import (
    Format,
    Role,
    ScanPosition,
    Segment,
    Severity,
    SupportsManifest,
    SupportsStateFiles,
    check_delta,
    check_snapshot,
)
from duramen.log.segments import (
    HINT,
    Directory,
    EndKind,
    LogFile,
    SegmentFiles,
    list_log,
    special_files,
    take_settled_snapshot,
)
from duramen.log.verify.index_check import REINDEX, IndexChecker
from duramen.log.verify.report import Finding, Report, SegmentReport, counted
from duramen.log.verify.segment_check import SALVAGE, Checked, SegmentVerifier
from duramen.log.verify.sidecar_check import SidecarEvidence, sidecar_groups
from duramen.metrics import process as process_counters
from duramen.sidecar import (
    DIRECTORY,
    SEALED_PATH,
    WATERMARK_NAME,
    KnownLoss,
    SealedList,
    is_garbage_watermark,
    is_no_directory,
    known_loss_of,
    read_compaction_state,
    read_file_swap,
    read_known_losses,
    read_tx_marker,
    refuse_unfinished_repair,
    sidecar_path,
    unreadable_ledgers,
)

_COMMAND = re.compile(r"`duramen (repair|reindex|verify)((?: --\w+)*)`")
_GAPS = frozenset({"missing-segment", "offset-gap", "wrong-name", "manifest-ahead"})
"""Findings about missing offsets."""
_GROUP_CHECKS = {Role.GROUP_SNAPSHOT: check_snapshot, Role.GROUP_DELTA: check_delta}

_PATIENCE, _PATIENCE_S = 20, 0.02


def list_settled(disk: Disk, path: str, fmt: Format, *, is_ours: bool = False) -> Directory:
    """The files of a log as `verify` may look at them: see `take_settled_snapshot`."""
    return take_settled_snapshot(disk, path, fmt, is_ours=is_ours).directory


def missing(error: StorageError) -> StorageError:
    """Return the error if a file is missing; raise it otherwise."""
    if error.errno != errno.ENOENT:
        raise error
    return error


class OvertakenError(StorageError):
    """Retention removed every segment that a check had listed, before the check read them."""

    def __init__(self, message: str, *, count: int = 0, **place: Any) -> None:
        super().__init__(message, **place)
        self.count = count


class Verifier(SegmentVerifier):
    """One check of one log: `check` for each segment, in any order, then `conclude`."""

    def run(self) -> Report:
        last = len(self._directory.segments) - 1
        return self.conclude(
            [self.check_or_miss(files, is_last=number == last) for number, files in enumerate(self._directory.segments)]
        )

    def check_or_miss(self, files: SegmentFiles, *, is_last: bool) -> Checked | StorageError:
        """Check a segment; return the error if a file is missing, as retention may have removed it."""
        try:
            return self.check(files, is_last=is_last)
        except StorageError as error:
            return missing(error)

    def conclude(self, checked: Sequence[Checked | StorageError]) -> Report:
        """Return the report of the log from the results of all its segments, in order: adds the checks of the seams, of
        the other files and of the sidecar."""
        previous: SegmentReport | None = None
        for report, findings in self._without_removed(self._as_compacted(checked)):
            self.report.segments.append(report)
            self.report.findings += findings
            if previous is not None:
                self._check_seam(previous, report)
            previous = report
        if not checked:
            self.find("no-segments", Severity.DAMAGE, self.report.path, "the log has no segment", "check the path")
        self._check_orphans()
        for file in (*self._directory.others, *sidecar_groups(self._disk, self.report.path)):
            self._other(file)
        self._check_against_log()
        self._check_state_files()
        self._check_known_ends()
        self.report.findings += self._evidence.of_log(self.report.segments)
        self.report.findings += self._evidence.of_beginning(
            min((s.base_offset for s in self.report.segments), default=0)
        )
        self._check_special_files()
        self._check_sidecar()
        self._check_promises()
        self._explain()
        process_counters.found_damage(sum(one.severity == Severity.DAMAGE for one in self.report.findings))
        return self.report

    def _as_compacted(self, checked: Sequence[Checked | StorageError]) -> Sequence[Checked | StorageError]:
        """If compaction replaced segments during the check and something was found, check the replaced ones again;
        the results of unchanged segments stay."""
        for _ in range(_PATIENCE):
            if all(_is_sound(one) for one in checked):
                break
            ours = self._evidence.is_ours
            evidence = SidecarEvidence(self._disk, self.report.path, self._fmt, is_ours=ours)
            if not self._evidence.is_outdated_by(evidence):
                break
            known = {
                self._identity(files): one
                for files, one in zip(self._directory.segments, checked, strict=True)
                if _is_sound(one)
            }
            self._evidence = evidence
            self._directory = list_settled(self._disk, self.report.path, self._fmt, is_ours=ours)
            again, last = self.counted_by(lambda _bytes: None), len(self._directory.segments) - 1
            checked = [
                known.get(self._identity(files)) or again.check_or_miss(files, is_last=number == last)
                for number, files in enumerate(self._directory.segments)
            ]
        return checked

    def _identity(self, files: SegmentFiles) -> tuple[object, ...]:
        """Return what distinguishes a segment from one that replaces it."""
        return files.segment, files.is_growing, self._evidence.sealed.get(-1 if files.base is None else files.base)

    def _without_removed(self, checked: Sequence[Checked | StorageError]) -> Iterator[Checked]:
        """Yield the results without those of segments that retention removed during the check: the files that are read
        from now on, above all the manifest, do not list them. Any other missing file is an error."""
        removed = 0
        if self._disk.kind(self.report.path) == Kind.DIRECTORY:
            listed, removed = self._list_again()
            for _ in range(_PATIENCE):  # retention removes an index before its segment
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
                counted(removed, "segment was removed", "segments were removed") + " during the check, and left out",
                "nothing: retention removes from the beginning", first_offset=first,
                last_offset=None if following is None else following - 1,
            )  # fmt: skip
        for one in checked[removed:]:
            if isinstance(one, StorageError):
                raise one
            yield one

    def _list_again(self) -> tuple[Directory, int]:
        """List the log again. Returns the listing, and how many of the oldest segments have been removed."""
        listed = list_log(self._disk, self.report.path, self._fmt)
        there = {files.segment.path for files in listed.segments}
        segments = self._directory.segments
        removed = next(
            (n for n, one in enumerate(segments) if one.segment.path in there), len(segments) if there else 0
        )
        if segments and removed == len(segments):
            raise OvertakenError(
                "every segment that was listed was removed during the check", count=removed,
                path=self.report.path, offset=segments[0].base, hint="verify a copy, made with `duramen copy`",
            )  # fmt: skip
        return listed, removed

    def _check_seam(self, before: SegmentReport, after: SegmentReport) -> None:
        expected = before.base_offset if before.last_offset is None else before.last_offset + 1
        if after.base_offset == expected or before.ending == EndKind.DAMAGE:
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
            "missing-segment", Severity.DAMAGE if lost else self._gap_severity, after.path,
            f"{counted(after.base_offset - expected, 'offset')} missing before this segment",
            "a segment is lost" if lost else "a segment is lost, or compaction emptied the end of the one before",
            first_offset=expected, last_offset=after.base_offset - 1,
        )  # fmt: skip

    def _check_orphans(self) -> None:
        """Report indexes without their segment. After the last segment, such an index may prove that records existed:
        retention removes the oldest ones only."""
        newest = max((segment.base_offset for segment in self.report.segments), default=-1)
        for orphan in self._directory.orphans:
            lost = list(self._lost_with(orphan)) if (orphan.name.base or 0) > newest else []
            self.report.findings += lost
            if not lost:
                self.find(
                    "orphaned-index", Severity.WARNING, self._directory.full(orphan.path),
                    f"{orphan.name.role} without its segment",
                    "the segment was removed or lost: if retention removed it, delete this file; else restore the "
                    "segment",
                )  # fmt: skip

    def _lost_with(self, orphan: LogFile) -> Iterator[Finding]:
        """Yield the finding that a segment is missing of which only this index, and no sidecar, names the records."""
        base, path = orphan.name.base or 0, self._directory.full(orphan.path)
        segment = self._directory.full(self._fmt.segment_path(base))
        data = None if self._evidence.knows(base) else map_if_exists(self._disk, path)
        index = None if data is None else self._fmt.open_index(orphan.name.role, data, base)
        if index is None or self._disk.kind(segment) != Kind.MISSING:  # another program may have created it meanwhile
            return
        header_bytes = len(self._fmt.segment_header(base, 0))
        checker = IndexChecker(path, orphan.name.role, index, ScanPosition(0, base - 1), begins_at=header_bytes)
        for finding in checker.lost_records():
            yield replace(finding, message=f"its segment is missing: {finding.message}")

    def _other(self, file: LogFile) -> None:
        path = self._directory.full(file.path)
        if file.name.role == Role.LEFTOVER:
            if not self._evidence.is_being_written:  # otherwise the writer may be using it
                message, action = "stale temporary file of unfinished work", "delete it"
                self.find("leftover", Severity.NOTE, path, message, action)
            return
        if file.name.role == Role.LOCK:
            return
        data = map_if_exists(self._disk, path)
        if data is None:
            return  # a group replaced its state file
        check = _GROUP_CHECKS.get(file.name.role)
        for problem in check(data) if check is not None else self._fmt.check_file(file.name.role, data, file.name):
            self._problem(path, problem)

    def _check_against_log(self) -> None:
        described = [file for file in self._directory.others if file.name.role in (Role.MANIFEST, Role.CHECKPOINT)]
        mapped = {file.path: map_if_exists(self._disk, self._directory.full(file.path)) for file in described}
        files = {path: data for path, data in mapped.items() if data is not None}
        files |= self._evidence.log_files  # as they were before the segments were listed
        if not isinstance(self._fmt, SupportsManifest):
            return
        if self._fmt.capabilities.manifest and self._disk.kind(self.report.path) == Kind.DIRECTORY:
            for name in self._fmt.log_files([], 0).keys() - files.keys():
                message, path = "the file that describes the log is missing", self._directory.full(name)
                self.find("missing-manifest", Severity.WARNING, path, message, REINDEX)
        for name, problem in self._fmt.check_log(files, [s.summary for s in self.report.segments]):
            self._problem(self._directory.full(name), problem)

    def _check_state_files(self) -> None:
        """Compare the files that describe the state of the whole log with its records."""
        fmt = self._fmt
        if not isinstance(fmt, SupportsStateFiles) or self._disk.kind(self.report.path) != Kind.DIRECTORY:
            return
        wanted = [file for file in self._directory.others if file.name.role in fmt.state_roles]
        mapped = {file.path: map_if_exists(self._disk, self._directory.full(file.path)) for file in wanted}
        segments: list[Segment] = []
        for files in self._directory.segments:
            data = map_if_exists(self._disk, self._directory.full(files.segment.path))
            if data is None:  # retention removed it since it was checked, with all before it
                segments.clear()
            else:
                segments.append(fmt.open_segment(files.settled(data), files.base))
        found = fmt.check_state(segments, {path: data for path, data in mapped.items() if data is not None})
        for name, problem in found:
            self._problem(self._directory.full(name), problem)

    def _check_known_ends(self) -> None:
        """Report records that are missing at the end, without a watermark that says where the log ends."""
        fmt, segments = self._fmt, self.report.segments
        if not isinstance(fmt, SupportsStateFiles) or self._evidence.watermark is not None or not segments:
            return
        if self._disk.kind(self.report.path) != Kind.DIRECTORY:
            return
        last = segments[-1]
        following = last.base_offset if last.last_offset is None else last.last_offset + 1
        paths = [file.path for file in self._directory.others if file.name.role in fmt.state_roles]
        ends = fmt.known_ends(paths, lambda path: map_if_exists(self._disk, self._directory.full(path)))
        path, reached = max(ends, key=lambda one: one[1], default=("", 0))
        if reached > following and self._is_still_last(last):
            self.find(
                "records-lost", Severity.DAMAGE, self._directory.full(path),
                f"it was written when the log went up to offset {reached - 1}: records existed, and are missing",
                "restore the segments from a copy; `duramen repair` continues without them",
                first_offset=following, last_offset=reached - 1,
            )  # fmt: skip

    def _is_still_last(self, last: SegmentReport) -> bool:
        """Whether the last segment is as it was when it was checked, and still the last: another program may write."""
        listed = list_log(self._disk, self.report.path, self._fmt).segments
        return bool(listed) and (listed[-1].base, listed[-1].segment.size_bytes) == (last.base_offset, last.size_bytes)

    def _check_special_files(self) -> None:
        """Report what is not a regular file; it was not read."""
        for special in special_files(self._disk, self.report.path, self._fmt):
            message = f"this is {special.what}, and was not followed"
            if special.is_own:
                self.find("not-a-file", Severity.DAMAGE, special.path, message, HINT)
            else:
                action = "nothing: the log has no file of that name"
                self.find("special-file", Severity.NOTE, special.path, message, action)

    def _check_sidecar(self) -> None:
        """Report sidecar files that cannot be read, and a repair that did not finish."""
        if is_no_directory(self._disk, self.report.path):
            action = "move it away: it holds no record, and the next write creates a new one"
            path = posixpath.join(self.report.path, DIRECTORY)
            self.find("bad-sidecar", Severity.DAMAGE, path, "the sidecar is not a directory", action)
        for read in (read_file_swap, read_tx_marker):
            try:
                read(self._disk, self.report.path)
            except CorruptionError as error:
                path, action = error.path or self.report.path, error.hint or ""
                self.find("bad-sidecar", Severity.DAMAGE, path, error.message, action)
        self._check_sealed_list()
        try:
            refuse_unfinished_repair(self._disk, self.report.path)
        except CorruptionError as error:
            self.find("unfinished-repair", Severity.DAMAGE, self.report.path, error.message, error.hint or "")

    def _check_promises(self) -> None:
        """Report what says which records or batches were acknowledged, and cannot be read."""
        root = self.report.path
        for error in unreadable_ledgers(self._disk, root):
            self.find("bad-ledger", Severity.DAMAGE, error.path or root, error.message, error.hint or "")
        if is_garbage_watermark(self._disk, root):
            action = "nothing, if nothing else was found: the next writer goes by the records, and stores a new one"
            message = "not a watermark: whether acknowledged records are missing at the end cannot be checked"
            self.find("bad-watermark", Severity.WARNING, sidecar_path(root, WATERMARK_NAME), message, action)

    def _check_sealed_list(self) -> None:
        """Report lines that are missing or damaged: a change of those segments cannot be noticed."""
        sealed = SealedList(self._disk, self.report.path)
        sealed.entries()
        lost = sealed.damaged or self._evidence.lacks_last_line([files.base or 0 for files in self._directory.segments])
        if lost:
            self.find(
                "bad-sidecar", Severity.WARNING, posixpath.join(self.report.path, SEALED_PATH),
                counted(int(lost), "line") + " missing or damaged: those segments were checked without digest",
                "compare them with a copy; `duramen repair` writes the list again",
            )  # fmt: skip

    def _explain(self) -> None:
        """Name the log in the commands, mark losses that a repair accepted, and drop gaps that compaction explains."""
        losses = read_known_losses(self._disk, self.report.path)
        is_file = self._disk.kind(self.report.path) == Kind.FILE
        compacted = 0 if is_file else read_compaction_state(self._disk, self.report.path).begun_until
        root = shlex.quote(self._directory.root or "." if is_file else self.report.path)
        explained = []
        for finding in self.report.findings:
            # Damage is never explained so: it rests on the sealed list, which compaction updates.
            is_warning = finding.code in _GAPS and finding.severity == Severity.WARNING
            is_gap = is_warning or finding.code == "manifest-ahead"
            if is_gap and finding.last_offset is not None and finding.last_offset < compacted:
                continue
            finding = _known(finding, losses) if losses else finding
            if self._fmt.capabilities.read_only and _COMMAND.search(finding.action):
                finding = replace(finding, action=self._elsewhere(finding))
            action = _COMMAND.sub(lambda found: f"`duramen {found[1]}{found[2]} {root}`", finding.action)
            explained.append(finding if action == finding.action else replace(finding, action=action))
        self.report.findings = explained

    def _elsewhere(self, finding: Finding) -> str:
        """What to do about a finding in a log that is not changed here."""
        if finding.severity == Severity.DAMAGE:
            return "restore it from a copy; `duramen convert --on-damage skip` keeps every other record"
        return f"nothing is lost: {self._fmt.program} rebuilds it from the records"


def _is_sound(checked: Checked | StorageError) -> bool:
    return not isinstance(checked, StorageError) and all(one.severity == Severity.NOTE for one in checked.findings)


def _known(finding: Finding, losses: Sequence[KnownLoss]) -> Finding:
    """Return the finding as a note if an applied repair has listed the gap as lost."""
    if finding.code not in _GAPS or finding.first_offset is None or finding.last_offset is None:
        return finding
    loss = known_loss_of(losses, finding.first_offset, finding.last_offset)
    if loss is None:
        return finding
    return replace(
        finding, code="known-loss", severity=Severity.NOTE, message=f"{finding.message}: {loss.why}",
        action=f"nothing: a repair gave them up; what it removed is in {loss.repair}",
    )  # fmt: skip
