"""All file access of Duramen.

- `Disk` (in `vfs`) is the interface: files, names, locks, shared pages, and what each guarantees after a crash. A log
  does nothing else with files, so that `duramen.testing` can run it on a simulated disk and crash it
  between any two operations.
- `PosixDisk` is the real disk, `ArrowDisk` reads object stores. `disk_for` chooses one by address.
- `refused`, `locked` and `fenced` turn errors of the operating system into `StorageError` and its subclasses.

A disk never retries, never syncs on its own and knows no format: when to sync is the log's decision. Below a log's
directory (`Disk.within`, `rooted`) it follows no symbolic link.
"""

from __future__ import annotations

from duramen.disk.hard_links import open_private
from duramen.disk.lost_pages import LostPages
from duramen.disk.object_store import ArrowDisk, Look
from duramen.disk.os_errors import fenced, locked, refusal, refused
from duramen.disk.posix import PosixDisk, disk_or_real
from duramen.disk.record_writer import DiskRecordWriter
from duramen.disk.uri import disk_for, is_address
from duramen.disk.vfs import (
    Buffer,
    Disk,
    File,
    Gate,
    Kind,
    Lock,
    Mapped,
    Page,
    RecordWriter,
    map_if_exists,
    pieces,
    rooted,
    write_all,
)

__all__ = [
    "ArrowDisk",
    "Buffer",
    "Disk",
    "DiskRecordWriter",
    "File",
    "Gate",
    "Kind",
    "Lock",
    "Look",
    "LostPages",
    "Mapped",
    "Page",
    "PosixDisk",
    "RecordWriter",
    "disk_for",
    "disk_or_real",
    "fenced",
    "is_address",
    "locked",
    "map_if_exists",
    "open_private",
    "pieces",
    "refusal",
    "refused",
    "rooted",
    "write_all",
]
