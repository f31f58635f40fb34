"""Partitions that Kafka wrote: records equal those that its consumer returned, batches those of its own dump."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import struct
import sys
import zlib
from pathlib import Path
from typing import Any

import cramjam
import google_crc32c
import numpy as np
import pytest

import duramen
from duramen.disk import Mapped, PosixDisk
from duramen.errors import CorruptionError, LimitError, OffsetError, UsageError
from duramen.formats import Role, make
from duramen.formats.kafka import Kafka
from duramen.formats.kafka.segment import KafkaSegment
from duramen.kernel import BatchColumns, Stop
from fuzz.memory import bounded
from tests.formats.kafka_logs import (
    DAMAGED,
    DATA,
    ISOLATIONS,
    PARTITIONS,
    bounds,
    consumed,
    name_of,
    options,
    truth,
)

TXN = DATA / "clean/txn-0"


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("path", PARTITIONS, ids=name_of)
def test_records_equal_what_the_consumer_returned(path: Path, isolation: str) -> None:
    assert consumed(path, isolation) == truth(path, isolation)


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("path", PARTITIONS, ids=name_of)
def test_offsets_are_the_consumers(path: Path, isolation: str) -> None:
    known = bounds(path, isolation)
    with duramen.open(path, **options(path, isolation)) as log:
        assert log.format == "kafka"
        assert (log.first_offset, log.next_offset) == (known["beginning_offset"], known["end_offset"])


@pytest.mark.parametrize("path", PARTITIONS, ids=name_of)
def test_read_by_offset_equals_a_scan(path: Path) -> None:
    with duramen.open(path, **options(path, "read_committed")) as log:
        records = {record.offset: record for record in log}
        for offset in range(log.first_offset, log.next_offset, 7):
            if offset in records:
                assert log.read(offset) == records[offset]
            else:
                with pytest.raises(OffsetError):
                    log.read(offset)


@pytest.mark.parametrize("path", PARTITIONS, ids=name_of)
def test_clean_partitions_verify(path: Path) -> None:
    report = duramen.verify(path)
    assert [finding for finding in report.findings if finding.severity != "note"] == []


def test_a_scan_by_time_finds_the_first_record_of_that_time() -> None:
    rows = truth(TXN, "read_uncommitted")
    middle = sorted(row["timestamp"] for row in rows)[len(rows) // 2]
    with duramen.open(TXN) as log:
        found = [record.offset for record in log.scan(from_time=middle)]
    assert found == [row["offset"] for row in rows if row["timestamp"] >= middle]


DUMPED = re.compile(
    r"baseOffset: (?P<base_offset>\d+) lastOffset: (?P<last_offset>\d+) count: (?P<records>\d+) "
    r"baseSequence: (?P<base_sequence>-?\d+) .*? producerId: (?P<producer_id>-?\d+) producerEpoch: "
    r"(?P<producer_epoch>-?\d+) partitionLeaderEpoch: (?P<leader_epoch>-?\d+) .*? position: (?P<position>\d+) "
    r"CreateTime: (?P<max_timestamp>-?\d+)"
)


@pytest.mark.parametrize("path", sorted((DATA / "dump/txn-0").glob("*.log.txt")), ids=lambda path: path.name[:20])
def test_batches_equal_kafkas_own_dump(path: Path) -> None:
    base = int(path.name[:20])
    dumped = [match.groupdict() for line in path.read_text().splitlines() if (match := DUMPED.match(line))]
    segment = make("kafka").open_segment((TXN / path.name.removesuffix(".txt")).read_bytes(), base)
    steps = [rows.columns for rows in segment.steps() if isinstance(rows.columns, BatchColumns)]
    found = BatchColumns.concat(steps)
    assert dumped
    for name in dumped[0]:
        assert getattr(found, name).tolist() == [int(row[name]) for row in dumped], name


@pytest.mark.parametrize("role", [Role.INDEX, Role.TIME_INDEX])
def test_indexes_equal_kafkas_own_dump(role: Role) -> None:
    fmt, suffix = make("kafka"), {Role.INDEX: "index", Role.TIME_INDEX: "timeindex"}[role]
    compared = 0
    for path in sorted((DATA / "dump/txn-0").glob(f"*.{suffix}.txt")):
        lines = [re.findall(r"-?\d+", line) for line in path.read_text().splitlines()[1:] if "offset:" in line]
        base = int(path.name[:20])
        index = fmt.open_index(role, (TXN / path.name.removesuffix(".txt")).read_bytes(), base)
        assert index is not None
        if role == Role.INDEX:
            assert index.positions is not None
            found = zip(index.offsets.tolist(), index.positions.tolist(), strict=True)
        else:
            assert index.timestamps_us is not None
            found = zip((index.timestamps_us // 1000).tolist(), index.offsets.tolist(), strict=True)
        # Kafka shows an empty index as one entry of its base.
        expected = [tuple(map(int, line)) for line in lines] if len(index) else []
        assert list(found) == expected, path.name
        compared += len(expected)
    assert compared > 4


def test_preallocated_indexes_end_at_their_zeros() -> None:
    for path in (DATA / "running/txn-0").glob("*.index"):
        index = make("kafka").open_index(Role.INDEX, path.read_bytes(), int(path.name[:20]))
        assert index is not None
        assert index.in_order()
    assert consumed(DATA / "running/txn-0") == consumed(TXN)


class _MapsNoIndex(PosixDisk):
    def map(self, path: str) -> Mapped:
        assert not path.endswith((".index", ".timeindex")), path
        return super().map(path)


def test_no_index_is_mapped(tmp_path: Path) -> None:
    """A broker cuts the zeros of an index when it starts the next segment: a mapping would end the process."""
    log = copy_of(DATA / "running/txn-0", tmp_path)
    index = max(log.glob("*.index"))
    with index.open("r+b") as file:
        file.truncate(10 << 20)
    with duramen.open(log, disk=_MapsNoIndex(), isolation="read_committed") as reader:
        assert reader.read(260).offset == 260
        assert [record.offset for record in reader.scan(250)] == [
            row["offset"] for row in truth(TXN, "read_committed") if row["offset"] >= 250
        ]
        assert reader.offset_at(1_700_000_700_000) is not None
    assert duramen.verify(log, disk=_MapsNoIndex()).ok


# --- damage

FOUND = {
    "dmg-badindex-0": ("bad-index", "warning"),
    "dmg-fliplast-0": ("torn-tail", "note"),
    "dmg-fliplength-0": ("damaged-records", "damage"),
    "dmg-flipmid-0": ("damaged-records", "damage"),
    "dmg-garbage-0": ("torn-tail", "note"),
    "dmg-noindex-0": ("missing-index", "warning"),
    "dmg-torn-0": ("torn-tail", "note"),
    "dmg-tornheader-0": ("torn-tail", "note"),
    "dmg-zeros-0": ("zero-tail", "note"),
}


@pytest.mark.parametrize("path", DAMAGED, ids=name_of)
def test_damage_is_found_at_its_position(path: Path) -> None:
    """Kafka's recovery cuts everything after the first bad batch; what follows it is still found here."""
    code, severity = FOUND[path.name]
    report = duramen.verify(path)
    found = [finding for finding in report.findings if (finding.code, finding.severity) == (code, severity)]
    assert found, report.findings
    assert report.ok == (severity != "damage")
    what = json.loads((path / "damage.json").read_text())["what"]
    named = re.search(r"batch.* at (\d+)", what)
    if named is not None and severity == "damage":
        assert found[0].position == int(named[1])
    assert report.records >= 114


