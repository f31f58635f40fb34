"""The compressions of Kafka's batches, unfolded within bounds.

A batch does not state how long its records are. The framing of each codec does, or bounds it: gzip ends with the
length, every block of snappy begins with its own, a block of LZ4 or zstd has a largest size. The sum is compared with
the limit before any memory is allocated, and no more than the sum is ever written.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any

import cramjam

from duramen.errors import CorruptionError, LimitError
from duramen.formats.struct import Buffer

MAX_UNCOMPRESSED_BYTES = 128 << 20


class KafkaCompression(IntEnum):
    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


_XERIAL = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16
_LZ4_MAGIC = (0x184D2204).to_bytes(4, "little")
_LZ4_STORED = 1 << 31
_ZSTD_MAGIC = 0xFD2FB528
_ZSTD_SKIPPED = 0x184D2A50
_ZSTD_BLOCK_BYTES = 128 << 10
_GZIP_RATIO = 1032


class _BadFramingError(Exception):
    """The bytes are not what the codec writes."""


def _little(body: memoryview, at: int, width: int) -> int:
    if at + width > len(body):
        raise _BadFramingError("it is cut short")
    return int.from_bytes(body[at : at + width], "little")


def unfolded_bound(body: Buffer, compression: int, *, position: int, offset: int | None = None) -> int:
    """How many bytes a compressed body unfolds to at most. ``position`` and ``offset`` are for the error."""
    bound = _BOUNDS.get(compression)
    if bound is None:
        raise CorruptionError(f"the batch has an unknown compression: {compression}", position=position, offset=offset)
    try:
        return bound(memoryview(body))
    except (_BadFramingError, cramjam.DecompressionError) as error:
        name = KafkaCompression(compression).name.lower()
        raise CorruptionError(f"the {name} data is damaged: {error}", position=position, offset=offset) from None


def check_bound(bound_bytes: int, max_bytes: int, *, position: int, offset: int | None = None) -> None:
    """Refuse a batch that may unfold to more than the limit, before anything is allocated for it."""
    if bound_bytes > max_bytes:
        raise LimitError(
            f"the batch may unfold to {bound_bytes} bytes, more than {max_bytes}",
            position=position, offset=offset, hint="max_uncompressed_bytes sets the bound",
        )  # fmt: skip


def unfold_into(body: Buffer, compression: int, out: Any, magic: int, *, position: int, offset: int | None) -> int:
    """Unfold a body into ``out``, which has at least the bytes of `unfolded_bound`. Returns how many were written."""
    view = memoryview(body)
    try:
        if compression == KafkaCompression.GZIP:
            return int(cramjam.gzip.decompress_into(view, out))
        if compression == KafkaCompression.ZSTD:
            return int(cramjam.zstd.decompress_into(view, out))
        if compression == KafkaCompression.LZ4:
            return int(cramjam.lz4.decompress_into(_with_checksum(view) if magic == 0 else view, out))
        return _unfold_snappy(view, out)
    except cramjam.DecompressionError as error:
        name = KafkaCompression(compression).name.lower()
        message = f"the {name} data cannot be unfolded: {error}"
        raise CorruptionError(message, position=position, offset=offset) from error


def _gzip_bound(body: memoryview) -> int:
    if len(body) < 18:
        raise _BadFramingError("it is cut short")
    return min(_little(body, len(body) - 4, 4), _GZIP_RATIO * len(body))


# --- snappy: one raw block, or the blocks of the Java library


def _snappy_blocks(body: memoryview) -> list[memoryview]:
    if bytes(body[: len(_XERIAL)]) != _XERIAL:
        return [body]
    blocks, at = [], _XERIAL_HEADER_BYTES
    while at < len(body):
        if at + 4 > len(body):
            raise _BadFramingError("it is cut short")
        length = int.from_bytes(body[at : at + 4], "big")
        if length > len(body) - at - 4:
            raise _BadFramingError("a block is longer than the data")
        blocks.append(body[at + 4 : at + 4 + length])
        at += 4 + length
    return blocks


def _snappy_bound(body: memoryview) -> int:
    return sum(cramjam.snappy.decompress_raw_len(block) for block in _snappy_blocks(body))


def _unfold_snappy(body: memoryview, out: Any) -> int:
    at = 0
    for block in _snappy_blocks(body):
        at += int(cramjam.snappy.decompress_raw_into(block, out[at:]))
    return at


# --- LZ4


def _lz4_bound(body: memoryview) -> int:
    if bytes(body[:4]) != _LZ4_MAGIC or len(body) < 7:
        raise _BadFramingError("it does not start with a frame")
    flags, block_code = body[4], body[5] >> 4 & 7
    if block_code < 4:
        raise _BadFramingError("its block size is unknown")
    block_bytes = 1 << (8 + 2 * block_code)
    at = 7 + (8 if flags & 0x08 else 0) + (4 if flags & 0x01 else 0)
    total = 0
    while (size := _little(body, at, 4)) != 0:
        length = size & ~_LZ4_STORED
        total += length if size & _LZ4_STORED else min(block_bytes, 255 * length)
        at += 4 + length + (4 if flags & 0x10 else 0)
    return total


def _with_checksum(body: memoryview) -> bytes:
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


# --- zstd


def _zstd_bound(body: memoryview) -> int:
    at = total = 0
    while at < len(body):
        magic = _little(body, at, 4)
        if magic & 0xFFFFFFF0 == _ZSTD_SKIPPED:
            at += 8 + _little(body, at + 4, 4)
        elif magic == _ZSTD_MAGIC:
            at, added = _zstd_frame(body, at + 4)
            total += added
        else:
            raise _BadFramingError("it does not start with a frame")
    return total


def _zstd_frame(body: memoryview, at: int) -> tuple[int, int]:
    """Where the frame ends whose header is at ``at``, and how much it unfolds to at most."""
    flags = _little(body, at, 1)
    is_single = bool(flags & 0x20)
    size_bytes = (1 if is_single else 0, 2, 4, 8)[flags >> 6]
    at += 1 + (0 if is_single else 1) + (0, 1, 2, 4)[flags & 3]
    stated = _little(body, at, size_bytes) + (256 if size_bytes == 2 else 0) if size_bytes else None
    at += size_bytes
    total, is_last = 0, False
    while not is_last:
        block = _little(body, at, 3)
        is_last, kind, size = bool(block & 1), block >> 1 & 3, block >> 3
        total += _ZSTD_BLOCK_BYTES if kind == 2 else size
        at += 3 + (1 if kind == 1 else size)
    at += 4 if flags & 4 else 0
    return at, total if stated is None else min(total, stated)


_BOUNDS: dict[int, Callable[[memoryview], int]] = {
    KafkaCompression.GZIP: _gzip_bound,
    KafkaCompression.SNAPPY: _snappy_bound,
    KafkaCompression.LZ4: _lz4_bound,
    KafkaCompression.ZSTD: _zstd_bound,
}
