"""A topic: several logs of one format that look like one. Appends go to a partition by their key, reads come from one
partition or from all. Within a partition records have an order, between partitions they have none.
"""

from __future__ import annotations

import posixpath
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from duramen.disk.base import Kind
from duramen.errors import CorruptionError, UnsupportedFieldError, UsageError
from duramen.groups.locking import held
from duramen.groups.log import ConsumableLog, ConsumableWritableLog
from duramen.log.intake import HeadersIn
from duramen.log.requests import Appended
from duramen.log.rows import records_of
from duramen.model import Headers, Record
from duramen.store import layout
from duramen.store.names import check_partition
from duramen.store.partitioner import Numbers, Sticky, assign, partition_of

if TYPE_CHECKING:
    from duramen.store.consumers import TopicGroup
    from duramen.store.store import Store

PARTITION = pa.field("partition", pa.int32(), nullable=False)
FOLLOW_POLL_S = 0.05
LOOK_AGAIN_S = 1.0
"""How old what is known of the number of partitions may be: another process may have added some."""


class Placed(NamedTuple):
    """Where a record was put."""

    partition: int
    offset: int


class TopicRecord(NamedTuple):
    """A record, and the partition that it is from."""

    partition: int
    offset: int
    timestamp: datetime | None
    key: bytes | None
    value: bytes
    headers: Headers | None

    @property
    def record(self) -> Record:
        return Record(*self[1:])


