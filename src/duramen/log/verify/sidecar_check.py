"""Compare the files of a log with its sidecar: the digests of sealed segments, and the durable watermark.

This finds what no format shows by itself: a changed byte without a checksum, a file cut between two records, a missing
segment, an acknowledged record that is missing. Reads only, needs no lock.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from duramen.disk import Disk, Kind
from duramen.errors import StorageError
from duramen.formats import FileName, Format, Index, Role, Segment, Severity
from duramen.log.segments import (
    Digest,
    EndKind,
    LogFile,
    RunningDigest,
    SealVerdict,
    as_described,
    described_by,
    digested_bytes,
    find_contradiction,
    judge_seal,
    lacks_active,
    manifest_facts,
    read_clean_close,
    settled_digests,
)
from duramen.log.verify.index_check import NEVER
from duramen.log.verify.report import Finding, SegmentReport, counted
from duramen.sidecar import (
    DIRECTORY,
    GROUPS_NAME,
    SEALED_PATH,
    Sealed,
    SealedList,
    Watermark,
    changed_by_file_swap,
    has_writer,
    settled_watermark,
    sidecar_path,
)

_RESTORE = "restore the file from a copy; `duramen repair` shows what can be kept without"


_GROUP_ROLES = {".snap": Role.GROUP_SNAPSHOT, ".delta": Role.GROUP_DELTA}


def sidecar_groups(disk: Disk, root: str) -> list[LogFile]:
    """The state of the groups of a log whose format has no place for it."""
    directory = sidecar_path(root, GROUPS_NAME)
    if disk.kind(directory) != Kind.DIRECTORY:
        return []
    found = ((name, size_bytes, posixpath.splitext(name)[1]) for name, size_bytes in disk.list(directory))
    return [
        LogFile(posixpath.join(DIRECTORY, GROUPS_NAME, name), FileName(_GROUP_ROLES[suffix]), size_bytes)
        for name, size_bytes, suffix in found
        if suffix in _GROUP_ROLES
    ]


class SidecarEvidence:
    """The sidecar of the log at ``root``, as far as it exists and can be read. ``is_ours``: the caller holds the log's
    lock, so that no other process writes. ``known`` is earlier evidence of the same log: what it has read of the sealed
    list, and is still the same there, is not parsed again."""

    def __init__(
        self, disk: Disk, root: str, fmt: Format, *, is_ours: bool = False, known: SidecarEvidence | None = None
    ) -> None:
        self._root = root
        self.is_ours = is_ours
        self._fmt = fmt
        self._sealed: dict[int, Sealed] = {}
        self._watermark: Watermark | None = None
        self._list: SealedList = SealedList(disk, root) if known is None else known._list
        if disk.kind(root) == Kind.DIRECTORY:
            self._sealed = settled_digests(disk, root, fmt, self._list)
            self._watermark = settled_watermark(disk, root, is_ours=is_ours)
        self._disk = disk
        self.log_files = described_by(disk, root, fmt)
        """The format's files that describe the log, by path."""

    @property
    def promised_offset(self) -> int | None:
        """The offset after the last record that was ever acknowledged as durable, if known."""
        known = [entry.last_offset + 1 for entry in self._sealed.values()]
        mark = self._watermark
        if mark is not None:
            is_proven = not mark.is_open or self.lacks_active  # acknowledged offsets are not assigned again
            known.append(max(mark.next_offset, mark.durable_offset) if is_proven else mark.durable_offset)
        if isinstance(self.manifest.get("next_offset"), int):
            known.append(self.manifest["next_offset"])
        return max(known, default=None)

    @property
    def first_known_offset(self) -> int:
        """The oldest offset that the sidecar knows."""
        known = [*self._sealed, *([self._watermark.base] if self._watermark is not None else [])]
        return min(known, default=0)

    def sealed_within(self, first: int, last: int) -> bool:
        """Whether a sealed segment held some of these offsets."""
        listed = [(entry.base, entry.last_offset) for entry in self._sealed.values()]
        listed += [(entry["base_offset"], entry["last_offset"]) for entry in self.manifest.get("segments", ())]
        return any(base <= last and first <= end for base, end in listed)

    @property
    def sealed(self) -> Mapping[int, Sealed]:
        return self._sealed

    def dense_end(self, path: str, base: int, size_bytes: int) -> int | None:
        """The offset after the last record of a segment of this size that has a record at each offset from ``base``
        on, as its writer counted them when it sealed it or closed the log. None where that is not known, or where the
        file has changed since as far as its size and times show."""
        entry = self._sealed.get(base)
        if entry is not None:
            return entry.last_offset + 1 if entry.is_dense and entry.size_bytes == size_bytes else None
        mark = self._watermark
        if mark is None or mark.is_open or (mark.base, mark.position) != (base, size_bytes):
            return None
        closing = read_clean_close(self._disk, self._root)
        if closing is None or closing.mark != mark or closing.records != mark.next_offset - base:
            return None
        try:
            is_same = closing.files.get(posixpath.relpath(path, self._root)) == self._disk.stamp(path)
        except StorageError:
            return None  # it was removed since
        return mark.next_offset if is_same else None

    def is_outdated_by(self, later: SidecarEvidence) -> bool:
        """Whether compaction has replaced or emptied a segment since. Retention only removes the oldest segments."""
        first = later.first_known_offset
        return any(later._sealed.get(base) != entry for base, entry in self._sealed.items() if base >= first)

    @property
    def watermark(self) -> Watermark | None:
        return self._watermark

    @cached_property
    def manifest(self) -> Mapping[str, Any]:
        """The contents of the format's manifest, as far as it can be read."""
        return manifest_facts(self._fmt, self.log_files)

    @cached_property
    def described(self) -> Format:
        """The format with the settings of the manifest, unless they were given explicitly."""
        return as_described(self._fmt, self.manifest)

    def is_active(self, report: SegmentReport) -> bool:
        """Whether a writer opened this segment and has not closed it."""
        mark = self._watermark
        return mark is not None and mark.is_open and mark.base <= report.base_offset

    @property
    def is_being_written(self) -> bool:
        """Whether a writer has the log open now."""
        mark = self._watermark
        if mark is None or not mark.is_open or self.is_ours:
            return False
        return has_writer(self._disk, self._root)

    def was_durable(self, base: int) -> bool:
        """Whether a record of the segment with that base was ever acknowledged as durable."""
        mark = self._watermark
        return base in self._sealed or (mark is not None and mark.base == base and mark.durable_offset > base)

    def lacks_last_line(self, bases: Collection[int]) -> bool:
        """Whether the sealed list had a line for the segment before the active one, and has none now. Retention and
        compaction in another process are none of that, nor is a line whose segment is missing or has another name."""
        mark = self._watermark
        if mark is None or not mark.is_previous_sealed or self._sealed.keys() - set(bases):
            return False
        before = max((base for base in bases if base < mark.base), default=None)
        if before is None or before in self._sealed:
            return False
        path = self._fmt.segment_path(before)
        is_there = self._disk.kind(posixpath.join(self._root, path)) == Kind.FILE
        if not is_there or any(path in changed for changed in changed_by_file_swap(self._disk, self._root)):
            return False
        has_list = (
            self._disk.kind(posixpath.join(self._root, SEALED_PATH)) == Kind.FILE
        )  # else it was deleted as a whole
        return has_list and before not in SealedList(self._disk, self._root).entries()

    def knows(self, base: int) -> bool:
        """Whether the sidecar says what the segment with that base holds. If the active one is missing, the watermark
        may be older than its records."""
        if base in self._sealed or self._watermark is None:
            return base in self._sealed
        path = posixpath.join(self._root, self._fmt.segment_path(base))
        is_last = self._watermark.base == base
        return self._watermark.base <= base and not (is_last and self._disk.kind(path) == Kind.MISSING)

    def ahead_from(self, base: int) -> int:
        """Return the position in a segment from which on its index may name missing records: nothing from there on was
        durable. The index of the active segment is not synced, so that a power loss may keep entries of records that
        it removed, or that were rolled back."""
        mark = self._watermark
        if mark is None or mark.base > base or base in self._sealed:
            return NEVER
        return mark.durable_position if mark.base == base else 0

    def is_closed(self, report: SegmentReport) -> bool:
        """Whether this is the active segment, and its writer closed it cleanly."""
        mark = self._watermark
        ours = mark is not None and not mark.is_open and mark.base == report.base_offset
        return ours and mark is not None and mark.position == report.valid_bytes

    def running(self, base: int, data: memoryview, start: int = 0, stop: int | None = None) -> RunningDigest | None:
        """Return an object that computes the digest of a segment, or of the part between two positions, during a scan.
        None if the sidecar has no digest to compare, or the segment is shorter than what the digest covers."""
        sealed = self._sealed.get(base)
        until = self._digested_until(base) if sealed is None else sealed.size_bytes
        if not 0 < until <= len(data):
            return None
        both = sealed is not None and sealed.size_bytes == len(data)
        return RunningDigest(data, start, until if stop is None else min(until, stop), both=both)

    def of_sealed(
        self, report: SegmentReport, data: memoryview, digest: Digest | None = None, *, is_growing: bool = False
    ) -> Iterator[Finding]:
        """Compare a segment with the size and digest that it was sealed with. ``digest`` is the result of `running`; if
        it is missing, it is computed here. A segment that was growing when it was listed is not compared: it may have
        been sealed since, with more records."""
        sealed = self._sealed.get(report.base_offset)
        if sealed is not None and not is_growing:
            found = judge_seal(sealed, data, digest)
            if found is not None and found.code == "sealed-continued" and not self._is_newest(sealed):
                message = f"{len(data) - sealed.size_bytes} bytes follow what was sealed, and another segment follows"
                found = SealVerdict("sealed-size", Severity.DAMAGE, message)
            if found is not None:
                action = _RESTORE if found.severity == Severity.DAMAGE else "nothing: what was sealed is complete"
                yield Finding(found.code, found.severity, report.path, found.message, action)

    def _is_newest(self, sealed: Sealed) -> bool:
        """Whether no segment follows. RabbitMQ deletes an empty last segment and continues in the one before."""
        mark = self._watermark
        if sealed.base != max(self._sealed):
            return False
        if mark is None or mark.base <= sealed.base:
            return True
        path = posixpath.join(self._root, self._fmt.segment_path(mark.base))
        return not self.was_durable(mark.base) and self._disk.kind(path) == Kind.MISSING

    def _digested_until(self, base: int) -> int:
        """Return how many bytes of the active segment the digest in the watermark covers."""
        checksum = self._fmt.capabilities.record_checksum
        return digested_bytes(base, self._watermark, record_checksum=checksum)

    def of_watermark(
        self, report: SegmentReport, segment: Segment, index: Index | None = None, digest: Digest | None = None
    ) -> Iterator[Finding]:
        """Check that the active segment holds what was durable, by the rules of recovery."""
        mark = self._watermark
        if mark is None or mark.base != report.base_offset or report.ending not in (EndKind.CLEAN, EndKind.TORN):
            return
        against = find_contradiction(segment, mark, index=index, digest=digest)
        if against is not None and self._reaches(mark, report, segment):
            yield Finding(
                against.code, Severity.DAMAGE, report.path, against.why, _RESTORE,
                against.position, against.first_offset, against.last_offset,
            )  # fmt: skip
        yield from self._of_unacknowledged(mark, report)
        following = report.base_offset if report.last_offset is None else report.last_offset + 1
        if report.valid_bytes < mark.durable_position and following < mark.durable_offset:  # else damage explains it
            yield Finding(
                "durable-records-missing", Severity.DAMAGE, report.path,
                f"records were durable up to byte {mark.durable_position}, but end at byte {report.valid_bytes}",
                _RESTORE, report.valid_bytes, following, mark.durable_offset - 1,
            )  # fmt: skip

    def _reaches(self, mark: Watermark, report: SegmentReport, segment: Segment) -> bool:
        """Whether the records reach the watermark, by bytes or by offsets, without damage on the way. If the length of
        the last record is damaged, its offset is right and its end is not."""
        if report.valid_bytes >= mark.durable_position:
            return True
        if report.last_offset is None or report.last_offset + 1 < mark.durable_offset:
            return False
        return segment.last_step().end.position == report.valid_bytes

    def _of_unacknowledged(self, mark: Watermark, report: SegmentReport) -> Iterator[Finding]:
        """Report records that were not acknowledged and have no checksum: the next writer sets them aside."""
        extra = report.valid_bytes - mark.position
        if not mark.is_open or extra <= 0 or self._fmt.capabilities.record_checksum or self.is_being_written:
            return
        yield Finding(
            "unacknowledged", Severity.NOTE, report.path,
            counted(extra, "byte was", "bytes were") + f" written after byte {mark.position} and never acknowledged",
            "nothing: no checksum proves them, and the next open for writing sets them aside",
            mark.position, mark.next_offset, report.last_offset,
        )  # fmt: skip

    def of_beginning(self, oldest: int) -> Iterator[Finding]:
        """Report segments before the oldest file that the sealed list still has. Retention removes a segment from the
        list first, so another program or an operator removed them, or they are lost."""
        older = [base for base in sorted(self._sealed) if base < oldest]
        paths = {base: posixpath.join(self._root, self._fmt.segment_path(base)) for base in older}
        gone = [base for base in older if self._disk.kind(paths[base]) == Kind.MISSING]
        listed = settled_digests(self._disk, self._root, self._fmt) if gone else {}
        bases = [base for base in gone if listed.get(base) == self._sealed[base]]
        if bases:
            last = max(listed[base].last_offset for base in bases)
            yield Finding(
                "oldest-missing", Severity.WARNING, paths[bases[0]],
                counted(len(bases), "sealed segment is", "sealed segments are") + " missing before the first one, and "
                "retention did not remove " + ("it" if len(bases) == 1 else "them"),
                f"nothing, if {self._fmt.program or 'another program'} or an operator removed them: `duramen repair` "
                "forgets them; else restore them from a copy",
                None, bases[0], min(last, oldest - 1),
            )  # fmt: skip

    def of_log(self, segments: Sequence[SegmentReport]) -> Iterator[Finding]:
        """Report missing segments, except those before the oldest one: see `of_beginning`."""
        return self.missing([segment.base_offset for segment in segments])

    def missing(self, bases: Sequence[int]) -> Iterator[Finding]:
        """The same by the bases of the segments that exist."""
        there = set(bases)
        oldest = min(there, default=-1)
        for base, sealed in self._sealed.items():
            if base not in there and base > oldest:
                yield Finding(
                    "missing-segment", Severity.DAMAGE, f"{self._root}/{self._fmt.segment_path(base)}",
                    "a sealed segment is missing", _RESTORE, None, base, sealed.last_offset,
                )  # fmt: skip
        mark = self._watermark
        if mark is not None and mark.base > max(there, default=-1) and self.lacks_active:
            last = max(mark.durable_offset, mark.next_offset) - 1
            yield Finding(
                "missing-segment", Severity.DAMAGE, f"{self._root}/{self._fmt.segment_path(mark.base)}",
                "the active segment is missing", _RESTORE, None, mark.base, last if last >= mark.base else None,
            )  # fmt: skip

    @cached_property
    def lacks_active(self) -> bool:
        """Whether the file of the active segment is missing, although the watermark says that it was created."""
        mark = self._watermark
        if mark is None or not lacks_active(self._disk, self._root, self._fmt, mark):
            return False
        now = settled_watermark(self._disk, self._root)  # a writer may have sealed it, and retention removed it
        return now is not None and now.base == mark.base
