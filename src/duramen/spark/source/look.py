"""The bytes of one file for planning and reading. Decides nothing; checks nothing."""

from __future__ import annotations

from duramen.disk import ArrowDisk, Disk

FILE_HEADER_BYTES = 64 << 10


class Look:
    """The bytes of a file: mapped where they are local, fetched as they are needed where they are not."""

    def __init__(self, disk: Disk, path: str) -> None:
        self.is_remote = isinstance(disk, ArrowDisk)
        if isinstance(disk, ArrowDisk):
            sparse = disk.sparse(path)
            sparse.fetch(0, FILE_HEADER_BYTES)
            self.data, self.fetch = sparse.data, sparse.fetch
        else:
            self.data, self.fetch = disk.map(path).data, _nothing


def _nothing(start: int, end: int) -> None:
    return
