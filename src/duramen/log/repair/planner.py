"""From what a log holds to a `Plan`: which records stay, which files change, what is lost. Reads only.

1. Every segment that `verify` has something to say about is walked (`salvage`), its file header put right first.
2. Segments are sorted by what they hold, not by what they are called: a file under a wrong name gets the right one,
   if no other has it.
3. Each segment keeps what belongs between its base and that of the next one.
4. Offsets that were promised and are lost at the end are never given out again: the log goes on behind them.
5. Whatever is derived (indexes, manifest, sidecar) is made anew where it does not fit.
"""

from __future__ import annotations

import copy
import posixpath
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from duramen import kernel
from duramen.disk import Disk
from duramen.errors import CorruptionError, IncompleteHeaderError, UnknownVersionError
from duramen.formats import Format
from duramen.formats.base import Role, Segment, Severity
from duramen.formats.fixed_slot import SlotSegment, parse_slots, print_slots
from duramen.log.directory import Directory, SegmentFiles, list_log, refuse_foreign_sidecar, while_files_go
from duramen.log.ending import Ending
from duramen.log.evidence import Evidence
from duramen.log.index_check import short_indexes
from duramen.log.losses import covered, read_losses
from duramen.log.repair.apply import in_order
from duramen.log.repair.plan import Action, Loss, Piece, Plan, Removed, Step, Strategy
from duramen.log.repair.salvage import Bad, Salvaged, put_in_order, walk
from duramen.log.repair.slots import bad_slots, filled, mended_slots
from duramen.log.report import Finding, Report, SegmentReport
from duramen.log.verify import Progress, check_log

HARMLESS = frozenset({
    "missing-index", "zero-tail", "sealed-continued", "offset-gap", "time-goes-backwards", "bad-tracking",
    "known-loss", "missing-segment",
})  # fmt: skip
"""What is said about a segment's file without a byte of it being in question."""
_INDEX_CODES = ("index", "wrong-index-entry")


