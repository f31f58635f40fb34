"""The log as a stream: what Spark asks between two micro-batches, and what it tells.

An offset of the stream is ``{topic: {partition: next offset}, "/logs": {topic: {partition: identity}}}``, always in the
same order, because Spark compares the text. The identity (`identity`) says which log the number belongs to, so that
another log in its place is noticed. The process that this runs in lives as long as the query; it keeps the logs open
and looks at them again each time. What executors read is planned as for a batch read.

Options decide where a *new* query begins; one that resumes goes by its checkpoint alone. Whatever cannot be read any
more fails the query and names offsets and reason, or, with ``failOnDataLoss=false``, is written to the standard error.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from duramen.consumers import ConsumableLog
from duramen.disk import ArrowDisk
from duramen.errors import CorruptionError, DuramenError, StorageError
from duramen.log import SidecarEvidence
from duramen.spark.error_text import Traveller, plain, plain_rows
from duramen.spark.source.discovery import LogSource, disk_of, find_places
from duramen.spark.source.identity import identity_of, is_other, parse_identity
from duramen.spark.source.loss import GOES_ON, in_words, look_again, tell, warn
from duramen.spark.source.options import ReadOptions
from duramen.spark.source.plan import check_named, open_log, starting_offset, tell_missing
from duramen.spark.source.splits import (
    Planned,
    Range,
    Split,
    bytes_from,
    bytes_within,
    first_offset,
    offset_behind,
    plan_splits,
)
from duramen.spark.source.task import Wanted, read_split

Offsets = dict[str, dict[str, Any]]
Key = tuple[str, int]
LOGS = "/logs"
"""Where an offset holds the identities: no topic and no directory has a slash in its name."""
LAG = "/lag"
"""Where a reported offset holds the lag."""


class DuramenStreamReader(Traveller, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a log, or the partitions of topics, as they grow."""

    def __init__(self, options: ReadOptions, wanted: Wanted) -> None:
        self._options = options
        self._wanted = wanted
        self._tail: Tail | None = None
        self._target: dict[Key, int] | None = None
        self._clock = time.monotonic
        self._planned_s: float | None = None
        """When the last batch was planned, for ``maxTriggerDelay``."""
        self._reached: dict[Key, int] | None = None
        """The end of the last batch that was planned: the lag is counted from there."""

    def _logs(self) -> Tail:
        """Made where it is used: this object is pickled, and open logs are not."""
        if self._tail is None:
            self._tail = Tail(self._options)
        return self._tail

    # --- offsets

    @plain
    def initialOffset(self) -> Offsets:  # noqa: N802
        tail = self._logs()
        return to_offsets(tail.first(), tail.identities())

    @plain
    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802
        tail = self._logs()
        ends = tail.latest()
        held = from_offsets(start)
        begin = tail.continued(held, identities_of(start))
        # Spark plans a batch when the one before is committed: what lies before ``start`` is done with. `commit` says
        # the same, but only once there is more to read.
        self._store(begin)
        if self._target is not None:
            ends = {key: min(ends.get(key, end), end) for key, end in self._target.items()}
        ranges = tail.ranges(begin, ends)
        if self._waits(ranges, limit):
            return start
        if not isinstance(limit, ReadAllAvailable):
            ranges = self._limited(tail, ranges, limit)
        reached = {**held, **{key: wanted.to_offset for key, wanted in ranges.items()}}
        self._reached = reached
        if reached == held == begin:
            return start  # the same text: otherwise Spark would run a batch without rows
        return to_offsets(reached, {**identities_of(start), **tail.identities()})

    def _waits(self, ranges: Mapping[Key, Range], limit: ReadLimit) -> bool:
        """Whether the batch is put off because there is less than ``minOffsetsPerTrigger``. A query that reads what
        exists and ends puts nothing off: the rest would be left."""
        least = self._options.min_offsets_per_trigger
        if least is None or self._target is not None or isinstance(limit, ReadAllAvailable):
            return False
        now, last = self._clock(), self._planned_s
        delay_s = self._options.max_trigger_delay_ms / 1000
        there = sum(max(wanted.to_offset - wanted.from_offset, 0) for wanted in ranges.values())
        if last is not None and there < least and now - last < delay_s:
            return True
        if there:
            self._planned_s = now
        return False

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
        if self._options.min_offsets_per_trigger is not None:
            return ReadMinRows(self._options.min_offsets_per_trigger)
        return ReadAllAvailable()

    @plain
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._logs().latest()

    @plain
    def reportLatestOffset(self) -> Offsets:  # noqa: N802
        """For `StreamingQueryProgress`, not for checkpoints: the ends of the logs, and the lag of the planned batch."""
        tail = self._logs()
        ends = to_offsets(tail.latest())
        return ends if self._reached is None else {**ends, LAG: tail.lag(self._reached)}

    # --- rows

    @plain
    def partitions(self, start: Offsets, end: Offsets) -> list[InputPartition]:
        tail = self._logs()
        evidence = tail.look_closely()
        ends = tail.continued(from_offsets(end), identities_of(end))
        begin = {key: at for key, at in from_offsets(start).items() if not tail.is_other(key, identities_of(start))}
        return [InputPartition(split) for split in tail.splits(begin, ends, evidence)]

    @plain
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition.value, Split):
            return iter(())
        return plain_rows(read_split(partition.value, self._wanted, disk_of(self._options.path)[0]))

    # --- what Spark tells

    @plain
    def commit(self, end: Offsets) -> None:
        """Everything before ``end`` is processed: kept as a cursor, if the option names one."""
        self._store(self._logs().continued(from_offsets(end), identities_of(end)))

    def _store(self, ends: Mapping[Key, int]) -> None:
        if self._options.cursor is not None:
            self._logs().store(self._options.cursor, ends)

    def stop(self) -> None:
        if self._tail is not None:
            self._tail.close()
            self._tail = None


