"""Salvage where a record's place is its offset: no slot can be taken out without moving all that follow.

A slot that is lost keeps its place: it is filled with zeros and their checksum, so that every program of the format
reads on behind it, and no other offset changes. Which slots hold no record is kept as an option of the log
(``lost_slots``), so that readers leave them out instead of taking the filling for a record. Without the sidecar the
filling is all there is to see.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from duramen import kernel
from duramen.formats.base import Cursor
from duramen.formats.fixed_slot import CRC, SlotSegment, filler
from duramen.kernel.layout import Stop
from duramen.log.repair.plan import Piece, Removed


def bad_slots(segment: SlotSegment) -> tuple[list[int], int]:
    """The slots that hold no record though others do behind them, and how many whole slots there are up to the last
    good one."""
    cursor, good = segment.start, 0
    bad: list[int] = []
    while True:
        rows = segment.scan(cursor)
        cursor = rows.cursor
        good = cursor.position // segment.slot_bytes
        if rows.stop == Stop.LIMIT:
            continue
        if rows.stop in (Stop.END, Stop.ZEROS):
            return bad, good
        found = segment.resync(cursor)
        if found < 0:
            return bad, good
        bad += range(good, found // segment.slot_bytes)
        cursor = Cursor(found, found // segment.slot_bytes - 1)


def mended_slots(segment: SlotSegment, slots: Iterable[int]) -> dict[int, bytes]:
    """The slots whose checksum differs from that of their payload in a single bit: the checksum is what is damaged."""
    found = {}
    for slot in slots:
        raw = bytes(segment.buf[slot * segment.slot_bytes : (slot + 1) * segment.slot_bytes])
        if len(raw) == segment.slot_bytes:
            right = kernel.crc32c(raw[CRC.size :])
            if (right ^ int(CRC.unpack(raw)["crc32c"])).bit_count() == 1:
                found[slot] = CRC.pack(crc32c=right)
    return found


def filled(
    segment: SlotSegment, path: str, lost: Iterable[int], count: int, mended: Mapping[int, bytes]
) -> tuple[list[Piece], list[Removed]]:
    """The file with ``count`` slots, of which the lost ones are filled, and some get a checksum; and what goes."""
    pieces: list[Piece] = []
    removed: list[Removed] = []
    filling = filler(segment.record_bytes)
    size, slot_bytes, at = len(segment.buf), segment.slot_bytes, 0
    for slot in sorted({*lost, *mended}):
        start, end = slot * slot_bytes, min((slot + 1) * slot_bytes, size)
        if at < start:
            pieces.append(Piece(path, at, start))
        if slot in mended:
            pieces.append(Piece(data=mended[slot]))
            at = start + len(mended[slot])
            continue
        pieces.append(Piece(data=filling))
        if start < end:
            removed.append(Removed(start, end, "the slot is damaged: filled with zeros, so that all others stay put"))
        at = start + slot_bytes
    if at < count * slot_bytes:
        pieces.append(Piece(path, at, count * slot_bytes))
        at = count * slot_bytes
    if at < size:
        removed.append(Removed(at, size, "behind the last whole slot"))
    return pieces, removed
