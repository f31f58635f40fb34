"""`duramen repair` and `duramen reindex`: print a plan, file by file, and carry it out.

`repair` prints its plan and changes nothing without ``--apply``; ``--undo`` rolls it back. Exit codes: 0 if
the log is sound or was repaired; 1 if damage remains; 2 for wrong usage; 3 if a file cannot be read or written.
"""

from __future__ import annotations

import shlex
from dataclasses import asdict
from functools import partial
from typing import Annotated

import typer

from duramen.cli.arguments import DryRun, FormatName, FormatOptions, Job, Json, LogDirectories, Target
from duramen.cli.log.verify import show
from duramen.cli.outcome import Outcome, run_each
from duramen.cli.output import Cell, Column, Output, number, offsets, progress_bar, size
from duramen.cli.signals import held
from duramen.errors import CorruptionError, UsageError
from duramen.log import (
    Plan,
    Reindexed,
    RepairAction,
    RepairStep,
    Strategy,
    Undone,
    list_log,
    reindex,
    repair_log,
    undo_repair,
)

RANGES_SHOWN = 20
"""Byte ranges and losses listed one by one; JSON lists all."""
_STYLES = {
    RepairAction.CUT: "warning",
    RepairAction.REWRITE: "warning",
    RepairAction.RENAME: "note",
    RepairAction.ASIDE: "warning",
    RepairAction.CREATE: "note",
    RepairAction.INDEX: "note",
    RepairAction.MANIFEST: "note",
    RepairAction.SIDECAR: "note",
}


def command(
    path: LogDirectories,
    apply: Annotated[bool, typer.Option("--apply", help="Carry out the plan.")] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Roll back the last repair, byte for byte.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print the plan: the default without --apply.")
    ] = False,
    strategy: Annotated[
        Strategy,
        typer.Option(
            "--strategy", help="salvage: keep every intact record. truncate: cut a segment at its first bad one."
        ),
    ] = Strategy.SALVAGE,
    strays: Annotated[
        bool, typer.Option("--strays", help="Also quarantine files that do not belong to the log.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="With --undo: drop records appended after the repair.")
    ] = False,
    format: FormatName = None,
    option: FormatOptions = None,
    json: Json = False,
) -> Job:
    """Repair a damaged log: print a plan, and carry it out with --apply.

    Every file is copied to .duramen/quarantine before it changes; --undo restores it.
    """
    targets = Target.all_of([path], format, option)
    if force and not undo:
        raise typer.BadParameter("--force works with --undo only")
    if apply and undo:
        raise typer.BadParameter("--apply and --undo cannot be used together")
    if apply and dry_run:
        raise typer.BadParameter("--apply and --dry-run cannot be used together")
    work = partial(run, apply=apply, strategy=strategy, strays=strays)
    if undo:
        work = partial(run_undo, dry_run=dry_run, force=force)
    return partial(run_each, targets, work, json=json, headings=False)


def run(target: Target, *, apply: bool = False, strategy: Strategy = Strategy.SALVAGE, strays: bool = False) -> Outcome:
    with progress_bar(f"repair {target.path}", (3 if apply else 1) * _size(target)) as progress:
        plan = repair_log(
            target.path, plan_only=not apply, format=target.format, strategy=strategy, strays=strays,
            progress=progress, hold=held, **target.options,
        )  # fmt: skip
    return Outcome(plan.as_dict(), partial(show_plan, plan, target), 0 if plan.ok else 1)


def _size(target: Target) -> int:
    """Bytes to read; 0 if unknown."""
    try:
        return sum(files.segment.size_bytes for files in list_log(target.disk, target.path, target.codec).segments)
    except (CorruptionError, UsageError):
        return 0


# --- the plan


def show_plan(plan: Plan, target: Target, out: Output) -> None:
    if not plan.steps and not plan.refused:
        out.line(f"{plan.path}: ", Cell("nothing to repair", "good"), f": {plan.format}, ", _kept(plan))
        _notes(plan, out)
        return
    done = "repaired" if plan.applied and plan.steps else "plan"
    out.line(f"{plan.path}: ", Cell(done, "heading"), f": {plan.format}, {number(len(plan.steps), 'step')}")
    for step in plan.steps:
        _show_step(step, out)
    _show_losses(plan, out)
    for line in plan.refused:
        out.paragraph(f"refused: {line}", indent="  ", hanging="    ", style="damage")
    _notes(plan, out)
    out.blank()
    if not plan.applied and plan.steps:
        out.paragraph(f"Nothing was changed. → {_command(plan, target)} --apply", indent="  ", hanging="  ")
    elif plan.quarantine is not None:
        out.paragraph(
            f"The originals are in {plan.path}/{plan.quarantine}; {_undo(target)} restores them.", indent="  "
        )
    if plan.report is not None:
        show(plan.report, 0, out)


def _command(plan: Plan, target: Target) -> str:
    words = ["duramen", "repair", shlex.quote(plan.path)]
    if target.format is not None:
        words += ["--format", target.format]
    words += [f"--option {shlex.quote(f'{name}={value}')}" for name, value in target.options.items()]
    if plan.strategy != Strategy.SALVAGE:
        words += ["--strategy", str(plan.strategy)]
    return " ".join(words)


def _undo(target: Target) -> str:
    return f"`duramen repair --undo {shlex.quote(target.path)}`"


def _kept(plan: Plan) -> str:
    return f"{number(plan.kept_records, 'record')}"


