"""Convert on Spark: the conversion of `duramen.log.transfer.convert`, segments in parallel. It writes the same files.

Both passes run in tasks, one segment each: the survey of what the target cannot store, and the conversion itself, which
is the in-process one with a single segment as its source. Offsets are kept, the result is checked on Spark, and
one rename publishes it.

Where a segment of the new log depends on more than one of the old, it is done in-process on the driver: a target
without segments (fixed-slot), ``segment_max_bytes``, the way back to a format the log came from, damage that is to be
skipped, offsets missing between segments where the target would read that as a loss. So is a copy byte by byte.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from duramen.disk import Disk, PosixDisk
from duramen.errors import CorruptionError, DuramenError
from duramen.formats import Format, make
from duramen.log import (
    ORIGIN_CHUNKS_PATH,
    Boundary,
    BuiltSegment,
    Conversion,
    Converted,
    LogBuilder,
    LossSurvey,
    Progress,
    SegmentBuilder,
    Source,
    TimestampFitter,
    remove_tree,
)
from duramen.spark.jobs.task_runner import attempt, distribute
from duramen.spark.jobs.verify import verify
from duramen.spark.progress import step

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STAGING = posixpath.join(".duramen", "staging")
_NO_TIME = -(2**63)


@dataclass(frozen=True)
class _ConvertedLog:
    """The source as a task opens it."""

    path: str
    format: str
    options: dict[str, Any]
    to: str
    to_options: dict[str, Any]

    def open(self, parts: Sequence[tuple[str, int]]) -> Source:
        """The log with those segments alone, and no more of them than there was when the work was planned."""
        source = Source(self.path, format=self.format, options=self.options)
        there = {part.path: part for part in source.parts}
        for path, size_bytes in parts:
            if path not in there or len(there[path].data) < size_bytes:
                raise CorruptionError("the segment is missing or has become shorter", path=path)
            there[path].data = there[path].data[:size_bytes]
        source.parts = [there[path] for path, _ in parts]
        return source

    def target(self) -> Format:
        return make(self.to, **self.to_options)


# --- the survey


@dataclass
class _PartSurvey(LossSurvey):
    """A survey of one segment, which another one can take in."""

    least_us: int | None = None

    def run(self) -> _PartSurvey:
        columns, (part,) = self._columns(), self.source.parts
        self.firsts.append(None)
        self.next_offset = part.base or 0
        for segment, rows in self.source.steps(part, verify=False):
            if self.last_offset is None:  # how it follows the segment before is seen when they are joined
                self.last_offset = int(rows.columns.first_offsets[0]) - 1
            self._rows(part, segment, rows, columns)
            self.next_offset = max(self.next_offset, rows.end.last_offset + 1)
        return self

    def _times(self, offsets: Any, column: pa.Array) -> None:
        super()._times(offsets, column)
        least = column.view(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False).min()
        self.least_us = int(least) if self.least_us is None else min(self.least_us, int(least))


def _survey(task: tuple[_ConvertedLog, tuple[str, int], int]) -> _PartSurvey:
    """In an executor."""
    log, part, last_us = task
    survey = _PartSurvey(log.open([part]), log.target())
    survey._last_us = last_us
    survey.run()
    survey.source = cast(Source, None)  # mapped files stay here
    return survey


def _join(whole: LossSurvey, part: _PartSurvey) -> None:
    """Add what one pass over all segments would have counted here."""
    if part.first_offset is not None:
        previous = -1 if whole.last_offset is None else whole.last_offset
        if part.first_offset != previous + 1:
            seam = whole.counts["offset"]
            seam.count += 1
            seam.first_offset = part.first_offset if seam.first_offset is None else seam.first_offset
        whole.first_offset = part.first_offset if whole.first_offset is None else whole.first_offset
        whole.last_offset = part.last_offset
    whole.records += part.records
    whole.next_offset = max(whole.next_offset, part.next_offset)
    whole.firsts += part.firsts
    for name, counted in part.counts.items():
        _add(whole.counts[name], counted)
    _add(whole._too_long, part._too_long)
    whole.longest_bytes = max(whole.longest_bytes, part.longest_bytes)
    known = [size for size in (whole.shortest_bytes, part.shortest_bytes) if size is not None]
    whole.shortest_bytes = min(known) if known else None
    whole._last_us = max(whole._last_us, part._last_us)


def _add(total: Any, part: Any) -> None:
    if part.count and total.first_offset is None:
        total.first_offset = part.first_offset
    total.count += part.count


# --- the conversion


@dataclass(frozen=True)
class _ConvertTask:
    """A group of segments that is converted by itself; nearly always one."""

    log: _ConvertedLog
    parts: tuple[tuple[str, int], ...]
    boundaries: tuple[Boundary, ...]
    last_us: int
    staging: str
    number: int


@dataclass(frozen=True)
class _ConvertResult:
    directory: str
    built: tuple[BuiltSegment, ...]
    chunks: bytes
    torn_bytes: int


@dataclass
class _Staged:
    """What a conversion takes for the log that it builds: a directory of an attempt's own."""

    fmt: Format
    root: str
    disk: Disk = field(default_factory=PosixDisk)
    segments: list[BuiltSegment] = field(default_factory=list)

    def segment(self, base: int, **options: Any) -> SegmentBuilder:
        return SegmentBuilder(self.disk, self.root, self.fmt, base, **options)

    def add(self, built: BuiltSegment) -> None:
        self.segments.append(built)


