"""Osiris: files of a real RabbitMQ against what a real client read from them; damage; file headers and indexes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import duramen
from duramen.errors import (
    CorruptionError,
    DuramenError,
    IncompleteHeaderError,
    LimitError,
    UnknownVersionError,
)
from duramen.formats import FileName, Role, ScanPosition
from duramen.formats.osiris.chunk import Chunk, ChunkType, Compression, SimpleEntry, SubBatch, encode_chunk, parse_chunk
from duramen.formats.osiris.osiris import INDEX_HEADER, LOG_HEADER, UNCOVERED, Osiris
from duramen.formats.osiris.segment import chunks_of
from duramen.formats.osiris.tracking import Tracking, delta_blocks
from duramen.kernel.layout import NOT_FOUND, Stop
from duramen.log.segments.segment_end import EndKind, classify_end
from duramen.record import COLUMNS, Record
from tests.formats.osiris_logs import (
    CRASH,
    CRASH_AT,
    DATA,
    GOLDEN,
    READ_BACK,
    SEGMENTS,
    STREAMS,
    TS,
    F,
    batch_of,
    golden_chunks,
    lines,
    of_truth,
    only_our_errors,
    opened,
    records_of,
    segment_of,
    shown,
    value_at,
)

# --- what RabbitMQ wrote, and what its client read


@pytest.mark.parametrize("name", READ_BACK)
def test_records_are_what_a_client_read(name: str) -> None:
    found: list[dict[str, Any]] = []
    for path in sorted((DATA / name).glob("*.segment")):
        found += map(of_truth, records_of(opened(f"{name}/{path.name}")))
    assert found == lines(DATA / name / "truth.jsonl")


@pytest.mark.parametrize("name", [n for n in STREAMS if (DATA / n / "chunks_truth.jsonl").exists()])
def test_chunk_headers_are_what_a_client_received(name: str) -> None:
    found: list[dict[str, Any]] = []
    for path in sorted((DATA / name).glob("*.segment")):
        blocks = F.dump(Role.SEGMENT, path.read_bytes(), int(path.stem))
        found += [shown(block) for block in blocks if block.title.startswith("chunk") and "." not in block.title]
    truth = lines(DATA / name / "chunks_truth.jsonl")
    assert [
        {
            "chunk_id": chunk["chunk_id"],
            "magic_version": int(chunk["magic"]) << 4 | int(chunk["version"]),
            "type": chunk["chunk_type"],
            "reserved": int(chunk["filter_size"]) << 24 | int.from_bytes(chunk["reserved"], "big"),
            **{key: chunk[key] for key in ("num_entries", "num_records", "timestamp", "epoch", "crc")},
            **{key: chunk[key] for key in ("data_length", "trailer_length")},
        }
        for chunk in found
        if chunk["chunk_type"] == ChunkType.USER
    ] == truth


@pytest.mark.parametrize("name", [n for n in STREAMS if (DATA / n / "tracking_truth.json").exists()])
def test_tracking_is_what_rabbitmq_returned(name: str) -> None:
    last = max((DATA / name).glob("*.segment"))
    truth = json.loads((DATA / name / "tracking_truth.json").read_text(encoding="utf-8"))
    assert opened(f"{name}/{last.name}").tracking().as_text() == truth
    facts = F.describe({path.name: path.read_bytes() for path in (DATA / name).iterdir()})
    assert facts["tracking"] == truth
    assert facts["dialect"] == "chunk version 0"
    assert facts["epoch"] == 1


@pytest.mark.parametrize("name", SEGMENTS)
def test_every_whole_chunk_encodes_to_its_bytes(name: str) -> None:
    segment = opened(name)
    data = bytes(segment.buf)
    position = len(LOG_HEADER)
    end = CRASH_AT if name == "crash/00000000000000082802.segment" else len(data)
    count = 0
    while position < end:
        chunk, following = parse_chunk(data, position)
        assert encode_chunk(chunk) == data[position:following]
        position, count = following, count + 1
    assert position == end
    assert count == sum(len(rows.columns) for rows in segment.steps())


@pytest.mark.parametrize("name", SEGMENTS)
def test_the_index_is_rebuilt_byte_for_byte(name: str) -> None:
    segment = opened(name)
    builder = F.index_builder(segment.base_offset, 0)
    for rows in segment.steps():
        builder.add(rows)
    assert builder.build()[Role.INDEX] == (DATA / name).with_suffix(".index").read_bytes()


@pytest.mark.parametrize("name", ["subbatch/00000000000000000000.segment", "tracked/00000000000000000269.segment"])
def test_every_record_is_found_by_the_index(name: str) -> None:
    segment = opened(name)
    index = F.open_index(Role.INDEX, (DATA / name).with_suffix(".index").read_bytes(), segment.base_offset)
    assert index is not None
    listed = {record["offset"]: record for record in records_of(segment)}
    last = max(listed)
    for offset in range(segment.base_offset, last + 3):
        entry = index.floor(offset)
        assert entry is not None
        cursor = segment.cursor_at(*entry)
        assert cursor is not None
        for start in (cursor, segment.start):
            found = segment.read(start, offset)
            if offset in listed:
                expected = listed[offset]
                assert found == Record(offset, expected["timestamp"], None, expected["value"], None)
            else:
                assert found == (Stop.LIMIT if offset <= segment.scan(segment.start).end.last_offset else Stop.END)


@pytest.mark.parametrize("name", READ_BACK)
def test_records_do_not_depend_on_the_steps(name: str) -> None:
    for path in sorted((DATA / name).glob("*.segment"))[:2]:
        segment = opened(f"{name}/{path.name}")
        whole = records_of(segment)
        assert records_of(segment, max_records=1) == whole
        assert records_of(segment, max_bytes=20_000, verify=False) == whole


def test_columns_in_any_order_and_the_chunk_id() -> None:
    segment = opened("tracked/00000000000000000000.segment")
    rows = segment.scan(segment.start)
    batch = segment.decode(rows, ("chunk_id", "value", "offset"))
    assert batch.schema.names == ["chunk_id", "value", "offset"]
    chunks = chunks_of(rows)
    firsts = set(chunks.chunk_id[chunks.chunk_type == ChunkType.USER].tolist())
    assert set(batch.column("chunk_id").to_pylist()) == firsts
    pairs = zip(batch.column("chunk_id").to_pylist(), batch.column("offset").to_pylist(), strict=True)
    assert all(chunk_id <= offset for chunk_id, offset in pairs)
    assert segment.decode(rows, ()).num_columns == 0


# --- the golden log, from its operations


def test_golden_log_from_its_operations() -> None:
    for chunks in golden_chunks():
        base = chunks[0].chunk_id
        segment = segment_of(*chunks)
        assert bytes(segment.buf) == (GOLDEN / F.path_of(Role.SEGMENT, base)).read_bytes()
        builder = F.index_builder(base, 0)
        builder.add(segment.scan(segment.start))
        assert builder.build()[Role.INDEX] == (GOLDEN / F.path_of(Role.INDEX, base)).read_bytes()


def test_golden_user_records_from_a_batch() -> None:
    """`encode` writes the same bytes where a chunk has neither tracking nor sub-batches."""
    data = (GOLDEN / F.path_of(Role.SEGMENT, 0)).read_bytes()
    fmt = Osiris(chunk_version=0, epoch=7)
    encoded = fmt.encode(batch_of([b"aaa", b"bb", b"c"], ms=[TS] * 3), ScanPosition(8, -1))
    assert data[8:].startswith(bytes(encoded.data))
    big = fmt.encode(batch_of([b"z" * 1300], [8], [TS + 4]), ScanPosition(0, 7))
    assert data.endswith(bytes(big.data))


# --- the crash


def test_the_torn_chunk_of_the_crash() -> None:
    segment = F.open_segment(CRASH.read_bytes(), 82802)
    rows = list(segment.steps())[-1]
    assert (rows.stop, rows.cursor) == (Stop.SHORT_BODY, ScanPosition(CRASH_AT, 82995))
    assert segment.resync(rows.cursor) == NOT_FOUND
    assert classify_end(segment, rows.cursor, rows.stop, is_last=True).ending == EndKind.TORN
    assert classify_end(segment, rows.cursor, rows.stop, is_last=False).ending == EndKind.DAMAGE
    recovered = opened("crash_recovered/00000000000000082802.segment")
    assert bytes(segment.buf[:CRASH_AT]) == bytes(recovered.buf)
    assert segment.read(segment.start, 82995) == recovered.read(recovered.start, 82995)
    assert segment.read(segment.start, 82996) == Stop.SHORT_BODY
    torn = list(F.dump(Role.SEGMENT, segment.buf, 82802))[-1]
    assert (torn.position, torn.problem) == (CRASH_AT, Stop.SHORT_BODY.meaning)


@pytest.mark.parametrize("row", range(4))
def test_a_changed_byte_before_a_valid_chunk_is_damage(row: int) -> None:
    data = bytearray((DATA / "crash_recovered" / CRASH.name).read_bytes())
    chunks = chunks_of(F.open_segment(bytes(data), 82802).scan(ScanPosition(8, 82801)))
    data[int(chunks.data_position[row]) + 5] ^= 0x40
    segment = F.open_segment(data, 82802)
    rows = segment.scan(segment.start)
    assert (rows.stop, rows.end.position) == (Stop.BAD_CHECKSUM, int(chunks.position[row]))
    following = int(chunks.position[row + 1]) if row < 3 else NOT_FOUND
    assert segment.resync(rows.cursor) == following
    ending = classify_end(segment, rows.cursor, rows.stop, is_last=True).ending
    assert ending == (EndKind.DAMAGE if row < 3 else EndKind.TORN)
    assert segment.read(segment.start, int(chunks.chunk_id[row])) in (Stop.BAD_CHECKSUM, Stop.LIMIT)


# --- flips


def is_noticed(data: bytes, base: int) -> bool:
    """Whether a check of the segment alone sees that something is wrong."""
    try:
        segment = F.open_segment(data, base)
        previous = segment.start.previous_offset
        for rows in segment.steps():
            if any(True for _ in segment.check(rows)) or any(True for _ in rows.gaps(previous)):
                return True
            segment.decode(rows, COLUMNS)
            previous = rows.end.last_offset
        return rows.stop != Stop.END
    except DuramenError:
        return True


def test_every_flipped_bit_is_noticed_or_declared_uncovered() -> None:
    filtered = Chunk(
        9, TS, 3, entries=(SimpleEntry(b"abc"), SubBatch.of([b"x", b"y"], Compression.LZ4)), filter=b"\x11" * 16
    )
    first, second = golden_chunks()
    overlooked = set()
    for chunks in (first[:4], second, [filtered]):
        base = chunks[0].chunk_id
        data = bytearray(bytes(segment_of(*chunks).buf))
        assert not is_noticed(bytes(data), base)
        parts = parts_of(data, base)
        for position in range(len(data)):
            for bit in range(8):
                data[position] ^= 1 << bit
                if not is_noticed(bytes(data), base):
                    overlooked.add(parts[position])
                data[position] ^= 1 << bit
    assert overlooked == set(UNCOVERED)


def parts_of(data: bytes | bytearray, base: int) -> dict[int, str]:
    """The name of the part that each byte of a segment belongs to."""
    parts: dict[int, str] = {}
    for block in F.dump(Role.SEGMENT, bytes(data), base):
        in_trailer = ".tracking" in block.title
        for field in block.fields:
            for position in range(field.position, field.position + field.length):
                parts[position] = "trailer" if in_trailer else field.name
    return parts | _tracking_entries(data, base)


def _tracking_entries(data: bytes | bytearray, base: int) -> dict[int, str]:
    """Blocks inside of a tracking chunk are data, under its checksum."""
    segment = F.open_segment(bytes(data), base)
    chunks = chunks_of(segment.scan(segment.start))
    return {
        position: "entry"
        for row in np.flatnonzero(chunks.chunk_type != ChunkType.USER).tolist()
        for position in range(
            int(chunks.data_position[row]), int(chunks.data_position[row]) + int(chunks.data_length[row])
        )
    }


# --- dump


def assert_dump_shows_every_byte(role: Role, raw: bytes, base: int) -> None:
    at = 0
    for block in F.dump(role, raw, base):
        assert block.position == at
        for field in block.fields:
            if field.name == "version" and field.length == 1:
                continue  # shares its byte with the magic number
            assert field.position == at
            if isinstance(field.value, bytes) and block.problem is None:
                assert field.value == raw[at : at + field.length]
            at += field.length
    assert at == len(raw)


@pytest.mark.parametrize("name", SEGMENTS)
def test_dump_shows_every_byte_once(name: str) -> None:
    path = DATA / name
    assert_dump_shows_every_byte(Role.SEGMENT, path.read_bytes(), int(path.stem))
    assert_dump_shows_every_byte(Role.INDEX, path.with_suffix(".index").read_bytes(), int(path.stem))


@pytest.mark.parametrize("version", [0, 1])
def test_a_bloom_filter_is_kept_and_skipped(version: int) -> None:
    made = Chunk(4, TS, 1, entries=(SimpleEntry(b"a"), SimpleEntry(b"b")), filter=bytes(range(16)), version=version)
    raw = encode_chunk(made)
    assert (raw[0], raw[44], raw[48:64], raw[64:69]) == (0x50 | version, 16, bytes(range(16)), b"\0\0\0\1a")
    assert parse_chunk(raw) == (made, 48 + 16 + 10)
    segment = segment_of(made, Chunk(6, TS, 1, entries=(SimpleEntry(b"c"),), version=version))
    assert [(record["offset"], record["value"]) for record in records_of(segment)] == [(4, b"a"), (5, b"b"), (6, b"c")]
    assert value_at(segment, 5) == b"b"
    assert_dump_shows_every_byte(Role.SEGMENT, bytes(segment.buf), 4)


def test_dump_of_a_tracked_chunk() -> None:
    blocks = {
        block.title: block for block in F.dump(Role.SEGMENT, (GOLDEN / F.path_of(Role.SEGMENT, 0)).read_bytes(), 0)
    }
    assert shown(blocks["header"]) == {"magic": b"OSIL", "version": 1}
    assert shown(blocks["chunk2"]) == {
        "magic": 5, "version": 0, "chunk_type": 0, "num_entries": 2, "num_records": 3, "timestamp": TS + 2,
        "epoch": 7, "chunk_id": 4, "crc": shown(blocks["chunk2"])["crc"], "data_length": 40, "trailer_length": 25,
        "filter_size": 0, "reserved": bytes(3),
    }  # fmt: skip
    assert shown(blocks["chunk2.entry1"])["num_records"] == 2
    assert shown(blocks["chunk2.tracking1"]) == {"tracking_type": 0, "id_size": 3, "id": b"pid", "sequence": 43}
    assert shown(blocks["chunk3.tracking0"]) == {"tracking_type": 1, "id_size": 2, "id": b"c1", "offset": 4}


def test_dump_is_lazy() -> None:
    chunks = [Chunk(n, 0, 1, entries=(SimpleEntry(b"a"),)) for n in range(3)]
    data = LOG_HEADER + b"".join(map(encode_chunk, chunks)) + b"\x60" * 60
    dump = F.dump(Role.SEGMENT, data, 0)
    assert [next(dump).title for _ in range(3)] == ["header", "chunk0", "chunk0.entry0"]
    assert list(dump)[-1].problem == Stop.BAD_MAGIC.meaning


def test_dump_shows_tracking_that_cannot_be_read() -> None:
    raw = encode_chunk(Chunk(0, 0, 1, entries=(SimpleEntry(b"a"),), trailer=delta_blocks(offsets={b"c": 1})))
    broken = raw[:-11] + b"\x07" + raw[-10:]
    last = list(F.dump(Role.SEGMENT, LOG_HEADER + broken, 0))[-1]
    assert last.problem is not None
    assert last.fields[0].length == 11
    segment = F.open_segment(LOG_HEADER + broken, 0)
    rows = segment.scan(segment.start)
    assert [p.code for p in segment.check(rows)] == ["bad-tracking"]
    assert records_of(segment)[0]["value"] == b"a"
    assert not segment.tracking()


# --- files


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("00000000000000000009.segment", FileName(Role.SEGMENT, 9)),
        ("00000000000000082802.index", FileName(Role.INDEX, 82802)),
        ("9.segment", None), ("000000000000000000009.segment", None), ("99999999999999999999.index", None),
        ("٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠.segment", None), ("00000000000000000009.segment~", None), ("osiris", None),
    ],
)  # fmt: skip
def test_names(path: str, name: FileName | None) -> None:
    assert F.classify(path) == name
    if name is not None:
        assert F.path_of(*name) == path


@pytest.mark.parametrize(
    ("data", "kind", "position"),
    [
        (b"O", IncompleteHeaderError, 0), (LOG_HEADER[:7], IncompleteHeaderError, 0),
        (b"OSIL\0\0\0\2", UnknownVersionError, 4), (b"OSII\0\0\0\1", CorruptionError, 0),
        (b"OSIL\1", CorruptionError, 4), (b"X", CorruptionError, 0), (bytes(7) + b"x", CorruptionError, 0),
    ],
)  # fmt: skip
def test_file_headers(data: bytes, kind: type[CorruptionError], position: int) -> None:
    with pytest.raises(kind) as caught:
        F.open_segment(data, 0)
    assert type(caught.value) is kind
    assert caught.value.position == position
    assert next(iter(F.dump(Role.SEGMENT, data, 0))).problem == caught.value.message


@pytest.mark.parametrize("data", [b"", bytes(5), bytes(100)])
def test_a_segment_that_never_got_a_header(data: bytes) -> None:
    segment = F.open_segment(data, 7)
    assert segment.start == ScanPosition(0, 6)
    assert records_of(segment) == []


def test_an_empty_segment() -> None:
    for base in (0, 9, None):
        segment = F.open_segment(F.segment_header(9, 0), base)
        assert segment.base_offset == (base or 0)
        assert records_of(segment) == []
        assert segment.read(segment.start, 9) == Stop.END
        assert segment.resync(segment.start) == NOT_FOUND
        assert segment.tracking() == Tracking()
        assert segment.dialect == "no chunk yet"


def test_the_name_and_the_first_chunk() -> None:
    chunk = Chunk(9, 0, 1, entries=(SimpleEntry(b"a"),))
    assert segment_of(chunk, base=9).scan(ScanPosition(8, 8)).count == 1
    data = LOG_HEADER + encode_chunk(chunk)
    assert F.open_segment(data, None).base_offset == 9
    later = F.open_segment(data, 10)
    assert later.scan(later.start).stop == Stop.BAD_ORDER
    earlier = F.open_segment(data, 7)
    rows = earlier.scan(earlier.start)
    assert list(rows.gaps(earlier.start.previous_offset)) == [(8, 7, 8)]


@pytest.mark.parametrize(("offset", "position"), [(0, 8), (0, 9), (1, 8), (-1, 8), (0, 0), (0, 2**32), (0, -1)])
def test_a_cursor_only_where_a_chunk_is(offset: int, position: int) -> None:
    segment = segment_of(Chunk(0, 0, 1, entries=(SimpleEntry(b"a"),)))
    expected = ScanPosition(8, -1) if (offset, position) == (0, 8) else None
    assert segment.cursor_at(offset, position) == expected


def index_codes(raw: bytes) -> list[tuple[str, int | None]]:
    return [(p.code, p.position) for p in F.check_file(Role.INDEX, raw, FileName(Role.INDEX, 0))]


def test_indexes_that_are_wrong() -> None:
    good = (DATA / "plain" / F.path_of(Role.INDEX, 0)).read_bytes()
    assert index_codes(good) == []
    assert index_codes(INDEX_HEADER) == []
    assert index_codes(b"") == index_codes(LOG_HEADER) == index_codes(b"OSII\0\0\0\2") == [("bad-index", 0)]
    assert index_codes(good[:-1]) == [("bad-index", len(good) - 29)]
    swapped = good[:8] + good[37:66] + good[8:37] + good[66:]
    assert index_codes(swapped) == [("bad-index", 37)]
    assert F.open_index(Role.INDEX, LOG_HEADER, 0) is None
    assert F.open_index(Role.INDEX, b"", 0) is None
    cut = F.open_index(Role.INDEX, good[:-1], 0)
    assert cut is not None
    assert (len(cut), cut.rest_bytes) == ((len(good) - 8) // 29 - 1, 28)


def test_zeros_after_an_index() -> None:
    good = (DATA / "plain" / F.path_of(Role.INDEX, 0)).read_bytes()
    whole, padded = F.open_index(Role.INDEX, good, 0), F.open_index(Role.INDEX, good + bytes(29 * 3), 0)
    assert whole is not None
    assert padded is not None
    assert len(padded) == len(whole)
    assert padded.floor(2**62) == whole.floor(2**62)
    nothing = F.open_index(Role.INDEX, INDEX_HEADER + bytes(58), 0)
    assert nothing is not None
    assert nothing.floor(5) is None


def test_times_of_an_index() -> None:
    plain = F.open_index(Role.INDEX, (DATA / "plain" / F.path_of(Role.INDEX, 864)).read_bytes(), 864)
    assert plain is not None
    assert plain.timestamps_us is not None
    times = plain.timestamps_us.tolist()
    first = plain.floor_time(times[5])
    assert first is not None
    assert first == int(plain.offsets[times.index(times[5]) - 1])
    golden = F.open_index(Role.INDEX, (GOLDEN / F.path_of(Role.INDEX, 9)).read_bytes(), 9)
    assert golden is not None
    assert golden.timestamps_us is None  # it ends at -5: no order to search in


def test_an_index_cannot_point_beyond_4_gib() -> None:
    builder = F.index_builder(0, 0)
    builder.add(F.encode(batch_of([b"a"]), ScanPosition(2**32, -1)).rows)
    with pytest.raises(LimitError, match="4 GiB"):
        builder.build()


def test_describe_never_raises() -> None:
    assert F.describe({}) == {}
    assert F.describe({"stray": b""}) == {}
    assert F.describe({F.path_of(Role.SEGMENT, 0): b"OSIL\0\0\0\7"})["tracking"].startswith("the segment has version 7")
    assert F.describe({F.path_of(Role.SEGMENT, 0): b"\0"})["epoch"] == 0
    odd = Chunk(0, 0, 5, entries=(SimpleEntry(b"a"),), trailer=delta_blocks(offsets={b"\xff": 1}))
    facts = F.describe({F.path_of(Role.SEGMENT, 0): bytes(segment_of(odd).buf)})
    assert facts["tracking"]["offsets"] == {"\\xff": 1}
    assert facts["epoch"] == 5


def test_a_log_of_batches_reads_back(tmp_path: Path) -> None:
    """Through the front door: files of `build`, opened as a log."""
    parts = [batch_of([b"a", b"b"], [0, 1], [TS, TS]), batch_of([b"c"], [2], [TS + 1])]
    for path, content in Osiris(compression="zstd").build(parts):
        (tmp_path / path).write_bytes(content)
    with duramen.open(str(tmp_path)) as log:
        assert log.format == "osiris"
        assert [(record.offset, record.value) for record in log] == [(0, b"a"), (1, b"b"), (2, b"c")]
        assert log.read(2).value == b"c"


# --- any bytes


SOURCES = [
    bytes(segment_of(*golden_chunks()[0][:4]).buf),
    bytes(segment_of(*golden_chunks()[1]).buf),
    bytes(segment_of(Chunk(0, 0, 1, entries=(SubBatch.of([b"abc"] * 9, Compression.ZSTD), SimpleEntry(b"x")))).buf),
    (GOLDEN / F.path_of(Role.INDEX, 0)).read_bytes(),
]


@given(st.sampled_from(SOURCES), st.data())
def test_edited_files(source: bytes, data: st.DataObject) -> None:
    changed = bytearray(source)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(changed)))
        width = data.draw(st.sampled_from([1, 2, 4, 8]))
        number = data.draw(st.sampled_from([0, 1, 3, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1]))
        changed[at : at + width] = (number % 256**width).to_bytes(width, "big")
    only_our_errors(bytes(changed))
    only_our_errors(bytes(changed[: data.draw(st.integers(0, len(changed)))]))


@given(st.one_of(st.binary(max_size=120), st.binary(max_size=120).map(lambda raw: LOG_HEADER + b"\x50" + raw)))
def test_any_bytes(data: bytes) -> None:
    only_our_errors(data)


def test_only_simple_entries_have_places() -> None:
    with_sub_batch, simple = (segment_of(*chunks) for chunks in golden_chunks())
    assert with_sub_batch.value_places(with_sub_batch.scan(with_sub_batch.start)) is None
    places = simple.value_places(simple.scan(simple.start))
    assert places is not None
    [(start, length)] = [place.values() for place in places.to_pylist()]
    assert bytes(simple.buf[start : start + length]) == b"end"
