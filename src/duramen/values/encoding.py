"""Typed columns back into bytes: JSON, Avro, Protobuf, MessagePack, text, and AMQP messages of one section of data.

What cannot be encoded is refused with its row, before anything is stored.
"""

from __future__ import annotations

import io
import json
import math
import struct
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa

from duramen.arguments import check_choice
from duramen.errors import UsageError
from duramen.formats import binary_of
from duramen.record import COLUMNS
from duramen.values.codec import first_line, need
from duramen.values.decoding import Schema, python_values
from duramen.values.schemas import text_of

ENCODED_KINDS = ("amqp", "avro", "json", "msgpack", "protobuf", "utf8")
_ERRORS = (
    ValueError,
    TypeError,
    LookupError,
    OverflowError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    struct.error,
)
Write = Callable[[Any], bytes]


@dataclass(frozen=True)
class Encoder:
    """Encodes the column ``value`` of batches; without one, the columns that no record has are its fields."""

    kind: str
    schema: Any = None

    def encode(self, data: pa.RecordBatch | pa.Table) -> pa.Table:
        """The batch with its values as bytes, and the other columns of a record."""
        table = data if isinstance(data, pa.Table) else pa.Table.from_batches([data])
        others = [name for name in table.column_names if name in COLUMNS and name != "value"]
        if "value" in table.column_names:
            stray = [name for name in table.column_names if name not in COLUMNS]
            if stray:
                raise UsageError(
                    f"the column {stray[0]!r} stands beside the column 'value'", hint="put it into the struct 'value'"
                )
            values = table.column("value").combine_chunks()
        else:
            fields = table.drop_columns(others)
            if not fields.num_columns:
                raise UsageError("no column holds values to encode", hint="give a column 'value', or the fields")
            values = pa.array(fields.to_struct_array().combine_chunks() if fields.num_rows else [], _struct(fields))
        encoded = binary_of(self._encoded(values))
        return pa.table({**{name: table.column(name) for name in others}, "value": encoded})

    def in_place(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with its column ``value`` as bytes, and all others as they are."""
        number = batch.schema.get_field_index("value")
        return batch.set_column(number, "value", binary_of(self._encoded(batch.column(number))))

    def _encoded(self, values: pa.Array) -> list[bytes | None]:
        if isinstance(values, pa.ChunkedArray):
            values = values.combine_chunks() if values.num_chunks != 1 else values.chunk(0)
        write = self._writer(values.type)

        def written(part: pa.Array) -> list[bytes | None]:
            return [None if value is None else write(value) for value in python_values(part, _refused)]

        try:
            return written(values)
        except _ERRORS as error:
            raise self._first_error(values, written) or error from error

    def _first_error(self, values: pa.Array, write: Callable[[pa.Array], object]) -> UsageError | None:
        for row in range(len(values)):
            try:
                write(values.slice(row, 1))
            except _ERRORS as error:
                return UsageError(f"row {row} cannot be encoded as {self.kind}: {first_line(error)}")
        return None

    def _writer(self, kind: pa.DataType) -> Write:
        if self.kind == "utf8":
            return lambda value: _text(value).encode()
        if self.kind == "amqp":
            return _amqp
        if not pa.types.is_struct(kind):
            raise UsageError(f"{self.kind} values are structs (got {kind})", hint="give a struct column, or its fields")
        makers: dict[str, Callable[[Any], Write]] = {
            "json": _json_writer, "msgpack": _msgpack_writer, "avro": _avro_writer, "protobuf": _protobuf_writer,
        }  # fmt: skip
        return makers[self.kind](self.schema)


def encoder(kind: str, schema: Schema = None) -> Encoder:
    """Make an encoder. ``schema`` is needed for ``avro`` and ``protobuf``, as `decoder` takes it.

    >>> import pyarrow as pa
    >>> encoder("json").encode(pa.table({"id": [1], "wood": ["oak"]}))["value"].to_pylist()
    [b'{"id":1,"wood":"oak"}']
    """
    check_choice("encode", kind, ENCODED_KINDS)
    if kind in ("avro", "protobuf") and schema is None:
        raise UsageError(f"{kind} values need a schema to be encoded", hint="give value_schema")
    if kind not in ("avro", "protobuf") and schema is not None:
        raise UsageError(f"{kind} values are encoded without a schema", hint="leave it out")
    made = Encoder(kind, schema)
    made._writer(pa.struct([]))  # a wrong schema or a missing package is reported here, and not in a task
    return made


def encoded(data: Any, encode: str | Encoder | None, schema: Schema = None) -> Any:
    """What `append_batch` stores: the data itself, or a typed table with its values as bytes."""
    if encode is None:
        if schema is not None:
            raise UsageError("value_schema is given without encode", hint=f"encode is {', '.join(ENCODED_KINDS)}")
        return data
    if not isinstance(data, pa.RecordBatch | pa.Table):
        raise UsageError(f"encode takes a RecordBatch or Table (got {type(data).__name__})")
    made = encode if isinstance(encode, Encoder) else encoder(encode, schema)
    return made.encode(data)


def _refused(pairs: Any) -> Any:
    raise ValueError(f"a map has a key twice, or one that is no plain value: {[key for key, _ in pairs]!r:.80}")


def _struct(fields: pa.Table) -> pa.StructType:
    return pa.struct(list(fields.schema))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"a {type(value).__name__} is no text")
    return value


# --- decoded values for people


def decoded_json(value: Any) -> str:
    """A decoded value as JSON, without the fields that are null.

    >>> decoded_json({"id": 7, "body": b"\\xff", "name": None})
    '{"id":7,"body_base64":"/w=="}'
    """
    return json.dumps(_jsonable(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _jsonable(value: Any) -> Any:
    if isinstance(value, dict):
        return dict(_member(str(name), item) for name, item in value.items() if item is not None)
    if isinstance(value, list):
        return [_jsonable(item) for item in value]
    if isinstance(value, bytes):
        return dict([_member("bytes", value)])
    if isinstance(value, datetime) and value.utcoffset() is not None:
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _member(name: str, value: Any) -> tuple[str, Any]:
    if not isinstance(value, bytes):
        return name, _jsonable(value)
    try:
        return name, value.decode()
    except UnicodeDecodeError:
        return f"{name}_base64", b64encode(value).decode()


# --- JSON and MessagePack


def _json_writer(_: Any) -> Write:
    encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_json_scalar).encode
    return lambda value: encode(value).encode()


def _json_scalar(value: Any) -> Any:
    if isinstance(value, datetime | date | time):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, Decimal):
        return str(value)
    raise ValueError(f"JSON has no {type(value).__name__}")


def _msgpack_writer(_: Any) -> Write:
    pack = need("msgpack", "msgpack", "MessagePack").packb

    def other(value: Any) -> Any:
        if isinstance(value, Decimal | date | time):
            return str(value)
        raise ValueError(f"MessagePack has no {type(value).__name__}")

    def write(value: Any) -> bytes:
        packed: bytes = pack(value, datetime=True, default=other)
        return packed

    return write


# --- Avro and Protobuf


def _avro_writer(schema: Any) -> Write:
    fastavro = need("fastavro", "avro", "Avro")
    try:
        tree = json.loads(text_of(schema)) if isinstance(schema, str) else schema
        parsed = fastavro.parse_schema(tree)
    except (ValueError, LookupError, TypeError, fastavro.schema.SchemaParseException) as error:
        raise UsageError(f"the Avro schema cannot be used: {error}") from error

    check = need("fastavro.validation", "avro", "Avro")

    def write(value: Any) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, value, strict=True)
        try:  # the writer cuts 1.5 to 1, makes text a boolean, and writes an int of 64 bits
            check.validate(value, parsed)
        except check.ValidationError as error:
            raise ValueError(f"{error.errors[0]}") from error
        return out.getvalue()

    return write


def _protobuf_writer(schema: Any) -> Write:
    from duramen.values.protobuf import message_class, protobuf_codec

    codec = protobuf_codec(schema)
    kind = message_class(codec.files, codec.message)

    def write(value: Any) -> bytes:
        message = kind()
        _fill(message, value)
        data: bytes = message.SerializeToString()
        return data

    return write


def _fill(message: Any, value: dict[str, Any]) -> None:
    for name, item in value.items():
        field = message.DESCRIPTOR.fields_by_name.get(name)
        if field is None:
            raise ValueError(f"the message has no field {name!r}")
        if item is not None:
            _fill_field(message, field, item)


def _fill_field(message: Any, field: Any, item: Any) -> None:
    target: Any = getattr(message, field.name) if field.message_type is not None or isinstance(item, list) else None
    if isinstance(item, list):
        for each in item:
            _fill(target.add(), each) if field.message_type is not None else target.append(_scalar(field, each))
    elif field.message_type is None:
        setattr(message, field.name, _scalar(field, item))
    elif field.message_type.GetOptions().map_entry:
        kind = field.message_type.fields_by_name["value"]
        for key, each in item.items():
            _fill(target[key], each) if isinstance(each, dict) else target.update({key: _scalar(kind, each)})
    elif isinstance(item, datetime):
        target.FromDatetime(item)
    elif isinstance(item, str):  # a message inside of itself, as the decoder shows it
        need("google.protobuf.json_format", "protobuf", "Protobuf").Parse(item, target)
    else:
        target.SetInParent()
        _fill(target, item)


def _scalar(field: Any, item: Any) -> Any:
    if field.enum_type is not None and isinstance(item, str):
        named = field.enum_type.values_by_name.get(item)
        return int(item) if named is None else named.number
    if not isinstance(item, Decimal):
        return item
    if item != int(item):
        raise ValueError(f"the field {field.name!r} is a whole number (got {item})")
    return int(item)


# --- AMQP


def _amqp(value: Any) -> bytes:
    """A message of one section of data: of bytes, of text, or of a decoded message that has ``body.data`` alone."""
    if isinstance(value, dict):
        body = value.get("body") or {}
        more = [name for name, item in value.items() if name != "body" and item is not None]
        more += [f"body.{name}" for name, item in body.items() if name != "data" and item is not None]
        if more:
            raise ValueError(f"the field {more[0]!r} is no section of data")
        value = body.get("data")
    data = value.encode() if isinstance(value, str) else value
    if not isinstance(data, bytes):
        raise ValueError(f"a {type(value).__name__} is no body")
    size = bytes([0xA0, len(data)]) if len(data) < 256 else b"\xb0" + struct.pack(">I", len(data))
    return b"\0\x53\x75" + size + data
