"""Bugs that were found, each with the test that holds it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import duramen
from duramen.formats import Role, ScanPosition, Values, make
from duramen.log.segments.segment_end import EndKind
from duramen.record import TIMESTAMP
from tests.log.conftest import START_US, batch, codec, options, value

Write = Callable[..., Path]
SECTOR = 512


@pytest.mark.parametrize("name", ["durable-log", "keratin"])
@pytest.mark.parametrize("arrived", [1, 2, 3, 4, 5, 8])
def test_a_header_of_which_only_the_first_bytes_arrived_is_torn(tmp_path: Path, name: str, arrived: int) -> None:
    """It was called an unknown version, or a repeated offset: the log would not have opened after a power loss."""
    fmt = make(name)
    header = fmt.segment_header(0, 0)
    small = bytes(fmt.encode(batch_of(b""), ScanPosition(len(header), -1)).data)
    size = 2 * SECTOR - len(header) - len(small) - arrived
    whole = header + bytes(fmt.encode(batch_of(bytes(range(1, 256)) * 4, size), ScanPosition(len(header), -1)).data)
    assert len(whole) == 2 * SECTOR - arrived
    following = bytes(fmt.encode(batch_of(b"x" * 100, 100, offset=1), ScanPosition(len(whole), 0)).data)
    path = tmp_path / fmt.segment_path(0)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(whole + following[:arrived] + bytes(len(following) - arrived + 300))
    report = duramen.verify(tmp_path, format=name)
    assert report.segments[0].ending == EndKind.TORN
    assert report.ok
    assert report.records == 1


def batch_of(value: bytes, size: int | None = None, offset: int = 0) -> pa.RecordBatch:
    value = value if size is None else (value * 5)[:size]
    return pa.RecordBatch.from_pydict({"offset": pa.array([offset]), "value": pa.array([value], pa.binary())})


def test_an_unknown_version_that_did_arrive_is_still_unknown(tmp_path: Path) -> None:
    fmt = make("durable-log")
    whole = bytearray(fmt.encode(batch_of(b"", 480), ScanPosition(0, -1)).data)
    path = tmp_path / fmt.segment_path(0)
    newer = bytearray(fmt.encode(batch_of(b"", offset=1), ScanPosition(len(whole), 0)).data)
    newer[4] = 2
    path.write_bytes(bytes(whole) + bytes(newer))
    assert {f.code for f in duramen.verify(tmp_path).findings} >= {"unknown-version"}


def test_a_tracking_chunk_with_a_trailer_swallowed_what_follows(osiris: Path, tmp_path: Path) -> None:
    name = "00000000000000000009.segment"
    raw = bytearray((osiris / "golden_1_3_1" / name).read_bytes())
    whole = duramen.verify(osiris / "golden_1_3_1" / name)
    at = 8 + 40
    for bit in range(32):
        flipped = bytearray(raw)
        flipped[at + bit // 8] ^= 1 << bit % 8
        (tmp_path / name).write_bytes(flipped)
        report = duramen.verify(tmp_path / name, format="osiris")
        assert not report.ok or report.records == whole.records, bit


def test_a_trailer_length_that_takes_in_the_next_chunk_is_damage(tmp_path: Path) -> None:
    fmt = make("osiris", chunk_max_records=1)
    header = fmt.segment_header(0, 0)
    raw = bytearray(header + bytes(fmt.encode(batch(fmt, 0, 4), ScanPosition(len(header), -1)).data))
    chunk_bytes = (len(raw) - len(header)) // 4
    raw[len(header) + 40 : len(header) + 44] = chunk_bytes.to_bytes(4, "big")
    path = tmp_path / fmt.segment_path(0)
    path.write_bytes(raw)
    report = duramen.verify(path)
    assert "swallowed-chunk" in {f.code for f in report.findings}
    assert not report.ok


def test_a_changed_chunk_type_shows_against_the_index(write: Write) -> None:
    root = write("osiris", 1, 1)
    path = root / codec("osiris").segment_path(0)
    raw = bytearray(path.read_bytes())
    raw[9] = 1
    path.write_bytes(raw)
    report = duramen.verify(root)
    assert "index-disagrees" in {f.code for f in report.findings}
    assert not report.ok


@pytest.mark.parametrize("size", range(14, 25))
def test_a_torn_first_record_is_not_read_as_the_other_dialect(golden: Path, tmp_path: Path, size: int) -> None:
    name = "00000000000000000000.log"
    (tmp_path / name).write_bytes((golden / "rustlog/spec/three" / name).read_bytes()[:size])
    report = duramen.verify(tmp_path, format="rustlog")
    assert report.records == 0
    assert report.ok


def test_a_rustlog_length_that_swallows_records_is_damage(golden: Path, tmp_path: Path) -> None:
    name = "00000000000000000000.log"
    raw = (golden / "rustlog/spec/records250" / name).read_bytes()
    for bit in range(32):
        flipped = bytearray(raw)
        flipped[bit // 8] ^= 1 << bit % 8
        (tmp_path / name).write_bytes(flipped)
        assert not duramen.verify(tmp_path, format="rustlog").ok, bit


def test_a_rustlog_file_whose_first_length_is_damaged_is_no_torn_write(golden: Path, tmp_path: Path) -> None:
    """Of the shorter layout: no record at the beginning told which it is, and the other one finds none at all."""
    name = "00000000000000000000.log"
    raw = (golden / "rustlog/impl/records250" / name).read_bytes()
    for bit in range(32):
        flipped = bytearray(raw)
        flipped[bit // 8] ^= 1 << bit % 8
        (tmp_path / name).write_bytes(flipped)
        report = duramen.verify(tmp_path, format="rustlog")
        found = {finding.code for finding in report.findings}
        assert found > {"torn-tail", "missing-index"} or not report.ok, bit


def test_a_time_index_that_lies(tmp_path: Path) -> None:
    fmt = make("keratin", index_stride_bytes=1)
    for relative, content in fmt.build([batch(fmt, 0, 50)]):
        (tmp_path / relative).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / relative).write_bytes(content)
    path = tmp_path / fmt.path_of(Role.TIME_INDEX, 0)
    raw = bytearray(path.read_bytes())
    at = 72 + 24 * 16
    raw[at : at + 8] = bytes(8)
    path.write_bytes(raw)
    with duramen.open(tmp_path) as log:
        assert log.offset_at(START_US // 1000 + 23) == 23
    report = duramen.verify(tmp_path)
    assert "wrong-index-entry" in {f.code for f in report.findings}
    assert report.ok, "the record's checksum covers its time: the index is the wrong one"


def test_the_last_offset_of_all(tmp_path: Path) -> None:
    fmt = make("durable-log")
    last = 2**63 - 1
    data = fmt.encode(batch_of(b"end", offset=last), ScanPosition(0, last - 1)).data
    (tmp_path / fmt.segment_path(last)).write_bytes(data)
    with duramen.open(tmp_path) as log:
        assert [r.offset for r in log.scan()] == [last]
        assert log.read(last).value == b"end"


@pytest.mark.parametrize("name", ["rustlog", "keratin"])
def test_an_unsigned_time_beyond_63_bits_is_null(tmp_path: Path, name: str) -> None:
    fmt = make(name)
    when = pa.array([-1], pa.int64()).view(TIMESTAMP.type)
    one = batch_of(b"v").append_column("timestamp", when)
    header = fmt.segment_header(0, 0)
    path = tmp_path / fmt.segment_path(0)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(header + bytes(fmt.encode(one, ScanPosition(len(header), -1)).data))
    with duramen.open(tmp_path, format=name) as log:
        assert log.read(0).timestamp is None
        assert next(log.scan()).timestamp is None


def test_an_index_interval_of_zero_is_refused() -> None:
    with pytest.raises(duramen.UsageError, match="index_interval_records must be at least 1"):
        make("rustlog", index_interval_records=0)


@pytest.mark.parametrize("name", ["keratin", "osiris"])
def test_a_last_segment_with_a_torn_header_reads_as_empty(write: Write, name: str) -> None:
    root = write(name, 5, 5)
    path = root / codec(name).segment_path(5)
    path.write_bytes(path.read_bytes()[:7])
    with duramen.open(root) as log:
        assert [r.offset for r in log.scan()] == list(range(5))
        assert log.end().ending == EndKind.TORN
        assert log.next_offset == 5


def test_lz4_frames_have_independent_blocks() -> None:
    """RabbitMQ's Java client refuses linked blocks: bit 5 of the frame's flags."""
    import cramjam

    from duramen.formats.osiris.chunk import Compression, deflate

    for size in (0, 1, 1000, 65536, 65537, 300_000):
        plain = bytes(range(256)) * (size // 256 + 1)
        for data in (plain[:size], bytes(size)):
            frame = deflate(data, Compression.LZ4)
            assert frame[4] & 0x20
            assert bytes(cramjam.lz4.decompress(frame)) == data


def test_a_sealed_segment_that_another_program_continued(tmp_path: Path) -> None:
    """RabbitMQ deletes an empty last segment and goes on in the one before."""
    with duramen.open(tmp_path, "a", format="osiris", chunk_version=0) as log:
        log.append_batch([b"one", b"two"])
        log.seal()
    fmt = make("osiris", chunk_version=0)
    first, last = (tmp_path / fmt.segment_path(base) for base in (0, 2))
    last.unlink()
    (tmp_path / fmt.path_of(Role.INDEX, 2)).unlink()
    with first.open("ab") as file:
        file.write(fmt.encode_values(Values([b"three"]), ScanPosition(first.stat().st_size, 1)).data)
    assert {f.code for f in duramen.verify(tmp_path).findings} >= {"sealed-continued"}
    with duramen.open(tmp_path, "a") as log:
        assert [r.value for r in log.scan()] == [b"one", b"two", b"three"]
        assert log.append(b"four") == 3
    assert duramen.verify(tmp_path).ok


def test_the_index_of_osiris_does_not_lag(tmp_path: Path) -> None:
    """RabbitMQ goes by the index: records of a writer that died would be gone for it."""
    with duramen.open(tmp_path, "a", format="osiris") as log:
        log.append(b"one")
        assert (tmp_path / log.codec.path_of(Role.INDEX, 0)).stat().st_size == 8 + 29


@pytest.mark.parametrize("name", ["durable-log", "keratin", "rustlog", "osiris", "fixed-slot"])
def test_a_reader_sees_what_was_durable_before_a_power_loss(name: str) -> None:
    """The watermark on the disk was old, and readers took it for the truth until somebody opened the log for append."""
    from duramen.log.read.log import Log
    from duramen.testing import SimulatedDisk, patterns

    disk = SimulatedDisk()
    log = duramen.open("/log", "a", format=name, disk=disk, **options(name))
    for offset in range(30):
        log.append(value(offset))
    for pattern in patterns():
        reader = Log("/log", disk=disk.crash(pattern))
        assert [r.value for r in reader.scan()] == [value(offset) for offset in range(30)], pattern


def test_segment_options_are_positive() -> None:
    for bad in ({"segment_max_bytes": 0}, {"segment_max_age_ms": -1}):
        with pytest.raises(duramen.UsageError, match="must be at least 1"):
            make("durable-log", **bad)
