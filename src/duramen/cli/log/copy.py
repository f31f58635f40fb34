"""`duramen copy`: a consistent copy of a log, also while it is written; optionally up to an offset or a time.

The copy is checked, then appears completely or not at all, also after ctrl-C. Exit code 1 if the source is damaged, 2
if the target exists, or with ``--update`` is not a copy of the source.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from time import perf_counter
from typing import Annotated, Any

import typer

from duramen.cli.arguments import DryRun, FormatName, FormatOptions, Job, Json, Target, Targets, transfer_of
from duramen.cli.log.convert import RATE_FROM_BYTES, halved
from duramen.cli.outcome import Outcome, run_each
from duramen.cli.output import Cell, Output, duration, number, offsets, progress_bar, rate, size
from duramen.log import Copied, Update, copy_or_update
from duramen.store import TreeTransfer


def command(
    src: Annotated[
        str, typer.Argument(metavar="SRC", help="A log, one segment file, ROOT#topic, a store or a directory of logs.")
    ],
    dst: Annotated[
        str, typer.Argument(metavar="DST", help="Directory of the copy; must not exist. For a topic: a store.")
    ],
    until_offset: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Copy the records before this offset.")
    ] = None,
    until_time: Annotated[
        str | None,
        typer.Option(metavar="T", help="Stop at the first record with this time or a later one."),
    ] = None,
    update: Annotated[
        bool, typer.Option("--update", help="If DST is a copy of SRC, copy only what is new; otherwise copy all.")
    ] = False,
    format: FormatName = None,
    option: FormatOptions = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> Job:
    """Copy a log, also while it is being written.

    The copy contains every record acknowledged before it started. A time is ISO 8601 or epoch milliseconds. Cursors,
    groups and the ledger are copied, too, unless the copy ends before the log does.
    """
    targets = Target.all_of([src], format, option)
    how = {"until_offset": until_offset, "until_time": until_time, "update": update}
    if not targets.is_many:
        return partial(run_each, targets, partial(run, dst=dst, how=how, dry_run=dry_run), json=json)
    return partial(run_tree, targets, transfer_of(src, dst), how, dry_run=dry_run, json=json)


def run_tree(targets: Targets, tree: TreeTransfer, how: dict[str, Any], *, dry_run: bool, json: bool) -> int:
    """Copy the logs of a topic, a store or a directory of logs, then the settings of the topics."""

    def work(target: Target) -> Outcome:
        if not dry_run:
            tree.make_parent(target.path)
        return run(target, dst=tree.counterpart(target.path), how=how | {"nested": dry_run}, dry_run=dry_run)

    code = run_each(targets, work, json=json, headings=False)
    if not dry_run and not code:
        tree.copy_settings(targets.found)
    return code


def run(source: Target, *, dst: str, how: dict[str, Any], dry_run: bool) -> Outcome:
    started = perf_counter()
    copy = copy_or_update(source.path, dst, format=source.format, options=source.options, **how)
    total = copy.plan() if isinstance(copy, Update) and dry_run else copy.source.size_bytes
    if dry_run:
        plan = {"source": source.path, "path": dst, "format": copy.source.fmt.name, "bytes": total, "dry_run": True}
        said = f"{source.path}: would be copied to {dst}: {plan['format']}, at most {size(total)}"
        return Outcome(plan, lambda out: out.line(said))
    with progress_bar(f"copy {source.path}", total) as progress:
        if isinstance(copy, Update):
            done = copy.run(progress)
        elif progress is None:
            done = copy.run()
        else:
            done = copy.run(halved(progress), halved(progress))
    document = {"source": source.path, **asdict(done), "dry_run": False}
    return Outcome(document, partial(show, source, done, perf_counter() - started))


def show(source: Target, done: Copied, seconds: float, out: Output) -> None:
    speed = f" ({rate(done.size_bytes, seconds)})" if done.size_bytes >= RATE_FROM_BYTES else ""
    held = [number(done.segments, "segment"), number(done.records, "record"), size(done.size_bytes)]
    if done.is_update:
        held = [number(done.records, "new record"), number(done.segments, "new segment"), size(done.size_bytes)]
        held.append(f"the copy ends at offset {done.next_offset}")
    elif done.next_offset > done.first_offset:
        held.insert(2, offsets(done.first_offset, done.next_offset - 1))
    out.line(
        f"{source.path}: {'updated' if done.is_update else 'copied to'} {done.path}: ", Cell("ok", "good"),
        f": {done.format}, {', '.join(held)} in {duration(seconds)}{speed}",
    )  # fmt: skip
    if done.replaced or done.removed:
        gone = f", {done.removed} removed" if done.removed else ""
        out.line(f"  {number(done.replaced, 'segment')} replaced{gone}: compaction had changed them at the source")
    if done.state:
        out.line(f"  {number(len(done.state), 'file')} of consumers and writers copied")
    if done.left_behind:
        out.line(f"  {number(done.left_behind, 'file')} of consumers and writers not copied: the copy ends earlier")
    if done.torn_bytes:
        out.line(Cell(f"  the last write to the source did not finish: {size(done.torn_bytes)} skipped", "note"))
