"""The caller's data as batches that a format can encode.

Data that the format cannot store is refused here, before anything is queued, so that one caller's mistake never fails
another caller's append. The appends of a group become one batch: a row without a time gets the writer's, and an append
whose times go back, where the format forbids that, is refused without failing the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate, chain
from typing import Any, NamedTuple, TypeAlias, TypeGuard

import numpy as np
import pyarrow as pa

from duramen.errors import LateTimestampError, UnsupportedFieldError, UsageError
from duramen.formats import (
    EncodedRecords,
    Format,
    SupportsMoving,
    Values,
    binary_buffers,
    binary_of,
    number_array,
    numbers_of,
    schema_for,
)
from duramen.log.write.group_commit import Request
from duramen.record import COLUMNS, HEADERS, KEY, TIMESTAMP, VALUE, checked_us, from_us

Batch: TypeAlias = pa.RecordBatch | Values | EncodedRecords
ARROW = (pa.RecordBatch, pa.Table, pa.Array, pa.ChunkedArray)

Content: TypeAlias = bytes | bytearray | memoryview | str
"""A value or a key. Text is stored as UTF-8."""
HeadersIn: TypeAlias = Sequence[tuple[str, bytes | str | None]] | bytes
"""Names and values; or bytes of another program, as one header with the empty name."""


@dataclass
class SequenceClaim:
    """A producer's claim about an append: its name and the sequence of the first record (None: the next one). The
    commit fills in ``first``, the sequence of the first record that it stores, ``duplicates``, how many records
    before that one were stored already, and ``stored``, the last sequence in the log before the group (-1: none)."""

    name: bytes
    sequence: int | None
    first: int = -1
    duplicates: int = 0
    stored: int = -1


class Appended(NamedTuple):
    """The offsets of an append: the first one, and the number of records from there on."""

    base_offset: int
    count: int  # type: ignore[assignment]


class GroupBatch(NamedTuple):
    """An append in the queue: its records, when to sync them, and the producer's claim."""

    batch: Batch
    durability: str
    producer: SequenceClaim | None = None

    @property
    def sync(self) -> bool:
        """Whether to sync before it is acknowledged."""
        return self.durability == "fsync"


def batch_of_one(
    fmt: Format,
    value: Content | None,
    key: Content | None = None,
    headers: HeadersIn | None = None,
    timestamp: datetime | int | str | None = None,
) -> Batch:
    """A batch of one record."""
    if not isinstance(value, (bytes, bytearray, memoryview, str, type(None))):
        raise UsageError(f"a value is bytes, text or None, not {type(value).__name__}")
    if type(value) is bytes and key is None and not headers and timestamp is None:
        return fmt.accept_values(Values((value,)))
    columns: dict[str, pa.Array] = {"value": _array([value], VALUE.type, "value")}
    if key is not None:
        columns["key"] = _array([key], KEY.type, "key")
    if headers:
        columns["headers"] = _array([_pairs(headers)], HEADERS.type, "headers")
    if timestamp is not None:
        columns["timestamp"] = number_array(np.array([checked_us(timestamp)])).view(TIMESTAMP.type)
    return fmt.accept(pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns)))


RecordParts: TypeAlias = tuple[bytes, bytes | None, int]
"""One record for a record writer: its value, the user headers before it, and its time in microseconds or -1."""


def parts_of(
    fmt: Format,
    value: object,
    key: object,
    headers: object,
    timestamp: datetime | int | str | None,
) -> RecordParts | None:
    """The record, if it needs neither conversion nor an error: for everything else `batch_of_one` decides."""
    if type(value) is bytes and key is None and not headers and timestamp is None:
        return value, None, -1
    try:
        plain, key = _utf8(value), _utf8(key)
        us = -1 if timestamp is None else checked_us(timestamp)
        if type(plain) is not bytes or (timestamp is not None and us < 0):
            return None
        if key is None and not headers:
            return plain, None, us
        pairs = [(pair["key"], _utf8(pair["value"])) for pair in _pairs(headers or ())]
        if not all(type(one) in (bytes, type(None)) for one in (key, *(value for _, value in pairs))):
            return None
        block = fmt.user_headers(key, pairs)  # type: ignore[arg-type]
    except (UsageError, UnicodeError):
        return None
    return None if block is None else (plain, block, us)


def _utf8(content: object) -> object:
    return content.encode() if type(content) is str else content


