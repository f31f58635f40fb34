"""Fixed-slot: golden files byte by byte, negative files, every flipped bit, every cut, record sizes, round trips."""

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
from duramen.formats.fixed_slot import CRC, NAME, FixedSlot, infer
from duramen.kernel.layout import NOT_FOUND, Stop
from duramen.log.segments.segment_end import EndKind
from duramen.record import SCHEMA
from tests.formats import vectors
from tests.formats.vectors import GOLDEN, VECTORS

GOOD = vectors.names("slot/", ".log")
THREE = "slot/rs16/three/00000000.log"

# The checksum covers the payload, and nothing else is in a slot but the checksum itself.
UNCOVERED: set[str] = set()
COVERED = {"crc32c", "payload"}


def size_of(vector: str) -> int:
    """The record size is in no file: the golden directories are named by it."""
    return int(vector.split("/")[1].removeprefix("rs"))


def slots(vector: str) -> list[bytes]:
    return [bytes.fromhex(record["payload"]) for record in VECTORS[vector].get("expect", {}).get("records", [])] or [
        field.value for field in vectors.fields_expected(vector) if field.name == "payload"
    ]


def fmt(vector: str = THREE) -> FixedSlot:
    return FixedSlot(record_size=size_of(vector))


# --- golden files


@pytest.mark.parametrize("vector", GOOD)
def test_files_decode_as_listed(vector: str) -> None:
    if "records" in VECTORS[vector].get("expect", {}):
        vectors.assert_reads_as_listed(fmt(vector), vector, 0)
    segment = fmt(vector).open_segment(vectors.read(vector), 0)
    assert vectors.values(segment) == slots(vector)
    for offset, value in enumerate(slots(vector)):
        assert segment.read(segment.start, offset).value == value
    assert segment.read(segment.start, len(slots(vector))) == Stop.END


@pytest.mark.parametrize("vector", GOOD)
def test_records_encode_to_the_same_bytes(vector: str) -> None:
    batch = vectors.batch_of(slots(vector), range(len(slots(vector))))
    vectors.assert_encodes_to(fmt(vector), batch, {NAME: vectors.read(vector)})


@pytest.mark.parametrize("vector", GOOD)
def test_dump_shows_the_fields_of_the_vectors(vector: str) -> None:
    vectors.assert_dump(fmt(vector).dump(Role.SEGMENT, vectors.read(vector)), vector)


@pytest.mark.parametrize("vector", GOOD)
def test_golden_logs_verify_clean(vector: str) -> None:
    report = duramen.verify((GOLDEN / vector).parent, record_size=size_of(vector))
    assert (report.format, report.findings, report.records) == ("fixed-slot", [], len(slots(vector)))


# --- negative files

OUTCOMES = {
    "bad_crc_mid": ("damaged-records", EndKind.DAMAGE, Stop.BAD_CHECKSUM),
    "torn_2bytes": ("torn-tail", EndKind.TORN, Stop.SHORT_BODY),
    "zero_slot": ("zero-tail", EndKind.CLEAN, Stop.ZEROS),
}


@pytest.mark.parametrize("vector", vectors.names("slot/", negative=True))
def test_negative_files(vector: str, tmp_path: Path) -> None:
    """The document cuts at the first bad slot; a valid one behind it makes that damage (format-decisions)."""
    code, ending, stop = OUTCOMES[Path(vector).stem]
    expect = VECTORS[vector]["expect"]
    assert expect["action"] == "truncate"
    rows, end = vectors.judge_all(fmt(vector).open_segment(vectors.read(vector), 0))
    assert (end.ending, end.stop, end.position) == (ending, stop, expect["valid_bytes"])
    assert (rows.count, end.previous_offset + 1) == (expect["valid_records"], expect["next_offset"])
    for path in (vectors.put(tmp_path, {NAME: vectors.read(vector)}), tmp_path / NAME):
        report = duramen.verify(path, format="fixed-slot", record_size=size_of(vector))
        assert (code, expect["valid_bytes"]) in vectors.findings(report)
        assert report.ok == (ending != EndKind.DAMAGE)
        behind = 1 if ending == EndKind.DAMAGE else 0
        assert report.records == expect["valid_records"] + behind


def test_damage_names_the_lost_offsets(tmp_path: Path) -> None:
    vectors.put(tmp_path, {NAME: vectors.read("slot/rs16/negative/bad_crc_mid.log")})
    report = duramen.verify(tmp_path, format="fixed-slot", record_size=16)
    (damage,) = (f for f in report.findings if f.severity == Severity.DAMAGE)
    assert (damage.code, damage.position, damage.first_offset, damage.last_offset) == ("damaged-records", 20, 1, 1)
    with duramen.open(tmp_path, format="fixed-slot", record_size=16) as log:
        assert log.read(0).value == slots(THREE)[0]
        assert log.read(2).value == slots(THREE)[2]
        with pytest.raises(duramen.CorruptionError) as caught:
            log.read(1)
    assert (caught.value.position, caught.value.offset) == (20, 1)


