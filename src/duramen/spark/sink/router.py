"""Where the rows of a write go: into one log, or into partitions of topics by topic, partition and key.

A topic is asked for by the option or the column ``topic``; then the target is a store. Within a topic a row goes to
the partition that its column ``partition`` names, otherwise where its key belongs as Kafka's clients have it, and
keyless rows are spread. Everything is decided on whole columns.
"""

from __future__ import annotations

import posixpath
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from duramen.disk import Disk, Kind, PosixDisk
from duramen.errors import DetectionError, StorageError, UnsupportedFieldError, UsageError
from duramen.formats import Format, SupportsMoving, make
from duramen.log import DEFAULT_FORMAT, TransactionPart, check_times, format_at
from duramen.record import COLUMNS as NEUTRAL
from duramen.record import schema_of
from duramen.spark.sink.encoding import encode_piece, encoded_schema, pieces_of
from duramen.spark.sink.options import WriteOptions
from duramen.spark.sink.staging import StagedFile, StagedWriter, Staging
from duramen.store import (
    PARTITIONS,
    TOPICS,
    Sticky,
    Store,
    assign,
    check_topic,
    list_partitions,
    read_settings,
    settings_path,
    topic_path,
)

Place = tuple[str | None, int]
"""Topic and partition; None and 0 for a log by itself."""


@dataclass(frozen=True)
class SinkTarget:
    """What a write was planned to do. Travels to the executors."""

    path: str
    columns: tuple[str, ...]
    is_store: bool
    topic: str | None
    partitions: int
    replaces: bool
    is_there: bool
    clamps_times: bool | frozenset[str] = False
    options: Mapping[str, Any] = field(default_factory=dict)
    """For logs that the write creates; existing logs are checked against them."""

    def clamps(self, topic: str | None) -> bool:
        """Whether times that go back are raised in the log, or in the logs of the topic."""
        return self.clamps_times if isinstance(self.clamps_times, bool) else topic in self.clamps_times

    def with_empty(self, disk: Disk, places: Mapping[Place, list[StagedFile]]) -> dict[Place, list[StagedFile]]:
        """The places, and those that are written although they get no rows: a log is created even for no rows, and
        replacing a topic empties its other partitions."""
        found = dict(places)
        if not self.is_store:
            return {(None, 0): found.get((None, 0), [])}
        if self.replaces:
            for topic in {topic for topic, _ in places if topic is not None} | ({self.topic} if self.topic else set()):
                for partition in range(partitions_of(disk, self.path, topic, self.partitions)):
                    found.setdefault((topic, partition), [])
        return found


def plan_target(
    options: WriteOptions, columns: Sequence[str], *, overwrite: bool, disk: Disk | None = None
) -> SinkTarget:
    """Check the options and columns against what exists at the path, and raise for what cannot work."""
    disk = disk if disk is not None else PosixDisk()
    is_store = options.topic is not None or "topic" in columns
    if "partition" in columns and not is_store:
        raise UsageError(
            "column 'partition' needs a topic", hint="give the option topic or a column topic, or drop the column"
        )
    if isinstance(options.clamps_times, frozenset) and not is_store:
        raise UsageError("option lateTimestamps names topics, and one log is written", hint="give fail or clamp")
    if options.topic is not None:
        check_topic(options.topic)
    kind = disk.kind(options.path)
    if kind in (Kind.FILE, Kind.OTHER):
        raise UsageError("a log is written to a directory", path=options.path)
    given = options.log_options(is_new=True)
    there = kind == Kind.DIRECTORY and bool(disk.list(options.path, ("segments", ".duramen")))
    if is_store:
        if options.topic is None or disk.kind(topic_path(options.path, options.topic)) == Kind.MISSING:
            make(given.get("format", DEFAULT_FORMAT), **options.format_options).check_creation()
    else:
        if kind == Kind.DIRECTORY and disk.kind(posixpath.join(options.path, TOPICS)) == Kind.DIRECTORY:
            raise UsageError("topics lie here", path=options.path, hint="name one with the option topic")
        _format_for(disk, options.path, given, replaces=overwrite)
    return SinkTarget(
        options.path, tuple(columns), is_store, options.topic, options.partitions, overwrite, there,
        options.clamps_times, given,
    )  # fmt: skip


