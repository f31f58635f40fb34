"""RustLog: golden files of the document and of the program, negative files, flips, cuts, dialects, checkpoints."""

from __future__ import annotations

import json
import string
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import duramen
from duramen.errors import CorruptionError, UnsupportedFieldError, UsageError
from duramen.formats import FileName, Role, ScanPosition, Severity
from duramen.formats.frame import encode_frames
from duramen.formats.rustlog import (
    CHECKPOINT_BYTES,
    HEADER,
    MAX_RECORD_BYTES,
    SHORT,
    SHORT_HEADER,
    SPEC,
    Checkpoint,
    RustLog,
    dialect_of,
)
from duramen.formats.struct import Struct
from duramen.kernel.layout import NOT_FOUND, Stop
from duramen.log.segments.segment_end import EndKind
from duramen.record import SCHEMA
from tests.formats import vectors
from tests.formats.vectors import GOLDEN, VECTORS

F = RustLog()
TS_US = 1_700_000_000_000_000
SEGMENT = "00000000000000000000.log"
INDEX = "00000000000000000000.index"
DIALECTS = {"spec": SPEC, "impl": SHORT}
GOOD = [(kind, name) for kind in DIALECTS for name in ("empty", "three", "records250")]

# There is no checksum: what `verify` can notice in a log without an index are lengths that lead astray, and offsets
# or times that go backwards. A length is noticed as long as no payload looks like a record.
UNCOVERED = {"spec": {"offset", "timestamp", "payload"}, "impl": {"offset", "payload"}}
COVERED = {"length"}


def records250() -> list[dict[str, Any]]:
    """`vectors.json` lists only their number."""
    return [{"offset": k, "payload": (b"record%d" % k).hex(), "timestamp_us": TS_US + k * 1000} for k in range(250)]


def listed(kind: str, name: str) -> list[dict[str, Any]]:
    return records250() if name == "records250" else vectors.records(f"rustlog/{kind}/{name}/{SEGMENT}")


def batch_of(kind: str, rows: list[dict[str, Any]]) -> pa.RecordBatch:
    values = [bytes.fromhex(row["payload"]) for row in rows]
    times = [row["timestamp_us"] for row in rows] if kind == "spec" else None
    return vectors.batch_of(values, [row["offset"] for row in rows], times)


# --- golden files


@pytest.mark.parametrize(("kind", "name"), GOOD)
def test_segments_decode_as_listed(kind: str, name: str) -> None:
    path = f"rustlog/{kind}/{name}/{SEGMENT}"
    if name != "records250":
        vectors.assert_reads_as_listed(F, path, 0)
    segment = F.open_segment(vectors.read(path), 0)
    rows = vectors.scan_all(segment)
    batch = segment.decode(rows, ("offset", "timestamp", "value"))
    expected = batch_of(kind, listed(kind, name))
    assert batch.column("offset") == expected.column("offset")
    assert batch.column("value") == expected.column("value")
    if kind == "spec":
        assert batch.column("timestamp") == expected.column("timestamp")
    else:
        assert batch.column("timestamp").null_count == rows.count
    if rows.count:
        assert segment.dialect == DIALECTS[kind].name
    assert rows.end.position == VECTORS[path].get("expect", {}).get("valid_bytes", 0)


@pytest.mark.parametrize("name", ["empty", "three", "records250"])
def test_records_encode_to_the_same_bytes(name: str) -> None:
    """The index included."""
    batch = batch_of("spec", listed("spec", name))
    vectors.assert_encodes_to(F, batch, vectors.directory(f"rustlog/spec/{name}"))


@pytest.mark.parametrize("name", ["empty", "three", "records250"])
def test_the_programs_records_encode_to_the_same_bytes(name: str) -> None:
    """Only the document's records are written to a new log; the program's are for a log that has them."""
    encoded = encode_frames(batch_of("impl", listed("impl", name)), ScanPosition(0, -1), SHORT)
    assert bytes(encoded.data) == vectors.read(f"rustlog/impl/{name}/{SEGMENT}")
    builder = F.index_builder(0, 0)
    builder.add(encoded.rows)
    assert builder.build() == {Role.INDEX: vectors.read(f"rustlog/impl/{name}/{INDEX}")}


@pytest.mark.parametrize("name", [n for n in vectors.names("rustlog/") if "fields" in VECTORS[n]])
def test_dump_shows_the_fields_of_the_vectors(name: str) -> None:
    vectors.assert_dump(F.dump(vectors.role_of(F, Path(name).name), vectors.read(name), 0), name)


