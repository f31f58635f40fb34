"""A log as it was at one moment, for whoever makes another log of it: `convert` and `copy`.

Holds what its writer had acknowledged when it was opened, and nothing later. Every segment is mapped at once, so that
retention may remove files meanwhile: what is mapped stays readable. Reads only. Damage raises, or is skipped and
listed where the caller says so; an unknown version is never skipped.
"""

from __future__ import annotations

import errno
import posixpath
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from duramen import kernel
from duramen.disk import Disk, PosixDisk
from duramen.disk.base import Kind
from duramen.errors import CorruptionError, IncompleteHeaderError, LimitError, StorageError, UsageError
from duramen.formats import Format
from duramen.formats.base import Cursor, Role, Rows, Segment
from duramen.kernel.layout import ScanEnd, Stop
from duramen.log.directory import SUBDIRECTORIES, kind_of, list_log
from duramen.log.ending import Ending, judge_rows
from duramen.log.evidence import settled_digests
from duramen.log.losses import read_losses
from duramen.log.reader import Log
from duramen.log.sidecar import DIRECTORY, Config, read_config, read_watermark
from duramen.model import MAX_OFFSET

ATTEMPTS = 10
HINT = "`duramen repair` mends the log"
STATE_DIRECTORIES = ("cursors", "groups", "ledger")
STATE_FILES = ("producers",)
"""What consumers and writers keep in the sidecar. The rest of it belongs to the place, or is made anew."""
_TRANSIENT = (".new", ".lock")
STATE_ROLES = (Role.GROUP_SNAPSHOT, Role.GROUP_DELTA, Role.CHECKPOINT)
_NO_OPTIONS: dict[str, Any] = {}


class Skipped(NamedTuple):
    """A place that was left out, because it is damaged."""

    path: str
    position: int
    length: int
    offset: int
    why: str


