"""The engine: one log, a directory of segments in any of the formats, with its sidecar.

The packages import each other in this order:

- `segments`: the files of a log (`Directory`, `list_log`), where the records of a segment end (`SegmentEnd`), digests
  of sealed segments (`Seals`), building new segments (`LogBuilder`).
- `verify`: checks every byte and reports (`verify_log`, `Report`, `Finding`).
- `read`: `Log`, a log that is open for reading: offsets, times, batches, following.
- `recover`: brings a log that was not closed back into order when it is opened for append (`RecoveryCase`).
- `maintain`: retention and compaction (`Retention`, `Compactor`).
- `write`: `WritableLog`, a log that is open for append: batches, group commit, transactions, producers.
- `transfer`: `convert` and `copy` make a new log from an old one.
- `repair`: `repair_log` turns a damaged log into a sound one, `undo_repair` restores the old state.

A program opens a `Log` or a `WritableLog`; everything else serves these two or works on a closed log. The engine is
generic over `duramen.formats.Format`: no module here imports a concrete format or knows the layout of a record. All
file access goes through a `duramen.disk.Disk`, all state files belong to `duramen.sidecar`.

The engine refuses to guess. Damage raises `CorruptionError` with path, position and hint; opening for append cuts only
what a crashed writer can have left; nothing but an explicit repair gives up an acknowledged record.
"""

from __future__ import annotations

from duramen.log.maintain import (
    DEFAULT_MEMORY_BYTES,
    Compaction,
    CompactionReport,
    Retention,
    RetentionPlan,
    check_compaction,
    check_rules,
    cleaner_for,
    plan_compaction,
    plan_retention,
)
from duramen.log.read import FOLLOW_WAIT_S, Log, ReaderOptions, SegmentInfo, Time, dump_for, records_of
from duramen.log.recover import DEFAULT_FORMAT, RecoveryCase, RecoveryStep
from duramen.log.repair import (
    Plan,
    Reindexed,
    RepairAction,
    RepairStep,
    Strategy,
    Undone,
    reindex,
    repair_log,
    undo_repair,
)
from duramen.log.segments import (
    BUILDING,
    SEAL_HINT,
    SUBDIRECTORIES,
    BuiltSegment,
    Directory,
    EndKind,
    LogBuilder,
    LogFile,
    Seals,
    SegmentBuilder,
    SegmentEnd,
    SegmentFiles,
    against_mark,
    classify_rows,
    detect,
    find_contradiction,
    first_at,
    format_at,
    index_bytes,
    judge_seal,
    kind_of,
    list_log,
    refuse_foreign_sidecar,
    refuse_special_files,
    refuse_taken,
    remove_tree,
    settled_digests,
)
from duramen.log.transfer import (
    FIELDS,
    ORIGIN_CHUNKS_PATH,
    Boundary,
    Conversion,
    Converted,
    Copied,
    Copy,
    FieldLoss,
    LossError,
    LossSurvey,
    Progress,
    Source,
    TimestampFitter,
    Update,
    convert,
    copy,
    copy_or_update,
)
from duramen.log.verify import (
    Checked,
    Finding,
    RangeReport,
    RangeVerifier,
    Report,
    SegmentRange,
    SegmentReport,
    SidecarEvidence,
    cut_ranges,
    list_settled,
    missing,
    name_emptied,
    publish_check,
    retry_if_cut,
    retry_if_overtaken,
    verify_log,
)
from duramen.log.write import (
    DURABILITIES,
    MAX_SEQUENCE,
    Appended,
    AppendOptions,
    Batch,
    Content,
    GroupBatch,
    GroupCommit,
    GroupLimits,
    HeadersIn,
    Last,
    Request,
    SequenceClaim,
    TransactionPart,
    WritableLog,
    WriterOptions,
    batch_of,
    batch_of_one,
    check_times,
    columns_of,
    commit_batch,
    new_attempt,
    read_producers,
    refuse_owned,
    resolve_transaction,
    store_positions,
    stored_positions,
)
