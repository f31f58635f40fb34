"""Export: every row once, row for row what the in-process reader gives, whatever kills a run."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import duramen
from duramen.cli.demo.samples import SAMPLED, write_samples
from duramen.cli.main import main
from duramen.cli.pipeline import pipeline
from duramen.record import TIMESTAMP
from duramen.spark import jobs
from duramen.spark.jobs import export_target

HOUR_US = 3_600_000_000
START_US = 1_700_000_000_000_000
COLUMNS = ["offset", "timestamp", "key", "value"]


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return {sample.format: sample for sample in write_samples(str(tmp_path_factory.mktemp("samples")))}


def append(root: Path, first: int, count: int) -> None:
    """Records a quarter of an hour apart, values of JSON, some keys missing."""
    offsets = range(first, first + count)
    batch = pa.RecordBatch.from_pydict(
        {
            "timestamp": pa.array([START_US + o * HOUR_US // 4 for o in offsets], pa.int64()).view(TIMESTAMP.type),
            "key": pa.array([b"k%d" % (o % 5) if o % 3 else None for o in offsets], pa.binary()),
            "value": pa.array(
                [json.dumps({"n": o, "wood": "oak", "more": [o]}).encode() for o in offsets], pa.binary()
            ),
        }
    )
    with duramen.open(root, "a", format="keratin", segment_max_bytes=8000) as log:
        log.append_batch(batch)


@pytest.fixture
def events(tmp_path: Path) -> Path:
    root = tmp_path / "events"
    append(root, 0, 300)
    return root


def expected(root: Path, **opts: Any) -> pa.Table:
    with duramen.open(root, **opts) as log:
        return pa.Table.from_batches(list(log.batches(columns=COLUMNS)))


def rows(table: pa.Table) -> list[dict[str, Any]]:
    return table.select(COLUMNS).sort_by("offset").to_pylist()


def test_a_task_takes_the_given_share_of_the_log(spark: SparkSession, events: Path, tmp_path: Path) -> None:
    assert jobs.export(spark, str(events), str(tmp_path / "one")).files == 1
    with duramen.open(events) as log:
        segments = len(log.segments)
    assert jobs.export(spark, str(events), str(tmp_path / "many"), max_bytes_per_partition=8000).files >= segments > 1


def parquet(target: Path) -> pa.Table:
    return pa.concat_tables([pq.ParquetFile(path).read() for path in jobs.committed_files(str(target))])


def iceberg(target: Path) -> pa.Table:
    from pyiceberg.catalog import load_catalog

    catalog = load_catalog("duramen", type="sql", uri=f"sqlite:///{target}/catalog.db", warehouse=f"file://{target}")
    try:
        return catalog.load_table("duramen.log").scan().to_arrow()
    finally:
        catalog.close()


def delta(target: Path) -> pa.Table:
    from deltalake import DeltaTable

    return pa.table(DeltaTable(str(target)).to_pyarrow_table())


READ = {"parquet": parquet, "delta": delta, "iceberg": iceberg}


@pytest.mark.parametrize("name", SAMPLED)
def test_every_format_row_for_row(spark: SparkSession, samples: dict[str, Any], tmp_path: Path, name: str) -> None:
    sample, target = samples[name], tmp_path / "out"
    done = jobs.export(spark, sample.path, str(target), max_bytes_per_partition=4000, **sample.options)
    wanted = expected(sample.path, **sample.options)
    assert rows(parquet(target)) == rows(wanted)
    assert done.rows == wanted.num_rows
    seen = spark.read.parquet(str(target))
    assert seen.count() == wanted.num_rows
    assert not list((target / "_duramen").glob("staged/*"))


@pytest.mark.parametrize("kind", READ)
def test_partitions_and_increments(spark: SparkSession, events: Path, tmp_path: Path, kind: str) -> None:
    target = tmp_path / kind
    first = jobs.export(spark, str(events), str(target), kind=kind, partition_by="hour", incremental=True)
    assert (first.rows, first.files >= 75) == (300, True)
    again = jobs.export(spark, str(events), str(target), kind=kind, partition_by="hour", incremental=True)
    assert (again.rows, again.files) == (0, 0)
    append(events, 300, 50)
    more = jobs.export(spark, str(events), str(target), kind=kind, partition_by="hour", incremental=True)
    assert more.ranges == {str(events): (300, 350)}
    assert rows(READ[kind](target)) == rows(expected(events))


def test_partition_folders_are_what_spark_reads(spark: SparkSession, events: Path, tmp_path: Path) -> None:
    target = tmp_path / "out"
    jobs.export(spark, str(events), str(target), partition_by="hour")
    seen = spark.read.parquet(str(target))
    wrong = seen.where("cast(timestamp as date) <> date or hour(timestamp) <> hour").count()
    assert (seen.count(), wrong) == (300, 0)


def test_once_is_once(spark: SparkSession, events: Path, tmp_path: Path) -> None:
    target = tmp_path / "out"
    jobs.export(spark, str(events), str(target))
    assert jobs.export(spark, str(events), str(target)).rows == 0
    append(events, 300, 1)
    with pytest.raises(duramen.UsageError, match="exported up to offset 299"):
        jobs.export(spark, str(events), str(target))


def test_two_logs_of_the_same_name_are_two_logs(spark: SparkSession, events: Path, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere" / "events"
    other.parent.mkdir()
    append(other, 0, 20)
    target = tmp_path / "out"
    jobs.export(spark, str(events), str(target), incremental=True)
    assert jobs.export(spark, str(other), str(target), incremental=True).rows == 20
    assert parquet(target).num_rows == 320


class KilledError(BaseException):
    """Stands for the end of the process: no handler of ours may do anything about it."""


STEPS = {
    "parquet": ["before", "listed", "renaming", "after"],
    "delta": ["before", "after"],
    "iceberg": ["before", "after"],
}


@pytest.mark.parametrize(("kind", "step"), [(kind, step) for kind, steps in STEPS.items() for step in steps])
def test_a_killed_run_gives_each_row_once(
    spark: SparkSession, events: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, step: str
) -> None:
    """Cut off in the commit, at each of its steps, as a kill would: then the run is repeated."""
    target, cls = tmp_path / kind, {c.kind: c for c in export_target.ExportTarget.__subclasses__()}[kind]
    real_commit, real_place, real_replace = cls._commit, export_target.ParquetTarget._put_into_place, os.replace
    moved = 0

    def commit(self: Any, *args: Any) -> None:
        if step == "before":
            raise KilledError
        real_commit(self, *args)
        raise KilledError

    def put(self: Any, commit: dict[str, Any]) -> None:
        if step == "listed":
            raise KilledError
        real_place(self, commit)

    def replace(source: Any, into: Any, **directories: int) -> None:
        nonlocal moved
        moved += str(into).endswith(".parquet")
        if step == "renaming" and moved == 3:
            raise KilledError
        real_replace(source, into, **directories)

    with monkeypatch.context() as patch:
        patch.setattr(cls, "_commit", commit)
        patch.setattr(export_target.ParquetTarget, "_put_into_place", put)
        patch.setattr(export_target.os, "replace", replace)
        with pytest.raises(KilledError):
            jobs.export(spark, str(events), str(target), kind=kind, partition_by="date", incremental=True)
    left = {"parquet": lambda: spark.read.parquet(str(target)).count()}.get(kind)
    if step == "before" and kind == "parquet":
        assert not list(target.glob("*.parquet")) + list(target.glob("date=*"))
    assert left is None or step != "after" or left() == 300
    append(events, 300, 10)
    jobs.export(spark, str(events), str(target), kind=kind, partition_by="date", incremental=True)
    assert rows(READ[kind](target)) == rows(expected(events))
    if kind == "parquet":
        assert spark.read.parquet(str(target)).count() == 310
    kept = {path.name for path in target.rglob("*.parquet")}
    assert len(kept) == len(list(target.rglob("*.parquet"))), "a file lies there twice"
    assert not (target / "_duramen" / "run.json").exists()


def test_a_failed_task_leaves_nothing(spark: SparkSession, events: Path, tmp_path: Path) -> None:
    segment = sorted((events / "segments").glob("*.log"))[1]
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    with pytest.raises(duramen.CorruptionError) as caught:
        jobs.export(spark, str(events), str(tmp_path / "out"))
    assert segment.name in str(caught.value)
    assert not list((tmp_path / "out").rglob("*.parquet"))


def test_retention_that_overtakes_is_said(spark: SparkSession, events: Path, tmp_path: Path) -> None:
    target = tmp_path / "out"
    jobs.export(spark, str(events), str(target), incremental=True, ending=10)
    for path in sorted((events / "segments").iterdir())[:4]:
        path.unlink()
    shutil.rmtree(events / ".duramen")
    with pytest.raises(duramen.OffsetError, match=r"data loss: offsets 10 to \d+ \(\d+ in all\): the log begins at"):
        jobs.export(spark, str(events), str(target), incremental=True)
    assert jobs.export(spark, str(events), str(target), incremental=True, fail_on_data_loss=False).rows > 0


@pytest.mark.parametrize("kind", READ)
def test_json_values(spark: SparkSession, events: Path, tmp_path: Path, kind: str) -> None:
    target = tmp_path / "out"
    jobs.export(spark, str(events), str(target), kind=kind, decode="json", value_schema="n bigint, wood string")
    table = READ[kind](target).sort_by("offset")
    assert table.column("value").to_pylist() == [{"n": n, "wood": "oak"} for n in range(300)]


def test_a_malformed_value_of_many_logs_names_its_log(spark: SparkSession, tmp_path: Path) -> None:
    with duramen.Store(tmp_path / "store") as store:
        topic = store.create("orders", partitions=3, format="keratin")
        for partition, value in enumerate([b'{"n": 1}', b'{"n": 2}', b"?"]):
            topic.append_batch([value], partition=partition)
    options: Any = {"subscribe": ["orders"], "decode": "json", "value_schema": "n bigint"}
    for run in (
        lambda: jobs.export(spark, str(tmp_path / "store"), str(tmp_path / "out"), **options),
        lambda: jobs.profile(spark, str(tmp_path / "store"), **options),
    ):
        with pytest.raises(duramen.MalformedError, match="partitions/2: offset 0: the value is not json"):
            run()


def test_keys_and_malformed_values(spark: SparkSession, tmp_path: Path) -> None:
    with duramen.open(tmp_path / "log", "a") as log:
        log.append_batch([(b"a", b'{"n": 1}'), (b"b", b"no"), (b"c", b'{"n": 3}')])
    path, target = str(tmp_path / "log"), tmp_path / "out"
    with pytest.raises(duramen.CorruptionError, match="offset 1: the value is not json"):
        jobs.export(spark, path, str(target), decode="json")
    jobs.export(spark, path, str(target), decode="json", decode_key="utf8", on_malformed="raw")
    table = parquet(target).sort_by("offset")
    assert table["key"].to_pylist() == ["a", "b", "c"]
    assert table["value"].to_pylist() == [{"n": 1}, None, {"n": 3}]
    assert [each and each["bytes"] for each in table["_malformed"].to_pylist()] == [None, b"no", None]


def test_an_incremental_export_needs_a_schema(spark: SparkSession, events: Path, tmp_path: Path) -> None:
    with pytest.raises(duramen.UsageError, match="needs a schema"):
        jobs.export(spark, str(events), str(tmp_path / "out"), decode="json", incremental=True)


def test_wrong_usage(spark: SparkSession, events: Path, samples: dict[str, Any], tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    with pytest.raises(duramen.UsageError, match="cannot export to"):
        jobs.export(spark, str(events), out, kind="csv")
    with pytest.raises(duramen.UsageError, match="cannot partition by"):
        jobs.export(spark, str(events), out, partition_by="week")
    with pytest.raises(duramen.UsageError, match="no time to partition by"):
        jobs.export(spark, samples["durable-log"].path, out, partition_by="date")
    with pytest.raises(duramen.StorageError, match="no such file"):
        jobs.export(spark, str(tmp_path / "nowhere"), str(tmp_path / "none"))
    assert not (tmp_path / "none").exists()
    with pytest.raises(duramen.UsageError, match="cannot be read"):
        jobs.export(spark, str(events), out, decode="json", value_schema="n wibble")
    with pytest.raises(duramen.UsageError, match="not among the columns"):
        jobs.export(spark, str(events), out, decode="json", columns=["offset"])


def test_a_dry_run_makes_nothing(spark: SparkSession, events: Path, tmp_path: Path) -> None:
    planned = jobs.export(spark, str(events), str(tmp_path / "out"), dry_run=True)
    assert planned.ranges == {str(events): (0, 300)}
    assert not (tmp_path / "out").exists()


def test_files_hold_their_own_hours(spark: SparkSession, events: Path, tmp_path: Path) -> None:
    target = tmp_path / "out"
    jobs.export(spark, str(events), str(target), partition_by="hour")
    for path in jobs.committed_files(str(target)):
        times = pq.ParquetFile(path).read(["timestamp"]).column(0).cast(pa.int64())
        assert pc.min(times).as_py() // HOUR_US == pc.max(times).as_py() // HOUR_US


def test_the_verb_decodes(spark: SparkSession, events: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def session(*_: Any) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr(pipeline, "running", session)
    words = ["--decode", "json", "--value-schema", "n bigint"]
    assert main(["pipeline", "export", str(events), str(tmp_path / "out"), *words]) == 0
    assert parquet(tmp_path / "out").column("value").to_pylist()[5] == {"n": 5}
