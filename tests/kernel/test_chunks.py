"""Chunks: the compiled functions against their Python twins, on logs of every kind and on bytes of every kind.

The logs are packed here with `struct` and `zlib`, not with the encoders of the program.
"""

from __future__ import annotations

import mmap
import random
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duramen.kernel import _chunks, reference
from duramen.kernel.layout import (
    BAD_TRACKING,
    GAVE_UP,
    NOT_FOUND,
    ChunkColumns,
    Columns,
    EntryColumns,
    EntryHit,
    ScanEnd,
    Stop,
)
from tests.kernel.twins import (
    COMPILED,
    INT64,
    Refused,
    arrow,
    both,
    digests_for,
    edited,
    flips,
    guarded,
    names,
    rows_of,
)
from tests.sampling import examples

FUNCTIONS = (
    "encode_chunks", "encode_entries", "find_chunk", "scan_chunks", "scan_entries", "scan_prefixed", "seek_chunk",
    "split_chunks",
)  # fmt: skip
for function in FUNCTIONS:
    COMPILED.setdefault(function, _chunks)

USER, DELTA, SNAPSHOT = 0, 1, 2
HEADER = struct.Struct(">BBHIqQQIIII")
FAR = 2**40


# --- packing


def simple(value: bytes) -> bytes:
    return struct.pack(">I", len(value)) + value


def sub_batch(body: bytes, records: int, compression: int = 0, stated: int | None = None) -> bytes:
    head = struct.pack(">BHII", 0x80 | compression << 4, records, len(body) if stated is None else stated, len(body))
    return head + body


def block(kind: int, key: bytes, *numbers: int) -> bytes:
    return bytes((kind, len(key))) + key + b"".join(n.to_bytes(8, "big") for n in numbers)


class Entry(NamedTuple):
    data: bytes
    records: int = 1


class EntryRow(NamedTuple):
    """A row of `EntryColumns`."""

    offset: int
    timestamp: int
    position: int
    value_position: int
    value_length: int
    sub_batch: int
    records: int
    uncompressed_length: int

    def value(self, data: bytes) -> bytes:
        return data[self.value_position : self.value_position + self.value_length]


class Made(NamedTuple):
    """A chunk to pack; what is None is computed from the entries."""

    chunk_id: int
    entries: Sequence[Entry]
    kind: int = USER
    version: int = 0
    timestamp: int = 1_700_000_000_000
    epoch: int = 1
    trailer: bytes = b""
    filter: bytes = b""
    records: int | None = None
    num_entries: int | None = None
    crc: int | None = None

    @property
    def total(self) -> int:
        return sum(entry.records for entry in self.entries)

    def pack(self) -> bytes:
        data = b"".join(entry.data for entry in self.entries)
        return (
            HEADER.pack(
                0x50 | self.version,
                self.kind,
                len(self.entries) if self.num_entries is None else self.num_entries,
                self.total if self.records is None else self.records,
                self.timestamp,
                self.epoch,
                self.chunk_id,
                zlib.crc32(data) if self.crc is None else self.crc,
                len(data),
                len(self.trailer),
                len(self.filter) << 24,
            )
            + self.filter
            + data
            + self.trailer
        )


def values(*bodies: bytes) -> list[Entry]:
    return [Entry(simple(body)) for body in bodies]


SMALL = [
    Made(5, values(b"aaa", b"", b"c"), trailer=block(0, b"pid", 42)),
    Made(8, [*values(b"x"), Entry(sub_batch(simple(b"yz") + simple(b""), 2), 2)], version=1, filter=b"\x81" * 16),
    Made(11, values(block(2, b"t", 9) + block(1, b"c", 4)), kind=DELTA),
    Made(12, values(block(1, b"c", 4) + block(0, b"pid", 5, 42)), kind=SNAPSHOT),
    Made(13, [Entry(sub_batch(b"squeezed", 3, 4, 90), 3)], epoch=2**64 - 1, timestamp=-5),
]


def log_of(chunks: Sequence[Made]) -> bytes:
    return b"".join(chunk.pack() for chunk in chunks)


