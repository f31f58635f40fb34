"""What the watermark, the digests and the indexes know, opening for append and reading respect."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import duramen
from duramen.disk import PosixDisk
from duramen.formats import Role, make
from duramen.log.maintain.compact import Compaction
from duramen.log.read import log as log_module
from duramen.sidecar.watermark import WatermarkPage, read_watermark
from duramen.testing import CrashPattern, SimulatedDisk
from tests.log.conftest import options

UNCOVERED = ("durable-log", "rustlog", "osiris")
"""The formats whose checksums leave bytes of the headers uncovered."""
RECORDS = 12
_WRITER = """
import os, sys, duramen
log = duramen.open(sys.argv[1], "a", format=sys.argv[2])
for n in range(int(sys.argv[3])):
    log.append(b"record %d" % n)
print("written", flush=True)
os.kill(os.getpid(), 9)
"""


def closed(root: Path, name: str) -> Path:
    with duramen.open(root, "a", format=name, **options(name)) as log:
        for n in range(RECORDS):
            log.append(b"record %09d" % n if name == "fixed-slot" else b"record %d" % n)
    return root


def killed(root: Path, name: str) -> Path:
    done = subprocess.run(
        [sys.executable, "-c", _WRITER, str(root), name, str(RECORDS)], capture_output=True, text=True, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    return root


def segment_of(root: Path, name: str) -> Path:
    return root / make(name, **options(name)).segment_path(0)


def flip(path: Path, position: int, bit: int = 0) -> None:
    raw = bytearray(path.read_bytes())
    raw[position] ^= 1 << bit
    path.write_bytes(raw)


def tree(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def refuses(root: Path) -> None:
    """Opening for append raises and changes nothing, and the damage is still reported afterwards."""
    before = tree(root)
    assert not duramen.verify(root).ok
    with pytest.raises(duramen.CorruptionError):
        duramen.open(root, "a")
    after = tree(root)
    del before[".duramen/lock"], after[".duramen/lock"]  # which names the process
    assert after == before
    assert not duramen.verify(root).ok


def positions(root: Path, name: str) -> list[int]:
    segment = make(name).open_segment(segment_of(root, name).read_bytes(), 0)
    return [int(each) for each in segment.scan(segment.start).columns.position]


@pytest.mark.parametrize("end", [closed, killed])
def test_a_trailer_length_that_swallows_acknowledged_chunks(tmp_path: Path, end: Callable[[Path, str], Path]) -> None:
    """It used to read as one chunk and zeros: 1 of 12 records stayed, and offset 1 was given out again."""
    root = end(tmp_path / "log", "osiris")
    chunk = positions(root, "osiris")[0]
    for bit in range(32):
        copy = tmp_path / f"copy-{bit}"
        shutil.copytree(root, copy)
        flip(segment_of(copy, "osiris"), chunk + 40 + 3 - bit // 8, bit % 8)
        refuses(copy)


@pytest.mark.parametrize("end", [closed, killed])
def test_a_payload_bit_without_a_checksum(tmp_path: Path, end: Callable[[Path, str], Path]) -> None:
    root = end(tmp_path / "log", "rustlog")
    flip(segment_of(root, "rustlog"), positions(root, "rustlog")[5] + 22)
    refuses(root)
    with duramen.open(root) as log, pytest.raises(duramen.CorruptionError, match="digest"):
        log.read(5)
    with duramen.open(root) as log, pytest.raises(duramen.CorruptionError, match="digest"):
        list(log.scan())


@pytest.mark.parametrize("end", [closed, killed])
@pytest.mark.parametrize(("name", "field"), [("osiris", 9), ("osiris", 22), ("osiris", 30), ("durable-log", 9)])
def test_a_header_bit_that_no_checksum_covers(
    tmp_path: Path, name: str, field: int, end: Callable[[Path, str], Path]
) -> None:
    """Timestamp, epoch and chunk id of the last chunk; the offset of the last record."""
    root = end(tmp_path / "log", name)
    flip(segment_of(root, name), positions(root, name)[-1] + field)
    refuses(root)


@pytest.mark.parametrize("name", UNCOVERED)
def test_a_changed_segment_is_not_sealed(tmp_path: Path, name: str) -> None:
    """The digest is carried on from append to append: one taken from the file would vouch for what it holds by then."""
    root = tmp_path / "log"
    with duramen.open(root, "a", format=name) as log:
        for n in range(RECORDS):
            log.append(b"record %d" % n)
        with segment_of(root, name).open("r+b") as file:
            at = positions(root, name)[-1] + {"durable-log": 9, "rustlog": 22, "osiris": 15}[name]
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ 1]))
        with pytest.raises(duramen.CorruptionError, match="does not hold what was written"):
            log.seal()
        with pytest.raises(duramen.PoisonedError):
            log.append(b"later")
    assert not duramen.verify(root).ok


@pytest.mark.parametrize("name", UNCOVERED)
def test_readers_compare_the_digest_of_a_sealed_segment(tmp_path: Path, name: str) -> None:
    root = tmp_path / "log"
    with duramen.open(root, "a", format=name) as log:
        for n in range(RECORDS):
            log.append(b"record %d" % n)
        log.seal()
        log.append(b"in the next")
    at = {"durable-log": 9, "rustlog": 22, "osiris": 15}[name]
    flip(segment_of(root, name), positions(root, name)[-1] + at)
    with duramen.open(root) as log:
        assert log.read(RECORDS).value == b"in the next"
        with pytest.raises(duramen.CorruptionError, match="digest"):
            log.read(RECORDS - 1)
        with pytest.raises(duramen.CorruptionError, match="digest"):
            list(log.scan())
    allowed = ("timestamp-precision", "timestamp-order")  # the flipped bit may be one of a time
    with pytest.raises(duramen.CorruptionError, match=r"digest|lies in the next segment"):
        duramen.convert(root, tmp_path / "other", to="keratin", allow_loss=allowed)


@pytest.mark.parametrize("sealed", [False, True])
def test_zeros_over_a_header_do_not_become_an_empty_record(tmp_path: Path, sealed: bool) -> None:
    """The damage shows at the next record only, and nothing but the digest tells that this one was not empty."""
    with duramen.open(tmp_path / "log", "a", format="durable-log") as log:
        log.append_batch([b"acknowledged %d" % number for number in range(3)])
        if sealed:
            log.seal()
            log.append(b"active")
    segment = tmp_path / "log" / "segment_00000000000000000000.log"
    with segment.open("r+b") as file:
        file.seek(7)
        file.write(bytes(64))
    with duramen.open(tmp_path / "log") as log:
        for look in (lambda: log.read(0), lambda: list(log.scan()), lambda: list(log.batches(0, 1))):
            with pytest.raises(duramen.CorruptionError, match=r"digest|no record ends at"):
                look()


@pytest.mark.parametrize("name", UNCOVERED)
def test_damage_that_is_accepted_leaves_a_copy_of_the_data_and_of_the_witness(tmp_path: Path, name: str) -> None:
    root = closed(tmp_path / "log", name)
    path = segment_of(root, name)
    at = {"durable-log": 9, "rustlog": 22, "osiris": 15}[name]
    flip(path, positions(root, name)[-1] + at)
    damaged, mark = path.read_bytes(), read_watermark(PosixDisk(), str(root))
    with duramen.open(root, "a", on_damage="truncate") as log:
        assert any("damage" in str(step) for step in log.recovery)
        log.append(b"goes on")
    copies = {each.name: each.read_bytes() for each in (root / ".duramen/quarantine").iterdir()}
    assert damaged in copies.values()
    (witness,) = (raw for name, raw in copies.items() if name.startswith("watermark-"))
    assert WatermarkPage(witness).newest == mark
    assert duramen.verify(root).ok


def test_an_index_that_names_chunks_after_the_end_is_evidence_of_loss(osiris: Path, tmp_path: Path) -> None:
    """A broker's segment whose last bytes became zeros: the index still names the chunks."""
    root = tmp_path / "plain"
    shutil.copytree(osiris / "plain", root)
    last = max(root.glob("*.segment"))
    whole = last.read_bytes()
    last.write_bytes(whole[:-3681] + bytes(3681))
    before = tree(root)
    report = duramen.verify(root)
    (lost,) = (finding for finding in report.findings if finding.code == "records-lost")
    assert not report.ok
    assert (lost.path, lost.first_offset, lost.last_offset) == (str(last.with_suffix(".index")), 4981, 4995)
    with pytest.raises(duramen.CorruptionError, match="index names"):
        duramen.open(root, "a")
    assert {name: raw for name, raw in tree(root).items() if not name.startswith(".duramen")} == before


