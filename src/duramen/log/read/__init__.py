"""Reading a log: records by offset and by time, scans, following.

- `Log` is what `duramen.open` returns. It holds a `Snapshot` of the log, which says what may be read, and replaces it
  in `Log.refresh`. It maps segments when they are needed, and keeps up to 64 of them.
- `MappedSegment` is one segment under the snapshot that it was mapped with: its bytes, its indexes, its watermark.
  Threads share a `Log`; each judges what it reads by the snapshot of the segment in its hands.
- `Scan` goes from segment to segment between bounds, and follows new records. It tells a segment that compaction
  emptied from one that retention removed.

A reader takes no lock and writes nothing. It raises on damage after returning everything before it, and never returns
a record that the writer has not acknowledged.
"""

from __future__ import annotations

from duramen.log.read.last_segment import begun_segments, last_begun
from duramen.log.read.log import FOLLOW_WAIT_S, Log, ReaderOptions, SegmentInfo
from duramen.log.read.records import records_of
from duramen.log.read.scan import Time
from duramen.log.read.sidecar_dump import dump_for