class Topic:
    """Made by ``store.topic(name)``. Safe to use from several threads.

    >>> import tempfile, duramen
    >>> with duramen.Store(tempfile.mkdtemp()) as store:
    ...     orders = store.create("orders", partitions=4)
    ...     print(orders.append(key=b"customer-7", value=b"one beer"))
    ...     print([(record.partition, record.value) for record in orders.scan()])
    Placed(partition=3, offset=0)
    [(3, b'one beer')]
    """

    def __init__(self, store: Store, name: str) -> None:
        self.name = name
        self._store = store
        self._sticky = Sticky()
        self._looked_s = -LOOK_AGAIN_S
        self._look()

    # --- what it is

    def _look(self) -> None:
        now_s = time.monotonic()
        if now_s - self._looked_s >= LOOK_AGAIN_S:
            self._shape = self._store._shape(self.name)
            self._looked_s = now_s

    def refresh(self) -> None:
        """Look again how many partitions there are."""
        self._looked_s = time.monotonic() - LOOK_AGAIN_S
        self._look()

    @property
    def format(self) -> str:
        return self._shape.format

    @property
    def partitions(self) -> int:
        """How many partitions there are: they are numbered from 0."""
        self._look()
        return self._shape.partitions

    def offsets(self) -> dict[int, tuple[int, int]]:
        """The first and the next offset of every partition that is there."""
        found = {}
        for number in self._there():
            with self.log(number) as log:
                found[number] = (log.first_offset, log.next_offset)
        return found

    def _there(self) -> list[int]:
        return [number for number in range(self.partitions) if self._is_there(number)]

    def _is_there(self, number: int) -> bool:
        return self._store._partition_is_there(self.name, number, self._shape)

    def _checked(self, number: int) -> int:
        if check_partition(number) >= self.partitions:
            raise UsageError(
                f"the topic {self.name!r} has no partition {number}", path=self._store.root,
                hint=f"it has 0 to {self.partitions - 1}",
            )  # fmt: skip
        return number

    def log(self, partition: int) -> AbstractContextManager[ConsumableLog]:
        """One partition's log for reading, for the time of a ``with`` block."""
        return self._store._reading(self.name, self._checked(partition), self._shape)

    def log_for_append(self, partition: int) -> AbstractContextManager[ConsumableWritableLog]:
        """One partition's log for append, for the time of a ``with`` block: for producers, sealing, syncing."""
        return self._store._writing(self.name, self._checked(partition), self._shape)

    # --- appending

    def append(
        self,
        value: bytes | bytearray | memoryview,
        *,
        key: bytes | None = None,
        headers: HeadersIn | None = None,
        timestamp: datetime | int | str | None = None,
        partition: int | None = None,
        routing_key: bytes | None = None,
        durability: str | None = None,
        timeout_s: float | None = None,
    ) -> Placed:
        """Append one record and answer where it is. Its partition is the one given, or that of its key; without a key
        it is drawn. ``routing_key`` decides instead of the key and is not stored: for formats that have no keys."""
        number = self._partition_for(value, key, partition, routing_key)
        with self.log_for_append(number) as log:
            try:
                offset = log.append(
                    value, key=key, headers=headers, timestamp=timestamp, durability=durability, timeout_s=timeout_s
                )
            except UnsupportedFieldError as error:
                raise _routed(error) from error
        return Placed(number, offset)

    def _partition_for(self, value: Any, key: bytes | None, partition: int | None, routing_key: bytes | None) -> int:
        if partition is not None:
            if routing_key is not None:
                raise UsageError("a record goes to a partition or by a routing key: one of them")
            return self._checked(partition)
        by = key if routing_key is None else routing_key
        if by is None:
            size_bytes = len(value) if isinstance(value, bytes | bytearray | memoryview) else 0
            return self._sticky.next(size_bytes, self.partitions)
        if not isinstance(by, bytes | bytearray | memoryview):
            raise UsageError(f"a key is bytes, not {type(by).__name__}", hint="encode text first: text.encode()")
        return partition_of(bytes(by), self.partitions)

    def append_batch(
        self,
        data: Any,
        *,
        partition: int | None = None,
        routing_key: Any = None,
        durability: str | None = None,
        timeout_s: float | None = None,
    ) -> dict[int, Appended]:
        """Append many records, as ``log.append_batch`` takes them, each to the partition of its key, and answer what
        each partition was given. A column ``partition`` decides where it is not null. ``routing_key``, one for each
        row, decides instead of the column ``key`` and is not stored.

        Rows of one partition keep their order. Partitions are independent: a failure in one does not take back what
        others stored, and the error says which did."""
        batch = _as_batch(data)
        wanted = self._partitions_for(batch, partition, routing_key)
        batch = batch.select([name for name in batch.schema.names if name not in ("partition", "topic")])
        parts = split(batch, wanted)
        done: dict[int, Appended] = {}

        def store(number: int) -> None:
            with self.log_for_append(number) as log:
                done[number] = log.append_batch(parts[number], durability=durability, timeout_s=timeout_s)

        try:
            self._store._at_once(store, list(parts))
        except Exception as error:
            if done:
                error.add_note(f"stored in spite of it: {dict(sorted(done.items()))}")
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
            raise UsageError("there is no column 'value'")
        keys = columns.get("key")
        if routing_key is not None:
            keys = routing_key if isinstance(routing_key, pa.Array | pa.ChunkedArray) else pa.array(routing_key)
            if len(keys) != rows:
                raise UsageError(f"{len(keys)} routing keys do not fit {rows} records")
        if keys is not None and pa.types.is_null(keys.type):
            keys = None
        found = assign(keys, columns["value"], self.partitions, self._sticky)
        if "partition" in columns:
            given = columns["partition"].cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
            for number in np.unique(given[given != -1]).tolist():
                self._checked(number)
            found = np.where(given >= 0, given, found)
        return found

    # --- reading

    def read(self, partition: int, offset: int) -> Record:
        """The record with that offset in that partition."""
        with self.log(partition) as log:
            return log.read(offset)

    def scan(self, partition: int | None = None, **window: Any) -> Iterator[TopicRecord]:
        """The records of one partition, or of all, one partition behind another. See `batches`."""
        for number, batch in self._batches(partition, None, window):
            for record in records_of(batch):
                yield TopicRecord(number, *record)

    def batches(
        self, partition: int | None = None, *, columns: Sequence[str] | None = None, **window: Any
    ) -> Iterator[pa.RecordBatch]:
        """The same as Arrow batches, with a column ``partition`` in front. ``from_offset``, ``to_offset``,
        ``from_time``, ``to_time``, ``max_records``, ``max_bytes`` and ``follow`` as for a log; over all partitions the
        offsets and limits are each partition's."""
        named = None if columns is None else [name for name in columns if name != PARTITION.name]
        for number, batch in self._batches(partition, named, window):
            with_partition = pa.array(np.full(batch.num_rows, number, np.int32))
            schema = pa.schema([PARTITION, *batch.schema])
            yield pa.RecordBatch.from_arrays([with_partition, *batch.columns], schema=schema)

    def _batches(
        self, partition: int | None, columns: Sequence[str] | None, window: dict[str, Any]
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        if window.get("follow") and partition is None:
            yield from self._follow(columns, window)
            return
        for number in self._there() if partition is None else [self._checked(partition)]:
            with self.log(number) as log:
                for batch in log.batches(columns=columns, **window):
                    yield number, batch

    def _follow(self, columns: Sequence[str] | None, window: dict[str, Any]) -> Iterator[tuple[int, pa.RecordBatch]]:
        """All partitions in turn, for ever; partitions that are added join in."""
        if window.keys() & {"max_records", "max_bytes", "to_offset", "to_time"}:
            raise UsageError("following all partitions has no end: follow one of them, or leave the limits out")
        at: dict[int, int] = {}
        first: dict[str, Any] = {key: value for key, value in window.items() if key != "follow"}
        while True:
            found = False
            for number in self._there():
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

    # --- consumers

    def group(self, name: str, **options: Any) -> TopicGroup:
        """A consumer group over all partitions: ``fetch(max, lease)``, ``ack``, ``nack``, ``extend``."""
        from duramen.store.consumers import TopicGroup

        return TopicGroup(self, name, options)

    def _beginning(self) -> AbstractContextManager[None]:
        """Held while a group starts in several partitions: another one must not take it for older than it is."""
        sidecar = posixpath.dirname(layout.settings_path(self._store.root, self.name))
        disk = self._store._disk
        if disk.kind(sidecar) != Kind.DIRECTORY:
            return nullcontext()
        return held(disk, posixpath.join(sidecar, "groups.lock"))

    def __repr__(self) -> str:
        return f"<duramen.Topic {self.name!r} of {self._store.root!r}>"


def _as_batch(data: Any) -> pa.RecordBatch:
    if isinstance(data, pa.RecordBatch):
        return data
    if isinstance(data, pa.Table):
        batches = data.combine_chunks().to_batches()
        if len(batches) > 1:
            raise UsageError("the table holds more than 2 GiB of values", hint="append it batch by batch")
        return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=data.schema)
    if isinstance(data, pa.ChunkedArray):
        data = data.combine_chunks()
    if isinstance(data, bytes | bytearray | memoryview | str | dict):
        raise UsageError(f"a batch is a list of bytes or Arrow data, not {type(data).__name__}")
    try:
        values = data if isinstance(data, pa.Array) else pa.array(data, pa.binary())
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError) as error:
        raise UsageError(f"value: {error}") from error
    return pa.RecordBatch.from_arrays([values], names=["value"])


def split(batch: pa.RecordBatch, partitions: Numbers) -> dict[int, pa.RecordBatch]:
    """The rows of each partition, in their order, without an object per row."""
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
    hint = "routing_key= (--routing) sends records by a key that is not stored; or choose a format that carries keys"
    return UnsupportedFieldError(error.message, path=error.path, hint=hint)


def missing_partition(path: str, number: int) -> CorruptionError:
    return CorruptionError(
        f"partition {number} is gone: the topic's settings know of it", path=path, hint="restore it from a copy"
    )
