"""From what a log holds to a `Plan`: which records stay, which files change, what is lost. Reads only.

1. Every segment that `verify` has something to say about is walked (`salvage`), its file header put right first.
2. Segments are sorted by what they hold, not by what they are called: a file under a wrong name gets the right one,
   if no other has it.
3. Each segment keeps what belongs between its base and that of the next one (`order`).
4. Offsets that were promised and are lost at the end are never given out again: the log goes on behind them.
5. Whatever is derived (indexes, manifest, sidecar) is made anew where it does not fit: see `derived`.
"""

from __future__ import annotations

import copy
import posixpath
from itertools import pairwise

from duramen import kernel
from duramen.disk import Disk
from duramen.errors import CorruptionError, IncompleteHeaderError, UnknownVersionError
from duramen.formats import Format
from duramen.formats.fixed_slot import SlotSegment, parse_slots, print_slots
from duramen.log.directory import Directory, list_log, refuse_foreign_sidecar, while_files_go
from duramen.log.ending import Ending
from duramen.log.evidence import Evidence
from duramen.log.losses import covered, read_losses
from duramen.log.repair.apply import in_order
from duramen.log.repair.derived import DerivedFiles
from duramen.log.repair.held import Held
from duramen.log.repair.order import put_in_order
from duramen.log.repair.plan import Action, Loss, Piece, Plan, Removed, Step, Strategy
from duramen.log.repair.salvage import Bad, Salvaged, walk
from duramen.log.repair.slots import bad_slots, filled, mended_slots
from duramen.log.report import Finding, Report
from duramen.log.verify import Progress, check_log

HARMLESS = frozenset({
    "missing-index", "zero-tail", "sealed-continued", "offset-gap", "time-goes-backwards", "bad-tracking",
    "known-loss", "missing-segment",
})  # fmt: skip
"""What is said about a segment's file without a byte of it being in question."""

NOTHING_LEFT = (
    "no file holds a record, and nothing says how many there were: bring the files back from a copy. To begin anew at "
    "offset 0, move the directory away and `duramen create` the log again"
)
NOTHING_PROMISED = "its file is gone, which held no record that counts: the first append makes it anew"


def make_plan(
    disk: Disk,
    path: str,
    fmt: Format,
    strategy: Strategy,
    *,
    strays: bool = False,
    problem: Finding | None = None,
    progress: Progress | None = None,
) -> Plan:
    """The plan for the log at ``path``. ``problem`` is what was found out about it on the way to its format."""

    def plan() -> Plan:
        report = check_log(disk, path, fmt, progress, [] if problem is None else [problem])
        return Planner(disk, path, fmt, strategy, report, strays=strays).run()

    return while_files_go(disk, path, plan)


