"""Read through pyarrow's filesystems: S3, GCS, HDFS, and everything that fsspec supports. Writing raises.

Objects cannot be mapped, so their bytes are fetched: completely by `map`, or in parts by `sparse`. Object stores have
no locks and no shared pages; of a log that is being written, a reader sees what existed when it listed the files."""

from __future__ import annotations

import errno
import importlib
import mmap
import posixpath
import re
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa

from duramen.disk.futex import WORD_BYTES
from duramen.disk.os_errors import refused
from duramen.disk.vfs import Disk, File, Gate, Kind, Lock, Page
from duramen.errors import StorageError, UsageError

if TYPE_CHECKING:  # with its clients of S3, GCS and HDFS it takes long to import, and logs on a local disk need none
    from pyarrow import fs

FETCH_BYTES = 16 << 20
FILE_HEADER_BYTES = 64 << 10
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]+)://(?:[^/@]*@)?", re.IGNORECASE)
_KINDS = {"NotFound": Kind.MISSING, "File": Kind.FILE, "Directory": Kind.DIRECTORY}
"""By the name of pyarrow's ``FileType``."""


def open_address(address: str) -> tuple[ArrowDisk, str]:
    """The disk of an address, and the path to use on it: the address without connection parameters."""
    match = _SCHEME.match(address)
    if match is None:
        raise UsageError("not an address of a filesystem", path=address)
    try:
        filesystem, path = _resolve(match[1].lower(), address)
    except (OSError, ValueError, ImportError, pa.ArrowException) as error:
        raise StorageError(f"the filesystem cannot be used: {error}", path=address) from error
    inner = path.rstrip("/")
    plain = f"{match[1]}://" + address[match.end() :].partition("?")[0].rstrip("/")  # no keys in errors
    prefix = plain.removesuffix(inner) if plain.endswith(inner) else f"{match[1]}://"
    return ArrowDisk(filesystem, prefix), prefix + inner


def _resolve(scheme: str, address: str) -> tuple[fs.FileSystem, str]:
    """pyarrow's own filesystem of that scheme, or else fsspec's."""
    from pyarrow import fs

    try:
        return fs.FileSystem.from_uri(address)
    except (ValueError, pa.ArrowInvalid):
        try:
            fsspec = importlib.import_module("fsspec.core")
        except ImportError:
            raise ValueError(f"{scheme} is not known to pyarrow, and fsspec is not installed") from None
        found, path = fsspec.url_to_fs(address)
        return fs.PyFileSystem(fs.FSSpecHandler(found)), path


class Fetched:
    def __init__(self, buffer: pa.Buffer) -> None:
        self.data = memoryview(buffer).cast("B") if buffer.size else memoryview(b"")

    def release(self, start: int, stop: int) -> None:
        """Do nothing: the bytes would have to be fetched again."""

    def close(self) -> None:
        self.data = memoryview(b"")


class Sparse:
    """A file of which only the fetched parts exist; the rest reads as zeros and uses no memory."""

    def __init__(self, source: Any, path: str) -> None:
        self._source = source
        self._path = path
        self.size_bytes: int = source.size()
        self._map = mmap.mmap(-1, self.size_bytes) if self.size_bytes else None
        self.data = memoryview(self._map).toreadonly() if self._map is not None else memoryview(b"")
        self._parts: list[tuple[int, int]] = []

    def fetch(self, start: int, end: int) -> None:
        """Fetch these bytes, as far as the file has them and they are missing."""
        for low, high in self._missing(max(start, 0), min(end, self.size_bytes)):
            assert self._map is not None
            for position in range(low, high, FETCH_BYTES):
                size = min(FETCH_BYTES, high - position)
                try:
                    content = self._source.read_at(size, position)
                except (OSError, pa.ArrowException) as error:
                    raise _refused(error, self._path) from error
                if len(content) < size:
                    raise StorageError("the file became shorter while it was read", path=self._path)
                self._map[position : position + size] = content
            self._parts = sorted([*self._parts, (low, high)])

    def _missing(self, start: int, end: int) -> list[tuple[int, int]]:
        gaps = []
        for low, high in self._parts:
            if start < low:
                gaps.append((start, min(low, end)))
            start = max(start, high)
            if start >= end:
                break
        if start < end:
            gaps.append((start, end))
        return [gap for gap in gaps if gap[0] < gap[1]]

    def close(self) -> None:
        """Drop the bytes, once nothing refers to them."""
        self.data = memoryview(b"")
        self._map = None
        self._source.close()


