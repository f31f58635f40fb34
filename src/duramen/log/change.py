"""A change of several files that happens as one: renames and removals, written down before they are done.

The list is synced into ``.duramen/change.json`` first: that is the moment at which the change has happened. Then it is
carried out, the directories are synced, and the list is removed. A crash in between leaves the list, and whoever opens
the log for writing next carries it out again: each entry is such that doing it twice does no harm. Until then readers
leave out what is about to be removed, so that nothing comes back.

Only for files whose new contents are on the disk already, and only by the one who holds the writer's lock.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Mapping
from typing import NamedTuple

from duramen import kernel
from duramen.disk import Disk
from duramen.disk.base import Kind, map_if_there, write_all
from duramen.errors import CorruptionError, StorageError
from duramen.log.sidecar import DIRECTORY

NAME = "change.json"
UNDECIDED = ".new"


class Change(NamedTuple):
    """Paths are relative to the log's directory. Renames come first, then removals, each in order."""

    why: str
    renames: tuple[tuple[str, str], ...] = ()
    removals: tuple[str, ...] = ()

    def encode(self) -> bytes:
        body = json.dumps(self._asdict(), sort_keys=True).encode()
        return body + b" %08x\n" % kernel.crc32c(body)

    @classmethod
    def decode(cls, raw: bytes) -> Change:
        """Raises `ValueError` where the bytes are not what was written."""
        body, _, crc = raw.rstrip(b"\n").rpartition(b" ")
        if crc != b"%08x" % kernel.crc32c(body):
            raise ValueError("checksum mismatch")
        tree = json.loads(body)
        renames = tuple((str(source), str(target)) for source, target in tree["renames"])
        return cls(str(tree["why"]), renames, tuple(map(str, tree["removals"])))


def prepare(disk: Disk, root: str, change: Change, files: Mapping[str, bytes] | None = None) -> Change:
    """Have everything on the disk that the change needs, without deciding on it: if this fails, nothing has happened.
    ``files`` are small ones that get a new content in the same moment. Answers what `decide` takes."""
    staged = []
    for number, (path, content) in enumerate((files or {}).items()):
        name = posixpath.join(DIRECTORY, f"{NAME}.{number}")
        _put(disk, posixpath.join(root, name), content)
        staged.append((name, path))
    change = change._replace(renames=(*change.renames, *staged))
    for source, _ in change.renames:
        if disk.kind(posixpath.join(root, source)) != Kind.FILE:  # carrying it out would take it for done
            raise StorageError("a file that is to be moved is gone", path=posixpath.join(root, source))
    _settle_sources(disk, root, change)
    _put(disk, _journal(root) + UNDECIDED, change.encode())
    return change


def decide(disk: Disk, root: str, change: Change) -> None:
    """Make a change that was prepared, or leave a list of it that the next writer carries out. If this fails, half of
    it may be done, and only opening the log again is safe."""
    disk.replace(_journal(root) + UNDECIDED, _journal(root))
    disk.sync_directory(posixpath.dirname(_journal(root)))
    _carry_out(disk, root, change)


def _settle_sources(disk: Disk, root: str, change: Change) -> None:
    """Have the names of everything that will be renamed on the disk, and of the directories it lies in: once the list
    is there, all of it must be."""
    directories = set()
    for source, _ in change.renames:
        directory = posixpath.dirname(source)
        while directory not in directories:
            directories.add(directory)
            directory = posixpath.dirname(directory)
    for directory in sorted(directories):
        full = posixpath.join(root, directory) if directory else root
        if disk.kind(full) == Kind.DIRECTORY:
            disk.sync_directory(full)


def _put(disk: Disk, path: str, content: bytes) -> None:
    if disk.kind(path) != Kind.MISSING:
        disk.remove(path)  # what an attempt left that was never decided
    file = disk.create(path)
    try:
        write_all(file, 0, content)
        file.sync()
    finally:
        file.close()


def pending(disk: Disk, root: str) -> Change | None:
    """The change that was decided and perhaps not finished."""
    path = _journal(root)
    raw = map_if_there(disk, path)
    if raw is None:
        return None
    try:
        return Change.decode(bytes(raw))
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptionError(
            f"the list of a change that was not finished cannot be read: {error}",
            path=path,
            hint="`duramen verify` shows which files are there; delete the list to leave them as they are",
        ) from error


def pending_removals(disk: Disk, root: str) -> frozenset[str]:
    """What is gone, though its files may still be there."""
    change = pending(disk, root)
    return frozenset() if change is None else frozenset(change.removals)


def unsettled(disk: Disk, root: str) -> tuple[frozenset[str], frozenset[str]]:
    """What a change that was decided replaces, and what it removes. It may be half done: of a file that is replaced,
    nobody can tell whether it is the old one or the new one. A list that cannot be read says nothing."""
    try:
        change = pending(disk, root)
    except CorruptionError:
        change = None
    if change is None:
        return frozenset(), frozenset()
    return frozenset(target for _, target in change.renames), frozenset(change.removals)


def finish(disk: Disk, root: str) -> Change | None:
    """Carry out what an earlier process decided and did not finish; answers it."""
    change = pending(disk, root)
    if change is not None:
        # A killed process leaves names that can be seen and are not on the disk: the list's own, too.
        _settle_sources(disk, root, change)
        disk.sync_directory(posixpath.dirname(_journal(root)))
        _carry_out(disk, root, change)
    return change


def _carry_out(disk: Disk, root: str, change: Change) -> None:
    for source, target in change.renames:
        if disk.kind(posixpath.join(root, source)) == Kind.FILE:
            disk.replace(posixpath.join(root, source), posixpath.join(root, target))
    for path in change.removals:
        if disk.kind(posixpath.join(root, path)) == Kind.FILE:
            disk.remove(posixpath.join(root, path))
    paths = [path for pair in change.renames for path in pair] + list(change.removals)
    for directory in sorted({posixpath.dirname(posixpath.join(root, path)) for path in paths}):
        if disk.kind(directory) == Kind.DIRECTORY:
            disk.sync_directory(directory)
    disk.remove(_journal(root))
    disk.sync_directory(posixpath.dirname(_journal(root)))


def _journal(root: str) -> str:
    return posixpath.join(root, DIRECTORY, NAME)
