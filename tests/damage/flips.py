"""One flipped bit against every verb: `python -m tests.damage.flips --budget 60`, or ``--all`` for every case.

The logs: five formats; closed, or the writer killed; with and without the sidecar. Every record was acknowledged at
``fsync``. The flips: every bit of every header (file header, first, middle and last record or chunk, entries,
trailers, tracking chunks) and some bits of payloads, in the first sealed and in the active segment; and of the files
derived from them (indexes, manifest) every bit of the header and of the first, a middle and the last entry. The verbs:
see `VERBS`.

While the sidecar is intact, in every case:

- no acknowledged record changes or disappears without an error;
- a verb that raises has changed no byte of the log;
- `verify` never turns from damage to green without a copy of the contradicted bytes in the quarantine, and no index or
  manifest that contradicts the records is replaced without one;
- whatever `verify` calls damage makes ``open(path, "a")`` raise, and no offset is given out twice. Sealed segments and
  their indexes are the exception: opening does not read those. There the damage must still be found afterwards.

Without the sidecar the same is counted, and only the second and the last are judged: a bit that no checksum covers
cannot be told from what was written.
"""

from __future__ import annotations

import argparse
import contextlib
import posixpath
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import Any, NamedTuple

from duramen.consumers.log import ConsumableWritableLog
from duramen.errors import DuramenError
from duramen.formats import Format, Role, SupportsSequences, make
from duramen.log.maintain.compact import Compaction
from duramen.log.maintain.retention import Retention
from duramen.log.read.log import Log
from duramen.log.repair import repair_log
from duramen.log.transfer.convert import convert
from duramen.log.transfer.loss_survey import FIELDS
from duramen.log.transfer.update import copy
from duramen.log.verify.verify import verify_log
from duramen.log.write.writable_log import WritableLog
from duramen.record import Headers, Record
from duramen.sidecar.layout import DIRECTORY
from duramen.testing.run import clocked, disk_of
from duramen.testing.simulated_disk import SimulatedDisk
from tests.damage.logs import FORMATS, OPTIONS, RECORD_SIZE, ROOT, START_MS, Place, options_for, places, tree

COPY = "/copy"
SEGMENTS = (7, 6, 8)
PAYLOADS = frozenset({"payload", "body", "headers", "zeros"})
PAYLOAD_BITS = 6
"""How many bits of each payload are flipped."""
ROOM_BYTES = 512
"""Zeros after the last record of a writer that was killed."""
DAY_MS = 86_400_000

Records = Mapping[int, tuple[datetime | None, bytes | None, bytes | None, Headers | None]]


@dataclass(frozen=True)
class State:
    """A sound log, all of it acknowledged at ``fsync``."""

    format: str
    killed: bool
    sidecar: bool
    files: Mapping[str, bytes]
    records: Records
    next_offset: int
    places: tuple[Place, ...]
    """Where records and chunks lie, in order."""

    def __str__(self) -> str:
        end = "killed" if self.killed else "closed"
        return f"{self.format}, {end}, {'with' if self.sidecar else 'without'} sidecar"

    @property
    def codec(self) -> Format:
        return make(self.format, **OPTIONS[self.format])

    @property
    def segments(self) -> list[str]:
        return sorted({place.path for place in self.places})

    def disk(self) -> SimulatedDisk:
        return _disk(self).clone()


class Flip(NamedTuple):
    """One bit of one file. ``what`` is the structure; ``where`` is "sealed" or "active" for a segment, "derived" for
    the manifest and the indexes of the active segment, "sealed index" for those of a sealed one."""

    path: str
    position: int
    bit: int
    what: str
    field: str
    where: str

    @property
    def is_derived(self) -> bool:
        return self.where in ("derived", "sealed index")

    def __str__(self) -> str:
        return f"{self.where} {self.path} {self.what} {self.field} byte {self.position} bit {self.bit}"


