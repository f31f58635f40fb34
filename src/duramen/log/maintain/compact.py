"""Compaction: rewrite sealed segments without the records that a newer record of the same key replaces.

The records that stay keep their offsets, times and bytes. The active segment is neither read nor changed.

1. The first pass reads the keys and finds which offsets stay (`survivors`).
2. The second pass rewrites, oldest first, each segment that loses a record: the new file is written next to the old
   one, synced, and swapped in (`segment_swap`).

A crash leaves every segment either old or new; both hold the newest record of every key.

A *tombstone* is a record with a key and a null or empty value: it deletes the key. It stays for a delay, so that every
reader can see it. If records have no time, its age is unknown and it stays, unless the delay is 0.

A format may have rules of its own (`duramen.formats.SupportsCleaner`); `RecordCleaner` has those of all others.
Refuses formats whose records cannot be left out one by one.
"""

from __future__ import annotations

import contextlib
import logging
import posixpath
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from duramen.arguments import check_choice, check_int, check_number, check_path
from duramen.errors import CorruptionError, DuramenError, UsageError, printable
from duramen.formats import Cleaner, Format, KeyOf, Rows, ScanPosition, Segment, SupportsCleaner, extractor
from duramen.kernel import Stop
from duramen.log.maintain.maintained_log import MaintainedLog, PlannedLog
from duramen.log.maintain.record_cleaner import RecordCleaner, cleaner_for
from duramen.log.maintain.retention import newest_us
from duramen.log.maintain.segment_swap import all_needs, swap_segment, write_state
from duramen.log.maintain.survivors import Keyed, Survivors, find_survivors
from duramen.log.segments import (
    BuiltSegment,
    Directory,
    Seals,
    SegmentBuilder,
    SegmentFiles,
    classify_rows,
    remove_tree,
    while_files_go,
)
from duramen.log.verify import damage_below, damage_error
from duramen.sidecar import COMPACTING_NAME, DIRECTORY, Need, read_compaction_state

logger = logging.getLogger(__package__)

STAGING = posixpath.join(DIRECTORY, COMPACTING_NAME)
DEFAULT_MEMORY_BYTES = 128 << 20
DAY_MS = 86_400_000

Progress = Callable[[int], None]
"""Called with the number of bytes read since the last call; each sealed byte is read twice."""


@dataclass(frozen=True)
class Compaction:
    """Settings of a compaction.

    >>> Compaction(key="delimiter:=").key
    'delimiter:='
    """

    key: str | KeyOf = "key"
    """Where the key of a record is: see `duramen.formats.key_field`."""
    keyless: str = "keep"
    """What to do with records without a key: ``keep`` or ``drop``."""
    tombstone_delay_ms: int = DAY_MS
    min_lag_ms: int = 0
    """A segment with a record younger than this is not compacted, nor any segment after it."""
    min_dirty_ratio: float = 0.0
    """Compact only if at least this fraction of the sealed bytes is new since the last compaction."""
    memory_bytes: int = DEFAULT_MEMORY_BYTES
    spill: str | None = None
    """Directory for temporary files; the system's default if not given."""

    def __post_init__(self) -> None:
        check_choice("keyless", self.keyless, ("keep", "drop"))
        check_int("tombstone_delay_ms", self.tombstone_delay_ms)
        check_int("min_lag_ms", self.min_lag_ms)
        check_number("min_dirty_ratio", self.min_dirty_ratio, most=1)
        check_int("memory_bytes", self.memory_bytes, least=4096)
        if self.spill is not None:
            check_path(self.spill)


def check_compaction(fmt: Format, how: Compaction, path: str) -> None:
    """Raise `UsageError` if a log of this format cannot be compacted with these settings."""
    if not fmt.capabilities.compaction:
        raise UsageError(
            f"this {fmt.name} log cannot be compacted: its records do not carry their offsets one by one",
            path=path,
            hint="convert it to a format that can: keratin, durable-log, rustlog or kafka",
        )
    extractor(fmt, how.key)


