"""Bugs of groups that the crash explorer found, or that were found while it was built; each as small as it gets."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from duramen.consumers.groups import store as group_store
from duramen.consumers.groups.deliveries import claims_of
from duramen.consumers.groups.state_machine import LeaseClaim
from duramen.consumers.log import ConsumableLog, ConsumableWritableLog
from duramen.errors import StorageError
from duramen.log.verify.verify import verify_log
from duramen.log.write.group_commit import Request
from duramen.testing.crash import CrashPattern, DataKind, patterns
from duramen.testing.simulated_disk import SimulatedDisk
from tests.consumers.logs import value
from tests.sampling import every
from tests.torture.mortal import KilledError, MortalDisk

LOST = CrashPattern("lost", "lost")


def now_ms() -> int:
    return 1000


def log_on(disk: SimulatedDisk, records: int) -> ConsumableWritableLog:
    log = ConsumableWritableLog("/log", disk=disk, format="keratin")
    log.append_batch([value(offset) for offset in range(records)])
    return log


def delivered(disk: SimulatedDisk) -> list[int]:
    """What is still delivered once every lease has ended."""
    with ConsumableWritableLog("/log", disk=disk, format="keratin") as log:
        return sorted(delivery.offset for delivery in log.group("g", clock=lambda: 10**9).fetch(100))


@pytest.mark.parametrize("dies_at", [5, 6, 10, 11, 12])
def test_an_ack_in_a_delta_whose_name_a_killed_process_did_not_sync(dies_at: int) -> None:
    """One process is killed while it begins a new delta, another acknowledges in what it finds, the power fails."""
    disk = SimulatedDisk()
    log_on(disk, 10)
    mortal = MortalDisk(disk)
    group = ConsumableLog("/log", disk=mortal).group("g", clock=now_ms)
    held = group.fetch(10, lease=5)
    group.ack_many(held[5:])
    mortal.die_after(dies_at)
    with suppress(KilledError):
        group.compact()
    ConsumableLog("/log", disk=disk).group("g", clock=now_ms).ack_many(held[2:4])
    assert delivered(disk.crash(LOST)) == [0, 1, 4]


def test_an_ack_whose_delta_was_replaced_before_it_was_synced() -> None:
    """The same for an ack that was written before, and whose turn to be synced comes after."""
    disk = SimulatedDisk()
    log = log_on(disk, 10)
    group = log.group("g", clock=now_ms)
    held = group.fetch(10, lease=5)
    acking = [Request([LeaseClaim(7, 8, held[7].epoch)], 0, 0)]
    _, ticket = group._under_lock(acking, group._serve_acks, group._store.ticket)
    mortal = MortalDisk(disk)
    other = ConsumableLog("/log", disk=mortal).group("g", clock=now_ms)

    def watch(_number: int, what: str) -> None:
        if what.startswith("replace") and "delta" in what:
            mortal.die_after(1)

    disk.on_operation = watch
    with pytest.raises(KilledError, match="sync_directory"):
        other.compact()
    disk.on_operation = None
    group.status()  # another thread looks at what is there
    group._store.sync(ticket)
    assert delivered(disk.crash(LOST)) == [0, 1, 2, 3, 4, 5, 6, 8, 9]


def test_an_ack_that_another_process_has_written_and_not_synced() -> None:
    """It is there already, so nothing is written; but who asks for `fsync` is answered after a sync."""
    disk = SimulatedDisk()
    log_on(disk, 4)
    group = ConsumableLog("/log", disk=disk).group("g", clock=now_ms)
    held = group.fetch(4, lease=5)
    group.ack_many(held[1:], durability="write")
    assert ConsumableLog("/log", disk=disk).group("g", clock=now_ms).ack_many(held[1:]) == 0
    assert delivered(disk.crash(LOST)) == [0]


def test_a_torn_reset_forgets_no_ack() -> None:
    """With so many marks the end of a sector lies between the events of a reset. What was acknowledged before it, and
    would be after it, is so in between."""
    disk = SimulatedDisk()
    log = log_on(disk, 20)
    group = log.group("g", clock=now_ms)
    held = group.fetch(20, lease=5)
    group.ack_many(held[:12])
    for _ in range(34):
        group.extend(held[15])
    clones: list[SimulatedDisk] = []
    disk.on_operation = lambda _number, _operation: clones.append(disk.clone())
    group.reset(10)
    for number, clone in enumerate(clones):
        for pattern in patterns(number, 2):
            assert min(delivered(clone.crash(pattern))) >= 10, pattern


@pytest.mark.slow
def test_a_torn_rewind_forgets_no_ack() -> None:
    """The same where recovery takes back what a group says of lost records."""
    disk = SimulatedDisk()
    log = log_on(disk, 20)
    log.append_batch([value(20), value(21)], durability="write")
    group = log.group("g", clock=now_ms)
    held = group.fetch(22, lease=5)
    group.ack_many([*held[:12], *held[20:]])
    for _ in range(30):
        group.extend(held[15])
    group.ack(held[12])
    crashed = disk.crash(LOST)
    clones: list[SimulatedDisk] = []
    crashed.on_operation = lambda _number, _operation: clones.append(crashed.clone())
    ConsumableWritableLog("/log", disk=crashed).close()
    assert any(".delta" in path for path in crashed.tree())
    for number, clone in [*enumerate(clones)][:: every(4)]:
        for pattern in patterns(number, 2):
            assert delivered(clone.crash(pattern)) == list(range(13, 20)), pattern


def test_dead_letters_are_on_the_disk_of_their_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path was opened on the real disk, whatever disk the log was on."""
    monkeypatch.chdir(tmp_path)
    disk = SimulatedDisk()
    group = log_on(disk, 2).group("g", clock=now_ms, max_attempts=1, dead_letter="dead")
    assert group.nack(group.fetch(2)) == 2
    assert not list(tmp_path.iterdir())
    with ConsumableLog("dead", disk=disk) as dead:
        assert [record.value for record in dead.scan()] == [value(0), value(1)]


