"""Osiris: records to chunks and back, compressed or not, and sub-batches that lie about themselves."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from typing import Any

import cramjam
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import duramen
from duramen.errors import (
    CorruptionError,
    LimitError,
    UnsupportedFieldError,
    UsageError,
)
from duramen.formats import FileName, Role, ScanPosition
from duramen.formats.osiris.chunk import HEADER, Chunk, Compression, SimpleEntry, SubBatch, encode_chunk, parse_chunk
from duramen.formats.osiris.osiris import LOG_HEADER, Osiris
from duramen.formats.osiris.segment import chunks_of
from duramen.kernel.layout import ChunkColumns, Stop
from duramen.record import COLUMNS, Record
from tests.formats.osiris_logs import (
    COMPRESSED,
    TS,
    F,
    assert_same,
    batch_of,
    of_truth,
    offsets_of,
    only_our_errors,
    opened,
    records_of,
    segment_of,
    value_at,
    written,
)

# --- encoding
from tests.sampling import examples


def test_where_chunks_end() -> None:
    batch = batch_of([b"x" * 6] * 10, [0, 1, 2, 5, 6, 7, 8, 9, 10, 11], [1, 1, 2, 2, 2, 2, 2, 2, 2, 3])
    segment, rows = written(batch, chunk_max_records=3)
    chunks = chunks_of(rows)
    assert chunks.chunk_id.tolist() == [0, 2, 3, 5, 8, 11]
    assert chunks.records.tolist() == [2, 1, 2, 3, 3, 1]
    assert chunks.fillers.tolist() == [False, False, True, False, False, False]
    assert_same(chunks_of(segment.scan(segment.start)), chunks)
    assert offsets_of(segment) == [0, 1, 2, 5, 6, 7, 8, 9, 10, 11]
    for limit, counts in ((20, [2, 1, 2, 2, 2, 1]), (5, [1] * 10), (30, [2, 1, 3, 3, 1])):
        chunks = chunks_of(written(batch, chunk_max_bytes=limit)[1])
        assert chunks.records[~chunks.fillers].tolist() == counts


@pytest.mark.parametrize("compression", ["none", "gzip"])
@pytest.mark.parametrize("version", [0, 1])
def test_missing_offsets_are_taken_up_by_fillers(version: int, compression: str) -> None:
    batch = batch_of([b"a", b"bb", b"", b"d"], [7, 8, 2**33, 2**33 + 2], [5, 5, 6, 7])
    fmt = Osiris(chunk_version=version, compression=compression, epoch=3)
    encoded = fmt.encode(batch, ScanPosition(len(LOG_HEADER), 2))
    segment = fmt.open_segment(LOG_HEADER + bytes(encoded.data), 3)
    rows = segment.scan(segment.start)
    assert_same(chunks_of(rows), chunks_of(encoded.rows))
    assert rows.end == encoded.rows.end._replace(stop=rows.end.stop)
    assert rows.count == encoded.rows.count == 4
    assert list(rows.gaps(2)) == []
    chunks = chunks_of(rows)
    spans = [4, 2**32 - 1, 2**33 - 2**32 + 1 - 9, 1]
    assert chunks.records[chunks.fillers].tolist() == spans
    assert chunks.timestamp.tolist() == [5, 5, 6, 6, 6, 7, 7]
    assert set(chunks.epoch.tolist()) == {3}
    assert offsets_of(segment) == [7, 8, 2**33, 2**33 + 2]
    assert segment.read(segment.start, 5) == Stop.LIMIT
    assert not Osiris().tracking_rows(segment, rows).any()
    assert not segment.tracking()


def test_a_filler_is_parsed_and_encoded_to_the_same_bytes() -> None:
    filler = Osiris().fill_gap(ScanPosition(8, 9), 1010, 5_000_000)
    data = bytes(filler.data)
    chunk, end = parse_chunk(data)
    assert (chunk.chunk_id, chunk.span, chunk.timestamp, end) == (10, 1000, 5000, len(data))
    assert encode_chunk(chunk) == data
    assert filler.rows.cursor == ScanPosition(8 + len(data), 1009)
    with pytest.raises(UsageError, match="filler"):
        encode_chunk(Chunk(0, 0, 1, entries=(SimpleEntry(b"a"),), span=2))


def test_a_chunk_id_column_ends_chunks() -> None:
    source = opened("plain/00000000000000000000.segment")
    rows = source.scan(source.start)
    batch = source.decode(rows, (*COLUMNS, "chunk_id"))
    fmt = Osiris(chunk_version=0)
    encoded = fmt.encode(batch, source.start)
    assert LOG_HEADER + bytes(encoded.data) == bytes(source.buf)
    assert_same(chunks_of(encoded.rows), chunks_of(rows))


def test_a_record_larger_than_a_chunk_gets_one_of_its_own() -> None:
    values = [b"a", b"b" * 100_000, b"c", b"d"]
    segment, rows = written(batch_of(values))
    assert chunks_of(rows).records.tolist() == [1, 1, 2]
    assert [record["value"] for record in records_of(segment)] == values


def test_an_empty_batch_is_no_bytes() -> None:
    encoded = F.encode(batch_of([]), ScanPosition(50, 7))
    assert (len(encoded.data), encoded.rows.count, encoded.rows.cursor) == (0, 0, ScanPosition(50, 7))


def test_a_slice_of_a_batch() -> None:
    batch = batch_of([b"%d" % n for n in range(100)]).slice(40, 20)
    for compression in ("none", "lz4"):
        segment, _ = written(batch, compression=compression)
        assert [record["value"] for record in records_of(segment)] == [b"%d" % n for n in range(40, 60)]


@settings(max_examples=examples(60))
@given(st.data())
def test_random_batches_come_back(data: st.DataObject) -> None:
    values = data.draw(st.lists(st.binary(max_size=20), max_size=30))
    gaps = data.draw(st.lists(st.sampled_from([1, 1, 1, 5]), min_size=len(values), max_size=len(values)))
    ms = data.draw(st.lists(st.sampled_from([0, TS, TS + 1, -5]), min_size=len(values), max_size=len(values)))
    offsets = (np.cumsum(gaps, dtype=np.int64) + data.draw(st.sampled_from([0, 2**40, 2**62]))).tolist()
    options = {
        "compression": data.draw(st.sampled_from(["none", "none", "gzip", "snappy", "lz4", "zstd"])),
        "chunk_version": data.draw(st.integers(0, 1)),
        "chunk_max_records": data.draw(st.integers(1, 10)),
        "chunk_max_bytes": data.draw(st.sampled_from([1, 30, 10_000])),
        **data.draw(st.sampled_from([{}, {"sub_batch_records": 1}, {"sub_batch_records": 3}])),
        "epoch": data.draw(st.sampled_from([0, 1, 2**63 - 1])),
    }
    fmt = Osiris(**options)
    base = offsets[0] if offsets else 0
    encoded = fmt.encode(batch_of(values, offsets, ms), ScanPosition(8, base - 1))
    segment = fmt.open_segment(LOG_HEADER + bytes(encoded.data), base)
    limits = {"max_records": data.draw(st.integers(1, 50)), "max_bytes": data.draw(st.sampled_from([0, 100, 2**22]))}
    found = records_of(segment, **limits)
    assert [(r["offset"], r["value"]) for r in found] == list(zip(offsets, values, strict=True))
    assert [of_truth(r)["ts"] for r in found] == ms
    parts = [chunks_of(rows) for rows in segment.steps()]
    assert_same(ChunkColumns.concat(parts), chunks_of(encoded.rows))
    assert encoded.rows.cursor == ScanPosition(len(segment.buf), offsets[-1] if offsets else base - 1)


def test_what_cannot_be_carried_is_refused() -> None:
    with pytest.raises(UnsupportedFieldError, match="key"):
        F.encode(pa.record_batch({"value": [b"a"], "key": [b"k"]}), ScanPosition(8, -1))
    with pytest.raises(UsageError, match="increase"):
        F.encode(batch_of([b"a"], [3]), ScanPosition(8, 5))


@pytest.mark.parametrize(
    "options",
    [
        {"chunk_version": 2}, {"compression": "brotli"}, {"compression": "user_defined"}, {"epoch": -1},
        {"chunk_max_records": 0}, {"chunk_max_records": 65536}, {"chunk_max_bytes": 0}, {"sub_batch_records": 65536},
        {"max_uncompressed_bytes": -1}, {"no_such_option": 1},
    ],
)  # fmt: skip
def test_options_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(options))):
        Osiris(**options)


# --- sub-batches and compression


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("version", [0, 1])
def test_compression_round_trips(compression: str, version: int) -> None:
    values = [b"%d" % n * (n % 7) for n in range(500)]
    segment, rows = written(
        batch_of(values), compression=compression, chunk_version=version, chunk_max_records=200, sub_batch_records=64
    )
    assert [record["value"] for record in records_of(segment)] == values
    assert [value_at(segment, n) for n in range(500)] == values
    assert segment.dialect == f"chunk version {version}"
    scanned = chunks_of(segment.scan(segment.start))
    assert_same(scanned, chunks_of(rows))
    assert scanned.sub_batches.tolist() == [4, 4, 2]


def test_sub_batches_without_compression() -> None:
    values = [b"one", b"", b"three"]
    segment, _ = written(batch_of(values), compression="none", sub_batch_records=2)
    body = b"".join(len(value).to_bytes(4, "big") + value for value in values[:2])
    assert bytes(segment.buf[56 : 56 + 11 + len(body)]) == b"\x80\0\2" + len(body).to_bytes(4, "big") * 2 + body
    assert [record["value"] for record in records_of(segment)] == values
    assert not chunks_of(written(batch_of(values), compression="none")[1]).sub_batches.any()


@pytest.mark.parametrize("compression", [Compression.NONE, *COMPRESSED])
def test_mixed_entries_keep_their_order(compression: Compression) -> None:
    inside = [b"two", b"", b"four"]
    chunk = Chunk(
        5, TS, 1, entries=(SimpleEntry(b"one"), SubBatch.of(inside, compression), SimpleEntry(b"five"),
                           SubBatch.of([], compression), SubBatch.of([b"six"], Compression.NONE)),
    )  # fmt: skip
    segment = segment_of(chunk)
    values = [b"one", *inside, b"five", b"six"]
    assert [(r["offset"], r["value"]) for r in records_of(segment)] == list(enumerate(values, 5))
    assert [value_at(segment, n) for n in range(5, 11)] == values
    assert parse_chunk(segment.buf, 8)[0] == chunk


def test_reserved_bits_are_kept_and_do_not_matter() -> None:
    odd = SubBatch(Compression.NONE, 1, 5, b"\0\0\0\x01a", reserved=9)
    chunk = Chunk(0, 0, 2**64 - 1, entries=(odd,), filter=b"f" * 255, reserved=b"abc")
    raw = encode_chunk(chunk)
    assert raw[48 + 255] == 0x89
    assert parse_chunk(raw) == (chunk, len(raw))
    assert records_of(segment_of(chunk))[0]["value"] == b"a"


def test_a_chunk_without_records_moves_no_offset() -> None:
    empty = Chunk(3, 0, 1, entries=(SubBatch.of([]),))
    segment = segment_of(empty, empty, Chunk(3, 0, 1, entries=(SimpleEntry(b"a"),)))
    assert offsets_of(segment) == [3]
    builder = F.index_builder(3, 0)
    builder.add(segment.scan(segment.start))
    raw = builder.build()[Role.INDEX]
    assert not list(F.check_file(Role.INDEX, raw, FileName(Role.INDEX, 3)))
    index = F.open_index(Role.INDEX, raw, 3)
    assert index is not None
    entry = index.floor(3)
    assert entry is not None
    cursor = segment.cursor_at(*entry)
    assert cursor is not None
    record = segment.read(cursor, 3)
    assert isinstance(record, Record)
    assert record.value == b"a"


@pytest.mark.parametrize(("compression", "word"), [(5, "unknown"), (6, "unknown"), (7, "user-defined")])
def test_unknown_compression_is_named(compression: int, word: str) -> None:
    chunk = Chunk(0, 0, 1, entries=(SimpleEntry(b"ok"), SubBatch(compression, 2, 20, b"??")))
    segment = segment_of(chunk)
    rows = segment.scan(segment.start)
    assert (rows.count, rows.stop) == (3, Stop.END)
    with pytest.raises(CorruptionError, match=f"compression {compression} .{word}") as caught:
        segment.decode(rows, COLUMNS)
    assert (caught.value.position, caught.value.offset) == (8 + 48 + 6 + 11, 1)
    with pytest.raises(CorruptionError, match=word):
        segment.read(segment.start, 1)
    assert value_at(segment, 0) == b"ok"
    assert segment.decode(rows, ("offset",)).num_rows == 3
    assert parse_chunk(segment.buf, 8)[0] == chunk


@pytest.mark.parametrize("compression", COMPRESSED)
@pytest.mark.parametrize("stated", [0, 7, 9, 1000])
def test_a_stated_length_that_is_wrong_is_refused(compression: Compression, stated: int) -> None:
    body = SubBatch.of([b"abcd"], compression).body
    segment = segment_of(Chunk(0, 0, 1, entries=(SubBatch(compression, 1, stated, body),)))
    why = "and not to the" if stated > 8 else "cannot be unfolded"
    with pytest.raises(CorruptionError, match=why):
        segment.decode(segment.scan(segment.start), COLUMNS)
    with pytest.raises(CorruptionError, match=why):
        segment.read(segment.start, 0)


@pytest.mark.parametrize("compression", [Compression.NONE, *COMPRESSED])
@pytest.mark.parametrize("records", [1, 3])
def test_a_stated_count_that_is_wrong_is_refused(compression: Compression, records: int) -> None:
    good = SubBatch.of([b"abcd", b"efgh"], compression)
    segment = segment_of(Chunk(0, 0, 1, entries=(SubBatch(compression, records, good.uncompressed_length, good.body),)))
    with pytest.raises(CorruptionError, match="records"):
        segment.decode(segment.scan(segment.start), ("value",))
    with pytest.raises(CorruptionError, match="records"):
        segment.read(segment.start, 0)


def test_a_count_does_not_size_an_allocation() -> None:
    """65,535 sub-batches of 65,535 records each would be 32 GiB of offsets."""
    data = struct.pack(">BHII", 0x90, 65535, 0, 0) * 65535
    head = HEADER.pack(
        magic_version=0x50, num_entries=65535, num_records=65535**2, crc=duramen.kernel.crc32(data),
        data_length=len(data),
    )  # fmt: skip
    segment = F.open_segment(LOG_HEADER + head + data, 0)
    rows = segment.scan(segment.start)
    assert rows.count == 65535**2
    with pytest.raises(CorruptionError, match="can hold 180221 at most"):
        segment.decode(rows, ("offset",))
    with pytest.raises(CorruptionError):
        segment.read(segment.start, 5)


def test_the_bound_is_for_a_chunk_and_an_option() -> None:
    chunk = Chunk(0, 0, 1, entries=tuple(SubBatch.of([bytes(96)], Compression.GZIP) for _ in range(3)))
    fine = segment_of(chunk, fmt=Osiris(max_uncompressed_bytes=420))
    assert len(records_of(fine)) == 3
    tight = segment_of(chunk, fmt=Osiris(max_uncompressed_bytes=419))
    rows = tight.scan(tight.start)
    with pytest.raises(LimitError, match="420 bytes, more than 419") as caught:
        tight.decode(rows, ("offset",))
    assert (caught.value.position, caught.value.offset) == (8, 0)
    assert value_at(tight, 2) == bytes(96)
    tighter = segment_of(chunk, fmt=Osiris(max_uncompressed_bytes=99))
    with pytest.raises(LimitError):
        tighter.read(tighter.start, 2)


BOMBS = """
import struct, sys
import cramjam
from duramen.errors import CorruptionError, LimitError
from duramen.formats.osiris.osiris import LOG_HEADER, Osiris
from duramen.formats.osiris.chunk import Chunk, SubBatch, encode_chunk

