"""The log as a stream: what Spark asks between two micro-batches, and what it tells.

An offset of the stream is ``{topic: {partition: next offset}}``, always in the same order, because Spark compares the
text. The process that this runs in lives as long as the query; it keeps the logs open and looks at them again each
time. What executors read is planned as for a batch read.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from duramen.errors import CorruptionError, DuramenError, OffsetError, StorageError
from duramen.groups.log import ConsumableLog
from duramen.spark.failing import plain, plain_rows
from duramen.spark.options import ReadOptions
from duramen.spark.places import Place, disk_of, find_places
from duramen.spark.planning import check_named, open_log, starting_offset
from duramen.spark.reading import Wanted, read_split
from duramen.spark.splits import Range, Split, offset_behind, plan

Offsets = dict[str, dict[str, int]]
Key = tuple[str, int]


class DuramenStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a log, or the partitions of topics, as they grow."""

    def __init__(self, options: ReadOptions, wanted: Wanted) -> None:
        self._options = options
        self._wanted = wanted
        self._tail: Tail | None = None
        self._target: dict[Key, int] | None = None

    def _logs(self) -> Tail:
        """Made where it is used: this object is pickled, and open logs are not."""
        if self._tail is None:
            self._tail = Tail(self._options)
        return self._tail

    # --- offsets

    @plain
    def initialOffset(self) -> Offsets:  # noqa: N802
        return to_offsets(self._logs().first())

    @plain
    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802
        tail, begin = self._logs(), from_offsets(start)
        # Spark plans a batch when the one before is committed: what lies before ``start`` is done with. `commit` says
        # the same, but only once there is more to read.
        self.commit(start)
        ends = tail.latest()
        if self._target is not None:
            ends = {key: min(ends.get(key, end), end) for key, end in self._target.items()}
        ranges = tail.ranges(begin, ends)
        if not isinstance(limit, ReadAllAvailable):
            ranges = self._limited(tail, ranges, limit)
        return to_offsets({key: wanted.to_offset for key, wanted in ranges.items()})

    def _limited(self, tail: Tail, ranges: dict[Key, Range], limit: ReadLimit) -> dict[Key, Range]:
        """What one trigger may take. Spark hands over one limit; where the options say two, both hold."""
        rows, size = self._options.max_offsets_per_trigger, self._options.max_bytes_per_trigger
        if isinstance(limit, ReadMaxRows):
            rows = limit.max_rows
        elif isinstance(limit, ReadMaxBytes):
            size = limit.max_bytes
        if rows is not None:
            ranges = tail.at_most_rows(ranges, rows)
        if size is not None:
            ranges = tail.at_most_bytes(ranges, size)
        return ranges

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        return ReadAllAvailable()

    @plain
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._logs().latest()

    @plain
    def reportLatestOffset(self) -> Offsets:  # noqa: N802
        return to_offsets(self._logs().latest())

    # --- rows

    @plain
    def partitions(self, start: Offsets, end: Offsets) -> list[InputPartition]:
        tail = self._logs()
        tail.look()
        return [InputPartition(split) for split in tail.splits(from_offsets(start), from_offsets(end))]

    @plain
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition.value, Split):
            return iter(())
        return plain_rows(read_split(partition.value, self._wanted, disk_of(self._options.path)[0]))

    # --- what Spark tells

    @plain
    def commit(self, end: Offsets) -> None:
        """Everything before ``end`` is processed: kept as a cursor, if the option names one."""
        if self._options.cursor is not None:
            self._logs().store(self._options.cursor, from_offsets(end))

    def stop(self) -> None:
        if self._tail is not None:
            self._tail.close()
            self._tail = None


class RefusingStreamReader(DataSourceStreamReader):
    """A reader of options that make no sense, which says so when it is asked for anything: an error while a stream
    reader is made is lost in PySpark 4.3, behind one of its own."""

    def __init__(self, error: DuramenError) -> None:
        self._error = error

    @plain
    def initialOffset(self) -> Offsets:  # noqa: N802
        raise self._error

    @plain
    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802
        raise self._error

    @plain
    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        raise self._error

    @plain
    def partitions(self, start: Offsets, end: Offsets) -> list[InputPartition]:
        raise self._error

    @plain
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        raise self._error


