"""`duramen convert`: write a log in another format to a new path.

Lists the fields that the new format cannot store; each needs ``--allow-loss``. The new log appears completely or not at
all, also after ctrl-C. Exit code 1 if the source is damaged, 2 if a loss is not allowed or the target exists.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Annotated, Any

import typer

from duramen.cli.arguments import DryRun, FormatName, FormatOptions, Job, Json, Target, Targets, transfer_of
from duramen.cli.dialect import show_dialect
from duramen.cli.outcome import Outcome, run_each
from duramen.cli.output import (
    Cell,
    Column,
    Output,
    duration,
    number,
    offsets,
    progress_bar,
    rate,
    size,
)
from duramen.errors import UsageError
from duramen.formats import make
from duramen.log import FIELDS, Conversion, Converted, FieldLoss, LossError
from duramen.store import TreeTransfer, log_path

RATE_FROM_BYTES = 1 << 20


def command(
    src: Annotated[
        str, typer.Argument(metavar="SRC", help="A log, one segment file, ROOT#topic, a store or a directory of logs.")
    ],
    dst: Annotated[
        str, typer.Argument(metavar="DST", help="Directory of the new log; must not exist. For a topic: a store.")
    ],
    to: Annotated[str, typer.Option("--to", metavar="F", help="Format of the new log.")],
    option: FormatOptions = None,
    allow_loss: Annotated[
        list[str] | None,
        typer.Option(metavar="FIELD", help=f"Drop this field if the format cannot store it: {', '.join(FIELDS)}."),
    ] = None,
    on_damage: Annotated[
        str, typer.Option(metavar="WHAT", help="If SRC is damaged: stop, or skip the damaged part.")
    ] = "stop",
    format: FormatName = None,
    source_option: Annotated[
        list[str] | None, typer.Option(metavar="K=V", help="Option of the format of SRC; repeatable.")
    ] = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> Job:
    """Convert a log to another format.

    Keeps offsets, and times, keys and headers if the new format can store them. Every field that it cannot store must
    be allowed with --allow-loss. --option applies to the new log.
    """
    if on_damage not in ("stop", "skip"):
        raise UsageError(f"--on-damage must be stop or skip (got {on_damage!r})")
    targets, wanted = Target.all_of([src], format, source_option), Target(dst, to, Target.of("", None, option).options)
    on_damage = "raise" if on_damage == "stop" else on_damage
    work = partial(run, allow_loss=tuple(allow_loss or ()), on_damage=on_damage, dry_run=dry_run)
    if not targets.is_many:
        return partial(run_each, targets, partial(work, target=replace(wanted, path=log_path(dst))), json=json)
    return partial(run_tree, targets, transfer_of(src, dst), wanted, work, dry_run=dry_run, json=json)


def run_tree(
    targets: Targets, tree: TreeTransfer, wanted: Target, work: Callable[..., Outcome], *, dry_run: bool, json: bool
) -> int:
    """Convert the logs of a topic, a store or a directory of logs, then the settings of the topics."""

    def convert_one(source: Target) -> Outcome:
        if not dry_run:
            tree.make_parent(source.path)
        return work(source, target=replace(wanted, path=tree.counterpart(source.path)), nested=dry_run)

    code = run_each(targets, convert_one, json=json, headings=False, stops=True)
    if not dry_run and not code and wanted.format is not None:
        tree.copy_settings(targets.found, (wanted.format, make(wanted.format, **wanted.options).options))
    return code


def run(
    source: Target, *, target: Target, allow_loss: tuple[str, ...], on_damage: str, dry_run: bool, nested: bool = False
) -> Outcome:
    started = perf_counter()
    assert target.format is not None
    conversion = Conversion(
        source.path, target.path, target.format, allow_loss=allow_loss, on_damage=on_damage,
        format=source.format, source_options={**source.start, **source.options}, nested=nested, **target.options,
    )  # fmt: skip
    total = conversion.source.size_bytes
    try:
        conversion.check_losses()
    except LossError as error:
        planned, losses = conversion.plan(), error.losses
        document = as_dict(source, planned, dry_run=True)
        if not dry_run:
            return Outcome(document, lambda out: show_losses(out, losses, allow_loss, "would be lost"), 2, error)
        return Outcome(document, partial(_show_plan, source, planned, losses, allow_loss), 2)
    if dry_run:
        done = conversion.plan()
        show_it = partial(_show_plan, source, done, done.losses, allow_loss)
        return Outcome(as_dict(source, done, dry_run=True), show_it)
    with progress_bar(f"convert {source.path}", total) as progress:
        bars = {} if progress is None else {"progress": halved(progress), "check_progress": halved(progress)}
        done = conversion.run(**bars)
    return Outcome(as_dict(source, done, dry_run=False), partial(show, source, done, total, perf_counter() - started))


def halved(progress: Any) -> Any:
    """Count half of the bytes: writing and checking each process about as many bytes as the source has."""
    rest = 0

    def half(done_bytes: int) -> None:
        nonlocal rest
        whole = rest + done_bytes
        progress(whole // 2)
        rest = whole % 2

    return half


def _show_plan(
    source: Target, done: Converted, losses: list[FieldLoss], allow_loss: tuple[str, ...], out: Output
) -> None:
    show_losses(out, losses, allow_loss, "would be lost")
    how = ", byte for byte" if done.copied_as_is else ""
    held = f"{number(done.records, 'record')} ({size(done.size_bytes)})"
    out.line(f"{source.path}: would be converted to {done.path}: {done.format}, {held}{how}")
    show_dialect(out, done.format, done.dialect)
    _show_skipped(out, done, "would be skipped")


def show(source: Target, done: Converted, total_bytes: int, seconds: float, out: Output) -> None:
    show_losses(out, done.losses, tuple(FIELDS), "lost")
    _show_skipped(out, done, "skipped")
    speed = f" ({rate(total_bytes, seconds)})" if total_bytes >= RATE_FROM_BYTES else ""
    held = (number(done.segments, "segment"), number(done.records, "record"), size(done.size_bytes))
    out.line(
        f"{source.path}: converted to {done.path}: ", Cell("ok", "good"),
        f": {done.format}, {', '.join(held)} in {duration(seconds)}{speed}",
    )  # fmt: skip
    show_dialect(out, done.format, done.dialect)


def show_losses(out: Output, losses: list[FieldLoss], allowed: tuple[str, ...], what: str) -> None:
    """Print a table of the fields that the new format cannot store."""
    if not losses:
        return
    rows = [
        (
            Cell(loss.field, "name"), number(loss.count, loss.unit),
            "" if loss.first_offset is None else f"from {offsets(loss.first_offset, loss.first_offset)} on",
            Cell("yes", "good") if loss.field in allowed else Cell("no", "damage"), loss.meaning,
        )
        for loss in losses
    ]  # fmt: skip
    out.table([Column(what), Column("in", right=True), Column("where"), Column("allowed"), Column("what it is")], rows)


def _show_skipped(out: Output, done: Converted, what: str) -> None:
    for skipped in done.skipped:
        place = f"{skipped.path}: byte {skipped.position}: {size(skipped.length)} {what}"
        out.line(Cell(f"  {place}, {offsets(skipped.offset, None)}: {skipped.why}", "warning"))
    if done.torn_bytes:
        out.line(Cell(f"  the last write to the source did not finish: {size(done.torn_bytes)} skipped", "note"))


def as_dict(source: Target, done: Converted, *, dry_run: bool) -> dict[str, Any]:
    return {
        "source": source.path,
        "path": done.path,
        "format": done.format,
        "dialect": done.dialect,
        "records": done.records,
        "bytes": done.size_bytes,
        "segments": done.segments,
        "first_offset": done.first_offset,
        "next_offset": done.next_offset,
        "losses": [loss._asdict() for loss in done.losses],
        "skipped": [skipped._asdict() for skipped in done.skipped],
        "torn_bytes": done.torn_bytes,
        "byte_by_byte": done.copied_as_is,
        "dry_run": dry_run,
    }
