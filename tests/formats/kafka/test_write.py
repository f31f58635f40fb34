"""Writing Kafka partitions: new ones, and those that a broker wrote."""

from __future__ import annotations

import fcntl
import multiprocessing
import shutil
import struct
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa
import pytest

import duramen
from duramen.errors import CorruptionError, UsageError
from duramen.formats import Role, ScanPosition, SupportsStateFiles, make
from duramen.formats.kafka.indexes import written_entries
from duramen.formats.kafka.state_files import parse_epochs, parse_snapshot
from duramen.log import LossError, convert, copy, reindex
from tests.formats.kafka_logs import DATA, PARTITIONS, bounds, consumed, name_of, options, truth

TIME = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
MODERN = [path for path in PARTITIONS if path.parent.name == "clean"]
OLD = [path for path in PARTITIONS if path.parent.name == "old" and path.name != "v012-0"]


OWN_INTERVALS = {("epochs-0", 98), ("compactempty-0", 0)}
"""Here the broker was restarted, or merged segments: it counted bytes from another batch on."""


def copy_of(path: Path, tmp_path: Path) -> Path:
    """The partition as a broker stores it, without what the fixtures add."""
    ignored = shutil.ignore_patterns("truth*", "offsets*", "damage.json", "*.txt", "recovered")
    return Path(shutil.copytree(path, tmp_path / path.name, ignore=ignored))


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_records_of_every_kind_come_back(tmp_path: Path, compression: str) -> None:
    rows = [
        {"key": b"k", "value": b"v" * 300, "headers": [{"key": "h", "value": b"x"}, {"key": "", "value": None}]},
        {"key": None, "value": None, "headers": None},
        {"key": b"", "value": b"", "headers": None},
    ]
    batch = pa.RecordBatch.from_pylist(rows * 100, duramen.SCHEMA.remove(0).remove(0))
    path = tmp_path / "orders-0"
    with duramen.open(path, "a", format="kafka", compression=compression, batch_max_bytes=4000) as log:
        assert log.append(b"first", timestamp=TIME) == 0
        assert log.append_batch(batch) == (1, 300)
    with duramen.open(path) as log:
        table = pa.Table.from_batches(log.batches())
        assert log.read(0).timestamp == TIME
    assert table.select(["key", "value", "headers"]).slice(1).to_pylist() == rows * 100
    assert table.column("offset").to_pylist() == list(range(301))
    assert duramen.verify(path).findings == []
    segment = make("kafka").open_segment((path / "00000000000000000000.log").read_bytes(), 0)
    batches = segment.last_step().columns
    assert set(batches.attributes.tolist()) == {COMPRESSIONS.index(compression)}  # type: ignore[attr-defined]
    assert len(batches) > 3


@pytest.mark.parametrize("column", ["timestamp", "timestamp_ms"])
def test_a_time_before_1970_is_refused(column: str, tmp_path: Path) -> None:
    """For Kafka -1 is no time, and a producer refuses the others; they would be read as null."""
    path = tmp_path / "orders-0"
    kind = pa.timestamp("us", "UTC") if column == "timestamp" else pa.int64()
    with duramen.open(path, "a", format="kafka") as log:
        log.append(b"first", timestamp=0)
        for times in ([-1000], [-1], [5000, None, -1]):
            batch = pa.record_batch({"value": [b"x"] * len(times), column: pa.array(times, kind)})
            with pytest.raises(UsageError, match="kafka cannot store a time before 1970"):
                log.append_batch(batch)
        with pytest.raises(UsageError, match="kafka cannot store a time before 1970"):
            log.append(b"x", timestamp=datetime(1969, 12, 31, tzinfo=UTC))
        log.append(b"last")
    assert [record.value for record in duramen.open(path, format="kafka")] == [b"first", b"last"]


