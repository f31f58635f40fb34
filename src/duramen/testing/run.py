"""One run of a workload, and its model: after every operation a clone of the disk, with what was acknowledged so far.

`compare` checks the contents of a log against a moment of the model.
"""

from __future__ import annotations

import contextlib
import posixpath
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from unittest import mock

from duramen.disk import write_all
from duramen.formats import make
from duramen.log import GroupBatch, Log, Request, WritableLog, batch_of_one
from duramen.record import to_us
from duramen.sidecar import CONFIG_NAME, DIRECTORY
from duramen.testing.crash import CrashPattern, patterns
from duramen.testing.simulated_disk import SimulatedDisk
from duramen.testing.workloads import (
    PREALLOCATED_BYTES,
    SETUPS,
    SYNC_INTERVAL_MS,
    SYNC_INTERVAL_RECORDS,
    WORKLOADS,
    Setup,
    Step,
)

ROOT = "/log"
CLOCKED = ("log.segments.log_builder", "log.write.appender", "log.write.writable_log", "disk.record_writer")
"""The modules whose clock `clocked` replaces."""


class BrokenPromiseError(AssertionError):
    """A log broke one of its promises."""


class Stored(NamedTuple):
    """A record as the model knows it."""

    offset: int
    value: bytes
    key: bytes | None = None


class Attempt(NamedTuple):
    """A record that the workload tried to append."""

    value: bytes
    key: bytes | None = None


@dataclass
class Moment:
    """The disk right after an operation, and what was acknowledged by then."""

    operation: str
    disk: SimulatedDisk
    attempts: Sequence[Attempt]
    offsets: Sequence[int]
    """Of the attempts that were acknowledged."""
    durable: int
    """How many of them at ``fsync``."""


class Clock:
    """A clock that advances by a millisecond per reading: the same in every run."""

    def __init__(self) -> None:
        self._ns = 1_700_000_000_000_000_000
        self._s = 0.0

    def time_ns(self) -> int:
        self._ns += 1_000_000
        return self._ns

    def pass_ms(self, ms: int) -> None:
        self._ns += ms * 1_000_000

    def time(self) -> float:
        return self.time_ns() / 1e9

    def monotonic(self) -> float:
        """A second later each time, so that nothing counts as having just happened."""
        self._s += 1.0
        return self._s

    def perf_counter(self) -> float:
        return 0.0


@contextlib.contextmanager
def clocked() -> Iterator[None]:
    """Run with a clock that tells the same times in every run."""
    clock = Clock()
    with contextlib.ExitStack() as patches:
        for module in CLOCKED:
            patches.enter_context(mock.patch(f"duramen.{module}.time", clock))
        yield


def disk_of(files: Mapping[str, bytes]) -> SimulatedDisk:
    """A disk that holds these files, synced."""
    disk = SimulatedDisk()
    for path, content in files.items():
        if path.endswith("/"):
            disk.make_directory(path)
            continue
        disk.make_directory(posixpath.dirname(path))
        file = disk.create(path)
        write_all(file, 0, content)
        file.close()
    return disk.crash(CrashPattern("kept", "kept"))


def read_all(log: Log) -> list[Stored]:
    found: list[Stored] = []
    for batch in log.batches(columns=["offset", "value", "key"]):
        found += map(Stored, *(column.to_pylist() for column in batch.columns))
    return found


# --- running the workload


