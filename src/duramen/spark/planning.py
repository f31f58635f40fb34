"""From options to splits: which logs, from where to where. Runs on the driver; reads names, indexes and headers."""

from __future__ import annotations

from collections.abc import Mapping

from duramen.disk import Disk
from duramen.disk.arrowfs import ArrowDisk
from duramen.errors import UsageError
from duramen.groups.log import ConsumableLog
from duramen.log.reader import Log
from duramen.model import MAX_OFFSET, from_us
from duramen.spark.options import EARLIEST, LATEST, Bound, Bounds, ReadOptions
from duramen.spark.places import Place, disk_of, find_places
from duramen.spark.splits import Range, Split, first_us, plan


def plan_read(options: ReadOptions, *, payload: bool = True) -> list[Split]:
    """The splits of a batch read: a snapshot of this moment. ``payload``: whether payloads are read."""
    disk, path = disk_of(options.path)
    logs = []
    for place in find_places(options, disk, path):
        log = open_log(options, disk, place)
        logs.append((place, log, range_of(options, disk, place, log)))
    check_named(options, [place for place, _, _ in logs])
    return plan(
        logs, disk, max_bytes=options.max_bytes_per_partition, min_splits=options.min_partitions, payload=payload
    )


def open_log(options: ReadOptions, disk: Disk, place: Place) -> ConsumableLog:
    return ConsumableLog(place.path, format=options.log_format, disk=disk, **options.format_options)


def range_of(options: ReadOptions, disk: Disk, place: Place, log: Log) -> Range:
    """What is wanted of one log by a batch read."""
    last = resolve(_bound_for(options.ending, place, LATEST), log, MAX_OFFSET)
    if options.ending_us is not None:
        later = first_later(log, disk, options.ending_us)
        if later < len(log.segments):
            last = min(last, log.segments[later].base_offset)
    return Range(starting_offset(options, disk, place, log), last)


def starting_offset(options: ReadOptions, disk: Disk, place: Place, log: Log) -> int:
    """Where a read of one log begins, by offset and by time."""
    first = resolve(_bound_for(options.starting, place, EARLIEST), log, None)
    if options.starting_us is None:
        return first
    if not isinstance(disk, ArrowDisk):
        _check_times(log)
        return max(first, log.offset_at(from_us(options.starting_us) or 0))
    before = max(first_later(log, disk, options.starting_us) - 1, 0)
    return max(first, log.segments[before].base_offset if log.segments else 0)


def first_later(log: Log, disk: Disk, us: int) -> int:
    """The number of the first segment whose first record is at or behind a time."""
    _check_times(log)
    segments = log.segments
    low, high = 0, len(segments)
    while low < high:
        middle = (low + high) // 2
        found = first_us(log, disk, segments[middle])
        if found is not None and found < us:
            low = middle + 1
        else:
            high = middle
    return low


def _check_times(log: Log) -> None:
    if log.codec.capabilities.timestamps is None:
        raise UsageError(
            f"options startingTimestamp and endingTimestamp: {log.format} records have no time", path=log.path
        )


def _bound_for(bounds: Bounds, place: Place, default: str) -> Bound:
    if not isinstance(bounds, Mapping):
        return bounds
    return bounds.get(place.topic, {}).get(place.partition, default)


def resolve(bound: Bound, log: Log, latest: int | None) -> int:
    """A bound as an offset. ``latest``, if given, is used for the end of the log as it is."""
    if bound == EARLIEST:
        return 0
    if bound == LATEST:
        return log.next_offset if latest is None else latest
    assert isinstance(bound, int)
    return bound if bound >= 0 else max(log.next_offset + bound, 0)


def check_named(options: ReadOptions, places: list[Place]) -> None:
    """Raise where offsets are given for a partition that is not read: it is misspelt more often than not."""
    known = {(place.topic, place.partition) for place in places}
    for name, bounds in (("startingOffsets", options.starting), ("endingOffsets", options.ending)):
        if not isinstance(bounds, Mapping):
            continue
        for topic, partitions in bounds.items():
            for partition in partitions:
                if (topic, partition) not in known:
                    there = ", ".join(f"{place.topic}/{place.partition}" for place in places[:8]) or "none"
                    raise UsageError(
                        f"option {name} names {topic}/{partition}, which is not read", hint=f"read are: {there}"
                    )
