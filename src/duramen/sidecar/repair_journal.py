"""The journal of the last repair, ``.duramen/repair.json``: what it changed, and where the originals are.

Repair writes it before the first change. For every file that changes it says what the file was: whole, a tail, under
another name, or missing. So a repair can be undone, whether it finished or was interrupted. Files that change names go
through temporary names; ``stage`` says which two names each of them may have. This module only records; `repair` acts.
"""

from __future__ import annotations

import posixpath
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from duramen.disk import Disk, Kind
from duramen.errors import CorruptionError
from duramen.sidecar.json_file import JsonFile, inside_log
from duramen.sidecar.layout import REPAIR_JOURNAL_NAME, sidecar_path

_JOURNAL = JsonFile(
    "the journal of the last repair",
    "the copies are in .duramen/quarantine; delete the journal to leave the log as it is",
    separator=b"\n",
    indent=1,
    sort_keys=False,
)


class RepairState(StrEnum):
    ACTING = "acting"
    """Files are being changed or restored."""
    DONE = "done"
    UNDONE = "undone"


class RepairStage(StrEnum):
    """Which names the renamed files may have."""

    OUT = "out"
    """Each has its old name or its temporary one; nothing else has changed."""
    IN = "in"
    """Each has its temporary name or its new one."""


class FileBefore(StrEnum):
    """What a file was before the repair."""

    FILE = "file"
    TAIL = "tail"
    ABSENT = "absent"
    NAMED = "named"


@dataclass(frozen=True)
class RepairEntry:
    """One file that the repair changes. Paths are relative to the log's directory."""

    path: str
    was: FileBefore
    size_bytes: int = 0
    saved: str = ""
    """Where the copy is."""
    position: int = 0
    """Where the tail starts; the bytes before it did not change."""
    target: str = ""
    """The new name of the file."""
    crc32c: int = 0
    """Of the copy, or of the renamed file."""
    temporary: str = ""
    """The name of the file between the old one and the new one."""


@dataclass
class RepairJournal:
    """The state of a repair, and everything that undoing it needs."""

    state: RepairState
    number: int
    directory: str
    """Where the copies are, relative to the log's directory."""
    when_ms: int
    entries: list[RepairEntry] = field(default_factory=list)
    after: dict[str, list[int]] = field(default_factory=dict)
    """The files of the log after the repair: size and, for those that changed, CRC-32C."""
    made: bool = False
    """Whether this repair created the sidecar."""
    dropped: list[str] = field(default_factory=list)
    """Files that were created after the repair and that its undo removes; the quarantine has copies."""
    cut: list[str] = field(default_factory=list)
    """Files that the repair did not change and that have grown since: the undo cuts them to their size in `after`."""
    stage: RepairStage = RepairStage.IN
    format: str = ""
    """Format of the log: while its segments have temporary names, it cannot be detected."""

    @classmethod
    def parse(cls, tree: dict[str, Any]) -> RepairJournal:
        tree["state"] = RepairState(tree["state"])
        tree["stage"] = RepairStage(tree.get("stage", RepairStage.IN))
        tree["entries"] = [RepairEntry(**{**entry, "was": FileBefore(entry["was"])}) for entry in tree["entries"]]
        _check_paths(journal := cls(**tree))
        return journal


def read_repair_journal(disk: Disk, root: str) -> RepairJournal | None:
    """The journal of the last repair; None if there was none."""
    if disk.kind(root) != Kind.DIRECTORY:
        return None
    return _JOURNAL.read(disk, sidecar_path(root, REPAIR_JOURNAL_NAME), RepairJournal.parse)


def _check_paths(journal: RepairJournal) -> None:
    """Raise `ValueError` if the journal names files outside of the log, or impossible numbers."""
    paths = [journal.directory, *journal.after, *journal.dropped]
    if not journal.after.keys() >= set(journal.cut):
        raise ValueError("a file that is to be cut has no size")
    for entry in journal.entries:
        paths += [path for path in (entry.path, entry.saved, entry.target, entry.temporary) if path]
        if min(entry.size_bytes, entry.position, entry.crc32c) < 0:
            raise ValueError(f"{entry.path} has a negative number")
    for path in paths:
        inside_log(path)
    for size, crc in journal.after.values():
        if size < 0 or crc < 0:
            raise ValueError("the size or checksum of a file is negative")
    if journal.number < 0 or journal.when_ms < 0:
        raise ValueError("the number or time of the repair is negative")


def write_repair_journal(disk: Disk, root: str, journal: RepairJournal) -> None:
    """Replace the journal atomically and durably."""
    _JOURNAL.replace(disk, sidecar_path(root, REPAIR_JOURNAL_NAME), asdict(journal))


def remove_repair_journal(disk: Disk, root: str) -> None:
    """Remove the journal, durably."""
    path = sidecar_path(root, REPAIR_JOURNAL_NAME)
    disk.remove(path)
    disk.sync_directory(posixpath.dirname(path))


def refuse_unfinished_repair(disk: Disk, root: str) -> None:
    """Raise `CorruptionError` if a repair of the log was interrupted."""
    journal = read_repair_journal(disk, root)
    if journal is not None and journal.state == RepairState.ACTING:
        raise CorruptionError(
            "a repair of this log was stopped half-way", path=root,
            hint="`duramen repair --apply` finishes it, `duramen repair --undo` undoes it",
        )  # fmt: skip
