"""The subjects of `bench.planning` run, and forget what they promise to forget."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import planning
from bench.__main__ import SUBJECTS


def test_the_index_subject_measures_every_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "BATCH", 200)
    (table,) = SUBJECTS["index"](tmp_path, True)
    rows = {row[0]: row for row in table.rows}
    assert set(rows) == set(planning.logs.FORMATS)
    assert rows["fixed-slot"][-1] == "0"
    assert float(rows["durable-log"][-1].replace(",", "")) > 10_000  # an entry for every record


def test_the_cold_subject_needs_no_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "DROP_CACHES", tmp_path)  # a directory: it cannot be written, as for most users
    rows = list(planning._cold(tmp_path, 1 << 20, 2))
    assert [row[-1] for row in rows] == ["posix_fadvise"] * 5


def test_the_segments_subject(tmp_path: Path) -> None:
    rows = list(planning._segments(tmp_path, 3))
    assert all(int(row[1]) >= 3 for row in rows)
