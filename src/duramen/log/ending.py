"""Where the records of a segment end, and what that means: a clean end, a torn tail, or damage.

A torn tail is a last write that did not finish; it is no loss, because nobody was told that it was stored. Damage is
bytes that once were whole. The difference decides whether a tail may ever be cut, so doubt counts as damage.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from duramen.errors import CorruptionError, DuramenError, UnknownVersionError
from duramen.formats.base import SECTOR_BYTES, Cursor, Rows, Segment
from duramen.kernel import is_zero
from duramen.kernel.layout import GAVE_UP, NOT_FOUND, Stop
from duramen.log.sidecar import Watermark


class Ending(StrEnum):
    CLEAN = "clean"
    TORN = "torn tail"
    DAMAGE = "damage"
    UNKNOWN_VERSION = "unknown version"


class End(NamedTuple):
    """The verdict on one place: what it is, where, why, and where valid records go on (None: nowhere)."""

    ending: Ending
    position: int
    previous_offset: int
    stop: Stop
    why: str
    goes_on_at: int | None = None

    def error(self, path: str) -> DuramenError:
        """The verdict as an error, for a reader who cannot go on."""
        kind = UnknownVersionError if self.ending == Ending.UNKNOWN_VERSION else CorruptionError
        hint = "`duramen verify` shows the whole picture"
        if self.ending == Ending.UNKNOWN_VERSION:
            hint = "a newer program wrote it, or the byte is damaged"
        return kind(self.why, path=path, position=self.position, offset=self.previous_offset + 1, hint=hint)


def judge(segment: Segment, cursor: Cursor, stop: Stop, *, is_last: bool, before_last: Cursor | None = None) -> End:
    """What a scan that stopped at ``cursor`` has met.

    ``is_last``: no segment follows, so an unfinished write is possible here. ``before_last``: where the last record
    before it starts. A record without a checksum may have swallowed others if its length is wrong, so valid ones are
    looked for from there on, too.
    """
    position, previous = cursor
    if stop in (Stop.END, Stop.ZEROS):
        return End(Ending.CLEAN, position, previous, stop, stop.meaning)
    if is_last and _cut_off_by_zeros(segment, position, stop):
        return End(Ending.TORN, position, previous, stop, "only the first bytes of a header, then zeros")
    if stop == Stop.BAD_VERSION:
        return End(Ending.UNKNOWN_VERSION, position, previous, stop, stop.meaning)
    if stop == Stop.BAD_ORDER:
        # A whole record whose offset is wrong was written as it is: no crash tears a write into one.
        return End(Ending.DAMAGE, position, previous, stop, stop.meaning, _found(segment.resync(cursor)))
    found = segment.resync(cursor)
    if found < 0 and before_last is not None and not segment.record_checksum:
        swallowed = segment.resync(before_last)
        if swallowed >= 0:
            why = f"{stop.meaning}; a valid record at byte {swallowed} shows that the one before is wrong"
            return End(Ending.DAMAGE, position, previous, stop, why)
    if found >= 0:
        why = f"{stop.meaning}; a valid record follows at byte {found}"
        return End(Ending.DAMAGE, position, previous, stop, why, found)
    if found == GAVE_UP:
        return End(Ending.DAMAGE, position, previous, stop, f"{stop.meaning}; what follows cannot be told")
    if not is_last:
        return End(Ending.DAMAGE, position, previous, stop, f"{stop.meaning}, in a segment that another one follows")
    return End(Ending.TORN, position, previous, stop, stop.meaning)


def judge_rows(segment: Segment, rows: Rows, *, is_last: bool) -> End:
    """What the scan that answered ``rows`` has met."""
    before_last = None
    if len(rows.columns):
        previous = int(rows.columns.last_offsets[-2]) if len(rows.columns) > 1 else segment.base_offset - 1
        before_last = Cursor(int(rows.columns.position[-1]), previous)
    return judge(segment, rows.cursor, rows.stop, is_last=is_last, before_last=before_last)


def is_unfinished(end: End, segment: Segment, mark: Watermark | None) -> bool:
    """Whether a place that looks damaged is what an unfinished write left, of which a later piece arrived and an
    earlier one did not: behind what was durable, within what one such write can span, in a log that was not closed."""
    if mark is None or not mark.is_open or mark.base != segment.base_offset or end.position < mark.durable_position:
        return False
    if end.ending == Ending.UNKNOWN_VERSION and not version_is_missing(segment, end.position):
        return False
    is_bad = end.ending in (Ending.DAMAGE, Ending.UNKNOWN_VERSION)
    return is_bad and len(segment.buf) - end.position <= mark.unsynced_bytes


def _cut_off_by_zeros(segment: Segment, position: int, stop: Stop) -> bool:
    """Whether a sector ends inside the header that begins here and nothing but zeros follow: the file grew, its last
    sectors did not arrive. A version that did arrive, and is unknown, is still unknown."""
    boundary = (position // SECTOR_BYTES + 1) * SECTOR_BYTES
    last = segment.version_at if stop == Stop.BAD_VERSION else segment.header_bytes - 1
    if not boundary <= min(position + last, len(segment.buf) - 1):
        return False
    return is_zero(segment.buf, boundary, len(segment.buf))


def version_is_missing(segment: Segment, position: int) -> bool:
    """Whether the version of the record that begins here lies in a sector that begins behind it and holds nothing but
    zeros: in what an unfinished write left, that sector did not arrive."""
    sector = (position + segment.version_at) // SECTOR_BYTES * SECTOR_BYTES
    return sector > position and is_zero(segment.buf, sector, min(sector + SECTOR_BYTES, len(segment.buf)))


def _found(position: int) -> int | None:
    return None if position in (NOT_FOUND, GAVE_UP) else position