@pytest.mark.parametrize(("kind", "name"), GOOD)
def test_the_index_is_sparse_and_right(kind: str, name: str) -> None:
    segment = F.open_segment(vectors.read(f"rustlog/{kind}/{name}/{SEGMENT}"), 0)
    index = F.open_index(Role.INDEX, vectors.read(f"rustlog/{kind}/{name}/{INDEX}"), 0)
    rows = vectors.scan_all(segment)
    assert index.offsets.tolist() == rows.columns.offset.tolist()[::100]
    assert index.positions.tolist() == rows.columns.position.tolist()[::100]
    if name == "records250":
        assert index.floor(199) == (100, int(rows.columns.position[100]))
        record = segment.read(segment.cursor_at(*index.floor(199)), 199)
        assert record.value == b"record199"


def test_the_interval_of_the_index_is_an_option() -> None:
    batch = batch_of("spec", records250())
    index = dict(RustLog(index_interval_records=7).build([batch]))[INDEX]
    assert RustLog().open_index(Role.INDEX, index, 0).offsets.tolist() == list(range(0, 250, 7))


def test_an_index_that_is_built_in_steps_is_the_same() -> None:
    batch = batch_of("spec", records250())
    builder, cursor = F.index_builder(0, 0), ScanPosition(0, -1)
    for start, stop in pairwise([0, 1, 99, 100, 101, 201, 250]):
        encoded = F.encode(batch.slice(start, stop - start), cursor)
        builder.add(encoded.rows)
        cursor = encoded.rows.cursor
    assert builder.build()[Role.INDEX] == vectors.read(f"rustlog/spec/records250/{INDEX}")


@pytest.mark.parametrize(("kind", "name"), GOOD)
def test_golden_logs_verify_clean(kind: str, name: str) -> None:
    report = duramen.verify(GOLDEN / "rustlog" / kind / name)
    assert (report.format, report.findings, report.records) == ("rustlog", [], len(listed(kind, name)))


def test_the_lack_of_a_checksum_is_said() -> None:
    assert "none" in duramen.verify(GOLDEN / "rustlog/spec/three").checksum
    assert not F.capabilities.record_checksum


# --- negative files

OUTCOMES = {
    "non_monotonic": ("repeated-offset", EndKind.DAMAGE, Stop.BAD_ORDER),
    "torn_header": ("torn-tail", EndKind.TORN, Stop.SHORT_HEADER),
    "torn_payload": ("torn-tail", EndKind.TORN, Stop.SHORT_BODY),
}


@pytest.mark.parametrize("vector", vectors.names("rustlog/", negative=True))
def test_negative_files(vector: str, tmp_path: Path) -> None:
    code, ending, stop = OUTCOMES[Path(vector).stem]
    expect = VECTORS[vector]["expect"]
    assert (ending == EndKind.DAMAGE) == (expect["action"] == "raise")
    segment = F.open_segment(vectors.read(vector), 0)
    rows, end = vectors.judge_all(segment)
    assert segment.dialect == DIALECTS[vector.split("/")[1]].name
    assert (end.ending, end.stop, end.position) == (ending, stop, expect["valid_bytes"])
    assert rows.count == expect["valid_records"]
    for path in (vectors.put(tmp_path, {SEGMENT: vectors.read(vector)}), tmp_path / SEGMENT):
        report = duramen.verify(path)
        assert report.format == "rustlog"
        (found,) = report.segments
        assert (found.records, found.valid_bytes) == (expect["valid_records"], expect["valid_bytes"])
        assert (code, expect["valid_bytes"]) in vectors.findings(report)
        assert report.ok == (expect["action"] == "truncate")


@pytest.mark.parametrize("kind", DIALECTS)
def test_a_repeated_offset_raises_where_records_are_read(kind: str, tmp_path: Path) -> None:
    path = vectors.put(tmp_path, {SEGMENT: vectors.read(f"rustlog/{kind}/negative/non_monotonic.log")})
    with duramen.open(path, format="rustlog") as log:
        records = log.scan()
        assert [next(records).offset for _ in range(3)] == [0, 1, 2]
        with pytest.raises(duramen.CorruptionError) as caught:
            next(records)
    assert caught.value.position == VECTORS[f"rustlog/{kind}/negative/non_monotonic.log"]["expect"]["valid_bytes"]


# --- flips and cuts


@pytest.mark.parametrize(("kind", "header"), [("spec", HEADER), ("impl", SHORT_HEADER)])
def test_the_table_of_covered_fields_is_complete(kind: str, header: Struct) -> None:
    assert COVERED | UNCOVERED[kind] == {*header.names, "payload"}


