"""Frames: the compiled loop against its Python twin, on tables of every kind and on bytes of every kind."""

from __future__ import annotations

import itertools
import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duramen.formats import durable_log, rustlog
from duramen.formats.keratin import keratin
from duramen.kernel import _frames, reference
from duramen.kernel.layout import GAVE_UP, NOT_FOUND, Checksum, FrameColumns, FrameLayout, Stop
from fuzz.agreement import arrays_of, zeroed
from tests.kernel.twins import (
    INT64,
    FrameRecord,
    Refused,
    Segment,
    arrow,
    both,
    edited,
    encode,
    find_frame,
    flips,
    frame_rows,
    guarded,
    layouts,
    records,
    rows_expected,
    scan_frames,
    seek_frame,
)
from tests.sampling import examples

LAYOUTS = {
    "durable-log": durable_log.DIALECT.layout,
    "keratin": keratin.DIALECT.layout,
    "rustlog": rustlog.SPEC.layout,
    "rustlog-12": rustlog.SHORT.layout,
}
THREE = [
    FrameRecord(1000, 1_700_000_000_000, 0, b"", b"hello"),
    FrameRecord(1001, 1_700_000_000_001, 1, b"k=v", b""),
    FrameRecord(1002, 1_700_000_000_002, 0xFFFF, b"\0", b"\0\xff" * 5),
]
named = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())


def ask_everything(data: Any, layout: FrameLayout) -> None:
    """Every function on the same bytes; that the halves agree is all that is asked."""
    scan_frames(data, layout)
    scan_frames(data, layout, verify=False)
    scan_frames(data, layout, capacity=1)
    for room in (0, 7, 1 << 10):
        scan_frames(data, layout, values_bytes=room)
    for target in (0, 1001, 1002, 2**63 - 1):
        seek_frame(data, layout, target)
    find_frame(data, layout, position=min(1, len(data)), previous=1000)
    find_frame(data, layout)


# --- whole, cut, flipped


@given(layouts(), records())
def test_encoded_records_scan_to_the_same(layout: FrameLayout, made: list[FrameRecord]) -> None:
    segment = encode(layout, made, base_position=100)
    end, rows = scan_frames(segment.data, layout)
    if not any(segment.data) and made:
        assert (end.count, end.position, end.stop) == (0, 0, Stop.ZEROS)  # an empty record 0 looks like nothing
        return
    assert rows == rows_expected(layout, made, segment)
    last = made[-1].offset if made else -1
    assert end == (len(made), len(segment.data), Stop.END, last)
    for record, row in zip(made, rows, strict=True):
        hit = seek_frame(segment.data, layout, record.offset)
        assert (hit.stop, hit.offset, hit.timestamp, hit.position) == (Stop.LIMIT, row[0], row[1], row[2])
        assert segment.data[hit.value_position :][: hit.value_length] == record.value


@named
def test_cut_at_every_byte(layout: FrameLayout) -> None:
    segment = encode(layout, THREE)
    for size in range(len(segment.data) + 1):
        data = guarded(segment.data[:size])
        end, rows = scan_frames(data, layout)
        whole = sum(bound <= size for bound in segment.bounds[1:])
        assert (end.count, end.position) == (whole, segment.bounds[whole])
        assert rows == rows_expected(layout, THREE[:whole], segment)
        if size in segment.bounds:
            assert end.stop == Stop.END
        else:
            assert end.stop in (Stop.SHORT_HEADER, Stop.SHORT_BODY, Stop.ZEROS)
            assert (end.stop == Stop.ZEROS) == (not any(data[segment.bounds[whole] :]))
        ask_everything(data, layout)


@named
def test_every_bit_flipped(layout: FrameLayout) -> None:
    """That the halves agree; which flips a format notices is for the tests of the formats."""
    segment = encode(layout, THREE)
    for _, data in flips(segment.data):
        ask_everything(data, layout)


@settings(max_examples=examples(25))
@given(layouts(), records(most=2, payload_bytes=4))
def test_any_table_cut_and_flipped(layout: FrameLayout, made: list[FrameRecord]) -> None:
    data = encode(layout, made).data
    for size in range(len(data)):
        scan_frames(data[:size], layout)
        find_frame(data[:size], layout)
    for position, flipped in flips(data):
        scan_frames(flipped, layout)
        if position % 8 == 0:
            find_frame(flipped, layout)
            seek_frame(flipped, layout, made[-1].offset)


