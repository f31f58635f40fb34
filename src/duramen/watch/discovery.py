"""Finds logs: the given paths, where a store or a directory of logs stands for all logs below it.

A store may have thousands of logs: they are listed again at most every few seconds, and opened on demand.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

from duramen.disk import Disk, Kind
from duramen.errors import DuramenError, StorageError, UsageError
from duramen.store import addressed_logs, find_logs, parse_address

LISTED_FOR_S = 5.0


class WatchedPath(NamedTuple):
    """A log. ``name`` is its path or ``ROOT#topic/partition``."""

    name: str
    path: str


class WatchedPaths:
    """The logs below some paths."""

    def __init__(self, disk: Disk, paths: Sequence[str]) -> None:
        if not paths:
            raise UsageError("at least one path is required")
        if all(disk.kind(path) == Kind.MISSING and parse_address(path) is None for path in paths):
            raise StorageError("no such file or directory", path=paths[0], hint="check the path")
        self._disk = disk
        self._paths = list(paths)
        self._guard = threading.Lock()
        self._listed: dict[str, WatchedPath] = {}
        self._listed_at = -LISTED_FOR_S

    def all(self) -> list[WatchedPath]:
        with self._guard:
            if time.monotonic() - self._listed_at >= LISTED_FOR_S:
                self._listed = {place.name: place for path in self._paths for place in self._below(path)}
                self._listed_at = time.monotonic()
            return list(self._listed.values())

    def get(self, name: str) -> WatchedPath:
        """The listed log with this name; a name is never used as a path."""
        self.all()
        with self._guard:
            place = self._listed.get(name)
        if place is None:
            raise UsageError(f"no such log: {name!r}")
        return place

    def _below(self, path: str) -> list[WatchedPath]:
        """The logs at a path. A path that is missing or cannot be listed counts as a log: its observer says why."""
        try:
            found = addressed_logs(self._disk, path)
            return [WatchedPath(*one) for one in (find_logs(self._disk, path) if found is None else found)]
        except DuramenError:
            return [WatchedPath(path, path)]