class RefusingStreamReader(DataSourceStreamReader):
    """Raises the error of invalid options on every call: PySpark 4.3 replaces an error that is raised while a stream
    reader is created by one of its own."""

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
        self._logs: dict[Key, tuple[LogSource, ConsumableLog]] = {}
        self._evidence: dict[Key, SidecarEvidence] = {}
        self._stored: dict[Key, tuple[int, int]] = {}
        self._told: set[tuple[str, str]] = set()
        self.look()

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

    def look_closely(self) -> dict[Key, SidecarEvidence]:
        """The same; what the sidecars said before that, to judge by it what was seen."""
        before = {
            key: SidecarEvidence(self._disk, log.path, log.codec, known=self._evidence.get(key))
            for key, (_, log) in self._logs.items()
        }
        self.look()
        self._evidence = {
            key: before[key] if key in before else look_again(log, self._disk) for key, (_, log) in self._logs.items()
        }
        return self._evidence

    def close(self) -> None:
        while self._logs:
            self._logs.popitem()[1][1].close()

    # --- where things are

    def first(self) -> dict[Key, int]:
        """Where a new query begins."""
        self.look()
        check_named(self._options, [place for place, _ in self._logs.values()])
        found = {}
        for key, (place, log) in self._logs.items():
            wanted = starting_offset(self._options, self._disk, place, log)
            found[key] = min(max(wanted, first_offset(log)), log.next_offset)
        return found

    def latest(self) -> dict[Key, int]:
        """The end of every log."""
        self.look()
        return {key: log.next_offset for key, (_, log) in self._logs.items()}

    def lag(self, reached: Mapping[Key, int]) -> dict[str, Any]:
        """What lies after these positions: records, bytes and the time of the oldest record, of each log and of all."""
        parts: dict[str, dict[str, Any]] = {}
        for key, (_, log) in sorted(self._logs.items()):
            at = max(reached.get(key, 0), first_offset(log))
            records = max(log.next_offset - at, 0)
            size_bytes = bytes_from(log, self._disk, at) if records else 0
            when = self._time_at(log, at) if records else None
            parts[f"{key[0]}/{key[1]}"] = {"records": records, "bytes": size_bytes, "oldest": when}
        total = {name: sum(part[name] for part in parts.values()) for name in ("records", "bytes")}
        oldest = min((part["oldest"] for part in parts.values() if part["oldest"]), default=None)
        return {**total, "oldest": oldest, "partitions": parts}

    def _time_at(self, log: ConsumableLog, offset: int) -> str | None:
        """The time of the first record from an offset on. None if it has no time, is damaged, or lies far away."""
        if log.codec.capabilities.timestamps is None or isinstance(self._disk, ArrowDisk):
            return None
        batches = log.batches(offset, max_records=1, columns=("offset", "timestamp"), verify=False)
        try:
            batch = next(batches, None)
        except CorruptionError:
            return None  # the task that reads it says more
        when = None if batch is None else batch.column(1)[0].as_py()
        return None if when is None else when.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    # --- which logs

    def identities(self) -> dict[Key, str]:
        return {key: str(identity_of(log, self._disk)) for key, (_, log) in self._logs.items()}

    def is_other(self, key: Key, identities: Mapping[Key, str]) -> bool:
        """Whether another log is in the place of the one that an offset of the stream is of."""
        log, text = self._log(key), identities.get(key)
        return log is not None and text is not None and is_other(parse_identity(text), log, self._disk)

    def continued(self, positions: Mapping[Key, int], identities: Mapping[Key, str]) -> dict[Key, int]:
        """The positions that are of the logs as they are now. Raises where another log has taken the place of one,
        unless that is allowed: then it is read like a partition that is new."""
        same = {}
        for key, at in positions.items():
            if not self.is_other(key, identities):
                same[key] = at
                continue
            was, now = identities[key], identity_of(self._logs[key][1], self._disk)
            self._lose(
                f"another log is in the place of the one that the checkpoint is of, which was read up to offset {at}: "
                f"it was deleted and created again, or overwritten (the checkpoint says {was!r}, the log {str(now)!r})",
                key, at, "reads the new log from its first record",
            )  # fmt: skip
        return same

    # --- what lies between

    def ranges(self, begin: Mapping[Key, int], ends: Mapping[Key, int]) -> dict[Key, Range]:
        """What lies between two offsets of the stream. A partition that is new since ``begin`` is read from its first
        offset. Raises if records between them are missing, unless that is allowed."""
        found = {}
        for key, end in ends.items():
            log = self._log(key)
            if log is None:
                continue
            start = begin.get(key, first_offset(log))
            found[key] = Range(*self._checked(key, log, start, end))
        for key in sorted(begin.keys() - ends.keys()):
            if self._log(key) is None:
                self._lose(
                    f"partition {key[0]}/{key[1]}, which was read up to offset {begin[key]}, is not there any more: it "
                    "was deleted, or path, subscribe, assign and other options leave it out", key, begin[key],
                    "goes on with the others, and remembers its position",
                )  # fmt: skip
            else:
                found[key] = Range(begin[key], begin[key])  # came back, or is new since the target was set
        return found

    def _log(self, key: Key) -> ConsumableLog | None:
        entry = self._logs.get(key)
        return None if entry is None else entry[1]

    def _checked(self, key: Key, log: ConsumableLog, start: int, end: int) -> tuple[int, int]:
        first = first_offset(log)
        if start < first and start < end:
            until = min(first, end)
            self._lose(
                f"{in_words(start, until)} were removed before they were read: the log begins at offset "
                f"{first} now, because of retention or a segment that was deleted", key, start,
            )  # fmt: skip
            start = until
        if start > end:
            self._lose(
                f"the log ends at offset {end}, before offset {start}, which was read already: it was cut, or an older "
                "copy of it is here", key, start, f"goes on at offset {end}",
            )  # fmt: skip
            start = end
        return start, end

    def _lose(self, what: str, key: Key, offset: int, otherwise: str = GOES_ON) -> None:
        place = self._logs[key][0].path if key in self._logs else self._options.path
        if self._options.fail_on_data_loss or (place, what) not in self._told:
            self._told.add((place, what))
            tell(what, place, offset, otherwise, fails=self._options.fail_on_data_loss)

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
                end = offset_behind(self._logs[key][1], self._disk, wanted, shares[key])
                limited[key] = wanted._replace(to_offset=end)
        return limited

    def _bytes(self, key: Key, wanted: Range) -> int:
        if wanted.from_offset >= wanted.to_offset:
            return 0
        return bytes_within(self._logs[key][1], self._disk, wanted)

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

    def splits(
        self, begin: Mapping[Key, int], ends: Mapping[Key, int], evidence: Mapping[Key, SidecarEvidence]
    ) -> list[Split]:
        """The work of one batch, on the logs as `look_closely` saw them."""
        logs = []
        for key, bounds in self.ranges(begin, ends).items():
            if bounds.from_offset < bounds.to_offset:
                place, log = self._logs[key]
                tell_missing(self._options, log, self._disk, evidence[key], bounds)
                logs.append(Planned(place, log, bounds, evidence[key]))
        return plan_splits(
            logs, self._disk, max_bytes=self._options.max_bytes_per_partition, min_splits=self._options.min_partitions,
            max_records=self._options.max_records_per_partition,
        )  # fmt: skip

    def store(self, name: str, ends: Mapping[Key, int]) -> None:
        """Keep the positions as cursors. A log that cannot be written to is read all the same."""
        for key, end in ends.items():
            log = self._log(key)
            if log is None or self._stored.get(key) == (log.generation, end):
                continue
            self._stored[key] = log.generation, end
            try:
                log.cursor(name).store(end)
            except StorageError as error:
                text = f"the cursor {name!r} is not kept: {error}"
                if (name, text) not in self._told:
                    self._told.add((name, text))
                    warn(text)


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


