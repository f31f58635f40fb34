"""Hunt for crashes that a log does not survive: ``python -m duramen.testing.torture --seconds 600``.

Runs the cases of `explorer` with one seed after another until the time is over, and prints a table. A failure ends it
with status 1 and a line that runs the failing case alone. Writes nothing to the real disk.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from duramen.testing import life, transactions
from duramen.testing.explorer import Case, Explorer
from duramen.testing.running import BrokenPromiseError
from duramen.testing.workloads import SETUPS, WORKLOADS

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


def cases(setups: Sequence[str], seed: int) -> Iterator[Case]:
    """Every workload of every setup, with one seed after another, for ever."""
    for number in itertools.count(seed):
        order = [(setup, workload) for setup in setups for workload in WORKLOADS]
        random.Random(number).shuffle(order)
        for setup, workload in order:
            yield Case(setup, workload, number)


def hunt(setups: Sequence[str], seconds: float, seed: int, files: Mapping[str, Mapping[str, bytes]]) -> bool:
    """Explore until the time is over; False where something broke."""
    began = time.monotonic()
    deadline = began + seconds
    explorers = {name: Explorer(random_patterns=12, inner_every=60, files=files, deadline=deadline) for name in setups}
    count = dict.fromkeys(setups, 0)
    shown = began
    whole = True
    for case in cases(setups, seed):
        explorer = explorers[case.setup]
        try:
            explorer.explore(case)
            if case.workload == "batches" and SETUPS[case.setup].directory is None:
                transactions.explore(transactions.Scene(case.setup, case.seed, 1 + case.seed % 2), crashes=2)
                if case.setup in life.LIVING:
                    life.explore(life.Life(case.setup, case.seed), every=7, deadline=deadline)
        except BrokenPromiseError as error:
            print(f"BROKEN {case}: {error}", flush=True)
            whole = False
            break
        count[case.setup] += 1
        now = time.monotonic()
        if now - shown > 10:
            shown = now
            states = sum(len(one.states) for one in explorers.values())
            print(f"{now - began:6.0f} s  {states:9,} states, at seed {case.seed}", flush=True)
        if now > deadline:
            break
    table(explorers, count)
    return whole


def table(explorers: Mapping[str, Explorer], count: Mapping[str, int]) -> None:
    print(f"\n{'format':16} {'cases':>7} {'crashes':>10} {'distinct states':>16}")
    for name, explorer in explorers.items():
        print(f"{name:16} {count[name]:7,} {explorer.crashes:10,} {len(explorer.states):16,}")
    crashes = sum(explorer.crashes for explorer in explorers.values())
    states = sum(len(explorer.states) for explorer in explorers.values())
    print(f"{'all':16} {sum(count.values()):7,} {crashes:10,} {states:16,}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m duramen.testing.torture", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--format", choices=[*SETUPS], action="append", help="this one only; may be repeated")
    parser.add_argument("--case", help="one case, as a failure prints it")
    parser.add_argument("--data", type=Path, default=DATA, help="where the logs of other programs lie")
    given = parser.parse_args(arguments)
    files = load(given.data)
    if given.case is None:
        setups = [name for name in given.format or SETUPS if SETUPS[name].directory is None or name in files]
        return 0 if hunt(setups, given.seconds, given.seed, files) else 1
    try:
        if given.case.startswith("transactions:"):
            transactions.explore(transactions.Scene.parse(given.case))
        elif given.case.startswith("life:"):
            life.explore(life.Life.parse(given.case), random_patterns=12)
        else:
            Explorer(files=files).explore(Case.parse(given.case))
    except BrokenPromiseError as error:
        print(f"BROKEN {error}")
        return 1
    print(f"{given.case}: all promises hold")
    return 0


if __name__ == "__main__":
    sys.exit(main())