def _format_for(disk: Disk, path: str, given: Mapping[str, Any], *, replaces: bool) -> Format:
    """The format of the log at ``path``, or the one that it will have."""
    told = dict(given)
    name = told.pop("format", None)
    if not replaces and disk.kind(path) == Kind.DIRECTORY:
        try:
            return format_at(disk, path, name, told)
        except DetectionError:
            if name is None and disk.list(path, ("segments",)):
                raise  # the directory holds files, and they are not a log
    fmt = make(name or DEFAULT_FORMAT, **told)
    fmt.check_creation()
    return fmt


def log_path(place: Place) -> str:
    """Where a place lies, relative to the target."""
    topic, partition = place
    return "" if topic is None else posixpath.join(TOPICS, check_topic(topic), PARTITIONS, str(partition))


def partitions_of(disk: Disk, root: str, topic: str, otherwise: int) -> int:
    """How many partitions a topic has, or ``otherwise`` if it does not exist."""
    if disk.kind(topic_path(root, topic)) != Kind.DIRECTORY:
        return otherwise
    settings = read_settings(disk, settings_path(root, topic))
    there = max((found.number + 1 for found in list_partitions(disk, root, topic)), default=1)
    return there if settings is None else max(there, settings.partitions)


def make_topics(disk: Disk, target: SinkTarget, files: Iterable[StagedFile]) -> None:
    """Create missing topics, each as a whole, and check that the partitions are those that the tasks planned with."""
    counts = {file.topic: file.partitions for file in files if file.topic is not None}
    if target.topic is not None:
        counts.setdefault(target.topic, target.partitions)
    options = dict(target.options)
    format = options.pop("format", None)
    with Store(target.path, disk=disk) as store:
        for topic, count in counts.items():
            if disk.kind(topic_path(target.path, topic)) == Kind.MISSING:
                try:
                    store.create(topic, count, format, **options)
                except UsageError:
                    if disk.kind(topic_path(target.path, topic)) == Kind.MISSING:
                        raise  # otherwise another job was faster
    for file in files:
        if file.topic is not None and partitions_of(disk, target.path, file.topic, 0) != file.partitions:
            raise StorageError(
                f"the number of partitions of topic {file.topic!r} changed while the tasks ran", path=target.path,
                hint="run it again",
            )  # fmt: skip


