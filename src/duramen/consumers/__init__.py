"""Consumer groups, cursors and producers of one log. Their state lies beside the records and can be deleted: consumers
then start again, and no record is lost.

- `Group` delivers each record to one consumer under a lease, and redelivers it until a consumer acknowledges it.
- `Cursor` stores one position under a name.
- `Producer` numbers its appends, so that the log stores a repeated append once.

`ConsumableLog` and `ConsumableWritableLog` are the logs that `duramen.open` returns; their ``group``, ``cursor``
and ``producer`` methods create the three. Inside a group::

    Group ──── Dispatcher ──── ReadAhead        which records a fetch gets, read from the log
      │            └────────── DeadLetters      records that failed too often
      └─────── GroupStore ──── StateMachine     files and lock; the state itself, without I/O

`consumer_lags` lists the state of every group and cursor without taking a lock. The package never changes a record,
never skips one, and never decides what a consumer does with it.
"""

from __future__ import annotations

from duramen.consumers.cursors import Cursor, CursorState
from duramen.consumers.files import files_of
from duramen.consumers.groups import (
    POLL_S,
    ConsumeLoop,
    ConsumeOptions,
    Delivery,
    DeliveryBatch,
    Group,
    GroupOptions,
    GroupPolicy,
    GroupStatus,
    Handed,
    InFlight,
    Member,
    Replayed,
    Seconds,
    Target,
    check_group_options,
    checked_position,
)
from duramen.consumers.lag import ConsumerLag, consumer_lags, group_members
from duramen.consumers.log import ConsumableLog, ConsumableWritableLog
from duramen.consumers.producers import Confirmed, Producer, ProducerState, check_producer
from duramen.consumers.shared_lock import hold_lock, take_lock
