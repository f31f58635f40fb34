"""Cursors of Osiris logs: in the log itself where it can be written, and what RabbitMQ stored there."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

import duramen
from duramen.consumers.lag import consumer_lags as lags
from duramen.consumers.lag import needed_from
from duramen.consumers.log import ConsumableLog, ConsumableWritableLog
from duramen.errors import UnsupportedFieldError, UsageError
from duramen.formats.osiris.chunk import ChunkType, parse_chunk
from duramen.formats.osiris.tracking import TrackingBlock, TrackingKind
from duramen.testing.crash import patterns
from duramen.testing.simulated_disk import SimulatedDisk
from tests.consumers.logs import make_log, value


def chunks(root: Path) -> list[object]:
    raw = max(root.glob("*.segment")).read_bytes()
    position, found = 8, []
    while position < len(raw) and any(raw[position : position + 48]):
        chunk, position = parse_chunk(raw, position)
        found.append(chunk)
    return found


def test_a_position_is_a_tracking_delta(tmp_path: Path) -> None:
    root = make_log(tmp_path / "log", "osiris", 3)
    with duramen.open(root, "a") as log:
        log.cursor("reader").store(2)
        assert log.next_offset == 4, "a tracking chunk takes one offset"
        assert log.cursor("reader").load() == 2
        assert log.append(b"more") == 4
        assert [record.offset for record in log.scan()] == [0, 1, 2, 4]
    _, delta, _ = chunks(root)
    assert delta.chunk_type == ChunkType.TRACKING_DELTA  # type: ignore[attr-defined]
    assert delta.chunk_id == 3  # type: ignore[attr-defined]
    assert delta.blocks == (TrackingBlock(TrackingKind.OFFSET, b"reader", 2),)  # type: ignore[attr-defined]
    assert not (root / ".duramen" / "cursors").exists()
    assert duramen.verify(root).ok
    with duramen.open(root) as log:
        assert log.cursor("reader").load() == 2
        assert [(c.name, c.offset, c.stored_ms) for c in log.cursors()] == [("reader", 2, None)]
        assert needed_from(log) == [("cursor", "reader", 2)]


def test_a_file_that_is_older_than_the_log_s_own_position_does_not_count(tmp_path: Path) -> None:
    """A writer stored a later position in the log and was killed before it removed a reader's file."""
    root = make_log(tmp_path / "log", "osiris", 3)
    with duramen.open(root) as reader:
        reader.cursor("reader").store(1)
    (file,) = (root / ".duramen/cursors").glob("*.cursor")
    older = file.read_bytes()
    with duramen.open(root, "a") as log:
        log.cursor("reader").store(2)
        assert not file.exists()
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(older)
        assert log.cursor("reader").load() == 2
    with duramen.open(root) as reader:
        assert reader.cursor("reader").load() == 2
        assert [(cursor.name, cursor.offset) for cursor in reader.cursors()] == [("reader", 2)]


def test_a_new_segment_begins_with_all_positions(tmp_path: Path) -> None:
    root = make_log(tmp_path / "log", "osiris", 3)
    with duramen.open(root, "a") as log:
        log.cursor("b").store(2)
        log.cursor("a").store(1)
        log.seal()
        log.append(b"more")
        log.cursor("a").store(3)
        assert (log.cursor("a").load(), log.cursor("b").load()) == (3, 2)
    snapshot = chunks(root)[0]
    assert snapshot.chunk_type == ChunkType.TRACKING_SNAPSHOT  # type: ignore[attr-defined]
    assert [block.id for block in snapshot.blocks] == [b"b", b"a"]  # type: ignore[attr-defined]
    with duramen.open(root) as log:
        assert [(c.name, c.offset) for c in log.cursors()] == [("a", 3), ("b", 2)]


def test_an_empty_segment_is_not_left_for_another(tmp_path: Path) -> None:
    """Not even where what it begins with is more than a segment may have: the next would have its name."""
    with duramen.open(tmp_path / "log", "a", format="osiris", segment_max_bytes=5) as log:
        log.cursor("a").store(0)
        assert [segment.base_offset for segment in log.segments] == [0]
        log.cursor("a").store(1)
        log.seal()
        before = len(log.segments)
        log.cursor("a").store(2)
        assert len(log.segments) == before
        assert log.cursor("a").load() == 2
    assert duramen.verify(tmp_path / "log").ok