def test_a_reader_gets_all_records_before_the_damage() -> None:
    found: list[int] = []
    with duramen.open(DATA / "damaged/dmg-flipmid-0") as log, pytest.raises(CorruptionError) as caught:
        found.extend(record.offset for record in log)
    assert found == list(range(60))
    assert caught.value.position == 11384


@pytest.mark.parametrize("at", [8, 48, 68], ids=["length", "producer", "marker"])
def test_damage_that_hides_markers_does_not_end_the_log_silently(tmp_path: Path, at: int) -> None:
    """A reader of committed records would otherwise stop before a transaction that the damage seems to leave open."""
    log = copy_of(TXN, tmp_path)
    path = log / "00000000000000000017.log"
    data = bytearray(path.read_bytes())
    data[at] ^= 0x40  # in the first batch, which is a marker
    path.write_bytes(data)
    for isolation in ISOLATIONS:
        with pytest.raises(CorruptionError):
            consumed(log, isolation)
    for later in log.glob("*.log"):
        if int(later.name[:20]) > 17:
            later.unlink()
    path.write_bytes(data[:156])  # now nothing else ends the transaction, and a valid batch follows
    with pytest.raises(CorruptionError, match="damage hides how transactions ended"):
        consumed(log, "read_committed")


@pytest.mark.parametrize("path", PARTITIONS, ids=name_of)
def test_records_read_during_the_scan_equal_those_read_after_it(path: Path) -> None:
    names = ("offset", "timestamp_ms", "timestamp_type", "leader_epoch", "key", "value", "headers")
    for file in segments_in(path):
        segment = make("kafka").open_segment(memoryview(file.read_bytes()), int(file.name[:20]))
        for most in (200, 1 << 20):
            found: list[list[dict[str, Any]]] = []
            for taken in (False, True):
                cursor, rows = segment.start, []
                while (step := segment.scan(cursor, max_bytes=most, take_values=taken)).stop == Stop.LIMIT:
                    rows += segment.decode(step, names).to_pylist()
                    cursor = step.cursor
                found.append(rows + segment.decode(step, names).to_pylist())
            assert found[0] == found[1]