@dataclass
class CompactionReport:
    """What a compaction did, or what a dry run would do."""

    segments: int = 0
    rewritten: int = 0
    removed: int = 0
    """Segments that lost every record."""
    records_before: int = 0
    records_after: int = 0
    keys: int = 0
    keyless: int = 0
    tombstones_removed: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    held_by: list[Need] = field(default_factory=list)
    """The consumers that still need a segment; it was not compacted, nor any segment after it."""
    note: str = ""
    """Why nothing was done; empty otherwise."""

    @property
    def changed(self) -> bool:
        return self.records_after < self.records_before or self.bytes_after != self.bytes_before or self.rewritten > 0


@dataclass
class _CompactionInput:
    """A segment after the first pass."""

    files: SegmentFiles
    next_base: int
    records: int = 0
    tombstones: list[npt.NDArray[np.int64]] = field(default_factory=list)
    """Offsets of tombstones that are old enough to remove."""
    may_change: bool = False
    """Whether the format's rules may change it, although it keeps every record."""


def plan_compaction(log: PlannedLog, how: Compaction, progress: Progress | None = None) -> CompactionReport:
    """Return what a compaction would do now to a log that is open for reading or writing. Changes nothing. Plans again
    if the log's writer removed a segment meanwhile."""
    now_us = time.time_ns() // 1000
    return while_files_go(log.disk, log.path, lambda: Compactor(log, how, now_us, progress).run())