@dataclass
class _Held:
    """A segment as the planner sees it."""

    files: SegmentFiles
    report: SegmentReport
    base: int
    """What the file holds; the name may say otherwise."""
    data: memoryview
    segment: Segment | None = None
    found: Salvaged | None = None
    """None: nothing about it is in question."""
    header: bytes | None = None
    """What its first bytes should be."""
    dropped: str | None = None
    findings: list[Finding] = field(default_factory=list)
    step: Step | None = None

    @property
    def path(self) -> str:
        return self.files.segment.path

    @property
    def last(self) -> int:
        """The last offset that it keeps; below its base where it keeps none."""
        if self.found is not None:
            return self.base - 1 if self.found.last is None else self.found.last
        return self.base - 1 if self.report.last_offset is None else self.report.last_offset

    @property
    def records(self) -> int:
        return self.report.records if self.found is None else self.found.records


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
        self._held: list[_Held] = []

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
            self._name()
            self._bound()
            self._change_segments()
        self._other_files()
        self._derive()
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
            held = _Held(files, report, files.base or 0, data, findings=by_path.get(report.path, []))
            if self._fmt.capabilities.segments and self._in_question(held):
                self._open(held)
            self._held.append(held)

    def _in_question(self, held: _Held) -> bool:
        codes = {finding.code for finding in held.findings} - HARMLESS
        return bool(codes) or held.report.ending not in (Ending.CLEAN, "")

    def _open(self, held: _Held) -> None:
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

    def _mend_header(self, held: _Held, name: int, error: CorruptionError) -> bool:
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
        before: _Held | None = None
        for held in self._held:
            if before is not None and held.base == before.base and held.dropped is None:
                same = len(held.data) == len(before.data) and kernel.crc32c(held.data) == kernel.crc32c(before.data)
                copied = "a copy of" if same else "it holds the same offsets as"
                held.dropped = f"{copied} {before.path}"
                continue
            before = held

    def _content_base(self, held: _Held) -> int | None:
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

    def _overlaps_another(self, held: _Held, base: int) -> bool:
        return any(
            other is not held and other.report.first_offset is not None and other.report.last_offset is not None
            and other.report.base_offset <= base <= other.report.last_offset
            for other in self._held
        )  # fmt: skip

    # --- what each segment keeps

    def _kept(self) -> list[_Held]:
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
                _truncate(held)
            self._refuse_version(held)

    def _refuse_version(self, held: _Held) -> None:
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

    def _aside(self, held: _Held, why: str) -> None:
        held.dropped = why
        for file in (held.files.segment, *held.files.derived.values()):
            self.plan.steps.append(Step(Action.ASIDE, file.path, why, file.size_bytes))

    def _change_segment(self, held: _Held, *, is_last: bool) -> None:
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
        pieces, removed = _pieces(held)
        for hole in found.holes:
            if hole.first >= held.base:
                self._lose(hole.first, hole.last, _why(found.bad))
        why = _summary(held, removed)
        common = {"size_bytes": len(held.data), "removed": tuple(removed), "mended": tuple(found.mended)}
        if name != held.path:
            reason = f"it holds offsets from {held.base} on"
            if _is_whole(pieces, held):
                held.step = Step(Action.RENAME, held.path, reason, len(held.data), target=name, records=held.records)
            else:
                self.plan.steps.append(Step(Action.ASIDE, held.path, f"{reason}: see {name}", len(held.data)))
                held.step = Step(
                    Action.REWRITE, name, why, pieces=tuple(pieces), records=held.records, **common  # type: ignore[arg-type]
                )  # fmt: skip
            for file in held.files.derived.values():
                self.plan.steps.append(Step(Action.ASIDE, file.path, "its segment gets another name", file.size_bytes))
        elif _is_whole(pieces, held):
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

    def _may_be_empty(self, held: _Held, *, is_last: bool) -> bool:
        """The last segment may hold nothing, if nothing in it was ever promised."""
        return is_last and (self._evidence.promised_offset or 0) <= held.base

    def _lose_between(self, kept: list[_Held]) -> None:
        """Offsets between one segment and the next."""
        for before, after in pairwise(kept):
            first, last = before.last + 1, after.base - 1
            if first > last:
                continue
            touched = before.found is not None or after.found is not None
            if touched or self._fmt.capabilities.lost_segments_show or self._evidence.sealed_within(first, last):
                self._lose(first, last, "no segment holds them")

    def _go_on(self, kept: list[_Held]) -> None:
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
        self, held: _Held, pieces: list[Piece], removed: list[Removed], lost: list[int], size: int, why: str,
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

    # --- the rest

    def _other_files(self) -> None:
        by_path: dict[str, list[Finding]] = {}
        for finding in self._report.findings:
            by_path.setdefault(finding.path, []).append(finding)
        for orphan in self._directory.orphans:
            self.plan.steps.append(
                Step(Action.ASIDE, orphan.path, f"{orphan.name.role} without a segment", orphan.size_bytes)
            )
        for file in self._directory.others:
            found = [f for f in by_path.get(self._full(file.path), []) if f.severity != Severity.NOTE]
            if file.name.role == Role.GROUP_DELTA and found and found[0].position:
                position = found[0].position
                removed = Removed(position, file.size_bytes, found[0].message)
                why = "the events before it stay: consumers may get again what was acknowledged behind it"
                self.plan.steps.append(Step(Action.CUT, file.path, why, file.size_bytes, position, removed=(removed,)))
            elif file.name.role in (Role.GROUP_SNAPSHOT, Role.GROUP_DELTA, Role.CHECKPOINT) and found:
                why = (
                    f"{found[0].message}: consumers start from what is left"
                    if "group" in file.name.role
                    else found[0].message
                )
                self.plan.steps.append(Step(Action.ASIDE, file.path, why, file.size_bytes))
        if self._strays:
            for name in self._directory.strays:
                self.plan.steps.append(
                    Step(
                        Action.ASIDE, name, "no file of this log, set aside as asked", self._disk.size(self._full(name))
                    )
                )

    def _derive(self) -> None:
        """Indexes, manifest and sidecar, where what they describe changes or they are wrong."""
        for held in self._kept():
            reasons = list(self._index_reasons(held))
            if reasons and self._fmt.index_builder(held.base, 0).headers():
                path = self._fmt.path_of(Role.INDEX, held.base)
                self.plan.steps.append(Step(Action.INDEX, path, reasons[0], base=held.base))
        for step in [step for step in self.plan.steps if step.action == Action.CREATE and step.base is not None]:
            if step.base is not None and self._fmt.index_builder(step.base, 0).headers():
                path = self._fmt.path_of(Role.INDEX, step.base)
                self.plan.steps.append(Step(Action.INDEX, path, "a new segment", base=step.base))
        self._close_last()
        bad = [f for f in self._report.findings if "manifest" in f.code and f.severity != Severity.NOTE]
        unknown = [f for f in bad if f.code == "unknown-manifest"]
        moved = any(step.action not in (Action.INDEX, Action.ASIDE) for step in self.plan.steps)
        for name in self._fmt.log_files([], 0):
            if bad or moved or any(self._fmt.segment_path(h.base) != h.path or h.dropped for h in self._held):
                why = bad[0].message if bad else "the segments change"
                self.plan.steps.append(Step(Action.MANIFEST, name, why))
                if unknown:
                    self.plan.notes.append(f"{name}: {unknown[0].message}: it is made anew from the records")
        stale = [f for f in self._report.findings if f.code in SIDECAR_CODES and f.severity == Severity.DAMAGE]
        if self.plan.steps or stale or self.plan.losses:
            why = stale[0].message if stale else "digests, watermark and known losses of the log as it will be"
            self.plan.steps.append(Step(Action.SIDECAR, ".duramen", why))
        if any(f.code == "digest-mismatch" for f in self._report.findings):
            self.plan.notes.append(
                "a segment is not what was written, and not all of it is covered by checksums: records that look whole "
                "are kept as they are"
            )

    def _close_last(self) -> None:
        """Behind a repair the log counts as closed, so that the end of its last index may not lag any more."""
        kept = self._kept()
        if not kept or not self.plan.steps or any(step.base == kept[-1].base for step in self.plan.steps):
            return
        held = kept[-1]
        if self._evidence.is_closed(held.report) or held.report.ending != Ending.CLEAN:
            return
        segment = self._fmt.open_segment(held.data, held.files.base)
        opened = {
            role: self._fmt.open_index(role, self._disk.map(self._full(file.path)).data, segment.base_offset)
            for role, file in held.files.derived.items()
        }
        indexes = {role: index for role, index in opened.items() if index is not None}
        if len(indexes) < len(opened) or any(short_indexes(self._evidence.described, segment, indexes)):
            path = self._fmt.path_of(Role.INDEX, held.base)
            self.plan.steps.append(Step(Action.INDEX, path, "it lacks entries for the last records", base=held.base))

    def _index_reasons(self, held: _Held) -> Iterator[str]:
        if held.step is not None:
            yield "its segment changes"
        paths = {self._full(file.path) for file in held.files.derived.values()}
        for finding in self._report.findings:
            if finding.path in paths or (finding.code == "missing-index" and finding.path == held.report.path):
                yield finding.message


