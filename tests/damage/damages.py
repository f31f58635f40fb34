"""Every kind of damage to a single place of a log. Fields and their bytes come from the formats' own `dump`.

A damage returns the files as they are afterwards, and the offsets that it may have cost: those whose bytes it touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from duramen.formats import Role
from duramen.formats.index import Index
from tests.damage.logs import Base, Place

Files = dict[str, bytes]
PAGE_BYTES = 512
"""What a disk loses at once, at the least."""


@dataclass(frozen=True)
class Damage:
    kind: str
    """The class: rows of the page are grouped by it."""
    where: str
    label: str
    """What exactly, for a test that fails."""
    make: Callable[[Files], Files]
    affected: frozenset[int] = frozenset()
    """Offsets that may be lost."""
    lengthens: bool = False
    """Whether records come twice or change places: the format may have no way to tell."""
    strange: bool = False
    """Whether it brings in records of another log, which nothing in them tells from our own."""
    extra: bool = False
    """Left out where time is short: another one is like it."""


def all_damages(base: Base) -> Iterator[Damage]:
    yield from bit_flips(base)
    yield from cuts(base)
    yield from blocks(base)
    yield from whole_files(base)
    yield from indexes(base)
    if base.sidecar:
        yield from sidecars(base)


# --- what is where


def _touched(base: Base, path: str, start: int, end: int) -> frozenset[int]:
    """The offsets of the records that have a byte in that range."""
    found: set[int] = set()
    for place in base.places:
        if place.path == path and place.start < end and start < place.end:
            found |= set(range(place.first, place.last + 1))
    return frozenset(found)


def _from(base: Base, path: str, start: int) -> frozenset[int]:
    return _touched(base, path, start, 2**62)


def _in(base: Base, path: str) -> list[Place]:
    return [place for place in base.places if place.path == path]


def _which(base: Base, path: str) -> str:
    """The segment's place in the log, for people."""
    if len(base.segments) == 1:
        return "only segment"
    return {0: "first segment", len(base.segments) - 1: "last segment"}.get(base.segments.index(path), "middle segment")


def fields_of(base: Base, path: str) -> list[tuple[str, str, int, int]]:
    """The fields of a file: (structure, name, position, length), as `dump` shows them."""
    role = base.role(path)
    assert role is not None
    found = []
    for block in base.codec.dump(role, base.files[path], base.base_of(path)):
        for field in block.fields:
            if field.length:
                found += [(block.title, field.name, field.position, field.length)]
    return found