@pytest.mark.parametrize("path", MODERN, ids=name_of)
def test_a_partition_of_a_broker_goes_on(path: Path, tmp_path: Path) -> None:
    log_path = copy_of(path, tmp_path)
    segments = {file.name: file.read_bytes() for file in log_path.glob("*.log")}
    metadata = (log_path / "partition.metadata").read_bytes()
    epochs = parse_epochs((log_path / "leader-epoch-checkpoint").read_bytes())
    with duramen.open(log_path, "a", format="kafka") as log:
        offset = log.append(b"more", key=b"k")
    after = duramen.open(log_path, **options(path, "read_uncommitted"))
    assert after.read(offset).value == b"more"
    assert [row["offset"] for row in consumed(path)] == [r.offset for r in after.scan() if r.offset != offset]
    written = next(iter(after.batches(from_offset=offset, columns=("leader_epoch",))))
    assert written.column(0).to_pylist() == [max((one.epoch for one in epochs), default=0)]
    assert all((log_path / name).read_bytes().startswith(data) for name, data in segments.items())
    assert (log_path / "partition.metadata").read_bytes() == metadata
    assert [f for f in duramen.verify(log_path).findings if f.severity != "note"] == []


@pytest.mark.parametrize("path", OLD, ids=name_of)
def test_old_messages_are_not_continued(path: Path, tmp_path: Path) -> None:
    log = copy_of(path, tmp_path)
    before = {file.name: file.read_bytes() for file in log.glob("0*")}
    with pytest.raises(UsageError, match=r"messages of format v[01], which are only read"):
        duramen.open(log, "a", format="kafka")
    assert {file.name: file.read_bytes() for file in log.glob("0*")} == before


def _changed(log: Path, at: int) -> None:
    first = min(log.glob("*.log"))
    data = bytearray(first.read_bytes())
    data[at] ^= 0xFF
    first.write_bytes(data)


@pytest.mark.parametrize("path", OLD, ids=name_of)
def test_old_messages_are_copied_converted_and_repaired(path: Path, tmp_path: Path) -> None:
    log = copy_of(path, tmp_path / "source")
    columns = ("offset", "key", "value", *(() if "v0" in path.name else ("timestamp_ms", "timestamp_type")))

    def records(of: Path) -> list[dict[str, Any]]:
        with duramen.open(of) as opened:
            return pa.Table.from_batches(opened.batches(columns=columns)).to_pylist()

    copy(str(log), str(tmp_path / "copy"))
    assert [file.read_bytes() for file in sorted((tmp_path / "copy").glob("*.log"))] == [
        file.read_bytes() for file in sorted(log.glob("*.log"))
    ]
    convert(str(log), str(tmp_path / "new"), "kafka", allow_loss=["timestamp"])
    assert records(tmp_path / "new") == records(log)
    with duramen.open(tmp_path / "new", "a") as new:
        assert new.append(b"more") == bounds(path, "read_uncommitted")["end_offset"]
    before = records(log)
    _changed(log, 500)
    assert any(finding.code == "damaged-records" for finding in duramen.verify(log).findings)
    duramen.repair(log, plan_only=False)
    assert [finding for finding in duramen.verify(log).findings if finding.severity != "note"] == []
    kept = records(log)
    assert 0 < len(kept) < len(before)
    assert all(record in before for record in kept)


@pytest.mark.parametrize("path", MODERN, ids=name_of)
def test_indexes_are_those_of_the_broker(path: Path) -> None:
    """They were made with an interval of 1024 bytes."""
    fmt = make("kafka", index_stride_bytes=1024)
    for file in sorted(path.glob("*.log")):
        base = int(file.stem)
        if (path.name, base) in OWN_INTERVALS:
            continue
        segment = fmt.open_segment(file.read_bytes(), base)
        builder = fmt.index_builder(base, 0)
        for rows in segment.steps():
            builder.add(rows)
        built = builder.build_complete()
        for role, suffix in ((Role.INDEX, ".index"), (Role.TIME_INDEX, ".timeindex")):
            held, _ = written_entries(role, file.with_suffix(suffix).read_bytes())
            assert built[role] == held.tobytes(), (file.name, role)


