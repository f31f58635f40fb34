"""Groups over power losses, failing calls, and several processes: single situations.

Whole workloads with every kind of crash are in `tests/torture/test_consumers.py`, killed processes in
`tests/torture/test_kill_consumers.py`.
"""

from __future__ import annotations

import errno
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import duramen
from duramen.consumers.groups.deliveries import Delivery
from duramen.consumers.log import ConsumableLog, ConsumableWritableLog
from duramen.errors import LeaseError, PoisonedError, StorageError
from duramen.testing import Fault, FaultyDisk
from duramen.testing.crash import patterns
from duramen.testing.simulated_disk import SimulatedDisk
from tests.consumers.logs import make_log, options, value


def _drained(disk: SimulatedDisk, format_name: str) -> Iterator[tuple[int, int]]:
    """Everything that is still delivered, with the epochs; later than every deadline."""
    with ConsumableWritableLog("/log", disk=disk, format=format_name, **options(format_name)) as log:
        group = log.group("g", clock=lambda: 10**12)
        while held := group.fetch(7, lease=100):
            yield from ((delivery.offset, delivery.epoch) for delivery in held)


def test_a_crash_while_mending_a_torn_delta() -> None:
    """A torn tail is mended by rewriting; a crash anywhere in that changes nothing either."""
    disk = SimulatedDisk()
    with ConsumableWritableLog("/log", disk=disk, format="keratin") as log:
        log.append_batch([value(offset) for offset in range(10)])
        group = log.group("g", clock=lambda: 1000)
        group.ack_many(group.fetch(4, lease=1)[1:])
    file = disk.open("/log/groups/log-0_g.delta")
    file.write(file.size(), b"\x4b\x45\x00\x01\x00")
    file.sync()
    clones: list[SimulatedDisk] = []
    disk.on_operation = lambda number, what: clones.append(disk.clone())
    with ConsumableWritableLog("/log", disk=disk) as log:
        log.group("g", clock=lambda: 1000).ack(0, 1)
    disk.on_operation = None
    assert len(clones) > 10
    for number, clone in enumerate(clones):
        for pattern in patterns(number)[number % 6 :: 6]:
            found = {offset for offset, _ in _drained(clone.crash(pattern), "keratin")}
            assert {4, 5, 6, 7, 8, 9} <= found <= {0, 4, 5, 6, 7, 8, 9}


def test_records_that_a_power_loss_took_are_not_taken_for_acknowledged() -> None:
    """Appended at `write`, delivered, acknowledged at `fsync`; then the records are lost, and their offsets reused."""
    disk = SimulatedDisk()
    log = ConsumableWritableLog("/log", disk=disk, format="keratin")
    log.append_batch([b"a", b"b"])
    log.append_batch([b"c", b"d"], durability="write")
    log.group("g").ack_many(log.group("g").fetch(10))
    crashed = disk.crash(patterns(0)[0])
    with ConsumableWritableLog("/log", disk=crashed) as again:
        assert again.next_offset == 2, "this pattern loses what was not synced"
        assert again.append_batch([b"new", b"newer"]).base_offset == 2
        assert [delivery.value for delivery in again.group("g").fetch(10)] == [b"new", b"newer"]


def test_a_failed_sync_confirms_no_ack_and_poisons_the_group() -> None:
    under = SimulatedDisk()
    disk = FaultyDisk(under, "sync#1 *.delta: EIO", sync_failure="lost")
    log = ConsumableWritableLog("/log", disk=disk, format="keratin")
    log.append_batch([value(offset) for offset in range(4)])
    group = log.group("g", clock=lambda: 1000)
    held = group.fetch(4)
    with pytest.raises(StorageError):
        group.ack(held[0])
    with pytest.raises(PoisonedError, match="close the log and reopen it"):
        group.ack(held[1])
    # The bytes of the failed sync are lost, though every program sees them: what comes next does not build on them.
    again = log.group("g", clock=lambda: 1000)
    assert again is not group
    assert again.ack(held[2])
    found = {offset for offset, _ in _drained(under.crash(patterns(0)[0]), "keratin")}
    assert 2 not in found
    assert {1, 3} <= found


def test_a_failed_sync_acknowledges_no_append_that_shared_it() -> None:
    disk = FaultyDisk(SimulatedDisk(), "sync#1 *.delta: EIO")
    log = ConsumableWritableLog("/log", disk=disk, format="keratin")
    log.append_batch([value(offset) for offset in range(8)])
    group = log.group("g", clock=lambda: 1000)
    held = group.fetch(8)
    gathered = threading.Barrier(8)
    answers: list[object] = []

    def acknowledge(delivery: Delivery) -> None:
        gathered.wait()
        try:
            answers.append(group.ack(delivery))
        except (StorageError, PoisonedError) as error:
            answers.append(type(error))

    with group._mutex:  # so that the first one waits for all the others
        threads = [threading.Thread(target=acknowledge, args=(delivery,)) for delivery in held]
        for thread in threads:
            thread.start()
        time.sleep(0.1)
    for thread in threads:
        thread.join()
    assert len(answers) == 8
    assert True not in answers
    assert StorageError in answers


