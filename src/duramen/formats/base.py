"""What a format is: its names, its bytes, its capabilities. Pure bytes, no file is opened here.

A `Format` knows which file names are whose, makes and reads the derived files, and opens the bytes of a segment as
a `Segment`, which scans and decodes them. The rest of the program asks `Format.capabilities`, never the name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from duramen.errors import UnsupportedFieldError, UsageError
from duramen.formats.index import Index, Places
from duramen.formats.structs import Block, Buffer
from duramen.formats.values import Values
from duramen.kernel.layout import Columns, FrameColumns, ScanEnd, Stop, UInt32s
from duramen.model import COLUMNS, Record, schema_of

__all__ = [
    "Block",
    "Buffer",
    "Capabilities",
    "Cursor",
    "Encoded",
    "FileName",
    "Format",
    "IndexBuilder",
    "NoIndex",
    "Picked",
    "Problem",
    "Role",
    "Rows",
    "Segment",
    "SegmentSummary",
    "Severity",
    "Stop",
    "columns_for",
    "cursor_near",
    "lacks_a_row",
    "rows_behind",
    "schema_for",
]

SCAN_RECORDS = 16_384
SCAN_BYTES = 4 << 20
"""The step of a scan: large enough to make Python's share small, small enough to stay in a processor's cache."""

SECTOR_BYTES = 512
"""What a disk writes whole or not at all."""
SEGMENT_OPTIONS: Mapping[str, type] = {"segment_max_bytes": int, "segment_max_age_ms": int}
"""The options of every format that has segments: when a new one is begun."""


class Role(StrEnum):
    """What a file of a log directory is for."""

    SEGMENT = "segment"
    INDEX = "index"
    TIME_INDEX = "time index"
    MANIFEST = "manifest"
    CHECKPOINT = "checkpoint"
    GROUP_SNAPSHOT = "group snapshot"
    GROUP_DELTA = "group delta"
    LOCK = "lock"
    LEFTOVER = "leftover"


class FileName(NamedTuple):
    role: Role
    base: int | None = None


class Cursor(NamedTuple):
    """Where a scan goes on: a byte position, and the offset of the record before it."""

    position: int
    previous_offset: int


class Severity(StrEnum):
    NOTE = "note"
    WARNING = "warning"
    DAMAGE = "damage"


class Problem(NamedTuple):
    """Something that a format noticed about its own bytes; the log adds the path and what to do."""

    code: str
    severity: Severity
    message: str
    position: int | None = None
    offset: int | None = None
    action: str = ""
    """What to do about it, where the log's own advice does not fit."""


@dataclass(frozen=True)
class Capabilities:
    """What a format can carry and do, as data."""

    timestamps: str | None
    """``"ms"``, ``"us"``, or None where records have no time."""
    key: bool
    headers: bool
    explicit_offsets: bool
    """Records (or chunks) carry their offset, so that a gap can be told from a loss."""
    compaction: bool
    segments: bool
    index: bool
    checksum: str
    """Which checksum covers which bytes, in words."""
    record_checksum: bool
    """Whether a changed payload byte is noticed without the sidecar."""
    max_value_bytes: int
    max_segment_bytes: int = 2**62
    """What the index can point into."""
    max_segment_rows: int = 2**62
    """Records (or chunks) after which a new segment is begun."""
    max_relative_offset: int = 2**62
    """How far an offset may lie from the segment's base."""
    index_at_once: bool = False
    """The format's own program goes by the index: it must not lag behind the records."""
    cuts_zeros: bool = False
    """The format's own program, when it starts, cuts zeros behind the last record: a crash may leave them there."""
    rolls_when_full: bool = False
    """A segment is left once it has reached its size; otherwise before it would exceed it."""
    signed_timestamps: bool = False
    """Whether a time before 1970 has a place."""
    ordered_timestamps: bool = False
    """Whether a time that goes backwards is against the format's rules."""
    manifest: bool = False
    """Whether a file describes the whole log: see `Format.log_files`."""
    lost_segments_show: bool = False
    """Whether a gap between two segments can only be a loss: no program of this format leaves one."""
    tracking: bool = False
    """The log itself keeps the sequences of producers."""
    chunks: bool = False
    """Records are stored together in chunks; where one ends is the writer's choice."""
    extras: tuple[pa.Field, ...] = ()
    """Columns beyond the neutral record that can be decoded and encoded, so that nothing is lost on a round trip."""

    @cached_property
    def columns(self) -> frozenset[str]:
        """The columns that have a place."""
        optional = {"timestamp": self.timestamps, "key": self.key, "headers": self.headers}
        able = {name for name, is_able in optional.items() if is_able}
        return frozenset({"offset", "value"} | able | {field.name for field in self.extras})


