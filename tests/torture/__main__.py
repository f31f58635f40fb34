"""Hunt for crashes that a log does not survive: ``python -m tests.torture --seconds 600``.

Half of the time goes to the cases of `explorer` (with the transactions of the pipeline, retention and compaction), a
quarter each to `producers` and to `consumers`: groups, dead letters and cursors. One seed follows another until the
time is over; then a table says how much was explored. A failure ends it with status 1 and the case, which ``--case``
runs alone. Writes nothing to the real disk.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

from duramen.testing.explorer import Case, Explorer
from duramen.testing.run import BrokenPromiseError
from duramen.testing.workloads import SETUPS, WORKLOADS
from tests.torture import consumers, life, transactions
from tests.torture.consumers import ConsumerExplorer
from tests.torture.producers import ProducerExplorer

DATA = Path("tests/data")


def load(data: Path) -> dict[str, dict[str, bytes]]:
    """The directories that some setups begin with, as far as they are there: their last two segments, as if retention
    had removed the others."""
    found: dict[str, dict[str, bytes]] = {}
    for setup in SETUPS.values():
        directory = None if setup.directory is None else data / setup.directory
        if directory is not None and directory.is_dir():
            files = sorted(path for path in directory.iterdir() if path.suffix in (".segment", ".index"))
            found[setup.name] = {path.name: path.read_bytes() for path in files[-4:]}
    return found


class Explored(Protocol):
    """What an explorer has seen so far, and how long it may go on."""

    states: set[bytes]
    crashes: int
    deadline: float | None


@dataclass
class Hunt:
    """One of the things that are hunted for: an explorer for every setup, and what to do with them, one case after
    another, for ever."""

    name: str
    share: float
    """Of the time."""
    explorers: Mapping[str, Explored]
    cases: Iterator[tuple[str, Callable[[], None]]]
    """The setup, and the work."""
    done: Counter[str] = field(default_factory=Counter)
    spent_s: float = 0.0

    def step(self, deadline: float) -> None:
        """The next case, until the time is over."""
        began = time.monotonic()
        setup, work = next(self.cases)
        self.explorers[setup].deadline = deadline
        try:
            work()
        finally:
            self.spent_s += (time.monotonic() - began) / self.share
        self.done[setup] += 1


def logs(setups: Sequence[str], seed: int, files: Mapping[str, Mapping[str, bytes]]) -> Hunt:
    """Every workload of every setup."""
    explorers = {name: Explorer(random_patterns=12, inner_every=60, files=files) for name in setups}

    def cases() -> Iterator[tuple[str, Callable[[], None]]]:
        for number in itertools.count(seed):
            order = [Case(setup, workload, number) for setup in setups for workload in WORKLOADS]
            random.Random(number).shuffle(order)
            for case in order:
                yield case.setup, partial(_explore_log, explorers[case.setup], case)

    return Hunt("log", 2, explorers, cases())


def _explore_log(explorer: Explorer, case: Case) -> None:
    explorer.explore(case)
    if case.workload == "batches" and SETUPS[case.setup].directory is None:
        transactions.explore(transactions.Scene(case.setup, case.seed, 1 + case.seed % 2), crashes=2)
        if case.setup in life.LIVING:
            life.explore(life.Life(case.setup, case.seed), every=7, deadline=explorer.deadline)


def sending(setups: Sequence[str], seed: int) -> Hunt:
    """Retrying producers."""
    explorers = {name: ProducerExplorer(every=12) for name in setups if name in consumers.NAMES}
    runs = _in_turn(list(explorers), seed)
    return Hunt("producers", 1, explorers, ((name, partial(explorers[name].explore, name, n)) for name, n in runs))


def consuming(setups: Sequence[str], seed: int) -> Hunt:
    """Groups, their dead letters, and cursors."""
    explorers = {
        name: ConsumerExplorer(every=12, kills_every=4, inner_every=150) for name in setups if name in consumers.NAMES
    }
    cases = itertools.starmap(consumers.Case, _in_turn(list(explorers), seed))
    return Hunt("groups", 1, explorers, ((case.setup, partial(explorers[case.setup].explore, case)) for case in cases))


def _in_turn(names: Sequence[str], seed: int) -> Iterator[tuple[str, int]]:
    """Every name with one seed after another, in an order that changes."""
    for number in itertools.count(seed):
        yield from ((name, number) for name in random.Random(number).sample(names, len(names)))


def hunt(hunts: Sequence[Hunt], seconds: float) -> bool:
    """Explore until the time is over; False where something broke."""
    began = shown = time.monotonic()
    deadline = began + seconds
    whole = True
    while (now := time.monotonic()) < deadline:
        if now - shown > 10:
            shown = now
            states = sum(len(explorer.states) for one in hunts for explorer in one.explorers.values())
            print(f"{now - began:6.0f} s  {states:9,} states", flush=True)
        try:
            min(hunts, key=lambda one: one.spent_s).step(deadline)
        except BrokenPromiseError as error:
            print(f"BROKEN {error}", flush=True)
            whole = False
            break
    table(hunts)
    return whole


def table(hunts: Sequence[Hunt]) -> None:
    line = "{:10} {:16} {:>7} {:>10} {:>16}".format
    print("\n" + line("", "format", "cases", "crashes", "distinct states"))
    total: Counter[str] = Counter()
    missed = 0
    for one in hunts:
        for name, explorer in one.explorers.items():
            if not one.done[name]:
                missed += 1
                continue
            seen = {"cases": one.done[name], "crashes": explorer.crashes, "states": len(explorer.states)}
            total.update(seen)
            print(line(one.name, name, *(f"{number:,}" for number in seen.values())))
    print(line("all", "", *(f"{total[name]:,}" for name in ("cases", "crashes", "states"))))
    if missed:
        print(f"{missed} of them were not reached: give it more time")


def run_alone(text: str, files: Mapping[str, Mapping[str, bytes]]) -> None:
    """One case, as a failure prints it."""
    kind, _, rest = text.partition(":")
    if kind == "transactions":
        moment = rest.split(":")[3:]
        transactions.explore(transactions.Scene.parse(text), only=int(moment[0]) if moment else None)
    elif kind == "life":
        life.explore(life.Life.parse(text), random_patterns=12)
    elif kind == "producers":
        setup, seed = rest.split(":")
        ProducerExplorer().explore(setup, int(seed))
    elif kind == "groups":
        ConsumerExplorer(every=1, kills_every=1).explore(consumers.Case.parse(text))
    else:
        Explorer(files=files).explore(Case.parse(text))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--format", choices=[*SETUPS], action="append", help="this one only; may be repeated")
    parser.add_argument("--only", choices=["log", "producers", "groups"], action="append", help="likewise")
    parser.add_argument("--case", help="one case, as a failure prints it")
    parser.add_argument("--data", type=Path, default=DATA, help="where the logs of other programs lie")
    given = parser.parse_args(arguments)
    files = load(given.data)
    try:
        if given.case is not None:
            run_alone(given.case, files)
            print(f"{given.case}: all promises hold")
            return 0
    except BrokenPromiseError as error:
        print(f"BROKEN {error}")
        return 1
    setups = [name for name in given.format or SETUPS if SETUPS[name].directory is None or name in files]
    hunts = {"log": logs(setups, given.seed, files)}
    hunts |= {one.name: one for one in (sending(setups, given.seed), consuming(setups, given.seed)) if one.explorers}
    chosen = [hunts[name] for name in given.only or hunts if name in hunts]
    return 0 if hunt(chosen, given.seconds) else 1


if __name__ == "__main__":
    sys.exit(main())
