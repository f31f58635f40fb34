"""Act 3: a copy is damaged; verify finds it, repair keeps what is whole, undo takes it back. Then all formats."""

from __future__ import annotations

import os
import shutil

import duramen
from duramen.cli.acts.stage import Stage, files
from duramen.cli.acts.writing import RECORDS, SLOT_BYTES
from duramen.cli.output import Cell, Column
from duramen.cli.samples import Sample, segment_paths
from duramen.formats import FORMATS
from duramen.log.report import Report

TITLE = "Damage and repair"
CUT_BYTES = 20


def play(stage: Stage) -> None:
    stage.say("A copy, to be damaged:")
    stage.duramen("copy", "logs/keratin", "damaged")
    stage.say(f"Now one byte changes on the disk: {flip('damaged', 'keratin')}.")
    broken = files("damaged")
    stage.duramen("verify", "damaged", code=1)
    stage.say("The plan of a repair changes nothing:")
    stage.duramen("repair", "damaged", code=1)
    untouched = files("damaged") == broken
    stage.duramen("repair", "damaged", "--apply")
    stage.duramen("verify", "damaged")
    with duramen.open("damaged") as log:
        kept = sum(batch.num_rows for batch in log.batches()) == RECORDS - 1
    stage.say("It can be taken back, byte for byte:")
    stage.duramen("repair", "damaged", "--undo")
    stage.show(
        "Damage is found with file, byte and offset. The repair kept every whole record, and could be undone.",
        untouched and kept and files("damaged") == broken,
    )
    stage.say(
        "All formats, with a byte changed and with the tail cut off. Then the same without the directory .duramen, "
        "which knows how far records were durable and what each sealed segment looked like:"
    )
    reports = _table(stage)
    stage.show("With .duramen both are noticed in every format.", not any(one.ok for one in reports))


def flip(log: str, format: str) -> str:
    """Change a byte of a payload in the middle of a log; answers where."""
    segments = segment_paths(Sample(format, log, _options(format)))
    path = segments[len(segments) // 2]
    with open(path, "r+b") as file:
        position = file.read().find(b"wood", os.path.getsize(path) // 2)
        file.seek(position)
        file.write(b"W")
    return f"{path}, byte {position}"


def _cut(log: str, format: str) -> None:
    """Cut off the end of a log, in the middle of its last record."""
    path = segment_paths(Sample(format, log, _options(format)))[-1]
    os.truncate(path, os.path.getsize(path) - CUT_BYTES)


def _options(format: str) -> dict[str, int]:
    return {"record_size": SLOT_BYTES} if format == "fixed-slot" else {}


def _table(stage: Stage) -> list[Report]:
    """What verify makes of a byte that changed and of a file that was cut, with the sidecar and without. Answers the
    reports of those with."""
    columns = [Column("format"), Column("byte changed"), Column("tail cut off")]
    columns += [Column("byte, without"), Column("tail, without")]
    rows: list[list[str | Cell]] = []
    with_sidecar = []
    for name in FORMATS:
        cells = []
        for sidecar in (True, False):
            for how in (flip, _cut):
                path = f"more-damage/{name}-{how.__name__.strip('_')}{'' if sidecar else '-without'}"
                shutil.copytree(f"logs/{name}", path)
                how(path, name)
                if not sidecar:
                    shutil.rmtree(f"{path}/.duramen")
                report = duramen.verify(path, format=name, **({} if sidecar else _options(name)))
                with_sidecar += [report] if sidecar else []
                cells.append(_said(report))
        rows.append([Cell(name, "name"), *cells])
    stage.out.blank()
    stage.out.table(columns, rows)
    return with_sidecar


def _said(report: Report) -> Cell:
    """What verify made of it, in a word or two."""
    if not report.ok:
        return Cell("damage found", "good")
    if any(finding.code == "torn-tail" for finding in report.findings):
        return Cell("torn tail", "note")
    return Cell("not noticed", "damage")
