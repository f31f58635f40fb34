"""`duramen demo`: the whole story on scratch logs, one of every format, with the same functions as the other verbs.

Writes the logs, looks at each (info, cat, verify, dump), then damages copies and shows what verify says. Everything
lies in a scratch directory that is gone afterwards, unless ``--keep`` names another one.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from functools import partial
from typing import Annotated, NamedTuple

import typer

from duramen.cli import cat, dump, info, verify
from duramen.cli.arguments import Job, Target
from duramen.cli.output import Cell, Column, Output, size
from duramen.cli.records import Form
from duramen.cli.samples import Sample, segment_paths, write_samples
from duramen.errors import UsageError
from duramen.log.report import Report

_BLOCKS_SHOWN = 3


def command(
    keep: Annotated[
        str | None, typer.Option("--keep", metavar="DIR", help="Put the logs here, and leave them there.")
    ] = None,
) -> Job:
    """Write a small log of every format, look at each, damage copies and check them."""
    return partial(run, keep)


def run(keep: str | None = None) -> int:
    out = Output()
    with _directory(keep) as directory, chdir(directory):
        out.paragraph("Duramen reads and writes five on-disk log formats. Here is the same small log in each of them.")
        rows = [_story(sample, out) for sample in write_samples("")]
        _title("What the logs looked like", out)
        _summary(rows, out)
    out.blank()
    if keep is not None:
        out.line(
            "The logs are in ", Cell(directory, "name"), ": try `duramen info`, `cat`, `verify` and `dump` on them."
        )
    else:
        out.line("The logs were scratch and are gone; `duramen demo --keep DIR` leaves them to play with.")
    return 0


@contextmanager
def _directory(keep: str | None) -> Iterator[str]:
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="duramen-demo-") as scratch:
            yield scratch
        return
    os.makedirs(keep, exist_ok=True)
    if os.listdir(keep):
        raise UsageError("the directory is not empty", path=keep, hint="name a new one: nothing is overwritten")
    yield os.path.abspath(keep)


class _Row(NamedTuple):
    """A format in the table at the end."""

    sample: Sample
    sound: Report
    flipped: Report
    cut: Report


def _story(sample: Sample, out: Output) -> _Row:
    target = Target(sample.path, None, sample.options)
    option = "".join(f" --option {name}={value}" for name, value in sample.options.items())
    _title(sample.format, out)
    _prompt(f"info {sample.path}{option}", out)
    info.run(target)
    _prompt(f"cat {sample.path}{option} -o -3 --output jsonl", out)
    cat.run(target, Form.JSONL, start="-3")
    first = segment_paths(sample)[0]
    _prompt(f"dump {first}{option} | head", out)
    dump.run(Target(first, None, sample.options), most=_BLOCKS_SHOWN)
    _prompt(f"verify {sample.path}{option}", out)
    sound = _verified(target, out)
    flipped = _damaged(sample, "flipped", out, option)
    cut = _damaged(sample, "cut", out, option)
    return _Row(sample, sound, flipped, cut)


def _damaged(sample: Sample, how: str, out: Output, option: str) -> Report:
    """Damage a copy and check it."""
    copy = Sample(sample.format, f"{sample.path}-{how}", sample.options)
    shutil.copytree(sample.path, copy.path)
    segments = segment_paths(copy)
    path = segments[len(segments) // 2] if how == "flipped" else segments[-1]
    with open(path, "r+b") as file:
        data = file.read()
        if how == "flipped":
            position = data.find(b"wood", len(data) // 2)
            file.seek(position)
            file.write(b"W")
            what = f"One byte of a payload is changed: {path}, byte {position}."
        else:
            file.truncate(len(data) - 20)
            what = f"The last 20 bytes are cut off: {path}."
    out.blank()
    out.paragraph(what)
    _prompt(f"verify {copy.path}{option}", out)
    return _verified(Target(copy.path, None, copy.options), out)


def _verified(target: Target, out: Output) -> Report:
    report, seconds = verify.check(target)
    verify.show(report, seconds, out)
    return report


def _title(text: str, out: Output) -> None:
    out.blank()
    out.line(Cell(f"━━ {text} {'━' * max(min(out.width, 80) - len(text) - 5, 0)}", "heading"))


def _prompt(command_line: str, out: Output) -> None:
    out.blank()
    out.line(Cell(f"$ duramen {command_line}", "prompt"))


def _summary(rows: list[_Row], out: Output) -> None:
    columns = [Column("format"), *(Column(t, right=True) for t in ("segments", "records", "size"))]
    columns += [Column("sound"), Column("byte changed"), Column("tail cut off")]
    table: list[list[str | Cell]] = [
        [
            row.sample.format, str(len(row.sound.segments)), f"{row.sound.records:,}", size(row.sound.bytes),
            *(_said(report) for report in (row.sound, row.flipped, row.cut)),
        ]
        for row in rows
    ]  # fmt: skip
    out.table(columns, table)


def _said(report: Report) -> Cell:
    """The finding that matters most, or that there is none."""
    verdict = verify.verdict(report)
    if not report.findings:
        return Cell("ok", verdict.style)
    ranks = ("damage", "warning", "note")
    worst = min(report.findings, key=lambda finding: ranks.index(finding.severity))
    return Cell(worst.code, worst.severity)
