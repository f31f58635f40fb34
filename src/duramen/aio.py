"""The same log for asyncio: every call that may touch the disk runs in a thread, the event loop never waits.

Appends that are awaited together share a group commit, as threads do, and so do the acks of a consumer group. A call
that is cancelled may have happened all the same; what a cancelled fetch gets is given back.

>>> import asyncio, tempfile, duramen.aio
>>> async def main():
...     async with duramen.aio.open(tempfile.mkdtemp() + "/events", "a") as log:
...         print(sorted(await asyncio.gather(*(log.append(b"v%d" % n) for n in range(3)))))
...         async for record in log.scan(from_offset=1):
...             print(record.offset)
>>> asyncio.run(main())
[0, 1, 2]
1
2
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

import pyarrow as pa

import duramen
from duramen.errors import UsageError
from duramen.groups.cursors import Cursor
from duramen.groups.deliveries import Delivery, DeliveryBatch, Handed, Seconds
from duramen.groups.group import Group, GroupStatus
from duramen.groups.log import ConsumableLog, ConsumableWritableLog
from duramen.groups.producers import Confirmed, Producer
from duramen.log.reader import Log, SegmentInfo
from duramen.log.report import Report
from duramen.log.rows import records_of
from duramen.log.window import Time
from duramen.log.writer import Appended, WritableLog
from duramen.model import Record

T = TypeVar("T")
F = TypeVar("F", list[Delivery], DeliveryBatch)

THREADS = 32
"""How many calls of one log may wait for the disk at the same time; more queue up."""


class AsyncLog:
    """A log whose methods are awaited. Made by `duramen.aio.open`; use it with ``async with`` or ``await`` it."""

    def __init__(self, path: str, mode: str, options: dict[str, Any]) -> None:
        self._make = partial(duramen.open, path, mode, **options)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="duramen")
        self._log: Log | None = None

    async def _run(self, call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, partial(call, *args, **kwargs))

    def __await__(self) -> Generator[Any, None, Self]:
        return self._opened().__await__()

    async def _opened(self) -> Self:
        if self._log is None:
            try:
                self._log = await self._run(self._make)
            except BaseException:
                self._threads.shutdown(wait=False)
                raise
        return self

    async def __aenter__(self) -> Self:
        return await self._opened()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def log(self) -> Log:
        """The log behind it, for what does not wait."""
        if self._log is None:
            raise UsageError("the log is not open yet", hint="use `async with`, or await it first")
        return self._log

    def _writable(self) -> WritableLog:
        if not isinstance(self.log, WritableLog):
            raise UsageError("the log is open for reading", path=self.log.path, hint='open it with mode "a"')
        return self.log

    # --- writing

    async def append(self, value: bytes, **record: Any) -> int:
        """Append one record; see `WritableLog.append`."""
        return await self._run(self._writable().append, value, **record)

    async def append_batch(self, data: Any, **how: Any) -> Appended:
        """Append many records; see `WritableLog.append_batch`."""
        return await self._run(self._writable().append_batch, data, **how)

    async def sync(self) -> None:
        await self._run(self._writable().sync)

    async def seal(self) -> None:
        await self._run(self._writable().seal)

    # --- reading

    async def read(self, offset: int) -> Record:
        return await self._run(self.log.read, offset)

    async def offset_at(self, timestamp: Time) -> int:
        return await self._run(self.log.offset_at, timestamp)

    async def verify(self) -> Report:
        return await self._run(self.log.verify)

    async def batches(
        self, from_offset: int | None = None, *, follow: bool = False, **bounds: Any
    ) -> AsyncIterator[pa.RecordBatch]:
        """Arrow batches; see `Log.batches`. Leaving the loop, or a cancellation, ends it at once."""
        position = from_offset or 0
        left = bounds.pop("max_records", None)
        while True:
            batches = self.log.batches(position, **bounds, max_records=left)
            while (batch := await self._run(next, batches, None)) is not None:
                if "offset" in batch.schema.names and batch.num_rows:
                    position = batch.column("offset")[-1].as_py() + 1
                left = None if left is None else left - batch.num_rows
                yield batch
            if not follow or (left is not None and left <= 0):
                return
            await self._run(self.log.wait)

    async def scan(self, from_offset: int | None = None, **bounds: Any) -> AsyncIterator[Record]:
        """Records in order; see `Log.scan`."""
        async for batch in self.batches(from_offset, **bounds):
            for record in records_of(batch):
                yield record

    # --- what does not wait

    @property
    def format(self) -> str:
        return self.log.format

    @property
    def first_offset(self) -> int:
        return self.log.first_offset

    @property
    def next_offset(self) -> int:
        return self.log.next_offset

    @property
    def durable_offset(self) -> int:
        return self.log.durable_offset

    @property
    def segments(self) -> list[SegmentInfo]:
        return self.log.segments

    # --- who consumes and who produces

    async def group(self, name: str, **options: Any) -> AsyncGroup:
        """The consumer group of that name; see `ConsumableLog.group`."""
        return AsyncGroup(self, await self._run(self._consumable().group, name, **options))

    async def cursor(self, name: str) -> AsyncCursor:
        """A position under a name."""
        return AsyncCursor(self, await self._run(self._consumable().cursor, name))

    async def producer(self, name: str) -> AsyncProducer:
        """A sender whose appends can be repeated without being stored twice."""
        log = self._writable()
        assert isinstance(log, ConsumableWritableLog)
        return AsyncProducer(self, await self._run(log.producer, name))

    def _consumable(self) -> ConsumableLog:
        assert isinstance(self.log, ConsumableLog)
        return self.log

    async def close(self) -> None:
        """Close the log and end its threads."""
        if self._log is not None:
            await self._run(self._log.close)
        self._threads.shutdown(wait=False)


class AsyncGroup:
    """A consumer group whose methods are awaited. Made by ``await log.group(name)``.

    >>> import asyncio, tempfile, duramen.aio
    >>> async def main():
    ...     async with duramen.aio.open(tempfile.mkdtemp() + "/orders", "a") as log:
    ...         await log.append_batch([b"a", b"b", b"c"])
    ...         group = await log.group("billing")
    ...         first, second = await group.fetch(2, lease=30)
    ...         print(await group.ack(first), await group.nack(second), (await group.status()).acked_until)
    >>> asyncio.run(main())
    True 1 1
    """

    def __init__(self, log: AsyncLog, group: Group) -> None:
        self._run = log._run
        self.group = group
        """The group behind it."""

    @property
    def name(self) -> str:
        return self.group.name

    async def fetch(self, max: int = 1, lease: Seconds | None = None, *, timeout_s: float = 0.0) -> list[Delivery]:
        """Up to ``max`` records, each yours for ``lease`` seconds; see `Group.fetch`."""
        return await self._fetched(partial(self.group.fetch, max, lease, timeout_s=timeout_s))

    async def fetch_batch(self, max: int = 1, lease: Seconds | None = None, *, timeout_s: float = 0.0) -> DeliveryBatch:
        """The same as an Arrow batch, without an object per record."""
        return await self._fetched(partial(self.group.fetch_batch, max, lease, timeout_s=timeout_s))

    async def _fetched(self, fetch: Callable[[], F]) -> F:
        """What the thread fetches belongs to nobody once the wait for it is cancelled: it goes back."""
        fetching = asyncio.ensure_future(self._run(fetch))
        try:
            return await asyncio.shield(fetching)
        except asyncio.CancelledError:
            fetching.add_done_callback(self._give_back)
            raise

    def _give_back(self, fetched: asyncio.Future[F]) -> None:
        if not fetched.cancelled() and fetched.exception() is None and len(fetched.result()):
            nacking = asyncio.ensure_future(self._run(self.group.nack, fetched.result()))
            nacking.add_done_callback(_ignore)  # a log that is closed by now: they come back when their lease ends

    async def ack(self, handed: Delivery | int, epoch: int | None = None, *, durability: str | None = None) -> bool:
        """Acknowledge one delivery; see `Group.ack`."""
        return await self._run(self.group.ack, handed, epoch, durability=durability)

    async def ack_many(self, handed: Handed, epochs: Any = None, *, durability: str | None = None) -> int:
        """Acknowledge many; see `Group.ack_many`."""
        return await self._run(self.group.ack_many, handed, epochs, durability=durability)

    async def nack(self, handed: Handed, epochs: Any = None, **how: Any) -> int:
        """Give back one delivery or many; see `Group.nack`."""
        return await self._run(self.group.nack, handed, epochs, **how)

    async def extend(self, handed: Handed, lease: Seconds | None = None, epochs: Any = None) -> int:
        """Hold deliveries longer; answers the new deadline in milliseconds."""
        return await self._run(self.group.extend, handed, lease, epochs)

    async def status(self) -> GroupStatus:
        return await self._run(self.group.status)

    async def reset(self, to: int | str | None = None, *, time: Time | None = None) -> int:
        """Go to an offset or a time; see `Group.reset`."""
        return await self._run(self.group.reset, to, time=time)


class AsyncProducer:
    """A named sender whose methods are awaited. Made by ``await log.producer(name)``."""

    def __init__(self, log: AsyncLog, producer: Producer) -> None:
        self._run = log._run
        self.producer = producer
        """The producer behind it."""

    @property
    def name(self) -> str:
        return self.producer.name

    @property
    def last_sequence(self) -> int | None:
        return self.producer.last_sequence

    async def append(self, value: bytes, **record: Any) -> Confirmed:
        """Append one record, unless its sequence says that it is there; see `Producer.append`."""
        return await self._run(self.producer.append, value, **record)

    async def append_batch(self, data: Any, **how: Any) -> Confirmed:
        """Append many; see `Producer.append_batch`."""
        return await self._run(self.producer.append_batch, data, **how)


class AsyncCursor:
    """A position under a name, whose methods are awaited. Made by ``await log.cursor(name)``."""

    def __init__(self, log: AsyncLog, cursor: Cursor) -> None:
        self._run = log._run
        self.cursor = cursor
        """The cursor behind it."""

    @property
    def name(self) -> str:
        return self.cursor.name

    async def load(self) -> int | None:
        return await self._run(self.cursor.load)

    async def store(self, offset: int) -> None:
        """Keep an offset; it is on the disk when this returns."""
        await self._run(self.cursor.store, offset)

    async def delete(self) -> bool:
        return await self._run(self.cursor.delete)


def _ignore(done: asyncio.Future[Any]) -> None:
    if not done.cancelled():
        done.exception()


def open(path: duramen.Path, mode: str = "r", **options: Any) -> AsyncLog:
    """Like `duramen.open`, to be used with ``async with`` or awaited."""
    return AsyncLog(os.fsdecode(path), mode, options)
