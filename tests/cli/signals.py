"""Ctrl-C and SIGTERM at any moment of a verb: ``python -m tests.cli.signals --rounds 300``.

Each round runs the program on a copy of a log, sends it a signal (or two) at some moment, and looks at what is left:
the log as it was, or as it was to become; exit code 130, 143 or 0; no traceback. The moments are spread evenly over the
run; the seed chooses where in its share of the time each one lies.

The clock starts when the program catches SIGTERM, which the kernel shows: what comes before that is the interpreter's
own start. The handler for ctrl-C is set in the same moment.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import duramen
from duramen.disk import PosixDisk
from duramen.log.repair import repair_log, undo_repair
from duramen.sidecar.repair_journal import RepairState, read_repair_journal
from tests.cli.running import flip, segments

DURAMEN = [sys.executable, "-m", "duramen"]
FORMAT = "durable-log"
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
KEY_BYTES = 8
Left = str
"""``old``, ``new`` or, for a verb that works file by file, ``between``."""


def files(log: Path) -> dict[str, bytes]:
    """Everything but the lock, which every writer leaves."""
    found = {str(path.relative_to(log)): path.read_bytes() for path in log.rglob("*") if path.is_file()}
    found.pop(".duramen/lock", None)
    return found


def outside(tree: dict[str, bytes]) -> dict[str, bytes]:
    """The files of the log itself."""
    return {path: content for path, content in tree.items() if not path.startswith(".duramen/")}


def records(log: Path) -> dict[int, bytes]:
    with duramen.open(log, format=FORMAT) as found:
        return {record.offset: record.value for record in found}


# --- the logs


def write_log(path: Path, *, segment_records: int = 1500, count: int = 6, value_bytes: int = 1000) -> None:
    with duramen.open(path, "a", format=FORMAT, durability="write") as log:
        for number in range(count):
            batch = [
                b"%0*d" % (KEY_BYTES, (number * 7 + index) % 500) + bytes([65 + number]) * (value_bytes - KEY_BYTES)
                for index in range(segment_records)
            ]
            log.append_batch(batch)
            if number < count - 1:
                log.seal()


def damage(log: Path) -> None:
    """Something in most segments that only a rewrite mends, and a lost index."""
    found = segments(log)
    for path in found[::2]:
        flip(path, path.stat().st_size // 2)
    found[1].with_suffix(".idx").unlink()


def lose_indexes(log: Path) -> None:
    for path in segments(log)[:-1]:
        path.with_suffix(".idx").unlink()


# --- what may be left


class UnexpectedError(AssertionError):
    """Neither the old state nor the new one."""


def is_sound(log: Path) -> None:
    report = duramen.verify(log, format=FORMAT)
    if not report.ok:
        raise UnexpectedError(f"verify: {[finding.code for finding in report.findings]}")


def can_append(log: Path) -> None:
    with duramen.open(log, "a", format=FORMAT) as opened:
        offset = opened.append(b"x" * 20)
        if opened.read(offset).value != b"x" * 20:
            raise UnexpectedError("an append is not there")
    is_sound(log)


def after_repair(log: Path, old: Path, new: Path) -> Left:
    if files(log) == files(old):
        return "old"
    journal = read_repair_journal(PosixDisk(), str(log))
    if journal is None or journal.state != RepairState.DONE:
        raise UnexpectedError(f"{_difference(log, old)}; journal {journal and journal.state}")
    if outside(files(log)) != outside(files(new)):
        raise UnexpectedError(f"not as repaired: {_difference(log, new)}")
    is_sound(log)
    if repair_log(str(log)).steps:
        raise UnexpectedError("there is still something to repair")
    undo_repair(str(log))
    return "new"


def after_undo(log: Path, old: Path, new: Path) -> Left:
    if files(log) == files(old):
        return "old"
    journal = read_repair_journal(PosixDisk(), str(log))
    if journal is None or journal.state != RepairState.UNDONE:
        raise UnexpectedError(f"{_difference(log, old)}; journal {journal and journal.state}")
    if outside(files(log)) != outside(files(new)):
        raise UnexpectedError(f"not as before the repair: {_difference(log, new)}")
    return "new"


def after_reindex(log: Path, old: Path, new: Path) -> Left:
    """Each file on its own is the old one or the new one, and nothing else is there."""
    left, before, done = outside(files(log)), outside(files(old)), outside(files(new))
    if left in (before, done):
        return "new" if left == done else "old"
    if not before.items() <= left.items() <= done.items():
        raise UnexpectedError(_difference(log, new))
    return "between"


def after_seal(log: Path, old: Path, new: Path) -> Left:
    is_sound(log)
    if records(log) != records(old):
        raise UnexpectedError("records changed")
    state = {len(segments(old)): "old", len(segments(new)): "new"}.get(len(segments(log)))
    if state is None:
        raise UnexpectedError(_difference(log, new))
    can_append(log)
    return state


def after_retain(log: Path, old: Path, new: Path) -> Left:
    is_sound(log)
    left = records(log)
    if left not in (records(old), records(new)):
        raise UnexpectedError(f"{len(left)} records: {_difference(log, new)}")
    can_append(log)
    return "old" if left == records(old) else "new"


def after_compact(log: Path, old: Path, new: Path) -> Left:
    """Segment after segment: what is left lies between the two, with the newest record of every key."""
    is_sound(log)
    left, before, done = records(log), records(old), records(new)
    if not done.items() <= left.items() <= before.items():
        raise UnexpectedError(f"{len(left)} records: {_difference(log, new)}")
    can_append(log)
    return "old" if left == before else "new" if left == done else "between"


def after_verify(log: Path, old: Path, _new: Path) -> Left:
    (log / ".duramen" / "verified.json").unlink(missing_ok=True)  # the summary that verify publishes
    if files(log) != files(old):
        raise UnexpectedError(_difference(log, old))
    return "old"


def _difference(log: Path, other: Path) -> str:
    one, two = files(log), files(other)
    return f"differs in {sorted(path for path in one.keys() | two.keys() if one.get(path) != two.get(path))}"


# --- the rounds


@dataclass(frozen=True)
class Verb:
    name: str
    words: tuple[str, ...]
    prepare: Callable[[Path], None]
    judge: Callable[[Path, Path, Path], Left]


def _repaired(log: Path) -> None:
    damage(log)
    assert repair_log(str(log), plan_only=False).ok


VERBS = (
    Verb("repair", ("repair", "--apply"), damage, after_repair),
    Verb("undo", ("repair", "--undo"), _repaired, after_undo),
    Verb("reindex", ("reindex",), lose_indexes, after_reindex),
    Verb("seal", ("seal",), lambda _log: None, after_seal),
    Verb("compact", ("compact", "--key", f"prefix:{KEY_BYTES}"), lambda _log: None, after_compact),
    Verb("retain", ("retain", "--before-offset", "4500"), lambda _log: None, after_retain),
    Verb("verify", ("verify",), lambda _log: None, after_verify),
)


@dataclass(frozen=True)
class Moment:
    share: float
    """Of the time that the whole run takes, from 0 to 1."""
    number: signal.Signals
    again_s: float | None = None
    """So much later, once more."""


def moments(rounds: int, seed: int, start: float = 0.0) -> Iterator[Moment]:
    chance = random.Random(seed)
    for index in range(rounds):
        share = start + (1 - start) * (index + chance.random()) / rounds
        number = chance.choice((signal.SIGINT, signal.SIGTERM))
        yield Moment(share, number, chance.choice((None, None, 0.0, 0.002, 0.02)))


class Hunt:
    """One verb: its log before, its log after, and how long it takes."""

    def __init__(self, verb: Verb, directory: Path) -> None:
        self.verb = verb
        self._log = directory / "log"
        self._old = directory / "old"
        self._new = directory / "new"
        write_log(self._old)
        verb.prepare(self._old)
        shutil.copytree(self._old, self._new)
        self.work_s = timed(*verb.words, str(self._new))
        self.outcomes: Counter[str] = Counter()

    def round(self, moment: Moment) -> None:
        """Raises `UnexpectedError` where the log, the exit code or the output is not what it may be."""
        shutil.rmtree(self._log, ignore_errors=True)
        shutil.copytree(self._old, self._log)
        command = [*DURAMEN, *self.verb.words, str(self._log)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
            until_ready(process)
            time.sleep(moment.share * self.work_s)
            # Others work on this machine, too: follow how fast it is, so that few signals come too late.
            self.work_s *= 1.01 if process.poll() is None else 0.95
            process.send_signal(moment.number)
            if moment.again_s is not None:
                time.sleep(moment.again_s)
                process.send_signal(moment.number)
            _, err = process.communicate(timeout=60)
        try:
            if process.returncode not in (0, CODES[moment.number]) or err.strip():
                raise UnexpectedError(f"exit code {process.returncode}, standard error {err.decode()!r}")
            state = self.verb.judge(self._log, self._old, self._new)
            if process.returncode == 0 and state != "new" and self.verb.name != "verify":
                raise UnexpectedError(f"exit code 0, and the state is {state}")
        except Exception as error:
            raise UnexpectedError(f"{self.verb.name} at {moment}, {self.work_s:.3f} s: {error!r}") from error
        self.outcomes[f"{state}, exit code {process.returncode}"] += 1


def timed(*words: str) -> float:
    """How long a run takes that nobody disturbs, from when it is ready."""
    with subprocess.Popen([*DURAMEN, *words], stdout=subprocess.DEVNULL) as process:
        until_ready(process)
        began = time.monotonic()
        process.wait()  # with a timeout it would look only now and then
    assert process.returncode == 0, words
    return time.monotonic() - began


def until_ready(process: subprocess.Popen[bytes]) -> None:
    """Wait until the program catches SIGTERM."""
    wanted = 1 << (signal.SIGTERM - 1)
    while process.poll() is None:
        status = Path(f"/proc/{process.pid}/status").read_text()
        caught = next((line for line in status.splitlines() if line.startswith("SigCgt:")), "SigCgt: 0")
        if int(caught.split()[1], 16) & wanted:
            return
        time.sleep(0.001)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cli.signals", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100, help="of every verb")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=[verb.name for verb in VERBS])
    given = parser.parse_args()
    failures = 0
    timed("--version")  # the files it needs are in memory now
    start_s = timed("--version")
    for verb in VERBS:
        if given.only not in (None, verb.name):
            continue
        with tempfile.TemporaryDirectory() as directory:
            hunt = Hunt(verb, Path(directory))
            # A tenth of the rounds for the start, which is the same for every verb, the rest for the work.
            at = min(start_s / hunt.work_s, 1) * 0.8
            chosen = [
                *moments(given.rounds // 10, given.seed),
                *moments(given.rounds - given.rounds // 10, given.seed, at),
            ]
            for moment in chosen:
                try:
                    hunt.round(moment)
                except UnexpectedError as error:
                    failures += 1
                    print(error, flush=True)
            print(f"{verb.name}: {hunt.work_s:.2f} s, start {start_s:.2f} s:", dict(hunt.outcomes), flush=True)
    print(f"{failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