def batch_of(fmt: Format, data: Any) -> Batch:
    """A batch from what `columns_of` takes. A column ``offset`` is ignored: the writer assigns offsets."""
    if isinstance(data, EncodedRecords):
        is_movable = isinstance(fmt, SupportsMoving) and fmt.can_move(data)
        return data if is_movable else batch_of(fmt, data.batch())
    if isinstance(data, pa.Array) and data.type == VALUE.type and not data.null_count:
        return fmt.accept_values(Values(data))
    if isinstance(data, ARROW):
        return fmt.accept(_neutral(fmt, columns_of(data)))
    items = items_of(data)
    try:
        values = Values(items)
    except TypeError:  # not all of them are bytes
        return fmt.accept(_neutral(fmt, columns_of(items)))
    return fmt.accept_values(values)


def columns_of(data: Any) -> pa.RecordBatch:
    """The columns of a list of values, a list of pairs of key and value, an Arrow array of values, or a RecordBatch or
    Table."""
    if isinstance(data, pa.RecordBatch):
        return data
    if isinstance(data, ARROW):
        return _whole(data if isinstance(data, pa.Table) else pa.table({"value": data}))
    items = items_of(data)
    if not items or not isinstance(items[0], tuple):
        return pa.RecordBatch.from_arrays([_array(items, VALUE.type, "value")], names=["value"])
    if not all(isinstance(item, tuple) and len(item) == 2 for item in items):
        raise UsageError("a batch of pairs holds a tuple of key and value for every record")
    keys, values = zip(*items, strict=True)
    columns = [_array(keys, KEY.type, "key"), _array(values, VALUE.type, "value")]
    return pa.RecordBatch.from_arrays(columns, names=["key", "value"])


def items_of(data: Any) -> tuple[Any, ...]:
    """The items of an iterable of values or batches."""
    if type(data) in (list, tuple):
        return tuple(data)
    if isinstance(data, (bytes, bytearray, memoryview, str, Mapping)) or not isinstance(data, Iterable):
        raise UsageError(f"a batch is a list of values or of keys and values, or Arrow data, not {type(data).__name__}")
    return tuple(data)


def _array(values: Sequence[Any], kind: pa.DataType, name: str) -> pa.Array:
    try:
        known = [value.encode() if isinstance(value, str) else value for value in values]
        if kind == pa.binary() and all(value is None or type(value) is bytes for value in known):
            return binary_of(known)
        return pa.array(values, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, UnicodeError) as error:
        raise UsageError(f"{name}: {error}") from error


def _pairs(headers: object) -> list[dict[str, Any]]:
    if isinstance(headers, (bytes, bytearray, memoryview)):
        return [{"key": "", "value": bytes(headers)}]
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
    """The columns of a record, cast to the types of the neutral record."""
    names = batch.schema.names
    if "value" not in names:
        raise UsageError("the column 'value' is missing", hint=f"the columns are {', '.join(COLUMNS)}")
    extras = {field.name for field in fmt.capabilities.extras}
    arrays, kept = [], []
    for name, column in zip(names, batch.columns, strict=True):
        if name == "offset":
            continue
        if name in kept:
            raise UsageError(f"the column {name!r} is given twice", hint="give each column once")
        if name not in COLUMNS and name not in extras:
            raise UnsupportedFieldError(f"{fmt.name} cannot store the column {name!r}")
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
    """Check what an Arrow type does not say: that no header is null, and that its key is UTF-8."""
    if column.flatten().null_count:
        raise UsageError("column 'headers': a header is null", hint="leave it out: only its value may be null")
    try:
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        raise UsageError(f"column 'headers': {error}") from error


def merge_batches(parts: Sequence[Batch]) -> Batch:
    """The batches as one; a column that only some have is null in the others."""
    if len(parts) == 1:
        return parts[0]
    plain = [part.values for part in parts if isinstance(part, Values) and part.offsets is None]
    if len(plain) == len(parts):
        return Values(tuple(chain.from_iterable(plain)))
    batches = [part if isinstance(part, pa.RecordBatch) else part.batch() for part in parts]
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
    """How many rows, from the first on, have at most that many bytes of values in total."""
    if isinstance(batch, EncodedRecords):
        batch = batch.batch()
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
    return isinstance(batch, pa.RecordBatch) and "timestamp" in batch.schema.names


