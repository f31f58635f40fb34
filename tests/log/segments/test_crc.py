"""Digests that are taken bit by bit, and put together, are those of the whole."""

from __future__ import annotations

from itertools import pairwise
from zlib import crc32

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duramen import kernel
from duramen.formats import ScanPosition
from duramen.kernel.layout import Stop
from duramen.log.segments.crc import Digest, RunningDigest
from tests.log.conftest import codec


@given(st.binary(max_size=300), st.lists(st.integers(0, 400), max_size=6), st.booleans())
def test_bit_by_bit(data: bytes, positions: list[int], both: bool) -> None:
    running = RunningDigest(data, both=both)
    for position in positions:
        running.take(position)
    assert running.finish() == Digest(len(data), kernel.crc32c(data), crc32(data) if both else None)


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=5))
def test_pieces_put_together(data: bytes, cuts: list[int]) -> None:
    bounds = sorted([0, *(min(cut, len(data)) for cut in cuts), len(data)])
    parts = [RunningDigest(data, start, stop).finish() for start, stop in pairwise(bounds)]
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.then(part)
    assert whole == Digest(len(data), kernel.crc32c(data), crc32(data))


@pytest.mark.parametrize("size_bytes", [(1 << 16) - 1, 1 << 16, (1 << 16) + 1, 3_000_001])
def test_long_pieces(size_bytes: int) -> None:
    data = b"before" + bytes(range(251)) * (size_bytes // 251 + 1)
    data = data[: 6 + size_bytes]
    whole = RunningDigest(data, 0, 6).finish().then(RunningDigest(data, 6).finish())
    assert whole == Digest(len(data), kernel.crc32c(data), crc32(data))


def test_a_stretch_outside_of_the_data_is_empty() -> None:
    assert RunningDigest(b"abc", 5, 9).finish() == Digest(0, 0, 0)
    assert RunningDigest(b"abc", 2, 1).finish() == Digest(0, 0, 0)


LONG = [1, 900, 4095, 4096, 4097, 30_000, 3, 70_000, 2, 2, 5000] * 3


def long_records(name: str) -> bytes:
    """Records of many lengths: some fill the stretch that a digest is ahead of its scan, some are many of them."""
    fmt, random = codec(name), np.random.default_rng(3)
    if not fmt.capabilities.explicit_offsets and not fmt.capabilities.segments:
        lengths = [fmt.options["record_size"]] * 500
    else:
        lengths = LONG
    batch = pa.RecordBatch.from_pydict(
        {"offset": np.arange(len(lengths)), "value": pa.array([random.bytes(size) for size in lengths], pa.binary())}
    )
    header = fmt.segment_header(0, 0)
    return bytes(header) + bytes(fmt.encode(batch, ScanPosition(len(header), -1), 1).data)


@pytest.mark.parametrize("damaged_at", [None, 0.1, 0.7, 0.999])
@pytest.mark.parametrize("max_bytes", [1, 5000, 40_000, 1 << 30])
def test_a_scan_takes_it_along(format_name: str, max_bytes: int, damaged_at: float | None) -> None:
    raw = bytearray(long_records(format_name))
    if damaged_at is not None:
        raw[int(len(raw) * damaged_at)] ^= 0x40
    segment = codec(format_name).open_segment(bytes(raw), 0)
    running, cursor, stop = RunningDigest(bytes(raw)), segment.start, Stop.LIMIT
    room = segment.room()
    while stop == Stop.LIMIT:
        sums = running.along(cursor.position, len(raw))
        assert sums is not None
        rows = segment.scan(cursor, max_bytes=max_bytes, room=room, digests=sums)
        running.passed(rows.end.position)
        cursor, stop = rows.cursor, rows.stop
        assert sums.tolist() == list(kernel.digest(raw[: cursor.position]))
    assert running.finish() == Digest(len(raw), kernel.crc32c(raw), crc32(raw))


def test_nothing_goes_along_past_the_end() -> None:
    running = RunningDigest(b"0123456789", 2, 6)
    assert running.along(2, 7) is None
    assert running.along(2, 6) is not None
    assert running.along(4, 6) is not None, "what lies before is taken first"
    running.passed(6)
    assert running.along(4, 6) is None


@pytest.mark.parametrize("count", [0, 1, 3])
def test_digests_are_two(format_name: str, count: int) -> None:
    segment = codec(format_name).open_segment(long_records(format_name), 0)
    with pytest.raises(ValueError, match="two numbers"):
        segment.scan(segment.start, digests=np.zeros(count, np.uint32))
