"""The partitions that a real broker is started on: copies of what Kafka wrote, and what Duramen writes itself."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

import duramen
from duramen.consumers.producers import Confirmed
from duramen.formats import FORMATS, WRITABLE
from duramen.log.write.transaction import TransactionPart, commit_batch
from duramen.sidecar import BatchKey
from tests.formats.kafka_logs import DATA
from tests.interop.kafka.client import ConsumedRecord

KAFKA = "kafka"
WITH_PRODUCERS = "written-producers"
PRODUCERS = {"till 4": 1, "béta": 2**31 - 60, "gap": 10**12}
"""Named producers and their first sequences. The second one changes its epoch on the way."""
BESIDE = ("truth.*", "offsets.*", "damage.json", "partition.metadata")
"""Files of the fixtures that belong to no partition, and the id of a topic, which a broker gives itself."""
START_MS = 1_700_000_000_000
RECORD_SIZE = 24
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
HEADERS = [{"key": "h", "value": b"x" * 50}, {"key": "", "value": None}]
SCHEMA = pa.schema([duramen.SCHEMA.field(name) for name in ("key", "value", "headers")])
TIME = duramen.SCHEMA.field("timestamp").type


class PartitionCase(NamedTuple):
    """A partition. ``prepare`` fills its directory, which exists and is empty."""

    topic: str
    prepare: Callable[[Path], None]


def all_cases() -> list[PartitionCase]:
    cases = [*_copies()]
    if KAFKA in WRITABLE:
        cases += _written()
    return cases


# --- what Kafka wrote


def _copies() -> Iterator[PartitionCase]:
    for folder in ("clean", "running", "old"):
        for path in sorted(DATA.glob(f"{folder}/*-0")):
            if path.name not in LEFT_OUT:
                yield PartitionCase(f"{folder}-{path.name.removesuffix('-0')}", partial(_copy, path))


LEFT_OUT = {"startmoved-0": "its start is in a checkpoint of its own broker"}


def _copy(source: Path, target: Path) -> None:
    shutil.copytree(source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*BESIDE))
    for path in target.rglob("*"):
        path.chmod(path.stat().st_mode | 0o200)


# --- what Duramen writes, once it writes the format


def _written() -> Iterator[PartitionCase]:
    yield PartitionCase("written-appended", _append)
    for codec in CODECS:
        yield PartitionCase(f"written-{codec}", partial(_append_large, codec))
    for codec in ("none", "zstd"):
        yield PartitionCase(f"{WITH_PRODUCERS}-{codec}", partial(_produce, codec))
    yield PartitionCase("written-transactions", _transact)
    yield PartitionCase("written-retained", _retain)
    yield PartitionCase("written-until", _copy_until)
    yield PartitionCase("written-small-indexes", _append_indexed)
    yield PartitionCase("written-continued", partial(_continue, DATA / "clean/txn-0"))
    yield PartitionCase("written-compacted", _compact)
    for source in ("running/txn", "clean/compacttxn", "clean/txnopen", "clean/appendtimelz4"):
        yield PartitionCase(f"written-after-{Path(source).name}", partial(_continue, DATA / f"{source}-0"))
    for damage in ("torn", "tornheader", "zeros", "garbage", "fliplast", "noindex", "badindex"):
        yield PartitionCase(f"written-recovered-{damage}", partial(_continue, DATA / f"damaged/dmg-{damage}-0"))
    for damage in ("flipmid", "fliplength", "torn", "garbage"):
        yield PartitionCase(f"written-repaired-{damage}", partial(_repair, DATA / f"damaged/dmg-{damage}-0"))
    for name in WRITABLE:
        if name != KAFKA:
            yield PartitionCase(f"written-from-{name}", partial(_convert, name))


def sample(number: int) -> ConsumedRecord:
    """The n-th record of a written log."""
    key = None if number % 7 == 0 else b"key %d" % (number % 11)
    value = None if number % 13 == 5 and key else b"value %d " % number * (number % 5)
    headers: tuple[tuple[str, bytes | None], ...] = (("number", b"%d" % number), ("none", None))
    return ConsumedRecord(number, START_MS + 1000 * number, key, value, headers if number % 3 == 0 else ())


def _append_to(log: duramen.WritableLog, count: int) -> None:
    for number in range(count):
        one = sample(number)
        log.append(
            one.value, key=one.key, headers=list(one.headers) or None, timestamp=one.timestamp_ms, durability="write"
        )


def _append(path: Path) -> None:
    with duramen.open(path, "a", format=KAFKA, segment_max_bytes=8192) as log:
        _append_to(log, 400)


def _append_large(codec: str, path: Path) -> None:
    """Batches that codecs fold well, not at all, and in many blocks."""
    noise = random.Random(codec)
    with duramen.open(path, "a", format=KAFKA, compression=codec, batch_max_bytes=400_000) as log:
        for number in range(3):
            sizes = (0, 1, 5000, 70_000, 300_000)
            rows = [{"key": b"k%d" % size, "value": noise.randbytes(size), "headers": None} for size in sizes]
            rows += [{"key": None, "value": b"value %d " % n * n, "headers": HEADERS} for n in range(200)]
            rows += [
                {"key": b"k", "value": None, "headers": None},
                {"key": b"k", "value": bytes(300_000), "headers": None},
            ]
            times = [START_MS + number * 1000 + n for n in range(len(rows))]
            table = pa.Table.from_pylist(rows, SCHEMA)
            log.append_batch(table.append_column("timestamp", pa.array(times, pa.timestamp("ms", "UTC")).cast(TIME)))


def send(log: duramen.ConsumableWritableLog, round: int) -> Iterator[Confirmed]:
    """Some appends of each producer, the same ones in the same round."""
    for name, first in PRODUCERS.items():
        sequence, producer = first + 100 * round, log.producer(name)
        yield producer.append(b"one", sequence=sequence, key=b"k")
        yield producer.append_batch([b"%d" % n * (n % 50) for n in range(90)], sequence=sequence + 1)


def _produce(codec: str, path: Path) -> None:
    """Named producers beside plain appends, over several segments."""
    options: dict[str, Any] = {"compression": codec, "batch_max_bytes": 1000, "segment_max_bytes": 4096}
    with duramen.open(path, "a", format=KAFKA, **options) as log:
        for number in range(4):
            assert all(confirmed.stored for confirmed in send(log, number))
            log.append(b"plain")


def _transact(path: Path) -> None:
    """Batches as the Spark sink commits them; every second one fails and is rolled back."""
    options = {"format": KAFKA, "segment_max_bytes": 8192}

    def rows(number: int) -> Iterator[list[bytes]]:
        yield [b"%d-%d" % (number, n) for n in range(300)]
        if number % 2:
            raise InterruptedError

    for number in range(5):
        with suppress(InterruptedError):
            part = TransactionPart("", partial(rows, number), options)
            commit_batch(str(path), BatchKey("writer", number, "attempt"), [part])


def _retain(path: Path) -> None:
    """Without its first segments, to which its files about producers and transactions still refer."""
    _copy(DATA / "clean/txn-0", path)
    with duramen.open(path, "a") as log:
        _append_to(log, 10)
        log.retain(duramen.Retention(max_bytes=15_000))


def _copy_until(path: Path) -> None:
    """The first part of a log, inside of a batch and of a transaction."""
    path.rmdir()
    duramen.copy(DATA / "clean/txn-0", path, until_offset=150)


def _append_indexed(path: Path) -> None:
    with duramen.open(path, "a", format=KAFKA, index_stride_bytes=0, index_max_bytes=240) as log:
        _append_to(log, 200)


def _continue(source: Path, path: Path) -> None:
    _copy(source, path)
    with duramen.open(path, "a") as log:
        _append_to(log, 100)


def _compact(path: Path) -> None:
    with duramen.open(path, "a", format=KAFKA, segment_max_bytes=4096) as log:
        _append_to(log, 400)
        log.seal()
        log.compact(duramen.Compaction())


def _repair(source: Path, path: Path) -> None:
    _copy(source, path)
    duramen.repair(path, plan_only=False)


def _convert(name: str, path: Path) -> None:
    source = path.parent / f"{path.name}.source"
    options = {"record_size": RECORD_SIZE} if "record_size" in FORMATS[name].option_names else {}
    can = FORMATS[name].capabilities
    with duramen.open(source, "a", format=name, **options) as log:  # type: ignore[arg-type]
        for number in range(200):
            log.append(
                b"%*d" % (RECORD_SIZE, number), key=b"key %d" % number if can.key else None,
                timestamp=START_MS + number if can.timestamps else None, durability="write",
            )  # fmt: skip
    path.rmdir()  # the target of a conversion must not exist
    duramen.convert(source, path, to=KAFKA)
    shutil.rmtree(source)
