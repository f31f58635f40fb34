"""Finds the logs that a path stands for: a log itself, the partitions of a store, or the logs in a directory of logs,
such as the stream folder of RabbitMQ. Reads names and the first bytes of files.
"""

from __future__ import annotations

import posixpath
from typing import NamedTuple

from duramen.disk import Disk, Kind
from duramen.errors import DetectionError, DuramenError
from duramen.log import BUILDING, detect
from duramen.sidecar import DIRECTORY, TOPIC_NAME
from duramen.store.address import log_path, parse_address, topic_address
from duramen.store.layout import is_store, list_partitions, list_topics

SEGMENTS = "segments"
"""The directory in which some formats keep their segments: it is part of a log, not a log."""
DEPTH = 4
"""How many levels of directories are searched."""


class FoundLog(NamedTuple):
    """A log. ``name`` is its path or ``ROOT#topic/partition``."""

    name: str
    path: str


def find_logs(disk: Disk, path: str, depth: int = DEPTH) -> list[FoundLog]:
    """The logs that ``path`` stands for, sorted by name; the path itself if it or nothing below it is a log."""
    if is_store(disk, path):
        return [
            FoundLog(f"{path}#{topic}/{partition.number}", partition.path)
            for topic in list_topics(disk, path)
            for partition in list_partitions(disk, path, topic)
        ]
    found = [] if not depth or _is_log(disk, path) else _below(disk, path, depth - 1)
    return found or [FoundLog(path, path)]


def addressed_logs(disk: Disk, text: str) -> list[FoundLog] | None:
    """The partitions that ``ROOT#topic`` or ``ROOT#topic/partition`` names; None for a plain path."""
    topic = topic_address(text)
    if topic is not None:
        parts = list_partitions(disk, topic.root, topic.topic)
        return [FoundLog(f"{topic}/{part.number}", part.path) for part in parts]
    return None if parse_address(text) is None else [FoundLog(text, log_path(text))]


def _below(disk: Disk, path: str, depth: int) -> list[FoundLog]:
    below = [posixpath.join(path, name) for name in sorted(disk.directories(path)) if _may_hold_log(name)]
    found = [one for inside in below for one in find_logs(disk, inside, depth)]
    return [one for one in found if one.name != one.path or _is_log(disk, one.path)]


def _may_hold_log(name: str) -> bool:
    return not name.startswith(".") and not name.endswith(BUILDING)


def _is_log(disk: Disk, path: str) -> bool:
    """Whether ``path`` is a file or the directory of one log, perhaps a damaged one."""
    if disk.kind(path) != Kind.DIRECTORY:
        return True
    if disk.kind(posixpath.join(path, DIRECTORY, TOPIC_NAME)) == Kind.FILE:
        return False
    if any(disk.kind(posixpath.join(path, name)) == Kind.DIRECTORY for name in (DIRECTORY, SEGMENTS)):
        return True
    try:
        detect(disk, path)
    except DetectionError:
        return False
    except DuramenError:  # damaged or unreadable: the caller will see why
        return True
    return True
