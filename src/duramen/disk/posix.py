"""The real disk."""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Sequence

from duramen.disk.base import Disk, Kind, Mapped
from duramen.errors import StorageError

_HINTS = {
    "FileNotFoundError": "check the path",
    "PermissionError": "run as a user who may read it",
}


def _refused(error: OSError, path: str) -> StorageError:
    reason = error.strerror or str(error)
    wrapped = StorageError(reason[:1].lower() + reason[1:], path=path, hint=_HINTS.get(type(error).__name__))
    wrapped.errno = error.errno
    return wrapped


class MappedFile:
    """A read-only mapping. Bytes that another process cuts off while they are mapped cannot be read any more: the
    operating system ends a process that touches them. Duramen itself never shortens a file that may be mapped."""

    def __init__(self, path: str) -> None:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode):
                    raise StorageError("not a regular file", path=path)
                self._map = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) if status.st_size else None
            finally:
                os.close(descriptor)
        except OSError as error:
            if isinstance(error, StorageError):
                raise
            raise _refused(error, path) from error
        self.data = memoryview(self._map) if self._map is not None else memoryview(b"")

    def close(self) -> None:
        """Let go of the mapping; it ends when nothing refers to its bytes any more."""
        self.data = memoryview(b"")
        self._map = None


class PosixDisk(Disk):
    def kind(self, path: str) -> Kind:
        try:
            mode = os.stat(path).st_mode
        except FileNotFoundError:
            return Kind.MISSING
        except OSError as error:
            raise _refused(error, path) from error
        if stat.S_ISDIR(mode):
            return Kind.DIRECTORY
        return Kind.FILE if stat.S_ISREG(mode) else Kind.OTHER

    def list(self, path: str, within: Sequence[str] = ()) -> list[tuple[str, int]]:
        found: list[tuple[str, int]] = []
        try:
            with os.scandir(path) as entries:
                for entry in sorted(entries, key=lambda e: e.name):
                    try:
                        if entry.is_dir():
                            if entry.name in within:
                                below = self.list(entry.path)
                                found += [(f"{entry.name}/{name}", size) for name, size in below]
                        elif entry.is_file():
                            found.append((entry.name, entry.stat().st_size))
                    except FileNotFoundError:
                        continue
        except OSError as error:
            if isinstance(error, StorageError):
                raise
            raise _refused(error, path) from error
        return found

    def size(self, path: str) -> int:
        try:
            return os.stat(path).st_size
        except OSError as error:
            raise _refused(error, path) from error

    def map(self, path: str) -> Mapped:
        return MappedFile(path)
