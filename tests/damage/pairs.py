"""Two damages at once, at random: `python -m tests.damage.pairs --seconds 60 [--seed N] [--only FORMAT]`.

Each alone is a row of the matrix. Together they may cost more than both alone, as one may be what the other is mended
with; but never a crash, a log that stays damaged, a record that was never written, or a byte that undo does not give
back.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator

from tests.damage.damages import Damage, Files, all_damages
from tests.damage.logs import FORMATS, Base, base_log
from tests.damage.matrix import Row, run

MISSING, OTHERS = "records are missing", "records that were never written"


def combined(first: Damage, second: Damage) -> Damage:
    """Two of them as one."""

    def make(files: Files) -> Files:
        return second.make(first.make(files))

    kind, label = f"{first.kind} + {second.kind}", f"{first.label} + {second.label}"
    affected, lengthens = first.affected | second.affected, first.lengthens or second.lengthens
    return Damage(kind, "two places", label, make, affected, lengthens=lengthens)


def _is_possible(base: Base, damage: Damage) -> bool:
    """Whether the second one finds something to damage."""
    try:
        damage.make(dict(base.files))
    except (KeyError, IndexError):
        return False
    return True


def hunt(name: str, seed: int) -> Iterator[Row]:
    """Rows without end."""
    rng = random.Random(f"{name} {seed}")
    bases = [base_log(name, sidecar) for sidecar in (False, True)]
    damages = [list(all_damages(base)) for base in bases]
    while True:
        number = rng.randrange(2)
        damage = combined(*rng.sample(damages[number], 2))
        if _is_possible(bases[number], damage):
            yield run(bases[number], damage)


def broken(row: Row) -> list[str]:
    """The promises that do not hold, though there are two damages."""
    if row.refused:
        return []
    forgiven = [MISSING]
    if row.base.format == "fixed-slot" and row.damage.lengthens:
        forgiven.append(OTHERS)  # a slot's place is its offset: nothing tells that it was moved
    if "bit flip: offset" in row.damage.kind:
        forgiven.append(OTHERS)  # where no checksum covers it, only its neighbours tell, which may be damaged, too
    return [problem for problem in row.problems if not problem.startswith(tuple(forgiven))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=FORMATS)
    options = parser.parse_args()
    names = [options.only] if options.only else list(FORMATS)
    cases, found = 0, 0
    for name in names:
        end = time.monotonic() + options.seconds / len(names)
        for row in hunt(name, options.seed):
            cases += 1
            if broken(row):
                found += 1
                print(row, *broken(row), sep="\n    ")
            if time.monotonic() > end:
                break
    print(f"{cases} pairs, {found} broken promises")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
