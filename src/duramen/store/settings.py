"""Settings of a topic: format, options and number of partitions, in ``.duramen/topic.json``.

The file is replaced atomically. Topics of other programs have none, and get one when duramen changes the topic. A
damaged file raises: a wrong number of partitions would send keys to other partitions than before.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from duramen.disk import Disk
from duramen.errors import CorruptionError, UnknownVersionError
from duramen.sidecar import SMALL_BYTES, parse_json, read_state_file, replace_file
from duramen.store.names import MAX_PARTITIONS

VERSION = 1


@dataclass(frozen=True)
class Settings:
    """Settings of a topic. ``options`` belong to the format."""

    format: str
    partitions: int
    options: Mapping[str, Any] = field(default_factory=dict)
    created_ms: int = 0


def read_settings(disk: Disk, path: str) -> Settings | None:
    """Read the settings file at ``path``; None if it is missing."""
    hint = "restore it, or delete it: the number of partitions is then counted from the directories"
    topic = posixpath.dirname(posixpath.dirname(path))
    raw = read_state_file(disk.within(topic), path, SMALL_BYTES)
    if raw is None:
        return None
    try:
        tree = parse_json(raw)
        version = tree["duramen"]
        if version != VERSION:
            raise UnknownVersionError(f"unknown version {version!r} of a topic's settings", path=path)
        settings = Settings(
            str(tree["format"]), int(tree["partitions"]), dict(tree["options"]), int(tree["created_ms"])
        )
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptionError(f"the topic's settings cannot be read: {error!r}", path=path, hint=hint) from error
    if not 1 <= settings.partitions <= MAX_PARTITIONS:
        raise CorruptionError(
            f"partitions must be 1 to {MAX_PARTITIONS} (found {settings.partitions})",
            path=path,
            hint=hint,
        )
    return settings


def write_settings(disk: Disk, path: str, settings: Settings) -> None:
    """Replace the settings durably."""
    tree = {
        "duramen": VERSION,
        "format": settings.format,
        "partitions": settings.partitions,
        "options": dict(settings.options),
        "created_ms": settings.created_ms,
    }
    replace_file(disk, path, json.dumps(tree, indent=2, sort_keys=True).encode() + b"\n")
