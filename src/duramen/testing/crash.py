"""What a power loss leaves of unsynced writes and names.

The medium holds what was synced. Later changes are *pending*, in program order, and any part of them may have reached
the medium:

- **Bytes.** The page cache writes blocks (512 B or 4 KiB) back at any time. So each block of a file independently has
  one of its versions since the last sync, and so does the size. If only the size arrived, the block reads as
  zeros. A block is never half old and half new, with one exception: the words of a shared page, which is written back
  while a program stores into it.
- **Names.** A journal keeps a prefix of the pending changes of a directory; the harsher kinds keep each name
  independently. A replace is one change, so that its target is the old file or the new one. Between two directories it
  is two changes, and the new name arrives no later than the old one disappears: the file may have both, never none.

Not modelled, because no software can defend against it: a device that loses what it reported as synced, a block that
reads as something that was never written, and a write that damages its neighbours.

>>> CrashPattern("torn", "each", block_bytes=512, seed=7)
CrashPattern('torn', 'each', block_bytes=512, seed=7)
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Literal, get_args

from duramen.errors import UsageError

DataKind = Literal["lost", "kept", "zeros", "prefix", "last", "torn", "coin"]
NameKind = Literal["lost", "kept", "prefix", "each", "coin"]
SizeKind = Literal["kept", "full"]
FileKind = Literal["all", "newest", "oldest"]

_COIN_DATA: tuple[DataKind, ...] = ("lost", "kept", "zeros", "prefix", "last", "torn", "torn")
_COIN_NAMES: tuple[NameKind, ...] = ("lost", "kept", "prefix", "each")
_BLOCK_BYTES = (512, 4096)
_WORD_BYTES = 8


@dataclass(frozen=True)
class CrashPattern:
    """Which unsynced changes survive. Its repr recreates the pattern, and a pattern always gives the same crash."""

    data: DataKind = "lost"
    """Of each file: ``lost`` nothing; ``kept`` all; ``zeros`` the size but not the bytes; ``prefix`` all up to one
    moment, the write of that moment torn; ``last`` the blocks of the last write only; ``torn`` any subset of the
    blocks; ``coin`` one of these, chosen per file."""
    names: NameKind = "lost"
    """Of each directory: ``lost`` nothing; ``kept`` all; ``prefix`` all up to one moment, the same as of the data;
    ``each`` each name independently; ``coin`` one of these, chosen per directory."""
    size: SizeKind = "kept"
    """Size of a torn file: up to its last surviving block, or ``full``, where lost blocks read as zeros."""
    files: FileKind = "all"
    """``newest``: only the most recently changed file keeps pending changes. ``oldest``: only the one with the earliest
    pending change. Shared pages do not count, because they change all the time."""
    block_bytes: int = 4096
    seed: int = 0

    def __post_init__(self) -> None:
        kinds = {"data": DataKind, "names": NameKind, "size": SizeKind, "files": FileKind}
        for name, kind in kinds.items():
            if getattr(self, name) not in get_args(kind):
                raise UsageError(f"{name} must be one of {', '.join(get_args(kind))} (got {getattr(self, name)!r})")
        if self.block_bytes < 1:
            raise UsageError(f"block_bytes must be at least 1 (got {self.block_bytes})")

    def __repr__(self) -> str:
        told = [
            f"{field.name}={getattr(self, field.name)!r}"
            for field in fields(self)[2:]
            if getattr(self, field.name) != field.default
        ]
        return f"CrashPattern({', '.join([repr(self.data), repr(self.names), *told])})"

    def chance(self, *about: object) -> random.Random:
        """A random source for one decision, the same in every run."""
        return random.Random(repr((self.seed, *about)))


def patterns(seed: int = 0, random_count: int = 8) -> list[CrashPattern]:
    """The standard set: every named kind of loss, then ``random_count`` mixtures.

    >>> patterns(random_count=0)[:3]
    [CrashPattern('lost', 'lost'), CrashPattern('kept', 'kept'), CrashPattern('lost', 'kept')]
    """
    found = [
        CrashPattern("lost", "lost"),
        CrashPattern("kept", "kept"),
        CrashPattern("lost", "kept"),
        CrashPattern("kept", "lost"),
        CrashPattern("zeros", "kept"),
        CrashPattern("last", "kept"),
        CrashPattern("kept", "kept", files="newest"),
        CrashPattern("kept", "kept", files="oldest"),
        CrashPattern("kept", "each", seed=seed),
        CrashPattern("lost", "each", seed=seed),
        CrashPattern("prefix", "prefix", block_bytes=512, seed=seed),
        CrashPattern("prefix", "kept", block_bytes=4096, seed=seed),
        CrashPattern("torn", "kept", block_bytes=512, seed=seed),
        CrashPattern("torn", "kept", block_bytes=4096, seed=seed),
        CrashPattern("torn", "kept", size="full", block_bytes=512, seed=seed),
        CrashPattern("torn", "kept", size="full", block_bytes=4096, seed=seed),
        CrashPattern("coin", "coin", block_bytes=512, seed=seed),
        CrashPattern("coin", "kept", block_bytes=4096, seed=seed),
    ]
    chance = random.Random(seed)
    found += [
        CrashPattern(
            chance.choice(("prefix", "torn", "torn", "coin", "coin")),
            chance.choice(get_args(NameKind)),
            size=chance.choice(get_args(SizeKind)),
            files=chance.choice(("all", "all", *get_args(FileKind))),
            block_bytes=chance.choice(_BLOCK_BYTES),
            seed=chance.getrandbits(32),
        )
        for _ in range(random_count)
    ]
    return found


# --- what is pending


@dataclass(frozen=True, slots=True)
class Written:
    moment: int
    position: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Truncated:
    """A file cut or extended."""

    moment: int
    size_bytes: int


Change = Written | Truncated


@dataclass(frozen=True, slots=True)
class Named:
    """One change of a directory: names, and the file that each has from now on (None: removed)."""

    moment: int
    names: tuple[tuple[str, int | None], ...]
    moved_to: int | None = None
    """The directory that the file moved to, for a name that a move removed."""


def apply(content: bytearray, change: Change) -> None:
    if isinstance(change, Truncated):
        del content[change.size_bytes :]
        content.extend(bytes(change.size_bytes - len(content)))
    elif change.data:
        content.extend(bytes(max(0, change.position - len(content))))
        content[change.position : change.position + len(change.data)] = change.data


def apply_names(names: dict[str, int], change: Named) -> None:
    for name, node in change.names:
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


# --- what survives of a file


class _Versions:
    """The states of one file since its last sync: 0 is the synced one, version n the state after n changes."""

    def __init__(self, synced: bytearray, changes: Sequence[Change], block_bytes: int) -> None:
        self._synced = synced
        self._changes = changes
        self._block_bytes = block_bytes
        self.last = len(changes)
        self.sizes = [len(synced)]
        self.blocks: dict[int, range] = {}
        """For each version the blocks that its change touched."""
        for version, change in enumerate(changes, start=1):
            before = self.sizes[-1]
            if isinstance(change, Truncated):
                begin, end, size = change.size_bytes, before, change.size_bytes
            else:
                begin, end = change.position, change.position + len(change.data)
                size = max(before, end) if change.data else before
            self.sizes.append(size)
            self.blocks[version] = range(begin // block_bytes, -(-end // block_bytes) if end > begin else 0)

    def dirty(self) -> list[int]:
        return sorted({block for touched in self.blocks.values() for block in touched})

    def end(self, block: int, version: int) -> int:
        """Where a block ends in a version that may end before it."""
        return min((block + 1) * self._block_bytes, self.sizes[version])

    def compose(self, chosen: dict[int, int], size: int) -> bytearray:
        """A file of ``size`` with the blocks of the chosen versions; version 0 where none is chosen."""
        wanted: dict[int, list[int]] = {}
        for block, version in chosen.items():
            wanted.setdefault(version, []).append(block)
        found = self._synced[:size]
        found.extend(bytes(size - len(found)))
        current = bytearray(self._synced)
        for version, change in enumerate(self._changes, start=1):
            apply(current, change)
            for block in wanted.get(version, ()):
                begin, end = block * self._block_bytes, min((block + 1) * self._block_bytes, size)
                if begin < end:
                    part = current[begin:end]
                    found[begin:end] = part + bytes(end - begin - len(part))
        return found

    def reached(self, chosen: dict[int, int], chance: random.Random) -> int:
        """The size up to the chosen blocks. A pending cut may have arrived or not."""
        shortest = min(self.sizes)
        floor = self.sizes[0] if shortest == self.sizes[0] else chance.choice((self.sizes[0], shortest))
        return max([floor, *(self.end(block, version) for block, version in chosen.items() if version)])


def survive(
    synced: bytearray,
    changes: Sequence[Change],
    pattern: CrashPattern,
    *,
    about: object,
    until: int,
    shared: bool = False,
) -> bytearray:
    """The bytes of one file after the crash. ``about`` separates its random source from that of other files; ``until``
    is the moment of a ``prefix``; ``shared`` files are torn at words."""
    if not changes:
        return synced
    chance = pattern.chance("data", about)
    kind = pattern.data
    if kind == "coin":
        kind = chance.choice(_COIN_DATA)
        until = chance.choice([0, *(change.moment for change in changes)])
    if kind == "lost":
        return synced
    if kind == "kept":
        everything = bytearray(synced)
        for change in changes:
            apply(everything, change)
        return everything
    versions = _Versions(synced, changes, _WORD_BYTES if shared else pattern.block_bytes)
    match kind:
        case "zeros":
            return versions.compose({}, versions.sizes[-1])
        case "last":
            return versions.compose(dict.fromkeys(versions.blocks[versions.last], versions.last), versions.sizes[-1])
        case "prefix":
            return _prefix(versions, sum(change.moment <= until for change in changes), changes, chance)
        case _:
            chosen = {block: _version(versions.last, chance) for block in versions.dirty()}
            full = pattern.size == "full"
            return versions.compose(chosen, versions.sizes[-1] if full else versions.reached(chosen, chance))


def _version(last: int, chance: random.Random) -> int:
    """Old, new, or sometimes a version in between."""
    return chance.choice((0, 0, last, last, chance.randint(0, last)))


def _prefix(versions: _Versions, whole: int, changes: Sequence[Change], chance: random.Random) -> bytearray:
    """The first ``whole`` changes, and the first blocks of the write after them."""
    chosen = dict.fromkeys(versions.dirty(), whole)
    size = versions.sizes[whole]
    if whole < versions.last and isinstance(changes[whole], Written):
        torn = versions.blocks[whole + 1]
        arrived = torn[: chance.randint(0, len(torn))]
        chosen.update(dict.fromkeys(arrived, whole + 1))
        if arrived:
            size = max(size, versions.end(arrived[-1], whole + 1))
    return versions.compose(chosen, size)


# --- what survives of a directory


def survive_names(changes: Sequence[Named], pattern: CrashPattern, *, about: object, until: int) -> list[Named]:
    """The changes of one directory that survive, in their order."""
    if not changes:
        return []
    chance = pattern.chance("names", about)
    kind = pattern.names
    if kind == "coin":
        kind = chance.choice(_COIN_NAMES)
        until = chance.choice([0, *(change.moment for change in changes)])
    match kind:
        case "lost":
            return []
        case "kept":
            return list(changes)
        case "prefix":
            return [change for change in changes if change.moment <= until]
        case _:
            kept: set[int] = set()
            for group in _independent(changes):
                kept.update(change.moment for change in group[: chance.randint(0, len(group))])
            return [change for change in changes if change.moment in kept]


def _independent(changes: Iterable[Named]) -> list[list[Named]]:
    """Changes in groups that share no name. Within a group a later change needs the earlier ones."""
    groups: list[tuple[set[str], list[Named]]] = []
    for change in changes:
        names = {name for name, _ in change.names}
        joined = [group for group in groups if group[0] & names]
        groups = [group for group in groups if not group[0] & names]
        merged = sorted((c for _, members in joined for c in members), key=lambda c: c.moment)
        groups.append((names.union(*(group[0] for group in joined)), [*merged, change]))
    return [members for _, members in groups]


def without(changes: Sequence[Named], undone: Named) -> list[Named]:
    """The changes without one of them, and without those after it that need it."""
    kept: list[Named] = []
    touched: set[str] = set()
    for change in changes:
        names = {name for name, _ in change.names}
        if change.moment == undone.moment or touched & names:
            touched |= names
        else:
            kept.append(change)
    return kept
