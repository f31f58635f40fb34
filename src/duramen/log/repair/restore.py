"""Putting the files of a log back as a journal says they were: for an undo, and for a repair that was stopped.

Every step leaves alone what is back already, so it can be stopped and begun again at any point. Judges nothing, and
asks nobody: whoever calls holds the writer's lock and knows that this is wanted.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable

from duramen.disk import Disk
from duramen.disk.base import Kind, write_all
from duramen.log.journal import Entry, Journal, State, Was, write_journal
from duramen.log.sidecar import DIRECTORY


def put_back(disk: Disk, root: str, journal: Journal) -> None:
    """Every file as it was before the repair. Can be stopped and begun again at any point."""
    journal.state = State.ACTING
    write_journal(disk, root, journal)
    _drop(disk, root, journal)
    for entry in reversed(journal.entries):
        _put_back(disk, root, entry)
        leftover = posixpath.join(root, entry.path + ".new")
        if posixpath.dirname(entry.path) == DIRECTORY and disk.kind(leftover) == Kind.FILE:
            disk.remove(leftover)
    directories = {posixpath.dirname(posixpath.join(root, entry.path)) for entry in journal.entries}
    directories |= {posixpath.dirname(posixpath.join(root, path)) for path in journal.dropped}
    directories |= {posixpath.join(root, journal.directory)}
    for directory in sorted(directories):
        if disk.kind(directory) == Kind.DIRECTORY:
            disk.sync_directory(directory)
    journal.state = State.UNDONE
    write_journal(disk, root, journal)


def _drop(disk: Disk, root: str, journal: Journal) -> None:
    """Files that came since out of the way, but for one in whose place an earlier attempt has put the original."""
    back = {
        entry.path
        for entry in journal.entries
        if entry.was == Was.NAMED and disk.kind(posixpath.join(root, entry.target)) != Kind.FILE
    }
    for path in journal.dropped:
        if path not in back and disk.kind(posixpath.join(root, path)) == Kind.FILE:
            disk.remove(posixpath.join(root, path))


def _put_back(disk: Disk, root: str, entry: Entry) -> None:
    path, saved = posixpath.join(root, entry.path), posixpath.join(root, entry.saved)
    if entry.was == Was.ABSENT:
        if disk.kind(path) == Kind.FILE:
            disk.remove(path)
    elif entry.was == Was.NAMED:
        target = posixpath.join(root, entry.target)
        if disk.kind(target) == Kind.FILE and disk.kind(path) == Kind.MISSING:
            disk.replace(target, path)
            disk.sync_directory(posixpath.dirname(target))
    elif entry.was == Was.FILE:
        if disk.kind(saved) == Kind.FILE:  # otherwise it is back already
            disk.replace(saved, path)
    else:
        file = disk.open(path)
        try:
            write_all(file, entry.position, disk.map(saved).data)
            file.truncate(entry.size_bytes)
            file.sync()
        finally:
            file.close()


def remove_copies(disk: Disk, directory: str, names: Iterable[str] | None = None) -> None:
    """Copies that are not needed, as every original is in its place: all in a directory, or some."""
    if disk.kind(directory) != Kind.DIRECTORY:
        return
    held = {name for name, _ in disk.list(directory)}
    gone = held if names is None else held.intersection(names)
    for name in sorted(gone):
        disk.remove(posixpath.join(directory, name))
    if gone == held:
        disk.remove_directory(directory)
    disk.sync_directory(posixpath.dirname(directory))
