"""Logs for the tests of the source, and their rows as the in-process reader gives them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

import duramen
from duramen.formats import make
from duramen.log.read.log import Log
from duramen.record import TIMESTAMP
from duramen.spark.source.discovery import disk_of
from duramen.spark.source.options import parse_options
from duramen.spark.source.plan import plan_read
from duramen.spark.source.schema import schema_of, wanted_of
from duramen.spark.source.splits import Split
from duramen.spark.source.task import read_split

FORMATS = ("durable-log", "keratin", "rustlog", "osiris", "fixed-slot")
RECORD_SIZE = 40
START_US = 1_700_000_000_000_000
START_MS = START_US // 1000


def options_of(name: str, segment_bytes: int = 2048) -> dict[str, Any]:
    if name == "fixed-slot":
        return {"record_size": RECORD_SIZE}
    return {"segment_max_bytes": segment_bytes}


def batch_of(name: str, first: int, count: int) -> pa.RecordBatch:
    """Records whose value says their offset, a second apart, with whatever the format has a place for."""
    fmt = make(name, **options_of(name))
    offsets = range(first, first + count)
    columns: dict[str, pa.Array] = {
        "value": pa.array([f"value {o}".encode().ljust(RECORD_SIZE, b".") for o in offsets], pa.binary())
    }
    if fmt.capabilities.timestamps:
        times = pa.array([START_US + o * 1_000_000 for o in offsets], pa.int64())
        columns["timestamp"] = times.view(TIMESTAMP.type)
    if fmt.capabilities.key:
        columns["key"] = pa.array([b"k%d" % (o % 3) if o % 2 else None for o in offsets], pa.binary())
    if fmt.capabilities.headers:
        rows = [[{"key": "h", "value": b"%d" % o}] if o % 4 else None for o in offsets]
        columns["headers"] = pa.array(rows, duramen.SCHEMA.field("headers").type)
    return pa.RecordBatch.from_pydict(columns)


def write_log(root: Path, name: str, count: int, *, step: int = 50, segment_bytes: int = 2048) -> Path:
    """A log of ``count`` records, which rolls often."""
    with duramen.open(root, "a", format=name, **options_of(name, segment_bytes)) as log:
        for first in range(0, count, step):
            log.append_batch(batch_of(name, log.next_offset, min(step, count - first)), durability="write")
    return root


def build_log(root: Path, name: str, segments: Sequence[pa.RecordBatch], **options: Any) -> Path:
    """A log of files alone, as another program leaves it: no sidecar."""
    fmt = make(name, **{**options, **({"record_size": RECORD_SIZE} if name == "fixed-slot" else {})})
    first, numbered = 0, []
    for batch in segments:
        if "offset" not in batch.schema.names:
            batch = with_offsets(batch, range(first, first + batch.num_rows))
        first = batch.column("offset")[-1].as_py() + 1
        numbered.append(batch)
    for relative, content in fmt.build(numbered, START_MS):
        path = root / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return root


def with_offsets(batch: pa.RecordBatch, offsets: Sequence[int]) -> pa.RecordBatch:
    return batch.append_column("offset", pa.array(offsets, pa.int64()))


def expected(path: Path | str, columns: Sequence[str], **bounds: Any) -> pa.Table:
    """The rows as the in-process reader gives them."""
    with Log(str(path)) as log:
        batches = [batch.select(list(columns)) for batch in log.batches(columns=columns, **bounds)]
    schema = pa.schema([duramen.SCHEMA.field(name) for name in columns])
    return pa.Table.from_batches(batches, schema)


def assert_same(found: pa.Table, wanted: pa.Table) -> None:
    """Row for row and in order; Spark's schema is looser about nulls."""
    assert found.column_names == wanted.column_names
    assert found.num_rows == wanted.num_rows
    assert found.to_pylist() == wanted.cast(found.schema).to_pylist()


def splits_of(path: Path | str, **options: Any) -> list[Split]:
    return plan_read(parse_options(_texts(path, options), streaming=False))


def read_here(path: Path | str, splits: Sequence[Split] | None = None, **options: Any) -> pa.Table:
    """What the tasks of a read would yield, in this process."""
    parsed = parse_options(_texts(path, options), streaming=False)
    schema = schema_of(parsed)
    wanted = wanted_of(schema, parsed)
    disk = disk_of(parsed.path)[0]
    planned = plan_read(parsed) if splits is None else splits
    batches = [batch for split in planned for batch in read_split(split, wanted, disk)]
    return pa.Table.from_batches(batches, wanted.schema)


def _texts(path: Path | str, options: Mapping[str, Any]) -> dict[str, str]:
    return {"path": str(path), **{name: str(value) for name, value in options.items()}}