@given(layouts(), records(), st.data())
def test_edited_bytes(layout: FrameLayout, made: list[FrameRecord], data: st.DataObject) -> None:
    raw = data.draw(edited(encode(layout, made).data))
    ask_everything(guarded(raw), layout)


@given(st.one_of(st.sampled_from(list(LAYOUTS.values())), layouts()), st.binary(max_size=150))
def test_arbitrary_bytes(layout: FrameLayout, raw: bytes) -> None:
    ask_everything(guarded(raw), layout)


# --- from anywhere, within limits


@given(layouts(), records(), st.data())
def test_any_range_and_previous_offset(layout: FrameLayout, made: list[FrameRecord], data: st.DataObject) -> None:
    raw = encode(layout, made).data
    position = data.draw(st.integers(-1, len(raw) + 1), "position")
    end = data.draw(st.integers(-1, len(raw) + 1), "end")
    known = [record.offset for record in made]
    previous = data.draw(st.one_of(INT64, st.sampled_from([-1, *known])), "previous")
    target = data.draw(st.one_of(INT64, st.sampled_from([0, *known])), "target")
    answers = [
        scan_frames(raw, layout, position=position, end=end, previous=previous),
        seek_frame(raw, layout, target, position=position, end=end, previous=previous),
        find_frame(raw, layout, position=position, end=end, previous=previous),
    ]
    refused = not 0 <= position <= end <= len(raw)
    assert [isinstance(answer, Refused) for answer in answers] == [refused] * 3


@given(layouts(), records(), st.integers(1, 6), st.integers(-1, 120), st.booleans())
def test_limits_resume_where_they_stopped(
    layout: FrameLayout, made: list[FrameRecord], capacity: int, max_bytes: int, verify: bool
) -> None:
    segment = encode(layout, made)
    whole = scan_frames(segment.data, layout)
    position, previous, rows = 0, -1, []
    while True:
        end, part = scan_frames(
            segment.data, layout, position=position, previous=previous,
            capacity=capacity, max_bytes=max_bytes, verify=verify,
        )  # fmt: skip
        rows += part
        if end.stop != Stop.LIMIT:
            break
        assert part
        assert end.count == 1 or end.position - position <= max_bytes
        assert end.position > position
        position, previous = end.position, end.last_offset
    assert rows == whole[1]
    assert (end.position, end.stop) == (whole[0].position, whole[0].stop)


@given(layouts(), records(), st.integers(0, 64), st.booleans())
def test_values_taken_along_are_those_that_gather_copies(
    layout: FrameLayout, made: list[FrameRecord], room: int, verify: bool
) -> None:
    data = encode(layout, made).data
    columns, offsets = FrameColumns.empty(16), np.zeros(17, np.int32)
    values = np.full(room + 1, 0xA5, np.uint8)
    end = _frames.scan_frames(data, 0, len(data), layout, columns, -1, 2**62, verify, None, offsets, values[:room])
    plain = scan_frames(data, layout, verify=verify)
    assert not isinstance(plain, Refused)
    lengths = [row[4] for row in plain[1]]
    fitting = int(np.searchsorted(np.cumsum(lengths), room, side="right"))
    assert end.count == fitting
    assert end.stop == (plain[0].stop if fitting == len(lengths) else Stop.LIMIT)
    rows = columns.head(end.count)
    expected, copied = np.zeros(end.count + 1, np.int32), np.zeros(room, np.uint8)
    size = reference.gather(data, rows.value_position, rows.value_length, expected, copied)
    assert offsets[: end.count + 1].tolist() == expected.tolist()
    assert bytes(values[:size]) == bytes(copied[:size])
    assert values[room] == 0xA5


@named
def test_values_and_their_offsets_go_together(layout: FrameLayout) -> None:
    columns, values = FrameColumns.empty(2), np.zeros(8, np.uint8)
    for half in (_frames, reference):
        with pytest.raises(ValueError, match="go together"):
            half.scan_frames(b"", 0, 0, layout, columns, values=values)
        with pytest.raises(ValueError, match="differ in length"):
            half.scan_frames(b"", 0, 0, layout, columns, value_offsets=np.zeros(2, np.int32), values=values)


