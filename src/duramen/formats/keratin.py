"""Keratin v0: segments with a checked header, records with user headers, two sparse indexes, a manifest; big-endian.

::

    segments/{base:020}.log
      0  KLOG\\0\\0\\0\\0, version, flags, header_len (68): see `stroma.FileHeader`
     16  base_offset     u64  the one in the file's name
     24  created_ts_ms   u64
     32  reserved        32 bytes
     64  header_crc32c   u32
     68  records, each:
           0  magic         u16  0x4B52 ("KR")
           2  version       u16  1
           4  flags         u16  kept as it is
           6  reserved0     u16  kept as it is
           8  header_len    u32  of the user headers
          12  payload_len   u32
          16  timestamp_ms  u64
          24  offset        u64
          32  headers       see `user_headers`
           …  payload
           …  crc32c        u32  CRC-32C from version through payload

    segments/{base:020}.idx, .tidx
      0  KIDX\\0\\0\\0\\0 or KTIX\\0\\0\\0\\0, version, flags, header_len (72)
     16  base_offset     u64
     24  created_ts_ms   u64
     32  entry_len       u16  16
     34  reserved0       u16
     36  reserved        32 bytes
     68  header_crc32c   u32
     72  entries:  .idx   rel_offset u32, reserved0 u32, file_pos u64
                   .tidx  timestamp_ms u64, rel_offset u32, reserved0 u32

    manifest.bin                         see `keratin_manifest`
    groups/*.snap, groups/*.delta        see `stroma`
    tmp/manifest.new                     a manifest before it replaces the old one

A file of zeros only, or an empty one, is a segment that was never begun: it opens without records at position 0,
and whoever appends there writes `Keratin.segment_header` first. Refuses a header or a record of an unknown version, a
header whose base offset is not the file name's, and an offset that repeats or goes backwards.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from duramen import kernel
from duramen.errors import CorruptionError, UnknownVersionError, UsageError
from duramen.formats import stroma
from duramen.formats.arrow import MAX_BATCH_BYTES
from duramen.formats.base import (
    SEGMENT_OPTIONS,
    Block,
    Buffer,
    Capabilities,
    Cursor,
    Encoded,
    FileName,
    IndexBuilder,
    Picked,
    Problem,
    Role,
    Rows,
    Segment,
    SegmentSummary,
    Severity,
    rows_behind,
)
from duramen.formats.frames import Dialect, FrameFormat, FrameSegment, UserHeaders, dump_frames, encode_frames
from duramen.formats.index import Index, Places, dump_index, table
from duramen.formats.keratin_manifest import (
    MANIFEST_MAGIC,
    Manifest,
    SealedSegment,
    dump_manifest,
    lost_since,
    manifest_facts,
)
from duramen.formats.stroma import CRC, FileHeader, GroupName, all_zero
from duramen.formats.structs import Struct
from duramen.formats.user_headers import decode_block, decode_blocks, encode_blocks
from duramen.kernel.layout import Checksum, FrameColumns, FrameLayout, Stop, UInt32s
from duramen.model import MAX_OFFSET

MAGIC = 0x4B52
VERSION = 1
MAX_RELATIVE_OFFSET = 2**32 - 1
"""What an index entry can say; a segment rolls before a record lies further from its base."""

LOG_HEADER = FileHeader(b"KLOG\0\0\0\0", base_offset="Q", created_ts_ms="Q", reserved="32s")
_INDEX_FIELDS = {
    "base_offset": "Q", "created_ts_ms": "Q", "entry_len": "H", "reserved0": "H", "reserved": "32s",
}  # fmt: skip
INDEX_HEADERS = {
    Role.INDEX: FileHeader(b"KIDX\0\0\0\0", **_INDEX_FIELDS),
    Role.TIME_INDEX: FileHeader(b"KTIX\0\0\0\0", **_INDEX_FIELDS),
}
ENTRIES = {
    Role.INDEX: Struct(">", rel_offset="I", reserved0="I", file_pos="Q"),
    Role.TIME_INDEX: Struct(">", timestamp_ms="Q", rel_offset="I", reserved0="I"),
}

HEADER = Struct(
    ">", magic="H", version="H", flags="H", reserved0="H", header_len="I", payload_len="I", timestamp_ms="Q",
    offset="Q",
)  # fmt: skip


def _extra(frames: FrameColumns, name: str) -> pa.Array:
    """The kernel reads flags and reserved0 as one number."""
    half = frames.flags >> np.uint32(16) if name == "flags" else frames.flags & np.uint32(0xFFFF)
    return pa.array(half.astype(np.uint16))


DIALECT = Dialect(
    "v1",
    FrameLayout(
        header_bytes=HEADER.size,
        big_endian=True,
        offset_at=HEADER.at("offset"),
        length_at=HEADER.at("payload_len"),
        consts=(
            HEADER.const("magic", MAGIC, Stop.BAD_MAGIC),
            HEADER.const("version", VERSION, Stop.BAD_VERSION),
        ),
        trailer_bytes=CRC.size,
        headers_length_at=HEADER.at("header_len"),
        timestamp_at=HEADER.at("timestamp_ms"),
        flags_at=HEADER.at("flags"),
        checksum=Checksum.CRC32C,
        covered_from=HEADER.at("version"),
    ),
    HEADER,
    timestamp_unit="ms",
    trailer=CRC,
    user_headers=UserHeaders(decode_block, decode_blocks),
    extra=_extra,
)

_SEGMENT_FILE = re.compile(r"segments/([0-9]{20})\.(log|idx|tidx)")
_GROUP_FILE = re.compile(r"groups/([^/]+)\.(snap|delta)")
_ROLES = {
    "log": Role.SEGMENT, "idx": Role.INDEX, "tidx": Role.TIME_INDEX,
    "snap": Role.GROUP_SNAPSHOT, "delta": Role.GROUP_DELTA,
}  # fmt: skip
_SUFFIXES = {role: suffix for suffix, role in _ROLES.items()}
_FIXED = {Role.MANIFEST: "manifest.bin", Role.LEFTOVER: "tmp/manifest.new"}


# --- the indexes


class SparseIndex(IndexBuilder):
    """Both index files of a segment: the current record is indexed once the stride is reached.

    After every record, the bytes from the end of the last indexed record (at first, from where the first record
    starts) to the end of this one are counted, itself included; at ``stride_bytes`` or more this record gets an
    entry in both files, and the count starts again at 0. So with stride 40 and records of 41, 36 and 56 bytes the
    first (41) and the third (36 + 56) are indexed, with stride 1 all are, and a segment smaller than the stride
    has no entry. A record further than 32 bits from the base gets none either.
    """

    def __init__(self, base: int, created_ms: int, stride_bytes: int) -> None:
        self._base, self._created_ms, self._stride_bytes = base, created_ms, stride_bytes
        self._counted_from: int | None = None
        super().__init__()

    def headers(self) -> dict[Role, bytes]:
        return {
            role: header.pack(base_offset=self._base, created_ts_ms=self._created_ms, entry_len=ENTRIES[role].size)
            for role, header in INDEX_HEADERS.items()
        }

    def pick(self, rows: Rows) -> Picked:
        frames = rows.columns
        assert isinstance(frames, FrameColumns)
        if not rows.count:
            return ()
        if self._counted_from is None:
            self._counted_from = int(frames.position[0])
        picked = np.empty(len(frames), np.int64)
        count, self._counted_from = kernel.pick_strides(
            frames.value_position, frames.value_length, CRC.size, self._stride_bytes, self._counted_from, picked
        )
        if not count:
            return ()
        picked = picked[:count]
        return frames.offset[picked], frames.position[picked], frames.timestamp[picked]

    def entries(self, picked: Picked) -> dict[Role, bytes]:
        relative = picked[0] - self._base
        fits = (relative >= 0) & (relative <= MAX_RELATIVE_OFFSET)
        columns = dict(zip(("rel_offset", "file_pos", "timestamp_ms"), (relative, *picked[1:]), strict=True))
        built = {}
        for role, entry in ENTRIES.items():
            entries = np.zeros(len(relative), _dtype(entry))
            for name in columns.keys() & set(entry.names):
                entries[name] = columns[name].astype(np.uint64)
            built[role] = entries[fits].tobytes()
        return built


@cache
def _dtype(entry: Struct) -> np.dtype[np.void]:
    return np.dtype([(name, f"{entry.order}u{entry.width(name)}") for name in entry.names])


def _index_start(role: Role, buf: Buffer, base: int | None) -> int:
    """Where the entries of an index file start; raises `CorruptionError` where its header cannot be trusted."""
    header = INDEX_HEADERS[role].parse(buf)
    layout = INDEX_HEADERS[role].struct
    if header.values["entry_len"] != ENTRIES[role].size:
        raise CorruptionError(
            f"entries of {header.values['entry_len']} bytes are not known", position=layout.at("entry_len")
        )
    if base is not None and header.values["base_offset"] != base:
        raise CorruptionError(
            f"the header says base offset {header.values['base_offset']}, the name says {base}",
            position=layout.at("base_offset"),
        )
    return header.length


def _index_rows(role: Role, view: memoryview, start: int) -> tuple[npt.NDArray[Any], int]:
    """The entries without the zeros of preallocated space behind them, and how many bytes of a torn one follow.

    A zero entry at the end says nothing that a reader needs: "the segment starts at its base, at time 0".
    """
    rows, rest_bytes = table(view, start, _dtype(ENTRIES[role]))
    if not kernel.is_zero(view, len(view) - rest_bytes, len(view)):
        return rows, rest_bytes
    written = np.flatnonzero(rows["rel_offset"] | rows["file_pos" if role == Role.INDEX else "timestamp_ms"])
    return rows[: int(written[-1]) + 1 if len(written) else 0], 0


def _dump_index(role: Role, buf: Buffer, base: int | None, begin: int) -> Iterator[Block]:
    try:
        start = _index_start(role, buf, base)
    except CorruptionError as error:
        yield INDEX_HEADERS[role].dump(buf, error.message)
        return
    yield INDEX_HEADERS[role].dump(buf)
    yield from dump_index(buf, start, ENTRIES[role], begin)


# --- the format


class Keratin(FrameFormat):
    writes = DIALECT
    name = "keratin"
    capabilities = Capabilities(
        timestamps="ms",
        key=True,
        headers=True,
        explicit_offsets=True,
        compaction=True,
        segments=True,
        index=True,
        checksum="CRC-32C over the record from its version through the payload, and over every file header",
        record_checksum=True,
        max_value_bytes=min(DIALECT.layout.max_payload_bytes, MAX_BATCH_BYTES),
        max_relative_offset=MAX_RELATIVE_OFFSET,
        ordered_timestamps=True,
        manifest=True,
        cuts_zeros=True,
        extras=(pa.field("flags", pa.uint16(), nullable=False), pa.field("reserved0", pa.uint16(), nullable=False)),
    )
    magics: ClassVar[Mapping[bytes, Role]] = {
        LOG_HEADER.magic: Role.SEGMENT,
        **{header.magic: role for role, header in INDEX_HEADERS.items()},
        MANIFEST_MAGIC: Role.MANIFEST,
        stroma.SNAP_HEADER.magic: Role.GROUP_SNAPSHOT,
        stroma.PROGRAM_SNAPSHOT_MAGIC: Role.GROUP_SNAPSHOT,
        stroma.DELTA_HEADER.magic: Role.GROUP_DELTA,
    }
    default_segment_bytes = Manifest.segment_max_bytes
    option_names: ClassVar[Mapping[str, type]] = {
        **SEGMENT_OPTIONS, "index_stride_bytes": int, "max_open_segments": int,
    }  # fmt: skip

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        most = {"index_stride_bytes": 2**32 - 1, "max_open_segments": 2**16 - 1}
        for name, value in self.options.items():
            if not 1 <= value <= most.get(name, 2**63 - 1):
                raise UsageError(f"{name}={value} is not between 1 and {most.get(name, 2**63 - 1)}")

    # --- names

    def classify(self, path: str) -> FileName | None:
        for role, fixed in _FIXED.items():
            if path == fixed:
                return FileName(role)
        match = _SEGMENT_FILE.fullmatch(path)
        if match and int(match[1]) <= MAX_OFFSET:
            return FileName(_ROLES[match[2]], int(match[1]))
        match = _GROUP_FILE.fullmatch(path)
        return FileName(_ROLES[match[2]]) if match and GroupName.parse(match[1]) else None

    def path_of(self, role: Role, base: int | None = None) -> str:
        if role in _FIXED:
            return _FIXED[role]
        if base is None:
            raise UsageError(f"a {role} of keratin is not named by its role alone")
        return f"segments/{base:020}.{_SUFFIXES[role]}"

    # --- reading

    def open_segment(self, buf: Buffer, base: int | None) -> FrameSegment:
        if all_zero(buf):
            return FrameSegment(buf, base or 0, 0, DIALECT)
        header = LOG_HEADER.parse(buf)
        stored = int(header.values["base_offset"])
        position = LOG_HEADER.struct.at("base_offset")
        if stored > MAX_OFFSET:
            raise CorruptionError(f"the base offset {stored} does not fit into 63 bits", position=position)
        if base is not None and stored != base:
            raise CorruptionError(f"the header says base offset {stored}, the file name says {base}", position=position)
        segment = FrameSegment(buf, stored, header.length, DIALECT)
        segment.created_ms = min(int(header.values["created_ts_ms"]), MAX_OFFSET)
        return segment

    def open_index(self, role: Role, buf: Buffer, base: int) -> Index | None:
        try:
            start = _index_start(role, buf, base)
        except CorruptionError:
            return None
        rows, rest_bytes = _index_rows(role, memoryview(buf), start)
        offsets = rows["rel_offset"].astype(np.uint64) + np.uint64(base)
        if role == Role.INDEX:
            return Index(offsets, rows["file_pos"], start=start, rest_bytes=rest_bytes)
        most_ms = (2**63 - 1) // 1000
        times_ms = np.clip(rows["timestamp_ms"].astype(np.int64), -most_ms, most_ms)
        repeats = {"timestamp": rows["timestamp_ms"]}
        return Index(offsets, None, times_ms * 1000, repeats, start=start, rest_bytes=rest_bytes, records_win=True)

    def ends_early(self, index: Index, segment: Segment) -> bool:
        """The record that reaches the stride has an entry by the document, the one behind it by the program. Only the
        document's first entry lies within the first stride; where there is none, both are allowed for."""
        stride_bytes = self.options.get("index_stride_bytes")
        rows = rows_behind(index, segment)
        if stride_bytes is None or rows is None:
            return False
        assert index.positions is not None
        places = [segment.start.position, *map(int, index.positions[:2])]
        if any(after - before >= 2 * stride_bytes for before, after in pairwise(places)):
            return False  # made with another stride
        by_document = len(places) > 1 and places[1] - places[0] < stride_bytes
        frames = rows.columns
        assert isinstance(frames, FrameColumns)
        ends = frames.value_position + frames.value_length + CRC.size
        counted_from = int(ends[0]) if len(index) and len(ends) else segment.start.position
        can_have = frames.offset - segment.base_offset <= MAX_RELATIVE_OFFSET
        reached = int(((ends - counted_from >= stride_bytes) & can_have).sum())
        return reached > (0 if by_document else 1)

    def skips_entries(self, places: Places, start: int) -> int | None:
        """By the document no record ends a stride or more behind the last entry's and has none; by the program, which
        goes by where records start, one does. The first entry tells them apart: see `ends_early`."""
        stride_bytes = self.options.get("index_stride_bytes")
        if stride_bytes is None or not len(places.starts):
            return None
        by_document = int(places.starts[0]) - start < stride_bytes
        ends = places.starts if by_document else places.befores
        wide = np.flatnonzero(ends - np.append(start, places.ends[:-1]) >= stride_bytes)
        if not len(wide) or 2 * len(wide) > len(ends):
            return None  # most of them: made with another stride
        return int(wide[0])

    def check_file(self, role: Role, buf: Buffer, name: FileName) -> Iterator[Problem]:
        if role == Role.GROUP_SNAPSHOT:
            yield from stroma.check_snapshot(buf)
        elif role == Role.GROUP_DELTA:
            yield from stroma.check_delta(buf)
        elif role == Role.MANIFEST:
            try:
                yield from Manifest.decode(buf).problems()
            except UnknownVersionError as error:
                yield Problem("unknown-manifest", Severity.DAMAGE, error.message, error.position)
            except CorruptionError as error:
                yield Problem("bad-manifest", Severity.WARNING, error.message, error.position)
        elif role in INDEX_HEADERS and not all_zero(buf):
            try:
                _index_start(role, buf, name.base)
            except CorruptionError as error:
                yield Problem("bad-index", Severity.WARNING, error.message, error.position)

    def check_log(
        self, files: Mapping[str, Buffer], segments: Sequence[SegmentSummary]
    ) -> Iterator[tuple[str, Problem]]:
        path = _FIXED[Role.MANIFEST]
        if path not in files:
            return
        try:
            manifest = Manifest.decode(files[path])
        except CorruptionError:
            return  # `check_file` says so
        for problem in lost_since(manifest, segments):
            yield path, problem

    def describe(self, files: Mapping[str, Buffer]) -> dict[str, Any]:
        facts: dict[str, Any] = {}
        readers = {Role.MANIFEST: manifest_facts, Role.GROUP_SNAPSHOT: _snapshot_facts, Role.GROUP_DELTA: _delta_facts}
        for path, buf in sorted(files.items()):
            name = self.classify(path)
            if name is None or name.role not in readers:
                continue
            title = "manifest" if name.role == Role.MANIFEST else path
            try:
                facts[title] = readers[name.role](buf)
            except CorruptionError as error:
                facts[title] = error.message
        return facts

    def dump(
        self, role: Role, buf: Buffer, base: int | None = None, begin: int = 0, index: Index | None = None
    ) -> Iterator[Block]:
        if role == Role.SEGMENT:
            return self._dump_segment(buf, base, begin, index)
        if role == Role.GROUP_SNAPSHOT:
            return stroma.dump_snapshot(buf)
        if role == Role.GROUP_DELTA:
            return stroma.dump_delta(buf)
        if role in INDEX_HEADERS:
            return _dump_index(role, buf, base, begin)
        return dump_manifest(buf)

    def _dump_segment(self, buf: Buffer, base: int | None, begin: int, index: Index | None) -> Iterator[Block]:
        problem = None
        try:
            segment = self.open_segment(buf, base)
        except CorruptionError as error:
            problem = error.message
            segment = FrameSegment(buf, 0, LOG_HEADER.claimed_length(buf), DIALECT)
        if segment.start.position:
            yield LOG_HEADER.dump(buf, problem)
        if segment.start.position < len(segment.buf):
            yield from dump_frames(segment, begin, index)

    # --- writing

    def temporary_path(self, path: str) -> str:
        return _FIXED[Role.LEFTOVER] if path == _FIXED[Role.MANIFEST] else super().temporary_path(path)

    def segment_header(self, base: int, created_ms: int) -> bytes:
        return LOG_HEADER.pack(base_offset=base, created_ts_ms=created_ms)

    def encode(self, batch: pa.RecordBatch, cursor: Cursor, default_us: int = 0) -> Encoded:
        self.refuse_unsupported(batch)
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        blocks = encode_blocks(columns.get("key"), columns.get("headers"))
        return encode_frames(batch, cursor, DIALECT, default_us, headers=blocks, flags=_flags_of(columns))

    def index_builder(self, base: int, created_ms: int) -> SparseIndex:
        stride_bytes = self.options.get("index_stride_bytes", Manifest.index_stride_bytes)
        return SparseIndex(base, created_ms, stride_bytes)

    def log_files(self, segments: Sequence[SegmentSummary], created_ms: int) -> dict[str, bytes]:
        """The manifest: the last segment is the active one, the others are sealed (an empty one is left out)."""
        active = segments[-1] if segments else SegmentSummary(0, -1, 0, 0)
        sealed = tuple(SealedSegment(*s) for s in segments[:-1] if s.last_offset >= s.base_offset)
        return {_FIXED[Role.MANIFEST]: replace(self._manifest(active, created_ms), segments=sealed).encode()}

    def log_files_fit(
        self, files: Mapping[str, Buffer], sealed_count: int, active: SegmentSummary, created_ms: int
    ) -> bool:
        try:
            head, count = Manifest.decode_head(files[_FIXED[Role.MANIFEST]])
        except (KeyError, CorruptionError):
            return False
        return count == sealed_count and head == self._manifest(active, created_ms)

    def _manifest(self, active: SegmentSummary, created_ms: int) -> Manifest:
        """The manifest without its list of sealed segments."""
        named = ("segment_max_bytes", "index_stride_bytes", "max_open_segments")
        return Manifest(
            created_ts_ms=created_ms,
            active_base_offset=active.base_offset,
            next_offset=active.last_offset + 1,
            **{name: self.options[name] for name in named if name in self.options},
        )


def _flags_of(columns: Mapping[str, pa.Array]) -> UInt32s | None:
    """Flags and reserved0 as the one number that the kernel writes; None where both are absent."""
    halves: list[UInt32s | None] = []
    for name in ("flags", "reserved0"):
        column = columns.get(name)
        if column is None:
            halves.append(None)
            continue
        try:
            whole = pc.fill_null(column.cast(pa.uint16()), 0)
        except pa.ArrowInvalid as error:
            raise UsageError(f"{name} does not fit into 16 bits: {error}") from error
        halves.append(whole.to_numpy(zero_copy_only=False).astype(np.uint32))
    flags, reserved0 = halves
    if flags is None:
        return reserved0
    shifted: UInt32s = flags << np.uint32(16)
    return shifted if reserved0 is None else shifted | reserved0


def _snapshot_facts(buf: Buffer) -> dict[str, Any]:
    snapshot = stroma.Snapshot.decode(buf)
    return {"acked_until": snapshot.acked_until, "inflight": len(snapshot.inflight)}


def _delta_facts(buf: Buffer) -> dict[str, Any]:
    delta = stroma.Delta.decode(buf)
    return {"events": len(delta.events), "bytes": delta.end}
