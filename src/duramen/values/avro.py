"""Avro records as columns, through the package ``fastavro``. A reader's schema resolves other versions by Avro's rules.

Refused are schemas that no column type fits (unions of several types, recursion) and arrays whose items take no bytes:
a few bytes could claim any number of them.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from uuid import UUID

import pyarrow as pa

from duramen.errors import UsageError
from duramen.record import TIMESTAMP
from duramen.values.codec import Decoded, MalformedValueError, decode_each, need
from duramen.values.schemas import text_of

MAX_DEPTH = 32
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

    type: pa.StructType
    schema: str
    reader: str | None = None

    def decode(self, values: pa.BinaryArray) -> Decoded:
        return decode_each(values, self.type, _reading(self.schema, self.reader), _ERRORS)


def avro_codec(schema: Any, reader: Any = None) -> Avro:
    """The codec of values that ``schema`` wrote."""
    if schema is None:
        raise UsageError("Avro values need their schema", hint="give it as JSON or as @FILE")
    need("fastavro", "avro", "Avro")
    writer_text, reader_text = _text(schema), None if reader is None else _text(reader)
    try:
        found = arrow_of_avro(json.loads(reader_text or writer_text))
        arrow_of_avro(json.loads(writer_text))
        _reading(writer_text, reader_text)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise UsageError(f"the Avro schema cannot be used: {error}") from error
    if not pa.types.is_struct(found):
        raise UsageError("the Avro schema is not a record")
    return Avro(found, writer_text, reader_text)


def _text(schema: Any) -> str:
    return text_of(schema) if isinstance(schema, str) else json.dumps(schema)


@lru_cache(maxsize=64)
def _reading(schema: str, reader: str | None) -> Callable[[bytes], Any]:
    fastavro = need("fastavro", "avro", "Avro")
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
    return _Types().of(schema, "", 0)


class _Types:
    """The types that a schema has named so far."""

    def __init__(self) -> None:
        self._named: dict[str, pa.DataType | None] = {}
        self._empty: set[str] = set()

    def of(self, schema: Any, space: str, depth: int) -> pa.DataType:
        if depth > MAX_DEPTH:
            raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep")
        if isinstance(schema, list):
            return self._of_union(schema, space, depth)
        if isinstance(schema, str):
            return self._of_name(schema, space)
        kind, logical = schema["type"], schema.get("logicalType")
        if logical in _LOGICAL:
            return _LOGICAL[logical]
        if logical == "decimal":
            return pa.decimal128(schema["precision"], schema.get("scale", 0))
        if kind in ("record", "error", "enum", "fixed"):
            return self._of_named(schema, kind, space, depth)
        if kind == "array":
            if self._may_be_empty(schema["items"]):
                raise ValueError("the items of an array take no bytes, so that no length bounds their number")
            return pa.list_(self.of(schema["items"], space, depth + 1))
        if kind == "map":
            return pa.map_(pa.string(), self.of(schema["values"], space, depth + 1))
        return self.of(kind, space, depth + 1)

    def _of_union(self, schema: list[Any], space: str, depth: int) -> pa.DataType:
        rest = [branch for branch in schema if branch != "null"]
        if len(rest) != 1:
            raise ValueError("a union of several types has no column type")
        return self.of(rest[0], space, depth + 1)

    def _of_name(self, name: str, space: str) -> pa.DataType:
        if name in _PLAIN:
            return _PLAIN[name]
        full = name if "." in name or not space else f"{space}.{name}"
        if full not in self._named:
            raise ValueError(f"the type {name!r} is not known here")
        found = self._named[full]
        if found is None:
            raise ValueError(f"the type {name!r} is recursive, and has no column type")
        return found

    def _of_named(self, schema: Mapping[str, Any], kind: str, space: str, depth: int) -> pa.DataType:
        name = str(schema["name"])
        space = name.rpartition(".")[0] if "." in name else str(schema.get("namespace", space) or "")
        full = name if "." in name or not space else f"{space}.{name}"
        self._named[full] = None
        if kind in ("enum", "fixed"):
            found = pa.string() if kind == "enum" else pa.binary()
        else:
            types = [(field["name"], self.of(field["type"], space, depth + 1)) for field in schema["fields"]]
            found = pa.struct(types)
        self._named[full] = found
        return found

    def _may_be_empty(self, schema: Any) -> bool:
        """Whether a value may take no bytes."""
        if schema == "null" or schema in ([], ["null"]):
            return schema == "null"
        if isinstance(schema, str):
            return schema not in _PLAIN  # a record by its name: its fields were not looked at here
        if isinstance(schema, dict):
            if schema.get("type") == "fixed":
                return not schema.get("size")
            if schema.get("type") == "record":
                return all(self._may_be_empty(field["type"]) for field in schema["fields"])
            return schema.get("type") == "null"
        return False
