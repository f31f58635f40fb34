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
from itertools import islice
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
    """Show all of this on scratch logs, one of every format."""
    return partial(run, keep)


def run(keep: str | None = None) -> int:
    out = Output()
    with _directory(keep) as directory, chdir(directory):
        out.paragraph("Duramen reads and writes five on-disk log formats. Here is the same small log in each of them.")
        rows = [_story(sample, out) for sample in write_samples("")]
        _title("what verify said", out)
        _summary(rows, out)
        out.blank()
        out.paragraph("rustlog has no checksum: a changed payload cannot be told from the file alone.")
    out.blank()
    if keep is None:
        out.paragraph("The logs were scratch and are gone; `duramen demo --keep DIR` leaves them to play with.")
    else:
        out.paragraph(f"The logs are in {directory}: try `duramen info`, `cat`, `verify` and `dump` on them.")
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
    first = Target(segment_paths(sample)[0], None, sample.options)
    *_, behind = islice(dump.DumpedFile.open(first).blocks(), _BLOCKS_SHOWN + 1)
    _prompt(f"dump {first.path}{option} --to {behind.position}", out)
    dump.run(first, to=behind.position)
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
    columns = [Column("format"), Column("records", right=True), Column("size", right=True)]
    columns += [Column("as written"), Column("byte changed"), Column("tail cut off")]
    table: list[list[str | Cell]] = [
        [
            row.sample.format, f"{row.sound.records:,}", size(row.sound.bytes), _said(row.sound, "ok"),
            _said(row.flipped, "not noticed"), _said(row.cut, "not noticed"),
        ]
        for row in rows
    ]  # fmt: skip
    out.table(columns, table)


def _said(report: Report, nothing: str) -> Cell:
    """What verify made of it, in a word or two."""
    if not report.ok:
        return Cell("damage found", "damage")
    if any(finding.code == "torn-tail" for finding in report.findings):
        return Cell("torn tail", "note")
    return Cell(nothing, "good" if nothing == "ok" else "warning")
