"""Protobuf messages as columns, through the package ``protobuf``: by a descriptor set, or by a generated class.

Fields that the schema lacks are skipped, as Protobuf does. A field with presence that is not set is null. 64 bits
without a sign are decimals, ``google.protobuf.Timestamp`` is a timestamp, and a message inside of itself is JSON text.
"""

from __future__ import annotations

import importlib
from base64 import b64decode
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa

from duramen.errors import UsageError
from duramen.record import TIMESTAMP, from_us
from duramen.values.codec import Decoded, MalformedValueError, decode_each, need
from duramen.values.schemas import MAX_DEPTH, FieldBudget, file_bytes

_HINT = "give FILE#package.Message with a descriptor set (protoc --descriptor_set_out), module#Message, or a class"
_ERRORS = (ValueError, TypeError, RecursionError, OverflowError)
Convert = Callable[[Any], Any]
_UINT64 = pa.decimal128(20, 0)


@dataclass(frozen=True)
class Protobuf:
    """The codec. ``files`` is a serialized descriptor set with the message and all it needs."""

    type: pa.StructType
    files: bytes
    message: str

    @property
    def name(self) -> str:
        return self.message

    def decode(self, values: pa.BinaryArray) -> Decoded:
        json_error = importlib.import_module("google.protobuf.json_format").Error
        errors = (*_ERRORS, _decode_error(), json_error)
        return decode_each(values, self.type, _reading(self.files, self.message), errors)


def protobuf_codec(schema: Any) -> Protobuf:
    """The codec of a message."""
    need("google.protobuf", "protobuf", "Protobuf")
    files, name = _source(schema)
    return codec_of(files, name)


def codec_of(files: bytes, name: str) -> Protobuf:
    """The codec of a message by its full name, or of the only message of the last file."""
    try:
        kind = _Types().struct(message_class(files, name).DESCRIPTOR, ())
    except (KeyError, TypeError, ValueError, RecursionError, _decode_error()) as error:
        raise UsageError(f"the descriptors cannot be used for {name!r}: {error}", hint=_HINT) from error
    return Protobuf(kind, files, name)


def _decode_error() -> type[Exception]:
    found: type[Exception] = need("google.protobuf.message", "protobuf", "Protobuf").DecodeError
    return found


def _source(schema: Any) -> tuple[bytes, str]:
    """Descriptors and the name of a message."""
    if hasattr(schema, "DESCRIPTOR"):
        return descriptors_of(schema.DESCRIPTOR.file), schema.DESCRIPTOR.full_name
    where, separator, name = schema.rpartition("#") if isinstance(schema, str) else ("", "", "")
    if not separator or not where or not name:
        raise UsageError(f"{schema!r:.80} names no Protobuf message", hint=_HINT)
    if all(part.isidentifier() for part in where.split(".")) and not where.endswith((".desc", ".pb", ".binpb")):
        return _of_module(where, name)
    return file_bytes(where.removeprefix("@")), name


def _of_module(module: str, name: str) -> tuple[bytes, str]:
    try:
        found = getattr(importlib.import_module(module), name.rpartition(".")[2])
        return descriptors_of(found.DESCRIPTOR.file), found.DESCRIPTOR.full_name
    except (ImportError, AttributeError) as error:
        raise UsageError(
            f"the message {name!r} of the module {module!r} cannot be used: {error}", hint=_HINT
        ) from error


def descriptors_of(file: Any) -> bytes:
    """A file and those that it imports, as a descriptor set, in the order in which they can be loaded."""
    pb2 = importlib.import_module("google.protobuf.descriptor_pb2")
    files, seen = pb2.FileDescriptorSet(), set()

    def add(one: Any) -> None:
        if one.name not in seen:
            seen.add(one.name)
            for other in one.dependencies:
                add(other)
            one.CopyToProto(files.file.add())

    add(file)
    data: bytes = files.SerializeToString()
    return data


def set_of_registered(text: str, imported: list[str]) -> bytes:
    """A schema of a registry and those that it imports, each a descriptor of a file in base64, as a descriptor set."""
    pb2 = importlib.import_module("google.protobuf.descriptor_pb2")
    files = pb2.FileDescriptorSet()
    for each in (*imported, text):
        try:
            files.file.add().ParseFromString(b64decode(each, validate=True))
        except (ValueError, _decode_error()) as error:
            raise UsageError(
                "a Protobuf schema of the registry is not a serialized descriptor",
                hint="a registry gives it for ?format=serialized; in a directory, name it ID.desc",
            ) from error
    data: bytes = files.SerializeToString()
    return data


def name_of_index(files: bytes, path: tuple[int, ...]) -> str:
    """The message that Confluent's frame names by its places in the last file."""
    pb2 = importlib.import_module("google.protobuf.descriptor_pb2")
    found = pb2.FileDescriptorSet.FromString(files).file[-1]
    names, messages = [found.package] if found.package else [], found.message_type
    for index in path:
        if index >= len(messages):
            raise MalformedValueError(f"its file has no message {list(path)}")
        names.append(messages[index].name)
        messages = messages[index].nested_type
    return ".".join(names)


