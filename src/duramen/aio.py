"""The same log for asyncio: every call that may touch the disk runs in a thread, the event loop never waits.

Appends that are awaited together share a group commit, as threads do, and so do the acks of a consumer group. A call
that is cancelled may have happened all the same; what a cancelled fetch gets is given back, and what a cancelled open
opens is closed. Whoever waits for records, however many they are, holds one thread between them: the others work.

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
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

import pyarrow as pa

import duramen
from duramen.errors import UsageError
from duramen.formats.base import columns_for
from duramen.groups.cursors import Cursor, CursorState
from duramen.groups.deliveries import Delivery, DeliveryBatch, Handed, Seconds
from duramen.groups.group import POLL_S, Group, GroupStatus
from duramen.groups.log import ConsumableLog, ConsumableWritableLog
from duramen.groups.producers import Confirmed, Producer, ProducerState
from duramen.log.compaction.compact import Compaction, CompactionReport
from duramen.log.reader import FOLLOW_WAIT_S, Log, SegmentInfo
from duramen.log.report import Report
from duramen.log.requests import Appended
from duramen.log.retention import Retention, RetentionPlan
from duramen.log.rows import records_of
from duramen.log.window import Time
from duramen.log.writer import WritableLog
from duramen.model import Record

T = TypeVar("T")
F = TypeVar("F", list[Delivery], DeliveryBatch)

_END: Any = object()

THREADS = 32
"""How many calls of one log may wait for the disk at the same time; more queue up."""


class AsyncLog:
    """A log whose methods are awaited. Made by `duramen.aio.open`; use it with ``async with`` or ``await`` it."""

    def __init__(self, path: str, mode: str, options: dict[str, Any]) -> None:
        self.path = path
        self._make = partial(duramen.open, path, mode, **options)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="duramen")
        self._log: Log | None = None
        self._opening = asyncio.Lock()
        self._to_open: Future[ConsumableLog] | None = None
        """The log as soon as a thread has opened it."""
        self._closed = False
        self._waiting: asyncio.Task[None] | None = None
        """The one who waits for records, for all."""
        self._seen: object = None
        """What it saw last; see `Log.wait`."""

    async def _run(self, call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        if self._closed:
            raise UsageError("the log is closed", path=self.path)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, partial(call, *args, **kwargs))

    def __await__(self) -> Generator[Any, None, Self]:
        return self._opened().__await__()

    async def _opened(self) -> Self:
        async with self._opening:
            if self._closed:
                raise UsageError("the log is closed", path=self.path)
            if self._log is None:
                self._to_open = opening = self._threads.submit(self._make)
                try:
                    log = await asyncio.wrap_future(opening)
                except asyncio.CancelledError:
                    opening.add_done_callback(_close_opened)
                    raise
                if self._closed:  # while it was being opened
                    raise UsageError("the log is closed", path=self.path)
                self._log = log
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

    async def append_once(self, data: Iterable[Any], *, writer: str, batch: int) -> Appended | None:
        """Append all at once and exactly once; see `WritableLog.append_once`."""
        return await self._run(self._writable().append_once, data, writer=writer, batch=batch)

    async def retain(self, rules: Retention | None = None, *, dry_run: bool = False) -> RetentionPlan:
        """Remove the oldest segments; see `WritableLog.retain`."""
        return await self._run(self._writable().retain, rules, dry_run=dry_run)

    async def compact(self, how: Compaction | None = None, *, dry_run: bool = False) -> CompactionReport:
        """Keep the newest record of every key; see `WritableLog.compact`."""
        return await self._run(self._writable().compact, how, dry_run=dry_run)

    # --- reading

    async def read(self, offset: int) -> Record:
        return await self._run(self.log.read, offset)

    async def offset_at(self, timestamp: Time) -> int:
        return await self._run(self.log.offset_at, timestamp)

    async def verify(self) -> Report:
        return await self._run(self.log.verify)

    async def batches(
        self,
        from_offset: int | None = None,
        to_offset: int | None = None,
        *,
        from_time: Time | None = None,
        to_time: Time | None = None,
        max_records: int | None = None,
        max_bytes: int | None = None,
        columns: Sequence[str] | None = None,
        follow: bool = False,
        verify: bool = True,
    ) -> AsyncIterator[pa.RecordBatch]:
        """Arrow batches; see `Log.batches`. Leaving the loop, or a cancellation, ends it at once."""
        names = columns_for(self.log.codec, columns)
        bounds = from_offset, to_offset, from_time, to_time, max_records, max_bytes
        passes = (await self._run(self.log._window, *bounds)).passes(names, verify)
        seen: object = None
        while (batch := await self._run(next, passes, _END)) is not _END:
            if batch is not None:
                yield batch
            elif follow:
                seen = await self._more(seen)
            else:
                return

    async def _more(self, seen: object, timeout_s: float | None = None) -> object:
        """Return when there may be more to read than when ``seen`` was answered, or the time is over. One thread waits
        for all."""
        if seen is self._seen:
            waiting = self._waiting
            if waiting is None or waiting.done():
                self._waiting = waiting = asyncio.ensure_future(self._wait())
                waiting.add_done_callback(_ignore)
            await asyncio.wait([waiting], timeout=timeout_s)
            if waiting.done():
                waiting.result()
        return self._seen

    async def _wait(self) -> None:
        self._seen = await self._run(self.log.wait, FOLLOW_WAIT_S, self._seen)

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

    async def cursors(self) -> list[CursorState]:
        """Every cursor of this log."""
        return await self._run(self._consumable().cursors)

    async def producers(self) -> list[ProducerState]:
        """Every producer that this log knows, with its last sequence."""
        return await self._run(self._consumable().producers)

    async def close(self) -> None:
        """Close the log and end its threads."""
        if self._closed:
            return
        closing = None if self._to_open is None else self._threads.submit(_close_opened, self._to_open)
        self._closed = True
        self._threads.shutdown(wait=False)
        if closing is not None:
            await asyncio.shield(asyncio.wrap_future(closing))


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
        self._more = log._more
        self.group = group
        """The group behind it."""

    @property
    def name(self) -> str:
        return self.group.name

    async def fetch(self, max: int = 1, lease: Seconds | None = None, *, timeout_s: float = 0.0) -> list[Delivery]:
        """Up to ``max`` records, each yours for ``lease`` seconds; see `Group.fetch`."""
        return await self._fetched(partial(self.group.fetch, max, lease), timeout_s)

    async def fetch_batch(self, max: int = 1, lease: Seconds | None = None, *, timeout_s: float = 0.0) -> DeliveryBatch:
        """The same as an Arrow batch, without an object per record."""
        return await self._fetched(partial(self.group.fetch_batch, max, lease), timeout_s)

    async def _fetched(self, fetch: Callable[[], F], timeout_s: float) -> F:
        """Fetch until there is something, or the time is over."""
        clock = asyncio.get_running_loop().time
        until = clock() + timeout_s
        seen: object = None
        while True:
            fetched, left_s = await self._fetched_now(fetch), until - clock()
            if len(fetched) or left_s <= 0:
                return fetched
            seen = await self._more(seen, min(left_s, POLL_S))

    async def _fetched_now(self, fetch: Callable[[], F]) -> F:
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

    async def delete(self) -> bool:
        """Forget the group; False where there was nothing to forget."""
        return await self._run(self.group.delete)

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


def _close_opened(opening: Future[ConsumableLog]) -> None:
    """In a thread: close a log once it is open, if it is opened at all."""
    wait([opening])
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


def _ignore(done: asyncio.Future[Any]) -> None:
    if not done.cancelled():
        done.exception()


def open(path: duramen.Path, mode: str = "r", **options: Any) -> AsyncLog:
    """Like `duramen.open`, to be used with ``async with`` or awaited."""
    return AsyncLog(os.fsdecode(path), mode, options)
