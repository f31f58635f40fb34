"""durable-log v1: records with a 24-byte little-endian header, a dense index, segments named by their base offset.

::

    segment_{base:020}.log         records, nothing between them
      0  magic        u32  0x444C4F47, on disk 47 4F 4C 44 ("GOLD")
      4  version      u8   1
      5  flags        u8   0
      6  reserved     u16  0
      8  offset       u64
     16  payload_len  u32
     20  checksum     u32  CRC-32 (IEEE) of the payload
     24  payload

    segment_{base:020}.idx         one entry per record, slot = offset - base
      0  offset       u64
      8  position     u64

Refuses a non-zero flag or reserved byte, and an offset that repeats or goes backwards. Carries neither time, key
nor headers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import ClassVar

import pyarrow as pa

from duramen.formats.arrow import MAX_BATCH_BYTES
from duramen.formats.format import SEGMENT_OPTIONS, Capabilities, FileName
from duramen.formats.frame import Dialect, EveryRecordIndex, FrameFormat, FrameSegment, dump_frames, encode_frames
from duramen.formats.index import INDEX_BYTES, Index, IndexBuilder, bounded, dump_index, lacks_a_row, table
from duramen.formats.segment import Encoded, Role, ScanPosition, Segment
from duramen.formats.struct import Block, Buffer, Struct
from duramen.kernel import Checksum, FrameLayout, Stop

MAGIC = 0x444C4F47
VERSION = 1

HEADER = Struct("<", magic="I", version="B", flags="B", reserved="H", offset="Q", payload_len="I", checksum="I")
ENTRY = Struct("<", offset="Q", position="Q")

DIALECT = Dialect(
    "v1",
    FrameLayout(
        header_bytes=HEADER.size,
        big_endian=False,
        offset_at=HEADER.at("offset"),
        length_at=HEADER.at("payload_len"),
        consts=(
            HEADER.const("magic", MAGIC, Stop.BAD_MAGIC),
            HEADER.const("version", VERSION, Stop.BAD_VERSION),
            HEADER.const("flags", 0, Stop.BAD_FIELD),
            HEADER.const("reserved", 0, Stop.BAD_FIELD),
        ),
        checksum=Checksum.CRC32,
        checksum_at=HEADER.at("checksum"),
        covered_from=HEADER.size,
    ),
    HEADER,
    timestamp_unit=None,
)

_NAME = re.compile(r"segment_([0-9]{20})\.(log|idx)")
_ROLES = {"log": Role.SEGMENT, "idx": Role.INDEX}


class DurableLog(FrameFormat):
    writes = DIALECT
    name = "durable-log"
    capabilities = Capabilities(
        timestamps=None,
        key=False,
        headers=False,
        explicit_offsets=True,
        compaction=True,
        segments=True,
        index=True,
        checksum="CRC-32 over the payload",
        record_checksum=True,
        max_value_bytes=min(DIALECT.layout.max_payload_bytes, MAX_BATCH_BYTES),
        cuts_zeros=True,
    )
    magics: ClassVar[Mapping[bytes, Role]] = {MAGIC.to_bytes(HEADER.width("magic"), "little"): Role.SEGMENT}
    default_segment_bytes = 64 << 20
    option_names: ClassVar[Mapping[str, type]] = SEGMENT_OPTIONS

    def classify(self, path: str) -> FileName | None:
        if path == "write.lock":
            return FileName(Role.LOCK)
        match = _NAME.fullmatch(path)
        return FileName(_ROLES[match[2]], int(match[1])) if match else None

    def path_of(self, role: Role, base: int | None = None) -> str:
        if role == Role.LOCK:
            return "write.lock"
        return f"segment_{base:020}.{'log' if role == Role.SEGMENT else 'idx'}"

    def open_segment(self, buf: Buffer, base: int | None) -> FrameSegment:
        view = memoryview(buf)
        if base is None:
            base = HEADER.unpack(view)["offset"] if len(view) >= HEADER.size else 0  # type: ignore[assignment]
        return FrameSegment(view, min(int(base or 0), 2**63 - 1), 0, DIALECT)

    def open_index(self, role: Role, buf: Buffer, base: int) -> Index:
        view, unread = bounded(buf, INDEX_BYTES)
        rows, rest = table(view, 0, [("offset", "<u8"), ("position", "<u8")])
        return Index(rows["offset"], rows["position"], rest_bytes=rest, unread_bytes=unread, dense=True)

    def ends_early(self, index: Index, segment: Segment) -> bool:
        return lacks_a_row(index, segment)

    def dump(
        self, role: Role, buf: Buffer, base: int | None = None, begin: int = 0, index: Index | None = None
    ) -> Iterator[Block]:
        if role == Role.SEGMENT:
            return dump_frames(self.open_segment(buf, base), begin, index)
        return dump_index(buf, 0, ENTRY, begin)

    def encode(self, batch: pa.RecordBatch, cursor: ScanPosition, default_us: int = 0) -> Encoded:
        self.refuse_unsupported(batch)
        return encode_frames(batch, cursor, DIALECT, default_us)

    def index_builder(self, base: int, created_ms: int) -> IndexBuilder:
        return EveryRecordIndex(ENTRY, 1)
