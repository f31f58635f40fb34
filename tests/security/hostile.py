"""Every verb on hostile directories: links, FIFOs, sockets, devices, huge files and deep JSON in every place of a log.

The promises of docs/threat-model.md, each checked in each case: nothing outside the directory is read or written, the
verb ends by itself, its exit code is a documented one, it takes less than `MEMORY_BYTES` beyond what the program had at
its start, and `verify` names what is no regular file. A verb runs in a forked child, so that its memory can be told
from that of others.
"""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import duramen
from duramen.cli.main import main as duramen_main
from duramen.disk import PosixDisk
from duramen.sidecar.gaps import CompactionState, KnownLoss, encode_known_losses
from duramen.sidecar.holds import put_hold
from duramen.watch.api import ACTIONS, exposition
from duramen.watch.watcher import Watch
from tests.security.things import LINKS, THINGS, Outside, may_make_devices

MEMORY_BYTES = 256 << 20
TIMEOUT_S = 120
DOCUMENTED = (0, 1, 2, 3)
FORMATS = ("durable-log", "keratin", "rustlog", "osiris", "fixed-slot", "kafka")
_OPTIONS = {name: {"segment_max_bytes": 1500} for name in FORMATS} | {"fixed-slot": {"record_size": 64}}

ABSENT = (
    ".duramen/pending.json", ".duramen/change.json", ".duramen/repair.json", ".duramen/origin.json",
    ".duramen/origin.chunks", ".duramen/log.json.new", ".duramen/sealed.jsonl", ".duramen/metrics.json",
    ".duramen/verified.json",
    ".duramen/ledger/00000000000000000000000000000000.json", ".duramen/quarantine",
)  # fmt: skip
"""Files that a sound log need not have, and a stranger may put there."""
DIRECTORIES = (
    ".duramen",
    ".duramen/ledger",
    ".duramen/groups",
    ".duramen/cursors",
    ".duramen/holds",
    "segments",
    "groups",
)


def build(root: Path, format: str) -> None:
    """A log with everything in it: segments, indexes, groups, a cursor, a producer, a ledger, a hold, known losses."""
    values = [(b"value-%04d-" % number).ljust(64, b"x") for number in range(90)]
    with duramen.open(str(root), "a", format=format, **_OPTIONS[format]) as log:
        for start in range(0, len(values), 9):
            log.append_batch(values[start : start + 9])
        log.append_once([[b"once".ljust(64)]], writer="writer", batch=1)
        log.producer("producer").append(b"produced".ljust(64), sequence=1)
        log.cursor("cursor").store(3)
        group = log.group("group", start="beginning")
        group.ack_many([delivery.offset for delivery in group.fetch(5)])
        group.close()
    put_hold(PosixDisk(), str(root), "job", 1, 2**62)
    (root / ".duramen" / "compaction.json").write_bytes(CompactionState(1, 1, 1, 0).encode())
    (root / ".duramen" / "losses.json").write_bytes(encode_known_losses([KnownLoss(1, 1, "why", "repair")]))


def places(root: Path) -> list[str]:
    """Where something hostile is put: each kind of file once, the first and the last segment with their indexes."""
    files = sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
    own = [name for name in files if name.startswith(".duramen/")]
    rest = [name for name in files if name not in own]
    kinds: dict[str, list[str]] = {}
    for name in rest:
        kinds.setdefault(Path(name).suffix, []).append(name)
    some = [name for names in kinds.values() for name in dict.fromkeys((names[0], names[-1]))]
    return [*some, *own, *ABSENT, *(name for name in DIRECTORIES if (root / name).is_dir())]


Verb = Callable[[str, str], int]


def _command(*words: str) -> Verb:
    """A verb of the command line; ``LOG`` and ``NEW`` stand for the log and for a path beside it."""

    def run(log: str, new: str) -> int:
        return duramen_main([{"LOG": log, "NEW": new}.get(word, word) for word in words])

    return run


