"""Reading a log: by offset, by time, in order, as records or as Arrow batches. Never writes, not even a trace.

Segments are memory-mapped when they are needed; an index is followed where there is one and checked where it points,
and without it the records themselves are walked. A torn tail ends a scan quietly; damage raises, after everything
before it was handed out.
"""

from __future__ import annotations

import errno
import posixpath
import threading
import time
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from duramen import kernel
from duramen.disk import Disk, PosixDisk
from duramen.disk.base import Kind, Page
from duramen.errors import CorruptionError, DuramenError, IncompleteHeaderError, OffsetError, StorageError, UsageError
from duramen.formats.base import SCAN_RECORDS, Cursor, Role, Rows, columns_for, schema_for
from duramen.formats.index import Index
from duramen.kernel.layout import Stop
from duramen.log import change, pending
from duramen.log.beginning import last_has_not_begun
from duramen.log.directory import Directory, format_at, list_log, refuse_foreign_sidecar
from duramen.log.ending import End, Ending, is_unfinished, judge_rows
from duramen.log.holds import Need
from duramen.log.opened import OpenSegment
from duramen.log.report import Report
from duramen.log.rows import records_of
from duramen.log.sidecar import DIRECTORY, PAGE_BYTES, Watermark, read_config, read_watermark
from duramen.log.verify import verify
from duramen.log.window import Time, Window, us_of
from duramen.model import MAX_OFFSET, Record, checked_us

MAX_OPEN_SEGMENTS = 64
FOLLOW_POLL_S = 0.05
"""How often a log of another program is looked at; a log of ours tells by itself."""
FOLLOW_WAIT_S = 0.5
MOST_LOOKS = 100
"""How often a reader looks again because the log has changed while it looked."""


class SegmentInfo(NamedTuple):
    """A segment as people see it."""

    base_offset: int
    path: str
    size_bytes: int
    sealed: bool


class Located(NamedTuple):
    """The place of a record, with the bytes of the segment around it and its indexes."""

    path: str
    position: int
    base_offset: int
    buf: memoryview
    indexes: Mapping[Role, Index]


