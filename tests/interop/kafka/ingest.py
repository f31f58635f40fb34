"""From a real Kafka into logs, with ``duramen pipeline ingest``: ``python -m tests.interop.kafka.ingest [--kills N]``.

Starts a broker of its own on loopback, publishes messages with and without keys and headers to a topic of three
partitions, and reads them through Spark's Kafka source: as one batch and as a stream, into one log and into the
partitions of a store. The driver of the stream is killed with everything that it started, again and again, while
messages go on to arrive; then it is run once more. Every message has to be there once, with its key, value, headers and
time, in the order of its partition. Exits with 1 on a mismatch. See README.md.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import duramen
from bench.brokers import install, kafkanode, sparksource
from bench.brokers.ending import ends_on_sigterm
from tests.interop.kafka.checks import Checks, tell

TOPIC, PARTITIONS = "orders", 3
GONE = "gone"
RUN_TIMEOUT_S = 180


class Message(NamedTuple):
    key: bytes | None
    value: bytes
    headers: tuple[tuple[str, bytes | None], ...]
    time_ms: int


Sent = dict[int, list[Message]]
"""By partition, in Kafka's order."""


def message(number: int, now_ms: int) -> Message:
    headers = (("number", b"%d" % number), ("nothing", None), ("number", b"")) if number % 4 == 0 else ()
    key = None if number % 5 == 0 else b"key %d" % (number % 97)
    return Message(key, b"value %d" % number * (1 + number % 7), headers, now_ms)


