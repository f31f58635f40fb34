"""AMQP 1.0: the compiled walk against its Python twin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duramen.kernel.layout import AmqpFault, AmqpField, AmqpSpans
from tests.kernel.twins import Refused, arrow, both, edited, flips, guarded
from tests.values import amqp_messages as amqp


def scan(parts: Sequence[bytes], buf: Any = None, offsets: Any = None) -> tuple[list[AmqpFault], AmqpSpans]:
    joined, bounds = arrow(parts)
    made: list[tuple[AmqpSpans, Any]] = []

    def make() -> Any:
        spans, faults = zeroed(len(parts) * len(AmqpField)), np.zeros(len(parts), np.uint32)
        positions = np.zeros(len(parts), np.int64)
        made.append((spans, faults))
        filled = [spans.code, spans.position, spans.length, spans.count, faults, positions]
        return (
            (joined if buf is None else buf, bounds if offsets is None else offsets, spans, faults, positions),
            {},
            filled,
        )

    answer = both("scan_amqp", make)
    if isinstance(answer, Refused):
        raise ValueError(answer.why)
    spans, faults = made[0]
    items(joined if buf is None else buf, spans, len(parts))
    return [AmqpFault(fault) for fault in faults.tolist()], spans


def zeroed(count: int) -> AmqpSpans:
    spans = AmqpSpans.empty(count)
    for array in (spans.code, spans.position, spans.length, spans.count):
        array[:] = 0
    return spans


def items(buf: Any, spans: AmqpSpans, rows: int) -> None:
    """The items of the maps that a scan found; both halves agree, and no item is missing."""
    field = AmqpField.APPLICATION_PROPERTIES
    contents = spans.slice(field * rows, (field + 1) * rows)
    total = int(contents.count.sum())

    def make() -> Any:
        found = zeroed(total)
        return (buf, contents, found), {}, [found.code, found.position, found.length, found.count]

    assert not isinstance(both("scan_amqp_items", make), Refused)


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
    scan([part], buf=buf)


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


def test_rows_outside_of_the_buffer_are_refused() -> None:
    with pytest.raises(ValueError, match="row 1 lies outside"):
        scan([amqp.data(b"a"), b""], offsets=np.array([0, 6, 99], np.int32))
    with pytest.raises(ValueError, match="row 0 lies outside"):
        scan([amqp.data(b"a")], offsets=np.array([5, 2], np.int32))


@given(st.lists(st.tuples(st.integers(-2, 9), st.integers(0, 9), st.integers(0, 4)), max_size=3), st.integers(0, 9))
def test_contents_that_no_scan_found(rows: list[tuple[int, int, int]], total: int) -> None:
    contents = zeroed(len(rows))
    for row, (position, length, count) in enumerate(rows):
        contents.position[row], contents.length[row], contents.count[row] = position, length, count

    def make() -> Any:
        found = zeroed(total)
        return (b"\x41\x42\x50\x07\x45\x40", contents, found), {}, ()

    both("scan_amqp_items", make)


def test_the_body_is_where_the_span_says() -> None:
    value = amqp.section(0x70, b"\x45") + amqp.data(b"the body")
    faults, spans = scan([value, amqp.data(b"a") + amqp.data(b"bc")])
    assert faults == [AmqpFault.SOUND] * 2
    at = 2 * AmqpField.DATA
    start, length = int(spans.position[at]), int(spans.length[at])
    assert value[start : start + length] == b"the body"
    assert spans.count[at : at + 2].tolist() == [1, 2]
