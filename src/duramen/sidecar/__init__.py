"""The sidecar ``.duramen/``: what a log knows about itself that its format cannot store.

`layout` lists every file of the directory: its writer, its readers, whether it is synced, and what happens if it is
missing. The records never depend on these files; they are evidence (how far records are durable, what a sealed segment
must look like), coordination (the writer's lock, a file swap, a transaction) and state of consumers.

- `Sidecar` belongs to the writer of a log. It holds the lock and changes what only the writer may change: the
  configuration, the watermark, the list of sealed segments, the quarantine.
- `Watermark` says how far the active segment is acknowledged and durable; `read_watermark` needs no lock.
- `JsonFile` is the codec of all JSON state files: size limit, version, checksum, atomic replacement. A module per kind
  of file (`file_swap`, `tx_marker`, `tx_ledger`, `repair_journal`, `gaps`, `holds`, `published`) adds the meaning.

The writer calls ``Sidecar.lock``, publishes each commit with ``Sidecar.mark`` and each sealed segment with
``Sidecar.add_sealed``. Changes to several files at once go through a file swap, or through a transaction: a marker in
the log, and the ledger entry that decides.

This package reads no record and decides nothing about a log: `duramen.log` does.
"""

from __future__ import annotations

from duramen.sidecar.file_swap import (
    FileSwap,
    changed_by_file_swap,
    commit_file_swap,
    prepare_file_swap,
    read_file_swap,
    replay_file_swap,
    settled_watermark,
)
from duramen.sidecar.gaps import (
    COMPACTION_PATH,
    LOSSES_PATH,
    CompactionState,
    KnownLoss,
    encode_known_losses,
    known_loss_of,
    read_compaction_state,
    read_known_losses,
)
from duramen.sidecar.holds import Need, read_holds
from duramen.sidecar.json_file import (
    SMALL_BYTES,
    STATE_BYTES,
    TEMPORARY,
    JsonFile,
    add_checksum,
    bounded_copy,
    checked_body,
    create_file,
    decode_line,
    encode_line,
    inside_log,
    parse_json,
    read_state_file,
    replace_file,
)
from duramen.sidecar.layout import (
    CLEAN_CLOSE_NAME,
    COMPACTING_NAME,
    CONFIG_NAME,
    CURSORS_NAME,
    DIRECTORY,
    FILES,
    GROUPS_NAME,
    LEDGER_NAME,
    LOCK_NAME,
    ORIGIN_CHUNKS_NAME,
    ORIGIN_NAME,
    PRODUCERS_NAME,
    QUARANTINE_NAME,
    SEALED_NAME,
    STAGING_NAME,
    TOPIC_NAME,
    TX_INTENT_NAME,
    TX_LOCK_NAME,
    TX_MARKER_NAME,
    WATERMARK_NAME,
    CachedConfig,
    Config,
    Shape,
    is_no_directory,
    read_config,
    refuse_no_directory,
    sidecar_path,
)
from duramen.sidecar.lock import has_writer
from duramen.sidecar.published import (
    StoredSchema,
    Verification,
    WriterMetrics,
    read_schema,
    read_verification,
    read_writer_metrics,
    write_schema,
    write_verification,
    write_writer_metrics,
)
from duramen.sidecar.repair_journal import (
    FileBefore,
    RepairEntry,
    RepairJournal,
    RepairStage,
    RepairState,
    read_repair_journal,
    refuse_unfinished_repair,
    remove_repair_journal,
    write_repair_journal,
)
from duramen.sidecar.sealed_list import (
    SEALED_PATH,
    Sealed,
    SealedIndex,
    SealedList,
    SealedSum,
    lines,
    sealed_lines,
)
from duramen.sidecar.sidecar import Sidecar
from duramen.sidecar.tx_ledger import (
    JOBS_LEDGER,
    BatchKey,
    LedgerEntry,
    check_batch_key,
    last_batch,
    ledger_path,
    prepare_ledger,
    record_batch,
    sync_ledger,
    unreadable_ledgers,
)
from duramen.sidecar.tx_marker import (
    CONFIG,
    NEXT,
    TxMarker,
    prepare_tx_marker,
    read_tx_marker,
    remove_tx_marker,
    tx_marker_path,
    write_tx_marker,
)
from duramen.sidecar.watermark import PAGE_BYTES, Watermark, is_garbage_watermark, read_watermark, read_watermarks