def test_the_rule_of_the_index() -> None:
    """A batch has an entry if it starts more than the interval after the last one that has; times only grow."""
    fmt = make("kafka", index_stride_bytes=100, batch_max_bytes=1)
    times = [50, 40, 60, 60, 30, 70]
    columns = {"value": pa.array([b"v" * 20] * 6), "timestamp": pa.array([t * 1000 for t in times])}
    batch = pa.RecordBatch.from_pydict(columns).cast(
        pa.schema([pa.field("value", pa.binary()), duramen.SCHEMA.field("timestamp")])
    )
    encoded = fmt.encode(batch, ScanPosition(0, 9))
    size = len(encoded.data) // 6
    assert 50 < size < 100  # every second batch
    builder = fmt.index_builder(10, 0)
    builder.add(encoded.rows)
    built = builder.build_complete()
    index, _ = written_entries(Role.INDEX, built[Role.INDEX])
    assert index["relative_offset"].tolist() == [2, 4]
    assert index["position"].tolist() == [2 * size, 4 * size]
    in_time, _ = written_entries(Role.TIME_INDEX, built[Role.TIME_INDEX])
    assert in_time["timestamp"].tolist() == [60, 70]
    assert in_time["relative_offset"].tolist() == [2, 5]


@pytest.mark.parametrize("stride", [0, 300])
def test_no_index_outgrows_its_limit(tmp_path: Path, stride: int) -> None:
    """A broker does not start on an index that is larger than its limit."""
    path, most = tmp_path / "t-0", 240
    with duramen.open(path, "a", format="kafka", index_max_bytes=most, index_stride_bytes=stride) as log:
        for number in range(100):
            log.append(b"v", timestamp=TIME + timedelta(seconds=number), durability="write")
        log.append_batch([b"w" * 20] * 500)
    sizes = [file.stat().st_size for suffix in ("index", "timeindex") for file in path.glob(f"*.{suffix}")]
    assert most / 2 < max(sizes) <= most
    with duramen.open(path) as log:
        assert sum(1 for _ in log) == 600
    assert duramen.verify(path).findings == []


def test_damage_is_repaired_around(tmp_path: Path) -> None:
    """A broker cuts everything after a bad batch; `repair` keeps it, with a gap."""
    path = tmp_path / "t-0"
    with duramen.open(path, "a", format="kafka") as log:
        for number in range(5):
            log.append_batch([b"%d-%d" % (number, n) for n in range(10)])
    file = path / "00000000000000000000.log"
    data = bytearray(file.read_bytes())
    data[data.index(b"2-3")] ^= 1
    file.write_bytes(data)
    with pytest.raises(CorruptionError):
        duramen.open(path, "a")
    plan = duramen.repair(path, plan_only=False)
    assert plan.ok
    kept = [*range(20), *range(30, 50)]
    with duramen.open(path, "a") as log:
        assert [record.offset for record in log.scan()] == kept
        assert log.append(b"after") == 50
    assert duramen.verify(path).ok
    assert any((path / ".duramen/quarantine").rglob("*.log*"))


@pytest.mark.parametrize("path", MODERN, ids=name_of)
def test_a_copy_and_a_reindexed_partition_hold_the_same(path: Path, tmp_path: Path) -> None:
    log = copy_of(path, tmp_path)
    duramen.copy(log, tmp_path / "copy")
    for pattern in ("*.index", "*.timeindex", "*.txnindex", "leader-epoch-checkpoint"):
        for file in log.glob(pattern):
            file.unlink()
    reindex(str(log))
    for one in (log, tmp_path / "copy"):
        assert [f for f in duramen.verify(one).findings if f.severity != "note"] == []
        with duramen.open(one, **options(path, "read_uncommitted")) as opened:
            offsets = np.concatenate([b.column("offset").to_numpy() for b in opened.batches()] or [np.empty(0)])
        assert offsets.tolist() == [row["offset"] for row in consumed(path)]


