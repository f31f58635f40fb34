"""One row of the matrix: damage a log, verify it, plan, repair, verify again, append, undo; and hold the promises."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass, field

from duramen.disk.simulated import SimulatedDisk
from duramen.errors import DuramenError
from duramen.formats.base import Severity
from duramen.log.repair import repair, undo_repair
from duramen.log.report import Report
from duramen.log.verify import verify
from duramen.log.writer import WritableLog
from duramen.testing.running import clocked, disk_of
from tests.damage.damages import Damage, all_damages
from tests.damage.logs import RECORD_SIZE, ROOT, Base, base_log, options_for, read, tree

NEW = b"appended after the repair".ljust(RECORD_SIZE, b".")[:RECORD_SIZE]


@dataclass
class Row:
    """What became of a damaged log."""

    base: Base
    damage: Damage
    codes: tuple[str, ...] = ()
    """What verify says, notes left out."""
    noticed: bool = False
    exit_code: int = 0
    actions: tuple[str, ...] = ()
    kept: int = 0
    expected: int = 0
    lost: int = 0
    changed: int = 0
    """Records that read otherwise than they were written, because nothing in the log could tell."""
    refused: tuple[str, ...] = ()
    """What repair does not touch, as a newer program may have written it."""
    problems: list[str] = field(default_factory=list)
    """Promises that do not hold."""

    def __str__(self) -> str:
        sidecar = "with" if self.base.sidecar else "without"
        return f"{self.base.format} {sidecar} sidecar: {self.damage.kind}: {self.damage.label}"


def run(base: Base, damage: Damage) -> Row:
    row = Row(base, damage, expected=len(base.records))
    files = damage.make(dict(base.files))
    disk = disk_of({posixpath.join(ROOT, path): content for path, content in files.items()} | {ROOT + "/": b""})
    try:
        with clocked():
            _run(row, disk)
    except (DuramenError, AssertionError) as error:
        row.problems.append(f"{type(error).__name__}: {error}")
    return row


def _run(row: Row, disk: SimulatedDisk) -> None:
    before = tree(disk)
    report = _verify(disk, row.base)
    worse = [f for f in report.findings if f.severity != Severity.NOTE]
    row.codes = tuple(sorted({f.code for f in worse})) or tuple(sorted({f.code for f in report.findings}))
    row.noticed, row.exit_code = bool(report.findings), 0 if report.ok else 1
    name = row.base.format
    plan = repair(ROOT, format=name, disk=disk, **options_for(disk, name))
    row.refused = tuple(plan.refused)
    row.actions = tuple(dict.fromkeys(str(step.action) for step in plan.steps))
    _expect(row, tree(disk) == before, "planning changed a file")
    _expect(row, report.ok or bool(plan.steps), f"damage, and no plan: {row.codes} {plan.refused}")
    applied = repair(ROOT, plan_only=False, format=name, disk=disk, **options_for(disk, name))
    _expect(row, applied.as_dict()["steps"] == plan.as_dict()["steps"], "the plan that was applied is another one")
    after = _verify(disk, row.base)
    _expect(row, after.ok, f"damaged after the repair: {[f for f in after.findings if f.severity == Severity.DAMAGE]}")
    found = read(disk, name)
    _judge(row, found)
    again = repair(ROOT, format=name, disk=disk, **options_for(disk, name))
    _expect(row, not again.steps, f"a second repair has something to do: {again}")
    _append(row, disk.clone(), found)
    if plan.steps:
        undo_repair(ROOT, format=name, disk=disk, **options_for(disk, name))
        left = {path: data for path, data in tree(disk).items() if not _of_the_repair(path)}
        _expect(
            row,
            left == before,
            f"undo differs: {sorted(k for k in {**left, **before} if left.get(k) != before.get(k))}",
        )


def _of_the_repair(path: str) -> bool:
    return path.startswith(".duramen/quarantine/") or path == ".duramen/repair.json"


def _judge(row: Row, found: dict[int, bytes]) -> None:
    original, affected = row.base.records, row.damage.affected
    missing = sorted(o for o in original if o not in found and o not in affected)
    other = sorted(o for o, content in found.items() if original.get(o) != content)
    row.kept = sum(original.get(o) == content for o, content in found.items())
    row.lost = len(original.keys() - found.keys())
    row.changed = len(other)
    silent = not row.noticed or "digest-mismatch" in row.codes or _unsure(row)
    _expect(row, not missing or (silent and row.damage.lengthens), f"records are missing: {missing}")
    _expect(row, not other or silent, f"records that were never written: {other}")


def _unsure(row: Row) -> bool:
    """What is noticed only by something that is derived, in bytes that no checksum covers."""
    return row.base.format == "rustlog" or set(row.codes) <= {"offset-gap", "wrong-index-entry", "time-goes-backwards"}


def _append(row: Row, disk: SimulatedDisk, found: dict[int, bytes]) -> None:
    with WritableLog(ROOT, format=row.base.format, disk=disk, **options_for(disk, row.base.format)) as log:
        offset = log.append(NEW)
        _expect(row, log.read(offset).value == NEW, "what was appended does not read back")
    _expect(row, offset not in found, f"offset {offset} is given out twice")
    _expect(row, read(disk, row.base.format) == {**found, offset: NEW}, "appending changed other records")
    after = _verify(disk, row.base)
    _expect(row, after.ok, f"damaged after an append: {[f for f in after.findings if f.severity == Severity.DAMAGE]}")


def _expect(row: Row, holds: bool, message: str) -> None:
    if not holds:
        row.problems.append(message)


def _verify(disk: SimulatedDisk, base: Base) -> Report:
    return verify(ROOT, format=base.format, disk=disk, **options_for(disk, base.format))


def rows(name: str, sidecar: bool, everything: bool = False) -> Iterator[Row]:
    """The rows of one format; ``everything``: also those that are much like another one."""
    base = base_log(name, sidecar)
    for damage in all_damages(base):
        if everything or not damage.extra:
            yield run(base, damage)
