"""Addresses: paths that name their file system, such as ``file://``, ``s3://``, ``gs://`` and ``hdfs://``.

`disk_for` finds the disk of a path. The module for other file systems is imported only when an address names one.
"""

from __future__ import annotations

import re

from duramen.disk.posix import PosixDisk
from duramen.disk.vfs import Disk

_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)


def is_address(path: str) -> bool:
    """Whether a path names its file system.

    >>> is_address("s3://bucket/events"), is_address("/data/events")
    (True, False)
    """
    return _ADDRESS.match(path) is not None or path.startswith("file:/")


def disk_for(path: str) -> tuple[Disk, str]:
    """The disk that a path or an address lies on, and the path to use there.

    >>> disk_for("file:///data/my%20events")[1]
    '/data/my events'
    """
    if path.startswith("file:/"):
        from urllib.parse import unquote, urlsplit  # slow to import, and few paths are addresses

        return PosixDisk(), unquote(urlsplit(path).path)
    if not is_address(path):
        return PosixDisk(), path
    from duramen.disk.object_store import open_address

    return open_address(path)
