"""Conversion: every ordered pair of formats keeps what both can carry, and says what it cannot; there and back again
gives the same files; and whatever goes wrong, nothing half-made is left."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import threading
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import duramen
from duramen.disk import Disk
from duramen.errors import CorruptionError, DuramenError, LimitError, StorageError, UnsupportedFieldError, UsageError
from duramen.formats import Format, make
from duramen.log.read.log import Log
from duramen.log.segments.listing import list_log
from duramen.log.segments.log_builder import BUILDING, LogBuilder
from duramen.log.transfer.convert import Conversion, LossError, convert
from duramen.log.transfer.loss_survey import FIELDS
from duramen.log.verify.verify import verify_log
from duramen.log.write.writable_log import WritableLog
from duramen.record import HEADERS, KEY, TIMESTAMP, VALUE
from duramen.testing.crash import CrashPattern
from duramen.testing.faulty_disk import FaultyDisk
from duramen.testing.simulated_disk import SimulatedDisk
from tests.cli.running import flip
from tests.log.conftest import FORMATS, START_US, batch, options

ALL = tuple(FIELDS)
PAIRS = list(itertools.product(FORMATS, FORMATS))
SIZE = 16


def files(disk: SimulatedDisk, root: str) -> dict[str, bytes]:
    """The log's own files, without the sidecar."""
    tree = {path: data for path, data in disk.tree().items() if path.startswith(root + "/")}
    return {path.removeprefix(root): data for path, data in tree.items() if "/.duramen" not in path}


class Made(NamedTuple):
    """A log that Hypothesis thought up: its segments, each a base and rows."""

    fmt: Format
    segments: list[tuple[int, list[dict[str, Any]]]]

    def write(self, disk: SimulatedDisk, path: str) -> None:
        with LogBuilder(path, self.fmt, disk=disk, created_ms=77) as log:
            for base, rows in self.segments:
                builder = log.segment(base, created_ms=1000 + base)
                for part in _batches(rows):
                    builder.put(self.fmt.encode(part, builder.cursor))  # as a writer does: one append, one chunk
                log.add(builder.finish())
            log.finish()
            log.publish()

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [row for _, rows in self.segments for row in rows]


def _batches(rows: list[dict[str, Any]]) -> list[pa.RecordBatch]:
    """Two appends, so that chunks do not end where a single one would end them."""
    types = {
        "offset": pa.int64(),
        "timestamp": pa.int64(),
        "key": KEY.type,
        "value": VALUE.type,
        "headers": HEADERS.type,
    }
    made = []
    for part in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
        if part:
            columns = {name: pa.array([row[name] for row in part], types[name]) for name in part[0]}
            if "timestamp" in columns:
                columns["timestamp"] = columns["timestamp"].view(TIMESTAMP.type)
            made.append(pa.RecordBatch.from_pydict(columns))
    return made


@st.composite
def made_logs(draw: st.DrawFn, name: str, *, plain: bool = False) -> Made:
    """``plain``: nothing that any format could lose but the time."""
    extra: dict[str, Any] = options(name)
    if name == "osiris":
        extra = draw(st.sampled_from([{}, {"chunk_max_records": 3}, {"compression": "lz4"}, {"chunk_version": 0}]))
    if name == "keratin":
        extra = draw(st.sampled_from([{}, {"index_stride_bytes": 64}]))
    fmt = make(name, **extra)
    has = fmt.capabilities
    gaps = has.explicit_offsets and not plain and draw(st.booleans())
    offset = draw(st.integers(0, 3)) if gaps else 0
    us, segments = START_US, []
    for _ in range(draw(st.integers(1, 3)) if has.segments else 1):
        rows: list[dict[str, Any]] = []
        base = offset
        for _ in range(draw(st.integers(1, 9))):
            offset += draw(st.sampled_from([0, 0, 0, 1, 5])) if gaps and (rows or has.compaction) else 0
            us += draw(st.sampled_from([0, 0, 1000, 5000] + ([7] if has.timestamps == "us" and not plain else [])))
            row: dict[str, Any] = {"offset": offset, "value": draw(st.binary(min_size=SIZE, max_size=SIZE))}
            if has.timestamps:
                row["timestamp"] = us
            if has.key and not plain:
                row["key"] = draw(st.sampled_from([None, b"", b"k"]))
                row["headers"] = draw(
                    st.sampled_from([None, [{"key": "h", "value": b"v"}, {"key": "", "value": None}]])
                )
            rows.append(row)
            offset += 1
        segments.append((base, rows))
    if has.segments and draw(st.booleans()):
        segments.append((offset, []))
    return Made(fmt, segments)


