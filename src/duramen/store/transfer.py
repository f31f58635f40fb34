"""Where the logs of a topic, a store or a directory of logs go when they are copied or converted: into the same tree
below another root. The settings of topics follow their partitions, so that a topic with settings is complete.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from duramen.disk import Disk, Kind
from duramen.sidecar import DIRECTORY, SMALL_BYTES, TOPIC_NAME, read_state_file, replace_file
from duramen.store import broker
from duramen.store.discovery import FoundLog
from duramen.store.layout import PARTITIONS, partition_path, topic_path
from duramen.store.settings import read_settings, write_settings


class TreeTransfer(NamedTuple):
    """The logs below ``source``, whose counterparts are below ``target``."""

    disk: Disk
    source: str
    target: str

    def counterpart(self, path: str) -> str:
        """Where the log at ``path`` goes. Partitions of a Kafka broker go into the tree of a store."""
        root, name = posixpath.split(path)
        place = broker.parse_directory(name)
        if place is None or not broker.is_broker(self.disk, root):
            return posixpath.join(self.target, posixpath.relpath(path, self.source))
        topic, number = place
        if self.source == topic_path(root, topic):
            return posixpath.join(self.target, PARTITIONS, str(number))
        return partition_path(self.target, topic, number)

    def make_parent(self, path: str) -> None:
        """Create the directories above the counterpart of ``path``."""
        self._make_all(posixpath.dirname(self.counterpart(path)))

    def _make_all(self, path: str) -> None:
        if path and self.disk.kind(path) == Kind.MISSING:
            self._make_all(posixpath.dirname(path))
            self.disk.make_directory(path)
            self.disk.sync_directory(posixpath.dirname(path) or ".")

    def copy_settings(self, logs: Sequence[FoundLog], converted: tuple[str, dict[str, Any]] | None = None) -> None:
        """Copy the settings of the topics of these logs; ``converted`` names the new format and its options."""
        for topic in sorted({posixpath.dirname(posixpath.dirname(log.path)) for log in logs if log.name != log.path}):
            path = posixpath.join(topic, DIRECTORY, TOPIC_NAME)
            content = read_state_file(self.disk.within(topic), path, SMALL_BYTES)
            if content is None:  # a tree of another program
                continue
            self.make_parent(path)
            if converted is None:
                replace_file(self.disk, self.counterpart(path), bytes(content))
            elif (settings := read_settings(self.disk, path)) is not None:
                format, options = converted
                write_settings(self.disk, self.counterpart(path), replace(settings, format=format, options=options))