@st.composite
def logs(draw: st.DrawFn, most: int = 4) -> list[Made]:
    """A few chunks of all kinds, with gaps between their ids."""
    chunk_id = draw(st.sampled_from([0, 1, 255, 2**32, 2**63 - 400]))
    made = []
    blocks = st.builds(block, st.integers(0, 2), st.binary(min_size=1, max_size=3), st.integers(0, 2**64 - 1))
    trailers = st.one_of(st.just(b""), st.lists(blocks, max_size=2).map(b"".join), st.binary(max_size=12))
    for _ in range(draw(st.integers(0, most))):
        kind = draw(st.sampled_from([USER, USER, USER, DELTA, SNAPSHOT]))
        entries = []
        for _ in range(draw(st.integers(1, 3)) if kind == USER else 1):
            body = draw(st.binary(max_size=9)) if kind == USER else draw(trailers)
            if kind == USER and draw(st.integers(0, 3)) == 0:
                records = draw(st.sampled_from([0, 1, 2, 50]))
                stated = draw(st.sampled_from([None, 0, 2**32 - 1]))
                entries.append(Entry(sub_batch(body, records, draw(st.integers(0, 7)), stated), records))
            else:
                entries.append(Entry(simple(body)))
        chunk = Made(
            chunk_id,
            entries,
            kind,
            draw(st.integers(0, 1)),
            draw(st.sampled_from([0, -1, 1_700_000_000_000, 2**63 - 1, -(2**63)])),
            draw(st.sampled_from([0, 1, 2**63, 2**64 - 1])),
            draw(trailers) if kind == USER else b"",
            draw(st.binary(max_size=4)),
        )
        made.append(chunk)
        chunk_id += chunk.total + draw(st.sampled_from([0, 0, 0, 1, 3]))
    return made


# --- calling


def zeroed(columns: Columns) -> Any:
    for name in names(columns):
        getattr(columns, name)[:] = 0
    return columns


def arrays(columns: Columns) -> list[Any]:
    return [getattr(columns, name) for name in names(columns)]


def until(buf: Any, end: int | None) -> int:
    return len(memoryview(buf)) if end is None else end


def scan(
    buf: Any,
    *,
    position: int = 0,
    end: int | None = None,
    capacity: int = 16,
    previous: int = -1,
    max_bytes: int = 2**62,
    verify: bool = True,
    max_records: int = 2**62,
) -> tuple[ScanEnd, ChunkColumns]:
    made: list[ChunkColumns] = []

    def make() -> Any:
        columns, sums = zeroed(ChunkColumns.empty(capacity)), digests_for(buf)
        made.append(columns)
        args = (buf, position, until(buf, end), columns, previous, max_bytes, verify, max_records, sums)
        return args, {}, [*arrays(columns), *([] if sums is None else [sums])]

    answer = both("scan_chunks", make)
    assert not isinstance(answer, Refused), answer
    return answer[0], made[0].head(answer[0].count)


def seek(buf: Any, target: int, *, position: int = 0, end: int | None = None, previous: int = -1) -> EntryHit:
    answer = both("seek_chunk", lambda: ((buf, position, until(buf, end), target, previous), {}, ()))
    hit: EntryHit = answer[0]
    return hit


def find(buf: Any, *, position: int = 0, end: int | None = None, previous: int = -1) -> int:
    found: int = both("find_chunk", lambda: ((buf, position, until(buf, end), previous), {}, ()))[0]
    return found


def entries_of(buf: Any, chunks: ChunkColumns, capacity: int | None = None) -> list[EntryRow] | Refused:
    made: list[EntryColumns] = []
    room = int(chunks.entries.sum(dtype=np.int64)) if capacity is None else capacity

    def make() -> Any:
        columns = zeroed(EntryColumns.empty(room))
        made.append(columns)
        return (buf, chunks, columns), {}, arrays(columns)

    answer = both("scan_entries", make)
    return answer if isinstance(answer, Refused) else [EntryRow(*row) for row in rows_of(made[0], answer[0])]


def ask_everything(data: Any) -> None:
    """Every reading function on the same bytes; that the halves agree is all that is asked."""
    end, columns = scan(data)
    entries_of(data, columns)
    scan(data, verify=False)
    scan(data, capacity=1)
    scan(data, max_bytes=80, max_records=2)
    for target in (0, 6, 10, 12, 14, 2**63 - 1):
        seek(data, target)
    find(data, position=min(1, len(data)), previous=end.last_offset)


# --- whole, cut, flipped


def test_small_log_row_by_row() -> None:
    data = log_of(SMALL)
    end, rows = scan(data, previous=4)
    assert end == (5, len(data), Stop.END, 15)
    assert rows.chunk_id.tolist() == [5, 8, 11, 12, 13]
    assert rows.records.tolist() == [3, 3, 1, 1, 3]
    assert rows.entries.tolist() == [3, 2, 1, 1, 1]
    assert rows.chunk_type.tolist() == [USER, USER, DELTA, SNAPSHOT, USER]
    assert rows.sub_batches.tolist() == [0, 1, 0, 0, 1]
    assert rows.inflated_bytes.tolist() == [0, 0, 0, 0, 90]
    assert rows.tracking.tolist() == [1, 0, 2, 2, 0]
    assert rows.timestamp.tolist() == [1_700_000_000_000] * 4 + [-5]
    assert rows.epoch.tolist() == [1, 1, 1, 1, -1]
    assert (rows.data_position - rows.position).tolist() == [48, 64, 48, 48, 48]
    assert rows.last_offsets.tolist() == [7, 10, 11, 12, 15]
    found = entries_of(data, rows)
    assert isinstance(found, list)
    assert [(row.offset, row.sub_batch, row.records) for row in found] == [
        (5, 0, 1), (6, 0, 1), (7, 0, 1), (8, 0, 1), (9, 0x80, 2), (13, 0xC0, 3)
    ]  # fmt: skip
    assert [row.value(data) for row in found[:4]] == [b"aaa", b"", b"c", b"x"]