class Compactor:
    """One compaction of ``log``. ``writer`` is the same log, open for writing; without it this is a dry run."""

    def __init__(
        self, log: PlannedLog, how: Compaction, now_us: int, progress: Progress | None = None,
        *, writer: MaintainedLog | None = None,
    ) -> None:  # fmt: skip
        check_compaction(log.codec, how, log.path)
        self._fmt = log.codec
        self._log = log
        self._writer = writer
        self._how = how
        self._now_us = now_us
        self._columns, self._keys_of = extractor(self._fmt, how.key)
        self._progress = progress or (lambda read_bytes: None)
        self._report = CompactionReport()
        self._seals = Seals(log.disk, log.path, self._fmt)
        self._cleaner: Cleaner = RecordCleaner(self._fmt, now_us, how.tombstone_delay_ms)

    def run(self) -> CompactionReport:
        writer = self._writer
        directory = self._log.committed_directory()
        self._cleaner = self._cleaner_for(directory)
        found = self._cleanable(directory)
        report = self._report
        report.segments = len(found)
        report.bytes_before = report.bytes_after = sum(each.files.segment.size_bytes for each in found)
        if not found:
            holder = f": {report.held_by[0]}" if report.held_by else ""
            report.note = f"no sealed segment to compact{holder}"
            return report
        dirty = self._dirty_ratio(found)
        if dirty < self._how.min_dirty_ratio:
            report.note = f"{dirty:.0%} of the bytes are new, less than {self._how.min_dirty_ratio:.0%}"
            return report
        until = found[-1].next_base
        for finding in damage_below(self._log.disk, self._log.path, self._fmt, directory, until, reads_sealed=False):
            raise damage_error(finding)
        import tempfile  # slow to import, and only compaction needs it

        try:
            with tempfile.TemporaryDirectory(prefix="duramen-compaction-", dir=self._how.spill) as spill:
                until = self._compact(directory, found, spill, writer)
        finally:
            # A swap that was committed and failed half-way needs the staged files: the next open replays it.
            if writer is not None and not writer.is_poisoned:
                with contextlib.suppress(DuramenError):  # the next compaction removes it
                    remove_tree(writer.disk, posixpath.join(writer.path, STAGING))
        if not report.changed:
            held = f" (limited by {report.held_by[0]})" if report.held_by else ""
            report.note = f"every key occurs once: nothing to remove{held}"
        if writer is not None:
            writer.counters.compaction_records += report.records_before - report.records_after
            state = read_compaction_state(writer.disk, writer.path)
            write_state(writer, state._replace(cleaned_until=until, begun_until=until, at_us=self._now_us))
            removed = report.records_before - report.records_after
            extra = {"path": writer.path, "offset": until, "records": removed, "segments": report.rewritten}
            logger.info("compaction removed %d records of %s", removed, printable(writer.path), extra=extra)
        return report

    def _cleaner_for(self, directory: Directory) -> Cleaner:
        try:
            return cleaner_for(self._fmt, self._opened(directory), self._now_us, self._how.tombstone_delay_ms)
        except DuramenError as error:
            error.path = error.path or self._log.path
            raise

    def _opened(self, directory: Directory) -> Iterator[Segment]:
        for files in directory.segments:
            path = directory.full(files.segment.path)
            data = self._log.disk.map(path).data[: files.segment.size_bytes]
            try:
                yield self._fmt.open_segment(data, files.base)
            except CorruptionError as error:
                error.path = error.path or path
                raise

    # --- what may be compacted

    def _cleanable(self, directory: Directory) -> list[_CompactionInput]:
        """Return the oldest sealed segments, up to the first that is too young or that a consumer still needs."""
        needs = all_needs(self._log, self._now_us) if len(directory.segments) > 1 else []
        found: list[_CompactionInput] = []
        for files, following in pairwise(directory.segments):
            next_base = following.base or 0
            self._report.held_by = [need for need in needs if need.offset < next_base]
            if self._report.held_by or (self._cleaner.until is not None and next_base > self._cleaner.until):
                break
            if self._how.min_lag_ms and self._fmt.capabilities.timestamps is not None:
                youngest_us = self._now_us - self._how.min_lag_ms * 1000
                newest = newest_us(self._log.disk, self._fmt, directory, files, youngest_us)
                if newest is not None and newest > youngest_us:
                    break
            found.append(_CompactionInput(files, next_base))
        return found

    def _dirty_ratio(self, found: list[_CompactionInput]) -> float:
        cleaned_until = read_compaction_state(self._log.disk, self._log.path).cleaned_until
        total = sum(each.files.segment.size_bytes for each in found)
        dirty = sum(each.files.segment.size_bytes for each in found if each.next_base > cleaned_until)
        return dirty / total if total else 0.0

    # --- the two passes

    def _compact(
        self, directory: Directory, found: list[_CompactionInput], spill: str, writer: MaintainedLog | None
    ) -> int:
        """Run both passes. Returns the offset up to which the log is now compacted."""
        report, how = self._report, self._how
        first, last = found[0].files.base or 0, found[-1].next_base - 1
        self._cleaner.begin(first, found[-1].files.base or 0)
        survivors = Survivors(first, last, spill, how.memory_bytes)
        keyed = self._keyed(directory, found)
        report.keys, report.keyless = find_survivors(
            keyed, survivors, spill, how.memory_bytes, keep_keyless=how.keyless == "keep"
        )
        if writer is not None:  # before the first gap exists, so that `verify` can explain it
            before = read_compaction_state(writer.disk, writer.path)
            write_state(writer, before._replace(begun_until=last + 1, at_us=self._now_us))
        for number, each in enumerate(found):
            dropped = _dropped(each, survivors)
            survivors.remove(dropped)
            kept = survivors.count(each.files.base or 0, each.next_base - 1)
            size = each.files.segment.size_bytes
            is_changed = kept < each.records or (each.may_change and self._changes(directory, each, survivors))
            has_rest = kept > 0 or self._cleaner.keeps_state
            if is_changed and writer is None:
                report.bytes_after -= size - (self._kept_bytes(directory, each, survivors) if has_rest else 0)
            elif is_changed and writer is not None:
                holders = [need for need in all_needs(writer, self._now_us) if need.offset < each.next_base]
                if holders:  # they appeared during the first pass
                    report.held_by = holders
                    report.records_after += sum(rest.records for rest in found[number:])
                    return each.files.base or 0
                built = self._rewrite(directory, each, survivors) if has_rest else None
                self._replace(writer, directory, each, built)
            report.tombstones_removed += len(dropped)
            report.records_after += kept
            self._progress(size)
        return found[-1].next_base

    def _keyed(self, directory: Directory, found: list[_CompactionInput]) -> Iterator[Keyed]:
        columns = tuple(dict.fromkeys(("offset", *self._cleaner.columns, *self._columns)))
        for each in found:
            for segment, rows in self._scan(directory, each):
                each.records += rows.count
                batch = segment.decode(rows, columns)
                offsets = batch.column("offset").to_numpy()
                keys = self._keys_of(batch)
                examined = self._cleaner.examine(rows, batch)
                each.may_change = each.may_change or examined.may_change
                if examined.expired.any():
                    has_key = keys.is_valid().to_numpy(zero_copy_only=False)
                    each.tombstones.append(offsets[examined.expired & has_key])
                yield Keyed(offsets, keys)
            self._report.records_before += each.records
            self._progress(each.files.segment.size_bytes)

    def _scan(self, directory: Directory, each: _CompactionInput) -> Iterator[tuple[Segment, Rows]]:
        """Yield the rows of a segment. Raises on damage, at the latest after the last row (the digest)."""
        path, base = directory.full(each.files.segment.path), each.files.base
        data = self._log.disk.map(path).data
        sealed = self._seals.scan(base or 0, path, data)
        try:
            segment = self._cleaner.fmt.open_segment(data, base)
        except CorruptionError as error:
            error.path = error.path or path
            raise
        for rows in sealed.steps(segment):
            self._log.check_going_on()
            if len(rows.columns):
                if rows.end.last_offset >= each.next_base:  # damage that no checksum shows until the digest does
                    raise _foreign_offset(path, rows, each.next_base)
                yield segment, rows
        if rows.stop not in (Stop.END, Stop.ZEROS):
            raise classify_rows(segment, rows, is_last=False).error(path)
        sealed.check()

    def _kept_bytes(self, directory: Directory, each: _CompactionInput, survivors: Survivors) -> int:
        total = 0
        for segment, rows in self._scan(directory, each):
            total = total or segment.start.position
            total += len(self._cleaner.select(segment, rows, survivors.has, ScanPosition(0, -1)).data)
        return total

    def _changes(self, directory: Directory, each: _CompactionInput, survivors: Survivors) -> bool:
        steps = self._scan(directory, each)
        return any(self._cleaner.changes(segment, rows, survivors.has) for segment, rows in steps)

    def _replace(
        self, writer: MaintainedLog, directory: Directory, each: _CompactionInput, built: BuiltSegment | None
    ) -> None:
        report, old_bytes = self._report, each.files.segment.size_bytes
        base, state = each.files.base or 0, {}
        if built is not None:
            state = self._cleaner.state_of(base)
        swap_segment(writer, each.files, built, STAGING, state, _stale(self._fmt, directory, base, built, state))
        report.bytes_after -= old_bytes - (built.size_bytes if built is not None else 0)
        if built is None:
            report.removed += 1
        else:
            report.rewritten += 1

    def _rewrite(self, directory: Directory, each: _CompactionInput, survivors: Survivors) -> BuiltSegment | None:
        """Write what stays of a segment; None if nothing does."""
        disk, staging = self._log.disk, posixpath.join(self._log.path, STAGING)
        remove_tree(disk, staging)  # of an earlier attempt
        disk.make_directory(staging)
        base = each.files.base or 0
        builder: SegmentBuilder | None = None
        try:
            for segment, rows in self._scan(directory, each):
                if builder is None:
                    fmt = self._fmt.continuing(segment)
                    builder = SegmentBuilder(disk, staging, fmt, base, created_ms=segment.created_ms)
                builder.put(self._cleaner.select(segment, rows, survivors.has, builder.cursor))
            return builder.finish() if builder is not None and builder.cursor.previous_offset >= base else None
        finally:
            if builder is not None:
                builder.close()


