"""Makes Python objects that a decoder read fit an Arrow type. Strict: a number is no text, a float no whole number."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa

from duramen import compute as pc
from duramen.values.codec import MalformedValueError

Fit = Callable[[Any], Any]


def fitting(kind: pa.DataType, path: str = "") -> Fit:
    """A function that returns what ``pa.array`` takes for a value of that type, or raises `MalformedValueError`."""
    if pa.types.is_struct(kind):
        return _struct(kind, path)
    if pa.types.is_map(kind):
        return _map(kind, path)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        item = fitting(kind.value_type, path + "[]")
        return _checked(kind, path, (list, tuple), lambda value: [item(each) for each in value])
    return _scalar(kind, path)


def _wrong(path: str, kind: pa.DataType, value: Any) -> MalformedValueError:
    where = f"the field {path!r}" if path else "the value"
    shown = "an object" if pa.types.is_struct(kind) or pa.types.is_map(kind) else f"of type {kind}"
    return MalformedValueError(f"{where} is a {type(value).__name__}, not {shown}")


def _checked(kind: pa.DataType, path: str, allowed: tuple[type, ...], fit: Fit) -> Fit:
    """Nulls pass; other values must be of a class."""

    def checked(value: Any) -> Any:
        if value is None:
            return None
        if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
            raise _wrong(path, kind, value)
        try:
            return fit(value)
        except (ValueError, OverflowError, InvalidOperation) as error:
            raise MalformedValueError(f"the field {path!r} is not of type {kind}: {value!r:.60}") from error

    return checked


def _struct(kind: pa.StructType, path: str) -> Fit:
    fits = [(field.name, fitting(field.type, f"{path}.{field.name}" if path else field.name)) for field in kind]
    return _checked(kind, path, (dict,), lambda value: {name: fit(value.get(name)) for name, fit in fits})


def _map(kind: pa.MapType, path: str) -> Fit:
    key, item = fitting(kind.key_type, path + " keys"), fitting(kind.item_type, path + "{}")
    is_text = pa.types.is_string(kind.key_type)

    def pairs(value: dict[Any, Any]) -> list[tuple[Any, Any]]:
        return [(key(name if not is_text or isinstance(name, str) else str(name)), item(each))
                for name, each in value.items()]  # fmt: skip

    return _checked(kind, path, (dict,), pairs)


def _scalar(kind: pa.DataType, path: str) -> Fit:
    def same(value: Any) -> Any:
        return value

    if pa.types.is_boolean(kind):
        return _checked(kind, path, (bool,), same)
    if pa.types.is_integer(kind):
        return _checked(kind, path, (int,), same)
    if pa.types.is_floating(kind):
        return _checked(kind, path, (int, float), float)
    if pa.types.is_string(kind):
        return _checked(kind, path, (str,), same)
    if pa.types.is_binary(kind):
        return _checked(kind, path, (bytes, str), lambda value: value.encode() if isinstance(value, str) else value)
    if pa.types.is_decimal(kind):
        return _checked(kind, path, (int, float, str, Decimal), lambda value: Decimal(str(value)))
    if pa.types.is_timestamp(kind):
        return _checked(kind, path, (str, datetime), _zoned if kind.tz else _naive)
    if pa.types.is_date(kind):
        return _checked(kind, path, (str, date), lambda value: date.fromisoformat(str(value)))
    if pa.types.is_time(kind):
        return _checked(kind, path, (str, time), lambda value: time.fromisoformat(str(value)))
    return same


def _time_of(value: str | datetime) -> datetime:
    return value if isinstance(value, datetime) else datetime.fromisoformat(value)


def _zoned(value: str | datetime) -> datetime:
    when = _time_of(value)
    return when.replace(tzinfo=UTC) if when.tzinfo is None else when.astimezone(UTC)


def _naive(value: str | datetime) -> datetime:
    when = _time_of(value)
    return when if when.tzinfo is None else when.astimezone(UTC).replace(tzinfo=None)


def check_representable(array: pa.Array) -> None:
    """Raise `pa.ArrowInvalid` where Arrow's reader made a time outside of the years 1 to 9999, which Python lacks, or
    an infinite number, which JSON lacks."""
    kind = array.type
    if pa.types.is_struct(kind):
        for column in array.flatten():
            check_representable(column)
    elif pa.types.is_list(kind):
        check_representable(array.flatten())
    elif pa.types.is_timestamp(kind) or pa.types.is_float32(kind):
        ends = pc.min_max(array)
        for end in (ends["min"].as_py, ends["max"].as_py):
            try:
                is_shown = end() not in (math.inf, -math.inf)
            except (ValueError, OverflowError):
                is_shown = False
            if not is_shown:
                raise pa.ArrowInvalid(f"a value of type {kind} is out of range")