def test_a_failed_write_hands_nothing_out_and_forgets_nothing() -> None:
    """Several fetches share one write. Where it fails halfway, none of them is answered, and nothing is skipped."""
    disk = FaultyDisk(SimulatedDisk(), "write#1 *.delta: short ENOSPC")
    log = ConsumableWritableLog("/log", disk=disk, format="keratin")
    log.append_batch([value(offset) for offset in range(9)])
    now_ms = [1000]
    group = log.group("g", clock=lambda: now_ms[0])
    answers: list[object] = []

    def fetch() -> None:
        try:
            answers.append(group.fetch(3, lease=10))
        except StorageError as error:
            answers.append(error.errno)

    with group._mutex:
        threads = [threading.Thread(target=fetch) for _ in range(3)]
        for thread in threads:
            thread.start()
        time.sleep(0.1)
    for thread in threads:
        thread.join()
    delivered = [delivery.offset for answer in answers if isinstance(answer, list) for delivery in answer]
    assert errno.ENOSPC in answers
    assert len(delivered) == len(set(delivered))
    now_ms[0] += 20_000
    again = group.fetch(20)
    assert sorted(delivery.offset for delivery in again) == list(range(9))
    assert all(delivery.epoch > 1 for delivery in again if delivery.offset in delivered)


def test_whatever_call_fails_no_ack_is_lost() -> None:
    """Every call of the disk fails once: what was answered stays, what was not tried is delivered."""
    prepared = SimulatedDisk()
    with ConsumableWritableLog("/log", disk=prepared, format="keratin") as log:
        log.append_batch([value(offset) for offset in range(12)])
    calls, failing, refused = 60, 0, 0
    while failing < calls:
        failing += 1
        under = prepared.clone()
        disk = FaultyDisk(under, [Fault(call=failing, error=errno.ENOSPC, short=failing % 2 == 0)])
        answered: set[int] = set()
        tried: set[int] = set()
        clock = lambda: 1000  # noqa: E731
        try:
            log_ = ConsumableLog("/log", disk=disk)
        except StorageError:
            continue
        with log_ as log:
            for _ in range(6):
                try:
                    group = log.group("g", clock=clock)
                    held = group.fetch(2, lease=100)
                    tried.update(delivery.offset for delivery in held)
                    group.ack_many(held)
                    answered.update(delivery.offset for delivery in held)
                except (StorageError, PoisonedError):
                    refused += 1
        calls = max(calls, disk.calls)
        for left in (under.clone(), under.crash(patterns(0)[0])):
            found = {offset for offset, _ in _drained(left, "keratin")}
            assert not answered & found, disk.fired
            assert set(range(12)) - tried <= found, disk.fired
    assert calls > 80
    assert refused > 20


# --- real processes


def test_processes_share_a_group(tmp_path: Path) -> None:
    """Two processes and this one: every record once, and an ack from another process counts here."""
    root = make_log(tmp_path / "log", "rustlog", 1500)
    code = (
        "import sys, duramen\n"
        "with duramen.open(sys.argv[1]) as log:\n"
        "    group = log.group('g', compact_bytes=4000)\n"
        "    while len(batch := group.fetch_batch(40, lease=60)):\n"
        "        print(*batch.offsets.tolist())\n"
        "        group.ack_many(batch)\n"
    )
    workers = [
        subprocess.Popen([sys.executable, "-c", code, str(root)], stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    taken: list[int] = []
    with duramen.open(root) as log:
        group = log.group("g", compact_bytes=4000)
        while len(batch := group.fetch_batch(40, lease=60)):
            taken += batch.offsets.tolist()
            group.ack_many(batch)
            time.sleep(0.01)
        for worker in workers:
            told, _ = worker.communicate(timeout=60)
            assert worker.returncode == 0
            taken += map(int, told.split())
        assert sorted(taken) == list(range(1500))
        assert group.status()[1:4] == (1500, 1500, 0)


def test_an_old_holder_is_fenced_by_another_process(tmp_path: Path) -> None:
    root = make_log(tmp_path / "log", "durable-log", 2)
    with duramen.open(root) as here, duramen.open(root) as there:
        (old,) = here.group("g").fetch(1, lease=0.05)
        time.sleep(0.1)
        (new,) = there.group("g").fetch(1, lease=60)
        assert (new.offset, new.epoch) == (0, 2)
        with pytest.raises(LeaseError, match="delivered again"):
            here.group("g").ack(old)
        there.group("g").ack(new)
        assert here.group("g").acked_until == 1


def test_a_dead_letter_in_an_open_log_survives_a_power_loss() -> None:
    """The record leaves the group, so its dead letter must be on disk; that log's own appends are not synced."""
    disk = SimulatedDisk()
    dead = ConsumableWritableLog("/dead", disk=disk, format="keratin", durability="write")
    with ConsumableWritableLog("/log", disk=disk, format="keratin") as log:
        log.append_batch([value(0), value(1)])
        group = log.group("g", max_attempts=1, dead_letter=dead, clock=lambda: 1000)
        group.nack(group.fetch(1, lease=1)[0])
        assert [delivery.offset for delivery in group.fetch(1)] == [1]
        for pattern in patterns():
            with ConsumableLog("/dead", disk=disk.crash(pattern)) as left:
                assert [record.value for record in left] == [value(0)]
    dead.close()
