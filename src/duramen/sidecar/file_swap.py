"""A file swap: several renames and removals that take effect together.

The list of them is synced as ``.duramen/change.json`` first; that rename is the commit. Then the process executes the
list, syncs the directories and removes the list. A crash in between leaves the list, and the next writer replays it:
every entry may be executed twice. Until then readers ignore the files that are about to be removed.

The new contents must be durable before the swap is prepared, and only the holder of the writer's lock may swap files.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Any, NamedTuple

from duramen.disk import Disk, Kind
from duramen.errors import CorruptionError, StorageError
from duramen.sidecar.json_file import TEMPORARY, JsonFile, check_state_size, create_file, inside_log
from duramen.sidecar.layout import DIRECTORY, FILE_SWAP_NAME, WATERMARK_NAME, sidecar_path
from duramen.sidecar.lock import has_writer
from duramen.sidecar.watermark import Watermark, read_watermarks

_FILE_SWAP = JsonFile(
    "the list of a file swap",
    "`duramen verify` shows which files exist; delete the list to leave them as they are",
    is_versioned=False,
    separator=b" ",
)


class FileSwap(NamedTuple):
    """Paths are relative to the log's directory. Renames come first, then removals, each in order."""

    why: str
    renames: tuple[tuple[str, str], ...] = ()
    removals: tuple[str, ...] = ()

    def encode(self) -> bytes:
        return _FILE_SWAP.encode(self._asdict())

    @classmethod
    def parse(cls, tree: dict[str, Any]) -> FileSwap:
        renames = tuple((inside_log(str(source)), inside_log(str(target))) for source, target in tree["renames"])
        return cls(str(tree["why"]), renames, tuple(inside_log(str(path)) for path in tree["removals"]))


def prepare_file_swap(disk: Disk, root: str, change: FileSwap, files: Mapping[str, bytes] | None = None) -> FileSwap:
    """Make everything durable that the swap needs, without committing it: a failure here changes nothing. ``files``
    are small files whose new content is part of the swap. Returns the swap for `commit_file_swap`."""
    staged = []
    for number, (path, content) in enumerate((files or {}).items()):
        name = posixpath.join(DIRECTORY, f"{FILE_SWAP_NAME}.{number}")
        create_file(disk, posixpath.join(root, name), content)
        staged.append((name, path))
    change = change._replace(renames=(*change.renames, *staged))
    for source, _ in change.renames:
        if disk.kind(posixpath.join(root, source)) != Kind.FILE:  # replay would take the rename for done
            raise StorageError("a file that the swap renames is missing", path=posixpath.join(root, source))
    _sync_sources(disk, root, change)
    create_file(disk, _journal(root) + TEMPORARY, check_state_size(change.encode(), _journal(root)))
    return change


def commit_file_swap(disk: Disk, root: str, change: FileSwap) -> None:
    """Commit and execute a prepared swap. After a failure half of it may be done: reopen the log, which replays it."""
    disk.replace(_journal(root) + TEMPORARY, _journal(root))
    disk.sync_directory(posixpath.dirname(_journal(root)))
    _execute(disk, root, change)


def _sync_sources(disk: Disk, root: str, change: FileSwap) -> None:
    """Sync the names of all files that the swap renames, and of their directories: once the list exists, they must."""
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


def read_file_swap(disk: Disk, root: str) -> FileSwap | None:
    """The swap that was committed and perhaps not finished; None if there is none."""
    return _FILE_SWAP.read(disk, _journal(root), FileSwap.parse)


def changed_by_file_swap(disk: Disk, root: str) -> tuple[frozenset[str], frozenset[str]]:
    """The files that a committed swap replaces, and those that it removes. It may be half done, so a replaced file is
    either the old one or the new one. A list that cannot be read counts as none."""
    try:
        change = read_file_swap(disk, root)
    except CorruptionError:
        change = None
    if change is None:
        return frozenset(), frozenset()
    return frozenset(target for _, target in change.renames), frozenset(change.removals)


def settled_watermark(disk: Disk, root: str, *, is_ours: bool = False) -> Watermark | None:
    """The watermark; None if an unfinished file swap replaces it, because the segments may not fit it yet. A proof
    counts only if its writer is dead. ``is_ours``: the caller holds the log's lock."""
    replaced, _ = changed_by_file_swap(disk, root)
    if posixpath.join(DIRECTORY, WATERMARK_NAME) in replaced:
        return None
    newest, shown = read_watermarks(disk, root)
    is_pending = newest is not None and newest.is_proof and not is_ours and has_writer(disk, root)
    return shown if is_pending else newest


def replay_file_swap(disk: Disk, root: str) -> FileSwap | None:
    """Execute a swap that an earlier process committed and did not finish. Returns it."""
    change = read_file_swap(disk, root)
    if change is not None:
        # Names that a killed process left may not be on the disk yet, the list's own included.
        _sync_sources(disk, root, change)
        disk.sync_directory(posixpath.dirname(_journal(root)))
        _execute(disk, root, change)
    return change


def _execute(disk: Disk, root: str, change: FileSwap) -> None:
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
    return sidecar_path(root, FILE_SWAP_NAME)
