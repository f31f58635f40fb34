"""Fixed binary structures, declared once, for packing, unpacking and dumping.

Integers and byte strings of fixed width, in one byte order. Never reads past the end of a buffer.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from duramen.kernel import Const, Stop

Buffer = bytes | bytearray | memoryview
Value = int | bytes


class Field(NamedTuple):
    """One field of a file, as `dump` shows it."""

    name: str
    position: int
    length: int
    value: int | bytes | str
    note: str = ""


class Block(NamedTuple):
    """One structure of a file, as `dump` shows it: title, fields, and its problem, if any."""

    title: str
    position: int
    fields: list[Field]
    problem: str | None = None


class Struct:
    """Fields in file order: names and `struct` codes (``B H I Q q`` and ``8s``).

    >>> entry = Struct(">", offset="Q", position="Q")
    >>> entry.size, entry.at("position")
    (16, 8)
    >>> entry.unpack(entry.pack(offset=1, position=2))
    {'offset': 1, 'position': 2}
    """

    def __init__(self, order: str, /, **fields: str) -> None:
        self.order = order
        self._struct = struct.Struct(order + "".join(fields.values()))
        self.size = self._struct.size
        self.names = tuple(fields)
        self._codes = dict(fields)
        self._zeros: dict[str, Value] = {name: b"" if self._is_bytes(name) else 0 for name in fields}
        self._places: dict[str, tuple[int, int]] = {}
        at = 0
        for name, code in fields.items():
            width = struct.calcsize(order + code)
            self._places[name] = (at, width)
            at += width

    def at(self, name: str) -> int:
        """The position of a field, relative to the structure's start."""
        return self._places[name][0]

    def width(self, name: str) -> int:
        return self._places[name][1]

    def const(self, name: str, value: int, stop: Stop) -> Const:
        """The field as a constant of a kernel table."""
        return Const(self.at(name), self.width(name), value, stop)

    def pack(self, **values: Value) -> bytes:
        """The bytes; omitted fields are zero."""
        row = self._zeros | values
        if len(row) > len(self._zeros):
            raise TypeError(f"no such field: {', '.join(sorted(row.keys() - self._zeros.keys()))}")
        return self._struct.pack(*row.values())

    def pack_row(self, *values: Value) -> bytes:
        """The bytes of a row with every field, in order: faster than `pack`."""
        return self._struct.pack(*values)

    def unpack(self, buf: Buffer, position: int = 0) -> dict[str, Value]:
        """The values by name. The caller has checked that ``size`` bytes exist."""
        return dict(zip(self.names, self._struct.unpack_from(buf, position), strict=True))

    def fields(self, buf: Buffer, position: int, notes: Mapping[str, str] | None = None) -> Iterator[Field]:
        """The fields for `dump`, as far as the buffer holds them."""
        view = memoryview(buf)
        for name in self.names:
            at, width = self._places[name]
            if position + at + width > len(view):
                return
            raw = bytes(view[position + at : position + at + width])
            value: Value = raw
            if not self._is_bytes(name):
                signed = self._codes[name] in "bhiq"
                value = int.from_bytes(raw, "big" if self.order == ">" else "little", signed=signed)
            yield Field(name, position + at, width, value, (notes or {}).get(name, ""))

    def _is_bytes(self, name: str) -> bool:
        return self._codes[name].endswith("s")