@given(logs())
def test_whole_logs_scan_to_what_was_packed(made: list[Made]) -> None:
    data = log_of(made)
    end, rows = scan(data)
    assert end == (len(made), len(data), Stop.END, made[-1].chunk_id + made[-1].total - 1 if made else -1)
    assert rows.chunk_id.tolist() == [chunk.chunk_id for chunk in made]
    assert rows.records.tolist() == [chunk.total for chunk in made]
    assert rows.timestamp.tolist() == [chunk.timestamp for chunk in made]
    assert rows.epoch.view(np.uint64).tolist() == [chunk.epoch for chunk in made]
    found = entries_of(data, rows)
    assert isinstance(found, list)
    assert len(found) == sum(len(chunk.entries) for chunk in made if chunk.kind == USER)


@given(logs(most=6), st.data())
def test_steps_add_up_to_one_scan(made: list[Made], data: st.DataObject) -> None:
    buf = log_of(made)
    _, whole = scan(buf)
    position, previous, ids = 0, -1, []
    while True:
        capacity, max_bytes = data.draw(st.integers(1, 3)), data.draw(st.sampled_from([-1, 0, 60, 200, 2**62]))
        max_records = data.draw(st.sampled_from([-1, 0, 2, 2**62]))
        end, rows = scan(
            buf, position=position, previous=previous, capacity=capacity, max_bytes=max_bytes, max_records=max_records
        )
        ids += rows.chunk_id.tolist()
        if len(rows) > 1:
            assert end.position - position + int(rows.inflated_bytes.sum()) <= max_bytes
            assert int(rows.records[rows.chunk_type == USER].sum()) <= max(max_records, 0)
        position, previous = end.position, end.last_offset
        if end.stop != Stop.LIMIT:
            break
        assert len(rows)
    assert ids == whole.chunk_id.tolist()


@pytest.mark.parametrize("zeros", [0, 1, 60])
def test_small_log_cut_at_every_byte(zeros: int) -> None:
    data = log_of(SMALL)
    starts = [0]
    for chunk in SMALL:
        starts.append(starts[-1] + len(chunk.pack()))
    for cut in range(len(data) + 1):
        end, _ = scan(data[:cut] + bytes(zeros))
        whole = sum(start <= cut for start in starts) - 1
        if zeros == 0:
            assert (end.count, end.position) == (whole, starts[whole])
            left = cut - starts[whole]
            assert end.stop == (Stop.END if left == 0 else Stop.SHORT_HEADER if left < 48 else Stop.SHORT_BODY)
        elif cut == starts[whole]:
            assert (end.count, end.position, end.stop) == (whole, cut, Stop.ZEROS)


def test_small_log_with_every_bit_flipped() -> None:
    for _, changed in flips(log_of(SMALL)):
        end, rows = scan(changed)
        entries_of(changed, rows)
        scan(changed, verify=False)
        seek(changed, 14)
        find(changed, position=end.position, previous=end.last_offset)


@settings(max_examples=examples(40))
@given(logs(), st.data())
def test_edited_logs(made: list[Made], data: st.DataObject) -> None:
    ask_everything(data.draw(edited(log_of(made))))


@given(st.one_of(st.binary(max_size=200), st.binary(max_size=200).map(lambda b: b"\x50\x00" + b)))
def test_any_bytes(data: bytes) -> None:
    ask_everything(data)


@pytest.mark.parametrize("kind", ["bytes", "bytearray", "readonly", "mmap"])
def test_any_buffer(kind: str, tmp_path: Path) -> None:
    data = log_of(SMALL)
    if kind == "mmap":
        (tmp_path / "log").write_bytes(data)
        with (tmp_path / "log").open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            assert scan(memoryview(mapped))[0].count == 5
        return
    makers: dict[str, Any] = {"bytes": bytes, "bytearray": bytearray, "readonly": memoryview}
    assert scan(makers[kind](data))[0].count == 5


