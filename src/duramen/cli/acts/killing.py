"""Act 2: writers are killed in the middle of their work, and what they were told is compared with what is there."""

from __future__ import annotations

import os

import duramen
from duramen.cli.acts.stage import Stage
from duramen.cli.output import Cell, Column
from duramen.formats import FORMATS

TITLE = "Kill the writer"
ENOUGH = 50
"""Answers that every writer has to have before it is killed."""
SLOT = 24

WRITER = f"""\
import os, sys, threading, duramen

path, format = sys.argv[1:]
options = {{"record_size": {SLOT}}} if format == "fixed-slot" else {{}}
log = duramen.open(path, "a", format=format, **options)

def work(thread):
    for n in range(1_000_000):
        value = (b"thread %d order %d" % (thread, n)).ljust({SLOT})
        offset = log.append(value)           # comes back when it is on the disk
        os.write(1, b"%d %s\\n" % (offset, value))

for thread in range(4):
    threading.Thread(target=work, args=(thread,)).start()
"""


def play(stage: Stage) -> None:
    stage.say("This program appends with four threads, and writes down each answer that it gets:")
    stage.script("writer.py", WRITER)
    stage.say(
        "Five of them are started, one for each format, and killed while all of them write. (What a loss of power "
        "leaves is tried on a simulated disk: `make torture`.)"
    )
    os.mkdir("killed")
    stage.out.blank()
    writers = [stage.start("writer.py", f"killed/{name}", name, into=f"killed/{name}.answers") for name in FORMATS]
    stage.kill(writers, lambda: all(_lines(name) >= ENOUGH for name in FORMATS))
    stage.duramen("verify", *(f"killed/{name}" for name in FORMATS))
    stage.say(
        "Opening for append runs recovery. It makes the missing indexes, and cuts off what was not written whole; in "
        "rustlog, whose records have no checksum, also what was not known to be durable."
    )
    stage.python("""
import duramen
for name in ("durable-log", "keratin", "rustlog", "osiris", "fixed-slot"):
    with duramen.open(f"killed/{name}", "a") as log:
        print(name, "goes on at", log.append(b"after the crash".ljust(24)))
""")
    lost = _table(stage)
    stage.show("Every record that was answered before the kill is there, in every format.", lost == 0)


def _lines(name: str) -> int:
    with open(f"killed/{name}.answers", "rb") as file:
        return file.read().count(b"\n")


def _answers(name: str) -> dict[int, bytes]:
    with open(f"killed/{name}.answers", "rb") as file:
        whole, _, _ = file.read().rpartition(b"\n")
    pairs = (line.split(b" ", 1) for line in whole.split(b"\n"))
    return {int(offset): value for offset, value in pairs}


def _table(stage: Stage) -> int:
    """What was answered against what is there; the number of records that are lost."""
    columns = [Column("format"), Column("answered", True), Column("of these lost", True)]
    columns += [Column("written, but nobody was told yet", True)]
    rows: list[list[str | Cell]] = []
    all_lost = 0
    for name in FORMATS:
        answers = _answers(name)
        with duramen.open(f"killed/{name}") as log:
            found = {record.offset: record.value for record in log}
        lost = sum(found.get(offset) != value for offset, value in answers.items())
        more = len(found) - len(answers) + lost - 1  # the one from after the crash is not of the writer
        rows.append([Cell(name, "name"), f"{len(answers):,}", Cell(str(lost), "damage" if lost else "good"), f"{more}"])
        all_lost += lost
    stage.out.blank()
    stage.out.table(columns, rows)
    return all_lost