def check_new(disk: Disk, target: SinkTarget, place: Place, rows: Iterable[pa.RecordBatch]) -> None:
    """Raise for rows that a new log would refuse, before it is created. A log that exists rolls the batch back."""
    topic = place[0]
    is_there = target.is_there if topic is None else disk.kind(topic_path(target.path, topic)) != Kind.MISSING
    if is_there or target.clamps(topic) or "timestamp" not in target.columns:
        return
    path = target.path if topic is None else posixpath.join(target.path, log_path(place))
    fmt = _format_for(disk, path, target.options, replaces=target.replaces)
    check_times(rows, fmt, path, time.time_ns() // 1000)


def part_of(
    disk: Disk, target: SinkTarget, place: Place, rows: Callable[[], Iterable[pa.RecordBatch]]
) -> TransactionPart:
    path = log_path(place)
    full = posixpath.join(target.path, path) if path else target.path
    fmt = _format_for(disk, full, target.options, replaces=target.replaces)
    return TransactionPart(path, rows, {"format": fmt.name, **fmt.options}, target.replaces, target.clamps(place[0]))


class Router:
    """The staged files of one task."""

    def __init__(self, target: SinkTarget, staging: Staging, task: int, name: str) -> None:
        self._target = target
        self._staging = staging
        self._name = name
        self._sticky = Sticky(first=task)
        self._schema = schema_of([column for column in target.columns if column in NEUTRAL])
        self._writers: dict[Place, StagedWriter] = {}
        self._formats: dict[Place, Format] = {}
        self._counts: dict[str, int] = {}

    def write(self, batch: pa.RecordBatch) -> None:
        rows = pa.RecordBatch.from_arrays(
            [_cast(batch.column(field.name), field) for field in self._schema], schema=self._schema
        )
        if not self._target.is_store:
            self._put((None, 0), rows)
            return
        for topic, chosen in self._topics(batch):
            part = rows if chosen is None else rows.take(chosen)
            numbers = self._numbers(topic, batch, part, chosen)
            for number in np.unique(numbers).tolist():
                mask = numbers == number
                self._put((topic, int(number)), part if mask.all() else part.filter(pa.array(mask)))

    def _topics(self, batch: pa.RecordBatch) -> list[tuple[str, pa.Array | None]]:
        """The topics of a batch, each with its rows; None for all of them."""
        if self._target.topic is not None:
            return [(self._target.topic, None)]
        column = batch.column("topic")
        if column.null_count:
            raise UsageError("a row has no topic", hint="fill the column topic, or give the option topic for all rows")
        names = pc.unique(column).to_pylist()
        if len(names) == 1:
            return [(check_topic(names[0]), None)]
        return [
            (check_topic(name), pa.array(np.flatnonzero(pc.equal(column, name).to_numpy(zero_copy_only=False))))
            for name in sorted(names)
        ]

    def _numbers(self, topic: str, batch: pa.RecordBatch, part: pa.RecordBatch, chosen: pa.Array | None) -> Any:
        count = self._counts.get(topic)
        if count is None:
            target = self._target
            count = self._counts[topic] = partitions_of(self._staging.disk, target.path, topic, target.partitions)
        given = batch.column("partition") if "partition" in batch.schema.names else None
        if given is not None and chosen is not None:
            given = given.take(chosen)
        if given is None or given.null_count == len(given):
            keys = part.column("key") if "key" in part.schema.names else None
            return assign(keys, part.column("value"), count, self._sticky)
        numbers = pc.fill_null(given, -1).to_numpy(zero_copy_only=False).astype(np.int64)
        wrong = numbers[(numbers >= count) | ((numbers < 0) & ~np.asarray(given.is_null()))]
        if len(wrong):
            raise UsageError(
                f"partition {int(wrong[0])} does not exist: topic {topic!r} has {count}",
                hint="option numPartitions says how many a new topic gets",
            )
        missing = numbers < 0
        if missing.any():
            rest = part.filter(pa.array(missing))
            keys = rest.column("key") if "key" in rest.schema.names else None
            numbers[missing] = assign(keys, rest.column("value"), count, self._sticky)
        return numbers

    def _put(self, place: Place, rows: pa.RecordBatch) -> None:
        if not rows.num_rows:
            return
        fmt = self._formats.get(place)
        if fmt is None:
            full = posixpath.join(self._target.path, log_path(place))
            fmt = _format_for(self._staging.disk, full, self._target.options, replaces=self._target.replaces)
            self._formats[place] = fmt
        _accept(fmt, rows)
        writer = self._writers.get(place)
        if writer is None:
            topic, number = place
            name = self._name if topic is None else f"{self._name}-{topic}-{number}"
            where = (topic, number, self._counts.get(topic or "", 1))
            schema = encoded_schema(fmt) if isinstance(fmt, SupportsMoving) else self._schema
            writer = self._writers[place] = StagedWriter(self._staging, f"{name}.arrow", schema, where)
        if not isinstance(fmt, SupportsMoving):
            writer.write(rows, rows.num_rows)
            return
        for piece in pieces_of(rows):
            writer.write(encode_piece(fmt, piece), piece.num_rows)

    def close(self) -> tuple[StagedFile, ...]:
        files = [writer.close() for writer in self._writers.values()]
        return tuple(file for file in files if file is not None)

    def discard(self) -> None:
        for writer in self._writers.values():
            writer.discard()


def _accept(fmt: Format, rows: pa.RecordBatch) -> None:
    """Raise for what the format cannot carry, while nothing is stored yet."""
    try:
        fmt.accept(rows)
    except UnsupportedFieldError as error:
        error.hint = error.hint or "filter such rows out, or choose a format that carries it"
        raise


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    try:
        return column if column.type == field.type else column.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        if field.name == "headers":
            hint = "drop such headers: filter(headers, h -> h.key IS NOT NULL)"
            raise UsageError("column 'headers': a row has a header that is null or has no key", hint=hint) from error
        raise UsageError(f"column {field.name!r}: {error}") from error
