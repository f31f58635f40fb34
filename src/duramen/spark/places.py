"""Which logs a read is about: the one that a path names, or the partitions of the topics of a store.

A log by itself counts as partition 0 of a topic that is called as its directory, so that offsets and columns look the
same everywhere. Lists names only.
"""

from __future__ import annotations

import os
import posixpath
import re
from typing import NamedTuple

from duramen.disk import Disk, PosixDisk
from duramen.disk.address import disk_for
from duramen.disk.base import Kind
from duramen.errors import StorageError
from duramen.spark.options import ReadOptions
from duramen.store.layout import list_partitions, list_topics

_PARTITION = re.compile(r"(?:^|/)topics/([^/]+)/partitions/(\d+)$")


class Place(NamedTuple):
    """One log, and what it is called."""

    topic: str
    partition: int
    path: str


def disk_of(path: str) -> tuple[Disk, str]:
    """The disk that a path or address lies on, and the path there: executors may stand elsewhere than the driver."""
    disk, inner = disk_for(path)
    return disk, os.path.abspath(inner) if isinstance(disk, PosixDisk) else inner


def find_places(options: ReadOptions, disk: Disk, path: str) -> list[Place]:
    """The logs of a read, by topic and partition. Raises where a path or a topic that was named is not there."""
    if disk.kind(path) == Kind.MISSING:
        raise StorageError("no such file or directory", path=options.path, hint="check option path")
    if not options.is_store:
        return [_alone(path)]
    if options.subscribe is not None:
        topics = sorted(options.subscribe)
    else:
        assert options.subscribe_pattern is not None
        pattern = re.compile(options.subscribe_pattern)
        topics = [topic for topic in list_topics(disk, path) if pattern.fullmatch(topic)]
    found = [partition for topic in topics for partition in list_partitions(disk, path, topic)]
    return [Place(*partition) for partition in found if _is_wanted(partition.number, options)]


def _is_wanted(number: int, options: ReadOptions) -> bool:
    return options.partitions is None or number in options.partitions


def _alone(path: str) -> Place:
    """The name of a log that nobody subscribed to."""
    path = path.rstrip("/") or "/"
    found = _PARTITION.search(path)
    if found is not None:
        return Place(found[1], int(found[2]), path)
    return Place(posixpath.basename(path), 0, path)
