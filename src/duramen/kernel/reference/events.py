"""Runs of events that differ in one number."""

from __future__ import annotations

import numpy as np

from duramen.kernel.reference.columns import Buffer, UInt8s
from duramen.kernel.reference.crc import crc32c


def encode_run(head: Buffer, covered_from: int, start: int, count: int, rest: Buffer, out: UInt8s) -> int:
    """Write ``count`` events that differ in one number, one after another; returns the bytes written. An event is the
    head, the number (u64, big-endian, from ``start`` on), the rest, and the CRC-32C (u32, big-endian) of all that from
    ``covered_from`` on. ``out`` has exactly their size."""
    head, rest = bytes(head), bytes(rest)
    size_bytes = len(head) + 8 + len(rest) + 4
    if not 0 <= covered_from <= len(head):
        raise ValueError("the checksum begins outside of the head")
    if count < 0 or (count and start + count > 2**64):
        raise ValueError("the numbers do not fit into 64 bits")
    if len(out) != count * size_bytes:
        raise ValueError("the buffer does not have the size of the events")
    for row in range(count):
        event = head + (start + row).to_bytes(8, "big") + rest
        event += crc32c(event[covered_from:]).to_bytes(4, "big")
        out[row * size_bytes : (row + 1) * size_bytes] = np.frombuffer(event, np.uint8)
    return count * size_bytes