class _PartConversion(Conversion):
    """The in-process conversion with a few segments for its source, and nothing to plan."""

    def __init__(self, task: _ConvertTask) -> None:
        self.source = task.log.open(task.parts)
        self.target = task.log.target()
        self.losses = []
        self._resized = False
        self._origins = {}
        self._task = task

    def _boundaries(self) -> list[Boundary]:
        return list(self._task.boundaries)

    def _times(self) -> TimestampFitter:
        return TimestampFitter(self.target, self._task.last_us)

    def build(self) -> _ConvertResult:
        task = self._task
        staged = _Staged(self.target, posixpath.join(task.staging, f"{task.number}-{attempt().name}"))
        staged.disk.make_directory(posixpath.join(staged.root, ".duramen"))
        self._fill(cast(LogBuilder, staged), lambda _bytes: None)
        chunks = posixpath.join(staged.root, ORIGIN_CHUNKS_PATH)
        listed = bytes(staged.disk.map(chunks).data) if staged.disk.kind(chunks) == "file" else b""
        return _ConvertResult(staged.root, tuple(staged.segments), listed, self.source.torn_bytes)


def _convert(task: _ConvertTask) -> _ConvertResult:
    """In an executor."""
    return _PartConversion(task).build()


class SparkConversion(Conversion):
    """A conversion whose two passes run in tasks."""

    def __init__(self, spark: SparkSession, *args: Any, **options: Any) -> None:
        self._spark = spark
        self._surveys: list[_PartSurvey] = []
        super().__init__(*args, **options)

    def _log(self) -> _ConvertedLog:
        source, target = self.source, self.target
        return _ConvertedLog(source.path, source.fmt.name, dict(source.fmt.options), target.name, dict(target.options))

    def _parts(self) -> list[tuple[str, int]]:
        return [(part.path, len(part.data)) for part in self.source.parts]

    def _surveyed(self) -> LossSurvey:
        if self.source.skips or len(self.source.parts) < 2:
            return super()._surveyed()
        log, parts = self._log(), self._parts()
        step("looking", self.source.size_bytes)
        self._surveys = distribute(self._spark, _survey, [(log, part, _NO_TIME) for part in parts])
        self._survey_again(log, parts)
        if not self._in_order():
            return super()._surveyed()  # which says what is wrong
        whole = LossSurvey(self.source, self.target)
        for survey in self._surveys:
            _join(whole, survey)
        if whole.next_offset != whole.records and not whole.counts["offset"].count:
            whole.counts["offset"].count, whole.counts["offset"].first_offset = 1, whole.next_offset
        whole.count_transactions()
        return whole

    def _survey_again(self, log: _ConvertedLog, parts: Sequence[tuple[str, int]]) -> None:
        """Segments with a time before the latest of an earlier segment: how many go back depends on that."""
        if not self.target.capabilities.ordered_timestamps:
            return
        highest, again = _NO_TIME, []
        for number, survey in enumerate(self._surveys):
            if survey.least_us is not None and survey.least_us < highest:
                again.append((number, highest))
            highest = max(highest, survey._last_us)
        results = distribute(self._spark, _survey, [(log, parts[number], us) for number, us in again])
        for (number, _), result in zip(again, results, strict=True):
            self._surveys[number] = result

    def _in_order(self) -> bool:
        """Whether no segment reaches into the next."""
        bases = [part.base for part in self.source.parts[1:]]
        before = (survey.last_offset for survey in self._surveys[:-1])
        within = all(last is None or base is None or last < base for last, base in zip(before, bases, strict=True))
        held = [survey for survey in self._surveys if survey.first_offset is not None]
        return within and all((a.last_offset or 0) < (b.first_offset or 0) for a, b in pairwise(held))

    def _groups(self) -> list[list[int]]:
        """Segments by the numbers of those that have to be converted together: an empty one at the end belongs to the
        one before it."""
        groups: list[list[int]] = []
        for number, survey in enumerate(self._surveys):
            if survey.first_offset is None and groups:
                groups[-1].append(number)
            else:
                groups.append([number])
        return groups

    def _is_parallel(self) -> bool:
        if len(self._surveys) < 2 or self.renumbers or self._sizes_decide:
            return False
        if self._origins.get(self.target.name) is not None and self.source.fmt.name != self.target.name:
            return False
        if not self.target.capabilities.lost_segments_show:
            return True
        held = [survey for survey in self._surveys if survey.first_offset is not None]
        return all(b.first_offset == (a.last_offset or 0) + 1 for a, b in pairwise(held))

    def _fill(self, builder: LogBuilder, progress: Progress) -> None:
        step("writing", self.source.size_bytes)
        if not self._is_parallel():
            super()._fill(builder, progress)
            return
        staging = posixpath.join(builder.root, STAGING)
        results = distribute(self._spark, _convert, self._tasks(staging))
        for result in results:
            for built in result.built:
                builder.adopt(built, result.directory)
        chunks = b"".join(result.chunks for result in results)
        if chunks:
            builder.put_file(ORIGIN_CHUNKS_PATH, chunks)
        self.source.torn_bytes = results[-1].torn_bytes
        remove_tree(builder.disk, staging)

    def _tasks(self, staging: str) -> list[_ConvertTask]:
        log, parts, boundaries = self._log(), self._parts(), self._boundaries()
        tasks, last_us = [], 0
        groups = self._groups()
        for number, group in enumerate(groups):
            following = groups[number + 1][0] if number + 1 < len(groups) else None
            end = 2**63 - 1 if following is None else self._surveys[following].first_offset
            mine = [boundary for boundary in boundaries if boundary.base <= (end or 0) - (following is not None)]
            boundaries = boundaries[len(mine) :]
            tasks.append(_ConvertTask(log, tuple(parts[n] for n in group), tuple(mine), last_us, staging, number))
            last_us = max(last_us, *(self._surveys[n]._last_us for n in group))
        return tasks

    def _check(self, builder: LogBuilder, records: int, progress: Progress | None) -> None:
        step("checking", self.source.size_bytes)
        report = verify(self._spark, builder.root)
        if report.ok and report.records == records:
            return
        first = next((finding for finding in report.findings if finding.severity == "damage"), None)
        reason = f"{records} records were written, {report.records} were found" if first is None else first.message
        raise DuramenError(
            f"the new log is not sound: {reason}", path=builder.path,
            hint="nothing was published; the disk, or this program, is at fault",
        )  # fmt: skip


def convert(
    spark: SparkSession,
    src: str,
    dst: str,
    to: str,
    *,
    allow_loss: Sequence[str] = (),
    on_damage: str = "raise",
    format: str | None = None,
    source_options: dict[str, Any] | None = None,
    dry_run: bool = False,
    **options: Any,
) -> Converted:
    """Convert the log at ``src`` to the format ``to``, at the new path ``dst``."""
    whole = posixpath.abspath(src), posixpath.abspath(dst)  # executors run elsewhere
    conversion = SparkConversion(
        spark, *whole, to, allow_loss=allow_loss, on_damage=on_damage, format=format,
        source_options=source_options, **options,
    )  # fmt: skip
    if dry_run:
        return conversion.plan()
    return conversion.run()
