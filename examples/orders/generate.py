"""The input: orders in a log of each format, the table of products, and the truth for duckdb."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import duramen

START_MS = 1_767_225_600_000  # 2026-01-01
SPAN_MS = 2 * 3600 * 1000
LATE_MS = 30_000
"""How much later than it was placed an order arrives, at most."""
STEP = 20_000
PRODUCTS = 500
CATEGORIES = 8
CORRUPT_SHARE = 0.01
MEAN_BYTES = 1065
"""Of an order with its JSON: the length of the note is even between 0 and 1,900 bytes."""


def generate(directory: Path, total_bytes: int, formats: list[str], seed: int = 1) -> int:
    """Write everything below ``directory``; returns the number of records, corrupt ones included."""
    rng = np.random.default_rng(seed)
    (directory / "truth").mkdir(parents=True)
    pq.write_table(_products(), directory / "products.parquet")
    count = max(total_bytes // MEAN_BYTES // len(formats), 100)
    for number, name in enumerate(formats):
        _write_log(directory, name, count, first=number * count, rng=rng)
    return (count + 1) * len(formats)


def _products() -> pa.Table:
    numbers = range(PRODUCTS)
    return pa.table(
        {
            "product": pa.array(numbers, pa.int64()),
            "category": [f"category {number * 7 % CATEGORIES}" for number in numbers],
        }
    )


def _write_log(directory: Path, name: str, count: int, *, first: int, rng: np.random.Generator) -> None:
    path, schema = directory / "logs" / name, pa.schema([(field, pa.int64()) for field in _FIELDS])
    with (
        duramen.open(path, "a", format=name, durability="write") as log,
        pq.ParquetWriter(directory / "truth" / f"{name}.parquet", schema) as truth,
        pq.ParquetWriter(directory / "truth" / f"{name}.rejects", pa.schema([("offset", pa.int64())])) as rejects,
    ):
        for start in range(0, count, STEP):
            rows = np.arange(start, min(start + STEP, count))
            arrived = START_MS + rows * SPAN_MS // count
            orders = _orders(rows + first, arrived, rng)
            is_corrupt = rng.random(len(rows)) < CORRUPT_SHARE
            values = _spoiled(_as_json(orders, rng), np.flatnonzero(is_corrupt), rng)
            times = pa.array(arrived * 1000, pa.int64()).view(pa.timestamp("us", "UTC"))
            log.append_batch(pa.RecordBatch.from_pydict({"value": values, "timestamp": times}))
            truth.write_table(pa.table(orders, schema=schema).filter(pa.array(~is_corrupt)))
            rejects.write_table(pa.table({"offset": pa.array(rows[is_corrupt], pa.int64())}))
        # One order long after all others lets the watermark pass every window. Its own window stays open.
        late = START_MS + 2 * SPAN_MS
        last = _orders(np.array([first + count]), np.array([late + LATE_MS]), rng, longest_ms=1)
        times = pa.array([late * 1000], pa.int64()).view(pa.timestamp("us", "UTC"))
        log.append_batch(pa.RecordBatch.from_pydict({"value": _as_json(last, rng), "timestamp": times}))


_FIELDS = ("order", "product", "quantity", "cents", "placed_ms")


def _orders(numbers: Any, arrived: Any, rng: np.random.Generator, *, longest_ms: int = LATE_MS) -> dict[str, pa.Array]:
    """The columns of orders that arrive in this order, and were placed up to half a minute before."""
    count = len(numbers)
    columns = {
        "order": numbers,
        "product": rng.integers(0, PRODUCTS, count),
        "quantity": rng.integers(1, 20, count),
        "cents": rng.integers(100, 100_000, count),
        "placed_ms": arrived - rng.integers(0, longest_ms, count),
    }
    return {name: pa.array(column, pa.int64()) for name, column in columns.items()}


def _as_json(orders: dict[str, pa.Array], rng: np.random.Generator) -> pa.Array:
    parts: list[Any] = []
    for number, name in enumerate(_FIELDS):
        parts += [f'{"," if number else "{"}"{name}":', orders[name].cast(pa.string())]
    notes = pc.binary_repeat("oak ", pa.array(rng.integers(0, 476, len(orders["order"]))))
    return pc.binary_join_element_wise(*parts, ',"note":"', notes, '"}', "").cast(pa.binary())


def _spoiled(values: pa.Array, rows: Any, rng: np.random.Generator) -> pa.Array:
    """The values, some of them cut, changed to another type, replaced by random bytes, or empty."""
    found = values.to_pylist() if len(rows) else []
    for row in rows.tolist():
        good = found[row]
        found[row] = [
            good[: int(rng.integers(1, len(good)))],
            good.replace(b'"quantity":', b'"quantity":"many",'),
            rng.bytes(40),
            b"",
        ][int(rng.integers(0, 4))]
    return pa.array(found, pa.binary()) if found else values
