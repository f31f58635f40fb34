"""Fixed slots: the compiled functions against their Python twins."""

from __future__ import annotations

import itertools
from typing import Any

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duramen.kernel.layout import NOT_FOUND, ScanEnd, Stop
from tests.kernel.twins import Refused, both, digests_for, edited, flips, guarded

RECORD_SIZES = st.integers(1, 20)


def scan(
    buf: Any, record_bytes: int, position: int = 0, end: int | None = None, max_slots: int = 100, verify: bool = True
) -> ScanEnd | Refused:
    until = len(memoryview(buf)) if end is None else end

    def make() -> Any:
        sums = digests_for(buf)
        return (buf, position, until, record_bytes, max_slots, verify, sums), {}, () if sums is None else (sums,)

    answer = both("scan_slots", make)
    return answer if isinstance(answer, Refused) else answer[0]


def find(buf: Any, record_bytes: int, position: int = 0, end: int | None = None) -> int | Refused:
    until = len(memoryview(buf)) if end is None else end
    answer = both("find_slot", lambda: ((buf, position, until, record_bytes), {}, ()))
    return answer if isinstance(answer, Refused) else answer[0]


def infer(buf: Any, most: int = 1 << 20) -> int | Refused:
    answer = both("infer_slot", lambda: ((buf, most), {}, ()))
    return answer if isinstance(answer, Refused) else answer[0]


def encode(values: bytes, record_bytes: int, size: int | None = None) -> bytes | Refused:
    """From an Arrow buffer and from a tuple, which come to the same."""
    bounds = [*range(0, len(values), max(record_bytes, 1)), len(values)]
    parts = tuple(values[start:stop] for start, stop in itertools.pairwise(bounds))
    wanted = len(values) // max(record_bytes, 1) * (record_bytes + 4) if size is None else size

    def make(*source: Any) -> Any:
        out = np.full(wanted, 0xAA, np.uint8)
        return (out, record_bytes, *source), {}, (out,)

    answer = both("encode_slots", lambda: make(values, np.array(bounds, np.int32)))
    assert both("encode_slots", lambda: make(parts)) == answer
    if not isinstance(answer, Refused):
        assert answer[0] == len(parts) * (record_bytes + 4)
    return answer if isinstance(answer, Refused) else answer[1][0]


def ask_everything(data: Any, record_bytes: int) -> None:
    slot_bytes = record_bytes + 4
    scan(data, record_bytes)
    scan(data, record_bytes, max_slots=1)
    scan(data, record_bytes, verify=False)
    find(data, record_bytes)
    if len(data) >= slot_bytes:
        scan(data, record_bytes, slot_bytes)
        find(data, record_bytes, slot_bytes)
    infer(data)


@st.composite
def slots(draw: st.DrawFn) -> tuple[int, bytes, bytes]:
    """A record size, payloads side by side, and their slots."""
    size = draw(RECORD_SIZES)
    values = b"".join(draw(st.lists(st.binary(min_size=size, max_size=size), max_size=5)))
    return size, values, encode(values, size)


@given(slots())
def test_encoded_slots_scan_to_the_same(made: tuple[int, bytes, bytes]) -> None:
    size, values, data = made
    count = len(values) // size
    assert scan(data, size) == (count, len(data), Stop.END, count - 1)
    for row in range(count):
        slot = data[row * (size + 4) : (row + 1) * (size + 4)]
        assert slot[4:] == values[row * size : (row + 1) * size]
        assert int.from_bytes(slot[:4], "big") == google_crc32c.value(slot[4:])


@pytest.mark.parametrize("size", [1, 5, 16])
def test_cut_at_every_byte(size: int) -> None:
    data = encode(bytes(range(1, 3 * size + 1)), size)
    for length in range(len(data) + 1):
        count, rest = divmod(length, size + 4)
        cut = guarded(data[:length])
        stop = Stop.END if not rest else Stop.SHORT_BODY if any(cut[length - rest :]) else Stop.ZEROS
        assert scan(cut, size) == (count, length - rest, stop, count - 1)
        ask_everything(cut, size)


@pytest.mark.parametrize("size", [1, 5, 16])
def test_every_flipped_bit_is_noticed(size: int) -> None:
    data = encode(bytes(3 * size), size)
    for position, flipped in flips(data):
        row = position // (size + 4)
        assert scan(flipped, size) == (row, row * (size + 4), Stop.BAD_CHECKSUM, row - 1)
        following = (row + 1) * (size + 4)
        if row < 2:
            assert find(flipped, size, following) == following
        ask_everything(flipped, size)


