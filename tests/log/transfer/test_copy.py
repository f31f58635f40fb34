"""Copies: the same bytes, up to what was acknowledged or to a point in time; checked, whole or not there at all."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import duramen
from duramen.disk import PosixDisk
from duramen.errors import CorruptionError, DuramenError, StorageError, UsageError
from duramen.log.maintain.compact import Compaction
from duramen.log.read.log import Log
from duramen.log.segments import snapshot as snapshot_module
from duramen.log.segments.log_builder import BUILDING
from duramen.log.transfer import source as source_module
from duramen.log.transfer.copy import Copy
from duramen.log.transfer.source import Source, SourcePart
from duramen.log.transfer.update import copy
from duramen.log.verify.verify import verify_log
from duramen.log.write.writable_log import WritableLog
from duramen.sidecar.gaps import LOSSES_PATH, KnownLoss, encode_known_losses
from duramen.sidecar.tx_ledger import LedgerEntry, record_batch
from duramen.testing.crash import CrashPattern
from duramen.testing.faulty_disk import FaultyDisk
from duramen.testing.simulated_disk import SimulatedDisk
from tests.cli.running import flip
from tests.log.conftest import FORMATS, START_US, options, value


def own_files(root: Path) -> dict[str, bytes]:
    """The log's files without the sidecar."""
    found = {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    return {name: data for name, data in found.items() if not name.startswith(".duramen")}


@pytest.fixture
def written(tmp_path: Path, format_name: str) -> Path:
    """A log of three segments, made by the writer."""
    with duramen.open(tmp_path / "log", "a", format=format_name, **options(format_name)) as log:
        for first in (0, 10, 20):
            log.append_batch([value(first + n) for n in range(6)])
            log.append_batch([value(first + n) for n in range(6, 10)])
            if format_name != "fixed-slot" and first < 20:
                log.seal()
    return tmp_path / "log"


def test_a_copy_is_the_same(written: Path, tmp_path: Path) -> None:
    done = duramen.copy(written, tmp_path / "copy")
    assert own_files(tmp_path / "copy") == own_files(written)
    assert (done.records, done.first_offset, done.next_offset) == (30, 0, 30)
    report = duramen.verify(tmp_path / "copy")
    assert (report.ok, report.findings) == (True, [])
    with duramen.open(tmp_path / "copy", "a") as log:
        assert log.append(value(30)) == 30
    assert not (tmp_path / ("copy" + BUILDING)).exists()


@pytest.mark.parametrize("until", [0, 9, 10, 25, 99])
def test_up_to_an_offset(written: Path, tmp_path: Path, until: int) -> None:
    done = duramen.copy(written, tmp_path / "copy", until_offset=until)
    kept = min(until, 30)
    assert (done.records, done.next_offset) == (kept, kept)
    with duramen.open(tmp_path / "copy", "a") as log:
        assert [record.value for record in log.scan()] == [value(offset) for offset in range(kept)]
        assert log.append(value(kept)) == kept
    report = duramen.verify(tmp_path / "copy")
    assert (report.ok, report.findings) == (True, [])


@settings(max_examples=10)
@given(until=st.integers(-2, 32), name=st.sampled_from(["keratin", "rustlog", "osiris"]))
def test_up_to_a_time(until: int, name: str) -> None:
    """Without the first record of that time or later, and everything after it."""
    disk = SimulatedDisk()
    with WritableLog("/log", format=name, disk=disk) as log:
        for offset in range(30):
            log.append(value(offset), timestamp=START_US // 1000 + offset // 3 * 3)
            if offset == 14:
                log.seal()
    copy("/log", "/copy", until_time=START_US // 1000 + until, disk=disk)
    kept = [offset for offset in range(30) if offset // 3 * 3 < until]
    with Log("/copy", disk=disk) as log_copy:
        assert [record.offset for record in log_copy.scan()] == kept
    assert verify_log("/copy", disk=disk).ok


def test_streams_of_a_real_broker(osiris: Path, tmp_path: Path) -> None:
    for scenario in sorted(path.name for path in osiris.iterdir() if path.is_dir()):
        if not list((osiris / scenario).glob("*.segment")):
            continue
        done = duramen.copy(osiris / scenario, tmp_path / scenario)
        with duramen.open(osiris / scenario) as log, duramen.open(tmp_path / scenario) as copied:
            assert done.next_offset == log.next_offset == copied.next_offset
            assert all(a == b for a, b in zip(log, copied, strict=True))
        for path in (osiris / scenario).glob("*.segment"):
            data = (tmp_path / scenario / path.name).read_bytes()
            assert path.read_bytes().startswith(data)
            assert len(data) == path.stat().st_size or done.torn_bytes


def test_a_cut_inside_of_a_chunk(osiris: Path, tmp_path: Path) -> None:
    """Compressed sub-batches too: of the chunk that the cut lies in, the records before it are kept."""
    with duramen.open(osiris / "subbatch") as log:
        records = list(log)
    for until in (records[1].offset, records[len(records) // 2].offset, records[-1].offset):
        path = tmp_path / str(until)
        duramen.copy(osiris / "subbatch", path, until_offset=until)
        expected = [(r.offset, r.timestamp, r.value) for r in records if r.offset < until]
        assert [(r.offset, r.timestamp, r.value) for r in duramen.open(path)] == expected
        assert duramen.verify(path).ok


def test_a_log_without_a_sidecar_and_one_file(write: Any, tmp_path: Path, format_name: str) -> None:
    root = write(format_name, 7, 5)
    duramen.copy(root, tmp_path / "copy", **options(format_name))
    assert own_files(tmp_path / "copy").keys() == own_files(root).keys()
    assert not (root / ".duramen").exists()
    with duramen.open(tmp_path / "copy", "a") as log:
        assert log.append(value(12)) == 12
    segment = next(path for path in sorted(root.rglob("*")) if path.suffix in (".log", ".segment"))
    done = duramen.copy(segment, tmp_path / "one", **options(format_name))
    assert done.records == (12 if format_name == "fixed-slot" else 7)


def test_an_empty_log(tmp_path: Path, format_name: str) -> None:
    duramen.open(tmp_path / "log", "a", format=format_name, **options(format_name)).close()
    done = duramen.copy(tmp_path / "log", tmp_path / "copy")
    assert (done.records, done.segments) == (0, 1)
    with duramen.open(tmp_path / "copy", "a") as log:
        assert log.append(value(0)) == 0


# --- a log that is alive

WRITER = """
    import sys, duramen
    with duramen.open(sys.argv[1], "a", format=sys.argv[2], segment_max_bytes=30_000, durability="write") as log:
        number = 0
        print("ready", flush=True)
        while True:
            log.append_batch([b"%08d" % (number + i) for i in range(7)])
            number += 7
"""


@pytest.mark.parametrize("name", ["keratin", "rustlog", "osiris"])
def test_while_another_process_writes(tmp_path: Path, name: str) -> None:
    """Every copy holds whole appends, all of those that were acknowledged when it began."""
    command = [sys.executable, "-c", textwrap.dedent(WRITER), str(tmp_path / "log"), name]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            for attempt in range(3):
                with duramen.open(tmp_path / "log") as log:
                    before = log.next_offset
                done = duramen.copy(tmp_path / "log", tmp_path / f"copy{attempt}")
                with duramen.open(tmp_path / f"copy{attempt}", "a") as log:
                    values = [record.value for record in log.scan()]
                assert values == [b"%08d" % number for number in range(done.records)]
                assert done.records >= before
                assert done.records % 7 == 0
                assert duramen.verify(tmp_path / f"copy{attempt}").ok
        finally:
            process.kill()


def test_segments_that_are_removed_during_the_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with duramen.open(tmp_path / "log", "a", format="keratin", segment_max_bytes=500) as log:
        log.append_batch([value(offset) for offset in range(60)])
    segments = sorted((tmp_path / "log" / "segments").glob("*.log"))
    begun = Copy(str(tmp_path / "log"), str(tmp_path / "whole"))
    segments[0].unlink()
    assert begun.run().records == 60, "what is mapped stays readable"
    # Between the listing and the opening: look again.
    real = source_module.Log.snapshot.fget
    assert real is not None
    gone = iter(segments[1:3])

    def listed(log: Log) -> Any:
        snapshot = real(log)
        for path in gone:
            path.unlink()
            break
        return snapshot

    monkeypatch.setattr(source_module.Log, "snapshot", property(listed))
    assert duramen.copy(tmp_path / "log", tmp_path / "less").records < 60
    assert duramen.verify(tmp_path / "less").ok
    monkeypatch.setattr(snapshot_module, "ATTEMPTS", 2)
    gone = iter(segments[3:])
    with pytest.raises(StorageError, match="removed faster"):
        duramen.copy(tmp_path / "log", tmp_path / "none")


@pytest.mark.parametrize("name", ["durable-log", "keratin", "rustlog"])
def test_segments_that_are_compacted_during_the_copy(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their digests were read before they were replaced or removed: that is not damage."""
    with duramen.open(tmp_path / "log", "a", format=name) as log:
        for number in range(4):
            log.append_batch([b"a=%d" % number, b"%d=" % number] if number % 2 else [b"a=%d" % number])
            log.seal()
        mapped = Source._map

        def late(source: Source, opened: Log) -> list[SourcePart]:
            log.compact(Compaction(key="delimiter:="))
            opened.refresh()
            return mapped(source, opened)

        monkeypatch.setattr(Source, "_map", late)
        copied = copy(str(tmp_path / "log"), str(tmp_path / "copy"))
        assert copied.records == 3
        assert list(duramen.open(tmp_path / "copy")) == list(duramen.open(tmp_path / "log"))


def test_what_is_beside_the_records(tmp_path: Path, golden: Path) -> None:
    with duramen.open(tmp_path / "log", "a", format="keratin") as log:
        log.append_batch([value(offset) for offset in range(9)])
    for name in (".duramen/cursors/c.json", ".duramen/ledger/l.json", "groups/t-0_g.snap"):
        (tmp_path / "log" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "log" / name).write_bytes(next((golden / "keratin").rglob("*.snap")).read_bytes())
    ledger = tmp_path / "log" / ".duramen/ledger/l.json"
    ledger.unlink()
    record_batch(PosixDisk(), str(tmp_path / "log"), LedgerEntry("l", 1, "a", 9, {".": (0, 9)}, 0))
    next(ledger.parent.iterdir()).rename(ledger)
    done = duramen.copy(tmp_path / "log", tmp_path / "copy")
    assert done.state == [".duramen/cursors/c.json", ".duramen/ledger/l.json", "groups/t-0_g.snap"]
    assert all((tmp_path / "copy" / name).exists() for name in done.state)
    done = duramen.copy(tmp_path / "log", tmp_path / "earlier", until_offset=5)
    assert (done.state, done.left_behind) == ([], 3)
    done = duramen.copy(tmp_path / "log", tmp_path / "not-earlier", until_offset=9)
    assert len(done.state) == 3, "it ends where the log does"
    (tmp_path / "log" / "groups" / "t-0_g.snap").write_bytes(b"torn")
    with pytest.raises(CorruptionError, match=r"log/groups/t-0_g\.snap"):
        duramen.copy(tmp_path / "log", tmp_path / "damaged")


def test_a_writer_that_died(tmp_path: Path, format_name: str) -> None:
    """A torn tail is left out."""
    path = tmp_path / "log"
    with duramen.open(path, "a", format=format_name, **options(format_name)) as log:
        log.append_batch([value(offset) for offset in range(9)])
        shutil.copytree(path, tmp_path / "killed")
    segment = next(p for p in sorted((tmp_path / "killed").rglob("*")) if p.suffix in (".log", ".segment"))
    with segment.open("ab") as file:
        file.write(segment.read_bytes()[-15:-3])
    done = duramen.copy(tmp_path / "killed", tmp_path / "copy")
    assert done.records == 9
    assert duramen.verify(tmp_path / "copy").findings == []


# --- what goes wrong


def test_damage_stops_it(written: Path, tmp_path: Path, format_name: str) -> None:
    segment = next(path for path in sorted(written.rglob("*")) if path.suffix in (".log", ".segment"))
    flip(segment, segment.stat().st_size // 2)
    with pytest.raises(CorruptionError, match="duramen repair") as caught:
        duramen.copy(written, tmp_path / "copy")
    assert "--on-damage" not in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log"]


def test_a_lost_segment_is_noticed(tmp_path: Path, osiris: Path) -> None:
    shutil.copytree(osiris / "plain", tmp_path / "log")
    lost = sorted((tmp_path / "log").glob("*.segment"))[2]
    lost.unlink()
    lost.with_suffix(".index").unlink()
    with pytest.raises(CorruptionError, match="missing"):
        duramen.copy(tmp_path / "log", tmp_path / "copy")
    bases = [int(path.stem) for path in sorted((osiris / "plain").glob("*.segment"))]
    known = encode_known_losses([KnownLoss(bases[2], bases[3] - 1, "given up", "")])
    (tmp_path / "log" / ".duramen").mkdir()
    (tmp_path / "log" / LOSSES_PATH).write_bytes(known)
    duramen.copy(tmp_path / "log", tmp_path / "copy")
    assert (tmp_path / "copy" / LOSSES_PATH).read_bytes() == known


def test_wrong_usage(tmp_path: Path) -> None:
    with duramen.open(tmp_path / "log", "a", format="durable-log") as log:
        log.append(b"x")
    (tmp_path / "taken").mkdir()
    wrong: list[tuple[str, dict[str, Any], str]] = [
        ("taken", {}, "exists"),
        ("log", {}, "inside the old one"),
        ("log/below", {}, "inside the old one"),
        ("copy", {"until_offset": -1}, "at least 0"),
        ("copy", {"until_offset": 1, "until_time": 0}, "not both"),
        ("copy", {"until_time": 0}, "no time"),
    ]
    for name, bounds, words in wrong:
        with pytest.raises(UsageError, match=words):
            duramen.copy(tmp_path / "log", tmp_path / name, **bounds)
    with pytest.raises(StorageError):
        duramen.copy(tmp_path / "nothing", tmp_path / "copy")
    with pytest.raises(StorageError):
        duramen.copy(tmp_path / "log", tmp_path / "no" / "copy")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "taken"]


@pytest.mark.parametrize("name", FORMATS)
def test_crashes_and_faults(name: str) -> None:
    disk = SimulatedDisk()
    with WritableLog("/log", format=name, disk=disk, **options(name)) as log:
        log.append_batch([value(offset) for offset in range(5)])
    total = FaultyDisk(disk.clone())
    copy("/log", "/copy", disk=total)
    for call in range(1, total.calls + 1, 3):
        inner = disk.clone()
        with contextlib.suppress(DuramenError):
            copy("/log", "/copy", disk=FaultyDisk(inner, f"#{call}: ENOSPC"))
        if inner.kind("/copy") == "missing":
            copy("/log", "/copy", disk=inner)
        assert verify_log("/copy", disk=inner).records == 5
    crashed: list[SimulatedDisk] = []
    patterns = [CrashPattern("lost", "lost"), CrashPattern("torn", "each", seed=3)]
    disk.on_operation = lambda number, what: crashed.append(disk.crash(patterns[number % 2]))
    copy("/log", "/copy", disk=disk)
    for after in crashed:
        if after.kind("/copy") == "missing":
            copy("/log", "/copy", disk=after)
        assert verify_log("/copy", disk=after).records == 5
        assert after.kind("/copy" + BUILDING) == "missing"