@dataclass
class Rows:
    """What one step of a scan found: ``count`` user records in columns that only the format understands."""

    columns: Columns
    count: int
    end: ScanEnd
    values: pa.BinaryArray | None = None
    """What `Segment.decode` will be asked for, where the scan took it along."""

    @property
    def cursor(self) -> Cursor:
        return Cursor(self.end.position, self.end.last_offset)

    @property
    def stop(self) -> Stop:
        return Stop(self.end.stop)

    def gaps(self, previous_offset: int | None) -> Iterator[tuple[int, int, int]]:
        """Offsets that no row holds, as (position behind the gap, first, last). None: the first row starts anew."""
        firsts, lasts = self.columns.first_offsets, self.columns.last_offsets
        if not len(firsts):
            return
        expected = np.empty(len(firsts), np.int64)
        expected[1:] = lasts[:-1] + 1
        expected[0] = firsts[0] if previous_offset is None else previous_offset + 1
        for row in np.flatnonzero(firsts > expected).tolist():
            yield int(self.columns.position[row]), int(expected[row]), int(firsts[row]) - 1


class Encoded(NamedTuple):
    """Bytes to append to a segment, and the columns that a scan of them would give."""

    data: memoryview
    rows: Rows


class SequenceRun(NamedTuple):
    """Rows of a batch, ``start`` up to ``stop``, that a producer sent; ``sequence`` is that of the first one."""

    start: int
    stop: int
    name: bytes
    sequence: int