def test_the_newer_of_log_and_file_counts(tmp_path: Path) -> None:
    root = make_log(tmp_path / "log", "osiris", 3)
    with duramen.open(root) as reader:
        reader.cursor("c").store(1)
        with duramen.open(root, "a") as writer:
            assert writer.cursor("c").load() == 1
            writer.cursor("c").store(2)
            assert reader.cursor("c").load() == 2
            reader.cursor("c").store(0)
            assert (reader.cursor("c").load(), writer.cursor("c").load()) == (0, 0)
            writer.cursor("c").store(3)
            assert reader.cursor("c").load() == 3
            assert reader.cursor("c").delete()
            assert (reader.cursor("c").load(), writer.cursor("c").load()) == (None, None)
            assert reader.cursors() == writer.cursors() == []
            assert not reader.cursor("c").delete()
            writer.cursor("c").store(1)
            assert [(c.name, c.offset) for c in reader.cursors()] == [("c", 1)]


def test_groups_step_over_tracking(tmp_path: Path) -> None:
    root = make_log(tmp_path / "log", "osiris", 3)
    with duramen.open(root, "a") as log:
        log.cursor("c").store(1)
        log.append(b"more")
        log.cursor("c").store(2)
        group = log.group("g")
        held = group.fetch(10)
        assert [delivery.offset for delivery in held] == [0, 1, 2, 4]
        assert group.ack_many(held) == 4
        assert (group.lag, group.status().acked_until) == (0, 6)


def test_what_rabbitmq_stored_is_loaded(osiris: Path) -> None:
    """Logs that a real broker wrote, with the positions that its client stored."""
    seen = 0
    for root in sorted({path.parent for path in osiris.rglob("*.segment")}):
        with duramen.open(root) as log:
            for state in log.cursors():
                assert log.cursor(state.name).load() == state.offset
                seen += 1
    assert seen


@pytest.mark.parametrize("size_bytes", [500_000_000, 200])
def test_a_crash_leaves_the_old_or_the_new_position(size_bytes: int) -> None:
    disk = SimulatedDisk()
    images: list[tuple[SimulatedDisk, set[int | None]]] = []
    with ConsumableWritableLog("/log", format="osiris", disk=disk, segment_max_bytes=size_bytes) as log:
        log.append_batch([value(offset) for offset in range(5)])
        allowed: set[int | None] = {None}
        disk.on_operation = lambda number, what: images.append((disk.clone(), set(allowed)))
        for offset in (1, 4, 2):
            allowed.add(offset)
            log.cursor("a").store(offset)
            allowed = {offset}
            log.append(b"next", durability="write")
        disk.on_operation = None
    assert len(images) > 10
    for number, (image, expected) in enumerate(images):
        for pattern in patterns(number)[number % 4 :: 4]:
            crashed = image.crash(pattern)
            with ConsumableWritableLog("/log", disk=crashed) as again:
                found = again.cursor("a").load()
                assert found in expected
            with ConsumableLog("/log", disk=crashed) as again_reader:
                assert again_reader.cursor("a").load() == found


def test_a_time_is_tracked_beside_the_offset(tmp_path: Path) -> None:
    root = make_log(tmp_path / "log", "osiris", 3)
    when = datetime(2100, 1, 1, 0, 0, 0, 123000, UTC)
    with duramen.open(root, "a") as log:
        cursor = log.cursor("reader")
        assert cursor.load_timestamp() is None
        cursor.store_timestamp(when)
        assert (cursor.load(), cursor.load_timestamp()) == (None, when)
        assert lags(log) == [], "a time is not a position"
        cursor.store(2)
        log.cursor("old").store_timestamp(-5)  # before 1970
        assert (cursor.load(), cursor.load_timestamp()) == (2, when)
    _, delta, *_ = chunks(root)
    assert delta.blocks == (TrackingBlock(TrackingKind.TIMESTAMP, b"reader", 4_102_444_800_123),)  # type: ignore[attr-defined]
    with duramen.open(root, "a") as log:
        log.seal()
        log.append(b"more")
        assert log.cursor("reader").load_timestamp() == when, "the snapshot of the new segment holds it"
        assert log.cursor("old").load_timestamp() is None, "RabbitMQ's snapshots leave out times before the log"
        assert [(c.name, c.offset, c.timestamp_ms) for c in log.cursors()] == [("reader", 2, 4_102_444_800_123)]
        with pytest.raises(UsageError, match="not a time"):
            log.cursor("reader").store_timestamp("yesterday")
    assert duramen.verify(root).ok
    with duramen.open(root) as log, pytest.raises(UsageError, match="open for reading"):
        log.cursor("reader").store_timestamp(when)


def test_other_formats_refuse_a_time_by_name(tmp_path: Path) -> None:
    with duramen.open(tmp_path / "log", "a", format="keratin") as log:
        assert log.cursor("reader").load_timestamp() is None
        with pytest.raises(UnsupportedFieldError, match="keratin cannot store the time of a cursor"):
            log.cursor("reader").store_timestamp(0)
