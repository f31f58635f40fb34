"""Kafka's encoding of messages, decoded by a schema. Pure bytes.

::

    int8 … int64   big-endian; bool: one byte; uuid: 16 bytes
    string, bytes  a length (i16, bytes: i32; -1 for null), then as many bytes
    []kind         a count (i32; -1 for null), then as many

    in flexible versions
    string, bytes, []kind   length or count + 1 as an unsigned varint, 0 for null
    after a structure       a count; then tag, length and value of each tagged field

Every length and count is compared with the bytes that remain before it is used. A version that the schema does not
know is refused: its fields cannot be guessed.
"""

from __future__ import annotations

import base64
from typing import Any, NamedTuple

from duramen.errors import CorruptionError
from duramen.formats.struct import Buffer

NEWEST = 2**15 - 1
_WIDTHS = {"int8": 1, "int16": 2, "int32": 4, "int64": 8}
_MAX_VARINT_BYTES = 5


class UnknownMessageVersionError(Exception):
    """A message has a version that its schema does not know."""


class MessageField(NamedTuple):
    """A field of a message. ``kind`` is the name of a type or a tuple of fields, with ``is_array`` an array of that."""

    name: str
    kind: str | tuple[MessageField, ...]
    since: int = 0
    until: int = NEWEST
    tag: int | None = None
    """Number of a field that flexible versions store after the others, if at all."""
    is_array: bool = False


class MessageSchema(NamedTuple):
    name: str
    fields: tuple[MessageField, ...]
    last_version: int = 0
    first_flexible: int = NEWEST
    first_version: int = 0


def decode_message(schema: MessageSchema, version: int, body: Buffer) -> dict[str, Any]:
    """The fields of a message by name; tags that the schema does not know as ``tag N``. Raises `CorruptionError`, and
    `UnknownMessageVersionError`."""
    if not schema.first_version <= version <= schema.last_version:
        raise UnknownMessageVersionError(f"{schema.name} has version {version}; up to {schema.last_version} is known")
    reader = MessageReader(body, version >= schema.first_flexible)
    found = _structure(reader, schema.fields, version)
    if reader.remaining:
        raise CorruptionError(f"{schema.name} has {reader.remaining} bytes too many", position=reader.position)
    return found


class MessageReader:
    """Takes values from the start of some bytes."""

    def __init__(self, body: Buffer, is_flexible: bool = False) -> None:
        self._view = memoryview(body)
        self.is_flexible = is_flexible
        self.position = 0

    @property
    def remaining(self) -> int:
        return len(self._view) - self.position

    def take(self, length: int) -> bytes:
        if not 0 <= length <= self.remaining:
            message = f"the message needs {length} bytes, and {self.remaining} remain"
            raise CorruptionError(message, position=self.position)
        start, self.position = self.position, self.position + length
        return bytes(self._view[start : self.position])

    def integer(self, width: int) -> int:
        return int.from_bytes(self.take(width), "big", signed=True)

    def varint(self) -> int:
        """An unsigned varint of 32 bits."""
        value = 0
        for shift in range(0, 7 * _MAX_VARINT_BYTES, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise CorruptionError("a varint of the message has more than five bytes", position=self.position)

    def length(self, width: int) -> int:
        """A length or count; -1 for null."""
        found = self.varint() - 1 if self.is_flexible else self.integer(width)
        if not -1 <= found <= self.remaining:  # an element has one byte or more
            message = f"the message states a length of {found}, and {self.remaining} bytes remain"
            raise CorruptionError(message, position=self.position)
        return found


def _structure(reader: MessageReader, fields: tuple[MessageField, ...], version: int) -> dict[str, Any]:
    current = [field for field in fields if field.since <= version <= field.until]
    found = {field.name: _value(reader, field, version) for field in current if field.tag is None}
    if reader.is_flexible:
        tagged = {field.tag: field for field in current if field.tag is not None}
        for _ in range(reader.varint()):
            tag = reader.varint()
            body = MessageReader(reader.take(reader.varint()), is_flexible=True)
            known = tagged.get(tag)
            found[f"tag {tag}" if known is None else known.name] = (
                body.take(body.remaining) if known is None else _value(body, known, version)
            )
    return found


def _value(reader: MessageReader, field: MessageField, version: int) -> Any:
    if not field.is_array:
        return _element(reader, field.kind, version)
    count = reader.length(4)
    return None if count < 0 else [_element(reader, field.kind, version) for _ in range(count)]


def _element(reader: MessageReader, kind: str | tuple[MessageField, ...], version: int) -> Any:
    if isinstance(kind, tuple):
        return _structure(reader, kind, version)
    if kind in _WIDTHS:
        return reader.integer(_WIDTHS[kind])
    if kind == "uint16":
        return reader.integer(2) & 0xFFFF
    if kind == "bool":
        return reader.integer(1) != 0
    if kind == "uuid":
        return base64.urlsafe_b64encode(reader.take(16)).decode().rstrip("=")
    length = reader.length(2 if kind == "string" else 4)
    if length < 0:
        return None
    content = reader.take(length)
    if kind == "bytes":
        return content
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise CorruptionError("a string of the message is not UTF-8", position=reader.position - length) from None