@dataclass
class Outcome:
    """What one verb made of one flip."""

    state: State
    flip: Flip
    verb: str
    result: str = ""
    """One of `RESULTS`."""
    detail: str = ""
    problems: list[str] = field(default_factory=list)
    """What speaks against it. Without a sidecar not all of it breaks a promise: see `broken`."""

    @property
    def broken(self) -> list[str]:
        """The promises that do not hold. Without the sidecar a bit that nothing covers cannot be told from what was
        written; but a verb that raises changes nothing there, either, and what `verify` calls damage is refused."""
        if self.state.sidecar or self.result == "crashed":
            return self.problems
        return [problem for problem in self.problems if problem.startswith((CHANGED, OVER))]

    def __str__(self) -> str:
        return f"{self.verb}: {self.state}: {self.flip}: {self.result}"


CHANGED = "it raised, and changed"
OVER = "it opened over what verify calls damage"
RESULTS = ("right", "refused", "raised later", "altered", "crashed")
"""All records as they were written; an error from the verb itself; an error when the records are read afterwards; other
records than were written, without an error; an exception that is not one of ours."""


# --- the logs


@cache
def state(name: str, *, killed: bool, sidecar: bool) -> State:
    disk = disk_of({ROOT + "/": b""})
    with clocked():
        log = ConsumableWritableLog(ROOT, format=name, disk=disk, preallocate_bytes=ROOM_BYTES, **OPTIONS[name])
        _fill(log)
        found = _records(log)
        following = log.next_offset
        left = tree(disk)
        log.close()
        files = left if killed else tree(disk)
    if not sidecar:
        files = {path: content for path, content in files.items() if not path.startswith(DIRECTORY + "/")}
    return State(name, killed, sidecar, files, found, following, tuple(places(name, files)))


@cache
def _disk_of(name: str, killed: bool, sidecar: bool) -> SimulatedDisk:
    files = state(name, killed=killed, sidecar=sidecar).files
    return disk_of({posixpath.join(ROOT, path): content for path, content in files.items()})


def _disk(held: State) -> SimulatedDisk:
    return _disk_of(held.format, held.killed, held.sidecar)


def _fill(log: ConsumableWritableLog) -> None:
    """Records of few keys, with everything that the format carries: producers, trailers and tracking chunks, too."""
    able = log.codec.capabilities
    done = 0
    for number, count in enumerate(SEGMENTS):
        if number and able.segments:
            log.seal()
        for _ in range(count):
            _append(log, done)
            done += 1
        if able.tracking:
            log.cursor("reader").store(done)


def _append(log: ConsumableWritableLog, number: int) -> None:
    able = log.codec.capabilities
    more: dict[str, Any] = {}
    if able.key:
        more["key"] = b"k%d" % (number % 3)
    if able.headers and number % 2:
        more["headers"] = [("h", b"v%d" % number)]
    if isinstance(log.codec, SupportsSequences) and number % 2:
        log.producer("writer").append_batch([value(number)])
    else:
        log.append(value(number), **more)


def value(number: int) -> bytes:
    return f"k{number % 3}=record {number:04} of the log".encode().ljust(RECORD_SIZE, b".")[:RECORD_SIZE]


def _records(log: Log) -> Records:
    found: dict[int, tuple[Any, ...]] = {}
    for record in log.scan():
        if record.offset in found:
            raise DuramenError("an offset comes twice", offset=record.offset)
        found[record.offset] = _fields(record)
    return found  # type: ignore[return-value]


def _fields(record: Record) -> tuple[Any, ...]:
    return record.timestamp, record.key, record.value, record.headers


# --- the flips


