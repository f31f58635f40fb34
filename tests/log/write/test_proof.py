"""RustLog: the digest that proves a record is synced together with it."""

from __future__ import annotations

import pytest

from duramen.errors import StorageError
from duramen.log.read.log import Log
from duramen.log.write.writable_log import WritableLog
from duramen.sidecar import read_watermark
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
