"""A store: topics below one root. Makes, lists, describes and removes them, and hands them out.

Every change of the tree is made under a name that no topic can have and then renamed, so a crash leaves a topic whole,
or not there at all; what it leaves half made is swept away with the next change. One lock at a time changes the tree;
appending and reading need none but the lock of the partition.
"""

from __future__ import annotations

import os
import posixpath
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from itertools import count, groupby
from types import TracebackType
from typing import Any, NamedTuple, Self

from duramen.disk import Disk, PosixDisk
from duramen.disk.base import Kind
from duramen.errors import (
    CorruptionError,
    DetectionError,
    DuramenError,
    LockedError,
    StorageError,
    UnknownTopicError,
    UsageError,
)
from duramen.formats import make
from duramen.groups.locking import held, take
from duramen.groups.log import ConsumableLog, ConsumableWritableLog
from duramen.log.directory import detect
from duramen.log.place import DEFAULT_FORMAT
from duramen.log.sidecar import DIRECTORY, read_config
from duramen.store import layout
from duramen.store.names import MAX_PARTITIONS, check_topic
from duramen.store.pool import MAX_OPEN_SEGMENTS, Pool
from duramen.store.settings import Settings, read_settings, write_settings
from duramen.store.topic import Topic, missing_partition

LOCK = f"{layout.UNFINISHED}lock"
FOREIGN_FORMAT = "rustlog"
"""What an empty partition is taken for where no settings say: the tree is RustLog's."""
THREADS = 8


class Shape(NamedTuple):
    """What is known of a topic. ``is_ours``: its settings say so; otherwise its directories do."""

    format: str
    partitions: int
    options: dict[str, Any]
    created_ms: int | None
    is_ours: bool


class PartitionInfo(NamedTuple):
    """A partition as people see it. ``problem`` says why the rest is not known."""

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
        """How many offsets its partitions hold."""
        return sum((part.next_offset or 0) - (part.first_offset or 0) for part in self.partitions)

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for part in self.partitions)


