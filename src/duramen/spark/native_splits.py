"""What Spark's JVM must know to read a split itself, through the kernel. `java/native/piece_reader.h` reads it.

A split is handed over only if no more than a scan is needed for it: local files, records that the kernel
finds (`Segment.scan_shape`), damage that fails the read, values as they are stored. The JVM compares what the reader in
Python compares, and where anything differs from the plan, Python reads on: from the record after the last one that was
handed over (`rest_of`). So every verdict and every error text is Python's.
"""

from __future__ import annotations

import base64
import posixpath
import struct
import zlib
from dataclasses import replace
from typing import Any

from duramen.disk import Disk, Look, PosixDisk
from duramen.errors import DuramenError
from duramen.formats import Format, ScanPosition, ScanShape, Segment, make
from duramen.kernel import FrameLayout, crc32c
from duramen.record import MAX_OFFSET
from duramen.sidecar import CONFIG_NAME, SMALL_BYTES, Sealed, Watermark, sidecar_path
from duramen.spark.source.discovery import disk_of
from duramen.spark.source.identity import made_at
from duramen.spark.source.narrowed import MAX_VALUE_BYTES, NarrowedRead
from duramen.spark.source.splits import LogSpec, Piece, Split
from duramen.spark.source.task import APPEND_TIME_FORMATS, PAYLOAD_COLUMNS, PLACE_COLUMNS, TIME_KIND, Wanted

COLUMNS = frozenset({"offset", "timestamp", "key", "value", "headers", *PLACE_COLUMNS, TIME_KIND})
MAX_SLOT_BYTES = 1 << 19
CODECS = frozenset({0, 2, 3, 4})
"""What `Codecs.java` unfolds, in Kafka's numbers; 0: nothing."""
MAX_HEAD_BYTES = 256 << 10
LONG_RECORD_BYTES = 8 << 10
_LOOKED_AT = 16
_NO_LAYOUT = bytes(len(FrameLayout(1, big_endian=False, offset_at=-1, length_at=-1).packed))
_INT64 = 2**63 - 1

Described = dict[str, Any]


class NativeSplits:
    """Describes the splits of one read."""

    def __init__(self, read: NarrowedRead) -> None:
        self._read = read
        self._wanted = read.in_time()
        self._disk = disk_of(read.path)[0]
        self._names = read.schema.names if not read.narrowed.aggregates else []
        if read.narrowed.columns == () and not read.narrowed.aggregates:
            self._names = []
        self._jumps = not self._wanted.verify and PAYLOAD_COLUMNS.isdisjoint(self._names)
        self._codecs: dict[tuple[str, str], Format] = {}
        self._identities: dict[str, list[Any] | None] = {}

    def describe(self, split: Split | None) -> Described | None:
        """What the JVM needs for a split; None where Python must read it."""
        wanted = self._wanted
        if wanted.summary or wanted.decoding is not None or wanted.on_damage != "fail":
            return None
        if split is None or not isinstance(self._disk, PosixDisk) or not set(self._names) <= COLUMNS:
            return None
        pieces = []
        for piece in split.pieces:
            described = self._describe_piece(piece, split.logs[piece.log])
            if described is None:
                return None
            pieces.append(described)
        return {
            "columns": self._names, "aggregates": self._read.narrowed.aggregates, "counted": split.counted,
            "pieces": pieces,
        }  # fmt: skip

    def _describe_piece(self, piece: Piece, spec: LogSpec) -> Described | None:
        identity = self._identity_of(spec)
        if identity is None or piece.visible_bytes > MAX_VALUE_BYTES:
            return None
        try:
            segment = self._codec_of(spec).open_segment(
                Look(self._disk, piece.path).data[: piece.end_position], piece.base
            )
        except DuramenError:
            return None  # Python says what is wrong with it
        start = segment.start if piece.start is None else piece.start
        if self._jumps and _has_long_records(segment, start):
            return None
        shape = segment.scan_shape(start)
        if shape is None or shape.record_bytes > MAX_SLOT_BYTES or segment.start.position > MAX_HEAD_BYTES:
            return None
        if shape.codec not in CODECS:
            return None
        packed = pack_piece(piece, segment, shape, self._wanted, self._codec_of(spec))
        if packed is None:
            return None
        topic, partition, _ = spec.place
        return {
            "path": piece.path, "piece": base64.b64encode(packed).decode(), "identity": identity, "topic": topic,
            "partition": partition, "segment": posixpath.basename(piece.path),
        }  # fmt: skip

    def _codec_of(self, spec: LogSpec) -> Format:
        key = spec.root, spec.format
        if key not in self._codecs:
            self._codecs[key] = make(spec.format, **spec.options)
        return self._codecs[key]

    def _identity_of(self, spec: LogSpec) -> list[Any] | None:
        """The file that says which log it is, and its CRC-32; empty without one, None where it changes."""
        if spec.made is None:
            return []
        if spec.root not in self._identities:
            self._identities[spec.root] = _read_identity(self._disk, spec)
        return self._identities[spec.root]


