"""What the tour calls without showing it: it writes the orders, damages copies, and prints tables of all formats.

Every function here is a name of the tour's hidden lines (``!`` and ``?``).
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import duramen
from duramen.cli.demo.samples import WOOD, DemoSample, segment_paths
from duramen.cli.demo.stage import SkippedError, Stage
from duramen.cli.output import Cell, Column, Output, size, to_json
from duramen.errors import DuramenError
from duramen.formats import FORMATS
from duramen.log import Report

RECORDS = 3_000
SLOT_BYTES = 256
CUT_BYTES = 20
NOTES = ("planed", "no knots", "für Sofia", "by Friday", "quarter-sawn")
OPENING, OPEN = datetime(2026, 3, 2, 8, tzinfo=UTC), timedelta(hours=10)


def names(stage: Stage) -> dict[str, Any]:
    """The names of an act."""
    own = (files, flip, lines, read, show_damage, show_formats, show_lost, start_spark, values, write_orders)
    return {
        "__name__": "demo",
        "FORMATS": tuple(FORMATS),
        "stage": stage,
        **{function.__name__: function for function in own},
    }


def write_orders() -> None:
    """Write the orders as JSON lines with key, headers and time, as plain lines, and as lines of equal length."""
    os.mkdir("logs")
    with (
        open("orders.jsonl", "w", encoding="utf-8") as full,
        open("orders.txt", "w", encoding="utf-8") as plain,
        open("padded.txt", "wb") as padded,
    ):
        for record in _orders():
            full.write(to_json(record) + "\n")
            plain.write(record["value"] + "\n")
            padded.write(record["value"].encode().ljust(SLOT_BYTES) + b"\n")


def _orders() -> Iterator[dict[str, Any]]:
    """Orders of one day, always the same: two rush hours and a few frequent customers."""
    chance = random.Random(RECORDS)
    rushes = [chance.betavariate(2, 5) if chance.random() < 0.6 else chance.betavariate(8, 2) for _ in range(RECORDS)]
    for number, moment in enumerate(sorted(rushes)):
        notes = [chance.choice(NOTES) for _ in range(min(int(chance.expovariate(0.8)), 9))]
        wood = chance.choices(WOOD, (5, 3, 3, 2, 1))[0]
        order = {"order": number, "wood": wood, "boards": chance.randint(1, 9), "note": ", ".join(notes)}
        yield {
            "timestamp": (OPENING + moment * OPEN).isoformat(timespec="milliseconds"),
            "key": f"customer-{min(int(chance.paretovariate(0.9)), 40)}",
            "value": to_json(order),
            "headers": [{"key": "source", "value": "web" if chance.random() < 0.7 else "till"}],
        }


# --- what a claim compares


def read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


def lines(path: str) -> int:
    """The number of whole lines of a file that another process writes, or has yet to create."""
    return read(path).count("\n") if os.path.exists(path) else 0


def values(path: str, column: str = "value") -> list[Any]:
    """One column of a log."""
    with duramen.open(path) as log:
        return [getattr(record, column) for record in log]


def files(directory: str) -> dict[str, bytes]:
    """The bytes of every file below a directory, except the sidecar's."""
    found = {}
    for folder, folders, names in os.walk(directory):
        folders[:] = [name for name in folders if name != ".duramen"]
        for name in names:
            path = os.path.join(folder, name)
            with open(path, "rb") as file:
                found[os.path.relpath(path, directory)] = file.read()
    return found


# --- damage


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


# --- tables of all formats


def show_formats(out: Output) -> list[int]:
    """Compare the formats; return the number of records of each log."""
    columns = [Column("format"), Column("records", True), Column("segments", True), Column("size", True)]
    columns += [Column("time"), Column("key, headers"), Column("checksum")]
    rows: list[list[str | Cell]] = []
    counts = []
    for name in FORMATS:
        able = FORMATS[name].capabilities
        with duramen.open(f"logs/{name}") as log:
            counts.append(log.next_offset - log.first_offset)
            bytes_ = sum(segment.size_bytes for segment in log.segments)
            time = {"ms": "ms", "us": "µs"}.get(able.timestamps or "", "–")
            row: list[str | Cell] = [Cell(name, "name"), f"{counts[-1]:,}", str(len(log.segments)), size(bytes_), time]
            rows.append([*row, "yes" if able.key else "–", "yes" if able.record_checksum else "none"])
    out.blank()
    out.table(columns, rows)
    return counts


def show_lost(out: Output) -> int:
    """Compare acknowledged records with the logs of the killed writers; return the number of lost records."""
    columns = [Column("format"), Column("acknowledged", True), Column("of these lost", True)]
    columns += [Column("written, not yet acknowledged", True)]
    rows: list[list[str | Cell]] = []
    all_lost = 0
    for name in FORMATS:
        whole, _, _ = read(f"killed/{name}.acknowledged").rpartition("\n")
        acknowledged = dict(line.split(" ", 1) for line in whole.split("\n"))
        with duramen.open(f"killed/{name}") as log:
            found = {str(record.offset): (record.value or b"").decode() for record in log}
        lost = sum(found.get(offset) != value for offset, value in acknowledged.items())
        more = len(found) - len(acknowledged) + lost - 1  # without the record appended after the crash
        count = f"{len(acknowledged):,}"
        rows.append([Cell(name, "name"), count, Cell(str(lost), "damage" if lost else "good"), f"{more}"])
        all_lost += lost
    out.blank()
    out.table(columns, rows)
    return all_lost


def show_damage(out: Output) -> list[Report]:
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
                cells.append(_verdict(report))
        rows.append([Cell(name, "name"), *cells])
    out.blank()
    out.table(columns, rows)
    return with_sidecar


def _verdict(report: Report) -> Cell:
    if not report.ok:
        return Cell("damage found", "good")
    if any(finding.code == "torn-tail" for finding in report.findings):
        return Cell("torn tail", "note")
    return Cell("not detected", "damage")


def start_spark(stage: Stage) -> Any:
    """A session for the rest of the act."""
    from duramen.spark import check_installed, find_java, session

    try:
        check_installed()
        find_java()
    except DuramenError as error:
        raise SkippedError(str(error)) from error
    conf = {"spark.sql.shuffle.partitions": "2", "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
    return stage.resources.enter_context(session("local[2]", conf))
