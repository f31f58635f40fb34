"""Two processes that share a group and cursors on a simulated disk, and the model of what they were told.

`Consuming` is one run: a writer and a reader fetch, acknowledge, return, extend, give up on records (which go to a log
of dead letters), store cursors and reset the group. Either may be killed in the middle of a step while the other goes
on, and the power may fail, after which both begin again. After every operation of the disk a `Moment` is kept.

The model never knows more than the two were told. An ack that was begun and not answered is *tried*; one that was
answered is *written* or *durable*. A lease is known from the answer of a fetch until somebody begins to give it back.
Three promises are held to at every answer, without any crash:

- nobody gets a record that another holds, or one whose ack was answered;
- the epoch of a record rises with every delivery, and never goes beyond the number of attempts;
- an ack, a return or an extension of what is held is not refused.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

from duramen.consumers import ConsumableLog, ConsumableWritableLog, Delivery, Group
from duramen.errors import LeaseError
from duramen.log import WritableLog
from duramen.testing.crash import patterns
from duramen.testing.run import ROOT, BrokenPromiseError, Clock, clocked, has_config, read_all
from duramen.testing.simulated_disk import SimulatedDisk
from duramen.testing.workloads import SETUPS
from tests.torture.mortal import KilledError, MortalDisk

DEAD = "/dead"
GROUP = "g"
CURSORS = ("c", "d")
STEPS = 26
ATTEMPTS = 2
COMPACT_BYTES = 900
"""So little that snapshots are taken again and again."""
FORMATS_OF_DEAD = ("keratin", "durable-log", "osiris")

_WEIGHTS = {
    "append": 5, "fetch": 16, "ack": 12, "nack": 8, "extend": 3, "pass_time": 8, "store": 5, "reset": 2, "reopen": 2,
    "power": 1,
}  # fmt: skip


@dataclass(frozen=True)
class Hold:
    """A delivery that somebody was answered."""

    epoch: int
    until_ms: int
    delivery: Delivery
    who: int


@dataclass
class Told:
    """What the processes had been told by then."""

    now_ms: int = 1_000_000
    attempts: int = 0
    records: dict[int, bytes] = field(default_factory=dict)
    """Of the appends that were answered."""
    kept: set[int] = field(default_factory=set)
    """Those of them that a power loss leaves."""
    holds: dict[int, Hold] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)
    tried: set[int] = field(default_factory=set)
    """Perhaps acknowledged: somebody has begun to."""
    written: set[int] = field(default_factory=set)
    """Acknowledged and answered: outlives a killed process."""
    durable: set[int] = field(default_factory=set)
    """Of those the ones that outlive a power loss."""
    dead: set[bytes] = field(default_factory=set)
    """Values that were given up on, and answered: the log of dead letters holds them."""
    cursors: dict[str, tuple[int | None, ...]] = field(default_factory=lambda: dict.fromkeys(CURSORS, (None,)))
    """What each may say."""

    def copy(self) -> Told:
        return replace(
            self, records=dict(self.records), kept=set(self.kept), holds=dict(self.holds), epochs=dict(self.epochs),
            tried=set(self.tried), written=set(self.written), durable=set(self.durable), dead=set(self.dead),
            cursors=dict(self.cursors),
        )  # fmt: skip

    def is_held(self, offset: int) -> bool:
        """Whether somebody has the record now and is not giving it back."""
        hold = self.holds.get(offset)
        return hold is not None and hold.until_ms > self.now_ms

    def lose_power(self, found: Mapping[int, bytes]) -> None:
        """These records are there; nobody holds any, and of the acks only those are sure that were durable."""
        self.records, self.kept = dict(found), set(found)
        self.holds.clear()
        self.epochs.clear()
        end = max(found, default=-1) + 1
        self.durable = {offset for offset in self.durable if offset < end}
        self.written = set(self.durable)
        self.tried = {offset for offset in self.tried if offset < end}


@dataclass
class Moment:
    operation: str
    disk: SimulatedDisk
    told: Told


@contextlib.contextmanager
def same_times() -> Iterator[None]:
    """Run with clocks that tell the same times in every run."""
    clock = Clock()
    with (
        clocked(),
        mock.patch("duramen.consumers.cursors.time", clock),
        mock.patch("duramen.log.write.osiris_offsets.time", clock),
    ):
        yield


class Consuming:
    """One run."""

    def __init__(self, setup_name: str, seed: int) -> None:
        self.setup = SETUPS[setup_name]
        self.moments: list[Moment] = []
        self._chance = random.Random(repr(("consuming", setup_name, seed)))
        self._dead_format = FORMATS_OF_DEAD[seed % len(FORMATS_OF_DEAD)]
        self._told = Told()
        self._disk = SimulatedDisk()
        self._disks: list[MortalDisk] = []
        self._logs: list[ConsumableLog] = []

    def run(self) -> list[Moment]:
        disk = SimulatedDisk()
        WritableLog(DEAD, format=self._dead_format, disk=disk).close()
        self._begin(disk)
        self._append(0)
        for _ in range(STEPS):
            self._step()
        self._disk.on_operation = None
        for log in self._logs:
            log.close()
        self._note("closed")
        return self.moments

    def open(self, disk: SimulatedDisk | MortalDisk) -> ConsumableWritableLog:
        inner = disk.inner if isinstance(disk, MortalDisk) else disk
        options = {} if has_config(inner) else self.setup.rolling()
        return ConsumableWritableLog(ROOT, format=self.setup.format, disk=disk, **options)

    def value(self, number: int) -> bytes:
        text = f"{number}:".encode()
        return text.ljust(self.setup.record_size or len(text) + number * 37 % 200, b"\xff")

    # --- processes

    def _begin(self, disk: SimulatedDisk) -> None:
        """Both processes start."""
        disk.on_operation = lambda _number, operation: self._note(operation)
        self._disk = disk
        self._disks = [MortalDisk(disk), MortalDisk(disk)]
        self._logs = [self.open(self._disks[0]), ConsumableLog(ROOT, format=self.setup.format, disk=self._disks[1])]

    def _start(self, who: int) -> None:
        """One of them starts again."""
        disk = self._disks[who] = MortalDisk(self._disk)
        self._logs[who] = self.open(disk) if who == 0 else ConsumableLog(ROOT, format=self.setup.format, disk=disk)

    def _group(self, who: int) -> Group:
        return self._logs[who].group(
            GROUP, clock=self._clock, compact_bytes=COMPACT_BYTES, max_attempts=ATTEMPTS,
            dead_letter=DEAD,
        )  # fmt: skip

    def _clock(self) -> int:
        return self._told.now_ms

    def _note(self, operation: str) -> None:
        self.moments.append(Moment(operation, self._disk.clone(), self._told.copy()))

    def _step(self) -> None:
        """One step of one of them; sometimes it dies in it, and starts again at once."""
        kind = self._chance.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
        who = 0 if kind in ("append", "reopen") else self._chance.randrange(2)
        dies = self._chance.random() < 0.25
        lives, in_part = self._chance.randint(1, 14), self._chance.random() < 0.5
        if dies:
            self._disks[who].die_after(lives, in_part=in_part)
        try:
            getattr(self, f"_{kind}")(who)
        except KilledError:
            self._note("killed")
            self._start(who)
        self._disks[who].die_after(None)
        self._note("answered")

    # --- steps

    def _append(self, who: int) -> None:
        told = self._told
        count = self._chance.randint(2, 12)
        values = [self.value(told.attempts + number) for number in range(count)]
        durability = self._chance.choice(("fsync", "fsync", "write"))
        told.attempts += count
        log = self._logs[who]
        assert isinstance(log, ConsumableWritableLog)
        base = log.append_batch(values, durability=durability).base_offset
        told.records.update(enumerate(values, base))
        if durability == "fsync":
            told.kept = set(told.records)

    def _pass_time(self, _who: int) -> None:
        self._told.now_ms += self._chance.choice((1, 40, 700, 6000))

    def _fetch(self, who: int) -> None:
        told = self._told
        most, lease_s = self._chance.randint(1, 9), self._chance.choice((0.05, 1.0, 5.0))
        for delivery in self._group(who).fetch(most, lease=lease_s):
            offset, epoch = delivery.offset, delivery.epoch
            where = f"process {who} got offset {offset}, epoch {epoch}, at {told.now_ms}"
            if told.is_held(offset):
                raise BrokenPromiseError(f"{where}: it is held: {told.holds[offset]}")
            if offset in told.written:
                raise BrokenPromiseError(f"{where}: its ack was answered")
            if not told.epochs.get(offset, 0) < epoch <= ATTEMPTS:
                raise BrokenPromiseError(f"{where}: the last epoch was {told.epochs.get(offset)}")
            if told.records.get(offset, delivery.value) != delivery.value:
                raise BrokenPromiseError(f"{where}: that is another record: {delivery.value[:20]!r}")
            told.epochs[offset] = epoch
            told.holds[offset] = Hold(epoch, delivery.deadline_ms, delivery, who)

    def _some_held(self, who: int) -> list[Hold]:
        """Some of what a process has: mostly still its own, sometimes expired."""
        mine = [hold for hold in self._told.holds.values() if hold.who == who]
        return [hold for hold in mine if self._chance.random() < 0.7]

    def _give(self, holds: Sequence[Hold], work: Callable[[list[Delivery]], Any]) -> list[Hold]:
        """Give deliveries back, in some way; answers those that were taken. While it lasts nobody knows who holds
        them."""
        told = self._told
        for hold in holds:
            told.holds.pop(hold.delivery.offset, None)
        refused: set[int] = set()
        try:
            work([hold.delivery for hold in holds])
        except LeaseError as error:
            refused = {offset for start, end, _ in error.refused for offset in range(start, end)}
        for hold in holds:
            offset = hold.delivery.offset
            if offset in refused and hold.until_ms > told.now_ms and told.epochs.get(offset) == hold.epoch:
                raise BrokenPromiseError(f"offset {offset}, epoch {hold.epoch} is held and was refused")
        return [hold for hold in holds if hold.delivery.offset not in refused]

    def _ack(self, who: int) -> None:
        told, holds = self._told, self._some_held(who)
        durability = self._chance.choice(("fsync", "fsync", "write"))
        before = set(told.tried)
        told.tried |= {hold.delivery.offset for hold in holds}
        taken = self._give(holds, lambda given: self._group(who).ack_many(given, durability=durability))
        offsets = {hold.delivery.offset for hold in taken}
        told.tried = before | offsets
        told.written |= offsets
        if durability == "fsync":
            told.durable |= offsets

    def _nack(self, who: int) -> None:
        told, delay_s = self._told, self._chance.choice((0.0, 0.0, 0.4))
        taken = self._give(self._some_held(who), lambda given: self._group(who).nack(given, delay=delay_s))
        for hold in taken:
            offset = hold.delivery.offset
            if hold.epoch >= ATTEMPTS:
                told.dead.add(hold.delivery.value)
                told.written.add(offset)
            else:
                told.holds[offset] = replace(hold, until_ms=told.now_ms + round(delay_s * 1000), who=-1)

    def _extend(self, who: int) -> None:
        told, lease_s = self._told, self._chance.choice((0.05, 2.0, 9.0))
        taken = self._give(self._some_held(who), lambda given: self._group(who).extend(given, lease_s))
        for hold in taken:
            told.holds[hold.delivery.offset] = replace(hold, until_ms=told.now_ms + round(lease_s * 1000))

    def _store(self, who: int) -> None:
        told, name = self._told, self._chance.choice(CURSORS)
        offset = self._chance.randint(0, max(told.records, default=0) + 1)
        told.cursors[name] = (*told.cursors[name], offset)
        self._logs[who].cursor(name).store(offset)
        told.cursors[name] = (offset,)
        for log in self._logs:
            if log.cursor(name).load() != offset:
                raise BrokenPromiseError(f"cursor {name}: {log.cursor(name).load()} instead of {offset}")

    def _reset(self, who: int) -> None:
        told, group = self._told, self._group(who)
        to = self._chance.choice(sorted(told.records) or [0])
        before = set(range(to))
        told.tried |= before
        told.written &= before
        told.durable &= before
        live = {offset: hold for offset, hold in told.holds.items() if hold.until_ms > told.now_ms}
        told.holds.clear()
        told.epochs = {offset: hold.epoch for offset, hold in live.items()}
        if not self._logs[who].first_offset <= to <= self._logs[who].next_offset:
            return
        group.reset(to)
        told.tried, told.written, told.durable = set(before), set(before), set(before)

    def _reopen(self, _who: int) -> None:
        """The writer ends well, and starts again."""
        self._logs[0].close()
        self._told.kept = set(self._told.records)
        self._start(0)

    def _power(self, _who: int) -> None:
        """The power fails, and both start again."""
        pattern = self._chance.choice(patterns(self._chance.getrandbits(32)))
        told = self._told
        told.written = set(told.durable)
        told.records = {offset: value for offset, value in told.records.items() if offset in told.kept}
        told.holds.clear()
        told.epochs.clear()
        self._begin(self._disk.crash(pattern))
        told.lose_power({record.offset: record.value for record in read_all(self._logs[0])})
        for name in CURSORS:
            found = self._logs[0].cursor(name).load()
            if found not in told.cursors[name]:
                raise BrokenPromiseError(f"cursor {name}: {found}, which is none of {told.cursors[name]}")
            told.cursors[name] = (found,)
