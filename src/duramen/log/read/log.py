"""Reads a log: by offset, by time, in order, as records or as Arrow batches. Never writes anything.

Segments are memory-mapped when they are needed. A lookup follows the index if there is one, and checks the record it
points to; otherwise it walks the records. A torn tail ends a scan; damage raises after all records before it were
returned.
"""

from __future__ import annotations

import errno
import threading
import time
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, NamedTuple, Self, Unpack
from weakref import WeakMethod

import numpy as np
import pyarrow as pa

from duramen import kernel
from duramen.arguments import check_int, check_timeout
from duramen.disk import Disk, Kind, Page, disk_or_real
from duramen.errors import (
    CorruptionError,
    DuramenError,
    FencedError,
    OffsetError,
    StorageError,
    UsageError,
)
from duramen.formats import (
    Format,
    FormatOptions,
    Index,
    Role,
    Rows,
    ScanPosition,
    StoredChunk,
    SupportsChunks,
    columns_for,
    schema_for,
)
from duramen.kernel import Stop
from duramen.log.read.mapped_segment import IsSealedIndex, MappedSegment, Ordered
from duramen.log.read.records import decoded_record, records_of
from duramen.log.read.scan import Scan, Time
from duramen.log.segments import (
    Directory,
    EndKind,
    Seals,
    SegmentEnd,
    Snapshot,
    against_mark,
    classify_rows,
    configured_format,
    described_at,
    find_contradiction,
    first_at,
    format_at,
    refuse_foreign_sidecar,
    starts_after_end,
    take_snapshot,
    us_of,
)
from duramen.log.verify import Report, verify_log
from duramen.record import MAX_OFFSET, Record, checked_us
from duramen.sidecar import PAGE_BYTES, WATERMARK_NAME, CachedConfig, Config, Need, SealedList, has_writer, sidecar_path
from duramen.values import DecodeOptions, Decoding

MAX_OPEN_SEGMENTS = 64
"""Most segments that a log keeps mapped. Each has up to three files, and Python keeps a descriptor for each mapping."""
FOLLOW_POLL_S = 0.05
"""How often `wait` looks at a log that no Duramen writer notifies it about."""
FOLLOW_WAIT_S = 0.5
SECOND_LOOKS = 5
"""How often a segment is compared with its digest before it counts as damaged: compaction may be replacing it."""


class ReaderOptions(FormatOptions, total=False):
    """The keyword arguments of `Log`, as a type."""

    disk: Disk | None


class SegmentInfo(NamedTuple):
    """A segment of a log, for display and planning."""

    base_offset: int
    path: str
    size_bytes: int
    sealed: bool


def _infos_of(snapshot: Snapshot, before: tuple[Snapshot, list[SegmentInfo]] | None) -> list[SegmentInfo]:
    """The segments of a snapshot. Those that an earlier one has as well are not described again."""
    files, last = snapshot.directory.segments, len(snapshot.bases) - 1
    same = 0
    if before is not None:
        earlier = before[0].directory.segments
        most = min(len(files), len(earlier)) - 1  # whether the last one is sealed depends on what follows
        while same < most and files[same] is earlier[same]:
            same += 1
    infos = [] if before is None else before[1][:same]
    for number in range(same, len(files)):
        one = files[number]
        infos.append(SegmentInfo(snapshot.bases[number], snapshot.path_of(one), one.segment.size_bytes, number < last))
    return infos


class Located(NamedTuple):
    """Where a record is stored, with the bytes and the indexes of its segment."""

    path: str
    position: int
    base_offset: int
    buf: memoryview
    indexes: Mapping[Role, Index]