def _chosen_fields(base: Base, path: str) -> Iterator[tuple[str, str, int, int]]:
    """The fields of the file header, and of the first, a middle and the last record."""
    places = _in(base, path)
    chosen = {0: "first record", len(places) // 2: "middle record", len(places) - 1: "last record"}
    seen = set()
    for _title, name, position, length in fields_of(base, path):
        if not places or position < places[0].start:
            what = "file header"
        else:
            number = next((n for n, place in enumerate(places) if place.start <= position < place.end), None)
            if number not in chosen:
                continue
            what = chosen[number]
        if (what, name) not in seen:
            seen.add((what, name))
            yield what, name, position, length


def _replace(path: str, change: Callable[[bytes], bytes]) -> Callable[[Files], Files]:
    return lambda files: {**files, path: change(files[path])}


# --- bits


def bit_flips(base: Base) -> Iterator[Damage]:
    for path in (base.segments[0], base.segments[-1]) if len(base.segments) > 1 else base.segments:
        for number, (what, name, position, length) in enumerate(_chosen_fields(base, path)):
            for nth, (at, bit) in enumerate(((position, 6), (position + length - 1, 0))):
                kind = f"bit flip: {'file header' if what == 'file header' else _group(name)}"
                label = f"{path} {what} {name} byte {at} bit {bit}"
                affected = _touched(base, path, at, at + 1)
                extra = (number + nth + len(what)) % 2 == 1
                yield Damage(kind, _which(base, path), label, _flip(path, at, bit), affected, extra=extra)
    for path in base.files:
        role = base.role(path)
        if role in (Role.MANIFEST, Role.INDEX, Role.TIME_INDEX) and (role == Role.MANIFEST or base.base_of(path) == 0):
            seen = set()
            for _title, name, position, _length in fields_of(base, path):
                if name not in seen:
                    seen.add(name)
                    kind = f"bit flip: {role}"
                    yield Damage(kind, str(role), f"{path} {name} byte {position}", _flip(path, position, 0))


def _group(name: str) -> str:
    """Fields that are damaged alike are one row of the page."""
    groups = {
        "payload": ("payload", "body", "headers"),
        "checksum": ("checksum", "crc", "crc32c"),
        "length": ("payload_len", "length", "header_len", "data_length", "trailer_length"),
        "offset": ("offset", "chunk_id"),
        "time": ("timestamp", "timestamp_ms"),
        "magic, version": ("magic", "version"),
        "tracking": ("tracking_type", "id_size", "id", "sequence", "timestamp"),
    }
    return next((group for group, names in groups.items() if name in names), "other header fields")


def _flip(path: str, at: int, bit: int) -> Callable[[Files], Files]:
    return _replace(path, lambda raw: raw[:at] + bytes([raw[at] ^ 1 << bit]) + raw[at + 1 :])


# --- cuts


def cuts(base: Base) -> Iterator[Damage]:
    paths = (base.segments[0], base.segments[-1]) if len(base.segments) > 1 else base.segments
    for path in paths:
        boundaries = {position for _, _, position, _ in _chosen_fields(base, path)}
        for number, at in enumerate(sorted(boundaries | {_in(base, path)[-1].end - 1})):
            yield Damage(
                "cut at a field", _which(base, path), f"{path} at byte {at}",
                _replace(path, lambda raw, at=at: raw[:at]), _from(base, path, at), extra=number % 2 == 1,
            )  # fmt: skip


# --- blocks


def blocks(base: Base) -> Iterator[Damage]:
    for path in (base.segments[0], base.segments[-1]) if len(base.segments) > 1 else base.segments:
        places = _in(base, path)
        which = _which(base, path)
        size = len(base.files[path])
        for start in range(0, size, PAGE_BYTES):
            end = min(start + PAGE_BYTES, size)
            yield Damage(
                "zeroed page", which, f"{path} bytes {start} to {end}",
                _replace(path, lambda raw, s=start, e=end: raw[:s] + bytes(e - s) + raw[e:]),
                _touched(base, path, start, end),
            )  # fmt: skip
        for first, last in ((0, 0), (1, 2), (len(places) - 2, len(places) - 1)):
            s, e = places[first].start, places[last].end
            yield Damage(
                "duplicated block", which, f"{path} bytes {s} to {e} twice",
                _replace(path, lambda raw, s=s, e=e: raw[:e] + raw[s:e] + raw[e:]), lengthens=True,
            )  # fmt: skip
        for a, b, c in ((0, 1, 2), (1, 2, 3), (len(places) - 3, len(places) - 2, len(places) - 1)):
            i, j, k = places[a].start, places[b].start, places[c].start
            yield Damage(
                "swapped blocks", which, f"{path} bytes {i} to {j} and {j} to {k}",
                _replace(path, lambda raw, i=i, j=j, k=k: raw[:i] + raw[j:k] + raw[i:j] + raw[k:]), lengthens=True,
            )  # fmt: skip


# --- files


def whole_files(base: Base) -> Iterator[Damage]:
    derived = [path for path in base.files if base.role(path) in (Role.INDEX, Role.TIME_INDEX)]
    for path in base.segments:
        which = _which(base, path)
        lost = frozenset(o for place in _in(base, path) for o in range(place.first, place.last + 1))
        own = [other for other in derived if base.base_of(other) == base.base_of(path)]
        if len(base.segments) > 1 or base.sidecar:
            yield Damage("lost segment", which, f"{path} and its index", _without(path, *own), lost)
        if len(base.segments) > 1:
            yield Damage("index without segment", which, path, _without(path), lost)
        yield Damage("empty file", which, path, _replace(path, lambda _raw: b""), lost)
        if base.codec.capabilities.segments:
            for new in (base.base_of(path) + 1, base.base_of(path) + 1000):
                target = base.codec.segment_path(new)
                if target not in base.files:
                    yield Damage(
                        "wrong name", which, f"{path} called {target}",
                        lambda files, path=path, target=target: {
                            (target if name == path else name): content for name, content in files.items()
                        },
                    )  # fmt: skip
    if len(base.segments) > 1 and base.sidecar:
        every = frozenset(base.records)
        yield Damage("all segments lost", "log", "and their indexes", _without(*base.segments, *derived), every)
    yield Damage("stray file", "log", "notes.txt~", lambda files: {**files, "notes.txt~": b"mine"})
    for path in base.files:
        if base.role(path) == Role.MANIFEST:
            yield Damage("lost manifest", "log", path, _without(path))
            yield Damage("stale manifest", "log", path, _replace(path, lambda raw: raw[: len(raw) // 2]))


def indexes(base: Base) -> Iterator[Damage]:
    for path in base.files:
        if base.role(path) not in (Role.INDEX, Role.TIME_INDEX):
            continue
        which = _which(base, base.codec.segment_path(base.base_of(path)))
        yield Damage("lost index", which, path, _without(path))
        for size in sorted({len(base.files[path]) // 2, max(len(base.files[path]) - 3, 0)}):
            yield Damage("stale index", which, f"{path} cut to {size}", _replace(path, lambda raw, n=size: raw[:n]))
        for size in _entry_boundaries(base, path):
            yield Damage("short index", which, f"{path} cut to {size}", _replace(path, lambda raw, n=size: raw[:n]))
        for kind, label, content in _other_entries(base, path):
            yield Damage(kind, which, f"{path} {label}", _replace(path, lambda _raw, new=content: new))
        more = base.files[path] + base.files[path][-16:]
        yield Damage("stale index", which, f"{path} with more", _replace(path, lambda _raw, more=more: more))
        yield Damage("empty file", f"index of the {which}", path, _replace(path, lambda _raw: b""))


def _index(base: Base, path: str) -> Index:
    known = base.codec.classify(path)
    assert known is not None
    index = base.codec.open_index(known.role, base.files[path], base.base_of(path))
    assert index is not None
    return index


def _other_entries(base: Base, path: str) -> Iterator[tuple[str, str, bytes]]:
    """The index with an entry missing, doubled or in another's place, between others that are right."""
    index, raw = _index(base, path), base.files[path]
    bounds = [index.start + row * index.entry_bytes for row in range(len(index) + 1)]
    entries = [raw[start:end] for start, end in pairwise(bounds)]
    head, middle = raw[: index.start], len(entries) // 2
    if len(entries) < 4:
        return
    for row in (0, middle):
        yield "gap in an index", f"without entry {row}", head + b"".join(entries[:row] + entries[row + 1 :])
    changed = {
        f"with entry {middle} twice": entries[: middle + 1] + entries[middle:],
        f"with entry {middle} instead of the next": [*entries[: middle + 1], entries[middle], *entries[middle + 2 :]],
        f"with entries {middle - 1} and {middle} swapped": [
            *entries[: middle - 1], entries[middle], entries[middle - 1], *entries[middle + 1 :]
        ],
    }  # fmt: skip
    for label, parts in changed.items():
        yield "index out of order", label, head + b"".join(parts)


def _entry_boundaries(base: Base, path: str) -> list[int]:
    """Where an index can be cut between two entries: without the last one, and in the middle."""
    index = _index(base, path)
    return [index.start + count * index.entry_bytes for count in sorted({len(index) - 1, len(index) // 2})]


def _without(*paths: str) -> Callable[[Files], Files]:
    return lambda files: {name: content for name, content in files.items() if name not in paths}


# --- the sidecar


def sidecars(base: Base) -> Iterator[Damage]:
    inside = [path for path in base.files if path.startswith(".duramen/")]
    yield Damage("lost sidecar", "sidecar", "all of it", _without(*inside))
    for path in inside:
        yield Damage("lost sidecar", "sidecar", path, _without(path))
        yield Damage("damaged sidecar", "sidecar", f"{path} cut", _replace(path, lambda raw: raw[: len(raw) // 2]))
        if base.files[path]:
            yield Damage("damaged sidecar", "sidecar", f"{path} flipped", _flip(path, len(base.files[path]) // 2, 3))
