"""A deterministic disk in memory that can lose power: a page cache over a medium.

Every file and every directory has two states, what programs see and what the medium holds; the difference is pending.
``File.sync`` writes the bytes of one file to the medium, not its name; ``sync_directory`` writes the names of one
directory, not the bytes of their files. That is stricter than most file systems, where one sync writes much else too: a
program that is correct here is correct there. `crash` determines what a power loss leaves of pending changes.

Not simulated: permissions, links, quotas, full disks (`faulty_disk` fails calls), time, a directory that is moved while
a program has it open.
"""

from __future__ import annotations

import errno
import hashlib
import posixpath
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from duramen.disk import (
    Buffer,
    Disk,
    DiskRecordWriter,
    File,
    Gate,
    Kind,
    Lock,
    Mapped,
    Page,
    RecordWriter,
    fenced,
    locked,
    refusal,
    refused,
)
from duramen.errors import StorageError
from duramen.kernel import AppendNotes, Columns, RecordShape
from duramen.testing.crash import (
    Change,
    CrashPattern,
    Named,
    Truncated,
    Written,
    apply,
    apply_names,
    survive,
    survive_names,
    without,
)

_ROOT = 0
_COUNTER_BYTES = 4  # before every shared page, as on the real disk
_PAGE_HISTORY = 16


@dataclass
class _FileNode:
    """A file. Contents are copied on write: clones, crashes and mappings share them until a write."""

    number: int
    data: bytearray = field(default_factory=bytearray)
    synced: bytearray = field(default_factory=bytearray)
    pending: list[Change] = field(default_factory=list)
    owned: bool = True
    shared: bool = False

    def change(self, change: Change) -> None:
        self._own()
        apply(self.data, change)
        self.pending.append(change)

    def sync(self) -> None:
        if not self.pending and len(self.synced) == len(self.data):
            return
        self._own()
        for change in self.pending:
            apply(self.synced, change)
        self.pending.clear()
        # Where a failed sync forgot bytes at the end, the size still goes to the medium: a hole of zeros.
        apply(self.synced, Truncated(0, len(self.data)))

    def _own(self) -> None:
        if not self.owned:
            self.data, self.synced, self.owned = bytearray(self.data), bytearray(self.synced), True

    def copy(self) -> _FileNode:
        self.owned = False
        return _FileNode(self.number, self.data, self.synced, list(self.pending), owned=False, shared=self.shared)


@dataclass
class _DirectoryNode:
    number: int
    names: dict[str, int] = field(default_factory=dict)
    synced: dict[str, int] = field(default_factory=dict)
    pending: list[Named] = field(default_factory=list)
    changed: int = 0
    """The moment of the last change of a name."""

    def change(self, change: Named) -> None:
        self.changed = change.moment
        apply_names(self.names, change)
        self.pending.append(change)

    def copy(self) -> _DirectoryNode:
        return _DirectoryNode(self.number, dict(self.names), dict(self.synced), list(self.pending), self.changed)


_Node = _FileNode | _DirectoryNode


class SimulatedMapping(Mapped):
    def __init__(self, data: memoryview) -> None:
        self.data = data

    def release(self, start: int, stop: int) -> None:
        """Do nothing: the simulated disk owns the bytes."""

    def close(self) -> None:
        self.data = memoryview(b"")