def _serve(log: str, new: str) -> int:
    """Everything that the web page can ask for."""
    watch = Watch(PosixDisk(), [log])
    try:
        [name] = [place.name for place in watch.places.all()] or ["log"]
        for path, answer in ACTIONS.items():
            for query in ({"log": name}, {"log": name, "offset": "3", "q": "value", "skip": "0"}):
                try:
                    json.dumps(answer(watch, query))
                except duramen.DuramenError as error:
                    print(path, error)
        exposition(watch, [name])
    finally:
        watch.close()
    return 0


VERBS: dict[str, Verb] = {
    "create": _command("create", "LOG"),
    "append": _command("append", "LOG"),
    "cat": _command("cat", "LOG"),
    "cat-from": _command("cat", "LOG", "--from-offset", "50", "--json"),
    "info": _command("info", "LOG"),
    "info-json": _command("info", "LOG", "--json"),
    "verify": _command("verify", "LOG"),
    "verify-json": _command("verify", "LOG", "--json"),
    "repair": _command("repair", "LOG"),
    "repair-apply": _command("repair", "LOG", "--apply"),
    "repair-undo": _command("repair", "LOG", "--undo"),
    "reindex": _command("reindex", "LOG"),
    "seal": _command("seal", "LOG"),
    "convert": _command("convert", "LOG", "NEW", "--to", "durable-log", "--allow-loss", "timestamp"),
    "copy": _command("copy", "LOG", "NEW"),
    "retain": _command("retain", "LOG", "--before-offset", "40"),
    "compact": _command("compact", "LOG", "--key", "prefix:3"),
    "group": _command("group", "LOG"),
    "group-show": _command("group", "LOG", "group"),
    "group-ack": _command("group", "LOG", "group", "reset", "beginning"),
    "group-compact": _command("group", "LOG", "group", "compact"),
    "group-repair": _command("group", "LOG", "group", "repair"),
    "cursor": _command("cursor", "LOG"),
    "cursor-store": _command("cursor", "LOG", "store", "cursor", "4"),
    "topic": _command("topic", "LOG"),
    "lag": _command("lag", "LOG"),
    "top": _command("top", "--once", "LOG"),
    "serve": _serve,
}
WRITING = ("append", "repair-apply", "reindex", "seal", "retain", "compact", "group-ack", "cursor-store")


class Ran(NamedTuple):
    code: int
    output: str
    memory_bytes: int


def run(verb: Verb, log: Path, new: Path) -> Ran:
    """Run a verb in a child. A code of -9 says that it did not end by itself."""
    sys.stdout.flush()
    sys.stderr.flush()
    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if child == 0:
            _as_child(verb, str(log), str(new), output.fileno())
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            ended, status, usage = os.wait4(child, os.WNOHANG)
            if ended:
                break
            if time.monotonic() > deadline:
                os.kill(child, signal.SIGKILL)
            time.sleep(0.002)
        output.seek(0)
        text = output.read(1 << 20).decode("utf-8", "backslashreplace")
    return Ran(os.waitstatus_to_exitcode(status), text, usage.ru_maxrss * 1024)


def _as_child(verb: Verb, log: str, new: str, output: int) -> None:
    code = 70
    try:
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stdin = io.TextIOWrapper(io.BytesIO(b"a line".ljust(64) + b"\n"))
        sys.stdout = io.TextIOWrapper(os.fdopen(1, "wb", closefd=False))
        sys.stderr = io.TextIOWrapper(os.fdopen(2, "wb", closefd=False))
        code = verb(log, new)
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:  # noqa: BLE001  whatever it is, it belongs into the output, and not into the parent's code
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


@dataclass(frozen=True)
class Case:
    format: str
    place: str
    thing: str
    verb: str

    def __str__(self) -> str:
        return f"{self.format} {self.place} {self.thing} {self.verb}"


@dataclass
class Outcome:
    case: Case
    ran: Ran
    problems: list[str] = field(default_factory=list)


