"""A read of which Spark needs a part: some columns, ranges of offsets and times, some logs, or aggregates of offsets.

The engine in the JVM says what a query needs. The rows are those of the whole read that satisfy the conditions, and so
are the errors: a column that Spark does not need is still decoded where decoding it can fail, and checksums are
compared if the whole read compares them. Of decoded values only the fields are made that Spark needs. Only what lies
outside of a range of offsets, or in a log of another topic or partition, is not looked at, as with ``startingOffsets``
and ``assign``. A condition on times removes rows, and skips no segment: a log whose times go backwards loses none.

All plans of one DataFrame show the same records. The first returns what it saw (`Seen`), the later ones are held to it.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import pyarrow as pa

from duramen.errors import StorageError, UsageError
from duramen.formats import FORMATS, Role
from duramen.log import Log, SidecarEvidence
from duramen.record import MAX_OFFSET
from duramen.spark.source.discovery import LogSource, disk_of
from duramen.spark.source.identity import made_at
from duramen.spark.source.loss import removed_segment
from duramen.spark.source.splits import AGGREGATES, OffsetAggregates, Planned, Range, Split
from duramen.spark.source.task import PAYLOAD_COLUMNS, Wanted, read_split, within_times

ROWS = "duramen.rows"
"""The one column of a batch that stands for so many rows without columns."""
MAX_VALUE_BYTES = 2**31 - 1
_INT64 = 2**63 - 1


@dataclass(frozen=True)
class Narrowed:
    """What Spark needs of a read."""

    columns: tuple[str, ...] | None = None
    """In this order; None: all."""
    fields: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Of a decoded column those that Spark needs, where it does not need all."""
    aggregates: tuple[str, ...] = ()
    """`AGGREGATES` of the offsets of a task, instead of columns."""
    offsets: Range = Range()
    from_us: int | None = None
    to_us: int | None = None
    topics: frozenset[str] | None = None
    partitions: frozenset[str] | None = None

    @classmethod
    def of(cls, given: dict[str, Any]) -> Narrowed:
        """What a request says. A condition that does not narrow a read is left to Spark."""
        columns, aggregates = given.get("columns"), tuple(given.get("aggregates", ()))
        if not set(aggregates) <= set(AGGREGATES):
            raise UsageError(f"aggregates {aggregates} are not all among {AGGREGATES}")
        fields = tuple((name, tuple(each)) for name, each in given.get("fields", {}).items())
        found = cls(None if columns is None else tuple(columns), fields, aggregates)
        for name, sign, *texts in given.get("conditions", ()):
            if name in ("topic", "partition"):
                found = found._among(name, sign, frozenset(texts))
            else:
                found = found._between(name, sign, [int(text) for text in texts])
        return found

    def _among(self, name: str, sign: str, texts: frozenset[str]) -> Narrowed:
        if sign not in ("=", "in"):
            return self
        if name == "topic":
            return replace(self, topics=texts if self.topics is None else self.topics & texts)
        return replace(self, partitions=texts if self.partitions is None else self.partitions & texts)

    def _between(self, name: str, sign: str, numbers: Sequence[int]) -> Narrowed:
        low, high = min(numbers) + (sign == ">"), max(numbers) + (sign != "<")
        if name == "offset":
            first, end = self.offsets
            if sign not in ("<", "<="):
                first = max(first, min(low, MAX_OFFSET))
            if sign not in (">", ">="):
                end = min(end, max(min(high, MAX_OFFSET), 0))
            return replace(self, offsets=Range(first, end))
        since, until = self.from_us, self.to_us
        if sign not in ("<", "<="):
            since = min(low if since is None else max(since, low), _INT64)
        if sign not in (">", ">=") and high <= _INT64:
            until = high if until is None else min(until, high)
        return replace(self, from_us=since, to_us=until)

    def wants(self, place: LogSource) -> bool:
        return (self.topics is None or place.topic in self.topics) and (
            self.partitions is None or str(place.partition) in self.partitions
        )

    def within(self, bounds: Range) -> Range:
        first, end = self.offsets
        return Range(max(bounds.from_offset, first), min(bounds.to_offset, end))


class Seen:
    """What the first plan of a DataFrame saw of each log: the range, the identity, and each segment's size."""

    def __init__(self, text: str | None = None) -> None:
        self._logs: dict[str, Any] = {} if text is None else json.loads(text)
        self._is_first = text is None

    def __str__(self) -> str:
        return json.dumps(self._logs)

    def planned(
        self, place: LogSource, log: Log, evidence: SidecarEvidence, bounds_of: Callable[[], Range], *, fails: bool
    ) -> Planned | None:
        """A log and the range of it that the DataFrame shows; None for a log that came after its first plan. Raises
        where records of the range have gone, as the task would that was to read them."""
        key = f"{place.topic}/{place.partition}"
        if self._is_first:
            bounds = bounds_of()
            segments = [(info.base_offset, info.size_bytes, info.sealed) for info in log.segments]
            self._logs[key] = [*bounds, made_at(log.disk, log.path), segments]
            return Planned(place, log, bounds, evidence)
        if key not in self._logs:
            return None
        first, end, made, segments = self._logs[key]
        now = made_at(log.disk, log.path)
        if None not in (made, now) and made != now:
            raise StorageError(
                "another log has taken the place of this one since the read was planned",
                path=log.path, hint="read it again",
            )  # fmt: skip
        bounds = Range(first, end)
        _tell_removed(log, bounds, [base for base, _, _ in segments], fails=fails)
        frozen = _Frozen(log, segments)
        return Planned(place, cast(Log, frozen), bounds, evidence, frozen.grown)