def _has_long_records(segment: Segment, start: ScanPosition) -> bool:
    """Whether the first records are so long that jumping from header to header, as Python does in a mapped file, costs
    less than reading them all."""
    rows = segment.scan(start, max_records=_LOOKED_AT, verify=False)
    return rows.count > 0 and (rows.end.position - start.position) // rows.count >= LONG_RECORD_BYTES


def _read_identity(disk: Disk, spec: LogSpec) -> list[Any] | None:
    path = sidecar_path(spec.root, CONFIG_NAME)
    try:
        content = bytes(Look(disk, path).data)
    except DuramenError:
        return None
    if len(content) > SMALL_BYTES or made_at(disk, spec.root) != spec.made:
        return None
    return [path, len(content), zlib.crc32(content)]


def pack_piece(piece: Piece, segment: Segment, shape: ScanShape, wanted: Wanted, codec: Format) -> bytes | None:
    """A `duramen_piece`; None for one whose end only Python can judge."""
    start = segment.start if piece.start is None else piece.start
    sealed = piece.sealed if wanted.verify else None
    mark = piece.mark if wanted.verify and sealed is None and not codec.capabilities.covers_all else None
    marked = _mark_numbers(mark, piece, segment, start.position)
    if marked is None:
        return None
    times = _time_numbers(wanted)
    if times is None:
        return None
    head = segment.start.position
    shows_gaps = codec.capabilities.lost_segments_show and piece.next_base is not None
    numbers = [
        int(shape.kind), start.position, start.previous_offset, piece.end_position, piece.visible_bytes,
        max(piece.from_offset, segment.first_visible), piece.to_offset,
        MAX_OFFSET + 1 if piece.next_base is None else piece.next_base,
        *times, int(wanted.verify), shape.time_unit_us, int(shape.has_signed_times),
        int(codec.name in APPEND_TIME_FORMATS), int(shows_gaps), head, crc32c(segment.buf[:head]),
        *_sealed_numbers(sealed),
        *marked, shape.key_marker, shape.null_marker, int("headers" in wanted.schema.names), shape.record_bytes,
    ]  # fmt: skip
    numbers = [min(number, _INT64) for number in numbers]
    return struct.pack(f"={len(numbers)}q", *numbers) + (_NO_LAYOUT if shape.layout is None else shape.layout.packed)


def _sealed_numbers(sealed: Sealed | None) -> tuple[int, int, int]:
    return (-1, -1, -1) if sealed is None else (sealed.size_bytes, sealed.crc32c, sealed.crc32)


def _mark_numbers(mark: Watermark | None, piece: Piece, segment: Segment, start: int) -> tuple[int, int, int] | None:
    """The watermark as far as it speaks of this piece; None where it speaks of records before it alone."""
    if mark is None or mark.base != segment.base_offset or mark.durable_position > piece.visible_bytes:
        return -1, -1, -1
    has_digest = mark.has_digest or not segment.record_checksum
    if piece.end_position < piece.visible_bytes or (not has_digest and segment.start.position < start):
        return None
    if not has_digest and mark.durable_position <= segment.start.position:
        return -1, -1, -1
    return mark.durable_position, mark.durable_offset, mark.durable_crc32c if has_digest else -1


def _time_numbers(wanted: Wanted) -> tuple[int, int, int] | None:
    """Whether times are compared, the first and the last; None where no time is early enough."""
    since, until = wanted.from_us, wanted.to_us
    if since is None and until is None:
        return 0, 0, 0
    first, last = -_INT64 - 1 if since is None else since, _INT64 if until is None else until - 1
    return (1, first, last) if last >= -_INT64 and first >= -_INT64 - 1 else None


def rest_of(split: Split, done: int, after: int) -> Split:
    """A split without its first ``done`` pieces, and without the records up to offset ``after`` of the next one."""
    first, *others = split.pieces[done:]
    first = replace(first, from_offset=max(first.from_offset, after + 1))
    return replace(split, pieces=(first, *others))
