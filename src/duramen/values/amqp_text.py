"""Values of AMQP's type system as text: the name of the type, and the value in a form that loses nothing.

Numbers are decimal, binaries base64, times ISO 8601, decimals the hexadecimal digits of their bits. Lists, maps, arrays
and described values are JSON, in which what JSON lacks is an object with one name that begins with ``$``:
``{"$symbol": "x"}``, ``{"$map": [[1, "a"]]}``.

Reads only what `kernel.scan_amqp` has walked: sizes and counts are known to fit.
"""

from __future__ import annotations

import json
import math
import struct
from base64 import b64encode
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import numpy as np

from duramen.kernel import AMQP_DESCRIBED

_CODES = {
    "null": (0x40,), "boolean": (0x41, 0x42, 0x56), "ubyte": (0x50,), "ushort": (0x60,), "uint": (0x43, 0x52, 0x70),
    "ulong": (0x44, 0x53, 0x80), "byte": (0x51,), "short": (0x61,), "int": (0x54, 0x71), "long": (0x55, 0x81),
    "float": (0x72,), "double": (0x82,), "decimal32": (0x74,), "decimal64": (0x84,), "decimal128": (0x94,),
    "char": (0x73,), "timestamp": (0x83,), "uuid": (0x98,), "binary": (0xA0, 0xB0), "string": (0xA1, 0xB1),
    "symbol": (0xA3, 0xB3), "list": (0x45, 0xC0, 0xD0), "map": (0xC1, 0xD1), "array": (0xE0, 0xF0),
    "described": (AMQP_DESCRIBED,),
}  # fmt: skip
TYPES = tuple(_CODES)
TYPE_OF = np.zeros(256, np.int32)
"""For each constructor, its type as an index of `TYPES`."""
for _index, _codes in enumerate(_CODES.values()):
    TYPE_OF[list(_codes)] = _index
NAMES = {code: name for name, codes in _CODES.items() for code in codes}

_WIDTHS = {
    **dict.fromkeys((0x40, 0x41, 0x42, 0x43, 0x44, 0x45), 0), **dict.fromkeys(range(0x50, 0x57), 1),
    0x60: 2, 0x61: 2, **dict.fromkeys(range(0x70, 0x75), 4), **dict.fromkeys(range(0x80, 0x85), 8), 0x94: 16, 0x98: 16,
}  # fmt: skip
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PLAIN = {"boolean", "ubyte", "ushort", "uint", "ulong", "byte", "short", "int", "long"}


def text_of(view: memoryview, code: int, position: int, length: int) -> str | None:
    """A value as text, by its span; None for a null."""
    name = NAMES[code]
    if name in ("list", "map", "array", "described"):
        return json.dumps(_whole(view, position) if code != 0x45 else [], ensure_ascii=False, separators=(",", ":"))
    if length <= 8 and code in _WIDTHS:
        return _scalar_text(name, position.to_bytes(8, "big", signed=position < 0)[8 - length :], position)
    return _scalar_text(name, bytes(view[position : position + length]), position)


def _scalar_text(name: str, raw: bytes, number: int) -> str | None:
    match name:
        case "null":
            return None
        case "boolean":
            return "true" if number else "false"
        case "ulong":
            return str(number % 2**64)
        case "float" | "double":
            return repr(_real(raw))
        case "decimal32" | "decimal64" | "decimal128":
            return "0x" + raw.hex()
        case "char":
            return chr(number)
        case "timestamp":
            return _time(number)
        case "uuid":
            return str(UUID(bytes=raw))
        case "binary":
            return b64encode(raw).decode()
        case "string" | "symbol":
            return raw.decode()
        case _:
            return str(number)


def _real(raw: bytes) -> float:
    """A float of 32 or 64 bits; of 32 bits the shortest number that rounds to it."""
    if len(raw) == 4:
        return float(str(np.frombuffer(raw, ">f4")[0]))
    found: float = struct.unpack(">d", raw)[0]
    return found


