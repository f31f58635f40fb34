"""The journal of the last repair, ``.duramen/repair.json``: what it changed, and where the originals are.

It is written before the first change and says of every file that changes how it was: whole, as a tail, under another
name, or not there at all. So a repair that was stopped half-way can be taken back, whatever it had done by then, and so
can one that is done. Only says and remembers; `repair` acts.
"""

from __future__ import annotations

import json
import posixpath
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from duramen import kernel
from duramen.disk import Disk
from duramen.disk.base import Kind, map_if_there
from duramen.errors import CorruptionError
from duramen.log.sidecar import DIRECTORY, VERSION, replace_file

NAME = posixpath.join(DIRECTORY, "repair.json")


class State(StrEnum):
    ACTING = "acting"
    """Files are being changed, or put back: the log is in between."""
    DONE = "done"
    UNDONE = "undone"


class Was(StrEnum):
    """How a file was before the repair."""

    FILE = "file"
    TAIL = "tail"
    ABSENT = "absent"
    NAMED = "named"


@dataclass(frozen=True)
class Entry:
    """One file that the repair changes. Paths are relative to the log's directory."""

    path: str
    was: Was
    size_bytes: int = 0
    saved: str = ""
    """Where the copy is."""
    position: int = 0
    """Where a tail starts; what lies before it did not change."""
    target: str = ""
    """The name that the file gets."""
    crc32c: int = 0
    """Of the copy."""


@dataclass
class Journal:
    state: State
    number: int
    directory: str
    """Where the copies are, relative to the log's directory."""
    when_ms: int
    entries: list[Entry] = field(default_factory=list)
    after: dict[str, list[int]] = field(default_factory=dict)
    """The files of the log once the repair was done: size and, of those that changed, CRC-32C."""
    made: bool = False
    """Whether the sidecar was made by this repair."""
    dropped: list[str] = field(default_factory=list)
    """Files that came since the repair and go with its undo; copies of them are in the quarantine."""

    def encode(self) -> bytes:
        body = json.dumps({"duramen": VERSION, **asdict(self)}, indent=1).encode()
        return body + b"\n%08x\n" % kernel.crc32c(body)


def read_journal(disk: Disk, root: str) -> Journal | None:
    """The journal of the last repair; None where there was none."""
    path = posixpath.join(root, NAME)
    raw = map_if_there(disk, path) if disk.kind(root) == Kind.DIRECTORY else None
    if raw is None:
        return None
    body, _, crc = bytes(raw).rstrip(b"\n").rpartition(b"\n")
    try:
        if crc != b"%08x" % kernel.crc32c(body):
            raise ValueError("checksum mismatch")
        tree: dict[str, Any] = json.loads(body)
        if tree.pop("duramen") != VERSION:
            raise ValueError("unknown version")
        tree["state"] = State(tree["state"])
        tree["entries"] = [Entry(**{**entry, "was": Was(entry["was"])}) for entry in tree["entries"]]
        return Journal(**tree)
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptionError(
            f"the journal of the last repair cannot be read: {error}", path=path,
            hint="the copies are in .duramen/quarantine; delete the journal to leave the log as it is",
        ) from error  # fmt: skip


def write_journal(disk: Disk, root: str, journal: Journal) -> None:
    """On the disk when this returns; a crash leaves the old one or the new one."""
    replace_file(disk, posixpath.join(root, NAME), journal.encode())


def remove_journal(disk: Disk, root: str) -> None:
    """No repair is known any more."""
    path = posixpath.join(root, NAME)
    disk.remove(path)
    disk.sync_directory(posixpath.dirname(path))


def refuse_unfinished(disk: Disk, root: str) -> None:
    """Raise where a repair was stopped half-way: nothing may be built on a log in between."""
    journal = read_journal(disk, root)
    if journal is not None and journal.state == State.ACTING:
        raise CorruptionError(
            "a repair of this log was stopped half-way", path=root,
            hint="`duramen repair --apply` finishes it, `duramen repair --undo` takes it back",
        )  # fmt: skip