class _Frozen:
    """A log with the segments of an earlier look at it."""

    def __init__(self, log: Log, segments: Sequence[tuple[int, int, bool]]) -> None:
        self._log = log
        there = {info.base_offset: info for info in log.segments}
        self.segments = [
            there[base]._replace(size_bytes=size_bytes, sealed=sealed)
            for base, size_bytes, sealed in segments
            if base in there
        ]
        self.grown = frozenset(info.base_offset for info in self.segments if there[info.base_offset] != info)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


def _tell_removed(log: Log, bounds: Range, bases: Sequence[int], *, fails: bool) -> None:
    """Raise or warn where segments have gone that the first plan saw."""
    there = {info.base_offset for info in log.segments}
    for base, following in zip(bases, (*bases[1:], None), strict=True):
        first = max(base, bounds.from_offset)
        end = max(first + 1, min(bounds.to_offset, MAX_OFFSET if following is None else following))
        if base in there or first >= bounds.to_offset or (following is not None and following <= bounds.from_offset):
            continue
        path = posixpath.join(log.path, log.codec.path_of(Role.SEGMENT, base))
        loss = removed_segment(log.disk, log.path, log.codec, path, base, first, end)
        if loss is not None:
            loss.tell(fails=fails)


@dataclass(frozen=True)
class NarrowedRead:
    """What the process that reads a split must know: how the whole read looks, and what of it is handed over."""

    path: str
    whole: Wanted
    narrowed: Narrowed

    @property
    def schema(self) -> pa.Schema:
        """Of the batches that are handed over."""
        if self.narrowed.aggregates:
            return pa.schema([pa.field(f"{name}{n}", pa.int64()) for n, name in enumerate(self.narrowed.aggregates)])
        names = self._names
        return pa.schema([self.whole.schema.field(name) for name in names] or [pa.field(ROWS, pa.int64())])

    @property
    def _names(self) -> tuple[str, ...]:
        columns = self.narrowed.columns
        return tuple(self.whole.schema.names) if columns is None else columns

    @property
    def counts_unread(self) -> bool:
        """Whether the aggregates of records may come from what the sidecar knows of them."""
        whole = self.in_time()
        is_plain = whole.decoding is None and whole.on_damage == "fail" and not whole.summary
        return bool(self.narrowed.aggregates) and not whole.verify and is_plain and whole.from_us is whole.to_us is None

    def batches(self, split: Split | None) -> Iterator[pa.RecordBatch]:
        """What one task hands over; no split stands for no records."""
        read = iter(()) if split is None else self._read(split)
        if self.narrowed.aggregates:
            found = OffsetAggregates() if split is None else split.counted
            for batch in read:
                found = found.plus_batch(batch)
            yield found.batch(self.narrowed.aggregates, self.schema)
            return
        for batch in read:
            if self._names:
                yield batch.select(self._names)
            elif batch.num_rows:
                yield pa.RecordBatch.from_arrays([pa.array([batch.num_rows])], schema=self.schema)

    def _read(self, split: Split) -> Iterator[pa.RecordBatch]:
        """The rows of a split. A condition on times removes them before they are decoded only where decoding cannot
        fail."""
        narrowed, whole, disk = self.narrowed, self.whole, disk_of(self.path)[0]
        times = narrowed.from_us, narrowed.to_us
        if times == (None, None) or not (whole.decoding is not None or self._content_can_fail(split)):
            return read_split(split, self._wanted(split, self.in_time()), disk)
        return (within_times(batch, *times) for batch in read_split(split, self._wanted(split, whole), disk))

    def in_time(self) -> Wanted:
        """The whole read, of the times that Spark needs."""
        whole, narrowed = self.whole, self.narrowed
        return replace(whole, from_us=_later(whole.from_us, narrowed.from_us), to_us=_sooner(whole, narrowed))

    @staticmethod
    def _content_can_fail(split: Split) -> bool:
        return any(FORMATS[spec.format].content_can_fail for spec in split.logs)

    def _wanted(self, split: Split, whole: Wanted) -> Wanted:
        """The whole read without the columns that nothing can be wrong with."""
        narrowed = self.narrowed
        if whole.summary:
            return whole
        needed = set() if narrowed.aggregates else set(self._names)
        if whole.decoding is not None:  # decoded to see whether it can be
            return whole.with_fields({name: () for name in whole.decoding.decoders if name not in needed})
        if self._content_can_fail(split):
            needed |= {*PAYLOAD_COLUMNS, "timestamp"}
        if any(piece.visible_bytes > MAX_VALUE_BYTES for piece in split.pieces):
            needed.add("value")  # one may be longer than an array can hold
        fields = [field for field in whole.schema if field.name in needed]
        if not fields or narrowed.aggregates:
            fields = [pa.field("offset", pa.int64()), *(field for field in fields if field.name != "offset")]
        return replace(whole, schema=pa.schema(fields))


def _later(one: int | None, other: int | None) -> int | None:
    return max((bound for bound in (one, other) if bound is not None), default=None)


def _sooner(whole: Wanted, narrowed: Narrowed) -> int | None:
    return min((bound for bound in (whole.to_us, narrowed.to_us) if bound is not None), default=None)
