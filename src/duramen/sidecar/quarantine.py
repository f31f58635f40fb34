"""The quarantine, ``.duramen/quarantine/``: copies of bytes that recovery or repair is about to remove."""

from __future__ import annotations

import contextlib
import posixpath

from duramen.disk import Disk, File, Kind, pieces, write_all
from duramen.errors import StorageError
from duramen.sidecar.layout import QUARANTINE_NAME, sidecar_path


def quarantine(disk: Disk, root: str, name: str, content: memoryview | bytes) -> str:
    """Store a copy of ``content``, durably, and return its path. A copy that exists already is used again."""
    directory = sidecar_path(root, QUARANTINE_NAME)
    if disk.kind(directory) == Kind.MISSING:
        disk.make_directory(directory)
        disk.sync_directory(posixpath.dirname(directory))
    path = posixpath.join(directory, name.replace("/", "_"))
    number = 0
    while disk.kind(path) != Kind.MISSING:
        if _is_same(disk.map(path).data, content):
            # The copy of a crashed recovery may not be on the disk, even if its sync was tried: write it again.
            _fill(disk, disk.open(path), content)
            return path
        number += 1
        path = posixpath.join(directory, f"{name.replace('/', '_')}.{number}")
    try:
        _fill(disk, disk.create(path), content)
    except StorageError:
        with contextlib.suppress(StorageError):
            disk.remove(path)  # repeated attempts on a full disk must not leave a file each
        raise
    return path


def _fill(disk: Disk, file: File, content: memoryview | bytes) -> None:
    try:
        write_all(file, 0, content)
        file.sync()
    finally:
        file.close()
    disk.sync_directory(posixpath.dirname(file.path))


def _is_same(held: memoryview, content: memoryview | bytes) -> bool:
    if len(held) != len(content):
        return False
    return all(one == other for one, other in zip(pieces(held), pieces(content), strict=True))
