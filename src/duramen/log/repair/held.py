"""One segment in a repair: what its file holds, what of that it keeps, and its new file as pieces of the old one.

Decides nothing about other segments, and nothing about the log: the planner does.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from duramen import kernel
from duramen.formats.base import Segment, Severity
from duramen.log.directory import SegmentFiles
from duramen.log.ending import Ending
from duramen.log.repair.plan import Piece, Removed, Step
from duramen.log.repair.salvage import Bad, Salvaged
from duramen.log.report import Finding, SegmentReport


@dataclass
class Held:
    """A segment as the planner sees it."""

    files: SegmentFiles
    report: SegmentReport
    base: int
    """What the file holds; the name may say otherwise."""
    data: memoryview
    segment: Segment | None = None
    found: Salvaged | None = None
    """None: nothing about it is in question."""
    header: bytes | None = None
    """What its first bytes should be."""
    dropped: str | None = None
    is_left_alone: bool = False
    """A newer program may have written it: nobody knows what it holds."""
    findings: list[Finding] = field(default_factory=list)
    step: Step | None = None

    @property
    def path(self) -> str:
        return self.files.segment.path

    @property
    def last(self) -> int:
        """The last offset that it keeps; below its base where it keeps none."""
        if self.found is not None:
            return self.base - 1 if self.found.last is None else self.found.last
        return self.base - 1 if self.report.last_offset is None else self.report.last_offset

    @property
    def records(self) -> int:
        return self.report.records if self.found is None else self.found.records

    @property
    def why_lost(self) -> str:
        """Of offsets that it should hold."""
        return self.found.bad[0].why if self.found is not None and self.found.bad else "no record holds them"

    def truncate(self) -> None:
        """Nothing behind the first bad place, as the formats' own documents say."""
        found = self.found
        if found is None or not found.bad:
            return
        first = min(bad.start for bad in found.bad)
        kept = [run for run in found.runs if run.end <= first and not run.patches]
        straight = []
        position = self.segment.start.position if self.segment is not None else 0
        for run in kept:
            if run.start != position:
                break
            straight.append(run)
            position = run.end
        found.runs = straight
        found.bad = [Bad(position, len(self.data), "everything from the first bad record on is cut, as asked")]
        found.holes, found.version_at, found.ended_badly = [], None, True

    def pieces(self) -> tuple[list[Piece], list[Removed]]:
        """The new file as pieces of the old one, and what goes."""
        found, segment = self.found, self.segment
        assert found is not None
        start = segment.start.position if segment is not None else 0
        pieces: list[Piece] = []
        if segment is not None and start:
            pieces.append(Piece(data=self.header) if self.header is not None else Piece(self.path, 0, start))
        for run in found.runs:
            at = run.start
            for patch in sorted(run.patches):
                if at < patch.position:
                    pieces.append(Piece(self.path, at, patch.position))
                pieces.append(Piece(data=patch.data))
                at = patch.position + len(patch.data)
            if at < run.end:
                pieces.append(Piece(self.path, at, run.end))
        merged: list[Piece] = []
        for piece in pieces:
            if merged and not piece.data and not merged[-1].data and merged[-1].end == piece.start:
                merged[-1] = merged[-1]._replace(end=piece.end)
            else:
                merged.append(piece)
        return merged, [Removed(bad.start, bad.end, bad.why) for bad in found.bad]

    def is_whole(self, pieces: list[Piece]) -> bool:
        """Whether nothing changes with these pieces, but for zeros at the end, which may stay."""
        if len(pieces) != 1 or pieces[0].data or pieces[0].start:
            return False
        return kernel.is_zero(self.data, pieces[0].end, len(self.data)) and not (self.found and self.found.bad)

    def summary(self, removed: list[Removed]) -> str:
        """Why it changes, in a line."""
        parts = []
        if self.header is not None:
            parts.append("its file header is put right")
        if self.found is not None and self.found.mended:
            count = len(self.found.mended)
            parts.append("a record is put right" if count == 1 else f"{count} records are put right")
        if removed and self.found is not None and self.found.ended_badly and len(removed) == 1:
            why = ": the last write did not finish" if self._is_torn() else ""
            parts.append(f"what is behind its last whole record goes{why}")
        elif removed:
            parts.append("what is no record goes, everything else stays")
        return "; ".join(parts) or "its records are put in order"

    def _is_torn(self) -> bool:
        """Whether nothing speaks against a write that did not finish."""
        damaged = any(finding.severity == Severity.DAMAGE for finding in self.findings)
        return self.report.ending == Ending.TORN and not damaged
