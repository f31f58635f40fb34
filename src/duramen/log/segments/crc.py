"""The digest of a segment, computed during a scan.

The kernel digests each stretch right after checking it, while it is in the processor's cache; a separate pass would
read every byte from memory again. Digests of adjacent stretches, from several threads or processes, are combined by
arithmetic (`Digest.then`). This module does not know what a digest should be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from duramen import kernel
from duramen.formats import SCAN_BYTES
from duramen.kernel import UInt32s

_CRC32 = 0xEDB88320
_CRC32C = 0x82F63B78
"""The polynomials in reflected form: the highest power is the lowest bit."""
_ONE = 1 << 31
_ZEROS = memoryview(bytes(1 << 16))


class Digest(NamedTuple):
    """The checksums of ``size_bytes`` bytes. ``crc32`` is None if it was not requested."""

    size_bytes: int
    crc32c: int
    crc32: int | None

    def then(self, following: Digest) -> Digest:
        """The digest of these bytes followed by those of ``following``.

        >>> whole, left, right = RunningDigest(b"hello"), RunningDigest(b"hel"), RunningDigest(b"lo")
        >>> left.finish().then(right.finish()) == whole.finish()
        True
        """
        size_bytes = following.size_bytes
        crc32 = None
        if self.crc32 is not None and following.crc32 is not None:
            crc32 = _shifted(self.crc32, size_bytes, kernel.crc32, _CRC32) ^ following.crc32
        crc32c = _shifted(self.crc32c, size_bytes, kernel.crc32c, _CRC32C) ^ following.crc32c
        return Digest(self.size_bytes + size_bytes, crc32c, crc32)


class RunningDigest:
    """Digests the bytes of ``data`` from ``start`` to ``stop``, in order and in steps."""

    def __init__(self, data: bytes | memoryview, start: int = 0, stop: int | None = None, *, both: bool = True) -> None:
        self._data = memoryview(data)
        self._start = self._at = start
        self._stop = max(start, len(self._data) if stop is None else min(stop, len(self._data)))
        self._both = both
        self._sums = np.zeros(2, np.uint32)

    def take(self, position: int) -> None:
        """Digest the bytes up to ``position`` that are still missing."""
        position = min(position, self._stop)
        if position <= self._at:
            return
        self._sums[:] = kernel.digest(self._data[self._at : position], int(self._sums[0]), int(self._sums[1]))
        self._at = position

    def along(self, position: int, stop: int) -> UInt32s | None:
        """The checksums that a scan from ``position`` to at most ``stop`` updates; None if it could go too far. The
        caller then reports the end of the scan to `passed`."""
        self.take(position)
        return self._sums if self._at == position and stop <= self._stop else None

    def passed(self, position: int) -> None:
        self._at = position

    def finish(self) -> Digest:
        """Digest the rest, and return the digest of all bytes."""
        while self._at < self._stop:
            self.take(self._at + SCAN_BYTES)
        crc32c, crc32 = self._sums.tolist()
        return Digest(self._stop - self._start, crc32c, crc32 if self._both else None)


def _shifted(crc: int, size_bytes: int, function: Callable[[memoryview, int], int], polynomial: int) -> int:
    """The part of a checksum that remains after ``size_bytes`` more bytes. Whole multiples of 64 KiB by arithmetic, the
    rest by digesting zeros, which is faster."""
    few = size_bytes % len(_ZEROS)
    many = size_bytes // len(_ZEROS)
    for power in _doublings(polynomial)[: many.bit_length()]:
        if many & 1:
            crc = _times(power, crc, polynomial)
        many >>= 1
    return function(_ZEROS[:few], crc) ^ function(_ZEROS[:few], 0)


def _times(a: int, b: int, polynomial: int) -> int:
    """The product of two polynomials over GF(2), modulo a third one."""
    product, bit = 0, _ONE
    while a:
        if a & bit:
            product ^= b
            a ^= bit
        bit >>= 1
        b = b >> 1 ^ polynomial if b & 1 else b >> 1
    return product


@cache
def _doublings(polynomial: int) -> Sequence[int]:
    """The factors of shifts by 64 KiB, 128 KiB and so on up to the largest file: x to the power of their bits."""
    power = _ONE >> 8
    for _ in range((len(_ZEROS) - 1).bit_length()):
        power = _times(power, power, polynomial)
    powers = [power]
    while len(powers) < 48:
        powers.append(_times(powers[-1], powers[-1], polynomial))
    return powers
