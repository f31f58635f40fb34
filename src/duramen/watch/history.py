"""A day of history per log, in the state directory of the server: one small file per log, never inside the log.

A file is a ring of `KEPT` points, one every `EVERY_S`: the end of the log, its size, and the lag of each consumer. It
also remembers the last check. The file can be deleted, and a file that cannot be read starts over.
"""

from __future__ import annotations

import hashlib
import posixpath
import threading
from typing import Any, NamedTuple

from duramen.disk import Disk
from duramen.errors import DuramenError
from duramen.sidecar import JsonFile
from duramen.watch.observer import Observation

EVERY_S = 300
KEPT = 24 * 3600 // EVERY_S
MAX_CONSUMERS = 20
MAX_NAME = 100
_FILE = JsonFile("the history of a log", limit_bytes=4 << 20, separator=b" ", sort_keys=False)


class HistoryPoint(NamedTuple):
    at: int
    next_offset: int
    size_bytes: int
    lags: dict[str, int]
    """Lag per consumer, by `history_key`."""


class LastCheck(NamedTuple):
    """When a log was last verified, and how many damaged places that found."""

    at: int
    damaged: int


class LogHistory(NamedTuple):
    points: list[HistoryPoint]
    check: LastCheck | None


class History:
    """The histories of all logs of a server; without a directory it keeps nothing."""

    def __init__(self, disk: Disk, directory: str | None) -> None:
        self._disk = disk
        self._guard = threading.Lock()
        self.directory = directory
        self.problem: str | None = None
        if directory is not None:
            self._try(disk.make_directory, directory)
        if self.problem is not None:
            self.directory = None

    def read(self, path: str) -> LogHistory:
        found = None
        if self.directory is not None:
            found = _FILE.read_if_sound(self._disk, self._path(path), lambda tree: _parse(tree, _whole(path)))
        return found or LogHistory([], None)

    def add(self, path: str, seen: Observation) -> None:
        """Add a point, unless the newest is of the same interval."""
        at = int(seen.at) // EVERY_S * EVERY_S
        lags = sorted(((one.lag or 0, history_key(one.kind, one.name)) for one in seen.standings), reverse=True)
        point = HistoryPoint(at, seen.next_offset, seen.size_bytes, {name: lag for lag, name in lags[:MAX_CONSUMERS]})
        with self._guard:
            points, check = self.read(path)
            points = [old for old in points if at - KEPT * EVERY_S < old.at < at]
            self._write(path, LogHistory([*points[1 - KEPT :], point], check))

    def checked(self, path: str, check: LastCheck) -> None:
        with self._guard:
            self._write(path, self.read(path)._replace(check=check))

    def _write(self, path: str, history: LogHistory) -> None:
        if self.directory is not None:
            self._try(_FILE.replace, self._disk, self._path(path), {"path": _whole(path), **history._asdict()})

    def _try(self, do: Any, *arguments: Any) -> None:
        """The server goes on without its history; the page says why."""
        try:
            do(*arguments)
            self.problem = None
        except DuramenError as error:
            self.problem = str(error)

    def _path(self, path: str) -> str:
        assert self.directory is not None
        return posixpath.join(self.directory, hashlib.sha256(_whole(path).encode()).hexdigest()[:32] + ".json")


def _whole(path: str) -> str:
    return path if "://" in path else posixpath.abspath(path)


def history_key(kind: str, name: str) -> str:
    """The key of a consumer in `HistoryPoint.lags`. Bounded: a file holds many of them."""
    return f"{kind} {name[:MAX_NAME]}"


def _parse(tree: dict[str, Any], path: str) -> LogHistory:
    if tree["path"] != path:
        raise ValueError(f"it belongs to {tree['path']}")
    points = [
        HistoryPoint(int(at), int(end), int(size), {str(name): int(lag) for name, lag in lags.items()})
        for at, end, size, lags in tree["points"][-KEPT:]
    ]
    return LogHistory(points, None if tree["check"] is None else LastCheck(*map(int, tree["check"])))
