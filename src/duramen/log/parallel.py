"""`verify` in threads: segments side by side, large ones in pieces. The kernel works without the interpreter's lock.

The report is the one that a single thread would give: pieces that do not fit together are checked again in one go.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from duramen.disk import Disk
from duramen.formats import Format
from duramen.log.directory import Directory, SegmentFiles
from duramen.log.pieces import PieceReport, PieceVerifier, cut
from duramen.log.report import Finding, Report
from duramen.log.verify import Checked, Progress

PIECE_BYTES = 32 << 20
"""Small enough that all threads end at about the same time."""


def check_in_threads(
    disk: Disk,
    path: str,
    fmt: Format,
    directory: Directory,
    progress: Progress | None = None,
    findings: Sequence[Finding] = (),
) -> Report:
    """Check every segment of a log, as many at once as there are processors."""
    counted = _one_at_a_time(progress)
    verifier = PieceVerifier(disk, path, fmt, counted, directory)
    verifier.report.findings += findings
    pool = ThreadPoolExecutor(_processors(), "verify")
    try:
        last = len(directory.segments) - 1
        jobs = [
            _Job(verifier, pool, disk, directory, files, counted, is_last=number == last)
            for number, files in enumerate(directory.segments)
        ]
        return verifier.conclude([job.result() for job in jobs])
    finally:
        pool.shutdown(cancel_futures=True)


def _processors() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Job:
    """The work on one segment: one task, or one for every piece of it."""

    def __init__(
        self,
        verifier: PieceVerifier,
        pool: ThreadPoolExecutor,
        disk: Disk,
        directory: Directory,
        files: SegmentFiles,
        progress: Progress,
        *,
        is_last: bool,
    ) -> None:
        self._verifier = verifier
        self._files = files
        self._is_last = is_last
        self._progress = progress
        self._whole: Future[Checked] | None = None
        self._digest: Future[list[Finding]] | None = None
        self._pieces: list[Future[PieceReport]] = []
        pieces = cut(disk, directory, files, verifier.format, PIECE_BYTES)
        if len(pieces) < 2:
            self._whole = pool.submit(verifier.check, files, is_last=is_last)
            return
        self._pieces = [pool.submit(verifier.check_piece, files, piece, is_last=is_last) for piece in pieces]
        if verifier.needs_digest(files):
            self._digest = pool.submit(verifier.digest, files)

    def result(self) -> Checked:
        if self._whole is not None:
            return self._whole.result()
        reports = []
        for piece in self._pieces:
            reports.append(piece.result())
            self._progress(reports[-1].report.valid_bytes)
        digest = self._digest.result() if self._digest is not None else []
        joined = self._verifier.join(self._files, reports, digest)
        return joined if joined is not None else self._verifier.check(self._files, is_last=self._is_last)


def _one_at_a_time(progress: Progress | None) -> Progress:
    """Whoever counts the bytes need not know of threads."""
    if progress is None:
        return lambda _done_bytes: None
    guard = threading.Lock()

    def counted(done_bytes: int) -> None:
        with guard:
            progress(done_bytes)

    return counted
