"""What a reader may see of a log at one moment, as one immutable value.

`take_snapshot` is the only code that decides it. It reads the watermark, lists the files, applies a committed file swap
and a transaction in progress, and cuts the active segment where acknowledged records end:

- a writer is alive: at the watermark;
- the writer died: after the last whole record, which recovery will keep, or, if records have no checksum, at the
  watermark that the digest proves;
- the log was closed, or no writer of ours was ever here: nowhere.

Other processes change the log at the same time. So the snapshot is checked after it is built, and built again while the
watermark does not belong to the files, a file vanished, or another log took the place of this one.

`take_settled_snapshot` is for `verify`, which also looks at what a reader may not see.
"""

from __future__ import annotations

import errno
import posixpath
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

import numpy as np

from duramen import kernel
from duramen.disk import Disk, Kind
from duramen.errors import CorruptionError, IncompleteHeaderError, StorageError
from duramen.formats import CommittedView, Format, ScanPosition, Segment, SegmentSource, SupportsIsolation
from duramen.kernel import Stop
from duramen.log.segments.listing import (
    Directory,
    SegmentFiles,
    StampedDirectory,
    configured_format,
    list_log,
    list_log_again,
    sort_files,
)
from duramen.log.segments.segment_end import EndKind, classify_rows, is_unfinished
from duramen.log.segments.segment_start import last_has_not_begun
from duramen.sidecar import (
    CONFIG,
    DIRECTORY,
    NEXT,
    CachedConfig,
    Config,
    FileSwap,
    TxMarker,
    Watermark,
    has_writer,
    read_file_swap,
    read_tx_marker,
    read_watermark,
    read_watermarks,
    settled_watermark,
    sidecar_path,
)

ATTEMPTS = 100
"""How often a log is looked at while other processes change it."""
QUICK_ATTEMPTS, PAUSE_S = 5, 0.01
T = TypeVar("T")
_NEVER = StampedDirectory(Directory("", [], [], [], []))
"""What was never listed."""


@dataclass(frozen=True)
class Snapshot:
    """A log at one moment. Nothing in it may be changed."""

    fmt: Format
    directory: Directory
    """The files, cut where readers must stop."""
    watermark: Watermark | None = None
    """The watermark that belongs to these files."""
    config: Config | None = None
    transaction: TxMarker | None = None
    file_swap: FileSwap | None = None
    generation: int = 0
    """How often another log has replaced the one of the first snapshot."""
    has_sidecar: bool = False
    listed: StampedDirectory | None = None
    """The files before they were cut, for the next snapshot of the same reader."""
    proven: tuple[Watermark, Watermark] | None = None
    """The watermark of a dead writer, and the part of it that the digest proves."""
    committed: CommittedView | None = None
    """Where readers see committed records only: what the next snapshot starts from."""

    @cached_property
    def bases(self) -> list[int]:
        """The base offsets of the segments, in order."""
        return [files.base if files.base is not None else 0 for files in self.directory.segments]

    @property
    def cut_base(self) -> int | None:
        """The base of the segment in which readers stop before an open transaction of the log itself; None if they see
        all files."""
        return None if self.committed is None or self.committed.until is None else self.committed.until[0]

    @property
    def witness(self) -> Watermark | None:
        """The watermark against which the files can be held; None if they were cut before an open transaction."""
        return self.watermark if self.cut_base is None else None

    def path_of(self, files: SegmentFiles) -> str:
        return self.directory.full(files.segment.path)


def until_stable(disk: Disk, root: str, look: Callable[[bool], T | None]) -> T:
    """Call ``look`` until it returns a value, while other processes change the log at ``root``.

    ``look`` returns None to be called again. A file that vanished (ENOENT) has the same effect, unless the whole log
    is missing. Its argument is true for the last call, which must return a value or raise."""
    for attempt in range(ATTEMPTS):
        is_last = attempt == ATTEMPTS - 1
        try:
            found = look(is_last)
        except StorageError as error:
            if error.errno != errno.ENOENT or disk.kind(root) != Kind.DIRECTORY:
                raise
            if is_last:
                error.hint = "files are removed faster than they can be read: try again"
                raise
            found = None
        if found is not None:
            return found
        if attempt >= QUICK_ATTEMPTS:
            time.sleep(PAUSE_S)
    raise AssertionError("the last look returns a value or raises")


