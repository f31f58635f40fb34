"""Key and headers of a record, and whether its value is null, as one block of bytes: Keratin's user headers.

::

    block
      0  marker        3 bytes  C1 44 48
      3  flags         u8       01; 03: the value is null
      4  key_length    u32      FFFFFFFF: no key
      8  key
      …  headers, up to the end of the block, each:
           name_length   u32
           name          UTF-8
           value_length  u32    FFFFFFFF: the value is null
           value

Big-endian. The first byte of the marker starts neither UTF-8 text nor a MessagePack value, so that blocks of other
programs rarely begin like this. One that is not Duramen's, because the marker is missing, what follows it is not
exactly what `encode_block` writes, or a null value has a payload, is *opaque*: it reads as one header with the empty
name and the block as value, and that header is written back as the bare block. Hence decoding and encoding undo each
other, both ways:

* no block (zero bytes) means no key and no headers; an empty list of headers counts as none;
* ``encode_block(*decode_block(block, has_payload), has_payload) == block`` for all bytes;
* ``decode_block(encode_block(key, headers)) == (key, headers, False)`` for everything that can be encoded.

No bytes make a decoder raise. An encoder refuses a name that is not Unicode text.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from duramen import compute as pc
from duramen.errors import UsageError
from duramen.formats.arrow import (
    EMPTY,
    binary_array,
    binary_buffers,
    binary_of,
    bool_array,
    gather,
    null_mask,
    number_array,
    numbers_of,
    with_nulls,
)
from duramen.formats.struct import Struct
from duramen.record import HEADER, HEADERS, KEY, Headers

MARKER = b"\xc1DH\x01"
TOMBSTONE = b"\xc1DH\x03"
"""The marker and flags of a record whose value is null."""
NULL = 0xFFFFFFFF
KEY_MARKER, NULL_MARKER = int.from_bytes(MARKER, "big"), int.from_bytes(TOMBSTONE, "big")

PREFIX = Struct(">", marker="4s", key_length="I")
LENGTH = Struct(">", length="I")


class BlockFields(NamedTuple):
    """What a block says about its record."""

    key: bytes | None
    headers: Headers | None
    is_null: bool = False


_NO_KEY = PREFIX.pack(marker=MARKER, key_length=NULL)
_WRAPPER = _NO_KEY + LENGTH.pack(length=0)
"""How a block starts that holds another block as the value of a header with the empty name; its length follows."""
_WRAPPER_BYTES = len(_WRAPPER) + LENGTH.size


# --- one block


def decode_block(block: bytes, has_payload: bool = False) -> BlockFields:
    """The fields of one block. ``has_payload``: the payload of its record is not empty.

    >>> decode_block(b"k=v")
    BlockFields(key=None, headers=[('', b'k=v')], is_null=False)
    >>> decode_block(encode_block(b"id", [("trace", None)]))
    BlockFields(key=b'id', headers=[('trace', None)], is_null=False)
    """
    if not block:
        return BlockFields(None, None)
    return _parse(block, has_payload) or BlockFields(None, [("", block)])


def encode_block(key: bytes | None, headers: Headers | None, is_null: bool = False, has_payload: bool = False) -> bytes:
    """The block for a key and headers.

    >>> encode_block(b"id", None)
    b'\\xc1DH\\x01\\x00\\x00\\x00\\x02id'
    >>> encode_block(None, [("", b"k=v")])
    b'k=v'
    """
    if key is None and not is_null:
        if not headers:
            return b""
        if len(headers) == 1:
            name, value = headers[0]
            if name == "" and value and _parse(value, has_payload) is None:
                return value
    parts = [TOMBSTONE if is_null else MARKER, *_sized(key)]
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


def _parse(block: bytes, has_payload: bool) -> BlockFields | None:
    """The fields of a block that `encode_block` could have written, else None."""
    parsed = _parse_fields(block, has_payload)
    if parsed is None:
        return None
    key, headers, is_null = parsed
    if key is None and not is_null:
        if headers is None:
            return None  # written as no block at all
        if len(headers) == 1 and headers[0][0] == "" and headers[0][1] and not _holds_a_block(block, has_payload):
            return None  # written as the bare value
    return parsed


def _holds_a_block(block: bytes, has_payload: bool) -> bool:
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
    parsed = _parse_fields(rest, has_payload)
    return parsed is not None and parsed != BlockFields(None, None)


def _parse_fields(block: bytes, has_payload: bool) -> BlockFields | None:
    """The fields, if marker, flags, lengths and names are sound and nothing is left over."""
    end = len(block)
    is_null = block.startswith(TOMBSTONE) and not has_payload
    if end < PREFIX.size or not (is_null or block.startswith(MARKER)):
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
    return BlockFields(key, headers or None, is_null)


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


def encode_blocks(key: pa.Array | None, headers: pa.Array | None, values: pa.Array) -> pa.BinaryArray | None:
    """The blocks of a batch, from its columns (None for a column that it lacks); None where all would be empty."""
    if key is not None and key.null_count == len(key):
        key = None
    counts = None if headers is None else np.where(null_mask(headers), 0, numbers_of(headers.value_lengths()))
    if counts is None or not counts.any():
        if key is None and not values.null_count:
            return None
        heads = _heads(key, values)
        return heads if key is not None and not key.null_count else _without(heads, key, values)
    assert headers is not None
    pairs = headers.flatten()  # without those of null rows
    names, contents = pairs.flatten() if len(pairs) else (pa.nulls(0, pa.string()), pa.nulls(0, pa.binary()))
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    data, offsets = binary_buffers(_pairs(names, contents))
    blocks = pc.binary_join_element_wise(_heads(key, values), binary_array(offsets[ends], data), EMPTY)
    blocks = _without(blocks, key, values, counts == 0)
    return _with_bare(blocks, key, values, np.flatnonzero(counts == 1), names, contents, ends)


def _heads(keys: pa.BinaryArray | None, values: pa.Array) -> pa.BinaryArray:
    """Marker, flags and key of each row."""
    count = len(values)
    keys = pa.nulls(count, KEY.type) if keys is None else keys.cast(KEY.type)
    prefixes = np.zeros(count, [("marker", "S4"), ("key_length", ">u4")])
    prefixes["marker"] = np.where(null_mask(values), TOMBSTONE, MARKER)
    prefixes["key_length"] = _lengths(keys)
    return pc.binary_join_element_wise(_fixed(prefixes), pc.fill_null(keys, EMPTY), EMPTY)


def _pairs(names: pa.StringArray, contents: pa.BinaryArray) -> pa.BinaryArray:
    """Each header with its lengths."""
    return pc.binary_join_element_wise(
        _fixed(_lengths(names)), names.cast(pa.binary()),
        _fixed(_lengths(contents)), pc.fill_null(contents, EMPTY), EMPTY,
    )  # fmt: skip


def _lengths(column: pa.Array) -> npt.NDArray[np.uint32]:
    """The length of each item as it is stored: `NULL` for a null."""
    lengths = np.diff(binary_buffers(column)[1]).astype(">u4")
    lengths[null_mask(column)] = NULL
    return lengths


def _fixed(items: npt.NDArray[Any]) -> pa.BinaryArray:
    """The bytes of each item."""
    return binary_array(np.arange(len(items) + 1, dtype=np.int32) * np.int32(items.dtype.itemsize), items)


def _without(
    blocks: pa.BinaryArray, key: pa.Array | None, values: pa.Array, is_bare: npt.NDArray[np.bool_] | None = None
) -> pa.BinaryArray:
    """The blocks, but none for a row that has neither key nor (``is_bare``) headers, and whose value is not null."""
    empty = ~null_mask(values) if key is None else ~null_mask(values) & null_mask(key)
    empty = empty if is_bare is None else empty & is_bare
    return pc.if_else(bool_array(empty), EMPTY, blocks) if empty.any() else blocks


def _with_bare(
    blocks: pa.BinaryArray, key: pa.Array | None, values: pa.Array, rows: npt.NDArray[np.int64],
    names: pa.StringArray, contents: pa.BinaryArray, ends: npt.NDArray[np.int64],
) -> pa.BinaryArray:  # fmt: skip
    """The blocks, but the bare value of the one header with an empty name: one by one, such rows are rare. ``rows``
    have one header, the one at ``ends``."""
    candidates = (numbers_of(pc.binary_length(names))[ends[rows]] == 0) & ~null_mask(values)[rows]
    if key is not None:
        candidates &= null_mask(key)[rows]
    rows = rows[candidates]
    if not len(rows):
        return blocks
    held = contents.take(number_array(ends[rows])).to_pylist()
    sizes = pc.binary_length(values).take(number_array(rows)).to_pylist()
    encoded = [encode_block(None, [("", one)], False, bool(size)) for one, size in zip(held, sizes, strict=True)]
    is_one = np.zeros(len(blocks), bool)
    is_one[rows] = True
    return pc.replace_with_mask(blocks, bool_array(is_one), binary_of(encoded))


def decode_blocks(
    blocks: pa.BinaryArray, has_payload: npt.NDArray[np.bool_]
) -> tuple[pa.Array, pa.Array, npt.NDArray[np.bool_]]:
    """The columns ``key`` and ``headers`` of a batch and which values are null, from its blocks. A block that is null
    counts as empty."""
    data, offsets = binary_buffers(blocks)
    starts, lengths = offsets[:-1].astype(np.int64), np.diff(offsets)
    key_only, is_null = _key_only(data, starts, lengths, has_payload)
    others = np.flatnonzero((lengths > 0) & ~key_only)
    keys = gather(data, starts + key_only * PREFIX.size, np.where(key_only, lengths - PREFIX.size, 0).astype(np.uint32))
    keys = with_nulls(keys, ~key_only)
    if not len(others):
        return keys, pa.nulls(len(blocks), HEADERS.type), is_null
    found = zip(blocks.take(number_array(others)).to_pylist(), has_payload[others].tolist(), strict=True)
    decoded = [decode_block(block, has) for block, has in found]
    is_other = np.zeros(len(blocks), bool)
    is_other[others] = True
    is_null[others] = [fields.is_null for fields in decoded]
    keys = pc.replace_with_mask(keys, bool_array(is_other), binary_of([fields.key for fields in decoded]))
    return keys, _header_lists(len(blocks), others, [fields.headers for fields in decoded]), is_null


def _key_only(
    data: Any, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int32], has_payload: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Which blocks are marker, length and key, and nothing more; and which of these say that the value is null."""
    found = lengths >= PREFIX.size
    is_null = np.zeros(len(lengths), bool)
    rows = np.flatnonzero(found)
    if not len(rows):
        return found, is_null
    raw = np.frombuffer(data, np.uint8)
    heads = raw[starts[rows, None] + np.arange(PREFIX.size)].view([("marker", ">u4"), ("key_length", ">u4")])[:, 0]
    is_key = heads["key_length"].astype(np.int64) == lengths[rows] - PREFIX.size
    is_null[rows] = (heads["marker"] == NULL_MARKER) & is_key & ~has_payload[rows]
    found[rows] = is_null[rows] | ((heads["marker"] == KEY_MARKER) & is_key)
    return found, is_null


def _header_lists(count: int, rows: npt.NDArray[np.int64], lists: list[Headers | None]) -> pa.ListArray:
    """A column of ``count`` lists of headers: those of ``rows``, null elsewhere."""
    sizes = np.zeros(count, np.int32)
    sizes[rows] = [0 if headers is None else len(headers) for headers in lists]
    offsets = np.concatenate([np.zeros(1, np.int32), np.cumsum(sizes, dtype=np.int32)])
    flat = [header for headers in lists if headers for header in headers]
    structs = pa.StructArray.from_arrays(
        [binary_of([name.encode() for name, _ in flat]).view(pa.string()), binary_of([value for _, value in flat])],
        fields=list(HEADER),
    )
    return pa.ListArray.from_arrays(number_array(offsets), structs, type=HEADERS.type, mask=bool_array(sizes == 0))
