"""What a job reads: one log or the partitions of topics, from where to where, and the splits of that for its tasks.

Plans on the driver with what the data source plans with; reads in tasks what the data source reads, but hands the
Arrow batches to the job instead of to the JVM. The range is fixed when it is planned, so a log that grows meanwhile
changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import pyarrow as pa

from duramen.errors import OffsetError, UsageError
from duramen.formats.base import Format
from duramen.formats.registry import FORMATS
from duramen.log.reader import Log
from duramen.model import SCHEMA
from duramen.spark.options import ReadOptions
from duramen.spark.places import Place, disk_of, find_places
from duramen.spark.planning import open_log, range_of
from duramen.spark.reading import Wanted, read_split
from duramen.spark.splits import Range, Split, plan

NAMING = {"topic": pa.string(), "partition": pa.int32()}
"""Columns that say which log a row is of."""


class Piece(NamedTuple):
    """One log of a scan and its range. ``to_offset`` is exclusive, and what the log held when it was planned."""

    place: Place
    format: str
    from_offset: int
    to_offset: int

    @property
    def name(self) -> str:
        return name_of(self.place)


def name_of(place: Place) -> str:
    """How a log is called in what a job remembers: by its whole path, because two logs may have the same name."""
    return place.path


@dataclass(frozen=True)
class Portion:
    """The work of one task; can be pickled."""

    number: int
    path: str
    split: Split
    wanted: Wanted

    def batches(self) -> Iterator[pa.RecordBatch]:
        return read_split(self.split, self.wanted, disk_of(self.path)[0])

    @property
    def log_name(self) -> str:
        """The log of a portion that has one."""
        return name_of(self.split.logs[0].place)

    def single_logs(self) -> Iterator[Portion]:
        """The same, one log at a time."""
        for number, spec in enumerate(self.split.logs):
            pieces = tuple(replace(piece, log=0) for piece in self.split.pieces if piece.log == number)
            yield replace(self, split=Split((spec,), pieces))


@dataclass
class Scan:
    """A planned read."""

    path: str
    pieces: list[Piece]
    portions: list[Portion]
    schema: pa.Schema
    formats: list[Format] = field(default_factory=list)

    @property
    def size_bytes(self) -> int:
        return sum(portion.split.size_bytes for portion in self.portions)


def read_options(path: str, format: str | None = None, **given: Any) -> ReadOptions:
    """The data source's options from a job's keyword arguments; what is not one of them is the format's."""
    known = ReadOptions.__dataclass_fields__.keys()
    of_format = {name: value for name, value in given.items() if name not in known}
    options = {name for kind in FORMATS.values() for name in kind.option_names}
    for name in of_format:
        if name not in options:
            raise UsageError(f"there is no option {name!r}", path=path)
    return ReadOptions(
        path=path, log_format=format, format_options=of_format,
        **{name: value for name, value in given.items() if name in known},
    )  # fmt: skip


def plan_scan(
    options: ReadOptions,
    columns: Sequence[str],
    *,
    begin: Mapping[str, int] | None = None,
    verify: bool = True,
    max_bytes: int | None = None,
) -> Scan:
    """Plan a read of ``columns``. ``begin``: from which offset on, by the piece's name, if later than asked for."""
    disk, path = disk_of(options.path)
    logs: list[tuple[Place, Log, Range]] = []
    pieces = []
    for place in find_places(options, disk, path):
        log = open_log(options, disk, place)
        wanted = range_of(options, disk, place, log)
        last = min(wanted.to_offset, log.next_offset)
        first = max(wanted.from_offset, min(log.first_offset, last))
        resumed = (begin or {}).get(name_of(place))
        if resumed is not None:
            _check_resumed(options, log, resumed)
            first = max(first, resumed)
        first = min(first, last)
        logs.append((place, log, wanted._replace(from_offset=first, to_offset=last)))
        pieces.append(Piece(place, log.format, first, last))
    schema = _schema([log.codec for _, log, _ in logs], columns)
    needed = Wanted(schema, verify, options.on_damage, options.starting_us, options.ending_us)
    splits = plan(logs, disk, max_bytes=max_bytes or options.max_bytes_per_partition, min_splits=options.min_partitions)
    portions = [Portion(number, options.path, split, needed) for number, split in enumerate(splits)]
    return Scan(options.path, pieces, portions, schema, [log.codec for _, log, _ in logs])


def _check_resumed(options: ReadOptions, log: Log, resumed: int) -> None:
    """What is to be read next must still be there, or `fail_on_data_loss` raises."""
    if resumed > log.next_offset:
        raise OffsetError(
            f"the last run ended at offset {resumed}, and the log ends at {log.next_offset}", path=log.path,
            hint="it was cut or replaced: use another target",
        )  # fmt: skip
    if options.fail_on_data_loss and resumed < log.first_offset:
        raise OffsetError(
            f"offsets {resumed} to {log.first_offset - 1} are gone", path=log.path, offset=resumed,
            hint="retention removed them before they were read; fail_on_data_loss=False goes on without them",
        )  # fmt: skip


def _schema(formats: Sequence[Format], columns: Sequence[str]) -> pa.Schema:
    """Neutral columns, and where they come from."""
    fields = []
    for name in columns:
        if name in SCHEMA.names:
            fields.append(SCHEMA.field(name))
        elif name in NAMING:
            fields.append(pa.field(name, NAMING[name]))
        else:
            raise UsageError(f"there is no column {name!r}", hint=f"columns: {', '.join((*SCHEMA.names, *NAMING))}")
    return pa.schema(fields)


def has_times(formats: Sequence[Format]) -> bool:
    return all(fmt.capabilities.timestamps for fmt in formats)
