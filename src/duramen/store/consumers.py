"""A consumer group over all partitions of a topic: one group of the same name in each partition, fetched in turn.

The promises of `duramen.consumers.Group` hold for each partition. Each fetch starts with another partition, so that a
busy one does not starve the others. Partitions are not assigned: any number of consumers fetch from all of them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, NamedTuple, TypeVar, Unpack

from duramen.arguments import check_int, check_kind, check_timeout
from duramen.consumers import (
    ConsumeLoop,
    ConsumeOptions,
    Delivery,
    DeliveryBatch,
    Group,
    GroupStatus,
    InFlight,
    Member,
    Replayed,
    Seconds,
    Target,
    check_group_options,
    checked_position,
    files_of,
)
from duramen.errors import LeaseError
from duramen.log import Time
from duramen.names import check_name
from duramen.record import Record, from_us
from duramen.store.partitions import TopicPartitions

T = TypeVar("T")

POLL_S = 0.02


class TopicDelivery(NamedTuple):
    """A record of a partition that its consumer holds until the deadline."""

    partition: int
    record: Record
    deadline_ms: int
    epoch: int

    @property
    def offset(self) -> int:
        return self.record.offset

    @property
    def value(self) -> bytes | None:
        return self.record.value

    @property
    def deadline(self) -> datetime | None:
        """When the lease ends; None after the year 9999."""
        return from_us(self.deadline_ms * 1000)


class TopicGroup:
    """A consumer group of a topic, created by ``topic.group(name)``.

    >>> import tempfile, duramen
    >>> with duramen.Store(tempfile.mkdtemp()) as store:
    ...     orders = store.create("orders", partitions=3)
    ...     _ = orders.append_batch([b"a", b"b", b"c"], routing_key=[b"1", b"2", b"3"])
    ...     billing = orders.group("billing")
    ...     deliveries = billing.fetch(10)
    ...     print(sorted(delivery.value for delivery in deliveries), billing.ack_many(deliveries), billing.lag)
    [b'a', b'b', b'c'] 3 0
    """

    def __init__(self, topic: TopicPartitions, name: str, options: dict[str, Any]) -> None:
        self.name = check_name("group", name)
        self._topic = topic
        check_group_options({name: given for name, given in options.items() if name != "consumer"})
        self._options = options
        self._start = checked_position(options.get("start", "beginning"))
        self._turn = 0
        self._guard = threading.Lock()
        self._begun: set[int] = set()
        """Partitions in which the group has started."""

    def fetch(self, max: int = 1, lease: Seconds | None = None, *, timeout_s: float = 0.0) -> list[TopicDelivery]:
        """Return up to ``max`` records of any partitions; wait up to ``timeout_s`` for the first. If a partition is
        unreadable, return the records of the others; raise the error if there are none."""
        found: list[TopicDelivery] = []
        max, until = check_int("max", max, least=1), time.monotonic() + check_timeout(timeout_s)
        while True:
            for number in self._in_turn():
                try:
                    with self._group(number) as group:
                        found += [TopicDelivery(number, *handed) for handed in group.fetch(max - len(found), lease)]
                except Exception:
                    if not found:
                        raise
                    return found  # already leased: no other fetch would get them before the deadline
                if len(found) >= max:
                    return found
            if found or time.monotonic() >= until:
                return found
            time.sleep(POLL_S)

    def fetch_batch(
        self, max: int = 1, lease: Seconds | None = None, *, timeout_s: float = 0.0
    ) -> tuple[int, DeliveryBatch] | None:
        """Return a partition's number and up to ``max`` of its records as an Arrow batch, or None. Pass the pair to
        ``ack_many``, ``nack`` or ``extend``."""
        max, until = check_int("max", max, least=1), time.monotonic() + check_timeout(timeout_s)
        while True:
            for number in self._in_turn():
                with self._group(number) as group:
                    batch = group.fetch_batch(max, lease)
                if len(batch):
                    return number, batch
            if time.monotonic() >= until:
                return None
            time.sleep(POLL_S)

    def consume(self, **options: Unpack[ConsumeOptions]) -> ConsumeLoop[TopicDelivery]:
        """A loop over the deliveries that extends leases, acknowledges, returns and stops: see `ConsumeLoop`."""
        return ConsumeLoop(self, **options)

    @property
    def lease_s(self) -> float:
        """The lease of a fetch that names none."""
        with self._group(self._topic.existing()[0]) as group:
            return group.lease_s

    def _in_turn(self) -> Iterator[int]:
        there = self._topic.existing()
        if self._start != "beginning" and not self._begun.issuperset(there):
            self._begin(there)
        with self._guard:
            first, self._turn = self._turn, self._turn + 1
        for number in range(len(there)):
            yield there[(first + number) % len(there)]

    def _begin(self, there: list[int]) -> None:
        """Start a new group in all partitions at its ``start`` option. An existing group starts in partitions added
        later at their first record, so that it skips none."""
        with self._topic.starting_lock():
            new = [number for number in there if not self._has_begun(number)]
            is_new = len(new) == len(there)
            for number in new:
                with self._group(number) as group:
                    group.begin(None if is_new else "beginning")
            self._begun.update(there)

    def _has_begun(self, number: int) -> bool:
        with self._topic.log(number) as log:
            return files_of(log, self.name)[1]

    @contextmanager
    def _group(self, number: int) -> Iterator[Group]:
        with self._topic.log(number) as log:
            yield log.group(self.name, **self._options)

    # --- giving back

    def ack(self, handed: TopicDelivery, *, durability: str | None = None) -> bool:
        """Acknowledge one delivery; return False if it was acknowledged before. `LeaseError` if the lease has ended."""
        return self.ack_many([handed], durability=durability) > 0

    def ack_many(self, handed: Any, *, durability: str | None = None) -> int:
        """Acknowledge deliveries or the result of `fetch_batch`; return how many were not acknowledged before. If some
        leases have ended, acknowledge the others, then raise `LeaseError`."""
        return self._each(handed, lambda group, own: group.ack_many(own, durability=durability))

    def nack(self, handed: Any, *, delay: Seconds = 0.0, reason: str = "returned by its consumer") -> int:
        """Return deliveries for redelivery now or after ``delay`` seconds."""
        return self._each(handed, lambda group, own: group.nack(own, delay=delay, reason=reason))

    def extend(self, handed: Any, lease: Seconds | None = None) -> int:
        """Extend leases to ``lease`` seconds from now; return the number of partitions concerned."""
        return self._each(handed, lambda group, own: min(group.extend(own, lease), 1))

    def _each(self, handed: Any, work: Any) -> int:
        done, refused = 0, None
        for number, own in _by_partition(handed).items():
            with self._group(number) as group:
                try:
                    done += work(group, own)
                except LeaseError as error:
                    refused = refused or error
        if refused is not None:
            raise refused
        return done

    # --- standing

    def status(self) -> dict[int, GroupStatus]:
        """State of the group in every partition."""
        return self._everywhere(lambda group: group.status())

    def members(self) -> dict[int, list[Member]]:
        """The consumers that hold records of each partition."""
        return self._everywhere(lambda group: group.members())

    def stuck(self, *, attempts: int = 3, held: Seconds = 600.0) -> dict[int, list[InFlight]]:
        """Runs of records of each partition that were delivered often or are held for long; see `Group.stuck`."""
        return self._everywhere(lambda group: group.stuck(attempts=attempts, held=held))

    def replay(self, dead_letter: Target | None = None) -> dict[int, Replayed]:
        """Deliver dead letters again; see `Group.replay`."""
        return self._everywhere(lambda group: group.replay(dead_letter))

    def _everywhere(self, work: Callable[[Group], T]) -> dict[int, T]:
        found = {}
        for number in self._topic.existing():
            with self._group(number) as group:
                found[number] = work(group)
        return found

    @property
    def lag(self) -> int:
        """Records of all partitions that are not acknowledged."""
        return sum(status.lag for status in self.status().values())

    @property
    def in_flight(self) -> int:
        return sum(status.in_flight for status in self.status().values())

    def reset(self, to: str | None = None, *, time: Time | None = None) -> dict[int, int]:
        """Move to the ``"beginning"`` or ``"end"`` of every partition, or to the first records at or after a time."""
        return self._everywhere(lambda group: group.reset(to, time=time))

    def __repr__(self) -> str:
        return f"<duramen.TopicGroup {self.name!r} of {self._topic!r}>"


def _by_partition(handed: Any) -> dict[int, Any]:
    if isinstance(handed, TopicDelivery):
        handed = [handed]
    if isinstance(handed, tuple) and len(handed) == 2 and isinstance(handed[1], DeliveryBatch):
        return {handed[0]: handed[1]}
    deliveries = list(handed) if isinstance(handed, Iterable) else [handed]
    found: dict[int, list[Delivery]] = {}
    for delivery in deliveries:
        check_kind("a delivery", delivery, TopicDelivery)
        found.setdefault(delivery.partition, []).append(Delivery(*delivery[1:]))
    return found
