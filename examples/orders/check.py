"""Whether Delta table, topic and rejects are what duckdb makes of the truth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import deltalake
import duckdb
import pyarrow as pa

import duramen
from examples.orders.generate import START_MS

EXPECTED = """
    SELECT placed_ms // 60000 * 60000 AS minute_ms, category, count(*)::BIGINT AS orders,
           sum(quantity)::BIGINT AS pieces, sum(quantity * cents)::BIGINT AS cents
    FROM read_parquet($truth) JOIN read_parquet($products) USING (product) GROUP BY ALL
"""


def check(directory: Path, formats: list[str]) -> dict[str, int]:
    """Compare, and return how many rows each result has. Raises AssertionError with the first rows that differ."""
    db = duckdb.connect()
    _rows(
        db,
        f"CREATE TABLE expected AS {EXPECTED}",
        {
            "truth": [str(directory / "truth" / f"{name}.parquet") for name in formats],
            "products": str(directory / "products.parquet"),
        },
    )
    assert _rows(db, "SELECT min(minute_ms) >= $1 - 60000 FROM expected", [START_MS]) == [(True,)]
    db.register("delta_rows", pa.table(deltalake.DeltaTable(directory / "delta").to_pyarrow_table()))
    db.register("topic_rows", _topic(directory / "store", "revenue"))
    _rows(db, "CREATE TABLE delta AS SELECT minute_ms, category, orders, pieces, cents FROM delta_rows")
    _rows(
        db,
        "CREATE TABLE topic AS SELECT (j->>'minute_ms')::BIGINT AS minute_ms, j->>'category' AS category,"
        " (j->>'orders')::BIGINT AS orders, (j->>'pieces')::BIGINT AS pieces, (j->>'cents')::BIGINT AS cents"
        " FROM (SELECT decode(value)::JSON AS j FROM topic_rows)",
    )
    for result in ("delta", "topic"):
        _same(db, result, "expected")
    db.register("rejected_rows", _topic(directory / "store", "rejects"))
    _rows(db, "CREATE TABLE rejected AS SELECT decode(key) AS key FROM rejected_rows")
    spoiled = " UNION ALL ".join(
        f"SELECT '{name}/' || \"offset\" AS key FROM read_parquet('{directory / 'truth' / name}.rejects')"
        for name in formats
    )
    _rows(db, f"CREATE TABLE spoiled AS {spoiled}")
    _same(db, "rejected", "spoiled")
    return {name: _count(db, name) for name in ("delta", "topic", "rejected")}


def _topic(store: Path, topic: str) -> pa.Table:
    paths = sorted((store / "topics" / topic / "partitions").iterdir())
    tables = []
    for path in paths:
        with duramen.open(path) as log:
            assert log.verify().ok, path
            tables.append(pa.table(log).select(["key", "value"]))
    return pa.concat_tables(tables)


def _same(db: Any, found: str, wanted: str) -> None:
    for left, right in ((found, wanted), (wanted, found)):
        rows = _rows(db, f"SELECT * FROM {left} EXCEPT ALL SELECT * FROM {right} LIMIT 5")
        assert not rows, f"{len(rows)} or more rows of {left} are not in {right}: {rows}"
    assert _count(db, wanted), f"{wanted} is empty"


def _count(db: Any, name: str) -> int:
    return int(_rows(db, f"SELECT count(*) FROM {name}")[0][0])


def _rows(db: Any, sql: str, parameters: Any = None) -> list[tuple[Any, ...]]:
    """All rows at once: duckdb refuses other work while a result is open."""
    return list(db.execute(sql, parameters).fetchall())
