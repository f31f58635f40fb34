"""Retention: decide which of the oldest segments to remove, and why the next one stays.

Whole segments go, oldest first, up to the first one that must stay. A segment must stay if no rule removes it, if it is
active or not durable, or if a group, a cursor or a running job still needs a record in it; the plan names the consumer.
Ages are those of records, not of files. Where records have no time, a segment is as old as its seal.

What `verify` calls damage in a segment that would go raises `CorruptionError`: with the segment the evidence would go.
``on_damage="quarantine"`` copies such a segment to the quarantine and removes it.

A plan is data. Executing it is one `FileSwap`, so that a crash leaves all of it done or none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from duramen import compute as pc
from duramen.arguments import check_choice, check_int, check_number
from duramen.disk import Disk
from duramen.errors import DuramenError, UsageError
from duramen.formats import Format, Role, ScanPosition, Segment, SupportsCleaner
from duramen.log.segments import Directory, Seals, SegmentFiles
from duramen.log.verify import Finding, damage_below, damage_error
from duramen.sidecar import FileSwap, Need


@dataclass(frozen=True)
class Retention:
    """The rules. Each rule that is set may remove segments; without a rule nothing is removed.

    >>> Retention(max_bytes=1 << 30, max_age_ms=7 * 86_400_000).rules
    ('max_age_ms', 'max_bytes')
    """

    max_age_ms: int | None = None
    """Remove records older than this."""
    max_bytes: int | None = None
    """Remove the oldest segments until the log (records and indexes) has at most this size."""
    before_offset: int | None = None
    """Remove records below this offset."""
    keep_free_percent: float | None = None
    """Remove the oldest segments until this much of the file system is free."""
    on_damage: str = "raise"
    """What to do if a segment to remove is damaged: ``raise``, or copy it to the ``quarantine`` and remove it."""

    def __post_init__(self) -> None:
        for name in ("max_age_ms", "max_bytes", "before_offset"):
            if getattr(self, name) is not None:
                check_int(name, getattr(self, name))
        if self.keep_free_percent is not None:
            check_number("keep_free_percent", self.keep_free_percent, most=100)
        check_choice("on_damage", self.on_damage, ("raise", "quarantine"))

    @property
    def rules(self) -> tuple[str, ...]:
        return tuple(name for name, value in vars(self).items() if value is not None and name != "on_damage")


class RemovedSegment(NamedTuple):
    """A segment to remove, with its derived files."""

    base: int
    next_base: int
    path: str
    size_bytes: int
    files: tuple[str, ...]
    reason: str
    damage: str = ""
    """What is damaged in it; its files go to the quarantine. Empty for a sound segment."""


@dataclass(frozen=True)
class RetentionPlan:
    removed: list[RemovedSegment] = field(default_factory=list)
    first_offset: int = 0
    """The first offset after the removal."""
    kept_bytes: int = 0
    kept_because: str = ""
    """Why the oldest remaining segment stays."""
    held_by: list[Need] = field(default_factory=list)
    """The consumers that need a segment which the rules would remove."""

    @property
    def removed_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.removed)

    @property
    def change(self) -> FileSwap:
        """The files to remove: each index before its segment, so that no index remains without one."""
        return FileSwap("retention", removals=tuple(path for segment in self.removed for path in segment.files))


class Surroundings(NamedTuple):
    """What a plan depends on apart from the log's files."""

    now_us: int
    durable_offset: int
    needs: Callable[[], Sequence[Need]] = list
    """Called once, and only if there is something to remove: it has to read every group."""
    total_bytes: int = 0
    free_bytes: int = 0


def check_rules(fmt: Format, rules: Retention, path: str) -> None:
    """Raise `UsageError` if a rule does not apply to the format."""
    if rules.max_age_ms is not None and fmt.capabilities.timestamps is None and not fmt.capabilities.segments:
        raise UsageError(
            f"max_age_ms does not apply: {fmt.name} records have no time",
            path=path,
            hint="use max_bytes (`--max-bytes`)",
        )


def plan_segments(
    disk: Disk, fmt: Format, directory: Directory, rules: Retention, around: Surroundings
) -> RetentionPlan:
    """Return what the rules remove from the log. Checks each segment that would go; reads no other, but for
    ``max_age_ms``, oldest segment first, up to the first one that stays."""
    check_rules(fmt, rules, directory.root)
    plan = _RetentionPlanner(disk, fmt, directory, rules, around).run()
    found = damage_below(disk, directory.root, fmt, directory, plan.first_offset) if plan.removed else []
    if not found:
        return plan
    if rules.on_damage == "raise":
        raise _refused(found, {directory.full(segment.path) for segment in plan.removed})
    return replace(plan, removed=_marked(plan.removed, directory, found))


def _refused(findings: Sequence[Finding], segments: Collection[str]) -> DuramenError:
    """The error for the first finding about a segment itself, if one is."""
    error = damage_error(next((finding for finding in findings if finding.path in segments), findings[0]))
    error.message = f"retention would remove the evidence of damage: {error.message}"
    error.hint = (
        '`duramen repair` shows what can be kept; on_damage="quarantine" (`--on-damage quarantine`) removes the '
        "segment and keeps a copy in the quarantine"
    )
    return error


