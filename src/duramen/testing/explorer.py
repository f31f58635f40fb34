"""The crash explorer: crash a log after every operation, in every way, and hold what recovery finds against a model.

A `Case` (a format, a workload, a seed) is run once on a simulated disk. After every change of the disk a *moment* is
kept: a clone of the disk, with what had been attempted and what had been acknowledged. Then, for every moment and
every crash pattern, the disk loses power and this is checked of what is left:

- opening for append succeeds, and every record acknowledged at ``fsync`` is there, with its offset and value;
- what else is there was attempted: in order, once, with its value, and without a gap. So the records that were not
  acknowledged and survived are a prefix of the attempts behind those that were;
- where nothing was lost (a killed process, or luck), the records acknowledged at ``write`` are there, too;
- bytes of a segment that recovery cut, unless they are zeros, are in the quarantine;
- `verify` finds nothing to complain about;
- opening again, after a close, after a power loss and after a power loss in the middle of recovery, gives the same
  records; an append gets the next offset and is there after yet another power loss;
- with every index, the manifest and the whole sidecar deleted, a reader, who recovers nothing, sees every record that
  was acknowledged at ``fsync``; with the sidecar as the crash left it, no other ones (but see
  `READERS_KNOW_OF_POWER_LOSS`).

What a reader sees *without the sidecar* behind the durable records is bounded by what the format itself can prove:

- it may meet a place that it must call damage, when a later piece of an unfinished write arrived and an earlier one did
  not. Only the sidecar knows that the place was never durable. Everything durable was handed out before;
- where records have no checksum (RustLog) it may see records of which not every byte arrived;
- where a checksum does not cover the header (durable-log), the last record may be an empty one whose length did not
  arrive.

Every run of a case is the same. A failure is a `BrokenPromiseError`, whose text names the case in the form that
``python -m duramen.testing.torture --case`` runs alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import posixpath
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from unittest import mock

from duramen.disk.base import write_all
from duramen.disk.crash import CrashPattern, patterns
from duramen.disk.simulated import SimulatedDisk
from duramen.errors import CorruptionError, DuramenError
from duramen.formats import make
from duramen.formats.base import Role, Severity
from duramen.log import intake, writer
from duramen.log.commit import Request
from duramen.log.reader import Log
from duramen.log.sidecar import DIRECTORY
from duramen.log.verify import verify
from duramen.log.writer import WritableLog
from duramen.testing.workloads import SETUPS, WORKLOADS, Setup, Step

ROOT = "/log"
KILLED = "killed"
READERS_KNOW_OF_POWER_LOSS = False
"""A power loss can leave a watermark on the disk that is older than the last records that were synced. A reader cannot
tell that from a writer that is at work, and stops there until the log is opened for append."""


class BrokenPromiseError(AssertionError):
    """A promise was broken."""


class Stored(NamedTuple):
    """A record as the model knows it."""

    offset: int
    value: bytes
    key: bytes | None = None


class Attempt(NamedTuple):
    value: bytes
    key: bytes | None = None


@dataclass(frozen=True)
class Case:
    """What to run, and, where the rest is given, the one crash of it to look at."""

    setup: str
    workload: str
    seed: int
    moment: int | None = None
    pattern: int | None = None
    """The number of the pattern; -1 is a killed process."""
    inner_moment: int | None = None
    inner_pattern: int | None = None
    """The crash within the recovery from the first one."""

    def __str__(self) -> str:
        told = [self.setup, self.workload, self.seed, self.moment, self.pattern, self.inner_moment, self.inner_pattern]
        return ":".join(str(part) for part in told if part is not None)

    @classmethod
    def parse(cls, text: str) -> Case:
        """Read what `str` wrote.

        >>> Case.parse("keratin:mixed:7:12:-1")
        Case(setup='keratin', workload='mixed', seed=7, moment=12, pattern=-1, inner_moment=None, inner_pattern=None)
        """
        setup, workload, *numbers = text.split(":")
        return cls(setup, workload, *(int(number) for number in numbers))


@dataclass
class Moment:
    """The disk right after an operation, and what the program had been told by then."""

    operation: str
    disk: SimulatedDisk
    attempts: Sequence[Attempt]
    offsets: Sequence[int]
    """Of the attempts that were acknowledged."""
    durable: int
    """How many of them at ``fsync``."""


class Clock:
    """Time that passes by a millisecond whenever it is looked at: the same in every run."""

    def __init__(self) -> None:
        self._ns = 1_700_000_000_000_000_000

    def time_ns(self) -> int:
        self._ns += 1_000_000
        return self._ns

    def time(self) -> float:
        return self.time_ns() / 1e9


@contextlib.contextmanager
def clocked() -> Iterator[None]:
    """Run with a clock that tells the same times in every run."""
    with mock.patch.object(writer, "time", Clock()):
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
    """One run of a case's workload, which keeps a moment after every operation."""

    def __init__(self, case: Case, files: Mapping[str, bytes] | None = None) -> None:
        self.setup: Setup = SETUPS[case.setup]
        self.moments: list[Moment] = []
        self.opening = 0
        """How many moments it took to open the log for the first time: the same for every workload and seed."""
        self._workload = WORKLOADS[case.workload]
        self._chance = random.Random(repr((case.seed, case.setup, case.workload)))
        self.options = self.setup.rolling() if self._workload.rolls else dict(self.setup.options)
        self._keyed = make(self.setup.format, **self.options).capabilities.key
        self._attempts: list[Attempt] = []
        self._offsets: list[int] = []
        self._durable = 0
        self._disk = disk_of({posixpath.join(ROOT, name): content for name, content in (files or {}).items()})
        if files:
            before = read_all(Log(ROOT, format=self.setup.format, disk=self._disk, **self.options))
            self._adopt(before)
        self.tracking = tracking_of(self._disk, self.setup)
        self._log: WritableLog | None = None

    def run(self) -> list[Moment]:
        with clocked():
            self._open(self._disk)
            self.opening = len(self.moments)
            for step in self._workload.run(self._chance, self.setup, lambda: self._writing.cursor_position):
                getattr(self, f"_{step.kind}")(step)
                self._note("answered")
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
        options = self.options if first or not has_config(disk) else {}
        self._log = WritableLog(ROOT, format=self.setup.format, disk=disk, **options)

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
            self._answered([offset], step.durability)

    def _batch(self, step: Step) -> None:
        self._attempts += [Attempt(value) for value in step.values]
        base, count = self._writing.log.append_batch(list(step.values), durability=step.durability)
        self._answered(range(base, base + count), step.durability)

    def _group(self, step: Step) -> None:
        """Several appends in one group, as a leader finds them in the queue."""
        log = self._writing.log
        group = []
        for number, value in enumerate(step.values):
            attempt = self._attempt(value)
            batch = intake.one(log.codec, value, attempt.key)
            work = writer._Work(batch, step.durability == "fsync" and number == len(step.values) - 1)
            group.append(Request(work, batch.nbytes, 1))
        log._commit_group(group)
        self._answered([request.answer().base_offset for request in group], step.durability)

    def _attempt(self, value: bytes) -> Attempt:
        keyed = self._keyed and self._chance.random() < 0.3
        attempt = Attempt(value, self._chance.randbytes(self._chance.randint(0, 9)) if keyed else None)
        self._attempts.append(attempt)
        return attempt

    def _answered(self, offsets: Sequence[int], durability: str) -> None:
        self._offsets += offsets
        if durability == "fsync":
            self._durable = len(self._offsets)

    def _sync(self, _step: Step) -> None:
        self._writing.log.sync()
        self._durable = len(self._offsets)

    def _seal(self, _step: Step) -> None:
        self._writing.log.seal()
        self._durable = len(self._offsets)

    def _reopen(self, _step: Step) -> None:
        self._writing.close()
        self._durable = len(self._offsets)
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
        return self.log._active.cursor.position

    def close(self) -> None:
        self.log.close()


