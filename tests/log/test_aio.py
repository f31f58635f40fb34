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


def test_groups_cursors_and_producers_are_awaited(tmp_path: Path, format_name: str) -> None:
    async def main() -> None:
        root = tmp_path / "log"
        async with duramen.aio.open(root, "a", format=format_name, **options(format_name)) as log:
            producer = await log.producer("till 4")
            assert (await producer.append(value(0), sequence=1)).stored == 1
            assert (await producer.append(value(0), sequence=1)).is_duplicate
            assert (await producer.append_batch([value(n) for n in range(1, 8)])).sequence == 8
            assert (producer.name, producer.last_sequence) == ("till 4", 8)
            group = await log.group("billing")
            held = await group.fetch(4, lease=30)
            assert [delivery.value for delivery in held] == [value(n) for n in range(4)]
            acked = await asyncio.gather(*(group.ack(delivery) for delivery in held[:2]))
            assert acked == [True, True]
            assert await group.nack(held[2]) == 1
            assert await group.extend(held[3], lease=60) > held[3].deadline_ms
            batch = await group.fetch_batch(10)
            assert batch.epochs.tolist() == [2, 1, 1, 1, 1]
            assert await group.ack_many(batch) == 5
            status = await group.status()
            assert (group.name, status.in_flight, status.lag) == ("billing", 1, 1)
            assert not await group.ack(held[2])  # it was acknowledged since
            with pytest.raises(duramen.LeaseError):
                await group.ack(held[3].offset, epoch=9)
            assert await group.reset("beginning") == 0
        async with duramen.aio.open(root) as log:
            cursor = await log.cursor("report")
            assert (cursor.name, await cursor.load()) == ("report", None)
            await cursor.store(3)
            assert await cursor.load() == 3
            assert await cursor.delete()
            with pytest.raises(duramen.UsageError, match="open for reading"):
                await log.producer("till 4")

    asyncio.run(main())


def test_a_fetch_that_is_cancelled_gives_back_what_it_gets(tmp_path: Path) -> None:
    async def main() -> None:
        async with duramen.aio.open(tmp_path / "log", "a") as log:
            group = await log.group("workers")
            waiting = asyncio.ensure_future(group.fetch(1, lease=3600, timeout_s=10))
            await asyncio.sleep(0.05)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await log.append(b"late")
            held = await group.fetch(1, timeout_s=0.05)
            for _ in range(100):
                if held:
                    break
                held = await group.fetch(1, timeout_s=0.05)
            assert [delivery.value for delivery in held] == [b"late"]
            assert await group.ack(held[0])

    asyncio.run(main())
