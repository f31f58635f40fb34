"""Turns the rows of an Arrow batch into `Record` objects.

Creating the objects is the slow part, so they are made directly from tuples, and a time that rows share is converted
once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from functools import partial
from itertools import repeat
from typing import Any

import pyarrow as pa

from duramen.log.segments import us_of
from duramen.record import Headers, Record, from_us

_record: Callable[[Iterable[Any]], Record] = partial(tuple.__new__, Record)
"""The constructor of the class takes three times as long."""


def records_of(batch: pa.RecordBatch) -> Iterator[Record]:
    offsets, keys, values, headers = (batch.column(name).to_pylist() for name in ("offset", "key", "value", "headers"))
    if any(headers):
        headers = [_pairs(each) for each in headers]
    return map(_record, zip(offsets, _times(us_of(batch)), keys, values, headers, strict=True))


def _times(us: pa.Array) -> Iterable[datetime | None]:
    """The times of the rows. Records that were appended together usually share one."""
    listed = us.to_pylist()
    if listed and listed.count(listed[0]) == len(listed):
        return repeat(from_us(listed[0]), len(listed))
    return _each(listed)


def _each(us: list[int | None]) -> Iterator[datetime | None]:
    last: int | None = None
    when: datetime | None = None
    for each in us:
        if each != last:
            last, when = each, from_us(each)
        yield when


def _pairs(headers: list[dict[str, Any]] | None) -> Headers | None:
    return None if headers is None else [(header["key"], header["value"]) for header in headers]
