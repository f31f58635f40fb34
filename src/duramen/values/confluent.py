"""Values in Confluent's frame: a zero byte, the id of a schema in four bytes, for Protobuf the place of the message,
then the value. The frame picks the codec; the columns are those of the newest schema among the first values, or of the
schema that was given, and other versions are resolved to it by the rules of their codec.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from duramen.errors import UsageError
from duramen.formats import binary_of, number_array
from duramen.values.codec import Codec, Decoded, MalformedValueError
from duramen.values.registry import RegisteredSchema, Registry, UnknownSchemaError
from duramen.values.schemas import bundled

HEADER_BYTES = 5
MAX_PATH = 32
_HINT = "a directory with the schemas, or the URL of the registry"


class ConfluentFrame(NamedTuple):
    number: int
    content: bytes


def frame_of(value: bytes) -> ConfluentFrame:
    """The id of the schema, and what follows it.

    >>> frame_of(b"\\0\\0\\0\\0\\x07value")
    ConfluentFrame(number=7, content=b'value')
    """
    if len(value) < HEADER_BYTES:
        raise MalformedValueError(f"{len(value)} bytes are too few for Confluent's frame")
    if value[0] != 0:
        raise MalformedValueError(f"Confluent's frame begins with a zero byte, not with {value[0]}")
    return ConfluentFrame(int.from_bytes(value[1:HEADER_BYTES], "big"), value[HEADER_BYTES:])


@dataclass(frozen=True)
class ConfluentInferring:
    """Looks up the schemas of the first values. ``given`` is the schema that the caller wants to see."""

    registry: Registry
    given: Any = None

    def bind(self, sample: pa.BinaryArray) -> Codec:
        frames = []
        for value in sample.to_pylist():
            try:
                frames.append(frame_of(value))
            except MalformedValueError:
                continue
        for frame in sorted({one.number: one for one in frames}.values(), reverse=True):
            try:
                schema = self.registry.schema(frame.number)
                return Confluent(self.registry, schema.kind, _target(schema, frame.content, self.given))
            except (UnknownSchemaError, MalformedValueError):
                continue
            except UsageError as error:
                error.message = f"schema {frame.number} of the registry: {error.message}"
                raise
        return Unframed(pa.struct([]), "no schema of the first values is in the registry")


def confluent_codec(schema: Any, registry: str | None, log: str | None) -> ConfluentInferring:
    if registry is None:
        raise UsageError("values in Confluent's frame need a registry", hint=_HINT)
    if not isinstance(registry, str):
        raise UsageError(f"registry must be text (got {registry!r:.80})", hint=_HINT)
    return ConfluentInferring(Registry(registry, log), schema)


@dataclass(frozen=True)
class Unframed:
    """Where no value tells the type."""

    type: pa.StructType
    reason: str

    def decode(self, values: pa.BinaryArray) -> Decoded:
        return Decoded(pa.nulls(len(values), self.type), dict.fromkeys(range(len(values)), self.reason))


def _target(schema: RegisteredSchema, content: bytes, given: Any) -> Any:
    """The codec of the columns that a read shows."""
    if schema.kind == "avro":
        from duramen.values.avro import avro_codec

        return avro_codec(_avro_text(schema) if given is None else given, records=False)
    if schema.kind == "json":
        from duramen.values.json_values import json_codec

        return json_codec(_json_tree(schema) if given is None else given)
    from duramen.values.protobuf import codec_of, name_of_index, protobuf_codec

    if given is not None:
        return protobuf_codec(given)
    files = _files(schema)
    return codec_of(files, name_of_index(files, _message_path(content)[0]))


def _json_tree(schema: RegisteredSchema) -> Any:
    try:
        others = [json.loads(text) for text in schema.imported]
        main = json.loads(schema.text)
        return bundled(main, {other["$id"]: other for other in others}) if others else main
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UsageError(f"a JSON Schema of the registry cannot be used: {error}") from error


def _avro_text(schema: RegisteredSchema) -> Any:
    """The schema with those that it refers to by name, as one."""
    if not schema.imported:
        return schema.text
    try:
        main = json.loads(schema.text)
        named: dict[str, Any] = {}
        for text in schema.imported:
            tree = _put_in(json.loads(text), named)
            space = tree.get("namespace")
            named[tree["name"] if "." in tree["name"] or not space else f"{space}.{tree['name']}"] = tree
        return json.dumps(_put_in(main, named))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(f"an Avro schema of the registry cannot be used: {error}") from error


def _put_in(tree: Any, named: dict[str, Any]) -> Any:
    """A schema with the first mention of each name replaced by its definition."""
    if isinstance(tree, str):
        return named.pop(tree, tree)
    if isinstance(tree, list):
        return [_put_in(each, named) for each in tree]
    if isinstance(tree, dict):
        places = ("type", "items", "values", "fields")
        return {name: _put_in(each, named) if name in places else each for name, each in tree.items()}
    return tree


def _files(schema: RegisteredSchema) -> bytes:
    from duramen.values.protobuf import set_of_registered

    return b64decode(schema.text) if schema.is_set else set_of_registered(schema.text, list(schema.imported))


def _message_path(content: bytes) -> tuple[tuple[int, ...], int]:
    """Where in its file the message of a Protobuf value is defined, and where the value begins."""
    count, at = _zigzag(content, 0)
    if count == 0:
        return (0,), at
    if not 0 < count <= MAX_PATH:
        raise MalformedValueError(f"a message is nested {count} levels deep")
    path = []
    for _ in range(count):
        index, at = _zigzag(content, at)
        if index < 0:
            raise MalformedValueError("the place of a message is negative")
        path.append(index)
    return tuple(path), at


def _zigzag(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        if at >= len(data) or shift > 28:
            raise MalformedValueError("the place of the message is cut short")
        byte = data[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not byte & 0x80:
            return (number >> 1) ^ -(number & 1), at


@dataclass(frozen=True)
class Confluent:
    """The codec. ``target`` decodes values of the schema that the columns show."""

    registry: Registry
    kind: str
    target: Any

    @property
    def type(self) -> pa.DataType:
        return self.target.type

    def decode(self, values: pa.BinaryArray) -> Decoded:
        malformed: dict[int, str] = {}
        rows: dict[int, list[int]] = {}
        contents: dict[int, bytes] = {}
        for row, value in enumerate(values.to_pylist()):
            try:
                number, content = frame_of(value)
                contents[row] = content[_message_path(content)[1] :] if self.kind == "protobuf" else content
                rows.setdefault(number, []).append(row)
            except MalformedValueError as error:
                malformed[row] = str(error)
        places = np.full(len(values), -1, np.int64)
        parts: list[pa.Array] = []
        filled = 0
        for number, own in rows.items():
            decoded = self._of_schema(number, [contents[row] for row in own])
            malformed.update({own[row]: reason for row, reason in decoded.malformed.items()})
            places[own] = np.arange(filled, filled + len(own))
            parts.append(decoded.array)
            filled += len(own)
        if not parts:
            return Decoded(pa.nulls(len(values), self.type), malformed)
        return Decoded(pa.concat_arrays(parts).take(number_array(places, places < 0)), malformed)

    def _of_schema(self, number: int, contents: Sequence[bytes]) -> Decoded:
        """Values that one schema wrote."""
        try:
            schema = self.registry.schema(number)
            if schema.kind != self.kind:
                raise UnknownSchemaError(f"the schema {number} is of the kind {schema.kind}, not {self.kind}")
            decoded = self._resolving(schema).decode(binary_of(contents))
        except UnknownSchemaError as error:
            return Unframed(self.type, str(error)).decode(binary_of(contents))
        except UsageError as error:
            return Unframed(self.type, f"schema {number}: {error}").decode(binary_of(contents))
        reasons = {row: f"schema {number}: {reason}" for row, reason in decoded.malformed.items()}
        return Decoded(decoded.array, reasons)

    def _resolving(self, schema: RegisteredSchema) -> Codec:
        """The codec that turns values of a schema into those that the columns show."""
        if self.kind != "avro":
            found: Codec = self.target
            return found
        from duramen.values.avro import resolving

        return resolving(self.target, _avro_text(schema))