class _FetchedObject(Page):
    """A page as it was when it was read; changes are not signalled."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def load(self) -> bytes:
        return self._data

    def store(self, data: bytes) -> None:
        raise NotImplementedError("a page of another machine cannot be stored")

    def wait(self, seen: bytes, timeout_s: float) -> None:
        time.sleep(timeout_s)

    def close(self) -> None:
        return


class ArrowDisk(Disk):
    """A filesystem of pyarrow's, read-only. Paths begin with ``prefix``, so that errors name them as people do."""

    def __init__(self, filesystem: fs.FileSystem, prefix: str = "") -> None:
        self._filesystem = filesystem
        self._prefix = prefix

    def _inner(self, path: str) -> str:
        return path.removeprefix(self._prefix) or "/"

    # --- looking

    def kind(self, path: str) -> Kind:
        try:
            info = self._filesystem.get_file_info(self._inner(path))
        except (OSError, pa.ArrowException) as error:
            raise _refused(error, path) from error
        return _kind_of(info)

    def _entries(self, path: str) -> list[fs.FileInfo]:
        from pyarrow import fs

        try:
            entries = self._filesystem.get_file_info(fs.FileSelector(self._inner(path)))
        except (OSError, pa.ArrowException) as error:
            raise _refused(error, path) from error
        return sorted(entries, key=lambda entry: entry.base_name)

    def list(self, path: str, within: Sequence[str] = ()) -> list[tuple[str, int]]:
        found: list[tuple[str, int]] = []
        for entry in self._entries(path):
            name = posixpath.basename(entry.path.rstrip("/"))
            if _kind_of(entry) == Kind.DIRECTORY:
                if name in within:
                    below = self.list(posixpath.join(path, name))
                    found += [(f"{name}/{inner}", size) for inner, size in below]
            elif _kind_of(entry) == Kind.FILE:
                found.append((name, entry.size))
        return found

    def directories(self, path: str) -> Sequence[str]:
        entries = self._entries(path)
        return [posixpath.basename(e.path.rstrip("/")) for e in entries if _kind_of(e) == Kind.DIRECTORY]

    def specials(self, path: str) -> Sequence[tuple[str, str]]:
        return []

    def size(self, path: str) -> int:
        with self._open(path) as source:
            return int(source.size())

    def links(self, path: str) -> int:
        return 1

    def stamp(self, path: str, *, renew: bool = False) -> tuple[int, int, int]:
        raise StorageError("files of a remote file system cannot be told from changed ones", path=path)

    def space(self, path: str) -> tuple[int, int]:
        raise StorageError("a remote file system does not say how much room it has", path=path)

    def map(self, path: str) -> Fetched:
        with self._open(path) as source:
            try:
                return Fetched(source.read_buffer())
            except (OSError, pa.ArrowException) as error:
                raise _refused(error, path) from error

    def sparse(self, path: str) -> Sparse:
        """The file, to be fetched in parts."""
        return Sparse(self._open(path), path)

    def _open(self, path: str) -> Any:
        try:
            return self._filesystem.open_input_file(self._inner(path))
        except (OSError, pa.ArrowException) as error:
            raise _refused(error, path) from error

    # --- sharing

    def is_locked(self, path: str) -> bool:
        return False

    def page(self, path: str, size_bytes: int, *, writable: bool) -> Page:
        if writable:
            _read_only(path)
        content = bytes(self.map(path).data[WORD_BYTES : WORD_BYTES + size_bytes])
        if len(content) < size_bytes:
            raise refused(OSError(errno.ENODATA, "The page does not exist yet"), path)
        return _FetchedObject(content)

    # --- changing: refused

    def make_directory(self, path: str, *, parents: bool = True) -> None:
        _read_only(path)

    def create(self, path: str) -> File:
        _read_only(path)

    def open(self, path: str) -> File:
        _read_only(path)

    def replace(self, source: str, target: str) -> None:
        _read_only(target)

    def rename_new(self, source: str, target: str) -> None:
        _read_only(target)

    def remove(self, path: str) -> None:
        _read_only(path)

    def remove_directory(self, path: str) -> None:
        _read_only(path)

    def sync_directory(self, path: str) -> None:
        _read_only(path)

    def lock(self, path: str, note: bytes) -> Lock:
        _read_only(path)

    def lock_directory(self, path: str) -> Lock:
        _read_only(path)

    def gate(self, path: str) -> Gate:
        _read_only(path)


def _kind_of(info: fs.FileInfo) -> Kind:
    return _KINDS.get(info.type.name, Kind.OTHER)


def _read_only(path: str) -> NoReturn:
    error = StorageError(
        "logs on this filesystem can only be read", path=path, hint="write to a local path and copy it there"
    )
    error.errno = errno.EROFS
    raise error


def _refused(error: Exception, path: str) -> StorageError:
    """What the filesystem said. Arrow puts whole paragraphs into its errors: the first line is enough."""
    if isinstance(error, StorageError):
        return error
    if isinstance(error, FileNotFoundError):
        return refused(OSError(errno.ENOENT, "no such file or directory"), path)
    number = error.errno if isinstance(error, OSError) else None
    return refused(OSError(number, str(error).partition("\n")[0]), path)


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