# --- flips and cuts


def test_the_table_of_covered_fields_is_complete() -> None:
    assert {*CRC.names, "payload"} == COVERED | UNCOVERED


@pytest.mark.parametrize("vector", [name for name in GOOD if slots(name)])
def test_every_flipped_bit_is_noticed(vector: str, tmp_path: Path) -> None:
    vectors.put(tmp_path, {NAME: vectors.read(vector)})
    unnoticed = vectors.unnoticed_flips(tmp_path / NAME, "fixed-slot", record_size=size_of(vector))
    bounds = range(0, len(vectors.read(vector)) + 1, size_of(vector) + CRC.size)
    assert vectors.fields_of(CRC, unnoticed, bounds) == UNCOVERED


def test_every_cut_is_a_torn_tail(tmp_path: Path) -> None:
    vectors.put(tmp_path, {NAME: vectors.read(THREE)})
    vectors.assert_cuts_are_torn(tmp_path / NAME, [0, 20, 40, 60], "fixed-slot", record_size=16)


@pytest.mark.parametrize("size", [1, 4, 19, 20, 21, 4096])
def test_zeros_after_the_slots_are_a_clean_end(size: int) -> None:
    rows, end = vectors.judge_all(fmt().open_segment(vectors.read(THREE) + bytes(size), 0))
    assert (rows.count, end.ending, end.position) == (3, EndKind.CLEAN, 60)


def test_a_zero_slot_between_valid_ones_is_damage() -> None:
    three = vectors.read(THREE)
    rows, end = vectors.judge_all(fmt().open_segment(three[:20] + bytes(20) + three[40:], 0))
    assert (rows.count, end.ending, end.goes_on_at) == (1, EndKind.DAMAGE, 40)


# --- the record size


@pytest.mark.parametrize("vector", [name for name in GOOD if slots(name)])
def test_the_size_that_the_checksum_fits(vector: str) -> None:
    data = vectors.read(vector)
    assert infer(data) == size_of(vector)
    with pytest.raises(UsageError, match=f"record_size={size_of(vector)}"):
        FixedSlot().open_segment(data, 0)
    with pytest.raises(UsageError, match=f"fits record_size={size_of(vector)}"):
        FixedSlot(record_size=size_of(vector) + 1).open_segment(data, 0)


@pytest.mark.parametrize("size", [0, -1, 2**31, "many", None, 1.5j])
def test_sizes_that_are_refused(size: object) -> None:
    with pytest.raises(UsageError, match="record_size"):
        FixedSlot(record_size=size)


def test_without_a_size_nothing_is_read_or_written() -> None:
    for data in (b"", b"\xff" * 30, bytes(30)):
        with pytest.raises(UsageError, match="record_size"):
            FixedSlot().open_segment(data, 0)
    with pytest.raises(UsageError, match="record_size"):
        FixedSlot().encode(vectors.batch_of([b"x"], [0]), ScanPosition(0, -1))


def test_a_damaged_first_slot_does_not_stop_a_known_size() -> None:
    data = bytearray(vectors.read(THREE))
    data[7] ^= 1
    segment = fmt().open_segment(data, 0)
    rows, end = vectors.judge_all(segment)
    assert (rows.count, end.ending, end.goes_on_at) == (0, EndKind.DAMAGE, 20)


@pytest.mark.parametrize("length", [0, 15, 17])
def test_a_payload_of_another_size_is_refused(length: int) -> None:
    with pytest.raises(UnsupportedFieldError, match=f"{length} bytes.*record_size=16"):
        fmt().encode(vectors.batch_of([bytes(16), bytes(length)], [0, 1]), ScanPosition(0, -1))


# --- round trips, refusals, names


@given(st.integers(1, 40), st.data())
def test_random_records_survive(size: int, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.binary(min_size=size, max_size=size), max_size=12))
    slot = FixedSlot(record_size=size)
    with tempfile.TemporaryDirectory() as root:
        vectors.put(Path(root), dict(slot.build([vectors.batch_of(values, range(len(values)))])))
        report = duramen.verify(root, format="fixed-slot", record_size=size)
        assert (report.records, report.findings) == (len(values), [])
        with duramen.open(root, format="fixed-slot", record_size=size) as log:
            assert [(r.offset, r.value) for r in log.scan()] == list(enumerate(values))
            assert log.next_offset == len(values)
            for offset, value in enumerate(values):
                assert log.read(offset).value == value


