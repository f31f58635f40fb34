"""What a group's files may grow to: never beyond what is read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import duramen


def acknowledge(group: Any, records: Sequence[duramen.Record]) -> None:
    for record in records:
        group.ack(record)


def test_a_group_never_writes_a_file_that_would_be_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Acknowledgements out of order are kept one by one until the records before them are acknowledged."""
    with duramen.open(tmp_path / "log", "a") as log:
        log.append_batch([b"value"] * 1000)
        group = log.group("billing")
        monkeypatch.setattr("duramen.consumers.groups.store.GROUP_BYTES", 40_000)
        fetched = group.fetch(1000, lease=600)
        with pytest.raises(duramen.LimitError, match="must not exceed"):
            acknowledge(group, fetched[1::2])
    with duramen.open(tmp_path / "log", "a") as log:
        assert log.group("billing", compact_bytes=20_000).status().acked_until == 0
    for path in (tmp_path / "log").rglob("*.delta"):
        assert path.stat().st_size <= 40_000
