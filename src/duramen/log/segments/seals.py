"""Checks sealed segments against the digests that they were sealed with.

No format notices every changed byte by itself. So everything that reads a sealed segment to decide or to copy
(compaction, retention, conversion, readers) compares the digest before it trusts the records. Reads only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from duramen import kernel
from duramen.disk import Disk
from duramen.errors import CorruptionError
from duramen.formats import Format, Rows, ScanPosition, Segment, Severity
from duramen.kernel import Stop
from duramen.log.segments.crc import Digest, RunningDigest
from duramen.sidecar import Sealed, SealedList, changed_by_file_swap, read_tx_marker

SEAL_HINT = "restore the file from a copy; `duramen repair` shows what can be kept without"


class SealVerdict(NamedTuple):
    """How a segment differs from what was sealed."""

    code: str
    severity: Severity
    message: str


def settled_digests(disk: Disk, root: str, fmt: Format, known: SealedList | None = None) -> dict[int, Sealed]:
    """The sealed segments by base, except those that an unfinished file swap replaces or removes; none while a
    transaction replaces the log, because the list and the segments may belong to different logs. ``known`` is a list
    of the same log, which need not parse again what it has read before."""
    try:
        marker = read_tx_marker(disk, root)
    except CorruptionError:  # `verify` reports it
        marker = None
    if marker is not None and marker.replaces:
        return {}
    sealed = (known or SealedList(disk, root)).added_entries()
    replaced, removed = changed_by_file_swap(disk, root)
    changing = replaced | removed
    if not changing:
        return sealed
    return {base: entry for base, entry in sealed.items() if fmt.segment_path(base) not in changing}


def judge_seal(entry: Sealed, data: memoryview, digest: Digest | None = None) -> SealVerdict | None:
    """How ``data`` differs from what was sealed; None if it does not. ``digest`` saves a pass if it covers the bytes in
    question."""
    if len(data) > entry.size_bytes and _digest(data, entry.size_bytes, digest).crc32c == entry.crc32c:
        message = f"another program appended after the {entry.size_bytes} bytes that were sealed"
        return SealVerdict("sealed-continued", Severity.NOTE, message)
    if len(data) != entry.size_bytes:
        message = f"the sealed segment has {len(data)} bytes instead of {entry.size_bytes}"
        return SealVerdict("sealed-size", Severity.DAMAGE, message)
    taken = _digest(data, entry.size_bytes, digest)
    if (taken.crc32c, taken.crc32) != (entry.crc32c, entry.crc32):
        message = "the sealed segment is not what was written: its digest differs"
        return SealVerdict("digest-mismatch", Severity.DAMAGE, message)
    return None


def _digest(data: memoryview, size_bytes: int, digest: Digest | None) -> Digest:
    whole = len(data) == size_bytes
    if digest is not None and digest.size_bytes == size_bytes and (digest.crc32 is not None or not whole):
        return digest
    crc32c, crc32 = kernel.digest(data[:size_bytes])
    return Digest(size_bytes, crc32c, crc32)


class Seals:
    """The digests of the sealed segments of the log at ``root``, as of the creation of this object."""

    def __init__(self, disk: Disk, root: str, fmt: Format) -> None:
        self._disk, self._root, self._fmt = disk, root, fmt
        self._entries = settled_digests(disk, root, fmt)

    def entry(self, base: int) -> Sealed | None:
        return self._entries.get(base)

    def scan(self, base: int, path: str, data: memoryview) -> SealedScan:
        return SealedScan(self, self._entries.get(base), path, data)

    def check(self, base: int, path: str, data: memoryview) -> None:
        """Raise `CorruptionError` if a segment is not what was sealed."""
        self.scan(base, path, data).check()

    def is_current(self, entry: Sealed) -> bool:
        """Whether the entry is still valid: compaction in another process may have replaced the segment since."""
        return settled_digests(self._disk, self._root, self._fmt).get(entry.base) == entry


class SealedScan:
    """Computes the digest of a segment while it is scanned, and compares it afterwards."""

    def __init__(self, seals: Seals, entry: Sealed | None, path: str, data: memoryview) -> None:
        self._seals, self._entry, self._path, self._data = seals, entry, path, data
        known = entry is not None and entry.size_bytes == len(data)
        self._running = RunningDigest(data) if known else None

    def steps(self, segment: Segment) -> Iterator[Rows]:
        """Like `Segment.steps`."""
        rows = self._scan(segment, segment.start)
        yield rows
        while rows.stop == Stop.LIMIT:
            rows = self._scan(segment, rows.cursor)
            yield rows

    def _scan(self, segment: Segment, cursor: ScanPosition) -> Rows:
        if self._running is None:
            return segment.scan(cursor)
        digests = self._running.along(cursor.position, len(self._data))
        rows = segment.scan(cursor, digests=digests)
        if digests is not None:
            self._running.passed(rows.end.position)
        return rows

    def check(self) -> None:
        """Raise `CorruptionError` if the segment is not what was sealed."""
        if self._entry is None:
            return
        found = judge_seal(self._entry, self._data, None if self._running is None else self._running.finish())
        if found is not None and found.severity == Severity.DAMAGE and self._seals.is_current(self._entry):
            raise CorruptionError(found.message, path=self._path, offset=self._entry.base, hint=SEAL_HINT)
