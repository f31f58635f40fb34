"""What callers hand in, as Arrow batches that a format can encode. Refuses here, before anything is queued, what the
format cannot carry; so one caller's mistake never fails another's append."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import accumulate, chain
from typing import Any, TypeAlias, TypeGuard

import numpy as np
import pyarrow as pa

from duramen.errors import UnsupportedFieldError, UsageError
from duramen.formats import Format
from duramen.formats.arrow import binary_buffers
from duramen.formats.base import schema_for
from duramen.formats.values import Values
from duramen.model import COLUMNS, HEADERS, KEY, TIMESTAMP, VALUE, checked_us

__all__ = [
    "Batch", "HeadersIn", "Values", "goes_back", "has_times", "many", "merge", "one", "raise_late", "rows_within",
    "stamp",
]  # fmt: skip

Batch: TypeAlias = pa.RecordBatch | Values

HeadersIn = Sequence[tuple[str, bytes | None]]


def one(
    fmt: Format,
    value: bytes | bytearray | memoryview,
    key: bytes | None = None,
    headers: HeadersIn | None = None,
    timestamp: datetime | int | str | None = None,
) -> Batch:
    """A batch of one record."""
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise UsageError(f"a value is bytes, not {type(value).__name__}", hint="encode text first: text.encode()")
    if type(value) is bytes and key is None and not headers and timestamp is None:
        return _accepted(fmt, Values((value,)))
    columns: dict[str, pa.Array] = {"value": pa.array([value], VALUE.type)}
    if key is not None:
        columns["key"] = _array([key], KEY.type, "key")
    if headers:
        columns["headers"] = _array([_pairs(headers)], HEADERS.type, "headers")
    if timestamp is not None:
        columns["timestamp"] = pa.array([checked_us(timestamp)], pa.int64()).view(TIMESTAMP.type)
    batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    fmt.accept(batch)
    return batch


def many(fmt: Format, data: Any) -> Batch:
    """A batch from a list of bytes, an Arrow array of values, or a RecordBatch or Table with the neutral columns.

    A column ``offset`` is not taken: offsets are assigned."""
    if isinstance(data, pa.RecordBatch):
        batch = data
    elif isinstance(data, pa.Table):
        batch = _whole(data)
    elif isinstance(data, pa.Array) and data.type == VALUE.type and not data.null_count:
        return _accepted(fmt, Values(data))
    elif isinstance(data, (pa.Array, pa.ChunkedArray)):
        batch = _whole(pa.table({"value": data}))
    elif isinstance(data, (bytes, bytearray, memoryview, str, Mapping)) or not isinstance(data, Iterable):
        raise UsageError(f"a batch is a list of bytes or Arrow data, not {type(data).__name__}")
    else:
        items = tuple(data)
        try:
            values = Values(items)
        except TypeError:  # a bytearray, a memoryview; or nothing that Arrow can make bytes of
            batch = pa.RecordBatch.from_arrays([_array(list(items), VALUE.type, "value")], names=["value"])
        else:
            return _accepted(fmt, values)
    batch = _neutral(fmt, batch)
    fmt.accept(batch)
    return batch


def _accepted(fmt: Format, values: Values) -> Values:
    fmt.accept_values(values)
    return values


def _array(values: list[Any], kind: pa.DataType, name: str) -> pa.Array:
    try:
        return pa.array(values, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, UnicodeError) as error:
        raise UsageError(f"{name}: {error}") from error


def _pairs(headers: object) -> list[dict[str, Any]]:
    if not isinstance(headers, Iterable):
        raise UsageError(f"headers are pairs of text and bytes, not {headers!r}", hint='such as [("name", b"value")]')
    pairs = []
    for pair in headers:
        if not isinstance(pair, tuple | list) or len(pair) != 2 or not isinstance(pair[0], str):
            raise UsageError(f"headers are pairs of text and bytes, not {pair!r}", hint='such as [("name", b"value")]')
        pairs.append({"key": pair[0], "value": pair[1]})
    return pairs


def _whole(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    if len(batches) > 1:
        raise UsageError("the table holds more than 2 GiB of values", hint="append it batch by batch")
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)


def _neutral(fmt: Format, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The columns that are records', in the types of the neutral record."""
    names = batch.schema.names
    if "value" not in names:
        raise UsageError("there is no column 'value'", hint=f"the columns are {', '.join(COLUMNS)}")
    extras = {field.name for field in fmt.capabilities.extras}
    arrays, kept = [], []
    for name, column in zip(names, batch.columns, strict=True):
        if name == "offset":
            continue
        if name in kept:
            raise UsageError(f"there are two columns {name!r}", hint="give each of them once")
        if name not in COLUMNS and name not in extras:
            raise UnsupportedFieldError(f"{fmt.name} has no place for the column {name!r}")
        if name in COLUMNS and column.null_count == len(column) and name != "value":
            continue
        wanted = schema_for(fmt, [name]).field(0).type
        if name == "timestamp" and pa.types.is_integer(column.type):
            raise UsageError("column 'timestamp' holds numbers of an unknown unit", hint="cast it to pa.timestamp(...)")
        try:
            arrays.append(column if column.type == wanted else column.cast(wanted))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise UsageError(f"column {name!r}: {error}") from error
        if name == "headers":
            _check_headers(arrays[-1])
        kept.append(name)
    return pa.RecordBatch.from_arrays(arrays, names=kept)


