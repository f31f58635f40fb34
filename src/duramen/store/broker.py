"""The directory of a Kafka broker (one of its ``log.dirs``) as a store for reading.

::

    ROOT/
      meta.properties                     the cluster's id
      log-start-offset-checkpoint         where logs start, if records were deleted
      recovery-point-offset-checkpoint    how far each partition was synced
      replication-offset-checkpoint       high watermarks
      cleaner-offset-checkpoint           how far each partition is compacted
      orders-0/                           partition 0 of the topic orders
      orders-0.<32 digits>-stray/         a copy that the broker deletes (-delete, -stray) or builds (-future)

This module only reads.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from typing import Any

from duramen.disk import Disk, Kind
from duramen.errors import DuramenError, StorageError
from duramen.formats import parse_offsets, parse_properties
from duramen.store.names import is_topic, parse_partition

PROPERTIES = "meta.properties"
LOG_STARTS = "log-start-offset-checkpoint"
CHECKPOINTS = (
    LOG_STARTS,
    "recovery-point-offset-checkpoint",
    "replication-offset-checkpoint",
    "cleaner-offset-checkpoint",
)
FORMAT = "kafka"
COPIES = "copies"
_COPY = re.compile(r".+-[0-9]+\.[0-9a-f]{32}-(?:delete|future|stray)")


def is_broker(disk: Disk, root: str) -> bool:
    """Whether ``root`` is the directory of a broker."""
    return disk.kind(posixpath.join(root, PROPERTIES)) == Kind.FILE


def partition_path(root: str, topic: str, number: int) -> str:
    return posixpath.join(root, f"{topic}-{number}")


def partitions(disk: Disk, root: str) -> Iterator[tuple[str, int]]:
    """The topic and the number of every partition, in no order. Directories with other names are ignored."""
    return filter(None, map(parse_directory, disk.directories(root)))


def parse_directory(name: str) -> tuple[str, int] | None:
    """The topic and the number of the partition in the directory with that name; None for other names.

    >>> parse_directory("orders-eu-3"), parse_directory("orders-3.0123-delete")
    (('orders-eu', 3), None)
    """
    topic, dash, text = name.rpartition("-")
    number = parse_partition(text)
    return (topic, number) if dash and number is not None and is_topic(topic) else None


def checkpoint(disk: Disk, root: str, name: str) -> dict[tuple[str, int], int]:
    """The offsets of a checkpoint by topic and partition; empty if the file is missing. Raises `CorruptionError`."""
    data = _content(disk, root, name)
    try:
        return {} if data is None else {(line.topic, line.partition): line.offset for line in parse_offsets(data)}
    except DuramenError as error:
        error.path = error.path or posixpath.join(root, name)
        raise


def _content(disk: Disk, root: str, name: str) -> memoryview | None:
    """The bytes of a file of the broker; None if it is missing. A link is not followed: it may lead anywhere."""
    path, inside = posixpath.join(root, name), disk.within(root)
    kind = inside.kind(path)
    if kind == Kind.MISSING:
        return None
    if kind != Kind.FILE:
        raise StorageError("this is not a regular file", path=path, hint="restore it, or remove it to do without")
    return inside.map(path).data


def log_starts(disk: Disk, root: str) -> dict[tuple[str, int], int]:
    """Where partitions start whose first records were deleted."""
    return checkpoint(disk, root, LOG_STARTS)


def start_option(starts: dict[tuple[str, int], int], topic: str, number: int) -> dict[str, Any]:
    """The option with which a partition is read: its start, if records before it were deleted."""
    start = starts.get((topic, number), 0)
    return {} if start <= 0 else {"log_start_offset": start}


def options_at(disk: Disk, path: str) -> dict[str, Any]:
    """The same for the partition at ``path``; empty if it is not in the directory of a broker."""
    root, name = posixpath.split(posixpath.normpath(path))
    place = parse_directory(name)
    if place is None or not is_broker(disk, root or "."):
        return {}
    return start_option(log_starts(disk, root or "."), *place)


def describe(disk: Disk, root: str) -> dict[str, Any]:
    """The properties and the checkpoints of a broker, by the name of the file; and the names of directories with copies
    of partitions, under ``copies``."""
    found: dict[str, Any] = {}
    try:
        properties = _content(disk, root, PROPERTIES)
        if properties is not None:
            found[PROPERTIES] = parse_properties(properties, "=")
    except DuramenError as error:
        error.path = error.path or posixpath.join(root, PROPERTIES)
        raise
    for name in CHECKPOINTS:
        lines = checkpoint(disk, root, name)
        if lines:
            found[name] = {f"{topic}-{number}": offset for (topic, number), offset in sorted(lines.items())}
    copies = [name for name in disk.directories(root) if _COPY.fullmatch(name)]
    if copies:
        found[COPIES] = copies
    return found
