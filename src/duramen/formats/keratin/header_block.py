"""Key and headers of a record as one block of bytes, for formats with a single opaque place for both (Keratin).

::

    block
      0  marker        4 bytes  C1 44 48 01
      4  key_length    u32      FFFFFFFF: no key
      8  key
      …  headers, up to the end of the block, each:
           name_length   u32
           name          UTF-8
           value_length  u32    FFFFFFFF: the value is null
           value

Big-endian. The first byte of the marker starts neither UTF-8 text nor a MessagePack value, so that blocks of other
programs rarely begin like this. One that is not Duramen's, because the marker is missing or what follows it is not
exactly what `encode_block` writes, is *opaque*: it reads as one header with the empty name and the block as value,
and that header is written back as the bare block. Hence decoding and encoding undo each other, both ways:

* no block (zero bytes) means no key and no headers; an empty list of headers counts as none;
* ``encode_block(*decode_block(block)) == block`` for all bytes;
* ``decode_block(encode_block(key, headers)) == (key, headers)`` for everything that can be encoded.

No bytes make a decoder raise. An encoder refuses a name that is not Unicode text.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from duramen.errors import UsageError
from duramen.formats.arrow import binary_array, binary_buffers, gather
from duramen.formats.struct import Struct
from duramen.record import HEADER, HEADERS, KEY, Headers

MARKER = b"\xc1DH\x01"
NULL = 0xFFFFFFFF

PREFIX = Struct(">", marker="4s", key_length="I")
LENGTH = Struct(">", length="I")

Pair = tuple[bytes | None, Headers | None]

_NO_KEY = PREFIX.pack(marker=MARKER, key_length=NULL)
_WRAPPER = _NO_KEY + LENGTH.pack(length=0)
"""How a block starts that holds another block as the value of a header with the empty name; its length follows."""
_WRAPPER_BYTES = len(_WRAPPER) + LENGTH.size


# --- one block


def decode_block(block: bytes) -> Pair:
    """Key and headers of one block.

    >>> decode_block(b"k=v")
    (None, [('', b'k=v')])
    >>> decode_block(encode_block(b"id", [("trace", None)]))
    (b'id', [('trace', None)])
    """
    if not block:
        return None, None
    parsed = _parse(block)
    return (None, [("", block)]) if parsed is None else parsed


def encode_block(key: bytes | None, headers: Headers | None) -> bytes:
    """The block for a key and headers.

    >>> encode_block(b"id", None)
    b'\\xc1DH\\x01\\x00\\x00\\x00\\x02id'
    >>> encode_block(None, [("", b"k=v")])
    b'k=v'
    """
    if key is None:
        if not headers:
            return b""
        if len(headers) == 1:
            name, value = headers[0]
            if name == "" and value and _parse(value) is None:
                return value
    parts = [MARKER, *_sized(key)]
    for name, value in headers or ():
        parts += _sized(_utf8(name))
        parts += _sized(value)
    return b"".join(parts)


def _sized(data: bytes | None) -> tuple[bytes, bytes]:
    if data is None:
        return LENGTH.pack(length=NULL), b""
    return len(data).to_bytes(LENGTH.size, "big"), data


def _utf8(name: str) -> bytes:
    try:
        return name.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"the header name {name!r} is not Unicode text") from error


def _parse(block: bytes) -> Pair | None:
    """The key and headers of a block that `encode_block` could have written, else None."""
    parsed = _parse_fields(block)
    if parsed is None:
        return None
    key, headers = parsed
    if key is None:
        if headers is None:
            return None  # written as no block at all
        if len(headers) == 1 and headers[0][0] == "" and headers[0][1] and not _holds_a_block(block):
            return None  # written as the bare value
    return key, headers


def _holds_a_block(block: bytes) -> bool:
    """Whether the value of a wrapper is itself something that must not stand bare: empty, or one of our blocks.

    Wrappers may hold wrappers: one step of constant cost for each, then one look at the innermost.
    """
    at = 0
    while block.startswith(_WRAPPER, at) and len(block) - at >= _WRAPPER_BYTES:
        length = int.from_bytes(block[at + len(_WRAPPER) : at + _WRAPPER_BYTES], "big")
        if length != len(block) - at - _WRAPPER_BYTES:
            break
        at += _WRAPPER_BYTES
    rest = block[at:]
    if not rest:
        return True
    parsed = _parse_fields(rest)
    return parsed is not None and parsed != (None, None)


def _parse_fields(block: bytes) -> Pair | None:
    """Key and headers, if marker, lengths and names are sound and nothing is left over."""
    end = len(block)
    if end < PREFIX.size or not block.startswith(MARKER):
        return None
    sized = _read_sized(block, len(MARKER), end)
    if sized is None:
        return None
    key, at = sized
    headers: Headers = []
    while at < end:
        sized = _read_sized(block, at, end)
        if sized is None or sized[0] is None:
            return None
        name, at = sized
        sized = _read_sized(block, at, end)
        if sized is None:
            return None
        value, at = sized
        try:
            headers.append((name.decode(), value))  # type: ignore[union-attr]
        except UnicodeDecodeError:
            return None
    return key, headers or None


def _read_sized(block: bytes, at: int, end: int) -> tuple[bytes | None, int] | None:
    start = at + LENGTH.size
    if start > end:
        return None
    length = int.from_bytes(block[at:start], "big")
    if length == NULL:
        return None, start
    if length > end - start:
        return None
    return block[start : start + length], start + length


# --- columns of blocks


def encode_blocks(key: pa.Array | None, headers: pa.Array | None) -> pa.BinaryArray | None:
    """The blocks of a batch, from its columns (None for a column that it lacks); None where all would be empty.

    Rows with a key alone cost no Python; rows with headers are encoded one by one.
    """
    if key is not None and key.null_count == len(key):
        key = None
    blocks = None if key is None else _key_blocks(key.cast(KEY.type))
    if headers is None:
        return blocks
    has_headers = pc.greater(pc.fill_null(pc.list_value_length(headers), 0), 0)
    rows = np.flatnonzero(has_headers.to_numpy(zero_copy_only=False))
    if not len(rows):
        return blocks
    if blocks is None:
        blocks = binary_array(np.zeros(len(headers) + 1, np.int32), b"")
    keys = [None] * len(rows) if key is None else key.take(pa.array(rows)).to_pylist()
    encoded = [
        encode_block(one, [(header["key"], header["value"]) for header in listed])
        for one, listed in zip(keys, headers.take(pa.array(rows)).to_pylist(), strict=True)
    ]
    return pc.replace_with_mask(blocks, has_headers, pa.array(encoded, pa.binary()))


def _key_blocks(keys: pa.BinaryArray) -> pa.BinaryArray:
    """One block per key; an empty one where the key is null."""
    count = len(keys)
    prefixes = np.zeros(count, [("marker", "S4"), ("key_length", ">u4")])
    prefixes["marker"] = MARKER
    prefixes["key_length"] = np.diff(binary_buffers(keys)[1])
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(PREFIX.size)
    joined = pc.binary_join_element_wise(binary_array(offsets, prefixes), keys, pa.scalar(b"", pa.binary()))
    return pc.fill_null(joined, b"")


def decode_blocks(blocks: pa.BinaryArray) -> tuple[pa.Array, pa.Array]:
    """The columns ``key`` and ``headers`` of a batch, from its blocks. A block that is null counts as empty."""
    data, offsets = binary_buffers(blocks)
    starts, lengths = offsets[:-1].astype(np.int64), np.diff(offsets)
    key_only = _key_only(data, starts, lengths)
    others = np.flatnonzero((lengths > 0) & ~key_only)
    keys = gather(data, starts + key_only * PREFIX.size, np.where(key_only, lengths - PREFIX.size, 0).astype(np.uint32))
    keys = _with_nulls(keys, ~key_only)
    if not len(others):
        return keys, pa.nulls(len(blocks), HEADERS.type)
    decoded = [decode_block(block) for block in blocks.take(pa.array(others)).to_pylist()]
    is_other = np.zeros(len(blocks), bool)
    is_other[others] = True
    keys = pc.replace_with_mask(keys, pa.array(is_other), pa.array([pair[0] for pair in decoded], KEY.type))
    return keys, _header_lists(len(blocks), others, [pair[1] for pair in decoded])


def _key_only(data: Any, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
    """Which blocks are marker, length and key, and nothing more."""
    found = lengths >= PREFIX.size
    rows = np.flatnonzero(found)
    if not len(rows):
        return found
    raw = np.frombuffer(data, np.uint8)
    heads = raw[starts[rows, None] + np.arange(PREFIX.size)].view([("marker", ">u4"), ("key_length", ">u4")])[:, 0]
    found[rows] = (heads["marker"] == int.from_bytes(MARKER, "big")) & (
        heads["key_length"].astype(np.int64) == lengths[rows] - PREFIX.size
    )
    return found


def _with_nulls(array: pa.BinaryArray, is_null: npt.NDArray[np.bool_]) -> pa.BinaryArray:
    if not is_null.any():
        return array
    valid = pa.array(~is_null).buffers()[1]
    return pa.Array.from_buffers(array.type, len(array), [valid, *array.buffers()[1:]])


def _header_lists(count: int, rows: npt.NDArray[np.int64], lists: list[Headers | None]) -> pa.ListArray:
    """A column of ``count`` lists of headers: those of ``rows``, null elsewhere."""
    sizes = np.zeros(count, np.int32)
    sizes[rows] = [0 if headers is None else len(headers) for headers in lists]
    offsets = np.concatenate([np.zeros(1, np.int32), np.cumsum(sizes, dtype=np.int32)])
    flat = [header for headers in lists if headers for header in headers]
    structs = pa.StructArray.from_arrays(
        [pa.array([name for name, _ in flat], pa.string()), pa.array([value for _, value in flat], pa.binary())],
        fields=list(HEADER),
    )
    return pa.ListArray.from_arrays(pa.array(offsets), structs, type=HEADERS.type, mask=pa.array(sizes == 0))