@named
def test_a_full_column_set_stops_at_the_limit(layout: FrameLayout) -> None:
    segment = encode(layout, THREE)
    end, rows = scan_frames(segment.data, layout, capacity=2)
    assert end == (2, segment.bounds[2], Stop.LIMIT, 1001)
    assert len(rows) == 2
    end, _ = scan_frames(segment.data, layout, capacity=3)
    assert end == (3, len(segment.data), Stop.END, 1002)


@named
def test_order(layout: FrameLayout) -> None:
    data = encode(layout, THREE).data
    assert scan_frames(data, layout, previous=999)[0].count == 3
    for previous in (1000, 1001, 2**63 - 1):
        assert scan_frames(data, layout, previous=previous)[0] == (0, 0, Stop.BAD_ORDER, previous)
    repeated = encode(layout, [THREE[0], THREE[1], THREE[1]])
    assert scan_frames(repeated.data, layout)[0] == (2, repeated.bounds[2], Stop.BAD_ORDER, 1001)


# --- special bytes


@named
@pytest.mark.parametrize("size", [0, 1, 11, 12, 24, 36, 4096])
def test_only_zeros(layout: FrameLayout, size: int) -> None:
    end, _ = scan_frames(bytes(size), layout)
    assert end == (0, 0, Stop.ZEROS if size else Stop.END, -1)
    assert seek_frame(bytes(size), layout, 0).stop == (Stop.ZEROS if size else Stop.END)
    ask_everything(guarded(bytes(size)), layout)


@named
@pytest.mark.parametrize("size", [1, 3, 12, 31, 33, 5000])
def test_a_tail_of_zeros_is_a_clean_end(layout: FrameLayout, size: int) -> None:
    segment = encode(layout, THREE)
    end, _ = scan_frames(segment.data + bytes(size), layout)
    assert end == (3, len(segment.data), Stop.ZEROS, 1002)
    end, _ = scan_frames(segment.data + bytes(size) + b"\1", layout)
    assert end.stop not in (Stop.END, Stop.ZEROS)
    assert end.position == len(segment.data)


def lengths_at(layout: FrameLayout) -> list[int]:
    return [at for at in (layout.length_at, layout.headers_length_at) if at >= 0]


@named
@pytest.mark.parametrize("length", [2**20, 10 * 2**20, 10 * 2**20 + 1, 2**31 - 1, 2**31, 2**32 - 1])
def test_a_huge_length_is_no_frame(layout: FrameLayout, length: int) -> None:
    segment = encode(layout, THREE)
    order = "big" if layout.big_endian else "little"
    for at in lengths_at(layout):
        data = bytearray(segment.data)
        data[segment.bounds[1] + at : segment.bounds[1] + at + 4] = length.to_bytes(4, order)
        end, _ = scan_frames(guarded(bytes(data)), layout)
        too_long = length > layout.max_payload_bytes and at == layout.length_at
        assert end == (1, segment.bounds[1], Stop.BAD_LENGTH if too_long else Stop.SHORT_BODY, 1000)
        ask_everything(data, layout)


def test_both_lengths_huge_at_once() -> None:
    """2 × (2³² - 1) and a header: the sum must not wrap."""
    layout = LAYOUTS["keratin"]
    data = bytearray(encode(layout, THREE).data)
    for at in lengths_at(layout):
        data[at : at + 4] = b"\xff" * 4
    assert scan_frames(data, layout)[0] == (0, 0, Stop.SHORT_BODY, -1)


@named
def test_an_offset_of_64_bits_is_out_of_range(layout: FrameLayout) -> None:
    data = bytearray(encode(layout, THREE).data)
    data[layout.offset_at : layout.offset_at + 8] = b"\xff" * 8
    assert scan_frames(data, layout)[0] == (0, 0, Stop.BAD_RANGE, -1)


# --- finding the next frame


@named
def test_find_passes_over_a_damaged_frame(layout: FrameLayout) -> None:
    segment = encode(layout, THREE)
    assert find_frame(segment.data, layout, previous=999) == 0
    assert find_frame(segment.data, layout, position=1, previous=1000) == segment.bounds[1]
    assert find_frame(segment.data, layout, position=segment.bounds[1] + 1, previous=1000) == segment.bounds[2]
    assert find_frame(segment.data, layout, position=segment.bounds[2] + 1, previous=1000) == NOT_FOUND
    assert find_frame(segment.data, layout, previous=1002) == NOT_FOUND