@pytest.mark.parametrize("path", MODERN, ids=name_of)
def test_state_files_are_those_of_the_broker(path: Path) -> None:
    """A broker's last snapshot is that of its shutdown. What compaction removed, only the broker's files know."""
    fmt = make("kafka")
    assert isinstance(fmt, SupportsStateFiles)
    segments = [fmt.open_segment(file.read_bytes(), int(file.stem)) for file in sorted(path.glob("*.log"))]
    built = fmt.build_state(segments, {})
    held = {file.name: file.read_bytes() for file in path.glob("0*.*") if file.name in built}
    if path.name.startswith("compact"):
        held = {}
    assert all(built[name] == content for name, content in held.items())
    if not path.name.startswith(("compact", "startmoved", "empty")):
        assert built["leader-epoch-checkpoint"] == (path / "leader-epoch-checkpoint").read_bytes()


def test_a_roll_writes_the_state_of_producers(tmp_path: Path) -> None:
    """As far as it is known: the snapshot before it is the beginning of it."""
    log = copy_of(DATA / "clean/txn-0", tmp_path)
    for file in log.glob("*.snapshot"):
        if int(file.stem) > 261:
            file.unlink()  # that of the shutdown
    with duramen.open(log, "a", format="kafka") as writer:
        writer.append(b"more")
        writer.seal()
    segments = [make("kafka").open_segment(f.read_bytes(), int(f.stem)) for f in sorted(log.glob("*.log"))]
    built = make("kafka").build_state(segments, {})  # type: ignore[attr-defined]
    assert (log / "00000000000000000264.snapshot").read_bytes() == built["00000000000000000264.snapshot"]
    assert len(built["00000000000000000264.snapshot"]) > 10
    assert [f for f in duramen.verify(log).findings if f.severity != "note"] == []


def _of_producer(base: int, attributes: int, records: bytes) -> bytes:
    covered = struct.pack(">HiqqqhiI", attributes, 0, 0, 0, 7, 0, 0, 1) + records
    return struct.pack(">qiibI", base, len(covered) + 9, 0, 2, google_crc32c.value(covered)) + covered


def test_an_unknown_marker_ends_no_transaction(tmp_path: Path) -> None:
    """Of the types that a control record may have, only 0 and 1 are about transactions."""
    path = tmp_path / "orders-0"
    path.mkdir()
    data = _of_producer(0, 16, bytes.fromhex("0e000000 01 0276 00"))
    marker = bytes.fromhex("20000000 0800000005 0c000000000000 00")
    (path / "00000000000000000000.log").write_bytes(data + _of_producer(1, 48, marker))
    with duramen.open(path, "a", format="kafka") as log:
        log.append(b"more")
        log.seal()
    assert [finding for finding in duramen.verify(path).findings if finding.severity != "note"] == []
    (entry,) = parse_snapshot((path / "00000000000000000003.snapshot").read_bytes())
    assert entry.transaction_offset == 0


def test_retention_removes_all_files_of_a_segment(tmp_path: Path) -> None:
    """A broker complains about a transaction index without its segment."""
    log = copy_of(DATA / "clean/txn-0", tmp_path)
    with duramen.open(log, "a") as writer:
        removed = {str(one.base).zfill(20) for one in writer.retain(duramen.Retention(before_offset=200)).removed}
        assert len(removed) == 2
        assert not {path.stem for path in log.glob("0*")} & removed
    assert [f for f in duramen.verify(log).findings if f.severity != "note"] == []


def test_retention_leaves_nothing_that_a_broker_puts_back(tmp_path: Path) -> None:
    """A broker that stopped while it replaced a segment does so when it starts."""
    log = tmp_path / "orders-0"
    with duramen.open(log, "a", format="kafka") as writer:
        for _ in range(3):
            writer.append(b"value")
            writer.seal()
    bases = sorted(file.stem for file in log.glob("*.log"))
    for name in (f"{bases[0]}.log", f"{bases[0]}.index", f"{bases[2]}.log"):
        shutil.copy(log / name, log / f"{name}.swap")
    with duramen.open(log, "a") as writer:
        assert len(writer.retain(duramen.Retention(before_offset=int(bases[1]))).removed) == 1
    assert [file.name for file in log.glob("*.swap")] == [f"{bases[2]}.log.swap"]
    assert [f for f in duramen.verify(log).findings if f.severity != "note"] == []


