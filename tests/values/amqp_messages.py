"""AMQP 1.0 as bytes: an encoder that knows every constructor, and strategies for messages."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st


def fixed(code: int, pattern: str, number: Any) -> bytes:
    return bytes([code]) + struct.pack(">" + pattern, number)


def sized(code: int, content: bytes) -> bytes:
    """A constructor whose content has a size; ``code`` is that of 8 bits, used where the size fits."""
    if len(content) < 256:
        return bytes([code, len(content)]) + content
    return bytes([code + 0x10]) + struct.pack(">I", len(content)) + content


def text(value: str) -> bytes:
    return sized(0xA1, value.encode())


def symbol(value: str) -> bytes:
    return sized(0xA3, value.encode("ascii"))


def binary(value: bytes) -> bytes:
    return sized(0xA0, value)


def counted(code: int, count: int, content: bytes, *, wide: bool = False) -> bytes:
    """A list, map or array of ``count`` parts."""
    if wide or len(content) > 254 or count > 255:
        return bytes([code + 0x10]) + struct.pack(">II", len(content) + 4, count) + content
    return bytes([code, len(content) + 1, count]) + content


def list_of(items: Sequence[bytes], *, wide: bool = False) -> bytes:
    if not items and not wide:
        return b"\x45"
    return counted(0xC0, len(items), b"".join(items), wide=wide)


def map_of(pairs: Sequence[tuple[bytes, bytes]], *, wide: bool = False) -> bytes:
    return counted(0xC1, 2 * len(pairs), b"".join(key + value for key, value in pairs), wide=wide)


def array_of(constructor: bytes, contents: Sequence[bytes]) -> bytes:
    return counted(0xE0, len(contents), constructor + b"".join(contents))


def described(descriptor: bytes, value: bytes) -> bytes:
    return b"\0" + descriptor + value


def section(number: int, body: bytes) -> bytes:
    return described(fixed(0x53, "B", number), body)


def data(body: bytes) -> bytes:
    """A message that is one section of data."""
    return section(0x75, binary(body))


NULL = b"\x40"
SCALARS: dict[str, tuple[bytes, str]] = {
    "null": (NULL, "null"),
    "true": (b"\x41", "true"), "false": (b"\x42", "false"), "boolean": (b"\x56\x01", "true"),
    "ubyte": (fixed(0x50, "B", 255), "255"), "byte": (fixed(0x51, "b", -128), "-128"),
    "ushort": (fixed(0x60, "H", 65535), "65535"), "short": (fixed(0x61, "h", -32768), "-32768"),
    "uint": (fixed(0x70, "I", 2**32 - 1), "4294967295"), "smalluint": (fixed(0x52, "B", 200), "200"),
    "uint0": (b"\x43", "0"),
    "ulong": (fixed(0x80, "Q", 2**64 - 1), "18446744073709551615"), "smallulong": (fixed(0x53, "B", 200), "200"),
    "ulong0": (b"\x44", "0"),
    "int": (fixed(0x71, "i", -(2**31)), "-2147483648"), "smallint": (fixed(0x54, "b", -1), "-1"),
    "long": (fixed(0x81, "q", -(2**63)), "-9223372036854775808"), "smalllong": (fixed(0x55, "b", -5), "-5"),
    "float": (fixed(0x72, "f", 1.1), "1.1"), "double": (fixed(0x82, "d", 0.1), "0.1"),
    "decimal32": (fixed(0x74, "I", 7), "0x00000007"), "decimal64": (fixed(0x84, "Q", 7), "0x0000000000000007"),
    "decimal128": (b"\x94" + bytes(15) + b"\x07", "0x00000000000000000000000000000007"),
    "char": (fixed(0x73, "I", ord("ä")), "ä"),
    "timestamp": (fixed(0x83, "q", 1_700_000_000_123), "2023-11-14T22:13:20.123Z"),
    "uuid": (b"\x98" + bytes(range(16)), "00010203-0405-0607-0809-0a0b0c0d0e0f"),
    "binary": (binary(b"\xff\0"), "/wA="), "string": (text("grün"), "grün"), "symbol": (symbol("sym"), "sym"),
    "list0": (b"\x45", "[]"),
    "list": (list_of([b"\x41", text("a")]), '[true,"a"]'),
    "map": (map_of([(text("k"), fixed(0x54, "b", 3))]), '{"k":3}'),
    "array": (array_of(b"\x54", [b"\x01", b"\xff"]), "[1,-1]"),
    "described": (described(symbol("x:y"), text("v")), '{"$described":[{"$symbol":"x:y"},"v"]}'),
}  # fmt: skip
"""Every type, as bytes and as the decoder shows it."""

# --- strategies

scalars = st.one_of(
    st.sampled_from([encoded for encoded, _ in SCALARS.values()]),
    st.text(max_size=6).map(text),
    st.binary(max_size=6).map(binary),
    st.integers(-(2**63), 2**63 - 1).map(lambda number: fixed(0x81, "q", number)),
    st.binary(min_size=250, max_size=260).map(binary),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map(list_of),
        st.lists(st.tuples(inner, inner), max_size=3).map(map_of),
        st.lists(inner, max_size=2).map(lambda items: list_of(items, wide=True)),
        st.tuples(inner, inner).map(lambda pair: described(*pair)),
    ),
    max_leaves=8,
)
keys = st.one_of(st.text(max_size=5).map(text), st.sampled_from([symbol("x-opt"), text("x")]))
maps = st.lists(st.tuples(keys, values), max_size=4).map(map_of)
ids = st.sampled_from([NULL, *(SCALARS[name][0] for name in ("ulong", "ulong0", "uuid", "binary", "string"))])
texts = st.one_of(st.just(NULL), st.text(max_size=5).map(text), st.just(symbol("text/plain")))
times = st.one_of(st.just(NULL), st.integers(-(10**15), 10**16).map(lambda ms: fixed(0x83, "q", ms)))
uints = st.sampled_from([NULL, b"\x43", fixed(0x52, "B", 9), fixed(0x70, "I", 2**32 - 1)])
booleans = st.sampled_from([NULL, b"\x41", b"\x42", b"\x56\x00"])
headers = st.tuples(booleans, st.sampled_from([NULL, fixed(0x50, "B", 4)]), uints, booleans, uints)
properties = st.tuples(
    ids, st.one_of(st.just(NULL), st.just(binary(b"guest"))), texts, texts, texts, ids, texts, texts, times, times,
    texts, uints, texts,
)  # fmt: skip


def _cut(fields: tuple[bytes, ...], most: int) -> bytes:
    return list_of(fields[:most])


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    """A message: any sections, any of the three bodies or none."""
    parts = []
    if draw(st.booleans()):
        parts.append(section(0x70, _cut(draw(headers), draw(st.integers(0, 5)))))
    parts += [section(number, draw(maps)) for number in (0x71, 0x72) if draw(st.booleans())]
    if draw(st.booleans()):
        parts.append(section(0x73, _cut(draw(properties), draw(st.integers(0, 13)))))
    if draw(st.booleans()):
        parts.append(section(0x74, draw(maps)))
    kind = draw(st.sampled_from(["data", "data", "sequence", "value", "none"]))
    if kind == "data":
        parts += [section(0x75, binary(body)) for body in draw(st.lists(st.binary(max_size=9), min_size=1, max_size=3))]
    elif kind == "sequence":
        bodies = draw(st.lists(st.lists(values, max_size=3), min_size=1, max_size=2))
        parts += [section(0x76, list_of(body)) for body in bodies]
    elif kind == "value":
        parts.append(section(0x77, draw(values)))
    if draw(st.booleans()):
        parts.append(section(0x78, draw(maps)))
    return b"".join(parts)
