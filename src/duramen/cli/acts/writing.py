"""Act 1: the same orders in all five formats, written and looked at."""

from __future__ import annotations

import os

import duramen
from duramen.cli.acts.stage import Stage
from duramen.cli.output import Cell, Column, size, to_json
from duramen.cli.samples import RECORD_SIZE, orders
from duramen.formats import FORMATS, make

TITLE = "One log, five formats"
RECORDS = 3_000
SEGMENT = "segment_max_bytes=80000"


def play(stage: Stage) -> None:
    _write_orders()
    stage.say(f"{RECORDS:,} orders of a timber yard go into a log of every format. A log is a directory of segments.")
    stage.duramen("append", "logs/keratin", "orders.jsonl", "--jsonl", "--format", "keratin", "--option", SEGMENT)
    for name in ("durable-log", "rustlog", "osiris"):
        stage.duramen("append", f"logs/{name}", "orders.txt", "--format", name, "--option", SEGMENT)
    slots = f"record_size={RECORD_SIZE}"
    stage.duramen("append", "logs/fixed-slot", "padded.txt", "--format", "fixed-slot", "--option", slots)
    stage.say("Every verb finds the format out by itself.")
    stage.duramen("info", "logs/osiris")
    stage.duramen("cat", "logs/durable-log", "-o", "-2")
    stage.duramen("cat", "logs/keratin", "-o", "2999", "--output", "jsonl")
    stage.say("Nothing is hidden: `dump` shows any file of any format, field by field.")
    stage.duramen("dump", "logs/durable-log/segment_00000000000000000000.log", "--to", "68")
    counts = _table(stage)
    stage.show(
        f"The same {RECORDS:,} orders, in five formats that other programs read, too.",
        counts == [RECORDS] * len(FORMATS),
    )


def _write_orders() -> None:
    """The orders as JSON lines with key, headers and time; as plain lines; and as lines of one length."""
    os.mkdir("logs")
    rows = orders(make("keratin"), 0, RECORDS).to_pylist()
    with (
        open("orders.jsonl", "w", encoding="utf-8") as full,
        open("orders.txt", "w", encoding="utf-8") as plain,
        open("padded.txt", "wb") as padded,
    ):
        for row in rows:
            value = row["value"].decode()
            record = {
                "timestamp": row["timestamp"].isoformat(),
                "key": row["key"].decode(),
                "value": value,
                "headers": [{"key": one["key"], "value": one["value"].decode()} for one in row["headers"]],
            }
            full.write(to_json(record) + "\n")
            plain.write(value + "\n")
            padded.write(row["value"].ljust(RECORD_SIZE) + b"\n")


def _table(stage: Stage) -> list[int]:
    columns = [Column("format"), Column("records", True), Column("segments", True), Column("size", True)]
    columns += [Column("time"), Column("key, headers"), Column("checksum")]
    rows: list[list[str | Cell]] = []
    counts = []
    for name, kind in FORMATS.items():
        able = kind.capabilities
        with duramen.open(f"logs/{name}") as log:
            counts.append(log.next_offset - log.first_offset)
            bytes_ = sum(segment.size_bytes for segment in log.segments)
            time = {"ms": "ms", "us": "µs"}.get(able.timestamps or "", "–")
            row: list[str | Cell] = [Cell(name, "name"), f"{counts[-1]:,}", str(len(log.segments)), size(bytes_), time]
            rows.append([*row, "yes" if able.key else "–", "yes" if able.record_checksum else "none"])
    stage.out.blank()
    stage.out.table(columns, rows)
    return counts
