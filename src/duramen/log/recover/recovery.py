"""What recovery does: the actions that the table names. Each runs on the evidence of one log.

A crash in the middle of an action, followed by another recovery, ends in the same state. Recovery copies bytes aside,
and syncs the copy, before it cuts them.
"""

from __future__ import annotations

import posixpath
import time
from dataclasses import dataclass, field

from duramen import kernel
from duramen.disk import File, Kind, open_private, write_all
from duramen.formats import Format, ScanPosition, Segment
from duramen.log.recover.case import RecoveryCase, RecoveryStep
from duramen.log.recover.evidence import Evidence, TailScan
from duramen.log.recover.sealed_index import rebuild_sealed_indexes
from duramen.log.segments import (
    SUBDIRECTORIES,
    ActiveSegment,
    LogFile,
    SegmentFiles,
    digested_bytes,
)
from duramen.log.verify import damage
from duramen.metrics import process as process_counters
from duramen.sidecar import DIRECTORY, Watermark, replace_file

UNSYNCED_BYTES = 8 << 20
"""How many bytes another program is assumed to have left unsynced."""


@dataclass
class Recovered:
    """Where appending goes on. ``active`` is None where a new segment must be created at ``next_offset``."""

    fmt: Format
    next_offset: int
    active: ActiveSegment | None = None
    last_us: int = 0
    previous: Segment | None = None
    """The segment before the one to create."""
    segments: list[SegmentFiles] = field(default_factory=list)
    steps: list[RecoveryStep] = field(default_factory=list)
    others: list[LogFile] = field(default_factory=list)
    sealed: frozenset[int] = frozenset()
    """Bases of sealed segments that the sealed list has: all, or only the last if it agrees with the directory."""
    is_as_closed: bool = False
    """Whether everything is as the last writer left it when it closed the log."""


