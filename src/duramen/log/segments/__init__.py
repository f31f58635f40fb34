"""The segments of a log: listing them, deciding what a reader may see, judging their bytes, and building new ones.

Everything above (verify, read, recover, write and so on) shares the objects of this package:

- `Directory` is a listing: segments with their derived files, and everything else. `list_log` builds it from names and
  sizes; `format_at` and `detect` say which format the files have.
- `Snapshot` is the log at one moment: a `Directory` that ends where readers must stop, and the watermark, the
  transaction and the file swap that it was cut by. `take_snapshot` builds it for readers, `take_settled_snapshot` for
  `verify`; both look again while other processes change the log.
- `SegmentEnd` is the verdict on the end of a segment: clean, torn or damaged. `classify_rows` gives it, `against_mark`
  and `find_contradiction` hold it against the durable watermark, `Seals` checks sealed segments against their digests.
- `ActiveSegment` is the segment that a writer appends to; `SegmentBuilder` and `LogBuilder` write whole segments and
  logs at a path that does not exist yet.

Judging never changes a file: recovery and repair act on the verdicts.
"""

from __future__ import annotations

from duramen.log.segments.active_segment import FILL_AFTER_COMMITS, FILL_BYTES, ActiveSegment, Filling, sealed_indexes
from duramen.log.segments.clean_close import CleanClose, read_clean_close, settings_of, write_clean_close
from duramen.log.segments.crc import Digest, RunningDigest
from duramen.log.segments.index_bytes import index_bytes, index_entries
from duramen.log.segments.listing import (
    SUBDIRECTORIES,
    Directory,
    LogFile,
    SegmentFiles,
    configured_format,
    detect,
    format_at,
    kind_of,
    list_log,
    refuse_foreign_sidecar,
    told_by_files,
)
from duramen.log.segments.log_builder import (
    BUILDING,
    BuiltSegment,
    LogBuilder,
    SegmentBuilder,
    refuse_taken,
    remove_tree,
    sync_tree,
)
from duramen.log.segments.manifest import (
    as_described,
    described_at,
    described_by,
    manifest_ends,
    manifest_facts,
    manifest_files,
    readable_config,
)
from duramen.log.segments.seals import SEAL_HINT, Seals, SealVerdict, judge_seal, settled_digests
from duramen.log.segments.segment_end import EndKind, SegmentEnd, classify_rows, is_unfinished, starts_after_end
from duramen.log.segments.segment_start import has_not_begun, last_has_not_begun
from duramen.log.segments.snapshot import (
    Snapshot,
    take_settled_snapshot,
    take_snapshot,
    until_stable,
    while_files_go,
)
from duramen.log.segments.special_files import HINT, refuse_special_files, special_files
from duramen.log.segments.time_search import first_at, is_within, us_of
from duramen.log.segments.witness import (
    Contradiction,
    against_mark,
    digested_bytes,
    find_contradiction,
    lacks_active,
    offset_after,
)
