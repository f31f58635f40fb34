"""Verify on Spark: the report of `duramen.verify`, byte for byte the same, from executors that read what they check.

The driver lists names and reads the sidecar; it opens no record but those at the places where a large segment is cut.
Small segments are gathered into tasks, large ones are cut along their index (`duramen.log.verify.ranges`). Where a
piece finds anything, its segment is checked again in one go, so that the findings are those of the in-process check. A
segment that is missing when its task runs may have been removed by retention: `Verifier.conclude` decides.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from duramen.disk import LostPages, PosixDisk
from duramen.errors import StorageError
from duramen.formats import make
from duramen.log import (
    Checked,
    Directory,
    RangeReport,
    RangeVerifier,
    Report,
    SegmentFiles,
    SegmentRange,
    cut_ranges,
    format_at,
    list_settled,
    missing,
    name_emptied,
    publish_check,
    retry_if_cut,
    retry_if_overtaken,
)
from duramen.spark.jobs.task_runner import cores, distribute

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TASK_BYTES = 1 << 30
"""What a task should have to check at most: a tenth of a second or more from memory, or starting it costs more than the
work; seconds from a disk, or much is lost when it fails."""
LEAST_TASK_BYTES = 16 << 20
TASKS_PER_CORE = 2


@dataclass(frozen=True)
class _VerifiedLog:
    """What an executor needs to know of the log."""

    path: str
    root: str
    format: str
    options: dict[str, Any]
    last: tuple[SegmentFiles, ...]
    """The last two segments: whether the last one has begun is judged by the one before."""

    def verifier(self, lost: LostPages) -> RangeVerifier:
        directory = Directory(self.root, list(self.last), [], [], [])
        disk = PosixDisk().within(self.path).surviving(lost)
        return RangeVerifier(disk, self.path, make(self.format, **self.options), lambda _bytes: None, directory)


@dataclass(frozen=True)
class _Unit:
    """One thing to check: a segment, or a piece of one."""

    number: int
    files: SegmentFiles
    is_last: bool
    piece: SegmentRange | None = None


@dataclass
class _VerifyTask:
    log: _VerifiedLog
    units: list[_Unit] = field(default_factory=list)
    size_bytes: int = 0


def verify(
    spark: SparkSession,
    path: str,
    *,
    format: str | None = None,
    piece_bytes: int | None = None,
    publish: bool = False,
    **options: Any,
) -> Report:
    """Check the log at ``path``. ``piece_bytes``: about how much one task checks (chosen by size and cores).
    ``publish`` as in `duramen.verify`."""
    whole = posixpath.abspath(path)  # executors run elsewhere

    disk = PosixDisk().within(whole)

    def check_once(lost: LostPages) -> Report:
        return retry_if_overtaken(lambda: _verify(spark, disk, lost, whole, format, piece_bytes, options))

    def check() -> Report:
        return name_emptied(retry_if_cut(disk, check_once))

    return _named(publish_check(disk, whole, check) if publish else check(), whole, path)


def _named(report: Report, whole: str, path: str) -> Report:
    """The report with paths as the caller wrote them."""
    if whole == path:
        return report

    def told(full: str) -> str:
        return path + full.removeprefix(whole) if full == whole or full.startswith(whole + "/") else full

    segments = [replace(segment, path=told(segment.path)) for segment in report.segments]
    findings = [
        replace(finding, path=told(finding.path), action=finding.action.replace(whole, path))
        for finding in report.findings
    ]
    return replace(report, path=path, segments=segments, findings=findings)


def _verify(
    spark: SparkSession,
    disk: PosixDisk,
    lost: LostPages,
    path: str,
    format: str | None,
    piece_bytes: int | None,
    options: dict[str, Any],
) -> Report:
    disk = disk.surviving(lost)
    fmt = format_at(disk, path, format, options)
    directory = list_settled(disk, path, fmt)
    log = _VerifiedLog(path, directory.root, fmt.name, dict(fmt.options), tuple(directory.segments[-2:]))
    driver = RangeVerifier(disk, path, fmt, lambda _bytes: None, directory)
    total = sum(files.segment.size_bytes for files in directory.segments)
    if piece_bytes is None:
        piece_bytes = min(TASK_BYTES, max(LEAST_TASK_BYTES, total // (cores(spark) * TASKS_PER_CORE)))
    units = _units(driver, disk, directory, piece_bytes)
    results = _run(spark, log, units, piece_bytes, lost)
    checked = _joined(driver, directory, units, results)
    again = [unit for unit in _whole(directory) if checked[unit.number] is None]
    for unit, result in zip(again, _run(spark, log, again, piece_bytes, lost), strict=True):
        checked[unit.number] = result
    return driver.conclude([part for part in checked if part is not None])


def _units(driver: RangeVerifier, disk: PosixDisk, directory: Directory, piece_bytes: int) -> list[_Unit]:
    units = []
    for unit in _whole(directory):
        pieces = cut_ranges(disk, directory, unit.files, driver.format, piece_bytes)
        if len(pieces) < 2:
            units.append(unit)
            continue
        units += [_Unit(unit.number, unit.files, unit.is_last, piece) for piece in pieces]
    return units


def _whole(directory: Directory) -> list[_Unit]:
    last = len(directory.segments) - 1
    return [_Unit(number, files, number == last) for number, files in enumerate(directory.segments)]


def _run(spark: SparkSession, log: _VerifiedLog, units: Sequence[_Unit], task_bytes: int, lost: LostPages) -> list[Any]:
    """The results for all units, in order; small units share a task. Adds the pages that the tasks lost."""
    tasks: list[_VerifyTask] = []
    for unit in units:
        if not tasks or tasks[-1].size_bytes + _size(unit) // 2 > task_bytes:  # most of it would be too much
            tasks.append(_VerifyTask(log))
        tasks[-1].units.append(unit)
        tasks[-1].size_bytes += _size(unit)
    done = distribute(spark, _check, tasks)
    lost.ended += [place for _, places in done for place in places]
    return [result for results, _ in done for result in results]


def _size(unit: _Unit) -> int:
    if unit.piece is None:
        return unit.files.segment.size_bytes
    stop = unit.files.segment.size_bytes if unit.piece.is_last else unit.piece.stop
    return stop - unit.piece.start.position


def _check(task: _VerifyTask) -> tuple[list[Checked | RangeReport | StorageError], list[tuple[str, int]]]:
    """In an executor: check the units of one task, and say where pages were lost. A unit whose file is missing returns
    the error."""
    lost = LostPages()
    verifier = task.log.verifier(lost)
    results: list[Checked | RangeReport | StorageError] = []
    for unit in task.units:
        try:
            results.append(_check_unit(verifier, unit))
        except StorageError as error:
            results.append(missing(error))
    return results, lost.found()


def _check_unit(verifier: RangeVerifier, unit: _Unit) -> Checked | RangeReport:
    if unit.piece is not None:
        return verifier.check_range(unit.files, unit.piece, is_last=unit.is_last)
    whole = verifier.check_alone(unit.files, is_last=unit.is_last)
    return whole or verifier.check(unit.files, is_last=unit.is_last)


def _joined(
    driver: RangeVerifier, directory: Directory, units: Sequence[_Unit], results: Sequence[Any]
) -> list[Checked | StorageError | None]:
    """The reports of the segments; None if a segment has to be checked as a whole, the error if it is missing."""
    pieces: dict[int, list[Any]] = {}
    checked: list[Checked | StorageError | None] = [None] * len(directory.segments)
    for unit, result in zip(units, results, strict=True):
        if unit.piece is not None:
            pieces.setdefault(unit.number, []).append(result)
        else:
            checked[unit.number] = result
    for number, parts in pieces.items():
        is_last = number == len(directory.segments) - 1
        gone = next((part for part in parts if isinstance(part, StorageError)), None)
        try:
            checked[number] = gone or driver.join(directory.segments[number], parts, is_last=is_last)
        except StorageError as error:
            checked[number] = missing(error)
    return checked


def verify_rows(spark: SparkSession, path: str, *, format: str | None = None, **options: Any) -> DataFrame:
    """The report as a DataFrame: one row per segment (``kind`` "segment") and one per finding ("finding")."""
    report = verify(spark, path, format=format, **options)
    rows: list[tuple[Any, ...]] = [
        ("segment", s.path, None, None, s.ending, None, None, s.first_offset, s.last_offset, s.records, s.valid_bytes)
        for s in report.segments
    ]
    rows += [
        ("finding", f.path, str(f.severity), f.code, f.message, f.action, f.position, f.first_offset, f.last_offset,
         None, None)
        for f in report.findings
    ]  # fmt: skip
    return spark.createDataFrame(
        rows,
        "kind string, path string, severity string, code string, message string, action string, position bigint, "
        "first_offset bigint, last_offset bigint, records bigint, valid_bytes bigint",
    )