@given(slots(), st.data())
def test_edited_bytes(made: tuple[int, bytes, bytes], data: st.DataObject) -> None:
    ask_everything(guarded(data.draw(edited(made[2]))), made[0])


@given(st.binary(max_size=100), RECORD_SIZES)
def test_arbitrary_bytes(raw: bytes, size: int) -> None:
    ask_everything(guarded(raw), size)


@given(slots(), st.integers(-2, 120), st.integers(-2, 120), st.integers(-1, 21), st.integers(-1, 6))
def test_any_range_and_limit(
    made: tuple[int, bytes, bytes], position: int, end: int, size: int, max_slots: int
) -> None:
    data = made[2]
    legal = 0 <= position <= end <= len(data) and size >= 1 and position % (size + 4) == 0
    answer = scan(data, size, position, end, max_slots)
    assert isinstance(answer, Refused) != legal
    assert isinstance(find(data, size, position, end), Refused) != legal
    if legal and max_slots >= 0:
        assert answer.count <= max_slots


@pytest.mark.parametrize("size", [0, -1, -(2**63), 2**31, 2**63 - 1])
def test_sizes_that_are_refused(size: int) -> None:
    assert isinstance(scan(b"", size), Refused)
    assert isinstance(find(b"", size), Refused)
    assert isinstance(encode(b"", size, 0), Refused)


def test_the_largest_size() -> None:
    assert scan(bytes(100), 2**31 - 1) == (0, 0, Stop.ZEROS, -1)
    assert scan(b"\1" * 100, 2**31 - 1) == (0, 0, Stop.SHORT_BODY, -1)
    assert find(b"\1" * 100, 2**31 - 1) == NOT_FOUND


@pytest.mark.parametrize("tail", [1, 4, 19, 20, 21, 45, 5000])
def test_a_tail_of_zeros_is_a_clean_end(tail: int) -> None:
    data = encode(b"0123456789abcdef", 16)
    assert scan(data + bytes(tail), 16) == (1, 20, Stop.ZEROS, 0)
    assert scan(data + bytes(tail) + b"\1", 16).stop in (Stop.BAD_CHECKSUM, Stop.SHORT_BODY)
    assert scan(bytes(tail), 16) == (0, 0, Stop.ZEROS, -1)


@given(slots(), st.integers(-1, 30))
def test_infer_finds_the_smallest_size_that_fits(made: tuple[int, bytes, bytes], most: int) -> None:
    size, values, data = made
    found = infer(data, most)
    assert not isinstance(found, Refused)
    if len(values) >= 2 * size and most >= size:
        assert 0 < found <= size
    if found:
        assert found <= most
        assert scan(data, found).count >= 1


def test_infer_bounds() -> None:
    data = encode(b"0123456789abcdef" * 2, 16)
    assert infer(data) == infer(data, 16) == infer(data, 2**63 - 1) == 16
    assert infer(data, 15) == infer(data, 0) == infer(data, -1) == 0
    assert infer(data[:20]) == infer(data[:39]) == 16  # slot 1 is not whole: slot 0 alone decides
    assert infer(data[:39] + b"\0") == 0
    for size in range(6):
        assert infer(bytes(size)) == 0


def test_encode_refuses_what_does_not_fit() -> None:
    for values, size in ((b"12345", 16), (b"1234", 7), (b"12345678", 15), (b"1", 0), (b"1", 8)):
        assert isinstance(encode(values, 4, size), Refused)
    assert encode(b"", 4) == b""


def test_buffers_that_are_refused() -> None:
    for bad in (memoryview(b"abcdef")[::2], "text", 7):
        assert isinstance(both("infer_slot", lambda bad=bad: ((bad, 4), {}, ())), Refused)
    assert isinstance(both("encode_slots", lambda: ((bytes(5), 1, (b"x",)), {}, ())), Refused)
    for offsets in ([], [-1, 3], [0, 5], [4, 0]):
        bounds = np.array(offsets, np.int32)
        assert isinstance(both("encode_slots", lambda b=bounds: ((bytearray(8), 4, b"1234", b), {}, ())), Refused)