@lru_cache(maxsize=64)
def message_class(files: bytes, name: str) -> Any:
    pool_module = importlib.import_module("google.protobuf.descriptor_pool")
    pb2 = importlib.import_module("google.protobuf.descriptor_pb2")
    pool = pool_module.DescriptorPool()
    given = {file.name: file for file in pb2.FileDescriptorSet.FromString(files).file}
    added: set[str] = set()

    def add(file_name: str) -> None:
        if file_name in added:
            return
        added.add(file_name)
        file = given.get(file_name)
        if file is None:  # one of Protobuf's own, which descriptor sets often lack
            importlib.import_module(_own_module(file_name))
            file = pb2.FileDescriptorProto()
            pool_module.Default().FindFileByName(file_name).CopyToProto(file)
        for other in file.dependency:
            add(other)
        pool.Add(file)

    for file_name in given:
        add(file_name)
    factory = importlib.import_module("google.protobuf.message_factory")
    return factory.GetMessageClass(pool.FindMessageTypeByName(name))


def _own_module(file_name: str) -> str:
    if not file_name.startswith("google/protobuf/") or not file_name.endswith(".proto"):
        raise KeyError(f"the file {file_name!r} is imported, and not among the descriptors (protoc --include_imports)")
    return file_name.removesuffix(".proto").replace("/", ".") + "_pb2"


@lru_cache(maxsize=64)
def _reading(files: bytes, name: str) -> Callable[[bytes], Any]:
    message = message_class(files, name)
    convert = _converter(message.DESCRIPTOR, ())

    def read(value: bytes) -> Any:
        found = message()
        found.ParseFromString(value)
        if not found.IsInitialized():
            missing = ", ".join(found.FindInitializationErrors())
            raise MalformedValueError(f"required fields are missing: {missing}")
        return convert(found)

    return read


# --- types and values of fields


def _is_repeated(field: Any) -> bool:
    found = getattr(field, "is_repeated", None)
    return bool(field.label == field.LABEL_REPEATED if found is None else found)


def _is_map(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


class _Types:
    """Finds the types of messages. Each use of a message counts its fields."""

    def __init__(self) -> None:
        self._budget = FieldBudget()

    def struct(self, descriptor: Any, above: tuple[str, ...]) -> pa.StructType:
        self._budget.spend(len(descriptor.fields))
        if len(above) > MAX_DEPTH:
            raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep")
        inside = (*above, descriptor.full_name)
        return pa.struct([pa.field(field.name, self._of_field(field, inside)) for field in descriptor.fields])

    def _of_field(self, field: Any, above: tuple[str, ...]) -> pa.DataType:
        if _is_map(field):
            key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
            return pa.map_(self._of_one(key, above), self._of_one(value, above))
        return pa.list_(self._of_one(field, above)) if _is_repeated(field) else self._of_one(field, above)

    def _of_one(self, field: Any, above: tuple[str, ...]) -> pa.DataType:
        scalars = {
            field.CPPTYPE_INT32: pa.int32(), field.CPPTYPE_INT64: pa.int64(), field.CPPTYPE_UINT32: pa.int64(),
            field.CPPTYPE_UINT64: _UINT64, field.CPPTYPE_DOUBLE: pa.float64(), field.CPPTYPE_FLOAT: pa.float32(),
            field.CPPTYPE_BOOL: pa.bool_(), field.CPPTYPE_ENUM: pa.string(),
        }  # fmt: skip
        if field.message_type is None:
            is_bytes = field.type == field.TYPE_BYTES
            return scalars.get(field.cpp_type, pa.binary() if is_bytes else pa.string())
        if field.message_type.full_name == "google.protobuf.Timestamp":
            return TIMESTAMP.type
        if field.message_type.full_name in above or not field.message_type.fields:
            return pa.string()
        return self.struct(field.message_type, above)


def _converter(descriptor: Any, above: tuple[str, ...]) -> Convert:
    inside = (*above, descriptor.full_name)
    fields = [(field.name, _field_converter(field, inside), _has_presence(field)) for field in descriptor.fields]

    def convert(message: Any) -> dict[str, Any]:
        return {
            name: None if has_presence and not message.HasField(name) else one(getattr(message, name))
            for name, one, has_presence in fields
        }

    return convert


def _has_presence(field: Any) -> bool:
    return bool(field.has_presence) and not _is_repeated(field)


def _field_converter(field: Any, above: tuple[str, ...]) -> Convert:
    if _is_map(field):
        value = _one_converter(field.message_type.fields_by_name["value"], above)
        return lambda found: [(key, value(found[key])) for key in found]
    one = _one_converter(field, above)
    return (lambda found: [one(each) for each in found]) if _is_repeated(field) else one


def _one_converter(field: Any, above: tuple[str, ...]) -> Convert:
    if field.enum_type is not None:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return lambda number: names.get(number, str(number))
    if field.message_type is None:
        return lambda value: value
    if field.message_type.full_name == "google.protobuf.Timestamp":
        return _time
    if field.message_type.full_name in above or not field.message_type.fields:
        to_json = importlib.import_module("google.protobuf.json_format").MessageToJson
        return lambda message: to_json(message, indent=None)
    return _converter(field.message_type, above)


def _time(stamp: Any) -> Any:
    when = from_us(stamp.seconds * 1_000_000 + stamp.nanos // 1000)
    if when is None:
        raise MalformedValueError(f"the time of {stamp.seconds} seconds is out of range")
    return when
