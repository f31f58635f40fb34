"""The way back: what the last repair changed, as it was, byte for byte.

Also for a repair that was stopped half-way, and for an undo that was: each step leaves alone what is back already.
Refuses where the log has changed since, unless told to; then what came since is copied aside first, too.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, field

from duramen import kernel
from duramen.disk import Disk
from duramen.disk.base import Kind, write_all
from duramen.errors import CorruptionError, UsageError
from duramen.formats import Format
from duramen.log.journal import Entry, Journal, State, Was, read_journal, write_journal
from duramen.log.repair.apply import log_files
from duramen.log.report import counted
from duramen.log.sidecar import DIRECTORY


@dataclass
class Undone:
    """What an undo puts back, or has put back."""

    path: str
    restored: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    """What came since the repair and goes, in words."""
    applied: bool = False


def last_repair(disk: Disk, root: str) -> Journal:
    """The journal of a repair that can be taken back; raises where there is none."""
    journal = read_journal(disk, root)
    if journal is None or journal.state == State.UNDONE:
        what = "no repair of this log is known" if journal is None else "the last repair is undone already"
        raise UsageError(what, path=root, hint="there is nothing to undo")
    return journal


def plan_undo(disk: Disk, root: str, fmt: Format, journal: Journal) -> Undone:
    """What the undo would do. Raises where a copy is gone."""
    undone = Undone(root)
    for entry in journal.entries:
        if entry.was == Was.ABSENT:
            if disk.kind(posixpath.join(root, entry.path)) == Kind.FILE:
                undone.removed.append(entry.path)
        else:
            undone.restored.append(entry.path)
    if journal.state == State.DONE:
        for entry in journal.entries:
            _check_copy(disk, root, entry)
        undone.dropped = list(_changes(disk, root, fmt, journal))
    return undone


def _check_copy(disk: Disk, root: str, entry: Entry) -> None:
    if not entry.saved:
        return
    path = posixpath.join(root, entry.saved)
    if disk.kind(path) != Kind.FILE or kernel.crc32c(disk.map(path).data) != entry.crc32c:
        raise CorruptionError("the copy that an undo needs is gone or changed", path=path, hint="nothing was changed")


def _changes(disk: Disk, root: str, fmt: Format, journal: Journal) -> list[str]:
    """How the files differ from what the repair left."""
    now = dict(log_files(disk, root, fmt, [path for path, (_, crc) in journal.after.items() if crc]))
    found = []
    for path, (size, crc) in now.items():
        if path not in journal.after:
            found.append(f"{path} is new")
        elif journal.after[path] != [size, crc]:
            more = size - journal.after[path][0]
            found.append(f"{path} has {counted(more, 'byte')} more" if more > 0 else f"{path} has changed")
    found += [f"{path} is gone" for path in journal.after if path not in now]
    return found


def undo(disk: Disk, root: str, fmt: Format, journal: Journal, undone: Undone) -> Undone:
    """Put everything back. Whoever calls holds the writer's lock, and has shown `Undone.dropped` to somebody."""
    if undone.dropped:
        _keep_what_came_since(disk, root, fmt, journal)
    put_back(disk, root, journal)
    undone.applied = True
    return undone


def _keep_what_came_since(disk: Disk, root: str, fmt: Format, journal: Journal) -> None:
    """Copies of the files as they are now, and segments that came since out of the way."""
    directory = posixpath.join(posixpath.dirname(journal.directory), f"undo-{journal.number}")
    full = posixpath.join(root, directory)
    disk.make_directory(full)
    disk.sync_directory(posixpath.dirname(full))
    touched = {entry.path for entry in journal.entries} | {entry.target for entry in journal.entries}
    for path, _ in list(log_files(disk, root, fmt, ())):
        is_new = path not in journal.after
        if not is_new and path not in touched:
            continue
        _copy(disk, posixpath.join(root, path), posixpath.join(full, path.replace("/", "_")))
        if is_new:
            disk.remove(posixpath.join(root, path))
            disk.sync_directory(posixpath.dirname(posixpath.join(root, path)))
    disk.sync_directory(full)


def _copy(disk: Disk, source: str, target: str) -> None:
    if disk.kind(target) == Kind.FILE:
        disk.remove(target)
    file = disk.create(target)
    try:
        write_all(file, 0, disk.map(source).data)
        file.sync()
    finally:
        file.close()


def put_back(disk: Disk, root: str, journal: Journal) -> None:
    """Every file as it was before the repair. Can be stopped and begun again at any point."""
    journal.state = State.ACTING
    write_journal(disk, root, journal)
    for entry in reversed(journal.entries):
        _put_back(disk, root, entry)
        leftover = posixpath.join(root, entry.path + ".new")
        if posixpath.dirname(entry.path) == DIRECTORY and disk.kind(leftover) == Kind.FILE:
            disk.remove(leftover)
    directories = {posixpath.dirname(posixpath.join(root, entry.path)) for entry in journal.entries}
    directories |= {posixpath.join(root, journal.directory)}
    for directory in sorted(directories):
        if disk.kind(directory) == Kind.DIRECTORY:
            disk.sync_directory(directory)
    journal.state = State.UNDONE
    write_journal(disk, root, journal)


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
