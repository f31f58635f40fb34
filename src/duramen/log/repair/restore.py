"""Restore the files of a log from the journal of a repair: for an undo, and for a repair that was interrupted.

Renamed files go back in two steps: all of them to temporary names, then to their old names, so that none is in the way.
A file that the repair did not create is never replaced. Every step skips what is already restored, so that the process
can stop and start again at any point. The caller holds the writer's lock.
"""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Collection, Iterable

from duramen import kernel
from duramen.disk import Disk, Kind, open_private, write_all
from duramen.errors import StorageError
from duramen.sidecar import (
    DIRECTORY,
    FileBefore,
    RepairEntry,
    RepairJournal,
    RepairStage,
    RepairState,
    write_repair_journal,
)


def put_back(disk: Disk, root: str, journal: RepairJournal, made: Collection[str] | None = None) -> None:
    """Restore every file as it was before the repair. Can be interrupted and run again at any point.

    ``made`` are the paths that this process has created: a file at another path that was empty is not the repair's, and
    stays. None: another process ran the repair, and its paths are unknown.
    """
    _Restore(disk, root, journal, made).run()


class _Restore:
    def __init__(self, disk: Disk, root: str, journal: RepairJournal, made: Collection[str] | None) -> None:
        self._disk = disk
        self._root = root
        self._journal = journal
        self._made = made
        self._moved = [entry for entry in journal.entries if entry.was == FileBefore.NAMED]

    def run(self) -> None:
        journal = self._journal
        journal.state = RepairState.ACTING
        self._write()
        if journal.stage == RepairStage.IN:
            self._drop()
            self._move_out()
            self._sync()
            journal.stage = RepairStage.OUT
            self._write()
        for entry in reversed(journal.entries):
            if entry.was != FileBefore.NAMED:
                self._put_back(entry)
        for entry in self._moved:
            self._move_back(entry)
        self._sync()
        journal.state = RepairState.UNDONE
        self._write()

    def _write(self) -> None:
        write_repair_journal(self._disk, self._root, self._journal)

    def _full(self, path: str) -> str:
        return posixpath.join(self._root, path)

    def _is_file(self, path: str) -> bool:
        return self._disk.kind(self._full(path)) == Kind.FILE

    def _sync(self) -> None:
        paths = [path for entry in self._journal.entries for path in (entry.path, entry.target) if path]
        directories = {posixpath.dirname(self._full(path)) for path in (*paths, *self._journal.dropped)}
        directories.add(self._full(self._journal.directory))
        for directory in sorted(directories):
            if self._disk.kind(directory) == Kind.DIRECTORY:
                self._disk.sync_directory(directory)

    # --- names

    def _drop(self) -> None:
        """Remove the files that were added since the repair, and what was appended to others; the quarantine has
        copies."""
        for path in self._journal.dropped:
            if self._is_file(path):
                self._disk.remove(self._full(path))
        for path in self._journal.cut:
            size_bytes = self._journal.after[path][0]
            if self._is_file(path) and self._disk.size(self._full(path)) > size_bytes:
                cut_file(self._disk, self._full(path), size_bytes)

    def _move_out(self) -> None:
        """Rename from the new names to the temporary ones."""
        for entry in self._moved:
            temporary = temporary_of(entry)
            if not self._is_file(temporary) and self._is_file(entry.target):
                self._disk.rename_new(self._full(entry.target), self._full(temporary))

    def _move_back(self, entry: RepairEntry) -> None:
        """Rename from the temporary name to the old one."""
        temporary, path = self._full(temporary_of(entry)), self._full(entry.path)
        if self._disk.kind(temporary) != Kind.FILE:
            return  # already restored
        if self._disk.size(temporary) > entry.size_bytes:
            cut_file(self._disk, temporary, entry.size_bytes)  # appended since; the quarantine has a copy
        if self._disk.kind(path) == Kind.MISSING:
            self._disk.rename_new(temporary, path)
        elif self._is_same(entry):
            self._disk.remove(temporary)  # a crash left both names
        else:
            error = StorageError(
                "another file has this name: the original cannot be put back", path=path,
                hint=f"the original is {temporary}: move the other file away, then `duramen repair --undo`",
            )  # fmt: skip
            error.errno = errno.EEXIST
            raise error

    def _is_same(self, entry: RepairEntry) -> bool:
        if not self._is_file(entry.path):
            return False
        data = self._disk.map(self._full(entry.path)).data
        return len(data) == entry.size_bytes and kernel.crc32c(data) == entry.crc32c

    # --- contents

    def _put_back(self, entry: RepairEntry) -> None:
        path, saved = self._full(entry.path), self._full(entry.saved)
        if entry.was == FileBefore.ABSENT:
            self._remove_made(entry)
        elif entry.was == FileBefore.FILE:
            if self._disk.kind(saved) == Kind.FILE:  # otherwise it is already restored
                self._disk.replace(saved, path)
        else:
            _write_tail(self._disk, path, entry, self._disk.map(saved).data)
        stale = f"{path}.new"
        if posixpath.dirname(entry.path) == DIRECTORY and self._disk.kind(stale) == Kind.FILE:
            self._disk.remove(stale)

    def _remove_made(self, entry: RepairEntry) -> None:
        """Remove a file that the repair created where none was. If it may not be the repair's, move it into the
        quarantine."""
        is_original = any(e.path == entry.path and not self._is_file(temporary_of(e)) for e in self._moved)
        if is_original or not self._is_file(entry.path):
            return
        if self._made is not None:
            if entry.path in self._made:
                self._disk.remove(self._full(entry.path))
        elif self._journal.after:
            self._disk.remove(self._full(entry.path))
        else:
            self._disk.rename_new(self._full(entry.path), self._free_name(entry.path))

    def _free_name(self, path: str) -> str:
        number = 0
        while True:
            name = self._full(posixpath.join(self._journal.directory, f"made-{number}_{path.replace('/', '_')}"))
            if self._disk.kind(name) == Kind.MISSING:
                return name
            number += 1


def temporary_of(entry: RepairEntry) -> str:
    """Return the temporary name of a file between its old and its new one."""
    return entry.temporary or f"{entry.path}.moving"


def _write_tail(disk: Disk, path: str, entry: RepairEntry, tail: memoryview) -> None:
    file = open_private(disk, path)
    try:
        write_all(file, entry.position, tail)
        file.truncate(entry.size_bytes)
        file.sync()
    finally:
        file.close()


def cut_file(disk: Disk, path: str, size_bytes: int) -> None:
    file = open_private(disk, path)
    try:
        file.truncate(size_bytes)
        file.sync()
    finally:
        file.close()


def remove_copies(disk: Disk, directory: str, names: Iterable[str] | None = None) -> None:
    """Remove copies in a directory, all or those named: every original is in its place."""
    if disk.kind(directory) != Kind.DIRECTORY:
        return
    held = {name for name, _ in disk.list(directory)}
    gone = held if names is None else held.intersection(names)
    for name in sorted(gone):
        disk.remove(posixpath.join(directory, name))
    if gone == held:
        disk.remove_directory(directory)
    disk.sync_directory(posixpath.dirname(directory))
