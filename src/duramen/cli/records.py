"""Write records to a byte stream, one batch at a time.

- ``text``: each value and a line feed; bytes that are not UTF-8 as ``\\xff``. On a terminal, control characters are
  escaped in the same way. A null value is an empty line.
- ``jsonl``: one object per line with ``offset``, ``timestamp``, ``key``, ``value``, ``headers``; the headers are
  objects with ``key`` and ``value``. Bytes that are not UTF-8 (with ``--base64``: all bytes) are base64 under
  ``key_base64`` and ``value_base64`` instead.
- ``raw``: the bytes of the values, without separators.
- ``arrow``: an Arrow IPC stream with the columns of the neutral record.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from functools import partial
from json.encoder import encode_basestring as quoted
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from duramen import compute as pc
from duramen.cli.output import safe_value
from duramen.errors import UsageError
from duramen.formats import Format, binary_buffers, binary_of, null_mask, numbers_of
from duramen.record import SCHEMA
from duramen.values import MALFORMED_KEY, MALFORMED_VALUE, Decoding, decoded_json, python_values

_EMPTY, _NEWLINE = binary_of([b"", b"\n"])
"""Arrow scalars: for a bytes object, Arrow would import pandas."""

Write = Callable[[pa.RecordBatch], Any]


class Form(StrEnum):
    TEXT = "text"
    JSONL = "jsonl"
    RAW = "raw"
    ARROW = "arrow"

    @property
    def columns(self) -> Sequence[str] | None:
        """Columns that the form prints; None for all."""
        return ("value",) if self in (Form.TEXT, Form.RAW) else None

    def needed(self, decoding: Decoding | None) -> Sequence[str] | None:
        """Columns to read for those."""
        return self.columns if decoding is None or self.columns is None else decoding.needed(self.columns)


@contextmanager
def writer(
    form: Form, out: BinaryIO, codec: Format, *, base64: bool, decoding: Decoding | None = None
) -> Iterator[Write]:
    """Yield a function that writes batches, decoded if so wanted. Flushes the stream at the end, also after an
    error."""
    if form == Form.ARROW and out.isatty():
        raise UsageError(
            "--output arrow writes binary data, and standard output is a terminal",
            hint="redirect it to a file or a program",
        )
    try:
        if form == Form.ARROW:
            with arrow_writer(out, SCHEMA, decoding) as write:
                yield write
            return
        write = _plain_writer(form, out, codec, base64=base64)
        yield write if decoding is None else lambda batch: decoding.pass_on(batch, write)
    finally:
        out.flush()


def _plain_writer(form: Form, out: BinaryIO, codec: Format, *, base64: bool) -> Write:
    if form == Form.JSONL:
        unit = codec.capabilities.timestamps or "us"
        return lambda batch: out.write(json_lines(batch, unit=unit, base64=base64))
    if form == Form.RAW:
        return lambda batch: out.write(_joined(batch.column("value")))
    return partial(_write_text, out, terminal=out.isatty())


@contextmanager
def arrow_writer(out: BinaryIO, schema: pa.Schema, decoding: Decoding | None) -> Iterator[Write]:
    """An Arrow stream. Its schema is that of the first batch, where that decides what decoded values look like."""
    with ExitStack() as stack:
        streams: list[Any] = []

        def write(batch: pa.RecordBatch) -> None:
            if not streams:
                streams.append(stack.enter_context(pa.ipc.new_stream(out, batch.schema)))
            streams[0].write_batch(batch)

        def write_decoded(batch: pa.RecordBatch) -> None:
            assert decoding is not None
            if not streams:
                decoding.bind([batch])
                decoding.bind_rest()
            decoding.pass_on(batch, write)

        yield write if decoding is None else write_decoded
        if not streams:
            empty = pa.RecordBatch.from_pylist([], schema=schema)
            write(empty if decoding is None else decoding.decode(empty))


def _joined(column: pa.Array) -> memoryview:
    """The bytes of a binary column, limited to its slice."""
    data, offsets = binary_buffers(column)
    return memoryview(data)[int(offsets[0]) : int(offsets[-1])]


def _write_text(out: BinaryIO, batch: pa.RecordBatch, *, terminal: bool) -> None:
    if not pa.types.is_binary(batch.schema.field("value").type):
        batch = batch.set_column(batch.schema.get_field_index("value"), "value", pa.array(shown_values(batch)))
    lines = _joined(pc.binary_join_element_wise(batch.column("value").fill_null(_EMPTY), _EMPTY, _NEWLINE))
    try:
        text = str(lines, "utf-8")
    except UnicodeDecodeError:
        text = str(lines, "utf-8", "backslashreplace")
        lines = memoryview(text.encode())
    out.write(safe_value(text).encode() if terminal else lines)


# --- JSON lines


def json_lines(batch: pa.RecordBatch, *, unit: str, base64: bool = False) -> bytes:
    """The records of a neutral batch, one compact JSON object per line.

    >>> row = {"offset": 7, "timestamp": 0, "key": None, "value": b"\\xff", "headers": [{"key": "h", "value": b"v"}]}
    >>> json_lines(pa.RecordBatch.from_pylist([row], SCHEMA), unit="ms").decode()
    '{"offset":7,"timestamp":"1970-01-01T00:00:00.000Z","key":null,"value_base64":"/w==","headers":[{"key":"h","value":"v"}]}\\n'
    """
    named = partial(_named, base64=base64)
    keys, values = (_members(batch, name, malformed, named) for name, malformed in _CONTENT)
    rows = zip(
        batch.column("offset").to_pylist(), _times(batch.column("timestamp"), unit), keys, values,
        batch.column("headers").to_pylist(), strict=True,
    )  # fmt: skip
    lines = [
        f'{{"offset":{offset},"timestamp":{time},{key},{value},"headers":{_headers(headers, base64)}}}\n'
        for offset, time, key, value, headers in rows
    ]
    return "".join(lines).encode()


_CONTENT = (("key", MALFORMED_KEY), ("value", MALFORMED_VALUE))


def _members(batch: pa.RecordBatch, name: str, malformed: str, named: Callable[[str, Any], str]) -> Iterator[str]:
    """The keys or values as members of an object; a decoded one as JSON, and what did not decode with the reason."""
    column = batch.column(name)
    if pa.types.is_binary(column.type):
        return (named(name, data) for data in column.to_pylist())
    shown = [f'"{name}":{decoded_json(value)}' for value in python_values(column)]
    if malformed in batch.schema.names:
        for row, found in enumerate(batch.column(malformed).to_pylist()):
            if found is not None:
                shown[row] += f',"{malformed}":{decoded_json(found)}'
    return iter(shown)


# --- decoded values


def shown_values(batch: pa.RecordBatch) -> list[bytes | None]:
    """Decoded values as lines of text: text as it is, anything else as JSON."""
    column = batch.column("value")
    is_text = pa.types.is_string(column.type)
    shown = [
        None if value is None else value.encode() if is_text else decoded_json(value).encode()
        for value in python_values(column)
    ]
    if MALFORMED_VALUE in batch.schema.names:
        for row, found in enumerate(batch.column(MALFORMED_VALUE).to_pylist()):
            if found is not None:
                shown[row] = f'{{"{MALFORMED_VALUE}":{decoded_json(found)}}}'.encode()
    return shown


def _times(column: pa.Array, unit: str) -> list[str]:
    """Times as JSON strings: ISO 8601 in UTC, with the precision of the format."""
    if column.null_count == len(column):
        return ["null"] * len(column)
    us = column.view(pa.int64())
    moments = np.where(null_mask(us), 0, numbers_of(us)).astype("datetime64[us]").astype(f"datetime64[{unit}]")
    text = np.datetime_as_string(moments, timezone="UTC")
    known = us.is_valid().to_pylist()
    return [f'"{time}"' if valid else "null" for time, valid in zip(text.tolist(), known, strict=True)]


def _named(name: str, data: bytes | None, *, base64: bool) -> str:
    if data is None:
        return f'"{name}":null'
    if not base64:
        try:
            return f'"{name}":{quoted(data.decode())}'
        except UnicodeDecodeError:
            pass
    return f'"{name}_base64":"{b64encode(data).decode()}"'


def _headers(headers: list[dict[str, Any]] | None, base64: bool) -> str:
    if headers is None:
        return "null"
    each = (
        f'{{"key":{quoted(header["key"])},{_named("value", header["value"], base64=base64)}}}' for header in headers
    )
    return f"[{','.join(each)}]"