class Segment(ABC):
    """The bytes of one segment file, opened. Holds no state but the bytes: every call says where it starts.

    ``start`` is where the first record lies, ``dialect`` which variant of the format the file is written in.
    """

    buf: memoryview
    base_offset: int
    start: Cursor
    dialect: str
    header_bytes: int
    """What a record (or a chunk, or a slot) begins with, at the least."""
    trailer_bytes: int = 0
    """What every record ends with, behind its payload."""
    version_at: int = 0
    """Where the last byte of the version lies in it."""
    record_checksum: bool = True
    created_ms: int = 0
    """When the file was made, where it says so."""

    @abstractmethod
    def scan(
        self,
        cursor: Cursor,
        *,
        max_records: int = SCAN_RECORDS,
        max_bytes: int = SCAN_BYTES,
        verify: bool = True,
        room: Columns | None = None,
        digests: UInt32s | None = None,
        take_values: bool = False,
    ) -> Rows:
        """The next records. ``verify`` checks every checksum on the way. ``room`` is filled instead of new columns, for
        those who have done with the rows that are in it. ``digests``, a CRC-32C and a CRC-32, go on with all bytes of
        these records, while they are in the processor's cache. ``take_values``: the column ``value`` will be decoded,
        so it may be copied at once, while the checksum has the bytes at hand; a format need not."""

    def room(self, records: int = SCAN_RECORDS) -> Columns | None:
        """Columns for so many records; None where a scan would not use them."""
        return None

    @abstractmethod
    def decode(self, rows: Rows, columns: Sequence[str]) -> pa.RecordBatch:
        """The rows as Arrow, with the named columns of the neutral record (or the format's extras) in that order."""

    def check(self, rows: Rows) -> Iterator[Problem]:
        """What a check of every byte finds in rows whose checksums are right."""
        return iter(())

    @abstractmethod
    def read(self, cursor: Cursor, offset: int) -> Record | Stop:
        """The record with that offset, looked for from ``cursor`` on; or why there is none: ``LIMIT`` when a later
        record came first, else where the bytes ended."""

    @abstractmethod
    def cursor_at(self, offset: int, position: int) -> Cursor | None:
        """A cursor from an index entry, or None where the entry is plainly wrong: no record starts there."""

    def ends_in_doubt(self, rows: Rows) -> bool:
        """Whether the last row could as well be the first bytes of another record, of which the rest are zeros."""
        return False

    def swallowed(self, rows: Rows) -> Iterator[tuple[int, int]]:
        """Rows that take in the one behind them, because a length that no checksum covers is wrong: the number of the
        row, and where the next one really starts."""
        return iter(())

    def at_offset(self, position: int, offset: int) -> tuple[int, bytes] | None:
        """What to write where, so that the record at ``position`` has that offset; None where its place says the
        offset, or a checksum covers it."""
        return None

    def state_rows(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """Which of the rows hold something besides records: what consumers and producers stored in the log."""
        return np.zeros(len(rows.columns), np.bool_)

    @abstractmethod
    def resync(self, cursor: Cursor) -> int:
        """The position of the next valid record behind a bad place; ``NOT_FOUND`` or ``GAVE_UP`` if there is none."""

    def select(self, rows: Rows, kept: npt.NDArray[np.bool_], cursor: Cursor) -> Encoded:
        """The records that are kept, byte for byte, as they are to be appended at ``cursor``. For formats that can be
        compacted."""
        raise UsageError("records of this format cannot be left out one by one")


NEAR_BYTES = 1 << 20
"""What is walked sooner than looked for."""


def cursor_near(segment: Segment, position: int, index: Index | None) -> Cursor | None:
    """A place at or before ``position`` where a record starts, from the index or because a checksum proves it; None
    where it is best to walk from the beginning."""
    if position - segment.start.position < NEAR_BYTES:
        return None
    if index is not None and index.positions is not None:
        row = int(np.searchsorted(index.positions, position, side="right")) - 1
        if row >= 0:
            cursor = segment.cursor_at(int(index.offsets[row]), int(index.positions[row]))
            if cursor is not None and cursor.position <= position:
                return cursor
    back = NEAR_BYTES // 16
    while segment.record_checksum and position - back > segment.start.position:
        found = segment.resync(Cursor(position - back, -1))
        if 0 <= found <= position:
            return Cursor(found, -1)
        back *= 8
    return None


def rows_behind(index: Index, segment: Segment) -> Rows | None:
    """The rows from that of the index's last entry on, or from the first one where it has no entry, a step of a scan;
    None where the entry is plainly wrong."""
    cursor: Cursor | None = segment.start
    if len(index):
        assert index.positions is not None
        cursor = segment.cursor_at(int(index.offsets[-1]), int(index.positions[-1]))
    return None if cursor is None else segment.scan(cursor, verify=False)


def lacks_a_row(index: Index, segment: Segment) -> bool:
    """`Format.ends_early` where every row has an entry."""
    rows = rows_behind(index, segment)
    return rows is not None and len(rows.columns) > min(len(index), 1)


Picked = tuple[npt.NDArray[Any], ...]
"""What an index says of some rows, as columns in the order of `IndexBuilder.entries`; empty for no row."""


LATE_STEPS, LATE_ROWS = 16, 16_384
"""How much an `IndexBuilder` leaves for later."""


class IndexBuilder(ABC):
    """Makes the derived files of one segment from what scans or encoders answer, all at once or bit by bit. Rows are
    picked a few steps late and the bytes made when they are asked for: many rows cost little more than one."""

    def __init__(self) -> None:
        self._new: dict[Role, bytes] = self.headers()
        self._steps: list[Rows] = []
        self._step_rows = 0
        self._picked: list[Picked] = []

    @abstractmethod
    def headers(self) -> dict[Role, bytes]:
        """What each file begins with."""

    @abstractmethod
    def pick(self, rows: Rows) -> Picked:
        """What goes into the entries for the next rows, in arrays of their own."""

    @abstractmethod
    def entries(self, picked: Picked) -> dict[Role, bytes]:
        """The entries for what was picked."""

    def add(self, rows: Rows) -> None:
        """Take the next rows in."""
        self._steps.append(rows)
        self._step_rows += rows.count
        if len(self._steps) >= LATE_STEPS or self._step_rows >= LATE_ROWS:
            self._pick_late()

    def _pick_late(self) -> None:
        steps, self._steps, self._step_rows = self._steps, [], 0
        self._picked += filter(None, map(self.pick, steps))

    def build(self) -> dict[Role, bytes]:
        """The bytes of each file that were not handed out before."""
        self._pick_late()
        built, self._new = self._new, dict.fromkeys(self._new, b"")
        if self._picked:
            parts, self._picked = self._picked, []
            columns = parts[0] if len(parts) == 1 else tuple(map(_joined, zip(*parts, strict=True)))
            entries = self.entries(columns)
            built = {role: header + entries[role] for role, header in built.items()}
        return built


def _joined(parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """The arrays one after another. Their type is named, or else numpy would bring the fields of a structure into the
    byte order of this machine."""
    return np.concatenate(parts, dtype=parts[0].dtype)


class NoIndex(IndexBuilder):
    """For a format whose records can be found by arithmetic."""

    def headers(self) -> dict[Role, bytes]:
        return {}

    def pick(self, rows: Rows) -> Picked:
        return ()

    def entries(self, picked: Picked) -> dict[Role, bytes]:
        return {}


class Format(ABC):
    """One on-disk format with its options.

    >>> from duramen.formats import make
    >>> make("fixed-slot", record_size=16).segment_path(0)
    '00000000.log'
    """

    name: ClassVar[str]
    capabilities: Capabilities
    magics: ClassVar[Mapping[bytes, Role]] = {}
    """How the files of the format begin, where they begin alike."""
    default_segment_bytes: ClassVar[int | None] = None
    """When a new segment is begun, unless ``segment_max_bytes`` says otherwise."""
    default_segment_age_ms: ClassVar[int | None] = None
    option_names: ClassVar[Mapping[str, type]] = {}
    """The options that the format takes, and the type of each."""
    fixed_options: ClassVar[tuple[str, ...]] = ()
    """Options that the bytes depend on: they hold for the life of a log."""

    def __init__(self, **options: Any) -> None:
        unknown = options.keys() - self.option_names.keys()
        if unknown:
            known = ", ".join(sorted(self.option_names)) or "none"
            raise UsageError(f"{self.name} has no option {', '.join(sorted(unknown))}", hint=f"its options: {known}")
        self.options: dict[str, Any] = {}
        for name, value in options.items():
            try:
                self.options[name] = self.option_names[name](value)
            except (TypeError, ValueError) as error:
                raise UsageError(f"option {name}={value!r} is not {self.option_names[name].__name__}") from error
        for name in SEGMENT_OPTIONS.keys() & self.options.keys():
            if self.options[name] < 1:
                raise UsageError(f"{name}={self.options[name]} is not 1 or more")

    def __reduce__(self) -> tuple[Any, ...]:
        """By its options, so that it can be sent to another process."""
        return _remade, (type(self), self.options)

    # --- names

    @abstractmethod
    def classify(self, path: str) -> FileName | None:
        """What the file at ``path``, relative to the log's directory, is; None for a stray."""

    @abstractmethod
    def path_of(self, role: Role, base: int | None = None) -> str:
        """The name of a file, relative to the log's directory."""

    def segment_path(self, base: int) -> str:
        return self.path_of(Role.SEGMENT, base)

    # --- reading

    @abstractmethod
    def open_segment(self, buf: Buffer, base: int | None) -> Segment:
        """The segment's bytes, its file header checked. ``base`` is what the name says, None if it says nothing.

        Raises `CorruptionError` with the position; the caller adds the path."""

    def open_index(self, role: Role, buf: Buffer, base: int) -> Index | None:
        """The index, as far as it can be read; None where it cannot be used at all."""
        return None

    def ends_early(self, index: Index, segment: Segment) -> bool:
        """Whether an index that names positions, and is right as far as it goes, lacks entries at its end. Where the
        rules leave room, or the settings that it was made with are not known, it does not."""
        return False

    def skips_entries(self, places: Places, start: int) -> int | None:
        """The first entry of an index before which another one is missing, where it does not have one of every record.
        ``places`` are those of all its entries, ``start`` is where the segment's records begin. None where the rules
        leave room, or the settings that it was made with cannot be told."""
        return None

    def check_file(self, role: Role, buf: Buffer, name: FileName) -> Iterator[Problem]:
        """What is wrong with a file that is no segment, judged by its own bytes."""
        return iter(())

    def check_log(
        self, files: Mapping[str, Buffer], segments: Sequence[SegmentSummary]
    ) -> Iterator[tuple[str, Problem]]:
        """What the files that describe the whole log say against the segments as they are, by path."""
        return iter(())

    def describe(self, files: Mapping[str, Buffer]) -> dict[str, Any]:
        """What the format's own files (manifest, checkpoint, tracking) say, for `info`."""
        return {}

    @abstractmethod
    def dump(
        self, role: Role, buf: Buffer, base: int | None = None, begin: int = 0, index: Index | None = None
    ) -> Iterator[Block]:
        """Every structure of a file, in file order; a damaged place as a block with a problem, and what lies behind it.
        What ends before the byte ``begin`` may be left out; ``index`` helps to find that place in a segment."""

    # --- writing

    def segment_header(self, base: int, created_ms: int) -> bytes:
        """The bytes that a new segment starts with."""
        return b""

    @abstractmethod
    def encode(self, batch: pa.RecordBatch, cursor: Cursor, default_us: int = 0) -> Encoded:
        """The records as bytes that go to ``cursor``. Refuses what the format cannot carry. A row without a time gets
        ``default_us``, where the format has times."""

    def recode(self, segment: Segment, rows: Rows, cursor: Cursor) -> Encoded:
        """One row of a segment of this format that holds more than records, as this object writes it at ``cursor``."""
        raise UsageError(f"{self.name} holds nothing but records")

    def index_builder(self, base: int, created_ms: int) -> IndexBuilder:
        return NoIndex()

    def log_files(self, segments: Sequence[SegmentSummary], created_ms: int) -> dict[str, bytes]:
        """The files that describe the whole log (a manifest), by path."""
        return {}

    def cleaned_files(
        self, existing: bytes | None, cleaned_until: int, horizon_ms: int, now_us: int
    ) -> dict[str, bytes]:
        """The files in which the format's own cleaner keeps how far it came, by path, after retention or compaction up
        to an offset. ``existing`` is what was there before."""
        return {}

    def log_files_fit(
        self, files: Mapping[str, Buffer], sealed_count: int, active: SegmentSummary, created_ms: int
    ) -> bool:
        """Whether `log_files` need not be made anew in a log that is as it was when they were written last."""
        return not self.capabilities.manifest

    def build(self, segments: Iterable[pa.RecordBatch], created_ms: int = 0) -> Iterator[tuple[str, bytes]]:
        """A whole log, one segment per batch, as paths and bytes: for tests, demonstrations and staged files."""
        summaries: list[SegmentSummary] = []
        for batch in segments:
            base = batch.column("offset")[0].as_py() if batch.num_rows else self._next_base(summaries)
            header = self.segment_header(base, created_ms)
            encoded = self.encode(batch, Cursor(len(header), base - 1))
            builder = self.index_builder(base, created_ms)
            builder.add(encoded.rows)
            derived = builder.build()
            data = header + bytes(encoded.data)
            yield self.segment_path(base), data
            for role, content in derived.items():
                yield self.path_of(role, base), content
            index_bytes = len(derived.get(Role.INDEX, b""))
            summaries.append(SegmentSummary(base, encoded.rows.end.last_offset, len(data), index_bytes))
        yield from self.log_files(summaries, created_ms).items()

    @staticmethod
    def _next_base(summaries: Sequence[SegmentSummary]) -> int:
        return summaries[-1].last_offset + 1 if summaries else 0

    def accept(self, batch: pa.RecordBatch) -> None:
        """Raise for what this format has no place for: a field, a null value, a value that is too long."""
        self.refuse_unsupported(batch)
        most = self.capabilities.max_value_bytes
        if batch.nbytes > most:  # otherwise no value can be
            longest = pc.max(pc.binary_length(batch.column("value"))).as_py() or 0
            if longest > most:
                self.refuse_long(longest)

    def accept_values(self, values: Values) -> None:
        """`accept` for values alone."""
        if values.longest > self.capabilities.max_value_bytes:
            self.refuse_long(values.longest)

    def encode_values(self, values: Values, cursor: Cursor, default_us: int = 0) -> Encoded:
        """`encode` for values alone, which some formats do without a detour."""
        return self.encode(values.batch(), cursor, default_us)

    def temporary_path(self, path: str) -> str:
        """The name under which the next content of ``path`` is written before it replaces it."""
        return path + ".new"

    def continuing(self, segment: Segment) -> Format:
        """The format with the options that continue in the dialect of an existing segment."""
        return self

    def sequences(self, segment: Segment) -> dict[bytes, tuple[int, int]]:
        """The producers that the last segment of a log knows: an offset near each one's last record, and its
        sequence. For formats with ``tracking``."""
        return {}

    def with_sequences(self, encoded: Encoded, runs: Sequence[SequenceRun]) -> Encoded:
        """The records with their producers' sequences, where the format keeps those in the log itself."""
        return encoded

    def consumer_offsets(self, segment: Segment) -> dict[bytes, int]:
        """The positions of consumers that the last segment of a log knows. For formats with ``tracking``."""
        return {}

    def encode_consumer_offsets(self, offsets: Mapping[bytes, int], cursor: Cursor, now_us: int) -> Encoded:
        """Positions of consumers, as the format keeps them in the log itself. For formats with ``tracking``."""
        raise UsageError(f"{self.name} has no place for the positions of consumers")

    def mended_sequences(self, segment: Segment, runs: Sequence[SequenceRun]) -> Iterator[tuple[int, bytes]]:
        """What to write where, so that the segment holds the sequences of records (``runs`` of offsets) that were
        announced and may have been torn."""
        return iter(())

    def check_creation(self) -> None:
        """Raise where an option that a new log needs is missing."""
        return

    def begin_segment(
        self, base: int, created_ms: int, previous: Segment | None, first: Segment | None = None
    ) -> Encoded:
        """The bytes of a new segment up to where records go, and what a scan of them would give. ``previous`` is the
        segment before it, of which something may have to be carried over; ``first`` the first one of the log, where
        that is known: what lies before it may be forgotten."""
        header = self.segment_header(base, created_ms)
        end = ScanEnd(0, len(header), int(Stop.END), base - 1)
        return Encoded(memoryview(header), Rows(self.no_columns(), 0, end))

    def no_columns(self) -> Columns:
        """The columns of a scan that found nothing."""
        return FrameColumns.empty(0)

    # --- for the subclasses

    def refuse_long(self, value_bytes: int) -> None:
        raise UsageError(
            f"a value has {value_bytes} bytes, more than {self.name}'s {self.capabilities.max_value_bytes}"
        )

    def refuse_unsupported(self, batch: pa.RecordBatch) -> None:
        """Raise for a column with values that this format has no place for."""
        for name in batch.schema.names:
            if name not in self.capabilities.columns and batch.column(name).null_count < batch.num_rows:
                raise UnsupportedFieldError(
                    f"{self.name} has no place for the field {name!r}",
                    hint="leave it out, or choose a format that carries it",
                )
        values = batch.column("value")
        if values.null_count:
            raise UnsupportedFieldError(
                f"{self.name} has no place for a value that is null",
                hint="leave such records out, or make their values empty, which in a compacted log deletes the key",
            )


def _remade(kind: type[Format], options: dict[str, Any]) -> Format:
    return kind(**options)


class SegmentSummary(NamedTuple):
    """What a manifest says about a segment. ``last_offset`` is ``base - 1`` for an empty one."""

    base_offset: int
    last_offset: int
    segment_bytes: int
    index_bytes: int


def columns_for(fmt: Format, columns: Sequence[str] | None) -> tuple[str, ...]:
    """The columns to decode: all of the neutral record by default; a name that does not exist raises."""
    if columns is None:
        return COLUMNS
    known = (*COLUMNS, *(f.name for f in fmt.capabilities.extras))
    for name in columns:
        if name not in known:
            raise UsageError(f"{fmt.name} has no column {name!r}", hint=f"its columns: {', '.join(known)}")
    if len(set(columns)) < len(columns):
        raise UsageError(f"a column is asked for twice: {', '.join(columns)}")
    return tuple(columns)


def schema_for(fmt: Format | type[Format], columns: Sequence[str]) -> pa.Schema:
    extras = {f.name: f for f in fmt.capabilities.extras}
    return pa.schema([extras[name] if name in extras else schema_of([name]).field(0) for name in columns])
