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
from duramen.disk.base import Kind
from duramen.errors import StorageError, UsageError
from duramen.spark.options import ReadOptions

_PARTITION = re.compile(r"(?:^|/)topics/([^/]+)/partitions/(\d+)$")


class Place(NamedTuple):
    """One log, and what it is called."""

    topic: str
    partition: int
    path: str


def disk_of(path: str) -> tuple[Disk, str]:
    """The disk that a path or address lies on, and the path there."""
    return PosixDisk(), os.path.abspath(path)


def find_places(options: ReadOptions, disk: Disk, path: str) -> list[Place]:
    """The logs of a read, by topic and partition. Raises where a path or a topic that was named is not there."""
    if disk.kind(path) == Kind.MISSING:
        raise StorageError("no such file or directory", path=options.path, hint="check option path")
    if not options.is_store:
        return [_alone(path)]
    topics = posixpath.join(path, "topics")
    there = _directories(disk, topics)
    if options.subscribe is not None:
        missing = [topic for topic in options.subscribe if topic not in there]
        if missing:
            hint = f"topics there: {', '.join(there[:8]) or 'none'}"
            raise UsageError(f"option subscribe: there is no topic {missing[0]!r}", path=options.path, hint=hint)
        there = sorted(options.subscribe)
    elif options.subscribe_pattern is not None:
        there = [topic for topic in there if re.fullmatch(options.subscribe_pattern, topic)]
    places = []
    for topic in there:
        folder = posixpath.join(topics, topic, "partitions")
        numbers = sorted(int(name) for name in _directories(disk, folder) if name.isdecimal())
        wanted = [number for number in numbers if options.partitions is None or number in options.partitions]
        places += [Place(topic, number, posixpath.join(folder, str(number))) for number in wanted]
    return places


def _alone(path: str) -> Place:
    """The name of a log that nobody subscribed to."""
    path = path.rstrip("/") or "/"
    found = _PARTITION.search(path)
    if found is not None:
        return Place(found[1], int(found[2]), path)
    return Place(posixpath.basename(path), 0, path)


def _directories(disk: Disk, path: str) -> list[str]:
    """The directories in a directory, in the order of their names."""
    if disk.kind(path) != Kind.DIRECTORY:
        return []
    with os.scandir(path) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir())
