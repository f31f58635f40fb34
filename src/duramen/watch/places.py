"""Which logs there are: the paths that were given, where a store's root stands for all its topics and partitions.

A store may have thousands; they are listed again every few seconds at most, and opened only when somebody looks.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

from duramen.disk import Disk
from duramen.disk.base import Kind
from duramen.errors import StorageError, UsageError
from duramen.store.layout import is_store, list_partitions, list_topics

LISTED_FOR_S = 5.0


class Place(NamedTuple):
    """A log. ``name`` is what people call it: its path, or ``ROOT#topic/partition``."""

    name: str
    path: str


class Places:
    """The logs below some paths."""

    def __init__(self, disk: Disk, paths: Sequence[str]) -> None:
        if not paths:
            raise UsageError("no log is named")
        for path in paths:
            if disk.kind(path) == Kind.MISSING:
                raise StorageError("no such file or directory", path=path, hint="check the path")
        self._disk = disk
        self._paths = list(paths)
        self._guard = threading.Lock()
        self._listed: dict[str, Place] = {}
        self._listed_at = -LISTED_FOR_S

    def all(self) -> list[Place]:
        with self._guard:
            if time.monotonic() - self._listed_at >= LISTED_FOR_S:
                self._listed = {place.name: place for path in self._paths for place in self._below(path)}
                self._listed_at = time.monotonic()
            return list(self._listed.values())

    def page(self, query: str, skip: int, count: int) -> tuple[int, list[Place]]:
        """How many logs have ``query`` in their name, and some of them."""
        found = [place for place in self.all() if query.lower() in place.name.lower()]
        return len(found), found[skip : skip + count]

    def get(self, name: str) -> Place:
        """The log of that name. Only what was listed can be had: a name is never taken for a path."""
        self.all()
        with self._guard:
            place = self._listed.get(name)
        if place is None:
            raise UsageError(f"no log is called {name!r} here")
        return place

    def _below(self, path: str) -> list[Place]:
        if not is_store(self._disk, path):
            return [Place(path, path)]
        return [
            Place(f"{path}#{topic}/{partition.number}", partition.path)
            for topic in list_topics(self._disk, path)
            for partition in list_partitions(self._disk, path, topic)
        ]