@named
@given(junk=st.binary(max_size=40), tail=st.binary(max_size=10))
def test_find_looks_at_every_byte(layout: FrameLayout, junk: bytes, tail: bytes) -> None:
    frame = encode(layout, [FrameRecord(3, 5, 0, b"", b"payload")]).data
    found = find_frame(junk + frame + tail, layout, previous=2)
    if layout.checksum != Checksum.NONE:
        assert found == len(junk)  # 13 bytes and more of junk that pass for a frame do not turn up by chance


def costly(layout: FrameLayout, size: int, magic: bytes) -> bytes:
    """Bytes in which a header that claims almost everything starts again and again."""
    order = "big" if layout.big_endian else "little"
    header = bytearray(encode(layout, [FrameRecord(1, 0, 0, b"", b"")]).data[: layout.header_bytes])
    header[: len(magic)] = magic
    out = bytearray()
    while len(out) + len(header) < size:
        claim = size - len(out) - layout.header_bytes - layout.trailer_bytes
        header[layout.length_at : layout.length_at + 4] = max(claim, 0).to_bytes(4, order)
        out += header
    return bytes(out.ljust(size, b"\1"))


@pytest.mark.parametrize(
    ("name", "magic"), [("durable-log", b"GOLD"), ("keratin", b"KR")], ids=["durable-log", "keratin"]
)
def test_find_gives_up_on_hostile_bytes(name: str, magic: bytes) -> None:
    layout = LAYOUTS[name]
    assert find_frame(costly(layout, 6 << 10, magic), layout, position=0, previous=0) == NOT_FOUND
    hostile = costly(layout, 60 << 10, magic)
    assert find_frame(hostile, layout, previous=0) == GAVE_UP


# --- encode


@named
def test_encode_refuses_what_does_not_fit(layout: FrameLayout) -> None:
    values, value_offsets = arrow([b"one", b"two", b"three"])
    size = 11 + 3 * (layout.header_bytes + layout.trailer_bytes)

    def attempt(**changed: Any) -> Any:
        def make() -> Any:
            out = np.zeros(changed.get("size", size), np.uint8)
            columns = frame_rows(THREE[: changed.get("rows", 3)])
            for name, array in changed.get("columns", {}).items():
                setattr(columns, name, array)
            bounds = np.array(changed.get("value_offsets", value_offsets), np.int32)
            args = (out, layout, columns, changed.get("values", values), bounds)
            return args, changed.get("kwargs", {}), (out, *arrays_of(columns))

        return both("encode_frames", make)

    assert not isinstance(attempt(), Refused)
    for row in range(3):
        fitting = int(value_offsets[row]) + row * (layout.header_bytes + layout.trailer_bytes)
        assert attempt(size=fitting) == Refused(f"row {row} does not fit")
    assert attempt(values=values[:-1]) == Refused("row 2 does not fit")
    assert attempt(value_offsets=[0, 3, 2, 4]) == Refused("row 1 does not fit")
    assert attempt(value_offsets=[-1, 3, 6, 11]) == Refused("row 0 does not fit")
    assert attempt(value_offsets=[0, 3, 6, 2**31 - 1]) == Refused("row 2 does not fit")
    assert attempt(value_offsets=[0, 3, 6]) == Refused("the columns differ in length")
    assert attempt(value_offsets=[]) == Refused("the columns differ in length")
    assert attempt(rows=2) == Refused("the columns differ in length")
    for name in ("offset", "timestamp", "position", "value_position"):
        assert attempt(columns={name: np.zeros(2, np.int64)}) == Refused("the columns differ in length")
    for name in ("flags", "value_length", "headers_length"):
        assert attempt(columns={name: np.zeros(2, np.uint32)}) == Refused("the columns differ in length")
    assert attempt(kwargs={"headers": b""}) == Refused("headers and headers_offsets go together")
    only = {"headers_offsets": np.zeros(4, np.int32)}
    assert attempt(kwargs=only) == Refused("headers and headers_offsets go together")
    long = {"headers": b"h", "headers_offsets": np.array([0, 0, 0, 1, 1], np.int32)}
    assert attempt(kwargs=long) == Refused("the columns differ in length")
    last = {"headers": b"h", "headers_offsets": np.array([0, 0, 0, 1], np.int32)}
    assert attempt(kwargs=last) == Refused("row 2 does not fit")  # no room; or no field for its length


