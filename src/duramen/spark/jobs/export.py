"""Export: a log, or the partitions of topics, as Parquet files, a Delta table or an Iceberg table. Each row once.

Tasks read their portion and write Parquet with pyarrow; no row passes through the JVM. The driver commits all files and
the offsets they go up to in one step (`targets`). A run that was killed anywhere and is repeated gives each row once:
before the commit the target holds none of its rows; after it, the offsets show that they are exported.

Without ``incremental`` a target takes one export of a log. With it, a run goes on where the last one ended. The target
knows which log that was (`duramen.spark.source.identity`), and refuses another one under the same path.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from duramen.errors import UsageError
from duramen.formats import Format
from duramen.spark.jobs.export_target import ExportTarget, target
from duramen.spark.jobs.parquet import UNITS_US, ParquetWriting, ParquetWritten, file_schema, write_portion
from duramen.spark.jobs.scanning import JobScan, bound, decoding_of, has_times, plan_scan, read_options
from duramen.spark.jobs.task_runner import distribute
from duramen.spark.progress import step
from duramen.spark.source import ReadOptions
from duramen.values import Decoding

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = ("offset", "timestamp", "key", "value")
TASK_BYTES = 256 << 20
"""Of the log, per task, unless the option says otherwise: a file of a size that readers of Parquet like."""


@dataclass(frozen=True)
class Exported:
    """What a run did. ``ranges`` are offsets by log, the end exclusive; ``files`` is empty when nothing was new."""

    target: str
    kind: str
    rows: int
    bytes: int
    files: int
    ranges: Mapping[str, tuple[int, int]]
    dry_run: bool = False


def export(
    spark: SparkSession,
    path: str,
    to: str,
    *,
    kind: str = "parquet",
    partition_by: str | None = None,
    incremental: bool = False,
    columns: Sequence[str] | None = None,
    compression: str = "snappy",
    dry_run: bool = False,
    target_options: Mapping[str, Any] | None = None,
    format: str | None = None,
    **options: Any,
) -> Exported:
    """Export the log at ``path`` to ``to``. ``options`` are the data source's and those of `DecodeOptions`."""
    decoding, options = decoding_of(options)
    reading = read_options(path, format, **options)
    _check_request(reading, partition_by, decoding, incremental=incremental)
    place = target(kind, to, **(target_options or {}))
    names = _columns(columns, partition_by, is_store=reading.is_store)
    if decoding is not None:
        decoding.needed(names)
    task_bytes = reading.max_bytes_per_partition or TASK_BYTES
    scan = plan_scan(reading, names, max_bytes=task_bytes)  # a wrong source shows before the target is created
    if dry_run:
        _check_times(scan.formats, partition_by)
        return Exported(to, kind, 0, scan.size_bytes, 0, _ranges(scan), dry_run=True)
    place.open()
    try:
        done = place.exported()
        scan = plan_scan(reading, names, begin=done, sources=place.sources(), max_bytes=task_bytes)
        _check_times(scan.formats, partition_by)
        _check_once(scan, done, to, incremental=incremental)
        if all(piece.from_offset >= piece.to_offset for piece in scan.pieces):
            return Exported(to, kind, 0, 0, 0, _ranges(scan))
        files = _run(spark, scan, place, partition_by, bound(decoding, scan), compression)
    finally:
        place.close()
    return Exported(to, kind, *_totals(files), len(files), _ranges(scan))


def _totals(files: Sequence[ParquetWritten]) -> tuple[int, int]:
    return sum(file.rows for file in files), sum(file.size_bytes for file in files)


def _check_request(
    reading: ReadOptions, partition_by: str | None, decoding: Decoding | None, *, incremental: bool
) -> None:
    if decoding is not None and incremental and not all(one.is_bound for one in decoding.decoders.values()):
        raise UsageError(
            "an incremental export needs a schema: the first values of the next run may have other fields",
            hint="give value_schema (and key_schema)",
        )
    if partition_by is not None and partition_by not in UNITS_US:
        raise UsageError(f"cannot partition by {partition_by!r}", hint=f"by {' or '.join(UNITS_US)}")
    if incremental and reading.ending_us is not None:
        raise UsageError(
            "an incremental export cannot end at a time", hint="what came too late would never be exported"
        )


def _run(
    spark: SparkSession,
    scan: JobScan,
    place: ExportTarget,
    partition_by: str | None,
    decoding: Decoding | None,
    compression: str,
) -> list[ParquetWritten]:
    begin = {piece.name: piece.from_offset for piece in scan.pieces}
    end = {piece.name: piece.to_offset for piece in scan.pieces}
    sources = {piece.name: piece.identity for piece in scan.pieces}
    directory = place.begin(file_schema(scan.schema, decoding), partition_by, end, sources)
    try:
        tasks = [ParquetWriting(portion, directory, partition_by, compression, decoding) for portion in scan.portions]
        files = [file for written in distribute(spark, write_portion, tasks) for file in written]
    except BaseException:
        place.abort()
        raise
    step("committing")
    place.commit(files, begin, end)
    return files


def _columns(columns: Sequence[str] | None, partition_by: str | None, *, is_store: bool) -> list[str]:
    names = list(columns or COLUMNS)
    for needed in ("offset", *(("timestamp",) if partition_by else ())):
        if needed not in names:
            names.insert(0, needed)
    for naming in ("partition", "topic") if is_store else ():
        if naming not in names:
            names.insert(0, naming)
    return names


def _check_times(formats: Sequence[Format], partition_by: str | None) -> None:
    if partition_by is not None and not has_times(formats):
        timeless = next(fmt.name for fmt in formats if not fmt.capabilities.timestamps)
        raise UsageError(f"{timeless} records have no time to partition by", hint="leave --partition-by out")


def _check_once(scan: JobScan, done: Mapping[str, int], to: str, *, incremental: bool) -> None:
    """A repeated run of what is exported already does nothing; more than that has to be asked for."""
    for piece in scan.pieces if not incremental else ():
        if piece.name in done and piece.from_offset < piece.to_offset:
            raise UsageError(
                f"{piece.name} is exported up to offset {done[piece.name] - 1}, and the log goes on to "
                f"{piece.to_offset - 1}", path=to, hint="incremental adds what is new",
            )  # fmt: skip


def _ranges(scan: JobScan) -> dict[str, tuple[int, int]]:
    return {piece.name: (piece.from_offset, piece.to_offset) for piece in scan.pieces}
