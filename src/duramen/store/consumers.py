"""A consumer group over all partitions of a topic: one group of the same name in each, fetched from in turn.

Every promise is that of `duramen.groups.group.Group`, partition by partition. Each fetch begins with another partition,
so that a busy one does not keep the others waiting. Nobody owns a partition: any number of consumers, in threads and in
processes, fetch from all of them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from duramen.errors import LeaseError
from duramen.groups.deliveries import Delivery, DeliveryBatch, Seconds
from duramen.groups.group import Group, GroupStatus
from duramen.groups.places import place_of
from duramen.log.names import check_name
from duramen.log.window import Time
from duramen.model import Record, from_us

if TYPE_CHECKING:
    from duramen.store.topic import Topic

POLL_S = 0.02


class TopicDelivery(NamedTuple):
    """A record that is yours until its deadline, and the partition that it is from."""

    partition: int
    record: Record
    deadline_ms: int
    epoch: int

    @property
    def offset(self) -> int:
        return self.record.offset

    @property
    def value(self) -> bytes:
        return self.record.value

    @property
    def deadline(self) -> datetime | None:
        """When the lease ends; None for one that ends after the year 9999."""
        return from_us(self.deadline_ms * 1000)


class TopicGroup:
    """Made by ``topic.group(name)``.

    >>> import tempfile, duramen
    >>> with duramen.Store(tempfile.mkdtemp()) as store:
    ...     orders = store.create("orders", partitions=3)
    ...     _ = orders.append_batch([b"a", b"b", b"c"], routing_key=[b"1", b"2", b"3"])
    ...     billing = orders.group("billing")
    ...     deliveries = billing.fetch(10)
    ...     print(sorted(delivery.value for delivery in deliveries), billing.ack_many(deliveries), billing.lag)
    [b'a', b'b', b'c'] 3 0
    """

    def __init__(self, topic: Topic, name: str, options: dict[str, Any]) -> None:
        self.name = check_name("group", name)
        self._topic = topic
        self._options = options
        self._turn = 0
        self._guard = threading.Lock()
        self._begun: set[int] = set()
        """Partitions in which the group is known to have started."""

    def fetch(self, max: int = 1, lease: Seconds | None = None, *, timeout_s: float = 0.0) -> list[TopicDelivery]:
        """Up to ``max`` records of any partitions. With ``timeout_s``, waits for the first one. Where a partition
        cannot be read, what others gave goes out, and the error comes with a fetch that has nothing else."""
        found: list[TopicDelivery] = []
        until = time.monotonic() + timeout_s
        while True:
            for number in self._in_turn():
                try:
                    with self._group(number) as group:
                        found += [TopicDelivery(number, *handed) for handed in group.fetch(max - len(found), lease)]
                except Exception:
                    if not found:
                        raise
                    return found  # they are held already: nobody would get them before their deadline
                if len(found) >= max:
                    return found
            if found or time.monotonic() >= until:
                return found
            time.sleep(POLL_S)

    def fetch_batch(
        self, max: int = 1, lease: Seconds | None = None, *, timeout_s: float = 0.0
    ) -> tuple[int, DeliveryBatch] | None:
        """Up to ``max`` records of one partition as an Arrow batch, with the number of the partition; None when no
        partition has any. To be handed back as it is: ``ack_many(batch)``."""
        until = time.monotonic() + timeout_s
        while True:
            for number in self._in_turn():
                with self._group(number) as group:
                    batch = group.fetch_batch(max, lease)
                if len(batch):
                    return number, batch
            if time.monotonic() >= until:
                return None
            time.sleep(POLL_S)

    def _in_turn(self) -> Iterator[int]:
        there = self._topic._there()
        if self._options.get("start", "beginning") != "beginning" and not self._begun.issuperset(there):
            self._begin(there)
        with self._guard:
            first, self._turn = self._turn, self._turn + 1
        for number in range(len(there)):
            yield there[(first + number) % len(there)]

    def _begin(self, there: list[int]) -> None:
        """A new group starts everywhere at once where it was told to. Where it has started before, partitions that were
        added since start with their first record: what came before anybody looked must not be skipped."""
        with self._topic._beginning():
            new = [number for number in there if not self._has_begun(number)]
            is_new = len(new) == len(there)
            for number in new:
                with self._group(number) as group:
                    group.begin(None if is_new else "beginning")
            self._begun.update(there)

    def _has_begun(self, number: int) -> bool:
        with self._topic.log(number) as log:
            return place_of(log, self.name)[1]

    @contextmanager
    def _group(self, number: int) -> Iterator[Group]:
        with self._topic.log(number) as log:
            yield log.group(self.name, **self._options)

    # --- giving back

    def ack(self, handed: TopicDelivery, *, durability: str | None = None) -> bool:
        """Acknowledge one delivery; False where it was before. `LeaseError` where the lease is not held any more."""
        return self.ack_many([handed], durability=durability) > 0

    def ack_many(self, handed: Any, *, durability: str | None = None) -> int:
        """Acknowledge deliveries, or what `fetch_batch` gave; answers how many were not acknowledged before. Where some
        are not held any more, all others are acknowledged before `LeaseError` is raised."""
        return self._each(handed, lambda group, own: group.ack_many(own, durability=durability))

    def nack(self, handed: Any, *, delay: Seconds = 0.0, reason: str = "returned by its consumer") -> int:
        """Give deliveries back: they go out again now, or after ``delay`` seconds."""
        return self._each(handed, lambda group, own: group.nack(own, delay=delay, reason=reason))

    def extend(self, handed: Any, lease: Seconds | None = None) -> int:
        """Hold deliveries for ``lease`` seconds more, from now on; answers how many partitions were asked."""
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
        """How the group stands in every partition."""
        found = {}
        for number in self._topic._there():
            with self._group(number) as group:
                found[number] = group.status()
        return found

    @property
    def lag(self) -> int:
        """Records of all partitions that are not acknowledged yet."""
        return sum(status.lag for status in self.status().values())

    @property
    def in_flight(self) -> int:
        return sum(status.in_flight for status in self.status().values())

    def reset(self, to: str | None = None, *, time: Time | None = None) -> dict[int, int]:
        """Go to the ``"beginning"`` or ``"end"`` of every partition, or to the first records at or behind a time."""
        found = {}
        for number in self._topic._there():
            with self._group(number) as group:
                found[number] = group.reset(to, time=time)
        return found

    def __repr__(self) -> str:
        return f"<duramen.TopicGroup {self.name!r} of {self._topic!r}>"


def _by_partition(handed: Any) -> dict[int, Any]:
    if isinstance(handed, TopicDelivery):
        handed = [handed]
    if isinstance(handed, tuple) and len(handed) == 2 and isinstance(handed[1], DeliveryBatch):
        return {handed[0]: handed[1]}
    deliveries: Iterable[TopicDelivery] = handed
    found: dict[int, list[Delivery]] = {}
    for partition, record, deadline_ms, epoch in deliveries:
        found.setdefault(partition, []).append(Delivery(record, deadline_ms, epoch))
    return found
