"""What a writer knows after it was opened again: the last time, wherever it lies; and its clock."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import duramen
from duramen.errors import UsageError
from duramen.log.write import batch
from duramen.log.write.batch import GroupBatch
from duramen.log.write.group_commit import Request

FUTURE_MS = 4_000_000_000_000


@pytest.mark.parametrize("format_name", ["keratin", "rustlog"])
@pytest.mark.parametrize("without_index", [False, True])
def test_a_time_may_not_go_back_after_an_empty_segment(tmp_path: Path, format_name: str, without_index: bool) -> None:
    with duramen.open(tmp_path, "a", format=format_name) as log:
        log.append_batch([b"x" * 300] * 500)
        log.append(b"late", timestamp=FUTURE_MS)
        log.seal()
    if without_index:
        for path in [*tmp_path.rglob("*.idx"), *tmp_path.rglob("*.index")]:
            path.unlink()
    with duramen.open(tmp_path, "a") as log:
        with pytest.raises(UsageError, match="goes back"):
            log.append(b"early", timestamp=FUTURE_MS - 1)
        assert log.append(b"ours") == 501
        assert log.read(501).timestamp == log.read(500).timestamp
    assert duramen.verify(tmp_path).ok


@pytest.mark.parametrize("format_name", ["keratin", "rustlog"])
def test_a_time_may_not_go_back_after_a_segment_without_a_header(tmp_path: Path, format_name: str) -> None:
    with duramen.open(tmp_path, "a", format=format_name) as log:
        log.append(b"late", timestamp=FUTURE_MS)
        log.seal()
        active = Path(log.segments[-1].path)
    active.unlink()
    with duramen.open(tmp_path, "a") as log:
        with pytest.raises(UsageError, match="goes back"):
            log.append(b"early", timestamp=FUTURE_MS - 1)
        assert log.append(b"same", timestamp=FUTURE_MS) == 1


def test_times_in_milliseconds_may_repeat_after_reopening(tmp_path: Path) -> None:
    with duramen.open(tmp_path, "a", format="keratin") as log:
        log.append(b"one", timestamp=FUTURE_MS)
        log.seal()
    with duramen.open(tmp_path, "a") as log:
        assert log.append(b"two", timestamp=FUTURE_MS) == 1


def test_a_clock_of_one_s_own(tmp_path: Path) -> None:
    now_ns = 1_700_000_000_000_000_000
    with duramen.open(tmp_path, "a", format="keratin", clock=lambda: now_ns) as log:
        log.append(b"one")
        when = log.read(0).timestamp
        assert when is not None
        assert when.timestamp() == now_ns / 1e9


# --- RustLog's first record


def test_a_first_record_of_zeros_is_refused_alone(tmp_path: Path) -> None:
    """Others of the same group are stored: it is not their mistake."""
    with duramen.open(tmp_path, "a", format="rustlog") as log:
        empty = batch.batch_of_one(log.codec, b"", timestamp=0)
        values = [
            empty,
            empty,
            batch.batch_of_one(log.codec, b"two", timestamp=0),
            empty,
            batch.batch_of_one(log.codec, b""),
        ]
        group = [Request(GroupBatch(batch, "fsync"), batch.nbytes, batch.num_rows) for batch in values]
        log.commit_group(group)
        assert [isinstance(request.error, UsageError) for request in group] == [True, True, False, False, False]
        assert [request.result.base_offset for request in group[2:]] == [0, 1, 2]
        assert [record.value for record in log.scan()] == [b"two", b"", b""]
    assert duramen.verify(tmp_path).ok


def test_a_first_record_of_zeros_alone(tmp_path: Path) -> None:
    with duramen.open(tmp_path, "a", format="rustlog", header_bytes=12) as log:
        with pytest.raises(UsageError, match="cannot be empty"):
            log.append(b"")
        with pytest.raises(UsageError, match="cannot be empty"):
            log.append_batch([b"", b"x"])
        assert log.append(b"x") == 0
        assert log.append(b"") == 1


def test_threads_that_append_while_one_is_refused(tmp_path: Path) -> None:
    answers: list[object] = []
    with duramen.open(tmp_path, "a", format="rustlog", linger_ms=20) as log:

        def append(value: bytes) -> None:
            try:
                answers.append(log.append(value, timestamp=0))
            except UsageError:
                answers.append("refused")

        threads = [threading.Thread(target=append, args=(value,)) for value in (b"", b"one", b"two")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        stored = [record.value for record in log.scan()]
    assert sorted(stored, key=len) in ([b"one", b"two"], [b"two", b"one"], [b"", b"one", b"two"], [b"", b"two", b"one"])
    assert answers.count("refused") == 3 - len(stored)
