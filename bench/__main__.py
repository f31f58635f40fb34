"""`python -m bench`: how fast Duramen is, as ratios inside one run. `--only` picks subjects, `--quick` has a look."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

import rich.table
from rich.console import Console

from bench import (
    appending,
    brokers,
    compacting,
    converting,
    counting,
    decoding,
    groups,
    limits,
    opening,
    partitions,
    planning,
    preallocation,
    reading,
    syncing,
    verifying,
)
from bench.report import BARS, Subject, Table, bars, machine

SUBJECTS: dict[str, Subject] = {
    "throughput": reading.throughput,
    "partitions": partitions.partitions,
    "twin": reading.twin,
    "verify": verifying.whole_logs,
    "reads": reading.point_reads,
    "memory": reading.memory,
    "batches": appending.batches,
    "singles": appending.singles,
    "digest": appending.digest,
    "durable": syncing.durable,
    "peers": syncing.peers,
    "threads": syncing.threads,
    "latency": syncing.latency,
    "limits": limits.limits,
    "opening": opening.opening,
    "groups": groups.groups,
    "preallocation": preallocation.preallocation,
    "convert": converting.converting,
    "decode": decoding.decoding,
    "compact": compacting.compacting,
    "metrics": counting.counting,
    "cold": planning.cold,
    "index": planning.index,
    "segments": planning.segments,
}
ON_REQUEST = brokers.SUBJECTS
"""Measured only where `--only` names them: they install servers and start them."""


def show(console: Console, table: Table) -> None:
    shown = rich.table.Table(title=table.title, title_justify="left")
    for number, column in enumerate(table.columns):
        shown.add_column(column, justify="left" if number == 0 else "right")
    for row in table.rows:
        shown.add_row(*row)
        if console.is_terminal:
            console.print(f"[dim]{' · '.join(row)}", end="\r")
    console.print(shown)
    if table.note:
        console.print(table.note, highlight=False)


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small logs: a look, not a measurement")
    parser.add_argument("--only", nargs="+", choices=[*SUBJECTS, *ON_REQUEST], default=list(SUBJECTS),
                        metavar="SUBJECT",
                        help=f"{', '.join(SUBJECTS)}; on request: {', '.join(ON_REQUEST)}")  # fmt: skip
    parser.add_argument("--scan-memory", nargs=2, metavar=("PATH", "FORMAT"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.scan_memory:
        reading.scan_memory(*arguments.scan_memory)
        return
    console = Console(width=None if sys.stdout.isatty() else 150)
    scratch = Path(tempfile.mkdtemp(prefix="duramen-bench-", dir=os.environ.get("TMPDIR")))
    try:
        console.print(machine(scratch), highlight=False)
        for name in arguments.only:
            for table in (SUBJECTS | ON_REQUEST)[name](scratch, arguments.quick):
                show(console, table)
        if BARS:
            show(console, bars())
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
