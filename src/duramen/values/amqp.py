"""Messages of AMQP 1.0 as columns: what RabbitMQ stores in streams, also for clients of AMQP 0.9.1.

The kernel finds the sections, fields and items of all values and checks their bytes; this module gathers them into
arrays. What AMQP lets have any type is a struct of ``type`` and ``text`` (`amqp_text`). Several sections of data are
one binary, several sequences one list.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from duramen import kernel
from duramen.errors import LimitError, UsageError
from duramen.formats import (
    MAX_BATCH_BYTES,
    allocate,
    binary_buffers,
    binary_of,
    bool_array,
    gather,
    number_array,
    with_nulls,
)
from duramen.kernel import AmqpFault, AmqpField, AmqpSpans, Int64s, UInt32s
from duramen.record import TIMESTAMP
from duramen.values.amqp_text import NAMES, TYPE_OF, TYPES, sections_at, spans_at, text_of
from duramen.values.codec import Decoded

ANY = pa.struct([("type", pa.string()), ("text", pa.string())])
"""A value of any type."""
PAIRS = pa.map_(pa.string(), ANY)
BODY = pa.struct([("data", pa.binary()), ("sequence", pa.list_(ANY)), ("value", ANY)])
HEADER = pa.struct(
    [
        ("durable", pa.bool_()), ("priority", pa.int32()), ("ttl", pa.int64()), ("first_acquirer", pa.bool_()),
        ("delivery_count", pa.int64()),
    ]
)  # fmt: skip
_PROPERTIES = {
    AmqpField.MESSAGE_ID: ANY, AmqpField.CORRELATION_ID: ANY, AmqpField.CONTENT_TYPE: pa.string(),
    AmqpField.CONTENT_ENCODING: pa.string(), AmqpField.SUBJECT: pa.string(), AmqpField.TO: pa.string(),
    AmqpField.REPLY_TO: pa.string(), AmqpField.USER_ID: pa.binary(), AmqpField.CREATION_TIME: TIMESTAMP.type,
    AmqpField.ABSOLUTE_EXPIRY_TIME: TIMESTAMP.type, AmqpField.GROUP_ID: pa.string(),
    AmqpField.GROUP_SEQUENCE: pa.int64(), AmqpField.REPLY_TO_GROUP_ID: pa.string(),
    AmqpField.APPLICATION_PROPERTIES: PAIRS, AmqpField.ANNOTATIONS: PAIRS, AmqpField.DELIVERY_ANNOTATIONS: PAIRS,
    AmqpField.FOOTER: PAIRS,
}  # fmt: skip
MESSAGE = pa.struct(
    [("body", BODY), *((field.name.lower(), kind) for field, kind in _PROPERTIES.items()), ("header", HEADER)]
)

_NAMES, _NAME_OFFSETS = binary_buffers(pa.array([TYPES[index] for index in TYPE_OF]))
"""For each constructor the name of its type."""
_LONGEST_NAME = max(map(len, TYPES))
_NULL = 0x40
Mask = npt.NDArray[np.bool_] | None
_SHOWN_BY_KERNEL = {
    "null", "boolean", "ubyte", "ushort", "uint", "ulong", "byte", "short", "int", "long", "uuid", "string", "symbol",
}  # fmt: skip
_IS_GIVEN = np.zeros(256, np.bool_)
"""Codes of which `amqp_text` makes the text, not the kernel."""
_IS_GIVEN[[code for code, name in NAMES.items() if name not in _SHOWN_BY_KERNEL]] = True
NULL_ROWS = 1 << 16
"""Rows of the arrays of nulls that are kept: most fields of most messages are absent."""


@cache
def _many_nulls(kind: pa.DataType) -> pa.Array:
    return pa.array([None] * NULL_ROWS, kind)  # `pa.nulls` fills the buffers of what lists and maps hold


def nulls(rows: int, kind: pa.DataType) -> pa.Array:
    return _many_nulls(kind).slice(0, rows) if rows <= NULL_ROWS else pa.nulls(rows, kind)


def amqp_codec(fields: Any) -> Amqp:
    """The codec of all fields, or of those that a text names, with commas between them."""
    if fields is None:
        return Amqp()
    names = [part.strip() for part in fields.split(",")] if isinstance(fields, str) else []
    if not names or len(set(names)) < len(names) or not set(names) <= set(MESSAGE.names):
        raise UsageError(
            f"the schema of AMQP messages is a list of their fields (got {fields!r:.80})",
            hint=f"some of {', '.join(MESSAGE.names)}",
        )
    return Amqp(pa.struct([MESSAGE.field(name) for name in names]))


@dataclass(frozen=True)
class Amqp:
    """The codec. ``type`` has the fields that are wanted."""

    type: pa.StructType = MESSAGE

    def narrowed(self, kind: pa.StructType) -> Amqp:
        """The codec of some fields: those that are left out cost nothing but the check of their bytes."""
        return Amqp(kind)

    def decode(self, values: pa.BinaryArray) -> Decoded:
        data, offsets = binary_buffers(values)
        return self.decode_at(data, offsets[:-1].astype(np.int64), np.diff(offsets).astype(np.uint32))

    def decode_at(self, data: Any, positions: Int64s, lengths: UInt32s) -> Decoded:
        rows = len(positions)
        spans = AmqpSpans.empty(len(AmqpField) * rows)
        faults, fault_positions = np.zeros(rows, np.uint32), np.zeros(rows, np.int64)
        kernel.scan_amqp(data, positions, lengths, spans, faults, fault_positions)
        columns = _MessageColumns(data, spans, rows)
        bad = np.flatnonzero(faults)
        malformed = {
            int(row): f"byte {fault_positions[row]}: {AmqpFault(int(faults[row])).meaning}" for row in bad.tolist()
        }
        return Decoded(columns.messages(self.type, faults != 0 if len(bad) else None), malformed)


def _at(spans: AmqpSpans, rows: Any) -> AmqpSpans:
    """Some of the spans."""
    columns = (spans.code, spans.position, spans.length, spans.count)
    return AmqpSpans(*(np.ascontiguousarray(column[rows]) for column in columns))


class _MessageColumns:
    """Gathers the columns of some messages."""

    def __init__(self, data: Any, spans: AmqpSpans, rows: int) -> None:
        self._data = data
        self._view = memoryview(data)
        self._spans = spans
        self._rows = rows
        codes = spans.code.reshape(len(AmqpField), rows)
        self._present = codes.max(axis=1, initial=0).tolist()
        self._complete = codes.min(axis=1, initial=255).tolist()

    def messages(self, kind: pa.StructType, malformed: npt.NDArray[np.bool_] | None) -> pa.StructArray:
        if not kind.num_fields:
            valid = None if malformed is None else pa.py_buffer(np.packbits(~malformed, bitorder="little"))
            return pa.Array.from_buffers(kind, self._rows, [valid], children=[])
        return _struct([self._part(field.name) for field in kind], kind, malformed)

    def _part(self, name: str) -> pa.Array:
        if name in ("body", "header"):
            return self._body() if name == "body" else self._header()
        field = AmqpField[name.upper()]
        return self._column(field, _PROPERTIES[field])

    def _field(self, field: AmqpField) -> AmqpSpans | None:
        """The spans of a field; None where no message has it."""
        part = slice(field * self._rows, (field + 1) * self._rows)
        if not self._present[field]:
            return None
        code = self._spans.code[part]
        found = self._spans.slice(part.start, part.stop)
        if self._complete[field]:
            return found
        absent = code == 0
        for column in (found.position, found.length, found.count):
            column[absent] = 0
        return found

    def _absent(self, field: AmqpField) -> Mask:
        """Where a field is absent; None where all messages have it."""
        return None if self._complete[field] else self._spans.code[field * self._rows : (field + 1) * self._rows] == 0

    def _column(self, field: AmqpField, kind: pa.DataType) -> pa.Array:
        spans = self._field(field)
        if spans is None:
            return nulls(self._rows, kind)
        if kind == PAIRS:
            return self._pairs(spans, self._absent(field))
        if kind == ANY:
            return self._any(spans, self._absent(field))
        absent = self._absent(field)
        if pa.types.is_boolean(kind):
            return with_mask(bool_array(spans.position != 0), absent)
        if kind in (pa.string(), pa.binary()):
            return with_mask(self._gathered(spans, kind), absent)
        numbers = spans.position * 1000 if kind == TIMESTAMP.type else spans.position.astype(kind.to_pandas_dtype())
        return number_array(numbers, absent).view(kind)

    def _gathered(self, spans: AmqpSpans, kind: pa.DataType) -> pa.Array:
        found = gather(self._data, spans.position, spans.length)
        return found if kind == pa.binary() else pa.Array.from_buffers(kind, len(found), found.buffers())

    def _header(self) -> pa.StructArray:
        fields = [AmqpField[field.name.upper()] for field in HEADER]
        if not any(self._present[field] for field in fields):
            return nulls(self._rows, HEADER)
        codes = [self._spans.code[field * self._rows : (field + 1) * self._rows] for field in fields]
        absent = ~np.logical_or.reduce([code != 0 for code in codes])
        arrays = [self._column(field, HEADER.field(number).type) for number, field in enumerate(fields)]
        return _struct(arrays, HEADER, absent)

    # --- the body

    def _body(self) -> pa.StructArray:
        value = self._field(AmqpField.VALUE)
        shown = nulls(self._rows, ANY) if value is None else self._any(value, self._absent(AmqpField.VALUE))
        return _struct([self._data_bodies(), self._sequences(), shown], BODY, None)

    def _data_bodies(self) -> pa.Array:
        spans = self._field(AmqpField.DATA)
        if spans is None:
            return nulls(self._rows, pa.binary())
        if spans.count.max() > 1:
            return self._joined_bodies(spans, np.flatnonzero(spans.count > 1))
        return with_mask(self._gathered(spans, pa.binary()), self._absent(AmqpField.DATA))

    def _joined_bodies(self, spans: AmqpSpans, several: npt.NDArray[np.int64]) -> pa.Array:
        """Bodies of which some are in several sections."""
        single = np.flatnonzero(spans.count <= 1)
        alone = _at(spans, single)
        joined = [
            b"".join(self._view[start:end] for _, start, end in sections_at(self._view, at, at + length))
            for at, length in zip(spans.position[several].tolist(), spans.length[several].tolist(), strict=True)
        ]
        parts = [with_nulls(self._gathered(alone, pa.binary()), alone.code == 0), binary_of(joined)]
        return _interleaved(parts, [single, several])

    def _sequences(self) -> pa.Array:
        spans = self._field(AmqpField.SEQUENCE)
        if spans is None:
            return nulls(self._rows, pa.list_(ANY))
        items: list[tuple[int, int, int]] = []
        ends = [0]
        for at, length in zip(spans.position.tolist(), spans.length.tolist(), strict=True):
            for section in sections_at(self._view, at, at + length):
                items += spans_at(self._view, *section)
            ends.append(len(items))
        flat = AmqpSpans(
            np.array([item[0] for item in items], np.uint8), np.array([item[1] for item in items], np.int64),
            np.array([item[2] for item in items], np.uint32), np.zeros(len(items), np.uint32),
        )  # fmt: skip
        absent = self._absent(AmqpField.SEQUENCE)
        return _nested(pa.list_(ANY), np.array(ends, np.int32), self._any(flat, None), absent)

    # --- values of any type

    def _pairs(self, spans: AmqpSpans, absent: Mask) -> pa.MapArray:
        ends = np.zeros(len(spans.code) + 1, np.int32)
        np.cumsum(spans.count >> 1, dtype=np.int32, out=ends[1:])
        keys, values = AmqpSpans.empty(int(ends[-1])), AmqpSpans.empty(int(ends[-1]))
        kernel.scan_amqp_pairs(self._data, spans, keys, values)
        entries = pa.StructArray.from_arrays([self._text(keys), self._any(values, None)], fields=list(_ENTRIES))
        return _nested(PAIRS, ends, entries, absent)

    def _any(self, spans: AmqpSpans, absent: Mask) -> pa.StructArray:
        rows = len(spans.code)
        offsets, names = np.empty(rows + 1, np.int32), allocate(rows * _LONGEST_NAME)
        total = kernel.fill_amqp_names(spans.code, _NAMES, _NAME_OFFSETS, offsets, names)
        return _struct([_string_array(offsets, names[:total]), self._text(spans)], ANY, absent)

    def _text(self, spans: AmqpSpans) -> pa.StringArray:
        """The values as text; null where a value is absent or null."""
        most, wanted, without = kernel.measure_amqp_texts(spans)
        given, given_offsets = self._given(spans) if wanted else (b"", np.zeros(1, np.int32))
        most += len(given)
        if most > MAX_BATCH_BYTES:
            raise LimitError(f"{most} bytes of text do not fit into one Arrow batch", hint="read fewer bytes at a time")
        offsets, data = np.empty(len(spans.code) + 1, np.int32), allocate(most)
        total = kernel.fill_amqp_texts(self._data, spans, given, given_offsets, offsets, data)
        absent = (spans.code == 0) | (spans.code == _NULL) if without else None
        return with_mask(_string_array(offsets, data[:total]), absent)

    def _given(self, spans: AmqpSpans) -> tuple[Any, npt.NDArray[np.int32]]:
        """The texts that the kernel does not make."""
        found = _at(spans, np.flatnonzero(_IS_GIVEN[spans.code]))
        columns = (column.tolist() for column in (found.code, found.position, found.length))
        texts = [text_of(self._view, *span) for span in zip(*columns, strict=True)]
        return binary_buffers(pa.array(texts, pa.string()))


_ENTRIES = pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", ANY)])


def _string_array(offsets: npt.NDArray[np.int32], data: Any) -> pa.StringArray:
    return pa.Array.from_buffers(pa.string(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _struct(arrays: Sequence[pa.Array], kind: pa.StructType, absent: Mask) -> pa.StructArray:
    return with_mask(pa.StructArray.from_arrays(list(arrays), fields=list(kind)), absent)


def with_mask(array: pa.Array, absent: Mask) -> pa.Array:
    """An array without nulls of its own and without an offset, with null where ``absent``."""
    if absent is None or not absent.any():
        return array
    valid = pa.py_buffer(np.packbits(~absent, bitorder="little"))
    if pa.types.is_struct(array.type):
        children = [array.field(number) for number in range(array.type.num_fields)]
        return pa.Array.from_buffers(array.type, len(array), [valid], children=children)
    return pa.Array.from_buffers(array.type, len(array), [valid, *array.buffers()[1:]])


def _nested(kind: pa.DataType, ends: npt.NDArray[np.int32], items: pa.Array, absent: Mask) -> Any:
    """A list or map array: ``ends`` begins with 0."""
    valid = pa.py_buffer(np.packbits(~absent, bitorder="little")) if absent is not None else None
    return pa.Array.from_buffers(kind, len(ends) - 1, [valid, pa.py_buffer(ends)], children=[items])


def _interleaved(parts: Sequence[pa.Array], rows: Sequence[npt.NDArray[np.int64]]) -> pa.Array:
    """Arrays as one, in the order of the rows that they belong to."""
    order = np.empty(sum(map(len, parts)), np.int64)
    order[np.concatenate(rows)] = np.arange(len(order))
    return pa.concat_arrays(parts).take(number_array(order))
