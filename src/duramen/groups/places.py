"""Where a group's files lie, and which groups a log has.

::

    groups/{topic}-{partition}_{group}.snap, .delta      a format that has a place for them (Keratin)
    .duramen/groups/…                                    all others
    .duramen/groups/{topic}-{partition}_{group}.lock     held while the state changes; files on their way to their name

A group that is there keeps the topic and partition that its files carry. A new one gets those of the directory: from
``topics/<topic>/partitions/<n>`` in a store, else the directory's name and 0. Reads names only.
"""

from __future__ import annotations

import posixpath
from typing import NamedTuple

from duramen.disk.base import Kind
from duramen.errors import UsageError
from duramen.formats.stroma import GroupName
from duramen.groups.directories import sidecar_of
from duramen.log.names import check_name, decode_name, encode_name
from duramen.log.reader import Log

SUBDIRECTORY = "groups"
_FALLBACK_TOPIC = "log"
_MAX_STEM_BYTES = 240
"""Of the 255 bytes that file systems allow."""
_SUFFIXES = (".snap", ".delta")


class Place(NamedTuple):
    """The files of one group."""

    name: GroupName
    directory: str
    sidecar: str
    """Where the lock is, and where files are written before they get their name: `groups/` has none but its own."""

    @property
    def snap(self) -> str:
        return posixpath.join(self.directory, self.name.stem + ".snap")

    @property
    def delta(self) -> str:
        return posixpath.join(self.directory, self.name.stem + ".delta")

    @property
    def lock(self) -> str:
        return posixpath.join(self.sidecar, self.name.stem + ".lock")

    def temporary(self, suffix: str) -> str:
        return posixpath.join(self.sidecar, f"{self.name.stem}.{suffix}.new")


def places(log: Log) -> list[Place]:
    """The groups of a log that have a file, in the order of their names."""
    directory, sidecar = _directories(log)
    if log.disk.kind(directory) != Kind.DIRECTORY:
        return []
    stems = {name.rpartition(".")[0] for name, _ in log.disk.list(directory) if name.endswith(_SUFFIXES)}
    found = (GroupName.parse(stem) for stem in stems)
    return sorted((Place(name, directory, sidecar) for name in found if name), key=lambda p: (p.name.group, p.name))


def place_of(log: Log, group: str) -> tuple[Place, bool]:
    """The files of a group, and whether there are any yet."""
    check_name("group", group)
    directory, sidecar = _directories(log)
    name = GroupName(*_topic_and_partition(log.path), group)
    if len(name.stem) > _MAX_STEM_BYTES:
        name = name._replace(topic=_FALLBACK_TOPIC)
    made = Place(name, directory, sidecar)
    there = [place for place in places(log) if place.name.group == group]
    if not there:
        return made, False
    if made in there:
        return made, True
    if len(there) > 1:
        stems = ", ".join(place.name.stem for place in there)
        raise UsageError(
            f"the group {group!r} has state for several topics: {stems}", path=directory,
            hint="move those away that are of another log",
        )  # fmt: skip
    return there[0], True


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
