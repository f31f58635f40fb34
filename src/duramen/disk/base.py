"""The seam: what the rest of the program may do with files. Reading so far; nothing here changes a file.

Every operation names its path and raises `StorageError` where the operating system refuses.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol


class Kind(StrEnum):
    FILE = "file"
    DIRECTORY = "directory"
    MISSING = "missing"
    OTHER = "other"


class Mapped(Protocol):
    """A file's bytes as they were when it was mapped. They stay valid while ``data`` is referenced."""

    data: memoryview

    def close(self) -> None: ...


class Disk(Protocol):
    def kind(self, path: str) -> Kind:
        """What lies at a path."""

    def list(self, path: str, within: Sequence[str] = ()) -> list[tuple[str, int]]:
        """The regular files of a directory, and of those of its subdirectories that ``within`` names: relative
        path with ``/``, size in bytes, in the order of the names."""

    def size(self, path: str) -> int:
        """The size of a file in bytes."""

    def map(self, path: str) -> Mapped:
        """The bytes of a file, mapped into memory where it has any."""
