"""The partitions in ``tests/data/kafka``, and what Kafka's own consumer returned for them."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import duramen

DATA = Path(__file__).parents[1] / "data" / "kafka"
ISOLATIONS = ("read_uncommitted", "read_committed")
COLUMNS = ("offset", "timestamp_ms", "timestamp_type", "leader_epoch", "key", "value", "headers")
PARTITIONS = sorted(path.parent for path in DATA.glob("*/*/truth.read_committed.jsonl"))
DAMAGED = sorted(path.parent for path in DATA.glob("damaged/*/damage.json"))
STARTS = {"startmoved-0": 234}
"""Log start offsets, which the checkpoint of the broker holds."""


def name_of(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


def options(path: Path, isolation: str) -> dict[str, Any]:
    start = STARTS.get(path.name)
    return {"isolation": isolation, **({} if start is None else {"log_start_offset": start})}


def truth(path: Path, isolation: str) -> list[dict[str, Any]]:
    with (path / f"truth.{isolation}.jsonl").open() as lines:
        return [json.loads(line) for line in lines]


def bounds(path: Path, isolation: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((path / f"offsets.{isolation}.json").read_text())
    return found


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def as_consumed(row: dict[str, Any]) -> dict[str, Any]:
    """A decoded row in the form of the truth."""
    value = row["value"]
    return {
        "offset": row["offset"],
        "timestamp": -1 if row["timestamp_ms"] is None else row["timestamp_ms"],
        "timestamp_type": row["timestamp_type"] or "NoTimestampType",
        "leader_epoch": row["leader_epoch"],
        "key": _text(row["key"]),
        "value": None if value is None else {"sha256": hashlib.sha256(value).hexdigest(), "len": len(value)},
        "headers": [[_text(header["key"].encode()), _text(header["value"])] for header in row["headers"] or []],
    }


def consumed(path: Path, isolation: str = ISOLATIONS[0]) -> list[dict[str, Any]]:
    """All records of a partition, as the consumer returned them."""
    with duramen.open(path, **options(path, isolation)) as log:
        return [as_consumed(row) for batch in log.batches(columns=COLUMNS) for row in batch.to_pylist()]
