"""SipHash, and the table of the newest offset of every key."""

from __future__ import annotations

from duramen.kernel.layout import Int64s
from duramen.kernel.reference.columns import Buffer, Int32s, UInt64Pairs, values_of


def siphash(data: Buffer, offsets: Int32s, key0: int, key1: int, hashes: UInt64Pairs) -> int:
    """Fill in the SipHash-2-4 of every row, 128 bits as two words; returns how many. Without the keys, two rows with
    one hash cannot be found."""
    if len(offsets) != len(hashes) + 1 or hashes.shape[1] != 2:
        raise ValueError("offsets and hashes differ in length")
    for row, value in enumerate(values_of(data, offsets)):
        if value is None:
            raise ValueError(f"row {row} lies outside of the buffer")
        hashes[row] = _siphash(value, key0, key1)
    return len(hashes)


def _siphash(data: bytes, key0: int, key1: int) -> tuple[int, int]:
    bits = 2**64 - 1
    v = [
        0x736F6D6570736575 ^ key0,
        0x646F72616E646F6D ^ key1 ^ 0xEE,
        0x6C7967656E657261 ^ key0,
        0x7465646279746573 ^ key1,
    ]

    def rotate(word: int, by: int) -> int:
        return (word << by | word >> (64 - by)) & bits

    def rounds(count: int) -> None:
        for _ in range(count):
            v[0] = v[0] + v[1] & bits
            v[1] = rotate(v[1], 13) ^ v[0]
            v[0] = rotate(v[0], 32)
            v[2] = v[2] + v[3] & bits
            v[3] = rotate(v[3], 16) ^ v[2]
            v[0] = v[0] + v[3] & bits
            v[3] = rotate(v[3], 21) ^ v[0]
            v[2] = v[2] + v[1] & bits
            v[1] = rotate(v[1], 17) ^ v[2]
            v[2] = rotate(v[2], 32)

    whole = len(data) & ~7
    words = [int.from_bytes(data[at : at + 8], "little") for at in range(0, whole, 8)]
    words.append(int.from_bytes(data[whole:], "little") | (len(data) & 0xFF) << 56)
    for word in words:
        v[3] ^= word
        rounds(2)
        v[0] ^= word
    v[2] ^= 0xEE
    rounds(4)
    first = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    rounds(4)
    return first, v[0] ^ v[1] ^ v[2] ^ v[3]


def keep_newest(table: UInt64Pairs, used: int, most: int, hashes: UInt64Pairs, offsets: Int64s) -> tuple[int, int]:
    """Put rows into a table of the newest offset of every hash. An entry has three words: the hash, and the offset + 1
    (0: free); it lies in the slot that the second word selects, or after it. Returns how many rows it put in (fewer
    than given once ``most`` entries are used) and how many entries are used."""
    slots = len(table)
    if table.shape[1] != 3 or slots < 1 or slots & (slots - 1):
        raise ValueError("a table has a power of two of slots, three words each")
    if not 0 <= used <= most < slots:
        raise ValueError("at least one slot stays free")
    if len(hashes) != len(offsets) or (len(offsets) and hashes.shape[1] != 2):
        raise ValueError("hashes and offsets differ in length")
    for row, offset in enumerate(offsets.tolist()):
        first, second = (int(word) for word in hashes[row])
        slot = second % slots
        while table[slot, 2] and (int(table[slot, 0]), int(table[slot, 1])) != (first, second):
            slot = (slot + 1) % slots
        mark = (offset + 1) % 2**64
        if not table[slot, 2]:
            if used >= most:
                return row, used
            table[slot] = first, second, mark
            used += 1
        elif mark > int(table[slot, 2]):
            table[slot, 2] = mark
    return len(offsets), used
