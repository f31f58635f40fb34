"""The contract that every on-disk format fulfils: file names, bytes, capabilities. Pure bytes; no file is opened here.

A `Format` classifies file names, encodes records, builds and reads derived files, and opens the bytes of a segment as a
`Segment`. The rest of the program asks `Format.capabilities`, or for one of the optional classes of `extensions`; it
never asks for the format's name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from duramen import compute as pc
from duramen.arguments import MOST, check_int
from duramen.errors import CorruptionError, UnsupportedFieldError, UsageError
from duramen.formats.arrow import Values, numbers_of
from duramen.formats.extensions import SupportsManifest, SupportsStateFiles
from duramen.formats.index import Index, IndexBuilder, NoIndex, Places
from duramen.formats.segment import Encoded, Problem, Role, Rows, ScanPosition, Segment, SegmentSummary
from duramen.formats.struct import Block, Buffer
from duramen.kernel import Columns, FrameColumns, RecordShape, ScanEnd, Stop
from duramen.record import COLUMNS, schema_of

DOCUMENT, PROGRAM = "document", "program"
"""The dialects: what a format's document specifies, and what its own program does where the two differ."""
COMMON_OPTIONS: Mapping[str, type] = {"dialect": str}
"""The options of every format."""
SEGMENT_OPTIONS: Mapping[str, type] = {**COMMON_OPTIONS, "segment_max_bytes": int, "segment_max_age_ms": int}
"""The options of every format with segments: the dialect, and when to start a new segment."""


class FileName(NamedTuple):
    """What a file name says: the file's role, and the base offset of its segment."""

    role: Role
    base: int | None = None


@dataclass(frozen=True)
class Capabilities:
    """What a format can store and do, as data."""

    timestamps: str | None
    """``"ms"``, ``"us"``, or None where records have no time."""
    key: bool
    headers: bool
    explicit_offsets: bool
    """Records (or chunks) store their offset, so that offsets may have gaps."""
    compaction: bool
    segments: bool
    index: bool
    checksum: str
    """Which checksum covers which bytes, as text."""
    record_checksum: bool
    """Whether a changed payload byte is detected without the sidecar."""
    max_value_bytes: int
    covers_all: bool = False
    """Whether the checksums cover every byte that a reader relies on, headers included. For every other format the
    sidecar keeps a digest of the active segment."""
    max_segment_bytes: int = 2**62
    """Largest position that the index can store."""
    max_segment_rows: int = 2**62
    """Records (or chunks) after which a new segment starts."""
    max_relative_offset: int = 2**62
    """Largest distance of an offset from the segment's base."""
    index_at_once: bool = False
    """The format's own program relies on the index: it must be written together with the records."""
    cuts_indexes: bool = False
    """The format's own program fills indexes with zeros ahead, and cuts these while a reader may have the file open."""
    cuts_zeros: bool = False
    """The format's own program cuts zeros after the last record when it starts: a crash may leave some."""
    drops_empty_segment: bool = False
    """The format's own program deletes an empty last segment when it starts."""
    rolls_when_full: bool = False
    """A segment is sealed once it has reached its size; otherwise before it would exceed it."""
    signed_timestamps: bool = False
    """Whether a time before 1970 can be stored."""
    null_values: bool = False
    """Whether a value can be null, which makes the record a tombstone."""
    ordered_timestamps: bool = False
    """Whether times must not decrease."""
    manifest: bool = False
    """Whether a file describes the whole log: see `SupportsManifest`."""
    lost_segments_show: bool = False
    """Whether a gap between two segments is always a loss: no program of this format leaves one."""
    tracking: bool = False
    """The log itself stores the positions of consumers: see `SupportsTracking`."""
    chunks: bool = False
    """Records are stored in chunks, whose size the writer chooses; the column ``chunk_id`` tells them apart."""
    compacted_elsewhere: bool = False
    """The format's own program may have compacted the log: a gap between offsets is not a loss."""
    read_only: bool = False
    """Logs of this format are read, not written."""
    extras: tuple[pa.Field, ...] = ()
    """Columns beyond the neutral record, so that a round trip loses nothing."""

    @cached_property
    def time_unit_us(self) -> int:
        """Of stored times; 0 where records have no time."""
        return {None: 0, "us": 1, "ms": 1000}[self.timestamps]

    @cached_property
    def columns(self) -> frozenset[str]:
        """The columns that the format can store."""
        optional = {"timestamp": self.timestamps, "key": self.key, "headers": self.headers}
        able = {name for name, is_able in optional.items() if is_able}
        return frozenset({"offset", "value"} | able | {field.name for field in self.extras})


