"""Avro records as columns, through the package ``fastavro``. A reader's schema resolves other versions by Avro's rules.

Refused are schemas that no column type fits (unions of several types, recursion) and arrays whose items take no bytes:
a few bytes could claim any number of them.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple
from uuid import UUID

import pyarrow as pa

from duramen.errors import UsageError
from duramen.record import TIMESTAMP
from duramen.values.codec import Decoded, MalformedValueError, decode_each, need
from duramen.values.schemas import MAX_DEPTH, FieldBudget, text_of

_ERRORS = (ValueError, TypeError, LookupError, EOFError, ArithmeticError, RecursionError, AttributeError, struct.error)
"""What ``fastavro`` raises for bytes that are not of the schema."""

_PLAIN = {
    "null": pa.null(), "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(),
    "double": pa.float64(), "bytes": pa.binary(), "string": pa.string(),
}  # fmt: skip
_LOGICAL = {
    "date": pa.date32(), "timestamp-millis": TIMESTAMP.type, "timestamp-micros": TIMESTAMP.type,
    "local-timestamp-millis": pa.timestamp("us"), "local-timestamp-micros": pa.timestamp("us"),
    "time-millis": pa.time64("us"), "time-micros": pa.time64("us"), "uuid": pa.string(),
}  # fmt: skip


@dataclass(frozen=True)
class Avro:
    """The codec. ``schema`` is the writer's; ``reader``, where it differs, says what the columns are. JSON texts."""

    type: pa.DataType
    schema: str
    reader: str | None = None

    @property
    def name(self) -> str:
        return str(json.loads(self.schema)["name"])

    def decode(self, values: pa.BinaryArray) -> Decoded:
        return decode_each(values, self.type, _reading(self.schema, self.reader), _ERRORS)


def avro_codec(schema: Any, reader: Any = None, *, records: bool = True) -> Avro:
    """The codec of values that ``schema`` wrote: records, or, without ``records``, also single numbers and texts."""
    if schema is None:
        raise UsageError("Avro values need their schema", hint="give it as JSON or as @FILE")
    need("fastavro", "avro", "Avro")
    writer_text, reader_text = _text(schema), None if reader is None else _text(reader)
    with _usable():
        found = arrow_of_avro(json.loads(reader_text or writer_text))
        _reading(writer_text, reader_text)
    if not pa.types.is_struct(found) and (records or pa.types.is_nested(found) or pa.types.is_null(found)):
        raise UsageError("the Avro schema is not a record")
    return Avro(found, writer_text, reader_text)


def resolving(target: Avro, schema: Any) -> Avro:
    """The codec of the same columns for values that another schema wrote."""
    text = _text(schema)
    if text == target.schema:
        return target
    with _usable():
        _reading(text, target.schema)
    return Avro(target.type, text, target.schema)


@contextmanager
def _usable() -> Iterator[None]:
    try:
        yield
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise UsageError(f"the Avro schema cannot be used: {error}") from error


def _text(schema: Any) -> str:
    return text_of(schema) if isinstance(schema, str) else json.dumps(schema)


@lru_cache(maxsize=64)
def _reading(schema: str, reader: str | None) -> Callable[[bytes], Any]:
    fastavro = need("fastavro", "avro", "Avro")
    _check_bounded(json.loads(schema))
    try:
        parsed = fastavro.parse_schema(json.loads(schema))
        wanted = None if reader is None else fastavro.parse_schema(json.loads(reader))
    except (fastavro.schema.SchemaParseException, fastavro.schema.UnknownType) as error:
        raise ValueError(str(error)) from error
    is_plain = '"uuid"' not in (reader or schema)
    resolution_error = fastavro.read.SchemaResolutionError

    def read(value: bytes) -> Any:
        stream = io.BytesIO(value)
        try:
            tree = fastavro.schemaless_reader(stream, parsed, wanted)
        except resolution_error as error:
            raise MalformedValueError(f"not of the reader's schema: {error}") from error
        except (EOFError, struct.error) as error:
            raise MalformedValueError(f"cut short after {len(value)} bytes") from error
        except IndexError as error:  # of a list: of branches or symbols
            cut = f"cut short after {len(value)} bytes"
            out_of_range = "the index of a union or enum is out of range"
            raise MalformedValueError(out_of_range if "list" in str(error) else cut) from error
        if stream.tell() != len(value):
            raise MalformedValueError(f"{len(value) - stream.tell()} bytes are left over")
        return tree if is_plain else _without_uuids(tree)

    return read


