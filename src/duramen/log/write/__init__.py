"""Appending to a log: many callers, one writer, one sync for all appends that arrive together.

`WritableLog` is what ``duramen.open(path, "a")`` returns. An append becomes a batch (`batch`), waits in the queue of
`GroupCommit`, and is committed with the other requests of its group. The thread that leads the group has
`Appender` write the records, sync them and move the watermark, which shows them to readers; then every caller of the
group gets its offsets (`Appended`). A single append that needs nothing but its bytes and the watermark goes without a
group (`SingleAppends`). `ProducerTable` keeps repeated appends of a producer from being stored twice, and
`transaction` commits many batches, to one log or several, together with a ledger entry.

This package never acknowledges a record that is less durable than the caller asked for. After a failure with an unknown
outcome it refuses to go on: the writer is poisoned, and opening the log again runs recovery (`duramen.log.recover`).
"""

from __future__ import annotations

from duramen.log.write.batch import (
    Appended,
    Batch,
    Content,
    GroupBatch,
    HeadersIn,
    SequenceClaim,
    batch_of,
    batch_of_one,
    check_times,
    columns_of,
)
from duramen.log.write.group_commit import GroupCommit, GroupLimits, Request, refuse_owned
from duramen.log.write.hidden_rows import new_attempt
from duramen.log.write.osiris_offsets import store_positions, stored_positions
from duramen.log.write.producer_state import MAX_SEQUENCE, Last, read_producers
from duramen.log.write.transaction import TransactionPart, commit_batch, resolve_transaction
from duramen.log.write.writable_log import DURABILITIES, AppendOptions, WritableLog, WriterOptions
