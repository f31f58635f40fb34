"""Real processes, killed: ``python -m tests.torture.kill --kills 200 [--seconds N] [--seed S]``.

A writer is a process of its own with several threads that append, one by one and in batches, at both levels of
durability, into small segments. It tells the parent through a pipe what it is about to append, and what it was
answered; so the acknowledgements lie outside of the process that dies. SIGKILL comes at a random moment, often while
the writer is still recovering from the kill before. Then, with a process of its own again, a reader looks at the log:

- every acknowledged record is there, at its offset, with its value (at both levels: only the process died);
- nothing else is, but records that were handed in and not answered; each thread's in its order, none twice, none
  missing between two others; offsets without a gap;
- every third time, and at the end, the log is opened for append, closed, and every byte of it is verified.

The parent itself never touches a log: it forks before any thread of Arrow exists. A power loss is not simulated here
(the crash explorer does that).
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
import threading
import time
import traceback
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn

from rich.console import Console
from rich.table import Table

import duramen

VARIANTS: dict[str, dict[str, Any]] = {
    "durable-log": {"format": "durable-log", "segment_max_bytes": 24 << 10},
    "keratin": {"format": "keratin", "segment_max_bytes": 24 << 10, "index_stride_bytes": 1024},
    "rustlog": {"format": "rustlog", "segment_max_bytes": 24 << 10, "index_interval_records": 10},
    "osiris": {"format": "osiris", "segment_max_bytes": 24 << 10},
    "osiris zstd": {"format": "osiris", "segment_max_bytes": 24 << 10, "compression": "zstd"},
    "osiris v0": {"format": "osiris", "segment_max_bytes": 24 << 10, "chunk_version": 0},
    "fixed-slot": {"format": "fixed-slot", "record_size": 96},
    "kafka": {"format": "kafka", "segment_max_bytes": 24 << 10, "index_stride_bytes": 1024},
    "kafka zstd": {"format": "kafka", "segment_max_bytes": 24 << 10, "compression": "zstd"},
}
SLOT_BYTES = 96
RETIRE_RECORDS = 60_000
"""A log that has become this long makes room for a new one, so that looking at it stays quick."""
THREADS = 4
PATIENCE_S = 30

# --- values

_VALUE = struct.Struct("<IHQH")


class Name(NamedTuple):
    """Which append a record comes from; it is the beginning of its value."""

    writer: int
    thread: int
    counter: int


def value_of(name: Name, slots: bool) -> bytes:
    """The value with that name. Its length and its bytes follow from the name."""
    mixed = zlib.crc32(b"%d %d %d" % name)
    length = SLOT_BYTES if slots else _VALUE.size + mixed % 61 + (mixed % 4000 if mixed % 97 == 0 else 0)
    head = _VALUE.pack(*name, length)
    return (head + (b"%08x" % mixed) * (length // 8 + 1))[:length]


def name_of(value: bytes, slots: bool) -> Name | None:
    """Whose value it is; None where it is nobody's."""
    if len(value) < _VALUE.size:
        return None
    name = Name(*_VALUE.unpack_from(value)[:3])
    return name if value_of(name, slots) == value else None


# --- what a writer tells: one atomic write to the pipe each

_MESSAGE = struct.Struct("<cHQIQI")
OPENED, INTENT, ACKNOWLEDGED, FAILED = b"o", b"i", b"a", b"f"


class Message(NamedTuple):
    kind: bytes
    thread: int = 0
    counter: int = 0
    count: int = 0
    base_offset: int = 0
    digest: int = 0


class Acknowledged(NamedTuple):
    first: Name
    count: int
    base_offset: int
    digest: int


