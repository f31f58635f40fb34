"""A log as it was at one moment, as the source of a conversion or a copy.

Holds what the writer had acknowledged when the source was opened. All segments are mapped at once, so that they stay
readable when retention removes the files. Reads only. Damage raises, or is skipped and listed (``on_damage="skip"``);
an unknown version always raises.
"""

from __future__ import annotations

import errno
import posixpath
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from duramen.disk import Disk, Kind, disk_or_real
from duramen.errors import CorruptionError, IncompleteHeaderError, LimitError, StorageError, UsageError
from duramen.formats import Format, Role, Rows, ScanPosition, Segment, Severity, make
from duramen.kernel import ScanEnd, Stop
from duramen.log.read import Log
from duramen.log.segments import (
    SUBDIRECTORIES,
    EndKind,
    Snapshot,
    against_mark,
    classify_rows,
    find_contradiction,
    judge_seal,
    kind_of,
    lacks_active,
    settled_digests,
    starts_after_end,
    until_stable,
)
from duramen.log.verify import counted, lost_at_end
from duramen.record import MAX_OFFSET
from duramen.sidecar import (
    CURSORS_NAME,
    DIRECTORY,
    GROUPS_NAME,
    LEDGER_NAME,
    PRODUCERS_NAME,
    bounded_copy,
    known_loss_of,
    read_known_losses,
)

SOURCE_HINT = "`duramen repair` repairs the log"
COPIED_BYTES = 32 << 20
"""The largest state file of a consumer or writer that is copied."""
STATE_DIRECTORIES = (CURSORS_NAME, GROUPS_NAME, LEDGER_NAME)
STATE_FILES = (PRODUCERS_NAME,)
"""The state of consumers and writers in the sidecar. The rest belongs to this directory, or is rebuilt."""
_TRANSIENT = (".new", ".lock")
STATE_ROLES = (
    Role.GROUP_SNAPSHOT,
    Role.GROUP_DELTA,
    Role.CHECKPOINT,
    Role.METADATA,
    Role.TXN_INDEX,
    Role.PRODUCER_SNAPSHOT,
)
_NO_OPTIONS: dict[str, Any] = {}


class SkippedRange(NamedTuple):
    """A damaged range that was skipped."""

    path: str
    position: int
    length: int
    offset: int
    why: str


@dataclass(eq=False)
class SourcePart:
    """One segment: its acknowledged bytes."""

    path: str
    base: int | None
    data: memoryview
    is_last: bool
    segment: Segment | None = None


