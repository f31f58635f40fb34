"""RustLog: length, offset and time before each payload, all big-endian; a sparse index; no checksum at all.

::

    {base:020}.log                 records, nothing between them
      the document's record            what the real program writes
      0  length     u32                0  length   u32
      4  offset     u64                4  offset   u64
     12  timestamp  u64 (µs)          12  payload
     20  payload

    {base:020}.index               records 0, 100, 200 … of the segment
      0  offset     u64
      8  position   u64

    .cleaner_checkpoint            JSON; the real program's form is 16 bytes:
      0  last_compacted_offset            u64
      8  last_retention_run_timestamp_ms  u64

Walking both layouts shows which of the two a segment uses. A payload over 10 MiB and an offset that repeats or
decreases are errors. Nothing in the file proves that a payload is what was written: only the sidecar's digest of a
sealed segment does."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa

from duramen import kernel
from duramen.errors import CorruptionError, UsageError
from duramen.formats.extensions import SupportsCheckpoint
from duramen.formats.format import DOCUMENT, PROGRAM, SEGMENT_OPTIONS, Capabilities, FileName
from duramen.formats.frame import Dialect, EveryRecordIndex, FrameFormat, FrameSegment, dump_frames, encode_frames
from duramen.formats.index import INDEX_BYTES, Index, IndexBuilder, Places, bounded, dump_index, rows_after, table
from duramen.formats.segment import Encoded, Problem, Role, ScanPosition, Segment, Severity
from duramen.formats.struct import Block, Buffer, Field, Struct
from duramen.kernel import FrameColumns, FrameLayout, Stop

MAX_RECORD_BYTES = 10 << 20
INDEX_INTERVAL_RECORDS = 100

HEADER = Struct(">", length="I", offset="Q", timestamp="Q")
SHORT_HEADER = Struct(">", length="I", offset="Q")
ENTRY = Struct(">", offset="Q", position="Q")
BINARY_CHECKPOINT = Struct(">", last_compacted_offset="Q", last_retention_run_timestamp_ms="Q")


def _layout(header: Struct) -> FrameLayout:
    return FrameLayout(
        header_bytes=header.size,
        big_endian=True,
        offset_at=header.at("offset"),
        length_at=header.at("length"),
        timestamp_at=header.at("timestamp") if "timestamp" in header.names else -1,
        max_payload_bytes=MAX_RECORD_BYTES,
    )


SPEC = Dialect("20-byte header", _layout(HEADER), HEADER, timestamp_unit="us")
SHORT = Dialect("12-byte header", _layout(SHORT_HEADER), SHORT_HEADER, timestamp_unit=None)
_BY_SIZE = {dialect.layout.header_bytes: dialect for dialect in (SPEC, SHORT)}

_NAME = re.compile(r"([0-9]+)\.(log|index)")
_LEFTOVER = re.compile(r"[0-9]+\.(index\.rebuilding|log\.compacted)|.*\.tmp(\.[0-9]+)?")
_ROLES = {"log": Role.SEGMENT, "index": Role.INDEX}
_TIME = re.compile(rb"\x00[\x03-\x0f]")
"""The first bytes of microsecond timestamps from 1996 to 2112."""
_WALK_RECORDS = 4096
_OUT_OF_ORDER = 8
"""How many out-of-order records are skipped in search of consecutive ones."""
_PAIRS = 2
_LOST_BYTES = 1 << 20
"""How far to search for the first record after a damaged beginning."""


class RustLogWalk(NamedTuple):
    """How far records of one dialect go from the start of a segment."""

    records: int
    position: int
    stop: Stop
    contiguous_bytes: int
    """How far they go without a gap in the offsets."""
    has_pairs: bool
    """Whether at least two of them directly follow the offset of the record before, also after one that is out of
    order. One does in the wrong layout, too, if the length before it is off by the eight bytes of a time."""

    def explains(self, time_fits: bool) -> tuple[bool, bool, bool, bool, int]:
        """How well the layout explains the bytes, most important first: all bytes are records without a gap; some
        records are consecutive, which other bytes hardly ever are; the bytes of the time look like one; all bytes are
        records, with gaps; how far they go without a gap."""
        whole = self.records > 0 and self.stop in (Stop.END, Stop.ZEROS, Stop.LIMIT)
        straight = whole and self.contiguous_bytes == self.position
        return straight, self.has_pairs, time_fits, whole, self.contiguous_bytes


def walk(buf: Buffer, dialect: Dialect) -> RustLogWalk:
    """Walk the first records, at most a few thousand."""
    columns = FrameColumns.empty(_WALK_RECORDS)
    end = kernel.scan_frames(buf, 0, len(memoryview(buf)), dialect.layout, columns)
    offsets = columns.offset[: end.count]
    gaps = np.flatnonzero(np.diff(offsets) != 1)
    contiguous = int(columns.position[gaps[0] + 1]) if len(gaps) else end.position
    pairs = max(end.count - 1, 0) - len(gaps)
    if pairs < _PAIRS and end.stop == Stop.BAD_ORDER:
        pairs += _pairs_after(buf, dialect, end.position)
    return RustLogWalk(end.count, end.position, Stop(end.stop), contiguous, pairs >= _PAIRS)


def _pairs_after(buf: Buffer, dialect: Dialect, position: int) -> int:
    """How many records from there on follow the one before, skipping at most a few that are out of order."""
    columns, pairs = FrameColumns.empty(_WALK_RECORDS), 0
    for _ in range(_OUT_OF_ORDER):
        end = kernel.scan_frames(buf, position, len(memoryview(buf)), dialect.layout, columns)
        pairs += int(np.count_nonzero(np.diff(columns.offset[: end.count]) == 1))
        if pairs >= _PAIRS or end.stop != Stop.BAD_ORDER:
            break
        position = end.position
    return pairs


def _goes_on(buf: Buffer, begun: RustLogWalk, dialect: Dialect) -> bool:
    """Whether consecutive records exist after a damaged beginning."""
    if begun.stop in (Stop.END, Stop.ZEROS):
        return False
    found = kernel.find_frame(buf, 1, min(len(memoryview(buf)), _LOST_BYTES), dialect.layout, -1)
    return found >= 0 and _pairs_after(buf, dialect, found) >= _PAIRS


def dialect_of(buf: Buffer) -> Dialect:
    """The layout that explains the bytes. In order of preference: the one whose offsets are consecutive to the end of
    the file; the only one with consecutive records; the one that the bytes after the first offset suggest, a time of
    this century or not; the one that goes further.

    Bytes that both or neither explain have the document's layout. So does a single short record whose payload starts
    like a time of this century: more likely it is a torn record of the document's layout.
    """
    spec, short = walk(buf, SPEC), walk(buf, SHORT)
    if not spec.records and not short.records:
        return SHORT if _goes_on(buf, short, SHORT) and not _goes_on(buf, spec, SPEC) else SPEC
    is_time = bool(_TIME.match(memoryview(buf), SHORT_HEADER.size))
    if short.records == 1 and spec.records == 0 and is_time:
        return SPEC
    return SHORT if short.records and short.explains(not is_time) > spec.explains(is_time) else SPEC


CHECKPOINT_BYTES = 64 << 10
"""The largest checkpoint that is read."""


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is not a number")


@dataclass(frozen=True)
class Checkpoint:
    """The retention and compaction state beside the segments.

    >>> Checkpoint.parse(Checkpoint(3, 604_800_000, "Idle", 1_700_000_000, 0).encode()).last_cleaned_offset
    3
    """

    last_cleaned_offset: int
    retention_horizon_ms: int
    compaction_state: Any
    created_at_s: int
    created_at_ns: int
    binary: bool = False

    @classmethod
    def parse(cls, buf: Buffer) -> Checkpoint:
        if len(memoryview(buf)) > CHECKPOINT_BYTES:
            size = len(memoryview(buf))
            raise CorruptionError(f"a cleaner checkpoint has at most {CHECKPOINT_BYTES} bytes, not {size}", position=0)
        raw = bytes(buf)
        if len(raw) == BINARY_CHECKPOINT.size and not raw.startswith(b"{"):
            offset, when_ms = BINARY_CHECKPOINT.unpack(raw).values()
            assert isinstance(offset, int)
            assert isinstance(when_ms, int)
            return cls(offset, 0, "Idle", when_ms // 1000, when_ms % 1000 * 1_000_000, binary=True)
        try:
            tree = json.loads(raw, parse_constant=_no_number)
            created = tree["created_at"]
            numbers = (
                tree["last_cleaned_offset"], tree["retention_horizon_ms"],
                created["secs_since_epoch"], created["nanos_since_epoch"],
            )  # fmt: skip
            state = tree["compaction_state"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise CorruptionError(f"not a cleaner checkpoint: {error!r}", position=0) from error
        if not all(isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 2**64 for n in numbers):
            raise CorruptionError("not a cleaner checkpoint: a number is out of range", position=0)
        return cls(numbers[0], numbers[1], state, numbers[2], numbers[3])

    def encode(self) -> bytes:
        """The JSON of the document, or the 16 bytes it was read from."""
        if self.binary:
            when_ms = self.created_at_s * 1000 + self.created_at_ns // 1_000_000
            return BINARY_CHECKPOINT.pack(
                last_compacted_offset=self.last_cleaned_offset, last_retention_run_timestamp_ms=when_ms
            )
        tree = {
            "last_cleaned_offset": self.last_cleaned_offset,
            "retention_horizon_ms": self.retention_horizon_ms,
            "compaction_state": self.compaction_state,
            "created_at": {"secs_since_epoch": self.created_at_s, "nanos_since_epoch": self.created_at_ns},
        }
        return json.dumps(tree, indent=2).encode()


class RustLog(FrameFormat, SupportsCheckpoint):
    """The RustLog format; see the top of this module."""

    name = "rustlog"
    capabilities = Capabilities(
        timestamps="us",
        key=False,
        headers=False,
        explicit_offsets=True,
        compaction=True,
        segments=True,
        index=True,
        checksum="none: only lengths and the order of offsets can be checked",
        record_checksum=False,
        ordered_timestamps=True,
        max_value_bytes=MAX_RECORD_BYTES,
    )
    default_segment_bytes = 100 << 20
    default_segment_age_ms = 3_600_000
    option_names: ClassVar[Mapping[str, type]] = {
        **SEGMENT_OPTIONS, "index_interval_records": int, "header_bytes": int,
    }  # fmt: skip
    fixed_options = ("header_bytes", "dialect")
    program = "RustLog"
    dialect_options = ("header_bytes",)
    dialects: ClassVar[Mapping[str, str]] = {
        DOCUMENT: "20-byte record headers with a time",
        PROGRAM: "12-byte record headers without a time",
    }

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        interval = self.options.get("index_interval_records", 1)
        if interval < 1:
            raise UsageError(f"index_interval_records must be at least 1 (got {interval})")
        size = self.as_dialect("header_bytes", SPEC.layout.header_bytes, SHORT.layout.header_bytes)
        if size not in _BY_SIZE:
            raise UsageError(f"header_bytes must be 12 or 20 (got {size})")
        self.writes = _BY_SIZE[size]
        self._stated = self.writes if "header_bytes" in self.options else None
        """The layout of the log's records; None where their bytes decide."""
        if self.writes is SHORT:
            self.capabilities = replace(self.capabilities, timestamps=None, ordered_timestamps=False)

    @property
    def dialect(self) -> str:
        return PROGRAM if self.writes is SHORT else DOCUMENT

    def classify(self, path: str) -> FileName | None:
        if path == ".cleaner_checkpoint":
            return FileName(Role.CHECKPOINT)
        match = _NAME.fullmatch(path)
        if match and int(match[1]) < 2**63:
            return FileName(_ROLES[match[2]], int(match[1]))
        return FileName(Role.LEFTOVER) if _LEFTOVER.fullmatch(path) else None

    def path_of(self, role: Role, base: int | None = None) -> str:
        if role == Role.CHECKPOINT:
            return ".cleaner_checkpoint"
        return f"{base:020}.{'log' if role == Role.SEGMENT else 'index'}"

    def open_segment(self, buf: Buffer, base: int | None) -> FrameSegment:
        dialect = self._stated or dialect_of(buf)
        if base is None:
            end = kernel.seek_frame(buf, 0, len(memoryview(buf)), dialect.layout, 0)
            base = end.offset if end.stop == Stop.LIMIT else 0
        return FrameSegment(buf, base, 0, dialect)

    def open_index(self, role: Role, buf: Buffer, base: int) -> Index:
        view, unread = bounded(buf, INDEX_BYTES)
        rows, rest = table(view, 0, [("offset", ">u8"), ("position", ">u8")])
        return Index(rows["offset"], rows["position"], rest_bytes=rest, unread_bytes=unread)

    def ends_early(self, index: Index, segment: Segment) -> bool:
        """The first two entries show the interval of the index; a single entry does not."""
        interval = 0
        if len(index) > 1:
            interval = max(int(index.offsets[1]) - int(index.offsets[0]), 1)
        elif len(index):
            interval = self.options.get("index_interval_records", 2**62)
        rows = rows_after(index, segment)
        return rows is not None and rows.count > interval

    def skips_entries(self, places: Places, start: int) -> int | None:
        """An entry is missing where the distance between two entries is a multiple of the equal distances before and
        after it. The interval is an option of the writer and may change: so a wide distance at either end proves
        nothing, nor does one between two that differ."""
        if len(places.numbers) and int(places.numbers[0]):
            return 0
        apart = np.diff(places.numbers)
        if len(apart) < 3:
            return None
        before, here, after = apart[:-2], apart[1:-1], apart[2:]
        wide = np.flatnonzero((before == after) & (here > before) & (here % np.maximum(before, 1) == 0))
        return int(wide[0]) + 2 if len(wide) else None

    def check_file(self, role: Role, buf: Buffer, name: FileName) -> Iterator[Problem]:
        if role == Role.CHECKPOINT:
            try:
                Checkpoint.parse(buf)
            except CorruptionError as error:
                yield Problem("bad-checkpoint", Severity.WARNING, error.message, 0)

    def cleaned_files(
        self, existing: bytes | None, cleaned_until: int, horizon_ms: int, now_us: int
    ) -> dict[str, bytes]:
        binary = False
        if existing is not None:
            try:
                binary = Checkpoint.parse(existing).binary
            except CorruptionError:
                pass  # it will be replaced
        seconds, micros = divmod(now_us, 1_000_000)
        checkpoint = Checkpoint(cleaned_until, horizon_ms, "Idle", seconds, micros * 1000, binary=binary)
        return {".cleaner_checkpoint": checkpoint.encode()}

    def describe(self, files: Mapping[str, Buffer]) -> dict[str, Any]:
        if ".cleaner_checkpoint" not in files:
            return {}
        try:
            checkpoint = Checkpoint.parse(files[".cleaner_checkpoint"])
        except CorruptionError as error:
            return {"checkpoint": error.message}
        return {
            "checkpoint": {
                "last_cleaned_offset": checkpoint.last_cleaned_offset,
                "retention_horizon_ms": checkpoint.retention_horizon_ms,
                "compaction_state": checkpoint.compaction_state,
                "form": "binary" if checkpoint.binary else "JSON",
            }
        }

    def dump(
        self, role: Role, buf: Buffer, base: int | None = None, begin: int = 0, index: Index | None = None
    ) -> Iterator[Block]:
        if role == Role.SEGMENT:
            return dump_frames(self.open_segment(buf, base), begin, index)
        if role == Role.CHECKPOINT:
            return _dump_checkpoint(buf)
        return dump_index(buf, 0, ENTRY, begin)

    def encode(self, batch: pa.RecordBatch, cursor: ScanPosition, default_us: int = 0) -> Encoded:
        self.refuse_unsupported(batch)
        return encode_frames(batch, cursor, self.writes, default_us)

    def temporary_path(self, path: str) -> str:
        return path + (".rebuilding" if path.endswith(".index") else ".tmp")

    def continuing(self, segment: Segment) -> RustLog:
        """In the layout of the segment, even against ``dialect``."""
        size = segment.header_bytes if len(segment.buf) and self._stated is None else self.writes.layout.header_bytes
        dialect = {"dialect": PROGRAM if size == SHORT.layout.header_bytes else DOCUMENT}
        return RustLog(**{**self.options, **(dialect if "dialect" in self.options else {}), "header_bytes": size})

    def index_builder(self, base: int, created_ms: int) -> IndexBuilder:
        return EveryRecordIndex(ENTRY, self.options.get("index_interval_records", INDEX_INTERVAL_RECORDS))


def _dump_checkpoint(buf: Buffer) -> Iterator[Block]:
    raw = bytes(memoryview(buf)[: CHECKPOINT_BYTES + 1])
    if len(raw) == BINARY_CHECKPOINT.size and not raw.startswith(b"{"):
        yield Block("checkpoint", 0, list(BINARY_CHECKPOINT.fields(raw, 0)))
        return
    problem = None
    try:
        Checkpoint.parse(raw)
    except CorruptionError as error:
        problem = error.message
    yield Block("checkpoint", 0, [Field("json", 0, len(raw), raw)], problem)
