"""A line that was removed from the end of the sealed list: only the watermark knows that it existed."""

from __future__ import annotations

from pathlib import Path

import pytest

import duramen

FORMATS = ["keratin", "durable-log", "rustlog", "osiris"]


def fill(path: Path, format_name: str | None = None, count: int = 100) -> None:
    options = {} if format_name is None else {"format": format_name, "segment_max_bytes": 2000}
    with duramen.open(path, "a", **options) as log:
        for number in range(count):
            log.append(b"payload %06d" % number, durability="write")


def remove_last_line(path: Path) -> bytes:
    sealed = path / ".duramen/sealed.jsonl"
    lines = sealed.read_bytes().splitlines(keepends=True)
    sealed.write_bytes(b"".join(lines[:-1]))
    return lines[-1]


def codes(path: Path) -> list[str]:
    return [finding.code for finding in duramen.verify(path).findings]


@pytest.mark.parametrize("format_name", FORMATS)
def test_verify_misses_the_line_until_the_list_is_repaired(tmp_path: Path, format_name: str) -> None:
    fill(tmp_path, format_name)
    remove_last_line(tmp_path)
    for count in (0, 1, 60, 1):  # open and close; append; append beyond the next seal; again
        assert codes(tmp_path) == ["bad-sidecar"]
        fill(tmp_path, count=count)
    assert codes(tmp_path) == ["bad-sidecar"]
    duramen.repair(tmp_path, plan_only=False)
    assert codes(tmp_path) == []
    fill(tmp_path, count=60)
    assert codes(tmp_path) == []


def test_the_only_line_is_missed_too(tmp_path: Path) -> None:
    fill(tmp_path, "rustlog", count=70)
    remove_last_line(tmp_path)
    assert (tmp_path / ".duramen/sealed.jsonl").read_bytes() == b""
    assert codes(tmp_path) == ["bad-sidecar"]


def test_a_line_that_is_put_back_is_missed_no_more(tmp_path: Path) -> None:
    fill(tmp_path, "rustlog")
    line = remove_last_line(tmp_path)
    with open(tmp_path / ".duramen/sealed.jsonl", "ab") as file:
        file.write(line)
    fill(tmp_path, count=60)
    assert codes(tmp_path) == []


def test_a_list_that_was_deleted_as_a_whole_is_not_missed(tmp_path: Path) -> None:
    fill(tmp_path, "rustlog")
    (tmp_path / ".duramen/sealed.jsonl").unlink()
    for _ in range(2):
        assert codes(tmp_path) == []
        fill(tmp_path, count=60)


@pytest.mark.parametrize("format_name", FORMATS)
def test_retention_removes_the_line_and_its_segment(tmp_path: Path, format_name: str) -> None:
    fill(tmp_path, format_name)
    with duramen.open(tmp_path, "a") as log:
        log.retain(duramen.Retention(max_bytes=0))
        assert codes(tmp_path) == []
    assert codes(tmp_path) == []
    fill(tmp_path)
    assert codes(tmp_path) == []


def test_compaction_removes_the_line_of_a_segment_that_it_empties(tmp_path: Path) -> None:
    """It holds tombstones only; the one before it was sealed when the list was deleted."""
    with duramen.open(tmp_path, "a", format="keratin") as log:
        log.append(b"stays", key=b"stays")
        log.seal()
    (tmp_path / ".duramen/sealed.jsonl").unlink()
    with duramen.open(tmp_path, "a") as log:
        log.append_batch([(b"key %d" % number, None) for number in range(10)])
        log.seal()
        log.append(b"more", key=b"other")
        report = log.compact(duramen.Compaction(tombstone_delay_ms=0))
        assert codes(tmp_path) == []
    assert report.removed
    assert codes(tmp_path) == []
    fill(tmp_path)
    assert codes(tmp_path) == []