@pytest.mark.parametrize("seed", range(30))
def test_digests_of_long_chunks(seed: int) -> None:
    """The digest of a long chunk is joined from the checksum of its data: wherever a scan stops, both halves agree on
    the digests of the bytes before that."""
    chance, chunk_id, made = random.Random(seed), 0, []
    for _ in range(chance.randrange(1, 6)):
        sizes = [chance.choice([1, 40, 4095, 4096, 4097, 70_000]) for _ in range(chance.randrange(1, 4))]
        trailer = block(0, b"pid", 42) if chance.random() < 0.3 else b""
        entries, version = values(*map(chance.randbytes, sizes)), chance.randrange(2)
        made.append(Made(chunk_id, entries, version=version, trailer=trailer, filter=b"\x81" * chance.choice([0, 16])))
        chunk_id += len(sizes)
    data = bytearray(log_of(made))
    size_bytes = len(data)
    data += bytes(1 - size_bytes % 2)  # digests are taken of an odd number of bytes
    assert scan(data)[0].position == size_bytes
    scan(data, capacity=1)
    scan(data, max_bytes=80_000)
    scan(data, end=chance.randrange(size_bytes))
    for _ in range(5):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        scan(data)


def test_nothing_after_the_end_is_read() -> None:
    data = log_of(SMALL)
    for cut in range(len(data) + 1):
        ask_everything(guarded(data[:cut]))


# --- one verdict each


@pytest.mark.parametrize(
    ("chunk", "stop"),
    [
        (Made(0, values(b"a"))._replace(version=0).pack().replace(b"\x50", b"\x60", 1), Stop.BAD_MAGIC),
        (Made(0, values(b"a"), version=2).pack(), Stop.BAD_VERSION),
        (Made(0, values(b"a"), kind=3).pack(), Stop.BAD_FIELD),
        (Made(2**63, values(b"a")).pack(), Stop.BAD_RANGE),
        (Made(2**63 - 1, values(b"a", b"b")).pack(), Stop.BAD_RANGE),
        (Made(2**63 - 1, values(b"a")).pack(), Stop.END),
        (Made(2**64 - 1, values(b"a")).pack(), Stop.BAD_RANGE),
        (Made(0, values(b"a"), crc=1).pack(), Stop.BAD_CHECKSUM),
        (Made(0, values(b"a"), records=2).pack(), Stop.BAD_ENTRIES),
        (Made(0, values(b"a"), num_entries=2).pack(), Stop.BAD_ENTRIES),
        (Made(0, values(b"a", b"b"), num_entries=1, records=1).pack(), Stop.BAD_ENTRIES),
        (Made(0, [], num_entries=0, records=0).pack(), Stop.BAD_ENTRIES),
        (Made(0, [], num_entries=1, records=1).pack(), Stop.BAD_ENTRIES),
        (Made(0, [Entry(b"\0\0\0")]).pack(), Stop.BAD_ENTRIES),
        (Made(0, [Entry(b"\0\0\0\x05abcd")]).pack(), Stop.BAD_ENTRIES),
        (Made(0, [Entry(b"\x80\0\x01\0\0\0\0\0\0\0")]).pack(), Stop.BAD_ENTRIES),
        (Made(0, [Entry(struct.pack(">BHII", 0x80, 1, 0, 2**32 - 1))]).pack(), Stop.BAD_ENTRIES),
        (Made(0, [Entry(sub_batch(b"", 0), 0)]).pack(), Stop.END),
        (Made(0, values(b"", b""), kind=DELTA).pack(), Stop.BAD_ENTRIES),
        (Made(0, [Entry(sub_batch(b"", 1))], kind=SNAPSHOT).pack(), Stop.BAD_ENTRIES),
        (Made(0, values(b""), kind=SNAPSHOT).pack(), Stop.END),
        (Made(0, values(b""), kind=DELTA, trailer=block(0, b"p", 1)).pack(), Stop.BAD_ENTRIES),
    ],
)
def test_verdicts(chunk: bytes, stop: Stop) -> None:
    end, _ = scan(guarded(chunk))
    assert end.stop == stop
    assert end.count == (stop == Stop.END)


def test_without_verify_the_checksum_is_not_looked_at_and_the_entries_are() -> None:
    assert scan(Made(0, values(b"a"), crc=1).pack(), verify=False)[0].stop == Stop.END
    assert scan(Made(0, values(b"a"), records=2).pack(), verify=False)[0].stop == Stop.BAD_ENTRIES
    both_wrong = Made(0, values(b"a"), records=2, crc=1).pack()
    assert scan(both_wrong)[0].stop == Stop.BAD_CHECKSUM


def test_order_and_gaps() -> None:
    first = Made(10, values(b"a", b"b")).pack()
    for chunk_id, stop in ((9, Stop.BAD_ORDER), (11, Stop.BAD_ORDER), (12, Stop.END), (FAR, Stop.END)):
        end, _ = scan(first + Made(chunk_id, values(b"c")).pack())
        assert end.stop == stop
        assert end.last_offset == (11 if stop == Stop.BAD_ORDER else chunk_id)
    assert scan(first, previous=10)[0] == (0, 0, Stop.BAD_ORDER, 10)
    empty = Made(12, [Entry(sub_batch(b"", 0), 0)]).pack()
    end, _ = scan(first + empty + empty + Made(12, values(b"c")).pack())
    assert (end.count, end.stop, end.last_offset) == (4, Stop.END, 12)