@dataclass
class Model:
    """What the parent knows of one log."""

    variant: str
    path: str
    acknowledged: list[Acknowledged] = field(default_factory=list)
    intended: dict[tuple[int, int], int] = field(default_factory=dict)
    """How many records each thread of each writer has handed in."""
    records: int = 0

    @property
    def slots(self) -> bool:
        return self.variant == "fixed-slot"

    @property
    def options(self) -> dict[str, Any]:
        return VARIANTS[self.variant]

    def take(self, writer: int, message: Message) -> None:
        if message.kind == INTENT:
            self.intended[writer, message.thread] = message.counter + message.count
        elif message.kind == ACKNOWLEDGED:
            first = Name(writer, message.thread, message.counter)
            self.acknowledged.append(Acknowledged(first, message.count, message.base_offset, message.digest))
            self.records += message.count


# --- the writer, in its process


def write_until_killed(model: Model, writer: int, seed: int, pipe: int) -> None:
    """Append until the process is killed, from several threads."""
    dice = random.Random(seed)
    settings = {"linger_ms": dice.choice([0, 0, 0.3]), "max_batch_records": dice.choice([64, 65_536])}
    log = duramen.open(model.path, "a", **model.options, **settings)
    os.write(pipe, _MESSAGE.pack(*Message(OPENED)))

    def work(thread: int) -> None:
        try:
            _append(log, Name(writer, thread, 0), random.Random(f"{seed} {thread}"), model.slots, pipe)
        except BaseException:  # noqa: BLE001
            os.write(pipe, FAILED + traceback.format_exc().encode()[-3000:])
            os._exit(1)

    for thread in range(1, THREADS):
        threading.Thread(target=work, args=(thread,), daemon=True).start()
    work(0)


def _append(log: duramen.WritableLog, name: Name, dice: random.Random, slots: bool, pipe: int) -> NoReturn:
    while True:
        count = dice.choice([1, 1, 1, 1, 2, 7, 40])
        values = [value_of(name._replace(counter=name.counter + n), slots) for n in range(count)]
        durability = dice.choice(["fsync", "write"])
        os.write(pipe, _MESSAGE.pack(*Message(INTENT, name.thread, name.counter, count)))
        if count == 1:
            base = log.append(values[0], durability=durability)
        else:
            base = log.append_batch(values, durability=durability).base_offset
        digest = zlib.crc32(b"".join(values))
        os.write(pipe, _MESSAGE.pack(*Message(ACKNOWLEDGED, name.thread, name.counter, count, base, digest)))
        name = name._replace(counter=name.counter + count)
        rare = dice.random()
        if rare < 0.01 and log.codec.capabilities.segments:
            log.seal()
        elif rare < 0.03:
            log.sync()
        elif rare < 0.2:
            time.sleep(dice.random() * 0.004)


# --- looking at a log, in a process of its own


class Violation(Exception):  # noqa: N818
    """A promise that was not kept."""


def look(model: Model, reopen: bool) -> int:
    """Check the log against the model; answers how many records it holds."""
    if reopen:
        duramen.open(model.path, "a", **model.options).close()
    try:
        log = duramen.open(model.path)
    except (duramen.DetectionError, duramen.StorageError):
        if model.acknowledged:
            raise
        return 0  # the first writer was killed before there was a log
    with log:
        found = [(record.offset, record.value) for record in log.scan()]
    names = _check_records(model, found)
    _check_acknowledged(model, found, names)
    if reopen:
        report = duramen.verify(model.path)
        if not report.ok:
            raise Violation(f"verify: {[str(finding) for finding in report.findings][:5]}")
        if report.records != len(found):
            raise Violation(f"verify counts {report.records} records, a scan {len(found)}")
    return len(found)


def _check_records(model: Model, found: list[tuple[int, bytes]]) -> list[Name]:
    """Offsets without a gap, and of every thread the first n records that it handed in, in order."""
    names: list[Name] = []
    reached: dict[tuple[int, int], int] = {}
    for expected, (offset, value) in enumerate(found):
        if offset != expected:
            raise Violation(f"offset {offset} follows {expected - 1}")
        name = name_of(value, model.slots)
        if name is None:
            raise Violation(f"offset {offset} holds what nobody appended: {value[:40]!r}")
        thread = name.writer, name.thread
        if name.counter != reached.get(thread, 0):
            raise Violation(f"offset {offset} holds {name}, expected its record {reached.get(thread, 0)}")
        if name.counter >= model.intended.get(thread, 0):
            raise Violation(f"offset {offset} holds {name}, which was never handed in")
        reached[thread] = name.counter + 1
        names.append(name)
    return names


