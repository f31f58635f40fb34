"""Compaction of the sealed segments: each is written anew without the records that a newer one of their key replaces.

Offsets, times and bytes of what stays are what they were. The active segment is neither changed nor looked at. Two
passes: the first reads keys and finds which offsets stay (`survivors`); the second writes, oldest first, each segment
that loses a record, beside the old one and synced, and swaps the two in one `change`. A crash leaves every segment
either old or new, and both hold the newest record of every key; until the swap is on the disk the old segment is.

A *tombstone* is a record with a key and an empty value: it says that the key is gone. It stays for a delay, so that
every reader can see it, and then goes, too. Where records have no time, nobody can tell how old it is: it stays,
unless the delay is 0.

Refuses formats whose records cannot be left out one by one.
"""

from __future__ import annotations

import contextlib
import posixpath
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from duramen.errors import DuramenError, UsageError
from duramen.formats import Format
from duramen.formats.base import Cursor, Rows, Segment
from duramen.kernel.layout import FrameColumns, Stop
from duramen.log.build import BuiltSegment, SegmentBuilder, remove_tree
from duramen.log.compaction.keys import KeyOf, extractor
from duramen.log.compaction.state import read_state
from duramen.log.compaction.survivors import Keyed, Survivors, find_survivors
from duramen.log.directory import Directory, SegmentFiles
from duramen.log.ending import judge_rows
from duramen.log.holds import Need
from duramen.log.maintenance import everyone, swap_segment, write_state
from duramen.log.retention import newest_us
from duramen.log.sidecar import DIRECTORY

if TYPE_CHECKING:
    from duramen.log.reader import Log
    from duramen.log.writer import WritableLog

STAGING = posixpath.join(DIRECTORY, "compacting")
DEFAULT_MEMORY_BYTES = 128 << 20
DAY_MS = 86_400_000

Progress = Callable[[int], None]
"""Called with the bytes that were read since the last call; each sealed byte is read twice."""


@dataclass(frozen=True)
class Compaction:
    """How to compact.

    >>> Compaction(key="delimiter:=").key
    'delimiter:='
    """

    key: str | KeyOf = "key"
    """What a record's key is: see `keys`."""
    keyless: str = "keep"
    """What happens to records without a key: ``keep`` or ``drop``."""
    tombstone_delay_ms: int = DAY_MS
    min_lag_ms: int = 0
    """Segments with a record younger than this are left alone, and all behind them."""
    min_dirty_ratio: float = 0.0
    """Nothing is done while less than this part of the sealed bytes is new since the last compaction."""
    memory_bytes: int = DEFAULT_MEMORY_BYTES
    spill: str | None = None
    """Where temporary files go; the system's own place for them unless given."""

    def __post_init__(self) -> None:
        if self.keyless not in ("keep", "drop"):
            raise UsageError(f"keyless={self.keyless!r} is neither 'keep' nor 'drop'")
        for name in ("tombstone_delay_ms", "min_lag_ms"):
            if getattr(self, name) < 0:
                raise UsageError(f"{name}={getattr(self, name)} is not 0 or more")
        if not 0 <= self.min_dirty_ratio <= 1:
            raise UsageError(f"min_dirty_ratio={self.min_dirty_ratio} is not between 0 and 1")
        if self.memory_bytes < 4096:
            raise UsageError(f"memory_bytes={self.memory_bytes} is not 4096 or more")


def check(fmt: Format, how: Compaction, path: str) -> None:
    """Raise where a log of that format cannot be compacted that way."""
    if not fmt.capabilities.compaction:
        raise UsageError(
            f"this {fmt.name} log cannot be compacted: its records do not carry their offsets one by one",
            path=path,
            hint="convert it to a format that can: keratin, durable-log or rustlog",
        )
    extractor(fmt, how.key)


@dataclass
class CompactionReport:
    """What a compaction did, or, as a dry run, would do."""

    segments: int = 0
    rewritten: int = 0
    removed: int = 0
    """Segments of which nothing was left."""
    records_before: int = 0
    records_after: int = 0
    keys: int = 0
    keyless: int = 0
    tombstones_removed: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    held_by: list[Need] = field(default_factory=list)
    """Who has not read a segment yet, so that it was left alone, and all behind it."""
    note: str = ""
    """Why nothing was done, where that is so."""

    @property
    def changed(self) -> bool:
        return self.records_after < self.records_before


@dataclass
class _Found:
    """A segment after the first pass."""

    files: SegmentFiles
    next_base: int
    records: int = 0
    tombstones: list[npt.NDArray[np.int64]] = field(default_factory=list)
    """Offsets of tombstones that are old enough to go."""


