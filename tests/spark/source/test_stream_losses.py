"""What a read cannot deliver is told: replaced logs, vanished segments, changed bytes, records whose time goes back."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import duramen
from duramen.errors import CorruptionError, DuramenError, OffsetError, StorageError, UsageError
from duramen.log.maintain.retention import Retention
from duramen.log.read.log import Log
from duramen.record import TIMESTAMP
from duramen.spark import jobs
from duramen.spark.source.identity import Beginning, Identity, parse_identity
from duramen.spark.source.options import parse_options
from duramen.spark.source.stream import LOGS
from tests.spark.source.test_stream_restart import Restarted, grow
from tests.spark.source_logs import (
    FORMATS,
    START_MS,
    START_US,
    batch_of,
    build_log,
    read_here,
    splits_of,
    write_log,
)
from tests.spark.stream_query import Query

# --- which log it is


def replaced(path: Path, name: str, count: int) -> Path:
    """Delete a log and create another under its name."""
    shutil.rmtree(path)
    return write_log(path, name, count)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("count", [60, 100, 500])
def test_a_replaced_log_is_noticed(tmp_path: Path, name: str, count: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Whether the new log is shorter, as long or longer."""
    path = write_log(tmp_path / "log", name, 100)
    query = Query()
    query.run(path)
    replaced(path, name, count)
    with pytest.raises(OffsetError, match="data loss: another log is in the place of the one that the checkpoint is"):
        query.run(path)
    assert query.run(path, failOnDataLoss="false") == count
    assert "data loss: another log is in the place" in capsys.readouterr().err
    assert query.offsets() == [*range(100), *range(count)]
    grow(path)
    assert query.run(path) == 20


def test_a_replaced_log_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    path = write_log(tmp_path / "log", "keratin", 100)
    query = Restarted(spark, tmp_path / "checkpoint")
    assert query.run(path) == 100
    rows = spark.range(500).selectExpr("cast(id AS string) AS value")
    rows.write.format("duramen").mode("overwrite").save(str(path))
    with pytest.raises(PySparkException, match="data loss: another log is in the place of the one that the check"):
        query.run(path)
    assert query.run(path, failOnDataLoss="false", maxOffsetsPerTrigger=300) == 500
    assert query.offsets == [*range(100), *range(500)]


