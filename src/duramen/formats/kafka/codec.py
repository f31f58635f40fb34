"""The compressions of Kafka's batches: records folded, and unfolded within bounds.

A batch does not state how long its records are. The framing of each codec does, or bounds it (`kernel.bound_bodies`).
The bound is compared with the limit before any memory is allocated, and no more than the bound is ever written.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any

import cramjam

from duramen.errors import LimitError, UsageError

MAX_UNCOMPRESSED_BYTES = 128 << 20


class KafkaCompression(IntEnum):
    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


_XERIAL = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16


def check_bound(bound_bytes: int, max_bytes: int, *, position: int, offset: int | None = None) -> None:
    """Refuse a batch that may unfold to more than the limit, before anything is allocated for it."""
    if bound_bytes > max_bytes:
        raise LimitError(
            f"the batch may unfold to {bound_bytes} bytes, more than {max_bytes}",
            position=position, offset=offset, hint="max_uncompressed_bytes sets the bound",
        )  # fmt: skip


def _unfold_snappy(body: memoryview, out: Any) -> int:
    """One raw block, or the blocks of the Java library, whose lengths were checked for the bound."""
    if bytes(body[: len(_XERIAL)]) != _XERIAL:
        return int(cramjam.snappy.decompress_raw_into(body, out))
    at, written = _XERIAL_HEADER_BYTES, 0
    while at < len(body):
        length = int.from_bytes(body[at : at + 4], "big")
        written += int(cramjam.snappy.decompress_raw_into(body[at + 4 : at + 4 + length], out[written:]))
        at += 4 + length
    return written


UNFOLD: dict[int, Callable[[memoryview, Any], int]] = {
    KafkaCompression.GZIP: cramjam.gzip.decompress_into,
    KafkaCompression.SNAPPY: _unfold_snappy,
    KafkaCompression.LZ4: cramjam.lz4.decompress_into,
    KafkaCompression.ZSTD: cramjam.zstd.decompress_into,
}
"""By codec: unfolds a body into memory that has the bytes of its bound, and returns how many it wrote."""


_XERIAL_HEADER = _XERIAL + (1).to_bytes(4, "big") * 2
_XERIAL_BLOCK_BYTES = 32 << 10
_LZ4_BLOCK_BYTES = 64 << 10
_LZ4_STORED = 1 << 31


def compression_of(name: str) -> KafkaCompression:
    """The compression with that name. Raises `UsageError`."""
    try:
        return {one.name.lower(): one for one in KafkaCompression}[name]
    except KeyError:
        known = ", ".join(one.name.lower() for one in KafkaCompression)
        raise UsageError(f"compression must be one of {known} (got {name!r})") from None


def fold(body: memoryview, compression: KafkaCompression) -> bytes:
    """The records of a batch, compressed as Kafka's clients read them."""
    return _FOLD[compression](body)


def _fold_snappy(body: memoryview) -> bytes:
    """The blocks of the Java library."""
    parts = [_XERIAL_HEADER]
    for at in range(0, len(body), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(body[at : at + _XERIAL_BLOCK_BYTES]))
        parts += [len(block).to_bytes(4, "big"), block]
    return b"".join(parts)


def _fold_lz4(body: memoryview) -> bytes:
    """A frame of independent blocks of 64 KiB: Kafka's reader refuses blocks that depend on each other."""
    descriptor = bytes([0x60, 0x40])
    parts = [b"\x04\x22\x4d\x18", descriptor, bytes([_xxh32(descriptor) >> 8 & 0xFF])]
    for at in range(0, len(body), _LZ4_BLOCK_BYTES):
        plain = body[at : at + _LZ4_BLOCK_BYTES]
        block = bytes(cramjam.lz4.compress_block(plain, store_size=False))
        is_smaller = len(block) < len(plain)
        stored = block if is_smaller else bytes(plain)
        parts += [(len(stored) | (0 if is_smaller else _LZ4_STORED)).to_bytes(4, "little"), stored]
    return b"".join([*parts, bytes(4)])


_FOLD: dict[int, Callable[[memoryview], bytes]] = {
    KafkaCompression.NONE: bytes,
    KafkaCompression.GZIP: lambda body: bytes(cramjam.gzip.compress(body)),
    KafkaCompression.SNAPPY: _fold_snappy,
    KafkaCompression.LZ4: _fold_lz4,
    KafkaCompression.ZSTD: lambda body: bytes(cramjam.zstd.compress(body)),
}


def with_checksum(body: memoryview) -> bytes:
    """The frame with the checksum of its header that LZ4 defines. In messages of format 0, Kafka computes it over the
    magic number as well."""
    flags = body[4] if len(body) > 4 else 0
    stop = 6 + (8 if flags & 0x08 else 0) + (4 if flags & 0x01 else 0)
    if stop >= len(body):
        return bytes(body)
    return b"".join((body[:stop], bytes([_xxh32(bytes(body[4:stop])) >> 8 & 0xFF]), body[stop + 1 :]))


_PRIMES = (2654435761, 2246822519, 3266489917, 668265263, 374761393)


def _rotated(number: int, bits: int) -> int:
    number &= 0xFFFFFFFF
    return (number << bits | number >> 32 - bits) & 0xFFFFFFFF


def _xxh32(data: bytes) -> int:
    """XXH32 with the seed 0, of fewer than 16 bytes.

    >>> hex(_xxh32(b"abc"))
    '0x32d153ff'
    """
    one, two, three, four, five = _PRIMES
    hashed = five + len(data)
    whole = len(data) - len(data) % 4
    for at in range(0, whole, 4):
        hashed = _rotated(hashed + int.from_bytes(data[at : at + 4], "little") * three, 17) * four
    for byte in data[whole:]:
        hashed = _rotated(hashed + byte * five, 11) * one
    hashed &= 0xFFFFFFFF
    hashed = (hashed ^ hashed >> 15) * two & 0xFFFFFFFF
    hashed = (hashed ^ hashed >> 13) * three & 0xFFFFFFFF
    return hashed ^ hashed >> 16
