"""The files of groups and cursors: where they lie, which groups a log has, and directories that survive a crash.

::

    groups/{topic}-{partition}_{group}.snap, .delta      a format that defines this directory (Keratin)
    .duramen/groups/…                                    every other format
    .duramen/groups/{topic}-{partition}_{group}.lock     held while the state changes; temporary files
    .duramen/groups/….json, .members                     its policy; which consumer holds which records

An existing group keeps the topic and partition in the names of its files. A new group gets them from the log's path:
``topics/<topic>/partitions/<n>`` in a store, otherwise the directory's name and 0. This module reads names only, and
creates directories only.
"""

from __future__ import annotations

import posixpath
import weakref
from typing import NamedTuple

from duramen.disk import Kind
from duramen.errors import StorageError, UsageError
from duramen.formats import GroupName
from duramen.log import Log, refuse_special_files
from duramen.names import check_name, decode_name, encode_name
from duramen.sidecar import DIRECTORY, GROUPS_NAME

SUBDIRECTORY = GROUPS_NAME
_FALLBACK_TOPIC = "log"
_MAX_STEM_BYTES = 240
"""File systems allow 255 bytes, suffix included."""
_SUFFIXES = (".snap", ".delta")


class GroupFiles(NamedTuple):
    """The files of one group."""

    name: GroupName
    directory: str
    sidecar: str
    """Directory of the lock and of temporary files: ``groups/`` may hold nothing but the group's own files."""

    @property
    def snap(self) -> str:
        return posixpath.join(self.directory, self.name.stem + ".snap")

    @property
    def delta(self) -> str:
        return posixpath.join(self.directory, self.name.stem + ".delta")

    @property
    def lock(self) -> str:
        return posixpath.join(self.sidecar, self.name.stem + ".lock")

    @property
    def policy(self) -> str:
        return posixpath.join(self.sidecar, self.name.stem + ".json")

    @property
    def members(self) -> str:
        return posixpath.join(self.sidecar, self.name.stem + ".members")

    def temporary(self, suffix: str) -> str:
        return posixpath.join(self.sidecar, f"{self.name.stem}.{suffix}.new")


# A process may have created a directory and been killed before it synced the name. Every log object therefore syncs
# each directory that it uses, once.
_synced: weakref.WeakKeyDictionary[Log, set[str]] = weakref.WeakKeyDictionary()


def sidecar_of(log: Log) -> str:
    """Path of a log's sidecar directory, which may be missing. `UsageError` for a single segment file."""
    if not log.is_directory:
        raise UsageError(
            "cursors and groups need a log directory, and this is a single segment file", path=log.path,
            hint="open the directory that contains it",
        )  # fmt: skip
    return posixpath.join(log.path, DIRECTORY)


def ensure_directory(log: Log, path: str) -> None:
    """Create a directory below the log's, with its parents, and sync its name."""
    synced = _synced.setdefault(log, set())
    disk = log.state_disk
    if path in synced and disk.kind(path) == Kind.DIRECTORY:
        return
    above = posixpath.dirname(path)
    if not synced:
        refuse_special_files(disk, log.path, log.codec)
    if above != log.path:
        ensure_directory(log, above)
    elif disk.kind(above) != Kind.DIRECTORY:  # do not recreate a deleted log as a directory without records
        raise StorageError("the log was deleted", path=above)
    disk.make_directory(path, parents=False)
    disk.sync_directory(above)
    synced.add(path)


def group_files(log: Log) -> list[GroupFiles]:
    """The groups of a log that have a file, sorted by name."""
    directory, sidecar = _directories(log)
    if log.disk.kind(directory) != Kind.DIRECTORY:
        return []
    stems = {name.rpartition(".")[0] for name, _ in log.disk.list(directory) if name.endswith(_SUFFIXES)}
    found = (GroupName.parse(stem) for stem in stems)
    return sorted(
        (GroupFiles(name, directory, sidecar) for name in found if name), key=lambda p: (p.name.group, p.name)
    )


def files_of(log: Log, group: str) -> tuple[GroupFiles, bool]:
    """The files of a group, and whether they exist."""
    check_name("group", group)
    directory, sidecar = _directories(log)
    name = GroupName(*_topic_and_partition(log.path), group)
    if len(name.stem) > _MAX_STEM_BYTES:
        name = name._replace(topic=_FALLBACK_TOPIC)
    made = GroupFiles(name, directory, sidecar)
    existing = [place for place in group_files(log) if place.name.group == group]
    if not existing:
        return made, False
    if made in existing:
        return made, True
    if len(existing) > 1:
        stems = ", ".join(place.name.stem for place in existing)
        raise UsageError(
            f"the group {group!r} has state for several topics: {stems}", path=directory,
            hint="move the files that belong to another log out of this directory",
        )  # fmt: skip
    return existing[0], True


def _directories(log: Log) -> tuple[str, str]:
    sidecar = posixpath.join(sidecar_of(log), SUBDIRECTORY)
    own = log.codec.classify(f"{SUBDIRECTORY}/{GroupName('t', 0, 'g').stem}.snap")
    return (posixpath.join(log.path, SUBDIRECTORY) if own is not None else sidecar), sidecar


def _topic_and_partition(path: str) -> tuple[str, int]:
    """What a log's path says about it.

    >>> _topic_and_partition("/data/topics/orders/partitions/3"), _topic_and_partition("/srv/events")
    (('orders', 3), ('events', 0))
    """
    parts = posixpath.abspath(path).split("/")
    topic, partition = parts[-1], 0
    if len(parts) > 4 and parts[-4] == "topics" and parts[-2] == "partitions" and parts[-1].isdecimal():
        topic, partition = decode_name(parts[-3]) or parts[-3], int(parts[-1])
    try:
        encode_name(topic)
    except UnicodeEncodeError:
        topic = ""
    return topic or _FALLBACK_TOPIC, partition