def held(disk: SimulatedDisk, path: str) -> list[dict[str, Any]]:
    with Log(path, disk=disk) as log:
        table = pa.Table.from_batches(log.batches(), duramen.SCHEMA)
    times = table.column("timestamp").combine_chunks().view(pa.int64()).to_pylist()
    return [{**row, "timestamp": us} for row, us in zip(table.to_pylist(), times, strict=True)]


def expected(made: Made, to: Format) -> list[dict[str, Any]]:
    """What the rows are once the target has dropped what it cannot carry."""
    can, rows = to.capabilities, []
    for number, row in enumerate(made.rows):
        us = row.get("timestamp", 0)
        rows.append(
            {
                "offset": row["offset"] if can.explicit_offsets else number,
                "timestamp": None if not can.timestamps else us // 1000 * 1000 if can.timestamps == "ms" else us,
                "key": row.get("key") if can.key else None,
                "value": row["value"],
                "headers": row.get("headers") if can.headers else None,
            }
        )
    return rows


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_an_empty_last_segment_comes_back_as_it_was(source: str, target: str) -> None:
    fmt = make(source, **options(source))
    if not fmt.capabilities.segments:
        pytest.skip("one file only")
    row: dict[str, Any] = {"offset": 0, "value": bytes(SIZE)}
    if fmt.capabilities.timestamps:
        row["timestamp"] = START_US
    disk = SimulatedDisk()
    Made(fmt, [(0, [row]), (1, [])]).write(disk, "/a")
    there = Conversion("/a", "/b", target, disk=disk, allow_loss=ALL)
    there.run()
    Conversion("/b", "/c", source, disk=disk, allow_loss=ALL, source_options={}).run()
    if not there.losses:
        assert files(disk, "/c") == files(disk, "/a")


@pytest.mark.parametrize(("source", "target"), PAIRS)
@settings(max_examples=6)
@given(data=st.data())
def test_every_pair(source: str, target: str, data: st.DataObject) -> None:
    """What the target can carry arrives. If nothing was lost, the way back gives every file again, byte for byte."""
    made = data.draw(made_logs(source))
    disk = SimulatedDisk()
    made.write(disk, "/a")
    there = Conversion("/a", "/b", target, disk=disk, allow_loss=ALL)
    done = there.run()
    assert done.records == len(made.rows)
    assert held(disk, "/b") == expected(made, there.target)
    assert verify_log("/b", disk=disk).ok
    back = Conversion("/b", "/c", source, disk=disk, allow_loss=ALL, source_options={})
    if there.losses:
        with pytest.raises(LossError) as refused:
            convert("/a", "/d", target, disk=disk)
        assert disk.kind("/d") == "missing"
        assert [loss.field for loss in refused.value.losses] == [loss.field for loss in there.losses]
    else:
        assert back.losses == []
        back.run()
        assert files(disk, "/c") == files(disk, "/a")


@pytest.mark.parametrize("names", list(itertools.permutations(FORMATS, 3))[::12])
@settings(max_examples=3)
@given(data=st.data())
def test_a_longer_way_round(names: tuple[str, ...], data: st.DataObject) -> None:
    """Over two other formats and back, with the time allowed to be lost on the way only if it is not there."""
    made = data.draw(made_logs(names[0], plain=True))
    disk = SimulatedDisk()
    made.write(disk, "/0")
    lossless = True
    for step, name in enumerate([*names[1:], names[0]]):
        done = convert(f"/{step}", f"/{step + 1}", name, disk=disk, allow_loss=("timestamp",))
        lossless &= not done.losses
    assert [row["value"] for row in held(disk, "/3")] == [row["value"] for row in made.rows]
    if lossless:
        assert files(disk, "/3") == files(disk, "/0")


def test_what_was_appended_later_comes_back_too(tmp_path: Path) -> None:
    with duramen.open(tmp_path / "a", "a", format="osiris") as log:
        log.append_batch([b"1", b"2"])
        log.seal()
        log.append_batch([b"3"])
    duramen.convert(tmp_path / "a", tmp_path / "b", "keratin")
    with duramen.open(tmp_path / "b", "a") as log:
        log.append_batch([b"4", b"5"])
        log.seal()
        log.append(b"6")
    duramen.convert(tmp_path / "b", tmp_path / "c", "osiris")
    with duramen.open(tmp_path / "c") as log:
        assert [record.value for record in log.scan()] == [b"1", b"2", b"3", b"4", b"5", b"6"]
        assert [segment.base_offset for segment in log.segments] == [0, 2, 5]
    first = (tmp_path / "a" / f"{0:020}.segment").read_bytes()
    assert (tmp_path / "c" / f"{0:020}.segment").read_bytes() == first


# --- losses


