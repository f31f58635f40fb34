"""Compaction against its definition in a few lines of Python; tombstones, keys, lag, readers, refusals."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import duramen
from duramen.errors import CorruptionError, UsageError
from duramen.log.maintain.compact import Compaction, Compactor
from duramen.testing import SimulatedDisk
from tests.sampling import examples

FORMATS = ("keratin", "durable-log", "rustlog", "kafka")
DAY_US = 86_400_000_000

VALUES = st.lists(
    st.one_of(st.integers(0, 9).map(lambda n: b"%d=" % n + bytes([n]) * n), st.sampled_from([b"no key", b"x"])),
    min_size=1, max_size=80,
)  # fmt: skip


def key_of(value: bytes) -> bytes | None:
    head, delimiter, _ = value.partition(b"=")
    return head if delimiter else None


def compacted(records: list[tuple[int, bytes]], *, keep_keyless: bool = True) -> list[tuple[int, bytes]]:
    newest = {key_of(value): offset for offset, value in records}
    return [
        (offset, value)
        for offset, value in records
        if (keep_keyless if key_of(value) is None else newest[key_of(value)] == offset)
    ]


def records_of(log: duramen.log.read.log.Log) -> list[tuple[int, bytes]]:
    return [(record.offset, record.value) for record in log.scan()]


@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(FORMATS), VALUES, st.integers(1, 9), st.booleans())
def test_it_is_what_its_definition_says(format: str, values: list[bytes], seals: int, keep_keyless: bool) -> None:
    disk = SimulatedDisk()
    with duramen.open("/log", "a", format=format, disk=disk) as log:
        for number, value in enumerate(values):
            log.append(value, durability="write")
            if number % seals == seals - 1:
                log.seal()
        log.seal()
        before = records_of(log)
        how = Compaction(key="delimiter:=", keyless="keep" if keep_keyless else "drop", memory_bytes=4096)
        told = log.compact(how, dry_run=True)
        assert records_of(log) == before
        report = log.compact(how)
        after = compacted(before, keep_keyless=keep_keyless)
        assert records_of(log) == after
        assert (report.records_before, report.records_after) == (len(before), len(after))
        assert (told.records_after, told.bytes_after) == (report.records_after, report.bytes_after)
        assert report.changed == (len(after) < len(before))
        again = log.compact(how)
        assert not again.changed
        following = log.append(b"9=behind")
        assert following == len(values)
    findings = duramen.verify("/log", disk=disk).findings
    assert not [finding for finding in findings if finding.severity != "note"]
    with duramen.open("/log", "a", disk=disk) as log:
        assert records_of(log) == [*after, (following, b"9=behind")]
        for offset, value in after:
            assert log.read(offset).value == value


def test_the_active_segment_is_left_alone(tmp_path: Path) -> None:
    with duramen.open(str(tmp_path / "log"), "a", format="durable-log") as log:
        log.append_batch([b"a=1", b"a=2"])
        assert "no sealed segment" in log.compact(Compaction(key="delimiter:=")).note
        log.seal()
        log.append_batch([b"a=3", b"a=4"])
        log.compact(Compaction(key="delimiter:="))
        assert records_of(log) == [(1, b"a=2"), (2, b"a=3"), (3, b"a=4")]


def test_keys_headers_and_times_stay_byte_for_byte(tmp_path: Path) -> None:
    with duramen.open(str(tmp_path / "log"), "a", format="keratin") as log:
        for number in range(6):
            log.append(b"v%d" % number, key=b"k%d" % (number % 2), headers=[("h", b"%d" % number)])
        before = {record.offset: record for record in log.scan()}
        log.seal()
        log.compact()
        after = list(log.scan())
        assert [record.offset for record in after] == [4, 5]
        assert all(record == before[record.offset] for record in after)


def keyed(values: list[bytes], us: list[int]) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "key": pa.array([b"k%d" % number for number in range(len(values))]),
            "value": pa.array(values),
            "timestamp": pa.array(us, pa.timestamp("us", "UTC")),
        }
    )


def test_tombstones_stay_for_a_while_and_take_what_they_replace_with_them(tmp_path: Path) -> None:
    now_us = time.time_ns() // 1000
    old = now_us - 3 * DAY_US
    with duramen.open(str(tmp_path / "log"), "a", format="keratin") as log:
        log.append_batch(keyed([b"one", b"two"], [old, old]))
        log.append_batch(keyed([b"", b""], [old + 1, now_us]))
        log.seal()
        report = log.compact(Compaction(tombstone_delay_ms=86_400_000))
        assert report.tombstones_removed == 1
        assert [(record.offset, record.key) for record in log.scan()] == [(3, b"k1")]
        assert log.compact(Compaction(tombstone_delay_ms=0)).tombstones_removed == 1
        assert list(log.scan()) == []
        assert log.append(b"next", key=b"k") == 4


def test_young_records_and_clean_logs_are_left_alone(tmp_path: Path) -> None:
    now_us = time.time_ns() // 1000
    with duramen.open(str(tmp_path / "log"), "a", format="keratin") as log:
        log.append_batch(keyed([b"a", b"b"], [now_us - 2 * DAY_US] * 2))
        log.append_batch(keyed([b"c"], [now_us - 2 * DAY_US]))
        log.seal()
        log.append_batch(keyed([b"d"], [now_us]))
        log.seal()
        report = log.compact(Compaction(min_lag_ms=86_400_000))
        assert [record.value for record in log.scan()] == [b"b", b"c", b"d"]
        assert report.segments == 1
        log.compact()
        assert "less than 50%" in log.compact(Compaction(min_dirty_ratio=0.5)).note


def test_what_is_not_read_yet_is_left_alone(tmp_path: Path) -> None:
    with duramen.open(str(tmp_path / "log"), "a", format="durable-log") as log:
        for number in range(3):
            log.append_batch([b"a=%d" % number, b"a=x"])
            log.seal()
        log.cursor("slow").store(3)
        report = log.compact(Compaction(key="delimiter:="))
        assert [need.name for need in report.held_by] == ["slow"]
        assert [offset for offset, _ in records_of(log)] == [1, 2, 3, 4, 5]
        log.cursor("slow").store(6)
        log.compact(Compaction(key="delimiter:="))
        assert [offset for offset, _ in records_of(log)] == [5]


@pytest.mark.parametrize(
    ("key", "values", "kept"),
    [
        ("prefix:2", [b"aa1", b"ab2", b"aa3", b"a"], [1, 2, 3]),
        ("delimiter:::", [b"a::1", b"a::2", b"a:3"], [1, 2]),
        ("json:user.id", [json.dumps({"user": {"id": n % 2}, "n": n}).encode() for n in range(4)] + [b"{"], [2, 3, 4]),
        ("json:0", [b"[1, 2]", b"[1, 3]", b"[2]"], [1, 2]),
        (lambda value: value[-1:] or None, [b"xa", b"ya", b"b"], [1, 2]),
    ],
)
def test_ways_to_find_a_key(tmp_path: Path, key, values: list[bytes], kept: list[int]) -> None:  # type: ignore[no-untyped-def]
    with duramen.open(str(tmp_path / "log"), "a", format="durable-log") as log:
        log.append_batch(values)
        log.seal()
        log.compact(Compaction(key=key))
        assert [offset for offset, _ in records_of(log)] == kept


@pytest.mark.parametrize("key", ["", "prefix", "prefix:0", "prefix:x", "delimiter:", "json:", "regex:a", "keys"])
def test_a_key_that_says_nothing(tmp_path: Path, key: str) -> None:
    with (
        duramen.open(str(tmp_path / "log"), "a", format="durable-log") as log,
        pytest.raises(UsageError, match="key"),
    ):
        log.compact(Compaction(key=key))


def test_formats_that_cannot_say_so(tmp_path: Path) -> None:
    for format, options in (("osiris", {}), ("fixed-slot", {"record_size": 8})):
        with (
            duramen.open(str(tmp_path / format), "a", format=format, **options) as log,
            pytest.raises(UsageError, match="cannot be compacted"),
        ):
            log.compact(Compaction(key="prefix:1"))


def test_damage_is_never_compacted_away(tmp_path: Path) -> None:
    with duramen.open(str(tmp_path / "log"), "a", format="durable-log") as log:
        log.append_batch([b"a=1", b"b=1", b"a=2"])
        log.seal()
        segment = Path(log.segments[0].path)
        raw = bytearray(segment.read_bytes())
        raw[raw.index(b"b=1") + 2] ^= 1
        segment.write_bytes(raw)
        with pytest.raises(CorruptionError):
            log.compact(Compaction(key="delimiter:="))
        assert segment.read_bytes() == raw


def test_a_reader_keeps_its_view(tmp_path: Path) -> None:
    with duramen.open(str(tmp_path / "log"), "a", format="durable-log") as log:
        for number in range(4):
            log.append_batch([b"k=%d" % number, b"%d=x" % number])
            log.seal()
        with duramen.open(log.path) as reader:
            scan = reader.scan()
            seen = [next(scan).offset]
            log.compact(Compaction(key="delimiter:="))
            seen += [record.offset for record in scan]
        assert seen[:2] == [0, 1]
        assert set(seen) >= {1, 3, 5, 6, 7}
        assert seen == sorted(set(seen))


def test_a_flipped_bit_in_a_key_of_a_sealed_segment_is_refused(tmp_path: Path) -> None:
    """It would make one key another one, and cost that one its only record."""
    path = tmp_path / "log"
    with duramen.open(path, "a", format="rustlog") as log:
        log.append_batch([b"a=1", b"c=2"])
        log.seal()
        log.append_batch([b"b=3"])
        log.seal()
    damaged = path / f"{2:020}.log"
    raw = bytearray(damaged.read_bytes())
    assert raw[20:23] == b"b=3"
    raw[20] ^= 1
    assert raw[20:23] == b"c=3"
    damaged.write_bytes(raw)
    held = _files(path)
    with duramen.open(path, "a") as log, pytest.raises(CorruptionError, match="its digest differs") as caught:
        log.compact(Compaction(key="delimiter:="))
    assert caught.value.path == str(damaged)
    assert _files(path) == held
    assert not duramen.verify(path).ok
    with duramen.open(path) as reader, pytest.raises(CorruptionError, match="its digest differs"):
        _dry_run(reader)


def _files(path: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in path.rglob("*")
        if file.is_file() and ".duramen" not in str(file.relative_to(path))
    }


def _dry_run(log: duramen.log.read.log.Log) -> None:
    Compactor(log, Compaction(key="delimiter:="), time.time_ns() // 1000).run()


@pytest.mark.parametrize(
    ("has_sidecar", "why"), [(False, "the segment before it goes up to"), (True, "cannot be in this segment")]
)
def test_an_offset_that_belongs_to_the_next_segment_is_refused(tmp_path: Path, has_sidecar: bool, why: str) -> None:
    """It cannot be counted. The digest is compared after the last record, which is too late."""
    path = tmp_path / "log"
    with duramen.open(path, "a", format="rustlog") as log:
        log.append_batch([b"a=1", b"b=2"])
        log.seal()
        log.append_batch([b"a=3"])
    if not has_sidecar:
        shutil.rmtree(path / ".duramen")
    damaged = path / f"{0:020}.log"
    raw = bytearray(damaged.read_bytes())
    raw[23 + 4 + 1] ^= 0x40  # the offset of the second record
    damaged.write_bytes(raw)
    with duramen.open(path, "a") as log, pytest.raises(CorruptionError, match=why):
        log.compact(Compaction(key="delimiter:="))


@pytest.mark.parametrize("name", ["keratin", "durable-log", "rustlog", "kafka"])
def test_a_compacted_log_without_its_sidecar_is_not_damaged(tmp_path: Path, name: str) -> None:
    with duramen.open(tmp_path / "log", "a", format=name, segment_max_bytes=600) as log:
        for number in range(60):
            key = number if number % 10 < 5 else 0  # the last records of a segment go, the first ones stay
            log.append(b"k%d=%d" % (key, number))
            if number % 10 == 9:
                log.seal()
        log.compact(Compaction(key="delimiter:="))
    assert duramen.verify(tmp_path / "log").ok
    shutil.rmtree(tmp_path / "log" / ".duramen")
    report = duramen.verify(tmp_path / "log")
    assert report.ok, report.findings


def test_a_writer_does_not_invent_the_ends_of_segments(tmp_path: Path) -> None:
    with duramen.open(tmp_path / "log", "a", format="keratin") as log:
        for number in range(30):
            log.append(b"k%d=%d" % (number if number % 10 < 5 else 0, number))
            if number % 10 == 9:
                log.seal()
        log.compact(Compaction(key="delimiter:="))
    shutil.rmtree(tmp_path / "log" / ".duramen")
    (tmp_path / "log" / "manifest.bin").unlink()
    with duramen.open(tmp_path / "log", "a") as log:  # it creates both again
        log.append(b"k=more")
    report = duramen.verify(tmp_path / "log")
    assert report.ok, report.findings