def _check_headers(column: pa.Array) -> None:
    """What an Arrow type does not say: that each header is there, and that its key is text."""
    if column.flatten().null_count:
        raise UsageError("column 'headers': a header is null", hint="leave it out: only its value may be null")
    try:
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        raise UsageError(f"column 'headers': {error}") from error


def merge(parts: Sequence[Batch]) -> Batch:
    """Batches one behind another; a column that only some have is null in the others."""
    if len(parts) == 1:
        return parts[0]
    plain = [part.values for part in parts if isinstance(part, Values) and part.offsets is None]
    if len(plain) == len(parts):
        return Values(tuple(chain.from_iterable(plain)))
    batches = [part.batch() if isinstance(part, Values) else part for part in parts]
    schema = pa.unify_schemas([batch.schema for batch in batches])
    same = [
        batch
        if batch.schema.equals(schema)
        else pa.RecordBatch.from_arrays(
            [
                batch.column(field.name) if field.name in batch.schema.names else pa.nulls(batch.num_rows, field.type)
                for field in schema
            ],
            schema=schema,
        )
        for batch in batches
    ]
    return pa.concat_batches(same)


def rows_within(batch: Batch, size_bytes: int) -> int:
    """How many rows, from the first on, have no more bytes of values than that between them."""
    if isinstance(batch, Values) and batch.offsets is None:
        for row, total in enumerate(accumulate(map(len, batch.values))):
            if total > size_bytes:
                return row
        return batch.num_rows
    offsets = binary_buffers(batch.array() if isinstance(batch, Values) else batch.column("value"))[1]
    ends = offsets[1:].astype(np.int64) - int(offsets[0])
    return int(np.searchsorted(ends, size_bytes, side="right"))


def has_times(batch: Batch) -> TypeGuard[pa.RecordBatch]:
    """Whether the caller gave times with the records."""
    return not isinstance(batch, Values) and "timestamp" in batch.schema.names


def stamp(batch: Batch, now_us: int, last_us: int) -> tuple[pa.RecordBatch, int]:
    """The batch with a time in every row, and its last time. A row without one gets ``now_us``, never less than what
    precedes it."""
    if isinstance(batch, Values):
        batch = batch.batch()
    if "timestamp" in batch.schema.names:
        column = batch.column("timestamp").view(pa.int64())
        if column.null_count == 0:
            times = column.to_numpy()
            return batch, max(last_us, int(times.max())) if len(times) else last_us
        given = column.fill_null(np.iinfo(np.int64).min).to_numpy(zero_copy_only=False)
        times = np.maximum.accumulate(np.where(given == np.iinfo(np.int64).min, max(now_us, last_us), given))
        missing = np.asarray(column.is_null())
        times = np.where(missing, times, given)
    else:
        times = np.full(batch.num_rows, max(now_us, last_us), np.int64)
    stamped = pa.array(times, pa.int64()).view(TIMESTAMP.type)
    if "timestamp" in batch.schema.names:
        batch = batch.set_column(batch.schema.get_field_index("timestamp"), "timestamp", stamped)
    else:
        batch = batch.append_column("timestamp", stamped)
    return batch, max(last_us, int(times.max())) if len(times) else last_us


def raise_late(batch: Batch, last_us: int) -> Batch:
    """The batch with every time that is before the one that precedes it raised to that one."""
    if not has_times(batch) or goes_back(batch, last_us) is None:
        return batch
    given = batch.column("timestamp").view(pa.int64()).to_numpy(zero_copy_only=False)
    times = np.maximum.accumulate(np.maximum(given, last_us))
    raised = pa.array(times, pa.int64()).view(TIMESTAMP.type)
    return batch.set_column(batch.schema.get_field_index("timestamp"), "timestamp", raised)


def goes_back(batch: Batch, last_us: int) -> tuple[int, int] | None:
    """The first time that the caller gave and that is before the one that precedes it, and that one."""
    if not has_times(batch):
        return None
    given = batch.column("timestamp").view(pa.int64()).drop_null().to_numpy(zero_copy_only=False)
    before = np.append(last_us, given[:-1])
    back = np.flatnonzero(given < before)
    return (int(given[back[0]]), int(before[back[0]])) if len(back) else None
