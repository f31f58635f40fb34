"""Whether a segment that a reader should come to is missing, or shorter than it was sealed.

Compaction leaves gaps between segments, so a gap alone says nothing in most formats. If the sealed list still has a
segment whose file is missing, neither retention nor compaction removed it: both take it off the list. The list is read
again after the file was looked at, so a removal in between is not taken for a loss.
"""

from __future__ import annotations

import posixpath

from duramen.disk import Disk, Kind
from duramen.errors import CorruptionError
from duramen.formats import Severity
from duramen.log.segments import Snapshot, judge_seal, lacks_active, settled_digests
from duramen.sidecar import Sealed, Watermark, known_loss_of, read_known_losses, read_watermark

_HINT = "restore it from a copy; `duramen repair` shows what can be done without"


class Presence:
    """The segments of one snapshot against the sidecar."""

    def __init__(self, disk: Disk, root: str, snapshot: Snapshot) -> None:
        self._disk, self._root, self._snapshot = disk, root, snapshot

    def check_gap(self, before: int, after: int, first: int, end: int, ended_at: int) -> None:
        """Raise `CorruptionError` if the offsets from ``first`` to ``end`` were in a segment between these two, or in
        ``before``, whose records end at byte ``ended_at``, and nothing removed them on purpose."""
        end = min(end, after)
        if first >= end:
            return
        self._check_sealed(before, after, first, end, ended_at)
        if self._snapshot.fmt.capabilities.lost_segments_show and (
            known_loss_of(read_known_losses(self._disk, self._root), first, end - 1) is None
        ):
            message = "offsets are missing before this segment, and this format leaves no gap"
            raise self._error(message, after, first)

    def check_end(self, first: int, end: int, ended_at: int) -> None:
        """The same for the end of the log: the segment that the watermark names must exist."""
        mark, bases = self._snapshot.witness, self._snapshot.bases
        last = bases[-1] if bases else -1
        if mark is None or mark.base <= last or mark.base in bases:
            return
        self._check_sealed(last, mark.base, first, min(end, mark.base, mark.next_offset), ended_at)
        is_wanted = first <= max(mark.base, mark.durable_offset - 1) and mark.base < end
        if is_wanted and lacks_active(self._disk, self._root, self._snapshot.fmt, mark) and self._is_still(mark):
            raise self._error("the active segment is missing", mark.base, mark.base)

    def _is_still(self, mark: Watermark) -> bool:
        """Whether the watermark still names this segment."""
        now = read_watermark(self._disk, self._root)
        return now is not None and now.base == mark.base

    def _check_sealed(self, before: int, after: int, first: int, end: int, ended_at: int) -> None:
        fmt = self._snapshot.fmt
        entries = settled_digests(self._disk, self._root, fmt)
        for base in sorted(entries):
            entry = entries[base]
            if not before <= base < after or entry.last_offset < first or base >= end:
                continue
            why = self._why_short(entry, ended_at) if base == before else self._why_missing(entry)
            if why and settled_digests(self._disk, self._root, fmt).get(base) == entry:
                raise self._error(why, base, max(base, first))

    def _why_missing(self, entry: Sealed) -> str:
        return "" if self._disk.kind(self._path(entry.base)) == Kind.FILE else "a sealed segment is missing"

    def _why_short(self, entry: Sealed, ended_at: int) -> str:
        """Why a segment whose records end too early is not what was sealed. One that ends where its records end, and is
        as long as it was, lost none."""
        path = self._path(entry.base)
        if self._disk.kind(path) != Kind.FILE:
            return self._why_missing(entry)
        data = self._disk.map(path).data
        if len(data) == entry.size_bytes == ended_at:
            return ""
        found = judge_seal(entry, data)
        return "" if found is None or found.severity != Severity.DAMAGE else found.message

    def _path(self, base: int) -> str:
        return posixpath.join(self._root, self._snapshot.fmt.segment_path(base))

    def _error(self, message: str, base: int, offset: int) -> CorruptionError:
        return CorruptionError(message, path=self._path(base), offset=offset, hint=_HINT)
