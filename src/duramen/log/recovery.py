"""Recovery: from whatever a crash left to a log that can be appended to, without losing or inventing a record.

It runs whenever a log is opened for append. It reads the active segment, finds where its records end, judges that
place, and acts by the table below; sealed segments are checked by their names and sizes only. Every action is such
that a crash in the middle of it, and another recovery, end in the same state. Nothing is cut before a copy of it is on
the disk, and damage is never cut unless the caller asked for that.
"""

from __future__ import annotations

import posixpath
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from duramen import kernel
from duramen.disk import Disk
from duramen.disk.base import File, Kind, write_all
from duramen.errors import CorruptionError, IncompleteHeaderError
from duramen.formats import Format
from duramen.formats.base import Cursor, IndexBuilder, Role, Rows, Segment
from duramen.kernel.layout import Stop
from duramen.log.active import ActiveSegment
from duramen.log.beginning import has_not_begun
from duramen.log.directory import SUBDIRECTORIES, Directory, LogFile, SegmentFiles, list_log, refuse_foreign_sidecar
from duramen.log.ending import End, Ending, is_unfinished, judge_rows
from duramen.log.journal import refuse_unfinished
from duramen.log.pending import Pending
from duramen.log.sidecar import DIRECTORY, Sealed, SealedSum, Sidecar, Watermark, replace_file
from duramen.metrics import process as process_counters
from duramen.model import MAX_OFFSET

UNSYNCED_BYTES = 8 << 20
"""How much another program is taken to have left unsynced."""


class Case(StrEnum):
    FRESH = "fresh"
    CLEAN = "clean"
    ZEROS = "zeros"
    TORN = "torn tail"
    UNSYNCED = "unsynced pieces"
    UNPROVEN = "unproven tail"
    NEVER_BEGUN = "never begun"
    SEALED = "sealed"
    CONTINUED = "continued"
    INDEX = "index"
    LEFTOVER = "leftover"
    CHANGE = "unfinished change"
    UNCOMMITTED = "uncommitted transaction"
    COMMITTED = "committed transaction"
    CUT = "damage, cut on request"
    DAMAGE = "damage"


class Rule(NamedTuple):
    evidence: str
    action: str


TABLE: dict[Case, Rule] = {
    Case.FRESH: Rule("there is no segment, and nothing says that there was one", "begin the first segment"),
    Case.CLEAN: Rule("the records end where the file ends", "append behind them"),
    Case.ZEROS: Rule("the records end, and only zeros follow", "cut the zeros"),
    Case.TORN: Rule(
        "a record is not whole, no valid one follows, and nothing behind it was ever durable",
        "copy the bytes aside, cut them",
    ),
    Case.UNSYNCED: Rule(
        "a record is not whole and valid ones follow, but all behind the durable watermark, within what one unfinished "
        "write can span, in a log that was not closed",
        "copy the bytes aside, cut them: none of them was acknowledged as durable",
    ),
    Case.UNPROVEN: Rule(
        "bytes behind the watermark that no checksum can prove to be what was written",
        "copy the bytes aside, cut them",
    ),
    Case.NEVER_BEGUN: Rule(
        "the last segment has no whole file header, or not all of what it begins with, and no record in it was ever "
        "durable",
        "begin it anew",
    ),
    Case.CONTINUED: Rule(
        "the last segment is sealed, all of it is there, and another program went on behind it",
        "take it for the active one",
    ),
    Case.SEALED: Rule("the last segment is sealed", "begin a new one behind it"),
    Case.INDEX: Rule("an index is missing, short, long or wrong", "make it anew from the records"),
    Case.LEFTOVER: Rule("a temporary file of work that did not finish", "remove it"),
    Case.CHANGE: Rule("retention or compaction decided on a change and did not finish it", "finish it"),
    Case.UNCOMMITTED: Rule(
        "a transaction was under way, and its ledger does not know it",
        "take back everything behind its beginning; no copy: nobody was told that it was stored",
    ),
    Case.COMMITTED: Rule("a transaction was under way, and its ledger knows it", "show it to readers"),
    Case.CUT: Rule("damage, and the caller asked for it to be cut", "copy the bytes aside, cut them"),
    Case.DAMAGE: Rule(
        "a sealed segment is missing or has another size; a record is not whole and a valid one follows, or it lies "
        "below the durable watermark, or the version is unknown",
        "raise, change nothing",
    ),
}  # fmt: skip
"""Evidence → case → action. The first case whose evidence fits is taken; doubt counts as damage."""


