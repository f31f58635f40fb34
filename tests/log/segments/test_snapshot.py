"""The snapshot: what a reader may see of a log, and how often the log has to be looked at for it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import duramen
from duramen.disk import PosixDisk
from duramen.errors import CorruptionError
from duramen.formats import make
from duramen.log.segments import snapshot as snapshot_module
from duramen.log.segments import take_settled_snapshot, take_snapshot
from duramen.log.write.transaction import _Appending
from duramen.sidecar import BatchKey, CachedConfig, tx_ledger


class CountingDisk(PosixDisk):
    """Counts how often ``log.json`` is read."""

    reads = 0

    def map(self, path: str) -> Any:
        type(self).reads += path.endswith("/log.json")
        return super().map(path)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with duramen.open(tmp_path / "log", "a", format="durable-log") as log:
        log.append_batch([b"one", b"two"])
    return tmp_path / "log"


def test_opening_and_refreshing_a_reader_reads_the_configuration_once(root: Path) -> None:
    CountingDisk.reads = 0
    with duramen.open(root, disk=CountingDisk()) as log:
        for _ in range(5):
            log.refresh()
        assert len(list(log)) == 2
        assert not log.is_replaced()
    assert CountingDisk.reads == 1


def test_an_empty_log_is_opened_with_one_look_at_the_configuration(tmp_path: Path) -> None:
    duramen.open(tmp_path / "log", "a").close()
    for segment in (tmp_path / "log").glob("*.log"):
        segment.unlink()
    CountingDisk.reads = 0
    duramen.open(tmp_path / "log", disk=CountingDisk()).close()
    assert CountingDisk.reads == 1


def test_a_log_that_was_created_again_is_recognised_by_its_file(root: Path) -> None:
    with duramen.open(root) as log:
        shutil.rmtree(root)
        with duramen.open(root, "a", format="keratin") as other:
            other.append(b"new")
        assert log.is_replaced()
        log.refresh()
        assert (log.generation, log.format, [record.value for record in log]) == (1, "keratin", [b"new"])
        assert log.is_replaced(), "it is still not the log that was opened"


def test_other_options_are_not_another_log(root: Path) -> None:
    with duramen.open(root) as log:
        duramen.open(root, "a", segment_max_bytes=1 << 20).close()
        log.refresh()
        assert log.generation == 0
        assert log.snapshot.config is not None
        assert log.snapshot.config.options["segment_max_bytes"] == 1 << 20


def test_a_configuration_that_is_damaged_later_leaves_the_reader_alone(root: Path) -> None:
    with duramen.open(root) as log:
        (root / ".duramen" / "log.json").write_bytes(b"{")
        log.refresh()
        assert not log.is_replaced()
        assert len(list(log)) == 2
    with pytest.raises(CorruptionError, match=r"the sidecar cannot be read"):
        CachedConfig(PosixDisk(), str(root)).read()


def test_a_transaction_is_hidden_from_readers_and_shown_to_verify(root: Path) -> None:
    disk, fmt = PosixDisk(), make("durable-log")
    with duramen.open(root, "a") as log:
        before = log.segments[-1].size_bytes
        tx_ledger.prepare_ledger(disk, str(root))
        work = _Appending(log, BatchKey("q", 0, "a"), ".duramen/ledger/x.json")
        work.store([[b"uncommitted"]])
        seen = take_snapshot(disk, str(root), fmt)
        assert seen.transaction is not None
        assert seen.transaction.before == seen.watermark
        assert [files.segment.size_bytes for files in seen.directory.segments] == [before]
        work.finish()
        after = take_snapshot(disk, str(root), fmt)
        assert after.transaction is None
        assert after.directory.segments[-1].segment.size_bytes > before


def test_verify_sees_a_growing_segment_up_to_the_watermark(root: Path) -> None:
    disk, fmt = PosixDisk(), make("durable-log")
    with duramen.open(root, "a") as log:
        log.append(b"three")
        settled = take_settled_snapshot(disk, str(root), fmt)
        assert settled.watermark is not None
        last = settled.directory.segments[-1]
        assert (last.is_growing, last.segment.size_bytes) == (True, settled.watermark.position)
    assert not take_settled_snapshot(disk, str(root), fmt).directory.segments[-1].is_growing


def test_a_log_that_never_holds_still_is_returned_as_it_is(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A watermark that changes with every look: the last attempt counts, instead of no answer at all."""
    looks: list[int] = []
    monkeypatch.setattr(snapshot_module._SnapshotBuilder, "_fits", lambda *_: looks.append(1))
    monkeypatch.setattr(snapshot_module, "PAUSE_S", 0.0)
    assert len(take_snapshot(PosixDisk(), str(root), make("durable-log")).bases) == 1
    assert len(looks) == snapshot_module.ATTEMPTS - 1
