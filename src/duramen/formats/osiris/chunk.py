"""One Osiris chunk as an object, and its bytes: for exactness, for tools and for tracking, not for speed.

::

    chunk                              the entries of a user chunk, one after another
      0  magic 0x5, version  2 × u4      simple     0  0, length           u1, u31
      1  chunk_type          u8                     4  body
      2  num_entries         u16         sub-batch  0  1, compression, 0   u1, u3, u4
      4  num_records         u32                    1  num_records         u16
      8  timestamp           i64 (ms)               3  uncompressed_length u32
     16  epoch               u64                    7  length              u32
     24  chunk_id            u64                   11  body, which unfolds to simple entries
     32  crc                 u32
     36  data_length         u32       the entry of a tracking chunk is one simple entry: a list of blocks, see
     40  trailer_length      u32       osiris_tracking, and so is the trailer of a user chunk
     44  filter_size         u8
     45  reserved            3 bytes
     48  filter, entries, trailer

Bodies of sub-batches, the filter and the reserved bytes are kept as they are stored: what was parsed encodes to the
same bytes. Refuses a chunk whose checksum or whose numbers do not fit, and to unfold a sub-batch past its stated
length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import cramjam
import numpy as np

from duramen import kernel
from duramen.errors import CorruptionError, LimitError, UnknownVersionError, UsageError
from duramen.formats.arrow import allocate
from duramen.formats.osiris.tracking import Tracking, TrackingBlock, encode_blocks, parse_blocks
from duramen.formats.struct import Buffer, Struct
from duramen.kernel import ChunkColumns, EntryColumns, Int64s, Stop, UInt32s

HEADER = Struct(
    ">", magic_version="B", chunk_type="B", num_entries="H", num_records="I", timestamp="q", epoch="Q",
    chunk_id="Q", crc="I", data_length="I", trailer_length="I", filter_size="B", reserved="3s",
)  # fmt: skip
SIMPLE = Struct(">", length="I")
SUB_BATCH = Struct(">", type="B", num_records="H", uncompressed_length="I", length="I")

MAGIC = 5
MAX_UNCOMPRESSED_BYTES = 128 << 20


class ChunkType(IntEnum):
    USER = 0
    TRACKING_DELTA = 1
    TRACKING_SNAPSHOT = 2


class Compression(IntEnum):
    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4
    USER_DEFINED = 7


_CODECS: dict[int, Any] = {
    Compression.GZIP: cramjam.gzip,
    Compression.SNAPPY: cramjam.snappy,
    Compression.LZ4: cramjam.lz4,
    Compression.ZSTD: cramjam.zstd,
}


def compression_of(name: str) -> Compression:
    """The compression that an option names; the user-defined one cannot be written."""
    try:
        compression = Compression[name.upper()]
    except KeyError:
        compression = Compression.USER_DEFINED
    if compression == Compression.USER_DEFINED:
        known = ", ".join(c.name.lower() for c in Compression if c != Compression.USER_DEFINED)
        raise UsageError(f"compression must be one of {known} (got {name!r})")
    return compression


def deflate(data: Any, compression: Compression) -> bytes:
    """``data`` compressed: the body of a sub-batch."""
    if compression == Compression.NONE:
        return bytes(data)
    if compression == Compression.LZ4:
        return _lz4_frame(data)
    return bytes(_CODECS[compression].compress(data))


_LZ4_HEADER = bytes.fromhex("04224d18604082")
"""Magic, independent blocks of 64 KiB at most without checksums, and the header's own checksum."""
_LZ4_BLOCK_BYTES = 64 << 10
_LZ4_STORED = 1 << 31


def _lz4_frame(data: Any) -> bytes:
    """An LZ4 frame of independent blocks: RabbitMQ's Java client reads no other, and the library makes linked ones."""
    plain = memoryview(data).cast("B")
    parts = [_LZ4_HEADER]
    for at in range(0, len(plain), _LZ4_BLOCK_BYTES):
        block = plain[at : at + _LZ4_BLOCK_BYTES]
        packed = bytes(cramjam.lz4.compress_block(block, store_size=False))
        if len(packed) < len(block):
            parts += [len(packed).to_bytes(4, "little"), packed]
        else:
            parts += [(len(block) | _LZ4_STORED).to_bytes(4, "little"), bytes(block)]
    return b"".join([*parts, bytes(4)])


