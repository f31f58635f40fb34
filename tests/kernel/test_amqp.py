"""AMQP 1.0: the compiled walk against its Python twin."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duramen.kernel.layout import AmqpFault, AmqpField, AmqpSpans
from fuzz.agreement import arrays_of
from tests.kernel.twins import Refused, arrow, both, edited, flips, guarded
from tests.values import amqp_messages as amqp


def scan(parts: Sequence[bytes], buf: Any = None, bounds: Any = None) -> tuple[list[AmqpFault], AmqpSpans]:
    """The messages, with two bytes before each that belong to none; or those of a buffer between positions."""
    joined = b"".join(b"\0\x53" + part for part in parts)
    starts = np.cumsum([2, *(len(part) + 2 for part in parts)], dtype=np.int64)[: len(parts)]
    places = (starts, np.array([*map(len, parts)], np.uint32)) if bounds is None else bounds
    source = joined if buf is None else buf
    made: list[tuple[AmqpSpans, Any]] = []

    def make() -> Any:
        spans, faults = zeroed(len(parts) * len(AmqpField)), np.zeros(len(parts), np.uint32)
        positions = np.zeros(len(parts), np.int64)
        made.append((spans, faults))
        return (source, *places, spans, faults, positions), {}, [*arrays_of(spans), faults, positions]

    answer = both("scan_amqp", make)
    if isinstance(answer, Refused):
        raise ValueError(answer.why)
    spans, faults = made[0]
    for field in (AmqpField.MESSAGE_ID, AmqpField.VALUE):
        texts(source, spans.slice(field * len(parts), (field + 1) * len(parts)))
    pairs(source, spans, len(parts))
    return [AmqpFault(fault) for fault in faults.tolist()], spans


def zeroed(count: int) -> AmqpSpans:
    spans = AmqpSpans.empty(count)
    for array in arrays_of(spans):
        array[:] = 0
    return spans


def pairs(buf: Any, spans: AmqpSpans, rows: int) -> None:
    """The pairs of the maps that a scan found; both halves agree, and none is missing."""
    field = AmqpField.APPLICATION_PROPERTIES
    contents = spans.slice(field * rows, (field + 1) * rows)
    total = int(contents.count.sum()) // 2
    made: list[tuple[AmqpSpans, AmqpSpans]] = []

    def make() -> Any:
        keys, values = zeroed(total), zeroed(total)
        made.append((keys, values))
        return (buf, contents, keys, values), {}, [*arrays_of(keys), *arrays_of(values)]

    assert not isinstance(both("scan_amqp_pairs", make), Refused)
    for found in made[0]:
        texts(buf, found)


def texts(buf: Any, spans: AmqpSpans, room: int | None = None, given: int | None = None) -> Any:
    """The values as text, and the names of their codes; those that the kernel does not make are given as ``<0>``."""
    measured = both("measure_amqp_texts", lambda: ((spans,), {}, ()))[0]
    data, offsets = arrow([b"<%d>" % number for number in range(measured[1] if given is None else given)])
    size = measured[0] + len(data) if room is None else room

    def make() -> Any:
        ends, text = np.zeros(len(spans) + 1, np.int32), np.zeros(size, np.uint8)
        return (buf, spans, data, offsets, ends, text), {}, [ends, text]

    names, name_offsets = arrow([b"%x" % code for code in range(256)])

    def make_names() -> Any:
        ends, text = np.zeros(len(spans) + 1, np.int32), np.zeros(2 * len(spans), np.uint8)
        return (spans.code, names, name_offsets, ends, text), {}, [ends, text]

    assert not isinstance(both("fill_amqp_names", make_names), Refused)
    return both("fill_amqp_texts", make)


def fault_of(value: bytes) -> AmqpFault:
    return scan([value])[0][0]


@given(st.lists(amqp.messages(), max_size=4))
@settings(deadline=None)
def test_messages_are_sound(parts: list[bytes]) -> None:
    times_in_range = [fault for fault in scan(parts)[0] if fault != AmqpFault.BAD_FIELD]
    assert set(times_in_range) <= {AmqpFault.SOUND}


@given(st.data())
@settings(deadline=None)
def test_damaged_messages(data: st.DataObject) -> None:
    parts = [data.draw(edited(data.draw(amqp.messages()))) for _ in range(2)]
    scan(parts)


@given(st.binary(max_size=80))
def test_any_bytes(value: bytes) -> None:
    scan([value])
    scan([b"\0\x53\x77" + value])


def test_every_flip_of_a_message() -> None:
    everything = amqp.list_of([encoded for encoded, _ in amqp.SCALARS.values()])
    message = amqp.section(0x73, amqp.list_of([amqp.text("id")])) + amqp.section(0x77, everything)
    assert fault_of(message) == AmqpFault.SOUND
    for _, changed in flips(message):
        scan([changed])


@pytest.mark.parametrize("cut", range(0, 70, 3))
def test_no_byte_past_the_end_is_read(cut: int) -> None:
    message = amqp.section(0x74, amqp.map_of([(amqp.text("key"), amqp.SCALARS["uuid"][0])])) + amqp.data(b"body" * 8)
    part = message[:cut]
    buf = guarded(part) if part else b""
    scan([part], buf=buf, bounds=at((0, len(part))))


DEEP = b"\xc0\x03\x01"


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (b"", AmqpFault.SOUND),
        (b"hello", AmqpFault.BAD_SECTION),
        (b"\0\x53\x75", AmqpFault.CUT_SHORT),
        (b"\0\x53\x75\xa0\x05abc", AmqpFault.CUT_SHORT),
        (amqp.section(0x77, b"\x99"), AmqpFault.BAD_CODE),
        (amqp.section(0x77, b"\xc0\x02\x02\x41"), AmqpFault.BAD_SIZE),
        (amqp.section(0x77, b"\xd0\xff\xff\xff\xff\xff\xff\xff\xff"), AmqpFault.CUT_SHORT),
        (amqp.section(0x77, b"\xd0\0\0\0\x04\xff\xff\xff\xff"), AmqpFault.BAD_SIZE),
        (amqp.section(0x77, b"\xc1\x02\x01\x41"), AmqpFault.BAD_SIZE),
        (amqp.section(0x77, b"\xf0\0\0\0\x05\xff\xff\xff\xff\x41"), AmqpFault.SOUND),
        (amqp.section(0x77, b"\xf0\0\0\0\x05\xff\xff\xff\xff\x50"), AmqpFault.BAD_SIZE),
        (amqp.section(0x77, b"\0" * 40), AmqpFault.TOO_DEEP),
        (amqp.section(0x77, b"\xa1\x02\xc3\x28"), AmqpFault.BAD_TEXT),
        (amqp.section(0x77, b"\xa1\x03\xed\xa0\x80"), AmqpFault.BAD_TEXT),
        (amqp.section(0x77, b"\xa3\x01\x80"), AmqpFault.BAD_TEXT),
        (amqp.section(0x77, b"\x56\x02"), AmqpFault.BAD_VALUE),
        (amqp.section(0x77, b"\x73\0\0\xd8\0"), AmqpFault.BAD_VALUE),
        (amqp.section(0x79, b"\x40"), AmqpFault.BAD_SECTION),
        (amqp.data(b"a") + amqp.section(0x70, b"\x45"), AmqpFault.BAD_ORDER),
        (amqp.data(b"a") + amqp.section(0x77, b"\x41"), AmqpFault.BAD_ORDER),
        (amqp.data(b"a") + amqp.data(b"b"), AmqpFault.SOUND),
        (amqp.section(0x77, b"\x41") * 2, AmqpFault.BAD_ORDER),
        (amqp.section(0x70, amqp.list_of([amqp.text("x")])), AmqpFault.BAD_FIELD),
        (amqp.section(0x73, amqp.list_of([amqp.NULL] * 14)), AmqpFault.BAD_FIELD),
        (amqp.section(0x74, amqp.map_of([(b"\x41", b"\x41")])), AmqpFault.BAD_FIELD),
        (amqp.section(0x72, amqp.map_of([(b"\x44", b"\x41")])), AmqpFault.SOUND),
        (amqp.section(0x73, amqp.list_of([amqp.NULL] * 9 + [amqp.fixed(0x83, "q", 2**62)])), AmqpFault.BAD_FIELD),
        (amqp.described(amqp.symbol("amqp:data:binary"), amqp.binary(b"x")), AmqpFault.SOUND),
        (amqp.described(amqp.symbol("amqp:data:binarx"), amqp.binary(b"x")), AmqpFault.BAD_SECTION),
    ],
)  # fmt: skip
def test_faults(value: bytes, fault: AmqpFault) -> None:
    assert fault_of(value) == fault


def test_a_deep_value_ends_at_the_limit() -> None:
    for levels in (30, 31, 32, 33, 34):
        value = b"\x41"
        for _ in range(levels):
            value = amqp.list_of([value])
        assert fault_of(amqp.section(0x77, value)) == (AmqpFault.SOUND if levels <= 32 else AmqpFault.TOO_DEEP)


def at(*places: tuple[int, int]) -> Any:
    return np.array([place[0] for place in places], np.int64), np.array([place[1] for place in places], np.uint32)


def test_rows_outside_of_the_buffer_are_refused() -> None:
    with pytest.raises(ValueError, match="row 1 lies outside"):
        scan([b"", b""], buf=amqp.data(b"a"), bounds=at((0, 6), (6, 93)))
    with pytest.raises(ValueError, match="row 0 lies outside"):
        scan([b""], buf=amqp.data(b"a"), bounds=at((-1, 2)))
    with pytest.raises(ValueError, match="row 0 lies outside"):
        scan([b""], buf=amqp.data(b"a"), bounds=at((2**63 - 1, 2**32 - 1)))


def test_rows_in_any_order() -> None:
    message = amqp.data(b"a")
    faults, _ = scan([message] * 3, buf=b"??" + message, bounds=at((2, len(message)), (0, 2), (2, len(message))))
    assert faults == [AmqpFault.SOUND, AmqpFault.BAD_SECTION, AmqpFault.SOUND]


@given(st.lists(st.tuples(st.integers(-2, 9), st.integers(0, 9), st.integers(0, 4)), max_size=3), st.integers(0, 9))
def test_contents_that_no_scan_found(rows: list[tuple[int, int, int]], total: int) -> None:
    contents = zeroed(len(rows))
    for row, (position, length, count) in enumerate(rows):
        contents.position[row], contents.length[row], contents.count[row] = position, length, count
    both("scan_amqp_pairs", lambda: ((b"\x41\x42\x50\x07\x45\x40", contents, zeroed(total), zeroed(total)), {}, ()))


SPANS = st.tuples(
    st.sampled_from([0, 1, 0x40, 0x41, 0x42, 0x50, 0x55, 0x80, 0x81, 0x82, 0x98, 0xA0, 0xA1, 0xA3, 0xC1]),
    st.integers(-3, 40) | st.sampled_from([-(2**63), 2**63 - 1, -1]), st.sampled_from([0, 1, 7, 16, 2**32 - 1]),
)  # fmt: skip


@given(st.lists(SPANS, max_size=5), st.integers(0, 60), st.integers(0, 3))
def test_texts_of_any_spans(rows: list[tuple[int, int, int]], room: int, given: int) -> None:
    spans = zeroed(len(rows))
    for row, (code, position, length) in enumerate(rows):
        spans.code[row], spans.position[row], spans.length[row] = code, position, length
    texts(guarded(bytes(range(32))), spans, room, given)


def test_texts() -> None:
    spans = zeroed(8)
    spans.code[:] = [0xA1, 0x81, 0x80, 0x56, 0x98, 0xA0, 0x40, 0]
    spans.position[:], spans.length[:] = [1, -(2**63), -1, 0, 0, 4, 0, 0], [2, 8, 8, 1, 16, 3, 0, 0]
    (total, (offsets, text)) = texts(bytes(range(97, 113)), spans)
    ends = np.frombuffer(offsets, np.int32)
    assert [text[start:end].decode() for start, end in itertools.pairwise(ends.tolist())] == [
        "bc", str(-(2**63)), str(2**64 - 1), "false", "61626364-6566-6768-696a-6b6c6d6e6f70", "<0>", "", "",
    ]  # fmt: skip
    assert total == ends[-1]


def test_the_body_is_where_the_span_says() -> None:
    value = amqp.section(0x70, b"\x45") + amqp.data(b"the body")
    faults, spans = scan([value, amqp.data(b"a") + amqp.data(b"bc")])
    assert faults == [AmqpFault.SOUND] * 2
    body = 2 * AmqpField.DATA
    start, length = int(spans.position[body]) - 2, int(spans.length[body])
    assert value[start : start + length] == b"the body"
    assert spans.count[body : body + 2].tolist() == [1, 2]