def has_config(disk: SimulatedDisk) -> bool:
    return posixpath.join(ROOT, DIRECTORY, "log.json") in disk.tree()


def tracking_of(disk: SimulatedDisk, setup: Setup) -> Any:
    """What the log says beside its records, for a format that carries such state from segment to segment."""
    if setup.directory is None:
        return None
    fmt = make(setup.format)
    files = {posixpath.relpath(path, ROOT): data for path, data in disk.tree().items() if path.startswith(ROOT + "/")}
    return fmt.describe(files).get("tracking")


# --- judging


def compare(found: Sequence[Stored], moment: Moment, needed: int, where: str, *, gaps: bool = False) -> None:
    """The records that were found against the model: ``needed`` of them must be there, and nothing may be made up."""
    if len(found) < needed:
        missing = moment.offsets[len(found)]
        raise BrokenPromiseError(
            f"{where}: offset {missing} was acknowledged and is gone: {len(found)} records of {needed}"
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


@dataclass
class Outcome:
    """What became of one crashed disk. It depends on nothing but the disk, so it is found out once."""

    records: list[Stored]
    steps: list[str]
    seen: list[Stored]
    """By a reader, with the sidecar as it was left."""
    bare: list[Stored]
    """By a reader, without sidecar, indexes and manifest."""
    bare_in_doubt: bool


@dataclass
class Explorer:
    """Explores cases, and counts the distinct disks that crashes left."""

    random_patterns: int = 8
    inner_every: int = 40
    """One of so many recoveries is crashed itself, after each of its operations."""
    again_every: int = 1
    """One of so many recovered logs is opened again and again, appended to, and crashed once more."""
    killed_every: int = 3
    """After one of so many operations the process is killed, too."""
    skip_opening: bool = False
    """Leave out the crashes before the log is first open, which another case of the same format has seen already."""
    files: Mapping[str, Mapping[str, bytes]] = field(default_factory=dict)
    """What the directories of setups hold that begin with one."""
    states: set[bytes] = field(default_factory=set)
    crashes: int = 0
    deadline: float | None = None

    def explore(self, case: Case) -> None:
        """Run the case and check every crash of it, or the one that it names."""
        at = case
        try:
            run = Run(case, self.files.get(case.setup))
            moments = run.run()
            examined: dict[bytes, Outcome] = {}
            for number, moment in enumerate(moments):
                if case.moment not in (None, number) or (self.skip_opening and number < run.opening):
                    continue
                for index, pattern in self._patterns(case, number):
                    at = Case(case.setup, case.workload, case.seed, number, index)
                    self._crash(at, case, run, moment, pattern, examined)
                if self.deadline is not None and time.monotonic() > self.deadline:
                    return
        except BrokenPromiseError as error:
            raise BrokenPromiseError(self._told(at, moments if at.moment is not None else [], error)) from error
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            raise BrokenPromiseError(self._told(at, moments if at.moment is not None else [], text)) from error

    def _told(self, at: Case, moments: Sequence[Moment], error: object) -> str:
        inner = getattr(error, "inner", None)
        if inner is not None:
            at = Case(at.setup, at.workload, at.seed, at.moment, at.pattern, *inner)
        place = ""
        if at.moment is not None and at.pattern is not None:
            pattern = KILLED if at.pattern < 0 else self._all_patterns(at, at.moment)[at.pattern]
            place = f" after {moments[at.moment].operation}, {pattern!r}"
        return f"{error}{place}\n  python -m duramen.testing.torture --case {at}"

    def _all_patterns(self, case: Case, moment: int) -> list[CrashPattern]:
        seed = int.from_bytes(hashlib.blake2b(repr((case.seed, moment)).encode(), digest_size=4).digest(), "big")
        return patterns(seed, 64 if case.pattern is not None else self.random_patterns)

    def _patterns(self, case: Case, moment: int) -> Iterator[tuple[int, CrashPattern | None]]:
        killed = case.pattern is None and moment % self.killed_every == 0
        if killed or case.pattern == -1:
            yield -1, None
        for index, pattern in enumerate(self._all_patterns(case, moment)):
            if case.pattern in (None, index):
                yield index, pattern

    # --- one crash

    def _crash(
        self,
        at: Case,
        case: Case,
        run: Run,
        moment: Moment,
        pattern: CrashPattern | None,
        examined: dict[bytes, Outcome],
    ) -> None:
        crashed = moment.disk.clone() if pattern is None else moment.disk.crash(pattern)
        digest = crashed.digest()
        self.crashes += 1
        self.states.add(digest)
        outcome = examined.get(digest) if pattern is not None else None
        if outcome is None:
            outcome = examine(crashed, run, again=case.pattern is not None or digest[1] % self.again_every == 0)
            if pattern is not None:
                examined[digest] = outcome
            inner = case.inner_moment is not None
            if inner or (case.pattern is None and digest[0] % self.inner_every == 0):
                self._crash_recovery(crashed, run, outcome, moment if pattern is None else None, case)
        gaps = run.setup.directory is not None
        whole = pattern is None or (pattern.data, pattern.names, pattern.files) == ("kept", "kept", "all")
        needed = len(moment.offsets) if whole else moment.durable
        compare(outcome.records, moment, needed, "after recovery", gaps=gaps)
        self._compare_readers(outcome, moment, run, gaps)

    def _compare_readers(self, outcome: Outcome, moment: Moment, run: Run, gaps: bool) -> None:
        for found, where in ((outcome.seen, "a reader"), (outcome.bare, "a reader without the sidecar")):
            if found is outcome.seen and not READERS_KNOW_OF_POWER_LOSS:
                compare(found[: moment.durable], moment, 0, where, gaps=gaps)
                continue
            proven = found
            if not make(run.setup.format, **run.options).capabilities.record_checksum:
                proven = found[: moment.durable]
            elif found is outcome.bare and outcome.bare_in_doubt and len(found) > moment.durable:
                proven = found[:-1]
            compare(proven, moment, moment.durable, where, gaps=gaps)

    # --- crashing recovery itself

    def _crash_recovery(
        self, crashed: SimulatedDisk, run: Run, outcome: Outcome, killed: Moment | None, case: Case
    ) -> None:
        """Lose power in the middle of recovery. The records are the same as without that, unless the first stop was a
        kill: then recovery saw bytes that were not on the disk yet."""
        clones: list[tuple[str, SimulatedDisk]] = []
        disk = crashed.clone()
        disk.on_operation = lambda _number, operation: clones.append((operation, disk.clone()))
        open_again(disk, run).close()
        seen: set[bytes] = set()
        for number, (operation, clone) in enumerate(clones):
            for index, pattern in enumerate(patterns(number, 2)):
                if case.inner_moment not in (None, number) or case.inner_pattern not in (None, index):
                    continue
                again = clone.crash(pattern)
                digest = again.digest()
                self.crashes += 1
                if digest in seen:
                    continue
                seen.add(digest)
                self.states.add(digest)
                try:
                    where = f"after a crash in recovery ({operation}, {pattern!r})"
                    with open_again(again, run) as log:
                        if killed is None:
                            same(outcome.records, read_all(log), where)
                        else:
                            compare(read_all(log), killed, killed.durable, where, gaps=run.setup.directory is not None)
                    check_verified(again, run)
                except (BrokenPromiseError, DuramenError) as error:
                    error.inner = (number, index)  # type: ignore[union-attr]
                    raise


# --- one crashed disk


def open_again(disk: SimulatedDisk, run: Run) -> WritableLog:
    options = {} if has_config(disk) else run.options
    return WritableLog(ROOT, format=run.setup.format, disk=disk, **options)


def examine(crashed: SimulatedDisk, run: Run, *, again: bool = True) -> Outcome:
    """Do everything with a crashed disk that a program might do, and check what can be checked without the model."""
    before = crashed.tree()
    bare, in_doubt = _read_bare(before, run)
    seen = _read_only(crashed.clone(), run)
    disk = crashed.clone()
    log = open_again(disk, run)
    records, steps = read_all(log), [str(step) for step in log.recovery]
    next_offset = log.next_offset
    opened = disk.clone()
    log.close()
    _check_quarantine(before, disk.tree(), run)
    check_verified(disk, run)
    if run.tracking is not None and tracking_of(disk, run.setup) != run.tracking:
        raise BrokenPromiseError("after recovery: the tracking state is not what it was")
    if again:
        _check_again(opened, disk, run, records, next_offset)
    return Outcome(records, steps, seen, bare, in_doubt)


def _check_again(
    opened: SimulatedDisk, closed: SimulatedDisk, run: Run, records: list[Stored], next_offset: int
) -> None:
    """Open again, after a power loss and after a close; append; and again."""
    lost = opened.crash(CrashPattern("lost", "lost"))
    with open_again(lost, run) as log:
        same(records, read_all(log), "opened again after a power loss")
        check_next(log, next_offset)
    log = open_again(closed, run)
    same(records, read_all(log), "opened again after a close")
    check_next(log, next_offset)
    value = bytes(range(256))[: run.setup.record_size or 21]
    offset = log.append(value.ljust(run.setup.record_size or 0, b"."))
    rolled = run.setup.directory is not None and offset == next_offset + 1  # tracking took an offset
    if offset != next_offset and not rolled:
        raise BrokenPromiseError(f"the append after recovery got offset {offset} instead of {next_offset}")
    after = [*records, Stored(offset, value.ljust(run.setup.record_size or 0, b"."))]
    same(after, read_all(log), "after an append")
    lost = closed.crash(CrashPattern("lost", "lost"))
    with open_again(lost, run) as log:
        same(after, read_all(log), "after an append and a power loss")


def check_next(log: WritableLog, next_offset: int) -> None:
    if log.next_offset != next_offset:
        raise BrokenPromiseError(f"opened again: the next offset is {log.next_offset}, and was {next_offset}")


def same(wanted: Sequence[Stored], found: Sequence[Stored], where: str) -> None:
    if list(wanted) != list(found):
        raise BrokenPromiseError(
            f"{where}: {len(found)} records, which are not the {len(wanted)} of the first recovery"
        )


def check_verified(disk: SimulatedDisk, run: Run) -> None:
    report = verify(ROOT, format=run.setup.format, disk=disk)
    bad = [finding for finding in report.findings if finding.severity != Severity.NOTE]
    if run.setup.directory is not None:
        bad = [finding for finding in bad if finding.severity == Severity.DAMAGE]
    if bad:
        raise BrokenPromiseError(f"after recovery verify finds {bad[0].code}: {bad[0].path}: {bad[0].message}")


def _check_quarantine(before: Mapping[str, bytes], after: Mapping[str, bytes], run: Run) -> None:
    fmt = make(run.setup.format, **run.options)
    kept = [content for path, content in after.items() if f"/{DIRECTORY}/quarantine/" in path]
    for path, content in before.items():
        name = fmt.classify(posixpath.relpath(path, ROOT))
        if name is None or name.role != Role.SEGMENT:
            continue
        now = after.get(path)
        if now is None:
            raise BrokenPromiseError(f"recovery took away the segment {path}")
        start = _same_bytes(content, now)
        cut = content[start:]
        if cut.strip(b"\0") and not any(cut in copy for copy in kept):
            raise BrokenPromiseError(
                f"recovery cut {len(cut)} bytes of {path} at {start} without a copy in the quarantine"
            )


def _same_bytes(one: bytes, other: bytes) -> int:
    """How many bytes two contents have in common from the start."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[:middle] == other[:middle] else (low, middle - 1)
    return low


def _read_only(disk: SimulatedDisk, run: Run) -> list[Stored]:
    """What a reader sees who comes before recovery."""
    return _read_up_to_damage(disk, run, {} if has_config(disk) else run.options)


def _read_bare(before: Mapping[str, bytes], run: Run) -> tuple[list[Stored], bool]:
    """What a reader sees without sidecar, indexes and manifest; whether its last record is in doubt."""
    fmt = make(run.setup.format, **run.options)
    kept: dict[str, bytes] = {}
    last = None
    for path, content in before.items():
        name = fmt.classify(posixpath.relpath(path, ROOT)) if path.startswith(ROOT + "/") else None
        if name is not None and name.role == Role.SEGMENT:
            kept[path] = content
            last = (name.base, content) if last is None or (name.base or 0) > (last[0] or 0) else last
    if not kept:
        return [], False
    in_doubt = False
    if last is not None:
        with contextlib.suppress(CorruptionError):
            segment = fmt.open_segment(last[1], last[0])
            in_doubt = segment.ends_in_doubt(segment.scan(segment.start))
    return _read_up_to_damage(disk_of(kept), run, run.options), in_doubt


def _read_up_to_damage(disk: SimulatedDisk, run: Run, options: Mapping[str, Any]) -> list[Stored]:
    found: list[Stored] = []
    if ROOT + "/" not in disk.tree():
        return found
    with contextlib.suppress(CorruptionError), Log(ROOT, format=run.setup.format, disk=disk, **options) as log:
        for batch in log.batches(columns=["offset", "value", "key"]):
            found += map(Stored, *(column.to_pylist() for column in batch.columns))
    return found