def inflate_into(body: Buffer, compression: int, out: Any, *, position: int, offset: int | None = None) -> None:
    """Unfold a sub-batch into ``out``, which has its stated length: not a byte more is written, nor one less.

    ``position`` and ``offset`` are where it lies, for the error."""
    codec = _CODECS.get(compression)
    if codec is None:
        name = "user-defined" if compression == Compression.USER_DEFINED else "unknown"
        raise CorruptionError(
            f"the sub-batch has compression {compression} ({name}), which cannot be read",
            position=position, offset=offset, hint="only the program that wrote it can",
        )  # fmt: skip
    try:
        length = codec.decompress_into(body, out)
    except cramjam.DecompressionError as error:
        message = f"the {Compression(compression).name.lower()} sub-batch cannot be unfolded: {error}"
        raise CorruptionError(message, position=position, offset=offset) from error
    if length != len(out):
        message = f"the sub-batch unfolds to {length} bytes and not to the {len(out)} that it states"
        raise CorruptionError(message, position=position, offset=offset)


def check_claim(stated_bytes: int, max_bytes: int, *, position: int, offset: int | None = None) -> None:
    """Refuse a stated length over the bound, before anything is allocated for it."""
    if stated_bytes > max_bytes:
        raise LimitError(
            f"the sub-batches of a chunk claim to unfold to {stated_bytes} bytes, more than {max_bytes}",
            position=position, offset=offset, hint="max_uncompressed_bytes sets the bound",
        )  # fmt: skip


def find_records(
    buf: Any, start: int, end: int, positions: Int64s, lengths: UInt32s, *, position: int, offset: int | None = None
) -> None:
    """Where the records of an unfolded sub-batch lie; exactly as many as there are rows must fill it."""
    found = kernel.scan_prefixed(buf, start, end, positions, lengths)
    if found != len(positions):
        message = f"the sub-batch does not hold the {len(positions)} records that it states"
        if found < 0 and -1 - found < len(positions):
            message += f": record {-1 - found} does not fit"
        raise CorruptionError(message, position=position, offset=offset)


@dataclass(frozen=True)
class SimpleEntry:
    """One record."""

    body: bytes

    num_records = 1

    def encode(self) -> bytes:
        if len(self.body) >= 2**31:
            raise UsageError(f"a record has at most {2**31 - 1} bytes, not {len(self.body)}")
        return SIMPLE.pack(length=len(self.body)) + self.body


@dataclass(frozen=True)
class SubBatch:
    """Records that were sent together, compressed or not; ``body`` as stored.

    >>> SubBatch.of([b"one", b"two"], Compression.GZIP).records()
    [b'one', b'two']
    """

    compression: int
    num_records: int
    uncompressed_length: int
    body: bytes
    reserved: int = 0
    """The low four bits of the first byte."""

    @classmethod
    def of(cls, values: Sequence[bytes], compression: Compression = Compression.NONE) -> SubBatch:
        plain = b"".join(SimpleEntry(value).encode() for value in values)
        return cls(compression, len(values), len(plain), deflate(plain, compression))

    def records(self, max_uncompressed_bytes: int = MAX_UNCOMPRESSED_BYTES) -> list[bytes]:
        """The records inside. Raises `CorruptionError` or `LimitError` where they cannot be had."""
        plain: Any = self.body
        if self.compression != Compression.NONE:
            check_claim(self.uncompressed_length, max_uncompressed_bytes, position=0)
            plain = allocate(self.uncompressed_length)
            inflate_into(self.body, self.compression, plain, position=0)
        if self.num_records * SIMPLE.size > len(plain):
            raise CorruptionError(f"{len(plain)} bytes cannot hold {self.num_records} records", position=0)
        positions, lengths = np.empty(self.num_records, np.int64), np.empty(self.num_records, np.uint32)
        find_records(plain, 0, len(plain), positions, lengths, position=0)
        view = memoryview(plain)
        return [bytes(view[p : p + n]) for p, n in zip(positions.tolist(), lengths.tolist(), strict=True)]

    def encode(self) -> bytes:
        limits = (
            (self.compression, 2**3), (self.reserved, 2**4), (self.num_records, 2**16),
            (self.uncompressed_length, 2**32), (len(self.body), 2**32),
        )  # fmt: skip
        if any(not 0 <= number < limit for number, limit in limits):
            raise UsageError("a number of the sub-batch does not fit into its field")
        first = 0x80 | self.compression << 4 | self.reserved
        head = SUB_BATCH.pack(
            type=first, num_records=self.num_records, uncompressed_length=self.uncompressed_length,
            length=len(self.body),
        )  # fmt: skip
        return head + self.body


