"""The bytes of an index, safe beside a program that shortens it.

A Kafka broker fills the indexes of its active segment with zeros ahead, and cuts these when it starts the next one. A
mapping would then end this process, so the bytes are copied.
"""

from __future__ import annotations

from duramen import kernel
from duramen.disk import Disk
from duramen.formats import Format

_FIRST_BYTES = 64 << 10


def index_bytes(disk: Disk, fmt: Format, path: str) -> memoryview:
    """All bytes of an index."""
    return disk.read(path) if fmt.capabilities.cuts_indexes else disk.map(path).data


def index_entries(disk: Disk, path: str) -> memoryview:
    """A copy of the bytes of an index, perhaps without zeros at its end."""
    size_bytes = _FIRST_BYTES
    while True:
        data = disk.read(path, size_bytes)
        if len(data) < size_bytes or kernel.is_zero(data, size_bytes // 4, size_bytes):
            return data
        size_bytes *= 4