def build(disk: SimulatedDisk, path: str, name: str, rows: pa.RecordBatch, **extra: Any) -> None:
    fmt = make(name, **extra)
    with LogBuilder(path, fmt, disk=disk) as log:
        builder = log.segment(rows.column("offset")[0].as_py())
        builder.add(rows)
        log.add(builder.finish())
        log.finish()
        log.publish()


def stamped(times: Sequence[int], **columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "offset": pa.array(range(len(times)), pa.int64()),
            "timestamp": pa.array(times, pa.int64()).view(TIMESTAMP.type),
            "value": pa.array([b"x" * SIZE] * len(times), pa.binary()),
            **columns,
        }
    )


def lost(disk: SimulatedDisk, source: str, to: str, **extra: Any) -> dict[str, tuple[int, int | None]]:
    conversion = Conversion(source, "/none", to, disk=disk, **extra)
    return {loss.field: (loss.count, loss.first_offset) for loss in conversion.losses}


def test_times_that_do_not_fit() -> None:
    disk = SimulatedDisk()
    build(disk, "/us", "rustlog", stamped([1000, 2001, 3000, 4500]))
    assert lost(disk, "/us", "keratin") == {"timestamp-precision": (2, 1)}
    assert lost(disk, "/us", "durable-log") == {"timestamp": (4, 0)}
    build(disk, "/back", "osiris", stamped([5000, -3000, 4000, 9000]))
    assert lost(disk, "/back", "rustlog") == {"timestamp": (1, 1), "timestamp-order": (2, 1)}
    convert("/back", "/fitted", "rustlog", disk=disk, allow_loss=("timestamp", "timestamp-order"))
    assert [row["timestamp"] for row in held(disk, "/fitted")] == [5000, 5000, 5000, 9000]
    build(disk, "/zeros", "keratin", stamped([0, 0]))
    assert lost(disk, "/zeros", "durable-log") == {}, "a time of 0 is none"


def test_only_what_is_there_counts() -> None:
    disk = SimulatedDisk()
    nothing = {"key": pa.nulls(3, KEY.type), "headers": pa.array([None, [], None], HEADERS.type)}
    build(disk, "/plain", "keratin", stamped([0, 0, 0], **nothing))
    assert lost(disk, "/plain", "durable-log") == {}
    keyed = {
        "key": pa.array([None, b"", b"k"], KEY.type),
        "headers": pa.array([None, [], [{"key": "h", "value": None}]], HEADERS.type),
        "flags": pa.array([0, 0, 3], pa.uint16()),
    }
    build(disk, "/keyed", "keratin", stamped([0, 0, 0], **keyed))
    assert lost(disk, "/keyed", "durable-log") == {"key": (2, 1), "headers": (1, 2), "flags": (1, 2)}
    assert lost(disk, "/keyed", "keratin") == {}
    assert lost(disk, "/keyed", "keratin", segment_max_bytes=50) == {}


def test_offsets_without_a_place() -> None:
    disk = SimulatedDisk()
    rows = pa.RecordBatch.from_pydict({"offset": [2, 3, 7], "value": [b"a" * 4, b"b" * 4, b"c" * 4]})
    build(disk, "/gaps", "durable-log", rows)
    assert lost(disk, "/gaps", "fixed-slot") == {"offset": (2, 2)}
    done = convert("/gaps", "/slots", "fixed-slot", disk=disk, allow_loss=("offset",))
    assert (done.records, done.next_offset) == (3, 3)
    with WritableLog("/retained", format="keratin", disk=disk) as log:
        log.append_batch([b"a"] * 5)
        log.seal()
    disk.remove("/retained/segments/00000000000000000000.log")
    assert lost(disk, "/retained", "fixed-slot", record_size=1) == {"offset": (1, 5)}
    assert convert("/retained", "/kept", "durable-log", disk=disk).next_offset == 5


def test_values_are_never_lost() -> None:
    disk = SimulatedDisk()
    build(disk, "/a", "durable-log", pa.RecordBatch.from_pydict({"offset": [0, 1], "value": [b"a", b"bc"]}))
    for to, extra, words in (
        ("fixed-slot", {}, "values of one length"),
        ("fixed-slot", {"record_size": 2}, "exactly record_size=2"),
    ):
        with pytest.raises(UnsupportedFieldError, match=words):
            Conversion("/a", "/b", to, disk=disk, allow_loss=ALL, **extra)
    build(disk, "/big", "durable-log", pa.RecordBatch.from_pydict({"offset": [3], "value": [bytes(11 << 20)]}))
    with pytest.raises(UnsupportedFieldError, match=r"offset 3.*rustlog stores at most"):
        Conversion("/big", "/b", "rustlog", disk=disk, allow_loss=ALL)
    build(disk, "/zero", "durable-log", pa.RecordBatch.from_pydict({"offset": [0], "value": [b""]}))
    with pytest.raises(UsageError, match="all be zero"):
        convert("/zero", "/b", "rustlog", disk=disk)
    assert disk.kind("/b") == disk.kind("/b" + BUILDING) == "missing"


