"""Groups and cursors across crashes: after every operation, in every way, no ack is lost and no record disappears.

For every moment of a `Consuming` run every process is killed, or the machine loses power, and this is checked of what
is left:

- a cursor says what was stored last; while storing was going on, that or what it said before;
- no record is delivered whose ack was answered: at ``fsync`` after a power loss, at ``write`` too after a kill;
- every record that nobody tried to acknowledge is delivered, or in the log of dead letters, where those that were given
  up on are in any case;
- none is delivered twice at a time; after a kill none that somebody holds, and each with an epoch that nobody had;
- a record that takes the offset of a lost one is delivered, whatever was known of the lost one;
- what is then acknowledged stays so after yet another power loss, also one in the middle of all that; `verify` finds
  nothing to complain about.

``python -m tests.torture --only groups`` hunts for a run that breaks one of these. Every run of a case is the
same; a failure names it in the form that ``--case`` of that command runs alone.
"""

from __future__ import annotations

import base64
import json
import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from duramen.consumers import ConsumableLog, ConsumableWritableLog, Delivery, Group
from duramen.errors import DuramenError
from duramen.formats import Severity
from duramen.log import WritableLog, verify_log
from duramen.testing.crash import CrashPattern, patterns
from duramen.testing.run import ROOT, BrokenPromiseError, read_all
from duramen.testing.simulated_disk import SimulatedDisk
from duramen.testing.workloads import SETUPS
from tests.torture.consuming import COMPACT_BYTES, CURSORS, DEAD, GROUP, Consuming, Moment, Told, same_times

NAMES = tuple(setup.name for setup in SETUPS.values() if setup.directory is None)
KILLED = -1
LEASE_S = 365 * 86_400
LATER_MS = 2 * LEASE_S * 1000
"""After so long every lease has ended."""


@dataclass(frozen=True)
class Case:
    """A run, and, where the rest is given, the one crash of it to look at."""

    setup: str
    seed: int
    moment: int | None = None
    pattern: int | None = None
    """The number of the pattern; -1 is a kill."""

    def __str__(self) -> str:
        told = [self.setup, self.seed, self.moment, self.pattern]
        return ":".join(str(part) for part in ("groups", *told) if part is not None)

    @classmethod
    def parse(cls, text: str) -> Case:
        """Read what `str` wrote.

        >>> Case.parse("groups:keratin:7:12:-1")
        Case(setup='keratin', seed=7, moment=12, pattern=-1)
        """
        _, setup, *numbers = text.split(":")
        return cls(setup, *(int(number) for number in numbers))


@dataclass
class ConsumerExplorer:
    """Crashes runs, and counts the distinct disks that the crashes left. ``every``: one of so many power losses is
    looked at, ``kills_every``: one of so many kills; ``inner_every``: in one of so many of those the power fails
    again, after each operation of the recovery."""

    every: int = 6
    kills_every: int = 2
    inner_every: int = 40
    random_patterns: int = 6
    states: set[bytes] = field(default_factory=set)
    crashes: int = 0
    deadline: float | None = None

    def explore(self, case: Case) -> None:
        """Run the case and check every crash of it, or the one that it names."""
        at = case
        try:
            with same_times():
                run = Consuming(case.setup, case.seed)
                for number, moment in enumerate(run.run()):
                    if case.moment not in (None, number):
                        continue
                    for index, pattern in self._patterns(case, number):
                        at = Case(case.setup, case.seed, number, index)
                        self._crash(run, moment, pattern, at, named=case.pattern is not None)
                    if self.deadline is not None and time.monotonic() > self.deadline:
                        return
        except (BrokenPromiseError, DuramenError) as error:
            raise BrokenPromiseError(f"{at}: {error}") from error

    def _patterns(self, case: Case, number: int) -> Iterator[tuple[int, CrashPattern | None]]:
        found = [None, *patterns(case.seed * 1000 + number, self.random_patterns)]
        for index, pattern in enumerate(found, KILLED):
            every = self.every if pattern is not None else self.kills_every
            chosen = not random.Random(f"{case.setup} {case.seed} {number} {index}").randrange(every)
            if case.pattern == index or (case.pattern is None and chosen):
                yield index, pattern

    def _crash(self, run: Consuming, moment: Moment, pattern: CrashPattern | None, at: Case, *, named: bool) -> None:
        crashed = moment.disk.clone() if pattern is None else moment.disk.crash(pattern)
        self.crashes += 1
        digest = crashed.digest()
        is_new = digest not in self.states
        self.states.add(digest)
        if not is_new and pattern is not None and not named:
            return
        try:
            after = After(run, crashed.clone(), moment.told, killed=pattern is None)
            after.check()
            if named or not random.Random(f"inner {at}").randrange(self.inner_every):
                self._crash_again(run, crashed, moment)
        except (BrokenPromiseError, DuramenError, AssertionError) as error:
            text = f"after {moment.operation}, {pattern or 'killed'}: {type(error).__name__}: {error}"
            raise BrokenPromiseError(text) from error

    def _crash_again(self, run: Consuming, crashed: SimulatedDisk, moment: Moment) -> None:
        """Lose power in the middle of recovering and draining."""
        clones: list[tuple[str, SimulatedDisk, Told]] = []
        disk = crashed.clone()
        after = After(run, disk, moment.told, killed=False)
        disk.on_operation = lambda _number, what: clones.append((what, disk.clone(), after.told.copy()))
        after.go_on()
        for number, (what, clone, told) in enumerate(clones):
            for pattern in patterns(number, 0)[number % 3 :: 3]:
                again = clone.crash(pattern)
                self.crashes += 1
                digest = again.digest()
                if digest in self.states:
                    continue
                self.states.add(digest)
                try:
                    After(run, again, told, killed=False).check()
                except (BrokenPromiseError, DuramenError) as error:
                    raise BrokenPromiseError(f"then, after {what}, {pattern!r}: {error}") from error