@pytest.mark.parametrize("seals", range(3))
def test_a_log_goes_on_after_an_open_transaction(tmp_path: Path, seals: int) -> None:
    """Readers of committed records end before it; what the sidecar knows of the rest is no contradiction."""
    log = copy_of(DATA / "clean/txnopen-0", tmp_path)
    with duramen.open(log, "a") as writer:
        for _ in range(seals):
            writer.append(b"sealed")
            writer.seal()
        writer.append(b"last")
    ended = [row["offset"] for row in truth(DATA / "clean/txnopen-0", "read_committed")]
    with duramen.open(log, isolation="read_committed") as reader:
        assert [record.offset for record in reader] == ended
        assert reader.next_offset == bounds(DATA / "clean/txnopen-0", "read_committed")["end_offset"]
        assert reader.read(5).offset == 5
    duramen.convert(
        log, tmp_path / "out", to="keratin", source_options={"isolation": "read_committed"},
        allow_loss=["timestamp-order", "tracking"],
    )  # fmt: skip
    with duramen.open(tmp_path / "out") as converted:
        assert [record.offset for record in converted] == ended
    assert duramen.verify(log).ok


def test_a_topic_id_is_written_once(tmp_path: Path) -> None:
    path = tmp_path / "t-0"
    with duramen.open(path, "a", format="kafka", topic_id="oW3sXxtYTruEQaEXHPWtiw") as log:
        log.append(b"v")
    assert (path / "partition.metadata").read_text() == "version: 0\ntopic_id: oW3sXxtYTruEQaEXHPWtiw"
    assert (path / "leader-epoch-checkpoint").read_text() == "0\n1\n0 0\n"


def test_aborted_records_do_not_become_ordinary_ones_unasked(tmp_path: Path) -> None:
    source = str(copy_of(DATA / "clean/txn-0", tmp_path))
    allowed = ["timestamp-order", "tracking"]
    with pytest.raises(LossError, match="transactions") as caught:
        duramen.convert(source, str(tmp_path / "all"), to="keratin", allow_loss=allowed)
    lost = {loss.field: loss.count for loss in caught.value.losses}
    assert lost["transactions"] == len(consumed(DATA / "clean/txn-0")) - len(settled(source))
    duramen.convert(
        source, str(tmp_path / "settled"), to="keratin", allow_loss=allowed, source_options={"isolation": "settled"}
    )
    with duramen.open(tmp_path / "settled") as log:
        assert [record.offset for record in log] == settled(source)
    duramen.convert(source, str(tmp_path / "all"), to="keratin", allow_loss=[*allowed, "transactions"])
    duramen.convert(source, str(tmp_path / "as-it-is"), to="kafka")  # byte by byte, with its markers
    assert settled(str(tmp_path / "as-it-is")) == settled(source)


def settled(path: str) -> list[int]:
    with duramen.open(path, isolation="settled") as log:
        return [record.offset for record in log]


def _hold(path: Path, held: Any, done: Any) -> None:
    with path.open("w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        held.set()
        done.wait()


def test_a_running_broker_keeps_writers_out(tmp_path: Path) -> None:
    """It locks one file for all partitions, with fcntl."""
    log = copy_of(DATA / "clean/txn-0", tmp_path)
    (tmp_path / "meta.properties").write_text("version=1\n")
    context = multiprocessing.get_context("fork")
    held, done = context.Event(), context.Event()
    process = context.Process(target=_hold, args=(tmp_path / ".lock", held, done))
    process.start()
    try:
        held.wait()
        for change in (
            lambda: duramen.open(log, "a"),
            lambda: duramen.repair(log, plan_only=False),
            lambda: reindex(str(log)),
            lambda: duramen.convert(log, tmp_path / "orders-0", to="kafka"),
        ):
            with pytest.raises(duramen.LockedError, match="broker is running"):
                change()
        assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "meta.properties", "txn-0"]
        assert not (log / ".duramen").exists()
        assert len(consumed(log)) == len(consumed(DATA / "clean/txn-0"))
    finally:
        done.set()
        process.join()
    with duramen.open(log, "a") as writer:
        writer.append(b"v")