zeros = bytes(64 << 20)
bodies = [(1, bytes(cramjam.gzip.compress(zeros))), (2, bytes(cramjam.snappy.compress(zeros))),
          (3, bytes(cramjam.lz4.compress(zeros))), (4, bytes(cramjam.zstd.compress(zeros)))]
del zeros
# Frames of zstd that ask for a window of 128 MiB and of 2 GiB.
bodies += [(4, struct.pack("<IBB", 0xFD2FB528, 0, exponent << 3) + bytes((1, 0, 0))) for exponent in (17, 21)]

def peak_kib():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))

with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # the peak so far is forgotten: that of the tests' own process is inherited, and hides any growth
before = peak_kib()
if len(sys.argv) > 1:
    b"x" * (int(sys.argv[1]) << 20)
for compression, body in bodies:
    for stated, kind in ((100, CorruptionError), (2**32 - 1, LimitError), (127 << 20, CorruptionError)):
        if stated > 64 << 20 and len(body) > 100 and kind is CorruptionError:
            continue  # an honest length is no bomb: it fills what was asked for, within the bound
        chunk = Chunk(0, 0, 1, entries=(SubBatch(compression, 25, stated, body),))
        segment = Osiris().open_segment(LOG_HEADER + encode_chunk(chunk), 0)
        for attempt in (lambda: segment.decode(segment.scan(segment.start), ("value",)),
                        lambda: segment.read(segment.start, 3)):
            try:
                attempt()
            except kind:
                continue
            sys.exit(f"{compression} {stated}: no {kind.__name__}")
