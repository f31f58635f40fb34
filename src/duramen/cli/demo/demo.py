"""`duramen demo`: a tour on scratch logs, in acts, with the verbs of the command line.

The files are in a temporary directory, which is deleted at the end unless ``--keep`` names another one. If an act
fails, the others continue and the exit code is 1. The act on Spark is skipped without pyspark or Java.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager
from functools import partial
from importlib.resources import files
from time import perf_counter
from typing import Annotated, NamedTuple

import typer

from duramen.cli.arguments import Job
from duramen.cli.demo import props
from duramen.cli.demo.samples import write_samples
from duramen.cli.demo.stage import Program, SkippedError, Stage, perform
from duramen.cli.output import Cell, Column, Output, duration
from duramen.errors import UsageError


class Act(NamedTuple):
    title: str
    play: Callable[[Stage], None]


class Played(NamedTuple):
    title: str
    outcome: Cell
    seconds: float
    shown: list[str]


ON_SPARK = "On Spark"

LEFT = {
    "logs": "the six logs, with the group `billing` in logs/keratin",
    "killed": "logs of the killed writers, and the offsets acknowledged to them",
    "damaged": "a damaged log: try `duramen repair damaged --apply`",
    "more-damage": "every format with a byte changed, or its tail cut off",
    "converted": "the converted logs",
    "smaller": "the log after retention and compaction",
    "ingested": "the log that Spark wrote",
    "lake": "the Parquet files",
    "profile.html": "the profile as a page: open it in a browser",
}


def read_acts() -> list[Act]:
    """The acts of ``tour.txt``, each a title and its lines."""
    _, *acts = re.split(r"^# (.*)\n", files(__package__).joinpath("tour.txt").read_text("utf-8"), flags=re.MULTILINE)
    return [Act(title, partial(perform, script)) for title, script in zip(acts[::2], acts[1::2], strict=True)]


def command(
    context: typer.Context,
    keep: Annotated[
        str | None, typer.Option("--keep", metavar="DIR", help="Keep the files in this new directory.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Skip Spark.")] = False,
    samples: Annotated[
        str | None,
        typer.Option("--samples", metavar="DIR", help="Only write a small log of every format to this directory."),
    ] = None,
) -> Job:
    """Show what duramen does on scratch logs: formats, kills, repair, conversion, groups, Spark."""
    if samples is not None:
        if keep is not None or quick:
            raise UsageError("--samples cannot be used with other options")
        return partial(run_samples, samples)
    return partial(run, context.find_root().command.main, keep, quick=quick)


def run_samples(directory: str) -> int:
    """Write the sample logs of the documentation: always the same bytes, one of them damaged."""
    out = Output()
    with _directory(directory):
        for sample in write_samples(directory):
            out.line(f"{sample.path}: {sample.format}")
        sound = os.path.join(directory, "durable-log")
        damaged = shutil.copytree(sound, f"{sound}-flipped")
        out.line(f"{damaged}: the same with one byte changed: {props.flip(damaged, 'durable-log')}")
    return 0


def run(program: Program, keep: str | None = None, *, quick: bool = False, acts: list[Act] | None = None) -> int:
    out = Output()
    stage = Stage(out, program)
    start = perf_counter()
    wanted = [act for act in acts or read_acts() if not (quick and act.title == ON_SPARK)]
    with _directory(keep) as directory, chdir(directory):
        out.paragraph(
            "Duramen is a durable log in six on-disk formats, and a pipeline that processes such logs with Spark. "
            "This is what it does. Every command below really runs; you can type the lines with $ and >>>."
        )
        stage.prompt(f"cd {directory}")
        played = [_play(stage, act, number, len(wanted)) for number, act in enumerate(wanted, 1)]
        _summary(played, out, perf_counter() - start)
        _files(directory, out, kept=keep is not None)
    return 0 if all(one.outcome.style != "damage" for one in played) else 1


def _play(stage: Stage, act: Act, number: int, count: int) -> Played:
    start = perf_counter()
    stage.begin(number, count, act.title)
    outcome = Cell("ok", "good")
    stage.names = props.names(stage)
    try:
        with stage.resources:
            act.play(stage)
    except BrokenPipeError:
        raise
    except SkippedError as reason:
        outcome = Cell("skipped", "warning")
        stage.say(f"Skipped: {reason}")
    except Exception as error:  # noqa: BLE001  a failed act must not hide the others
        outcome = Cell("FAILED", "damage")
        stage.out.blank()
        stage.out.paragraph(f"✘ {type(error).__name__}: {error}", hanging="  ", style="damage")
    return Played(act.title, outcome, perf_counter() - start, stage.shown)


@contextmanager
def _directory(keep: str | None) -> Iterator[str]:
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="duramen-demo-") as scratch:
            yield scratch
        return
    os.makedirs(keep, exist_ok=True)
    if os.listdir(keep):
        raise UsageError("the directory is not empty", path=keep, hint="give a new or empty directory")
    yield os.path.abspath(keep)


def _summary(played: list[Played], out: Output, seconds: float) -> None:
    out.blank()
    out.blank()
    out.line(Cell("━━ What was shown ".ljust(min(out.width, 80), "━"), "heading"))
    out.blank()
    rows: list[list[str | Cell]] = []
    for number, one in enumerate(played, 1):
        first, *rest = one.shown or [""]
        rows.append([f"{number}  {one.title}", one.outcome, duration(one.seconds), first])
        rows += [["", "", "", claim] for claim in rest]
    out.table([Column("act"), Column(""), Column("took", right=True), Column("what it showed")], rows)
    out.blank()
    out.line(f"Total time: {duration(seconds)}.")


def _files(directory: str, out: Output, *, kept: bool) -> None:
    out.blank()
    if not kept:
        out.paragraph("The temporary files were deleted; `duramen demo --keep DIR` keeps them.")
        return
    out.paragraph(f"The files are in {directory}:")
    out.pairs([(name, meaning) for name, meaning in LEFT.items() if os.path.exists(name)])
