"""The compiled kernel against its Python twin: one call of each, and the answers must be equal.

Refusals count as answers. Knows no strategy for making arguments: `kernel` here makes them of a fuzzer's bytes, the
tests of the kernel of Hypothesis'.
"""

from __future__ import annotations

import itertools
import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import fields
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from duramen.formats import durable_log, rustlog
from duramen.formats.keratin import keratin
from duramen.kernel import _amqp, _chunks, _columns, _crc, _events, _frames, _hashes, _keys, _slots, reference
from duramen.kernel.layout import (
    Checksum,
    ChunkColumns,
    Columns,
    Const,
    EntryColumns,
    FrameColumns,
    FrameLayout,
    Stop,
)

REFUSALS = (ValueError, TypeError, OverflowError, BufferError)
COMPILED: dict[str, ModuleType] = {
    name: module
    for module in (_amqp, _chunks, _columns, _crc, _events, _frames, _hashes, _keys, _slots)
    for name in dir(module)
    if hasattr(reference, name) and callable(getattr(module, name)) and not isinstance(getattr(module, name), type)
}

Call = tuple[Sequence[Any], dict[str, Any], Sequence[Any]]
"""Positional arguments, keyword arguments, and the arrays that the call fills in."""


class Refused(NamedTuple):
    """In place of an answer: the function raised."""

    why: str


def both(name: str, make: Callable[[], Call]) -> Any:
    """Call both halves, each with arguments of its own.

    Answers what the compiled half did: its result and the bytes of the filled arrays, or `Refused`. The words of a
    refusal must agree where they name a row."""
    answers: list[Any] = []
    for half in (COMPILED[name], reference):
        args, kwargs, filled = make()
        try:
            result = getattr(half, name)(*args, **kwargs)
        except REFUSALS as error:
            answers.append(Refused(str(error)))
        else:
            answers.append((result, [bytes(memoryview(array).cast("B")) for array in filled]))
    compiled, twin = answers
    if isinstance(compiled, Refused) and isinstance(twin, Refused):
        names_row = any(half.why.startswith(("row ", "chunk ")) for half in (compiled, twin))
        assert not names_row or compiled == twin, (name, compiled, twin)
        return compiled
    assert compiled == twin, (name, compiled, twin)
    return compiled


def arrays_of(columns: Columns) -> list[Any]:
    return [getattr(columns, field.name) for field in fields(columns)]


def zeroed(kind: type[Columns], capacity: int) -> Any:
    """Columns that hold nothing by accident, so that what a scan leaves alone compares equal."""
    columns = kind.empty(capacity)
    for array in arrays_of(columns):
        array[:] = 0
    return columns


# --- arguments from a fuzzer's bytes


