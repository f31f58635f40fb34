"""Compressed bodies of Kafka's batches: how many bytes they unfold to at most, as far as their framing says."""

from __future__ import annotations

from duramen.kernel.layout import BodyFault, Int64s, UInt32s
from duramen.kernel.reference.columns import Buffer

_XERIAL = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16
_LZ4_MAGIC = 0x184D2204
_LZ4_STORED = 1 << 31
_ZSTD_MAGIC = 0xFD2FB528
_ZSTD_SKIPPED = 0x184D2A50
_ZSTD_BLOCK_BYTES = 128 << 10
_GZIP_LEAST_BYTES, _GZIP_RATIO, _LZ4_RATIO = 18, 1032, 255


class _BadBodyError(Exception):
    def __init__(self, fault: BodyFault) -> None:
        self.fault = fault


def _number(body: memoryview, at: int, width: int) -> int:
    if at + width > len(body):
        raise _BadBodyError(BodyFault.CUT_SHORT)
    return int.from_bytes(body[at : at + width], "little")


def _pass(body: memoryview, at: int, length: int) -> int:
    """The position after ``length`` bytes."""
    if length > len(body) - at:
        raise _BadBodyError(BodyFault.CUT_SHORT)
    return at + length


def _bound_gzip(body: memoryview) -> int:
    """Each member of the stream ends with its length. Where one starts is only known after unfolding the one before:
    the bytes before whatever may be a start count, if the member before it can have that length."""
    if len(body) < _GZIP_LEAST_BYTES:
        raise _BadBodyError(BodyFault.CUT_SHORT)
    total, data = _number(body, len(body) - 4, 4), bytes(body)
    for at in range(_GZIP_LEAST_BYTES, len(body) - _GZIP_LEAST_BYTES + 1):
        if data[at : at + 3] == b"\x1f\x8b\x08" and data[at + 3] < 0x20 and data[at + 8] in (0, 2, 4):
            length = _number(body, at - 4, 4)
            total += length if length <= _GZIP_RATIO * at else 0
    return min(total, _GZIP_RATIO * len(body))


def _bound_snappy_block(block: memoryview) -> int:
    length = 0
    for at in range(5):
        byte = _number(block, at, 1)
        length |= (byte & 0x7F) << 7 * at
        if byte < 0x80 and length < 2**32:
            return length
        if byte < 0x80:
            break
    raise _BadBodyError(BodyFault.BAD_BLOCK)


def _bound_snappy(body: memoryview) -> int:
    """One raw block, or the blocks of the Java library."""
    if bytes(body[: len(_XERIAL)]) != _XERIAL:
        return _bound_snappy_block(body)
    total, at = 0, _XERIAL_HEADER_BYTES
    while at < len(body):
        length = int.from_bytes(_number(body, at, 4).to_bytes(4, "little"), "big")
        at += 4
        if length > len(body) - at:
            raise _BadBodyError(BodyFault.BAD_BLOCK)
        total += _bound_snappy_block(body[at : at + length])
        at += length
    return total


def _bound_lz4(body: memoryview) -> int:
    if len(body) < 7 or _number(body, 0, 4) != _LZ4_MAGIC:
        raise _BadBodyError(BodyFault.NO_FRAME)
    flags, block_code = body[4], body[5] >> 4 & 7
    if block_code < 4:
        raise _BadBodyError(BodyFault.BAD_BLOCK)
    block_bytes = 1 << (8 + 2 * block_code)
    at = 7 + (8 if flags & 0x08 else 0) + (4 if flags & 0x01 else 0)
    total = 0
    while (size := _number(body, at, 4)) != 0:
        length = size & ~_LZ4_STORED
        total += length if size & _LZ4_STORED else min(block_bytes, _LZ4_RATIO * length)
        at = _pass(body, at + 4, length + (4 if flags & 0x10 else 0))
    return total


def _bound_zstd(body: memoryview) -> int:
    at = total = 0
    while at < len(body):
        magic = _number(body, at, 4)
        if magic & 0xFFFFFFF0 == _ZSTD_SKIPPED:
            at += 8 + _number(body, at + 4, 4)
        elif magic == _ZSTD_MAGIC:
            at, added = _bound_zstd_frame(body, at + 4)
            total += added
        else:
            raise _BadBodyError(BodyFault.NO_FRAME)
    if at != len(body):
        raise _BadBodyError(BodyFault.CUT_SHORT)
    return total


def _bound_zstd_frame(body: memoryview, at: int) -> tuple[int, int]:
    """Where the frame ends whose header is at ``at``, and how much it unfolds to at most."""
    flags = _number(body, at, 1)
    is_single = bool(flags & 0x20)
    size_bytes = (1 if is_single else 0, 2, 4, 8)[flags >> 6]
    at += 1 + (0 if is_single else 1) + (0, 1, 2, 4)[flags & 3]
    stated = _number(body, at, size_bytes) + (256 if size_bytes == 2 else 0)
    at += size_bytes
    total, is_last = 0, False
    while not is_last:
        block = _number(body, at, 3)
        is_last, kind, size = bool(block & 1), block >> 1 & 3, block >> 3
        total += _ZSTD_BLOCK_BYTES if kind == 2 else size
        at = _pass(body, at + 3, 1 if kind == 1 else size)
    at += 4 if flags & 4 else 0
    return at, min(total, stated) if size_bytes else total


_BOUNDS = {1: _bound_gzip, 2: _bound_snappy, 3: _bound_lz4, 4: _bound_zstd}


def bound_bodies(buf: Buffer, positions: Int64s, lengths: UInt32s, codecs: UInt32s, bounds: Int64s) -> None:
    """Fill in how many bytes each compressed body unfolds to at most, or the `BodyFault` that its framing has. Nothing
    is decompressed."""
    view = memoryview(buf).cast("B")
    if not len(positions) == len(lengths) == len(codecs) == len(bounds):
        raise ValueError("the columns differ in length")
    for row, (position, length) in enumerate(zip(positions.tolist(), lengths.tolist(), strict=True)):
        if not 0 <= position <= len(view) or length > len(view) - position:
            raise ValueError(f"row {row} lies outside of the buffer")
        bound = _BOUNDS.get(int(codecs[row]))
        try:
            bounds[row] = BodyFault.UNKNOWN_CODEC if bound is None else bound(view[position : position + length])
        except _BadBodyError as error:
            bounds[row] = error.fault
