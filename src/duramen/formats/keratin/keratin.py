"""Keratin v0: segments with a checked header, records with user headers, two sparse indexes, a manifest; big-endian.

::

    segments/{base:020}.log
      0  KLOG\\0\\0\\0\\0, version, flags, header_len (68): see `stroma.header`
     16  base_offset     u64  the one in the file's name
     24  created_ts_ms   u64
     32  reserved        32 bytes
     64  header_crc32c   u32
     68  records, each:
           0  magic         u16  0x4B52 ("KR")
           2  version       u16  1
           4  flags         u16  preserved
           6  reserved0     u16  preserved
           8  header_len    u32  of the user headers
          12  payload_len   u32
          16  timestamp_ms  u64
          24  offset        u64
          32  headers       see `header_block`
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

    manifest.bin                         see `manifest`
    groups/*.snap, groups/*.delta        see `stroma`
    tmp/manifest.new                     a manifest before it replaces the old one

An empty file, or one of zeros only, is a segment without a header yet: it opens without records at position 0, and a
writer writes `Keratin.segment_header` first. Errors: an unknown version of a header or record, a base offset that is
not the file name's, an offset that repeats or decreases."""

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

from duramen import compute as pc
from duramen import kernel
from duramen.errors import CorruptionError, UnknownVersionError, UsageError
from duramen.formats.arrow import MAX_BATCH_BYTES, number_array
from duramen.formats.extensions import SupportsManifest
from duramen.formats.format import DOCUMENT, PROGRAM, SEGMENT_OPTIONS, Capabilities, FileName
from duramen.formats.frame import Dialect, FrameFormat, FrameSegment, UserHeaders, dump_frames, encode_frames
from duramen.formats.index import (
    COPIED_INDEX_BYTES,
    Index,
    IndexBuilder,
    Picked,
    Places,
    bounded,
    dump_index,
    rows_after,
    table,
    times_us,
)
from duramen.formats.keratin.header_block import (
    KEY_MARKER,
    NULL_MARKER,
    decode_block,
    decode_blocks,
    encode_block,
    encode_blocks,
)
from duramen.formats.keratin.manifest import (
    MANIFEST_MAGIC,
    SHARED_MARKER,
    Manifest,
    SealedSegment,
    dump_manifest,
    layout_of_size,
    lost_since,
    manifest_facts,
    mended,
)
from duramen.formats.segment import Encoded, Problem, Role, Rows, ScanPosition, Segment, SegmentSummary, Severity
from duramen.formats.stroma import (
    CRC,
    DELTA_HEADER,
    PROGRAM_SNAPSHOT_MAGIC,
    SNAP_HEADER,
    FileHeader,
    GroupName,
    all_zero,
    check_delta,
    check_size,
    check_snapshot,
    decode_program_snapshot,
    dump_delta,
    dump_snapshot,
    events_end,
    is_program_snapshot,
    open_snapshot,
)
from duramen.formats.struct import Block, Buffer, Struct
from duramen.kernel import Checksum, FrameColumns, FrameLayout, Stop, UInt32s
from duramen.record import MAX_OFFSET

MAGIC = 0x4B52
VERSION = 1
MAX_RELATIVE_OFFSET = 2**32 - 1
"""The largest distance that an index entry can store; a segment rolls before a record exceeds it."""

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
    return number_array(half.astype(np.uint16))


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
    user_headers=UserHeaders(decode_block, decode_blocks, KEY_MARKER, NULL_MARKER),
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
    """Both index files of a segment, with one entry per stride.

    A record gets an entry in both files if it ends at least ``stride_bytes`` after the end of the last indexed record
    (at first, after the start of the first record). With stride 40 and records of 41, 36 and 56 bytes, the first (41)
    and the third (36 + 56) are indexed; with stride 1 all are; a segment smaller than the stride has no entry. A record
    further than 32 bits from the base gets none either.
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

    @property
    def progress(self) -> tuple[int, ...]:
        return () if self._counted_from is None else (self._counted_from,)

    def resume(self, progress: Sequence[int]) -> None:
        super().resume(progress)
        self._counted_from = next(iter(progress), None)

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
    """Where the entries of an index file start; raises `CorruptionError` for a bad header."""
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
    """The entries without trailing zeros of preallocated space, and the size of a torn entry after them.

    A zero entry at the end tells a reader nothing new: "the segment starts at its base, at time 0".
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