class Reader:
    """Numbers off the front of the bytes; zeros once they are used up."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def take(self, count: int) -> bytes:
        taken, self._data = self._data[:count].ljust(count, b"\0"), self._data[count:]
        return taken

    def number(self, code: str) -> int:
        return struct.unpack("<" + code, self.take(struct.calcsize(code)))[0]

    def rest(self) -> bytes:
        return self._data


def any_layout(seed: int) -> FrameLayout:
    """A table of fields in any order, with gaps, constants and checksums of any kind."""
    dice = random.Random(seed)
    checksum = dice.choice(list(Checksum))
    in_header = checksum != Checksum.NONE and dice.random() < 0.5
    widths = {"offset": 8, "length": 4}
    optional = {"headers_length": 4, "timestamp": 8, "flags": 4}
    widths |= {name: width for name, width in optional.items() if dice.random() < 0.5}
    const_widths = [dice.choice([1, 2, 3, 4, 8]) for _ in range(dice.randrange(5))]
    widths |= {f"const{i}": width for i, width in enumerate(const_widths)}
    if in_header:
        widths["checksum"] = 4
    at, places = 0, {}
    for name in dice.sample(sorted(widths), len(widths)):
        at += dice.choice([0, 0, 1, 3])
        places[name] = at
        at += widths[name]
    stops = (Stop.BAD_MAGIC, Stop.BAD_VERSION, Stop.BAD_FIELD)
    consts = [
        Const(places[f"const{i}"], width, dice.randrange(min(256**width, 2**63)), dice.choice(stops))
        for i, width in enumerate(const_widths)
    ]
    return FrameLayout(
        header_bytes=at,
        big_endian=dice.random() < 0.5,
        offset_at=places["offset"],
        length_at=places["length"],
        consts=tuple(consts),
        trailer_bytes=dice.randrange(4, 8) if checksum and not in_header else dice.randrange(4),
        headers_length_at=places.get("headers_length", -1),
        timestamp_at=places.get("timestamp", -1),
        flags_at=places.get("flags", -1),
        checksum=checksum,
        checksum_at=places.get("checksum", -1),
        covered_from=dice.randrange(places["checksum"] + 4 if in_header else 0, at + 1),
        max_payload_bytes=dice.choice([2**32 - 1, 64]),
    )


LAYOUTS = [
    durable_log.DIALECT.layout,
    keratin.DIALECT.layout,
    rustlog.SPEC.layout,
    rustlog.SHORT.layout,
    *map(any_layout, range(28)),
]


class Scanning(NamedTuple):
    """What the functions over a range of bytes take."""

    layout: FrameLayout
    position: int
    end: int
    previous_offset: int
    target: int
    capacity: int
    max_bytes: int
    record_bytes: int
    verify: bool


def scanning(reader: Reader) -> Scanning:
    """Mostly the whole of the bytes from their start, sometimes any range or limit."""
    layout, shape = LAYOUTS[reader.number("B") % len(LAYOUTS)], reader.number("B")
    position, end = (reader.number("b"), reader.number("h")) if shape & 1 else (0, -1)
    offset, target = reader.number("q") if shape & 2 else -1, reader.number("q") if shape & 4 else 2**63 - 1
    capacity = reader.number("B") % 16 if shape & 8 else 64
    max_bytes = reader.number("h") if shape & 16 else 2**62
    record_bytes = reader.number("b") if shape & 32 else 16
    size = len(reader.rest())
    return Scanning(
        layout, position, size if end == -1 else end, offset, target, capacity, max_bytes, record_bytes, not shape & 64
    )


def _scan_frames(reader: Reader) -> None:
    s, buf = scanning(reader), reader.rest()

    def make() -> Call:
        columns = zeroed(FrameColumns, s.capacity)
        args = (buf, s.position, s.end, s.layout, columns, s.previous_offset, s.max_bytes, s.verify)
        return args, {}, arrays_of(columns)

    def make_taking() -> Call:
        args, _, filled = make()
        taken = {"value_offsets": np.zeros(s.capacity + 1, np.int32), "values": np.zeros(s.max_bytes % 97, np.uint8)}
        return args, taken, [*filled, *taken.values()]

    both("scan_frames", make)
    both("scan_frames", make_taking)


def _scan_chunks(reader: Reader) -> None:
    s, buf = scanning(reader), reader.rest()
    made: list[ChunkColumns] = []

    def make() -> Call:
        columns = zeroed(ChunkColumns, s.capacity)
        made.append(columns)
        args = (buf, s.position, s.end, columns, s.previous_offset, s.max_bytes, s.verify, s.capacity)
        return args, {}, arrays_of(columns)

    answer = both("scan_chunks", make)
    if isinstance(answer, Refused):
        return
    chunks = made[0].head(answer[0].count)

    def make_entries() -> Call:
        entries = zeroed(EntryColumns, int(chunks.entries.sum()))
        return (buf, chunks, entries), {}, arrays_of(entries)

    both("scan_entries", make_entries)


def _scan_any_entries(reader: Reader) -> None:
    """Chunk columns that no scan filled in: they may point anywhere."""
    chunks = zeroed(ChunkColumns, 2)
    for row in range(2):
        chunks.data_position[row] = reader.number("h")
        chunks.data_length[row] = reader.number("H")
        chunks.chunk_id[row] = reader.number("q")
        chunks.entries[row] = reader.number("B")
        chunks.chunk_type[row] = reader.number("B") % 3
    room, buf = reader.number("B"), reader.rest()

    def make() -> Call:
        entries = zeroed(EntryColumns, room)
        return (buf, chunks, entries), {}, arrays_of(entries)

    both("scan_entries", make)


def _seek_and_find(reader: Reader) -> None:
    s, buf = scanning(reader), reader.rest()
    at = (buf, s.position, s.end)
    both("seek_frame", lambda: ((*at, s.layout, s.target, s.previous_offset), {}, ()))
    both("find_frame", lambda: ((*at, s.layout, s.previous_offset), {}, ()))
    both("seek_chunk", lambda: ((*at, s.target, s.previous_offset), {}, ()))
    both("find_chunk", lambda: ((*at, s.previous_offset), {}, ()))


def _slots_and_bytes(reader: Reader) -> None:
    s, buf = scanning(reader), reader.rest()
    at = (buf, s.position, s.end)
    both("scan_slots", lambda: ((*at, s.record_bytes, s.capacity, s.verify), {}, ()))
    both("find_slot", lambda: ((*at, s.record_bytes), {}, ()))
    both("infer_slot", lambda: ((buf, s.max_bytes), {}, ()))
    both("is_zero", lambda: (at, {}, ()))
    for name in ("crc32", "crc32c"):
        both(name, lambda: ((buf, s.previous_offset), {}, ()))

    def make() -> Call:
        positions, lengths = np.zeros(s.capacity, np.int64), np.zeros(s.capacity, np.uint32)
        return (*at, positions, lengths), {}, (positions, lengths)

    both("scan_prefixed", make)


def _rows(reader: Reader) -> tuple[int, Any, Any]:
    """Up to seven rows: their offsets, and Arrow's offsets into the values, which may make no sense."""
    count = reader.number("B") % 8
    offsets = np.array([reader.number("q") for _ in range(count)], np.int64)
    bounds = np.array([reader.number("b") for _ in range(count + 1)], np.int32)
    return count, offsets, np.sort(bounds) if reader.number("B") & 3 else bounds