class Store:
    """Topics and partitions below ``path``. Safe to use from several threads.

    ``max_open_segments`` bounds how many segments of all partitions are open at a time. ``options`` are the writer's
    (``durability``, ``linger_ms``, …), for every partition.

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
        disk: Disk | None = None,
        **options: Any,
    ) -> None:
        self.root = os.fsdecode(path)
        self._disk = disk if disk is not None else PosixDisk()
        self._pool = Pool(max_open_segments)
        self._options = options
        self._threads: ThreadPoolExecutor | None = None
        self._threads_pid = 0
        kind = self._disk.kind(self.root)
        if kind not in (Kind.DIRECTORY, Kind.MISSING):
            raise UsageError("a store is a directory", path=self.root)

    # --- topics

    def topics(self) -> list[str]:
        """The names of all topics; none where nothing was made yet."""
        return layout.list_topics(self._disk, self.root) if layout.is_store(self._disk, self.root) else []

    def topic(self, name: str) -> Topic:
        """The topic of that name. Raises `UnknownTopicError` where there is none."""
        layout.check_there(self._disk, self.root, check_topic(name))
        return Topic(self, name)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self.topics()

    def __iter__(self) -> Iterator[str]:
        return iter(self.topics())

    def create(self, name: str, partitions: int = 1, format: str | None = None, **options: Any) -> Topic:
        """Make a topic. ``options`` are its format's; the format is `keratin` unless given."""
        check_topic(name)
        _check_count(partitions)
        fmt = make(format or DEFAULT_FORMAT, **options)
        fmt.check_creation()
        settings = Settings(fmt.name, partitions, fmt.options, time.time_ns() // 1_000_000)
        with self._changing():
            final = layout.topic_path(self.root, name)
            if self._disk.kind(final) != Kind.MISSING:
                raise UsageError(f"the topic {name!r} is there already", path=self.root)
            draft = self._free(final)
            for number in range(partitions):
                path = posixpath.join(draft, layout.PARTITIONS, str(number))
                ConsumableWritableLog(path, format=fmt.name, disk=self._disk, **fmt.options).close()
            self._write_settings(draft, settings)
            self._rename(draft, final)
        return Topic(self, name)

    def describe(self, name: str) -> TopicInfo:
        """What a topic is made of. A partition that cannot be read says why."""
        shape = self._shape(name)
        parts = [self._describe(name, number, shape) for number in range(shape.partitions)]
        return TopicInfo(name, shape.format, shape.options, shape.created_ms, parts)

    def _describe(self, name: str, number: int, shape: Shape) -> PartitionInfo:
        path = layout.partition_path(self.root, name, number)
        try:
            if not self._partition_is_there(name, number, shape):
                return PartitionInfo(number, path, problem="not made yet")
            with self._reading(name, number, shape) as log:
                segments = log.segments
                size = sum(segment.size_bytes for segment in segments)
                return PartitionInfo(number, path, log.first_offset, log.next_offset, len(segments), size)
        except DetectionError:
            return PartitionInfo(number, path, 0, 0)
        except DuramenError as error:
            return PartitionInfo(number, path, problem=error.message)

    def add_partitions(self, name: str, partitions: int) -> Topic:
        """Give a topic ``partitions`` partitions in all; never fewer than it has. Keys may go to other partitions from
        then on than before, as in Kafka."""
        _check_count(partitions)
        layout.check_there(self._disk, self.root, check_topic(name))
        with self._changing():
            shape = self._shape(name)
            if partitions < shape.partitions:
                raise UsageError(
                    f"the topic {name!r} has {shape.partitions} partitions: they cannot become fewer", path=self.root
                )
            options = shape.options
            for number in range(partitions):
                if self._disk.kind(layout.partition_path(self.root, name, number)) == Kind.MISSING:
                    if shape.is_ours and number < shape.partitions:
                        raise missing_partition(layout.partition_path(self.root, name, number), number)
                    self._add_partition(name, number, shape.format, options)
            created_ms = shape.created_ms if shape.created_ms is not None else time.time_ns() // 1_000_000
            settings = Settings(shape.format, partitions, options, created_ms)
            self._write_settings(layout.topic_path(self.root, name), settings)
        return self.topic(name)

    def _add_partition(self, name: str, number: int, format: str, options: dict[str, Any]) -> None:
        final = layout.partition_path(self.root, name, number)
        draft = f"{final}{layout.UNFINISHED}0"
        if self._disk.kind(draft) != Kind.MISSING:
            self._remove_tree(draft)
        ConsumableWritableLog(draft, format=format, disk=self._disk, **options).close()
        self._rename(draft, final)

    def delete(self, name: str) -> None:
        """Remove a topic with all its records. Refused while a partition is open for append, here or elsewhere."""
        layout.check_there(self._disk, self.root, check_topic(name))
        with self._changing():
            layout.check_there(self._disk, self.root, name)
            self._refuse_links(name)
            path = layout.topic_path(self.root, name)
            self._pool.forget(path)
            gone = self._free(path)
            with ExitStack() as locks:
                for partition in layout.list_partitions(self._disk, self.root, name):
                    sidecar = posixpath.join(partition.path, DIRECTORY)
                    if self._disk.kind(sidecar) == Kind.DIRECTORY:
                        locks.enter_context(self._unused(partition, posixpath.join(sidecar, "lock")))
                self._rename(path, gone)
            self._remove_tree(gone)
            self._disk.sync_directory(layout.topics_path(self.root))

    def _refuse_links(self, name: str) -> None:
        """Raise where the topic or a partition lies elsewhere, by a link: only the link would be removed, if at all."""
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
                        hint="remove the link and what it leads to, then delete the topic",
                    )  # fmt: skip

    @contextmanager
    def _unused(self, partition: layout.Partition, lock: str) -> Iterator[None]:
        """Hold the lock of a partition's writer; raises at once where somebody else does."""
        try:
            holding = take(self._disk, lock, 0.0)
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
        """The lock of the tree, with what a crash left swept away."""
        topics = layout.topics_path(self.root)
        if self._disk.kind(topics) == Kind.MISSING:
            self._disk.make_directory(topics)
            self._disk.sync_directory(self.root)
        with held(self._disk, posixpath.join(topics, LOCK)):
            self._sweep()
            yield

    def _sweep(self) -> None:
        topics = layout.topics_path(self.root)
        for name in self._disk.directories(topics):
            if layout.UNFINISHED in name:
                with suppress(StorageError):  # what cannot be removed is in nobody's way, and is tried again
                    self._remove_tree(posixpath.join(topics, name))

    def _free(self, path: str) -> str:
        """A name for what is being made or removed, beside its place."""
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
        write_settings(self._disk, posixpath.join(sidecar, "topic.json"), settings)

    # --- for topics

    def _shape(self, name: str) -> Shape:
        settings = read_settings(self._disk, layout.settings_path(self.root, name))
        there = layout.list_partitions(self._disk, self.root, name)
        if settings is None:  # the topic may have been made this very moment
            settings = read_settings(self._disk, layout.settings_path(self.root, name))
        count = there[-1].number + 1 if there else 0
        if settings is not None:
            partitions = max(settings.partitions, count)  # another program may have added some
            return Shape(settings.format, partitions, dict(settings.options), settings.created_ms, True)
        format, options = FOREIGN_FORMAT, {}
        for partition in there:
            config = read_config(self._disk, partition.path)
            if config is not None:
                format, options = config.format, dict(config.options)
                break
            try:
                format = detect(self._disk, partition.path).format
                break
            except DetectionError:
                continue
        return Shape(format, max(count, 1), options, None, False)

    def _partition_is_there(self, name: str, number: int, shape: Shape) -> bool:
        path = layout.partition_path(self.root, name, number)
        if self._disk.kind(path) == Kind.DIRECTORY:
            return True
        if shape.is_ours:
            layout.check_there(self._disk, self.root, name)  # somebody may have deleted the whole topic meanwhile
            settings = read_settings(self._disk, layout.settings_path(self.root, name))
            if settings is None or settings.created_ms != shape.created_ms:
                raise UnknownTopicError(
                    f"the topic {name!r} was deleted and made anew", path=self.root,
                    hint="its partitions are known again in a second",
                )  # fmt: skip
            raise missing_partition(path, number)
        return False

    def _reading(self, name: str, number: int, shape: Shape) -> AbstractContextManager[ConsumableLog]:
        path = layout.partition_path(self.root, name, number)
        self._partition_is_there(name, number, shape)
        return self._pool.reading(
            path, lambda: ConsumableLog(path, disk=self._disk, format=self._reads_as(path, shape))
        )

    def _reads_as(self, path: str, shape: Shape) -> str | None:
        """The format to read with: told from the files, unless there are none yet."""
        if read_config(self._disk, path) is None and not self._disk.list(path, ("segments",)):
            return shape.format
        return None

    def _writing(self, name: str, number: int, shape: Shape) -> AbstractContextManager[ConsumableWritableLog]:
        path = layout.partition_path(self.root, name, number)
        self._partition_is_there(name, number, shape)

        def open_log() -> ConsumableWritableLog:
            is_new = not self._disk.list(path, ("segments",)) if self._disk.kind(path) == Kind.DIRECTORY else True
            options = {"format": shape.format, **shape.options} if is_new else {}
            # Somebody may delete the topic this very moment: it must not come back as one partition without settings.
            create = not shape.is_ours or self._disk.kind(posixpath.join(path, DIRECTORY)) != Kind.DIRECTORY
            try:
                if create:
                    self._partition_is_there(name, number, shape)
                return ConsumableWritableLog(path, disk=self._disk, create=create, **{**self._options, **options})
            except StorageError:
                self._partition_is_there(name, number, shape)
                raise

        return self._pool.writing(path, open_log)

    def _at_once(self, work: Callable[[int], None], numbers: Sequence[int]) -> None:
        """Run the work of several partitions side by side: each waits for a disk most of its time."""
        if len(numbers) == 1:
            work(numbers[0])
            return
        if self._threads is None or self._threads_pid != os.getpid():  # a forked child has none of the threads
            self._threads_pid = os.getpid()
            self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="duramen-store")
        futures = [self._threads.submit(work, number) for number in numbers]
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            raise errors[0]

    # --- life

    @property
    def open_segments(self) -> int:
        """How many segments are open now."""
        return self._pool.open_segments

    def close(self) -> None:
        """Close every partition; what was appended to is on the disk then."""
        if self._threads is not None:
            self._threads.shutdown()
            self._threads = None
        self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<duramen.Store {self.root!r}>"


def _check_count(partitions: object) -> None:
    if isinstance(partitions, bool) or not isinstance(partitions, int) or not 1 <= partitions <= MAX_PARTITIONS:
        raise UsageError(f"a topic has 1 to {MAX_PARTITIONS} partitions, not {partitions!r}")
