"""RabbitMQ Streams through the client `rstream`: the distribution's broker, one node, one stream without replicas.

A broker of our own as tests/interop starts it: own ports, own data, ended with the run. Messages are raw bytes: neither
side spends time on AMQP. A stream confirms what is in the page cache, without an fsync, and has no setting for one:
there is nothing to compare with Duramen's `fsync`.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count as counter
from pathlib import Path
from typing import Any

from bench.brokers import contest, install
from bench.brokers.contest import BATCH, VALUE_BYTES, WINDOW, Contestant, Entry
from bench.brokers.ending import ends_on_sigterm
from bench.report import Table
from tests.interop import broker

PEER = "RabbitMQ Streams"
PUBLISH, CONSUME = f"Publish 1 KiB messages, beside {PEER}", f"Consume 1 KiB messages, beside {PEER}"
WORK_TIMEOUT_S = 300
_names = counter()


def rabbitmq(scratch: Path, quick: bool) -> Iterator[Table]:
    root = scratch / "rabbitmq"
    try:
        client = install.package("rstream")
        _install_server()
    except install.NotRun as why:
        yield contest.not_run(PUBLISH, PEER, why)
        return
    versions = broker.package_versions()
    name = f"RabbitMQ {versions.get('RabbitMQ', '')}".rstrip()
    try:
        with ends_on_sigterm(), broker.Broker(root) as node:
            _calm(root)
            _start(node)
            yield from _tables(scratch, quick, name, f"rstream {client}", node.stream_port)
    except install.NotRun as why:
        yield contest.not_run(PUBLISH, PEER, why)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _start(node: broker.Broker) -> None:
    try:
        node.start()
    except RuntimeError as error:
        raise install.NotRun(error) from None


def _install_server() -> None:
    """In a process of its own, because apt-get may wait for others without end."""
    if not broker.SERVER.exists():
        code = "from tests.interop.broker import install_package; install_package()"
        install.run([sys.executable, "-c", code], "apt-get install rabbitmq-server", cwd=Path(__file__).parents[2])
    if not broker.SERVER.exists():
        raise install.NotRun(f"the package brought no {broker.SERVER}")


def _calm(root: Path) -> None:
    """The interoperability tests want to read everything in the broker's log. Here it would only cost time."""
    conf = root / "rabbitmq.conf"
    conf.write_text(conf.read_text().replace("log.file.level = debug", "log.file.level = info"))


def _tables(scratch: Path, quick: bool, name: str, client: str, port: int) -> Iterator[Table]:
    count, rounds = contest.size(quick)
    durable = "confirmed: page cache"
    ways = {"batch by batch": 0, f"{WINDOW // BATCH} batches under way": WINDOW}
    entries = contest.duramen_publishers(scratch, count, ["write"])
    for way, window in ways.items():
        entries.append(Entry(name, f"{client}, {way}", durable, "write", _publishing(port, count, window)))
    yield contest.table(
        f"{PUBLISH} ({count:,} in batches of {BATCH:,})",
        contest.measure(PUBLISH, entries, count, rounds),
        f"{contest.IN_PROCESS}\nA stream confirms without an fsync: there is nothing to set beside Duramen's `fsync`. "
        "The client rstream is plain Python.",
    )
    with _stream(port, count) as stream:
        entries = [
            *contest.duramen_consumers(scratch, count),
            Entry(name, client, "", "", _consuming(port, stream, count)),
        ]
        yield contest.table(
            f"{CONSUME} ({count:,})",
            contest.measure(CONSUME, entries, count, rounds),
            "From the page cache, one message at a time but for Arrow batches. Both check the checksum of each chunk.",
        )


def _address(port: int) -> dict[str, Any]:
    return {"host": broker.HOST, "port": port, "username": "guest", "password": "guest"}


def _publishing(port: int, count: int, window: int) -> Contestant:
    @contextmanager
    def contestant() -> Iterator[Callable[[], None]]:
        from rstream import Producer

        stream = f"bench-{next(_names)}"
        todo = contest.batches(count)
        with asyncio.Runner() as runner:
            producer = Producer(**_address(port))
            runner.run(_soon(producer.start()))
            runner.run(_soon(producer.create_stream(stream)))
            try:
                yield lambda: runner.run(_soon(_publish(producer, stream, todo, window)))
            finally:
                runner.run(_soon(producer.delete_stream(stream)))
                runner.run(_soon(producer.close()))

    return contestant


async def _soon(work: Any) -> Any:
    return await asyncio.wait_for(work, WORK_TIMEOUT_S)


async def _publish(producer: Any, stream: str, todo: list[list[bytes]], window: int) -> None:
    """Send all batches, with at most ``window`` messages beyond the batch at hand unconfirmed."""
    confirmed = wanted = 0
    reached = asyncio.Event()

    def confirm(status: Any) -> None:
        nonlocal confirmed
        if not status.is_confirmed:
            raise RuntimeError(f"message {status.message_id} is refused: {status.response_code}")
        confirmed += 1
        if confirmed >= wanted:
            reached.set()

    sent, total = 0, sum(map(len, todo))
    for batch in todo:
        await producer.send_batch(stream, batch, on_publish_confirm=confirm)
        sent += len(batch)
        wanted = sent if sent == total else sent - window
        if confirmed < wanted:
            reached.clear()
            await reached.wait()
    contest.check(sent, confirmed)


@contextmanager
def _stream(port: int, count: int) -> Iterator[str]:
    """A stream with ``count`` messages, to be consumed again and again."""
    from rstream import Producer

    stream = f"bench-{next(_names)}"

    async def fill() -> None:
        async with Producer(**_address(port)) as producer:
            await producer.create_stream(stream)
            await _publish(producer, stream, contest.batches(count), WINDOW)

    asyncio.run(_soon(fill()))
    yield stream


def _consuming(port: int, stream: str, count: int) -> Contestant:
    @contextmanager
    def contestant() -> Iterator[Callable[[], None]]:
        from rstream import Consumer

        with asyncio.Runner() as runner:
            consumer = Consumer(**_address(port))
            runner.run(_soon(consumer.start()))
            try:
                yield lambda: runner.run(_soon(_consume(consumer, stream, count)))
            finally:
                runner.run(_soon(consumer.close()))

    return contestant


async def _consume(consumer: Any, stream: str, count: int) -> None:
    taken = taken_bytes = 0
    enough = asyncio.Event()

    def take(raw: bytes, context: Any) -> None:
        nonlocal taken, taken_bytes
        taken += 1
        taken_bytes += len(raw)
        if taken >= count:
            enough.set()

    await consumer.subscribe(stream, take)  # from the first message on
    await enough.wait()
    contest.check(count * VALUE_BYTES, taken_bytes)