@dataclass(frozen=True)
class Chunk:
    """The unit of writing, replication and checksums. A user chunk has ``entries`` and perhaps a ``trailer``; a
    tracking chunk has ``blocks`` and takes up one offset. A tracking delta without blocks is a filler: it takes up
    ``span`` offsets, those of records that are missing.

    >>> encode_chunk(Chunk(0, 0, 1, entries=(SimpleEntry(b"a"),))).hex(" ")[:11]
    '51 00 00 01'
    """

    chunk_id: int
    timestamp: int
    epoch: int
    entries: tuple[SimpleEntry | SubBatch, ...] = ()
    blocks: tuple[TrackingBlock, ...] = ()
    trailer: tuple[TrackingBlock, ...] = ()
    chunk_type: ChunkType = ChunkType.USER
    version: int = 1
    filter: bytes = b""
    reserved: bytes = bytes(3)
    span: int = 1

    @property
    def num_entries(self) -> int:
        return len(self.entries) if self.chunk_type == ChunkType.USER else 1

    @property
    def num_records(self) -> int:
        return sum(entry.num_records for entry in self.entries) if self.chunk_type == ChunkType.USER else self.span


def encode_chunk(chunk: Chunk) -> bytes:
    """The bytes of a chunk, its checksum computed."""
    is_user = chunk.chunk_type == ChunkType.USER
    if (is_user and (chunk.blocks or not chunk.entries)) or (not is_user and (chunk.entries or chunk.trailer)):
        raise UsageError("a user chunk has entries and no blocks, a tracking chunk has neither entries nor a trailer")
    is_filler = chunk.chunk_type == ChunkType.TRACKING_DELTA and not chunk.blocks
    if chunk.span != 1 and not (is_filler and chunk.span > 1):
        raise UsageError(f"only a filler takes up {chunk.span} offsets: a tracking delta without blocks")
    entries = chunk.entries
    if not is_user:
        snapshot = chunk.chunk_type == ChunkType.TRACKING_SNAPSHOT
        entries = (SimpleEntry(encode_blocks(chunk.blocks, snapshot=snapshot)),)
    data = b"".join(entry.encode() for entry in entries)
    trailer = encode_blocks(chunk.trailer)
    limits = (
        (chunk.version, 2), (len(chunk.filter), 2**8), (chunk.num_entries, 2**16), (chunk.num_records, 2**32),
        (chunk.epoch, 2**64), (chunk.chunk_id, 2**63), (len(data), 2**32), (len(trailer), 2**32),
    )  # fmt: skip
    if any(not 0 <= number < limit for number, limit in limits) or not -(2**63) <= chunk.timestamp < 2**63:
        raise UsageError("a number of the chunk does not fit into its field", offset=chunk.chunk_id)
    if len(chunk.reserved) != HEADER.width("reserved"):
        raise UsageError("a chunk has exactly three reserved bytes", offset=chunk.chunk_id)
    header = HEADER.pack(
        magic_version=MAGIC << 4 | chunk.version,
        chunk_type=chunk.chunk_type,
        num_entries=chunk.num_entries,
        num_records=chunk.num_records,
        timestamp=chunk.timestamp,
        epoch=chunk.epoch,
        chunk_id=chunk.chunk_id,
        crc=kernel.crc32(data),
        data_length=len(data),
        trailer_length=len(trailer),
        filter_size=len(chunk.filter),
        reserved=chunk.reserved,
    )
    return header + chunk.filter + data + trailer


