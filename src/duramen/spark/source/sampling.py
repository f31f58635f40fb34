"""Finds the columns of decoded values on the driver, where no schema says them: from the first values of the read."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from duramen.disk import Disk
from duramen.errors import CorruptionError, OffsetError, UsageError
from duramen.spark.source.discovery import LogSource, disk_of, find_places
from duramen.spark.source.options import ReadOptions
from duramen.spark.source.plan import open_log, starting_offset
from duramen.values import SAMPLE_RECORDS, Decoding

COLUMNS = ("offset", "key", "value")
MAX_SAMPLED = 100 * SAMPLE_RECORDS
"""Records, most of which may be tombstones."""


def bind(options: ReadOptions, *, streaming: bool = False) -> ReadOptions:
    """The options with decoders whose types are known. A stream needs values for that: its columns never change."""
    decoding = options.decoding
    if decoding is None or decoding.is_bound:
        return options
    disk, path = disk_of(options.path)
    bound = Decoding(dict(decoding.decoders))
    for place in find_places(options, disk, path):
        _bind_by(bound, options, disk, place)
    for column, one in bound.decoders.items():
        if streaming and not one.is_bound:
            raise UsageError(
                f"the log holds no {column} that says what the columns are", path=options.path,
                hint=f"give the option {column}Schema",
            )  # fmt: skip
    bound.bind_rest()
    return replace(options, decoding=bound)


def _bind_by(decoding: Decoding, options: ReadOptions, disk: Disk, place: LogSource) -> None:
    """By the first records of the range, or the last ones where those have no values. Damage ends a sample."""
    if decoding.is_bound:
        return
    with open_log(options, disk, place) as log, suppress(CorruptionError, OffsetError):
        first = min(starting_offset(options, disk, place, log, batch=True), log.next_offset)
        for start in (first, max(log.next_offset - SAMPLE_RECORDS, log.first_offset)):
            decoding.bind(log.batches(start, columns=COLUMNS, max_records=MAX_SAMPLED, verify=False))
