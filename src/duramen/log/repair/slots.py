"""Plan the repair of a log whose record positions are arithmetic: no slot can be removed without moving the rest.

A lost slot keeps its place. It is filled with zeros and their checksum, so that every program of the format can read on
after it and no other offset changes. The option that the segment names (`SlotSegment.losing`) tells readers which slots
hold no record; a program that does not read the sidecar sees records of zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from duramen import kernel
from duramen.formats import Format, SlotSegment
from duramen.log.repair.plan import Plan, RemovedRecords, RepairAction, RepairPiece, RepairStep, Strategy
from duramen.log.repair.segment_plan import SegmentPlan


class SlotPlanner:
    """Adds the steps for the one file of such a log to a plan. ``promised`` is the offset after the last record that
    was acknowledged; ``lose`` records a loss."""

    def __init__(
        self, fmt: Format, strategy: Strategy, promised: int, plan: Plan, lose: Callable[[int, int, str], None]
    ) -> None:
        self._fmt, self._strategy, self._promised = fmt, strategy, promised
        self._plan, self._lose = plan, lose

    def _open(self, data: memoryview | bytes) -> SlotSegment:
        segment = self._fmt.open_segment(data, 0)
        assert isinstance(segment, SlotSegment)
        return segment

    def create(self) -> None:
        """Plan a new file of lost slots, where the file is missing, so that no offset is assigned twice."""
        path, segment, promised = self._fmt.segment_path(0), self._open(b""), self._promised
        pieces, _ = _fill(segment, path, 0, range(promised), promised, {})
        why = "the file is lost: the log continues after it, so that no offset is assigned twice"
        self._plan.steps.append(RepairStep(RepairAction.CREATE, path, why, base=0, pieces=tuple(pieces)))
        self._lose(0, promised - 1, "stored once, and in no whole record now")
        self._plan.options = segment.losing(range(promised))
        self._plan.next_offset = promised

    def change(self, part: SegmentPlan) -> None:
        """Plan what happens to the file."""
        segment = self._open(part.data)
        bad, good = segment.bad_slots()
        mended = segment.mended_slots(bad)
        bad = [slot for slot in bad if slot not in mended]
        until = max(self._promised, good)
        lost = sorted({*bad, *range(good, until)})
        is_cut = self._strategy == Strategy.TRUNCATE and bool(bad)
        if is_cut:
            lost, until, good = [], bad[0], bad[0]
        mended |= (tail := segment.mended_slots(range(good, until)))
        lost = [slot for slot in lost if slot not in tail]
        self._plan.next_offset = until
        zeros = kernel.is_zero(part.data, good * segment.slot_bytes, len(part.data))
        if lost or mended or not zeros or self._strategy != Strategy.SALVAGE:
            why = _why(lost, mended)
            if is_cut:
                why = "cut at the first bad slot, as the format's document says"
                self._lose(bad[0], max(self._promised, part.last + 1) - 1, why)
            self._add_step(part, segment, lost, until, mended, why)
        given_up = {*segment.lost_slots, *lost}
        self._plan.kept_records = until - sum(slot < until for slot in given_up)

    def _add_step(
        self,
        part: SegmentPlan,
        segment: SlotSegment,
        lost: list[int],
        until: int,
        mended: Mapping[int, bytes],
        why: str,
    ) -> None:
        size = len(part.data)
        pieces, removed = _fill(segment, part.path, size, lost, until, mended)
        if not lost and not mended:
            cut_at = until * segment.slot_bytes
            step = RepairStep(RepairAction.CUT, part.path, why, size, cut_at, removed=tuple(removed))
        else:
            lines = tuple(f"offset {slot}: a flipped bit of its checksum is corrected" for slot in sorted(mended))
            step = RepairStep(
                RepairAction.REWRITE, part.path, why, size,
                removed=tuple(removed), pieces=tuple(pieces), mended=lines,
            )  # fmt: skip
            for slot in lost:
                self._lose(slot, slot, "the slot is damaged")
            self._plan.options = segment.losing(lost)
        self._plan.steps.append(step)


def _why(lost: list[int], mended: Mapping[int, bytes]) -> str:
    if lost:
        return "damaged slots are filled, so that no other record moves"
    if mended:
        return "a record is corrected" if len(mended) == 1 else f"{len(mended)} records are corrected"
    return "the last write did not finish"


def _fill(
    segment: SlotSegment, path: str, size: int, lost: Iterable[int], count: int, mended: Mapping[int, bytes]
) -> tuple[list[RepairPiece], list[RemovedRecords]]:
    """Return the file of ``size`` bytes with ``count`` slots, the lost ones filled and the mended ones patched, and
    the byte ranges that it loses."""
    pieces: list[RepairPiece] = []
    removed: list[RemovedRecords] = []
    filling = segment.filler
    slot_bytes, at = segment.slot_bytes, 0
    for slot in sorted({*lost, *mended}):
        start, end = slot * slot_bytes, min((slot + 1) * slot_bytes, size)
        if at < start:
            pieces.append(RepairPiece(path, at, start))
        if slot in mended:
            pieces.append(RepairPiece(data=mended[slot]))
            at = start + len(mended[slot])
            continue
        pieces.append(RepairPiece(data=filling))
        if start < end:
            why = "the slot is damaged: filled with zeros, so that no other record moves"
            removed.append(RemovedRecords(start, end, why))
        at = start + slot_bytes
    if at < count * slot_bytes:
        pieces.append(RepairPiece(path, at, count * slot_bytes))
        at = count * slot_bytes
    if at < size:
        removed.append(RemovedRecords(at, size, "after the last whole slot"))
    return pieces, removed