def test_tracking_and_groups_stay_in_their_format(osiris: Path, tmp_path: Path, golden: Path) -> None:
    tracked = osiris / "tracked"
    with pytest.raises(LossError, match="tracking"):
        duramen.convert(tracked, tmp_path / "k", "keratin")
    done = duramen.convert(tracked, tmp_path / "o", "osiris")
    assert (done.losses, done.copied_as_is) == ([], True)
    for path in tracked.glob("*.segment"):
        assert (tmp_path / "o" / path.name).read_bytes() == path.read_bytes()
    assert duramen.convert(tracked, tmp_path / "k", "keratin", allow_loss=("tracking",)).losses[0].unit == "chunk"
    assert [r.value for r in duramen.open(tmp_path / "k")] == [r.value for r in duramen.open(tracked)]
    with duramen.open(tmp_path / "g", "a", format="keratin") as log:
        log.append(b"x", timestamp=0)
    snap = next((golden / "keratin").rglob("*.snap"))
    (tmp_path / "g" / "groups").mkdir()
    (tmp_path / "g" / "groups" / "t-0_g.snap").write_bytes(snap.read_bytes())
    with pytest.raises(LossError, match="groups"):
        duramen.convert(tmp_path / "g", tmp_path / "d", "durable-log")
    duramen.convert(tmp_path / "g", tmp_path / "g2", "keratin")
    assert (tmp_path / "g2" / "groups" / "t-0_g.snap").read_bytes() == snap.read_bytes()


@pytest.mark.parametrize("scenario", ["tracked", "dedup", "retention"])
def test_tracking_survives_other_options(osiris: Path, tmp_path: Path, scenario: str) -> None:
    """Chunks with tracking are rewritten one by one: the same records, the same state, in every segment."""
    source = osiris / scenario
    done = duramen.convert(source, tmp_path / "b", "osiris", chunk_version=1, compression="zstd")
    assert (done.losses, done.copied_as_is) == ([], False)
    report = duramen.verify(tmp_path / "b")
    assert (report.ok, report.findings) == (True, [])
    with duramen.open(source) as log, duramen.open(tmp_path / "b") as copied:
        assert copied.next_offset == log.next_offset
        assert all(a == b for a, b in zip(log, copied, strict=True))
        before = [log.codec.open_segment(Path(s.path).read_bytes(), s.base_offset) for s in log.segments]
        after = [copied.codec.open_segment(Path(s.path).read_bytes(), s.base_offset) for s in copied.segments]
    assert [s.base_offset for s in after] == [s.base_offset for s in before]
    assert [s.tracking() for s in after] == [s.tracking() for s in before]
    assert {s.dialect for s in after} == {"chunk version 1"}
    back = duramen.convert(tmp_path / "b", tmp_path / "c", "osiris", chunk_version=0, compression="none")
    assert back.losses == []
    with pytest.raises(LossError, match="tracking"):  # each new segment would need a snapshot
        duramen.convert(osiris / "tracked", tmp_path / "d", "osiris", segment_max_bytes=1000)


@pytest.mark.parametrize("scenario", ["plain", "subbatch", "crash", "retention"])
@pytest.mark.parametrize("target", [name for name in FORMATS if name not in ("osiris", "fixed-slot")])
def test_streams_of_a_real_broker(osiris: Path, tmp_path: Path, scenario: str, target: str) -> None:
    source = osiris / scenario
    duramen.convert(source, tmp_path / "b", target, allow_loss=ALL)
    pairs = zip(duramen.open(source), duramen.open(tmp_path / "b"), strict=True)
    assert all((a.offset, a.value) == (b.offset, b.value) for a, b in pairs)
    if scenario == "plain" and target != "durable-log":
        duramen.convert(tmp_path / "b", tmp_path / "c", "osiris")
        for path in [*source.glob("*.segment"), *source.glob("*.index")]:
            assert (tmp_path / "c" / path.name).read_bytes() == path.read_bytes()