class Recovery:
    """The actions of one run. A deciding action sets ``recovered``."""

    def __init__(self, evidence: Evidence, *, now_us: int) -> None:
        self.evidence = evidence
        self.recovered: Recovered | None = None
        self.steps: list[RecoveryStep] = []
        self._now_ms = now_us // 1000
        self._disk = evidence.disk
        self._sidecar = evidence.sidecar

    def _note(self, case: RecoveryCase, path: str, detail: str = "", position: int | None = None) -> None:
        self.steps.append(RecoveryStep(case, path, detail, position))

    def _done(self, fmt: Format, next_offset: int, active: ActiveSegment | None, last_us: int) -> Recovered:
        segments, others = self.evidence.segments, self.evidence.directory.others
        sealed = frozenset(self.evidence.sealed)
        self.recovered = Recovered(fmt, next_offset, active, last_us, None, segments, self.steps, others, sealed)
        return self.recovered

    # --- before anything is decided

    def settle(self) -> None:
        """Sync the directories and the sealed list of a log that was not closed: a killed process may leave names and a
        line that are visible and not on the disk. Everything later relies on them."""
        mark, root = self.evidence.watermark, self.evidence.root
        if mark is not None and not mark.is_open:
            return
        for path in ("", DIRECTORY, *SUBDIRECTORIES):
            full = posixpath.join(root, path) if path else root
            if self._disk.kind(full) == Kind.DIRECTORY:
                self._disk.sync_directory(full)
        earlier = self.evidence.segments[:-1]
        self._sidecar.settle_sealed(earlier[-1].base if earlier else None)

    def note_file_swap(self) -> None:
        assert self.evidence.swap is not None
        self._note(RecoveryCase.CHANGE, self.evidence.root, self.evidence.swap.why)

    def note_tx(self, case: RecoveryCase) -> None:
        assert self.evidence.tx is not None
        key = self.evidence.tx.key
        self._note(case, self.evidence.root, f"batch {key.batch} of {key.writer}")

    def refuse(self) -> None:
        assert self.evidence.damage is not None
        raise self.evidence.damage

    def remove_leftovers(self) -> None:
        """Remove stale temporary files and, after a copy, indexes of segments that a power loss lost: the next segment
        takes the name of such an index, which would contradict it after another power loss."""
        e = self.evidence
        for file in e.early_indexes:
            self._sidecar.quarantine(file.path, self._disk.map(e.full(file.path)).data)
        for file in (*e.early_indexes, *e.temporary_files):
            path = e.full(file.path)
            self._disk.remove(path)
            self._disk.sync_directory(posixpath.dirname(path))
            self._note(RecoveryCase.LEFTOVER, file.path)

    def note_continued(self) -> None:
        self._note(RecoveryCase.CONTINUED, self.evidence.last.segment.path)

    def _copy_contradicted(self) -> None:
        """Copy aside the indexes and manifests that contradict the records, where the caller asked for damage to be
        cut: they will be rebuilt."""
        e = self.evidence
        if not e.cut_damage:
            return  # such a log was refused
        derived = {file.path for files in e.segments for file in files.derived.values()}
        derived |= {file.path for file in e.directory.others}
        found = {found.path for found in damage(self._disk, e.root, e.fmt, e.directory)}
        for path in sorted(path for path in derived if e.full(path) in found):
            self._sidecar.quarantine(path, self._disk.map(e.full(path)).data)

    # --- a log whose active segment is not walked

    def resume(self) -> None:
        """Go on where the last writer closed the log, with its digest and its index."""
        e, closing = self.evidence, self.evidence.clean_close
        assert closing is not None
        segment, files, mark = e.last_segment, e.last, closing.mark
        fmt = e.fmt.continuing(segment)
        index = fmt.index_builder(segment.base_offset, segment.created_ms)
        index.resume(closing.index_progress)
        active = ActiveSegment(
            self._disk, e.root, fmt, mark.base, open_private(self._disk, e.full(files.segment.path)),
            ScanPosition(mark.position, mark.next_offset - 1), index, rows=closing.rows, records=closing.records,
            crc32c=mark.crc32c, first_us=closing.first_us, start_position=segment.start.position,
        )  # fmt: skip
        for role, file in files.derived.items():
            size_bytes = file.size_bytes - len(index.ending().get(role, b""))
            file_of_index = open_private(self._disk, e.full(file.path))
            if size_bytes < file.size_bytes:  # it goes on
                file_of_index.truncate(size_bytes)
            active.adopt_index(role, file_of_index, size_bytes, b"")
        self._note(RecoveryCase.CLEAN, files.segment.path, position=mark.position)
        self._done(fmt, mark.next_offset, active, closing.last_us).is_as_closed = True

    def start_log(self) -> None:
        self._note(RecoveryCase.FRESH, self.evidence.root)
        fmt = self.evidence.fmt
        self._done(fmt.continuing(fmt.open_segment(b"", 0)), 0, None, 0)

    def follow_sealed(self) -> None:
        e = self.evidence
        assert e.last_sealed is not None
        self._copy_contradicted()
        self._note(RecoveryCase.SEALED, e.last.segment.path)
        previous = e.last_segment
        done = self._done(e.fmt.continuing(previous), e.last_sealed.last_offset + 1, None, e.last_us(e.segments))
        done.previous = previous

    def recreate_segment(self) -> None:
        """Write the start of the last segment again. Copies its bytes aside unless they are zeros."""
        e, files = self.evidence, self.evidence.last
        path = e.full(files.segment.path)
        self._copy_contradicted()
        if len(e.data) and not kernel.is_zero(e.data, 0, len(e.data)):
            self._sidecar.quarantine(f"{files.segment.path}@0", e.data)
        self._note(RecoveryCase.NEVER_BEGUN, files.segment.path, position=0)
        previous = None if e.before is None else e.open(e.before)
        fmt = e.fmt if previous is None else e.fmt.continuing(previous)
        for derived in files.derived.values():  # those of the old start would contradict the new one
            self._disk.remove(e.full(derived.path))
        if files.derived:
            self._disk.sync_directory(posixpath.dirname(path))
        file = open_private(self._disk, path)
        file.truncate(0)
        index = fmt.index_builder(e.base, self._now_ms)
        active = ActiveSegment(self._disk, e.root, fmt, e.base, file, ScanPosition(0, e.base - 1), index)
        active.begin(fmt.begin_segment(e.base, self._now_ms, previous))
        self._disk.sync_directory(posixpath.dirname(path))
        self._done(fmt, active.cursor.previous_offset + 1, active, e.last_us(e.segments[:-1]))

    # --- the end of the active segment

    def cut_damage(self) -> None:
        """Cut damage that the caller asked to cut. Where only the watermark contradicts the records, the copy is that
        of the whole segment."""
        e = self.evidence
        name = e.last.segment.path
        contradiction = None if e.is_damaged else e.contradiction
        tail = e.tail if contradiction is None else e.overruled_tail()
        cut = contradiction is None or tail.end.position < len(e.data)
        self._copy_contradicted()
        cursor = tail.finish(without_last=cut and tail.in_doubt and tail.end.position > e.durable_position)
        self._sidecar.quarantine_witness(f"{name}@{cursor.position}")
        start = cursor.position if contradiction is None else 0
        self._sidecar.quarantine(f"{name}@{start}", e.data[start:])
        self._note(
            RecoveryCase.CUT, name, tail.end.why if contradiction is None else contradiction.why, cursor.position
        )
        self._continue(tail, cursor, None, cut=cut)

    def keep(self, case: RecoveryCase, *, cut: bool = False, copy: bool = False) -> None:
        """Keep the records; cut what follows them if ``cut``, after a copy if ``copy``."""
        e = self.evidence
        self._copy_contradicted()
        cursor = e.tail.finish(without_last=copy and e.ends_in_doubt)
        if copy:
            self._sidecar.quarantine(f"{e.last.segment.path}@{cursor.position}", e.data[cursor.position :])
        self._note(case, e.last.segment.path, e.tail.end.why if cut else "", cursor.position)
        done = self._continue(e.tail, cursor, e.mark, cut=cut)
        is_closed = e.mark is not None and not e.mark.is_open and e.mark.position == cursor.position
        done.is_as_closed = not cut and is_closed and e.is_agreed_before

    def _continue(self, tail: TailScan, cursor: ScanPosition, digested: Watermark | None, *, cut: bool) -> Recovered:
        """Open the last segment for append at ``cursor``. ``digested`` is the watermark whose digest may be relied
        on."""
        e, segment = self.evidence, tail.segment
        file = open_private(self._disk, e.full(e.last.segment.path))
        if cut:
            file.truncate(cursor.position)
        if cut or e.mark is None or e.mark.is_open:
            self._write_again(file, segment.buf[: cursor.position])
        active = ActiveSegment(
            self._disk, e.root, tail.fmt, e.base, file, cursor, tail.index, rows=tail.rows, records=tail.records,
            crc32c=_digest(tail, digested, cursor.position), first_us=tail.first_us,
            start_position=segment.start.position,
        )  # fmt: skip
        e.compare_indexes(active.index.build(), active.index.ending())
        last_us = e.last_us(e.segments[:-1]) if tail.last_us is None else tail.last_us
        return self._done(tail.fmt, cursor.previous_offset + 1, active, last_us)

    def _write_again(self, file: File, kept: memoryview) -> None:
        """Write the bytes that were never known to be on the disk once more, and sync them. A sync alone is not enough:
        after one that failed, the operating system may count pages as clean that it never wrote."""
        mark = self.evidence.mark
        doubtful_bytes = UNSYNCED_BYTES if mark is None else mark.unsynced_bytes
        start = max(self.evidence.durable_position, len(kept) - doubtful_bytes, 0)
        write_all(file, start, kept[start:])
        file.sync()

    # --- the index

    def rebuild_indexes(self) -> None:
        """Replace every wrong index by the one that the records give. One that contradicts them is evidence, and is
        copied aside first."""
        e = self.evidence
        walk_s = e.tail.seconds  # a part of rebuilding an index, counted once
        for number, index in enumerate(e.indexes):
            if index.is_right:
                continue
            self._note(RecoveryCase.INDEX, index.name)
            if index.data and index.data[: len(index.wanted)] != index.wanted:
                self._sidecar.quarantine(index.name, index.data)
            began = time.perf_counter()
            path = e.full(index.name)
            replace_file(self._disk, path, index.wanted, temporary=e.fmt.temporary_path(path))
            process_counters.rebuilt_index(walk_s + time.perf_counter() - began)
            walk_s = 0.0
            e.indexes[number] = index._replace(data=memoryview(index.wanted))

    def rebuild_sealed(self) -> None:
        """Rebuild the indexes of sealed segments that are missing or have a wrong size."""
        e = self.evidence
        self.steps += rebuild_sealed_indexes(self._disk, e.root, e.fmt, self._sidecar, e.wrong_sealed_indexes)

    def adopt_indexes(self) -> None:
        """Have the active segment append to its indexes, which are right as far as they go."""
        active = None if self.recovered is None else self.recovered.active
        for index in self.evidence.indexes:
            assert active is not None
            assert index.data is not None
            file = open_private(self._disk, self.evidence.full(index.name))
            if index.is_complete:  # it goes on
                file.truncate(len(index.wanted))
            kept_bytes = min(len(index.data), len(index.wanted))
            active.adopt_index(index.role, file, kept_bytes, index.wanted[kept_bytes:])


def _digest(tail: TailScan, mark: Watermark | None, position: int) -> int:
    """The digest of the segment up to ``position``: the watermark's, which the bytes match, and what follows it."""
    if tail.fmt.capabilities.covers_all:
        return 0
    segment = tail.segment
    start = digested_bytes(segment.base_offset, mark, record_checksum=segment.record_checksum)
    if mark is None or not 0 < start <= position:
        return kernel.crc32c(segment.buf[:position])
    return kernel.crc32c(segment.buf[start:position], mark.durable_crc32c)
