"""Access to the logs of partitions: `Partitions` opens those of a store, `TopicPartitions` those of one topic.

Both check that a partition exists before they open it: a topic that another process deletes must not come back as a
partition without settings.
"""

from __future__ import annotations

import os
import posixpath
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

from duramen.consumers import ConsumableLog, ConsumableWritableLog, hold_lock
from duramen.disk import Disk, Kind
from duramen.errors import CorruptionError, DetectionError, StorageError, UnknownTopicError, UsageError
from duramen.formats import FORMATS
from duramen.log import Compaction, Retention, detect
from duramen.sidecar import DIRECTORY, read_config
from duramen.store import broker, layout
from duramen.store.names import check_partition
from duramen.store.pool import Pool
from duramen.store.settings import read_settings

FOREIGN_FORMAT = "rustlog"
"""Format of an empty partition without settings: the directory layout is RustLog's."""
THREADS = 8
REFRESH_S = 1.0
"""Maximum age of the known number of partitions; another process may add some."""


class TopicShape(NamedTuple):
    """Format and number of partitions of a topic. ``is_ours``: read from its settings, not from its directories."""

    format: str
    partitions: int
    options: dict[str, Any]
    created_ms: int | None
    is_ours: bool
    retention: Retention | None = None
    compaction: Compaction | None = None


class Partitions:
    """Opens the partitions of a store. Safe to use from several threads."""

    def __init__(
        self, disk: Disk, root: str, pool: Pool, options: Mapping[str, Any], isolation: str | None = None
    ) -> None:
        self.disk = disk
        self.root = root
        self.isolation = isolation
        self._pool = pool
        self._options = options
        self._synced: set[str] = set()
        self._threads: ThreadPoolExecutor | None = None
        self._threads_pid = 0

    def shape(self, topic: str) -> TopicShape:
        """Read the settings of a topic, or derive them from its directories."""
        path = layout.settings_path(self.root, topic)
        settings = read_settings(self.disk, path)
        existing = layout.list_partitions(self.disk, self.root, topic)
        if settings is None:  # another process may just have created the topic
            settings = read_settings(self.disk, path)
        count = existing[-1].number + 1 if existing else 0
        if settings is not None:
            partitions = max(settings.partitions, count)  # another program may have added some
            return TopicShape(
                settings.format, partitions, dict(settings.options), settings.created_ms, True, settings.retention,
                settings.compaction,
            )  # fmt: skip
        format, options = broker.FORMAT if broker.is_broker(self.disk, self.root) else FOREIGN_FORMAT, {}
        for partition in existing:
            config = read_config(self.disk, partition.path)
            if config is not None:
                format, options = config.format, dict(config.options)
                break
            try:
                format = detect(self.disk, partition.path).format
                break
            except DetectionError:
                continue
        return TopicShape(format, max(count, 1), options, None, False)

    def exists(self, topic: str, number: int, shape: TopicShape) -> bool:
        """Whether a partition exists. Raises if the topic's settings list it and its directory is missing."""
        path = layout.located(self.disk, self.root, topic, number)
        if self.disk.kind(path) == Kind.DIRECTORY:
            return True
        if not shape.is_ours:
            return False
        layout.check_topic_exists(self.disk, self.root, topic)  # another process may have deleted the topic
        settings = read_settings(self.disk, layout.settings_path(self.root, topic))
        if settings is None or settings.created_ms != shape.created_ms:
            raise UnknownTopicError(
                f"the topic {topic!r} was deleted and recreated", path=self.root,
                hint=f"try again; its partitions are read again after {REFRESH_S:g} s",
            )  # fmt: skip
        raise missing_partition(path, number)

    def reading(self, topic: str, number: int, shape: TopicShape) -> AbstractContextManager[ConsumableLog]:
        """The log of a partition for reading."""
        path = layout.located(self.disk, self.root, topic, number)
        self.exists(topic, number, shape)

        def open_log() -> ConsumableLog:
            options = broker.options_at(self.disk, path)
            if self.isolation is not None and "isolation" in FORMATS[shape.format].option_names:
                options["isolation"] = self.isolation
            return ConsumableLog(path, disk=self.disk, format=self._format(path, shape), **options)

        return self._pool.reading(path, open_log)

    def _format(self, path: str, shape: TopicShape) -> str | None:
        """The format to read with; None to detect it from the files, if there are any."""
        is_empty = read_config(self.disk, path) is None and not self.disk.list(path, ("segments",))
        return shape.format if is_empty else None

    def writing(self, topic: str, number: int, shape: TopicShape) -> AbstractContextManager[ConsumableWritableLog]:
        """The log of a partition for append."""
        if broker.is_broker(self.disk, self.root):
            raise UsageError(
                "the directory of a Kafka broker is read-only as a store", path=self.root,
                hint="open one partition for append while the broker is stopped",
            )  # fmt: skip
        path = layout.located(self.disk, self.root, topic, number)
        self.exists(topic, number, shape)

        def open_log() -> ConsumableWritableLog:
            is_new = not self.disk.list(path, ("segments",)) if self.disk.kind(path) == Kind.DIRECTORY else True
            options = {"format": shape.format, **shape.options} if is_new else {}
            if shape.retention is not None:
                options["retention"] = shape.retention
            create = not shape.is_ours or self.disk.kind(posixpath.join(path, DIRECTORY)) != Kind.DIRECTORY
            try:
                if create:
                    self.exists(topic, number, shape)
                self._sync_names(topic)
                return ConsumableWritableLog(path, disk=self.disk, create=create, **{**self._options, **options})
            except StorageError:
                self.exists(topic, number, shape)
                raise

        return self._pool.writing(path, open_log)

    def _sync_names(self, topic: str) -> None:
        """Sync the names of a topic and its partitions once: the process that renamed them may have been killed before
        it did, and a record is durable only if its directory is."""
        partitions = layout.partitions_path(self.root, topic)
        if partitions not in self._synced and self.disk.kind(partitions) == Kind.DIRECTORY:
            for path in (partitions, posixpath.dirname(partitions), layout.topics_path(self.root), self.root):
                self.disk.sync_directory(path)
            self._synced.add(partitions)

    def run_together(self, work: Callable[[int], None], numbers: Sequence[int]) -> None:
        """Run the work of several partitions in parallel: each mostly waits for the disk."""
        if len(numbers) == 1:
            work(numbers[0])
            return
        if self._threads is None or self._threads_pid != os.getpid():  # a forked child has no threads
            self._threads_pid = os.getpid()
            self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="duramen-store")
        futures = [self._threads.submit(work, number) for number in numbers]
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            raise errors[0]

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown()
            self._threads = None


