"""Plan a repair: which records stay, which files change, what is lost. Reads only.

1. Correct the file header of every segment that `verify` complains about, and walk its records (`salvage`).
2. Identify segments by their contents, not their names: a file with a wrong name gets the right one, if it is free.
3. Keep in each segment what belongs between its base and that of the next one (`order`).
4. Never assign an acknowledged offset again: if such records are lost at the end, the log continues after them.
5. Rebuild derived files (indexes, manifest, sidecar) that do not fit (`derived`).
"""

from __future__ import annotations

import copy
import posixpath
from itertools import pairwise, zip_longest

from duramen.disk import Disk
from duramen.errors import CorruptionError, IncompleteHeaderError, UnknownVersionError
from duramen.formats import Format, Segment, Severity, SupportsGapFill
from duramen.log.repair.apply import in_order
from duramen.log.repair.claims import Ranges, held_by, merged, without
from duramen.log.repair.derived import DerivedFiles
from duramen.log.repair.displaced import Displaced
from duramen.log.repair.order import put_in_order
from duramen.log.repair.plan import (
    RIVALS,
    Plan,
    RecordLoss,
    RemovedRecords,
    RepairAction,
    RepairPiece,
    RepairStep,
    Strategy,
)
from duramen.log.repair.salvage import Bad, Salvaged, walk
from duramen.log.repair.segment_plan import SegmentPlan, Trust
from duramen.log.repair.slots import SlotPlanner
from duramen.log.segments import Directory, EndKind, list_log, refuse_foreign_sidecar, while_files_go
from duramen.log.verify import Finding, Progress, Report, SidecarEvidence, check_log
from duramen.sidecar import known_loss_of, read_known_losses

HARMLESS = frozenset({
    "missing-index", "zero-tail", "sealed-continued", "offset-gap", "time-goes-backwards", "bad-tracking",
    "known-loss", "missing-segment", "oldest-missing",
})  # fmt: skip
"""Findings that name a segment but do not question its bytes."""
_INDEX_CODES = ("records-lost", "records-replaced")
_GAP_CODES = ("missing-segment", "wrong-name", "oldest-missing")

NOTHING_LEFT = (
    "no file holds a record, and nothing says how many there were: restore the files from a copy. To start again at "
    "offset 0, move the directory away and create a new log with `duramen create`"
)
NOT_COUNTED = (
    "the active segment is missing, and nothing says how many records it held: their offsets are assigned "
    "again; restore it from a copy, if there is one"
)
NOTHING_PROMISED = "the file is missing; it held no acknowledged record, and the first append creates it"


def make_plan(
    disk: Disk,
    path: str,
    fmt: Format,
    strategy: Strategy,
    *,
    strays: bool = False,
    problem: Finding | None = None,
    progress: Progress | None = None,
    is_ours: bool = False,
) -> Plan:
    """Plan the repair of the log at ``path``. ``problem`` is a finding from the detection of its format. ``is_ours``:
    the caller holds the log's lock."""

    def plan() -> Plan:
        report = check_log(disk, path, fmt, progress, [] if problem is None else [problem], is_ours=is_ours)
        return RepairPlanner(disk, path, fmt, strategy, report, strays=strays).run()

    return while_files_go(disk, path, plan)


def _first_of(part: SegmentPlan) -> int:
    return part.found.runs[0].first if part.found is not None and part.found.runs else part.base


