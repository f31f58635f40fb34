"""The frame functions of both halves of the kernel called as one, and bytes for them.

`fuzz.agreement.both` compares answers, filled arrays and refusals. `guarded` puts bytes where a read of one byte too
many ends the process. Strategies for records and for frame tables are here, too.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from duramen.kernel.layout import Checksum, Columns, Const, FrameColumns, FrameHit, FrameLayout, ScanEnd, Stop
from fuzz.agreement import COMPILED, Refused, arrays_of, both, zeroed

__all__ = [
    "COMPILED", "INT64", "FrameRecord", "Refused", "Segment", "arrow", "both", "digests_for", "edited", "encode",
    "find_frame", "flips", "frame_rows", "guarded", "layouts", "names", "records", "rows_expected", "rows_of",
    "scan_frames", "seek_frame",
]  # fmt: skip

INT64 = st.integers(-(2**63), 2**63 - 1)


def scan_frames(
    buf: Any,
    layout: FrameLayout,
    *,
    position: int = 0,
    end: int | None = None,
    capacity: int = 16,
    previous: int = -1,
    max_bytes: int = 2**62,
    verify: bool = True,
    values_bytes: int | None = None,
) -> tuple[ScanEnd, list[tuple[int, ...]]] | Refused:
    """Both scans; the end and the rows, each a tuple in the order of `FrameColumns`. With ``values_bytes`` they also
    copy the values into so much room, and must agree on that."""
    made: list[FrameColumns] = []

    def make() -> Any:
        columns, sums = zeroed(FrameColumns, capacity), digests_for(buf)
        made.append(columns)
        until = len(memoryview(buf)) if end is None else end
        args = (buf, position, until, layout, columns, previous, max_bytes, verify, sums)
        filled = [*arrays_of(columns), *([] if sums is None else [sums])]
        if values_bytes is None:
            return args, {}, filled
        offsets, values = np.zeros(capacity + 1, np.int32), np.zeros(values_bytes, np.uint8)
        return (*args, offsets, values), {}, [*filled, offsets, values]

    answer = both("scan_frames", make)
    if isinstance(answer, Refused):
        return answer
    return answer[0], rows_of(made[0], answer[0].count)


def digests_for(buf: Any) -> np.ndarray[Any, np.dtype[np.uint32]] | None:
    """What a scan takes along: nothing over an even number of bytes, two checksums that are under way over an odd."""
    return np.array([7, 2**32 - 1], np.uint32) if len(memoryview(buf)) % 2 else None


def names(columns: Columns) -> list[str]:
    return [field.name for field in fields(columns)]


def rows_of(columns: Columns, count: int) -> list[tuple[int, ...]]:
    return list(zip(*(array[:count].tolist() for array in arrays_of(columns)), strict=True))


def seek_frame(
    buf: Any,
    layout: FrameLayout,
    target: int,
    *,
    position: int = 0,
    end: int | None = None,
    previous: int = -1,
) -> FrameHit | Refused:
    until = len(memoryview(buf)) if end is None else end
    answer = both("seek_frame", lambda: ((buf, position, until, layout, target, previous), {}, ()))
    return answer if isinstance(answer, Refused) else answer[0]


def find_frame(
    buf: Any, layout: FrameLayout, *, position: int = 0, end: int | None = None, previous: int = -1
) -> int | Refused:
    until = len(memoryview(buf)) if end is None else end
    answer = both("find_frame", lambda: ((buf, position, until, layout, previous), {}, ()))
    return answer if isinstance(answer, Refused) else answer[0]


# --- records and tables


class FrameRecord(NamedTuple):
    offset: int
    timestamp: int
    flags: int
    headers: bytes
    value: bytes


class Segment(NamedTuple):
    """Encoded records: the bytes, and where each record starts, with the end as the last one."""

    data: bytes
    bounds: list[int]


def arrow(parts: Sequence[bytes]) -> tuple[bytes, np.ndarray[Any, np.dtype[np.int32]]]:
    """Byte strings as one buffer and Arrow's offsets into it."""
    return b"".join(parts), np.cumsum([0, *map(len, parts)], dtype=np.int32)


def frame_rows(records: Sequence[FrameRecord]) -> FrameColumns:
    """The columns that an encoder reads, and zeros in those that it fills in."""
    columns: FrameColumns = zeroed(FrameColumns, len(records))
    for row, record in enumerate(records):
        columns.offset[row], columns.timestamp[row], columns.flags[row] = record.offset, record.timestamp, record.flags
    return columns


def encode(layout: FrameLayout, records: Sequence[FrameRecord], base_position: int = 0) -> Segment:
    """Encode with both halves. Headers are left out where the table has no place for them."""
    values, value_offsets = arrow([record.value for record in records])
    extra: dict[str, Any] = {"base_position": base_position}
    if layout.headers_length_at >= 0:
        extra["headers"], extra["headers_offsets"] = arrow([record.headers for record in records])
    blobs = sum(len(record.headers) for record in records) if layout.headers_length_at >= 0 else 0
    size = len(values) + blobs + len(records) * (layout.header_bytes + layout.trailer_bytes)
    made: list[FrameColumns] = []

    def make() -> Any:
        out, columns = np.full(size, 0xAA, np.uint8), frame_rows(records)
        made.append(columns)
        return (out, layout, columns, values, value_offsets), extra, (out, *arrays_of(columns))

    answer = both("encode_frames", make)
    assert not isinstance(answer, Refused), answer
    written, (data, *_) = answer
    assert written == size
    columns = made[0]
    starts = (columns.position - base_position).tolist()
    assert (columns.value_position - columns.position - columns.headers_length == layout.header_bytes).all()
    assert columns.value_length.tolist() == [len(record.value) for record in records]
    return Segment(data, [*starts, size])


