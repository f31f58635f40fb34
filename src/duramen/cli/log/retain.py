"""`duramen retain`: remove the oldest segments of logs that the rules allow and no consumer needs."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from duramen.cli.arguments import DryRun, FormatName, FormatOptions, Job, Json, LogDirectories, Target
from duramen.cli.outcome import Outcome, run_each
from duramen.cli.output import Cell, Column, Output, number, size
from duramen.cli.quantities import parse_age_ms, parse_bytes, parse_percent
from duramen.cli.signals import held
from duramen.consumers import ConsumableLog, ConsumableWritableLog
from duramen.errors import UsageError
from duramen.log import Retention, RetentionPlan, check_rules, plan_retention


def command(
    path: LogDirectories,
    max_age: Annotated[
        str | None, typer.Option("--max-age", metavar="A", help="Remove records older than this: 7d, 12h, 30min.")
    ] = None,
    max_bytes: Annotated[
        str | None, typer.Option("--max-bytes", metavar="B", help="Shrink the log to this size: 500MB, 1.5GiB.")
    ] = None,
    before_offset: Annotated[
        int | None, typer.Option("--before-offset", metavar="N", help="Remove records before this offset.")
    ] = None,
    keep_free: Annotated[
        str | None, typer.Option("--keep-free", metavar="P", help="Keep this part of the disk free: 15%.")
    ] = None,
    on_damage: Annotated[
        str, typer.Option(metavar="WHAT", help="If a segment to remove is damaged: stop, or keep a copy in quarantine.")
    ] = "stop",
    dry_run: DryRun = False,
    format: FormatName = None,
    option: FormatOptions = None,
    json: Json = False,
) -> Job:
    """Remove the oldest segments of a log.

    Removes whole segments, oldest first, but never the active one or a segment that a group, a cursor or a running job
    still needs. Names the consumer that prevents a removal. If a segment to remove is damaged, the command stops and
    changes nothing.
    """
    rules = Retention(
        None if max_age is None else parse_age_ms("--max-age", max_age),
        None if max_bytes is None else parse_bytes("--max-bytes", max_bytes),
        before_offset,
        None if keep_free is None else parse_percent("--keep-free", keep_free),
        _parse_on_damage(on_damage),
    )
    if not rules.rules:
        hint = "give --max-age, --max-bytes, --before-offset or --keep-free"
        raise UsageError("at least one rule is required", hint=hint)
    targets = Target.all_of([path], format, option)
    return partial(run_each, targets, partial(run, rules=rules, dry_run=dry_run), json=json)


def _parse_on_damage(value: str) -> str:
    if value not in ("stop", "quarantine"):
        raise UsageError(f"--on-damage must be stop or quarantine (got {value!r})")
    return "raise" if value == "stop" else value


def run(target: Target, *, rules: Retention, dry_run: bool = False) -> Outcome:
    check_rules(target.codec, rules, target.path)
    if dry_run:  # needs no lock and writes nothing
        with ConsumableLog(target.path, format=target.codec.name, **target.options) as reader:
            plan = plan_retention(reader, rules)
    else:
        with ConsumableWritableLog(target.path, format=target.codec.name, **target.options) as log:
            plan = _retain(log, rules)
    return Outcome(_document(target, plan, dry_run), partial(show, plan, dry_run=dry_run))


def _retain(log: ConsumableWritableLog, rules: Retention) -> RetentionPlan:
    with held():  # removing files takes moments
        return log.retain(rules)


def show(plan: RetentionPlan, out: Output, *, dry_run: bool) -> None:
    if plan.removed:
        columns = [Column("segment"), Column("offsets"), Column("size", right=True), Column("why")]
        out.table(
            columns,
            [
                (one.path, f"{one.base} to {one.next_base - 1}", size(one.size_bytes), one.reason)
                for one in plan.removed
            ],
        )
    verb = "would be removed" if dry_run else "removed"
    out.line(
        f"{number(len(plan.removed), 'segment')} {verb} ({size(plan.removed_bytes)}); "
        f"the log starts at offset {plan.first_offset} and has {size(plan.kept_bytes)}"
    )
    for one in plan.removed:
        if one.damage:
            copied = "would be copied" if dry_run else "a copy is"
            where = "to the quarantine first" if dry_run else "in the quarantine"
            out.line(Cell(f"{one.path} is damaged ({one.damage}): {copied} {where}", "warning"))
    if plan.held_by:
        names = "; ".join(str(need) for need in plan.held_by)
        out.line(Cell(f"held back by {names}", "warning"))
    else:
        out.line(Cell(f"the next segment is kept: {plan.kept_because}", "label"))


def _document(target: Target, plan: RetentionPlan, dry_run: bool) -> dict[str, object]:
    return {
        "path": target.path,
        "dry_run": dry_run,
        "removed": [one._asdict() for one in plan.removed],
        "removed_bytes": plan.removed_bytes,
        "first_offset": plan.first_offset,
        "kept_bytes": plan.kept_bytes,
        "kept_because": plan.kept_because,
        "held_by": [need._asdict() for need in plan.held_by],
    }
