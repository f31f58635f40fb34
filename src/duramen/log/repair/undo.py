"""Undo the last repair: restore what it changed, byte for byte.

Also finishes a repair or an undo that was interrupted: each step skips what is already restored. An undo is refused if
the log has changed since the repair, unless forced; then the new contents are copied into the quarantine first.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from dataclasses import dataclass, field

from duramen import kernel
from duramen.disk import Disk, Kind
from duramen.errors import CorruptionError, UsageError
from duramen.formats import Format
from duramen.log.repair.apply import log_files
from duramen.log.repair.restore import put_back, remove_copies
from duramen.log.segments import list_log
from duramen.log.verify import counted
from duramen.sidecar import FileBefore, RepairEntry, RepairJournal, RepairState, create_file, read_repair_journal


@dataclass
class Undone:
    """What an undo restores, or has restored."""

    path: str
    restored: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    """What was added since the repair and is removed, as text."""
    applied: bool = False


def last_repair(disk: Disk, root: str) -> RepairJournal:
    """Return the journal of the last repair; raise if no repair can be undone."""
    journal = read_repair_journal(disk, root)
    if journal is None or journal.state == RepairState.UNDONE:
        what = "this log was never repaired" if journal is None else "the last repair is already undone"
        raise UsageError(what, path=root, hint="there is nothing to undo")
    return journal


def plan_undo(disk: Disk, root: str, fmt: Format, journal: RepairJournal) -> Undone:
    """Return what the undo would do. Raises if a copy is missing or damaged."""
    undone = Undone(root)
    undone.restored = [entry.path for entry in journal.entries if entry.was != FileBefore.ABSENT]
    undone.removed = [
        entry.path
        for entry in journal.entries
        if entry.was == FileBefore.ABSENT
        and entry.path not in undone.restored
        and disk.kind(posixpath.join(root, entry.path)) == Kind.FILE
    ]
    if journal.state == RepairState.DONE:
        for entry in journal.entries:
            _check_copy(disk, root, entry)
        undone.dropped = list(_changes(disk, root, fmt, journal))
    return undone


def _check_copy(disk: Disk, root: str, entry: RepairEntry) -> None:
    if entry.was == FileBefore.NAMED and disk.kind(posixpath.join(root, entry.target)) != Kind.FILE:
        raise CorruptionError(
            "the file that the repair gave this name is missing", path=posixpath.join(root, entry.target),
            hint=f"restore it from a copy: the undo renames it to {entry.path}; nothing was changed",
        )  # fmt: skip
    if not entry.saved:
        return
    path = posixpath.join(root, entry.saved)
    if disk.kind(path) != Kind.FILE or kernel.crc32c(disk.map(path).data) != entry.crc32c:
        raise CorruptionError(
            "the copy that an undo needs is missing or changed", path=path, hint="nothing was changed"
        )


def _changes(disk: Disk, root: str, fmt: Format, journal: RepairJournal) -> list[str]:
    """Return how the files differ from the repaired log."""
    now = dict(log_files(disk, root, fmt, [path for path, (_, crc) in journal.after.items() if crc]))
    found = []
    for path, (size, crc) in now.items():
        if path not in journal.after:
            found.append(f"{path} is new")
        elif journal.after[path] != [size, crc]:
            more = size - journal.after[path][0]
            found.append(f"{path} has {counted(more, 'byte')} more" if more > 0 else f"{path} has changed")
    found += [f"{path} is missing" for path in journal.after if path not in now]
    return found


def undo(
    disk: Disk, root: str, fmt: Format, journal: RepairJournal, undone: Undone, check: Callable[[], None] = lambda: None
) -> Undone:
    """Restore everything. The caller holds the writer's lock, and the user has accepted `Undone.dropped`.

    ``check`` may raise until the first file changes."""
    check()
    if undone.dropped:
        journal.cut = _grown(disk, root, fmt, journal)
        journal.dropped = _save_additions(disk, root, fmt, journal, check)
    put_back(disk, root, journal)
    undone.applied = True
    return undone


def _touched(journal: RepairJournal) -> set[str]:
    return {entry.path for entry in journal.entries} | {entry.target for entry in journal.entries}


def _grown(disk: Disk, root: str, fmt: Format, journal: RepairJournal) -> list[str]:
    """Return the segments and indexes that the repair did not change and that have grown since."""
    segments = list_log(disk, root, fmt).segments
    files = [file for one in segments for file in (one.segment, *one.derived.values())]
    known = {path: size_bytes for path, (size_bytes, _) in journal.after.items() if path not in _touched(journal)}
    return [file.path for file in files if file.size_bytes > known.get(file.path, file.size_bytes)]


def _save_additions(disk: Disk, root: str, fmt: Format, journal: RepairJournal, check: Callable[[], None]) -> list[str]:
    """Copy the files as they are now; of those that the undo only cuts, the bytes that it removes. Returns those that
    were added since the repair: the undo removes them after it has written the journal. Files whose path gets its old
    file back are not among them, so that an undo that runs again does not remove what it has restored."""
    full = posixpath.join(root, posixpath.dirname(journal.directory), f"undo-{journal.number}")
    disk.make_directory(full)
    disk.sync_directory(posixpath.dirname(full))
    touched = _touched(journal)
    now = [path for path, _ in log_files(disk, root, fmt, ())]
    copies = {
        path: posixpath.join(full, path.replace("/", "_"))
        for path in now
        if path not in journal.after or path in touched
    }
    copies |= {path: posixpath.join(full, f"{path.replace('/', '_')}@{journal.after[path][0]}") for path in journal.cut}
    try:
        for path, copy in copies.items():
            check()
            start = journal.after[path][0] if path in journal.cut else 0
            create_file(disk, copy, disk.map(posixpath.join(root, path)).data[start:])
        disk.sync_directory(full)
        check()
    except BaseException:
        # Only these: the directory may hold files of an earlier undo that was killed.
        remove_copies(disk, full, map(posixpath.basename, copies.values()))
        raise
    replaced = {entry.path for entry in journal.entries if entry.was != FileBefore.NAMED}
    return [path for path in copies if path not in journal.after and path not in replaced]
