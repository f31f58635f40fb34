"""`duramen verify`: check every byte of one or more logs and print what is wrong, where, and what to do.

Exit code 0 if every log is sound (a torn tail is not damage), 1 if one is damaged, 3 if one cannot be read. With
several logs, all are checked and the highest code is returned.
"""

from __future__ import annotations

import posixpath
from functools import partial
from time import perf_counter
from typing import Annotated

import typer

from duramen.cli.arguments import FormatName, FormatOptions, Job, Json, Target, Targets
from duramen.cli.outcome import Outcome, run_each
from duramen.cli.output import Cell, Output, duration, number, offsets, progress_bar, rate, size
from duramen.errors import CorruptionError
from duramen.formats import FORMATS, Severity
from duramen.log import Finding, Report, list_log, verify_log

FINDINGS_SHOWN = 50
"""Findings printed per log; JSON lists all."""
RATE_FROM_BYTES = 1 << 20
"""Smaller logs show no speed, because start-up dominates it."""
_INDENT = 11


def command(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="PATH…", help="Logs, segment files, ROOT#topic, stores or directories of logs."),
    ],
    format: FormatName = None,
    option: FormatOptions = None,
    publish: Annotated[bool, typer.Option(help="Store a summary in the sidecar, if the log has one.")] = True,
    json: Json = False,
) -> Job:
    """Check every byte of a log.

    Exit code 0: sound; a torn tail (an unfinished last write) is not damage. 1: damage. 3: cannot be read.
    With several logs, all are checked and the highest code is returned.
    """
    return partial(run, Target.all_of(paths, format, option), publish=publish, json=json)


def run(targets: Targets, *, publish: bool = True, json: bool = False) -> int:
    started, reports = perf_counter(), []

    def work(target: Target) -> Outcome:
        report, seconds = check(target, publish=publish)
        reports.append(report)
        return Outcome(report.as_dict(), partial(show, report, seconds), 0 if report.ok else 1)

    code = run_each(targets, work, json=json, headings=False)
    if targets.is_many and not json:
        show_total(reports, len(targets.all), perf_counter() - started)
    return code


def check(target: Target, *, publish: bool = True) -> tuple[Report, float]:
    """Verify one log; return the report and the seconds it took."""
    try:
        name: str | None = target.codec.name
        total_bytes = sum(s.segment.size_bytes for s in list_log(target.disk, target.path, target.codec).segments)
    except CorruptionError:  # unreadable sidecar: verify reports it
        name, total_bytes = target.format, 0
    start = perf_counter()
    with progress_bar(f"verify {target.path}", total_bytes) as progress:
        report = verify_log(target.path, format=name, progress=progress, publish=publish, **target.options)
    return report, perf_counter() - start


# --- text


def show_total(reports: list[Report], logs: int, seconds: float) -> None:
    """Print one line about several logs."""
    damaged, unread = sum(not report.ok for report in reports), logs - len(reports)
    said = [Cell(f"{len(reports) - damaged} ok", "good")]
    said += [Cell(f"{damaged} damaged", "damage")] if damaged else []
    said += [Cell(f"{unread} cannot be checked", "damage")] if unread else []
    held = number(sum(report.records for report in reports), "record"), size(sum(report.bytes for report in reports))
    parts = [part for cell in said for part in (", ", cell)][1:]
    Output().line(Cell(number(logs, "log"), "heading"), ": ", *parts, f": {', '.join(held)} in {duration(seconds)}")


def show(report: Report, seconds: float, out: Output) -> None:
    said, summary = verdict(report), _summary(report, seconds)
    if len(report.path) + len(said.text) + len(summary) + 4 < out.width:
        out.line(f"{report.path}: ", said, f": {summary}")
    else:
        out.line(f"{report.path}: ", said)
        out.line(f"  {summary}")
    if not FORMATS[report.format].capabilities.record_checksum:
        out.paragraph(f"{report.format} has no checksum: {report.checksum.removeprefix('none: ')}.", indent="  ")
    for finding in report.findings[:FINDINGS_SHOWN]:
        _finding(out, report, finding)
    rest = len(report.findings) - FINDINGS_SHOWN
    if rest > 0:
        out.line(Cell(f"  … and {number(rest, 'more finding')}: --json lists them all", "label"))
    if report.findings:
        codes = dict.fromkeys(f"#{finding.code}" for finding in report.findings)
        out.paragraph(f"more: docs/findings.md{', '.join(codes)}", indent="  ", style="label")


def verdict(report: Report) -> Cell:
    worst = {finding.severity for finding in report.findings}
    if Severity.DAMAGE in worst:
        return Cell("DAMAGED", "damage")
    if Severity.WARNING in worst:
        return Cell("ok, with warnings", "warning")
    return Cell("ok, with notes" if worst else "ok", "good")


def _summary(report: Report, seconds: float) -> str:
    found = (number(len(report.segments), "segment"), number(report.records, "record"), size(report.bytes))
    speed = f" ({rate(report.bytes, seconds)})" if report.bytes >= RATE_FROM_BYTES and seconds else ""
    return f"{report.format}, {', '.join(found)}{f' in {duration(seconds)}{speed}' if seconds else ''}"


def _finding(out: Output, report: Report, finding: Finding) -> None:
    """Print severity, code, position, meaning and action on two or more lines."""
    place = [relative(finding.path, report.path)]
    if finding.position is not None:
        place.append(f"byte {finding.position}")
    if finding.first_offset is not None:
        place.append(offsets(finding.first_offset, finding.last_offset))
    where = ", ".join(place)
    head = (Cell(f"  {finding.severity:<9}", finding.severity), Cell(finding.code, "name"))
    start = " " * _INDENT
    if _INDENT + len(finding.code) + 2 + len(where) < out.width:
        out.line(*head, "  ", Cell(where, "position"))
    else:
        out.line(*head)
        out.line(start, Cell(where, "position"))
    out.paragraph(finding.message, indent=start)
    out.paragraph(f"→ {finding.action}", indent=start, hanging=start + "  ", style="label")


def relative(path: str, root: str) -> str:
    """A path relative to its log."""
    return path if path == root else path.removeprefix(posixpath.join(root, ""))
