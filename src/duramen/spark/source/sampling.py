"""Finds the columns of decoded values on the driver, where no schema says them: from the first values of the read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa

from duramen.disk import Disk
from duramen.errors import CorruptionError, OffsetError, UsageError
from duramen.spark.source.discovery import LogSource, disk_of, find_places
from duramen.spark.source.options import ReadOptions
from duramen.spark.source.plan import open_log, starting_offset
from duramen.values import SAMPLE_RECORDS, Decoding

COLUMNS = ("offset", "key", "value")


def bind(options: ReadOptions, *, streaming: bool = False) -> ReadOptions:
    """The options with decoders whose types are known. A stream needs values for that: its columns never change."""
    decoding = options.decoding
    if decoding is None or all(one.is_bound for one in decoding.decoders.values()):
        return options
    disk, path = disk_of(options.path)
    decoders = dict(decoding.decoders)
    for place in find_places(options, disk, path):
        for batch in _samples(options, disk, place):
            for column, one in decoders.items():
                if batch.column(column).null_count < batch.num_rows:
                    decoders[column] = one.bind(batch.column(column))
    for column, one in decoders.items():
        if one.is_bound:
            continue
        if streaming:
            raise UsageError(
                f"the log holds no {column} that says what the columns are", path=options.path,
                hint=f"give the option {column}Schema",
            )  # fmt: skip
        decoders[column] = one.bind(pa.array([], pa.binary()))
    return replace(options, decoding=Decoding(decoders))


def _samples(options: ReadOptions, disk: Disk, place: LogSource) -> Iterator[pa.RecordBatch]:
    """The first records of the range, or the last ones where it is empty. Damage ends a sample."""
    with open_log(options, disk, place) as log, suppress(CorruptionError, OffsetError):
        first = min(starting_offset(options, disk, place, log, batch=True), log.next_offset)
        for start in (first, max(log.next_offset - SAMPLE_RECORDS, log.first_offset)):
            batches = list(log.batches(start, max_records=SAMPLE_RECORDS, columns=COLUMNS, verify=False))
            if batches:
                yield from batches[:1]
                return