class RepairPlanner:
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
        self._evidence = SidecarEvidence(disk, path, fmt)
        self._report = report
        checked = {segment.path: segment for segment in report.segments}
        self._segments = [
            (files, checked[found])
            for files in self._directory.segments
            if (found := self._directory.full(files.segment.path)) in checked  # a writer may have started others since
        ]
        self._known = read_known_losses(disk, path)
        self.plan = Plan(path, fmt.name, strategy, findings=self._report.findings)
        self._parts: list[SegmentPlan] = []
        self._new: Ranges = []
        """The offsets that a new segment holds."""
        self._displaced: dict[str, Ranges] = {}
        """The offsets of the records that a file held before others took their place, by path."""
        self._known_end = 0
        """The offset up to which the log went, by files other than segments and indexes."""

    def run(self) -> Plan:
        elsewhere = [finding for finding in self._report.findings if finding.code == "not-a-file"]
        if elsewhere:  # it may be available again later: nothing is given up for it
            self.plan.refused += [f"{finding.path}: {finding.message}: {finding.action}" for finding in elsewhere]
            return self.plan
        self._fmt = self._dialect()
        self._look()
        if not self._fmt.capabilities.segments:
            self._plan_slots()
        else:
            if self._parts and self._parts[-1].is_left_alone:  # the end of the log is unknown
                return self.plan
            self._name()
            before = Displaced(self._disk, self._fmt, self._directory, self._evidence)
            self._displaced = {part.path: before.of(part) for part in self._parts}
            self._known_end = before.known_end()
            self._bound()
            self._change_segments()
        if not self._parts and not self.plan.steps:
            is_new = self._evidence.promised_offset == 0 and not self._evidence.lacks_active
            self.plan.refused.append(NOTHING_PROMISED if is_new else NOTHING_LEFT)
            return self.plan
        derived = DerivedFiles(self._disk, self._fmt, self._directory, self._evidence, self.plan)
        derived.set_aside(strays=self._strays)
        derived.rebuild(self._parts)
        self.plan.segments = [(part.base, part.last_taken) for part in self._kept()]
        self.plan.segments += [
            (step.base, step.base - 1)
            for step in self.plan.steps
            if step.action == RepairAction.CREATE and step.base is not None
        ]
        self._count_losses()
        self.plan.steps = in_order(self.plan.steps)
        if self._fmt.capabilities.segments:
            self.plan.kept_records = sum(part.records for part in self._parts if part.dropped is None)
        return self.plan

    def _full(self, path: str) -> str:
        return posixpath.join(self._root, path)

    # --- opening segments

    def _dialect(self) -> Format:
        """Return the format in the dialect of a sound segment; a damaged one may look like another dialect."""
        for files, report in self._segments:
            if report.ending == EndKind.CLEAN and report.records and not self._said_of(report.path):
                data = self._disk.map(self._full(files.segment.path)).data
                return self._continued(self._fmt.open_segment(data, files.base))
        return self._fmt

    def _continued(self, segment: Segment) -> Format:
        return self._fmt if self._fmt.is_only_read(segment) else self._fmt.continuing(segment)

    def _said_of(self, path: str) -> set[str]:
        return {finding.code for finding in self._report.findings if finding.path == path} - HARMLESS

    def _look(self) -> None:
        by_path: dict[str, list[Finding]] = {}
        for finding in self._report.findings:
            by_path.setdefault(finding.path, []).append(finding)
        for files, report in self._segments:
            data = self._disk.map(self._full(files.segment.path)).data
            part = SegmentPlan(files, report, files.base or 0, data, findings=by_path.get(report.path, []))
            if self._fmt.capabilities.segments and self._in_question(part):
                self._open(part)
            self._parts.append(part)

    def _in_question(self, part: SegmentPlan) -> bool:
        codes = {finding.code for finding in part.findings} - HARMLESS
        return bool(codes) or part.report.ending not in (EndKind.CLEAN, "")

    def _open(self, part: SegmentPlan) -> None:
        """Walk the records of a segment, with a corrected header if its own is damaged."""
        name = part.files.base or 0
        if not len(part.data):
            part.found = Salvaged()
            return
        try:
            part.segment = self._fmt.open_segment(part.data, name)
        except CorruptionError as error:
            if not self._mend_header(part, name, error):
                return
        segment = part.segment
        assert segment is not None
        part.base = segment.base_offset
        probe = segment.scan(segment.start._replace(previous_offset=-1), max_records=1)
        low = min(part.base, int(probe.columns.first_offsets[0])) if len(probe.columns) else part.base
        part.found = walk(segment, low)

    def _mend_header(self, part: SegmentPlan, name: int, error: CorruptionError) -> bool:
        """Correct the file header: it may belong to another name, have a flipped bit, or be overwritten."""
        try:
            part.segment = self._fmt.open_segment(part.data, None)
            return True
        except CorruptionError:
            pass
        length = len(self._fmt.segment_header(name, 0))
        if isinstance(error, IncompleteHeaderError) or len(part.data) < length:
            part.found = Salvaged([], [Bad(0, len(part.data), error.message)], end=len(part.data), ended_badly=True)
            return False
        header = self._flipped_header(bytes(part.data[:length]), name)
        if header is None and isinstance(error, UnknownVersionError):
            self.plan.refused.append(
                f"{part.path}: {error.message}: use the program that wrote it; this file is not changed"
            )
            part.is_left_alone = True
            return False
        part.header = header or self._fmt.segment_header(name, 0)
        opened = copy.copy(self._fmt.open_segment(part.header, name))
        opened.buf = part.data
        part.segment = opened
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
        """Decide the name of each file by its contents, and which of several files with the same records stays."""
        for part in self._parts:
            part.look(self._fmt)
        for part in self._parts:
            self._identify(part)
        self._parts.sort(key=lambda part: (-part.trust, -part.records, part.files.base != part.base, part.base))
        accepted: list[SegmentPlan] = []
        for part in self._parts:
            self._accept(part, accepted)
        self._parts.sort(key=lambda part: (part.base, part.dropped is not None))

    def _accept(self, part: SegmentPlan, accepted: list[SegmentPlan]) -> None:
        """Drop a file if others, trusted at least as much, hold all its offsets; otherwise keep it, under a name that
        none of them has."""
        known = merged(one for other in accepted for one in other.seen)
        if not part.seen:  # only its name counts, which may lie before records of another file
            known = merged((min(other.base, first), last) for other in accepted for first, last in other.seen)
        if not without(part.seen or [(part.base, part.base)], known):
            part.dropped = _why_dropped(part, accepted)
            return
        while (rival := next((other for other in accepted if other.base == part.base), None)) is not None:
            last = rival.base - 1 if rival.content is None else rival.content[1]
            if part.found is None:
                self._open(part)
            if part.content is None or part.content[1] <= last or part.segment is None or last < part.base:
                part.dropped = _why_dropped(part, [rival])
                return
            self._start_at(part, part.segment, last + 1)
        accepted.append(part)

    def _identify(self, part: SegmentPlan) -> None:
        """Decide the base of a file, and how far to trust it. In doubt the name stays."""
        sealed = self._sealed_as(part)
        if sealed is not None:
            part.base, part.trust = sealed, Trust.PROVEN
            return
        content = self._content_base(part)
        if content is not None:
            part.base = content
        is_expected = self._is_expected(part)
        if is_expected or (is_expected is None and part.base == part.files.base):
            part.trust = Trust.DOUBTED if _is_damaged(part) or not part.records else Trust.FITTING
        else:
            part.trust = Trust.DOUBTED

    def _is_expected(self, part: SegmentPlan) -> bool | None:
        """Whether the sidecar knows a segment with this base; None if it does not say."""
        mark = self._evidence.watermark
        if mark is None or part.base >= (self._evidence.promised_offset or 0):
            return None
        return part.base == mark.base

    def _sealed_as(self, part: SegmentPlan) -> int | None:
        """Return the base of the sealed segment that has the size and digests of this file; its own name first."""
        every = self._evidence.sealed
        if not len(part.data):
            return None
        if part.found is None and part.files.base in every:
            return part.files.base  # verify has compared the digests
        for base in sorted(every, key=lambda base: base != part.files.base):
            known = every[base]
            if known.size_bytes == len(part.data) and known.crc32c == part.crc32c and known.crc32 == part.crc32:
                return base
        return None

    def _content_base(self, part: SegmentPlan) -> int | None:
        """Return the base that the records imply, if it differs from the name. In doubt the name stays."""
        segment, found = part.segment, part.found
        if found is None or segment is None or not found.runs:
            return None
        name = part.base
        if name != (part.files.base or 0):
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
        if not self._fmt.capabilities.compaction or self._others_hold(part, name, first - 1):
            return first
        return None

    def _others_hold(self, part: SegmentPlan, first: int, last: int) -> bool:
        """Whether another file holds some of these offsets: then compaction did not remove them from this one."""
        contents = (other.content for other in self._parts if other is not part)
        return any(content is not None and content[0] <= last and first <= content[1] for content in contents)

    # --- bounds of segments

    def _kept(self) -> list[SegmentPlan]:
        return [part for part in self._parts if part.dropped is None]

    def _bound(self) -> None:
        """Keep in each segment what belongs between its neighbours. Records of two files stay in the one that is
        trusted more, or else in the later one."""
        for part in self._kept():
            low, high = self._room(part)
            if part.found is None and (part.last > (part.last if high is None else high) or part.base < low):
                self._open(part)
            if part.found is None or part.segment is None:
                continue
            if low > part.base:
                self._start_at(part, part.segment, low)
            promised = self._evidence.promised_offset if high is None else None
            part.found = put_in_order(part.segment, part.found, part.base, high, promised)
            if self._strategy == Strategy.TRUNCATE:
                part.truncate()
            self._refuse_version(part)

    def _start_at(self, part: SegmentPlan, segment: Segment, base: int) -> None:
        """Let a segment begin at a later offset; its file header may have to change."""
        new = self._fmt.segment_header(base, segment.created_ms)
        if new != self._fmt.segment_header(part.base, segment.created_ms):
            part.header = new
        part.base = base

    def _room(self, part: SegmentPlan) -> tuple[int, int | None]:
        """Return the first and the last offset that a segment may keep; None for no bound."""
        others = [other for other in self._kept() if other is not part]
        before = [o.last + 1 for o in others if o.base <= part.base and o.trust > part.trust]
        after = [o.base - 1 for o in others if o.base > part.base and (o.trust >= part.trust or not part.seen)]
        return max([part.base, *before]), min(after, default=None)

    def _refuse_version(self, part: SegmentPlan) -> None:
        """Refuse to change a file from an unknown version on, unless damage to it is proven."""
        found = part.found
        if found is None or found.version_at is None or self._strategy == Strategy.TRUNCATE:
            return
        if part.findings and any(f.code == "torn-tail" for f in part.findings):
            return
        self.plan.refused.append(
            f"{part.path}, byte {found.version_at}: unknown version. A newer program wrote it, or it is damaged: "
            "this file is not changed; `--strategy truncate` cuts it"
        )
        part.found, part.is_refused = None, True

    # --- steps for segments

    def _change_segments(self) -> None:
        kept = self._kept()
        for part in self._parts:
            if part.dropped is not None:
                self._aside(part, part.dropped)
        self._fill_gaps(kept)
        kept = self._kept()
        for number, part in enumerate(kept):
            self._change_segment(part, is_last=number == len(kept) - 1)
        kept = self._kept()
        self._lose_before(kept)
        self._lose_between(kept)
        self._continue_after(kept)

    def _fill_gaps(self, kept: list[SegmentPlan]) -> None:
        """Fill the offsets that are lost between two segments and after the last one, if the format has fillers. An
        empty segment between others is set aside: the filler has its offsets."""
        if not isinstance(self._fmt, SupportsGapFill):
            return
        for part in kept:
            is_needed = part is kept[-1] and self._promised(part.base) <= part.base
            if part.found is None and part.last < part.base and not part.is_left_alone and not is_needed:
                self._aside(part, "it holds no record")
        holding = [part for part in self._kept() if part.last >= part.base and not part.is_left_alone]
        for part, after in zip_longest(holding, holding[1:]):
            until = _first_of(after) if after is not None else max(self._promised(part.last + 1), self._kept()[-1].base)
            if until <= part.last + 1:
                continue
            if part.found is None:
                self._open(part)
            if part.found is not None and part.segment is not None:
                part.found = put_in_order(part.segment, part.found, part.base, until - 1)
                part.fill_until = until

    def _aside(self, part: SegmentPlan, why: str) -> None:
        part.dropped = why
        self.plan.add(RepairAction.ASIDE, part.path, why, part.files.segment.size_bytes)
        for file in part.files.derived.values():
            self.plan.add(RepairAction.ASIDE, file.path, "its segment is set aside", file.size_bytes)

    def _change_segment(self, part: SegmentPlan, *, is_last: bool) -> None:
        found = part.found
        if found is None:
            return
        if not self._fmt.capabilities.compaction and found.runs and found.runs[0].first > part.base:
            self._lose(part.base, found.runs[0].first - 1, "no whole record holds them")
            part.base = found.runs[0].first  # the name is the first record's offset
        if not found.runs and not self._may_be_empty(part, is_last=is_last):
            self._aside(part, "it holds no whole record")
            return
        name = self._fmt.segment_path(part.base)
        pieces, removed = part.pieces(self._fmt)
        for hole in found.holes:
            if hole.first >= part.base:
                self._lose(hole.first, hole.last, part.why_lost)
        step = self._segment_step(part, name, pieces, removed)
        if step is None:
            return
        if name != part.path:
            self._free_old_names(part, name, step)
        part.step = step
        self.plan.steps.append(step)

    def _segment_step(
        self, part: SegmentPlan, name: str, pieces: list[RepairPiece], removed: list[RemovedRecords]
    ) -> RepairStep | None:
        """Return the step that gives a segment its new name and contents; None if nothing changes."""
        assert part.found is not None
        size, why, mended = len(part.data), part.summary(removed), tuple(part.found.mended)
        if part.is_whole(pieces):
            if name == part.path:
                return None
            return RepairStep(RepairAction.RENAME, part.path, part.why_named, size, target=name, records=part.records)
        is_prefix = len(pieces) == 1 and not pieces[0].data and pieces[0].start == 0
        if name == part.path and (is_prefix or not pieces):
            position = pieces[0].end if pieces else 0
            return RepairStep(
                RepairAction.CUT, name, why, size, position,
                removed=tuple(removed), mended=mended, records=part.records,
            )  # fmt: skip
        return RepairStep(
            RepairAction.REWRITE, name, why, size,
            removed=tuple(removed), mended=mended, records=part.records, pieces=tuple(pieces),
        )  # fmt: skip

    def _free_old_names(self, part: SegmentPlan, name: str, step: RepairStep) -> None:
        """Set the derived files of a segment that gets another name aside, and its old file if it is rewritten."""
        if step.action != RepairAction.RENAME:
            self.plan.add(RepairAction.ASIDE, part.path, f"{part.why_named}: see {name}", len(part.data))
        for file in part.files.derived.values():
            self.plan.add(RepairAction.ASIDE, file.path, "its segment gets another name", file.size_bytes)

    def _may_be_empty(self, part: SegmentPlan, *, is_last: bool) -> bool:
        """Whether the segment may be empty: it is the last one, and none of its records was acknowledged."""
        return is_last and self._promised(part.base) <= part.base

    def _lose_before(self, kept: list[SegmentPlan]) -> None:
        """Record sealed offsets before the first segment as lost if a file still has the name of their segment: other
        bytes took its place. Without that file, retention or an operator may have removed them."""
        first = kept[0].base if kept else self._evidence.promised_offset or 0
        for part in self._parts:
            sealed = self._evidence.sealed.get(-1 if part.files.base is None else part.files.base)
            if sealed is not None and sealed.base < first:
                why = f"{part.path} held them when it was sealed, and no file does now"
                self._lose(sealed.base, min(sealed.last_offset, first - 1), why)

    def _lose_between(self, kept: list[SegmentPlan]) -> None:
        """Record the offsets between one segment and the next as lost."""
        for before, after in pairwise(kept):
            first, last = before.last + 1, after.base - 1
            if first > last or before.is_left_alone:
                continue
            touched = before.found is not None or after.found is not None
            if touched or self._fmt.capabilities.lost_segments_show or self._evidence.sealed_within(first, last):
                self._lose(first, last, "no segment holds them")

    def _continue_after(self, kept: list[SegmentPlan]) -> None:
        """Let the log continue after the last acknowledged offset, in a new segment if records are lost at the end."""
        following = kept[-1].last + 1 if kept else 0
        promised = self._promised(following)
        self.plan.next_offset = max(following, promised)
        if promised <= following:
            self.plan.notes += [NOT_COUNTED] if kept and self._evidence.lacks_active else []
            return
        first = following if kept else self._evidence.first_known_offset
        if first < promised:
            self._lose(first, promised - 1, "stored once, and in no whole record now")
        if kept and (kept[-1].base >= promised or kept[-1].fill_until == promised):
            return
        previous = kept[-1].segment if kept else None
        if kept and previous is None:
            previous = self._fmt.open_segment(kept[-1].data, kept[-1].files.base)
        fmt = self._fmt if previous is None else self._continued(previous)
        begun, base = bytes(fmt.begin_segment(promised, 0, previous).data), promised
        if not kept and first < promised:
            begun, base = self._begun_with_filler(first, promised) or (begun, base)
        self._new = held_by(fmt.open_segment(begun, base))
        self.plan.next_offset = max([promised, *(last + 1 for _, last in self._new)])
        self.plan.steps.append(
            RepairStep(
                RepairAction.CREATE, self._fmt.segment_path(base),
                "the log continues here, so that no offset is assigned twice",
                pieces=(RepairPiece(data=begun),), base=base, records=0,
            )
        )  # fmt: skip

    def _begun_with_filler(self, first: int, promised: int) -> tuple[bytes, int] | None:
        """Return a segment of a filler alone, if all others are lost. In an empty one RabbitMQ would start at 0."""
        if not isinstance(self._fmt, SupportsGapFill):
            return None
        begun = self._fmt.begin_segment(first, 0, None)
        return bytes(begun.data) + bytes(self._fmt.fill_gap(begun.rows.cursor, promised, 0).data), first

    def _promised(self, following: int) -> int:
        """Return the offset after the last record that the log is known to have held: by the sidecar, the manifest, an
        index that names records after the end, Kafka's state files, and whole records that continue from the new end
        of the log."""
        named = [last + 1 for _, last in self._named()]
        promised = max([self._evidence.promised_offset or 0, self._known_end, *named])
        if self._strategy == Strategy.TRUNCATE:
            return promised
        ranges = [one for part in self._parts for one in part.seen]
        return max([promised, *(last + 1 for first, last in ranges if first <= following <= last)])

    def _named(self) -> Ranges:
        """Return the offsets of records that an index or the manifest names and their segment does not hold."""
        found = [
            (one.first_offset, one.last_offset)
            for one in self._report.findings
            if one.code in _INDEX_CODES and one.first_offset is not None and one.last_offset is not None
        ]
        return [*found, *(one for ranges in self._displaced.values() for one in ranges)]

    def _count_losses(self) -> None:
        """Record the offsets of whole records that no segment will hold as lost, if they are not yet."""
        if not self._fmt.capabilities.segments or any(part.is_left_alone for part in self._parts):
            return
        self.plan.held = merged([*self._new, *(one for part in self._parts for one in part.taken(self._fmt))])
        counted = [one for part in self._parts for one in part.kept]
        counted += [(loss.first, loss.last) for loss in self.plan.losses]
        for part in self._parts:
            for first, last in without(part.seen, merged(counted)):
                if first < self.plan.next_offset:
                    self._lose(first, last, part.dropped or part.why_lost)
                    counted.append((first, last))
        for first, last in without(merged(self._named()), merged([*self.plan.held, *counted])):
            self._lose(first, last, "the index names them, and no record holds them")
        for part in self._kept():
            self._note_replaced(part)
        self._note_gaps(merged([*self.plan.held, *counted, *((loss.first, loss.last) for loss in self.plan.losses)]))

    def _note_replaced(self, part: SegmentPlan) -> None:
        """List offsets at which a segment that keeps its name holds other records than its index names."""
        paths = [self._directory.full(file.path) for file in part.files.derived.values()]
        for one in self._report.findings:
            if one.code == "records-replaced" and one.path in paths and part.base == part.files.base:
                named = [(one.first_offset or 0, one.last_offset or 0)]
                self.plan.replaced += without(named, without(named, part.kept))
        named = self._displaced.get(part.path, [])
        self.plan.replaced += without(without(named, without(named, part.kept)), self.plan.replaced)

    def _note_gaps(self, explained: Ranges) -> None:
        """List offsets that no file holds and that may never have held a record."""
        named = [f for f in self._report.findings if f.code in _GAP_CODES]
        gaps = [
            (f.first_offset, f.last_offset) for f in named if f.first_offset is not None and f.last_offset is not None
        ]
        missing = without(merged(one for one in gaps if one[0] <= one[1]), explained)
        self.plan.unexplained = [one for one in missing if known_loss_of(self._known, *one) is None]

    def _lose(self, first: int, last: int, why: str) -> None:
        is_listed = any(loss.first <= first and last <= loss.last for loss in self.plan.losses)
        if first <= last and not is_listed and known_loss_of(self._known, first, last) is None:
            self.plan.losses.append(RecordLoss(first, last, why))

    def _plan_slots(self) -> None:
        slots = SlotPlanner(self._fmt, self._strategy, self._evidence.promised_offset or 0, self.plan, self._lose)
        if not self._parts and self._evidence.promised_offset:
            slots.create()
        for part in self._parts:
            slots.change(part)


def _is_damaged(part: SegmentPlan) -> bool:
    """Whether the file is damaged. An overlap alone does not say which of two files is."""
    return any(f.severity == Severity.DAMAGE and f.code != "overlapping-segments" for f in part.findings)


def _why_dropped(part: SegmentPlan, accepted: list[SegmentPlan]) -> str:
    """Explain why a file is dropped, naming one that holds the same offsets."""
    if not part.seen:
        return f"it holds no record; {accepted[0].path} holds the offsets of its name"
    same = [one for one in accepted if len(one.data) == len(part.data) and one.crc32c == part.crc32c]
    if same:
        return f"a copy of {same[0].path}"
    first, last = part.seen[0][0], part.seen[-1][1]
    rival = next((one for one in accepted if any(start <= last and first <= end for start, end in one.seen)), None)
    if rival is None:
        return f"it holds none of the offsets of its name; {accepted[0].path} does"
    reason = "is what was sealed" if rival.trust == Trust.PROVEN else "fits better"
    return f"{RIVALS} {rival.path}, which {reason}"
