"""What a converted log remembers of the logs it was made from: ``.duramen/origin.json``.

A format has no place for where another one's segments began, when they were made and with which options. Kept beside
the records, it lets a conversion back give the same files again. Derived, like all of the sidecar: without it the way
back keeps every record and may cut segments elsewhere.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from duramen.disk import Disk
from duramen.disk.base import Kind
from duramen.log.sidecar import DIRECTORY, VERSION

PATH = posixpath.join(DIRECTORY, "origin.json")


class Boundary(NamedTuple):
    """Where a segment begins: its base, its first record (None: it is empty), and when it was made."""

    base: int
    first_offset: int | None
    created_ms: int


@dataclass(frozen=True)
class Origin:
    """A log of one format, as it was when it was converted."""

    options: Mapping[str, Any]
    next_offset: int
    segments: tuple[Boundary, ...]


def read(disk: Disk, root: str) -> dict[str, Origin]:
    """By format. Empty where there is none, or none that can be read: nothing depends on it."""
    path = posixpath.join(root, PATH)
    if disk.kind(path) != Kind.FILE:
        return {}
    try:
        tree = json.loads(bytes(disk.map(path).data))
        if tree["duramen"] != VERSION:
            return {}
        return {
            str(name): Origin(
                dict(entry["options"]),
                int(entry["next_offset"]),
                tuple(Boundary(int(b), None if f is None else int(f), int(c)) for b, f, c in entry["segments"]),
            )
            for name, entry in tree["origins"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def encode(origins: Mapping[str, Origin]) -> bytes:
    tree = {"duramen": VERSION, "origins": {name: asdict(origin) for name, origin in origins.items()}}
    return json.dumps(tree, sort_keys=True).encode() + b"\n"
