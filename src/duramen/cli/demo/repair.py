"""Act 3: damage a copy; verify finds the damage, repair keeps the intact records, undo restores. Then all formats."""

from __future__ import annotations

import os
import shutil
from typing import Any

import duramen
from duramen.cli.demo.formats import RECORDS, SLOT_BYTES
from duramen.cli.demo.samples import DemoSample, segment_paths
from duramen.cli.demo.stage import Stage, files
from duramen.cli.output import Cell, Column
from duramen.formats import FORMATS
from duramen.log import Report

TITLE = "Damage and repair"
CUT_BYTES = 20


def play(stage: Stage) -> None:
    stage.say("A copy of the log:")
    stage.duramen("copy", "logs/keratin", "damaged")
    stage.say(f"Now one byte changes on the disk: {flip('damaged', 'keratin')}.")
    broken = files("damaged")
    stage.duramen("verify", "damaged", code=1)
    stage.say("Repair first prints a plan and changes nothing:")
    stage.duramen("repair", "damaged", code=1)
    untouched = files("damaged") == broken
    stage.duramen("repair", "damaged", "--apply")
    stage.duramen("verify", "damaged")
    with duramen.open("damaged") as log:
        kept = sum(batch.num_rows for batch in log.batches()) == RECORDS - 1
    stage.say("Undo restores every byte:")
    stage.duramen("repair", "damaged", "--undo")
    stage.show(
        "Damage is reported with file, byte and offset. The repair kept every intact record, and could be undone.",
        untouched and kept and files("damaged") == broken,
    )
    stage.say(
        "All formats, with a byte changed and with the tail cut off. Then the same without the directory .duramen, "
        "which records how far the log is durable and the digest of each sealed segment:"
    )
    reports = _table(stage)
    stage.show("With .duramen both are detected in every format.", not any(one.ok for one in reports))


def flip(log: str, format: str) -> str:
    """Change a byte of a payload in the middle of a log; return its position as text."""
    segments = segment_paths(DemoSample(format, log, _options(format)))
    path = segments[len(segments) // 2]
    with open(path, "r+b") as file:
        position = file.read().find(b"wood", os.path.getsize(path) // 2)
        file.seek(position)
        file.write(b"W")
    return f"{path}, byte {position}"


def _cut(log: str, format: str) -> None:
    """Cut off the end of a log, in the middle of its last record."""
    path = segment_paths(DemoSample(format, log, _options(format)))[-1]
    os.truncate(path, os.path.getsize(path) - CUT_BYTES)


def _options(format: str) -> dict[str, Any]:
    return {"record_size": SLOT_BYTES} if format == "fixed-slot" else {}


def _table(stage: Stage) -> list[Report]:
    """Verify every format with a changed byte and with a cut tail, with and without the sidecar. Return the reports
    with the sidecar."""
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
    """The result of verify in two words."""
    if not report.ok:
        return Cell("damage found", "good")
    if any(finding.code == "torn-tail" for finding in report.findings):
        return Cell("torn tail", "note")
    return Cell("not detected", "damage")
