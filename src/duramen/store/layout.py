"""Directory layout of a store: RustLog's tree, with a sidecar for each topic.

::

    ROOT/
      topics/
        orders/
          partitions/
            0/                 a log, of any format
            1/
          .duramen/
            topic.json         format, options and number of partitions; missing in trees of other programs
        orders~0               being created or removed; not a valid name of a topic

The directory of a Kafka broker is a store, too, for reading: see `broker`.

This module only reads names. Directories whose names are not valid topics or partitions are ignored.
"""

from __future__ import annotations

import posixpath
from typing import NamedTuple

from duramen.disk import Disk, Kind
from duramen.errors import StorageError, UnknownTopicError
from duramen.sidecar import DIRECTORY, TOPIC_NAME
from duramen.store import broker
from duramen.store.names import check_partition, check_topic, is_topic, parse_partition

TOPICS = "topics"
PARTITIONS = "partitions"
UNFINISHED = "~"
"""Marks the name of a directory that is being created or removed."""


class Partition(NamedTuple):
    """One partition and the path of its log."""

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


def located(disk: Disk, root: str, topic: str, number: int) -> str:
    """The path of a partition, in a store or in the directory of a broker."""
    if broker.is_broker(disk, root):
        return broker.partition_path(root, check_topic(topic), check_partition(number))
    return partition_path(root, topic, number)


def settings_path(root: str, topic: str) -> str:
    return posixpath.join(topic_path(root, topic), DIRECTORY, TOPIC_NAME)


def is_store(disk: Disk, root: str) -> bool:
    """Whether ``root`` contains topics."""
    return disk.kind(topics_path(root)) == Kind.DIRECTORY or broker.is_broker(disk, root)


def list_topics(disk: Disk, root: str) -> list[str]:
    """The topics at ``root``, sorted by name."""
    if not is_store(disk, root):
        if disk.kind(root) == Kind.MISSING:
            raise StorageError(
                "no such directory", path=root, hint="check the path; `duramen topic ROOT create NAME` creates a store"
            )
        raise StorageError("not a store", path=root, hint=f"a store contains a directory {TOPICS!r}")
    if broker.is_broker(disk, root):
        return sorted({topic for topic, _ in broker.partitions(disk, root)})
    return [name for name in disk.directories(topics_path(root)) if is_topic(name)]


def list_partitions(disk: Disk, root: str, topic: str) -> list[Partition]:
    """The existing partitions of a topic, sorted by number. `UnknownTopicError` if the topic is missing."""
    check_topic_exists(disk, root, topic)
    if broker.is_broker(disk, root):
        found = sorted(number for name, number in broker.partitions(disk, root) if name == topic)
        return [Partition(topic, number, broker.partition_path(root, topic, number)) for number in found]
    path = partitions_path(root, topic)
    if disk.kind(path) != Kind.DIRECTORY:
        return []
    numbers = (parse_partition(name) for name in disk.directories(path))
    found = sorted(number for number in numbers if number is not None)
    return [Partition(topic, number, partition_path(root, topic, number)) for number in found]


def check_topic_exists(disk: Disk, root: str, topic: str) -> None:
    """Raise `UnknownTopicError`, which lists the existing topics, if the topic is missing."""
    if disk.kind(topic_path(root, topic)) == Kind.DIRECTORY and not broker.is_broker(disk, root):
        return
    known = list_topics(disk, root) if is_store(disk, root) else []
    if topic in known:  # another process just created it
        return
    if disk.kind(root) == Kind.MISSING:
        hint = "no such directory: check the path"
    elif not known:
        hint = "the store is empty: `duramen topic ROOT create NAME` creates a topic"
    else:
        hint = f"existing topics: {', '.join(known[:8])}{' and others' if len(known) > 8 else ''}"
    raise UnknownTopicError(f"the topic {topic!r} does not exist", path=root, hint=hint)