CUTS = frozenset({Case.TORN, Case.UNSYNCED, Case.UNPROVEN, Case.CUT})
"""The cases in which something is cut off."""


class Step(NamedTuple):
    """What recovery met and did, in one place."""

    case: Case
    path: str
    detail: str = ""
    position: int | None = None

    def __str__(self) -> str:
        where = self.path if self.position is None else f"{self.path}, byte {self.position}"
        return f"{self.case}: {where}: {TABLE[self.case].action}{f' ({self.detail})' if self.detail else ''}"


def print_table() -> str:
    """The decision table for people.

    >>> print(print_table().splitlines()[0])
    fresh: there is no segment, and nothing says that there was one → begin the first segment
    """
    return "\n".join(f"{case}: {rule.evidence} → {rule.action}" for case, rule in TABLE.items())


@dataclass
class Recovered:
    """Where appending goes on. ``active`` is None where a new segment has to be begun at ``next_offset``."""

    fmt: Format
    next_offset: int
    active: ActiveSegment | None = None
    last_us: int = 0
    previous: Segment | None = None
    """The segment before the one that has to be begun."""
    segments: list[SegmentFiles] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    others: list[LogFile] = field(default_factory=list)
    is_as_closed: bool = False
    """Whether everything is as the last writer left it when it closed the log."""


