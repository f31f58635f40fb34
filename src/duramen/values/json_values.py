"""JSON objects as columns, through Arrow's reader: all values of a batch at once.

Arrow reads a stream of objects and does not know where one value ends, so each object gets its row as a first field,
under a name that no value can know. Where a batch does not come back as it went in, halves of it are tried, down to the
values that are malformed. Types that Arrow's reader lacks (maps, dates) take the way of Python objects.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from duramen import compute as pc
from duramen.errors import UsageError
from duramen.formats import binary_buffers, binary_of, gather, number_array
from duramen.values.codec import Codec, Decoded, MalformedValueError, decode_each, first_line
from duramen.values.infer import check_known, struct_of_objects
from duramen.values.objects import check_representable, fitting
from duramen.values.schemas import struct_of

_ROW = "row " + secrets.token_hex(16)
_ERRORS = (ValueError, RecursionError)
_SUSPICIOUS = r"\}\s*n|[:,\[]\s*-?[IN]"
"""A null after an object, as Arrow's reader ends the process over a stream that begins with one; and the numbers that
it reads and JSON lacks."""


def json_codec(schema: Any) -> Codec | JsonInferring:
    return JsonInferring() if schema is None else _codec(struct_of(schema), strict=False)


def _codec(kind: pa.StructType, *, strict: bool) -> Codec:
    return ArrowJson(kind, strict) if _is_known_to_arrow(kind) else JsonTrees(kind, strict)


@dataclass(frozen=True)
class JsonInferring:
    """Finds the type in the first values. A value with a field that none of them has is malformed, not cut."""

    def bind(self, sample: pa.BinaryArray) -> Codec:
        return _codec(struct_of_objects(_objects(sample)), strict=True)


def _objects(values: pa.BinaryArray) -> Iterator[Any]:
    for value in values.to_pylist():
        try:
            yield parsed(value)
        except (MalformedValueError, *_ERRORS):
            continue


def parsed(value: bytes) -> Any:
    """One object."""
    tree = json.loads(value.decode(), parse_constant=_no_constant)
    if not isinstance(tree, dict):
        raise MalformedValueError(f"the value is a {type(tree).__name__}, not an object")
    return tree


def _no_constant(name: str) -> Any:
    raise MalformedValueError(f"{name} is not JSON")


def _is_known_to_arrow(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return kind.num_fields > 0 and all(_is_known_to_arrow(field.type) for field in kind)
    if pa.types.is_list(kind):
        return _is_known_to_arrow(kind.value_type)
    known = (pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_string, pa.types.is_binary)
    return any(is_kind(kind) for is_kind in (*known, pa.types.is_timestamp, pa.types.is_decimal))


@dataclass(frozen=True)
class JsonTrees:
    """By way of Python objects."""

    type: pa.StructType
    strict: bool

    def decode(self, values: pa.BinaryArray) -> Decoded:
        fit = fitting(self.type)

        def read(value: bytes) -> Any:
            tree = parsed(value)
            check_known(tree, self.type, strict=self.strict)
            return fit(tree)

        return decode_each(values, self.type, read, _ERRORS)


@dataclass(frozen=True)
class ArrowJson:
    """By Arrow's reader."""

    type: pa.StructType
    strict: bool

    def decode(self, values: pa.BinaryArray) -> Decoded:
        if not len(values):
            return Decoded(pa.array([], self.type), {})
        found = self._at_once(values) if _plain_objects(values).all() else None
        return self._checked(values) if found is None else Decoded(found, {})

    def _checked(self, values: pa.BinaryArray) -> Decoded:
        """Each value looked at before Arrow's reader gets it: those that are one object each go on together."""
        malformed: dict[int, str] = {}
        places = np.zeros(len(values), np.int64)
        full: list[bytes] = []
        rows: list[int] = []
        for row, value in enumerate(values.to_pylist()):
            try:
                tree = parsed(value)
                check_known(tree, self.type, strict=self.strict)
            except (MalformedValueError, *_ERRORS) as error:
                if self._is_sound_alone(values.slice(row, 1), error):
                    full.append(value)
                    rows.append(row)
                    places[row] = 1 + len(full)
                else:
                    malformed[row] = first_line(error)
                continue
            places[row] = 2 + len(full) if tree else 1
            if tree:
                full.append(value.strip(b" \t\r\n"))
                rows.append(row)
        unfit: dict[int, str] = {}
        none, empty = pa.nulls(1, self.type), self._read(b"{}", self.type)
        parts = [none, empty, self._halved(binary_of(full), 0, unfit)]
        malformed.update({rows[row]: reason for row, reason in unfit.items()})
        return Decoded(pa.concat_arrays(parts).take(number_array(places)), malformed)

    def _is_sound_alone(self, value: pa.BinaryArray, error: Exception) -> bool:
        """Whether Arrow's reader takes what Python's does not: deep nesting and long numbers, in fields left out."""
        if isinstance(error, MalformedValueError | json.JSONDecodeError | UnicodeDecodeError):
            return False
        return bool(_plain_objects(value).all()) and self._at_once(value) is not None

    def _halved(self, values: pa.BinaryArray, first_row: int, malformed: dict[int, str]) -> pa.Array:
        """Objects of which some may not have the types: all at once, else half by half."""
        if not len(values):
            return pa.array([], self.type)
        found = self._at_once(values)
        if found is not None:
            return found
        if len(values) == 1:
            try:
                return self._read(values[0].as_py(), self.type)
            except pa.ArrowException as error:
                malformed[first_row] = first_line(error)
                return pa.nulls(1, self.type)
        middle = len(values) // 2
        parts = [
            self._halved(values.slice(0, middle), first_row, malformed),
            self._halved(values.slice(middle), first_row + middle, malformed),
        ]
        return pa.concat_arrays(parts)

    @cached_property
    def _with_row(self) -> pa.StructType:
        if _ROW in self.type.names:
            raise UsageError(f"a field cannot be named {_ROW!r}")
        return pa.struct([pa.field(_ROW, pa.int64()), *self.type])

    def _at_once(self, values: pa.BinaryArray) -> pa.Array | None:
        """All values; None where one of them does not fit."""
        rows = np.arange(len(values))
        before, after, end = binary_of([b'{"%s":' % _ROW.encode(), b",", b"\n"])
        numbers = number_array(rows).cast(pa.string()).cast(pa.binary())
        empty = binary_of([b""])[0]
        data, offsets = binary_buffers(values)
        rest = gather(data, offsets[:-1].astype(np.int64) + 1, (np.diff(offsets) - 1).astype(np.uint32))
        lines = pc.binary_join_element_wise(before, numbers, after, rest, end, empty)
        buffers = lines.buffers()
        try:
            found = self._read(buffers[2], self._with_row)
        except pa.ArrowException:
            return None
        if len(found) != len(values) or not np.array_equal(found.field(0).fill_null(-1).to_numpy(), rows):
            return None
        return pa.StructArray.from_arrays(found.flatten()[1:], fields=list(self.type))

    def _read(self, data: Any, kind: pa.StructType) -> pa.StructArray:
        from pyarrow import json as pj

        parsing = pj.ParseOptions(
            explicit_schema=pa.schema(list(kind)), newlines_in_values=True,
            unexpected_field_behavior="error" if self.strict else "ignore",
        )  # fmt: skip
        reading = pj.ReadOptions(use_threads=False, block_size=len(data) + 1)
        table = pj.read_json(pa.BufferReader(data), read_options=reading, parse_options=parsing)
        columns = [table.column(field.name).combine_chunks() for field in kind]
        made = pa.StructArray.from_arrays(columns, fields=list(kind))
        made.validate(full=True)  # the reader does not look at UTF-8
        check_representable(made)
        return made


def _plain_objects(values: pa.BinaryArray) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which values begin and end as an object does, and hold nothing that Arrow's reader must not see."""
    try:
        values.cast(pa.string())
    except pa.ArrowInvalid:  # Arrow's reader does not look at fields that it leaves out
        return np.zeros(len(values), np.bool_)
    data, offsets = binary_buffers(values)
    plain = np.diff(offsets) > 2  # {} would get a comma before its end
    text = np.frombuffer(data, np.uint8)
    plain[plain] &= (text[offsets[:-1][plain]] == ord("{")) & (text[offsets[1:][plain] - 1] == ord("}"))
    return plain & ~np.asarray(pc.match_substring_regex(values, _SUSPICIOUS))
