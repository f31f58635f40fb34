"""`duramen copy`: a consistent copy of a log, also while it is written; optionally up to an offset or a time.

The copy is checked, then appears completely or not at all, also after ctrl-C. Exit code 1 if the source is damaged, 2
if the target exists.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from time import perf_counter
from typing import Annotated, Any

import typer

from duramen.cli.arguments import DryRun, FormatName, FormatOptions, Job, Json, Target
from duramen.cli.log.convert import RATE_FROM_BYTES, halved
from duramen.cli.output import Cell, Output, duration, number, offsets, progress_bar, rate, size, to_json
from duramen.log import Copied, Copy


def command(
    src: Annotated[str, typer.Argument(metavar="SRC", help="The log to copy: its directory, or one segment file.")],
    dst: Annotated[str, typer.Argument(metavar="DST", help="Directory of the copy; must not exist.")],
    until_offset: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Copy the records before this offset.")
    ] = None,
    until_time: Annotated[
        str | None,
        typer.Option(metavar="T", help="Stop at the first record with this time or a later one."),
    ] = None,
    format: FormatName = None,
    option: FormatOptions = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> Job:
    """Copy a log, also while it is being written.

    The copy contains every record acknowledged before it started. A time is ISO 8601 or epoch milliseconds. Cursors,
    groups and the ledger are copied, too, unless the copy ends before the log does.
    """
    return partial(run, Target.of(src, format, option), dst, until_offset, until_time, dry_run=dry_run, json=json)


def run(
    source: Target, dst: str, until_offset: int | None, until_time: str | None, *, dry_run: bool, json: bool
) -> int:
    started = perf_counter()
    copy = Copy(
        source.path, dst, until_offset=until_offset, until_time=until_time, format=source.format, options=source.options
    )
    total = copy.source.size_bytes
    if dry_run:
        plan = {"source": source.path, "path": dst, "format": copy.source.fmt.name, "bytes": total, "dry_run": True}
        if json:
            Output().write(to_json(plan, indent=2) + "\n")
        else:
            Output().line(f"{source.path}: would be copied to {dst}: {plan['format']}, at most {size(total)}")
        return 0
    with progress_bar(f"copy {source.path}", total) as progress:
        bars: dict[str, Any] = {}
        if progress is not None:
            bars = {"progress": halved(progress), "check_progress": halved(progress)}
        done = copy.run(**bars)
    if json:
        Output().write(to_json({"source": source.path, **asdict(done), "dry_run": False}, indent=2) + "\n")
    else:
        show(source, done, perf_counter() - started)
    return 0


def show(source: Target, done: Copied, seconds: float) -> None:
    out = Output()
    speed = f" ({rate(done.size_bytes, seconds)})" if done.size_bytes >= RATE_FROM_BYTES else ""
    held = [number(done.segments, "segment"), number(done.records, "record"), size(done.size_bytes)]
    if done.next_offset > done.first_offset:
        held.insert(2, offsets(done.first_offset, done.next_offset - 1))
    out.line(
        f"{source.path}: copied to {done.path}: ", Cell("ok", "good"),
        f": {done.format}, {', '.join(held)} in {duration(seconds)}{speed}",
    )  # fmt: skip
    if done.state:
        out.line(f"  {number(len(done.state), 'file')} of consumers and writers copied")
    if done.left_behind:
        out.line(f"  {number(done.left_behind, 'file')} of consumers and writers not copied: the copy ends earlier")
    if done.torn_bytes:
        out.line(Cell(f"  the last write to the source did not finish: {size(done.torn_bytes)} skipped", "note"))
