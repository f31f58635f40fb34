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

Which of the two records a segment holds is found by walking both. Refuses a payload over 10 MiB and an offset that
repeats or goes backwards. Nothing in the file proves that a payload is what was written: only the sidecar's digest
of a sealed segment does.
"""

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
from duramen.formats.base import (
    SEGMENT_OPTIONS,
    Block,
    Buffer,
    Capabilities,
    Cursor,
    Encoded,
    FileName,
    IndexBuilder,
    Problem,
    Role,
    Segment,
    Severity,
    rows_behind,
)
from duramen.formats.frames import Dialect, EveryRecordIndex, FrameFormat, FrameSegment, dump_frames, encode_frames
from duramen.formats.index import Index, Places, dump_index, table
from duramen.formats.structs import Field, Struct
from duramen.kernel.layout import FrameColumns, FrameLayout, Stop

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
"""How the microseconds of the years 1996 to 2112 begin."""
_WALK_RECORDS = 4096
_OUT_OF_ORDER = 8
"""How many records that are out of order are passed over to find some that follow each other."""
_PAIRS = 2
_LOST_BYTES = 1 << 20
"""How far a damaged beginning is searched for the first record behind it."""


class Walk(NamedTuple):
    """How far records of one dialect go from the start of a segment."""

    records: int
    position: int
    stop: Stop
    contiguous_bytes: int
    """How far they go without leaving out an offset."""
    has_pairs: bool
    """Whether two of them or more have the offset behind that of the record before, also past one that is out of order.
    One does in the other layout, too, if the length before it is wrong by the eight bytes of a time."""

    def explains(self, time_fits: bool) -> tuple[bool, bool, bool, bool, int]:
        """How well: whether everything is records without a gap; whether some follow each other, which other bytes
        hardly ever do; whether what lies at the place of the time fits; whether everything is records, with gaps; how
        far they go without one."""
        whole = self.records > 0 and self.stop in (Stop.END, Stop.ZEROS, Stop.LIMIT)
        straight = whole and self.contiguous_bytes == self.position
        return straight, self.has_pairs, time_fits, whole, self.contiguous_bytes


def walk(buf: Buffer, dialect: Dialect) -> Walk:
    """Walk the first records, no more than a few thousand."""
    columns = FrameColumns.empty(_WALK_RECORDS)
    end = kernel.scan_frames(buf, 0, len(memoryview(buf)), dialect.layout, columns)
    offsets = columns.offset[: end.count]
    gaps = np.flatnonzero(np.diff(offsets) != 1)
    contiguous = int(columns.position[gaps[0] + 1]) if len(gaps) else end.position
    pairs = max(end.count - 1, 0) - len(gaps)
    if pairs < _PAIRS and end.stop == Stop.BAD_ORDER:
        pairs += _pairs_behind(buf, dialect, end.position)
    return Walk(end.count, end.position, Stop(end.stop), contiguous, pairs >= _PAIRS)


def _pairs_behind(buf: Buffer, dialect: Dialect, position: int) -> int:
    """How many records follow another one there, behind no more than a few that are out of order."""
    columns, pairs = FrameColumns.empty(_WALK_RECORDS), 0
    for _ in range(_OUT_OF_ORDER):
        end = kernel.scan_frames(buf, position, len(memoryview(buf)), dialect.layout, columns)
        pairs += int(np.count_nonzero(np.diff(columns.offset[: end.count]) == 1))
        if pairs >= _PAIRS or end.stop != Stop.BAD_ORDER:
            break
        position = end.position
    return pairs


def _goes_on(buf: Buffer, begun: Walk, dialect: Dialect) -> bool:
    """Whether records follow each other behind a beginning that is none."""
    if begun.stop in (Stop.END, Stop.ZEROS):
        return False
    found = kernel.find_frame(buf, 1, min(len(memoryview(buf)), _LOST_BYTES), dialect.layout, -1)
    return found >= 0 and _pairs_behind(buf, dialect, found) >= _PAIRS


def dialect_of(buf: Buffer) -> Dialect:
    """The layout that explains the bytes: one whose offsets follow each other up to where the file ends; else the only
    one in which records follow each other; else the one that what lies behind the first offset speaks for, a time of
    this century or not; else the one that goes further.

    Bytes that both or neither explain are taken for the document's layout. So is a single short record whose payload
    starts like a time of this century: it is rather the document's record, torn.
    """
    spec, short = walk(buf, SPEC), walk(buf, SHORT)
    if not spec.records and not short.records:
        return SHORT if _goes_on(buf, short, SHORT) and not _goes_on(buf, spec, SPEC) else SPEC
    is_time = bool(_TIME.match(memoryview(buf), SHORT_HEADER.size))
    if short.records == 1 and spec.records == 0 and is_time:
        return SPEC
    return SHORT if short.records and short.explains(not is_time) > spec.explains(is_time) else SPEC


@dataclass(frozen=True)
class Checkpoint:
    """The retention and compaction state that lies beside the segments.

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
        raw = bytes(buf)
        if len(raw) == BINARY_CHECKPOINT.size and not raw.startswith(b"{"):
            offset, when_ms = BINARY_CHECKPOINT.unpack(raw).values()
            assert isinstance(offset, int)
            assert isinstance(when_ms, int)
            return cls(offset, 0, "Idle", when_ms // 1000, when_ms % 1000 * 1_000_000, binary=True)
        try:
            tree = json.loads(raw)
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


class RustLog(FrameFormat):
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
    fixed_options = ("header_bytes",)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        interval = self.options.get("index_interval_records", 1)
        if interval < 1:
            raise UsageError(f"index_interval_records={interval} is not 1 or more")
        size = self.options.get("header_bytes")
        if size not in (None, *_BY_SIZE):
            raise UsageError(f"header_bytes={size} is neither 20 nor 12")
        self._dialect = None if size is None else _BY_SIZE[size]
        self.writes = self._dialect or SPEC
        if self._dialect is SHORT:
            self.capabilities = replace(self.capabilities, timestamps=None, ordered_timestamps=False)

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
        dialect = self._dialect or dialect_of(buf)
        if base is None:
            end = kernel.seek_frame(buf, 0, len(memoryview(buf)), dialect.layout, 0)
            base = end.offset if end.stop == Stop.LIMIT else 0
        return FrameSegment(buf, base, 0, dialect)

    def open_index(self, role: Role, buf: Buffer, base: int) -> Index:
        rows, rest = table(buf, 0, [("offset", ">u8"), ("position", ">u8")])
        return Index(rows["offset"], rows["position"], rest_bytes=rest)

    def ends_early(self, index: Index, segment: Segment) -> bool:
        """The first two entries tell the interval that the index was made with; one entry alone does not."""
        interval = 0
        if len(index) > 1:
            interval = max(int(index.offsets[1]) - int(index.offsets[0]), 1)
        elif len(index):
            interval = self.options.get("index_interval_records", 2**62)
        rows = rows_behind(index, segment)
        return rows is not None and rows.count > interval

    def skips_entries(self, places: Places, start: int) -> int | None:
        """An entry is missing where as many records lie between two as between three or more before and behind. The
        interval may change, as it is an option of whoever writes: so a wide one at either end says nothing, nor does
        one between two that differ."""
        if len(places.numbers) and int(places.numbers[0]):
            return 0
        apart = np.diff(places.numbers)
        if len(apart) < 3:
            return None
        before, here, behind = apart[:-2], apart[1:-1], apart[2:]
        wide = np.flatnonzero((before == behind) & (here > before) & (here % np.maximum(before, 1) == 0))
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
                pass  # it is replaced
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

    def encode(self, batch: pa.RecordBatch, cursor: Cursor, default_us: int = 0) -> Encoded:
        self.refuse_unsupported(batch)
        return encode_frames(batch, cursor, self.writes, default_us)

    def temporary_path(self, path: str) -> str:
        return path + (".rebuilding" if path.endswith(".index") else ".tmp")

    def continuing(self, segment: Segment) -> RustLog:
        size = segment.header_bytes if len(segment.buf) else SPEC.layout.header_bytes
        return RustLog(**{"header_bytes": size, **self.options})

    def index_builder(self, base: int, created_ms: int) -> IndexBuilder:
        return EveryRecordIndex(ENTRY, self.options.get("index_interval_records", INDEX_INTERVAL_RECORDS))


def _dump_checkpoint(buf: Buffer) -> Iterator[Block]:
    raw = bytes(buf)
    if len(raw) == BINARY_CHECKPOINT.size and not raw.startswith(b"{"):
        yield Block("checkpoint", 0, list(BINARY_CHECKPOINT.fields(raw, 0)))
        return
    problem = None
    try:
        Checkpoint.parse(raw)
    except CorruptionError as error:
        problem = error.message
    yield Block("checkpoint", 0, [Field("json", 0, len(raw), raw)], problem)