def segments_in(path: Path) -> list[Path]:
    return sorted(path.glob("*.log"))


def test_a_refresh_reads_only_the_segments_that_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = copy_of(TXN, tmp_path)
    *sealed, active = segments_in(log)
    assert len(sealed) > 1
    whole = active.read_bytes()
    active.write_bytes(b"")
    opened: list[int] = []
    open_segment = Kafka.open_segment

    def counted(self: Kafka, buf: Any, base: int | None) -> KafkaSegment:
        opened.append(-1 if base is None else base)
        return open_segment(self, buf, base)

    with duramen.open(log, **options(TXN, "read_committed")) as reader:
        monkeypatch.setattr(Kafka, "open_segment", counted)
        active.write_bytes(whole)
        reader.refresh()
        assert set(opened) == {int(active.name[:20])}
        sealed[0].write_bytes(sealed[0].read_bytes())  # another stamp
        opened.clear()
        reader.refresh()
        assert {int(path.name[:20]) for path in segments_in(log)} == set(opened)
        found = [record.offset for record in reader]
    assert found == [row["offset"] for row in truth(TXN, "read_committed")]


# --- derived files


def copy_of(path: Path, to: Path) -> Path:
    shutil.copytree(path, to / path.name)
    return to / path.name


def findings(path: Path) -> list[str]:
    return [finding.code for finding in duramen.verify(path).findings if finding.severity != "note"]


def test_transactions_need_no_index(tmp_path: Path) -> None:
    log = copy_of(TXN, tmp_path)
    for path in [*log.glob("*.txnindex"), *log.glob("*.snapshot"), *log.glob("*.timeindex")]:
        path.unlink()
    assert consumed(log, "read_committed") == truth(TXN, "read_committed")
    assert "wrong-txn-index" in findings(log)


def test_a_wrong_transaction_index_is_found(tmp_path: Path) -> None:
    log = copy_of(TXN, tmp_path)
    path = log / "00000000000000000017.txnindex"
    data = bytearray(path.read_bytes())
    data[17] ^= 1  # the first offset of the first entry
    path.write_bytes(data)
    assert findings(log) == ["wrong-txn-index"]


def test_a_wrong_producer_snapshot_is_found(tmp_path: Path) -> None:
    log = copy_of(TXN, tmp_path)
    path = log / "00000000000000000129.snapshot"
    data = bytearray(path.read_bytes())
    data[30] ^= 1
    path.write_bytes(data)
    assert findings(log) == ["bad-producer-snapshot"]
    crc = google_crc32c.value(bytes(data[6:]))
    path.write_bytes(data[:2] + crc.to_bytes(4, "big") + data[6:])
    assert findings(log) == ["wrong-producer-snapshot"]


def test_a_changed_leader_epoch_is_found(tmp_path: Path) -> None:
    """No checksum covers the epoch of a batch."""
    log = copy_of(DATA / "clean/epochs-0", tmp_path)
    path = next(iter(sorted(log.glob("*.log"))))
    data = bytearray(path.read_bytes())
    data[15] ^= 1
    path.write_bytes(data)
    assert findings(log) == ["wrong-leader-epochs"]


def test_a_compacted_segment_that_is_not_in_place_is_found(tmp_path: Path) -> None:
    log = copy_of(TXN, tmp_path)
    (log / "00000000000000000000.log").rename(log / "00000000000000000000.log.swap")
    assert "unfinished-swap" in findings(log)


# --- bounds


