"""Segments of the family "fixed header, user headers, payload, trailer": durable-log, Keratin, RustLog.

One `FrameSegment` serves all of them; a format supplies its `FrameLayout`, the unit of its timestamps and a codec for
its user headers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from duramen import compute as pc
from duramen import kernel
from duramen.errors import UsageError
from duramen.formats.arrow import (
    Values,
    allocate,
    binary_array,
    binary_buffers,
    gather,
    number_array,
    numbers_of,
    offsets_to,
    places_of,
    timestamps_from,
    timestamps_to,
    with_nulls,
)
from duramen.formats.dump import first_shown, title, unreadable, zeros
from duramen.formats.format import Format
from duramen.formats.index import Index, IndexBuilder, Picked, position_near
from duramen.formats.segment import (
    SCAN_BYTES,
    SCAN_RECORDS,
    SECTOR_BYTES,
    Encoded,
    Role,
    Rows,
    ScanPosition,
    ScanShape,
    Segment,
)
from duramen.formats.struct import Block, Buffer, Field, Struct
from duramen.kernel import (
    Checksum,
    Columns,
    FrameColumns,
    FrameLayout,
    Int64s,
    RecordKind,
    RecordShape,
    ScanEnd,
    Stop,
    UInt32s,
)
from duramen.record import HEADERS, KEY, SCHEMA, Headers, Record, from_us

_UNITS_US = {None: 0, "us": 1, "ms": 1000}

ExtraColumns = Callable[[FrameColumns, str], pa.Array]


class UserHeaders(NamedTuple):
    """Reads key and headers, and whether the value is null, from the user headers of one record, and of a column of
    them. The second argument says whether there is a payload."""

    one: Callable[[bytes, bool], tuple[bytes | None, Headers | None, bool]]
    many: Callable[[pa.BinaryArray, npt.NDArray[np.bool_]], tuple[pa.Array, pa.Array, npt.NDArray[np.bool_]]]
    key_marker: int = -1
    null_marker: int = -1
    """As in `ScanShape`."""


class Dialect(NamedTuple):
    """One variant of a frame format: kernel layout, declared header, unit of timestamps, user headers."""

    name: str
    layout: FrameLayout
    header: Struct
    timestamp_unit: str | None
    trailer: Struct | None = None
    user_headers: UserHeaders | None = None
    extra: ExtraColumns | None = None


class FrameFormat(Format):
    """A format of the family. ``writes`` is the dialect of new records."""

    writes: Dialect
    content_can_fail = False

    @property
    def record_shape(self) -> RecordShape | None:
        unit_us = _UNITS_US[self.writes.timestamp_unit]
        limits = self.capabilities
        return RecordShape(
            RecordKind.FRAME, self.writes.layout, time_unit_us=unit_us, is_ordered=limits.ordered_timestamps,
            has_digest=not limits.covers_all,
        )  # fmt: skip

    def encode_values(self, values: Values, cursor: ScanPosition, default_us: int = 0) -> Encoded:
        return encode_values(values, cursor, self.writes, default_us)


class FrameSegment(Segment):
    has_value_places = True

    def __init__(self, buf: Buffer, base_offset: int, start: int, dialect: Dialect) -> None:
        self.buf = memoryview(buf)
        self.base_offset = base_offset
        self.start = ScanPosition(start, base_offset - 1)
        self.dialect = dialect.name
        self.header_bytes = dialect.layout.header_bytes
        self.trailer_bytes = dialect.layout.trailer_bytes
        versions = [const for const in dialect.layout.consts if const.stop == Stop.BAD_VERSION]
        self.version_at = max((const.position + const.width - 1 for const in versions), default=0)
        self.record_checksum = dialect.layout.checksum != Checksum.NONE
        self._dialect = dialect

    def scan_shape(self, cursor: ScanPosition) -> ScanShape:
        headers = self._dialect.user_headers
        markers = (-1, -1) if headers is None else (headers.key_marker, headers.null_marker)
        return ScanShape(
            RecordKind.FRAME, self._dialect.layout, time_unit_us=_UNITS_US[self._dialect.timestamp_unit],
            key_marker=markers[0], null_marker=markers[1],
        )  # fmt: skip

    def scan(
        self,
        cursor: ScanPosition,
        *,
        max_records: int = SCAN_RECORDS,
        max_bytes: int = SCAN_BYTES,
        verify: bool = True,
        room: Columns | None = None,
        digests: UInt32s | None = None,
        take_values: bool = False,
    ) -> Rows:
        columns = room if isinstance(room, FrameColumns) else FrameColumns.empty(max_records)
        where = (self.buf, cursor.position, len(self.buf), self._dialect.layout, columns, cursor.previous_offset)
        if take_values and digests is None:
            offsets = np.empty(len(columns) + 1, np.int32)
            data = allocate(min(max_bytes, len(self.buf) - cursor.position))
            end = kernel.scan_frames(*where, max_bytes, verify, None, offsets, data)
            if end.count or end.stop != Stop.LIMIT:  # else the first value alone is longer than that
                values = binary_array(offsets[: end.count + 1], data[: int(offsets[end.count])])
                return Rows(columns.head(end.count), end.count, end, values)
        end = kernel.scan_frames(*where, max_bytes, verify, digests)
        return Rows(columns.head(end.count), end.count, end)

    def room(self, records: int = SCAN_RECORDS) -> Columns:
        return FrameColumns.empty(records)

    def decode(self, rows: Rows, columns: Sequence[str]) -> pa.RecordBatch:
        frames = rows.columns
        assert isinstance(frames, FrameColumns)
        headers = self._user_headers(frames, columns)
        nulls = self._null_rows(frames) if "value" in columns else None
        arrays: list[pa.Array] = []
        for name in columns:
            if name == "offset":
                arrays.append(number_array(frames.offset))
            elif name == "timestamp":
                arrays.append(timestamps_from(frames.timestamp, self._dialect.timestamp_unit))
            elif name == "value":
                values = rows.values
                values = gather(self.buf, frames.value_position, frames.value_length) if values is None else values
                arrays.append(values if nulls is None else with_nulls(values, nulls))
            elif name in headers:
                arrays.append(headers[name])
            else:
                assert self._dialect.extra is not None
                arrays.append(self._dialect.extra(frames, name))
        return pa.RecordBatch.from_arrays(arrays, schema=_schema(columns, arrays))

    def value_places(self, rows: Rows) -> pa.StructArray | None:
        frames = rows.columns
        assert isinstance(frames, FrameColumns)
        return places_of(frames.value_position, frames.value_length, self._null_rows(frames))

    def _user_headers(self, frames: FrameColumns, columns: Sequence[str]) -> dict[str, pa.Array]:
        wanted = [name for name in ("key", "headers") if name in columns]
        types = {"key": KEY.type, "headers": HEADERS.type}
        if not wanted:
            return {}
        if self._dialect.user_headers is None or not frames.headers_length.any():
            return {name: pa.nulls(len(frames), types[name]) for name in wanted}
        blocks = gather(self.buf, frames.value_position - frames.headers_length, frames.headers_length)
        arrays = dict(zip(types, self._dialect.user_headers.many(blocks, frames.value_length > 0), strict=False))
        return {name: arrays[name] for name in wanted}

    def _null_rows(self, frames: FrameColumns) -> npt.NDArray[np.bool_] | None:
        """Which values are null; None where no user headers can say so."""
        if self._dialect.user_headers is None:
            return None
        found = (frames.value_length == 0) & (frames.headers_length > 0)
        rows = np.flatnonzero(found)
        if not len(rows):
            return None
        lengths = frames.headers_length[rows]
        blocks = gather(self.buf, frames.value_position[rows] - lengths, lengths)
        found[rows] = self._dialect.user_headers.many(blocks, np.zeros(len(rows), bool))[2]
        return found

    def read(self, cursor: ScanPosition, offset: int) -> Record | Stop:
        hit = kernel.seek_frame(
            self.buf, cursor.position, len(self.buf), self._dialect.layout, offset, cursor.previous_offset
        )
        if hit.stop != Stop.LIMIT or hit.offset != offset:
            return Stop(hit.stop)
        end = hit.value_position + hit.value_length
        key, headers, is_null = None, None, False
        if hit.headers_length and self._dialect.user_headers is not None:
            blob = bytes(self.buf[hit.value_position - hit.headers_length : hit.value_position])
            key, headers, is_null = self._dialect.user_headers.one(blob, hit.value_length > 0)
        unit = self._dialect.timestamp_unit
        us = None if unit is None or hit.timestamp < 0 else hit.timestamp * (1000 if unit == "ms" else 1)
        value = None if is_null else bytes(self.buf[hit.value_position : end])
        return Record(offset, from_us(us), key, value, headers)

    def cursor_at(self, offset: int, position: int) -> ScanPosition | None:
        if not self.start.position <= position < len(self.buf) or offset < 0:
            return None
        columns = FrameColumns.empty(1)
        end = kernel.scan_frames(
            self.buf, position, len(self.buf), self._dialect.layout, columns, offset - 1, verify=False
        )
        if end.count != 1 or int(columns.offset[0]) != offset:
            return None
        return ScanPosition(position, offset - 1)

    def ends_in_doubt(self, rows: Rows) -> bool:
        """An empty payload with checksum 0 proves nothing: a header that no checksum covers may have lost its second
        half, including the length."""
        frames = rows.columns
        if self._dialect.layout.checksum_at < 0 or not rows.count or int(frames.value_length[-1]):  # type: ignore[attr-defined]
            return False
        start = int(frames.position[-1])
        boundary = (start // SECTOR_BYTES + 1) * SECTOR_BYTES
        end = start + self.header_bytes
        return boundary < end and kernel.is_zero(self.buf, boundary, end)

    def ends_unproven(self, rows: Rows) -> bool:
        """An empty payload after a header that the checksum leaves out: zeros over a record look like one."""
        frames = rows.columns
        is_covered = self._dialect.layout.covered_from < self.header_bytes
        return not is_covered and rows.count > 0 and not int(frames.value_length[-1])  # type: ignore[attr-defined]

    def at_offset(self, position: int, offset: int) -> tuple[int, bytes] | None:
        layout = self._dialect.layout
        if layout.checksum != Checksum.NONE and layout.covered_from <= layout.offset_at:
            return None
        return position + layout.offset_at, offset.to_bytes(8, "big" if layout.big_endian else "little")

    def resync(self, cursor: ScanPosition) -> int:
        return kernel.find_frame(
            self.buf, min(cursor.position + 1, len(self.buf)), len(self.buf), self._dialect.layout,
            cursor.previous_offset,
        )  # fmt: skip

    def select(self, rows: Rows, kept: npt.NDArray[np.bool_], cursor: ScanPosition) -> Encoded:
        frames = rows.columns
        assert isinstance(frames, FrameColumns)
        sizes = np.diff(frames.position, append=rows.end.position)[kept]
        starts = frames.position[kept]
        total = int(sizes.sum())
        data = allocate(total, cursor.position)
        kernel.gather(self.buf, starts, sizes.astype(np.uint32), np.empty(len(starts) + 1, np.int32), data)
        moved = cursor.position + np.cumsum(sizes) - sizes
        columns = frames.take(kept)
        columns.value_position += moved - starts
        columns.position = moved
        last = int(columns.offset[-1]) if len(starts) else cursor.previous_offset
        end = ScanEnd(len(starts), cursor.position + total, int(Stop.END), last)
        return Encoded(data, Rows(columns, len(starts), end))


def _schema(columns: Sequence[str], arrays: Sequence[pa.Array]) -> pa.Schema:
    return _schema_of(tuple(columns), tuple(array.type for array in arrays))


@lru_cache(maxsize=64)
def _schema_of(columns: tuple[str, ...], types: tuple[pa.DataType, ...]) -> pa.Schema:
    return pa.schema(
        [
            SCHEMA.field(name) if name in SCHEMA.names else pa.field(name, kind, nullable=False)
            for name, kind in zip(columns, types, strict=True)
        ]
    )


def encode_frames(
    batch: pa.RecordBatch,
    cursor: ScanPosition,
    dialect: Dialect,
    default_us: int = 0,
    *,
    headers: pa.BinaryArray | None = None,
    flags: UInt32s | None = None,
) -> Encoded:
    layout = dialect.layout
    values, value_offsets = binary_buffers(batch.column("value"))
    offsets = offsets_to(batch, cursor.previous_offset + 1)
    header_data, header_offsets = (None, None) if headers is None else binary_buffers(headers)
    timestamps = None
    if dialect.timestamp_unit is not None:
        timestamps = timestamps_to(batch, dialect.timestamp_unit, default_us)
    columns = _columns(offsets, timestamps, flags)
    size = _span(value_offsets) + batch.num_rows * (layout.header_bytes + layout.trailer_bytes)
    if header_offsets is not None:
        size += _span(header_offsets)
    out = allocate(size, cursor.position)
    try:
        kernel.encode_frames(
            out, layout, columns, values, value_offsets, base_position=cursor.position,
            headers=header_data, headers_offsets=header_offsets,
        )  # fmt: skip
    except ValueError:
        _refuse_long(np.diff(value_offsets), layout)
        raise
    return _encoded(out, columns, cursor)


def encode_values(values: Values, cursor: ScanPosition, dialect: Dialect, default_us: int) -> Encoded:
    """Encode values without key, headers and times, without an Arrow batch."""
    layout, first = dialect.layout, cursor.previous_offset + 1
    timestamps = None
    if dialect.timestamp_unit is not None:
        timestamps = np.empty(values.num_rows, np.int64)
        timestamps.fill(default_us // 1000 if dialect.timestamp_unit == "ms" else default_us)
    columns = _columns(np.arange(first, first + values.num_rows), timestamps, None)
    size = values.nbytes + values.num_rows * (layout.header_bytes + layout.trailer_bytes)
    out = allocate(size, cursor.position)
    try:
        kernel.encode_frames(out, layout, columns, values.values, values.offsets, base_position=cursor.position)
    except ValueError:
        _refuse_long(numbers_of(pc.binary_length(values.array())), layout)
        raise
    return _encoded(out, columns, cursor)


def _columns(offsets: Int64s, timestamps: Int64s | None, flags: UInt32s | None) -> FrameColumns:
    """The columns before encoding; the kernel fills in the rest."""
    count = len(offsets)
    return FrameColumns(
        offset=offsets,
        timestamp=np.zeros(count, np.int64) if timestamps is None else timestamps,
        position=np.empty(count, np.int64),
        value_position=np.empty(count, np.int64),
        value_length=np.empty(count, np.uint32),
        headers_length=np.empty(count, np.uint32),
        flags=np.zeros(count, np.uint32) if flags is None else flags,
    )


def _span(offsets: npt.NDArray[np.int32]) -> int:
    """The bytes between the first and the last of Arrow's offsets."""
    return int(offsets[-1]) - int(offsets[0])