class Recovery:
    """One run. `run` acts and answers; it raises `CorruptionError` without having changed anything that matters."""

    def __init__(
        self,
        disk: Disk,
        root: str,
        fmt: Format,
        sidecar: Sidecar,
        *,
        now_us: int,
        cut_damage: bool = False,
        settled: Pending | None = None,
    ) -> None:
        self._disk = disk
        self._now_ms = now_us // 1000
        self._root = root
        self._fmt = fmt
        self._sidecar = sidecar
        self._cut_damage = cut_damage
        self._steps: list[Step] = []
        if settled is not None:  # before anything else was looked at
            case = Case.UNCOMMITTED if settled.after is None else Case.COMMITTED
            self._steps.append(Step(case, root, f"batch {settled.key.batch} of {settled.key.writer}"))
        self._directory: Directory = list_log(disk, root, fmt)
        refuse_foreign_sidecar(disk, root, fmt, self._directory)
        self._agreed = self._agreed_sealed()
        self._sealed = sidecar.sealed() if self._agreed is None else {self._agreed.base: self._agreed}
        self._watermark = sidecar.watermark()

    def run(self) -> Recovered:
        refuse_unfinished(self._disk, self._root)
        self._settle()
        self._sweep()
        self._check_sealed()
        segments = self._directory.segments
        if not segments:
            return self._nothing()
        last = segments[-1]
        base = last.base or 0
        if base in self._sealed:
            entry = self._sealed[base]
            self._steps.append(Step(Case.SEALED, last.segment.path))
            return self._done(entry.last_offset + 1, None, previous=last)
        return self._last(last, base)

    # --- the whole log

    def _settle(self) -> None:
        """A killed process leaves names, and a line of the sealed segments, that can be seen and are not on the disk:
        what follows relies on them."""
        if self._watermark is not None and not self._watermark.is_open:
            return
        for path in ("", DIRECTORY, *SUBDIRECTORIES):
            full = posixpath.join(self._root, path) if path else self._root
            if self._disk.kind(full) == Kind.DIRECTORY:
                self._disk.sync_directory(full)
        self._sidecar.settle_sealed()

    def _sweep(self) -> None:
        for file in self._directory.others:
            if file.name.role == Role.LEFTOVER:
                path = self._directory.full(file.path)
                self._disk.remove(path)
                self._disk.sync_directory(posixpath.dirname(path))
                self._steps.append(Step(Case.LEFTOVER, file.path))

    def _agreed_sealed(self) -> Sealed | None:
        """The last sealed segment, where what its line says of all of them is what the directory holds. It stands for
        all then: the other lines need not be read."""
        known = self._sidecar.last_sealed()
        if known is None:
            return None
        entry, total = known
        there = self._directory.segments[: total.count]
        if not there or there[-1].base != entry.base:
            return None
        bases, sizes = [files.base or 0 for files in there], [files.segment.size_bytes for files in there]
        return entry if SealedSum().plus(bases, sizes) == total else None

    def _check_sealed(self) -> None:
        """Names and sizes against what is known of sealed segments."""
        if self._agreed is None:
            self._compare_sealed()
        mark, segments = self._watermark, self._directory.segments
        newest = (segments[-1].base or 0) if segments else -1
        if mark is not None and mark.base > newest and mark.durable_offset > mark.base:
            raise self._damage("the active segment is missing", self._fmt.segment_path(mark.base), None)

    def _compare_sealed(self) -> None:
        """One by one. A beginning that is gone was removed on purpose."""
        there = {files.base: files for files in self._directory.segments}
        oldest = min((base for base in there if base is not None), default=None)
        newest = max((base for base in there if base is not None), default=-1)
        continued = None
        for base, entry in self._sealed.items():
            found = there.get(base)
            if found is None:
                if oldest is None or base > oldest:
                    raise self._damage("a sealed segment is missing", self._fmt.segment_path(base), entry)
            elif base == newest and self._was_continued(found, entry):
                continued = found
            elif found.segment.size_bytes != entry.size_bytes:
                raise self._damage(
                    f"a sealed segment has {found.segment.size_bytes} bytes instead of {entry.size_bytes}",
                    found.segment.path,
                    entry,
                )
        if continued is not None:
            del self._sealed[newest]
            self._steps.append(Step(Case.CONTINUED, continued.segment.path))

    def _was_continued(self, files: SegmentFiles, entry: Sealed) -> bool:
        """Whether another program went on behind what was sealed: all of that is still there, and more."""
        if files.segment.size_bytes <= entry.size_bytes:
            return False
        data = self._disk.map(self._directory.full(files.segment.path)).data
        return kernel.crc32c(data[: entry.size_bytes]) == entry.crc32c

    def _damage(self, message: str, path: str, entry: Sealed | None) -> CorruptionError:
        hint = "restore it from a copy; `duramen repair` shows what can be done without"
        offset = None if entry is None else entry.base
        return CorruptionError(message, path=self._directory.full(path), offset=offset, hint=hint)

    def _nothing(self) -> Recovered:
        self._steps.append(Step(Case.FRESH, self._root))
        self._fmt = self._fmt.continuing(self._fmt.open_segment(b"", 0))
        return self._done(0, None)

    def _done(
        self, next_offset: int, active: ActiveSegment | None, *, previous: SegmentFiles | None = None, last_us: int = 0
    ) -> Recovered:
        opened = None if previous is None else self._open(previous)
        fmt = self._fmt if opened is None else self._fmt.continuing(opened)
        last_us = last_us or self._last_us(self._directory.segments)
        return Recovered(fmt, next_offset, active, last_us, opened, self._directory.segments, self._steps)

    def _last_us(self, segments: Sequence[SegmentFiles]) -> int:
        """The last time in these segments, behind which none may go back; 0 where there is none, or no such rule."""
        limits = self._fmt.capabilities
        if limits.timestamps is None or not limits.ordered_timestamps:
            return 0
        for files in reversed(segments):
            try:
                segment = self._open(files)
            except CorruptionError:
                return 0  # for `verify` to tell: sealed segments are not judged here
            last = None
            rows = segment.scan(self._near_end(files, segment), verify=False)
            while rows.count:
                last = rows
                rows = segment.scan(rows.cursor, verify=False)
            if last is not None:
                return max(0, int(last.columns.timestamp[-1])) * {"ms": 1000, "us": 1}[limits.timestamps]  # type: ignore[attr-defined]
        return 0

    def _near_end(self, files: SegmentFiles, segment: Segment) -> Cursor:
        """The last place that the index knows; the start of the segment without one."""
        found = files.derived.get(Role.INDEX)
        if found is not None:
            data = self._disk.map(self._directory.full(found.path)).data
            index = self._fmt.open_index(Role.INDEX, data, segment.base_offset)
            entry = None if index is None else index.floor(MAX_OFFSET)
            cursor = None if entry is None else segment.cursor_at(*entry)
            if cursor is not None:
                return cursor
        return segment.start

    def _open(self, files: SegmentFiles) -> Segment:
        path = self._directory.full(files.segment.path)
        try:
            return self._fmt.open_segment(self._disk.map(path).data, files.base)
        except CorruptionError as error:
            error.path = error.path or path
            raise

    # --- the last segment

    def _last(self, files: SegmentFiles, base: int) -> Recovered:
        path = self._directory.full(files.segment.path)
        data = self._disk.map(path).data
        mark = self._watermark if self._watermark is not None and self._watermark.base == base else None
        before = self._directory.segments[-2] if len(self._directory.segments) > 1 else None
        if before is not None and self._watermark is None:
            # Another program's log. What it is written in shows better in a segment that cannot be torn.
            self._fmt = self._fmt.continuing(self._open(before))
        if has_not_begun(self._fmt, data, base, None if before is None else self._open(before), self._watermark):
            return self._begin_anew(files, base, data, mark, before)
        try:
            segment = self._fmt.open_segment(data, base)
        except IncompleteHeaderError:
            return self._begin_anew(files, base, data, mark, before)
        except CorruptionError as error:
            error.path = error.path or path
            raise
        if not segment.start.position and self._fmt.segment_header(base, 0):
            return self._begin_anew(files, base, data, mark, before)
        return self._scan(files, base, segment, mark)

    def _begin_anew(
        self, files: SegmentFiles, base: int, data: memoryview, mark: Watermark | None, before: SegmentFiles | None
    ) -> Recovered:
        path = self._directory.full(files.segment.path)
        if mark is not None and mark.durable_offset > base:
            raise CorruptionError("the header of a segment with durable records is gone", path=path, position=0)
        if len(data) and not kernel.is_zero(data, 0, len(data)):
            self._sidecar.quarantine(f"{files.segment.path}@0", data)
        self._steps.append(Step(Case.NEVER_BEGUN, files.segment.path, position=0))
        previous = None if before is None else self._open(before)
        fmt = self._fmt if previous is None else self._fmt.continuing(previous)
        file = self._disk.open(path)
        file.truncate(0)
        index = fmt.index_builder(base, self._now_ms)
        active = ActiveSegment(self._disk, self._root, fmt, base, file, Cursor(0, base - 1), index)
        active.begin(fmt.begin_segment(base, self._now_ms, previous))
        self._disk.sync_directory(posixpath.dirname(path))
        last_us = self._last_us(self._directory.segments[:-1])
        return Recovered(
            fmt, active.cursor.previous_offset + 1, active, last_us, None, self._directory.segments, self._steps
        )

    def _scan(self, files: SegmentFiles, base: int, segment: Segment, mark: Watermark | None) -> Recovered:
        path = self._directory.full(files.segment.path)
        fmt = self._fmt.continuing(segment)
        whole, size = segment.buf, len(segment.buf)
        proven = self._proven(segment, mark, path)
        if proven is not None and proven < size:
            segment = self._fmt.open_segment(segment.buf[:proven], base)
        began = time.perf_counter()
        walk = _Walk(segment, fmt.index_builder(base, segment.created_ms), fmt)
        walk_s = time.perf_counter() - began
        case, cut = self._judge(walk.end, segment, mark, size, path)
        if proven is not None and proven < size and case in (Case.CLEAN, Case.ZEROS):
            case, cut = (Case.ZEROS if kernel.is_zero(whole, proven, size) else Case.UNPROVEN), True
        doubtful = cut and walk.in_doubt and walk.end.position > _durable(mark)
        if doubtful and case == Case.ZEROS:
            case = Case.TORN
        cursor = walk.finish(without_last=doubtful)
        position = cursor.position
        if cut and case != Case.ZEROS:
            self._sidecar.quarantine(f"{files.segment.path}@{position}", self._disk.map(path).data[position:])
        self._steps.append(Step(case, files.segment.path, walk.end.why if case != Case.CLEAN else "", position))
        file = self._disk.open(path)
        if cut:
            file.truncate(position)
        if cut or mark is None or mark.is_open:
            self._bring_to_disk(file, segment.buf[:position], mark)
        active = ActiveSegment(
            self._disk, self._root, fmt, base, file, cursor, walk.index,
            rows=walk.rows, records=walk.records,
            crc32c=0 if segment.record_checksum else kernel.crc32c(segment.buf[:position]),
            first_us=walk.first_us, start_position=segment.start.position,
        )  # fmt: skip
        self._mend_index(files, active, walk_s)
        last_us = self._last_us(self._directory.segments[:-1]) if walk.last_us is None else walk.last_us
        return Recovered(
            fmt, cursor.previous_offset + 1, active, last_us, None, self._directory.segments, self._steps,
            others=self._directory.others,
            is_as_closed=case == Case.CLEAN and self._is_as_closed(mark, position),
        )  # fmt: skip

    def _is_as_closed(self, mark: Watermark | None, position: int) -> bool:
        before = self._directory.segments[-2].base if len(self._directory.segments) > 1 else None
        agreed = None if self._agreed is None else self._agreed.base
        return before == agreed and mark is not None and not mark.is_open and mark.position == position

    def _bring_to_disk(self, file: File, kept: memoryview, mark: Watermark | None) -> None:
        """Write what was never known to be on the disk once more, and sync it. A sync alone is not enough: after one
        that failed, the operating system takes pages for clean that it never wrote, and still shows them."""
        doubtful_bytes = UNSYNCED_BYTES if mark is None else mark.unsynced_bytes
        start = max(_durable(mark), len(kept) - doubtful_bytes, 0)
        write_all(file, start, kept[start:])
        file.sync()

    def _proven(self, segment: Segment, mark: Watermark | None, path: str) -> int | None:
        """For records without a checksum, in a log that was not closed: up to where the watermark's checksum proves
        them. None where nothing has to be, or can be, proven."""
        if segment.record_checksum or mark is None or not mark.is_open:
            return None
        for position, crc in ((mark.position, mark.crc32c), (mark.durable_position, mark.durable_crc32c)):
            if position <= len(segment.buf) and kernel.crc32c(segment.buf[:position]) == crc:
                return position
        raise CorruptionError(
            "the segment is not what was written up to the durable watermark",
            path=path, position=mark.durable_position, hint="`duramen repair` shows what can be kept",
        )  # fmt: skip

    def _judge(self, end: End, segment: Segment, mark: Watermark | None, size: int, path: str) -> tuple[Case, bool]:
        """The case, and whether bytes are cut."""
        if end.position < _durable(mark):
            return self._refuse(end, path, f"{end.why}, below the durable watermark at byte {_durable(mark)}")
        if end.ending == Ending.CLEAN:
            return (Case.ZEROS, True) if end.stop == Stop.ZEROS else (Case.CLEAN, False)
        if end.ending == Ending.TORN:
            return Case.TORN, True
        if is_unfinished(end, segment, mark):
            return Case.UNSYNCED, True
        return self._refuse(end, path, end.why)

    def _refuse(self, end: End, path: str, why: str) -> tuple[Case, bool]:
        if self._cut_damage:
            return Case.CUT, True
        raise end._replace(why=why).error(path)

    # --- the index

    def _mend_index(self, files: SegmentFiles, active: ActiveSegment, walk_s: float) -> None:
        """Keep an index that is right, or right as far as it goes; replace any other. ``walk_s`` is how long the walk
        over the records took: a part of making an index, counted once for all that are made from it."""
        for role, wanted in active.index.build().items():
            name = self._fmt.path_of(role, active.base)
            path = posixpath.join(self._root, name)
            held = bytes(self._disk.map(path).data) if role in files.derived else None
            if held is None or not wanted.startswith(held):
                self._steps.append(Step(Case.INDEX, name))
                began = time.perf_counter()
                replace_file(self._disk, path, wanted, temporary=self._fmt.temporary_path(path))
                process_counters.rebuilt_index(walk_s + time.perf_counter() - began)
                held, walk_s = wanted, 0.0
            active.adopt_index(role, self._disk.open(path), len(held), wanted[len(held) :])


