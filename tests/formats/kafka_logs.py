"""The partitions in ``tests/data/kafka``, and what Kafka's own consumer returned for them."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import duramen
from duramen.formats import make
from duramen.kernel import CODEC, BatchColumns

DATA = Path(__file__).parents[1] / "data" / "kafka"
ISOLATIONS = ("read_uncommitted", "read_committed")
COLUMNS = ("offset", "timestamp_ms", "timestamp_type", "leader_epoch", "key", "value", "headers")
PARTITIONS = sorted(path.parent for path in DATA.glob("*/*/truth.read_committed.jsonl"))
DAMAGED = sorted(path.parent for path in DATA.glob("damaged/*/damage.json"))
STARTS = {"startmoved-0": 234}
"""Log start offsets, which the checkpoint of the broker holds."""


class StoredBatch(NamedTuple):
    """A batch, to be compared with another program's."""

    base_offset: int
    header: bytes
    """Without length and checksum, where a codec folded the records."""
    content: Any
    """All bytes; or the records, where a codec folded them."""


def batches(data: bytes) -> Iterator[StoredBatch]:
    segment = make("kafka").open_segment(data, None)
    for rows in segment.steps(max_records=1):
        assert isinstance(rows.columns, BatchColumns)
        for position in rows.columns.position.tolist():
            raw, found = data[position : rows.end.position], rows.columns
            if found.attributes[0] & CODEC and found.records[0]:
                content: Any = segment.decode(rows, ("offset", *COLUMNS[1:2], *COLUMNS[4:])).to_pylist()
                yield StoredBatch(int(found.base_offset[0]), raw[:8] + raw[12:17] + raw[21:61], content)
            else:
                yield StoredBatch(int(found.base_offset[0]), raw[:61], raw)


def without_first_end(path: Path, kafkas: Sequence[StoredBatch]) -> list[StoredBatch]:
    """The batches of a compacted partition. Where Kafka's cleaner leaves an empty first file, Duramen leaves the last
    batch without its records: that one is left out."""
    files = [list(batches(file.read_bytes())) for file in sorted(path.glob("*.log"))]
    bases = {batch.base_offset for batch in kafkas}
    if files[0] and files[0][-1].base_offset not in bases:
        files[0].pop()
    return [batch for file in files for batch in file]


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