def test_every_length_of_4_gib_is_only_a_claim() -> None:
    for at in (36, 40):
        data = bytearray(Made(0, values(b"a")).pack())
        data[at : at + 4] = b"\xff" * 4
        assert scan(bytes(data))[0].stop == Stop.SHORT_BODY
    huge = [Entry(sub_batch(b"", 65535, 1, 2**32 - 1), 65535)] * 3
    _, rows = scan(Made(0, huge).pack())
    assert rows.inflated_bytes.tolist() == [3 * (2**32 - 1)]


@pytest.mark.parametrize(
    ("trailer", "blocks"),
    [
        (b"", 0),
        (block(0, b"a", 1) + block(1, b"b", 2) + block(2, b"c", 3), 3),
        (block(0, b"x" * 255, 1), 1),
        (block(3, b"a", 1), BAD_TRACKING),
        (block(0, b"", 1), BAD_TRACKING),
        (block(0, b"a", 1)[:-1], BAD_TRACKING),
        (block(0, b"a", 1) + b"\0", BAD_TRACKING),
        (bytes(17), BAD_TRACKING),
    ],
)
def test_tracking_is_counted_and_never_stops_a_scan(trailer: bytes, blocks: int) -> None:
    end, rows = scan(Made(0, values(b"a"), trailer=trailer).pack())
    assert (end.stop, rows.tracking.tolist()) == (Stop.END, [blocks])
    end, rows = scan(Made(0, values(trailer), kind=DELTA).pack())
    assert (end.stop, rows.tracking.tolist()) == (Stop.END, [blocks])


def test_a_sequence_in_a_snapshot_has_a_chunk_id() -> None:
    for body, blocks in ((block(0, b"p", 1, 2), 1), (block(0, b"p", 1), BAD_TRACKING), (block(1, b"p", 1), 1)):
        assert scan(Made(0, values(body), kind=SNAPSHOT).pack())[1].tracking.tolist() == [blocks]


# --- seek


@given(logs(), st.booleans())
def test_seek_finds_what_a_scan_lists(made: list[Made], zeros: bool) -> None:
    data = log_of(made) + bytes(9 if zeros else 0)
    end, rows = scan(data)
    listed = entries_of(data, rows)
    assert isinstance(listed, list)
    expected = {row.offset + i: row for row in listed for i in range(row.records)}
    for target in {*expected, *(o + d for o in expected for d in (-1, 1)), 0}:
        if not -(2**63) <= target < 2**63:
            continue
        hit = seek(data, target)
        if target in expected:
            row = expected[target]
            assert (hit.stop, hit.offset, hit.timestamp) == (Stop.LIMIT, row.offset, row.timestamp)
            assert hit[4:] == row[3:]
        else:
            beyond = target > end.last_offset
            assert (hit.stop, hit.offset) == (end.stop if beyond else Stop.LIMIT, -1)


@pytest.mark.parametrize("span", [1, 2, 70_000, 2**32 - 1])
def test_an_empty_delta_takes_up_as_many_offsets_as_it_says(span: int) -> None:
    data = log_of([
        Made(5, values(b"a")), Made(6, values(b""), kind=DELTA, records=span), Made(6 + span, values(b"b", b"c")),
    ])  # fmt: skip
    end, columns = scan(data)
    assert (end.stop, end.last_offset) == (Stop.END, 7 + span)
    assert columns.records.tolist() == [1, span, 2]
    assert columns.tracking.tolist() == [0, 0, 0]
    assert seek(data, 5 + span).stop == Stop.LIMIT
    assert seek(data, 5 + span).offset == -1
    assert seek(data, 6 + span).offset == 6 + span
    assert find(data, position=1, previous=5) == len(Made(5, values(b"a")).pack())


@pytest.mark.parametrize(
    "chunk",
    [
        Made(6, values(b""), kind=DELTA, records=0),
        Made(6, values(b""), kind=SNAPSHOT, records=2),
        Made(6, values(b""), kind=USER, records=2),
        Made(6, values(block(1, b"c", 4)), kind=DELTA, records=2),
        Made(6, values(b"", b""), kind=DELTA, records=3),
        Made(6, values(b""), kind=DELTA, records=2, trailer=block(1, b"c", 4)),
    ],
)
def test_nothing_but_an_empty_delta_takes_up_offsets_without_records(chunk: Made) -> None:
    end, _ = scan(chunk.pack())
    assert (end.count, end.stop) == (0, Stop.BAD_ENTRIES)


def test_seek_in_tracking_and_gaps() -> None:
    data = log_of(SMALL) + Made(100, values(b"z")).pack()
    for target in (11, 12, 4, 50):
        assert seek(data, target)[:3:2] == (Stop.LIMIT, -1)
    assert seek(data, 101).stop == Stop.END
    assert seek(data, -1).stop == Stop.LIMIT


