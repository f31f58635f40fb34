"""Retention: what goes, what stays and why; files, sidecar and readers afterwards."""

from __future__ import annotations

import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

import duramen
from duramen.disk import PosixDisk
from duramen.errors import CorruptionError, OffsetError, UsageError
from duramen.formats.rustlog import Checkpoint
from duramen.log.maintain import Compaction
from duramen.log.maintain.retention import Retention
from duramen.sidecar import SealedList
from duramen.sidecar.holds import put_hold, read_holds, release_hold
from duramen.testing import SimulatedDisk

SEGMENTED = {"keratin": {}, "durable-log": {}, "rustlog": {}, "osiris": {}, "kafka": {}}
DAY_US = 86_400_000_000
HOUR_NS = 3600 * 10**9


def fill(
    log: duramen.log.write.writable_log.WritableLog, segments: int = 5, each: int = 20, first_us: int | None = None
) -> None:
    for number in range(segments):
        values = pa.array([b"%d-%d" % (number, row) * 10 for row in range(each)])
        columns = {"value": values}
        if first_us is not None:
            columns["timestamp"] = pa.array([first_us + number * DAY_US] * each, pa.timestamp("us", "UTC"))
        log.append_batch(pa.record_batch(columns))
        log.seal()


@pytest.fixture(params=SEGMENTED)
def log(request: pytest.FixtureRequest, tmp_path: Path):  # type: ignore[no-untyped-def]
    with duramen.open(str(tmp_path / "log"), "a", format=request.param) as opened:
        yield opened


def check_whole(path: str, first: int, last: int) -> None:
    report = duramen.verify(path)
    assert report.ok
    assert not [finding for finding in report.findings if finding.severity != "note"], report.findings
    with duramen.open(path) as reader:
        offsets = [record.offset for record in reader.scan()]
    assert offsets[0] >= first
    assert offsets[-1] == last


def test_by_offset_whole_segments_only(log) -> None:  # type: ignore[no-untyped-def]
    fill(log)
    bases = [segment.base_offset for segment in log.segments]
    plan = log.retain(Retention(before_offset=bases[2] + 3))
    assert [one.base for one in plan.removed] == bases[:2]
    assert plan.first_offset == log.first_offset == bases[2]
    assert "no rule" in plan.kept_because
    following = log.append(b"behind")
    log.close()
    check_whole(log.path, bases[2], following)
    with duramen.open(log.path, "a") as again:
        assert again.first_offset == bases[2]
        assert again.append(b"more") == following + 1


def test_a_dry_run_changes_nothing(log) -> None:  # type: ignore[no-untyped-def]
    fill(log)
    before = sorted(path for path in Path(log.path).rglob("*") if path.is_file())
    plan = log.retain(Retention(max_bytes=0), dry_run=True)
    assert len(plan.removed) == 5
    assert "active" in plan.kept_because
    assert sorted(path for path in Path(log.path).rglob("*") if path.is_file()) == before


