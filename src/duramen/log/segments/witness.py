"""Compares the active segment with the durable watermark.

Whether the log was closed or its writer was killed, three things must agree at the watermark: a record ends exactly at
its position, the next offset is the watermark's, and the digest of all bytes before it is the one that the writer
computed. If one of them differs, durable bytes have changed: that is damage.

Recovery, `verify`, readers, convert and copy all use these functions, so they reach the same verdict. Reads only.
"""

from __future__ import annotations

import posixpath
from typing import NamedTuple

from duramen import kernel
from duramen.disk import Disk, Kind
from duramen.errors import CorruptionError
from duramen.formats import Format, Index, Role, Segment, position_near
from duramen.kernel import Stop
from duramen.log.segments.crc import Digest
from duramen.log.segments.segment_end import EndKind, SegmentEnd
from duramen.sidecar import Watermark

_BAD = (EndKind.DAMAGE, EndKind.UNKNOWN_VERSION)


class Contradiction(NamedTuple):
    """A statement of the watermark that the segment contradicts."""

    code: str
    """The code of the finding that `verify` reports."""
    why: str
    position: int
    first_offset: int | None = None
    last_offset: int | None = None

    def error(self, path: str) -> CorruptionError:
        hint = "`duramen verify` shows the whole picture, `duramen repair` what can be kept"
        return CorruptionError(self.why, path=path, position=self.position, offset=self.first_offset, hint=hint)


def lacks_active(disk: Disk, root: str, fmt: Format, mark: Watermark) -> bool:
    """Whether the file of the segment that the watermark names is missing, although it may have held records.

    Its name was durable before the watermark named it, and after a power loss the watermark may be older than the
    records. Only an empty segment may be missing: that of a log that was closed, or one that the format's own program
    deleted, with its index."""
    if disk.kind(posixpath.join(root, fmt.segment_path(mark.base))) != Kind.MISSING:
        return False
    if max(mark.next_offset, mark.durable_offset) > mark.base:
        return True
    is_dropped = fmt.capabilities.drops_empty_segment and (
        disk.kind(posixpath.join(root, fmt.path_of(Role.INDEX, mark.base))) == Kind.MISSING
    )
    return mark.is_open and not is_dropped


def against_mark(end: SegmentEnd, base: int, mark: Watermark | None) -> SegmentEnd:
    """The verdict on the end of a segment, turned into damage if it is before the durable position: no unfinished write
    ends there."""
    if mark is None or mark.base != base or end.position >= mark.durable_position or end.ending in _BAD:
        return end
    why = f"{end.why}, below the durable watermark at byte {mark.durable_position}"
    return end._replace(ending=EndKind.DAMAGE, why=why)


def digested_bytes(segment_base: int, mark: Watermark | None, *, record_checksum: bool) -> int:
    """How many bytes of the segment the digest of the watermark covers; 0 without a digest."""
    if mark is None or mark.base != segment_base or not (mark.has_digest or not record_checksum):
        return 0
    return mark.durable_position


def find_contradiction(
    segment: Segment, mark: Watermark | None, *, index: Index | None = None, digest: Digest | None = None
) -> Contradiction | None:
    """The first contradiction between ``segment`` and the watermark; None if they agree, or if the watermark is of
    another segment. ``index`` saves a walk from the start; ``digest`` a pass over the bytes, if it covers as many as
    the watermark's. Only meaningful if the records reach the watermark's position."""
    if mark is None or mark.base != segment.base_offset or mark.durable_position > len(segment.buf):
        return None
    return _of_offset(segment, mark, index) or _of_digest(segment, mark, digest)


def _of_offset(segment: Segment, mark: Watermark, index: Index | None) -> Contradiction | None:
    position, wanted = mark.durable_position, mark.durable_offset
    if position <= segment.start.position:
        return None  # no record was durable; the format checks the header
    found = offset_after(segment, position, index)
    if found is None:
        why = f"no record ends at byte {position}, where the durable watermark is"
        return Contradiction("watermark-disagrees", why, position, None, wanted - 1)
    if found != wanted:
        why = f"offset {wanted} followed byte {position}, and now offset {found} does"
        return Contradiction("watermark-disagrees", why, position, min(found, wanted) - 1, max(found, wanted) - 1)
    return None


def _of_digest(segment: Segment, mark: Watermark, digest: Digest | None) -> Contradiction | None:
    until = digested_bytes(segment.base_offset, mark, record_checksum=segment.record_checksum)
    if not until:
        return None
    known = digest is not None and digest.size_bytes == until
    crc32c = digest.crc32c if known and digest is not None else kernel.crc32c(segment.buf[:until])
    if crc32c == mark.durable_crc32c:
        return None
    why = f"the first {until} bytes are not what was written: their digest differs"
    return Contradiction("digest-mismatch", why, 0, segment.base_offset, mark.durable_offset - 1)


def offset_after(segment: Segment, position: int, index: Index | None = None) -> int | None:
    """The offset after the record that ends exactly at ``position``; None if no record does."""
    near = None if index is None else position_near(segment, position, index)
    cursor = segment.start if near is None or near.previous_offset < 0 else near
    while cursor.position < position:
        rows = segment.scan(cursor, max_bytes=max(position - cursor.position, 1), verify=False)
        ends = rows.columns.position
        row = int(ends.searchsorted(position)) if len(ends) else 0
        if row < len(ends):
            return int(rows.columns.last_offsets[row - 1]) + 1 if row and int(ends[row]) == position else None
        if rows.end.position <= cursor.position or (rows.stop != Stop.LIMIT and rows.end.position < position):
            return None
        cursor = rows.cursor
    return cursor.previous_offset + 1 if cursor.position == position else None
