"""RustLog: the digest that proves a record is synced together with it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import duramen
from duramen.disk import PosixDisk
from duramen.errors import FencedError, StorageError
from duramen.formats import make
from duramen.log.read.log import Log
from duramen.log.segments import snapshot, take_settled_snapshot
from duramen.log.segments.listing import StampedDirectory, list_log_again
from duramen.log.write.writable_log import WritableLog
from duramen.sidecar import (
    CLEAN_CLOSE_NAME,
    TX_MARKER_NAME,
    BatchKey,
    TxMarker,
    prepare_tx_marker,
    read_tx_marker,
    read_watermark,
    read_watermarks,
    write_tx_marker,
)
from duramen.testing import CrashPattern, FaultyDisk, SimulatedDisk, patterns
from duramen.testing.run import ROOT, read_all


def values_of(log: Log) -> list[bytes]:
    return [record.value for record in read_all(log)]


def reopened(disk: SimulatedDisk) -> list[bytes]:
    with WritableLog(ROOT, disk=disk) as log:
        return values_of(log)


def test_readers_see_a_record_once_it_and_its_proof_are_synced() -> None:
    """The watermark that proved it was visible before it was synced: a power loss took a record that was read."""
    disk = SimulatedDisk()
    log = WritableLog(ROOT, format="rustlog", disk=disk)
    log.append(b"zero")
    seen: list[tuple[str, list[bytes]]] = []

    def look(_number: int, operation: str) -> None:
        disk.on_operation = None
        with Log(ROOT, disk=disk) as reader:
            seen.append((operation.split(maxsplit=1)[0], values_of(reader)))
        disk.on_operation = look

    disk.on_operation = look
    log.append(b"one")
    disk.on_operation = None
    synced = [number for number, (operation, _) in enumerate(seen) if operation == "sync"]
    assert len(synced) == 2
    assert all(values == [b"zero"] for _, values in seen[: synced[-1] + 1])
    assert seen[-1][1] == [b"zero", b"one"]


def test_the_proof_alone_keeps_an_acknowledged_record() -> None:
    disk = SimulatedDisk()
    log = WritableLog(ROOT, format="rustlog", disk=disk)
    log.append(b"zero")
    log.append(b"one")
    lost = disk.crash(CrashPattern("lost", "lost"))
    mark = read_watermark(lost, ROOT)
    assert mark is not None
    assert mark.is_proof
    assert mark.durable_offset == 1
    with Log(ROOT, disk=lost) as reader:
        assert values_of(reader) == [b"zero", b"one"]
    assert reopened(lost) == [b"zero", b"one"]


def test_a_proof_without_its_record_proves_what_was_durable() -> None:
    disk = SimulatedDisk()
    log = WritableLog(ROOT, format="rustlog", disk=disk)
    log.append(b"zero")
    clones: list[SimulatedDisk] = []
    disk.on_operation = lambda _number, _operation: clones.append(disk.clone())
    log.append(b"one" * 500)
    disk.on_operation = None
    for clone in clones[:-1]:
        for pattern in patterns():
            crashed = clone.crash(pattern)
            with Log(ROOT, disk=crashed) as reader:
                before = values_of(reader)
            assert before in ([b"zero"], [b"zero", b"one" * 500])
            assert reopened(crashed) == before


def test_a_failed_sync_of_the_proof_poisons_the_writer() -> None:
    disk = SimulatedDisk()
    with WritableLog(ROOT, format="rustlog", disk=disk) as log:
        log.append(b"zero")
    log = WritableLog(ROOT, disk=FaultyDisk(disk, "sync#2 */watermark: EIO"))
    with pytest.raises(StorageError):
        log.append(b"one")
    assert log.is_poisoned
    with Log(ROOT, disk=disk) as reader:
        assert values_of(reader) == [b"zero"]


def test_a_commit_that_the_kernel_leaves_acknowledges_nothing(tmp_path: Path) -> None:
    """The watermark of a record whose segment was replaced before the sync was stored with the next proof."""
    root = tmp_path / "log"
    log = WritableLog(str(root), format="rustlog")
    log.append_batch([b"zero"])
    segment = Path(log.segments[-1].path)
    segment.rename(tmp_path / "was")
    shutil.copy(tmp_path / "was", segment)
    with pytest.raises(FencedError, match="active segment"):
        log.append_batch([b"one"])
    _, mark = read_watermarks(log.disk, log.path)
    assert mark is not None
    assert (mark.next_offset, mark.durable_offset) == (1, 1)
    (tmp_path / "was").rename(segment)
    with Log(str(root)) as reader:
        assert values_of(reader) == [b"zero"]
    log.close()


def test_a_snapshot_is_no_newer_than_its_listing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The watermark that a reader took in place of a proof could name a segment that it had not listed."""
    with WritableLog(str(tmp_path / "log"), format="rustlog") as log:
        log.append(b"zero")
        log.tail.sidecar.begin_proof(log.tail.visible._replace(is_proof=True))

        def list_first(*given: Any) -> StampedDirectory:
            found = list_log_again(*given)
            monkeypatch.undo()
            log.append(b"one")
            log.seal()
            log.append(b"two")
            return found

        monkeypatch.setattr(snapshot, "list_log_again", list_first)
        seen = snapshot.take_snapshot(PosixDisk(), log.path, make("rustlog"))
        assert log.next_offset == 3
    assert seen.watermark is not None
    assert (seen.watermark.base, seen.watermark.next_offset) == (0, 1)
    assert [files.segment.size_bytes for files in seen.directory.segments] == [seen.watermark.position]


def test_earlier_versions_read_the_watermarks_in_other_files(tmp_path: Path) -> None:
    """They refused a close or a transaction with one number more: the marker of a transaction kept them out."""
    with WritableLog(str(tmp_path), format="rustlog") as log:
        log.append(b"zero")
        mark = log.tail.visible
    before = TxMarker(BatchKey("writer", 0, "attempt"), ".duramen/ledger/writer.json", mark)
    write_tx_marker(log.disk, log.path, before)
    prepare_tx_marker(log.disk, log.path, mark)
    closed, begun, prepared = (
        json.JSONDecoder().raw_decode(line)[0]
        for name in (CLEAN_CLOSE_NAME, TX_MARKER_NAME)
        for line in (tmp_path / ".duramen" / name).read_text().splitlines()
    )
    assert [len(closed["mark"]), len(begun["before"]), len(prepared)] == [11, 11, 11]
    assert read_tx_marker(log.disk, log.path) == replace(before, after=mark)


def test_verify_counts_no_record_before_it_and_its_proof_are_synced(tmp_path: Path) -> None:
    with WritableLog(str(tmp_path), format="rustlog") as log:
        log.append(b"zero")
        shown = log.tail.visible
        log.append(b"one")
        proof = log.tail.visible._replace(
            durable_position=shown.position, durable_offset=1, durable_crc32c=shown.crc32c, is_proof=True
        )
        log.tail.sidecar.mark(shown)
        log.tail.sidecar.begin_proof(proof)
        assert duramen.verify(tmp_path).records == 1
        assert take_settled_snapshot(log.disk, log.path, make("rustlog")).watermark == shown
        assert take_settled_snapshot(log.disk, log.path, make("rustlog"), is_ours=True).watermark == proof
