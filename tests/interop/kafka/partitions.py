"""Duramen and a real Kafka, on the same files: ``python -m tests.interop.kafka.partitions [--keep DIR] [--only TEXT]``.

Starts one broker (KRaft, on loopback, in a scratch directory), gives it the partitions of `cases` while it is stopped,
and starts it again. Kafka's own consumer has to return the records that Duramen reads, in both isolation levels;
Kafka's producers append to every partition, plain, compressed, in transactions that commit and that abort; groups
commit offsets. After a stop Duramen reads all of it, verifies it, and knows the groups; named producers repeat what
they sent. Then the broker starts once more, as after a crash, so that it walks and rebuilds what it finds; what it
writes about producers has to be what the batches say. Exits with 1 on a mismatch. See README.md.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

import duramen
from bench.brokers import kafkanode
from bench.brokers.ending import ends_on_sigterm
from duramen.formats import make
from duramen.formats.kafka.producers import Producers
from duramen.formats.kafka.segment import KafkaSegment
from duramen.formats.kafka.state_files import parse_snapshot
from tests.formats.kafka_logs import ISOLATIONS
from tests.interop.kafka.cases import PRODUCERS, START_MS, WITH_PRODUCERS, PartitionCase, all_cases, send
from tests.interop.kafka.checks import Checks, tell
from tests.interop.kafka.client import CommittedGroupOffset, ConsumedPartition, ConsumedRecord, KafkaClient

FRESH = "fresh"
"""A topic that only the broker writes."""
COLUMNS = ("offset", "timestamp_ms", "key", "value", "headers")
PROPERTIES = """\
offsets.topic.num.partitions=3
transaction.state.log.num.partitions=2
log.retention.ms=-1
log.cleaner.enable=false
log.message.timestamp.after.max.ms=9223372036854775807
group.initial.rebalance.delay.ms=0
"""
FOREIGN_EPOCH = "caused truncation of conflicting entries"
"""A copy from another cluster, whose leaders were elected more often than those of the new one."""
LOOKS = 3
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


class LogRead(NamedTuple):
    """What Duramen reads from a partition."""

    records: list[ConsumedRecord]
    next_offset: int


def read(path: Path, isolation: str) -> LogRead:
    with duramen.open(path, isolation=isolation) as log:
        rows = [row for batch in log.batches(columns=COLUMNS) for row in batch.to_pylist()]
        return LogRead([_consumed(row) for row in rows], log.next_offset)


def _consumed(row: dict[str, object]) -> ConsumedRecord:
    headers = tuple((pair["key"], pair["value"]) for pair in row["headers"] or ())  # type: ignore[attr-defined]
    time_ms = -1 if row["timestamp_ms"] is None else row["timestamp_ms"]
    return ConsumedRecord(row["offset"], time_ms, row["key"], row["value"], headers)  # type: ignore[arg-type]


def difference(ours: LogRead, kafkas: ConsumedPartition) -> str:
    """What is wrong, or nothing."""
    for mine, other in zip(ours.records, kafkas.records, strict=False):
        if mine != other:
            return f"offset {mine.offset}: {mine!r:.200} here, {other!r:.200} from Kafka"
    if len(ours.records) != len(kafkas.records):
        return f"{len(ours.records)} records here, {len(kafkas.records)} from Kafka"
    return "" if ours.next_offset == kafkas.end else f"next offset {ours.next_offset} here, {kafkas.end} from Kafka"


def complaints(node: kafkanode.Node, topics: Sequence[str]) -> str:
    """The first thing that the broker has to say about one of the partitions."""
    for line in node.log.read_text(errors="replace").splitlines():
        is_ours = any(f"{topic}-0" in line for topic in topics)
        if is_ours and ("WARN" in line or "ERROR" in line) and FOREIGN_EPOCH not in line:
            return line[:300]
    return ""


class Exchange:
    """The broker, its clients, and the partitions that go to and fro."""

    def __init__(self, node: kafkanode.Node, cases: list[PartitionCase]) -> None:
        self.node = node
        self.cases = cases
        self.topics = [FRESH, *(case.topic for case in cases)]

    def path(self, topic: str) -> Path:
        return self.node.data / f"{topic}-0"

    def place(self) -> Checks:
        """Put the partitions of the cases in place of the empty ones of their topics."""
        for case in self.cases:
            target = self.path(case.topic)
            for file in target.iterdir():
                if file.name != "partition.metadata":
                    file.unlink()
            draft = target.with_name(f".{target.name}")
            draft.mkdir()
            try:
                case.prepare(draft)
            except duramen.DuramenError as error:
                yield f"{case.topic}: prepared", f"{type(error).__name__}: {error}"
            shutil.copytree(draft, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("partition.metadata"))
            shutil.rmtree(draft)

    def compare(self, client: KafkaClient, when: str) -> Checks:
        for isolation in ISOLATIONS:
            wrong = []
            for topic in self.topics:
                found = self._difference(client, topic, isolation)
                wrong += [f"{topic}: {found}"] if found else []
            yield f"{when}: {len(self.topics)} partitions consumed, {isolation}", "; ".join(wrong)

    def _difference(self, client: KafkaClient, topic: str, isolation: str) -> str:
        """A producer does not wait for the marker of its transaction, which may appear between the two looks."""
        for _ in range(LOOKS):
            try:
                found = difference(read(self.path(topic), isolation), client.consume(topic, isolation))
            except (duramen.DuramenError, RuntimeError) as error:
                return str(error)
            if not found:
                return ""
        return found

    def verify(self) -> Checks:
        wrong = []
        for topic in self.topics:
            report = duramen.verify(self.path(topic))
            wrong += [] if report.ok else [f"{topic}: {report.findings[0]}"]
        yield f"{len(self.topics)} partitions verified", "; ".join(wrong)

    def append(self, client: KafkaClient) -> None:
        """Let every kind of producer append some records to every partition."""
        number = 0

        def rows() -> list[tuple[str, ConsumedRecord]]:
            nonlocal number
            number += 1
            return [(topic, _appended(number * 10 + n)) for topic in self.topics for n in range(4)]

        client.produce(rows(), idempotent=False)
        for codec in CODECS:
            client.produce(rows(), compression=codec)
        client.produce(rows(), end="commit", name="txn-1")
        client.produce(rows(), end="abort", name="txn-1", compression="zstd")
        client.produce(rows(), end="commit", name="txn-2", compression="lz4")

    def admitted(self) -> str:
        """Where a writer is let in while the broker runs."""
        for topic in self.topics:
            with suppress(duramen.LockedError), duramen.open(self.path(topic), "a"):
                return topic
        return ""

    def commit(self, client: KafkaClient) -> None:
        """Let groups of both protocols commit offsets, also in transactions, and delete some."""
        client.commit("classic", [(FRESH, 0, 3, "note"), (self.topics[-1], 0, 2, "")])
        client.commit("classic", [(FRESH, 0, 7, "later")])
        client.commit("modern", [(FRESH, 0, 1, "")], protocol="consumer")
        client.commit("deleted", [(FRESH, 0, 1, "")])
        client.commit("partly", [(FRESH, 0, 5, ""), (self.topics[-1], 0, 5, "")])
        client.delete_groups(["deleted"], [("partly", FRESH, 0)])
        one = [(FRESH, _appended(1))]
        client.produce(one, end="commit", name="txn-1", group="in-transaction", offsets=[(FRESH, 0, 4, "kept")])
        client.produce(one, end="abort", name="txn-1", group="in-transaction", offsets=[(FRESH, 0, 9, "aborted")])

    def groups(self) -> list[CommittedGroupOffset]:
        with duramen.Store(self.node.data) as store:
            found = store.groups()
        assert not found.failed, found.failed
        committed = [one.committed for one in found.offsets]
        return [
            CommittedGroupOffset(one.group, one.topic, one.partition, one.offset, one.metadata) for one in committed
        ]

    def repeat(self) -> str:
        """Let named producers repeat what the batches alone say that they sent, and send more."""
        for topic in self._with_producers():
            shutil.rmtree(self.path(topic) / ".duramen")
            with duramen.open(self.path(topic), "a") as log:
                if any(confirmed.stored for confirmed in send(log, 3)):
                    return f"{topic}: a repeat was stored"
                if not all(confirmed.stored for confirmed in send(log, 4)):
                    return f"{topic}: a record was not stored"
        return ""

    def snapshots(self) -> str:
        """Compare what the broker wrote about producers when it stopped with what the batches say."""
        for topic in self._with_producers():
            path = self.path(topic)
            newest, producers, codec = max(path.glob("*.snapshot")), Producers(), make("kafka")
            for file in sorted(path.glob("*.log")):
                segment = codec.open_segment(file.read_bytes(), int(file.stem))  # type: ignore[union-attr]
                assert isinstance(segment, KafkaSegment)
                producers.add_segment(segment)
            if newest.read_bytes() != producers.snapshot() or len(producers.entries) <= len(PRODUCERS):
                theirs = parse_snapshot(newest.read_bytes())
                return f"{newest.name} of {topic}: {list(producers.entries.values())} here, {theirs} from Kafka"
        return ""

    def _with_producers(self) -> list[str]:
        return [topic for topic in self.topics if topic.startswith(WITH_PRODUCERS)]

    def forget_clean_stop(self) -> None:
        """Make the broker believe that it crashed: it walks every segment from its start."""
        (self.node.data / ".kafka_cleanshutdown").unlink()
        (self.node.data / "recovery-point-offset-checkpoint").unlink()


def _appended(number: int) -> ConsumedRecord:
    headers: tuple[tuple[str, bytes | None], ...] = (("n", b"%d" % number), ("null", None)) if number % 2 else ()
    key, value = (b"key %d" % number, b"appended %d" % number) if number % 4 else (None, None)
    return ConsumedRecord(-1, START_MS + 10**9 + number, key, value, headers)


def _failure(work: Callable[[], None]) -> str:
    try:
        work()
    except RuntimeError as error:
        return str(error)
    return ""


def checks(node: kafkanode.Node, client: KafkaClient, cases: list[PartitionCase]) -> Checks:
    exchange = Exchange(node, cases)
    client.create(exchange.topics)
    # Takes the first block of producer ids: some fixtures hold these ids, with epochs that a new producer has not.
    client.produce([(FRESH, _appended(1))])
    node.stop()
    yield from exchange.place()
    node.start()
    yield f"a broker starts on {len(cases)} partitions", complaints(node, exchange.topics)
    yield from exchange.compare(client, "as given")
    yield "Kafka's producers append", _failure(lambda: exchange.append(client))
    yield "no writer starts beside the broker", exchange.admitted()
    yield from exchange.compare(client, "appended to")
    yield "groups commit offsets", _failure(lambda: exchange.commit(client))
    committed = client.groups()
    node.stop()
    yield from exchange.verify()
    known = exchange.groups()
    problem = "" if known == committed else f"{known} here, {committed} from Kafka"
    yield f"{len(committed)} committed offsets of groups", problem or ("" if committed else "Kafka knows none")
    yield "named producers repeat without the sidecar", exchange.repeat()
    exchange.forget_clean_stop()
    node.start()
    yield "the broker recovers them as after a crash", complaints(node, exchange.topics)
    yield from exchange.compare(client, "recovered")
    node.stop()
    yield "the broker's snapshots of producers are ours", exchange.snapshots()


def started(cases: Sequence[PartitionCase], keep: Path | None) -> Checks:
    with ExitStack() as stack:
        stack.enter_context(ends_on_sigterm())
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        node = stack.enter_context(kafkanode.Node(scratch / "k", PROPERTIES))
        client = stack.enter_context(KafkaClient(node.address))
        yield from checks(node, client, cases)
        if keep is not None:
            node.stop()
            shutil.copytree(node.data, keep, dirs_exist_ok=True)


def main() -> int:
    about = __doc__.partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m tests.interop.kafka.partitions", description=about)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="copy the broker's directory there at the end")
    parser.add_argument("--only", nargs="+", default=[""], metavar="TEXT", help="only topics with this in their names")
    arguments = parser.parse_args()
    cases = [case for case in all_cases() if any(text in case.topic for text in arguments.only)]
    print(f"Kafka {kafkanode.VERSION}, {len(cases)} partitions", flush=True)
    return tell(started(cases, arguments.keep))


if __name__ == "__main__":
    sys.exit(main())
