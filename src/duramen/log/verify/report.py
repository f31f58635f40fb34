"""The report of a check: findings, each with a place, a message and an action. docs/findings.md explains the codes."""

from __future__ import annotations

import posixpath
from dataclasses import asdict, dataclass, field
from typing import Any

from duramen.formats import SegmentSummary, Severity


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return a count with its noun.

    >>> counted(1, "offset is", "offsets are"), counted(2, "byte")
    ('1 offset is', '2 bytes')
    """
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


@dataclass(frozen=True)
class Finding:
    """One thing that a check found. ``code`` is stable, for programs; the rest is for people."""

    code: str
    severity: Severity
    path: str
    message: str
    action: str
    position: int | None = None
    first_offset: int | None = None
    last_offset: int | None = None


@dataclass
class SegmentReport:
    """One segment: what it holds, and how its records end."""

    path: str
    base_offset: int
    size_bytes: int
    records: int = 0
    first_offset: int | None = None
    last_offset: int | None = None
    valid_bytes: int = 0
    index_bytes: int = 0
    dialect: str = ""
    ending: str = ""

    @property
    def summary(self) -> SegmentSummary:
        last = self.base_offset - 1 if self.last_offset is None else self.last_offset
        return SegmentSummary(self.base_offset, last, self.size_bytes, self.index_bytes)


@dataclass
class Report:
    """The whole log. ``ok`` is False if anything is damaged; a torn tail alone is not damage."""

    path: str
    format: str
    checksum: str
    segments: list[SegmentReport] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return all(finding.severity != Severity.DAMAGE for finding in self.findings)

    @property
    def records(self) -> int:
        return sum(segment.records for segment in self.segments)

    @property
    def bytes(self) -> int:
        """Bytes of whole, valid records (and file headers)."""
        return sum(segment.valid_bytes for segment in self.segments)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain data, for JSON."""
        head = {"path": self.path, "format": self.format, "ok": self.ok, "records": self.records, "bytes": self.bytes}
        tail = {
            "checksum": self.checksum,
            "segments": [asdict(segment) for segment in self.segments],
            "findings": [asdict(finding) for finding in self.findings],
        }
        return head | tail


def name_emptied(report: Report) -> Report:
    """Put one finding in the place of the many that a segment without its records causes: in the segment, its indexes,
    the manifest and the segment after it. Each of those is true, and their advice contradicts each other."""
    for segment in report.segments:
        own = [finding for finding in report.findings if _is_about(finding, segment)]
        is_emptied = segment.last_offset is None and segment.valid_bytes == segment.size_bytes
        if is_emptied and any(finding.severity == Severity.DAMAGE for finding in own):
            known = [finding.last_offset for finding in own if finding.last_offset is not None]
            first = report.findings.index(own[0])
            report.findings = [finding for finding in report.findings if finding not in own]
            report.findings.insert(first, _emptied(report, segment, max(known, default=None)))
    return report


def _is_about(finding: Finding, segment: SegmentReport) -> bool:
    is_after = finding.code in ("missing-segment", "manifest-ahead") and finding.first_offset == segment.base_offset
    return is_after or posixpath.splitext(finding.path)[0] == posixpath.splitext(segment.path)[0]


def _emptied(report: Report, segment: SegmentReport, last: int | None) -> Finding:
    holds = f"only its header ({segment.size_bytes} bytes)" if segment.size_bytes else "0 bytes"
    held = f"offsets from {segment.base_offset} on" if last is None else f"offsets {segment.base_offset} to {last}"
    message = f"the segment is emptied: the file has {holds}, and held {held}"
    action = (
        "restore the file from a copy and verify again; without a copy these records are lost, and "
        f"`duramen repair {report.path}` continues without them"
    )
    return Finding("emptied-segment", Severity.DAMAGE, segment.path, message, action, 0, segment.base_offset, last)