class Run:
    """One run of a workload, which keeps a moment after every operation."""

    def __init__(self, setup: str, workload: str, seed: int, files: Mapping[str, bytes] | None = None) -> None:
        self.setup: Setup = SETUPS[setup]
        self.moments: list[Moment] = []
        self.opening = 0
        """How many moments it took to open the log for the first time: the same for every workload and seed."""
        self._workload = WORKLOADS[workload]
        self._chance = random.Random(repr((seed, setup, workload)))
        self.options = self.setup.rolling() if self._workload.rolls else dict(self.setup.options)
        self._keyed = make(self.setup.format, **self.options).capabilities.key
        self._attempts: list[Attempt] = []
        self._offsets: list[int] = []
        self._durable = 0
        self._owed = 0
        """Records that were acknowledged at ``interval`` since the last sync."""
        self._disk = disk_of({posixpath.join(ROOT, name): content for name, content in (files or {}).items()})
        if files:
            before = read_all(Log(ROOT, format=self.setup.format, disk=self._disk, **self.options))
            self._adopt(before)
        self.tracking = tracking_of(self._disk, self.setup)
        self._log: WritableLog | None = None
        self._clock = Clock()

    def run(self) -> list[Moment]:
        self._open(self._disk)
        self.opening = len(self.moments)
        for step in self._workload.run(self._chance, self.setup, lambda: self._writing.cursor_position):
            getattr(self, f"_{step.kind}")(step)
            self._note("acknowledged")
        self._reopen(Step("reopen"))
        self._writing.close()
        self._note("closed")
        return self.moments

    @property
    def _writing(self) -> _Writing:
        assert self._log is not None
        return _Writing(self._log)

    def _open(self, disk: SimulatedDisk) -> None:
        self._disk = disk
        disk.on_operation = lambda _number, operation: self._note(operation)
        first = self._log is None
        options = dict(self.options) if first or not has_config(disk) else {}
        if self._workload.fills:
            options["preallocate_bytes"] = PREALLOCATED_BYTES
        self._owed = 0
        self._log = WritableLog(
            ROOT, format=self.setup.format, disk=disk, clock=self._clock.time_ns, timer=False,
            sync_interval_ms=SYNC_INTERVAL_MS, sync_interval_records=SYNC_INTERVAL_RECORDS, **options,
        )  # fmt: skip

    def _note(self, operation: str) -> None:
        moment = Moment(operation, self._disk.clone(), tuple(self._attempts), tuple(self._offsets), self._durable)
        self.moments.append(moment)

    def _adopt(self, records: Sequence[Stored]) -> None:
        self._attempts = [Attempt(record.value, record.key) for record in records]
        self._offsets = [record.offset for record in records]
        self._durable = len(records)

    # --- steps

    def _append(self, step: Step) -> None:
        for value in step.values:
            attempt = self._attempt(value)
            offset = self._writing.log.append(value, key=attempt.key, durability=step.durability)
            self._acknowledged([offset], step.durability)

    def _batch(self, step: Step) -> None:
        self._attempts += [Attempt(value) for value in step.values]
        base, count = self._writing.log.append_batch(list(step.values), durability=step.durability)
        self._acknowledged(range(base, base + count), step.durability)

    def _group(self, step: Step) -> None:
        """Several appends in one group, as the leader finds them in the queue."""
        log = self._writing.log
        group = []
        for number, value in enumerate(step.values):
            attempt = self._attempt(value)
            batch = batch_of_one(log.codec, value, attempt.key)
            joins = step.durability == "fsync" and number < len(step.values) - 1
            work = GroupBatch(batch, "write" if joins else step.durability)
            group.append(Request(work, batch.nbytes, 1))
        log.commit_group(group)
        self._acknowledged([request.outcome().base_offset for request in group], step.durability)

    def _attempt(self, value: bytes) -> Attempt:
        keyed = self._keyed and self._chance.random() < 0.3
        attempt = Attempt(value, self._chance.randbytes(self._chance.randint(0, 9)) if keyed else None)
        self._attempts.append(attempt)
        return attempt

    def _acknowledged(self, offsets: Sequence[int], durability: str) -> None:
        self._offsets += offsets
        if durability == "interval":
            self._owed += len(offsets)
        if durability == "fsync" or self._owed >= SYNC_INTERVAL_RECORDS:
            self._synced()

    def _synced(self) -> None:
        self._durable, self._owed = len(self._offsets), 0

    def _sync(self, _step: Step) -> None:
        self._writing.log.sync()
        self._synced()

    def _interval(self, _step: Step) -> None:
        """The time passes after which records must be synced."""
        self._clock.pass_ms(SYNC_INTERVAL_MS)
        self._writing.log.run_due()
        if self._owed:
            self._synced()

    def _seal(self, _step: Step) -> None:
        self._writing.log.seal()
        self._synced()

    def _reopen(self, _step: Step) -> None:
        self._writing.close()
        self._synced()
        self._open(self._disk)

    def _kill(self, _step: Step) -> None:
        self._open(self._disk.clone())

    def _crash(self, _step: Step) -> None:
        pattern = self._chance.choice(patterns(self._chance.getrandbits(32)))
        del self._offsets[self._durable :]
        self._open(self._disk.crash(pattern))
        gaps = self.setup.directory is not None
        compare(read_all(self._writing.log), self.moments[-1], self._durable, f"after a {pattern}", gaps=gaps)
        self._adopt(read_all(self._writing.log))