class Matrix:
    """The cases, and what becomes of each. Logs are built once and copied."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._devices = may_make_devices(scratch)
        self._start_bytes = run(lambda log, new: 0, scratch, scratch).memory_bytes
        self._places: dict[str, list[str]] = {}
        for format in FORMATS:
            build(self._pristine(format), format)
            self._places[format] = places(self._pristine(format))

    def _pristine(self, format: str) -> Path:
        return self._scratch / "pristine" / format

    def cases(self) -> Iterator[Case]:
        for format in FORMATS:
            for place in self._places[format]:
                for thing in THINGS:
                    if thing == "device" and not self._devices:
                        continue
                    if place in DIRECTORIES and thing not in LINKS:
                        continue
                    for verb in VERBS:
                        yield Case(format, place, thing, verb)

    def some(self, seed: int, count: int) -> list[Case]:
        """A part of all cases, always the same for one seed."""
        everything = list(self.cases())
        return random.Random(seed).sample(everything, min(count, len(everything)))

    def slice(self, seed: int) -> list[Case]:
        """Every thing once, each in another place and for another verb; always the same for one seed."""
        chosen = random.Random(seed)
        by_thing: dict[str, list[Case]] = {}
        for case in self.cases():
            by_thing.setdefault(case.thing, []).append(case)
        return [chosen.choice(cases) for cases in by_thing.values()]

    def check(self, case: Case) -> Outcome:
        root = self._scratch / "case"
        root.mkdir()
        try:
            log, outside = root / "log", Outside(root)
            shutil.copytree(self._pristine(case.format), log)
            THINGS[case.thing](log / case.place, outside)
            ran = run(VERBS[case.verb], log, root / "new")
            ran = ran._replace(memory_bytes=max(ran.memory_bytes - self._start_bytes, 0))
            return Outcome(case, ran, list(self._problems(case, ran, outside)))
        finally:
            shutil.rmtree(root)

    def _problems(self, case: Case, ran: Ran, outside: Outside) -> Iterator[str]:
        yield from outside.changes()
        if ran.code == -signal.SIGKILL:
            yield "did not end by itself"
        elif ran.code not in DOCUMENTED:
            yield f"ended with {ran.code}: {ran.output.strip()[-300:]}"
        if ran.memory_bytes > MEMORY_BYTES:
            yield f"took {ran.memory_bytes >> 20} MiB"
        is_kind = case.thing in LINKS and not (case.thing == "directory" and case.place in (*DIRECTORIES, *ABSENT))
        if is_kind and case.verb in ("verify", "verify-json"):
            if Path(case.place).name not in ran.output:
                yield f"verify does not name it: {ran.output.strip()[-300:]}"
            elif ran.code == 0:
                yield "verify finds nothing wrong"


def main(arguments: Sequence[str]) -> int:
    """``--seed S --count N`` for a part, ``--case "FORMAT PLACE THING VERB,…"`` for some, ``--only WORDS`` for those
    whose name holds them all, ``--seconds S`` for a budget, ``--show yes`` for what each printed."""
    options = dict(zip(arguments[::2], arguments[1::2], strict=True))
    with tempfile.TemporaryDirectory(dir=options.get("--scratch")) as scratch:
        matrix = Matrix(Path(scratch))
        cases = list(matrix.cases())
        if "--count" in options:
            cases = matrix.some(int(options.get("--seed", "0")), int(options["--count"]))
        if "--slice" in options:
            cases = matrix.slice(int(options["--slice"]))
        if "--case" in options:
            cases = [Case(*text.split(" ")) for text in options["--case"].split(",")]
        words = options.get("--only", "").split()
        cases = [case for case in cases if all(word in str(case) for word in words)]
        deadline = time.monotonic() + float(options.get("--seconds", "inf"))
        broken, most, done = 0, 0, 0
        for case in cases:
            if time.monotonic() > deadline:
                break
            outcome = matrix.check(case)
            done, most = done + 1, max(most, outcome.ran.memory_bytes)
            if "--show" in options:
                print(outcome.ran.code, outcome.ran.output, f"{outcome.ran.memory_bytes >> 20} MiB")
            if outcome.problems:
                broken += 1
                print(case, *outcome.problems, sep="\n    ", flush=True)
        print(f"{done} cases of {len(cases)}, {broken} broken promises, at most {most >> 20} MiB")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
