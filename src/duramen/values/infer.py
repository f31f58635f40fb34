"""The type of Python objects that a decoder read from the first values, for those who give no schema."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

import pyarrow as pa

from duramen.errors import UsageError
from duramen.record import TIMESTAMP
from duramen.values.codec import MalformedValueError

MAX_FIELDS = 2000
MAX_DEPTH = 32
_HINT = "give a schema, such as 'id bigint, name string'"


def struct_of_objects(trees: Iterable[Any]) -> pa.StructType:
    """The type that holds all of these objects. A field that is always null is text.

    >>> struct_of_objects([{"a": 1}, {"a": 2.5, "b": None}, {"c": [{"d": True}]}])
    StructType(struct<a: double, b: string, c: list<item: struct<d: bool>>>)
    """
    fields = _InferredFields()
    for tree in trees:
        if isinstance(tree, dict):
            fields.add_object(tree)
    return fields.struct()


class _InferredFields:
    """The fields of one kind of object, with what was seen in each."""

    def __init__(self, path: str = "", depth: int = 0, counter: list[int] | None = None) -> None:
        self._path = path
        self._depth = depth
        self._counter = [0] if counter is None else counter
        self._seen: dict[str, _Seen] = {}

    def add_object(self, tree: dict[Any, Any]) -> None:
        for name, value in tree.items():
            text = name if isinstance(name, str) else str(name)
            if text not in self._seen:
                self._counter[0] += 1
                if self._counter[0] > MAX_FIELDS:
                    raise UsageError(f"the first values have more than {MAX_FIELDS} different fields", hint=_HINT)
                self._seen[text] = _Seen(_place(self._path, text), self._depth + 1, self._counter)
            self._seen[text].add(value)

    def struct(self) -> pa.StructType:
        return pa.struct([pa.field(name, seen.type()) for name, seen in self._seen.items()])


def _place(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


class _Seen:
    """What was seen in one place."""

    def __init__(self, path: str, depth: int, counter: list[int]) -> None:
        self._path = path
        self._depth = depth
        self._counter = counter
        self._scalar: pa.DataType | None = None
        self._fields: _InferredFields | None = None
        self._items: _Seen | None = None

    def add(self, value: Any) -> None:
        if value is None:
            return
        if self._depth > MAX_DEPTH:
            raise UsageError(f"the first values are nested more than {MAX_DEPTH} levels deep", hint=_HINT)
        if isinstance(value, dict):
            self._fields = self._fields or _InferredFields(self._path, self._depth, self._counter)
            self._fields.add_object(value)
        elif isinstance(value, list | tuple):
            self._items = self._items or _Seen(self._path + "[]", self._depth + 1, self._counter)
            for item in value:
                self._items.add(item)
        else:
            self._scalar = self._merged(_scalar_type(value))
        if sum(each is not None for each in (self._scalar, self._fields, self._items)) > 1:
            raise self._mixed("an object, a list or a plain value")

    def _merged(self, kind: pa.DataType) -> pa.DataType:
        if self._scalar is None or self._scalar == kind:
            return kind
        if {self._scalar, kind} == {pa.int64(), pa.float64()}:
            return pa.float64()
        raise self._mixed(f"{self._scalar} and {kind}")

    def _mixed(self, kinds: str) -> UsageError:
        return UsageError(f"the field {self._path[:80]!r} of the first values is {kinds}", hint=_HINT)

    def type(self) -> pa.DataType:
        if self._fields is not None:
            return self._fields.struct()
        if self._items is not None:
            return pa.list_(self._items.type())
        return pa.string() if self._scalar is None else self._scalar


def _scalar_type(value: Any) -> pa.DataType:
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, int):
        return pa.int64() if -(2**63) <= value < 2**63 else pa.float64()
    if isinstance(value, float):
        return pa.float64()
    if isinstance(value, bytes):
        return pa.binary()
    if isinstance(value, datetime):
        return TIMESTAMP.type
    return pa.string()


def check_known(tree: Any, kind: pa.DataType, *, strict: bool) -> None:
    """Raise where ``strict`` and the object has a field that none of the first values had."""
    unknown = unknown_field(tree, kind) if strict else None
    if unknown is not None:
        raise MalformedValueError(f"the field {unknown[:80]!r} is in none of the first values: give a schema")


def unknown_field(tree: Any, kind: pa.DataType, path: str = "") -> str | None:
    """A field of an object that its type lacks."""
    if isinstance(tree, dict) and pa.types.is_struct(kind):
        for name, value in tree.items():
            place = _place(path, str(name))
            number = kind.get_field_index(name) if isinstance(name, str) else -1
            found = place if number < 0 else unknown_field(value, kind.field(number).type, place)
            if found is not None:
                return found
    if isinstance(tree, list | tuple) and pa.types.is_list(kind):
        return next((found for item in tree if (found := unknown_field(item, kind.value_type, path + "[]"))), None)
    return None
