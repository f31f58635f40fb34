"""`python -m bench.spark`: how fast logs go through Spark, as ratios inside one run on two cores.

``--only`` picks subjects, ``--quick`` has a look, ``--scale 0.1 1 8`` measures how work grows with the log (in GB).
Exit code 1 when a bar is missed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import rich.table
from pyspark.sql import SparkSession
from rich.console import Console

from bench.report import at_least, at_most, machine
from bench.spark import beside, committing, decoding, exporting, reading, scale, sink, trigger, verifying
from duramen.spark.local_session import session

PAYLOADS = (100, 1024)
Figures = list[tuple[str, float, float | None]]
CONF = {"spark.driver.memory": "6g", "spark.sql.shuffle.partitions": "4"}


def read(spark: SparkSession, scratch: Path, quick: bool) -> Figures:
    figures: Figures = []
    part, rounds = (16, 2) if quick else (1, reading.ROUNDS)
    for row in reading.measure(spark, scratch, part, rounds):
        for ratio in row.ratios:
            figures.append((f"{row.name}, {row.payload_bytes} B, × {ratio.against}", ratio.value, ratio.bar))
        figures.append((f"{row.name}, {row.payload_bytes} B, M rows/s", row.rows_per_s / 1e6, None))
    return figures


def write(spark: SparkSession, scratch: Path, quick: bool) -> Figures:
    size, rounds = (32 << 20, 1) if quick else (sink.TOTAL_BYTES, sink.ROUNDS)
    return [figure for payload in PAYLOADS for figure in sink.measure(spark, scratch, payload, size, rounds)]


def verify(spark: SparkSession, scratch: Path, quick: bool) -> Figures:
    size, rounds = (256 << 20, 2) if quick else (2 << 30, 5)
    return [figure for payload in PAYLOADS for figure in verifying.measure(spark, scratch, payload, size, rounds)]


def export(spark: SparkSession, scratch: Path, quick: bool) -> Figures:
    size, rounds = (64 << 20, 1) if quick else (1 << 30, 3)
    return [figure for payload in PAYLOADS for figure in exporting.measure(spark, scratch, payload, size, rounds)]


def compare(spark: SparkSession, scratch: Path, quick: bool) -> Figures:
    size, rounds = (64 << 20, 1) if quick else (1 << 30, 3)
    return [figure for payload in PAYLOADS for figure in beside.measure(spark, scratch, payload, size, rounds)]


def commit(spark: SparkSession, scratch: Path, quick: bool) -> Figures:
    size, rounds = (64 << 20, 2) if quick else (512 << 20, 5)
    return [figure for payload in PAYLOADS for figure in committing.measure(scratch, payload, size, rounds)]


def decode(spark: SparkSession, scratch: Path, quick: bool) -> Figures:
    size, rounds = (64 << 20, 2) if quick else (1 << 30, 5)
    return [figure for payload in PAYLOADS for figure in decoding.measure(spark, scratch, payload, size, rounds)]


def plan(spark: SparkSession, scratch: Path, quick: bool) -> Figures:
    return trigger.measure(scratch, 1000, 2) if quick else trigger.measure(scratch)


SUBJECTS: dict[str, Callable[[SparkSession, Path, bool], Figures]] = {
    "plan": plan, "cpu": compare, "decode": decode, "read": read, "verify": verify, "export": export, "sink": write,
    "commit": commit,
}  # fmt: skip


def show(console: Console, title: str, columns: list[str], rows: Iterator[list[str]]) -> None:
    table = rich.table.Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right")
    for row in rows:
        table.add_row(*row)
    console.print(table)


UPPER = ("cpu", "decode")
"""Subjects whose bars are upper bounds."""


def _rows(subject: str, figures: Figures) -> Iterator[list[str]]:
    judged = at_most if subject in UPPER else at_least
    for name, value, bar in figures:
        yield [name, f"{value:,.2f}", "" if bar is None else judged(value, bar)]


def _missed(subject: str, figures: Figures) -> int:
    bars = [(value, bar) for _, value, bar in figures if bar is not None]
    return sum(value > bar if subject in UPPER else value < bar for value, bar in bars)


def _scale_rows(runs: list[scale.Run]) -> Iterator[list[str]]:
    for run in runs:
        commit = "" if run.commit_s is None else f"{run.commit_s:.3f}"
        rate = run.gigabytes / run.seconds
        tasks = "" if run.tasks is None else str(run.tasks)
        yield [
            run.job, f"{run.gigabytes:g}", tasks, f"{run.seconds:.2f}", f"{rate:.2f}",
            f"{run.worker_mib:.0f}", commit,
        ]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.spark", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small logs: a look, not a measurement")
    parser.add_argument(
        "--only", nargs="+", choices=SUBJECTS, default=None, metavar="SUBJECT", help=", ".join(SUBJECTS)
    )
    parser.add_argument("--scale", nargs="+", type=float, metavar="GB", help="measure at these sizes instead")
    parser.add_argument("--master", default="local[2]")
    arguments = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 130)
    scratch = Path(tempfile.mkdtemp(prefix="duramen-bench-spark-", dir=os.environ.get("TMPDIR")))
    missed = 0
    root = str(Path(__file__).resolve().parents[2])  # workers import the sources that rows are measured against
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    try:
        console.print(machine(scratch), highlight=False)
        with session(arguments.master, CONF) as spark:
            if arguments.scale:
                runs = scale.measure(spark, scratch, arguments.scale)
                columns = ["job", "GB", "tasks", "s", "GB/s", "MiB per worker", "commit s"]
                show(console, "How work grows", columns, _scale_rows(runs))
                return 0
            for name in arguments.only or SUBJECTS:
                figures = SUBJECTS[name](spark, scratch, arguments.quick)
                missed += _missed(name, figures)
                show(console, name, ["", "", "bar"], _rows(name, figures))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
