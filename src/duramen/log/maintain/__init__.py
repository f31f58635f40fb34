"""Remove what a log no longer needs: old segments (retention) and superseded records (compaction).

`Retention` holds the rules. `plan_retention` returns a `RetentionPlan`: which of the oldest segments go, and why the
next one stays. `retain_segments` executes the plan on a log that is open for writing; `RetentionTimer` does so in a
thread, after each sealed segment and at intervals.

`Compaction` holds the settings, `Compactor` runs one compaction and returns a `CompactionReport`; `plan_compaction`
returns what it would do. `survivors` finds the
newest offset of every key in bounded memory; the compactor then rewrites each sealed segment that loses a record.

Both plan while appends go on and change the files in one `FileSwap` (`segment_swap`), so that a crash leaves the old
files or the new ones. Neither touches the active segment, nor a segment that a group, a cursor or a running job still
needs.
"""

from __future__ import annotations

from duramen.log.maintain.compact import (
    DEFAULT_MEMORY_BYTES,
    Compaction,
    CompactionReport,
    Compactor,
    Progress,
    check_compaction,
    plan_compaction,
)
from duramen.log.maintain.record_cleaner import cleaner_for
from duramen.log.maintain.retention import Retention, RetentionPlan, check_rules
from duramen.log.maintain.scheduler import RETENTION_INTERVAL_S, RetentionTimer, plan_retention, retain_segments
