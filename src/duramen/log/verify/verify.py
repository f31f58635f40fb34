"""Check a log: find its format, list its files, and run a `Verifier`, in threads if the log is large."""

from __future__ import annotations

import posixpath
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from duramen.disk import Disk, Kind, LostPages, disk_or_real
from duramen.errors import CorruptionError, DuramenError, StorageError, UsageError
from duramen.formats import Format, Severity, make
from duramen.log.segments import format_at, refuse_foreign_sidecar, refuse_special_files, told_by_files
from duramen.log.verify.report import Finding, Report, counted, name_emptied
from duramen.log.verify.segment_check import Progress
from duramen.log.verify.sidecar_check import SidecarEvidence
from duramen.log.verify.threads import check_in_threads
from duramen.log.verify.verifier import OvertakenError, Verifier, list_settled
from duramen.sidecar import CONFIG_NAME, Verification, write_verification

_ATTEMPTS = 10

THREADS_FROM_BYTES = 8 << 20
"""A smaller log is checked faster without threads."""


def verify_log(
    path: str,
    *,
    format: str | None = None,
    disk: Disk | None = None,
    progress: Progress | None = None,
    publish: bool = False,
    **options: Any,
) -> Report:
    """Check the log at ``path``, a directory or a single segment file. ``publish`` stores the result in the sidecar, if
    the log has one, for processes that watch the log."""
    disk = disk_or_real(disk).within(path)

    def check(lost: LostPages) -> Report:
        try:
            surviving = disk.surviving(lost)
            fmt, problem = format_for(surviving, path, format, options)
            return name_emptied(_check_current(surviving, path, fmt, progress, [] if problem is None else [problem]))
        except UsageError:  # what the files do not say may be in one that is not a regular file
            refuse_special_files(disk, path)
            raise

    def check_uncut() -> Report:
        return retry_if_cut(disk, check)

    return publish_check(disk, path, check_uncut) if publish else check_uncut()


def publish_check(disk: Disk, path: str, check: Callable[[], Report]) -> Report:
    """Run a check, and publish its result, or why it failed, in the sidecar of the log."""
    began = time.perf_counter()

    def publish(report: Report | None, problem: str = "") -> None:
        now_us, seconds = time.time_ns() // 1000, time.perf_counter() - began
        if report is None:
            found = Verification(now_us, seconds, problem=problem)
        else:
            counts = Counter(str(finding.severity) for finding in report.findings)
            found = Verification(now_us, seconds, report.records, report.bytes, dict(counts))
        write_verification(disk, path, found)

    try:
        report = check()
    except (CorruptionError, StorageError) as error:
        publish(None, str(error))
        raise
    publish(report)
    return report


def check_log(
    disk: Disk,
    path: str,
    fmt: Format,
    progress: Progress | None = None,
    findings: Sequence[Finding] = (),
    *,
    is_ours: bool = False,
) -> Report:
    """Check a log whose format is known. ``findings`` are added to the report. ``is_ours``: the caller holds the log's
    lock, which is not to be taken for that of a writer."""
    return retry_if_cut(
        disk, lambda lost: _check_current(disk.surviving(lost), path, fmt, progress, findings, is_ours=is_ours)
    )


def _check_current(
    disk: Disk,
    path: str,
    fmt: Format,
    progress: Progress | None,
    findings: Sequence[Finding],
    *,
    is_ours: bool = False,
) -> Report:
    def check() -> Report:
        evidence = SidecarEvidence(disk, path, fmt, is_ours=is_ours)  # first: the listing holds all that it names
        return _check_listed(disk, path, fmt, progress, findings, evidence)

    return retry_if_overtaken(check)


def _check_listed(
    disk: Disk,
    path: str,
    fmt: Format,
    progress: Progress | None,
    findings: Sequence[Finding],
    evidence: SidecarEvidence,
) -> Report:
    directory = list_settled(disk, path, fmt, is_ours=evidence.is_ours)
    try:
        refuse_foreign_sidecar(disk, path, fmt, directory)
    except CorruptionError as error:  # the sidecar describes another log
        finding = Finding("bad-sidecar", Severity.DAMAGE, error.path or path, error.message, error.hint or "")
        return Report(path, fmt.name, fmt.capabilities.checksum, findings=[*findings, finding])
    if sum(files.segment.size_bytes for files in directory.segments) >= THREADS_FROM_BYTES:
        return check_in_threads(disk, path, fmt, directory, progress, findings, evidence)
    verifier = Verifier(disk, path, fmt, progress or (lambda _bytes: None), directory, evidence)
    verifier.report.findings += findings
    return verifier.run()


def format_for(disk: Disk, path: str, name: str | None, options: dict[str, Any]) -> tuple[Format, Finding | None]:
    """Return the format of a log. If the sidecar cannot be read, detect it from the files and return a finding."""
    try:
        return format_at(disk, path, name, options), None
    except CorruptionError as error:
        if error.path is None or posixpath.basename(error.path) != CONFIG_NAME:
            raise
        action = "`duramen repair` rebuilds it; no record is lost"
        problem = Finding("bad-sidecar", Severity.DAMAGE, error.path, error.message, action)
        return make(name or told_by_files(disk, path).format, **options), problem


def retry_if_overtaken(check: Callable[[], Report]) -> Report:
    """Repeat ``check`` while retention removes every segment that it listed; the report then says so."""
    overtaken: list[OvertakenError] = []
    while True:
        try:
            report = check()
        except OvertakenError as error:
            overtaken.append(error)
            if len(overtaken) == _ATTEMPTS:
                raise
            continue
        if overtaken:
            report.findings.insert(0, _all_removed(overtaken, report))
        return report


def retry_if_cut(disk: Disk, check: Callable[[LostPages], Report]) -> Report:
    """Repeat ``check`` while a file that it reads is shortened: by the recovery of a writer, or another program. The
    check adds the pages that it lost. Raises `StorageError` if a file cannot be read, or is shortened every time."""
    for _ in range(_ATTEMPTS):
        lost = LostPages()
        problem = None
        try:
            report = check(lost)
        except DuramenError as error:  # it may come from the zeros
            problem = error
        found = lost.found()
        if found:
            for path, position in found:
                if disk.kind(path) == Kind.FILE:
                    disk.read(path, 1, position)  # raises what the device says, if that was the cause
        elif problem is not None:
            raise problem
        else:
            return report
    raise StorageError(
        f"the file was shortened during each of {_ATTEMPTS} checks", path=path, position=position,
        hint="stop the program that changes it, or check a copy",
    )  # fmt: skip


def _all_removed(overtaken: Sequence[OvertakenError], report: Report) -> Finding:
    last = min((segment.base_offset for segment in report.segments), default=0) - 1
    first = overtaken[0].offset
    return Finding(
        "segments-removed", Severity.NOTE, report.path,
        counted(sum(error.count for error in overtaken), "segment was removed", "segments were removed")
        + " during the check: all that were listed. Their successors were checked instead",
        "nothing: retention removes from the beginning", first_offset=first,
        last_offset=last if first is not None and last >= first else None,
    )  # fmt: skip
