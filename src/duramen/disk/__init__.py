"""One door to the disk: everything that touches files goes through `Disk`."""

from __future__ import annotations

from duramen.disk.base import Disk, Mapped
from duramen.disk.posix import PosixDisk

__all__ = ["Disk", "Mapped", "PosixDisk"]