def _time(ms: int) -> str:
    try:
        return (_EPOCH + timedelta(milliseconds=ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except OverflowError:
        return str(ms)


# --- nested values as JSON


def _content_at(view: memoryview, code: int, at: int) -> tuple[int, int]:
    """Where the content after a constructor lies; a size before it belongs to it."""
    width = _WIDTHS.get(code)
    if width is not None:
        return at, at + width
    width = 4 if code & 0x10 else 1
    return at + width, at + width + int.from_bytes(view[at : at + width], "big")


def value_at(view: memoryview, at: int) -> tuple[Any, int]:
    """The value whose constructor is at ``at`` as JSON, and where the next one begins."""
    code = view[at]
    if code == 0:
        descriptor, following = value_at(view, at + 1)
        value, end = value_at(view, following)
        return {"$described": [descriptor, value]}, end
    start, end = _content_at(view, code, at + 1)
    return _tree(view, code, start, end), end


def _whole(view: memoryview, at: int) -> Any:
    """The same for a whole value, whose type is known: an array is a list."""
    tree = value_at(view, at)[0]
    return tree["$array"] if isinstance(tree, dict) and list(tree) == ["$array"] and view[at] in (0xE0, 0xF0) else tree


def _tree(view: memoryview, code: int, start: int, end: int) -> Any:
    name = NAMES[code]
    if name == "list":
        return [] if code == 0x45 else list(items_at(view, code, start, end))
    if name == "map":
        return _map(list(items_at(view, code, start, end)))
    if name == "array":
        return {"$array": _array(view, code, start, end)}
    raw = bytes(view[start:end])
    number = int.from_bytes(raw, "big", signed=name in ("byte", "short", "int", "long", "timestamp"))
    if code == 0x41:
        number = 1
    if name in _PLAIN:
        return bool(number) if name == "boolean" else number
    text = _scalar_text(name, raw, number)
    if name in ("float", "double"):
        real = _real(raw)
        return real if math.isfinite(real) else {"$" + name: text}
    return text if name in ("null", "string") else {"$" + name: text}


def _after_count(view: memoryview, code: int, start: int) -> tuple[int, int]:
    width = 4 if code & 0x10 else 1
    return start + width, int.from_bytes(view[start : start + width], "big")


def items_at(view: memoryview, code: int, start: int, end: int) -> Iterator[Any]:
    """The items of a list or map, whose content begins with their number."""
    at, count = _after_count(view, code, start)
    for _ in range(count):
        item, at = value_at(view, at)
        yield item


def _map(items: list[Any]) -> Any:
    pairs = list(zip(items[::2], items[1::2], strict=True))
    names = [key for key, _ in pairs]
    is_plain = all(isinstance(name, str) and not name.startswith("$") for name in names)
    return dict(pairs) if is_plain and len(set(names)) == len(names) else {"$map": [list(pair) for pair in pairs]}


def _array(view: memoryview, code: int, start: int, end: int) -> Any:
    at, count = _after_count(view, code, start)
    descriptors = []
    while view[at] == 0:
        descriptor, at = value_at(view, at + 1)
        descriptors.append(descriptor)
    kind, at = view[at], at + 1
    if at == end:
        return {"$repeat": [_described(descriptors, _tree(view, kind, at, at)), count]}
    found = []
    for _ in range(count):
        first, following = _content_at(view, kind, at)
        found.append(_described(descriptors, _tree(view, kind, first, following)))
        at = following
    return found


def _described(descriptors: list[Any], tree: Any) -> Any:
    for descriptor in reversed(descriptors):
        tree = {"$described": [descriptor, tree]}
    return tree


# --- bodies of several sections


def sections_at(view: memoryview, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """The sections of a body: the constructor of each, and where its content lies."""
    while at < end:
        _, at = value_at(view, at + 1)
        code = view[at]
        start, at = _content_at(view, code, at + 1)
        yield code, start, at


def spans_at(view: memoryview, code: int, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """The spans of the items of a list: as the kernel fills them."""
    if code == 0x45:
        return
    at, count = _after_count(view, code, start)
    for _ in range(count):
        following = value_at(view, at)[1]
        yield (*_span(view, at, following),)
        at = following


def _span(view: memoryview, at: int, following: int) -> tuple[int, int, int]:
    code = view[at]
    if code == 0:
        return AMQP_DESCRIBED, at, following - at
    start, end = _content_at(view, code, at + 1)
    if code >= 0xC0:
        return code, at, following - at
    if _WIDTHS.get(code, 9) <= 8:
        name = NAMES[code]
        signed = name in ("byte", "short", "int", "long") or end - start == 8
        return code, 1 if code == 0x41 else int.from_bytes(view[start:end], "big", signed=signed), end - start
    return code, start, end - start
