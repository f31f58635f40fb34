"""A segment that was about to be begun when the power failed: its name is there, and not all of what it begins with.

What a segment begins with can be longer than a sector, where a format carries state over, and its sectors arrive in any
order. Nothing in such a segment was ever acknowledged, because a writer says that it has begun a segment, and has that
on the disk, before it writes a record into it. Decides that and nothing else: who recovers begins it anew, so that the
state is there again, and who only looks takes it for empty. Doubt counts as damage.
"""

from __future__ import annotations

from duramen import kernel
from duramen.disk import Disk
from duramen.errors import CorruptionError
from duramen.formats import Format
from duramen.formats.base import SECTOR_BYTES, Segment
from duramen.log.directory import Directory
from duramen.log.sidecar import Watermark


def has_not_begun(fmt: Format, data: memoryview, base: int, previous: Segment | None, mark: Watermark | None) -> bool:
    """Whether the last segment of a log is no more than a part of what it was to begin with. ``previous`` is the one
    before it, ``mark`` the log's watermark, of whichever segment."""
    if previous is None or mark is None or not mark.is_open or mark.base >= base or not fmt.capabilities.tracking:
        return False
    if len(data) > len(fmt.begin_segment(base, 0, previous).data):
        return False  # there is more: records of another program, which came after ours
    try:
        segment = fmt.open_segment(data, base)
    except CorruptionError:
        return kernel.is_zero(data, 0, min(SECTOR_BYTES, len(data)))  # not damaged: it did not arrive
    return segment.scan(segment.start, max_records=1).end.position == segment.start.position


def last_has_not_begun(disk: Disk, directory: Directory, fmt: Format, data: memoryview, mark: Watermark | None) -> bool:
    """The same for the last segment of a directory, whose bytes are ``data``."""
    if len(directory.segments) < 2:
        return False
    before, last = directory.segments[-2:]
    try:
        previous = fmt.open_segment(disk.map(directory.full(before.segment.path)).data, before.base)
    except CorruptionError:
        return False
    return has_not_begun(fmt, data, last.base or 0, previous, mark)
