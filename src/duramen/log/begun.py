"""The last segment of a log that has begun: where a format keeps the state of its consumers and producers.

A segment begins with all of that state, so the last one says everything. But who only reads recovers nothing, and may
come when a new segment has its name and not its beginning yet, because the writer was killed or the power failed. What
the log knows is then in the segment before. Decides nothing else, and writes nothing.
"""

from __future__ import annotations

from duramen.errors import IncompleteHeaderError
from duramen.formats.base import Segment
from duramen.log.reader import Log


def last_begun(log: Log) -> Segment | None:
    """The last segment in which anything is whole, opened; None where there is none."""
    for found in reversed(log.segments):
        data = log.disk.map(found.path).data[: found.size_bytes]
        try:
            segment = log.codec.open_segment(data, found.base_offset)
        except IncompleteHeaderError:
            continue
        if segment.scan(segment.start, max_records=1).end.position > segment.start.position:
            return segment
    return None