def _marked(
    segments: Sequence[RemovedSegment], directory: Directory, findings: Sequence[Finding]
) -> list[RemovedSegment]:
    """The segments, each with the first finding about it. A finding that concerns none of them marks all of them."""
    marked = list(segments)
    for finding in findings:
        concerned = [number for number, one in enumerate(segments) if _concerns(finding, one, directory)]
        for number in concerned or range(len(segments)):
            if not marked[number].damage:
                marked[number] = marked[number]._replace(damage=f"{finding.code}: {finding.message}")
    return marked


def _concerns(finding: Finding, segment: RemovedSegment, directory: Directory) -> bool:
    """Whether a finding is about the files of a segment, about offsets up to the next one, or about its overlap with
    that one: the damaged offset may be in either of them."""
    if finding.path in {directory.full(path) for path in segment.files}:
        return True
    if finding.first_offset is None:
        return False
    until = segment.next_base + (finding.code == "overlapping-segments")
    return segment.base <= finding.first_offset < until


class _RetentionPlanner:
    def __init__(self, disk: Disk, fmt: Format, directory: Directory, rules: Retention, around: Surroundings) -> None:
        self._disk, self._fmt, self._directory = disk, fmt, directory
        self._rules, self._around = rules, around
        self._left_bytes = sum(_size(files) for files in directory.segments)
        self._free_bytes = around.free_bytes
        self._needs: Sequence[Need] | None = None

    def run(self) -> RetentionPlan:
        removed: list[RemovedSegment] = []
        segments = self._directory.segments
        first = (segments[0].base or 0) if segments else 0
        for files, following in pairwise(segments):
            next_base = following.base or 0
            reason = self._reason(files, next_base)
            if reason is None:
                return self._plan(removed, first, self._kept_because(files))
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
        self, removed: list[RemovedSegment], first: int, because: str, held_by: list[Need] | None = None
    ) -> RetentionPlan:
        return RetentionPlan(removed, first, self._left_bytes, because, held_by or [])

    def _removed(self, files: SegmentFiles, next_base: int, reason: str) -> RemovedSegment:
        size = _size(files)
        self._left_bytes -= size
        self._free_bytes += size
        paths = (*(file.path for file in files.derived.values()), *self._others(files.base), files.segment.path)
        return RemovedSegment(files.base or 0, next_base, files.segment.path, size, paths, reason)

    def _others(self, base: int | None) -> list[str]:
        """The other files that go with a segment."""
        roles = self._fmt.cleaned_roles if isinstance(self._fmt, SupportsCleaner) else ()
        return [file.path for file in self._directory.others if file.name.base == base and file.name.role in roles]

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
            return self._age_reason(files, around.now_us - rules.max_age_ms * 1000)
        return None

    def _age_reason(self, files: SegmentFiles, oldest_us: int) -> str | None:
        now_us = self._around.now_us
        if self._fmt.capabilities.timestamps is None:
            sealed_us = self._sealed_us(files)
            if sealed_us is None or sealed_us >= oldest_us:
                return None
            return f"it was sealed {(now_us - sealed_us) / 1e6:,.0f} s ago"
        newest = newest_us(self._disk, self._fmt, self._directory, files, oldest_us)
        if newest is None or newest >= oldest_us:
            return None
        return f"its newest record is {(now_us - newest) / 1e6:,.0f} s old"

    def _kept_because(self, files: SegmentFiles) -> str:
        is_by_seal = self._rules.max_age_ms is not None and self._fmt.capabilities.timestamps is None
        if is_by_seal and self._sealed_us(files) is None:
            return "its age is unknown: the sealed list does not say when it was sealed"
        return "no rule removes it"

    def _sealed_us(self, files: SegmentFiles) -> int | None:
        entry = self._seals.entry(files.base or 0)
        return None if entry is None or entry.sealed_ms is None else entry.sealed_ms * 1000

    @cached_property
    def _seals(self) -> Seals:
        return Seals(self._disk, self._directory.root, self._fmt)


def _size(files: SegmentFiles) -> int:
    return files.segment.size_bytes + sum(file.size_bytes for file in files.derived.values())


def newest_us(disk: Disk, fmt: Format, directory: Directory, files: SegmentFiles, enough_us: int) -> int | None:
    """Return the time of the newest record of a segment, None if no record has one. Reads the last records first; if
    one of them is at least as new as ``enough_us``, returns its time without reading the rest."""
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


def _newest(segment: Segment, cursor: ScanPosition) -> int | None:
    newest: int | None = None
    for rows in segment.steps(cursor, verify=False):
        if rows.count:
            batch = segment.decode(rows, ("timestamp",))
            latest = pc.max(batch.column(0).view("int64")).as_py()
            newest = max((us for us in (newest, latest) if us is not None), default=None)
    return newest