@pytest.mark.parametrize("name", ["durable-log", "rustlog", "keratin", "osiris"])
def test_every_cut_below_an_intact_index_is_a_loss(tmp_path: Path, name: str) -> None:
    """Without a sidecar, as another program leaves a log."""
    root = tmp_path / "log"
    stride = {"rustlog": {"index_interval_records": 1}, "keratin": {"index_stride_bytes": 1}}.get(name, {})
    with duramen.open(root, "a", format=name, **stride) as log:
        for n in range(RECORDS):
            log.append(b"record %d" % n)
    shutil.rmtree(root / ".duramen")
    (root / "manifest.bin").unlink(missing_ok=True)
    path = segment_of(root, name)
    whole, starts = path.read_bytes(), positions(root, name)
    for size in (starts[3], starts[3] + 5, starts[-1], starts[-1] + 1):
        path.write_bytes(whole[:size])
        findings = [finding for finding in duramen.verify(root, format=name).findings if finding.code == "records-lost"]
        assert [finding.first_offset for finding in findings] == [max(n for n, at in enumerate(starts) if at <= size)]
    path.write_bytes(whole)
    assert duramen.verify(root, format=name).ok


def test_a_manifest_ahead_of_the_records_keeps_writers_out(tmp_path: Path) -> None:
    root = closed(tmp_path / "log", "keratin")
    shutil.rmtree(root / ".duramen")
    path = segment_of(root, "keratin")
    path.write_bytes(path.read_bytes()[: positions(root, "keratin")[-1]])
    for index in (Role.INDEX, Role.TIME_INDEX):
        (root / make("keratin").path_of(index, 0)).unlink()
    assert not duramen.verify(root).ok
    with pytest.raises(duramen.CorruptionError, match="next offset"):
        duramen.open(root, "a")