def test_appended_slots_go_on_where_the_others_end() -> None:
    first = fmt().encode(vectors.batch_of([bytes(16)] * 2, [0, 1]), ScanPosition(0, -1))
    second = fmt().encode(pa.RecordBatch.from_pydict({"value": [b"x" * 16]}), first.rows.cursor)
    assert second.rows.columns.offset.tolist() == [2]
    assert second.rows.columns.position.tolist() == [40]
    segment = fmt().open_segment(bytes(first.data) + bytes(second.data), 0)
    rows = vectors.scan_all(segment)
    assert (rows.count, rows.cursor) == (3, second.rows.cursor)


def test_an_offset_cannot_be_left_out() -> None:
    for offsets in ([0, 2], [1, 2]):
        with pytest.raises(UnsupportedFieldError, match="offset"):
            fmt().encode(vectors.batch_of([bytes(16)] * 2, offsets), ScanPosition(0, -1))


@pytest.mark.parametrize(
    ("column", "value"), [("key", b"k"), ("timestamp", 0), ("headers", [{"key": "h", "value": b"v"}])]
)
def test_fields_without_a_place_are_refused(column: str, value: object) -> None:
    schema = pa.schema([SCHEMA.field("value"), SCHEMA.field(column)])
    batch = pa.RecordBatch.from_pydict({"value": [bytes(16)], column: [value]}, schema=schema)
    with pytest.raises(UnsupportedFieldError, match=f"fixed-slot.*{column}"):
        fmt().encode(batch, ScanPosition(0, -1))


def test_a_slice_of_a_batch_encodes_only_its_rows() -> None:
    batch = vectors.batch_of([bytes([n]) * 16 for n in range(5)], range(5))
    encoded = fmt().encode(batch.slice(2, 2), ScanPosition(40, 1))
    assert bytes(encoded.data)[4:20] == b"\2" * 16
    assert len(encoded.data) == 40


def test_names() -> None:
    assert FixedSlot().classify(NAME) == FileName(Role.SEGMENT, 0)
    for stray in ("00000001.log", "0.log", "00000000.log~", "00000000.idx", "sub/00000000.log"):
        assert FixedSlot().classify(stray) is None
    assert FixedSlot().path_of(Role.SEGMENT, 0) == NAME


def test_cursors_are_arithmetic() -> None:
    segment = fmt().open_segment(vectors.read(THREE), 0)
    assert segment.cursor_at(1, 20) == ScanPosition(20, 0)
    for offset, position in [(1, 21), (1, 40), (-1, -20), (4, 80)]:
        assert segment.cursor_at(offset, position) is None
    for offset in (-1, 3, 2**40):
        assert segment.read(segment.start, offset) == Stop.END
    assert segment.resync(ScanPosition(0, -1)) == 20
    assert segment.resync(ScanPosition(40, 1)) == NOT_FOUND
    assert segment.resync(ScanPosition(60, 2)) == NOT_FOUND


def test_a_scan_of_few_bytes_still_gets_on() -> None:
    segment = fmt().open_segment(vectors.read(THREE), 0)
    cursor, steps = segment.start, 0
    while (rows := segment.scan(cursor, max_bytes=1)).stop == Stop.LIMIT:
        cursor, steps = rows.cursor, steps + 1
    assert (steps, rows.count, rows.cursor) == (2, 1, ScanPosition(60, 2))


# --- padding


@pytest.mark.parametrize("pad", [b"\0", "0x00", "x"])
def test_short_values_are_padded(tmp_path: Path, pad: object) -> None:
    fill = b"x" if pad == "x" else b"\0"
    path = tmp_path / "log"
    with duramen.open(path, "a", format="fixed-slot", record_size=4, pad=pad) as log:
        log.append(b"a")
        log.append_batch([b"", b"bbbb", b"cc"])
        log.append_batch(pa.table({"value": [b"d", b"eeee"]}))
        log.producer("p").append(b"f", sequence=1)
    expected = [value.ljust(4, fill) for value in (b"a", b"", b"bbbb", b"cc", b"d", b"eeee", b"f")]
    with duramen.open(path, "a") as log:  # the sidecar keeps the option
        assert [record.value for record in log] == expected
        assert log.append(b"g") == 7
        assert log.read(7).value == b"g".ljust(4, fill)
        for long in (lambda: log.append(b"12345"), lambda: log.append_batch([b"1", b"12345"])):
            with pytest.raises(UnsupportedFieldError, match="has 5 bytes; every value must have at most record_size=4"):
                long()
    assert duramen.verify(path).ok


@pytest.mark.parametrize("pad", ["", "0x", "0x0000", "é", "ab", b"", b"ab"])
def test_a_pad_is_one_byte(pad: object) -> None:
    with pytest.raises(UsageError, match="pad must be one byte"):
        FixedSlot(record_size=4, pad=pad)
