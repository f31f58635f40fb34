"""A topic: several logs of one format, used like one. The key selects the partition for an append; reads
come from one partition or from all. Records are ordered within a partition only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from datetime import datetime
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar, Unpack

import numpy as np
import pyarrow as pa

from duramen.consumers import (
    Confirmed,
    ConsumableWritableLog,
    ConsumeLoop,
    ConsumeOptions,
    GroupOptions,
    check_producer,
)
from duramen.errors import CorruptionError, OffsetError, UnsupportedFieldError, UsageError
from duramen.log import (
    Appended,
    Compaction,
    CompactionReport,
    Content,
    HeadersIn,
    Retention,
    RetentionPlan,
    columns_of,
    records_of,
)
from duramen.record import Headers, Record
from duramen.store.consumers import TopicDelivery, TopicGroup
from duramen.store.partitioner import Numbers, Sticky, assign, key_column, partition_of
from duramen.store.partitions import Partitions, TopicPartitions
from duramen.values import DecodeOptions, Decoding

T = TypeVar("T")

PARTITION = pa.field("partition", pa.int32(), nullable=False)
FOLLOW_POLL_S = 0.05


class Placed(NamedTuple):
    """Where a record was stored."""

    partition: int
    offset: int


class TopicRecord(NamedTuple):
    """A record and its partition."""

    partition: int
    offset: int
    timestamp: datetime | None
    key: bytes | None
    value: bytes | None
    headers: Headers | None

    @property
    def record(self) -> Record:
        return Record(*self[1:])


class Topic(TopicPartitions):
    """A topic, created by ``store.topic(name)``. Safe to use from several threads.

    >>> import tempfile, duramen
    >>> with duramen.Store(tempfile.mkdtemp()) as store:
    ...     orders = store.create("orders", partitions=4)
    ...     print(orders.append(key=b"customer-7", value=b"one beer"))
    ...     print([(record.partition, record.value) for record in orders.scan()])
    Placed(partition=3, offset=0)
    [(3, b'one beer')]
    """

    def __init__(self, partitions: Partitions, name: str) -> None:
        super().__init__(partitions, name)
        self._sticky = Sticky()
        self.owner: AbstractContextManager[object] | None = None
        """The store that closes with the topic: that of ``duramen.open("PATH#topic")``."""

    def close(self) -> None:
        """Close the store of the topic, if it has one of its own."""
        if self.owner is not None:
            self.owner.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def offsets(self) -> dict[int, tuple[int, int]]:
        """First and next offset of every existing partition."""
        found = {}
        for number in self.existing():
            with self.log(number) as log:
                found[number] = (log.first_offset, log.next_offset)
        return found

    # --- appending

    def append(
        self,
        value: Content | None,
        *,
        key: Content | None = None,
        headers: HeadersIn | None = None,
        timestamp: datetime | int | str | None = None,
        partition: int | None = None,
        routing_key: Content | None = None,
        durability: str | None = None,
        timeout_s: float | None = None,
    ) -> Placed:
        """Append one record and return where it is. It goes to ``partition``, otherwise to the partition of its key,
        otherwise to any. ``routing_key`` replaces the key for this and is not stored: for formats without keys."""
        number = self._partition_for(value, key, partition, routing_key)
        with self.log_for_append(number) as log:
            try:
                offset = log.append(
                    value, key=key, headers=headers, timestamp=timestamp, durability=durability, timeout_s=timeout_s
                )
            except UnsupportedFieldError as error:
                raise _routed(error) from error
        return Placed(number, offset)

    def _partition_for(
        self, value: Any, key: Content | None, partition: int | None, routing_key: Content | None
    ) -> int:
        if partition is not None:
            if routing_key is not None:
                raise UsageError("partition and routing_key cannot be used together")
            return self._checked(partition)
        by = key if routing_key is None else routing_key
        if by is None:
            size_bytes = len(value) if isinstance(value, bytes | bytearray | memoryview | str) else 0
            return self._sticky.next(size_bytes, self.partitions)
        return partition_of(key_column([by])[0].as_py(), self.partitions)

    def append_batch(
        self,
        data: Any,
        *,
        partition: int | None = None,
        routing_key: Any = None,
        durability: str | None = None,
        timeout_s: float | None = None,
    ) -> dict[int, Appended]:
        """Append many records (``data`` as for ``log.append_batch``), each to the partition of its key. Return what
        each partition stored. A column ``partition`` takes precedence where it is not null. ``routing_key``, one for
        each row, replaces the column ``key`` and is not stored.

        Rows of one partition keep their order. Partitions are independent: an error in one does not roll back the
        others, and its note lists what they stored."""
        batch = columns_of(data)
        wanted = self._partitions_for(batch, partition, routing_key)
        batch = batch.select([name for name in batch.schema.names if name not in ("partition", "topic")])
        parts = split(batch, wanted)
        done: dict[int, Appended] = {}

        def store(number: int) -> None:
            with self.log_for_append(number) as log:
                done[number] = log.append_batch(parts[number], durability=durability, timeout_s=timeout_s)

        try:
            self._partitions.run_together(store, list(parts))
        except Exception as error:
            if done:
                error.add_note(f"other partitions stored their records: {dict(sorted(done.items()))}")
            if isinstance(error, UnsupportedFieldError):
                raise _routed(error) from error
            raise
        return dict(sorted(done.items()))

    def _partitions_for(self, batch: pa.RecordBatch, partition: int | None, routing_key: Any) -> Numbers:
        rows = batch.num_rows
        if partition is not None:
            return np.full(rows, self._checked(partition), np.int64)
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        if "value" not in columns:
            raise UsageError("the column 'value' is missing", hint=f"the columns are {', '.join(columns)}")
        keys = columns.get("key")
        if routing_key is not None:
            keys = key_column(routing_key)
            if len(keys) != rows:
                raise UsageError(f"routing_key must have one entry per record (got {len(keys)} for {rows} records)")
        if keys is not None and pa.types.is_null(keys.type):
            keys = None
        keys = None if keys is None else key_column(keys)
        found = assign(keys, columns["value"], self.partitions, self._sticky)
        if "partition" in columns:
            given = columns["partition"].cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
            for number in np.unique(given[given != -1]).tolist():
                self._checked(number)
            found = np.where(given >= 0, given, found)
        return found

    # --- reading

    def read(self, partition: int, offset: int, **decoding: Unpack[DecodeOptions]) -> Record:
        """The record at an offset of a partition; its value and key decoded as in `Log.read`."""
        with self.log(partition) as log:
            return log.read(offset, **decoding)

    def scan(self, /, partition: int | None = None, **window: Any) -> Iterator[TopicRecord]:
        """The records of one partition, or of all, one partition after another. See `batches`."""
        for number, batch in self._batches(partition, None, window):
            for record in records_of(batch):
                yield TopicRecord(number, *record)

    def batches(
        self, /, partition: int | None = None, *, columns: Sequence[str] | None = None, **window: Any
    ) -> Iterator[pa.RecordBatch]:
        """Like `scan`, as Arrow batches with a first column ``partition``. ``from_offset``, ``to_offset``,
        ``from_time``, ``to_time``, ``max_records``, ``max_bytes``, ``follow`` and ``decode`` with what belongs to it as
        for a log; over all partitions, offsets and limits apply to each partition."""
        named = columns
        if isinstance(columns, list | tuple):
            named = [name for name in columns if name != PARTITION.name]
        for number, batch in self._batches(partition, named, window):
            with_partition = pa.array(np.full(batch.num_rows, number, np.int32))
            schema = pa.schema([PARTITION, *batch.schema])
            yield pa.RecordBatch.from_arrays([with_partition, *batch.columns], schema=schema)

    def _batches(
        self, partition: int | None, columns: Sequence[str] | None, window: dict[str, Any]
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The batches of partitions. One decoding serves all of them, so that their columns have the same types."""
        options = {name: window.pop(name) for name in DecodeOptions.__annotations__ if name in window}
        decoding = Decoding.of(options)
        if decoding is None:
            yield from self._stored_batches(partition, columns, window)
            return
        needed = columns if columns is None else decoding.needed(columns)
        with suppress(CorruptionError, OffsetError):
            sample = self._stored_batches(partition, needed, {**window, "follow": False, "verify": False})
            decoding.bind(batch for _, batch in sample)
        for number, batch in self._stored_batches(partition, needed, window):
            decoded, error = decoding.until_malformed(batch, columns)
            if decoded.num_rows:
                yield number, decoded
            if error is not None:
                with self.log(number) as log:
                    error.path = log.path
                raise error

    def _stored_batches(
        self, partition: int | None, columns: Sequence[str] | None, window: dict[str, Any]
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        if window.get("follow") and partition is None:
            yield from self._follow(columns, window)
            return
        for number in self.existing() if partition is None else [self._checked(partition)]:
            with self.log(number) as log:
                for batch in log.batches(columns=columns, **window):
                    yield number, batch

    def _follow(self, columns: Sequence[str] | None, window: dict[str, Any]) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Read all partitions in turn, forever, including partitions added later."""
        if window.keys() & {"max_records", "max_bytes", "to_offset", "to_time"}:
            raise UsageError(
                "follow over all partitions cannot be combined with max_records, max_bytes, to_offset or to_time",
                hint="follow one partition, or drop the limits",
            )
        at: dict[int, int] = {}
        first: dict[str, Any] = {key: value for key, value in window.items() if key != "follow"}
        while True:
            found = False
            for number in self.existing():
                with self.log(number) as log:
                    start: dict[str, Any] = {"from_offset": at[number]} if number in at else first
                    end = log.next_offset
                    for batch in log.batches(columns=columns, **start):
                        found = True
                        yield number, batch
                    at[number] = max(at.get(number, 0), end)
            if not found:
                time.sleep(FOLLOW_POLL_S)

    def __iter__(self) -> Iterator[TopicRecord]:
        return self.scan()

    # --- maintenance

    def retain(self, rules: Retention | None = None, *, dry_run: bool = False) -> dict[int, RetentionPlan]:
        """Remove old segments of every partition by the topic's rules, or by others; see `WritableLog.retain`."""
        wanted = rules or self.retention
        if wanted is None:
            raise UsageError(f"the topic {self.name!r} has no retention", hint="pass rules: duramen.Retention(…)")
        return self._maintain(lambda log: log.retain(wanted, dry_run=dry_run))

    def compact(self, how: Compaction | None = None, *, dry_run: bool = False) -> dict[int, CompactionReport]:
        """Keep the newest record of every key in every partition; see `WritableLog.compact`."""
        wanted = how or self.compaction
        return self._maintain(lambda log: log.compact(wanted, dry_run=dry_run))

    def _maintain(self, work: Callable[[ConsumableWritableLog], T]) -> dict[int, T]:
        done = {}
        for number in self.existing():
            with self.log_for_append(number) as log:
                done[number] = work(log)
        return done

    # --- consumers and producers

    def producer(self, name: str) -> TopicProducer:
        """A producer that numbers its records, so that each partition stores a repeated one once."""
        return TopicProducer(self, name)

    def consume(self, group: str, **options: Unpack[ConsumeOptions]) -> ConsumeLoop[TopicDelivery]:
        """The loop of a consumer over all partitions, in the group with this name; see `ConsumeLoop`."""
        return self.group(group).consume(**options)

    def group(self, /, name: str, *, consumer: str | None = None, **options: Unpack[GroupOptions]) -> TopicGroup:
        """A consumer group over all partitions: ``fetch(max, lease)``, ``ack``, ``nack``, ``extend``."""
        return TopicGroup(self, name, {**options, **({} if consumer is None else {"consumer": consumer})})


def split(batch: pa.RecordBatch, partitions: Numbers) -> dict[int, pa.RecordBatch]:
    """Split a batch by partition, keeping the order of rows, without an object per row."""
    if not len(partitions):
        return {}
    order = np.argsort(partitions, kind="stable")
    numbers, starts = np.unique(partitions[order], return_index=True)
    if len(numbers) == 1:
        return {int(numbers[0]): batch}
    taken = batch.take(pa.array(order))
    stops = np.append(starts[1:], len(partitions))
    return {
        number: taken.slice(start, stop - start)
        for number, start, stop in zip(numbers.tolist(), starts.tolist(), stops.tolist(), strict=True)
    }


def _routed(error: UnsupportedFieldError) -> UnsupportedFieldError:
    if "'key'" not in error.message:
        return error
    hint = "use routing_key= (--routing) for keys that are not stored, or choose a format that stores keys"
    return UnsupportedFieldError(error.message, path=error.path, hint=hint)


class PlacedOnce(NamedTuple):
    """The partition of a record, and whether it was new there."""

    partition: int
    confirmed: Confirmed


class TopicProducer:
    """A producer of a topic, created by ``topic.producer(name)``: one producer of that name in each partition.

    A record with a sequence must say where it goes (a key or a partition), so that a repeated append reaches the
    partition that holds the first one. After partitions were added, keys may go elsewhere, and a repetition across that
    change is stored again.

    >>> import tempfile, duramen
    >>> with duramen.Store(tempfile.mkdtemp()) as store:
    ...     till = store.create("orders", partitions=4).producer("till 4")
    ...     print(till.append(b"one beer", key=b"customer-7", sequence=1).partition)
    ...     print(till.append(b"one beer", key=b"customer-7", sequence=1).confirmed.is_duplicate)
    3
    True
    """

    def __init__(self, topic: Topic, name: str) -> None:
        check_producer(name)
        self.name = name
        self._topic = topic

    def append(
        self,
        value: bytes | bytearray | memoryview | None,
        *,
        sequence: int | None = None,
        key: bytes | None = None,
        headers: HeadersIn | None = None,
        timestamp: datetime | int | str | None = None,
        partition: int | None = None,
        routing_key: bytes | None = None,
        durability: str | None = None,
        timeout_s: float | None = None,
    ) -> PlacedOnce:
        """Append one record unless its partition already holds its sequence."""
        if sequence is not None and partition is None and routing_key is None and key is None:
            raise UsageError(
                "a sequence needs a key, a routing_key or a partition: a repetition must reach the same partition"
            )
        number = self._topic._partition_for(value, key, partition, routing_key)
        with self._topic.log_for_append(number) as log:
            confirmed = log.producer(self.name).append(
                value, sequence=sequence, key=key, headers=headers, timestamp=timestamp, durability=durability,
                timeout_s=timeout_s,
            )  # fmt: skip
        return PlacedOnce(number, confirmed)

    def __repr__(self) -> str:
        return f"<duramen.TopicProducer {self.name!r} of {self._topic!r}>"