class Tail:
    """The logs of a stream, as they are now."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._disk, self._path = disk_of(options.path)
        self._logs: dict[Key, tuple[Place, ConsumableLog]] = {}
        self._stored: dict[Key, int] = {}
        self._warned: set[str] = set()
        self.look()
        check_named(options, [place for place, _ in self._logs.values()])

    def look(self) -> None:
        """See what has come and gone: partitions, segments, records."""
        places = {(place.topic, place.partition): place for place in find_places(self._options, self._disk, self._path)}
        for key in self._logs.keys() - places.keys():
            self._logs.pop(key)[1].close()
        for key, place in places.items():
            if key in self._logs:
                self._logs[key][1].refresh()
            else:
                self._logs[key] = (place, open_log(self._options, self._disk, place))

    def close(self) -> None:
        while self._logs:
            self._logs.popitem()[1][1].close()

    # --- where things are

    def first(self) -> dict[Key, int]:
        """Where a new query begins."""
        self.look()
        found = {}
        for key, (place, log) in self._logs.items():
            wanted = starting_offset(self._options, self._disk, place, log)
            found[key] = min(max(wanted, log.first_offset), log.next_offset)
        return found

    def latest(self) -> dict[Key, int]:
        """The end of every log."""
        self.look()
        return {key: log.next_offset for key, (_, log) in self._logs.items()}

    def ranges(self, begin: Mapping[Key, int], ends: Mapping[Key, int]) -> dict[Key, Range]:
        """What lies between two offsets of the stream. A partition that is new since ``begin`` is read from its first
        offset. Raises where something between them is gone, unless that is allowed."""
        found = {}
        for key, end in ends.items():
            log = self._log(key)
            if log is None:
                continue
            start = begin.get(key, log.first_offset)
            found[key] = Range(*self._checked(key, log, start, end))
        for key in begin.keys() - ends.keys():
            if self._log(key) is None:
                self._lose(f"partition {key[0]}/{key[1]} is not there any more", key, begin[key])
            else:
                found[key] = Range(begin[key], begin[key])  # came back, or is new since the target was set
        return found

    def _log(self, key: Key) -> ConsumableLog | None:
        entry = self._logs.get(key)
        return None if entry is None else entry[1]

    def _checked(self, key: Key, log: ConsumableLog, start: int, end: int) -> tuple[int, int]:
        first = log.first_offset
        if start < first and start < end:
            self._lose(f"offsets {start} to {min(first, end) - 1} were removed before they were read", key, start)
            start = min(first, end)
        if start > end:
            self._lose(f"the log ends at {end}, before what was read already: it was cut or replaced", key, start)
            start = end
        return start, end

    def _lose(self, what: str, key: Key, offset: int) -> None:
        place = self._logs[key][0].path if key in self._logs else self._options.path
        if self._options.fail_on_data_loss:
            hint = "failOnDataLoss=false goes on with what is there"
            raise OffsetError(f"data loss: {what}", path=place, offset=offset, hint=hint)
        self._warn(f"{place}: data loss: {what}; going on with what is there")

    def _warn(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            sys.stderr.write(f"duramen: {text}\n")

    # --- how much

    def at_most_rows(self, ranges: Mapping[Key, Range], rows: int) -> dict[Key, Range]:
        """Divide ``rows`` among the logs, by what each has. A gap in front does not count."""
        begins = {key: self._next_held(key, wanted) for key, wanted in ranges.items()}
        there = {key: ranges[key].to_offset - begins[key] for key in ranges}
        shares = divide(rows, there)
        return {
            key: wanted._replace(to_offset=begins[key] + shares[key]) if there[key] else wanted
            for key, wanted in ranges.items()
        }

    def at_most_bytes(self, ranges: Mapping[Key, Range], size_bytes: int) -> dict[Key, Range]:
        """Divide bytes among the logs, by what each has, as far as segments tell."""
        there = {key: max(wanted.to_offset - wanted.from_offset, 0) for key, wanted in ranges.items()}
        shares = divide(size_bytes, {key: self._bytes(key, wanted) for key, wanted in ranges.items()})
        limited = {}
        for key, wanted in ranges.items():
            limited[key] = wanted
            if there[key]:
                behind = offset_behind(self._logs[key][1], self._disk, wanted, shares[key])
                limited[key] = wanted._replace(to_offset=behind)
        return limited

    def _bytes(self, key: Key, wanted: Range) -> int:
        if wanted.from_offset >= wanted.to_offset:
            return 0
        splits = plan([(*self._logs[key], wanted)], self._disk, max_bytes=1 << 40)
        return sum(split.size_bytes for split in splits)

    def _next_held(self, key: Key, wanted: Range) -> int:
        """The first offset of the range that the log holds: compaction may have left a gap of any width."""
        if wanted.from_offset >= wanted.to_offset:
            return wanted.to_offset
        batches = self._logs[key][1].batches(
            wanted.from_offset, wanted.to_offset, max_records=1, columns=("offset",), verify=False
        )
        try:
            batch = next(batches, None)
        except CorruptionError:
            return wanted.from_offset  # whoever reads it says more
        return wanted.to_offset if batch is None else int(batch.column(0)[0].as_py())

    # --- reading and remembering

    def splits(self, begin: Mapping[Key, int], ends: Mapping[Key, int]) -> list[Split]:
        ranges = self.ranges(begin, ends)
        logs = [(*self._logs[key], wanted) for key, wanted in ranges.items() if key in self._logs]
        return plan(
            [entry for entry in logs if entry[2].from_offset < entry[2].to_offset], self._disk,
            max_bytes=self._options.max_bytes_per_partition, min_splits=self._options.min_partitions,
        )  # fmt: skip

    def store(self, name: str, ends: Mapping[Key, int]) -> None:
        """Keep the positions as cursors. A log that cannot be written to is read all the same."""
        for key, end in ends.items():
            log = self._log(key)
            if log is None or self._stored.get(key) == end:
                continue
            self._stored[key] = end
            try:
                log.cursor(name).store(end)
            except StorageError as error:
                self._warn(f"the cursor {name!r} is not kept: {error}")


def divide(amount: int, there: Mapping[Key, int]) -> dict[Key, int]:
    """``amount`` in shares as large as what each has, or all that there is.

    >>> divide(10, {("a", 0): 30, ("a", 1): 10})
    {('a', 0): 8, ('a', 1): 2}
    """
    total = sum(there.values())
    if total <= amount:
        return dict(there)
    shares = {key: amount * size // total for key, size in there.items()}
    rest = amount - sum(shares.values())
    for key in sorted(there, key=lambda key: -(amount * there[key] % total))[:rest]:
        shares[key] += 1
    return shares


def to_offsets(positions: Mapping[Key, int]) -> Offsets:
    """In the order of topic and partition, whatever order they came in."""
    tree: Offsets = {}
    for topic, partition in sorted(positions):
        tree.setdefault(topic, {})[str(partition)] = positions[topic, partition]
    return tree


def from_offsets(tree: Mapping[str, Any]) -> dict[Key, int]:
    """Raises where a checkpoint holds something else: it is of another source."""
    try:
        return {(topic, int(number)): int(at) for topic, parts in tree.items() for number, at in parts.items()}
    except (AttributeError, TypeError, ValueError):
        raise CorruptionError(
            f"the checkpoint holds {str(tree)[:200]}, which are no offsets of this source",
            hint="use another checkpointLocation",
        ) from None


def lag(progress: Any) -> dict[str, int]:
    """How many offsets a query was behind its logs at a progress, by ``topic/partition``.

    ``progress`` is ``query.lastProgress`` or one of ``query.recentProgress``. Sources whose offsets have another shape
    are left out; Kafka's have the same."""
    behind: dict[str, int] = {}
    if progress is None:  # the query has just begun
        return behind
    for source in json.loads(progress.json if hasattr(progress, "json") else json.dumps(progress))["sources"]:
        try:
            ends, latest = (_offsets_of(source[name]) for name in ("endOffset", "latestOffset"))
        except CorruptionError:
            continue
        for (topic, number), end in latest.items():
            behind[f"{topic}/{number}"] = end - ends.get((topic, number), 0)
    return behind


def _offsets_of(tree: Any) -> dict[Key, int]:
    return from_offsets((json.loads(tree) if isinstance(tree, str) else tree) or {})
