"""The plan for one segment: what its file holds, what it keeps, and its new file as pieces of the old one.

The planner decides everything that concerns other segments or the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property

from duramen import kernel
from duramen.formats import Format, ScanPosition, Segment, Severity, SupportsGapFill
from duramen.kernel import ChunkColumns
from duramen.log.repair.claims import Ranges, held_by, merged
from duramen.log.repair.order import put_in_order
from duramen.log.repair.plan import RemovedRecords, RepairPiece, RepairStep
from duramen.log.repair.salvage import Bad, Salvaged, SalvagedRun
from duramen.log.segments import EndKind, SegmentFiles
from duramen.log.verify import Finding, SegmentReport


class Trust(IntEnum):
    """How far a file is trusted: of two files that hold an offset, the more trusted one keeps it."""

    DOUBTED = 0
    """Its name, its records or the digest for its name contradict it."""
    FITTING = 1
    """Nothing contradicts it."""
    PROVEN = 2
    """It has the digest of a sealed segment."""


@dataclass
class SegmentPlan:
    files: SegmentFiles
    report: SegmentReport
    base: int
    """The base by its contents; the name may differ."""
    data: memoryview
    segment: Segment | None = None
    found: Salvaged | None = None
    """None: the segment is not in question."""
    header: bytes | None = None
    """The corrected file header; None if it is right."""
    dropped: str | None = None
    is_left_alone: bool = False
    """A newer program may have written it: its contents are unknown."""
    is_refused: bool = False
    """It is not changed, and its index stays: the index may name records of an unknown version."""
    findings: list[Finding] = field(default_factory=list)
    step: RepairStep | None = None
    fill_until: int | None = None
    """The offset up to which a filler replaces what is missing after its last record."""
    trust: Trust = Trust.FITTING
    seen: Ranges = field(default_factory=list)
    """The offsets of all whole records in the file, kept or not."""

    @property
    def path(self) -> str:
        return self.files.segment.path

    @property
    def last(self) -> int:
        """The last offset that it keeps; less than its base if it keeps none."""
        if self.found is not None:
            return self.base - 1 if self.found.last is None else self.found.last
        return self.base - 1 if self.report.last_offset is None else self.report.last_offset

    @cached_property
    def crc32c(self) -> int:
        return kernel.crc32c(self.data)

    @cached_property
    def crc32(self) -> int:
        return kernel.crc32(self.data)

    @property
    def content(self) -> tuple[int, int] | None:
        """First and last offset of its records; None if it has none."""
        return (self.seen[0][0], self.seen[-1][1]) if self.seen else None

    def look(self, fmt: Format) -> None:
        """Find the offsets that it holds."""
        if self.found is not None:
            chain = [] if self.segment is None else put_in_order(self.segment, self.found, 0, None).runs
            self.seen = merged((run.first, run.last) for run in chain)
        elif len(self.data) and not self.is_left_alone and self.report.ending:
            self.seen = held_by(fmt.open_segment(self.data, self.files.base))

    @property
    def kept(self) -> Ranges:
        if self.dropped is not None:
            return []
        return self.seen if self.found is None else merged((run.first, run.last) for run in self.found.runs)

    def taken(self, fmt: Format) -> Ranges:
        """Return the offsets of its new file, fillers included."""
        if not self.kept or self.found is None or not isinstance(fmt, SupportsGapFill):
            return self.kept
        return [(self.kept[0][0], self.last_taken)]

    @property
    def last_taken(self) -> int:
        """The last offset of its new file: that of its last record, or of the filler after it."""
        return self.last if self.fill_until is None else self.fill_until - 1

    @property
    def records(self) -> int:
        return self.report.records if self.found is None else self.found.records

    @property
    def why_lost(self) -> str:
        """Why offsets that it should hold are lost."""
        return self.found.bad[0].why if self.found is not None and self.found.bad else "no record holds them"

    @property
    def why_named(self) -> str:
        """Why the file gets the name of its base."""
        held = f"it holds offsets {self.base} to {self.last}" if self.last >= self.base else "it holds no record"
        return f"{held}, and its digest is that of the segment sealed there" if self.trust == Trust.PROVEN else held

    def truncate(self) -> None:
        """Keep nothing from the first bad place on, as the documents of the formats say."""
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
        found.bad = [Bad(position, len(self.data), "cut from the first bad record on, as requested")]
        found.holes, found.version_at, found.ended_badly = [], None, True

    def pieces(self, fmt: Format) -> tuple[list[RepairPiece], list[RemovedRecords]]:
        """Return the new file as pieces of the old one, and what is removed. Fillers replace the offsets that are
        missing between records, if the format has them."""
        found, segment = self.found, self.segment
        assert found is not None
        start = segment.start.position if segment is not None else 0
        pieces: list[RepairPiece] = []
        if segment is not None and start:
            pieces.append(
                RepairPiece(data=self.header) if self.header is not None else RepairPiece(self.path, 0, start)
            )
        for number, run in enumerate(found.runs):
            if number:
                pieces += self._filler(fmt, found.runs[number - 1].last, run.first, run)
            at = run.start
            for patch in sorted(run.patches):
                if at < patch.position:
                    pieces.append(RepairPiece(self.path, at, patch.position))
                pieces.append(RepairPiece(data=patch.data))
                at = patch.position + len(patch.data)
            if at < run.end:
                pieces.append(RepairPiece(self.path, at, run.end))
        if found.runs and self.fill_until is not None:
            pieces += self._filler(fmt, found.runs[-1].last, self.fill_until, found.runs[-1])
        merged: list[RepairPiece] = []
        for piece in pieces:
            if merged and not piece.data and not merged[-1].data and merged[-1].end == piece.start:
                merged[-1] = merged[-1]._replace(end=piece.end)
            else:
                merged.append(piece)
        return merged, [RemovedRecords(bad.start, bad.end, bad.why) for bad in found.bad]

    def _filler(self, fmt: Format, previous: int, until: int, near: SalvagedRun) -> Iterator[RepairPiece]:
        """Yield a filler for the offsets between ``previous`` and ``until``, with the time of a nearby record."""
        if previous + 1 >= until or self.segment is None or not isinstance(fmt, SupportsGapFill):
            return
        rows = self.segment.scan(ScanPosition(near.start, near.first - 1), max_records=1, verify=False)
        time_ms = int(rows.columns.timestamp[0]) if isinstance(rows.columns, ChunkColumns) and len(rows.columns) else 0
        yield RepairPiece(data=bytes(fmt.fill_gap(ScanPosition(0, previous), until, time_ms * 1000).data))

    def is_whole(self, pieces: list[RepairPiece]) -> bool:
        """Whether these pieces are the old file, apart from zeros at its end, which may stay."""
        if len(pieces) != 1 or pieces[0].data or pieces[0].start:
            return False
        return kernel.is_zero(self.data, pieces[0].end, len(self.data)) and not (self.found and self.found.bad)

    def summary(self, removed: list[RemovedRecords]) -> str:
        """Return in one line why it changes."""
        parts = []
        if self.header is not None:
            parts.append("its file header is corrected")
        if self.found is not None and self.found.mended:
            count = len(self.found.mended)
            parts.append("a record is corrected" if count == 1 else f"{count} records are corrected")
        if removed and self.found is not None and self.found.ended_badly and len(removed) == 1:
            why = ": the last write did not finish" if self._is_torn() else ""
            parts.append(f"the bytes after its last whole record are removed{why}")
        elif removed:
            parts.append("damaged bytes are removed, everything else stays")
        if self.fill_until is not None:
            parts.append("a filler replaces the offsets that are lost after it")
        return "; ".join(parts) or "its records are put in order"

    def _is_torn(self) -> bool:
        """Whether its end is an unfinished write, and nothing is damaged."""
        damaged = any(finding.severity == Severity.DAMAGE for finding in self.findings)
        return self.report.ending == EndKind.TORN and not damaged