def _refuse_long(lengths: npt.NDArray[Any], layout: FrameLayout) -> None:
    if len(lengths) and int(lengths.max()) > layout.max_payload_bytes:
        row = int(lengths.argmax())
        raise UsageError(
            f"value {row} has {int(lengths[row])} bytes, more than the format's {layout.max_payload_bytes}"
        )


def _encoded(out: memoryview, columns: FrameColumns, cursor: ScanPosition) -> Encoded:
    count = len(columns)
    last = int(columns.offset[-1]) if count else cursor.previous_offset
    end = ScanEnd(count, cursor.position + len(out), int(Stop.END), last)
    return Encoded(out, Rows(columns, count, end))


def dump_frames(segment: FrameSegment, begin: int = 0, index: Index | None = None) -> Iterator[Block]:
    """Every record of a frame segment from the byte ``begin`` on, field by field. Damage is a block with a problem; the
    dump continues with the next valid record."""
    near = position_near(segment, begin, index)
    cursor, number = (segment.start, 0) if near is None else (near, None)
    while True:
        rows = segment.scan(cursor)
        frames = rows.columns
        assert isinstance(frames, FrameColumns)
        for row in range(first_shown(rows, begin), rows.count):
            position = int(frames.position[row])
            yield Block(title("rec", number, row, position), position, list(_frame_fields(segment, frames, row)))
        number = None if number is None else number + rows.count
        cursor = rows.cursor
        if rows.stop == Stop.LIMIT:
            continue
        if rows.stop == Stop.END:
            return
        shown = title("rec", number, 0, cursor.position)
        if rows.stop == Stop.ZEROS:
            yield zeros(len(segment.buf), cursor.position)
            return
        if (
            rows.stop == Stop.BAD_ORDER
            and (one := segment.scan(ScanPosition(cursor.position, -1), max_records=1)).count
        ):
            assert isinstance(one.columns, FrameColumns)
            fields = list(_frame_fields(segment, one.columns, 0))
            yield Block(shown, cursor.position, fields, rows.stop.meaning)
            number, cursor = None if number is None else number + 1, one.cursor
            continue
        found = segment.resync(cursor)
        readable = segment.buf[: found if found >= 0 else len(segment.buf)]
        fields = list(segment._dialect.header.fields(readable, cursor.position))
        yield unreadable(shown, readable, cursor.position, fields, rows.stop.meaning)
        if found < 0:
            return
        cursor = ScanPosition(found, cursor.previous_offset)
        number = None if number is None else number + 1