@pytest.mark.parametrize("kind", DIALECTS)
def test_every_flipped_bit_is_noticed_or_uncovered(kind: str, tmp_path: Path) -> None:
    rows = [
        {"offset": offset, "payload": payload.hex(), "timestamp_us": TS_US + offset * 1000}
        for offset, payload in [(0, b"hello"), (100, b""), (200, b"\0\xff" * 4)]
    ]
    dialect = DIALECTS[kind]
    encoded = encode_frames(batch_of(kind, rows), ScanPosition(0, -1), dialect)
    vectors.put(tmp_path, {SEGMENT: bytes(encoded.data)})
    bounds = [*encoded.rows.columns.position.tolist(), len(encoded.data)]
    unnoticed = vectors.unnoticed_flips(tmp_path / SEGMENT, "rustlog")
    assert vectors.fields_of(dialect.header, unnoticed, bounds) == UNCOVERED[kind]


# Cut here, the bytes hold a whole record of the other dialect and none of their own: no structure tells which it was.
AMBIGUOUS_CUTS = {"spec": range(0), "impl": range(25, 29)}


@pytest.mark.parametrize("kind", DIALECTS)
def test_every_cut_is_a_torn_tail(kind: str, tmp_path: Path) -> None:
    data = vectors.read(f"rustlog/{kind}/three/{SEGMENT}")
    bounds = [*vectors.scan_all(F.open_segment(data, 0)).columns.position.tolist(), len(data)]
    vectors.put(tmp_path, {SEGMENT: data})
    vectors.assert_cuts_are_torn(tmp_path / SEGMENT, bounds, "rustlog", but=AMBIGUOUS_CUTS[kind])


@pytest.mark.parametrize("kind", DIALECTS)
@pytest.mark.parametrize("size", [1, 11, 12, 19, 20, 21, 4096])
def test_zeros_after_the_records_are_a_clean_end(kind: str, size: int) -> None:
    data = vectors.read(f"rustlog/{kind}/three/{SEGMENT}")
    segment = F.open_segment(data + bytes(size), 0)
    rows, end = vectors.judge_all(segment)
    assert (segment.dialect, rows.count, end.ending, end.position) == (
        DIALECTS[kind].name, 3, EndKind.CLEAN, len(data),
    )  # fmt: skip


# --- dialects


TEXTS = st.text(string.ascii_letters, min_size=1, max_size=40).map(str.encode)


@given(st.lists(TEXTS, min_size=1, max_size=8), st.sampled_from([0, 1, 1000]))
@example([b"A", b"AA", b"AAA"], 0)
def test_the_dialect_is_found_by_walking(payloads: list[bytes], base: int) -> None:
    """Both kinds of records are told apart, as long as no payload is made to look like a header."""
    offsets = list(range(base, base + len(payloads)))
    times = [TS_US + k for k in range(len(payloads))]
    spec = encode_frames(vectors.batch_of(payloads, offsets, times), ScanPosition(0, base - 1), SPEC)
    assert dialect_of(spec.data) is SPEC
    short = encode_frames(vectors.batch_of(payloads, offsets), ScanPosition(0, base - 1), SHORT)
    if len(payloads) > 1 or len(payloads[0]) < 8:
        # One record alone may be explained by both: the document's layout is taken then.
        assert dialect_of(short.data) is SHORT


@pytest.mark.parametrize("data", [b"", b"\0" * 100, b"\xff" * 100, b"\0\0\0\5"])
def test_bytes_that_tell_nothing_are_the_documents(data: bytes) -> None:
    assert dialect_of(data) is SPEC


def test_a_damaged_record_does_not_change_the_dialect() -> None:
    """Both dialects lose their way at the same record; the one that got further is taken."""
    data = bytearray(vectors.read(f"rustlog/impl/records250/{SEGMENT}"))
    data[2000:2004] = b"\xff" * 4
    assert dialect_of(data) is SHORT
    data = bytearray(vectors.read(f"rustlog/spec/records250/{SEGMENT}"))
    data[2800:2804] = b"\xff" * 4
    assert dialect_of(data) is SPEC


@pytest.mark.parametrize("swapped", [False, True], ids=["gap", "swapped"])
def test_a_damaged_time_does_not_change_the_dialect(swapped: bool) -> None:
    """The first time is not one of this century, and the offsets are not in order: those that are decide."""
    order = [0, 2, 1, 3, 4, 5] if swapped else [0, 1, 2, 5, 9, 11]
    times = [TS_US + number for number in range(6)]
    rows = [vectors.batch_of([b"x" * 30], [offset], [time]) for offset, time in zip(order, times, strict=True)]
    data = bytearray(b"".join(bytes(encode_frames(row, ScanPosition(0, -1), SPEC).data) for row in rows))
    data[SHORT.layout.header_bytes] ^= 0x40
    assert dialect_of(data) is SPEC


