"""Kafka's batches: the compiled functions against their Python twins, on batches of every kind and on bytes of every
kind. The batches are packed here with `struct`, `zlib` and google-crc32c, not with the program's own code."""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import cramjam
import google_crc32c
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duramen.kernel import _batches, _bodies
from duramen.kernel.layout import (
    NOT_FOUND,
    NULL_LENGTH,
    BatchColumns,
    BodyFault,
    HeaderColumns,
    RecordColumns,
    RecordRanges,
    ScanEnd,
    Stop,
)
from fuzz.agreement import arrays_of, zeroed
from tests.kernel.twins import COMPILED, INT64, Refused, both, digests_for, edited, guarded, rows_of
from tests.sampling import examples

for function in (
    "encode_batches", "encode_record", "find_batch", "scan_batches", "scan_headers", "scan_records", "take_batches",
):  # fmt: skip
    COMPILED.setdefault(function, _batches)
COMPILED.setdefault("bound_bodies", _bodies)


# --- packing


def varint(number: int) -> bytes:
    number = number << 1 ^ number >> 63
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def prefixed(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


class KafkaRecord(NamedTuple):
    delta: int = 0
    time: int = 0
    key: bytes | None = None
    value: bytes | None = b""
    headers: Sequence[tuple[bytes, bytes | None]] = ()

    def pack(self) -> bytes:
        headers = b"".join(prefixed(key) + prefixed(value) for key, value in self.headers)
        body = b"\0" + varint(self.time) + varint(self.delta) + prefixed(self.key) + prefixed(self.value)
        body += varint(len(self.headers)) + headers
        return varint(len(body)) + body


def batch(offset: int, records: Sequence[KafkaRecord], attributes: int = 0, last_delta: int | None = None) -> bytes:
    data = b"".join(record.pack() for record in records)
    last = last_delta if last_delta is not None else records[-1].delta if records else 0
    covered = struct.pack(">HiqqqhiI", attributes, last, 1000, 2000, 7, 1, 3, len(records)) + data
    return struct.pack(">qiibI", offset, len(covered) + 9, 5, 2, google_crc32c.value(covered)) + covered


def message(offset: int, value: bytes | None, magic: int = 1, attributes: int = 0, key: bytes | None = None) -> bytes:
    def sized(data: bytes | None) -> bytes:
        return struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data

    covered = struct.pack(">bb", magic, attributes) + (struct.pack(">q", 1234) if magic else b"")
    covered += sized(key) + sized(value)
    return struct.pack(">qiI", offset, len(covered) + 4, zlib.crc32(covered)) + covered


# --- both halves


def scan(
    buf: Any, *, position: int = 0, end: int | None = None, capacity: int = 8, previous: int = -1,
    max_bytes: int = 2**62, verify: bool = True, max_records: int = 2**62,
) -> tuple[ScanEnd, BatchColumns] | Refused:  # fmt: skip
    made: list[BatchColumns] = []

    def make() -> Any:
        columns, sums = zeroed(BatchColumns, capacity), digests_for(buf)
        made.append(columns)
        until = len(memoryview(buf)) if end is None else end
        args = (buf, position, until, columns, previous, max_bytes, verify, max_records, sums)
        return args, {}, [*arrays_of(columns), *([] if sums is None else [sums])]

    answer = both("scan_batches", make)
    return answer if isinstance(answer, Refused) else (answer[0], made[0].head(answer[0].count))


def take(
    buf: Any, capacity: int, *, records: int = 64, values_bytes: int | None = None, **limits: Any
) -> tuple[ScanEnd, int, RecordColumns, bytes] | Refused:
    """A scan that takes the records; it must end as one that does not."""
    made: list[RecordColumns] = []
    room = len(memoryview(buf)) if values_bytes is None else values_bytes

    def make() -> Any:
        batches, columns = zeroed(BatchColumns, capacity), zeroed(RecordColumns, records)
        offsets, values = np.zeros(records + 1, np.int32), np.zeros(room, np.uint8)
        made.append(columns)
        args = (buf, 0, len(memoryview(buf)), batches, columns, offsets, values)
        return args, limits, [values, *arrays_of(batches), *arrays_of(columns), offsets]

    answer = both("take_batches", make)
    if isinstance(answer, Refused):
        return answer
    (end, count), (values, *_) = answer
    batches = zeroed(BatchColumns, capacity)
    whole = _batches.scan_batches(buf, 0, len(memoryview(buf)), batches, **limits)
    assert end == whole or (0 < end.count <= whole.count and end.stop == Stop.LIMIT and count >= 0)
    assert count in (-1, batches.visible[: end.count].sum(dtype=np.int64))
    return end, count, made[0].head(max(count, 0)), bytes(values)


def find(buf: Any, position: int = 0, previous: int = -1) -> Any:
    answer = both("find_batch", lambda: ((buf, position, len(memoryview(buf)), previous), {}, []))
    return answer if isinstance(answer, Refused) else answer[0]


def records_in(
    buf: Any, ranges: RecordRanges, capacity: int, *, plain: Any = b"", walk_headers: bool = True,
    values_bytes: int | None = None,
) -> tuple[int, RecordColumns] | Refused:  # fmt: skip
    made: list[RecordColumns] = []

    def make() -> Any:
        columns = zeroed(RecordColumns, capacity)
        made.append(columns)
        args, filled = (buf, plain, ranges, columns, walk_headers), arrays_of(columns)
        if values_bytes is None:
            return args, {}, filled
        offsets, values = np.zeros(capacity + 1, np.int32), np.zeros(values_bytes, np.uint8)
        return (*args, offsets, values), {}, [*filled, offsets, values]

    answer = both("scan_records", make)
    return answer if isinstance(answer, Refused) else (answer[0], made[0])


def headers_in(buf: Any, positions: Any, counts: Any, capacity: int) -> tuple[int, HeaderColumns] | Refused:
    made: list[HeaderColumns] = []

    def make() -> Any:
        columns = zeroed(HeaderColumns, capacity)
        made.append(columns)
        return (buf, positions, counts, columns), {}, arrays_of(columns)

    answer = both("scan_headers", make)
    return answer if isinstance(answer, Refused) else (answer[0], made[0])


def ranges_of(batches: BatchColumns, in_plain: Sequence[int] | None = None) -> RecordRanges:
    counts = batches.records.astype(np.int64)
    return RecordRanges(
        position=batches.data_position.copy(), length=batches.data_length.astype(np.int64), records=counts,
        row=np.cumsum(counts) - counts, base_offset=batches.base_offset.copy(),
        last_offset=batches.last_offset.copy(), base_timestamp=batches.base_timestamp.copy(),
        in_plain=np.array(in_plain if in_plain is not None else [0] * len(batches), np.uint32),
    )  # fmt: skip


HEADER = st.tuples(st.binary(max_size=3), st.none() | st.binary(max_size=3))


@st.composite
def batches(draw: st.DrawFn) -> list[bytes]:
    """A few batches and messages with increasing offsets."""
    offset = draw(st.sampled_from([0, 3, 2**31, 2**63 - 500]))
    made = []
    for _ in range(draw(st.integers(0, 4))):
        offset += draw(st.integers(0, 2))
        if draw(st.booleans()):
            deltas = sorted(draw(st.sets(st.integers(0, 9), max_size=4)))
            times = st.sampled_from([0, 1, -1, 70_000, 2**62, -(2**62)])
            fields = st.none() | st.binary(max_size=5)
            records = [
                KafkaRecord(delta, draw(times), draw(fields), draw(fields), draw(st.lists(HEADER, max_size=2)))
                for delta in deltas
            ]
            attributes = draw(st.sampled_from([0, 0, 8, 16, 48, 64, 2**15]))
            last = max([*deltas, draw(st.integers(0, 10))])
            made.append(batch(offset, records, attributes, last))
            offset += last + 1
        else:
            made.append(message(offset, draw(st.none() | st.binary(max_size=5)), draw(st.integers(0, 1))))
            offset += 1
    return made


def test_a_batch_becomes_a_row_and_its_records_columns() -> None:
    records = [KafkaRecord(0, 5, b"k", b"one", [(b"h", None)]), KafkaRecord(3, -6, None, None)]
    data = batch(10, records, last_delta=4) + message(15, b"old", key=b"x")
    answer = scan(data)
    assert not isinstance(answer, Refused)
    end, rows = answer
    assert end == ScanEnd(2, len(data), int(Stop.END), 15)
    assert rows.base_offset.tolist() == [10, 15]
    assert rows.last_offset.tolist() == [14, 15]
    assert rows.magic.tolist() == [2, 1]
    assert rows.leader_epoch.tolist() == [5, -1]
    assert rows.max_timestamp.tolist() == [2000, 1234]
    assert rows.producer_id.tolist() == [7, -1]
    found = records_in(data, ranges_of(rows.head(1)), 2)
    assert not isinstance(found, Refused)
    count, columns = found
    assert count == 2
    assert columns.offset.tolist() == [10, 13]
    assert columns.timestamp.tolist() == [1005, 994]
    assert columns.key_length.tolist() == [1, NULL_LENGTH]
    assert columns.value_length.tolist() == [3, NULL_LENGTH]
    headers = headers_in(data, columns.headers_position[:1], columns.headers[:1], 1)
    assert not isinstance(headers, Refused)
    assert headers[1].value_length.tolist() == [NULL_LENGTH]
    assert data[headers[1].key_position[0] :][:1] == b"h"


def test_values_are_copied_from_both_sources_in_order() -> None:
    parts = [batch(at, [KafkaRecord(0, value=value)]) for at, value in enumerate([b"one", None, b"", b"four"])]
    data = b"".join(parts)
    answer = scan(data)
    assert not isinstance(answer, Refused)
    offsets, values = np.zeros(5, np.int32), np.zeros(7, np.uint8)
    ranges = ranges_of(answer[1], [0, 1, 0, 1])
    assert _batches.scan_records(data, data, ranges, zeroed(RecordColumns, 4), True, offsets, values) == 4
    assert offsets.tolist() == [0, 3, 3, 3, 7]
    assert bytes(values) == b"onefour"
    assert _batches.scan_records(data, data, ranges, zeroed(RecordColumns, 4), True, offsets, values[:6]) == -4


def test_a_scan_takes_the_records_of_what_it_can_read() -> None:
    plain = batch(0, [KafkaRecord(0, 5, b"k", b"one"), KafkaRecord(1, 6, None, None)])
    control = batch(2, [KafkaRecord(key=b"\0\0\0\1")], attributes=0x30)
    more = batch(3, [KafkaRecord(value=b"two" * 9)])
    found = take(guarded(plain + control + more), 4)
    assert not isinstance(found, Refused)
    assert found[1:2] == (3,)
    assert found[2].offset.tolist() == [0, 1, 3]
    assert found[3].rstrip(b"\0") == b"one" + b"two" * 9
    misfit = batch(4, [KafkaRecord(2)], last_delta=1)
    for other in (batch(4, [KafkaRecord()], attributes=4), message(4, b"old"), misfit):
        answer = take(guarded(plain + other), 4)
        assert not isinstance(answer, Refused)
        assert answer[0].count == 2
        assert answer[1] == -1
    for name, room, count in (("records", 2, 2), ("values_bytes", 24, 2), ("records", 1, -1), ("values_bytes", 5, -1)):
        answer = take(guarded(plain + more), 4, **{name: room})
        assert not isinstance(answer, Refused)
        assert answer[1] == count


def test_headers_that_are_not_wanted_are_not_looked_at() -> None:
    good = KafkaRecord(value=b"v", headers=[(b"key", b"value")]).pack()
    bad = good[:-6] + b"\x7f" + good[-5:]  # the length of the header's value exceeds the record
    ranges = RecordRanges(
        *(np.array([number], np.int64) for number in (0, len(bad), 1, 0, 0, 0, 0)), np.zeros(1, np.uint32)
    )
    for record, walk, found in ((good, True, 1), (bad, True, -1), (bad, False, 1)):
        answer = records_in(record, ranges, 1, walk_headers=walk)
        assert not isinstance(answer, Refused)
        assert answer[0] == found


def test_a_control_batch_is_not_visible() -> None:
    answer = scan(batch(0, [KafkaRecord(key=b"\0\0\0\1")], attributes=0x30))
    assert not isinstance(answer, Refused)
    assert answer[1].records.tolist() == [1]
    assert answer[1].visible.tolist() == [0]


@pytest.mark.parametrize(
    ("data", "stop"),
    [
        (bytes(40), Stop.ZEROS),
        (batch(0, [])[:16], Stop.SHORT_HEADER),
        (batch(0, [])[:60], Stop.SHORT_BODY),
        (batch(0, [KafkaRecord(1)], last_delta=0), Stop.END),
        (batch(0, [KafkaRecord(), KafkaRecord(1)], last_delta=0), Stop.BAD_ENTRIES),
        (message(0, b"x", magic=3), Stop.BAD_VERSION),
        (message(9, b"x", magic=3), Stop.BAD_MAGIC),
        (message(0, b"x", magic=1)[:-1] + b"y", Stop.BAD_CHECKSUM),
        (message(-1, b"x"), Stop.BAD_RANGE),
        (message(0, b"x") * 2, Stop.BAD_ORDER),
    ],
)  # fmt: skip
def test_why_a_scan_stops(data: bytes, stop: Stop) -> None:
    answer = scan(data)
    assert not isinstance(answer, Refused)
    assert answer[0].stop == stop


@settings(max_examples=examples(200))
@given(batches(), st.data())
def test_both_halves_agree_on_batches(parts: list[bytes], data: st.DataObject) -> None:
    buf = b"".join(parts)
    answer = scan(guarded(buf), capacity=max(len(parts), 1))
    assert not isinstance(answer, Refused)
    end, rows = answer
    assert end.count == len(parts)
    assert end.stop == Stop.END
    modern = BatchColumns(**{name: getattr(rows, name)[rows.magic == 2] for name in vars(rows)})
    total = int(modern.records.sum())
    found = records_in(guarded(buf), ranges_of(modern), total)
    assert not isinstance(found, Refused)
    assert found[0] == total
    sources = data.draw(st.lists(st.integers(0, 2), min_size=len(modern), max_size=len(modern)))
    room = data.draw(st.sampled_from([len(buf), 3]))
    records_in(guarded(buf), ranges_of(modern, sources), total, plain=guarded(buf), values_bytes=room)
    headers = found[1].headers
    assert headers_in(buf, found[1].headers_position, headers, int(headers.sum())) is not None
    limits = {"max_bytes": data.draw(st.integers(-1, 300)), "max_records": data.draw(st.integers(-1, 5))}
    scan(buf, capacity=data.draw(st.integers(0, 3)), verify=data.draw(st.booleans()), **limits)
    take(guarded(buf), 9, values_bytes=room, records=data.draw(st.sampled_from([2, 64])))
    take(guarded(buf), data.draw(st.integers(0, 3)), **limits)


@settings(max_examples=examples(300))
@given(batches(), st.data())
def test_both_halves_agree_on_damaged_batches(parts: list[bytes], data: st.DataObject) -> None:
    buf = data.draw(edited(b"".join(parts)))
    whole = scan(guarded(buf), capacity=9)
    answer = scan(buf, capacity=9, verify=False, previous=data.draw(st.sampled_from([-1, 3, 2**63 - 1])))
    find(guarded(buf), data.draw(st.integers(0, len(buf))), data.draw(st.sampled_from([-1, 0, 5, 2**63 - 1])))
    take(guarded(buf), 9, verify=data.draw(st.booleans()), records=data.draw(st.sampled_from([0, 3, 64])))
    assert not isinstance(answer, Refused)
    assert not isinstance(whole, Refused)
    total, walk = min(int(answer[1].records.sum(dtype=np.int64)), 64), data.draw(st.booleans())
    records_in(guarded(buf), ranges_of(answer[1]), total, walk_headers=walk, values_bytes=len(buf))


@settings(max_examples=examples(300))
@given(st.binary(max_size=80), st.integers(0, 4), INT64, st.integers(0, 6), st.data())
def test_both_halves_agree_on_any_records(
    buf: bytes, count: int, base: int, last_delta: int, data: st.DataObject
) -> None:
    position = data.draw(st.integers(-1, len(buf) + 1))
    numbers = [position, data.draw(st.integers(-1, len(buf) + 1)), count, data.draw(st.integers(-1, 3)), base]
    last = min(base + last_delta, 2**63 - 1)
    where = (np.array([number], np.int64) for number in (*numbers, last, data.draw(INT64)))
    in_plain = data.draw(st.integers(0, 1))
    ranges = RecordRanges(*where, np.array([in_plain], np.uint32))
    sources = [b"", guarded(buf)] if in_plain else [guarded(buf), b""]
    walk, room = data.draw(st.booleans()), data.draw(st.sampled_from([None, 0, 5, 80]))
    records_in(sources[0], ranges, 4, plain=sources[1], walk_headers=walk, values_bytes=room)
    headers_in(guarded(buf), np.array([position], np.int64), np.array([count], np.uint32), 4)


def test_the_next_batch_after_damage_is_found() -> None:
    data = batch(0, [KafkaRecord(value=b"a" * 30)]) + batch(1, [KafkaRecord(value=b"b")]) + message(2, b"c")
    start = len(batch(0, [KafkaRecord(value=b"a" * 30)]))
    broken = data[:40] + b"\xff" + data[41:]
    assert find(broken, 1, -1) == start
    assert find(broken, 1, 1) == len(data) - len(message(2, b"c"))
    assert find(broken, start + 1, 5) == NOT_FOUND
    assert rows_of(BatchColumns.empty(0), 0) == []


# --- encoding


class Encoder(NamedTuple):
    """Batches of records for `encode_batches`, with all their bytes in four buffers."""

    batches: Any
    records: Any
    headers: Any
    fields: list[bytes]

    def run(self, capacity: int, base_position: int = 0) -> Any:
        def make() -> Any:
            out, columns = np.zeros(capacity, np.uint8), zeroed(BatchColumns, len(self.batches))
            for name, values in vars(self.batches).items():
                getattr(columns, name)[:] = values
            args = (out, columns, self.records, self.headers, *map(guarded, self.fields), base_position)
            return args, {}, [out, *arrays_of(columns)]

        return both("encode_batches", make)


def encoder_of(offsets: Sequence[int], parts: Sequence[Sequence[KafkaRecord]], lasts: Sequence[int]) -> Encoder:
    """What packs the same batches as `batch` does."""
    flat = [(base, record) for base, records in zip(offsets, parts, strict=True) for record in records]
    pairs = [pair for _, record in flat for pair in record.headers]
    rows, records, headers = (
        zeroed(kind, count)
        for kind, count in ((BatchColumns, len(parts)), (RecordColumns, len(flat)), (HeaderColumns, len(pairs)))
    )
    for name, value in (("leader_epoch", 5), ("base_timestamp", 1000), ("max_timestamp", 2000), ("producer_id", 7),
                        ("producer_epoch", 1), ("base_sequence", 3), ("attributes", 8)):  # fmt: skip
        getattr(rows, name)[:] = value
    rows.base_offset[:], rows.records[:] = offsets, [len(part) for part in parts]
    rows.last_offset[:] = np.array(offsets, np.int64) + np.array(lasts, np.int64)
    fields = [bytearray() for _ in range(4)]

    def put(columns: Any, name: str, row: int, data: bytes | None, field: int) -> None:
        getattr(columns, f"{name}_position")[row] = len(fields[field])
        getattr(columns, f"{name}_length")[row] = NULL_LENGTH if data is None else len(data)
        fields[field] += data or b""

    for row, (base, record) in enumerate(flat):
        records.offset[row], records.timestamp[row] = base + record.delta, 1000 + record.time
        records.headers[row] = len(record.headers)
        put(records, "key", row, record.key, 0)
        put(records, "value", row, record.value, 1)
    for row, (key, value) in enumerate(pairs):
        put(headers, "key", row, key, 2)
        put(headers, "value", row, value, 3)
    return Encoder(rows, records, headers, list(map(bytes, fields)))


@st.composite
def record_parts(draw: st.DrawFn) -> list[list[KafkaRecord]]:
    times = st.sampled_from([0, 1, -1, 63, 64, -64, -65, 70_000, 2**62, -(2**62)])
    fields = st.none() | st.binary(max_size=5) | st.sampled_from([b"v" * 63, b"v" * 64, b"v" * 8192])
    parts = []
    for _ in range(draw(st.integers(0, 3))):
        deltas = sorted(draw(st.sets(st.sampled_from([0, 1, 2, 63, 64, 8191, 8192, 2**30]), max_size=4)))
        headers = st.lists(HEADER, max_size=2)
        parts.append([KafkaRecord(one, draw(times), draw(fields), draw(fields), draw(headers)) for one in deltas])
    return parts


@settings(max_examples=examples(200))
@given(record_parts(), st.data())
def test_encoded_batches_are_those_that_other_code_packs(parts: list[list[KafkaRecord]], data: st.DataObject) -> None:
    lasts = [max([0, *(record.delta for record in part)]) + data.draw(st.integers(0, 2)) for part in parts]
    offsets = (np.cumsum(np.array(lasts, np.int64) + 1) - lasts).tolist() if parts else []
    expected = b"".join(batch(offset, part, 8, last) for offset, part, last in zip(offsets, parts, lasts, strict=True))
    encoder = encoder_of(offsets, parts, lasts)
    answer = encoder.run(len(expected) + 3, 100)
    assert not isinstance(answer, Refused)
    assert answer[0] == len(expected)
    assert answer[1][0][: len(expected)] == expected
    if expected:
        assert isinstance(encoder.run(data.draw(st.integers(0, len(expected) - 1))), Refused)


@settings(max_examples=examples(200))
@given(record_parts(), st.data())
def test_both_halves_refuse_the_same_columns(parts: list[list[KafkaRecord]], data: st.DataObject) -> None:
    offsets = [10_000 * number for number in range(len(parts))]
    encoder = encoder_of(offsets, parts, [max([0, *(record.delta for record in part)]) for part in parts])
    for columns in encoder[:3]:
        names = [name for name in vars(columns) if len(getattr(columns, name))]
        if names and data.draw(st.booleans()):
            column = getattr(columns, data.draw(st.sampled_from(names)))
            wild = INT64 if column.dtype == np.int64 else st.integers(0, 2**32 - 1)
            column[data.draw(st.integers(0, len(column) - 1))] = data.draw(st.sampled_from([0, 1, 2**31]) | wild)
    encoder.run(1 << 17)


# --- compressed bodies


def bounds_in(buf: Any, positions: Sequence[int], lengths: Sequence[int], codecs: Sequence[int]) -> Any:
    def make() -> Any:
        bounds = np.zeros(len(positions), np.int64)
        where = (np.array(positions, np.int64), np.array(lengths, np.uint32), np.array(codecs, np.uint32))
        return (buf, *where, bounds), {}, [bounds]

    answer = both("bound_bodies", make)
    return answer if isinstance(answer, Refused) else np.frombuffer(answer[1][0], np.int64).tolist()


def xerial(*blocks: bytes) -> bytes:
    packed = [bytes(cramjam.snappy.compress_raw(block)) for block in blocks]
    return b"\x82SNAPPY\0" + bytes(8) + b"".join(struct.pack(">I", len(block)) + block for block in packed)


def compressed(plain: bytes) -> list[tuple[int, bytes]]:
    """The bytes in every framing that Kafka knows, with the number of the codec."""
    streamed = cramjam.zstd.Compressor()  # states no size
    streamed.compress(plain)
    frames = [bytes(streamed.finish()), bytes(cramjam.zstd.compress(plain))]
    found = [(4, frame) for frame in (*frames, b"".join(frames), b"\x50\x2a\x4d\x18\x03\0\0\0abc" + frames[0])]
    member = bytes(cramjam.gzip.compress(plain))
    found += [
        (1, member),
        (1, member * 2),
        (1, member + gzip.compress(b"", mtime=1) + member),
        (3, bytes(cramjam.lz4.compress(plain))),
    ]
    return [*found, (2, bytes(cramjam.snappy.compress_raw(plain))), (2, xerial(plain, b"", plain))]


@pytest.mark.parametrize("plain", [b"", b"abc", b"0123456789" * 30_000], ids=["empty", "short", "long"])
def test_every_member_of_a_gzip_stream_counts(plain: bytes) -> None:
    one, empty = gzip.compress(plain), gzip.compress(b"")
    for body, expected in ((one, 1), (one + one, 2), (empty + one + empty + one + one + empty, 3)):
        assert bounds_in(guarded(body), [0], [len(body)], [1]) == [expected * len(plain)]


def test_what_looks_like_members_of_a_gzip_stream_is_bounded() -> None:
    """A length counts only where the bytes before it can unfold to it."""
    head = bytes.fromhex("1f8b0800000000000000")
    for length in (0, 20 * 1032, 20 * 1032 + 1, 2**32 - 1):
        body = head + bytes(6) + struct.pack("<I", length) + head + bytes(10)
        expected = length if length <= 20 * 1032 else 0
        assert bounds_in(guarded(body), [0], [len(body)], [1]) == [expected]
    body = (head + struct.pack("<I", 9000) * 3) * 100
    assert bounds_in(guarded(body), [0], [len(body)], [1]) == [100 * 9000]
    body = (head + struct.pack("<I", 20_000) * 3) * 100
    assert bounds_in(guarded(body), [0], [len(body)], [1])[0] <= 1032 * len(body)


@pytest.mark.parametrize("plain", [b"", b"abc", b"0123456789" * 30_000], ids=["empty", "short", "long"])
def test_a_bound_holds_what_a_body_unfolds_to(plain: bytes) -> None:
    for codec, body in compressed(plain):
        (bound,) = bounds_in(guarded(body), [0], [len(body)], [codec])
        assert bound >= len(plain)
        assert bound <= 4 * len(plain) + (128 << 10) * 4
        for cut in {1, len(body) // 2, len(body) - 1} - {0, len(body)}:
            bounds_in(guarded(body[:cut]), [0], [cut], [codec])


@settings(max_examples=examples(300))
@given(st.binary(max_size=40), st.integers(0, 6), st.data())
def test_both_halves_agree_on_any_body(plain: bytes, codec: int, data: st.DataObject) -> None:
    parts = compressed(plain)
    made, body = data.draw(st.sampled_from(parts))
    buf = data.draw(edited(body) | st.binary(max_size=60))
    bounds_in(guarded(buf), [0, 0], [len(buf), len(buf) // 2], [made, codec])
    position = data.draw(st.integers(-1, len(buf) + 1))
    bounds_in(guarded(buf), [position], [data.draw(st.integers(0, len(buf) + 1))], [made])


def test_a_fault_of_the_framing_is_named() -> None:
    lz4 = bytes(cramjam.lz4.compress(b"abc"))
    cases = [
        (5, b"", BodyFault.UNKNOWN_CODEC), (1, bytes(17), BodyFault.CUT_SHORT), (3, b"no frame", BodyFault.NO_FRAME),
        (3, lz4[:5] + b"\0" + lz4[6:], BodyFault.BAD_BLOCK), (3, lz4[:-8], BodyFault.CUT_SHORT),
        (4, b"none", BodyFault.NO_FRAME), (2, b"\xff" * 5, BodyFault.BAD_BLOCK), (2, b"", BodyFault.CUT_SHORT),
    ]  # fmt: skip
    for codec, body, fault in cases:
        assert bounds_in(body, [0], [len(body)], [codec]) == [fault], (codec, body)


# --- one record


def encode_record(value: bytes, fields: bytes, capacity: int = 9000, epoch: int = 5, attributes: int = 8) -> Any:
    """Both encoders; the bytes."""
    made: list[Any] = []

    def make() -> Any:
        out, row = np.zeros(capacity, np.uint8), zeroed(BatchColumns, 1)
        for name, number in (("leader_epoch", epoch), ("base_timestamp", 1000), ("max_timestamp", 2000),
                             ("producer_id", 7), ("producer_epoch", 1), ("base_sequence", 3),
                             ("attributes", attributes), ("base_offset", 9), ("last_offset", 9)):  # fmt: skip
            getattr(row, name)[:] = number
        made.append(out)
        return (out, row, guarded(value), guarded(fields), 100), {}, [out, *arrays_of(row)]

    answer = both("encode_record", make)
    return (
        answer if isinstance(answer, Refused) else bytes(made[0][: answer[0] if isinstance(answer, tuple) else answer])
    )


@given(
    st.none() | st.binary(max_size=5) | st.just(b"k" * 64),
    st.binary(max_size=5) | st.sampled_from([b"v" * 63, b"v" * 64, b"v" * 8192]),
    st.lists(st.tuples(st.binary(max_size=3), st.none() | st.binary(max_size=3)), max_size=3),
)
@settings(max_examples=examples(60))
def test_one_record_is_a_batch_of_one(key: bytes | None, value: bytes, headers: list[Any]) -> None:
    record = KafkaRecord(0, 0, key, value, headers)
    fields = prefixed(key) + varint(len(headers)) + b"".join(prefixed(one) for pair in headers for one in pair)
    whole = batch(9, [record], attributes=8)
    assert encode_record(value, fields) == whole
    if key is None and not headers:
        assert encode_record(value, b"") == whole
    assert isinstance(encode_record(value, fields, len(whole) - 1), Refused)
    assert encode_record(value, fields, len(whole)) == whole


@pytest.mark.parametrize(
    "fields",
    [b"\2", b"\x80", b"\x80\x80\x80\x80\x80\0", b"\3a", b"\xff\xff\xff\xff\x0f", b"\x06ab", b"\xfe\xff\xff\xff\x7f"],
    ids=bytes.hex,
)
def test_a_key_that_lies_outside_of_the_fields_is_refused(fields: bytes) -> None:
    assert isinstance(encode_record(b"v", fields), Refused)
    assert isinstance(encode_record(b"v", b"", epoch=2**31), Refused)
    assert isinstance(encode_record(b"v", b"", attributes=2**16), Refused)


@given(st.binary(max_size=12))
@settings(max_examples=examples(60))
def test_any_fields_of_one_record(fields: bytes) -> None:
    encode_record(b"v", fields)