def test_a_batch_that_unfolds_to_more_than_the_limit_is_refused() -> None:
    with duramen.open(DATA / "clean/mixed-0", max_uncompressed_bytes=100) as log, pytest.raises(LimitError) as caught:
        list(log)
    assert "max_uncompressed_bytes" in str(caught.value)
    assert "too-large" in [finding.code for finding in duramen.verify(log.path, max_uncompressed_bytes=100).findings]


def message(offset: int, value: bytes, attributes: int = 0) -> bytes:
    """A message of format 1 without a key."""
    covered = struct.pack(">BBqii", 1, attributes, 0, -1, len(value)) + value
    return struct.pack(">qiI", offset, len(covered) + 4, zlib.crc32(covered)) + covered


@pytest.mark.parametrize(
    "second", [message(1, b"b")[:-1] + b"c", message(1, gzip.compress(message(0, b"b"), mtime=0), attributes=1)],
    ids=("changed", "compressed"),
)  # fmt: skip
def test_wrapped_messages_that_kafkas_consumer_refuses(second: bytes, tmp_path: Path) -> None:
    """A wrong checksum below a right one, and a message that is compressed twice."""
    path = tmp_path / "orders-0"
    path.mkdir()
    whole = message(1, gzip.compress(message(0, b"a") + message(1, b"b")), attributes=1)
    bad = message(3, gzip.compress(message(0, b"a") + second), attributes=1)
    (path / "00000000000000000000.log").write_bytes(whole + bad + message(4, b"e"))
    damage = [one for one in duramen.verify(path, format="kafka").findings if one.severity == "damage"]
    assert [(one.code, one.position) for one in damage] == [("damaged-records", len(whole))]
    with duramen.open(path, format="kafka") as log, pytest.raises(CorruptionError):
        list(log)


def stored_as_they_are(*blocks: bytes) -> bytes:
    """An LZ4 frame of blocks that were not compressed."""
    frame = [(len(block) | 1 << 31).to_bytes(4, "little") + block for block in blocks]
    return bytes.fromhex("04224d18604082") + b"".join(frame) + bytes(4)


def repaired(path: Path, *entries: bytes, base: int = 0) -> list[tuple[int, bytes | None]]:
    """The records of the repaired log of these bytes."""
    path.mkdir()
    (path / f"{base:020}.log").write_bytes(b"".join(entries))
    duramen.repair(path, plan_only=False, format="kafka")
    with duramen.open(path, format="kafka") as log:
        return [(one.offset, one.value) for one in log]


def changed(entry: bytes, **places: bytes) -> bytes:
    bad = bytearray(entry)
    for at, data in ((int(name[1:]), data) for name, data in places.items()):
        bad[at : at + len(data)] = data
    return bytes(bad)


FIRST = message(9, gzip.compress(b"".join(message(n, b"a") for n in range(10))), attributes=1)
INNER = [message(n, b"b") for n in range(20)]
INTACT = [(n, b"a") for n in range(10)]


@pytest.mark.parametrize(
    "damage", [{"_8": b"\x41"}, {"_11": b"\x41"}, {"_16": b"\x40"}, {"_17": b"\0"}, {"_60": b"\xff"}, {"_8": bytes(9)}],
    ids=("size-high", "size-low", "magic", "codec", "body", "header"),
)  # fmt: skip
@pytest.mark.parametrize("split", [False, True], ids=("one-block", "two-blocks"))
def test_repair_takes_no_message_out_of_a_damaged_one(damage: dict[str, bytes], split: bool, tmp_path: Path) -> None:
    """Blocks that a codec could not shorten hold whole messages, whose offsets count from the first."""
    inner = b"".join(INNER)
    frame = stored_as_they_are(inner[:520], inner[520:]) if split else stored_as_they_are(inner)
    bad = changed(message(29, frame, attributes=3), **damage)
    assert repaired(tmp_path / "last-0", FIRST, bad) == INTACT
    assert repaired(tmp_path / "orders-0", FIRST, bad, message(30, b"c"), message(31, b"d")) == [
        *INTACT, (30, b"c"), (31, b"d"),
    ]  # fmt: skip


@pytest.mark.parametrize("last", [True, False], ids=("last", "middle"))
def test_repair_takes_no_message_out_of_one_whose_header_is_lost(last: bool, tmp_path: Path) -> None:
    """Nothing says that it was compressed; the offsets inside do not lead to the entry after it."""
    bad = message(21, stored_as_they_are(b"".join(INNER)), attributes=3)
    bad = bytes(200) + bad[200:]
    after = [] if last else [message(22, b"c")]
    kept = [(22, b"c")] if after else []
    before = [message(0, b"a"), message(1, b"a")]
    assert repaired(tmp_path / "orders-0", *before, bad, *after) == [(0, b"a"), (1, b"a"), *kept]


