"""A retrying producer across crashes: after every operation, in every way, nothing is stored twice and nothing lost.

A `Sending` runs producers and plain appends side by side on a simulated disk, and keeps a moment after every operation.
Every message names its producer and its sequence, so what a log holds says what was stored. Then the disk loses power,
or the process is killed, and this is checked of what is left:

- every message that was confirmed at ``fsync`` is there, and none twice;
- each producer's last sequence is that of its last record that is there: not one more, not one less;
- a plain record with the bytes of a message that is not there, then another crash, change nothing of that;
- after the producers have sent everything again, every message is there exactly once, in the order of its sequence; and
  so it is after yet another power loss, also one in the middle of a recovery;
- `verify` finds nothing to complain about.

``python -m tests.torture --only producers`` hunts for a run that breaks one of these.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from unittest import mock

from duramen.consumers import ConsumableWritableLog
from duramen.errors import DuramenError
from duramen.formats import Severity
from duramen.log import GroupBatch, Request, SequenceClaim, batch_of, verify_log
from duramen.testing.crash import CrashPattern, patterns
from duramen.testing.run import ROOT, BrokenPromiseError, clocked, has_config
from duramen.testing.simulated_disk import SimulatedDisk
from duramen.testing.workloads import SETUPS

NAMES = ("p", "q")
STEPS = 12
ROOM_BYTES = 350
"""So little that the file of the sequences is replaced again and again."""
KILLED = CrashPattern("kept", "kept")


class Message(NamedTuple):
    producer: str
    sequence: int

    def value(self, record_size: int | None) -> bytes:
        text = f"{self.producer}:{self.sequence}:".encode()
        return text.ljust(record_size or len(text) + self.sequence * 37 % 260, b"\xff")


class Moment(NamedTuple):
    operation: str
    disk: SimulatedDisk
    sent: dict[str, int]
    """How many messages each producer has handed in; the last may be in the middle of it."""
    durable: frozenset[Message]
    plain: int
    """How many plain records were handed in."""


@dataclass
class Sending:
    """One run."""

    setup_name: str
    seed: int
    moments: list[Moment] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.setup = SETUPS[self.setup_name]
        self._chance = random.Random(repr((self.setup_name, self.seed)))
        self._sent = dict.fromkeys(NAMES, 0)
        self._durable: set[Message] = set()
        self._written: set[Message] = set()
        self._plain_count = 0
        self._disk = SimulatedDisk()

    def run(self) -> list[Moment]:
        self._open(self._disk)
        for _ in range(STEPS):
            kind = self._chance.choices(("one", "batch", "group", "plain", "roll", "again"), (6, 4, 4, 3, 1, 1))[0]
            getattr(self, f"_{kind}")(self._chance.choice(NAMES))
            self._note("answered")
        self._log.close()
        self._note("closed")
        return self.moments

    def open(self, disk: SimulatedDisk) -> ConsumableWritableLog:
        options = {} if has_config(disk) else self.setup.rolling()
        return ConsumableWritableLog(ROOT, format=self.setup.format, disk=disk, **options)

    def _open(self, disk: SimulatedDisk) -> None:
        self._disk = disk
        disk.on_operation = lambda _number, operation: self._note(operation)
        self._log = self.open(disk)

    def _note(self, operation: str) -> None:
        self.moments.append(
            Moment(operation, self._disk.clone(), dict(self._sent), frozenset(self._durable), self._plain_count)
        )

    # --- steps

    def _next(self, name: str, count: int) -> list[Message]:
        first = self._sent[name] + 1
        self._sent[name] += count
        return [Message(name, sequence) for sequence in range(first, first + count)]

    def _values(self, messages: Sequence[Message]) -> list[bytes]:
        return [message.value(self.setup.record_size) for message in messages]

    def _confirmed(self, messages: Sequence[Message], durability: str) -> None:
        self._written.update(messages)
        if durability == "fsync":
            self._durable |= self._written

    def _durability(self) -> str:
        return self._chance.choice(("fsync", "fsync", "write"))

    def _one(self, name: str) -> None:
        messages, durability = self._next(name, 1), self._durability()
        producer = self._log.producer(name)
        for _ in range(self._chance.choice((1, 1, 2))):  # some are sent twice
            producer.append(self._values(messages)[0], sequence=messages[0].sequence, durability=durability)
            self._confirmed(messages, durability)

    def _batch(self, name: str) -> None:
        back = self._chance.randint(0, min(2, self._sent[name]))  # and some batches overlap with what was sent
        known = [Message(name, self._sent[name] - n) for n in reversed(range(back))]
        messages, durability = known + self._next(name, self._chance.randint(1, 5)), self._durability()
        self._log.producer(name).append_batch(
            self._values(messages), sequence=messages[0].sequence, durability=durability
        )
        self._confirmed(messages, durability)

    def _group(self, name: str) -> None:
        """Appends of both producers and of nobody that are committed together."""
        self._log.producer(name)
        group: list[Request] = []
        messages: list[Message] = []
        for who in (*NAMES, "", name):
            if not who:
                self._plain_count += 1
                values, claim = [b"plain".ljust(self.setup.record_size or 5, b".")], None
            else:
                sent = self._next(who, self._chance.randint(1, 3))
                messages += sent
                values, claim = self._values(sent), SequenceClaim(who.encode(), sent[0].sequence)
            batch = batch_of(self._log.codec, values)
            group.append(Request(GroupBatch(batch, "fsync", claim), batch.nbytes, batch.num_rows))
        self._log.commit_group(group)
        for request in group:
            request.outcome()
        self._confirmed(messages, "fsync")

    def _plain(self, _name: str) -> None:
        self._plain_count += 1
        self._log.append(b"plain".ljust(self.setup.record_size or 5, b"."))
        self._durable |= self._written

    def _roll(self, name: str) -> None:
        if self.setup.segments:
            self._log.seal()
        else:
            self._plain(name)

    def _again(self, _name: str) -> None:
        self._log.close()
        self._durable |= self._written
        self._open(self._disk)


# --- what a log holds


def stored(log: ConsumableWritableLog) -> list[Message]:
    """The messages of a log, in the order of their offsets."""
    found = []
    for batch in log.batches(columns=["value"]):
        for value in batch.column("value").to_pylist():
            if not value.startswith(b"plain"):
                name, sequence, _ = value.split(b":", 2)
                found.append(Message(name.decode(), int(sequence)))
    return found


def check_sequences(log: ConsumableWritableLog, where: str, copies: Sequence[Message] = ()) -> dict[str, int]:
    """Nothing twice, in order, and every last sequence that of the last record. Answers those. ``copies`` are plain
    records that only look like messages."""
    found = list((Counter(stored(log)) - Counter(copies)).elements()) if copies else stored(log)
    twice = [message for message, count in Counter(found).items() if count > 1]
    if twice:
        raise BrokenPromiseError(f"{where}: {twice[0]} is stored twice")
    lasts = {}
    for name in NAMES:
        numbers = [message.sequence for message in found if message.producer == name]
        if numbers != list(range(1, len(numbers) + 1)):
            raise BrokenPromiseError(f"{where}: the records of {name} are {numbers}")
        last = log.producer(name).last_sequence
        if (last or 0) != len(numbers):
            raise BrokenPromiseError(
                f"{where}: the last sequence of {name} is {last}, its records end with {numbers[-1:]}"
            )
        lasts[name] = len(numbers)
    return lasts


@dataclass
class ProducerExplorer:
    """Crashes runs, and counts the distinct disks that the crashes left. ``every``: one of so many crashes is looked
    at; ``inner_every``: and in one of so many of those recovery is crashed, too."""

    every: int = 1
    inner_every: int = 25
    random_patterns: int = 6
    states: set[bytes] = field(default_factory=set)
    crashes: int = 0
    deadline: float | None = None

    def explore(self, setup: str, seed: int) -> None:
        sending = Sending(setup, seed)
        with clocked(), mock.patch("duramen.log.write.producer_state.ROOM_BYTES", ROOM_BYTES):
            moments = sending.run()
            dice = random.Random(repr(("crash", setup, seed)))
            for number, moment in enumerate(moments):
                for pattern in (None, *patterns(seed * 1000 + number, self.random_patterns)):
                    if dice.randrange(self.every):
                        continue
                    try:
                        self._crash(sending, moment, pattern, dice)
                    except (BrokenPromiseError, DuramenError) as error:
                        raise BrokenPromiseError(
                            f"producers:{setup}:{seed}: moment {number}, after {moment.operation}, "
                            f"{pattern or 'killed'}: {type(error).__name__}: {error}"
                        ) from error
                if self.deadline is not None and time.monotonic() > self.deadline:
                    return

    def _crash(self, sending: Sending, moment: Moment, pattern: CrashPattern | None, dice: random.Random) -> None:
        crashed = moment.disk.clone() if pattern is None else moment.disk.crash(pattern)
        self.crashes += 1
        digest = crashed.digest()
        is_new = digest not in self.states
        self.states.add(digest)
        if not is_new and pattern is not None:
            return
        disk = crashed.clone()
        log = sending.open(disk)
        lasts = check_sequences(log, "after recovery")
        missing = [message for message in moment.durable if message.sequence > lasts[message.producer]]
        if missing:
            raise BrokenPromiseError(f"after recovery: {missing[0]} was confirmed and is gone")
        log.close()
        if not dice.randrange(self.inner_every):
            self._crash_recovery(sending, crashed, lasts if pattern is not None else None)
        self._look_alike(sending, disk.clone(), moment, lasts)
        self._send_again(sending, crashed.clone(), moment, dice)

    def _look_alike(self, sending: Sending, disk: SimulatedDisk, moment: Moment, lasts: dict[str, int]) -> None:
        """A plain record with the bytes of the message that did not arrive, at the offset that was announced for it."""
        name = next((name for name in NAMES if moment.sent[name] > lasts[name]), None)
        if name is None:
            return
        copy = Message(name, lasts[name] + 1)
        log = sending.open(disk)
        log.append(copy.value(sending.setup.record_size))
        with sending.open(disk.crash(CrashPattern("lost", "lost"))) as again:
            if check_sequences(again, "after a plain record that looks alike", [copy]) != lasts:
                raise BrokenPromiseError(f"a plain record was taken for {copy}")

    def _send_again(self, sending: Sending, disk: SimulatedDisk, moment: Moment, dice: random.Random) -> None:
        log = sending.open(disk)
        for name in NAMES:
            producer, sent = log.producer(name), moment.sent[name]
            sequence = 1
            while sequence <= sent:
                count = dice.randint(1, 4)
                messages = [Message(name, n) for n in range(sequence, min(sequence + count, sent + 1))]
                values = [message.value(sending.setup.record_size) for message in messages]
                producer.append_batch(values, sequence=sequence)
                sequence += count
        wanted = dict(moment.sent)
        for left, where in ((disk.crash(CrashPattern("lost", "lost")), "a power loss"), (disk.clone(), "a kill")):
            with sending.open(left) as again:
                found = check_sequences(again, f"after sending again and {where}")
            if found != wanted:
                raise BrokenPromiseError(f"after sending again and {where}: {found} instead of {wanted}")
            report = verify_log(ROOT, format=sending.setup.format, disk=left)
            bad = [finding for finding in report.findings if finding.severity != Severity.NOTE]
            if bad:
                raise BrokenPromiseError(f"verify finds {bad[0].code}: {bad[0].path}: {bad[0].message}")

    def _crash_recovery(self, sending: Sending, crashed: SimulatedDisk, lasts: dict[str, int] | None) -> None:
        clones: list[SimulatedDisk] = []
        disk = crashed.clone()
        disk.on_operation = lambda _number, _operation: clones.append(disk.clone())
        sending.open(disk).close()
        for number, clone in enumerate(clones):
            for pattern in patterns(number, 0)[::3]:
                again = clone.crash(pattern)
                self.crashes += 1
                self.states.add(again.digest())
                with sending.open(again) as log:
                    found = check_sequences(log, f"after a crash in recovery ({pattern!r})")
                if lasts is not None and found != lasts:
                    raise BrokenPromiseError(f"after a crash in recovery ({pattern!r}): {found} instead of {lasts}")
