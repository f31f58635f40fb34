"""Building a log: what is written is what a writer would leave, whatever the batches, and there is never half of it."""

from __future__ import annotations

import contextlib
import errno
import itertools
import pickle
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import duramen
from duramen.disk import Disk, PosixDisk
from duramen.errors import LockedError, StorageError, UsageError
from duramen.formats import Format, make
from duramen.log.read.log import Log
from duramen.log.segments.log_builder import BUILDING, BuiltSegment, LogBuilder, SegmentBuilder
from duramen.log.verify.verify import verify_log
from duramen.log.write.writable_log import WritableLog
from duramen.testing.crash import CrashPattern
from duramen.testing.faulty_disk import FaultyDisk
from duramen.testing.simulated_disk import SimulatedDisk
from tests.log.conftest import FORMATS, batch, codec, value
from tests.sampling import every


def cuts(rows: pa.RecordBatch, *at: int) -> Iterator[pa.RecordBatch]:
    bounds = [0, *sorted(at), rows.num_rows]
    for first, last in itertools.pairwise(bounds):
        yield rows.slice(first, last - first)


def build_segment(
    root: str, fmt: Format, base: int, batches: Iterable[pa.RecordBatch], *, disk: Disk | None = None
) -> BuiltSegment:
    builder = SegmentBuilder(disk or PosixDisk(), root, fmt, base)
    try:
        for one in batches:
            assert not builder.add(one).num_rows
        return builder.finish()
    finally:
        builder.close()


def build(path: str, name: str, counts: tuple[int, ...] = (7, 5), disk: Disk | None = None) -> LogBuilder:
    """A log with a segment for each count, published."""
    fmt = codec(name)
    with LogBuilder(path, fmt, disk=disk) as log:
        first = 0
        for count in counts if fmt.capabilities.segments else (sum(counts),):
            log.add(build_segment(log.root, fmt, first, [batch(fmt, first, count)], disk=log.disk))
            first += count
        log.finish()
        log.publish()
    return log


def files(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("name", FORMATS)
def test_a_built_log_reads_verifies_and_goes_on(tmp_path: Path, name: str) -> None:
    path = tmp_path / "log"
    build(str(path), name)
    assert not path.with_name("log" + BUILDING).exists()
    report = duramen.verify(path)
    assert report.ok
    assert not report.findings
    assert report.records == 12
    with duramen.open(path, "a") as log:
        assert log.format == name
        assert log.recovery[-1].case.name in ("CLEAN", "SEALED")
        assert (log.next_offset, log.durable_offset) == (12, 12)
        assert log.append(value(12)) == 12
        assert [record.value for record in log.scan()] == [value(offset) for offset in range(13)]
    assert duramen.verify(path).ok


@pytest.mark.parametrize("name", FORMATS)
def test_a_built_log_holds_the_bytes_of_the_writer(tmp_path: Path, name: str) -> None:
    fmt = codec(name)
    expected = dict(fmt.build([batch(fmt, 0, 7)]))
    build(str(tmp_path / "log"), name, (7,))
    assert {p: d for p, d in files(tmp_path / "log").items() if not p.startswith(".duramen")} == expected


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=15)
@given(at=st.lists(st.integers(0, 60), max_size=4), size=st.sampled_from([64, 200, 1 << 20]))
def test_batching_does_not_show(name: str, at: list[int], size: int) -> None:
    fmt = codec(name)
    if name == "osiris":
        fmt = make(name, chunk_max_bytes=size)
    if name == "kafka":
        fmt = make(name, batch_max_bytes=size)
    rows = batch(fmt, 0, 60)
    if "timestamp" in rows.schema.names:  # ten records share a time, or Osiris would make a chunk of each
        times = pa.array([offset // 10 * 1_000_000 for offset in range(60)]).view(pa.timestamp("us", "UTC"))
        rows = rows.set_column(rows.schema.get_field_index("timestamp"), "timestamp", times)
    disk = SimulatedDisk()
    disk.make_directory("/one")
    disk.make_directory("/many")
    one = build_segment("/one", fmt, 0, [rows], disk=disk)
    many = build_segment("/many", fmt, 0, cuts(rows, *at), disk=disk)
    assert one == many
    for path in one.paths:
        assert bytes(disk.map(f"/one/{path}").data) == bytes(disk.map(f"/many/{path}").data)


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "fixed-slot"])
def test_offsets_keep_their_gaps(tmp_path: Path, name: str) -> None:
    fmt = make(name)
    offsets = [5, 6, 9, 20, 21]
    rows = pa.concat_batches([batch(fmt, offset, 1) for offset in offsets])
    with LogBuilder(str(tmp_path / "log"), fmt) as log:
        log.add(build_segment(log.root, fmt, 5, [rows]))
        log.finish()
        log.publish()
    assert [record.offset for record in duramen.open(tmp_path / "log").scan()] == offsets
    assert duramen.verify(tmp_path / "log").ok


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "fixed-slot"])
def test_what_does_not_fit_is_handed_back(tmp_path: Path, name: str) -> None:
    """Filling segment after segment gives every record once, in segments that keep to the limit."""
    fmt, most = make(name, **({"batch_max_bytes": 100} if name == "kafka" else {})), 400
    with LogBuilder(str(tmp_path / "log"), fmt) as log:
        rest, base = batch(fmt, 0, 100), 0
        while rest.num_rows:
            builder = log.segment(base, max_bytes=most)
            rest = builder.add(rest)
            log.add(builder.finish())
            base = log.segments[-1].next_offset
        log.finish()
        log.publish()
    assert [record.value for record in duramen.open(tmp_path / "log").scan()] == [value(n) for n in range(100)]
    report = duramen.verify(tmp_path / "log")
    assert report.ok
    assert len(report.segments) > 5
    if not fmt.capabilities.rolls_when_full:
        assert max(segment.size_bytes for segment in report.segments) <= most


