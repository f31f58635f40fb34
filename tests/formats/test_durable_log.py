"""durable-log v1: golden files byte by byte, negative files, every flipped bit, every cut, random round trips."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import duramen
from duramen.errors import UnsupportedFieldError, UsageError
from duramen.formats import FileName, Role, ScanPosition, Severity
from duramen.formats.durable_log import DIALECT, ENTRY, HEADER, DurableLog
from duramen.kernel.layout import NOT_FOUND, Stop
from duramen.log.segments.segment_end import EndKind
from duramen.record import SCHEMA
from tests.formats import vectors
from tests.formats.vectors import GOLDEN, VECTORS

F = DurableLog()
GOOD = ["empty", "three", "three_base7"]
SEGMENT = "segment_00000000000000000000.log"

# What `verify` may overlook in a log without an index: the checksum covers the payload only. An offset that is
# changed and still rises cannot be told from one that compaction left.
UNCOVERED = {"offset"}
COVERED = {"magic", "version", "flags", "reserved", "payload_len", "checksum", "payload"}


def base_of(name: str) -> int:
    return 7 if name == "three_base7" else 0


def segment_name(name: str) -> str:
    return f"durable-log/{name}/segment_{base_of(name):020}.log"


# --- golden files


@pytest.mark.parametrize("name", GOOD)
def test_segments_decode_as_listed(name: str) -> None:
    vectors.assert_reads_as_listed(F, segment_name(name), base_of(name))


@pytest.mark.parametrize("name", GOOD)
def test_records_encode_to_the_same_bytes(name: str) -> None:
    """The index included."""
    listed = vectors.records(segment_name(name))
    batch = vectors.batch_of([bytes.fromhex(r["payload"]) for r in listed], [r["offset"] for r in listed])
    vectors.assert_encodes_to(F, batch, vectors.directory(f"durable-log/{name}"))


@pytest.mark.parametrize("name", vectors.names("durable-log/"))
def test_dump_shows_the_fields_of_the_vectors(name: str) -> None:
    base = base_of(Path(name).parent.name)
    role = vectors.role_of(F, Path(name).name)
    vectors.assert_dump(F.dump(role, vectors.read(name), base), name)


@pytest.mark.parametrize("name", GOOD)
def test_the_index_points_at_every_record(name: str) -> None:
    segment = F.open_segment(vectors.read(segment_name(name)), base_of(name))
    rows = vectors.scan_all(segment)
    index = F.open_index(Role.INDEX, vectors.read(segment_name(name).replace(".log", ".idx")), base_of(name))
    assert index.rest_bytes == 0
    assert index.offsets.tolist() == rows.columns.offset.tolist()
    assert index.positions.tolist() == rows.columns.position.tolist()
    for offset, position in zip(index.offsets.tolist(), index.positions.tolist(), strict=True):
        assert index.floor(offset) == (offset, position)
        assert segment.cursor_at(offset, position) == ScanPosition(position, offset - 1)


@pytest.mark.parametrize("name", GOOD)
def test_golden_logs_verify_clean(name: str) -> None:
    report = duramen.verify(GOLDEN / "durable-log" / name)
    assert (report.format, report.findings, report.ok) == ("durable-log", [], True)
    expect = VECTORS[segment_name(name)].get("expect", {"records": [], "valid_bytes": 0})
    assert (report.records, report.bytes) == (len(expect["records"]), expect["valid_bytes"])


# --- negative files

OUTCOMES = {
    "bad_crc_last": ("torn-tail", EndKind.TORN, Stop.BAD_CHECKSUM),
    "big_endian_magic": ("torn-tail", EndKind.TORN, Stop.BAD_MAGIC),
    "torn_header": ("torn-tail", EndKind.TORN, Stop.SHORT_HEADER),
    "torn_payload": ("torn-tail", EndKind.TORN, Stop.SHORT_BODY),
    "unknown_version": ("unknown-version", EndKind.UNKNOWN_VERSION, Stop.BAD_VERSION),
    "zero_tail": ("zero-tail", EndKind.CLEAN, Stop.ZEROS),
}


@pytest.mark.parametrize("vector", vectors.names("durable-log/", negative=True))
def test_negative_files(vector: str, tmp_path: Path) -> None:
    code, ending, stop = OUTCOMES[Path(vector).stem]
    expect = VECTORS[vector]["expect"]
    assert (ending == EndKind.UNKNOWN_VERSION) == (expect["action"] == "raise")
    rows, end = vectors.judge_all(F.open_segment(vectors.read(vector), 0))
    assert (end.ending, end.stop, end.position) == (ending, stop, expect["valid_bytes"])
    assert rows.count == expect["valid_records"]
    for path in (vectors.put(tmp_path, {SEGMENT: vectors.read(vector)}), tmp_path / SEGMENT):
        report = duramen.verify(path)
        (segment,) = report.segments
        assert (segment.records, segment.valid_bytes) == (expect["valid_records"], expect["valid_bytes"])
        assert (segment.ending, segment.size_bytes) == (ending, expect["file_bytes"])
        assert (code, expect["valid_bytes"]) in vectors.findings(report)
        assert report.ok == (expect["action"] == "truncate")


def test_an_unknown_version_raises_where_records_are_read(tmp_path: Path) -> None:
    log = duramen.open(vectors.put(tmp_path, {SEGMENT: vectors.read("durable-log/negative/unknown_version.log")}))
    records = log.scan()
    assert [next(records).offset for _ in range(3)] == [0, 1, 2]
    with pytest.raises(duramen.UnknownVersionError) as caught:
        next(records)
    assert (caught.value.position, caught.value.offset) == (97, 3)


def test_a_valid_record_after_a_bad_one_makes_it_damage(tmp_path: Path) -> None:
    data = bytearray(vectors.read(segment_name("three")))
    data[28] ^= 1  # the last byte of "hello"
    rows, end = vectors.judge_all(F.open_segment(data, 0))
    assert (rows.count, end.ending, end.stop, end.goes_on_at) == (0, EndKind.DAMAGE, Stop.BAD_CHECKSUM, 29)
    report = duramen.verify(vectors.put(tmp_path, {SEGMENT: data}))
    assert not report.ok
    (damage,) = (f for f in report.findings if f.severity == Severity.DAMAGE)
    assert (damage.code, damage.position, damage.first_offset, damage.last_offset) == ("damaged-records", 0, 0, 0)
    assert report.records == 2


def test_a_repeated_offset_is_damage() -> None:
    three = vectors.read(segment_name("three"))
    rows, end = vectors.judge_all(F.open_segment(three + three[53:], 0))
    assert (rows.count, end.ending, end.stop, end.position) == (3, EndKind.DAMAGE, Stop.BAD_ORDER, 97)


@pytest.mark.parametrize(("at", "stop"), [(5, Stop.BAD_FIELD), (6, Stop.BAD_FIELD), (7, Stop.BAD_FIELD)])
def test_flags_and_reserved_must_be_zero(at: int, stop: Stop) -> None:
    data = bytearray(vectors.read(segment_name("three")))
    data[53 + at] = 1
    rows, _ = vectors.judge_all(F.open_segment(data, 0))
    assert (rows.count, rows.stop) == (2, stop)


# --- flips and cuts


def test_the_table_of_covered_fields_is_complete() -> None:
    assert {*HEADER.names, "payload"} == COVERED | UNCOVERED
    assert not COVERED & UNCOVERED


@pytest.mark.parametrize("offsets", [[0, 1, 2], [0, 100, 200]], ids=["contiguous", "compacted"])
def test_every_flipped_bit_is_noticed_or_uncovered(offsets: list[int], tmp_path: Path) -> None:
    encoded = F.encode(vectors.batch_of([b"hello", b"", b"\0\xff"], offsets), ScanPosition(0, -1))
    vectors.put(tmp_path, {SEGMENT: bytes(encoded.data)})
    bounds = [*encoded.rows.columns.position.tolist(), len(encoded.data)]
    unnoticed = vectors.unnoticed_flips(tmp_path / SEGMENT, "durable-log")
    touched = vectors.fields_of(HEADER, unnoticed, bounds)
    assert touched == (UNCOVERED if offsets[-1] > 2 else set())


def test_with_its_index_a_changed_offset_is_noticed_too(tmp_path: Path) -> None:
    batch = vectors.batch_of([b"hello", b"", b"\0\xff"], [0, 100, 200])
    vectors.put(tmp_path, dict(F.build([batch])))
    assert vectors.unnoticed_flips(tmp_path / SEGMENT, "durable-log") == set()


def test_every_cut_is_a_torn_tail(tmp_path: Path) -> None:
    vectors.put(tmp_path, {SEGMENT: vectors.read(segment_name("three"))})
    vectors.assert_cuts_are_torn(tmp_path / SEGMENT, [0, 29, 53, 97], "durable-log")


@pytest.mark.parametrize("size", [1, 23, 24, 25, 100, 4096])
def test_zeros_after_the_records_are_a_clean_end(size: int) -> None:
    rows, end = vectors.judge_all(F.open_segment(vectors.read(segment_name("three")) + bytes(size), 0))
    assert (rows.count, end.ending, end.position) == (3, EndKind.CLEAN, 97)


# --- round trips

LOGS = st.lists(st.tuples(st.integers(1, 5), st.binary(max_size=30)), max_size=12)


@given(LOGS, st.sampled_from([0, 7, 2**40, 2**63 - 1000]))
def test_random_records_survive(steps: list[tuple[int, bytes]], base: int) -> None:
    offsets, at = [], base
    for step, _ in steps:
        offsets.append(at)
        at += step
    values = [value for _, value in steps]
    files = dict(F.build([vectors.batch_of(values, offsets)]))
    with tempfile.TemporaryDirectory() as root:
        vectors.put(Path(root), files)
        report = duramen.verify(root)
        assert report.ok
        assert {finding.code for finding in report.findings} <= {"offset-gap"}
        with duramen.open(root) as log:
            assert [(r.offset, r.value) for r in log.scan()] == list(zip(offsets, values, strict=True))
            for offset, value in zip(offsets, values, strict=True):
                assert log.read(offset).value == value


# --- refusals, names, cursors


@pytest.mark.parametrize(
    ("column", "value"), [("key", b"k"), ("timestamp", 0), ("headers", [{"key": "h", "value": b"v"}])]
)
def test_fields_without_a_place_are_refused(column: str, value: object) -> None:
    batch = pa.RecordBatch.from_pydict(
        {"value": [b"v"], column: [value]}, schema=pa.schema([SCHEMA.field("value"), SCHEMA.field(column)])
    )
    with pytest.raises(UnsupportedFieldError, match=f"durable-log.*{column}"):
        F.encode(batch, ScanPosition(0, -1))
    nothing = batch.set_column(1, SCHEMA.field(column), pa.nulls(1, SCHEMA.field(column).type))
    assert len(F.encode(nothing, ScanPosition(0, -1)).data) == HEADER.size + 1


def test_null_values_and_disorder_are_refused() -> None:
    nulls = pa.RecordBatch.from_pydict({"value": pa.array([None], pa.binary())})
    with pytest.raises(UnsupportedFieldError, match="null"):
        F.encode(nulls, ScanPosition(0, -1))
    for offsets in ([1, 1], [2, 1], [0, 5]):
        with pytest.raises(UsageError, match="increase"):
            F.encode(vectors.batch_of([b"", b""], offsets), ScanPosition(0, 0))


def test_offsets_are_assigned_where_the_batch_has_none() -> None:
    encoded = F.encode(pa.RecordBatch.from_pydict({"value": [b"a", b"b"]}), ScanPosition(100, 41))
    assert encoded.rows.columns.offset.tolist() == [42, 43]
    assert encoded.rows.columns.position.tolist() == [100, 125]
    assert encoded.rows.cursor == ScanPosition(150, 43)


def test_names() -> None:
    assert F.classify("segment_00000000000000000007.log") == FileName(Role.SEGMENT, 7)
    assert F.classify("segment_00000000000000000007.idx") == FileName(Role.INDEX, 7)
    assert F.classify("write.lock") == FileName(Role.LOCK)
    for stray in (
        "segment_7.log", "segment_00000000000000000007.log~", ".segment_00000000000000000007.log.swp",
        "Segment_00000000000000000007.log", "sub/segment_00000000000000000007.log", "",
    ):  # fmt: skip
        assert F.classify(stray) is None
    for role in (Role.SEGMENT, Role.INDEX, Role.LOCK):
        assert vectors.role_of(F, F.path_of(role, 7)) == role


@pytest.mark.parametrize("number", ["0009223372036854775808", "99999999999999999999"])
def test_a_base_that_no_offset_can_reach(number: str, tmp_path: Path) -> None:
    """2⁶³ and above: the name has the right form, and no record can ever be in it."""
    vectors.put(tmp_path, {f"segment_{number[-20:]}.log": vectors.read(segment_name("three"))})
    report = duramen.verify(tmp_path, format="durable-log")
    assert report.records == 0 or not report.ok


def test_a_single_file_says_its_base_itself() -> None:
    segment = F.open_segment(vectors.read(segment_name("three_base7")), None)
    assert (segment.base_offset, vectors.scan_all(segment).count) == (7, 3)
    assert F.open_segment(b"", None).base_offset == 0


def test_an_index_entry_that_lies_gives_no_cursor() -> None:
    segment = F.open_segment(vectors.read(segment_name("three")), 0)
    for offset, position in [(1, 28), (1, 30), (2, 29), (0, 97), (3, 97), (1, -1), (-1, 0), (0, 2**63 - 1)]:
        assert segment.cursor_at(offset, position) is None


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 47])
def test_a_short_index_keeps_its_whole_entries(size: int) -> None:
    data = vectors.read("durable-log/three/segment_00000000000000000000.idx")[:size]
    index = F.open_index(Role.INDEX, data, 0)
    assert (len(index), index.rest_bytes) == divmod(size, ENTRY.size)
    blocks = list(F.dump(Role.INDEX, data))
    assert [b.problem is None for b in blocks] == [True] * (size // 16) + [False] * bool(size % 16)


def test_resync_finds_the_next_record() -> None:
    segment = F.open_segment(vectors.read(segment_name("three")), 0)
    assert segment.resync(ScanPosition(0, -1)) == 29
    assert segment.resync(ScanPosition(29, 0)) == 53
    assert segment.resync(ScanPosition(53, 1)) == NOT_FOUND
    assert segment.resync(ScanPosition(97, 2)) == NOT_FOUND


def test_the_layout_is_the_declared_header() -> None:
    """The one table that the kernel walks, against the struct that `dump` shows."""
    assert DIALECT.layout.header_bytes == HEADER.size == 24
    assert {const.position for const in DIALECT.layout.consts} == {0, 4, 5, 6}
    assert (DIALECT.layout.offset_at, DIALECT.layout.length_at, DIALECT.layout.checksum_at) == (8, 16, 20)
