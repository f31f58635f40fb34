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
from duramen.record import KEY, OFFSET, VALUE, Headers, Record, from_us
from duramen.values import MALFORMED_KEY, MALFORMED_VALUE, Decoding, MalformedValue, python_values

_record: Callable[[Iterable[Any]], Record] = partial(tuple.__new__, Record)
"""The constructor of the class takes three times as long."""


def records_of(batch: pa.RecordBatch) -> Iterator[Record]:
    """The rows of a batch with all neutral columns, whose values and keys may be decoded."""
    offsets, headers = (batch.column(name).to_pylist() for name in ("offset", "headers"))
    keys, values = _content(batch, "key", MALFORMED_KEY), _content(batch, "value", MALFORMED_VALUE)
    if any(headers):
        headers = [_pairs(each) for each in headers]
    return map(_record, zip(offsets, _times(us_of(batch)), keys, values, headers, strict=True))


def decoded_record(record: Record, decoding: Decoding) -> Record:
    """A record with its value and key decoded."""
    columns = {"offset": [record.offset], "key": [record.key], "value": [record.value]}
    batch = pa.RecordBatch.from_pydict(columns, pa.schema([OFFSET, KEY, VALUE]))
    decoded = decoding.decode(batch)
    key, value = _content(decoded, "key", MALFORMED_KEY)[0], _content(decoded, "value", MALFORMED_VALUE)[0]
    return record._replace(key=key, value=value)


def _content(batch: pa.RecordBatch, name: str, malformed: str) -> list[Any]:
    """The values or keys as Python objects; those that do not decode with the reason, where that is kept."""
    column = batch.column(name)
    values = column.to_pylist() if pa.types.is_binary(column.type) else python_values(column)
    if malformed in batch.schema.names:
        for row, found in enumerate(batch.column(malformed).to_pylist()):
            if found is not None:
                values[row] = MalformedValue(found["reason"], found["bytes"])
    return values


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
