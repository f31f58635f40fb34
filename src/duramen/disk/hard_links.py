"""Files that are written in place must not share their bytes with another directory through a hard link.

Keratin's program forks a log by linking its segments (manifest version 3 records that), and some backup tools use links
too. Appending or truncating would change the other copy. `open_private` therefore copies a file with more than one
link, and the copy takes its name. A crash in between leaves the old file, and perhaps an unfinished copy that the next
call replaces."""

from __future__ import annotations

import posixpath

from duramen.disk.vfs import Disk, File, Kind, write_all

TEMPORARY = ".new"


def open_private(disk: Disk, path: str) -> File:
    """Open a file to write in place; first replace it with a copy if it has more than one link."""
    if disk.links(path) > 1:
        _make_private(disk, path)
    return disk.open(path)


def _make_private(disk: Disk, path: str) -> None:
    temporary = path + TEMPORARY
    if disk.kind(temporary) != Kind.MISSING:
        disk.remove(temporary)
    data, copy = disk.map(path).data, disk.create(temporary)
    try:
        write_all(copy, 0, data)
        copy.sync()
    finally:
        copy.close()
    disk.replace(temporary, path)
    disk.sync_directory(posixpath.dirname(path))
