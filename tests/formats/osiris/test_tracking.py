"""Osiris: tracking as RabbitMQ keeps it, and chunks as objects."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duramen.errors import (
    CorruptionError,
    UnknownVersionError,
    UsageError,
)
from duramen.formats import Role, ScanPosition
from duramen.formats.osiris.chunk import (
    Chunk,
    ChunkType,
    SimpleEntry,
    SubBatch,
    encode_chunk,
    parse_chunk,
    snapshot_chunk,
)
from duramen.formats.osiris.osiris import LOG_HEADER, Osiris
from duramen.formats.osiris.tracking import (
    Tracking,
    TrackingBlock,
    TrackingKind,
    delta_blocks,
    encode_blocks,
    parse_blocks,
)
from tests.formats.osiris_logs import (
    CRASH,
    CRASH_AT,
    DATA,
    GOLDEN,
    SEGMENTS,
    F,
    batch_of,
    offsets_of,
    opened,
    segment_of,
)

# --- chunks and tracking as objects


blocks = st.one_of(
    st.tuples(
        st.sampled_from([TrackingKind.SEQUENCE, TrackingKind.OFFSET]),
        st.binary(min_size=1, max_size=255),
        st.integers(0, 2**64 - 1),
    ),
    st.tuples(st.just(TrackingKind.TIMESTAMP), st.binary(min_size=1, max_size=4), st.integers(-(2**63), 2**63 - 1)),
).map(lambda fields: TrackingBlock(*fields))


@given(st.lists(blocks, max_size=5))
def test_tracking_blocks_round_trip(made: list[TrackingBlock]) -> None:
    raw = encode_blocks(made)
    assert parse_blocks(raw) == tuple(made)
    state = Tracking()
    state.update(77, made)
    raw = encode_blocks(state.snapshot_blocks(), snapshot=True)
    again = Tracking({b"old": 1}, {b"old": (1, 1)}, {b"old": 1})
    again.replace(parse_blocks(raw, snapshot=True))
    assert again == state


@given(st.binary(max_size=40), st.booleans())
def test_any_bytes_as_tracking(raw: bytes, snapshot: bool) -> None:
    try:
        parsed = parse_blocks(raw, snapshot=snapshot)
    except CorruptionError:
        return
    assert encode_blocks(parsed, snapshot=snapshot) == raw


def test_block_order_is_rabbitmqs() -> None:
    delta = delta_blocks(offsets={b"a": 1, b"b": 2}, sequences={b"p": 3, b"q": 4}, timestamps={b"t": 5})
    assert [block.id for block in delta] == [b"t", b"q", b"p", b"b", b"a"]
    state = Tracking()
    state.update(9, delta)
    assert [block.id for block in state.snapshot_blocks()] == [b"t", b"b", b"a", b"q", b"p"]


@pytest.mark.parametrize("name", [name for name in SEGMENTS if not name.startswith(GOLDEN.name)])
def test_block_order_in_every_fixture(name: str) -> None:
    """Sorting what RabbitMQ wrote into our order changes nothing."""
    data = (DATA / name).read_bytes()
    position = len(LOG_HEADER)
    while position < (CRASH_AT if DATA / name == CRASH else len(data)):
        chunk, position = parse_chunk(data, position)
        state = Tracking()
        state.update(chunk.chunk_id, chunk.blocks + chunk.trailer)
        if chunk.chunk_type == ChunkType.TRACKING_SNAPSHOT:
            assert chunk.blocks == state.snapshot_blocks()
        else:
            assert chunk.blocks + chunk.trailer == delta_blocks(
                offsets=state.offsets,
                sequences={key: sequence for key, (_, sequence) in state.sequences.items()},
                timestamps=state.timestamps,
            )


def test_a_snapshot_leaves_out_what_is_before_the_log() -> None:
    state = Tracking({b"old": 4, b"new": 5}, {b"p%d" % n: (n, 1) for n in range(300)}, {b"old": 99, b"new": 100})
    kept = state.pruned(first_offset=5, first_timestamp=100)
    assert (kept.offsets, kept.timestamps) == ({b"new": 5}, {b"new": 100})
    assert set(kept.sequences) == {b"p%d" % n for n in range(45, 300)}


def test_a_stored_offset_before_the_log_stays_until_the_next_snapshot() -> None:
    """As RabbitMQ reads it: only writing a snapshot forgets, reading the state does not."""
    chunk = Chunk(455, 0, 1, entries=(SimpleEntry(b"a"),), trailer=delta_blocks(offsets={b"late": 3}))
    assert segment_of(chunk).tracking().offsets == {b"late": 3}


def test_a_snapshot_replaces_the_state() -> None:
    before = Chunk(0, 0, 1, entries=(SimpleEntry(b"a"),), trailer=delta_blocks(offsets={b"gone": 1}))
    empty = snapshot_chunk(Tracking(), chunk_id=1, timestamp=0, epoch=1)
    assert segment_of(before).tracking().offsets == {b"gone": 1}
    assert not segment_of(before, empty).tracking()
    assert offsets_of(segment_of(before, empty)) == [0]


@pytest.mark.parametrize(
    "wrong",
    [
        TrackingBlock(TrackingKind.OFFSET, b"", 1), TrackingBlock(TrackingKind.OFFSET, b"x" * 256, 1),
        TrackingBlock(TrackingKind.OFFSET, b"x", -1), TrackingBlock(TrackingKind.TIMESTAMP, b"x", 2**63),
        TrackingBlock(TrackingKind.SEQUENCE, b"x", 1, chunk_id=3),
    ],
)  # fmt: skip
def test_tracking_that_cannot_be_written(wrong: TrackingBlock) -> None:
    with pytest.raises(UsageError):
        encode_blocks([wrong])


@pytest.mark.parametrize(
    "wrong",
    [
        Chunk(0, 0, 1), Chunk(0, 0, 1, entries=(SimpleEntry(b""),), blocks=delta_blocks(offsets={b"a": 1})),
        Chunk(0, 0, 1, entries=(SimpleEntry(b""),), chunk_type=ChunkType.TRACKING_DELTA),
        Chunk(0, 0, 1, trailer=delta_blocks(offsets={b"a": 1}), chunk_type=ChunkType.TRACKING_SNAPSHOT),
        Chunk(-1, 0, 1, entries=(SimpleEntry(b""),)), Chunk(0, 2**63, 1, entries=(SimpleEntry(b""),)),
        Chunk(0, 0, 2**64, entries=(SimpleEntry(b""),)), Chunk(0, 0, 1, entries=(SimpleEntry(b""),), version=2),
        Chunk(0, 0, 1, entries=(SimpleEntry(b""),), filter=bytes(256)),
        Chunk(0, 0, 1, entries=(SimpleEntry(b""),), reserved=b""),
        Chunk(0, 0, 1, entries=(SimpleEntry(b""),) * 65536),
        Chunk(0, 0, 1, entries=(SubBatch(8, 1, 0, b""),)), Chunk(0, 0, 1, entries=(SubBatch(0, 65536, 0, b""),)),
        Chunk(0, 0, 1, entries=(SubBatch(0, 1, 2**32, b""),)),
    ],
)  # fmt: skip
def test_chunks_that_cannot_be_written(wrong: Chunk) -> None:
    with pytest.raises(UsageError):
        encode_chunk(wrong)


def test_what_is_no_chunk() -> None:
    good = encode_chunk(Chunk(0, 0, 1, entries=(SimpleEntry(b"a"),)))
    for raw, kind in ((b"", CorruptionError), (bytes(60), CorruptionError), (good[:-1], CorruptionError),
                      (b"\x52" + good[1:], UnknownVersionError)):  # fmt: skip
        with pytest.raises(kind) as caught:
            parse_chunk(raw)
        assert caught.value.position == 0
    for position in (-1, len(good), len(good) + 9):
        with pytest.raises(CorruptionError):
            parse_chunk(good, position)


# --- from segment to segment


def test_a_new_segment_starts_with_the_tracking_of_the_one_before() -> None:
    previous = opened("tracked/00000000000000000269.segment")
    begun = Osiris(chunk_version=0).begin_segment(417, 1794721919000, previous)
    assert (begun.rows.count, begun.rows.cursor) == (0, ScanPosition(len(begun.data), 417))
    segment = F.open_segment(begun.data, 417)
    assert segment.tracking() == previous.tracking()
    chunk, end = parse_chunk(segment.buf, len(LOG_HEADER))
    assert (chunk.chunk_type, chunk.chunk_id, end) == (ChunkType.TRACKING_SNAPSHOT, 417, len(begun.data))
    real, _ = parse_chunk((DATA / "tracked" / F.path_of(Role.SEGMENT, 417)).read_bytes(), len(LOG_HEADER))
    # RabbitMQ counts in the sequence of the chunk that it is about to write behind the snapshot. We do not: a crash
    # between the two would make a message a duplicate that was never stored.
    assert [b for b in chunk.blocks if b.kind != TrackingKind.SEQUENCE] == [
        b for b in real.blocks if b.kind != TrackingKind.SEQUENCE
    ]


@pytest.mark.parametrize("previous", [None, "plain/00000000000000000000.segment"])
def test_a_new_segment_without_tracking_is_its_header(previous: str | None) -> None:
    begun = F.begin_segment(9, 0, None if previous is None else opened(previous))
    assert bytes(begun.data) == LOG_HEADER
    assert (begun.rows.count, len(begun.rows.columns), begun.rows.cursor) == (0, 0, ScanPosition(8, 8))


def test_appending_continues_in_what_is_there() -> None:
    found = segment_of(Chunk(0, 0, 5, entries=(SimpleEntry(b"a"),), version=0))
    for fmt, version, epoch in ((F, 0, 5), (Osiris(epoch=9), 0, 9), (Osiris(chunk_version=1), 0, 5)):
        encoded = fmt.continuing(found).encode(batch_of([b"b"]), ScanPosition(len(found.buf), 0))
        chunk, _ = parse_chunk(encoded.data)
        assert (chunk.version, chunk.epoch, chunk.chunk_id) == (version, epoch, 1)
    empty = F.open_segment(LOG_HEADER, 0)
    assert F.continuing(empty) is F
    kept = Osiris(compression="lz4", chunk_max_records=7).continuing(found)
    assert kept.options == {"compression": "lz4", "chunk_max_records": 7, "chunk_version": 0, "epoch": 5}
