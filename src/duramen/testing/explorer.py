"""The crash explorer: crash a log after every operation, in every way, and compare what recovery finds with a model.

A `Case` (a format, a workload, a seed) runs once on a simulated disk. After every change of the disk the explorer keeps
a *moment*: a clone of the disk, with what was attempted and acknowledged so far. Then, for every moment and every crash
pattern, the disk loses power, and the explorer checks:

- Opening for append succeeds, and every record acknowledged at ``fsync`` exists, with its offset and value.
- Every other record was attempted: in order, once, with its value, and without a gap. So the unacknowledged records
  that survive are a prefix of the unacknowledged attempts.
- If nothing was lost (a killed process, or luck), the records acknowledged at ``write`` exist, too.
- Bytes that recovery cut from a segment, unless they are zeros, are in the quarantine.
- `verify` reports no problem.
- Opening again returns the same records: after a close, after a power loss, and after a power loss during recovery. An
  append gets the next offset and survives another power loss.
- A reader, which recovers nothing, sees every record that was acknowledged at ``fsync``: with the sidecar as the crash
  left it, and with every index, the manifest and the whole sidecar deleted.

What a reader *without the sidecar* sees after the durable records is limited by what the format itself can prove:

- It may report damage where a later part of an unfinished write arrived and an earlier one did not. Only the sidecar
  shows that these bytes were never durable. All durable records come before them.
- Where records have no checksum (RustLog) it may see records of which some bytes did not arrive.
- Where a checksum does not cover the header (durable-log), the last record may be an empty one whose length did not
  arrive.

Every run of a case is the same. A failure raises `BrokenPromiseError`, whose text shows how to run that crash alone.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from duramen.errors import DuramenError
from duramen.formats import make
from duramen.testing.crash import CrashPattern, patterns
from duramen.testing.examination import CrashOutcome, check_verified, examine, open_again, same
from duramen.testing.run import BrokenPromiseError, Moment, Run, compare, read_all
from duramen.testing.simulated_disk import SimulatedDisk

KILLED = "killed"


@dataclass(frozen=True)
class Case:
    """What to run, and optionally which single crash of it to check."""

    setup: str
    workload: str
    seed: int
    moment: int | None = None
    pattern: int | None = None
    """Number of the pattern; -1 is a killed process."""
    inner_moment: int | None = None
    inner_pattern: int | None = None
    """The crash during the recovery from the first one."""

    def __str__(self) -> str:
        told = [self.setup, self.workload, self.seed, self.moment, self.pattern, self.inner_moment, self.inner_pattern]
        return ":".join(str(part) for part in told if part is not None)

    @classmethod
    def parse(cls, text: str) -> Case:
        """Parse the result of `str`.

        >>> Case.parse("keratin:mixed:7:12:-1")
        Case(setup='keratin', workload='mixed', seed=7, moment=12, pattern=-1, inner_moment=None, inner_pattern=None)
        """
        setup, workload, *numbers = text.split(":")
        return cls(setup, workload, *(int(number) for number in numbers))


@dataclass
class Explorer:
    """Runs cases, and counts the distinct disks that crashes left."""

    random_patterns: int = 8
    inner_every: int = 40
    """Every n-th recovery is itself crashed after each of its operations."""
    again_every: int = 1
    """Every n-th recovered log is reopened several times, appended to, and crashed once more."""
    killed_every: int = 3
    """After every n-th operation the process is also killed."""
    every: int = 1
    """Every n-th moment of a case is checked."""
    skip_opening: bool = False
    """Skip the crashes before the log is open, which another case of the same format covers."""
    files: Mapping[str, Mapping[str, bytes]] = field(default_factory=dict)
    """Initial files of the setups that start with some, by setup."""
    states: set[bytes] = field(default_factory=set)
    crashes: int = 0
    deadline: float | None = None

    def explore(self, case: Case) -> None:
        """Run the case and check every crash of it, or the one that the case selects."""
        at = case
        try:
            run = Run(case.setup, case.workload, case.seed, self.files.get(case.setup))
            moments = run.run()
            examined: dict[bytes, CrashOutcome] = {}
            for number in self._chosen(case, len(moments), run):
                moment = moments[number]
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

    def _chosen(self, case: Case, count: int, run: Run) -> list[int]:
        """The moments to check: one of `every`, and at least one."""
        if case.moment is not None:
            return [case.moment] if case.moment < count else []
        able = range(run.opening if self.skip_opening else 0, count)
        chosen = [n for n in able if _one_of(self.every, "moment", Case(case.setup, case.workload, case.seed, n))]
        return chosen or [*able[-1:]]

    def _told(self, at: Case, moments: Sequence[Moment], error: object) -> str:
        inner = getattr(error, "inner", None)
        if inner is not None:
            at = Case(at.setup, at.workload, at.seed, at.moment, at.pattern, *inner)
        place = ""
        if at.moment is not None and at.pattern is not None:
            pattern = KILLED if at.pattern < 0 else self._all_patterns(at, at.moment)[at.pattern]
            place = f" after {moments[at.moment].operation}, {pattern!r}"
        return f"{error}{place}\n  to run it again: Explorer().explore(Case.parse({str(at)!r}))"

    def _all_patterns(self, case: Case, moment: int) -> list[CrashPattern]:
        return patterns(_chance(case.seed, moment), 64 if case.pattern is not None else self.random_patterns)

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
        examined: dict[bytes, CrashOutcome],
    ) -> None:
        crashed = moment.disk.clone() if pattern is None else moment.disk.crash(pattern)
        digest = crashed.digest()
        self.crashes += 1
        self.states.add(digest)
        outcome = examined.get(digest) if pattern is not None else None
        if outcome is None:
            outcome = examine(crashed, run, again=case.pattern is not None or _one_of(self.again_every, "again", at))
            if pattern is not None:
                examined[digest] = outcome
            inner = case.inner_moment is not None
            if inner or (case.pattern is None and _one_of(self.inner_every, "inner", at)):
                self._crash_recovery(crashed, run, outcome, moment if pattern is None else None, case)
        gaps = run.setup.directory is not None
        whole = pattern is None or (pattern.data, pattern.names, pattern.files) == ("kept", "kept", "all")
        needed = len(moment.offsets) if whole else moment.durable
        compare(outcome.records, moment, needed, "after recovery", gaps=gaps)
        self._compare_readers(outcome, moment, run, gaps)

    def _compare_readers(self, outcome: CrashOutcome, moment: Moment, run: Run, gaps: bool) -> None:
        for found, where in ((outcome.seen, "a reader"), (outcome.bare, "a reader without the sidecar")):
            proven = found
            if not make(run.setup.format, **run.options).capabilities.record_checksum:
                proven = found[: moment.durable]
            elif found is outcome.bare and outcome.bare_in_doubt and len(found) > moment.durable:
                proven = found[:-1]
            compare(proven, moment, moment.durable, where, gaps=gaps)

    # --- crashing recovery itself

    def _crash_recovery(
        self, crashed: SimulatedDisk, run: Run, outcome: CrashOutcome, killed: Moment | None, case: Case
    ) -> None:
        """Lose power during recovery. The records must be the same as without that, unless the first crash was a kill:
        then recovery saw bytes that were not on the disk yet."""
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


def _chance(*about: object) -> int:
    """A number that is the same in every run and every process."""
    return int.from_bytes(hashlib.blake2b(repr(about).encode(), digest_size=4).digest(), "big")


def _one_of(count: int, what: str, case: Case) -> bool:
    return _chance(what, str(case)) % count == 0
