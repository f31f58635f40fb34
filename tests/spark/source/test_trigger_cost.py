"""What one look at a log costs: it depends on what is new, not on how many segments exist."""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes

import duramen
from duramen.spark.source import stream
from duramen.spark.source.options import parse_options
from duramen.spark.source.schema import schema_of, wanted_of
from duramen.testing import SimulatedDisk

PATH = "/log"
SEGMENT_BYTES = 256


class CountingDisk(SimulatedDisk):
    """Counts calls, and files that were listed."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def kind(self, path: str) -> Any:
        self.counts["kind"] += 1
        return super().kind(path)

    def size(self, path: str) -> int:
        self.counts["size"] += 1
        return super().size(path)

    def map(self, path: str) -> Any:
        self.counts["map"] += 1
        return super().map(path)

    def list(self, path: str, within: Sequence[str] = ()) -> list[tuple[str, int]]:
        found = super().list(path, within)
        self.counts["listed"] += len(found)
        return found


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> CountingDisk:
    counting = CountingDisk()
    monkeypatch.setattr(stream, "disk_of", lambda path: (counting, path))
    return counting


def append(disk: CountingDisk, segments: int) -> None:
    """Append until there are so many more segments, and close the log."""
    with duramen.open(PATH, "a", disk=disk, format="keratin", segment_max_bytes=SEGMENT_BYTES) as log:
        wanted = len(log.segments) + segments
        while len(log.segments) < wanted:
            log.append_batch([b"x" * 100] * 5, durability="write")


def reader(**options: str) -> stream.DuramenStreamReader:
    parsed = parse_options({"path": PATH, **options}, streaming=True)
    return stream.DuramenStreamReader(parsed, wanted_of(schema_of(parsed), parsed))


def cost_of_empty_trigger(disk: CountingDisk, limit: ReadLimit, **options: str) -> Counter[str]:
    source = reader(**options)
    end = source.latestOffset(source.initialOffset(), ReadAllAvailable())
    assert source.latestOffset(end, limit) == end
    disk.counts.clear()
    assert source.latestOffset(end, limit) == end
    source.reportLatestOffset()
    return Counter(disk.counts)


@pytest.mark.parametrize(
    ("limit", "options"), [(ReadAllAvailable(), {}), (ReadMaxBytes(1 << 20), {"maxBytesPerTrigger": "1m"})]
)
def test_an_empty_trigger_looks_at_as_many_files_however_many_segments_exist(
    disk: CountingDisk, limit: ReadLimit, options: dict[str, str]
) -> None:
    append(disk, 4)
    few = cost_of_empty_trigger(disk, limit, **options)
    append(disk, 40)
    assert cost_of_empty_trigger(disk, limit, **options) == few
    assert few["listed"] == 0


def test_planning_what_is_new_opens_only_files_of_what_is_new(disk: CountingDisk) -> None:
    def cost_of_next_batch() -> Counter[str]:
        source = reader()
        begin = source.latestOffset(source.initialOffset(), ReadAllAvailable())
        append(disk, 1)
        end = source.latestOffset(begin, ReadAllAvailable())
        source.partitions(begin, end)
        disk.counts.clear()
        assert source.partitions(begin, end)
        return Counter(disk.counts)

    append(disk, 4)
    few = cost_of_next_batch()
    append(disk, 40)
    assert cost_of_next_batch() == few


@pytest.mark.parametrize("change", ["roll", "remove", "replace"])
def test_a_changed_directory_is_listed_again(disk: CountingDisk, change: str) -> None:
    append(disk, 6)
    with duramen.open(PATH, disk=disk) as log:
        log.refresh()
        before = log.segments
        if change == "roll":
            append(disk, 1)
        elif change == "remove":
            disk.remove(before[0].path)
        else:
            copy = posixpath.join(PATH, "copy")
            file = disk.create(copy)
            file.write(0, bytes(disk.map(before[1].path).data) + b"more")
            disk.replace(copy, before[1].path)
        log.refresh()
        with duramen.open(PATH, disk=disk) as fresh:
            assert log.segments == fresh.segments != before


def test_a_sealed_list_is_parsed_once_and_again_where_it_changed(disk: CountingDisk) -> None:
    from duramen.sidecar import SealedList

    append(disk, 5)
    kept = SealedList(disk, PATH)
    assert kept.added_entries() == SealedList(disk, PATH).entries()
    append(disk, 3)
    assert kept.added_entries() == SealedList(disk, PATH).entries()
    entries = list(SealedList(disk, PATH).entries().values())
    SealedList(disk, PATH).replace(entries[2:])  # as retention does
    assert list(kept.added_entries().values()) == entries[2:]
    file = disk.open(f"{PATH}/.duramen/sealed.jsonl")
    file.write(10, b"?")
    assert list(kept.added_entries().values()) == entries[3:]