def _frame_fields(segment: FrameSegment, frames: FrameColumns, row: int) -> Iterator[Field]:
    buf, dialect = segment.buf, segment._dialect
    position = int(frames.position[row])
    value_position, value_length = int(frames.value_position[row]), int(frames.value_length[row])
    headers_length = int(frames.headers_length[row])
    yield from dialect.header.fields(buf, position)
    note = ""
    if dialect.layout.headers_length_at >= 0:
        start = value_position - headers_length
        block = bytes(buf[start:value_position])
        yield Field("headers", start, headers_length, block)
        if dialect.user_headers is not None and dialect.user_headers.one(block, value_length > 0)[2]:
            note = "null: a tombstone"
    value = bytes(buf[value_position : value_position + value_length])
    yield Field("payload", value_position, value_length, value, note)
    if dialect.trailer is not None:
        yield from dialect.trailer.fields(buf, value_position + value_length)


class EveryRecordIndex(IndexBuilder):
    """An index of (offset, position) for every n-th record of a segment."""

    def __init__(self, entry: Struct, interval: int) -> None:
        self._dtype = np.dtype([(name, f"{entry.order}u{entry.width(name)}") for name in entry.names])
        self._interval = interval
        self._seen = 0
        super().__init__()

    def headers(self) -> dict[Role, bytes]:
        return {Role.INDEX: b""}

    @property
    def progress(self) -> tuple[int, ...]:
        return (self._seen,)

    def resume(self, progress: Sequence[int]) -> None:
        super().resume(progress)
        (self._seen,) = progress

    def pick(self, rows: Rows) -> Picked:
        frames = rows.columns
        assert isinstance(frames, FrameColumns)
        first = -self._seen % self._interval
        self._seen += rows.count
        if first >= rows.count:
            return ()
        return frames.offset[first :: self._interval].copy(), frames.position[first :: self._interval].copy()

    def entries(self, picked: Picked) -> dict[Role, bytes]:
        entries = np.empty(len(picked[0]), self._dtype)
        entries["offset"], entries["position"] = picked
        return {Role.INDEX: entries.tobytes()}
