"""Convert on Spark makes the files that the in-process conversion makes, for every pair of formats."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import duramen
from duramen.cli.demo.samples import SAMPLED, DemoSample, write_samples
from duramen.formats import make
from duramen.log.transfer.convert import LossError
from duramen.log.transfer.convert import convert as in_process
from duramen.log.transfer.source import Source
from duramen.record import TIMESTAMP
from duramen.spark import jobs
from duramen.spark.jobs.convert import SparkConversion

DATA = Path(__file__).parents[2] / "data"
EVERYTHING = ("timestamp", "timestamp-precision", "timestamp-order", "key", "headers", "flags", "offset", "tracking",
              "groups", "checkpoint")  # fmt: skip


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> dict[str, DemoSample]:
    return {sample.format: sample for sample in write_samples(str(tmp_path_factory.mktemp("samples")))}


@pytest.fixture(autouse=True)
def same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log of which nothing says when it was made counts as made now, and the two are not made at once."""
    monkeypatch.setattr(Source, "created_ms", 1_700_000_000_000)


def files(root: Path) -> dict[str, bytes]:
    """Every file of a log but the lock, which names a process; without the times at which segments were sealed."""
    found = {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    if ".duramen/sealed.jsonl" in found:
        sealed = re.sub(rb' [0-9a-f]{8}$|"sealed_ms": [0-9]+', b"", found[".duramen/sealed.jsonl"], flags=re.MULTILINE)
        found[".duramen/sealed.jsonl"] = sealed
    return {name: content for name, content in found.items() if not name.endswith("lock")}


PAIRS = [
    (source, target) for source in SAMPLED for target in SAMPLED
    if source != target and "fixed-slot" not in (source, target)
]  # fmt: skip


@pytest.mark.parametrize(("source", "target"), PAIRS, ids=[f"{a} to {b}" for a, b in PAIRS])
def test_the_same_files(
    spark: SparkSession, samples: dict[str, DemoSample], tmp_path: Path, source: str, target: str
) -> None:
    path = samples[source].path
    expected = in_process(path, str(tmp_path / "expected"), target, allow_loss=EVERYTHING)
    found = jobs.convert(spark, path, str(tmp_path / "found"), target, allow_loss=EVERYTHING)
    assert files(tmp_path / "found") == files(tmp_path / "expected")
    expected.path = found.path
    assert found == expected
    assert not list(tmp_path.glob("*building*"))


def test_a_real_stream_in_parallel(spark: SparkSession, tmp_path: Path) -> None:
    source = str(DATA / "osiris" / "plain")
    conversion = SparkConversion(spark, source, str(tmp_path / "found"), "keratin")
    assert conversion._is_parallel()
    assert len(conversion._tasks("nowhere")) == 7
    conversion.run()
    in_process(source, str(tmp_path / "expected"), "keratin")
    assert files(tmp_path / "found") == files(tmp_path / "expected")


def test_times_that_go_back_across_segments(spark: SparkSession, tmp_path: Path) -> None:
    """Where the target's times must not go back, a segment depends on the latest time of all those before it."""
    fmt, batches = make("rustlog"), []
    for first in range(0, 200, 50):
        offsets = list(range(first, first + 50))
        times = pa.array([1_700_000_000_000_000 + (n * 37 % 101) * 1_000_000 for n in offsets], pa.int64())
        columns = {"offset": offsets, "timestamp": times.view(TIMESTAMP.type), "value": [b"value"] * 50}
        batches.append(pa.RecordBatch.from_pydict(columns))
    (tmp_path / "log").mkdir()
    for name, content in fmt.build(batches):
        (tmp_path / "log" / name).write_bytes(content)
    allow = ("timestamp-order", "timestamp-precision")
    expected = in_process(str(tmp_path / "log"), str(tmp_path / "expected"), "keratin", allow_loss=allow)
    found = jobs.convert(spark, str(tmp_path / "log"), str(tmp_path / "found"), "keratin", allow_loss=allow)
    assert found.losses == expected.losses
    assert {loss.field for loss in found.losses} >= {"timestamp-order"}
    assert files(tmp_path / "found") == files(tmp_path / "expected")


def test_without_segments_and_there_and_back(
    spark: SparkSession, samples: dict[str, DemoSample], tmp_path: Path
) -> None:
    sample = samples["fixed-slot"]
    jobs.convert(spark, sample.path, str(tmp_path / "k"), "keratin", format="fixed-slot", source_options=sample.options)
    jobs.convert(spark, str(tmp_path / "k"), str(tmp_path / "back"), "fixed-slot", allow_loss=EVERYTHING)
    original = (Path(sample.path) / "00000000.log").read_bytes()
    assert (tmp_path / "back" / "00000000.log").read_bytes() == original


def test_losses_are_listed_before_anything_is_written(
    spark: SparkSession, samples: dict[str, DemoSample], tmp_path: Path
) -> None:
    path = samples["keratin"].path
    with pytest.raises(LossError) as caught:
        jobs.convert(spark, path, str(tmp_path / "out"), "rustlog")
    assert {loss.field for loss in caught.value.losses} >= {"key", "headers"}
    planned = jobs.convert(spark, path, str(tmp_path / "out"), "rustlog", dry_run=True)
    assert (planned.records, planned.segments) == (300, 3)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [0, 1])
def test_damage_stops_it_and_leaves_nothing(
    spark: SparkSession, samples: dict[str, DemoSample], tmp_path: Path, number: int
) -> None:
    root = tmp_path / "log"
    shutil.copytree(samples["keratin"].path, root)
    victim = sorted((root / "segments").glob("*.log"))[number]
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(data)
    kwargs: dict[str, Any] = {"allow_loss": EVERYTHING}
    with pytest.raises(duramen.CorruptionError, match=victim.name):
        jobs.convert(spark, str(root), str(tmp_path / "out"), "durable-log", **kwargs)
    assert [path.name for path in tmp_path.iterdir()] == ["log"]
    skipped = jobs.convert(spark, str(root), str(tmp_path / "out"), "durable-log", on_damage="skip", **kwargs)
    assert (skipped.records, len(skipped.skipped)) == (299, 1)
