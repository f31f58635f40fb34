"""`duramen demo`: the whole story on scratch logs, in acts, with the same verbs that anybody can type.

Each act is a module of `acts`. Everything lies in a scratch directory that is gone afterwards, unless ``--keep`` names
another one. An act that fails says so, the others go on, and the exit code is 1. Without pyspark or Java the act on
Spark is skipped.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager
from functools import partial
from time import perf_counter
from typing import Annotated, NamedTuple

import typer

from duramen.cli.acts import consuming, converting, killing, lake, repairing, shrinking, writing
from duramen.cli.acts.stage import SkippedError, Stage
from duramen.cli.arguments import Job
from duramen.cli.output import Cell, Column, Output, duration
from duramen.cli.samples import write_samples
from duramen.errors import UsageError


class Act(NamedTuple):
    title: str
    play: Callable[[Stage], None]


class Played(NamedTuple):
    """An act in the table at the end."""

    title: str
    outcome: Cell
    seconds: float
    shown: list[str]


ACTS = [Act(act.TITLE, act.play) for act in (writing, killing, repairing, converting, consuming, shrinking, lake)]
ON_SPARK = lake.TITLE

LEFT = {
    "logs": "the five logs, with the group `billing` in logs/keratin",
    "killed": "what the killed writers left, and the answers they had got",
    "damaged": "a damaged log: try `duramen repair damaged --apply`",
    "more-damage": "every format with a byte changed, or its tail cut off",
    "converted": "the logs that were converted",
    "smaller": "the log after retention and compaction",
    "ingested": "the log that Spark wrote",
    "lake": "the Parquet files",
    "profile.html": "the page with pictures: open it in a browser",
}


def command(
    keep: Annotated[
        str | None, typer.Option("--keep", metavar="DIR", help="Put the files here, and leave them there.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Leave out Spark.")] = False,
    samples: Annotated[
        str | None,
        typer.Option("--samples", metavar="DIR", help="Only write a small log of every format there."),
    ] = None,
) -> Job:
    """Show all of this on scratch logs: formats, kills, repair, conversion, groups, Spark."""
    if samples is not None:
        if keep is not None or quick:
            raise UsageError("--samples goes with nothing else")
        return partial(run_samples, samples)
    return partial(run, keep, quick=quick)


def run_samples(directory: str) -> int:
    """The logs that the documentation plays with: the same bytes every time. One of them is damaged."""
    out = Output()
    with _directory(directory):
        for sample in write_samples(directory):
            out.line(f"{sample.path}: {sample.format}")
        sound = os.path.join(directory, "durable-log")
        damaged = shutil.copytree(sound, f"{sound}-flipped")
        out.line(f"{damaged}: the same with one byte changed: {repairing.flip(damaged, 'durable-log')}")
    return 0


def run(keep: str | None = None, *, quick: bool = False, acts: list[Act] | None = None) -> int:
    out = Output()
    stage = Stage(out)
    start = perf_counter()
    wanted = [act for act in acts or ACTS if not (quick and act.title == ON_SPARK)]
    with _directory(keep) as directory, chdir(directory):
        out.paragraph(
            "Duramen is a durable log in five on-disk formats, and a pipeline that carries such logs through Spark. "
            "Here is what it does. Every command is really run; lines with $ and >>> can be typed."
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
    try:
        act.play(stage)
    except BrokenPipeError:
        raise
    except SkippedError as reason:
        outcome = Cell("skipped", "warning")
        stage.say(f"Skipped: {reason}")
    except Exception as error:  # noqa: BLE001  an act that fails must not hide the others
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
        raise UsageError("the directory is not empty", path=keep, hint="name a new one: nothing is overwritten")
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
    out.line(f"All of it took {duration(seconds)}.")


def _files(directory: str, out: Output, *, kept: bool) -> None:
    out.blank()
    if not kept:
        out.paragraph("The files were scratch and are gone; `duramen demo --keep DIR` leaves them to play with.")
        return
    out.paragraph(f"The files are in {directory}:")
    out.pairs([(name, meaning) for name, meaning in LEFT.items() if os.path.exists(name)])