def test_by_bytes_until_it_fits(log) -> None:  # type: ignore[no-untyped-def]
    fill(log)
    everything = log.retain(Retention(), dry_run=True).kept_bytes
    plan = log.retain(Retention(max_bytes=everything // 2))
    assert plan.removed
    assert plan.kept_bytes <= everything // 2
    assert plan.kept_bytes + plan.removed[-1].size_bytes > everything // 2
    assert plan.removed_bytes + plan.kept_bytes == everything


@pytest.mark.parametrize("format", ["keratin", "rustlog", "osiris"])
def test_by_the_age_of_records_never_of_files(tmp_path: Path, format: str) -> None:
    with duramen.open(str(tmp_path / "log"), "a", format=format) as log:
        if format == "osiris":  # its chunks have the time of their writing
            fill(log, 3)
            assert not log.retain(Retention(max_age_ms=60_000)).removed
            time.sleep(0.05)
            assert len(log.retain(Retention(max_age_ms=20)).removed) == 3
            return
        now_us = time.time_ns() // 1000
        fill(log, 5, first_us=now_us - 4 * DAY_US - 1_000_000)
        plan = log.retain(Retention(max_age_ms=int(2.5 * DAY_US / 1000)))
        assert len(plan.removed) == 2
        assert "s old" in plan.removed[0].reason


def test_under_disk_pressure(log) -> None:  # type: ignore[no-untyped-def]
    disk = SimulatedDisk()
    with duramen.open("/log", "a", format=log.format, disk=disk) as squeezed:
        fill(squeezed)
        total, free = disk.space("/log")
        disk.capacity_bytes = total - free + 100
        assert len(squeezed.retain(Retention(keep_free_percent=10.0), dry_run=True).removed) >= 1
        plan = squeezed.retain(Retention(keep_free_percent=100.0))
        assert len(plan.removed) == 5
        assert "% of the file system is free" in plan.removed[0].reason


def test_a_hold_keeps_a_segment_and_is_named(log) -> None:  # type: ignore[no-untyped-def]
    fill(log)
    bases = [segment.base_offset for segment in log.segments]
    everything = Retention(max_bytes=0)
    log.cursor("report").store(bases[3])
    put_hold(PosixDisk(), log.path, "export", bases[1], time.time_ns() // 1000 + 60_000_000)
    plan = log.retain(everything)
    assert [one.base for one in plan.removed] == bases[:1]
    assert [(need.kind, need.name) for need in plan.held_by] == [("job", "export")]
    release_hold(PosixDisk(), log.path, "export")
    assert [one.base for one in log.retain(everything).removed] == bases[1:3]
    log.cursor("report").delete()
    group = log.group("billing")
    group.fetch(1)
    plan = log.retain(everything)
    assert [need.kind for need in plan.held_by] == ["group"]
    assert log.first_offset == bases[3]


def test_a_hold_lapses(tmp_path: Path) -> None:
    with duramen.open(str(tmp_path / "log"), "a") as log:
        put_hold(PosixDisk(), log.path, "../job", 7, 100)
        assert [need.offset for need in read_holds(PosixDisk(), log.path, 99)] == [7]
        assert read_holds(PosixDisk(), log.path, 100) == []
        (Path(log.path) / ".duramen" / "holds" / "other.json").write_bytes(b"{")
        assert read_holds(PosixDisk(), log.path, 100)[0].offset == 0


def test_the_checkpoint_of_rustlog(tmp_path: Path) -> None:
    with duramen.open(str(tmp_path / "log"), "a", format="rustlog") as log:
        fill(log)
        plan = log.retain(Retention(before_offset=40))
        path = Path(log.path) / ".cleaner_checkpoint"
        assert Checkpoint.parse(path.read_bytes()).last_cleaned_offset == plan.first_offset == 40
        path.write_bytes(bytes(16))  # the real program's form
        log.retain(Retention(before_offset=60))
        assert len(path.read_bytes()) == 16
        assert Checkpoint.parse(path.read_bytes()).last_cleaned_offset == 60
    assert duramen.verify(str(tmp_path / "log")).ok


def test_a_reader_of_a_removed_segment_learns_where_to_continue(log) -> None:  # type: ignore[no-untyped-def]
    fill(log)
    bases = [segment.base_offset for segment in log.segments]
    with duramen.open(log.path) as reader:
        records = reader.scan()
        first = next(records)
        log.retain(Retention(before_offset=bases[3]))
        read = [first.offset]
        with pytest.raises(OffsetError, match="removed") as raised:
            read += [record.offset for record in records]
        assert str(bases[3]) in str(raised.value)
        assert read == sorted(set(read))
        reader.refresh()
        assert next(reader.scan(from_offset=bases[3])).offset >= bases[3]


def test_a_timer_and_a_roll_run_it(tmp_path: Path) -> None:
    rules = Retention(max_bytes=2000)
    with duramen.open(
        str(tmp_path / "log"), "a", format="durable-log", segment_max_bytes=1000, retention=rules,
        retention_interval_s=3600,
    ) as log:  # fmt: skip
        for _ in range(200):
            log.append(b"x" * 100, durability="write")
        deadline = time.monotonic() + 10
        while log.first_offset == 0 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert log.first_offset > 0
    names = [thread.name for thread in threading.enumerate()]
    assert not [name for name in names if name.startswith("duramen retention")]


def test_an_idle_log_shrinks(tmp_path: Path) -> None:
    rules = Retention(max_age_ms=30)
    with duramen.open(str(tmp_path / "log"), "a", format="keratin", retention=rules, retention_interval_s=0.05) as log:
        last = log.append_batch([b"a", b"b", b"c"]).base_offset + 2
        deadline = time.monotonic() + 10
        while log.first_offset <= last and time.monotonic() < deadline:
            time.sleep(0.01)
        assert log.first_offset == last + 1
        assert log.append(b"d") == last + 1


def test_rules_that_a_format_cannot_follow_are_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no time"):
        duramen.open(str(tmp_path / "log"), "a", format="fixed-slot", record_size=8, retention=Retention(max_age_ms=5))


def test_without_times_a_segment_is_as_old_as_its_seal(tmp_path: Path) -> None:
    now_ns = [time.time_ns() - 3 * HOUR_NS]
    with duramen.open(str(tmp_path / "log"), "a", format="durable-log", clock=lambda: now_ns[0]) as log:
        for _ in range(3):
            log.append_batch([b"a", b"b"])
            log.seal()
            now_ns[0] += HOUR_NS
        log.append(b"c")
        assert not log.retain(Retention(max_age_ms=4 * HOUR_NS // 10**6)).removed
        plan = log.retain(Retention(max_age_ms=3 * HOUR_NS // 2 // 10**6))
        assert [segment.reason for segment in plan.removed] == [f"it was sealed {s:,} s ago" for s in (10800, 7200)]
        assert plan.kept_because == "no rule removes it"
        assert log.first_offset == 4


def test_a_segment_whose_seal_has_no_time_stays(tmp_path: Path) -> None:
    """Earlier versions did not store when a segment was sealed."""
    root = tmp_path / "log"
    with duramen.open(str(root), "a", format="durable-log") as log:
        for _ in range(3):
            log.append_batch([b"a", b"b"])
            log.seal()
    disk = PosixDisk()
    old = [replace(entry, sealed_ms=None, indexes=None) for entry in SealedList(disk, str(root)).entries().values()]
    SealedList(disk, str(root)).replace(old[:1] + list(SealedList(disk, str(root)).entries().values())[1:])
    with duramen.open(str(root), "a") as log:
        plan = log.retain(Retention(max_age_ms=0))
        assert not plan.removed
        assert plan.kept_because == "its age is unknown: the sealed list does not say when it was sealed"


def test_a_copy_is_as_old_as_its_source(tmp_path: Path) -> None:
    long_ago = time.time_ns() - HOUR_NS
    with duramen.open(str(tmp_path / "log"), "a", format="durable-log", clock=lambda: long_ago) as log:
        log.append(b"a")
        log.seal()
        log.append(b"b")
    duramen.copy(tmp_path / "log", tmp_path / "copy")
    with duramen.open(str(tmp_path / "copy"), "a") as log:
        assert len(log.retain(Retention(max_age_ms=HOUR_NS // 2 // 10**6)).removed) == 1


def test_compaction_makes_no_segment_younger(tmp_path: Path) -> None:
    long_ago = time.time_ns() - HOUR_NS
    with duramen.open(str(tmp_path / "log"), "a", format="durable-log", clock=lambda: long_ago) as log:
        log.append_batch([b"1=a", b"2=a", b"1=b"])
        log.seal()
        log.append(b"1=c")
        log.seal()
        before = [entry.sealed_ms for entry in log.tail.sidecar.sealed().values()]
        assert log.compact(Compaction(key="delimiter:=")).rewritten == 1
        assert [entry.sealed_ms for entry in log.tail.sidecar.sealed().values()] == before


@pytest.mark.parametrize("wrong", [{"max_bytes": -1}, {"keep_free_percent": 101}, {"max_age_ms": -5}])
def test_wrong_rules(wrong: dict[str, int]) -> None:
    with pytest.raises(UsageError, match=r"must be .* \(got -?\d+\)"):
        Retention(**wrong)


@pytest.mark.parametrize("format", ["rustlog", "osiris"])
def test_a_time_that_is_not_what_was_sealed_removes_nothing(format: str, tmp_path: Path) -> None:
    """One flipped bit makes a record of today one of long ago; no checksum covers it, but the digest does."""
    path = tmp_path / "log"
    with duramen.open(path, "a", format=format) as log:
        log.append(b"precious")
        log.seal()
        log.append(b"next")
    damaged = next(file for file in path.iterdir() if file.name in (f"{0:020}.log", f"{0:020}.segment"))
    raw = bytearray(damaged.read_bytes())
    position, bit = {"rustlog": (12 + 1, 4), "osiris": (8 + 8 + 2, 1)}[format]
    assert raw[position] & bit
    raw[position] ^= bit
    damaged.write_bytes(raw)
    with duramen.open(path, "a") as log, pytest.raises(CorruptionError, match="its digest differs") as caught:
        log.retain(Retention(max_age_ms=86_400_000))
    assert caught.value.path == str(damaged)
    assert damaged.read_bytes() == raw


def flip_oldest(log) -> Path:  # type: ignore[no-untyped-def]
    """Flip one bit of a payload in the oldest segment."""
    oldest = Path(log.path) / log.segments[0].path
    content = bytearray(oldest.read_bytes())
    content[-3] ^= 1
    oldest.write_bytes(content)
    return oldest


@pytest.mark.parametrize("rules", [{"max_bytes": 0}, {"before_offset": 40}, {"keep_free_percent": 100.0}])
def test_a_damaged_segment_is_not_removed(log, rules: dict[str, float]) -> None:  # type: ignore[no-untyped-def]
    fill(log)
    flip_oldest(log)
    before = {path: path.read_bytes() for path in Path(log.path).rglob("*") if path.is_file()}
    for dry_run in (True, False):
        with pytest.raises(CorruptionError, match="evidence of damage") as refused:
            log.retain(Retention(**rules), dry_run=dry_run)  # type: ignore[arg-type]
        assert "quarantine" in str(refused.value)
    after = {path: path.read_bytes() for path in Path(log.path).rglob("*") if path.is_file()}
    assert after == before
    log.append(b"the writer continues")
    assert not duramen.verify(log.path).ok


def test_a_damaged_segment_goes_to_the_quarantine_on_request(log) -> None:  # type: ignore[no-untyped-def]
    fill(log)
    oldest = flip_oldest(log)
    content, listed = oldest.read_bytes(), Path(log.path, ".duramen", "sealed.jsonl").read_bytes()
    plan = log.retain(Retention(max_bytes=0, on_damage="quarantine"))
    assert [bool(one.damage) for one in plan.removed] == [True, False, False, False, False]
    assert not oldest.exists()
    kept = [path.read_bytes() for path in Path(log.path, ".duramen", "quarantine").iterdir()]
    assert content in kept
    assert listed in kept  # with the digest that it contradicts
    assert duramen.verify(log.path).ok


def test_a_lost_segment_is_noticed_before_its_neighbours_go(log) -> None:  # type: ignore[no-untyped-def]
    fill(log)
    Path(log.path, log.segments[1].path).unlink()
    with pytest.raises(CorruptionError, match="missing"):
        log.retain(Retention(max_bytes=0))
    assert Path(log.path, log.segments[0].path).exists()


def test_damage_in_a_log_without_sidecar(log) -> None:  # type: ignore[no-untyped-def]
    fill(log)
    flip_oldest(log)
    log.close()
    shutil.rmtree(Path(log.path, ".duramen"))
    with duramen.open(log.path, "a") as again:
        if log.format == "rustlog":  # no checksum covers its records
            assert again.retain(Retention(max_bytes=0)).removed
            return
        with pytest.raises(CorruptionError, match="evidence of damage"):
            again.retain(Retention(max_bytes=0))
        if again.codec.capabilities.compaction:
            with pytest.raises(CorruptionError):
                again.compact(duramen.Compaction(key="delimiter:-"))


def test_a_loss_that_a_repair_accepted_does_not_stop_retention(log) -> None:  # type: ignore[no-untyped-def]
    fill(log)
    flip_oldest(log)
    log.close()
    duramen.repair(log.path, plan_only=False)
    with duramen.open(log.path, "a") as again:
        assert again.retain(Retention(max_bytes=0)).removed


@pytest.mark.parametrize("removed", [1, 2])
def test_a_segment_whose_damage_shows_at_the_next_one_goes_to_the_quarantine(tmp_path: Path, removed: int) -> None:
    with duramen.open(tmp_path / "log", "a", format="durable-log", segment_max_bytes=600) as log:
        fill(log)
        segments = log.segments
    shutil.rmtree(tmp_path / "log" / ".duramen")  # and with it the digest
    oldest = tmp_path / "log" / segments[0].path
    content = bytearray(oldest.read_bytes())
    content[content.rindex(b"GOLD") + 9] ^= 8  # the offset of the last record: no checksum covers it
    oldest.write_bytes(content)
    with duramen.open(tmp_path / "log", "a") as log:
        log.retain(Retention(before_offset=segments[removed].base_offset, on_damage="quarantine"))
    kept = [path.read_bytes() for path in Path(log.path, ".duramen", "quarantine").iterdir()]
    assert content in kept


def test_what_only_the_manifest_misses_is_not_removed(tmp_path: Path) -> None:
    with duramen.open(tmp_path / "log", "a", format="keratin", segment_max_bytes=600) as log:
        fill(log)
        segments = log.segments
    shutil.rmtree(tmp_path / "log" / ".duramen")
    oldest = tmp_path / "log" / segments[0].path
    content = oldest.read_bytes()
    with duramen.open(tmp_path / "log") as reader:
        sizes = {record.offset: len(record.value or b"") for record in reader.scan(to_offset=segments[1].base_offset)}
    assert len(set(sizes.values())) == 1
    oldest.write_bytes(content[: len(content) - (len(content) - 68) // len(sizes)])  # without its last record
    assert [one.code for one in duramen.verify(tmp_path / "log").findings if str(one.severity) == "damage"]
    with duramen.open(tmp_path / "log", "a") as log, pytest.raises(CorruptionError, match="evidence of damage"):
        log.retain(Retention(max_bytes=0))
    assert not duramen.verify(tmp_path / "log").ok
