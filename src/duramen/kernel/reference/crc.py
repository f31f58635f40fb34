"""CRC-32 and CRC-32C, one byte at a time."""

from __future__ import annotations

from duramen.kernel.layout import UInt32s
from duramen.kernel.reference.columns import Buffer


def _crc_table(polynomial: int) -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (polynomial if byte & 1 else 0)
        table.append(byte)
    return table


_CRC32_TABLE = _crc_table(0xEDB88320)
_CRC32C_TABLE = _crc_table(0x82F63B78)


def _crc(table: list[int], data: Buffer, value: int) -> int:
    if not 0 <= value <= 0xFFFFFFFF:
        raise ValueError("value must fit into 32 bits")
    crc = value ^ 0xFFFFFFFF
    for byte in memoryview(data).cast("B"):
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def crc32(data: Buffer, value: int = 0) -> int:
    """CRC-32 (IEEE) of ``data``, continuing from ``value``."""
    return _crc(_CRC32_TABLE, data, value)


def crc32c(data: Buffer, value: int = 0) -> int:
    """CRC-32C (Castagnoli) of ``data``, continuing from ``value``."""
    return _crc(_CRC32C_TABLE, data, value)


def digest(data: Buffer, crc32c: int = 0, crc32: int = 0) -> tuple[int, int]:
    """CRC-32C and CRC-32 of the same bytes, each continuing from its value."""
    return _crc(_CRC32C_TABLE, data, crc32c), _crc(_CRC32_TABLE, data, crc32)


def check_digests(digests: UInt32s | None) -> None:
    if digests is not None and len(digests) != 2:
        raise ValueError("digests must be two numbers: CRC-32C and CRC-32")


def extend_digests(digests: UInt32s | None, passed: memoryview) -> None:
    """Continue the caller's digests over the scanned bytes."""
    if digests is not None:
        digests[:] = digest(passed, int(digests[0]), int(digests[1]))
