"""Values as columns: JSON or Avro, with a given schema. Runs inside tasks, one Arrow batch at a time.

JSON goes through Arrow's reader, whole batches at once; only a batch with a value that does not fit is looked at value
by value, to say which. Avro has no such reader: `fastavro` makes a Python object per record, and that is what it costs.

The decoded fields become the struct column ``value``. A value that cannot be decoded raises with its offset, or becomes
null where that was asked for (``malformed="null"``); nothing is dropped.
"""

from __future__ import annotations

import importlib.util
import io
import json
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from duramen.errors import CorruptionError, DuramenError, UsageError

KINDS = ("json", "avro")
MALFORMED = ("fail", "null")


@dataclass(frozen=True)
class Decoder:
    """How values are decoded. ``text`` is Avro's schema, as JSON; for JSON the Arrow type says it all."""

    kind: str
    type: pa.StructType
    text: str = ""
    malformed: str = "fail"

    @property
    def field(self) -> pa.Field:
        return pa.field("value", self.type)

    def decode(self, offsets: pa.Array, values: pa.Array) -> pa.Array:
        """The decoded values; a null stays null."""
        if values.null_count:
            valid = values.is_valid()
            rows = pc.if_else(valid, pc.subtract(pc.cumulative_sum(valid.cast(pa.int64())), 1), None)
            return self.decode(offsets.filter(valid), values.drop_null()).take(rows)
        if self.kind == "avro":
            return self._each(offsets, values, _avro_reader(self.text))
        decoded = self._json_at_once(values)
        return self._each(offsets, values, json.loads) if decoded is None else decoded

    def _json_at_once(self, values: pa.Array) -> pa.Array | None:
        """All values through Arrow's reader; None where one does not fit."""
        if not len(values):
            return pa.array([], self.type)
        lines = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)
        joined = pc.binary_join(lines, b"\n")[0].as_buffer()
        has_lines = pc.any(pc.greater_equal(pc.find_substring(values, b"\n"), 0)).as_py()
        parsing = pj.ParseOptions(
            explicit_schema=pa.schema(list(self.type)), unexpected_field_behavior="ignore",
            newlines_in_values=bool(has_lines),
        )  # fmt: skip
        reading = pj.ReadOptions(use_threads=False, block_size=max(joined.size + 1, 1))
        try:
            table = pj.read_json(pa.BufferReader(joined), read_options=reading, parse_options=parsing)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return None
        if table.num_rows != len(values):
            return None
        columns = [table.column(field.name).combine_chunks() for field in self.type]
        return pa.StructArray.from_arrays(columns, fields=list(self.type))

    def _each(self, offsets: pa.Array, values: pa.Array, read: Any) -> pa.Array:
        rows: list[Any] = []
        for row, value in enumerate(values.to_pylist()):
            try:
                tree = read(value)
                pa.array([tree], self.type)
                if not isinstance(tree, dict):
                    raise ValueError(f"the value is a {type(tree).__name__}, not an object")
                rows.append(tree)
            except (ValueError, TypeError, LookupError, EOFError, pa.ArrowException, RecursionError) as error:
                if self.malformed == "fail":
                    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
                    raise CorruptionError(
                        f"the value is not {self.kind} of the given schema: {reason}", offset=offsets[row].as_py(),
                        hint="malformed=null makes such values null",
                    ) from error  # fmt: skip
                rows.append(None)
        return pa.array(rows, self.type)


def decoder(kind: str, schema: str, malformed: str = "fail") -> Decoder:
    """``schema``: Spark's DDL (``order bigint, wood string``) for JSON, an Avro schema as JSON for Avro."""
    if kind not in KINDS:
        raise UsageError(f"values cannot be decoded as {kind!r}", hint=f"as {' or '.join(KINDS)}")
    if malformed not in MALFORMED:
        raise UsageError(f"malformed={malformed!r} is not known", hint=f"it is {' or '.join(MALFORMED)}")
    if kind == "json":
        return Decoder(kind, pa.struct(list(_arrow_of_ddl(schema))), malformed=malformed)
    if importlib.util.find_spec("fastavro") is None:
        raise DuramenError("fastavro is not installed", hint="`pip install 'duramen[lake]'` brings it")
    try:
        tree = json.loads(schema)
        avro_type = arrow_of_avro(tree)
        _avro_reader(schema)
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"the Avro schema cannot be used: {error}") from error
    if not pa.types.is_struct(avro_type):
        raise UsageError("the Avro schema is not a record")
    return Decoder(kind, avro_type, schema, malformed)


def _arrow_of_ddl(text: str) -> pa.Schema:
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    try:
        parsed = StructType.fromDDL(text)
        if not isinstance(parsed, StructType):
            raise UsageError(
                f"the schema {text!r} is one type, not columns", hint="for example 'id bigint, name string'"
            )
        return to_arrow_schema(parsed, timezone="UTC")
    except PySparkException as error:
        first = str(error).strip().splitlines()[0]
        raise UsageError(
            f"the schema {text!r} cannot be read: {first}", hint="for example 'id bigint, name string'"
        ) from error


def _avro_reader(text: str) -> Any:
    import fastavro

    parsed = fastavro.parse_schema(json.loads(text))

    def read(value: bytes) -> Any:
        stream = io.BytesIO(value)
        tree = fastavro.schemaless_reader(stream, parsed, None)
        if stream.tell() != len(value):
            raise ValueError(f"{len(value) - stream.tell()} bytes are left over")
        return tree

    return read


_PLAIN = {
    "null": pa.null(), "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(),
    "double": pa.float64(), "bytes": pa.binary(), "string": pa.string(),
}  # fmt: skip
_LOGICAL = {
    "date": pa.date32(), "timestamp-millis": pa.timestamp("us", "UTC"), "timestamp-micros": pa.timestamp("us", "UTC"),
    "time-millis": pa.time64("us"), "time-micros": pa.time64("us"), "uuid": pa.string(),
}  # fmt: skip


def arrow_of_avro(schema: Any) -> pa.DataType:
    """The Arrow type of an Avro schema.

    >>> arrow_of_avro({"type": "record", "name": "o", "fields": [{"name": "n", "type": ["null", "long"]}]})
    StructType(struct<n: int64>)
    """
    if isinstance(schema, list):
        rest = [branch for branch in schema if branch != "null"]
        if len(rest) != 1:
            raise ValueError("a union of several types has no column type")
        return arrow_of_avro(rest[0])
    if isinstance(schema, str):
        if schema not in _PLAIN:
            raise ValueError(f"the type {schema!r} is not known here")
        return _PLAIN[schema]
    kind = schema["type"]
    if schema.get("logicalType") in _LOGICAL:
        return _LOGICAL[schema["logicalType"]]
    if schema.get("logicalType") == "decimal":
        return pa.decimal128(schema["precision"], schema.get("scale", 0))
    if kind == "record":
        return pa.struct([pa.field(field["name"], arrow_of_avro(field["type"])) for field in schema["fields"]])
    if kind == "array":
        return pa.list_(arrow_of_avro(schema["items"]))
    if kind == "map":
        return pa.map_(pa.string(), arrow_of_avro(schema["values"]))
    if kind == "enum":
        return pa.string()
    if kind == "fixed":
        return pa.binary()
    return arrow_of_avro(kind)