class Keratin(FrameFormat, SupportsManifest):
    """The Keratin format; see the top of this module."""

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
        covers_all=True,
        max_value_bytes=min(DIALECT.layout.max_payload_bytes, MAX_BATCH_BYTES),
        max_relative_offset=MAX_RELATIVE_OFFSET,
        ordered_timestamps=True,
        null_values=True,
        manifest=True,
        cuts_zeros=True,
        extras=(pa.field("flags", pa.uint16(), nullable=False), pa.field("reserved0", pa.uint16(), nullable=False)),
    )
    magics: ClassVar[Mapping[bytes, Role]] = {
        LOG_HEADER.magic: Role.SEGMENT,
        **{header.magic: role for role, header in INDEX_HEADERS.items()},
        MANIFEST_MAGIC: Role.MANIFEST,
        SNAP_HEADER.magic: Role.GROUP_SNAPSHOT,
        PROGRAM_SNAPSHOT_MAGIC: Role.GROUP_SNAPSHOT,
        DELTA_HEADER.magic: Role.GROUP_DELTA,
    }
    default_segment_bytes = Manifest.segment_max_bytes
    option_names: ClassVar[Mapping[str, type]] = {
        **SEGMENT_OPTIONS, "index_stride_bytes": int, "max_open_segments": int, "manifest_version": int,
    }  # fmt: skip
    fixed_options = ("dialect",)
    program = "Keratin's program"
    dialect_options = ("manifest_version",)
    dialects: ClassVar[Mapping[str, str]] = {
        DOCUMENT: "the document's manifest, which Keratin's program refuses",
        PROGRAM: "the manifest that Keratin's program writes",
    }

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        most = {"index_stride_bytes": 2**32 - 1, "max_open_segments": 2**16 - 1, "manifest_version": 2}
        for name, value in self.options.items():
            if name != "dialect" and not 1 <= value <= most.get(name, 2**63 - 1):
                raise UsageError(f"{name} must be 1 to {most.get(name, 2**63 - 1)} (got {value})")

    # --- names

    def classify(self, path: str) -> FileName | None:
        match = _SEGMENT_FILE.fullmatch(path)
        if match is not None:
            base = int(match[1])
            return FileName(_ROLES[match[2]], base) if base <= MAX_OFFSET else None
        for role, fixed in _FIXED.items():
            if path == fixed:
                return FileName(role)
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
        view, unread = bounded(buf, COPIED_INDEX_BYTES)
        rows, rest_bytes = _index_rows(role, view, start)
        offsets = rows["rel_offset"].astype(np.uint64)
        offsets += np.uint64(base)
        if role == Role.INDEX:
            return Index(offsets, rows["file_pos"], start=start, rest_bytes=rest_bytes, unread_bytes=unread)
        return Index(
            offsets, None, times_us(rows["timestamp_ms"]), {"timestamp": rows["timestamp_ms"]}, start=start,
            rest_bytes=rest_bytes, unread_bytes=unread, records_win=True,
        )  # fmt: skip

    def ends_early(self, index: Index, segment: Segment) -> bool:
        """The document indexes the record that reaches the stride, the program the one after it. Only the document's
        first entry lies within the first stride; without entries, both are allowed."""
        stride_bytes = self.options.get("index_stride_bytes")
        rows = rows_after(index, segment)
        if stride_bytes is None or rows is None:
            return False
        assert index.positions is not None
        places = [segment.start.position, *map(int, index.positions[:2])]
        if any(after - before >= 2 * stride_bytes for before, after in pairwise(places)):
            return False  # built with another stride
        by_document = len(places) > 1 and places[1] - places[0] < stride_bytes
        frames = rows.columns
        assert isinstance(frames, FrameColumns)
        ends = frames.value_position + frames.value_length + CRC.size
        counted_from = int(ends[0]) if len(index) and len(ends) else segment.start.position
        can_have = frames.offset - segment.base_offset <= MAX_RELATIVE_OFFSET
        reached = int(((ends - counted_from >= stride_bytes) & can_have).sum())
        return reached > (0 if by_document else 1)

    def skips_entries(self, places: Places, start: int) -> int | None:
        """The document indexes every record that ends a stride or more after the last entry's; the program, which uses
        the starts of records, does not. The first entry tells them apart: see `ends_early`."""
        stride_bytes = self.options.get("index_stride_bytes")
        if stride_bytes is None or not len(places.starts):
            return None
        by_document = int(places.starts[0]) - start < stride_bytes
        ends = places.starts if by_document else places.befores
        wide = np.flatnonzero(ends - np.append(start, places.ends[:-1]) >= stride_bytes)
        if not len(wide) or 2 * len(wide) > len(ends):
            return None  # most of them: built with another stride
        return int(wide[0])

    def check_file(self, role: Role, buf: Buffer, name: FileName) -> Iterator[Problem]:
        if role == Role.GROUP_SNAPSHOT:
            yield from check_snapshot(buf)
        elif role == Role.GROUP_DELTA:
            yield from check_delta(buf)
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
            return  # `check_file` reports it
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
            return dump_snapshot(buf)
        if role == Role.GROUP_DELTA:
            return dump_delta(buf)
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

    def encode(self, batch: pa.RecordBatch, cursor: ScanPosition, default_us: int = 0) -> Encoded:
        self.refuse_unsupported(batch)
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        blocks = encode_blocks(columns.get("key"), columns.get("headers"), columns["value"])
        return encode_frames(batch, cursor, DIALECT, default_us, headers=blocks, flags=_flags_of(columns))

    def user_headers(self, key: bytes | None, headers: Sequence[tuple[str, bytes | None]]) -> bytes | None:
        return encode_block(key, list(headers), has_payload=True)

    def index_builder(self, base: int, created_ms: int) -> SparseIndex:
        stride_bytes = self.options.get("index_stride_bytes", Manifest.index_stride_bytes)
        return SparseIndex(base, created_ms, stride_bytes)

    def log_files(
        self, segments: Sequence[SegmentSummary], created_ms: int, existing: Mapping[str, Buffer] | None = None
    ) -> dict[str, bytes]:
        """The manifest: the last segment is active, the others are sealed (empty ones are omitted)."""
        active = segments[-1] if segments else SegmentSummary(0, -1, 0, 0)
        first_offset = segments[0].base_offset if segments else 0
        manifest = self._settings(created_ms, (existing or {}).get(_FIXED[Role.MANIFEST])).at(active, first_offset)
        if not manifest.is_of_program:
            sealed = tuple(SealedSegment(*s) for s in segments[:-1] if s.last_offset >= s.base_offset)
            manifest = replace(manifest, segments=sealed)
        return {_FIXED[Role.MANIFEST]: manifest.encode()}

    def log_files_fit(
        self, files: Mapping[str, Buffer], sealed_count: int, active: SegmentSummary, created_ms: int
    ) -> bool:
        try:
            held = files[_FIXED[Role.MANIFEST]]
            head, count = Manifest.decode_head(held)
        except (KeyError, CorruptionError):
            return False
        is_listed = head.is_of_program or count == sealed_count
        return is_listed and head == self._settings(created_ms, held).at(active, head.head_offset)

    def _settings(self, created_ms: int, existing: Buffer | None) -> Manifest:
        """A manifest in the layout of the existing one and with its settings, overridden by the options."""
        held = None if existing is None else mended(existing)
        if held is None:
            held = Manifest(created_ts_ms=created_ms, **self._layout(existing))
        named = ["segment_max_bytes", "index_stride_bytes", *([] if held.is_of_program else ["max_open_segments"])]
        return replace(held, **{name: self.options[name] for name in named if name in self.options})

    def _layout(self, existing: Buffer | None) -> dict[str, Any]:
        """The layout of a new manifest, or of an unreadable one, whose size identifies the program's layouts."""
        found = None if existing is None else layout_of_size(len(memoryview(existing)))
        if found is None and self.dialect == PROGRAM:
            found = f"program v{self.options.get('manifest_version', 1)}"
        return {"layout": found or "spec", "shared_marker": SHARED_MARKER if found == "program v3" else b""}


def _flags_of(columns: Mapping[str, pa.Array]) -> UInt32s | None:
    """Flags and reserved0 as the one number that the kernel writes; None if both are absent."""
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
    if is_program_snapshot(buf):
        return decode_program_snapshot(buf).facts
    snapshot = open_snapshot(buf)
    return {"acked_until": snapshot.acked_until, "inflight": len(snapshot.rows)}


def _delta_facts(buf: Buffer) -> dict[str, Any]:
    view = memoryview(buf)
    check_size(view)
    if all_zero(view):
        return {"events": 0, "bytes": 0}
    found = events_end(view, DELTA_HEADER.parse(view).length)
    return {"events": found.events, "bytes": found.end}
