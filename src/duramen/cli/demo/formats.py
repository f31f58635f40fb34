"""Act 1: write the same orders in all five formats, and inspect them."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import duramen
from duramen.cli.demo.stage import Stage
from duramen.cli.output import Cell, Column, size, to_json
from duramen.formats import FORMATS

TITLE = "One log, five formats"
RECORDS = 3_000
SLOT_BYTES = 256
SEGMENT = "segment_max_bytes=80000"
WOOD = ("oak", "ash", "larch", "beech", "walnut")
NOTES = ("planed", "no knots", "für Sofia", "by Friday", "quarter-sawn")
OPENING, OPEN = datetime(2026, 3, 2, 8, tzinfo=UTC), timedelta(hours=10)


def play(stage: Stage) -> None:
    first_bytes = _write_orders()
    stage.say(
        f"{RECORDS:,} orders of a timber yard, appended to a log of each format. A log is a directory of segments."
    )
    stage.duramen("append", "logs/keratin", "orders.jsonl", "--jsonl", "--format", "keratin", "--option", SEGMENT)
    for name in ("durable-log", "rustlog", "osiris"):
        stage.duramen("append", f"logs/{name}", "orders.txt", "--format", name, "--option", SEGMENT)
    slots = f"record_size={SLOT_BYTES}"
    stage.duramen("append", "logs/fixed-slot", "padded.txt", "--format", "fixed-slot", "--option", slots)
    stage.say("Every verb detects the format.")
    stage.duramen("info", "logs/osiris")
    stage.duramen("cat", "logs/durable-log", "-o", "-2")
    stage.duramen("cat", "logs/keratin", "-o", "2999", "--output", "jsonl")
    stage.say("Nothing is hidden: `dump` shows any file of any format, field by field.")
    stage.duramen("dump", "logs/durable-log/segment_00000000000000000000.log", "--to", str(23 + first_bytes))
    counts = _table(stage)
    stage.show(
        f"The same {RECORDS:,} orders, in five formats that other programs can read.",
        counts == [RECORDS] * len(FORMATS),
    )


def _write_orders() -> int:
    """Write the orders as JSON lines with key, headers and time, as plain lines, and as lines of equal length. Return
    the length of the first value."""
    os.mkdir("logs")
    first_bytes = 0
    with (
        open("orders.jsonl", "w", encoding="utf-8") as full,
        open("orders.txt", "w", encoding="utf-8") as plain,
        open("padded.txt", "wb") as padded,
    ):
        for record in _orders():
            value = record["value"]
            first_bytes = first_bytes or len(value.encode())
            full.write(to_json(record) + "\n")
            plain.write(value + "\n")
            padded.write(value.encode().ljust(SLOT_BYTES) + b"\n")
    return first_bytes


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
