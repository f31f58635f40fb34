"""The plan of a read: every record in exactly one piece, pieces of the size that was asked for, no payload touched."""

from __future__ import annotations

import pickle
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import duramen
from duramen.disk import PosixDisk
from duramen.errors import CorruptionError, DuramenError, UsageError
from duramen.log.read.log import Log
from duramen.record import TIMESTAMP
from duramen.spark.source.options import MAX_PARTITION_BYTES, parse_options
from duramen.spark.source.plan import plan_read
from duramen.spark.source.splits import Range, first_us, offset_behind
from tests.sampling import examples
from tests.spark.source_logs import (
    FORMATS,
    RECORD_SIZE,
    START_MS,
    assert_same,
    batch_of,
    build_log,
    expected,
    read_here,
    splits_of,
    with_offsets,
    write_log,
)

COUNT = 200
ALL = ("offset", "timestamp", "key", "value", "headers")


@pytest.fixture(scope="module", params=FORMATS)
def log(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_log(tmp_path_factory.mktemp("log") / request.param, request.param, COUNT, step=7)


@settings(max_examples=examples(20))
@given(st.data())
def test_every_row_once_and_in_order(log: Path, data: st.DataObject) -> None:
    """Whatever the sizes and the range: the pieces together are what the in-process reader reads."""
    sizes = st.integers(1, 40_000)
    options: dict[str, Any] = {"maxBytesPerPartition": data.draw(sizes), "columns": ",".join(ALL)}
    bounds = {}
    if data.draw(st.booleans()):
        options["startingOffsets"] = bounds["from_offset"] = data.draw(st.integers(0, COUNT + 3))
    if data.draw(st.booleans()):
        options["endingOffsets"] = bounds["to_offset"] = data.draw(st.integers(0, COUNT + 3))
    if data.draw(st.booleans()):
        options["minPartitions"] = data.draw(st.integers(1, 60))
    found = read_here(log, **options)
    assert_same(found, expected(log, ALL, **bounds))


def test_one_large_segment_gives_many_splits(tmp_path: Path) -> None:
    for name in FORMATS:
        log = write_log(tmp_path / name, name, 3000, step=100, segment_bytes=1 << 30)
        assert len(Log(str(log)).segments) == 1
        splits = splits_of(log, maxBytesPerPartition=20_000)
        # as near to 20,000 bytes as the index allows: Keratin's has an entry every 64 KiB
        assert len(splits) >= (4 if name == "keratin" else 7), name
        assert max(split.size_bytes for split in splits) < 20_000 + 70_000
        assert len(splits_of(log, minPartitions=4)) >= 4
        assert_same(read_here(log, splits, columns="offset"), expected(log, ["offset"]))


def test_many_small_segments_share_tasks(tmp_path: Path) -> None:
    batches = [with_offsets(batch_of("rustlog", first, 2), [first, first + 1]) for first in range(0, 2000, 2)]
    log = build_log(tmp_path / "log", "rustlog", batches)
    assert len(Log(str(log)).segments) == 1000
    splits = splits_of(log, columns="offset")
    assert 4 <= len(splits) <= 12
    assert_same(read_here(log, splits, columns="offset"), expected(log, ["offset"]))
    assert len(splits_of(log, maxBytesPerPartition="1g")) == 1
    assert len(splits_of(log, minPartitions=100)) >= 100


def test_without_an_index_the_headers_are_walked(tmp_path: Path) -> None:
    for name in ("keratin", "durable-log", "rustlog", "osiris"):
        log = write_log(tmp_path / name, name, 2000, step=20, segment_bytes=1 << 30)
        segment = Path(Log(str(log)).segments[0].path)
        large = segment.stat().st_size
        for index in (*log.rglob("*.idx"), *log.rglob("*.index"), *log.rglob("*.tidx"), *log.rglob("*.timeindex")):
            index.unlink()
        splits = splits_of(log, maxBytesPerPartition=large // 4, columns="offset")
        assert_same(read_here(log, splits, columns="offset"), expected(log, ["offset"]))


@pytest.mark.parametrize("damage", ["garbage", "empty", "shifted", "reversed", "short"])
def test_a_wrong_index_loses_no_row(tmp_path: Path, damage: str) -> None:
    log = write_log(tmp_path / "log", "durable-log", 2000, step=20, segment_bytes=1 << 30)
    index = next(iter(log.rglob("*.idx")))
    content = index.read_bytes()
    index.write_bytes(
        {
            "garbage": bytes(range(256)) * (len(content) // 256),
            "empty": b"",
            "shifted": content[16:] + content[:16],
            "reversed": b"".join(content[at : at + 16] for at in range(len(content) - 16, -1, -16)),
            "short": content[: len(content) // 2 + 5],
        }[damage]
    )
    found = read_here(log, maxBytesPerPartition=8192)
    assert_same(found, expected(log, ["offset", "timestamp", "key", "value"]))
    for start in range(0, 2000, 97):
        found = read_here(
            log, columns="offset", startingOffsets=start, endingOffsets=start + 5, maxBytesPerPartition=8192
        )
        assert found.column(0).to_pylist() == list(range(start, min(start + 5, 2000)))


def test_an_index_that_cuts_a_record_is_reported(tmp_path: Path) -> None:
    """A record inside of a record, to which the index points: the piece before it does not end where a record does."""
    inner = write_log(tmp_path / "inner", "durable-log", 30, segment_bytes=1 << 30)
    payload = Path(Log(str(inner)).segments[0].path).read_bytes()
    values = pa.array([b"x" * 5000] * 20 + [payload] + [b"y" * 5000] * 20, pa.binary())
    log = build_log(tmp_path / "outer", "durable-log", [pa.record_batch([values], names=["value"])])
    index = next(iter(log.rglob("*.idx")))
    entries = bytearray(index.read_bytes())
    start = int.from_bytes(entries[20 * 16 + 8 : 20 * 16 + 16], "little")
    segment = Path(Log(str(log)).segments[0].path).read_bytes()
    at = segment.index(payload, start)
    # the entry of record 21 says: record 21 lies where the inner log has its own record 21
    inner_index = next(iter(inner.rglob("*.idx"))).read_bytes()
    within = int.from_bytes(inner_index[21 * 16 + 8 : 21 * 16 + 16], "little")
    entries[21 * 16 + 8 : 21 * 16 + 16] = (at + within).to_bytes(8, "little")
    index.write_bytes(bytes(entries))
    with pytest.raises(CorruptionError, match="reindex"):
        read_here(log, maxBytesPerPartition=at + within - 10)


def test_planning_and_columns_touch_no_payload(tmp_path: Path) -> None:
    """A read of offset and time succeeds over payloads that are damaged, and so does its plan."""
    for name in ("keratin", "durable-log", "rustlog", "osiris"):
        log = write_log(tmp_path / name, name, 300, segment_bytes=1 << 30)
        clean = expected(log, ["offset", "timestamp"])
        segment = Path(Log(str(log)).segments[0].path)
        segment.write_bytes(segment.read_bytes().replace(b"value ", b"VALUE ", 200))
        found = read_here(log, columns="offset,timestamp", maxBytesPerPartition=2048)
        assert_same(found, clean)
        if not Log(str(log)).codec.capabilities.record_checksum:
            continue
        with pytest.raises(CorruptionError):
            read_here(log, columns="offset,timestamp", verify="true")
        with pytest.raises(CorruptionError, match="offset 0"):
            read_here(log, columns="offset,value")
        assert read_here(log, columns="offset,value", verify="false").num_rows == 300


def test_plan_is_a_snapshot(tmp_path: Path) -> None:
    root = tmp_path / "log"
    with duramen.open(root, "a", format="keratin") as log:
        log.append_batch([b"a", b"b"])
        splits = splits_of(root)
        log.append_batch([b"c"] * 100)
        assert read_here(root, splits, columns="value").column(0).to_pylist() == [b"a", b"b"]
        assert read_here(root, columns="value").num_rows == 102


def test_splits_survive_pickling(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", "osiris", 50)
    splits = splits_of(log)
    assert pickle.loads(pickle.dumps(splits)) == splits
    assert len(pickle.dumps(splits)) < 4096


def test_columns_of_the_place(tmp_path: Path) -> None:
    log = write_log(tmp_path / "orders", "osiris", 60)
    found = read_here(log, columns="offset,topic,partition,segment,position").to_pylist()
    bases = [(info.base_offset, Path(info.path).name) for info in Log(str(log)).segments]
    for row in found:
        assert (row["topic"], row["partition"]) == ("orders", 0)
        assert row["segment"] == [name for base, name in bases if base <= row["offset"]][-1]
    keratin = write_log(tmp_path / "k", "keratin", 60)
    for row in read_here(keratin, columns="offset,segment,position,value").to_pylist():
        content = next(keratin.rglob(row["segment"])).read_bytes()
        assert 0 < content.index(row["value"], row["position"]) - row["position"] < 100


def test_default_size_of_splits(tmp_path: Path) -> None:
    """Between 8 and 64 MiB, without an option: a gigabyte must not become one task, nor a thousand."""
    log = write_log(tmp_path / "log", "keratin", 10)
    assert len(splits_of(log)) == 1
    assert MAX_PARTITION_BYTES == 64 << 20


# --- times


def test_times_become_offsets(tmp_path: Path) -> None:
    for name in ("keratin", "rustlog", "osiris"):
        log = write_log(tmp_path / name, name, 300, step=20)
        for start, end in ((START_MS + 50_000, None), (None, START_MS + 120_500), (START_MS + 7_000, START_MS + 9_000)):
            options = {}
            if start is not None:
                options["startingTimestamp"] = start
            if end is not None:
                options["endingTimestamp"] = end
            wanted = expected(log, ["offset", "timestamp"], from_time=start, to_time=end)
            assert_same(read_here(log, columns="offset,timestamp", **options), wanted)
        # Where times may go back, any segment may hold a record of any time: tasks look at all of them.
        most = 2 if name != "osiris" else len(Log(str(log)).segments)
        for option in ({"startingTimestamp": START_MS + 290_000}, {"endingTimestamp": START_MS + 10_000}):
            assert sum(len(split.pieces) for split in splits_of(log, **option)) <= most


@pytest.mark.parametrize("name", ["keratin", "rustlog"])
def test_the_end_of_a_time_range_is_sought_inside_a_segment(tmp_path: Path, name: str) -> None:
    """Both ends: a second of rows at the start of a segment is not a read of the rest of it."""
    values = pa.array([bytes(1000)] * 3000, pa.binary())
    times = pa.array([START_MS * 1000 + row * 10_000 for row in range(3000)], pa.int64()).view(TIMESTAMP.type)
    with duramen.open(tmp_path / "log", "a", format=name) as log:
        log.append_batch(pa.RecordBatch.from_pydict({"value": values, "timestamp": times}), durability="write")
    for first in (0, 1000, 2900):
        bounds = {"startingTimestamp": START_MS + first * 10, "endingTimestamp": START_MS + first * 10 + 1000}
        splits = splits_of(tmp_path / "log", maxBytesPerPartition="64k", **bounds)
        assert sum(split.size_bytes for split in splits) < 300_000
        found = read_here(tmp_path / "log", splits, columns="offset", **bounds)
        assert found.column(0).to_pylist() == list(range(first, first + 100))
    assert len(read_here(tmp_path / "log", columns="offset", endingTimestamp=START_MS + 10**9)) == 3000


def test_iso_times(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", "keratin", 30)
    found = read_here(
        log, columns="offset", startingTimestamp="2023-11-14T22:13:25Z", endingTimestamp="2023-11-14T22:13:27Z"
    )
    assert found.column(0).to_pylist() == [5, 6]


def test_times_of_a_format_without(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", "fixed-slot", 3)
    with pytest.raises(UsageError, match=r"startingTimestamp.*no time"):
        splits_of(log, startingTimestamp=5)


# --- bytes of a trigger


@pytest.mark.parametrize("name", FORMATS)
def test_offset_after_so_many_bytes(tmp_path: Path, name: str) -> None:
    log = Log(str(write_log(tmp_path / name, name, 300, step=10)))
    disk = PosixDisk()
    seen = 0
    while seen < 300:
        behind = offset_behind(log, disk, Range(seen, 300), 1500)
        assert seen < behind <= 300
        assert behind - seen <= 1500 // RECORD_SIZE + 10  # a chunk is not divided
        seen = behind
    assert offset_behind(log, disk, Range(0, 300), 1) < 12
    assert offset_behind(log, disk, Range(0, 300), 1 << 40) == 300


def test_first_time_of_a_segment(tmp_path: Path) -> None:
    log = Log(str(write_log(tmp_path / "k", "keratin", 100)))
    assert first_us(log, PosixDisk(), log.segments[1]) == (START_MS + log.segments[1].base_offset * 1000) * 1000


# --- bad files


def test_files_that_are_no_log(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "readme.txt").write_text("hello")
    for path in ("empty", "text", "nowhere"):
        with pytest.raises(DuramenError, match=path):
            splits_of(tmp_path / path)


def test_a_file_that_was_removed_or_cut_after_planning(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", "keratin", 200)
    splits = splits_of(log)
    segments = [Path(info.path) for info in Log(str(log)).segments]
    segments[1].unlink()
    with pytest.raises(DuramenError, match=segments[1].name):
        read_here(log, splits)
    shutil.rmtree(log)
    log = write_log(tmp_path / "log", "keratin", 200)
    splits = splits_of(log)
    segments[0].write_bytes(segments[0].read_bytes()[:100])
    with pytest.raises(CorruptionError, match="when the read was planned"):
        read_here(log, splits)


def test_a_torn_tail_ends_quietly(tmp_path: Path) -> None:
    log = build_log(tmp_path / "log", "keratin", [batch_of("keratin", 0, 20)])
    segment = Path(Log(str(log)).segments[-1].path)
    segment.write_bytes(segment.read_bytes()[:-7])
    assert read_here(log, columns="offset").column(0).to_pylist() == list(range(19))


def test_a_gap_is_no_damage(tmp_path: Path) -> None:
    offsets = [0, 1, 5, 6, 90, 91, 92, 93]
    log = build_log(tmp_path / "log", "keratin", [with_offsets(batch_of("keratin", 0, 8), offsets)])
    assert read_here(log, columns="offset").column(0).to_pylist() == offsets
    assert read_here(log, columns="offset", startingOffsets=7).column(0).to_pylist() == offsets[4:]


def test_offsets_that_no_float_can_hold(tmp_path: Path) -> None:
    """Beyond 2^53 neighbours are the same number for a float: a look-up must not be off by one."""
    first = 2**62 + 1
    batch = with_offsets(batch_of("durable-log", 0, 500), range(first, first + 500))
    log = build_log(tmp_path / "log", "durable-log", [batch])
    for start in range(first, first + 500, 7):
        found = read_here(
            log, columns="offset", startingOffsets=start, endingOffsets=start + 9, maxBytesPerPartition=99
        )
        assert found.column(0).to_pylist() == list(range(start, min(start + 9, first + 500)))


def test_a_removed_file_is_skipped_where_loss_is_allowed(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", "keratin", 200)
    splits = splits_of(log, columns="offset")
    infos = Log(str(log)).segments
    Path(infos[1].path).unlink()
    found = read_here(log, splits, columns="offset", failOnDataLoss="false").column(0).to_pylist()
    assert found == [*range(infos[1].base_offset), *range(infos[2].base_offset, 200)]


def test_options_of_two_shapes_do_not_mix() -> None:
    with pytest.raises(UsageError, match="subscribe and subscribePattern"):
        parse_options({"path": "x", "subscribe": "a", "subscribePattern": "b"}, streaming=False)


def test_a_read_without_payloads_takes_larger_tasks(tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    with duramen.open(path, "a", format="keratin") as log:
        for _ in range(5):
            log.append_batch(pa.array([b"x" * 65536] * 64), durability="write")
    options = parse_options({"path": path}, streaming=False)
    assert len(plan_read(options)) == 3
    assert len(plan_read(options, payload=False)) == 1
    assert len(plan_read(replace(options, max_bytes_per_partition=8 << 20), payload=False)) == 3


def test_a_range_that_ends_inside_of_a_batch(tmp_path: Path) -> None:
    """An index of Kafka names the last offset of a batch."""
    log = tmp_path / "log"
    with duramen.open(log, "a", format="kafka", index_stride_bytes=1) as writer:
        for first in range(0, 60, 6):
            writer.append_batch(batch_of("kafka", first, 6))
    for end in range(1, 60):
        found = read_here(log, columns="offset", endingOffsets=end, minPartitions=5).column("offset").to_pylist()
        assert found == list(range(end))
