"""Every entry of ``.duramen/``, and the configuration of the log.

`FILES` is the inventory: the name, the writer, the readers, whether a write is synced, whether a user may delete the
entry, and what happens if it is missing. All code takes the names from here. The records of a log never depend on
these files: a log without its sidecar can be read, verified and opened for append.

While an entry is replaced, a temporary file with the suffix `TEMPORARY` may exist next to it.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from duramen.disk import Disk, Kind
from duramen.errors import CorruptionError, StorageError
from duramen.sidecar.json_file import SMALL_BYTES, TEMPORARY, JsonFile

DIRECTORY = ".duramen"

CONFIG_NAME = "log.json"
LOCK_NAME = "lock"
WATERMARK_NAME = "watermark"
SEALED_NAME = "sealed.jsonl"
CLEAN_CLOSE_NAME = "closed.json"
FILE_SWAP_NAME = "change.json"
TX_MARKER_NAME = "pending.json"
TX_INTENT_NAME = "transaction.json"
TX_LOCK_NAME = "transaction.lock"
REPAIR_JOURNAL_NAME = "repair.json"
LOSSES_NAME = "losses.json"
COMPACTION_NAME = "compaction.json"
METRICS_NAME = "metrics.json"
VERIFIED_NAME = "verified.json"
PRODUCERS_NAME = "producers"
ORIGIN_NAME = "origin.json"
ORIGIN_CHUNKS_NAME = "origin.chunks"
TOPIC_NAME = "topic.json"
LEDGER_NAME = "ledger"
CURSORS_NAME = "cursors"
GROUPS_NAME = "groups"
HOLDS_NAME = "holds"
QUARANTINE_NAME = "quarantine"
SCHEMAS_NAME = "schemas"
NEXT_NAME = "next"
COMPACTING_NAME = "compacting"
STAGING_NAME = "staging"


class Shape(StrEnum):
    FILE = "file"
    FOLDER = "folder of files"
    TREE = "tree"


class SidecarFile(NamedTuple):
    """One entry of the inventory. ``if_missing`` says what the next process does without it."""

    name: str
    shape: Shape
    purpose: str
    writer: str
    readers: str
    is_synced: bool
    may_delete: bool
    if_missing: str


_FILE, _FOLDER, _TREE = Shape.FILE, Shape.FOLDER, Shape.TREE

FILES = (
    SidecarFile(CONFIG_NAME, _FILE, "format, options and creation time of the log", "the first writer, repair",
                "every process", True, True, "the format is detected; the next writer recreates the file"),
    SidecarFile(LOCK_NAME, _FILE, "the writer's lock, and its process id", "the writer", "readers, verify, watch",
                False, False, "the writer recreates it when it opens the log"),
    SidecarFile(WATERMARK_NAME, _FILE, "how far records are acknowledged and durable", "the writer, at every commit",
                "readers, recovery, verify", True, False, "recovery proves the active segment by its records alone"),
    SidecarFile(SEALED_NAME, _FILE, "offsets, size, digest and indexes of sealed segments", "the writer, at every seal",
                "recovery, readers, verify, repair", True, True, "sealed segments are checked by their records alone"),
    SidecarFile(CLEAN_CLOSE_NAME, _FILE, "state of the active segment at a clean close", "the writer, when it closes",
                "recovery", False, True, "recovery walks the active segment"),
    SidecarFile(FILE_SWAP_NAME, _FILE, "renames and removals that are committed and not yet done",
                "retention, compaction", "recovery, readers, verify", True, False,
                "no file swap is in progress; the files stay as they are"),
    SidecarFile(TX_MARKER_NAME, _FILE, "the transaction in progress", "the transaction", "recovery, readers, verify",
                True, False, "no transaction is in progress; all rows of the log count as committed"),
    SidecarFile(TX_INTENT_NAME, _FILE, "which logs the transaction in progress writes to", "the transaction",
                "the next transaction", True, False, "each log resolves its own transaction when it is opened"),
    SidecarFile(TX_LOCK_NAME, _FILE, "the lock of the transaction in progress", "the transaction",
                "other transactions", False, False, "the next transaction recreates it"),
    SidecarFile(LEDGER_NAME, _FOLDER, "the last committed batch of each writer", "the transaction",
                "the transaction, recovery", True, False,
                "a batch that is sent again is stored again; a transaction in progress cannot be resolved"),
    SidecarFile(PRODUCERS_NAME, _FILE, "the last sequence number of each producer", "the writer", "the writer",
                True, False, "a batch that a producer sends again is stored again"),
    SidecarFile(REPAIR_JOURNAL_NAME, _FILE, "what the last repair changed", "repair", "repair, verify, recovery",
                True, True, "the last repair cannot be undone; one that was interrupted cannot be finished"),
    SidecarFile(LOSSES_NAME, _FILE, "offsets that a repair gave up", "repair, copy", "verify, convert, copy, Spark",
                True, True, "verify reports these gaps as damage again"),
    SidecarFile(COMPACTION_NAME, _FILE, "how far compaction and retention have come", "retention, compaction",
                "readers, verify, Spark", True, True, "gaps that compaction left are reported"),
    SidecarFile(METRICS_NAME, _FILE, "the counters of the writers", "the writer, about once a second", "watch",
                False, True, "the counters are unknown until a writer writes them again, and start at 0"),
    SidecarFile(VERIFIED_NAME, _FILE, "the result of the last check", "verify", "watch", True, True,
                "when the log was last checked is unknown"),
    SidecarFile(ORIGIN_NAME, _FILE, "segments and options of the logs this one was converted from", "convert",
                "convert", True, True, "a conversion back may cut segments elsewhere"),
    SidecarFile(ORIGIN_CHUNKS_NAME, _FILE, "where the chunks of the original log began", "convert", "convert",
                True, True, "a conversion back may cut chunks elsewhere"),
    SidecarFile(TOPIC_NAME, _FILE, "format, options and partition count of a topic", "the store", "the store",
                True, False, "the partitions are counted; options are the defaults"),
    SidecarFile(CURSORS_NAME, _FOLDER, "named positions of readers", "cursors", "cursors, retention", True, True,
                "the cursor starts at the beginning of the log"),
    SidecarFile(GROUPS_NAME, _FOLDER, "state of consumer groups", "consumer groups", "consumer groups, retention",
                True, True, "the group starts at the beginning of the log"),
    SidecarFile(HOLDS_NAME, _FOLDER, "offsets that running jobs need", "jobs", "retention, compaction", True, True,
                "retention may remove what the job has not read"),
    SidecarFile(SCHEMAS_NAME, _FOLDER, "schemas of values, as a registry gave them", "readers that decode values",
                "the same", True, True, "the registry is asked again"),
    SidecarFile(QUARANTINE_NAME, _TREE, "copies of bytes that recovery or repair removed", "recovery, repair",
                "undo of a repair", True, True, "the last repair cannot be undone"),
    SidecarFile(NEXT_NAME, _TREE, "the log that a transaction puts in place of this one", "the transaction",
                "recovery, readers", True, False, "no replacement is in progress"),
    SidecarFile(COMPACTING_NAME, _TREE, "segments that compaction or an update of a copy is writing",
                "compaction, copy", "the same", True, True, "they start again"),
    SidecarFile(STAGING_NAME, _TREE, "rows that Spark tasks have written and the driver has not committed",
                "Spark tasks", "the Spark driver", False, True, "Spark runs the tasks again"),
)  # fmt: skip


def sidecar_path(root: str, name: str = "") -> str:
    """The path of an entry of the sidecar of the log at ``root``; of the sidecar itself without a name.

    >>> sidecar_path("events", LOCK_NAME)
    'events/.duramen/lock'
    """
    return posixpath.join(root, DIRECTORY, name) if name else posixpath.join(root, DIRECTORY)


def is_inventoried(name: str) -> bool:
    """Whether the table covers an entry of ``.duramen/``, as itself or as its temporary file.

    >>> is_inventoried("log.json.new"), is_inventoried("change.json.0"), is_inventoried("notes.txt")
    (True, True, False)
    """
    known = {entry.name for entry in FILES}
    stem, _, number = name.rpartition(".")
    is_staged = stem == FILE_SWAP_NAME and number.isdecimal()
    return name.removesuffix(TEMPORARY) in known or is_staged


def is_no_directory(disk: Disk, root: str) -> bool:
    """Whether ``.duramen`` exists and is not a directory."""
    return disk.kind(sidecar_path(root)) in (Kind.FILE, Kind.OTHER)


def refuse_no_directory(disk: Disk, root: str) -> None:
    """Raise `StorageError` if ``.duramen`` exists and is not a directory."""
    if is_no_directory(disk, root):
        raise StorageError(
            "the sidecar is not a directory", path=sidecar_path(root), hint="move it away: it holds no records"
        )


@dataclass(frozen=True)
class Config:
    """What ``log.json`` says: the format, its options, and when the log was created."""

    format: str
    options: Mapping[str, Any]
    created_ms: int

    def is_same_log(self, other: Config) -> bool:
        """Whether both belong to the same log: one that was created again has another time."""
        return (self.format, self.created_ms) == (other.format, other.created_ms)

    @classmethod
    def parse(cls, tree: dict[str, Any]) -> Config:
        return cls(str(tree["format"]), dict(tree["options"]), int(tree["created_ms"]))


_CONFIG = JsonFile(
    "the sidecar", "delete the file: the records do not depend on it, and the next writer recreates it",
    limit_bytes=SMALL_BYTES, indent=2,
)  # fmt: skip


def read_config(disk: Disk, root: str) -> Config | None:
    """The configuration of the log at ``root``; None without ``log.json``."""
    return _CONFIG.read(disk, sidecar_path(root, CONFIG_NAME), Config.parse)


class CachedConfig:
    """``log.json`` of the log at ``root``, parsed again only if the file has changed."""

    def __init__(self, disk: Disk, root: str) -> None:
        self._disk, self._root = disk, root
        self._known: tuple[tuple[int, int, int], Config | None] | None = None

    def read(self) -> Config | None:
        """The configuration now; None without ``log.json``. Raises as `read_config` does."""
        stamp = self._stamp()  # before the content: a file that replaces it in between has another one
        known = self._known
        if stamp is not None and known is not None and known[0] == stamp:
            return known[1]
        config = read_config(self._disk, self._root)
        self._known = None if stamp is None else (stamp, config)
        return config

    def read_if_sound(self) -> Config | None:
        """`read`, with None also for a file that cannot be read."""
        try:
            return self.read()
        except (CorruptionError, StorageError):
            return None

    def _stamp(self) -> tuple[int, int, int] | None:
        """Size, modification time and inode of the file; None if it is missing, or the disk has no such thing."""
        try:
            return self._disk.stamp(sidecar_path(self._root, CONFIG_NAME))
        except StorageError:
            return None


def write_config(disk: Disk, root: str, config: Config) -> None:
    """Replace ``log.json``, durably."""
    _CONFIG.replace(disk, sidecar_path(root, CONFIG_NAME), {**asdict(config), "options": dict(config.options)})