def test_seek_checks_the_chunk_that_it_returns() -> None:
    good, bad = Made(0, values(b"a")).pack(), Made(1, values(b"b"), crc=7).pack()
    assert seek(good + bad, 1)[:2] == (Stop.BAD_CHECKSUM, len(good))
    assert seek(bad + Made(2, values(b"c")).pack(), 2).offset == 2
    miscounted = Made(0, values(b"a", b"b"), records=3).pack()
    assert seek(miscounted, 1).stop == Stop.BAD_ENTRIES


def test_seek_does_not_deny_a_record_that_a_damaged_count_hides() -> None:
    """The header says one record, there are two: the second is not "missing", the chunk is damaged."""
    hides = Made(0, values(b"a", b"b"), records=1).pack()
    for rest in (b"", bytes(5), Made(2, values(b"c")).pack()):
        assert seek(hides + rest, 1)[:2] == (Stop.BAD_ENTRIES, 0)


# --- find


def test_find_skips_damage() -> None:
    packed = [chunk.pack() for chunk in SMALL]
    data = b"".join(packed)
    for position in range(1, len(data) + 1):
        found = find(data, position=position, previous=4)
        starts = [sum(map(len, packed[:i])) for i in range(len(packed))]
        assert found == min((s for s in starts if s >= position), default=NOT_FOUND)


def test_find_wants_something_plausible() -> None:
    assert find(Made(3, [Entry(sub_batch(b"", 0), 0)]).pack()) == NOT_FOUND
    assert find(Made(3, values(b"a"), crc=1).pack()) == NOT_FOUND
    assert find(Made(3, values(b"a"), records=2).pack()) == NOT_FOUND
    assert find(Made(3, values(b"a")).pack(), previous=3) == NOT_FOUND
    assert find(Made(3, values(b"a")).pack(), previous=2) == 0
    near, far = 2**32 + 65535, 2**32 + 65536
    assert find(Made(near, values(b"a")).pack()) == 0
    assert find(Made(far, values(b"a")).pack()) == NOT_FOUND
    assert find(bytes(11) + Made(far, values(b"a")).pack()) == 11
    assert find(Made(2**63 - 1, values(b"a")).pack(), previous=2**63 - 2) == 0
    assert find(Made(0, values(b"a")).pack(), previous=-(2**63)) == NOT_FOUND


def test_find_gives_up_on_a_file_made_to_waste_its_time() -> None:
    head = HEADER.pack(0x50, 0, 1, 1, 0, 1, 5, 0, 150_000, 0, 0)
    hostile = head * 5000
    assert find(hostile) == GAVE_UP
    assert find(head * 20) == NOT_FOUND


# --- entries, prefixed


def test_stale_rows_do_not_crash() -> None:
    data = log_of(SMALL)
    _, rows = scan(data)
    assert isinstance(entries_of(data, rows, capacity=3), Refused)
    for cut in range(int(rows.data_position[-1]) + int(rows.data_length[-1])):
        assert isinstance(entries_of(memoryview(data)[:cut], rows), Refused)
    assert isinstance(entries_of(bytes(len(data)), rows), Refused)
    assert isinstance(entries_of(b"\xff" * len(data), rows), Refused)


@given(st.binary(max_size=80), st.data())
def test_rows_of_any_numbers(data: bytes, draws: st.DataObject) -> None:
    chunks = zeroed(ChunkColumns.empty(draws.draw(st.integers(0, 2))))
    for row in range(len(chunks)):
        chunks.chunk_id[row] = draws.draw(INT64)
        chunks.data_position[row] = draws.draw(st.one_of(st.integers(0, 80), INT64))
        chunks.data_length[row] = draws.draw(st.one_of(st.integers(0, 80), st.integers(0, 2**32 - 1)))
        chunks.entries[row] = draws.draw(st.one_of(st.integers(0, 4), st.integers(0, 2**32 - 1)))
        chunks.chunk_type[row] = draws.draw(st.integers(0, 1))
    entries_of(guarded(data), chunks, capacity=6)


def prefixed(buf: Any, position: int, end: int, count: int) -> Any:
    def make() -> Any:
        positions, lengths = np.zeros(count, np.int64), np.zeros(count, np.uint32)
        return (buf, position, end, positions, lengths), {}, (positions, lengths)

    return both("scan_prefixed", make)


@given(st.lists(st.binary(max_size=6), max_size=5), st.integers(-2, 2), st.binary(max_size=3))
def test_prefixed(bodies: list[bytes], more: int, rest: bytes) -> None:
    data = b"".join(map(simple, bodies)) + rest
    count = max(len(bodies) + more, 0)
    found, (positions, lengths) = prefixed(guarded(data), 0, len(data), count)
    if count == len(bodies) and not rest:
        assert found == count
        places = zip(np.frombuffer(positions, np.int64), np.frombuffer(lengths, np.uint32), strict=True)
        assert [data[p : p + n] for p, n in places] == bodies
    else:
        assert found == -1 - min(count, len(bodies))