@pytest.mark.parametrize("name", UNCOVERED)
def test_the_watermark_has_the_digest_of_what_was_written(tmp_path: Path, name: str) -> None:
    root = closed(tmp_path / "log", name)
    mark = read_watermark(PosixDisk(), str(root))
    assert mark is not None
    assert mark.has_digest
    assert mark.durable_position == segment_of(root, name).stat().st_size


def test_a_crash_while_sequences_are_mended_costs_no_record() -> None:
    """Mending overwrites bytes below the watermark: it must not vouch for the old ones meanwhile."""
    disk = SimulatedDisk()
    log = duramen.open("/log", "a", format="osiris", disk=disk)
    producer = log.producer("till")
    for n in range(4):
        producer.append(b"sale %d" % n, sequence=n + 1)
    data = bytes(disk.map(log.tail.active.path).data)
    end = log.tail.cursor.position
    at = data.rindex(b"till", 0, end) + 4
    old = data[at : at + 8]
    crashed = []
    disk.on_operation = lambda _number, _what: crashed.extend(
        disk.crash(pattern) for pattern in (CrashPattern("lost", "lost"), CrashPattern("kept", "kept"))
    )
    log.tail.patch([(at, bytes(8)), (at, old)])
    disk.on_operation = None
    assert len(crashed) > 8
    for copy in crashed:
        assert duramen.verify("/log", disk=copy).ok
        with duramen.open("/log", "a", disk=copy) as again:
            assert [record.value for record in again] == [b"sale %d" % n for n in range(4)]


@pytest.mark.parametrize("cut", ["inside a chunk", "between two chunks"])
def test_repair_counts_what_the_index_names_as_lost(osiris: Path, tmp_path: Path, cut: str) -> None:
    """And does not give out its offsets again."""
    root = tmp_path / "plain"
    shutil.copytree(osiris / "plain", root)
    last = max(root.glob("*.segment"))
    whole = last.read_bytes()
    last.write_bytes(whole[: 9343 if cut == "between two chunks" else 9400])
    plan = duramen.repair(root)
    assert plan.lost_records == 15
    assert [(loss.first, loss.last) for loss in plan.losses] == [(4981, 4995)]
    duramen.repair(root, plan_only=False)
    assert duramen.verify(root).ok
    with duramen.open(root, "a") as log:
        assert log.append(b"next") > 4995


