"""The same log for asyncio: every call that may touch the disk runs in a thread, the event loop never waits.

Appends that are awaited together share a group commit, as threads do.

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
from duramen.log.reader import Log, SegmentInfo, records_of
from duramen.log.report import Report
from duramen.log.window import Time
from duramen.log.writer import Appended, WritableLog
from duramen.model import Record

T = TypeVar("T")

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

    async def close(self) -> None:
        """Close the log and end its threads."""
        if self._log is not None:
            await self._run(self._log.close)
        self._threads.shutdown(wait=False)


def open(path: str | os.PathLike[str], mode: str = "r", **options: Any) -> AsyncLog:
    """Like `duramen.open`, to be used with ``async with`` or awaited."""
    return AsyncLog(os.fspath(path), mode, options)
