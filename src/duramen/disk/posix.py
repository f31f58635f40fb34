"""The real disk: a thin, stateless layer over the calls of the operating system.

It never retries a failed sync and never syncs on its own. It adds four things: no thread uses a descriptor that another
thread closed, forked children release locks, every error names its file, and a relative path keeps its meaning when the
program changes its directory. Below the directory of a log (`within`, `rooted`) it follows no symbolic link and opens
only regular files: see `paths`. Locks are in `posix_locks`, the shared page is in `posix_page`.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import mmap
import os
import posixpath
import stat
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import Any, Self

from duramen import kernel
from duramen.disk.lost_pages import GuardedMap, LostPages
from duramen.disk.os_errors import kind_name, not_regular, refusal, refused
from duramen.disk.paths import Descriptor, Paths, Reach, RootedPaths, open_regular
from duramen.disk.posix_locks import PosixDirectoryLock, PosixGate, PosixLock, check_root
from duramen.disk.posix_page import PosixPage
from duramen.disk.record_writer import DiskRecordWriter
from duramen.disk.rename import rename_new
from duramen.disk.vfs import Buffer, Disk, File, Gate, Kind, Lock, Mapped, Page, RecordWriter
from duramen.errors import StorageError, UsageError
from duramen.kernel import AppendNotes, Columns, RecordShape
from duramen.metrics import process as process_counters

_DONT_NEED: int | None = getattr(mmap, "MADV_DONTNEED", None)

_sync_data = getattr(os, "fdatasync", os.fsync)
_FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)
_NO_FULL_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.ENOTTY}


def _flush_device(descriptor: int) -> bool:
    """macOS: flush the device's cache too, which fsync does not. False where the call does not exist."""
    if _FULL_SYNC is None:
        return False
    try:
        fcntl.fcntl(descriptor, _FULL_SYNC)
    except OSError as error:
        if error.errno in _NO_FULL_SYNC:
            return False
        raise
    return True


def _map(descriptor: int, path: str, lost: LostPages | None) -> mmap.mmap:
    if lost is None:
        return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    guarded = GuardedMap(descriptor, 0, access=mmap.ACCESS_READ)
    guarded.guard(path, lost)
    return guarded


class MappedFile:
    """A read-only mapping. If another process shortens the file, the operating system ends a process that reads the
    removed bytes; with ``lost``, they read as zeros, and are noted there."""

    def __init__(self, path: str, reach: Reach, lost: LostPages | None) -> None:
        try:
            with reach() as place:
                descriptor = open_regular(path, place, os.O_RDONLY)
            try:
                filled = os.fstat(descriptor).st_size > 0
                self._map = _map(descriptor, path, lost) if filled else None
            except ValueError:  # another process emptied it after fstat
                self._map = None
            finally:
                os.close(descriptor)
        except OSError as error:
            raise refused(error, path) from error
        if self._map is not None:
            process_counters.mapped(self._map)
        self.data = memoryview(self._map) if self._map is not None else memoryview(b"")

    def release(self, start: int, stop: int) -> None:
        stop = min(stop, len(self.data))
        begin, end = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, stop // mmap.PAGESIZE * mmap.PAGESIZE
        if self._map is not None and begin < end and _DONT_NEED is not None:
            with contextlib.suppress(OSError):  # it is a hint
                self._map.madvise(_DONT_NEED, begin, end - begin)

    def close(self) -> None:
        """Drop the mapping; it ends once nothing refers to its bytes."""
        self.data = memoryview(b"")
        self._map = None


FALLOC_FL_KEEP_SIZE = 1
SYNC_FILE_RANGE_WRITE = 2


def _find(name: str, *types: Any) -> Callable[..., int] | None:
    """A Linux call that Python does not offer with its flags; None on other systems."""
    function = getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
    if function is not None:
        function.argtypes = types
    return function


