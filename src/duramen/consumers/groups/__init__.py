"""One consumer group: what it delivers, what it remembers, and where that lies.

- `Group` is the object of the callers: ``fetch``, ``ack``, ``nack``, ``extend``, ``status``.
- `ConsumeLoop` is the loop of a consumer: extends leases, acknowledges, returns, stops on a signal.
- `Dispatcher` chooses the records of a fetch; `ReadAhead` reads them, `DeadLetters` takes those that fail too often.
- `GroupStore` keeps the files and the lock; `StateMachine` is the state itself, without I/O.
"""

from __future__ import annotations

from duramen.consumers.groups.consume import ConsumeLoop, ConsumeOptions
from duramen.consumers.groups.dead_letters import Target
from duramen.consumers.groups.deliveries import Delivery, DeliveryBatch, Handed, Seconds
from duramen.consumers.groups.dispatcher import checked_position
from duramen.consumers.groups.group import POLL_S, Group, GroupOptions, GroupStatus, Replayed, check_group_options
from duramen.consumers.groups.members import InFlight, Member, members_in
from duramen.consumers.groups.policy import GroupPolicy
from duramen.consumers.groups.store import Loaded, load
