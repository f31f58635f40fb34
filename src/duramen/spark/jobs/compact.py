"""Compact on Spark: of every key the newest record, over logs of any size, into a new log.

The rules are those of `duramen.log.maintain`: the newest offset of a key wins, records without a key stay (or go), a
tombstone (a null or empty value) goes once it is old enough; the active segment is taken over as it is. Keys of any
number are no matter: 128-bit hashes of them and offsets, 24 bytes a record, go through Spark's shuffle, never a value.
Then each segment is rewritten by a task of its own, byte for byte what stays, and the new log gets its name in one
rename.

Needs pandas, because Spark's functions over groups of Arrow batches ask for it.
"""

from __future__ import annotations

import os
import pickle
import posixpath
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from duramen.disk import PosixDisk
from duramen.errors import DuramenError, IncompleteHeaderError, UsageError
from duramen.formats import Cleaner, Rows, Segment, bool_array, extractor, make, siphash
from duramen.log import (
    BuiltSegment,
    Compaction,
    CompactionReport,
    EndKind,
    LogBuilder,
    Seals,
    SegmentBuilder,
    Source,
    classify_rows,
    cleaner_for,
    remove_tree,
)
from duramen.spark.error_text import plainly
from duramen.spark.jobs.task_runner import attempt, cancelling, distribute, has_pandas, no_pandas_warning, plain_errors
from duramen.spark.jobs.verify import verify
from duramen.spark.progress import step

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_KEYED = pa.schema(
    [("h0", pa.int64()), ("h1", pa.int64()), ("offset", pa.int64()), ("segment", pa.int32()), ("goes", pa.bool_())]
)
_KEYED_DDL = "h0 bigint, h1 bigint, offset bigint, segment int, goes boolean"
_BUILT = pa.schema([("segment", pa.int32()), ("result", pa.binary())])
_BUILT_DDL = "segment int, result binary"


@dataclass(frozen=True)
class _CompactedSegment:
    """A segment as a task needs to know it."""

    path: str
    base: int | None
    size_bytes: int
    is_last: bool


@dataclass(frozen=True)
class _Work:
    """What all tasks know."""

    path: str
    format: str
    options: dict[str, Any]
    segments: tuple[_CompactedSegment, ...]
    how: Compaction
    cleaner: Cleaner
    cleaned: int
    """How many of the segments are compacted; the others are taken over as they are."""
    secret: tuple[int, int]
    staging: str

    def steps(self, number: int) -> Iterator[tuple[Segment, Rows]]:
        """The rows of a segment. Raises for damage, at the latest after the last row: the digest goes along."""
        here, fmt = self.segments[number], make(self.format, **self.options)
        fmt = self.cleaner.fmt if number < self.cleaned else fmt
        disk = PosixDisk().within(self.path)
        data = disk.map(here.path).data[: here.size_bytes]
        sealed = Seals(disk, self.path, fmt).scan(-1 if here.is_last else here.base or 0, here.path, data)
        try:
            segment = fmt.open_segment(data, here.base)
        except IncompleteHeaderError:
            if here.is_last:
                return
            raise
        for rows in sealed.steps(segment):
            if len(rows.columns):
                yield segment, rows
        end = classify_rows(segment, rows, is_last=here.is_last)
        if end.ending not in (EndKind.CLEAN, EndKind.TORN):
            raise end.error(here.path)
        sealed.check()


@dataclass(frozen=True)
class _Rewritten:
    """The result of a task that rewrote a segment: its files are in ``directory``, none if no record was kept."""

    built: BuiltSegment | None
    directory: str
    before: int
    keyless: int


def compact(
    spark: SparkSession,
    src: str,
    dst: str,
    *,
    key: str = "key",
    keyless: str = "keep",
    tombstone_delay_ms: int = 86_400_000,
    dry_run: bool = False,
    format: str | None = None,
    **options: Any,
) -> CompactionReport:
    """Compact the log at ``src`` into a new one at ``dst``."""
    if not has_pandas():
        raise DuramenError("compact needs pandas, which Spark asks for", hint="`pip install pandas`")
    how = Compaction(key=key, keyless=keyless, tombstone_delay_ms=tombstone_delay_ms)
    src, dst = posixpath.abspath(src), posixpath.abspath(dst)  # executors run elsewhere
    source = _checked_source(Source(src, format=format, options=options), how)
    cleaner = _cleaner_of(source, how)
    cleaned = _begin_cleaning(cleaner, source)
    report = CompactionReport(segments=cleaned, bytes_before=source.size_bytes)
    builder = LogBuilder(dst, source.written_as, created_ms=source.created_ms)
    with builder:
        work = _Work(
            src, source.fmt.name, dict(source.written_as.options),
            tuple(_CompactedSegment(part.path, part.base, len(part.data), part.is_last) for part in source.parts),
            how, cleaner, cleaned, (_random(), _random()), posixpath.join(builder.root, ".duramen", "staging"),
        )  # fmt: skip
        rewritten = _rewrite(spark, work, report)
        _sum_up(report, rewritten)
        if dry_run:
            return report
        for result in rewritten:
            if result.built is not None:
                builder.adopt(result.built, result.directory)
        remove_tree(builder.disk, work.staging)
        builder.finish()
        _check(spark, builder, report)
        builder.publish()
    return report


