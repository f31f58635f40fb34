"""Check every byte of a log against its checksums, indexes, names and sidecar. Reads only, takes no lock.

`verify_log` finds the format of a log and returns a `Report`: one `SegmentReport` per segment, and `Finding`s with a
stable code, a severity, a place and an action. `check_log` does the same for a known format.

A `Verifier` checks a log in two steps: `check` reads one segment with its indexes (`segment_check`, `index_check`) and
can run anywhere; `conclude` adds what only shows from above: seams between segments, unknown files, the sidecar
(`SidecarEvidence`). Large logs are checked in threads (`threads`); a `RangeVerifier` checks one `SegmentRange` of a
segment, for threads and for Spark tasks.

Parts of the check run before a change: `refuse_damage` before a log is opened for append, `damage_below` before
retention or compaction removes or rewrites segments.

Damage never stops a check: it continues at the next valid record. Retention, compaction and a writer may change the log
during a check; what they remove is left out of the report. Nothing is repaired here.
"""

from __future__ import annotations

from duramen.log.verify.index_check import short_indexes
from duramen.log.verify.partial_check import damage, damage_below, damage_error, lost_at_end, refuse_damage
from duramen.log.verify.ranges import RangeReport, RangeVerifier, SegmentRange, cut_ranges
from duramen.log.verify.report import Finding, Report, SegmentReport, counted, name_emptied
from duramen.log.verify.segment_check import Checked, Progress
from duramen.log.verify.sidecar_check import SidecarEvidence, sidecar_groups
from duramen.log.verify.verifier import list_settled, missing
from duramen.log.verify.verify import check_log, format_for, publish_check, retry_if_cut, retry_if_overtaken, verify_log