def while_files_go(disk: Disk, path: str, look: Callable[[], T]) -> T:
    """The result of ``look``, which is called again if a file vanished that retention or compaction removed."""
    return until_stable(disk, path, lambda _is_last: (look(),))[0]


def take_snapshot(
    disk: Disk, root: str, fmt: Format, *, configs: CachedConfig | None = None, known: Snapshot | None = None
) -> Snapshot:
    """The log at ``root`` as a reader may see it now.

    ``configs`` (for a directory) recognises a log that was replaced by another one: the snapshot then has the format of
    the new log and the next generation. ``known`` is an earlier snapshot of the same reader."""
    return until_stable(disk, root, _SnapshotBuilder(disk, root, fmt, configs, known).look)


def take_settled_snapshot(disk: Disk, root: str, fmt: Format, *, is_ours: bool = False) -> Snapshot:
    """The log at ``root`` for `verify`: everything that does not change any more, visible to readers or not.

    While a writer is alive, its active segment ends at the watermark and is marked as growing. Segments that a
    committed file swap replaces are marked as changing. A file swap that cannot be read counts as none. ``is_ours``:
    the caller holds the log's lock, so that its writer is dead."""
    has_sidecar = disk.kind(root) == Kind.DIRECTORY and disk.kind(sidecar_path(root)) == Kind.DIRECTORY

    def look(is_last: bool) -> Snapshot | None:
        try:
            swap = read_file_swap(disk, root) if has_sidecar else None
        except CorruptionError:
            swap = None
        directory = list_log(disk, root, fmt)
        if swap is not None:
            directory = directory.without(swap.removals).changing([target for _, target in swap.renames])
        mark = settled_watermark(disk, root, is_ours=is_ours) if has_sidecar else None
        snapshot = Snapshot(fmt, directory, mark, file_swap=swap, has_sidecar=has_sidecar)
        if mark is None or not mark.is_open or not directory.segments or is_ours or not has_writer(disk, root):
            return snapshot
        *others, last = directory.segments
        if last.base != mark.base:  # the writer is about to start a segment, or has started one since the listing
            return snapshot if is_last else None
        last = replace(last, segment=replace(last.segment, size_bytes=mark.position), is_growing=True)
        return replace(snapshot, directory=replace(directory, segments=[*others, last]))

    return until_stable(disk, root, look)


