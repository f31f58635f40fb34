"""`Decoder` turns a binary column into a typed one; `Decoding` does so with the values and keys of batches."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, TypedDict

import numpy as np
import pyarrow as pa

from duramen.arguments import check_choice
from duramen.errors import CorruptionError, MalformedError, UsageError
from duramen.formats import PLACE, number_array, numbers_of
from duramen.values.codec import Codec, Decoded, FewerFields, Utf8

KINDS = ("amqp", "avro", "confluent", "json", "msgpack", "protobuf", "utf8")
ON_MALFORMED = ("fail", "null", "raw")
MALFORMED = pa.struct([("reason", pa.string()), ("bytes", pa.binary())])
MALFORMED_VALUE, MALFORMED_KEY = "_malformed", "_malformed_key"
_MALFORMED_NAMES = {"value": MALFORMED_VALUE, "key": MALFORMED_KEY}
SAMPLE_RECORDS = 1000
"""Values that a decoder without a schema looks at."""

Schema = Any
"""What describes the fields: text (DDL, JSON Schema, Avro), ``@FILE``, a dict, an Arrow schema, a class of Protobuf."""


class Inferring(Protocol):
    """A codec whose type depends on the values."""

    def bind(self, sample: pa.BinaryArray) -> Codec: ...


class MalformedValue(NamedTuple):
    """In place of a value that does not decode, with ``on_malformed="raw"``."""

    reason: str
    data: bytes


class DecodeOptions(TypedDict, total=False):
    """How to decode values and keys. The same names serve `Log.scan`, `batches`, `read` and `table`."""

    decode: str | Decoder | None
    decode_key: str | Decoder | None
    value_schema: Schema
    key_schema: Schema
    on_malformed: str
    registry: str | None


@dataclass(frozen=True)
class Decoder:
    """Decodes one binary column, batch by batch. Can be pickled; `duramen.decoder` makes one."""

    kind: str
    codec: Codec | Inferring
    on_malformed: str = "fail"

    @property
    def is_bound(self) -> bool:
        """Whether the type is known without a look at values."""
        return not hasattr(self.codec, "bind")

    @property
    def type(self) -> pa.DataType:
        if not self.is_bound:
            raise UsageError(f"the columns of {self.kind!r} are known after a look at values", hint="give a schema")
        return self.codec.type  # type: ignore[union-attr]

    def bind(self, values: pa.Array) -> Decoder:
        """The decoder of the type that these values have. One whose type is known stays as it is."""
        if self.is_bound:
            return self
        sample = values.slice(0, SAMPLE_RECORDS).drop_null()
        return replace(self, codec=self.codec.bind(sample))  # type: ignore[union-attr]

    def narrowed(self, names: Sequence[str]) -> Decoder:
        """The decoder of some fields, perhaps none. It finds the same values malformed."""
        if not pa.types.is_struct(self.type):
            return self
        kind = pa.struct([field for field in self.type if field.name in names])
        narrow = getattr(self.codec, "narrowed", None)
        codec = FewerFields(kind, self.codec) if narrow is None else narrow(kind)  # type: ignore[arg-type]
        return replace(self, codec=codec)

    @property
    def takes_places(self) -> bool:
        """Whether `decode` takes the places of values instead of a copy of their bytes."""
        return hasattr(self.codec, "decode_at")

    def decode(
        self, offsets: pa.Array, values: pa.Array, what: str = "value", data: Any = None
    ) -> tuple[pa.Array, pa.Array]:
        """The decoded column, and one of `MALFORMED`. A null stays null. With ``data``, ``values`` are the places
        (`PLACE`) of values in these bytes."""
        if values.null_count:
            rows = np.flatnonzero(np.asarray(values.is_valid()))
            found, malformed = self.decode(offsets.take(number_array(rows)), values.drop_null(), what, data)
            places = np.full(len(values), -1, np.int64)
            places[rows] = np.arange(len(rows))
            wanted = number_array(places, places < 0)
            return found.take(wanted), malformed.take(wanted)
        codec: Any = self.bind(values).codec if data is None else self.codec
        decoded = _decoded(codec, values, data)
        if not decoded.malformed:
            return decoded.array, pa.nulls(len(values), MALFORMED)
        if self.on_malformed == "fail":
            row, reason = min(decoded.malformed.items())
            name = getattr(codec, "name", None)
            kind = self.kind if name is None else f"{self.kind} ({name})"
            raise MalformedError(
                f"the {what} is not {kind}: {reason}", offset=offsets[row].as_py(),
                hint="on_malformed (in Spark onMalformed) null makes such a value null, raw keeps its bytes",
            )  # fmt: skip
        found_bad: list[Any] = [None] * len(values)
        for row, reason in decoded.malformed.items():
            found_bad[row] = {"reason": reason, "bytes": _bytes_of(values[row].as_py(), data)}
        return decoded.array, pa.array(found_bad, MALFORMED)


_CHANGED = (ValueError, LookupError, RecursionError, struct.error)
"""What a codec raises whose bytes change while it reads them. A private copy does not change."""


def _decoded(codec: Any, values: pa.Array, data: Any) -> Decoded:
    if data is None:
        return codec.decode(values)
    position, length = (numbers_of(values.field(number)) for number in range(2))
    try:
        return codec.decode_at(data, position, length)
    except _CHANGED as error:
        raise CorruptionError(f"the bytes changed between scan and decode: {error}", hint="read again") from error


def _bytes_of(value: Any, data: Any) -> bytes:
    """A value, or the bytes at its place."""
    if data is None:
        return bytes(value)
    start, length = value.values()
    return bytes(memoryview(data)[start : start + length])


def decoder(kind: str, schema: Schema = None, *, on_malformed: str = "fail", registry: str | None = None) -> Decoder:
    """Make a decoder of one of `KINDS`.

    ``schema``: for ``json`` and ``msgpack`` a DDL text (``"id bigint, name string"``), a JSON Schema or an Arrow schema
    (without one the first values decide); for ``amqp`` the names of the fields that are wanted; for ``avro`` the
    schema; for ``protobuf`` ``"FILE#Message"`` with a descriptor set, ``"module#Message"`` or a generated class.
    ``"@FILE"`` reads the text from a file. ``registry``: a directory or a URL with the schemas of ``confluent`` values.

    >>> decoder("json", "id bigint, name string").type
    StructType(struct<id: int64, name: string>)
    """
    check_choice("decode", kind, KINDS)
    check_choice("on_malformed", on_malformed, ON_MALFORMED)
    if kind == "utf8" and schema is not None:
        raise UsageError(f"{kind} values have no schema (got {schema!r:.80})", hint="leave it out")
    if kind != "confluent" and registry is not None:
        raise UsageError(f"registry has no meaning for {kind} values", hint="decode='confluent' reads one")
    return Decoder(kind, _codec(kind, schema, registry, None), on_malformed)


def _codec(kind: str, schema: Schema, registry: str | None, log: str | None) -> Codec | Inferring:
    """The codec of a kind. Modules are imported here: most programs need one of them."""
    if kind == "amqp":
        from duramen.values.amqp import amqp_codec

        return amqp_codec(schema)
    if kind == "json":
        from duramen.values.json_values import json_codec

        return json_codec(schema)
    if kind == "avro":
        from duramen.values.avro import avro_codec

        return avro_codec(schema)
    if kind == "msgpack":
        from duramen.values.msgpack_values import msgpack_codec

        return msgpack_codec(schema)
    if kind == "protobuf":
        from duramen.values.protobuf import protobuf_codec

        return protobuf_codec(schema)
    if kind == "confluent":
        from duramen.values.confluent import confluent_codec

        return confluent_codec(schema, registry, log)
    return Utf8()


# --- values and keys of batches


@dataclass
class Decoding:
    """The decoders of the values and the keys of one read. A decoder without a schema is bound by the first batch that
    has values, and keeps that type."""

    decoders: dict[str, Decoder] = field(default_factory=dict)
    path: str | None = None

    @classmethod
    def of(cls, options: Mapping[str, Any], path: str | None = None) -> Decoding | None:
        """The decoding that the keyword arguments ask for; None if they ask for none."""
        unknown = sorted(options.keys() - DecodeOptions.__annotations__.keys())
        if unknown:
            raise TypeError(f"unexpected keyword argument {unknown[0]!r}")
        found = {}
        for column, name, schema in (("value", "decode", "value_schema"), ("key", "decode_key", "key_schema")):
            made = _decoder_of(options, name, schema, path)
            if made is not None:
                found[column] = made
        if not found and any(options.get(name) is not None for name in ("on_malformed", "registry")):
            raise UsageError("on_malformed and registry mean something only with decode or decode_key")
        return cls(found, path) if found else None

    def needed(self, names: Sequence[str]) -> list[str]:
        """The columns to read for those that were asked for. The offset names a malformed value."""
        for column in self.decoders:
            if column not in names:
                raise UsageError(f"the column {column!r} is decoded, and not among the columns", hint="add it")
        return list(names) if "offset" in names else ["offset", *names]

    @property
    def is_bound(self) -> bool:
        """Whether all types are known without a look at values."""
        return all(one.is_bound for one in self.decoders.values())

    def narrowed(self, fields: Mapping[str, Sequence[str]]) -> Decoding:
        """The decoding of some fields of columns; of other columns all fields. All types are known."""
        narrow = {name: one.narrowed(fields[name]) for name, one in self.decoders.items() if name in fields}
        return replace(self, decoders={**self.decoders, **narrow})

    def bind(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Fix the types by the first values of batches, where no schema does. Without values they stay unknown."""
        found: dict[str, list[pa.Array]] = {name: [] for name, one in self.decoders.items() if not one.is_bound}
        wanted = dict.fromkeys(found, SAMPLE_RECORDS)
        for batch in batches if found else ():
            for column in [column for column, missing in wanted.items() if missing > 0]:
                values = batch.column(column).drop_null()
                found[column].append(values)
                wanted[column] -= len(values)
            if all(missing <= 0 for missing in wanted.values()):
                break
        for column, parts in found.items():
            if wanted[column] < SAMPLE_RECORDS:
                self.decoders[column] = self.decoders[column].bind(pa.concat_arrays(parts))

    def bind_rest(self) -> None:
        """Fix the types that no value has shown yet: objects without fields."""
        self.decoders.update({name: one.bind(pa.array([], pa.binary())) for name, one in self.decoders.items()})

    def schema(self, schema: pa.Schema) -> pa.Schema:
        """The schema of decoded batches: the decoded columns in their places, then those of malformed bytes."""
        types = {name: one.type if one.is_bound else pa.null() for name, one in self.decoders.items()}
        fields = [
            each.with_type(types[each.name]).with_nullable(True) if each.name in types else each for each in schema
        ]
        return pa.schema([*fields, *(pa.field(name, MALFORMED) for name in self.raw_columns)])

    @property
    def raw_columns(self) -> list[str]:
        """The columns that hold malformed bytes."""
        return [_MALFORMED_NAMES[column] for column, one in self.decoders.items() if one.on_malformed == "raw"]

    def columns(self, batch: pa.RecordBatch, data: Any = None) -> dict[str, pa.Array]:
        """The decoded columns of a batch, and those of malformed bytes. A column of `PLACE` is one of ``data``."""
        self.bind([batch])
        found = {}
        for column, one in self.decoders.items():
            if not one.is_bound:  # all of its values are null
                found[column], malformed = pa.nulls(batch.num_rows), pa.nulls(batch.num_rows, MALFORMED)
            else:
                found[column], malformed = self._decoded(one, batch, column, data)
            if one.on_malformed == "raw":
                found[_MALFORMED_NAMES[column]] = malformed
        return found

    def _decoded(self, one: Decoder, batch: pa.RecordBatch, column: str, data: Any) -> tuple[pa.Array, pa.Array]:
        values = batch.column(column)
        try:
            return one.decode(batch.column("offset"), values, column, data if values.type == PLACE else None)
        except MalformedError as error:
            error.path = error.path or self.path
            raise

    def decode(self, batch: pa.RecordBatch, names: Sequence[str] | None = None) -> pa.RecordBatch:
        """A batch with its values and keys decoded; ``names`` are the columns that stay."""
        columns = {**dict(zip(batch.schema.names, batch.columns, strict=True)), **self.columns(batch)}
        kept = list(names or batch.schema.names)
        schema = self.schema(pa.schema([batch.schema.field(name) for name in kept]))
        return pa.RecordBatch.from_arrays([columns[name] for name in (*kept, *self.raw_columns)], schema=schema)

    def until_malformed(
        self, batch: pa.RecordBatch, names: Sequence[str] | None = None
    ) -> tuple[pa.RecordBatch, MalformedError | None]:
        """A batch decoded as far as it can be: the rows before a value that fails the read, and its error."""
        try:
            return self.decode(batch, names), None
        except MalformedError as error:
            row = int(np.flatnonzero(batch.column("offset").to_numpy() == error.offset)[0])
            decoded, earlier = self.until_malformed(batch.slice(0, row), names)  # the key may fail before the value
            return decoded, earlier or error

    def batches(
        self,
        batches: Iterable[pa.RecordBatch],
        names: Sequence[str] | None = None,
        sample: Iterable[pa.RecordBatch] = (),
    ) -> Iterator[pa.RecordBatch]:
        """The decoded batches. What comes before a value that fails the read is yielded before its error is raised.
        ``sample``: the first batches once more, for types that depend on values."""
        self.bind(sample)
        for batch in batches:
            decoded, error = self.until_malformed(batch, names)
            if decoded.num_rows:
                yield decoded
            if error is not None:
                raise error

    def pass_on(self, batch: pa.RecordBatch, write: Callable[[pa.RecordBatch], object]) -> None:
        """Write a batch decoded: the rows before a value that fails the read, then its error is raised."""
        for decoded in self.batches([batch]):
            write(decoded)

    def reader(
        self, batches: Iterable[pa.RecordBatch], schema: pa.Schema, names: Sequence[str]
    ) -> pa.RecordBatchReader:
        """The decoded batches as a reader with one schema. ``schema``: of the batches that come in."""
        self.bind_rest()
        decoded = self.schema(pa.schema([schema.field(name) for name in names]))
        return pa.RecordBatchReader.from_batches(decoded, self.batches(batches, names))


