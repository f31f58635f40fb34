"""The sealed segments of a log: one line each in ``.duramen/sealed.jsonl``.

::

    {"base": 0, "last_offset": 9, "size_bytes": 320, "crc32": 1, "crc32c": 2, "sealed_ms": 1700000000000,
     "indexes": [["index", 160, 5]], "records": 10, "sum": [1, 3, 4, 6]} 1a2b3c4d

A line has a checksum of its own, so a torn last line is noticed and overwritten. A damaged line hides no other one: it
is skipped, and `verify` reports it. The ``sum`` of a line covers all segments up to it, and the sizes of their indexes:
if the last line agrees with the directory, opening a log need not read the others.
Lines of earlier versions lack ``sealed_ms``, ``indexes``, ``records`` and the last number of ``sum``, or ``sum`` as a
whole.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from duramen import kernel
from duramen.disk import Disk, File, Kind, open_private, write_all
from duramen.errors import LimitError
from duramen.sidecar.json_file import add_checksum, checked_body, parse_json, replace_file
from duramen.sidecar.layout import DIRECTORY, SEALED_NAME, sidecar_path

SEALED_PATH = posixpath.join(DIRECTORY, SEALED_NAME)
LINE_BYTES = 1024
"""Upper bound of the length of a line."""
MAX_SEALED = 250_000
"""Most sealed segments that a log may have."""
MOST_DAMAGED = 1000
"""After so many lines that cannot be read, the rest of a list is not read."""
_STEP_BYTES = 1 << 20


class SealedIndex(NamedTuple):
    """An index of a sealed segment, by its role."""

    role: str
    size_bytes: int
    crc32c: int


@dataclass(frozen=True, slots=True)
class Sealed:
    """A segment that does not change any more. The digest is both CRCs of the whole file: 64 bits, cheap enough to
    compute while writing."""

    base: int
    last_offset: int
    size_bytes: int
    crc32: int
    crc32c: int
    sealed_ms: int | None = field(default=None, compare=False)
    """When it was sealed; None if an earlier version did that."""
    indexes: tuple[SealedIndex, ...] | None = None
    """Its indexes by role, in order; None if an earlier version sealed it."""
    records: int | None = field(default=None, compare=False)
    """The records in it, as the writer counted them; None where it did not count them all."""

    @property
    def is_dense(self) -> bool:
        """Whether each offset from ``base`` to ``last_offset`` is known to have a record."""
        return self.records == self.last_offset - self.base + 1


class SealedSum(NamedTuple):
    """Number of sealed segments, both CRCs of their bases and sizes in order, and a CRC of the sizes of their indexes;
    None where those of one segment are unknown."""

    count: int = 0  # type: ignore[assignment]
    crc32: int = 0
    crc32c: int = 0
    indexes: int | None = 0

    def plus(self, bases: Sequence[int], sizes: Sequence[int], indexes: Sequence[Sequence[int] | None]) -> SealedSum:
        """The sum with more segments. ``indexes`` are the sizes of the indexes of each, by role."""
        raw = np.array([bases, sizes], "<i8").T.tobytes()
        flat = [number for each in indexes if each is not None for number in (len(each), *each)]
        is_known = self.indexes is not None and None not in indexes
        return SealedSum(
            self.count + len(bases), kernel.crc32(raw, self.crc32), kernel.crc32c(raw, self.crc32c),
            kernel.crc32c(np.array(flat, "<i8").tobytes(), self.indexes or 0) if is_known else None,
        )  # fmt: skip

    def plus_entry(self, entry: Sealed) -> SealedSum:
        indexes = None if entry.indexes is None else [index.size_bytes for index in entry.indexes]
        return self.plus([entry.base], [entry.size_bytes], [indexes])


def sealed_lines(entries: Iterable[Sealed]) -> bytes:
    """The content of the file for these entries."""
    total, encoded = SealedSum(), []
    for entry in entries:
        total = total.plus_entry(entry)
        encoded.append(_encode(entry, total))
    return b"".join(encoded)


def _encode(entry: Sealed, total: SealedSum) -> bytes:
    known = {name: value for name, value in asdict(entry).items() if value is not None}
    return add_checksum(json.dumps({**known, "sum": total if total.indexes is not None else total[:3]}).encode())


def _decode(line: bytes) -> tuple[Sealed, SealedSum | None] | None:
    """An entry and its sum; None for a line that is torn or foreign. Lines of earlier versions have no sum."""
    if not line.endswith(b"\n"):
        return None
    try:
        tree = parse_json(checked_body(line))
        total, indexes = tree.pop("sum", None), tree.pop("indexes", None)
        last_offset = _number(tree.pop("last_offset"), -1)  # of a segment without records, with base 0
        numbers: dict[str, Any] = {name: _number(number) for name, number in tree.items()}
        entry = Sealed(
            **numbers, last_offset=last_offset, indexes=None if indexes is None else tuple(map(_index, indexes))
        )
        if total is None:
            return entry, None
        count, crc32, crc32c, *sizes = map(_number, total)
        return entry, SealedSum(count, crc32, crc32c, sizes[0] if sizes else None)
    except (ValueError, TypeError, AttributeError, KeyError):
        return None


def _index(tree: list[Any]) -> SealedIndex:
    role, size_bytes, crc32c = tree
    return SealedIndex(str(role), _number(size_bytes), _number(crc32c))


def _number(number: object, least: int = 0) -> int:
    if not isinstance(number, int) or not least <= number < 2**63:
        raise ValueError(f"{number!r} is not a number from {least} to 2**63 - 1")
    return number


def lines(data: memoryview) -> Iterator[bytes]:
    """The lines of a list of any size, with their line feeds. A line longer than `LINE_BYTES` is cut there: it is not
    an entry."""
    start = 0
    while start < len(data):
        piece, taken = bytes(data[start : start + _STEP_BYTES]), 0
        while taken < len(piece):
            stop = piece.find(b"\n", taken, taken + LINE_BYTES) + 1
            if not stop and len(piece) - taken < LINE_BYTES and start + len(piece) < len(data):
                break  # the next piece holds the rest of the line
            stop = stop or min(taken + LINE_BYTES, len(piece))
            yield piece[taken:stop]
            taken = stop
        start += taken


class _KnownLines(NamedTuple):
    """The beginning of a list: so many bytes with that checksum, and their entries."""

    size_bytes: int = 0
    crc32c: int = 0
    entries: Mapping[int, Sealed] = MappingProxyType({})


class SealedList:
    """The list of the log at ``root``. Anyone may read it; only the writer of the log may change it."""

    def __init__(self, disk: Disk, root: str) -> None:
        self._disk, self._root = disk, root
        self._path = sidecar_path(root, SEALED_NAME)
        self._file: File | None = None
        self._size_bytes = 0
        self._sum = SealedSum()
        self.damaged = 0
        """How many lines were missing or could not be read when `entries` was called last. A torn last line does not
        count."""
        self.is_torn = False
        """Whether its last line could not be read then."""
        self._missed = 0
        self._known = _KnownLines()

    def entries(self) -> dict[int, Sealed]:
        """The entries by base, without lines that cannot be read."""
        return {entry.base: entry for entry in self._read()}

    def added_entries(self) -> dict[int, Sealed]:
        """The same. Parses only what follows the bytes that the last call parsed, if their checksum is still the
        same."""
        is_there = self._disk.kind(self._path) == Kind.FILE
        data = self._disk.map(self._path).data if is_there else memoryview(b"")
        known = self._known
        if len(data) < known.size_bytes or kernel.crc32c(data[: known.size_bytes]) != known.crc32c:
            known = _KnownLines()
        found = dict(known.entries)
        for line in lines(data[known.size_bytes :]):
            decoded = _decode(line)
            if decoded is None or len(found) == MAX_SEALED:
                self._known = _KnownLines()
                return self.entries()  # which knows what to make of it
            found[decoded[0].base] = decoded[0]
        self._known = _KnownLines(len(data), kernel.crc32c(data), found)
        return dict(found)

    def last(self) -> tuple[Sealed, SealedSum] | None:
        """The last entry and the sum of all, without reading the others. None if the list is missing, or its last line
        is torn or has no sum."""
        if self._disk.kind(self._path) != Kind.FILE:
            return None
        data = self._disk.map(self._path).data
        found = _decode(bytes(data[-LINE_BYTES:]).splitlines(keepends=True)[-1]) if len(data) else None
        if found is None or found[1] is None:
            return None
        self._size_bytes, self._sum = len(data), found[1]
        return found[0], found[1]

    def find(self, base: int) -> Sealed | None:
        """The entry of one segment; None if it has none. Reads only a few lines: they are in the order of the bases."""
        data = self._disk.map(self._path).data if self._disk.kind(self._path) == Kind.FILE else memoryview(b"")
        low, high = 0, len(data)
        while low < high:
            middle = (low + high) // 2
            before = max(low, middle - LINE_BYTES)
            start = before + bytes(data[before:middle]).rfind(b"\n") + 1 if middle > low else low
            line = bytes(data[start : start + LINE_BYTES]).partition(b"\n")[0] + b"\n"
            found = _decode(line)
            if found is None or found[0].base == base:
                return None if found is None else found[0]
            low, high = (start + len(line), high) if found[0].base < base else (low, start)
        return None

    def _read(self) -> Iterator[Sealed]:
        if self._disk.kind(self._path) != Kind.FILE:
            return
        self._size_bytes, self._sum, self.damaged, self.is_torn = 0, SealedSum(), 0, False
        read = position = unreadable = 0
        is_cut = False
        for line in lines(self._disk.map(self._path).data):
            position += len(line)
            found = _decode(line)
            if found is None:
                self.is_torn, is_cut = True, not line.endswith(b"\n")
                unreadable += 1
                self._size_bytes = self._size_bytes if is_cut else position  # what is damaged stays where it is
                if unreadable == MOST_DAMAGED:
                    break
                continue
            if read == MAX_SEALED:
                raise LimitError(
                    f"the list names more than {MAX_SEALED} sealed segments", path=self._path,
                    hint="move the list away: the records can be read and verified without it",
                )  # fmt: skip
            read, is_cut, self.is_torn = read + 1, False, False
            self._size_bytes, self._sum = position, found[1] or self._sum.plus_entry(found[0])
            yield found[0]
        self.damaged = max(unreadable - is_cut, self._sum.count - read)

    def add(self, entry: Sealed) -> None:
        """Append an entry, durably. Overwrites a torn last line."""
        if self._file is None:
            self._file = self._open()
        if self._sum.count >= MAX_SEALED:
            raise LimitError(
                f"the log has {MAX_SEALED} sealed segments, the maximum", path=self._root,
                hint="remove the oldest with `duramen retain`, or convert it with a larger segment_max_bytes",
            )  # fmt: skip
        known = self._sum._replace(count=self._sum.count + self._missed)
        total = known.plus_entry(entry)
        line = _encode(entry, total)
        self._sum, self._missed = total, 0
        write_all(self._file, self._size_bytes, line)
        self._file.sync()
        self._size_bytes += len(line)

    def miss_line(self) -> bool:
        """Note that the last line was removed: the next one counts it, so that it stays missing. False, and nothing is
        noted, if there is no list: that may be deleted."""
        self._missed = int(self._disk.kind(self._path) == Kind.FILE)
        return bool(self._missed)

    def _open(self) -> File:
        fresh = self._disk.kind(self._path) != Kind.FILE
        if not fresh and self.last() is None:
            self.entries()
        file = self._disk.create(self._path) if fresh else open_private(self._disk, self._path)
        file.truncate(self._size_bytes)
        if fresh:
            self._disk.sync_directory(sidecar_path(self._root))
        return file

    def sync(self) -> None:
        """Sync the list as it is."""
        if self._disk.kind(self._path) == Kind.FILE:
            file = self._disk.open(self._path)
            try:
                file.sync()
            finally:
                file.close()

    def replace(self, entries: Iterable[Sealed]) -> None:
        """Replace the list, durably."""
        assert self._file is None
        replace_file(self._disk, self._path, sealed_lines(entries))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
