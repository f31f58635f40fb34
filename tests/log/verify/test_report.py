"""What a report says, in words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import duramen
from tests.log.conftest import codec


def test_one_thing_is_named_in_the_singular(write: Callable[..., Path]) -> None:
    root = write("durable-log", 10, 10)
    fmt = codec("durable-log")
    path = root / fmt.segment_path(0)
    segment = fmt.open_segment(path.read_bytes(), 0)
    positions = segment.scan(segment.start).columns.position
    raw = path.read_bytes()
    path.write_bytes(raw[: positions[4]] + raw[positions[5] : positions[9]] + b"\0")
    said = {finding.code: finding.message for finding in duramen.verify(root).findings}
    assert said["offset-gap"] == "1 offset is missing"
    assert said["missing-segment"] == "1 offset missing before this segment"
    assert said["zero-tail"] == "1 zero byte follows the last record"
    path.write_bytes(raw[: positions[3]] + raw[positions[5] : positions[8]])
    said = {finding.code: finding.message for finding in duramen.verify(root).findings}
    assert said["offset-gap"] == "2 offsets are missing"
    assert said["missing-segment"] == "2 offsets missing before this segment"
