"""Where a store keeps what: the tree of RustLog, with a sidecar of ours beside each topic's partitions.

::

    ROOT/
      topics/
        orders/
          partitions/
            0/                 a log, of any format
            1/
          .duramen/
            topic.json         format, options and number of partitions; a tree of another program has none
        orders~0               being made or removed: no topic can have that name

Looks and names only; nothing is changed here. What is no topic or no partition by its name is left alone.
"""

from __future__ import annotations

import posixpath
from typing import NamedTuple

from duramen.disk import Disk
from duramen.disk.base import Kind
from duramen.errors import StorageError, UnknownTopicError
from duramen.log.sidecar import DIRECTORY
from duramen.store.names import check_partition, check_topic, is_topic, parse_partition

TOPICS = "topics"
PARTITIONS = "partitions"
UNFINISHED = "~"
"""In the name of a directory that is being made or removed."""


class Partition(NamedTuple):
    """One partition, and the log that it is."""

    topic: str
    number: int
    path: str


def topics_path(root: str) -> str:
    return posixpath.join(root, TOPICS)


def topic_path(root: str, topic: str) -> str:
    return posixpath.join(root, TOPICS, check_topic(topic))


def partitions_path(root: str, topic: str) -> str:
    return posixpath.join(topic_path(root, topic), PARTITIONS)


def partition_path(root: str, topic: str, number: int) -> str:
    return posixpath.join(partitions_path(root, topic), str(check_partition(number)))


def settings_path(root: str, topic: str) -> str:
    return posixpath.join(topic_path(root, topic), DIRECTORY, "topic.json")


def is_store(disk: Disk, root: str) -> bool:
    """Whether topics lie at ``root``."""
    return disk.kind(topics_path(root)) == Kind.DIRECTORY


def list_topics(disk: Disk, root: str) -> list[str]:
    """The topics at ``root``, in the order of their names."""
    if not is_store(disk, root):
        if disk.kind(root) == Kind.MISSING:
            raise StorageError(
                "no such directory", path=root, hint="check the path; `duramen topic ROOT create NAME` makes a store"
            )
        raise StorageError(
            "there are no topics here", path=root, hint=f"a store's root has a directory {TOPICS!r} in it"
        )
    return [name for name in disk.directories(topics_path(root)) if is_topic(name)]


def list_partitions(disk: Disk, root: str, topic: str) -> list[Partition]:
    """The partitions of a topic that are there, by number. Raises `UnknownTopicError` where there is no such topic."""
    check_there(disk, root, topic)
    path = partitions_path(root, topic)
    if disk.kind(path) != Kind.DIRECTORY:
        return []
    numbers = (parse_partition(name) for name in disk.directories(path))
    found = sorted(number for number in numbers if number is not None)
    return [Partition(topic, number, partition_path(root, topic, number)) for number in found]


def check_there(disk: Disk, root: str, topic: str) -> None:
    """Raise `UnknownTopicError`, with the topics that there are, where there is no such topic."""
    if disk.kind(topic_path(root, topic)) == Kind.DIRECTORY:
        return
    known = list_topics(disk, root) if is_store(disk, root) else []
    if topic in known:  # somebody made it this very moment
        return
    if disk.kind(root) == Kind.MISSING:
        hint = "there is no such directory: check the path"
    elif not known:
        hint = "there is none at all: `duramen topic ROOT create NAME` makes one"
    else:
        hint = f"there are {', '.join(known[:8])}{' and others' if len(known) > 8 else ''}"
    raise UnknownTopicError(f"no topic is called {topic!r}", path=root, hint=hint)
