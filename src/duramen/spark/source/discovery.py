"""Which logs a read is about: those that paths and wildcards name, or the partitions of topics of a store.

A log by itself counts as partition 0 of a topic that is called as its directory, so that offsets and columns look the
same everywhere. Lists names only.
"""

from __future__ import annotations

import fnmatch
import posixpath
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

from duramen.disk import Disk, Kind, PosixDisk, disk_for, is_address
from duramen.errors import StorageError, UnknownTopicError, UsageError
from duramen.spark.source.options import ReadOptions
from duramen.store import find_logs, is_store, list_partitions, list_topics

_WILDCARD = re.compile(r"[*?\[{]")
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
    """The logs of a read, by topic and partition; ``path`` is where ``options.path`` lies on the disk. Raises where a
    path or a topic that was named is missing, or two logs have the same name."""
    if options.paths:
        _check_one_disk(options.paths)
    roots = [disk_of(one)[1] for one in options.paths] or [path]
    given = options.paths or (options.path,)
    found: dict[tuple[str, int], LogSource] = {}
    for text, root in zip(given, roots, strict=True):
        for place in _below(options, disk, text, root):
            other = found.setdefault(place[:2], place)
            if other.path != place.path:
                raise UsageError(
                    f"two logs are {place.topic}/{place.partition}: {other.path} and {place.path}",
                    hint="read them separately and unite the DataFrames, or let a wildcard stand for what differs",
                )
    return list(found.values())


def _check_one_disk(paths: Sequence[str]) -> None:
    """Raise where paths lie on several disks: a task opens one."""
    disks = {_disk_name(path): path for path in paths}
    if len(disks) > 1:
        raise UsageError(
            f"the paths lie on several file systems: {', '.join(sorted(disks.values()))}",
            hint="read each and unite the DataFrames",
        )


def _disk_name(path: str) -> tuple[str, ...]:
    if not is_address(path) or path.startswith("file:"):
        return ("file",)
    parts = urlsplit(path)
    return parts.scheme, parts.netloc, parts.query


def _below(options: ReadOptions, disk: Disk, text: str, path: str) -> Iterator[LogSource]:
    """The logs of one path or pattern."""
    exists = disk.kind(path) != Kind.MISSING
    if not exists and not _is_pattern(path):
        raise StorageError("no such file or directory", path=text, hint="check option path")
    base = path if exists else _base_of(path)
    matches = [path] if exists else list(_matches(disk, path))
    if not matches:
        raise StorageError("no directory matches", path=text, hint="check option path")
    for match in matches:
        if options.is_store:
            yield from _of_topics(options, disk, match)
        else:
            yield _alone(match, base)


# --- topics


def _of_topics(options: ReadOptions, disk: Disk, root: str) -> Iterator[LogSource]:
    """The logs of the topics that the options name, below a store or a directory of logs."""
    there = _Topics(disk, root)
    if options.assign is not None:
        for topic, numbers in sorted(options.assign.items()):
            found = {place.partition: place for place in there.partitions(topic)}
            for number in sorted(numbers):
                if number not in found:
                    raise StorageError(
                        f"partition {topic}/{number} does not exist", path=root,
                        hint=f"check option assign; it has {', '.join(map(str, sorted(found))) or 'none'}",
                    )  # fmt: skip
                yield found[number]
        return
    if options.subscribe is not None:
        topics = sorted(options.subscribe)
    else:
        assert options.subscribe_pattern is not None
        pattern = re.compile(options.subscribe_pattern)
        topics = [topic for topic in there.names() if pattern.fullmatch(topic)]
    for topic in topics:
        for place in there.partitions(topic):
            if options.partitions is None or place.partition in options.partitions:
                yield place


class _Topics:
    """The topics of a store, or of a directory of logs such as the stream folder of RabbitMQ: there each log is
    partition 0 of a topic named after its directory."""

    def __init__(self, disk: Disk, root: str) -> None:
        self._disk, self._root = disk, root
        self._logs: dict[str, str] = {}
        if not is_store(disk, root):
            logs = [log.path for log in find_logs(disk, root, depth=1) if posixpath.dirname(log.path) == root]
            self._logs = {posixpath.basename(path): path for path in logs}

    def names(self) -> list[str]:
        return sorted(self._logs) if self._logs else list_topics(self._disk, self._root)

    def partitions(self, topic: str) -> list[LogSource]:
        if not self._logs:
            return [LogSource(*partition) for partition in list_partitions(self._disk, self._root, topic)]
        if topic not in self._logs:
            known = ", ".join(self.names()[:8])
            raise UnknownTopicError(
                f"the topic {topic!r} does not exist", path=self._root, hint=f"directories of logs: {known}"
            )
        return [LogSource(topic, 0, self._logs[topic])]


def _alone(path: str, base: str) -> LogSource:
    """The name of a log that is read by its path, not by a topic. One that a pattern found is called by what lies
    below the part without wildcards."""
    path = path.rstrip("/") or "/"
    found = _PARTITION.search(path)
    if found is not None:
        return LogSource(found[1], int(found[2]), path)
    name = posixpath.basename(path) if path == base.rstrip("/") else posixpath.relpath(path, base)
    return LogSource(name, 0, path)


# --- wildcards


def _is_pattern(path: str) -> bool:
    return _WILDCARD.search(path) is not None


def _base_of(pattern: str) -> str:
    """The directory above the first name with a wildcard."""
    found = _WILDCARD.search(pattern)
    return posixpath.dirname(pattern if found is None else pattern[: found.start()] + "_")


def _matches(disk: Disk, pattern: str) -> Iterator[str]:
    """The directories that a pattern stands for, sorted; names that begin with a dot are left out."""
    found = set()
    for one in _alternatives(pattern):
        base = _base_of(one)
        found |= set(_expand(disk, base, one[len(base) :]))
    yield from sorted(found)


def _alternatives(pattern: str) -> Iterator[str]:
    """
    >>> list(_alternatives("/data/{a,b}/x"))
    ['/data/a/x', '/data/b/x']
    """
    found = re.search(r"\{([^{}]*)\}", pattern)
    if found is None:
        yield pattern
        return
    for part in found[1].split(","):
        yield from _alternatives(pattern[: found.start()] + part + pattern[found.end() :])


def _expand(disk: Disk, above: str, rest: str) -> Iterator[str]:
    name, _, below = rest.lstrip("/").partition("/")
    if not name:
        yield above
    elif _is_pattern(name):
        for match in fnmatch.filter(_directories(disk, above), name):
            if not match.startswith("."):
                yield from _expand(disk, posixpath.join(above, match), below)
    else:
        path = posixpath.join(above, name)
        if disk.kind(path) == Kind.DIRECTORY:
            yield from _expand(disk, path, below)


def _directories(disk: Disk, path: str) -> Sequence[str]:
    return disk.directories(path) if disk.kind(path) == Kind.DIRECTORY else ()
