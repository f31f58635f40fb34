"""What the sidecar knows against what the files hold: digests of sealed segments, and the durable watermark.

This is what no format can notice by itself: a changed byte without a checksum, a file cut between two records, a
segment that is gone. Reads only, needs no lock.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from duramen import kernel
from duramen.disk import Disk
from duramen.disk.base import Kind
from duramen.formats import Format
from duramen.formats.base import Severity
from duramen.log.ending import Ending
from duramen.log.report import Finding, SegmentReport
from duramen.log.sidecar import Sealed, Sidecar, Watermark, read_watermark

_RESTORE = "restore the file from a copy; `duramen repair` shows what can be kept without"


class Evidence:
    """The sidecar of the log at ``root``, as far as it can be read; nothing, if there is none."""

    def __init__(self, disk: Disk, root: str, fmt: Format) -> None:
        self._root = root
        self._fmt = fmt
        self._sealed: dict[int, Sealed] = {}
        self._watermark: Watermark | None = None
        if disk.kind(root) == Kind.DIRECTORY:
            self._sealed = Sidecar(disk, root).sealed()
            self._watermark = read_watermark(disk, root)

    def of_segment(self, report: SegmentReport, data: memoryview) -> Iterator[Finding]:
        """A sealed segment must be the one that was sealed; the active one must hold what was durable."""
        yield from self.of_sealed(report, data)
        yield from self.of_watermark(report)

    def is_sealed(self, base: int) -> bool:
        return base in self._sealed

    def of_sealed(self, report: SegmentReport, data: memoryview) -> Iterator[Finding]:
        """Whether a sealed segment still has the size and the digest that it was sealed with."""
        sealed = self._sealed.get(report.base_offset)
        if sealed is not None:
            if len(data) > sealed.size_bytes and kernel.crc32c(data[: sealed.size_bytes]) == sealed.crc32c:
                message = f"another program went on behind the {sealed.size_bytes} bytes that were sealed"
                yield Finding("sealed-continued", Severity.NOTE, report.path, message, "nothing: all of it is there")
            elif len(data) != sealed.size_bytes:
                message = f"the sealed segment has {len(data)} bytes instead of {sealed.size_bytes}"
                yield Finding("sealed-size", Severity.DAMAGE, report.path, message, _RESTORE)
            elif kernel.crc32c(data) != sealed.crc32c or kernel.crc32(data) != sealed.crc32:
                message = "the sealed segment is not what was written: its digest differs"
                yield Finding("digest-mismatch", Severity.DAMAGE, report.path, message, _RESTORE)

    def of_watermark(self, report: SegmentReport) -> Iterator[Finding]:
        """Whether the active segment holds what was durable."""
        mark = self._watermark
        if mark is None or mark.base != report.base_offset or report.ending not in (Ending.CLEAN, Ending.TORN):
            return
        if report.valid_bytes < mark.durable_position:
            following = report.base_offset if report.last_offset is None else report.last_offset + 1
            yield Finding(
                "durable-records-missing", Severity.DAMAGE, report.path,
                f"records were durable up to byte {mark.durable_position}, and end at byte {report.valid_bytes}",
                _RESTORE, report.valid_bytes, following, mark.durable_offset - 1,
            )  # fmt: skip

    def of_log(self, segments: Sequence[SegmentReport]) -> Iterator[Finding]:
        """Segments that should be there. What is missing from the beginning was removed on purpose."""
        there = {segment.base_offset for segment in segments}
        oldest = min(there, default=-1)
        for base, sealed in self._sealed.items():
            if base not in there and base > oldest:
                yield Finding(
                    "missing-segment", Severity.DAMAGE, f"{self._root}/{self._fmt.segment_path(base)}",
                    "a sealed segment is missing", _RESTORE, None, base, sealed.last_offset,
                )  # fmt: skip
        mark = self._watermark
        if mark is not None and mark.base > max(there, default=-1) and mark.durable_offset > mark.base:
            yield Finding(
                "missing-segment", Severity.DAMAGE, f"{self._root}/{self._fmt.segment_path(mark.base)}",
                "the active segment is missing", _RESTORE, None, mark.base, mark.durable_offset - 1,
            )  # fmt: skip
