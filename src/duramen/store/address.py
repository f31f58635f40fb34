"""Addresses: ``PATH#topic`` and ``PATH#topic/partition`` in place of a plain path, wherever a log is named.

A partition is an ordinary log, so its address stands for its path. Some calls work on a whole topic. An existing file
or directory whose name contains ``#`` is a plain path.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from duramen.disk import Kind, PosixDisk
from duramen.errors import UsageError
from duramen.store import broker
from duramen.store.layout import check_topic_exists, list_partitions, located
from duramen.store.names import Address


class TopicAddress(NamedTuple):
    """A topic and the store that it belongs to."""

    root: str
    topic: str

    def __str__(self) -> str:
        return f"{self.root}#{self.topic}"


def parse_address(text: str) -> tuple[str, Address] | None:
    """Split an address into the store's root and the topic with its partition; None for a plain path.

    >>> parse_address("data#orders/3")
    ('data', Address(topic='orders', partition=3))
    >>> parse_address("data") is None
    True
    """
    root, hash_, rest = text.rpartition("#")
    if not hash_ or not root or PosixDisk().kind(text) != Kind.MISSING:
        return None
    return root, Address.parse(rest)


def topic_address(text: str) -> TopicAddress | None:
    """The topic that an address names as a whole; None for a plain path or a partition. The topic must exist."""
    found = parse_address(text)
    if found is None or found[1].partition is not None:
        return None
    root, address = found
    check_topic_exists(PosixDisk(), root, address.topic)
    return TopicAddress(root, address.topic)


def log_options(text: str) -> dict[str, Any]:
    """The options with which the partition that an address names is read: its start, if a Kafka broker moved it."""
    return {} if parse_address(text) is None else broker.options_at(PosixDisk(), log_path(text))


def log_path(text: str) -> str:
    """The path of a log, which may be given as the address of a partition. `UsageError` for a whole topic."""
    found = parse_address(text)
    if found is None:
        return text
    root, (topic, number) = found
    parts = list_partitions(PosixDisk(), root, topic)
    if number is None:
        raise UsageError(
            f"this call needs one partition, and {topic!r} is a topic with {len(parts)} partitions", path=root,
            hint=f"give a partition, for example {root}#{topic}/0",
        )  # fmt: skip
    if number not in [part.number for part in parts]:
        known = ", ".join(str(part.number) for part in parts[:8]) or "none"
        raise UsageError(f"the topic {topic!r} has no partition {number}", path=root, hint=f"its partitions: {known}")
    return located(PosixDisk(), root, topic, number)
