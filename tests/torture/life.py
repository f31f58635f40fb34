"""Crashes in the middle of retention and compaction: after every operation, in every way.

A `Life` writes a log of several segments, removes its beginning, compacts the rest (where the format can), appends, and
does it again. After every operation of the disk a moment is kept. At each of them, and after every crash of it, this
must hold:

- a live reader, and one that comes before recovery, sees the log as it was before a segment was removed or swapped, or
  as it is afterwards: never half a segment, never a hole that was not decided on; and `verify` finds no damage;
- recovery ends in one of these states, too, and `verify` finds nothing; an append gets the next offset;
- once a call has returned, nothing that it removed comes back, and nothing that it left is missing.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from duramen.formats import Severity
from duramen.log import Compaction, Log, Retention, WritableLog, verify_log
from duramen.testing.crash import CrashPattern, patterns
from duramen.testing.run import BrokenPromiseError, clocked
from duramen.testing.simulated_disk import SimulatedDisk
from duramen.testing.workloads import SETUPS

ROOT = "/log"
KEY = "delimiter:="
LIVING = tuple(name for name, setup in SETUPS.items() if setup.directory is None and setup.segments)
"""Setups whose logs have segments that can go."""

Records = tuple[tuple[int, bytes], ...]


class Moment(NamedTuple):
    operation: str
    disk: SimulatedDisk
    allowed: Sequence[Records]


@dataclass
class Life:
    """One run. `run` answers the moments, `check` looks at all crashes of one."""

    setup: str
    seed: int
    moments: list[Moment] = field(default_factory=list)
    states: set[bytes] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._setup = SETUPS[self.setup]
        self._chance = random.Random(repr((self.setup, self.seed)))
        self._options = {"format": self._setup.format, **self._setup.options, "segment_max_bytes": 1000}
        self._allowed: list[Records] = [()]

    def __str__(self) -> str:
        return f"life:{self.setup}:{self.seed}"

    @classmethod
    def parse(cls, text: str) -> Life:
        """From what `str` answers."""
        _, setup, seed = text.split(":")
        return cls(setup, int(seed))

    # --- running

    def run(self) -> list[Moment]:
        disk = SimulatedDisk()
        with clocked():
            log = WritableLog(ROOT, disk=disk, **self._options)
            for _ in range(2):
                self._fill(log, 20)
                self._watched(disk, lambda: self._retain(log))
                if log.codec.capabilities.compaction:
                    self._watched(disk, lambda: self._compact(log))
            self._fill(log, 5)
            log.close()
        self._moment("closed", disk)
        return self.moments

    def _fill(self, log: WritableLog, count: int) -> None:
        for _ in range(count):
            log.append(self._value())
        log.seal()
        self._allowed = [records_of(log)]

    def _value(self) -> bytes:
        key = b"%d" % self._chance.randint(0, 9)
        keyless = self._chance.random() < 0.1
        return (b"" if keyless else key + b"=") + self._chance.randbytes(self._chance.randint(1, 250)).replace(
            b"=", b"-"
        )

    def _retain(self, log: WritableLog) -> None:
        """Remove two segments, or as many as there are to remove."""
        segments = log.segments
        rules = Retention(before_offset=segments[min(2, len(segments) - 1)].base_offset)
        plan = log.retain(rules, dry_run=True)
        before = self._allowed[-1]
        after = tuple(record for record in before if record[0] >= plan.first_offset)
        self._allowed = [before, after]
        log.retain(rules)
        self._allowed = [after]

    def _compact(self, log: WritableLog) -> None:
        """Every segment is old or new, the oldest new ones first."""
        before = self._allowed[-1]
        bases = [segment.base_offset for segment in log.segments]
        sealed_end = bases[-1]
        newest = {_key(value): offset for offset, value in before if offset < sealed_end}
        kept = tuple(
            (offset, value)
            for offset, value in before
            if offset >= sealed_end or _key(value) is None or newest[_key(value)] == offset
        )
        self._allowed = [
            tuple(record for record in kept if record[0] < base) + tuple(r for r in before if r[0] >= base)
            for base in bases
        ]
        log.compact(Compaction(key=KEY))
        self._allowed = [kept]

    def _watched(self, disk: SimulatedDisk, work: Callable[[], None]) -> None:
        def happened(_number: int, operation: str) -> None:
            disk.on_operation = None
            self._moment(operation, disk)
            with Log(ROOT, disk=disk) as reader:
                self._one_of(records_of(reader), self.moments[-1], "a reader at that moment")
            disk.on_operation = happened

        disk.on_operation = happened
        work()
        disk.on_operation = None
        self._moment("answered", disk)

    def _moment(self, operation: str, disk: SimulatedDisk) -> None:
        self.moments.append(Moment(operation, disk.clone(), tuple(self._allowed)))

    # --- looking

    def check(self, moment: Moment, random_patterns: int = 4) -> None:
        """Everything about every crash of one moment."""
        for pattern in (None, *patterns(self.seed, random_patterns)):
            crashed = moment.disk.clone() if pattern is None else moment.disk.crash(pattern)
            digest = crashed.digest()
            if digest in self.states:
                continue
            self.states.add(digest)
            try:
                self._examine(crashed, moment)
            except BrokenPromiseError as error:
                raise BrokenPromiseError(f"{self}: after {moment.operation}, {pattern!r}: {error}") from error

    def _examine(self, crashed: SimulatedDisk, moment: Moment) -> None:
        with Log(ROOT, disk=crashed.clone()) as reader:
            self._one_of(records_of(reader), moment, "a reader before recovery")
        for finding in verify_log(ROOT, disk=crashed.clone()).findings:
            if finding.severity == Severity.DAMAGE:
                raise BrokenPromiseError(f"before recovery verify finds {finding.code}: {finding.message}")
        disk = crashed.clone()
        clones: list[SimulatedDisk] = []
        disk.on_operation = lambda _number, _operation: clones.append(disk.clone())
        log = WritableLog(ROOT, disk=disk)
        disk.on_operation = None
        found = records_of(log)
        self._one_of(found, moment, "after recovery")
        following = log.next_offset
        if log.append(b"9=behind") != following or following <= found[-1][0]:
            raise BrokenPromiseError("an append after recovery got an offset that was used before")
        log.close()
        self._verified(disk)
        for clone in self._chance.sample(clones, min(2, len(clones))):
            again = clone.crash(CrashPattern("lost", "lost"))
            with WritableLog(ROOT, disk=again) as log:
                self._one_of(records_of(log), moment, "after a crash in recovery")
            self._verified(again)

    def _one_of(self, found: Records, moment: Moment, where: str) -> None:
        if found not in moment.allowed:
            nearest = min(moment.allowed, key=lambda allowed: len(set(allowed) ^ set(found)))
            missing = sorted(set(nearest) - set(found))[:3]
            extra = sorted(set(found) - set(nearest))[:3]
            raise BrokenPromiseError(f"{where}: the records are those of no decided state: {missing=} {extra=}")

    def _verified(self, disk: SimulatedDisk) -> None:
        for finding in verify_log(ROOT, disk=disk).findings:
            if finding.severity != Severity.NOTE:
                raise BrokenPromiseError(f"verify finds {finding.code}: {finding.path}: {finding.message}")


def explore(life: Life, *, every: int = 1, random_patterns: int = 4, deadline: float | None = None) -> int:
    """Run a life and look at the crashes of every n-th moment, until ``deadline`` (of `time.monotonic`); answers how
    many distinct crashed disks there were."""
    moments = life.run()
    for moment in moments[life.seed % every :: every]:
        if deadline is not None and time.monotonic() > deadline:
            break
        life.check(moment, random_patterns)
    return len(life.states)


def records_of(log: Log) -> Records:
    return tuple((record.offset, record.value) for record in log.scan())


def _key(value: bytes) -> bytes | None:
    key, delimiter, _ = value.partition(b"=")
    return key if delimiter else None