class Source:
    """The log at ``path``, a directory or a single segment file. ``on_damage`` is ``"raise"`` or ``"skip"``."""

    def __init__(
        self,
        path: str,
        *,
        format: str | None = None,
        disk: Disk | None = None,
        on_damage: str = "raise",
        options: Mapping[str, Any] | None = None,
        hint: str = SOURCE_HINT,
    ) -> None:
        if on_damage not in ("raise", "skip"):
            raise UsageError(f"on_damage must be 'raise' or 'skip' (got {on_damage!r})")
        self.path, self._hint = path, hint
        self.disk: Disk = disk_or_real(disk).within(path)
        self.skipped: list[SkippedRange] = []
        self.torn_bytes = 0
        """Bytes after the last whole record: an unfinished write."""
        self.skips = on_damage == "skip"
        self.is_directory = kind_of(self.disk, path) == Kind.DIRECTORY
        # Before the records, so that it is never ahead of them.
        self.state = sidecar_state(self.disk, path) if self.is_directory else {}
        self.losses = read_known_losses(self.disk, path)
        """Losses that an earlier repair accepted."""
        with Log(path, format=format, disk=self.disk, **(options or _NO_OPTIONS)) as log:
            self.fmt: Format = log.codec
            self.format_state: dict[str, bytes] = self.files(*STATE_ROLES)
            """The format's own state files, by path."""
            sealed = settled_digests(self.disk, path, self.fmt) if self.is_directory else {}
            self._snapshot, maps = until_stable(self.disk, path, lambda _is_last: self._map(log))
            still = settled_digests(self.disk, path, self.fmt) if self.is_directory else {}
            # Compaction may have replaced the others since: their mapped files are complete, old or new.
            self.sealed = {base: entry for base, entry in sealed.items() if still.get(base) == entry}
        self.fmt, self.config = self._snapshot.fmt, self._snapshot.config
        segments = self._snapshot.directory.segments
        self.parts: list[SourcePart] = [
            SourcePart(self._snapshot.path_of(files), files.base, data, number == len(segments) - 1)
            for number, (files, data) in enumerate(zip(segments, maps, strict=True))
        ]
        self._last_offset = -1

    @property
    def size_bytes(self) -> int:
        return sum(len(part.data) for part in self.parts)

    def _map(self, log: Log) -> tuple[Snapshot, list[memoryview]]:
        """A snapshot of the log, and the visible bytes of its segments."""
        log.refresh()
        snapshot = log.snapshot
        sizes = [(snapshot.path_of(files), files.segment.size_bytes) for files in snapshot.directory.segments]
        return snapshot, [self.disk.map(path).data[:size_bytes] for path, size_bytes in sizes]

    # --- files other than segments

    def files(self, *roles: Role) -> dict[str, bytes]:
        """Read the files of these roles, by path. Not for segments."""
        return files_of(self.disk, self.path, self.fmt, *roles) if self.is_directory else {}

    @cached_property
    def created_ms(self) -> int:
        """The creation time of the log; the current time if it is not stored."""
        if self.config is not None:
            return self.config.created_ms
        manifest = self.fmt.describe(self.files(Role.MANIFEST)).get("manifest")
        stored = int(manifest.get("created_ts_ms", 0)) if isinstance(manifest, dict) else 0
        return stored or time.time_ns() // 1_000_000

    @cached_property
    def _described(self) -> Format:
        """The format with the dialect of the manifest."""
        manifest = self.fmt.describe(self.files(Role.MANIFEST)).get("manifest")
        found = manifest.get("dialect") if isinstance(manifest, dict) else None
        if found is None or found == self.fmt.dialect:
            return self.fmt
        return make(self.fmt.name, **{**self.fmt.options, "dialect": found})

    @cached_property
    def written_as(self) -> Format:
        """The format with the options that continue the dialect of the log."""
        fmt = self._described
        for segment in self._last_segments:
            fmt = fmt if fmt.is_only_read(segment) else fmt.continuing(segment)
        return fmt

    @property
    def is_only_read(self) -> bool:
        """Whether the log ends with what its format does not write."""
        return any(map(self.fmt.is_only_read, self._last_segments[-1:]))

    @cached_property
    def _last_segments(self) -> list[Segment]:
        """The last two, of those that have bytes."""
        opened = [segment for part in self.parts[-2:] if (segment := self.open(part)) is not None]
        return [segment for segment in opened if len(segment.buf)]

    # --- records

    def open(self, part: SourcePart) -> Segment | None:
        """Open the segment; None if its header is damaged and damage is skipped."""
        if part.segment is None:
            try:
                part.segment = self.fmt.open_segment(part.data, part.base)
            except IncompleteHeaderError as error:
                if not part.is_last:
                    raise self._hinted(error, part) from None
                part.segment = self.fmt.open_segment(b"", part.base)
            except UsageError as error:
                error.path = error.path or part.path
                raise
            except CorruptionError as error:
                if not self.skips or error.position is None:
                    raise self._hinted(error, part) from None
                self._skip(part.path, 0, len(part.data), part.base or 0, error.message)
                return None
        return part.segment

    def sealed_ms(self, base: int) -> int | None:
        """When a segment was sealed, if that is known."""
        entry = self.sealed.get(base)
        return None if entry is None else entry.sealed_ms

    def check_digest(self, part: SourcePart) -> None:
        """Raise if a segment is not what was written: a sealed one must have the digest that it was sealed with, the
        active one must agree with the watermark."""
        why = None if self.skips else self._contradiction(part)
        if why is not None:
            raise CorruptionError(why, path=part.path, offset=part.base, hint=self._hint)

    def _list_contradiction(self, part: SourcePart) -> None:
        """List the same contradiction if damage is skipped: records that look whole are used as they are."""
        why = None if any(one.path == part.path for one in self.skipped) else self._contradiction(part)
        if why is not None:
            self._skip(part.path, 0, 0, part.base or 0, f"{why}; the records were used as they are")

    def _contradiction(self, part: SourcePart) -> str | None:
        mark = self._snapshot.witness
        ends_before = mark is not None and mark.base <= mark.next_offset and part.base != mark.base
        is_active = part.is_last and not ends_before  # a segment may have been sealed since the snapshot
        return self._of_active(part) if is_active else self._of_sealed(part)

    def _of_sealed(self, part: SourcePart) -> str | None:
        sealed = self.sealed.get(-1 if part.base is None else part.base)
        found = None if sealed is None else judge_seal(sealed, part.data)
        return found.message if found is not None and found.severity == Severity.DAMAGE else None

    def _of_active(self, part: SourcePart) -> str | None:
        segment = self.open(part)
        found = None if segment is None else find_contradiction(segment, self._snapshot.witness)
        return None if found is None else found.why

    def check_presence(self) -> None:
        """Raise if a segment is missing, other than the oldest ones, which retention removes, or if records are missing
        at the end."""
        bases = {part.base for part in self.parts}
        oldest = min((base for base in bases if base is not None), default=-1)
        for base in self.sealed:
            if self._is_hidden(base):
                continue
            path = posixpath.join(self.path, self.fmt.segment_path(base))
            if base not in bases and not self.skips and self.disk.kind(path) in (Kind.DIRECTORY, Kind.OTHER):
                message = "in the place of a segment is a directory, a broken link or a special file"
                raise CorruptionError(
                    message, path=path, offset=base, hint="mount what it points to, or restore the file"
                )
            if base not in bases and base > oldest and not self.skips:
                raise CorruptionError("a sealed segment is missing", path=path, offset=base, hint=self._hint)
        mark = self._snapshot.witness
        self._check_start()
        if self._snapshot.watermark is None and self.is_directory:
            self._check_end()
        if mark is None or self.skips or mark.base <= max((base for base in bases if base is not None), default=-1):
            return
        if lacks_active(self.disk, self.path, self.fmt, mark):
            path = posixpath.join(self.path, self.fmt.segment_path(mark.base))
            raise CorruptionError("the active segment is missing", path=path, offset=mark.base, hint=self._hint)

    def _check_start(self) -> None:
        """Raise if readers see nothing because the log is said to start after its end."""
        segment = self.open(self.parts[-1]) if self.fmt.first_visible and self.parts else None
        if segment is None or self._snapshot.cut_base is not None:
            return
        following = segment.last_step().end.last_offset + 1
        if self.fmt.first_visible > following:
            raise starts_after_end(self.path, self.fmt.first_visible, following)

    def _check_end(self) -> None:
        """Without a watermark, only the files beside the segments show that records are missing at the end."""
        for found in lost_at_end(self.disk, self.path, self.fmt):
            if not self.skips:
                raise CorruptionError(found.message, path=found.path, offset=found.first_offset, hint=self._hint)
            self._skip(found.path, 0, 0, found.first_offset or 0, found.message)

    def _is_hidden(self, base: int) -> bool:
        """Whether a sealed segment is part of a batch or transaction that was not acknowledged at the snapshot, or
        follows an open transaction."""
        mark, cut_base = self._snapshot.watermark, self._snapshot.cut_base
        if cut_base is not None and base > cut_base:
            return True
        is_unfinished = mark is not None and (mark.is_open or self._snapshot.transaction is not None)
        return mark is not None and is_unfinished and base >= mark.next_offset

    def steps(
        self, part: SourcePart, *, verify: bool = True, start: ScanPosition | None = None
    ) -> Iterator[tuple[Segment, Rows]]:
        """Yield the rows of a segment, a few MiB at a time; continues after damage that is skipped."""
        yield from self._steps(part, verify=verify, start=start)
        if self.skips:
            self._list_contradiction(part)

    def _steps(self, part: SourcePart, *, verify: bool, start: ScanPosition | None) -> Iterator[tuple[Segment, Rows]]:
        if part is self.parts[0]:
            self._last_offset = -1
        segment = self.open(part)
        if segment is None:
            return
        cursor = segment.start if start is None else start
        most = self._most(part)
        while True:
            rows = segment.scan(cursor, verify=verify)
            if rows.end.last_offset > most:
                rows, cursor = self._up_to(part, rows, cursor, most)
                if len(rows.columns):
                    yield segment, self._in_order(part, rows)
                continue
            if len(rows.columns) and len((ordered := self._in_order(part, rows)).columns):
                yield segment, ordered
            cursor = rows.cursor
            if rows.stop == Stop.LIMIT:
                continue
            mark = self._snapshot.witness if part.is_last else None
            end = against_mark(classify_rows(segment, rows, is_last=part.is_last), segment.base_offset, mark)
            if end.ending == EndKind.CLEAN:
                return
            if end.ending == EndKind.TORN:
                self.torn_bytes = len(part.data) - end.position
                return
            error = end.error(part.path)
            if end.ending == EndKind.UNKNOWN_VERSION or not self.skips:
                error.hint = error.hint if end.ending == EndKind.UNKNOWN_VERSION else self._hint
                raise error
            until = len(part.data) if end.goes_on_at is None else end.goes_on_at
            self._skip(part.path, end.position, until - end.position, end.previous_offset + 1, end.why)
            if end.goes_on_at is None:
                return
            cursor = ScanPosition(end.goes_on_at, cursor.previous_offset)

    def _most(self, part: SourcePart) -> int:
        """Return the highest offset that a record of this segment can have: the next segment begins after it."""
        following = self.parts.index(part) + 1
        base = self.parts[following].base if following < len(self.parts) else None
        return MAX_OFFSET if base is None else base - 1

    def _up_to(self, part: SourcePart, rows: Rows, cursor: ScanPosition, most: int) -> tuple[Rows, ScanPosition]:
        """Return the rows before the first one whose offset is too high, and the position after that one."""
        columns = rows.columns
        wrong = int(np.argmax(columns.last_offsets > most))
        position, offset = int(columns.position[wrong]), int(columns.first_offsets[wrong])
        why = f"offset {offset} lies in the next segment, which begins at {most + 1}"
        if not self.skips:
            raise CorruptionError(why, path=part.path, position=position, hint=self._hint)
        until = int(columns.position[wrong + 1]) if wrong + 1 < len(columns) else rows.end.position
        before = int(columns.last_offsets[wrong - 1]) if wrong else cursor.previous_offset
        self._skip(part.path, position, until - position, before + 1, why)
        head = columns.head(wrong)
        count = int((head.last_offsets - head.first_offsets + 1).sum())
        return Rows(head, count, ScanEnd(wrong, position, int(Stop.LIMIT), before)), ScanPosition(until, before)

    def _in_order(self, part: SourcePart, rows: Rows) -> Rows:
        """Return the rows after everything seen so far. A segment that overlaps the one before is damage."""
        first, position = int(rows.columns.first_offsets[0]), int(rows.columns.position[0])
        seen, self._last_offset = self._last_offset, max(self._last_offset, rows.end.last_offset)
        if first > seen:
            self._check_seam(part, seen + 1, first, position)
            return rows
        why = f"the segment before ends with offset {seen}"
        if not self.skips:
            raise CorruptionError(why, path=part.path, position=position, offset=first, hint=self._hint)
        kept = int(np.searchsorted(rows.columns.first_offsets, seen, side="right"))
        columns = rows.columns.slice(kept, len(rows.columns))
        until = int(columns.position[0]) if len(columns) else rows.end.position
        self._skip(part.path, position, until - position, first, why)
        count = int((columns.last_offsets - columns.first_offsets + 1).sum())
        return Rows(columns, count, rows.end)

    def _check_seam(self, part: SourcePart, expected: int, first: int, position: int) -> None:
        """Raise if a segment is lost before this one, and no repair has listed it as a known loss."""
        is_seam = part.segment is not None and position == part.segment.start.position
        if not expected or first == expected or not is_seam or self.skips:
            return
        if self.fmt.capabilities.lost_segments_show and known_loss_of(self.losses, expected, first - 1) is None:
            raise CorruptionError(
                f"{counted(first - expected, 'offset')} missing before this segment", path=part.path, offset=expected,
                hint=self._hint,
            )  # fmt: skip

    def decode(
        self, part: SourcePart, segment: Segment, rows: Rows, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows as Arrow: one batch, or several if rows that cannot be decoded are skipped."""
        try:
            yield segment.decode(rows, columns)
        except (CorruptionError, LimitError) as error:
            if not self.skips or isinstance(error, LimitError):
                raise self._hinted(error, part) from None
            if len(rows.columns) > 1:
                for row in range(len(rows.columns)):
                    yield from self.decode(part, segment, _row(rows, row), columns)
                return
            position, offset = int(rows.columns.position[0]), int(rows.columns.first_offsets[0])
            self._skip(part.path, position, rows.end.position - position, offset, error.message)

    def _skip(self, path: str, position: int, length: int, offset: int, why: str) -> None:
        found = SkippedRange(path, position, length, offset, why)
        if found not in self.skipped:  # a conversion reads the log twice
            self.skipped.append(found)

    def _hinted(self, error: CorruptionError | LimitError, part: SourcePart) -> CorruptionError | LimitError:
        error.path = error.path or part.path
        if isinstance(error, CorruptionError):
            error.hint = self._hint
        return error


def sidecar_state(disk: Disk, root: str) -> dict[str, bytes]:
    """Read the state of consumers and writers in the sidecar (cursors, the ledger), by path."""
    sidecar = posixpath.join(root, DIRECTORY)
    if disk.kind(sidecar) != Kind.DIRECTORY:
        return {}
    names = [name for name, _ in disk.list(sidecar, STATE_DIRECTORIES) if "/" in name or name in STATE_FILES]
    return _contents(disk, root, [posixpath.join(DIRECTORY, name) for name in names if not name.endswith(_TRANSIENT)])


def files_of(disk: Disk, root: str, fmt: Format, *roles: Role) -> dict[str, bytes]:
    """Read the files of these roles, by path. Not for segments."""
    known = [(name, fmt.classify(name)) for name, _ in disk.list(root, SUBDIRECTORIES)]
    return _contents(disk, root, [name for name, found in known if found is not None and found.role in roles])


def _contents(disk: Disk, root: str, names: Sequence[str]) -> dict[str, bytes]:
    """The contents of files, by path, without those that were removed since they were listed."""
    found = {}
    for name in names:
        path = posixpath.join(root, name)
        try:
            found[name] = bounded_copy(disk.map(path).data, path, COPIED_BYTES)
        except StorageError as error:
            if error.errno != errno.ENOENT:
                raise
    return found


def _row(rows: Rows, row: int) -> Rows:
    """Return one row of a scan."""
    columns = rows.columns.slice(row, row + 1)
    following = int(rows.columns.position[row + 1]) if row + 1 < len(rows.columns) else rows.end.position
    last = int(columns.last_offsets[0])
    count = last - int(columns.first_offsets[0]) + 1
    return Rows(columns, count, ScanEnd(1, following, int(Stop.LIMIT), last))
