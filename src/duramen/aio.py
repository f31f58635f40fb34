"""Logs and stores for asyncio: every call that may touch the disk runs in a thread, and the event loop never blocks.

Each class delegates to a blocking object. `awaited` makes a coroutine of a blocking method, `made` one that wraps the
result, `iterated` an asynchronous iterator, and `Value` passes on an attribute that needs no disk: signatures, types
and docstrings are those of the blocking classes. Concurrent appends share a group commit, and so do concurrent acks. A
cancelled call may still take effect; a cancelled fetch returns its records to the group, and a cancelled open closes
the log. All tasks that wait for new records of a log share one thread.

>>> import asyncio, tempfile, duramen.aio
>>> async def main():
...     async with duramen.aio.open(tempfile.mkdtemp() + "/events", "a") as log:
...         print(sorted(await asyncio.gather(*(log.append(b"v%d" % n) for n in range(3)))))
...         group = await log.group("billing")
...         async with group.consume(timeout_s=0) as loop:
...             print([delivery.value async for delivery in loop], (await group.status()).lag)
>>> asyncio.run(main())
[0, 1, 2]
[b'v0', b'v1', b'v2'] 0
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial, wraps
from inspect import signature
from itertools import islice
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, Unpack

import pyarrow as pa

import duramen
from duramen import Cursor, Delivery, Group, Log, Producer, Topic, TopicDelivery, TopicGroup, TopicProducer, WritableLog
from duramen.arguments import check_path
from duramen.consumers import POLL_S, ConsumeLoop, ConsumeOptions
from duramen.errors import UsageError
from duramen.formats import columns_for
from duramen.log import FOLLOW_WAIT_S, AppendOptions, SegmentInfo, WriterOptions, records_of
from duramen.record import Record
from duramen.values import Decoding

A = TypeVar("A")
B = TypeVar("B")
D = TypeVar("D")
P = ParamSpec("P")
T = TypeVar("T")
Asynchronous = Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]

_END: Any = object()

THREADS = 32
"""Concurrent calls per log; further calls queue."""


def awaited(method: Callable[Concatenate[Any, P], T]) -> Asynchronous[P, T]:
    """A coroutine method that runs ``method`` of the blocking object in a thread."""
    return made(method, lambda _part, result: result)


def made(method: Callable[Concatenate[Any, P], B], wrap: Callable[[Any, B], A]) -> Asynchronous[P, A]:
    """`awaited`, with the result wrapped."""

    @wraps(method)
    async def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> A:
        return wrap(self, await self._run(self._method(method), *args, **kwargs))

    return call


def fetched(method: Callable[Concatenate[Any, P], T]) -> Asynchronous[P, T]:
    """`awaited`, for a fetch: it waits for records without a thread."""

    @wraps(method)
    async def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        timeout_s = kwargs.pop("timeout_s", 0.0)
        result: T = await self._fetched(partial(self._method(method), *args, **kwargs), timeout_s)
        return result

    return call


def iterated(
    method: Callable[Concatenate[Any, P], Iterator[T]], ahead: int = 1
) -> Callable[Concatenate[Any, P], AsyncIterator[T]]:
    """A method that iterates over the result of ``method`` in a thread, ``ahead`` items at a time."""

    @wraps(method)
    async def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        if kwargs.get("follow"):
            raise UsageError("this cannot be followed in asyncio", hint="use scan() of a log, or consume() of a group")
        found = iter(await self._run(self._method(method), *args, **kwargs))
        while items := await self._run(lambda: list(islice(found, ahead))):
            for item in items:
                yield item

    return call


def like(
    method: Callable[Concatenate[Any, P], Iterator[T]],
) -> Callable[[Callable[..., AsyncIterator[T]]], Callable[Concatenate[Any, P], AsyncIterator[T]]]:
    """Give an asynchronous iterator the signature and docstring of a blocking one."""
    return wraps(method)


class Value(Generic[T]):
    """An attribute of the blocking object that needs no disk."""

    def __set_name__(self, owner: type[Any], name: str) -> None:
        self._name = name

    def __get__(self, owner: Any, kind: type[Any] | None = None) -> T:
        found: T = getattr(owner.blocking, self._name)
        return found


class AsyncPart(Generic[B]):
    """A group, cursor, producer or topic of an open log or store."""

    blocking: B
    _run: Any
    _more: Any

    def __init__(self, above: AsyncPart[Any], blocking: B) -> None:
        self._run, self._more, self.blocking = above._run, above._more, blocking

    name = Value[str]()

    def _method(self, method: Callable[..., Any]) -> Callable[..., Any]:
        found: Callable[..., Any] | None = getattr(self.blocking, method.__name__, None)
        if found is None:
            raise UsageError("the log is open for reading", hint='open it with mode "a"')
        return found


class AsyncHandle(AsyncPart[B]):
    """A log or store that a thread opens and closes. Use ``async with``, or ``await`` it."""

    def __init__(self, make: Callable[[], B], path: str, what: str) -> None:
        self.path = path
        self._make = make
        self._what = what
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="duramen")
        self._opening = asyncio.Lock()
        self._to_open: Future[B] | None = None
        """The result of the thread that opens it."""
        self._closed = False

    def __getattr__(self, name: str) -> Any:
        if name == "blocking":
            raise UsageError(f"the {self._what} is not open yet", hint="use `async with`, or await it first")
        raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError(f"the {self._what} is closed", path=self.path)

    async def _run(self, call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        self._check_open()
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(call, *args, **kwargs))

    def __await__(self) -> Generator[Any, None, Self]:
        return self._opened().__await__()

    async def _opened(self) -> Self:
        async with self._opening:
            self._check_open()
            if "blocking" not in vars(self):
                self._to_open = opening = self._threads.submit(self._make)
                try:
                    blocking = await asyncio.wrap_future(opening)
                except asyncio.CancelledError:
                    opening.add_done_callback(_close_opened)
                    raise
                self._check_open()  # it may have been closed while it was being opened
                self.blocking = blocking
        return self

    async def __aenter__(self) -> Self:
        return await self._opened()

    async def __aexit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def _more(self, seen: object, timeout_s: float) -> object:
        """Wait until there may be more records than at ``seen``, or until the timeout."""
        await asyncio.sleep(timeout_s)
        return seen

    async def close(self) -> None:
        """Close it and end its threads."""
        if self._closed:
            return
        closing = None if self._to_open is None else self._threads.submit(_close_opened, self._to_open)
        self._closed = True
        self._threads.shutdown(wait=False)
        if closing is not None:
            await asyncio.shield(asyncio.wrap_future(closing))


class AsyncConsumeLoop(Generic[D]):
    """The deliveries of a group; see `ConsumeLoop`. The blocking loop runs in a thread of its own."""

    def __init__(self, loop: ConsumeLoop[D]) -> None:
        self._loop = loop
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="duramen-consume")
        self.stop = loop.stop

    async def _run(self, call: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call, *args)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> D:
        self._loop.catch_signals()  # of this thread
        try:
            delivery: D = await self._run(next, self._loop, _END)
        except asyncio.CancelledError:  # the thread may still fetch a record, which the loop then returns
            self._loop.stop()
            self._thread.submit(self._loop.close)
            raise
        if delivery is _END:
            self._loop.release_signals()
            raise StopAsyncIteration
        return delivery

    async def run(self, handle: Callable[[D], Awaitable[object]]) -> int:
        """Await ``handle`` for each record until the loop is stopped; see `ConsumeLoop.run`."""
        done = 0
        async with self:
            async for delivery in self:
                try:
                    await handle(delivery)
                except Exception as error:  # noqa: BLE001  the group delivers the record again
                    await self._run(self._loop.fail, error)
                else:
                    done += 1
        return done

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        self._loop.release_signals()
        await asyncio.shield(self._run(self._loop.__exit__, kind, error, trace))


class AsyncConsumer(AsyncPart[B], Generic[B, D]):
    """What groups of logs and of topics have in common."""

    async def _fetched(self, fetch: Callable[..., T], timeout_s: float) -> T:
        """Fetch until there are records, or until the timeout."""
        clock = asyncio.get_running_loop().time
        until = clock() + timeout_s
        seen: object = None
        while True:
            found, left_s = await self._fetched_now(fetch), until - clock()
            if found or left_s <= 0:
                return found
            seen = await self._more(seen, min(left_s, POLL_S))

    async def _fetched_now(self, fetch: Callable[[], T]) -> T:
        """Fetch once. If the task is cancelled, return what the thread fetches to the group."""
        fetching = asyncio.ensure_future(self._run(fetch))
        try:
            return await asyncio.shield(fetching)
        except asyncio.CancelledError:
            fetching.add_done_callback(self._give_back)
            raise

    def _give_back(self, found: asyncio.Future[Any]) -> None:
        if not found.cancelled() and found.exception() is None and found.result():
            nacking = asyncio.ensure_future(self._run(self._method(Group.nack), found.result()))
            nacking.add_done_callback(_ignore)  # if the log is closed by now, the leases expire

    def consume(self, **options: Unpack[ConsumeOptions]) -> AsyncConsumeLoop[D]:
        """A loop over the deliveries that extends leases, acknowledges, returns and stops; see `ConsumeLoop`."""
        return AsyncConsumeLoop(self._method(Group.consume)(**options))


class AsyncGroup(AsyncConsumer[Group, Delivery]):
    """A consumer group whose methods are awaited. Created by ``await log.group(name)``."""

    fetch, fetch_batch = fetched(Group.fetch), fetched(Group.fetch_batch)
    ack, ack_many, nack = awaited(Group.ack), awaited(Group.ack_many), awaited(Group.nack)
    extend, status, reset = awaited(Group.extend), awaited(Group.status), awaited(Group.reset)
    members, stuck, replay = awaited(Group.members), awaited(Group.stuck), awaited(Group.replay)
    delete = awaited(Group.delete)


class AsyncTopicGroup(AsyncConsumer[TopicGroup, TopicDelivery]):
    """A consumer group of a topic whose methods are awaited. Created by ``await topic.group(name)``."""

    fetch, fetch_batch = fetched(TopicGroup.fetch), fetched(TopicGroup.fetch_batch)
    ack, ack_many, nack = awaited(TopicGroup.ack), awaited(TopicGroup.ack_many), awaited(TopicGroup.nack)
    extend, status, reset = awaited(TopicGroup.extend), awaited(TopicGroup.status), awaited(TopicGroup.reset)
    members, stuck, replay = awaited(TopicGroup.members), awaited(TopicGroup.stuck), awaited(TopicGroup.replay)


class AsyncProducer(AsyncPart[Producer]):
    """A producer whose methods are awaited. Created by ``await log.producer(name)``."""

    append, append_batch = awaited(Producer.append), awaited(Producer.append_batch)
    last_sequence = Value[int | None]()


class AsyncTopicProducer(AsyncPart[TopicProducer]):
    """A producer of a topic whose methods are awaited. Created by ``await topic.producer(name)``."""

    append = awaited(TopicProducer.append)


class AsyncCursor(AsyncPart[Cursor]):
    """A cursor whose methods are awaited. Created by ``await log.cursor(name)``."""

    load, store, delete = awaited(Cursor.load), awaited(Cursor.store), awaited(Cursor.delete)
    load_timestamp, store_timestamp = awaited(Cursor.load_timestamp), awaited(Cursor.store_timestamp)


class AsyncTopic(AsyncPart[Topic]):
    """A topic whose methods are awaited. Created by ``await store.topic(name)``."""

    append, append_batch = awaited(Topic.append), awaited(Topic.append_batch)
    read, offsets = awaited(Topic.read), awaited(Topic.offsets)
    retain, compact = awaited(Topic.retain), awaited(Topic.compact)
    scan, batches = iterated(Topic.scan, ahead=256), iterated(Topic.batches)
    group, producer = made(Topic.group, AsyncTopicGroup), made(Topic.producer, AsyncTopicProducer)
    format = Value[str]()


class AsyncStore(AsyncHandle[duramen.Store]):
    """A store whose methods are awaited: `duramen.aio.Store` takes what `duramen.Store` takes."""

    def __init__(self, path: duramen.Path, **options: Unpack[WriterOptions]) -> None:
        super().__init__(partial(duramen.Store, path, **options), check_path(path), "store")

    topics, describe = awaited(duramen.Store.topics), awaited(duramen.Store.describe)
    topic, create = made(duramen.Store.topic, AsyncTopic), made(duramen.Store.create, AsyncTopic)
    configure, delete = made(duramen.Store.configure, AsyncTopic), awaited(duramen.Store.delete)
    add_partitions = made(duramen.Store.add_partitions, AsyncTopic)


Store = AsyncStore


class AsyncLog(AsyncHandle[Log]):
    """A log whose methods are awaited. Created by `duramen.aio.open`."""

    _waiting: asyncio.Task[None] | None = None
    """The task that waits for new records on behalf of all."""
    _seen: object = None
    """What it saw last: see `Log.wait`."""

    append, append_batch = awaited(WritableLog.append), awaited(WritableLog.append_batch)
    append_once, sync, seal = awaited(WritableLog.append_once), awaited(WritableLog.sync), awaited(WritableLog.seal)
    retain, compact = awaited(WritableLog.retain), awaited(WritableLog.compact)
    read, offset_at, verify = awaited(Log.read), awaited(Log.offset_at), awaited(Log.verify)
    table = awaited(Log.table)
    groups, cursors, producers = awaited(Log.groups), awaited(Log.cursors), awaited(Log.producers)
    group, cursor = made(Log.group, AsyncGroup), made(Log.cursor, AsyncCursor)
    producer = made(WritableLog.producer, AsyncProducer)
    chunks = iterated(Log.chunks)
    format = Value[str]()
    first_offset, next_offset, durable_offset = Value[int](), Value[int](), Value[int]()
    segments = Value[list[SegmentInfo]]()

    @like(Log.batches)
    async def batches(self, *bounds: Any, **options: Any) -> AsyncIterator[pa.RecordBatch]:
        given = signature(Log.batches).bind(self.blocking, *bounds, **options)
        given.apply_defaults()
        _, *window, columns, follow, verify, options = given.arguments.values()
        limits = dict(zip(("from_time", "to_time", "max_records", "max_bytes"), window[2:], strict=True))
        names = columns_for(self.blocking.codec, columns)
        decoding = Decoding.of(options, self.blocking.path)
        needed = names if decoding is None else decoding.needed(names)
        if decoding is not None:
            await self._run(decoding.bind, self.blocking._sample(*window[:2], **limits, columns=needed))
        passes = (await self._run(self.blocking._window, *window)).passes(needed, verify)
        seen: object = None
        while (batch := await self._run(next, passes, _END)) is not _END:
            if batch is not None and decoding is not None:
                decoded, error = await self._run(decoding.until_malformed, batch, names)
                if decoded.num_rows:
                    yield decoded
                if error is not None:
                    raise error
            elif batch is not None:
                yield batch
            elif follow:
                seen = await self._more(seen)
            else:
                return

    @like(Log.scan)
    async def scan(self, *bounds: Any, **options: Any) -> AsyncIterator[Record]:
        async for batch in self.batches(*bounds, **options):
            for record in records_of(batch):
                yield record

    async def _more(self, seen: object, timeout_s: float | None = None) -> object:
        """One thread waits for all."""
        if seen is self._seen:
            if self._waiting is None or self._waiting.done():
                self._waiting = asyncio.ensure_future(self._wait())
                self._waiting.add_done_callback(_ignore)
            waiting = self._waiting
            await asyncio.wait([waiting], timeout=timeout_s)
            if waiting.done():
                waiting.result()
        return self._seen

    async def _wait(self) -> None:
        self._seen = await self._run(self.blocking.wait, FOLLOW_WAIT_S, self._seen)


def open(
    path: duramen.Path, mode: str = "r", *, format: str | None = None, **options: Unpack[AppendOptions]
) -> AsyncLog:
    """Like `duramen.open`, for ``async with`` or ``await``."""
    text = check_path(path)
    return AsyncLog(partial(_open_log, text, mode, {"format": format, **options}), text, "log")


def _open_log(path: str, mode: str, options: dict[str, Any]) -> Log:
    opened: Log | Topic = duramen.open(path, mode, **options)  # type: ignore[call-overload]
    if isinstance(opened, Topic):
        opened.close()
        raise UsageError("this is a topic, not a log", path=path, hint="use duramen.aio.Store")
    return opened


def _close_opened(opening: Future[Any]) -> None:
    """Runs in a thread: wait until it is open, and close it."""
    wait([opening])
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


def _ignore(done: asyncio.Future[Any]) -> None:
    if not done.cancelled():
        done.exception()
