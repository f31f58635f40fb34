"""Real consumers, killed: ``python -m tests.torture.kill_consumers --kills 200 [--seed S]``.

Four processes share a log: a producer that sends again what it does not know to have arrived, and three consumers of
one group that fetch, acknowledge, return, extend and forget; what was delivered too often goes to a log of dead
letters, and each keeps a cursor. At random moments one of them gets a SIGKILL and is started again, while the others go
on; at the end of a round all of them are killed. Each tells the parent through a pipe what it is about to do, and what
it was answered. Held against that:

- no delivery of a record to two: a (record, epoch) goes out once, and the next epoch not before the deadline of the one
  before, unless that was given back; none after an ack that was answered; no lease that is alive is refused;
- after each round, in a process of its own: every message is there once and in order, every answered ack is in the
  group's state, and whatever counts as acknowledged somebody tried to acknowledge, or it is a dead letter; those that
  were given up on are; every cursor says what was stored last;
- at the end everything that is left is delivered, acknowledged, and gone; every byte is verified.
"""

from __future__ import annotations

import argparse
import os
import random
import select
import shutil
import signal
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn

import duramen
from duramen.consumers.files import files_of
from duramen.consumers.groups.store import load
from duramen.errors import LeaseError
from tests.torture.kill import FAILED, PATIENCE_S, VARIANTS, Violation, drain, fork

CONSUMERS = 3
ATTEMPTS = 3
LEASES_MS = (30, 120, 600)
EXTENSION_MS = 500
RETIRE_MESSAGES = 12_000
"""A log that has become this long makes room for a new one, so that looking at it stays quick."""
SLOT_BYTES = 96
NO_LOG_YET = (duramen.DetectionError, duramen.StorageError, duramen.UsageError)
"""What opening raises while the producer creates the log: a fixed-slot file exists before its record size is stored."""

SENT, CONFIRMED, GOT, TRIED, ACKED, GIVEN, EXTENDED, BURIED, STORING, STORED = (bytes([c]) for c in b"scgtaxebpq")
_TOLD = struct.Struct("<cQIQQ")


class Told(NamedTuple):
    """One thing that a process tells; what the numbers are depends on the kind."""

    kind: bytes
    number: int
    """An offset, or a sequence."""
    epoch: int = 0
    since_ms: int = 0
    until_ms: int = 0


def tell(pipe: int, told: Iterable[Told]) -> None:
    """One atomic write."""
    os.write(pipe, b"".join(_TOLD.pack(*one) for one in told))


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def value_of(sequence: int) -> bytes:
    return (b"%d:" % sequence).ljust(SLOT_BYTES, b"x")


@dataclass
class Lease:
    since_ms: int
    until_ms: int
    given: bool = False
    """Somebody has begun to give it back: it may go out again at any time."""


