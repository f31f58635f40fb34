"""Recognises a segment whose creation a power failure interrupted: its name exists, its header is incomplete.

A format that carries state from segment to segment has headers longer than a sector, and sectors reach the disk in any
order. No record of such a segment was acknowledged, because the writer syncs the header and publishes the segment
before it appends. Recovery recreates the segment; readers treat it as empty. Doubt counts as damage.
"""

from __future__ import annotations

from duramen import kernel
from duramen.disk import Disk
from duramen.errors import CorruptionError
from duramen.formats import SECTOR_BYTES, Format, Segment
from duramen.log.segments.listing import Directory
from duramen.sidecar import Watermark


def has_not_begun(fmt: Format, data: memoryview, base: int, previous: Segment | None, mark: Watermark | None) -> bool:
    """Whether the last segment of a log consists of a part of its header. ``previous`` is the segment before it,
    ``mark`` the log's watermark, of any segment."""
    if previous is None or mark is None or not mark.is_open or mark.base >= base or not fmt.capabilities.tracking:
        return False
    if len(data) > len(fmt.begin_segment(base, 0, previous).data):
        return False  # records of another program follow
    try:
        segment = fmt.open_segment(data, base)
    except CorruptionError:
        return kernel.is_zero(data, 0, min(SECTOR_BYTES, len(data)))  # not damaged: it did not reach the disk
    return segment.scan(segment.start, max_records=1).end.position == segment.start.position


def last_has_not_begun(disk: Disk, directory: Directory, fmt: Format, data: memoryview, mark: Watermark | None) -> bool:
    """`has_not_begun` for the last segment of a directory, whose bytes are ``data``."""
    if len(directory.segments) < 2:
        return False
    before, last = directory.segments[-2:]
    try:
        previous = fmt.open_segment(disk.map(directory.full(before.segment.path)).data, before.base)
    except CorruptionError:
        return False
    return has_not_begun(fmt, data, last.base or 0, previous, mark)
