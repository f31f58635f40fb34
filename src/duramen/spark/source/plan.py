"""From options to splits: which logs, from where to where. Runs on the driver; reads names, indexes and headers."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from duramen.consumers import ConsumableLog
from duramen.disk import ArrowDisk, Disk, Look
from duramen.errors import UsageError
from duramen.formats import Stop, SupportsIsolation
from duramen.log import Log, SegmentInfo, SidecarEvidence, first_at, format_at
from duramen.record import MAX_OFFSET, from_us
from duramen.spark.source.discovery import LogSource, disk_of, find_places
from duramen.spark.source.loss import look_again, missing_segments
from duramen.spark.source.narrowed import Narrowed, Seen
from duramen.spark.source.options import EARLIEST, LATEST, MAX_PARTITION_BYTES, Bound, Bounds, ReadOptions, Times
from duramen.spark.source.splits import (
    OffsetAggregates,
    Planned,
    Range,
    Split,
    first_us,
    open_segment,
    plan_splits,
    wanted_segments,
)
from duramen.store import options_at


def plan_read(options: ReadOptions, *, payload: bool = True) -> list[Split]:
    """The splits of a batch read: a snapshot of this moment. ``payload``: whether payloads are read."""
    return plan_narrowed(options, Narrowed(), Seen(), payload=payload)


def plan_narrowed(
    options: ReadOptions,
    narrowed: Narrowed,
    seen: Seen,
    *,
    payload: bool,
    counts_unread: bool = False,
    most_bytes: int = MAX_PARTITION_BYTES,
) -> list[Split]:
    """The same for a part of the read, of the records that ``seen`` names. ``counts_unread``: whether only aggregates
    are needed, which the sidecar knows for some segments. ``most_bytes``: see `plan_splits`."""
    disk, path = disk_of(options.path)
    logs, places = [], find_places(options, disk, path)
    for place in places:
        log = open_log(options, disk, place)
        evidence = look_again(log, disk)
        found = seen.planned(
            place, log, evidence, partial(range_of, options, disk, place, log), fails=options.fail_on_data_loss
        )
        if found is None or not narrowed.wants(place):
            continue
        found = found._replace(bounds=narrowed.within(found.bounds))
        tell_missing(options, log, disk, evidence, found.bounds)
        logs.append(found)
    check_named(options, places)
    counted, unread = _aggregates_known(logs) if counts_unread else (OffsetAggregates(), frozenset())
    splits = plan_splits(
        logs, disk, max_bytes=options.max_bytes_per_partition, min_splits=options.min_partitions, payload=payload,
        most_bytes=most_bytes, max_records=options.max_records_per_partition, without=unread,
    )  # fmt: skip
    if counted.records:
        first, *others = splits or [Split((), ())]
        splits = [replace(first, counted=counted), *others]
    return splits


def _aggregates_known(logs: Sequence[Planned]) -> tuple[OffsetAggregates, frozenset[str]]:
    """The aggregates of the records in segments that need not be read, and the paths of those segments: the writer
    counted a record at each offset when it sealed the segment or closed the log, and the file has not changed since as
    far as its size, and that of an active one its times, show. Nothing is compared with a checksum."""
    total, paths = OffsetAggregates(), set()
    for one in logs:
        codec, evidence = one.log.codec, one.evidence
        if evidence is None or (isinstance(codec, SupportsIsolation) and codec.hides_records):
            continue
        for info, following in wanted_segments(one.log, one.bounds):
            end = evidence.dense_end(info.path, info.base_offset, info.size_bytes)
            if end is None or following not in (None, end) or info.base_offset in one.grown:
                continue  # the task that reads it tells of a gap
            paths.add(info.path)
            first = max(info.base_offset, codec.first_visible, one.bounds.from_offset)
            end = min(end, one.bounds.to_offset)
            if first < end:
                total = total.plus(end - first, first, end - 1)
    return total, frozenset(paths)


def open_log(options: ReadOptions, disk: Disk, place: LogSource) -> ConsumableLog:
    given = {**(options_at(disk, place.path) if options.is_store else {}), **options.format_options}
    if "isolation" in given:
        fmt = format_at(disk, place.path, options.log_format, {})
        if "isolation" not in fmt.option_names:
            del given["isolation"]  # a log without transactions: all records are committed
    return ConsumableLog(place.path, format=options.log_format, disk=disk, **given)


def tell_missing(options: ReadOptions, log: Log, disk: Disk, evidence: SidecarEvidence, bounds: Range) -> None:
    """Raise or warn where segments are missing that hold some of what is wanted."""
    for loss in missing_segments(log, disk, evidence, bounds.from_offset, bounds.to_offset):
        loss.tell(fails=options.fail_on_data_loss)


def range_of(options: ReadOptions, disk: Disk, place: LogSource, log: Log) -> Range:
    """What is wanted of one log by a batch read."""
    last = _end_by_time(options, disk, place, log)
    if last is None:
        last = resolve(_bound_for(options.ending, place, LATEST), log, MAX_OFFSET)
    first = starting_offset(options, disk, place, log, batch=True)
    if options.starting_us is None and options.ending_us is None:
        return Range(first, last)
    if log.codec.capabilities.timestamps is None and options.allows_no_times:
        return Range(0, 0)
    _check_times(log)
    if not log.codec.capabilities.ordered_timestamps:
        return Range(first, last)  # a record of any segment may have any time: tasks compare each row
    if options.ending_us is not None:
        last = min(last, _not_before(log, disk, options.ending_us))
    if options.starting_us is not None and log.segments:
        first = max(first, _not_after(log, disk, options.starting_us))
    return Range(first, last)


def _not_before(log: Log, disk: Disk, us: int) -> int:
    """An offset that every record older than that time lies before, where times are in order. In a log that is not
    local it is the base of a segment: a search inside would fetch the segment."""
    if not isinstance(disk, ArrowDisk):
        found = _offset_at(log, disk, us)
        return found if found < log.next_offset else MAX_OFFSET
    later = _first_later(log, disk, us)
    return log.segments[later].base_offset if later < len(log.segments) else MAX_OFFSET


def _not_after(log: Log, disk: Disk, us: int) -> int:
    """An offset that no record of that time or later lies before, where times are in order."""
    if not isinstance(disk, ArrowDisk):
        return _begin_at(log, disk, us)
    return log.segments[max(_first_later(log, disk, us) - 1, 0)].base_offset


def starting_offset(options: ReadOptions, disk: Disk, place: LogSource, log: Log, *, batch: bool = False) -> int:
    """Where a read begins in one log: by offset, or by the time of this partition; a stream also not before the first
    record of a time that holds for all (the tasks of a batch read compare the time of each row)."""
    strategy = options.starting_strategy
    if options.starting_times is not None:
        _check_times(log)
        us = _time_for(options.starting_times, "startingOffsetsByTimestamp", place)
        return _matched(log, _begin_at(log, disk, us), place, strategy or "error", "startingOffsetsByTimestamp")
    first = resolve(_bound_for(options.starting, place, EARLIEST), log, None)
    if options.starting_us is None or (batch and strategy != "error"):
        return first
    _check_times(log)
    found = _begin_at(log, disk, options.starting_us)
    return max(first, _matched(log, found, place, strategy or LATEST, "startingTimestamp"))


def _end_by_time(options: ReadOptions, disk: Disk, place: LogSource, log: Log) -> int | None:
    """Where ``endingOffsetsByTimestamp`` ends a read; None where that option is not given."""
    if options.ending_times is None:
        return None
    _check_times(log)
    found = _offset_at(log, disk, _time_for(options.ending_times, "endingOffsetsByTimestamp", place))
    return found if found < log.next_offset else MAX_OFFSET


def _time_for(times: Times, name: str, place: LogSource) -> int:
    found = times.get(place.topic, {}).get(place.partition)
    if found is None:
        raise UsageError(
            f"option {name} has no time for {place.topic}/{place.partition}", hint="name every partition that is read"
        )
    return found


def _matched(log: Log, offset: int, place: LogSource, strategy: str, name: str) -> int:
    """The offset of the first record of a time; what ``strategy`` says, where no record is that late."""
    if offset >= log.next_offset and strategy == "error":
        raise UsageError(
            f"option {name}: {place.topic}/{place.partition} has no record of that time or later", path=log.path,
            hint="startingOffsetsByTimestampStrategy=latest begins at its end",
        )  # fmt: skip
    return offset


def _offset_at(log: Log, disk: Disk, us: int) -> int:
    """The first offset whose record is of that time or later; the end of the log if none is."""
    when = from_us(us)
    if when is None:  # no date is that far from now
        return log.next_offset if us > 0 else 0
    if isinstance(disk, ArrowDisk):
        return _offset_elsewhere(log, disk, us)
    return log.offset_at(when)


def _begin_at(log: Log, disk: Disk, us: int) -> int:
    """`_offset_at` for the begin of a range: the first damaged offset, if the search skipped one. Records of that time
    may follow the damage in its segment, and the task that reads them does what ``onDamage`` says."""
    found = _offset_at(log, disk, us)
    ends = [*(info.base_offset for info in log.segments[1:]), log.next_offset]
    if log.codec.capabilities.ordered_timestamps and found not in ends:
        return found  # inside a segment, and no record before it in this segment is of that time
    for info in _searched(log, disk, us):
        if info.base_offset >= found:
            break
        segment = open_segment(log, info, _fetched(disk, info))
        rows = None if segment is None else deque(segment.steps(verify=False), maxlen=1).pop()
        if rows is not None and rows.stop != Stop.END:
            return min(found, rows.cursor.previous_offset + 1)
    return found


def _searched(log: Log, disk: Disk, us: int) -> Sequence[SegmentInfo]:
    """The segments that may hold the first record of that time or later, and those after them."""
    is_ordered = log.codec.capabilities.ordered_timestamps
    return log.segments[max(_first_later(log, disk, us) - 1, 0) if is_ordered else 0 :]


def _fetched(disk: Disk, info: SegmentInfo) -> Look:
    look = Look(disk, info.path)
    if isinstance(disk, ArrowDisk):
        look.fetch(0, info.size_bytes)
    return look


def _offset_elsewhere(log: Log, disk: Disk, us: int) -> int:
    """The same for a log that is not local: fetches no segment but those that may hold the record."""
    for info in _searched(log, disk, us):
        segment = open_segment(log, info, _fetched(disk, info))
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
            f"startingTimestamp and other options with times: {log.format} records have no time", path=log.path,
            hint="use offsets",
        )  # fmt: skip


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
    given = {
        "startingOffsets": options.starting,
        "endingOffsets": options.ending,
        "startingOffsetsByTimestamp": options.starting_times,
        "endingOffsetsByTimestamp": options.ending_times,
    }
    for name, bounds in given.items():
        if not isinstance(bounds, Mapping):
            continue
        for topic, partitions in bounds.items():
            for partition in partitions:
                if (topic, partition) not in known:
                    there = ", ".join(f"{place.topic}/{place.partition}" for place in places[:8]) or "none"
                    raise UsageError(
                        f"option {name} names {topic}/{partition}, which is not read", hint=f"read are: {there}"
                    )