class Planner:
    def __init__(
        self, disk: Disk, path: str, fmt: Format, strategy: Strategy, report: Report, *, strays: bool = False
    ) -> None:
        self._disk = disk
        self._root = path
        self._fmt = fmt
        self._strategy = strategy
        self._strays = strays
        self._directory: Directory = list_log(disk, path, fmt)
        refuse_foreign_sidecar(disk, path, fmt, self._directory)
        self._evidence = Evidence(disk, path, fmt)
        self._report = report
        checked = {segment.path: segment for segment in report.segments}
        self._segments = [
            (files, checked[found])
            for files in self._directory.segments
            if (found := self._directory.full(files.segment.path)) in checked  # a writer may have begun others since
        ]
        self._known = read_losses(disk, path)
        self.plan = Plan(path, fmt.name, strategy, findings=self._report.findings)
        self._held: list[Held] = []

    def run(self) -> Plan:
        elsewhere = [finding for finding in self._report.findings if finding.code == "not-a-file"]
        if elsewhere:  # what is not there now may be there again in a moment: nothing is given up for that
            self.plan.refused += [f"{finding.path}: {finding.message}: {finding.action}" for finding in elsewhere]
            return self.plan
        self._fmt = self._dialect()
        self._look()
        if not self._fmt.capabilities.segments:
            self._slots()
        else:
            if self._held and self._held[-1].is_left_alone:  # where the log ends is not known, nor what it promised
                return self.plan
            self._name()
            self._bound()
            self._change_segments()
        if not self._held and not self.plan.steps:
            self.plan.refused.append(NOTHING_PROMISED if self._evidence.promised_offset == 0 else NOTHING_LEFT)
            return self.plan
        derived = DerivedFiles(self._disk, self._fmt, self._directory, self._evidence, self.plan)
        derived.set_aside(strays=self._strays)
        derived.make_anew(self._held)
        self.plan.segments = [(held.base, held.last) for held in self._kept()]
        self.plan.segments += [
            (step.base, step.base - 1)
            for step in self.plan.steps
            if step.action == Action.CREATE and step.base is not None
        ]
        self.plan.steps = in_order(self.plan.steps)
        self.plan.kept_records = sum(held.records for held in self._held if held.dropped is None)
        if not self._fmt.capabilities.segments and self._held:
            lost = parse_slots(self.plan.lost_slots or self._fmt.options.get("lost_slots", ""))
            self.plan.kept_records = self.plan.next_offset - sum(slot < self.plan.next_offset for slot in lost)
        return self.plan

    def _full(self, path: str) -> str:
        return posixpath.join(self._root, path)

    # --- looking

    def _dialect(self) -> Format:
        """The format as a sound segment is written; a damaged one may look like another dialect."""
        for files, report in self._segments:
            if report.ending == Ending.CLEAN and report.records and not self._said_of(report.path):
                data = self._disk.map(self._full(files.segment.path)).data
                return self._fmt.continuing(self._fmt.open_segment(data, files.base))
        return self._fmt

    def _said_of(self, path: str) -> set[str]:
        return {finding.code for finding in self._report.findings if finding.path == path} - HARMLESS

    def _look(self) -> None:
        by_path: dict[str, list[Finding]] = {}
        for finding in self._report.findings:
            by_path.setdefault(finding.path, []).append(finding)
        for files, report in self._segments:
            data = self._disk.map(self._full(files.segment.path)).data
            held = Held(files, report, files.base or 0, data, findings=by_path.get(report.path, []))
            if self._fmt.capabilities.segments and self._in_question(held):
                self._open(held)
            self._held.append(held)

    def _in_question(self, held: Held) -> bool:
        codes = {finding.code for finding in held.findings} - HARMLESS
        return bool(codes) or held.report.ending not in (Ending.CLEAN, "")

    def _open(self, held: Held) -> None:
        """Walk the segment; where its header is bad, with a header put right."""
        name = held.files.base or 0
        if not len(held.data):
            held.found = Salvaged()
            return
        try:
            held.segment = self._fmt.open_segment(held.data, name)
        except CorruptionError as error:
            if not self._mend_header(held, name, error):
                return
        segment = held.segment
        assert segment is not None
        held.base = segment.base_offset
        probe = segment.scan(segment.start._replace(previous_offset=-1), max_records=1)
        low = min(held.base, int(probe.columns.first_offsets[0])) if len(probe.columns) else held.base
        held.found = walk(segment, low)

    def _mend_header(self, held: Held, name: int, error: CorruptionError) -> bool:
        """Put the file header right: it may belong to another name, have one bit flipped, or be gone altogether."""
        try:
            held.segment = self._fmt.open_segment(held.data, None)
            return True
        except CorruptionError:
            pass
        length = len(self._fmt.segment_header(name, 0))
        if isinstance(error, IncompleteHeaderError) or len(held.data) < length:
            held.found = Salvaged([], [Bad(0, len(held.data), error.message)], end=len(held.data), ended_badly=True)
            return False
        header = self._flipped_header(bytes(held.data[:length]), name)
        if header is None and isinstance(error, UnknownVersionError):
            self.plan.refused.append(
                f"{held.path}: {error.message}: use the program that wrote it; nothing of this file is changed"
            )
            held.is_left_alone = True
            return False
        held.header = header or self._fmt.segment_header(name, 0)
        opened = copy.copy(self._fmt.open_segment(held.header, name))
        opened.buf = held.data
        held.segment = opened
        return True

    def _flipped_header(self, raw: bytes, name: int) -> bytes | None:
        for place in range(len(raw)):
            for bit in range(8):
                trial = bytearray(raw)
                trial[place] ^= 1 << bit
                try:
                    segment = self._fmt.open_segment(bytes(trial), name)
                except CorruptionError:
                    continue
                if segment.start.position == len(raw):
                    return bytes(trial)
        return None

    # --- names

    def _name(self) -> None:
        """What each file should be called, by what it holds."""
        for held in self._held:
            content = self._content_base(held)
            if content is not None:
                held.base = content
        self._held.sort(key=lambda held: (held.base, held.files.base != held.base, -held.records))
        before: Held | None = None
        for held in self._held:
            if before is not None and held.base == before.base and held.dropped is None:
                same = len(held.data) == len(before.data) and kernel.crc32c(held.data) == kernel.crc32c(before.data)
                copied = "a copy of" if same else "it holds the same offsets as"
                held.dropped = f"{copied} {before.path}"
                continue
            before = held

    def _content_base(self, held: Held) -> int | None:
        """The base that the records speak for, if it is another than the name's. Doubt leaves the name as it is."""
        segment, found = held.segment, held.found
        if found is None or segment is None or not found.runs:
            return None
        name = held.base
        if name != (held.files.base or 0):
            return name  # the header says so
        if self._fmt.segment_header(0, 0) and self._fmt.capabilities.compaction:
            return None  # the header says that the name is right
        free = put_in_order(segment, found, 0, None)
        first = free.runs[0].first if free.runs else name
        if first == name or not free.runs or free.runs[0].start != segment.start.position:
            return None
        outside = sum(run.records for run in found.runs if run.first < name)
        if first < name:
            return first if 2 * outside > found.records else None
        if free.runs[0].rows == 1 and len(free.runs) > 1:
            return None
        if not self._fmt.capabilities.compaction or self._overlaps_another(held, name):
            return first
        return None

    def _overlaps_another(self, held: Held, base: int) -> bool:
        return any(
            other is not held and other.report.first_offset is not None and other.report.last_offset is not None
            and other.report.base_offset <= base <= other.report.last_offset
            for other in self._held
        )  # fmt: skip

    # --- what each segment keeps

    def _kept(self) -> list[Held]:
        return [held for held in self._held if held.dropped is None]

    def _bound(self) -> None:
        kept = self._kept()
        for number, held in enumerate(kept):
            following = kept[number + 1].base - 1 if number + 1 < len(kept) else None
            if following is not None and held.found is None and held.last > following:
                self._open(held)
            if held.found is None or held.segment is None:
                continue
            promised = self._evidence.promised_offset if following is None else None
            held.found = put_in_order(held.segment, held.found, held.base, following, promised)
            if self._strategy == Strategy.TRUNCATE:
                held.truncate()
            self._refuse_version(held)

    def _refuse_version(self, held: Held) -> None:
        """A version that nothing proves to be damage is left alone, with everything behind it."""
        found = held.found
        if found is None or found.version_at is None or self._strategy == Strategy.TRUNCATE:
            return
        if held.findings and any(f.code == "torn-tail" for f in held.findings):
            return
        self.plan.refused.append(
            f"{held.path}, byte {found.version_at}: unknown version. A newer program wrote it, or it is damaged: "
            "nothing of this file is changed; `--strategy truncate` cuts it"
        )
        held.found = None

    # --- steps for segments

    def _change_segments(self) -> None:
        kept = self._kept()
        for held in self._held:
            if held.dropped is not None:
                self._aside(held, held.dropped)
        for number, held in enumerate(kept):
            self._change_segment(held, is_last=number == len(kept) - 1)
        kept = self._kept()
        self._lose_between(kept)
        self._go_on(kept)

    def _aside(self, held: Held, why: str) -> None:
        held.dropped = why
        for file in (held.files.segment, *held.files.derived.values()):
            self.plan.steps.append(Step(Action.ASIDE, file.path, why, file.size_bytes))

    def _change_segment(self, held: Held, *, is_last: bool) -> None:
        found = held.found
        if found is None:
            return
        if not self._fmt.capabilities.compaction and found.runs and found.runs[0].first > held.base:
            self._lose(held.base, found.runs[0].first - 1, "no whole record holds them")
            held.base = found.runs[0].first  # the name is the first record's offset
        if not found.runs and not self._may_be_empty(held, is_last=is_last):
            self._aside(held, "no whole record is left in it")
            return
        name = self._fmt.segment_path(held.base)
        pieces, removed = held.pieces()
        for hole in found.holes:
            if hole.first >= held.base:
                self._lose(hole.first, hole.last, held.why_lost)
        why = held.summary(removed)
        common = {"size_bytes": len(held.data), "removed": tuple(removed), "mended": tuple(found.mended)}
        if name != held.path:
            reason = f"it holds offsets from {held.base} on"
            if held.is_whole(pieces):
                held.step = Step(Action.RENAME, held.path, reason, len(held.data), target=name, records=held.records)
            else:
                self.plan.steps.append(Step(Action.ASIDE, held.path, f"{reason}: see {name}", len(held.data)))
                held.step = Step(
                    Action.REWRITE, name, why, pieces=tuple(pieces), records=held.records, **common  # type: ignore[arg-type]
                )  # fmt: skip
            for file in held.files.derived.values():
                self.plan.steps.append(Step(Action.ASIDE, file.path, "its segment gets another name", file.size_bytes))
        elif held.is_whole(pieces):
            return
        elif len(pieces) == 1 and not pieces[0].data and pieces[0].start == 0:
            held.step = Step(
                Action.CUT, held.path, why, position=pieces[0].end, records=held.records, **common  # type: ignore[arg-type]
            )  # fmt: skip
        elif not pieces:
            held.step = Step(Action.CUT, held.path, why, position=0, records=0, **common)  # type: ignore[arg-type]
        else:
            held.step = Step(
                Action.REWRITE, held.path, why, pieces=tuple(pieces), records=held.records, **common  # type: ignore[arg-type]
            )  # fmt: skip
        self.plan.steps.append(held.step)

    def _may_be_empty(self, held: Held, *, is_last: bool) -> bool:
        """The last segment may hold nothing, if nothing in it was ever promised."""
        return is_last and (self._evidence.promised_offset or 0) <= held.base

    def _lose_between(self, kept: list[Held]) -> None:
        """Offsets between one segment and the next."""
        for before, after in pairwise(kept):
            first, last = before.last + 1, after.base - 1
            if first > last or before.is_left_alone:
                continue
            touched = before.found is not None or after.found is not None
            if touched or self._fmt.capabilities.lost_segments_show or self._evidence.sealed_within(first, last):
                self._lose(first, last, "no segment holds them")

    def _go_on(self, kept: list[Held]) -> None:
        """An offset that was promised is not given to another record: the log goes on behind it."""
        promised = self._evidence.promised_offset or 0
        following = kept[-1].last + 1 if kept else 0
        self.plan.next_offset = max(following, promised)
        if promised <= following:
            return
        first = following if kept else self._evidence.first_known_offset
        if first < promised:
            self._lose(first, promised - 1, "stored once, and in no whole record now")
        if kept and kept[-1].base >= promised:
            return
        previous = kept[-1].segment if kept else None
        if kept and previous is None:
            previous = self._fmt.open_segment(kept[-1].data, kept[-1].files.base)
        fmt = self._fmt if previous is None else self._fmt.continuing(previous)
        begun = bytes(fmt.begin_segment(promised, 0, previous).data)
        self.plan.steps.append(
            Step(
                Action.CREATE, self._fmt.segment_path(promised),
                "the log goes on here, so that no offset is given out twice",
                pieces=(Piece(data=begun),), base=promised, records=0,
            )
        )  # fmt: skip

    def _lose(self, first: int, last: int, why: str) -> None:
        if first <= last and covered(self._known, first, last) is None:
            self.plan.losses.append(Loss(first, last, why))

    # --- slots

    def _slots(self) -> None:
        if not self._held and self._evidence.promised_offset:
            self._all_slots_lost(self._evidence.promised_offset)
        for held in self._held:
            segment = self._fmt.open_segment(held.data, 0)
            assert isinstance(segment, SlotSegment)
            bad, good = bad_slots(segment)
            mended = mended_slots(segment, bad)
            bad = [slot for slot in bad if slot not in mended]
            promised = max(self._evidence.promised_offset or 0, good)
            lost = sorted({*bad, *range(good, promised)})
            self.plan.next_offset = promised
            if self._strategy == Strategy.TRUNCATE and bad:
                lost, promised, good = [], bad[0], bad[0]
                self.plan.next_offset = good
            tail = mended_slots(segment, range(good, promised))
            mended |= tail
            lost = [slot for slot in lost if slot not in tail]
            pieces, removed = filled(segment, held.path, lost, promised, mended)
            zeros = kernel.is_zero(held.data, good * segment.slot_bytes, len(held.data))
            if not lost and not mended and zeros and self._strategy == Strategy.SALVAGE:
                continue
            why = "damaged slots are filled, so that no other record moves" if lost else "the last write did not finish"
            if mended and not lost:
                why = "a record is put right" if len(mended) == 1 else f"{len(mended)} records are put right"
            if self._strategy == Strategy.TRUNCATE and bad:
                why = "cut at the first bad slot, as the format's document says"
                self._lose(bad[0], max(self._evidence.promised_offset or 0, held.last + 1) - 1, why)
            self._slot_step(held, pieces, removed, lost, promised * segment.slot_bytes, why, mended)

    def _all_slots_lost(self, promised: int) -> None:
        """The one file is gone: a new one of lost slots, so that no offset is given out twice."""
        path, segment = self._fmt.segment_path(0), self._fmt.open_segment(b"", 0)
        assert isinstance(segment, SlotSegment)
        pieces, _ = filled(segment, path, range(promised), promised, {})
        why = "the file is lost: the log goes on behind it, so that no offset is given out twice"
        self.plan.steps.append(Step(Action.CREATE, path, why, base=0, pieces=tuple(pieces)))
        self._lose(0, promised - 1, "stored once, and in no whole record now")
        self.plan.lost_slots = print_slots(range(promised))
        self.plan.next_offset = promised

    def _slot_step(
        self, held: Held, pieces: list[Piece], removed: list[Removed], lost: list[int], size: int, why: str,
        mended: dict[int, bytes],
    ) -> None:  # fmt: skip
        if not lost and not mended:
            step = Step(Action.CUT, held.path, why, len(held.data), size, removed=tuple(removed))
        else:
            lines = tuple(f"offset {slot}: a flipped bit of its checksum is put right" for slot in sorted(mended))
            step = Step(
                Action.REWRITE, held.path, why, len(held.data),
                removed=tuple(removed), pieces=tuple(pieces), mended=lines,
            )  # fmt: skip
            for slot in lost:
                self._lose(slot, slot, "the slot is damaged")
            known = parse_slots(self._fmt.options.get("lost_slots", ""))
            self.plan.lost_slots = print_slots({*known, *lost})
        self.plan.steps.append(step)