def _gather(reader: Reader) -> None:
    count = reader.number("B") % 8
    positions = np.array([reader.number("h") for _ in range(count)], np.int64)
    lengths = np.array([reader.number("H") % 512 for _ in range(count)], np.uint32)
    room, buf = reader.number("H") % 2048, reader.rest()

    def make() -> Call:
        offsets, data = np.zeros(count + 1, np.int32), np.zeros(room, np.uint8)
        return (buf, positions, lengths, offsets, data), {}, (offsets, data)

    both("gather", make)


def _murmur2(reader: Reader) -> None:
    count, _, bounds = _rows(reader)
    buf = reader.rest()

    def make() -> Call:
        hashes = np.zeros(count, np.uint32)
        return (buf, bounds, hashes), {}, (hashes,)

    both("murmur2", make)


def _encode(reader: Reader) -> None:
    layout = LAYOUTS[reader.number("B") % len(LAYOUTS)]
    count, offsets, bounds = _rows(reader)
    size, base, with_headers = reader.number("H") % 1024, reader.number("i"), reader.number("B") & 1
    values = reader.rest()
    headers: dict[str, Any] = {"headers": values, "headers_offsets": bounds} if with_headers else {}

    parts = tuple(values[max(a, 0) : max(b, 0)] for a, b in itertools.pairwise(bounds.tolist()))

    def make_frames(*source: Any) -> Call:
        out, columns = np.zeros(size, np.uint8), zeroed(FrameColumns, count)
        columns.offset[:] = columns.timestamp[:] = offsets
        columns.flags[:] = offsets.astype(np.uint32)
        return (out, layout, columns, *source), {"base_position": base, **headers}, (out, *arrays_of(columns))

    def make_entries() -> Call:
        out, positions = np.zeros(size, np.uint8), np.zeros(count, np.int64)
        return (out, values, bounds, positions, base), {}, (out, positions)

    def make_chunks(*source: Any) -> Call:
        out, columns = np.zeros(size, np.uint8), zeroed(ChunkColumns, 2)
        columns.records[:] = [with_headers, count - with_headers if count > with_headers else 0]
        columns.chunk_id[:] = columns.epoch[:] = base
        return (out, base & 1, columns, *source), {"base_position": base}, (out, *arrays_of(columns))

    def make_starts(*source: Any) -> Call:
        starts = np.zeros(count, np.int64)
        return (starts, size, with_headers + 1, *source), {}, (starts,)

    def make_slots(*source: Any) -> Call:
        out = np.zeros(size, np.uint8)
        return (out, len(parts[0]) if parts else 1, *source), {}, (out,)

    for source in ((values, bounds), (parts,)):
        both("encode_frames", lambda source=source: make_frames(*source))
        both("encode_chunks", lambda source=source: make_chunks(*source))
        both("split_chunks", lambda source=source: make_starts(*source))
        both("encode_slots", lambda source=source: make_slots(*source))
    both("encode_entries", make_entries)


CALLS = (
    _scan_frames, _scan_chunks, _seek_and_find, _slots_and_bytes, _scan_any_entries, _gather, _encode, _murmur2,
)  # fmt: skip


def kernel(data: bytes) -> None:
    """One group of functions, which the first byte chooses, on arguments made of the others."""
    reader = Reader(data)
    CALLS[reader.number("B") % len(CALLS)](reader)
