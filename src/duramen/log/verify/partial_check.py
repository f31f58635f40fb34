"""The parts of `verify` that run before a change: damage in what the change relies on, or would remove, is refused.

Opening for append (`refuse_damage`):

- The active segment is checked record by record, with its indexes and the watermark.
- Sealed segments are not read: their names, sizes and entries in the sealed list are compared. Nothing that opening
  writes can hide a change of them from `verify` or from readers.
- The manifest must fit. The files of consumer groups are not checked.

Removing or rewriting segments (`damage_below`): each of them is checked in full, with the seams between them, and
compared with the manifest. After the change `verify` could not find the damage.

Reads only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from itertools import pairwise

from duramen.disk import Disk
from duramen.errors import CorruptionError, DuramenError, StorageError, UnknownVersionError
from duramen.formats import Format, Role, Severity
from duramen.log.segments import Directory, EndKind, LogFile, SegmentFiles
from duramen.log.verify.report import Finding, SegmentReport
from duramen.log.verify.segment_check import Checked
from duramen.log.verify.sidecar_check import SidecarEvidence
from duramen.log.verify.verifier import Verifier, list_settled

_LOST = ("records-lost", "records-replaced", "manifest-ahead")
_NOT_OURS = (Role.GROUP_SNAPSHOT, Role.GROUP_DELTA, Role.LEFTOVER)


def refuse_damage(disk: Disk, root: str, fmt: Format, directory: Directory) -> None:
    """Raise `CorruptionError` for the first damage that `verify` finds in what opening relies on. The caller holds the
    log's lock."""
    for finding in damage(disk, root, fmt, directory):
        raise damage_error(finding)


def damage(disk: Disk, root: str, fmt: Format, directory: Directory) -> list[Finding]:
    """Return all damage that `refuse_damage` looks for. That a log has no segment is none: it may be a new one."""
    evidence = SidecarEvidence(disk, root, fmt, is_ours=True)
    directory = replace(directory, segments=list(directory.segments))
    verifier = _OpenVerifier(disk, root, fmt, lambda _bytes: None, directory, evidence)
    found = verifier.run().findings
    return [one for one in found if one.severity == Severity.DAMAGE and one.code != "no-segments"]


def lost_at_end(disk: Disk, root: str, fmt: Format) -> list[Finding]:
    """Return the damage by which an index, a manifest or a file like it shows that records existed after the last one,
    or others in their place: what a log without a watermark has for one."""
    return [one for one in damage(disk, root, fmt, list_settled(disk, root, fmt)) if one.code in _LOST]


def damage_below(
    disk: Disk, root: str, fmt: Format, directory: Directory, offset: int, *, reads_sealed: bool = True
) -> list[Finding]:
    """Return all damage that `verify` finds in the segments of ``directory`` that begin below ``offset``, and at their
    seams. Retention and compaction in another process are not damage. Without ``reads_sealed`` a segment that has a
    digest is not read: the caller compares it."""
    while True:
        evidence = SidecarEvidence(disk, root, fmt)
        verifier = _OldestVerifier(disk, root, fmt, lambda _bytes: None, directory, evidence)
        found = verifier.run_below(offset, reads_sealed=reads_sealed)
        if not found or not evidence.is_outdated_by(SidecarEvidence(disk, root, fmt)):
            return found
        directory = list_settled(disk, root, fmt)


def damage_error(finding: Finding) -> DuramenError:
    """Return the error that a verb raises for a finding."""
    kind = UnknownVersionError if finding.code == "unknown-version" else CorruptionError
    hint = "`duramen verify` checks the whole log, `duramen repair` shows what can be kept"
    return kind(finding.message, path=finding.path, position=finding.position, offset=finding.first_offset, hint=hint)


class _PartialVerifier(Verifier):
    """A `Verifier` that describes some segments without reading them."""

    @cached_property
    def _ends(self) -> dict[int, int]:
        """The last offset of each segment but the last, by base, if no offset is missing before the next one."""
        bases = [files.base or 0 for files in self._directory.segments]
        return {base: following - 1 for base, following in pairwise(bases)}

    def _as_listed(self, files: SegmentFiles) -> SegmentReport:
        """Describe a sealed segment without reading it."""
        base, size = files.base or 0, files.segment.size_bytes
        entry = self._evidence.sealed.get(base)
        last = self._ends.get(base, base - 1) if entry is None else entry.last_offset
        index = files.derived.get(Role.INDEX)
        return SegmentReport(
            self._directory.full(files.segment.path), base, size, 0, base, last, size,
            0 if index is None else index.size_bytes, "", EndKind.CLEAN,
        )  # fmt: skip


class _OpenVerifier(_PartialVerifier):
    """Reads neither sealed segments nor the state of consumers."""

    def check(self, files: SegmentFiles, *, is_last: bool) -> Checked:
        if is_last and files.base not in self._evidence.sealed:
            return super().check(files, is_last=is_last)
        return Checked(self._as_listed(files), [])

    def _check_promises(self) -> None:
        """Nothing: appending does not need them; a transaction reads its own ledger."""

    def _other(self, file: LogFile) -> None:
        if file.name.role not in _NOT_OURS:
            super()._other(file)


class _OldestVerifier(_PartialVerifier):
    """Reads the oldest segments only."""

    def run_below(self, offset: int, *, reads_sealed: bool) -> list[Finding]:
        previous: SegmentReport | None = None
        listed = {files.segment.path: self._as_listed(files) for files in self._directory.segments}
        reports = dict(listed)
        for files in self._directory.segments:
            is_next = (files.base or 0) >= offset
            is_read = not is_next and (reads_sealed or files.base not in self._evidence.sealed)
            checked = self.check_or_miss(files, is_last=False) if is_read else Checked(reports[files.segment.path], [])
            if isinstance(checked, StorageError):
                del reports[files.segment.path]
                continue  # retention in another process removed it
            report, findings = checked
            reports[files.segment.path] = report
            self.report.findings += findings
            if previous is not None:
                self._check_seam(previous, report)
            if is_next:
                break
            previous = report
        self._check_log(listed.values(), reports.values(), offset)
        self._explain()
        return [finding for finding in self.report.findings if finding.severity == Severity.DAMAGE]

    def _check_log(self, listed: Iterable[SegmentReport], reports: Iterable[SegmentReport], offset: int) -> None:
        """Compare the segments with the sealed list and the manifest, as far as that concerns offsets below
        ``offset``."""
        before = len(self.report.findings)
        self.report.segments = list(reports)
        self._check_against_log()
        found = [*self.report.findings[before:], *self._evidence.of_log(list(listed))]
        self.report.findings[before:] = [
            one for one in found if one.first_offset is not None and one.first_offset < offset
        ]
