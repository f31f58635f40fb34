"""What is remembered of a topic: format, options and number of partitions, in a small JSON file beside its partitions.

The file is replaced as a whole, so a crash leaves the old one or the new one. A tree that another program made has
none, and is left without one for as long as nobody changes the topic itself. A damaged one raises: guessing the number
of partitions would send keys to other partitions than before.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from duramen.disk import Disk
from duramen.disk.base import Kind
from duramen.errors import CorruptionError, UnknownVersionError
from duramen.log.sidecar import replace_file
from duramen.store.names import MAX_PARTITIONS

VERSION = 1
MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class Settings:
    """A topic's settings. ``options`` are its format's."""

    format: str
    partitions: int
    options: Mapping[str, Any] = field(default_factory=dict)
    created_ms: int = 0


def read_settings(disk: Disk, path: str) -> Settings | None:
    """The settings in the file at ``path``; None where there is none."""
    if disk.kind(path) != Kind.FILE:
        return None
    raw = disk.map(path).data
    hint = "restore it, or delete it: the number of partitions is then told from their directories"
    if len(raw) > MAX_BYTES:
        raise CorruptionError(f"the settings have {len(raw)} bytes, more than any topic's", path=path, hint=hint)
    try:
        tree = json.loads(bytes(raw))
        version = tree["duramen"]
        if version != VERSION:
            raise UnknownVersionError(f"unknown version {version!r} of a topic's settings", path=path)
        settings = Settings(
            str(tree["format"]), int(tree["partitions"]), dict(tree["options"]), int(tree["created_ms"])
        )
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptionError(f"the topic's settings cannot be read: {error!r}", path=path, hint=hint) from error
    if not 1 <= settings.partitions <= MAX_PARTITIONS:
        raise CorruptionError(f"the settings say {settings.partitions} partitions", path=path, hint=hint)
    return settings


def write_settings(disk: Disk, path: str, settings: Settings) -> None:
    """Replace the settings; they are on the disk when this returns."""
    tree = {
        "duramen": VERSION,
        "format": settings.format,
        "partitions": settings.partitions,
        "options": dict(settings.options),
        "created_ms": settings.created_ms,
    }
    replace_file(disk, path, json.dumps(tree, indent=2, sort_keys=True).encode() + b"\n")
