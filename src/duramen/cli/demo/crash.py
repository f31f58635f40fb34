"""Act 2: kill writers, and compare the acknowledged records with the logs."""

from __future__ import annotations

import os

import duramen
from duramen.cli.demo.stage import Stage
from duramen.cli.output import Cell, Column
from duramen.formats import FORMATS

TITLE = "Kill the writer"
ENOUGH = 50
"""Acknowledgements that every writer gets before it is killed."""
SLOT = 24

WRITER = f"""\
import os, sys, threading, duramen

path, format = sys.argv[1:]
options = {{"record_size": {SLOT}}} if format == "fixed-slot" else {{}}
log = duramen.open(path, "a", format=format, **options)

def work(thread):
    for n in range(1_000_000):
        value = (b"thread %d order %d" % (thread, n)).ljust({SLOT})
        offset = log.append(value)           # returns when the record is durable
        os.write(1, b"%d %s\\n" % (offset, value))

for thread in range(4):
    threading.Thread(target=work, args=(thread,)).start()
"""


def play(stage: Stage) -> None:
    stage.say("This program appends with four threads, and writes down each offset that append returns:")
    stage.script("writer.py", WRITER)
    stage.say(
        "It runs five times, once for each format, and is killed while all five write. (Power loss is tested on a "
        "simulated disk: `make torture`.)"
    )
    os.mkdir("killed")
    stage.out.blank()
    writers = [stage.start("writer.py", f"killed/{name}", name, into=f"killed/{name}.acknowledged") for name in FORMATS]
    stage.kill(writers, lambda: all(_lines(name) >= ENOUGH for name in FORMATS))
    stage.duramen("verify", *(f"killed/{name}" for name in FORMATS))
    stage.say(
        "Opening for append runs recovery. It rebuilds missing indexes and cuts off an unfinished last write; in "
        "rustlog, whose records have no checksum, also records that were not durable."
    )
    stage.python("""
import duramen
for name in ("durable-log", "keratin", "rustlog", "osiris", "fixed-slot"):
    with duramen.open(f"killed/{name}", "a") as log:
        print(name, "continues at", log.append(b"after the crash".ljust(24)))
""")
    lost = _table(stage)
    stage.show("Every record acknowledged before the kill is in the log, in every format.", lost == 0)


def _lines(name: str) -> int:
    with open(f"killed/{name}.acknowledged", "rb") as file:
        return file.read().count(b"\n")


def _acknowledged(name: str) -> dict[int, bytes]:
    with open(f"killed/{name}.acknowledged", "rb") as file:
        whole, _, _ = file.read().rpartition(b"\n")
    pairs = (line.split(b" ", 1) for line in whole.split(b"\n"))
    return {int(offset): value for offset, value in pairs}


def _table(stage: Stage) -> int:
    """Compare acknowledged records with the logs; return the number of lost records."""
    columns = [Column("format"), Column("acknowledged", True), Column("of these lost", True)]
    columns += [Column("written, not yet acknowledged", True)]
    rows: list[list[str | Cell]] = []
    all_lost = 0
    for name in FORMATS:
        acknowledged = _acknowledged(name)
        with duramen.open(f"killed/{name}") as log:
            found = {record.offset: record.value for record in log}
        lost = sum(found.get(offset) != value for offset, value in acknowledged.items())
        more = len(found) - len(acknowledged) + lost - 1  # without the record appended after the crash
        count = f"{len(acknowledged):,}"
        rows.append([Cell(name, "name"), count, Cell(str(lost), "damage" if lost else "good"), f"{more}"])
        all_lost += lost
    stage.out.blank()
    stage.out.table(columns, rows)
    return all_lost