def test_encode_refuses_a_payload_over_the_maximum() -> None:
    layout = FrameLayout(header_bytes=12, big_endian=True, offset_at=4, length_at=0, max_payload_bytes=3)
    values, value_offsets = arrow([b"abc", b"abcd"])

    def make() -> Any:
        out, columns = np.zeros(100, np.uint8), frame_rows(THREE[:2])
        return (out, layout, columns, values, value_offsets), {}, (out, *arrays_of(columns))

    assert both("encode_frames", make) == Refused("row 1 does not fit")


def test_encode_nothing() -> None:
    assert encode(LAYOUTS["keratin"], []) == Segment(b"", [0])


@given(layouts(), st.data())
def test_encode_arbitrary_columns(layout: FrameLayout, data: st.DataObject) -> None:
    """Offsets into the values that make no sense are refused by both; whatever is not refused is the same."""
    count = data.draw(st.integers(0, 3))
    bounds = st.lists(st.integers(-3, 9), min_size=count + 1, max_size=count + 1)
    offsets = np.array(data.draw(st.lists(INT64, min_size=count, max_size=count)), np.int64)
    value_offsets = np.array(data.draw(st.one_of(bounds, bounds.map(sorted))), np.int32)
    values = data.draw(st.binary(max_size=9))
    kwargs: dict[str, Any] = {}
    if data.draw(st.booleans()):
        kwargs["headers"] = data.draw(st.binary(max_size=9))
        kwargs["headers_offsets"] = np.array(data.draw(st.one_of(bounds, bounds.map(sorted))), np.int32)
    size = data.draw(st.integers(0, 200))

    def make() -> Any:
        out, columns = np.zeros(size, np.uint8), zeroed(FrameColumns, count)
        columns.offset[:] = columns.timestamp[:] = offsets
        return (out, layout, columns, values, value_offsets), kwargs, (out, *arrays_of(columns))

    both("encode_frames", make)


# --- buffers


def test_columns_must_have_one_length_and_room() -> None:
    layout = LAYOUTS["durable-log"]
    assert scan_frames(b"", layout, capacity=0) == Refused("the columns have no room")
    columns = FrameColumns.empty(4)
    columns.flags = columns.flags[:3]
    with pytest.raises(ValueError, match="differ in length"):
        _frames.scan_frames(b"", 0, 0, layout, columns)


def readable(data: bytes, path: Path) -> dict[str, Callable[[], Any]]:
    path.write_bytes(data)

    def mapped() -> mmap.mmap:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    return {
        "bytes": lambda: data,
        "bytearray": lambda: bytearray(data),
        "mmap": mapped,
        "memoryview of mmap": lambda: memoryview(mapped()),
        "slice": lambda: memoryview(b"abc" + data + b"xyz")[3:-3],
        "read-only array": lambda: np.frombuffer(data, np.uint8),
        "guarded": lambda: guarded(data),
    }


@named
def test_any_readable_buffer(layout: FrameLayout, tmp_path: Path) -> None:
    segment = encode(layout, THREE)
    expected = scan_frames(segment.data, layout)
    for kind, make in readable(segment.data, tmp_path / "segment").items():
        assert scan_frames(make(), layout) == expected, kind
        assert seek_frame(make(), layout, 1001).position == segment.bounds[1], kind
        assert find_frame(make(), layout, position=1, previous=1000) == segment.bounds[1], kind


def test_buffers_that_are_refused() -> None:
    layout = LAYOUTS["durable-log"]
    for bad in (memoryview(b"abcdef")[::2], "text", 7):
        for half in (_frames, reference):
            with pytest.raises((ValueError, TypeError, BufferError)):
                half.find_frame(bad, 0, 0, layout)


def test_encode_refuses_a_read_only_target() -> None:
    layout = LAYOUTS["durable-log"]
    values, value_offsets = arrow([b"x"])
    for half in (_frames, reference):
        with pytest.raises((ValueError, TypeError, BufferError)):
            half.encode_frames(bytes(100), layout, frame_rows(THREE[:1]), values, value_offsets)