def _dropped(each: _CompactionInput, survivors: Survivors) -> npt.NDArray[np.int64]:
    """Return the expired tombstones of a segment that no newer record of their key replaces."""
    kept = [offsets[survivors.has(offsets)] for offsets in each.tombstones]
    return np.concatenate(kept) if kept else np.empty(0, np.int64)


def _stale(
    fmt: Format, directory: Directory, base: int, built: BuiltSegment | None, state: Mapping[str, bytes]
) -> tuple[str, ...]:
    """The other files of a segment that its new version does not have."""
    if not isinstance(fmt, SupportsCleaner):
        return ()
    stale = fmt.cleaned_roles if built is None else fmt.replaced_roles
    return tuple(
        file.path for file in directory.others
        if file.name.base == base and file.name.role in stale and file.path not in state
    )  # fmt: skip


def _foreign_offset(path: str, rows: Rows, next_base: int) -> CorruptionError:
    columns = rows.columns
    row = int((columns.last_offsets >= next_base).argmax())
    offset, position = int(columns.last_offsets[row]), int(columns.position[row])
    return CorruptionError(
        f"offset {offset} cannot be in this segment: the next one begins at {next_base}", path=path, position=position,
        offset=offset, hint="`duramen verify` shows the whole picture, `duramen repair` what can be kept",
    )  # fmt: skip