class SimulatedFile(File):
    def __init__(self, disk: SimulatedDisk, path: str, node: _FileNode) -> None:
        self.path = path
        self._disk = disk
        self._node = node
        self._closed = False

    def write(self, position: int, data: Buffer) -> int:
        with self._disk._mutex:
            self._check(position)
            taken = bytes(data)
            self._node.change(Written(self._disk._next_moment(), position, taken))
            self._disk._happened("write", self.path, f"{position}+{len(taken)}")
            return len(taken)

    def sync(self) -> None:
        with self._disk._mutex:
            self._check()
            self._node.sync()
            self._disk._happened("sync", self.path)

    def truncate(self, size_bytes: int) -> None:
        with self._disk._mutex:
            self._check(size_bytes)
            self._node.change(Truncated(self._disk._next_moment(), size_bytes))
            self._disk._happened("truncate", self.path, str(size_bytes))

    def begin_sync(self, position: int, size_bytes: int) -> None:
        pass

    def reserve(self, size_bytes: int) -> None:
        pass

    def size(self) -> int:
        with self._disk._mutex:
            self._check()
            return len(self._node.data)

    def is_linked(self) -> bool:
        with self._disk._mutex:
            return self._disk._has_name(self._node)

    def is_in_place(self) -> bool:
        return self._disk._is_at(self._node, self.path)

    def close(self) -> None:
        self._closed = True

    def forget_unsynced(self) -> None:
        """What a failed sync can do: mark pages as clean that were not written. Programs still see their bytes, no
        later sync writes them to the medium, and a crash loses them."""
        with self._disk._mutex:
            self._node.pending.clear()

    def _check(self, position: int = 0) -> None:
        if self._closed:
            raise refused(OSError(errno.EBADF, "The file is closed"), self.path)
        if position < 0:
            raise refusal(errno.EINVAL, self.path)


class SimulatedLock(Lock):
    is_exclusive = True
    fenced_by = "this was deleted or replaced"

    def __init__(self, disk: SimulatedDisk, path: str, node: _Node) -> None:
        self._disk = disk
        self._path = path
        self._node = node

    def is_in_place(self) -> bool:
        return self._disk._is_at(self._node, self._path)

    def check(self) -> None:
        if not self.is_in_place():
            raise fenced(self.fenced_by, self._path)

    def release(self) -> None:
        with self._disk._mutex:
            if self._disk._locks.get(self._node.number) is self:
                del self._disk._locks[self._node.number]
                if isinstance(self._node, _FileNode):  # its note goes; a directory does not change
                    self._node.change(Truncated(self._disk._next_moment(), 0))
                    self._disk._happened("release", self._path)


class SimulatedDirectoryLock(SimulatedLock):
    fenced_by = "the directory was deleted or replaced"


