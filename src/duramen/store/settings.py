"""Settings of a topic: format, options, partitions, retention and compaction, in ``.duramen/topic.json``.

The file is replaced atomically. Topics of other programs have none, and get one when duramen changes the topic. A
damaged file raises: a wrong number of partitions would send keys to other partitions than before.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from duramen.disk import Disk
from duramen.errors import CorruptionError, UnknownVersionError, UsageError
from duramen.log import Compaction, Retention
from duramen.sidecar import SMALL_BYTES, parse_json, read_state_file, replace_file
from duramen.store.names import MAX_PARTITIONS

VERSION = 1
_OF_THE_PROCESS = ("memory_bytes", "spill")
"""Settings of a compaction that belong to the process that runs it, not to the topic."""


@dataclass(frozen=True)
class Settings:
    """Settings of a topic. ``options`` belong to the format."""

    format: str
    partitions: int
    options: Mapping[str, Any] = field(default_factory=dict)
    created_ms: int = 0
    retention: Retention | None = None
    compaction: Compaction | None = None

    def __post_init__(self) -> None:
        if self.retention is not None and not isinstance(self.retention, Retention):
            raise UsageError(f"retention must be a duramen.Retention (got {self.retention!r})")
        if self.compaction is not None and not isinstance(self.compaction, Compaction):
            raise UsageError(f"compaction must be a duramen.Compaction (got {self.compaction!r})")
        if self.compaction is not None and not isinstance(self.compaction.key, str):
            raise UsageError("the compaction of a topic needs a key by name: a function cannot be stored")


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
            str(tree["format"]), int(tree["partitions"]), dict(tree["options"]), int(tree["created_ms"]),
            Retention(**tree["retention"]) if tree.get("retention") else None,
            Compaction(**tree["compaction"]) if tree.get("compaction") else None,
        )  # fmt: skip
    except (ValueError, KeyError, TypeError, UsageError) as error:
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
    if settings.retention is not None:
        tree["retention"] = asdict(settings.retention)
    if settings.compaction is not None:
        how = asdict(settings.compaction)
        tree["compaction"] = {name: value for name, value in how.items() if name not in _OF_THE_PROCESS}
    replace_file(disk, path, json.dumps(tree, indent=2, sort_keys=True).encode() + b"\n")
