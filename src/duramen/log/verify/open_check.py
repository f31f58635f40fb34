"""The part of `verify` that runs before a log is opened for append: damage in what opening relies on is refused.

- The active segment is checked record by record, with its indexes and the watermark.
- Sealed segments are not read: their names, sizes and entries in the sealed list are compared. Nothing that opening
  writes can hide a change of them from `verify` or from readers.
- The manifest must fit. The files of consumer groups are not checked.

Reads only.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from itertools import pairwise

from duramen.disk import Disk
from duramen.errors import CorruptionError, DuramenError, UnknownVersionError
from duramen.formats import Format, Role, Severity
from duramen.log.segments import Directory, EndKind, LogFile, SegmentFiles
from duramen.log.verify.report import Finding, SegmentReport
from duramen.log.verify.segment_check import Checked
from duramen.log.verify.sidecar_check import SidecarEvidence
from duramen.log.verify.verifier import Verifier

_NOT_OURS = (Role.GROUP_SNAPSHOT, Role.GROUP_DELTA, Role.LEFTOVER)


def refuse_damage(disk: Disk, root: str, fmt: Format, directory: Directory) -> None:
    """Raise `CorruptionError` for the first damage that `verify` finds in what opening relies on. The caller holds the
    log's lock."""
    for finding in damage(disk, root, fmt, directory):
        raise _error(finding)


def damage(disk: Disk, root: str, fmt: Format, directory: Directory) -> list[Finding]:
    """Return all damage that `refuse_damage` looks for."""
    evidence = SidecarEvidence(disk, root, fmt, is_ours=True)
    directory = replace(directory, segments=list(directory.segments))
    verifier = _OpenVerifier(disk, root, fmt, lambda _bytes: None, directory, evidence)
    return [finding for finding in verifier.run().findings if finding.severity == Severity.DAMAGE]


def _error(finding: Finding) -> DuramenError:
    kind = UnknownVersionError if finding.code == "unknown-version" else CorruptionError
    hint = "`duramen verify` checks the whole log, `duramen repair` shows what can be kept"
    return kind(finding.message, path=finding.path, position=finding.position, offset=finding.first_offset, hint=hint)


class _OpenVerifier(Verifier):
    """A `Verifier` that reads neither sealed segments nor the state of consumers."""

    @cached_property
    def _ends(self) -> dict[int, int]:
        """The last offset of each segment but the last, by base, if no offset is missing before the next one."""
        bases = [files.base or 0 for files in self._directory.segments]
        return {base: following - 1 for base, following in pairwise(bases)}

    def check(self, files: SegmentFiles, *, is_last: bool) -> Checked:
        if is_last and files.base not in self._evidence.sealed:
            return super().check(files, is_last=is_last)
        return Checked(self._as_listed(files), [])

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

    def _check_promises(self) -> None:
        """Nothing: appending does not need them; a transaction reads its own ledger."""

    def _other(self, file: LogFile) -> None:
        if file.name.role not in _NOT_OURS:
            super()._other(file)
