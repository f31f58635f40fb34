"""A store: creates, lists, describes and deletes topics below one root, and opens them.

Every change is prepared under a name that is not a valid topic and then renamed, so a crash leaves a topic complete or
missing; the next change removes what was left. One lock serializes changes of the tree. Appending takes the lock of the
partition only, reading takes none.
"""

from __future__ import annotations

import os
import posixpath
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count, groupby
from types import TracebackType
from typing import Any, NamedTuple, Self, Unpack

from duramen.arguments import check_path
from duramen.consumers import ConsumableWritableLog, hold_lock, take_lock
from duramen.disk import Disk, Kind, disk_or_real
from duramen.errors import (
    CorruptionError,
    DetectionError,
    DuramenError,
    LockedError,
    StorageError,
    UsageError,
)
from duramen.formats import FormatOptions, check_isolation, make
from duramen.log import DEFAULT_FORMAT, Compaction, Retention, WriterOptions
from duramen.sidecar import DIRECTORY, LOCK_NAME, TOPIC_NAME
from duramen.store import broker, layout
from duramen.store.address import TopicAddress
from duramen.store.kafka_groups import KafkaGroups, read_groups
from duramen.store.names import MAX_PARTITIONS, check_topic
from duramen.store.partitions import Partitions, TopicShape, missing_partition
from duramen.store.pool import MAX_OPEN_SEGMENTS, Pool
from duramen.store.settings import Settings, read_settings, write_settings
from duramen.store.topic import Topic

LOCK = f"{layout.UNFINISHED}lock"


class PartitionInfo(NamedTuple):
    """Description of a partition. ``problem`` explains missing facts."""

    number: int
    path: str
    first_offset: int | None = None
    next_offset: int | None = None
    segments: int = 0
    size_bytes: int = 0
    problem: str | None = None


class TopicInfo(NamedTuple):
    name: str
    format: str
    options: dict[str, Any]
    created_ms: int | None
    partitions: list[PartitionInfo]

    @property
    def records(self) -> int:
        """Number of offsets in all partitions."""
        return sum((part.next_offset or 0) - (part.first_offset or 0) for part in self.partitions)

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for part in self.partitions)


