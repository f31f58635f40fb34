"""How far a log is compacted, and how far retention has come: ``.duramen/compaction.json``.

Offsets may be missing below what was compacted, and that is no loss to a reader; below what was retained, it is."""

from __future__ import annotations

import json
import posixpath
from typing import NamedTuple

from duramen.disk import Disk
from duramen.disk.base import Kind
from duramen.log.sidecar import DIRECTORY

PATH = posixpath.join(DIRECTORY, "compaction.json")


class State(NamedTuple):
    """``cleaned_until`` is behind the last offset of the last compaction that was finished, ``begun_until`` of the last
    that was begun. ``retained_until`` is where the log began after the last retention."""

    cleaned_until: int = 0
    begun_until: int = 0
    at_us: int = 0
    retained_until: int = 0

    def encode(self) -> bytes:
        return json.dumps(self._asdict()).encode() + b"\n"


def read_state(disk: Disk, root: str) -> State:
    """What is known; nothing, where the file is missing or cannot be read."""
    path = posixpath.join(root, PATH)
    if disk.kind(path) != Kind.FILE:
        return State()
    try:
        tree = json.loads(bytes(disk.map(path).data))
        retained_until = int(tree.get("retained_until", 0))
        return State(int(tree["cleaned_until"]), int(tree["begun_until"]), int(tree["at_us"]), retained_until)
    except (ValueError, KeyError, TypeError):
        return State()