def test_a_batch_of_a_log_that_was_replaced_before_it_ran(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A batch was planned, and the driver died: what it had planned to read is of no log any more."""
    path = write_log(tmp_path / "log", "keratin", 100)
    query = Query()
    query.run(path)
    grow(path)
    identity = json.loads(query.offset or "")[LOGS]
    query.planned = json.dumps({"log": {"0": 120}, LOGS: identity})
    replaced(path, "keratin", 300)
    with pytest.raises(OffsetError, match="data loss: another log"):
        query.run(path)
    assert query.run(path, failOnDataLoss="false") == 300
    assert "which was read up to offset 120" in capsys.readouterr().err


def test_a_log_that_is_replaced_between_plan_and_read(tmp_path: Path) -> None:
    path = write_log(tmp_path / "log", "durable-log", 100)
    splits = splits_of(path)
    replaced(path, "durable-log", 100)
    with pytest.raises(StorageError, match="another log has taken the place of this one since the read was planned"):
        read_here(path, splits)


@pytest.mark.parametrize("name", FORMATS)
def test_a_log_without_a_sidecar(tmp_path: Path, name: str) -> None:
    """It is told by its first bytes. A sidecar that comes with the first append makes no other log of it, nor does one
    that is deleted."""
    options = {"record_size": 40} if name == "fixed-slot" else {}
    path = build_log(tmp_path / "log", name, [batch_of(name, 0, 100)])
    query = Query()
    assert query.run(path, **options) == 100
    with duramen.open(path, "a", format=name, **options) as log:
        log.append_batch(batch_of(name, 100, 20))
    assert query.run(path) == 20
    with duramen.open(path, "a") as log:
        log.append_batch(batch_of(name, 120, 20))
    shutil.rmtree(path / ".duramen")
    assert query.run(path, **options) == 20
    assert query.offsets() == list(range(140))
    shutil.rmtree(path)
    build_log(path, name, [batch_of(name, 7, 500)])
    with pytest.raises(OffsetError, match="another log"):
        query.run(path, **options)


def test_retention_and_compaction_make_no_other_log(tmp_path: Path) -> None:
    path = write_log(tmp_path / "log", "keratin", 100)
    query = Query()
    query.run(path)
    with duramen.open(path, "a") as log:
        log.retain(Retention(max_bytes=1))
        log.append_batch(batch_of("keratin", 100, 20))
    assert query.run(path) == 20
    bare = build_log(tmp_path / "bare", "keratin", [batch_of("keratin", 0, 50), batch_of("keratin", 50, 50)])
    other = Query()
    other.run(bare)
    Path(Log(str(bare)).segments[0].path).unlink()
    assert other.run(bare) == 0


def test_a_checkpoint_of_an_earlier_version(tmp_path: Path) -> None:
    """It does not say which log it is of; from its next batch on it does."""
    path = write_log(tmp_path / "log", "keratin", 100)
    query = Query()
    query.offset = '{"log": {"0": 60}}'
    assert query.run(path) == 40
    assert list(json.loads(query.offset)) == ["log", LOGS]
    query.offset = '{"log": {"0": 100}}'
    assert query.run(path) == 0
    assert query.offset == '{"log": {"0": 100}}', "no batch without rows"


@pytest.mark.parametrize(
    "text", ['{"log": {"0": "x"}}', '{"/logs": {"log": {"0": "?"}}}', '{"/logs": 3}', '{"log": 3}']
)
def test_a_checkpoint_of_another_source(tmp_path: Path, text: str) -> None:
    query = Query()
    query.offset = text
    with pytest.raises(CorruptionError, match=r"the checkpoint holds .* which are no offsets of this source"):
        query.run(write_log(tmp_path / "log", "keratin", 10))


def test_identities_as_text() -> None:
    for identity in (
        Identity(), Identity("keratin/1763300000000"), Identity(None, Beginning("fixed-slot-40", 0, 4096, "0123abcd")),
        Identity("durable-log/1", Beginning("durable-log", 7, 3, "ffffffff")),
    ):  # fmt: skip
        assert parse_identity(str(identity)) == identity


# --- offsets as JSON


def test_offsets_in_json_are_kafkas(tmp_path: Path) -> None:
    path = write_log(tmp_path / "ev", "keratin", 200)

    def rows(start: Any, end: Any) -> int:
        texts = {"startingOffsets": json.dumps({"ev": {"0": start}}), "endingOffsets": json.dumps({"ev": {"0": end}})}
        return read_here(path, columns="offset", **texts).num_rows

    assert rows(-2, -1) == 200
    assert rows("earliest", "latest") == rows("-2", "-1") == 200
    assert rows(-1, -1) == rows(-2, -2) == 0
    assert rows(150, -1) == 50
    for wrong in (-3, "-10", -(2**63)):
        with pytest.raises(UsageError, match=r"option startingOffsets='-\d+' is not valid \(allowed: an offset, -2 or"):
            rows(wrong, -1)
        with pytest.raises(UsageError, match="option endingOffsets="):
            rows(-2, wrong)
    assert read_here(path, columns="offset", startingOffsets="-3").num_rows == 3
    with pytest.raises(UsageError, match="is not valid"):
        parse_options({"path": str(path), "startingOffsets": '{"ev": ' + "[" * 100_000}, streaming=False)


# --- segments that vanished


def vanished(path: Path, number: int) -> tuple[int, int]:
    """Delete a segment; returns the offsets that it held."""
    segments = Log(str(path)).segments
    Path(segments[number].path).unlink()
    return segments[number].base_offset, segments[number + 1].base_offset


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "fixed-slot"])
def test_a_segment_that_is_missing(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_log(tmp_path / "log", name, 300)
    first, end = vanished(path, 3)
    lost = rf"data loss: offsets {first} to {end - 1} \({end - first} in all\): a sealed segment is missing"
    query = Query()
    with pytest.raises(OffsetError, match=lost):
        query.run(path)
    with pytest.raises(OffsetError, match=lost):
        read_here(path)
    assert read_here(path, endingOffsets=first).num_rows == first, "what is not asked for is not missed"
    assert read_here(path, startingOffsets=end).num_rows == 300 - end
    assert query.run(path, failOnDataLoss="false") == 300 - (end - first)
    assert read_here(path, failOnDataLoss="false").num_rows == 300 - (end - first)
    told = capsys.readouterr().err
    assert told.count(f"data loss: offsets {first} to {end - 1} ({end - first} in all): a sealed segment") == 2
    assert told.count("data loss") == 2, "each read reports it once"


def test_the_last_segments_are_missing(tmp_path: Path) -> None:
    """The active one, or a sealed one and it: the log seems to end earlier."""
    path = write_log(tmp_path / "log", "keratin", 300)
    segments = Log(str(path)).segments
    Path(segments[-1].path).unlink()
    with pytest.raises(
        OffsetError, match=f"data loss: offset.* {segments[-1].base_offset} .*active segment is missing"
    ):
        read_here(path)
    Path(segments[-2].path).unlink()
    with pytest.raises(OffsetError, match=f"data loss: offsets {segments[-2].base_offset} to .*sealed segment is miss"):
        read_here(path)


def test_a_segment_that_is_missing_without_a_sidecar(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Osiris leaves no gap between segments: one that is there is a loss."""
    path = build_log(tmp_path / "log", "osiris", [batch_of("osiris", first, 50) for first in (0, 50, 100)])
    vanished(path, 1)
    for size in (1 << 20, 700):
        with pytest.raises(OffsetError, match=r"data loss: offsets 50 to 99 \(50 in all\): they are missing between"):
            read_here(path, maxBytesPerPartition=size)
        assert read_here(path, failOnDataLoss="false", maxBytesPerPartition=size).num_rows == 100
        assert capsys.readouterr().err.count("data loss: offsets 50 to 99 (50 in all)") == 1
    assert read_here(path, endingOffsets=50).num_rows == 50


@pytest.mark.parametrize("name", ["durable-log", "osiris"])
def test_a_segment_that_vanishes_after_the_plan(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_log(tmp_path / "log", name, 300)
    splits = splits_of(path)
    first, end = vanished(path, 3)
    with pytest.raises(
        OffsetError, match=rf"data loss: offsets {first} to {end - 1} \({end - first} in all\): the seg"
    ):
        read_here(path, splits)
    assert read_here(path, splits, failOnDataLoss="false").num_rows == 300 - (end - first)
    assert f"data loss: offsets {first} to {end - 1} ({end - first} in all)" in capsys.readouterr().err


def test_what_retention_and_compaction_remove_after_the_plan(tmp_path: Path) -> None:
    """What retention removes is lost to a read that wanted it; what compaction empties is not."""
    path = tmp_path / "log"
    with duramen.open(path, "a", format="keratin", segment_max_bytes=2048) as log:
        for n in range(200):
            log.append(b"value %d" % n, key=b"k%d" % (n % 5), durability="write")
    splits = splits_of(path)
    with duramen.open(path, "a") as log:
        log.compact()
        kept = [record.offset for record in log.scan()]
    missing = [info for split in splits for info in split.pieces if not Path(info.path).exists()]
    assert missing, "compaction emptied no segment"
    for piece in missing:
        one = [type(split)(split.logs, (piece,)) for split in splits if piece in split.pieces]
        assert read_here(path, one).num_rows == 0
    assert read_here(path).column("offset").to_pylist() == kept


def test_a_missing_segment_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    path = write_log(tmp_path / "log", "durable-log", 300)
    first, end = vanished(path, 3)
    read = spark.read.format("duramen")
    with pytest.raises(PySparkException, match=f"data loss: offsets {first} to {end - 1} .*sealed segment is missing"):
        read.load(str(path)).count()
    assert read.option("failOnDataLoss", "false").load(str(path)).count() == 300 - (end - first)


# --- times


def clock_steps(path: Path) -> Path:
    """An Osiris log whose clock went back by half an hour and forward again, with many small segments."""
    seconds = [*range(0, 3600, 60), *range(1800, 2400, 60), 5000, 100, *range(3600, 4200, 60)]
    with duramen.open(path, "a", format="osiris", segment_max_bytes=1024) as log:
        for second in seconds:
            times = pa.array([START_US + second * 1_000_000] * 3, pa.int64()).view(TIMESTAMP.type)
            batch = pa.RecordBatch.from_pydict({"value": pa.array([b"x" * 60] * 3, pa.binary()), "timestamp": times})
            log.append_batch(batch, durability="write")
    return path


def test_a_time_range_has_every_row_of_it(tmp_path: Path) -> None:
    path = clock_steps(tmp_path / "log")
    with duramen.open(path) as log:
        times = {record.offset: record.timestamp for record in log.scan()}
        assert len(log.segments) > 10
    for start in range(0, 5400, 300):
        for length in (1, 60, 600, 6000):
            low, high = START_MS + start * 1000, START_MS + (start + length) * 1000
            wanted = [o for o, t in times.items() if t is not None and low <= t.timestamp() * 1000 < high]
            found = read_here(path, columns="offset", startingTimestamp=low, endingTimestamp=high)
            assert found.column(0).to_pylist() == wanted
            with duramen.open(path) as log:
                assert [record.offset for record in log.scan(from_time=low, to_time=high)] == wanted


def test_where_a_stream_begins_by_time(tmp_path: Path) -> None:
    """With the first record of that time or later, wherever it is; then everything."""
    path = clock_steps(tmp_path / "log")
    with duramen.open(path) as log:
        times = {record.offset: record.timestamp for record in log.scan()}
    for second in (0, 90, 2000, 3590, 4000, 5000):
        start = START_MS + second * 1000
        first = next(o for o, t in times.items() if t is not None and t.timestamp() * 1000 >= start)
        query = Query()
        query.run(path, startingTimestamp=start)
        assert query.offsets() == list(range(first, len(times)))
    late = Query()
    assert late.run(path, startingTimestamp=START_MS + 6_000_000) == 0
    assert late.run(path, startingTimestamp=10**15) == 0
    grow_back(path)
    assert late.run(path, startingTimestamp=START_MS + 6_000_000) == 3, "the time decides where a query begins, once"


def grow_back(path: Path) -> None:
    with duramen.open(path, "a") as log:
        log.append_batch(batch_of("osiris", 0, 3))


def test_the_time_of_the_start_filters_no_later_row_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    path = write_log(tmp_path / "log", "osiris", 200)
    query = Restarted(spark, tmp_path / "checkpoint")
    assert query.run(path, startingTimestamp=START_MS + 100_000) == 100
    with duramen.open(path, "a") as log:
        log.append_batch(batch_of("osiris", 0, 40))
    assert query.run(path, startingTimestamp=START_MS + 100_000) == 40
    assert query.offsets == list(range(100, 240))


# --- bytes that only the digest knows


def changed(path: Path, name: str, number: int = 2) -> Path:
    """Change a bit of a segment that no checksum of the format covers; returns the file."""
    info = Log(str(path)).segments[number]
    content = bytearray(Path(info.path).read_bytes())
    at = content.find(b"value ") if name == "rustlog" else 8 + 8  # the time of the first chunk of an Osiris segment
    content[at] ^= 1
    Path(info.path).write_bytes(bytes(content))
    return Path(info.path)


UNCOVERED = ("rustlog", "osiris")


@pytest.mark.parametrize("name", UNCOVERED)
@pytest.mark.parametrize("size", [1 << 20, 700])
def test_a_read_compares_the_digest(tmp_path: Path, name: str, size: int) -> None:
    path = write_log(tmp_path / "log", name, 300, step=10)
    file = changed(path, name)
    assert "digest-mismatch" in [finding.code for finding in duramen.verify(path).findings]
    with pytest.raises(CorruptionError, match="its digest differs") as caught:
        read_here(path, maxBytesPerPartition=size)
    assert caught.value.path == str(file)
    query = Query()
    with pytest.raises(CorruptionError, match="its digest differs"):
        query.run(path, maxBytesPerPartition=size, maxOffsetsPerTrigger=7)
    assert read_here(path, onDamage="skip", maxBytesPerPartition=size).num_rows == 300
    told = read_here(path, onDamage="report", maxBytesPerPartition=size).to_pylist()
    damaged = [row["_damage"] for row in told if row["_damage"] is not None]
    assert [(row["path"], "digest differs" in row["reason"]) for row in damaged] == [(str(file), True)]
    assert len(told) == 301
    assert read_here(path, verify="false", maxBytesPerPartition=size).num_rows == 300


@pytest.mark.parametrize("name", FORMATS)
def test_what_verify_calls_damage_fails_a_read(tmp_path: Path, name: str) -> None:
    """Single bits of the first and of the active segment: the read raises, or every row is as it was."""
    path = write_log(tmp_path / "log", name, 60, step=5, segment_bytes=1024)
    rows, dice = read_here(path), random.Random(name)
    segments = Log(str(path)).segments
    for file in {Path(segments[0].path), Path(segments[-1].path)}:
        content = file.read_bytes()
        for bit in [*dice.sample(range(8 * 60), 6), *dice.sample(range(8 * len(content)), 4)]:
            raw = bytearray(content)
            raw[bit // 8] ^= 1 << bit % 8
            file.write_bytes(bytes(raw))
            try:
                is_sound = duramen.verify(path).ok
            except DuramenError:
                is_sound = False
            try:
                assert read_here(path).equals(rows), bit
                assert is_sound, bit
            except DuramenError:
                assert not is_sound, bit
        file.write_bytes(content)


@pytest.mark.parametrize("name", ["durable-log", "rustlog", "osiris"])
def test_segments_that_overlap(tmp_path: Path, name: str) -> None:
    """Names shifted by one, without a sidecar: a segment holds what the name of the next one says."""
    path = build_log(tmp_path / "log", name, [batch_of(name, first, 20) for first in range(0, 100, 20)])
    files = [Path(info.path) for info in Log(str(path)).segments]
    for file, content in zip(files[:-1], [file.read_bytes() for file in files[1:]], strict=True):
        file.write_bytes(content)
    assert "overlapping-segments" in [finding.code for finding in duramen.verify(path).findings]
    with pytest.raises(CorruptionError, match="offset 20 lies in the next segment, which begins at 20"):
        read_here(path)
    offsets = read_here(path, onDamage="skip").column("offset").to_pylist()
    assert offsets == list(range(80, 100))
    told = read_here(path, onDamage="report").to_pylist()
    assert sum(row["_damage"] is not None for row in told) == 4


Job = Callable[[SparkSession, Path, Path], object]
JOBS: dict[str, Job] = {
    "compact": lambda spark, path, to: jobs.compact(spark, str(path), str(to / "log"), key="prefix:7"),
    "convert": lambda spark, path, to: jobs.convert(spark, str(path), str(to / "log"), "keratin"),
    "export": lambda spark, path, to: jobs.export(spark, str(path), str(to / "files")),
    "replay": lambda spark, path, to: jobs.replay(spark, str(path), jobs.Into(str(to / "log"))),
    "ingest": lambda spark, path, to: jobs.ingest(spark, "duramen", str(path), jobs.Into(str(to / "log"), "keratin")),
}


@pytest.mark.parametrize("job", JOBS)
def test_jobs_compare_the_digest(spark: SparkSession, tmp_path: Path, job: str) -> None:
    path = write_log(tmp_path / "log", "rustlog", 300, step=10)
    changed(path, "rustlog")
    (tmp_path / "to").mkdir()
    with pytest.raises(DuramenError, match="its digest differs"):
        JOBS[job](spark, path, tmp_path / "to")
    assert not (tmp_path / "to" / "log").exists() or duramen.open(tmp_path / "to" / "log").next_offset == 0
    if job in ("compact", "convert", "export"):
        other = write_log(tmp_path / "other", "rustlog", 300, step=10)
        changed(other, "rustlog", -1)
        with pytest.raises(DuramenError, match="their digest differs"):
            JOBS[job](spark, other, tmp_path / "to")


@pytest.mark.parametrize("job", JOBS)
def test_jobs_miss_a_segment(spark: SparkSession, tmp_path: Path, job: str) -> None:
    path = write_log(tmp_path / "log", "rustlog", 300, step=10)
    (tmp_path / "to").mkdir()
    vanished(path, 3)
    with pytest.raises(DuramenError, match="a sealed segment is missing"):
        JOBS[job](spark, path, tmp_path / "to")


def test_an_export_notices_a_replaced_log(spark: SparkSession, tmp_path: Path) -> None:
    path = write_log(tmp_path / "log", "keratin", 100)
    target = str(tmp_path / "files")
    assert jobs.export(spark, str(path), target, incremental=True).rows == 100
    grow(path)
    assert jobs.export(spark, str(path), target, incremental=True).rows == 20
    replaced(path, "keratin", 500)
    with pytest.raises(OffsetError, match="another log is in the place of the one that the last run read"):
        jobs.export(spark, str(path), target, incremental=True)
