"""Bloom filters of Osiris chunks, as RabbitMQ 3.13 and later (Osiris 1.6) writes and reads them.

A filter has 16 to 255 bytes; bit 0 is the highest bit of its first byte. A record with a filter value sets two bits,
both between 1 and the last one. They come from Erlang's portable hash (`erlang:phash2`), of the value and of a list
that holds the value, by the number of bits less one. A record without a value sets bit 0. A chunk of which no record
has a value has no filter at all. A consumer that asks for values gets the chunks in whose filters both bits of one of
them are set, and chunks without a filter only if it asks for unfiltered records, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np

from duramen.formats.osiris.chunk import HEADER
from duramen.formats.osiris.segment import chunks_of
from duramen.formats.segment import Encoded, Rows

MIN_BYTES, MAX_BYTES = 16, 255

_MASK = 2**32 - 1
_GOLDEN = 0x9E3779B9
_OF_BINARY = 13 * _GOLDEN & _MASK
_OF_NIL = 2 * _GOLDEN & _MASK
_NIL = 2
_SHIFTS = (13, -8, 13, 12, -16, 5, 3, -10, 15)


def _mix(words: list[int]) -> list[int]:
    """Bob Jenkins' mix of three numbers of 32 bits, of 1996."""
    for turn, shift in enumerate(_SHIFTS):
        one, other, last = turn % 3, (turn + 1) % 3, (turn + 2) % 3
        word = (words[one] - words[other] - words[last]) & _MASK
        words[one] = word ^ (words[last] >> shift if shift > 0 else words[last] << -shift & _MASK)
    return words


def _block_hash(data: bytes, start: int) -> int:
    words = [_GOLDEN, _GOLDEN, start]
    whole = len(data) - len(data) % 12
    for at in range(0, whole, 12):
        words = _mix([(word + _little(data[at + 4 * n : at + 4 * n + 4])) & _MASK for n, word in enumerate(words)])
    rest = data[whole:]
    tail = (_little(rest[:4]), _little(rest[4:8]), len(data) + (_little(rest[8:]) << 8))
    return _mix([(word + more) & _MASK for word, more in zip(words, tail, strict=True)])[2]


def _little(data: bytes) -> int:
    return int.from_bytes(data, "little")


def hash_binary(value: bytes) -> int:
    """``erlang:phash2(Value, 1 bsl 32)``.

    >>> hash_binary(b"abc")
    1306188027
    """
    return _block_hash(value, _OF_BINARY) if value else _OF_BINARY


def hash_listed(value: bytes) -> int:
    """``erlang:phash2([Value], 1 bsl 32)``.

    >>> hash_listed(b"abc")
    3553186069
    """
    return _mix([(_OF_NIL + _NIL) & _MASK, _OF_NIL, hash_binary(value)])[2]


@lru_cache(maxsize=4096)
def bits_of(value: bytes, filter_bytes: int) -> tuple[int, int]:
    """The two bits of a filter value; bit 0 twice for an empty one, which stands for none."""
    if not value:
        return 0, 0
    places = filter_bytes * 8 - 1
    return hash_binary(value) % places + 1, hash_listed(value) % places + 1


def bloom_filter(values: Iterable[bytes | None], filter_bytes: int) -> bytes:
    """The filter of a chunk whose records have these filter values; no bytes where none has one.

    >>> bloom_filter([b"abc"], 16).hex()
    '00440000000000000000000000000000'
    """
    distinct = {value or b"" for value in values}
    if distinct <= {b""}:
        return b""
    filled = bytearray(filter_bytes)
    for value in distinct:
        for bit in bits_of(value, filter_bytes):
            filled[bit // 8] |= 0x80 >> bit % 8
    return bytes(filled)


def with_filters(encoded: Encoded, values: Sequence[bytes | None], filter_bytes: int) -> Encoded:
    """The chunks of records, which have these filter values, each with its filter between header and entries."""
    chunks, end = chunks_of(encoded.rows), encoded.rows.end
    if not len(chunks):
        return encoded
    base, size_at = int(chunks.position[0]), HEADER.at("filter_size")
    bounds = [*(chunks.position - base).tolist(), len(encoded.data)]
    parts: list[bytes | memoryview] = []
    added = np.zeros(len(chunks) + 1, np.int64)
    row = 0
    for number, records in enumerate(chunks.records.tolist()):
        raw = bloom_filter(values[row : row + records], filter_bytes)
        whole = encoded.data[bounds[number] : bounds[number + 1]]
        parts += [whole[:size_at], bytes([len(raw)]), whole[size_at + 1 : HEADER.size], raw, whole[HEADER.size :]]
        added[number + 1] = added[number] + len(raw)
        row += records
    chunks.position[:] += added[:-1]
    chunks.data_position[:] += added[1:]
    moved = end._replace(position=end.position + int(added[-1]))
    return Encoded(memoryview(b"".join(parts)), Rows(chunks, encoded.rows.count, moved))
