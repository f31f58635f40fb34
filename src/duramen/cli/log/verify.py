"""`duramen verify`: check every byte of one or more logs and print what is wrong, where, and what to do.

Exit code 0 if every log is sound (a torn tail is not damage), 1 if one is damaged, 3 if one cannot be read. With
several logs, all are checked and the highest code is returned.
"""

from __future__ import annotations

import posixpath
import sys
from functools import partial
from time import perf_counter
from typing import Annotated

import typer

from duramen.cli.arguments import FormatName, FormatOptions, Job, Json, Target
from duramen.cli.output import Cell, Output, duration, number, offsets, progress_bar, rate, safe, size, to_json
from duramen.errors import CorruptionError, DuramenError
from duramen.formats import FORMATS, Severity
from duramen.log import Finding, Report, list_log, verify_log

FINDINGS_SHOWN = 50
"""Findings printed per log; JSON lists all."""
RATE_FROM_BYTES = 1 << 20
"""Smaller logs show no speed, because start-up dominates it."""
_INDENT = 11


def command(
    paths: Annotated[list[str], typer.Argument(metavar="PATH…", help="Logs: directories or single segment files.")],
    format: FormatName = None,
    option: FormatOptions = None,
    publish: Annotated[bool, typer.Option(help="Store a summary in the sidecar, if the log has one.")] = True,
    json: Json = False,
) -> Job:
    """Check every byte of a log.

    Exit code 0: sound; a torn tail (an unfinished last write) is not damage. 1: damage. 3: cannot be read.
    With several logs, all are checked and the highest code is returned.
    """
    return partial(run, [Target.of(path, format, option) for path in paths], publish=publish, json=json)


def run(targets: list[Target], *, publish: bool = True, json: bool = False) -> int:
    out = Output()
    code, documents = 0, []
    for target in targets:
        try:
            report, seconds = check(target, publish=publish)
        except DuramenError as error:
            if len(targets) == 1:
                raise
            out.flush()
            print(f"duramen: {safe(str(error))}", file=sys.stderr)
            documents.append({"path": target.path, "ok": False, "error": str(error)})
            code = max(code, error.exit_code)
            continue
        documents.append(report.as_dict())
        code = max(code, 0 if report.ok else 1)
        if not json:
            show(report, seconds, out)
    if json:
        out.write(to_json(documents if len(targets) > 1 else documents[0], indent=2) + "\n")
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
    return path if path == root else path.removeprefix(posixpath.join(root, ""))