_fallocate = _find("fallocate", ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
_fstatfs = _find("fstatfs", ctypes.c_int, ctypes.c_void_p)
_sync_range = _find("sync_file_range", ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)


CHANGE_TIMES = frozenset({
    0xEF53, 0x58465342, 0x9123683E, 0x01021994, 0x794C7630, 0x2FC12FC1, 0xF2F52010, 0xCA451A4E,
})  # fmt: skip
"""File systems of Linux that set a directory's change time from this machine's clock at every change of a name: ext2 to
ext4, xfs, btrfs, tmpfs, overlay, zfs, f2fs, bcachefs. Not NFS, whose client may return an older time than the server
has, and not FUSE, where anything is possible."""
TICK_NS = 100_000_000
"""More than the clock of a file system with fractions of a second advances at once: 10 ms at most."""
COARSE_TICK_NS = 2_000_000_000
"""The same for a file system that counts whole seconds."""


def _keeps_change_times(descriptor: int) -> bool:
    """Whether an open directory lies on one of `CHANGE_TIMES`."""
    if _fstatfs is None:
        return False
    answer = ctypes.create_string_buffer(256)
    if _fstatfs(descriptor, answer) != 0:
        return False
    return ctypes.c_ulong.from_buffer(answer).value & 0xFFFFFFFF in CHANGE_TIMES  # the type comes first


class PosixFile(File):
    """A file opened for writing. Errors name ``path``; ``reach`` opens its directory."""

    def __init__(self, path: str, reach: Reach, flags: int) -> None:
        self.path = path
        self._reach = reach
        try:
            with reach() as place:
                self._descriptor = Descriptor(open_regular(path, place, os.O_WRONLY | flags))
        except OSError as error:
            raise refused(error, path) from error

    def write(self, position: int, data: Buffer) -> int:
        try:
            with self._descriptor as descriptor:
                taken = os.pwrite(descriptor, data, position)
        except OSError as error:
            raise refused(error, self.path) from error
        if not taken and memoryview(data).nbytes:
            raise refusal(errno.ENOSPC, self.path)
        return taken

    def sync(self) -> None:
        try:
            with self._descriptor as descriptor:
                if not _flush_device(descriptor):
                    _sync_data(descriptor)
        except OSError as error:
            raise refused(error, self.path) from error

    def begin_sync(self, position: int, size_bytes: int) -> None:
        if _sync_range is not None:
            with contextlib.suppress(OSError), self._descriptor as descriptor:
                _sync_range(descriptor, position, size_bytes, SYNC_FILE_RANGE_WRITE)

    def truncate(self, size_bytes: int) -> None:
        try:
            with self._descriptor as descriptor:
                os.ftruncate(descriptor, size_bytes)
        except OSError as error:
            raise refused(error, self.path) from error

    def reserve(self, size_bytes: int) -> None:
        if _fallocate is not None:
            with contextlib.suppress(OSError), self._descriptor as descriptor:
                _fallocate(descriptor, FALLOC_FL_KEEP_SIZE, 0, size_bytes)

    def size(self) -> int:
        try:
            with self._descriptor as descriptor:
                return os.fstat(descriptor).st_size
        except OSError as error:
            raise refused(error, self.path) from error

    def is_linked(self) -> bool:
        try:
            with self._descriptor as descriptor:
                return os.fstat(descriptor).st_nlink > 0
        except OSError as error:
            raise refused(error, self.path) from error

    def is_in_place(self) -> bool:
        try:
            with self._descriptor as descriptor, self._reach() as place:
                return os.path.samestat(os.fstat(descriptor), place.stat())
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                return False
            raise refused(error, self.path) from error

    def close(self) -> None:
        try:
            self._descriptor.close()
        except OSError as error:
            raise refused(error, self.path) from error


class PosixDisk(Disk):
    """The real disk. A relative path is relative to the current directory at the time of construction; errors show it
    as it was given."""

    __slots__ = ("_lost", "_paths")  # everything else is shared by the disks that `within` and the like return

    def __init__(self) -> None:
        self._paths = Paths()
        self._lost: LostPages | None = None

    def _to(self, path: str) -> Reach:
        return functools.partial(self._paths.reach, path)

    # --- one directory

    def within(self, root: str) -> Self:
        paths = self._paths
        if isinstance(paths, RootedPaths) and paths.root == root:
            return self
        return self._with(paths.below(root))

    def rooted(self, root: str) -> Self:
        try:
            return self._with(self._paths.below(root).pin())
        except OSError as error:
            raise refused(error, root) from error

    def check_root(self) -> None:
        check_root(self._paths)

    def unroot(self) -> None:
        if isinstance(self._paths, RootedPaths):
            self._paths.unpin()

    def surviving(self, lost: LostPages) -> Self:
        disk = self._with(self._paths)
        disk._lost = lost
        return disk

    def _with(self, paths: Paths) -> Self:
        disk = object.__new__(type(self))
        disk.__dict__ = self.__dict__
        disk._paths = paths
        disk._lost = self._lost
        return disk

    # --- looking

    def kind(self, path: str) -> Kind:
        try:
            with self._paths.reach(path) as place:
                try:
                    mode = place.stat().st_mode
                except FileNotFoundError:
                    return Kind.OTHER if place.is_link() else Kind.MISSING  # a dangling link still occupies the name
        except (FileNotFoundError, NotADirectoryError):
            return Kind.MISSING
        except StorageError as error:
            if error.errno == errno.ELOOP:  # a component is a link, which is not followed
                return Kind.MISSING
            raise
        except OSError as error:
            raise refused(error, path) from error
        if stat.S_ISDIR(mode):
            return Kind.DIRECTORY
        return Kind.FILE if stat.S_ISREG(mode) else Kind.OTHER

    def list(self, path: str, within: Sequence[str] = ()) -> list[tuple[str, int]]:
        found: list[tuple[str, int]] = []
        for name, entry in self._entries(path):
            if stat.S_ISREG(entry.st_mode):
                found.append((name, entry.st_size))
            elif stat.S_ISDIR(entry.st_mode) and name in within:
                try:
                    found += [(f"{name}/{below}", size) for below, size in self.list(f"{path}/{name}")]
                except StorageError as error:
                    if error.errno != errno.ENOENT:  # removed since the directory was read
                        raise
        return found

    def directories(self, path: str) -> Sequence[str]:
        with self._scanned(path) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))

    def specials(self, path: str) -> Sequence[tuple[str, str]]:
        found = []
        with self._scanned(path) as entries:
            for entry in entries:
                if not entry.is_file(follow_symlinks=False) and not entry.is_dir(follow_symlinks=False):
                    with contextlib.suppress(FileNotFoundError):  # removed since the directory was read
                        found.append((entry.name, kind_name(entry.stat(follow_symlinks=False).st_mode)))
        return sorted(found)

    def _entries(self, path: str) -> Sequence[tuple[str, os.stat_result]]:
        """The entries of a directory, sorted by name. Where links are followed, a link has the attributes of its
        target."""
        found = []
        follow = not self._paths.is_below(path)
        with self._scanned(path) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # removed since the directory was read
                    found.append((entry.name, entry.stat(follow_symlinks=follow)))
        found.sort(key=itemgetter(0))
        return found

    @contextlib.contextmanager
    def _scanned(self, path: str) -> Iterator[Iterator[os.DirEntry[str]]]:
        """The entries of a directory. An error, also of the caller's look at an entry, is the disk's."""
        try:
            with self._opened(path) as descriptor, os.scandir(descriptor) as entries:
                yield entries
        except OSError as error:
            raise refused(error, path) from error

    @contextlib.contextmanager
    def _opened(self, path: str) -> Iterator[int]:
        with self._paths.reach(path) as place:
            try:
                descriptor = place.open(os.O_RDONLY | os.O_DIRECTORY)
            except OSError:
                if not place.follow and stat.S_ISLNK(place.stat().st_mode):
                    raise not_regular(stat.S_IFLNK, path) from None
                raise
            try:
                yield descriptor
            finally:
                os.close(descriptor)

    def size(self, path: str) -> int:
        try:
            with self._paths.reach(path) as place:
                found = place.stat()
        except OSError as error:
            raise refused(error, path) from error
        if not place.follow and stat.S_ISLNK(found.st_mode):
            raise not_regular(found.st_mode, path)
        return found.st_size

    def links(self, path: str) -> int:
        try:
            with self._paths.reach(path) as place:
                return place.stat().st_nlink
        except OSError as error:
            raise refused(error, path) from error

    def stamp(self, path: str, *, renew: bool = False) -> tuple[int, int, int]:
        try:
            with self._paths.reach(path) as place:
                if renew:
                    now_ns = time.time_ns()
                    os.utime(place.name, ns=(now_ns, now_ns), dir_fd=place.directory, follow_symlinks=False)
                found = place.stat()
                return found.st_size, found.st_mtime_ns, found.st_ino
        except OSError as error:
            raise refused(error, path) from error

    def names_stamp(self, path: str) -> tuple[int, ...] | None:
        now_ns = time.time_ns()
        try:
            with self._opened(path) as descriptor:
                found, is_known = os.fstat(descriptor), _keeps_change_times(descriptor)
        except (FileNotFoundError, NotADirectoryError):
            return ()
        except StorageError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                return ()
            raise
        except OSError as error:
            raise refused(error, path) from error
        changed_ns = max(found.st_ctime_ns, found.st_mtime_ns)
        tick_ns = COARSE_TICK_NS if found.st_ctime_ns % 10**9 == 0 else TICK_NS
        if not is_known or now_ns - changed_ns <= tick_ns:
            return None
        return found.st_dev, found.st_ino, found.st_ctime_ns, found.st_mtime_ns

    def space(self, path: str) -> tuple[int, int]:
        try:
            with self._paths.reach(path) as place:
                found = os.statvfs(place.name if place.directory is None else place.directory)
        except OSError as error:
            raise refused(error, path) from error
        return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize

    def map(self, path: str) -> Mapped:
        return MappedFile(path, self._to(path), self._lost)

    def read(self, path: str, size_bytes: int = 2**63 - 1, position: int = 0) -> memoryview:
        try:
            with self._paths.reach(path) as place, open(open_regular(path, place, os.O_RDONLY), "rb", 0) as file:
                file.seek(position)
                return memoryview(file.read(max(min(os.fstat(file.fileno()).st_size - position, size_bytes), 0)))
        except OSError as error:
            raise refused(error, path) from error

    # --- changing

    def make_directory(self, path: str, *, parents: bool = True) -> None:
        try:
            if parents:
                self._make_parents(path)
            with self._paths.reach(path) as place:
                os.mkdir(place.name, dir_fd=place.directory)
        except OSError as error:
            if isinstance(error, FileExistsError) and self.kind(path) == Kind.DIRECTORY:
                return
            raise refused(error, path) from error

    def _make_parents(self, path: str) -> None:
        parent = posixpath.dirname(path.rstrip("/"))
        if parent and parent != path and self.kind(parent) == Kind.MISSING:
            self.make_directory(parent)

    def create(self, path: str) -> File:
        return PosixFile(path, self._to(path), os.O_CREAT | os.O_EXCL)

    def open(self, path: str) -> File:
        return PosixFile(path, self._to(path), 0)

    def replace(self, source: str, target: str) -> None:
        try:
            with self._paths.reach(source) as old, self._paths.reach(target) as new:
                os.replace(old.name, new.name, src_dir_fd=old.directory, dst_dir_fd=new.directory)
        except OSError as error:
            missing = isinstance(error, FileNotFoundError) and self.kind(source) == Kind.MISSING
            raise refused(error, source if missing else target) from error

    def rename_new(self, source: str, target: str) -> None:
        try:
            with self._paths.reach(source) as old, self._paths.reach(target) as new:
                rename_new(old.name, new.name, old.directory, new.directory)
        except OSError as error:
            missing = isinstance(error, FileNotFoundError) and self.kind(source) == Kind.MISSING
            raise refused(error, source if missing else target) from error

    def remove(self, path: str) -> None:
        try:
            with self._paths.reach(path) as place:
                os.unlink(place.name, dir_fd=place.directory)
        except OSError as error:
            raise refused(error, path) from error

    def remove_directory(self, path: str) -> None:
        try:
            with self._paths.reach(path) as place:
                os.rmdir(place.name, dir_fd=place.directory)
        except OSError as error:
            raise refused(error, path) from error

    def sync_directory(self, path: str) -> None:
        try:
            with self._opened(path) as descriptor:
                if not _flush_device(descriptor):
                    os.fsync(descriptor)
        except OSError as error:
            raise refused(error, path) from error

    # --- sharing

    def lock(self, path: str, note: bytes) -> Lock:
        try:
            return PosixLock(path, self._paths, note)
        except OSError as error:
            raise refused(error, path) from error

    def lock_directory(self, path: str) -> Lock:
        try:
            with self._paths.reach(path) as place:
                descriptor = place.open(os.O_RDONLY | os.O_DIRECTORY)
            return PosixDirectoryLock(path, self._paths, descriptor)
        except OSError as error:
            raise refused(error, path) from error

    def gate(self, path: str) -> Gate:
        return PosixGate(path, self._to(path))

    def is_locked(self, path: str) -> bool:
        try:
            with self._paths.reach(path) as place:
                descriptor = open_regular(path, place, os.O_RDONLY)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise refused(error, path) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):  # EACCES on some systems
            return True
        except OSError as error:
            raise refused(error, path) from error
        finally:
            os.close(descriptor)
        return False

    def page(self, path: str, size_bytes: int, *, writable: bool) -> Page:
        return PosixPage(path, self._to(path), size_bytes, writable=writable)

    def record_writer(
        self,
        file: File,
        index: File | None,
        page: Page,
        lock: Lock,
        shape: RecordShape,
        rows: Columns,
        notes: AppendNotes,
        check: Callable[[], None],
    ) -> RecordWriter:
        if kernel.PURE_PYTHON or not (
            isinstance(file, PosixFile)
            and isinstance(index, PosixFile | None)
            and isinstance(page, PosixPage)
            and isinstance(lock, PosixLock)
        ):
            return DiskRecordWriter(file, index, page, lock, shape, rows, notes, check)
        opened, word = page.handles
        indexed = contextlib.nullcontext() if index is None else index._descriptor
        try:
            with file._descriptor as number, indexed as index_number, opened as page_number:
                places = lock.place, self._place(page.path, page_number), self._place(file.path, number)
                return kernel.DescriptorRecordWriter(
                    number, index_number, page_number, word, (*places, *self._root_place()), shape, rows, notes
                )
        except OSError as error:
            raise refused(error, file.path) from error

    def _place(self, path: str, descriptor: int) -> tuple[bytes, int, int]:
        """The absolute path of an open file, and what it must lead to."""
        found = os.fstat(descriptor)
        return os.fsencode(self._paths.at(path)), found.st_dev, found.st_ino

    def _root_place(self) -> tuple[tuple[bytes, int, int], ...]:
        paths = self._paths
        if not isinstance(paths, RootedPaths) or paths.pinned is None:
            return ()
        with paths.pinned as descriptor:
            return (self._place(f"{paths.root}/.", descriptor),)  # it may be a link


def disk_or_real(disk: Disk | None) -> Disk:
    """The disk that a caller gave; the real one by default."""
    if disk is not None and not hasattr(disk, "within"):
        raise UsageError(f"disk must be a duramen.disk.Disk (got {disk!r:.80})")
    return PosixDisk() if disk is None else disk