def stamp_times(batch: Batch, now_us: int, last_us: int) -> tuple[pa.RecordBatch, int]:
    """The batch with a time in every row, and its last time. A row without one gets ``now_us``, or the time of the row
    before it if that is later."""
    if not isinstance(batch, pa.RecordBatch):
        batch = batch.batch()
    if "timestamp" in batch.schema.names:
        column = batch.column("timestamp").view(pa.int64())
        if column.null_count == 0:
            times = numbers_of(column)
            return batch, max(last_us, int(times.max())) if len(times) else last_us
        given = column.fill_null(np.iinfo(np.int64).min).to_numpy(zero_copy_only=False)
        times = np.maximum.accumulate(np.where(given == np.iinfo(np.int64).min, max(now_us, last_us), given))
        missing = np.asarray(column.is_null())
        times = np.where(missing, times, given)
    else:
        times = np.full(batch.num_rows, max(now_us, last_us), np.int64)
    stamped = number_array(times).view(TIMESTAMP.type)
    if "timestamp" in batch.schema.names:
        batch = batch.set_column(batch.schema.get_field_index("timestamp"), "timestamp", stamped)
    else:
        batch = batch.append_column("timestamp", stamped)
    return batch, max(last_us, int(times.max())) if len(times) else last_us


def raise_late(batch: Batch, last_us: int, unit_us: int) -> Batch:
    """The batch with every time that goes back raised to the time before it."""
    if not has_times(batch) or goes_back(batch, last_us, unit_us) is None:
        return batch
    given = batch.column("timestamp").view(pa.int64()).to_numpy(zero_copy_only=False)
    times = np.maximum.accumulate(np.maximum(given, last_us))
    raised = number_array(times).view(TIMESTAMP.type)
    return batch.set_column(batch.schema.get_field_index("timestamp"), "timestamp", raised)


def goes_back(batch: Batch, last_us: int, unit_us: int) -> tuple[int, int] | None:
    """The first time of the caller that goes back, and the time before it. ``unit_us`` is the unit of stored times:
    what is the same in it does not go back, such as the time of a record that was read before."""
    if not has_times(batch):
        return None
    given = numbers_of(batch.column("timestamp").view(pa.int64()).drop_null())
    before = np.append(last_us, given[:-1])
    back = np.flatnonzero(given // unit_us < before // unit_us)
    return (int(given[back[0]]), int(before[back[0]])) if len(back) else None


# --- one group


def one_batch(
    group: list[Request], fmt: Format, path: str, now_us: int, last_us: int, *, raises_late_times: bool
) -> tuple[list[Request], Batch, int, int]:
    """Returns the requests whose times are in order, their records as one batch, the time of rows without one, and the
    last time of all. ``last_us`` is that of the log so far. Times of the caller may not go back, unless
    ``raises_late_times``."""
    ordered, unit_us = fmt.capabilities.ordered_timestamps, fmt.capabilities.time_unit_us
    now_us = max(now_us, last_us if ordered else 0)
    batches = [request.work.batch for request in group]
    if not any(map(has_times, batches)):
        return group, merge_batches(batches), now_us, now_us
    taken, stamped = [], []
    for request, batch in zip(group, batches, strict=True):
        batch, latest_us = stamp_times(batch, now_us, last_us if ordered else 0)
        if ordered and raises_late_times:
            batch = raise_late(batch, last_us, unit_us)
        back = goes_back(batch, last_us, unit_us) if ordered else None
        if back is not None:
            request.error = _late(fmt, path, back)
            continue
        last_us = latest_us
        taken.append(request)
        stamped.append(batch)
    merged = merge_batches(stamped) if stamped else batches[0]
    return taken, merged, now_us, last_us


def check_times(batches: Iterable[pa.RecordBatch], fmt: Format, path: str, now_us: int) -> None:
    """Raise `LateTimestampError` if appending these batches to a new log would."""
    last_us = 0
    if not fmt.capabilities.ordered_timestamps:
        return
    for batch in batches:
        times, latest_us = stamp_times(batch.select(["timestamp"]), now_us, last_us)
        back = goes_back(times, last_us, fmt.capabilities.time_unit_us)
        if back is not None:
            raise _late(fmt, path, back)
        last_us = latest_us


def _late(fmt: Format, path: str, back: tuple[int, int]) -> LateTimestampError:
    given, before = (from_us(us) or f"{us} µs" for us in back)
    return LateTimestampError(
        f"a timestamp goes back, from {before} to {given}, which {fmt.name} forbids", path=path,
        hint="append records in the order of their times, or without times",
    )  # fmt: skip


def appended_by_request(group: list[Request], pieces: list[tuple[int, int]]) -> list[Appended]:
    """The offsets of each request, from the pieces that `Appender.write` returned for the batch of them all."""
    results, row = [], 0
    start, offset = pieces[0]
    following = iter(pieces[1:])
    after = next(following, None)
    for request in group:
        while after is not None and after[0] <= row:
            (start, offset), after = after, next(following, None)
        count = request.work.batch.num_rows
        results.append(Appended(offset + row - start, count))
        row += count
    return results