SIDECAR_CODES = frozenset({
    "bad-sidecar", "sealed-size", "digest-mismatch", "missing-segment", "durable-records-missing",
    "watermark-disagrees", "manifest-ahead",
})  # fmt: skip


def _truncate(held: _Held) -> None:
    """Nothing behind the first bad place, as the formats' own documents say."""
    found = held.found
    if found is None or not found.bad:
        return
    first = min(bad.start for bad in found.bad)
    kept = [run for run in found.runs if run.end <= first and not run.patches]
    straight = []
    position = held.segment.start.position if held.segment is not None else 0
    for run in kept:
        if run.start != position:
            break
        straight.append(run)
        position = run.end
    found.runs = straight
    found.bad = [Bad(position, len(held.data), "everything from the first bad record on is cut, as asked")]
    found.holes, found.mended, found.version_at, found.ended_badly = [], [], None, True


def _pieces(held: _Held) -> tuple[list[Piece], list[Removed]]:
    """The new file as pieces of the old one, and what goes."""
    found, segment = held.found, held.segment
    assert found is not None
    start = segment.start.position if segment is not None else 0
    pieces: list[Piece] = []
    if segment is not None and start:
        pieces.append(Piece(data=held.header) if held.header is not None else Piece(held.path, 0, start))
    for run in found.runs:
        at = run.start
        for patch in sorted(run.patches):
            if at < patch.position:
                pieces.append(Piece(held.path, at, patch.position))
            pieces.append(Piece(data=patch.data))
            at = patch.position + len(patch.data)
        if at < run.end:
            pieces.append(Piece(held.path, at, run.end))
    merged: list[Piece] = []
    for piece in pieces:
        if merged and not piece.data and not merged[-1].data and merged[-1].end == piece.start:
            merged[-1] = merged[-1]._replace(end=piece.end)
        else:
            merged.append(piece)
    return merged, [Removed(bad.start, bad.end, bad.why) for bad in found.bad]


def _is_whole(pieces: list[Piece], held: _Held) -> bool:
    """Whether nothing changes, but for zeros at the end, which may stay."""
    if len(pieces) != 1 or pieces[0].data or pieces[0].start:
        return False
    return kernel.is_zero(held.data, pieces[0].end, len(held.data)) and not (held.found and held.found.bad)


def _why(bad: list[Bad]) -> str:
    return bad[0].why if bad else "no record holds them"


def _summary(held: _Held, removed: list[Removed]) -> str:
    """Why a segment changes, in a line."""
    parts = []
    if held.header is not None:
        parts.append("its file header is put right")
    if held.found is not None and held.found.mended:
        count = len(held.found.mended)
        parts.append("a record is put right" if count == 1 else f"{count} records are put right")
    if removed and held.found is not None and held.found.ended_badly and len(removed) == 1:
        parts.append(f"what is behind its last whole record goes{': the last write did not finish' * _torn(held)}")
    elif removed:
        parts.append("what is no record goes, everything else stays")
    return "; ".join(parts) or "its records are put in order"


def _torn(held: _Held) -> bool:
    """Whether nothing speaks against a write that did not finish."""
    damaged = any(finding.severity == Severity.DAMAGE for finding in held.findings)
    return held.report.ending == Ending.TORN and not damaged
