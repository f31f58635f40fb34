"""Plan what happens to the files that hold no records: set aside, cut, or rebuilt.

Indexes, the manifest and the sidecar are rebuilt if what they describe changes or if they are wrong. The files of
consumers keep what is whole in them.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence

from duramen.disk import Disk
from duramen.formats import Format, Role, Severity, SupportsManifest
from duramen.log.repair.plan import Plan, RemovedRecords, RepairAction, RepairStep
from duramen.log.repair.segment_plan import SegmentPlan, Trust
from duramen.log.segments import Directory, EndKind
from duramen.log.verify import Finding, SidecarEvidence, short_indexes, sidecar_groups

SIDECAR_CODES = frozenset({
    "bad-sidecar", "sealed-size", "digest-mismatch", "missing-segment", "durable-records-missing",
    "watermark-disagrees", "manifest-ahead", "oldest-missing",
})  # fmt: skip


class DerivedFiles:
    """Adds the steps for derived files to a plan that has the steps for segments."""

    def __init__(self, disk: Disk, fmt: Format, directory: Directory, evidence: SidecarEvidence, plan: Plan) -> None:
        self._disk = disk
        self._fmt = fmt
        self._directory = directory
        self._evidence = evidence
        self._plan = plan

    def _full(self, path: str) -> str:
        return posixpath.join(self._plan.path, path)

    def set_aside(self, *, strays: bool) -> None:
        """Set aside derived files without a segment, damaged files of consumers, and, on request, files that do not
        belong to the log (``strays``)."""
        by_path: dict[str, list[Finding]] = {}
        for finding in self._plan.findings:
            by_path.setdefault(finding.path, []).append(finding)
        for orphan in self._directory.orphans:
            why = f"{orphan.name.role} without a segment"
            self._plan.add(RepairAction.ASIDE, orphan.path, why, orphan.size_bytes)
        for file in (*self._directory.others, *sidecar_groups(self._disk, self._plan.path)):
            found = [f for f in by_path.get(self._full(file.path), []) if f.severity != Severity.NOTE]
            if file.name.role == Role.GROUP_DELTA and found and found[0].position:
                position = found[0].position
                removed = RemovedRecords(position, file.size_bytes, found[0].message)
                why = "the events before it stay: what was acknowledged after it may be delivered again"
                self._plan.steps.append(
                    RepairStep(RepairAction.CUT, file.path, why, file.size_bytes, position, removed=(removed,))
                )
            elif file.name.role in (Role.GROUP_SNAPSHOT, Role.GROUP_DELTA, Role.CHECKPOINT) and found:
                rest = ": consumers continue from the remaining state" if "group" in file.name.role else ""
                self._plan.add(RepairAction.ASIDE, file.path, f"{found[0].message}{rest}", file.size_bytes)
        for name in self._directory.unknown if strays else ():
            why = "not a file of this log; set aside as requested"
            self._plan.add(RepairAction.ASIDE, name, why, self._disk.size(self._full(name)))

    def rebuild(self, segments: Sequence[SegmentPlan]) -> None:
        """Rebuild indexes, manifest and sidecar if what they describe changes or they are wrong."""
        kept = [part for part in segments if part.dropped is None]
        created = [step.base for step in self._plan.steps if step.action == RepairAction.CREATE]
        for part in kept:
            reason = next(self._index_reasons(part), None)
            if reason is not None:
                self._rebuild_index(part.base, reason)
        for base in created:
            if base is not None:
                self._rebuild_index(base, "a new segment")
        self._rebuild_manifest(segments)
        self._rebuild_sidecar(segments, kept)

    def _rebuild_index(self, base: int, why: str) -> None:
        if self._fmt.index_builder(base, 0).headers():
            self._plan.add(RepairAction.INDEX, self._fmt.path_of(Role.INDEX, base), why, base=base)

    def _rebuild_manifest(self, segments: Sequence[SegmentPlan]) -> None:
        bad = [f for f in self._plan.findings if "manifest" in f.code and f.severity != Severity.NOTE]
        moved = any(step.action not in (RepairAction.INDEX, RepairAction.ASIDE) for step in self._plan.steps)
        renamed = any(self._fmt.segment_path(part.base) != part.path or part.dropped for part in segments)
        if not isinstance(self._fmt, SupportsManifest) or not (bad or moved or renamed):
            return
        for name in self._fmt.log_files([], 0):
            self._plan.add(RepairAction.MANIFEST, name, bad[0].message if bad else "the segments change")
            for finding in bad:
                if finding.code == "unknown-manifest":
                    self._plan.notes.append(f"{name}: {finding.message}: it is rebuilt from the records")
                    break

    def _rebuild_sidecar(self, segments: Sequence[SegmentPlan], kept: Sequence[SegmentPlan]) -> None:
        proven = {self._full(part.path) for part in segments if part.trust == Trust.PROVEN}
        known = [f for f in self._plan.findings if f.code in SIDECAR_CODES]
        stale = [f for f in known if f.severity == Severity.DAMAGE or f.code in ("bad-sidecar", "oldest-missing")]
        unexplained = [f for f in stale if f.path not in proven]
        if self._plan.steps or stale or self._plan.losses:
            self._close_last(kept)
            default = "digests, watermark and known losses of the repaired log"
            self._plan.add(RepairAction.SIDECAR, ".duramen", unexplained[0].message if unexplained else default)
        if any(f.code == "digest-mismatch" for f in unexplained):
            self._plan.notes.append(
                "a segment differs from what was written, and checksums do not cover all of it: records that look "
                "whole are kept as they are"
            )

    def _close_last(self, kept: Sequence[SegmentPlan]) -> None:
        """Complete the last index: after a repair the log counts as closed, and its index may not lag."""
        if not kept or any(step.base == kept[-1].base for step in self._plan.steps):
            return
        part = kept[-1]
        if self._evidence.is_closed(part.report) or part.report.ending != EndKind.CLEAN:
            return
        segment = self._fmt.open_segment(part.data, part.files.base)
        opened = {
            role: self._fmt.open_index(role, self._disk.map(self._full(file.path)).data, segment.base_offset)
            for role, file in part.files.derived.items()
        }
        indexes = {role: index for role, index in opened.items() if index is not None}
        wanted = max(len(opened), len(self._fmt.index_builder(part.base, 0).headers()))
        if len(indexes) < wanted or any(short_indexes(self._evidence.described, segment, indexes)):
            path = self._fmt.path_of(Role.INDEX, part.base)
            self._plan.add(RepairAction.INDEX, path, "it lacks entries for the last records", base=part.base)

    def _index_reasons(self, part: SegmentPlan) -> Iterator[str]:
        if part.is_refused or part.is_left_alone:
            return
        if part.step is not None:
            yield "its segment changes"
        paths = {self._full(file.path) for file in part.files.derived.values()}
        for finding in self._plan.findings:
            if finding.path in paths or (finding.code == "missing-index" and finding.path == part.report.path):
                yield finding.message
