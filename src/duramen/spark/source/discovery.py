"""Which logs a read is about: the one that a path names, or the partitions of the topics of a store.

A log by itself counts as partition 0 of a topic that is called as its directory, so that offsets and columns look the
same everywhere. Lists names only.
"""

from __future__ import annotations

import posixpath
import re
from typing import NamedTuple

from duramen.disk import Disk, Kind, PosixDisk, disk_for
from duramen.errors import StorageError
from duramen.spark.source.options import ReadOptions
from duramen.store import list_partitions, list_topics

_PARTITION = re.compile(r"(?:^|/)topics/([^/]+)/partitions/(\d+)$")


class LogSource(NamedTuple):
    topic: str
    partition: int
    path: str


def disk_of(path: str) -> tuple[Disk, str]:
    """The disk that a path or address lies on, and the path there: executors may stand elsewhere than the driver."""
    disk, inner = disk_for(path)
    return disk, posixpath.abspath(inner) if isinstance(disk, PosixDisk) else inner


def find_places(options: ReadOptions, disk: Disk, path: str) -> list[LogSource]:
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
    return [LogSource(*partition) for partition in found if _is_wanted(partition.number, options)]


def _is_wanted(number: int, options: ReadOptions) -> bool:
    return options.partitions is None or number in options.partitions


def _alone(path: str) -> LogSource:
    """The name of a log that is read by its path, not by a topic."""
    path = path.rstrip("/") or "/"
    found = _PARTITION.search(path)
    if found is not None:
        return LogSource(found[1], int(found[2]), path)
    return LogSource(posixpath.basename(path), 0, path)