def parse_chunk(buf: Buffer, position: int = 0) -> tuple[Chunk, int]:
    """The chunk at ``position``, and where the next one starts.

    Raises `CorruptionError` with the position where the bytes are no whole chunk."""
    view = memoryview(buf)
    if not 0 <= position < len(view):
        raise CorruptionError("no chunk starts here: the data ends before", position=position)
    row = ChunkColumns.empty(1)
    end = kernel.scan_chunks(view, position, len(view), row)
    if end.count != 1:
        kind = UnknownVersionError if end.stop == Stop.BAD_VERSION else CorruptionError
        raise kind(f"no whole chunk is here: {Stop(end.stop).meaning}", position=position)
    head = HEADER.unpack(view, position)
    chunk_type = ChunkType(int(row.chunk_type[0]))
    data_position = int(row.data_position[0])
    data_end = data_position + int(row.data_length[0])
    entries: tuple[SimpleEntry | SubBatch, ...] = ()
    blocks: tuple[TrackingBlock, ...] = ()
    if chunk_type == ChunkType.USER:
        entries = _parse_entries(view, row)
    else:
        body = data_position + SIMPLE.size
        is_snapshot = chunk_type == ChunkType.TRACKING_SNAPSHOT
        blocks = parse_blocks(view[body:data_end], snapshot=is_snapshot, position=body)
    chunk = Chunk(
        int(row.chunk_id[0]), int(row.timestamp[0]), int(row.epoch[0]) % 2**64, entries, blocks,
        parse_blocks(view[data_end : end.position], position=data_end), chunk_type, view[position] & 15,
        bytes(view[position + HEADER.size : data_position]), _as_bytes(head["reserved"]),
        1 if chunk_type == ChunkType.USER else int(row.records[0]),
    )  # fmt: skip
    return chunk, end.position


def _as_bytes(value: int | bytes) -> bytes:
    assert isinstance(value, bytes)
    return value


def _parse_entries(view: memoryview, row: ChunkColumns) -> tuple[SimpleEntry | SubBatch, ...]:
    columns = EntryColumns.empty(int(row.entries[0]))
    kernel.scan_entries(view, row, columns)
    entries: list[SimpleEntry | SubBatch] = []
    for start, length, first, records, uncompressed_length in zip(
        columns.value_position.tolist(), columns.value_length.tolist(), columns.sub_batch.tolist(),
        columns.records.tolist(), columns.uncompressed_length.tolist(), strict=True,
    ):  # fmt: skip
        body = bytes(view[start : start + length])
        if first:
            entries.append(SubBatch(first >> 4 & 7, records, uncompressed_length, body, first & 15))
        else:
            entries.append(SimpleEntry(body))
    return tuple(entries)


def snapshot_chunk(tracking: Tracking, *, chunk_id: int, timestamp: int, epoch: int, version: int = 1) -> Chunk:
    """The chunk that a new segment starts with where there is tracking: the whole state."""
    return Chunk(
        chunk_id, timestamp, epoch, blocks=tracking.snapshot_blocks(), chunk_type=ChunkType.TRACKING_SNAPSHOT,
        version=version,
    )  # fmt: skip


def delta_chunk(
    blocks: tuple[TrackingBlock, ...], *, chunk_id: int, timestamp: int, epoch: int, version: int = 1
) -> Chunk:
    """Tracking that is written without a user chunk to carry it."""
    return Chunk(chunk_id, timestamp, epoch, blocks=blocks, chunk_type=ChunkType.TRACKING_DELTA, version=version)
