"""The log for asyncio: every call that may touch the disk runs in a thread, and the event loop never blocks.

The methods have the signatures of the blocking classes. Concurrent appends share a group commit, and so do concurrent
acks of a consumer group. A cancelled call may still take effect; a cancelled fetch returns its records to the group,
and a cancelled open closes the log. All tasks that wait for new records share one thread.

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
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial, wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack

import pyarrow as pa

import duramen
from duramen.arguments import check_path
from duramen.consumers import (
    POLL_S,
    ConsumableLog,
    Cursor,
    Delivery,
    DeliveryBatch,
    Group,
    Producer,
    Seconds,
)
from duramen.errors import UsageError
from duramen.formats import StoredChunk, columns_for
from duramen.log import (
    FOLLOW_WAIT_S,
    AppendOptions,
    Log,
    SegmentInfo,
    Time,
    WritableLog,
    records_of,
)
from duramen.record import Record

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", list[Delivery], DeliveryBatch)

_END: Any = object()

THREADS = 32
"""Concurrent calls per log; further calls queue."""


def awaited(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """A coroutine method that runs ``method`` of the blocking object in a thread, with its signature and docstring."""

    @wraps(method)
    async def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        name = method.__name__
        result: T = await self._run(getattr(self._object(name), name), *args, **kwargs)
        return result

    return call


class AsyncLog:
    """A log whose methods are awaited. Created by `duramen.aio.open`; use ``async with``, or ``await`` it."""

    def __init__(self, path: str, mode: str, options: dict[str, Any]) -> None:
        self.path = path
        self._make = partial(duramen.open, path, mode, **options)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="duramen")
        self._log: Log | None = None
        self._opening = asyncio.Lock()
        self._to_open: Future[ConsumableLog] | None = None
        """The result of the thread that opens the log."""
        self._closed = False
        self._waiting: asyncio.Task[None] | None = None
        """The task that waits for new records on behalf of all."""
        self._seen: object = None
        """What it saw last: see `Log.wait`."""

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
        """The blocking log, for calls that do not touch the disk."""
        if self._log is None:
            raise UsageError("the log is not open yet", hint="use `async with`, or await it first")
        return self._log

    def _object(self, method: str) -> Any:
        if not hasattr(self.log, method):
            raise UsageError("the log is open for reading", path=self.log.path, hint='open it with mode "a"')
        return self.log

    append = awaited(WritableLog.append)
    append_batch = awaited(WritableLog.append_batch)
    append_once = awaited(WritableLog.append_once)
    sync = awaited(WritableLog.sync)
    seal = awaited(WritableLog.seal)
    retain = awaited(WritableLog.retain)
    compact = awaited(WritableLog.compact)
    read = awaited(Log.read)
    offset_at = awaited(Log.offset_at)
    verify = awaited(Log.verify)
    cursors = awaited(ConsumableLog.cursors)
    producers = awaited(ConsumableLog.producers)

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
        """Arrow batches; see `Log.batches`. Leaving the loop or cancelling the task ends it."""
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

    async def chunks(
        self, from_offset: int | None = None, to_offset: int | None = None, *, verify: bool = True
    ) -> AsyncIterator[StoredChunk]:
        """Chunks as they are stored; see `Log.chunks`."""
        found = await self._run(partial(self.log.chunks, from_offset, to_offset, verify=verify))
        while (chunk := await self._run(next, found, _END)) is not _END:
            yield chunk

    async def _more(self, seen: object, timeout_s: float | None = None) -> object:
        """Wait until there may be more to read than at ``seen``, or until the timeout. One thread waits for all."""
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

    # --- without I/O

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

    # --- consumers and producers

    async def group(self, name: str, **options: Any) -> AsyncGroup:
        """The consumer group with this name; see `ConsumableLog.group`."""
        return AsyncGroup(self, await self._run(self._object("group").group, name, **options))

    async def cursor(self, name: str) -> AsyncCursor:
        """The cursor with this name; see `ConsumableLog.cursor`."""
        return AsyncCursor(self, await self._run(self._object("cursor").cursor, name))

    async def producer(self, name: str) -> AsyncProducer:
        """The producer with this name; see `ConsumableWritableLog.producer`."""
        return AsyncProducer(self, await self._run(self._object("producer").producer, name))

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
    """A consumer group whose methods are awaited. Created by ``await log.group(name)``.

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
        """The blocking group."""

    def _object(self, method: str) -> Group:
        return self.group

    ack = awaited(Group.ack)
    ack_many = awaited(Group.ack_many)
    nack = awaited(Group.nack)
    extend = awaited(Group.extend)
    status = awaited(Group.status)
    delete = awaited(Group.delete)
    reset = awaited(Group.reset)

    @property
    def name(self) -> str:
        return self.group.name

    async def fetch(self, max: int = 1, lease: Seconds | None = None, *, timeout_s: float = 0.0) -> list[Delivery]:
        """Return up to ``max`` records, each leased for ``lease`` seconds; see `Group.fetch`."""
        return await self._fetched(partial(self.group.fetch, max, lease), timeout_s)

    async def fetch_batch(self, max: int = 1, lease: Seconds | None = None, *, timeout_s: float = 0.0) -> DeliveryBatch:
        """Like `fetch`, as an Arrow batch without an object per record."""
        return await self._fetched(partial(self.group.fetch_batch, max, lease), timeout_s)

    async def _fetched(self, fetch: Callable[[], F], timeout_s: float) -> F:
        """Fetch until there are records, or until the timeout."""
        clock = asyncio.get_running_loop().time
        until = clock() + timeout_s
        seen: object = None
        while True:
            fetched, left_s = await self._fetched_now(fetch), until - clock()
            if len(fetched) or left_s <= 0:
                return fetched
            seen = await self._more(seen, min(left_s, POLL_S))

    async def _fetched_now(self, fetch: Callable[[], F]) -> F:
        """Fetch once. If the task is cancelled, return what the thread fetches to the group."""
        fetching = asyncio.ensure_future(self._run(fetch))
        try:
            return await asyncio.shield(fetching)
        except asyncio.CancelledError:
            fetching.add_done_callback(self._give_back)
            raise

    def _give_back(self, fetched: asyncio.Future[F]) -> None:
        if not fetched.cancelled() and fetched.exception() is None and len(fetched.result()):
            nacking = asyncio.ensure_future(self._run(self.group.nack, fetched.result()))
            nacking.add_done_callback(_ignore)  # if the log is closed by now, the leases expire


