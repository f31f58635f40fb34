"""The checksum of a whole file, for those above the log who hand files to each other."""

from __future__ import annotations

from duramen import kernel
from duramen.disk.base import Buffer


def crc32c(data: Buffer) -> int:
    """CRC-32C of all bytes.

    >>> f"{crc32c(b'123456789'):08x}"
    'e3069283'
    """
    return kernel.crc32c(data)
