"""Check a log in threads: several segments at once, large ones in ranges. The kernel releases the interpreter's lock.

The report is the same as that of a single thread: ranges that do not fit together are checked again in one pass. An
interrupt takes effect after a step of the scan, not after a segment.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from duramen.disk import Disk
from duramen.errors import StorageError
from duramen.formats import Format
from duramen.log.segments import Directory, SegmentFiles
from duramen.log.verify.ranges import RangeReport, RangeVerifier, cut_ranges
from duramen.log.verify.report import Finding, Report
from duramen.log.verify.segment_check import Checked, Progress
from duramen.log.verify.sidecar_check import SidecarEvidence
from duramen.log.verify.verifier import missing

PIECE_BYTES = 32 << 20
"""Small enough that all threads finish at about the same time."""


def check_in_threads(
    disk: Disk,
    path: str,
    fmt: Format,
    directory: Directory,
    progress: Progress | None = None,
    findings: Sequence[Finding] = (),
    evidence: SidecarEvidence | None = None,
) -> Report:
    """Check every segment of a log, with one thread per processor."""
    threads = _processors()
    meter = _Meter(progress)
    verifier = RangeVerifier(disk, path, fmt, meter.count, directory, evidence, at_once=threads)
    verifier.report.findings += findings
    pool = ThreadPoolExecutor(threads, "verify")
    try:
        last = len(directory.segments) - 1
        jobs = [
            _Job(verifier, pool, disk, directory, files, meter, is_last=number == last)
            for number, files in enumerate(directory.segments)
        ]
        return verifier.conclude([job.result() for job in jobs])
    finally:
        meter.is_stopped = True
        pool.shutdown(cancel_futures=True)


def _processors() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _StoppedError(Exception):
    """The caller no longer waits for the result."""


class _Meter:
    """Adds up the progress of all threads, one call at a time, and stops them: each thread calls `count` after every
    step."""

    def __init__(self, progress: Progress | None) -> None:
        self.is_stopped = False
        self._progress = progress
        self._mutex = threading.Lock()

    def count(self, done_bytes: int) -> None:
        if self.is_stopped:
            raise _StoppedError
        if self._progress is not None and done_bytes > 0:
            with self._mutex:
                self._progress(done_bytes)


class _Job:
    """The check of one segment: one task, or one for each of its ranges."""

    def __init__(
        self,
        verifier: RangeVerifier,
        pool: ThreadPoolExecutor,
        disk: Disk,
        directory: Directory,
        files: SegmentFiles,
        meter: _Meter,
        *,
        is_last: bool,
    ) -> None:
        self._files = files
        self._is_last = is_last
        self._meter = meter
        self._seen_bytes = 0
        self._mutex = threading.Lock()
        self._verifier = verifier.counted_by(self._count)
        self._whole: Future[Checked] | None = None
        self._pieces: list[Future[RangeReport]] = []
        pieces = cut_ranges(disk, directory, files, verifier.format, PIECE_BYTES)
        if len(pieces) < 2:
            self._whole = pool.submit(self._check)
        else:
            check = self._verifier.check_range
            self._pieces = [pool.submit(check, files, piece, is_last=is_last) for piece in pieces]

    def result(self) -> Checked | StorageError:
        """Wait for the result; return the error if a file is missing."""
        try:
            return self._result()
        except StorageError as error:
            return missing(error)

    def _result(self) -> Checked:
        if self._whole is not None:
            return self._whole.result()
        joined = self._verifier.join(self._files, [piece.result() for piece in self._pieces], is_last=self._is_last)
        return joined if joined is not None else self._check_again()

    def _check(self) -> Checked:
        checked = self._verifier.check_alone(self._files, is_last=self._is_last)
        return checked if checked is not None else self._check_again()

    def _check_again(self) -> Checked:
        again = self._verifier.counted_by(self._count_new)
        return again.check(self._files, is_last=self._is_last)

    def _count(self, done_bytes: int) -> None:
        with self._mutex:
            self._seen_bytes += done_bytes
        self._meter.count(done_bytes)

    def _count_new(self, done_bytes: int) -> None:
        """Report the progress of a second pass only beyond that of the first: each byte counts once."""
        again_bytes = min(done_bytes, self._seen_bytes)
        self._seen_bytes -= again_bytes
        self._meter.count(done_bytes - again_bytes)