def _check_acknowledged(model: Model, found: list[tuple[int, bytes]], names: list[Name]) -> None:
    for first, count, base, digest in model.acknowledged:
        there = found[base : base + count]
        if len(there) < count:
            raise Violation(f"{first} and {count - 1} more were acknowledged at {base}; the log ends at {len(found)}")
        if names[base] != first:
            raise Violation(f"{first} was acknowledged at {base}, where {names[base]} is")
        if zlib.crc32(b"".join(value for _, value in there)) != digest:
            raise Violation(f"{first} and {count - 1} more were acknowledged at {base}: other values are there")


# --- processes


def fork(run: Callable[[int], None]) -> tuple[int, int]:
    """A child that runs a function with the writing end of a pipe; answers its pid and the reading end."""
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        return child, reading
    os.close(reading)
    status = 1
    try:
        run(writing)
        status = 0
    except BaseException:  # noqa: BLE001
        os.write(writing, FAILED + traceback.format_exc().encode()[-3000:])
    finally:
        os._exit(status)


def drain(reading: int, deadline: float | None) -> Iterator[bytes]:
    """What comes through a pipe, until its other end is closed or the time is over."""
    while deadline is None or (left := deadline - time.monotonic()) > 0:
        if deadline is not None and not select.select([reading], [], [], left)[0]:
            return
        piece = os.read(reading, 1 << 16)
        if not piece:
            return
        yield piece


@dataclass
class Tally:
    kills: int = 0
    kills_while_opening: int = 0
    acknowledged: int = 0
    found: int = 0
    seconds: float = 0.0


class Torture:
    """Every variant in turn, a kill each."""

    def __init__(self, root: str, seed: int) -> None:
        self._root = root
        self._dice = random.Random(seed)
        self._writers = 0
        self._logs = 0
        self.models: dict[str, Model] = {}
        self.tallies = {variant: Tally() for variant in VARIANTS}

    def round(self, variant: str) -> None:
        """One writer, one kill, one look."""
        started = time.monotonic()
        tally = self.tallies[variant]
        model = self.models.get(variant)
        if model is None:
            self._logs += 1
            path = os.path.join(self._root, f"{self._logs:03d} {variant}".replace(" ", "-"))
            model = self.models[variant] = Model(variant, path)
        opened = self._write_and_kill(model)
        tally.kills += 1
        tally.kills_while_opening += not opened
        is_long = model.records > RETIRE_RECORDS
        self._look(model, reopen=is_long or self._dice.random() < 1 / 3)
        if is_long:
            self._retire(variant)
        tally.seconds += time.monotonic() - started

    def finish(self) -> None:
        for variant in list(self.models):
            started = time.monotonic()
            self._look(self.models[variant], reopen=True)
            self._retire(variant)
            self.tallies[variant].seconds += time.monotonic() - started

    def _retire(self, variant: str) -> None:
        model = self.models.pop(variant)
        tally = self.tallies[variant]
        tally.acknowledged += model.records
        tally.found += self._found
        shutil.rmtree(model.path, ignore_errors=True)

    def _write_and_kill(self, model: Model) -> bool:
        """Start the next writer and kill it; answers whether the log was open by then."""
        self._writers += 1
        writer, seed = self._writers, self._dice.getrandbits(32)
        # Opening and recovery take some ten milliseconds: every third kill is meant for them.
        soon = self._dice.random() < 1 / 3
        delay_s = self._dice.uniform(0.005, 0.025) if soon else self._dice.triangular(0.02, 1.0, 0.1)
        child, reading = fork(lambda pipe: write_until_killed(model, writer, seed, pipe))
        deadline = time.monotonic() + delay_s
        try:
            told = bytearray()
            for piece in drain(reading, deadline):
                told += piece
            os.kill(child, signal.SIGKILL)
            for piece in drain(reading, None):
                told += piece
        finally:
            os.close(reading)
            _, status = os.waitpid(child, 0)
        return self._take(model, writer, bytes(told), status)

    def _take(self, model: Model, writer: int, told: bytes, status: int) -> bool:
        opened = False
        position = 0
        while position < len(told):
            if told[position : position + 1] == FAILED:
                raise Violation(f"writer {writer} failed:\n{told[position + 1 :].decode(errors='replace')}")
            message = Message(*_MESSAGE.unpack_from(told, position))
            opened = opened or message.kind == OPENED
            model.take(writer, message)
            position += _MESSAGE.size
        if status != signal.SIGKILL:
            raise Violation(f"writer {writer} ended by itself, with status {status}")
        return opened

    def _look(self, model: Model, reopen: bool) -> None:
        def run(pipe: int) -> None:
            try:
                os.write(pipe, b"%d" % look(model, reopen))
            except Violation as violation:
                os.write(pipe, FAILED + str(violation).encode()[:3000])

        child, reading = fork(run)
        told = b"".join(drain(reading, time.monotonic() + PATIENCE_S))
        os.close(reading)
        if not told:
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if told.startswith(FAILED):
            raise Violation(told[1:].decode(errors="replace"))
        if not told or status:
            raise Violation(f"the look at the log did not end well: status {status}, after {PATIENCE_S} s at most")
        self._found = int(told)


