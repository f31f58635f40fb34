"""What a job reads: one log or the partitions of topics, from where to where, and the splits of that for its tasks.

Plans on the driver with what the data source plans with; reads in tasks what the data source reads, but hands the
Arrow batches to the job instead of to the JVM. The range is fixed when it is planned, so rows
that are appended later do not count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import pyarrow as pa

from duramen.disk import Disk
from duramen.errors import DuramenError, OffsetError, UsageError
from duramen.formats import FORMATS, Format
from duramen.log import Log
from duramen.record import SCHEMA
from duramen.spark.source import (
    LogSource,
    Loss,
    Planned,
    Range,
    ReadOptions,
    Split,
    Wanted,
    disk_of,
    find_places,
    identity_of,
    is_other,
    look_again,
    open_log,
    parse_identity,
    plan_splits,
    range_of,
    read_split,
    tell_missing,
)
from duramen.values import DecodeOptions, Decoding

NAMING = {"topic": pa.string(), "partition": pa.int32()}
"""Columns that say which log a row is of."""


class ScanPiece(NamedTuple):
    """One log of a scan and its range. ``to_offset`` is exclusive, and what the log held when it was planned."""

    place: LogSource
    format: str
    from_offset: int
    to_offset: int
    identity: str = ""
    """Which log it is."""

    @property
    def name(self) -> str:
        return name_of(self.place)


def name_of(place: LogSource) -> str:
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

    @contextmanager
    def named(self) -> Iterator[None]:
        """Errors about records name the log, which is the only one."""
        try:
            yield
        except DuramenError as error:
            error.path = error.path or self.split.logs[0].root
            raise


@dataclass
class JobScan:
    path: str
    pieces: list[ScanPiece]
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
            raise UsageError(f"option {name!r} is not known", path=path)
    return ReadOptions(
        path=path, log_format=format, format_options=of_format,
        **{name: value for name, value in given.items() if name in known},
    )  # fmt: skip


def decoding_of(options: dict[str, Any]) -> tuple[Decoding | None, dict[str, Any]]:
    """The decoding that a job's keyword arguments ask for, and the other arguments."""
    asked = {name: value for name, value in options.items() if name in DecodeOptions.__annotations__}
    return Decoding.of(asked), {name: value for name, value in options.items() if name not in asked}


def bound(decoding: Decoding | None, scan: JobScan) -> Decoding | None:
    """A decoding whose types are known: the first values of the scan decide where no schema does."""
    if decoding is not None:
        decoding.bind(batch for portion in scan.portions for batch in portion.batches())
        decoding.bind_rest()
    return decoding


def plan_scan(
    options: ReadOptions,
    columns: Sequence[str],
    *,
    begin: Mapping[str, int] | None = None,
    sources: Mapping[str, str] | None = None,
    verify: bool = True,
    max_bytes: int | None = None,
) -> JobScan:
    """Plan a read of ``columns``. ``begin``: from which offset on, by the piece's name, if later than asked for;
    ``sources``: the identities of the logs that those offsets are of."""
    disk, path = disk_of(options.path)
    logs: list[Planned] = []
    pieces = []
    for place in find_places(options, disk, path):
        log = open_log(options, disk, place)
        evidence = look_again(log, disk)
        wanted = range_of(options, disk, place, log)
        last = min(wanted.to_offset, log.next_offset)
        first = max(wanted.from_offset, min(log.first_offset, last))
        resumed = (begin or {}).get(name_of(place))
        if resumed is not None:
            _check_source(log, disk, (sources or {}).get(name_of(place)))
            _check_resumed(options, log, resumed)
            first = max(first, resumed)
        first = min(first, last)
        bounds = Range(first, last)
        tell_missing(options, log, disk, evidence, bounds)
        logs.append(Planned(place, log, bounds, evidence))
        pieces.append(ScanPiece(place, log.format, first, last, str(identity_of(log, disk))))
    schema = _schema([one.log.codec for one in logs], columns)
    needed = Wanted(
        schema, verify, options.on_damage, options.starting_us, options.ending_us, not options.fail_on_data_loss
    )
    splits = plan_splits(
        logs, disk, max_bytes=max_bytes or options.max_bytes_per_partition, min_splits=options.min_partitions
    )
    portions = [Portion(number, options.path, split, needed) for number, split in enumerate(splits)]
    return JobScan(options.path, pieces, portions, schema, [one.log.codec for one in logs])


def _check_source(log: Log, disk: Disk, text: str | None) -> None:
    """Raise where another log is in the place of the one that was read last."""
    if text is not None and is_other(parse_identity(text), log, disk):
        raise OffsetError(
            "another log is in the place of the one that the last run read", path=log.path,
            hint="it was deleted and created again, or overwritten: use another target",
        )  # fmt: skip


def _check_resumed(options: ReadOptions, log: Log, resumed: int) -> None:
    """What is to be read next must still be there, or `fail_on_data_loss` raises."""
    if resumed > log.next_offset:
        raise OffsetError(
            f"the last run ended at offset {resumed}, and the log ends at {log.next_offset}", path=log.path,
            hint="it was cut or replaced: use another target",
        )  # fmt: skip
    if resumed < log.first_offset:
        why = f"the log begins at offset {log.first_offset} now: they were removed before they were exported"
        Loss(log.path, resumed, log.first_offset, why).tell(fails=options.fail_on_data_loss)


def _schema(formats: Sequence[Format], columns: Sequence[str]) -> pa.Schema:
    """Neutral columns, and where they come from."""
    fields = []
    for name in columns:
        if name in SCHEMA.names:
            fields.append(SCHEMA.field(name))
        elif name in NAMING:
            fields.append(pa.field(name, NAMING[name]))
        else:
            raise UsageError(f"column {name!r} is not known", hint=f"columns: {', '.join((*SCHEMA.names, *NAMING))}")
    return pa.schema(fields)


def has_times(formats: Sequence[Format]) -> bool:
    return all(fmt.capabilities.timestamps for fmt in formats)
