"""A mapped segment belongs to the snapshot that it was mapped under."""

from __future__ import annotations

from pathlib import Path

import duramen


def test_a_later_watermark_does_not_reach_a_segment_that_a_thread_holds(tmp_path: Path) -> None:
    with duramen.open(tmp_path / "log", "a", durability="write") as log, duramen.open(tmp_path / "log") as reader:
        log.append(b"acknowledged, not yet durable")
        reader.refresh()
        held = reader._segment(0)
        before = held.mark
        assert before is not None
        log.sync()
        reader.refresh()
        now = reader._segment(0)
        assert now.mark is not None
        assert now.mark.durable_position > before.durable_position
        assert held.mark is before
        assert now.segment is held.segment, "the bytes are the same: nothing is mapped again"


def test_a_segment_that_grew_is_mapped_again(tmp_path: Path) -> None:
    with duramen.open(tmp_path / "log", "a") as log, duramen.open(tmp_path / "log") as reader:
        log.append(b"one")
        reader.refresh()
        held = reader._segment(0)
        log.append(b"two")
        reader.refresh()
        assert reader._segment(0).visible_bytes > held.visible_bytes == len(held.segment.buf)


def test_a_segment_that_was_sealed_is_mapped_again(tmp_path: Path) -> None:
    with duramen.open(tmp_path / "log", "a") as log, duramen.open(tmp_path / "log") as reader:
        log.append(b"one")
        reader.refresh()
        held = reader._segment(0)
        log.seal()
        reader.refresh()
        assert held.is_last
        assert not reader._segment(0).is_last
