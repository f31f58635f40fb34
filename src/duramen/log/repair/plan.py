"""What a repair is going to do: steps over whole files, as data. Printable, comparable, made without writing.

A plan says file by file which bytes stay, which go and why, and which offsets are lost. Carrying it out is `apply`'s
business. Every byte that a step takes away is in the quarantine first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from duramen.formats.base import Severity
from duramen.log.report import Finding, Report


class Strategy(StrEnum):
    SALVAGE = "salvage"
    """Keep every record that is whole, also behind damage."""
    TRUNCATE = "truncate"
    """Cut a segment at its first bad record, as the documents of the formats say."""


class Action(StrEnum):
    CUT = "cut"
    REWRITE = "rewrite"
    RENAME = "rename"
    ASIDE = "set aside"
    CREATE = "create"
    INDEX = "rebuild index"
    MANIFEST = "rebuild manifest"
    SIDECAR = "rebuild sidecar"


class Removed(NamedTuple):
    """A range of bytes that goes, and why."""

    start: int
    end: int
    why: str


class Loss(NamedTuple):
    """Offsets that no record holds any more."""

    first: int
    last: int
    why: str

    @property
    def count(self) -> int:  # type: ignore[override]
        return self.last - self.first + 1


class Piece(NamedTuple):
    """A part of a new file: a range of an old one, or new bytes."""

    path: str = ""
    start: int = 0
    end: int = 0
    data: bytes = b""

    @property
    def size_bytes(self) -> int:
        return len(self.data) or self.end - self.start


@dataclass(frozen=True)
class Step:
    """One change of one file. Paths are relative to the log's directory."""

    action: Action
    path: str
    why: str
    size_bytes: int = 0
    """Of the file as it is."""
    position: int | None = None
    """Where it is cut."""
    target: str | None = None
    """Its new name."""
    removed: tuple[Removed, ...] = ()
    mended: tuple[str, ...] = ()
    records: int | None = None
    """How many it holds afterwards."""
    pieces: tuple[Piece, ...] = ()
    base: int | None = None
    """The segment whose derived files are made anew."""

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
    """What `repair` does to a log, or has done. ``steps`` is empty where nothing has to be done."""

    path: str
    format: str
    strategy: Strategy
    steps: list[Step] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    """Offsets that this repair gives up."""
    refused: list[str] = field(default_factory=list)
    """What is damaged and stays as it is, and why."""
    notes: list[str] = field(default_factory=list)
    kept_records: int = 0
    next_offset: int = 0
    """The offset that the next record will get."""
    findings: list[Finding] = field(default_factory=list)
    """What `verify` says of the log as it is."""
    lost_slots: str = ""
    segments: list[tuple[int, int]] = field(default_factory=list)
    """Base and last offset of every segment that there will be."""
    applied: bool = False
    quarantine: str | None = None
    """Where the copies are, once it is applied."""
    report: Report | None = None
    """What `verify` says afterwards."""

    @property
    def lost_records(self) -> int:
        """How many offsets are given up, at most: some may never have held a record."""
        return sum(loss.count for loss in self.losses)

    @property
    def ok(self) -> bool:
        """Whether the log is sound: nothing is damaged, or not any more. A torn tail alone is no damage."""
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
            "quarantine": self.quarantine,
            "report": None if self.report is None else self.report.as_dict(),
        }

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> Iterator[str]:
        """The plan for people."""
        for step in self.steps:
            yield f"{step.action} {step.path}: {step.why}"
            yield from (f"  bytes {r.start} to {r.end - 1}: {r.why}" for r in step.removed)
            yield from (f"  {line}" for line in step.mended)
        for loss in self.losses:
            yield f"lost: offsets {loss.first} to {loss.last}: {loss.why}"
        yield from (f"refused: {line}" for line in self.refused)
        if not self.steps and not self.refused:
            yield "nothing to repair"