class _SnapshotBuilder:
    """Builds the snapshot of a reader, as often as it takes."""

    def __init__(
        self, disk: Disk, root: str, fmt: Format, configs: CachedConfig | None, known: Snapshot | None
    ) -> None:
        self._disk, self._root, self._fmt, self._configs = disk, root, fmt, configs
        self._config = None if known is None else known.config
        self._generation = 0 if known is None else known.generation
        self._proven_before = None if known is None else known.proven
        self._committed_before = None if known is None else known.committed
        self._listed = None if known is None else known.listed
        self._has_sidecar = known is not None and known.has_sidecar
        if not self._has_sidecar and disk.kind(root) == Kind.DIRECTORY:
            self._has_sidecar = disk.kind(sidecar_path(root)) == Kind.DIRECTORY

    def look(self, is_last: bool) -> Snapshot | None:
        """One attempt; None if the log changed in between."""
        watermark, self._shown = read_watermarks(self._disk, self._root) if self._has_sidecar else (None, None)
        self._listed = list_log_again(self._disk, self._root, self._fmt, self._listed or _NEVER)
        listed = self._listed.directory
        snapshot = self._visible(
            Snapshot(self._fmt, listed, watermark, has_sidecar=self._has_sidecar, listed=self._listed)
        )
        snapshot = self._committed(snapshot)
        if watermark is not None and not is_last and not self._fits(listed, watermark):
            return None
        if self._is_replaced():
            return self.look(is_last)
        return replace(snapshot, config=self._config, generation=self._generation)

    def _fits(self, listed: Directory, watermark: Watermark) -> bool:
        """Whether the watermark belongs to the files that were listed after it was read. If a writer started or went on
        in between, and retention followed it, the segment of the watermark is missing."""
        if watermark.is_open and any(files.base == watermark.base for files in listed.segments):
            return True
        return read_watermark(self._disk, self._root) == watermark

    def _is_replaced(self) -> bool:
        """Whether another log has taken the place of this one. Asked after the files were listed, because only then all
        of them belong to one log."""
        config = None if self._configs is None else self._configs.read_if_sound()
        if config is None:
            return False
        before, self._config = self._config, config
        if before is None or before.is_same_log(config):
            return False
        self._generation += 1
        self._fmt, self._listed = configured_format(config, self._root, None, {}), None
        self._committed_before = None
        return True

    # --- what is visible

    def _visible(self, seen: Snapshot) -> Snapshot:
        if not seen.has_sidecar:
            return seen
        swap = read_file_swap(self._disk, self._root)
        if swap is not None:
            seen = replace(seen, file_swap=swap, directory=seen.directory.without(swap.removals))
        marker = read_tx_marker(self._disk, self._root)
        if marker is not None:
            seen = replace(seen, transaction=marker)
            view = reader_view(self._disk, self._root, self._fmt, seen.directory, marker)
            if view is not None:
                return replace(seen, watermark=view[0], directory=view[1])
        return seen if seen.watermark is None or not seen.watermark.is_open else self._acknowledged(seen)

    def _committed(self, seen: Snapshot) -> Snapshot:
        """Without the open and aborted transactions that the log itself holds, if the caller asked for that."""
        if not isinstance(self._fmt, SupportsIsolation) or not self._fmt.hides_records:
            return seen
        directory = seen.directory
        segments = [self._source(directory, files) for files in directory.segments]
        try:
            view = self._fmt.committed_view(segments, self._committed_before)
        except CorruptionError as error:
            error.path = error.path or self._root
            raise
        directory = directory if view.until is None else directory.up_to(*view.until)
        return replace(seen, fmt=view.fmt, directory=directory, committed=view)

    def _source(self, directory: Directory, files: SegmentFiles) -> SegmentSource:
        size_bytes = files.segment.size_bytes

        def open_segment() -> Segment:
            return self._fmt.open_segment(self._map(directory, files)[:size_bytes], files.base)

        stamp = (self._disk.stamp(directory.full(files.segment.path)), size_bytes)
        base = open_segment().base_offset if files.base is None else files.base
        return SegmentSource(base, stamp, open_segment)

    def _acknowledged(self, seen: Snapshot) -> Snapshot:
        """A log that was not closed: without what its writer has not acknowledged."""
        watermark, directory = seen.watermark, seen.directory
        assert watermark is not None
        if not has_writer(self._disk, self._root):
            # The writer is dead, and the watermark may be older than the truth: recovery will keep whole records. Where
            # records do not prove themselves, it may be newer, too.
            if self._fmt.capabilities.record_checksum:
                return replace(seen, directory=self._without_torn_tail(directory, watermark))
            seen = replace(seen, proven=self._prove(directory, watermark))
            assert seen.proven is not None
            watermark = seen.proven[1]
        elif watermark.is_proof:
            watermark = self._shown or watermark.durable
            seen = replace(seen, watermark=watermark)
        if watermark.next_offset < watermark.base:
            return replace(seen, directory=self._without_unfinished_batch(directory, watermark.next_offset))
        return replace(seen, directory=directory.up_to(watermark.base, watermark.position))

    def _prove(self, directory: Directory, watermark: Watermark) -> tuple[Watermark, Watermark]:
        """The watermark, and as much of it as its digest proves: a power loss may keep it and lose some bytes."""
        if self._proven_before is not None and self._proven_before[0] == watermark:
            return self._proven_before
        found = [files for files in directory.segments if files.base == watermark.base]
        data = self._map(directory, found[0]) if found else memoryview(b"")
        proven, position = watermark, watermark.position
        if position > len(data) or kernel.crc32c(data[:position]) != watermark.crc32c:
            proven = watermark._replace(position=watermark.durable_position, next_offset=watermark.durable_offset)
        return watermark, proven

    def _without_torn_tail(self, directory: Directory, watermark: Watermark) -> Directory:
        """Without the end of the last segment that recovery will cut, perhaps while a reader has it mapped."""
        if not directory.segments:
            return directory
        files = directory.segments[-1]
        base, data = files.base or 0, self._map(directory, files)
        if watermark.base < base and last_has_not_begun(self._disk, directory, self._fmt, data, watermark):
            return directory.up_to(base, 0)
        try:
            segment = self._fmt.open_segment(data, files.base)
        except IncompleteHeaderError:
            return directory.up_to(base, 0)
        stop = _end_of_records(segment, watermark, watermark.base == files.base)
        return directory if stop is None else directory.up_to(base, stop)

    def _without_unfinished_batch(self, directory: Directory, next_offset: int) -> Directory:
        """Without a batch that the writer is writing over several segments."""
        before = [files for files in directory.segments if (files.base or 0) <= next_offset]
        if not before:
            return directory.up_to(-1, 0)
        segment = self._fmt.open_segment(self._map(directory, before[-1]), before[-1].base)
        for rows in segment.steps(verify=False):
            row = int(np.searchsorted(rows.columns.first_offsets, next_offset))
            if row < len(rows.columns):
                return directory.up_to(segment.base_offset, int(rows.columns.position[row]))
        return directory.up_to(segment.base_offset, rows.cursor.position)

    def _map(self, directory: Directory, files: SegmentFiles) -> memoryview:
        return self._disk.map(directory.full(files.segment.path)).data