def test_dead_letters_are_durable_when_a_nack_returns() -> None:
    disk = SimulatedDisk()
    group = log_on(disk, 2).group("g", clock=now_ms, max_attempts=1, dead_letter="/dead")
    assert group.nack(group.fetch(2)) == 2
    with ConsumableLog("/dead", disk=disk.crash(LOST)) as dead:
        assert [record.value for record in dead.scan()] == [value(0), value(1)]


def test_a_torn_event_is_copied_before_others_follow(tmp_path: Path) -> None:
    """A killed process wrote a part of an event. The next one writes the files again instead of appending to it."""
    with ConsumableWritableLog(str(tmp_path), format="keratin") as log:
        log.append_batch([value(offset) for offset in range(10)])
        group = log.group("g", clock=now_ms)
        held = group.fetch(10, lease=5)
        (delta,) = tmp_path.rglob("*.delta")
        before = delta.read_bytes()
        group.ack(held[0])
        torn = delta.read_bytes()[len(before) : -3]
    delta.write_bytes(before + torn)
    with ConsumableWritableLog(str(tmp_path)) as log:
        log.group("g", clock=now_ms).ack(held[5])
    assert torn in [path.read_bytes() for path in (tmp_path / ".duramen/quarantine").iterdir()]
    with ConsumableWritableLog(str(tmp_path)) as log:
        left = log.group("g", clock=lambda: 10**9).fetch(100)
    assert sorted(delivery.offset for delivery in left) == [0, 1, 2, 3, 4, 6, 7, 8, 9]


def test_an_ack_lost_in_a_failed_reset_is_not_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    """They arrived together. The reset writes first what others did in the same turn, and that failed: the ack is in no
    file, so nobody may be told that it is."""
    log = log_on(SimulatedDisk(), 10)
    group = log.group("g", clock=now_ms)
    held = group.fetch(1, lease=5)
    requests = [Request(partial(group._ack, claims_of(held)), 0, 0), Request(partial(group._reset, 5), 0, 0)]

    def full(*_: object) -> None:
        raise StorageError("no space left", path="/log")

    monkeypatch.setattr(group_store, "write_all", full)
    with pytest.raises(StorageError):
        group._take_turn(requests)
    monkeypatch.undo()
    assert [request.result for request in requests] == [None, None]
    assert group.acked_until == 0
    assert group.ack(held[0])


@pytest.mark.parametrize("kind", ["torn", "last", "prefix"])
@pytest.mark.parametrize("block_bytes", [512, 4096])
def test_a_delta_of_which_an_earlier_sector_is_older_is_not_damaged(kind: DataKind, block_bytes: int) -> None:
    """Deliveries are not synced: a power loss may keep the second sector of them and not the first."""
    disk = SimulatedDisk()
    log = log_on(disk, 400)
    group = log.group("g", clock=now_ms)
    for number in range(40):
        held = group.fetch(10, lease=5)
        if number < 3:
            group.ack_many(held)
    acked, with_gaps = range(30), 0
    for seed in range(25):
        pattern = CrashPattern(kind, "kept", block_bytes=block_bytes, seed=seed)
        crashed = disk.crash(pattern)
        report = verify_log("/log", disk=crashed)
        assert report.ok, (pattern, report.findings)
        with_gaps += any(finding.code == "unsynced-delta" for finding in report.findings)
        with ConsumableWritableLog("/log", disk=crashed, format="keratin") as again:
            left = again.group("g", clock=lambda: 10**9).fetch(400)
        assert not {delivery.offset for delivery in left} & set(acked)
        assert len(left) == 400 - len(acked)
    assert with_gaps or kind == "prefix"