@pytest.mark.parametrize("last", [True, False], ids=("last", "middle"))
def test_nothing_inside_of_a_damaged_message_counts(last: bool, tmp_path: Path) -> None:
    """Its size is damaged, so that 40 messages inside seem to follow it, those from 10 on with offsets that fit."""
    path, bad = tmp_path / "orders-0", message(49, stored_as_they_are(b"".join(message(n, b"b") for n in range(40))), 3)
    after = [] if last else [message(50, b"c"), message(51, b"d")]
    path.mkdir()
    (path / "00000000000000000000.log").write_bytes(b"".join([FIRST, changed(bad, _8=b"\x41"), *after]))
    damage = [one for one in duramen.verify(path, format="kafka").findings if one.severity == "damage"]
    assert [one.position for one in damage] == [len(FIRST)]
    converted = duramen.convert(path, tmp_path / "converted", to="kafka", on_damage="skip", format="kafka")
    sizes = (len(bad), *map(len, after))
    assert [one.length for one in converted.skipped] == [sum(sizes[: 1 if after else None])]
    kept = [] if last else [(50, b"c"), (51, b"d")]
    assert [(one.offset, one.value) for one in duramen.open(tmp_path / "converted")] == [*INTACT, *kept]


@pytest.mark.parametrize("second", [{"_8": b"\x41"}, {"_11": b"\x41"}, {"_16": b"\x40"}, {"_0": bytes(200)}])
@pytest.mark.parametrize("size", [{}, {"_8": b"\x41"}, {"_10": b"\0\x51"}], ids=("size", "size-high", "size-low"))
@pytest.mark.parametrize("after", [0, 3])
def test_repair_takes_no_message_out_of_two_damaged_ones(
    second: dict[str, bytes], size: dict[str, bytes], after: int, tmp_path: Path
) -> None:
    """No record is intact before them, and the first seems not to be compressed. Some offsets inside of the second one
    are greater than those before it."""
    frames = [stored_as_they_are(b"".join(message(n, b"b") for n in range(count))) for count in (5, 40)]
    one = changed(message(14, frames[0], attributes=3), _17=b"\0", **size)
    two = changed(message(54, frames[1], attributes=3), **second)
    intact = [(55 + n, b"c") for n in range(after)]
    assert repaired(tmp_path / "orders-0", one, two, *(message(*each) for each in intact), base=10) == intact


@pytest.mark.parametrize("damage", [{"_8": b"\x41"}, {"_11": b"\x41"}, {"_16": b"\x40"}, {"_26": b"\x41"}])
@pytest.mark.parametrize("base", [0, 5000])
def test_repair_keeps_messages_after_damaged_ones(damage: dict[str, bytes], base: int, tmp_path: Path) -> None:
    """Also where compaction left gaps."""
    offsets = [base + n for n in range(40) if n % 7]
    entries = [message(n, b"%d" % n) for n in offsets]
    for row in (9, 10, 20):
        entries[row] = changed(entries[row], **damage)
    expected = [(n, b"%d" % n) for row, n in enumerate(offsets) if row not in (9, 10, 20)]
    assert repaired(tmp_path / "orders-0", *entries, base=base) == expected


@pytest.mark.parametrize("codec", ["gzip", "lz4"])
def test_repair_corrects_the_offset_of_a_compressed_message(codec: str, tmp_path: Path) -> None:
    """No checksum covers it. It is that of the last message inside."""
    inner = b"".join(INNER)
    whole = message(29, gzip.compress(inner), 1) if codec == "gzip" else message(29, stored_as_they_are(inner), 3)
    got = repaired(tmp_path / "orders-0", FIRST, changed(whole, _3=b"\x41"), message(30, b"c"))
    assert got == [*INTACT, *((n, b"b") for n in range(10, 30)), (30, b"c")]


def message_of_format_0(offset: int, value: bytes, attributes: int = 0) -> bytes:
    covered = struct.pack(">BBii", 0, attributes, -1, len(value)) + value
    return struct.pack(">qiI", offset, len(covered) + 4, zlib.crc32(covered)) + covered