def _checked_source(source: Source, how: Compaction) -> Source:
    if not source.fmt.capabilities.compaction:
        raise UsageError(
            f"this {source.fmt.name} log cannot be compacted: its records do not carry their offsets one by one",
            path=source.path, hint="convert it to a format that can: keratin, durable-log, rustlog or kafka",
        )  # fmt: skip
    extractor(source.fmt, how.key)
    source.check_presence()
    for part in source.parts[-1:]:
        source.check_digest(part)  # the active one is taken over as it is, and gets a new digest
    return source


def _cleaner_of(source: Source, how: Compaction) -> Cleaner:
    segments = (source.fmt.open_segment(part.data, part.base) for part in source.parts if len(part.data))
    return cleaner_for(source.fmt, segments, int(time.time() * 1e6), how.tombstone_delay_ms)


def _begin_cleaning(cleaner: Cleaner, source: Source) -> int:
    """How many segments the rules allow to compact: never the active one."""
    bases = [part.base or 0 for part in source.parts]
    ends = [base for base in bases[1:] if cleaner.until is None or base <= cleaner.until]
    if ends:
        cleaner.begin(bases[0], bases[len(ends) - 1])
    return len(ends)


def _random() -> int:
    return int.from_bytes(os.urandom(8), "little")


def _rewrite(spark: SparkSession, work: _Work, report: CompactionReport) -> list[_Rewritten]:
    """The results for all segments, in order. Segments without a surviving key have no group and get a second round, as
    does the active segment, which is kept whole."""
    results: dict[int, _Rewritten] = {}
    if work.cleaned > 0:
        step("keys", sum(segment.size_bytes for segment in work.segments[: work.cleaned]))
        with no_pandas_warning(), plain_errors():
            survivors = _survivors(spark, work).cache()
            try:
                with cancelling(spark):
                    _rewrite_survivors(survivors, work, report, results)
            finally:
                survivors.unpersist()
    rest = [(work, number) for number in range(len(work.segments)) if number not in results]
    for (_, number), result in zip(rest, distribute(spark, _rewrite_rest, rest), strict=True):
        results[number] = result
    failed = next((results[n] for n in sorted(results) if isinstance(results[n], DuramenError)), None)
    if isinstance(failed, DuramenError):
        raise failed
    return [results[number] for number in range(len(work.segments))]


def _rewrite_survivors(
    survivors: DataFrame, work: _Work, report: CompactionReport, results: dict[int, _Rewritten]
) -> None:
    counts = survivors.selectExpr("count(*) as keys", "count_if(goes) as gone").collect()[0]
    report.keys, report.tombstones_removed = int(counts.keys), int(counts.gone)
    step("writing")
    kept = survivors.where("not goes").select("segment", "offset")
    groups = kept.repartition(work.cleaned, "segment").groupBy("segment")

    def rewrite(table: pa.Table) -> pa.Table:
        return _rewrite_group(work, table)

    for row in groups.applyInArrow(rewrite, _BUILT_DDL).collect():
        results[int(row.segment)] = pickle.loads(bytes(row.result))


def _survivors(spark: SparkSession, work: _Work) -> DataFrame:
    """The newest offset of every key, where it lies, and whether it is a tombstone that goes."""
    from pyspark.sql import functions as fn

    keyed = spark.range(0, work.cleaned, 1, work.cleaned).mapInArrow(partial(_keyed, work), _KEYED_DDL)
    newest = keyed.groupBy("h0", "h1").agg(fn.max(fn.struct("offset", "segment", "goes")).alias("newest"))
    return newest.select("newest.*")


