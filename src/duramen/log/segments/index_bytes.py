"""The bytes of an index, safe beside a program that shortens it.

A Kafka broker fills the indexes of its active segment with zeros ahead, and cuts these when it starts the next one. A
mapping would then end this process, so the bytes are copied. A file that no broker would start on, because it is too
large, is mapped: a copy of it could take all memory.
"""

from __future__ import annotations

from duramen import kernel
from duramen.disk import Disk
from duramen.formats import INDEX_BYTES, Format

_FIRST_BYTES = 64 << 10


def index_bytes(disk: Disk, fmt: Format, path: str) -> memoryview:
    """All bytes of an index."""
    if not fmt.capabilities.cuts_indexes:
        return disk.map(path).data
    copied = disk.read(path, INDEX_BYTES + 1)
    return copied if len(copied) <= INDEX_BYTES else disk.map(path).data


def index_entries(disk: Disk, path: str) -> memoryview:
    """A copy of the bytes of an index, as far as a reader uses them, perhaps without zeros at its end."""
    size_bytes = _FIRST_BYTES
    while True:
        data = disk.read(path, size_bytes)
        is_all = len(data) < size_bytes or size_bytes > INDEX_BYTES
        if is_all or kernel.is_zero(data, size_bytes // 4, size_bytes):
            return data
        size_bytes *= 4
