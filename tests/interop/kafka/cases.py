"""The partitions that a real broker is started on: copies of what Kafka wrote, and what Duramen writes itself."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import duramen
from duramen.formats import FORMATS, WRITABLE
from tests.formats.kafka_logs import DATA
from tests.interop.kafka.client import ConsumedRecord

KAFKA = "kafka"
BESIDE = ("truth.*", "offsets.*", "damage.json", "partition.metadata")
"""Files of the fixtures that belong to no partition, and the id of a topic, which a broker gives itself."""
START_MS = 1_700_000_000_000
RECORD_SIZE = 24


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