def _keyed(work: _Work, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """In an executor: the keys of whole segments as hashes, with offsets."""
    with plainly():
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from _keyed_segment(work, number)


def _keyed_segment(work: _Work, number: int) -> Iterator[pa.RecordBatch]:
    cleaner = work.cleaner
    columns, keys_of = extractor(cleaner.fmt, work.how.key)
    needed = tuple(dict.fromkeys(("offset", *cleaner.columns, *columns)))
    for segment, rows in work.steps(number):
        batch = segment.decode(rows, needed)
        keys = keys_of(batch)
        has_key = keys.is_valid()
        goes = bool_array(cleaner.examine(rows, batch).expired)
        hashes = siphash(keys.filter(has_key), *work.secret).view(np.int64)
        offsets = batch.column("offset").filter(has_key)
        arrays = [
            pa.array(np.ascontiguousarray(hashes[:, 0])), pa.array(np.ascontiguousarray(hashes[:, 1])), offsets,
            pa.array(np.full(len(offsets), number, np.int32)), goes.filter(has_key),
        ]  # fmt: skip
        yield pa.RecordBatch.from_arrays(arrays, schema=_KEYED)


def _rewrite_group(work: _Work, table: pa.Table) -> pa.Table:
    """In an executor: rewrite the segment whose surviving offsets these are."""
    number = table.column("segment")[0].as_py()
    offsets = np.sort(table.column("offset").to_numpy())
    try:
        result: Any = _rewrite_segment(work, number, offsets)
    except DuramenError as error:
        result = error
    return pa.Table.from_pylist([{"segment": number, "result": pickle.dumps(result)}], _BUILT)


def _rewrite_rest(task: tuple[_Work, int]) -> _Rewritten:
    """In an executor: a segment without a surviving key, or one that is taken over."""
    work, number = task
    return _rewrite_segment(work, number, np.empty(0, np.int64) if number < work.cleaned else None)


def _rewrite_segment(work: _Work, number: int, survivors: npt.NDArray[np.int64] | None) -> _Rewritten:
    """Write what stays of a segment: the survivors and what has no key; everything, if ``survivors`` is None."""
    fmt = make(work.format, **work.options)
    columns, keys_of = extractor(fmt, work.how.key)
    directory = posixpath.join(work.staging, f"{number}-{attempt().name}")
    disk, base = PosixDisk(), work.segments[number].base or 0
    builder: SegmentBuilder | None = None
    before = keyless = 0
    created_ms = 0
    try:
        for segment, rows in work.steps(number):
            before += rows.count
            created_ms = segment.created_ms
            if builder is None:
                builder = _begin(disk, directory, fmt.continuing(segment), base, created_ms)
            if survivors is None:
                builder.put(segment.select(rows, np.ones(len(rows.columns), np.bool_), builder.cursor))
                continue
            batch = segment.decode(rows, ("offset", *columns))
            is_keyless = keys_of(batch).is_null().to_numpy(zero_copy_only=False)
            keyless += int(is_keyless.sum())
            kept = survivors
            if work.how.keyless == "keep":
                kept = np.union1d(survivors, batch.column("offset").to_numpy()[is_keyless])
            builder.put(work.cleaner.select(segment, rows, partial(_among, sorted_offsets=kept), builder.cursor))
        stays_empty = survivors is None or (work.cleaner.keeps_state and number == 0)  # the log's start stays
        if builder is None and stays_empty:
            builder = _begin(disk, directory, fmt, base, created_ms)
        is_gone = builder is None or (not stays_empty and builder.cursor.previous_offset < base)
        built = None if builder is None or is_gone else builder.finish()
        return _Rewritten(built, directory, before, keyless)
    finally:
        if builder is not None:
            builder.close()


def _begin(disk: PosixDisk, directory: str, fmt: Any, base: int, created_ms: int) -> SegmentBuilder:
    disk.make_directory(directory)
    return SegmentBuilder(disk, directory, fmt, base, created_ms=created_ms)


def _among(offsets: npt.NDArray[np.int64], sorted_offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    if not len(sorted_offsets):
        return np.zeros(len(offsets), bool)
    places = np.minimum(np.searchsorted(sorted_offsets, offsets), len(sorted_offsets) - 1)
    return sorted_offsets[places] == offsets


def _sum_up(report: CompactionReport, rewritten: Sequence[_Rewritten]) -> None:
    built = [result.built for result in rewritten]
    report.records_before = sum(result.before for result in rewritten)
    report.records_after = sum(one.records for one in built if one is not None)
    report.bytes_after = sum(one.size_bytes for one in built if one is not None)
    report.keyless = sum(result.keyless for result in rewritten)
    report.removed = sum(one is None for one in built)
    report.rewritten = sum(result.built is not None and result.built.records < result.before for result in rewritten)
    if not report.segments:
        report.note = "no sealed segment to compact: the active one is taken over as it is"
    elif not report.changed:
        report.note = "every key occurs once: nothing to remove"


def _check(spark: SparkSession, builder: LogBuilder, report: CompactionReport) -> None:
    """The new log must be sound and hold what was kept, or it is not published."""
    step("checking", report.bytes_after)
    found = verify(spark, builder.root)
    if not found.ok or found.records != report.records_after:
        first = next((f for f in found.findings if f.severity == "damage"), None)
        reason = first.message if first else f"{report.records_after} records were written, {found.records} were found"
        raise DuramenError(f"the new log is not sound: {reason}", path=builder.path)
