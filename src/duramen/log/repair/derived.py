"""What a repair does to the files that are not records: set aside, cut, or made anew from what the records will be.

Indexes, the manifest and the sidecar are made anew where what they describe changes, or where they are wrong; the files
of consumers keep what is whole in them. Plans only.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence

from duramen.disk import Disk
from duramen.formats import Format
from duramen.formats.base import Role, Severity
from duramen.log.directory import Directory
from duramen.log.ending import Ending
from duramen.log.evidence import Evidence
from duramen.log.index_check import short_indexes
from duramen.log.repair.held import Held
from duramen.log.repair.plan import Action, Plan, Removed, Step
from duramen.log.report import Finding

SIDECAR_CODES = frozenset({
    "bad-sidecar", "sealed-size", "digest-mismatch", "missing-segment", "durable-records-missing",
    "watermark-disagrees", "manifest-ahead",
})  # fmt: skip


class DerivedFiles:
    """Adds the steps for them to a plan that has those for the segments."""

    def __init__(self, disk: Disk, fmt: Format, directory: Directory, evidence: Evidence, plan: Plan) -> None:
        self._disk = disk
        self._fmt = fmt
        self._directory = directory
        self._evidence = evidence
        self._plan = plan

    def _full(self, path: str) -> str:
        return posixpath.join(self._plan.path, path)

    def set_aside(self, *, strays: bool) -> None:
        """Files without a segment, those of consumers that are damaged, and, if asked for, ``strays``: files that are
        none of this log's."""
        by_path: dict[str, list[Finding]] = {}
        for finding in self._plan.findings:
            by_path.setdefault(finding.path, []).append(finding)
        for orphan in self._directory.orphans:
            self._plan.steps.append(
                Step(Action.ASIDE, orphan.path, f"{orphan.name.role} without a segment", orphan.size_bytes)
            )
        for file in self._directory.others:
            found = [f for f in by_path.get(self._full(file.path), []) if f.severity != Severity.NOTE]
            if file.name.role == Role.GROUP_DELTA and found and found[0].position:
                position = found[0].position
                removed = Removed(position, file.size_bytes, found[0].message)
                why = "the events before it stay: consumers may get again what was acknowledged behind it"
                self._plan.steps.append(Step(Action.CUT, file.path, why, file.size_bytes, position, removed=(removed,)))
            elif file.name.role in (Role.GROUP_SNAPSHOT, Role.GROUP_DELTA, Role.CHECKPOINT) and found:
                why = (
                    f"{found[0].message}: consumers start from what is left"
                    if "group" in file.name.role
                    else found[0].message
                )
                self._plan.steps.append(Step(Action.ASIDE, file.path, why, file.size_bytes))
        if strays:
            for name in self._directory.strays:
                self._plan.steps.append(
                    Step(
                        Action.ASIDE, name, "no file of this log, set aside as asked", self._disk.size(self._full(name))
                    )
                )

    def make_anew(self, segments: Sequence[Held]) -> None:
        """Indexes, manifest and sidecar, where what they describe changes or they are wrong."""
        kept = [held for held in segments if held.dropped is None]
        for held in kept:
            reasons = list(self._index_reasons(held))
            if reasons and self._fmt.index_builder(held.base, 0).headers():
                path = self._fmt.path_of(Role.INDEX, held.base)
                self._plan.steps.append(Step(Action.INDEX, path, reasons[0], base=held.base))
        for step in [step for step in self._plan.steps if step.action == Action.CREATE and step.base is not None]:
            if step.base is not None and self._fmt.index_builder(step.base, 0).headers():
                path = self._fmt.path_of(Role.INDEX, step.base)
                self._plan.steps.append(Step(Action.INDEX, path, "a new segment", base=step.base))
        bad = [f for f in self._plan.findings if "manifest" in f.code and f.severity != Severity.NOTE]
        unknown = [f for f in bad if f.code == "unknown-manifest"]
        moved = any(step.action not in (Action.INDEX, Action.ASIDE) for step in self._plan.steps)
        for name in self._fmt.log_files([], 0):
            if bad or moved or any(self._fmt.segment_path(h.base) != h.path or h.dropped for h in segments):
                why = bad[0].message if bad else "the segments change"
                self._plan.steps.append(Step(Action.MANIFEST, name, why))
                if unknown:
                    self._plan.notes.append(f"{name}: {unknown[0].message}: it is made anew from the records")
        stale = [f for f in self._plan.findings if f.code in SIDECAR_CODES and f.severity == Severity.DAMAGE]
        if self._plan.steps or stale or self._plan.losses:
            self._close_last(kept)
            why = stale[0].message if stale else "digests, watermark and known losses of the log as it will be"
            self._plan.steps.append(Step(Action.SIDECAR, ".duramen", why))
        if any(f.code == "digest-mismatch" for f in self._plan.findings):
            self._plan.notes.append(
                "a segment is not what was written, and not all of it is covered by checksums: records that look whole "
                "are kept as they are"
            )

    def _close_last(self, kept: Sequence[Held]) -> None:
        """Behind a repair the log counts as closed, so that the end of its last index may not lag any more."""
        if not kept or any(step.base == kept[-1].base for step in self._plan.steps):
            return
        held = kept[-1]
        if self._evidence.is_closed(held.report) or held.report.ending != Ending.CLEAN:
            return
        segment = self._fmt.open_segment(held.data, held.files.base)
        opened = {
            role: self._fmt.open_index(role, self._disk.map(self._full(file.path)).data, segment.base_offset)
            for role, file in held.files.derived.items()
        }
        indexes = {role: index for role, index in opened.items() if index is not None}
        if len(indexes) < len(opened) or any(short_indexes(self._evidence.described, segment, indexes)):
            path = self._fmt.path_of(Role.INDEX, held.base)
            self._plan.steps.append(Step(Action.INDEX, path, "it lacks entries for the last records", base=held.base))

    def _index_reasons(self, held: Held) -> Iterator[str]:
        if held.step is not None:
            yield "its segment changes"
        paths = {self._full(file.path) for file in held.files.derived.values()}
        for finding in self._plan.findings:
            if finding.path in paths or (finding.code == "missing-index" and finding.path == held.report.path):
                yield finding.message
