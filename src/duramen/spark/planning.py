"""From options to splits: which logs, from where to where. Runs on the driver; reads names, indexes and headers."""

from __future__ import annotations

from collections.abc import Mapping

from duramen.disk import Disk
from duramen.errors import UsageError
from duramen.log.reader import Log
from duramen.model import MAX_OFFSET
from duramen.spark.options import EARLIEST, LATEST, Bound, Bounds, ReadOptions
from duramen.spark.places import Place, disk_of, find_places
from duramen.spark.splits import Range, Split, plan


def plan_read(options: ReadOptions) -> list[Split]:
    """The splits of a batch read: a snapshot of this moment."""
    disk, path = disk_of(options.path)
    logs = []
    for place in find_places(options, disk, path):
        log = open_log(options, disk, place)
        logs.append((place, log, range_of(options, place, log)))
    _check_named(options, [place for place, _, _ in logs])
    return plan(logs, disk, max_bytes=options.max_bytes_per_partition, min_splits=options.min_partitions)


def open_log(options: ReadOptions, disk: Disk, place: Place) -> Log:
    return Log(place.path, format=options.log_format, disk=disk, **options.format_options)


def range_of(options: ReadOptions, place: Place, log: Log) -> Range:
    """What is wanted of one log."""
    first = resolve(_bound_for(options.starting, place, EARLIEST), log, 0)
    last = resolve(_bound_for(options.ending, place, LATEST), log, MAX_OFFSET)
    if options.starting_us is not None:
        first = max(first, log.offset_at(options.starting_us // 1000))
    return Range(first, last, options.starting_us, options.ending_us)


def _bound_for(bounds: Bounds, place: Place, default: str) -> Bound:
    if not isinstance(bounds, Mapping):
        return bounds
    return bounds.get(place.topic, {}).get(place.partition, default)


def resolve(bound: Bound, log: Log, latest: int) -> int:
    """A bound as an offset."""
    if bound == EARLIEST:
        return 0
    if bound == LATEST:
        return latest or log.next_offset
    assert isinstance(bound, int)
    return bound if bound >= 0 else max(log.next_offset + bound, 0)


def _check_named(options: ReadOptions, places: list[Place]) -> None:
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
