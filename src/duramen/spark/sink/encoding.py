"""Staged rows in the bytes of the target's format, where its chunks can be encoded before their offsets are known.

A task encodes, compression included, and the commit copies chunks and changes offsets, which takes the same time for
every compression. Formats whose record checksum covers the offset, or that store nothing but records, are staged as
columns: encoding those costs hardly more than copying them.

The staged file is an Arrow file whose metadata names the format and whose rows are pieces of about a megabyte.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from duramen.errors import StorageError
from duramen.formats import EncodedRecords, Format, ScanPosition, SupportsMoving, Values, make
from duramen.log import batch_of

PIECE_BYTES = 1 << 20
_FORMAT = b"duramen.format"
_SCHEMA = pa.schema(
    [("rows", pa.int64()), ("chunks", pa.int64()), ("has_times", pa.bool_()), ("data", pa.large_binary())]
)


def encoded_schema(fmt: Format) -> pa.Schema:
    return _SCHEMA.with_metadata({_FORMAT: json.dumps([fmt.name, fmt.stored_options])})


def pieces_of(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    count = max(1, round(rows.nbytes / PIECE_BYTES))
    step = max(1, -(-rows.num_rows // count))
    for start in range(0, rows.num_rows, step):
        yield rows.slice(start, step)


def encode_piece(fmt: Format, rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows as one row of the staged file. Rows without a time get that of the commit; where only some have one,
    the others get the time of the task."""
    batch = batch_of(fmt, rows)
    start = ScanPosition(0, -1)
    has_times = isinstance(batch, pa.RecordBatch) and "timestamp" in batch.schema.names
    if isinstance(batch, Values):
        encoded = fmt.encode_values(batch, start)
    else:
        assert isinstance(batch, pa.RecordBatch)
        encoded = fmt.encode(batch, start, time.time_ns() // 1000 if has_times else 0)
    ends = pa.py_buffer(np.array([0, len(encoded.data)], np.int64))
    data = pa.Array.from_buffers(pa.large_binary(), 1, [None, ends, pa.py_buffer(encoded.data)])
    told = (encoded.rows.count, len(encoded.rows.columns), has_times)
    columns = [pa.array([one], field.type) for one, field in zip(told, _SCHEMA, strict=False)]
    return pa.RecordBatch.from_arrays([*columns, data], schema=encoded_schema(fmt))


def decoded(schema: pa.Schema, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch | EncodedRecords]:
    """What the commit appends, from a batch of a staged file."""
    named = (schema.metadata or {}).get(_FORMAT)
    if named is None:
        yield batch
        return
    name, options = json.loads(named)
    fmt = make(name, **options)
    if not isinstance(fmt, SupportsMoving):
        raise StorageError(f"a task staged {name}, which cannot be moved", hint="run it again")
    rows, chunks, has_times = (batch.column(number).to_pylist() for number in range(3))
    for number, value in enumerate(batch.column(3)):
        yield EncodedRecords(
            fmt, memoryview(value.as_buffer()), rows[number], chunks[number], has_times=has_times[number]
        )
