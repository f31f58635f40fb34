"""`duramen compact`: keep only the newest record of every key in the sealed segments of a log.

Ctrl-C stops it between two segments; the next run continues there.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Annotated

import typer

from duramen.cli.arguments import DryRun, FormatName, FormatOptions, Job, Json, LogDirectories, Target
from duramen.cli.outcome import Outcome, run_each
from duramen.cli.output import Cell, Output, number, progress_bar, size
from duramen.cli.quantities import parse_age_ms, parse_bytes
from duramen.cli.signals import held
from duramen.consumers import ConsumableLog, ConsumableWritableLog
from duramen.log import DEFAULT_MEMORY_BYTES, Compaction, CompactionReport, Progress, plan_compaction
from duramen.log import check_compaction as check_format


def command(
    path: LogDirectories,
    key: Annotated[
        str,
        typer.Option(
            "--key", metavar="KEY", help="How to get a record's key: key, prefix:N, delimiter:TEXT or json:PATH."
        ),
    ] = "key",
    drop_keyless: Annotated[
        bool, typer.Option("--drop-keyless", help="Remove records without a key (default: keep).")
    ] = False,
    tombstone_delay: Annotated[
        str,
        typer.Option("--tombstone-delay", metavar="A", help="How long to keep keys with a null or empty value."),
    ] = "1d",
    min_lag: Annotated[
        str, typer.Option("--min-lag", metavar="A", help="Skip segments that contain a younger record.")
    ] = "0s",
    min_dirty: Annotated[
        float,
        typer.Option("--min-dirty", metavar="R", help="Do nothing if less than this part (0 to 1) of the log is new."),
    ] = 0.0,
    memory: Annotated[
        str, typer.Option("--memory", metavar="B", help="Memory for the table of keys; further keys spill to disk.")
    ] = f"{DEFAULT_MEMORY_BYTES >> 20}MiB",
    dry_run: DryRun = False,
    format: FormatName = None,
    option: FormatOptions = None,
    json: Json = False,
) -> Job:
    """Keep only the newest record of every key.

    Kept records keep their offsets and times. Only sealed segments are compacted; run `duramen seal` first to include
    the active one.
    """
    how = Compaction(
        key, "drop" if drop_keyless else "keep", parse_age_ms("--tombstone-delay", tombstone_delay),
        parse_age_ms("--min-lag", min_lag), min_dirty, parse_bytes("--memory", memory),
    )  # fmt: skip
    return partial(run_each, Target.all_of([path], format, option), partial(run, how=how, dry_run=dry_run), json=json)


def run(target: Target, *, how: Compaction, dry_run: bool = False) -> Outcome:
    check_format(target.codec, how, target.path)
    kind = ConsumableLog if dry_run else ConsumableWritableLog  # a dry run needs no lock and writes nothing
    with kind(target.path, format=target.codec.name, **target.options) as log:
        total = 2 * sum(segment.size_bytes for segment in log.segments if segment.sealed)
        with progress_bar(f"compact {target.path}", total) as progress:
            if isinstance(log, ConsumableWritableLog):
                report = _compact(log, how, progress)
            else:
                report = plan_compaction(log, how, progress)
    needs = [need._asdict() for need in report.held_by]
    document = {"path": target.path, "dry_run": dry_run, **asdict(report), "held_by": needs}
    return Outcome(document, partial(show, report, dry_run=dry_run))


def _compact(log: ConsumableWritableLog, how: Compaction, progress: Progress | None) -> CompactionReport:
    with held() as check:

        def count(read_bytes: int) -> None:
            if progress is not None:
                progress(read_bytes)
            check()  # between two segments

        return log.compact(how, progress=count)


def show(report: CompactionReport, out: Output, *, dry_run: bool) -> None:
    if report.held_by:
        names = "; ".join(str(need) for need in report.held_by)
        out.line(Cell(f"held back by {names}", "warning"))
    if not report.changed:
        out.line(f"nothing to do: {report.note}")
        return
    would = "would be " if dry_run else ""
    removed = report.records_before - report.records_after
    out.line(
        f"{number(removed, 'record')} of {report.records_before:,} {would}removed; "
        f"{size(report.bytes_before)} {'would become' if dry_run else 'became'} {size(report.bytes_after)}"
    )
    out.pairs(
        [
            ("keys", f"{report.keys:,}"),
            ("without a key", f"{report.keyless:,}"),
            ("tombstones", f"{report.tombstones_removed:,} removed"),
            ("segments", _segments(report, dry_run)),
        ]
    )


def _segments(report: CompactionReport, dry_run: bool) -> str | Cell:
    if dry_run:
        return f"{report.segments:,} sealed"
    return f"{report.segments:,} sealed, {report.rewritten:,} rewritten, {report.removed:,} emptied and removed"