class Store:
    """Topics and partitions below ``path``. Safe to use from several threads.

    ``max_open_segments`` limits the open segments of all partitions. ``isolation="read_committed"`` hides open and
    aborted transactions from readers, where a format has them. ``options`` are passed to the writer of every
    partition (``durability``, ``linger_ms``, …).

    >>> import tempfile
    >>> with Store(tempfile.mkdtemp()) as store:
    ...     _ = store.create("orders", partitions=2)
    ...     _ = store.create("events", format="rustlog")
    ...     store.topics()
    ['events', 'orders']
    """

    def __init__(
        self,
        path: str | bytes | os.PathLike[str],
        *,
        max_open_segments: int = MAX_OPEN_SEGMENTS,
        isolation: str | None = None,
        disk: Disk | None = None,
        **options: Unpack[WriterOptions],
    ) -> None:
        self.root = check_path(path)
        if unknown := options.keys() - WriterOptions.__annotations__.keys():
            raise UsageError(
                f"a store has no option {min(unknown)!r}", path=self.root,
                hint=f"options of a format belong to create(); those of a store are max_open_segments, isolation, "
                f"{', '.join(sorted(WriterOptions.__annotations__))}",
            )  # fmt: skip
        self._disk = disk_or_real(disk)
        self._pool = Pool(max_open_segments)
        self._partitions = Partitions(
            self._disk, self.root, self._pool, options, None if isolation is None else check_isolation(isolation)
        )
        kind = self._disk.kind(self.root)
        if kind not in (Kind.DIRECTORY, Kind.MISSING):
            raise UsageError("a store must be a directory, and this is a file", path=self.root)

    # --- topics

    def topics(self) -> list[str]:
        """The names of all topics; empty if the store does not exist yet."""
        return layout.list_topics(self._disk, self.root) if layout.is_store(self._disk, self.root) else []

    def topic(self, name: str) -> Topic:
        """The topic with this name. `UnknownTopicError` if it does not exist."""
        layout.check_topic_exists(self._disk, self.root, check_topic(name))
        return Topic(self._partitions, name)

    def checkpoints(self) -> dict[str, Any]:
        """The properties and checkpoints of a Kafka broker whose directory this is, by file, and the directories that
        it marked as copies of partitions; empty for other stores."""
        return broker.describe(self._disk, self.root) if broker.is_broker(self._disk, self.root) else {}

    def groups(self) -> KafkaGroups:
        """The groups of a Kafka broker whose directory this is; empty for other stores, whose groups belong to logs."""
        if not broker.is_broker(self._disk, self.root):
            return KafkaGroups([], [], {}, [])
        return read_groups(self._disk, self.root)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self.topics()

    def __iter__(self) -> Iterator[str]:
        return iter(self.topics())

    def create(
        self,
        name: str,
        partitions: int = 1,
        format: str | None = None,
        *,
        retention: Retention | None = None,
        compaction: Compaction | None = None,
        **options: Unpack[FormatOptions],
    ) -> Topic:
        """Create a topic. ``options`` belong to its format, by default `keratin`. All of it is stored with the topic:
        every writer applies the retention, and `Topic.compact` the compaction."""
        check_topic(name)
        _check_count(partitions)
        fmt = make(format or DEFAULT_FORMAT, **options)
        fmt.check_creation()
        created_ms = time.time_ns() // 1_000_000
        settings = Settings(fmt.name, partitions, fmt.options, created_ms, retention, compaction)
        with self._changing():
            final = layout.topic_path(self.root, name)
            if self._disk.kind(final) != Kind.MISSING:
                raise UsageError(f"the topic {name!r} already exists", path=self.root)
            draft = self._free(final)
            for number in range(partitions):
                path = posixpath.join(draft, layout.PARTITIONS, str(number))
                ConsumableWritableLog(path, format=fmt.name, disk=self._disk, **fmt.options).close()
            self._write_settings(draft, settings)
            self._rename(draft, final)
        return Topic(self._partitions, name)

    def configure(
        self, name: str, *, retention: Retention | None = None, compaction: Compaction | None = None
    ) -> Topic:
        """Replace the retention and the compaction of a topic; None removes one. Writers apply them when they next open
        a partition."""
        layout.check_topic_exists(self._disk, self.root, check_topic(name))
        with self._changing():
            shape = self._partitions.shape(name)._replace(retention=retention, compaction=compaction)
            self._write_settings(layout.topic_path(self.root, name), _settings_of(shape, shape.partitions))
            self._pool.forget(layout.topic_path(self.root, name))
        return self.topic(name)

    def describe(self, name: str) -> TopicInfo:
        """Describe a topic and its partitions. An unreadable partition has a ``problem``."""
        shape = self._partitions.shape(name)
        parts = [self._describe(name, number, shape) for number in range(shape.partitions)]
        return TopicInfo(name, shape.format, shape.options, shape.created_ms, parts)

    def _describe(self, name: str, number: int, shape: TopicShape) -> PartitionInfo:
        path = layout.located(self._disk, self.root, name, number)
        try:
            if not self._partitions.exists(name, number, shape):
                return PartitionInfo(number, path, problem="not created yet")
            with self._partitions.reading(name, number, shape) as log:
                segments = log.segments
                size = sum(segment.size_bytes for segment in segments)
                return PartitionInfo(number, path, log.first_offset, log.next_offset, len(segments), size)
        except DetectionError:
            return PartitionInfo(number, path, 0, 0)
        except DuramenError as error:
            return PartitionInfo(number, path, problem=error.message)

    def add_partitions(self, name: str, partitions: int) -> Topic:
        """Increase the total number of partitions. Keys may then go to other partitions than before, as in Kafka."""
        _check_count(partitions)
        layout.check_topic_exists(self._disk, self.root, check_topic(name))
        with self._changing():
            shape = self._partitions.shape(name)
            if partitions < shape.partitions:
                raise UsageError(
                    f"the number of partitions cannot decrease: the topic {name!r} has {shape.partitions} "
                    f"(got {partitions})",
                    path=self.root,
                )
            options = shape.options
            for number in range(partitions):
                if self._disk.kind(layout.partition_path(self.root, name, number)) == Kind.MISSING:
                    if shape.is_ours and number < shape.partitions:
                        raise missing_partition(layout.partition_path(self.root, name, number), number)
                    self._add_partition(name, number, shape.format, options)
            self._write_settings(layout.topic_path(self.root, name), _settings_of(shape, partitions))
        return self.topic(name)

    def _add_partition(self, name: str, number: int, format: str, options: dict[str, Any]) -> None:
        final = layout.partition_path(self.root, name, number)
        draft = f"{final}{layout.UNFINISHED}0"
        if self._disk.kind(draft) != Kind.MISSING:
            self._remove_tree(draft)
        ConsumableWritableLog(draft, format=format, disk=self._disk, **options).close()
        self._rename(draft, final)

    def delete(self, name: str) -> None:
        """Delete a topic and all its records. `LockedError` if a process has a partition open for append."""
        layout.check_topic_exists(self._disk, self.root, check_topic(name))
        with self._changing():
            layout.check_topic_exists(self._disk, self.root, name)
            self._refuse_links(name)
            path = layout.topic_path(self.root, name)
            self._pool.forget(path)
            doomed = self._free(path)
            with ExitStack() as locks:
                for partition in layout.list_partitions(self._disk, self.root, name):
                    sidecar = posixpath.join(partition.path, DIRECTORY)
                    if self._disk.kind(sidecar) == Kind.DIRECTORY:
                        locks.enter_context(self._unused(partition, posixpath.join(sidecar, LOCK_NAME)))
                self._rename(path, doomed)
            self._remove_tree(doomed)
            self._disk.sync_directory(layout.topics_path(self.root))

    def _refuse_links(self, name: str) -> None:
        """Raise if the topic or a partition is a symbolic link: deleting would remove the link only."""
        settings = None
        with suppress(CorruptionError):
            settings = read_settings(self._disk, layout.settings_path(self.root, name))
        numbers = range(0 if settings is None else settings.partitions)
        places = [layout.topic_path(self.root, name), *(layout.partition_path(self.root, name, n) for n in numbers)]
        for above, below in groupby(places, posixpath.dirname):
            real = set(self._disk.directories(above)) if self._disk.kind(above) == Kind.DIRECTORY else set()
            for place in below:
                if posixpath.basename(place) not in real and self._disk.kind(place) == Kind.DIRECTORY:
                    raise UsageError(
                        f"the topic {name!r} is not deleted: this is a link", path=place,
                        hint="remove the link and its target, then delete the topic",
                    )  # fmt: skip

    @contextmanager
    def _unused(self, partition: layout.Partition, lock: str) -> Iterator[None]:
        """Hold the lock of a partition's writer; `LockedError` at once if another process holds it."""
        try:
            holding = take_lock(self._disk, lock, 0.0)
        except LockedError as error:
            holder = error.note.decode("ascii", "replace").strip() or "another process"
            raise LockedError(
                f"partition {partition.number} of the topic {partition.topic!r} is open for append ({holder})",
                note=error.note, path=self.root, hint="close it there first; nothing was removed",
            ) from None  # fmt: skip
        try:
            yield
        finally:
            holding.release()

    # --- changing the tree

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Hold the lock of the tree, after removing what a crash left."""
        if broker.is_broker(self._disk, self.root):
            raise UsageError("the directory of a Kafka broker is read-only", path=self.root)
        topics = layout.topics_path(self.root)
        if self._disk.kind(topics) == Kind.MISSING:
            self._disk.make_directory(topics)
            self._disk.sync_directory(self.root)
        with hold_lock(self._disk, posixpath.join(topics, LOCK)):
            self._sweep()
            yield

    def _sweep(self) -> None:
        topics = layout.topics_path(self.root)
        for name in self._disk.directories(topics):
            if layout.UNFINISHED in name:
                with suppress(StorageError):  # harmless; the next change tries again
                    self._remove_tree(posixpath.join(topics, name))

    def _free(self, path: str) -> str:
        """A free temporary name next to ``path``."""
        names = (f"{path}{layout.UNFINISHED}{number}" for number in count())
        return next(name for name in names if self._disk.kind(name) == Kind.MISSING)

    def _remove_tree(self, path: str) -> None:
        for name, _ in self._disk.list(path):
            self._disk.remove(posixpath.join(path, name))
        for name in self._disk.directories(path):
            self._remove_tree(posixpath.join(path, name))
        self._disk.remove_directory(path)

    def _rename(self, source: str, target: str) -> None:
        self._disk.replace(source, target)
        self._disk.sync_directory(posixpath.dirname(target))

    def _write_settings(self, path: str, settings: Settings) -> None:
        sidecar = posixpath.join(path, DIRECTORY)
        if self._disk.kind(sidecar) == Kind.MISSING:
            self._disk.make_directory(sidecar)
            self._disk.sync_directory(path)
        write_settings(self._disk, posixpath.join(sidecar, TOPIC_NAME), settings)

    # --- life

    @property
    def open_segments(self) -> int:
        """Number of open segments."""
        return self._pool.open_segments

    def close(self) -> None:
        """Close every partition, which syncs appended records."""
        self._partitions.close()
        self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<duramen.Store {self.root!r}>"


def open_topic(address: TopicAddress, *, writable: bool, **options: Any) -> Topic:
    """A topic with a store of its own, which closing the topic closes."""
    store = Store(address.root, **options)
    topic = store.topic(address.topic)
    topic.owner, topic.is_writable = store, writable
    return topic


def _settings_of(shape: TopicShape, partitions: int) -> Settings:
    created_ms = shape.created_ms if shape.created_ms is not None else time.time_ns() // 1_000_000
    return Settings(shape.format, partitions, shape.options, created_ms, shape.retention, shape.compaction)


def _check_count(partitions: object) -> None:
    if isinstance(partitions, bool) or not isinstance(partitions, int) or not 1 <= partitions <= MAX_PARTITIONS:
        raise UsageError(f"partitions must be a number from 1 to {MAX_PARTITIONS} (got {partitions!r})")
