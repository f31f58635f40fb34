"""A producer of a topic: one producer of the same name in each partition.

A record with a sequence must say where it goes (a key or a partition), so that a repeated append reaches the partition
that holds the first one. After partitions were added, keys may go elsewhere, and a repetition across that change is
stored again.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from duramen.consumers import Confirmed, check_producer
from duramen.errors import UsageError
from duramen.log import HeadersIn

if TYPE_CHECKING:
    from duramen.store.topic import Topic


class PlacedOnce(NamedTuple):
    """The partition of a record, and whether it was new there."""

    partition: int
    confirmed: Confirmed


class TopicProducer:
    """A producer of a topic, created by ``topic.producer(name)``.

    >>> import tempfile, duramen
    >>> with duramen.Store(tempfile.mkdtemp()) as store:
    ...     till = store.create("orders", partitions=4).producer("till 4")
    ...     print(till.append(b"one beer", key=b"customer-7", sequence=1).partition)
    ...     print(till.append(b"one beer", key=b"customer-7", sequence=1).confirmed.is_duplicate)
    3
    True
    """

    def __init__(self, topic: Topic, name: str) -> None:
        check_producer(name)
        self.name = name
        self._topic = topic

    def append(
        self,
        value: bytes | bytearray | memoryview | None,
        *,
        sequence: int | None = None,
        key: bytes | None = None,
        headers: HeadersIn | None = None,
        timestamp: datetime | int | str | None = None,
        partition: int | None = None,
        routing_key: bytes | None = None,
        durability: str | None = None,
        timeout_s: float | None = None,
    ) -> PlacedOnce:
        """Append one record unless its partition already holds its sequence."""
        if sequence is not None and partition is None and routing_key is None and key is None:
            raise UsageError(
                "a sequence needs a key, a routing_key or a partition: a repetition must reach the same partition"
            )
        number = self._topic._partition_for(value, key, partition, routing_key)
        with self._topic.log_for_append(number) as log:
            confirmed = log.producer(self.name).append(
                value, sequence=sequence, key=key, headers=headers, timestamp=timestamp, durability=durability,
                timeout_s=timeout_s,
            )  # fmt: skip
        return PlacedOnce(number, confirmed)

    def __repr__(self) -> str:
        return f"<duramen.TopicProducer {self.name!r} of {self._topic!r}>"