def _without_uuids(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {name: _without_uuids(value) for name, value in tree.items()}
    if isinstance(tree, list):
        return [_without_uuids(value) for value in tree]
    return str(tree) if isinstance(tree, UUID) else tree


def arrow_of_avro(schema: Any) -> pa.DataType:
    """The Arrow type of an Avro schema.

    >>> arrow_of_avro({"type": "record", "name": "o", "fields": [{"name": "n", "type": ["null", "long"]}]})
    StructType(struct<n: int64>)
    """
    return _Types().of(schema, "", 0).arrow


def _check_bounded(schema: Any) -> None:
    """Raise where values of a writer's schema could take any time or stack, also in fields that a reader drops."""
    _Types(only_bounds=True).of(schema, "", 0)


class _AvroType(NamedTuple):
    """What a schema stands for."""

    arrow: pa.DataType
    takes_bytes: bool
    """Whether every value takes a byte at least."""
    fields: int = 0


class _Types:
    """Walks a schema. ``only_bounds`` allows what has no column type, as a reader may drop it."""

    def __init__(self, *, only_bounds: bool = False) -> None:
        self._only_bounds = only_bounds
        self._budget = FieldBudget()
        self._named: dict[str, _AvroType | None] = {}

    def of(self, schema: Any, space: str, depth: int) -> _AvroType:
        if depth > MAX_DEPTH:
            raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep")
        if isinstance(schema, list):
            return self._of_union(schema, space, depth)
        if isinstance(schema, str):
            return self._of_name(schema, space)
        kind = schema["type"]
        if kind in ("record", "error", "enum", "fixed"):
            return self._logical(schema, self._of_named(schema, kind, space, depth))
        if kind == "array":
            items = self.of(schema["items"], space, depth + 1)
            if not items.takes_bytes:
                raise ValueError("the items of an array take no bytes, so that no length bounds their number")
            return _AvroType(pa.list_(items.arrow), True, items.fields)
        if kind == "map":
            values = self.of(schema["values"], space, depth + 1)
            return _AvroType(pa.map_(pa.string(), values.arrow), True, values.fields)
        return self._logical(schema, self.of(kind, space, depth + 1))

    def _logical(self, schema: Mapping[str, Any], found: _AvroType) -> _AvroType:
        logical = schema.get("logicalType")
        if logical == "decimal" and not self._only_bounds:
            return found._replace(arrow=pa.decimal128(schema["precision"], schema.get("scale", 0)))
        return found._replace(arrow=_LOGICAL[logical]) if logical in _LOGICAL else found

    def _of_union(self, schema: list[Any], space: str, depth: int) -> _AvroType:
        rest = [self.of(branch, space, depth + 1) for branch in schema if branch != "null"]
        if len(rest) != 1 and not self._only_bounds:
            raise ValueError("a union of several types has no column type")
        return _AvroType(rest[0].arrow if rest else pa.null(), True, sum(each.fields for each in rest))

    def _of_name(self, name: str, space: str) -> _AvroType:
        if name in _PLAIN:
            return _AvroType(_PLAIN[name], name != "null")
        full = name if "." in name or not space else f"{space}.{name}"
        if full not in self._named:
            raise ValueError(f"the type {name!r} is not known here")
        found = self._named[full]
        if found is None:
            raise ValueError(f"the type {name!r} is recursive")
        self._budget.spend(found.fields)
        return found

    def _of_named(self, schema: Mapping[str, Any], kind: str, space: str, depth: int) -> _AvroType:
        name = str(schema["name"])
        space = name.rpartition(".")[0] if "." in name else str(schema.get("namespace", space) or "")
        full = name if "." in name or not space else f"{space}.{name}"
        self._named[full] = None
        if kind == "enum":
            found = _AvroType(pa.string(), True)
        elif kind == "fixed":
            found = _AvroType(pa.binary(), schema["size"] > 0)
        else:
            found = self._of_record(schema["fields"], space, depth)
        self._named[full] = self._logical(schema, found)
        return found

    def _of_record(self, fields: Sequence[Mapping[str, Any]], space: str, depth: int) -> _AvroType:
        self._budget.spend(len(fields))
        names = [field["name"] for field in fields]
        if len(set(names)) < len(names):
            raise ValueError("a record has two fields of the same name")
        found = [self.of(field["type"], space, depth + 1) for field in fields]
        arrow = pa.struct([(name, each.arrow) for name, each in zip(names, found, strict=True)])
        return _AvroType(
            arrow, any(each.takes_bytes for each in found), len(fields) + sum(each.fields for each in found)
        )
