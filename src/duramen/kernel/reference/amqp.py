"""Messages of AMQP 1.0 in columns: sections, fields and items, and where their bytes lie."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import NamedTuple
from uuid import UUID

from duramen.kernel.layout import AMQP_DESCRIBED, AmqpFault, AmqpField, AmqpSpans, Int64s, UInt32s
from duramen.kernel.reference.columns import Buffer, Int32s, UInt8s

_MAX_DEPTH = 32
_LEAST_TIME, _MOST_TIME = -62_135_596_800_000, 253_402_300_799_999

_FIXED = {
    **dict.fromkeys((0x40, 0x41, 0x42, 0x43, 0x44, 0x45), 0), **dict.fromkeys(range(0x50, 0x57), 1),
    0x60: 2, 0x61: 2, **dict.fromkeys(range(0x70, 0x75), 4), **dict.fromkeys(range(0x80, 0x85), 8), 0x94: 16, 0x98: 16,
}  # fmt: skip
"""Bytes of the content, by code."""
_SIZED = {
    **dict.fromkeys((0xA0, 0xA1, 0xA3, 0xC0, 0xC1, 0xE0), 1), **dict.fromkeys((0xB0, 0xB1, 0xB3, 0xD0, 0xD1, 0xF0), 4),
}  # fmt: skip
"""Bytes of the size before the content, by code."""
_SIGNED = {0x51, 0x54, 0x55, 0x61, 0x71, 0x80, 0x81, 0x82, 0x83, 0x84}
"""Whose numbers are stored with a sign; those of 64 bits because the column has 64 bits."""
_LISTS, _MAPS, _ARRAYS = (0xC0, 0xD0), (0xC1, 0xD1), (0xE0, 0xF0)
_TEXT, _BINARY, _ULONG = (0xA1, 0xB1, 0xA3, 0xB3), (0xA0, 0xB0), (0x44, 0x53, 0x80)
_BOOLEAN, _UINT = (0x41, 0x42, 0x56), (0x43, 0x52, 0x70)
_ID = (*_ULONG, *_BINARY, *_TEXT, 0x98)

_SUITS = {
    **dict.fromkeys(AmqpField, _TEXT),
    AmqpField.DURABLE: _BOOLEAN, AmqpField.PRIORITY: (0x50,), AmqpField.TTL: _UINT,
    AmqpField.FIRST_ACQUIRER: _BOOLEAN, AmqpField.DELIVERY_COUNT: _UINT, AmqpField.MESSAGE_ID: _ID,
    AmqpField.USER_ID: _BINARY, AmqpField.CORRELATION_ID: _ID, AmqpField.ABSOLUTE_EXPIRY_TIME: (0x83,),
    AmqpField.CREATION_TIME: (0x83,), AmqpField.GROUP_SEQUENCE: _UINT,
}  # fmt: skip
"""Codes that each field of the header and of the properties may have."""

_NAMES = {
    b"amqp:header:list": 0x70, b"amqp:delivery-annotations:map": 0x71, b"amqp:message-annotations:map": 0x72,
    b"amqp:properties:list": 0x73, b"amqp:application-properties:map": 0x74, b"amqp:data:binary": 0x75,
    b"amqp:amqp-sequence:list": 0x76, b"amqp:amqp-value:*": 0x77, b"amqp:footer:map": 0x78,
}  # fmt: skip
_MAP_SECTIONS = {
    0x71: AmqpField.DELIVERY_ANNOTATIONS, 0x72: AmqpField.ANNOTATIONS, 0x74: AmqpField.APPLICATION_PROPERTIES,
    0x78: AmqpField.FOOTER,
}  # fmt: skip


class _FaultError(Exception):
    def __init__(self, position: int, fault: AmqpFault) -> None:
        super().__init__(fault)
        self.position, self.fault = position, fault


class _Primitive(NamedTuple):
    """``position``: of the content, or the number itself; ``next``: where the next value begins."""

    code: int
    position: int
    length: int
    next: int
    count: int = 0  # type: ignore[assignment]

    def span(self, at: int) -> tuple[int, int, int, int]:
        """A value with parts keeps its constructor."""
        whole = self.code >= 0xC0
        start, length = (at, self.next - at) if whole else (self.position, self.length)
        return self.code, start, length, self.count


def _value(view: memoryview, at: int, end: int, depth: int = _MAX_DEPTH) -> _Primitive:
    """The value whose constructor is at ``at``."""
    if at >= end:
        raise _FaultError(at, AmqpFault.CUT_SHORT)
    if view[at] != 0:
        return _content(view, view[at], at + 1, end, depth)
    if depth <= 0:
        raise _FaultError(at, AmqpFault.TOO_DEEP)
    descriptor = _value(view, at + 1, end, depth - 1)
    described = _value(view, descriptor.next, end, depth - 1)
    return _Primitive(AMQP_DESCRIBED, at, described.next - at, described.next)


def _content(view: memoryview, code: int, at: int, end: int, depth: int) -> _Primitive:
    """What follows a constructor."""
    if code not in _FIXED and code not in _SIZED:
        raise _FaultError(at - 1, AmqpFault.BAD_CODE)
    width = _FIXED.get(code, _SIZED.get(code, 0))
    if width > end - at:
        raise _FaultError(at, AmqpFault.CUT_SHORT)
    number = int.from_bytes(view[at : at + width], "big", signed=code in _SIGNED)
    if code in _FIXED:
        number = 1 if code == 0x41 else number
        if (code == 0x56 and number > 1) or (code == 0x73 and (number > 0x10FFFF or 0xD800 <= number <= 0xDFFF)):
            raise _FaultError(at, AmqpFault.BAD_VALUE)
        return _Primitive(code, number if width <= 8 else at, width, at + width)
    start, stop = at + width, at + width + number
    if stop > end:
        raise _FaultError(at, AmqpFault.CUT_SHORT)
    if code >= 0xC0:
        return _compound(view, code, start, stop, width, depth)
    if code in _TEXT:
        try:
            str(view[start:stop], "utf-8" if code in (0xA1, 0xB1) else "ascii")
        except UnicodeDecodeError:
            raise _FaultError(start, AmqpFault.BAD_TEXT) from None
    return _Primitive(code, start, number, stop)


def _compound(view: memoryview, code: int, start: int, stop: int, width: int, depth: int) -> _Primitive:
    """A list, map or array after its size."""
    if stop - start < width:
        raise _FaultError(start, AmqpFault.BAD_SIZE)
    if depth <= 0:
        raise _FaultError(start, AmqpFault.TOO_DEEP)
    count, at = int.from_bytes(view[start : start + width], "big"), start + width
    if code in _ARRAYS:
        _array(view, at, stop, count, depth - 1)
    elif code in _MAPS and count % 2:
        raise _FaultError(start, AmqpFault.BAD_SIZE)
    else:
        _items(view, at, stop, count, depth - 1)
    return _Primitive(code, at, stop - at, stop, count)


def _items(view: memoryview, at: int, end: int, count: int, depth: int) -> None:
    if count > end - at:
        raise _FaultError(at, AmqpFault.BAD_SIZE)
    for _ in range(count):
        at = _value(view, at, end, depth).next
    if at != end:
        raise _FaultError(at, AmqpFault.BAD_SIZE)


def _array(view: memoryview, at: int, end: int, count: int, depth: int) -> None:
    """The elements share one constructor, which may be described. Elements without content may be any number."""
    while at < end and view[at] == 0:
        at = _value(view, at + 1, end, depth).next
        depth -= 1
        if depth < 0:
            raise _FaultError(at, AmqpFault.TOO_DEEP)
    if at >= end:
        raise _FaultError(at, AmqpFault.BAD_SIZE)
    code, at = view[at], at + 1
    is_bare = _FIXED.get(code) == 0
    if not is_bare and count > end - at:
        raise _FaultError(at, AmqpFault.BAD_SIZE)
    for _ in range(0 if is_bare else count):
        at = _content(view, code, at, end, depth).next
    if at != end:
        raise _FaultError(at, AmqpFault.BAD_SIZE)


# --- sections

_Spans = dict[AmqpField, tuple[int, int, int, int]]


def _section(view: memoryview, descriptor: _Primitive) -> int | None:
    if descriptor.code in (0x53, 0x80):
        return descriptor.position if 0x70 <= descriptor.position <= 0x78 else None
    if descriptor.code not in (0xA3, 0xB3):
        return None
    return _NAMES.get(bytes(view[descriptor.position : descriptor.position + descriptor.length]))


def _fields(view: memoryview, body_at: int, body: _Primitive, first: AmqpField, most: int, spans: _Spans) -> None:
    """The fields of a header or of properties."""
    if body.code == 0x45:
        return
    if body.code not in _LISTS or body.count > most:
        raise _FaultError(body_at, AmqpFault.BAD_FIELD)
    at = body.position
    for number in range(body.count):
        field, value = AmqpField(first + number), _value(view, at, body.next)
        if value.code != 0x40:
            in_time = value.code != 0x83 or _LEAST_TIME <= value.position <= _MOST_TIME
            if value.code not in _SUITS[field] or not in_time:
                raise _FaultError(at, AmqpFault.BAD_FIELD)
            spans[field] = value.span(at)
        at = value.next


def _map(view: memoryview, body_at: int, body: _Primitive, field: AmqpField, spans: _Spans) -> None:
    """A map whose keys are text, or in annotations numbers."""
    if body.code not in _MAPS:
        raise _FaultError(body_at, AmqpFault.BAD_FIELD)
    allowed = _TEXT if field == AmqpField.APPLICATION_PROPERTIES else (*_TEXT, *_ULONG)
    at = body.position
    for number in range(body.count):
        item = _value(view, at, body.next)
        if number % 2 == 0 and item.code not in allowed:
            raise _FaultError(at, AmqpFault.BAD_FIELD)
        at = item.next
    spans[field] = body.code, body.position, body.length, body.count


def _message(view: memoryview, at: int, end: int) -> _Spans:
    spans: _Spans = {}
    previous = 0
    while at < end:
        if view[at] != 0:
            raise _FaultError(at, AmqpFault.BAD_SECTION)
        descriptor = _value(view, at + 1, end)
        section = _section(view, descriptor)
        if section is None:
            raise _FaultError(at, AmqpFault.BAD_SECTION)
        repeats = section == previous and section in (0x75, 0x76)
        second_body = section <= 0x77 and previous >= 0x75
        if not repeats and (section <= previous or second_body):
            raise _FaultError(at, AmqpFault.BAD_ORDER)
        body = _value(view, descriptor.next, end)
        _add_section(view, section, at, body, descriptor.next, spans)
        previous, at = section, body.next
    return spans


def _add_section(view: memoryview, section: int, start: int, body: _Primitive, body_at: int, spans: _Spans) -> None:
    if section in _MAP_SECTIONS:
        _map(view, body_at, body, _MAP_SECTIONS[section], spans)
    elif section == 0x70:
        _fields(view, body_at, body, AmqpField.DURABLE, 5, spans)
    elif section == 0x73:
        _fields(view, body_at, body, AmqpField.MESSAGE_ID, 13, spans)
    elif section == 0x77:
        spans[AmqpField.VALUE] = body.span(body_at)
    else:
        field, allowed = (AmqpField.DATA, _BINARY) if section == 0x75 else (AmqpField.SEQUENCE, (0x45, *_LISTS))
        if body.code not in allowed:
            raise _FaultError(body_at, AmqpFault.BAD_FIELD)
        _, first, _, count = spans.get(field, (0, start, 0, 0))
        spans[field] = body.code, first, body.next - first, count + 1


def _narrow(view: memoryview, spans: _Spans) -> None:
    """A body of one section of data: its content alone, so that it can be gathered as it is."""
    code, start, length, sections = spans.get(AmqpField.DATA, (0, 0, 0, 0))
    if sections == 1:
        body = _value(view, _value(view, start + 1, start + length).next, start + length)
        spans[AmqpField.DATA] = code, body.position, body.length, 1


def scan_amqp(
    buf: Buffer, positions: Int64s, lengths: UInt32s, fields: AmqpSpans, faults: UInt32s, fault_positions: Int64s
) -> None:
    """Walk messages of AMQP 1.0, wherever they lie in the buffer. Fill in a span for each `AmqpField` of each row, one
    field after another, and the `AmqpFault` of each row with the byte of the value that shows it. A row with a fault
    has no field. A value without bytes is a message without sections, as some clients write one.

    A body of one section of data has the span of its content; one of several sections, and one of sequences, the span
    of all of them, with their number as the count."""
    view, rows = memoryview(buf).cast("B"), len(faults)
    if not len(positions) == len(lengths) == len(fault_positions) == rows:
        raise ValueError("positions and faults differ in length")
    if len(fields.code) != len(AmqpField) * rows:
        raise ValueError(f"a row has {len(AmqpField)} fields")
    fields.code[:] = 0
    for row in range(rows):
        at, end = int(positions[row]), int(positions[row]) + int(lengths[row])
        if not 0 <= at <= end <= len(view):
            raise ValueError(f"row {row} lies outside of the buffer")
        spans: _Spans = dict.fromkeys(AmqpField, (0, 0, 0, 0))
        faults[row], fault_positions[row] = AmqpFault.SOUND, 0
        try:
            spans = _message(view, at, end)
            _narrow(view, spans)
        except _FaultError as error:
            faults[row], fault_positions[row] = error.fault, error.position - at
        for field, span in spans.items():
            _store(fields, field * rows + row, span)


def scan_amqp_pairs(buf: Buffer, contents: AmqpSpans, keys: AmqpSpans, values: AmqpSpans) -> None:
    """Fill in the keys and values of maps, row after row; a row has ``count`` of both together between ``position`` and
    ``position + length``."""
    view, total, filled = memoryview(buf).cast("B"), len(keys.code), 0
    if len(values.code) != total:
        raise ValueError("keys and values differ in length")
    for row in range(len(contents.code)):
        at, pairs = int(contents.position[row]), int(contents.count[row]) // 2
        if contents.count[row] == 0:
            continue
        end = at + int(contents.length[row])
        wrong = ValueError(f"row {row} does not hold its pairs")
        if not 0 <= at <= end <= len(view) or pairs > total - filled:
            raise wrong
        for _ in range(pairs):
            for spans in (keys, values):
                try:
                    item = _value(view, at, end)
                except _FaultError:
                    raise wrong from None
                _store(spans, filled, item.span(at))
                at = item.next
            filled += 1
        if at != end:
            raise wrong
    if filled != total:
        raise ValueError(f"row {len(contents.code)} does not hold its pairs")


def _store(spans: AmqpSpans, row: int, span: tuple[int, int, int, int]) -> None:
    spans.code[row], spans.position[row], spans.length[row], spans.count[row] = span


# --- values as text

_SHOWN_NUMBERS = {0x43, 0x44, *range(0x50, 0x56), 0x60, 0x61, 0x70, 0x71, 0x81}
_NOTHING, _UNSIGNED, _UUID = (0x00, 0x40), 0x80, 0x98
_MOST_BYTES = {
    **dict.fromkeys(_NOTHING, 0), **dict.fromkeys((*_SHOWN_NUMBERS, _UNSIGNED), 20), **dict.fromkeys(_BOOLEAN, 5),
    _UUID: 36,
}  # fmt: skip


def measure_amqp_texts(spans: AmqpSpans) -> tuple[int, int, int]:
    """How many bytes the texts of values take at most; how many texts have to be given to `fill_amqp_texts`, which
    makes those of text, integers, booleans and UUIDs; and how many values are absent or null."""
    total = given = without = 0
    for code, length in zip(spans.code.tolist(), spans.length.tolist(), strict=True):
        total += length if code in _TEXT else _MOST_BYTES.get(code, 0)
        given += code not in _TEXT and code not in _MOST_BYTES
        without += code in _NOTHING
    return total, given, without


def fill_amqp_texts(
    buf: Buffer, spans: AmqpSpans, given: Buffer, given_offsets: Int32s, offsets: Int32s, data: Buffer
) -> int:
    """Fill in the values as text, one after another, with Arrow's offsets; returns the bytes. What is absent or null
    has no bytes. Texts that the kernel does not make come from ``given``, in their order."""
    view = memoryview(buf).cast("B")
    if len(given_offsets) == 0:
        raise ValueError("texts have one offset at least")
    if len(offsets) != len(spans.code) + 1:
        raise ValueError("spans and offsets differ in length")
    following = iter(_texts(given, given_offsets))
    texts = (
        _text(view, code, at, length) if code in _TEXT or code in _MOST_BYTES else next(following, None)
        for code, at, length in zip(spans.code.tolist(), spans.position.tolist(), spans.length.tolist(), strict=True)
    )
    return _fill(texts, offsets, data, "does not fit, or no text is given for it")


def _text(view: memoryview, code: int, at: int, length: int) -> bytes | None:
    if code in _NOTHING:
        return b""
    if code in _BOOLEAN:
        return b"true" if at else b"false"
    if code in _SHOWN_NUMBERS or code == _UNSIGNED:
        return str(at % 2**64 if code == _UNSIGNED else at).encode()
    if not 0 <= at <= at + length <= len(view) or (code == _UUID and length != 16):
        return None
    raw = bytes(view[at : at + length])
    return str(UUID(bytes=raw)).encode() if code == _UUID else raw


def fill_amqp_names(codes: UInt8s, names: Buffer, name_offsets: Int32s, offsets: Int32s, data: Buffer) -> int:
    """Fill in for each code its name, one after another, with Arrow's offsets; returns the bytes."""
    if len(name_offsets) == 0:
        raise ValueError("texts have one offset at least")
    if len(offsets) != len(codes) + 1:
        raise ValueError("codes and offsets differ in length")
    texts = _texts(names, name_offsets)
    found = (texts[code] if code < len(texts) else None for code in codes.tolist())
    return _fill(found, offsets, data, "has no name, or does not fit")


def _texts(data: Buffer, offsets: Int32s) -> list[bytes | None]:
    """Texts by Arrow's offsets; None for one with invalid offsets."""
    view = memoryview(data).cast("B")
    bounds = itertools.pairwise(offsets.tolist())
    return [bytes(view[start:end]) if 0 <= start <= end <= len(view) else None for start, end in bounds]


def _fill(texts: Iterable[bytes | None], offsets: Int32s, data: Buffer, fault: str) -> int:
    target, at = memoryview(data).cast("B"), 0
    offsets[0] = 0
    for row, text in enumerate(texts):
        if text is None or len(text) > min(len(target), 2**31 - 1) - at:
            raise ValueError(f"row {row} {fault}")
        target[at : at + len(text)] = text
        at += len(text)
        offsets[row + 1] = at
    return at
