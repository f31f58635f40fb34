"""One row of the matrix: damage a log, verify it, plan, repair, verify again, append, undo; and hold the promises."""

from __future__ import annotations

import posixpath
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from duramen.errors import DuramenError
from duramen.formats import Severity
from duramen.log.repair import Plan, repair_log, undo_repair
from duramen.log.verify.report import Report
from duramen.log.verify.verify import verify_log
from duramen.log.write.writable_log import WritableLog
from duramen.testing.run import clocked, disk_of
from duramen.testing.simulated_disk import SimulatedDisk
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
    plan = repair_log(ROOT, format=name, disk=disk, **options_for(disk, name))
    row.refused = tuple(plan.refused)
    row.actions = tuple(dict.fromkeys(str(step.action) for step in plan.steps))
    _expect(row, tree(disk) == before, "planning changed a file")
    _expect(row, report.ok or bool(plan.steps), f"damage, and no plan: {row.codes} {plan.refused}")
    applied = repair_log(ROOT, plan_only=False, format=name, disk=disk, **options_for(disk, name))
    _expect(row, applied.as_dict()["steps"] == plan.as_dict()["steps"], "the plan that was applied is another one")
    after = _verify(disk, row.base)
    _expect(row, after.ok, f"damaged after the repair: {[f for f in after.findings if f.severity == Severity.DAMAGE]}")
    found = read(disk, name)
    _judge(row, found)
    _check_claims(row, applied, found)
    _check_conserved(row, before, tree(disk))
    again = repair_log(ROOT, format=name, disk=disk, **options_for(disk, name))
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


def _check_claims(row: Row, plan: Plan, found: dict[int, bytes]) -> None:
    """What the plan says is kept can be read, and what it says is lost cannot; what else is missing had no bytes."""
    if not plan.steps and plan.refused:
        return
    _expect(row, len(found) == plan.kept_records, f"the plan keeps {plan.kept_records} records, {len(found)} are read")
    lost = {offset for loss in plan.losses for offset in range(loss.first, loss.last + 1)}
    _expect(row, not lost & found.keys(), f"called lost, and read: {sorted(lost & found.keys())}")
    silent = row.base.records.keys() - found.keys() - row.damage.affected - lost
    _expect(row, not silent, f"not kept, and not called lost: {sorted(silent)}")


def _check_conserved(row: Row, before: Mapping[str, bytes], after: Mapping[str, bytes]) -> None:
    """Every file of the input is still in the log or in the quarantine: whole, or cut in two."""
    contents = set(after.values())
    tails = [content for path, content in after.items() if "/quarantine/" in path]
    for path, content in before.items():
        cut_in_two = any(
            content.endswith(tail) and after.get(path, b"") == content[: len(content) - len(tail)] for tail in tails
        )
        _expect(row, content in contents or cut_in_two, f"the content of {path} is missing from log and quarantine")


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
    allowed = row.damage.strange or (silent and row.damage.lengthens)  # by `_check_claims`, if they are called lost
    _expect(row, not missing or allowed, f"records are missing: {missing}")
    _expect(row, not other or silent or row.damage.strange, f"records that were never written: {other}")


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
    return verify_log(ROOT, format=base.format, disk=disk, **options_for(disk, base.format))


def rows(name: str, sidecar: bool, everything: bool = False, every: int = 1) -> Iterator[Row]:
    """The rows of one format; ``everything``: also those that are much like another one. ``every``: all cases of one
    kind of so many, and the first of each other kind."""
    base = base_log(name, sidecar)
    seen: set[str] = set()
    for damage in all_damages(base):
        if damage.extra and not everything:
            continue
        if is_whole(damage.kind, every) or damage.kind not in seen:
            seen.add(damage.kind)
            yield run(base, damage)


def is_whole(kind: str, every: int) -> bool:
    """Whether `rows` goes through all cases of a kind of damage."""
    return zlib.crc32(kind.encode()) % every == 0
