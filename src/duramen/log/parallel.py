"""`verify` in threads: segments side by side, large ones in pieces. The kernel works without the interpreter's lock.

The report is the one that a single thread would give: pieces that do not fit together are checked again in one go.
Whoever interrupts it waits for a step of the scan, not for a segment.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from duramen.disk import Disk
from duramen.errors import StorageError
from duramen.formats import Format
from duramen.log.directory import Directory, SegmentFiles
from duramen.log.evidence import Evidence
from duramen.log.pieces import PieceReport, PieceVerifier, cut
from duramen.log.report import Finding, Report
from duramen.log.verify import Checked, Progress, missing

PIECE_BYTES = 32 << 20
"""Small enough that all threads end at about the same time."""


def check_in_threads(
    disk: Disk,
    path: str,
    fmt: Format,
    directory: Directory,
    progress: Progress | None = None,
    findings: Sequence[Finding] = (),
    evidence: Evidence | None = None,
) -> Report:
    """Check every segment of a log, as many at once as there are processors."""
    threads = _processors()
    meter = _Meter(progress)
    verifier = PieceVerifier(disk, path, fmt, meter.count, directory, evidence, at_once=threads)
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
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _StoppedError(Exception):
    """Nobody waits for the answer any more."""


class _Meter:
    """Counts the bytes of all threads for somebody who need not know of threads, and stops them where it is told to:
    they come by here after every step."""

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
    """The work on one segment: one task, or one for every piece of it."""

    def __init__(
        self,
        verifier: PieceVerifier,
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
        self._pieces: list[Future[PieceReport]] = []
        pieces = cut(disk, directory, files, verifier.format, PIECE_BYTES)
        if len(pieces) < 2:
            self._whole = pool.submit(self._check)
        else:
            check = self._verifier.check_piece
            self._pieces = [pool.submit(check, files, piece, is_last=is_last) for piece in pieces]

    def result(self) -> Checked | StorageError:
        """What was found; the error where a file is gone."""
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
        """A second look counts only from where the first ones ended: a byte is counted once."""
        again_bytes = min(done_bytes, self._seen_bytes)
        self._seen_bytes -= again_bytes
        self._meter.count(done_bytes - again_bytes)
