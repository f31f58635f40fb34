"""A streaming query without Spark: asks a stream reader what Spark asks, in the same order, and keeps a checkpoint.

Offsets go through JSON text, which is what Spark keeps and compares, and the reader through pickle. For tables of many
cases; that Spark itself asks the same is shown by the tests with a session.
"""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from duramen.spark.source.source import DuramenSource


class Query:
    """One query with its checkpoint."""

    def __init__(self) -> None:
        self.offset: str | None = None
        self.planned: str | None = None
        """The end of a batch that was planned and not committed."""
        self.rows: list[tuple[Any, ...]] = []
        self._offsets: list[int] = []

    def run(self, path: Path | str | None, **options: Any) -> int:
        """Start, read everything there is, stop; returns the number of rows that came."""
        before = len(self.rows)
        reader = _reader(path, options)
        if isinstance(reader, SupportsTriggerAvailableNow):
            reader.prepareForTriggerAvailableNow()
        if self.offset is None:
            self.offset = json.dumps(reader.initialOffset())
        while True:
            end = self.planned or json.dumps(reader.latestOffset(json.loads(self.offset), reader.getDefaultReadLimit()))
            if end == self.offset:
                return len(self.rows) - before
            self.planned = end
            rows = _batch(reader, json.loads(self.offset), json.loads(end))
            self.rows += [tuple(row.values()) for row in rows]
            self._offsets += [row["offset"] for row in rows if "offset" in row]
            reader.commit(json.loads(end))
            self.offset, self.planned = end, None

    def offsets(self) -> list[int]:
        return list(self._offsets)


def _reader(path: Path | str | None, options: dict[str, Any]) -> Any:
    texts = {name: str(value) for name, value in options.items()}
    source = DuramenSource(texts if path is None else {"path": str(path), **texts})
    return pickle.loads(pickle.dumps(source.streamReader(source.schema())))


def _batch(reader: Any, start: Any, end: Any) -> list[dict[str, Any]]:
    return [
        row
        for partition in reader.partitions(start, end)
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    ]