def test_prefixed_refuses_what_is_no_record() -> None:
    assert prefixed(b"\x80\0\0\0", 0, 4, 1)[0] == -1
    assert prefixed(b"\xff\xff\xff\xff", 0, 4, 1)[0] == -1
    assert prefixed(sub_batch(b"", 1), 0, 11, 1)[0] == -1
    assert prefixed(b"", 0, 0, 0)[0] == 0
    assert isinstance(prefixed(b"", 0, 1, 0), Refused)


# --- encoding


def encode(bodies: Sequence[bytes], counts: Sequence[int], *, version: int = 1, room: int = 0, base: int = 0) -> Any:
    data, offsets = arrow(bodies)
    size = len(data) + 4 * len(bodies) + 48 * len(counts) + room
    made: list[ChunkColumns] = []

    def make() -> Any:
        out, columns = np.zeros(max(size, 0), np.uint8), zeroed(ChunkColumns.empty(len(counts)))
        columns.records[:] = counts
        columns.chunk_id[:] = np.cumsum(counts) - counts + 7
        columns.timestamp[:] = np.arange(len(counts)) - 1
        columns.epoch[:] = -1
        made.append(columns)
        return (out, version, columns, data, offsets, base), {}, (out, *arrays(columns))

    def from_tuple() -> Any:
        (out, version, columns, *_), _, filled = make()
        return (out, version, columns, tuple(bodies)), {"base_position": base}, filled

    answer = both("encode_chunks", make)
    assert both("encode_chunks", from_tuple) == answer
    return answer if isinstance(answer, Refused) else (answer[1][0], made[0])


@given(st.lists(st.lists(st.binary(max_size=9), min_size=1, max_size=4), max_size=4), st.integers(0, 1))
def test_encoded_chunks_scan_to_the_columns_that_the_encoder_filled(groups: list[list[bytes]], version: int) -> None:
    bodies = [body for group in groups for body in group]
    data, columns = encode(bodies, [len(group) for group in groups], version=version, base=100)
    first, packed = 7, []
    for number, group in enumerate(groups):
        packed.append(Made(first, values(*group), version=version, timestamp=number - 1, epoch=2**64 - 1).pack())
        first += len(group)
    assert data == b"".join(packed)
    end, rows = scan(bytes(100) + data, position=100)
    assert end.count == len(groups)
    assert rows_of(rows, end.count) == rows_of(columns, end.count)
    listed = entries_of(bytes(100) + data, rows)
    assert isinstance(listed, list)
    assert [row.value(bytes(100) + data) for row in listed] == bodies


def test_encoding_refuses_what_does_not_fit() -> None:
    assert isinstance(encode([b"a", b"b"], [1, 1], room=-1), Refused)
    assert isinstance(encode([b"a", b"b"], [1], room=9), Refused)
    assert isinstance(encode([b"a"], [2]), Refused)
    assert isinstance(encode([b"a"], [0, 1]), Refused)
    assert isinstance(encode([b""] * 65536, [65536]), Refused)
    assert isinstance(encode([b"a"], [1], version=2), Refused)
    assert isinstance(encode([], [1], room=-48), Refused)
    assert not isinstance(encode([], []), Refused)


def test_encoding_reads_no_offset_after_the_last() -> None:
    """Behind the slice lie offsets that would fit."""
    bounds = np.array([0, 1, 2, 3], np.int32)[:2]

    def make() -> Any:
        out, columns = np.zeros(200, np.uint8), zeroed(ChunkColumns.empty(1))
        columns.records[:] = 3
        return (out, 0, columns, b"abc", bounds), {}, (out,)

    assert both("encode_chunks", make) == Refused("chunk 0 does not fit")


@given(
    st.lists(st.tuples(st.binary(max_size=9), st.booleans()), max_size=12), st.integers(1, 40), st.integers(1, 5),
    st.booleans(),
)  # fmt: skip
def test_chunks_are_split_at_breaks_and_limits(
    rows: list[tuple[bytes, bool]], max_bytes: int, max_records: int, with_breaks: bool
) -> None:
    bodies = [body for body, _ in rows]
    breaks = np.array([is_break for _, is_break in rows[1:]], np.uint8) if with_breaks else None
    data, offsets = arrow(bodies)

    def make(*source: Any) -> Any:
        starts = np.zeros(len(bodies), np.int64)
        return (starts, max_bytes, max_records, *source), {"breaks": breaks}, (starts,)

    answer = both("split_chunks", lambda: make(data, offsets))
    assert both("split_chunks", lambda: make(tuple(bodies))) == answer
    count, (raw,) = answer
    starts = np.frombuffer(raw, np.int64)[:count].tolist()
    expected: list[list[int]] = []
    for row, (body, is_break) in enumerate(rows):
        size = sum(4 + len(bodies[other]) for other in expected[-1]) if expected else 0
        too_much = size + 4 + len(body) > max_bytes or (bool(expected) and len(expected[-1]) == max_records)
        if not expected or (with_breaks and is_break) or too_much:
            expected.append([])
        expected[-1].append(row)
    assert starts == [group[0] for group in expected]