grown = (peak_kib() - before) // 1024
sys.exit(f"grew by {grown} MiB" if grown > 32 else 0)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs"), reason="the peak of memory cannot be measured here")
def test_bombs_do_not_go_off() -> None:
    """In a process of its own, to see how much memory it takes at most."""
    done = subprocess.run([sys.executable, "-c", BOMBS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    done = subprocess.run([sys.executable, "-c", BOMBS, "200"], capture_output=True, text=True, check=False)
    assert "grew by" in done.stderr  # growth would be noticed


@settings(max_examples=examples(40))
@given(st.sampled_from(COMPRESSED), st.binary(max_size=60), st.data())
def test_any_body_of_a_sub_batch(compression: Compression, value: bytes, data: st.DataObject) -> None:
    body = bytearray(SubBatch.of([value, b"x"], compression).body)
    for _ in range(data.draw(st.integers(0, 3))):
        if body:
            body[data.draw(st.integers(0, len(body) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    body = body[: data.draw(st.integers(0, len(body)))] + data.draw(st.binary(max_size=3))
    stated = data.draw(st.sampled_from([0, 9, 9 + len(value), 5000]))
    only_our_errors(LOG_HEADER + encode_chunk(Chunk(0, 0, 1, entries=(SubBatch(compression, 2, stated, bytes(body)),))))


def test_cramjam_bounds_what_it_writes() -> None:
    """The one property of the library that all of this rests on."""
    for codec in (cramjam.gzip, cramjam.snappy, cramjam.lz4, cramjam.zstd):
        body = codec.compress(bytes(10_000))
        out = np.full(101, 0xAA, np.uint8)
        with pytest.raises(cramjam.DecompressionError):
            codec.decompress_into(body, out[:100])
        assert out[100] == 0xAA
