"""The way back: what the last repair changed, as it was, byte for byte.

Also for a repair that was stopped half-way, and for an undo that was: each step leaves alone what is back already.
Refuses where the log has changed since, unless told to; then what came since is copied aside first, too.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from dataclasses import dataclass, field

from duramen import kernel
from duramen.disk import Disk
from duramen.disk.base import Kind, write_all
from duramen.errors import CorruptionError, UsageError
from duramen.formats import Format
from duramen.log.journal import Entry, Journal, State, Was, read_journal
from duramen.log.repair.apply import log_files
from duramen.log.repair.restore import put_back, remove_copies
from duramen.log.report import counted


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


def undo(
    disk: Disk, root: str, fmt: Format, journal: Journal, undone: Undone, check: Callable[[], None] = lambda: None
) -> Undone:
    """Put everything back. Whoever calls holds the writer's lock, and has shown `Undone.dropped` to somebody.

    ``check`` may raise as long as nothing has changed."""
    check()
    if undone.dropped:
        journal.dropped = _keep_what_came_since(disk, root, fmt, journal, check)
    put_back(disk, root, journal)
    undone.applied = True
    return undone


def _keep_what_came_since(disk: Disk, root: str, fmt: Format, journal: Journal, check: Callable[[], None]) -> list[str]:
    """Copies of the files as they are now. Answers those that came since, and are to go once the journal says so. Those
    in the place of a file that comes back anyway are not among them: an undo that is begun again must not take what
    has come back."""
    full = posixpath.join(root, posixpath.dirname(journal.directory), f"undo-{journal.number}")
    disk.make_directory(full)
    disk.sync_directory(posixpath.dirname(full))
    touched = {entry.path for entry in journal.entries} | {entry.target for entry in journal.entries}
    now = [path for path, _ in log_files(disk, root, fmt, ())]
    copies = {
        path: posixpath.join(full, path.replace("/", "_"))
        for path in now
        if path not in journal.after or path in touched
    }
    try:
        for path, copy in copies.items():
            check()
            _copy(disk, posixpath.join(root, path), copy)
        disk.sync_directory(full)
        check()
    except BaseException:
        # Only these: beside them may be what an earlier undo took away before it was killed.
        remove_copies(disk, full, map(posixpath.basename, copies.values()))
        raise
    replaced = {entry.path for entry in journal.entries if entry.was != Was.NAMED}
    return [path for path in copies if path not in journal.after and path not in replaced]


def _copy(disk: Disk, source: str, target: str) -> None:
    if disk.kind(target) == Kind.FILE:
        disk.remove(target)
    file = disk.create(target)
    try:
        write_all(file, 0, disk.map(source).data)
        file.sync()
    finally:
        file.close()
