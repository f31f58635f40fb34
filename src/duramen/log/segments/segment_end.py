"""Where the records of a segment end, and what that means: a clean end, a torn tail, or damage.

A torn tail is a write that did not finish. It is not a loss, because the writer never acknowledged it. Damage is bytes
that once were whole. The difference decides whether a tail may be cut, so doubt counts as damage.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from duramen.errors import CorruptionError, DuramenError, UnknownVersionError
from duramen.formats import SECTOR_BYTES, Rows, ScanPosition, Segment
from duramen.kernel import GAVE_UP, NOT_FOUND, Stop, is_zero
from duramen.sidecar import Watermark


class EndKind(StrEnum):
    CLEAN = "clean"
    TORN = "torn tail"
    DAMAGE = "damage"
    UNKNOWN_VERSION = "unknown version"


class SegmentEnd(NamedTuple):
    """The verdict on the end of the records: what, where, why, and where valid records follow (None: nowhere)."""

    ending: EndKind
    position: int
    previous_offset: int
    stop: Stop
    why: str
    goes_on_at: int | None = None

    def error(self, path: str) -> DuramenError:
        """The verdict as the error that a reader raises."""
        kind = UnknownVersionError if self.ending == EndKind.UNKNOWN_VERSION else CorruptionError
        hint = "`duramen verify` shows the whole picture"
        if self.ending == EndKind.UNKNOWN_VERSION:
            hint = "a newer program wrote it, or the byte is damaged"
        return kind(self.why, path=path, position=self.position, offset=self.previous_offset + 1, hint=hint)


def classify_end(
    segment: Segment, cursor: ScanPosition, stop: Stop, *, is_last: bool, before_last: ScanPosition | None = None
) -> SegmentEnd:
    """Classify the place where a scan stopped.

    ``is_last``: no segment follows, so an unfinished write is possible. ``before_last``: where the last record before
    the place starts. If a record without a checksum has a wrong length, it may span others, so the search for valid
    records also starts from there.
    """
    position, previous = cursor
    if stop in (Stop.END, Stop.ZEROS):
        return SegmentEnd(EndKind.CLEAN, position, previous, stop, stop.meaning)
    if is_last and _cut_off_by_zeros(segment, position, stop):
        return SegmentEnd(EndKind.TORN, position, previous, stop, "only the first bytes of a header, then zeros")
    if stop == Stop.BAD_VERSION:
        return SegmentEnd(EndKind.UNKNOWN_VERSION, position, previous, stop, stop.meaning)
    if stop == Stop.BAD_ORDER:
        # No crash produces a whole record with a wrong offset.
        return SegmentEnd(EndKind.DAMAGE, position, previous, stop, stop.meaning, _found(segment.resync(cursor)))
    found = segment.resync(cursor)
    if found < 0 and before_last is not None and not segment.record_checksum:
        swallowed = segment.resync(before_last)
        if swallowed >= 0:
            why = f"{stop.meaning}; a valid record at byte {swallowed} shows that the one before is wrong"
            return SegmentEnd(EndKind.DAMAGE, position, previous, stop, why)
    if found >= 0:
        found = segment.resync_outside(cursor, previous)
        if found >= 0:
            why = f"{stop.meaning}; a valid record follows at byte {found}"
            return SegmentEnd(EndKind.DAMAGE, position, previous, stop, why, found)
        return SegmentEnd(EndKind.DAMAGE, position, previous, stop, f"{stop.meaning}; only records inside of it follow")
    if found == GAVE_UP:
        return SegmentEnd(EndKind.DAMAGE, position, previous, stop, f"{stop.meaning}; what follows is unknown")
    if not is_last:
        return SegmentEnd(
            EndKind.DAMAGE, position, previous, stop, f"{stop.meaning}, in a segment that another one follows"
        )
    return SegmentEnd(EndKind.TORN, position, previous, stop, stop.meaning)


def classify_rows(segment: Segment, rows: Rows, *, is_last: bool) -> SegmentEnd:
    """Classify the place where the scan that returned ``rows`` stopped."""
    before_last = None
    if len(rows.columns):
        previous = int(rows.columns.last_offsets[-2]) if len(rows.columns) > 1 else segment.base_offset - 1
        before_last = ScanPosition(int(rows.columns.position[-1]), previous)
    return classify_end(segment, rows.cursor, rows.stop, is_last=is_last, before_last=before_last)


def is_unfinished(end: SegmentEnd, segment: Segment, mark: Watermark | None) -> bool:
    """Whether a place that looks damaged is an unfinished write of which a later part reached the disk and an earlier
    one did not: after the durable position, no longer than one such write, in a log that was not closed."""
    if mark is None or not mark.is_open or mark.base != segment.base_offset or end.position < mark.durable_position:
        return False
    if end.ending == EndKind.UNKNOWN_VERSION and not version_is_missing(segment, end.position):
        return False
    is_bad = end.ending in (EndKind.DAMAGE, EndKind.UNKNOWN_VERSION)
    return is_bad and len(segment.buf) - end.position <= mark.unsynced_bytes


def _cut_off_by_zeros(segment: Segment, position: int, stop: Stop) -> bool:
    """Whether a sector ends inside the header that starts here and only zeros follow: the file grew, but its last
    sectors did not reach the disk. A version byte that did reach it stays unknown."""
    boundary = (position // SECTOR_BYTES + 1) * SECTOR_BYTES
    last = segment.version_at if stop == Stop.BAD_VERSION else segment.header_bytes - 1
    if not boundary <= min(position + last, len(segment.buf) - 1):
        return False
    return is_zero(segment.buf, boundary, len(segment.buf))


def version_is_missing(segment: Segment, position: int) -> bool:
    """Whether the version of the record that starts here is in a later sector that holds only zeros: that sector of an
    unfinished write did not reach the disk."""
    sector = (position + segment.version_at) // SECTOR_BYTES * SECTOR_BYTES
    return sector > position and is_zero(segment.buf, sector, min(sector + SECTOR_BYTES, len(segment.buf)))


def _found(position: int) -> int | None:
    return None if position in (NOT_FOUND, GAVE_UP) else position


def starts_after_end(path: str, first: int, following: int) -> CorruptionError:
    """An option says that readers see nothing before ``first``, and the last record is before ``following``."""
    return CorruptionError(
        f"the log is said to start at offset {first}, and ends before offset {following}", path=path,
        hint="a broker's checkpoint that says so is of other files; `duramen.open` of the path ignores it",
    )  # fmt: skip