class Publisher:
    """Sends messages, and remembers them."""

    def __init__(self, node: kafkanode.Node, seed: int) -> None:
        from confluent_kafka import Producer

        self._producer = Producer({"bootstrap.servers": node.address, "acks": "all", **kafkanode.QUIET})
        self._random = random.Random(seed)
        self._next = 0
        self.sent: Sent = {partition: [] for partition in range(PARTITIONS)}

    def publish(self, count: int) -> None:
        for _ in range(count):
            one = message(self._next, time.time_ns() // 1_000_000)
            partition = self._random.randrange(PARTITIONS)
            self._producer.produce(
                TOPIC, one.value, key=one.key, headers=list(one.headers), timestamp=one.time_ms, partition=partition
            )
            self.sent[partition].append(one)
            self._next += 1
        if self._producer.flush(kafkanode.CALL_TIMEOUT_S):
            raise RuntimeError("Kafka does not confirm what was sent")


def publish_tombstone(node: kafkanode.Node) -> None:
    """A topic with a value, and a value that is null."""
    from confluent_kafka import Producer

    node.create_topic(GONE)
    producer = Producer({"bootstrap.servers": node.address, "acks": "all", **kafkanode.QUIET})
    for value in (b"there", None):
        producer.produce(GONE, value, key=b"k")
    if producer.flush(kafkanode.CALL_TIMEOUT_S):
        raise RuntimeError("Kafka does not confirm what was sent")


class Ingest:
    """``duramen pipeline ingest`` from the topic, as a command of its own."""

    def __init__(self, node: kafkanode.Node, connector: sparksource.Connector) -> None:
        self._options = [
            "--from", "kafka", "--option", f"subscribe={TOPIC}", "--option", "startingOffsets=earliest",
            "--option", f"kafka.bootstrap.servers={node.address}", "--option", "maxOffsetsPerTrigger=1000",
            "--conf", f"spark.jars={','.join(map(str, connector.jars))}", "--master", "local[2]",
        ]  # fmt: skip

    def start(self, into: Path, *options: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "duramen.cli.main", "pipeline", "ingest", str(into), *self._options, *options]
        return subprocess.Popen(
            command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )

    def run(self, into: Path, *options: str) -> str:
        process = self.start(into, *options)
        try:
            said, _ = process.communicate(timeout=RUN_TIMEOUT_S)
        except BaseException:
            end(process)
            raise
        if process.returncode:
            raise RuntimeError(f"ingest ended with {process.returncode}: {said.strip()}")
        return said


def end(process: subprocess.Popen[str]) -> None:
    """Kill the command, its JVM and its workers: the session that it leads."""
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def stored(path: Path) -> list[Message]:
    with duramen.open(path) as log:
        if not log.verify().ok:
            raise RuntimeError(f"{path} is not sound")
        return [_message(record) for record in log]


def _message(record: Any) -> Message:
    headers = tuple((pair[0], pair[1]) for pair in record.headers or ())
    return Message(record.key, record.value, headers, round(record.timestamp.timestamp() * 1000))


def in_store(root: Path) -> Sent:
    return {number: stored(root / "topics" / TOPIC / "partitions" / str(number)) for number in range(PARTITIONS)}


def difference(sent: Sent, found: Sent) -> str:
    """What is wrong, or nothing."""
    for partition, messages in sent.items():
        there = found[partition]
        if there != messages:
            at = next((n for n, pair in enumerate(zip(messages, there, strict=False)) if pair[0] != pair[1]), None)
            where = "" if at is None else f"; first other one: {there[at]} at {at}, sent was {messages[at]}"
            return f"partition {partition}: {len(messages)} sent, {len(there)} there{where}"
    return ""


def apart(sent: Sent, found: list[Message], *, timed: bool = True) -> Sent:
    """What lies in one log, by the partition that it came from."""
    place = {one.value: partition for partition, messages in sent.items() for one in messages}
    times = {one.value: one.time_ms for messages in sent.values() for one in messages}
    result: Sent = {partition: [] for partition in sent}
    for one in found:
        result[place[one.value]].append(one if timed else one._replace(time_ms=times[one.value]))
    return result


def checks(scratch: Path, node: kafkanode.Node, connector: sparksource.Connector, kills: int) -> Checks:
    publisher, ingest = Publisher(node, 1), Ingest(node, connector)
    columns = ("--columns", "topic,partition,key,value,headers,timestamp", "--to-option", f"numPartitions={PARTITIONS}")
    publish_tombstone(node)
    ingest.run(scratch / "gone", "--option", f"subscribe={GONE}", "--value", "coalesce(value, X'')")
    values = [one.value for one in stored(scratch / "gone")]
    yield "a tombstone as an empty value", "" if values == [b"there", b""] else f"found {values}"
    publisher.publish(3000)
    ingest.run(scratch / "log", "--order-by", "timestamp, partition, offset")
    found = stored(scratch / "log")
    problem = difference(publisher.sent, apart(publisher.sent, found))
    is_sorted = [one.time_ms for one in found] == sorted(one.time_ms for one in found)
    yield "a batch into one log, by time", problem or ("" if is_sorted else "times go back")
    ingest.run(scratch / "store", *columns)
    yield "a batch into the partitions of a store", difference(publisher.sent, in_store(scratch / "store"))
    stream = ("--checkpoint", str(scratch / "checkpoint-store"), *columns)
    killed = _kill(ingest, publisher, scratch / "streamed", stream, kills)
    ingest.run(scratch / "streamed", *stream)
    what = f"a stream into a store, killed {killed} {'time' if killed == 1 else 'times'}"
    yield what, difference(publisher.sent, in_store(scratch / "streamed"))
    ingest.run(scratch / "streamed", *stream)
    yield "the same once more, with nothing new", difference(publisher.sent, in_store(scratch / "streamed"))
    clamp = ("--checkpoint", str(scratch / "checkpoint-log"), "--to-option", "lateTimestamps=clamp")
    ingest.run(scratch / "clamped", *clamp)
    publisher.publish(500)
    ingest.run(scratch / "clamped", *clamp)
    found = stored(scratch / "clamped")
    yield (
        "a stream into one log, late times clamped",
        difference(publisher.sent, apart(publisher.sent, found, timed=False)),
    )


def _kill(ingest: Ingest, publisher: Publisher, into: Path, stream: tuple[str, ...], kills: int) -> int:
    """Run the stream for ever, and kill it ``kills`` times at moments at which it works."""
    chance = random.Random(2)
    for _ in range(kills):
        process = ingest.start(into, *stream, "--every", "100 milliseconds")
        try:
            before, until = _size(into), time.monotonic() + RUN_TIMEOUT_S
            while _size(into) == before:  # the JVM starts, and a first batch is stored
                if process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError(f"the stream does not get on: {process.stdout and process.stdout.read()}")
                publisher.publish(50)
                time.sleep(0.3)
            lasting = time.monotonic() + chance.uniform(0, 2)
            while time.monotonic() < lasting:
                publisher.publish(100)
                time.sleep(0.1)
        finally:
            end(process)
    return kills


def _size(root: Path) -> int:
    return sum(file.stat().st_size for file in root.glob("topics/*/partitions/*/segments/*.log"))


def started(kills: int) -> Checks:
    install.package("confluent-kafka")
    connector = sparksource.connector()
    print(f"Kafka {kafkanode.VERSION}, {connector.versions}", flush=True)
    with ends_on_sigterm(), tempfile.TemporaryDirectory() as scratch, kafkanode.Node(Path(scratch, "k")) as node:
        node.create_topic(TOPIC, PARTITIONS)
        yield from checks(Path(scratch), node, connector, kills)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.interop.kafka.ingest", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--kills", type=int, default=5, metavar="N", help="how often the stream is killed (5)")
    kills = parser.parse_args().kills
    return tell(started(kills))


if __name__ == "__main__":
    sys.exit(main())
