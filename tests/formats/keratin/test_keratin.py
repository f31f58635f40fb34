"""Keratin v0: the golden files byte by byte, every flipped bit, every cut, indexes, manifests, random round trips."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duramen.errors import CorruptionError, DuramenError, IncompleteHeaderError, UnknownVersionError, UsageError
from duramen.formats import Encoded, FileName, Role, Rows, ScanPosition, Segment, SegmentSummary, Severity, stroma
from duramen.formats.keratin.keratin import (
    DIALECT,
    HEADER,
    LOG_HEADER,
    MAX_RELATIVE_OFFSET,
    Keratin,
    Manifest,
    SealedSegment,
    SparseIndex,
)
from duramen.formats.struct import Block
from duramen.kernel.layout import NOT_FOUND, FrameColumns, ScanEnd, Stop
from duramen.record import COLUMNS, SCHEMA, Record

TS = 1_700_000_000_000
WHEN = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
PAYLOADS = [b"hello", b"", b"\x00\xff" * 10]
ALL = (*COLUMNS, "flags", "reserved0")
K = Keratin()

SEGMENTS = ["segments/empty", "segments/three", "segments/three_hdr", "stroma-impl/events/orders/0000000000/segments"]
MANIFESTS = {
    "spec_fresh": "spec",
    "spec_one_sealed": "spec",
    "impl_v1": "program v1",
    "impl_v2": "program v2",
    "impl_v3": "program v3",
}
THREE = "segments/three/00000000000000000000"


@pytest.fixture(scope="session")
def keratin(golden: Path) -> Path:
    return golden / "keratin"


@pytest.fixture(scope="session")
def three(keratin: Path) -> bytes:
    return (keratin / f"{THREE}.log").read_bytes()


def one_log(directory: Path) -> tuple[bytes, int]:
    (path,) = directory.glob("*.log")
    return path.read_bytes(), int(path.stem)


def scan_all(segment: Segment) -> Rows:
    """All rows in one step, however the segment ends."""
    return segment.scan(segment.start, max_records=1 << 20, max_bytes=1 << 40)


def batch_of(count: int, base: int = 0, size: int = 0) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {"offset": range(base, base + count), "value": [b"x" * size] * count},
        schema=pa.schema([SCHEMA.field("offset"), SCHEMA.field("value")]),
    )


def flips(data: bytes) -> Iterator[tuple[int, bytes]]:
    for bit in range(len(data) * 8):
        at = bit // 8
        yield at, data[:at] + bytes([data[at] ^ 1 << bit % 8]) + data[at + 1 :]


# --- segments: the golden files


@pytest.mark.parametrize("name", SEGMENTS)
def test_segments_decode_and_encode_to_the_same_bytes(keratin: Path, vectors: dict[str, Any], name: str) -> None:
    data, base = one_log(keratin / name)
    segment = K.open_segment(data, base)
    rows = scan_all(segment)
    assert (rows.stop, rows.end.position) == (Stop.END, len(data))
    batch = segment.decode(rows, ALL)
    batch.validate(full=True)
    encoded = K.encode(batch, segment.start)
    assert K.segment_header(base, TS) + bytes(encoded.data) == data
    assert_same_rows(encoded.rows, rows)
    expect = vectors.get(f"keratin/{name}/{base:020}.log", {}).get("expect")
    if expect is not None:
        assert rows.end.position == expect["valid_bytes"]
        assert rows.end.last_offset + 1 == expect["next_offset"]
        assert rows.columns.position.tolist() == expect.get("positions", [])
        assert batch.column("value").to_pylist() == [bytes.fromhex(r["payload"]) for r in expect["records"]]
        assert batch.column("flags").to_pylist() == [r["flags"] for r in expect["records"]]
        times = batch.column("timestamp").cast(pa.int64()).to_pylist()
        assert times == [r["timestamp_ms"] * 1000 for r in expect["records"]]
        blocks = [bytes.fromhex(r["headers"]) for r in expect["records"]]
        headers = [[{"key": "", "value": block}] if block else None for block in blocks]
        assert batch.column("headers").to_pylist() == headers


def assert_same_rows(left: Rows, right: Rows) -> None:
    assert (left.count, left.end) == (right.count, right.end)
    for name, column in vars(left.columns).items():
        assert column.tolist() == getattr(right.columns, name).tolist(), name


def test_one_record_is_read_by_its_offset(keratin: Path) -> None:
    data, base = one_log(keratin / "segments/three_hdr")
    segment = K.open_segment(data, base)
    assert segment.read(segment.start, 1000) == Record(1000, WHEN, None, b"hello", [("", b"k=v")])
    assert segment.read(segment.start, 1002).value == PAYLOADS[2]
    assert segment.read(segment.start, 1003) == Stop.END
    assert segment.cursor_at(1001, 112) == ScanPosition(112, 1000)
    assert segment.cursor_at(1001, 113) is None


def test_events_of_the_stroma_program_are_records(keratin: Path) -> None:
    data, base = one_log(keratin / SEGMENTS[3])
    segment = K.open_segment(data, base)
    payloads = segment.decode(scan_all(segment), ["value"]).column("value").to_pylist()
    assert len(payloads) == 8
    assert all(map(stroma.is_program_event, payloads))
    assert not stroma.is_program_event(b"STROM")


# --- segments: the negative files


@pytest.mark.parametrize(
    ("name", "stop"),
    [
        ("bad_crc_mid", Stop.BAD_CHECKSUM),
        ("prealloc_zeros", Stop.ZEROS),
        ("torn_crc", Stop.SHORT_BODY),
        ("torn_fixed", Stop.SHORT_HEADER),
    ],
)
def test_where_and_why_a_scan_stops(keratin: Path, vectors: dict[str, Any], name: str, stop: Stop) -> None:
    data = (keratin / f"negative/{name}.log").read_bytes()
    expect = vectors[f"keratin/negative/{name}.log"]["expect"]
    segment = K.open_segment(data, 0)
    rows = scan_all(segment)
    assert (rows.count, rows.end.position) == (expect["valid_records"], expect["valid_bytes"])
    assert rows.stop == stop
    found = segment.resync(rows.cursor)
    assert found == (145 if name == "bad_crc_mid" else NOT_FOUND)
    if found != NOT_FOUND:
        after = segment.scan(ScanPosition(found, rows.end.last_offset))
        assert segment.decode(after, ["offset", "value"]).to_pylist() == [{"offset": 2, "value": PAYLOADS[2]}]


def test_a_damaged_file_header_raises(keratin: Path) -> None:
    data = (keratin / "negative/bad_header_crc.log").read_bytes()
    with pytest.raises(CorruptionError, match="checksum mismatch in the file header") as caught:
        K.open_segment(data, 0)
    assert caught.value.position == 64
    assert not isinstance(caught.value, IncompleteHeaderError)


def test_a_torn_file_header_is_not_a_damaged_one(keratin: Path, three: bytes) -> None:
    data = (keratin / "negative/torn_header.log").read_bytes()
    for length in range(1, 68):
        with pytest.raises(IncompleteHeaderError, match=f"torn: {length} bytes of 68") as caught:
            K.open_segment(three[:length], 0)
        assert caught.value.position == 0
    with pytest.raises(IncompleteHeaderError):
        K.open_segment(data, 0)
    with pytest.raises(CorruptionError, match="magic") as wrong:
        K.open_segment(b"KLOX" + data[4:], 0)
    assert not isinstance(wrong.value, IncompleteHeaderError)


@pytest.mark.parametrize("length", [0, 1, 68, 5000])
def test_a_file_of_zeros_is_a_segment_without_a_header(length: int) -> None:
    segment = K.open_segment(bytes(length), 7)
    rows = segment.scan(segment.start)
    assert (segment.base_offset, segment.start) == (7, ScanPosition(0, 6))
    assert (rows.count, rows.end.position, rows.stop.clean) == (0, 0, True)


# --- segments: flips and cuts


def test_every_flipped_bit_of_a_segment_is_found(three: bytes) -> None:
    for position, damaged in flips(three):
        if position < LOG_HEADER.size:
            with pytest.raises(CorruptionError):
                K.open_segment(damaged, 0)
            continue
        rows = scan_all(K.open_segment(damaged, 0))
        assert not rows.stop.clean
        assert rows.end.position <= position
        start = max(p for p in (68, 109, 145) if p <= position)
        if position < start + 2:  # outside of the checksum, judged by value
            assert rows.stop == Stop.BAD_MAGIC


def test_every_cut_of_a_segment_gives_the_records_before(three: bytes) -> None:
    ends = [68, 109, 145, 201]
    for length in range(68, len(three) + 1):
        rows = scan_all(K.open_segment(three[:length], 0))
        whole = sum(end <= length for end in ends) - 1
        assert (rows.count, rows.end.position) == (whole, ends[whole])
        assert rows.stop.clean == (length in ends)


def test_unknown_versions(three: bytes) -> None:
    with pytest.raises(UnknownVersionError, match="version 2") as caught:
        K.open_segment(three[:8] + b"\0\2" + three[10:], 0)
    assert caught.value.position == 8
    with pytest.raises(UnknownVersionError):
        K.open_segment(three[:8] + b"\0\2", 0)
    record = three[:111] + b"\0\2" + three[113:]
    assert scan_all(K.open_segment(record, 0)).stop == Stop.BAD_VERSION


def test_the_base_offset_is_the_one_in_the_name(three: bytes) -> None:
    with pytest.raises(CorruptionError, match="base offset 0, the file name says 5") as caught:
        K.open_segment(three, 5)
    assert caught.value.position == 16
    assert K.open_segment(three, None).base_offset == 0
    far = LOG_HEADER.pack(base_offset=2**63)
    with pytest.raises(CorruptionError, match="63 bits"):
        K.open_segment(far, None)


@pytest.mark.parametrize("extra", [1, 32, 400])
def test_a_longer_header_is_accepted(three: bytes, extra: int) -> None:
    header = bytearray(three[:64] + b"?" * extra)
    header[12:16] = (68 + extra).to_bytes(4, "big")
    data = stroma.with_crc(bytes(header)) + three[68:]
    segment = K.open_segment(data, 0)
    rows = scan_all(segment)
    assert (segment.start.position, rows.count, rows.stop) == (68 + extra, 3, Stop.END)
    blocks = list(K.dump(Role.SEGMENT, data, 0))
    names = [(field.name, field.length) for field in blocks[0].fields]
    assert names[-2:] == [("extension", extra), ("header_crc32c", 4)]
    assert [block.title for block in blocks] == ["hdr", "rec0", "rec1", "rec2"]
    with pytest.raises(CorruptionError, match="checksum"):
        K.open_segment(data[:64] + b"!" + data[65:], 0)
    with pytest.raises(CorruptionError, match=f"claims {68 + extra} bytes"):
        K.open_segment(data[: 67 + extra], 0)


def test_a_shorter_header_is_not(three: bytes) -> None:
    header = bytearray(three[:36])
    header[12:16] = (40).to_bytes(4, "big")
    with pytest.raises(CorruptionError, match="claims 40 bytes") as caught:
        K.open_segment(stroma.with_crc(bytes(header)) + three[40:], 0)
    assert caught.value.position == 12


# --- encoding


values = st.binary(max_size=40)
records = st.fixed_dictionaries(
    {
        "gap": st.sampled_from([1, 1, 1, 5, 2**33]),
        "timestamp": st.integers(0, 2**43),
        "key": st.none() | st.binary(max_size=8),
        "value": values,
        "headers": st.none() | st.lists(st.tuples(st.text(max_size=4), st.none() | values), min_size=1, max_size=3),
        "flags": st.integers(0, 2**16 - 1),
        "reserved0": st.integers(0, 2**16 - 1),
    }
)


def make_batch(rows: list[dict[str, Any]], base: int) -> pa.RecordBatch:
    offsets = base - 1 + np.cumsum([row["gap"] for row in rows], dtype=np.int64)
    schema = pa.schema([*SCHEMA, pa.field("flags", pa.uint16()), pa.field("reserved0", pa.uint16())])
    columns = {name: [row[name] for row in rows] for name in schema.names if name != "offset"}
    columns["timestamp"] = [when * 1000 for when in columns["timestamp"]]
    return pa.RecordBatch.from_pydict({"offset": offsets, **columns}, schema=schema)


@given(st.lists(records, max_size=6), st.sampled_from([0, 1000, 2**62]))
def test_random_records_survive(rows: list[dict[str, Any]], base: int) -> None:
    batch = make_batch(rows, base)
    header = K.segment_header(base, TS)
    encoded = K.encode(batch, ScanPosition(len(header), base - 1))
    data = header + bytes(encoded.data)
    segment = K.open_segment(data, base)
    scanned = scan_all(segment)
    assert scanned.stop == Stop.END
    assert_same_rows(encoded.rows, scanned)
    decoded = segment.decode(scanned, ALL)
    decoded.validate(full=True)
    assert decoded.to_pydict() == batch.to_pydict()
    for row in batch.to_pylist():
        record = segment.read(segment.start, row["offset"])
        headers = None if row["headers"] is None else [(h["key"], h["value"]) for h in row["headers"]]
        assert record == Record(row["offset"], row["timestamp"], row["key"], row["value"], headers)
    again = K.encode(segment.decode(scanned, ALL), segment.start)
    assert bytes(again.data) == bytes(encoded.data)


def foreign_record(offset: int, block: bytes, payload: bytes, flags: int, timestamp_ms: int) -> bytes:
    """A record made by hand: what another program may write."""
    header = HEADER.pack(
        magic=0x4B52, version=1, flags=flags, reserved0=7, header_len=len(block), payload_len=len(payload),
        timestamp_ms=timestamp_ms, offset=offset,
    )  # fmt: skip
    return header[:2] + stroma.with_crc(header[2:] + block + payload)


@given(
    st.lists(
        st.tuples(
            st.one_of(st.binary(max_size=12), st.binary(max_size=12).map(lambda tail: b"\xc1DH\x01" + tail)),
            values,
            st.integers(0, 2**16 - 1),
        ),
        max_size=5,
    )
)
def test_records_of_others_round_trip_exactly(rows: list[tuple[bytes, bytes, int]]) -> None:
    records = [foreign_record(n, block, payload, flags, TS + n) for n, (block, payload, flags) in enumerate(rows)]
    data = K.segment_header(0, TS) + b"".join(records)
    segment = K.open_segment(data, 0)
    scanned = scan_all(segment)
    assert (scanned.count, scanned.stop) == (len(rows), Stop.END)
    assert bytes(K.encode(segment.decode(scanned, ALL), segment.start).data) == data[68:]


def test_columns_that_are_absent_are_zero_or_null() -> None:
    encoded = K.encode(batch_of(2, size=1), ScanPosition(68, -1))
    segment = K.open_segment(K.segment_header(0, TS) + bytes(encoded.data), 0)
    decoded = segment.decode(scan_all(segment), ALL).to_pylist()
    assert decoded[1] == {
        "offset": 1, "timestamp": datetime(1970, 1, 1, tzinfo=UTC), "key": None, "value": b"x", "headers": None,
        "flags": 0, "reserved0": 0,
    }  # fmt: skip


def test_flags_must_fit() -> None:
    batch = batch_of(1).append_column("flags", pa.array([2**16]))
    with pytest.raises(UsageError, match="16 bits"):
        K.encode(batch, ScanPosition(68, -1))


# --- indexes


def built(segment: Segment, stride: int, step: int = 1 << 20, base: int = 0) -> dict[Role, bytes]:
    builder = Keratin(index_stride_bytes=stride).index_builder(base, TS)
    cursor = segment.start
    while True:
        rows = segment.scan(cursor, max_records=step)
        builder.add(rows)
        cursor = rows.cursor
        if rows.stop != Stop.LIMIT:
            return builder.build()


@pytest.mark.parametrize("step", [1, 2, 3])
def test_index_policy(keratin: Path, three: bytes, step: int) -> None:
    segment = K.open_segment(three, 0)
    default = K.index_builder(0, TS)
    default.add(scan_all(segment))
    assert default.build()[Role.INDEX] == (keratin / f"{THREE}.idx").read_bytes()
    assert built(segment, 40, step)[Role.INDEX] == (keratin / f"{THREE}.idx.stride40.spec").read_bytes()
    dense = built(segment, 1, step)
    assert dense[Role.TIME_INDEX] == (keratin / f"{THREE}.tidx").read_bytes()
    assert K.open_index(Role.INDEX, dense[Role.INDEX], 0).offsets.tolist() == [0, 1, 2]
    assert (
        K.index_builder(0, TS).build()[Role.INDEX] == (keratin / "segments/empty/00000000000000000000.idx").read_bytes()
    )


@pytest.mark.parametrize(("stride", "indexed"), [(79, [1, 3, 5]), (80, [1, 3, 5]), (81, [2, 5]), (241, [])])
def test_index_policy_at_the_edge(stride: int, indexed: list[int]) -> None:
    """Six records of 40 bytes: reaching the stride exactly is enough, and the count starts again at 0."""
    encoded = K.encode(batch_of(6, size=4), ScanPosition(68, -1))
    builder = SparseIndex(0, TS, stride)
    builder.add(encoded.rows)
    assert K.open_index(Role.INDEX, builder.build()[Role.INDEX], 0).offsets.tolist() == indexed


@given(st.lists(st.integers(0, 60), min_size=1, max_size=30), st.integers(1, 300), st.integers(1, 31))
def test_index_policy_as_a_loop(sizes: list[int], stride: int, step: int) -> None:
    """The rule, one record after the other, against the vectorised builder."""
    times = pa.array([TS] * len(sizes), pa.timestamp("ms", tz="UTC"))
    batch = pa.RecordBatch.from_pydict({"timestamp": times, "value": [b"x" * size for size in sizes]})
    encoded = K.encode(batch, ScanPosition(68, -1))
    segment = K.open_segment(K.segment_header(0, TS) + bytes(encoded.data), 0)
    expected, since, position = [], 0, 68
    for offset, size in enumerate(sizes):
        since += size + 36
        if since >= stride:
            expected.append((offset, position))
            since = 0
        position += size + 36
    derived = built(segment, stride, step)
    index = K.open_index(Role.INDEX, derived[Role.INDEX], 0)
    assert list(zip(index.offsets.tolist(), index.positions.tolist(), strict=True)) == expected
    time_index = K.open_index(Role.TIME_INDEX, derived[Role.TIME_INDEX], 0)
    assert time_index.offsets.tolist() == [offset for offset, _ in expected]
    assert all(segment.cursor_at(*entry) is not None for entry in expected)


@pytest.mark.parametrize("suffix", [".idx.stride1.impl", ".idx.stride40.impl", ".idx.stride40.spec"])
def test_indexes_of_either_policy_are_read(keratin: Path, three: bytes, vectors: dict[str, Any], suffix: str) -> None:
    name = f"{THREE}{suffix}"
    index = K.open_index(Role.INDEX, (keratin / name).read_bytes(), 0)
    fields = {f["name"]: int(f["value"].split()[0]) for f in vectors[f"keratin/{name}"]["fields"][10:]}
    expected = [(fields[f"entry{n}.rel_offset"], fields[f"entry{n}.file_pos"]) for n in range(len(fields) // 3)]
    assert list(zip(index.offsets.tolist(), index.positions.tolist(), strict=True)) == expected
    assert index.floor(2) == expected[-1]
    segment = K.open_segment(three, 0)
    assert all(segment.cursor_at(*entry) is not None for entry in expected)


def test_the_time_index(keratin: Path) -> None:
    index = K.open_index(Role.TIME_INDEX, (keratin / f"{THREE}.tidx").read_bytes(), 0)
    assert index.timestamps_us.tolist() == [(TS + n) * 1000 for n in range(3)]
    assert index.positions is None
    assert [index.floor_time((TS + n) * 1000) for n in (-5, 0, 1, 9)] == [None, None, 0, 2]


def test_an_index_adds_its_base() -> None:
    base = 2**62
    rows = K.encode(batch_of(3, base), ScanPosition(68, base - 1)).rows
    builder = Keratin(index_stride_bytes=1).index_builder(base, TS)
    builder.add(rows)
    derived = builder.build()
    assert K.open_index(Role.INDEX, derived[Role.INDEX], base).offsets.tolist() == [base, base + 1, base + 2]
    assert K.open_index(Role.INDEX, derived[Role.INDEX], base + 1) is None


def test_an_entry_that_does_not_fit_is_left_out() -> None:
    far = MAX_RELATIVE_OFFSET
    batch = pa.RecordBatch.from_pydict({"offset": [10, 10 + far, 11 + far], "value": [b"", b"", b""]})
    builder = SparseIndex(10, TS, 1)
    builder.add(K.encode(batch, ScanPosition(68, 9)).rows)
    derived = builder.build()
    assert K.open_index(Role.INDEX, derived[Role.INDEX], 10).offsets.tolist() == [10, 10 + far]
    assert K.open_index(Role.TIME_INDEX, derived[Role.TIME_INDEX], 10).offsets.tolist() == [10, 10 + far]


@pytest.mark.parametrize("role", [Role.INDEX, Role.TIME_INDEX])
def test_an_index_is_read_as_far_as_it_goes(three: bytes, role: Role) -> None:
    data = built(K.open_segment(three, 0), 1)[role]
    for length in range(len(data)):
        index = K.open_index(role, data[:length], 0)
        if length < 72:
            assert index is None
            continue
        assert (len(index), index.rest_bytes) == ((length - 72) // 16, rest(data[72:length]))
    for tail in (8, 16, 100):
        index = K.open_index(role, data + bytes(tail), 0)
        assert (len(index), index.rest_bytes) == (3, 0)
    name = FileName(role, 0)
    assert list(K.check_file(role, data, name)) == []
    for position, damaged in flips(data):
        problems = list(K.check_file(role, damaged, name))
        if position < 72:
            assert K.open_index(role, damaged, 0) is None
            assert [problem.code for problem in problems] == ["bad-index"]
        else:  # entries have no checksum: whoever follows one checks what it finds
            assert len(K.open_index(role, damaged, 0)) == 3


def rest(entries: bytes) -> int:
    """The bytes of a torn entry; zeros are none."""
    torn = entries[len(entries) // 16 * 16 :]
    return len(torn) if torn.strip(b"\0") else 0


def test_a_time_before_1970_or_far_away_does_not_break_the_index() -> None:
    columns = FrameColumns.empty(2)
    for name, values in vars(columns).items():
        values[:] = {"offset": [0, 1], "timestamp": [-5, 2**62], "position": [68, 104]}.get(name, [100, 136])
    columns.value_length[:] = 0
    builder = SparseIndex(0, TS, 1)
    builder.add(Rows(columns, 2, ScanEnd(2, 140, 0, 1)))
    index = K.open_index(Role.TIME_INDEX, builder.build()[Role.TIME_INDEX], 0)
    assert index.timestamps_us.tolist() == [-5000, (2**63 - 1) // 1000 * 1000]


# --- the manifest


@pytest.mark.parametrize("name", MANIFESTS)
def test_manifests_decode_and_encode_to_the_same_bytes(keratin: Path, vectors: dict[str, Any], name: str) -> None:
    data = (keratin / f"manifest/{name}/manifest.bin").read_bytes()
    manifest = Manifest.decode(data)
    assert manifest.encode() == data
    for field in vectors[f"keratin/manifest/{name}/manifest.bin"]["fields"]:
        if hasattr(manifest, field["name"]) and field["value"][0].isdigit():
            assert getattr(manifest, field["name"]) == int(field["value"].split()[0]), field["name"]
    assert manifest.layout == MANIFESTS[name]
    assert list(K.check_file(Role.MANIFEST, data, FileName(Role.MANIFEST))) == []


def test_manifest_facts(keratin: Path) -> None:
    data = (keratin / "manifest/spec_one_sealed/manifest.bin").read_bytes()
    assert Manifest.decode(data).segments == (SealedSegment(0, 2, 201, 72),)
    facts = K.describe({"manifest.bin": data, "other": b""})["manifest"]
    assert (facts["next_offset"], facts["segments"][0]["log_bytes"]) == (3, 201)
    facts = K.describe({"manifest.bin": (keratin / "manifest/impl_v2/manifest.bin").read_bytes()})["manifest"]
    assert (facts["layout"], facts["epoch"], facts["clean_shutdown"]) == ("program v2", 7, True)
    assert "checksum" in K.describe({"manifest.bin": data[:-1] + b"!"})["manifest"]


def test_the_manifest_of_a_log(keratin: Path) -> None:
    def written(*segments: SegmentSummary, **options: int) -> bytes:
        return Keratin(**options).log_files(segments, TS)["manifest.bin"]

    fresh = (keratin / "manifest/spec_fresh/manifest.bin").read_bytes()
    sealed = (keratin / "manifest/spec_one_sealed/manifest.bin").read_bytes()
    assert written(SegmentSummary(0, -1, 68, 72)) == written() == fresh
    first = SegmentSummary(0, 2, 201, 72)
    assert written(first, SegmentSummary(3, 2, 68, 72)) == sealed
    assert written(first, SegmentSummary(3, 2, 68, 72), SegmentSummary(3, 2, 68, 72)) == sealed  # an empty one
    options = {"segment_max_bytes": 1, "index_stride_bytes": 2, "max_open_segments": 3}
    manifest = Manifest.decode(written(**options))
    assert {name: getattr(manifest, name) for name in options} == options


@pytest.mark.parametrize("name", MANIFESTS)
def test_every_flipped_bit_of_a_manifest_is_found(keratin: Path, name: str) -> None:
    data = (keratin / f"manifest/{name}/manifest.bin").read_bytes()
    for position, damaged in flips(data):
        if name in ("impl_v2", "impl_v3") and position == 11 and damaged[11] ^ data[11] == 1:
            assert Manifest.decode(damaged).flags == data[11] ^ 1  # a clean shutdown or not: both are legal
            continue
        with pytest.raises(CorruptionError):
            Manifest.decode(damaged)
        assert len(list(K.check_file(Role.MANIFEST, damaged, FileName(Role.MANIFEST)))) == 1


@pytest.mark.parametrize("name", MANIFESTS)
def test_every_cut_of_a_manifest_is_found(keratin: Path, name: str) -> None:
    data = (keratin / f"manifest/{name}/manifest.bin").read_bytes()
    for length in range(len(data)):
        with pytest.raises(CorruptionError):
            Manifest.decode(data[:length])


u64, u32 = st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1)


@given(st.sampled_from(sorted(set(MANIFESTS.values()))), st.data())
def test_random_manifests_survive(layout: str, data: st.DataObject) -> None:
    own: dict[str, Any] = {"head_offset": data.draw(u64), "reserved0": data.draw(u32)}
    if layout == "spec":
        sealed = st.lists(st.builds(SealedSegment, u64, u64, u64, u64), max_size=4).map(tuple)
        own = {"max_open_segments": 7, "reserved0": data.draw(st.integers(0, 2**16 - 1)), "segments": data.draw(sealed)}
    if layout in ("program v2", "program v3"):
        own |= {"epoch": data.draw(u64), "flags": data.draw(st.integers(0, 1))}
    if layout == "program v3":
        own["shared_marker"] = data.draw(st.binary(min_size=8, max_size=8))
    common = [data.draw(u64), data.draw(u64), data.draw(u32)]
    manifest = Manifest(*common, active_base_offset=data.draw(u64), next_offset=data.draw(u64), layout=layout, **own)
    assert Manifest.decode(manifest.encode()) == manifest


def test_no_length_belongs_to_two_manifests() -> None:
    assert not {44 + 32 * n for n in range(10)} & {48, 56, 64}


def resum(data: bytes) -> bytes:
    return data[:16] + stroma.with_crc(data[20:])[-4:] + data[20:]


def test_a_count_that_is_wrong_under_a_checksum_that_is_right(keratin: Path) -> None:
    data = bytearray((keratin / "manifest/spec_one_sealed/manifest.bin").read_bytes())
    data[60:64] = b"\xff\xff\xff\xff"
    with pytest.raises(CorruptionError, match="76 bytes"):
        Manifest.decode(resum(bytes(data)))


def test_a_longer_manifest_header_is_accepted(keratin: Path) -> None:
    data = (keratin / "manifest/spec_one_sealed/manifest.bin").read_bytes()
    longer = resum(data[:12] + (24).to_bytes(4, "big") + data[16:20] + b"more" + data[20:])
    assert Manifest.decode(longer) == Manifest.decode(data)


def test_an_unknown_version_of_the_manifest(keratin: Path) -> None:
    data = (keratin / "manifest/spec_fresh/manifest.bin").read_bytes()
    strange = data[:8] + b"\0\x09" + data[10:]
    with pytest.raises(UnknownVersionError):
        Manifest.decode(strange)
    (problem,) = K.check_file(Role.MANIFEST, strange, FileName(Role.MANIFEST))
    assert (problem.code, problem.severity, problem.position) == ("unknown-manifest", Severity.DAMAGE, 8)


def test_numbers_of_a_manifest_that_contradict_each_other() -> None:
    backwards = Manifest(TS, active_base_offset=9, next_offset=3)
    overlapping = Manifest(
        TS, active_base_offset=9, next_offset=9, segments=(SealedSegment(0, 5, 1, 1), SealedSegment(5, 8, 1, 1))
    )
    for manifest in (backwards, overlapping):
        (problem,) = K.check_file(Role.MANIFEST, manifest.encode(), FileName(Role.MANIFEST))
        assert problem.severity == Severity.WARNING
    with pytest.raises(UsageError, match="fit"):
        Manifest(-1).encode()


def test_a_manifest_ahead_of_the_data_means_lost_data() -> None:
    files = Keratin().log_files(
        [SegmentSummary(0, 4, 1, 1), SegmentSummary(5, 8, 1, 1), SegmentSummary(9, 11, 1, 1)], TS
    )

    def found(*segments: SegmentSummary) -> list[tuple[str, str, int | None]]:
        return [(p.code, str(p.severity), p.offset) for _, p in K.check_log(files, segments)]

    first, second, third = SegmentSummary(0, 4, 1, 1), SegmentSummary(5, 8, 1, 1), SegmentSummary(9, 11, 1, 1)
    assert found(first, second, third) == []
    assert found(first, second, third._replace(last_offset=20)) == []  # the manifest is behind
    assert found(first, second, third._replace(last_offset=10)) == [("manifest-ahead", "damage", 11)]
    assert found(first, second._replace(last_offset=6), third) == [("manifest-ahead", "damage", 7)]
    assert found(first, third) == [("manifest-ahead", "damage", 5)]
    assert found(second, third) == [("stale-manifest", "note", 0)]
    assert [finding[2] for finding in found()] == [0, 5, 0]
    assert list(K.check_log({}, [first])) == []
    assert list(K.check_log({"manifest.bin": b"?"}, [first])) == []


# --- names and options


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("manifest.bin", FileName(Role.MANIFEST)),
        ("tmp/manifest.new", FileName(Role.LEFTOVER)),
        ("segments/00000000000000000007.log", FileName(Role.SEGMENT, 7)),
        ("segments/00000000000000000007.idx", FileName(Role.INDEX, 7)),
        ("segments/00000000000000000007.tidx", FileName(Role.TIME_INDEX, 7)),
        ("groups/orders-0_billing.snap", FileName(Role.GROUP_SNAPSHOT)),
        ("groups/orders-0_billing.delta", FileName(Role.GROUP_DELTA)),
        ("segments/00000000000000000007.log~", None),
        ("segments/7.log", None),
        ("segments/99999999999999999999.log", None),
        ("00000000000000000007.log", None),
        ("segments/" + "\u0660" * 20 + ".log", None),  # digits, but not ours
        ("groups/notes.snap", None),
        ("segments/.nfs0001", None),
    ],
)
def test_names(path: str, name: FileName | None) -> None:
    assert K.classify(path) == name
    if name is not None and name.role not in (Role.GROUP_SNAPSHOT, Role.GROUP_DELTA):
        assert K.path_of(*name) == path


def test_options() -> None:
    assert Keratin(index_stride_bytes="512").options == {"index_stride_bytes": 512}
    for wrong in ({"index_stride_bytes": 0}, {"max_open_segments": 65_536}, {"segment_max_bytes": -1}, {"colour": 1}):
        with pytest.raises(UsageError):
            Keratin(**wrong)


def test_a_whole_log() -> None:
    files = dict(Keratin(index_stride_bytes=1).build([batch_of(3), batch_of(2, 3, 10)], TS))
    roles = [K.classify(path) for path in files]
    assert None not in roles
    assert len(files) == 7
    segment = K.open_segment(files["segments/00000000000000000003.log"], 3)
    assert scan_all(segment).count == 2
    manifest = Manifest.decode(files["manifest.bin"])
    assert (manifest.active_base_offset, manifest.next_offset, len(manifest.segments)) == (3, 5, 1)


# --- groups through the format


def test_group_files(keratin: Path) -> None:
    snapshot = (keratin / "groups/orders-0_billing.snap").read_bytes()
    torn = (keratin / "groups/negative/torn.delta").read_bytes()
    files = {"groups/orders-0_billing.snap": snapshot, "groups/orders-0_billing.delta": torn}
    facts = K.describe(files)
    assert facts["groups/orders-0_billing.snap"] == {"acked_until": 1, "inflight": 2}
    assert facts["groups/orders-0_billing.delta"] == {"events": 4, "bytes": 168}
    assert list(K.check_file(Role.GROUP_SNAPSHOT, snapshot, FileName(Role.GROUP_SNAPSHOT))) == []
    (problem,) = K.check_file(Role.GROUP_DELTA, torn, FileName(Role.GROUP_DELTA))
    assert (problem.code, problem.position) == ("torn-delta", 168)
    foreign = (keratin / "stroma-impl/snapshots/orders/0000000000/orders.snap").read_bytes()
    (problem,) = K.check_file(Role.GROUP_SNAPSHOT, foreign, FileName(Role.GROUP_SNAPSHOT))
    assert problem.code == "foreign-snapshot"


# --- dump


def role_of(path: str) -> Role:
    suffixes = {".log": Role.SEGMENT, ".tidx": Role.TIME_INDEX, "manifest.bin": Role.MANIFEST}
    suffixes |= {".snap": Role.GROUP_SNAPSHOT, ".delta": Role.GROUP_DELTA}
    return next((role for suffix, role in suffixes.items() if path.endswith(suffix)), Role.INDEX)


def test_dump_shows_every_field_of_every_golden_file(golden: Path, vectors: dict[str, Any]) -> None:
    described = {name: v["fields"] for name, v in vectors.items() if name.startswith("keratin/") and v.get("fields")}
    assert len(described) == 20
    for name, wanted in described.items():
        data = (golden / name).read_bytes()
        blocks = list(K.dump(role_of(name), data))
        assert not [block.problem for block in blocks if block.problem], name
        shown = [(block.title, field) for block in blocks for field in block.fields]
        assert [(f.position, f.length) for _, f in shown] == [(w["at"], w["len"]) for w in wanted], name
        for (title, field), want in zip(shown, wanted, strict=True):
            prefix, _, bare = want["name"].rpartition(".")
            assert field.name == bare, name
            assert prefix.partition("(")[0] in ("", title), name
            if want["value"][0].isdigit() and isinstance(field.value, int):
                assert field.value == int(want["value"].split()[0]), name
            else:
                assert field.value == data[field.position : field.position + field.length], name


def whole(blocks: list[Block], length: int) -> bool:
    return all(f.position >= 0 and f.position + f.length <= length for block in blocks for f in block.fields)


def test_dump_survives_any_cut(golden: Path, vectors: dict[str, Any]) -> None:
    for name in vectors:
        if name.startswith("keratin/") and vectors[name]["size"] <= 256:
            data = (golden / name).read_bytes()
            for length in range(len(data)):
                assert whole(list(K.dump(role_of(name), data[:length])), length)


def test_dump_shows_damage(keratin: Path, three: bytes) -> None:
    problems = [
        block.problem for block in K.dump(Role.SEGMENT, (keratin / "negative/bad_header_crc.log").read_bytes(), 0)
    ]
    assert problems == ["checksum mismatch in the file header", None, None, None]
    for position, damaged in list(flips(three))[::5]:
        blocks = list(K.dump(Role.SEGMENT, damaged, 0))
        assert any(block.problem for block in blocks), position
        assert whole(blocks, len(damaged))
    assert [block.title for block in K.dump(Role.SEGMENT, bytes(90), 0)] == ["zeros"]
    assert [block.problem for block in K.dump(Role.SEGMENT, three[:40], 0)] == [
        "the file header is torn: 40 bytes of 68"
    ]
    assert list(K.dump(Role.SEGMENT, b"", 0)) == []


HEADS = [b"", b"KLOG\0\0\0\0\0\1", K.segment_header(0, TS), b"KERATIN\0\0\1\0\0\0\0\0\x14"]
HEADS += [stroma.with_crc(b"KIDX\0\0\0\0" + LOG_HEADER.pack()[8:60])]


@given(st.sampled_from(HEADS), st.binary(max_size=60), st.sampled_from(list(Role)))
def test_any_bytes_raise_nothing_but_our_errors(head: bytes, tail: bytes, role: Role) -> None:
    data = head + tail
    assert whole(list(K.dump(role, data, 0)), len(data))
    list(K.check_file(role, data, FileName(role, 0)))
    K.describe({"manifest.bin": data, "groups/a-0_b.snap": data, "groups/a-0_b.delta": data})
    K.open_index(Role.INDEX, data, 0)
    try:
        segment = K.open_segment(data, 0)
    except DuramenError:
        return
    rows = scan_all(segment)
    segment.decode(rows, ALL)
    segment.resync(rows.cursor)


def test_the_kernel_reads_flags_and_reserved_as_one_number() -> None:
    assert DIALECT.layout.flags_at == HEADER.at("flags") == HEADER.at("reserved0") - 2
    assert isinstance(K.encode(batch_of(1), ScanPosition(68, -1)), Encoded)