class SimulatedGate(Gate):
    def __init__(self, disk: SimulatedDisk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._node: _FileNode | None = None

    def take(self, note: bytes) -> bool:
        disk = self._disk
        with disk._mutex:
            node = disk._file(self._path, make=True)
            if node.number in disk._locks:
                raise locked(self._path, bytes(node.data))
            disk._locks[node.number] = self
            self._node = node
            if node.data == note:
                return True
            node.change(Written(disk._next_moment(), 0, note))
            node.change(Truncated(disk._next_moment(), len(note)))
            disk._happened("lock", self._path)
            return False

    def release(self) -> None:
        with self._disk._mutex:
            if self._node is not None and self._disk._locks.get(self._node.number) is self:
                del self._disk._locks[self._node.number]
            self._node = None

    def close(self) -> None:
        self.release()


class SimulatedPage(Page):
    """A counter of stores, then the page, as on the real disk."""

    def __init__(self, disk: SimulatedDisk, path: str, node: _FileNode, size_bytes: int, *, writable: bool) -> None:
        self._disk = disk
        self._path = path
        self._node = node
        self._size_bytes = size_bytes
        self._writable = writable
        self._closed = False

    def load(self) -> bytes:
        with self._disk._mutex:
            self._check()
            return self._bytes()

    def store(self, data: bytes) -> None:
        if len(data) > self._size_bytes:
            raise ValueError(f"a page of {self._size_bytes} bytes cannot hold {len(data)}")
        with self._disk._mutex:
            self._check()
            if not self._writable:
                raise refusal(errno.EBADF, self._path)
            counter = int.from_bytes(self._node.data[:_COUNTER_BYTES], "little") + 1
            whole = (counter % 2**32).to_bytes(_COUNTER_BYTES, "little") + data
            self._node.change(Written(self._disk._next_moment(), 0, whole))
            # Never synced, so its history would grow for ever. A store that changes more than the first slot is synced
            # before the next, so dropping one from the middle leaves the versions after it as they are.
            if len(self._node.pending) > 2 * _PAGE_HISTORY:
                del self._node.pending[_PAGE_HISTORY // 2 : -_PAGE_HISTORY]
            self._disk._stored.notify_all()
            self._disk._happened("store", self._path)

    def wait(self, seen: bytes, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        with self._disk._mutex:
            while not self._closed and self._bytes() == seen and (left := deadline - time.monotonic()) > 0:
                self._disk._stored.wait(left)

    def close(self) -> None:
        with self._disk._mutex:
            self._closed = True
            self._disk._stored.notify_all()

    def _bytes(self) -> bytes:
        return bytes(self._node.data[_COUNTER_BYTES : _COUNTER_BYTES + self._size_bytes])

    def _check(self) -> None:
        if self._closed:
            raise refused(OSError(errno.EBADF, "The file is closed"), self._path)


class SimulatedDisk(Disk):
    """An empty disk with a root directory, where relative paths start, too.

    >>> disk = SimulatedDisk()
    >>> file = disk.create("/a")
    >>> file.write(0, b"heartwood")
    9
    >>> disk.crash(CrashPattern("lost", "lost")).kind("/a")
    <Kind.MISSING: 'missing'>
    >>> file.sync(); disk.sync_directory("/")
    >>> bytes(disk.crash(CrashPattern("lost", "lost")).map("/a").data)
    b'heartwood'
    """

    def __init__(self, *, keep_history: bool = False) -> None:
        self.operations = 0
        """Number of changes: write, truncate, sync, create, replace, remove, make_directory,
        remove_directory, sync_directory, store, and lock, release and page where they change a file."""
        self.on_operation: Callable[[int, str], None] | None = None
        """Called after each change with its number and a text such as ``"write /log/0.log"``; may clone the disk."""
        self.history: list[str] = []
        """Every change in short, if ``keep_history`` is set."""
        self.capacity_bytes = 1 << 40
        """The size of the disk that `space` returns; exceeding it is not an error."""
        self._mutex = threading.RLock()
        self._stored = threading.Condition(self._mutex)
        self._locks: dict[int, Lock | Gate] = {}
        self._keep_history = keep_history
        self._moment = 0
        self._nodes: dict[int, _Node] = {_ROOT: _DirectoryNode(_ROOT)}
        self._next_number = _ROOT + 1

    # --- looking

    def kind(self, path: str) -> Kind:
        with self._mutex:
            try:
                node = self._node(path)
            except StorageError as error:
                if error.errno in (errno.ENOENT, errno.ENOTDIR):
                    return Kind.MISSING
                raise
            return Kind.FILE if isinstance(node, _FileNode) else Kind.DIRECTORY

    def list(self, path: str, within: Sequence[str] = ()) -> list[tuple[str, int]]:
        with self._mutex:
            directory = self._directory(path)
            found: list[tuple[str, int]] = []
            for name, number in sorted(directory.names.items()):
                node = self._nodes[number]
                if isinstance(node, _FileNode):
                    found.append((name, len(node.data)))
                elif name in within:
                    found += [(f"{name}/{below}", size) for below, size in self.list(posixpath.join(path, name))]
            return found

    def directories(self, path: str) -> Sequence[str]:
        with self._mutex:
            names = self._directory(path).names.items()
            return sorted(name for name, number in names if isinstance(self._nodes[number], _DirectoryNode))

    def specials(self, path: str) -> Sequence[tuple[str, str]]:
        self._directory(path)
        return []

    def size(self, path: str) -> int:
        with self._mutex:
            node = self._node(path)
            return len(node.data) if isinstance(node, _FileNode) else 0

    def links(self, path: str) -> int:
        with self._mutex:
            self._node(path)
            return 1

    def stamp(self, path: str, *, renew: bool = False) -> tuple[int, int, int]:
        """The simulated disk has no clock: the stamp is computed from the bytes."""
        with self._mutex:
            data = self._file(path).data
            return len(data), zlib.crc32(data), 0

    def names_stamp(self, path: str) -> tuple[int, ...] | None:
        with self._mutex:
            if self.kind(path) != Kind.DIRECTORY:
                return ()
            node = self._directory(path)
            return node.number, node.changed

    def space(self, path: str) -> tuple[int, int]:
        with self._mutex:
            self._node(path)
            used = sum(len(node.data) for node in self._nodes.values() if isinstance(node, _FileNode))
            return self.capacity_bytes, max(self.capacity_bytes - used, 0)

    def map(self, path: str) -> Mapped:
        with self._mutex:
            node = self._file(path)
            node.owned = False
            return SimulatedMapping(memoryview(node.data).toreadonly())

    # --- changing

    def make_directory(self, path: str, *, parents: bool = True) -> None:
        with self._mutex:
            parts = _parts(path)
            for depth in range(1 if parents else len(parts), len(parts) + 1):
                below = "/" + "/".join(parts[:depth])
                parent, name = self._parent(below)
                if name not in parent.names:
                    made = _DirectoryNode(self._new_number())
                    self._add(parent, name, made)
                    self._happened("make_directory", below)
                elif isinstance(self._nodes[parent.names[name]], _FileNode):
                    raise refusal(errno.EEXIST if depth == len(parts) else errno.ENOTDIR, path)

    def create(self, path: str) -> File:
        with self._mutex:
            parent, name = self._parent(path)
            if not name or name in parent.names:
                raise refusal(errno.EEXIST, path)
            node = _FileNode(self._new_number())
            self._add(parent, name, node)
            self._happened("create", path)
            return SimulatedFile(self, path, node)

    def open(self, path: str) -> File:
        with self._mutex:
            return SimulatedFile(self, path, self._file(path))

    def replace(self, source: str, target: str) -> None:
        with self._mutex:
            old, old_name = self._parent(source)
            moved = self._node(source)
            new, new_name = self._parent(target, error_path=target)
            if not self._may_replace(moved, source, new, new_name, target):
                return
            moment = self._next_moment()
            if old is new:
                old.change(Named(moment, ((old_name, None), (new_name, moved.number))))
            else:
                new.change(Named(moment, ((new_name, moved.number),)))
                old.change(Named(moment, ((old_name, None),), moved_to=new.number))
            self._happened("replace", source, target)

    def rename_new(self, source: str, target: str) -> None:
        with self._mutex:
            self._node(source)
            parent, name = self._parent(target, error_path=target)
            if name in parent.names:
                raise refusal(errno.EEXIST, target)
            self.replace(source, target)

    def remove(self, path: str) -> None:
        with self._mutex:
            parent, name = self._parent(path)
            if isinstance(self._node(path), _DirectoryNode):
                raise refusal(errno.EISDIR, path)
            parent.change(Named(self._next_moment(), ((name, None),)))
            self._happened("remove", path)

    def remove_directory(self, path: str) -> None:
        with self._mutex:
            parent, name = self._parent(path)
            if self._directory(path).names:
                raise refusal(errno.ENOTEMPTY, path)
            parent.change(Named(self._next_moment(), ((name, None),)))
            self._happened("remove_directory", path)

    def sync_directory(self, path: str) -> None:
        with self._mutex:
            directory = self._directory(path)
            self._commit(directory, self._moment)
            self._happened("sync_directory", path)

    # --- sharing

    def lock(self, path: str, note: bytes) -> Lock:
        with self._mutex:
            node = self._file(path, make=True)
            if node.number in self._locks:
                raise locked(path, bytes(node.data))
            node.change(Written(self._next_moment(), 0, note))
            node.change(Truncated(self._next_moment(), len(note)))
            lock = self._locks[node.number] = SimulatedLock(self, path, node)
            self._happened("lock", path)
            return lock

    def lock_directory(self, path: str) -> Lock:
        with self._mutex:
            node = self._directory(path)
            if node.number in self._locks:
                raise locked(path, b"")
            lock = self._locks[node.number] = SimulatedDirectoryLock(self, path, node)
            return lock

    def gate(self, path: str) -> Gate:
        return SimulatedGate(self, path)

    def is_locked(self, path: str) -> bool:
        with self._mutex:
            return self.kind(path) == Kind.FILE and self._file(path).number in self._locks

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
        return DiskRecordWriter(file, index, page, lock, shape, rows, notes, check)

    def page(self, path: str, size_bytes: int, *, writable: bool) -> Page:
        with self._mutex:
            node = self._file(path, make=writable)
            whole_bytes = _COUNTER_BYTES + size_bytes
            if len(node.data) < whole_bytes:
                if not writable:
                    raise refused(OSError(errno.ENODATA, "The page does not exist yet"), path)
                node.change(Truncated(self._next_moment(), whole_bytes))
                self._happened("page", path)
            node.shared = True
            return SimulatedPage(self, path, node, size_bytes, writable=writable)

    # --- looking at everything

    def tree(self) -> dict[str, bytes]:
        """Every path with its bytes as programs see them; a directory ends with ``/`` and has none."""
        with self._mutex:
            found: dict[str, bytes] = {}
            waiting: list[tuple[str, int]] = [("/", _ROOT)]
            for path, number in waiting:
                node = self._nodes[number]
                if isinstance(node, _FileNode):
                    found[path.rstrip("/")] = bytes(node.data)
                else:
                    found[path] = b""
                    waiting += [(f"{path}{name}/", below) for name, below in sorted(node.names.items())]
            return found

    def digest(self) -> bytes:
        """A digest of what programs can see, for counting distinct states."""
        found = hashlib.blake2b(digest_size=16)
        for path, content in sorted(self.tree().items()):
            found.update(f"{path}\0{len(content)}\0".encode())
            found.update(content)
        return found.digest()

    # --- losing power

    def clone(self) -> SimulatedDisk:
        """An independent copy without locks: what another process finds after this one was killed."""
        with self._mutex:
            copy = SimulatedDisk(keep_history=self._keep_history)
            copy.operations = self.operations
            copy.history = list(self.history)
            copy._moment = self._moment
            copy._nodes = {number: node.copy() for number, node in self._nodes.items()}
            copy._next_number = self._next_number
            return copy

    def crash(self, pattern: CrashPattern) -> SimulatedDisk:
        """A disk as a power loss at this moment could leave it. This one is unchanged."""
        with self._mutex:
            until = self._moment_of(pattern)
            names = self._surviving_names(pattern, until)
            after = SimulatedDisk(keep_history=self._keep_history)
            after._next_number = self._next_number
            after._nodes = {}
            chosen = self._chosen_file(pattern)
            for number in _reachable(names):
                node = self._nodes[number]
                if isinstance(node, _DirectoryNode):
                    after._nodes[number] = _DirectoryNode(number, dict(names[number]), names[number])
                    continue
                if chosen is None or number == chosen:
                    content = survive(node.synced, node.pending, pattern, about=number, until=until, shared=node.shared)
                else:
                    content = node.synced
                node.owned = False
                after._nodes[number] = _FileNode(number, content, content, owned=False, shared=node.shared)
            return after

    def _moment_of(self, pattern: CrashPattern) -> int:
        """The moment up to which a ``prefix`` survives."""
        if "prefix" not in {pattern.data, pattern.names}:
            return 0
        moments = sorted({change.moment for node in self._nodes.values() for change in node.pending})
        return pattern.chance("moment").choice([0, *moments])

    def _surviving_names(self, pattern: CrashPattern, until: int) -> dict[int, dict[str, int]]:
        """The names of every directory after the crash."""
        directories = [node for node in self._nodes.values() if isinstance(node, _DirectoryNode)]
        kept = {
            node.number: survive_names(node.pending, pattern, about=node.number, until=until) for node in directories
        }
        pending = {(node.number, change.moment) for node in directories for change in node.pending}

        def names(*, moves: bool) -> dict[int, dict[str, int]]:
            found = {}
            for node in directories:
                found[node.number] = dict(node.synced)
                for change in kept[node.number]:
                    if moves or change.moved_to is None:
                        apply_names(found[node.number], change)
            return found

        # A file that went to another directory loses its old name only where the new one arrived and can be found.
        # Undoing that undoes what came after it, which may be the arrival of another file.
        while True:
            attached = set(_reachable(names(moves=False)))
            arrived = {(number, change.moment) for number, changes in kept.items() for change in changes}
            undone = [
                (number, change)
                for number, changes in kept.items()
                for change in changes
                if change.moved_to is not None
                and ((change.moved_to, change.moment) in pending - arrived or change.moved_to not in attached)
            ]
            if not undone:
                return names(moves=True)
            for number, change in undone:
                kept[number] = without(kept[number], change)

    def _chosen_file(self, pattern: CrashPattern) -> int | None:
        """The one file that keeps pending changes, if the pattern selects one."""
        if pattern.files == "all":
            return None
        changed = [
            node for node in self._nodes.values() if isinstance(node, _FileNode) and node.pending and not node.shared
        ]
        if not changed:
            return None
        if pattern.files == "newest":
            return max(changed, key=lambda node: node.pending[-1].moment).number
        return min(changed, key=lambda node: node.pending[0].moment).number

    # --- for the parts of this module

    def _next_moment(self) -> int:
        """The number of the next change; numbers increase."""
        self._moment += 1
        return self._moment

    def _happened(self, operation: str, path: str, detail: str = "") -> None:
        """Count a change, and call ``on_operation``."""
        self.operations += 1
        if self._keep_history:
            self.history.append(f"{operation} {path} {detail}".rstrip())
        if self.on_operation is not None:
            self.on_operation(self.operations, f"{operation} {path}")

    def _new_number(self) -> int:
        self._next_number += 1
        return self._next_number - 1

    def _add(self, parent: _DirectoryNode, name: str, node: _Node) -> None:
        self._nodes[node.number] = node
        parent.change(Named(self._next_moment(), ((name, node.number),)))

    def _commit(self, directory: _DirectoryNode, until: int) -> None:
        """Write the changes of a directory up to a moment to the medium."""
        done = [change for change in directory.pending if change.moment <= until]
        directory.pending = directory.pending[len(done) :]
        for change in done:
            if change.moved_to is not None:
                target = self._nodes[change.moved_to]
                assert isinstance(target, _DirectoryNode)
                self._commit(target, change.moment)
            apply_names(directory.synced, change)

    def _may_replace(self, moved: _Node, source: str, new: _DirectoryNode, name: str, target: str) -> bool:
        """False if source and target are already the same file."""
        moved_directory = isinstance(moved, _DirectoryNode)
        if moved_directory and _parts(target)[: len(_parts(source))] == _parts(source) != _parts(target):
            raise refusal(errno.EINVAL, target)
        number = new.names.get(name)
        if number is None:
            return True
        there = self._nodes[number]
        if there is moved:
            return False
        if isinstance(there, _DirectoryNode):
            if not moved_directory:
                raise refusal(errno.EISDIR, target)
            if there.names:
                raise refusal(errno.ENOTEMPTY, target)
        elif moved_directory:
            raise refusal(errno.ENOTDIR, target)
        return True

    def _node(self, path: str) -> _Node:
        node = self._nodes[_ROOT]
        for part in _parts(path):
            if isinstance(node, _FileNode):
                raise refusal(errno.ENOTDIR, path)
            if part not in node.names:
                raise refusal(errno.ENOENT, path)
            node = self._nodes[node.names[part]]
        return node

    def _has_name(self, node: _Node) -> bool:
        directories = (one for one in self._nodes.values() if isinstance(one, _DirectoryNode))
        return any(node.number in directory.names.values() for directory in directories)

    def _is_at(self, node: _Node, path: str) -> bool:
        with self._mutex:
            try:
                return self._node(path) is node
            except StorageError:
                return False

    def _directory(self, path: str, error_path: str | None = None) -> _DirectoryNode:
        try:
            node = self._node(path)
        except StorageError as error:
            error.path = error_path or path
            raise
        if isinstance(node, _FileNode):
            raise refusal(errno.ENOTDIR, error_path or path)
        return node

    def _parent(self, path: str, error_path: str | None = None) -> tuple[_DirectoryNode, str]:
        parts = _parts(path)
        if not parts:
            raise refusal(errno.EEXIST, path)
        return self._directory("/".join(parts[:-1]), error_path or path), parts[-1]

    def _file(self, path: str, *, make: bool = False) -> _FileNode:
        if make and self.kind(path) == Kind.MISSING:
            self.create(path).close()
        node = self._node(path)
        if isinstance(node, _DirectoryNode):
            raise refusal(errno.EISDIR, path)
        return node


@lru_cache(4096)
def _parts(path: str) -> tuple[str, ...]:
    return tuple(part for part in posixpath.normpath("/" + path).split("/") if part)


def _reachable(names: dict[int, dict[str, int]]) -> list[int]:
    """Every file and directory reachable from the root, in a fixed order."""
    found = [_ROOT]
    seen = {_ROOT}
    for number in found:
        for below in names.get(number, {}).values():
            if below not in seen:
                seen.add(below)
                found.append(below)
    return found