def test_a_record_over_the_limit_gets_a_segment_of_its_own(tmp_path: Path) -> None:
    fmt = make("durable-log")
    rows = pa.RecordBatch.from_pydict({"offset": [0, 1, 2], "value": [b"a", bytes(500), b"c"]})
    builder = SegmentBuilder(PosixDisk(), str(tmp_path), fmt, 0, max_bytes=100)
    rest = builder.add(rows)
    assert rest.column("offset").to_pylist() == [1, 2]
    builder.close()
    builder = SegmentBuilder(PosixDisk(), str(tmp_path), fmt, 1, max_bytes=100)
    assert builder.add(rest).column("offset").to_pylist() == [2]
    assert builder.finish().records == 1
    builder = SegmentBuilder(PosixDisk(), str(tmp_path), make("keratin"), 0)
    assert builder.add(_far_apart()).column("offset").to_pylist() == [2**33]
    builder.close()


def _far_apart() -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"offset": [0, 2**33], "value": [b"a", b"b"]})


@pytest.mark.parametrize("name", FORMATS)
def test_an_empty_log(tmp_path: Path, name: str) -> None:
    build(str(tmp_path / "log"), name, ())
    with duramen.open(tmp_path / "log", "a") as log:
        assert (log.next_offset, list(log.scan())) == (0, [])
    assert duramen.verify(tmp_path / "log").ok


@pytest.mark.parametrize("name", FORMATS)
def test_a_segment_can_be_built_elsewhere(tmp_path: Path, name: str) -> None:
    """As a worker does it: the format goes there and the answer comes back through pickle, the files are moved."""
    fmt = pickle.loads(pickle.dumps(codec(name)))
    with LogBuilder(str(tmp_path / "log"), fmt) as log:
        attempt = tmp_path / "attempt"
        attempt.mkdir()
        built = pickle.loads(pickle.dumps(build_segment(str(attempt), fmt, 0, [batch(fmt, 0, 9)])))
        assert isinstance(built, BuiltSegment)
        assert {str(p.relative_to(attempt)) for p in attempt.rglob("*") if p.is_file()} == {*built.paths}
        log.adopt(built, str(attempt))
        log.finish()
        log.publish()
    report = duramen.verify(tmp_path / "log")
    assert (report.ok, report.findings, report.records) == (True, [], 9)


def test_a_second_attempt_replaces_the_first(tmp_path: Path) -> None:
    fmt = make("keratin")
    build_segment(str(tmp_path), fmt, 0, [batch(fmt, 0, 9)])
    built = build_segment(str(tmp_path), fmt, 0, [batch(fmt, 0, 3)])
    assert (tmp_path / built.paths[0]).stat().st_size == built.size_bytes


def test_segments_must_be_in_order(tmp_path: Path) -> None:
    fmt = make("keratin")
    with LogBuilder(str(tmp_path / "log"), fmt) as log:
        log.add(build_segment(log.root, fmt, 5, [batch(fmt, 5, 2)]))
        with pytest.raises(UsageError, match="order"):
            log.add(build_segment(log.root, fmt, 6, [batch(fmt, 6, 2)]))
    assert list(tmp_path.iterdir()) == []


