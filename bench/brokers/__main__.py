"""`python -m bench.brokers`: Duramen beside RabbitMQ Streams, Kafka and Spark's Kafka source, as ratios inside one run.

``--only`` picks peers, ``--quick`` has a look, ``--markdown`` writes the tables to a file as well.
"""

from __future__ import annotations

import argparse
import datetime
import os
import shutil
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from bench.__main__ import show
from bench.brokers import PICTURE, SUBJECTS, drawing
from bench.brokers.contest import RESULTS
from bench.brokers.ending import ends_on_sigterm
from bench.report import Table, machine


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.brokers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few messages: a look, not a measurement")
    parser.add_argument("--only", nargs="+", choices=SUBJECTS, default=list(SUBJECTS), metavar="PEER",
                        help=", ".join(SUBJECTS))  # fmt: skip
    parser.add_argument("--picture", type=Path, default=PICTURE, help=f"where to draw (default: {PICTURE})")
    parser.add_argument("--markdown", type=Path, help="write the tables to this file, too")
    arguments = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 170)
    scratch = Path(tempfile.mkdtemp(prefix="duramen-bench-brokers-", dir=os.environ.get("TMPDIR")))
    pages = [f"{machine(scratch)}; {now()}"]
    try:
        with ends_on_sigterm():
            console.print(pages[0], highlight=False)
            for name in arguments.only:
                for table in SUBJECTS[name](scratch, arguments.quick):
                    rows = list(table.rows)
                    pages.append(markdown(table, rows))
                    show(console, table._replace(rows=iter(rows)))
            console.print(drawing.draw(RESULTS, arguments.picture), highlight=False, soft_wrap=True)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        if arguments.markdown:
            arguments.markdown.write_text("\n\n".join(pages) + "\n", encoding="utf-8")


def now() -> str:
    """When, and how busy the machine is: a number without it says little."""
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC, load {load}"


def markdown(table: Table, rows: list[list[str]]) -> str:
    lines = [table.columns, ["---", *["---:" for _ in table.columns[1:]]], *rows]
    text = "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
    return f"**{table.title}**\n\n{text}\n\n{table.note}".rstrip()


if __name__ == "__main__":
    main()
