"""The ends of what numbers can hold: the last offsets, clocks that go back or stand before 1970, the longest value."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest

import duramen
from duramen.errors import LateTimestampError, UsageError
from duramen.formats import make
from duramen.record import MAX_OFFSET
from tests.log.conftest import FORMATS, options
from tests.log.writing import ORDERED, SEGMENTED, codes, values

LAST = MAX_OFFSET - 1
"""The last offset that a record can have: the one behind it is written down, too."""


def beginning_at(root: Path, name: str, base: int) -> Path:
    """A log whose first segment begins at ``base``, and holds nothing."""
    fmt = make(name)
    path = root / fmt.segment_path(base)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(fmt.begin_segment(base, 0, None).data))
    return root


@pytest.mark.parametrize("name", SEGMENTED)
def test_the_last_offsets(tmp_path: Path, name: str) -> None:
    root = beginning_at(tmp_path, name, LAST - 3)
    with duramen.open(root, "a", format=name) as log:
        log.append(b"a")
        with pytest.raises(UsageError, match="no offset is left for 4 records: the log can take 3 more"):
            log.append_batch([b"x"] * 4)
        assert log.append_batch([b"b", b"c", b"d"]).base_offset == LAST - 2
        for _ in range(2):
            with pytest.raises(UsageError, match="no offset is left for 1 record: the log can take 0 more"):
                log.append(b"e")
        assert log.next_offset == MAX_OFFSET
    assert codes(root) == []
    with duramen.open(root, "a") as log:
        assert [(record.offset, record.value) for record in log.scan()] == [
            (LAST - 3, b"a"), (LAST - 2, b"b"), (LAST - 1, b"c"), (LAST, b"d"),
        ]  # fmt: skip
        assert log.read(LAST).value == b"d"
        with pytest.raises(UsageError, match="no offset is left"):
            log.seal()
    assert codes(root) == []


@pytest.mark.parametrize("name", FORMATS)
def test_a_clock_that_goes_back(tmp_path: Path, name: str) -> None:
    now_ns = 1_800_000_000_000_000_000
    for step_ns in (0, -(10**15), 10**10, -(10**17)):
        now_ns += step_ns
        with duramen.open(tmp_path, "a", format=name, clock=lambda now_ns=now_ns: now_ns, **options(name)) as log:
            log.append_batch(values(log.next_offset, 3))
    with duramen.open(tmp_path) as log:
        times = [record.timestamp for record in log.scan()]
    assert len(times) == 12
    if name in ORDERED:
        assert all(before <= after for before, after in pairwise(times))  # type: ignore[operator]
    assert codes(tmp_path) == []


@pytest.mark.parametrize("name", ORDERED)
def test_the_time_of_the_last_record_does_not_go_back(tmp_path: Path, name: str) -> None:
    """A reader gets it in the format's unit, the clock is finer."""
    for _ in range(2):
        with duramen.open(tmp_path, "a", format=name, clock=lambda: 1_800_000_000_123_456_789, **options(name)) as log:
            log.append(values(0, 1)[0])
            last = log.read(log.next_offset - 1).timestamp
            log.append(values(0, 1)[0], timestamp=last)
            log.append_batch(pa.table({"value": values(0, 2), "timestamp": pa.array([last] * 2)}))
            assert last is not None
            with pytest.raises(LateTimestampError):
                log.append(values(0, 1)[0], timestamp=last - timedelta(milliseconds=1))
    assert codes(tmp_path) == []


@pytest.mark.parametrize("name", FORMATS)
def test_a_clock_before_1970_counts_as_1970(tmp_path: Path, name: str) -> None:
    with duramen.open(tmp_path, "a", format=name, clock=lambda: -(10**18), **options(name)) as log:
        log.append_batch(values(0, 3))
    with duramen.open(tmp_path) as log:
        times = {record.timestamp for record in log.scan()}
    assert {time.timestamp() for time in times if time is not None} <= {0.0}
    assert codes(tmp_path) == []


@pytest.mark.parametrize("name", FORMATS)
def test_no_value_is_written_that_is_too_long_for_a_column(name: str) -> None:
    """Such a log could not be scanned any more."""
    assert make(name, **options(name)).capabilities.max_value_bytes < 2**31
