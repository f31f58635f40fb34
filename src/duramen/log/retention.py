"""Retention: which of the oldest segments may go, and why the next one stays.

Whole segments, oldest first, without leaving a hole: the first one that must stay ends the run. A segment must stay
when no rule wants it gone, when it is the active one, when it is not durable, or when somebody (a group, a cursor, a
running job) still needs a record in it; the plan says who. Ages are those of records, never of files.

A plan is data and can be printed. Carrying it out is one `change`, so that a crash leaves all of it or none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import pyarrow.compute as pc

from duramen.disk import Disk
from duramen.errors import UsageError
from duramen.formats import Format
from duramen.formats.base import Cursor, Role, Segment
from duramen.kernel.layout import Stop
from duramen.log.change import Change
from duramen.log.directory import Directory, SegmentFiles
from duramen.log.holds import Need


@dataclass(frozen=True)
class Retention:
    """What may stay. Each rule that is given may remove segments; without any nothing is removed.

    >>> Retention(max_bytes=1 << 30, max_age_ms=7 * 86_400_000).rules
    ('max_age_ms', 'max_bytes')
    """

    max_age_ms: int | None = None
    """Records older than this may go."""
    max_bytes: int | None = None
    """The oldest segments go until the log (records and indexes) has at most this size."""
    before_offset: int | None = None
    """Records below this offset may go."""
    keep_free_percent: float | None = None
    """The oldest segments go until this much of the file system is free."""

    def __post_init__(self) -> None:
        for name in ("max_age_ms", "max_bytes", "before_offset"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise UsageError(f"{name}={value} is not 0 or more")
        if self.keep_free_percent is not None and not 0 <= self.keep_free_percent <= 100:
            raise UsageError(f"keep_free_percent={self.keep_free_percent} is not between 0 and 100")

    @property
    def rules(self) -> tuple[str, ...]:
        return tuple(name for name, value in vars(self).items() if value is not None)


class Removed(NamedTuple):
    """A segment that goes."""

    base: int
    next_base: int
    path: str
    size_bytes: int
    files: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class RetentionPlan:
    removed: list[Removed] = field(default_factory=list)
    first_offset: int = 0
    """The first offset afterwards."""
    kept_bytes: int = 0
    kept_because: str = ""
    """Why the oldest segment that stays does so."""
    held_by: list[Need] = field(default_factory=list)
    """Who needs a segment that the rules would remove."""

    @property
    def removed_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.removed)

    @property
    def change(self) -> Change:
        """What to do to the files: an index before its segment, so that no index is left without one."""
        return Change("retention", removals=tuple(path for segment in self.removed for path in segment.files))


class Surroundings(NamedTuple):
    """What a plan depends on besides the log's files."""

    now_us: int
    durable_offset: int
    needs: Callable[[], Sequence[Need]] = list
    """Asked once, and only when there is something to remove: to find out, every group has to be read."""
    total_bytes: int = 0
    free_bytes: int = 0


def check_rules(fmt: Format, rules: Retention, path: str) -> None:
    """Raise where a rule makes no sense for the format."""
    if rules.max_age_ms is not None and fmt.capabilities.timestamps is None:
        raise UsageError(
            f"{fmt.name} records have no time, so none is too old",
            path=path,
            hint="use max_bytes (`--max-bytes`)",
        )


def plan(disk: Disk, fmt: Format, directory: Directory, rules: Retention, around: Surroundings) -> RetentionPlan:
    """What the rules remove from the log as it is. Reads segments only where ages are asked for, oldest first, up to
    the first that stays."""
    check_rules(fmt, rules, directory.root)
    planner = _Planner(disk, fmt, directory, rules, around)
    return planner.run()


