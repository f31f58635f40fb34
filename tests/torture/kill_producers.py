"""Real producers, killed: ``python -m tests.torture.kill_producers --kills 200 [--seed S]``.

A writer is a process of its own with several threads, each of them a named producer of the same log. It begins where a
program would that does not know what arrived: some way before what the log says is its last sequence, and often at the
very beginning. It tells the parent what it is about to send and what was confirmed. SIGKILL comes at a random moment.
Then, in a process of its own again, a reader looks at the log:

- every confirmed message is there (at both levels of durability: only the process died), and none is there twice;
- each producer's records are its messages from the first on, in order and without a gap;
- what the log says is a producer's last sequence is that of its last record.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import struct
import sys
import tempfile
import threading
import time
import traceback
from dataclasses import dataclass, field
from typing import NoReturn

import duramen
from duramen.consumers.log import ConsumableWritableLog
from tests.torture.kill import FAILED, PATIENCE_S, VARIANTS, Violation, drain, fork

THREADS = 3
SLOT_BYTES = 96

_TOLD = struct.Struct("<cHQ")
SENT, CONFIRMED = b"s", b"c"


def value_of(thread: int, sequence: int) -> bytes:
    text = b"%d:%d:" % (thread, sequence)
    return text.ljust(SLOT_BYTES, b"x")


@dataclass
class Model:
    """What the parent knows of one log: how far each producer sent, and how far it was confirmed."""

    variant: str
    path: str
    sent: dict[int, int] = field(default_factory=dict)
    confirmed: dict[int, int] = field(default_factory=dict)

    def take(self, told: bytes) -> None:
        for kind, thread, sequence in _TOLD.iter_unpack(told[: len(told) // _TOLD.size * _TOLD.size]):
            counts = self.sent if kind == SENT else self.confirmed
            counts[thread] = max(counts.get(thread, 0), sequence)


# --- the writer, in its process


def send_until_killed(model: Model, seed: int, pipe: int) -> None:
    log = duramen.open(model.path, "a", **VARIANTS[model.variant])

    def work(thread: int) -> None:
        try:
            _send(log, thread, random.Random(f"{seed} {thread}"), pipe)
        except BaseException:  # noqa: BLE001
            os.write(pipe, FAILED + traceback.format_exc().encode()[-3000:])
            os._exit(1)

    for thread in range(1, THREADS):
        threading.Thread(target=work, args=(thread,), daemon=True).start()
    work(0)


def _send(log: ConsumableWritableLog, thread: int, dice: random.Random, pipe: int) -> NoReturn:
    producer = log.producer(f"producer {thread}")
    last = producer.last_sequence or 0
    sequence = dice.choice([1, max(1, last - 50), last + 1])
    while True:
        count = dice.choice([1, 1, 2, 9, 30])
        os.write(pipe, _TOLD.pack(SENT, thread, sequence + count - 1))
        values = [value_of(thread, sequence + n) for n in range(count)]
        producer.append_batch(values, sequence=sequence, durability=dice.choice(["fsync", "write"]))
        os.write(pipe, _TOLD.pack(CONFIRMED, thread, sequence + count - 1))
        sequence += count
        if dice.random() < 0.05:
            log.append(b"plain".ljust(SLOT_BYTES, b"."))
        if dice.random() < 0.1:
            time.sleep(dice.random() * 0.003)


# --- looking at a log, in a process of its own


def look(model: Model) -> int:
    try:
        log = duramen.open(model.path)
    except (duramen.DetectionError, duramen.StorageError):
        if model.confirmed:
            raise
        return 0
    reached: dict[int, int] = {}
    with log:
        for batch in log.batches(columns=["value"]):
            for value in batch.column(0).to_pylist():
                if value.startswith(b"plain"):
                    continue
                thread, sequence = (int(part) for part in value.split(b":")[:2])
                if sequence != reached.get(thread, 0) + 1:
                    raise Violation(f"producer {thread}: {sequence} follows {reached.get(thread, 0)}")
                reached[thread] = sequence
        known = {state.name: state.sequence for state in log.producers()}
    for thread in range(THREADS):
        held = reached.get(thread, 0)
        if not model.confirmed.get(thread, 0) <= held <= model.sent.get(thread, 0):
            told = f"confirmed {model.confirmed.get(thread, 0)}, sent {model.sent.get(thread, 0)}"
            raise Violation(f"producer {thread}: the log holds {held}, {told}")
        if known.get(f"producer {thread}", 0) != held:
            raise Violation(f"producer {thread}: the log holds {held} and says {known.get(f'producer {thread}')}")
    return sum(reached.values())


# --- processes


def round_(model: Model, dice: random.Random) -> int:
    """One writer, one kill, one look; answers how many messages the log holds."""
    seed = dice.getrandbits(32)
    child, reading = fork(lambda pipe: send_until_killed(model, seed, pipe))
    told = b"".join(drain(reading, time.monotonic() + dice.triangular(0.01, 0.5, 0.1)))
    os.kill(child, signal.SIGKILL)
    told += b"".join(drain(reading, None))
    os.close(reading)
    os.waitpid(child, 0)
    if FAILED + b"Traceback" in told:
        raise Violation(told[told.index(FAILED + b"Traceback") + 1 :].decode(errors="replace"))
    model.take(told)

    def looking(pipe: int) -> None:
        try:
            os.write(pipe, b"%d" % look(model))
        except Violation as violation:
            os.write(pipe, FAILED + str(violation).encode())

    child, reading = fork(looking)
    answer = b"".join(drain(reading, time.monotonic() + PATIENCE_S))
    os.close(reading)
    os.waitpid(child, 0)
    if not answer.isdigit():
        raise Violation(answer[1:].decode(errors="replace") or "the look at the log did not end")
    return int(answer)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.torture.kill_producers")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--directory", default=None)
    given = parser.parse_args(arguments)
    dice = random.Random(given.seed)
    root = tempfile.mkdtemp(dir=given.directory)
    models = [Model(variant, os.path.join(root, variant.replace(" ", "-"))) for variant in VARIANTS]
    held = dict.fromkeys(VARIANTS, 0)
    for kill in range(given.kills):
        model = models[kill % len(models)]
        try:
            held[model.variant] = round_(model, dice)
        except Violation as violation:
            sys.stdout.write(f"violation in {model.variant}: {violation}\nthe log: {model.path}, --seed {given.seed}\n")
            return 1
    shutil.rmtree(root)
    sys.stdout.write(f"{given.kills} kills, {sum(held.values()):,} messages, none twice, none lost\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