class Log:
    """A log opened for reading. Made by `duramen.open`."""

    def __init__(self, path: str, *, format: str | None = None, disk: Disk | None = None, **options: Any) -> None:
        self.disk = disk if disk is not None else PosixDisk()
        self.path = path
        self.is_directory = self.disk.kind(path) == Kind.DIRECTORY
        self._opened_identity = self._identity = self._present_identity()
        """Which log this is: the one that was opened, and the one of the last look."""
        self.generation = 0
        """How often another log has taken this one's place, which a transaction that replaces it does."""
        self.codec = format_at(self.disk, path, format, options)
        self._has_sidecar = False
        self._watermark: Watermark | None = None
        self._known_proven: tuple[Watermark, Watermark] | None = None
        self._open: OrderedDict[int, OpenSegment] = OrderedDict()
        self._guard = threading.RLock()
        self._closed = False
        self._page: Page | None = None
        self._first_look()

    # --- what is there

    def _first_look(self) -> None:
        self.refresh()
        refuse_foreign_sidecar(self.disk, self.path, self.codec, self._directory)

    def refresh(self) -> None:
        """Look at the directory again: segments may have come, grown or gone, or a transaction replaced all of them."""
        with self._guard:
            self._directory = self._list()
            while self._is_replaced_since():
                self._identity = self._present_identity()
                self.generation += 1
                self.close_segments()
                self.codec = format_at(self.disk, self.path, None, {})
                self._directory = self._list()
            self._identity = self._identity or self._present_identity()
            segments = self._directory.segments
            self._bases = [files.base if files.base is not None else 0 for files in segments]
            sizes = {base: files.segment.size_bytes for base, files in zip(self._bases, segments, strict=True)}
            for base, opened in list(self._open.items()):
                if sizes.get(base) != opened.visible_bytes or opened.is_last != (base == self._bases[-1]):
                    self._open.pop(base).close()

    def _present_identity(self) -> tuple[str, int] | None:
        """What tells the log that is here now from one that was here before; None where nothing does."""
        try:
            config = read_config(self.disk, self.path) if self.is_directory else None
        except (CorruptionError, StorageError):
            return None  # whoever needs what it says is told
        return None if config is None else (config.format, config.created_ms)

    def is_replaced(self) -> bool:
        """Whether another log is in the place of the one that was opened: it was deleted and made anew, or a
        transaction replaced it."""
        opened = self._opened_identity
        return opened is not None and self._present_identity() not in (None, opened)

    def _is_replaced_since(self) -> bool:
        """Whether that happened since the last look. To be asked after it: that is when the files that were seen are
        those of one log."""
        now = self._present_identity() if self._identity is not None else None
        return now is not None and now != self._identity

    def replaced(self) -> StorageError:
        """What somebody is told who would see a part of the old log and a part of the new one."""
        return StorageError(
            "another log has taken the place of this one meanwhile", path=self.path, hint="read it anew"
        )

    def _list(self) -> Directory:
        """The files, as far as readers may see them: what a writer has not acknowledged yet does not exist."""
        if self.is_directory and not self._has_sidecar:
            self._has_sidecar = self.disk.kind(posixpath.join(self.path, DIRECTORY)) == Kind.DIRECTORY
        for look in range(MOST_LOOKS):
            self._watermark = watermark = read_watermark(self.disk, self.path) if self._has_sidecar else None
            listed = list_log(self.disk, self.path, self.codec)
            try:
                directory = self._acknowledged(listed, watermark)
            except StorageError as error:
                if error.errno != errno.ENOENT or look == MOST_LOOKS - 1:
                    raise
                continue  # retention was faster
            if watermark is None or self._fits(listed, watermark):
                break
        return directory

    def committed_directory(self) -> Directory:
        """The files as they are now, as far as they are acknowledged; the last segment is the active one. A transaction
        that is under way may have sealed segments behind that, and may still take them back."""
        with self._guard:
            return self._list()

    def _fits(self, listed: Directory, watermark: Watermark) -> bool:
        """Whether the watermark is of the files that were listed after it was read. A writer may have come or gone on
        in between, and retention have followed it: then the segment that the watermark means is gone."""
        if watermark.is_open and any(files.base == watermark.base for files in listed.segments):
            return True
        return read_watermark(self.disk, self.path) == watermark

    def _acknowledged(self, directory: Directory, watermark: Watermark | None) -> Directory:
        if self._has_sidecar:
            directory = directory.without(change.pending_removals(self.disk, self.path))
        uncommitted = pending.visible(self.disk, self.path, self.codec, directory) if self._has_sidecar else None
        if uncommitted is not None:
            self._watermark, directory = uncommitted
            return directory
        if watermark is None or not watermark.is_open:
            return directory
        if not self.disk.is_locked(posixpath.join(self.path, DIRECTORY, "lock")):
            # Its writer is dead, and the watermark may be older than the truth: what is whole is there, and recovery
            # will keep it. Where records do not prove themselves, it may be newer, too.
            if self.codec.capabilities.record_checksum:
                return self._without_torn_tail(directory, watermark)
            watermark = self._proven(directory, watermark)
        if watermark.next_offset < watermark.base:
            return self._without_unfinished_batch(directory, watermark.next_offset)
        return directory.up_to(watermark.base, watermark.position)

    def _proven(self, directory: Directory, watermark: Watermark) -> Watermark:
        """The watermark as far as its checksum proves the bytes: a power loss may have kept it, and not all of them."""
        if self._known_proven is None or self._known_proven[0] != watermark:
            found = [files for files in directory.segments if files.base == watermark.base]
            data = self.disk.map(directory.full(found[0].segment.path)).data if found else memoryview(b"")
            proven, position = watermark, watermark.position
            if position > len(data) or kernel.crc32c(data[:position]) != watermark.crc32c:
                proven = watermark._replace(position=watermark.durable_position, next_offset=watermark.durable_offset)
            self._known_proven = watermark, proven
        return self._known_proven[1]

    def _without_torn_tail(self, directory: Directory, watermark: Watermark) -> Directory:
        """A writer died: what is whole stays, and what is not will be cut, perhaps while this reader has the file
        mapped, so it never looks there."""
        if not directory.segments:
            return directory
        files = directory.segments[-1]
        data = self.disk.map(directory.full(files.segment.path)).data
        is_behind = watermark.base < (files.base or 0)
        if is_behind and last_has_not_begun(self.disk, directory, self.codec, data, watermark):
            return directory.up_to(files.base or 0, 0)
        try:
            segment = self.codec.open_segment(data, files.base)
        except IncompleteHeaderError:
            return directory.up_to(files.base or 0, 0)
        cursor = segment.start
        if watermark.base == files.base and cursor.position <= watermark.durable_position <= len(segment.buf):
            cursor = Cursor(watermark.durable_position, watermark.durable_offset - 1)
        last = rows = segment.scan(cursor)
        while rows.stop == Stop.LIMIT:
            rows = segment.scan(rows.cursor)
            last = rows if len(rows.columns) else last
        end = judge_rows(segment, rows, is_last=True)
        durable = watermark.durable_position if watermark.base == files.base else 0
        if len(last.columns) and end.stop != Stop.END and end.position > durable and segment.ends_in_doubt(last):
            return directory.up_to(files.base or 0, int(last.columns.position[-1]))
        if end.ending in (Ending.DAMAGE, Ending.UNKNOWN_VERSION) and not is_unfinished(end, segment, watermark):
            return directory
        return directory.up_to(files.base or 0, end.position)

    def _without_unfinished_batch(self, directory: Directory, next_offset: int) -> Directory:
        """A batch is being written over several segments: none of it is there yet."""
        before = [files for files in directory.segments if (files.base or 0) <= next_offset]
        if not before:
            return directory.up_to(-1, 0)
        files = before[-1]
        segment = self.codec.open_segment(self.disk.map(directory.full(files.segment.path)).data, files.base)
        cursor = segment.start
        while True:
            rows = segment.scan(cursor, verify=False)
            row = int(np.searchsorted(rows.columns.first_offsets, next_offset))
            if row < len(rows.columns):
                return directory.up_to(segment.base_offset, int(rows.columns.position[row]))
            if rows.stop != Stop.LIMIT:
                return directory.up_to(segment.base_offset, rows.cursor.position)
            cursor = rows.cursor

    @property
    def format(self) -> str:
        return self.codec.name

    @property
    def segments(self) -> list[SegmentInfo]:
        """The segments, oldest first; the last one is the active one."""
        self._before_read()
        with self._guard:
            bases, directory = self._bases, self._directory
        last = len(bases) - 1
        return [
            SegmentInfo(base, directory.full(files.segment.path), files.segment.size_bytes, number < last)
            for number, (base, files) in enumerate(zip(bases, directory.segments, strict=True))
        ]

    @property
    def first_offset(self) -> int:
        """The first offset that the log can hold: the base of its oldest segment."""
        self._before_read()
        bases = self._bases
        if not bases:
            return 0
        try:
            return self._segment_of(bases[0]).segment.base_offset
        except StorageError as error:
            self._look_again(error)
            return self.first_offset

    @property
    def next_offset(self) -> int:
        """The offset behind the last whole record."""
        if not self._bases:
            return 0
        return self.end().previous_offset + 1

    @property
    def durable_offset(self) -> int:
        """The offset up to which records are known to be on the disk. A log without a sidecar cannot tell more than
        that what can be read is there."""
        mark = self._watermark
        return self.next_offset if mark is None or not mark.is_open else min(mark.durable_offset, mark.next_offset)

    def end(self) -> End:
        """Where the last segment's records end, and whether that is clean, torn or damaged."""
        self._before_read()
        bases = self._bases
        if not bases:
            return End(Ending.CLEAN, 0, -1, Stop.END, "there is no segment")
        try:
            opened = self._segment_of(bases[-1])
        except StorageError as error:
            self._look_again(error)
            return self.end()
        if opened.torn_header is not None:
            return End(Ending.TORN, 0, opened.segment.base_offset - 1, Stop.SHORT_HEADER, opened.torn_header.message)
        cursor = opened.last_cursor()
        while True:
            rows = opened.segment.scan(cursor)
            if rows.stop != Stop.LIMIT:
                return judge_rows(opened.segment, rows, is_last=True)
            cursor = rows.cursor

    # --- records

    def read(self, offset: int) -> Record:
        """The record with that offset.

        Raises `OffsetError` if there is none, `CorruptionError` if it is there and damaged."""
        self._check_open()
        self._before_read()
        opened = self._segment_for(offset)
        answer: Record | Stop = Stop.LIMIT
        hint = opened.hint(offset)
        if hint is not None:
            answer = opened.segment.read(hint, offset)
        if not isinstance(answer, Record):
            # No index, or it led astray: the records themselves decide.
            answer = opened.segment.read(opened.segment.start, offset)
        if isinstance(answer, Record):
            return answer
        if answer in (Stop.LIMIT, Stop.END, Stop.ZEROS):
            raise self._no_such(offset)
        for rows in self._steps(opened, opened.segment.start):
            if rows.end.last_offset >= offset:
                break
        verdict = judge_rows(opened.segment, rows, is_last=opened.is_last)
        if verdict.ending == Ending.TORN:
            raise self._no_such(offset)
        raise verdict.error(opened.path)

    def scan(
        self,
        from_offset: int | None = None,
        to_offset: int | None = None,
        *,
        from_time: Time | None = None,
        to_time: Time | None = None,
        max_records: int | None = None,
        max_bytes: int | None = None,
        follow: bool = False,
    ) -> Iterator[Record]:
        """The records in order, one object each. See `batches` for the arguments."""
        batches = self.batches(
            from_offset, to_offset, from_time=from_time, to_time=to_time,
            max_records=max_records, max_bytes=max_bytes, follow=follow,
        )  # fmt: skip
        return (record for batch in batches for record in records_of(batch))

    def batches(
        self,
        from_offset: int | None = None,
        to_offset: int | None = None,
        *,
        from_time: Time | None = None,
        to_time: Time | None = None,
        max_records: int | None = None,
        max_bytes: int | None = None,
        columns: Sequence[str] | None = None,
        follow: bool = False,
        verify: bool = True,
    ) -> Iterator[pa.RecordBatch]:
        """The records as Arrow batches of a few MiB.

        ``from_offset`` and ``from_time`` are inclusive, ``to_offset`` and ``to_time`` exclusive. ``max_records`` and
        ``max_bytes`` (of values) bound the whole answer. ``columns`` decodes only those. ``follow`` waits for more
        at the end. ``verify=False`` skips the checksums."""
        window = self._window(from_offset, to_offset, from_time, to_time, max_records, max_bytes)
        return window.run(columns_for(self.codec, columns), follow, verify)

    def _window(self, *bounds: Any) -> Window:
        self._check_open()
        self._before_read()
        return Window(self, *bounds)

    def offset_at(self, timestamp: Time) -> int:
        """The first offset whose record is at or behind that time; `next_offset` if none is."""
        self._check_open()
        self._before_read()
        unit = self.codec.capabilities.timestamps
        if unit is None:
            raise UsageError(f"{self.format} records have no time", path=self.path)
        wanted = checked_us(timestamp)
        try:
            with self._guard:  # nobody looks at the directory meanwhile: segments are counted
                return self._offset_at(wanted)
        except StorageError as error:
            self._look_again(error)
            return self.offset_at(timestamp)

    def _offset_at(self, wanted: int) -> int:
        number = self._segment_before(wanted)
        for opened in (self._segment(n) for n in range(number, len(self._bases))):
            for rows in self._steps(opened, self._cursor_older(opened, wanted), verify=False):
                batch = opened.segment.decode(rows, ("offset", "timestamp"))
                row = pc.index(pc.greater_equal(us_of(batch), wanted), True).as_py()
                if row >= 0:
                    return int(batch.column(0)[row].as_py())
        return self.next_offset

    def _cursor_older(self, opened: OpenSegment, wanted_us: int) -> Cursor:
        """A place whose record is older than that time, as near as the time index knows; the start if it lies."""
        times = next((i for i in opened.indexes.values() if i.timestamps_us is not None), None)
        hint = None if times is None else times.floor_time(wanted_us)
        if hint is None:
            return opened.segment.start
        cursor = opened.cursor_before(hint)
        rows = opened.segment.scan(cursor, max_records=1, verify=False)
        if rows.count:
            first = us_of(opened.segment.decode(rows, ("offset", "timestamp")))[0].as_py()
            if first is not None and first < wanted_us:
                return cursor
        return opened.segment.start

    def _segment_before(self, wanted_us: int) -> int:
        """The last segment whose first record is older than that time, assuming that segments are in order."""
        low, high = 0, len(self._bases)
        while low < high:
            middle = (low + high) // 2
            first = self._first_time(middle)
            if first is not None and first < wanted_us:
                low = middle + 1
            else:
                high = middle
        return max(low - 1, 0)

    def _first_time(self, number: int) -> int | None:
        opened = self._segment(number)
        for rows in self._steps(opened, opened.segment.start, max_records=1, verify=False):
            if rows.count:
                return us_of(opened.segment.decode(rows, ("offset", "timestamp")))[0].as_py()
        return None

    def locate(self, offset: int) -> Located:
        """Where the record with that offset lies: its file, and the byte at which it (or its chunk) starts."""
        self._check_open()
        self._before_read()
        opened = self._segment_for(offset)
        for rows in self._steps(opened, opened.cursor_before(offset), verify=False):
            row = int(np.searchsorted(rows.columns.first_offsets, offset, side="right")) - 1
            if 0 <= row < len(rows.columns) and int(rows.columns.last_offsets[row]) >= offset:
                base = opened.segment.base_offset
                return Located(opened.path, int(rows.columns.position[row]), base, opened.segment.buf, opened.indexes)
        raise self._no_such(offset)

    def verify(self) -> Report:
        """Check every byte of the log, as `duramen.verify` does."""
        self._check_open()
        return verify(self.path, format=self.format, disk=self.disk, **self.codec.options)

    def __iter__(self) -> Iterator[Record]:
        return self.scan()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The whole log as an Arrow stream: ``pyarrow.table(log)``, and polars, duckdb and pandas likewise."""
        schema = schema_for(self.codec, columns_for(self.codec, None))
        reader = pa.RecordBatchReader.from_batches(schema, self.batches())
        return reader.__arrow_c_stream__(requested_schema)

    def wait(self, timeout_s: float = FOLLOW_WAIT_S, seen: object = None) -> object:
        """Return when there may be more to read than when ``seen`` was answered: at once when a writer acknowledges,
        else after ``timeout_s``. Answers what to give as ``seen`` the next time; without it, nobody waits."""
        self._check_open()
        if self._watermark is None:  # no writer of ours has been here, though its consumers may have
            time.sleep(min(timeout_s, FOLLOW_POLL_S))
            seen = None
        else:
            seen = self._wait_for_page(timeout_s, seen)
        self.refresh()
        return seen

    def _wait_for_page(self, timeout_s: float, seen: object) -> bytes:
        with self._guard:
            if self._page is None:
                path = posixpath.join(self.path, DIRECTORY, "watermark")
                self._page = self.disk.page(path, PAGE_BYTES, writable=False)
            page = self._page
        try:
            if isinstance(seen, bytes):
                page.wait(seen, timeout_s)
            return page.load()
        except StorageError:
            self._check_open()  # perhaps another thread closed it meanwhile
            raise

    # --- life

    def close(self) -> None:
        """Let go of all files."""
        with self._guard:
            self._closed = True
            self.close_segments()
            if self._page is not None:
                self._page.close()
                self._page = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<duramen.Log {self.path!r} format={self.format}>"

    @property
    def is_closed(self) -> bool:
        return self._closed

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("the log is closed", path=self.path)

    def check_going_on(self) -> None:
        """For work that takes long: raise where somebody has closed the log meanwhile, or waits to do so."""
        self._check_open()

    def _before_read(self) -> None:
        """For a log that is also written: see what has been acknowledged since."""

    # --- segments

    def _segment_for(self, offset: int) -> OpenSegment:
        """The segment that would hold ``offset``. Where it has just gone, the directory is looked at again."""
        base = self._base_of(offset)
        if base is None:
            raise self._no_such(offset)
        try:
            return self._segment_of(base)
        except StorageError as error:
            self._look_again(error)
            return self._segment_for(offset)

    def _segment_of(self, base: int) -> OpenSegment:
        """The segment with that base, which another thread may have seen go: then it is missing like its file."""
        with self._guard:
            number = bisect_left(self._bases, base)
            if number < len(self._bases) and self._bases[number] == base:
                return self._segment(number)
        error = StorageError("this segment was removed", path=self.path, offset=base)
        error.errno = errno.ENOENT
        raise error

    def _segment(self, number: int) -> OpenSegment:
        self._check_open()
        with self._guard:
            base = self._bases[number]
            opened = self._open.get(base)
            if opened is None:
                opened = OpenSegment(self, self._directory.segments[number], number == len(self._bases) - 1)
                if self._is_replaced_since():
                    opened.close()
                    raise self.replaced()
                self._open[base] = opened
                if len(self._open) > MAX_OPEN_SEGMENTS:
                    self._open.popitem(last=False)[1].close()
            else:
                self._open.move_to_end(base)
            return opened

    def _look_again(self, error: StorageError) -> None:
        """Retention may have removed a segment since the directory was looked at. Raises where that is not it."""
        if error.errno != errno.ENOENT:
            raise error
        self.refresh()
        gone = error.path
        if any(self._directory.full(files.segment.path) == gone for files in self._directory.segments):
            raise error

    def needs(self) -> list[Need]:
        """Who still needs which records, besides the jobs that hold some."""
        return []

    @property
    def open_segments(self) -> int:
        """How many segments are open for reading."""
        return len(self._open)

    def close_segments(self) -> None:
        """Let go of them; those that are needed again are opened again."""
        with self._guard:
            while self._open:
                self._open.popitem()[1].close()

    def _base_of(self, offset: int) -> int | None:
        """The base of the segment that would hold ``offset``."""
        bases = self._bases
        if not 0 <= offset <= MAX_OFFSET or not bases:
            return None
        if len(bases) == 1:
            return bases[0]
        number = bisect_right(bases, offset) - 1
        return bases[number] if number >= 0 else None

    def _steps(
        self, opened: OpenSegment, cursor: Cursor, *, verify: bool = True, max_records: int = SCAN_RECORDS
    ) -> Iterator[Rows]:
        """Scan on from ``cursor`` until something other than a limit stops it."""
        while True:
            rows = opened.segment.scan(cursor, verify=verify, max_records=max_records)
            yield rows
            if rows.stop != Stop.LIMIT:
                return
            cursor = rows.cursor

    def _no_such(self, offset: int) -> OffsetError:
        try:
            held = f"the log holds {self.first_offset} to {self.next_offset - 1}"
        except DuramenError:
            held = "`duramen info` shows what the log holds"
        if self._bases and self.next_offset == self.first_offset:
            held = "the log is empty"
        return OffsetError("no such record", path=self.path, offset=offset, hint=held)
