"""Kafka through the client `confluent-kafka`: one KRaft node from the broker's jars, one partition without replicas.

By default a broker answers when a batch is in its page cache, and leaves syncing to the operating system: Duramen's
`write`. With ``flush.messages=1`` it calls fsync before it answers: Duramen's `fsync`. The client sends at most 1000
messages in a batch, which is what Duramen appends, so that neither syncs less often than the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count as counter
from pathlib import Path
from typing import Any

from bench.brokers import contest, install, kafkanode
from bench.brokers.contest import BATCH, VALUE_BYTES, WINDOW, Contestant, Entry
from bench.brokers.ending import ends_on_sigterm
from bench.report import Table

PEER = f"Kafka {kafkanode.VERSION}"
PUBLISH, CONSUME = "Publish 1 KiB messages, beside Kafka", "Consume 1 KiB messages, beside Kafka"
WORK_TIMEOUT_S = 300
BATCH_BYTES = 2 << 20
"""A batch of 1000 messages is a little more than the 1 MB that client and broker allow by default."""
LEVELS: dict[str, tuple[str, dict[str, str]]] = {
    "write": ("acks=all, no flush: page cache", {}),
    "fsync": ("acks=all, flush.messages=1: fsync per batch", {"flush_messages": "1"}),
}
_names = counter()


def kafka(scratch: Path, quick: bool) -> Iterator[Table]:
    try:
        client = f"confluent-kafka {install.package('confluent-kafka')}"
        with ends_on_sigterm(), kafkanode.Node(scratch / "kafka") as node:
            yield from _tables(scratch, quick, client, node)
    except install.NotRun as why:
        yield contest.not_run(PUBLISH, PEER, why)


def _tables(scratch: Path, quick: bool, client: str, node: kafkanode.Node) -> Iterator[Table]:
    count, rounds = contest.size(quick)
    entries = contest.duramen_publishers(scratch, count, list(LEVELS))
    ways = {"batch by batch": 0, f"{WINDOW // BATCH} batches under way": WINDOW}
    for level, (durable, config) in LEVELS.items():
        for way, window in ways.items():
            publishing = _publishing(node, count, window, config)
            entries.append(Entry(PEER, f"{client}, {way}", durable, level, publishing))
    yield contest.table(
        f"{PUBLISH} ({count:,} in batches of {BATCH:,})",
        contest.measure(PUBLISH, entries, count, rounds),
        f"{contest.IN_PROCESS}\nEach line is compared with keratin at the same durability.",
    )
    topic = f"bench-{next(_names)}"
    node.create_topic(topic, max_message_bytes=str(BATCH_BYTES))
    publish(node, topic, count, WINDOW)
    entries = contest.duramen_consumers(scratch, count)
    entries.append(Entry(PEER, client, "", "", _consuming(node, topic, count)))
    yield contest.table(
        f"{CONSUME} ({count:,})",
        contest.measure(CONSUME, entries, count, rounds),
        "From the page cache, one message at a time but for Arrow batches. Duramen checks checksums; confluent-kafka "
        "does not, by default.",
    )


def publish(node: kafkanode.Node, topic: str, count: int, window: int) -> None:
    """Fill a topic, and see that it has everything."""
    _work(_producer(node), topic, contest.batches(count), window)
    contest.check(count, messages(node, topic))


def messages(node: kafkanode.Node, topic: str) -> int:
    from confluent_kafka import TopicPartition

    consumer = _consumer(node)
    try:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=kafkanode.CALL_TIMEOUT_S)
    finally:
        consumer.close()
    return int(high - low)


def _producer(node: kafkanode.Node) -> Any:
    from confluent_kafka import Producer

    return Producer(
        {
            "bootstrap.servers": node.address,
            "acks": "all",
            "batch.num.messages": BATCH,
            "batch.size": BATCH_BYTES,
            "message.max.bytes": BATCH_BYTES,
            "delivery.report.only.error": True,
            **kafkanode.QUIET,
        }
    )


def _consumer(node: kafkanode.Node) -> Any:
    from confluent_kafka import Consumer

    settings = {"bootstrap.servers": node.address, "group.id": "bench", "enable.auto.commit": False}
    return Consumer({**settings, **kafkanode.QUIET})


def _publishing(node: kafkanode.Node, count: int, window: int, config: dict[str, str]) -> Contestant:
    @contextmanager
    def contestant() -> Iterator[Callable[[], None]]:
        topic = f"bench-{next(_names)}"
        node.create_topic(topic, max_message_bytes=str(BATCH_BYTES), **config)
        producer = _producer(node)
        producer.list_topics(topic, timeout=kafkanode.CALL_TIMEOUT_S)
        todo = contest.batches(count)
        yield lambda: _work(producer, topic, todo, window)
        contest.check(count, messages(node, topic))
        node.delete_topic(topic)

    return contestant


def _work(producer: Any, topic: str, todo: list[list[bytes]], window: int) -> None:
    """Send all batches, with at most ``window`` messages beyond the batch at hand unconfirmed."""
    failures: list[str] = []

    def failed(error: Any, message: Any) -> None:
        if error is not None:
            failures.append(str(error))

    for batch in todo:
        queued = producer.produce_batch(topic, [{"value": value} for value in batch], partition=0, on_delivery=failed)
        contest.check(len(batch), queued)
        if not window:
            producer.flush(WORK_TIMEOUT_S)
        while len(producer) > window:
            producer.poll(0.001)
    if producer.flush(WORK_TIMEOUT_S) or failures:
        raise RuntimeError(f"not everything is confirmed: {failures[:1] or 'time is over'}")


def _consuming(node: kafkanode.Node, topic: str, count: int) -> Contestant:
    @contextmanager
    def contestant() -> Iterator[Callable[[], None]]:
        consumer = _consumer(node)
        consumer.list_topics(topic, timeout=kafkanode.CALL_TIMEOUT_S)
        try:
            yield lambda: _consume(consumer, topic, count)
        finally:
            consumer.close()

    return contestant


def _consume(consumer: Any, topic: str, count: int) -> None:
    from confluent_kafka import TopicPartition

    consumer.assign([TopicPartition(topic, 0, 0)])
    taken = taken_bytes = 0
    while taken < count:
        found = consumer.consume(BATCH, timeout=kafkanode.CALL_TIMEOUT_S)
        if not found:
            raise RuntimeError(f"no more messages after {taken:,} of {count:,}")
        for message in found:
            if message.error() is not None:
                raise RuntimeError(str(message.error()))
            taken_bytes += len(message.value())
        taken += len(found)
    contest.check(count * VALUE_BYTES, taken_bytes)