class After:
    """What is left of a run, and what it is held against. ``told`` goes on with what happens to it here."""

    def __init__(self, run: Consuming, disk: SimulatedDisk, told: Told, *, killed: bool) -> None:
        self.told = told.copy()
        self._run = run
        self._disk = disk
        self._killed = killed

    def check(self) -> None:
        if self.told.records:  # before the first answer there may be no log yet
            with ConsumableLog(ROOT, format=self._run.setup.format, disk=self._disk.clone()) as reader:
                self._check_cursors(reader, "a reader")
        log = self.go_on()
        self._check_the_end(self._disk.crash(CrashPattern("lost", "lost")), "another power loss")
        log.close()
        self._check_the_end(self._disk, "closing")

    def go_on(self) -> ConsumableWritableLog:
        """Recover, append, take everything that is due, and acknowledge it."""
        told = self.told
        log = self._run.open(self._disk)
        found = {record.offset: record.value for record in read_all(log)}
        self._check_records(found)
        self._check_cursors(log, "the writer")
        if self._killed:
            told.records = dict(found)
        else:
            told.lose_power(found)
        values = [self._run.value(told.attempts + number) for number in range(2)]
        told.attempts += 2
        told.records.update(enumerate(values, log.append_batch(values).base_offset))
        told.kept = set(told.records)
        group = log.group(GROUP, clock=lambda: told.now_ms, compact_bytes=COMPACT_BYTES, update_policy=True)
        taken = self._drained(group, 4 * LEASE_S) if self._killed else []
        held = [one.offset for one in taken if told.is_held(one.offset)]
        if held:
            raise BrokenPromiseError(f"offset {held[0]} is delivered while somebody holds it")
        told.now_ms += LATER_MS
        taken += self._drained(group)
        self._check_delivered(taken)
        for remainder in (1, 0):
            part = [delivery for delivery in taken if delivery.offset % 2 == remainder]
            told.tried |= {delivery.offset for delivery in part}
            group.ack_many(part)
            told.written |= {delivery.offset for delivery in part}
            told.durable |= {delivery.offset for delivery in part}
        return log

    def _drained(self, group: Group, lease_s: int = LEASE_S) -> list[Delivery]:
        taken: list[Delivery] = []
        while some := group.fetch(7, lease=lease_s):
            taken += some
        return taken

    # --- judging

    def _check_records(self, found: Mapping[int, bytes]) -> None:
        for offset, value in self.told.records.items():
            if offset not in found and (self._killed or offset in self.told.kept):
                raise BrokenPromiseError(f"the record at offset {offset} was acknowledged and is gone")
            if found.get(offset, value) != value:
                raise BrokenPromiseError(f"offset {offset} holds {found[offset][:20]!r} instead of {value[:20]!r}")

    def _check_cursors(self, log: ConsumableLog, who: str) -> None:
        for name in CURSORS:
            position = log.cursor(name).load()
            if position not in self.told.cursors[name]:
                wanted = " or ".join(str(one) for one in self.told.cursors[name])
                raise BrokenPromiseError(f"{who} finds {position} in the cursor {name} instead of {wanted}")

    def _check_delivered(self, taken: Sequence[Delivery]) -> None:
        told = self.told
        offsets = [delivery.offset for delivery in taken]
        twice = [offset for offset, count in Counter(offsets).items() if count > 1]
        if twice:
            raise BrokenPromiseError(f"offset {twice[0]} has two holders")
        again = sorted((told.written if self._killed else told.durable) & set(offsets))
        if again:
            raise BrokenPromiseError(f"offsets {again} are delivered, and their acks were answered")
        dead = dead_values(self._disk)
        if not told.dead <= dead:
            raise BrokenPromiseError(f"{min(told.dead - dead)[:20]!r} was given up on and is no dead letter")
        for offset, value in told.records.items():
            if offset not in offsets and offset not in told.tried and value not in dead:
                raise BrokenPromiseError(f"offset {offset} is not delivered, and nobody tried to acknowledge it")
        for delivery in taken:
            if self._killed and delivery.epoch <= told.epochs.get(delivery.offset, 0):
                raise BrokenPromiseError(f"offset {delivery.offset}: the epoch {delivery.epoch} was given twice")
            if told.records[delivery.offset] != delivery.value:
                raise BrokenPromiseError(f"offset {delivery.offset} is delivered with {delivery.value[:20]!r}")

    def _check_the_end(self, disk: SimulatedDisk, where: str) -> None:
        with self._run.open(disk) as log:
            self._check_cursors(log, f"after {where} the writer")
            left = self._drained(log.group(GROUP, clock=lambda: self.told.now_ms + 2 * LATER_MS, update_policy=True))
            if left:
                raise BrokenPromiseError(f"after {where} offset {left[0].offset} is delivered, and it was acknowledged")
        WritableLog(DEAD, disk=disk).close()
        for root in (ROOT, DEAD):
            for finding in verify_log(root, disk=disk).findings:
                if finding.severity != Severity.NOTE:
                    raise BrokenPromiseError(f"verify finds {finding.code}: {finding.path}: {finding.message}")


def dead_values(disk: SimulatedDisk) -> set[bytes]:
    """The values that were given up on, as they were."""
    with WritableLog(DEAD, disk=disk.clone()) as log:
        values = [record.value for record in log.scan()]
        if log.codec.capabilities.headers:
            return set(values)
    return {base64.b64decode(json.loads(value)["value_base64"]) for value in values}
