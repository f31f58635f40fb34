"""What the sidecar knows against what the files hold: digests of sealed segments, and the durable watermark.

This is what no format can notice by itself: a changed byte without a checksum, a file cut between two records, a
segment that is gone. Also what was promised: the offset behind the last record that somebody was told to be stored.
Reads only, needs no lock.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from duramen import kernel
from duramen.disk import Disk
from duramen.disk.base import Kind
from duramen.errors import UsageError
from duramen.formats import Format, make
from duramen.formats.base import Severity
from duramen.log import change
from duramen.log.ending import Ending
from duramen.log.report import Finding, SegmentReport, counted
from duramen.log.running import Digest, Running
from duramen.log.sidecar import DIRECTORY, Sealed, Sidecar, Watermark, read_watermark

_RESTORE = "restore the file from a copy; `duramen repair` shows what can be kept without"


class Evidence:
    """The sidecar of the log at ``root``, as far as it can be read; nothing, if there is none."""

    def __init__(self, disk: Disk, root: str, fmt: Format) -> None:
        self._root = root
        self._fmt = fmt
        self._sealed: dict[int, Sealed] = {}
        self._watermark: Watermark | None = None
        if disk.kind(root) == Kind.DIRECTORY:
            self._sealed = settled_digests(disk, root, fmt)
            self._watermark = read_watermark(disk, root)
        self._disk = disk
        self.log_files = _log_files(disk, root, fmt)
        """The files that describe the log, by path."""
        self._manifest = _manifest(fmt, self.log_files)

    @property
    def promised_offset(self) -> int | None:
        """The offset behind the last record that was ever acknowledged as durable, as far as anything tells."""
        known = [entry.last_offset + 1 for entry in self._sealed.values()]
        mark = self._watermark
        if mark is not None:
            known.append(mark.durable_offset if mark.is_open else mark.next_offset)
        if isinstance(self._manifest.get("next_offset"), int):
            known.append(self._manifest["next_offset"])
        return max(known, default=None)

    @property
    def first_known_offset(self) -> int:
        """The oldest offset that the sidecar knows of."""
        known = [*self._sealed, *([self._watermark.base] if self._watermark is not None else [])]
        return min(known, default=0)

    @property
    def known_bases(self) -> set[int]:
        """Where segments began that the sidecar knows of."""
        return {*self._sealed, *([self._watermark.base] if self._watermark is not None else [])}

    def sealed_within(self, first: int, last: int) -> bool:
        """Whether some of these offsets were in a sealed segment."""
        listed = [(entry.base, entry.last_offset) for entry in self._sealed.values()]
        listed += [(entry["base_offset"], entry["last_offset"]) for entry in self._manifest.get("segments", ())]
        return any(base <= last and first <= end for base, end in listed)

    @property
    def sealed(self) -> Mapping[int, Sealed]:
        return self._sealed

    def is_outdated_by(self, later: Evidence) -> bool:
        """Whether compaction has replaced or emptied a segment since. Retention takes from the beginning only."""
        first = later.first_known_offset
        return any(later._sealed.get(base) != entry for base, entry in self._sealed.items() if base >= first)

    @property
    def watermark(self) -> Watermark | None:
        return self._watermark

    @property
    def manifest(self) -> Mapping[str, Any]:
        """What the format's own description of the log says, as far as it can be read."""
        return self._manifest

    @cached_property
    def described(self) -> Format:
        """The format with the settings that the log's own description holds, unless they are given."""
        return as_described(self._fmt, self._manifest)

    def is_active(self, report: SegmentReport) -> bool:
        """Whether a writer had this segment open, and has not closed it."""
        mark = self._watermark
        return mark is not None and mark.is_open and mark.base <= report.base_offset

    @property
    def is_being_written(self) -> bool:
        """Whether a writer has the log open at this moment."""
        mark = self._watermark
        return mark is not None and mark.is_open and self._disk.is_locked(posixpath.join(self._root, DIRECTORY, "lock"))

    def is_closed(self, report: SegmentReport) -> bool:
        """Whether this is the active segment as a writer left it that had nothing more to write."""
        mark = self._watermark
        ours = mark is not None and not mark.is_open and mark.base == report.base_offset
        return ours and mark is not None and mark.position == report.valid_bytes

    def running(self, base: int, data: memoryview, start: int = 0, stop: int | None = None) -> Running | None:
        """What takes the digest of a segment that the sidecar has one of, or the part of it that lies between two
        positions; None where there is none, or the segment is shorter than its digest."""
        sealed = self._sealed.get(base)
        until = self._unproven_until(base) if sealed is None else sealed.size_bytes
        if not 0 < until <= len(data):
            return None
        both = sealed is not None and sealed.size_bytes == len(data)
        return Running(data, start, until if stop is None else min(until, stop), both=both)

    def of_sealed(
        self, report: SegmentReport, data: memoryview, digest: Digest | None = None, *, is_growing: bool = False
    ) -> Iterator[Finding]:
        """Whether a segment still has the size and the digest that it was sealed with; or, where its records have no
        checksum, the one that the watermark has. ``digest`` is what `running` took; what it lacks is made here. One
        that was growing when it was listed may be sealed by now, with more than was looked at."""
        yield from self._of_unproven(report, data, digest)
        sealed = self._sealed.get(report.base_offset)
        if sealed is not None and not is_growing:
            if len(data) > sealed.size_bytes and _crc32c(data, sealed.size_bytes, digest) == sealed.crc32c:
                message = f"another program went on behind the {sealed.size_bytes} bytes that were sealed"
                yield Finding("sealed-continued", Severity.NOTE, report.path, message, "nothing: all of it is there")
            elif len(data) != sealed.size_bytes:
                message = f"the sealed segment has {len(data)} bytes instead of {sealed.size_bytes}"
                yield Finding("sealed-size", Severity.DAMAGE, report.path, message, _RESTORE)
            elif _crc32c(data, len(data), digest) != sealed.crc32c or _crc32(data, digest) != sealed.crc32:
                message = "the sealed segment is not what was written: its digest differs"
                yield Finding("digest-mismatch", Severity.DAMAGE, report.path, message, _RESTORE)

    def _of_unproven(self, report: SegmentReport, data: memoryview, digest: Digest | None) -> Iterator[Finding]:
        """Records without a checksum of their own: the watermark has one of everything up to it."""
        mark, position = self._watermark, self._unproven_until(report.base_offset)
        if mark is not None and 0 < position <= len(data) and _crc32c(data, position, digest) != mark.durable_crc32c:
            message = f"the first {position} bytes are not what was written: their digest differs"
            yield Finding("digest-mismatch", Severity.DAMAGE, report.path, message, _RESTORE)

    def _unproven_until(self, base: int) -> int:
        """How many bytes the watermark has a checksum of, where the records have none of their own."""
        mark = self._watermark
        if mark is None or mark.base != base or self._fmt.capabilities.record_checksum:
            return 0
        return mark.durable_position

    def of_watermark(self, report: SegmentReport) -> Iterator[Finding]:
        """Whether the active segment holds what was durable."""
        mark = self._watermark
        if mark is None or mark.base != report.base_offset or report.ending not in (Ending.CLEAN, Ending.TORN):
            return
        yield from self._of_offsets(mark, report)
        yield from self._of_unacknowledged(mark, report)
        following = report.base_offset if report.last_offset is None else report.last_offset + 1
        if report.valid_bytes < mark.durable_position and following < mark.durable_offset:  # not damage before the end
            yield Finding(
                "durable-records-missing", Severity.DAMAGE, report.path,
                f"records were durable up to byte {mark.durable_position}, and end at byte {report.valid_bytes}",
                _RESTORE, report.valid_bytes, following, mark.durable_offset - 1,
            )  # fmt: skip

    def _of_unacknowledged(self, mark: Watermark, report: SegmentReport) -> Iterator[Finding]:
        """Records that nobody was told of, and that no checksum proves: the next writer sets them aside."""
        behind = report.valid_bytes - mark.position
        if not mark.is_open or behind <= 0 or self._fmt.capabilities.record_checksum or self.is_being_written:
            return
        yield Finding(
            "unacknowledged", Severity.NOTE, report.path,
            f"{counted(behind, 'byte')} behind byte {mark.position} were written and never acknowledged",
            "nothing: no checksum proves them, so that they are set aside when the log is next opened for writing",
            mark.position, mark.next_offset, report.last_offset,
        )  # fmt: skip

    def _of_offsets(self, mark: Watermark, report: SegmentReport) -> Iterator[Finding]:
        """The watermark names the offset behind its last byte: a record that says otherwise has a wrong offset."""
        following = report.base_offset if report.last_offset is None else report.last_offset + 1
        explicit = self._fmt.capabilities.explicit_offsets
        if explicit and not mark.is_open and report.valid_bytes == mark.position and following != mark.next_offset:
            yield Finding(
                "watermark-disagrees", Severity.DAMAGE, report.path,
                f"what ends at byte {mark.position} ended before offset {mark.next_offset}, and now before {following}",
                _RESTORE, None, min(following, mark.next_offset) - 1, max(following, mark.next_offset) - 1,
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


def settled_digests(disk: Disk, root: str, fmt: Format) -> dict[int, Sealed]:
    """What is known of sealed segments, but for those that an unfinished change replaces or removes."""
    sealed = Sidecar(disk, root).sealed()
    replaced, removed = change.unsettled(disk, root)
    changing = replaced | removed
    return {base: entry for base, entry in sealed.items() if fmt.segment_path(base) not in changing}


def as_described(fmt: Format, facts: Mapping[str, Any]) -> Format:
    """The format with the settings that the log's own description holds, unless they are given, or make no sense."""
    kept = {name: facts[name] for name in fmt.option_names if name in facts}
    try:
        return make(fmt.name, **{**kept, **fmt.options}) if kept else fmt
    except UsageError:
        return fmt


def _crc32c(data: memoryview, until: int, digest: Digest | None) -> int:
    return digest.crc32c if digest is not None and digest.size_bytes == until else kernel.crc32c(data[:until])


def _crc32(data: memoryview, digest: Digest | None) -> int:
    if digest is not None and digest.size_bytes == len(data) and digest.crc32 is not None:
        return digest.crc32
    return kernel.crc32(data)


def manifest_ends(disk: Disk, root: str, fmt: Format) -> dict[tuple[int, int], int]:
    """The last offset of every sealed segment that the manifest lists, by its base and size."""
    listed = _manifest(fmt, _log_files(disk, root, fmt)).get("segments", ())
    return {(entry["base_offset"], entry["log_bytes"]): entry["last_offset"] for entry in listed}


def _log_files(disk: Disk, root: str, fmt: Format) -> Mapping[str, memoryview]:
    if disk.kind(root) != Kind.DIRECTORY:
        return {}
    paths = {name: posixpath.join(root, name) for name in fmt.log_files([], 0)}
    return {name: disk.map(path).data for name, path in paths.items() if disk.kind(path) == Kind.FILE}


def _manifest(fmt: Format, files: Mapping[str, memoryview]) -> Mapping[str, Any]:
    """What the format's own description of the log says; nothing where there is none or it cannot be read."""
    for name, data in files.items():
        facts = fmt.describe({name: data}).get("manifest")
        return facts if isinstance(facts, dict) else {}
    return {}
