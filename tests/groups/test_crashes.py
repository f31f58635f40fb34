"""Groups and cursors over power losses and killed processes.

On the simulated disk every operation of a workload is followed by every kind of crash. On the real one, consumer
processes are killed again and again, and a log of what they were answered is held against what is delivered later.
"""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import duramen
from duramen.disk.crash import patterns
from duramen.disk.simulated import SimulatedDisk
from duramen.errors import LeaseError, PoisonedError, StorageError
from duramen.groups.log import ConsumableLog, ConsumableWritableLog
from duramen.testing import Fault, FaultyDisk
from tests.groups.logs import FORMATS, make_log, options, value

RECORDS = 24


@dataclass
class Moment:
    """The disk after one operation, and what had been promised and tried by then."""

    disk: SimulatedDisk
    durable: frozenset[int]
    """Acknowledged, and answered."""
    tried: frozenset[int]
    """Perhaps acknowledged: somebody has begun to."""
    epochs: dict[int, int]
    cursor: tuple[int | None, int | None]


@dataclass
class Workload:
    """Fetches, acks, returns and expired leases, by chance but always the same; rewritten every few events."""

    format_name: str
    seed: int
    moments: list[Moment] = field(default_factory=list)

    def run(self) -> list[Moment]:
        disk = SimulatedDisk()
        dice = random.Random(self.seed)
        with ConsumableWritableLog("/log", disk=disk, format=self.format_name, **options(self.format_name)) as log:
            log.append_batch([value(offset) for offset in range(RECORDS)])
            now_ms = [1_000_000]
            group = log.group("g", clock=lambda: now_ms[0], compact_bytes=700)
            self.durable: set[int] = set()
            self.tried: set[int] = set()
            self.epochs: dict[int, int] = {}
            self.cursor: tuple[int | None, int | None] = (None, None)
            disk.on_operation = lambda number, what: self._keep(disk)
            for step in range(16):
                now_ms[0] += 100
                held = group.fetch(dice.randint(1, 6), lease=dice.choice([0.05, 5.0]))
                self.epochs.update({delivery.offset: delivery.epoch for delivery in held})
                done = [delivery for delivery in held if dice.random() < 0.7]
                self.tried.update(delivery.offset for delivery in done)
                group.ack_many(done)
                self.durable.update(delivery.offset for delivery in done)
                if held and held[-1] not in done:
                    group.nack(held[-1])
                if step % 5 == 4:
                    self.cursor = (self.cursor[0], step)
                    log.cursor("c").store(step)
                    self.cursor = (step, step)
            disk.on_operation = None
        return self.moments

    def _keep(self, disk: SimulatedDisk) -> None:
        self.moments.append(
            Moment(disk.clone(), frozenset(self.durable), frozenset(self.tried), dict(self.epochs), self.cursor)
        )


def _drained(disk: SimulatedDisk, format_name: str) -> Iterator[tuple[int, int]]:
    """Everything that is still delivered, with the epochs; later than every deadline."""
    with ConsumableWritableLog("/log", disk=disk, format=format_name, **options(format_name)) as log:
        assert log.cursor("c").load() in (None, *range(16))
        group = log.group("g", clock=lambda: 10**12)
        while held := group.fetch(7, lease=100):
            yield from ((delivery.offset, delivery.epoch) for delivery in held)


@pytest.mark.parametrize("format_name", FORMATS)
def test_every_crash_keeps_what_was_promised(format_name: str) -> None:
    moments = Workload(format_name, seed=7).run()
    assert len(moments) > 100
    assert any(moment.durable for moment in moments)
    seen: dict[bytes, list[tuple[int, int]]] = {}
    crashes = 0
    for number, moment in enumerate(moments):
        if format_name != "keratin" and number % 3:
            continue
        killed = moment.disk.clone()
        chosen = patterns(number)
        for pattern in [None, *chosen[number % 6 :: 6]]:
            disk = killed if pattern is None else moment.disk.crash(pattern)
            digest = disk.digest()
            if digest not in seen:
                crashes += 1
                with ConsumableLog("/log", disk=disk) as log:
                    assert log.cursor("c").load() in moment.cursor
                seen[digest] = list(_drained(disk, format_name))
            found = seen[digest]
            offsets = [offset for offset, _ in found]
            where = f"{format_name}, moment {number}, {pattern!r}"
            assert len(offsets) == len(set(offsets)), f"two holders at once: {where}"
            assert not moment.durable & set(offsets), f"a durable ack is lost: {where}"
            assert set(range(RECORDS)) - moment.tried <= set(offsets), f"a record disappeared: {where}"
            if pattern is None:
                for offset, epoch in found:
                    assert epoch > moment.epochs.get(offset, 0), f"an epoch was given twice: {where}"
    assert crashes > (200 if format_name == "keratin" else 80)


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