def _durable(mark: Watermark | None) -> int:
    return 0 if mark is None else mark.durable_position


class _Walk:
    """The records of the active segment from first to last: where they end, and what appending needs to know."""

    def __init__(self, segment: Segment, index: IndexBuilder, fmt: Format) -> None:
        self.index = index
        self.rows = 0
        self.records = 0
        self.first_us: int | None = None
        self.last_us: int | None = None
        self._us = {"ms": 1000, "us": 1, None: 0}[fmt.capabilities.timestamps]
        self._last: Rows | None = None
        cursor = segment.start
        while True:
            rows = segment.scan(cursor)
            if len(rows.columns):
                self._take()
                self._last = rows
            cursor = rows.cursor
            if rows.stop != Stop.LIMIT:
                break
        self.end = judge_rows(segment, rows, is_last=True)
        self.in_doubt = self._last is not None and segment.ends_in_doubt(self._last)

    def finish(self, *, without_last: bool) -> Cursor:
        """Where appending goes on, with or without the last row."""
        last = self._last
        if last is None or not without_last:
            self._take()
            return Cursor(self.end.position, self.end.previous_offset)
        kept = len(last.columns) - 1
        cursor = Cursor(int(last.columns.position[kept]), int(last.columns.first_offsets[kept]) - 1)
        self._last = Rows(last.columns.head(kept), kept, last.end)
        self._take()
        return cursor

    def _take(self) -> None:
        """Count the rows that were held back."""
        rows, self._last = self._last, None
        if rows is None:
            return
        self.index.add(rows)
        self.rows += len(rows.columns)
        self.records += rows.count
        times = getattr(rows.columns, "timestamp", None)
        if self._us and times is not None and len(times):
            self.first_us = int(times[0]) * self._us if self.first_us is None else self.first_us
            self.last_us = max(int(times.max()) * self._us, self.last_us or 0)