class TopicPartitions:
    """The partitions of one topic, as logs."""

    def __init__(self, partitions: Partitions, name: str) -> None:
        self.name = name
        self.is_writable = True
        self._partitions = partitions
        self._refreshed_s = -REFRESH_S
        self._refresh_if_old()

    def _refresh_if_old(self) -> None:
        now_s = time.monotonic()
        if now_s - self._refreshed_s >= REFRESH_S:
            self._shape = self._partitions.shape(self.name)
            self._refreshed_s = now_s

    def refresh(self) -> None:
        """Read the number of partitions again."""
        self._refreshed_s = time.monotonic() - REFRESH_S
        self._refresh_if_old()

    @property
    def format(self) -> str:
        return self._shape.format

    @property
    def options(self) -> dict[str, Any]:
        """Options of the format."""
        return dict(self._shape.options)

    @property
    def retention(self) -> Retention | None:
        """The rules that every writer of the topic applies."""
        self._refresh_if_old()
        return self._shape.retention

    @property
    def compaction(self) -> Compaction | None:
        self._refresh_if_old()
        return self._shape.compaction

    @property
    def partitions(self) -> int:
        """Number of partitions; they are numbered from 0."""
        self._refresh_if_old()
        return self._shape.partitions

    def existing(self) -> list[int]:
        """Numbers of the partitions that exist on the disk."""
        return [n for n in range(self.partitions) if self._partitions.exists(self.name, n, self._shape)]

    def _checked(self, number: int) -> int:
        if check_partition(number) >= self.partitions:
            raise UsageError(
                f"the topic {self.name!r} has no partition {number}", path=self._partitions.root,
                hint=f"choose a partition from 0 to {self.partitions - 1}",
            )  # fmt: skip
        return number

    def log(self, partition: int) -> AbstractContextManager[ConsumableLog]:
        """The log of one partition for reading, during a ``with`` block."""
        return self._partitions.reading(self.name, self._checked(partition), self._shape)

    def log_for_append(self, partition: int) -> AbstractContextManager[ConsumableWritableLog]:
        """The log of one partition for append, during a ``with`` block: for producers, sealing, syncing."""
        if not self.is_writable:
            raise UsageError(
                f"the topic {self.name!r} is open for reading", path=self._partitions.root, hint='open it with mode "a"'
            )
        return self._partitions.writing(self.name, self._checked(partition), self._shape)

    def starting_lock(self) -> AbstractContextManager[None]:
        """Held while a group starts in several partitions, so that no other process sees it half started."""
        disk = self._partitions.disk
        sidecar = posixpath.dirname(layout.settings_path(self._partitions.root, self.name))
        if disk.kind(sidecar) != Kind.DIRECTORY:
            return nullcontext()
        return hold_lock(disk, posixpath.join(sidecar, "groups.lock"))

    def __repr__(self) -> str:
        return f"<duramen.Topic {self.name!r} of {self._partitions.root!r}>"


def missing_partition(path: str, number: int) -> CorruptionError:
    return CorruptionError(
        f"the directory of partition {number} is missing: the topic's settings list it", path=path,
        hint="restore it from a copy",
    )  # fmt: skip