def _decoder_of(options: Mapping[str, Any], name: str, schema_name: str, path: str | None) -> Decoder | None:
    kind, schema = options.get(name), options.get(schema_name)
    on_malformed = options.get("on_malformed")
    if isinstance(kind, Decoder):
        return kind if on_malformed is None else replace(kind, on_malformed=_checked(on_malformed))
    if kind is None:
        if schema is not None:
            raise UsageError(f"{schema_name} is given without {name}", hint=f"{name} is {', '.join(KINDS)}")
        return None
    check_choice(name, kind, KINDS)
    registry = options.get("registry") if kind == "confluent" else None
    made = decoder(kind, schema, on_malformed=on_malformed or "fail", registry=registry)
    if registry is None or path is None:
        return made
    return replace(made, codec=_codec(kind, schema, registry, path))  # schemas are kept beside the log


def _checked(on_malformed: str) -> str:
    return check_choice("on_malformed", on_malformed, ON_MALFORMED)


# --- decoded values as Python objects


Pairs = list[list[Any]]


def _kept(pairs: Pairs) -> Any:
    return pairs


def python_values(column: pa.Array, repeated: Callable[[Pairs], Any] = _kept) -> list[Any]:
    """The values of a column as Python objects. A map is a dict; one whose keys repeat, or cannot be keys of a dict, is
    what ``repeated`` makes of its pairs."""
    values = column.to_pylist()
    return [_with_dicts(value, column.type, repeated) for value in values] if _has_map(column.type) else values


def _has_map(kind: pa.DataType) -> bool:
    return pa.types.is_map(kind) or any(_has_map(kind.field(number).type) for number in range(kind.num_fields))


def _with_dicts(value: Any, kind: pa.DataType, repeated: Callable[[Pairs], Any]) -> Any:
    if value is None or not _has_map(kind):
        return value
    if pa.types.is_map(kind):
        pairs = [[key, _with_dicts(item, kind.item_type, repeated)] for key, item in value]
        try:
            made = dict(map(tuple, pairs))
        except TypeError:
            return repeated(pairs)
        return made if len(made) == len(pairs) else repeated(pairs)
    if pa.types.is_struct(kind):
        return {field.name: _with_dicts(value[field.name], field.type, repeated) for field in kind}
    return [_with_dicts(item, kind.value_type, repeated) for item in value]