@pytest.mark.parametrize(("kind", "position"), [("spec", 2790), ("impl", 1990)])
def test_a_record_after_a_damaged_length_is_found(kind: str, position: int, tmp_path: Path) -> None:
    data = bytearray(vectors.read(f"rustlog/{kind}/records250/{SEGMENT}"))
    data[position : position + 4] = b"\xff" * 4
    report = duramen.verify(vectors.put(tmp_path, {SEGMENT: data}))
    (damage,) = (f for f in report.findings if f.severity == Severity.DAMAGE)
    assert (damage.code, damage.position, damage.first_offset, damage.last_offset) == (
        "damaged-records", position, 100, 100,
    )  # fmt: skip
    assert report.records == 249


# --- round trips


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(0, 10**6), st.binary(max_size=30)), max_size=12),
    st.sampled_from([0, 7, 2**40, 2**63 - 1000]),
)
def test_random_records_survive(steps: list[tuple[int, int, bytes]], base: int) -> None:
    rows, offset, time = [], base, TS_US
    for step, wait, value in steps:
        rows.append((offset, time, value))
        offset, time = offset + step, time + wait
    values, offsets, times = [r[2] for r in rows], [r[0] for r in rows], [r[1] for r in rows]
    files = dict(RustLog(index_interval_records=3).build([vectors.batch_of(values, offsets, times)]))
    with tempfile.TemporaryDirectory() as root:
        vectors.put(Path(root), files)
        report = duramen.verify(root, format="rustlog")
        assert report.ok
        assert {finding.code for finding in report.findings} <= {"offset-gap"}
        with duramen.open(root, format="rustlog") as log:
            read = [(r.offset, r.value) for r in log.scan()]
            assert read == list(zip(offsets, values, strict=True))
            for offset, value in read:
                assert log.read(offset).value == value


# --- refusals and names


@pytest.mark.parametrize(("column", "value"), [("key", b"k"), ("headers", [{"key": "h", "value": b"v"}])])
def test_fields_without_a_place_are_refused(column: str, value: object) -> None:
    batch = pa.RecordBatch.from_pydict(
        {"value": [b"v"], column: [value]}, schema=pa.schema([SCHEMA.field("value"), SCHEMA.field(column)])
    )
    with pytest.raises(UnsupportedFieldError, match=f"rustlog.*{column}"):
        F.encode(batch, ScanPosition(0, -1))


def test_a_record_over_ten_mebibytes_is_refused() -> None:
    with pytest.raises(UsageError, match=str(MAX_RECORD_BYTES)):
        F.encode(vectors.batch_of([bytes(MAX_RECORD_BYTES + 1)], [0]), ScanPosition(0, -1))
    encoded = F.encode(vectors.batch_of([bytes(MAX_RECORD_BYTES)], [1]), ScanPosition(0, 0))
    assert vectors.scan_all(F.open_segment(encoded.data, 1)).count == 1
    claim = bytearray(encoded.data[:100])
    claim[:4] = (MAX_RECORD_BYTES + 1).to_bytes(4, "big")
    assert F.open_segment(claim, 1).scan(ScanPosition(0, 0)).stop == Stop.BAD_LENGTH


def test_names() -> None:
    assert F.classify(SEGMENT) == FileName(Role.SEGMENT, 0)
    assert F.classify("7.log") == F.classify("00000007.log") == FileName(Role.SEGMENT, 7)
    assert F.classify(INDEX) == FileName(Role.INDEX, 0)
    assert F.classify(".cleaner_checkpoint") == FileName(Role.CHECKPOINT)
    assert F.classify("00000000000000000000.index.rebuilding").role == Role.LEFTOVER
    for stray in ("log", ".log", "x7.log", "7.log~", "-7.log", "٧.log", f"{2**63}.log", "7.LOG", "sub/7.log"):
        assert F.classify(stray) is None, stray
    for role in (Role.SEGMENT, Role.INDEX, Role.CHECKPOINT):
        assert vectors.role_of(F, F.path_of(role, 7)) == role


def test_a_single_file_says_its_base_itself() -> None:
    encoded = F.encode(vectors.batch_of([b"a", b"b"], [41, 42], [TS_US, TS_US]), ScanPosition(0, 40))
    assert F.open_segment(encoded.data, None).base_offset == 41
    assert F.open_segment(b"", None).base_offset == 0


