"""The block of key and headers: decoding and encoding undo each other for all bytes and for everything encodable."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duramen.errors import UsageError
from duramen.formats.keratin import header_block
from duramen.formats.keratin.header_block import (
    MARKER,
    TOMBSTONE,
    BlockFields,
    decode_block,
    decode_blocks,
    encode_block,
    encode_blocks,
)
from duramen.record import HEADERS, KEY, Headers

NULL = b"\xff\xff\xff\xff"

names = st.one_of(st.just(""), st.text(max_size=5))
values = st.one_of(st.none(), st.binary(max_size=6))
plain_pairs = st.builds(
    BlockFields, values, st.one_of(st.none(), st.lists(st.tuples(names, values), min_size=1, max_size=3)), st.booleans()
)


def wrap(fields: BlockFields) -> BlockFields:
    return BlockFields(None, [("", encode_block(*fields))])


pairs = st.recursive(plain_pairs, lambda inner: inner.map(wrap), max_leaves=4)


@st.composite
def near_misses(draw: st.DrawFn) -> bytes:
    """Blocks that are ours but for a few bytes."""
    block = bytearray(encode_block(*draw(pairs)))
    for _ in range(draw(st.integers(0, 2))):
        if block:
            block[draw(st.integers(0, len(block) - 1))] = draw(st.sampled_from([0, 1, 2, 4, 8, 0x80, 0xFF]))
    return bytes(block)[: draw(st.integers(0, len(block)))] + draw(st.binary(max_size=2))


marked = st.tuples(st.sampled_from([MARKER, TOMBSTONE]), st.binary(max_size=20)).map(b"".join)
blocks = st.one_of(st.binary(max_size=20), marked, near_misses())


@given(pairs)
def test_what_is_encoded_is_decoded(fields: BlockFields) -> None:
    assert decode_block(encode_block(*fields)) == fields


@given(pairs)
def test_what_is_encoded_is_decoded_beside_a_payload(fields: BlockFields) -> None:
    fields = fields._replace(is_null=False)
    assert decode_block(encode_block(*fields, has_payload=True), True) == fields


@given(blocks, st.booleans())
def test_what_is_decoded_is_encoded(block: bytes, has_payload: bool) -> None:
    assert encode_block(*decode_block(block, has_payload), has_payload) == block


@pytest.mark.parametrize(
    ("key", "headers", "block"),
    [
        (None, None, b""),
        (b"", None, MARKER + bytes(4)),
        (b"id", None, MARKER + b"\0\0\0\2id"),
        (None, [("", b"k=v")], b"k=v"),
        (None, [("", b"")], MARKER + NULL + bytes(4) + bytes(4)),
        (None, [("", None)], MARKER + NULL + bytes(4) + NULL),
        (None, [("h", b"v")], MARKER + NULL + b"\0\0\0\1h\0\0\0\1v"),
        (b"k", [("é", None)], MARKER + b"\0\0\0\1k\0\0\0\2\xc3\xa9" + NULL),
        (None, [("", MARKER)], MARKER),
        (None, [("", MARKER + bytes(4))], MARKER + NULL + bytes(4) + b"\0\0\0\x08" + MARKER + bytes(4)),
    ],
)
def test_bytes(key: bytes | None, headers: Headers | None, block: bytes) -> None:
    assert encode_block(key, headers) == block
    assert decode_block(block) == (key, headers, False)


@pytest.mark.parametrize(
    ("key", "headers", "block"),
    [
        (None, None, TOMBSTONE + NULL),
        (b"id", None, TOMBSTONE + b"\0\0\0\2id"),
        (None, [("", b"k=v")], TOMBSTONE + NULL + bytes(4) + b"\0\0\0\x03k=v"),
    ],
)
def test_bytes_of_a_tombstone(key: bytes | None, headers: Headers | None, block: bytes) -> None:
    assert encode_block(key, headers, is_null=True) == block
    assert decode_block(block) == (key, headers, True)
    assert decode_block(block, has_payload=True) == (None, [("", block)], False)  # a null value has no payload


def test_no_headers_and_an_empty_list_are_the_same() -> None:
    assert encode_block(None, []) == encode_block(None, None) == b""
    assert encode_block(b"k", []) == encode_block(b"k", None)


@pytest.mark.parametrize(
    "block",
    [
        MARKER,
        MARKER + NULL,  # no key and no headers are no block
        MARKER + b"\0\0\0\2k",  # the key is longer than the block
        MARKER + NULL + b"\0\0\0\1",  # a name without its text
        MARKER + NULL + b"\0\0\0\1n",  # a name without a value
        MARKER + NULL + NULL + bytes(4),  # a name that is null
        MARKER + NULL + b"\0\0\0\1\xff" + bytes(4),  # a name that is no UTF-8
        MARKER + NULL + bytes(4) + b"\0\0\0\1x",  # a value that can stand alone
        MARKER + bytes(4) + b"x",  # a byte too many
        b"\xc1DH\x02" + bytes(4),  # another marker
    ],
)
def test_what_is_not_ours_is_opaque(block: bytes) -> None:
    assert decode_block(block) == (None, [("", block)], False)
    assert encode_block(None, [("", block)]) == block


def test_a_name_must_be_unicode() -> None:
    with pytest.raises(UsageError, match="Unicode"):
        encode_block(None, [("\ud800", b"")])


@pytest.mark.parametrize("core", [b"", b"opaque", encode_block(b"key", None), TOMBSTONE + NULL])
def test_wrappers_within_wrappers_need_no_recursion(core: bytes) -> None:
    block = core
    for _ in range(20_000):
        block = MARKER + NULL + bytes(4) + len(block).to_bytes(4, "big") + block
    key, headers, is_null = decode_block(block)
    assert encode_block(key, headers, is_null) == block
    assert (headers == [("", block)]) == (core == b"opaque")


def payloads(rows: list[BlockFields]) -> pa.Array:
    return pa.array([None if row.is_null else b"" if number % 2 else b"v" for number, row in enumerate(rows)])


@given(st.lists(pairs, max_size=8), st.integers(0, 3))
def test_columns_are_encoded_like_single_blocks(rows: list[BlockFields], skip: int) -> None:
    key = pa.array([row.key for row in rows], KEY.type)[skip:]
    headers = pa.array([row.headers for row in rows], HEADERS.type)[skip:]
    values = payloads(rows).cast(pa.binary())[skip:]
    encoded = encode_blocks(key, headers, values)
    expected = [encode_block(*row, bool(value)) for row, value in zip(rows[skip:], values.to_pylist(), strict=True)]
    assert (encoded.to_pylist() if encoded is not None else [b""] * len(expected)) == expected
    assert (encoded is None) == (not any(expected))


@given(st.lists(st.tuples(blocks, st.booleans()), max_size=8), st.integers(0, 3))
def test_columns_are_decoded_like_single_blocks(rows: list[tuple[bytes, bool]], skip: int) -> None:
    has_payload = np.array([has for _, has in rows[skip:]], bool)
    key, headers, is_null = decode_blocks(pa.array([block for block, _ in rows], pa.binary())[skip:], has_payload)
    key.validate(full=True)
    headers.validate(full=True)
    assert (key.type, headers.type) == (KEY.type, HEADERS.type)
    found = list(zip(key.to_pylist(), tuples(headers), is_null.tolist(), strict=True))
    assert found == [decode_block(*row) for row in rows[skip:]]


def tuples(headers: pa.Array) -> list[Headers | None]:
    return [
        None if listed is None else [(header["key"], header["value"]) for header in listed]
        for listed in headers.to_pylist()
    ]


def test_columns_that_a_batch_lacks() -> None:
    values = pa.array([b"v", b""])
    assert encode_blocks(None, None, values) is None
    assert encode_blocks(pa.nulls(2, KEY.type), pa.nulls(2, HEADERS.type), values) is None
    assert encode_blocks(pa.array([b"k", None]), None, values).to_pylist() == [encode_block(b"k", None), b""]
    headers = pa.array([[("h", b"v")], [], None], HEADERS.type)
    assert encode_blocks(None, headers, pa.array([b""] * 3)).to_pylist() == [
        encode_block(None, [("h", b"v")]), b"", b""
    ]  # fmt: skip


def test_a_key_that_is_text_is_taken_as_its_bytes() -> None:
    assert encode_blocks(pa.array(["é"]), None, pa.array([b""])).to_pylist() == [encode_block("é".encode(), None)]


def test_rows_without_headers_need_no_python_each(monkeypatch: pytest.MonkeyPatch) -> None:
    keys, values = pa.array([b"a", None, b"", b"d"]), pa.array([b"v", b"", b"", None])
    encoded = encode_blocks(keys, pa.nulls(4, HEADERS.type), values)
    monkeypatch.setattr(header_block, "encode_block", None)
    monkeypatch.setattr(header_block, "decode_block", None)
    assert encode_blocks(keys, pa.nulls(4, HEADERS.type), values) == encoded
    found, _, is_null = decode_blocks(encoded, np.array([True, False, False, False]))
    assert (found, is_null.tolist()) == (keys, [False, False, False, True])
