"""Where the records of a segment end, and what that means: a clean end, a torn tail, or damage.

A torn tail is a last write that did not finish; it is no loss, because nobody was told that it was stored. Damage is
bytes that once were whole. The difference decides whether a tail may ever be cut, so doubt counts as damage.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from duramen.errors import CorruptionError, DuramenError, UnknownVersionError
from duramen.formats.base import Cursor, Segment
from duramen.kernel.layout import GAVE_UP, NOT_FOUND, Stop


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


def judge(segment: Segment, cursor: Cursor, stop: Stop, *, is_last: bool) -> End:
    """What a scan that stopped at ``cursor`` has met.

    ``is_last``: no segment follows, so an unfinished write is possible here.
    """
    position, previous = cursor
    if stop in (Stop.END, Stop.ZEROS):
        return End(Ending.CLEAN, position, previous, stop, stop.meaning)
    if stop == Stop.BAD_VERSION:
        return End(Ending.UNKNOWN_VERSION, position, previous, stop, stop.meaning)
    if stop == Stop.BAD_ORDER:
        # A whole record whose offset is wrong was written as it is: no crash tears a write into one.
        return End(Ending.DAMAGE, position, previous, stop, stop.meaning, _found(segment.resync(cursor)))
    found = segment.resync(cursor)
    if found >= 0:
        why = f"{stop.meaning}; a valid record follows at byte {found}"
        return End(Ending.DAMAGE, position, previous, stop, why, found)
    if found == GAVE_UP:
        return End(Ending.DAMAGE, position, previous, stop, f"{stop.meaning}; what follows cannot be told")
    if not is_last:
        return End(Ending.DAMAGE, position, previous, stop, f"{stop.meaning}, in a segment that another one follows")
    return End(Ending.TORN, position, previous, stop, stop.meaning)


def _found(position: int) -> int | None:
    return None if position in (NOT_FOUND, GAVE_UP) else position
