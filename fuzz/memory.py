"""How much a decoder may allocate, and a disk that lies in memory.

The bound holds for everything that is done with one input of a few KiB: open, scan, decode, verify, read, dump. Most of
it is room for the one allocation that a file may ask for, a sub-batch of Osiris that unfolds to
``max_uncompressed_bytes`` (128 MiB by default), decoded to Arrow.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from duramen.disk import Kind, LostPages
from duramen.errors import StorageError

BOUND_BYTES = 512 << 20


def _mapped_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()


def limit(most_bytes: int = BOUND_BYTES) -> tuple[int, int]:
    """Let the process map ``most_bytes`` more than now; beyond that an allocation raises `MemoryError`.

    Address space, not resident pages: a huge array that nobody touches counts, too. Answers the limit before."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_mapped_bytes() + most_bytes, before[1]))
    return before


@contextmanager
def bounded(most_bytes: int = BOUND_BYTES) -> Iterator[None]:
    before = limit(most_bytes)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


class MemoryFile:
    def __init__(self, data: bytes) -> None:
        self.data = memoryview(data)

    def close(self) -> None:
        pass


class MemoryDisk:
    """One directory, ``log``, of files that can be read. Nothing can be written."""

    ROOT = "log"

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._files = dict(files)

    def within(self, root: str) -> Self:
        return self

    def surviving(self, lost: LostPages) -> Self:
        return self

    def directories(self, path: str) -> Sequence[str]:
        names = (name.removeprefix(path.removeprefix(self.ROOT).lstrip("/")).lstrip("/") for name in self._files)
        return sorted({name.partition("/")[0] for name in names if "/" in name})

    def specials(self, path: str) -> Sequence[tuple[str, str]]:
        return ()

    def kind(self, path: str) -> Kind:
        if path == self.ROOT:
            return Kind.DIRECTORY
        name = path.removeprefix(f"{self.ROOT}/")
        if any(known.startswith(f"{name}/") for known in self._files):
            return Kind.DIRECTORY
        return Kind.FILE if name in self._files else Kind.MISSING

    def list(self, path: str, within: Sequence[str] = ()) -> list[tuple[str, int]]:
        folders = {"", *(f"{name}/" for name in within)}
        return [
            (name, len(data)) for name, data in sorted(self._files.items()) if name[: name.rfind("/") + 1] in folders
        ]

    def size(self, path: str) -> int:
        return len(self._files[path.removeprefix(f"{self.ROOT}/")])

    def stamp(self, path: str) -> tuple[int, int, int]:
        name = path.removeprefix(f"{self.ROOT}/")
        if name not in self._files:
            raise StorageError("no such file", path=path)
        return len(self._files[name]), 0, 0

    def names_stamp(self, path: str) -> None:
        """No evidence that the names are the same: they are listed again."""

    def read(self, path: str, size_bytes: int = 2**63 - 1) -> memoryview:
        return self.map(path).data[:size_bytes]

    def map(self, path: str) -> MemoryFile:
        return MemoryFile(self._files[path.removeprefix(f"{self.ROOT}/")])
