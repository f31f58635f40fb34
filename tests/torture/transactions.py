"""Crashes in the middle of transactions: after every operation, in every way, for one log and for several at once.

A `Scene` runs transactions, plain appends and a replacement on a simulated disk, and keeps a moment after every
operation. At every moment a live reader must see what was last committed or, once the ledger has it, the new rows:
never a part. Then the disk loses power, or the process is killed, and this is checked of what is left:

- a reader that comes before recovery sees all rows of the batch, or none;
- recovery keeps all or none, as the ledger says, in all logs of the transaction alike; `verify` finds nothing;
- the same batch sent again is there exactly once; so it is after yet another power loss;
- a crash in the middle of recovery, and recovery again, end in the same state.
"""

from __future__ import annotations

import posixpath
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from duramen.disk import Kind
from duramen.errors import DuramenError
from duramen.formats import Severity
from duramen.log import SUBDIRECTORIES, Log, TransactionPart, WritableLog, commit_batch, verify_log
from duramen.sidecar import JOBS_LEDGER, BatchKey, last_batch
from duramen.testing.crash import CrashPattern, patterns
from duramen.testing.run import BrokenPromiseError, clocked
from duramen.testing.simulated_disk import SimulatedDisk
from duramen.testing.workloads import SETUPS

ROOT = "/data"
WRITER = "query"

Rows = tuple[bytes, ...]
State = tuple[Rows, ...]
"""What each log holds."""


class Sent(NamedTuple):
    """A step of a scene: rows for each log, as a batch of the query, a job that replaces, or (no key) plain appends."""

    key: BatchKey | None
    rows: tuple[tuple[Rows, ...], ...]
    replaces: bool = False

    def after(self, state: State) -> State:
        added = tuple(tuple(value for batch in batches for value in batch) for batches in self.rows)
        return added if self.replaces else tuple(map(tuple.__add__, state, added))


class Moment(NamedTuple):
    operation: str
    disk: SimulatedDisk
    sent: Sent
    before: State
    is_answered: bool


