"""`duramen.aio`: the same log for asyncio."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import duramen
import duramen.aio
from tests.log.conftest import codec, options, value


def test_everything_awaited(tmp_path: Path, format_name: str) -> None:
    async def main() -> None:
        root = tmp_path / "log"
        async with duramen.aio.open(root, "a", format=format_name, **options(format_name)) as log:
            offsets = await asyncio.gather(*(log.append(value(n)) for n in range(40)))
            assert sorted(offsets) == list(range(40))
            assert (await log.append_batch([value(40), value(41)])) == (40, 2)
            assert (await log.read(40)).value == value(40)
            if codec(format_name).capabilities.segments:
                await log.seal()
            await log.sync()
            assert log.next_offset == log.durable_offset == 42
            assert [r.offset async for r in log.scan(38)] == [38, 39, 40, 41]
            assert [r.offset async for r in log.scan(0, max_records=3)] == [0, 1, 2]
            assert (await log.verify()).ok
        async with duramen.aio.open(root) as log:
            assert log.format == format_name
            assert sum([b.num_rows async for b in log.batches()]) == 42
            with pytest.raises(duramen.UsageError, match="open for reading"):
                await log.append(value(0))
            with pytest.raises(duramen.OffsetError):
                await log.read(1000)

    asyncio.run(main())


def test_following_wakes_up_and_can_be_cancelled(tmp_path: Path) -> None:
    async def main() -> None:
        async with duramen.aio.open(tmp_path / "log", "a") as log:
            seen: list[int] = []
            arrived = asyncio.Event()

            async def follow() -> None:
                async with duramen.aio.open(tmp_path / "log") as reader:
                    async for record in reader.scan(follow=True):
                        seen.append(record.offset)
                        arrived.set()

            task = asyncio.create_task(follow())
            for n in range(5):
                arrived.clear()
                await log.append(b"%d" % n)
                await asyncio.wait_for(arrived.wait(), 5)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert seen == list(range(5))

    asyncio.run(main())


def test_not_open_yet(tmp_path: Path) -> None:
    log = duramen.aio.open(tmp_path / "log", "a")
    with pytest.raises(duramen.UsageError, match="not open yet"):
        log.next_offset  # noqa: B018

    async def fails() -> None:
        with pytest.raises(duramen.StorageError):
            await duramen.aio.open(tmp_path / "nope")

    asyncio.run(fails())