@dataclass
class Model:
    """What the parent knows of one log."""

    variant: str
    path: str
    sent: int = 0
    confirmed: int = 0
    leases: dict[int, dict[int, Lease]] = field(default_factory=dict)
    """By offset and epoch."""
    tried: set[int] = field(default_factory=set)
    acked: dict[int, int] = field(default_factory=dict)
    """When an ack was answered first."""
    buried: set[int] = field(default_factory=set)
    cursors: dict[str, tuple[int | None, ...]] = field(default_factory=dict)
    """What each may say."""
    deliveries: int = 0

    @property
    def dead(self) -> str:
        return self.path + "-dead"

    def take(self, who: str, told: bytes) -> None:
        """What one process told, in its order. The processes are not in order among themselves."""
        for one in map(Told._make, _TOLD.iter_unpack(told[: len(told) // _TOLD.size * _TOLD.size])):
            self._take_one(who, one)

    def _take_one(self, who: str, one: Told) -> None:
        offset, epoch = one.number, one.epoch
        if one.kind == SENT:
            self.sent = max(self.sent, one.number)
        elif one.kind == CONFIRMED:
            self.confirmed = max(self.confirmed, one.number)
        elif one.kind == GOT:
            self.deliveries += 1
            leases = self.leases.setdefault(offset, {})
            if epoch in leases:
                raise Violation(f"offset {offset}, epoch {epoch} went out twice")
            leases[epoch] = Lease(one.since_ms, one.until_ms)
        elif one.kind == TRIED:
            self.tried.add(offset)
            self.leases[offset][epoch].given = True
        elif one.kind == ACKED:
            self.acked[offset] = min(one.since_ms, self.acked.get(offset, one.since_ms))
        elif one.kind == GIVEN:
            self.leases[offset][epoch].given = True
        elif one.kind == EXTENDED:
            lease = self.leases[offset][epoch]
            if one.since_ms < lease.until_ms:  # else it may be another's, who is done with it: that is no refusal
                self.leases[offset][epoch] = Lease(lease.since_ms, one.until_ms)
        elif one.kind == BURIED:
            self.buried.add(offset)
        elif one.kind == STORING:
            self.cursors[who] = (*self.cursors.get(who, (None,)), one.number)
        elif one.kind == STORED:
            self.cursors[who] = (one.number,)

    def check_leases(self) -> None:
        """One holder at a time, and none after an ack."""
        for offset, leases in self.leases.items():
            before: Lease | None = None
            for epoch in sorted(leases):
                lease = leases[epoch]
                if before is not None and not before.given and lease.since_ms < before.until_ms:
                    raise Violation(
                        f"offset {offset}, epoch {epoch} went out at {lease.since_ms}, and somebody held it until "
                        f"{before.until_ms}"
                    )
                if lease.since_ms > self.acked.get(offset, lease.since_ms):
                    raise Violation(
                        f"offset {offset}, epoch {epoch} went out at {lease.since_ms}, after its ack was answered at "
                        f"{self.acked[offset]}"
                    )
                before = lease


# --- the producer, in its process


def send_until_killed(model: Model, seed: int, pipe: int) -> NoReturn:
    dice = random.Random(seed)
    with duramen.open(model.path, "a", **VARIANTS[model.variant]) as log:
        producer = log.producer("p")
        last = producer.last_sequence or 0
        sequence = dice.choice([1, max(1, last - 50), last + 1])
        while True:
            count = dice.choice([1, 2, 9, 30])
            tell(pipe, [Told(SENT, sequence + count - 1)])
            values = [value_of(sequence + number) for number in range(count)]
            stored = producer.append_batch(values, sequence=sequence, durability=dice.choice(["fsync", "write"]))
            sequence += count
            tell(pipe, [Told(CONFIRMED, sequence - 1)])
            if dice.random() < 0.05:
                _store(log, "producer", sequence, pipe)
            if stored.stored:  # and no pause for what is only repeated
                time.sleep(dice.random() * 0.01)


def _store(log: duramen.Log, name: str, position: int, pipe: int) -> None:
    tell(pipe, [Told(STORING, position)])
    log.cursor(name).store(position)
    tell(pipe, [Told(STORED, position)])


# --- a consumer, in its process


def consume_until_killed(model: Model, name: str, seed: int, pipe: int) -> NoReturn:
    dice = random.Random(seed)
    log = _opened(model)
    group = log.group("g", compact_bytes=6000, max_attempts=ATTEMPTS, dead_letter=model.dead)
    while True:
        lease_ms = dice.choice(LEASES_MS)
        held = group.fetch(dice.randint(1, 20), lease=lease_ms / 1000, timeout_s=0.02)
        tell(pipe, [Told(GOT, d.offset, d.epoch, d.deadline_ms - lease_ms, d.deadline_ms) for d in held])
        if dice.random() < 0.1:
            time.sleep(dice.random() * 0.1)
        kind = dice.choices(["ack", "nack", "extend", "forget"], [60, 22, 9, 9])[0]
        some = [delivery for delivery in held if dice.random() < 0.9]
        if some and kind == "ack":
            tell(pipe, [Told(TRIED, d.offset, d.epoch) for d in some])
            durability = dice.choice(["fsync", "write"])
            taken = _given(some, lambda given: group.ack_many(given, durability=durability))  # noqa: B023
            tell(pipe, [Told(ACKED, d.offset, d.epoch, now_ms()) for d in taken])
        elif some and kind == "nack":
            tell(pipe, [Told(GIVEN, d.offset, d.epoch) for d in some])
            delay_s = dice.choice([0, 0.05])
            taken = _given(some, lambda given: group.nack(given, delay=delay_s))  # noqa: B023
            tell(pipe, [Told(BURIED, d.offset, d.epoch) for d in taken if d.epoch >= ATTEMPTS])
        elif some and kind == "extend":
            tell(pipe, [Told(GIVEN, d.offset, d.epoch) for d in some])
            untils: list[int] = []
            taken = _given(some, lambda given: untils.append(group.extend(given, EXTENSION_MS / 1000)))  # noqa: B023
            tell(
                pipe, [Told(EXTENDED, d.offset, d.epoch, untils[0] - EXTENSION_MS, untils[0]) for d in taken if untils]
            )
        if dice.random() < 0.05:
            _store(log, name, dice.randrange(2**40), pipe)


def _opened(model: Model) -> duramen.Log:
    """The log, once there is one."""
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            return duramen.open(model.path)
        except NO_LOG_YET:
            if model.confirmed or time.monotonic() > until:
                raise
            time.sleep(0.002)


def _given(some: list[duramen.Delivery], work: Callable[[list[duramen.Delivery]], object]) -> list[duramen.Delivery]:
    """Give deliveries back; answers those that were taken. What is alive all the time must not be refused."""
    try:
        work(some)
    except LeaseError as error:
        refused = {offset for start, end, _ in error.refused for offset in range(start, end)}
        alive = [d.offset for d in some if d.offset in refused and d.deadline_ms > now_ms()]
        if alive:
            raise Violation(f"offset {alive[0]} is held and was refused: {error}") from error
        return [delivery for delivery in some if delivery.offset not in refused]
    return some


# --- looking at a log, in a process of its own


def look(model: Model, *, at_the_end: bool) -> tuple[int, int]:
    """Check everything against the model; answers how many messages and how many dead letters there are."""
    if at_the_end:
        duramen.open(model.path, "a", **VARIANTS[model.variant]).close()
    try:
        log = duramen.open(model.path)
    except NO_LOG_YET:
        if model.confirmed:
            raise
        return 0, 0
    with log:
        offsets = _check_messages(model, log)
        dead = _dead_letters(model)
        _check_acks(model, log, offsets, dead)
        for name, may_be in model.cursors.items():
            position = log.cursor(name).load()
            if position not in may_be:
                raise Violation(f"the cursor {name} says {position} instead of {may_be}")
        if at_the_end:
            _check_the_rest(model, log, offsets, dead)
    return len(offsets), len(dead)


def _check_messages(model: Model, log: duramen.Log) -> list[int]:
    """Every message once and in order; answers their offsets."""
    offsets: list[int] = []
    for batch in log.batches(columns=["offset", "value"]):
        for offset, value in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            if value != value_of(len(offsets) + 1):
                raise Violation(f"offset {offset} holds {value[:20]!r} instead of message {len(offsets) + 1}")
            offsets.append(offset)
    if not model.confirmed <= len(offsets) <= model.sent:
        raise Violation(f"{len(offsets)} messages, {model.confirmed} confirmed, {model.sent} sent")
    return offsets


def _dead_letters(model: Model) -> set[int]:
    """The offsets of those that were given up on."""
    if not os.path.isdir(model.dead):
        return set()
    with duramen.open(model.dead, "a") as log:  # who made it may have been killed before there was a log in it
        headers = [dict(record.headers or []) for record in log.scan()]
    return {int(one["duramen-dead-letter-offset"] or b"-1") for one in headers}


def _check_acks(model: Model, log: duramen.Log, offsets: list[int], dead: set[int]) -> None:
    place, exists = files_of(log, "g")
    if not exists:
        if model.acked:
            raise Violation("the group is gone")
        return
    machine = load(log.disk, place).machine
    done = {offset for offset in offsets if offset < machine.acked_until or machine.acked.at(offset) is not None}
    lost = sorted(model.acked.keys() - done)
    if lost:
        raise Violation(f"the ack of offset {lost[0]} was answered and is gone (and {len(lost) - 1} more)")
    if not model.buried <= dead:
        raise Violation(f"offset {min(model.buried - dead)} was given up on and is no dead letter")
    missing = sorted(done - model.tried - dead)
    if missing:
        raise Violation(
            f"offset {missing[0]} counts as acknowledged, and nobody tried to (and {len(missing) - 1} more)"
        )


def _check_the_rest(model: Model, log: duramen.Log, offsets: list[int], dead: set[int]) -> None:
    """Everything that is left goes out once, and then nothing does."""
    time.sleep(max(LEASES_MS) / 1000 + 0.1)
    group = log.group("g", update_policy=True)
    left = group.fetch(len(offsets) + 1, lease=60)
    found = [delivery.offset for delivery in left]
    if len(found) != len(set(found)) or set(found) & model.acked.keys():
        raise Violation("a record was delivered twice, or after its ack")
    missing = set(offsets) - set(found) - model.tried - dead
    if missing:
        raise Violation(f"offset {min(missing)} disappeared")
    group.ack_many(left)
    with duramen.open(model.path) as again:
        if again.group("g").fetch(1) or (offsets and again.group("g").status().lag):
            raise Violation("something is delivered after everything was acknowledged")
    for path in (model.path, model.dead):
        if os.path.isdir(path):
            report = duramen.verify(path)
            if not report.ok:
                raise Violation(f"verify {path}: {[str(finding) for finding in report.findings][:5]}")


# --- processes


class Crew:
    """The processes of one round: started, killed one by one, and started again."""

    def __init__(self, model: Model, dice: random.Random) -> None:
        self._model = model
        self._dice = dice
        self._running: dict[str, tuple[int, int, bytearray]] = {}
        self.kills = 0

    def start(self, name: str) -> None:
        seed = self._dice.getrandbits(32)
        run = (
            (lambda pipe: send_until_killed(self._model, seed, pipe))
            if name == "producer"
            else (lambda pipe: consume_until_killed(self._model, name, seed, pipe))
        )
        self._running[name] = (*fork(run), bytearray())

    def watch(self, seconds: float) -> None:
        """Take down what they tell."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            pipes = {reading: told for _, reading, told in self._running.values()}
            for reading in select.select(list(pipes), [], [], left)[0]:
                piece = os.read(reading, 1 << 16)
                pipes[reading].extend(piece)
                if not piece:
                    return  # one of them has ended: `kill` finds out why

    def kill(self, name: str) -> None:
        child, reading, told = self._running.pop(name)
        os.kill(child, signal.SIGKILL)
        for piece in drain(reading, None):
            told += piece
        os.close(reading)
        _, status = os.waitpid(child, 0)
        self.kills += 1
        if status != signal.SIGKILL:
            told_last = bytes(told[len(told) // _TOLD.size * _TOLD.size :] or told)[-3000:]
            at = told.rfind(FAILED + b"Traceback")
            text = bytes(told[at + 1 :] if at >= 0 else told_last).decode(errors="replace")
            raise Violation(f"the {name} ended by itself:\n{text}")
        self._model.take(name, bytes(told))

    def names(self) -> list[str]:
        return list(self._running)


def round_(model: Model, dice: random.Random, most_kills: int) -> int:
    """Some kills of single processes, then of all; answers how many."""
    crew = Crew(model, dice)
    names = ["producer", *(f"consumer {number}" for number in range(CONSUMERS))]
    for name in names:
        crew.start(name)
    for _ in range(min(dice.randint(1, 4), max(most_kills - len(names), 0))):
        crew.watch(dice.triangular(0.01, 0.8, 0.15))
        name = dice.choice(names)
        crew.kill(name)
        crew.start(name)
    crew.watch(dice.triangular(0.02, 1.2, 0.4))
    for name in dice.sample(names, len(names)):
        crew.kill(name)
    model.check_leases()
    return crew.kills


def looked(model: Model, *, at_the_end: bool) -> tuple[int, int]:
    def looking(pipe: int) -> None:
        try:
            os.write(pipe, b"%d %d" % look(model, at_the_end=at_the_end))
        except Violation as violation:
            os.write(pipe, FAILED + str(violation).encode()[:3000])

    child, reading = fork(looking)
    answer = b"".join(drain(reading, time.monotonic() + PATIENCE_S))
    os.close(reading)
    if not answer:
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    if not answer or answer.startswith(FAILED):
        raise Violation(answer[1:].decode(errors="replace") or "the look at the log did not end")
    messages, dead = answer.split()
    return int(messages), int(dead)


class Tally(NamedTuple):
    kills: int = 0
    messages: int = 0
    deliveries: int = 0
    acks: int = 0
    dead: int = 0

    def __add__(self, other: tuple[int, ...]) -> Tally:  # type: ignore[override]
        return Tally(*(one + more for one, more in zip(self, other, strict=True)))


def torture(root: str, kills: int, dice: random.Random, deadline: float) -> dict[str, Tally]:
    """Every variant in turn, a round each, until there were enough kills."""
    tallies = dict.fromkeys(VARIANTS, Tally())
    models: dict[str, Model] = {}
    logs = 0

    def finish(model: Model) -> None:
        messages, dead = looked(models.pop(model.variant), at_the_end=True)
        tallies[model.variant] += (0, messages, model.deliveries, len(model.acked), dead)
        for path in (model.path, model.dead):
            shutil.rmtree(path, ignore_errors=True)

    variants = list(VARIANTS)
    while (done := sum(tally.kills for tally in tallies.values())) < kills and time.monotonic() < deadline:
        variant = variants[logs % len(variants)]
        logs += 1
        model = models.setdefault(
            variant, Model(variant, os.path.join(root, f"{logs:04d}-{variant}".replace(" ", "-")))
        )
        try:
            tallies[variant] += (round_(model, dice, kills - done), 0, 0, 0, 0)
            messages, _ = looked(model, at_the_end=False)
            if messages > RETIRE_MESSAGES:
                finish(model)
        except Violation as violation:
            raise Violation(f"{variant}: {violation}\nthe log: {model.path}") from violation
    for model in list(models.values()):
        finish(model)
    return tallies


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.torture.kill_consumers")
    parser.add_argument("--kills", type=int, default=200, help="how many processes are killed, at least")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this time")
    parser.add_argument("--seed", type=int, help="that of an earlier run: the same choices, the same delays")
    parser.add_argument("--directory", help="where the logs go (a temporary directory)")
    given = parser.parse_args(arguments)
    seed = given.seed if given.seed is not None else random.SystemRandom().getrandbits(32)
    root = tempfile.mkdtemp(prefix="duramen-kill-", dir=given.directory)
    try:
        tallies = torture(root, given.kills, random.Random(seed), time.monotonic() + given.seconds)
    except Violation as violation:
        again = f"python -m tests.torture.kill_consumers --kills {given.kills} --seed {seed}"
        sys.stdout.write(f"violation in {violation}\nagain: {again}\n")
        return 1
    shutil.rmtree(root)
    line = "{:12} {:>6} {:>10} {:>11} {:>10} {:>13}\n".format
    sys.stdout.write(line("format", "kills", "messages", "deliveries", "acks", "dead letters"))
    total = Tally()
    for variant, tally in tallies.items():
        total += tally
        sys.stdout.write(line(variant, *(f"{number:,}" for number in tally)))
    sys.stdout.write(line("all", *(f"{number:,}" for number in total)))
    sys.stdout.write("no message lost or twice, no ack lost, no lease with two holders\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