@pytest.mark.parametrize("name", ["durable-log", "osiris"])
def test_an_offset_that_jumps_hides_no_record(tmp_path: Path, name: str) -> None:
    """The record after it is out of order, so that the walk found damage, and readers went up to there."""
    root = tmp_path / "log"
    with duramen.open(root, "a", format=name, segment_max_bytes=1000) as log:
        for n in range(60):
            log.append(b"value %020d" % n)
    flip(segment_of(root, name), positions(root, name)[1] + {"durable-log": 9, "osiris": 30}[name])
    with duramen.open(root) as log:
        with pytest.raises(duramen.CorruptionError):
            list(log.scan(0, max_records=2))
        with pytest.raises(duramen.CorruptionError):
            log.read(1)
    with duramen.open(root, "a") as log, pytest.raises(duramen.CorruptionError):
        log.group("g").fetch(10, lease=60)


@pytest.mark.parametrize("name", ["osiris", "keratin"])
@pytest.mark.parametrize("end", [closed, killed])
def test_a_header_that_is_cut_under_durable_records_is_damage(
    tmp_path: Path, name: str, end: Callable[[Path, str], Path]
) -> None:
    root = end(tmp_path / "log", name)
    os.truncate(segment_of(root, name), 5)
    refuses(root)


def test_a_segment_that_compaction_replaces_is_not_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with duramen.open(tmp_path / "log", "a", format="rustlog") as log:
        for n in range(2):
            log.append_batch([b"k%d=%d" % (key % 3, n) for key in range(20)])
            log.seal()
        whole = log_module.Seals

        def compacting(*arguments: Any) -> Any:
            monkeypatch.setattr(log_module, "Seals", whole)
            log.compact(Compaction(key="prefix:2"))
            return whole(*arguments)

        monkeypatch.setattr(log_module, "Seals", compacting)
        with duramen.open(tmp_path / "log") as other:
            assert len(list(other.scan())) >= 3


@pytest.mark.parametrize("name", ["rustlog", "keratin"])
def test_a_watermark_that_is_replaced_fences_the_writer(tmp_path: Path, name: str) -> None:
    """What backup tools do to a file: the next writer would go by the copy, and cut what came since."""
    root = tmp_path / "log"
    with duramen.open(root, "a", format=name) as log:
        log.append_batch([b"value"] * 5)
        mark = root / ".duramen/watermark"
        shutil.copy2(mark, root / "copy")
        (root / "copy").rename(mark)
        with pytest.raises(duramen.FencedError):
            log.append(b"lost")


def test_a_snapshot_by_hard_links_is_not_written_to(tmp_path: Path) -> None:
    root, snapshot = tmp_path / "log", tmp_path / "snapshot"
    with duramen.open(root, "a", format="durable-log", segment_max_bytes=200) as log:
        for n in range(20):
            log.append(b"value %d" % n)
    shutil.copytree(root, snapshot, copy_function=os.link)
    before = tree(snapshot)
    with duramen.open(root, "a") as log:
        for n in range(20):
            log.append(b"value %d" % n)
    del before[".duramen/lock"]
    assert {path: raw for path, raw in tree(snapshot).items() if path in before} == before
    assert duramen.verify(snapshot).ok


def test_exchanged_slots_are_damage(tmp_path: Path) -> None:
    """The checksum of a slot covers its payload, not its place."""
    root = closed(tmp_path / "log", "fixed-slot")
    path = segment_of(root, "fixed-slot")
    raw, size = path.read_bytes(), len(path.read_bytes()) // RECORDS
    slots = [raw[at : at + size] for at in range(0, len(raw), size)]
    slots[2], slots[7] = slots[7], slots[2]
    path.write_bytes(b"".join(slots))
    refuses(root)


def test_bytes_after_a_sealed_segment_that_is_not_the_last(tmp_path: Path) -> None:
    root = tmp_path / "log"
    with duramen.open(root, "a", format="durable-log") as log:
        for n in range(3):
            log.append(b"value %d" % n)
            log.seal()
    with segment_of(root, "durable-log").open("ab") as file:
        file.write(bytes(100))
    refuses(root)


@pytest.mark.parametrize("name", ["change.json", "pending.json"])
def test_a_marker_that_cannot_be_read_is_damage(tmp_path: Path, name: str) -> None:
    root = closed(tmp_path / "log", "keratin")
    (root / ".duramen" / name).write_bytes(b"{")
    refuses(root)