@pytest.mark.parametrize("flipped", [b"\x41", b"\x01"], ids=("two-bits", "one-bit"))
@pytest.mark.parametrize("following", [2, 40])
def test_a_flipped_offset_of_a_compressed_message_of_format_0(flipped: bytes, following: int, tmp_path: Path) -> None:
    """The messages inside have their own. It cost the records after it, or those inside."""
    inside, after = range(10, 20), range(20, 20 + following)
    whole = message_of_format_0(19, gzip.compress(b"".join(message_of_format_0(n, b"b") for n in inside)), 1)
    before = [message_of_format_0(n, b"a") for n in range(10)]
    rest = [message_of_format_0(n, b"c") for n in after]
    got = repaired(tmp_path / "orders-0", *before, changed(whole, _3=flipped), *rest)
    kept = [(n, b"b") for n in inside] if flipped == b"\x01" else []
    assert got == [*INTACT, *kept, *((n, b"c") for n in after)]


def compressed(records: int, body: bytes, codec: int) -> bytes:
    """A batch whose header states so many records."""
    covered = struct.pack(">HiqqqhiI", codec, records - 1, 0, 0, -1, -1, -1, records) + body
    return struct.pack(">qiibI", 0, len(covered) + 9, 0, 2, google_crc32c.value(covered)) + covered


def test_a_gzip_stream_of_several_members_is_read() -> None:
    """Java's reader reads them as one. The stream ends with the length of its last member."""
    records = [bytes([26, 0, 0, 2 * row, 1, 14]) + b"v%06d" % row + b"\0" for row in range(3)]
    body = b"".join(gzip.compress(one, mtime=0) for one in (b"".join(records[:2]), b"", records[2]))
    segment = make("kafka").open_segment(compressed(3, body, 1), 0)
    rows = segment.scan(segment.start)
    assert segment.decode(rows, ("value",))["value"].to_pylist() == [b"v000000", b"v000001", b"v000002"]
    assert not list(segment.check(rows))


def test_a_count_that_a_batch_states_sizes_no_allocation() -> None:
    """Two billion records in some bytes, and 18 million empty ones that would cost more memory than the limit."""
    fmt = make("kafka")
    empty = bytes(cramjam.zstd.compress(bytes.fromhex("0c000000010100") * 4))
    many = bytes(cramjam.zstd.compress(bytes(126 << 20)))
    for records, body, expected in (
        (2**31 - 1, empty, LimitError),
        (10**6, empty, CorruptionError),
        (18 * 10**6, many, LimitError),
    ):
        segment = fmt.open_segment(compressed(records, body, 4), 0)
        with bounded(), pytest.raises(expected):
            segment.decode(segment.scan(segment.start), ("offset",))


def test_a_log_of_many_steps_reads_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where compressed batches fill a step, the next one goes on."""
    monkeypatch.setattr(sys.modules["duramen.formats.kafka.segment"], "_UNFOLDED_BYTES", 1)
    for name in ("clean/mixed-0", "old/v012-0", "old/v1-compactgzip-0"):
        assert consumed(DATA / name) == truth(DATA / name, "read_uncommitted")


@pytest.mark.parametrize("name", ["clean/mixed-0", "old/v012-0", "clean/txn-0"])
def test_changed_bytes_raise_or_end_the_log(name: str) -> None:
    """No change of one byte reads as another record, except in what no checksum covers."""
    path = min((DATA / name).glob("*.log"))
    data, fmt = path.read_bytes()[:6000], make("kafka")
    whole = fmt.open_segment(data, 0)
    rows = list(whole.steps())
    starts = np.concatenate([step.columns.position for step in rows])
    known = {row["offset"]: row for step in rows for row in whole.decode(step, ("offset", "key", "value")).to_pylist()}
    for at in range(0, len(data), 23):
        changed = bytearray(data)
        changed[at] ^= 0x55
        start = int(starts[np.searchsorted(starts, at, side="right") - 1])
        segment = fmt.open_segment(bytes(changed), 0)
        try:
            for step in segment.steps():
                for row in segment.decode(step, ("offset", "key", "value")).to_pylist():
                    assert known.get(row["offset"]) == row or at - start < 21
        except CorruptionError:
            pass


def test_options_are_checked() -> None:
    for wrong in ({"isolation": "dirty"}, {"log_start_offset": -1}, {"aborted": "7"}, {"max_uncompressed_bytes": -1}):
        with pytest.raises(UsageError):
            make("kafka", **wrong)
