"""Finds the last segment with a complete header, which holds the state of Osiris consumers and producers.

The header of a segment repeats all of that state. A reader does not recover the log, so it may meet a new segment whose
header is incomplete because the writer was killed; the state is then in the segment before.
"""

from __future__ import annotations

from duramen.errors import IncompleteHeaderError, StorageError
from duramen.formats import Segment
from duramen.log.read.log import Log


def last_begun(log: Log) -> Segment | None:
    """The last segment that holds at least one whole record, opened; None if there is none. Refreshes a log whose
    segment was removed meanwhile."""
    while True:
        try:
            return _last_begun(log)
        except StorageError as error:
            log.refresh_after(error)


def _last_begun(log: Log) -> Segment | None:
    for found in reversed(log.segments):
        data = log.disk.map(found.path).data[: found.size_bytes]
        try:
            segment = log.codec.open_segment(data, found.base_offset)
        except IncompleteHeaderError:
            continue
        if segment.scan(segment.start, max_records=1).end.position > segment.start.position:
            return segment
    return None