def test_a_first_record_of_zeros_is_refused(tmp_path: Path) -> None:
    rows = pa.RecordBatch.from_pydict({"offset": [0], "value": [b""]})
    with pytest.raises(UsageError, match="zero"):
        build_segment(str(tmp_path), make("rustlog"), 0, [rows])


# --- the path


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    with pytest.raises(UsageError, match="exists already"):
        LogBuilder(str(tmp_path / "log"), make("keratin"))
    with pytest.raises(StorageError, match="no such directory"):
        LogBuilder(str(tmp_path / "no" / "log"), make("keratin"))
    with LogBuilder(str(tmp_path / "new"), make("keratin")) as log:
        log.finish()
        (tmp_path / "new").mkdir()  # somebody was faster
        with pytest.raises(UsageError, match="exists already"):
            log.publish()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["log", "new"]


def test_two_builds_do_not_meet(tmp_path: Path) -> None:
    with LogBuilder(str(tmp_path / "log"), make("keratin")) as log:
        with pytest.raises(LockedError, match="is building a log"), LogBuilder(str(tmp_path / "log"), make("keratin")):
            pass
        log.finish()
        log.publish()
    assert duramen.verify(tmp_path / "log").ok


def test_a_leftover_is_cleared_away(tmp_path: Path) -> None:
    leftover = tmp_path / ("log" + BUILDING)
    for path in ("segments/00000000000000000003.log", ".duramen/lock", ".duramen/quarantine/x", "odd/one", "two"):
        (leftover / path).parent.mkdir(parents=True, exist_ok=True)
        (leftover / path).write_bytes(b"left")
    build(str(tmp_path / "log"), "keratin")
    assert not leftover.exists()
    report = duramen.verify(tmp_path / "log")
    assert (report.ok, report.findings, report.records) == (True, [], 12)
    assert not {*files(tmp_path / "log")} & {"two", "odd/one", ".duramen/quarantine/x"}


def test_an_error_leaves_nothing(tmp_path: Path) -> None:
    def fail(path: str) -> None:
        with LogBuilder(path, make("keratin")) as log:
            log.add(build_segment(log.root, log.fmt, 0, [batch(log.fmt, 0, 3)]))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail(str(tmp_path / "log"))
    assert list(tmp_path.iterdir()) == []


# --- crashes and faults


@pytest.mark.parametrize("name", FORMATS)
def test_a_crash_leaves_nothing_or_everything(name: str) -> None:
    """At every operation, and however much of what was not synced survives."""
    crashed: list[SimulatedDisk] = []
    patterns = [CrashPattern("lost", "lost"), CrashPattern("kept", "kept"), CrashPattern("lost", "kept")]
    disk = SimulatedDisk()
    disk.on_operation = lambda number, what: crashed.extend(disk.crash(pattern) for pattern in patterns)
    build("/log", name, (4, 3), disk=disk)
    disk.on_operation = None
    whole = 0
    for after in crashed:
        if after.kind("/log") == "missing":
            build("/log", name, (4, 3), disk=after)  # it can be started again, whatever was left
            assert after.kind("/log" + BUILDING) == "missing"
        else:
            whole += 1
        report = verify_log("/log", disk=after)
        assert (report.ok, report.records) == (True, 7)
    assert whole
    with WritableLog("/log", disk=crashed[-1]) as log:
        assert log.append(value(7)) == 7


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("fault", [errno.ENOSPC, errno.EIO])
def test_a_failing_disk_leaves_no_log(name: str, fault: int) -> None:
    """Every call in turn fails: the error comes out, and nothing lies at the path unless the log was published."""
    total = FaultyDisk(SimulatedDisk())
    build("/log", name, (4, 3), disk=total)
    for call in range(1 + fault % every(2), total.calls + 1, every(4)):
        inner = SimulatedDisk()
        disk = FaultyDisk(inner, f"#{call}: {errno.errorcode[fault]}")
        with contextlib.suppress(StorageError):  # nothing else may come out
            build("/log", name, (4, 3), disk=disk)
        if inner.kind("/log") != "missing":
            assert verify_log("/log", disk=inner).records == 7
            continue
        build("/log", name, (4, 3), disk=inner)
        assert len(list(Log("/log", disk=inner).scan())) == 7