class _Planner:
    def __init__(self, disk: Disk, fmt: Format, directory: Directory, rules: Retention, around: Surroundings) -> None:
        self._disk, self._fmt, self._directory = disk, fmt, directory
        self._rules, self._around = rules, around
        self._left_bytes = sum(_size(files) for files in directory.segments)
        self._free_bytes = around.free_bytes
        self._needs: Sequence[Need] | None = None

    def run(self) -> RetentionPlan:
        removed: list[Removed] = []
        segments = self._directory.segments
        first = (segments[0].base or 0) if segments else 0
        for files, following in pairwise(segments):
            next_base = following.base or 0
            reason = self._reason(files, next_base)
            if reason is None:
                return self._plan(removed, first, "no rule removes it")
            if next_base > self._around.durable_offset:
                return self._plan(removed, first, "not all of it is durable")
            if self._needs is None:
                self._needs = self._around.needs()
            holders = [need for need in self._needs if need.offset < next_base]
            if holders:
                return self._plan(removed, first, f"{holders[0]}", holders)
            removed.append(self._removed(files, next_base, reason))
            first = next_base
        return self._plan(removed, first, "it is the active one")

    def _plan(
        self, removed: list[Removed], first: int, because: str, held_by: list[Need] | None = None
    ) -> RetentionPlan:
        return RetentionPlan(removed, first, self._left_bytes, because, held_by or [])

    def _removed(self, files: SegmentFiles, next_base: int, reason: str) -> Removed:
        size = _size(files)
        self._left_bytes -= size
        self._free_bytes += size
        paths = (*(file.path for file in files.derived.values()), files.segment.path)
        return Removed(files.base or 0, next_base, files.segment.path, size, paths, reason)

    def _reason(self, files: SegmentFiles, next_base: int) -> str | None:
        rules, around = self._rules, self._around
        if rules.before_offset is not None and next_base <= rules.before_offset:
            return f"all its offsets are below {rules.before_offset}"
        if rules.max_bytes is not None and self._left_bytes > rules.max_bytes:
            return f"the log has {self._left_bytes} bytes, more than {rules.max_bytes}"
        if rules.keep_free_percent is not None and around.total_bytes:
            free = 100 * self._free_bytes / around.total_bytes
            if free < rules.keep_free_percent:
                return f"{free:.1f} % of the file system is free, less than {rules.keep_free_percent:g} %"
        if rules.max_age_ms is not None:
            oldest_us = around.now_us - rules.max_age_ms * 1000
            newest = newest_us(self._disk, self._fmt, self._directory, files, oldest_us)
            if newest is not None and newest < oldest_us:
                return f"its newest record is {(around.now_us - newest) / 1e6:,.0f} s old"
        return None


def _size(files: SegmentFiles) -> int:
    return files.segment.size_bytes + sum(file.size_bytes for file in files.derived.values())


def newest_us(disk: Disk, fmt: Format, directory: Directory, files: SegmentFiles, enough_us: int) -> int | None:
    """The time of the newest record of a segment; None where no record has one. Looks at the last records first: if
    one of them is at least as new as ``enough_us``, that is answered and the rest is not read."""
    data = disk.map(directory.full(files.segment.path)).data
    segment = fmt.open_segment(data, files.base)
    start = segment.start
    cursor = start
    index_file = files.derived.get(Role.INDEX)
    if index_file is not None:
        index = fmt.open_index(Role.INDEX, disk.map(directory.full(index_file.path)).data, segment.base_offset)
        entry = None if index is None else index.floor(2**63 - 1)
        if entry is not None and start.position <= entry[1] < len(segment.buf):
            cursor = segment.cursor_at(entry[0], entry[1]) or start
    newest = _newest(segment, cursor)
    if cursor == start or fmt.capabilities.ordered_timestamps or (newest is not None and newest >= enough_us):
        return newest
    earlier = _newest(segment, start)
    return max((us for us in (newest, earlier) if us is not None), default=None)


def _newest(segment: Segment, cursor: Cursor) -> int | None:
    newest: int | None = None
    while True:
        rows = segment.scan(cursor, verify=False)
        if rows.count:
            batch = segment.decode(rows, ("timestamp",))
            latest = pc.max(batch.column(0).view("int64")).as_py()
            newest = max((us for us in (newest, latest) if us is not None), default=None)
        if rows.stop != Stop.LIMIT:
            return newest
        cursor = rows.cursor