def test_resync_wants_a_record_with_a_fitting_successor() -> None:
    data = vectors.read(f"rustlog/spec/three/{SEGMENT}")
    segment = F.open_segment(data, 0)
    assert segment.resync(ScanPosition(0, -1)) == 25
    assert segment.resync(ScanPosition(25, 0)) == 45
    assert segment.resync(ScanPosition(45, 1)) == NOT_FOUND


def test_times_that_go_backwards_are_reported(tmp_path: Path) -> None:
    files = dict(F.build([vectors.batch_of([b"a", b"b", b"c"], [0, 1, 2], [TS_US, TS_US - 1, TS_US])]))
    report = duramen.verify(vectors.put(tmp_path, files))
    assert report.ok
    assert ("time-goes-backwards", 21) in vectors.findings(report)


# --- the checkpoint

JSON = "rustlog/spec/cleaner_checkpoint/.cleaner_checkpoint"
BINARY = "rustlog/impl/cleaner_checkpoint/.cleaner_checkpoint"


def test_the_documents_checkpoint() -> None:
    raw = vectors.read(JSON)
    checkpoint = Checkpoint.parse(raw)
    assert checkpoint == Checkpoint(3, 604_800_000, "Idle", 1_700_000_000, 0)
    assert checkpoint.encode() == raw
    (block,) = F.dump(Role.CHECKPOINT, raw)
    assert (block.problem, block.fields[0].value) == (None, raw)


def test_the_programs_checkpoint() -> None:
    raw = vectors.read(BINARY)
    checkpoint = Checkpoint.parse(raw)
    assert (checkpoint.last_cleaned_offset, checkpoint.created_at_s, checkpoint.binary) == (3, 1_700_000_000, True)
    assert checkpoint.encode() == raw


def test_a_checkpoint_beyond_the_bound_is_not_parsed() -> None:
    raw = vectors.read(JSON)
    assert Checkpoint.parse(raw + b" " * (CHECKPOINT_BYTES - len(raw)))
    with pytest.raises(CorruptionError, match=f"at most {CHECKPOINT_BYTES} bytes, not {CHECKPOINT_BYTES + 1}"):
        Checkpoint.parse(raw + b" " * (CHECKPOINT_BYTES - len(raw) + 1))


@given(st.binary(min_size=16, max_size=16).filter(lambda raw: raw[:1] != b"{"))
def test_sixteen_bytes_are_the_programs_checkpoint(raw: bytes) -> None:
    assert Checkpoint.parse(raw).encode() == raw


@given(
    st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1),
    st.one_of(st.text(max_size=8), st.dictionaries(st.text(max_size=4), st.integers(), max_size=2)),
)  # fmt: skip
def test_checkpoints_survive(offset: int, horizon: int, seconds: int, nanos: int, state: Any) -> None:
    checkpoint = Checkpoint(offset, horizon, state, seconds, nanos)
    assert Checkpoint.parse(checkpoint.encode()) == checkpoint


def changed(**fields: Any) -> bytes:
    tree = json.loads(vectors.read(JSON)) | fields
    return json.dumps({name: value for name, value in tree.items() if value is not ...}).encode()


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff" * 17,
        b"{" * 16,
        b"[" * 100_000,
        changed(last_cleaned_offset=...),
        changed(last_cleaned_offset=-1),
        changed(last_cleaned_offset=True),
        changed(last_cleaned_offset=1.5),
        changed(last_cleaned_offset=2**64),
        changed(retention_horizon_ms="7"),
        changed(created_at=7),
        changed(created_at={}),
        changed(compaction_state=...),
    ],
    ids=range(16),
)
def test_what_is_no_checkpoint(raw: bytes, tmp_path: Path) -> None:
    with pytest.raises(CorruptionError, match="checkpoint"):
        Checkpoint.parse(raw)
    (block,) = F.dump(Role.CHECKPOINT, raw)
    assert block.problem is not None
    files = vectors.directory("rustlog/spec/three") | {".cleaner_checkpoint": raw}
    report = duramen.verify(vectors.put(tmp_path, files))
    assert report.ok  # derived: nothing that the log holds is lost
    assert [finding.code for finding in report.findings] == ["bad-checkpoint"]


def test_describe_shows_the_checkpoint() -> None:
    for path, form in ((JSON, "JSON"), (BINARY, "binary")):
        shown = F.describe({".cleaner_checkpoint": vectors.read(path)})["checkpoint"]
        assert (shown["last_cleaned_offset"], shown["form"]) == (3, form)
    assert F.describe({}) == {}
    assert "not a cleaner checkpoint" in F.describe({".cleaner_checkpoint": b"{"})["checkpoint"]
