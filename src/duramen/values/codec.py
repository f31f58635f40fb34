"""What every codec has in common: values in, one Arrow array out, and a reason for each value that does not decode.

A codec gets a binary array without nulls. It never raises because of what a value holds.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from duramen.errors import DuramenError


class Decoded(NamedTuple):
    """The values as an array that is null where one is malformed, and why, by row."""

    array: pa.Array
    malformed: Mapping[int, str]


class Codec(Protocol):
    """What turns values into an array. One with a ``name`` has a schema of that name, which messages show. One with
    ``decode_at`` also takes values that lie anywhere in some bytes: these, and positions and lengths."""

    @property
    def type(self) -> pa.DataType:
        """The type of every array that `decode` returns."""
        ...

    def decode(self, values: pa.BinaryArray) -> Decoded: ...


@dataclass(frozen=True)
class Utf8:
    """Text."""

    type: pa.DataType = field(default_factory=pa.string)

    def decode(self, values: pa.BinaryArray) -> Decoded:
        try:
            text = values.cast(pa.string())
        except pa.ArrowInvalid:
            return self._each(values)
        return Decoded(text, {})

    def _each(self, values: pa.BinaryArray) -> Decoded:
        malformed: dict[int, str] = {}
        texts: list[str | None] = []
        for row, value in enumerate(values.to_pylist()):
            try:
                texts.append(value.decode())
            except UnicodeDecodeError as error:
                texts.append(None)
                malformed[row] = f"byte {error.start} is not UTF-8"
        return Decoded(pa.array(texts, pa.string()), malformed)


@dataclass(frozen=True)
class FewerFields:
    """Some fields of what another codec decodes."""

    type: pa.StructType
    codec: Codec

    @property
    def name(self) -> str | None:
        return getattr(self.codec, "name", None)

    def decode(self, values: pa.BinaryArray) -> Decoded:
        array, malformed = self.codec.decode(values)
        kept = [array.field(field.name) for field in self.type]
        valid = pa.py_buffer(np.packbits(np.asarray(array.is_valid()), bitorder="little"))
        return Decoded(pa.Array.from_buffers(self.type, len(array), [valid], children=kept), malformed)


class MalformedValueError(Exception):
    """Raised by a reader of one value; the message is the reason."""


def first_line(error: BaseException) -> str:
    """The reason that an error of another library gives, in one line of bounded length.

    >>> first_line(ValueError("cut short\\nat 7"))
    'cut short'
    """
    text = str(error).strip()
    line = text.splitlines()[0] if text else type(error).__name__
    return line if len(line) <= 200 else line[:199] + "…"


def decode_each(
    values: pa.BinaryArray, kind: pa.DataType, read: Callable[[bytes], Any], errors: tuple[type[Exception], ...]
) -> Decoded:
    """Decode value by value with ``read``, which returns what ``pa.array`` takes as ``kind``."""
    malformed: dict[int, str] = {}
    trees: list[Any] = []
    expected: tuple[type[Exception], ...] = (MalformedValueError, *errors)
    for row, value in enumerate(values.to_pylist()):
        try:
            trees.append(read(value))
        except expected as error:
            trees.append(None)
            malformed[row] = first_line(error)
    return arrays_of(trees, kind, malformed)


_MISFITS = (pa.ArrowException, ValueError, TypeError, OverflowError, LookupError, AttributeError)


def arrays_of(trees: Sequence[Any], kind: pa.DataType, malformed: dict[int, str]) -> Decoded:
    """Python objects as an array; one that does not fit the type is malformed."""
    try:
        return Decoded(_array(trees, kind), malformed)
    except _MISFITS:
        pass
    fitting: list[Any] = []
    for row, tree in enumerate(trees):
        try:
            _array([tree], kind)
            fitting.append(tree)
        except _MISFITS as error:
            fitting.append(None)
            malformed[row] = first_line(error)
    return Decoded(_array(fitting, kind), malformed)


def _array(trees: Sequence[Any], kind: pa.DataType) -> pa.Array:
    array = pa.array(trees, kind)
    array.validate(full=True)  # text of other libraries need not be UTF-8
    return array


def need(module: str, extra: str, what: str) -> Any:
    """A module of an extra; one clear error where it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise DuramenError(
            f"{what} needs the package {module.split('.', 1)[0]!r}, which is not installed",
            hint=f"`pip install 'duramen[{extra}]'` brings it",
        ) from error