def show(console: Console, tallies: dict[str, Tally]) -> None:
    table = Table()
    table.add_column("format")
    for heading in ("kills", "while opening", "records acknowledged", "records found", "seconds"):
        table.add_column(heading, justify="right")
    total = Tally()
    for variant, tally in tallies.items():
        for name, number in vars(tally).items():
            setattr(total, name, getattr(total, name) + number)
        table.add_row(variant, *_cells(tally))
    table.add_section()
    table.add_row("all", *_cells(total))
    console.print(table)


def _cells(tally: Tally) -> list[str]:
    numbers = (tally.kills, tally.kills_while_opening, tally.acknowledged, tally.found)
    return [*(f"{number:,}" for number in numbers), f"{tally.seconds:.1f}"]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.torture.kill", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--kills", type=int, default=200, help="how many writers are killed")
    parser.add_argument("--seconds", type=float, help="stop after this time even if there were fewer kills")
    parser.add_argument("--seed", type=int, help="that of an earlier run: the same appends, the same delays")
    parser.add_argument("--directory", help="where the logs go (a temporary directory)")
    chosen = parser.parse_args(arguments)
    seed = chosen.seed if chosen.seed is not None else random.SystemRandom().getrandbits(32)
    root = tempfile.mkdtemp(prefix="duramen-kill-", dir=chosen.directory)
    deadline = time.monotonic() + (chosen.seconds if chosen.seconds is not None else float("inf"))
    console = Console()
    torture = Torture(root, seed)
    variant = ""
    try:
        for kill in range(chosen.kills):
            if time.monotonic() >= deadline:
                break
            variant = list(VARIANTS)[kill % len(VARIANTS)]
            if sys.stderr.isatty():
                sys.stderr.write(f"\rkill {kill + 1} of {chosen.kills}: {variant:<12}")
                sys.stderr.flush()
            torture.round(variant)
        if sys.stderr.isatty():
            sys.stderr.write("\r\x1b[K")
        torture.finish()
    except Violation as violation:
        console.print(f"\nviolation in {variant}, writer {torture._writers}:", style="bold red")
        console.print(str(violation), markup=False, highlight=False)
        console.print(f"the log: {root}\nagain: python -m tests.torture.kill --kills {chosen.kills} --seed {seed}")
        return 1
    show(console, torture.tallies)
    shutil.rmtree(root, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
