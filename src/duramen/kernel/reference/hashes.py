"""Murmur2, as Kafka's producers compute it."""

from __future__ import annotations

from duramen.kernel.layout import UInt32s
from duramen.kernel.reference.columns import Buffer, Int32s, values_of


def murmur2(data: Buffer, offsets: Int32s, hashes: UInt32s) -> int:
    """Fill in the Murmur2 hash of every row, by which Kafka's producers choose a partition; returns how many."""
    if len(offsets) != len(hashes) + 1:
        raise ValueError("offsets and hashes differ in length")
    for row, value in enumerate(values_of(data, offsets)):
        if value is None:
            raise ValueError(f"row {row} lies outside of the buffer")
        hashes[row] = _murmur2(value)
    return len(hashes)


def _murmur2(data: bytes) -> int:
    multiplier, bits = 0x5BD1E995, 0xFFFFFFFF
    hashed = 0x9747B28C ^ len(data) & bits
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * multiplier & bits
        word = (word ^ word >> 24) * multiplier & bits
        hashed = hashed * multiplier & bits ^ word
    if data[whole:]:
        hashed = (hashed ^ int.from_bytes(data[whole:], "little")) * multiplier & bits
    hashed = (hashed ^ hashed >> 13) * multiplier & bits
    return hashed ^ hashed >> 15
