"""`duramen.aio`: the same log for asyncio."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import duramen
import duramen.aio
from duramen.formats import WRITABLE
from duramen.log.maintain.retention import Retention
from tests.log.conftest import codec, options, value


@pytest.mark.parametrize("format_name", WRITABLE)
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


def test_interval_is_a_durability(tmp_path: Path) -> None:
    async def main() -> None:
        options: dict[str, Any] = {"durability": "interval", "sync_interval_records": 3, "timer": False}
        async with duramen.aio.open(tmp_path / "log", "a", **options) as log:
            assert [(await log.append(b"v"), log.durable_offset) for _ in range(4)] == [(0, 0), (1, 0), (2, 3), (3, 3)]
            assert (await log.append(b"v", durability="fsync"), log.durable_offset) == (4, 5)

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


@pytest.mark.parametrize("format_name", WRITABLE)
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


@pytest.mark.parametrize(
    "bounds",
    [{"columns": ["value"], "max_records": 10}, {"to_offset": 10}, {"max_bytes": 20}, {"max_records": 10}],
    ids=str,
)
def test_the_bounds_of_a_follower_hold_over_all_its_passes(tmp_path: Path, bounds: dict[str, Any]) -> None:
    """Each row once, and an end where the bounds say so, though the log ended in between."""

    async def main() -> list[bytes]:
        found: list[bytes] = []
        async with duramen.aio.open(tmp_path / "log", "a") as log, duramen.aio.open(tmp_path / "log") as reader:
            await log.append_batch([b"%02d" % n for n in range(4)])

            async def follow(log: duramen.aio.AsyncLog) -> None:
                async for batch in log.batches(0, follow=True, **bounds):
                    found.extend(batch.column("value").to_pylist())

            followers = [asyncio.create_task(follow(each)) for each in (log, reader)]
            for start in (4, 8, 12):
                await asyncio.sleep(0.1)
                await log.append_batch([b"%02d" % n for n in range(start, start + 4)])
            await asyncio.wait_for(asyncio.gather(*followers), 10)
        return found

    assert sorted(asyncio.run(main())) == sorted(2 * [b"%02d" % n for n in range(10)])


def test_waiting_fetches_leave_room_for_appends(tmp_path: Path) -> None:
    """More fetches and followers wait than there are threads. An append takes its turn at once, and serves them."""

    async def main() -> None:
        async with duramen.aio.open(tmp_path / "log", "a") as log:
            group = await log.group("g")

            async def follow() -> bytes:
                async for record in log.scan(follow=True):
                    return record.value
                return b""

            many = 2 * duramen.aio.THREADS
            fetching = [asyncio.create_task(group.fetch(1, timeout_s=30)) for _ in range(many)]
            following = [asyncio.create_task(follow()) for _ in range(many)]
            await asyncio.sleep(0.3)
            began = time.monotonic()
            await log.append_batch([b"v"] * many)
            assert time.monotonic() - began < 5
            fetched = await asyncio.wait_for(asyncio.gather(*fetching), 10)
            assert sorted(delivery.offset for (delivery,) in fetched) == list(range(many))
            assert await asyncio.wait_for(asyncio.gather(*following), 10) == [b"v"] * many

    asyncio.run(main())


def test_a_cancelled_fetch_ends_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with duramen.aio.open(tmp_path / "log", "a") as log:
            group = await log.group("g")
            for pause_s in (0, 0.001, 0.05, 0.15):
                fetching = [asyncio.create_task(group.fetch(1, lease=60, timeout_s=30)) for _ in range(8)]
                await asyncio.sleep(pause_s)
                for task in fetching:
                    task.cancel()
                ended = await asyncio.wait_for(asyncio.gather(*fetching, return_exceptions=True), 5)
                assert {type(each) for each in ended} == {asyncio.CancelledError}

    asyncio.run(main())


def test_a_cancelled_open_holds_nothing(tmp_path: Path) -> None:
    """The thread cannot be stopped: what it opens all the same is closed, and the log is free for the next one."""

    async def main() -> None:
        for pause_s in (0, 0, 0.001, 0.005):
            opening = asyncio.create_task(duramen.aio.open(tmp_path / "log", "a")._opened())
            await asyncio.sleep(pause_s)
            opening.cancel()
            with suppress(asyncio.CancelledError):
                await (await opening).close()
            for patience in range(100):
                try:
                    async with duramen.aio.open(tmp_path / "log", "a") as log:
                        await log.append(b"v")
                    break
                except duramen.LockedError:
                    assert patience < 99
                    await asyncio.sleep(0.05)

    asyncio.run(main())
    assert duramen.open(tmp_path / "log").next_offset == 4


def test_a_log_that_is_closed_while_it_is_opened(tmp_path: Path) -> None:
    """It stayed open, and locked, with nobody who could close it."""

    async def main() -> None:
        log = duramen.aio.open(tmp_path / "log", "a")
        make, go_on = log._make, threading.Event()

        def slowly() -> Any:
            go_on.wait(20)
            return make()

        log._make = slowly  # type: ignore[assignment]
        opening = asyncio.create_task(log._opened())
        await asyncio.sleep(0)
        closing = asyncio.create_task(log.close())
        await asyncio.sleep(0)
        go_on.set()
        await closing
        with pytest.raises(duramen.UsageError, match="the log is closed"):
            await opening
        duramen.open(tmp_path / "log", "a").close()  # nobody holds it

    asyncio.run(main())


def test_a_closed_log_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        log = duramen.aio.open(tmp_path / "log", "a")
        assert await asyncio.gather(log._opened(), log._opened()) == [log, log]
        group = await log.group("g")

        async def follow() -> None:
            async for _ in log.scan(follow=True):
                pass

        following = asyncio.create_task(follow())
        await asyncio.sleep(0.1)
        await asyncio.gather(log.close(), log.close())
        await log.close()
        for call in (following, log.append(b"v"), group.fetch(1), log.read(0), log._opened()):
            with pytest.raises(duramen.UsageError, match="closed"):
                await call

        missing = duramen.aio.open(tmp_path / "nope")
        for _ in range(2):
            with pytest.raises(duramen.StorageError, match="no such file"):
                await missing

    asyncio.run(main())


def test_what_a_log_does_besides(tmp_path: Path) -> None:
    async def main() -> None:
        async with duramen.aio.open(tmp_path / "log", "a") as log:
            assert log.path == str(tmp_path / "log")
            assert await log.append_once([[b"a"], [b"b"]], writer="w", batch=1) == (0, 2)
            assert await log.append_once([[b"a"], [b"b"]], writer="w", batch=1) is None
            await (await log.cursor("c")).store(1)
            assert [cursor.offset for cursor in await log.cursors()] == [1]
            await (await log.producer("p")).append(b"c", sequence=5)
            assert [producer.sequence for producer in await log.producers()] == [5]
            await log.seal()
            assert not (await log.retain(Retention(max_bytes=1), dry_run=True)).removed
            assert not (await log.compact(dry_run=True)).changed
            group = await log.group("g")
            await group.fetch(1)
            assert (await group.delete(), await group.delete()) == (True, False)

    asyncio.run(main())


# --- the loop of a consumer


def test_consuming(tmp_path: Path) -> None:
    async def main() -> None:
        async with duramen.aio.open(tmp_path / "log", "a") as log:
            await log.append_batch([value(n) for n in range(5)])
            group = await log.group("g", consumer="w")
            async with group.consume(timeout_s=0) as loop:
                async for delivery in loop:
                    assert (await group.status()).acked_until == delivery.offset
                    assert (await group.members())[0].consumer == "w"
                    if delivery.offset == 1:
                        loop.stop()
            assert (await group.status())[1:5] == (2, 5, 3, 0)

            async def fail() -> None:
                async with group.consume(retry_delay=0) as loop:
                    async for _ in loop:
                        raise ValueError("no such customer")

            with pytest.raises(ValueError, match="no such customer"):
                await fail()
            seen: list[tuple[int, int]] = []

            async def handle(delivery: duramen.Delivery) -> None:
                seen.append((delivery.offset, delivery.epoch))
                if delivery.offset == 3 and delivery.epoch == 1:
                    raise OSError("busy")

            assert await group.consume(timeout_s=0, retry_delay=0).run(handle) == 3
            assert seen == [(2, 2), (3, 1), (3, 2), (4, 1)]
            assert [one.lag for one in await log.groups()] == [0]

    asyncio.run(main())


def test_a_cancelled_consumer_returns_its_record(tmp_path: Path) -> None:
    async def main() -> None:
        async with duramen.aio.open(tmp_path / "log", "a") as log:
            group = await log.group("g")
            waiting = asyncio.create_task(group.consume().__anext__())
            await asyncio.sleep(0.05)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await log.append(b"late")
            (delivery,) = await group.fetch(1, timeout_s=60)
            assert delivery.value == b"late"

    asyncio.run(main())


def test_many_consumers_leave_room_for_working_ones(tmp_path: Path) -> None:
    async def main() -> None:
        async with duramen.aio.open(tmp_path / "log", "a") as log:
            group, seen = await log.group("g"), []
            loops = [group.consume() for _ in range(duramen.aio.THREADS + 2)]

            async def handle(delivery: duramen.Delivery) -> None:
                seen.append(delivery.offset)
                for loop in loops:
                    loop.stop()

            running = [asyncio.create_task(loop.run(handle)) for loop in loops]
            await asyncio.sleep(0.1)
            await log.append(b"v")
            assert sum(await asyncio.wait_for(asyncio.gather(*running), 60)) == 1
            assert seen == [0]

    asyncio.run(main())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_an_asynchronous_loop(tmp_path: Path, number: int) -> None:
    caught: list[int] = []
    before = signal.signal(number, lambda got, _frame: caught.append(got))

    async def main() -> None:
        async with duramen.aio.open(tmp_path / "log", "a") as log:
            await log.append_batch([b"a", b"b"])
            group = await log.group("g")
            async for _ in group.consume():
                signal.raise_signal(number)
            assert ((await group.status()).acked_until, caught) == (1, [])
            signal.raise_signal(number)
            assert caught == [number]

    try:
        asyncio.run(main())
    finally:
        signal.signal(number, before)


# --- the store


def test_a_store(tmp_path: Path) -> None:
    async def main() -> None:
        async with duramen.aio.Store(tmp_path, durability="write") as store:
            orders = await store.create("orders", partitions=3, retention=Retention(max_bytes=1 << 20))
            assert (orders.name, orders.format, await store.topics()) == ("orders", "keratin", ["orders"])
            placed = await orders.append(b"one beer", key=b"anna")
            assert (await orders.read(*placed)).value == b"one beer"
            await orders.append_batch([b"%d" % n for n in range(600)], partition=1)
            assert len([record async for record in orders.scan()]) == 601
            assert sum([batch.num_rows async for batch in orders.batches(1)]) >= 600
            with pytest.raises(duramen.UsageError, match="cannot be followed"):
                await anext(aiter(orders.scan(follow=True)))
            till = await orders.producer("till")
            assert not (await till.append(b"x", key=b"k", sequence=1)).confirmed.is_duplicate
            assert (await till.append(b"x", key=b"k", sequence=1)).confirmed.is_duplicate
            group = await orders.group("billing")
            assert await group.ack_many(await group.fetch(600, timeout_s=5)) == 600
            async with group.consume(timeout_s=0) as loop:
                assert len([delivery async for delivery in loop]) == 2
            assert sum(status.lag for status in (await group.status()).values()) == 0
            assert await group.fetch_batch(1) is None
            assert (await orders.retain()).keys() == {0, 1, 2}
            assert len(await (await store.add_partitions("orders", 4)).offsets()) == 4
            assert (await store.configure("orders")).blocking.retention is None
            assert (await store.describe("orders")).records == 602
            await store.delete("orders")
            with pytest.raises(duramen.UnknownTopicError):
                await store.topic("orders")
        with pytest.raises(duramen.UsageError, match="the store is closed"):
            await store.topics()
        with pytest.raises(duramen.UsageError, match="a store has no option"):
            await duramen.aio.Store(tmp_path, durabillity="write")  # type: ignore[call-arg]

    asyncio.run(main())


def test_a_topic_is_no_log(tmp_path: Path) -> None:
    with duramen.Store(tmp_path) as store:
        store.create("orders")

    async def main() -> None:
        with pytest.raises(duramen.UsageError, match=r"use duramen.aio.Store"):
            await duramen.aio.open(f"{tmp_path}#orders")
        async with duramen.aio.open(f"{tmp_path}#orders/0", "a") as log:
            assert await log.append(b"v") == 0

    asyncio.run(main())