@dataclass
class Scene:
    """One run. ``logs`` is 1 for a log by itself, more for logs under one ledger."""

    setup: str
    seed: int
    logs: int = 1
    moments: list[Moment] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._setup = SETUPS[self.setup]
        self._chance = random.Random(repr((self.setup, self.seed, self.logs)))
        self._options = {"format": self._setup.format, **self._setup.rolling()}
        self.paths = [""] if self.logs == 1 else [f"topics/t/{number}" for number in range(self.logs)]

    def __str__(self) -> str:
        return f"transactions:{self.setup}:{self.seed}:{self.logs}"

    @classmethod
    def parse(cls, text: str) -> Scene:
        """Read what `str` wrote; what follows it is ignored."""
        _, setup, seed, logs = text.split(":")[:4]
        return cls(setup, int(seed), int(logs))

    # --- running

    def run(self) -> list[Moment]:
        disk = SimulatedDisk()
        state: State = ((),) * self.logs
        with clocked():
            for sent in self._steps():
                self._watch(disk, sent, state)
                self.send(disk, sent)
                state = sent.after(state)
                self._watch(disk, sent, state, is_answered=True)
        return self.moments

    def _steps(self) -> Iterator[Sent]:
        yield Sent(None, self._rows(1))
        yield Sent(BatchKey(WRITER, 0, "a0"), self._rows(3))
        yield Sent(BatchKey(WRITER, 3, "a1"), self._rows(2))
        yield Sent(None, self._rows(1))
        yield Sent(BatchKey(JOBS_LEDGER, None, "a2"), self._rows(2), replaces=True)
        yield Sent(BatchKey(WRITER, 4, "a3"), self._rows(2))

    def _rows(self, batches: int) -> tuple[tuple[Rows, ...], ...]:
        return tuple(tuple(self._batch() for _ in range(batches)) for _ in range(self.logs))

    def _batch(self) -> Rows:
        sizes = [self._setup.record_size or self._chance.randint(1, 400) for _ in range(self._chance.randint(1, 6))]
        return tuple(self._chance.randbytes(size) for size in sizes)

    def send(self, disk: SimulatedDisk, sent: Sent) -> bool:
        """Do what a program would do; whether the batch was there already."""
        if sent.key is None:
            for path, batches in zip(self.paths, sent.rows, strict=True):
                with WritableLog(self.full(path), disk=disk, **self._options) as log:
                    for batch in batches:
                        log.append_batch(list(batch))
            return False
        parts = [
            TransactionPart(path, lambda batches=batches: [list(b) for b in batches], self._options, sent.replaces)  # type: ignore[misc]
            for path, batches in zip(self.paths, sent.rows, strict=True)
        ]
        return commit_batch(ROOT, sent.key, parts, disk=disk, lock_timeout_s=0).is_duplicate

    def full(self, path: str) -> str:
        return posixpath.join(ROOT, path) if path else ROOT

    def _watch(self, disk: SimulatedDisk, sent: Sent, state: State, *, is_answered: bool = False) -> None:
        def happened(_number: int, operation: str) -> None:
            disk.on_operation = None
            self.moments.append(Moment(operation, disk.clone(), sent, state, is_answered))
            if sent.key is not None:
                self.check_reader(disk, self.moments[-1], "a reader at that moment")
            disk.on_operation = happened

        disk.on_operation = None if is_answered else happened
        if is_answered:
            self.moments.append(Moment("answered", disk.clone(), sent, state, True))

    # --- looking

    def allowed(self, moment: Moment) -> list[State]:
        if moment.is_answered:
            return [moment.before]
        return [moment.before, moment.sent.after(moment.before)]

    def check_reader(self, disk: SimulatedDisk, moment: Moment, where: str) -> None:
        found = self._found(disk, moment)
        self._check(found, moment, where, is_reader=True)

    def _found(self, disk: SimulatedDisk, moment: Moment) -> State:
        found = []
        for path in self.paths:
            if not _holds_a_log(disk, self.full(path)):
                found.append(())
                continue
            with Log(self.full(path), disk=disk, **self._told(disk, path)) as log:
                values = [value for batch in log.batches(columns=["value"]) for value in batch.column(0).to_pylist()]
            found.append(tuple(values))
        return tuple(found)

    def _told(self, disk: SimulatedDisk, path: str) -> dict[str, Any]:
        config = posixpath.join(self.full(path), ".duramen/log.json")
        return {} if disk.kind(config) == Kind.FILE else self._options

    def _check(self, found: State, moment: Moment, where: str, *, is_reader: bool = False) -> None:
        allowed = self.allowed(moment)
        if moment.sent.key is None:
            return  # plain appends have an explorer of their own
        if is_reader and moment.sent.replaces:
            good = all(rows in [state[number] for state in allowed] for number, rows in enumerate(found))
        else:
            good = found in allowed
        if not good:
            counts = [[len(rows) for rows in state] for state in allowed]
            raise BrokenPromiseError(f"{where}: {[len(rows) for rows in found]} rows instead of one of {counts}")

    # --- crashing

    def examine(self, crashed: SimulatedDisk, moment: Moment, *, inner: bool = False) -> None:
        """What a crash at that moment left, in every respect."""
        if moment.sent.key is None:
            return
        self.check_reader(crashed.clone(), moment, "a reader before recovery")
        disk = crashed.clone()
        found = self._recovered(disk, moment)
        if inner:
            self._crash_recovery(crashed, moment, found)
        if moment.sent.key.batch is None:
            return  # a job is not sent again
        wanted = self.allowed(moment)[-1]
        was_there = self.send(disk, moment.sent._replace(key=moment.sent.key._replace(attempt="again")))
        if was_there != (found == wanted):
            raise BrokenPromiseError("sent again: " + ("told to be there, and is not" if was_there else "stored twice"))
        for power in (disk, disk.crash(CrashPattern("lost", "lost"))):
            if self._found(power, moment) != wanted:
                raise BrokenPromiseError("sent again: not every row is there exactly once")

    def _recovered(self, disk: SimulatedDisk, moment: Moment) -> State:
        for path in self.paths:
            options = self._told(disk, path)
            with WritableLog(self.full(path), disk=disk, **options) as log:
                next_offset = log.next_offset
            report = verify_log(self.full(path), disk=disk)
            bad = [finding for finding in report.findings if finding.severity != Severity.NOTE]
            if bad:
                raise BrokenPromiseError(f"after recovery verify finds {bad[0].code}: {bad[0].message}")
            with Log(self.full(path), disk=disk) as log:
                if log.next_offset != next_offset:
                    raise BrokenPromiseError(f"next offset {log.next_offset} after closing at {next_offset}")
        found = self._found(disk, moment)
        self._check(found, moment, "after recovery")
        entry = last_batch(disk, ROOT, moment.sent.key.writer if moment.sent.key else "")
        known = entry is not None and moment.sent.key is not None and entry.covers(moment.sent.key)
        if not moment.is_answered and known != (found != moment.before):
            raise BrokenPromiseError(f"the ledger {'knows' if known else 'does not know'} what is stored")
        return found

    def _crash_recovery(self, crashed: SimulatedDisk, moment: Moment, wanted: State) -> None:
        clones: list[tuple[str, SimulatedDisk]] = []
        disk = crashed.clone()
        disk.on_operation = lambda _number, operation: clones.append((operation, disk.clone()))
        self._recovered(disk, moment)
        for number, (operation, clone) in enumerate(clones):
            for pattern in patterns(number, 1)[:: 1 + number % 3]:
                again = clone.crash(pattern)
                try:
                    if self._recovered(again, moment) != wanted:
                        raise BrokenPromiseError("another state")
                except (BrokenPromiseError, DuramenError) as error:
                    raise BrokenPromiseError(
                        f"after a crash in recovery ({operation}, {pattern!r}): {error}"
                    ) from error


def _holds_a_log(disk: SimulatedDisk, path: str) -> bool:
    return disk.kind(path) == Kind.DIRECTORY and bool(disk.list(path, SUBDIRECTORIES))


def explore(scene: Scene, *, crashes: int = 4, inner_every: int = 60, every: int = 1, only: int | None = None) -> int:
    """Crash a scene after every operation (or one of ``every``, or the one numbered ``only``), ``crashes`` times each,
    and as a kill. Returns how many disks were seen."""
    seen: set[tuple[bytes, int]] = set()
    chance = random.Random(repr((scene.seed, scene.setup)))
    for number, moment in enumerate(_run(scene)):
        if number != only if only is not None else number % every != scene.seed % every:
            continue
        ways: Sequence[CrashPattern | None] = [None, *chance.sample(patterns(number, 8), crashes)]
        for pattern in ways:
            crashed = moment.disk.clone() if pattern is None else moment.disk.crash(pattern)
            state = (crashed.digest(), id(moment.sent) + moment.is_answered)
            if state in seen:
                continue
            seen.add(state)
            try:
                scene.examine(crashed, moment, inner=pattern is not None and len(seen) % inner_every == 0)
            except Exception as error:
                where = f"{scene}:{number} after {moment.operation}, {pattern!r}"
                raise BrokenPromiseError(f"{where}: {type(error).__name__}: {error}") from error
    return len(seen)


def _run(scene: Scene) -> list[Moment]:
    try:
        return scene.run()
    except DuramenError as error:
        raise BrokenPromiseError(f"{scene}: {error}") from error