def test_splitting_refuses_what_does_not_fit() -> None:
    starts = np.zeros(2, np.int64)
    for args, kwargs in (
        ((starts, 0, 1, (b"a", b"b")), {}),
        ((starts, 1, 0, (b"a", b"b")), {}),
        ((starts, 1, 1, (b"a",)), {}),
        ((starts, 1, 1, (b"a", b"b")), {"breaks": np.zeros(2, np.uint8)}),
        ((starts, 1, 1, b"ab", np.array([0, 1, 3], np.int32)), {}),
        ((starts, 1, 1, b"ab", np.array([], np.int32)), {}),
    ):
        assert isinstance(both("split_chunks", lambda a=args, k=kwargs: (a, k, ())), Refused), args  # type: ignore[misc]


@pytest.mark.parametrize("offsets", [[-1, 2], [2, 1], [0, 9], [5, 5], [0]])
def test_encoding_refuses_offsets_outside_of_the_values(offsets: list[int]) -> None:
    bounds = np.array(offsets, np.int32)
    count = len(offsets) - 1

    def entries() -> Any:
        out, positions = np.zeros(64, np.uint8), np.zeros(max(count, 1), np.int64)
        return (out, b"abcd", bounds, positions), {}, (out, positions)

    def chunks() -> Any:
        out, columns = np.zeros(64, np.uint8), zeroed(ChunkColumns.empty(1))
        columns.records[:] = 1
        return (out, 0, columns, b"abcd", bounds), {}, (out,)

    for name, make in (("encode_entries", entries), ("encode_chunks", chunks)):
        assert isinstance(both(name, make), Refused), name


@given(st.lists(st.binary(max_size=9), max_size=6), st.integers(-1, 3))
def test_entries_are_written_as_they_are_read(bodies: list[bytes], room: int) -> None:
    data, offsets = arrow(bodies)
    size = len(data) + 4 * len(bodies) + room

    def make() -> Any:
        out, positions = np.zeros(max(size, 0), np.uint8), np.zeros(len(bodies), np.int64)
        return (out, data, offsets, positions, 1000), {}, (out, positions)

    answer = both("encode_entries", make)
    if room < 0 and bodies:
        assert answer == Refused(f"row {len(bodies) - 1} does not fit")
        return
    written, (out, positions) = answer
    packed = b"".join(map(simple, bodies))
    assert out[:written] == packed
    starts = np.cumsum([0, *(4 + len(body) for body in bodies)])[:-1] + 1000
    assert np.frombuffer(positions, np.int64).tolist() == starts.tolist()
    assert prefixed(packed, 0, written, len(bodies))[0] == len(bodies)


# --- refusals


@pytest.mark.parametrize(("position", "end"), [(-1, 4), (3, 2), (0, 9), (9, 9)])
def test_ranges_outside_of_the_buffer_are_refused(position: int, end: int) -> None:
    buf, columns = bytes(8), ChunkColumns.empty(1)
    for name, args in (
        ("scan_chunks", (buf, position, end, columns)),
        ("seek_chunk", (buf, position, end, 0)),
        ("find_chunk", (buf, position, end)),
        ("scan_prefixed", (buf, position, end, np.zeros(0, np.int64), np.zeros(0, np.uint32))),
    ):
        assert isinstance(both(name, lambda args=args: (args, {}, ())), Refused), name  # type: ignore[misc]


def test_columns_of_different_lengths_are_refused() -> None:
    short = ChunkColumns.empty(2)
    short.tracking = short.tracking[:1]
    assert isinstance(both("scan_chunks", lambda: ((b"", 0, 0, short), {}, ())), Refused)
    assert isinstance(both("scan_chunks", lambda: ((b"", 0, 0, ChunkColumns.empty(0)), {}, ())), Refused)
    assert isinstance(both("scan_entries", lambda: ((b"", short, EntryColumns.empty(1)), {}, ())), Refused)
    entries = EntryColumns.empty(2)
    entries.records = entries.records[:1]
    assert isinstance(both("scan_entries", lambda: ((b"", ChunkColumns.empty(0), entries), {}, ())), Refused)


def test_the_twin_has_every_function() -> None:
    for name in FUNCTIONS:
        assert callable(getattr(reference, name))
        assert callable(getattr(_chunks, name))