def _show_step(step: RepairStep, out: Output) -> None:
    renamed = f" → {step.target}" if step.target is not None else ""
    at = f", at byte {step.position}" if step.position is not None else ""
    holds = f" (keeps {number(step.records, 'record')})" if step.records is not None and step.removed else ""
    out.line(Cell(f"  {step.action:<17}", _STYLES[step.action]), Cell(f"{step.path}{renamed}{at}", "position"), holds)
    start = " " * 19
    out.paragraph(step.why, indent=start)
    for removed in step.removed[:RANGES_SHOWN]:
        length = size(removed.end - removed.start)
        out.paragraph(
            f"remove bytes {removed.start} to {removed.end - 1} ({length}): {removed.why}",
            indent=start + "- ",
            hanging=start + "  ",
        )
    for line in step.mended[:RANGES_SHOWN]:
        out.paragraph(line, indent=start + "+ ", hanging=start + "  ")
    rest = (
        len(step.removed)
        + len(step.mended)
        - min(len(step.removed), RANGES_SHOWN)
        - min(len(step.mended), RANGES_SHOWN)
    )
    if rest > 0:
        out.line(Cell(f"{start}… and {rest} more: --json lists them all", "label"))


def _show_losses(plan: Plan, out: Output) -> None:
    if plan.refused and not plan.steps and not plan.kept_records:
        return  # the refusals say enough
    if not plan.losses:
        kept = f"{number(plan.kept_records, 'record')} kept"
        if plan.removes_rivals:
            out.line(Cell(f"  no offset is lost: {kept}; others with the same offsets are set aside", "warning"))
        else:
            said = "no readable record is lost" if plan.unexplained or plan.replaced else "nothing is lost"
            out.line(Cell(f"  {said}: {kept}", "good"))
    for first, last in plan.unexplained[:RANGES_SHOWN]:
        text = "in no file: removed by compaction, or lost before"
        out.paragraph(f"{offsets(first, last)}: {text}", indent="    ", style="warning")
    for first, last in plan.replaced[:RANGES_SHOWN]:
        text = "the index names other records there, which are lost"
        out.paragraph(f"{offsets(first, last)}: {text}", indent="    ", style="warning")
    if not plan.losses:
        return
    out.line(
        Cell(f"  {number(plan.kept_records, 'record')} kept, {_lost(plan.lost_records)}", "damage"),
    )
    for loss in plan.losses[:RANGES_SHOWN]:
        out.paragraph(f"{offsets(loss.first, loss.last)}: {loss.why}", indent="    ")
    if len(plan.losses) > RANGES_SHOWN:
        out.line(Cell(f"    … and {len(plan.losses) - RANGES_SHOWN} more: --json lists them all", "label"))


def _lost(count: int) -> str:
    return f"{number(count, 'offset')} {'is' if count == 1 else 'are'} lost"


def _notes(plan: Plan, out: Output) -> None:
    for line in plan.notes:
        out.paragraph(f"note: {line}", indent="  ", hanging="    ", style="note")


# --- undo


def run_undo(target: Target, *, dry_run: bool = False, force: bool = False) -> Outcome:
    undone = undo_repair(target.path, plan_only=dry_run, force=force, format=target.format, hold=held, **target.options)
    return Outcome(asdict(undone), partial(_show_undone, undone, force=force))


def _show_undone(undone: Undone, out: Output, *, force: bool) -> None:
    verb = "repair undone: restored" if undone.applied else "undo would restore"
    also = "removed" if undone.applied else "remove"
    out.line(f"{undone.path}: {verb} {number(len(undone.restored), 'file')}, {also} {len(undone.removed)}")
    for path in undone.restored:
        out.line("  restored  ", Cell(path, "position"))
    for path in undone.removed:
        out.line("  removed   ", Cell(path, "position"))
    for line in undone.dropped:
        out.line(Cell("  dropped   ", "warning"), line)
    if undone.dropped and not undone.applied and not force:
        out.paragraph("The log changed after the repair: --undo needs --force and drops these changes.", indent="  ")


# --- reindex


def reindex_command(
    path: LogDirectories,
    dry_run: DryRun = False,
    format: FormatName = None,
    option: FormatOptions = None,
    json: Json = False,
) -> Job:
    """Rebuild index, time index and manifest from the records."""
    targets = Target.all_of([path], format, option)
    return partial(run_each, targets, partial(run_reindex, dry_run=dry_run), json=json, headings=False)


def run_reindex(target: Target, *, dry_run: bool = False) -> Outcome:
    result = reindex(target.path, dry_run=dry_run, format=target.format, hold=held, **target.options)
    return Outcome({**asdict(result), "changed": result.changed}, partial(_show_reindexed, result))


def _show_reindexed(result: Reindexed, out: Output) -> None:
    would = "" if result.applied else "would be "
    changed = number(result.changed, "file")
    out.line(f"{result.path}: {result.format}, {changed} of {len(result.files)} {would}rebuilt")
    rows: list[list[str | Cell]] = [
        [
            Cell(file.path, "position"),
            file.change,
            "–" if file.before_bytes is None else size(file.before_bytes),
            size(file.size_bytes),
        ]
        for file in result.files
        if file.change != "same"
    ]
    if rows:
        out.table([Column("file"), Column("change"), Column("before", right=True), Column("after", right=True)], rows)
    for line in result.notes:
        out.paragraph(f"note: {line}", indent="  ", hanging="    ", style="note")
