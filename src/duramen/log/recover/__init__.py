"""Recovery: from whatever a crash left to a log that can be appended to, without losing or inventing a record.

`open_for_append` is where to start reading: it resolves the format, takes the lock, finishes a file swap, resolves a
transaction, and calls `recover`. That function gathers `Evidence` (where the records of the last segment end, what the
watermark and the sealed list say), walks `TABLE`, whose rows name a case and an action, and runs the actions, which are
methods of `Recovery`. The result, `Recovered`, is what the writer starts from; its ``steps`` become
``log.recovery``. `tx_resolve` commits or rolls back the transaction of a process that died.

Recovery reads the names and sizes of all segments and the records of the last one. It cuts nothing before a copy is on
the disk, never cuts damage unless the caller asked for it, and never repairs: that is `duramen.log.repair`.
"""

from __future__ import annotations

from duramen.log.recover.case import CUTS, RecoveryCase, RecoveryStep
from duramen.log.recover.open import DEFAULT_FORMAT, OpenedLog, make_directory, open_for_append
from duramen.log.recover.recovery import UNSYNCED_BYTES, Recovered
from duramen.log.recover.sealed_index import rebuild_sealed_indexes
from duramen.log.recover.table import TABLE, evidence_of, markdown_table, recover
from duramen.log.recover.tx_resolve import clear_next, move_in, replacement_marker, resolve_tx
