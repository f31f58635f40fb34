"""Logs for a session: `read` with a condition that becomes a range, and `register` for a name in SQL.

Both use the data source ``duramen`` and nothing else, so they work with Spark Connect. Spark pushes no filter down to a
Python source, so a condition on offset or time reads the whole log; `read` gives the source the range that the
condition names as well, and keeps the condition.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from duramen.errors import UsageError
from duramen.record import MAX_OFFSET
from duramen.spark.source import SINCE_US, UNTIL_US, option_text
from duramen.spark.where_clause import Bounds, bounds_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_INT64 = 2**63 - 1


def read(spark: SparkSession, path: str | Sequence[str], where: str | None = None, **options: Any) -> DataFrame:
    """The log at ``path`` as a DataFrame, with the rows for which ``where``, a condition in SQL, is true.

    The same rows as ``spark.read.format("duramen").options(…).load(path).where(where)``; parts of the condition that
    AND joins and that compare ``offset`` or ``timestamp`` with a literal also say where tasks begin and end to read.
    ``options`` are those of the data source."""
    texts = {name: option_text(value) for name, value in options.items() if value is not None}
    if where is None:
        return _load(spark, path, texts)
    if not isinstance(where, str):
        raise UsageError(f"where is a {type(where).__name__}", hint="give SQL text such as 'offset >= 100'")
    return _load(spark, path, {**options_of(spark, where, texts), **texts}).where(where)


def _load(spark: SparkSession, path: str | Sequence[str], texts: dict[str, str]) -> DataFrame:
    reader = spark.read.format("duramen").options(**texts)
    return reader.load(path if isinstance(path, str) else list(path))


def options_of(spark: SparkSession, where: str, given: Mapping[str, str]) -> dict[str, str]:
    """The options that a condition becomes, beside those that the caller gave."""
    bounds = bounds_of(where)
    return {**_ranges(bounds, given), **_times(spark, bounds)}


def _ranges(bounds: Bounds, texts: Mapping[str, str]) -> dict[str, str]:
    """The offsets as options, unless the caller gave his own."""
    given = {name.lower() for name in texts}
    found = {}
    if bounds.from_offset > 0 and given.isdisjoint(("startingoffsets", "startingoffsetsbytimestamp")):
        found["startingOffsets"] = str(bounds.from_offset)
    if bounds.to_offset < MAX_OFFSET and given.isdisjoint(("endingoffsets", "endingoffsetsbytimestamp")):
        found["endingOffsets"] = str(bounds.to_offset)
    return found


def _times(spark: SparkSession, bounds: Bounds) -> dict[str, str]:
    """The times as options. Spark evaluates the literals: their meaning depends on its settings."""
    if not bounds.times:
        return {}
    from pyspark.errors import PySparkException

    row: Any = None
    with suppress(PySparkException):  # the condition itself fails in the same way, and says where
        items = [f"unix_micros(CAST(({one.literal}) AS TIMESTAMP_LTZ))" for one in bounds.times]
        row = spark.sql(f"SELECT {', '.join(items)}").first()
    since, until = [], []
    for one, us in zip(bounds.times, row or (), strict=False):
        if us is not None and one.sign in (">", ">="):
            since.append(us + (one.sign == ">"))
        elif us is not None:
            until.append(us + (one.sign == "<="))
    found = {}
    if since:
        found[SINCE_US] = str(min(max(since), _INT64))
    if until:
        found[UNTIL_US] = str(min(*until, _INT64))
    return found


def register(spark: SparkSession, name: str, path: str | Sequence[str], **options: Any) -> None:
    """Make ``name`` a temporary view of the log at ``path``, for SQL. ``options`` are those of the data source.

    Like a DataFrame, the view shows the log as it was when it was first queried: call this again to see more. A view
    without options can also be inserted into."""
    texts = {option: option_text(value) for option, value in options.items() if value is not None}
    texts |= {"path": path} if isinstance(path, str) else {"paths": json.dumps(list(path))}
    listed = ", ".join(f"{_quoted(option)} {_quoted(text)}" for option, text in texts.items())
    view = name.replace("`", "``")
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW `{view}` USING duramen OPTIONS ({listed})")


def _quoted(text: str) -> str:
    """As a literal of SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