def rows_expected(layout: FrameLayout, records: Sequence[FrameRecord], segment: Segment) -> list[tuple[int, ...]]:
    """What a scan of the encoded records must fill in, without asking the kernel."""
    rows = []
    for record, position in zip(records, segment.bounds, strict=False):
        headers = len(record.headers) if layout.headers_length_at >= 0 else 0
        rows.append(
            (
                record.offset,
                record.timestamp if layout.timestamp_at >= 0 else 0,
                position,
                position + layout.header_bytes + headers,
                len(record.value),
                headers,
                record.flags if layout.flags_at >= 0 else 0,
            )
        )
    return rows


@st.composite
def records(draw: st.DrawFn, most: int = 5, payload_bytes: int = 12) -> list[FrameRecord]:
    """A few records with rising offsets."""
    count = draw(st.integers(0, most))
    offset = draw(st.sampled_from([0, 1, 7, 255, 2**32, 2**63 - 200]))
    made = []
    for _ in range(count):
        timestamp = draw(st.sampled_from([0, 1, -1, 1_700_000_000_000, 2**63 - 1, -(2**63)]))
        flags = draw(st.sampled_from([0, 1, 0xFFFF, 0xFFFFFFFF]))
        headers, value = draw(st.binary(max_size=4)), draw(st.binary(max_size=payload_bytes))
        made.append(FrameRecord(offset, timestamp, flags, headers, value))
        offset += draw(st.integers(1, 3))
    return made


@st.composite
def layouts(draw: st.DrawFn) -> FrameLayout:
    """Any table: the fields in any order with gaps between them, any checksum, any constants."""
    checksum = draw(st.sampled_from(list(Checksum)))
    in_header = checksum != Checksum.NONE and draw(st.booleans())
    optional = [("headers_length", 4), ("timestamp", 8), ("flags", 4)]
    widths = dict(draw(st.permutations(optional))[: draw(st.integers(0, 3))])
    widths |= {"offset": 8, "length": 4}
    const_widths = draw(st.lists(st.sampled_from([1, 2, 3, 4, 8]), max_size=4))
    widths |= {f"const{i}": width for i, width in enumerate(const_widths)}
    if in_header:
        widths["checksum"] = 4
    at, places = 0, {}
    for name in draw(st.permutations(sorted(widths))):
        at += draw(st.sampled_from([0, 0, 1, 3]))
        places[name] = at
        at += widths[name]
    header_bytes = at + draw(st.sampled_from([0, 0, 2]))
    stops = st.sampled_from([Stop.BAD_MAGIC, Stop.BAD_VERSION, Stop.BAD_FIELD])
    consts = tuple(
        Const(places[f"const{i}"], width, draw(st.integers(0, min(256**width, 2**63) - 1)), draw(stops))
        for i, width in enumerate(const_widths)
    )
    return FrameLayout(
        header_bytes=header_bytes,
        big_endian=draw(st.booleans()),
        offset_at=places["offset"],
        length_at=places["length"],
        consts=consts,
        trailer_bytes=draw(st.integers(4, 7) if checksum and not in_header else st.integers(0, 3)),
        headers_length_at=places.get("headers_length", -1),
        timestamp_at=places.get("timestamp", -1),
        flags_at=places.get("flags", -1),
        checksum=checksum,
        checksum_at=places.get("checksum", -1),
        covered_from=draw(st.integers(places["checksum"] + 4 if in_header else 0, header_bytes)),
        max_payload_bytes=draw(st.sampled_from([2**32 - 1, 2**32 - 1, 12])),
    )


# --- bytes, and what can happen to them


def flips(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Every single bit flipped: its position, and the bytes."""
    changed = bytearray(data)
    for position in range(len(data)):
        for bit in range(8):
            changed[position] ^= 1 << bit
            yield position, bytes(changed)
            changed[position] ^= 1 << bit


@st.composite
def edited(draw: st.DrawFn, data: bytes) -> bytes:
    """``data`` with a few of the changes that break parsers: extreme numbers, cuts, repeats, zeros."""
    out = bytearray(data)
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(out)))
        kind = draw(st.sampled_from(["number", "bytes", "cut", "repeat", "zeros", "drop"]))
        if kind == "number":
            width = draw(st.sampled_from([1, 2, 4, 8]))
            number = draw(st.sampled_from([0, 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1]))
            raw = (number % 256**width).to_bytes(width, draw(st.sampled_from(["big", "little"])))
            out[at : at + width] = raw
        elif kind == "bytes":
            out[at:at] = draw(st.binary(max_size=8))
        elif kind == "cut":
            del out[at:]
        elif kind == "repeat":
            out += out[at:]
        elif kind == "zeros":
            out[at:] = bytes(len(out) - at)
        else:
            del out[at : at + draw(st.integers(1, 8))]
    return bytes(out)


PAGE = mmap.PAGESIZE
_libc = ctypes.CDLL(None, use_errno=True)


def guarded(data: bytes) -> memoryview:
    """The bytes, followed by a page that must not be touched."""
    pages = -(-len(data) // PAGE) * PAGE
    region = mmap.mmap(-1, pages + PAGE)
    handle = ctypes.c_char.from_buffer(region)
    address = ctypes.addressof(handle)
    del handle
    region[pages - len(data) : pages] = data
    if _libc.mprotect(ctypes.c_void_p(address + pages), ctypes.c_size_t(PAGE), 0):
        raise OSError(ctypes.get_errno(), "mprotect")
    return memoryview(region)[pages - len(data) : pages].toreadonly()
