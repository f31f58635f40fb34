"""Duramen beside a broker at work, and after it was killed: ``python -m tests.interop.kafka.live [--seconds N]``.

Producers append to small segments, plain and in transactions that commit and abort, while Duramen reads the same files:
from the start again and again, and with ``follow=True``. No reader may see an aborted record or less than before.
The broker is killed: Duramen recovers half of the partitions and appends, the broker recovers the others. Its
consumer returns what Duramen reads, its producers append, and after the stop everything verifies. At last records are
deleted up to the middle of a segment. Exits with 1 on a mismatch.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import duramen
from bench.brokers import kafkanode
from bench.brokers.ending import ends_on_sigterm
from tests.formats.kafka_logs import ISOLATIONS
from tests.interop.kafka.checks import Checks, tell
from tests.interop.kafka.client import ConsumedRecord, KafkaClient
from tests.interop.kafka.partitions import CODECS, PROPERTIES, START_MS, complaints, difference, read

TOPICS = [f"live-{codec}" for codec in CODECS]
SMALL = {"internal.segment.bytes": "16384", "index.interval.bytes": "512"}
"""Segments are small; the indexes of the last one are preallocated as usual."""
ABORTED = b"aborted"
RECORDS = 12
"""Of each topic, in one transaction."""


class Producers(threading.Thread):
    """Append until their JVM ends."""

    def __init__(self, client: KafkaClient) -> None:
        super().__init__(daemon=True)
        self._client = client
        self.confirmed: dict[str, dict[int, bytes]] = {topic: {} for topic in TOPICS}
        """The values of the records that the broker confirmed, by topic and offset."""
        self.rounds = 0

    def run(self) -> None:
        while True:
            try:
                self.append()
            except (RuntimeError, OSError, ValueError):  # its pipes are closed
                return
            self.rounds += 1

    def append(self) -> None:
        number = self.rounds
        ending = (None, "commit", "abort")[number % 3]
        word = ABORTED if ending == "abort" else b"stored"
        rows = [
            (topic, ConsumedRecord(-1, START_MS + number, b"k%d" % n, b"%s %d-%d " % (word, number, n) * (n * 7), ()))
            for topic in TOPICS
            for n in range(1, RECORDS)
        ]
        offsets = self._client.produce(rows, end=ending, name=f"txn-{number % 2}", compression=CODECS[number % 5])
        for (topic, row), offset in zip(rows, offsets, strict=True):
            self.confirmed[topic][offset] = row.value or b""

    def end(self) -> None:
        """End their JVM, which would wait for the broker for minutes."""
        self._client.__exit__(None, None, None)
        self.join()


class Follower(threading.Thread):
    """Follows the committed records of a partition."""

    def __init__(self, path: Path) -> None:
        super().__init__(daemon=True)
        self._path = path
        self.seen: dict[int, bytes | None] = {}
        self.problem = ""

    def run(self) -> None:
        try:
            with duramen.open(self._path, isolation="read_committed") as log:
                for record in log.scan(0, follow=True):
                    self.seen[record.offset] = record.value
        except duramen.DuramenError as error:
            self.problem = f"{type(error).__name__}: {error}"


class Live:
    def __init__(self, node: kafkanode.Node, client: KafkaClient, seconds: float) -> None:
        self._node, self._client, self._seconds = node, client, seconds
        self._seen: dict[tuple[str, str], list[ConsumedRecord]] = {}
        self.looks = 0

    def path(self, topic: str) -> Path:
        return self._node.data / f"{topic}-0"

    def _look(self) -> str:
        """Read every partition once more, from its start."""
        for topic in TOPICS:
            for isolation in ISOLATIONS:
                found = read(self.path(topic), isolation).records
                before = self._seen.get((topic, isolation), [])
                if found[: len(before)] != before:
                    return f"{topic}, {isolation}: {len(before)} records were seen, and {len(found)} others now"
                wrong = [one.offset for one in found if ABORTED in (one.value or b"")]
                if wrong and isolation == "read_committed":
                    return f"{topic}: the aborted record {wrong[0]}"
                self._seen[topic, isolation] = found
                self.looks += 1
        return ""

    def beside(self, producers: Producers) -> Checks:
        producers.append()  # the broker makes the files
        followers = [Follower(self.path(topic)) for topic in TOPICS]
        for one in (producers, *followers):
            one.start()
        until, problem = time.monotonic() + self._seconds, ""
        while not problem and (time.monotonic() < until or producers.rounds < 6):
            problem = self._look()
            if not producers.is_alive():
                problem = "the producers stopped"
        segments = sum(1 for topic in TOPICS for _ in self.path(topic).glob("*.log"))
        yield f"{self.looks} looks at {segments} segments beside {producers.rounds} rounds of producers", problem
        self._node.kill()
        producers.end()
        yield f"{len(followers)} readers followed", self._followed(followers)

    def _followed(self, followers: list[Follower]) -> str:
        for topic, follower in zip(TOPICS, followers, strict=True):
            wanted = {one.offset: one.value for one in read(self.path(topic), "read_committed").records}
            until = time.monotonic() + 60
            while follower.is_alive() and len(follower.seen) < len(wanted) and time.monotonic() < until:
                time.sleep(0.05)
            if follower.problem or follower.seen != wanted:
                return f"{topic}: {follower.problem or f'{len(follower.seen)} of {len(wanted)} records'}"
        return ""

    def recover(self, producers: Producers) -> Checks:
        """Duramen opens every second partition for append after the kill."""
        for topic in TOPICS:
            found = {one.offset: one.value for one in read(self.path(topic), ISOLATIONS[0]).records}
            lost = [offset for offset, value in producers.confirmed[topic].items() if found.get(offset) != value]
            report = duramen.verify(self.path(topic))
            damage = "" if report.ok else str(report.findings[0])
            yield (
                f"{topic}: {len(producers.confirmed[topic])} confirmed records after a kill",
                damage or (f"{len(lost)} are missing, the first is {lost[0]}" if lost else ""),
            )
        for topic in TOPICS[::2]:
            with duramen.open(self.path(topic), "a") as log:
                for number in range(20):
                    log.append(b"after %d" % number, key=b"k", timestamp=START_MS, durability="write")

    def again(self) -> Checks:
        before = {(topic, isolation): read(self.path(topic), isolation) for topic in TOPICS for isolation in ISOLATIONS}
        self._node.start()
        yield "the broker starts", complaints(self._node, TOPICS)
        wrong = []
        for (topic, isolation), ours in before.items():
            kafkas = self._client.consume(topic, isolation)
            if isolation == "read_committed":  # the broker ends transactions that the kill left open
                kafkas = kafkas._replace(records=kafkas.records[: len(ours.records)], end=ours.next_offset)
            found = difference(ours, kafkas)
            wrong += [f"{topic}, {isolation}: {found}"] if found else []
        yield f"{len(before)} times the broker's consumer returns what was read before", "; ".join(wrong)
        rows = [(topic, ConsumedRecord(-1, START_MS, b"k", b"again", ())) for topic in TOPICS]
        for end in (None, "abort", "commit"):
            self._client.produce(rows, end=end, name="txn-0")
        self._node.stop()
        reports = [duramen.verify(self.path(topic)) for topic in TOPICS]
        yield "everything verifies", next((str(report.findings[0]) for report in reports if not report.ok), "")

    def delete(self) -> Checks:
        """Records up to the middle of a segment, which only the checkpoint of the broker knows."""
        self._node.start()
        begins = {}
        for topic in TOPICS:
            bases = sorted(int(file.stem) for file in self.path(topic).glob("*.log"))
            begins[topic] = bases[len(bases) // 2] + 5
            self._client.delete_records(topic, begins[topic])
        kafkas = {topic: self._client.consume(topic, ISOLATIONS[0]) for topic in TOPICS}
        self._node.stop()
        with duramen.Store(self._node.data) as store:
            for topic in TOPICS:
                found = [record.offset for record in store.topic(topic).scan()]
                wanted = [record.offset for record in kafkas[topic].records]
                first = store.topic(topic).offsets()[0][0]
                same = found == wanted and first == kafkas[topic].beginning == begins[topic]
                yield (
                    f"{topic}: records before {begins[topic]} deleted",
                    "" if same else f"{first}: {found[:3]} here, {kafkas[topic].beginning}: {wanted[:3]} from Kafka",
                )


def checks(node: kafkanode.Node, client: KafkaClient, seconds: float) -> Checks:
    client.create(TOPICS, **SMALL)
    live = Live(node, client, seconds)
    with KafkaClient(node.address) as other:
        producers = Producers(other)
        yield from live.beside(producers)
    yield from live.recover(producers)
    yield from live.again()
    yield from live.delete()


def started(seconds: float) -> Checks:
    with ExitStack() as stack:
        stack.enter_context(ends_on_sigterm())
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        node = stack.enter_context(kafkanode.Node(scratch / "k", PROPERTIES))
        client = stack.enter_context(KafkaClient(node.address))
        yield from checks(node, client, seconds)


def main() -> int:
    about = __doc__.partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m tests.interop.kafka.live", description=about)
    parser.add_argument("--seconds", type=float, default=30, metavar="N", help="how long readers and producers work")
    arguments = parser.parse_args()
    return tell(started(arguments.seconds))


if __name__ == "__main__":
    sys.exit(main())
