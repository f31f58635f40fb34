"""Frames: fixed header, user headers, payload, trailer, as a `FrameLayout` describes them."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from duramen.kernel.layout import (
    GAVE_UP,
    NOT_FOUND,
    Checksum,
    FrameColumns,
    FrameHit,
    FrameLayout,
    Int64s,
    ScanEnd,
    Stop,
    UInt32s,
)
from duramen.kernel.reference.columns import (
    Buffer,
    Int32s,
    ValueCopy,
    Values,
    bytes_of,
    is_zero,
    same_length,
    values_of,
)
from duramen.kernel.reference.crc import check_digests, crc32, crc32c, extend_digests


class _Frame:
    __slots__ = ("flags", "headers_length", "next", "offset", "position", "timestamp", "value_length", "value_position")

    def __init__(self, view: memoryview, position: int, layout: FrameLayout) -> None:
        def number(at: int, width: int) -> int:
            if at < 0:
                return 0
            raw = view[position + at : position + at + width]
            return int.from_bytes(raw, "big" if layout.big_endian else "little")

        timestamp = number(layout.timestamp_at, 8)
        self.offset = number(layout.offset_at, 8)
        self.timestamp = timestamp - 2**64 if timestamp >= 2**63 else timestamp
        self.flags = number(layout.flags_at, 4)
        self.value_length = number(layout.length_at, 4)
        self.headers_length = number(layout.headers_length_at, 4)
        self.position = position
        self.value_position = position + layout.header_bytes + self.headers_length
        self.next = self.value_position + self.value_length + layout.trailer_bytes


def _parse_frame(
    view: memoryview, position: int, end: int, layout: FrameLayout, previous_offset: int
) -> tuple[Stop, _Frame | None]:
    if end - position < layout.header_bytes:
        return Stop.SHORT_HEADER, None
    order = "big" if layout.big_endian else "little"
    for const in layout.consts:
        raw = view[position + const.position : position + const.position + const.width]
        if int.from_bytes(raw, order) != const.value:  # type: ignore[arg-type]
            return const.stop, None
    frame = _Frame(view, position, layout)
    if frame.value_length > layout.max_payload_bytes:
        return Stop.BAD_LENGTH, None
    if frame.offset >= 2**63:
        return Stop.BAD_RANGE, None
    if frame.next > end:
        return Stop.SHORT_BODY, None
    if frame.offset <= previous_offset:
        return Stop.BAD_ORDER, None
    return Stop.END, frame


def _frame_is_whole(view: memoryview, layout: FrameLayout, frame: _Frame) -> bool:
    if layout.checksum == Checksum.NONE:
        return True
    at = frame.next - 4 if layout.checksum_at < 0 else frame.position + layout.checksum_at
    stored = int.from_bytes(view[at : at + 4], "big" if layout.big_endian else "little")
    covered = view[frame.position + layout.covered_from : frame.value_position + frame.value_length]
    return stored == (crc32c if layout.checksum == Checksum.CRC32C else crc32)(covered)


def _next(
    view: memoryview, position: int, end: int, layout: FrameLayout, previous_offset: int
) -> tuple[Stop, _Frame | None]:
    """The frame at ``position``, or why there is none; ``ZEROS`` if only zeros follow."""
    if is_zero(view, position, end):
        return Stop.ZEROS, None
    return _parse_frame(view, position, end, layout, previous_offset)


def scan_frames(
    buf: Buffer,
    position: int,
    end: int,
    layout: FrameLayout,
    columns: FrameColumns,
    previous_offset: int = -1,
    max_bytes: int = 2**62,
    verify: bool = True,
    digests: UInt32s | None = None,
    value_offsets: Int32s | None = None,
    values: Buffer | None = None,
) -> ScanEnd:
    """Fill ``columns`` with the frames from ``position`` on. Stops when the columns are full, before the frame that
    would exceed ``max_bytes`` (the first is always taken), or at bytes that are not a valid frame. Continues
    ``digests``, a CRC-32C and a CRC-32, over the bytes of these frames.

    With ``values`` it also copies the values there, as `gather` would, and fills ``value_offsets``. A value that does
    not fit is a limit, even the first one."""
    check_digests(digests)
    view, capacity = bytes_of(buf, position, end), len(columns)
    if capacity == 0:
        raise ValueError("the columns have no room")
    copy = ValueCopy.into(capacity, value_offsets, values)
    start, count, stop = position, 0, Stop.END
    while position < end:
        stop, frame = (Stop.LIMIT, None) if count == capacity else _next(view, position, end, layout, previous_offset)
        if frame is None:
            break
        has_room = (count == 0 or frame.next - start <= max_bytes) and (copy is None or frame.value_length <= copy.room)
        if not has_room or (verify and not _frame_is_whole(view, layout, frame)):
            stop = Stop.BAD_CHECKSUM if has_room else Stop.LIMIT
            break
        if copy is not None:
            copy.add(count, view[frame.value_position : frame.value_position + frame.value_length])
        for field in fields(columns):
            getattr(columns, field.name)[count] = getattr(frame, field.name)
        count, previous_offset, position = count + 1, frame.offset, frame.next
    extend_digests(digests, view[start:position])
    return ScanEnd(count, position, int(stop), previous_offset)


def seek_frame(
    buf: Buffer, position: int, end: int, layout: FrameLayout, target: int, previous_offset: int = -1
) -> FrameHit:
    """Walk headers, without checksums, to the first frame at or above the offset ``target``, and check that one."""
    view = bytes_of(buf, position, end)
    while position < end:
        stop, frame = _next(view, position, end, layout, previous_offset)
        if frame is None:
            return FrameHit(int(stop), position, -1, 0, 0, 0, 0, 0, 0)
        if frame.offset >= target:
            if not _frame_is_whole(view, layout, frame):
                return FrameHit(int(Stop.BAD_CHECKSUM), position, -1, 0, 0, 0, 0, 0, 0)
            return FrameHit(
                int(Stop.LIMIT), position, frame.offset, frame.timestamp, frame.value_position,
                frame.value_length, frame.headers_length, frame.flags, frame.next,
            )  # fmt: skip
        previous_offset = frame.offset
        position = frame.next
    return FrameHit(int(Stop.END), position, -1, 0, 0, 0, 0, 0, 0)


def _has_successor(view: memoryview, end: int, layout: FrameLayout, frame: _Frame) -> bool:
    if frame.next == end or is_zero(view, frame.next, end):
        return True
    _, following = _parse_frame(view, frame.next, end, layout, frame.offset)
    return following is not None and following.offset == frame.offset + 1


def find_frame(buf: Buffer, position: int, end: int, layout: FrameLayout, previous_offset: int = -1) -> int:
    """The first position from ``position`` on where a complete, valid frame with an offset above ``previous_offset``
    starts, or ``NOT_FOUND``. Without a checksum, the skipped bytes must be able to hold the skipped offsets, and the
    next frame must fit. Returns ``GAVE_UP`` once checking costs more than 16 times the bytes."""
    view = bytes_of(buf, position, end)
    budget = 16 * (end - position) + (1 << 20)
    for at in range(position, end - layout.header_bytes + 1):
        _, frame = _parse_frame(view, at, end, layout, previous_offset)
        if frame is None:
            continue
        if layout.checksum == Checksum.NONE:
            if is_zero(view, at, at + layout.header_bytes):
                continue  # zeros look like the empty record 0 and prove nothing
            if frame.offset - previous_offset - 1 > (at - position) // layout.header_bytes + 1:
                continue
            budget -= layout.header_bytes
            if frame.next < end and view[frame.next] == 0:
                budget -= end - frame.next
            if _has_successor(view, end, layout, frame):
                return at
        else:
            budget -= frame.next - at
            if _frame_is_whole(view, layout, frame):
                return at
        if budget < 0:
            return GAVE_UP
    return NOT_FOUND


def encode_frames(
    out: Buffer,
    layout: FrameLayout,
    columns: FrameColumns,
    values: Values,
    value_offsets: Int32s | None = None,
    *,
    base_position: int = 0,
    headers: Buffer | None = None,
    headers_offsets: Int32s | None = None,
) -> int:
    """Write one frame per value, with ``offset``, ``timestamp`` and ``flags`` of its row of ``columns``; fills the
    other columns as a scan would. Returns the bytes written."""
    count = same_length(columns)
    if (headers is None) != (headers_offsets is None):
        raise ValueError("headers and headers_offsets go together")
    if not 0 <= base_position <= 2**62:
        raise ValueError("base_position must be 0 to 2**62")
    blobs = [b""] * count if headers is None else list(values_of(headers, headers_offsets))
    rows = list(values_of(values, value_offsets))
    if len(rows) != count or len(blobs) != count:
        raise ValueError("the columns differ in length")
    target = memoryview(out).cast("B")
    at = 0
    for row, (value, blob) in enumerate(zip(rows, blobs, strict=True)):
        frame = None if value is None or blob is None else _encode_frame(layout, columns, row, value, blob)
        if frame is None or value is None or blob is None or at + len(frame) > len(target):
            raise ValueError(f"row {row} does not fit")
        target[at : at + len(frame)] = frame
        columns.position[row] = base_position + at
        columns.value_position[row] = base_position + at + layout.header_bytes + len(blob)
        columns.value_length[row] = len(value)
        columns.headers_length[row] = len(blob)
        at += len(frame)
    return at


def _encode_frame(layout: FrameLayout, columns: FrameColumns, row: int, value: bytes, blob: bytes) -> bytearray | None:
    """One frame; None where the layout cannot store the value or the user headers."""
    if len(value) > layout.max_payload_bytes or (blob and layout.headers_length_at < 0):
        return None
    frame = bytearray(layout.header_bytes) + blob + value + bytes(layout.trailer_bytes)

    def put(position: int, width: int, number: int) -> None:
        if position >= 0:
            raw = (number % 2 ** (8 * width)).to_bytes(width, "big" if layout.big_endian else "little")
            frame[position : position + width] = raw

    for const in layout.consts:
        put(const.position, const.width, const.value)
    put(layout.offset_at, 8, int(columns.offset[row]))
    put(layout.length_at, 4, len(value))
    put(layout.headers_length_at, 4, len(blob))
    put(layout.timestamp_at, 8, int(columns.timestamp[row]))
    put(layout.flags_at, 4, int(columns.flags[row]))
    if layout.checksum != Checksum.NONE:
        covered = bytes(frame[layout.covered_from : layout.header_bytes + len(blob) + len(value)])
        crc = (crc32c if layout.checksum == Checksum.CRC32C else crc32)(covered)
        put(len(frame) - 4 if layout.checksum_at < 0 else layout.checksum_at, 4, crc)
    return frame


def pick_strides(
    value_positions: Int64s,
    value_lengths: UInt32s,
    trailer_bytes: int,
    stride_bytes: int,
    counted_from: int,
    picked: Int64s,
) -> tuple[int, int]:
    """Pick every row that ends at least ``stride_bytes`` after the end of the previous pick (at first, after
    ``counted_from``). Returns how many rows it put into ``picked``, and where the last of them ends."""
    if not len(value_positions) == len(value_lengths) == len(picked):
        raise ValueError("the columns differ in length")
    found = 0
    ends = value_positions + value_lengths.astype(np.int64) + trailer_bytes
    for row, end in enumerate(ends.tolist()):
        if end - counted_from >= stride_bytes:
            picked[found] = row
            found += 1
            counted_from = end
    return found, counted_from