class Format(ABC):
    """One on-disk format with its options.

    >>> from duramen.formats import make
    >>> make("fixed-slot", record_size=16).segment_path(0)
    '00000000.log'
    """

    name: ClassVar[str]
    capabilities: Capabilities
    magics: ClassVar[Mapping[bytes, Role]] = {}
    """The first bytes of the format's files, where they are fixed."""
    default_segment_bytes: ClassVar[int | None] = None
    """Default of ``segment_max_bytes``."""
    default_segment_age_ms: ClassVar[int | None] = None
    option_names: ClassVar[Mapping[str, type]] = {}
    """The format's options, and the type of each."""
    content_can_fail: ClassVar[bool] = True
    """Whether a record whose frame and checksum are right may still not decode, such as a compressed one."""
    fixed_options: ClassVar[tuple[str, ...]] = ()
    """Options that determine the bytes, and so cannot change during the life of a log."""
    program: ClassVar[str] = "the program"
    """Name of the format's own program."""
    dialect_options: ClassVar[tuple[str, ...]] = ()
    """Options whose value the dialect implies."""
    first_visible: int = 0
    """The offset before which readers see no record, where an option says so."""
    dialects: ClassVar[Mapping[str, str]] = {}
    """What each dialect writes, as text; empty where they do not differ."""

    def __init__(self, **options: Any) -> None:
        unknown = options.keys() - self.option_names.keys()
        if unknown:
            known = ", ".join(sorted(self.option_names)) or "none"
            raise UsageError(f"{self.name} has no option {', '.join(sorted(unknown))}", hint=f"its options: {known}")
        self.options: dict[str, Any] = {}
        for name, value in options.items():
            self.options[name] = _converted(name, value, self.option_names[name])
        dialect = self.options.get("dialect", DOCUMENT)
        if dialect not in (DOCUMENT, PROGRAM):
            raise UsageError(f"dialect must be {DOCUMENT!r} or {PROGRAM!r} (got {dialect!r})")
        for name in ("segment_max_bytes", "segment_max_age_ms"):
            check_int(name, self.options.get(name, 1), least=1)

    @property
    def dialect(self) -> str:
        """The dialect of new segments."""
        return str(self.options.get("dialect", DOCUMENT))

    def as_dialect(self, option: str, document: Any, program: Any) -> Any:
        """The value of an option whose default depends on the dialect. Raises where it contradicts an explicit
        ``dialect``."""
        implied = program if self.options.get("dialect") == PROGRAM else document
        value = self.options.get(option, implied)
        if "dialect" in self.options and value != implied and value in (document, program):
            raise UsageError(
                f"{option}={value} contradicts dialect={self.options['dialect']!r}, which writes {option}={implied}",
                hint="set only one of the two",
            )
        return value

    @property
    def stored_options(self) -> dict[str, Any]:
        """The options that a log stores: all except functions."""
        return {name: value for name, value in self.options.items() if not callable(value)}

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by options, for another process."""
        return _rebuilt, (type(self), self.options)

    # --- names

    @abstractmethod
    def classify(self, path: str) -> FileName | None:
        """The meaning of ``path``, relative to the log's directory; None for an unknown file."""

    @abstractmethod
    def path_of(self, role: Role, base: int | None = None) -> str:
        """The name of a file, relative to the log's directory."""

    def segment_path(self, base: int) -> str:
        return self.path_of(Role.SEGMENT, base)

    # --- reading

    @abstractmethod
    def open_segment(self, buf: Buffer, base: int | None) -> Segment:
        """Open a segment and check its file header. ``base`` is the base offset in its name, None if unknown.

        Raises `CorruptionError` with the position; the caller adds the path."""

    def open_index(self, role: Role, buf: Buffer, base: int) -> Index | None:
        """The index, as far as it can be read; None where it is unusable."""
        return None

    def ends_early(self, index: Index, segment: Segment) -> bool:
        """Whether an index of positions whose entries are correct lacks entries at its end. False where the format
        allows that, or where the settings of the index are unknown."""
        return False

    def skips_entries(self, places: Places, start: int) -> int | None:
        """The first entry of a sparse index before which an entry is missing. ``places`` are the records of all its
        entries, ``start`` is where the segment's records begin. None where the format allows that, or where the
        settings of the index are unknown."""
        return None

    def check_file(self, role: Role, buf: Buffer, name: FileName) -> Iterator[Problem]:
        """Problems of a file other than a segment, from its own bytes."""
        return iter(())

    def describe(self, files: Mapping[str, Buffer]) -> dict[str, Any]:
        """The contents of the format's own files (manifest, checkpoint, tracking), for `info`."""
        return {}

    @abstractmethod
    def dump(
        self, role: Role, buf: Buffer, base: int | None = None, begin: int = 0, index: Index | None = None
    ) -> Iterator[Block]:
        """Every structure of a file, in file order. Damage is a block with a problem, and the dump continues after it.
        Structures that end before ``begin`` may be omitted; ``index`` helps to find ``begin`` in a segment."""

    # --- writing

    def segment_header(self, base: int, created_ms: int) -> bytes:
        return b""

    @abstractmethod
    def encode(self, batch: pa.RecordBatch, cursor: ScanPosition, default_us: int = 0) -> Encoded:
        """The records as bytes, for appending at ``cursor``. Raises for what the format cannot store. A row without a
        time gets ``default_us``, if the format has times."""

    def index_builder(self, base: int, created_ms: int) -> IndexBuilder:
        """A builder for the derived files of a new segment."""
        return NoIndex()

    def build(self, segments: Iterable[pa.RecordBatch], created_ms: int = 0) -> Iterator[tuple[str, bytes]]:
        """A complete log, one segment per batch, as paths and bytes: for tests and examples."""
        summaries: list[SegmentSummary] = []
        built: list[Segment] = []
        for batch in segments:
            base = batch.column("offset")[0].as_py() if batch.num_rows else self._next_base(summaries)
            header = self.segment_header(base, created_ms)
            encoded = self.encode(batch, ScanPosition(len(header), base - 1))
            builder = self.index_builder(base, created_ms)
            builder.add(encoded.rows)
            derived = builder.build_complete()
            data = header + bytes(encoded.data)
            built.append(self.open_segment(data, base))
            yield self.segment_path(base), data
            for role, content in derived.items():
                yield self.path_of(role, base), content
            index_bytes = len(derived.get(Role.INDEX, b""))
            summaries.append(SegmentSummary(base, encoded.rows.end.last_offset, len(data), index_bytes))
        if isinstance(self, SupportsManifest):
            yield from self.log_files(summaries, created_ms).items()
        if isinstance(self, SupportsStateFiles):
            yield from self.build_state(built, {}).items()

    @staticmethod
    def _next_base(summaries: Sequence[SegmentSummary]) -> int:
        return summaries[-1].last_offset + 1 if summaries else 0

    def accept(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch as the format stores it. Raises for what it cannot store: a field, a null value, a value that is
        too long, a time before 1970."""
        self.refuse_unsupported(batch)
        if not self.capabilities.signed_timestamps and not self.capabilities.ordered_timestamps:
            self._refuse_early(batch)
        most = self.capabilities.max_value_bytes
        if batch.nbytes > most:  # otherwise no value can exceed it
            longest = pc.max(pc.binary_length(batch.column("value"))).as_py() or 0
            if longest > most:
                self.refuse_long(longest)
        return batch

    def _refuse_early(self, batch: pa.RecordBatch) -> None:
        """Raise for a time before 1970. Where times must not decrease, one is late: the writer says so."""
        for name in ("timestamp", "timestamp_ms"):
            if name not in batch.schema.names:
                continue
            if (numbers_of(batch.column(name).view(pa.int64()).drop_null()) < 0).any():
                raise UnsupportedFieldError(
                    f"{self.name} cannot store a time before 1970", hint="leave it out, or set it to 1970"
                )

    def accept_values(self, values: Values) -> Values:
        """`accept` for values alone."""
        if values.longest > self.capabilities.max_value_bytes:
            self.refuse_long(values.longest)
        return values

    def encode_values(self, values: Values, cursor: ScanPosition, default_us: int = 0) -> Encoded:
        """`encode` for values alone; some formats need no Arrow batch for that."""
        return self.encode(values.batch(), cursor, default_us)

    @property
    def record_shape(self) -> RecordShape | None:
        """How a record writer encodes single records; None where it cannot."""
        return None

    def user_headers(self, key: bytes | None, headers: Sequence[tuple[str, bytes | None]]) -> bytes | None:
        """The bytes before the value of a record that store its key and headers; None where only `encode` can."""
        return None

    def temporary_path(self, path: str) -> str:
        """Where the next content of ``path`` is written before it replaces the file."""
        return path + ".new"

    def continuing(self, segment: Segment) -> Format:
        """The format with options that continue in the dialect of an existing segment. Raises `UsageError` where that
        `is_only_read`."""
        return self

    def is_only_read(self, segment: Segment) -> bool:
        """Whether the segment ends with what this format reads and does not write."""
        return False

    def check_creation(self) -> None:
        """Raise if logs of this format cannot be created, or an option that a new log needs is missing."""
        self.refuse_writing()

    def refuse_writing(self, path: str | None = None) -> None:
        """Raise if logs of this format are only read."""
        if self.capabilities.read_only:
            raise UsageError(
                f"{self.name} logs are read-only", path=path,
                hint="`duramen convert` makes a log of another format from one",
            )  # fmt: skip

    def begin_segment(
        self, base: int, created_ms: int, previous: Segment | None, first: Segment | None = None
    ) -> Encoded:
        """The bytes of a new segment before its first record. ``previous`` is the segment before it, from which state
        may be carried over; ``first`` is the log's first segment, if known: state about older records is dropped."""
        header = self.segment_header(base, created_ms)
        end = ScanEnd(0, len(header), int(Stop.END), base - 1)
        return Encoded(memoryview(header), Rows(self.no_columns(), 0, end))

    def no_columns(self) -> Columns:
        return FrameColumns.empty(0)

    # --- for the subclasses

    def refuse_long(self, value_bytes: int) -> None:
        most = self.capabilities.max_value_bytes
        raise UsageError(f"a value has {value_bytes} bytes, more than {self.name}'s {most}")

    def refuse_unsupported(self, batch: pa.RecordBatch) -> None:
        """Raise for a column that has values and that the format cannot store."""
        for name in batch.schema.names:
            if name not in self.capabilities.columns and batch.column(name).null_count < batch.num_rows:
                raise UnsupportedFieldError(
                    f"{self.name} cannot store the field {name!r}",
                    hint="leave it out, or choose a format that stores it",
                )
        values = batch.column("value")
        if values.null_count and not self.capabilities.null_values:
            raise UnsupportedFieldError(
                f"{self.name} cannot store a null value",
                hint="drop such records, make their values empty, which in a compacted log deletes the key, or use"
                " keratin",
            )


def _converted(name: str, value: Any, kind: type) -> Any:
    """An option in its type. The command line and Spark pass options as text."""
    try:
        if isinstance(value, str):
            return kind(value)
        if kind is int:
            return check_int(name, value, least=-MOST)
        if type(value) is kind:
            return value
    except ValueError:
        pass
    raise UsageError(f"option {name} must be of type {kind.__name__} (got {value!r:.80})")


def _rebuilt(kind: type[Format], options: dict[str, Any]) -> Format:
    return kind(**options)


def columns_for(fmt: Format, columns: Sequence[str] | None) -> tuple[str, ...]:
    """The columns to decode, by default all of the neutral record. Raises for an unknown name."""
    if columns is None:
        return COLUMNS
    if isinstance(columns, str) or not isinstance(columns, Iterable):
        raise UsageError(f"columns must be a list of names (got {columns!r:.80})")
    known = (*COLUMNS, *(f.name for f in fmt.capabilities.extras))
    for name in columns:
        if name not in known:
            raise UsageError(f"{fmt.name} has no column {name!r}", hint=f"its columns: {', '.join(known)}")
    if len(set(columns)) < len(columns):
        raise UsageError(f"a column is listed twice: {', '.join(columns)}")
    return tuple(columns)


def schema_for(fmt: Format | type[Format], columns: Sequence[str]) -> pa.Schema:
    extras = {f.name: f for f in fmt.capabilities.extras}
    return pa.schema([extras[name] if name in extras else schema_of([name]).field(0) for name in columns])


READ_UNCOMMITTED, READ_COMMITTED, SETTLED = "read_uncommitted", "read_committed", "settled"
ISOLATIONS = (READ_UNCOMMITTED, READ_COMMITTED, SETTLED)
"""What readers see of transactions: all records; committed ones up to the first open transaction; or all committed
ones, which is how a broker reads its internal topics."""


def check_isolation(isolation: object) -> str:
    """Return a valid isolation. Otherwise `UsageError`."""
    if isolation not in ISOLATIONS:
        raise UsageError(f"isolation must be one of {', '.join(ISOLATIONS)} (got {isolation!r})")
    return str(isolation)


class SegmentSource(NamedTuple):
    """A segment that is opened when its bytes are needed. Equal stamps mean equal bytes."""

    base: int
    stamp: Hashable
    open: Callable[[], Segment]


class CommittedView(NamedTuple):
    """What a reader of committed records sees: through a format that hides the others, and up to a segment's base and
    position (None: everything)."""

    fmt: Format
    until: tuple[int, int] | None
    sealed: Any = None
    """What is known of segments that no longer change, for the next view of the same reader."""


class SupportsIsolation(ABC):
    """The log holds transactions, some of them open or aborted."""

    @property
    @abstractmethod
    def hides_records(self) -> bool:
        """Whether readers are to see committed records only."""

    @abstractmethod
    def committed_view(self, segments: Sequence[SegmentSource], known: CommittedView | None = None) -> CommittedView:
        """The view of a reader that sees committed records only. ``segments`` are all of the log, in order. What
        ``known``, an earlier view of the same reader, says about them is not read again."""


class EncodedRecords:
    """Records that were encoded before their offsets were known, as if they were the first of a log: what a task of a
    job prepares for the process that appends. Has what the append queue needs of a record batch.

    ``chunks`` is their number. Without ``has_times`` all records get the time of the append."""

    __slots__ = ("chunks", "data", "fmt", "has_times", "num_rows")

    def __init__(self, fmt: Format, data: Buffer, num_rows: int, chunks: int, *, has_times: bool) -> None:
        self.fmt = fmt
        self.data = memoryview(data).cast("B")
        self.num_rows = num_rows
        self.chunks = chunks
        self.has_times = has_times

    @property
    def nbytes(self) -> int:
        return len(self.data)

    def batch(self) -> pa.RecordBatch:
        """The records, for a log that cannot take their bytes."""
        able = self.fmt.capabilities.columns - {"offset"} - (set() if self.has_times else {"timestamp"})
        columns = [name for name in COLUMNS if name in able]
        assert isinstance(self.fmt, SupportsMoving)
        segment = self.fmt.open_encoded(self.data)
        found = [segment.decode(rows, columns) for rows in segment.steps(ScanPosition(0, -1), verify=False)]
        batch = pa.Table.from_batches(found).combine_chunks().to_batches()[0]
        if batch.num_rows != self.num_rows:
            raise CorruptionError(f"{batch.num_rows} of {self.num_rows} encoded records can be read")
        return batch

    def slice(self, start: int, length: int | None = None) -> pa.RecordBatch:
        return self.batch().slice(start, length)


class SupportsMoving(ABC):
    """Chunks can be encoded before their offsets are known: no checksum covers an offset."""

    @abstractmethod
    def can_move(self, records: EncodedRecords) -> bool:
        """Whether a log of this format can take the bytes as they are."""

    @abstractmethod
    def open_encoded(self, data: memoryview) -> Segment:
        """Encoded chunks, as if they were the first of a segment."""

    @abstractmethod
    def move(self, records: EncodedRecords, cursor: ScanPosition, default_us: int) -> Encoded:
        """The records for appending at ``cursor``: a copy with other offsets and epochs, and the time ``default_us``
        where they have none of their own."""


Survives = Callable[[npt.NDArray[np.int64]], npt.NDArray[np.bool_]]
"""Which of some offsets stay: those of the newest record of each key."""


class Examined(NamedTuple):
    """The result of `Cleaner.examine`."""

    expired: npt.NDArray[np.bool_]
    """Which records are tombstones that may go."""
    may_change: bool = False
    """Whether these rows may lose or change something else than superseded records."""


class Cleaner(ABC):
    """What one compaction leaves of a log. Stateless after its creation; can be pickled."""

    fmt: Format
    """Opens the segments of the log: only records that count are visible."""
    columns: tuple[str, ...]
    """What `examine` needs of the records."""
    keeps_state: bool
    """Whether something may stay of a segment that loses every record."""
    until: int | None = None
    """The segment with this offset must not be compacted, nor any after it."""

    @abstractmethod
    def begin(self, first_base: int, last_base: int) -> None:
        """Announce the first and the last segment that will be compacted. Called once, before any `select`."""

    @abstractmethod
    def examine(self, rows: Rows, batch: pa.RecordBatch) -> Examined:
        """Look at rows before it is known what stays. ``batch`` has `columns` of the visible records."""

    @abstractmethod
    def changes(self, segment: Segment, rows: Rows, survives: Survives) -> bool:
        """Whether `select` would return anything else than the bytes of these rows."""

    @abstractmethod
    def select(self, segment: Segment, rows: Rows, survives: Survives, cursor: ScanPosition) -> Encoded:
        """What stays of the rows, for appending at ``cursor``."""

    @abstractmethod
    def state_of(self, base: int) -> dict[str, bytes]:
        """The other files of a segment that was compacted, by path; none that would be empty."""


class SupportsCleaner(ABC):
    """The format's own program compacts its logs by rules of its own."""

    @abstractmethod
    def cleaner(self, segments: Iterable[Segment], now_us: int, delay_ms: int) -> Cleaner:
        """The rules for a log with these segments. Tombstones stay for ``delay_ms``."""

    replaced_roles: ClassVar[tuple[Role, ...]]
    """The other files of a segment that a compaction of it replaces (`Cleaner.state_of`)."""
    cleaned_roles: ClassVar[tuple[Role, ...]]
    """The other files of a segment that go with it."""
