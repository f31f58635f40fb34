"""Files of a log as wholes: swapped, cycled, shifted, reversed, duplicated, emptied, cut to their header, and taken
from another log. `python -m tests.damage.files [--budget CASES] [--seed N] [--only FORMAT]`

Each is done to the segments alone, as if their contents had been exchanged, and to the segments with their indexes; to
logs with and without a sidecar. `matrix.run` holds the promises: no content of the input is missing from log and
quarantine together, what the plan says is kept can be read, and an undo gives back every byte. Without a budget every
case runs; with one, a sample of that many, which the seed chooses, and to which permutations at random are added.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from duramen.formats import Role
from tests.damage.damages import Damage, Files
from tests.damage.logs import FORMATS, Base, base_log
from tests.damage.matrix import Row, run

COUNTS = (7, 6, 8, 5, 9)
"""Records in each segment: no two are alike, so that a base says which file it is."""
OTHER_COUNTS = (6, 8, 5, 9, 4)
"""Those of another log: its segments begin elsewhere."""
STRANGER = "other log"

Moves = Mapping[str, str | None]
"""New name of each file that moves; None where it is overwritten and its content is missing."""


def file_damages(base: Base) -> Iterator[Damage]:
    """Every case for one log."""
    for indexes in (False, True) if base.codec.capabilities.index else (False,):
        yield from _permutations(base, indexes)
        yield from _shifts(base, indexes)
        yield from _duplicates(base, indexes)
        yield from _strangers(base, indexes)
    yield from _shortened(base)


def random_damages(base: Base, chance: random.Random) -> Iterator[Damage]:
    """Permutations without end, some with a second damage."""
    singles = list(file_damages(base))
    segments = base.segments
    while True:
        shuffled = chance.sample(segments, len(segments))
        follow = chance.random() < 0.5
        first = _moved(base, "shuffled", dict(zip(segments, shuffled, strict=True)), follow, _short(shuffled))
        second = chance.choice(singles)
        yield first if chance.random() < 0.5 else _both(base, first, second)


def _both(base: Base, first: Damage, second: Damage) -> Damage:
    def make(files: Files) -> Files:
        return second.make(first.make(files))

    affected = _missing_from(base, make(dict(base.files)))
    strange = first.strange or second.strange
    label = f"{first.label} + {second.label}"
    return Damage(f"{first.kind} + {second.kind}", "files", label, make, affected, strange=strange)


# --- moving


def _permutations(base: Base, indexes: bool) -> Iterator[Damage]:
    segments = base.segments
    for a, b in itertools.combinations(segments, 2):
        yield _moved(base, "swapped", {a: b, b: a}, indexes, _short([a, b]))
    if len(segments) > 1:
        for kind, order in (
            ("cycled", [*segments[1:], segments[0]]),
            ("cycled", [segments[-1], *segments[:-1]]),
            ("cycled", [*segments[:1], *segments[2:], segments[1]]),
            ("reversed", segments[::-1]),
        ):
            yield _moved(base, kind, dict(zip(segments, order, strict=True)), indexes, _short(order))


def _shifts(base: Base, indexes: bool) -> Iterator[Damage]:
    segments = base.segments
    if len(segments) < 2:
        return
    codec = base.codec
    behind = codec.segment_path(max(base.records) + 1)
    for start in range(len(segments) - 1):
        moving = segments[start:]
        up: dict[str, str | None] = dict(zip(moving, [*moving[1:], behind], strict=True))
        yield _moved(base, "shifted up", up, indexes, f"from {start}")
        yield _moved(base, "shifted up, last overwritten", {**up, moving[-1]: None}, indexes, f"from {start}")
        down: dict[str, str | None] = dict(zip(moving, [None, *moving[:-1]], strict=True))
        yield _moved(base, "shifted down, first overwritten", down, indexes, f"from {start}")
    if base.base_of(segments[1]) > 1:
        down = dict(zip(segments[1:], [codec.segment_path(1), *segments[1:-1]], strict=True))
        yield _moved(base, "shifted down", down, indexes, "from 1")


def _moved(base: Base, kind: str, moves: Moves, indexes: bool, label: str) -> Damage:
    """The segments under other names, their indexes with them or not."""

    def make(files: Files) -> Files:
        every = _with_indexes(base, moves) if indexes else moves
        left = {path: content for path, content in files.items() if path not in every}
        return left | {new: files[old] for old, new in every.items() if new is not None and old in files}

    return _damage(base, kind, make, f"{label}{', indexes too' if indexes else ''}")


def _with_indexes(base: Base, moves: Moves) -> Moves:
    codec = base.codec
    found = dict(moves)
    for path in base.files:
        role = base.role(path)
        segment = codec.segment_path(base.base_of(path))
        if role in (Role.INDEX, Role.TIME_INDEX) and segment in moves:
            new = moves[segment]
            found[path] = None if new is None else codec.path_of(role, base.base_of(new))
    return found


# --- copies


def _duplicates(base: Base, indexes: bool) -> Iterator[Damage]:
    codec, segments = base.codec, base.segments
    if not codec.capabilities.segments:
        return
    for path in segments:
        for new in (base.base_of(path) + 1, base.base_of(path) + 1000, max(base.records) + 1):
            yield _copied(base, path, codec.segment_path(new), "duplicated", indexes)
    for source, target in itertools.permutations(segments, 2):
        yield _copied(base, source, target, "duplicated over another", indexes)


def _copied(base: Base, source: str, target: str, kind: str, indexes: bool) -> Damage:
    def make(files: Files) -> Files:
        pairs = _with_indexes(base, {source: target}) if indexes else {source: target}
        return files | {new: files[old] for old, new in pairs.items() if new is not None and old in files}

    return _damage(base, kind, make, f"{_short([source, target])}{', indexes too' if indexes else ''}")


# --- another log's


def _strangers(base: Base, indexes: bool) -> Iterator[Damage]:
    for counts, what in ((COUNTS, "same names"), (OTHER_COUNTS, "other names")):
        other = base_log(base.format, base.sidecar, counts, STRANGER)
        for number, path in enumerate(base.segments):
            taken = other.segments[min(number, len(other.segments) - 1)]
            yield _strange(base, other, taken, path, f"in the place of another, {what}", indexes)
            name = base.codec.segment_path(base.base_of(path) + 2)
            if base.codec.capabilities.segments and name not in base.files:
                yield _strange(base, other, taken, name, f"beside the others, {what}", indexes)


def _strange(base: Base, other: Base, taken: str, target: str, label: str, indexes: bool) -> Damage:
    def make(files: Files) -> Files:
        pairs = _with_indexes(other, {taken: target}) if indexes else {taken: target}
        return files | {new: other.files[old] for old, new in pairs.items() if new is not None}

    label = f"{_short([taken, target])} {label}{', indexes too' if indexes else ''}"
    return _damage(base, "another log's file", make, label, strange=True)


# --- shortened


def _shortened(base: Base) -> Iterator[Damage]:
    codec = base.codec
    for path in base.segments:
        header = len(codec.segment_header(base.base_of(path), 0))
        for kind, size in (("emptied", 0), ("cut to its header", header)):
            if kind == "emptied" or header:
                yield _damage(base, kind, _cut([path], size), _short([path]))
    if len(base.segments) > 2:
        yield _damage(base, "emptied", _cut(base.segments[1:], 0), "all but the first")
        yield _damage(base, "emptied", _cut(base.segments[:-1], 0), "all but the last")


def _cut(paths: Sequence[str], size: int) -> Callable[[Files], Files]:
    return lambda files: {path: content[:size] if path in paths else content for path, content in files.items()}


# --- what is left


def _damage(base: Base, kind: str, make: Callable[[Files], Files], label: str, *, strange: bool = False) -> Damage:
    return Damage(kind, "files", label, make, _missing_from(base, make(dict(base.files))), strange=strange)


def _missing_from(base: Base, files: Files) -> frozenset[int]:
    """The offsets whose records are in no file any more."""
    left = set(files.values())
    return frozenset(
        offset
        for place in base.places
        if base.files[place.path] not in left
        for offset in range(place.first, place.last + 1)
    )


def _short(paths: Sequence[str]) -> str:
    return " ".join(path.rpartition("/")[2].lstrip("0") or "0" for path in paths)


# --- running


def cases(name: str, budget: int | None, seed: int) -> Iterator[tuple[Base, Damage]]:
    """All cases of a format; with a budget, a sample, of which a quarter are permutations at random."""
    bases = [base_log(name, sidecar, COUNTS) for sidecar in (False, True)]
    every = [(base, damage) for base in bases for damage in file_damages(base)]
    if budget is None:
        yield from every
        return
    chance = random.Random(f"{name} {seed}")
    known = chance.sample(every, min(len(every), budget - budget // 4))
    yield from known
    if not bases[0].codec.capabilities.segments:
        return
    makers = [random_damages(base, chance) for base in bases]
    for number in range(budget - len(known)):
        yield bases[number % 2], next(makers[number % 2])


def rows(name: str, budget: int | None = None, seed: int = 0) -> Iterator[Row]:
    for base, damage in cases(name, budget, seed):
        yield run(base, damage)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=int, help="so many cases, chosen at random; all of them without it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=FORMATS)
    options = parser.parse_args()
    names = [options.only] if options.only else list(FORMATS)
    share = None if options.budget is None else -(-options.budget // len(names))
    total, broken = Counter[str](), 0
    for name in names:
        for row in rows(name, share, options.seed):
            total[name] += 1
            if row.problems:
                broken += 1
                print(row, *row.problems, sep="\n    ")
    counts = ", ".join(f"{name} {count:,}" for name, count in total.items())
    print(f"{sum(total.values()):,} cases ({counts}), {broken} broken promises")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