def test_unknown_words() -> None:
    disk = SimulatedDisk()
    build(disk, "/a", "durable-log", pa.RecordBatch.from_pydict({"offset": [0], "value": [b"a"]}))
    for wrong in ({"allow_loss": ("colour",)}, {"on_damage": "ignore"}, {"colour": 1}):
        with pytest.raises(UsageError):
            Conversion("/a", "/b", "osiris", disk=disk, **wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        Conversion("/a", "/b", "pulsar", disk=disk)
    for inside in ("/a", "/a/b", "/a/../a"):
        with pytest.raises(UsageError):
            Conversion("/a", inside, "osiris", disk=disk)
    with pytest.raises(StorageError):
        Conversion("/nothing", "/b", "osiris", disk=disk)


# --- options


@pytest.mark.parametrize("target", [name for name in FORMATS if name != "fixed-slot"])
def test_segments_of_another_size(tmp_path: Path, target: str) -> None:
    with duramen.open(tmp_path / "a", "a", format="keratin") as log:
        log.append_batch([b"%04d" % number * 25 for number in range(200)])
    extra = {"chunk_max_bytes": 1000} if target == "osiris" else {}
    allowed = {"allow_loss": ("timestamp",)}
    done = duramen.convert(tmp_path / "a", tmp_path / "b", target, segment_max_bytes=2000, **allowed, **extra)
    assert done.segments >= 8
    assert [r.value for r in duramen.open(tmp_path / "b")] == [b"%04d" % number * 25 for number in range(200)]
    report = duramen.verify(tmp_path / "b")
    assert (report.ok, report.findings) == (True, [])
    if target != "osiris":
        assert max(segment.size_bytes for segment in report.segments) <= 2000
    back = duramen.convert(tmp_path / "b", tmp_path / "c", "keratin")
    assert back.segments == (done.segments if target == "keratin" else 1)
    if target == "rustlog":
        assert done.losses == []


def test_an_option_that_changes_bytes(tmp_path: Path) -> None:
    with duramen.open(tmp_path / "a", "a", format="osiris") as log:
        log.append_batch([b"squeeze me " * 20] * 100)
    done = duramen.convert(tmp_path / "a", tmp_path / "b", "osiris", compression="zstd", chunk_version=0)
    assert not done.copied_as_is
    assert done.size_bytes < 5000
    assert [r.value for r in duramen.open(tmp_path / "b")] == [b"squeeze me " * 20] * 100
    again = duramen.convert(tmp_path / "b", tmp_path / "c", "osiris", compression="none", chunk_version=1)
    assert again.records == 100
    assert (tmp_path / "c" / f"{0:020}.segment").read_bytes() == (tmp_path / "a" / f"{0:020}.segment").read_bytes()


def test_a_gap_between_segments_is_no_lost_segment(tmp_path: Path) -> None:
    """Osiris names a gap between two segments a loss: a filler takes up the offsets at the end of the first."""
    disk = SimulatedDisk()
    with LogBuilder("/a", make("keratin"), disk=disk) as log:
        for base in (0, 10, 13):
            builder = log.segment(base)
            builder.add(batch(make("durable-log"), base, 3))
            log.add(builder.finish())
        log.finish()
        log.publish()
    convert("/a", "/b", "osiris", disk=disk)
    assert verify_log("/b", disk=disk).ok
    with Log("/b", disk=disk) as log_b:
        assert [record.offset for record in log_b.scan()] == [0, 1, 2, 10, 11, 12, 13, 14, 15]
        assert [segment.base_offset for segment in log_b.segments] == [0, 10, 13]
    assert chunk_ids("/b", disk) == [(0, 3), (3, 7), (10, 3), (13, 3)]
    convert("/b", "/c", "keratin", disk=disk)
    assert files(disk, "/c") == files(disk, "/a")


def chunk_ids(path: str, disk: Disk) -> list[tuple[int, int]]:
    """Id and number of records of every chunk of a log, with fillers and tracking."""
    fmt, found = make("osiris"), []
    for files in list_log(disk, path, fmt).segments:
        segment = fmt.open_segment(disk.map(f"{path}/{files.segment.path}").data, files.base)
        chunks = segment.scan(segment.start).columns
        found += [(first, last - first + 1) for first, last in zip(
            chunks.first_offsets.tolist(), chunks.last_offsets.tolist(), strict=True
        )]  # fmt: skip
    return found


@pytest.mark.parametrize("options", [{}, {"segment_max_bytes": 200}, {"compression": "gzip"}])
def test_a_compacted_log_becomes_osiris_without_a_gap_in_chunk_ids(options: dict[str, Any]) -> None:
    """RabbitMQ's readers stop at a chunk that does not start where the last one ended."""
    disk = SimulatedDisk()
    with WritableLog("/a", format="keratin", disk=disk, segment_max_bytes=400) as log:
        for number in range(60):
            log.append(b"v%d" % number, key=b"k%d" % (number % 7 if number % 3 else number))
            if number % 20 == 19:
                log.seal()
        log.compact()
        kept = [record.offset for record in log.scan()]
    assert len(kept) < 50
    converted = convert("/a", "/b", "osiris", allow_loss=["key"], disk=disk, **options)
    assert verify_log("/b", disk=disk).ok
    with Log("/b", disk=disk) as log_b:
        assert [record.offset for record in log_b.scan()] == kept
        assert log_b.next_offset == 60
        assert list(log_b.scan(kept[3] + 1, kept[-1])) == [r for r in log_b.scan() if kept[3] < r.offset < kept[-1]]
    ids = chunk_ids("/b", disk)
    assert all(first + count == following for (first, count), (following, _) in pairwise(ids))
    assert converted.records == len(kept)
    convert("/b", "/c", "keratin", disk=disk)
    with Log("/c", disk=disk) as log_c:
        assert [record.offset for record in log_c.scan()] == kept
    convert("/b", "/d", "osiris", chunk_version=0, disk=disk)
    again = chunk_ids("/d", disk)
    assert again == ids


# --- sources


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_an_empty_log(source: str, target: str) -> None:
    disk = SimulatedDisk()
    WritableLog("/a", format=source, disk=disk, **options(source)).close()
    done = convert("/a", "/b", target, disk=disk, **options(target))
    assert (done.records, done.next_offset) == (0, 0)
    with WritableLog("/b", disk=disk) as log:
        assert log.append(b"x" * SIZE) == 0


@pytest.mark.parametrize("source", FORMATS)
def test_one_file_and_a_log_without_a_sidecar(write: Any, tmp_path: Path, source: str) -> None:
    root = write(source, 7, 5)
    extra = {"source_options": options(source)}
    whole = duramen.convert(root, tmp_path / "whole", "osiris", allow_loss=ALL, **extra)
    assert whole.records == 12
    assert not (root / ".duramen").exists()
    file = next(path for path in sorted(root.rglob("*")) if path.suffix in (".log", ".segment"))
    renamed = tmp_path / "odd name.bin"
    shutil.copy(file, renamed)
    for number, path in enumerate((file, renamed)):
        one = duramen.convert(path, tmp_path / f"one{number}", "durable-log", allow_loss=ALL, format=source, **extra)
        assert one.records == (12 if source == "fixed-slot" else 7)


def test_cursors_and_the_ledger_go_along(tmp_path: Path) -> None:
    with duramen.open(tmp_path / "a", "a", format="durable-log") as log:
        log.append_once([[b"abcd"] * 3], writer="y", batch=1)
    for name in ("cursors/x.json", "quarantine/z", "cursors/w.json.new", "holds/h.json"):
        path = tmp_path / "a" / ".duramen" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    duramen.convert(tmp_path / "a", tmp_path / "b", "osiris")
    found = {str(p.relative_to(tmp_path / "b")) for p in (tmp_path / "b" / ".duramen").rglob("*.json")}
    (ledger,) = (tmp_path / "a" / ".duramen" / "ledger").iterdir()
    assert found >= {".duramen/cursors/x.json", f".duramen/ledger/{ledger.name}"}
    assert not (tmp_path / "b" / ".duramen" / "quarantine").exists()
    assert not (tmp_path / "b" / ".duramen" / "holds").exists()


def test_while_it_is_written(tmp_path: Path) -> None:
    """The result is what was acknowledged at some moment, and verifies."""
    stop = threading.Event()
    with duramen.open(tmp_path / "a", "a", format="keratin", segment_max_bytes=20_000, durability="write") as log:

        def append() -> None:
            number = 0
            while not stop.is_set():
                log.append_batch([b"%06d" % (number + i) for i in range(10)])
                number += 10

        thread = threading.Thread(target=append)
        thread.start()
        try:
            for attempt in range(5):
                before = log.next_offset
                done = duramen.convert(tmp_path / "a", tmp_path / f"b{attempt}", "rustlog")
                values = [record.value for record in duramen.open(tmp_path / f"b{attempt}").scan()]
                assert before <= done.records == len(values)
                assert done.records % 10 == 0
                assert values == [b"%06d" % number for number in range(len(values))]
        finally:
            stop.set()
            thread.join()


def test_retention_during_the_scan(tmp_path: Path) -> None:
    """What existed when the conversion began is converted, whatever is removed later."""
    with duramen.open(tmp_path / "a", "a", format="keratin", segment_max_bytes=2000) as log:
        log.append_batch([b"%06d" % number for number in range(500)])
    conversion = Conversion(str(tmp_path / "a"), str(tmp_path / "b"), "rustlog")
    for path in sorted((tmp_path / "a" / "segments").glob("*.log"))[:-1]:
        path.unlink()
    assert conversion.run().records == 500


# --- damage


@pytest.mark.parametrize("source", FORMATS)
def test_damage_stops_it_or_is_skipped(write: Any, tmp_path: Path, source: str) -> None:
    root = write(source, 7, 5)
    segment = next(path for path in sorted(root.rglob("*")) if path.suffix in (".log", ".segment"))
    if source == "rustlog":
        flip(segment, 3 * 36, 0x7F)  # a length: no checksum covers the rest
    else:
        flip(segment, len(segment.read_bytes()) // 2)
    extra = {"source_options": options(source), "allow_loss": ALL}
    with pytest.raises(CorruptionError, match="--on-damage skip") as caught:
        duramen.convert(root, tmp_path / "b", "keratin", **extra)
    assert caught.value.exit_code == 1
    assert caught.value.path == str(segment)
    assert not (tmp_path / "b").exists()
    assert not (tmp_path / ("b" + BUILDING)).exists()
    done = duramen.convert(root, tmp_path / "b", "keratin", on_damage="skip", **extra)
    assert len(done.skipped) == 1
    assert done.skipped[0].path == str(segment)
    assert done.skipped[0].length > 0
    assert 8 <= done.records < 12
    assert duramen.verify(tmp_path / "b").ok
    same = duramen.convert(root, tmp_path / "same", source, on_damage="skip", **extra, **options(source))
    assert (same.records, same.copied_as_is) == (done.records, False)


def test_a_damaged_header_loses_its_segment_only(write: Any, tmp_path: Path) -> None:
    root = write("keratin", 7, 5)
    flip(root / "segments" / f"{0:020}.log", 20)
    with pytest.raises(CorruptionError):
        duramen.convert(root, tmp_path / "b", "osiris", allow_loss=ALL)
    done = duramen.convert(root, tmp_path / "b", "osiris", allow_loss=ALL, on_damage="skip")
    assert (done.records, done.first_offset) == (5, 7)


def test_a_sub_batch_that_cannot_be_unfolded(tmp_path: Path) -> None:
    """Its checksum is right, its contents are not: only that chunk is left out."""
    fmt = make("osiris", compression="zstd")
    disk = SimulatedDisk()
    build(disk, "/a", "osiris", stamped([1000, 1000, 2000, 2000, 3000]), compression="zstd")
    name = "/a/" + fmt.segment_path(0)
    data = bytearray(disk.map(name).data)
    segment = fmt.open_segment(bytes(data), 0)
    rows = segment.scan(segment.start).columns
    at, length = int(rows.data_position[1]), int(rows.data_length[1])
    data[at + 11] ^= 0xFF  # the magic number of the compressed body
    import zlib

    crc_at = int(rows.position[1]) + 32
    data[crc_at : crc_at + 4] = zlib.crc32(bytes(data[at : at + length])).to_bytes(4, "big")
    file = disk.open(name)
    file.write(0, data)
    with pytest.raises(CorruptionError, match="cannot be unfolded"):
        convert("/a", "/b", "rustlog", disk=disk)
    done = convert("/a", "/b", "rustlog", disk=disk, on_damage="skip")
    assert [skipped.offset for skipped in done.skipped] == [2]
    assert [row["offset"] for row in held(disk, "/b")] == [0, 1, 4]


def test_a_changed_sealed_segment_is_noticed_by_its_digest(tmp_path: Path) -> None:
    with duramen.open(tmp_path / "a", "a", format="rustlog") as log:
        log.append_batch([b"abcd"] * 9)
        log.seal()
    flip(tmp_path / "a" / f"{0:020}.log", 22)  # in a payload, which no checksum covers
    with pytest.raises(CorruptionError, match="digest"):
        duramen.convert(tmp_path / "a", tmp_path / "b", "durable-log", allow_loss=ALL)
    (tmp_path / "a" / f"{0:020}.log").rename(tmp_path / "gone")
    with duramen.open(tmp_path / "c", "a", format="rustlog") as log:
        for _ in range(3):
            log.append_batch([b"abcd"] * 9)
            log.seal()
    (tmp_path / "c" / f"{9:020}.log").unlink()
    with pytest.raises(CorruptionError, match="missing"):
        duramen.convert(tmp_path / "c", tmp_path / "b", "durable-log", allow_loss=ALL)


@pytest.mark.parametrize("source", FORMATS)
@settings(max_examples=12)
@given(data=st.data())
def test_any_flipped_byte(source: str, data: st.DataObject) -> None:
    """Never a crash, never anything but an error of ours; what comes out of a skipping run verifies."""
    disk = SimulatedDisk()
    made = data.draw(made_logs(source))
    made.write(disk, "/a")
    names = [path for path in disk.tree() if path.startswith("/a/") and disk.size(path)]
    name = data.draw(st.sampled_from(sorted(names)))
    content = bytearray(disk.map(name).data)
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    disk.open(name).write(0, content)
    target = data.draw(st.sampled_from(FORMATS))
    for on_damage in ("raise", "skip"):
        with contextlib.suppress(DuramenError):
            convert("/a", f"/{on_damage}", target, disk=disk, allow_loss=ALL, on_damage=on_damage)
            assert verify_log(f"/{on_damage}", disk=disk).ok
        assert disk.kind(f"/{on_damage}{BUILDING}") == "missing"


def test_a_flipped_offset_does_not_fill_the_disk() -> None:
    """Osiris takes a chunk for every 2^32 missing offsets: a high bit of a RustLog offset would ask for 16 million."""
    disk = SimulatedDisk()
    with WritableLog("/a", format="rustlog", disk=disk) as log:
        log.append_batch([b"abcd"] * 20)
    (path,) = [file.path for file in log.segments]
    content = bytearray(disk.map(path).data)
    content[content.rindex((19).to_bytes(8, "big"))] ^= 1
    disk.open(path).write(0, content)
    for name in [name for name in disk.tree() if name.startswith("/a/") and name != path]:
        if disk.kind(name) == "file":
            disk.remove(name)
    with pytest.raises(LimitError, match="72057594037927936 offsets are missing"):
        convert("/a", "/b", "osiris", disk=disk, allow_loss=ALL)
    assert disk.kind("/b") == "missing"
    assert convert("/a", "/c", "keratin", disk=disk, allow_loss=ALL).records == 20


# --- crashes and faults


@pytest.mark.parametrize(
    ("source", "target"), [("keratin", "osiris"), ("osiris", "fixed-slot"), ("rustlog", "rustlog")]
)
def test_a_crash_leaves_nothing_or_everything(source: str, target: str) -> None:
    disk = SimulatedDisk()
    with WritableLog("/a", format=source, disk=disk) as log:
        for _ in range(2):
            log.append_batch([b"x" * SIZE] * 3)
            log.seal()
    crashed: list[SimulatedDisk] = []
    patterns = [CrashPattern("lost", "lost"), CrashPattern("torn", "each", seed=3)]
    disk.on_operation = lambda number, what: crashed.append(disk.crash(patterns[number % 2]))
    convert("/a", "/b", target, disk=disk, allow_loss=ALL)
    disk.on_operation = None
    for after in crashed:
        if after.kind("/b") == "missing":
            convert("/a", "/b", target, disk=after, allow_loss=ALL)
            assert after.kind("/b" + BUILDING) == "missing"
        report = verify_log("/b", disk=after)
        assert (report.ok, report.records) == (True, 6)


def test_a_full_disk_leaves_nothing() -> None:
    disk = SimulatedDisk()
    with WritableLog("/a", format="osiris", disk=disk) as log:
        log.append_batch([b"x" * SIZE] * 3)
    total = FaultyDisk(disk.clone())
    convert("/a", "/b", "keratin", disk=total)
    for call in range(1, total.calls + 1, 2):
        inner = disk.clone()
        faulty = FaultyDisk(inner, f"#{call}: ENOSPC")
        with contextlib.suppress(DuramenError):
            convert("/a", "/b", "keratin", disk=faulty)
        if inner.kind("/b") == "missing":
            convert("/a", "/b", "keratin", disk=inner)
        assert verify_log("/b", disk=inner).records == 3


@pytest.mark.unprivileged
def test_a_directory_that_may_not_be_written(tmp_path: Path) -> None:
    with duramen.open(tmp_path / "a", "a", format="durable-log") as log:
        log.append(b"x")
    (tmp_path / "closed").mkdir(mode=0o500)
    with pytest.raises(StorageError):
        duramen.convert(tmp_path / "a", tmp_path / "closed" / "b", "osiris")


def test_what_is_published_was_checked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A log that does not hold what went into it is not published."""
    with duramen.open(tmp_path / "a", "a", format="durable-log") as log:
        log.append_batch([b"one", b"two"])
    fmt = type(make("keratin"))
    real = fmt.encode

    def lossy(self: Format, rows: pa.RecordBatch, cursor: Any, default_us: int = 0) -> Any:
        encoded = real(self, rows, cursor, default_us)
        memory = bytearray(encoded.data)
        memory[-1] ^= 1
        return encoded._replace(data=memoryview(memory))

    monkeypatch.setattr(fmt, "encode", lossy)
    with pytest.raises(CorruptionError, match=r"not sound|were found"):
        duramen.convert(tmp_path / "a", tmp_path / "b", "keratin")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a"]
