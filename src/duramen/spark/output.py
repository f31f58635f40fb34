"""A file of a `Disk` as the binary stream that Arrow's writers expect."""

from __future__ import annotations

from duramen.disk import Buffer, Disk, Kind, write_all
from duramen.kernel import crc32c


class DiskOutput:
    """A new file, written from its start to its end. Replaces a file of that name that an earlier attempt left."""

    def __init__(self, disk: Disk, path: str) -> None:
        self.size_bytes = 0
        self.crc32c = 0
        """Of all bytes that were written."""
        self.closed = False
        if disk.kind(path) == Kind.FILE:
            disk.remove(path)
        self._file = disk.create(path)
        self._storing_from = 0

    def write(self, data: Buffer) -> int:
        view = memoryview(data).cast("B")
        write_all(self._file, self.size_bytes, view)
        self.crc32c = crc32c(view, self.crc32c)
        self.size_bytes += len(view)
        return len(view)

    def tell(self) -> int:
        return self.size_bytes

    def flush(self) -> None:
        """Nothing: every write goes to the operating system at once."""

    def begin_sync(self) -> None:
        """Start storing what was written since the last call, so that `sync` has less to wait for."""
        self._file.begin_sync(self._storing_from, self.size_bytes - self._storing_from)
        self._storing_from = self.size_bytes

    def sync(self) -> None:
        self._file.sync()

    def close(self) -> None:
        self.closed = True
        self._file.close()
