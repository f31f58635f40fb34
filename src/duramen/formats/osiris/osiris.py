"""Osiris, the log of RabbitMQ Streams: chunks of records with one checksum each, an index of chunks, tracking inside.

::

    {base:020}.segment             file header, then chunks, nothing between them; base is the first chunk's id
      0  magic    u32  4F 53 49 4C ("OSIL")
      4  version  u32  1
      8  chunks, see `chunk`; all big-endian

    {base:020}.index               file header, then one entry per chunk, tracking chunks included
      0  magic    u32  4F 53 49 49 ("OSII")
      4  version  u32  1
      8  entry    chunk_id u64, timestamp i64 (ms), epoch u64, position u32, chunk_type u8

A record has the time of its chunk, and neither key nor headers. A tracking chunk occupies one offset, and a filler as
many as are missing (see `fillers`), so that readers of records see a gap. Chunk versions 0 (RabbitMQ's) and 1 (the
document's) are read. The checksum covers the entries; `UNCOVERED` lists the bytes whose change nothing in the file
reveals. Decompression stops at the stated length of a sub-batch, and at ``max_uncompressed_bytes`` per chunk.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from duramen import kernel
from duramen.errors import (
    CorruptionError,
    DuramenError,
    IncompleteHeaderError,
    LimitError,
    UnknownVersionError,
    UsageError,
)
from duramen.formats.arrow import MAX_BATCH_BYTES, Values, allocate, binary_buffers, offsets_to, timestamps_to
from duramen.formats.extensions import (
    ConsumerPositions,
    SequenceRun,
    StoredChunk,
    SupportsChunks,
    SupportsGapFill,
    SupportsTracking,
)
from duramen.formats.format import (
    DOCUMENT,
    PROGRAM,
    SEGMENT_OPTIONS,
    Capabilities,
    EncodedRecords,
    FileName,
    Format,
    SupportsMoving,
)
from duramen.formats.index import (
    COPIED_INDEX_BYTES,
    Index,
    IndexBuilder,
    Picked,
    bounded,
    dump_index,
    lacks_a_row,
    table,
    times_us,
)
from duramen.formats.keys import extractor
from duramen.formats.osiris.bloom_filter import MAX_BYTES, MIN_BYTES, with_filters
from duramen.formats.osiris.chunk import (
    HEADER,
    MAGIC,
    MAX_UNCOMPRESSED_BYTES,
    SIMPLE,
    SUB_BATCH,
    ChunkType,
    Compression,
    compression_of,
    deflate,
    delta_chunk,
    encode_chunk,
    snapshot_chunk,
)
from duramen.formats.osiris.dump import dump_chunks, stored_chunks
from duramen.formats.osiris.fillers import filler_chunks, with_fillers
from duramen.formats.osiris.recode import move_chunks, recode_chunk, scanned_at
from duramen.formats.osiris.segment import CHUNK_ID, FILE_HEADER, OsirisSegment, chunks_of
from duramen.formats.osiris.tracking import Tracking, delta_blocks
from duramen.formats.osiris.trailers import last_sequences, mended, with_trailers
from duramen.formats.segment import Encoded, Problem, Role, Rows, ScanPosition, Segment, Severity
from duramen.formats.struct import Block, Buffer, Field, Struct
from duramen.kernel import ChunkColumns, Int64s, RecordKind, RecordShape, ScanEnd, Stop

ENTRY = Struct(">", chunk_id="Q", timestamp="q", epoch="Q", position="I", chunk_type="B")
VERSION = 1
LOG_HEADER = FILE_HEADER.pack(magic=b"OSIL", version=VERSION)
INDEX_HEADER = FILE_HEADER.pack(magic=b"OSII", version=VERSION)

UNCOVERED = ("version", "chunk_type", "timestamp", "epoch", "reserved", "filter", "trailer")
"""The parts of a chunk in which a change may remain undetected within the segment: of the version only the lowest bit,
the type only in a chunk with a single simple entry, and the trailer only as long as it stays a list of blocks. The
index repeats type, timestamp and epoch. A changed chunk id shows as a gap or as a decreasing id."""

CHUNK_MAX_BYTES = 64 << 10
CHUNK_MAX_RECORDS = 2048
SUB_BATCH_RECORDS = 1024
"""The defaults keep a read of one record, which checks its whole chunk, within microseconds."""

SEGMENT_MAX_BYTES = 500_000_000
SEGMENT_MAX_CHUNKS = 256_000

_NAME = re.compile(r"([0-9]{20})\.(segment|index)")
_ROLES = {"segment": Role.SEGMENT, "index": Role.INDEX}
_ENTRY_DTYPE = np.dtype(
    [("chunk_id", ">u8"), ("timestamp", ">i8"), ("epoch", ">u8"), ("position", ">u4"), ("chunk_type", "u1")]
)


class ChunkIndex(IndexBuilder):
    """One entry per chunk."""

    def headers(self) -> dict[Role, bytes]:
        return {Role.INDEX: INDEX_HEADER}

    def pick(self, rows: Rows) -> Picked:
        chunks = chunks_of(rows)
        if not len(chunks):
            return ()
        if int(chunks.position[-1]) >= 2**32:
            raise LimitError(
                "a chunk lies beyond 4 GiB, where an Osiris index cannot point",
                position=int(chunks.position[-1]), hint="set a smaller segment_max_bytes",
            )  # fmt: skip
        entries = np.empty(len(chunks), _ENTRY_DTYPE)
        for name in ENTRY.names:
            entries[name] = getattr(chunks, name)
        return (entries,)

    def entries(self, picked: Picked) -> dict[Role, bytes]:
        return {Role.INDEX: picked[0].tobytes()}


class Osiris(Format, SupportsTracking, SupportsChunks, SupportsGapFill, SupportsMoving):
    """The Osiris format; see the top of this module."""

    name = "osiris"
    capabilities = Capabilities(
        timestamps="ms",
        key=False,
        headers=False,
        explicit_offsets=True,
        compaction=False,
        segments=True,
        index=True,
        checksum="CRC-32 over the entries of a chunk; not over its header, its filter and its tracking",
        record_checksum=True,
        max_value_bytes=2**31 - 1 - HEADER.size - SIMPLE.size,
        max_segment_bytes=2**31,  # plus a batch as large, to whose last chunk the index can still point
        max_segment_rows=SEGMENT_MAX_CHUNKS,
        index_at_once=True,
        cuts_zeros=True,
        drops_empty_segment=True,
        rolls_when_full=True,
        lost_segments_show=True,
        chunks=True,
        tracking=True,
        signed_timestamps=True,
        extras=(CHUNK_ID,),
    )
    magics: ClassVar[Mapping[bytes, Role]] = {LOG_HEADER[:4]: Role.SEGMENT, INDEX_HEADER[:4]: Role.INDEX}
    default_segment_bytes = SEGMENT_MAX_BYTES
    option_names: ClassVar[Mapping[str, type]] = {
        "chunk_version": int,
        "compression": str,
        "epoch": int,
        "chunk_max_bytes": int,
        "chunk_max_records": int,
        "sub_batch_records": int,
        "max_uncompressed_bytes": int,
        "filter_bytes": int,
        "filter_by": str,
        **SEGMENT_OPTIONS,
    }
    fixed_options = ("chunk_version", "dialect")
    program = "RabbitMQ"
    dialect_options = ("chunk_version",)
    dialects: ClassVar[Mapping[str, str]] = {
        DOCUMENT: "chunk version 1, which RabbitMQ does not read",
        PROGRAM: "chunk version 0, which RabbitMQ needs",
    }

    def __init__(self, **options: Any) -> None:
        filter_by = options.get("filter_by")
        super().__init__(**{**options, "filter_by": ""} if callable(filter_by) else options)
        if callable(filter_by):
            self.options["filter_by"] = filter_by
        self._filter_values = extractor(self, filter_by)[1] if filter_by else None
        self._filter_bytes = self._bounded("filter_bytes", MIN_BYTES if filter_by else 0, 0, MAX_BYTES)
        if 0 < self._filter_bytes < MIN_BYTES:
            raise UsageError(f"filter_bytes must be 0 or {MIN_BYTES} to {MAX_BYTES} (got {self._filter_bytes})")
        self._compression = compression_of(self.options.get("compression", "none"))
        self._chunk_version = self._bounded("chunk_version", self.as_dialect("chunk_version", VERSION, 0), 0, 1)
        self._epoch = self._bounded("epoch", 1, 0, 2**63 - 1)
        self._chunk_max_bytes = self._bounded("chunk_max_bytes", CHUNK_MAX_BYTES, 1, 2**30)
        self._chunk_max_records = self._bounded("chunk_max_records", CHUNK_MAX_RECORDS, 1, 2**16 - 1)
        self._sub_batch_records = self._bounded("sub_batch_records", SUB_BATCH_RECORDS, 1, 2**16 - 1)
        self._has_sub_batches = self._compression != Compression.NONE or "sub_batch_records" in self.options
        self._max_uncompressed_bytes = self._bounded(
            "max_uncompressed_bytes", MAX_UNCOMPRESSED_BYTES, 0, MAX_BATCH_BYTES
        )

    @property
    def dialect(self) -> str:
        return PROGRAM if self._chunk_version == 0 else DOCUMENT

    def _bounded(self, name: str, default: int, least: int, most: int) -> int:
        value = int(self.options.get(name, default))
        if not least <= value <= most:
            raise UsageError(f"{name} must be {least} to {most} (got {value})")
        return value

    # --- names

    def classify(self, path: str) -> FileName | None:
        match = _NAME.fullmatch(path)
        if match is None or int(match[1]) >= 2**63:
            return None
        return FileName(_ROLES[match[2]], int(match[1]))

    def path_of(self, role: Role, base: int | None = None) -> str:
        return f"{base:020}.{'segment' if role == Role.SEGMENT else 'index'}"

    # --- reading

    def open_segment(self, buf: Buffer, base: int | None) -> OsirisSegment:
        """An empty file, or one of zeros only, is a segment without a header yet: it opens without chunks at position
        0, and a writer writes `segment_header` first."""
        view = memoryview(buf)
        if kernel.is_zero(view, 0, len(view)):
            return OsirisSegment(view, base or 0, 0, self._max_uncompressed_bytes)
        _check_header(view, LOG_HEADER, "segment")
        if base is None:
            base = 0
            if len(view) >= FILE_HEADER.size + HEADER.size:
                at = FILE_HEADER.size + HEADER.at("chunk_id")
                base = min(int.from_bytes(view[at : at + 8], "big"), 2**63 - 1)
        return OsirisSegment(view, base, FILE_HEADER.size, self._max_uncompressed_bytes)

    def open_index(self, role: Role, buf: Buffer, base: int) -> Index | None:
        view = memoryview(buf)
        if bytes(view[: FILE_HEADER.size]) != INDEX_HEADER:
            return None
        view, unread = bounded(view, COPIED_INDEX_BYTES)
        rows, rest = table(view, FILE_HEADER.size, _ENTRY_DTYPE)
        if len(rows) and rows["position"][-1] == 0:
            # Preallocated or lost zeros: no chunk lies at 0.
            written = np.flatnonzero(rows["position"])
            rows = rows[: int(written[-1]) + 1 if len(written) else 0]
        times = times_us(rows["timestamp"])
        ordered = not (times[1:] < times[:-1]).any()
        return Index(
            rows["chunk_id"],
            rows["position"],
            timestamps_us=times if ordered else None,
            repeats={name: rows[name] for name in ("timestamp", "epoch", "chunk_type")},
            start=FILE_HEADER.size,
            entry_bytes=ENTRY.size,
            rest_bytes=rest,
            unread_bytes=unread,
            dense=True,
        )

    def ends_early(self, index: Index, segment: Segment) -> bool:
        return lacks_a_row(index, segment)

    def check_file(self, role: Role, buf: Buffer, name: FileName) -> Iterator[Problem]:
        view = memoryview(buf)
        if bytes(view[: FILE_HEADER.size]) != INDEX_HEADER:
            yield Problem("bad-index", Severity.WARNING, "the file header is not that of an Osiris index", 0)
            return
        view, unread = bounded(view, COPIED_INDEX_BYTES)  # `verify` says that the rest is not read
        rows, rest = table(view, FILE_HEADER.size, _ENTRY_DTYPE)
        if rest and not unread:
            yield Problem("bad-index", Severity.WARNING, "the last entry is cut short", len(view) - rest)
        chunk_ids, positions = rows["chunk_id"].astype(np.uint64), rows["position"].astype(np.int64)
        # Two chunks have the same id where the first holds nothing but empty sub-batches.
        wrong = np.flatnonzero((chunk_ids[1:] < chunk_ids[:-1]) | (positions[1:] <= positions[:-1]))
        if len(wrong):
            at = FILE_HEADER.size + (int(wrong[0]) + 1) * ENTRY.size
            yield Problem("bad-index", Severity.WARNING, "the entries are not in order", at)

    def describe(self, files: Mapping[str, Buffer]) -> dict[str, Any]:
        """The tracking state, which only the last segment holds, and its dialect and epoch."""
        known = {path: self.classify(path) for path in files}
        segments = {
            name.base: path
            for path, name in known.items()
            if name is not None and name.role == Role.SEGMENT and name.base is not None
        }
        if not segments:
            return {}
        base = max(segments)
        try:
            segment = self.open_segment(files[segments[base]], base)
            tracking = segment.tracking().as_text()
            return {"tracking": tracking, "dialect": segment.dialect, "epoch": segment.last_epoch()}
        except DuramenError as error:
            return {"tracking": error.message}

    def dump(
        self, role: Role, buf: Buffer, base: int | None = None, begin: int = 0, index: Index | None = None
    ) -> Iterator[Block]:
        view = memoryview(buf)
        if kernel.is_zero(view, 0, len(view)):
            yield Block("zeros", 0, [Field("zeros", 0, len(view), f"{len(view)} zero bytes", "no header yet")])
            return
        header = LOG_HEADER if role == Role.SEGMENT else INDEX_HEADER
        problem = None
        try:
            _check_header(view, header, role.value)
        except CorruptionError as error:
            problem = error.message
        yield Block("header", 0, list(FILE_HEADER.fields(view, 0)), problem)
        if role == Role.INDEX:
            yield from dump_index(view, FILE_HEADER.size, ENTRY, begin)
        elif problem is None:
            yield from dump_chunks(self.open_segment(view, base), begin, index)
        elif len(view) > FILE_HEADER.size:
            yield from dump_chunks(OsirisSegment(view, 0, FILE_HEADER.size, self._max_uncompressed_bytes), begin, index)

    # --- writing

    def segment_header(self, base: int, created_ms: int) -> bytes:
        return LOG_HEADER

    def index_builder(self, base: int, created_ms: int) -> IndexBuilder:
        return ChunkIndex()

    def no_columns(self) -> ChunkColumns:
        return ChunkColumns.empty(0)

    def continuing(self, segment: Segment) -> Osiris:
        """In the chunk version of the segment, because RabbitMQ reads only its own; the epoch never decreases."""
        assert isinstance(segment, OsirisSegment)
        if segment.chunk_version not in (0, 1):
            return self
        epoch = min(max(self._epoch, segment.last_epoch()), 2**63 - 1)
        found: dict[str, Any] = {"chunk_version": segment.chunk_version, "epoch": epoch}
        if "dialect" in self.options:
            found["dialect"] = DOCUMENT if segment.chunk_version else PROGRAM
        return Osiris(**{**self.options, **found})

    def chunks(self, segment: Segment, rows: Rows, path: str = "") -> Iterator[StoredChunk]:
        assert isinstance(segment, OsirisSegment)
        return stored_chunks(segment, rows, path)

    def sequences(
        self, segments: Iterable[Segment], read: Callable[[str], Buffer | None]
    ) -> dict[bytes, tuple[int, int]]:
        last = next(iter(segments), None)
        return last.tracking().sequences if isinstance(last, OsirisSegment) else {}

    def with_sequences(self, encoded: Encoded, runs: Sequence[SequenceRun]) -> Encoded:
        """The chunks with trailers that hold the last sequence of every producer."""
        return with_trailers(encoded, last_sequences(encoded, runs))

    def mended_sequences(self, segment: Segment, runs: Sequence[SequenceRun]) -> Iterator[tuple[int, bytes]]:
        assert isinstance(segment, OsirisSegment)
        return mended(segment, runs)

    def consumer_positions(self, segment: Segment) -> ConsumerPositions:
        assert isinstance(segment, OsirisSegment)
        tracking = segment.tracking()
        return ConsumerPositions(tracking.offsets, tracking.timestamps)

    def encode_positions(self, positions: ConsumerPositions, cursor: ScanPosition, now_us: int) -> Encoded:
        """A tracking delta, which RabbitMQ writes when no user chunk can carry it. It occupies one offset."""
        base = cursor.previous_offset + 1
        chunk = delta_chunk(
            delta_blocks(offsets=positions.offsets, timestamps=positions.timestamps_ms), chunk_id=base,
            timestamp=now_us // 1000, epoch=self._epoch, version=self._chunk_version,
        )  # fmt: skip
        return scanned_at(encode_chunk(chunk), cursor)

    def begin_segment(
        self, base: int, created_ms: int, previous: Segment | None, first: Segment | None = None
    ) -> Encoded:
        """A segment starts with a snapshot of the tracking state, if any, because the last segment must hold all of it.
        Like RabbitMQ's, the snapshot omits positions before the log and all but the 255 youngest producers. It comes
        from the chunks of the previous segment, so that it holds no sequence whose record was not written."""
        data = LOG_HEADER
        state = previous.tracking() if isinstance(previous, OsirisSegment) else Tracking()
        if state:
            begins = _begins(first)
            state = state.pruned(*begins)
            version = self._chunk_version
            snapshot = snapshot_chunk(state, chunk_id=base, timestamp=created_ms, epoch=self._epoch, version=version)
            data += encode_chunk(snapshot)
        segment = self.open_segment(data, base)
        return Encoded(memoryview(data), segment.scan(segment.start))

    def encode(self, batch: pa.RecordBatch, cursor: ScanPosition, default_us: int = 0) -> Encoded:
        """The records as chunks. A chunk ends at a missing offset, where the time (or ``chunk_id``, if the batch has
        it) changes, and at ``chunk_max_records`` or ``chunk_max_bytes``. Fillers occupy missing offsets, also between
        ``cursor`` and the first record."""
        self.refuse_unsupported(batch)
        offsets = offsets_to(batch, cursor.previous_offset + 1)
        timestamps = timestamps_to(batch, "ms", default_us)
        values, value_offsets = binary_buffers(batch.column("value"))
        breaks = (np.diff(offsets) != 1) | (np.diff(timestamps) != 0)
        if "chunk_id" in batch.schema.names:
            breaks |= np.diff(batch.column("chunk_id").fill_null(-1).to_numpy(zero_copy_only=False)) != 0
        size = int(value_offsets[-1]) - int(value_offsets[0])
        encoded = self._encode(cursor, offsets, timestamps, size, values, value_offsets, breaks)
        if self._filter_bytes:
            encoded = with_filters(encoded, self._values_to_filter(batch), self._filter_bytes)
        return with_fillers(encoded, cursor.previous_offset, self._chunk_version)

    def _values_to_filter(self, batch: pa.RecordBatch) -> list[bytes | None]:
        """The filter value of each record. Without it a chunk would have no filter, and consumers would skip it."""
        if self._filter_values is None:
            raise UsageError(
                f"chunks get Bloom filters (filter_bytes={self._filter_bytes}), but filter_by is missing",
                hint="set filter_by to a function of the value or to 'json:PATH', or set filter_bytes=0",
            )  # fmt: skip
        found: list[bytes | None] = self._filter_values(batch).to_pylist()
        if str(self.options["filter_by"]).startswith("json:"):  # text itself, not its JSON form
            return [json.loads(one).encode() if one is not None and one.startswith(b'"') else one for one in found]
        return found

    def fill_gap(self, cursor: ScanPosition, until: int, timestamp_us: int) -> Encoded:
        at_ms = timestamp_us // 1000
        data = b"".join(
            filler_chunks(
                cursor.previous_offset + 1, until, timestamp=at_ms, epoch=self._epoch, version=self._chunk_version
            )
        )
        return scanned_at(data, cursor)

    def tracking_rows(self, segment: Segment, rows: Rows) -> npt.NDArray[np.bool_]:
        """Excludes fillers: the gap between records shows where they are."""
        chunks = chunks_of(rows)
        return ((chunks.tracking != 0) | (chunks.chunk_type != ChunkType.USER)) & ~chunks.fillers

    def recode(self, segment: Segment, rows: Rows, cursor: ScanPosition) -> Encoded:
        assert isinstance(segment, OsirisSegment)
        return recode_chunk(self, segment, rows, cursor, self._chunk_version)

    def can_move(self, records: EncodedRecords) -> bool:
        return isinstance(records.fmt, Osiris) and records.fmt._chunk_version == self._chunk_version

    def open_encoded(self, data: memoryview) -> OsirisSegment:
        return OsirisSegment(data, 0, 0, self._max_uncompressed_bytes)

    def move(self, records: EncodedRecords, cursor: ScanPosition, default_us: int) -> Encoded:
        return move_chunks(records, cursor, self._epoch, default_us)

    @property
    def record_shape(self) -> RecordShape | None:
        if self._has_sub_batches or self._filter_bytes:
            return None
        return RecordShape(RecordKind.CHUNK, chunk_version=self._chunk_version, epoch=self._epoch, time_unit_us=1000)

    def encode_values(self, values: Values, cursor: ScanPosition, default_us: int = 0) -> Encoded:
        if self._has_sub_batches or self._filter_bytes:
            return self.encode(values.batch(), cursor, default_us)
        first, count = cursor.previous_offset + 1, values.num_rows
        offsets, timestamps = np.arange(first, first + count), np.empty(count, np.int64)
        timestamps.fill(default_us // 1000)
        return self._encode(cursor, offsets, timestamps, values.nbytes, values.values, values.offsets)

    def _encode(
        self,
        cursor: ScanPosition,
        offsets: Int64s,
        timestamps: Int64s,
        values_bytes: int,
        values: Any,
        value_offsets: Any = None,
        breaks: Any = None,
    ) -> Encoded:
        count = len(offsets)
        if not count:
            end = ScanEnd(0, cursor.position, int(Stop.END), cursor.previous_offset)
            return Encoded(memoryview(b""), Rows(ChunkColumns.empty(0), 0, end))
        starts = np.empty(count, np.int64)
        between = None if breaks is None else breaks.view(np.uint8)
        found = kernel.split_chunks(
            starts, self._chunk_max_bytes, self._chunk_max_records, values, value_offsets, between
        )
        starts = starts[:found]
        chunks = ChunkColumns.empty(found)
        chunks.chunk_id[:] = offsets[starts]
        chunks.timestamp[:] = timestamps[starts]
        chunks.epoch[:] = self._epoch
        chunks.records[:-1] = starts[1:] - starts[:-1]
        chunks.records[-1] = count - int(starts[-1])
        if not self._has_sub_batches:
            data = allocate(values_bytes + count * SIMPLE.size + found * HEADER.size, cursor.position)
            kernel.encode_chunks(data, self._chunk_version, chunks, values, value_offsets, cursor.position)
        else:
            data = memoryview(self._sub_batched(chunks, values, value_offsets, cursor.position))
        end = ScanEnd(found, cursor.position + len(data), int(Stop.END), int(offsets[-1]))
        return Encoded(data, Rows(chunks, count, end))

    def _sub_batched(self, chunks: ChunkColumns, values: Any, value_offsets: Any, position: int) -> bytearray:
        """Chunks of sub-batches; fills in the columns that depend on the compressed size."""
        ends = value_offsets.astype(np.int64) + np.arange(len(value_offsets)) * SIMPLE.size
        out = bytearray()
        row = 0
        for number in range(len(chunks)):
            last = row + int(chunks.records[number])
            chunks.inflated_bytes[number] = 0 if self._compression == Compression.NONE else ends[last] - ends[row]
            parts: list[bytes] = []
            while row < last:
                stop = min(row + self._sub_batch_records, last)
                parts += self._sub_batch(values, value_offsets[row : stop + 1], int(ends[stop] - ends[row]))
                row = stop
            data = b"".join(parts)
            count = len(parts) // 2
            header = HEADER.pack(
                magic_version=MAGIC << 4 | self._chunk_version,
                num_entries=count,
                num_records=int(chunks.records[number]),
                timestamp=int(chunks.timestamp[number]),
                epoch=self._epoch,
                chunk_id=int(chunks.chunk_id[number]),
                crc=kernel.crc32(data),
                data_length=len(data),
            )
            chunks.position[number] = position + len(out)
            chunks.data_position[number] = position + len(out) + HEADER.size
            chunks.data_length[number] = len(data)
            chunks.entries[number] = chunks.sub_batches[number] = count
            for column in (chunks.trailer_length, chunks.chunk_type, chunks.tracking):
                column[number] = 0
            out += header + data
        return out

    def _sub_batch(self, values: Any, value_offsets: Any, plain_bytes: int) -> tuple[bytes, bytes]:
        """The header and the body of one sub-batch."""
        count = len(value_offsets) - 1
        plain = allocate(plain_bytes)
        kernel.encode_entries(plain, values, value_offsets, np.empty(count, np.int64))
        body = deflate(plain, self._compression)
        kind = 0x80 | self._compression << 4
        head = SUB_BATCH.pack(type=kind, num_records=count, uncompressed_length=plain_bytes, length=len(body))
        return head, body


def _begins(first: Segment | None) -> tuple[int, int]:
    """The offset and time of the first chunk of a log; the smallest possible ones if unknown."""
    if isinstance(first, OsirisSegment):
        chunks = chunks_of(first.scan(first.start, max_records=1, verify=False))
        if len(chunks):
            return int(chunks.chunk_id[0]), int(chunks.timestamp[0])
    return 0, -(2**63)


def _check_header(view: memoryview, header: bytes, what: str) -> None:
    found = bytes(view[: len(header)])
    if found == header:
        return
    if header.startswith(found):
        raise IncompleteHeaderError(
            f"the {what}'s file header is torn: {len(found)} bytes of {len(header)}", position=0
        )
    magic_bytes = FILE_HEADER.at("version")
    if not found.startswith(header[:magic_bytes]):
        raise CorruptionError(f"the {what} does not start with {header[:magic_bytes].decode()}", position=0)
    if len(found) < len(header):
        raise CorruptionError(f"the {what}'s file header is torn and damaged", position=magic_bytes)
    version = int.from_bytes(found[magic_bytes:], "big")
    raise UnknownVersionError(f"the {what} has version {version}; only {VERSION} is known", position=magic_bytes)