class AsyncProducer:
    """A producer whose methods are awaited. Created by ``await log.producer(name)``."""

    def __init__(self, log: AsyncLog, producer: Producer) -> None:
        self._run = log._run
        self.producer = producer
        """The blocking producer."""

    def _object(self, method: str) -> Producer:
        return self.producer

    append = awaited(Producer.append)
    append_batch = awaited(Producer.append_batch)

    @property
    def name(self) -> str:
        return self.producer.name

    @property
    def last_sequence(self) -> int | None:
        return self.producer.last_sequence


class AsyncCursor:
    """A cursor whose methods are awaited. Created by ``await log.cursor(name)``."""

    def __init__(self, log: AsyncLog, cursor: Cursor) -> None:
        self._run = log._run
        self.cursor = cursor
        """The blocking cursor."""

    def _object(self, method: str) -> Cursor:
        return self.cursor

    load = awaited(Cursor.load)
    store = awaited(Cursor.store)
    load_timestamp = awaited(Cursor.load_timestamp)
    store_timestamp = awaited(Cursor.store_timestamp)
    delete = awaited(Cursor.delete)

    @property
    def name(self) -> str:
        return self.cursor.name


def _close_opened(opening: Future[ConsumableLog]) -> None:
    """Runs in a thread: wait until the log is open, and close it."""
    wait([opening])
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


def _ignore(done: asyncio.Future[Any]) -> None:
    if not done.cancelled():
        done.exception()


def open(
    path: duramen.Path, mode: str = "r", *, format: str | None = None, **options: Unpack[AppendOptions]
) -> AsyncLog:
    """Like `duramen.open`, for ``async with`` or ``await``."""
    return AsyncLog(check_path(path), mode, {"format": format, **options})