class _Writing:
    """The log that is being written."""

    def __init__(self, log: WritableLog) -> None:
        self.log = log

    @property
    def cursor_position(self) -> int:
        return self.log.tail.visible.position

    def close(self) -> None:
        self.log.close()


def has_config(disk: SimulatedDisk) -> bool:
    return posixpath.join(ROOT, DIRECTORY, CONFIG_NAME) in disk.tree()


def tracking_of(disk: SimulatedDisk, setup: Setup) -> Any:
    """The tracking state of the log, for a format that carries it from segment to segment."""
    if setup.directory is None:
        return None
    fmt = make(setup.format)
    files = {posixpath.relpath(path, ROOT): data for path, data in disk.tree().items() if path.startswith(ROOT + "/")}
    tracking = fmt.describe(files).get("tracking")
    if isinstance(tracking, dict):  # a new segment may drop state from before the log
        first = next(Log(ROOT, format=setup.format, disk=disk).scan(max_records=1))
        first_ms = 0 if first.timestamp is None else to_us(first.timestamp) // 1000
        for kind, least in (("offsets", first.offset), ("timestamps", first_ms)):
            tracking[kind] = {name: value for name, value in tracking[kind].items() if value >= least}
    return tracking


def compare(found: Sequence[Stored], moment: Moment, needed: int, where: str, *, gaps: bool = False) -> None:
    """Compare found records with the model: ``needed`` of them must exist, and none may be invented."""
    if len(found) < needed:
        missing = moment.offsets[len(found)]
        raise BrokenPromiseError(
            f"{where}: offset {missing} was acknowledged and is missing: {len(found)} records of {needed}"
        )
    if len(found) > len(moment.attempts):
        raise BrokenPromiseError(f"{where}: {len(found)} records, and only {len(moment.attempts)} were ever attempted")
    for number, (record, attempt) in enumerate(zip(found, moment.attempts, strict=False)):
        if (record.value, record.key) != attempt:
            raise BrokenPromiseError(
                f"{where}: offset {record.offset} holds {record.value[:40]!r} (key {record.key!r}, {len(record.value)}"
                f" bytes) instead of {attempt.value[:40]!r} (key {attempt.key!r}, {len(attempt.value)} bytes)"
            )
        if number < len(moment.offsets) and record.offset != moment.offsets[number]:
            raise BrokenPromiseError(
                f"{where}: record {number} has offset {record.offset} instead of {moment.offsets[number]}"
            )
        if number and (record.offset <= found[number - 1].offset):
            raise BrokenPromiseError(f"{where}: offset {record.offset} follows {found[number - 1].offset}")
        if number and not gaps and record.offset != found[number - 1].offset + 1:
            raise BrokenPromiseError(f"{where}: offset {record.offset} follows {found[number - 1].offset}: a gap")