class Compactor:
    """One compaction of a log that is open for writing; as a dry run, of one that is open for reading, too."""

    def __init__(self, log: Log, how: Compaction, now_us: int, progress: Progress | None) -> None:
        check(log.codec, how, log.path)
        self._fmt = log.codec
        self._log = log
        self._how = how
        self._now_us = now_us
        self._columns, self._keys_of = extractor(self._fmt, how.key)
        self._progress = progress or (lambda read_bytes: None)
        self._report = CompactionReport()

    def run(self, *, dry_run: bool = False) -> CompactionReport:
        writer = None if dry_run else _writer(self._log)
        directory = self._log.committed_directory()
        found = self._cleanable(directory)
        report = self._report
        report.segments = len(found)
        report.bytes_before = report.bytes_after = sum(each.files.segment.size_bytes for each in found)
        if not found:
            holder = f": {report.held_by[0]}" if report.held_by else ""
            report.note = f"there is no sealed segment to compact{holder}"
            return report
        dirty = self._dirty_ratio(found)
        if dirty < self._how.min_dirty_ratio:
            report.note = f"{dirty:.0%} of the bytes are new, less than {self._how.min_dirty_ratio:.0%}"
            return report
        until = found[-1].next_base
        if writer is not None:  # the gaps that it leaves have a reason before there is one
            before = read_state(writer.disk, writer.path)
            write_state(writer, before._replace(begun_until=until, at_us=self._now_us))
        try:
            with tempfile.TemporaryDirectory(prefix="duramen-compaction-", dir=self._how.spill) as spill:
                until = self._compact(directory, found, spill, writer)
        finally:
            # A change that was decided and failed half-way needs what lies there: who opens the log next finishes it.
            if writer is not None and not writer.is_poisoned:
                with contextlib.suppress(DuramenError):  # the next one removes it
                    remove_tree(writer.disk, posixpath.join(writer.path, STAGING))
        if not report.changed:
            held = f", as far as it may be: {report.held_by[0]}" if report.held_by else ""
            report.note = f"every key is there once: nothing to remove{held}"
        if writer is not None:
            writer.counters.compaction_records += report.records_before - report.records_after
            state = read_state(writer.disk, writer.path)
            write_state(writer, state._replace(cleaned_until=until, begun_until=until, at_us=self._now_us))
        return report

    # --- what may be compacted

    def _cleanable(self, directory: Directory) -> list[_Found]:
        """The oldest sealed segments, up to the first that is too young or that somebody has not read yet."""
        needs = everyone(self._log, self._now_us) if len(directory.segments) > 1 else []
        found: list[_Found] = []
        for files, following in pairwise(directory.segments):
            next_base = following.base or 0
            self._report.held_by = [need for need in needs if need.offset < next_base]
            if self._report.held_by:
                break
            if self._how.min_lag_ms and self._fmt.capabilities.timestamps is not None:
                youngest_us = self._now_us - self._how.min_lag_ms * 1000
                newest = newest_us(self._log.disk, self._fmt, directory, files, youngest_us)
                if newest is not None and newest > youngest_us:
                    break
            found.append(_Found(files, next_base))
        return found

    def _dirty_ratio(self, found: list[_Found]) -> float:
        cleaned_until = read_state(self._log.disk, self._log.path).cleaned_until
        total = sum(each.files.segment.size_bytes for each in found)
        dirty = sum(each.files.segment.size_bytes for each in found if each.next_base > cleaned_until)
        return dirty / total if total else 0.0

    # --- the two passes

    def _compact(self, directory: Directory, found: list[_Found], spill: str, writer: WritableLog | None) -> int:
        """Answers how far it came: somebody may need what is left."""
        report, how = self._report, self._how
        first, last = found[0].files.base or 0, found[-1].next_base - 1
        survivors = Survivors(first, last, spill, how.memory_bytes)
        keyed = self._keyed(directory, found)
        report.keys, report.keyless = find_survivors(
            keyed, survivors, spill, how.memory_bytes, keep_keyless=how.keyless == "keep"
        )
        for number, each in enumerate(found):
            dropped = _dropped(each, survivors)
            survivors.remove(dropped)
            kept = survivors.count(each.files.base or 0, each.next_base - 1)
            size = each.files.segment.size_bytes
            if kept < each.records and writer is None:
                report.bytes_after -= size - (self._kept_bytes(directory, each, survivors) if kept else 0)
            elif kept < each.records and writer is not None:
                holders = [need for need in everyone(writer, self._now_us) if need.offset < each.next_base]
                if holders:  # they came while the log was being read
                    report.held_by = holders
                    report.records_after += sum(rest.records for rest in found[number:])
                    return each.files.base or 0
                self._replace(writer, directory, each, survivors, kept)
            report.tombstones_removed += len(dropped)
            report.records_after += kept
            self._progress(size)
        return found[-1].next_base

    def _keyed(self, directory: Directory, found: list[_Found]) -> Iterator[Keyed]:
        how = self._how
        horizon_us = self._now_us - how.tombstone_delay_ms * 1000
        for each in found:
            for segment, rows in self._scan(directory, each.files):
                each.records += rows.count
                batch = segment.decode(rows, ("offset", "timestamp", *self._columns))
                offsets = rows.columns.first_offsets
                keys = self._keys_of(batch)
                empty = _is_empty(rows)
                if empty.any():
                    is_tombstone = empty & keys.is_valid().to_numpy(zero_copy_only=False)
                    times = batch.column("timestamp").view("int64").fill_null(2**63 - 1).to_numpy()
                    is_old = np.full(len(times), True) if not how.tombstone_delay_ms else times <= horizon_us
                    each.tombstones.append(offsets[is_tombstone & is_old])
                yield Keyed(offsets, keys)
            self._report.records_before += each.records
            self._progress(each.files.segment.size_bytes)

    def _scan(self, directory: Directory, files: SegmentFiles) -> Iterator[tuple[Segment, Rows]]:
        path = directory.full(files.segment.path)
        segment = self._fmt.open_segment(self._log.disk.map(path).data, files.base)
        cursor = segment.start
        while True:
            self._log.check_going_on()
            rows = segment.scan(cursor)
            if rows.count:
                yield segment, rows
            if rows.stop != Stop.LIMIT:
                break
            cursor = rows.cursor
        if rows.stop not in (Stop.END, Stop.ZEROS):
            raise judge_rows(segment, rows, is_last=False).error(path)

    def _kept_bytes(self, directory: Directory, each: _Found, survivors: Survivors) -> int:
        total = 0
        for segment, rows in self._scan(directory, each.files):
            total = total or segment.start.position
            kept = survivors.has(rows.columns.first_offsets)
            total += len(segment.select(rows, kept, Cursor(0, -1)).data)
        return total

    def _replace(
        self, writer: WritableLog, directory: Directory, each: _Found, survivors: Survivors, kept: int
    ) -> None:
        report, old_bytes = self._report, each.files.segment.size_bytes
        built = self._rewrite(directory, each, survivors) if kept else None
        swap_segment(writer, each.files, built, STAGING)
        report.bytes_after -= old_bytes - (built.size_bytes if built is not None else 0)
        if built is None:
            report.removed += 1
        else:
            report.rewritten += 1

    def _rewrite(self, directory: Directory, each: _Found, survivors: Survivors) -> BuiltSegment:
        disk, staging = self._log.disk, posixpath.join(self._log.path, STAGING)
        remove_tree(disk, staging)  # what an earlier attempt left
        disk.make_directory(staging)
        base = each.files.base or 0
        builder: SegmentBuilder | None = None
        try:
            for segment, rows in self._scan(directory, each.files):
                if builder is None:
                    fmt = self._fmt.continuing(segment)
                    builder = SegmentBuilder(disk, staging, fmt, base, created_ms=segment.created_ms)
                mask = survivors.has(rows.columns.first_offsets)
                if mask.any():
                    builder.put(segment.select(rows, mask, builder.cursor))
            assert builder is not None  # a record is kept, so there is one
            return builder.finish()
        finally:
            if builder is not None:
                builder.close()


def _writer(log: Log) -> WritableLog:
    from duramen.log.writer import WritableLog

    if not isinstance(log, WritableLog):
        raise UsageError("the log is open for reading: it cannot be compacted", path=log.path)
    return log


def _dropped(each: _Found, survivors: Survivors) -> npt.NDArray[np.int64]:
    """The tombstones of a segment that go: those that no newer record of their key replaces go for their age."""
    kept = [offsets[survivors.has(offsets)] for offsets in each.tombstones]
    return np.concatenate(kept) if kept else np.empty(0, np.int64)


def _is_empty(rows: Rows) -> npt.NDArray[np.bool_]:
    frames = rows.columns
    assert isinstance(frames, FrameColumns)
    return frames.value_length == 0