def test_the_packed_table_must_have_its_size() -> None:
    class Wrong:
        packed = b"\0" * 8

    with pytest.raises(ValueError, match="wrong size"):
        _frames.find_frame(b"", 0, 0, Wrong())


@given(layouts(), records(payload_bytes=40), st.integers(0, 3))
def test_a_tuple_of_values_is_encoded_as_an_array(layout: FrameLayout, made: list[FrameRecord], missing: int) -> None:
    made = [record._replace(headers=b"") for record in made]
    values = tuple(record.value for record in made)
    if any(len(value) > layout.max_payload_bytes for value in values):
        return
    expected = encode(layout, made, base_position=7)
    for kind in (tuple, list):
        room = max(len(expected.data) - missing, 0)

        def make(kind: Any = kind, room: int = room) -> Any:
            out, columns = np.zeros(room, np.uint8), frame_rows(made)
            return (out, layout, columns, kind(values)), {"base_position": 7}, (out, *arrays_of(columns))

        answer = both("encode_frames", make)
        if missing and made:
            assert answer == Refused(f"row {len(made) - 1} does not fit")
        else:
            assert answer[0] == len(expected.data)
            assert answer[1][0] == expected.data


def test_values_must_be_bytes() -> None:
    columns = frame_rows(THREE[:2])
    for kernel in (_frames, reference):
        for wrong in ("text", bytearray(b"x"), None, 1):
            with pytest.raises(TypeError, match="a value is bytes"):
                kernel.measure_values([b"", wrong])  # type: ignore[list-item]
            with pytest.raises(TypeError, match="a value is bytes"):
                kernel.encode_frames(bytearray(99), durable_log.DIALECT.layout, columns, (b"", wrong))  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="differ"):
            kernel.encode_frames(bytearray(99), durable_log.DIALECT.layout, columns, (b"",))


@given(st.lists(st.binary(max_size=40), max_size=6))
def test_values_are_measured(values: list[bytes]) -> None:
    lengths = [len(value) for value in values] or [0]
    assert both("measure_values", lambda: ((values,), {}, ()))[0] == (sum(lengths), min(lengths), max(lengths))
    assert both("measure_values", lambda: ((tuple(values),), {}, ()))[0] == (sum(lengths), min(lengths), max(lengths))
    data, offsets = b"".join(values), np.cumsum([0, *map(len, values)]).astype(np.int32)
    assert both("measure_values", lambda: ((data, offsets), {}, ()))[0] == (sum(lengths), min(lengths), max(lengths))


@given(st.binary(max_size=9), st.lists(st.integers(-3, 12), max_size=5))
def test_offsets_that_make_no_sense_are_refused(data: bytes, offsets: list[int]) -> None:
    answer = both("measure_values", lambda: ((data, np.array(offsets, np.int32)), {}, ()))
    pairs = list(itertools.pairwise(offsets))
    bad = [row for row, (start, stop) in enumerate(pairs) if not 0 <= start <= stop <= len(data)]
    if bad:
        assert answer == Refused(f"row {bad[0]} does not fit")
    elif not offsets:
        assert answer == Refused("the columns differ in length")
    else:
        assert answer[0][0] == sum(stop - start for start, stop in pairs)


@given(records(most=9, payload_bytes=60), st.integers(1, 200), st.integers(-50, 50))
def test_picked_rows_lie_a_stride_apart(made: list[FrameRecord], stride: int, counted_from: int) -> None:
    layout = LAYOUTS["keratin"]
    end, rows = scan_frames(encode(layout, made).data, layout)
    positions, lengths = np.array([row[3] for row in rows], np.int64), np.array([row[4] for row in rows], np.uint32)

    def make(room: int = end.count) -> Any:
        picked = np.zeros(room, np.int64)
        return (positions, lengths, layout.trailer_bytes, stride, counted_from, picked), {}, (picked,)

    (count, last), (raw,) = both("pick_strides", make)
    expected, at = [], counted_from
    for row, bound in enumerate(encode(layout, made).bounds[1:]):
        if bound - at >= stride:
            expected.append(row)
            at = bound
    assert (np.frombuffer(raw, np.int64)[:count].tolist(), last) == (expected, at)
    assert both("pick_strides", lambda: make(end.count + 1)) == Refused("the columns differ in length")
