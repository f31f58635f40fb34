"""Duramen's compaction beside Kafka's own cleaner: ``python -m tests.interop.kafka.cleaning``.

Kafka's producers fill compacted topics: plain, idempotent, compressed, with tombstones, in transactions that commit and
that abort. The broker stops, each partition is copied, and the broker starts again with its cleaner. `duramen compact`
of the copy, with the same clock, has to leave the same batches: the same bytes, or, where a codec folded them, the same
headers and records. Then the producers go on, and both clean once more, so that what had expired goes. At the end the
broker gets Duramen's version of every partition: it must start without a complaint, and its consumer return the same
records. Exits with 1 on a mismatch.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import duramen
from bench.brokers import kafkanode
from bench.brokers.ending import ends_on_sigterm
from duramen.formats import make, parse_offsets
from duramen.formats.kafka.batch import DELETE_HORIZON
from duramen.formats.kafka.segment import batches_of
from duramen.log.maintain import Compaction, Compactor
from tests.formats.kafka_logs import ISOLATIONS, StoredBatch, batches, without_first_end
from tests.interop.kafka.checks import Checks, tell
from tests.interop.kafka.client import ConsumedRecord, KafkaClient
from tests.interop.kafka.partitions import PROPERTIES, difference, read

CLEANER = "log.cleaner.enable="
CHECKPOINT = "cleaner-offset-checkpoint"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
CLEANING_S = 120
COMPACTED = {
    "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "internal.segment.bytes": "20000",
    "index.interval.bytes": "1000",
}  # fmt: skip


class Topic(NamedTuple):
    name: str
    codec: str
    delay_ms: int


TOPICS = [
    *(Topic(f"clean-{codec}", codec, 86_400_000) for codec in CODECS),
    Topic("clean-at-once", "none", 1),
]


def horizon_ms(path: Path) -> int:
    """The latest time at which something in the partition may go; 0 where nothing expires."""
    fmt, latest = make("kafka"), 0
    for file in sorted(path.glob("*.log")):
        for rows in fmt.open_segment(memoryview(file.read_bytes()), int(file.stem)).steps():
            found = batches_of(rows)
            times = found.base_timestamp[found.attributes & DELETE_HORIZON != 0]
            latest = max(latest, *times.tolist()) if len(times) else latest
    return latest


def compact(path: Path, topic: Topic, now_ms: int) -> duramen.CompactionReport:
    how = Compaction(keyless="drop", tombstone_delay_ms=topic.delay_ms)
    with duramen.open(path, "a") as log:
        return Compactor(log, how, now_ms * 1000, writer=log).run()


class Cleaning:
    def __init__(self, node: kafkanode.Node, client: KafkaClient, scratch: Path) -> None:
        self._node, self._client, self._scratch = node, client, scratch
        self._number = 0
        self._began_ms = time.time_ns() // 10**6  # a broker forgets producers whose last record is a day old

    def path(self, topic: Topic) -> Path:
        return self._node.data / f"{topic.name}-0"

    def restart(self, *, cleans: bool) -> None:
        conf = self._node.root / "server.properties"
        lines = [line for line in conf.read_text().splitlines() if not line.startswith(CLEANER)]
        conf.write_text("\n".join([*lines, f"{CLEANER}{str(cleans).lower()}", ""]))
        self._node.start()

    def fill(self) -> None:
        """One round of all kinds of records for every topic."""
        for topic in TOPICS:
            self._produce(topic, 40, idempotent=False)
            self._produce(topic, 60)
            self._produce(topic, 30, end="commit", name=f"{topic.name}-1")
            self._produce(topic, 50, end="abort", name=f"{topic.name}-2")
            self._produce(topic, 40, end="abort", name=f"{topic.name}-1")
            self._produce(topic, 5, end="commit", name=f"{topic.name}-2")
            self._produce(topic, 60)
            self._produce(topic, 20, idempotent=False)

    def _produce(self, topic: Topic, count: int, **how: Any) -> None:
        rows = [(topic.name, self._record()) for _ in range(count)]
        self._client.produce(rows, compression=topic.codec, **how)

    def _record(self) -> ConsumedRecord:
        self._number += 1
        number = self._number
        value = None if number % 9 == 4 else random.Random(number).randbytes(number * 37 % 700)
        headers: tuple[tuple[str, bytes | None], ...] = (("n", b"%d" % number), ("null", None))
        return ConsumedRecord(
            -1, self._began_ms + number, b"key %d" % (number * number % 47), value, headers if number % 3 == 0 else ()
        )

    def wait(self) -> None:
        """Until the cleaner has cleaned every segment but the last of each topic."""
        wanted = {topic.name: max(int(file.stem) for file in self.path(topic).glob("*.log")) for topic in TOPICS}
        until = time.monotonic() + CLEANING_S
        while time.monotonic() < until:
            try:
                lines = parse_offsets((self._node.data / CHECKPOINT).read_bytes())
            except (OSError, duramen.DuramenError):
                lines = []
            cleaned = {line.topic: line.offset for line in lines}
            if all(cleaned.get(name, 0) >= offset for name, offset in wanted.items()):
                return
            time.sleep(0.2)
        raise RuntimeError(f"the cleaner did not come to {wanted}")

    def round(self, number: int) -> Checks:
        self.fill()
        self._node.stop()
        copies = self._scratch / f"copies-{number}"
        for topic in TOPICS:
            shutil.copytree(self.path(topic), copies / topic.name)
        self.restart(cleans=True)
        self.wait()
        self._node.stop()
        for topic in TOPICS:
            report = duramen.verify(self.path(topic))
            first = [str(one) for one in report.findings if one.severity != "note"]
            yield f"round {number}: {topic.name}, as Kafka cleaned it, verified", "; ".join(first[:1])
            yield self._compared(number, topic, copies / topic.name)
        self.restart(cleans=False)

    def _compared(self, number: int, topic: Topic, copy: Path) -> tuple[str, str]:
        shutil.copytree(copy, copy.with_name(f"{copy.name}.before"))
        shutil.copytree(self.path(topic), copy.with_name(f"{copy.name}.kafka"))
        latest_ms = horizon_ms(self.path(topic))
        now_ms = latest_ms - topic.delay_ms if latest_ms > horizon_ms(copy) else time.time_ns() // 10**6
        report = compact(copy, topic, now_ms)
        kafkas = [one for file in sorted(self.path(topic).glob("*.log")) for one in batches(file.read_bytes())]
        ours = without_first_end(copy, kafkas)
        problem = next((_shown(one, two) for one, two in zip(ours, kafkas, strict=False) if one != two), "")
        if not problem and len(ours) != len(kafkas):
            problem = f"{len(ours)} batches here, {len(kafkas)} from Kafka"
        findings = [str(one) for one in duramen.verify(copy).findings if one.severity != "note"]
        what = f"{report.records_before} to {report.records_after} records in {len(ours)} batches"
        return f"round {number}: {topic.name}, {what}", problem or "; ".join(findings[:1])

    def give_back(self, number: int) -> Checks:
        """Let the broker go on with Duramen's version of the partitions."""
        self._node.stop()
        for topic in TOPICS:
            shutil.rmtree(self.path(topic))
            shutil.copytree(
                self._scratch / f"copies-{number}" / topic.name, self.path(topic),
                ignore=shutil.ignore_patterns(".duramen"),
            )  # fmt: skip
        self.restart(cleans=True)
        said = [line for line in self._node.log.read_text(errors="replace").splitlines() if "clean-" in line]
        wrong = [line for line in said if "WARN" in line or "ERROR" in line]
        yield "a broker starts on what Duramen compacted", wrong[0][:300] if wrong else ""
        for isolation in ISOLATIONS:
            found = [difference(read(self.path(topic), isolation), self._client.consume(topic.name, isolation))
                     for topic in TOPICS]  # fmt: skip
            yield f"{len(TOPICS)} partitions consumed, {isolation}", "; ".join(filter(None, found))


def _shown(ours: StoredBatch, kafkas: StoredBatch) -> str:
    if ours.base_offset != kafkas.base_offset:
        return f"batch {ours.base_offset} here, {kafkas.base_offset} from Kafka"
    if ours.header != kafkas.header:
        return f"batch {ours.base_offset}: {bytes(ours.header).hex()} here, {bytes(kafkas.header).hex()} from Kafka"
    return f"batch {ours.base_offset}: other records"


def checks(scratch: Path, rounds: int) -> Checks:
    properties = PROPERTIES + "log.cleaner.backoff.ms=200\n"
    with kafkanode.Node(scratch / "k", properties) as node, KafkaClient(node.address) as client:
        for topic in TOPICS:
            client.create([topic.name], **COMPACTED, **{"delete.retention.ms": str(topic.delay_ms)})
        cleaning = Cleaning(node, client, scratch)
        for number in range(1, rounds + 1):
            yield from cleaning.round(number)
        yield from cleaning.give_back(rounds)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.interop.kafka.cleaning", description=__doc__.split(":")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="work there, and keep the copies")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        stack.enter_context(ends_on_sigterm())
        scratch = arguments.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        return tell(checks(scratch, arguments.rounds))


if __name__ == "__main__":
    sys.exit(main())
