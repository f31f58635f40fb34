"""Find what a log holds that another format cannot store. Only values that really occur count.

A `LossSurvey` reads the records once and counts; `losses` compares the counts with what the target can store. A time of
0 counts as no time: formats with times store it for records without one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from duramen import compute as pc
from duramen.errors import CorruptionError, UnsupportedFieldError, UsageError
from duramen.formats import (
    SETTLED,
    Format,
    Role,
    Rows,
    Segment,
    SegmentSource,
    SupportsIsolation,
    SupportsSequences,
    make,
)
from duramen.log.transfer.source import Source, SourcePart

FIELDS = {
    "timestamp": "the time",
    "timestamp-precision": "microseconds: times are truncated to milliseconds",
    "timestamp-order": "times that go backwards: each is raised to the one before",
    "key": "the key",
    "headers": "the headers",
    "tombstone": "null values: they become empty",
    "flags": "the flags of the record",
    "offset": "the offset: records are renumbered from 0, and cursors are dropped",
    "tracking": "what consumers and producers stored in the log",
    "groups": "the state of consumer groups",
    "checkpoint": "the checkpoint of the cleaner",
    "transactions": "aborted or open: their records become ordinary ones (isolation=settled leaves them out)",
}
"""The fields that can be lost, by the name that ``--allow-loss`` takes."""

_FLAGS = ("flags", "reserved0")
_FILES = {"groups": (Role.GROUP_SNAPSHOT, Role.GROUP_DELTA), "checkpoint": (Role.CHECKPOINT,)}


class FieldLoss(NamedTuple):
    """A field that the target cannot store: how often it occurs, and the first offset where it does."""

    field: str
    count: int  # type: ignore[assignment]
    unit: str
    first_offset: int | None
    meaning: str


@dataclass
class _Count:
    count: int = 0
    first_offset: int | None = None

    def add(self, offsets: Any, mask: Any) -> None:
        hits = int(np.count_nonzero(mask))
        if hits and self.first_offset is None:
            self.first_offset = int(offsets[int(np.argmax(mask))])
        self.count += hits


@dataclass
class LossSurvey:
    """The counts of one pass over a log. Fields that the target can store are not counted."""

    source: Source
    target: Format
    records: int = 0
    first_offset: int | None = None
    last_offset: int | None = None
    next_offset: int = 0
    firsts: list[int | None] = field(default_factory=list)
    """The first offset of every segment; None for an empty one."""
    counts: dict[str, _Count] = field(default_factory=lambda: {name: _Count() for name in FIELDS})
    shortest_bytes: int | None = None
    longest_bytes: int = 0
    _last_us: int = -(2**63)
    _too_long: _Count = field(default_factory=_Count)

    def run(self) -> LossSurvey:
        """Count. Checksums are left to the second pass, unless damaged records are skipped: these must be known now."""
        columns = self._columns()
        for part in self.source.parts:
            self.firsts.append(None)
            self.next_offset = max(self.next_offset, part.base or 0)
            for segment, rows in self.source.steps(part, verify=self.source.skips):
                self._rows(part, segment, rows, columns)
                self.next_offset = max(self.next_offset, rows.end.last_offset + 1)
        if self.next_offset != self.records and not self.counts["offset"].count:
            self.counts["offset"] = _Count(1, self.next_offset)
        self.count_transactions()
        return self

    def count_transactions(self) -> None:
        """Count the records of transactions that were aborted or have not ended. If damage that is skipped hides how
        they ended, the count stays 0."""
        fmt = self.source.fmt
        if not isinstance(fmt, SupportsIsolation) or fmt.hides_records:
            return
        settled = make(fmt.name, **{**fmt.options, "isolation": SETTLED})
        assert isinstance(settled, SupportsIsolation)
        segments = [
            SegmentSource(part.base or 0, number, partial(settled.open_segment, part.data, part.base))
            for number, part in enumerate(self.source.parts)
        ]
        try:
            view = settled.committed_view(segments).fmt
        except CorruptionError:
            if self.source.skips:
                return
            raise
        opened = (view.open_segment(part.data, part.base) for part in self.source.parts)
        left = sum(rows.count for segment in opened for rows in segment.steps(verify=False))
        self.counts["transactions"].count = max(self.records - left, 0)

    def _columns(self) -> list[str]:
        has, can = self.source.fmt.capabilities, self.target.capabilities
        columns = ["offset"]
        if has.timestamps is not None:
            columns.append("timestamp")
        columns += [name for name in ("key", "headers") if name in has.columns and name not in can.columns]
        columns += [name for name in _FLAGS if name in has.columns and name not in can.columns]
        if (
            can.max_value_bytes < has.max_value_bytes
            or "record_size" in self.target.option_names
            or (has.null_values and not can.null_values)
        ):
            columns.append("value")
        return columns

    def _rows(self, part: SourcePart, segment: Segment, rows: Rows, columns: list[str]) -> None:
        if isinstance(self.source.fmt, SupportsSequences):
            self.counts["tracking"].count += int(self.source.fmt.tracking_rows(segment, rows).sum())
        for batch in self.source.decode(part, segment, rows, columns):
            if batch.num_rows:
                self._batch(batch)

    def _batch(self, batch: pa.RecordBatch) -> None:
        offsets = batch.column("offset").to_numpy()
        previous = -1 if self.last_offset is None else self.last_offset
        self.counts["offset"].add(offsets, np.diff(offsets, prepend=previous) != 1)
        if self.first_offset is None:
            self.first_offset = int(offsets[0])
        if self.firsts[-1] is None:
            self.firsts[-1] = int(offsets[0])
        self.last_offset = int(offsets[-1])
        self.records += batch.num_rows
        if "timestamp" in batch.schema.names:
            self._times(offsets, batch.column("timestamp"))
        for name in ("key", "headers"):
            if name in batch.schema.names:
                self.counts[name].add(offsets, _present(batch.column(name)))
        for name in _FLAGS:
            if name in batch.schema.names:
                self.counts["flags"].add(offsets, batch.column(name).to_numpy() != 0)
        if "value" in batch.schema.names:
            values = batch.column("value")
            if values.null_count and not self.target.capabilities.null_values:
                self.counts["tombstone"].add(offsets, np.asarray(values.is_null()))
            lengths = pc.fill_null(pc.binary_length(values), 0).to_numpy()
            shortest = int(lengths.min())
            self.shortest_bytes = shortest if self.shortest_bytes is None else min(self.shortest_bytes, shortest)
            self.longest_bytes = max(self.longest_bytes, int(lengths.max()))
            self._too_long.add(offsets, lengths > self.target.capabilities.max_value_bytes)

    def _times(self, offsets: Any, column: pa.Array) -> None:
        can = self.target.capabilities
        missing = column.is_null().to_numpy(zero_copy_only=False) if column.null_count else np.zeros(len(column), bool)
        us = column.view(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        if can.timestamps is None:
            self.counts["timestamp"].add(offsets, (us != 0) | missing)
            return
        self.counts["timestamp"].add(offsets, missing | ((us < 0) & (not can.signed_timestamps)))
        if can.timestamps == "ms":
            self.counts["timestamp-precision"].add(offsets, us % 1000 != 0)
        if can.ordered_timestamps:
            highest = np.maximum.accumulate(np.concatenate(([self._last_us], us)))
            self.counts["timestamp-order"].add(offsets, us < highest[:-1])
            self._last_us = int(highest[-1])

    # --- results

    def losses(self, *, as_is: bool, with_tracking: bool = False) -> list[FieldLoss]:
        """Return what the target cannot store. ``as_is``: the segments are copied byte by byte and lose nothing."""
        found = []
        for name, counted in self.counts.items():
            if as_is or not counted.count or (name == "offset" and self.target.capabilities.explicit_offsets):
                continue
            if name == "tracking" and with_tracking:
                continue
            if name == "timestamp-order" and self.source.fmt.name == self.target.name:
                continue  # the target stores what the source stored
            unit = "chunk" if name == "tracking" else "record"
            found.append(FieldLoss(name, counted.count, unit, counted.first_offset, FIELDS[name]))
        if self.source.fmt.name != self.target.name:
            for name, roles in _FILES.items():
                files = self.source.files(*roles)
                if files:
                    found.append(FieldLoss(name, len(files), "file", None, FIELDS[name]))
        return found

    def check_values(self) -> None:
        """Raise if the target cannot store a value: values are never dropped."""
        if self._too_long.count:
            raise UnsupportedFieldError(
                f"a value has {self.longest_bytes} bytes; {self.target.name} stores at most"
                f" {self.target.capabilities.max_value_bytes}",
                path=self.source.path, offset=self._too_long.first_offset,
            )  # fmt: skip
        wanted = self.target.options.get("record_size")
        if wanted is not None and self.records and not self.shortest_bytes == self.longest_bytes == wanted:
            raise UnsupportedFieldError(
                f"values have {self.shortest_bytes} to {self.longest_bytes} bytes; every value of {self.target.name}"
                f" must have exactly record_size={wanted}",
                path=self.source.path,
            )  # fmt: skip

    @property
    def record_size(self) -> int:
        """The common length of all values, for a format of fixed-length records."""
        if not self.records:
            raise UsageError(f"{self.target.name} needs its record_size: the log has no value to derive it from")
        if self.shortest_bytes != self.longest_bytes or not self.longest_bytes:
            raise UnsupportedFieldError(
                f"{self.target.name} needs values of one length; these have"
                f" {self.shortest_bytes} to {self.longest_bytes} bytes",
                path=self.source.path,
            )  # fmt: skip
        return self.longest_bytes


def check_allowed(allow_loss: tuple[str, ...]) -> None:
    """Raise for a name that is not in `FIELDS`."""
    for name in allow_loss:
        if name not in FIELDS:
            raise UsageError(f"unknown field {name!r} in allow_loss", hint=f"the fields: {', '.join(FIELDS)}")


def _present(column: pa.Array) -> Any:
    present = column.is_valid()
    if pa.types.is_list(column.type):  # an empty list of headers counts as none
        present = pc.and_kleene(present, pc.greater(pc.fill_null(pc.list_value_length(column), 0), 0))
    return present.to_numpy(zero_copy_only=False)
