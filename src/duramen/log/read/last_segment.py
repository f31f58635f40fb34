"""Finds the segments with a complete header, last one first: for what a log stores about consumers and producers.

The header of an Osiris segment repeats all of that state. A reader does not recover the log, so it may meet a new
segment whose header is incomplete because the writer was killed; the state is then in the segment before.
"""

from __future__ import annotations

from collections.abc import Iterator

from duramen.errors import IncompleteHeaderError, StorageError
from duramen.formats import Segment
from duramen.log.read.log import Log


def last_begun(log: Log) -> Segment | None:
    """The last segment that holds at least one whole record, opened; None if there is none. Refreshes a log whose
    segment was removed meanwhile."""
    while True:
        try:
            return next(begun_segments(log), None)
        except StorageError as error:
            log.refresh_after(error)


def begun_segments(log: Log) -> Iterator[Segment]:
    """The segments from the last one on that holds at least one whole record, opened, the last one first. If retention
    left none with records, the empty one."""
    is_begun = False
    for found in reversed(log.segments):
        data = log.disk.map(found.path).data[: found.size_bytes]
        try:
            segment = log.codec.open_segment(data, found.base_offset)
        except IncompleteHeaderError:
            continue
        is_begun = is_begun or segment.scan(segment.start, max_records=1).end.position > segment.start.position
        is_all = found is log.segments[0] and found.size_bytes == segment.start.position
        if is_begun or is_all:
            yield segment