def flips(held: State, rng: random.Random) -> Iterator[Flip]:
    """Every bit of every header, and some of payloads, of the first sealed and of the active segment."""
    paths = held.segments
    chosen = {paths[-1]: "active"} if len(paths) == 1 else {paths[0]: "sealed", paths[-1]: "active"}
    for path, where in chosen.items():
        for what, name, position, length in _header_fields(held, path):
            bits = range(8 * length)
            if name in PAYLOADS:
                bits = rng.sample(bits, min(PAYLOAD_BITS, len(bits)))  # type: ignore[assignment]
            for number in bits:
                yield Flip(path, position + number // 8, number % 8, what, name, where)
    yield from _derived_flips(held)


def _derived_flips(held: State) -> Iterator[Flip]:
    """Every bit of the header, and of the first, a middle and the last entry, of the indexes and of the manifest."""
    first, last = (_base(held, path) for path in (held.segments[0], held.segments[-1]))
    for path, content in held.files.items():
        known = held.codec.classify(path)
        if known is None or known.role not in (Role.INDEX, Role.TIME_INDEX, Role.MANIFEST):
            continue
        if known.base not in (None, first, last):
            continue
        where = "derived" if known.base in (None, last) else "sealed index"
        blocks = list(held.codec.dump(known.role, content, known.base))
        entries = [block for block in blocks if block.title.startswith("entry")]
        chosen = {id(entries[row]) for row in (0, len(entries) // 2, -1)} if entries else set()
        for block in blocks:
            if id(block) not in chosen and block in entries:
                continue
            for each in block.fields:
                for number in range(8 * each.length):
                    at = each.position + number // 8
                    yield Flip(path, at, number % 8, f"{known.role} {block.title}", each.name, where)


def _base(held: State, path: str) -> int | None:
    known = held.codec.classify(path)
    return None if known is None else known.base


def _header_fields(held: State, path: str) -> Iterator[tuple[str, str, int, int]]:
    """The fields of the file header, of the first, a middle and the last record or chunk, and of two more chunks with
    tracking: (structure, name, position, length)."""
    here = [place for place in held.places if place.path == path]
    chosen = {0: "first", len(here) // 2: "middle", len(here) - 1: "last"}
    blocks = list(held.codec.dump(Role.SEGMENT, held.files[path], here[0].first))
    tracking = set(list(dict.fromkeys(_number(here, b.position) for b in blocks if "track" in b.title))[:2])
    seen: set[tuple[int, int]] = set()
    for block in blocks:
        number = _number(here, block.position)
        if number is not None and number not in chosen and number not in tracking:
            continue
        outside = "file header" if block.position < here[0].start else "end"
        what = outside if number is None else chosen.get(number, "tracking")
        for each in block.fields:
            if each.length and (each.position, each.length) not in seen:
                seen.add((each.position, each.length))
                yield what, each.name, each.position, each.length


def _number(here: Sequence[Place], position: int) -> int | None:
    return next((n for n, place in enumerate(here) if place.start <= position < place.end), None)


# --- the verbs


def run(held: State, flip: Flip, verb: str) -> Outcome:
    outcome = Outcome(held, flip, verb)
    disk = held.disk()
    content = bytearray(held.files[flip.path])
    content[flip.position] ^= 1 << flip.bit
    file = disk.open(posixpath.join(ROOT, flip.path))
    file.write(flip.position, content[flip.position : flip.position + 1])
    file.sync()
    file.close()
    try:
        with clocked():
            VERBS[verb](outcome, disk)
    except Exception as error:  # noqa: BLE001  # whatever it is, it is a finding
        outcome.result, outcome.detail = "crashed", f"{type(error).__name__}: {error}"
        outcome.problems.append(outcome.detail)
    return outcome


def _judge(outcome: Outcome, found: Records, expected: Records) -> None:
    if found == expected:
        outcome.result = "right"
        return
    outcome.result = "altered"
    lost, other = sorted(expected.keys() - found.keys()), [o for o in found if found[o] != expected.get(o)]
    outcome.detail = f"lost {lost}, altered {other}"
    outcome.problems.append("records changed or disappeared without an error")


@contextlib.contextmanager
def _refusing(outcome: Outcome, disk: SimulatedDisk) -> Iterator[None]:
    """What a verb does; where it raises, nothing may have changed."""
    before = tree(disk)
    try:
        yield
    except DuramenError as error:
        outcome.result, outcome.detail = "refused", str(error)
        after = tree(disk)
        changed = sorted(p for p in before.keys() | after.keys() if before.get(p) != after.get(p))
        if changed:
            outcome.problems.append(f"{CHANGED} {', '.join(changed)}")


def _is_green(disk: SimulatedDisk, held: State, path: str = ROOT) -> bool:
    """What verify says; a log that it cannot read at all is not sound."""
    try:
        return verify_log(path, format=held.format, disk=disk, **_options(disk, held)).ok
    except DuramenError:
        return False


def _options(disk: SimulatedDisk, held: State) -> dict[str, Any]:
    return options_for(disk, held.format)


def _open(outcome: Outcome, disk: SimulatedDisk) -> None:
    held = outcome.state
    was_green, before = _is_green(disk, held), tree(disk)
    with _refusing(outcome, disk):
        log = WritableLog(ROOT, format=held.format, disk=disk, **_options(disk, held))
    if outcome.result == "refused":
        if was_green and held.sidecar:
            outcome.detail += " (verify is green)"
            outcome.problems.append("open raises where verify is green")
        return
    if log.next_offset != held.next_offset:
        outcome.problems.append(f"the next offset is {log.next_offset} instead of {held.next_offset}")
    try:
        _judge(outcome, _records(log), held.records)
    except DuramenError as error:
        outcome.result, outcome.detail = "raised later", str(error)
    is_green_open = _is_green(disk, held)
    log.close()
    is_green = _is_green(disk, held)
    if not was_green and outcome.flip.where in ("active", "derived"):
        outcome.problems.append(OVER)
    if outcome.flip.is_derived:
        _judge_derived(outcome, before, tree(disk))
        return
    if not was_green and (is_green or is_green_open) and not _is_kept(before, tree(disk)):
        outcome.problems.append("verify turned green without a copy in the quarantine")
    if outcome.result == "raised later" and outcome.flip.where == "active":
        outcome.problems.append("it opened, and reading raises")


def _judge_derived(outcome: Outcome, before: Mapping[str, bytes], after: Mapping[str, bytes]) -> None:
    """An index or a manifest that was replaced has a copy in the quarantine. A manifest may also change because it says
    that the log is open, or closed: then only what is wrong with it counts, which the sound one tells."""
    path = outcome.flip.path
    damaged, now = before[path], after.get(path, b"")
    if now.startswith(damaged):
        return
    copies = [content for name, content in after.items() if name.startswith(f"{DIRECTORY}/quarantine/")]
    if damaged not in copies:
        outcome.problems.append("a derived file that contradicts the records was replaced without a copy")


def _is_kept(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> bool:
    """Whether every file that changed has a copy in the quarantine of the old bytes."""
    copies = [content for path, content in after.items() if path.startswith(f"{DIRECTORY}/quarantine/")]
    return any(copy_of for copy_of in copies if any(copy_of in content for content in before.values()))


def _read(outcome: Outcome, disk: SimulatedDisk) -> None:
    held = outcome.state
    with _refusing(outcome, disk), Log(ROOT, format=held.format, disk=disk, **_options(disk, held)) as log:
        _judge(outcome, _records(log), held.records)
    if outcome.result != "refused":
        return
    with contextlib.suppress(DuramenError), Log(ROOT, format=held.format, disk=disk, **_options(disk, held)) as log:
        for offset in held.records:
            with contextlib.suppress(DuramenError):
                if _fields(log.read(offset)) != held.records[offset]:
                    outcome.problems.append(f"read({offset}) returned another record")
                    outcome.result = "altered"


def _writing(work: Callable[[WritableLog], object], expected: Callable[[State], Records]) -> Any:
    """A verb that needs the log open for append. That opening raises is `_open`'s to judge."""

    def verb(outcome: Outcome, disk: SimulatedDisk) -> None:
        held = outcome.state
        was_green = _is_green(disk, held)
        try:
            log = WritableLog(ROOT, format=held.format, disk=disk, **_options(disk, held))
        except DuramenError as error:
            outcome.result, outcome.detail = "refused", f"open: {error}"
            return
        opened = tree(disk)
        try:
            work(log)
        except DuramenError as error:
            outcome.result, outcome.detail = "refused", str(error)
        log.close()
        if outcome.result == "refused":
            changed = [path for path in held.segments if tree(disk).get(path) != opened.get(path)]
            if changed:
                outcome.problems.append(f"{CHANGED} {', '.join(changed)}")
        else:
            _read_back(outcome, disk, expected(held))
        if not was_green and _is_green(disk, held) and not _is_kept(opened, tree(disk)):
            outcome.problems.append("verify turned green without a copy in the quarantine")

    return verb


def _read_back(outcome: Outcome, disk: SimulatedDisk, expected: Records, path: str = ROOT) -> None:
    try:
        with Log(path, disk=disk, **(_options(disk, outcome.state) if path == ROOT else {})) as log:
            _judge(outcome, _records(log), expected)
    except DuramenError as error:
        outcome.result, outcome.detail = "raised later", str(error)


def _compact(log: WritableLog) -> None:
    log.compact(Compaction(key="delimiter:="))


@cache
def _compacted_as(name: str, killed: bool, sidecar: bool) -> Records:
    disk = _disk_of(name, killed, sidecar).clone()
    with clocked(), WritableLog(ROOT, format=name, disk=disk, **options_for(disk, name)) as log:
        _compact(log)
        return _records(log)


def _compacted(held: State) -> Records:
    return _compacted_as(held.format, held.killed, held.sidecar)


def _retain(log: WritableLog) -> None:
    """By an age that no record has."""
    log.retain(Retention(max_age_ms=time.time_ns() // 1_000_000 - START_MS + DAY_MS))


def _retain_by_size(log: WritableLog) -> None:
    """All sealed segments go."""
    log.retain(Retention(max_bytes=0))


def _all(held: State) -> Records:
    return held.records


def _of_last_segment(held: State) -> Records:
    first = min(place.first for place in held.places if place.path == held.segments[-1])
    return {offset: record for offset, record in held.records.items() if offset >= first}


def _append_then_repair(outcome: Outcome, disk: SimulatedDisk) -> None:
    held = outcome.state
    try:
        with WritableLog(ROOT, format=held.format, disk=disk, **_options(disk, held)) as log:
            offset = log.append(value(99))
            new = _fields(log.read(offset))
        repair_log(ROOT, plan_only=False, format=held.format, disk=disk, **_options(disk, held))
    except DuramenError as error:
        outcome.result, outcome.detail = "refused", str(error)
        return
    copies = {path for path in tree(disk) if path.startswith(f"{DIRECTORY}/quarantine/")}
    _read_back(outcome, disk, {**held.records, offset: new})
    if outcome.result == "altered" and copies and outcome.flip.where == "sealed":
        _judge_repaired(outcome, disk, offset, new)


def _judge_repaired(outcome: Outcome, disk: SimulatedDisk, offset: int, new: tuple[Any, ...]) -> None:
    """A repair says what it loses. What it keeps must be what was written."""
    with Log(ROOT, disk=disk, **_options(disk, outcome.state)) as log:
        found = _records(log)
    expected = {**outcome.state.records, offset: new}
    touched = {o for p in outcome.state.places if _holds(p, outcome.flip) for o in range(p.first, p.last + 1)}
    if offset in found and all(found[o] == expected.get(o) for o in found if o not in touched):
        outcome.result, outcome.problems = "raised later", []
        outcome.detail = "repaired: what was touched is in the quarantine"


def _holds(place: Place, flip: Flip) -> bool:
    return place.path == flip.path and place.start <= flip.position < place.end


def _copy(outcome: Outcome, disk: SimulatedDisk) -> None:
    held = outcome.state
    with _refusing(outcome, disk):
        copy(ROOT, COPY, format=held.format, disk=disk, **_options(disk, held))
    if outcome.result != "refused":
        _read_back(outcome, disk, held.records, COPY)


def _target(name: str) -> str:
    return "keratin" if name != "keratin" else "durable-log"


def _convert_to(name: str, disk: SimulatedDisk) -> None:
    options = options_for(disk, name)
    convert(ROOT, COPY, _target(name), format=name, disk=disk, allow_loss=tuple(FIELDS), source_options=options)


@cache
def _converted_as(name: str, killed: bool, sidecar: bool) -> Records:
    disk = _disk_of(name, killed, sidecar).clone()
    with clocked():
        _convert_to(name, disk)
        with Log(COPY, disk=disk) as log:
            return _records(log)


def _convert(outcome: Outcome, disk: SimulatedDisk) -> None:
    held = outcome.state
    with _refusing(outcome, disk):
        _convert_to(held.format, disk)
    if outcome.result != "refused":
        _read_back(outcome, disk, _converted_as(held.format, held.killed, held.sidecar), COPY)


VERBS: Mapping[str, Callable[[Outcome, SimulatedDisk], None]] = {
    "open": _open,
    "read": _read,
    "compact": _writing(_compact, _compacted),
    "retain": _writing(_retain, _all),
    "retain by size": _writing(_retain_by_size, _of_last_segment),
    "convert": _convert,
    "copy": _copy,
    "append, repair": _append_then_repair,
}
"""``open``: for append, then read, verify, close and verify again. ``read``: a scan, and each record by its offset."""


def verbs_for(name: str) -> list[str]:
    able = make(name, **OPTIONS[name]).capabilities
    left_out = set() if able.compaction else {"compact"}
    left_out |= set() if able.timestamps is not None and able.segments else {"retain"}
    left_out |= set() if able.segments else {"retain by size"}
    return [verb for verb in VERBS if verb not in left_out]


# --- all of them


class Case(NamedTuple):
    state: State
    flip: Flip
    verb: str


def cases(seed: int, names: Sequence[str] = FORMATS, verbs: Sequence[str] = ()) -> list[Case]:
    """Every case, in a random order."""
    rng = random.Random(seed)
    found = []
    for name in names:
        for killed in (False, True):
            for sidecar in (True, False):
                held = state(name, killed=killed, sidecar=sidecar)
                wanted = [verb for verb in verbs_for(name) if not verbs or verb in verbs]
                found += [
                    Case(held, flip, verb)
                    for flip in flips(held, rng)
                    for verb in wanted
                    if not flip.is_derived or verb in ("open", "read")
                ]
    rng.shuffle(found)
    return found


class Table:
    """Outcomes, counted."""

    COLUMNS = (*RESULTS, "broken")

    def __init__(self) -> None:
        self._counts: dict[tuple[str, ...], Counter[str]] = {}
        self.broken: list[Outcome] = []

    def add(self, outcome: Outcome) -> None:
        held = outcome.state
        end = "killed" if held.killed else "closed"
        key = (outcome.verb, held.format, end, "sidecar" if held.sidecar else "none", outcome.flip.where)
        counts = self._counts.setdefault(key, Counter())
        counts[outcome.result] += 1
        if outcome.broken:
            counts["broken"] += 1
            self.broken.append(outcome)

    @property
    def total(self) -> int:
        return sum(counts[result] for counts in self._counts.values() for result in RESULTS)

    def __str__(self) -> str:
        lines = [f"{'verb':<15}{'format':<13}{'log':<8}{'sidecar':<9}{'segment':<8}" + _cells(self.COLUMNS)]
        for key, counts in sorted(self._counts.items()):
            verb, name, end, sidecar, where = key
            row = _cells([counts[column] for column in self.COLUMNS])
            lines.append(f"{verb:<15}{name:<13}{end:<8}{sidecar:<9}{where:<8}{row}")
        return "\n".join(lines)


def _cells(row: Sequence[object]) -> str:
    return "".join(f"{cell!s:>14}" for cell in row)


PROGRESS_CASES = 1000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    limit = parser.add_mutually_exclusive_group()
    limit.add_argument("--budget", type=float, default=60, help="seconds")
    limit.add_argument("--all", action="store_true", help="every case, however long it takes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--skip", type=int, default=0, help="cases that an earlier run with this seed has done")
    parser.add_argument("--only", choices=FORMATS, action="append")
    parser.add_argument("--verb", choices=VERBS, action="append")
    parser.add_argument("--show", type=int, default=20, help="how many broken promises are listed")
    options = parser.parse_args()
    every = cases(options.seed, options.only or FORMATS, options.verb or ())[options.skip :]
    table, end = Table(), time.monotonic() + options.budget
    for count, case in enumerate(every, 1):
        table.add(run(*case))
        if count % PROGRESS_CASES == 0:
            print(f"{count} of {len(every)} cases, {len(table.broken)} broken promises", file=sys.stderr, flush=True)
        if not options.all and time.monotonic() > end:
            break
    print(table)
    for outcome in table.broken[: options.show]:
        print(outcome, outcome.detail, *outcome.broken, sep="\n    ")
    print(f"{table.total} of {len(every)} cases, {len(table.broken)} broken promises")
    return 1 if table.broken else 0


if __name__ == "__main__":
    sys.exit(main())