def test_a_failed_sync_answers_no_ack_and_poisons_the_group() -> None:
    under = SimulatedDisk()
    disk = FaultyDisk(under, "sync#1 *.delta: EIO", sync_failure="lost")
    log = ConsumableWritableLog("/log", disk=disk, format="keratin")
    log.append_batch([value(offset) for offset in range(4)])
    group = log.group("g", clock=lambda: 1000)
    held = group.fetch(4)
    with pytest.raises(StorageError):
        group.ack(held[0])
    with pytest.raises(PoisonedError, match="close the log and open it again"):
        group.ack(held[1])
    # The bytes of the failed sync are lost, though every program sees them: what comes next does not build on them.
    again = log.group("g", clock=lambda: 1000)
    assert again is not group
    assert again.ack(held[2])
    found = {offset for offset, _ in _drained(under.crash(patterns(0)[0]), "keratin")}
    assert 2 not in found
    assert {1, 3} <= found


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

CONSUMER = """
import os, random, sys
import duramen
from duramen.errors import LeaseError
root, seed = sys.argv[1], int(sys.argv[2])
dice = random.Random(seed)
with duramen.open(root) as log:
    group = log.group("g", compact_bytes=3000)
    os.write(1, b"open\\n")
    while True:
        batch = group.fetch_batch(dice.randint(1, 9), lease=1.0, timeout_s=0.05)
        for delivery in batch:
            os.write(1, b"got %d %d %d\\n" % (delivery.offset, delivery.epoch, delivery.deadline_ms))
        keep = [delivery for delivery in batch if dice.random() < 0.8]
        for delivery in keep:
            os.write(1, b"try %d\\n" % delivery.offset)
        try:
            group.ack_many(keep)
        except LeaseError as error:
            lost = {o for start, end, _ in error.refused for o in range(start, end)}
            keep = [delivery for delivery in keep if delivery.offset not in lost]
        for delivery in keep:
            os.write(1, b"ack %d %d\\n" % (delivery.offset, delivery.epoch))
"""


def test_killed_consumers_lose_no_ack_and_share_no_lease(tmp_path: Path) -> None:
    """Three consumer processes at a time on one group, killed at random moments, until everything is acknowledged."""
    records = 400
    root = make_log(tmp_path / "log", "keratin", records)
    dice = random.Random(11)
    script = tmp_path / "consumer.py"
    script.write_text(CONSUMER, encoding="ascii")
    acked: dict[int, int] = {}
    tried: set[int] = set()
    leases: dict[tuple[int, int], int] = {}
    kills = 0
    deadline = time.monotonic() + 60
    while kills < 6 and time.monotonic() < deadline:
        outputs = [tmp_path / f"out-{kills + number}" for number in range(3)]
        workers = []
        for number, output in enumerate(outputs):
            with output.open("wb") as stream:
                command = [sys.executable, str(script), str(root), str(kills + number)]
                workers.append(subprocess.Popen(command, stdout=stream))
        while not all(output.stat().st_size for output in outputs):
            assert all(worker.poll() is None for worker in workers), "a consumer ended by itself"
            time.sleep(0.01)
        for worker in workers:
            time.sleep(dice.uniform(0.05, 0.4))
            assert worker.poll() is None, "a consumer ended by itself"
            os.kill(worker.pid, signal.SIGKILL)
            worker.wait()
            kills += 1
        for output in outputs:
            for line in output.read_text().splitlines():
                what, *numbers = line.split()
                if what == "got" and len(numbers) == 3:
                    offset, epoch, until_ms = map(int, numbers)
                    assert (offset, epoch) not in leases, "the same lease went to two consumers"
                    assert offset not in acked, "delivered again after its ack was answered"
                    leases[offset, epoch] = until_ms
                elif what == "try":
                    tried.add(int(numbers[0]))
            for line in output.read_text().splitlines():
                what, *numbers = line.split()
                if what == "ack" and len(numbers) == 2:
                    acked[int(numbers[0])] = int(numbers[1])
    assert kills >= 6
    assert acked
    time.sleep(1.1)
    with duramen.open(root) as log:
        group = log.group("g")
        left = {delivery.offset for delivery in group.fetch(records)}
        assert not left & acked.keys()
        assert set(range(records)) - tried <= left
        assert group.fetch(records) == []
    assert duramen.verify(root).ok


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
        with pytest.raises(LeaseError, match="delivered again since"):
            here.group("g").ack(old)
        there.group("g").ack(new)
        assert here.group("g").acked_until == 1
