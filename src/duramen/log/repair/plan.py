"""The plan of a repair, as data: one step per file, and the offsets that are lost.

A step says which bytes stay, which are removed, and why. `apply` executes the plan; it copies every byte that a step
removes into the quarantine first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from duramen.formats import Severity
from duramen.log.verify import Finding, Report

RIVAL = "another record with"
RIVALS = "other records with the same offsets as"
"""How the reason begins for which whole records leave the log: other records, which stay, have their offsets."""


class Strategy(StrEnum):
    SALVAGE = "salvage"
    """Keep every whole record, also after damage."""
    TRUNCATE = "truncate"
    """Cut a segment at its first bad record, as the documents of the formats say."""


class RepairAction(StrEnum):
    CUT = "cut"
    REWRITE = "rewrite"
    RENAME = "rename"
    ASIDE = "set aside"
    CREATE = "create"
    INDEX = "rebuild index"
    MANIFEST = "rebuild manifest"
    SIDECAR = "rebuild sidecar"


class RemovedRecords(NamedTuple):
    """A range of bytes to remove, and why."""

    start: int
    end: int
    why: str


class RecordLoss(NamedTuple):
    """Offsets whose records are lost."""

    first: int
    last: int
    why: str

    @property
    def count(self) -> int:  # type: ignore[override]
        return self.last - self.first + 1


class RepairPiece(NamedTuple):
    """A part of a new file: a range of an old one, or new bytes."""

    path: str = ""
    start: int = 0
    end: int = 0
    data: bytes = b""

    @property
    def size_bytes(self) -> int:
        return len(self.data) or self.end - self.start


@dataclass(frozen=True)
class RepairStep:
    """One change of one file. Paths are relative to the log's directory."""

    action: RepairAction
    path: str
    why: str
    size_bytes: int = 0
    """Size of the file before the step."""
    position: int | None = None
    """The new size of a file that is cut."""
    target: str | None = None
    """The new name of a file that is renamed."""
    removed: tuple[RemovedRecords, ...] = ()
    mended: tuple[str, ...] = ()
    records: int | None = None
    """Number of records after the step."""
    pieces: tuple[RepairPiece, ...] = ()
    base: int | None = None
    """The segment whose derived files are rebuilt."""

    def as_dict(self) -> dict[str, Any]:
        tree: dict[str, Any] = {"action": str(self.action), "path": self.path, "why": self.why}
        if self.size_bytes:
            tree["size_bytes"] = self.size_bytes
        for name in ("position", "target", "records"):
            if getattr(self, name) is not None:
                tree[name] = getattr(self, name)
        if self.removed:
            tree["removed"] = [removed._asdict() for removed in self.removed]
        if self.mended:
            tree["mended"] = list(self.mended)
        return tree


@dataclass
class Plan:
    """What a repair does, or has done. ``steps`` is empty if there is nothing to do."""

    path: str
    format: str
    strategy: Strategy
    steps: list[RepairStep] = field(default_factory=list)
    losses: list[RecordLoss] = field(default_factory=list)
    """Offsets that this repair gives up."""
    refused: list[str] = field(default_factory=list)
    """What is damaged and not changed, and why."""
    notes: list[str] = field(default_factory=list)
    kept_records: int = 0
    next_offset: int = 0
    """The offset that the next record will get."""
    findings: list[Finding] = field(default_factory=list)
    """The findings of `verify` before the repair."""
    options: dict[str, str] = field(default_factory=dict)
    """Options of the format that the repair sets."""
    segments: list[tuple[int, int]] = field(default_factory=list)
    """Base and last offset of every segment after the repair."""
    held: list[tuple[int, int]] | None = None
    """The ranges of offsets after the repair; None if they cannot be known from the records alone."""
    unexplained: list[tuple[int, int]] = field(default_factory=list)
    """Ranges of offsets that no file holds: compaction removed them, or they were lost before."""
    replaced: list[tuple[int, int]] = field(default_factory=list)
    """Ranges of offsets whose records are not those that the index names: another file was copied over them."""
    applied: bool = False
    quarantine: str | None = None
    """The directory of the copies, after the plan is applied."""
    report: Report | None = None
    """The report of `verify` after the repair."""

    def add(self, action: RepairAction, path: str, why: str, size_bytes: int = 0, base: int | None = None) -> None:
        """Append a step that needs no more than a reason."""
        self.steps.append(RepairStep(action, path, why, size_bytes, base=base))

    @property
    def removes_rivals(self) -> bool:
        """Whether whole records leave the log because others have their offsets. No offset is lost with them."""
        return any(
            step.why.startswith(RIVALS) or any(removed.why.startswith(RIVAL) for removed in step.removed)
            for step in self.steps
        )

    @property
    def lost_records(self) -> int:
        """The number of lost offsets; some may never have held a record."""
        return sum(loss.count for loss in self.losses)

    @property
    def ok(self) -> bool:
        """Whether the log is sound, after the repair if it was applied. A torn tail alone is not damage."""
        if self.applied and self.report is not None:
            return self.report.ok
        return not self.refused and all(finding.severity != Severity.DAMAGE for finding in self.findings)

    def as_dict(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "format": self.format,
            "strategy": str(self.strategy),
            "applied": self.applied,
            "ok": self.ok,
            "steps": [step.as_dict() for step in self.steps],
            "losses": [loss._asdict() for loss in self.losses],
            "refused": self.refused,
            "notes": self.notes,
            "kept_records": self.kept_records,
            "lost_records": self.lost_records,
            "next_offset": self.next_offset,
            "unexplained": [{"first": first, "last": last} for first, last in self.unexplained],
            "replaced": [{"first": first, "last": last} for first, last in self.replaced],
            "quarantine": self.quarantine,
            "report": None if self.report is None else self.report.as_dict(),
        }

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> Iterator[str]:
        """Yield the plan as lines of text."""
        for step in self.steps:
            yield f"{step.action} {step.path}: {step.why}"
            yield from (f"  bytes {r.start} to {r.end - 1}: {r.why}" for r in step.removed)
            yield from (f"  {line}" for line in step.mended)
        for loss in self.losses:
            yield f"lost: offsets {loss.first} to {loss.last}: {loss.why}"
        yield from (f"refused: {line}" for line in self.refused)
        if not self.steps and not self.refused:
            yield "nothing to repair"