@dataclass(eq=False)
class Part:
    """One segment: its bytes as far as they are acknowledged."""

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
        options: dict[str, Any] | None = None,
        hint: str = HINT,
    ) -> None:
        if on_damage not in ("raise", "skip"):
            raise UsageError(f"on_damage={on_damage!r} is neither 'raise' nor 'skip'")
        self.path = path
        self._hint = hint
        self.disk: Disk = disk if disk is not None else PosixDisk()
        self.skipped: list[Skipped] = []
        self.torn_bytes = 0
        """Behind the last whole record: a write that did not finish."""
        self.skips = on_damage == "skip"
        self.is_directory = kind_of(self.disk, path) == Kind.DIRECTORY
        # Before the records: what it says of them is then true of those that are seen.
        self.state = self._state() if self.is_directory else {}
        self.losses = read_losses(self.disk, path)
        """Gaps that a repair left, and that are known."""
        self.config: Config | None = read_config(self.disk, path) if self.is_directory else None
        self.format_state: dict[str, bytes] = {}
        """The format's own files that hold such state, by path."""
        with Log(path, format=format, disk=self.disk, **(options or _NO_OPTIONS)) as log:
            self.fmt: Format = log.codec
            self.format_state = self.files(*STATE_ROLES)
            sealed = settled_digests(self.disk, path, self.fmt) if self.is_directory else {}
            self._mark = read_watermark(self.disk, path) if self.is_directory else None
            log.refresh()
            self.parts: list[Part] = self._map(log)
            still = settled_digests(self.disk, path, self.fmt) if self.is_directory else {}
            # Compaction may have replaced or emptied others meanwhile: what is mapped of those is whole, old or new.
            self._sealed = {base: entry for base, entry in sealed.items() if still.get(base) == entry}
        self._last_offset = -1

    @property
    def size_bytes(self) -> int:
        return sum(len(part.data) for part in self.parts)

    def _map(self, log: Log) -> list[Part]:
        for _ in range(ATTEMPTS):
            infos = log.segments
            try:
                maps = [self.disk.map(info.path).data[: info.size_bytes] for info in infos]
            except StorageError as error:
                if error.errno != errno.ENOENT:
                    raise
                log.refresh()  # retention was here
                continue
            named = [info.base_offset for info in infos] if self.is_directory else self._base_of_file()
            last = len(infos) - 1
            return [
                Part(info.path, base, data, number == last)
                for number, (info, base, data) in enumerate(zip(infos, named, maps, strict=True))
            ]
        raise StorageError("segments are removed faster than they can be opened", path=self.path, hint="try again")

    def _base_of_file(self) -> list[int | None]:
        return [files.base for files in list_log(self.disk, self.path, self.fmt).segments]

    # --- what lies beside the records

    def _state(self) -> dict[str, bytes]:
        """The state of consumers and writers in the sidecar (cursors, the ledger), by path."""
        sidecar = posixpath.join(self.path, DIRECTORY)
        if self.disk.kind(sidecar) != Kind.DIRECTORY:
            return {}
        found = {}
        for name, _ in self.disk.list(sidecar, STATE_DIRECTORIES):
            if ("/" in name or name in STATE_FILES) and not name.endswith(_TRANSIENT):
                content = self._content(posixpath.join(sidecar, name))
                if content is not None:
                    found[posixpath.join(DIRECTORY, name)] = content
        return found

    def _content(self, path: str) -> bytes | None:
        """None where the file is gone since it was listed."""
        try:
            return bytes(self.disk.map(path).data)
        except StorageError as error:
            if error.errno == errno.ENOENT:
                return None
            raise

    def files(self, *roles: Role) -> dict[str, bytes]:
        """The files of these roles that are no segments, by path."""
        if not self.is_directory:
            return {}
        found = {}
        for name, _ in self.disk.list(self.path, SUBDIRECTORIES):
            known = self.fmt.classify(name)
            if known is not None and known.role in roles:
                content = self._content(posixpath.join(self.path, name))
                if content is not None:
                    found[name] = content
        return found

    @cached_property
    def created_ms(self) -> int:
        """When the log was made; now, where nothing says so."""
        if self.config is not None:
            return self.config.created_ms
        manifest = self.fmt.describe(self.files(Role.MANIFEST)).get("manifest")
        told = int(manifest.get("created_ts_ms", 0)) if isinstance(manifest, dict) else 0
        return told or time.time_ns() // 1_000_000

    @cached_property
    def written_as(self) -> Format:
        """The format with the options that continue in the dialect of the log."""
        opened = [segment for part in self.parts[-2:] if (segment := self.open(part)) is not None]
        fmt = self.fmt
        for segment in opened:
            fmt = fmt.continuing(segment) if len(segment.buf) else fmt
        return fmt

    # --- records

    def open(self, part: Part) -> Segment | None:
        """The opened segment; None where its header is damaged and that is to be skipped."""
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
                self._skip(part, 0, len(part.data), part.base or 0, error.message)
                return None
        return part.segment

    def check_digest(self, part: Part) -> None:
        """A sealed segment must still be the one that was sealed: no format notices every change by itself."""
        sealed = self._sealed.get(-1 if part.base is None else part.base)
        if sealed is None or self.skips or part.is_last:  # of the last one, a part may not be acknowledged yet
            return
        data = part.data[: sealed.size_bytes]
        if len(data) < sealed.size_bytes or kernel.crc32c(data) != sealed.crc32c or kernel.crc32(data) != sealed.crc32:
            message = "the sealed segment is not what was written: its digest differs"
            raise CorruptionError(message, path=part.path, offset=part.base, hint=self._hint)

    def check_presence(self) -> None:
        """Sealed segments that are gone, but for those at the beginning, which retention removes."""
        there = {part.base for part in self.parts}
        oldest = min((base for base in there if base is not None), default=-1)
        for base in self._sealed:
            path = posixpath.join(self.path, self.fmt.segment_path(base))
            if base not in there and not self.skips and self.disk.kind(path) in (Kind.DIRECTORY, Kind.OTHER):
                message = "in the place of a segment lies a directory, a link to nothing, or something else than a file"
                raise CorruptionError(message, path=path, offset=base, hint="mount what it points to, or put it back")
            if base not in there and base > oldest and not self.skips:
                raise CorruptionError("a sealed segment is missing", path=path, offset=base, hint=self._hint)
        mark = self._mark
        if mark is None or self.skips or mark.base <= max((base for base in there if base is not None), default=-1):
            return
        if mark.durable_offset > mark.base:
            path = posixpath.join(self.path, self.fmt.segment_path(mark.base))
            raise CorruptionError("the active segment is missing", path=path, offset=mark.base, hint=self._hint)

    def steps(self, part: Part, *, verify: bool = True) -> Iterator[tuple[Segment, Rows]]:
        """The rows of a segment, a few MiB at a time; goes on behind damage where it is skipped."""
        if part is self.parts[0]:
            self._last_offset = -1
        segment = self.open(part)
        if segment is None:
            return
        cursor = segment.start
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
            end = judge_rows(segment, rows, is_last=part.is_last)
            if end.ending == Ending.CLEAN:
                return
            if end.ending == Ending.TORN:
                self.torn_bytes = len(part.data) - end.position
                return
            error = end.error(part.path)
            if end.ending == Ending.UNKNOWN_VERSION or not self.skips:
                error.hint = error.hint if end.ending == Ending.UNKNOWN_VERSION else self._hint
                raise error
            behind = len(part.data) if end.goes_on_at is None else end.goes_on_at
            self._skip(part, end.position, behind - end.position, end.previous_offset + 1, end.why)
            if end.goes_on_at is None:
                return
            cursor = Cursor(end.goes_on_at, cursor.previous_offset)

    def _most(self, part: Part) -> int:
        """The highest offset that a record of this segment can have: the next one begins behind it."""
        following = self.parts.index(part) + 1
        base = self.parts[following].base if following < len(self.parts) else None
        return MAX_OFFSET if base is None else base - 1

    def _up_to(self, part: Part, rows: Rows, cursor: Cursor, most: int) -> tuple[Rows, Cursor]:
        """The rows before the first whose offset cannot be, and where to go on behind that one."""
        columns = rows.columns
        wrong = int(np.argmax(columns.last_offsets > most))
        position, offset = int(columns.position[wrong]), int(columns.first_offsets[wrong])
        why = f"offset {offset} lies in the next segment, which begins at {most + 1}"
        if not self.skips:
            raise CorruptionError(why, path=part.path, position=position, hint=self._hint)
        behind = int(columns.position[wrong + 1]) if wrong + 1 < len(columns) else rows.end.position
        before = int(columns.last_offsets[wrong - 1]) if wrong else cursor.previous_offset
        self._skip(part, position, behind - position, before + 1, why)
        head = columns.head(wrong)
        count = int((head.last_offsets - head.first_offsets + 1).sum())
        return Rows(head, count, ScanEnd(wrong, position, int(Stop.LIMIT), before)), Cursor(behind, before)

    def _in_order(self, part: Part, rows: Rows) -> Rows:
        """The rows behind everything that was seen. A segment that starts before the end of another is damage."""
        first, position = int(rows.columns.first_offsets[0]), int(rows.columns.position[0])
        seen, self._last_offset = self._last_offset, max(self._last_offset, rows.end.last_offset)
        if first > seen:
            return rows
        why = f"the segment before goes up to offset {seen}"
        if not self.skips:
            raise CorruptionError(why, path=part.path, position=position, offset=first, hint=self._hint)
        kept = int(np.searchsorted(rows.columns.first_offsets, seen, side="right"))
        columns = rows.columns.slice(kept, len(rows.columns))
        behind = int(columns.position[0]) if len(columns) else rows.end.position
        self._skip(part, position, behind - position, first, why)
        count = int((columns.last_offsets - columns.first_offsets + 1).sum())
        return Rows(columns, count, rows.end)

    def decode(self, part: Part, segment: Segment, rows: Rows, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The rows as Arrow: one batch, or several where rows that cannot be decoded are skipped."""
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
            self._skip(part, position, rows.end.position - position, offset, error.message)

    def _skip(self, part: Part, position: int, length: int, offset: int, why: str) -> None:
        found = Skipped(part.path, position, length, offset, why)
        if found not in self.skipped:  # the log may be gone through more than once
            self.skipped.append(found)

    def _hinted(self, error: CorruptionError | LimitError, part: Part) -> CorruptionError | LimitError:
        error.path = error.path or part.path
        if isinstance(error, CorruptionError):
            error.hint = self._hint
        return error


def _row(rows: Rows, row: int) -> Rows:
    """One row of a scan."""
    columns = rows.columns.slice(row, row + 1)
    following = int(rows.columns.position[row + 1]) if row + 1 < len(rows.columns) else rows.end.position
    last = int(columns.last_offsets[0])
    count = last - int(columns.first_offsets[0]) + 1
    return Rows(columns, count, ScanEnd(1, following, int(Stop.LIMIT), last))