def to_offsets(positions: Mapping[Key, int], identities: Mapping[Key, str] | None = None) -> Offsets:
    """In the order of topic and partition, whatever order they came in; then which logs they are of."""
    tree: Offsets = {}
    for topic, partition in sorted(positions):
        tree.setdefault(topic, {})[str(partition)] = positions[topic, partition]
    known = {key: text for key, text in (identities or {}).items() if key in positions and text}
    for topic, partition in sorted(known):
        tree.setdefault(LOGS, {}).setdefault(topic, {})[str(partition)] = known[topic, partition]
    return tree


def from_offsets(tree: Mapping[str, Any]) -> dict[Key, int]:
    """The positions. Raises where a checkpoint holds something else: it is of another source."""
    try:
        return {
            (topic, int(number)): int(at)
            for topic, parts in tree.items()
            if topic not in (LOGS, LAG)
            for number, at in parts.items()
        }
    except (AttributeError, TypeError, ValueError):
        raise _no_offsets(tree) from None


def identities_of(tree: Mapping[str, Any]) -> dict[Key, str]:
    """Which logs the positions are of; nothing, for a checkpoint of a version that did not say."""
    try:
        held = tree.get(LOGS, {})
        found = {(topic, int(number)): str(text) for topic, parts in held.items() for number, text in parts.items()}
        for text in found.values():
            parse_identity(text)
        return found
    except (AttributeError, TypeError, ValueError):
        raise _no_offsets(tree) from None


def _no_offsets(tree: Mapping[str, Any]) -> CorruptionError:
    return CorruptionError(
        f"the checkpoint holds {str(tree)[:200]}, which are no offsets of this source",
        hint="use another checkpointLocation",
    )


def lag(progress: Any) -> dict[str, int]:
    """By how many offsets a query lagged its logs at a progress, by ``topic/partition``.

    ``progress`` is ``query.lastProgress`` or one of ``query.recentProgress``. Sources whose offsets have another shape
    are left out; Kafka's have the same."""
    lags: dict[str, int] = {}
    if progress is None:  # the query has just begun
        return lags
    for source in json.loads(progress.json if hasattr(progress, "json") else json.dumps(progress))["sources"]:
        try:
            ends, latest = (_offsets_of(source[name]) for name in ("endOffset", "latestOffset"))
        except CorruptionError:
            continue
        for (topic, number), end in latest.items():
            lags[f"{topic}/{number}"] = end - ends.get((topic, number), 0)
    return lags


def _offsets_of(tree: Any) -> dict[Key, int]:
    return from_offsets((json.loads(tree) if isinstance(tree, str) else tree) or {})