class Log:
    """A log opened for reading. Created by `duramen.open`. Threads may share it."""

    def __init__(
        self, path: str, *, format: str | None = None, disk: Disk | None = None, **options: Unpack[FormatOptions]
    ) -> None:
        self.disk = disk_or_real(disk).within(path)
        self.path = path
        self.is_directory = self.disk.kind(path) == Kind.DIRECTORY
        self._configs = CachedConfig(self.disk, path) if self.is_directory else None
        fmt, self._opened_config = self._resolve(format, options)
        self._snapshot = Snapshot(fmt, Directory(path, [], [], [], []), config=self._opened_config)
        self._seals: tuple[Snapshot, Seals] | None = None
        """The digests of sealed segments, with the snapshot that they belong to."""
        self._infos: tuple[Snapshot, list[SegmentInfo]] | None = None
        """The segments as `segments` returns them, with the snapshot that they belong to."""
        self._witnessed: dict[int, int] = {}
        """Sizes of the segments that agree with the sidecar, by base."""
        self._open: OrderedDict[int, MappedSegment] = OrderedDict()
        self.ordered = Ordered()
        self._guard = threading.RLock()
        self._closed = False
        self._page: Page | None = None
        self._state_disk: Disk | None = None
        self._first_look()

    def _resolve(self, format: str | None, options: Mapping[str, Any]) -> tuple[Format, Config | None]:
        """The format of the log, and its configuration, which tells it from another log in the same place."""
        config = None if self._configs is None else self._configs.read()
        if config is None:
            return described_at(self.disk, self.path, format_at(self.disk, self.path, format, dict(options))), None
        return configured_format(config, self.path, format, options), config

    # --- what may be read

    @property
    def snapshot(self) -> Snapshot:
        """The log as this reader sees it: as of the last `refresh`."""
        return self._snapshot

    @property
    def codec(self) -> Format:
        """The format of the log, with its options."""
        return self._snapshot.fmt

    @property
    def generation(self) -> int:
        """How often another log has replaced this one, which a transaction can do."""
        return self._snapshot.generation

    def _first_look(self) -> None:
        self.refresh()
        refuse_foreign_sidecar(self.disk, self.path, self.codec, self._snapshot.directory)

    def refresh(self) -> None:
        """Look at the directory again. Segments may have been added, grown or removed since, and a transaction may have
        replaced all of them."""
        with self._guard:
            snapshot = self._take_snapshot()
            if snapshot.generation != self._snapshot.generation:
                self.close_segments()
            self._snapshot = snapshot
            for base, opened in list(self._open.items()):
                later = opened.under(snapshot)
                if later is None:
                    self._open.pop(base).close()
                else:
                    self._open[base] = later

    def _take_snapshot(self) -> Snapshot:
        return take_snapshot(self.disk, self.path, self.codec, configs=self._configs, known=self._snapshot)

    def committed_directory(self) -> Directory:
        """The files as they are now, without uncommitted records; the last segment is the active one. A transaction in
        progress may have sealed segments after that one, and may still roll them back."""
        return self._take_snapshot().directory

    def is_replaced(self) -> bool:
        """Whether another log has taken the place of the one that was opened: it was deleted and created again, or a
        transaction replaced it."""
        return self._is_other_than(self._opened_config)

    def _is_replaced_since(self) -> bool:
        """Whether that happened after the last snapshot."""
        return self._is_other_than(self._snapshot.config)

    def _is_other_than(self, config: Config | None) -> bool:
        now = None if self._configs is None or config is None else self._configs.read_if_sound()
        return now is not None and config is not None and not config.is_same_log(now)

    def replaced(self) -> StorageError:
        """The error for a reader that would see a part of the old log and a part of the new one."""
        return StorageError("another log has replaced this one", path=self.path, hint="read it again from the start")

    # --- the directory

    @property
    def state_disk(self) -> Disk:
        """The disk for the state of consumers. It stays in the directory that had the log's name at the first use:
        nothing is created in another directory that takes the name."""
        with self._guard:
            if self._state_disk is None:
                self._state_disk = self.disk.rooted(self.path) if self.is_directory else self.disk
            return self._state_disk

    def check_place(self) -> None:
        """Raise if the state of consumers would go to a directory that is not the log's any more: `StorageError`, since
        opening the log again is enough; for a writer, `FencedError`."""
        if self._state_disk is None:
            return
        try:
            self._state_disk.check_root()
        except FencedError as error:
            raise self._displaced() from error

    def _displaced(self) -> StorageError:
        if self.disk.kind(self.path) != Kind.DIRECTORY:
            return StorageError("the log was deleted", path=self.path)
        recreated = "the log was recreated after it was opened"
        taken = "another directory has taken the place of the log's since it was opened here"
        return StorageError(recreated if self.is_replaced() else taken, path=self.path, hint="open it again")

    # --- what it holds

    @property
    def format(self) -> str:
        return self.codec.name

    @property
    def segments(self) -> list[SegmentInfo]:
        """The segments, oldest first; the last one is active."""
        self._before_read()
        snapshot, infos = self._snapshot, self._infos
        if infos is None or infos[0] is not snapshot:
            infos = self._infos = snapshot, _infos_of(snapshot, infos)
        return list(infos[1])

    @property
    def first_offset(self) -> int:
        """The base offset of the oldest segment, or the first offset that readers see."""
        self._before_read()
        bases = self._snapshot.bases
        if not bases:
            return 0
        try:
            segment = self.segment_of(bases[0]).segment
            return max(segment.base_offset, segment.first_visible)
        except CorruptionError:
            if not self.is_directory:
                raise
            return bases[0]  # from its name
        except StorageError as error:
            self.refresh_after(error)
            return self.first_offset

    @property
    def next_offset(self) -> int:
        """The offset after the last whole record."""
        if not self._snapshot.bases:
            return 0
        following = self.end().previous_offset + 1
        if not self._snapshot.bases:  # taken away meanwhile
            return 0
        first = self.segment_of(self._snapshot.bases[-1]).segment.first_visible
        if first > following and self._snapshot.cut_base is None:
            raise starts_after_end(self.path, first, following)
        return max(following, first)

    @property
    def durable_offset(self) -> int:
        """The offset after the last record that is known to be durable. Without a sidecar this is `next_offset`."""
        mark = self._snapshot.watermark
        return self.next_offset if mark is None or not mark.is_open else min(mark.durable_offset, mark.next_offset)

    def end(self) -> SegmentEnd:
        """Where the records of the last segment end, and whether that is clean, torn or damaged."""
        self._before_read()
        bases = self._snapshot.bases
        if not bases:
            return SegmentEnd(EndKind.CLEAN, 0, -1, Stop.END, "the log has no segments")
        try:
            opened = self.segment_of(bases[-1])
        except StorageError as error:
            self.refresh_after(error)
            return self.end()
        if opened.torn_header is not None:
            return SegmentEnd(
                EndKind.TORN, 0, opened.segment.base_offset - 1, Stop.SHORT_HEADER, opened.torn_header.message
            )
        return classify_rows(opened.segment, opened.segment.last_step(opened.last_cursor()), is_last=True)

    # --- records

    def read(self, offset: int, **decoding: Unpack[DecodeOptions]) -> Record:
        """The record with that offset.

        Raises `OffsetError` if it does not exist, `CorruptionError` if it is damaged. With ``decode`` or
        ``decode_key`` its value or key is decoded, as in `scan`."""
        record = self._read(offset)
        wanted = self._decoding(decoding)
        return record if wanted is None else decoded_record(record, wanted)

    def _decoding(self, options: DecodeOptions) -> Decoding | None:
        return Decoding.of(options, self.path) if options else None

    def _sample(self, *bounds: Any, **window: Any) -> Iterator[pa.RecordBatch]:
        """The first batches of a read, for types that depend on values. The read itself reports damage."""
        with suppress(CorruptionError, OffsetError):
            yield from self.batches(*bounds, **{**window, "follow": False, "verify": False})

    def _read(self, offset: int) -> Record:
        self._check_open()
        self._before_read()
        check_int("offset", offset, least=-(2**128), most=2**128)
        opened = self._segment_for(offset)
        self.check_witness(opened)
        found: Record | Stop = Stop.LIMIT
        hint = opened.hint(offset)
        if hint is not None:
            found = opened.segment.read(hint, offset)
        if not isinstance(found, Record):
            # No index, or a wrong one: the records decide.
            found = opened.segment.read(opened.segment.start, offset)
        if isinstance(found, Record):
            return found
        if found in (Stop.LIMIT, Stop.END, Stop.ZEROS):
            raise self._no_such(offset)
        for rows in opened.segment.steps():
            if rows.end.last_offset >= offset:
                break
        verdict = self.verdict(opened, rows)
        if verdict.ending == EndKind.TORN:
            raise self._no_such(offset)
        raise verdict.error(opened.path)

    def verdict(self, opened: MappedSegment, rows: Rows) -> SegmentEnd:
        """Classify the end of a scan that went through a whole segment."""
        end = classify_rows(opened.segment, rows, is_last=opened.is_last)
        return against_mark(end, opened.segment.base_offset, opened.mark)

    def check_witness(self, opened: MappedSegment) -> None:
        """Raise `CorruptionError` if a segment whose records look whole is not what was written. For formats whose
        checksums leave bytes uncovered, the sidecar has a digest; it is compared once for each segment, but not for the
        segment that a writer is appending to."""
        base = opened.segment.base_offset
        if self.codec.capabilities.covers_all or not self.is_directory:
            return
        if opened.visible_bytes == self._witnessed.get(base) or (opened.is_last and self._is_being_written()):
            return
        against = self._contradiction(opened)
        if against is not None:
            last = opened.segment.last_step()
            end = self.verdict(opened, last)
            is_found = end.ending in (EndKind.DAMAGE, EndKind.UNKNOWN_VERSION) and end.stop != Stop.BAD_ORDER
            if not (is_found and opened.segment.record_checksum) or opened.segment.ends_unproven(last):
                raise against  # otherwise the damaged record explains it, and the reader stops there
        self._witnessed[base] = opened.visible_bytes

    def _contradiction(self, opened: MappedSegment) -> CorruptionError | None:
        if opened.is_last:
            found = find_contradiction(opened.segment, opened.mark, index=opened.indexes.get(Role.INDEX))
            return None if found is None else found.error(opened.path)
        seals, snapshot = self._seals, self._snapshot
        if seals is None or seals[0] is not snapshot:
            seals = self._seals = snapshot, Seals(self.disk, self.path, self.codec)
        try:
            seals[1].check(opened.segment.base_offset, opened.path, opened.segment.buf)
        except CorruptionError as error:
            return error if self._is_still_wrong(opened) else None
        return None

    def _is_still_wrong(self, opened: MappedSegment) -> bool:
        """Whether the file that now has the segment's name differs from its digest as well. If not, compaction replaced
        it after it was mapped, and the mapped bytes are the complete old segment."""
        for _ in range(SECOND_LOOKS):
            try:
                data = self.disk.map(opened.path).data
                Seals(self.disk, self.path, self.codec).check(opened.segment.base_offset, opened.path, data)
            except CorruptionError:
                continue  # compaction may have replaced it between the two reads
            except StorageError as error:
                if error.errno != errno.ENOENT:
                    raise
            return False
        return True

    def _is_being_written(self) -> bool:
        mark = self._snapshot.watermark
        return mark is not None and mark.is_open and has_writer(self.disk, self.path)

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
        **decoding: Unpack[DecodeOptions],
    ) -> Iterator[Record]:
        """Iterate over the records in order. See `batches` for the arguments. A decoded value is a dict or a scalar;
        one that does not decode, with ``on_malformed="raw"``, a `MalformedValue`."""
        batches = self.batches(
            from_offset, to_offset, from_time=from_time, to_time=to_time,
            max_records=max_records, max_bytes=max_bytes, follow=follow, **decoding,
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
        **decoding: Unpack[DecodeOptions],
    ) -> Iterator[pa.RecordBatch]:
        """Iterate over the records as Arrow batches of a few MiB.

        ``from_offset`` and ``from_time`` are inclusive, ``to_offset`` and ``to_time`` exclusive; a negative offset
        counts records from the end, so ``from_offset=-5`` starts with the last five. ``max_records`` and
        ``max_bytes`` (of values) limit the whole result. ``columns`` selects the columns to decode. ``follow`` waits
        for more records at the end of the log. ``verify=False`` skips the checksums.

        ``decode`` and ``decode_key`` turn the columns ``value`` and ``key`` into what the bytes mean: ``"amqp"``,
        ``"json"`` and the other kinds of `duramen.decoder`, or such a decoder. ``value_schema``, ``key_schema``,
        ``registry`` and ``on_malformed`` are its arguments; ``on_malformed="raw"`` adds a column ``_malformed``."""
        window = self._window(from_offset, to_offset, from_time, to_time, max_records, max_bytes)
        names = columns_for(self.codec, columns)
        wanted = self._decoding(decoding)
        if wanted is None:
            return window.run(names, follow, verify)
        needed = wanted.needed(names)
        sample = self._sample(
            from_offset, to_offset, from_time=from_time, to_time=to_time,
            max_records=max_records, max_bytes=max_bytes, columns=needed,
        )  # fmt: skip
        return wanted.batches(window.run(needed, follow, verify), names, sample)

    def table(self, /, *bounds: Any, columns: Sequence[str] | None = None, **options: Any) -> pa.Table:
        """The records as one Arrow table, for polars, duckdb and pandas. The arguments are those of `batches`.

        >>> import tempfile, duramen
        >>> with duramen.open(tempfile.mkdtemp() + "/orders", "a") as log:
        ...     log.append(b'{"id": 7, "wood": "oak"}')
        ...     log.table(decode="json", columns=["value"])["value"].to_pylist()
        0
        [{'id': 7, 'wood': 'oak'}]
        """
        return self.reader(*bounds, columns=columns, **options).read_all()

    def reader(self, /, *bounds: Any, columns: Sequence[str] | None = None, **options: Any) -> pa.RecordBatchReader:
        """The records as an Arrow stream with one schema, batch after batch. The arguments are those of `batches`."""
        decoding = {name: options.pop(name) for name in DecodeOptions.__annotations__ if name in options}
        wanted = Decoding.of(decoding, self.path)
        names = columns_for(self.codec, columns)
        if wanted is None:
            return pa.RecordBatchReader.from_batches(
                schema_for(self.codec, names), self.batches(*bounds, columns=names, **options)
            )
        needed = wanted.needed(names)
        batches = self.batches(*bounds, columns=needed, **options)
        wanted.bind(self._sample(*bounds, columns=needed, **options))
        return wanted.reader(batches, schema_for(self.codec, needed), names)

    def chunks(
        self, from_offset: int | None = None, to_offset: int | None = None, *, follow: bool = False, verify: bool = True
    ) -> Iterator[StoredChunk]:
        """Iterate over the chunks that hold these offsets, as they are stored: the unit of replication and of reading.
        The first may begin before ``from_offset``. Only for formats that store records in chunks."""
        if not isinstance(self.codec, SupportsChunks):
            raise UsageError(
                f"{self.format} does not store records in chunks", path=self.path,
                hint="`scan` and `batches` read the records",
            )  # fmt: skip
        return self._window(from_offset, to_offset, None, None, None, None).chunks(follow, verify)

    def _window(self, *bounds: Any) -> Scan:
        self._check_open()
        self._before_read()
        if self.codec.first_visible:
            _ = self.next_offset  # raises if that is after the end
        return Scan(self, *bounds)

    def offset_at(self, timestamp: Time) -> int:
        """The first offset whose record is of that time or later; `next_offset` if there is none.

        If the format lets times go back, this reads every record before it; otherwise it searches one segment."""
        self._check_open()
        self._before_read()
        unit = self.codec.capabilities.timestamps
        if unit is None:
            raise UsageError(f"{self.format} records have no time", path=self.path)
        wanted = checked_us(timestamp)
        try:
            with self._guard:  # no other thread refreshes: segments are addressed by number
                return self._offset_at(wanted)
        except StorageError as error:
            self.refresh_after(error)
            return self.offset_at(timestamp)

    def _offset_at(self, wanted: int) -> int:
        is_ordered = self.codec.capabilities.ordered_timestamps
        number = self._segment_before(wanted) if is_ordered else 0
        for opened in (self._segment(n) for n in range(number, len(self._snapshot.bases))):
            start = self._cursor_older(opened, wanted) if is_ordered else opened.segment.start
            found = first_at(opened.segment, start, wanted)
            if found is not None:
                return found
        return self.next_offset

    def _cursor_older(self, opened: MappedSegment, wanted_us: int) -> ScanPosition:
        """The nearest place in the time index whose record is older than that time; the start if the index is wrong."""
        followed = (opened.followed(role) for role in opened.indexes)
        times = next((i for i in followed if i is not None and i.timestamps_us is not None), None)
        hint = None if times is None or not times.times_in_order() else times.floor_time(wanted_us)
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
        """The last segment whose first record is older than that time. Only for ordered times."""
        low, high = 0, len(self._snapshot.bases)
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
        for rows in opened.segment.steps(max_records=1, verify=False):
            if rows.count:
                return us_of(opened.segment.decode(rows, ("offset", "timestamp")))[0].as_py()
        return None

    def locate(self, offset: int) -> Located:
        """Where the record with that offset is stored: its file, and the byte at which it (or its chunk) starts."""
        self._check_open()
        self._before_read()
        check_int("offset", offset, least=-(2**128), most=2**128)
        opened = self._segment_for(offset)
        for rows in opened.segment.steps(opened.cursor_before(offset), verify=False):
            row = int(np.searchsorted(rows.columns.first_offsets, offset, side="right")) - 1
            if 0 <= row < len(rows.columns) and int(rows.columns.last_offsets[row]) >= offset:
                base = opened.segment.base_offset
                return Located(opened.path, int(rows.columns.position[row]), base, opened.segment.buf, opened.indexes)
        raise self._no_such(offset)

    def verify(self, *, publish: bool = False) -> Report:
        """Check every byte of the log: see `duramen.verify`."""
        self._check_open()
        return verify_log(self.path, format=self.format, disk=self.disk, publish=publish, **self.codec.options)

    def __iter__(self) -> Iterator[Record]:
        return self.scan()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The whole log as an Arrow stream, for ``pyarrow.table(log)``, polars, duckdb and pandas."""
        return self.reader().__arrow_c_stream__(requested_schema)

    def wait(self, timeout_s: float = FOLLOW_WAIT_S, seen: object = None) -> object:
        """Wait until a writer acknowledges records, or ``timeout_s`` passes, and refresh. ``seen`` is the result of the
        previous call; without it this returns at once."""
        self._check_open()
        timeout_s = check_timeout(timeout_s)
        if self._snapshot.watermark is None:  # no Duramen writer has opened this log
            time.sleep(min(timeout_s, FOLLOW_POLL_S))
            seen = None
        else:
            seen = self._wait_for_page(timeout_s, seen)
        self.refresh()
        return seen

    def _wait_for_page(self, timeout_s: float, seen: object) -> bytes:
        with self._guard:
            if self._page is None:
                path = sidecar_path(self.path, WATERMARK_NAME)
                self._page = self.disk.page(path, PAGE_BYTES, writable=False)
            page = self._page
        try:
            if isinstance(seen, bytes):
                page.wait(seen, timeout_s)
            return page.load()
        except StorageError:
            self._check_open()  # another thread may have closed it
            raise

    # --- closing

    def close(self) -> None:
        """Close all files."""
        with self._guard:
            self._closed = True
            self.close_segments()
            if self._page is not None:
                self._page.close()
                self._page = None
            if self._state_disk is not None:
                self._state_disk.unroot()

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
        """Raise if the log was closed, or another thread waits to close it. Long-running work calls this."""
        self._check_open()

    def _before_read(self) -> None:
        """Hook of the writable log, which refreshes after each commit."""

    # --- segments

    def _segment_for(self, offset: int) -> MappedSegment:
        """The segment that would hold ``offset``. Refreshes if that segment was removed."""
        base = self.base_of(offset)
        if base is None:
            raise self._no_such(offset)
        try:
            return self.segment_of(base)
        except StorageError as error:
            self.refresh_after(error)
            return self._segment_for(offset)

    def segment_of(self, base: int) -> MappedSegment:
        """The segment with that base. Raises `StorageError` (ENOENT) if it is not in the current snapshot."""
        with self._guard:
            number = bisect_left(self._snapshot.bases, base)
            if number < len(self._snapshot.bases) and self._snapshot.bases[number] == base:
                return self._segment(number)
        error = StorageError("this segment was removed", path=self.path, offset=base)
        error.errno = errno.ENOENT
        raise error

    def _segment(self, number: int) -> MappedSegment:
        self._check_open()
        with self._guard:
            base = self._snapshot.bases[number]
            opened = self._open.get(base)
            if opened is None:
                check: IsSealedIndex = WeakMethod(self._is_sealed_index)
                opened = MappedSegment(self.disk, self._snapshot, number, self.ordered, check)
                if self._is_replaced_since():
                    opened.close()
                    raise self.replaced()
                self._open[base] = opened
                while len(self._open) > self._max_open_segments:
                    self._open.popitem(last=False)[1].close()
            else:
                self._open.move_to_end(base)
            return opened

    @property
    def _max_open_segments(self) -> int:
        """Most segments to keep mapped: the format's option, which Keratin stores in its manifest, up to our own."""
        return max(1, min(int(self.codec.options.get("max_open_segments", MAX_OPEN_SEGMENTS)), MAX_OPEN_SEGMENTS))

    def _is_sealed_index(self, base: int, role: Role, data: memoryview) -> bool:
        """Whether an index is what its segment was sealed with, as far as that is known."""
        entry = SealedList(self.disk, self.path).find(base) if self.is_directory else None
        known = () if entry is None else entry.indexes or ()
        wrong = [index for index in known if index.role == role.value and index.crc32c != kernel.crc32c(data)]
        if wrong:
            self._found_wrong_index(base)
        return not wrong

    def _found_wrong_index(self, base: int) -> None:
        """Hook of the writable log, which rebuilds the index; a reader does not follow it."""

    def refresh_after(self, error: StorageError) -> None:
        """Refresh after retention removed a segment. Raises ``error`` again if that is not the reason."""
        if error.errno != errno.ENOENT:
            raise error
        self.refresh()
        gone = error.path
        if any(self._snapshot.path_of(files) == gone for files in self._snapshot.directory.segments):
            raise error

    def needs(self) -> list[Need]:
        """The consumers that still need records, other than jobs with a hold."""
        return []

    @property
    def open_segments(self) -> int:
        """The number of mapped segments."""
        return len(self._open)

    def close_segments(self) -> None:
        """Close all mapped segments. They are mapped again when they are needed."""
        with self._guard:
            while self._open:
                self._open.popitem()[1].close()

    def base_of(self, offset: int) -> int | None:
        """The base of the segment that would hold ``offset``."""
        bases = self._snapshot.bases
        if not 0 <= offset <= MAX_OFFSET or not bases:
            return None
        if len(bases) == 1:
            return bases[0]
        number = bisect_right(bases, offset) - 1
        return bases[number] if number >= 0 else None

    def _no_such(self, offset: int) -> OffsetError:
        try:
            held = f"the log holds {self.first_offset} to {self.next_offset - 1}"
        except DuramenError:
            held = "`duramen info` shows what the log holds"
        if self._snapshot.bases and self.next_offset == self.first_offset:
            held = "the log is empty"
        return OffsetError("no such record", path=self.path, offset=offset, hint=held)
