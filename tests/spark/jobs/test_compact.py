"""Compact on Spark gives what the in-process compaction gives: record for record, in every format that can."""

from __future__ import annotations

import random
import shutil
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import duramen
from duramen.formats import make
from duramen.log.maintain.compact import Compaction, Compactor
from duramen.record import TIMESTAMP
from duramen.spark import jobs
from tests.formats.kafka_logs import DATA, ISOLATIONS
from tests.log.conftest import codec, options, write  # noqa: F401
from tests.sampling import every

OLD_US = 1_600_000_000_000_000


def build(root: Path, name: str, seed: int) -> Path:
    """Four segments: keys that repeat, rows without key, tombstones old and young, one segment without any key."""
    dice, fmt = random.Random(seed), make(name)
    batches, offset = [], 0
    for number in range(4):
        offsets = []
        for _ in range(150):
            offset += dice.choice((1, 1, 1, 2))
            offsets.append(offset)
        keyed = number != 2
        values = []
        for _ in offsets:
            key = b"%02d" % dice.randrange(60)
            gone = None if fmt.capabilities.null_values and dice.random() < 0.5 else b""
            values.append(key + b"=" + dice.randbytes(dice.randrange(20)) if dice.random() < 0.9 else gone)
        columns: dict[str, Any] = {"offset": pa.array(offsets, pa.int64()), "value": pa.array(values, pa.binary())}
        if fmt.capabilities.timestamps:
            times = [dice.choice((OLD_US + o * 1000, 4_000_000_000_000_000)) for o in offsets]
            columns["timestamp"] = pa.array(times, pa.int64()).view(TIMESTAMP.type)
        if fmt.capabilities.key:
            keys = [b"k%d" % dice.randrange(60) if keyed and dice.random() < 0.8 else None for _ in offsets]
            columns["key"] = pa.array(keys, pa.binary())
        batches.append(pa.RecordBatch.from_pydict(columns))
    for path, content in fmt.build(batches, OLD_US // 1000):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)
    return root


def in_process(root: Path, how: Compaction) -> list[Any]:
    with duramen.open(root, "a") as log:
        Compactor(log, how, 1_800_000_000_000_000, writer=log).run()
    with duramen.open(root) as log:
        return list(log)


CASES = [
    ("keratin", {"key": "key"}),
    ("keratin", {"key": "key", "keyless": "drop", "tombstone_delay_ms": 0}),
    ("rustlog", {"key": "delimiter:="}),
    ("durable-log", {"key": "prefix:2"}),
    ("kafka", {"key": "key"}),
]


@pytest.mark.parametrize(("name", "how"), CASES[:: every(2)], ids=lambda given: str(given))
def test_the_same_as_in_process(spark: SparkSession, tmp_path: Path, name: str, how: dict[str, Any]) -> None:
    source = build(tmp_path / "log", name, seed=len(how))
    shutil.copytree(source, tmp_path / "copy")
    expected = in_process(tmp_path / "copy", Compaction(**how))
    report = jobs.compact(spark, str(source), str(tmp_path / "out"), **how)
    with duramen.open(tmp_path / "out") as log:
        found = list(log)
    assert found == expected
    assert report.records_after == len(found) < report.records_before
    assert duramen.verify(tmp_path / "out").ok
    assert not list(tmp_path.glob("*building*"))
    with duramen.open(tmp_path / "out", "a") as log:
        following = log.append(b"more")
    assert following == expected[-1].offset + 1


def test_transactions_are_compacted_as_in_process(spark: SparkSession, tmp_path: Path) -> None:
    given = shutil.ignore_patterns("cleaned.batches")
    source = shutil.copytree(DATA / "cleaned/zstd-0", tmp_path / "zstd-0", ignore=given)
    copy = shutil.copytree(source, tmp_path / "copy-0")
    how = Compaction(keyless="drop")
    with duramen.open(copy, "a") as log:
        Compactor(log, how, time.time_ns() // 1000, writer=log).run()
    jobs.compact(spark, str(source), str(tmp_path / "out"), keyless="drop")
    for isolation in ISOLATIONS:
        found = []
        for path in (tmp_path / "out", copy):
            with duramen.open(path, isolation=isolation) as log:
                found.append((list(log), log.first_offset, log.next_offset))
        assert found[0] == found[1]
    assert duramen.verify(tmp_path / "out").ok


def test_nothing_to_remove_is_said(spark: SparkSession, tmp_path: Path) -> None:
    with duramen.open(tmp_path / "log", "a", format="keratin", segment_max_bytes=2000) as log:
        for n in range(100):
            log.append(b"value", key=b"%d" % n, durability="write")
    report = jobs.compact(spark, str(tmp_path / "log"), str(tmp_path / "out"))
    assert (report.changed, report.note) == (False, "every key occurs once: nothing to remove")
    with duramen.open(tmp_path / "active", "a", format="keratin") as log:
        log.append_batch([b"value"] * 9, durability="write")
    report = jobs.compact(spark, str(tmp_path / "active"), str(tmp_path / "same"))
    assert report.note == "no sealed segment to compact: the active one is taken over as it is"


def test_a_dry_run_counts_and_leaves_nothing(spark: SparkSession, tmp_path: Path) -> None:
    source = build(tmp_path / "log", "keratin", seed=3)
    planned = jobs.compact(spark, str(source), str(tmp_path / "out"), dry_run=True)
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob("*building*"))
    done = jobs.compact(spark, str(source), str(tmp_path / "out"))
    assert planned == done


def test_what_cannot_be_compacted_says_so(spark: SparkSession, tmp_path: Path, write: Any) -> None:  # noqa: F811
    for name in ("osiris", "fixed-slot"):
        root = write(name, 5, 5)
        with pytest.raises(duramen.UsageError, match="cannot be compacted"):
            jobs.compact(spark, str(root), str(tmp_path / "out"), key="prefix:1", format=name, **options(name))
    root = write("rustlog", 5, 5)
    with pytest.raises(duramen.UsageError, match="have no key"):
        jobs.compact(spark, str(root), str(tmp_path / "out"))
    assert codec("keratin").capabilities.compaction


def test_damage_is_one_clear_error_and_leaves_nothing(spark: SparkSession, tmp_path: Path) -> None:
    source = build(tmp_path / "log", "keratin", seed=5)
    victim = sorted((source / "segments").glob("*.log"))[1]
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(data)
    with pytest.raises(duramen.CorruptionError, match=victim.name) as caught:
        jobs.compact(spark, str(source), str(tmp_path / "out"))
    assert "Traceback" not in str(caught.value)
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob("*building*"))
