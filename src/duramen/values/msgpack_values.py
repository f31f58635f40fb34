"""MessagePack objects as columns, through the package ``msgpack``: an object per value, and that is what it costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from duramen.values.codec import Codec, Decoded, MalformedValueError, decode_each, need
from duramen.values.infer import check_known, struct_of_objects
from duramen.values.objects import fitting
from duramen.values.schemas import struct_of

_ERRORS = (ValueError, TypeError, RecursionError, OverflowError)
"""What ``msgpack`` raises for bytes that are none; its own errors derive from ValueError."""


def msgpack_codec(schema: Any) -> Codec | MsgpackInferring:
    _reader()  # a missing package is reported here, and not in a task
    return MsgpackInferring() if schema is None else Msgpack(struct_of(schema), strict=False)


def _reader() -> Callable[[bytes], Any]:
    unpackb = need("msgpack", "msgpack", "MessagePack").unpackb

    def read(value: bytes) -> Any:
        tree = unpackb(value, timestamp=3, strict_map_key=False)
        if not isinstance(tree, dict):
            raise MalformedValueError(f"the value is a {type(tree).__name__}, not a map")
        return tree

    return read


@dataclass(frozen=True)
class MsgpackInferring:
    """Finds the type in the first values, as for JSON."""

    def bind(self, sample: pa.BinaryArray) -> Codec:
        return Msgpack(struct_of_objects(_objects(sample)), strict=True)


def _objects(values: pa.BinaryArray) -> Iterator[Any]:
    read = _reader()
    for value in values.to_pylist():
        try:
            yield read(value)
        except (MalformedValueError, *_ERRORS):
            continue


@dataclass(frozen=True)
class Msgpack:
    """The codec."""

    type: pa.StructType
    strict: bool

    def decode(self, values: pa.BinaryArray) -> Decoded:
        unpack, fit = _reader(), fitting(self.type)

        def read(value: bytes) -> Any:
            tree = unpack(value)
            check_known(tree, self.type, strict=self.strict)
            return fit(tree)

        return decode_each(values, self.type, read, _ERRORS)
