"""From options to splits: which logs, from where to where. Runs on the driver; reads names, indexes and headers."""

from __future__ import annotations

from collections.abc import Mapping

from duramen.consumers import ConsumableLog
from duramen.disk import ArrowDisk, Disk
from duramen.errors import UsageError
from duramen.log import Log, SidecarEvidence, first_at
from duramen.record import MAX_OFFSET, from_us
from duramen.spark.source.discovery import LogSource, disk_of, find_places
from duramen.spark.source.look import Look
from duramen.spark.source.loss import look_again, missing_segments
from duramen.spark.source.options import EARLIEST, LATEST, Bound, Bounds, ReadOptions
from duramen.spark.source.splits import Planned, Range, Split, first_us, open_segment, plan_splits


def plan_read(options: ReadOptions, *, payload: bool = True) -> list[Split]:
    """The splits of a batch read: a snapshot of this moment. ``payload``: whether payloads are read."""
    disk, path = disk_of(options.path)
    logs = []
    for place in find_places(options, disk, path):
        log = open_log(options, disk, place)
        evidence = look_again(log, disk)
        bounds = range_of(options, disk, place, log)
        tell_missing(options, log, disk, evidence, bounds)
        logs.append(Planned(place, log, bounds, evidence))
    check_named(options, [one.place for one in logs])
    return plan_splits(
        logs, disk, max_bytes=options.max_bytes_per_partition, min_splits=options.min_partitions, payload=payload
    )


def open_log(options: ReadOptions, disk: Disk, place: LogSource) -> ConsumableLog:
    return ConsumableLog(place.path, format=options.log_format, disk=disk, **options.format_options)


def tell_missing(options: ReadOptions, log: Log, disk: Disk, evidence: SidecarEvidence, bounds: Range) -> None:
    """Raise or warn where segments are missing that hold some of what is wanted."""
    for loss in missing_segments(log, disk, evidence, bounds.from_offset, bounds.to_offset):
        loss.tell(fails=options.fail_on_data_loss)


def range_of(options: ReadOptions, disk: Disk, place: LogSource, log: Log) -> Range:
    """What is wanted of one log by a batch read."""
    last = resolve(_bound_for(options.ending, place, LATEST), log, MAX_OFFSET)
    first = resolve(_bound_for(options.starting, place, EARLIEST), log, None)
    if options.starting_us is None and options.ending_us is None:
        return Range(first, last)
    _check_times(log)
    if not log.codec.capabilities.ordered_timestamps:
        return Range(first, last)  # a record of any segment may have any time: tasks compare each row
    segments = log.segments
    if options.ending_us is not None:
        later = _first_later(log, disk, options.ending_us)
        last = min(last, segments[later].base_offset) if later < len(segments) else last
    if options.starting_us is not None and segments:
        first = max(first, _not_after(log, disk, options.starting_us))
    return Range(first, last)


def _not_after(log: Log, disk: Disk, us: int) -> int:
    """An offset that no record of that time or later lies before, where times are in order."""
    if not isinstance(disk, ArrowDisk):
        return _offset_at(log, disk, us)
    return log.segments[max(_first_later(log, disk, us) - 1, 0)].base_offset


def starting_offset(options: ReadOptions, disk: Disk, place: LogSource, log: Log) -> int:
    """Where a new stream begins in one log: by offset, and not before the first record of a time or later."""
    first = resolve(_bound_for(options.starting, place, EARLIEST), log, None)
    if options.starting_us is None:
        return first
    _check_times(log)
    return max(first, _offset_at(log, disk, options.starting_us))


def _offset_at(log: Log, disk: Disk, us: int) -> int:
    """The first offset whose record is of that time or later; the end of the log if none is."""
    when = from_us(us)
    if when is None:  # no date is that far from now
        return log.next_offset if us > 0 else 0
    if isinstance(disk, ArrowDisk):
        return _offset_elsewhere(log, disk, us)
    return log.offset_at(when)


def _offset_elsewhere(log: Log, disk: Disk, us: int) -> int:
    """The same for a log that is not local: fetches no segment but those that may hold the record."""
    segments = log.segments
    is_ordered = log.codec.capabilities.ordered_timestamps
    for info in segments[max(_first_later(log, disk, us) - 1, 0) if is_ordered else 0 :]:
        look = Look(disk, info.path)
        look.fetch(0, info.size_bytes)
        segment = open_segment(log, info, look)
        found = None if segment is None else first_at(segment, segment.start, us)
        if found is not None:
            return found
    return log.next_offset


def _first_later(log: Log, disk: Disk, us: int) -> int:
    """The number of the first segment whose first record is of that time or later, where times are in order."""
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


def _bound_for(bounds: Bounds, place: LogSource, default: str) -> Bound:
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


def check_named(options: ReadOptions, places: list[LogSource]) -> None:
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