def _end_of_records(segment: Segment, watermark: Watermark, is_marked: bool) -> int | None:
    """The byte after the last record that recovery will keep; None if the segment is damaged, which readers must see.
    ``is_marked``: the watermark is of this segment."""
    cursor, durable = segment.start, watermark.durable_position if is_marked else 0
    if is_marked and cursor.position <= durable <= len(segment.buf):
        cursor = ScanPosition(durable, watermark.durable_offset - 1)
    last = rows = segment.scan(cursor)
    while rows.stop == Stop.LIMIT:
        rows = segment.scan(rows.cursor)
        last = rows if len(rows.columns) else last
    end = classify_rows(segment, rows, is_last=True)
    if len(last.columns) and end.stop != Stop.END and end.position > durable and segment.ends_in_doubt(last):
        return int(last.columns.position[-1])
    if end.ending in (EndKind.DAMAGE, EndKind.UNKNOWN_VERSION) and not is_unfinished(end, segment, watermark):
        return None
    return end.position


def reader_view(
    disk: Disk, root: str, fmt: Format, directory: Directory, marker: TxMarker
) -> tuple[Watermark, Directory] | None:
    """The watermark and the files that readers see during a transaction; None if it changes nothing for them."""
    mark = marker.after if marker.is_committed(disk, root) else marker.before
    if not marker.replaces:
        assert mark is not None
        return mark, directory.up_to(mark.base, mark.position)
    if mark is None or disk.kind(posixpath.join(root, NEXT, CONFIG)) == Kind.FILE:
        return None  # the old log is complete until this file is renamed, which makes it the new one
    return mark, _replacing_files(disk, root, fmt, marker).up_to(mark.base, mark.position)


def _replacing_files(disk: Disk, root: str, fmt: Format, marker: TxMarker) -> Directory:
    """The files of the new log, some of which may not have been renamed yet."""
    found = []
    for name in marker.files:
        if posixpath.dirname(name) != DIRECTORY:
            moved = disk.kind(posixpath.join(root, NEXT, name)) == Kind.MISSING
            place = name if moved else posixpath.join(NEXT, name)
            found.append((name, place, disk.size(posixpath.join(root, place))))
    return sort_files(root, fmt, found)
